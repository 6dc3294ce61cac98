"""What every lab does with what a student wrote: guesses of any kind, and functions that are not written yet."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from underload.course import handout, read_notebook
from underload.labs import latency_budget, littles_law, load, why_batching_wins
from underload.labs.answers import as_list, as_pair, check_guess, listed, named, near, number, or_library

LABS = Path(__file__).parents[1] / "labs"
SET_UP = {"latency-budget": ("setup", "decoder"), "why-batching-wins": ("8a906a3a7463", "b7e05d31c846")}
CEILINGS = {"read_bandwidth": 30e9, "flops": 200e9, "dtype": "float32", "device": "cpu", "threads": 1}


@pytest.mark.parametrize(
    "guess", [2, 2.5, 1e-3, np.float64(3), np.int64(3), np.array([4.0]), "8", " 8.5 ", "1e2", np.str_("8")]
)
def test_any_positive_guess_will_do(guess: object) -> None:
    check_guess(my_guess=guess)


@pytest.mark.parametrize("guess", ["8x", "twice", "", "nan", "-2", "inf", 0, -1, math.nan, math.inf, [], [1, 2], True])
def test_what_is_no_guess_says_what_to_write(guess: object) -> None:
    with pytest.raises(AssertionError, match="^my_guess is .*; write a positive number, such as 8 or 2.5"):
        check_guess(my_guess=guess)


@pytest.mark.parametrize("guess", [0, 0.0, "0", np.int64(0), 8])
def test_none_is_a_guess_where_there_may_be_none(guess: object) -> None:
    check_guess(or_zero=True, my_share=guess)


@pytest.mark.parametrize("guess", [-1, "-0.5", math.nan, math.inf, False, ""])
def test_less_than_none_is_no_guess_anywhere(guess: object) -> None:
    with pytest.raises(AssertionError, match="^my_share is .*; write a number, 0 or more, such as 0, 8 or 2.5: any"):
        check_guess(or_zero=True, my_share=guess)
    with pytest.raises(NotImplementedError, match="my_share is still None"):
        check_guess(or_zero=True, my_share=None)


def test_a_guess_that_was_not_made_is_open_and_not_wrong() -> None:
    with pytest.raises(NotImplementedError, match="my_guess is still None"):
        check_guess(my_guess=None)


@pytest.mark.parametrize("lab", [latency_budget, littles_law, load, why_batching_wins])
def test_all_labs_take_guesses_the_same_way(lab: Any) -> None:
    assert lab.check_guess is check_guess


@pytest.mark.parametrize("value", ["3", b"3", True, None, math.inf, [1, 2], {}])
def test_what_is_no_number_is_named(value: object) -> None:
    with pytest.raises(AssertionError, match="^my_share must be a number, got "):
        number(value, "my_share")


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.int64(2), np.array([2.0]), np.array(2)])
def test_a_number_of_any_kind_is_read(value: object) -> None:
    found = number(value, "my_share")
    assert found == 2 and type(found) is float


def test_infinity_is_a_number_where_it_may_be_one() -> None:
    assert (
        number(math.inf, "the wait", infinite=True) == number(np.float64("inf"), "the wait", infinite=True) == math.inf
    )
    with pytest.raises(AssertionError, match="the wait must be a number, got nan"):
        number(math.nan, "the wait", infinite=True)


@pytest.mark.parametrize("values", [[1, 2], (1, 2), np.array([1, 2]), iter([1, 2]), {1: 0, 2: 0}.keys()])
def test_a_list_or_pair_of_any_kind_is_read(values: Any) -> None:
    assert list(as_pair(values, "it must return (o, t)")) == [1, 2]


@pytest.mark.parametrize("values", [None, "12", {1: 0, 2: 0}, 2])
def test_what_is_no_list_is_named(values: object) -> None:
    with pytest.raises(AssertionError, match="^it must return gaps, got "):
        as_list(values, "it must return gaps")


def test_what_is_no_pair_is_named() -> None:
    with pytest.raises(AssertionError, match=r"^it must return \(o, t\), got \[1, 2, 3\]"):
        as_pair([1, 2, 3], "it must return (o, t)")


def test_rounding_is_no_difference_and_a_slip_has_its_words() -> None:
    assert near(0.1 + 0.2, 0.3) and near(0.0, 1e-12) and not near(1.00001, 1.0) and near(1.01, 1.0, 0.02)
    slips = {"not halved": 2.0, "the rate": 5.0, "twice as much": 2.0}
    assert named(2.0, slips) == " (not halved; or twice as much)" and named(3.0, slips) == ""
    assert named(5.04, slips, 0.01) == " (the rate)"


def test_a_long_list_is_cut() -> None:
    assert listed([0.5, 1 / 3]) == "[0.5, 0.3333]"
    assert listed([float(i) for i in range(9)]) == "[0, 1, 2, 3, 4, 5, 6, 7, …]"


def not_written(x: float) -> float:
    raise NotImplementedError("Task 1")


def nothing(x: float) -> None:
    return None


def broken(x: float) -> float:
    return x / 0


def doubled(x: float) -> float:
    return 2 * x


def test_an_answer_that_is_there_is_used_and_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    def library(x: float) -> float:
        raise AssertionError("the library's must not be called")

    assert or_library(doubled, library)(4) == 8
    assert or_library(lambda x: 0.0, library)(4) == 0.0, "0 is a result"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("yours", "why"),
    [
        (not_written, "not_written() is not written yet"),
        (nothing, "nothing() returned nothing"),
        (broken, "broken() raised ZeroDivisionError: "),
    ],
)
def test_the_library_stands_in_and_it_is_said_once(yours: Any, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = or_library(yours, doubled)
    assert [result(1), result(x=2)] == [2, 4]
    said = capsys.readouterr().out
    assert said.startswith(why) and said.endswith(": the library's was taken in its place\n") and said.count("\n") == 1
    assert or_library(yours)(1) is None
    assert capsys.readouterr().out.endswith(": there is no result here\n")


# ------------------------------------------------------------------ labs whose tasks are left out


def run_untouched(name: str, monkeypatch: pytest.MonkeyPatch, only: Collection[str] = ()) -> dict[str, tuple[str, str]]:
    """What each cell of a hand-out that nobody touched prints and raises, by its id, with a small model for the true
    one. `only`: these cells and the last one."""
    decoder = pytest.importorskip("underload.decoder")
    pytest.importorskip("ipywidgets")
    load = decoder.load_model
    monkeypatch.setattr(decoder, "load_model", lambda name, **more: load("pocket", **more))
    monkeypatch.setattr(decoder, "ceilings", lambda: decoder.Ceilings(**CEILINGS))
    scope: dict[str, Any] = {}
    said: dict[str, tuple[str, str]] = {}
    cells = [cell for cell in handout(read_notebook(LABS / f"{name}.ipynb")).cells if cell.cell_type == "code"]
    for cell in cells:
        if only and cell.id not in only and cell is not cells[-1]:
            continue
        printed, raised = io.StringIO(), ""
        source = cell.source.replace("torch.randn(16_384", "torch.randn(64")  # 128 MiB are the machine's matter
        with contextlib.redirect_stdout(printed):
            try:
                exec(source, scope)
            except Exception as error:
                raised = f"{type(error).__name__}: {error}"
        said[cell.id] = printed.getvalue(), raised
    return said


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SET_UP))
def test_a_cell_that_shows_things_lacks_nothing_of_another_task(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = run_untouched(name, monkeypatch)
    failed = {cell: error for cell, (_, error) in said.items() if error and not error.startswith("NotImplementedError")}
    assert failed == {}
    printed, raised = list(said.values())[-1]
    assert "the book" in printed and raised == ""
    assert any("() is not written yet: the library's was taken in its place" in out for out, _ in said.values())


@pytest.mark.parametrize("name", sorted(SET_UP))
def test_the_closing_table_prints_what_there_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = run_untouched(name, monkeypatch, only=SET_UP[name])
    assert len(said) == 3 and not any(raised for _, raised in said.values())
    printed = list(said.values())[-1][0]
    assert "the book" in printed and ("not run yet" in printed or "no step times yet" in printed)
