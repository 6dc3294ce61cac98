"""The executor that computes nothing, on the real engine, scheduler and pool: ids, lengths, time, and what follows."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underload.cache import BlockPool
from underload.engine import Engine, serve
from underload.metrics import queue_time, ttft
from underload.request import FinishReason, Request, SamplingParams, Timeline, UnderloadError, VirtualClock
from underload.scheduling import Scheduler
from underload.shapes import device, roofline, shape, step_cost
from underload.simulation import CostModelExecutor, LinearStepTime, RooflineStepTime
from underload.workload import Conversations, FixedTokens, Lengths, Poisson, PromptIds, Workload

TENTH = LinearStepTime(0.1, 0.0)


def engine_of(step_time=TENTH, *, blocks: int = 400, size: int = 4, seed: int = 0, **how) -> Engine:
    outputs = how.pop("output_tokens", None)
    executor = CostModelExecutor(step_time, output_tokens=outputs, vocabulary=how.pop("vocabulary", 32_000), seed=seed)
    return Engine(Scheduler(BlockPool(blocks, size), **how), executor, VirtualClock())


def request(name: str, prompt: int = 5, most: int = 8, n: int = 1, arrival: float = 0.0) -> Request:
    return Request(name, [7] * prompt, SamplingParams(max_tokens=most, n=n), Timeline(arrival))


def answers(engine: Engine, *requests: Request) -> dict[str, list[list[int]]]:
    for one in requests:
        engine.add(one)
    return {one.request_id: [sequence.output_ids for sequence in one.sequences] for one in engine.run()}


# ---- ids -----------------------------------------------------------------------------------------------------------


def test_ids_hang_on_seed_request_sample_and_position_and_on_nothing_else():
    alone = answers(engine_of(), request("a", n=2))["a"]
    crowd = [request(str(i), prompt=3 + i, arrival=0.05 * i) for i in range(9)]
    crowded = engine_of(blocks=8, max_num_batched_tokens=16)
    assert answers(crowded, *crowd, request("a", prompt=5, n=2))["a"] == alone
    assert sum(one.timeline.preemptions for one in crowded.finished) > 0
    first, second = alone
    assert first != second and len(set(first)) > 4
    assert answers(engine_of(seed=1), request("a", n=2))["a"] != alone
    assert answers(engine_of(), request("b", n=2))["b"] != alone
    assert answers(engine_of(), request("a", most=3))["a"][0] == first[:3]


def test_ids_fill_the_vocabulary_evenly_and_stay_below_it():
    engine = engine_of(blocks=4000, vocabulary=8)
    said = answers(engine, *(request(str(i), most=100) for i in range(40)))
    drawn = [token for ids in said.values() for token in ids[0]]
    counts = [drawn.count(token) for token in range(8)]
    assert sum(counts) == 4000
    # 99.99 % of chi-squared with 7 degrees of freedom lies below 29.88 (SciPy: chi2.ppf(0.9999, 7)).
    assert sum((count - 500) ** 2 / 500 for count in counts) < 29.88


@pytest.mark.parametrize("wrong", [{"vocabulary": 0}, {"output_tokens": {"a": 0}}])
def test_a_model_of_nothing_is_refused(wrong):
    with pytest.raises(UnderloadError, match="at least 1"):
        CostModelExecutor(TENTH, **wrong)


def test_any_name_has_ids():
    names = {"", "\ud800", "日本" * 99}
    assert set(answers(engine_of(), *map(request, names))) == names


# ---- lengths -------------------------------------------------------------------------------------------------------


@given(most=st.integers(1, 9), wanted=st.integers(1, 12), prompt=st.integers(1, 9), n=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_an_answer_is_as_long_as_the_load_says_and_its_end_has_the_right_name(most, wanted, prompt, n):
    engine = engine_of(output_tokens={"a": wanted})
    one = request("a", prompt=prompt, most=most, n=n)
    for ids in answers(engine, one)["a"]:
        assert len(ids) == min(wanted, most)
    expected = FinishReason.STOP if wanted < most else FinishReason.LENGTH
    assert {sequence.finish_reason for sequence in one.sequences} == {expected}


def test_who_has_no_stated_length_runs_to_its_limit():
    engine = engine_of(output_tokens={"a": 2}, max_model_len=9)
    said = answers(engine, request("a"), request("b", most=3), request("c", most=300))
    assert {name: len(ids[0]) for name, ids in said.items()} == {"a": 2, "b": 3, "c": 4}


def test_nothing_is_kept_for_those_who_are_gone():
    engine = engine_of()
    answers(engine, *(request(str(i)) for i in range(5)))
    assert not engine.executor._answers


# ---- time ----------------------------------------------------------------------------------------------------------


def test_the_clock_moves_by_what_the_steps_take():
    engine = engine_of(LinearStepTime(0.5, 0.01, 0.001))
    answers(engine, request("a", prompt=5, most=3))
    # Tokens computed 5, 1, 1; keys and values read 5, 6, 7.
    assert [step.duration for step in engine.steps] == pytest.approx([0.555, 0.516, 0.517])
    assert engine.clock.now() == pytest.approx(1.588)
    assert [step.start for step in engine.steps] == pytest.approx([0.0, 0.555, 1.071])


def test_a_roofline_step_is_the_model_s_least_time_for_just_those_tokens():
    llama, h100 = shape("llama-3-8b"), device("h100-sxm")
    engine = engine_of(RooflineStepTime(llama, h100, overhead=0.001))
    answers(engine, request("a", prompt=30, most=2), request("b", prompt=11, most=2))
    seconds = [
        roofline(
            step_cost(llama, query, context, logit_rows=2, weight_bytes=2, kv_bytes=2),
            bandwidth=h100.bandwidth,
            flops=h100.flops,
        ).seconds
        + 0.001
        for query, context in (([30, 3], [30, 11]), ([1, 1], [31, 12]))
    ]
    # The second prompt finds the first two blocks of the first one.
    assert [step.duration for step in engine.steps] == pytest.approx(seconds)


def busy_run(seed: int) -> Engine:
    lengths = Lengths(FixedTokens(40), FixedTokens(12))
    plan = Workload(Poisson(6.0), lengths).plan(seed, horizon=60.0)
    engine = engine_of(LinearStepTime(0.02, 0.001), blocks=120, size=8, max_num_batched_tokens=48, max_num_seqs=12)
    serve(engine, plan, PromptIds(1000, seed=seed))
    return engine


def test_time_to_the_first_token_is_the_queue_and_the_prefill():
    engine = busy_run(1)
    ends = sorted(step.start + step.duration for step in engine.steps)
    assert len(engine.finished) > 300 and any(step.queue_length for step in engine.steps)
    for one in engine.finished:
        line = one.timeline
        prefill = line.first_token - line.scheduled
        assert ttft(line) == pytest.approx(queue_time(line) + prefill)
        assert queue_time(line) >= 0 and prefill > 0
        # Tokens come when a step ends, and no step lies between two tokens unless it left this one out.
        assert set(line.token_times) <= set(ends)


@pytest.mark.parametrize("seed", [1, 2])
def test_little_s_law_holds_on_the_run_from_empty_to_empty(seed):
    """Counted by who is inside, and by how long each is; then the same of those in service, by the steps' records."""
    engine = busy_run(seed)
    lines = [one.timeline for one in engine.finished]
    events = sorted([(line.arrival, 1) for line in lines] + [(line.finished, -1) for line in lines])
    area = inside = 0.0
    for (time, change), (then, _) in pairwise(events):
        inside += change
        area += inside * (then - time)
    assert inside == 1  # the last one, until it goes
    assert area == pytest.approx(sum(line.finished - line.arrival for line in lines))
    # Nobody was preempted, and a step leaves nobody out: so the mean batch is rate times time in service.
    assert not any(line.preemptions for line in lines)
    batches = sum(step.batch_size * step.duration for step in engine.steps)
    assert batches == pytest.approx(sum(line.finished - line.scheduled for line in lines))


