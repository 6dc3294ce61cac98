"""When a result of an earlier run still holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from queue_lab import queue_lab

from underload.course.ledger import key_of
from underload.course.release import hand_out
from underload.course.sandbox import Limits
from underload.course.submission import Found

SECRET = b"a secret of the class, long enough"
SOURCE = queue_lab()


def key(found: Found, secret: bytes = SECRET) -> str:
    return key_of(found, SOURCE, secret, Limits(), 600.0)


def of(owner: str) -> Found:
    """What ann handed in: the hand-out of `owner`, or the one for everybody."""
    notebook = hand_out(queue_lab(), "queue-lab", "2026-11-30", student=owner, seed=7 if owner else None)
    return Found("ann", "queue-lab", "ann/queue-lab.ipynb", "", notebook, digest=f"of {owner}")


@pytest.mark.parametrize("owner", ["ann", ""])
def test_a_list_of_the_class_changes_no_result_of_one_s_own_hand_out(owner: str) -> None:
    found = of(owner)
    assert key(found) == key(replace(found, listed=True))


def test_it_decides_whose_numbers_count_in_another_s_hand_out() -> None:
    found = of("bob")
    assert key(found) != key(replace(found, listed=True))
    assert key(found, b"") == key(replace(found, listed=True), b"")  # without a secret, the book's


def test_a_file_that_is_none_has_a_key_too() -> None:
    found = Found("ann", "queue-lab", "ann/x.ipynb", "it is a PDF", None)
    assert key(found) == key(replace(found, listed=True)) != key(replace(found, said="it is empty"))
