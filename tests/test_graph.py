"""Captured decode steps: the sizes, the buffers and what comes out of them, by a capture that only calls; and by real
graphs where there is a GPU.

What a graph computes is what lies in its buffers, so calling the step again stands for replaying it.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed (it exists for Linux only)")

from underload.cache import BlockPool
from underload.decoder import Batch, DecoderExecutor, Model, Weights, attention_triton, fused, invariant, kernels
from underload.decoder.batch import fill_in
from underload.decoder.graph import SIZES, DecodeGraphs, capture_on_gpu, decode_graphs, size_for
from underload.engine import Engine
from underload.request import BlockTable, FinishReason, Request, SamplingParams, Sequence, Timeline, UnderloadError
from underload.scheduling import Scheduler, Static
from underload.shapes import ModelShape

DEVICE = torch.device("cpu" if kernels.INTERPRETED else "cuda")
SHAPE = ModelShape("tiny", 61, 16, 1, 2, 1, 8, 24, 256)
BLOCK_SIZE = 4
SCRATCH = 99


@pytest.fixture(scope="module")
def weights():
    made = Weights.random(SHAPE, seed=3, device=DEVICE)
    for tensor in made.tensors():
        if tensor.dim() == 2:  # as drawn, logits hardly depend on the context
            tensor.mul_(12.0)
    return made


class Captured:
    """Counts what is captured, and replays by calling."""

    def __init__(self):
        self.captured = self.replayed = 0

    def __call__(self, run):
        self.captured += 1

        def replay():
            self.replayed += 1
            run()

        return replay


class Bench:
    """A model, a cache of random numbers, and batches of one token for sequences with contexts of given lengths."""

    def __init__(self, weights, capture=None, *, batch_invariant=False, must=True):
        self.model = Model(SHAPE, weights, attention="triton", batch_invariant=batch_invariant)
        self.kv = self.model.new_kv(SCRATCH + 1, BLOCK_SIZE)
        generator = torch.Generator().manual_seed(7)
        for pool in (self.kv.keys, self.kv.values):
            pool.copy_(torch.randn(pool.shape, generator=generator))
            pool[:, SCRATCH] = torch.nan
        self.capture = capture or Captured()
        self.graphs = DecodeGraphs(self.model.plain_path, self.kv, SCRATCH, self.capture, must=must)

    def batch(self, contexts, *, new=1, seed=0):
        rng = np.random.default_rng(seed)
        blocks, work = list(rng.permutation(SCRATCH)), []
        for context in contexts:
            mine, blocks = blocks[: -(-context // BLOCK_SIZE)], blocks[-(-context // BLOCK_SIZE) :]
            tokens = rng.integers(0, 61, context).tolist()
            table = BlockTable(BLOCK_SIZE, [int(block) for block in mine])
            work.append((Sequence(context, tokens, num_computed=context - new, table=table), new))
        return Batch.of(work)

    def both(self, batch):
        """The batch's logits by a graph and without: with the cache that each leaves behind."""
        before = [pool.clone() for pool in (self.kv.keys, self.kv.values)]
        replay = self.graphs.replay(batch)
        ids = replay.ids.tolist()
        assert ids == replay.logits.argmax(-1).tolist()
        by_graph = replay.logits.clone(), [pool[:, :SCRATCH].clone() for pool in (self.kv.keys, self.kv.values)]
        for pool, was in zip((self.kv.keys, self.kv.values), before, strict=True):
            pool.copy_(was)
        plain = self.model.forward(batch, self.kv)
        return by_graph, (plain, [pool[:, :SCRATCH] for pool in (self.kv.keys, self.kv.values)])


def test_a_batch_goes_into_the_smallest_size_that_holds_it():
    assert [size_for(rows) for rows in (1, 2, 3, 4, 5, 8, 9, 16, 17, 255, 256, 257)] == [
        1, 2, 4, 4, 8, 8, 16, 16, 24, 256, 256, None,
    ]  # fmt: skip
    assert size_for(0) is None
    assert all(size_for(size) == size for size in SIZES)


