"""The leaderboard: who is better than whom, what it refuses, and a small class on a lab that runs in no time."""

from __future__ import annotations

from pathlib import Path

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook
from queue_lab import edited, queue_lab

from underload.course import LabError, handout
from underload.course.arrivals import Arrival
from underload.course.leaderboard import (
    Contest,
    Entry,
    as_json,
    as_text,
    beyond,
    code_name,
    contest,
    leaderboard,
    ranked,
    renamed,
)
from underload.course.sandbox import Limits
from underload.course.source import write_notebook
from underload.course.submission import Found

ABOUT = {"policy": "waits", "part": "task-1-check", "score": "operator.call", "what": "what it says to a seed"}
CONTEST = Contest("queue-lab", "waits", "task-1-check", "operator.call", "t1-answer", "seconds", "s", "higher")
SECRET = b"a secret of a class"


def board_lab(**about: object) -> NotebookNode:
    """The lab about a queue, whose policy is a function of a seed: what it returns is its score."""
    made = edited(
        queue_lab(), t1_answer="### BEGIN SOLUTION\ndef waits(seed):\n    return seed % 1000\n### END SOLUTION"
    )
    made.metadata.underload["leaderboard"] = NotebookNode({**ABOUT, **about})
    return made


# ------------------------------------------------------------------ who is better than whom


def entries(**scores: tuple[float, ...]) -> list[Entry]:
    return [Entry(name, values) for name, values in scores.items()]


def test_what_cannot_be_told_apart_shares_a_place() -> None:
    noise = (0.0, 2.0, -1.0, 3.0, -2.0, 1.0)
    board = ranked(
        CONTEST,
        [
            *entries(
                low=tuple(10 + x for x in noise),
                high=tuple(50 + x for x in noise),
                near=tuple(50.1 + x + (-1) ** place for place, x in enumerate(noise)),
            ),
            Entry("broken", (), "load 1 of 6: no number"),
        ],
        seeds=6,
    )
    places = {one.entry.name: one.place for one in board.standings}
    assert places == {"near": 1, "high": 1, "low": 3} and board.shared == {1}
    assert [entry.name for entry in board.unplaced] == ["broken"]
    first, second, last = board.standings
    assert (first.entry.name, first.behind, first.level) == ("near", None, ("high",)) and second.level == ("near",)
    assert last.behind is not None and last.behind.low > 0 and last.level == ()
    text = as_text(board)
    assert "   1=  near" in text and "   3   low" in text and "–   broken: load 1 of 6: no number" in text
    assert "all 3 hold together with 95 % confidence" in text and "anybody can work out" in text


def test_less_is_better_where_the_lab_says_so() -> None:
    less = Contest("queue-lab", "waits", "task-1-check", "operator.call", "t1-answer", "seconds", "s", "lower")
    board = ranked(less, entries(few=(1.0, 2.0, 1.5, 1.0, 2.0), many=(11.0, 12.0, 11.6, 11.0, 12.1)), seeds=5)
    assert [(one.entry.name, one.place) for one in board.standings] == [("few", 1), ("many", 2)]


def test_one_policy_has_the_first_place_and_none_is_no_error() -> None:
    assert ranked(CONTEST, entries(one=(1.0, 2.0))).standings[0].place == 1
    assert as_text(ranked(CONTEST, [])).startswith("waits of queue-lab")


def test_a_board_for_the_class_names_nobody() -> None:
    board = ranked(CONTEST, [*entries(ada=(1.0, 2.0)), Entry("(the lab's solution)", (2.0, 3.0), own=True)])
    hidden = as_json(renamed(board, lambda student: code_name(SECRET, student)))
    names = {one["name"] for one in hidden["standings"]}
    assert names == {"(the lab's solution)", code_name(SECRET, "ada")} and "ada" not in str(hidden)
    assert code_name(SECRET, "ada") != code_name(b"another secret", "ada")


# ------------------------------------------------------------------ what it refuses


