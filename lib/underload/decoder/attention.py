"""Attention over cached keys and values, in plain torch: the oracle of every faster kernel."""

import torch
import torch.nn.functional as F
from torch import Tensor


def attention(
    q: Tensor, keys: Tensor, values: Tensor, block_tables: Tensor, query_lens: list[int], context_lens: list[int]
) -> Tensor:
    """Each query looks at its own sequence's keys up to its own position.

    Vaswani et al., "Attention Is All You Need" (2017), section 3.2.1; grouped-query heads after Ainslie et al., "GQA"
    (EMNLP 2023): query head h reads KV head h // (heads / kv_heads).

    Args:
        q: [tokens, heads, head_dim], the sequences' queries end to end.
        keys, values: [blocks, block_size, kv_heads, head_dim], one layer of the cache, the new tokens already written.
        block_tables: [sequences, most blocks] integer, padded with anything.
        query_lens, context_lens: a sequence's new tokens, and its tokens in the cache including these.

    Returns:
        [tokens, heads, head_dim]
    """
    out = torch.empty_like(q)
    token = row = 0
    while row < len(query_lens):
        # Neighbours with the same two lengths (a static batch, decoding) are one call.
        same = 1
        while row + same < len(query_lens) and (query_lens[row + same], context_lens[row + same]) == (
            query_lens[row],
            context_lens[row],
        ):
            same += 1
        new, context = query_lens[row], context_lens[row]
        k = _context(keys, block_tables[row : row + same], context)  # [same, context, kv_heads, head_dim]
        v = _context(values, block_tables[row : row + same], context)
        rows = slice(token, token + same * new)
        o = _attend(q[rows].unflatten(0, (same, new)), k, v)
        out[rows] = o.flatten(0, 1)
        token += same * new
        row += same
    return out


def _context(pool: Tensor, tables: Tensor, context: int) -> Tensor:
    """The first `context` cached tokens of each table, [tables, context, kv_heads, head_dim]; a view where it can be.

    Nothing past `context` is ever touched: a slot that was never written may hold anything, NaN included.
    """
    block_size = pool.shape[1]
    if context <= block_size:
        first = tables[:, 0].tolist()
        if first == list(range(first[0], first[0] + len(first))):  # reserved rows side by side: no copy
            return pool[first[0] : first[0] + len(first), :context]
        return torch.stack([pool[block, :context] for block in first])
    full, rest = divmod(context, block_size)
    pages = pool[tables[:, :full].long()].flatten(1, 2)
    if rest:
        pages = torch.cat((pages, pool[tables[:, full].long(), :rest]), dim=1)
    return pages


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q [rows, new, heads, head_dim] on k, v [rows, context, kv_heads, head_dim], causal against the context's end."""
    new, context = q.shape[1], k.shape[1]
    # The last query sees everything, the one before all but one key: the mask hangs from the bottom right corner.
    mask = None if new == 1 else torch.ones(new, context, dtype=torch.bool, device=q.device).tril(context - new)
    o = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask, enable_gqa=q.shape[2] != k.shape[2]
    )
    return o.transpose(1, 2)