def test_a_replay_gives_the_logits_and_the_cache_of_the_path_itself(weights):
    bench = Bench(weights)
    for contexts in ([5], [1, 9, 30], [4, 2, 17, 8, 1], [7, 12]):
        (logits, stored), (wanted, cache) = bench.both(bench.batch(contexts, seed=len(contexts)))
        assert len(logits) == len(contexts)
        torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-5)
        for got, pool in zip(stored, cache, strict=True):
            torch.testing.assert_close(got, pool, rtol=0, atol=1e-6)  # nothing but the new tokens' slots was written


def test_a_size_is_captured_once_and_replayed_on_what_lies_there_now(weights):
    bench = Bench(weights)
    for seed, contexts in enumerate(([3, 8, 5], [9, 1, 1, 6], [2, 2, 2])):
        (logits, _), (wanted, _) = bench.both(bench.batch(contexts, seed=seed))
        torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-5)
    assert (bench.capture.captured, bench.capture.replayed, bench.graphs.sizes) == (1, 3, [4])
    bench.graphs.replay_again(4)
    assert (bench.capture.captured, bench.capture.replayed) == (1, 4)


def test_contexts_are_split_anew_in_each_step(weights, monkeypatch):
    """The number of splits is the graph's, and how long they are is the step's."""
    monkeypatch.setattr(attention_triton, "_SHORTEST_SPLIT", 64)
    monkeypatch.setattr(attention_triton, "_processors", lambda device: 1)
    bench = Bench(weights)
    splits, attend = [], attention_triton.attend
    monkeypatch.setattr(
        attention_triton,
        "attend",
        lambda *args, plan: (
            splits.append((plan.launches[0].num_splits, int(plan.launches[0].split))) or attend(*args, plan=plan)
        ),
    )
    for contexts in ([5, 3], [200, 20]):
        batch = bench.batch(contexts)
        replay = bench.graphs.replay(batch)
        torch.testing.assert_close(replay.logits, bench.model.forward(batch, bench.kv), rtol=0, atol=1e-5)
    by_graph = [one for one in splits if one[0] == 4]  # the path itself takes no more than it needs
    assert [split for _, split in by_graph] == [64, 128]


