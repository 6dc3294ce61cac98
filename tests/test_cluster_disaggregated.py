"""Prefill and decode in separate pools: against one pool for both, against plain engines, and by what is moved."""

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from underload.cache import BlockPool, HostPool
from underload.metrics import e2e, ttft
from underload.request import InvalidRequest, SamplingParams, StepSize, UnderloadError
from underload.scheduling import Scheduler
from underload.simulation import (
    DisaggregatedRun,
    EngineReplica,
    Failures,
    LinearStepTime,
    Link,
    Steady,
    simulate_cluster,
    simulate_disaggregated,
    simulate_serving,
)
from underload.workload import Conversations, FixedTokens, Lengths, Planned, Poisson, Workload

STEP = LinearStepTime(0.005, 1e-4, 1e-7)
ENGINE = EngineReplica(STEP)


def plan(n: int = 60, gap: float = 0.05, prompt: int = 200, answer: int = 20) -> list[Planned]:
    """Lengths that differ, so that nothing coincides."""
    return [Planned(i * gap, prompt + 37 * i % 101, 1 + (answer + 13 * i) % (2 * answer), i) for i in range(n)]


def answers(run) -> list[list[int]]:
    return [call.winner.request.sequences[0].output_ids for call in run.calls]


def test_the_tokens_are_those_of_one_pool_and_the_timelines_are_whole():
    requests = plan()
    apart = simulate_disaggregated(requests, [ENGINE] * 2, [ENGINE] * 3, Link(1e5, 1e9, 0.001))
    assert answers(apart) == answers(simulate_cluster(requests, [ENGINE]))
    for request, timeline in zip(requests, apart.timelines):
        assert timeline.output_tokens == request.output_tokens and timeline.prompt_tokens == request.prompt_tokens
        assert timeline.arrival == request.arrival <= timeline.scheduled < timeline.first_token
        assert timeline.token_times == sorted(timeline.token_times) and timeline.finished == timeline.last_token
        assert timeline.prefills[0][1] == 0 and timeline.prefills[-1][2] == request.prompt_tokens
        assert timeline.finish_reason in ("stop", "length")


def test_every_prompt_is_computed_once_and_moved_once_and_no_block_stays():
    pools: list[BlockPool] = []

    def scheduler() -> Scheduler:
        pools.append(BlockPool(2_000, 16))
        return Scheduler(pools[-1])

    engine = EngineReplica(STEP, scheduler)
    requests = plan()
    run = simulate_disaggregated(requests, [engine] * 2, [engine] * 2, Link(1e5, 1e9))
    prompts = sum(request.prompt_tokens for request in requests)
    later = sum(request.output_tokens - 1 for request in requests)
    assert sum(step.prefill_tokens for one in run.prefill for step in one.steps) == prompts
    assert sum(step.decode_tokens for one in run.prefill for step in one.steps) == 0
    assert sum(step.prefill_tokens for one in run.decode for step in one.steps) == 0
    assert sum(step.decode_tokens for one in run.decode for step in one.steps) == later
    longer = [request for request in requests if request.output_tokens > 1]
    assert len(longer) < len(requests)
    assert sorted(one.index for one in run.transfers) == [request.index for request in longer]
    assert all(one.tokens == requests[one.index].prompt_tokens for one in run.transfers)
    assert all(one.bytes == 1e5 * one.tokens for one in run.transfers)
    assert all(pool.num_used == 0 for pool in pools) and len(pools) == 4


def test_a_prefill_replica_needs_room_for_prompts_only():
    requests = [Planned(0.1 * index, 160, 300, index) for index in range(5)]
    small = EngineReplica(STEP, lambda: Scheduler(BlockPool(10, 16)))
    run = simulate_disaggregated(requests, [small], [ENGINE], Link(1e5))
    assert [timeline.output_tokens for timeline in run.timelines] == [300] * 5
    with pytest.raises(InvalidRequest, match="10 blocks of 16"):
        simulate_cluster(requests, [small])


def test_the_prefill_pool_is_an_engine_that_answers_with_one_token():
    requests = plan()
    run = simulate_disaggregated(requests, [ENGINE], [ENGINE], Link(1e5, 1e8, 0.01))
    alone = simulate_serving([replace(request, output_tokens=1) for request in requests], STEP)
    assert run.prefill[0].steps == alone.steps
    assert [timeline.first_token for timeline in run.timelines] == [one.first_token for one in alone.timelines]


