"""Handing labs out: what a student gets, what an instructor is told, what is never overwritten."""

from __future__ import annotations

import copy
import datetime
import json
import os
import random
import stat
from pathlib import Path

import nbformat
import pytest
from queue_lab import edited, queue_lab, solved_by_hand

from underload.course import LabError, handout, read_notebook, secrets, write_notebook
from underload.course.changes import contents, differences, hidden_changed
from underload.course.handout import digest
from underload.course.personal import hidden_seed, personal, read_secret, seed_for, seed_of
from underload.course.release import advice, check_source, hand_out, release
from underload.course.roster import check_students, read_roster
from underload.course.shelf import read_labs

SECRET = b"a secret of the class, long enough"
DAY = datetime.date(2026, 11, 30)
LATER = datetime.date(2026, 12, 7)
LAB = "queue-lab"


# ---- numbers of one's own -----------------------------------------------------------------------------------------


def test_a_student_has_one_seed_of_their_own() -> None:
    seeds = {student: seed_for(SECRET, student) for student in (f"s{number}" for number in range(2000))}
    assert len(set(seeds.values())) == len(seeds)
    assert all(0 < seed < 2**31 for seed in seeds.values())
    assert seeds["s7"] == seed_for(SECRET, "s7") != seed_for(b"another secret of 16", "s7")


def test_hidden_seeds_differ_by_class_lab_and_part() -> None:
    drawn = {
        hidden_seed(secret, lab, part)
        for secret in (SECRET, b"another")
        for lab in ("a", "b")
        for part in ("task-1-check", "task-2-check")
    }
    assert len(drawn) == 8
    assert hidden_seed(SECRET, "a", "b") == hidden_seed(SECRET, "a", "b")
    assert hidden_seed(b"", "a", "b") == b""  # without a secret, the book's own draw


def test_a_personal_copy_differs_in_one_line() -> None:
    source = queue_lab()
    mine = personal(source, 123456)
    assert (seed_of(source), seed_of(mine), seed_of(personal(mine, 7))) == (0, 123456, 7)
    lines = [line for cell in mine.cells for line in cell.source.splitlines()]
    assert lines.count("SEED = 123456  # yours") == 1
    assert [a.id for a, b in zip(source.cells, mine.cells) if a.source != b.source] == ["setup"]


def test_a_lab_without_a_seed_stays_as_it_is() -> None:
    source = edited(queue_lab(), setup="print('SEED = 0')\nif True:\n    SEED = 0\nSEEDS = 3")
    assert seed_of(source) is None
    assert personal(source, 5) is source


def test_two_seeds_are_refused() -> None:
    with pytest.raises(LabError, match="SEED is set 2 times .*setup, t2-show"):
        personal(edited(queue_lab(), t2_show="SEED = 3"), 5)


def test_no_number_is_too_long_for_a_seed() -> None:
    assert seed_of(edited(queue_lab(), setup="SEED = " + "9" * 5000)) is None


def test_a_secret_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "course" / "secret"
    with pytest.raises(LabError, match="no secret at"):
        read_secret(path)
    made = read_secret(path, make=True)
    assert len(made) == 64 and made == read_secret(path) == read_secret(path, make=True)
    if os.name == "posix":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    other = read_secret(tmp_path / "other", make=True)
    assert other != made


@pytest.mark.parametrize("content", [b"", b"  \n", b"hunter2\n", b"x" * 5000])
def test_what_is_no_secret_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    with pytest.raises(LabError, match="bytes and a secret has 16 to 4096"):
        read_secret(path, make=True)
    assert path.read_bytes() == content


# ---- rosters ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "student\nann\nbob.lee\nzoë@x.edu\n",
        "ann\nbob.lee\nzoë@x.edu\n",
        "name;student\nAnn;ann\nBob;bob.lee\n\n;zoë@x.edu\n",
        "\ufeffStudent,Section\r\nann,1\r\nbob.lee,1\r\n\r\nzoë@x.edu,2\r\n",
        "id\tsection\nann\t1\nbob.lee\t2\nzoë@x.edu\t1\n",
        '"Last, First",Student\n"Lee, Ann",ann\n"Lee, Bob",bob.lee\n"X, Zoë",zoë@x.edu\n',
    ],
)
def test_rosters_as_they_come(tmp_path: Path, text: str) -> None:
    path = tmp_path / "roster.csv"
    path.write_text(text, encoding="utf-8")
    assert read_roster(path).students == ("ann", "bob.lee", "zoë@x.edu")


