# mypy: ignore-errors
# (numba infers and checks the types of compiled functions, and they are not those of Python)
"""One step of the model, compiled: the phases, the pieces of work in each, and the ticket that hands them out.

`prepare` (one thread) looks up embeddings and lays out the step; then every thread runs `work`, which takes pieces
until there are none. All arrays are flat; `size`, `step` and `control` are int64 arrays with the named fields below.
"""

import numpy as np
from numba import njit

from underload.decoder.fast.attend import PANELS, REORDER, attend, cut, exp
from underload.decoder.fast.team import END
from underload.decoder.fast.ticket import last_done, offer, phase_of, piece_of, take
from underload.decoder.fast.tile import LANES, MAX_ROWS, copy_out, get, narrow, product, put, widened
from underload.decoder.fast.version import digest

# Fields of `size`: fixed for a model and a cache. "Wide" sizes are rounded up to whole panels, with zeros.
(HIDDEN, WIDE_HIDDEN, HEADS, KV_HEADS, HEAD_DIM, WIDE_HEAD, INNER, LAYERS, VOCAB, LAYER_WEIGHTS, LAYER_VECTORS,
 BIAS, HEAD_NORM, KV_LAYER, BLOCK_SIZE, MAX_STEP_ROWS, THREADS, PANEL, SIZES) = range(19)  # fmt: skip
# Fields of `step`: what `prepare` lays out for one step.
ROWS, PICKS, WANT, NUMBER, RESULT, TABLE_WIDTH, FIRST_COUNT, FIRST_UNIT, STEP_FIELDS = 0, 1, 2, 3, 4, 5, 8, 16, 24
LOGITS, GREEDY = 1, 2  # what a step is wanted for
BAD_TOKEN, BAD_BLOCK, BAD_ROW = 1, 2, 3  # why a step was not begun
# The phases of a layer; every phase needs all of the one before.
QKV, ATTENTION, OUTPUT, GATE_UP, DOWN, PHASES = range(6)
HEAD = PHASES  # and once at the end

_FEW_ROWS, _LITTLE_AHEAD = 4, 1024  # up to how many rows a product reads ahead by how many weights


@njit
def _open_next(control, phase: int, size: np.ndarray, step: np.ndarray) -> None:
    """Open the phase after `phase`."""
    following = phase + 1
    last = size[LAYERS] * PHASES
    if following < last:
        offer(control, following, step[FIRST_COUNT + following % PHASES])
    elif following == last and step[PICKS] > 0:
        offer(control, following, step[FIRST_COUNT + HEAD])
    else:
        offer(control, END, 0)


# ---------------------------------------------------------------------- small parts


@njit(fastmath=REORDER)
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


@njit
def _rotate(x: np.ndarray, at: int, turn: np.ndarray, turn_at: int, half: int) -> None:
    """Turn the pairs (i, i + half); `turn` holds half cosines, then half sines."""
    for i in range(half):
        a, b = get(x, at + i), get(x, at + half + i)
        c, s = get(turn, turn_at + i), get(turn, turn_at + half + i)
        put(x, at + i, a * c - b * s)
        put(x, at + half + i, b * c + a * s)


@njit(fastmath=REORDER, error_model="numpy")
def _silu_times(x: np.ndarray, gate_at: int, up_at: int, n: int) -> None:
    """gate = silu(gate) * up, in place: gate / (1 + exp(-gate)) * up.

    Made vectors of by LLVM as long as it does not know n, or it would write out so few steps one by one; and as long as
    no division checks for zero, as Python's does.
    """
    for i in range(n):
        gate = get(x, gate_at + i)
        put(x, gate_at + i, gate / (np.float32(1.0) + exp(-gate)) * get(x, up_at + i))


