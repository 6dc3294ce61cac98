"""Whether the graders of all labs are right; and whether verifying would notice if one were not."""

from __future__ import annotations

from pathlib import Path

import pytest
from nbformat import NotebookNode
from pace import slowness
from sample_task_lab import task_lab

from underload.course import faults, write_notebook
from underload.course.verify import Verified, verify

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
LABS = sorted((ROOT / "labs").glob("*.ipynb"))
#: Processor seconds that grading a lab once may take on a machine like make.py's, where it is more than 2.
LONG = {
    "batching-trade-off": 4,
    "capacity": 10,
    "continuous-batching": 4,
    "hedging": 12,
    "paged-attention": 4,
    "tail": 6,
}


@pytest.mark.parametrize("lab", LABS, ids=lambda path: path.stem)
def test_the_grader_of_a_lab_is_right(lab: Path) -> None:
    found = verify(lab)
    print(f"{found.lab}: {found.wrong} wrong and {found.harmless} harmless answers, {found.seconds_each:.2f} s each")
    assert found.complaints == []
    assert found.loads == (), f"grading it loads {', '.join(found.loads)}"
    most = LONG.get(lab.stem, 2.0) * slowness()
    assert found.once < most, f"grading it once takes {found.once:.1f} s of a processor; here it may take {most:.1f}"


# ---- a grader that is wrong --------------------------------------------------------------------------------------


WRONG = """
[[wrong]]
task = "1"
name = "wrong {number}"
because = "a made-up mistake"
earns = {{ task-1-check = 0 }}
answer = '''def double(x): return x + {number} + 5'''
"""
HALVES = """
[[wrong]]
task = "2"
name = "whole halves {number}"
because = "divides whole numbers"
earns = {{ task-2-check = 1 }}
answer = '''def halve(x): return x // 2 + {number} * 0'''
"""
TREBLES = """
[[wrong]]
task = "3"
name = "adds {number}"
because = "adds"
earns = {{ task-3-check = 0 }}
answer = '''def treble(x): return x + {number} + 9'''
"""
ALL = "".join(text.format(number=number) for text in (WRONG, HALVES, TREBLES) for number in range(6))


