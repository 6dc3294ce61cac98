"""The Triton kernels against the oracle, in Triton's interpreter where there is no GPU (see conftest.py)."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from test_attention import paged

pytest.importorskip("triton", reason="triton is not installed (it exists for Linux only)")

from underload.decoder import attention_triton, kernels
from underload.decoder.attention import paged_attention
from underload.decoder.attention_triton import AttentionPlan, attend, rotate_write
from underload.decoder.kv import PlainKV
from underload.decoder.rope import cos_sin, inverse_frequencies, rotate
from underload.request import UnderloadError
from underload.shapes import shape

DEVICE = torch.device("cpu" if kernels.INTERPRETED else "cuda")
RAGGED = [(1, 1), (5, 5), (1, 17), (3, 16), (9, 30), (1, 33)]


def inputs(sequences, block_size, heads, kv_heads, dim, *, seed=0, dtype=torch.float32, kv_dtype=None):
    """q, a pool whose unwritten slots are NaN, the tables, and the two lengths: the arguments of an attention."""
    keys, values, tables, _ = paged(sequences, block_size, kv_heads, dim, fill=math.nan, seed=seed)
    new, context = ([pair[i] for pair in sequences] for i in (0, 1))
    q = torch.randn(sum(new), heads, dim, generator=torch.Generator().manual_seed(seed + 1)).to(DEVICE, dtype)
    keys, values = (pool.to(DEVICE, kv_dtype or dtype) for pool in (keys, values))
    return q, keys, values, tables.to(DEVICE), new, context


def planned(arguments, **how):
    q, keys, values, tables, new, context = arguments
    return attend(
        q, keys, values, AttentionPlan.of(new, context, tables, heads=q.shape[1], kv_heads=keys.shape[2], **how)
    )


def error(got, arguments):
    return (got.float() - paged_attention(*arguments, implementation="torch").float()).abs().max().item()


@pytest.mark.parametrize(
    "block_size, heads, kv_heads, dim",
    [(1, 4, 4, 8), (3, 6, 2, 48), (16, 8, 1, 80), (4, 3, 1, 96), (256, 10, 2, 16), (16, 20, 1, 64)],
)
def test_a_ragged_batch_of_decoding_chunks_and_drafts_equals_the_oracle(block_size, heads, kv_heads, dim):
    arguments = inputs(RAGGED, block_size, heads, kv_heads, dim)
    assert error(paged_attention(*arguments, implementation="triton"), arguments) < 1e-5


@pytest.mark.parametrize("split_tokens", [5, 16, 20])
def test_splits_of_any_length_put_together_equal_the_oracle(split_tokens):
    arguments = inputs([(1, 33), (1, 7), (4, 22)], 4, 4, 2, 8)
    assert error(planned(arguments, split_tokens=split_tokens), arguments) < 1e-5


def test_more_splits_than_are_put_together_at_once_equal_the_oracle():
    arguments = inputs([(1, 70), (1, 3)], 16, 2, 1, 8)
    arguments[1][arguments[3][0, 4]] *= 10  # the largest score is in the last block, and so in the last splits
    assert error(planned(arguments, split_tokens=4), arguments) < 1e-5  # 18 splits, 16 at once


def test_random_batches_equal_the_oracle():
    rng = np.random.default_rng(5)
    for seed in range(6):
        contexts = rng.integers(1, 60, size=rng.integers(1, 4))
        sequences = [(int(rng.integers(1, min(context, 30) + 1)), int(context)) for context in contexts]
        kv_heads, group = int(rng.integers(1, 3)), int(rng.integers(1, 9))
        arguments = inputs(sequences, int(rng.integers(1, 40)), kv_heads * group, kv_heads, 8, seed=seed)
        how = {"split_tokens": 24} if seed % 2 and sum(arguments[4]) * group * kv_heads < 100 else {}
        assert error(planned(arguments, **how), arguments) < 1e-5, (sequences, kv_heads, group)


@pytest.mark.parametrize(
    "dtype, kv_dtype, bound",
    [
        # The kernel and the oracle start from the same rounded numbers; a 16-bit result is rounded once more.
        (torch.float32, torch.bfloat16, 1e-5),
        (torch.float32, torch.float16, 1e-5),
        (torch.bfloat16, torch.bfloat16, 2e-2),
        (torch.float16, torch.float16, 2e-3),
    ],
)
def test_narrow_numbers_are_read_right(dtype, kv_dtype, bound):
    arguments = inputs([(1, 19), (6, 6)], 4, 4, 2, 16, dtype=dtype, kv_dtype=kv_dtype)
    got = planned(arguments)
    assert got.dtype == dtype and error(got, arguments) < bound
    assert error(planned(arguments, split_tokens=8), arguments) < bound


def test_a_pool_that_is_a_view_with_strides_of_its_own():
    q, keys, values, *rest = inputs([(1, 9), (3, 6)], 4, 4, 2, 8)
    blocks, size = keys.shape[:2]
    wide = torch.full((blocks, size, 4, 16), math.nan, device=DEVICE)
    turned = torch.full((size, 2, blocks, 8), math.nan, device=DEVICE).permute(2, 0, 1, 3)
    wide[:, :, 1::2, ::2], turned[:] = keys, values
    keys, values = wide[:, :, 1::2, ::2], turned
    q = q.transpose(0, 1).contiguous().transpose(0, 1)  # heads outermost
    arguments = (q, keys, values, *rest)
    assert not keys.is_contiguous() and not q.is_contiguous()
    assert error(planned(arguments), arguments) < 1e-5


def test_blocks_shared_between_sequences():
    q, keys, values, tables, new, context = inputs([(1, 12), (4, 10), (1, 8)], 4, 4, 2, 8)
    tables[1, :2], tables[2, :2] = tables[0, :2], tables[0, :2]
    arguments = (q, keys, values, tables, new, context)
    assert error(planned(arguments), arguments) < 1e-5


def test_query_heads_are_repeated_not_tiled():
    values = torch.ones(1, 4, 2, 8, device=DEVICE)
    values[:, :, 1] = 2
    tables = torch.zeros(1, 1, dtype=torch.int32, device=DEVICE)
    out = paged_attention(
        torch.randn(1, 4, 8).to(DEVICE), torch.randn(1, 4, 2, 8).to(DEVICE), values, tables, [1], [4],
        implementation="triton",
    )  # fmt: skip
    assert out[0, :, 0].tolist() == pytest.approx([1, 1, 2, 2])


def test_two_new_queries_on_five_keys_see_four_and_five():
    values = torch.arange(1.0, 6.0, device=DEVICE).reshape(1, 5, 1, 1).expand(1, 5, 1, 8)
    tables = torch.zeros(1, 1, dtype=torch.int32, device=DEVICE)
    out = paged_attention(
        torch.zeros(2, 1, 8, device=DEVICE), torch.zeros(1, 5, 1, 8, device=DEVICE), values, tables, [2], [5],
        implementation="triton",
    )  # fmt: skip
    assert out[:, 0, 0].tolist() == pytest.approx([2.5, 3.0])  # the means of 1..4 and of 1..5


# -------------------------------------------------- the plan


def plan(new, context, **how):
    tables = torch.zeros(len(new), 1, dtype=torch.int32)
    return AttentionPlan.of(new, context, tables, **({"heads": 8, "kv_heads": 2} | how))


def test_every_query_is_in_one_tile_and_decoding_apart_from_chunks():
    new, context = [1, 300, 4, 5, 0, 1], [900, 300, 50, 70, 9, 1]
    narrow, wide = plan(new, context, split_tokens=2000).launches
    assert (narrow.tile_rows, narrow.tile_tokens, wide.tile_rows, wide.tile_tokens) == (16, 4, 128, 32)
    assert sorted(narrow.tiles[:, 0].tolist()) == [0, 2, 5] and set(wide.tiles[:, 0].tolist()) == {1, 3}
    seen = [
        (sequence, query)
        for launch in (narrow, wide)
        for sequence, first, _ in launch.tiles.tolist()
        for query in range(first, min(first + launch.tile_tokens, new[sequence]))
    ]
    assert sorted(seen) == [(s, query) for s, n in enumerate(new) for query in range(n)]


def test_partial_results_have_a_row_for_each_query_and_say_what_it_sees():
    new, context = [1, 40, 3], [100, 60, 30]
    made = plan(new, context, split_tokens=16)
    assert made.sequences.tolist() == [[0, 1, 100], [1, 40, 60], [41, 3, 30]]
    narrow, wide = made.launches
    assert narrow.queries.tolist() == [[0, 100], [41, 28], [42, 29], [43, 30]]
    assert wide.queries.tolist() == [[1 + i, 21 + i] for i in range(40)]
    assert narrow.tiles.tolist() == [[0, 0, 0], [2, 0, 1]]  # sequence, first query, first row
    assert wide.tiles.tolist() == [[1, 0, 0], [1, 32, 32]]
    assert (narrow.num_splits, wide.num_splits) == (7, 4)


def test_few_long_contexts_are_split_and_many_are_not():
    few = plan([1], [32_768]).launches[0]
    assert few.num_splits > 50 and int(few.split) % 64 == 0
    assert plan([1] * 256, [4096] * 256).launches[0].num_splits == 1
    assert plan([1], [200]).launches[0].num_splits == 1  # shorter than the shortest split
    # One long context among short ones is split as finely as its share of the work asks for.
    ragged = plan([1] * 64, [32_768] + [512] * 63).launches[0]
    assert 8 < ragged.num_splits < few.num_splits


def test_under_batch_invariance_all_take_one_way():
    """Decoding and chunks, contexts of one split and of many: the same tile, the same kernels."""
    for new, context in (([1], [3]), ([1], [5000]), ([700], [900])):
        made = plan(new, context, invariant=True)
        assert {(launch.tile_rows, launch.tile_tokens, int(launch.split)) for launch in made.launches} == {
            (64, 16, 512)
        }
        assert sum(len(launch.queries) for launch in made.launches) == new[0]


def test_partial_results_are_made_a_bounded_number_at_a_time(monkeypatch):
    arguments = inputs([(1, 9), (30, 40), (1, 30)], 8, 4, 2, 8)
    whole = planned(arguments, invariant=True, split_tokens=16)
    monkeypatch.setattr(attention_triton, "_MOST_PARTIAL", 1)
    q, keys, values, tables, new, context = arguments
    pieces = AttentionPlan.of(new, context, tables, heads=4, kv_heads=2, invariant=True, split_tokens=16)
    assert [len(launch.tiles) for launch in pieces.launches] == [1, 1, 1]
    assert torch.equal(attend(q, keys, values, pieces), whole)


def test_a_split_of_nothing_is_refused():
    with pytest.raises(UnderloadError, match="split_tokens=0"):
        plan([1], [1], split_tokens=0)


# -------------------------------------------------- rotary positions, and the write


@pytest.mark.parametrize(
    "dtype, kv_dtype", [(torch.float32,) * 2, (torch.bfloat16,) * 2, (torch.float32, torch.float16)]
)
def test_turning_and_writing_at_once_gives_the_same_numbers(dtype, kv_dtype):
    small = shape("smollm2-135m")  # 9 heads on 3
    kv, separate = (PlainKV(small, 5, 4, dtype=kv_dtype, device=DEVICE) for _ in range(2))
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(6, heads, 64, generator=generator).to(DEVICE, dtype) for heads in (9, 3, 3))
    slots = torch.tensor([0, 7, 19, 3, 12, 8], device=DEVICE)
    cos, sin = cos_sin(inverse_frequencies(small).to(DEVICE), torch.tensor([0, 5, 90, 3, 17, 1000], device=DEVICE))
    turned = rotate_write(q, k, v, cos, sin, slots, kv.keys[2], kv.values[2])
    separate.write(2, slots, rotate(k, cos, sin), v)
    for got, wanted in ((turned, rotate(q, cos, sin)), (kv.keys, separate.keys), (kv.values, separate.values)):
        if kernels.INTERPRETED and dtype != torch.bfloat16:
            assert torch.equal(got, wanted)
        else:  # a GPU multiplies and adds in one step; the interpreter cuts float32 to bfloat16 where a GPU rounds
            torch.testing.assert_close(got, wanted, rtol=2**-7, atol=1e-6)


# -------------------------------------------------- where it cannot run, and whether it would on a GPU


def test_what_it_cannot_run_on_is_said_with_the_remedy(monkeypatch):
    q, keys, values, tables, new, context = inputs([(1, 3)], 4, 2, 1, 8)
    with pytest.raises(UnderloadError, match="float64; the kernels take float32, float16 and bfloat16"):
        paged_attention(q.double(), keys, values, tables, new, context, implementation="triton")
    assert "not on meta" in attention_triton.unsupported(torch.device("meta"))
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "INTERPRETED", False)
        assert "TRITON_INTERPRET=1" in attention_triton.unsupported(torch.device("cpu"))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "triton", None)
        assert "pip install triton" in attention_triton.unsupported(torch.device("cpu"))


def test_every_kernel_compiles_for_a_gpu_that_is_not_here(tmp_path):
    """For an H100 or H200 (sm_90): what the interpreter accepts, the compiler need not."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("triton_compile.py"))],
        capture_output=True,
        text=True,
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    compiled = json.loads(done.stdout)
    names = {"attend", "reduce", "rotate_write", "linear", "rms_norm", "add_rms_norm", "silu_mul"}
    assert {row["kernel"] for row in compiled} == names
    assert max(row["shared_memory"] for row in compiled) <= 232_448  # what one program may have there
    for row in compiled:
        if row["kernel"] in ("attend", "linear"):
            assert row["loads_ahead"], row
            assert row["matrix_units"] == (row["dtype"] != "fp32"), row
