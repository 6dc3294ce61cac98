"""Grading one submission, and a folder of them, of a lab that runs in no time."""

from __future__ import annotations

import copy
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from queue_lab import edited, queue_lab, solved_by_hand

import underload.course.grade as grading
from underload.cli import main
from underload.course import LabError, handout
from underload.course.assemble import bound
from underload.course.attempt import Root, clean
from underload.course.grade import grade, grade_one
from underload.course.ledger import library_digest
from underload.course.personal import personal, seed_for
from underload.course.results import Result, read_result
from underload.course.roster import Roster
from underload.course.sandbox import Limits
from underload.course.source import nbgrader, write_notebook

LAB = "queue-lab"
LIMITS = Limits(cell_seconds=1, check_seconds=1, memory=300 << 20)
SECRET = b"a secret of a class"


@pytest.fixture(scope="module")
def source() -> NotebookNode:
    return queue_lab(LAB)


@pytest.fixture(scope="module")
def root(source: NotebookNode) -> Iterator[Root]:
    with Root(source, LIMITS) as made:
        yield made


@pytest.fixture
def one_root(source, root, monkeypatch) -> None:
    """Classes of this lab run from the module's root, which takes a second to make."""
    made = grading.Root

    class Kept:
        fork, steps, limits = root.fork, root.steps, root.limits

        def close(self) -> None:
            pass

    monkeypatch.setattr(grading, "Root", lambda lab, limits: Kept() if lab is source else made(lab, limits))


@pytest.fixture
def right(source: NotebookNode) -> NotebookNode:
    return solved_by_hand(handout(source))


def earned(result: Result) -> dict[str, float | None]:
    assert result.status == "graded", result.said
    return {part.name: part.earned for part in result.parts}


FULL = {"task-1-check": 4.0, "task-2-check": 2.0, "task-2-why": None, "task-3-check": 1.0}


def lost(**parts: float | None) -> dict[str, float | None]:
    return {**FULL, **{name.replace("_", "-"): points for name, points in parts.items()}}


def part(result: Result, name: str):
    return next(one for one in result.parts if one.name == name)


def own(notebook: NotebookNode, place: int, code: str, id: str = "own") -> NotebookNode:
    made = copy.deepcopy(notebook)
    made.cells.insert(place, nbformat.v4.new_code_cell(code, id=id))
    return made


def place(notebook: NotebookNode, id: str) -> int:
    return next(index for index, cell in enumerate(notebook.cells) if cell.id == id)


# ---- one submission ---------------------------------------------------------------------------------------------


def test_right_answers_earn_full_marks_and_an_open_one_waits(source, root, right) -> None:
    result = grade_one(source, right, "ann", root=root)
    assert earned(result) == FULL
    assert (result.earned, result.bonus, result.unmarked) == (6.0, 1.0, ("task-2-why",))
    assert part(result, "task-2-why").answer == "The order matters: [0, 9] and [9, 0] have one sum."
    assert not result.problems and not result.notes and set(result.code) == {
        "task-1-solution", "task-2-solution", "task-3-solution",
    }  # fmt: skip
    assert [cell.ended for cell in result.cells] == ["done"] * 3


def test_the_hand_out_earns_nothing_and_says_so(source, root) -> None:
    result = grade_one(source, handout(source), "ann", root=root)
    assert earned(result) == dict.fromkeys(FULL, 0.0)
    assert part(result, "task-1-check").said == "nothing was written in task-1-solution"
    assert part(result, "task-2-why").said == "nothing was written"
    assert all(check.missing for check in part(result, "task-1-check").checks[:1])


def test_without_a_root_it_makes_its_own(source, right) -> None:
    assert earned(grade_one(source, right, "ann", limits=LIMITS)) == FULL


