"""Replicas that start after a lag and drain before they stop: who is on when, what is paid; nobody is cut off."""

import math
from collections.abc import Sequence

import pytest

from underload.cache import BlockPool
from underload.queueing import Deterministic, Exponential
from underload.request import UnderloadError
from underload.scheduling import Scheduler
from underload.simulation import (
    EngineReplica,
    LinearStepTime,
    Scaling,
    StationReplica,
    TargetInside,
    Timetable,
    View,
    simulate_cluster,
)
from underload.workload import Planned, Segment

SECOND = StationReplica(Deterministic(1.0))


def every(gap: float, n: int, start: float = 0.0) -> list[Planned]:
    return [Planned(start + index * gap, 1, 1, index) for index in range(n)]


def test_a_replica_takes_requests_a_lag_after_the_decision_and_stops_once_it_is_empty():
    # Decided at 4 s, on at 7 s; not wanted any more at 12 s, when it still has some inside.
    table = Timetable((0.0, 4.0, 12.0), (1, 2, 1))
    run = simulate_cluster(every(0.5, 31, 0.0), [SECOND] * 2, scaling=Scaling(table, period=4.0, lag=3.0))
    assert run.fleet is not None
    second = [attempt for attempt in run.attempts if attempt.replica == 1]
    empty = max(attempt.ended or 0.0 for attempt in second)
    assert [row[:1] + row[2:] for row in run.fleet.sizes] == [
        (0.0, 0, 1, 0),
        (4.0, 1, 1, 0),
        (7.0, 0, 2, 0),
        (12.0, 0, 1, 1),
        (empty, 0, 1, 0),
    ]
    assert empty > 12.0 and all(7.0 <= attempt.sent < 12.0 for attempt in second)
    assert run.count("answered") == 31
    last = max(call.ended or 0.0 for call in run.calls)
    assert run.fleet.replica_seconds == pytest.approx(last + empty - 4.0)


def test_what_the_load_does_within_the_lag_meets_the_replicas_that_are_there():
    # A burst at 10 s; whoever came before the first new replica is on was served as by one alone.
    plan = [*every(2.0, 5), *(Planned(10 + index / 10, 1, 1, 5 + index) for index in range(100))]
    scaling = Scaling(TargetInside(4.0), period=1.0, lag=5.0)
    run = simulate_cluster(plan, [SECOND] * 10, scaling=scaling)
    alone = simulate_cluster(plan, [SECOND])
    assert run.fleet is not None
    first_on = next(row.instant for row in run.fleet.sizes if row.on > 1)
    decided = next(row.instant for row in run.fleet.sizes if row.starting)
    assert first_on == decided + 5.0 > 15.0
    early = [index for index, request in enumerate(plan) if request.arrival < first_on]
    assert [run.calls[index].latency for index in early] == [alone.calls[index].latency for index in early]
    assert max(run.latencies) < max(alone.latencies)
    # As many as keep four inside each, at most: those inside at the decision say so.
    assert max(row.wanted for row in run.fleet.sizes) <= math.ceil(len(plan) / 4)
    assert run.fleet.sizes[-1].on + run.fleet.sizes[-1].draining < 10


def test_a_start_that_is_not_wanted_any_more_is_called_off_and_a_draining_replica_is_warm():
    wants = iter([3, 1, 1, 3, 2, 3, 1, 1, 1, 1, 1])
    run = simulate_cluster(
        every(0.25, 40),
        [StationReplica(Deterministic(2.0))] * 3,
        scaling=Scaling(lambda now, views: next(wants, 1), 1.0, 1.5),
    )
    assert run.fleet is not None
    rows = [(row.instant, row.wanted, row.starting, row.on, row.draining) for row in run.fleet.sizes]
    assert rows[:8] == [
        (0.0, 1, 0, 1, 0),
        (1.0, 3, 2, 1, 0),
        (2.0, 1, 0, 1, 0),  # both starts called off
        (4.0, 3, 2, 1, 0),
        (5.0, 2, 1, 1, 0),  # one of them
        (5.5, 2, 0, 2, 0),
        (6.0, 3, 1, 2, 0),
        (7.0, 1, 0, 1, 1),  # one start called off, and one that serves drains
    ]
    empty = max(attempt.ended or 0.0 for attempt in run.attempts if attempt.replica)
    assert empty > 7.0 and rows[8] == (empty, 1, 0, 1, 0)
    assert run.count("answered") == 40
    wants = iter([2, 1, 2, 2])
    warm = simulate_cluster(
        every(0.5, 12),
        [StationReplica(Deterministic(3.0))] * 2,
        scaling=Scaling(lambda now, views: next(wants, 2), 2.0, 0.5),
    )
    assert warm.fleet is not None
    assert [row[2:] for row in warm.fleet.sizes][:5] == [(0, 1, 0), (1, 1, 0), (0, 2, 0), (0, 1, 1), (0, 2, 0)]
    assert warm.fleet.sizes[4].instant == 6.0  # wanted again, and on at once


def test_it_shrinks_only_to_the_most_that_was_wanted_within_the_hold():
    wants = [4, 1, 1, 3, 1, 1, 1, 1, 1, 1]

    def sizes(hold: float) -> list[int]:
        wanted = iter(wants)
        scaling = Scaling(lambda now, views: next(wanted, 1), 1.0, 0.0, hold=hold)
        run = simulate_cluster(every(1.0, 10), [StationReplica(Deterministic(0.1))] * 4, scaling=scaling)
        assert run.fleet is not None
        on = {row.instant: row.on for row in run.fleet.sizes}
        return [next(on[at] for at in sorted(on, reverse=True) if at <= second + 0.5) for second in range(1, 10)]

    assert sizes(0.0) == [4, 1, 1, 3, 1, 1, 1, 1, 1]
    assert sizes(3.0) == [4, 4, 4, 3, 3, 3, 1, 1, 1]


