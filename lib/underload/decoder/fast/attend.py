# mypy: ignore-errors
# (numba infers and checks the types of compiled functions, and they are not those of Python)
"""Attention over a cache in blocks, in pieces that threads take: the arithmetic, and how a batch is cut.

    chunk 0              chunk 1              chunk 2                    CHUNK tokens each, from the text's beginning
    scores, exp, mix     scores, exp, mix     scores, exp, mix           of one chunk: largest score, sum, mix
         |                    |                    |
         +-------- fold ------+------- fold -------+--> attended         one after the other, in this order

A chunk is computed as if it were alone and then folded into what came before it (the online softmax of Milakov and
Gimelshein, "Online normalizer calculation for softmax", 2018, as in Dao et al., "FlashAttention", NeurIPS 2022). So
different threads may compute the chunks of one long text, as in flash decoding, and where the cuts lie changes no bit:
the chunks are where they are by position, and whoever is done last folds all of them in order.

A piece is some neighbouring rows of one sequence (a row is one query token), some KV heads with all their query heads,
and some chunks.
"""

import numpy as np
from numba import njit

from underload.decoder.fast.sync import fetch_add, store
from underload.decoder.fast.tile import (
    KEYS_AHEAD,
    MAX_ROWS,
    MIX_ROWS,
    bits_to_float,
    get,
    mix,
    panels_at_once,
    put,
    scores,
    widened,
)

CHUNK = 256  # tokens: keys and values of a head, 128 KiB in float32 at a head_dim of 64, stay in the second-level cache
ROWS = 16  # rows of a piece at most
HEADS = 64  # rows x query heads of a piece at most, unless one KV head of one row has more
PLACES = CHUNK + 8 + KEYS_AHEAD  # tokens of a chunk, and those that the score kernel looks ahead at
_LINE = CHUNK + 16  # between the scores of two rows; a power of two would crowd them into a few sets of the cache
_MIX_TOKENS = 64  # values of this many tokens stay in the first-level cache while a piece's rows use them
PARTIALS = 1 << 20  # float32 values kept of chunks of divided texts: 250 chunks of 64 heads of 64
_PIECES = 8  # a thread should find about this many pieces, so that the last ones end together
PANELS = np.array([0] + [panels_at_once(rows) for rows in range(1, MAX_ROWS + 1)])

# Fields of a piece. Words of `turns`, one a piece: how many pieces of a text's rows and heads are done.
(FIRST, COUNT, SEQUENCE, POSITION, KV_HEAD, KV_HEADS, FIRST_CHUNK, LAST_CHUNK, SIBLINGS, ELDEST, PARTIAL,
 PIECE_FIELDS) = range(12)  # fmt: skip

# What a reduction may be rearranged for, without assuming that there is no NaN. The order depends on the length only.
REORDER = {"reassoc", "nsz", "contract", "arcp"}


def scratch_size(group: int, width: int) -> int:
    """float32 values that a thread needs for a piece; `group` query heads a KV head of `width` lanes."""
    return max(HEADS, group) * (3 * width + _LINE + 4)


@njit
def exp(x: float) -> float:
    """exp in float32, to 2 units in the last place, in operations that LLVM makes vectors of, unlike libm's.

    2^n times a polynomial on the rest, with the coefficients of the Cephes library (Moshier, expf.c).
    """
    x = np.float32(-87.0) if x < np.float32(-87.0) else x
    x = np.float32(88.0) if x > np.float32(88.0) else x
    n = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    r = x - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    return (p * r * r + r + np.float32(1.0)) * bits_to_float((np.int32(n) + np.int32(127)) << np.int32(23))


@njit(fastmath=REORDER | {"nnan"})
def _largest(x: np.ndarray, at: int, n: int) -> float:
    """The largest of n values; if some are NaN, any value (the exponentials will carry the NaN on)."""
    best = get(x, at)
    for i in range(1, n):
        value = get(x, at + i)
        best = value if value > best else best
    return best


