"""A lab's results in figures: how many, how well, which checks failed, for whom nothing can be said."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from underload.course.outline import Outline
from underload.course.points import Check
from underload.course.results import PartResult, Result


@dataclass(frozen=True)
class Bin:
    """Submissions with at least `low` and less than `high` points; the last bin is that of full marks, low == high."""

    low: float
    high: float
    count: int


@dataclass(frozen=True)
class TaskSummary:
    """One task over the graded submissions in which it has points; `mean` and shares are None where there is none.
    `waiting`: submissions in which one of its open answers is not marked yet."""

    name: str
    title: str
    points: float
    further: bool
    graded: int
    mean: float | None
    full: float | None
    none: float | None
    waiting: int


@dataclass(frozen=True)
class CheckSummary:
    """One check over the submissions in which it ran: how often it failed, how often nothing was written yet, and what
    it said, the most frequent first. `caused`: how many of the failures are told as one of the causes; their messages
    are not in `said`."""

    task: str
    part: str
    what: str
    ran: int
    failed: int
    missing: int
    said: tuple[tuple[str, int], ...]
    caused: int = 0

    @property
    def own(self) -> int:
        """Failures that only this check shows."""
        return self.failed - self.caused


@dataclass(frozen=True)
class CauseSummary:
    """One message that several checks of a part had for the same student, as a name that is not defined fails them all:
    how many students, and which checks."""

    part: str
    said: str
    students: int
    checks: tuple[str, ...]


@dataclass(frozen=True)
class Summary:
    """One lab. All statistics are over the graded submissions and the points of the core; where there is no graded
    submission they are None. `unmarked` counts open answers that nobody has marked: their points are still out."""

    outline: Outline
    graded: int
    refused: int
    absent: int
    unmarked: int
    mean: float | None
    quartiles: tuple[float, float, float] | None
    lowest: float | None
    highest: float | None
    bins: tuple[Bin, ...]
    tasks: tuple[TaskSummary, ...]
    checks: tuple[CheckSummary, ...]
    causes: tuple[CauseSummary, ...] = ()


def summarise(outline: Outline, results: Sequence[Result], absent: int = 0) -> Summary:
    """The results of one lab in figures; `absent`: students of the roster from whom nothing came."""
    graded = [result for result in results if result.status == "graded"]
    marks = sorted(result.earned for result in graded)
    causes = _causes(graded)
    return Summary(
        outline,
        len(graded),
        len(results) - len(graded),
        absent,
        sum(len(result.unmarked) for result in graded),
        statistics.fmean(marks) if marks else None,
        (quantile(marks, 0.25), quantile(marks, 0.5), quantile(marks, 0.75)) if marks else None,
        marks[0] if marks else None,
        marks[-1] if marks else None,
        bins(marks, outline.points),
        tuple(_tasks(outline, graded)),
        tuple(_checks(outline, graded)),
        tuple(sorted(causes, key=lambda cause: -cause.students)),
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Linear interpolation between the order statistics, NumPy's default. `ordered` has at least one value."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def bins(marks: Sequence[float], full: float) -> tuple[Bin, ...]:
    """At most 21 bins of equal, round width from 0 on, full marks in one of their own."""
    if full <= 0:
        return ()
    width = next((w for w in (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0) if full / w <= 20), full / 20)
    edges = [width * index for index in range(math.ceil(full / width - 1e-9))]
    inner = [mark for mark in marks if mark < full - 1e-9]
    made = [
        Bin(low, min(low + width, full), sum(low <= mark + 1e-9 < min(low + width, full) for mark in inner))
        for low in edges
    ]
    return (*made, Bin(full, full, len(marks) - len(inner)))


def _tasks(outline: Outline, graded: Sequence[Result]) -> list[TaskSummary]:
    made = []
    for task in outline.tasks:
        found = [earned for result in graded if (earned := result.task_earned(task.name)) is not None]
        some = len(found) or None
        made.append(
            TaskSummary(
                task.name,
                task.title,
                task.points,
                task.further,
                len(found),
                statistics.fmean(found) if found else None,
                sum(earned >= task.points - 1e-9 for earned in found) / some if some else None,
                sum(earned <= 1e-9 for earned in found) / some if some else None,
                sum(any(part.earned is None for part in one.parts if part.task == task.name) for one in graded),
            )
        )
    return made


def _cause(check: Check) -> str:
    """What a check said, without what differs between checks that failed for the same reason."""
    first = check.said.strip().split("\n")[0]
    return "did not end in time" if first.removeprefix("TimeoutError: ").startswith("did not end within") else first


def _caused(part: PartResult) -> dict[str, list[str]]:
    """The causes that failed several checks of one student's part, with these checks."""
    found: dict[str, list[str]] = {}
    for check in part.checks:
        if check.said and not check.missing:
            found.setdefault(_cause(check), []).append(check.what)
    return {said: checks for said, checks in found.items() if len(checks) > 1}


def _causes(graded: Sequence[Result]) -> list[CauseSummary]:
    students: Counter[tuple[str, str]] = Counter()
    checks: dict[tuple[str, str], dict[str, None]] = {}
    for result in graded:
        for part in result.parts:
            for said, names in _caused(part).items():
                students[part.name, said] += 1
                checks.setdefault((part.name, said), {}).update(dict.fromkeys(names))
    return [CauseSummary(part, said, count, tuple(checks[part, said])) for (part, said), count in students.items()]


def _checks(outline: Outline, graded: Sequence[Result]) -> list[CheckSummary]:
    """All checks that failed for somebody, the most frequent first; in the lab's order where they are equal."""
    ran: Counter[tuple[str, str]] = Counter()
    failed: Counter[tuple[str, str]] = Counter()
    missing: Counter[tuple[str, str]] = Counter()
    caused: Counter[tuple[str, str]] = Counter()
    said: dict[tuple[str, str], Counter[str]] = {}
    for result in graded:
        for part in result.parts:
            causes = _caused(part)
            for check in part.checks:
                key = (part.name, check.what)
                ran[key] += 1
                if check.missing:
                    missing[key] += 1
                elif check.said:
                    failed[key] += 1
                    if _cause(check) in causes:
                        caused[key] += 1
                        continue
                    said.setdefault(key, Counter())[check.said] += 1
    task = {part.name: part.task for part in outline.parts}
    made = [
        CheckSummary(
            task.get(key[0], ""),
            key[0],
            key[1],
            ran[key],
            failed[key],
            missing[key],
            tuple(said.get(key, Counter()).most_common()),
            caused[key],
        )
        for key in ran
        if failed[key] or missing[key]
    ]
    return sorted(made, key=lambda check: (-check.own, -check.failed, -check.missing))
