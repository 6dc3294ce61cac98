"""What a student gets back: one page a submission, with the points of each task, what each check said, and what to do.

A hidden check is named and its outcome told. What it *said* may give away the inputs it drew, so that is kept back
until the instructor asks for it (`hidden_messages`), say when nobody can hand in any more. The page holds nothing of
another student, and nothing that is a note to the instructor.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from nbformat import NotebookNode

from underload.course.assemble import Problem
from underload.course.marking import Mark, answer_digest, rubric, said
from underload.course.marks import regions
from underload.course.outline import Outline, Task, name_of, role
from underload.course.points import Check
from underload.course.render import part_name, render
from underload.course.results import CellRun, PartResult, Result
from underload.course.source import nbgrader, task_of, where
from underload.course.titles import titles

#: What to do next time, by the kind of a problem.
ADVICE = {
    "missing": "Cells of the lab must stay in the notebook. Take the cell from a fresh copy of the hand-out.",
    "copied": "A copied cell keeps its hidden name. Write in the cell that was there, or make a new one with +.",
    "moved": "Leave the lab's cells in their order: the grader runs them in it. Cells of your own may stand anywhere.",
    "changed": "Checks are there to be read, not edited. The grader runs its own.",
    "syntax": "Choose Kernel, then Restart and Run All, before you hand in: this would have stopped it.",
}


@dataclass(frozen=True)
class ShownCheck:
    """A check as the page shows it."""

    sign: str
    word: str
    what: str
    earned: float
    worth: float
    said: str
    printed: str
    hidden: bool


@dataclass(frozen=True)
class ShownPart:
    """A part as the page shows it: with checks, or an open answer with what was given for each criterion. `void`: the
    checks that passed give no points."""

    result: PartResult
    title: str
    void: bool
    checks: tuple[ShownCheck, ...]
    criteria: tuple[tuple[str, str], ...]
    withheld: int


@dataclass(frozen=True)
class ShownCell:
    """A cell of the student's code and how it ran."""

    title: str
    code: str
    run: CellRun | None
    ended: str


@dataclass(frozen=True)
class ShownTask:
    task: Task
    heading: str
    earned: float | None
    parts: tuple[ShownPart, ...]
    problems: tuple[Problem, ...]
    cells: tuple[ShownCell, ...]
    names: tuple[str, ...]


def feedback(
    result: Result,
    outline: Outline | None,
    *,
    source: NotebookNode | None = None,
    marks: Sequence[Mark] = (),
    hidden_messages: bool = False,
) -> str:
    """The page of one submission.

    source: the lab's notebook, which tells hidden checks from visible ones. Without it every check counts as hidden.
    marks: those that were merged, for the points of each criterion.
    hidden_messages: also show what hidden checks said.
    """
    shown = visible_checks(source) if source is not None else {}
    named = titles(source) if source is not None else {}
    by_cell = {(mark.part, mark.digest): mark for mark in marks if mark.lab == result.lab}
    tasks = [
        _task(task, result, shown, by_cell, source, named, hidden_messages)
        for task in (outline.tasks if outline else ())
    ]
    placed = {name for task in tasks for name in task.names}
    told = {id(problem) for task in tasks for problem in task.problems}
    return render(
        "feedback.html",
        result=result,
        outline=outline,
        tasks=tasks,
        problems=[problem for problem in result.problems if id(problem) not in told],
        cells=_cells(result, [name for name in result.code if name not in placed], named),
        advice=ADVICE,
    )


