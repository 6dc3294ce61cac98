"""`simulate`: both paths, against formulas, ends of a run, and what it refuses."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underload import metrics
from underload.queueing import (
    Deterministic,
    Exponential,
    Hyperexponential,
    Lognormal,
    Service,
    erlang_b,
    mg1,
    mg1_ps,
    mm1,
    mm1k,
    mmc,
)
from underload.request import UnderloadError
from underload.simulation import DISCIPLINES, Run, fcfs, little, number_inside, replicate, simulate
from underload.workload import Deterministic as EqualGaps
from underload.workload import PiecewiseConstant, Poisson, Streams

LOADS = st.lists(st.tuples(st.floats(0, 3), st.floats(0, 4)), min_size=1, max_size=40)
TIES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), min_size=1, max_size=40)


def given_load(load: list[tuple[float, float]]) -> dict[str, Any]:
    gaps, services = zip(*load)
    return {"arrivals": np.cumsum(np.array(gaps, dtype=float)), "service": np.array(services, dtype=float)}


def same(a: Run, b: Run) -> None:
    """Customer by customer, to the last bit."""
    for name in ("arrival", "service", "start", "finish"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)


# ---- both paths --------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=200)
@given(st.one_of(LOADS, TIES), st.integers(1, 4), st.one_of(st.none(), st.integers(0, 3)))
def test_both_paths_agree_to_the_last_bit(load: Any, servers: int, buffer: int | None) -> None:
    made = given_load(load)
    fast = simulate(**made, servers=servers, buffer=buffer, path="fast")
    events = simulate(**made, servers=servers, buffer=buffer, path="events")
    assert (fast.path, events.path) == ("fast", "events")
    same(fast, events)
    compiled = fcfs(fast.arrival, fast.service, servers, buffer, engine="compiled")
    np.testing.assert_array_equal(compiled, fast.start)


@pytest.mark.parametrize(("servers", "buffer"), [(1, None), (1, 0), (1, 3), (2, None), (8, None), (8, 5), (100, None)])
@pytest.mark.parametrize("law", [Exponential(0.9), Deterministic(0.9), Lognormal(0.9, 4)])
def test_both_paths_agree_on_a_long_run(servers: int, buffer: int | None, law: Service) -> None:
    """Plain, compiled and by events: 5,000 customers with long busy periods."""
    load: dict[str, Any] = {
        "arrivals": Poisson(servers),
        "service": law,
        "customers": 5_000,
        "servers": servers,
        "buffer": buffer,
    }
    fast, events = simulate(**load, seed=3), simulate(**load, seed=3, path="events")
    assert (fast.path, events.path) == ("fast", "events") and fast.refused.any() == (buffer is not None)
    same(fast, events)
    compiled = fcfs(fast.arrival, fast.service, servers, buffer, engine="compiled")
    np.testing.assert_array_equal(compiled, fast.start)


def test_the_plain_path_serves_where_numba_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from underload.simulation import fast

    monkeypatch.setitem(sys.modules, "numba", None)
    fast._compiled.cache_clear()
    try:
        arrival, service = np.array([0.0, 1.0, 1.5]), np.array([2.0, 1.0, 1.0])
        assert fcfs(arrival, service, engine="compiled").tolist() == [0.0, 2.0, 3.0]
        assert fcfs(arrival, service, 2, 0, engine="compiled").tolist()[:2] == [0.0, 1.0]
    finally:
        fast._compiled.cache_clear()


def test_more_servers_than_customers_is_no_matter() -> None:
    run = simulate(arrivals=[0.0, 1.0], service=[5.0, 5.0], servers=10_000_000)
    assert run.start.tolist() == [0.0, 1.0]


# ---- what holds on every run -------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=150)
@given(
    st.one_of(LOADS, TIES), st.integers(1, 3), st.sampled_from(list(DISCIPLINES)), st.integers(0, 5), st.floats(1, 60)
)
def test_on_every_run(load: Any, servers: int, discipline: str, buffer: int, horizon: float) -> None:
    """Nobody is lost, and Little's law holds on any window, ends and all."""
    made = given_load(load)
    urgency = np.arange(len(load)) % 3 if discipline == "priority" else None
    run = simulate(**made, servers=servers, discipline=discipline, buffer=buffer, horizon=horizon, priority=urgency)
    counts = run.counts
    assert counts["arrived"] == int((made["arrivals"] < horizon).sum())
    assert counts["arrived"] == counts["finished"] + counts["inside"] + counts["refused"]
    here = ~run.refused
    slack = 1e-9 * (1 + run.finish[here].max(initial=0.0))
    assert (run.start[here] >= run.arrival[here]).all()
    assert (run.finish[here] - run.arrival[here] >= run.service[here] - slack).all()
    if discipline != "ps":
        np.testing.assert_array_equal(run.finish[here], run.start[here] + run.service[here])
    if discipline == "fcfs":
        assert (np.diff(run.start[here]) >= 0).all()
        if servers == 1:
            assert (np.diff(run.finish[here]) >= 0).all()
    times, inside = number_inside(run.arrival[here], run.finish[here])
    assert (inside >= 0).all() and (inside.size == 0 or inside[-1] == 0) and (np.diff(times) >= 0).all()
    assert inside.max(initial=0) <= servers + buffer
    for begin, end in ((0.0, horizon), (horizon / 3, horizon / 2), (horizon, 2 * horizon)):
        window = little(run.arrival[here], run.finish[here], begin, end)
        window.check()
        assert window.area == pytest.approx(window.parts, rel=1e-9, abs=1e-9)
    # Over a window that holds every stay whole, L = lambda W needs no ends.
    whole = little(run.arrival[here], run.finish[here], 0.0, run.finish[here].max(initial=0.0) + 1)
    assert whole.ends == pytest.approx(0, abs=1e-7)
    assert whole.mean_system == pytest.approx(whole.rate * whole.mean_sojourn, rel=1e-9, abs=1e-9)


