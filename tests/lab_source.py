"""What the tests of several labs share: what a lab's notebook must hold, and what a wrong answer is told."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from nbformat import NotebookNode

from underload.course.outline import outline, role

ROOT = Path(__file__).parents[1]
LABS = ROOT / "labs"


def answers(source: NotebookNode) -> dict[str, Any]:
    """The names that a grader's process has with the solutions: nothing that only shows things was run."""
    names: dict[str, Any] = {}
    for cell in source.cells:
        if role(cell) in ("given", "answer"):
            exec(cell.source, names)
    return names


def printed(source: NotebookNode) -> dict[str, str]:
    """What the stored run of a lab printed below each of its code cells, by the cell's id."""
    return {
        cell.id: "".join(output.get("text", "") for output in cell.outputs)
        for cell in source.cells
        if cell.cell_type == "code"
    }


def assert_points(source: NotebookNode, points: float, bonus: float, minutes: int) -> None:
    """The lab is worth so much and takes so long, and the headings of its tasks say the same."""
    about = outline(source)
    assert (about.points, about.bonus, about.minutes) == (points, bonus, minutes)
    assert sum(task.minutes or 0 for task in about.tasks if not task.further) == about.minutes
    heads = [cell.source.splitlines()[0] for cell in source.cells if re.match(r"## .*Task \d", cell.source)]
    said = [re.findall(r"about (\d+) minutes, (\d+) (?:bonus )?points", head)[0] for head in heads]
    assert said == [(str(task.minutes), f"{task.points:g}") for task in about.tasks]


def assert_library_is_there(source: NotebookNode) -> None:
    """What an answer may not use exists under the name that the lab has for it."""
    for task in outline(source).tasks:
        for name in task.library:
            module, _, last = name.rpartition(".")
            assert callable(getattr(importlib.import_module(module), last)), name


def benchmark(name: str, source: NotebookNode) -> ModuleType:
    """A script of tests/benchmarks that runs a lab's own cells; all that it names are there.

    A run takes a decoder and half a minute, so only its names are looked at.
    """
    folder = str(ROOT / "tests" / "benchmarks")
    sys.path.insert(0, folder)
    try:
        found = importlib.import_module(name)
    finally:
        sys.path.remove(folder)
    assert {*found.BEFORE, *found.MEASURED} <= {cell.id for cell in source.cells}
    return found


def told(check: Callable[..., Any], *arguments: Any, **more: Any) -> str:
    """The message with which a check fails."""
    with pytest.raises(AssertionError) as error:
        check(*arguments, **more)
    return str(error.value)
