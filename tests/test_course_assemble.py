"""What is run for a submission, whatever was done to its cells."""

from __future__ import annotations

import copy
import time

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell
from pace import slowness
from sample_task_lab import task_lab

from underload.course import LabError, handout
from underload.course.answers import answer_cells, solved
from underload.course.assemble import Assembly, assemble, bound, given_names
from underload.course.outline import outline


def cell(notebook: NotebookNode, name: str) -> NotebookNode:
    return next(c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade_id") == name or c.id == name)


def names(found: Assembly) -> list[str]:
    return [step.name for step in found.steps]


def kinds(found: Assembly) -> set[tuple[str, str]]:
    return {(problem.kind, problem.cell) for problem in found.problems}


# ---- the outline -------------------------------------------------------------------------------------------------


def test_the_outline_has_tasks_parts_points_rubrics_and_what_may_not_be_used() -> None:
    lab = outline(task_lab())
    assert (lab.lab, lab.points, lab.bonus) == ("counting", 5, 1)
    assert [(task.name, task.title, task.points, task.further) for task in lab.tasks] == [
        ("1", "Double", 2, False),
        ("2", "Halve", 3, False),
        ("3", "Treble", 1, True),
    ]
    assert lab.tasks[0].library == ("underload.metrics.mean",)
    why = lab.part("task-2-why")
    assert why.manual and why.model == "Because waiting is work." and why.rubric[0].points == 1
    with pytest.raises(LabError, match="task-9.*task-1-check"):
        lab.part("task-9")


def test_a_rubric_that_does_not_add_up_is_refused() -> None:
    lab = task_lab()
    cell(lab, "task-2-why").source = cell(lab, "task-2-why").source.replace("- 1:", "- 3:")
    with pytest.raises(LabError, match="adds up to 3 points and the cell has 1"):
        outline(lab)
    cell(lab, "task-2-why").source = cell(lab, "task-2-why").source.replace("- 3:", "three points for")
    with pytest.raises(LabError, match="no criterion"):
        outline(lab)


# ---- the lab and what comes back ---------------------------------------------------------------------------------


def test_the_source_runs_without_what_only_shows() -> None:
    found = assemble(task_lab())
    assert names(found) == [
        *("setup", "task-1-double", "task-1-check", "switch", "task-2-halve", "task-2-check"),
        *("task-3-treble", "task-3-check"),
    ]
    assert given_names(task_lab()) == {"math", "Points", "helper"}


def test_a_perfect_submission_runs_the_solutions_and_the_labs_own_tests() -> None:
    source = task_lab()
    found = assemble(source, solved(source))
    assert names(found) == names(assemble(source))
    assert not found.problems and not found.untouched
    assert found.answers == {"task-2-why": "Because waiting is work."}
    tests = {step.name: step.source for step in found.steps if step.role == "test"}
    assert "BEGIN HIDDEN TESTS" in tests["task-1-check"]


def test_a_hand_out_that_nobody_touched_is_known_as_such() -> None:
    source = task_lab()
    found = assemble(source, handout(source))
    assert found.untouched == {"task-1-double", "task-2-halve", "task-3-treble"}
    assert found.answers == {"task-2-why": ""} and not found.problems


def test_a_missing_answer_costs_its_task_and_is_named() -> None:
    source = task_lab()
    theirs = solved(source)
    theirs.cells.remove(cell(theirs, "task-1-double"))
    found = assemble(source, theirs)
    assert [(p.kind, p.cell, p.task) for p in found.problems] == [("missing", "task-1-double", "1")]
    assert names(found) == names(assemble(source))


def test_tests_come_from_the_lab_whatever_became_of_them() -> None:
    source = task_lab()
    theirs = solved(source)
    cell(theirs, "task-1-check").source = "4"
    theirs.cells.remove(cell(theirs, "task-2-check"))
    found = assemble(source, theirs)
    assert kinds(found) == {("changed", "task-1-check"), ("missing", "task-2-check")}
    assert all(problem.task is None for problem in found.problems)
    assert names(found) == names(assemble(source))
    assert next(step for step in found.steps if step.name == "task-1-check").source != "4"


def test_a_copied_answer_runs_after_the_one_that_was_handed_out() -> None:
    source = task_lab()
    theirs = solved(source)
    again = copy.deepcopy(cell(theirs, "task-1-double"))
    again.id, again.source = "copied", "def double(x):\n    return x + x"
    theirs.cells.append(again)
    found = assemble(source, theirs)
    assert kinds(found) >= {("copied", "task-1-double")}
    at = names(found).index("task-1-double")
    assert names(found)[at : at + 3] == ["task-1-double", "copied", "task-1-check"]


def test_a_copied_test_is_left_out() -> None:
    source = task_lab()
    theirs = solved(source)
    again = copy.deepcopy(cell(theirs, "task-1-check"))
    again.id = "copied"
    theirs.cells.insert(0, again)
    found = assemble(source, theirs)
    assert "copied" not in names(found) and ("copied", "task-1-check") in kinds(found)


def test_cells_in_another_order_run_in_the_labs_and_are_named() -> None:
    source = task_lab()
    theirs = solved(source)
    moved = cell(theirs, "task-2-halve")
    theirs.cells.remove(moved)
    theirs.cells.insert(1, moved)
    found = assemble(source, theirs)
    assert names(found) == names(assemble(source))
    assert kinds(found) == {("moved", "task-2-halve")}


def test_added_cells_run_where_they_stand_and_changed_given_cells_run_again() -> None:
    source = task_lab()
    theirs = solved(source)
    theirs.cells.insert(0, new_code_cell("first = 1", id="first"))
    at = theirs.cells.index(cell(theirs, "task-1-double"))
    theirs.cells.insert(at, new_code_cell("mine = 2", id="mine"))
    theirs.cells.insert(at, new_markdown_cell("Notes.", id="notes"))
    cell(theirs, "switch").source = "USE_MINE = True"
    cell(theirs, "look").source = "import numpy\nprint(double(4))"
    assert any(step.name == "look" for step in assemble(source, theirs).steps), "it brings a name of the student's"
    cell(theirs, "look").source = "print(double(5))"
    found = assemble(source, theirs)
    assert names(found)[:4] == ["first", "setup", "mine", "task-1-double"]
    assert [(s.role, s.source) for s in found.steps if s.name == "switch"] == [
        ("given", "USE_MINE = False"), ("own", "USE_MINE = True"),
    ]  # fmt: skip
    assert not any(step.name == "look" for step in found.steps), "what only shows is not run for showing something else"
    assert not found.problems


@pytest.mark.parametrize("code", ["def double(x:\n  return", "x = 'open", "\0", "a b c", "return 1"])
def test_an_answer_that_is_no_python_is_named_with_its_line(code: str) -> None:
    source = task_lab()
    theirs = solved(source)
    cell(theirs, "task-1-double").source = code
    found = assemble(source, theirs)
    (problem,) = found.problems
    assert (problem.kind, problem.task) == ("syntax", "1") and "task-1-double" in problem.said


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("-" * 30_000 + "1", True),  # the parser's own limit
        ("%a\n" * 3_000, False),
        ("x = 1\n" * 20_000 + "%a\n" * 400, False),
        ("a?\n" * 1_000, False),
    ],
)
def test_a_cell_made_to_keep_the_grader_busy_does_not(code: str, told: bool) -> None:
    submission = handout(task_lab())
    cell(submission, "task-1-double")["source"] = code
    submission.cells.append(new_code_cell(code))
    began = time.process_time()
    found = assemble(task_lab(), submission)
    assert [bound(step.source) for step in found.steps if step.source == code] == [frozenset()] * 2
    assert time.process_time() - began < 2 * slowness()
    assert (("syntax", "task-1-double") in kinds(found)) == told


@pytest.mark.parametrize("code", ["await helper()", "%matplotlib inline\nx = 1", "!ls", "x = !ls", "helper?"])
def test_what_a_notebook_understands_is_no_syntax_error(code: str) -> None:
    source = task_lab()
    theirs = solved(source)
    cell(theirs, "task-1-double").source = code
    assert not assemble(source, theirs).problems


def test_an_answer_of_another_kind_of_cell_is_missing() -> None:
    source = task_lab()
    theirs = solved(source)
    cell(theirs, "task-1-double").cell_type = "markdown"
    assert ("missing", "task-1-double") in kinds(assemble(source, theirs))


def test_a_perfect_student_can_be_given_other_answers() -> None:
    source = task_lab()
    assert cell(solved(source, {"task-1-double": "x = 1"}), "task-1-double").source == "x = 1"
    assert answer_cells(source) == ["task-1-double", "task-2-halve", "task-2-why", "task-3-treble"]
    with pytest.raises(LabError, match="'task-7'"):
        solved(source, {"task-7": "x"})
