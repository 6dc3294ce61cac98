"""What is wrong with a lab's source before anybody runs it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from underload.course.marks import LabError, regions
from underload.course.outline import Outline, outline, role
from underload.course.source import TREATMENTS, is_solution, nbgrader, tags, where

if TYPE_CHECKING:
    from nbformat import NotebookNode

#: A cell that is tagged to raise passes under nbval whether it raises or not.
_FORBIDDEN = {"raises-exception", "nbval-raises-exception", "nbval-ignore-output", "nbval-skip"}


def faults(source: NotebookNode) -> list[str]:
    """Every fault of a lab's source, each naming its cell and the remedy; an empty list for a sound one."""
    found = list(_notebook_faults(source))
    for index, cell in enumerate(source.cells):
        place = where(cell, index)
        found += [f"{place}: {fault}" for fault in _cell_faults(cell, place)]
    if not found:
        try:
            found += _outline_faults(outline(source))
        except LabError as error:
            found.append(str(error))
    return found


def _notebook_faults(source: NotebookNode) -> Iterator[str]:
    if "widgets" in source.metadata:
        yield "widget state is stored; clear it (Kernel > Restart, then save without widget state)"
    if source.metadata.get("kernelspec", {}).get("name") != "python3":
        yield "the kernel must be python3, which every reader has"
    for what, values in (
        ("cell id", [cell.get("id") for cell in source.cells]),
        ("grade_id", [nbgrader(cell).get("grade_id") for cell in source.cells if nbgrader(cell)]),
    ):
        for value, count in Counter(values).items():
            if count > 1:
                yield f"{what} {value!r} occurs {count} times; each must be its own"

    seeds = sum(len(re.findall(r"(?m)^SEED\s*=", cell.source)) for cell in source.cells if cell.cell_type == "code")
    if seeds > 1:
        yield f"SEED is set in {seeds} places; a personal hand-out rewrites one line `SEED = 0`"


def _outline_faults(lab: Outline) -> Iterator[str]:
    """What an instructor needs to know of each task and a grader of each open answer."""
    for task in lab.tasks:
        if not task.goal:
            yield f"task {task.name} has no goal; say in underload.tasks what it teaches"
        if not isinstance(task.minutes, int):
            yield f"task {task.name} has no minutes; say in underload.tasks how long it takes"
        for part in task.parts:
            if part.manual and not (part.model and part.rubric):
                yield f"{part.name} is marked by a person and needs a model answer and, below it, a '### RUBRIC'"


def _test_faults(cell: NotebookNode) -> Iterator[str]:
    """Whether a test cell gives its points the one way there is (course.points)."""
    points = nbgrader(cell)["points"]
    body = ast.parse(cell.source).body
    last = body[-1] if body else None
    ends = (
        isinstance(last, ast.Expr)
        and isinstance(last.value, ast.Call)
        and isinstance(last.value.func, ast.Attribute)
        and last.value.func.attr == "earned"
    )
    if not ends:
        yield "must end in points.earned(), the number of points that its checks gave"
    totals = [
        node.args[0].value
        for node in ast.walk(ast.Module(body, []))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Points"
        and node.args
        and isinstance(node.args[0], ast.Constant)
    ]
    if totals != [points]:
        yield f"has {points} points by its metadata; it must make Points({points}), once"
    if "nbval-check-output" not in tags(cell):
        yield "must be tagged nbval-check-output, so that the solution's points are compared at every run"


def _cell_faults(cell: NotebookNode, place: str) -> Iterator[str]:
    try:
        kinds = {region.kind for region in regions(cell.source, place)}
    except LabError as error:
        yield str(error).removeprefix(f"{place}: ").removeprefix(f"{place}, ")
        return
    graded = nbgrader(cell)
    if "solution" in kinds and not is_solution(cell):
        yield "has a solution and no nbgrader metadata that says so (solution: true)"
    if "hidden" in kinds and not graded.get("grade"):
        yield "has hidden tests and earns no points (grade: true, points: …)"
    if graded.get("grade") and graded.get("points") is None:
        yield "is graded and has no points"
    if cell.cell_type != "code":
        return
    marks = tags(cell)
    if "show" in marks and graded:
        yield "is tagged show, which is skipped when a lab is graded, and is part of a task"
    if role(cell) == "test" and graded.get("points") is not None:
        try:
            yield from _test_faults(cell)
        except SyntaxError as error:
            yield f"is no Python ({error.msg}, line {error.lineno})"
    treatments = sorted(TREATMENTS.keys() & marks)
    if len(treatments) != 1:
        yield f"needs exactly one of the tags {sorted(TREATMENTS)}, has {treatments or 'none'}"
        return
    forbidden = sorted(marks & _FORBIDDEN)
    if forbidden:
        yield f"may not carry {forbidden}: assert what should happen instead"
    treatment = TREATMENTS[treatments[0]]
    if treatment == "live":
        if cell.outputs:
            yield "is live and has stored output; clear it"
    elif cell.execution_count is None and cell.source.strip():
        # nbval compares nothing for a cell that was never run, whatever it prints by now.
        yield f"is {treatment} and was never run; run the notebook and store it"
    for output in cell.outputs:
        if output.output_type == "error":
            yield f"has a stored error ({output.ename}); fix it and run the notebook again"
        if output.output_type == "stream" and output.name == "stderr":
            yield "has stored output on stderr; print nothing there"
