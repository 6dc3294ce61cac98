"""A Python process that runs a notebook's cells, can be copied at any moment, and is watched from outside.

    with Process.start() as root:                  # the source's own cells: imports, given functions
        root.run(set_up, name="set-up")
        with root.fork() as student:               # shut into a folder of its own
            student.run(answer, name="task-1-solution")
            student.test(check, name="task-1-check", library=["underload.metrics.itl"], given={"lab", "np"})

A process that is forked is the same process once more: its variables, its imports, its models in memory, in some
milliseconds. So one that was loaded once serves a whole class, and state can be kept before every cell.

A test runs in a fork of the student's process that ends after it. The fork, not the process, is told the test's
source, over a socket of its own; while it runs, the student's process stands still, so that no thread left running
in it can look. What the student's code may touch, and what all this does not protect against: sandbox.py, watch.py.

**Threads.** A fork has one thread, the one that runs cells. Threads that a cell left running are given half a second
to end, and do not exist in a fork: an answer has to start its own where it needs them.

**Time** is processor time, up to three times as much by the clock. When it is over the process is interrupted
(KeyboardInterrupt: its state is kept), and killed two seconds later if that did not help. A test's checks are limited
one by one; if one cannot be ended, those before it count.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import underload
from underload.course.marks import LabError
from underload.course.points import Check
from underload.course.sandbox import Limits
from underload.course.wire import Line, Unreadable

__all__ = ["Check", "Limits", "Process", "Ran", "Tested"]

Ended = Literal["done", "time", "died", "memory"]

_KILL_AFTER = 2.0  # seconds after the interrupt
_START = 120.0  # seconds a process may take to come up (a cold disk)
_FORK = 30.0
_POLL = 0.05
_ROUNDS = 20
_CHILDREN = 32  # processes that a cell may have started
#: Of the grader's environment a process gets these and no others: a student's code may print them all.
_ENVIRONMENT = {
    "PATH", "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH", "MPLCONFIGDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "SSL_CERT_FILE", "SYSTEMROOT",
}  # fmt: skip
_PREFIXES = ("LC_", "NUMBA_", "PYTHON", "UNDERLOAD_")
_THREADS = (
    "OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
)  # fmt: skip
_SETTINGS = dict.fromkeys(_THREADS, "1") | {
    "NUMBA_THREADING_LAYER": "workqueue",
    "MPLBACKEND": "agg",
    "PYTHONHASHSEED": "0",  # the order of a set must not decide on points
    "TOKENIZERS_PARALLELISM": "false",
    "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES",  # macOS
}


@dataclass(frozen=True)
class Ran:
    """What came of a cell. `error` is one line, "" if there was none; `seconds` are processor seconds.

    ended: "done" (also when it raised); "time", "memory": a limit was reached; "died": the process ended by itself.
    """

    error: str
    traceback: str
    output: str
    cut: bool
    seconds: float
    ended: Ended


@dataclass(frozen=True)
class Tested:
    """What came of a test cell. `error` says why there are no points apart from the checks; `used` is the library's
    own version that the answer used, which costs all points; `restored` names what had been tampered with.

    When `ended` is not "done", `checks` are those that came to an end, and last the one that did not.
    Points are the sum of the checks, none more than it is worth; the grader holds them to the part's own maximum.
    """

    points: float
    checks: tuple[Check, ...]
    error: str
    used: str
    restored: tuple[str, ...]
    output: str
    seconds: float
    ended: Ended
    traceback: str = ""


class Process:
    """A process that runs cells in one IPython namespace, one at a time: a context manager, made by `start` and `fork`.

    `folder` is its working directory; `shut_in` says whether it is held in there; `limits` are what its cells may use.
    """

    def __init__(
        self,
        line: Line,
        pid: int,
        limits: Limits,
        folder: Path,
        *,
        own_folder: bool,
        shut_in: bool,
        started: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self._line = line
        self._watched = _Watched(pid)
        self._started = started
        self._own_folder = own_folder
        self._lock = threading.Lock()
        self._forks: weakref.WeakSet[Process] = weakref.WeakSet()
        self._number = 0
        self._ended = ""
        self._closed = False
        self.limits = limits
        self.folder = folder
        self.shut_in = shut_in

    @classmethod
    def start(cls, *, limits: Limits = Limits(), folder: Path | None = None) -> Process:  # noqa: B008 - frozen
        """A fresh interpreter on one thread, not shut in: it runs only the instructor's own cells.

        folder: its working directory; made, and removed at `close`, if None.

        Raises:
            LabError: this system cannot fork processes, or the process does not come up.
        """
        if sys.platform == "win32":
            raise LabError("grading needs Linux or macOS; on Windows, run it in WSL")
        made, own = _folder(folder)
        line = Line()
        home = str(Path(underload.__file__).resolve().parents[1])
        other = line.other
        assert other is not None
        code = f"from underload.course.inside import main; main({other.fileno()})"
        if not home.endswith(("site-packages", "dist-packages")):
            code = f"import sys; sys.path.insert(0, {home!r}); {code}"
        environment = {
            name: value for name, value in os.environ.items() if name in _ENVIRONMENT or name.startswith(_PREFIXES)
        }
        with tempfile.TemporaryFile() as said:
            started = subprocess.Popen(
                [sys.executable, "-P", "-c", code],
                cwd=made,
                env=environment | _SETTINGS,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                pass_fds=[other.fileno()],
                start_new_session=True,
            )
            line.passed()
            process = cls(line, started.pid, limits, made, own_folder=own, shut_in=False, started=started)
            try:
                _hello(line, _START, process._watched)
            except _Failed as failed:
                process.close()
                raise LabError(f"no process to run cells in: {failed or _last_line(said)}") from None
        return process

    @property
    def alive(self) -> bool:
        """Whether it can run another cell."""
        return not self._closed and not self._ended and self._watched.alive

    def fork(self, *, folder: Path | None = None, shut_in: bool = True) -> Process:
        """A copy of its present state, with its working directory in `folder` (made, and removed at `close`, if None)
        and shut into it. This process is unchanged and can be forked again; closing it closes its forks.

        The fork of a process that is shut in is shut in too: into the same folder (None), or one inside it.

        Raises:
            LabError: the process has ended; the folder lies outside the one that it is shut into.
        """
        if self.shut_in:
            made, own = Path(folder or self.folder).resolve(), False
            if not made.is_relative_to(self.folder.resolve()):
                raise LabError(f"{made} lies outside {self.folder}, which this process is shut into; fork its root")
            made.mkdir(parents=True, exist_ok=True)
        else:
            made, own = _folder(folder)
        line = Line()
        with self._lock:
            self._living()
            command = {
                "do": "fork",
                "folder": str(made),
                "shut_in": shut_in or self.shut_in,
                "limits": dataclasses.asdict(self.limits),
            }
            try:
                pid = self._pass(line, command)
            except _Failed as failed:
                line.close()
                if own:
                    shutil.rmtree(made, ignore_errors=True)
                self._end(f"it could not be forked: {failed}")
                raise LabError(f"a process that runs cells could not be forked: {failed}") from None
            fork = Process(line, pid, self.limits, made, own_folder=own, shut_in=shut_in or self.shut_in)
            self._forks.add(fork)
        return fork

    def run(self, code: str, *, name: str, seconds: float | None = None, given: bool = False) -> Ran:
        """Run a cell, compiled under `<cell NAME>`.

        seconds: processor seconds, if not `limits.cell_seconds`; given: a cell of the source itself, whose names a
        test finds as this cell bound them (in a process that is not shut in every cell is one).

        Raises:
            LabError: the process has ended; the message says why.
        """
        with self._lock:
            self._living()
            self._number += 1
            allowed = self.limits.cell_seconds if seconds is None else seconds
            guard = _Guard(self._watched, self.limits.memory if self.shut_in else None)
            command = {"do": "run", "code": code, "name": name, "given": given, "number": self._number}
            # The source's own cells are made Python of here: a student may have changed how IPython does it there.
            self._line.send(command | {"python": _python(code) if given or not self.shut_in else ""})
            reply, ended = self._wait(guard, allowed)
        spent = guard.seconds
        if ended == "time":
            error = f"did not end within {allowed:g} s"
        elif ended == "memory":
            error = f"needed more than {_size(self.limits.memory)} of memory"
        elif ended == "died":
            error = "ended the process that it ran in (os._exit, a signal, or a crash in compiled code)"
        else:
            error = _text(reply, "error")
        if ended != "done" and (not reply or ended == "memory"):
            self._end(error)
        return Ran(
            error, _text(reply, "traceback"), _text(reply, "output"), bool((reply or {}).get("cut")), spent, ended
        )

    def _wait(self, guard: _Guard, allowed: float) -> tuple[Mapping[str, Any] | None, Ended]:
        """The answer to a command, if one came in time, and how it ended."""
        interrupted: float | None = None
        while True:
            try:
                reply = self._line.read()
            except (EOFError, Unreadable):
                return None, "time" if interrupted else "died"
            if reply is not None:
                if reply.get("number") != self._number:
                    return None, "died"  # it answers what it was not asked: not ours any more
                guard.look()
                if reply.get("full"):
                    return reply, "memory"
                return reply, "time" if interrupted else "done"
            if not self._watched.alive:
                self._line.wait(0)
                try:
                    if self._line.read() is None:
                        return None, "time" if interrupted else "died"
                except (EOFError, Unreadable):
                    return None, "time" if interrupted else "died"
            self._line.wait(_POLL, self._watched.handle)
            guard.look()
            if guard.full:
                return None, "memory"
            if interrupted is None and guard.over(allowed):
                interrupted = time.monotonic()
                self._watched.signal(signal.SIGINT)
            elif interrupted is not None and time.monotonic() - interrupted > _KILL_AFTER:
                return None, "time"

    def test(
        self,
        code: str,
        *,
        name: str,
        library: Sequence[str] | None = (),
        given: Collection[str] = (),
        hidden_seed: bytes = b"",
    ) -> Tested:
        """Run a test cell in a fork that ends after it; this process is as before.

        library: full dotted names of what the answer may not use, beside the lab's own checks; None: it may use
        anything, and the test runs at full speed; given: names that the source's own cells bind,
        which the test finds as those bound them; hidden_seed: what hidden inputs are drawn from.

        Raises:
            LabError: the process has ended; the message says why.
        """
        line = Line()
        nonce = secrets.token_hex(16)
        with self._lock:
            self._living()
            try:
                watched = _Watched(self._pass(line, {"do": "test"}))
            except _Failed as failed:
                line.close()
                self._end(f"it could not be forked: {failed}")
                return Tested(0.0, (), "the cells before left the process unable to go on", "", (), "", 0.0, "died")
            # Nothing left running in the student's process may look at the test.
            if self.shut_in:
                self._watched.signal(signal.SIGSTOP)
            try:
                message = {
                    "code": _python(code),
                    "name": name,
                    "library": None if library is None else list(library),
                    "given": sorted(given),
                    "hidden_seed": hidden_seed.hex(),
                    "nonce": nonce,
                    "check_seconds": self.limits.check_seconds,
                }
                guard = _Guard(watched, self.limits.memory if self.shut_in else None)
                line.send(message)
                return _Judge(line, watched, guard, self.limits, nonce).wait()
            finally:
                watched.kill()
                line.close()
                watched.close()
                if self.shut_in:
                    self._watched.signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill the process, its forks, and everything it started. Harmless when called again."""
        if self._closed:
            return
        self._closed = True
        for fork in list(self._forks):
            fork.close()
        self._watched.kill()
        if self._started is not None:
            self._started.wait()
        self._line.close()
        self._watched.close()
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _pass(self, line: Line, command: dict[str, Any]) -> int:
        """Have this process fork a child that listens on the line.

        Returns:
            the child's pid.
        """
        assert line.other is not None
        self._line.send(command, [line.other])
        line.passed()
        return _hello(line, _FORK, self._watched)

    def _end(self, why: str) -> None:
        self._ended = why
        self._watched.kill()

    def _living(self) -> None:
        if self._closed:
            raise LabError("this process is closed; start or fork another")
        if not self._ended and not self._watched.alive:
            self._ended = "it was killed from outside, or a thread of it ended it"
        if self._ended:
            raise LabError(f"this process has ended ({self._ended}); fork another from its root")


