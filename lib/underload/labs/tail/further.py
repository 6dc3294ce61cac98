"""Tasks 6 and 7: a bootstrap interval and where it fails; pages of many leaves, and what the leaves have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng

from underload.labs.answers import as_pair, listed, named, near, number
from underload.labs.tail.order import chances
from underload.queueing import prob_any


def bootstrap(
    values: Sequence[float], q: float, draw: Generator, rounds: int = 1000, confidence: float = 0.95
) -> tuple[float, float]:
    """The middle `confidence` of the percentiles of samples that are drawn from the sample, with replacement."""
    sample = np.asarray(values)
    found = np.percentile(draw.choice(sample, (rounds, len(sample))), q, axis=1)
    low, high = np.percentile(found, [50 * (1 - confidence), 50 * (1 + confidence)])
    return float(low), float(high)


def check_bootstrap(find: Callable[..., Any], values: Sequence[float], q: float, seed: int, rounds: int = 3000) -> None:
    """The ends, within a few places of the exact law: of n drawn from n values, how many fall to a place or below.

    Raises:
        AssertionError: naming the ends, the slip that leads near to them, and where they should be.
    """
    n, ordered = len(values), sorted(values)
    words = f"p{q:g} of {n} values {listed(ordered)}"
    got = as_pair(find(list(values), q, default_rng(seed), rounds), f"{words}: bootstrap() returns two values")
    low, high = (number(value, f"{words}: an end") for value in got)

    def ends(size: int, confidence: float) -> tuple[int, int]:
        place = max(1, round(q / 100 * size))  # of a drawn sample, the place of its percentile
        reached = [sum(chances(size, k / n)[place:]) for k in range(1, n)]  # P(percentile <= value at place k)
        miss = (1 - confidence) / 2
        return 1 + int(np.searchsorted(reached, miss)), 1 + int(np.searchsorted(reached, 1 - miss))

    def near_to(places: tuple[int, int]) -> bool:
        return all(
            ordered[max(place - 1 - slack, 0)] <= end <= ordered[min(place - 1 + slack, n - 1)]
            for place, end in zip(places, (low, high))
        )

    right, slack = ends(n, 0.95), max(2, round(0.22 * math.sqrt(n * q / 100 * (1 - q / 100))))
    if near_to(right):
        return
    mean, spread = float(np.mean(values)), 1.96 * float(np.std(values)) / math.sqrt(n)
    slips = {
        "as of samples that are drawn without replacement, which are all alike": low == high,
        "as of samples of half the size": near_to(ends(n // 2, 0.95)),
        "as if 5 % were left on each side": near_to(ends(n, 0.90)),
        "the larger end comes second": low > high,
        "as of the samples' means": abs(low - mean + spread) < spread / 5 and abs(high - mean - spread) < spread / 5,
        "as if nearly all of what was found were the middle of it": near_to(ends(n, 0.999)),
    }
    why = next((f" ({slip})" for slip, fits in slips.items() if fits), "")
    raise AssertionError(
        f"{words}: from {low:.4g} to {high:.4g}{why}; the samples' percentiles have their middle 95 % from about "
        f"{ordered[right[0] - 1]:.4g} to {ordered[right[1] - 1]:.4g}"
    )


def leaf_percentile(q: float, k: int) -> float:
    """By which of its percentiles (in per cent) each of k independent leaves is done, when q % of the pages are."""
    return 100 * (q / 100) ** (1 / k)


def shared(slow: float, pages: float, k: int) -> float:
    """The share of slow answers that all k leaves have in common, from a leaf's and the pages' share of slow ones."""
    if pages >= prob_any(slow, n=k):
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if prob_any(slow, n=k, common=middle) > pages else (low, middle)
    return (low + high) / 2


def check_leaf(find: Callable[..., Any], q: float, k: int) -> None:
    """The percentile of a leaf.

    Raises:
        AssertionError: naming the value, the slip that gives it, and the right one.
    """
    words = f"p{q:g} of pages of {k} leaves"
    got, right = number(find(q, k), f"{words}: a leaf's percentile"), leaf_percentile(q, k)
    slips = {
        "a share; write it in per cent": right / 100,
        "that is how many pages are done by the time by which a leaf is done with q": 100 * (q / 100) ** k,
        "near, as long as k times it is small": 100 - (100 - q) / k,
        "the leaf's own percentile is higher than the page's": q,
    }
    assert near(got, right, 1e-9), (
        f"{words}: p{got:.8g}{named(got, slips, 1e-9)} of a leaf; {k} independent leaves are all "
        f"done by p{right:.8g} in {q:g} % of the pages"
    )


def check_shared(find: Callable[..., Any], slow: float, pages: float, k: int) -> None:
    """What the leaves have in common.

    Raises:
        AssertionError: naming the share, the pages that it would make slow, and the right one.
    """
    words = f"{k} leaves, each slow in {100 * slow:.4g} % of its answers, and {100 * pages:.5g} % slow pages"
    got, right = number(find(slow, pages, k), f"{words}: the share in common"), shared(slow, pages, k)
    assert -1e-9 <= got <= 1 + 1e-9, f"{words}: {got:.5g}; a share lies from 0 to 1"
    made = prob_any(slow, n=k, common=min(max(got, 0.0), 1.0))
    assert abs(got - right) < 1e-3, (
        f"{words}: {got:.5g}; that share would make {100 * made:.5g} % of the pages slow, and {right:.5g} makes "
        f"{100 * prob_any(slow, n=k, common=right):.5g} %"
    )
