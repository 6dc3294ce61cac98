"""The Triton kernels, and nothing else; importing this module imports triton.

    attend            queries of one tile on the cached keys of their sequence, or of one split of it
    reduce            the splits of each query, put together
    rotate_write      rotary positions, and the new keys and values into their blocks
    linear, rms_norm  the same sums in the same order for every number of rows
    add_rms_norm      the residual stream's sum and its norm; silu_mul: SwiGLU's product

Each is launched from one place: the first three from attention_triton.py, the next two from invariant.py, the last from
fused.py.

WIDE says that numbers are made float32 as soon as they are loaded. Otherwise 16-bit keys and values go into the matrix
units as they are, whose products are exact and whose sums are float32. Triton's interpreter computes wrongly with
bfloat16 that is not made wide, so there it always is.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

import numpy as np
import triton
import triton.language as tl


# What changes from step to step must not choose between two compilations (for values and addresses that 16 divides, and
# for others): they may add in another order.
@triton.jit(do_not_specialize=["sequences", "tiles", "split", "table_row", "block_size", "num_splits"])
def attend(
    q,
    keys,
    values,
    out,
    partial,
    statistics,
    tables,
    sequences,
    tiles,
    split,
    scale,
    q_token,
    q_head,
    q_dim,
    key_block,
    key_slot,
    key_head,
    key_dim,
    value_block,
    value_slot,
    value_head,
    value_dim,
    table_row,
    block_size,
    num_splits,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    DIM: tl.constexpr,
    SPLIT: tl.constexpr,
    WIDE: tl.constexpr,
):
    """One tile (TILE_TOKENS queries of a sequence, all heads of one group) on one split of the context.

    Online softmax: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018); over tiles of keys as in
    Dao et al., "FlashAttention" (NeurIPS 2022); split along the context for decoding as in Dao et al., "Flash-Decoding"
    (2023). The exponential is base 2: `scale` holds log2(e). BLOCK_SIZE is 0 where dividing by it needs the number.
    `split` holds the tokens of a split: in memory, so that a captured launch can have others in each step.
    """
    tile, kv_head, piece = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    split_tokens = tl.load(split)
    sequence = tl.load(tiles + 3 * tile)
    first = tl.load(tiles + 3 * tile + 1)  # the tile's first query, counted within the sequence's new tokens
    row = tl.load(tiles + 3 * tile + 2)  # where its partial results go
    q_start = tl.load(sequences + 3 * sequence).to(tl.int64)
    new = tl.load(sequences + 3 * sequence + 1)
    context = tl.load(sequences + 3 * sequence + 2)

    #   rows of a tile    token 0: head 0 .. GROUP-1 | token 1: head 0 .. GROUP-1 | ...      one KV head for all
    #   keys they see     [0, context - new + 1)       [0, context - new + 2)       ...      from the bottom right
    rows = tl.arange(0, TILE_ROWS)
    token = first + rows // GROUP
    head = kv_head * GROUP + rows % GROUP
    valid = (rows < TILE_TOKENS * GROUP) & (token < new)
    visible = tl.where(valid, context - new + token + 1, 0)
    start = piece * split_tokens
    stop = tl.minimum(start + split_tokens, context - new + tl.minimum(first + TILE_TOKENS, new))
    visible = tl.minimum(visible, stop)

    dim = tl.arange(0, DIM)
    in_head = dim < HEAD_DIM
    q_at = q + (q_start + token)[:, None] * q_token + head[:, None] * q_head + dim[None, :] * q_dim
    queries = tl.load(q_at, mask=valid[:, None] & in_head[None, :], other=0.0)
    if WIDE:
        queries = queries.to(tl.float32)

    largest = tl.full([TILE_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([TILE_ROWS], tl.float32)
    mixed = tl.zeros([TILE_ROWS, DIM], tl.float32)
    for base in range(start, stop, TILE_KEYS):
        position = base + tl.arange(0, TILE_KEYS)
        inside = position < stop  # a slot past the context may hold anything, NaN included: never loaded
        loaded = inside[:, None] & in_head[None, :]
        if BLOCK_SIZE:
            place, slot = position // BLOCK_SIZE, (position % BLOCK_SIZE)[:, None]
        else:
            place, slot = position // block_size, (position % block_size)[:, None]
        block = tl.load(tables + sequence.to(tl.int64) * table_row + place, mask=inside, other=0).to(tl.int64)[:, None]
        key_at = keys + block * key_block + slot * key_slot + kv_head * key_head + dim[None, :] * key_dim
        value_at = values + block * value_block + slot * value_slot + kv_head * value_head + dim[None, :] * value_dim
        k = tl.load(key_at, mask=loaded, other=0.0)
        v = tl.load(value_at, mask=loaded, other=0.0)
        if WIDE:
            k, v = k.to(tl.float32), v.to(tl.float32)

        scores = tl.dot(queries, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(position[None, :] < visible[:, None], scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        origin = tl.where(larger == float("-inf"), 0.0, larger)  # a row that has seen no key yet
        weights = tl.exp2(scores - origin[:, None])
        fade = tl.exp2(largest - origin)
        total = total * fade + tl.sum(weights, 1)
        mixed = tl.dot(weights.to(v.dtype), v, acc=mixed * fade[:, None], input_precision="ieee")
        largest = larger

    if SPLIT:
        cell = ((row + token - first).to(tl.int64) * HEADS + head) * num_splits + piece
        tl.store(statistics + 2 * cell, largest, mask=valid)
        tl.store(statistics + 2 * cell + 1, total, mask=valid)
        tl.store(partial + cell[:, None] * HEAD_DIM + dim[None, :], mixed, mask=valid[:, None] & in_head[None, :])
    else:
        out_at = out + ((q_start + token)[:, None] * HEADS + head[:, None]) * HEAD_DIM + dim[None, :]
        mixed = mixed / tl.where(valid, total, 1.0)[:, None]
        tl.store(out_at, mixed.to(out.dtype.element_ty), mask=valid[:, None] & in_head[None, :])


@triton.jit(do_not_specialize=["queries", "split", "num_splits"])
def reduce(
    partial,
    statistics,
    out,
    queries,
    split,
    num_splits,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    TILE_SPLITS: tl.constexpr,
):
    """One head of one query: its splits, TILE_SPLITS at a time from the first, whatever the batch's longest has."""
    row, head = tl.program_id(0), tl.program_id(1)
    token = tl.load(queries + 2 * row).to(tl.int64)
    splits = tl.cdiv(tl.load(queries + 2 * row + 1), tl.load(split))  # those in which this query sees a key
    dim = tl.arange(0, DIM)
    in_head = dim < HEAD_DIM

    largest = float("-inf")
    total = 0.0
    mixed = tl.zeros([DIM], tl.float32)
    for base in range(0, splits, TILE_SPLITS):
        piece = base + tl.arange(0, TILE_SPLITS)
        inside = piece < splits
        cell = (row.to(tl.int64) * HEADS + head) * num_splits + piece
        peak = tl.load(statistics + 2 * cell, mask=inside, other=float("-inf"))
        mass = tl.load(statistics + 2 * cell + 1, mask=inside, other=0.0)
        part_at = partial + cell[:, None] * HEAD_DIM + dim[None, :]
        part = tl.load(part_at, mask=inside[:, None] & in_head[None, :], other=0.0)
        larger = tl.maximum(largest, tl.max(peak, 0))
        weights = tl.exp2(peak - larger)
        fade = tl.exp2(largest - larger)
        total = total * fade + tl.sum(weights * mass, 0)
        mixed = mixed * fade + tl.sum(weights[:, None] * part, 0)
        largest = larger
    out_at = out + (token * HEADS + head) * HEAD_DIM + dim
    tl.store(out_at, (mixed / total).to(out.dtype.element_ty), mask=in_head)


