"""Drivers on fake clocks, exact: absolute schedules, both latencies, failures kept; and on the real clock, loosely."""

import asyncio
import math
import threading
import time
from heapq import heappop, heappush
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underload import metrics
from underload.queueing import Exponential
from underload.request import FinishReason, Timeline, UnderloadError, VirtualClock, WallClock
from underload.simulation import EventQueue
from underload.workload import (
    Conversations,
    Lengths,
    Planned,
    Poisson,
    PromptIds,
    Workload,
    closed_loop,
    closed_loop_async,
    open_loop,
    open_loop_async,
)
from underload.workload.runners import Agenda


def plan(arrivals, **more) -> list[Planned]:
    return [Planned(float(arrival), 3, 2, index, **more) for index, arrival in enumerate(arrivals)]


def every(gap: float, count: int) -> list[Planned]:
    return plan([i * gap for i in range(count)])


def takes(queue, seconds):
    """A server without limits that takes so long, a number or by request."""

    def submit(planned, timeline, done):
        queue.after(seconds(planned) if callable(seconds) else seconds, done)

    return submit


# ---- the known traps ---------------------------------------------------------------------------------------------


class Overshooting(VirtualClock):
    """A clock whose sleep always comes back half a millisecond late, as timers do."""

    def wait(self, until: float) -> None:
        if until > self.now():
            super().wait(until + 0.0005)


def test_a44_time_lost_by_a_late_timer_is_not_lost_again():
    clock = Overshooting()
    log = open_loop(every(1 / 200, 2_000), lambda planned, timeline: None, clock, connections=1)
    late = [entry.client_wait for entry in log.entries]
    assert len(late) == 2_000 and max(late) <= 0.001 and min(late) >= 0
    assert log.entries[-1].timeline.sent == pytest.approx(1_999 / 200, abs=0.001)


def test_a44_a_slow_submit_does_not_push_the_schedule_back():
    clock = VirtualClock()
    log = open_loop(plan([0, 1, 2, 10]), lambda p, t: clock.wait(clock.now() + 1.5), clock, connections=1)
    assert [t.sent for t in log.timelines] == [0, 1.5, 3, 10]
    assert [t.arrival for t in log.timelines] == [0, 1, 2, 10]


@pytest.mark.parametrize("kind", ["blocking", "callback"])
def test_a46_both_latencies_are_there_under_clear_names(kind):
    """10/s on schedule, one connection, .19 s each: from the send all .19; from the schedule .19, .28, … 1.00."""
    if kind == "blocking":
        clock = VirtualClock()
        log = open_loop(every(0.1, 10), lambda p, t: clock.wait(clock.now() + 0.19), clock, connections=1)
    else:
        queue = EventQueue()
        log = open_loop(every(0.1, 10), takes(queue, 0.19), queue, connections=1)
    assert log.latencies_from_send == pytest.approx([0.19] * 10)
    assert log.latencies_from_schedule == pytest.approx([0.19 + 0.09 * i for i in range(10)])
    assert log.client_waits == pytest.approx([0.09 * i for i in range(10)], abs=1e-12)
    assert [metrics.e2e(t) for t in log.timelines] == log.latencies_from_schedule
    assert "from schedule  mean 0.595 s" in str(log) and "from send      mean 0.19 s" in str(log)


def test_a43_failures_are_kept_and_make_nothing_look_fast():
    queue = EventQueue()

    def submit(planned, timeline, done):
        if planned.index < 8:
            queue.after(planned.index + 1.0, done)
        else:
            queue.after(0.01, lambda: done(error=ConnectionError("refused")))

    log = open_loop(plan([0] * 10), submit, queue)
    assert len(log.entries) == 10 and len(log.failures) == 2
    summary = metrics.summary(log.timelines, slo=metrics.Slo(e2e=5))
    assert summary.failure_rate == 0.2
    assert summary.latencies["E2E"].percentiles[50] == pytest.approx(4.5)
    assert summary.attainment == 0.5
    assert log.failures[0].error == "ConnectionError: refused"
    assert log.failures[0].timeline.finished == 0.01 and log.failures[0].latency_from_send is None
    assert "2 × ConnectionError: refused" in str(log)


