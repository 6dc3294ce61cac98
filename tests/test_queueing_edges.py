"""The edges of the formulas: loads next to 1, laws of single values, promises that can just be kept."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

import underload.queueing as q


@pytest.mark.parametrize(
    ("o", "t", "rate"),
    [(0.02, 0.001, 900), (0.01, 0.001, 900), (0.01, 0.002, 450), (0.02, 0.002, 450), (0.005, 0.001, 900)],
)
def test_the_best_batch_is_none_that_barely_keeps_up(o: float, t: float, rate: float) -> None:
    line = q.linear_batch(overhead=o, per_item=t)
    bound = round(rate * o / (1 - rate * t))
    assert line.smallest_stable_batch(rate) == bound + 1
    _, time = line.best_batch(rate, largest=bound + 40)
    tried = [*range(bound + 1, bound + 4), *range(bound + 4, bound + 41, 6)]
    assert time <= min(line.latency(rate, batch_size=size) for size in tried) * (1 + 1e-9)
    assert time < 100 * line.step_time(bound)
    _, nearly = line.best_batch(rate * (1 - 1e-6), largest=bound + 40)
    assert nearly == pytest.approx(time, rel=0.01)


def test_the_smallest_stable_batch_next_to_the_highest_rate_is_found_at_once() -> None:
    line = q.linear_batch(overhead=1.0, per_item=0.1)
    for rate in (9.9999999999, 9.99999999999, 10 * (1 - 1e-15)):
        exact = Fraction(rate) / (1 - Fraction(rate) * Fraction(0.1))
        assert line.smallest_stable_batch(rate) == math.floor(exact) + 1
    assert line.smallest_stable_batch(10.0) == math.inf
    assert q.linear_batch(overhead=0.02, per_item=0.001).smallest_stable_batch(1000 * (1 - 1e-12)) > 1e12


@pytest.mark.parametrize("percentile", [None, 99])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_promise_that_is_just_kept_has_a_capacity(size: int, percentile: float | None) -> None:
    line = q.linear_batch(overhead=0.1, per_item=0.01)

    def time(share: float) -> float:
        return line.latency(share * line.throughput(size), batch_size=size, kind="full", percentile=percentile)

    least = min(time(share) for share in np.linspace(0.05, 0.98, 400))
    for slo in (1.0001 * least, 1.001 * least):
        rate = line.capacity(slo, batch_size=size, kind="full", percentile=percentile)
        assert time(rate / line.throughput(size)) == pytest.approx(slo, rel=1e-6)
    assert line.capacity(0.999 * least, batch_size=size, kind="full", percentile=percentile) == 0


@pytest.mark.parametrize("delay", [0.5, 2.0, 2.5, 100.0])
@pytest.mark.parametrize("backup", [None, q.Exponential(1.0), q.Deterministic(0.5)])
@pytest.mark.parametrize(
    "law", [q.Empirical([1, 2, 3, 4]), q.Empirical(list(range(1, 11))), q.Deterministic(1.0), q.Exponential(2.0)]
)
def test_a_percentile_of_hedged_requests_is_the_first_time_that_few_exceed(law, backup, delay: float) -> None:
    found = q.hedged(law, delay=delay, backup=backup)
    for level in (0, 10, 25, 50, 70, 75, 90, 99, 99.9):
        share, time = (100 - level) / 100, found.quantile(level)
        assert found.tail(time) <= share * (1 + 1e-9)
        assert time == 0 or found.tail(time * (1 - 1e-9)) >= share * (1 - 1e-7)
        if delay == 100.0 and isinstance(law, q.Empirical):
            assert time == law.quantile(level)
