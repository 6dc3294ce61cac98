"""Storage of keys and values on both paths: what is written comes back, copies keep their order, swaps lose nothing."""

import itertools
import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from underload.decoder import Batch, Model, Weights, blocks_for_memory, memory
from underload.request import BlockTable, Sequence, UnderloadError
from underload.shapes import ModelShape

TINY = ModelShape("tiny", 61, 32, 2, 4, 2, 8, 48, 64, tied=True)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
PATHS = ("plain", "fast")


@pytest.fixture(scope="module")
def models():
    weights = Weights.random(TINY, seed=3)
    return {path: Model(TINY, weights, path=path) for path in PATHS}


def blocks_of(kv):
    """The bits of every block, [blocks, ...], whatever the path: a copy."""
    pool = np.stack([part if isinstance(part, np.ndarray) else bits(part) for part in (kv.keys, kv.values)])
    return np.moveaxis(pool, 2, 0).copy()


def bits(tensor):
    return tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int16).numpy()


def fill(kv, seed):
    """Other content in every block, any bits but NaN's."""
    for number, part in enumerate((kv.keys, kv.values)):
        noise = torch.randn(tuple(part.shape), generator=torch.Generator().manual_seed(2 * seed + number)).to(kv.dtype)
        if isinstance(part, np.ndarray):
            part[:] = bits(noise).view(part.dtype)
        else:
            part.copy_(noise)
    return kv


@pytest.mark.parametrize("path", PATHS)
def test_what_a_step_wrote_is_read_back_by_table(models, path):
    kv = models[path].new_kv(5, 4)
    sequence = Sequence(6, [9, 8, 7, 6, 5, 4], table=BlockTable(4, [3, 1]))
    models[path].forward(Batch.of([(sequence, 6)]), kv)
    alone = models[path].new_kv(1, 6)
    whole = Sequence(6, list(sequence.tokens), table=BlockTable(6, [0]))
    models[path].forward(Batch.of([(whole, 6)]), alone)
    for paged, contiguous in zip(kv.read(sequence.table, 6), alone.read(whole.table, 6), strict=True):
        assert paged.shape == (2, 6, 2, 8)
        torch.testing.assert_close(paged, contiguous)
    keys, _ = kv.read(sequence.table, 5)
    assert torch.equal(keys, kv.read(sequence.table, 6)[0][:, :5])
    kv.keys[:] = 0.0
    assert keys.abs().sum() > 0  # a copy: what happens to the cache later does not show


@pytest.mark.parametrize("path, dtype", list(itertools.product(PATHS, DTYPES)), ids=str)
def test_memory_is_what_the_shape_says(models, path, dtype):
    kv = models[path].new_kv(4, 4, dtype)
    head = 8 if path == "plain" else 16  # whole vectors
    assert kv.dtype == dtype
    assert kv.nbytes == 4 * 4 * TINY.kv_bytes_per_token(dtype.itemsize) * head / TINY.head_dim
    assert kv.new_host(3).nbytes == kv.nbytes * 3 / 4
    assert models[path].new_kv(4, 4, str(dtype).removeprefix("torch.")).nbytes == kv.nbytes


def test_the_caches_own_dtype_is_the_models_or_float32_on_the_fast_path():
    weights = Weights.random(TINY, seed=3, dtype=torch.bfloat16)
    assert Model(TINY, weights, path="plain").new_kv(1, 4).dtype == torch.bfloat16
    assert Model(TINY, weights, path="fast").new_kv(1, 4).dtype == torch.float32


@pytest.mark.parametrize("path, dtype", list(itertools.product(PATHS, DTYPES)), ids=str)
@given(pairs=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12))
@settings(max_examples=25, deadline=None)
def test_copies_are_made_one_after_the_other(models, path, dtype, pairs):
    kv = fill(models[path].new_kv(7, 3, dtype), seed=1)
    expected = blocks_of(kv)
    for source, destination in pairs:
        expected[destination] = expected[source]
    kv.copy_blocks(pairs)
    assert np.array_equal(blocks_of(kv), expected)


@pytest.mark.parametrize("path, dtype", list(itertools.product(PATHS, DTYPES)), ids=str)
def test_blocks_come_back_from_the_host_as_they_went(models, path, dtype):
    kv = fill(models[path].new_kv(80, 3, dtype), seed=1)
    host = kv.new_host(70)
    before = blocks_of(kv)
    order = np.random.default_rng(0).permutation(80)[:70].tolist()  # more than cross the bus in one go
    kv.swap_out(list(zip(order, range(70), strict=True)), host)
    assert np.array_equal(blocks_of(kv), before)  # going out changes nothing here
    fill(kv, seed=2)  # others take the blocks
    later = blocks_of(kv)
    homes = np.random.default_rng(1).permutation(80)[:70].tolist()
    kv.swap_in(list(zip(range(70), homes, strict=True)), host)
    later[homes] = before[order]
    assert np.array_equal(blocks_of(kv), later)


