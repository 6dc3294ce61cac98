"""The files of wrong answers: what they say, and what is said of a mistake in them."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_task_lab import task_lab

from underload.course import LabError
from underload.course.wrong import read_wrong

GOOD = """
[[wrong]]
task = "1"
name = "adds two"
because = "thinks doubling adds two"
earns = { task-1-check = 0 }
from = '''2 * x'''
to = '''2 + x'''

[[harmless]]
task = "1"
name = "adds itself"
because = "the same number, written another way"
answer = '''def double(x): return x + x'''
"""


def read(tmp_path: Path, text: str) -> list:
    path = tmp_path / "counting.toml"
    path.write_text(text, encoding="utf-8")
    return read_wrong(path, task_lab())


def test_an_edit_and_a_whole_answer(tmp_path: Path) -> None:
    wrong, harmless = read(tmp_path, GOOD)
    assert wrong.code == {"task-1-double": "def double(x):\n    return 2 + x"} and wrong.earns == {"task-1-check": 0}
    assert harmless.harmless and harmless.earns == {"task-1-check": 2}
    assert harmless.code == {"task-1-double": "def double(x): return x + x"}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("'''2 * x'''", "'''3 * x'''", "occurs in 0 answer cells"),
        ("from = '''2 * x'''", "cell = 'task-1-double'\nfrom = '''x'''", "occurs 2 times"),
        ('task = "1"', 'task = "8"', "no answer cell in a task '8'"),
        ("task-1-check = 0", "task-1-chek = 0", "no part 'task-1-chek'; it has task-1-check"),
        ("task-1-check = 0", "task-1-check = 2", "less than its 2 points"),
        ("earns = { task-1-check = 0 }", "", "say what it earns"),
        ('because = "thinks doubling adds two"', "", "'because' is missing"),
        ("to = '''2 + x'''", "", "a 'from' and a 'to'"),
        ("to = '''2 + x'''", "to = '''2 + x'''\nanswer = '''x'''", "either"),
        ('name = "adds two"', 'name = "adds itself"', "the name occurs twice"),
        ("earns =", "earn =", "unknown key 'earn'"),
        ("[[wrong]]", "[[wrng]]", "'wrng'"),
        ("[[wrong]]", "[[wrong]", "no TOML"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(LabError, match=said.replace("(", r"\(")):
        read(tmp_path, GOOD.replace(old, new, 1))


def test_a_lab_without_wrong_answers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="at least six a task"):
        read_wrong(tmp_path / "none.toml", task_lab())