@pytest.mark.parametrize(
    ("students", "said"),
    [
        (["ann", "bob", "Ann"], "'Ann' .*occurs twice"),
        (["../etc"], r"'\.\./etc' .has the character '/'"),
        ([".hidden"], "'.hidden' .begins with '.'"),
        (["a/b", "ann lee"], "'a/b' .*'/'.*'ann lee' .has the character space"),
        (["Lee, Ann"], "'Lee, Ann' .has the character comma"),
        (["a\\b"], "character"),
        (["nul"], "Windows"),
        (["ann."], "Windows"),
        (["x" * 65], "65 characters"),
        (["ann", ""], "entry 2 .empty"),
        (["ann\n"], "character"),
    ],
)
def test_an_id_that_is_no_folder_is_refused_by_name(students: list[str], said: str) -> None:
    with pytest.raises(LabError, match=said):
        check_students(students)


@pytest.mark.parametrize(("content", "said"), [(b"", "nobody"), (b"student\n", "nobody"), (b"\xff\xfe\x00", "UTF-8")])
def test_a_roster_of_nobody_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "roster.csv"
    path.write_bytes(content)
    with pytest.raises(LabError, match=said):
        read_roster(path)
    with pytest.raises(LabError, match="no roster"):
        read_roster(tmp_path / "none.csv")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="runs cells in forked processes")
def test_a_copy_for_everybody_is_graded_with_the_books_numbers_whatever_the_secret() -> None:
    """A class may have a secret for its hidden inputs and one hand-out for all."""
    from underload.course.grade import grade_one

    given = hand_out(queue_lab(), LAB, "2026-11-30")
    numbers = [random.Random(0).randrange(100) for _ in range(3)]
    work = edited(solved_by_hand(given), t2_answer=f"my_sum = {sum(numbers)}")
    result = grade_one(queue_lab(), work, "ann", secret=SECRET)
    assert (result.earned, result.bonus, result.notes) == (6, 1, ())


# ---- the hand-out -------------------------------------------------------------------------------------------------


def test_what_a_student_gets(tmp_path: Path) -> None:
    source = queue_lab()
    done = release({LAB: source}, tmp_path, deadline="Friday noon", day=DAY)
    assert [(one.lab, one.state, one.folders, one.date) for one in done.labs] == [(LAB, "first", 1, "2026-11-30")]
    given = read_notebook(tmp_path / LAB / f"{LAB}.ipynb")
    about = given.metadata["underload"]
    assert about["handout"] == digest(handout(source)) == done.labs[0].version
    assert (about["lab"], about["released"]) == (LAB, "2026-11-30")
    assert "student" not in about and "seed" not in about
    assert given.cells[0].source.endswith(f"*Hand-out of 2026-11-30, {about['handout'][:8]}.*")
    text = json.dumps(given)
    assert secrets(source).lines_in("\n".join(cell.source for cell in given.cells)) == []
    for word in ("BEGIN", "RUBRIC", "hidden_draw", "STUB"):
        assert word not in text
    readme = (tmp_path / LAB / "README.md").read_text()
    for word in ("Hand in by Friday noon", "underload course check", "2026-11-30", "8 points", "task 2", "1 on top"):
        assert word in readme
    assert "$" not in readme and "SEED" not in readme
    assert "(your teacher says from where)" in readme and "Leave the outputs in" in readme  # it has an open answer
    assert sorted(path.name for path in tmp_path.iterdir()) == ["CHANGES.md", "queue-lab", "release.json"]


def test_links_lead_out_of_the_folder_that_a_hand_out_lies_in() -> None:
    source = queue_lab()
    source.cells[0].source += "\nRead [the chapter](../chapters/queue.md)."
    given = hand_out(source, LAB, "2026-11-30")
    assert "(../../chapters/queue.md)" in given.cells[0].source  # my-labs/queue-lab/queue-lab.ipynb, as the README says


