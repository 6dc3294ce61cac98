"""A student's own check: the notebook run from a clean start as the grader runs it, with the checks that can be seen.

It goes through the same code as grading (`grade_one`), on the lab without its hidden checks. The lab's source is the
book's, if the notebook is of a lab of the book in the present version; else the checks in the notebook itself are used,
and what the student may have done to the lab's own cells cannot be told.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from nbformat import NotebookNode

from underload.course.copies import find_labs
from underload.course.handout import MARKDOWN_STUB, digest, handout
from underload.course.marks import LabError, regions
from underload.course.outline import Outline, name_of, outline, role
from underload.course.personal import personal, seed_of
from underload.course.points import Check, number
from underload.course.results import PartResult, Result
from underload.course.sandbox import Limits
from underload.course.shelf import read_labs
from underload.course.source import task_of, where
from underload.course.submission import NOTEBOOK, Found, found_at, lab_of, parse

if TYPE_CHECKING:
    from underload.course.attempt import Root


@dataclass(frozen=True)
class TaskCheck:
    """One task. `earned` of `here`, which the checks in the notebook give together; `points` in all, of which `open`
    are for open answers. `said`: what went wrong; `failed`: the checks that did."""

    task: str
    title: str
    earned: float
    here: float
    points: float
    open: float = 0.0
    further: bool = False
    said: tuple[str, ...] = ()
    failed: tuple[Check, ...] = ()


@dataclass(frozen=True)
class Checked:
    """What a student should know before handing in.

    broken: what must be mended first. warnings: what the grader will come upon, and can live with.
    by: `lab` when the lab's own cells were at hand to compare with, `notebook` when not.
    """

    lab: str
    title: str
    version: str
    by: str
    tasks: tuple[TaskCheck, ...] = ()
    broken: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


_NO_FORK = (
    "this system cannot copy a process, which the check needs; in JupyterLab, Kernel > Restart Kernel and Run All "
    "Cells shows the points of every check from a clean start (on Windows, WSL runs this command)"
)


def check(path: Path, *, limits: Limits | None = None, root: Root | None = None) -> Checked:
    """Check one notebook. It is read and not changed.

    root: a process to fork from, when several notebooks of one lab are checked; its limits hold then.

    Raises:
        LabError: there is no such file, it is no notebook or of no lab, or this system cannot run it.
    """
    if not hasattr(os, "fork"):
        raise LabError(_NO_FORK)
    data, size = _read(path)
    if size > NOTEBOOK:
        said = (
            f"the file has {size / 1e6:.1f} MB and the grader reads up to {NOTEBOOK / 1e6:.0f} MB: "
            "Edit > Clear Outputs of All Cells, then save"
        )
        return Checked("", path.name, "", "notebook", broken=(said,))
    try:
        notebook = parse(data)
    except LabError as error:
        raise LabError(f"{path}: {error}") from None
    about = notebook.metadata.get("underload", {})
    lab, source, by, warnings = _source(path, data, notebook)
    seed = seed_of(notebook)
    handed = about.get("seed", seed_of(source))
    if isinstance(handed, int) and seed_of(source) is not None and seed != handed:
        warnings.append(f"your copy was handed out with SEED = {handed} and has {seed} now; the grader takes {handed}")
        seed = handed
    if seed is not None:
        source = personal(source, seed)
    found = found_at(path, lab, source, "you")
    if found.notebook is not None:
        found = _anybodys(found, seed)
    from underload.course.grade import grade_one

    result = grade_one(source, found, "you", lab=lab, limits=limits or Limits(), root=root)
    described = outline(source)
    if _widgets(data):
        warnings.append("the state of its widgets is saved too: harmless, but it makes the file large")
    broken, more = _troubles(result)
    if by == "notebook":  # where the lab's own cells cannot be told from the student's, this is no news
        more = [one for one in more if not one.startswith("changed by the student's code")]
    return Checked(
        lab,
        described.title or lab,
        str(about.get("handout", ""))[:8],
        by,
        tuple(_tasks(described, result, source)) if result.status == "graded" else (),
        tuple(broken),
        (*warnings, *more),
    )


def _read(path: Path) -> tuple[bytes, int]:
    """What is in the file, up to the size that is read, and its size."""
    if path.is_dir():
        raise LabError(f"{path} is a folder; name the .ipynb file in it")
    try:
        with path.open("rb") as file:
            return file.read(NOTEBOOK), os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        raise LabError(f"there is no file {path}") from None
    except OSError as error:
        raise LabError(f"{path} cannot be read: {error.strerror}") from error


def _anybodys(found: Found, seed: int | None) -> Found:
    """Without whose it is and which version, which were looked at here, and with the SEED it is checked with."""
    assert found.notebook is not None
    notebook = copy.deepcopy(found.notebook)
    about = notebook.metadata.get("underload", {})
    for key in ("handout", "student", "seed"):
        about.pop(key, None)
    if seed is not None and seed_of(notebook) not in (None, seed):
        with contextlib.suppress(LabError):  # set more than once: then it is seen in what the cells do
            notebook = personal(notebook, seed)
    return replace(found, notebook=notebook)


def _widgets(data: bytes) -> bool:
    try:
        return bool(json.loads(data).get("metadata", {}).get("widgets"))
    except (ValueError, AttributeError, RecursionError):
        return False


# ---- which lab, and what to check with ----------------------------------------------------------------------------


def _source(path: Path, data: bytes, notebook: NotebookNode) -> tuple[str, NotebookNode, str, list[str]]:
    """The lab's name, what to check with, where that is from, and what is to be said of it."""
    about = notebook.metadata.get("underload", {})
    named = about.get("lab") if isinstance(about.get("lab"), str) else ""
    labs = _labs(path)
    name = named
    if not named:
        try:
            name = lab_of(notebook, {lab: handout(source) for lab, source in labs.items()})
        except LabError:
            name = ""
    version = about.get("handout")
    if name in labs:
        now = digest(handout(labs[name]))
        if not version or version == now:
            return name, without_hidden(labs[name]), "lab", []
        said = (
            f"your copy is version {str(version)[:8]} and the lab in this folder is {now[:8]}: your own copy's checks "
            "were used. Which of the two is graded, your teacher knows"
        )
    else:
        said = (
            f"the lab {named!r} is not among those in this folder" if named else "it does not say which lab it is of"
        ) + ": your own copy's checks were used"
    own = _own_source(data)
    if not outline(own).parts:
        raise LabError(f"{path} is no lab's notebook: none of its cells gives points")
    return name or path.stem, own, "notebook", [said]


