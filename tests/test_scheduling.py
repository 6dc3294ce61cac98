"""The scheduler and the engine's loop, on a model that shows every misplaced block (`paper_model`)."""

from __future__ import annotations

import contextlib
import random

import pytest
from paper_model import Faults, Injected, PaperExecutor, alone, request

from underload.cache import BlockPool, HostPool
from underload.engine import Engine
from underload.request import FinishReason, InvalidRequest, SequenceState, UnderloadError, VirtualClock
from underload.scheduling import Idle, Plan, Sampled, Scheduler, StepResult

BLOCK = 4


def engine_of(num_blocks: int = 64, *, host: int = 0, fault=None, caching: bool = True, **limits) -> Engine:
    pool = BlockPool(num_blocks, BLOCK, prefix_caching=caching)
    swap = {"preemption": "swap", "host_pool": HostPool(host)} if host else {}
    scheduler = Scheduler(pool, **swap, **limits)
    return Engine(scheduler, PaperExecutor(num_blocks, BLOCK, host, fault=fault), VirtualClock())


def said(one) -> list[list[int]]:
    return [sequence.output_ids for sequence in one.sequences]


def at_rest(engine: Engine) -> None:
    """Nobody is served, so nothing is held."""
    pool = engine.scheduler.pool
    assert engine.scheduler.idle and pool.num_used == 0 and not engine.executor.wrong
    assert pool.num_free + pool.num_cached == pool.num_blocks
    if engine.scheduler.host_pool is not None:
        assert engine.scheduler.host_pool.num_free == engine.scheduler.host_pool.num_blocks


# ---- one request ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_a_request_says_what_it_says_alone(length):
    engine = engine_of()
    one = request("a", [5] * length, max_tokens=9)
    engine.add(one)
    assert engine.run() == [one]
    assert said(one) == [alone([5] * length, 9)]
    assert one.timeline.finished == len(engine.steps) and engine.executor.released == ["a"]
    at_rest(engine)


def test_a_prompt_longer_than_the_budget_comes_in_chunks_and_speaks_only_at_its_end():
    engine = engine_of(max_num_batched_tokens=4)
    one = request("a", list(range(1, 11)), max_tokens=2)
    engine.add(one)
    engine.run()
    assert [plan.num_tokens for plan in engine.executor.plans][:3] == [4, 4, 2]
    assert one.timeline.token_times[0] == 3.0 and one.timeline.scheduled == 0.0
    assert [step.prefill_tokens for step in engine.steps][:3] == [4, 4, 2]