def test_a43_when_all_fail_there_is_no_data_and_not_0():
    def submit(planned, timeline, done):
        raise TimeoutError

    log = open_loop(plan([0, 1]), submit, EventQueue())
    assert [entry.error for entry in log.entries] == ["TimeoutError", "TimeoutError"]
    assert metrics.summary(log.timelines).latencies["E2E"].mean is None
    assert log.latencies_from_schedule == [None, None]
    assert "mean no data" in str(log)


# ---- open loop ---------------------------------------------------------------------------------------------------


def test_an_open_loop_does_not_wait_for_answers():
    queue = EventQueue()
    log = open_loop(every(0.1, 5), takes(queue, 100), queue)
    assert [t.sent for t in log.timelines] == [t.arrival for t in log.timelines]
    assert max(log.client_waits) == 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 15)), min_size=1, max_size=30),
    st.integers(1, 4),
    st.integers(0, 50),
)
def test_limited_connections_are_a_line_first_come_first_served(jobs, connections, start):
    """Against the textbook: c servers, each next request takes the one that is free first."""
    arrivals, times = sorted(float(a) for a, _ in jobs), [float(s) for _, s in jobs]
    free = [0.0] * connections
    expected = []
    for arrival, seconds in zip(arrivals, times):
        begin = max(arrival, heappop(free))
        expected.append(begin)
        heappush(free, begin + seconds)
    queue = EventQueue(float(start))
    log = open_loop(plan(arrivals), takes(queue, lambda p: times[p.index]), queue, connections=connections)
    assert log.start == start
    assert [t.sent - start for t in log.timelines] == expected
    assert [t.finished - t.sent for t in log.timelines] == times
    assert not log.unfinished and not log.not_sent
    if connections == 1:  # the same in blocking calls
        clock = VirtualClock(float(start))
        other = open_loop(plan(arrivals), lambda p, t: clock.wait(clock.now() + times[p.index]), clock, connections=1)
        assert [t.sent for t in other.timelines] == [t.sent for t in log.timelines]


def test_a_plan_out_of_order_is_sent_in_order():
    queue = EventQueue()
    log = open_loop(plan([2, 0, 1]), takes(queue, 1), queue, connections=1)
    assert [t.sent for t in log.timelines] == [2, 0, 1]
    assert [entry.planned.index for entry in log.entries] == [0, 1, 2]


def test_the_next_turn_waits_for_the_answer_and_for_thought():
    chats = Conversations(4, Exponential(3.0), pace=0.0)
    planned = Workload(Poisson(1), Lengths(5, 5), chats).plan(0, requests=20)
    queue = EventQueue()
    log = open_loop(planned, takes(queue, 7), queue)
    ends = {(e.planned.session, e.planned.turn): e.timeline.finished for e in log.entries}
    assert len(ends) == 80
    for entry in log.entries:
        wanted, turn = entry.planned, entry.planned.turn
        if turn:
            assert entry.timeline.arrival == pytest.approx(ends[wanted.session, turn - 1] + wanted.think)
        else:
            assert entry.timeline.arrival == wanted.arrival
        assert entry.timeline.sent == entry.timeline.arrival


def test_turns_without_a_think_time_keep_their_schedule():
    planned = [Planned(float(i), 2, 2, i, session="s", turn=i) for i in range(3)]
    queue = EventQueue()
    log = open_loop(planned, takes(queue, 50), queue)
    assert [t.sent for t in log.timelines] == [0, 1, 2]


# ---- closed loop -------------------------------------------------------------------------------------------------