def test_a_copy_for_each_student(tmp_path: Path) -> None:
    done = release({LAB: queue_lab()}, tmp_path, secret=SECRET, students=["ann", "bob"], day=DAY)
    assert done.students == ("ann", "bob")
    seeds = []
    for student in ("ann", "bob"):
        given = read_notebook(tmp_path / student / LAB / f"{LAB}.ipynb")
        about = given.metadata["underload"]
        assert about["student"] == student and about["seed"] == seed_of(given) == seed_for(SECRET, student)
        assert about["handout"] == digest(handout(queue_lab()))  # the same version for all
        assert "SEED" in (tmp_path / student / LAB / "README.md").read_text()
        seeds.append(about["seed"])
    assert seeds[0] != seeds[1]
    assert not (tmp_path / LAB).exists()
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert SECRET not in path.read_bytes()


def test_students_need_a_secret_and_always_the_same_one(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="needs a secret"):
        release({LAB: queue_lab()}, tmp_path, students=["ann"])
    release({LAB: queue_lab()}, tmp_path, secret=SECRET, students=["ann"])
    with pytest.raises(LabError, match="another secret"):
        release({LAB: queue_lab()}, tmp_path, secret=b"another secret, also long", students=["ann"])


@pytest.mark.parametrize("student", [LAB, "Queue-Lab", "CHANGES.md", "release.json"])
def test_a_student_is_not_called_like_what_lies_there(tmp_path: Path, student: str) -> None:
    with pytest.raises(LabError, match="cannot be called"):
        release({LAB: queue_lab()}, tmp_path, secret=SECRET, students=[student])
    assert list(tmp_path.iterdir()) == []


def test_nbgrader_takes_the_hand_out_for_its_own() -> None:
    from nbgrader.preprocessors import CheckCellMetadata
    from nbgrader.utils import compute_checksum, determine_grade

    given = hand_out(queue_lab(), LAB, "2026-11-30", student="ann", seed=5)
    CheckCellMetadata().preprocess(copy.deepcopy(given), {})
    by_id = {cell.id: cell for cell in given.cells}
    for cell in given.cells:
        if "nbgrader" in cell.metadata:
            assert cell.metadata.nbgrader["checksum"] == compute_checksum(cell)
            assert cell.metadata["deletable"] is False
    assert by_id["t1-check"].metadata["editable"] is False
    assert by_id["t1-answer"].metadata.get("editable", True) is True
    assert determine_grade(by_id["t2-why"]) == (0, 2.0)  # an untouched open answer scores 0 by itself
    by_id["t2-why"].source = "Because."
    assert determine_grade(by_id["t2-why"]) == (None, 2.0)


def test_a_lab_that_begins_with_code_says_its_version_too() -> None:
    source = queue_lab()
    del source.cells[0]
    given = hand_out(source, LAB, "2026-11-30")
    assert given.cells[0].cell_type == "markdown" and "Hand-out of 2026-11-30" in given.cells[0].source
    assert given.cells[1].id == "setup"


