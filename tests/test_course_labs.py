"""Every lab in labs/: sound as a source, clean as a hand-out, complete in its answers."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

from underload.course import faults, handout, lab_page, read_notebook, secrets, solution, tasks
from underload.course.outline import role

ROOT = Path(__file__).resolve().parents[1]
LABS = sorted((ROOT / "labs").glob("*.ipynb"))

pytestmark = pytest.mark.parametrize("lab", LABS, ids=lambda path: path.stem)


def test_a_lab_has_no_fault(lab: Path) -> None:
    assert faults(read_notebook(lab)) == []


def test_a_hand_out_and_a_page_hold_nothing_of_the_solutions(lab: Path) -> None:
    source = read_notebook(lab)
    kept = secrets(source)
    for made in (handout(source), lab_page(source)):
        text = "\n".join(cell.source for cell in made.cells)
        assert kept.lines_in(text) == []
        for mark in ("BEGIN SOLUTION", "HIDDEN TESTS", "### STUB"):
            assert mark not in json.dumps(made)


def test_every_cell_of_a_hand_out_is_still_python(lab: Path) -> None:
    for cell in handout(read_notebook(lab)).cells:
        if cell.cell_type == "code" and not cell.source.lstrip().startswith("%"):
            ast.parse(cell.source)


def test_what_an_answer_may_reach_for_is_there_when_it_is_graded(lab: Path) -> None:
    """Cells that only show things are left out then: an answer with NumPy from one of them would earn nothing."""
    common = sys.stdlib_module_names | {"numpy"}
    shown, there = set[str](), set[str]()
    for cell in read_notebook(lab).cells:
        if cell.cell_type != "code" or cell.source.lstrip().startswith("%"):
            continue
        names = there if role(cell) in ("given", "answer") else shown
        for line in ast.parse(cell.source).body:
            if isinstance(line, ast.Import | ast.ImportFrom):
                module = line.module if isinstance(line, ast.ImportFrom) else None
                names |= {one.asname or one.name for one in line.names if (module or one.name).split(".")[0] in common}
    assert shown - there == set()


def test_every_task_has_an_answer_to_unfold(lab: Path) -> None:
    source = read_notebook(lab)
    for task in tasks(source):
        assert str(solution(source, task)).strip()


def test_a_lab_says_its_title_and_time(lab: Path) -> None:
    about = read_notebook(lab).metadata.get("underload", {})
    assert isinstance(about.get("minutes"), int) and about.get("title")