def test_each_user_waits_for_its_answer_and_then_thinks():
    queue = EventQueue()
    log = closed_loop(every(0, 9), takes(queue, 2), queue, users=3, think=1)
    by_user = {user: [e.timeline for e in log.entries if e.user == user] for user in range(3)}
    for timelines in by_user.values():
        assert [t.arrival for t in timelines] == [1, 4, 7]
        assert [t.finished for t in timelines] == [3, 6, 9]
    assert max(log.client_waits) == 0


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.lists(st.integers(0, 9), min_size=1, max_size=25), st.integers(0, 3))
def test_a_closed_loop_has_never_more_inside_than_users(users, seconds, think):
    queue = EventQueue()
    inside, most = 0, 0

    def submit(planned, timeline, done):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)

        def leave():
            nonlocal inside
            inside -= 1
            done()

        queue.after(seconds[planned.index], leave)

    log = closed_loop(every(0, len(seconds)), submit, queue, users, think)
    assert most <= users and len(log.entries) == len(seconds) and inside == 0
    if min(seconds) > 0:
        assert most == min(users, len(seconds))
    for user in range(users):
        mine = [e.timeline for e in log.entries if e.user == user]
        assert all(b.arrival == a.finished + think for a, b in pairwise(mine))


def test_think_times_belong_to_requests_not_to_whoever_sends_them():
    def arrivals(users):
        queue = EventQueue()
        log = closed_loop(every(0, 40), takes(queue, 0), queue, users, Exponential(2.0), seed=5)
        return [e.timeline.arrival - (0 if users == 40 else before) for e, before in zip(log.entries, starts(log))]

    def starts(log):
        ends = [0.0] + [e.timeline.finished for e in log.entries]
        return ends

    alone, together = arrivals(1), arrivals(40)
    assert alone == pytest.approx(together)
    assert sum(alone) / 40 == pytest.approx(2, abs=4 * 2 / math.sqrt(40))


def test_a_conversation_stays_with_one_user():
    planned = Workload(Poisson(5), Lengths(5, 5), Conversations(3, 1.0)).plan(0, requests=10)
    queue = EventQueue()
    log = closed_loop(planned, takes(queue, 2), queue, users=4)
    owners: dict[str, set] = {}
    for entry in log.entries:
        owners.setdefault(entry.planned.session, set()).add(entry.user)
    assert len(owners) == 10 and all(len(users) == 1 for users in owners.values())
    for before, after in pairwise(log.entries):
        if before.planned.session == after.planned.session and after.planned.turn == before.planned.turn + 1:
            assert after.timeline.arrival == before.timeline.finished + 1


def test_a_closed_loop_stops_by_time_and_names_what_it_left():
    queue = EventQueue()
    log = closed_loop(every(0, 100), takes(queue, 2), queue, users=2, think=1, stop=10)
    assert max(t.arrival for t in log.timelines) < 10
    assert len(log.entries) + len(log.not_sent) == 100 and len(log.entries) == 6
    assert not log.unfinished  # those inside come back
    assert "94 of the plan not sent" in str(log)


def test_one_user_that_blocks_runs_on_a_virtual_clock():
    clock = VirtualClock()
    log = closed_loop(every(0, 3), lambda p, t: clock.wait(clock.now() + 2), clock, users=1, think=0.5)
    assert [t.arrival for t in log.timelines] == [0.5, 3, 5.5]


def test_coordinated_omission_a_closed_loop_asks_less_when_the_server_stalls():
    """The same stall of 10 s: the closed loop sends one request into it, the open loop a hundred."""

    def stalls(queue):
        def submit(planned, timeline, done):
            # nothing leaves from 5 s to 15 s
            end = queue.now() + 0.01
            queue.at(15.0 if 5 <= end < 15 else end, done)

        return submit

    closed, opened = EventQueue(), EventQueue()
    shut = closed_loop(every(0, 200), stalls(closed), closed, users=1, think=0.09)
    free = open_loop(every(0.1, 200), stalls(opened), opened)
    assert sum(t > 1 for t in shut.latencies_from_schedule) == 1
    assert sum(t > 1 for t in free.latencies_from_schedule) == 90  # all that came from 5.0 to 14.0 s