def test_tokens_computed_are_tokens_of_prompts_and_answers_less_what_was_cached():
    engine = busy_run(3)
    prompts = sum(one.timeline.prompt_tokens - one.timeline.cached_tokens for one in engine.finished)
    outputs = sum(one.timeline.output_tokens - 1 for one in engine.finished)  # the last one is never fed back
    assert not any(one.timeline.preemptions for one in engine.finished)
    assert sum(step.prefill_tokens for step in engine.steps) == prompts
    assert sum(step.decode_tokens for step in engine.steps) == outputs


# ---- conversations -------------------------------------------------------------------------------------------------


def test_a_conversation_goes_on_from_what_was_really_answered():
    load = Workload(
        Poisson(0.5), Lengths(FixedTokens(9), FixedTokens(6)), Conversations(turns=3, think=2.0, system=8, pace=0.01)
    )
    plan = load.plan(4, horizon=40.0)
    engine = engine_of(blocks=4000, size=4)
    finished = {int(one.request_id): one for one in serve(engine, plan, PromptIds(1000, seed=0))}
    assert sorted(finished) == [planned.index for planned in plan]
    turns: dict[str, list[int]] = {}
    for planned in plan:
        turns.setdefault(planned.session, []).append(planned.index)
    assert max(map(len, turns.values())) == 3
    for indices in turns.values():
        for before, after in pairwise(indices):
            one, then = finished[before], finished[after]
            whole = one.sequences[0].tokens
            assert then.prompt_ids[: len(whole)] == whole
            assert then.timeline.arrival == pytest.approx(one.timeline.finished + 2.0)
            # All whole blocks of what was said are there; the last token of the answer was never computed.
            assert then.timeline.cached_tokens == (len(whole) - 1) // 4 * 4
