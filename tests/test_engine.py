"""The engine's loop among callers, clocks and executors that misbehave, on the model of `paper_model`."""

from __future__ import annotations

import math
import subprocess
import sys
import time

import numpy as np
import pytest
from pace import slowness
from paper_model import Faults, PaperExecutor, alone, check_books, request

from underload.cache import BlockPool, HostPool, ReservingPool
from underload.engine import Engine, serve
from underload.metrics import summary
from underload.request import (
    FinishReason,
    InvalidRequest,
    Request,
    SamplingParams,
    Timeline,
    UnderloadError,
    VirtualClock,
)
from underload.scheduling import Sampled, Scheduler, StepResult
from underload.workload import Planned, PromptIds

BLOCK = 4


def engine_of(pool=None, *, executor=PaperExecutor, host: int | None = None, clock=None, **limits) -> Engine:
    pool = BlockPool(64, BLOCK) if pool is None else pool
    if host is not None:
        limits |= {"preemption": "swap", "host_pool": HostPool(host)}
    return Engine(
        Scheduler(pool, **limits), executor(pool.num_blocks, pool.block_size, host or 0), clock or VirtualClock()
    )


def said(one: Request) -> list[int]:
    return one.sequences[0].output_ids


def run_checked(engine: Engine, most: int = 5000) -> list[Request]:
    for _ in range(most):
        if not engine.step():
            assert not engine.executor.wrong
            return engine.finished
        check_books(engine.scheduler)
    raise AssertionError(f"still at work after {most} steps")


# ---- requests that are none ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ([], "empty prompt"),
        (np.array([], dtype=int), "empty prompt"),
        ([1, 2.5], "whole numbers"),
        ([1, None], "whole numbers"),
        ("words", "whole numbers"),
        (None, "whole numbers"),
        ([1, 2**63], "64 bits, got 9223372036854775808"),
        ([-(2**70), 4], "64 bits, got -1180591620717411303424"),
    ],
)
def test_a_prompt_that_is_not_token_ids_is_refused_when_it_is_made(prompt, says):
    with pytest.raises(InvalidRequest, match=says):
        request("a", prompt)


@pytest.mark.parametrize("field", ["salt", "adapter"])
def test_a_salt_that_is_no_text_is_refused_when_it_is_made(field):
    with pytest.raises(InvalidRequest, match=f"{field} must be a string, got 7"):
        request("a", [1], **{field: 7})


def test_an_array_of_ids_is_a_prompt_like_any_other():
    engine = engine_of()
    for name, prompt in (("list", [3] * 9), ("array", np.full(9, 3)), ("extreme", [2**63 - 1, -(2**63) + 1] * 5)):
        engine.add(request(name, prompt, max_tokens=5))
    lists, arrays, extreme = run_checked(engine)
    assert said(lists) == said(arrays) == alone([3] * 9, 5)
    assert type(arrays.prompt_ids) is list and all(type(token) is int for token in arrays.sequences[0].tokens)
    assert said(extreme) == alone(extreme.prompt_ids, 5)


@pytest.mark.parametrize("arrival", [math.inf, -math.inf, math.nan])
def test_a_request_that_arrives_at_no_instant_is_refused(arrival):
    engine = engine_of()
    with pytest.raises(InvalidRequest, match="'a' arrives at"):
        engine.add(request("a", [1], arrival=arrival))
    assert not engine.step()


def test_a_request_that_should_have_come_before_is_served_and_its_wait_counts():
    engine = engine_of(clock=VirtualClock(10.0))
    late = request("a", [1], max_tokens=1, arrival=4.0)
    engine.add(late)
    run_checked(engine)
    assert (late.timeline.sent, late.timeline.queued, late.timeline.first_token) == (4.0, 10.0, 11.0)


def test_a_request_is_served_once():
    engine = engine_of()
    one = request("a", [1] * 5)
    engine.add(one)
    with pytest.raises(InvalidRequest, match="in use"):
        engine.add(one)
    other = Scheduler(BlockPool(8, BLOCK))
    with pytest.raises(InvalidRequest, match="served or cancelled before"):
        other.add(one)
    run_checked(engine)
    with pytest.raises(InvalidRequest, match="served or cancelled before"):
        engine.add(one)
    engine.executor.released.clear()
    engine.add(request("a", [1] * 5))  # the name is free again
    assert [said(each) for each in run_checked(engine)] == [alone([1] * 5, 8)] * 2


# ---- pools that have no room ---------------------------------------------------------------------------------------


