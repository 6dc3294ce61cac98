"""What a student gets back: their points, what each check said, what to do; nothing hidden, nobody else."""

from __future__ import annotations

import copy
import dataclasses
import re
from typing import Any

import pytest
from made_up_results import LAB, WHY, lab, lab_outline, part, refused, result
from nbformat import NotebookNode

from underload.course.assemble import Problem
from underload.course.feedback import feedback, visible_checks
from underload.course.marking import Mark, answer_digest
from underload.course.outline import outline
from underload.course.points import Check
from underload.course.results import CellRun, Result

SEEN, HIDDEN = "SEEN: got 3, wanted 4", "HIDDEN: with 17 requests got 3, wanted 4"


def words(result_: Result, **more: Any) -> str:
    """The page's text, without its style and tags, one space between words."""
    import html

    text = feedback(result_, more.pop("outline", lab_outline()), **{"source": lab(), **more})
    text = re.sub(r"<(style|script)>.*?</\1>", " ", text, flags=re.DOTALL)
    text = re.sub(r'<[^>]*aria-label="(passed|failed|not written yet)"[^>]*>', r" \1 ", text)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def failed() -> Result:
    checks = (Check("three requests", 1, 0, SEEN, "printed here"), Check("one request", 1, 0, HIDDEN, "and there"))
    return dataclasses.replace(result("ann"), parts=(part("task-1-check", 0, checks=checks), part("task-2-check", 4)))


def test_points_stand_at_the_top_and_at_each_task() -> None:
    text = words(result("ann", 1, 4, 2, 3))
    assert "7 of 8" in text and "3 of 3" in text and "Task 1. The mean wait 1 2" in text
    assert "1 of 2 Task 1. The mean wait The goal: compute a mean wait." in text


def test_each_check_says_whether_it_passed() -> None:
    text = words(result("ann", 1))
    assert "passed ✓ 1 of 1 three requests" in text and "failed ✗ 0 of 1 one request" in text
    untouched = (Check("three requests", 1, 0, "not written yet", missing=True),)
    text = words(dataclasses.replace(result("ann"), parts=(part("task-1-check", 0, checks=untouched),)))
    assert "not written yet ○ 0 of 1 three requests" in text


def test_a_hidden_check_is_named_and_what_it_said_is_kept_until_it_is_asked_for() -> None:
    text = words(failed())
    assert SEEN in text and "printed here" in text
    assert HIDDEN not in text and "and there" not in text and "failed ✗ 0 of 1 one request" in text
    assert "One check that failed is not in your notebook" in text
    text = words(failed(), hidden_messages=True)
    assert SEEN in text and HIDDEN in text and "is not in your notebook" not in text


def test_without_the_labs_notebook_every_check_counts_as_hidden() -> None:
    text = words(failed(), source=None)
    assert SEEN not in text and HIDDEN not in text and "2 of the checks that failed are not in your notebook" in text


def test_visible_checks_are_those_outside_hidden_tests_also_with_names_made_when_they_run() -> None:
    found = visible_checks(lab())
    assert [pattern.pattern for pattern in found["task-1-check"]] == [r"three\ requests"]
    source = lab().copy()
    source = type(source)({**source, "cells": [type(cell)(cell) for cell in source.cells]})
    check = next(cell for cell in source.cells if cell.id == "task-1-check")
    check.source = (
        "for n in (1, 2):\n    with points.check(0.5, f'{n} requests at once'):\n        pass\n"
        "with points.check(worth=1, what=name):\n    pass"
    )
    [pattern] = visible_checks(source)["task-1-check"]
    assert pattern.fullmatch("2 requests at once") and not pattern.fullmatch("2 requests")


def test_a_problem_says_what_to_do_next_time_and_stands_with_its_task() -> None:
    problems = (
        Problem("syntax", "task-2-solution", "2", "task-2-solution, line 3: invalid syntax"),
        Problem("moved", "setup", None, "the cell setup was moved; it was run at its place in the lab"),
    )
    text = words(dataclasses.replace(result("ann"), problems=problems))
    assert "The cell setup was moved" in text and "Leave the lab's cells in their order" in text
    assert text.index("invalid syntax") > text.index("The goal: simulate a queue")
    assert text.index("Restart and Run All") > text.index("invalid syntax")


def test_a_reason_for_lost_points_is_told() -> None:
    lost = part("task-2-check", 0, said="the answer used underload.queueing.serve")
    assert "The answer used underload.queueing.serve" in words(dataclasses.replace(result("ann"), parts=(lost,)))


def test_a_part_that_earns_nothing_though_its_checks_passed_says_so() -> None:
    checks = (Check("an idle server", 2, 2), Check("a busy server", 2, 2))
    lost = part("task-2-check", 0, said="the answer used underload.queueing.serve", checks=checks)
    made = dataclasses.replace(result("ann"), parts=(lost,))
    text = words(made)
    assert "So this part earns 0 of 4." in text and "the points beside them are not given" in text
    page = feedback(made, lab_outline(), source=lab())
    assert '<ul class="checks void">' in page and page.count("<s>2 of 2</s>") == 2
    fair = feedback(result("ann", 1), lab_outline(), source=lab())
    assert "So this part" not in fair and "<s>" not in fair


