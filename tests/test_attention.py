"""The oracle against attention written out head by head, and against what other engines got wrong."""

import functools
import math

import numpy as np
import pytest
import torch

from underload.decoder.attention import paged_attention

oracle = functools.partial(paged_attention, implementation="torch")


def by_hand(q, keys, values):
    """One sequence's last queries on all its keys, with loops and no cleverness; float64."""
    q, keys, values = q.double(), keys.double(), values.double()
    new, heads, dim = q.shape
    context, kv_heads = keys.shape[:2]
    out = torch.zeros(new, heads, dim, dtype=torch.float64)
    for i in range(new):
        visible = context - new + i + 1
        for h in range(heads):
            kv = h // (heads // kv_heads)
            weights = torch.softmax(keys[:visible, kv] @ q[i, h] / math.sqrt(dim), dim=0)
            out[i, h] = weights @ values[:visible, kv]
    return out


def paged(sequences, block_size, kv_heads, dim, fill=0.0, seed=0):
    """A pool with each (query, context) sequence's keys and values in shuffled blocks; the rest is `fill`."""
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    needed = [math.ceil(context / block_size) for _, context in sequences]
    order = rng.permutation(sum(needed) + 3).tolist()
    keys = torch.full((len(order), block_size, kv_heads, dim), fill)
    values = torch.full_like(keys, fill)
    tables = torch.full((len(sequences), max(needed)), -1, dtype=torch.int32)
    dense = []
    for row, (_, context) in enumerate(sequences):
        k, v = (torch.randn(context, kv_heads, dim, generator=generator) for _ in range(2))
        for start in range(0, context, block_size):
            block = order.pop()
            tables[row, start // block_size] = block
            piece = slice(start, min(start + block_size, context))
            keys[block, : piece.stop - start], values[block, : piece.stop - start] = k[piece], v[piece]
        dense.append((k, v))
    return keys, values, tables, dense


@pytest.mark.parametrize("block_size", [1, 3, 4, 16, 64])
@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (6, 2), (3, 1)])
def test_ragged_batch_equals_attention_by_hand(block_size, heads, kv_heads):
    sequences = [(1, 1), (5, 5), (1, 17), (1, 17), (4, 16), (7, 30), (1, 33)]
    keys, values, tables, dense = paged(sequences, block_size, kv_heads, dim=8)
    q = torch.randn(sum(new for new, _ in sequences), heads, 8, generator=torch.Generator().manual_seed(1))
    out = oracle(q, keys, values, tables, [new for new, _ in sequences], [context for _, context in sequences])
    expected = torch.cat(
        [by_hand(part, k, v) for part, (k, v) in zip(q.split([new for new, _ in sequences]), dense, strict=True)]
    )
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [1, 3, 4, 5])  # 1, B - 1, B, B + 1
def test_slots_never_written_may_hold_nan(length):
    sequences = [(1, length), (length, length)]
    keys, values, tables, dense = paged(sequences, 4, kv_heads=2, dim=8, fill=float("nan"))
    q = torch.randn(1 + length, 4, 8)
    out = oracle(q, keys, values, tables, [1, length], [length, length])
    expected = torch.cat([by_hand(q[:1], *dense[0]), by_hand(q[1:], *dense[1])])
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("new, context, visible", [(2, 5, [4, 5]), (1, 8, [8]), (3, 3, [1, 2, 3])])
def test_the_causal_mask_hangs_from_the_end_of_the_context(new, context, visible):
    # Equal scores, and values that count positions: the mean tells how many keys a query saw.
    keys = torch.zeros(1, context, 1, 2)
    values = torch.arange(1.0, context + 1).reshape(1, context, 1, 1).repeat(1, 1, 1, 2)
    out = oracle(torch.randn(new, 1, 2), keys, values, torch.tensor([[0]]), [new], [context])
    assert out[:, 0, 0].tolist() == pytest.approx([(seen + 1) / 2 for seen in visible])


def test_query_heads_share_neighbouring_kv_heads():
    keys = torch.zeros(1, 3, 2, 2)
    values = torch.ones(1, 3, 2, 2)
    values[:, :, 1] = 2
    out = oracle(torch.randn(1, 4, 2), keys, values, torch.tensor([[0]]), [1], [3])
    assert out[0, :, 0].tolist() == pytest.approx([1, 1, 2, 2])


def test_reserved_rows_side_by_side_are_read_where_they_lie():
    from underload.decoder.attention import _context

    pool = torch.randn(4, 8, 2, 4)
    view = _context(pool, torch.tensor([[1], [2], [3]]), 5)
    assert view.data_ptr() == pool[1].data_ptr()
    assert _context(pool, torch.tensor([[3], [1]]), 5).data_ptr() != pool[3].data_ptr()
