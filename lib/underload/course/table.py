"""The marks as tables: CSV for a spreadsheet, JSON with everything."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from underload.course.marks import LabError
from underload.course.outline import Outline
from underload.course.results import PartResult, Result

#: What a spreadsheet takes for the beginning of a formula; full-width forms count for some of them.
_FORMULA = re.compile("^[\\s]*[=+\\-@\t\r\uff1d\uff0b\uff0d\uff20|]")
#: What ends a line for some reader of CSV, quoted or not, and characters that none expects.
_BREAK = re.compile("[\0\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
#: How the message of a check begins that was stopped.
_LATE = ("TimeoutError: did not end within", "did not end within")


@dataclass(frozen=True)
class Row:
    """One student in one lab. `result` is None where nothing came; `perhaps` names those, not on the roster, who handed
    in this student's hand-out then: nobody can say yet that nothing came."""

    student: str
    lab: str
    result: Result | None
    perhaps: tuple[str, ...] = ()

    @property
    def status(self) -> Literal["graded", "refused", "no submission", "unclear"]:
        if self.result is None:
            return "unclear" if self.perhaps else "no submission"
        return self.result.status

    @property
    def earned(self) -> float | None:
        """Points of the core: 0 where nothing came, None where it could not be graded or is not known."""
        return self._points("earned")

    @property
    def bonus(self) -> float | None:
        return self._points("bonus")

    def _points(self, which: Literal["earned", "bonus"]) -> float | None:
        if self.result is None:
            return None if self.perhaps else 0.0
        return float(getattr(self.result, which)) if self.status == "graded" else None

    def task(self, name: str) -> float | None:
        """Points of one task: 0 where nothing came, None where they are not known."""
        return self.earned if self.result is None else self.result.task_earned(name)

    @property
    def final(self) -> float | None:
        """Core and bonus together, once nothing is left to mark; None before, and for what could not be graded."""
        if self.earned is None or self.bonus is None or (self.result is not None and self.result.unmarked):
            return None
        return round(self.earned + self.bonus, 6)


def rows(results: Sequence[Result], outlines: Mapping[str, Outline], roster: Sequence[str] = ()) -> list[Row]:
    """One row a student and lab, labs in the outlines' order, students in the roster's and then by name.

    Students of the roster have a row in every lab that anybody handed in (in every lab, when nobody handed in any).
    A refused file beside a graded one of the same student and lab has none. A refused file of no known lab is what came
    from its student in each of these labs from which nothing else did, since it may be any of them.

    Raises:
        LabError: two graded results of one student in one lab.
    """
    found: dict[tuple[str, str], Result] = {}
    for result in results:
        key = (result.student, result.lab)
        if key in found and found[key] != result and found[key].status == result.status == "graded":
            raise LabError(
                f"two graded submissions of {result.lab} by {result.student!r}: "
                f"{found[key].path} and {result.path}; keep one of them"
            )
        if key not in found or result.status == "graded":
            found[key] = result
    used = [lab for lab in outlines if any(result.lab == lab for result in results)] or list(outlines)
    used += sorted({result.lab for result in results} - set(used))
    made: list[Row] = []
    listed = list(dict.fromkeys(roster))
    for lab in used:
        here = {student for student, where in found if where == lab}
        if lab in outlines:
            for student in (*listed, *sorted(here - set(listed))):
                came = found.get((student, lab)) or found.get((student, ""))
                made.append(Row(student, lab, came, () if came else _perhaps(student, lab, results, listed)))
        else:
            placed = {row.student for row in made if row.result is found.get((row.student, lab))}
            made += [Row(student, lab, found[student, lab]) for student in sorted(here - placed)]
    return made


def _perhaps(student: str, lab: str, results: Sequence[Result], roster: Collection[str]) -> tuple[str, ...]:
    others = {one.student for one in results if one.named == student and one.lab == lab and one.student not in roster}
    return tuple(sorted(others))