def test_part_of_an_answer_earns_part_of_the_points(source, root, right) -> None:
    answer = "def waits(arrivals, service):\n    return [0.0 for _ in arrivals]\n"
    result = grade_one(source, edited(right, t1_answer=answer), "ann", root=root)
    assert earned(result) == lost(task_1_check=3.0)
    said = [check.said for check in part(result, "task-1-check").checks if check.said]
    assert said == ["the second of two waits for the first, 2 s; got [0.0, 0.0]"]
    assert part(result, "task-1-check").said == ""


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("while True:\n    pass", "the cell task-1-solution did not end within 1 s and was left out"),
        ("import os\nos._exit(3)", "the cell task-1-solution ended the process it ran in"),
        ("import os\nos.kill(os.getpid(), 9)", "the cell task-1-solution ended the process it ran in"),
        ("hoard = []\nwhile True:\n    hoard.append(bytearray(20_000_000))", "emory"),
        ("def waits(:\n    pass", "task-1-solution, line 1"),
        ("", "the answer cell task-1-solution is not in the notebook or is empty"),
        ("1 / 0", "the cell task-1-solution stopped with ZeroDivisionError: division by zero"),
    ],
)
def test_an_answer_that_cannot_run_costs_its_task_and_says_why(source, root, right, code: str, said: str) -> None:
    result = grade_one(source, edited(right, t1_answer=code), "ann", root=root)
    assert earned(result) == lost(task_1_check=0.0)
    assert said in part(result, "task-1-check").said


def test_an_older_value_of_the_name_is_not_graded_in_a_broken_answer_s_place(source, root, right) -> None:
    """Task 3's name is set by task 1's cell, and task 3's own cell is cut off."""
    clever = right.cells[place(right, "t1-answer")].source + "\nthe_answer = 42\n"
    result = grade_one(source, edited(right, t1_answer=clever, t3_answer="the_answer = (42"), "ann", root=root)
    assert earned(result) == lost(task_3_check=0.0)


def test_an_answer_in_a_cell_of_its_own_counts(source, root, right) -> None:
    answer = right.cells[place(right, "t1-answer")].source
    for broken in ("def waits(", "", handout(source).cells[place(right, "t1-answer")].source):
        moved = own(edited(right, t1_answer=broken), place(right, "t1-answer") + 1, answer)
        result = grade_one(source, moved, "ann", root=root)
        assert earned(result) == FULL, broken
        assert answer in result.code["task-1-solution"]


def test_two_cells_that_end_their_process_are_both_left_out(source, root, right) -> None:
    """And a cell of the student's own that does costs nothing."""
    made = own(edited(right, t1_answer="import os; os._exit(0)"), 2, "while True: pass")
    made = own(made, place(made, "t2-check"), "import os; os.kill(os.getpid(), 11)", "second")
    result = grade_one(source, made, "ann", root=root)
    assert earned(result) == lost(task_1_check=0.0)
    assert [cell.ended for cell in result.cells] == ["time", "died", "done", "died", "done"]
    assert [note.split(" and was")[0] for note in result.notes] == [
        "a cell of the student's own (own) did not end within 1 s",
        "a cell of the student's own (second) ended the process it ran in",
    ]


def test_a_process_that_ends_behind_the_cell_s_back_is_the_last_cell_s(source, root, right) -> None:
    bomb = "import os\nos.register_at_fork(before=lambda: os._exit(0))"  # it ends when it is forked for a test
    result = grade_one(source, own(right, place(right, "t1-check"), bomb), "ann", root=root)
    assert earned(result) == FULL
    assert result.notes == ("a cell of the student's own (own) ended the process it ran in and was left out",)


def test_the_time_for_a_whole_submission_ends_too(source, root, right) -> None:
    made = edited(right, t2_answer="import time\ntime.sleep(1.2)\nmy_sum = sum(mine)")
    result = grade_one(source, made, "ann", root=root, seconds=1.0)
    assert earned(result) == lost(task_2_check=0.0, task_3_check=0.0)
    assert "the 1 seconds that one submission may take were over" in part(result, "task-3-check").said