def _task(
    task: Task,
    result: Result,
    shown: Mapping[str, Collection[re.Pattern[str]]],
    marks: Mapping[tuple[str, str], Mark],
    source: NotebookNode | None,
    named: Mapping[str, str],
    hidden_messages: bool,
) -> ShownTask:
    parts = []
    for part in task.parts:
        found = next((one for one in result.parts if one.name == part.name), None)
        if found is None:
            continue
        checks = tuple(_check(check, shown.get(part.name, ()), hidden_messages) for check in found.checks)
        mark = marks.get((part.name, answer_digest(found.answer)))
        criteria = tuple(said(mark, part)) if mark and found.earned is not None else ()
        if found.manual and not criteria:
            criteria = tuple((one.text, f"of {one.points:g}") for one in rubric(part)) if part.rubric else ()
        withheld = sum(check.hidden and bool(check.word == "failed") and not check.said for check in checks)
        void = bool(found.said) and sum(check.earned for check in checks) > (found.earned or 0.0) + 1e-9
        parts.append(ShownPart(found, named.get(part.name) or part_name(part.name), void, checks, criteria, withheld))
    names = {name_of(cell) for cell in source.cells if task_of(cell) == task.name} if source is not None else set()
    names |= {name for name in result.code if re.match(rf"(?i)(task|t)[-_ ]?{re.escape(task.name)}([-_ ]|$)", name)}
    mine = [name for name in result.code if name in names]
    return ShownTask(
        task,
        f"Task {task.name}" if task.name[:1].isdigit() or len(task.name) == 1 else task.name.capitalize(),
        result.task_earned(task.name),
        tuple(parts),
        tuple(problem for problem in result.problems if problem.task == task.name),
        tuple(_cells(result, mine, named)),
        tuple(mine),
    )


def _check(check: Check, visible: Collection[re.Pattern[str]], hidden_messages: bool) -> ShownCheck:
    hidden = not any(pattern.fullmatch(check.what) for pattern in visible)
    sign, word = ("○", "not written yet") if check.missing else ("✗", "failed") if check.said else ("✓", "passed")
    told = not hidden or hidden_messages or check.missing
    return ShownCheck(
        sign,
        word,
        check.what,
        check.earned,
        check.worth,
        check.said if told else "",
        check.printed if told else "",
        hidden,
    )


def _cells(result: Result, names: Sequence[str], named: Mapping[str, str]) -> list[ShownCell]:
    runs = {run.name: run for run in result.cells}
    ended = {
        "time": "did not come to an end in the time it had, and was stopped",
        "memory": "used more memory than it had, and was stopped",
        "died": "ended the Python process it ran in",
    }
    return [
        ShownCell(
            _lower(named.get(name, "")) or "a cell of your own",
            result.code[name],
            run := runs.get(name),
            ended.get(run.ended, "") if run else "",
        )
        for name in names
    ]


def _lower(title: str) -> str:
    """A title inside a sentence; what code defines keeps its letters."""
    return title[:1].lower() + title[1:] if title.startswith("Your ") else title


def visible_checks(source: NotebookNode) -> dict[str, list[re.Pattern[str]]]:
    """For each test cell, patterns of the names of the checks that stand outside its hidden tests.

    A name put together when the cell runs (an f-string) matches by the pieces that are written down.
    """
    made: dict[str, list[re.Pattern[str]]] = {}
    for index, cell in enumerate(source.cells):
        if role(cell) != "test":
            continue
        text = "\n".join(
            "\n".join(region.lines if region.kind == "text" else [""] * len(region.lines))
            for region in regions(cell.source, where(cell, index))
        )
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue  # then its checks all count as hidden
        found = made.setdefault(str(nbgrader(cell)["grade_id"]), [])
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "check":
                named = next((keyword.value for keyword in node.keywords if keyword.arg == "what"), None)
                what = named or (node.args[1] if len(node.args) > 1 else None)
                pattern = _pattern(what)
                if pattern:
                    found.append(re.compile(pattern, re.DOTALL))
    return made


def _pattern(what: ast.expr | None) -> str:
    if isinstance(what, ast.Constant) and isinstance(what.value, str):
        return re.escape(what.value)
    if isinstance(what, ast.JoinedStr):
        pieces = [re.escape(str(piece.value)) if isinstance(piece, ast.Constant) else ".*" for piece in what.values]
        return "".join(pieces) if any(piece != ".*" for piece in pieces) else ""
    return ""