def cell(notebook: NotebookNode, name: str) -> NotebookNode:
    return next(c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade_id") == name)


def check(tmp_path: Path, lab: NotebookNode, wrong: str = ALL) -> Verified:
    write_notebook(lab, tmp_path / "labs" / "counting.ipynb")
    where = tmp_path / "tests" / "course" / "counting.toml"
    where.parent.mkdir(parents=True)
    where.write_text(wrong, encoding="utf-8")
    return verify(tmp_path / "labs" / "counting.ipynb")


def test_a_sound_lab_has_no_complaints(tmp_path: Path) -> None:
    assert faults(task_lab()) == []
    found = check(tmp_path, task_lab())
    assert found.complaints == [] and (found.wrong, found.parts, found.points, found.bonus) == (18, 4, 5, 1)


def test_a_check_that_cannot_fail_is_noticed(tmp_path: Path) -> None:
    lab = task_lab()
    test = cell(lab, "task-2-check")
    test.source = test.source.replace("assert halve(4) == 2", "pass")
    found = check(tmp_path, lab, ALL)
    assert any("the hand-out earns 1 points in task-2-check" in said for said in found.complaints)


def test_a_wrong_answer_that_earns_too_much_is_noticed(tmp_path: Path) -> None:
    lab = task_lab()
    test = cell(lab, "task-2-check")
    test.source = test.source.replace("assert halve(3) == 1.5", "assert halve(3) in (1, 1.5)")
    found = check(tmp_path, lab)
    assert sum("task-2-check earned 2 points and should have 1" in said for said in found.complaints) == 6


def test_a_task_that_costs_another_s_points_is_noticed(tmp_path: Path) -> None:
    lab = task_lab()
    test = cell(lab, "task-2-check")
    test.source = test.source.replace("assert halve(4) == 2", "assert halve(double(2)) == 2")
    found = check(tmp_path, lab)
    assert any("task 1" in said and "task-2-check earned 1 points" in said for said in found.complaints)


def costs(found: Verified, part: str) -> int:
    """In how many answers of task 1 a part of another task lost points."""
    return sum(said.startswith("task 1") and f"': {part} earned" in said for said in found.complaints)


def test_what_an_answer_reaches_by_way_of_others_runs_with_each_of_its_wrong_answers(tmp_path: Path) -> None:
    """By a given function that stands before the answer, and by another task's answer that calls that."""
    lab = task_lab()
    cell(lab, "task-2-halve").source = cell(lab, "task-2-halve").source.replace("x / 2", "two(x) / 4")
    setup = next(one for one in lab.cells if one.id == "setup")
    setup.source += "\n\ndef two(x):\n    return double(x)"
    found = check(tmp_path, lab)
    assert (costs(found, "task-2-check"), costs(found, "task-3-check")) == (6, 0)


def test_what_an_answer_reaches_unseen_is_noticed_by_one_of_its_wrong_answers(tmp_path: Path) -> None:
    lab = task_lab()
    test = cell(lab, "task-3-check")
    test.source = test.source.replace("treble(2) == 6", "treble(globals()['dou' + 'ble'](1)) == 6")
    assert costs(check(tmp_path, lab), "task-3-check") == 1


def test_a_lab_whose_own_cells_fail_is_a_complaint(tmp_path: Path) -> None:
    lab = task_lab()
    next(one for one in lab.cells if one.id == "setup").source += "\n1 / 0"
    (said,) = check(tmp_path, lab).complaints
    assert "cell setup fails before any answer: ZeroDivisionError" in said


def test_an_answer_that_loses_nothing_or_too_few_answers_are_noticed(tmp_path: Path) -> None:
    right = WRONG.format(number=99).replace("x + 99 + 5", "x + x")
    found = check(tmp_path, task_lab(), ALL.replace("wrong 5", "wrong five", 1).split("[[wrong]]", 2)[2].join(
        ["[[wrong]]", right]))  # fmt: skip
    assert any("'wrong 99'" in said and "earned 2 points and should have 0" in said for said in found.complaints)


def test_fewer_than_six_wrong_answers_are_noticed(tmp_path: Path) -> None:
    found = check(tmp_path, task_lab(), ALL[: ALL.rindex("[[wrong]]")])
    assert found.complaints == ["task 3 has 5 wrong answers; it needs 6"]


def test_stored_marks_that_are_not_full_are_noticed(tmp_path: Path) -> None:
    lab = task_lab()
    cell(lab, "task-1-check").outputs[0].data["text/plain"] = "1"
    assert check(tmp_path, lab).complaints == [
        "the stored run gives task-1-check 1 of 2 points; run python -m underload.course.store labs/counting.ipynb"
    ]


def test_hidden_inputs_that_the_solution_fails_are_noticed(tmp_path: Path) -> None:
    lab = task_lab()
    test = cell(lab, "task-1-check")
    test.source = test.source.replace("assert double(x) == 2 * x", "assert x != points.draw().integers(-99, 99)")
    found = check(tmp_path, lab)
    assert any(said.startswith("the solution earns 1 of task-1-check") for said in found.complaints)


def test_use_of_the_library_s_version_is_seen(tmp_path: Path) -> None:
    used = WRONG.format(number=7).replace("def double(x): return x + 7 + 5", (
        "from underload import metrics\ndef double(x): return 4 * metrics.mean([x, 0])"))  # fmt: skip
    used = used.rstrip() + '\nuses = "underload.metrics.mean"\n'
    assert check(tmp_path, task_lab(), ALL + used).complaints == []


def test_a_source_with_faults_is_not_run(tmp_path: Path) -> None:
    lab = task_lab()
    cell(lab, "task-1-check").source += "\n'no points'"
    found = check(tmp_path, lab)
    assert len(found.complaints) == 1 and "must end in points.earned()" in found.complaints[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lab: lab.metadata.underload.tasks.pop("2"), "task 2 has no goal"),
        (lambda lab: cell(lab, "task-1-double").metadata.tags.append("show"), "tagged show"),
        (lambda lab: cell(lab, "task-1-check").metadata.update(tags=["live"]), "nbval-check-output"),
        (lambda lab: cell(lab, "task-1-check").metadata.nbgrader.update(points=3), "must make Points(3)"),
        (lambda lab: cell(lab, "task-2-why").update(source="Why?\n### BEGIN SOLUTION\nB.\n### END SOLUTION"), "RUBRIC"),
        (lambda lab: lab.cells[1].update(source="SEED = 0\nSEED = 1"), "SEED is set in 2 places"),
    ],
)
def test_what_a_graded_lab_needs_is_asked_for(change: object, said: str) -> None:
    lab = task_lab()
    change(lab)  # type: ignore[operator]
    assert any(said in fault for fault in faults(lab)), faults(lab)