class _Judge:
    """Waits for a test's answer, and for the beginnings of its checks."""

    def __init__(self, line: Line, watched: _Watched, guard: _Guard, limits: Limits, nonce: str) -> None:
        self.line, self.watched, self.guard, self.limits, self.nonce = line, watched, guard, limits, nonce
        self.sofar: list[Check] = []
        self.now: tuple[str, float] | None = None
        self.used = ""
        self.check = guard  # of the check that runs

    def wait(self) -> Tested:
        while True:
            try:
                message = self.line.read()
            except (EOFError, Unreadable):
                return self._failed("died")
            if message is None:
                if self._over():
                    return self._failed("time")
                if self.guard.full:
                    return self._failed("memory")
                self.line.wait(_POLL)
                self.guard.look()
                self.check.look()
                continue
            if "failed" in message:
                return self._failed("died", _text(message, "failed"))
            if message.get("nonce") != self.nonce:
                return self._failed("died")
            try:
                if "now" in message:
                    what, worth = message["now"]
                    self.now = str(what), float(worth)
                    self.sofar = [_check(one) for one in message["checks"]]
                    self.used = _text(message, "used")
                    self.check = _Guard(self.watched, None)
                    continue
                self.guard.look()
                checks = tuple(_check(one) for one in message["checks"])
                total = float(message["total"])
                return Tested(
                    points=0.0 if message["used"] or message["error"] else min(_sum(checks), total),
                    checks=checks,
                    error=_text(message, "error"),
                    used=_text(message, "used"),
                    restored=tuple(_clean(str(one)) for one in message["restored"]),
                    output=_text(message, "output"),
                    seconds=self.guard.seconds,
                    ended="done",
                    traceback=_text(message, "traceback"),
                )
            except (KeyError, TypeError, ValueError, OverflowError):
                return self._failed("died")

    def _over(self) -> bool:
        if self.now is None:
            return self.guard.over(self.limits.cell_seconds)
        return self.check.over(self.limits.check_seconds, _KILL_AFTER)

    def _failed(self, ended: Ended, why: str = "") -> Tested:
        """The test did not come to its end: what was checked before counts, what was being checked does not."""
        said = {
            "time": f"did not end within {self.limits.check_seconds:g} s, and could not be interrupted",
            "memory": f"needed more than {_size(self.limits.memory)} of memory",
            "died": why or "ended the process (os._exit, a crash in compiled code, or too deep a recursion)",
            "done": "",
        }[ended]
        checks = list(self.sofar)
        if self.now is not None:
            what, worth = self.now
            checks.append(Check(what, worth, 0.0, said))
        self.guard.look()
        earned = 0.0 if self.used else _sum(checks)
        return Tested(earned, tuple(checks), said, self.used, (), "", self.guard.seconds, ended)


