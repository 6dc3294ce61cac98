"""The simulator under hostile input: what is no time, no service, no line; loads of nothing and of no length."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from underload.queueing import Exponential
from underload.request import UnderloadError
from underload.simulation import EventQueue, compare, fcfs, little, number_inside, replicate, simulate, station
from underload.workload import Poisson, Streams

NO_TIMES = ["1", b"1", None, [1.0], 1j, math.nan, -1.0, 10**400]
DISCIPLINES = ["fcfs", "lifo", "sjf", "priority", "ps"]


@pytest.mark.parametrize("time", NO_TIMES)
def test_what_is_no_time_is_named(time):
    queue = EventQueue()
    for schedule in (queue.at, queue.end_at, queue.after):
        with pytest.raises(UnderloadError):
            schedule(time, print)
    with pytest.raises(UnderloadError):
        queue.run(time)
    if not isinstance(time, str | bytes):  # NumPy reads a row of texts
        with pytest.raises(UnderloadError):
            queue.at_each([0.0, time], print)
    assert len(queue) == 0 and queue.now() == 0


def test_any_kind_of_number_is_a_time():
    queue, seen = EventQueue(), []
    for time in (Decimal(3), Fraction(2), np.float32(1), 4):
        queue.at(time, seen.append, time)
    queue.run(Decimal(9))
    assert seen == [1, 2, 3, 4] and queue.now() == 9 and type(queue.now()) is float


def test_what_is_no_event_or_no_action_is_named():
    queue = EventQueue()
    for event in (None, 0, "at", [], (1.0, 2, print, ())):
        with pytest.raises(UnderloadError, match="cancel"):
            queue.cancel(event)
    with pytest.raises(UnderloadError, match="callable"):
        queue.at_each([0.0], None)
    for start in ("0", math.nan, math.inf):
        with pytest.raises(UnderloadError):
            EventQueue(start)


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_what_is_no_service_is_named_and_leaves_no_trace(discipline):
    queue = EventQueue()
    place = station(queue, discipline=discipline)
    place.enter(1.0)
    for service in (*NO_TIMES, math.inf, 1e101):
        with pytest.raises(UnderloadError, match="a service lasts"):
            place.enter(service)
    for priority in ("1", None, math.nan, [1]):
        with pytest.raises(UnderloadError, match="a priority must be a number"):
            place.enter(1.0, priority)
    place.enter(Decimal("0.5"), Fraction(1, 2))
    queue.run()
    assert (place.arrived, place.finished, queue.now()) == (2, 2, 1.5)


def test_bad_rows_are_named():
    good = {"arrivals": [0.0, 1.0], "service": [1.0, 1.0]}
    for name, value in [
        ("arrivals", [0.0, math.inf]),
        ("arrivals", [0.0, 1e101]),
        ("arrivals", [0.0, [1.0]]),
        ("arrivals", [0.0, 10**400]),
        ("service", [1.0, [1.0]]),
        ("service", [1.0, 1e308]),
        ("service", [1.0, -1.0]),
        ("discipline", np.array(1.0)),
        ("path", np.array(1.0)),
    ]:
        with pytest.raises(UnderloadError):
            simulate(**(good | {name: value}))


@pytest.mark.parametrize("path", ["fast", "events"])
@pytest.mark.parametrize(("arrivals", "service"), [([], []), ([0.0], [0.0]), ([0.0, 0.0], [0.0, 0.0])])
def test_a_run_of_no_length_has_counts_and_no_rates(path, arrivals, service):
    run = simulate(arrivals=arrivals, service=service, path=path)
    assert run.counts["arrived"] == run.counts["finished"] == len(arrivals)
    for figure in ("mean_system", "utilisation", "mean_queue", "arrival_rate", "throughput", "load"):
        with pytest.raises(UnderloadError):
            getattr(run, figure)
    with pytest.raises(UnderloadError):
        run.as_dict()
    assert "arrived" in str(run) and len(run.timelines()) == len(arrivals)


def test_ten_thousand_servers_on_both_paths():
    load = {"arrivals": Poisson(9_000), "service": Exponential(1.0), "servers": 10_000, "horizon": 2.0}
    fast, slow = simulate(**load, path="fast"), simulate(**load, path="events")
    assert np.array_equal(fast.finish, slow.finish) and fast.mean_wait == slow.mean_wait == 0


def test_the_fast_path_alone_checks_what_it_is_given():
    assert fcfs([0, 1], [2, 2]).tolist() == [0, 2]
    for arrival, service in [
        ([0.0, 1.0, 2.0], [1.0]),
        ([5.0, 1.0], [1.0, 1.0]),
        ([0.0, 1.0], [-5.0, 1.0]),
        ([0.0, math.nan], [1.0, 1.0]),
        ([0.0, 1.0], [1.0, math.inf]),
        (0.0, 1.0),
        (["a"], [1.0]),
    ]:
        with pytest.raises(UnderloadError):
            fcfs(arrival, service)
    for wrong in ({"servers": 0}, {"servers": "2"}, {"buffer": -1}, {"engine": "magic"}):
        with pytest.raises(UnderloadError):
            fcfs([0.0], [1.0], **wrong)


def test_littles_law_wants_stays_and_a_window():
    assert little([0, 1], [1, 3], 0, 3).mean_system == 1
    for wrong in (("0", [1.0], 0, 1), ([0.0], [1.0, 2.0], 0, 1), ([0.0], [math.nan], 0, 1), ([0.0], [1.0], 1, 0)):
        with pytest.raises(UnderloadError):
            little(*wrong)
    with pytest.raises(UnderloadError):
        little([0.0], [1.0], 0, math.nan)
    with pytest.raises(UnderloadError, match="no length"):
        _ = little([0.0], [1.0], 1, 1).rate
    with pytest.raises(UnderloadError):
        number_inside([0.0], [[1.0]])


def test_what_is_no_experiment_or_no_figure_is_named():
    for wrong in ({}, [1], {"a": 5}, None):
        with pytest.raises(UnderloadError, match="no experiment"):
            compare(wrong)
    for result in (None, "5", [1.0]):
        with pytest.raises(UnderloadError, match="of=lambda"):
            replicate(lambda streams, found=result: found, runs=2).interval()
    assert replicate(lambda streams: Fraction(1, 2), runs=2).interval().mean == 0.5


def test_a_part_is_named_by_its_number_whoever_counted():
    by_numpy, by_python = (Streams(0).under(number)["arrivals"].random() for number in (np.int64(3), 3))
    assert by_numpy == by_python != Streams(0).under("3")["arrivals"].random()
    for name in (None, 1.5, [1]):
        with pytest.raises(UnderloadError):
            Streams(0).under(name)
        with pytest.raises(UnderloadError):
            _ = Streams(0)[name]
    assert Streams(10**100)["a"].random() != Streams(10**100 + 1)["a"].random()