# ---- what a submit function may say ------------------------------------------------------------------------------


def drive_one(submit, **more):
    queue = EventQueue()
    return open_loop([Planned(0.0, 3, 2)], lambda p, t, d: submit(queue, p, t, d), queue, **more).entries[0]


def test_one_that_stamps_nothing_answered_all_at_once():
    entry = drive_one(lambda queue, p, t, done: queue.after(4, done))
    assert entry.timeline.token_times == [4, 4] and entry.timeline.finish_reason == FinishReason.LENGTH
    assert entry.timeline.prompt_tokens == 3 and metrics.succeeded(entry.timeline)


def test_what_it_stamps_stays():
    def submit(queue, planned, timeline, done):
        def serve():
            timeline.scheduled = queue.now()
            timeline.token_times = [queue.now(), queue.now() + 0.5]
            queue.after(1, done)

        queue.after(2, serve)

    entry = drive_one(submit)
    assert (entry.timeline.scheduled, entry.timeline.token_times, entry.timeline.finished) == (2, [2, 2.5], 3)
    assert entry.latency_from_send == 2.5


def test_an_answer_that_carries_a_timeline_is_taken_over():
    class Completion:
        error = None
        timeline = Timeline(arrival=0.5, sent=0.5, queued=0.5, scheduled=1.0, token_times=[2.0, 3.0, 4.0], finished=4.0)

    Completion.timeline.finish_reason = "stop"
    Completion.timeline.prompt_tokens = 9

    class Run:
        completions = (Completion,)

    for answer in (Completion.timeline, Completion, Run):
        entry = drive_one(lambda queue, p, t, done, answer=answer: queue.after(5, done, answer))
        assert entry.timeline.arrival == 0 and entry.timeline.sent == 0  # the client's own
        assert (entry.timeline.queued, entry.timeline.scheduled, entry.timeline.finished) == (0.5, 1, 4)
        assert entry.timeline.token_times == [2, 3, 4] and entry.timeline.finish_reason == "stop"
        assert entry.timeline.prompt_tokens == 9


def test_a_server_that_stamps_itself_is_believed_before_its_answer():
    """A line in front of the decoder knows when a request was queued; the decoder knows only when it was called."""

    def submit(queue, planned, timeline, done):
        timeline.queued = queue.now()
        late = Timeline(arrival=3.0, sent=3.0, queued=3.0, scheduled=3.0, token_times=[4.0], finished=4.0)
        late.finish_reason = "stop"
        queue.after(4, done, late)

    entry = drive_one(submit)
    assert (entry.timeline.queued, entry.timeline.scheduled) == (0, 3)


def test_an_answer_that_failed_by_its_own_account_is_a_failure():
    class Completion:
        error = "too long"
        timeline = Timeline(arrival=0.0, finish_reason="error", finished=1.0)

    entry = drive_one(lambda queue, p, t, done: queue.after(2, done, Completion))
    assert entry.failed and entry.error == "too long"


def test_an_answer_is_complete_once():
    def submit(queue, planned, timeline, done):
        queue.after(1, done)
        queue.after(2, lambda: done(error="too late"))

    entry = drive_one(submit)
    assert not entry.failed and entry.timeline.finished == 1


