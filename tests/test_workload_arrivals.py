"""Arrival processes against theory: rate, CV, index of dispersion, and what no generator may do to hit a number."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from underload.request import UnderloadError
from underload.workload import (
    Deterministic,
    Diurnal,
    Gamma,
    OnOff,
    PiecewiseConstant,
    Poisson,
    Replay,
    Streams,
    Weibull,
    Windowed,
    dispersion,
)

LIB = str(Path(__file__).resolve().parents[1] / "lib")

STEADY = {
    "poisson": Poisson(4),
    "gamma bursty": Gamma(4, 0.25),
    "gamma smooth": Gamma(4, 4),
    "weibull": Weibull(4, 0.6),
    "deterministic": Deterministic(4),
    "equal gaps": Gamma(4, math.inf),
    "on/off": OnOff(20, 1, 10, 30),
    "interrupted": OnOff(20, 0, 2, 6),
}
CHANGING = {
    "steps": PiecewiseConstant([0, 10, 30, 60], [1, 0, 9], repeat=True),
    "once": PiecewiseConstant([0, 100, 200, math.inf], [3, 0, 5]),
    "diurnal": Diurnal(4, 0.8, 100),
    "down to 0": Diurnal(4, 1.0, 50, peak=20),
    "hourly": Diurnal.hourly([0.1] * 8 + [0.5] * 16),
    "windowed": Windowed(1000, [Poisson(3), None, Gamma(2, 0.5)] * 20),
}
ALL = STEADY | CHANGING


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def cv_error(cv: float, skew: float, excess: float, n: int) -> float:
    """The standard error of the CV of n independent gaps (delta method)."""
    return cv * math.sqrt(((excess + 2) / 4 - skew * cv + cv**2) / n)


# ---- rate, CV, index ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STEADY)
def test_a_steady_process_keeps_its_rate_from_the_first_second_on(name):
    """Mean count = rate x horizon, also over a short horizon: time 0 is a look at the clock, not an arrival."""
    process, runs, horizon = STEADY[name], 3000, 2.1
    counts = np.array([len(process.arrivals(rng(seed), horizon)) for seed in range(runs)])
    if isinstance(process, Deterministic):
        assert set(counts) == {9}  # 0, 0.25, …, 2.0
        return
    assert counts.mean() == pytest.approx(process.rate * horizon, abs=4 * counts.std() / math.sqrt(runs) + 1e-9)
    assert counts.std() > 0  # not rescaled to hit it


@pytest.mark.parametrize("name", ["poisson", "gamma bursty", "gamma smooth", "weibull", "deterministic"])
def test_gaps_have_their_mean_and_cv(name):
    process, n = STEADY[name], 200_000
    gaps = process.gaps(rng(1), n)
    assert gaps.mean() == pytest.approx(1 / process.rate, abs=4 * process.cv / process.rate / math.sqrt(n) + 1e-12)
    skew, excess = (float(m) for m in _law(process).stats("sk")) if process.cv else (0.0, 0.0)
    assert gaps.std() / gaps.mean() == pytest.approx(process.cv, abs=4 * cv_error(process.cv, skew, excess, n) + 1e-9)
    if process.cv:
        # the whole law, not two of its numbers
        assert stats.kstest(gaps[:20_000], _law(process).cdf).pvalue > 1e-3


def _law(process):
    if isinstance(process, Poisson):
        return stats.expon(scale=1 / process.rate)
    if isinstance(process, Gamma):
        return stats.gamma(process.burstiness, scale=1 / process.burstiness / process.rate)
    return stats.weibull_min(process.shape, scale=process.scale)


@pytest.mark.parametrize("name", STEADY)
def test_counts_have_their_index_of_dispersion(name):
    process = STEADY[name]
    # windows so long that they hardly depend on each other, or for on/off the window its formula is for
    window, horizon = (25.0, 400_000.0) if "o" in name and isinstance(process, OnOff) else (200.0, 400_000.0)
    instants = process.arrivals(rng(2), horizon)
    found = dispersion(instants, window, horizon)
    expected = process.idc_at(window if isinstance(process, OnOff) else math.inf)
    windows = horizon / window
    slack = 3 if isinstance(process, OnOff) else 1  # neighbours share the state of the switch
    # what a renewal process owes to its windows being finite is O(1/window)
    finite = (process.cv**2 + 1) ** 2 / (process.rate * window)
    assert found.index == pytest.approx(expected, rel=4 * slack * math.sqrt(2 / windows), abs=finite)
    assert found.windows == windows


def test_the_index_of_on_off_grows_with_the_window_as_its_formula_says():
    process, horizon = OnOff(20, 1, 10, 30), 400_000.0
    instants = process.arrivals(rng(3), horizon)
    for window in (0.5, 2.0, 10.0, 50.0):
        assert dispersion(instants, window, horizon).index == pytest.approx(process.idc_at(window), rel=0.06)
    assert process.idc_at(1e-9) == pytest.approx(1)
    assert process.idc_at(math.inf) == pytest.approx(process.idc_at(1e9))
    gaps = np.diff(instants)
    assert gaps.std() / gaps.mean() == pytest.approx(process.cv, rel=0.03)


def test_on_off_without_a_difference_is_poisson():
    same = OnOff(4, 4, 10, 30)
    assert same.cv == 1 and same.idc_at(7) == 1 and same.rate == 4


def test_the_index_of_a_day_grows_as_its_formula_says():
    process, horizon, window = Diurnal(4, 0.8, 100), 400_000.0, 7.0  # 100/7 is no whole number: all phases are seen
    instants = process.arrivals(rng(4), horizon)
    assert dispersion(instants, window, horizon).index == pytest.approx(process.idc_at(window), rel=0.05)


def test_a_poisson_process_has_index_1_whatever_the_window_and_no_memory():
    instants = Poisson(4).arrivals(rng(5), 100_000)
    for window in (0.3, 1.0, 10.0, 100.0):
        found = dispersion(instants, window, 100_000.0)
        assert found.index == pytest.approx(1, abs=4 * math.sqrt(2 / found.windows))
        assert found.p_value > 1e-3
    gaps = np.diff(instants)
    assert np.corrcoef(gaps[1:], gaps[:-1])[0, 1] == pytest.approx(0, abs=4 / math.sqrt(len(gaps)))


# ---- rates that change -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["steps", "once", "diurnal", "down to 0", "hourly"])
def test_a_changing_rate_is_followed_exactly(name):
    """Stretched by the integral of its rate, a Poisson process becomes one of rate 1: its gaps are exponential."""
    process, horizon = CHANGING[name], 86_400.0 if name == "hourly" else 5_000.0
    instants = process.arrivals(rng(6), horizon)
    grid = np.linspace(0, horizon, 400_001)
    area = np.concatenate([[0], np.cumsum(process.rate_at((grid[1:] + grid[:-1]) / 2)) * (grid[1] - grid[0])])
    gaps = np.diff(np.interp(instants, grid, area))
    assert stats.kstest(gaps, stats.expon.cdf).pvalue > 1e-3
    assert len(instants) == pytest.approx(area[-1], abs=4 * math.sqrt(area[-1]))


def test_nothing_arrives_while_the_rate_is_0():
    instants = PiecewiseConstant([0, 10, 30, 60], [1, 0, 9], repeat=True).arrivals(rng(7), 6_000)
    phase = instants % 60
    assert not ((phase > 10) & (phase < 30)).any()
    assert (phase < 10).sum() == pytest.approx(1_000, abs=4 * math.sqrt(1_000))


def test_rates_that_end_are_not_followed_by_a_silence_that_nobody_asked_for():
    ends = PiecewiseConstant([0, 10], [1])
    with pytest.raises(UnderloadError, match=r"end at 10 s.*repeat=True"):
        ends.arrivals(rng(), 11)
    with pytest.raises(UnderloadError, match=r"only \d+ requests arrive, 1000 were asked for"):
        ends.first(rng(), 1_000)
    with pytest.raises(UnderloadError, match="windows end at"):
        Windowed(10, [Poisson(1)]).arrivals(rng(), 11)
    with pytest.raises(UnderloadError, match="silence that nobody measured"):
        Replay([0, 1, 2]).arrivals(rng(), 3)


def test_windows_keep_each_its_own_rate_and_law():
    process = Windowed(1_000, [Poisson(3), None, Gamma(2, 0.25)])
    counts = np.zeros(3)
    for seed in range(50):
        counts += np.histogram(process.arrivals(rng(seed), 3_000), [0, 1_000, 2_000, 3_000])[0] / 50
    assert counts[0] == pytest.approx(3_000, abs=4 * math.sqrt(3_000 / 50))
    assert counts[1] == 0
    assert counts[2] == pytest.approx(2_000, abs=4 * math.sqrt(4 * 2_000 / 50))
    assert process.rate == pytest.approx(5 / 3)


def test_a_replay_is_what_it_was_given_and_speed_is_the_only_scale():
    instants = [0.0, 0.5, 0.5, 3.0]
    assert Replay(instants).arrivals(rng(), 3.0).tolist() == [0, 0.5, 0.5]
    assert Replay(instants).first(rng(), 4).tolist() == instants
    assert Replay(instants, speed=2).first(rng(), 4).tolist() == [0, 0.25, 0.25, 1.5]
    assert Replay(instants, speed=2).rate == pytest.approx(2 * Replay(instants).rate)
    assert Replay(instants, speed=2).cv == pytest.approx(Replay(instants).cv)
    for wrong in ([1, 0], [-1, 0], [0, math.nan], [0, math.inf]):
        with pytest.raises(UnderloadError, match="finite, sorted and at least 0"):
            Replay(wrong)


# ---- what holds for all ------------------------------------------------------------------------------------------


# To the nanosecond: a horizon below 1e-100 s counts as 0, and the first of equal gaps lies at 0.
@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(ALL)),
    st.integers(0, 10**6),
    st.floats(0, 60).map(lambda horizon: round(horizon, 9)),
    st.floats(0, 5_000),
)
def test_instants_are_sorted_in_the_horizon_and_a_longer_horizon_keeps_them(name, seed, short, more):
    process = ALL[name]
    few, many = process.arrivals(rng(seed), short), process.arrivals(rng(seed), short + more)
    for instants, horizon in ((few, short), (many, short + more)):
        assert (np.diff(instants) >= 0).all() and (instants >= 0).all() and (instants < horizon).all()
    assert np.array_equal(few, many[many < short])
    assert np.array_equal(process.first(rng(seed), len(many)), many)


@pytest.mark.parametrize("name", ALL)
def test_as_many_gaps_as_asked_for(name):
    gaps = ALL[name].gaps(rng(8), 1_000)
    assert gaps.shape == (1_000,) and (gaps >= 0).all() and np.isfinite(gaps).all()
    assert ALL[name].gaps(rng(8), 0).shape == (0,)


def test_a45_burstiness_and_infinite_rate_have_no_special_cases_that_fail():
    for burstiness, cv in ((0.25, 2), (1, 1), (4, 0.5)):
        assert Gamma(3, burstiness).cv == pytest.approx(cv)
        gaps = Gamma(3, burstiness).gaps(rng(9), 100_000)
        assert gaps.mean() == pytest.approx(1 / 3, abs=4 * cv / 3 / math.sqrt(100_000))
    equal = Gamma(4, math.inf)
    assert (equal.gaps(rng(), 1_000) == 0.25).all() and equal.cv == 0
    assert np.diff(equal.first(rng(), 1_000)) == pytest.approx(0.25)
    for process in (Poisson(math.inf), Gamma(math.inf, 0.5), Gamma(math.inf, math.inf), Deterministic(math.inf)):
        assert (process.first(rng(), 1_000) == 0).all()
        assert (process.gaps(rng(), 10) == 0).all()
        with pytest.raises(UnderloadError, match=r"infinitely many.*first\(rng, n\)"):
            process.arrivals(rng(), 1.0)
    assert (Weibull(math.inf, 0.5).first(rng(), 10) == 0).all()
    for burstiness in (0, -1, math.nan):
        with pytest.raises(UnderloadError, match="burstiness"):
            Gamma(4, burstiness)


def test_a49_a_rate_is_not_a_mean():
    for rate, gap in ((4, 0.25), (0.25, 4)):
        for process in (Poisson(rate), Gamma(rate, 1), Weibull(rate, 1)):
            gaps = process.gaps(rng(10), 40_000)
            assert gaps.mean() == pytest.approx(gap, abs=3 * gap / math.sqrt(40_000))
        assert Deterministic(rate).first(rng(), 3).tolist() == [0, gap, 2 * gap]


def test_deterministic_arrivals_do_not_drift():
    assert Deterministic(10).arrivals(rng(), 1.0).tolist() == pytest.approx([i / 10 for i in range(10)])
    assert Deterministic(3).first(rng(), 300_001)[-1] == 100_000
    assert Deterministic(2, phase=0.1).first(rng(), 2).tolist() == [0.1, 0.6]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Poisson(0), "rate must be above 0"),
        (lambda: Poisson(-1), "rate must be above 0"),
        (lambda: Poisson(math.nan), "finite number"),
        (lambda: Poisson("4"), "without quotes"),
        (lambda: Weibull(1, 0.01), "shape must be at least 0.05"),
        (lambda: Deterministic(1, phase=-1), "phase"),
        (lambda: OnOff(0, 0, 1, 1), "nothing ever arrives"),
        (lambda: OnOff(1, -1, 1, 1), "off_rate"),
        (lambda: OnOff(1, 0, 0, 1), "mean_on"),
        (lambda: PiecewiseConstant([0, 1], [1, 2]), "need 3 edges"),
        (lambda: PiecewiseConstant([1, 2], [1]), "rise from 0"),
        (lambda: PiecewiseConstant([0, 2, 1], [1, 1]), "rise from 0"),
        (lambda: PiecewiseConstant([0, 1], [0]), "every rate is 0"),
        (lambda: PiecewiseConstant([0, math.inf], [1], repeat=True), "cannot repeat"),
        (lambda: Diurnal(1, 1.5), "swing"),
        (lambda: Diurnal.hourly([1] * 23), "24 hourly rates"),
        (lambda: Windowed(10, [None]), "every window is empty"),
        (lambda: Poisson(1e9).arrivals(rng(), 1e6), "shorten the horizon"),
        (lambda: Poisson(1).arrivals(rng(), -1), "horizon"),
        (lambda: Poisson(1).arrivals(rng(), math.inf), "horizon"),
        (lambda: Poisson(1).first(rng(), 1.5), "n must be a whole number"),
    ],
)
def test_nonsense_is_named_with_its_limit(make, says):
    with pytest.raises(UnderloadError, match=says):
        make()


def test_the_package_starts_light():
    code = (
        "import sys, underload.workload; print(sorted({'scipy', 'matplotlib', 'torch', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": LIB}
    )
    assert done.stdout.strip() == "[]", done.stderr


# ---- streams -----------------------------------------------------------------------------------------------------


def test_a_stream_depends_on_seed_and_name_alone():
    one, other = Streams(5), Streams(5)
    one["lengths"].random(1_000)  # what is drawn elsewhere, and in which order, is nothing to this one
    assert one["arrivals"].random(4).tolist() == other["arrivals"].random(4).tolist()
    assert one["arrivals"].random() == other["arrivals"].random()  # both go on where they stood
    assert one.fresh("arrivals").random() == Streams(5)["arrivals"].random()
    assert float(Streams(0)["arrivals"].random()) == pytest.approx(0.8580780680185884)  # in every process, for good


def test_streams_of_other_names_seeds_and_parts_are_unrelated():
    draws = [
        Streams(0)["arrivals"].random(2_000),
        Streams(0)["lengths"].random(2_000),
        Streams(1)["arrivals"].random(2_000),
        Streams(0).under("a")["arrivals"].random(2_000),
        Streams(0).under("b")["arrivals"].random(2_000),
        Streams(0).under(0)["arrivals"].random(2_000),
        Streams(0).under("0")["arrivals"].random(2_000),
    ]
    correlations = np.corrcoef(draws)[np.triu_indices(len(draws), 1)]
    assert np.abs(correlations).max() < 5 / math.sqrt(2_000)


@pytest.mark.parametrize("seed", [-1, 1.5, "1", None, True])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(UnderloadError, match="a seed is a whole number"):
        Streams(seed)