def test_what_the_answer_prints_is_kept_within_limits(source, root, right) -> None:
    made = own(right, 3, "print('x' * 1_000_000)\nprint('\\ud800')")
    result = grade_one(source, made, "ann", root=root)
    assert earned(result) == FULL
    (cell,) = [cell for cell in result.cells if cell.name == "own"]
    assert len(cell.output) < 5_000 and "characters left out" in cell.output
    json.dumps(result.cells[0].output).encode()


def test_the_library_s_own_version_earns_nothing_and_says_so(source, root, right) -> None:
    made = edited(
        right,
        t1_answer="from underload.metrics import ttft\nfrom underload.request import Timeline\n\n\n"
        "def waits(arrivals, service):\n    ttft(Timeline(arrival=0.0, token_times=[1.0]))\n    return [0.0]\n",
    )
    result = grade_one(source, made, "ann", root=root)
    assert earned(result) == lost(task_1_check=0.0)
    assert "the answer used underload.metrics.ttft, the library's own version" in part(result, "task-1-check").said


def test_patched_checks_are_put_back_and_named_once(source, root, right) -> None:
    made = own(edited(right, t1_answer="", t3_answer=""), 2, "Points.earned = lambda self: 4.0")
    result = grade_one(source, made, "ann", root=root)
    assert earned(result) == lost(task_1_check=0.0, task_3_check=0.0)
    assert [note for note in result.notes if "put back" in note] == [
        "changed by the student's code and put back before task-1-check: underload.course.points.Points.earned"
    ]


def test_no_hidden_test_is_in_reach_of_a_cell(source, root, right) -> None:
    search = (
        "import gc\nword = 'hidden' + '_draw'\n"
        "found = [d for d in gc.get_objects() if isinstance(d, dict) and any(word in k for k in d if type(k) is str)]\n"
        "assert not found, found"
    )
    result = grade_one(source, own(right, place(right, "t2"), search), "ann", root=root)
    (cell,) = [cell for cell in result.cells if cell.name == "own"]
    assert cell.error == "" and earned(result) == FULL


def test_files_beside_the_notebook_are_there_and_are_a_copy(source, one_root, root, right, tmp_path: Path) -> None:
    made = own(
        right, 3, "text = open('d/log.csv').read()\nopen('d/log.csv', 'w').write('changed')\nassert text == '1,2'"
    )
    folder = tmp_path / "ann"
    (folder / "d").mkdir(parents=True)
    (folder / "d" / "log.csv").write_text("1,2")
    nbformat.write(made, folder / "x.ipynb")
    done = grade(tmp_path, tmp_path.parent / f"{tmp_path.name}-out", labs={LAB: source}, limits=LIMITS, progress=False)
    (result,) = done.results
    assert [cell.error for cell in result.cells] == [""] * 4
    assert (folder / "d" / "log.csv").read_text() == "1,2"


def test_what_a_notebook_had_printed_is_kept_for_who_marks_it(source, root, right, tmp_path: Path) -> None:
    made = copy.deepcopy(right)
    for name, text in (("t2-show", "my numbers are 7\n"), ("t2-answer", "not of a show cell")):
        made.cells[place(made, name)].outputs = [nbformat.v4.new_output("stream", text=text)]
    nbformat.write(made, tmp_path / "x.ipynb")
    assert grade_one(source, tmp_path / "x.ipynb", "ann", root=root).printed == {"t2-show": "my numbers are 7"}
    assert grade_one(source, right, "ann", root=root).printed == {}


def test_a_path_is_read_and_what_is_no_notebook_is_refused(source, root, right, tmp_path: Path) -> None:
    nbformat.write(right, tmp_path / "sub.ipynb")
    assert earned(grade_one(source, tmp_path / "sub.ipynb", "ann", root=root)) == FULL
    (tmp_path / "sub.ipynb").write_text("no")
    result = grade_one(source, tmp_path / "sub.ipynb", "ann", root=root)
    assert (result.status, result.parts, result.student) == ("refused", (), "ann") and "no JSON" in result.said