def _labs(path: Path) -> dict[str, NotebookNode]:
    """The labs at hand that can be handed out; none where there are none."""
    try:
        folder = find_labs(path.resolve().parent)
    except LabError:
        return {}
    found = {}
    for file in sorted(folder.glob("*.ipynb")):
        try:
            source = read_labs([file.stem], folder)[file.stem]
            handout(source)
        except LabError:
            continue
        found[file.stem] = source
    return found


def without_hidden(source: NotebookNode) -> NotebookNode:
    """The source without hidden tests, solutions kept: what a student's own checks are."""
    made = copy.deepcopy(source)
    for index, cell in enumerate(made.cells):
        if role(cell) == "test":
            parts = regions(cell.source, where(cell, index))
            cell.source = "\n".join(line for part in parts if part.kind != "hidden" for line in part.lines)
    return made


def _own_source(data: bytes) -> NotebookNode:
    """The graded cells of a hand-out, made into a lab's source; all others count as the student's own.

    The answers in it are placeholders: the student's are taken from the notebook itself.
    """
    raw = json.loads(data)
    made = nbformat.v4.new_notebook()
    about = raw.get("metadata", {}).get("underload")
    made.metadata["underload"] = nbformat.from_dict(about) if isinstance(about, dict) else NotebookNode()
    made.metadata["underload"].pop("handout", None)
    seen: set[str] = set()
    for place, one in enumerate(raw["cells"]):
        cell = nbformat.from_dict(one)
        marks = cell.get("metadata", {}).get("nbgrader")
        if cell.cell_type == "markdown" and not marks and _unmarked(_text(cell)):
            made.cells.append(nbformat.v4.new_markdown_cell(_text(cell), id=f"text-{place}"))  # headings name tasks
            continue
        if not isinstance(marks, dict) or not isinstance(marks.get("grade_id"), str) or marks["grade_id"] in seen:
            continue
        if marks.get("grade") and (not isinstance(marks.get("points"), int | float) or task_of(cell) is None):
            continue
        seen.add(marks["grade_id"])
        text = _text(cell)
        solution = "### BEGIN SOLUTION\npass\n### END SOLUTION"
        if marks.get("solution"):
            text = text.replace(MARKDOWN_STUB, solution) if MARKDOWN_STUB in text else solution
        elif not _unmarked(text):
            continue
        fresh = nbformat.v4.new_code_cell if cell.cell_type == "code" else nbformat.v4.new_markdown_cell
        id_ = cell.get("id")
        id_ = id_ if isinstance(id_, str) and re.fullmatch(r"[\w-]{1,64}", id_) else f"cell-{place}"
        made.cells.append(fresh(text, id=id_, metadata=_kept(cell.metadata)))
    return made


def _text(cell: NotebookNode) -> str:
    text = cell.get("source", "")
    return "".join(text) if isinstance(text, list) else str(text)


def _kept(metadata: NotebookNode) -> dict[str, Any]:
    return {key: metadata[key] for key in ("nbgrader", "underload", "tags") if key in metadata}


def _unmarked(text: str) -> bool:
    """Whether a cell has no marks of a source in it, whole or broken."""
    try:
        return all(part.kind == "text" for part in regions(text, "cell"))
    except LabError:
        return False


# ---- what came out ------------------------------------------------------------------------------------------------


