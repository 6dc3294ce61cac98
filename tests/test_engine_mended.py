"""Faults of the engine and what stands around it, each found by a reader of the code and kept as a small test."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from paper_model import PaperExecutor, request

from underload.cache import BlockPool
from underload.engine import Engine, OnlineEngine, serve
from underload.queueing import Deterministic
from underload.request import InvalidRequest, ProcessorClock, SamplingParams, UnderloadError, VirtualClock, WallClock
from underload.scheduling import Batching, Continuous, FitsNow, Scheduler, StepResult
from underload.simulation import (
    CostModelExecutor,
    Failures,
    LinearStepTime,
    StationReplica,
    SwapStepTime,
    Tied,
    simulate_cluster,
)
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

    def admitted(self, asked) -> None:
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


# ---- others ------------------------------------------------------------------------------------------------------


def test_a_station_that_goes_down_starts_nobody_on_its_way() -> None:
    replicas = [
        StationReplica(Deterministic(20.0), failures=Failures(((5.0, 1000.0),))),
        StationReplica(Deterministic(20.0)),
    ]
    plan = [Planned(at, 1, 1, index) for index, at in enumerate((0.0, 0.5, 1.0))]
    run = simulate_cluster(plan, replicas, sending=Tied(2))
    assert [call.outcome for call in run.calls] == ["answered", "failed", "answered"]  # the second was being served


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_forgets_a_job_that_another_thread_of_its_parent_was_at() -> None:
    code = """if True:
        import os, threading, time
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
        end = time.monotonic() + 60
        while time.monotonic() < end:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                break
            time.sleep(0.01)
        else:
            os.kill(child, 9)
            status = os.waitpid(child, 0)[1]
        done.set()
        at_work.join()
        print(os.waitstatus_to_exitcode(status))
    """
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ran.stdout.split() == ["7"], ran.stderr
