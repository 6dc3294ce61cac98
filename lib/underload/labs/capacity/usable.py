"""What the cells that show things take from a student: the student's own work where it can be shown, the library's
where it cannot. Which, and why, is printed once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from underload.labs.answers import as_list, as_pair, number
from underload.labs.capacity.checks import DOOR_PLAN, as_word, fleet
from underload.labs.capacity.mechanisms import Shed, binds, capacity, goodput
from underload.labs.capacity.service import burst, load, serve
from underload.simulation import JoinShortestQueue

_TAKEN = "the library's was taken in its place"


def usable_goodput(yours: Callable[..., Any]) -> Callable[..., Any]:
    """A function that gives a rate and a share."""

    def read(value: Any) -> tuple[float, Any]:
        rate, share = as_pair(value, "goodput() returns two things: a rate and a share")
        return number(rate, "the rate"), share

    return _usable(yours, goodput, read)


def usable_capacity(yours: Callable[..., Any]) -> Callable[..., Any]:
    """A function that gives a mean and both ends, and that does not simulate for ever."""

    def read(value: Any) -> tuple[float, ...]:
        words = "capacity() returns three numbers: mean, low and high"
        found = as_list(value, words)
        assert len(found) == 3, f"{words}, got {len(found)}"
        return tuple(number(one, name) for one, name in zip(found, ("the mean", "the low end", "the high end")))

    @functools.wraps(yours)
    def bounded(attained: Callable[..., float], loads: Sequence[float], target: float, runs: int) -> Any:
        left = runs * (len(loads) + 1)

        def counted(rate: float, run: int) -> float:
            nonlocal left
            left -= 1
            assert left >= 0, f"capacity() asked {runs * (len(loads) + 1)} times and went on"
            return attained(rate, run)

        return yours(counted, loads, target, runs)

    return _usable(bounded, capacity, read)


def usable_binds(yours: Callable[..., Any]) -> Callable[..., Any]:
    """A function that gives one of the words."""
    return _usable(yours, binds, as_word)


def usable_door(made: Any) -> Any:
    """A door that says yes or no, also in the worst of bursts."""
    return _runs(made, Shed, lambda: serve(burst(2, 8.0), DOOR_PLAN, door=made()))


def usable_route(made: Any) -> Any:
    """A router that chooses one of the replicas."""
    return _runs(made, JoinShortestQueue, lambda: fleet(made(), load(48.0, 100, 3), 3.0))


def _usable(yours: Callable[..., Any], library: Callable[..., Any], read: Callable[[Any], Any]) -> Callable[..., Any]:
    """`yours`, with `library` in its place wherever it raises or `read` refuses what it returns."""
    told = False

    def result(*args: Any) -> Any:
        nonlocal told
        try:
            return read(yours(*args))
        except Exception as error:  # whatever a student's code raises; the check's card says in which line
            if not told:
                print(f"{_why(yours, error, '()')}: {_TAKEN}")
            told = True
        return library(*args)

    return result


def _runs(made: Any, library: Any, run: Callable[[], Any]) -> Any:
    """`made` if a run with it ends, else `library`."""
    try:
        run()
    except Exception as error:  # as above
        print(f"{_why(made, error)}: {_TAKEN}")
        return library
    return made


def _why(yours: Any, error: Exception, call: str = "") -> str:
    name = getattr(yours, "__name__", "your answer") + call
    if isinstance(error, NotImplementedError):
        return f"{name} is not written yet"
    if isinstance(error, AssertionError) and str(error):
        return str(error)  # the lab's own word for what is wrong
    return f"{name} raised {type(error).__name__}: {error}"
