"""A student's functions and class where they work, the library's where they do not; it is said which, once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from underload.labs.answers import as_pair, number, shown
from underload.labs.tail.sketch import Sketch
from underload.labs.tail.stories import PARTS, attribute

_INSTEAD = "the library's was taken in its place"


def _why(name: str, error: Exception) -> str:
    if isinstance(error, NotImplementedError):
        return f"{name} is not written yet"
    if isinstance(error, AssertionError) and str(error):
        return str(error)
    return f"{name} raised {type(error).__name__}: {error}"


def _or_library(
    yours: Callable[..., Any], library: Callable[..., Any], read: Callable[[Any], Any]
) -> Callable[..., Any]:
    """`yours`, its results as `read` has them, with `library` in its place wherever one of the two raises."""
    told = False

    def result(*arguments: Any, **more: Any) -> Any:
        nonlocal told
        try:
            return read(yours(*arguments, **more))
        except Exception as error:  # whatever a student's code raises; the check's card says in which line
            if not told:
                told = True
                print(f"{_why(_called(yours), error)}: {_INSTEAD}")
        return library(*arguments, **more)

    return result


def _called(yours: Any) -> str:
    return f"{getattr(yours, '__name__', 'your function')}()"


def tried(
    yours: Callable[..., Any], library: Callable[..., Any], *arguments: Any, below: float | None = None
) -> Callable[..., Any]:
    """A student's function if it says something of these arguments, and the library's if not; and the library's at
    every later call that raises or returns no such thing: a pair of numbers where the library has one, or a number.

    Nothing is a result of some of these functions, so that it cannot be told from a missing one at every call.

    Args:
        below: results have to be positive, and below this.
    """
    name = _called(yours)
    pairs = isinstance(library(*arguments), tuple)

    def read(value: Any) -> Any:
        if value is None:
            return None
        if pairs:
            low, high = as_pair(value, f"{name} should return a pair")
            return number(low, f"an end that {name} returns"), number(high, f"an end that {name} returns")
        found = number(value, f"what {name} returns")
        assert below is None or 0 < found < below, f"{name} returned {shown(value)}"
        return value

    try:
        missing = read(yours(*arguments)) is None
        why = f"{name} returned nothing"
    except Exception as error:
        missing, why = True, _why(name, error)
    if not missing:
        return _or_library(yours, library, read)
    print(f"{why}: {_INSTEAD}")
    return library


def parts_of(yours: Callable[..., Any]) -> Callable[..., dict[str, float]]:
    """A student's `attribute` with a number for every part, 0 for those that it leaves out."""
    name = _called(yours)

    def read(value: Any) -> dict[str, float]:
        assert value is not None, f"{name} returned nothing"
        assert isinstance(value, Mapping), f"{name} should return a dictionary by part, and returned {shown(value)}"
        return {part: number(value.get(part, 0.0), f"what {name} says of {part}") for part in PARTS}

    return _or_library(yours, attribute, read)


def usable(made: Callable[..., Any]) -> Callable[..., Any]:
    """A student's class where it counts and merges three values, the library's where it does not."""
    name = getattr(made, "__name__", "your class")
    try:
        one, other = made(0.01), made(0.01)
        for value in (0.1, 0.2, 3.0):
            one.add(value)
        other.merge(one)
        for sketch in (one, other):
            number(sketch.percentile(99), f"the p99 of a {name} of three values")
        len(other.counts)
    except Exception as error:
        print(f"{_why(name, error)}: {_INSTEAD}")
        return Sketch
    return made