@pytest.mark.parametrize("path", PATHS)
def test_a_block_that_is_named_twice_keeps_what_came_last(models, path):
    kv = fill(models[path].new_kv(4, 3), seed=1)
    before, host = blocks_of(kv), kv.new_host(2)
    kv.swap_out([(0, 1), (2, 1), (3, 0)], host)
    kv.swap_in([(0, 1), (1, 0), (1, 1)], host)
    assert np.array_equal(blocks_of(kv)[[0, 1]], before[[2, 2]])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("bad", [(-1, 0), (0, -1), (4, 0), (0, 4)])
def test_an_id_that_is_no_blocks_is_refused_before_anything_moves(models, path, bad):
    kv = fill(models[path].new_kv(4, 3), seed=1)
    host, before = kv.new_host(4), blocks_of(kv)
    stored = np.asarray(host.data).copy()
    for call in (kv.copy_blocks, lambda p: kv.swap_out(p, host), lambda p: kv.swap_in(p, host)):
        with pytest.raises(UnderloadError, match=re.escape(f"block {bad[0]} to block {bad[1]}: sources are 0 to 3")):
            call([(0, 1), bad])
    assert np.array_equal(blocks_of(kv), before) and np.array_equal(np.asarray(host.data), stored, equal_nan=True)


@pytest.mark.parametrize("path", PATHS)
def test_host_blocks_of_another_cache_are_refused(models, path):
    kv = models[path].new_kv(4, 3)
    other = "fast" if path == "plain" else "plain"
    for host in (
        models[path].new_kv(4, 2).new_host(2),
        models[path].new_kv(4, 3, "float16").new_host(2),
        models[other].new_kv(4, 3).new_host(2),
    ):
        for swap in (kv.swap_out, kv.swap_in):
            with pytest.raises(UnderloadError, match="make them with its new_host"):
                swap([(0, 0)], host)


@pytest.mark.parametrize("path", PATHS)
def test_a_host_without_blocks_takes_none(models, path):
    kv = models[path].new_kv(4, 3)
    host = kv.new_host(0)
    kv.swap_out([], host)
    with pytest.raises(UnderloadError, match="destinations 0 to -1"):
        kv.swap_out([(0, 0)], host)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "size, says",
    [
        ((0, 4), "0 blocks of 4"),
        ((4, 0), "4 blocks of 0"),
        ((4, 4, "int8"), "int8"),
        ((4, 4, torch.float64), "float64"),
    ],
)
def test_a_cache_that_cannot_be_is_refused(models, path, size, says):
    with pytest.raises(UnderloadError, match=says):
        models[path].new_kv(*size)


@pytest.mark.parametrize("path, block_size", list(itertools.product(PATHS, (1, 16))))
def test_a_budget_is_filled_and_never_passed(models, path, block_size):
    model = models[path]
    for budget, dtype in ((1e6, None), (1_000_000, "float16"), (123_456, "float32")):
        count = blocks_for_memory(model, block_size, budget, dtype)
        assert (
            model.new_kv(count, block_size, dtype).nbytes <= budget < model.new_kv(count + 1, block_size, dtype).nbytes
        )


def test_without_a_budget_a_cpu_gives_half_of_what_is_free(models, monkeypatch):
    each = models["plain"].new_kv(1, 16).nbytes
    monkeypatch.setattr(memory, "free_memory", lambda device: 21.0 * each)
    assert blocks_for_memory(models["plain"], 16) == math.floor(21 * memory.CPU_SHARE)
    monkeypatch.setattr(memory, "free_memory", lambda device: 1.0 * each)
    with pytest.raises(UnderloadError, match=f"16 tokens takes {each:,} bytes, and 50% of the .* GB that are free is"):
        blocks_for_memory(models["plain"], 16)
    monkeypatch.setattr(memory, "free_memory", lambda device: None)
    with pytest.raises(UnderloadError, match="does not say.*bytes="):
        blocks_for_memory(models["plain"], 16)


def test_a_budget_below_one_block_names_both_sizes(models):
    with pytest.raises(UnderloadError, match="4,096 bytes, and the budget given is 4,095"):
        blocks_for_memory(models["plain"], 16, 4095)
