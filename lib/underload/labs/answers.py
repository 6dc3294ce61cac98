"""What every lab does with what a student wrote: read a number, take a guess, stand in for a function not written yet.

number       a value of any kind as a float; words where it is none
as_list      whatever holds values in an order as a list; as_pair: two of them
near         whether two numbers are one but for rounding
named        the slips that give a wrong value, in words
shown        a value in a message; listed: a list of numbers
check_guess  a prediction earns its point for being made
or_library   a student's function where it gives a result, the library's where it does not: for cells that show
             things, so that a task left out takes none of the others' pictures with it
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

_SHOWN = 60  # characters of a value in a message
_LISTED = 8  # values of a list in a message


def shown(value: Any) -> str:
    """A value in a message: as Python writes it, cut."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + " …"


def listed(values: Sequence[float]) -> str:
    """A list of numbers in a message: the first few of them."""
    text = ", ".join(f"{value:.4g}" for value in values[:_LISTED])
    return f"[{text}, …]" if len(values) > _LISTED else f"[{text}]"


def number(value: Any, what: str, *, infinite: bool = False) -> float:
    """`value` as a float, whatever kind of number it is (NumPy's and arrays of one element included).

    Args:
        infinite: whether infinity will do, too.

    Raises:
        AssertionError: it is none, or not a finite one; `what` names it.
    """
    if type(value) is float and math.isfinite(value):  # nearly always, and a check may read thousands
        return value
    try:
        found = math.nan if isinstance(value, str | bytes | bool) else float(np.asarray(value, dtype=float).item())
    except (TypeError, ValueError):
        found = math.nan
    fine = not math.isnan(found) if infinite else math.isfinite(found)
    assert fine, f"{what} must be a number, got {shown(value)}"
    return found


def as_list(value: Any, words: str) -> list[Any]:
    """A list of whatever holds values in an order: a list, a tuple, an array.

    Raises:
        AssertionError: it holds none; `words` say what should have come.
    """
    assert value is not None and not isinstance(value, str | Mapping), f"{words}, got {shown(value)}"
    try:
        return list(value)
    except TypeError:
        raise AssertionError(f"{words}, got {shown(value)}") from None


def as_pair(value: Any, words: str) -> tuple[Any, Any]:
    """The two things in whatever holds two.

    Raises:
        AssertionError: it does not; `words` say what should have come.
    """
    found = as_list(value, words)
    assert len(found) == 2, f"{words}, got {shown(value)}"
    return found[0], found[1]


def near(got: float, wanted: float, relative: float = 1e-6) -> bool:
    """Whether two numbers are one: `relative` of the larger apart, or 1e-9 where both are nearly 0."""
    return math.isclose(got, wanted, rel_tol=relative, abs_tol=1e-9)


def named(got: float, slips: Mapping[str, float], relative: float = 1e-6) -> str:
    """The slips (words: the value that each gives) that give this value, in brackets, or nothing."""
    found = [words for words, value in slips.items() if near(got, value, relative)]
    return f" ({'; or '.join(found)})" if found else ""


def check_guess(*, or_zero: bool = False, **guesses: Any) -> None:
    """A guess earns its point for being made: any positive number will do, also one written as text.

    Args:
        or_zero: 0 will do, too: the guess is a share, a count or a wait, of which there may be none.

    Raises:
        NotImplementedError: nothing was written down yet.
        AssertionError: something that is no such number.
    """
    wanted = "a number, 0 or more, such as 0, 8 or 2.5" if or_zero else "a positive number, such as 8 or 2.5"
    for name, guess in guesses.items():
        if guess is None:
            raise NotImplementedError(f"{name} is still None")
        value = guess
        if isinstance(guess, str):
            with contextlib.suppress(ValueError):
                value = float(guess)
        try:
            found = number(value, name)
            fine = found > 0 or (or_zero and found == 0)
        except AssertionError:
            fine = False
        assert fine, f"{name} is {shown(guess)}; write {wanted}: any of them earns the point"


def or_library(yours: Callable[..., Any], library: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """`yours`, with `library` in its place wherever it is not written, raises or returns nothing; it is said once.

    Without `library` the result is None there.
    """
    name = getattr(yours, "__name__", "your function")
    told = False

    def result(*args: Any, **more: Any) -> Any:
        nonlocal told
        try:
            value = yours(*args, **more)
            why = f"{name}() returned nothing"
        except NotImplementedError:
            value, why = None, f"{name}() is not written yet"
        except Exception as error:  # whatever a student's code raises; the check's card says in which line
            value, why = None, f"{name}() raised {type(error).__name__}: {error}"
        if value is not None:
            return value
        if not told:
            told = True
            print(f"{why}: " + ("the library's was taken in its place" if library else "there is no result here"))
        return library(*args, **more) if library else None

    return result
