"""Attention over cached keys and values, by block table: one signature, three implementations.

torch     below: what attention is, in one screen; the oracle of the other two
cpu       attention_cpu.py: compiled with numba, reads blocks where they lie
triton    attention_triton.py: the same on a GPU
"""

import importlib
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from underload.request import UnderloadError

IMPLEMENTATIONS = ("torch", "cpu", "triton")


def paged_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    *,
    implementation: str = "auto",
) -> Tensor:
    """Each query looks at its own sequence's keys up to its own position.

    Vaswani et al., "Attention Is All You Need" (2017), section 3.2.1; grouped-query heads after Ainslie et al., "GQA"
    (EMNLP 2023): query head h reads KV head h // (heads / kv_heads); blocks after Kwon et al., "Efficient Memory
    Management for LLM Serving with PagedAttention" (SOSP 2023), section 4.1.

    Args:
        q: [tokens, heads, head_dim], the sequences' queries end to end.
        keys, values: [blocks, block_size, kv_heads, head_dim], one layer of the cache, the new tokens already written.
            Slots that no table reaches may hold anything, NaN included.
        block_tables: [sequences, most blocks] integer, padded with anything.
        query_lens, context_lens: a sequence's new tokens, and its tokens in the cache including these. Decoding is one
            new token, a chunk of a prompt many, a draft to be verified a few; a batch may hold all of these.
        implementation: "torch", "cpu", "triton", or "auto": the fastest that can run here.

    Returns:
        [tokens, heads, head_dim] in q's dtype, computed in float32 where q or the cache is narrower.

    Raises:
        UnderloadError: sizes that do not fit together, or an implementation that is unknown or cannot run here.
    """
    _check(q, keys, values, block_tables, query_lens, context_lens)
    chosen = _choose(implementation, q, keys, values)
    if chosen == "torch":
        return _oracle(q, keys, values, block_tables, query_lens, context_lens)
    return _kernel(chosen).paged_attention(q, keys, values, block_tables, query_lens, context_lens)


# -------------------------------------------------- the oracle


def _oracle(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
) -> Tensor:
    out = torch.empty_like(q)
    token = row = 0
    # Neighbours with the same two lengths (a static batch, decoding) are one call.
    for (new, context), same in groupby(zip(query_lens, context_lens, strict=True)):
        n = len(list(same))
        k = _context(keys, block_tables[row : row + n], context)  # [n, context, kv_heads, head_dim]
        v = _context(values, block_tables[row : row + n], context)
        rows = slice(token, token + n * new)
        out[rows] = _attend(q[rows].unflatten(0, (n, new)), k, v).flatten(0, 1)
        token, row = token + n * new, row + n
    return out


def _context(pool: Tensor, tables: Tensor, context: int) -> Tensor:
    """The first `context` cached tokens of each table, [tables, context, kv_heads, head_dim]; a view where it can be.

    Nothing past `context` is ever touched: a slot that was never written may hold anything, NaN included.
    """
    block_size = pool.shape[1]
    full, rest = divmod(context, block_size)
    if full + bool(rest) == 1:  # one block each: whole rows side by side, as a contiguous cache has them, are a view
        first = tables[:, 0].tolist()
        if first == list(range(first[0], first[0] + len(first))):
            return pool[first[0] : first[0] + len(first), :context]
        return torch.stack([pool[block, :context] for block in first])
    blocks = pool[tables[:, :full].long()].flatten(1, 2)
    if rest:
        blocks = torch.cat((blocks, pool[tables[:, full].long(), :rest]), dim=1)
    return blocks


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q [rows, new, heads, head_dim] on k, v [rows, context, kv_heads, head_dim], causal against the context's end."""
    new, context = q.shape[1], k.shape[1]
    kind = torch.promote_types(torch.float32, q.dtype)  # 16-bit numbers are stored, not computed with
    # The last query sees everything, the one before all but one key: the mask hangs from the bottom right corner.
    mask = None if new == 1 else torch.ones(new, context, dtype=torch.bool, device=q.device).tril(context - new)
    q, k, v = (part.to(kind).transpose(1, 2) for part in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1]).transpose(1, 2)


# -------------------------------------------------- which one, and whether the arguments fit


def _kernel(implementation: str) -> Any:
    """The module of an implementation, imported when first asked for: what it needs may not be installed."""
    if implementation not in _kernels:
        _kernels[implementation] = importlib.import_module(f"underload.decoder.attention_{implementation}")
    return _kernels[implementation]


_kernels: dict[str, Any] = {}


def _choose(implementation: str, q: Tensor, keys: Tensor, values: Tensor) -> str:
    if implementation == "auto":
        best = "cpu" if q.is_cpu else "triton" if q.is_cuda else "torch"
        return best if best == "torch" or _kernel(best).unavailable(q, keys, values) is None else "torch"
    if implementation not in IMPLEMENTATIONS:
        raise UnderloadError(
            f"implementation must be 'auto', {', '.join(map(repr, IMPLEMENTATIONS))}, got {implementation!r}"
        )
    if implementation != "torch" and (reason := _kernel(implementation).unavailable(q, keys, values)):
        raise UnderloadError(f"paged attention cannot run as {implementation!r} here: {reason}; use 'auto' or 'torch'")
    return implementation


def _check(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
) -> None:
    """What can be checked without waiting for a device: the sizes."""
    if q.ndim != 3 or keys.ndim != 4 or keys.shape != values.shape:
        raise UnderloadError(
            "q must be [tokens, heads, head_dim], keys and values both [blocks, block_size, kv_heads, head_dim]; got "
            f"{list(q.shape)}, {list(keys.shape)} and {list(values.shape)}"
        )
    tokens, heads, head_dim = q.shape
    _, block_size, kv_heads, kv_head_dim = keys.shape
    if head_dim != kv_head_dim or kv_heads == 0 or heads % kv_heads:
        raise UnderloadError(
            f"query heads must be a multiple of KV heads, with the same head_dim; got {heads} of {head_dim} for "
            f"{kv_heads} of {kv_head_dim}"
        )
    if block_tables.ndim != 2 or not len(block_tables) == len(query_lens) == len(context_lens):
        raise UnderloadError(
            f"block_tables, query_lens and context_lens need one row a sequence, got {list(block_tables.shape)}, "
            f"{len(query_lens)} and {len(context_lens)}"
        )
    if sum(query_lens) != tokens:
        raise UnderloadError(f"query_lens must sum to the tokens of q, got {sum(query_lens)} in all for {tokens}")
    blocks = block_tables.shape[1]
    room = blocks * block_size
    for new, context in zip(query_lens, context_lens, strict=True):
        if not 0 <= new <= context <= room:
            raise UnderloadError(
                f"a sequence needs 0 <= new tokens <= context <= {room} (a table of {blocks} blocks of "
                f"{block_size} tokens), got {new} new tokens in a context of {context}"
            )