class _Failed(Exception):
    """A process did not come up."""


class _Watched:
    """A process as seen from outside: on Linux by a handle that no other process can inherit, elsewhere by its pid."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.handle: int | None = None
        self._gone = False
        if hasattr(os, "pidfd_open"):
            try:
                self.handle = os.pidfd_open(pid)
            except OSError:
                self._gone = True

    @property
    def alive(self) -> bool:
        if self._gone:
            return False
        if self.handle is not None:
            poll = select.poll()
            poll.register(self.handle, select.POLLIN)
            self._gone = bool(poll.poll(0))
        else:
            # A process that has ended and that nobody has asked about yet still has its number.
            asked = subprocess.run(["ps", "-o", "stat=", "-p", str(self.pid)], capture_output=True, check=False)
            self._gone = not asked.stdout.strip() or asked.stdout.strip().startswith(b"Z")
        return not self._gone

    def signal(self, number: int) -> None:
        with contextlib.suppress(OSError):
            if self.handle is not None:
                signal.pidfd_send_signal(self.handle, number)
            elif not self._gone:
                os.kill(self.pid, number)

    def kill(self, patience: float = 10.0) -> None:
        """Kill it and its descendants, and wait until they are gone."""
        if self._gone:
            return
        self.signal(signal.SIGSTOP)
        below: dict[int, _Watched] = {}
        for _ in range(_ROUNDS):  # they may start others until all of them stand still
            found = [pid for pid in _descendants(self.pid) if pid not in below]
            if not found:
                break
            for pid in found:
                below[pid] = _Watched(pid)
                below[pid].signal(signal.SIGSTOP)
        if self.alive:  # its number still is its own, and its group's
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
        self.signal(signal.SIGKILL)
        for one in below.values():
            one.signal(signal.SIGKILL)
        end = time.monotonic() + patience
        for one in (self, *below.values()):
            one.wait(end)
        for one in below.values():
            one.close()
        self._gone = True

    def wait(self, end: float) -> None:
        """Until it is gone, or the clock (`time.monotonic`) says `end`."""
        while self.alive and time.monotonic() < end:
            if self.handle is not None:
                poll = select.poll()
                poll.register(self.handle, select.POLLIN)
                poll.poll(100)
            else:
                time.sleep(0.005)

    def close(self) -> None:
        self._gone = True
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None


class _Guard:
    """What a process has used since this was made."""

    def __init__(self, watched: _Watched, memory: int | None) -> None:
        self._watched = watched
        self._memory = memory
        self._clock = time.monotonic()
        self._looked = self._clock
        self._first, self._resident = _usage(watched.pid)
        self.seconds = 0.0
        self.full = False

    def look(self) -> None:
        now = time.monotonic()
        if sys.platform != "linux" and now - self._looked < 0.5:
            return  # asking costs a program there
        self._looked = now
        seconds, resident = _usage(self._watched.pid)
        if resident == 0:  # gone
            return
        self.seconds = max(self.seconds, seconds - self._first)
        self.full = self._memory is not None and resident - self._resident > self._memory + (64 << 20)
        if self._memory is not None and sys.platform == "linux" and len(_descendants(self._watched.pid)) > _CHILDREN:
            self._watched.kill()  # it cannot have started them by way of Python

    def over(self, allowed: float, grace: float = 0.0) -> bool:
        """Whether it has used as many processor seconds, or three times as many by the clock."""
        return self.seconds > allowed + grace or time.monotonic() - self._clock > 3 * allowed + grace


def _usage(pid: int) -> tuple[float, int]:
    """Processor seconds and resident bytes of a process; zeros when it is gone."""
    if sys.platform == "linux":
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            return 0.0, 0
        return (int(fields[11]) + int(fields[12])) / _TICKS, int(fields[21]) * _PAGE
    asked = subprocess.run(["ps", "-o", "rss=,time=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return _from_ps(asked.stdout)


def _from_ps(line: str) -> tuple[float, int]:
    """Of `ps -o rss=,time=`: KB and [[days-]hours:]minutes:seconds."""
    parts = line.split()
    if len(parts) != 2:
        return 0.0, 0
    days, _, clock = parts[1].rpartition("-")
    seconds = 0.0
    for part in clock.split(":"):
        seconds = 60 * seconds + float(part)
    return seconds + 86400 * int(days or 0), int(parts[0]) * 1024


_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def _descendants(pid: int) -> list[int]:
    """The processes below one."""
    if sys.platform == "linux":
        found, left = [], [pid]
        while left:
            one = left.pop()
            below = _children(one)
            found += below
            left += below
        return found
    asked = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=False)
    above = {int(child): int(parent) for child, parent in (line.split() for line in asked.stdout.splitlines())}
    found = [pid]
    for one in found:
        found += [child for child, parent in above.items() if parent == one]
    return found[1:]


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found += [int(part) for part in file.read().split()]
        return found
    except FileNotFoundError:
        if not os.path.exists(f"/proc/{pid}") or os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
            return found
    except OSError:
        return found
    for entry in os.listdir("/proc"):  # a kernel without lists of children
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as stat:
                if int(stat.read().rpartition(b")")[2].split()[1]) == pid:
                    found.append(int(entry))
    return found


def _hello(line: Line, patience: float, parent: _Watched) -> int:
    """Wait for a process to report.

    Returns:
        its pid: the kernel's word where there is one.
    """
    end = time.monotonic() + patience
    while time.monotonic() < end:
        try:
            message = line.read()
        except (EOFError, Unreadable):
            raise _Failed("") from None
        if message is not None:
            if "hello" not in message:
                raise _Failed(_text(message, "failed"))
            pid = line.sender if line.sender is not None else message["hello"]
            if not isinstance(pid, int) or pid <= 1 or pid == os.getpid():
                raise _Failed("it gives a wrong number for itself")
            return pid
        if not parent.alive:
            raise _Failed("")
        line.wait(_POLL)
    raise _Failed(f"no answer within {patience:g} s")


def _python(code: str) -> str:
    """A cell of the source's own as Python, its magics made calls of."""
    from IPython.core.inputtransformer2 import TransformerManager

    try:
        return TransformerManager().transform_cell(code)
    except SyntaxError:
        return code  # the compiler's message is told where it runs


