"""A replica whose steps the decoder computes: real work on the simulator's clock."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from underload.cache import BlockPool
from underload.decoder import Model, TimedSteps, load_model
from underload.request import UnderloadError
from underload.scheduling import Plan, Scheduler
from underload.simulation import EngineReplica, Random, Tied, simulate_cluster
from underload.workload import FixedTokens, Lengths, Poisson, PromptIds, Workload

BLOCKS = 60


@pytest.fixture(scope="module")
def pocket() -> Model:
    return load_model("pocket", threads=1)


def scheduler() -> Scheduler:
    return Scheduler(BlockPool(BLOCKS, 16))


class Ticks:
    """A timer that moves by 0.5 s whenever it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.5
        return self.now


class Counted(TimedSteps):
    """Notes how many tokens each plan had."""

    def __init__(self, model: Model) -> None:
        super().__init__(model, BLOCKS, timer=Ticks())
        self.plans: list[int] = []

    def __call__(self, plan: Plan) -> float:
        self.plans.append(sum(work.stop - work.start for work in plan.work))
        return super().__call__(plan)


def replicas(model: Model, count: int) -> Iterator[EngineReplica]:
    for _ in range(count):
        yield EngineReplica(Counted(model), scheduler, vocabulary=model.shape.vocab_size)


def test_each_step_is_computed_once_and_lasts_as_long_as_the_timer_says(pocket: Model) -> None:
    plan = Workload(Poisson(1.0), Lengths(FixedTokens(20), FixedTokens(5))).plan(1, requests=12)
    fleet = list(replicas(pocket, 2))
    ids = PromptIds(range(5, pocket.shape.vocab_size))
    run = simulate_cluster(plan, fleet, router=Random(), ids=ids)
    computed = 0
    for replica, ran in zip(fleet, run.replicas, strict=True):
        assert isinstance(replica.step_time, Counted)
        assert len(replica.step_time.plans) == len(ran.steps) > 0
        assert [step.duration for step in ran.steps] == pytest.approx([0.5] * len(ran.steps))
        computed += sum(replica.step_time.plans)
    assert computed == sum(request.prompt_tokens + request.output_tokens - 1 for request in plan)
    assert [len(line.token_times) for line in run.timelines] == [5] * 12


def test_copies_go_to_replicas_with_caches_of_their_own(pocket: Model) -> None:
    plan = Workload(Poisson(0.2), Lengths(FixedTokens(20), FixedTokens(2))).plan(1, requests=8)
    ids = PromptIds(range(5, pocket.shape.vocab_size))
    run = simulate_cluster(plan, list(replicas(pocket, 2)), sending=Tied(2), ids=ids)
    assert run.count("answered") == 8 and {call.outcome for call in run.calls} == {"answered"}


def test_a_cache_of_another_size_than_the_pool_is_refused(pocket: Model) -> None:
    plan = Workload(Poisson(1.0), Lengths(FixedTokens(200), FixedTokens(2))).plan(1, requests=1)
    small = EngineReplica(TimedSteps(pocket, 4), scheduler, vocabulary=pocket.shape.vocab_size)
    run = simulate_cluster(plan, [small], ids=PromptIds(range(5, 1024)))
    assert run.count("failed") == 1
    with pytest.raises(UnderloadError):
        TimedSteps(pocket, 0)