@settings(deadline=None, max_examples=150)
@given(TIES, st.integers(1, 3), st.sampled_from(["fcfs", "lifo", "sjf", "priority"]))
def test_no_server_idles_while_somebody_waits(load: Any, servers: int, discipline: str) -> None:
    urgency = np.arange(len(load)) % 2 if discipline == "priority" else None
    run = simulate(**given_load(load), servers=servers, discipline=discipline, priority=urgency)
    for arrival, start in zip(run.arrival, run.start):
        if start > arrival:
            for moment in np.arange(arrival, start) + 0.5:
                assert ((run.start <= moment) & (run.finish > moment)).sum() == servers


@settings(deadline=None, max_examples=150)
@given(TIES)
def test_one_server_is_busy_at_the_same_times_whatever_the_discipline(load: Any) -> None:
    """Work conservation: the staircases differ, but not when they are at 0."""
    spans = []
    for discipline in ("fcfs", "lifo", "sjf", "ps"):
        run = simulate(**given_load(load), discipline=discipline)
        times, inside = run.number_inside()
        lengths = np.diff(np.append(times, times[-1] if times.size else 0.0))
        spans.append((lengths[inside > 0].sum(), run.finish.max(), run.utilisation if run.length else 0.0))
    for other in spans[1:]:
        assert other == pytest.approx(spans[0], rel=1e-9)


def test_who_comes_as_the_last_one_leaves_meets_nobody() -> None:
    for discipline in ("fcfs", "ps"):
        assert simulate(arrivals=[0.0, 1.0, 1.5], service=[1.0] * 3, discipline=discipline).prob_wait == 1 / 3


