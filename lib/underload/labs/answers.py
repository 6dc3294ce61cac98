"""What every lab does with what a student wrote: read a number, take a guess, stand in for a function not written yet.

number       a value of any kind as a float; words where it is none
check_guess  a prediction earns its point for being made
or_library   a student's function where it gives a result, the library's where it does not: for cells that show
             things, so that a task left out takes none of the others' pictures with it
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

_SHOWN = 60  # characters of a value in a message


def shown(value: Any) -> str:
    """A value in a message: as Python writes it, cut."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + " …"


def number(value: Any, what: str) -> float:
    """`value` as a float, whatever kind of number it is (NumPy's and arrays of one element included).

    Raises:
        AssertionError: it is none, or not a finite one; `what` names it.
    """
    try:
        found = math.nan if isinstance(value, str | bytes | bool) else float(np.asarray(value, dtype=float).item())
    except (TypeError, ValueError):
        found = math.nan
    assert math.isfinite(found), f"{what} must be a number, got {shown(value)}"
    return found


def check_guess(**guesses: Any) -> None:
    """A guess earns its point for being made: any positive number will do, also one written as text.

    Raises:
        NotImplementedError: nothing was written down yet.
        AssertionError: something that is no positive number.
    """
    for name, guess in guesses.items():
        if guess is None:
            raise NotImplementedError(f"{name} is still None")
        value = guess
        if isinstance(guess, str):
            with contextlib.suppress(ValueError):
                value = float(guess)
        try:
            positive = number(value, name) > 0
        except AssertionError:
            positive = False
        assert positive, (
            f"{name} is {shown(guess)}; write a positive number, such as 8 or 2.5: any of them earns the point"
        )


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
