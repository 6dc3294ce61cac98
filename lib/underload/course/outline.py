"""What a lab asks for: its tasks, their parts and points, read from the source."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from underload.course.marks import LabError, regions
from underload.course.source import is_solution, nbgrader, tags, task_of, where

if TYPE_CHECKING:
    from nbformat import NotebookNode

#: `test` gives points; `answer` is the student's; `show` is for people to look at and skipped when a lab is graded;
#: `given` is everything else that runs; `text` does not run.
Role = Literal["given", "answer", "test", "show", "text"]

_RUBRIC = re.compile(r"^\s*#{2,}\s*RUBRIC\s*$")
_CRITERION = re.compile(r"^\s*[-*]\s*(?P<points>\d+(?:\.\d+)?)\s*:\s*(?P<text>\S.*)$")


@dataclass(frozen=True)
class Criterion:
    """One line of the rubric of an open answer: what it is worth, and for what."""

    points: float
    text: str


@dataclass(frozen=True)
class Part:
    """One graded cell. `manual`: an open answer, which a person marks by the `rubric` beside the `model` answer.
    `further`: a bonus, on top of the lab's points."""

    name: str
    task: str
    points: float
    manual: bool = False
    further: bool = False
    model: str = ""
    rubric: tuple[Criterion, ...] = ()


@dataclass(frozen=True)
class Task:
    """One task; `library` names what the library ships of it, which an answer may not use."""

    name: str
    title: str
    parts: tuple[Part, ...]
    minutes: int | None = None
    goal: str = ""
    library: tuple[str, ...] = ()

    @property
    def further(self) -> bool:
        return all(part.further for part in self.parts)

    @property
    def points(self) -> float:
        return sum(part.points for part in self.parts)


@dataclass(frozen=True)
class Outline:
    """A lab's tasks in their order."""

    lab: str
    title: str
    minutes: int | None
    tasks: tuple[Task, ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(part for task in self.tasks for part in task.parts)

    @property
    def points(self) -> float:
        """The points of the core; those of Further tasks come on top."""
        return sum(part.points for part in self.parts if not part.further)

    @property
    def bonus(self) -> float:
        return sum(part.points for part in self.parts if part.further)

    def part(self, name: str) -> Part:
        """The part of this name (its grade_id).

        Raises:
            LabError: there is none.
        """
        for part in self.parts:
            if part.name == name:
                return part
        raise LabError(f"the lab {self.lab} has no part {name!r}; it has {', '.join(p.name for p in self.parts)}")


def role(cell: NotebookNode) -> Role:
    """What a cell of a lab is there for."""
    if cell.cell_type != "code":
        return "text"
    graded = nbgrader(cell)
    if graded.get("grade") and not graded.get("solution"):
        return "test"
    if graded.get("solution"):
        return "answer"
    return "show" if "show" in tags(cell) else "given"


def name_of(cell: NotebookNode) -> str:
    """The name by which a lab's cell is known in a submission: its grade_id, else its id."""
    return str(nbgrader(cell).get("grade_id") or cell.get("id") or "")


def outline(source: NotebookNode) -> Outline:
    """The tasks of a lab.

    Raises:
        LabError: a graded cell that belongs to no task, or a rubric that does not add up.
    """
    about = source.metadata.get("underload", {})
    described = about.get("tasks", {})
    parts: dict[str, list[Part]] = {}
    titles: dict[str, str] = {}
    heading = ""
    for index, cell in enumerate(source.cells):
        if cell.cell_type == "markdown":
            text = [r for r in regions(cell.source, where(cell, index)) if r.kind == "text"]  # a mark is no heading
            heading = next((line for r in text for line in r.lines if re.match(r"#+\s", line)), heading)
        if not nbgrader(cell).get("grade"):
            continue
        task = task_of(cell)
        if task is None:
            raise LabError(
                f"{where(cell, index)} is graded and belongs to no task: name it task-N-…, or set underload.task"
            )
        parts.setdefault(task, []).append(_part(cell, index, task))
        titles.setdefault(task, _title(heading))
    return Outline(
        str(about.get("lab", "")),
        str(about.get("title", "")),
        about.get("minutes"),
        tuple(
            Task(
                name,
                titles[name],
                tuple(found),
                described.get(name, {}).get("minutes"),
                str(described.get(name, {}).get("goal", "")),
                tuple(described.get(name, {}).get("library", ())),
            )
            for name, found in parts.items()
        ),
    )


def _part(cell: NotebookNode, index: int, task: str) -> Part:
    graded = nbgrader(cell)
    manual = is_solution(cell)
    model, rubric = "", ()  # type: str, tuple[Criterion, ...]
    if manual:
        lines = [
            line
            for region in regions(cell.source, where(cell, index))
            if region.kind == "solution"
            for line in region.lines
        ]
        model, rubric = split_rubric(lines, where(cell, index))
        worth = sum(criterion.points for criterion in rubric)
        if rubric and abs(worth - float(graded["points"])) > 1e-9:
            raise LabError(
                f"{where(cell, index)}: the rubric adds up to {worth:g} points and the cell has {graded['points']:g}"
            )
    return Part(
        name_of(cell),
        task,
        float(graded.get("points") or 0),
        manual,
        bool(cell.metadata.get("underload", {}).get("further")),
        model,
        rubric,
    )


def split_rubric(lines: list[str], place: str) -> tuple[str, tuple[Criterion, ...]]:
    """The model answer and the rubric in the solution of an open answer: the rubric stands below a line `### RUBRIC`,
    one criterion a line, `- POINTS: what earns them`.

    Raises:
        LabError: a line of the rubric that is no criterion.
    """
    model: list[str] = []
    rubric: list[Criterion] = []
    inside = False
    for line in lines:
        if _RUBRIC.match(line):
            inside = True
        elif not inside:
            model.append(line)
        elif line.strip():
            found = _CRITERION.match(line)
            if found is None:
                raise LabError(f"{place}: {line.strip()!r} is no criterion; write '- POINTS: what earns them'")
            rubric.append(Criterion(float(found["points"]), found["text"].strip()))
    return "\n".join(model).strip(), tuple(rubric)


def _title(heading: str) -> str:
    """'## Task 1. Stamp a request (about 20 minutes, 4 points)' → 'Stamp a request'."""
    text = re.sub(r"^#+\s*", "", heading)
    text = re.sub(r"\s*\([^()]*(minutes?|points?)[^()]*\)\s*$", "", text)
    text = re.sub(r"^Further\s*[:·.]?\s*", "", text)
    return re.sub(r"^Task\s+\w+\s*[.:·]\s*", "", text).strip()


def manual_parts(source: NotebookNode) -> Iterator[Part]:
    """The open answers of a lab."""
    return (part for part in outline(source).parts if part.manual)
