"""The edges of the engine and of what stands around it: each a fault that it had, as a small program."""

from __future__ import annotations

import asyncio
import math
import os
import random
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from paper_model import PaperExecutor, request

from underload.cache import BlockPool, HostPool, ReservingPool
from underload.engine import Engine, OnlineEngine, generate, serve
from underload.queueing import Deterministic
from underload.request import (
    InvalidRequest,
    ProcessorClock,
    Request,
    SamplingParams,
    Timeline,
    UnderloadError,
    VirtualClock,
    WallClock,
)
from underload.scheduling import (
    Batching,
    Continuous,
    FairShare,
    FitsNow,
    Noisy,
    Scheduler,
    Shedding,
    ShortestFirst,
    StepResult,
    Watermark,
)
from underload.simulation import (
    CostModelExecutor,
    EngineReplica,
    EventQueue,
    Failures,
    JoinShortestQueue,
    LeastKvUsed,
    LinearStepTime,
    Retry,
    RoundRobin,
    StationReplica,
    SwapStepTime,
    Tied,
    simulate_cluster,
)
from underload.simulation.backlog import serve_backlog
from underload.simulation.step_time import run_of
from underload.workload import Planned, PromptIds, open_loop_async


def engine_of(executor=None, clock=None, **limits) -> Engine:
    return Engine(Scheduler(BlockPool(64, 4), **limits), executor or PaperExecutor(64, 4), clock or VirtualClock())


# ---- clocks ------------------------------------------------------------------------------------------------------


def test_a_clock_that_stands_still_while_others_wait_is_refused() -> None:
    with pytest.raises(UnderloadError, match="ProcessorClock stands still"):
        OnlineEngine(engine_of(clock=ProcessorClock()))

    async def submit(planned, timeline):
        pass

    with pytest.raises(UnderloadError, match="ProcessorClock stands still"):
        asyncio.run(open_loop_async([Planned(0.2, 1, 1, 0)], submit, ProcessorClock()))


@pytest.mark.parametrize("far", [1e10, 1e300])
def test_one_request_of_a_far_future_stops_nobody_else(far: float) -> None:
    with OnlineEngine(engine_of(clock=WallClock())) as engine:
        later = engine.add_request([1, 2], SamplingParams(max_tokens=2), arrival=far)
        now = engine.add_request([1, 2, 3], SamplingParams(max_tokens=2))
        assert len(now.wait(60).sequences[0].output_ids) == 2
        later.cancel()
        for never in (math.inf, math.nan):
            with pytest.raises(InvalidRequest, match="arrives at"):
                engine.add_request([1], arrival=never)


def test_a_made_up_id_is_one_that_nobody_has() -> None:
    with OnlineEngine(engine_of(clock=WallClock())) as engine:
        first = engine.add_request([1, 2], SamplingParams(max_tokens=2), request_id="r0")
        second = engine.add_request([1, 2], SamplingParams(max_tokens=2))
        assert first.wait(60).error is None and second.wait(60).error is None


# ---- requests and steps ------------------------------------------------------------------------------------------


def test_an_id_that_is_used_again_arrives_at_its_own_instant() -> None:
    engine = engine_of(CostModelExecutor(LinearStepTime(0.1, 0.0)))
    for name, arrival in (("first", 5.0), ("x", 10.0)):
        engine.add(request(name, [1, 2], max_tokens=1, arrival=arrival))
    engine.cancel("x")
    engine.step()
    again = request("x", [1, 2], max_tokens=1, arrival=20.0)
    engine.add(again)
    engine.run()
    assert again.timeline.scheduled is not None and again.timeline.scheduled >= 20.0


