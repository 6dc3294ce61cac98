"""The report on a class: its figures, its tables, what it names; for one submission, for none, for hostile text."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import json
import math
import re
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import open_browser
from hypothesis import given
from hypothesis import strategies as st
from made_up_results import LAB, QUEUES, crowd, lab, lab_outline, outlines, part, refused, renamed, result

from underload.course.marks import LabError
from underload.course.outline import Outline
from underload.course.points import Check
from underload.course.render import file_name, points
from underload.course.report import Report, write_reports
from underload.course.results import Result
from underload.course.summary import bins, quantile, summarise
from underload.course.table import harmless, rows

HOSTILE = "<script>alert(1)</script>\"'&<img src=x onerror=alert(2)>"


def write(out: Path, results: list[Result], **more: Any) -> Report:
    return write_reports(results, outlines(), out, **{"sources": {LAB: lab()}, **more})


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def page(out: Path) -> str:
    return (out / "report.html").read_text(encoding="utf-8")


# ---- figures -------------------------------------------------------------------------------------------------------


def test_the_figures_are_those_of_the_graded_submissions() -> None:
    results = [result("a", 2, 4, 2), result("b", 1, 2, 0), result("c", 0, 0, 0), result("d", 2, 0, 1), refused("e")]
    made = summarise(lab_outline(), results, absent=3)
    marks = [8, 3, 0, 3]
    assert (made.graded, made.refused, made.absent, made.unmarked) == (4, 1, 3, 0)
    assert made.mean == statistics.fmean(marks) and (made.lowest, made.highest) == (0, 8)
    assert made.quartiles == tuple(np.quantile(marks, [0.25, 0.5, 0.75]))
    first = made.tasks[0]
    assert (first.mean, first.full, first.none, first.graded) == (1.25, 0.5, 0.25, 4)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=40), st.floats(0, 1))
def test_quantiles_are_numpys(values: list[float], share: float) -> None:
    assert quantile(sorted(values), share) == pytest.approx(float(np.quantile(values, share)))


@given(st.lists(st.integers(0, 80), max_size=60), st.sampled_from([1, 3, 7.5, 10, 20, 24, 37, 100, 1000]))
def test_every_mark_is_in_exactly_one_bin_and_bins_meet(quarters: list[int], full: float) -> None:
    marks = [min(quarter * full / 80, full) for quarter in quarters]
    made = bins(sorted(marks), full)
    assert sum(one.count for one in made) == len(marks) and len(made) <= 21
    assert made[0].low == 0 and (made[-1].low, made[-1].high) == (full, full)
    assert all(one.high == pytest.approx(after.low) for one, after in itertools.pairwise(made))
    assert made[-1].count == sum(mark >= full - 1e-9 for mark in marks)


def test_open_answers_that_are_not_marked_are_in_no_mean_of_their_task() -> None:
    made = summarise(lab_outline(), [result("a", why=2), result("b", why=None), result("c", why=1)])
    assert (made.tasks[2].graded, made.tasks[2].mean, made.unmarked) == (2, 1.5, 1)
    assert [task.waiting for task in made.tasks] == [0, 0, 1, 0]
    nobody = summarise(lab_outline(), [result("b", why=None)])
    assert (nobody.tasks[2].mean, nobody.tasks[2].full) == (None, None)


def test_the_checks_that_failed_most_come_first_with_their_most_frequent_message() -> None:
    def with_check(student: str, said: str, missing: bool = False) -> Result:
        checks = (Check("three requests", 1, 1), Check("one request", 1, 0, said, missing=missing))
        return result(student, parts=(part("task-1-check", 1, checks=checks), part("task-2-check", 2)))

    results = [
        with_check("a", "4, not 5"),
        with_check("b", "4, not 5"),
        with_check("c", "a list"),
        with_check("d", "", True),
    ]
    results[3] = with_check("d", "not written yet", True)
    checks = summarise(lab_outline(), results).checks
    assert [(one.what, one.failed, one.missing, one.ran) for one in checks] == [
        ("a busy server", 4, 0, 4),
        ("one request", 3, 1, 4),
    ]
    assert checks[1].said == (("4, not 5", 2), ("a list", 1)) and checks[1].task == "1"


def test_one_error_that_fails_several_checks_is_one_cause_and_counted_by_student() -> None:
    def with_error(student: str, *said: str) -> Result:
        names = ("three requests", "one request", "no request")
        checks = tuple(Check(name, 0.5, 0 if text else 0.5, text) for name, text in zip(names, said, strict=True))
        return result(student, parts=(part("task-1-check", 0, checks=checks), part("task-2-check", 4)))

    name, late = "NameError: name 'ttft' is not defined", "TimeoutError: did not end within"
    made = summarise(
        lab_outline(),
        [
            with_error("a", f"{name}\nin waiting, line 2: ttft", f"{name}\nin waiting, line 3: ttft", name),
            with_error("b", name, name, "4, not 5"),
            with_error("c", "", "4, not 5", "3, not 5"),
            with_error("d", f"{late} 20 s", "", f"{late} 2 s (no longer, since a check before it took all of 20 s)"),
        ],
    )
    assert [(one.said, one.students, one.checks) for one in made.causes] == [
        (name, 2, ("three requests", "one request", "no request")),
        ("did not end in time", 1, ("three requests", "no request")),
    ]
    assert [(one.what, one.own, one.failed, one.said) for one in made.checks] == [
        ("no request", 2, 4, (("4, not 5", 1), ("3, not 5", 1))),
        ("one request", 1, 3, (("4, not 5", 1),)),
        ("three requests", 0, 3, ()),
    ]


# ---- tables --------------------------------------------------------------------------------------------------------


def test_marks_csv_has_a_row_a_student_with_tasks_sums_and_reasons(tmp_path: Path) -> None:
    wrong = dataclasses.replace(
        result("bob", 2, 0, 1),
        parts=(part("task-1-check", 2), part("task-2-check", 0, said="no end in 20 s"), part("task-3-why", 1)),
        notes=("a note",),
    )
    write(tmp_path, [result("ann", 1.5, 4, None, 3), wrong, refused("cleo", "it is a PDF")], roster=["dan", "ann"])
    found = table(tmp_path / "marks.csv")
    assert [row["student"] for row in found] == ["dan", "ann", "bob", "cleo"]
    dan, ann, bob, cleo = found
    assert (ann["task 1"], ann["task 2"], ann["task 3"], ann["further 1"]) == ("1.5", "4", "", "3")
    assert (ann["core"], ann["bonus"], ann["of"], ann["unmarked"]) == ("5.5", "3", "8", "1")
    assert (bob["core"], bob["reasons"]) == ("3", "task-2-check: no end in 20 s; a note")
    assert (cleo["status"], cleo["core"], cleo["task 1"], cleo["reasons"]) == ("refused", "", "", "it is a PDF")
    assert (dan["status"], dan["core"], dan["task 1"], dan["reasons"]) == ("no submission", "0", "0", "no submission")


def test_a_check_that_did_not_end_is_a_reason(tmp_path: Path) -> None:
    late = "TimeoutError: did not end within 20 s\nin serve, line 3: while True:"
    checks = (Check("three requests", 1, 1), Check("one request", 1, 0, late))
    write(tmp_path, [result("ann", parts=(part("task-1-check", 1, checks=checks),))])
    assert table(tmp_path / "marks.csv")[0]["reasons"] == "task-1-check: did not end in time: one request"
    text = page(tmp_path)
    assert text.index("something other than a check") < text.index("did not end in time: one request")


def test_a_student_whose_hand_out_somebody_unknown_handed_in_is_neither_0_nor_absent(tmp_path: Path) -> None:
    made = write(tmp_path, [dataclasses.replace(result("Dan-Doe"), named="dan")], roster=["dan", "eve"])
    dan, eve, _ = table(tmp_path / "marks.csv")
    assert (dan["status"], dan["core"], dan["task 1"], eve["core"]) == ("unclear", "", "", "0")
    assert "Dan-Doe handed in the hand-out of it" in dan["reasons"] and made.labs[0].absent == 1
    assert "Dan-Doe handed in the hand-out of it" in page(tmp_path)
    assert any("1 submission is of nobody on it (Dan-Doe)" in text for text in made.said)


def test_a_file_of_no_lab_is_refused_in_each_lab_from_which_nothing_else_came(tmp_path: Path) -> None:
    made = write(tmp_path, [result("ann"), refused("kofi", "it is a PDF", lab="")], roster=["ann", "kofi"])
    assert (made.labs[0].refused, made.labs[0].absent) == (1, 0)
    assert [row["student"] for row in table(tmp_path / "marks.csv")] == ["ann", "kofi"]
    assert (tmp_path / "feedback" / "kofi" / "unknown.html").is_file()


def test_what_was_written_for_somebody_who_is_gone_is_removed_and_nothing_else(tmp_path: Path) -> None:
    from underload.course.ledger import keep

    (tmp_path / "feedback" / "Bob").mkdir(parents=True)
    for name in ("feedback/Bob/note.txt", f"feedback/{LAB}.html", "feedback/Bob/queue-mine.html"):
        (tmp_path / name).write_text("mine")
    results = [result("ann"), result("Bob"), refused("cy", lab="")]
    private = dataclasses.replace(result("Bob"), lab="private")
    for one in (*results, private):
        keep(one, tmp_path)
    write(tmp_path, results)
    (tmp_path / "results" / "dan").mkdir()
    (tmp_path / "results" / "dan" / f"{LAB}.json").write_text('{"notes": "mine"}')
    write(tmp_path, [result("ann"), result("bob")])
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    left = {name for name in left if name.startswith(("feedback", "results"))}
    assert left == {
        f"feedback/{LAB}.html", "feedback/Bob/note.txt", "feedback/Bob/queue-mine.html",
        f"feedback/ann/{LAB}.html", f"feedback/bob/{LAB}.html",
        f"results/ann/{LAB}.json", f"results/ann/{LAB}.seconds", f"results/dan/{LAB}.json",
        "results/Bob/private.json", "results/Bob/private.seconds",
    }  # fmt: skip
    assert not (tmp_path / "feedback" / "cy").exists()


def test_results_of_two_runs_are_the_same_bytes_though_they_took_different_times(tmp_path: Path) -> None:
    from underload.course.results import CellRun, read_result, write_result

    one = dataclasses.replace(result("ann"), cells=(CellRun("a", seconds=0.25),), seconds=1.5)
    other = dataclasses.replace(one, cells=(CellRun("a", seconds=0.5),), seconds=2.5)
    for name, made in (("one", one), ("other", other)):
        write_result(made, tmp_path / name / "queue.json")
        assert read_result(tmp_path / name / "queue.json") == made
    assert (tmp_path / "one" / "queue.json").read_bytes() == (tmp_path / "other" / "queue.json").read_bytes()
    (tmp_path / "one" / "queue.seconds").write_text("{")
    assert read_result(tmp_path / "one" / "queue.json").seconds == 0


def test_parts_that_were_left_open_are_one_reason_and_none_to_look_at(tmp_path: Path) -> None:
    empty = tuple(
        part(name, 0, said=f"nothing was written in {name.removesuffix('-check')}-solution")
        for name in ("task-1-check", "task-2-check")
    )
    write(tmp_path, [dataclasses.replace(result("ann"), parts=empty)])
    assert table(tmp_path / "marks.csv")[0]["reasons"] == "nothing was written for task-1-check, task-2-check"
    assert "something other than a check" not in page(tmp_path)


def test_marks_json_holds_everything_and_null_for_what_is_not_known(tmp_path: Path) -> None:
    results = [result("ann", why=None), refused("bob"), result("cleo", why=1, further=3)]
    write(tmp_path, results)
    data = json.loads((tmp_path / "marks.json").read_text(encoding="utf-8"))
    ann, bob, cleo = data["marks"]
    assert (ann["core"], ann["final"], ann["tasks"]["3"], ann["unmarked"]) == (6, None, None, ["task-3-why"])
    assert (bob["core"], bob["final"], bob["tasks"]["1"]) == (None, None, None)
    assert (cleo["core"], cleo["bonus"], cleo["final"]) == (7, 3, 10)
    assert data["labs"][LAB]["tasks"]["2"] == {"title": "One server", "points": 4, "further": False}
    assert data["results"][0]["parts"][1]["checks"][0]["what"] == "an idle server"


def test_the_wide_table_has_a_row_a_student_over_several_labs(tmp_path: Path) -> None:
    second = dataclasses.replace(lab_outline(), lab="second", title="The second")
    there = dataclasses.replace(result("ann", 1, 1, 1), lab="second")
    both: dict[str, Outline] = {**outlines(), "second": second}
    write_reports([result("ann", why=2), refused("bob"), there], both, tmp_path)
    ann, bob = table(tmp_path / "marks-wide.csv")
    assert (ann[LAB], ann["second"], ann["core"], ann["second status"]) == ("8", "3", "11", "graded")
    assert (bob[LAB], bob["second"], bob["core"], bob["queue status"]) == ("", "", "", "refused")
    assert 'href="#lab-2"' in page(tmp_path) and "The second" in page(tmp_path)


def test_labs_that_nobody_handed_in_are_in_no_table(tmp_path: Path) -> None:
    unused = dataclasses.replace(lab_outline(), lab="unused")
    write_reports([result("ann")], {"unused": unused, **outlines()}, tmp_path, roster=["ann", "bob"])
    assert {row["lab"] for row in table(tmp_path / "marks.csv")} == {LAB}


def test_no_cell_is_a_formula_to_a_spreadsheet(tmp_path: Path) -> None:
    starts = ["=1+1", "+1", "-1+2", "@SUM(A1)", " =1", "\t=1", "\r=1", "＝1", "|cmd", "\n=1", "\u2028=1"]
    noted = dataclasses.replace(result("ann"), notes=tuple(starts))
    write(tmp_path, [noted, *(refused(start, start) for start in starts)])
    seen = 0
    for path in tmp_path.rglob("*.csv"):
        for row in csv.reader(io.StringIO(path.read_text(encoding="utf-8"))):
            for cell in row:
                assert not re.match(r"\s*[=+\-@\t\r|＝]", cell) or re.fullmatch(r"-?\d+(\.\d+)?", cell), cell
                seen += cell.startswith("'")
    assert seen >= 3 * len(starts)


def test_numbers_stay_numbers_and_other_text_stays_itself() -> None:
    assert [harmless(value) for value in (-1.5, None, "-2", "ann-lee", 3, 0.1 + 0.2)] == [
        "-1.5", "", "-2", "ann-lee", "3", "0.3",
    ]  # fmt: skip


def test_two_graded_results_of_one_student_are_refused_and_a_refused_one_beside_a_graded_is_not() -> None:
    with pytest.raises(LabError, match="two graded submissions of queue by 'ann'"):
        rows([result("ann"), result("ann", 0)], outlines())
    [row] = rows([result("ann"), refused("ann")], outlines())
    assert row.status == "graded"
    [row] = rows([refused("ann"), result("ann")], outlines())
    assert row.status == "graded"


# ---- the page --------------------------------------------------------------------------------------------------------


def test_everything_that_a_person_should_look_at_is_on_the_page(tmp_path: Path) -> None:
    copy = renamed(QUEUES[4], [("s", "sec"), ("a", "arr")])
    results = crowd(10)
    results += [result("copier", code={"task-2-solution": copy}, answer="", why=0)]
    made = write(tmp_path, results, roster=["nobody"])
    text = page(tmp_path)
    for wanted in (
        "the file is a PDF, renamed to .ipynb",  # refused, with its reason
        "the answer used underload.queueing.serve",  # library use
        "did not end in 20 s",  # another reason
        "the check task-2-check is not in the notebook",  # a problem
        "Points.check was replaced",  # tampering
        "copier and student-05",  # a pair
        "nobody",  # no submission
        "Mark them in marking.html",
        "no verdict",
        "Slowest to grade: student-05 21.5 s",
    ):
        assert wanted in text, wanted
    assert text.index("The library's own version") < text.index('student-03</th><td data-label="Part">task-2-check')
    assert made.unmarked == sum(len(one.unmarked) for one in made.results) > 0
    for result_ in results:
        assert (tmp_path / "feedback" / result_.student / f"{LAB}.html").is_file()
        assert f'href="feedback/{result_.student}/{LAB}.html"' in text


def test_the_page_is_in_sections_that_its_top_leads_to(tmp_path: Path) -> None:
    results = [*crowd(12), result("copier", code={"task-2-solution": renamed(QUEUES[4], [("s", "sec")])})]
    results += [result(f"same-{n}", code={"task-2-solution": answer_of("task-2-solution")}) for n in range(3)]
    write(tmp_path, results, roster=["nobody"])
    text = page(tmp_path)
    wanted = set(re.findall(r'href="#([^"]+)"', text))
    assert wanted <= set(re.findall(r'id="([^"]+)"', text))
    assert {f"lab-1-{name}" for name in ("tasks", "failed", "mark", "refused", "pairs", "students")} <= wanted
    assert set(re.findall(r'<h3 id="([^"]+)"', text)) <= wanted
    assert "3 students, 1 answer each" in text, "equal to the published solution"


def answer_of(cell: str) -> str:
    from underload.course.answers import solved

    return str(next(one.source for one in solved(lab()).cells if one.id == cell))


def test_on_a_phone_a_table_of_text_is_no_wider_than_the_screen(tmp_path: Path) -> None:
    write(tmp_path, [*crowd(12), dataclasses.replace(result("x" * 60), notes=("y" * 300,))], roster=["nobody"])
    with open_browser() as browser:
        browser.size(360)
        browser.open(tmp_path / "report.html")
        wide = browser.run(
            "document.querySelectorAll('details').forEach((one) => { one.open = true; });"
            "return [...document.querySelectorAll('.stack')].filter((one) => one.scrollWidth > 330"
            " || one.parentElement.scrollWidth > one.parentElement.clientWidth)"
            ".map((one) => one.innerText.slice(0, 99))"
        )
        assert wide == []


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / name, crowd(12), roster=["zoe"])
    names = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    for name in names:
        if name.suffix != ".db":  # nbgrader draws ids
            assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


@pytest.mark.parametrize(
    "results",
    [[], [refused("ann")], [refused("ann", lab="")], [refused("a", lab=""), refused("a", lab="")], [result("ann")]],
    ids=["none", "refused", "of no lab", "two of no lab", "one"],
)
def test_small_classes_have_a_sensible_page(tmp_path: Path, results: list[Result]) -> None:
    write(tmp_path, results)
    text = page(tmp_path)
    assert not re.search(r"\b(nan|None|inf)\b", re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL))
    for result_ in results:
        assert (result_.said or result_.student) in text
    if not any(one.status == "graded" for one in results):
        assert "<svg" not in text and ">mean" not in text


def test_a_roster_alone_is_a_class_without_submissions(tmp_path: Path) -> None:
    made = write(tmp_path, [], roster=["ann", "bob"])
    assert made.labs[0].absent == 2 and made.labs[0].mean is None
    assert "ann, bob" in page(tmp_path)


def test_hostile_text_is_escaped_on_every_page(tmp_path: Path) -> None:
    from underload.course.assemble import Problem
    from underload.course.results import CellRun

    checks = (Check(HOSTILE, 1, 0, HOSTILE, HOSTILE), Check("one request", 1, 1))
    bad = dataclasses.replace(
        result(HOSTILE, answer=HOSTILE, code={"task-2-solution": HOSTILE, HOSTILE: HOSTILE}),
        problems=(Problem("syntax", HOSTILE, "2", HOSTILE), Problem("moved", HOSTILE, None, HOSTILE)),
        cells=(CellRun("task-2-solution", HOSTILE, HOSTILE), CellRun(HOSTILE, HOSTILE, HOSTILE, "died")),
        notes=(HOSTILE,),
        path=HOSTILE,
    )
    bad = dataclasses.replace(bad, parts=(part("task-1-check", 1, said=HOSTILE, checks=checks), *bad.parts[1:]))
    write(
        tmp_path,
        [bad, dataclasses.replace(bad, student=f"{HOSTILE}2"), refused(f"{HOSTILE}3", HOSTILE)],
        hidden_messages=True,
    )
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) == 5
    for path in pages:
        text = path.read_text(encoding="utf-8")
        assert "<script>alert" not in text and "<img" not in text, path
        assert "Content-Security-Policy" in text


def test_no_student_can_write_outside_the_feedback_folder(tmp_path: Path) -> None:
    students = ["../../evil", "/etc/passwd", "..", ".", "", "a/b", "a\\b", "x" * 300, "ä ö", "con\0", "\ud800"]
    out = tmp_path / "deep" / "out"
    write(out, [result(student) for student in students])
    made = list((out / "feedback").rglob("*.html"))
    assert len(made) == len(students) and {path.parent.parent for path in made} == {out / "feedback"}
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]


@given(st.lists(st.text(max_size=8), unique=True, max_size=6))
def test_folder_names_are_as_different_as_the_students(students: list[str]) -> None:
    names = [file_name(student) for student in students]
    assert len(set(names)) == len(names)
    assert all(name not in {"", ".", ".."} and "/" not in name and "\0" not in name for name in names)


def test_what_is_not_known_is_a_dash_and_never_a_0() -> None:
    assert [points(value) for value in (None, math.nan, math.inf, 0, 2.50001, 3.0)] == ["–", "–", "–", "0", "2.5", "3"]


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    for name in ("results/a.json", "notes.txt"):
        (tmp_path / name).write_text("mine")
    write(tmp_path, [result("ann")])
    assert all((tmp_path / name).read_text() == "mine" for name in ("results/a.json", "notes.txt"))
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()], "a temporary file was left"


def test_the_page_fits_a_phone_in_both_themes_and_asks_nothing_of_a_network(tmp_path: Path) -> None:
    write(tmp_path, [*crowd(12), dataclasses.replace(result("x" * 60), notes=("y" * 300,))], roster=["nobody"])
    with open_browser() as browser:
        for width in (360, 1280):
            for scheme in ("light", "dark"):
                browser.size(width)
                browser.media(prefers_color_scheme=scheme)
                for path in (tmp_path / "report.html", *sorted(tmp_path.glob("feedback/student-0*/*.html"))[:5]):
                    browser.open(path)
                    assert browser.run("return document.documentElement.scrollWidth") <= width, (path, width)
                    assert [url for url in browser.requests() if not url.startswith("file:")] == []
                    assert browser.complaints() == []
                ink, paper = browser.run(
                    "const s = getComputedStyle(document.documentElement); return [s.color, s.backgroundColor]"
                )
                bright = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (ink, paper)]
                assert (bright[0] < bright[1]) == (scheme == "light")
        browser.open(tmp_path / "report.html")
        assert browser.run("return [...document.querySelectorAll('th')].every((cell) => cell.scope)")
        levels = browser.run("return [...document.querySelectorAll('h1,h2,h3,h4')].map((one) => +one.tagName[1])")
        assert levels[0] == 1 and all(after <= before + 1 for before, after in itertools.pairwise(levels))
        assert "Histogram of points" in browser.run("return document.querySelector('svg').getAttribute('aria-label')")


def test_half_characters_and_control_characters_stop_nothing(tmp_path: Path) -> None:
    odd = "half \ud800 and \0 and \x1b[31m"
    checks = (Check(odd, 1, 0, odd, odd),)
    bad = dataclasses.replace(result(odd, answer=odd, code={odd: odd, "task-2-solution": odd * 20}), notes=(odd,))
    bad = dataclasses.replace(bad, parts=(part("task-1-check", 0, checks=checks, comment=odd), *bad.parts[1:]))
    made = write(tmp_path, [bad, dataclasses.replace(bad, student="ann"), refused("bob", odd)])
    assert (tmp_path / "gradebook.db").is_file() or any("nbgrader" in text for text in made.said)
    for path in tmp_path.rglob("*.html"):
        path.read_text(encoding="utf-8")
