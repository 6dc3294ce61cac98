"""Marking open answers: what the page holds, what a file of marks may say, how marks get into results and stay."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, open_browser
from made_up_results import LAB, lab, lab_outline, outlines, part, refused, result
from nbformat.v4 import new_code_cell

from underload.course.marking import (
    KIND,
    Mark,
    answer_digest,
    marking_page,
    merge,
    passed_over,
    question,
    read_marks,
    said,
)
from underload.course.marks import LabError
from underload.course.report import write_reports
from underload.course.results import Result
from underload.course.titles import plain

WHY = "task-3-why"
ONE, OTHER, THIRD = "It grows without end.", "Nothing happens at all.", "More comes in than goes out."


def mark(student: str, points: float, answer: str, **more: Any) -> Mark:
    return Mark(student, LAB, WHY, answer_digest(answer), points, **{"file": "marks.json", **more})


def why(results: list[Result], student: str) -> Any:
    found = next(result for result in results if result.student == student)
    return next(part for part in found.parts if part.name == WHY)


def data_of(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


# ---- merging -------------------------------------------------------------------------------------------------------


def test_a_mark_gives_its_points_and_its_comment_and_changes_nothing_else() -> None:
    before = [result("ann", answer=ONE), result("bob", answer=OTHER)]
    after = merge(before, [mark("ann", 1.5, ONE, comment="Say how fast.")])
    assert (why(after, "ann").earned, why(after, "ann").comment) == (1.5, "Say how fast.")
    assert after[0].earned == before[0].earned + 1.5 and after[0].unmarked == ()
    assert after[1] == before[1] and before[0].unmarked == (WHY,)


def test_merging_again_changes_nothing() -> None:
    marks = [mark("ann", 1, ONE), mark("bob", 2, "something else")]
    once = merge([result("ann", answer=ONE), result("bob", answer=OTHER)], marks)
    assert merge(once, marks) == once


def test_equal_answers_get_equal_marks_also_one_that_came_later() -> None:
    after = merge([result("ann", answer=ONE), result("bob", answer=f"  {ONE} \n")], [mark("ann", 2, ONE)])
    assert why(after, "bob").earned == 2


def test_an_answer_that_changed_since_needs_marking_again_and_says_so() -> None:
    after = merge([result("ann", answer=f"{ONE} Or so.")], [mark("ann", 2, ONE)])
    assert why(after, "ann").earned is None
    assert after[0].notes == (f"the open answer {WHY} has changed since it was marked; it needs marking again",)


def test_an_answer_that_was_marked_again_after_it_changed_has_no_such_note() -> None:
    after = merge([result("ann", answer=OTHER)], [mark("ann", 2, ONE), mark("ann", 0.5, OTHER)])
    assert why(after, "ann").earned == 0.5 and after[0].notes == ()


def test_white_space_at_the_ends_does_not_change_an_answer() -> None:
    assert answer_digest("one \ntwo\n\n") == answer_digest("\none\ntwo")
    assert answer_digest("one\ntwo") != answer_digest("one two")


def test_markers_who_agree_are_one_and_both_comments_stay() -> None:
    marks = [mark("ann", 1, ONE, comment="Good."), mark("ann", 1, ONE, comment="How fast?", file="b.json")]
    assert why(merge([result("ann", answer=ONE)], marks), "ann").comment == "Good.\n\nHow fast?"


def test_markers_who_disagree_are_named_and_neither_wins() -> None:
    marks = [mark("ann", 1, ONE, marker="KL"), mark("ann", 2, ONE, file="b.json", marker="MN")]
    with pytest.raises(LabError, match=r"'ann'.*disagree: 1 points in marks.json \(KL\) and 2 points in b.json \(MN\)"):
        merge([result("ann", answer=ONE)], marks)


def test_equal_answers_that_were_marked_differently_are_a_disagreement() -> None:
    with pytest.raises(LabError, match="'ann', 'bob': markers disagree"):
        merge([result("ann", answer=ONE), result("bob", answer=ONE)], [mark("ann", 1, ONE), mark("bob", 2, ONE)])


@pytest.mark.parametrize(
    ("given", "said_so"),
    [
        (dataclasses.replace(mark("ann", 1, ONE), part="task-9"), r"no open answer 'task-9'; it has: task-3-why"),
        (dataclasses.replace(mark("ann", 1, ONE), part="task-1-check"), r"no open answer 'task-1-check'"),
        (mark("ann", 2.5, ONE), r"2.5 points for 'ann' in task-3-why; it can have 0 to 2"),
        (mark("ann", -1, ONE), r"-1 points for 'ann' in task-3-why; it can have 0 to 2"),
    ],
)
def test_a_mark_that_does_not_fit_is_named_with_its_file(given: Mark, said_so: str) -> None:
    with pytest.raises(LabError, match=rf"nothing was merged: marks.json: .*{said_so}"):
        merge([result("ann", answer=ONE)], [given])


def test_all_marks_that_do_not_fit_are_named_at_once() -> None:
    with pytest.raises(LabError, match=r"'task-9'.*2.5 points.*move them out of marks/"):
        merge(
            [result("ann", answer=ONE)],
            [dataclasses.replace(mark("ann", 1, ONE), part="task-9"), mark("ann", 2.5, ONE)],
        )


def test_marks_of_students_and_labs_that_are_gone_block_nothing_and_are_told() -> None:
    results = [result("ann", answer=ONE), result("bob", answer=OTHER)]
    marks = [mark("ann", 1, ONE), mark("zoe", 2, OTHER), mark("yan", 0, THIRD)]
    marks.append(dataclasses.replace(mark("ann", 1, ONE), lab="private"))
    after = merge(results, marks)
    assert why(after, "ann").earned == 1 and after[0].notes == after[1].notes == ()
    assert why(after, "bob").earned == 2, "the mark of somebody who is gone holds for an equal answer"
    one, other = passed_over(results, marks)
    assert "no submission of queue by zoe, yan any more" in one and "equal answers of others" in one
    assert "those of private were passed over, which is not graded in this run" in other
    assert passed_over(results, marks[:1]) == [] and passed_over([refused("ann")], marks[:1]) == []


def test_a_mark_of_somebody_gone_is_checked_all_the_same() -> None:
    with pytest.raises(LabError, match=r"2.5 points for 'zoe'"):
        merge([result("ann", answer=ONE)], [mark("zoe", 2.5, OTHER)])
    with pytest.raises(LabError, match="'zoe', 'ann': markers disagree"):
        merge([result("ann", answer=ONE)], [mark("zoe", 2, ONE), mark("ann", 1, ONE)])


def test_a_marker_s_later_file_holds_and_others_still_disagree() -> None:
    def at(hour: int, points: float, marker: str = "KL") -> Mark:
        return mark("ann", points, ONE, marker=marker, saved=f"2026-11-30T{hour:02}:00:00.000Z", file=f"{hour}.json")

    for marks in ([at(9, 1), at(10, 2)], [at(10, 2), at(9, 1)]):
        assert why(merge([result("ann", answer=ONE)], marks), "ann").earned == 2
    for marks in ([at(9, 1), at(10, 2, "MN")], [at(9, 1, ""), at(10, 2, "")], [at(9, 1), mark("ann", 2, ONE)]):
        with pytest.raises(LabError, match="markers disagree"):
            merge([result("ann", answer=ONE)], marks)


def test_a_mark_of_a_submission_that_is_refused_now_is_passed_over() -> None:
    assert merge([refused("ann")], [mark("ann", 1, ONE)]) == [refused("ann")]


def test_an_empty_answer_keeps_its_0_whatever_marks_other_empty_answers_have() -> None:
    empty = dataclasses.replace(result("ann"), parts=(part(WHY, 0, answer="", said="nothing was written"),))
    assert merge([empty], [mark("ann", 2, "")])[0].parts[0].earned == 0


# ---- files ---------------------------------------------------------------------------------------------------------


def saved(path: Path, *entries: dict[str, Any], **more: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"kind": KIND, "version": 1, "marker": "KL", "marks": list(entries), **more}))
    return path


def entry(student: str, points: Any, answer: str, **more: Any) -> dict[str, Any]:
    return {
        "student": student, "lab": LAB, "part": WHY, "digest": answer_digest(answer), "points": points,
        "criteria": [points, 0], "comment": "", **more,
    }  # fmt: skip


def test_a_file_of_marks_is_read_as_it_was_saved(tmp_path: Path) -> None:
    found = read_marks(
        saved(tmp_path / "m.json", entry("ann", 1, ONE, comment="Ja."), entry("bob", 0, OTHER, marker="X"))
    )
    assert found == [
        Mark("ann", LAB, WHY, answer_digest(ONE), 1.0, (1.0, 0.0), "Ja.", "KL", "m.json"),
        Mark("bob", LAB, WHY, answer_digest(OTHER), 0.0, (0.0, 0.0), "", "X", "m.json"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}",
        '{"kind": "underload-marks", "version": 2, "marks": []}',
        '{"kind": "underload-marks", "version": 1}',
        json.dumps({"kind": KIND, "version": 1, "marks": [{"student": "ann"}]}),
        json.dumps({"kind": KIND, "version": 1, "marks": [entry("ann", "two", ONE)]}),
        json.dumps({"kind": KIND, "version": 1, "marks": [entry("ann", float("nan"), ONE)]}),
        json.dumps({"kind": KIND, "version": 1, "marks": [entry("ann", True, ONE)]}),
        json.dumps({"kind": KIND, "version": 1, "marks": [entry(7, 1, ONE)]}),  # type: ignore[arg-type]
        json.dumps({"kind": KIND, "version": 1, "marks": 5}),
        "\xff",
    ],
)  # fmt: skip
def test_a_file_that_holds_no_marks_is_refused_with_a_remedy(tmp_path: Path, text: str) -> None:
    path = tmp_path / "m.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(LabError, match=r"m\.json is no file of marks \(.+\); use one that 'Save marks'"):
        read_marks(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="no file of marks"):
        read_marks(tmp_path / "none.json")


def test_reports_pick_up_marks_beside_them_and_survive_grading_again(tmp_path: Path) -> None:
    results = [result("ann", answer=ONE), result("bob", answer=OTHER)]
    assert write_reports(results, outlines(), tmp_path).unmarked == 2
    saved(tmp_path / "marks" / "kl.json", entry("ann", 1, ONE))
    elsewhere = saved(tmp_path / "elsewhere.json", entry("bob", 2, OTHER))
    made = write_reports(results, outlines(), tmp_path, marks=[elsewhere])
    assert made.unmarked == 0 and [one.earned for one in made.results] == [7.0, 8.0]
    changed = [result("ann", answer=THIRD), results[1]]
    again = write_reports(changed, outlines(), tmp_path, marks=[elsewhere, tmp_path / "marks" / "kl.json"])
    assert again.unmarked == 1 and "needs marking again" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_marks_that_were_named_once_are_there_for_every_later_run(tmp_path: Path) -> None:
    results = [result("ann", answer=ONE), result("bob", answer=OTHER)]
    one = saved(tmp_path / "elsewhere" / "marks.json", entry("ann", 1, ONE))
    other = saved(tmp_path / "mn" / "marks.json", entry("bob", 2, OTHER))
    out = tmp_path / "out"
    for _ in range(2):
        assert write_reports(results, outlines(), out, marks=[one, other]).unmarked == 0
    assert len(list((out / "marks").iterdir())) == 2, "the same content was copied again"
    kept = (out / "marks" / "marks.json").read_bytes()
    assert kept == one.read_bytes()
    assert write_reports(results, outlines(), out).unmarked == 0
    assert write_reports(results, outlines(), out, marks=[out / "marks" / "marks.json"]).unmarked == 0
    assert len(list((out / "marks").iterdir())) == 2


def test_marks_that_do_not_fit_are_not_kept(tmp_path: Path) -> None:
    bad = saved(tmp_path / "bad.json", entry("ann", 9, ONE))
    with pytest.raises(LabError, match="9 points"):
        write_reports([result("ann", answer=ONE)], outlines(), tmp_path / "out", marks=[bad])
    assert not (tmp_path / "out" / "marks").exists()


def test_a_missing_student_is_told_and_the_report_written(tmp_path: Path) -> None:
    saved(tmp_path / "marks" / "m.json", entry("zoe", 1, THIRD), entry("ann", 2, ONE))
    made = write_reports([result("ann", answer=ONE)], outlines(), tmp_path)
    assert made.unmarked == 0 and any("by zoe any more" in text for text in made.said)
    assert "by zoe any more" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_marks_that_do_not_fit_leave_the_reports_as_they_were(tmp_path: Path) -> None:
    write_reports([result("ann", answer=ONE)], outlines(), tmp_path)
    before = (tmp_path / "marks.csv").read_text()
    saved(tmp_path / "marks" / "kl.json", entry("ann", 9, ONE))
    with pytest.raises(LabError, match="9 points"):
        write_reports([result("ann", 0, answer=ONE)], outlines(), tmp_path)
    assert (tmp_path / "marks.csv").read_text() == before


# ---- the page --------------------------------------------------------------------------------------------------------


def test_the_page_holds_each_answer_once_with_its_question_model_and_rubric() -> None:
    results = [
        result("ann", answer=ONE),
        result("bob", answer=ONE + "\n"),
        result("cleo", answer=OTHER),
        refused("dan"),
    ]
    results.append(result("eve", answer="", why=0))
    page = marking_page(results, outlines(), sources={LAB: lab()})
    assert page is not None
    [asked] = data_of(page)["questions"]
    assert asked["question"].startswith("Task 3. Too much") and "load of 1.2" in asked["question"]
    assert "SOLUTION" not in asked["question"]
    assert asked["model"].startswith("The queue grows") and "RUBRIC" not in asked["model"]
    assert [one["points"] for one in asked["rubric"]] == [1, 1]
    assert {one["text"]: one["students"] for one in asked["answers"]} == {ONE: ["ann", "bob"], OTHER: ["cleo"]}


def test_what_the_task_s_cells_had_printed_stands_beside_the_answer() -> None:
    source = copy.deepcopy(lab())
    place = next(index for index, cell in enumerate(source.cells) if cell.id == "three")
    for name, offset in (("three-real", 1), ("three-picture", 2), ("two-real", 0)):
        cell = new_code_cell("print(1)", id=name, metadata={"tags": ["show"]})
        source.cells.insert(place + offset, cell)
        place += offset == 0
    results = [
        result("ann", answer=ONE, printed={"three-real": "12.5 ms\n", "two-real": "of another task"}),
        result("bob", answer=ONE),
        result("cleo", answer=OTHER, printed={"three-real": "z" * 9_000, "three-picture": "<script>"}),
    ]
    page = marking_page(results, outlines(), sources={LAB: source})
    assert page is not None and '"<script>"' not in page
    printed = {one["text"]: one["printed"] for one in data_of(page)["questions"][0]["answers"]}
    assert printed[ONE] == [["12.5 ms"], []]
    assert printed[OTHER][0][1] == "<script>" and len(printed[OTHER][0][0]) < 1_600
    page = marking_page(results, outlines(), sources={LAB: lab()})
    assert page is not None and all("printed" not in one for one in data_of(page)["questions"][0]["answers"])


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("## On *your* machine, **why** and `a*b*c`?", "On your machine, why and a*b*c?"),
        (
            "that \\*your\\* is 2 * 3 * 4 and snake_case_name",
            "that *your* is 2 * 3 * 4 and snake_case_name",
        ),
        ("see [the chapter](x.md), {term}`TTFT` and $T(B)$", "see the chapter, TTFT and T(B)"),
        ("* one\n* two _here_", "* one\n* two here"),
        ("```python\nx = a * b * c\n```", "x = a * b * c"),
    ],
)
def test_markdown_is_shown_as_it_reads(written: str, read: str) -> None:
    assert plain(written) == read


def test_the_order_of_the_answers_is_the_same_each_time_and_not_that_of_the_names() -> None:
    texts = [f"Answer number {number}." for number in range(12)]
    one = [result(f"s{number:02}", answer=text) for number, text in enumerate(texts)]
    orders = []
    for results in (one, one[::-1]):
        page = marking_page(results, outlines())
        assert page is not None
        orders.append([answer["text"] for answer in data_of(page)["questions"][0]["answers"]])
    assert orders[0] == orders[1] != texts


def test_there_is_no_page_where_there_is_nothing_to_mark(tmp_path: Path) -> None:
    assert marking_page([refused("ann"), result("bob", answer="", why=0)], outlines()) is None
    write_reports([result("ann", answer=ONE)], outlines(), tmp_path)
    assert (tmp_path / "marking.html").is_file()
    write_reports([refused("ann")], outlines(), tmp_path)
    assert not (tmp_path / "marking.html").exists(), "the page of an earlier run would show answers that are gone"


def test_no_answer_can_break_out_of_the_page() -> None:
    bad = "</script><script>alert(1)</script><!-- & <b>bold</b> \u2028"
    page = marking_page([result("<i>ann</i>", answer=bad)], outlines(), sources={LAB: lab()})
    assert page is not None
    assert "alert(1)</script" not in page and "<i>ann" not in page
    assert data_of(page)["questions"][0]["answers"][0]["text"] == bad.strip()
    assert "default-src &#39;none&#39;" in page and "http://" not in page and "https://" not in page


def test_marks_given_without_the_rubrics_lines_are_shown_with_them_when_they_fit() -> None:
    why_part = lab_outline().part(WHY)
    assert said(mark("ann", 1, ONE, criteria=(1.0, 0.0)), why_part)[0][1] == "1 of 1"
    assert said(mark("ann", 1, ONE, criteria=()), why_part) == []


def test_a_question_is_what_stands_before_it_and_in_it() -> None:
    assert question(lab(), "no such part") == ""


# ---- in a browser ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Any:
    with open_browser() as opened:
        yield opened


def start(browser: Browser, folder: Path, results: list[Result]) -> Any:
    """Open the marking page of these results with nothing remembered; returns what it was made from."""
    write_reports(results, outlines(), folder, sources={LAB: lab()})
    browser.size(1280)
    browser.driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder / "down")}
    )
    browser.open(folder / "marking.html")
    browser.run("localStorage.clear()")
    browser.open(folder / "marking.html")
    return data_of((folder / "marking.html").read_text(encoding="utf-8"))["questions"][0]["answers"]


def download(folder: Path) -> Path:
    import time

    for _ in range(100):
        done = list((folder / "down").glob("marks*.json")) if (folder / "down").is_dir() else []
        if done and done[0].stat().st_size:
            (folder / "marks").mkdir(exist_ok=True)
            return done[0].rename(folder / "marks" / "marks.json")
        time.sleep(0.1)
    raise AssertionError("nothing was saved")


def text(browser: Browser, name: str) -> str:
    return str(browser.run("return document.getElementById(arguments[0]).textContent", name))


def test_two_answers_are_marked_by_keyboard_saved_and_merged(browser: Browser, tmp_path: Path) -> None:
    results = [result("ann", answer=ONE), result("bob", answer=OTHER), result("cleo", answer=ONE)]
    answers = start(browser, tmp_path, results)
    assert text(browser, "progress") == "0 of 2 marked" and "ann" not in browser.run("return document.body.innerText")
    browser.press("1")
    assert text(browser, "total") == "1 of 2 points" and text(browser, "progress") == "1 of 2 marked"
    browser.press("c", "Why?")
    assert browser.run("return document.activeElement.id") == "comment"
    from selenium.webdriver import Keys

    browser.press(Keys.ESCAPE, "n")
    assert text(browser, "which") == "Answer 2 of 2" and text(browser, "total") == "Not marked yet"
    browser.press("1", "2", "2", "1")
    assert text(browser, "total") == "0 of 2 points"
    browser.press("a", "s")
    assert text(browser, "progress") == "2 of 2 marked"
    assert "Write your name" in text(browser, "said") and not (tmp_path / "down").exists()
    assert browser.run("return document.activeElement.id") == "marker"
    browser.press("KL", Keys.ENTER)
    assert not browser.complaints()
    kept = json.loads(download(tmp_path).read_text())
    assert kept["marker"] == "KL" and re.match(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d", kept["saved"])
    made = write_reports(results, outlines(), tmp_path, sources={LAB: lab()})
    assert made.unmarked == 0
    expected = {answers[0]["text"]: (1.0, "Why?"), answers[1]["text"]: (2.0, "")}
    for one in results:
        assert (why(list(made.results), one.student).earned, why(list(made.results), one.student).comment) == expected[
            next(part.answer for part in one.parts if part.name == WHY)
        ]


def test_what_was_marked_is_kept_in_the_browser_and_can_be_taken_back(browser: Browser, tmp_path: Path) -> None:
    start(browser, tmp_path, [result("ann", answer=ONE), result("bob", answer=OTHER)])
    browser.press("0", "n", "c", "half a thought")
    browser.open(tmp_path / "marking.html")
    assert text(browser, "progress") == "1 of 2 marked" and "1 answer was marked in this browser" in text(
        browser, "said"
    )
    assert browser.run("return document.getElementById('comment').value") == "half a thought", "not at the open one"
    browser.press("p")
    assert text(browser, "total") == "0 of 2 points"
    browser.press("x")
    assert text(browser, "progress") == "0 of 2 marked"
    browser.open(tmp_path / "marking.html")
    assert text(browser, "progress") == "0 of 2 marked"


def test_another_markers_file_is_taken_in_and_never_over_a_mark_that_differs(browser: Browser, tmp_path: Path) -> None:
    results = [result("ann", answer=ONE), result("bob", answer=OTHER)]
    answers = start(browser, tmp_path, results)
    browser.press("a")
    theirs = saved(
        tmp_path / "theirs.json",
        *(entry(answer["students"][0], 1, answer["text"]) for answer in answers),
        entry("ann", 1, "an older answer"),
    )
    browser.find("#load")[0].send_keys(str(theirs))
    browser.driver.execute_async_script("setTimeout(arguments[0], 300)")
    assert text(browser, "progress") == "2 of 2 marked" and text(browser, "total") == "2 of 2 points"
    heard = text(browser, "said")
    assert "1 answer marked from theirs.json" in heard and "1 of its marks belong to no answer" in heard
    assert "Marked otherwise here" in heard and "Answer 1" in heard
    browser.press("n")
    assert text(browser, "total") == "1 of 2 points"
    (tmp_path / "no.json").write_text("{}")
    browser.find("#load")[0].send_keys(str(tmp_path / "no.json"))
    browser.driver.execute_async_script("setTimeout(arguments[0], 300)")
    assert "nothing was loaded" in text(browser, "said")


def test_nothing_marked_is_nothing_saved_and_a_name_can_be_left_out(browser: Browser, tmp_path: Path) -> None:
    start(browser, tmp_path, [result("ann", answer=ONE), result("bob", answer=OTHER)])
    browser.press("s")
    assert "nothing to save" in text(browser, "said")
    browser.press("a", "s")
    browser.find("#nameless")[0].click()
    assert "Saved marks.json: 1 of 2 answers" in text(browser, "said")
    assert json.loads(download(tmp_path).read_text())["marker"] == ""
    browser.open(tmp_path / "marking.html")
    assert text(browser, "which") == "Answer 2 of 2", "opens at the first that is not marked"


def test_the_answer_and_its_rubric_are_in_sight_on_a_laptop(browser: Browser, tmp_path: Path) -> None:
    source = copy.deepcopy(lab())
    next(cell for cell in source.cells if cell.id == "three").source += "\n\nA long story. " * 120
    results = [result("ann", answer=ONE), result("bob", answer=OTHER)]
    write_reports(results, outlines(), tmp_path, sources={LAB: source})
    browser.driver.set_window_size(1440, 900)
    browser.open(tmp_path / "marking.html")
    browser.press("n")
    for name in ("answer", "rubric"):
        low = browser.run("return document.getElementById(arguments[0]).getBoundingClientRect().bottom", name)
        assert low <= browser.run("return window.innerHeight"), name


def test_points_of_a_criterion_can_be_given_in_part_and_never_above_it(browser: Browser, tmp_path: Path) -> None:
    start(browser, tmp_path, [result("ann", answer=ONE)])
    field = browser.find("#given-0")[0]
    field.send_keys("0.5")
    assert text(browser, "total") == "0.5 of 2 points"
    field.clear()
    field.send_keys("7")
    assert text(browser, "total") == "0.5 of 2 points" or text(browser, "total") == "0 of 2 points"
    field.send_keys("n")
    assert text(browser, "which") == "Answer 1 of 1"


def test_names_are_there_when_they_are_asked_for(browser: Browser, tmp_path: Path) -> None:
    start(browser, tmp_path, [result("ann", answer=ONE), result("bob", answer=ONE)])
    assert text(browser, "who") == "Written by 2 students"
    browser.find("#names")[0].click()
    assert text(browser, "who") == "ann, bob"


def test_the_page_asks_nothing_of_a_network_and_fits_a_phone(browser: Browser, tmp_path: Path) -> None:
    start(browser, tmp_path, [result("ann", answer="long" * 80), result("bob", answer=OTHER)])
    browser.size(360)
    browser.open(tmp_path / "marking.html")
    assert [url for url in browser.requests() if not url.startswith("file:")] == [] and not browser.complaints()
    assert browser.run("return document.documentElement.scrollWidth") <= 360