def test_shared_servers_are_busy_as_far_as_there_is_company() -> None:
    """Two unit speeds: both busy for 2 s, then one for 2 s, of 8 s; three on two are 1 beyond for a while."""
    run = simulate(arrivals=[0.0, 0.0], service=[2.0, 4.0], servers=2, discipline="ps", horizon=8.0)
    assert (run.utilisation, run.mean_system, run.mean_queue) == (6 / 16, 6 / 8, 0.0)
    run = simulate(arrivals=[0.0] * 3, service=[2.0] * 3, servers=2, discipline="ps", horizon=6.0)
    assert (run.utilisation, run.mean_system, run.mean_queue) == pytest.approx((0.5, 1.5, 0.5))


def test_little_tells_what_the_ends_do() -> None:
    """By hand on the window [2, 6): two are there before, one stays beyond, one comes as it ends."""
    window = little(np.array([0.0, 1.0, 4.0, 6.0]), np.array([3.0, 5.0, 9.0, 7.0]), 2.0, 6.0)
    assert (window.area, window.parts) == (1 + 3 + 2, 6)
    assert (window.entered, window.stays, window.ends) == (1, 5.0, 1.0)
    assert (window.mean_system, window.rate, window.mean_sojourn) == (1.5, 0.25, 5.0)


def test_a_run_that_contradicts_itself_is_told() -> None:
    from dataclasses import replace

    window = little(np.array([0.0]), np.array([3.0]), 0.0, 4.0)
    with pytest.raises(UnderloadError, match="Little's law fails"):
        replace(window, parts=window.parts * 1.0001).check()


# ---- ends of a run -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["fast", "events"])
def test_a48_everybody_is_accounted_for_at_the_horizon(path: str) -> None:
    """Arrivals every second from 1 on, a second of service, T = 24: half-open, so 23 arrived, 22 finished, 1 inside."""
    run = simulate(arrivals=EqualGaps(1.0, phase=1.0), service=Deterministic(1.0), horizon=24.0, path=path)
    assert run.counts == {"arrived": 23, "finished": 22, "inside": 1, "refused": 0}
    # With the end point counted, as by a horizon just beyond it, it is 24, 23 and 1.
    closed = simulate(
        arrivals=EqualGaps(1.0, phase=1.0), service=Deterministic(1.0), horizon=math.nextafter(24, 25), path=path
    )
    assert closed.counts == {"arrived": 24, "finished": 23, "inside": 1, "refused": 0}
    # The one inside has its record, and its whole stay.
    assert run.finish[-1] == 24.0 and run.sojourns.size == 23 and run.mean_sojourn == 1.0
    assert run.mean_system == pytest.approx(23 / 24) and run.throughput == pytest.approx(22 / 24)


def test_a49_a_rate_is_not_a_mean() -> None:
    """Rate 4 gives gaps of .25 s, rate .25 gaps of 4 s; rate 1 would hide the mistake. Services are given as means."""
    for rate in (4.0, 0.25):
        run = simulate(arrivals=Poisson(rate), service=Exponential(2 / rate), customers=20_000, servers=3)
        gaps = np.diff(run.arrival)
        for found, mean in ((gaps, 1 / rate), (run.service, 2 / rate)):
            assert abs(found.mean() - mean) < 3 * mean / math.sqrt(found.size)
        assert run.arrival_rate == pytest.approx(rate, rel=0.05) and run.load == pytest.approx(2 / 3, rel=0.05)


def test_a51_an_empty_start_is_not_the_steady_state() -> None:
    """M/M/1 at 0.9, theory 9 s: the first 200 customers wait 5.8 s on average, the first 1,000 8.1 s."""

    def first(n: int) -> Callable[[Streams], float]:
        return lambda streams: (
            simulate(arrivals=Poisson(0.9), service=Exponential(1.0), customers=n, seed=streams).mean_wait
        )

    early, later = (replicate(first(n), runs=400, seed=7).interval() for n in (200, 1_000))
    assert abs(early.mean - 5.8) < 0.8 and abs(later.mean - 8.1) < 1.0
    assert 9.0 not in early
    cut = replicate(
        lambda streams: (
            simulate(
                arrivals=Poisson(0.9), service=Exponential(1.0), horizon=40_000, warmup=4_000, seed=streams
            ).mean_wait
        ),
        runs=30,
        seed=7,
    ).interval()
    assert 9.0 in cut and cut.relative is not None and cut.relative < 0.04