def harmless(value: object) -> str:
    """A cell's text; one that a spreadsheet would take for a formula gets an apostrophe in front."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{round(value, 6):g}"
    text = _BREAK.sub(" ", str(value))
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def csv_text(header: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """A table as CSV, cells made harmless."""
    made = io.StringIO()
    writer = csv.writer(made, lineterminator="\n")
    writer.writerow([harmless(name) for name in header])
    for line in lines:
        writer.writerow([harmless(value) for value in line])
    return made.getvalue()


def marks_csv(found: Sequence[Row], outlines: Mapping[str, Outline]) -> str:
    """One row a student and lab: each task's points, the core's sum and bonus, what is still to mark, and why points
    were lost for something other than a check. A cell is empty where there is no number."""
    tasks = list(dict.fromkeys(task.name for row in found if row.lab in outlines for task in outlines[row.lab].tasks))
    header = ["student", "lab", "status", *(task_heading(task) for task in tasks)]
    header += ["core", "bonus", "of", "unmarked", "reasons"]
    lines: list[list[object]] = []
    for row in found:
        outline = outlines.get(row.lab)
        own = {task.name for task in outline.tasks} if outline else set()
        earned = [row.task(task) if task in own else None for task in tasks]
        lines.append(
            [
                row.student, row.lab, row.status, *earned, row.earned, row.bonus, outline.points if outline else None,
                len(row.result.unmarked) if row.result is not None and row.status == "graded" else None,
                "; ".join(reasons(row)),
            ]
        )  # fmt: skip
    return csv_text(header, lines)


def wide_csv(found: Sequence[Row], outlines: Mapping[str, Outline]) -> str:
    """One row a student, two columns a lab and the sums; a sum is empty while a part of it is."""
    labs = list(dict.fromkeys(row.lab for row in found if row.lab in outlines))
    at = {(row.student, row.lab): row for row in found}
    header = ["student", *(name for lab in labs for name in (lab, f"{lab} bonus", f"{lab} status")), "core", "bonus"]
    lines: list[list[object]] = []
    for student in dict.fromkeys(row.student for row in found):
        mine = [at.get((student, lab)) for lab in labs]
        line: list[object] = [student]
        for row in mine:
            line += [row.earned, row.bonus, row.status] if row else [None, None, ""]
        for sums in ([row.earned for row in mine if row], [row.bonus for row in mine if row]):
            line.append(None if None in sums or not sums else sum(value or 0.0 for value in sums))
        lines.append(line)
    return csv_text(header, lines)


def task_heading(task: str) -> str:
    """'task 2' for 2, 'further 1' as it is."""
    return f"task {task}" if task[:1].isdigit() or len(task) == 1 else task


def reasons(row: Row) -> list[str]:
    """Everything about a row that a person should know, in the order in which it matters."""
    if row.perhaps:
        who = ", ".join(row.perhaps)
        return [f"nothing came under this name, and {who} handed in the hand-out of it; give the folder its right name"]
    if row.result is None:
        return ["no submission"]
    result = row.result
    said = [result.said] if result.said else []
    said += [f"{part.name}: {text}" for part in result.parts if not left_open(part) and (text := lost_to(part))]
    empty = [part.name for part in result.parts if left_open(part)]
    said += [f"nothing was written for {', '.join(empty)}"] if empty else []
    said += [f"{part}: not marked yet" for part in result.unmarked]
    said += [problem.said for problem in result.problems]
    return [text for text in dict.fromkeys([*said, *result.notes]) if text]


def left_open(part: PartResult) -> bool:
    """Whether a part has no points because nothing was written for it."""
    return not part.earned and part.said.startswith("nothing was written")


def lost_to(part: PartResult) -> str:
    """What a part lost points to other than that a check found an answer wrong; "" where there is nothing."""
    late = [check.what for check in part.checks if check.said.startswith(_LATE)]
    ended = f"did not end in time: {', '.join(late)}" if late else ""
    return "; ".join(text for text in (part.said, ended) if text)


def marks_json(found: Sequence[Row], outlines: Mapping[str, Outline], results: Sequence[Result]) -> str:
    """Everything: the labs, the sums, and each result as it is. What is not known is null."""
    labs: dict[str, Any] = {
        lab: {
            "title": outline.title,
            "points": outline.points,
            "bonus": outline.bonus,
            "tasks": {
                task.name: {"title": task.title, "points": task.points, "further": task.further}
                for task in outline.tasks
            },
        }
        for lab, outline in outlines.items()
        if any(row.lab == lab for row in found)
    }
    marks = [
        {
            "student": row.student,
            "lab": row.lab,
            "status": row.status,
            "core": row.earned,
            "bonus": row.bonus,
            "final": row.final,
            "of": outlines[row.lab].points if row.lab in outlines else None,
            "unmarked": list(row.result.unmarked) if row.result else [],
            "tasks": {
                task.name: row.task(task.name) for task in (outlines[row.lab].tasks if row.lab in outlines else ())
            },
            "reasons": reasons(row),
        }
        for row in found
    ]
    data = {"version": 1, "labs": labs, "marks": marks, "results": [dataclasses.asdict(result) for result in results]}
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write(path: Path, text: str) -> Path:
    """Write a file whole: a reader sees the old one or the new one. Lone surrogates, which UTF-8 cannot hold, become
    question marks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(text.encode("utf-8", errors="replace"))
    os.replace(beside, path)
    return path
