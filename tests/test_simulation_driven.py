"""Stations as servers that the open and the closed loop drive, in virtual time."""

from __future__ import annotations

import numpy as np
import pytest

from underload import metrics
from underload.queueing import Exponential, mm1
from underload.simulation import EventQueue, replicate, simulate, station, submit_to
from underload.workload import Planned, Poisson, Streams, closed_loop, open_loop


def plan(arrivals: list[float]) -> list[Planned]:
    return [Planned(arrival, prompt_tokens=1, output_tokens=1, index=i) for i, arrival in enumerate(arrivals)]


def test_an_open_loop_on_a_station_is_simulate() -> None:
    """The driver, the station and the fast path tell the same story, and formulas tell it too."""
    streams = Streams(2)
    arrivals = Poisson(0.7).first(streams["arrivals"], 3_000)
    works = Exponential(1.0).draw(streams["service"], 3_000)
    run = simulate(arrivals=arrivals, service=works)
    queue = EventQueue()
    log = open_loop(plan(arrivals.tolist()), submit_to(station(queue), lambda p: float(works[p.index])), queue)
    assert [t.scheduled for t in log.timelines] == run.start.tolist()
    assert [t.last_token for t in log.timelines] == run.finish.tolist()
    assert log.latencies_from_schedule == pytest.approx(run.sojourns.tolist())
    assert metrics.mean(map(metrics.queue_time, log.timelines)) == pytest.approx(run.mean_wait)
    assert run.mean_wait == pytest.approx(mm1(0.7, 1.0).mean_wait, rel=0.3)


def test_a46_one_connection_hides_the_wait_from_those_who_ask_when_it_was_sent() -> None:
    """10/s on schedule, one connection, .19 s of service: .19 each from the send, .19 to 1.00 from the schedule."""
    queue = EventQueue()
    log = open_loop(plan([i / 10 for i in range(10)]), submit_to(station(queue), lambda p: 0.19), queue, connections=1)
    assert log.latencies_from_send == pytest.approx([0.19] * 10)
    assert log.latencies_from_schedule == pytest.approx([0.19 + 0.09 * i for i in range(10)])


def test_a_closed_loop_is_the_machine_repairman() -> None:
    """N users who think and one server: throughput from the chain p(n) ~ N!/(N-n)! (mean service / mean think)^n."""
    users, think, work = 6, 5.0, 1.0
    weights = [1.0]
    for n in range(users):
        weights.append(weights[-1] * (users - n) * work / think)
    throughput = (1 - weights[0] / sum(weights)) / work

    def experiment(streams: Streams) -> float:
        queue, draw = EventQueue(), streams["service"].standard_exponential
        log = closed_loop(
            plan([0.0] * 2_000), submit_to(station(queue), lambda p: work * draw()), queue, users,
            Exponential(think), seed=streams,
        )  # fmt: skip
        ends = np.sort([t.last_token for t in log.timelines])[200:-20]
        return float((ends.size - 1) / (ends[-1] - ends[0]))

    found = replicate(experiment, runs=8, confidence=0.999).interval()
    assert throughput in found and found.relative is not None and found.relative < 0.1, str(found)


def test_one_that_is_refused_has_failed() -> None:
    queue = EventQueue()
    log = open_loop(plan([0.0, 0.1, 5.0]), submit_to(station(queue, buffer=0), lambda p: 1.0), queue)
    assert [entry.failed for entry in log.entries] == [False, True, False]
    assert "refused" in str(log.failures[0].error)
