"""Results on disk, so that grading can stop and go on: OUT/results/STUDENT/LAB.json, each with the key it was made for.

The key is a digest of everything that a result depends on. A result whose key is another's is made again.
"""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path

from nbformat import NotebookNode

import underload
from underload.course.marks import LabError
from underload.course.results import VERSION, Result, read_result, write_result
from underload.course.sandbox import Limits
from underload.course.submission import Found

#: The name of the file for what is of no lab.
UNKNOWN = "no-lab"


def place(out: Path, student: str, lab: str) -> Path:
    """Where the result of one submission lies."""
    return out / "results" / student / f"{lab or UNKNOWN}.json"


def stored(out: Path, found: Found, key: str) -> Result | None:
    """The result of an earlier run for exactly this; None where there is none."""
    path = place(out, found.student, found.lab)
    if not path.is_file():
        return None
    try:
        result = read_result(path)
    except LabError:
        return None  # of another version, or cut off: made again
    return result if result.key == key else None


def keep(result: Result, out: Path) -> None:
    """Write a result to its place."""
    write_result(result, place(out, result.student, result.lab))


def key_of(found: Found, source: NotebookNode | None, secret: bytes, limits: Limits, seconds: float) -> str:
    """A digest of everything that the result of one submission depends on."""
    parts = [
        str(VERSION),
        library_digest(),
        found.student,
        found.lab,
        found.path,
        found.said,
        list(found.notes),
        found.digest,
        "" if source is None else source_digest(source),
        [hashlib.sha256(secret).hexdigest(), _owner(found)] if secret else "",
        repr(limits),
        seconds,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _owner(found: Found) -> list[object]:
    """Whether the student is on the class's list, where that decides whose numbers count: where the hand-out is another
    student's. For all others, a list that is given now and was not before changes nothing."""
    named = None if found.notebook is None else found.notebook.metadata.get("underload", {}).get("student")
    return [named, found.listed] if isinstance(named, str) and named != found.student else []


def source_digest(source: NotebookNode) -> str:
    """A digest of a lab's source without its stored outputs."""
    cells = [[cell.cell_type, cell.source, cell.get("id"), cell.metadata] for cell in source.cells]
    return hashlib.sha256(
        json.dumps([cells, source.metadata.get("underload", {})], sort_keys=True).encode()
    ).hexdigest()


@functools.cache
def library_digest() -> str:
    """A digest of the library's code: tests take what the labs and the metrics say for right. The command line is left
    out, which has no part in a result."""
    made = hashlib.sha256(underload.__version__.encode())
    folder = Path(underload.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder).as_posix()
        if not name.startswith("cli/"):
            made.update(name.encode() + b"\0" + path.read_bytes())
    return made.hexdigest()