def test_a_fault_of_the_grader_is_one_submission_s_and_is_told(source, root, right, monkeypatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(grading, "assemble", fail)
    result = grade_one(source, right, "ann", root=root)
    assert result.status == "refused" and "Traceback" in result.said and "a fault of ours" in result.said


def test_a_lab_whose_own_cells_fail_is_the_lab_s_fault(source, right) -> None:
    broken = edited(source, setup="1 / 0")
    with pytest.raises(LabError, match="the lab's own cell setup fails before any answer: ZeroDivisionError"):
        grade_one(broken, right, "ann", limits=LIMITS)


@pytest.mark.slow
def test_a_root_that_was_killed_is_started_again(source, right) -> None:
    with Root(source, LIMITS) as root:
        root._process._watched.kill()
        assert earned(grade_one(source, right, "ann", root=root)) == FULL


# ---- numbers of a student's own ---------------------------------------------------------------------------------


def test_with_a_secret_the_student_s_own_numbers_are_checked(source, root) -> None:
    mine = solved_by_hand(personal(handout(source), seed_for(SECRET, "ann")))
    result = grade_one(source, mine, "ann", root=root, secret=SECRET)
    assert earned(result) == FULL and not result.notes and not result.problems
    typed = grade_one(source, edited(mine, t2_answer="my_sum = 3"), "ann", root=root, secret=SECRET)
    assert earned(typed)["task-2-check"] == 1.0


@pytest.mark.parametrize("seed", [0, seed_for(SECRET, "bob")])
def test_another_s_numbers_are_told_and_the_right_ones_used(source, root, seed: int) -> None:
    notebook = solved_by_hand(personal(handout(source), seed))
    total = sum(_numbers(seed))
    result = grade_one(source, edited(notebook, t2_answer=f"my_sum = {total}"), "ann", root=root, secret=SECRET)
    assert earned(result) == lost(task_2_check=1.0)
    (note,) = result.notes
    assert note == (f"the notebook has SEED = {seed}; ann's own is {seed_for(SECRET, 'ann')}, with which it was graded")


def _numbers(seed: int) -> list[int]:
    import random

    drawn = random.Random(seed)
    return [drawn.randrange(100) for _ in range(3)]


def test_a_seed_that_a_cell_sets_later_is_set_back_before_checks(source, root, right) -> None:
    watched = copy.deepcopy(source)
    check = next(cell for cell in watched.cells if nbgrader(cell).get("grade_id") == "task-3-check")
    check.source = check.source.replace("the_answer == 42", "the_answer == 42 and SEED == 0")
    with Root(watched, LIMITS) as mine:
        result = grade_one(watched, own(right, 3, "SEED = 7"), "ann", root=mine)
    assert earned(result) == FULL


def test_a_hand_out_of_somebody_who_is_not_on_a_list_names_its_student(source, root) -> None:
    """As a learning platform's file names do not say who the hand-out was made for, it says so itself."""
    mine = solved_by_hand(personal(handout(source), seed_for(SECRET, "ann.lee")))
    mine.metadata["underload"].update(student="ann.lee", seed=seed_for(SECRET, "ann.lee"))
    result = grade_one(source, mine, "leeann_12345", root=root, secret=SECRET)
    assert earned(result) == FULL and "the hand-out of 'ann.lee'" in result.notes[0] and result.named == "ann.lee"


@pytest.mark.slow
def test_hidden_inputs_are_drawn_from_the_secret(source, right) -> None:
    seen = copy.deepcopy(source)
    check = next(cell for cell in seen.cells if nbgrader(cell).get("grade_id") == "task-1-check")
    check.source = check.source.replace("    times =", "    assert False, str(hidden_draw[0])\n    times =")
    with Root(seen, LIMITS) as mine:
        said = [
            part(grade_one(seen, right, "ann", root=mine, secret=secret), "task-1-check").checks[2].said
            for secret in (b"", b"", SECRET, SECRET, b"another")
        ]
    assert said[0] == said[1] != said[2] == said[3] != said[4] != said[0]


# ---- a folder of them -------------------------------------------------------------------------------------------


def lay(folder: Path, **notebooks: NotebookNode) -> Path:
    for student, notebook in notebooks.items():
        (folder / student).mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, folder / student / f"{LAB}.ipynb")
    return folder


