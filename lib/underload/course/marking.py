"""Marking open answers: one offline page to mark them in, and merging what it saves into the results.

A mark belongs to a student, a lab, a part and the text that was read (by a digest): when the results are made again,
marks of unchanged answers still hold, and a changed answer needs marking again. Equal answers to one question are shown
once, and what they get goes to everybody who wrote them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from underload.course.attempt import clean
from underload.course.marks import LabError, regions
from underload.course.outline import Criterion, Outline, Part, name_of, role
from underload.course.render import points as said_points
from underload.course.render import render
from underload.course.results import PartResult, Result
from underload.course.source import nbgrader, where
from underload.course.titles import plain, sections

#: What a file of marks says it is.
KIND = "underload-marks"
VERSION = 1
#: Characters that the page shows of what one cell had printed.
PRINTED = 1_500


@dataclass(frozen=True)
class Mark:
    """What a person gave one open answer: `criteria` in the rubric's order, `points` their sum. `file` and `marker` say
    where it comes from, `saved` when its file was made (ISO 8601, UTC; "" where it does not say)."""

    student: str
    lab: str
    part: str
    digest: str
    points: float
    criteria: tuple[float, ...] = ()
    comment: str = ""
    marker: str = ""
    file: str = ""
    saved: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.student, self.lab, self.part

    @property
    def source(self) -> str:
        """Who gave it, for a message."""
        return f"{self.file} ({self.marker})" if self.marker else self.file


def answer_digest(text: str) -> str:
    """The digest a mark is tied to; white space at the ends of lines and of the text does not count."""
    lines = [line.rstrip() for line in text.strip().splitlines()]
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def read_marks(path: Path) -> list[Mark]:
    """Read a file that the marking page saved.

    Raises:
        LabError: it cannot be read or is no file of marks.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict) or data.get("kind") != KIND:
            raise ValueError(f"it does not say {KIND!r}")
        if data.get("version") != VERSION:
            raise ValueError(f"its version is {data.get('version')!r}, and {VERSION} is needed")
        saved = str(data.get("saved", ""))
        return [_mark(entry, str(data.get("marker", "")), path.name, saved) for entry in data["marks"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LabError(
            f"{path} is no file of marks ({_reason(error)}); use one that 'Save marks' on the marking page made"
        ) from error


def _reason(error: Exception) -> str:
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)


def _mark(entry: dict[str, Any], marker: str, file: str, saved: str) -> Mark:
    names = {name: entry[name] for name in ("student", "lab", "part", "digest")}
    for name, value in names.items():
        if not isinstance(value, str):
            raise ValueError(f"{name} is {value!r}, and a text is needed")
    numbers = [entry["points"], *entry.get("criteria", [])]
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise ValueError(f"points of {names['student']!r} in {names['part']!r} are {number!r}, no number")
    return Mark(
        **names,
        points=float(numbers[0]),
        criteria=tuple(float(number) for number in numbers[1:]),
        comment=str(entry.get("comment", "")),
        marker=str(entry.get("marker", "")) or marker,
        file=file,
        saved=saved,
    )


def merge(results: Sequence[Result], marks: Iterable[Mark]) -> list[Result]:
    """The results with the marks in them; the results given are not changed.

    Equal answers to one question get equal marks, also where only one of them was marked (the other came later).
    A mark of an answer that has since changed is not used; the result's notes say that it needs marking again.
    A mark of a student or a lab that is not here is passed over (`passed_over` tells them), but for equal answers of
    others. Marks that agree on the points are one, with all their comments; of two that one marker gave the same
    answer, the one that was saved later holds.

    Raises:
        LabError: a mark for an open answer that the lab does not have, one below 0 or above the part's points, or two
            that disagree; every such mark is named, and nothing is merged.
    """
    known = {(result.student, result.lab) for result in results if result.status == "graded"}
    parts = {result.lab: result.parts for result in results if result.status == "graded"}
    texts = {
        (result.student, result.lab, part.name): answer_digest(part.answer)
        for result in results
        for part in result.parts
        if part.manual
    }
    faults: list[str] = []
    given: dict[tuple[str, str, str], list[Mark]] = {}
    stale: dict[tuple[str, str], list[str]] = {}
    for mark in marks:
        if mark.lab not in parts:
            continue
        part = next((part for part in parts[mark.lab] if part.name == mark.part), None)
        if part is None or not part.manual:
            open_ones = ", ".join(part.name for part in parts[mark.lab] if part.manual) or "none"
            faults.append(f"{mark.source}: {mark.lab} has no open answer {mark.part!r}; it has: {open_ones}")
        elif not 0 <= mark.points <= part.points + 1e-9:
            faults.append(
                f"{mark.source}: {mark.points:g} points for {mark.student!r} in {mark.part}; "
                f"it can have 0 to {part.points:g}"
            )
        else:
            if (mark.student, mark.lab) in known and mark.digest != texts.get(mark.key):
                stale.setdefault((mark.student, mark.lab), []).append(mark.part)
            given.setdefault((mark.lab, mark.part, mark.digest), []).append(mark)
    given = {key: _latest(found) for key, found in given.items()}
    faults += _disagreements(given)
    if faults:
        raise LabError(f"nothing was merged: {'; '.join(faults)} (mend these files, or move them out of marks/)")
    return [_merged(result, given, stale.get((result.student, result.lab), ())) for result in results]


def _latest(marks: Sequence[Mark]) -> list[Mark]:
    """Without marks of one answer that the same marker gave before, where the files say when they were saved."""
    newest: dict[str, str] = {}
    for mark in marks:
        if mark.marker and mark.saved:
            newest[mark.marker] = max(mark.saved, newest.get(mark.marker, ""))
    return [mark for mark in marks if not mark.saved or mark.saved == newest.get(mark.marker, mark.saved)]


def passed_over(results: Sequence[Result], marks: Iterable[Mark]) -> list[str]:
    """What a person should know about marks of students and labs that are not among these results, a sentence each."""
    here = {(result.student, result.lab) for result in results}
    labs = {result.lab for result in results}
    gone: dict[str, dict[str, None]] = {}
    for mark in marks:
        if (mark.student, mark.lab) not in here:
            gone.setdefault(mark.lab, {})[mark.student] = None
    return [_gone(lab, list(students), lab in labs) for lab, students in gone.items()]


def _gone(lab: str, students: Sequence[str], graded: bool) -> str:
    if not graded:
        return f"marks: those of {lab} were passed over, which is not graded in this run; they are kept"
    who = ", ".join(students[:5]) + (f" and {len(students) - 5} more" if len(students) > 5 else "")
    return (
        f"marks: there is no submission of {lab} by {who} any more; what was marked there holds for equal answers of "
        "others, and the rest was merged"
    )


def keep_marks(files: Iterable[Path], folder: Path) -> None:
    """Put a copy of each file of marks into `folder`, so that the next run finds it there without being told; content
    that is there already is not copied again, and no file is replaced."""
    have = {path.read_bytes() for path in folder.glob("*.json")}
    for path in files:
        content = path.read_bytes()
        if content in have:
            continue
        have.add(content)
        name = path.name if path.suffix == ".json" else f"{path.name}.json"
        if (folder / name).exists():
            name = f"{name.removesuffix('.json')}-{hashlib.sha256(content).hexdigest()[:8]}.json"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def _disagreements(given: Mapping[tuple[str, str, str], Sequence[Mark]]) -> Iterator[str]:
    for (lab, part, _), marks in given.items():
        said: dict[float, list[Mark]] = {}
        for mark in marks:
            said.setdefault(round(mark.points, 6), []).append(mark)
        if len(said) > 1:
            who = " and ".join(
                f"{worth:g} points in {', '.join(dict.fromkeys(mark.source for mark in found))}"
                for worth, found in said.items()
            )
            students = ", ".join(repr(student) for student in dict.fromkeys(mark.student for mark in marks))
            yield f"{lab}, {part}, the answer of {students}: markers disagree: {who}; agree and take one out"


def _merged(result: Result, given: Mapping[tuple[str, str, str], Sequence[Mark]], stale: Iterable[str]) -> Result:
    if result.status != "graded":
        return result
    parts = tuple(
        _marked(part, given.get((result.lab, part.name, answer_digest(part.answer)), ()))
        if part.manual and part.answer.strip()
        else part
        for part in result.parts
    )
    done = {part.name for part in parts if part.earned is not None}
    notes = [
        f"the open answer {name} has changed since it was marked; it needs marking again"
        for name in dict.fromkeys(stale)
        if name not in done
    ]
    return dataclasses.replace(result, parts=parts, notes=tuple(dict.fromkeys([*result.notes, *notes])))


def _marked(part: PartResult, marks: Sequence[Mark]) -> PartResult:
    if not marks:
        return part
    comments = dict.fromkeys(mark.comment.strip() for mark in marks if mark.comment.strip())
    return dataclasses.replace(part, earned=min(marks[0].points, part.points), comment="\n\n".join(comments))


# ---- the page ------------------------------------------------------------------------------------------------------


def marking_page(
    results: Sequence[Result],
    outlines: Mapping[str, Outline],
    marks: Sequence[Mark] = (),
    sources: Mapping[str, NotebookNode] | None = None,
) -> str | None:
    """The page in which a person marks the open answers; None where there is nothing to mark.

    marks: those that are already in the results; the page begins with them.
    sources: the labs' notebooks, to show the question beside its answers.
    """
    shown = _questions(results, outlines, marks, sources or {})
    if not shown:
        return None
    data = {"kind": KIND, "version": VERSION, "questions": shown}
    return render(
        "marking.html",
        "marking.js",
        data=json.dumps(data, ensure_ascii=True).replace("<", "\\u003c").replace("&", "\\u0026"),
        answers=sum(len(question["answers"]) for question in shown),
        students=sum(len(answer["students"]) for question in shown for answer in question["answers"]),
        questions=shown,
    )


def _questions(
    results: Sequence[Result],
    outlines: Mapping[str, Outline],
    marks: Sequence[Mark],
    sources: Mapping[str, NotebookNode],
) -> list[dict[str, Any]]:
    given = {(mark.lab, mark.part, mark.digest): mark for mark in marks}
    shown = []
    for lab, outline in outlines.items():
        for task in outline.tasks:
            for part in task.parts:
                if not part.manual:
                    continue
                source = sources.get(lab)
                answers = _answers(results, lab, part, given, _shown_cells(source, task.name) if source else None)
                if answers:
                    shown.append(
                        {
                            "lab": lab,
                            "part": part.name,
                            "title": f"{outline.title or lab}: task {task.name}"
                            + (f", {task.title}" if task.title else ""),
                            "points": part.points,
                            "question": plain(question(source, part.name)) if source else "",
                            "model": plain(part.model),
                            "rubric": [{"points": one.points, "text": plain(one.text)} for one in rubric(part)],
                            "answers": answers,
                        }
                    )
    return shown


def _shown_cells(source: NotebookNode, task: str) -> list[str]:
    """The show cells of a task, by name: what a student saw there is what an open answer of it may speak of."""
    within = sections(source)
    return [name_of(cell) for cell in source.cells if role(cell) == "show" and within.get(name_of(cell)) == task]


def rubric(part: Part) -> tuple[Criterion, ...]:
    """The part's rubric; without one, a single criterion of all its points."""
    return part.rubric or (Criterion(part.points, "the whole answer"),)


def _answers(
    results: Sequence[Result],
    lab: str,
    part: Part,
    given: Mapping[tuple[str, str, str], Mark],
    shown: Sequence[str] | None,
) -> list[dict[str, Any]]:
    """The different answers to one question, in an order that has nothing to do with whose they are.

    shown: the cells whose stored text stands beside the answers; None where they are not known.
    """
    found: dict[str, dict[str, Any]] = {}
    for result in results:
        if result.lab != lab or result.status != "graded":
            continue
        for one in result.parts:
            text = one.answer.strip()
            if one.name != part.name or not text:
                continue
            digest = answer_digest(text)
            entry = found.setdefault(digest, {"digest": digest, "text": text, "students": []})
            entry["students"].append(result.student)
            if shown:
                entry.setdefault("printed", []).append(
                    [clean(result.printed[name].strip(), PRINTED) for name in shown if result.printed.get(name)]
                )
            mark = given.get((lab, part.name, digest))
            if mark is not None:
                criteria = mark.criteria if len(mark.criteria) == len(rubric(part)) else ()
                entry["mark"] = {
                    "criteria": list(criteria) or _spread(mark.points, rubric(part)),
                    "comment": mark.comment,
                    "marker": mark.marker,
                }
    return sorted(found.values(), key=lambda entry: hashlib.sha256(f"order {entry['digest']}".encode()).hexdigest())


def _spread(points: float, criteria: Sequence[Criterion]) -> list[float]:
    """Points given without a rubric, put on its criteria from the first on."""
    made = []
    for criterion in criteria:
        made.append(min(points, criterion.points))
        points -= made[-1]
    return made


def question(source: NotebookNode, part: str) -> str:
    """What an open answer was asked: the text of its cell outside the solution, after that of the cell before it."""
    for index, cell in enumerate(source.cells):
        if nbgrader(cell).get("grade_id") != part:
            continue
        own = "\n".join(
            line
            for region in regions(cell.source, where(cell, index))
            if region.kind == "text"
            for line in region.lines
        ).strip()
        before = source.cells[index - 1] if index else None
        asked = before.source.strip() if before is not None and before.cell_type == "markdown" else ""
        return re.sub(r"(?m)^#+\s+", "", "\n\n".join(text for text in (asked, own) if text))
    return ""


def said(mark: Mark, part: Part) -> list[tuple[str, str]]:
    """For each criterion what it is and what was given for it; empty where the mark does not have them one by one."""
    if len(mark.criteria) != len(rubric(part)):
        return []
    return [
        (one.text, f"{said_points(got)} of {said_points(one.points)}")
        for one, got in zip(rubric(part), mark.criteria, strict=True)
    ]