@njit
def _multiply(x, x_stride, rows, w, w_at, panels, inner, skip, out, out_stride) -> None:
    """out [rows, 16 panels] = x [rows, inner] times `panels` panels of w from `w_at`.

    Rows go in even groups (17 as 6 + 6 + 5), and panels too (4 as 2 + 2 where 3 fit); a panel stays in the cache for
    all rows. With few rows the memory is the limit, and reading a little ahead keeps it busy; with more the arithmetic
    is, and the whole of the next panels is read meanwhile: after the last, those `skip` panels further on, where this
    thread's next piece should be.
    """
    groups = (rows + MAX_ROWS - 1) // MAX_ROWS
    widest = PANELS[(rows + groups - 1) // groups]
    parts = (panels + widest - 1) // widest
    panel = 0
    for part in range(parts):
        n = (part + 1) * panels // parts - panel
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
        if head < heads:
            for i in range(width):
                put(q, (row * heads + head) * width + i, get(scratch, at + i))
        else:
            kv_head = (head - heads) % kv_heads
            place = layer * size[KV_LAYER] + (slots[row] * kv_heads + kv_head) * width
            if is_value:
                for i in range(width):
                    narrow(values, place + i, get(scratch, at + i))
            else:
                for i in range(width):
                    narrow(keys, place + i, get(scratch, at + i))


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
def _gate_up(first, last, skip, panel_width, normed, stride, wide, rows, w, w_at, hidden, hidden_stride, scratch):
    """hidden = silu(gate) * up for panels first to last of each; they lie in turn, gate 0, up 0, gate 1, up 1, ..."""
    width = (last - first) * 2 * LANES
    _multiply(
        normed, stride, rows, w, w_at + first * 2 * LANES * wide, 2 * (last - first), wide, 2 * skip, scratch, width
    )
    for row in range(rows):
        for panel in range(last - first):
            at, to = row * width + panel * 2 * LANES, row * hidden_stride + (first + panel) * LANES
            _silu_times(scratch, at, at + LANES, panel_width)
            for i in range(LANES):
                put(hidden, to + i, get(scratch, at + i))


@njit(inline="always")
def _head(
    first, last, skip, normed, stride, wide, picks, w, w_at, vocab, want, result, best, best_id, best_at, scratch
) -> None:
    """Logits of panels first to last: stored, or kept only where larger than this thread's best so far.

    A NaN becomes the best and stays it; ids beyond the vocabulary (padding) are never looked at. A thread takes pieces
    in rising order, so that of equal logits it has met the lowest id first.
    """
    width = (last - first) * LANES
    _multiply(normed, stride, picks, w, w_at + first * LANES * wide, last - first, wide, skip, scratch, width)
    n = min(width, vocab - first * LANES)
    for row in range(picks):
        if want == LOGITS:
            copy_out(result, row * vocab + first * LANES, scratch, row * width, n)
        else:
            value, better = best[best_at + row], False
            for i in range(n):  # in vectors; hardly ever is one better
                better |= not get(scratch, row * width + i) <= value
            if better:
                number = best_id[best_at + row]
                for i in range(n):
                    candidate = get(scratch, row * width + i)
                    if candidate > value or candidate != candidate:
                        value, number = candidate, first * LANES + i
                best[best_at + row], best_id[best_at + row] = value, number


# ---------------------------------------------------------------------- the step


@njit
def _prepare(
    control, step, size, embedding, token_ids, query_lens, context_lens, block_tables, num_blocks, logit_rows,
    positions, slots, blocks, pieces, partials, rows_picked, x, best, want, number, result, failed
) -> None:  # fmt: skip
    """Lay out a step (one thread) and offer its first phase; or say in `failed` why not, and offer nothing.

    `positions` [rows] is there already; `context_lens` [sequences] is laid out too; `result` is the address that logits
    go to, [logit rows, vocab].
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

    block_size, table_width = size[BLOCK_SIZE], block_tables.shape[1]
    row = 0
    for sequence in range(len(query_lens)):
        n = query_lens[sequence]
        context_lens[sequence] = positions[row + n - 1] + 1 if n > 0 else 0
        for column in range((context_lens[sequence] + block_size - 1) // block_size):
            block = block_tables[sequence, column] if column < table_width else -1
            if block < 0 or block >= num_blocks:
                failed[0], failed[1] = BAD_BLOCK, block
                return
            blocks[sequence * table_width + column] = block
        for i in range(row, row + n):
            block = blocks[sequence * table_width + positions[i] // block_size]
            slots[i] = np.int64(block) * block_size + positions[i] % block_size
        row += n
    group = size[HEADS] // size[KV_HEADS]

    step[ROWS], step[PICKS], step[WANT] = rows, picks, want
    step[NUMBER], step[RESULT], step[TABLE_WIDTH] = number, result, table_width
    step[FIRST_COUNT + QKV] = size[HEADS] + 2 * size[KV_HEADS]
    step[FIRST_COUNT + ATTENTION] = cut(query_lens, context_lens, size[KV_HEADS], group, size[WIDE_HEAD],
                                        size[THREADS], pieces, len(partials))  # fmt: skip
    for phase, panels, most in (
        (OUTPUT, wide // LANES, 4),
        (GATE_UP, size[INNER] // LANES, 2),
        (DOWN, wide // LANES, 4),
        (HEAD, (size[VOCAB] + LANES - 1) // LANES, 4),
    ):
        unit = max(1, min(most, panels // (3 * size[THREADS])))  # wide tiles, and as many pieces as keep all busy
        step[FIRST_UNIT + phase] = unit
        step[FIRST_COUNT + phase] = (panels + unit - 1) // unit
    for i in range(size[THREADS] * size[MAX_STEP_ROWS]):
        best[i] = -np.inf
    offer(control, 0, step[FIRST_COUNT + QKV])


@njit
def _work(
    thread, patience, control, size, eps, step, w, vectors, slots, blocks, pieces, siblings_done, partials, rows_picked,
    turns, x, q, attended, hidden, keys, values, best, best_id, normed_of, scratch_of, places_of
) -> None:  # fmt: skip
    """Take pieces of work until the step is over (patience 0), or until nothing came for a while or STOP is set."""
    wide, inner = size[WIDE_HIDDEN], size[INNER]
    stride = wide + LANES
    row_width = size[HEADS] * size[WIDE_HEAD]
    normed, scratch, places = normed_of[thread], scratch_of[thread], places_of[thread]
    normed_for = -1  # the step and phase that `normed` holds the input of
    heads = size[HEADS] + 2 * size[KV_HEADS]
    output_at = heads * size[WIDE_HEAD] * wide
    gate_at = output_at + wide * row_width
    down_at = gate_at + 2 * inner * wide
    width, kv_heads = size[WIDE_HEAD], size[KV_HEADS]
    token_width, scale = kv_heads * width, np.float32(1.0) / np.float32(np.sqrt(np.float32(size[HEAD_DIM])))
    while True:
        ticket = take(control, patience)
        if ticket < 0:
            return
        phase, piece = phase_of(ticket), piece_of(ticket)
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
            kv_at, kv_block = layer * size[KV_LAYER], size[BLOCK_SIZE] * token_width
            attend(piece, pieces, siblings_done, size[HEADS] // kv_heads, width, width, size[BLOCK_SIZE],
                   step[TABLE_WIDTH], blocks, scale, q, row_width, width, keys, kv_at, width, token_width, kv_block,
                   values, kv_at, width, token_width, kv_block, attended, row_width + LANES, width, partials, scratch,
                   places)  # fmt: skip
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
                _gate_up(first, last, skip, size[PANEL], normed, stride, wide, rows, w, at + gate_at, hidden,
                         inner + LANES, scratch)  # fmt: skip
            elif kind == DOWN:
                last = min(first + step[FIRST_UNIT + kind], wide // LANES)
                _add_product(first, last, skip, hidden, inner + LANES, inner, rows, w, at + down_at, x, stride, scratch)
            else:
                last = min(first + step[FIRST_UNIT + kind], (size[VOCAB] + LANES - 1) // LANES)
                _head(first, last, skip, normed, stride, wide, step[PICKS], w, at, size[VOCAB], step[WANT],
                      step[RESULT], best, best_id, thread * size[MAX_STEP_ROWS], scratch)  # fmt: skip

        if last_done(control, ticket):
            _open_next(control, phase, size, step)


def _compiled(version: int):
    """`prepare` and `work`, kept in numba's cache where it has a folder to write to (see `version.digest`)."""

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


prepare, work = _compiled(digest())
