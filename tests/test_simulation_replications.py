"""Replications: independent runs, the same random numbers for all alternatives, and when to stop."""

from __future__ import annotations

import numpy as np
import pytest

from underload.queueing import Exponential, mm1
from underload.request import UnderloadError
from underload.simulation import compare, replicate, simulate
from underload.workload import Poisson, Streams


def draw(streams: Streams) -> float:
    return float(streams["service"].random())


def shifted(streams: Streams) -> float:
    return draw(streams) + 0.001


def busy(streams: Streams) -> float:
    return simulate(arrivals=Poisson(0.5), service=Exponential(1.0), customers=2_000, seed=streams).mean_wait


def test_runs_are_independent_and_repeatable_and_more_runs_keep_the_first() -> None:
    ten = replicate(draw, runs=10, seed=3)
    assert len(set(ten.results)) == 10 and len(ten) == 10
    assert replicate(draw, runs=20, seed=3).results[:10] == ten.results
    assert replicate(draw, runs=10, seed=4).results != ten.results
    many = np.array(replicate(draw, runs=2_000).results)
    assert abs(np.corrcoef(many[:-1], many[1:])[0, 1]) < 0.08 and abs(many.mean() - 0.5) < 0.03


def test_alternatives_meet_the_same_numbers() -> None:
    found = compare({"a": draw, "b": shifted}, runs=10)
    assert np.allclose(np.array(found["b"].results) - np.array(found["a"].results), 0.001)
    gap = found.difference("b", "a")
    # The spread of the load has gone: runs apart by 0.3 tell a difference of 0.001.
    assert gap.mean == pytest.approx(0.001) and gap.half_width < 1e-12
    assert found["a"].interval().half_width > 0.05
    with pytest.raises(UnderloadError, match="no alternative 'c'"):
        found["c"]


def test_common_numbers_narrow_the_difference_of_two_policies() -> None:
    """One server twice as fast against two: the pairs tell in ten runs what separate runs leave open."""

    def one(streams: Streams) -> float:
        return simulate(arrivals=Poisson(1.6), service=Exponential(0.5), customers=3_000, seed=streams).mean_sojourn

    def two(streams: Streams) -> float:
        return simulate(
            arrivals=Poisson(1.6), service=Exponential(1.0), servers=2, customers=3_000, seed=streams
        ).mean_sojourn

    found = compare({"one": one, "two": two}, runs=10)
    gap = found.difference("two", "one")
    assert gap.low > 0
    assert gap.half_width < 0.5 * (found["one"].interval().half_width + found["two"].interval().half_width)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    """100 intervals of 90 %, from runs whose true mean is known: 90 give or take, and not 100."""
    held = sum(0.5 in replicate(draw, runs=10, seed=seed, confidence=0.9).interval() for seed in range(100))
    assert 80 <= held <= 98


def test_it_goes_on_until_it_is_precise_enough() -> None:
    found = replicate(busy, runs=10, until=0.03)
    interval = found.interval()
    assert found.reached and len(found) > 10
    assert interval.relative is not None and interval.relative <= 0.03
    assert mm1(0.5, 1.0).mean_wait == pytest.approx(interval.mean, rel=0.06)
    rough = replicate(busy, runs=10, until=0.0001, most=15)
    assert not rough.reached and len(rough) == 15


def test_a_comparison_goes_on_until_its_difference_is_precise() -> None:
    found = compare({"a": draw, "b": shifted}, runs=5, until=0.01)
    assert found.reached and len(found["a"]) == len(found["b"]) == 5  # the pairs are precise at once
    assert not replicate(draw, runs=5, until=0.01, most=20).reached


def test_figures_can_be_taken_from_whole_results() -> None:
    runs = replicate(
        lambda streams: simulate(arrivals=Poisson(0.5), service=Exponential(1.0), customers=500, seed=streams),
        runs=5,
        of=lambda run: run.mean_wait,
        until=10.0,
    )
    assert runs.figures(lambda run: run.counts["arrived"]) == [500.0] * 5
    assert runs.interval(lambda run: run.sojourn_quantile(95)).mean > runs.interval(lambda run: run.mean_wait).mean


def test_processes_give_the_same_as_one() -> None:
    assert replicate(draw, runs=6, processes=2).results == replicate(draw, runs=6).results


def test_nonsense_is_refused() -> None:
    with pytest.raises(UnderloadError, match="runs must be a whole number from 2"):
        replicate(draw, runs=1)
    with pytest.raises(UnderloadError, match="no experiment"):
        compare({})
    with pytest.raises(UnderloadError, match="until must be above 0"):
        replicate(draw, until=-0.1)
    with pytest.raises(UnderloadError, match="named function at the top of a module"):
        replicate(lambda streams: 1.0, processes=2)
