"""The event queue: order, ties, cancelling, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underload.request import UnderloadError
from underload.simulation import EventQueue


class Secret:
    """Cannot be compared with anything."""

    def __lt__(self, other: object) -> bool:
        raise AssertionError("an event's payload was compared")

    __gt__ = __le__ = __ge__ = __lt__

    def __eq__(self, other: object) -> bool:
        raise AssertionError("an event's payload was compared")

    __hash__ = None  # type: ignore[assignment]


def test_events_run_in_order_of_time_and_move_the_clock() -> None:
    queue, seen = EventQueue(), []
    for time in (3.0, 1.0, 2.0):
        queue.at(time, lambda name: seen.append((name, queue.now())), time)
    assert queue.next_time == 1.0 and len(queue) == 3
    assert queue.run() == 3
    assert seen == [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]
    assert queue.now() == 3.0 and queue.next_time == math.inf and len(queue) == 0


def test_a50_ties_keep_their_order_whatever_is_added_or_cancelled() -> None:
    """An idle event at the same time swaps nothing, and payloads that cannot be compared are not."""
    plain: list[str] = []
    queue = EventQueue()
    for name in "ABC":
        queue.at(1.0, lambda name, _: plain.append(name), name, Secret())
    queue.run()
    for extra in range(4):  # a no-op before A, B, C, or after
        for cancelled in (False, True):
            seen: list[str] = []
            queue = EventQueue()
            for place, name in enumerate("ABC"):
                if place == extra:
                    idle = queue.at(1.0, lambda _: None, Secret())
                queue.at(1.0, lambda name, _: seen.append(name), name, Secret())  # noqa: B023, run below
            if extra == 3:
                idle = queue.at(1.0, lambda _: None, Secret())
            if cancelled:
                assert queue.cancel(idle)
            queue.run()
            assert seen == plain == ["A", "B", "C"]


def test_endings_come_first_at_their_instant() -> None:
    queue, seen = EventQueue(), []
    queue.at(1.0, seen.append, "arrival 1")
    queue.end_at(1.0, seen.append, "finish 1")
    queue.at(1.0, seen.append, "arrival 2")
    queue.end_at(1.0, seen.append, "finish 2")
    queue.at(0.5, seen.append, "before")
    queue.run()
    assert seen == ["before", "finish 1", "finish 2", "arrival 1", "arrival 2"]


def test_an_action_may_schedule_now_and_an_ending_made_now_still_goes_first() -> None:
    queue, seen = EventQueue(), []

    def first() -> None:
        seen.append("first")
        queue.at(queue.now(), seen.append, "later")
        queue.after(0.0, seen.append, "last")
        queue.end_at(queue.now(), seen.append, "ending")

    queue.at(2.0, first)
    queue.at(2.0, seen.append, "second")
    queue.run()
    assert seen == ["first", "ending", "second", "later", "last"] and queue.now() == 2.0


def test_cancelled_events_neither_run_nor_count_nor_stay() -> None:
    queue, seen = EventQueue(), []
    kept = queue.at(5.0, seen.append, "kept")
    many = [queue.at(4.0, seen.append, "never") for _ in range(100_000)]
    assert all(queue.cancel(event) for event in many)
    assert len(queue) == 1 and queue.next_time == 5.0
    assert len(queue._heap) < 200  # swept, not only marked
    assert not queue.cancel(many[0])
    assert queue.run() == 1 and seen == ["kept"]
    assert not queue.cancel(kept)  # it has run


def test_what_is_left_after_many_are_cancelled_keeps_its_order() -> None:
    rng = np.random.default_rng(1)
    times = rng.random(3_000)
    queue, seen = EventQueue(), []
    events = [queue.at(time, seen.append, time) for time in times.tolist()]
    doomed = rng.permutation(3_000)[:2_700]
    for i in doomed.tolist():
        queue.cancel(events[i])
    queue.run()
    assert seen == sorted(np.delete(times, doomed).tolist())


def test_an_action_may_cancel_others_while_the_queue_runs() -> None:
    queue, seen = EventQueue(), []
    doomed = [queue.at(2.0, seen.append, i) for i in range(1_000)]
    queue.at(1.0, lambda: [queue.cancel(event) for event in doomed])
    queue.at(3.0, seen.append, "end")
    assert queue.run() == 2 and seen == ["end"] and len(queue) == 0


def test_run_stops_before_and_wait_runs_through() -> None:
    queue, seen = EventQueue(), []
    for time in (1.0, 2.0, 3.0):
        queue.at(time, seen.append, time)
    assert queue.run(until=2.0) == 1 and seen == [1.0] and queue.now() == 2.0
    queue.wait(2.0)
    assert seen == [1.0, 2.0] and queue.now() == 2.0
    queue.wait(1.0)  # has passed: returns at once
    queue.wait(2.5)
    assert seen == [1.0, 2.0] and queue.now() == 2.5
    assert queue.run() == 1 and queue.now() == 3.0


def test_never_is_never() -> None:
    queue = EventQueue()
    queue.at(math.inf, lambda: None)
    assert queue.run() == 0 and queue.now() == 0.0 and len(queue) == 1
    queue.wait(7.0)
    assert queue.now() == 7.0


def test_at_each_gives_the_index_and_holds_one_event() -> None:
    queue, seen = EventQueue(), []
    queue.at_each([1.0, 1.0, 4.0], lambda i: seen.append((i, queue.now())))
    assert len(queue) == 1
    queue.at_each([], lambda i: seen.append((i, queue.now())))
    queue.run()
    assert seen == [(0, 1.0), (1, 1.0), (2, 4.0)]


@pytest.mark.parametrize(
    "call",
    [
        lambda q: q.at(math.nan, print),
        lambda q: q.at(0.5, print),
        lambda q: q.end_at(math.nan, print),
        lambda q: q.end_at(0.5, print),
        lambda q: q.after(-1.0, print),
        lambda q: q.after(math.nan, print),
        lambda q: q.at(2.0, None),
        lambda q: q.end_at(2.0, "print"),
        lambda q: q.run(until=0.5),
        lambda q: q.run(until=math.nan),
        lambda q: q.wait(math.nan),
        lambda q: q.at_each([2.0, 1.5], print),
        lambda q: q.at_each([0.5], print),
        lambda q: q.at_each([math.nan], print),
        lambda q: q.at_each([[2.0]], print),
    ],
)
def test_nonsense_is_refused_and_changes_nothing(call: Any) -> None:
    queue = EventQueue(start=1.0)
    with pytest.raises(UnderloadError) as caught:
        call(queue)
    assert len(str(caught.value)) > 20 and "\n" not in str(caught.value)
    assert len(queue) == 0 and queue.now() == 1.0


def test_a_queue_is_not_run_from_within() -> None:
    queue = EventQueue()
    queue.at(1.0, lambda: queue.run())
    with pytest.raises(UnderloadError, match="must not run its own queue"):
        queue.run()
    # A fault in an action leaves the queue usable.
    seen: list[int] = []
    queue.at(2.0, seen.append, 1)
    queue.run()
    assert seen == [1]


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.booleans(), st.booleans()),  # time, ending, cancelled later
        max_size=40,
    )
)
def test_order_is_that_of_a_stable_sort(plan: list[tuple[int, bool, bool]]) -> None:
    queue, seen = EventQueue(), []
    events = []
    for number, (time, ending, _) in enumerate(plan):
        events.append((queue.end_at if ending else queue.at)(float(time), seen.append, number))
    for event, (_, _, cancelled) in zip(events, plan):
        if cancelled:
            queue.cancel(event)
    wanted = [i for i, (_, _, cancelled) in enumerate(plan) if not cancelled]
    assert len(queue) == len(wanted)
    assert queue.run() == len(wanted)
    assert seen == sorted(wanted, key=lambda i: (plan[i][0], not plan[i][1]))
