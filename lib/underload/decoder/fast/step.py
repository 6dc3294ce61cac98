# mypy: ignore-errors
# (numba infers and checks the types of compiled functions, and they are not those of Python)
"""One step of the model, compiled: the phases, the pieces of work in each, and the ticket that hands them out.

`prepare` (one thread) looks up embeddings and lays out the step; then every thread runs `work`, which takes pieces
until there are none. All arrays are flat; `size`, `step` and `control` are int64 arrays with the named fields below.
"""

import hashlib
from pathlib import Path

import numpy as np
from numba import njit

from underload.decoder.fast.sync import fetch_add, give_way, load, pause, store
from underload.decoder.fast.team import DONE, END, STOP, TICKET
from underload.decoder.fast.tile import (
    KEYS_AHEAD,
    LANES,
    MAX_ROWS,
    MIX_ROWS,
    bits_to_float,
    copy_out,
    get,
    mix,
    panels_at_once,
    product,
    put,
    scores,
    widened,
)

# Fields of `size`: fixed for a model and a cache. "Wide" sizes are rounded up to whole panels, with zeros.
(HIDDEN, WIDE_HIDDEN, HEADS, KV_HEADS, HEAD_DIM, WIDE_HEAD, INNER, LAYERS, VOCAB, LAYER_WEIGHTS, LAYER_VECTORS,
 BIAS, HEAD_NORM, KV_LAYER, MAX_STEP_ROWS, CONTEXT, SCRATCH, THREADS, SIZES) = range(19)  # fmt: skip
# Fields of `step`: what `prepare` lays out for one step.
ROWS, SEGMENTS, PICKS, WANT, NUMBER, RESULT, FIRST_COUNT, FIRST_UNIT, STEP_FIELDS = 0, 1, 2, 3, 4, 5, 8, 16, 24
LOGITS, GREEDY = 1, 2  # what a step is wanted for
BAD_TOKEN, BAD_BLOCK, BAD_ROW = 1, 2, 3  # why a step was not begun
# The phases of a layer; every phase needs all of the one before.
QKV, ATTENTION, OUTPUT, GATE_UP, DOWN, PHASES = range(6)
HEAD = PHASES  # and once at the end

SEGMENT_ROWS = 16  # query rows of one sequence that a piece of attention takes at most
_SPINS = 2000  # tries before a waiting thread offers its core to others
_FEW_ROWS, _LITTLE_AHEAD = 4, 256  # up to how many rows a product reads ahead by how many weights
_MIX_TOKENS = 64  # values of this many tokens stay in the first-level cache while a segment's rows use them
_PANELS = np.array([0] + [panels_at_once(rows) for rows in range(1, MAX_ROWS + 1)])

# What a reduction may be rearranged for, without assuming that there is no NaN. The order depends on the length only.
_REORDER = {"reassoc", "nsz", "contract", "arcp"}


# ---------------------------------------------------------------------- tickets
# One word says everything: the phase, how many pieces it has, and the next one to take. A thread that adds 1 to it
# owns the piece it then reads, whatever it knew before. So no thread is waited for but one that holds a piece:
# a thread that sleeps, is late, or does not exist only helps less.


@njit(inline="always")
def _ticket(phase: int, pieces: int) -> int:
    return (phase << 48) | (pieces << 24)


@njit(inline="always")
def _phase_of(ticket: int) -> int:
    return ticket >> 48


@njit(inline="always")
def _pieces_of(ticket: int) -> int:
    return (ticket >> 24) & 0xFFFFFF


@njit(inline="always")
def _piece_of(ticket: int) -> int:
    return ticket & 0xFFFFFF


@njit
def _next_ticket(phase: int, size: np.ndarray, step: np.ndarray) -> int:
    """The ticket of the phase after `phase`."""
    following = phase + 1
    last = size[LAYERS] * PHASES
    if following < last:
        return _ticket(following, step[FIRST_COUNT + following % PHASES])
    if following == last and step[PICKS] > 0:
        return _ticket(following, step[FIRST_COUNT + HEAD])
    return _ticket(END, 0)


# ---------------------------------------------------------------------- small parts


@njit
def _exp(x: float) -> float:
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


@njit(fastmath=_REORDER)
def _rms_norm(
    x: np.ndarray, x_at: int, out: np.ndarray, out_at: int, weight: np.ndarray, weight_at: int, n: int, wide: int,
    eps: float
) -> None:  # fmt: skip
    """out = x / sqrt(mean(x^2) + eps) * weight; n values count, the rest up to `wide` is zero."""
    total = np.float32(0.0)
    for i in range(wide):
        total += get(x, x_at + i) * get(x, x_at + i)
    scale = np.float32(1.0) / np.float32(np.sqrt(total / np.float32(n) + eps))
    for i in range(wide):
        put(out, out_at + i, get(x, x_at + i) * scale * get(weight, weight_at + i))