class FreePrefill:
    """What a step draws and reads takes time; prompts take none."""

    def __call__(self, step: StepSize) -> float:
        return 0.004 + 1e-4 * step.logit_rows + 1e-6 * step.context_tokens

    def run(self, step: StepSize, k: int) -> list[float]:
        rows = 0.004 + 1e-4 * step.logit_rows
        return [rows + 1e-6 * (step.context_tokens + i * step.decode_tokens) for i in range(k)]


def test_with_a_link_that_takes_no_time_the_decode_pool_is_an_engine_whose_prompts_are_free():
    # Who comes with the keys and values of n tokens, and one token more, does in a step what a prompt of n + 1 tokens
    # does, where prompts cost nothing.
    requests = plan(answer=30)
    decode = EngineReplica(FreePrefill(), partial(Scheduler, BlockPool(9_000, 16), max_num_batched_tokens=10**6))
    run = simulate_disaggregated(requests, [ENGINE], [decode], Link(1e5))
    longer = [one for one in requests if one.output_tokens > 1]
    firsts = [timeline.first_token for timeline in run.timelines]
    free = [
        replace(
            one, arrival=firsts[one.index], prompt_tokens=one.prompt_tokens + 1, output_tokens=one.output_tokens - 1
        )
        for one in longer
    ]
    alone = simulate_serving(free, FreePrefill(), pool=BlockPool(9_000, 16), max_num_batched_tokens=10**6)
    found = [(step.start, step.duration, step.logit_rows, step.blocks_used) for step in run.decode[0].steps]
    assert found == [(step.start, step.duration, step.logit_rows, step.blocks_used) for step in alone.steps]
    for one, timeline in zip(longer, alone.timelines):
        assert run.timelines[one.index].token_times[1:] == timeline.token_times


def test_a_link_moves_one_prompt_after_the_other():
    requests = plan(gap=0.02)
    link = Link(1e5, 2e8, 0.003)  # as long as a prompt of 200 tokens takes to compute, and more
    run = simulate_disaggregated(requests, [ENGINE] * 2, [ENGINE], link)
    free = [0.0, 0.0]
    queued = 0
    for one in run.transfers:
        begun = max(one.ready, free[one.prefill])
        queued += begun > one.ready
        free[one.prefill] = begun + one.tokens * 1e5 / 2e8
        assert one.begun == pytest.approx(begun) and one.arrived == pytest.approx(free[one.prefill] + 0.003)
        assert one.decode == 0 and one.left >= one.arrived
        assert run.timelines[one.index].token_times[1] > one.left
    assert queued > 10
    most = max(sum(b.tokens for b in run.transfers if b.ready <= a.ready < b.left) for a in run.transfers)
    assert run.waiting_tokens == most > 300
    slower = simulate_disaggregated(requests, [ENGINE] * 2, [ENGINE], Link(1e5, 1e8, 0.003))
    for one, two in zip(run.timelines, slower.timelines):
        assert ttft(one) == ttft(two) and e2e(one) <= e2e(two)


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_a_decode_pool_that_runs_out_of_blocks_preempts_as_its_scheduler_says(preemption):
    def scheduler() -> Scheduler:
        host = HostPool(200) if preemption == "swap" else None
        made.append(Scheduler(BlockPool(60, 16), preemption=preemption, host_pool=host))
        return made[-1]

    made: list[Scheduler] = []
    requests = plan(n=40, gap=0.01, prompt=100, answer=120)
    run = simulate_disaggregated(requests, [ENGINE], [EngineReplica(STEP, scheduler)], Link(1e5, 1e10))
    preempted = sum(timeline.preemptions for timeline in run.timelines)
    again = sum(step.prefill_tokens for step in run.decode[0].steps)
    assert preempted > 5 and (again > 0) == (preemption == "recompute")
    assert answers(run) == answers(simulate_cluster(requests, [ENGINE]))
    assert made[0].pool.num_used == 0 and (made[0].host_pool is None or made[0].host_pool.num_used == 0)
    # Swapping: each token past the first of an answer is computed once.
    if preemption == "swap":
        assert sum(step.decode_tokens for step in run.decode[0].steps) == sum(one.output_tokens - 1 for one in requests)


