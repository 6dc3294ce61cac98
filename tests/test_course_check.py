"""A student's own check: points by the visible checks, what is broken, and nothing of what is hidden."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from queue_lab import code, edited, queue_lab, solved_by_hand

from underload.course import LabError, handout, write_notebook
from underload.course import check as module
from underload.course.attempt import Root
from underload.course.check import Checked, as_json, as_text, check, without_hidden
from underload.course.handout import digest
from underload.course.personal import personal
from underload.course.release import hand_out
from underload.course.sandbox import Limits

LAB = "queue-lab"
QUICK = Limits(cell_seconds=1, check_seconds=1)

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="runs cells in forked processes")


@pytest.fixture(autouse=True)
def labs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The labs that the student has at hand: one."""
    folder = tmp_path / "labs"
    write_notebook(queue_lab(), folder / f"{LAB}.ipynb")
    monkeypatch.setenv("UNDERLOAD_LABS", str(folder))
    return folder


@pytest.fixture()
def given() -> NotebookNode:
    return hand_out(queue_lab(), LAB, "2026-11-30", student="ann", seed=123)


@pytest.fixture(scope="module", autouse=True)
def root() -> Iterator[None]:
    """One process for all tests to fork from: starting one takes a second."""
    global ROOT
    with Root(personal(without_hidden(queue_lab()), 123), QUICK) as ROOT:
        yield


ROOT: Root | None = None


def checked(notebook: NotebookNode, folder: Path) -> Checked:
    path = folder / "work" / "my copy.ipynb"
    path.parent.mkdir(exist_ok=True)
    nbformat.write(notebook, path)
    before = path.read_bytes()
    found = check(path, root=ROOT)
    assert path.read_bytes() == before
    return found


def points(found: Checked) -> list[tuple[float, float, float]]:
    return [(task.earned, task.here, task.points) for task in found.tasks]


def test_what_hidden_tests_ask_is_not_asked_here() -> None:
    text = json.dumps(without_hidden(queue_lab()))
    assert "hidden_draw" not in text and "HIDDEN" not in text
    assert digest(handout(without_hidden(queue_lab()))) == digest(handout(queue_lab()))


def test_a_right_notebook(given: NotebookNode, tmp_path: Path) -> None:
    found = checked(solved_by_hand(given), tmp_path)
    assert points(found) == [(2, 2, 4), (2, 2, 4), (1, 1, 1)]  # with the student's own numbers, not the book's
    assert (found.by, found.broken, found.warnings) == ("lab", (), ())
    assert found.version == digest(handout(queue_lab()))[:8]
    said = as_text(found)
    assert "Task 1. Who waits: 2 of 2 by the checks here, 4 in all (2 by hidden checks)" in said
    assert "Task 2. Your numbers: 2 of 2 by the checks here, 4 in all (2 by a person)" in said
    assert "The core: 4 of 4 by the checks here, 8 in all." in said
    assert "It can be handed in." in said
    assert as_json(found)["can_be_handed_in"] is True


def test_an_untouched_one_can_be_handed_in(given: NotebookNode, tmp_path: Path) -> None:
    found = checked(given, tmp_path)
    assert points(found) == [(0, 2, 4), (0, 2, 4), (0, 1, 1)]
    assert found.broken == () and "It can be handed in." in as_text(found)
    said = as_text(found)
    assert "nothing was written in task-1-solution" in said and "NameError" not in said and "✗" not in said


def test_a_failed_check_says_what_came_out(given: NotebookNode, tmp_path: Path) -> None:
    found = checked(edited(given, t1_answer="def waits(a, s):\n    return [0.0] * len(a)"), tmp_path)
    assert points(found)[0] == (1, 2, 4)
    assert [one.what for one in found.tasks[0].failed] == ["two at once"]
    assert "✗ 0/1  two at once\n         the second of two waits for the first, 2 s; got [0.0, 0.0]" in as_text(found)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ({"t1_answer": "def waits(a, s) return 3"}, "task-1-solution, line 1"),
        ({"t3_answer": "while True:\n    pass"}, "task-3-solution does not come to an end"),
        ({"t3_answer": "import os\nos._exit(0)"}, "task-3-solution ends the Python it runs in"),
    ],
)
def test_what_is_broken_is_named_and_the_rest_checked(
    given: NotebookNode, tmp_path: Path, cells: dict[str, str], said: str
) -> None:
    found = checked(edited(solved_by_hand(given), **cells), tmp_path)
    assert len(found.broken) == 1 and said in found.broken[0]
    assert points(found)[1] == (2, 2, 4)
    assert [earned for earned, *_ in points(found)].count(0) == 1
    assert found.tasks[2].here == 1 and found.tasks[0].here == 2  # what the checks give, also where none could pass
    assert "Mend what is broken" in as_text(found) and as_json(found)["can_be_handed_in"] is False


def test_a_missing_answer_is_broken_and_a_missing_check_is_not(given: NotebookNode, tmp_path: Path) -> None:
    work = solved_by_hand(given)
    work.cells = [cell for cell in work.cells if cell.id not in ("t1-answer", "t2-check")]
    found = checked(work, tmp_path)
    assert found.broken == ("the answer cell task-1-solution is not in the notebook",)
    assert any("the check task-2-check is not in the notebook" in one for one in found.warnings)
    assert points(found) == [(0, 2, 4), (2, 2, 4), (1, 1, 1)]


def test_a_changed_check_earns_nothing(given: NotebookNode, tmp_path: Path) -> None:
    found = checked(edited(given, t3_check="points = Points(1)\npoints.check(1, 'x')\n1"), tmp_path)
    assert points(found)[2] == (0, 1, 1)
    assert any("task-3-check was changed" in one for one in found.warnings) and found.broken == ()