@triton.jit(do_not_specialize=["block_size"])
def rotate_write(
    q,
    k,
    v,
    cos,
    sin,
    slots,
    out,
    keys,
    values,
    key_block,
    key_slot,
    key_head,
    key_dim,
    value_block,
    value_slot,
    value_head,
    value_dim,
    block_size,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
):
    """One head of one token: a query turned into `out`, or a key turned, and its value, into their slot."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    half = tl.arange(0, HALF)
    in_half = half < HEAD_DIM // 2
    c = tl.load(cos + token * (HEAD_DIM // 2) + half, mask=in_half, other=0.0)
    s = tl.load(sin + token * (HEAD_DIM // 2) + half, mask=in_half, other=0.0)
    if head < HEADS:
        at = (token * HEADS + head) * HEAD_DIM + half
        first = tl.load(q + at, mask=in_half, other=0.0).to(tl.float32)
        second = tl.load(q + at + HEAD_DIM // 2, mask=in_half, other=0.0).to(tl.float32)
        tl.store(out + at, (first * c - second * s).to(out.dtype.element_ty), mask=in_half)
        tl.store(out + at + HEAD_DIM // 2, (second * c + first * s).to(out.dtype.element_ty), mask=in_half)
    else:
        kv_head = head - HEADS
        at = (token * KV_HEADS + kv_head) * HEAD_DIM + half
        place = tl.load(slots + token)
        block, slot = place // block_size, place % block_size
        first = tl.load(k + at, mask=in_half, other=0.0).to(tl.float32)
        second = tl.load(k + at + HEAD_DIM // 2, mask=in_half, other=0.0).to(tl.float32)
        # Rounded to the model's dtype first, as a key that was turned and then written: the cache may be wider.
        low = (first * c - second * s).to(k.dtype.element_ty).to(tl.float32)
        high = (second * c + first * s).to(k.dtype.element_ty).to(tl.float32)
        key_at = keys + block * key_block + slot * key_slot + kv_head * key_head + half * key_dim
        tl.store(key_at, low.to(keys.dtype.element_ty), mask=in_half)
        tl.store(key_at + HEAD_DIM // 2 * key_dim, high.to(keys.dtype.element_ty), mask=in_half)
        low = tl.load(v + at, mask=in_half, other=0.0).to(tl.float32)
        high = tl.load(v + at + HEAD_DIM // 2, mask=in_half, other=0.0).to(tl.float32)
        value_at = values + block * value_block + slot * value_slot + kv_head * value_head + half * value_dim
        tl.store(value_at, low.to(values.dtype.element_ty), mask=in_half)
        tl.store(value_at + HEAD_DIM // 2 * value_dim, high.to(values.dtype.element_ty), mask=in_half)


@triton.jit(do_not_specialize=["rows"])
def linear(
    x,
    weight,
    bias,
    out,
    rows,
    outputs,
    inputs,
    TILE_ROWS: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr,
    TILE_INPUTS: tl.constexpr,
    BIAS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A tile of x [rows, inputs] times weight [outputs, inputs]^T; the inner dimension is walked from end to end."""
    row = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    column = tl.program_id(1) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    inner = tl.arange(0, TILE_INPUTS)
    x_at = x + row.to(tl.int64)[:, None] * inputs + inner[None, :]
    weight_at = weight + column.to(tl.int64)[:, None] * inputs + inner[None, :]
    total = tl.zeros([TILE_ROWS, TILE_OUTPUTS], tl.float32)
    for base in range(0, inputs, TILE_INPUTS):
        inside = base + inner < inputs
        a = tl.load(x_at + base, mask=(row < rows)[:, None] & inside[None, :], other=0.0)
        b = tl.load(weight_at + base, mask=(column < outputs)[:, None] & inside[None, :], other=0.0)
        if WIDE:
            a, b = a.to(tl.float32), b.to(tl.float32)
        total = tl.dot(a, tl.trans(b), acc=total, input_precision="ieee")
    if BIAS:
        total += tl.load(bias + column, mask=column < outputs, other=0.0).to(tl.float32)[None, :]
    out_at = out + row.to(tl.int64)[:, None] * outputs + column[None, :]
    tl.store(out_at, total.to(out.dtype.element_ty), mask=(row < rows)[:, None] & (column < outputs)[None, :])