def test_a_run_that_ends_early_leaves_nobody_behind() -> None:
    engine = engine_of(CostModelExecutor(LinearStepTime(0.1, 0.0)))
    plan = [Planned(0.0, 3, 2, 0), Planned(0.0, 4000, 2, 1)]
    with pytest.raises(InvalidRequest, match="'1'"):
        serve(engine, plan, PromptIds(20))
    engine.run()
    assert engine.scheduler.idle
    assert len(serve(engine, plan[:1], PromptIds(20))) == 1


class Twice(Batching):
    """Gives a sequence of a prompt two works in one step."""

    def fill(self, step) -> None:
        for sequence in list(step.waiting):
            step.admit(sequence, 2)
            step.run(sequence, 2)
        for sequence in list(step.running):
            step.run(sequence, 2)


def test_two_works_of_one_sequence_are_undone_back_to_the_first() -> None:
    scheduler = Scheduler(BlockPool(64, 4), batching=Twice())
    asked = request("a", [1, 2, 3, 4, 5, 6, 7, 8], max_tokens=1)
    scheduler.add(asked)
    plan = scheduler.schedule(0.0)
    assert [(work.start, work.stop) for work in plan.work][:2] == [(0, 2), (2, 4)]
    scheduler.abort(plan, RuntimeError("no power"), 0.0)
    sequence = asked.sequences[0]
    assert sequence.num_scheduled == sequence.num_computed == 0


@pytest.mark.parametrize("strange", ["x", 1.5, 1 << 70])
def test_what_a_carried_sequence_drew_has_to_be_a_token(strange: object) -> None:
    scheduler = Scheduler(BlockPool(64, 4))
    scheduler.add(request("a", [1, 2, 3], max_tokens=5))
    executor = CostModelExecutor(LinearStepTime(0.1, 0.0))
    plan = scheduler.schedule(0.0, carry=True)
    scheduler.commit(plan, executor.execute(plan), 0.1)
    plan = scheduler.schedule(0.1, carry=True)
    assert len(plan.carried) == 1
    with pytest.raises(UnderloadError, match="token id"):
        scheduler.check_result(plan, StepResult([], duration=0.1, carried=[strange]))
    scheduler.check_result(plan, StepResult([], duration=0.1, carried=[np.int64(3)]))


class Moody:
    """An order that cannot say who is first."""

    def key(self, asked) -> float:
        raise OverflowError("math range error")

    def admitted(self, asked, key) -> None:
        pass


def test_a_policy_that_raises_takes_nobody_in() -> None:
    scheduler = Scheduler(BlockPool(64, 4), order=Moody())
    with pytest.raises(OverflowError):
        scheduler.add(request("a", [1, 2], max_tokens=1))
    assert scheduler.idle and not scheduler.waiting


# ---- what is promised of one is not promised of another ----------------------------------------------------------


class OneAtATime(Continuous):
    def fill(self, step) -> None:
        step.admit_in_order()
        for sequence in list(step.running)[:1]:
            step.run(sequence, 1)


class Slow(LinearStepTime):
    def __call__(self, step) -> float:
        return 10 * super().__call__(step)


class Never(FitsNow):
    def admits(self, sequence, holding, pool) -> bool:
        return not holding


def test_a_class_that_overrides_loses_what_was_promised_of_its_base() -> None:
    assert Continuous().repeats and Continuous().carries(1, 1)
    assert not OneAtATime().repeats and not OneAtATime().carries(1, 1)
    assert FitsNow().grows_only_stricter and not Never().grows_only_stricter
    assert run_of(LinearStepTime(0.1, 0.1)) is not None and run_of(Slow(0.1, 0.1)) is None
    with pytest.raises(UnderloadError, match="has no `run`"):
        SwapStepTime(LinearStepTime, 0.1)  # type: ignore[arg-type]