def test_who_finds_no_room_in_an_empty_pool_fails_by_name_and_those_behind_go_on():
    # Six blocks hold 24 tokens, but in runs of a power of two the longest is of four.
    pool = ReservingPool(6, BLOCK, placement="buddy")
    engine = engine_of(pool, reserve=lambda one: len(one.prompt_ids) + one.params.max_tokens)
    for name, tokens in (("big", 13), ("small", 3)):
        engine.add(request(name, [1] * tokens, max_tokens=6))
    big, small = run_checked(engine)
    assert big.request_id == "big" and big.timeline.finish_reason == "error"
    assert "13 tokens find no room in the empty pool of 6 blocks of 4" in big.error
    assert said(small) == alone([1] * 3, 6)


def test_a_run_that_is_outgrown_begins_again_longer_and_disturbs_nobody():
    engine = engine_of(ReservingPool(64, BLOCK), reserve=lambda one: 8 if one.request_id == "outgrows" else 21)
    prompts = [[token] for token in range(1, 99) if len(alone([token], 20)) == 20][:3]
    several = [request(name, prompt, max_tokens=20) for name, prompt in zip(("outgrows", "fits", "fits too"), prompts)]
    for one in several:
        engine.add(one)
    run_checked(engine)
    assert [said(one) for one in several] == [alone(prompt, 20) for prompt in prompts]
    assert [one.timeline.preemptions > 0 for one in several] == [True, False, False]


def test_a_sample_that_has_not_run_is_not_put_aside_with_what_its_copy_still_owes():
    """A reserving pool copies when a sample first writes, so before that its own blocks hold nothing."""
    for seed in range(30):
        pool = ReservingPool(20, 2)
        engine = engine_of(pool, host=30, max_num_batched_tokens=2, reserve=lambda one: len(one.prompt_ids))
        for i in range(3):
            engine.add(request(str(i), [seed + 1] * (2 + i), max_tokens=6, n=3))
        for one in run_checked(engine):
            for sequence in one.sequences:
                assert sequence.output_ids == alone(one.prompt_ids, 6, sequence.index)


@pytest.mark.parametrize("host", [0, 1, 2, 64])
def test_a_host_pool_that_runs_full_stalls_nobody(host):
    engine = engine_of(BlockPool(8, BLOCK), host=host)
    several = [request(str(i), list(range(i + 1, i + 8)), max_tokens=20) for i in range(5)]
    for one in several:
        engine.add(one)
    run_checked(engine)
    assert [said(one) for one in several] == [alone(one.prompt_ids, 20) for one in several]
    assert any(one.timeline.preemptions for one in several)


def test_swapping_needs_somewhere_to_swap_to():
    with pytest.raises(UnderloadError, match="needs a host_pool"):
        Scheduler(BlockPool(4, 4), preemption="swap")
    with pytest.raises(UnderloadError, match="max_aborts must be a whole number of at least 0"):
        Scheduler(BlockPool(4, 4), max_aborts=-1)


# ---- order ---------------------------------------------------------------------------------------------------------


def test_a_long_cold_prompt_begins_before_every_later_arrival_that_is_cached():
    engine = engine_of(BlockPool(300, BLOCK), max_num_seqs=4)
    warm = [9] * 12
    engine.add(request("warm", warm, max_tokens=1))
    for i in range(60):
        engine.add(request(f"early {i}", [*warm, 1], max_tokens=6))
    long = request("long", list(range(1, 1001)), max_tokens=2)
    engine.add(long)
    later = [request(f"later {i}", [*warm, 2], max_tokens=6) for i in range(60)]
    for one in later:
        engine.add(one)
    run_checked(engine)
    assert long.timeline.scheduled <= min(one.timeline.scheduled for one in later)
    assert said(long) == alone(long.prompt_ids, 2)


@pytest.mark.parametrize("limits", [{"max_num_batched_tokens": 1}, {"max_num_seqs": 1}])
def test_the_smallest_limits_serve_everyone(limits):
    engine = engine_of(**limits)
    several = [request(str(i), [i + 1] * 5, max_tokens=4) for i in range(4)]
    for one in several:
        engine.add(one)
    run_checked(engine)
    assert [said(one) for one in several] == [alone(one.prompt_ids, 4) for one in several]


