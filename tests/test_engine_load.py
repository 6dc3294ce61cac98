"""A plan sent into the engine: when requests arrive, what their prompts hold, and who shares a cache."""

from __future__ import annotations

from itertools import pairwise

import pytest

from underload.cache import BlockPool
from underload.engine import Engine, serve
from underload.engine.load import ADDING
from underload.request import Request, SamplingParams, Timeline, VirtualClock
from underload.scheduling import Scheduler
from underload.simulation import CostModelExecutor, LinearStepTime
from underload.workload import (
    Conversations,
    Deterministic,
    FixedTokens,
    Lengths,
    Planned,
    PromptIds,
    Tenants,
    Workload,
)


def engine(blocks: int = 500, start: float = 0.0) -> Engine:
    return Engine(Scheduler(BlockPool(blocks, 4)), CostModelExecutor(LinearStepTime(0.01, 0.0)), VirtualClock(start))


def talk(tenant: str = "") -> Workload:
    prompts = Conversations(FixedTokens(3), think=2.0, system=8)
    return Workload(Deterministic(0.5), Lengths(FixedTokens(5), FixedTokens(6)), prompts, tenant=tenant)


def test_a_turn_follows_the_answer_before_it_by_the_time_its_user_thinks() -> None:
    plan, one = talk().plan(1, requests=4), engine(start=100.0)
    done = {request.request_id: request for request in serve(one, plan, PromptIds(1000))}
    assert len(done) == len(plan) == 12
    by_turn = {(each.session, each.turn): done[str(each.index)].timeline for each in plan}
    for (session, turn), line in by_turn.items():
        if turn:
            assert line.arrival == pytest.approx(by_turn[session, turn - 1].finished + 2.0)  # type: ignore[operator]
        else:
            first = next(each for each in plan if each.session == session)
            assert line.arrival == pytest.approx(100.0 + first.arrival)


def test_nothing_is_due_while_prompts_are_made() -> None:
    """On a real clock thousands of prompts take seconds, and whoever was due in them would have waited already."""
    clock = VirtualClock(7.0)

    class Slow(PromptIds):
        def __call__(self, planned: Planned) -> list[int]:
            clock.wait(clock.now() + 0.5)
            return super().__call__(planned)

    plan = [Planned(2.0 * i, 8, 1, i) for i in range(40)]
    one = Engine(Scheduler(BlockPool(500, 4)), CostModelExecutor(LinearStepTime(0.01, 0.0)), clock)
    lines = [request.timeline for request in serve(one, plan, Slow(1000))]
    start = 7.0 + 2 * 40 * 0.5 + 40 * ADDING
    assert [line.arrival for line in lines] == [pytest.approx(start + 2.0 * i) for i in range(40)]
    assert all(line.scheduled == line.arrival for line in lines)


def test_nothing_is_due_while_requests_are_added() -> None:
    """Prompts that are known already cost next to nothing to make, and adding their requests does."""
    clock = VirtualClock()

    class Known(PromptIds):
        def __call__(self, planned: Planned) -> list[int]:
            clock.wait(clock.now() + 1e-6)
            return [1, 2, 3]

    class Adding(Engine):
        def add(self, request: Request) -> None:
            super().add(request)
            clock.wait(clock.now() + 2e-4)

    plan = [Planned(0.0, 3, 1, i) for i in range(300)]
    one = Adding(Scheduler(BlockPool(500, 4)), CostModelExecutor(LinearStepTime(0.01, 0.0)), clock)
    lines = [request.timeline for request in serve(one, plan, Known(1000))]
    added = 300 * (1e-6 + 2e-4)
    assert min(line.arrival for line in lines) == one.steps[0].start > added


def test_the_next_prompt_holds_what_was_really_said() -> None:
    plan = talk().plan(1, requests=1)
    done = serve(engine(), plan, PromptIds(1000))
    for before, after in pairwise(done):
        said = before.sequences[0].tokens
        assert after.prompt_ids[: len(said)] == said
        assert len(after.prompt_ids) == len(said) + 5


def test_what_was_said_is_found_again_up_to_its_last_full_block() -> None:
    done = serve(engine(), talk().plan(1, requests=1), PromptIds(1000))
    for before, after in pairwise(done):
        computed = len(before.sequences[0].tokens) - 1  # the last token was never fed back
        assert after.timeline.cached_tokens == computed // 4 * 4


def test_tenants_share_no_cache_and_one_tenant_does() -> None:
    same = [Planned(float(i), 12, 2, i, tenant=tenant) for i, tenant in enumerate(("red", "red", "blue"))]

    class Same(PromptIds):
        def __call__(self, planned: Planned) -> list[int]:
            return list(range(12))

    done = {request.request_id: request.timeline.cached_tokens for request in serve(engine(), same, Same(1000))}
    assert done == {"0": 0, "1": 8, "2": 0}
    both = Tenants([talk("red"), talk("blue")]).plan(1, requests=2)
    assert len(serve(engine(), both, PromptIds(1000))) == len(both) == 12


def test_others_requests_on_the_same_engine_do_not_disturb() -> None:
    one = engine()
    one.add(Request("somebody else's", [1, 2, 3], SamplingParams(max_tokens=400), Timeline(0.0)))
    plan = talk().plan(1, requests=2)
    done = serve(one, plan, PromptIds(1000))
    assert len(done) == len(plan) + 1


def test_an_empty_plan_is_served_at_once() -> None:
    assert serve(engine(), [], PromptIds(10)) == []