@njit(fastmath=_REORDER | {"nnan"})
def _largest(x: np.ndarray, at: int, n: int) -> float:
    """The largest of n values; if some are NaN, any value (the exponentials will carry the NaN on)."""
    best = get(x, at)
    for i in range(1, n):
        value = get(x, at + i)
        best = value if value > best else best
    return best


@njit(fastmath=_REORDER)
def _softmax(x: np.ndarray, at: int, n: int) -> float:
    """x = exp(x - max) in place; returns 1 / their sum, which the caller applies to the shorter result."""
    shift = _largest(x, at, n)
    for i in range(n):
        put(x, at + i, _exp(get(x, at + i) - shift))
    total = np.float32(0.0)
    for i in range(n):
        total += get(x, at + i)
    return np.float32(1.0) / total


@njit
def _rotate(x: np.ndarray, at: int, turn: np.ndarray, turn_at: int, half: int) -> None:
    """Turn the pairs (i, i + half); `turn` holds half cosines, then half sines."""
    for i in range(half):
        a, b = get(x, at + i), get(x, at + half + i)
        c, s = get(turn, turn_at + i), get(turn, turn_at + half + i)
        put(x, at + i, a * c - b * s)
        put(x, at + half + i, b * c + a * s)


@njit
def _multiply(x, x_stride, rows, w, w_at, panels, inner, skip, out, out_stride) -> None:
    """out [rows, 16 panels] = x [rows, inner] times `panels` panels of w from `w_at`.

    Rows go in even groups (17 as 9 + 8); a panel stays in the cache for all of them. With few rows the memory is the
    limit, and reading a little ahead keeps it busy; with more the arithmetic is, and the whole of the next panels is
    read meanwhile: after the last, those `skip` panels further on, where this thread's next piece should be.
    """
    groups = (rows + MAX_ROWS - 1) // MAX_ROWS
    widest = _PANELS[(rows + groups - 1) // groups]
    panel = 0
    while panel < panels:
        n = min(widest, panels - panel)
        ahead = n * LANES * inner if panel + n < panels else (n + skip) * LANES * inner
        if rows <= _FEW_ROWS:
            ahead = _LITTLE_AHEAD
        for group in range(groups):
            first, last = group * rows // groups, (group + 1) * rows // groups
            product(w, w_at + panel * LANES * inner, n, x, first * x_stride, x_stride, last - first,
                    out, first * out_stride + panel * LANES, out_stride, inner, ahead)  # fmt: skip
        panel += n


# ---------------------------------------------------------------------- the pieces
# Put into the loop that calls them before they are compiled: on their own, each would be compiled twice.


@njit(inline="always")
def _project(head, layer, size, step, w, vectors, eps, normed, slots, turns, q, keys, values, scratch) -> None:
    """One head of q, k or v for all rows: product, bias, norm and rotation where the model has them, and its place."""
    wide, dim, width = size[WIDE_HIDDEN], size[HEAD_DIM], size[WIDE_HEAD]
    heads, kv_heads = size[HEADS], size[KV_HEADS]
    w_at = layer * size[LAYER_WEIGHTS] + head * width * wide
    _multiply(
        normed,
        wide + LANES,
        step[ROWS],
        w,
        w_at,
        width // LANES,
        wide,
        (size[THREADS] - 1) * (width // LANES),
        scratch,
        width,
    )
    vector = layer * size[LAYER_VECTORS] + 2 * wide
    is_value = head >= heads + kv_heads
    for row in range(step[ROWS]):
        at = row * width
        if size[BIAS]:
            for i in range(width):
                put(scratch, at + i, get(scratch, at + i) + get(vectors, vector + head * width + i))
        if not is_value:
            if size[HEAD_NORM]:
                norm = vector + (heads + 2 * kv_heads + (0 if head < heads else 1)) * width
                _rms_norm(scratch, at, scratch, at, vectors, norm, dim, width, eps)
            _rotate(scratch, at, turns, row * dim, dim // 2)
        if head < heads:  # queries take the 1 / sqrt(head_dim) of the scores along
            scale = np.float32(1.0) / np.float32(np.sqrt(np.float32(dim)))
            for i in range(width):
                put(q, (row * heads + head) * width + i, get(scratch, at + i) * scale)
        else:
            kv_head = (head - heads) % kv_heads
            place = layer * size[KV_LAYER] + (slots[row] * kv_heads + kv_head) * width
            if is_value:
                for i in range(width):
                    put(values, place + i, get(scratch, at + i))
            else:
                for i in range(width):
                    put(keys, place + i, get(scratch, at + i))


@njit(inline="always")
def _attend(piece, layer, size, segments, positions, index, q, keys, values, attended, scratch) -> None:
    """One segment (neighbouring rows of one sequence) and one KV head with all its query heads.

    Row by row no key or value past the row's own position is read: whatever the cache holds there cannot matter.
    """
    kv_heads, width = size[KV_HEADS], size[WIDE_HEAD]
    group = size[HEADS] // kv_heads
    segment, kv_head = piece // kv_heads, piece % kv_heads
    first, rows, sequence = segments[3 * segment], segments[3 * segment + 1], segments[3 * segment + 2]
    index_at = sequence * size[CONTEXT]
    kv_at = layer * size[KV_LAYER] + kv_head * width
    row_width = size[HEADS] * width
    head_at = kv_head * group * width
    longest = positions[first + rows - 1] + 1
    line = (longest + 7) // 8 * 8

    for token in range(0, longest, 8):
        for i in range(rows):
            if token <= positions[first + i]:
                scores(keys, kv_at, values, index, index_at, q, (first + i) * row_width + head_at, width, group,
                       scratch, i * group * line, line, token, width)  # fmt: skip

    sums = rows * group * line  # after the scores
    for i in range(rows):
        for j in range(group):
            scratch[sums + i * group + j] = _softmax(scratch, (i * group + j) * line, positions[first + i] + 1)
        out_at = (first + i) * (row_width + LANES) + head_at
        for d in range(group * width):
            put(attended, out_at + d, np.float32(0.0))

    panels = width // LANES
    for token in range(0, longest, _MIX_TOKENS):
        for i in range(rows):
            stop = min(token + _MIX_TOKENS, positions[first + i] + 1)
            if token < stop:
                out_at = (first + i) * (row_width + LANES) + head_at
                j = 0
                while j < group:
                    together = min(group - j, MIX_ROWS)
                    panel = 0
                    while panel < panels:
                        n = min(_PANELS[together], panels - panel)
                        mix(values, kv_at + panel * LANES, n, index, index_at, scratch, (i * group + j) * line, line,
                            together, attended, out_at + j * width + panel * LANES, width, token, stop)  # fmt: skip
                        panel += n
                    j += together

    for i in range(rows):
        for j in range(group):
            scale = scratch[sums + i * group + j]
            out_at = (first + i) * (row_width + LANES) + head_at + j * width
            for d in range(width):
                put(attended, out_at + d, get(attended, out_at + d) * scale)


@njit(inline="always")
def _add_product(first, last, skip, x, x_stride, inner, rows, w, w_at, residual, stride, scratch) -> None:
    """residual[:, panels first to last] += x times these panels."""
    width = (last - first) * LANES
    _multiply(x, x_stride, rows, w, w_at + first * LANES * inner, last - first, inner, skip, scratch, width)
    for row in range(rows):
        for i in range(width):
            to = row * stride + first * LANES + i
            put(residual, to, get(residual, to) + get(scratch, row * width + i))


@njit(inline="always")
def _gate_up(first, last, skip, normed, stride, wide, rows, w, w_at, hidden, hidden_stride, scratch) -> None:
    """hidden = silu(gate) * up for panels first to last of each; they lie in turn, gate 0, up 0, gate 1, up 1, ..."""
    width = (last - first) * 2 * LANES
    _multiply(
        normed, stride, rows, w, w_at + first * 2 * LANES * wide, 2 * (last - first), wide, 2 * skip, scratch, width
    )
    for row in range(rows):
        for panel in range(last - first):
            at, to = row * width + panel * 2 * LANES, row * hidden_stride + (first + panel) * LANES
            for i in range(LANES):
                gate = get(scratch, at + i)
                put(hidden, to + i, gate / (np.float32(1.0) + _exp(-gate)) * get(scratch, at + LANES + i))


@njit(inline="always")
def _head(
    first, last, skip, normed, stride, wide, picks, w, w_at, vocab, want, result, best, best_id, best_at, scratch
) -> None:
    """Logits of panels first to last: stored, or kept only where larger than this thread's best so far.

    A NaN becomes the best and stays it; ids beyond the vocabulary (padding) are never looked at.
    """
    width = (last - first) * LANES
    _multiply(normed, stride, picks, w, w_at + first * LANES * wide, last - first, wide, skip, scratch, width)
    n = min(width, vocab - first * LANES)
    for row in range(picks):
        if want == LOGITS:
            copy_out(result, row * vocab + first * LANES, scratch, row * width, n)
        else:
            value, number = best[best_at + row], best_id[best_at + row]
            for i in range(n):
                candidate, candidate_id = get(scratch, row * width + i), first * LANES + i
                if candidate > value or (candidate == value and candidate_id < number) or candidate != candidate:
                    value, number = candidate, candidate_id
            best[best_at + row], best_id[best_at + row] = value, number


# ---------------------------------------------------------------------- the step


@njit
def _prepare(
    control, step, size, embedding, token_ids, query_lens, block_tables, num_blocks, block_size, logit_rows,
    positions, slots, segments, index, rows_picked, x, best, want, number, result, failed
) -> None:  # fmt: skip
    """Lay out a step (one thread) and offer its first phase; or say in `failed` why not, and offer nothing.

    `positions` [rows] is there already; `result` is the address that logits go to, [logit rows, vocab].
    """
    rows, picks = len(token_ids), len(logit_rows)
    wide, hidden = size[WIDE_HIDDEN], size[HIDDEN]
    for row in range(rows):
        if token_ids[row] < 0 or token_ids[row] >= size[VOCAB]:
            failed[0], failed[1] = BAD_TOKEN, token_ids[row]
            return
        for i in range(hidden):
            put(x, row * (wide + LANES) + i, widened(embedding, token_ids[row] * hidden + i))
        for i in range(hidden, wide):
            put(x, row * (wide + LANES) + i, np.float32(0.0))
    for pick in range(picks):
        if logit_rows[pick] < 0 or logit_rows[pick] >= rows:
            failed[0], failed[1] = BAD_ROW, logit_rows[pick]
            return
        rows_picked[pick] = logit_rows[pick]

    token_width = size[KV_HEADS] * size[WIDE_HEAD]
    group = size[HEADS] // size[KV_HEADS]
    row, count, present = 0, 0, 0
    for sequence in range(len(query_lens)):
        n = query_lens[sequence]
        if n == 0:
            continue
        context = positions[row + n - 1] + 1
        at = present * size[CONTEXT]
        for first in range(0, context, block_size):
            column = first // block_size
            block = block_tables[sequence, column] if column < block_tables.shape[1] else -1
            if block < 0 or block >= num_blocks:
                failed[0], failed[1] = BAD_BLOCK, block
                return
            for token in range(first, min(first + block_size, context)):
                index[at + token] = (block * block_size + token - first) * token_width
        for token in range(context, context + 7 + KEYS_AHEAD):  # what the score kernel reads past the end, and drops
            index[at + token] = index[at + context - 1]
        most = max(1, min(SEGMENT_ROWS, size[SCRATCH] // (group * (context + 8))))
        taken = 0
        while taken < n:
            length = min(most, n - taken)
            segments[3 * count], segments[3 * count + 1], segments[3 * count + 2] = row + taken, length, present
            taken, count = taken + length, count + 1
        for i in range(n):
            slots[row + i] = index[at + positions[row + i]] // token_width
        row, present = row + n, present + 1

    step[ROWS], step[SEGMENTS], step[PICKS], step[WANT] = rows, count, picks, want
    step[NUMBER], step[RESULT] = number, result
    step[FIRST_COUNT + QKV] = size[HEADS] + 2 * size[KV_HEADS]
    step[FIRST_COUNT + ATTENTION] = count * size[KV_HEADS]
    for phase, panels, most in (
        (OUTPUT, wide // LANES, 4),
        (GATE_UP, size[INNER] // LANES, 2),
        (DOWN, wide // LANES, 4),
        (HEAD, (size[VOCAB] + LANES - 1) // LANES, 4),
    ):
        unit = max(1, min(most, panels // (8 * size[THREADS])))
        step[FIRST_UNIT + phase] = unit
        step[FIRST_COUNT + phase] = (panels + unit - 1) // unit
    for i in range(size[THREADS] * size[MAX_STEP_ROWS]):
        best[i] = -np.inf
    store(control, DONE, 0)
    store(control, TICKET, _ticket(0, step[FIRST_COUNT + QKV]))


@njit
def _work(
    thread, patience, control, size, eps, step, w, vectors, positions, slots, segments, index, rows_picked, turns, x,
    q, attended, hidden, keys, values, best, best_id, normed_of, scratch_of
) -> None:  # fmt: skip
    """Take pieces of work until the step is over (patience 0), or until nothing came for a while or STOP is set."""
    wide, inner = size[WIDE_HIDDEN], size[INNER]
    stride = wide + LANES
    row_width = size[HEADS] * size[WIDE_HEAD]
    normed, scratch = normed_of[thread], scratch_of[thread]
    normed_for = -1  # the step and phase that `normed` holds the input of
    heads = size[HEADS] + 2 * size[KV_HEADS]
    output_at = heads * size[WIDE_HEAD] * wide
    gate_at = output_at + wide * row_width
    down_at = gate_at + 2 * inner * wide
    waited, gave_way = 0, 0
    while True:
        ticket = load(control, TICKET)
        if _piece_of(ticket) >= _pieces_of(ticket):
            over = _phase_of(ticket) == END
            if over and (patience == 0 or gave_way > patience or load(control, STOP) != 0):
                return
            waited += 1
            if waited < _SPINS:
                pause()
            else:
                gave_way += 1
                give_way()
            continue
        ticket = fetch_add(control, TICKET, 1)
        phase, piece, pieces = _phase_of(ticket), _piece_of(ticket), _pieces_of(ticket)
        if piece >= pieces:
            continue
        waited, gave_way = 0, 0
        rows = step[ROWS]
        layer, kind = phase // PHASES, phase % PHASES
        if phase == size[LAYERS] * PHASES:
            kind = HEAD

        if kind in (QKV, GATE_UP, HEAD) and normed_for != step[NUMBER] * END + phase:
            # Each thread norms its own copy: a few microseconds twice cost less than waiting for each other once more.
            normed_for = step[NUMBER] * END + phase
            weight = layer * size[LAYER_VECTORS] + (wide if kind == GATE_UP else 0)
            if kind == HEAD:
                for pick in range(step[PICKS]):
                    _rms_norm(
                        x, rows_picked[pick] * stride, normed, pick * stride, vectors, weight, size[HIDDEN], wide, eps
                    )
            else:
                for row in range(rows):
                    _rms_norm(x, row * stride, normed, row * stride, vectors, weight, size[HIDDEN], wide, eps)

        at = layer * size[LAYER_WEIGHTS]
        if kind == QKV:
            _project(piece, layer, size, step, w, vectors, eps, normed, slots, turns, q, keys, values, scratch)
        elif kind == ATTENTION:
            _attend(piece, layer, size, segments, positions, index, q, keys, values, attended, scratch)
        else:
            first = piece * step[FIRST_UNIT + kind]
            skip = (size[THREADS] - 1) * step[FIRST_UNIT + kind]
            if kind == OUTPUT:
                last = min(first + step[FIRST_UNIT + kind], wide // LANES)
                _add_product(
                    first,
                    last,
                    skip,
                    attended,
                    row_width + LANES,
                    row_width,
                    rows,
                    w,
                    at + output_at,
                    x,
                    stride,
                    scratch,
                )
            elif kind == GATE_UP:
                last = min(first + step[FIRST_UNIT + kind], inner // LANES)
                _gate_up(first, last, skip, normed, stride, wide, rows, w, at + gate_at, hidden, inner + LANES, scratch)
            elif kind == DOWN:
                last = min(first + step[FIRST_UNIT + kind], wide // LANES)
                _add_product(first, last, skip, hidden, inner + LANES, inner, rows, w, at + down_at, x, stride, scratch)
            else:
                last = min(first + step[FIRST_UNIT + kind], (size[VOCAB] + LANES - 1) // LANES)
                _head(first, last, skip, normed, stride, wide, step[PICKS], w, at, size[VOCAB], step[WANT],
                      step[RESULT], best, best_id, thread * size[MAX_STEP_ROWS], scratch)  # fmt: skip

        if fetch_add(control, DONE, 1) + 1 == pieces:  # the last one done opens the next phase
            store(control, DONE, 0)
            store(control, TICKET, _next_ticket(phase, size, step))


def _compiled(version: int):
    """`prepare` and `work`, kept in numba's cache where it has a folder to write to.

    Numba keys its cache by the text of this file and by what a function closes over. They close over `version`, a
    digest of the whole package, so that no change anywhere in it can meet code compiled before.
    """

    def prepare(*args):
        if version:
            _prepare(*args)

    def work(*args):
        if version:
            _work(*args)

    try:
        return tuple(njit(nogil=True, cache=True)(function) for function in (prepare, work))
    except RuntimeError:  # numba: no folder it may write to
        return tuple(njit(nogil=True)(function) for function in (prepare, work))


def _digest() -> int:
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return int.from_bytes(hashlib.sha256(b"".join(path.read_bytes() for path in sources)).digest()[:7], "big")


prepare, work = _compiled(_digest())
