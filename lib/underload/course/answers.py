"""The answer to one task, for a reader who has no teacher to ask."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from nbformat import NotebookNode

from underload.course.marks import LabError, regions
from underload.course.source import task_of, where


@dataclass(frozen=True)
class Answer:
    """The solution of a task: each of its cells complete, marks removed, hidden tests left out."""

    task: str
    cells: tuple[str, ...]

    def __str__(self) -> str:
        return "\n\n".join(self.cells)


def tasks(source: NotebookNode) -> list[str]:
    """The tasks that have a solution, in the order they appear."""
    found: list[str] = []
    for index, cell in enumerate(source.cells):
        if any(region.kind == "solution" for region in regions(cell.source, where(cell, index))):
            task = task_of(cell)
            if task is not None and task not in found:
                found.append(task)
    return found


def solution(source: NotebookNode, task: str | int) -> Answer:
    """The answer to one task of a lab.

    Raises:
        LabError: the lab has no such task; the message lists those it has.
    """
    wanted = str(task)
    shown: list[str] = []
    for index, cell in enumerate(source.cells):
        parts = list(regions(cell.source, where(cell, index)))
        if task_of(cell) != wanted or not any(part.kind == "solution" for part in parts):
            continue
        lines = [line for part in parts if part.kind != "hidden" for line in part.lines]
        shown.append(textwrap.dedent("\n".join(lines)).strip("\n"))
    if not shown:
        have = ", ".join(tasks(source)) or "none"
        raise LabError(f"no task {wanted!r} with a solution in this lab; it has: {have}")
    return Answer(wanted, tuple(shown))
