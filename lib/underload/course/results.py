"""What grading one submission found: plain data, kept as one JSON file a submission."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from underload.course.assemble import Problem
from underload.course.marks import LabError
from underload.course.points import Check

#: Raised when a field changes its meaning, so that results of an older version are graded again and not misread.
VERSION = 1


@dataclass(frozen=True)
class PartResult:
    """What one graded part earned. `earned` is None for an open answer that nobody has marked yet; `said` is the reason
    when points were lost for something else than a check (a missing cell, the time limit, the library's own version).
    """

    name: str
    task: str
    points: float
    earned: float | None
    further: bool = False
    manual: bool = False
    said: str = ""
    checks: tuple[Check, ...] = ()
    answer: str = ""
    comment: str = ""

    def __post_init__(self) -> None:
        if self.earned is not None and not 0 <= self.earned <= self.points:
            raise ValueError(f"{self.name}: {self.earned:g} points of {self.points:g}")


@dataclass(frozen=True)
class CellRun:
    """How one of the student's cells ran."""

    name: str
    error: str = ""
    output: str = ""
    ended: Literal["done", "time", "died", "memory"] = "done"
    seconds: float = 0.0


@dataclass(frozen=True)
class Result:
    """One submission of one lab by one student.

    status: `graded`; or `refused`, when it could not be graded at all, with the reason in `said` and no parts.
    named: the student whose hand-out it is by its metadata, "" where it does not say.
    code: the student's answer cells by name, to compare submissions with.
    printed: the text that was stored in the notebook below the lab's show cells, by their names.
    """

    student: str
    lab: str
    path: str
    status: Literal["graded", "refused"]
    said: str = ""
    handout: str = ""
    parts: tuple[PartResult, ...] = ()
    problems: tuple[Problem, ...] = ()
    cells: tuple[CellRun, ...] = ()
    code: dict[str, str] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    key: str = ""
    named: str = ""
    printed: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def earned(self) -> float:
        """Points of the core so far; open answers that nobody has marked count nothing yet."""
        return sum(part.earned or 0.0 for part in self.parts if not part.further)

    @property
    def bonus(self) -> float:
        return sum(part.earned or 0.0 for part in self.parts if part.further)

    @property
    def unmarked(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts if part.earned is None)

    def task_earned(self, task: str) -> float | None:
        """Points of one task; None when none of its parts has been marked."""
        found = [part.earned for part in self.parts if part.task == task]
        marked = [earned for earned in found if earned is not None]
        return sum(marked) if marked else None


def write_result(result: Result, path: Path) -> None:
    """Write one result; a reader sees either the old file or the whole new one. Times lie beside it (`times_of`)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = dataclasses.asdict(result)
    times = {"all": data.pop("seconds"), "cells": [cell.pop("seconds") for cell in data["cells"]]}
    for place, content in (
        (times_of(path), json.dumps(times)),
        (path, json.dumps({"version": VERSION, **data}, indent=1)),
    ):
        beside = place.with_name(f".{place.name}.{os.getpid()}")
        beside.write_text(content + "\n", encoding="utf-8")
        os.replace(beside, place)


def times_of(path: Path) -> Path:
    """The file beside a result that says how long grading took, in seconds: no two runs agree on that, and results of
    two runs should compare."""
    return path.with_suffix(".seconds")


def _times(path: Path, cells: int) -> tuple[float, list[float]]:
    """What grading took; 0 where that is not known, since nothing depends on it."""
    try:
        data = json.loads(times_of(path).read_text(encoding="utf-8"))
        whole, each = float(data["all"]), [float(value) for value in data["cells"]]
    except (OSError, ValueError, TypeError, KeyError):
        return 0.0, [0.0] * cells
    return whole, each if len(each) == cells else [0.0] * cells


def read_result(path: Path) -> Result:
    """Read one result.

    Raises:
        LabError: the file is not a result of this version.
    """
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if data.pop("version", None) != VERSION:
            raise ValueError("another version")
        data["parts"] = tuple(
            PartResult(**{**part, "checks": tuple(Check(**check) for check in part["checks"])})
            for part in data["parts"]
        )
        data["problems"] = tuple(Problem(**problem) for problem in data["problems"])
        data["seconds"], each = _times(path, len(data["cells"]))
        data["cells"] = tuple(
            CellRun(**{**cell, "seconds": took}) for cell, took in zip(data["cells"], each, strict=True)
        )
        data["notes"] = tuple(data["notes"])
        return Result(**data)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LabError(f"{path} is no result of grading ({error}); delete it to grade that submission again") from error
