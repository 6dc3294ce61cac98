"""The compiled CPU path beside the plain one: the same numbers, whatever it is fed and whoever helps."""

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numba import njit

from underload.decoder import Batch, Model, Weights
from underload.decoder.fast import FastPath, paged, unsupported, version
from underload.decoder.fast import step as compiled
from underload.decoder.fast import team as teams
from underload.decoder.fast.attend import CHUNK
from underload.decoder.fast.pack import as_numpy, pack, wide
from underload.decoder.fast.tile import narrow
from underload.request import BlockTable, Sequence, UnderloadError
from underload.shapes import ModelShape, RopeScaling

BASE = ModelShape(
    name="tiny", vocab_size=509, hidden_size=64, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=16,
    intermediate_size=112, max_positions=2048, tied=True,
)  # fmt: skip
LLAMA_3 = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=64)
SHAPES = {
    "llama": BASE,
    "own head": replace(BASE, tied=False),
    "one query a key": replace(BASE, num_kv_heads=4),
    "nine queries a key": replace(BASE, num_heads=9, num_kv_heads=1),
    "qwen2": replace(BASE, attention_bias=True),
    "qwen3": replace(BASE, qk_norm=True, head_dim=32, norm_eps=1e-6),
    "llama 3 rope": replace(BASE, rope_scaling=LLAMA_3, rope_theta=500_000.0),
    "no size a multiple of 16": replace(
        BASE,
        vocab_size=331,
        hidden_size=52,
        num_heads=5,
        num_kv_heads=5,
        head_dim=10,
        intermediate_size=90,
        attention_bias=True,
        qk_norm=True,
    ),
    "wide heads": replace(BASE, head_dim=128),
    "a page of floats": replace(BASE, hidden_size=1024, num_layers=1),  # rows a page apart, were they not kept from it
}


def weights_of(shape, seed=0, dtype=torch.float32):
    """Random weights in which nothing is neutral: biases, norms and directions all matter."""
    weights = Weights.random(shape, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    for tensor in weights.tensors():
        noise = torch.randn(tensor.shape, generator=generator)
        tensor += 0.3 * noise if tensor.dim() == 1 else 0.1 * noise
    if dtype != torch.float32:
        weights = Weights.from_tensors(shape, _named(shape, weights), dtype=dtype)
    return weights


def _named(shape, weights):
    from underload.decoder.weights import hugging_face_sizes

    return dict(zip(hugging_face_sizes(shape), weights.tensors(), strict=True))


def model_of(shape=BASE, path="fast", threads=2, weights=None):
    return Model(shape, weights or weights_of(shape), path=path, threads=threads)


def prompts_of(shape, lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, shape.vocab_size, n).tolist() for n in lengths]