def test_a_server_on_another_clock_is_found_out():
    early = Timeline(arrival=0.0, token_times=[-50.0], finished=-50.0, finish_reason="stop")
    with pytest.raises(UnderloadError, match="one clock"):
        drive_one(lambda queue, p, t, done: queue.after(1, done, early))
    late = Timeline(arrival=0.0, token_times=[99.0], finished=99.0, finish_reason="stop")
    with pytest.raises(UnderloadError, match="give the server the same clock"):
        drive_one(lambda queue, p, t, done: queue.after(1, done, late))
    with pytest.raises(UnderloadError, match="one clock"):
        open_loop([Planned(0.0, 1, 1)], lambda p, t: early, VirtualClock(), connections=1)
    with pytest.raises(UnderloadError, match="one clock"):
        open_loop([Planned(0.0, 1, 1)], lambda p, t: early, WallClock())


def test_one_that_never_answers_is_left_unfinished():
    log = open_loop(plan([0, 1]), lambda p, t, done: None, EventQueue())
    assert len(log.unfinished) == 2 and log.latencies_from_send == [None, None]


def test_everything_that_comes_back_is_told():
    queue, seen = EventQueue(), []
    log = open_loop(every(1, 5), takes(queue, 1), queue, on_done=seen.append)
    assert seen == log.entries


def test_an_empty_plan_is_an_empty_log():
    for log in (open_loop([], lambda p, t: None, WallClock()), closed_loop([], lambda p, t: None, WallClock(), 3)):
        assert log.entries == [] and log.timelines == [] and "0 requests" in str(log)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: open_loop(plan([0]), print, WallClock(), connections=0), "connections must be a whole number from 1"),
        (lambda: open_loop(plan([0]), print, VirtualClock()), "one request at a time, got no limit"),
        (lambda: open_loop(plan([0]), print, VirtualClock(), connections=2), "one request at a time, got 2"),
        (lambda: closed_loop(plan([0]), print, VirtualClock(), 2), "one request at a time, got 2"),
        (lambda: closed_loop(plan([0]), print, WallClock(), 0), "users must be"),
        (lambda: closed_loop(plan([0]), print, WallClock(), 1, think=-1), "think"),
        (lambda: closed_loop(plan([0]), print, WallClock(), 1, stop=-1), "stop"),
    ],
)
def test_nonsense_is_named_with_its_limit(make, says):
    with pytest.raises(UnderloadError, match=says):
        make()


def test_the_agenda_runs_equal_times_in_the_order_they_were_scheduled():
    agenda, ran = Agenda(VirtualClock()), []
    for name in "abc":
        agenda.at(1.0, ran.append, name)
    agenda.at(0.5, ran.append, "first")
    agenda.run()
    assert ran == ["first", "a", "b", "c"]


# ---- on the wall clock -------------------------------------------------------------------------------------------


