"""Points in a test cell: partial credit, messages, and nbgrader's view of them."""

from __future__ import annotations

import pickle
import sys
import warnings

import pytest

from underload.course.points import Earned, Points, card


def test_each_check_earns_its_points_or_says_why_not() -> None:
    points = Points(4)
    with points.check(1, "doubles"):
        assert 2 * 2 == 4
    with points.check(1.5, "halves"):
        raise AssertionError("half(3) is 1; it should be 1.5")
    with points.check(1.5, "goes on after a failure"):
        pass
    earned = points.earned()
    assert earned == 2.5 and repr(earned) == "2.5"
    assert [check.said for check in earned.checks] == ["", "half(3) is 1; it should be 1.5", ""]


def test_a_stub_is_open_and_not_failed() -> None:
    points = Points(1)
    with points.check(1, "written"):
        raise NotImplementedError("Task 1")
    (check,) = points.earned().checks
    assert check.missing and "not written yet" in check.said and "○" in card(points.earned())


@pytest.mark.parametrize("error", [ZeroDivisionError("division by zero"), SystemExit(3), RecursionError()])
def test_whatever_the_answer_raises_costs_its_check_alone(error: BaseException) -> None:
    points = Points(2)
    with points.check(1, "raises"):
        raise error
    with points.check(1, "passes"):
        pass
    assert points.earned() == 1
    assert type(error).__name__ in points.earned().checks[0].said


def test_the_line_of_the_answer_that_raised_is_named() -> None:
    names: dict[str, object] = {"Points": Points}
    exec(compile("def mine(x):\n    return 1 / x", "<cell task-1>", "exec"), names)
    exec(
        compile("points = Points(1)\nwith points.check(1, 'zero'):\n    mine(0)", "<cell task-1-check>", "exec"), names
    )
    (check,) = names["points"].checks  # type: ignore[attr-defined]
    assert "ZeroDivisionError" in check.said and "in mine, line 2" in check.said


def test_an_interrupt_is_not_a_failed_check() -> None:
    points = Points(1)
    with pytest.raises(KeyboardInterrupt), points.check(1, "stopped by a person"):
        raise KeyboardInterrupt


def test_what_is_printed_and_warned_is_on_the_card_and_not_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    points = Points(1)
    with points.check(1, "prints"):
        print("to say")
        print("to warn", file=sys.stderr)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    out, err = capsys.readouterr()
    assert out == err == ""
    printed = points.earned().checks[0].printed
    assert "to say" in printed and "to warn" in printed and "old" in printed


def test_checks_that_are_worth_more_than_the_cell_are_an_author_s_mistake() -> None:
    points = Points(1)
    for what in ("one", "two"):
        with points.check(1, what):
            pass
    with pytest.raises(ValueError, match="2 points and the cell 1"):
        points.earned()


def test_the_card_escapes_what_a_student_wrote_and_says_what_is_still_to_come() -> None:
    points = Points(3)
    with points.check(1, "<b>bold</b>"):
        raise AssertionError("<script>alert(1)</script>")
    shown = card(points.earned())
    assert "<script>" not in shown and "&lt;script&gt;" in shown and "<b>bold" not in shown
    assert "0 of 3 points" in shown and "2 more" in shown


def test_nbgrader_reads_the_points() -> None:
    utils = pytest.importorskip("nbgrader.utils")
    from nbformat.v4 import new_code_cell, new_output

    points = Points(4)
    with points.check(1.5, "passes"):
        pass
    cell = new_code_cell(
        metadata={"nbgrader": {"grade": True, "solution": False, "points": 4}},
        outputs=[new_output("execute_result", {"text/plain": repr(points.earned())}, execution_count=1)],
    )
    assert utils.determine_grade(cell) == (1.5, 4.0)
    cell.outputs[0].data["text/plain"] = repr(Points(4).earned())
    assert utils.determine_grade(cell) == (0.0, 4.0)


def test_hidden_inputs_are_the_same_until_a_class_sets_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    first, again = Points(1).draw().random(5), Points(1).draw().random(5)
    assert (first == again).all()
    monkeypatch.setattr("underload.course.points.hidden_seed", b"a class")
    assert (Points(1).draw().random(5) != first).all()


def test_earned_survives_a_pickle() -> None:
    points = Points(2)
    with points.check(1, "one"):
        pass
    found = pickle.loads(pickle.dumps(points.earned()))
    assert isinstance(found, Earned) and found == 1 and found.checks == points.earned().checks