def test_the_warm_up_is_cut_by_arrival() -> None:
    run = simulate(arrivals=[0.0, 1.0, 2.0, 3.0], service=[4.0] * 4, warmup=2.0, horizon=10.0)
    assert run.counted.tolist() == [False, False, True, True]
    assert run.waits.tolist() == [6.0, 9.0] and run.sojourns.tolist() == [10.0, 13.0]
    # Time from 2 on: four, less one at 4, one at 8; the queue is one less; the server is never idle.
    assert run.mean_system == (3 * 1 + 4 * 1 + 3 * 4 + 2 * 2) / 8
    assert run.utilisation == 1.0 and run.mean_queue == run.mean_system - 1
    assert run.arrival_rate == 2 / 8 and run.throughput == 2 / 8 and run.load == 1.0
    assert [t.arrival for t in run.timelines()] == [2.0, 3.0]


# ---- against formulas --------------------------------------------------------------------------------------------

LIGHT, HEAVY = Hyperexponential.of(1.0, 4.0), Lognormal(1.0, 3.0)


def agrees(
    theory: Any, figures: tuple[str, ...], *, within: float, horizon: float, runs: int = 12, **load: Any
) -> None:
    """The formula's figures lie in 99.9 % intervals over runs, and these are narrow enough to say something."""
    made = replicate(
        lambda streams: simulate(**load, horizon=horizon, warmup=horizon / 20, seed=streams),
        runs=runs,
        confidence=0.999,
    )
    for figure in figures:
        found = made.interval(lambda run: getattr(run, figure))  # noqa: B023, called at once
        assert getattr(theory, figure) in found, (figure, str(found))
        assert found.relative is not None and found.relative < within, (figure, str(found))


FIGURES = ("mean_wait", "mean_sojourn", "mean_queue", "mean_system", "utilisation", "prob_wait")


@pytest.mark.parametrize(
    ("load", "theory"),
    [
        ({"arrivals": Poisson(0.7), "service": Exponential(1.0)}, mm1(0.7, 1.0)),
        ({"arrivals": Poisson(6.0), "service": Exponential(1.0), "servers": 8}, mmc(6.0, 1.0, servers=8)),
        ({"arrivals": Poisson(0.7), "service": Deterministic(1.0)}, mg1(0.7, mean_service=1.0, scv=0.0)),
        ({"arrivals": Poisson(0.6), "service": LIGHT}, mg1(0.6, LIGHT)),
    ],
    ids=["M/M/1", "M/M/8", "M/D/1", "M/H2/1"],
)
def test_every_figure_is_that_of_the_formula(load: dict[str, Any], theory: Any) -> None:
    horizon = 200_000 / load["arrivals"].rate / load.get("servers", 1)
    agrees(theory, FIGURES, within=0.15, horizon=horizon, **load)
    run = simulate(**load, horizon=3 * horizon, warmup=1_000)
    for q in (50, 95, 99):
        assert run.sojourn_quantile(q) == pytest.approx(theory.sojourn_quantile(q), rel=0.08), q


def test_two_moments_of_the_service_make_the_mean_wait() -> None:
    theory = mg1(0.5, mean_service=1.0, scv=HEAVY.scv)
    agrees(theory, ("mean_wait", "mean_queue"), within=0.2, horizon=50_000, arrivals=Poisson(0.5), service=HEAVY)


@pytest.mark.parametrize("law", [Deterministic(1.0), Exponential(1.0), LIGHT], ids=["D", "M", "H2"])
def test_processor_sharing_does_not_feel_the_service_law(law: Service) -> None:
    theory = mg1_ps(0.7, mean_service=1.0)
    figures = ("mean_wait", "mean_sojourn", "mean_queue", "mean_system", "utilisation", "prob_wait")
    agrees(theory, figures, within=0.25, horizon=10_000, arrivals=Poisson(0.7), service=law, discipline="ps")