def test_a_metadata_only_leak_is_seen() -> None:
    source = queue_lab()
    source.metadata["underload"]["note"] = "the trick is  free = start + service  at the end"
    assert any("give away 'free=start+service'" in fault for fault in check_source(source, LAB))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"t1_answer": "def waits(a, s):\n    return []"}, "no '### BEGIN SOLUTION'"),
        ({"t1_answer": "if True:\n### BEGIN SOLUTION\n    x = 1\n### END SOLUTION"}, "no Python"),
        ({"t1_check": "points = Points(4)\n### BEGIN HIDDEN TESTS\npoints.earned()"}, "never closed"),
        ({"t2_show": "SEED = 4"}, "SEED is set"),
        (
            {"t2_answer": "### BEGIN SOLUTION\nmy_sum = sum(mine)\n### END SOLUTION", "t2_show": "my_sum = sum(mine)"},
            "",
        ),
    ],
)
def test_a_faulty_lab_is_not_handed_out(tmp_path: Path, change: dict[str, str], said: str) -> None:
    source = edited(queue_lab(), **change)
    if not said:  # what also stands in a given cell is no secret
        assert check_source(source, LAB) == []
        return
    with pytest.raises(LabError, match=said):
        release({"fine": queue_lab("fine"), LAB: source}, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_lab_without_points_has_nothing_to_hand_in(tmp_path: Path) -> None:
    source = queue_lab()
    source.cells = [cell for cell in source.cells if "nbgrader" not in cell.metadata]
    with pytest.raises(LabError, match="nothing in it is graded"):
        release({LAB: source}, tmp_path)
    with pytest.raises(LabError, match="must agree"):
        release({"other-name": queue_lab()}, tmp_path)


# ---- again --------------------------------------------------------------------------------------------------------


def test_the_same_again_changes_no_file(tmp_path: Path) -> None:
    release({LAB: queue_lab()}, tmp_path, day=DAY)
    path = tmp_path / LAB / f"{LAB}.ipynb"
    before = path.stat().st_mtime_ns, path.read_bytes()
    done = release({LAB: queue_lab()}, tmp_path, day=LATER)
    assert (done.labs[0].state, done.labs[0].date, done.written) == ("unchanged", "2026-11-30", 0)
    assert (path.stat().st_mtime_ns, path.read_bytes()) == before
    log = (tmp_path / "CHANGES.md").read_text()
    assert log.count("# Hand-outs") == 1 and "unchanged since 2026-11-30" in log
    assert log.index("2026-11-30") < log.index("2026-12-07")


def test_a_day_has_one_heading_however_often_something_is_handed_out(tmp_path: Path) -> None:
    release({LAB: queue_lab()}, tmp_path, day=DAY)
    release({LAB: queue_lab()}, tmp_path, day=DAY)
    release({LAB: queue_lab()}, tmp_path, day=LATER)
    log = (tmp_path / "CHANGES.md").read_text()
    assert [line for line in log.splitlines() if line.startswith("#")] == [
        "# Hand-outs",
        "## 2026-11-30",
        "## 2026-12-07",
    ]
    first, second = log.split("## 2026-11-30\n\n")[1].split("\n\n## 2026-12-07\n\n")
    assert [line.split(": ")[1][:9] for line in first.splitlines()] == ["first han", "unchanged"]
    assert second.startswith(f"- **{LAB}**")


def test_two_releases_to_students_on_a_day_say_to_whom(tmp_path: Path) -> None:
    release({LAB: queue_lab()}, tmp_path, secret=SECRET, students=["ann"], day=DAY)
    release({LAB: queue_lab()}, tmp_path, secret=SECRET, students=["ann", "bob"], day=DAY)
    lines = (tmp_path / "CHANGES.md").read_text().split("## 2026-11-30\n")[1].splitlines()
    assert lines[:3] == ["", "To 1 student:", ""] and lines[4:7] == ["", "To 2 students:", ""] and len(lines) == 8


def test_a_student_who_comes_later_has_a_new_copy_of_the_same_version(tmp_path: Path) -> None:
    release({LAB: queue_lab()}, tmp_path, secret=SECRET, students=["ann", "bob"], day=DAY)
    done = release({LAB: queue_lab()}, tmp_path, secret=SECRET, students=["ann", "bob", "cy"], day=LATER).labs[0]
    assert (done.state, done.folders, done.new) == ("unchanged", 3, 1)
    assert "unchanged since 2026-11-30, 1 new copy" in (tmp_path / "CHANGES.md").read_text()


def test_copies_for_everybody_and_for_each_student_do_not_mix(tmp_path: Path) -> None:
    plain, own = tmp_path / "plain", tmp_path / "own"
    release({LAB: queue_lab()}, plain)
    with pytest.raises(LabError, match="plain/queue-lab holds the copy of queue-lab for everybody.*in another folder"):
        release({LAB: queue_lab()}, plain, secret=SECRET, students=["ann"])
    assert not (plain / "ann").exists()
    release({LAB: queue_lab()}, own, secret=SECRET, students=["ann", "bob"])
    with pytest.raises(LabError, match="for 2 students.*give --students again"):
        release({LAB: queue_lab()}, own, secret=SECRET)
    assert not (own / LAB).exists()
    (plain / LAB / f"{LAB}.ipynb").unlink()  # taken away by the teacher: then there is nothing to mix up
    release({LAB: queue_lab()}, plain, secret=SECRET, students=["ann"])


def test_a_changed_lab_replaces_and_says_what_to_tell(tmp_path: Path) -> None:
    release({LAB: queue_lab()}, tmp_path, day=DAY)
    source = edited(queue_lab(), t1="## Task 1. Who waits (about 10 minutes, 4 points)\n\nWrite `waits`, in seconds.")
    done = release({LAB: source}, tmp_path, day=LATER).labs[0]
    assert (done.state, done.changes) == ("changed", ("task 1: text changed",))
    assert done.since.startswith("2026-11-30, ")
    said = advice(done)
    assert "2026-12-07" in said and "task 1: text changed" in said
    assert "2026-12-07" in read_notebook(tmp_path / LAB / f"{LAB}.ipynb").cells[0].source
    log = (tmp_path / "CHANGES.md").read_text()
    assert "replaces 2026-11-30" in log and "  - task 1: text changed" in log
    record = json.loads((tmp_path / "release.json").read_text())
    assert record["labs"][LAB]["version"] == done.version and record["labs"][LAB]["date"] == "2026-12-07"


def test_what_changed_is_told_task_by_task() -> None:
    old = contents(queue_lab())
    assert differences(old, old) == []

    source = queue_lab()
    source.cells[4].metadata.nbgrader["points"] = 5
    source.cells[5].source = source.cells[5].source.replace("Your numbers", "Your sum")
    source.cells[7].source += "  # now stricter"
    source.cells[8].source = "print(mine)"
    source.cells[1].source += "\nprint(mine)"
    source.metadata["underload"]["title"] = "A queue"
    del source.cells[10:]
    assert differences(old, contents(source)) == [
        "the title is 'A queue' instead of 'A lab about a queue'",
        "the core has 9 points instead of 8",
        "the bonus has 0 points instead of 1",
        "task 3 (more) was taken out",
        "task 1: task-1-check is worth 5 points instead of 4",
        "task 2 is called 'Your sum' instead of 'Your numbers'",
        "task 2: text, checks and pictures changed",
        "outside the tasks: given code changed",
    ]
    assert "task 3 (more, 1 point) is new" in differences(contents(source), old)


def test_hidden_checks_change_without_a_new_hand_out(tmp_path: Path) -> None:
    release({LAB: queue_lab()}, tmp_path, day=DAY)
    source = queue_lab()
    source.cells[4].source = source.cells[4].source.replace("size=20", "size=30")
    assert hidden_changed(contents(queue_lab()), contents(source)) == ["1"]
    done = release({LAB: source}, tmp_path, day=LATER).labs[0]
    assert (done.state, done.hidden) == ("unchanged", ("1",))
    assert "hidden checks changed" in (tmp_path / "CHANGES.md").read_text()
    assert "size=20" not in (tmp_path / "release.json").read_text()


def test_other_peoples_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "ann").mkdir()
    (tmp_path / "ann" / "homework.txt").write_text("hers")
    release({LAB: queue_lab()}, tmp_path, secret=SECRET, students=["ann", "bob"], day=DAY)
    done = release({LAB: queue_lab()}, tmp_path, secret=SECRET, students=["bob", "cid"], day=LATER)
    assert done.gone == ("ann",)
    assert (tmp_path / "ann" / LAB / f"{LAB}.ipynb").exists()
    assert (tmp_path / "ann" / "homework.txt").read_text() == "hers" and (tmp_path / "notes.txt").exists()


