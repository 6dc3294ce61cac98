"""Messages between the grader and the processes that run cells: JSON behind a length, and sockets passed along.

Nothing a process answers is ever unpickled or evaluated: it ran a student's code, and may answer anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Any

_HEADER = struct.Struct(">I")
LARGEST = 16 << 20  # bytes of one message; an honest answer is far smaller (its output is cut)

if sys.platform == "linux":
    _CREDENTIALS = struct.Struct("3i")  # pid, uid, gid, as the kernel filled them in
    _ROOM = socket.CMSG_SPACE(_CREDENTIALS.size)


class Unreadable(Exception):
    """The other side sent what is no message."""


def send(to: socket.socket, message: Any, passing: Sequence[socket.socket] = ()) -> None:
    """Send one message, and sockets with it."""
    data = json.dumps(message).encode()
    data = _HEADER.pack(len(data)) + data
    if passing:
        sent = socket.send_fds(to, [data], [one.fileno() for one in passing])
        data = data[sent:]
    to.sendall(data)


def receive(source: socket.socket) -> tuple[Any, list[socket.socket]]:
    """Wait for one message. EOFError when the other side is gone."""
    data, passed = b"", []
    while len(data) < _HEADER.size:
        part, handles, _, _ = socket.recv_fds(source, _HEADER.size - len(data), 1)
        passed += [socket.socket(fileno=handle) for handle in handles]
        if not part:
            raise EOFError
        data += part
    (length,) = _HEADER.unpack(data)
    parts = []
    while length:
        part = source.recv(min(length, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        length -= len(part)
    return json.loads(b"".join(parts)), passed


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no number that anybody may answer")


class Line:
    """The grader's end: reads what comes without waiting for more than it was told to, and trusts nothing.

    `sender` is the process that wrote first, as the kernel tells it where it does (Linux); None before, and elsewhere.
    """

    def __init__(self) -> None:
        self._own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        #: the end to pass on; closed by `passed`
        self.other: socket.socket | None = other
        self.sender: int | None = None
        self._data = bytearray()
        self._closed = False
        if sys.platform == "linux":
            self._own.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)

    def passed(self) -> None:
        """The other end is in other hands: close it here, so that its last holder's end is seen."""
        if self.other is not None:
            self.other.close()
            self.other = None

    def send(self, message: Any, passing: Sequence[socket.socket] = ()) -> bool:
        """Send; False when nobody listens any more."""
        try:
            send(self._own, message, passing)
        except OSError:
            return False
        return True

    def wait(self, seconds: float, also: int | None = None) -> None:
        """Until something came, `also` (a file descriptor) is readable, or the time is over."""
        poll = select.poll()
        if not self._closed and self._own.fileno() >= 0:  # another thread may have closed it
            poll.register(self._own, select.POLLIN)
        if also is not None:
            poll.register(also, select.POLLIN)
        poll.poll(max(0.0, seconds) * 1000)

    def read(self) -> Any:
        """The next whole message, None if there is none yet.

        Raises:
            EOFError: the other side closed, and no whole message is left.
            Unreadable: what came is no message.
        """
        while (message := self._cut()) is None and not self._closed:
            try:
                part = self._receive()
            except BlockingIOError:
                return None
            except OSError:
                part = b""
            self._closed = not part
            self._data += part
        if message is None:
            raise EOFError
        return message

    def _receive(self) -> bytes:
        if sys.platform != "linux":
            return self._own.recv(1 << 18, socket.MSG_DONTWAIT)
        part, extra, _, _ = self._own.recvmsg(1 << 18, _ROOM, socket.MSG_DONTWAIT)
        for level, kind, value in extra:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and self.sender is None:
                self.sender = _CREDENTIALS.unpack(value[: _CREDENTIALS.size])[0]
            elif kind == socket.SCM_RIGHTS:  # a gift nobody asked for
                for (handle,) in struct.iter_unpack("i", value[: len(value) // 4 * 4]):
                    with contextlib.suppress(OSError):
                        os.close(handle)
        return part

    def _cut(self) -> Any:
        if len(self._data) < _HEADER.size:
            return None
        (length,) = _HEADER.unpack_from(self._data)
        if length > LARGEST:
            raise Unreadable(f"a message of {length} bytes; at most {LARGEST} are read")
        if len(self._data) < _HEADER.size + length:
            return None
        data = bytes(self._data[_HEADER.size : _HEADER.size + length])
        del self._data[: _HEADER.size + length]
        try:
            message = json.loads(data, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"no JSON: {error}") from None
        if not isinstance(message, dict):
            raise Unreadable("no JSON object")
        return message

    def close(self) -> None:
        self.passed()
        self._own.close()
        self._closed = True
