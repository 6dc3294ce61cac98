"""What an earlier run wrote for submissions that are no longer there is removed: nobody gets somebody's old page.

Only files that grading itself wrote are touched, and only of the labs of this run: another lab's results may lie in the
same folder.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable
from pathlib import Path

from underload.course.ledger import UNKNOWN, place
from underload.course.render import GENERATOR, file_name
from underload.course.results import Result, times_of


def remove_stale(out: Path, results: Iterable[Result], labs: Collection[str], pages: Collection[Path]) -> list[Path]:
    """Remove results and feedback pages of `labs` that are of no submission any more; returns what was removed.

    results: those of this run. pages: the feedback pages that it wrote.
    """
    current = {place(out, result.student, result.lab) for result in results}
    stale = [
        path
        for path in sorted(out.glob("results/*/*.json"))
        if path.stem in (*labs, UNKNOWN) and path not in current and _is_result(path)
    ]
    stale += [path for path in [times_of(path) for path in stale] if path.is_file()]
    stale += [
        path
        for path in sorted(out.glob("feedback/*/*.html"))
        if path.stem in (*map(file_name, labs), "unknown") and path not in pages and _is_page(path)
    ]
    for path in stale:
        path.unlink()
    for folder in {path.parent for path in stale}:
        with contextlib.suppress(OSError):  # something of the instructor's lies there
            folder.rmdir()
    return stale


def _is_result(path: Path) -> bool:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(data, dict) and {"version", "student", "status", "parts"} <= data.keys()


def _is_page(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return GENERATOR in file.read(4_000)
    except OSError:
        return False
