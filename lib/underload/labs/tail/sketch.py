"""Task 2: counts in buckets of one relative width. Sketches of several servers add up to the sketch of all.

Masson, Rim and Lee, "DDSketch: A Fast and Fully-Mergeable Quantile Sketch with Relative-Error Guarantees" (VLDB 2019).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng

from underload.labs.answers import listed, named, near, number, shown


class Sketch:
    """How many values fell into each bucket; each bucket is γ = (1 + error)/(1 − error) times as wide as the one below.

    counts: bucket i, the values from γ^(i−1) (not included) to γ^i -> how many.
    """

    def __init__(self, error: float = 0.01) -> None:
        self.gamma = (1 + error) / (1 - error)
        self.counts: Counter[int] = Counter()

    def add(self, value: float) -> None:
        self.counts[math.ceil(math.log(value) / math.log(self.gamma) - 1e-9)] += 1

    def merge(self, other: Any) -> None:
        self.counts.update(other.counts)

    def percentile(self, q: float) -> float | None:
        """The value at place ⌈q n/100⌉, to within the error; None without values."""
        place, before = max(1, math.ceil(q / 100 * sum(self.counts.values()) - 1e-9)), 0
        for bucket in sorted(self.counts):
            before += self.counts[bucket]
            if before >= place:
                return 2 * self.gamma**bucket / (self.gamma + 1)
        return None


def nearest(values: Sequence[float], q: float) -> float:
    """The value at place ⌈q n/100⌉ of the sorted sample: no more than 100 − q in a hundred lie above it."""
    return sorted(values)[max(1, math.ceil(q / 100 * len(values) - 1e-9)) - 1]


def above_edges(error: float, draw: Generator | None = None) -> list[float]:
    """Values that lie just above the edge of a bucket, three of them or, drawn, five.

    Whatever lies higher in their bucket than the point of the text is off by more than the error there.
    """
    gamma = (1 + error) / (1 - error)
    edges = [0, 3, 6] if draw is None else draw.integers(-8, 20, 5).tolist()
    return [(1 + error**2 / 10) * gamma**edge for edge in edges]


def servers(seed: int = 0) -> dict[str, list[float]]:
    """Latencies that eight servers saw in a minute. One is ill, and the balancer sends little to it."""
    draw = default_rng(seed + 70)
    found = {}
    for place in range(8):
        ill = place == 5
        count = 60 if ill else int(draw.integers(700, 1300))
        median = 2.0 if ill else float(draw.uniform(0.05, 0.2))
        found["ABCDEFGH"[place]] = (median * np.exp(0.6 * draw.standard_normal(count))).tolist()
    return found


def drawn_latencies(draw: Generator, count: int) -> list[float]:
    """Latencies of a check's own: lognormal, over some decades."""
    return (
        float(draw.uniform(0.001, 0.3)) * np.exp(float(draw.uniform(0.3, 1.5)) * draw.standard_normal(count))
    ).tolist()


def _filled(made: Callable[..., Any], values: Sequence[float], error: float) -> Any:
    sketch = made(error)
    for value in values:
        sketch.add(value)
    return sketch


def _counts(sketch: Any, words: str) -> dict[Any, float]:
    counts = getattr(sketch, "counts", None)
    assert isinstance(counts, Mapping), (
        f"{words}: counts must be a dictionary from the number of a bucket to how many values fell into it, got "
        f"{shown(counts)}"
    )
    return {bucket: number(count, f"{words}: what counts has for bucket {bucket}") for bucket, count in counts.items()}


def _check_percentile(
    sketch: Any, values: Sequence[float], q: float, error: float, words: str, slack: float = 1e-9
) -> None:
    got, right = number(sketch.percentile(q), f"{words}: p{q:g}"), nearest(values, q)
    gamma, ordered = (1 + error) / (1 - error), sorted(values)
    # A value at an edge may be counted on either side of it, by rounding: from both it is off by no more than `error`.
    if abs(got / right - 1) <= error + slack:
        return
    bucket = math.ceil(math.log(right) / math.log(gamma) - 1e-9)
    place = max(1, math.ceil(q / 100 * len(values) - 1e-9))
    slips = {
        "the upper edge of its bucket": gamma**bucket,
        "the lower edge of its bucket": gamma ** (bucket - 1),
        "the number of the bucket, not a value in it": float(bucket),
        "2γ^i is still to be divided by γ + 1": 2 * gamma**bucket,
        "the middle of its bucket in logarithms, from which the lower edge is too far": gamma ** (bucket - 0.5),
        "halfway between the edges of its bucket, from which the lower edge is too far": (
            gamma**bucket * (1 + 1 / gamma) / 2
        ),
    }
    why = next((f" ({slip})" for slip, value in slips.items() if near(got, value)), "")
    for other in (place - 1, place + 1):
        if not why and 1 <= other <= len(values) and abs(got / ordered[other - 1] - 1) <= error:
            why = f" (near to the value at place {other})"
    raise AssertionError(
        f"{words}: p{q:g} is {got:.5g}{why}; place {place} of {len(values)} has {right:.5g}, and more than "
        f"{100 * error:.3g} % off is too much"
    )