def test_a_finite_buffer_loses_what_the_formula_says() -> None:
    theory = mm1k(1.5, 1.0, buffer=4)
    figures = ("prob_lost", "mean_wait", "mean_sojourn", "throughput", "mean_system", "utilisation", "prob_wait")
    agrees(theory, figures, within=0.06, horizon=5_000, arrivals=Poisson(1.5), service=Exponential(1.0), buffer=4)


@pytest.mark.parametrize(("discipline", "law"), [("fcfs", LIGHT), ("ps", Deterministic(1.0)), ("ps", LIGHT)])
def test_without_a_buffer_the_loss_is_erlangs_for_every_service_law(discipline: str, law: Service) -> None:
    made = replicate(
        lambda streams: (
            simulate(
                arrivals=Poisson(2.0),
                service=law,
                servers=3,
                buffer=0,
                discipline=discipline,
                horizon=5_000,
                seed=streams,
            ).prob_lost
        ),
        runs=12,
        confidence=0.999,
    ).interval()
    assert erlang_b(2.0, servers=3) in made and made.relative is not None and made.relative < 0.1


def test_the_order_of_service_moves_waits_between_customers() -> None:
    """Of orders blind to service times the mean is one and the same; shortest first beats it; the spread differs."""
    load: dict[str, Any] = {"arrivals": Poisson(0.8), "service": Exponential(1.0), "horizon": 10_000, "warmup": 500.0}
    runs = {name: [simulate(**load, discipline=name, seed=i) for i in range(8)] for name in ("fcfs", "lifo", "sjf")}
    means = {name: metrics.mean_interval([run.mean_wait for run in made], 0.999) for name, made in runs.items()}
    assert mm1(0.8, 1.0).mean_wait in means["fcfs"] and mm1(0.8, 1.0).mean_wait in means["lifo"]
    for fcfs_run, lifo_run, sjf_run in zip(*runs.values()):
        np.testing.assert_array_equal(fcfs_run.arrival, lifo_run.arrival)
        np.testing.assert_array_equal(fcfs_run.service, sjf_run.service)
        assert sjf_run.mean_wait < fcfs_run.mean_wait
        assert lifo_run.waits.var() > 1.5 * fcfs_run.waits.var()


def test_priorities_wait_as_cobham_says() -> None:
    """Two classes of M/M/1 without interruption: R/(1 - s1) and R/((1 - s1)(1 - s1 - s2)), R = lambda E[S^2]/2."""
    rates = 0.3, 0.5

    def urgent(rng: np.random.Generator, n: int) -> np.ndarray:
        return rng.random(n) * sum(rates) >= rates[0]

    runs = replicate(
        lambda streams: simulate(
            arrivals=Poisson(sum(rates)),
            service=Exponential(1.0),
            discipline="priority",
            priority=urgent,
            horizon=20_000,
            warmup=1_000,
            seed=streams,
        ),
        runs=12,
        confidence=0.999,
    )
    left = sum(rates) * 2 / 2
    first, second = left / (1 - rates[0]), left / (1 - rates[0]) / (1 - sum(rates))
    for group, wanted in enumerate((first, second)):
        found = runs.interval(lambda run: run.waits[run.priority[run.counted] == group].mean())  # noqa: B023
        assert wanted in found and found.relative is not None and found.relative < 0.15, str(found)