@pytest.mark.parametrize("times", [LinearStepTime(0.1, 0.01), Slow(0.1, 0.01)], ids=["plain", "overridden"])
@pytest.mark.parametrize("policy", [Continuous, OneAtATime])
def test_joined_steps_are_those_of_single_ones_whoever_overrides(policy, times) -> None:
    seen = []
    for join in (True, False):
        engine = engine_of(CostModelExecutor(times), batching=policy())
        engine.join_steps = join
        for name in "abc":
            engine.add(request(name, [1, 2], max_tokens=6))
        engine.run()
        seen.append([(step.start, step.duration, step.decode_tokens) for step in engine.steps])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("prompt", range(1, 9))
@pytest.mark.parametrize("samples", [2, 3])
def test_copies_owed_at_the_border_of_a_block_are_made_in_a_step_of_their_own(prompt: int, samples: int) -> None:
    seen = []
    for fast in (True, False):
        scheduler = Scheduler(ReservingPool(64, 4), reserve=lambda asked: 24)
        executor = CostModelExecutor(LinearStepTime(0.1, 0.01), output_tokens={"a": 12})
        engine = Engine(scheduler, executor, VirtualClock())
        engine.join_steps = fast
        engine.carry = fast and engine.carry
        engine.add(request("a", list(range(prompt)), max_tokens=20, n=samples))
        copies = []
        while engine.step():
            copies += [scheduler.pool.counters.copies] * (len(engine.steps) - len(copies))
        seen.append((engine.steps, copies[1:], copies[-1]))
    assert seen[0] == seen[1]
    assert seen[0][2] == (samples - 1) * -(-prompt // 4)


def test_a_reserving_pool_reserves_all_a_sequence_may_need_unless_told_otherwise() -> None:
    engine = Engine(Scheduler(ReservingPool(64, 4)), CostModelExecutor(LinearStepTime(0.1, 0.01)), VirtualClock())
    for name in "abc":
        engine.add(request(name, [1, 2, 3], max_tokens=20))
    assert engine.step()
    assert engine.scheduler.pool.num_used == 3 * 8  # 22 tokens are 6 blocks, and a buddy's run has a power of two
    assert {(one.timeline.finish_reason, one.timeline.preemptions) for one in engine.run()} == {("length", 0)}


# ---- replicas ------------------------------------------------------------------------------------------------------


def _clusters(seed: int):
    """What becomes of a random plan on random replicas, with steps joined and one by one."""
    draw = random.Random(seed)
    count, most = draw.choice([1, 2, 3]), draw.choice([None, 1, 2, 4])
    slots, blocks, caching = draw.choice([1, 2, 4, 8]), draw.choice([24, 40, 400]), draw.random() < 0.5
    plan, at = [], 0.0
    for index in range(draw.randint(3, 25)):
        at += draw.choice([0.0, 0.05, 0.1, 0.2, 0.37, draw.uniform(0, 0.5)])
        plan.append(Planned(round(at, draw.choice([1, 2, 6])), draw.randint(1, 30), draw.randint(1, 40), index))
    plan.sort(key=lambda planned: planned.arrival)
    router = draw.choice([LeastKvUsed, JoinShortestQueue, RoundRobin])
    time = LinearStepTime(draw.choice([0.1, 0.05]), draw.choice([0.0, 0.002]))
    sending = draw.choice(
        [None, lambda: Retry(None, attempts=3, backoff=0.25), lambda: Retry(2.0, attempts=2, backoff=0.1)]
    )

    def scheduler() -> Scheduler:
        shedding = Shedding(max_queue=most) if most else None
        return Scheduler(BlockPool(blocks, 4, prefix_caching=caching), max_num_seqs=slots, shedding=shedding)

    for times in (time, lambda plan: time(plan)):  # of a function nobody knows what the next steps take
        more = {} if sending is None else {"sending": sending()}
        run = simulate_cluster(plan, [EngineReplica(times, scheduler)] * count, router=router(), **more)
        yield (
            [(one.replica, one.state, one.sent, one.started, one.first_token, one.ended) for one in run.attempts],
            [(call.outcome, call.ended) for call in run.calls],
            [replica.steps for replica in run.replicas],
        )


@pytest.mark.parametrize("seed", range(60))
def test_replicas_do_the_same_whether_their_steps_are_joined_or_not(seed: int) -> None:
    joined, single = _clusters(seed)
    assert joined == single


def test_who_is_turned_away_during_a_step_is_told_when_it_ends() -> None:
    plan = [Planned(0.0, 4, 30, 0), Planned(0.05, 4, 1, 1), Planned(0.07, 4, 1, 2)]
    replica = EngineReplica(
        LinearStepTime(0.1, 0.0),
        lambda: Scheduler(BlockPool(400, 4), max_num_seqs=1, shedding=Shedding(max_queue=1)),
    )
    run = simulate_cluster(plan, [replica], sending=Retry(None, attempts=3, backoff=0.25))
    assert run.calls[2].outcome == "refused"
    assert run.calls[2].ended == pytest.approx(0.7)  # told at 0.1, 0.4 and 0.7


# ---- policies ------------------------------------------------------------------------------------------------------


def test_a_watermark_counts_cached_blocks_that_come_into_use() -> None:
    scheduler = Scheduler(BlockPool(10, 4), admission=Watermark(0.2))
    engine = Engine(scheduler, CostModelExecutor(LinearStepTime(0.1, 0.01)), VirtualClock())
    engine.join_steps = False
    known = list(range(100, 132))
    engine.add(request("known", known, max_tokens=1))
    engine.run()
    assert scheduler.pool.num_cached == 8
    engine.add(request("a", [1, 2], max_tokens=30))
    engine.step()
    engine.add(request("b", [*known, 7], max_tokens=2))
    engine.step()
    assert [one.request.request_id for one in scheduler.running] == ["a"]  # 1 block of it and 9 would leave none
    engine.run()
    assert [one.timeline.finish_reason for one in engine.finished] == ["length"] * 3


def test_a_fair_share_forgets_who_never_began() -> None:
    order = FairShare()
    engine = engine_of(order=order)
    for number in range(50):
        engine.add(request(f"r{number}", [1, 2], max_tokens=1))
        engine.cancel(f"r{number}")
    engine.run()
    kept = [value for value in vars(order).values() if isinstance(value, dict) and value]
    assert [list(value) for value in kept] == [[""]]  # what the one tenant has asked for


def test_an_error_without_bounds_predicts_a_number() -> None:
    engine = engine_of(order=ShortestFirst(Noisy({}, 1e6)))
    for number in range(20):
        engine.add(request(f"r{number}", [1, 2], max_tokens=2))
    assert len(engine.run()) == 20


class Undecided(Batching):
    """At one time takes in who waits, for no token, and lets another need its blocks."""

    armed, over = False, False

    def fill(self, step) -> None:
        if self.armed:
            self.armed, self.over = False, True
            by_name = {one.request.request_id: one for one in [*step.running, *step.waiting]}
            step.admit(by_name["b"], 0)
            if "d" in by_name:
                step.admit(by_name["d"], 100)
            step.run(by_name["a"], 1)
            return
        for sequence in list(step.running):
            step.run(sequence, 100)
        for sequence in list(step.waiting):
            if self.over or not sequence.preemptions:
                step.admit(sequence, 100)


@pytest.mark.parametrize("fails", [False, True])
def test_who_is_taken_in_for_no_token_is_not_put_back_in_the_same_step(fails: bool) -> None:
    host, policy = HostPool(16), Undecided()
    executor = CostModelExecutor(LinearStepTime(0.1, 0.01))
    scheduler = Scheduler(BlockPool(9, 4, prefix_caching=False), batching=policy, preemption="swap", host_pool=host)
    engine = Engine(scheduler, executor, VirtualClock())
    engine.join_steps = False
    engine.add(request("a", list(range(11)), max_tokens=14))
    engine.add(request("c", list(range(80, 87)), max_tokens=24))
    engine.add(request("b", list(range(50, 61)), max_tokens=14))
    for _ in range(40):
        engine.step()
        first = scheduler.requests["a"].sequences[0]
        if scheduler.waiting and first.num_computed % 4 == 0:
            break
    assert [one.request.request_id for one in scheduler.waiting] == ["b"] and host.num_used
    engine.cancel("c")
    left = scheduler.pool.num_free + len(scheduler.requests["c"].sequences[0].table.blocks)
    left -= -(-len(scheduler.waiting[0].tokens) // 4)
    if left:
        engine.add(request("d", list(range(200, 200 + 4 * left)), max_tokens=1))
    policy.armed = True
    if fails:
        execute, executor.execute = executor.execute, None  # what is called next fails
        engine.step()
        executor.execute = execute
    engine.run()
    assert host.num_used == 0 and scheduler.num_slots == 0 and scheduler.pool.num_used == 0
    assert {one.timeline.finish_reason for one in engine.finished} == {"length", "cancelled"}


# ---- requests ------------------------------------------------------------------------------------------------------


def test_a_request_to_come_is_cancelled_whatever_the_queue_says() -> None:
    order = FairShare()
    engine = engine_of(shedding=Shedding(max_queue=1), max_num_seqs=1, order=order)
    engine.add(request("waits", [1, 2, 3], max_tokens=1))
    engine.add(Request("later", [1, 2, 3], SamplingParams(max_tokens=1), Timeline(5.0)))
    assert engine.cancel("later") and not engine.cancel("later")
    engine.run()
    reasons = {one.request_id: (one.timeline.finish_reason, one.error) for one in engine.finished}
    assert reasons == {"later": ("cancelled", None), "waits": ("length", None)}
    assert engine.clock.now() < 5.0 and not engine.scheduler._order


def test_generate_takes_no_name_of_a_request_that_is_to_come() -> None:
    engine = engine_of()
    engine.add(Request("0", [1, 2, 3], SamplingParams(max_tokens=1), Timeline(1000.0)))
    done = generate(engine, [[1, 2]], SamplingParams(max_tokens=2))
    assert done[0].error is None and len(done[0].sequences[0].output_ids) == 2


def test_a_prompt_may_be_anything_that_gives_ids() -> None:
    for given in ((number for number in [1, 2, 3]), np.array([1, 2, 3]), (1, 2, 3), range(1, 4)):
        assert Request("a", given, SamplingParams(), Timeline(0.0)).prompt_ids == [1, 2, 3]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Scheduler(BlockPool(4, 4), max_num_seqs=math.nan), "max_num_seqs must be a whole number"),
        (lambda: Scheduler(BlockPool(4, 4), max_num_batched_tokens=2.5), "max_num_batched_tokens must be a whole"),
        (lambda: Scheduler(BlockPool(4, 4), max_model_len=math.inf), "max_model_len must be a whole number"),
        (lambda: Scheduler(BlockPool(4, 4), max_aborts=0.5), "max_aborts must be a whole number"),
        (lambda: SamplingParams(n=10**9), "n must be at least 1 and at most 16,384"),
        (lambda: LinearStepTime(math.inf, 0.1), "with an end"),
        (
            lambda: serve_backlog(
                BlockPool(8, 4), [(8, 8)] * 6, LinearStepTime(0.1, 0.01), max_model_len=32, look_every=0
            ),
            "look_every at least 1",
        ),
        (lambda: BlockPool(4, 4).can_append(BlockPool(4, 4).allocate(None, 4), 5), "does not hold this table"),
        (lambda: BlockPool(4, 4).append(BlockPool(4, 4).allocate(None, 4), 3), "does not hold this table"),
        (lambda: ReservingPool(4, 4).ready(ReservingPool(4, 4).allocate(None, 4), 3), "does not hold this table"),
    ],
)
def test_what_is_no_setting_is_refused_by_name(call, said: str) -> None:
    with pytest.raises(UnderloadError, match=said):
        call()


