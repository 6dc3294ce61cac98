"""The autograder for Gradescope, unpacked and run as Gradescope would, and the form of its results."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nbformat import NotebookNode
from queue_lab import code, edited, queue_lab, solved_by_hand

from underload.course import LabError, write_notebook
from underload.course.gradescope import (
    as_gradescope,
    main,
    people_in,
    requirements,
    validate_results,
    write_autograder,
)
from underload.course.gradescope_results import failed
from underload.course.outline import outline
from underload.course.personal import seed_for
from underload.course.points import Check
from underload.course.release import hand_out
from underload.course.results import PartResult, Result

LAB = "queue-lab"
SECRET = b"a secret of the class, long enough"
ANN = "ann"


def personal_copy(student: str = ANN) -> NotebookNode:
    return hand_out(queue_lab(), LAB, "2026-11-30", student=student, seed=seed_for(SECRET, student))


class Box:
    """A folder that stands for /autograder, with the zip unpacked as Gradescope does it."""

    def __init__(self, folder: Path, zipped: Path) -> None:
        self.base = folder
        source = folder / "source"
        with zipfile.ZipFile(zipped) as there:
            for entry in there.infolist():
                path = Path(there.extract(entry, source))
                path.chmod(entry.external_attr >> 16 & 0o777)
        (folder / "submission").mkdir()
        (folder / "results").mkdir()
        (folder / "run_autograder").write_bytes((source / "run_autograder").read_bytes())
        (folder / "run_autograder").chmod(0o755)

    def submit(self, notebook: NotebookNode, name: str = "my homework.ipynb", email: str = "ann@x.edu") -> None:
        write_notebook(notebook, self.base / "submission" / name)
        people = {"id": 1, "users": [{"email": email, "id": 77, "name": "Ann Lee"}]}
        (self.base / "submission_metadata.json").write_text(json.dumps(people))

    def run(self) -> tuple[dict[str, Any], str]:
        done = subprocess.run(
            [str(self.base / "run_autograder")],
            capture_output=True,
            text=True,
            timeout=300,
            env={
                "PATH": os.environ["PATH"],
                "UNDERLOAD_AUTOGRADER": str(self.base),
                "UNDERLOAD_PYTHON": sys.executable,
            },
        )
        results = json.loads((self.base / "results" / "results.json").read_text(encoding="utf-8"))
        assert validate_results(results) == []
        return results, done.stdout + done.stderr


@pytest.fixture(scope="module")
def zipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("zip") / "autograder.zip"
    write_autograder(queue_lab(), LAB, path, secret=SECRET)
    return path


@pytest.fixture()
def box(tmp_path: Path, zipped: Path) -> Iterator[Box]:
    if not hasattr(os, "fork"):
        pytest.skip("runs cells in forked processes")
    yield Box(tmp_path, zipped)


def by_number(results: dict[str, Any]) -> dict[str, tuple[float, float, str]]:
    return {test["number"]: (test["score"], test["max_score"], test["visibility"]) for test in results["tests"]}


# ---- the zip ------------------------------------------------------------------------------------------------------


def test_what_is_in_the_zip(zipped: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(zipped) as there:
        names = set(there.namelist())
        modes = {entry.filename: entry.external_attr >> 16 & 0o777 for entry in there.infolist()}
        text = {name: there.read(name).decode() for name in ("setup.sh", "run_autograder", "README.md")}
        pins = there.read("requirements.txt").decode()
    assert {"setup.sh", "run_autograder", "requirements.txt", "lab.ipynb", "secret", "README.md"} <= names
    assert {"underload/__init__.py", "underload/course/grade.py", "underload/models/pocket/config.json"} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith("/") or ".." in name]
    assert modes["setup.sh"] == modes["run_autograder"] == 0o755 and modes["secret"] == 0o600
    assert text["setup.sh"].startswith("#!") and text["run_autograder"].startswith("#!")
    assert "Autograder points: **6**" in text["README.md"] and "2 points in all (task-2-why: 2)" in text["README.md"]
    for line in pins.splitlines()[1:]:
        assert line.count("==") == 1
    assert "://" not in pins + text["setup.sh"] and "--index" not in pins + text["setup.sh"]
    again = tmp_path / "again.zip"
    write_autograder(queue_lab(), LAB, again, secret=SECRET)
    assert again.read_bytes() == zipped.read_bytes()


@pytest.mark.parametrize("script", ["setup.sh", "run_autograder"])
def test_the_scripts_are_bash(zipped: Path, script: str) -> None:
    with zipfile.ZipFile(zipped) as there:
        code = there.read(script)
    done = subprocess.run(["bash", "-n"], input=code, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_the_pins_are_the_projects_and_no_more_than_grading_needs() -> None:
    pins = dict(line.split("==") for line in requirements())
    project = (Path(__file__).resolve().parents[1] / "requirements.txt").read_text()
    for name, version in pins.items():
        if name != "ipython":  # comes with ipykernel
            assert f"\n{name}=={version}\n" in project
    assert {"torch", "numpy", "nbformat", "ipython"} <= pins.keys()
    assert not {"jupyter-book", "sphinx", "pytest", "jupyterlab", "transformers"} & pins.keys()


def test_no_secret_no_file(tmp_path: Path) -> None:
    said = write_autograder(queue_lab(), LAB, tmp_path / "a.zip")
    with zipfile.ZipFile(tmp_path / "a.zip") as there:
        assert "secret" not in there.namelist()
    assert "solutions and hidden checks" in said and "secret" not in said


def test_what_stands_in_the_way(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="must name a zip file"):
        write_autograder(queue_lab(), LAB, tmp_path / "a.tar")
    (tmp_path / "theirs.zip").write_bytes(b"PK something")
    with pytest.raises(LabError, match="no autograder of ours"):
        write_autograder(queue_lab(), LAB, tmp_path / "theirs.zip")
    assert (tmp_path / "theirs.zip").read_bytes() == b"PK something"
    with pytest.raises(LabError, match="cannot be graded as it is"):
        write_autograder(edited(queue_lab(), t1_answer="x = 1"), LAB, tmp_path / "a.zip")
    source = queue_lab()
    source.cells = [cell for cell in source.cells if "nbgrader" not in cell.metadata]
    with pytest.raises(LabError, match="nothing in"):
        write_autograder(source, LAB, tmp_path / "a.zip")


# ---- run ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_good_submission(box: Box) -> None:
    box.submit(solved_by_hand(personal_copy()))
    results, said = box.run()
    assert results["score"] == 7  # 6 of the core without the open answer, and 1 of the bonus
    assert by_number(results) == {
        "1": (2, 2, "visible"),
        "1h": (2, 2, "after_published"),
        "2.1": (2, 2, "visible"),
        "2.2": (0, 2, "visible"),
        "3": (1, 1, "visible"),
    }
    assert "A person marks this" in results["tests"][3]["output"]
    assert "hand-out of" not in results["output"]  # ann@x.edu is the class's ann
    assert results["extra_data"]["student"] == ANN
    assert "task-1-check: 4 of 4" in said
    assert not (box.base / "source" / "lab.ipynb").exists() and not (box.base / "source" / "secret").exists()


@pytest.mark.slow
def test_a_hostile_submission(box: Box) -> None:
    spy = (
        "import os, json, pathlib\n"
        f"base = pathlib.Path({str(box.base)!r})\n"
        "seen = []\n"
        "for name in ('source/lab.ipynb', 'source/secret', 'submission_metadata.json'):\n"
        "    try:\n"
        "        seen.append((base / name).read_text()[:40])\n"
        "    except Exception as error:\n"
        "        seen.append(type(error).__name__)\n"
        "try:\n"
        "    (base / 'results' / 'results.json').write_text('{\"score\": 999}')\n"
        "    seen.append('written')\n"
        "except Exception as error:\n"
        "    seen.append(type(error).__name__)\n"
        "raise RuntimeError(' '.join(seen))\n"
    )
    answer = "from underload.course import Points as P\nP.earned = lambda self: 99\nimport os\nos._exit(0)"
    work = edited(solved_by_hand(personal_copy()), t2_answer=answer, t3_answer=spy)
    work.cells.append(code("while True:\n    pass", "endless"))
    box.submit(work)
    # the last cell of a wall-clock minute and more is not waited for
    run = box.base / "source" / "underload" / "course" / "sandbox.py"
    run.write_text(run.read_text().replace("cell_seconds: float = 60.0", "cell_seconds: float = 1.0"))
    results, _ = box.run()
    assert by_number(results)["1"][0] == 2 and by_number(results)["1h"][0] == 2
    assert by_number(results)["2.1"][0] == 0 and by_number(results)["3"][0] == 0
    assert results["score"] == 4
    said = "\n".join([results["output"], *(test["output"] for test in results["tests"])])
    assert "ended the process" in said and "did not end within 1 s" in said
    assert "RuntimeError: PermissionError PermissionError PermissionError PermissionError" in said
    assert "hidden_draw" not in json.dumps(results)
    assert not (box.base / "source" / "lab.ipynb").exists()


@pytest.mark.parametrize("kind", ["a PDF", "nothing", "of another lab"])
def test_what_cannot_be_graded_is_told_the_student(box: Box, kind: str) -> None:
    if kind == "a PDF":
        (box.base / "submission" / "lab.ipynb").write_bytes(b"%PDF-1.7")
    elif kind == "of another lab":
        other = personal_copy()
        other.metadata["underload"]["lab"] = "something-else"
        box.submit(other)
    code = main([str(box.base / "source" / "lab.ipynb"), str(box.base / "submission"), str(box.base / "r.json")])
    results = json.loads((box.base / "r.json").read_text())
    assert validate_results(results) == [] and results["score"] == 0
    if kind == "nothing":
        assert code == 1 and "nothing in" in results["output"]
    else:
        assert code == 0 and results["tests"][0]["status"] == "failed"
        assert {"a PDF": "a PDF", "of another lab": "something-else"}[kind] in results["tests"][0]["output"]


def test_a_broken_autograder_says_that_it_is_not_the_students_fault(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "submission").mkdir()
    assert main([str(tmp_path / "none.ipynb"), str(tmp_path / "submission"), str(tmp_path / "results.json")]) == 1
    results = json.loads((tmp_path / "results.json").read_text())
    assert validate_results(results) == [] and "not your fault" in results["output"]
    assert "Traceback" in capsys.readouterr().out and "Traceback" not in results["output"]


def test_who_handed_in(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    users = [{"email": "ann@x.edu", "id": 7, "name": "Ann", "sid": "s1"}, {"email": None, "id": 8}, "odd"]
    path.write_text(json.dumps({"users": users}))
    assert people_in(path) == ["ann@x.edu", "ann", "s1", "Ann", "7", "8"]
    path.write_text("[]")
    assert people_in(path) == people_in(tmp_path / "none") == []


# ---- the form of the results --------------------------------------------------------------------------------------


def result(**parts: PartResult) -> Result:
    made = {
        "task-1-check": PartResult("task-1-check", "1", 4, 4.0),
        "task-2-check": PartResult("task-2-check", "2", 2, 2.0),
        "task-2-why": PartResult("task-2-why", "2", 2, None, manual=True, answer="<b>because</b>"),
        "task-3-check": PartResult("task-3-check", "3", 1, 1.0, further=True),
    }
    made |= {part.name: part for part in parts.values()}
    return Result(ANN, LAB, "x.ipynb", "graded", parts=tuple(made.values()), seconds=1.5)


def checks(one: bool, two: bool, hidden: bool) -> tuple[Check, ...]:
    return (
        Check("nobody waits alone", 1, float(one), "" if one else "waits 3"),
        Check("two at once", 1, float(two), "" if two else "got [0, 0]"),
        Check("many arrivals", 2, 2.0 * hidden, "" if hidden else "the hidden input was 0.7"),
    )


@pytest.mark.parametrize(
    ("earned", "which", "seen", "unseen"),
    [(4.0, (1, 1, 1), 2, 2), (2.0, (0, 0, 1), 0, 2), (1.0, (1, 0, 0), 1, 0), (0.0, (1, 1, 1), 0, 0)],
)
def test_visible_and_hidden_points_add_up_to_the_parts(
    earned: float, which: tuple[int, int, int], seen: float, unseen: float
) -> None:
    part = PartResult(
        "task-1-check", "1", 4, earned, said="" if earned else "it used x", checks=checks(*map(bool, which))
    )
    made = as_gradescope(result(a=part), outline(queue_lab()), queue_lab())
    assert validate_results(made) == []
    first, second = made["tests"][:2]
    assert (first["score"], second["score"]) == (seen, unseen)
    assert (first["max_score"], second["max_score"]) == (2, 2)
    assert (first["visibility"], second["visibility"]) == ("visible", "after_published")
    assert "0.7" not in first["output"] and "many arrivals" not in first["output"]
    assert made["score"] == earned + 3
    assert first["status"] == ("passed" if seen == 2 else "failed")
    if not earned:
        assert first["output"].startswith("it used x")


def test_a_part_that_never_ran_is_one_test_that_says_why() -> None:
    part = PartResult("task-1-check", "1", 4, 0.0, said="the answer cell task-1-solution is missing")
    made = as_gradescope(result(a=part), outline(queue_lab()), queue_lab())
    assert made["tests"][0]["output"] == "the answer cell task-1-solution is missing"
    assert made["tests"][0]["visibility"] == "visible" and made["tests"][0]["max_score"] == 4


def test_several_parts_of_a_task_have_names_of_their_own() -> None:
    source = queue_lab()
    source.cells[12].metadata["underload"] = {"task": "2"}
    source.cells[12].metadata.nbgrader["grade_id"] = "task-2-the-answer-check"
    parts = (PartResult("task-2-check", "2", 2, 2.0), PartResult("task-2-the-answer-check", "2", 1, 1.0))
    made = as_gradescope(Result(ANN, LAB, "x", "graded", parts=parts), outline(source), source)
    assert [(test["number"], test["name"]) for test in made["tests"]] == [
        ("2.1", "Task 2. Your numbers"),
        ("2.2", "Task 2. Your numbers (the answer)"),
    ]


def test_an_open_answer_waits_for_a_person() -> None:
    lab, source = outline(queue_lab()), queue_lab()
    waiting = next(test for test in as_gradescope(result(), lab, source)["tests"] if "open answer" in test["tags"])
    assert (waiting["score"], waiting["max_score"], waiting["visibility"]) == (0, 2, "visible")
    assert "A person marks this" in waiting["output"]
    empty = PartResult("task-2-why", "2", 2, 0.0, manual=True, said="nothing was written")
    none = next(t for t in as_gradescope(result(a=empty), lab, source)["tests"] if "open answer" in t["tags"])
    assert none["status"] == "failed" and none["output"] == "nothing was written"


def test_a_students_text_is_never_markup_nor_control() -> None:
    part = PartResult("task-2-check", "2", 2, 0.0, checks=(Check("x", 2, 0.0, "<script>\x1b[31m\x00" + "y" * 20_000),))
    made = as_gradescope(result(a=part), outline(queue_lab()), queue_lab())
    assert validate_results(made) == []
    test = next(one for one in made["tests"] if "<script>" in one["output"])
    assert test["output_format"] == "text" and "\x1b" not in test["output"] and len(test["output"]) < 9000


GOOD = as_gradescope(result(), outline(queue_lab()), queue_lab())


def test_good_results_are_valid() -> None:
    assert validate_results(GOOD) == []
    assert validate_results({"score": 3}) == []
    assert validate_results({"tests": [{"score": 1}]}) == []
    assert validate_results(failed("x")) == []
    assert validate_results({"score": 1, "leaderboard": [{"name": "t", "value": 3, "order": "asc"}]}) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"score": None}, "score is None"),
        ({"score": "3"}, "finite number"),
        ({"score": float("nan")}, "finite number"),
        ({"score": True}, "finite number"),
        ({"visibility": "after_due"}, "visibility is 'after_due'"),
        ({"stdout_visibility": "yes"}, "stdout_visibility is 'yes'"),
        ({"output_format": "markdown"}, "output_format is 'markdown'"),
        ({"test_output_format": "latex"}, "test_output_format is 'latex'"),
        ({"execution_time": -1}, "execution_time is -1"),
        ({"output": ["a"]}, "output is"),
        ({"tests": {}}, "tests must be a list"),
        ({"tests": [3]}, "test 1 must be an object"),
        ({"extra_data": []}, "extra_data"),
        ({"colour": 1}, "has colour"),
        ({"leaderboard": [{"name": "a"}]}, "needs a name and a value"),
        ({"leaderboard": [{"name": "a", "value": 1, "order": "up"}]}, "order is 'up'"),
        ({"extra_data": {"a": {1, 2}}}, "no JSON"),
    ],
)
def test_what_gradescope_would_not_take(change: dict[str, Any], said: str) -> None:
    assert any(said in fault for fault in validate_results({**copy.deepcopy(GOOD), **change}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max_score": -1}, "max_score is -1"),
        ({"status": "error"}, "status is 'error'"),
        ({"number": 1.1}, "number is 1.1"),
        ({"name": 3}, "name is 3"),
        ({"name_format": "x"}, "name_format is 'x'"),
        ({"tags": "bonus"}, "tags must be a list"),
        ({"visibility": "published"}, "visibility is 'published'"),
        ({"points": 3}, "has points"),
        ({"score": float("inf")}, "finite number"),
    ],
)
def test_what_gradescope_would_not_take_of_a_test(change: dict[str, Any], said: str) -> None:
    made = copy.deepcopy(GOOD)
    made["tests"][0].update(change)
    assert any(said in fault for fault in validate_results(made))


def test_a_score_must_be_somewhere() -> None:
    assert "results: needs a score or tests" in validate_results({"output": "x"})
    assert any("needs a score" in fault for fault in validate_results({"tests": [{"score": 1}, {"name": "x"}]}))
    assert validate_results([]) == ["results must be a JSON object"]