def test_a_rate_that_changes_with_time() -> None:
    """With servers for all, m' = rate(t) - m / mean service, from 0: the mean number inside at any instant."""
    rates, edges = (20.0, 80.0, 5.0), (0.0, 2.0, 4.0, 8.0)

    def wanted(t: float) -> float:
        m = 0.0
        for rate, begin, end in zip(rates, edges, edges[1:]):
            span = min(t, end) - begin
            if span <= 0:
                break
            m = rate + (m - rate) * math.exp(-span)
        return m

    moments = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 7.5])
    found = []
    for i in range(200):
        run = simulate(
            arrivals=PiecewiseConstant(edges, rates), service=Exponential(1.0), servers=1_000, horizon=8.0, seed=i
        )
        found.append([((run.arrival <= t) & (run.finish > t)).sum() for t in moments])
    for t, mean in zip(moments, np.mean(found, axis=0)):
        assert abs(mean - wanted(t)) < 4 * math.sqrt(wanted(t) / len(found)), t  # the number is Poisson


def test_what_arrives_sees_time_averages() -> None:
    """PASTA: Poisson arrivals find the server busy as often as it is; equal gaps do not."""
    run = simulate(arrivals=Poisson(0.6), service=Exponential(1.0), horizon=100_000)
    assert run.prob_wait == pytest.approx(run.utilisation, abs=0.01)
    run = simulate(arrivals=EqualGaps(0.6), service=Exponential(1.0), horizon=100_000)
    assert run.prob_wait < run.utilisation - 0.15


# ---- what it is given, what it gives back ------------------------------------------------------------------------


def test_the_same_seed_meets_the_same_customers_whatever_the_policy() -> None:
    load: dict[str, Any] = {"arrivals": Poisson(0.9), "service": Exponential(1.0), "seed": 5}
    base = simulate(**load, horizon=500)
    for other in ({"servers": 2}, {"buffer": 1}, {"discipline": "ps"}, {"discipline": "sjf"}, {"warmup": 20.0}):
        run = simulate(**load, horizon=500, **other)  # type: ignore[arg-type]
        np.testing.assert_array_equal(run.arrival, base.arrival)
        np.testing.assert_array_equal(run.service, base.service)
    longer = simulate(**load, horizon=1_000)
    np.testing.assert_array_equal(longer.start[: base.start.size], base.start)
    assert simulate(**load | {"seed": 6}, horizon=500).arrival[0] != base.arrival[0]
    streams = Streams(5)
    for _ in range(2):  # the streams are read from their beginning each time
        same(simulate(**load | {"seed": streams}, horizon=500), base)


def test_laws_of_scipy_serve_too() -> None:
    from scipy import stats

    run = simulate(arrivals=Poisson(0.5), service=stats.gamma(2.0, scale=0.5), customers=2_000)
    assert run.mean_service == pytest.approx(1.0, rel=0.1)


def test_timelines_carry_waits_and_refusals_to_the_metrics() -> None:
    run = simulate(arrivals=[0.0, 1.0, 2.0, 9.0], service=[5.0, 1.0, 1.0, 1.0], buffer=1)
    lines = run.timelines()
    assert [metrics.queue_time(t) for t in lines] == [0.0, 4.0, None, 0.0]
    assert [metrics.e2e(t) for t in lines] == [5.0, 5.0, None, 1.0]
    assert [metrics.succeeded(t) for t in lines] == [True, True, False, True]
    for line in lines:
        metrics.check(line)
    assert metrics.summary(lines).failure_rate == 0.25


def test_percentiles_are_those_of_the_metrics() -> None:
    run = simulate(arrivals=Poisson(0.9), service=Exponential(1.0), customers=1_001)
    for q in (0, 50, 95, 99, 100):
        assert run.sojourn_quantile(q) == pytest.approx(metrics.percentile(run.sojourns, q), rel=1e-12)
        assert run.wait_quantile(q) == pytest.approx(metrics.percentile(run.waits, q), rel=1e-12)