@njit(fastmath=REORDER)
def _exponentials(x: np.ndarray, at: int, n: int, shift: float) -> float:
    """x = exp(x - shift) in place; returns their sum."""
    for i in range(n):
        put(x, at + i, exp(get(x, at + i) - shift))
    total = np.float32(0.0)
    for i in range(n):
        total += get(x, at + i)
    return total


@njit
def _fold(part, part_at, most, total, x, x_at, x_stats, width) -> None:
    """Take a chunk's mix into what came before it, x; x_stats: largest score so far, sum of exponentials so far."""
    before = get(x, x_stats)
    now = most if most > before else before
    old, new = exp(before - now), exp(most - now)
    put(x, x_stats, now)
    put(x, x_stats + 1, get(x, x_stats + 1) * old + total * new)
    for d in range(width):
        put(x, x_at + d, get(x, x_at + d) * old + get(part, part_at + d) * new)


@njit
def _chunk(
    first, stop, position, rows, heads, group, dim, width, keys, k_at, k_head, values, v_at, v_head, index, index_at,
    v_index_at, scratch, scores_at, part_at, stats_at
) -> None:  # fmt: skip
    """One chunk, tokens [first, stop), as if it were all: scores, exponentials, and their mix of the values.

    Row by row no key or value past the row's own position is used: whatever the cache holds there cannot matter.
    """
    whole = dim // 16 * 16  # lanes that the tiles take; the few behind them, if any, are added one by one
    for token in range(first, stop, 8):
        row = max(0, token - position)  # the first that sees `token`
        for h in range(heads):
            at = (h * rows + row) * group
            n = (rows - row) * group
            out = scores_at + at * _LINE + token - first
            scores(keys, k_at + h * k_head, values, v_at + h * v_head, index, index_at + token, v_index_at + token,
                   scratch, at * width, width, n, scratch, out, _LINE, whole)  # fmt: skip
            if whole < dim:
                for r in range(n):
                    for i in range(8):
                        key = k_at + h * k_head + index[index_at + token + i]
                        total = get(scratch, out + r * _LINE + i)
                        for d in range(whole, dim):
                            total += get(scratch, (at + r) * width + d) * widened(keys, key + d)
                        put(scratch, out + r * _LINE + i, total)

    for r in range(heads * rows * group):
        n = min(stop, position + r // group % rows + 1) - first
        if n > 0:
            most = _largest(scratch, scores_at + r * _LINE, n)
            put(scratch, stats_at + 2 * r, most)
            put(scratch, stats_at + 2 * r + 1, _exponentials(scratch, scores_at + r * _LINE, n, most))
        for d in range(width):
            put(scratch, part_at + r * width + d, np.float32(0.0))

    for token in range(first, stop, _MIX_TOKENS):
        last = min(token + _MIX_TOKENS, stop)
        for h in range(heads):
            r = max(0, token - position) * group
            while r < rows * group:
                # Neighbouring rows together as far as the first of them sees, then each as far as it sees itself.
                together = min(rows * group - r, MIX_ROWS)
                seen = min(last, position + r // group + 1)
                _mix(token, seen, together, first, dim, whole, width, values, v_at + h * v_head, index, v_index_at,
                     scratch, scores_at, part_at, h * rows * group + r)  # fmt: skip
                for i in range(r + 1, r + together):
                    if seen < min(last, position + i // group + 1):
                        _mix(seen, min(last, position + i // group + 1), 1, first, dim, whole, width, values,
                             v_at + h * v_head, index, v_index_at, scratch, scores_at, part_at,
                             h * rows * group + i)  # fmt: skip
                r += together


@njit
def _mix(token, stop, rows, first, dim, whole, width, values, v_at, index, index_at, scratch, scores_at, part_at, r):
    weights = scores_at + r * _LINE - first
    panel, panels = 0, whole // 16
    while panel < panels:
        n = min(PANELS[rows], panels - panel)
        mix(values, v_at + panel * 16, n, index, index_at, scratch, weights, _LINE,
            rows, scratch, part_at + r * width + panel * 16, width, token, stop)  # fmt: skip
        panel += n
    for i in range(rows if whole < dim else 0):
        for t in range(token, stop):
            for d in range(whole, dim):
                at = part_at + (r + i) * width + d
                value = widened(values, v_at + index[index_at + t] + d)
                put(scratch, at, get(scratch, at) + get(scratch, weights + i * _LINE + t) * value)


@njit
def _places(places, at, blocks, table_at, block_size, block_stride, token_stride, first, stop, longest) -> None:
    """Where tokens [first, stop) lie: elements from the beginning of the layer; the last one again past `longest`."""
    last = min(stop, longest)
    token = first
    while token < last:
        offset = token % block_size
        place = blocks[table_at + token // block_size] * block_stride + offset * token_stride
        for _ in range(min(block_size - offset, last - token)):
            places[at + token - first] = place
            place += token_stride
            token += 1
    for token in range(last, stop):
        places[at + token - first] = places[at + longest - 1 - first]


@njit(inline="always")
def attend(
    piece, pieces, turns, group, dim, width, block_size, table_width, blocks, scale, q, q_row, q_head, keys, k_at,
    k_head, k_token, k_block, values, v_at, v_head, v_token, v_block, out, out_row, out_head, partials, scratch, places
) -> None:  # fmt: skip
    """Do a piece; and where it is the last one of its rows and heads, fold what all of them found.

    Args:
        q, out: a query head's `dim` numbers lie at row x q_row + head x q_head.
        keys, values: a token's at k_at + block x k_block + offset x k_token + KV head x k_head.
        blocks: [sequences, table_width] int32, flat.
        width: `dim` rounded up to a multiple of 16.
    """
    at = piece * PIECE_FIELDS
    first, rows, position = pieces[at + FIRST], pieces[at + COUNT], pieces[at + POSITION]
    head, heads = pieces[at + KV_HEAD], pieces[at + KV_HEADS]
    siblings, partial = pieces[at + SIBLINGS], pieces[at + PARTIAL]
    table_at = pieces[at + SEQUENCE] * table_width
    longest = position + rows
    n = heads * rows * group  # rows of scores
    scores_at = n * width
    part_at = scores_at + n * _LINE
    sum_at = part_at + n * width
    part_stats = sum_at + n * width
    stats = part_stats + 2 * n
    record = n * (width + 2)  # of one chunk in `partials`
    values_alike = k_token == v_token and k_block == v_block
    v_places = 0 if values_alike else PLACES

    for r in range(n):
        row, query_head = first + r // group % rows, (head + r // (group * rows)) * group + r % group
        for d in range(dim):
            put(scratch, r * width + d, get(q, row * q_row + query_head * q_head + d) * scale)
        for d in range(dim, width):
            put(scratch, r * width + d, np.float32(0.0))
        for d in range(width):
            put(scratch, sum_at + r * width + d, np.float32(0.0))
        put(scratch, stats + 2 * r, np.float32(-np.inf))
        put(scratch, stats + 2 * r + 1, np.float32(0.0))

    for chunk in range(pieces[at + FIRST_CHUNK], pieces[at + LAST_CHUNK]):
        start = chunk * CHUNK
        stop = min(start + CHUNK, longest)
        beyond = stop + 8 + KEYS_AHEAD
        _places(places, 0, blocks, table_at, block_size, k_block, k_token, start, beyond, longest)
        if not values_alike:
            _places(places, v_places, blocks, table_at, block_size, v_block, v_token, start, beyond, longest)
        _chunk(start, stop, position, rows, heads, group, dim, width, keys, k_at + head * k_head, k_head,
               values, v_at + head * v_head, v_head, places, -start, v_places - start, scratch, scores_at, part_at,
               part_stats)  # fmt: skip
        if siblings == 1:
            _fold_all(scratch, part_at, scratch, part_stats, scratch, sum_at, stats, width, n, group, rows, position,
                      start)  # fmt: skip
        else:
            for i in range(n * width):
                put(partials, partial + chunk * record + i, get(scratch, part_at + i))
            for i in range(2 * n):
                put(partials, partial + chunk * record + n * width + i, get(scratch, part_stats + i))

    complete = siblings == 1
    if not complete and fetch_add(turns, pieces[at + ELDEST], 1) + 1 == siblings:
        store(turns, pieces[at + ELDEST], 0)
        complete = True
        for chunk in range((longest + CHUNK - 1) // CHUNK):
            from_at = partial + chunk * record
            _fold_all(partials, from_at, partials, from_at + n * width, scratch, sum_at, stats, width, n, group, rows,
                      position, chunk * CHUNK)  # fmt: skip
    if complete:
        for r in range(n):
            row, query_head = first + r // group % rows, (head + r // (group * rows)) * group + r % group
            share = np.float32(1.0) / get(scratch, stats + 2 * r + 1)
            for d in range(dim):
                put(out, row * out_row + query_head * out_head + d, get(scratch, sum_at + r * width + d) * share)


@njit
def _fold_all(
    part, part_at, part_stats, part_stats_at, x, x_at, x_stats, width, n, group, rows, position, start
) -> None:  # fmt: skip
    """Fold a chunk that begins at `start` for the rows that see something of it."""
    for r in range(n):
        if position + r // group % rows >= start:
            most, total = get(part_stats, part_stats_at + 2 * r), get(part_stats, part_stats_at + 2 * r + 1)
            _fold(part, part_at + r * width, most, total, x, x_at + r * width, x_stats + 2 * r, width)


def most_pieces(tokens: int, sequences: int, kv_heads: int, group: int, threads: int) -> int:
    """No batch of that size is cut into more."""
    return (tokens // _rows_at_most(group) + sequences) * kv_heads + _extra(threads)


@njit
def _rows_at_most(group: int) -> int:
    return max(1, min(ROWS, HEADS // group))


@njit
def _extra(threads: int) -> int:
    return 4 * threads * _PIECES


@njit
def cut(query_lens, context_lens, kv_heads, group, width, threads, pieces, partials) -> int:
    """Write the pieces of a batch; returns how many. `partials` is the room for chunks of texts that are divided.

    A text is divided only where that keeps threads busy: first by chunks, so that a piece reads whole tokens, which lie
    side by side in memory; then by KV heads.
    """
    all_tokens = 0
    for s in range(len(query_lens)):
        all_tokens += query_lens[s] * context_lens[s]
    enough = max(1, all_tokens // (threads * _PIECES)) if threads > 1 else all_tokens + 1
    count, extra, used, first = 0, _extra(threads), 0, 0
    for s in range(len(query_lens)):
        taken = 0
        while taken < query_lens[s]:
            rows = min(_rows_at_most(group), query_lens[s] - taken)
            position = context_lens[s] - query_lens[s] + taken
            longest = position + rows
            chunks = (longest + CHUNK - 1) // CHUNK
            wanted = max(1, rows * longest // enough)
            parts = min(chunks, wanted)
            groups = min(kv_heads, (wanted + parts - 1) // parts)
            heads = min((kv_heads + groups - 1) // groups, max(1, HEADS // (group * rows)))
            groups = (kv_heads + heads - 1) // heads
            room = chunks * kv_heads * rows * group * (width + 2)
            if parts > 1 and (groups * (parts - 1) > extra or used + room > partials):
                parts = 1
            extra -= groups * (parts - 1)
            for g in range(groups):
                eldest = count
                for part in range(parts):
                    at = count * PIECE_FIELDS
                    pieces[at + FIRST], pieces[at + COUNT] = first + taken, rows
                    pieces[at + SEQUENCE], pieces[at + POSITION] = s, position
                    pieces[at + KV_HEAD], pieces[at + KV_HEADS] = g * heads, min(heads, kv_heads - g * heads)
                    pieces[at + FIRST_CHUNK], pieces[at + LAST_CHUNK] = (
                        part * chunks // parts, (part + 1) * chunks // parts,
                    )  # fmt: skip
                    pieces[at + SIBLINGS], pieces[at + ELDEST], pieces[at + PARTIAL] = parts, eldest, used
                    count += 1
                if parts > 1:
                    used += chunks * min(heads, kv_heads - g * heads) * rows * group * (width + 2)
            taken += rows
        first += query_lens[s]
    return count