def test_parts_of_a_task_are_called_by_what_they_check() -> None:
    source = copy.deepcopy(lab())
    place = next(index for index, cell in enumerate(source.cells) if cell.id == "task-2-check") + 1
    guess, made = (copy.deepcopy(source.cells[place - offset]) for offset in (2, 1))
    guess.source = "### BEGIN SOLUTION\nmy_guess = 3\n### END SOLUTION"
    guess.metadata = NotebookNode(
        {"nbgrader": {**guess.metadata["nbgrader"], "grade_id": "task-2-prediction"}, "tags": ["prediction"]}
    )
    made.metadata["nbgrader"]["grade_id"] = "task-2-prediction-check"
    source.cells[place:place] = [guess, made]
    two = (part("task-2-check", 4), dataclasses.replace(part("task-2-check", 4), name="task-2-prediction-check"))
    text = words(
        dataclasses.replace(result("ann", code={"task-2-prediction": "my_guess = 9"}), parts=two),
        source=source,
        outline=outline(source),
    )
    assert "4 of 4 serve" in text and "4 of 4 Your prediction" in text and "Your code: your prediction" in text
    assert "check" not in text.split("How to read this")[0].replace("checks", "")


def test_code_is_shown_with_its_error_and_what_it_printed() -> None:
    made = dataclasses.replace(
        result("ann", code={"task-2-solution": "def serve(a, b):\n    return 1 / 0", "helper": "x = 5"}),
        cells=(CellRun("task-2-solution", "ZeroDivisionError: division by zero", "so far so good\n"),),
    )
    text = words(made)
    assert "Your code: serve stopped with an error" in text and "return 1 / 0" in text
    assert "ZeroDivisionError: division by zero" in text and "so far so good" in text
    assert text.index("Other code of yours") < text.index("Your code: a cell of your own") < text.index("x = 5")
    assert "task-2" not in text


@pytest.mark.parametrize(
    ("ended", "told"),
    [("time", "did not come to an end"), ("memory", "used more memory"), ("died", "ended the Python process")],
)
def test_a_cell_that_was_stopped_says_why(ended: Any, told: str) -> None:
    made = dataclasses.replace(
        result("ann", code={"task-2-solution": "while True: pass"}), cells=(CellRun("task-2-solution", ended=ended),)
    )
    assert told in words(made) and "was stopped" in words(made)


def test_a_refused_submission_has_a_reason_and_what_helps_and_no_traceback() -> None:
    text = words(refused("ann", "the notebook cannot be read\nTraceback (most recent call last):\n  File x"))
    assert "The notebook cannot be read" in text and "Restart and Run All" in text
    assert "Traceback" not in text and "0 of" not in text


def test_an_open_answer_has_its_points_by_criterion_and_its_comment() -> None:
    answer = "It grows."
    marked = result("ann", why=1, answer=answer)
    marked = dataclasses.replace(
        marked, parts=tuple(dataclasses.replace(p, comment="How fast?") if p.manual else p for p in marked.parts)
    )
    mark = Mark("ann", LAB, "task-3-why", answer_digest(answer), 1, (1.0, 0.0), "How fast?")
    text = words(marked, marks=[mark])
    assert "It grows." in text and "Comment How fast?" in text
    assert "says that requests come faster than they are served 1 of 1" in text
    assert "says that the queue therefore never stops growing 0 of 1" in text


def test_an_open_answer_that_waits_for_its_mark_says_so_and_shows_no_0() -> None:
    text = words(result("ann"))
    assert "1 open answer has not been marked yet; its points come on top." in text and "Not marked yet." in text
    assert "– of 2 Task 3. Too much" in text and "points so far" in text


def test_neither_model_answers_nor_notes_nor_paths_are_on_the_page() -> None:
    made = dataclasses.replace(
        result("ann"), notes=("it is the hand-out of 'bob' by its metadata",), path="teacher/bob/queue.ipynb"
    )
    text = feedback(made, lab_outline(), source=lab())
    model = WHY.splitlines()[1]
    assert model not in text and "bob" not in text and "teacher" not in text
    assert "max(free, came)" not in text


def test_a_lab_that_is_not_known_still_makes_a_page() -> None:
    assert "the file is empty" in feedback(refused("ann", lab=""), None).lower()


def test_only_the_marks_of_the_own_answer_are_looked_at() -> None:
    other = Mark("bob", LAB, "task-3-why", answer_digest("Something else."), 2, (1.0, 1.0), "BOBS COMMENT")
    assert "BOBS COMMENT" not in words(result("ann"), marks=[other])
