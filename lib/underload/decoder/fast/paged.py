# mypy: ignore-errors
# (numba infers and checks the types of compiled functions, and they are not those of Python)
"""Attention by itself, compiled: `prepare` cuts a batch into pieces, then every thread runs `work` on them.

Queries, keys, values and the result are known by their addresses, in `call`, so that the same arguments, already
unpacked by numba and known to the helpers, serve every call.
"""

import numpy as np
from numba import carray, njit

from underload.decoder.fast.attend import attend, cut
from underload.decoder.fast.team import END
from underload.decoder.fast.ticket import last_done, offer, piece_of, take
from underload.decoder.fast.tile import pointer
from underload.decoder.fast.version import digest

# Fields of `call`: addresses and strides (in elements) of one call.
(Q, Q_ROW, Q_HEAD, KEYS, K_BLOCK, K_TOKEN, K_HEAD, VALUES, V_BLOCK, V_TOKEN, V_HEAD, OUT, GROUP, KV_HEADS, DIM,
 WIDTH, BLOCK_SIZE, NUM_BLOCKS, TABLE_WIDTH, THREADS, CALL_FIELDS) = range(21)  # fmt: skip


@njit
def _prepare(control, call, query_lens, context_lens, block_tables, blocks, pieces, partials) -> int:
    """Copy the tables, cut the batch, and offer the pieces; or return a block id that is outside the pool, or -1."""
    for s in range(len(query_lens)):
        if query_lens[s] > 0:
            for column in range((context_lens[s] + call[BLOCK_SIZE] - 1) // call[BLOCK_SIZE]):
                block = block_tables[s, column]
                if block < 0 or block >= call[NUM_BLOCKS]:
                    return s * call[TABLE_WIDTH] + column
                blocks[s * call[TABLE_WIDTH] + column] = block
    count = cut(query_lens, context_lens, call[KV_HEADS], call[GROUP], call[WIDTH], call[THREADS], pieces,
                len(partials))  # fmt: skip
    offer(control, 0, count)
    return -1


@njit
def _work(thread, patience, control, call, kind, blocks, pieces, turns, partials, scratch_of, places_of) -> None:
    """Take pieces until there are none (patience 0), or until nothing came for a while or the helpers are called."""
    scratch, places = scratch_of[thread], places_of[thread]
    while True:
        ticket = take(control, patience)
        if ticket < 0:
            return
        q = carray(pointer(call[Q], partials), (1,))
        out = carray(pointer(call[OUT], partials), (1,))
        keys = carray(pointer(call[KEYS], kind), (1,))
        values = carray(pointer(call[VALUES], kind), (1,))
        scale = np.float32(1.0) / np.float32(np.sqrt(np.float32(call[DIM])))
        attend(piece_of(ticket), pieces, turns, call[GROUP], call[DIM], call[WIDTH], call[BLOCK_SIZE],
               call[TABLE_WIDTH], blocks, scale, q, call[Q_ROW], call[Q_HEAD], keys, 0, call[K_HEAD], call[K_TOKEN],
               call[K_BLOCK], values, 0, call[V_HEAD], call[V_TOKEN], call[V_BLOCK], out,
               call[GROUP] * call[KV_HEADS] * call[DIM], call[DIM], partials, scratch, places)  # fmt: skip
        if last_done(control, ticket):
            offer(control, END, 0)


def _compiled(version: int):
    """`prepare` and `work`, kept in numba's cache where it has a folder to write to (see `version.digest`)."""

    def prepare(*args):
        if version:
            return _prepare(*args)
        return -1

    def work(*args):
        if version:
            _work(*args)

    try:
        return tuple(njit(nogil=True, cache=True)(function) for function in (prepare, work))
    except RuntimeError:  # numba: no folder it may write to
        return tuple(njit(nogil=True)(function) for function in (prepare, work))


prepare, work = _compiled(digest())