def run(submissions: Path, out: Path, source: NotebookNode, **options):
    return grade(submissions, out, labs={LAB: source}, limits=LIMITS, workers=2, progress=False, **options)


@pytest.mark.slow
def test_a_class_is_graded_and_what_did_not_change_is_not_graded_again(
    source, one_root, right, tmp_path: Path, monkeypatch
) -> None:
    submissions = lay(tmp_path / "in", ann=right, bob=handout(source), cy=right)
    (submissions / "dan").mkdir()
    (submissions / "dan" / "x.ipynb").write_text("no notebook")
    out = tmp_path / "out"
    first = run(submissions, out, source, roster=Roster(("ann", "bob", "eve"), {}))
    assert first.reused == 0 and [(r.student, r.status, r.earned) for r in first.results] == [
        ("ann", "graded", 6.0), ("bob", "graded", 0.0), ("cy", "graded", 6.0), ("dan", "refused", 0),
    ]  # fmt: skip
    for result in first.results:
        assert read_result(out / "results" / result.student / f"{LAB}.json") == result
    table = (out / "marks.csv").read_text(encoding="utf-8-sig")
    assert "eve" in table and "no submission" in table

    graded: list[str] = []
    one = grading.grade_one
    monkeypatch.setattr(grading, "grade_one", lambda *a, **k: (graded.append(a[2]), one(*a, **k))[1])
    again = run(submissions, out, source)
    assert graded == [] and again.reused == 4 and again.results == first.results

    lay(submissions, bob=right)  # handed in again
    (out / "results" / "cy" / f"{LAB}.json").write_text("{")  # cut off
    third = run(submissions, out, source)
    assert sorted(graded) == ["bob", "cy"] and [r.earned for r in third.results] == [6.0, 6.0, 6.0, 0]

    graded.clear()
    run(submissions, out, source, secret=SECRET)
    run(submissions, out, source, secret=SECRET)
    assert sorted(graded) == ["ann", "bob", "cy"]
    graded.clear()
    run(submissions, out, edited(source, t3_check=source.cells[place(source, "t3-check")].source + "\n"), secret=SECRET)
    assert sorted(graded) == ["ann", "bob", "cy"]
    graded.clear()
    run(submissions, out, source, secret=SECRET, again=True)
    assert sorted(graded) == ["ann", "bob", "cy"]


def test_a_change_of_the_library_makes_results_anew(source, one_root, right, tmp_path: Path, monkeypatch) -> None:
    submissions, out = lay(tmp_path / "in", ann=right), tmp_path / "out"
    run(submissions, out, source)
    monkeypatch.setattr("underload.course.ledger.library_digest", lambda: "another")
    assert run(submissions, out, source).reused == 0
    assert len(library_digest()) == 64