@pytest.mark.parametrize("kind", [BlockPool, ReservingPool])
def test_pools_take_no_append_of_nothing_and_grow_a_table_named_twice(kind) -> None:
    pool = kind(16, 4)
    table = pool.allocate(None, 4, reserve=16)
    with pytest.raises(UnderloadError, match="at least 1 token"):
        pool.append(table, 0)
    pool.grow([table, table])
    assert len(table.blocks) == 3


# ---- others ------------------------------------------------------------------------------------------------------


def test_of_two_that_come_at_once_the_second_comes_before_what_the_first_leads_to() -> None:
    queue, seen = EventQueue(), []

    def come(number: int) -> None:
        seen.append(number)
        queue.at(queue.now(), seen.append, "led to")

    queue.at_each([1.0, 1.0], come)
    queue.run()
    assert seen == [0, 1, "led to", "led to"]


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


def said_with_a_fork(code: str) -> list[str]:
    """What a program prints that forks, and asks how its child ended: one that has not within a minute is killed."""
    begin = """
        import os, time

        def status_of(child):
            end = time.monotonic() + 60
            while time.monotonic() < end:
                pid, status = os.waitpid(child, os.WNOHANG)
                if pid:
                    return status
                time.sleep(0.01)
            os.kill(child, 9)
            return os.waitpid(child, 0)[1]
    """
    program = textwrap.dedent(begin) + textwrap.dedent(code)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert not ran.stderr, ran.stderr
    return ran.stdout.split()


