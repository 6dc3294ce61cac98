"""The fast path as a Model sees it: buffers, steps of at most a few rows, and what is not supported."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from underload.decoder.batch import Batch
from underload.decoder.fast import attend
from underload.decoder.fast import step as compiled
from underload.decoder.fast.kv import FastKV
from underload.decoder.fast.notice import notice_if_slow
from underload.decoder.fast.pack import as_numpy, pack, wide
from underload.decoder.fast.team import CONTROL_WORDS, OVER, TICKET, Job, team
from underload.decoder.fast.tile import LANES
from underload.decoder.rope import cos_sin, inverse_frequencies
from underload.decoder.weights import Weights
from underload.request import UnderloadError
from underload.shapes import ModelShape

STEP_ROWS = (
    128  # a longer batch is computed in steps of this many rows: enough to reuse each weight, few enough for the cache
)


class FastPath:
    """The forward pass on the CPU, compiled with numba. The same interface and results as `PlainPath`.

    Weights are copied into panels in the dtype that they have, keys and values are stored in that of the cache, and
    arithmetic is float32. One order of summation serves every batch, chunk, block size and number of threads, so it is
    batch-invariant always, at no cost. Threads may share it, each with a cache of its own: one batch is computed at a
    time, and the others wait.

    Args:
        threads: cores to use; None takes torch's number (`torch.get_num_threads`).
        batch_invariant: accepted for the interface; there is no other mode.
    """

    name = "fast"

    def __init__(
        self, shape: ModelShape, weights: Weights, *, threads: int | None = None, batch_invariant: bool = False
    ) -> None:
        if threads is not None and threads < 1:
            raise UnderloadError(f"threads must be at least 1, got {threads}")
        self.shape = shape
        self.threads = threads or torch.get_num_threads()
        self._team = team(self.threads)
        self._embedding = as_numpy(weights.embed)
        self._inverse_frequencies = inverse_frequencies(shape)
        self._turns = np.empty((0, shape.head_dim), dtype=np.float32)  # cosines and sines of the positions met so far
        packed = pack(shape, weights)
        self._matrices, self._vectors = packed.matrices, packed.vectors
        self._number = 0
        self._context_lens, self._blocks = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
        self._lock, self._process = threading.Lock(), os.getpid()  # one batch at a time: the buffers are shared
        self._kv: FastKV | None = None
        self._result: np.ndarray | None = None
        self._job: Job | None = None
        self._release: Callable[[], Any] = lambda: None
        self._size = np.zeros(compiled.SIZES, dtype=np.int64)
        for field, value in {
            compiled.HIDDEN: shape.hidden_size,
            compiled.WIDE_HIDDEN: wide(shape.hidden_size),
            compiled.HEADS: shape.num_heads,
            compiled.KV_HEADS: shape.num_kv_heads,
            compiled.HEAD_DIM: shape.head_dim,
            compiled.WIDE_HEAD: wide(shape.head_dim),
            compiled.INNER: wide(shape.intermediate_size),
            compiled.LAYERS: shape.num_layers,
            compiled.VOCAB: shape.vocab_size,
            compiled.LAYER_WEIGHTS: packed.layer_matrices,
            compiled.LAYER_VECTORS: packed.layer_vectors,
            compiled.BIAS: int(shape.attention_bias),
            compiled.HEAD_NORM: int(shape.qk_norm),
            compiled.THREADS: self.threads,
            compiled.PANEL: LANES,
        }.items():
            self._size[field] = value

    def new_kv(self, num_blocks: int, block_size: int, dtype: torch.dtype | None = None) -> FastKV:
        """An empty cache; float32 when `dtype` is None."""
        return FastKV(self.shape, num_blocks, block_size, dtype=dtype or torch.float32)

    def forward(self, batch: Batch, kv: FastKV) -> Tensor:
        """Compute the batch, write its keys and values into `kv`; float32 logits [len(batch.logit_rows), vocab].

        Raises:
            UnderloadError: a token id, position or block id out of range, or a cache of another model; nothing was
                computed then.
        """
        logits = np.empty((len(batch.logit_rows), self.shape.vocab_size), dtype=np.float32)
        self._compute(batch, kv, compiled.LOGITS, logits)
        return torch.from_numpy(logits)

    def greedy(self, batch: Batch, kv: FastKV) -> np.ndarray:
        """Like `forward`, but only the id of the largest logit of each row, [len(batch.logit_rows)] int64.

        Of equal logits the lowest id wins, as in `torch.argmax`. A row that has no largest logit, because one is NaN or
        infinite or all are -inf, gives -1: such a row is broken, and must not pass for a token.
        """
        ids = np.empty(len(batch.logit_rows), dtype=np.int64)
        self._compute(batch, kv, compiled.GREEDY, ids)
        return ids

    def close(self) -> None:
        """Let go of the buffers. The threads are the process's, asleep unless a step runs; they end with it."""
        self._forget()
        self._kv = None

    # -------------------------------------------------- one batch

    def _compute(self, batch: Batch, kv: FastKV, want: int, result: np.ndarray) -> None:
        if batch.num_tokens == 0:
            return
        batch = batch.seen()
        self._check(batch, kv)
        if self._process != os.getpid():  # a forked child: the thread that may hold the lock did not come along
            self._lock, self._process = threading.Lock(), os.getpid()
        with self._lock:
            self._compute_alone(batch, kv, want, result)

    def _check(self, batch: Batch, kv: FastKV) -> None:
        """Compiled code looks no index up twice: what does not hang together here would be read outside the arrays."""
        shape, pool = self.shape, getattr(kv, "keys", None)
        needed = (shape.num_layers, shape.num_kv_heads, wide(shape.head_dim))
        found = (pool.shape[0], *pool.shape[3:]) if isinstance(pool, np.ndarray) else type(kv).__name__
        if found != needed:
            raise UnderloadError(
                f"this cache is not one of {shape.name} on the fast path: (layers, KV heads, lanes of a head) must be "
                f"{needed}, got {found}; make it with model.new_kv"
            )
        if not len(batch.query_lens) == len(batch.context_lens) == len(batch.block_tables):
            raise UnderloadError(
                f"query_lens, context_lens and block_tables need one row a sequence, got {len(batch.query_lens)}, "
                f"{len(batch.context_lens)} and {len(batch.block_tables)}"
            )
        query_lens = batch.query_lens.astype(np.int64)
        if int(query_lens.min()) < 0 or not int(query_lens.sum()) == len(batch.token_ids) == len(batch.positions):
            raise UnderloadError(
                f"query_lens must be 0 or more and sum to the tokens, got {int(query_lens.sum())} in all for "
                f"{len(batch.token_ids)} token ids and {len(batch.positions)} positions"
            )
        # The last token of a sequence lies at context - 1, the one before it at context - 2, ...
        positions = np.repeat(batch.context_lens - np.cumsum(query_lens), query_lens) + np.arange(batch.num_tokens)
        if int(batch.positions.min()) < 0 or not np.array_equal(positions, batch.positions):
            raise UnderloadError(
                "positions must count up from 0 or more to context_lens - 1 in each sequence, and do not; make the "
                "batch with Batch.of"
            )

    def _compute_alone(self, batch: Batch, kv: FastKV, want: int, result: np.ndarray) -> None:
        self._bind(kv, *batch.block_tables.shape)
        steps = -(-batch.num_tokens // STEP_ROWS)
        if steps == 1:
            self._step(batch.token_ids, batch.positions, batch.query_lens, batch.logit_rows, batch, kv, want, result)
            return
        ends = np.cumsum(batch.query_lens)
        starts = ends - batch.query_lens
        for i in range(steps):
            first, last = i * batch.num_tokens // steps, (i + 1) * batch.num_tokens // steps
            query_lens = np.clip(np.minimum(ends, last) - np.maximum(starts, first), 0, None).astype(np.int32)
            picked = np.flatnonzero((batch.logit_rows >= first) & (batch.logit_rows < last))
            for some in (
                np.split(picked, range(STEP_ROWS, len(picked), STEP_ROWS)) if len(picked) > STEP_ROWS else [picked]
            ):
                part = result[some]
                tokens, positions = batch.token_ids[first:last], batch.positions[first:last]
                self._step(tokens, positions, query_lens, batch.logit_rows[some] - first, batch, kv, want, part)
                result[some] = part

    def _step(
        self,
        token_ids: np.ndarray,
        positions: np.ndarray,
        query_lens: np.ndarray,
        logit_rows: np.ndarray,
        batch: Batch,
        kv: FastKV,
        want: int,
        result: np.ndarray,
    ) -> None:
        rows, picks = len(token_ids), len(logit_rows)
        if int(positions.max()) >= len(self._turns):
            self._grow_turns(int(positions.max()) + 1)
        self._number += 1
        failed = np.zeros(2, dtype=np.int64)

        def before() -> None:
            self._result = result  # kept: a step that an interrupt left half done is finished, into it, by the next
            self._positions[:rows] = positions
            np.take(self._turns, positions, axis=0, out=self._row_turns[:rows])
            compiled.prepare(
                self._control, self._plan, self._size, self._embedding, token_ids, query_lens,
                self._context_lens, batch.block_tables, kv.num_blocks, logit_rows, self._positions, self._slots,
                self._blocks, self._pieces, self._partials, self._picked, self._x, self._best, want, self._number,
                result.ctypes.data, failed,
            )  # fmt: skip

        assert self._job is not None
        self._team.run(self._job, before)
        if failed[0]:
            raise UnderloadError(
                _FAILURES[int(failed[0])].format(failed[1], vocab=self.shape.vocab_size, blocks=kv.num_blocks)
            )
        if want == compiled.GREEDY:
            best = self._best.reshape(self.threads, -1)[:, :picks]
            ids = self._best_id.reshape(self.threads, -1)[:, :picks]
            top = best.max(axis=0)  # NaN if any is
            first_id = np.where(best == top, ids, self.shape.vocab_size).min(axis=0)
            result[:] = np.where(np.isfinite(top), first_id, -1)

    # -------------------------------------------------- buffers

    def _bind(self, kv: FastKV, sequences: int, table_width: int) -> None:
        """Have buffers for this cache and these sizes. A new set of them is a new job for the team."""
        blocks = sequences * table_width
        if kv is self._kv and sequences <= len(self._context_lens) and blocks <= len(self._blocks):
            return
        shape, size = self.shape, self._size
        self._forget()
        if self._kv is None:
            hidden, head, inner = wide(shape.hidden_size), wide(shape.head_dim), wide(shape.intermediate_size)
            heads, group = shape.num_heads * head, shape.num_heads // shape.num_kv_heads

            def rows_of(width: int) -> np.ndarray:
                return np.zeros(STEP_ROWS * width, dtype=np.float32)

            size[compiled.MAX_STEP_ROWS] = STEP_ROWS
            self._plan = np.zeros(compiled.STEP_FIELDS, dtype=np.int64)
            self._positions = np.zeros(STEP_ROWS, dtype=np.int64)
            self._slots = np.zeros(STEP_ROWS, dtype=np.int64)
            self._picked = np.zeros(STEP_ROWS, dtype=np.int64)
            self._row_turns = np.zeros((STEP_ROWS, shape.head_dim), dtype=np.float32)
            # Rows a power of two of bytes apart would crowd into a few sets of the cache: 16 more keep them apart.
            self._x, self._q = rows_of(hidden + LANES), rows_of(heads)
            self._attended, self._hidden = rows_of(heads + LANES), rows_of(inner + LANES)
            self._normed = np.zeros((self.threads, STEP_ROWS * (hidden + LANES)), dtype=np.float32)
            self._best = np.zeros(self.threads * STEP_ROWS, dtype=np.float32)
            self._best_id = np.zeros(self.threads * STEP_ROWS, dtype=np.int64)
            pieces = attend.most_pieces(STEP_ROWS, STEP_ROWS, shape.num_kv_heads, group, self.threads)
            self._pieces = np.zeros(pieces * attend.PIECE_FIELDS, dtype=np.int64)
            self._siblings_done = np.zeros(pieces, dtype=np.int64)
            self._partials = np.zeros(attend.PARTIALS if self.threads > 1 else 0, dtype=np.float32)
            self._places = np.zeros((self.threads, 2 * attend.PLACES), dtype=np.int64)
            scratch = max(attend.scratch_size(group, head), STEP_ROWS * max(64, head))
            self._scratch = np.zeros((self.threads, scratch), dtype=np.float32)
        self._context_lens = np.zeros(max(sequences, len(self._context_lens)), dtype=np.int64)
        self._blocks = np.zeros(max(blocks * 5 // 4, len(self._blocks), 1024), dtype=np.int32)
        size[compiled.KV_LAYER], size[compiled.BLOCK_SIZE] = kv.keys[0].size, kv.block_size
        self._kv = kv
        self._control = np.zeros(CONTROL_WORDS, dtype=np.int64)
        self._control[TICKET] = OVER
        rest = (
            size, np.float32(shape.norm_eps), self._plan, self._matrices, self._vectors, self._slots, self._blocks,
            self._pieces, self._siblings_done, self._partials, self._picked, self._row_turns.reshape(-1),
            self._x, self._q, self._attended, self._hidden,
            kv.keys.reshape(-1), kv.values.reshape(-1), self._best, self._best_id, self._normed, self._scratch,
            self._places,
        )  # fmt: skip
        with notice_if_slow("compiling the fast path for this machine (once, some 10 s; kept for the next time)"):
            compiled.work(0, 0, self._control, *rest)  # there is nothing to do yet: this only compiles
        self._job = (compiled.work, self._control, rest)
        self._release = weakref.finalize(self, self._team.let_go, self._job)

    def _forget(self) -> None:
        """Let the team go of the present buffers; waits for a step that is at work on them."""
        self._team.forget(self._job)
        self._release()
        self._job = None

    def _grow_turns(self, positions: int) -> None:
        n = min(max(2 * len(self._turns), positions, 512), max(self.shape.max_positions, positions))
        cos, sin = cos_sin(self._inverse_frequencies, torch.arange(n))
        self._turns = torch.cat((cos, sin), dim=-1).numpy()


_FAILURES = {
    compiled.BAD_TOKEN: "token id {} is outside the vocabulary of {vocab}; the prompt is from another tokenizer",
    compiled.BAD_BLOCK: "block id {} is outside the cache of {blocks} blocks, or the table is shorter than its context",
    compiled.BAD_ROW: "logit row {} is outside the step",
}