def check_sketch(
    made: Callable[..., Any], values: Sequence[float], error: float, percentiles: Sequence[float] = (50, 90, 99, 100)
) -> None:
    """Percentiles that are off by the stated share at most.

    Raises:
        AssertionError: naming the percentile, its value, and the one that it should be near to.
    """
    words = f"{len(values)} values {listed(list(values))}, an error of {error:.3g}"
    sketch = _filled(made, values, error)
    for q in percentiles:
        _check_percentile(sketch, values, q, error, words)
    fresh = made(error)
    assert not sum(_counts(fresh, words).values()), (
        "a new sketch has counts of an earlier one: they belong to the class or to a default; make them in __init__"
    )
    empty = fresh.percentile(50)
    assert empty is None, f"a sketch without values has a median of {shown(empty)}; it has none: None"


def check_counts(made: Callable[..., Any], values: Sequence[float], error: float) -> None:
    """As many buckets as it takes, with all values in them.

    Raises:
        AssertionError: naming how many there are.
    """
    counts = _counts(_filled(made, values, error), f"{len(values)} values")
    total = sum(counts.values())
    assert total == len(values), f"{len(values)} values were added, and counts holds {total:g}"
    most = math.log(max(values) / min(values)) / math.log((1 + error) / (1 - error)) + 2
    assert len(counts) <= most, (
        f"{len(values)} values from {min(values):.3g} to {max(values):.3g} at an error of {error:g}: {len(counts)} "
        f"buckets; {math.floor(most)} will do, however many values there are"
    )


def check_merge(made: Callable[..., Any], parts: Sequence[Sequence[float]], error: float) -> None:
    """What is merged is the sketch of all values together, and the others stay as they are.

    Raises:
        AssertionError: naming what differs, and the slip that does it.
    """
    sketches = [_filled(made, part, error) for part in parts]
    words = f"{len(parts)} sketches of {', '.join(str(len(part)) for part in parts)} values"
    before = [_counts(sketch, words) for sketch in sketches]
    whole = [value for part in parts for value in part]
    merged = made(error)
    for sketch in sketches:
        merged.merge(sketch)
    total = sum(_counts(merged, words).values())
    last = next((len(part) for part in reversed(parts) if part), 0)
    slips = {
        "merge() adds to the sketch's own counts, and what it returns is not used": 0.0,
        "only the last one's are left: add to what is there": float(last),
    }
    assert total == len(whole), (
        f"{words}: counts holds {total:g} values after the merge, not {len(whole)}{named(total, slips)}"
    )
    for place, (sketch, was) in enumerate(zip(sketches, before)):
        assert _counts(sketch, words) == was, f"{words}: sketch {place}, which was merged into another, has changed"
    for q in (20, 50, 75, 90, 99):
        got = number(merged.percentile(q), f"{words}: p{q}")
        mean = sum(number(one.percentile(q), "a percentile") for one in sketches if one.counts)
        average = mean / max(1, sum(bool(one.counts) for one in sketches))
        assert not near(got, average) or abs(average / nearest(whole, q) - 1) <= error, (
            f"{words}: p{q} is {got:.5g}, the average of theirs; read it off the counts of all"
        )
        _check_percentile(merged, whole, q, error, words, slack=error**2)  # how it is read off is check_sketch's
    if len(sketches) > 1 and sketches[0].counts:
        sketches[1].merge(sketches[0])
        sketches[0].add(1.0)
        held = sum(_counts(sketches[1], words).values())
        assert held == len(parts[0]) + len(parts[1]), (
            f"{words}: what was added to one sketch after the merge stands in the other, too; copy counts"
        )
