"""Planning and its tables at their edges: last windows, thinned loads, and questions about few requests."""

from __future__ import annotations

import pytest

from underload import metrics
from underload.metrics import Slo
from underload.planning import Burst, System, capacity, replicas_needed, storm, through_time
from underload.planning.capacity import bracket
from underload.planning.loads import source_of, window_starts
from underload.planning.probe import saturated_rate
from underload.queueing import Deterministic, Exponential
from underload.request import Timeline, UnderloadError
from underload.simulation import StationReplica
from underload.workload import FixedTokens, Lengths, Planned, Poisson, Workload

ONE = Lengths(FixedTokens(1), FixedTokens(1))
TEN = System(StationReplica(Exponential(0.1)))  # ten a second
FIVE = System(StationReplica(Deterministic(0.2)))


def plan(*instants: float) -> list[Planned]:
    return [Planned(at, 1, 1, index) for index, at in enumerate(instants)]


# ---- summaries -------------------------------------------------------------------------------------------------------


def served(arrival: float, *tokens: float) -> Timeline:
    return Timeline(arrival, token_times=list(tokens), finished=tokens[-1], finish_reason="length")


def test_a_summary_counts_the_tokens_of_its_window_and_all_requests():
    early, late = served(0.0, *[0.5] * 10), served(5.0, *[6.0] * 90)
    found = metrics.summary([early, late], window=(0, 1))
    assert found.output_tokens == 10 == found.throughput and found.request_throughput == 1
    assert found.requests == 2 and "10 output tokens in 1 s" in str(found)
    assert metrics.summary([early, late]).output_tokens == 100
    assert metrics.summary([early, late], window=(0, 6)).output_tokens == 10  # half open
    with pytest.raises(UnderloadError, match="a window is"):
        metrics.summary([early], window=(1, 0))


# ---- windows ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arrivals", "window", "starts"),
    [
        ([0.0, 10.0], 5.0, [0.0, 5.0]),  # the last at an edge
        ([0.0, 10.4], 5.0, [0.0, 5.0]),  # one alone behind it
        ([0.0, *[10.4] * 20], 5.0, [0.0, 5.0, 10.0]),  # and many
        ([0.0, *[10.01] * 20], 5.0, [0.0, 5.0]),  # many within no time
        ([0.0, 13.0], 5.0, [0.0, 5.0, 10.0]),
        ([0.0, 0.1 * 3], 0.1, [0.0, 0.1, 0.2]),  # 0.1 * 3 is more than 0.3
        ([0.0, 0.0], 5.0, [0.0]),
        ([2.0], 5.0, [0.0]),
    ],
)
def test_windows_end_with_the_last_arrival_and_leave_no_sliver(arrivals, window, starts):
    assert window_starts(arrivals, window) == starts


def test_a_last_arrival_at_an_edge_makes_no_window_of_its_own():
    found = replicas_needed(plan(*[k / 2 for k in range(21)]), Slo(e2e=5.0), FIVE, attainment=0.9, window=5.0)
    assert [row["requests"] for row in found.rows] == [10, 11] and found.rows[-1]["end"] == pytest.approx(10.0)
    assert found.rows[-1]["rate"] == pytest.approx(2.2) and {row["replicas"] for row in found.rows} == {1}


def test_a_last_window_that_is_shorter_needs_what_its_rate_needs():
    rush = plan(*range(100), *[100 + k / 20 for k in range(200)])
    found = replicas_needed(rush, Slo(e2e=60.0), FIVE, window=100.0)
    assert [row["replicas"] for row in found.rows] == [1, 5] and found.rows[1]["rate"] == pytest.approx(20, rel=0.01)
    # One that comes just behind the edge is no rush: at a rate of 1 / 0.001 s no number of replicas would do.
    assert replicas_needed(plan(*range(100), 100.001), Slo(e2e=60.0), FIVE, window=100.0).replicas == 1


def test_the_rows_of_a_storm_do_not_end_in_a_collapse():
    found = storm(
        Workload(Poisson(5.0), ONE), Slo(e2e=5.0), TEN, rate=5.0, burst=Burst(2, 10, begin=0.3), requests=2000
    )
    assert len(found.rows) == 40 and sum(row["calls"] for row in found.rows) == 2000
    assert found.rows[-1]["offered"] == pytest.approx(5.0, rel=0.2)


def test_a_last_row_is_divided_by_its_own_length():
    run = FIVE.run(plan(*[k / 4 for k in range(131)]))  # four a second, up to 32.5 s
    rows = through_time(run, Slo(e2e=5.0), 10.0)
    assert [(row["start"], row["end"]) for row in rows] == [(0, 10), (10, 20), (20, 30), (30, 32.5)]
    for row in rows:
        assert row["offered"] == row["goodput"] == row["attempts"] == pytest.approx(4, rel=0.11)
    at_once = through_time(FIVE.run(plan(0.0, 0.0)), Slo(e2e=5.0), 10.0)
    assert [(row["end"], row["offered"]) for row in at_once] == [(10.0, 0.2)]


# ---- capacity --------------------------------------------------------------------------------------------------------


def test_of_a_thinned_load_the_requests_and_the_window_are_of_one_run():
    """They differ from rate to rate, and the first run that was made may be far from the crossing."""
    load = plan(*[k / 12 for k in range(1000)])
    found = capacity(load, Slo(e2e=0.5), TEN, attainment=0.9, scaling="thinning", runs=2)
    first = [probe for probe in found.probes if probe.run == 0]
    below = bracket(first)[0]
    assert (found.requests, found.window) == (below.requests, below.window)
    assert found.requests / found.window == pytest.approx(found.crossings[0], rel=0.1)
    assert len({probe.requests for probe in first}) > 1


@pytest.mark.parametrize("run", range(4))
def test_the_saturated_rate_of_a_station_is_not_that_of_a_handful_of_draws(run):
    few = plan(*[k / 5 for k in range(5)])
    assert saturated_rate(source_of(few), TEN, run) == pytest.approx(10.0, rel=0.12)
    assert saturated_rate(source_of(Workload(Poisson(1.0), ONE), requests=5), TEN, run) == pytest.approx(10.0, rel=0.12)