@pytest.mark.slow
def test_an_interrupted_run_keeps_what_was_done_and_goes_on(source, right, tmp_path: Path, monkeypatch) -> None:
    submissions = lay(tmp_path / "in", **{f"s{number:02}": right for number in range(8)})
    out = tmp_path / "out"
    done = threading.Event()
    keep = grading.keep

    def counted(result: Result, where: Path) -> None:
        keep(result, where)
        if len(list(where.rglob("results/*/*.json"))) >= 3:
            done.set()

    def interrupted(waiting):
        assert done.wait(60)
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(grading, "keep", counted)
    monkeypatch.setattr(grading, "as_completed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(submissions, out, source)
    kept = {path: path.stat().st_mtime_ns for path in out.rglob("results/*/*.json")}
    assert 3 <= len(kept) < 8
    assert all(read_result(path).status == "graded" for path in kept)
    monkeypatch.undo()
    done_later = run(submissions, out, source)
    assert done_later.reused == len(kept) and [result.earned for result in done_later.results] == [6.0] * 8
    assert all(path.stat().st_mtime_ns == when for path, when in kept.items())


def test_hand_outs_with_numbers_of_their_own_need_the_secret(source, tmp_path: Path) -> None:
    mine = solved_by_hand(personal(handout(source), 5))
    mine.metadata["underload"]["seed"] = 5
    with pytest.raises(LabError, match="1 of 1 notebooks have numbers of the student's own.*--secret"):
        run(lay(tmp_path / "in", ann=mine), tmp_path / "out", source)


def test_a_copy_that_forgot_whose_it_is_gets_its_students_numbers(source, one_root, tmp_path: Path) -> None:
    mine = solved_by_hand(personal(handout(source), seed_for(SECRET, "ann")))
    mine.metadata["underload"].update(student="ann", seed=seed_for(SECRET, "ann"), released="2026-11-30")
    bare = solved_by_hand(handout(source))  # with the book's numbers, of which solutions lie about
    bare.metadata["underload"]["released"] = "2026-11-30"
    done = run(lay(tmp_path / "in", ann=mine, bob=bare), tmp_path / "out", source, secret=SECRET)
    _, bob = done.results
    said = " ".join(bob.notes)
    assert "no longer say whose copy it is" in said and str(seed_for(SECRET, "bob")) in said
    alone = run(lay(tmp_path / "in2", bob=bare), tmp_path / "out2", source, secret=SECRET).results[0]
    assert "no longer say" not in " ".join(alone.notes), "one copy for everybody has the book's numbers"


def test_several_students_with_one_hand_out_are_named(source, one_root, tmp_path: Path) -> None:
    mine = solved_by_hand(personal(handout(source), seed_for(SECRET, "ann")))
    mine.metadata["underload"].update(student="ann", seed=seed_for(SECRET, "ann"))
    done = run(
        lay(tmp_path / "in", ann=mine, bob=mine),
        tmp_path / "out",
        source,
        secret=SECRET,
        roster=Roster(("ann", "bob"), {}),
    )
    ann, bob = done.results
    assert ann.notes == ("2 students handed in the hand-out of 'ann': ann, bob",)
    assert "graded with bob's numbers" in " ".join(bob.notes)


@pytest.mark.parametrize(("submissions", "out"), [("a", "a/b"), ("a/b", "a"), ("a", "a")])
def test_results_among_submissions_are_refused(source, tmp_path: Path, submissions: str, out: str) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    with pytest.raises(LabError, match="lie in each other"):
        run(tmp_path / submissions, tmp_path / out, source)


def test_nothing_to_grade_is_said(source, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(LabError, match="no submissions in"):
        run(tmp_path / "in", tmp_path / "out", source)
    empty = nbformat.v4.new_notebook()
    with pytest.raises(LabError, match="nothing is graded in looking"):
        grade(tmp_path / "in", tmp_path / "out", labs={"looking": empty}, progress=False)


def test_fewer_at_a_time_where_memory_is_short(monkeypatch) -> None:
    monkeypatch.setattr(grading.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    for free, workers in ((100 << 30, 8), (6 << 30, 2), (1 << 30, 1), (None, 8)):
        monkeypatch.setattr(grading, "available_memory", lambda free=free: free)
        assert grading.sensible_workers(Limits(memory=2 << 30)) == workers


# ---- the command ------------------------------------------------------------------------------------------------


def test_the_bar_says_whom_it_waits_for(source, one_root, right, tmp_path: Path, capsys) -> None:
    lay(tmp_path / "in", ann=right, zoe=edited(right, t1_answer="while True: pass"))
    grade(tmp_path / "in", tmp_path / "out", labs={LAB: source}, limits=LIMITS, workers=2)
    bars = capsys.readouterr().err.split("\r")
    assert any(" 1/2 " in bar and bar.rstrip().endswith("zoe]") for bar in bars)
    assert " 2/2 " in bars[-1] and "zoe" not in bars[-1]


@pytest.fixture
def place_of_labs(source, tmp_path: Path) -> Path:
    write_notebook(source, tmp_path / "labs" / f"{LAB}.ipynb")
    return tmp_path


def test_the_command_says_in_a_few_lines_what_came_out(place_of_labs: Path, source, right, capsys) -> None:
    lay(place_of_labs / "in", ann=right, bob=handout(source))
    (place_of_labs / "in" / f"cy_{LAB}.ipynb").write_text("no")
    words = ["course", "grade", str(place_of_labs / "in"), "--out", str(place_of_labs / "out")]
    words += ["--labs", str(place_of_labs / "labs"), "--cell-seconds", "2", "--memory", "0.3"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert re.search(rf"^{LAB} +3 +1 +3\.0 +8 +0 +1$", out, re.MULTILINE), out
    assert f"refused: cy, cy_{LAB}.ipynb: it is no JSON (line 1)" in out
    assert "3 results made now" in out and "1 open answers wait for a person" in out and "report.html" in out
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["reused"] == 3 and found["labs"][0] == {
        "lab": LAB, "submissions": 3, "graded": 2, "refused": 1, "mean": 3.0, "points": 8.0, "bonus": 1.0,
        "with_problems": 0, "unmarked": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--workers", "0"], "--workers 0: give a number from 1"),
        (["--cell-seconds", "-1"], "--cell-seconds -1"),
        (["--memory", "1e9"], "--memory 1e+09"),
        (["--memory", "nan"], "--memory nan"),
        (["--lab", "none"], "there is no lab 'none'"),
        (["--secret", "no/secret"], "there is no secret at no/secret"),
        (["--students", "no.csv"], "no roster at no.csv"),
        (["--marks", "no.json"], "there is no such file"),
        ([], "no submissions in"),
    ],
)
def test_what_can_be_mended_is_one_line_and_exit_code_2(
    place_of_labs: Path, capsys, more: list[str], said: str
) -> None:
    (place_of_labs / "in").mkdir()
    words = ["course", "grade", str(place_of_labs / "in"), "--out", str(place_of_labs / "out")]
    assert main([*words, "--labs", str(place_of_labs / "labs"), *more]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


def test_an_interrupted_command_says_how_to_go_on(place_of_labs: Path, right, capsys, monkeypatch) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(grading, "grade", interrupted)
    lay(place_of_labs / "in", ann=right)
    words = ["course", "grade", str(place_of_labs / "in"), "--out", str(place_of_labs / "out")]
    assert main([*words, "--labs", str(place_of_labs / "labs")]) == 130
    assert "0 results are kept in" in (err := capsys.readouterr().err) and "the same command again goes on" in err


# ---- small parts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("a = b = 1\nc, (d, *e) = f\ng: int = 3\nh += 1", "a b c d e g h"),
        ("def f(x):\n    y = 1\n\nclass C:\n    z = 1\n\nimport os.path, sys as s\nfrom m import n as k", "f C os s k"),
        ("for i in range(3):\n    j = i\nif (w := 2):\n    pass\nwith open('x') as q:\n    pass", "i j w q"),
        ("[v for v in range(3)]\nlambda u: u\n%matplotlib inline\nt = await g()", "t"),
        ("def (", ""),
    ],
)
def test_the_names_that_a_cell_binds(code: str, names: str) -> None:
    assert bound(code) == set(names.split())


def test_long_text_keeps_its_beginning_and_end() -> None:
    assert clean("short", 100) == "short"
    text = clean("a" * 500 + "b" * 500, 100)
    assert text.startswith("a" * 50) and text.endswith("b" * 50) and "900 characters left out" in text
