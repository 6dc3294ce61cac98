"""`underload course` as a person types it: what is printed, what is written, and the exit code."""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from queue_lab import edited, queue_lab, solved_by_hand
from sample_task_lab import task_lab

from underload.cli import main
from underload.course import read_notebook, write_notebook
from underload.course.marking import KIND, VERSION, answer_digest
from underload.course.personal import seed_of

LAB = "queue-lab"
Capture = pytest.CaptureFixture[str]
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="runs cells in forked processes")


@pytest.fixture()
def labs(tmp_path: Path) -> Path:
    folder = tmp_path / "my labs"
    write_notebook(queue_lab(), folder / f"{LAB}.ipynb")
    plain = queue_lab("plain")
    plain.cells = [cell for cell in plain.cells if "nbgrader" not in cell.metadata]
    write_notebook(plain, folder / "plain.ipynb")
    return folder


def course(*words: object) -> int:
    return main(["course", *map(str, words)])


# ---- help ---------------------------------------------------------------------------------------------------------


def test_the_help_is_a_short_manual_in_the_order_of_work(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        course("--help")
    assert ended.value.code == 0
    said = capsys.readouterr().out
    places = [
        said.index(word)
        for word in ("course list", "course release", "(collect)", "course grade", "(mark)", "--marks", "course check")
    ]
    assert places == sorted(places)
    assert max(map(len, said.splitlines())) <= 120


@pytest.mark.parametrize("word", ["list", "release", "grade", "gradescope", "check", "verify"])
def test_every_word_explains_itself_with_an_example(word: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        course(word, "--help")
    assert ended.value.code == 0
    assert f"underload course {word}" in capsys.readouterr().out.split("options:")[1]


def test_help_loads_nothing_heavy() -> None:
    heavy = "sorted({'torch', 'nbgrader', 'nbclient', 'matplotlib', 'IPython'} & set(sys.modules))"
    code = (
        "import sys\nfrom underload.cli import main\n"
        f"try: main(['course', '--help'])\nexcept SystemExit: pass\nprint({heavy})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# ---- list ---------------------------------------------------------------------------------------------------------


def test_list_says_tasks_points_minutes_open_answers_and_seed(labs: Path, capsys: Capture) -> None:
    assert course("list", "--labs", labs) == 0
    said = capsys.readouterr().out
    assert (
        "queue-lab: A lab about a queue; 8 + 1 points, 20 minutes; each student can have numbers of their own" in said
    )
    assert re.search(r"2  Your numbers +4 +5 min   2 of them for an open answer", said)
    assert re.search(r"3  more +\+1 +3 min\n", said)
    assert "plain: A lab about a queue; nothing in it is graded" in said


def test_list_as_json(labs: Path, capsys: Capture) -> None:
    assert course("list", "--labs", labs, "--json") == 0
    made = {one["lab"]: one for one in json.loads(capsys.readouterr().out)["labs"]}
    lab = made[LAB]
    assert (lab["points"], lab["bonus"], lab["minutes"], lab["seed"]) == (8, 1, 20, True)
    assert [task["points"] for task in lab["tasks"]] == [4, 4, 1]
    assert lab["tasks"][0]["library"] == ["underload.metrics.ttft"]
    assert [part["open"] for part in lab["tasks"][1]["parts"]] == [False, True]
    assert made["plain"]["tasks"] == []


def test_list_knows_the_books_labs(capsys: Capture) -> None:
    assert course("list") == 0
    assert "latency-budget: " in capsys.readouterr().out


# ---- release ------------------------------------------------------------------------------------------------------


def test_release_to_a_class(labs: Path, tmp_path: Path, capsys: Capture) -> None:
    roster, secret, out = tmp_path / "class.csv", tmp_path / "secret", tmp_path / "out"
    roster.write_text("student\nann\nbob\n")
    words = ["release", "--labs", labs, "--out", out, "--secret", secret, "--students", roster]
    assert course(*words, "--deadline", "Friday", "--book", "https://example.org/book") == 0
    said = capsys.readouterr().out
    assert "do not commit it" in said and "2 students, ann to bob" in said
    assert re.search(r"queue-lab, [0-9a-f]{8}, 8 points and 1 on top: handed out", said)
    assert "plain" not in said  # nothing in it is graded
    if os.name == "posix":
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    ann, bob = (read_notebook(out / student / LAB / f"{LAB}.ipynb") for student in ("ann", "bob"))
    assert seed_of(ann) != seed_of(bob)
    readme = (out / "ann" / LAB / "README.md").read_text()
    assert "Hand in by Friday" in readme and "(from https://example.org/book)" in readme
    assert course(*words, "--deadline", "Friday") == 0
    said = capsys.readouterr().out
    assert "unchanged since" in said and "new cop" not in said
    roster.write_text("student\nann\nbob\ncy\n")
    assert course(*words, "--deadline", "Friday") == 0
    assert re.search(r"unchanged since [0-9-]+, 1 new copy;", capsys.readouterr().out)


def test_release_of_a_changed_lab_says_loudly_what_to_tell(labs: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    assert course("release", LAB, "--labs", labs, "--out", out) == 0
    write_notebook(edited(queue_lab(), t1="## Task 1. Who waits\n\nAnother text."), labs / f"{LAB}.ipynb")
    capsys.readouterr()
    assert course("release", LAB, "--labs", labs, "--out", out) == 0
    said = capsys.readouterr().out
    assert "CHANGED: queue-lab" in said and "task 1: text changed" in said and "Tell them" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["quewe-lab"], "no lab 'quewe-lab'.*there are: plain, queue-lab"),
        (["plain"], "nothing in it is graded"),
        ([LAB, "--students", "ROSTER"], "needs --secret"),
        ([LAB, "--students", "NONE", "--secret", "SECRET"], "no roster"),
        ([LAB, "--secret", "OUT/secret"], "among the hand-outs"),
        ([LAB, "--rules", "NONE"], "no file"),
    ],
)
def test_release_says_what_to_mend(labs: Path, tmp_path: Path, capsys: Capture, words: list[str], said: str) -> None:
    (tmp_path / "ROSTER").write_text("student\nann\n")
    names = ("ROSTER", "NONE", "SECRET", "OUT")
    real = [str(tmp_path / word) if word.split("/")[0] in names else word for word in words]
    assert course("release", *real, "--labs", labs, "--out", tmp_path / "OUT") == 2
    told = capsys.readouterr()
    assert re.search(said, told.err) and told.err.count("\n") == 1
    assert not (tmp_path / "OUT").exists() and not (tmp_path / "SECRET").exists()


def test_a_secret_of_a_release_that_failed_is_not_left(labs: Path, tmp_path: Path, capsys: Capture) -> None:
    write_notebook(edited(queue_lab(), t1_answer="### BEGIN SOLUTION\nx = 1"), labs / f"{LAB}.ipynb")
    secret = tmp_path / "secret"
    assert course("release", LAB, "--labs", labs, "--out", tmp_path / "out", "--secret", secret) == 2
    assert "never closed" in capsys.readouterr().err and not secret.exists()


def test_own_rules(labs: Path, tmp_path: Path) -> None:
    (tmp_path / "rules.md").write_text("Ask the cat.")
    assert course("release", LAB, "--labs", labs, "--out", tmp_path / "out", "--rules", tmp_path / "rules.md") == 0
    assert "Ask the cat." in (tmp_path / "out" / LAB / "README.md").read_text()


# ---- check, gradescope --------------------------------------------------------------------------------------------


@forks
def test_check_from_release_to_exit_code(
    labs: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNDERLOAD_LABS", str(labs))
    assert course("release", LAB, "--out", tmp_path / "out") == 0
    path = tmp_path / "out" / LAB / f"{LAB}.ipynb"
    write_notebook(solved_by_hand(read_notebook(path)), path)
    capsys.readouterr()
    assert course("check", path) == 0
    assert "The core: 4 of 4 by the checks here, 8 in all." in capsys.readouterr().out
    write_notebook(edited(read_notebook(path), t1_answer="def waits(:"), path)
    assert course("check", path, "--json") == 1
    made = json.loads(capsys.readouterr().out)
    assert made["can_be_handed_in"] is False and [task["earned"] for task in made["tasks"]] == [0, 2, 1]


def test_check_of_no_notebook(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "x.ipynb").write_text("{}")
    assert course("check", tmp_path / "x.ipynb") == 2
    assert "no notebook" in capsys.readouterr().err
    assert course("check", tmp_path / "none.ipynb") == 2


def test_gradescope(labs: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "a.zip"
    assert course("gradescope", LAB, "--labs", labs, "--out", out) == 0
    assert "4 parts, 8 points" in capsys.readouterr().out
    with zipfile.ZipFile(out) as there:
        assert "run_autograder" in there.namelist()
    assert course("gradescope", LAB, "--labs", labs, "--out", out, "--secret", tmp_path / "none") == 2
    assert "no secret" in capsys.readouterr().err


# ---- grade --------------------------------------------------------------------------------------------------------


@forks
def test_grade_says_what_it_passed_over_and_how_to_go_on(labs: Path, tmp_path: Path, capsys: Capture) -> None:
    """Two labs in two folders, one class: a person who names one folder must see what was not graded, and the command
    that goes on must be one that can be typed."""
    second, roster, secret = tmp_path / "more", tmp_path / "class.csv", tmp_path / "course secret"
    write_notebook(queue_lab("second"), second / "second.ipynb")
    roster.write_text("student\nann\nbob\ncy\n")
    handed, came, out = tmp_path / "handed", tmp_path / "came", tmp_path / "graded"
    for folder, name in ((labs, LAB), (second, "second")):
        words = [name, "--labs", folder, "--out", handed, "--secret", secret, "--students", roster]
        assert course("release", *words) == 0
    for student, name in (("ann", LAB), ("ann", "second"), ("bob", "second")):
        work = solved_by_hand(read_notebook(handed / student / name / f"{name}.ipynb"))
        write_notebook(edited(work, t2_why="Because of their order."), came / student / f"{name}.ipynb")
    (came / "cy").mkdir()
    (came / "cy" / "cy.ipynb").write_bytes(b"%PDF-1.7")
    capsys.readouterr()

    options = ["--secret", secret, "--students", roster, "--workers", "1"]
    assert course("grade", came, "--out", out, "--labs", labs, "--lab", LAB, *options) == 0
    said = capsys.readouterr().out
    assert re.search(r"^queue-lab +2 +1 ", said, re.MULTILINE)  # ann's, and cy's PDF
    assert "passed over: 2 of the lab second; graded here: queue-lab" in said and "--labs DIR --labs labs" in said
    assert "refused: cy" in said and "refused: bob" not in said
    (again,) = [line.strip() for line in said.splitlines() if line.startswith("  underload course grade ")]
    assert str(secret) in shlex.split(again) and "--students" in again and f"--lab {LAB}" in again

    mark = {"student": "ann", "lab": LAB, "part": "task-2-why", "points": 1.5, "comment": ""}
    mark["digest"] = answer_digest("Because of their order.")
    (tmp_path / "m.json").write_text(json.dumps({"kind": KIND, "version": VERSION, "marks": [mark]}))
    assert re.search(r" 6\.0 +8 +0 +1$", said, re.MULTILINE)
    assert main([*shlex.split(again)[1:], "--marks", str(tmp_path / "m.json")]) == 0
    said = capsys.readouterr().out
    assert "0 results made now" in said and "wait for a person" not in said
    assert re.search(r" 7\.5 +8 +0 +0$", said, re.MULTILINE)

    assert course("grade", came, "--out", out, "--labs", labs, "--lab", LAB, "second", "--labs", second, *options) == 0
    said = capsys.readouterr().out
    assert re.search(r"^second +2 +0 ", said, re.MULTILINE) and "passed over: " not in said
    assert re.search(r" 7\.5 +8 +0 +0$", said, re.MULTILINE)  # the marks were kept
    assert re.search(r"^\(of no lab\) +1 +1 ", said, re.MULTILINE)  # the PDF could be either
    assert course("grade", came, "--out", out, "--labs", labs, *options, "--json") == 0
    assert json.loads(capsys.readouterr().out)["passed_over"] == {"second": 2}
    assert course("grade", came, "--out", out, "--labs", second, *options) == 0
    assert "those of queue-lab were passed over" in capsys.readouterr().out  # marks of the other lab do no harm


# ---- verify -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("faulty", "said"), [(["task-1-check"], "1 complaint"), (["task-1-check", "task-2-check"], "2 complaints")]
)
def test_verify_counts_its_complaints_and_lists_them(
    faulty: list[str], said: str, tmp_path: Path, capsys: Capture
) -> None:
    lab = task_lab()
    for cell in lab.cells:
        if cell.metadata.get("nbgrader", {}).get("grade_id") in faulty:
            cell.source += "\n'no points'"
    write_notebook(lab, tmp_path / "counting.ipynb")
    assert course("verify", "counting", "--labs", tmp_path, "--wrong", tmp_path) == 1
    head, *complaints = capsys.readouterr().out.splitlines()
    assert head.startswith("counting ") and head.endswith(f": {said}") and len(complaints) == len(faulty)
