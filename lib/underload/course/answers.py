"""The answer to one task, for a reader who has no teacher to ask."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from underload.course.handout import handout
from underload.course.marks import LabError, regions
from underload.course.outline import name_of, split_rubric
from underload.course.source import is_solution, task_of, where

if TYPE_CHECKING:
    from nbformat import NotebookNode


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


def solved(source: NotebookNode, changed: Mapping[str, str] | None = None) -> NotebookNode:
    """The hand-out with every answer filled in, as a perfect student would hand it in.

    changed: other code for some answer cells, by grade_id.

    Raises:
        LabError: `changed` names a cell that is no answer of the lab.
    """
    made = handout(source)
    left = dict(changed or {})
    for index, (cell, original) in enumerate(zip(made.cells, source.cells, strict=True)):
        if is_solution(original):
            name = name_of(original)
            cell.source = left.pop(name) if name in left else solved_cell(original, index)
    if left:
        raise LabError(
            f"no answer cell is named {', '.join(map(repr, left))}; there are: {', '.join(answer_cells(source))}"
        )
    return made


def solved_cell(cell: NotebookNode, index: int) -> str:
    """One cell with its solution and without marks, hidden tests and rubric."""
    kept: list[str] = []
    for part in regions(cell.source, where(cell, index)):
        if part.kind == "text":
            kept += part.lines
        elif part.kind == "solution":
            kept += split_rubric(list(part.lines), "")[0].splitlines() if cell.cell_type == "markdown" else part.lines
    return "\n".join(kept)


def answer_cells(source: NotebookNode) -> list[str]:
    """The names of the lab's answer cells, open answers included, in their order."""
    return [name_of(cell) for cell in source.cells if is_solution(cell)]


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
