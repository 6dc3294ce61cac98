"""Task 1: the delay that a budget buys, and the percentile that is left, both from measured times alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.random import Generator

from underload.labs.answers import listed, named, near, number
from underload.labs.hedging.stage import measured_times

_HAIR = 1e-9  # of a call: 0.29 of 100 calls are 29 of them, which floats make a little less


def delay_for(times: Sequence[float], share: float) -> float:
    """The shortest delay (s) that at most this share of the times exceeds."""
    return _exceeded_by(np.asarray(times, dtype=float), share)


def left_after(times: Sequence[float], delay: float, q: float) -> float:
    """The q-th percentile (s) with a second copy after `delay`: every time is as likely beside every other."""
    first, second = np.meshgrid(times, times, indexing="ij")
    both = np.where(first <= delay, first, np.minimum(first, delay + second))
    return _exceeded_by(both.ravel(), 1 - q / 100)


def _exceeded_by(values: Any, share: float) -> float:
    """The smallest of the values that at most this share of them exceeds."""
    ordered = np.sort(values)
    above = min(int(share * len(ordered) + _HAIR * len(ordered)), len(ordered) - 1)
    return float(ordered[len(ordered) - 1 - above])


def check_delay(answer: Callable[..., Any], times: Sequence[float], share: float) -> None:
    """The shortest delay that keeps the budget.

    Raises:
        AssertionError: naming the value, the slip that gives it, and the share that is left there.
    """
    got, right = number(answer(list(times), share), "delay_for()"), delay_for(times, share)
    ordered = sorted(times)
    place = ordered.index(right)
    below, above = ordered[max(place - 1, 0)], ordered[min(place + 1, len(ordered) - 1)]
    slips = {
        "in floats the share of the calls is a hair too low: add a billionth of a call before you round down": ordered[
            len(ordered) - 1 - min(int(share * len(ordered)), len(ordered) - 1)
        ],
        "one too low: more calls than the budget allows take longer": below,
        "one too high: a shorter delay keeps the budget, too": above,
        "between two of the times: numpy's percentile draws a line there": float(np.quantile(times, 1 - share)),
        "the share that answers before it, and not the share that does not": delay_for(times, 1 - share),
        "the times are not in order": times[place],
    }
    late = sum(time > got for time in times) / len(times)
    assert near(got, right), (
        f"times of {listed([1e3 * time for time in times])} ms, a budget of {share:g}: {1e3 * got:.6g} ms"
        f"{named(got, slips)}, which {late:.4g} of the calls exceed; wanted {1e3 * right:.6g} ms"
    )


def check_left(answer: Callable[..., Any], times: Sequence[float], delay: float, q: float) -> None:
    """The percentile after hedging.

    Raises:
        AssertionError: naming the value, and the slip that gives it.
    """
    got, right = number(answer(list(times), delay, q), "left_after()"), left_after(times, delay, q)
    assert near(got, right), (
        f"times of {listed([1e3 * time for time in times])} ms, a second copy after {1e3 * delay:.6g} ms: the "
        f"{q:g}th percentile is {1e3 * got:.6g} ms{named(got, _slips(times, delay, q))}; wanted {1e3 * right:.6g} ms"
    )


def _slips(times: Sequence[float], delay: float, q: float) -> Mapping[str, float]:
    row = np.asarray(times, dtype=float)
    first, second = np.meshgrid(row, row, indexing="ij")
    share = 1 - q / 100
    pairs = np.where(first <= delay, first, np.minimum(first, delay + second)).ravel()
    return {
        "as if there were no second copy": _exceeded_by(row, share),
        "the second copy takes what the first does; they are drawn each for itself": _exceeded_by(
            np.where(row <= delay, row, np.minimum(row, delay + row)), share
        ),
        "the second copy begins with the delay, and not at 0": _exceeded_by(np.minimum(first, second).ravel(), share),
        "between two of the values: numpy's percentile draws a line there": float(np.percentile(pairs, q)),
        "every late call ends with its second copy; the first may still be sooner": _exceeded_by(
            np.where(first <= delay, first, delay + second).ravel(), share
        ),
    }


def drawn_times(draw: Generator, count: int | None = None) -> list[float]:
    """Times in no order, as they were measured: so many, or some number of them."""
    return measured_times(draw, int(draw.integers(80, 200)) if count is None else count)