@pytest.mark.parametrize("what", ["a notebook of somebody's", "a folder", "ours, worked in"])
def test_a_notebook_in_the_way_stops_it_before_anything_is_written(tmp_path: Path, what: str) -> None:
    path = tmp_path / LAB / f"{LAB}.ipynb"
    if what == "ours, worked in":
        release({LAB: queue_lab()}, tmp_path, day=DAY)
        write_notebook(edited(read_notebook(path), t2_answer="my_sum = 3"), path)
    elif what == "a folder":
        path.mkdir(parents=True)
    else:
        write_notebook(nbformat.v4.new_notebook(), path)
    before = {other: other.read_bytes() for other in tmp_path.rglob("*") if other.is_file()}
    with pytest.raises(LabError, match="in the way"):
        release({LAB: edited(queue_lab(), t1="## Task 1. Else"), "fine": queue_lab("fine")}, tmp_path, day=LATER)
    assert {other: other.read_bytes() for other in tmp_path.rglob("*") if other.is_file()} == before


def test_a_readme_that_was_edited_stays(tmp_path: Path) -> None:
    release({LAB: queue_lab()}, tmp_path, day=DAY)
    readme = tmp_path / LAB / "README.md"
    readme.write_text("Our own rules.")
    done = release({LAB: queue_lab()}, tmp_path, deadline="Friday", day=LATER)
    assert done.kept == (readme,) and readme.read_text() == "Our own rules."