@triton.jit
def rms_norm(x, weight, out, eps, SIZE: tl.constexpr, TILE: tl.constexpr):
    """One row of x [rows, SIZE], in float32, rounded to x's dtype before the weight as in the plain path."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, TILE)
    inside = at < SIZE
    wide = tl.load(x + row * SIZE + at, mask=inside, other=0.0).to(tl.float32)
    normed = wide * tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    w = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    normed = normed.to(x.dtype.element_ty).to(tl.float32) * w
    tl.store(out + row * SIZE + at, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def add_rms_norm(x, change, weight, total, out, eps, SIZE: tl.constexpr, TILE: tl.constexpr):
    """One row of x + change into `total`, rounded to its dtype, and that row's `rms_norm` into `out`."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, TILE)
    inside = at < SIZE
    wide = tl.load(x + row * SIZE + at, mask=inside, other=0.0).to(tl.float32)
    wide += tl.load(change + row * SIZE + at, mask=inside, other=0.0).to(tl.float32)
    rounded = wide.to(total.dtype.element_ty)
    tl.store(total + row * SIZE + at, rounded, mask=inside)
    wide = rounded.to(tl.float32)
    normed = wide * tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    w = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    normed = normed.to(x.dtype.element_ty).to(tl.float32) * w
    tl.store(out + row * SIZE + at, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["size"])
def silu_mul(gate, up, out, size, TILE: tl.constexpr):
    """TILE numbers of silu(gate) x up, with silu(gate) rounded to its dtype before the product, as two steps would."""
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = at < size
    g = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    silu = (g / (1.0 + tl.exp(-g))).to(gate.dtype.element_ty).to(tl.float32)
    tl.store(out + at, (silu * u).to(out.dtype.element_ty), mask=inside)


#: Whether the kernels run in Triton's interpreter: TRITON_INTERPRET=1 was set when triton was first imported.
INTERPRETED = not isinstance(attend, triton.JITFunction)


class _NumPyRowByRow:
    """NumPy, but for `matmul`, whose BLAS may sum a row in another order where it lies elsewhere among the others."""

    def __getattr__(self, name):
        return getattr(np, name)

    def matmul(self, a, b, dtype):
        return np.einsum("mk,kn->mn", a, b, dtype=dtype, optimize=False)


if INTERPRETED:
    # A matrix unit treats the rows of a tile alike, and batch_invariant=True relies on it. The interpreter has NumPy
    # multiply, which does so on some processors only.
    from triton.runtime import interpreter

    interpreter.np = _NumPyRowByRow()
