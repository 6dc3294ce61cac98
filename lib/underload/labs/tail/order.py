"""Tasks 1 and 3: an interval between two places of a sorted sample, the values it takes, how often it is right."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng

from underload.labs.answers import as_list, as_pair, listed, named, near, number, shown

Values = Sequence[float]


_EXACT = 52  # bits of a float: up to so many values the law of a median is exact, and so are its sums


def chances(n: int, p: float) -> list[float]:
    """P(K = k) for k = 0 … n, of how many of n independent values lie below a limit if each does with probability p."""
    if p == 0.5 and n <= _EXACT:  # exact, so that a place where the law meets a limit is no matter of rounding
        return [math.comb(n, k) / 2**n for k in range(n + 1)]
    k = np.arange(1, n + 1)
    steps = np.log((n - k + 1) / k) + math.log(p) - math.log1p(-p)
    return np.exp(n * math.log1p(-p) + np.concatenate([[0.0], np.cumsum(steps)])).tolist()


def ranks(n: int, q: float, confidence: float = 0.95) -> tuple[int, int] | None:
    """Between which places (1 is the smallest) of n sorted values the q-th percentile lies; None if n is too small."""
    upto = np.cumsum(chances(n, q / 100))
    miss = (1 - confidence) / 2
    low = int(np.sum(upto <= miss * (1 + 1e-12)))
    high = int(np.sum(upto < (1 - miss) * (1 - 1e-15))) + 1
    return (low, high) if low >= 1 and high <= n else None


def interval(values: Values, q: float, confidence: float = 0.95) -> tuple[float, float] | None:
    """The values at these places."""
    places = ranks(len(values), q, confidence)
    if places is None:
        return None
    ordered = sorted(values)
    return ordered[places[0] - 1], ordered[places[1] - 1]


def needed(q: float, confidence: float = 0.95, sides: int = 2) -> int:
    """The fewest values that give an interval (2 sides), or an upper limit (1 side)."""
    miss, share = (1 - confidence) / sides, q / 100
    if sides == 2:
        share = max(share, 1 - share)
    return max(1, math.ceil(math.log(miss) / math.log(share) - 1e-9))


def coverage(sample: Callable[[], Values], truth: float, made: Callable[[Values], Any], rounds: int) -> float | None:
    """The share of the intervals there are that hold the truth; None if there are none."""
    held = found = 0
    for _ in range(rounds):
        pair = made(sample())
        if pair is not None:
            found += 1
            held += bool(pair[0] <= truth <= pair[1])
    return held / found if found else None


# ------------------------------------------------------------------ latencies


def latencies(n: int, seed: int = 0) -> list[float]:
    """Independent latencies, lognormal: a median of 100 ms and a long tail."""
    return (0.1 * np.exp(0.8 * default_rng(seed).standard_normal(n))).tolist()


def queue_latencies(n: int, load: float, draw: Generator) -> list[float]:
    """Times inside of n neighbours in a queue with exponential times (M/M/1, service 1 s, in its steady state)."""
    service = draw.exponential(1.0, n).tolist()
    gaps = draw.exponential(1 / load, n).tolist()
    # Who comes at a random instant finds work with probability `load`, and then an exponential amount of it.
    work = float(draw.exponential(1 / (1 - load))) if draw.random() < load else 0.0
    found = []
    for takes, gap in zip(service, gaps):
        work += takes
        found.append(work)
        work = max(work - gap, 0.0)
    return found


# ------------------------------------------------------------------ task 1


def meeting(draw: Generator) -> tuple[int, float]:
    """How many values, and a confidence at which the law of their median meets both limits exactly, in floats too."""
    n = int(draw.integers(8, 41))
    upto = np.cumsum(chances(n, 0.5))
    return n, 1 - 2 * float(draw.choice(upto[(upto > 0.002) & (upto < 0.2)]))


def check_ranks(find: Callable[..., Any], n: int, q: float, confidence: float = 0.95) -> None:
    """The two places.

    Raises:
        AssertionError: naming the places, the slip that gives them, and what they should be.
    """
    right, words = ranks(n, q, confidence), f"p{q:g} of {n} values at {confidence:.4g}"
    got = find(n, q, confidence)
    if right is None:
        assert got is None, (
            f"{words}: {shown(got)}; so few values have no place beyond which the percentile is seldom enough: None"
        )
        return
    assert got is not None, f"{words}: None, though the places {right[0]} and {right[1]} will do"
    pair = as_pair(got, f"{words}: ranks() returns two places, or None")
    low, high = (number(value, f"{words}: a place") for value in pair)
    one_sided = ranks(n, q, 2 * confidence - 1) if confidence > 0.5 else None
    spread = math.sqrt(n * q / 100 * (1 - q / 100))
    meets = bool(np.any(np.abs(np.cumsum(chances(n, q / 100)) - (1 - confidence) / 2) <= 1e-12))
    slips = {
        "each side may miss half of what is left, not all of it": one_sided,
        "the places count from 1": (right[0] - 1, right[1] - 1),
        "the lower place is one too low: P(K ≤ place − 1) is what must not be above": (right[0] - 1, right[1]),
        "the lower place is one too high": (right[0] + 1, right[1]),
        "the upper place is one too low: P(K ≤ place − 1) is what must be reached": (right[0], right[1] - 1),
        "the upper place is one too high": (right[0], right[1] + 1),
        "the normal law is only near to the binomial one": (
            round(n * q / 100 - 1.96 * spread),
            round(n * q / 100 + 1.96 * spread),
        ),
    }
    why = next((f" ({slip})" for slip, wrong in slips.items() if wrong == (low, high)), "")
    if meets and right[0] - low in (0, 1) and high - right[1] in (0, 1):
        why = " (where P(K ≤ place − 1) just is the limit, the place will do: ≤ and ≥)"
    assert (low, high) == right, (
        f"{words}: the places {low:g} and {high:g}{why}; {right[0]} and {right[1]} are the innermost that leave "
        f"at most {(1 - confidence) / 2:.4g} on each side"
    )


def check_interval(find: Callable[..., Any], values: Values, q: float, confidence: float = 0.95) -> None:
    """The values at the two places.

    Raises:
        AssertionError: naming the ends, and what they should be.
    """
    right, words = interval(values, q, confidence), f"p{q:g} of {len(values)} values {listed(list(values))}"
    before = list(values)
    got = find(values, q, confidence)
    assert list(values) == before, f"{words}: the list is another one afterwards; sort a copy of it"
    if right is None:
        assert got is None, f"{words}: {shown(got)}; there is no interval, which is None"
        return
    assert got is not None, f"{words}: None, though there is an interval"
    low, high = (
        number(value, f"{words}: an end") for value in as_pair(got, f"{words}: interval() returns two values, or None")
    )
    places = ranks(len(values), q, confidence)
    assert places is not None
    ordered = sorted(values)
    slips = {
        "the values were not sorted": (values[places[0] - 1], values[places[1] - 1]),
        "places count from 1, and a list from 0": (ordered[places[0]], ordered[min(places[1], len(values) - 1)]),
        "these are the places, not the values at them": (float(places[0]), float(places[1])),
    }
    why = next((f" ({slip})" for slip, (a, b) in slips.items() if near(a, low) and near(b, high)), "")
    assert near(low, right[0]) and near(high, right[1]), (
        f"{words}: from {low:.4g} to {high:.4g}{why}; the values at places {places[0]} and {places[1]} of the sorted "
        f"sample are {right[0]:.4g} and {right[1]:.4g}"
    )


# ------------------------------------------------------------------ task 3


def check_needed(find: Callable[..., Any], q: float, confidence: float, sides: int) -> None:
    """How many values it takes.

    Raises:
        AssertionError: naming the number, the slip that gives it, and the right one.
    """
    words = f"p{q:g} at {confidence:.4g}, {'an interval' if sides == 2 else 'an upper limit'}"
    # A float, so that q**n in the place of (q/100)**n ends in an error instead of never.
    got, right = (
        number(find(float(q), confidence, sides), f"{words}: the number of values"),
        needed(q, confidence, sides),
    )
    share = q / 100
    exact = math.log((1 - confidence) / sides) / math.log(share)
    slips = {
        "values come in whole numbers: the next above": exact,
        "rounded down: with so few it misses more often": math.floor(exact),
        "each side of an interval may miss half": needed(q, confidence, 1) if sides == 2 else math.nan,
        "an upper limit misses on one side only": needed(q, confidence, 2) if sides == 1 else math.nan,
        "the lower side has to hold, too, and below the median it is the harder one": max(1, math.ceil(exact - 1e-9)),
        "with so many, one of them lies beyond on average; often none does": 1 / (1 - share),
        "one more than it takes": right + 1,
    }
    assert got == right, f"{words}: {got:g}{named(got, slips)}; it takes {right}"


#: What a scripted interval says of each sample, in turn.
_SCRIPT: list[tuple[float, float] | None] = [(1.0, 3.0), (2.0, 4.0), None, (0.0, 1.5), (2.5, 9.0), (1.9, 2.0), None]


def check_coverage(count: Callable[..., Any], rounds: int, truth: float = 2.0, *, none: bool = False) -> None:
    """How many of the scripted intervals hold the truth.

    Args:
        none: no sample has an interval.

    Raises:
        AssertionError: naming the share, the slip that gives it, and the samples that were asked for.
    """
    asked: list[int] = []

    def sample() -> list[float]:
        asked.append(len(asked))
        return [float(asked[-1])]

    def made(values: Values) -> tuple[float, float] | None:
        return None if none else _SCRIPT[int(as_list(values, "a sample is a list")[0]) % len(_SCRIPT)]

    got = count(sample, truth, made, rounds)
    words = f"{rounds} rounds"
    assert len(asked) == rounds, f"{words}: {len(asked)} samples were drawn; each round has one of its own"
    said = [None if none else _SCRIPT[i % len(_SCRIPT)] for i in range(rounds)]
    found = [pair for pair in said if pair is not None]
    if not found:
        assert got is None, f"{words}: {shown(got)}; where no sample has an interval, there is no share: None"
        return
    right = sum(pair[0] <= truth <= pair[1] for pair in found) / len(found)
    slips = {
        "samples without an interval count as misses": right * len(found) / rounds,
        "samples without an interval count as hits": (right * len(found) + rounds - len(found)) / rounds,
        "an end that is just the truth holds it": sum(pair[0] < truth < pair[1] for pair in found) / len(found),
        "the number, not the share": right * len(found),
        "in per cent; write a share from 0 to 1": 100 * right,
        "the share that misses": 1 - right,
    }
    value = number(got, f"{words}: the share")
    assert near(value, right), f"{words}: {value:.4g}{named(value, slips)}; {right:.4g} of the intervals hold {truth:g}"
