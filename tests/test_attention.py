"""The oracle against attention written out head by head, and against what other engines got wrong."""

import functools
import math
import sys
import threading

import numpy as np
import pytest
import torch

from underload.decoder import attention_cpu
from underload.decoder.attention import paged_attention
from underload.decoder.fast.attend import CHUNK
from underload.request import UnderloadError

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


def paged(sequences, block_size, kv_heads, dim, fill=0.0, seed=0, dtype=torch.float32):
    """A pool with each (query, context) sequence's keys and values in shuffled blocks; the rest is `fill`."""
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    needed = [math.ceil(context / block_size) for _, context in sequences]
    order = rng.permutation(sum(needed) + 3).tolist()
    keys = torch.full((len(order), block_size, kv_heads, dim), fill, dtype=dtype)
    values = torch.full_like(keys, fill)
    tables = torch.full((len(sequences), max(needed)), -1, dtype=torch.int32)
    dense = []
    for row, (_, context) in enumerate(sequences):
        k, v = (torch.randn(context, kv_heads, dim, generator=generator).to(dtype) for _ in range(2))
        for start in range(0, context, block_size):
            block = order.pop()
            tables[row, start // block_size] = block
            piece = slice(start, min(start + block_size, context))
            keys[block, : piece.stop - start], values[block, : piece.stop - start] = k[piece], v[piece]
        dense.append((k, v))
    return keys, values, tables, dense


# -------------------------------------------------- the oracle


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_pools_are_computed_in_float32(dtype):
    sequences = [(1, 9), (3, 12)]
    keys, values, tables, dense = paged(sequences, 4, kv_heads=2, dim=8, dtype=dtype)
    q = torch.randn(4, 4, 8)
    out = oracle(q, keys, values, tables, [1, 3], [9, 12])
    expected = torch.cat([by_hand(part, *of) for part, of in zip(q.split([1, 3]), dense, strict=True)])
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    assert oracle(q.to(dtype), keys, values, tables, [1, 3], [9, 12]).dtype == dtype


# -------------------------------------------------- the kernels against the oracle


def strided(pool):
    """The same numbers, a layer's worth of others between two blocks, and the heads apart."""
    blocks, block_size, kv_heads, dim = pool.shape
    wider = torch.full((blocks, 2, block_size, kv_heads + 1, dim + 3), torch.nan, dtype=pool.dtype)
    view = wider[:, 1, :, :kv_heads, :dim]
    view.copy_(pool)
    return view


def random_case(rng):
    """Sizes that hit block borders, chunks of prompts, drafts; tables in any order, some with a prefix in common."""
    group, kv_heads = int(rng.choice([1, 2, 3, 4, 5, 8])), int(rng.integers(1, 5))
    dim = int(rng.choice([8, 16, 24, 48, 64, 80, 128]))
    block_size = int(rng.choice([1, 2, 3, 4, 8, 16, 32, 64, 700]))
    sequences = []
    for _ in range(int(rng.integers(1, 7))):
        borders = [1, block_size - 1, block_size, block_size + 1, CHUNK - 1, CHUNK, CHUNK + 1]
        context = max(1, int(rng.choice([*borders, rng.integers(1, 80), rng.integers(1, 700)])))
        new = int(rng.choice([1, 1, 2, min(5, context), min(40, context), context]))
        sequences.append((min(new, context, 90), context))
    dtype = [torch.float32, torch.float16, torch.bfloat16][int(rng.choice([0, 0, 1, 2]))]
    keys, values, tables, _ = paged(
        sequences, block_size, kv_heads, dim, fill=torch.nan, seed=int(rng.integers(1 << 30)), dtype=dtype
    )
    row, other = rng.integers(0, len(sequences), 2)
    common = min(sequences[row][1], sequences[other][1]) // block_size
    tables[row, :common] = tables[other, :common]
    if rng.random() < 0.3:
        keys, values = strided(keys), strided(values)
        if rng.random() < 0.5:
            values = values.contiguous()
    q = torch.randn(sum(new for new, _ in sequences), kv_heads * group, dim)
    if rng.random() < 0.3:
        q = torch.stack([q, q], dim=1)[:, 1]
    return q, keys, values, tables, [new for new, _ in sequences], [context for _, context in sequences]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_cpu_kernel_equals_the_oracle_on_anything(threads):
    rng = np.random.default_rng(threads)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        for _ in range(60):
            case = random_case(rng)
            q, keys, _, _, new, context = case
            told = (
                f"q {list(q.shape)}, pool {list(keys.shape)} {keys.stride()} {keys.dtype}, new {new}, context {context}"
            )
            torch.testing.assert_close(
                paged_attention(*case, implementation="cpu"),
                oracle(*case),
                rtol=1e-5,
                atol=1e-5,
                msg=lambda text, told=told: f"{told}\n{text}",
            )
    finally:
        torch.set_num_threads(before)


def test_the_cpu_kernel_gives_a_sequence_the_same_bits_in_any_company():
    sequences = [(1, 900), (3, 301), (40, 520), (1, 2), (1, 513)]
    keys, values, tables, dense = paged(sequences, 16, kv_heads=2, dim=48)
    q = torch.randn(sum(new for new, _ in sequences), 6, 48)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            found.append(paged_attention(q, keys, values, tables, *zip(*sequences, strict=True), implementation="cpu"))
            alone = []
            for part, (new, context), (k, v) in zip(q.split([n for n, _ in sequences]), sequences, dense, strict=True):
                whole = torch.tensor([[0]])
                alone.append(paged_attention(part, k[None], v[None], whole, [new], [context], implementation="cpu"))
            found.append(torch.cat(alone))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert torch.equal(other, found[0])


def test_the_cpu_kernel_from_several_threads_at_once():
    cases = [random_case(np.random.default_rng(seed)) for seed in range(6)]
    expected = [paged_attention(*case, implementation="cpu") for case in cases]
    wrong = []

    def job(i):
        for _ in range(20):
            if not torch.equal(paged_attention(*cases[i], implementation="cpu"), expected[i]):
                wrong.append(i)

    threads = [threading.Thread(target=job, args=(i,)) for i in range(len(cases))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert wrong == []


# -------------------------------------------------- which one, and what is refused


def small(**changes):
    case = {
        "q": torch.randn(2, 4, 16),
        "keys": torch.randn(3, 4, 2, 16),
        "values": torch.randn(3, 4, 2, 16),
        "block_tables": torch.tensor([[2, 0]]),
        "query_lens": [2],
        "context_lens": [6],
    }
    return paged_attention(**(case | changes))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"implementation": "cuda"}, "'auto', 'torch', 'cpu', 'triton', got 'cuda'"),
        ({"keys": torch.randn(3, 4, 16)}, r"got \[2, 4, 16\], \[3, 4, 16\]"),
        ({"q": torch.randn(2, 3, 16)}, "multiple of KV heads.* got 3 of 16 for 2 of 16"),
        ({"q": torch.randn(2, 4, 8)}, "got 4 of 8 for 2 of 16"),
        ({"query_lens": [1]}, "sum to the tokens of q, got 1 in all for 2"),
        ({"query_lens": [1, 1]}, r"one row a sequence, got \[1, 2\], 2 and 1"),
        ({"context_lens": [9]}, "context <= 8 .*got 2 new tokens in a context of 9"),
        ({"context_lens": [1]}, "got 2 new tokens in a context of 1"),
        ({"block_tables": torch.tensor([[2, 3]]), "implementation": "cpu"}, "block id 3 of sequence 0 .* 3 blocks"),
        ({"block_tables": torch.tensor([[-1, 0]]), "implementation": "cpu"}, "block id -1 of sequence 0"),
        ({"q": torch.randn(2, 4, 16).double(), "implementation": "cpu"}, "takes float32.*float64"),
        ({"keys": torch.randn(3, 4, 16, 2).mT, "implementation": "cpu"}, "side by side .stride 1., and lie 2 and 1"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(UnderloadError, match=message):
        small(**changes)


def test_auto_takes_the_kernel_where_it_can_and_the_oracle_elsewhere():
    case = (*torch.randn(3, 2, 4, 2, 16), torch.tensor([[1, 0]]), [2], [6])
    case = (torch.randn(2, 4, 16), *case[1:])
    assert torch.equal(paged_attention(*case), paged_attention(*case, implementation="cpu"))
    doubles = tuple(part.double() for part in case[:3])
    assert torch.equal(paged_attention(*doubles, *case[3:]), oracle(*doubles, *case[3:]))


def test_an_empty_batch_and_sequences_without_new_tokens():
    for implementation in ("torch", "cpu"):
        none = small(q=torch.randn(0, 4, 16), query_lens=[0], context_lens=[6], implementation=implementation)
        assert none.shape == (0, 4, 16)
        q = torch.randn(2, 4, 16)
        keys, values = torch.randn(2, 3, 4, 2, 16)
        tables = torch.tensor([[-7, 9], [2, 0], [5, 5]])
        with_idle = paged_attention(q, keys, values, tables, [0, 2, 0], [0, 6, 0], implementation=implementation)
        alone = paged_attention(q, keys, values, tables[1:2], [2], [6], implementation=implementation)
        assert torch.equal(with_idle, alone)


def test_without_numba_auto_is_the_oracle(monkeypatch):
    monkeypatch.setattr(attention_cpu, "_kernels", {})
    monkeypatch.setitem(sys.modules, "numba", None)  # importing it fails now
    q, pool = torch.randn(1, 2, 16), torch.randn(1, 4, 2, 16)
    case = (q, pool, pool, torch.tensor([[0]]), [1], [3])
    assert torch.equal(paged_attention(*case), oracle(*case))
    with pytest.raises(UnderloadError, match="numba cannot be imported"):
        paged_attention(*case, implementation="cpu")