def test_a_step_takes_no_longer_for_the_thousands_that_wait():
    """Calls, not seconds: what a step does must not grow with the queue."""

    def calls(waiting: int) -> int:
        engine = engine_of(max_num_seqs=4)
        for i in range(4):
            engine.add(request(f"runs {i}", [i + 2], max_tokens=50))
        engine.step()
        for i in range(waiting):
            engine.add(request(str(i), [1], max_tokens=1))
        made = 0

        def count(frame, event, argument):
            nonlocal made
            made += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            engine.step()
            for i in range(0, waiting, waiting // 10):
                engine.cancel(str(i))
            engine.step()
        finally:
            sys.setprofile(None)
        return made

    assert calls(20_000) < 1.5 * calls(1_000)


# ---- callers that come in between ----------------------------------------------------------------------------------


def test_whoever_watches_the_steps_may_add_and_cancel():
    engine = engine_of()
    engine.add(request("a", [4] * 6, max_tokens=9))

    def meddle(plan, result, record):
        if len(engine.steps) == 2:
            engine.add(request("b", [4] * 6, max_tokens=5))
            engine.add(request("c", [6], max_tokens=200))
        if len(engine.steps) == 4:
            engine.cancel("c")

    engine.on_step = meddle
    finished = {one.request_id: one for one in run_checked(engine)}
    assert said(finished["b"]) == alone([4] * 6, 5) and finished["b"].timeline.queued == 2.0
    assert finished["c"].timeline.finish_reason == "cancelled"


def test_a_watcher_that_raises_ends_the_run_after_the_step_and_nobody_is_lost():
    engine = engine_of()
    for name in "ab":
        engine.add(request(name, [4] * 6, max_tokens=3 if name == "a" else 5))

    def burst(plan, result, record):
        raise ZeroDivisionError

    engine.on_step = burst
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            engine.run()
    engine.on_step = None
    engine.run()
    assert [one.request_id for one in engine.finished] == engine.executor.released
    assert [said(one) for one in engine.finished] == [alone([4] * 6, 3), alone([4] * 6, 5)]


def test_an_interrupt_while_blocks_change_hands_is_not_passed_over(monkeypatch):
    engine = engine_of()
    engine.add(request("a", [4] * 6))

    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine.scheduler, "_append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.run()
    with pytest.raises(UnderloadError, match="make a new engine"):
        engine.step()


def test_an_interrupt_while_the_clock_waits_leaves_a_step_to_be_done_again():
    class Impatient(VirtualClock):
        left = 3

        def wait(self, until):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
            super().wait(until)

    engine = engine_of(clock=Impatient())
    engine.add(request("a", [4] * 6))
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    assert said(run_checked(engine)[0]) == alone([4] * 6, 8)


def test_a_clock_that_jumps_ahead_costs_nobody_a_token():
    clock = VirtualClock()
    engine = engine_of(clock=clock)
    engine.executor._fault = lambda point: point == "end" and clock.wait(clock.now() * 1.7)
    for i in range(5):
        engine.add(request(str(i), [i + 1] * 3, arrival=3.0 * i))
    for one in run_checked(engine):
        assert said(one) == alone(one.prompt_ids, 8)
        assert one.timeline.arrival <= one.timeline.scheduled < one.timeline.first_token <= one.timeline.finished


# ---- executors that misbehave --------------------------------------------------------------------------------------


def lying(how):
    """An executor whose second result is another than the true one."""

    class Lying(PaperExecutor):
        asked = 0

        def execute(self, plan):
            result = super().execute(plan)
            self.asked += 1
            return how(result) if self.asked == 2 else result

    return Lying


def with_token(token):
    def how(result):
        result.sampled[0][0].token_id = token
        return result

    return how


LIES = {
    "no sample": lambda result: StepResult([[] for _ in result.sampled]),
    "no row": lambda result: StepResult([]),
    "one sample too many": lambda result: StepResult([[*each, Sampled(3)] for each in result.sampled]),
    "nothing": lambda result: None,
    "a part of a token": with_token(2.5),
    "no token": with_token(None),
    "too wide a token": with_token(2**64),
    "time runs back": lambda result: StepResult(result.sampled, duration=-1.0),
    "without end": lambda result: StepResult(result.sampled, duration=math.inf),
    "no duration": lambda result: StepResult(result.sampled, duration=math.nan),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_result_that_cannot_be_is_a_failed_step_and_the_next_one_makes_it_good(lie):
    engine = engine_of(executor=lying(LIES[lie]))
    for name, tokens in (("a", 6), ("b", 9)):
        engine.add(request(name, [4] * tokens, max_tokens=7))
    for one in run_checked(engine):
        assert said(one) == alone(one.prompt_ids, 7)
    assert engine.aborted == 1 and engine.clock.now() < 100


def test_an_array_s_whole_number_is_a_token():
    engine = engine_of(executor=lying(lambda result: with_token(np.int64(result.sampled[0][0].token_id))(result)))
    engine.add(request("a", [4] * 6))
    (one,) = run_checked(engine)
    assert said(one) == alone([4] * 6, 8) and all(type(token) is int for token in said(one))
    assert engine.aborted == 0


def test_a_release_that_raises_loses_nobody():
    class Clumsy(PaperExecutor):
        def release(self, request):
            super().release(request)
            raise OSError("no such handle")

    engine = engine_of(executor=Clumsy)
    for name in "ab":
        engine.add(request(name, [4] * 6, max_tokens=1))
    with pytest.raises(OSError, match="handle"):
        engine.run()
    assert [one.request_id for one in engine.finished] == ["a", "b"]


# ---- what failed is counted ----------------------------------------------------------------------------------------


def test_failed_and_cancelled_requests_stay_in_the_summary_and_out_of_its_latencies():
    engine = engine_of(max_aborts=0)
    engine.executor._fault = Faults(1.0, seed=0, most=1)
    for i in range(2):
        engine.add(request(f"fails {i}", [1], max_tokens=2))
    for i in range(8):
        engine.add(request(f"good {i}", [i + 2], max_tokens=3, arrival=10.0 * (i + 1)))
    engine.add(request("goes", [1], arrival=500.0))
    engine.cancel("goes")
    run_checked(engine)
    assert len(engine.finished) == 11
    found = summary([one.timeline for one in engine.finished])
    assert (found.requests, found.failed) == (11, 3)
    assert {each.count for each in found.latencies.values()} == {8, 8 * 2}  # of 8 requests, or of their 16 gaps
    assert found.failure_rate == 3 / 11
    good = [one.timeline for one in engine.finished if one.request_id.startswith("good")]
    assert found.latencies == summary(good).latencies
    goes = next(one for one in engine.finished if one.request_id == "goes")
    assert goes.timeline.arrival == goes.timeline.finished == 0.0  # it came and went


def test_a_request_with_a_sample_that_failed_is_no_success():
    scheduler = Scheduler(BlockPool(8, BLOCK))
    one = request("a", [1] * 3, n=2)
    scheduler.add(one)
    plan = scheduler.schedule(0.0)
    scheduler.commit(plan, StepResult([[Sampled(1, FinishReason.STOP), Sampled(0, error="no law")]]), 1.0)
    assert scheduler.take_finished() == [one] and one.timeline.finish_reason == "error"
    assert [each.finish_reason for each in one.sequences] == [FinishReason.STOP, FinishReason.ERROR]


# ---- plans of a workload -------------------------------------------------------------------------------------------


def test_turns_whose_conversation_began_before_the_plan_are_sent_all_the_same():
    def turn(index: int, number: int) -> Planned:
        return Planned(2.0 * index, 4, 3, index, session="s", turn=number, think=1.0)

    engine = engine_of()
    finished = serve(engine, [turn(0, 2), turn(1, 3)], PromptIds(50))
    assert [one.request_id for one in finished] == ["0", "1"]
    assert finished[1].timeline.arrival == finished[0].timeline.finished + 1.0


# ---- the house -----------------------------------------------------------------------------------------------------


def test_the_loop_is_imported_without_torch_in_a_blink():
    """A blink is what numpy takes, three times over: seconds would be the machine's."""
    code = (
        "import sys, time; now = time.process_time; first = now(); import numpy; second = now(); "
        "import underload.engine; third = now(); modules = sys.modules; "
        "print((third - second) / (second - first), 'torch' in modules, 'scipy' in modules)"
    )
    blinks, torch, scipy = min(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
        for _ in range(2)
    )
    assert float(blinks) < 3 and (torch, scipy) == ("False", "False")


def test_twenty_thousand_at_one_instant_are_served_at_the_pace_of_a_few():
    """Arrivals at one instant fill a queue; serving it must not be quadratic in its length (seconds are generous)."""
    engine = engine_of(max_num_seqs=16)
    for i in range(20_000):
        engine.add(Request(str(i), [1], SamplingParams(max_tokens=1), Timeline(0.0)))
    start = time.process_time()
    for _ in range(200):
        engine.step()
    assert len(engine.finished) == 3200 and time.process_time() - start < 2 * slowness()
