"""A run of the real decoder, replayed on the virtual clock: the same steps, and the same instants to a nanosecond."""

from __future__ import annotations

import pytest

from underload.cache import BlockPool
from underload.decoder import DecoderExecutor, load_model
from underload.engine import Engine, serve
from underload.request import StepRecord, UnderloadError
from underload.scheduling import Continuous, Greedy, Scheduler
from underload.simulation import ServingRun, replay
from underload.workload import Lengths, Poisson, PromptIds, UniformTokens, Workload

BLOCKS, SIZE = 24, 8
SIZES = (
    "batch_size",
    "prefill_tokens",
    "decode_tokens",
    "padding_tokens",
    "context_tokens",
    "score_pairs",
    "logit_rows",
)


@pytest.fixture(scope="module")
def pocket():
    return load_model("pocket", path="plain")


def record(model, **options) -> ServingRun:
    """Thirty requests in less time than they take, through a pool that is too small for them."""
    load = Workload(Poisson(400.0), Lengths(UniformTokens(3, 60), UniformTokens(2, 40)))
    engine = Engine(Scheduler(BlockPool(BLOCKS, SIZE), **options), DecoderExecutor(model, BLOCKS, SIZE))
    serve(engine, load.plan(3, requests=30), PromptIds(model.shape.vocab_size, seed=1))
    return ServingRun.of(engine)


def sizes(step: StepRecord) -> list[int]:
    return [getattr(step, name) for name in SIZES]


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_seqs": 8, "max_num_batched_tokens": 32},
        {"max_num_seqs": 6, "max_num_batched_tokens": 64, "batching": Continuous(prefill="mixed")},
        {"max_num_seqs": 8, "max_num_batched_tokens": 64, "batching": Greedy(4)},
    ],
    ids=["decode first", "mixed", "greedy"],
)
def test_a_replay_is_the_run_itself(pocket, options):
    recorded = record(pocket, **options)
    again = replay(recorded, BlockPool(BLOCKS, SIZE), **options)
    assert list(map(sizes, again.steps)) == list(map(sizes, recorded.steps))
    for before, after in zip(recorded.timelines, again.timelines, strict=True):
        assert after.token_times == pytest.approx(before.token_times, rel=0, abs=1e-9)
        assert after.scheduled == pytest.approx(before.scheduled, rel=0, abs=1e-9)
        assert after.finished == pytest.approx(before.finished, rel=0, abs=1e-9)
        assert after.preemptions == before.preemptions
    assert len({step.batch_size for step in recorded.steps}) > 2
    if not isinstance(options.get("batching"), Greedy):  # (which reserves)
        assert sum(timeline.preemptions for timeline in recorded.timelines) > 0


def test_a_replay_under_another_scheduler_is_noticed(pocket):
    recorded = record(pocket, max_num_seqs=8, max_num_batched_tokens=32)
    with pytest.raises(UnderloadError, match=r"step \d+ was \(.*\) and is \(.*\); replay it with the pool"):
        replay(recorded, BlockPool(BLOCKS, SIZE), max_num_seqs=2, max_num_batched_tokens=32)
    shorter = ServingRun(recorded.requests, recorded.steps[:-5])
    with pytest.raises(UnderloadError, match=r"the run took \d+ steps and would have gone on, and \d+ were recorded"):
        replay(shorter, BlockPool(BLOCKS, SIZE), max_num_seqs=8, max_num_batched_tokens=32)


def test_what_did_not_run_to_its_end_is_not_replayed(pocket):
    recorded = record(pocket, max_num_seqs=8)
    recorded.requests[4].cancelled = True
    with pytest.raises(UnderloadError, match="request '4' has several samples or did not run to its end"):
        replay(recorded, BlockPool(BLOCKS, SIZE), max_num_seqs=8)