def test_a_release_that_was_interrupted_is_finished_another_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from underload.course import release as module

    write, names = module._write, []

    def break_off(path: Path, text: str) -> None:
        names.append(path.name)
        if names.count(f"{LAB}.ipynb") == 2:
            raise KeyboardInterrupt
        write(path, text)

    monkeypatch.setattr(module, "_write", break_off)
    with pytest.raises(KeyboardInterrupt):
        release({LAB: queue_lab()}, tmp_path, secret=SECRET, students=["ann", "bob"], day=DAY)
    monkeypatch.undo()
    assert (tmp_path / "ann").exists() and not (tmp_path / "bob").exists()
    release({LAB: queue_lab()}, tmp_path, secret=SECRET, students=["ann", "bob"], day=LATER)
    for student in ("ann", "bob"):
        assert read_notebook(tmp_path / student / LAB / f"{LAB}.ipynb").metadata["underload"]["student"] == student
    assert not list(tmp_path.rglob(".*"))


@pytest.mark.parametrize("name", ["release.json", "CHANGES.md"])
def test_a_record_of_somebody_else_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"version": 99}')
    with pytest.raises(LabError, match=name):
        release({LAB: queue_lab()}, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_own_rules_take_the_place_of_the_books(tmp_path: Path) -> None:
    release({LAB: queue_lab()}, tmp_path, rules="Ask *anybody*. It costs $5.")
    readme = (tmp_path / LAB / "README.md").read_text()
    assert "Ask *anybody*. It costs $5." in readme and "Language models" not in readme


def test_labs_by_name_and_from_a_folder_of_ones_own(tmp_path: Path) -> None:
    write_notebook(queue_lab(), tmp_path / f"{LAB}.ipynb")
    assert list(read_labs(folder=tmp_path)) == [LAB]
    assert list(read_labs([f"somewhere/{LAB}.ipynb", LAB], folder=tmp_path)) == [LAB]
    with pytest.raises(LabError, match=f"no lab 'quewe'.*there are: {LAB}"):
        read_labs(["quewe"], folder=tmp_path)
    with pytest.raises(LabError, match="no folder"):
        read_labs(folder=tmp_path / "none")
    assert "latency-budget" in read_labs()


def test_labs_of_several_folders(tmp_path: Path) -> None:
    write_notebook(queue_lab(), tmp_path / "mine" / f"{LAB}.ipynb")
    write_notebook(queue_lab("other"), tmp_path / "yours" / "other.ipynb")
    both = [tmp_path / "mine", tmp_path / "yours"]
    assert list(read_labs(folder=both)) == [LAB, "other"] and list(read_labs(["other"], both)) == ["other"]
    assert list(read_labs(folder=[both[0], both[0]])) == [LAB]
    with pytest.raises(LabError, match="no lab 'x' in mine/ or yours/; there are: queue-lab, other"):
        read_labs(["x"], both)
    write_notebook(queue_lab(), tmp_path / "yours" / f"{LAB}.ipynb")
    with pytest.raises(LabError, match="two labs are called queue-lab"):
        read_labs(folder=both)