def test_blocks_held_before_each_write_are_just_those_that_its_tokens_need():
    engine = engine_of(caching=False)
    held = []
    engine.executor._fault = lambda point: point == "begin" and held.append(engine.scheduler.pool.num_used)
    engine.add(request("a", [3] * 5, max_tokens=8))
    engine.run()
    tokens = [plan.work[0].stop for plan in engine.executor.plans]
    assert held == [-(-count // BLOCK) for count in tokens]


# ---- what can never be served --------------------------------------------------------------------------------------


def test_a_request_that_can_never_fit_is_refused_by_name_and_the_next_is_served():
    engine = engine_of(49)
    with pytest.raises(InvalidRequest, match=r"'big' can need 1009 tokens .* holds 196 \(49 blocks of 4\)"):
        engine.add(request("big", [1] * 1002))
    engine.add(request("small", [1] * 8))
    assert [one.request_id for one in engine.run()] == ["small"]


def test_a_request_that_just_fits_is_served():
    engine = engine_of(4)
    one = request("a", [7] * 9, max_tokens=8)  # 16 tokens need a place; the 17th is never fed back
    engine.add(one)
    engine.run()
    assert said(one) == [alone([7] * 9, 8)]
    with pytest.raises(InvalidRequest, match="can need 17 tokens"):
        engine.add(request("b", [7] * 10, max_tokens=8))


def test_limits_and_ids_are_checked_before_anything_changes():
    engine = engine_of(max_model_len=16, max_num_seqs=2)
    with pytest.raises(InvalidRequest, match="prompt of 16 tokens .* max_model_len = 16"):
        engine.add(request("long", [1] * 16))
    with pytest.raises(InvalidRequest, match="n = 3 .* max_num_seqs = 2"):
        engine.add(request("many", [1], n=3))
    engine.add(request("a", [1]))
    engine.add(request("later", [1], arrival=3.0))
    for name in ("a", "later"):
        with pytest.raises(InvalidRequest, match=f"'{name}' is in use"):
            engine.add(request(name, [1]))
    assert len(engine.run()) == 2
    for bad in ({"max_num_seqs": 0}, {"max_num_batched_tokens": 0}, {"max_model_len": 0}, {"preemption": "give up"}):
        with pytest.raises(UnderloadError, match=next(iter(bad))):
            Scheduler(BlockPool(4, 4), **bad)


def test_an_answer_ends_at_the_longest_text_the_model_takes():
    engine = engine_of(max_model_len=6)
    one = request("a", [9, 9, 9, 9], max_tokens=30)
    engine.add(one)
    engine.run()
    assert said(one)[0] == alone([9] * 4, 2) and one.sequences[0].finish_reason in (
        FinishReason.LENGTH,
        FinishReason.STOP,
    )


# ---- many at once --------------------------------------------------------------------------------------------------


def test_the_budget_of_a_step_is_never_passed_and_everyone_finishes():
    engine = engine_of(max_num_batched_tokens=8)
    several = [request(str(i), [i + 1, 2], max_tokens=6) for i in range(12)]
    for one in several:
        engine.add(one)
    engine.run()
    assert max(plan.num_tokens for plan in engine.executor.plans) <= 8
    assert [said(one)[0] for one in several] == [alone([i + 1, 2], 6) for i in range(12)]


def test_where_a_step_is_too_small_for_all_they_take_turns():
    engine = engine_of(max_num_seqs=6)
    engine.scheduler.max_num_batched_tokens = 6
    talkative = [prompt for prompt in ([i] for i in range(1, 99)) if len(alone(prompt, 40)) > 20][:6]
    speakers = [request(str(prompt), prompt, max_tokens=40) for prompt in talkative]
    for one in speakers:
        engine.add(one)
    engine.step()
    engine.scheduler.max_num_batched_tokens = 4
    while not any(one.finished for one in speakers):
        counts = [len(one.timeline.token_times) for one in speakers]
        assert max(counts) - min(counts) <= 1
        engine.step()
    assert len(engine.steps) > 20


def test_a_long_prompt_stops_nobody_and_gets_on_itself():
    engine = engine_of(max_num_batched_tokens=10)
    talker = request("talker", [1, 2], max_tokens=60)
    engine.add(talker)
    engine.step()
    before = len(talker.timeline.token_times)
    engine.add(request("long", list(range(1, 101)), max_tokens=1))
    for steps in range(1, 13):
        engine.step()
        if not talker.finished:
            assert len(talker.timeline.token_times) == before + steps
        if "long" in engine.executor.released:
            break
    assert "long" in engine.executor.released


def test_requests_begin_in_order_of_arrival_even_when_a_later_one_would_fit():
    engine = engine_of(8, caching=False)
    names = {"a": 20, "b": 24, "c": 2}
    for name, length in names.items():
        engine.add(request(name, list(range(1, length + 1)), max_tokens=4))
    begun = []
    while engine.step():
        begun += [s.request.request_id for s in engine.executor.plans[-1].admitted if s.request.request_id not in begun]
    assert begun == ["a", "b", "c"]


def test_prompts_that_come_together_share_what_the_first_of_them_computes():
    engine = engine_of()
    prompt = list(range(1, 15))
    twins = [request(name, prompt, max_tokens=3) for name in "ab"]
    for one in twins:
        engine.add(one)
    engine.run()
    assert twins[1].timeline.cached_tokens == 12  # three whole blocks, filled by the very step that reads them
    assert engine.executor.plans[0].num_tokens == 14 + 2
    assert said(twins[0]) == said(twins[1]) == [alone(prompt, 3)]


def test_a_prompt_that_is_all_cached_still_computes_its_last_token():
    engine = engine_of()
    for name in "ab":
        engine.add(request(name, [4] * 8, max_tokens=1))
        engine.run()
    engine.add(request("c", [4] * 8 + [5] * 4, max_tokens=1))
    c = engine.run()[0]
    assert engine.finished[1].timeline.cached_tokens == 4
    assert c.timeline.cached_tokens == 8 and said(c) == [alone([4] * 8 + [5] * 4, 1)]


def test_salts_and_adapters_do_not_share():
    engine = engine_of()
    for name, more in (("a", {}), ("b", {"salt": "x"}), ("c", {"adapter": "x"}), ("d", {"salt": "x"})):
        engine.add(request(name, [4] * 13, max_tokens=1, **more))
        engine.run()
    assert [one.timeline.cached_tokens for one in engine.finished] == [0, 0, 0, 12]


# ---- samples -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [3, 4, 6, 8])
def test_samples_share_the_prompt_and_copy_its_open_block_when_they_write(length):
    engine = engine_of()
    one = request("a", [6] * length, max_tokens=7, n=3)
    engine.add(one)
    engine.step()
    pool = engine.scheduler.pool
    assert pool.num_used == -(-length // BLOCK)
    engine.step()
    copied = sum(len(plan.copies) for plan in engine.executor.plans)
    assert copied == (0 if length % BLOCK == 0 else 2)  # the last of three owners writes in place
    engine.run()
    assert said(one) == [alone([6] * length, 7, sample) for sample in range(3)]
    at_rest(engine)


def test_a_prompt_waits_until_there_are_slots_for_all_its_samples():
    engine = engine_of(max_num_seqs=4)
    first = request("a", [1, 2], max_tokens=5, n=3)
    second = request("b", [3], max_tokens=5, n=2)
    for one in (first, second):
        engine.add(one)
    while engine.step():
        assert len(engine.scheduler.running) <= 4
    assert second.timeline.scheduled > 0
    assert said(second) == [alone([3], 5, sample) for sample in range(2)]


# ---- running out ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", [0, 3, 64])
@pytest.mark.parametrize("caching", [True, False])
def test_preempted_requests_lose_nothing_and_stream_nothing_twice(host, caching):
    engine = engine_of(8, host=host, caching=caching)
    several = [request(str(i), list(range(i + 1, i + 8)), max_tokens=20) for i in range(4)]
    for one in several:
        engine.add(one)
    engine.run()
    assert any(one.timeline.preemptions for one in several)
    for i, one in enumerate(several):
        assert said(one)[0] == alone(list(range(i + 1, i + 8)), 20)
        assert len(one.timeline.token_times) == len(said(one)[0])
    swaps = sum(len(plan.swap_out) for plan in engine.executor.plans)
    assert (swaps > 0) == (host > 0)
    at_rest(engine)


def test_what_was_swapped_out_comes_back_before_what_never_ran():
    engine = engine_of(8, host=64, caching=False)
    for i in range(6):
        engine.add(request(str(i), [i + 1] * 9, max_tokens=16))
    seen: list[int] = []
    while engine.step():
        order = [engine.scheduler._order[s] for s in engine.scheduler.waiting]
        assert order == sorted(order)
        seen += [len(engine.executor.plans[-1].swap_in)]
    assert sum(seen) > 0


def test_the_request_that_came_first_is_never_preempted():
    engine = engine_of(6, caching=False)
    several = [request(str(i), [i + 1] * 5, max_tokens=18) for i in range(5)]
    for one in several:
        engine.add(one)
    engine.run()
    assert several[0].timeline.preemptions == 0


# ---- cancelling ----------------------------------------------------------------------------------------------------


def test_a_cancelled_request_gives_its_blocks_back_and_its_neighbours_do_not_notice():
    engine = engine_of()
    stays, goes = request("stays", [1] * 6, max_tokens=12), request("goes", [1] * 7, max_tokens=50, n=2)
    waits = request("waits", [2] * 5, arrival=2.5)
    comes = request("comes", [2] * 5, arrival=1000.0)
    for one in (stays, goes, waits, comes):
        engine.add(one)
    for _ in range(3):
        engine.step()
    assert engine.cancel("goes") and engine.cancel("comes") and not engine.cancel("nobody")
    assert not engine.cancel("goes")
    engine.step()
    assert goes.finished and {s.finish_reason for s in goes.sequences} == {FinishReason.CANCELLED}
    assert goes.timeline.finish_reason == "cancelled"
    engine.run()
    assert said(stays)[0] == alone([1] * 6, 12) and comes.finished
    assert engine.clock.now() < 1000
    at_rest(engine)


def test_cancelling_while_a_plan_is_in_flight_frees_nothing_that_the_plan_names():
    scheduler = Scheduler(BlockPool(8, BLOCK))
    one = request("a", [1] * 6)
    scheduler.add(one)
    plan = scheduler.schedule(0.0)
    scheduler.cancel("a")
    assert isinstance(scheduler.schedule(0.0), Idle) and one.sequences[0].table is not None
    scheduler.commit(plan, StepResult([[Sampled(3)]]), 1.0)
    assert scheduler.take_finished() == [one] and scheduler.pool.num_used == 0


# ---- plans in flight, and their form -------------------------------------------------------------------------------


def test_a_plan_can_be_prepared_while_another_runs():
    scheduler = Scheduler(BlockPool(16, BLOCK), max_num_batched_tokens=4)
    executor = PaperExecutor(16, BLOCK)
    one = request("a", list(range(1, 11)), max_tokens=1)
    scheduler.add(one)
    plans = [scheduler.schedule(0.0) for _ in range(3)]
    assert [(plan.work[0].start, plan.work[0].stop) for plan in plans] == [(0, 4), (4, 8), (8, 10)]
    assert isinstance(scheduler.schedule(0.0), Idle)
    with pytest.raises(UnderloadError, match="not the oldest"):
        scheduler.commit(plans[1], StepResult([[]]), 0.0)
    for plan in plans:
        scheduler.commit(plan, executor.execute(plan), 1.0)
    assert one.finished and said(one) == [alone(list(range(1, 11)), 1)]


def test_aborting_a_plan_drops_the_ones_made_after_it():
    scheduler = Scheduler(BlockPool(16, BLOCK), max_num_batched_tokens=4)
    executor = PaperExecutor(16, BLOCK)
    one = request("a", list(range(1, 11)), max_tokens=1)
    scheduler.add(one)
    plans = [scheduler.schedule(0.0) for _ in range(3)]
    scheduler.commit(plans[0], executor.execute(plans[0]), 1.0)
    scheduler.abort(plans[1], Injected("x"), 1.0)
    with pytest.raises(UnderloadError, match="not in flight"):
        scheduler.abort(plans[2], Injected("x"), 1.0)
    again = scheduler.schedule(1.0)
    assert isinstance(again, Plan) and (again.work[0].start, again.work[0].stop) == (4, 8)


def test_a_result_of_another_form_changes_nothing():
    scheduler = Scheduler(BlockPool(8, BLOCK))
    scheduler.add(request("a", [1] * 6))
    plan = scheduler.schedule(0.0)
    for bad in ([], [[]], [[Sampled(1), Sampled(2)]]):
        with pytest.raises(UnderloadError, match="wants"):
            scheduler.commit(plan, StepResult(bad), 0.0)
    scheduler.commit(plan, StepResult([[Sampled(1)]]), 0.0)


def test_a_broken_row_fails_its_own_request():
    scheduler = Scheduler(BlockPool(8, BLOCK))
    good, bad = request("good", [1] * 3), request("bad", [2] * 3)
    scheduler.add(good)
    scheduler.add(bad)
    plan = scheduler.schedule(0.0)
    scheduler.commit(plan, StepResult([[Sampled(1)], [Sampled(0, error="no law in these logits")]]), 1.0)
    assert scheduler.take_finished() == [bad] and bad.error == "no law in these logits"
    assert bad.sequences[0].finish_reason is FinishReason.ERROR and said(bad) == [[]]
    assert good.sequences[0].state is SequenceState.RUNNING


# ---- faults --------------------------------------------------------------------------------------------------------


def test_a_request_whose_steps_keep_failing_fails_by_name_and_the_others_are_served():
    engine = engine_of(max_aborts=2)
    engine.add(request("a", [1] * 5))
    engine.executor._fault = Faults(1.0, seed=0)
    engine.run()
    assert engine.finished[0].error == "3 steps with it failed; the last: Injected: begin" and engine.aborted == 3
    engine.executor._fault = lambda point: None
    engine.add(request("b", [1] * 5))
    assert said(engine.run()[0])[0] == alone([1] * 5, 8)
    at_rest(engine)


def test_an_interrupt_ends_the_run_and_the_work_goes_on_with_the_next():
    engine = engine_of()
    one = request("a", [1] * 5, max_tokens=6)
    engine.add(one)
    engine.step()

    def interrupt(point: str) -> None:
        raise KeyboardInterrupt

    engine.executor._fault = interrupt
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    engine.executor._fault = lambda point: None
    engine.run()
    assert said(one)[0] == alone([1] * 5, 6)


def random_run(seed: int, *, faults: bool) -> tuple[int, int]:
    """A random load on a small pool, with cancellations and faults; every answer is that of the request alone.
    Returns preemptions and failed steps."""
    rng = random.Random(seed)
    blocks = rng.randint(6, 20)
    fault = Faults(0.01, seed, most=12) if faults else None
    engine = engine_of(
        blocks,
        host=rng.choice([0, 0, 2, 30]),
        caching=rng.random() < 0.7,
        fault=fault,
        max_num_batched_tokens=rng.choice([1, 3, 8, 64]),
        max_num_seqs=rng.choice([2, 4, 16]),
        max_aborts=20,
    )
    shared = [rng.randint(1, 30) for _ in range(12)]
    several = []
    for i in range(rng.randint(1, 14)):
        prompt = shared[: rng.choice([0, 3, 4, 8, 12])] + [rng.randint(1, 30) for _ in range(rng.randint(1, 6))]
        most = blocks * BLOCK + 1 - len(prompt)
        one = request(
            str(i), prompt, min(rng.randint(1, 24), most), n=rng.choice([1, 1, 1, 2]), arrival=rng.choice([0, 2, 9.5]),
            salt=rng.choice(["", "", "x"]),
        )  # fmt: skip
        engine.add(one)
        several.append(one)
    pool = engine.scheduler.pool
    while engine.step():
        assert pool.num_free + pool.num_cached + pool.num_used == blocks
        tables = [s.table for s in engine.scheduler.running]
        assert len({block for table in tables for block in table.blocks}) == pool.num_used
        if rng.random() < 0.02:
            engine.cancel(str(rng.randrange(len(several))))
    for one in several:
        assert one.finished
        for sequence in one.sequences:
            expected = alone(one.prompt_ids, one.params.max_tokens, sequence.index, one.salt)
            if sequence.finish_reason is FinishReason.CANCELLED:
                assert sequence.output_ids == expected[: len(sequence.output_ids)]
            else:
                assert sequence.output_ids == expected and sequence.finish_reason is not FinishReason.ERROR
    assert sorted(engine.executor.released) == sorted(one.request_id for one in several)
    at_rest(engine)
    return sum(one.timeline.preemptions for one in several), engine.aborted


@pytest.mark.parametrize("faults", [False, True])
def test_random_loads_on_small_pools_say_what_each_request_says_alone(faults):
    runs = [random_run(seed, faults=faults) for seed in range(250)]
    assert sum(preemptions for preemptions, _ in runs) > 200
    assert (sum(aborted for _, aborted in runs) > 100) == faults


def random_pipeline(seed: int) -> tuple[int, int]:
    """Up to three plans in flight; the oldest is committed, or any aborted. Returns the most in flight, and aborts."""
    rng = random.Random(seed)
    blocks, host = rng.randint(8, 20), rng.choice([0, 0, 8])
    swap = {"preemption": "swap", "host_pool": HostPool(host)} if host else {}
    scheduler = Scheduler(
        BlockPool(blocks, BLOCK, prefix_caching=rng.random() < 0.8),
        max_num_batched_tokens=rng.choice([2, 5, 16]),
        max_num_seqs=rng.choice([3, 8]),
        max_aborts=rng.choice([1, 1000]),
        **swap,
    )
    executor = PaperExecutor(blocks, BLOCK, host)
    shared = [rng.randint(1, 30) for _ in range(12)]
    several = []
    for i in range(rng.randint(2, 9)):
        prompt = shared[: rng.choice([0, 4, 7, 12])] + [rng.randint(1, 30) for _ in range(rng.randint(1, 9))]
        most = min(rng.randint(1, 12), blocks * BLOCK + 1 - len(prompt))
        several.append(request(str(i), prompt, most, n=rng.choice([1, 1, 2])))
        scheduler.add(several[-1])
    in_flight: list[Plan] = []
    deepest = aborted = 0
    while not scheduler.idle:
        action = rng.random()
        plan = scheduler.schedule(0.0) if len(in_flight) < 3 and action < 0.6 else None
        if isinstance(plan, Plan):
            in_flight.append(plan)
            deepest = max(deepest, len(in_flight))
        elif in_flight and action > 0.9 and aborted < 20:
            which = rng.randrange(len(in_flight))
            if rng.random() < 0.5:
                for early in in_flight[:which]:
                    scheduler.commit(early, executor.execute(early), 0.0)
                in_flight, which = in_flight[which:], 0
                executor._fault = Faults(0.2, rng.randrange(1000), most=1)
                with contextlib.suppress(Injected):
                    executor.execute(in_flight[0])
                executor._fault = lambda point: None
            scheduler.abort(in_flight[which], Injected("here"), 0.0)
            del in_flight[which:]
            aborted += 1
        elif in_flight:
            oldest = in_flight.pop(0)
            scheduler.commit(oldest, executor.execute(oldest), 0.0)
        if rng.random() < 0.01:
            scheduler.cancel(str(rng.randrange(len(several))))
        held = {block for s in scheduler.running for block in s.table.blocks}
        assert len(held) == scheduler.pool.num_used
    for one in several:
        for sequence in one.sequences:
            expected = alone(one.prompt_ids, one.params.max_tokens, sequence.index)
            assert sequence.output_ids == (expected[: len(sequence.output_ids)] if one.cancelled else expected)
    assert scheduler.pool.num_used == 0
    return deepest, aborted


def test_plans_made_ahead_committed_and_aborted_at_random_say_what_each_request_says_alone():
    runs = [random_pipeline(seed) for seed in range(300)]
    assert max(deepest for deepest, _ in runs) == 3 and sum(aborted for _, aborted in runs) > 100