@pytest.mark.parametrize(
    "about, words",
    [
        ({"colour": "red"}, "says colour; known are"),
        ({"better": "faster"}, "write 'higher' or 'lower'"),
        ({"policy": "nobody"}, "0 answer cells bind nobody"),
        ({"part": "task-2-why"}, "a person marks task-2-why"),
    ],
)
def test_metadata_that_do_not_fit_are_named(about: dict[str, str], words: str) -> None:
    with pytest.raises(LabError, match=words):
        contest(board_lab(**about))


def test_a_lab_without_one_and_too_few_seeds_are_named(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="has no leaderboard"):
        contest(queue_lab())
    with pytest.raises(LabError, match="4 seeds: give a number from 5"):
        leaderboard(board_lab(), seeds=4)
    with pytest.raises(LabError, match="no submissions in"):
        leaderboard(board_lab(), tmp_path)


@pytest.mark.parametrize(
    "code, name",
    [
        ("import underload.course.points as p\nseed = p.hidden_seed", "hidden_seed"),
        ("import sys\nsys._getframe(1)", "_getframe"),
        ("import sys\ngetattr(sys, '_getframe')(1)", "_getframe"),
        ("from inspect import stack", "inspect"),
        ("__import__('gc').get_objects()", "get_objects"),
        ("try:\n    1 / 0\nexcept Exception as error:\n    frame = error.__traceback__.tb_frame", "tb_frame"),
        ("%time 1\nx = (lambda f: f.f_back)", "f_back"),
        ("exec('import sys; sys._getframe()')", "_getframe"),
        (
            "# inspect the queue with gc\ndef admit(asked):\n    'Inspect the frame of it.'\n    return asked.inspect",
            "",
        ),
        ("def broken(:", ""),
    ],
)
def test_code_that_looks_past_what_it_is_given_is_refused(code: str, name: str) -> None:
    notebook = new_notebook(cells=[new_code_cell(code)])
    assert beyond(Found("ada", "queue-lab", "", "", notebook)) == name
    beside = {"helper.py": Arrival(("helper.py",), len(code), fetch=lambda limit: code.encode())}
    assert beyond(Found("ada", "queue-lab", "", "", new_notebook(), beside=beside)) == name


# ------------------------------------------------------------------ a small class


POLICIES = {
    "the-same": "def waits(seed):\n    return seed % 1000",
    "rebuilds-it": (
        "def waits(seed):\n    drawn = Points(1).draw().integers(1, 2**31, size=99)\n"
        "    return 1000.0 + int(seed in drawn.tolist())"
    ),
    "reads-the-seed": "def waits(seed):\n    import underload.course.points as p\n    return len(p.hidden_seed)",
    "crashes": "def waits(seed):\n    return 1 / (seed - seed)",
    "no-number": "def waits(seed):\n    return float('nan')",
    "untouched": "",
}


@pytest.mark.parametrize("secret", [SECRET, b""])
def test_every_load_is_another_and_its_seed_is_not_there_to_read(tmp_path: Path, secret: bytes) -> None:
    source = board_lab(beside={"nothing": "math.ulp"})
    for name, code in POLICIES.items() if secret else [("the-same", POLICIES["the-same"])]:
        given = handout(source)
        write_notebook(edited(given, t1_answer=code) if code else given, tmp_path / name / "queue-lab.ipynb")
    board = leaderboard(
        source, tmp_path, secret=secret, seeds=5, limits=Limits(check_seconds=2.0, memory=300 << 20), workers=1
    )
    placed = {one.entry.name: one for one in board.standings}
    scores = placed["the-same"].entry.scores
    assert len(set(scores)) == 5 and scores == placed["(the lab's solution)"].entry.scores
    assert placed["(nothing)"].entry.own and max(placed["(nothing)"].entry.scores) < 1e-5
    if not secret:
        assert not board.secret
        return
    # what it draws itself is not what it was given, so it never adds the one
    assert placed["rebuilds-it"].entry.scores == (1000.0,) * 5
    said = {entry.name: entry.said for entry in board.unplaced}
    assert set(said) == {"reads-the-seed", "crashes", "no-number", "untouched"}
    assert "names hidden_seed" in said["reads-the-seed"] and "ZeroDivisionError" in said["crashes"]
    assert "no finite number" in said["no-number"] and said["untouched"]