def _check(one: Any) -> Check:
    """A check as it was told; never more than it is worth."""
    worth, earned = float(one["worth"]), float(one["earned"])
    if not (0 <= worth < math.inf):
        raise ValueError(f"a check worth {worth}")
    return Check(
        what=_clean(str(one["what"])),
        worth=worth,
        earned=min(max(earned, 0.0), worth),
        said=_clean(str(one["said"])),
        printed=_clean(str(one["printed"])),
        missing=bool(one["missing"]),
    )


def _sum(checks: Sequence[Check]) -> float:
    return round(sum(check.earned for check in checks), 6)


def _text(message: Mapping[str, Any] | None, key: str) -> str:
    value = (message or {}).get(key, "")
    return _clean(value) if isinstance(value, str) else ""


def _clean(text: str) -> str:
    """Text that every report can hold: no halves of characters, no NUL."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


def _folder(folder: Path | None) -> tuple[Path, bool]:
    """A folder to work in, and whether it was made here."""
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="underload-")).resolve(), True
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve(), False


def _last_line(file: IO[bytes]) -> str:
    file.seek(0)
    lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it ended at once, without a word"


def _size(count: int) -> str:
    return f"{count / (1 << 30):g} GB" if count >= 1 << 30 else f"{count / (1 << 20):g} MB"