@forks
def test_a_fork_ends_without_the_engine_of_its_parent() -> None:
    code = """
        import sys, threading
        from underload.cache import BlockPool
        from underload.engine import Engine, OnlineEngine
        from underload.scheduling import Scheduler
        from underload.simulation import CostModelExecutor, LinearStepTime
        engine = Engine(Scheduler(BlockPool(64, 4)), CostModelExecutor(LinearStepTime(0.1, 0.01)))
        online = OnlineEngine(engine)
        held, done = threading.Event(), threading.Event()

        def hold():  # as the engine's own thread does for a moment at each step
            with online._changed:
                held.set()
                done.wait(90)

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait(60)
        child = os.fork()
        if not child:
            sys.exit(7)
        status = status_of(child)
        done.set()
        holder.join()
        online.close()
        print(os.waitstatus_to_exitcode(status))
    """
    assert said_with_a_fork(code) == ["7"]


def test_a_station_that_goes_down_starts_nobody_on_its_way() -> None:
    replicas = [
        StationReplica(Deterministic(20.0), failures=Failures(((5.0, 1000.0),))),
        StationReplica(Deterministic(20.0)),
    ]
    plan = [Planned(at, 1, 1, index) for index, at in enumerate((0.0, 0.5, 1.0))]
    run = simulate_cluster(plan, replicas, sending=Tied(2))
    assert [call.outcome for call in run.calls] == ["answered", "failed", "answered"]  # the second was being served


@forks
def test_a_child_forgets_a_job_that_another_thread_of_its_parent_was_at() -> None:
    code = """
        import threading
        import numpy as np
        from underload.decoder.fast.team import CONTROL_WORDS, OVER, TICKET, Team
        team = Team(1)
        control = np.zeros(CONTROL_WORDS, np.int64)
        control[TICKET] = OVER
        begun, done = threading.Event(), threading.Event()
        job = (lambda thread, patience, control: None, control, ())
        at_work = threading.Thread(target=lambda: team.run(job, lambda: (begun.set(), done.wait(60))))
        at_work.start()
        begun.wait(60)
        child = os.fork()
        if not child:
            team.forget(job)
            os._exit(7)
        status = status_of(child)
        done.set()
        at_work.join()
        print(os.waitstatus_to_exitcode(status))
    """
    assert said_with_a_fork(code) == ["7"]