def sequences_for(model, prompts, block_size, room, fill=None, kv_dtype=None):
    """A cache with its blocks dealt out in no order, and a sequence for each prompt."""
    counts = [-(-(len(ids) + room) // block_size) for ids in prompts]
    kv = model.new_kv(sum(counts) + 2, block_size, kv_dtype)
    if fill is not None:
        kv.keys.fill(fill)
        kv.values.fill(fill)
    blocks = iter(np.random.default_rng(5).permutation(sum(counts)).tolist())
    tables = [BlockTable(block_size, [next(blocks) for _ in range(count)]) for count in counts]
    return kv, [Sequence(len(ids), list(ids), table=table) for ids, table in zip(prompts, tables, strict=True)]


def run(model, prompts, new=4, block_size=16, chunk=1000, fill=None, kv_dtype=None):
    """Prefill in chunks, then decode greedily. Returns for each prompt the logits [new, vocab] and the token ids."""
    kv, sequences = sequences_for(model, prompts, block_size, new, fill, kv_dtype)
    logits = [[] for _ in prompts]
    while True:
        work = [
            (s, min(chunk, len(s.tokens) - s.num_computed)) for s in sequences if len(s.tokens) - s.prompt_len < new
        ]
        if not work:
            break
        batch = Batch.of(work)
        rows = iter(model.forward(batch, kv))
        for sequence, n in work:
            sequence.num_computed += n
            if sequence.num_computed == len(sequence.tokens):
                row = next(rows)
                logits[sequences.index(sequence)].append(row)
                sequence.tokens.append(int(row.argmax()))
    return [torch.stack(rows) for rows in logits], [s.output_ids for s in sequences]


def assert_close(actual, expected, bound=1e-5):
    assert torch.isfinite(actual).all()
    assert (actual - expected).abs().max() <= bound * expected.abs().max()


# -------------------------------------------------- the same numbers


@pytest.mark.parametrize("name", SHAPES)
def test_logits_agree_with_the_plain_path(name):
    shape = SHAPES[name]
    weights = weights_of(shape)
    prompts = prompts_of(shape, (1, 7, 20, 33))
    fast, _ = run(model_of(shape, weights=weights), prompts, chunk=9)
    plain, _ = run(model_of(shape, "plain", weights=weights), prompts, chunk=9)
    for a, b in zip(fast, plain, strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("name", ["llama", "qwen3", "no size a multiple of 16"])
def test_keys_and_values_agree_with_the_plain_path(name):
    shape = SHAPES[name]
    weights = weights_of(shape)
    prompts = prompts_of(shape, (19, 5))
    found = []
    for path in ("fast", "plain"):
        model = model_of(shape, path, weights=weights)
        kv, sequences = sequences_for(model, prompts, block_size=4, room=0)
        model.forward(Batch.of([(s, len(s.tokens)) for s in sequences]), kv)
        found.append([kv.read(s.table, len(s.tokens)) for s in sequences])
        kv.copy_blocks([(sequences[0].table.blocks[0], sequences[1].table.blocks[0])])
        found[-1].append(kv.read(sequences[1].table, 4))
    for (fast_k, fast_v), (plain_k, plain_v) in zip(*found, strict=True):
        assert fast_k.shape == plain_k.shape
        assert_close(fast_k, plain_k)
        assert_close(fast_v, plain_v)


def test_greedy_continuation_is_the_same_for_64_tokens():
    shape = SHAPES["llama"]
    weights = weights_of(shape)
    prompts = prompts_of(shape, (3, 11, 40))
    _, fast = run(model_of(shape, weights=weights), prompts, new=64)
    logits, plain = run(model_of(shape, "plain", weights=weights), prompts, new=64)
    excused = 0
    for a, b, rows in zip(fast, plain, logits, strict=True):
        if a == b:
            continue
        first = next(i for i in range(64) if a[i] != b[i])
        best = rows[first].topk(2).values
        assert best[0] - best[1] < 1e-4, f"token {first} differs, and the oracle's two best logits are {best.tolist()}"
        excused += 1
    assert excused <= 1  # near ties are rare: many would be a fault of ours


def test_greedy_ids_are_the_argmax_of_the_logits():
    model = model_of(replace(BASE, vocab_size=331))
    prompts = prompts_of(model.shape, (4, 9, 2, 30, 1))
    kv, sequences = sequences_for(model, prompts, 8, 0)
    batch = Batch.of([(s, len(s.tokens)) for s in sequences], all_logits=True)
    ids = model.greedy(batch, kv)
    assert ids == model.forward(batch, kv).argmax(-1).tolist()


# A key that falls on the other side of a rounding by the last bit of float32 differs by the last bit of 16.
ROUNDING = {torch.float32: 1e-5, torch.float16: 2e-4, torch.bfloat16: 2e-3}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_weights_keys_and_values_are_read_as_what_they_are(dtype):
    # Against the plain path on the same, rounded, weights held in float32: both then do float32 arithmetic.
    shape = SHAPES["qwen2"]
    weights = weights_of(shape, dtype=dtype)
    same_values = Weights.from_tensors(shape, _named(shape, weights), dtype=torch.float32)
    prompts = prompts_of(shape, (1, 12))
    fast, _ = run(model_of(shape, weights=weights), prompts, kv_dtype=dtype)
    plain, _ = run(model_of(shape, "plain", weights=same_values), prompts, kv_dtype=dtype)
    for a, b in zip(fast, plain, strict=True):
        assert_close(a, b, ROUNDING[dtype])


def test_a_prompt_longer_than_one_step():
    shape = replace(BASE, num_layers=2)
    weights = weights_of(shape)
    prompts = prompts_of(shape, (150, 300, 3))
    fast, _ = run(model_of(shape, weights=weights), prompts, new=2)
    plain, _ = run(model_of(shape, "plain", weights=weights), prompts, new=2)
    for a, b in zip(fast, plain, strict=True):
        assert_close(a, b)


def test_logits_of_every_token_and_of_rows_in_any_order():
    shape = replace(BASE, num_layers=1)
    model = model_of(shape)
    kv, sequences = sequences_for(model, prompts_of(shape, (200, 70)), 32, 0)
    batch = Batch.of([(s, len(s.tokens)) for s in sequences], all_logits=True)
    everything = model.forward(batch, kv)
    rows = np.array([269, 3, 150, 3, 0], dtype=np.int64)
    assert torch.equal(model.forward(replace(batch, logit_rows=rows), kv), everything[rows])
    nothing = model.forward(replace(batch, logit_rows=rows[:0]), kv)
    assert nothing.shape == (0, shape.vocab_size)


def test_logits_are_the_callers_to_keep():
    model = model_of()
    kv, (one, two) = sequences_for(model, prompts_of(BASE, (4, 6)), 8, 0)
    first = model.forward(Batch.of([(one, 4)]), kv)
    before = first.clone()
    model.forward(Batch.of([(two, 6)]), kv)
    assert torch.equal(first, before)


# -------------------------------------------------- bitwise, whatever the company


@pytest.fixture(scope="module")
def alone():
    """Model, prompts, and each prompt's logits when it runs alone with one thread."""
    shape = SHAPES["llama"]
    weights = weights_of(shape)
    prompts = prompts_of(shape, (1, 2, 5, 17, 64, 33, 130, 8, 7, 6, 5, 4, 3, 21, 22, 23, 24, 25))
    model = model_of(shape, weights=weights, threads=1)
    return weights, prompts, [run(model, [ids], block_size=200)[0][0] for ids in prompts]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("chunk, block_size", [(1000, 200), (7, 16), (1, 4), (64, 64), (33, 1)])
def test_logits_are_bitwise_the_same_in_any_company(alone, threads, chunk, block_size):
    weights, prompts, expected = alone
    model = model_of(weights=weights, threads=threads)
    actual, _ = run(model, prompts, chunk=chunk, block_size=block_size)
    for a, b in zip(actual, expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("neighbours", range(1, 18))
def test_every_number_of_rows_gives_the_same_bits(alone, neighbours):
    # each number of rows is another tile, or another split into tiles
    weights, prompts, expected = alone
    actual, _ = run(model_of(weights=weights), prompts[: neighbours + 1], new=4, block_size=16)
    for a, b in zip(actual, expected, strict=False):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_long_text_divided_among_threads_gives_the_same_bits(dtype):
    # Several chunks of attention: alone a text is divided by chunks and heads, in company not at all.
    shape = replace(BASE, num_layers=2)
    weights = weights_of(shape, dtype=dtype)
    prompts = prompts_of(shape, (CHUNK - 2, 3 * CHUNK + 1, 2 * CHUNK, 5, 9, 13))
    results = []
    for threads, chunk, block_size, together in ((1, 2000, 1024, 1), (2, 2000, 16, 1), (3, 90, 7, 2), (2, 300, 64, 6)):
        model = model_of(shape, weights=weights, threads=threads)
        groups = [prompts[i : i + together] for i in range(0, len(prompts), together)]
        results.append([rows for some in groups for rows in run(model, some, 4, block_size, chunk, kv_dtype=dtype)[0]])
    for other in results[1:]:
        for a, b in zip(other, results[0], strict=True):
            assert torch.equal(a, b)
    same_values = Weights.from_tensors(shape, _named(shape, weights), dtype=torch.float32)
    plain, _ = run(model_of(shape, "plain", weights=same_values), prompts, 4, kv_dtype=dtype)
    for a, b in zip(results[0], plain, strict=True):
        assert_close(a, b, ROUNDING[dtype])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_are_stored_in_16_bits_as_torch_stores_them(dtype):
    # Around every tie, at both ends of the range, and what is no number.
    exact = torch.arange(1 << 15, dtype=torch.int16).view(dtype).float()
    near = torch.cat([exact, (exact[:-1] + exact[1:]) / 2, exact.nextafter(torch.tensor(torch.inf))])
    near = torch.cat([near, -near, torch.tensor([torch.inf, -torch.inf, torch.nan, 3e38, 1e-45])])
    stored = np.zeros(len(near), dtype=as_numpy(torch.empty(0, dtype=dtype)).dtype)

    @njit
    def store(values, out):
        for i in range(len(values)):
            narrow(out, i, values[i])

    store(near.numpy(), stored)
    torch.testing.assert_close(torch.from_numpy(stored).view(dtype), near.to(dtype), rtol=0, atol=0, equal_nan=True)


# -------------------------------------------------- what must not be read, or believed


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_a_pool_full_of_nan_does_no_harm(block_size):
    model = model_of()
    prompts = prompts_of(BASE, (1, block_size - 1 or 1, block_size, block_size + 1, 33))
    clean, _ = run(model, prompts, block_size=block_size, chunk=6)
    poisoned, _ = run(model, prompts, block_size=block_size, chunk=6, fill=np.nan)
    for a, b in zip(poisoned, clean, strict=True):
        assert torch.equal(a, b)


def test_a_broken_sequence_does_not_break_its_neighbours():
    weights = weights_of(replace(BASE, tied=False))
    weights.embed[7] = torch.nan  # only who says 7 is ill
    model = model_of(replace(BASE, tied=False), weights=weights)
    prompts = [[1, 2, 3, 4], [1, 7, 3, 4], [5, 6]]
    kv, sequences = sequences_for(model, prompts, 4, 0)
    batch = Batch.of([(s, len(s.tokens)) for s in sequences], all_logits=True)
    finite = torch.isfinite(model.forward(batch, kv)).all(-1).tolist()
    assert finite == [True] * 4 + [True, False, False, False] + [True, True]
    ids = model.greedy(batch, kv)
    assert ids[5:8] == [-1] * 3 and min(ids[:5] + ids[8:]) >= 0


@pytest.mark.parametrize(
    "change, expected",
    [
        (lambda head: head.zero_(), 0),  # all equal: the first
        (lambda head: head.fill_(torch.nan), -1),
        (lambda head: head[200].fill_(torch.nan), -1),  # one NaN among good ones
        (lambda head: head.fill_(torch.inf), -1),
        (lambda head: head.fill_(-torch.inf), -1),
    ],
)  # fmt: skip
def test_greedy_refuses_a_row_without_a_largest_logit(change, expected):
    shape = replace(BASE, tied=False, num_layers=1)
    weights = weights_of(shape)
    weights.norm.zero_()  # the head's input is zero: 0 x inf is NaN too
    change(weights.head)
    if expected == -1:
        weights.norm.fill_(1.0)
    model = model_of(shape, weights=weights)
    kv, sequences = sequences_for(model, [[3, 1]], 4, 0)
    assert model.greedy(Batch.of([(sequences[0], 2)]), kv) == [expected]


def test_padding_of_the_vocabulary_is_never_chosen():
    shape = replace(BASE, vocab_size=5, tied=False, num_layers=1)
    weights = weights_of(shape)
    weights.layers[0].o.weight.zero_()
    weights.layers[0].down.weight.zero_()
    weights.embed.fill_(1.0)
    weights.norm.fill_(1.0)
    weights.head.fill_(-1.0)  # every real logit is negative, every padded one would be 0
    weights.head[3] = -0.5
    model = model_of(shape, weights=weights)
    kv, sequences = sequences_for(model, [[0, 4]], 4, 0)
    batch = Batch.of([(sequences[0], 2)])
    assert model.greedy(batch, kv) == [3]
    assert model.forward(batch, kv).shape == (1, 5)


def test_what_is_out_of_range_is_refused_and_nothing_is_lost():
    model = model_of()
    kv, (sequence,) = sequences_for(model, [[1, 2, 3, 4, 5]], 4, 0)
    good = Batch.of([(sequence, 5)])
    expected = model.forward(good, kv)
    for wrong, message in (
        (replace(good, token_ids=np.array([1, 2, 509, 4, 5])), "token id 509 .* 509"),
        (replace(good, token_ids=np.array([1, 2, -1, 4, 5])), "token id -1"),
        (replace(good, block_tables=np.array([[0, 99]], dtype=np.int32)), "block id 99 .* 4 blocks"),
        (replace(good, block_tables=np.array([[0]], dtype=np.int32)), "block id -1"),
        (replace(good, logit_rows=np.array([5])), "logit row 5"),
        (replace(good, positions=good.positions + 900), "positions must count up"),
        (replace(good, positions=good.positions[::-1].copy()), "positions must count up"),
        (replace(good, positions=good.positions - 1, context_lens=good.context_lens - 1), "from 0"),
        (replace(good, context_lens=good.context_lens - 1), "positions must count up"),
        (replace(good, query_lens=np.array([4], dtype=np.int32)), "4 in all for 5 token ids"),
        (replace(good, query_lens=np.array([6], dtype=np.int32)), "6 in all for 5 token ids"),
        (replace(good, block_tables=np.empty((0, 2), dtype=np.int32)), "one row a sequence, got 1, 1 and 0"),
    ):
        with pytest.raises(UnderloadError, match=message):
            model.forward(wrong, kv)
    assert torch.equal(model.forward(good, kv), expected)


@pytest.mark.parametrize(
    "other, path",
    [("one query a key", "fast"), ("wide heads", "fast"), ("a page of floats", "fast"), ("llama", "plain")],
)
def test_a_cache_of_another_model_is_refused(other, path):
    model = model_of()
    _, (sequence,) = sequences_for(model, [[1, 2, 3]], 4, 0)
    with pytest.raises(UnderloadError, match="not one of tiny on the fast path.* model.new_kv"):
        model.forward(Batch.of([(sequence, 3)]), model_of(SHAPES[other], path).new_kv(4, 4))


def test_what_is_not_supported_is_said():
    assert unsupported(BASE, torch.device("cpu"), torch.float32) is None
    assert "cuda" in unsupported(BASE, torch.device("cuda"), torch.float32)
    assert "float64" in unsupported(BASE, torch.device("cpu"), torch.float64)
    with pytest.raises(UnderloadError, match="threads must be at least 1"):
        FastPath(BASE, weights_of(BASE), threads=0)
    with pytest.raises(UnderloadError, match="at least one block"):
        model_of().new_kv(0, 16)


def test_without_numba_auto_is_the_plain_path(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)  # importing it fails now
    assert "numba" in unsupported(BASE, torch.device("cpu"), torch.float32)
    weights = weights_of(BASE)
    assert model_of(path="auto", weights=weights).path == "plain"
    with pytest.raises(UnderloadError, match="cannot run tiny here: numba .* path='plain'"):
        model_of(path="fast", weights=weights)


# -------------------------------------------------- packing


def test_panels_hold_every_weight_once_and_zeros_besides():
    shape = SHAPES["no size a multiple of 16"]
    weights = weights_of(shape)
    packed = pack(shape, weights)
    head = packed.matrices[shape.num_layers * packed.layer_matrices :].reshape(-1, wide(shape.hidden_size), 16)
    flat = head.transpose(0, 2, 1).reshape(-1, wide(shape.hidden_size))
    assert np.array_equal(flat[: shape.vocab_size, : shape.hidden_size], weights.head.numpy())
    assert not flat[shape.vocab_size :].any() and not flat[:, shape.hidden_size :].any()
    inside = sum(t.numel() for layer in weights.layers for t in _matrices(layer))
    assert np.count_nonzero(packed.matrices[: shape.num_layers * packed.layer_matrices]) == inside


def _matrices(layer):
    return [p.weight for p in (layer.q, layer.k, layer.v, layer.o, layer.gate, layer.up, layer.down)]


def test_float32_embedding_is_not_copied():
    weights = weights_of(BASE)
    assert as_numpy(weights.embed).ctypes.data == weights.embed.data_ptr()


# -------------------------------------------------- threads


def test_a_step_needs_no_helper():
    model = model_of(threads=4)
    prompts = prompts_of(BASE, (9, 3))
    expected, _ = run(model, prompts)
    team = model._path._team
    team.close()  # every helper gone for good
    try:
        actual, _ = run(model, prompts)
    finally:
        team._start()
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


def test_an_interrupted_step_is_finished_before_the_next():
    model = model_of()
    prompts = prompts_of(BASE, (9, 30))
    expected, _ = run(model, prompts)
    kv, sequences = sequences_for(model, prompts, 16, 0)
    batch = Batch.of([(s, len(s.tokens)) for s in sequences])
    model.forward(batch, kv)
    work, control, rest = model._path._job

    def interrupted(thread, *_):
        if thread == 0:
            raise KeyboardInterrupt

    model._path._job = (interrupted, control, rest)
    with pytest.raises(KeyboardInterrupt):
        model.forward(batch, kv)  # the step was offered, and the caller went away
    model._path._job = (work, control, rest)
    actual, _ = run(model, prompts)
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


def test_two_models_in_turn_and_from_two_threads():
    first, second = model_of(), model_of(SHAPES["qwen3"])
    expected = [run(m, prompts_of(m.shape, (9, 3, 40)))[0] for m in (first, second)]
    results = [[], []]

    def job(i, model):
        for _ in range(5):
            results[i].append(run(model, prompts_of(model.shape, (9, 3, 40)))[0])

    threads = [threading.Thread(target=job, args=(i, m)) for i, m in enumerate((first, second))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    for many, one in zip(results, expected, strict=True):
        assert len(many) == 5
        for again in many:
            assert all(torch.equal(a, b) for a, b in zip(again, one, strict=True))


def test_one_model_from_several_threads():
    model = model_of()
    lengths = ((3, 9), (500,), (40, 1, 7, 2), (200,))  # contexts of all sizes: buffers grow under the others' feet
    prompts = [prompts_of(BASE, some, seed=i) for i, some in enumerate(lengths)]
    expected = [run(model_of(), some)[1] for some in prompts]
    results = [[] for _ in prompts]

    def job(i):
        for _ in range(4):
            results[i].append(run(model, prompts[i])[1])

    threads = [threading.Thread(target=job, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert results == [[one] * 4 for one in expected]


def test_a_model_may_be_collected_while_another_is_at_work():
    model, gone = model_of(), model_of()
    for one in (gone, model):
        run(one, prompts_of(BASE, (5,)))
    path, release = model._path, gone._path._release
    thread = threading.Thread(target=lambda: path._team.run(path._job, release), daemon=True)
    thread.start()  # the collector may call `release` from within any line of Python, also one that holds the lock
    thread.join(20)
    assert not thread.is_alive()


def test_helpers_go_to_sleep_and_wake_up():
    import time

    model = model_of(threads=2)
    prompts = prompts_of(BASE, (5,))
    expected, _ = run(model, prompts)
    team = model._path._team
    deadline = time.monotonic() + 30
    while not team._asleep[1] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert team._asleep[1]
    actual, _ = run(model, prompts)
    assert torch.equal(actual[0], expected[0])


def test_a_closed_model_leaves_nothing_behind():
    model = model_of()
    run(model, prompts_of(BASE, (5,)))
    job = model._path._job
    assert model._path._team._job is job
    model.close()
    assert model._path._team._job is not job


def _script(body):
    code = (
        "import sys; sys.path[:0] = [" + repr(str(Path(__file__).parent)) + "]\nfrom test_fast_path import *\n" + body
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_computes_and_both_exit():
    done = _script(
        "import os, warnings; warnings.simplefilter('ignore')\n"
        "model = model_of(threads=3); prompts = prompts_of(BASE, (9, 3))\n"
        "expected = run(model, prompts)[0]\n"
        "child = os.fork()\n"
        "same = all(torch.equal(a, b) for a, b in zip(run(model, prompts)[0], expected))\n"
        "if child == 0: os._exit(0 if same else 1)\n"
        "print(same, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert done.stdout.split() == ["True", "0"], done.stderr


def test_the_interpreter_ends_cleanly_right_after_a_step():
    done = _script("model = model_of(threads=3); run(model, prompts_of(BASE, (9, 3)))\nprint('end')")
    assert (done.returncode, done.stdout.strip()) == (0, "end"), done.stderr


# -------------------------------------------------- the cache of compiled code


def test_compiled_code_is_keyed_by_every_source_of_the_package(tmp_path, monkeypatch):
    source = Path(compiled.__file__).parent
    for path in source.glob("*.py"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(version, "__file__", str(tmp_path / "version.py"))
    digest = version.digest()
    for module in (compiled, paged):
        for function in (module.prepare, module.work):
            assert digest in [cell.cell_contents for cell in function.py_func.__closure__]
    (tmp_path / "tile.py").write_text((tmp_path / "tile.py").read_text() + "\n# another\n")
    assert version.digest() != digest


def test_a_cache_folder_that_cannot_be_written_is_done_without():
    environment = os.environ | {
        "NUMBA_CACHE_DIR": os.path.join(os.devnull, "nowhere"),
        "NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator",
    }
    code = "from underload.decoder.fast.step import work as w; print(w.targetoptions['nogil'], type(w._cache).__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120)
    assert done.stdout.split() == ["True", "NullCache"], done.stderr


def test_helpers_share_one_team_a_size():
    assert model_of(threads=2)._path._team is model_of(SHAPES["qwen2"], threads=2)._path._team is teams.team(2)


def test_collecting_a_model_waits_for_nobody():
    # The collector may strike a helper that the thread with the team's lock is about to wake.
    model, gone = model_of(), model_of()
    for one in (gone, model):
        run(one, prompts_of(BASE, (5,)))
    team, collect = model._path._team, gone._path._release
    with team._lock:
        collector = threading.Thread(target=collect)
        collector.start()
        collector.join(20)
        assert not collector.is_alive() and len(team._let_go) == 1
    run(model, prompts_of(BASE, (5,)))
    assert not team._let_go
