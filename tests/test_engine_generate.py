"""Offline generation: many prompts in, their requests back in order, whatever becomes of some of them."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
from paper_model import Faults, PaperExecutor, alone, request

from underload.cache import BlockPool
from underload.engine import Engine, generate
from underload.request import FinishReason, InvalidRequest, SamplingParams, VirtualClock
from underload.scheduling import Scheduler

BLOCK = 4


def engine_of(blocks: int = 64, *, fault=None, on_step=None, **limits) -> Engine:
    pool = BlockPool(blocks, BLOCK)
    executor = PaperExecutor(blocks, BLOCK, fault=fault)
    return Engine(Scheduler(pool, **limits), executor, VirtualClock(), on_step=on_step)


def said(requests) -> list[list[int]]:
    return [one.sequences[0].output_ids for one in requests]


PROMPTS = [[i % 7 + 1, i + 1, 3] for i in range(20)]


def test_the_answers_come_in_the_order_of_the_prompts_and_not_of_their_ends():
    engine = engine_of(max_num_seqs=4)
    wishes = [SamplingParams(max_tokens=1 + (7 * i) % 11) for i in range(len(PROMPTS))]
    requests = generate(engine, PROMPTS, wishes)
    assert said(requests) == [alone(p, w.max_tokens) for p, w in zip(PROMPTS, wishes, strict=True)]
    assert {id(one) for one in engine.finished} == {id(one) for one in requests} and engine.finished != requests
    assert all(one.timeline.finished is not None and one.error is None for one in requests)


def test_one_set_of_parameters_is_for_all_and_arrays_are_prompts():
    requests = generate(engine_of(), np.array(PROMPTS), SamplingParams(max_tokens=5, n=2))
    for prompt, one in zip(PROMPTS, requests, strict=True):
        assert [s.output_ids for s in one.sequences] == [alone(prompt, 5, sample) for sample in range(2)]
    assert len(generate(engine_of(), iter(PROMPTS))[0].sequences[0].output_ids) <= SamplingParams().max_tokens


def test_no_prompts_are_no_requests():
    assert generate(engine_of(), []) == []


def test_a_prompt_that_cannot_be_served_comes_back_as_failed_and_the_others_are_answered():
    engine = engine_of(blocks=8, max_model_len=30)
    prompts = [[1] * 5, [2] * 30, [3] * 4, [4] * 10]
    requests = generate(engine, prompts, [SamplingParams(max_tokens=m) for m in (4, 4, 4, 80)])
    assert said(requests[::2]) == [alone(p, 4) for p in prompts[::2]]
    too_long = requests[1]
    assert "prompt of 30 tokens" in too_long.error and "max_model_len = 30" in too_long.error
    assert too_long.finished and too_long.timeline.finish_reason == "error" and too_long.timeline.finished is not None
    assert requests[3].error is None  # what is too long to be finished is cut off, and not refused


def test_a_prompt_whose_steps_keep_failing_fails_alone():
    """An executor that cannot compute one of the prompts: the steps with it fail, until it is given up."""
    engine = engine_of(max_num_seqs=4)

    class Picky(PaperExecutor):
        def execute(self, plan):
            if any(work.sequence.tokens[0] == 9 for work in plan.work):
                raise MemoryError("nine is too much")
            return super().execute(plan)

    engine.executor = Picky(64, BLOCK)
    prompts = [[1, 2], [9, 9], [3, 4], [5]]
    requests = generate(engine, prompts, SamplingParams(max_tokens=3))
    assert "nine is too much" in requests[1].error and requests[1].sequences[0].finish_reason is FinishReason.ERROR
    assert said([requests[0], *requests[2:]]) == [alone([1, 2], 3), alone([3, 4], 3), alone([5], 3)]


@pytest.mark.parametrize(
    ("prompts", "params", "says"),
    [
        ([[1], []], None, "prompt 1 of 2: .*empty prompt"),
        ([[1], [1.5]], None, "prompt 1 of 2: .*whole numbers"),
        ([1, 2, 3], None, "prompt 0 of 3: .*lists of token ids"),
        (["words"], None, "prompt 0 of 1: .*whole numbers"),
        ([[1], [2]], [SamplingParams()], "2 prompts but 1 sampling parameters"),
        ([[1]], ["greedy"], "params must hold SamplingParams, got 'greedy'"),
    ],
)
def test_what_is_no_prompt_is_named_before_anything_is_computed(prompts, params, says):
    engine = engine_of()
    with pytest.raises(InvalidRequest, match=says):
        generate(engine, prompts, params)
    assert engine.scheduler.idle and engine.steps == []


def test_the_requests_of_others_go_on_and_are_not_returned():
    engine = engine_of(max_num_seqs=3)
    others = [request("0", [7] * 6, max_tokens=30), request("late", [8], max_tokens=3, arrival=4.0)]
    for one in others:
        engine.add(one)
    requests = generate(engine, PROMPTS[:4], SamplingParams(max_tokens=6))
    assert said(requests) == [alone(p, 6) for p in PROMPTS[:4]]
    assert not {"0", "late"} & {one.request_id for one in requests}
    engine.run()
    assert said(others) == [alone([7] * 6, 30), alone([8], 3)]


def test_a_run_that_is_interrupted_leaves_an_engine_that_can_be_used_again():
    after = 5

    def interrupt(plan, result, record):
        if len(engine.steps) == after:
            raise KeyboardInterrupt

    engine = engine_of(max_num_seqs=3, on_step=interrupt)
    with pytest.raises(KeyboardInterrupt):
        generate(engine, PROMPTS, SamplingParams(max_tokens=9))
    assert said(generate(engine, PROMPTS[:5], SamplingParams(max_tokens=4))) == [alone(p, 4) for p in PROMPTS[:5]]
    assert engine.scheduler.idle and engine.scheduler.pool.num_used == 0


def test_steps_that_fail_change_no_answer():
    faults = Faults(0.02, seed=3)
    requests = generate(engine_of(fault=faults, max_aborts=10**6), PROMPTS, SamplingParams(max_tokens=8))
    assert faults.raised and said(requests) == [alone(p, 8) for p in PROMPTS]


# ---- the bar -------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "progress", "shown"),
    [
        (Terminal, None, True),
        (Terminal, False, False),
        (io.StringIO, None, False),
        (io.StringIO, True, True),
    ],
)
def test_a_bar_shows_on_a_terminal_or_where_it_is_asked_for(stream, progress, shown, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream())
    engine = engine_of(max_model_len=30)
    generate(engine, [*PROMPTS, [1] * 99], SamplingParams(max_tokens=3), progress=progress)
    drawn = sys.stderr.getvalue()
    assert bool(drawn) == shown
    if shown:
        assert "21/21" in drawn.replace(" ", "")


def test_without_a_standard_error_there_is_no_bar_and_no_fault(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    assert len(generate(engine_of(), PROMPTS[:2])) == 2