class Meter:
    """A blocking server that counts how many are inside."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.inside, self.most = seconds, 0, 0
        self._lock = threading.Lock()

    def __call__(self, planned, timeline):
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        time.sleep(self.seconds)
        with self._lock:
            self.inside -= 1


def test_threads_keep_the_schedule_and_the_limit():
    clock, server = WallClock(), Meter(0.03)
    log = open_loop(every(0.005, 40), server, clock, connections=2)
    assert server.most == 2 and len(log.entries) == 40 and not log.unfinished
    sent = [t.sent for t in log.timelines]
    assert sent == sorted(sent)  # first come, first served
    assert min(log.latencies_from_send) >= 0.03
    # 40 x 30 ms on two connections take 600 ms, while the schedule ends at 195 ms
    assert log.latencies_from_schedule[-1] >= 0.35 > 0.03
    assert [t.arrival - log.start for t in log.timelines] == pytest.approx([0.005 * i for i in range(40)])


def test_threads_without_a_limit_overlap():
    server = Meter(0.1)
    log = open_loop(every(0.001, 20), server, WallClock())
    assert server.most > 5 and max(log.latencies_from_schedule) < 2


def test_threads_of_a_closed_loop_are_its_users():
    server = Meter(0.01)
    log = closed_loop(every(0, 30), server, WallClock(), users=3, think=0.002)
    assert server.most <= 3 and {e.user for e in log.entries} == {0, 1, 2} and len(log.entries) == 30
    for user in range(3):
        mine = [e.timeline for e in log.entries if e.user == user]
        assert [b.arrival for b in mine[1:]] == pytest.approx([a.finished + 0.002 for a in mine[:-1]])


def test_threads_keep_failures_and_go_on():
    def submit(planned, timeline):
        if planned.index % 2:
            raise ValueError(f"number {planned.index}")

    log = open_loop(every(0.001, 10), submit, WallClock())
    assert [e.error for e in log.failures] == [f"ValueError: number {i}" for i in range(1, 10, 2)]
    assert len(log.entries) == 10


def test_conversations_in_threads_wait_for_their_answers():
    planned = Workload(Poisson(100), Lengths(5, 5), Conversations(3, 0.01)).plan(0, requests=6)
    log = open_loop(planned, Meter(0.01), WallClock(), connections=2)
    assert len(log.entries) == 18
    ends = {(e.planned.session, e.planned.turn): e.timeline.finished for e in log.entries}
    for entry in log.entries:
        if entry.planned.turn:
            before = ends[entry.planned.session, entry.planned.turn - 1]
            assert entry.timeline.arrival == pytest.approx(before + 0.01)


def test_what_stops_a_run_is_raised_and_soon():
    """A fault that is nobody's request ends the run, though others still have long to wait."""

    def submit(planned, timeline):
        raise KeyboardInterrupt

    began = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        open_loop(plan([0, 30]), submit, WallClock())
    assert time.perf_counter() - began < 10


def test_the_engine_on_a_real_decoder_is_a_server(tiny_checkpoint):
    from underload.decoder import decoder_engine, load_model
    from underload.engine import OnlineEngine

    model, clock = load_model(tiny_checkpoint("llama"), path="plain"), WallClock()
    ids = PromptIds(range(3, model.shape.vocab_size))
    planned = Workload(Poisson(200), Lengths(5, 4)).plan(0, requests=6)
    with OnlineEngine(decoder_engine(model, clock=clock, max_num_seqs=1)) as online:

        def submit(planned, timeline):
            return online.add_request(ids(planned), planned.params).wait()

        logs = [open_loop(planned, submit, clock), closed_loop(planned, submit, clock, users=2)]
    for log in logs:
        assert not log.failures, log
        for entry in log.entries:
            assert len(entry.timeline.token_times) == 4 and entry.timeline.prompt_tokens == 5
            assert metrics.ttft(entry.timeline) > 0
            t = entry.timeline
            assert t.arrival <= t.sent <= t.queued <= t.scheduled <= t.finished
        served = sorted((entry.timeline for entry in log.entries), key=lambda t: t.scheduled)
        assert all(one.last_token <= following.scheduled for one, following in pairwise(served))  # one at a time
        metrics.summary(log.timelines)


# ---- asyncio -----------------------------------------------------------------------------------------------------


def test_asyncio_is_driven_by_the_same_rules():
    async def submit(planned, timeline):
        await asyncio.sleep(0.02)
        if planned.index == 2:
            raise OSError("reset")

    async def run():
        clock = WallClock()
        limited = await open_loop_async(every(0.001, 6), submit, clock, connections=1)
        free = await open_loop_async(every(0.001, 6), submit, clock)
        closed = await closed_loop_async(every(0, 6), submit, clock, users=2, think=0.001)
        return limited, free, closed

    limited, free, closed = asyncio.run(run())
    for log in (limited, free, closed):
        assert len(log.entries) == 6 and [e.error for e in log.failures] == ["OSError: reset"]
    sent = [t.sent for t in limited.timelines]
    assert all(b >= a + 0.02 for a, b in pairwise(sent))
    assert limited.latencies_from_schedule[-1] > 0.1 and limited.latencies_from_send[-1] < 0.1
    assert free.timelines[-1].sent < free.timelines[0].finished
    assert {e.user for e in closed.entries} == {0, 1}