def test_splits_are_never_more_than_a_graph_has_room_for():
    device = torch.device("cpu")
    for rows, longest in ((1, 131_072), (8, 8192), (64, 512), (256, 4096)):
        most = attention_triton.decode_splits(rows, 8, longest, device, invariant=False)
        for contexts in (np.full(rows, longest), np.array([longest, *[1] * (rows - 1)]), np.full(rows, 1)):
            split = attention_triton.decode_split(contexts, 8, most, device, invariant=False)
            assert 1 <= -(-int(contexts.max()) // split) <= most <= attention_triton.MOST_SPLITS
    assert attention_triton.decode_splits(1, 8, 131_072, device, invariant=False) > 30  # one row keeps a GPU busy


def test_a_batch_that_is_filled_up_is_bitwise_the_one_that_is_not(weights):
    bench = Bench(weights, batch_invariant=True)
    for contexts in ([5], [1, 9, 30]):
        (logits, stored), (wanted, cache) = bench.both(bench.batch(contexts, seed=len(contexts)))
        assert torch.equal(logits, wanted)
        assert all(torch.equal(got, pool) for got, pool in zip(stored, cache, strict=True))


def test_what_is_no_decode_step_is_left_to_the_path(weights):
    bench = Bench(weights)
    assert bench.graphs.replay(bench.batch([8, 9], new=2)) is None
    wide = Batch.of([(Sequence(1, [1], table=BlockTable(BLOCK_SIZE, [0])), 1) for _ in range(SIZES[-1] + 1)])
    assert bench.graphs.replay(wide) is None
    table = BlockTable(BLOCK_SIZE, list(range(65)))
    long = Batch.of([(Sequence(260, [1] * 260, num_computed=256, table=table), 1)])
    assert bench.graphs.replay(long) is None  # longer than the model's 256 positions
    assert bench.capture.captured == 0


def test_sizes_can_be_captured_beforehand_the_largest_first(weights):
    order = []
    bench = Bench(weights, capture=lambda run: order.append(run.args[0]) or run)
    bench.graphs.prepare(5)
    assert order == [8, 4, 2, 1] and bench.graphs.sizes == [1, 2, 4, 8]
    assert bench.graphs.replay(bench.batch([3, 4, 5])) is not None and order == [8, 4, 2, 1]


def test_a_capture_that_fails_is_said_and_done_without_unless_graphs_must_be(weights):
    def fails(run):
        raise RuntimeError("operation not permitted when stream is capturing")

    bench = Bench(weights, capture=fails, must=False)
    with pytest.warns(UserWarning, match="without captured graphs.*2 rows.*not permitted.*graphs=False"):
        assert bench.graphs.replay(bench.batch([3, 4])) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bench.graphs.replay(bench.batch([3, 4])) is None
    with pytest.raises(RuntimeError, match="not permitted"):
        Bench(weights, capture=fails).graphs.replay(bench.batch([3, 4]))


def test_graphs_where_there_can_be_none_are_refused_with_the_reason(weights):
    model = Model(SHAPE, weights, path="plain", attention="torch")
    kv = model.new_kv(4, 4)
    assert decode_graphs(model, kv, 3, "auto") is None and decode_graphs(model, kv, 3, False) is None
    with pytest.raises(UnderloadError, match="graphs=True cannot be had here: .*use graphs='auto'"):
        DecoderExecutor(model, 4, 4, graphs=True)
    with pytest.raises(UnderloadError, match="graphs must be 'auto', True or False, got 'always'"):
        DecoderExecutor(model, 4, 4, graphs="always")


PROMPTS = [[1, 2, 3], [7, 3, 9, 1, 4, 4], [5]]
WISHES = [
    SamplingParams(max_tokens=6, temperature=0, ignore_eos=True),
    SamplingParams(max_tokens=3, temperature=0, ignore_eos=True),
    SamplingParams(max_tokens=5, temperature=0.9, seed=4, logprobs=2, ignore_eos=True),
]


def serve(executor, wishes=WISHES, lookahead=0, **limits):
    engine = Engine(Scheduler(BlockPool(40, BLOCK_SIZE), **limits), executor, lookahead=lookahead)
    requests = [
        Request(str(index), list(prompt), params, Timeline(engine.clock.now()))
        for index, (prompt, params) in enumerate(zip(PROMPTS, wishes, strict=True))
    ]
    for request in requests:
        engine.add(request)
    engine.run()
    assert engine.aborted == 0
    return requests


@pytest.mark.parametrize("limits", [{}, {"batching": Static(3)}, {"max_num_batched_tokens": 4}])
def test_an_engine_says_the_same_with_graphs_and_without(weights, limits):
    model = Model(SHAPE, weights, attention="triton")
    plain, fast = (DecoderExecutor(model, 40, BLOCK_SIZE, graphs=False) for _ in range(2))
    capture = Captured()
    fast.graphs = DecodeGraphs(model.plain_path, fast.kv, 40, capture)
    said = [[request.sequences[0].output_ids for request in serve(one, **limits)] for one in (plain, fast)]
    assert said[0] == said[1]
    assert capture.replayed >= 4


@pytest.mark.parametrize(
    "lookahead, limits", [(1, {}), (2, {"batching": Static(3)}), (2, {"max_num_batched_tokens": 4})]
)
def test_tokens_that_only_the_device_has_seen_are_the_same(weights, lookahead, limits):
    model = Model(SHAPE, weights, attention="triton")
    wishes = [*WISHES[:2], SamplingParams(max_tokens=5, temperature=0, ignore_eos=True)]
    plain, fast = (DecoderExecutor(model, 40, BLOCK_SIZE, graphs=False) for _ in range(2))
    capture = Captured()
    fast.graphs = DecodeGraphs(model.plain_path, fast.kv, 40, capture)
    open_ones = []
    replay = fast.graphs.replay
    fast.graphs.replay = lambda batch: open_ones.append(bool((batch.token_ids < 0).any())) or replay(batch)
    said = [[r.sequences[0].output_ids for r in serve(plain, wishes, **limits)]]
    said.append([r.sequences[0].output_ids for r in serve(fast, wishes, lookahead, **limits)])
    assert said[0] == said[1]
    assert sum(open_ones) >= 4 and capture.replayed >= 4


def test_places_of_tokens_are_filled_in_and_a_broken_one_is_token_0():
    ids = torch.tensor([5, -1, -3, 0, -2], device=DEVICE)
    drawn = torch.tensor([7, -1, 9], device=DEVICE)
    assert fill_in(ids, drawn).tolist() == [5, 7, 9, 0, 0]


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_row_without_a_law_fails_alone_in_a_graph_too(lookahead):
    weights = Weights.random(SHAPE, seed=3, device=DEVICE)
    weights.embed[5] = torch.nan
    model = Model(SHAPE, weights, attention="triton")
    plain = DecoderExecutor(model, 40, BLOCK_SIZE, graphs=False)
    fast = DecoderExecutor(model, 40, BLOCK_SIZE, graphs=False)
    fast.graphs = DecodeGraphs(model.plain_path, fast.kv, 40, Captured())
    greedy = [SamplingParams(max_tokens=3, temperature=0, ignore_eos=True, logit_bias={}) for _ in PROMPTS]
    for executor in (plain, fast):
        sound, other, broken = serve(executor, greedy, lookahead)
        assert broken.sequences[0].finish_reason is FinishReason.ERROR and "NaN" in broken.error
        assert [r.sequences[0].finish_reason for r in (sound, other)] == [FinishReason.LENGTH] * 2


# ---- the fused steps -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("size", [8, 48, 576])
def test_a_sum_and_its_norm_are_those_of_two_steps(size, dtype):
    generator = torch.Generator().manual_seed(size)
    x, change = (torch.randn(5, size, generator=generator).to(DEVICE, dtype) for _ in range(2))
    weight = torch.randn(size, generator=generator).to(DEVICE, dtype)
    total, normed = fused.add_rms_norm(x, change, weight, 1e-5)
    assert torch.equal(total, x + change)
    assert torch.equal(normed, invariant.rms_norm(x + change, weight, 1e-5))
    assert fused.add_rms_norm(x[:0], change[:0], weight, 1e-5)[1].shape == (0, size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_gated_product_is_that_of_two_steps(dtype):
    generator = torch.Generator().manual_seed(1)
    gate, up = (torch.randn(3, 700, generator=generator).mul(4).to(DEVICE, dtype) for _ in range(2))
    gate[0, :4] = torch.tensor([0.0, -200.0, 200.0, -0.0])
    got, wanted = fused.silu_mul(gate, up), torch.nn.functional.silu(gate) * up
    torch.testing.assert_close(got, wanted, rtol=1e-6 if dtype == torch.float32 else 2e-3, atol=1e-6)
    assert fused.silu_mul(gate[:0], up[:0]).shape == (0, 700)


# ---- on a GPU ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device: a graph is captured on one only")
def test_a_graph_replays_what_was_captured(weights):
    bench = Bench(weights, capture=capture_on_gpu())
    for seed, contexts in enumerate(([3, 8, 5], [9, 1, 1, 6], [100, 2])):
        (logits, _), (wanted, _) = bench.both(bench.batch(contexts, seed=seed))
        torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-5)