def test_a_run_prints_the_words_of_the_formulas() -> None:
    run = simulate(arrivals=Poisson(1.2), service=Exponential(1.0), horizon=200.0, buffer=3)
    labels = [label for label, _ in run.rows()]
    assert labels == [label for label, _ in mm1k(1.2, 1.0, buffer=3).rows()]
    assert "turned away" in str(run) and f"{run.counts['refused']:,} refused" in str(run)
    made = json.loads(json.dumps(run.as_dict(), allow_nan=False))
    assert made["mean_wait"] == run.mean_wait and made["arrived"] == run.arrival.size
    whole = simulate(arrivals=[0.0, 1.0], service=[1.0, 1.0])
    assert json.loads(json.dumps(whole.as_dict(), allow_nan=False))["horizon"] is None
    assert "2 arrived" in repr(whole).replace("customers", "arrived") and "simulated" in str(whole)


def test_an_empty_run_gives_no_figure_rather_than_0() -> None:
    run = simulate(arrivals=[], service=[], horizon=10.0)
    assert run.counts == {"arrived": 0, "finished": 0, "inside": 0, "refused": 0}
    assert run.mean_system == 0.0 and run.utilisation == 0.0 and "0 arrived" in str(run)
    for figure in ("mean_wait", "mean_sojourn", "prob_wait", "prob_lost", "mean_service", "load"):
        with pytest.raises(UnderloadError, match="no customer"):
            getattr(run, figure)
    with pytest.raises(UnderloadError, match="no customer"):
        run.wait_quantile(50)
    assert "arrived" in str(simulate(arrivals=[], service=[]))


BASE: dict[str, Any] = {"arrivals": Poisson(0.5), "service": Exponential(1.0), "horizon": 10.0}


@pytest.mark.parametrize(
    "change",
    [
        {"horizon": None},
        {"horizon": -1.0},
        {"horizon": math.nan},
        {"horizon": math.inf},
        {"customers": 5},
        {"horizon": None, "customers": -1},
        {"warmup": 10.0},
        {"warmup": -1.0},
        {"servers": 0},
        {"servers": 1.5},
        {"buffer": -1},
        {"discipline": "fifo"},
        {"path": "quick"},
        {"path": "fast", "discipline": "lifo"},
        {"priority": [1.0]},
        {"discipline": "priority"},
        {"discipline": "priority", "priority": [1.0]},
        {"arrivals": 0.5},
        {"arrivals": [2.0, 1.0], "service": [1.0, 1.0]},
        {"arrivals": [-1.0], "service": [1.0]},
        {"arrivals": [math.nan], "service": [1.0]},
        {"arrivals": [[1.0]], "service": [1.0]},
        {"arrivals": ["one"], "service": [1.0]},
        {"arrivals": [1.0], "service": [1.0], "customers": 1, "horizon": None},
        {"arrivals": [1.0], "service": [1.0, 2.0]},
        {"arrivals": [1.0], "service": [-1.0]},
        {"arrivals": [1.0], "service": [math.inf]},
        {"arrivals": [1.0], "service": [math.nan]},
        {"arrivals": [1.0], "service": [1.0], "horizon": None, "warmup": 5.0},
        {"service": 1.0},
        {"service": "exponential"},
        {"seed": -1},
    ],
)  # fmt: skip
def test_nonsense_is_refused_by_name(change: dict[str, Any]) -> None:
    with pytest.raises(UnderloadError) as caught:
        simulate(**BASE | change)
    assert len(str(caught.value)) > 20 and "\n" not in str(caught.value)


def test_a_percentile_outside_0_to_100_is_refused() -> None:
    run = simulate(**BASE)
    with pytest.raises(UnderloadError, match="p99"):
        run.wait_quantile(101)


def test_importing_it_is_light() -> None:
    """What takes long to load is loaded on first use: none of it by the import, numba by a long run only."""
    code = (
        "import sys, underload.simulation as s\n"
        "heavy = {'torch', 'numba', 'scipy', 'matplotlib', 'pandas'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "s.simulate(arrivals=[0.0, 1.0], service=[2.0, 1.0])\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    library = str(Path(__file__).resolve().parents[1] / "lib")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": library}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["[]", "[]"]