def _tasks(lab: Outline, result: Result, source: NotebookNode) -> Iterator[TaskCheck]:
    worth = {name_of(cell): _worth(cell.source) for cell in source.cells if role(cell) == "test"}
    found = {part.name: part for part in result.parts}
    for task in lab.tasks:
        parts = [found[part.name] for part in task.parts if part.name in found]
        tested = [part for part in parts if not part.manual]
        open_ = [part for part in parts if part.manual]
        said = [part.said for part in tested if part.said]
        said += ["the open answer: nothing is written yet" for part in open_ if part.earned == 0]
        yield TaskCheck(
            task.name,
            task.title,
            sum(part.earned or 0.0 for part in tested),
            sum(_here(part, worth.get(part.name, 0.0)) for part in tested),
            task.points,
            sum(part.points for part in open_),
            task.further,
            tuple(dict.fromkeys(said)),
            tuple(one for part in tested for one in part.checks if one.said),
        )


def _here(part: PartResult, written: float) -> float:
    """The points that the checks in the notebook give; as they stand there where they did not come to run."""
    ran = sum(check.worth for check in part.checks)
    return min(max(ran, written), part.points)


def _worth(code: str) -> float:
    """What the checks in a test cell are worth, by the numbers written in it."""
    try:
        calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    except (SyntaxError, ValueError, RecursionError):
        return 0.0
    return sum(
        float(call.args[0].value)
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr == "check"
        and call.args
        and isinstance(call.args[0], ast.Constant)
        and isinstance(call.args[0].value, int | float)
    )


def _troubles(result: Result) -> tuple[list[str], list[str]]:
    """What must be mended, and what the grader can live with."""
    if result.status == "refused":
        return [result.said], []
    broken: list[str] = []
    warnings: list[str] = []
    for problem in result.problems:
        lost = problem.kind == "syntax" or (problem.kind == "missing" and problem.task is not None)
        (broken if lost else warnings).append(problem.said)
    ends = {"time": "does not come to an end", "memory": "takes too much memory", "died": "ends the Python it runs in"}
    for cell in result.cells:
        if cell.ended in ends:
            broken.append(f"the cell {cell.name} {ends[cell.ended]}")
    return broken, [*warnings, *(note for note in result.notes if not any(line in note for line in broken))]


# ---- as a person, and as a program, reads it ----------------------------------------------------------------------


def as_text(found: Checked) -> str:
    """What the command prints."""
    version = f" (version {found.version})" if found.version else ""
    lines = [f"{found.title}{version}", ""]
    for task in found.tasks:
        lines += [*_task_lines(task), ""]
    if found.tasks:
        core = [task for task in found.tasks if not task.further]
        lines += [_sum(core), ""]
    for head, these in (("The grader will come upon this:", found.warnings), ("BROKEN:", found.broken)):
        if these:
            lines += [head, *(f"  - {_indent(one)}" for one in these), ""]
    lines.append(
        "Mend what is broken before you hand it in."
        if found.broken
        else "It can be handed in. (Save first: this looked at the file, not at what is open in JupyterLab.)"
    )
    return "\n".join(lines)


def _task_lines(task: TaskCheck) -> Iterator[str]:
    title = f"Further: {task.title}" if task.further else f"Task {task.task}. {task.title}"
    yield f"{title}: {number(task.earned)} of {number(task.here)} by the checks here, {_rest(task)}"
    for one in task.said:
        yield f"  ! {_indent(one)}"
    if not task.earned and all(_untouched(one) for one in task.said):
        if any(one.startswith("nothing was") for one in task.said):
            return  # nothing was written in these cells: then the checks say no more
        if task.failed and all(failed.missing for failed in task.failed):
            yield "  ○ nothing is written yet"
            return
    for failed in task.failed:
        yield f"  {'○' if failed.missing else '✗'} {number(failed.earned)}/{number(failed.worth)}  {failed.what}"
        yield f"         {_indent(failed.said, 9)}"


def _untouched(said: str) -> bool:
    return said.startswith(("nothing was written in ", "the open answer: nothing"))


def _rest(task: TaskCheck) -> str:
    hidden = task.points - task.here - task.open
    more = []
    if hidden > 1e-9:
        more.append(f"{number(hidden)} by hidden checks")
    if task.open:
        more.append(f"{number(task.open)} by a person")
    return f"{number(task.points)} in all" + (f" ({', '.join(more)})" if more else "")


def _sum(tasks: list[TaskCheck]) -> str:
    earned, here, points = (sum(getattr(task, key) for task in tasks) for key in ("earned", "here", "points"))
    return f"The core: {number(earned)} of {number(here)} by the checks here, {number(points)} in all."


def _indent(text: str, by: int = 4) -> str:
    return text.replace("\n", "\n" + " " * by)


def as_json(found: Checked) -> dict[str, Any]:
    """The same as plain data."""
    return {**asdict(found), "can_be_handed_in": not found.broken}