def test_no_prompt_stalls_a_decode():
    # One request decodes while long prompts come: in one pool they share its steps, here its gaps stay even.
    requests = [Planned(0.0, 50, 200, 0)] + [Planned(0.05 + 0.2 * i, 4_000, 2, 1 + i) for i in range(5)]
    together = simulate_cluster(requests, [ENGINE] * 2)
    apart = simulate_disaggregated(requests, [ENGINE], [ENGINE], Link(1e5, 1e10))

    def longest_gap(run) -> float:
        times = run.timelines[0].token_times
        return max(after - before for before, after in pairwise(times))

    alone = simulate_cluster(requests[:1], [ENGINE])
    assert longest_gap(apart) < 2 * longest_gap(alone)
    one_pool = simulate_cluster(requests, [ENGINE])
    assert longest_gap(one_pool) > 10 * longest_gap(alone)
    assert together.count("answered") == 6


def test_conversations_go_on_after_the_answer_and_prompts_hold_what_was_said():
    lengths = Lengths(FixedTokens(40), FixedTokens(12))
    requests = Workload(Poisson(2.0), lengths, Conversations(turns=3, think=0.5)).plan(seed=3, horizon=10.0)
    run = simulate_disaggregated(requests, [ENGINE], [ENGINE], Link(1e5, 1e9))
    assert len(run.calls) == len(requests)
    assert answers(run) == answers(simulate_cluster(requests, [ENGINE]))
    assert any(timeline.cached_tokens for timeline in run.timelines)
    ended = {(call.request.session, call.request.turn): call.ended for call in run.calls}
    later = [call for call in run.calls if call.request.turn and (call.request.session, call.request.turn - 1) in ended]
    assert later
    for call in later:
        before = ended[call.request.session, call.request.turn - 1]
        assert call.arrival == pytest.approx(before + call.request.think)


def test_who_gives_up_on_the_way_holds_nothing():
    requests = plan(n=20, gap=0.2)
    run = simulate_disaggregated(requests, [ENGINE], [ENGINE], Link(1e5, 8e7, 0.0), patience=1.0)
    given_up = [call for call in run.calls if call.outcome == "abandoned"]
    assert 0 < len(given_up) < 20
    assert run.transfers and [one for one in run.transfers if one.decode < 0]
    assert run.decode[0].attempts + sum(one.decode < 0 for one in run.transfers) == len(run.transfers)


def test_failures_and_slowness_are_those_of_each_replica():
    requests = plan(n=40)
    dead = EngineReplica(STEP, failures=Failures([(1.0, math.inf)]))
    run = simulate_disaggregated(requests, [ENGINE], [dead], Link(1e5))
    failed = [call for call in run.calls if call.outcome == "failed"]
    assert failed and all(call.ended >= 1.0 for call in failed)
    assert {call.error for call in failed} <= {"the replica went down", "no decode replica is up"}
    assert all(call.outcome == "failed" or call.ended <= 1.0 or call.request.output_tokens == 1 for call in run.calls)
    fast = simulate_disaggregated(requests, [ENGINE], [ENGINE], Link(1e5))
    slow = simulate_disaggregated(requests, [ENGINE], [EngineReplica(STEP, slowness=Steady(2.0))], Link(1e5))
    assert [ttft(one) for one in fast.timelines] == [ttft(one) for one in slow.timelines]
    assert sum(map(e2e, fast.timelines)) < sum(map(e2e, slow.timelines))


def test_what_is_no_pool_link_or_plan_is_named():
    link, requests = Link(1.0), plan(3)

    def served(*pools, requests=requests, **rest) -> DisaggregatedRun:
        return simulate_disaggregated(requests, *pools, link, **rest)

    for pools in (([], [ENGINE]), ([ENGINE], []), ([ENGINE], [None])):
        with pytest.raises(UnderloadError, match="pool"):
            served(*pools)
    with pytest.raises(UnderloadError, match="several answers"):
        several = [replace(requests[0], sampling=SamplingParams(n=2))]
        served([ENGINE], [ENGINE], requests=several)
    for options in ({"bytes_per_token": -1.0}, {"bandwidth": 0.0}, {"bandwidth": math.nan}, {"latency": -1.0}):
        with pytest.raises(UnderloadError):
            Link(**({"bytes_per_token": 1.0} | options))
    with pytest.raises(UnderloadError, match="patience"):
        served([ENGINE], [ENGINE], patience=0.0)
    assert served([ENGINE], [ENGINE], requests=[]).calls == []