def test_copied_and_moved_cells_are_told(given: NotebookNode, tmp_path: Path) -> None:
    work = solved_by_hand(given)
    twin = copy.deepcopy(work.cells[6])
    twin.id = "twin"
    work.cells.insert(7, twin)
    work.cells.append(work.cells.pop(3))
    found = checked(work, tmp_path)
    assert any("task-2-solution occurs 2 times" in one for one in found.warnings)
    assert any("task-1-solution was moved" in one for one in found.warnings)
    assert found.broken == () and points(found) == [(2, 2, 4), (2, 2, 4), (1, 1, 1)]


def test_the_librarys_own_version_is_told_before_handing_in(given: NotebookNode, tmp_path: Path) -> None:
    answer = (
        "from underload.metrics import ttft\nfrom underload.request import Timeline\n\n"
        "def waits(arrivals, service):\n    ttft(Timeline(arrival=0.0, token_times=[1.0]))\n"
        "    return [0.0] if len(arrivals) == 1 else [0.0, 2.0]"
    )
    found = checked(edited(given, t1_answer=answer), tmp_path)
    assert points(found)[0] == (0, 2, 4)
    assert any("underload.metrics.ttft" in one for one in found.tasks[0].said)


def test_another_seed_is_told_and_the_own_one_used(given: NotebookNode, tmp_path: Path) -> None:
    work = solved_by_hand(given)
    work = edited(work, setup=work.cells[1].source.replace("SEED = 123", "SEED = 5"))
    found = checked(work, tmp_path)
    assert any("handed out with SEED = 123 and has 5 now" in one for one in found.warnings)
    assert points(found)[1] == (2, 2, 4)


def test_the_files_beside_it_are_there(given: NotebookNode, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "numbers.txt").write_text("42")
    found = checked(edited(given, t3_answer="the_answer = int(open('numbers.txt').read())"), tmp_path)
    assert points(found)[2] == (1, 1, 1)


def test_a_copy_of_another_version_is_checked_with_its_own_checks(
    given: NotebookNode, tmp_path: Path, labs: Path
) -> None:
    newer = edited(queue_lab(), t3_check=queue_lab().cells[12].source.replace("== 42", "== 43"))
    write_notebook(newer, labs / f"{LAB}.ipynb")
    found = checked(solved_by_hand(given), tmp_path)
    assert found.by == "notebook" and "your own copy's checks were used" in found.warnings[0]
    assert points(found) == [(2, 2, 4), (2, 2, 4), (1, 1, 1)]
    assert [task.title for task in found.tasks] == ["Who waits", "Your numbers", "more"]


def test_a_private_lab_is_checked_with_its_own_checks(given: NotebookNode, tmp_path: Path, labs: Path) -> None:
    (labs / f"{LAB}.ipynb").unlink()
    work = edited(solved_by_hand(given), t1_answer="# begin solution\ndef waits(a, s):\n    return [0.0]")
    work.cells.insert(2, code("1/0", "scratch"))
    found = checked(work, tmp_path)
    assert found.by == "notebook" and found.broken == ()
    assert points(found) == [(1, 2, 4), (2, 2, 4), (1, 1, 1)]
    assert [task.open for task in found.tasks] == [0, 2, 0]
    again = checked(given, tmp_path)
    assert points(again) == [(0, 2, 4), (0, 2, 4), (0, 1, 1)]
    assert any("open answer: nothing is written" in one for one in again.tasks[1].said)


def test_a_copy_that_lost_its_metadata_is_known_by_its_cells(given: NotebookNode, tmp_path: Path) -> None:
    work = solved_by_hand(given)
    work.metadata.pop("underload")
    found = checked(work, tmp_path)
    assert (found.lab, found.by) == (LAB, "lab")
    assert points(found) == [(2, 2, 4), (2, 2, 4), (1, 1, 1)]


def test_widget_state_and_outputs_do_no_harm(given: NotebookNode, tmp_path: Path) -> None:
    work = solved_by_hand(given)
    work.cells[4].outputs = [nbformat.v4.new_output("stream", text="points: 99")]
    work.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    found = checked(work, tmp_path)
    assert found.broken == () and any("widgets" in one for one in found.warnings)


def test_a_file_that_is_too_large_is_broken(given: NotebookNode, tmp_path: Path) -> None:
    work = solved_by_hand(given)
    work.cells[4].outputs = [nbformat.v4.new_output("stream", text="x" * 21_000_000)]
    found = checked(work, tmp_path)
    assert len(found.broken) == 1 and "21.0 MB" in found.broken[0] and "Clear Outputs" in found.broken[0]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"%PDF-1.7 ...", "a PDF"),
        (b'{"cells": [', "no JSON"),
        (b"[1, 2]", "no cells"),
        (b'{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}', "no lab's notebook"),
        (b'{"cells": [7], "nbformat": 4, "nbformat_minor": 5}', "cell 1"),
    ],
)
def test_what_is_no_notebook_of_a_lab_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "x.ipynb"
    path.write_bytes(content)
    with pytest.raises(LabError, match=said):
        check(path)


def test_no_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="no file"):
        check(tmp_path / "none.ipynb")
    with pytest.raises(LabError, match="is a folder"):
        check(tmp_path)


def test_where_processes_cannot_be_copied_it_says_what_to_do(
    given: NotebookNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(module.os, "fork")
    with pytest.raises(LabError, match="Restart Kernel and Run All Cells"):
        check(tmp_path / "x.ipynb")