def test_a_fleet_of_all_replicas_changes_nothing():
    plan = every(0.3, 200)
    replicas = [StationReplica(Exponential(1.0))] * 4
    fixed = simulate_cluster(plan, replicas, scaling=Scaling(TargetInside(1.0), 1.0, 1.0, least=4))
    plain = simulate_cluster(plan, replicas)
    assert fixed.timelines == plain.timelines and plain.fleet is None and fixed.fleet is not None
    assert len(fixed.fleet.sizes) == 1
    assert fixed.fleet.replica_seconds == pytest.approx(4 * max(call.ended or 0.0 for call in plain.calls))


def small() -> Scheduler:
    return Scheduler(BlockPool(400, 16), max_num_seqs=4)


def test_engines_drain_and_start_again_with_an_empty_cache():
    shared = (Segment("system", 160), Segment("own", 16))
    plan = [Planned(index * 0.05, 176, 8, index, segments=shared) for index in range(200)]
    engine = EngineReplica(LinearStepTime(0.01, 1e-4), small)
    table = Timetable((0.0, 1.0, 3.0, 5.0), (1, 2, 1, 2))
    run = simulate_cluster(plan, [engine] * 2, scaling=Scaling(table, period=1.0, lag=0.5), router=None)
    assert run.count("answered") == 200 and run.fleet is not None
    second = [attempt for attempt in run.attempts if attempt.replica == 1]
    before, after = [a for a in second if a.sent < 4.0], [a for a in second if a.sent > 5.0]
    assert before and after and not [a for a in second if a.sent < 1.5 or 3.0 <= a.sent < 5.5]
    cached = [attempt.request.timeline.cached_tokens for attempt in (before[0], before[-1], after[0], after[-1])]
    assert cached == [0, 160, 0, 160]
    # What it costs is less than two replicas all along, and more than one.
    end = max(call.ended or 0.0 for call in run.calls)
    assert end < run.fleet.replica_seconds < 2 * end
    # Like steps are joined or not, the records are the same.
    again = simulate_cluster(plan, [engine] * 2, scaling=Scaling(table, period=1.0, lag=0.5), patience=1e6)
    assert again.timelines == run.timelines


def test_a_decision_sees_the_replicas_as_they_are_then_whatever_steps_are_joined():
    plan = [Planned(0.0, 200, 400, 0), Planned(9.0, 20, 5, 1)]

    def looked_at(**options: float) -> list[tuple[float, int, float]]:
        seen: list[tuple[float, int, float]] = []

        def wanted(now: float, views: Sequence[View]) -> int:
            seen.append((now, views[0].inside, views[0].kv_used))
            return 1

        engine = EngineReplica(LinearStepTime(0.01, 1e-4), small)
        simulate_cluster(plan, [engine], scaling=Scaling(wanted, 0.5, 1.0), **options)
        return seen

    seen = looked_at()
    assert seen == looked_at(patience=1e6)  # with which no steps are joined over an event
    used = [kv for now, _, kv in seen if now < 4.0]
    assert len(set(used)) == len(used) > 5 and used == sorted(used)


def test_a_hair_above_a_whole_number_is_that_number():
    for wanted, on in ((2.0000000001, 2), (2.001, 3)):
        run = simulate_cluster(every(1.0, 9), [SECOND] * 4, scaling=Scaling(lambda now, views, w=wanted: w, 1.0, 0.0))
        assert run.fleet is not None and run.fleet.sizes[-1].on == on


def test_the_queue_does_not_run_on_for_the_sake_of_decisions():
    asked: list[float] = []

    def wanted(now: float, views: object) -> int:
        asked.append(now)
        return 1 + len(asked) % 2

    run = simulate_cluster(every(1.0, 3), [SECOND] * 2, scaling=Scaling(wanted, 0.5, 10.0))
    assert run.count("answered") == 3 and max(asked) <= 3.0


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"wanted": 3}, "function"),
        ({"period": 0.0}, "period"),
        ({"lag": -1.0}, "lag"),
        ({"hold": math.nan}, "hold"),
        ({"least": 0}, "least"),
        ({"least": 3, "most": 2}, "most"),
        ({"first": 1, "least": 2}, "first"),
        ({"first": 5, "most": 4}, "first"),
    ],
)
def test_what_is_no_scaling_is_named(options, name):
    with pytest.raises(UnderloadError, match=name):
        Scaling(**({"wanted": TargetInside(1.0), "period": 1.0, "lag": 1.0} | options))


def test_what_is_no_policy_is_named():
    for target in (0.0, -1.0, math.nan, "1"):
        with pytest.raises(UnderloadError, match="target"):
            TargetInside(target)
    for instants, numbers in (((), ()), ((0.0, 1.0), (1,)), ((1.0, 0.0), (1, 2)), ((0.0,), (-1,)), ((math.nan,), (1,))):
        with pytest.raises(UnderloadError):
            Timetable(instants, numbers)
    with pytest.raises(UnderloadError, match="wants nan"):
        simulate_cluster(every(1.0, 5), [SECOND] * 2, scaling=Scaling(lambda now, views: math.nan, 1.0, 1.0))
    with pytest.raises(UnderloadError, match="describe"):
        simulate_cluster(every(1.0, 5), [SECOND] * 2, scaling=Scaling(TargetInside(1.0), 1.0, 1.0, most=3))
