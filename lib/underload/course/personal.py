"""Numbers of a student's own, and hidden inputs of a class's own, both drawn from one secret.

A secret is a file of random bytes that an instructor keeps. With it, every student's hand-out has another `SEED`, from
which a lab draws its personal inputs, and the hidden checks of a class draw inputs that no other class has seen. The
same secret gives the same numbers again, so it is needed to grade what was handed out with it.
"""

from __future__ import annotations

import copy
import hashlib
import hmac
import os
import re
import secrets as random_source
import stat
from collections.abc import Iterator
from pathlib import Path

from nbformat import NotebookNode

from underload.course.marks import LabError

#: The line, of its own, that a lab's set-up cell has for it.
_LINE = re.compile(r"^SEED[ \t]*=[ \t]*(?P<seed>\d+)(?P<rest>[ \t]*(?:#.*)?)$", re.MULTILINE)
_SHORTEST, _LONGEST = 16, 4096  # bytes of a secret


def seed_for(secret: bytes, student: str) -> int:
    """A student's own SEED: 31 bits of an HMAC-SHA256 of the student's id; never 0, which is the book's."""
    drawn = hmac.new(secret, b"seed\0" + student.encode(), hashlib.sha256).digest()
    return int.from_bytes(drawn[:4], "big") % (2**31 - 1) + 1


def hidden_seed(secret: bytes, lab: str, part: str) -> bytes:
    """What the hidden inputs of one part are drawn from in a class with this secret; b"" without one, which is the
    book's own draw."""
    if not secret:
        return b""
    return hmac.new(secret, f"hidden\0{lab}\0{part}".encode(), hashlib.sha256).digest()


def fingerprint(secret: bytes) -> str:
    """Tells secrets apart without giving anything of them away."""
    return hmac.new(secret, b"fingerprint", hashlib.sha256).hexdigest()[:12]


def personal(notebook: NotebookNode, seed: int) -> NotebookNode:
    """The notebook with this SEED; one that takes none is returned as it is. The notebook given is not changed.

    Raises:
        LabError: more than one line sets SEED, so that it is not clear which one counts.
    """
    found = list(_lines(notebook))
    if not found:
        return notebook
    if len(found) > 1:
        names = ", ".join(str(notebook.cells[index].get("id")) for index, _ in found)
        raise LabError(f"SEED is set {len(found)} times (cells {names}); set it once, in the set-up cell")
    index, _ = found[0]
    made = copy.deepcopy(notebook)
    made.cells[index].source = _LINE.sub(rf"SEED = {int(seed)}\g<rest>", made.cells[index].source)
    return made


def seed_of(notebook: NotebookNode) -> int | None:
    """The SEED that a notebook sets first; None when it takes none."""
    return next((seed for _, seed in _lines(notebook)), None)


def _lines(notebook: NotebookNode) -> Iterator[tuple[int, int]]:
    for index, cell in enumerate(notebook.cells):
        if cell.get("cell_type") == "code":
            for found in _LINE.finditer(str(cell.source)):
                # A longer number is nobody's seed, and Python refuses to read one of thousands of digits.
                if len(found["seed"]) <= 20:
                    yield index, int(found["seed"])


def read_secret(path: Path, *, make: bool = False) -> bytes:
    """The secret in a file.

    make: write a new random one, readable by nobody else, when there is no such file. Do not commit it, and keep it:
        without it, what was handed out with it cannot be graded with the same numbers.

    Raises:
        LabError: there is no such file, or it holds too little or too much to be a secret.
    """
    if make and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IRUSR | stat.S_IWUSR)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(random_source.token_hex(32) + "\n")
    try:
        with path.open("rb") as file:
            secret = file.read(_LONGEST + 1).strip()
    except FileNotFoundError:
        raise LabError(
            f"there is no secret at {path}; name the file that the hand-outs were made with "
            "(`underload course release --secret FILE` makes a new one)"
        ) from None
    except OSError as error:
        raise LabError(f"the secret at {path} cannot be read: {error.strerror}") from error
    if not _SHORTEST <= len(secret) <= _LONGEST:
        size = f"more than {_LONGEST}" if len(secret) > _LONGEST else str(len(secret))
        raise LabError(
            f"{path} holds {size} bytes and a secret has {_SHORTEST} to {_LONGEST}; delete it and let "
            "`underload course release --secret FILE` make one, unless something was handed out with it"
        )
    return secret
