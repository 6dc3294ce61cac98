"""Decode steps as captured graphs: a step's hundreds of launches, recorded once and sent off together.

    DecodeGraphs   the graphs of one model on one cache, by number of rows
    Replay         a step that was sent off, and what it leaves behind
    decode_graphs  them for a model, where there is a GPU to capture for

The host sends a launch every few microseconds, and in a decode step few launches have more than that to do: one by one,
they keep the GPU waiting. A graph replays the same launches on the same addresses. So what changes from step to step
lies in buffers that stay where they are, and a batch is filled up to the next of a few sizes with rows that compute a
token of the scratch block, which nobody reads.

    one copy, host to device   token ids, positions, slots | split, sequences, queries, block tables
    token ids filled in        where the step before draws them, and the host has not seen them
    replay                     ids and logits of all rows, where they were the last time

Nothing here waits for the device, so that several steps can be sent off, one behind the other.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from underload.decoder import attention_triton
from underload.decoder.attention_triton import INVARIANT_SPLIT, MOST_SPLITS, AttentionPlan
from underload.decoder.batch import Batch, fill_in
from underload.decoder.kv import KVStorage, PlainKV
from underload.decoder.model import Model
from underload.decoder.plain import Inputs, PlainPath, likeliest
from underload.request import UnderloadError

#: Rows that graphs are captured for. The steps between sizes bound what filling a batch up to the next can cost.
SIZES = (1, 2, 4, *range(8, 257, 8))

#: Runs a step, and gives what runs it again on the same addresses.
Capture = Callable[[Callable[[], None]], Callable[[], None]]


def decode_graphs(model: Model, kv: KVStorage, scratch: int, wish: str | bool) -> DecodeGraphs | None:
    """Graphs for a model's decode steps, as `DecoderExecutor(graphs=wish)` describes.

    Raises:
        UnderloadError: another wish than "auto", True and False, or True where there can be none, with the reason.
    """
    if wish not in ("auto", True, False):
        raise UnderloadError(f"graphs must be 'auto', True or False, got {wish!r}")
    path = model.plain_path
    reason = None
    if model.device.type != "cuda" or path is None or not isinstance(kv, PlainKV):
        reason = f"graphs are captured on a CUDA device, and {model.shape.name} is on {model.device.type!r}"
    elif path.attention != "triton":
        reason = f"attention={path.attention!r} launches by what the host knows of a batch; it takes 'triton'"
    elif path.batch_invariant and (splits := -(-path.shape.max_positions // INVARIANT_SPLIT)) > MOST_SPLITS:
        reason = (
            f"batch_invariant=True cuts the longest context into {splits}, and a graph would launch all in each step"
        )
    if wish is False or (reason is not None and wish == "auto"):
        return None
    if reason is not None or path is None or not isinstance(kv, PlainKV):
        raise UnderloadError(f"graphs=True cannot be had here: {reason}; use graphs='auto' or False")
    return DecodeGraphs(path, kv, scratch, capture_on_gpu(), must=wish is True)


class DecodeGraphs:
    """Captured decode steps, one for each number of rows in `SIZES`; each is captured when it is first needed.

    Args:
        path, kv: what computes, with Triton attention, and the cache that it is captured on.
        scratch: a block of `kv` that no sequence has.
        capture: how a step is captured; `capture_on_gpu()`, or in tests a function that calls.
        must: a capture that fails is an error; otherwise it is a warning, and there are no graphs from then on.
    """

    def __init__(self, path: PlainPath, kv: PlainKV, scratch: int, capture: Capture, *, must: bool = True) -> None:
        shape, device = path.shape, path.device
        self.path, self.kv, self.scratch = path, kv, scratch
        self.max_context = min(shape.max_positions, kv.num_blocks * kv.block_size)
        self._capture, self._must = capture, must
        self._broken = False
        self._replays: dict[int, Callable[[], None]] = {}
        self._width = -(-self.max_context // kv.block_size)
        most = SIZES[-1]
        self._there = torch.zeros(_numbers(most, self._width), dtype=torch.int64, device=device)
        self._tables = torch.full((most, self._width), scratch, dtype=torch.int32, device=device)
        rows = torch.arange(most, dtype=torch.int32, device=device)
        self._tiles = torch.stack((rows, torch.zeros_like(rows), rows), dim=1)  # a row of partial results for each row
        self._logits = torch.zeros((most, shape.vocab_size), dtype=path.dtype, device=device)
        self._ids = torch.zeros(most, dtype=torch.int64, device=device)

    @property
    def sizes(self) -> list[int]:
        """The numbers of rows that have been captured."""
        return sorted(self._replays)

    def prepare(self, rows: int) -> None:
        """Capture what batches of up to `rows` rows need, so that no later step waits for it. Takes a moment each.

        Larger ones come first: the others then fit into the memory that these took.
        """
        empty = np.zeros(0, dtype=np.int64)
        for size in reversed([size for size in SIZES if size <= (size_for(rows) or SIZES[-1])]):
            if not self._broken:
                self._fill(size, empty, empty, empty, empty, np.zeros((0, 1), dtype=np.int32))
                self._ready(size)

    def replay(self, batch: Batch) -> Replay | None:
        """Send a batch off, and do not wait for it. None, and nothing is done, where it is no step for a graph: not one
        token a sequence, or too many of them."""
        size = size_for(batch.num_sequences)
        if self._broken or size is None or batch.num_tokens != batch.num_sequences:
            return None
        if int(batch.context_lens.max()) > self.max_context:
            return None
        slots = batch.slots(self.kv.block_size)
        self._fill(size, batch.token_ids, batch.positions, slots, batch.context_lens, batch.block_tables)
        if batch.drawn is not None:
            token_ids = self._there[: batch.num_sequences]  # the first of the parts
            token_ids.copy_(fill_in(token_ids, batch.drawn))
        if (run := self._ready(size)) is None:
            return None
        run()
        return Replay(self._logits[: batch.num_sequences], self._ids[: batch.num_sequences].clone())

    def replay_again(self, size: int) -> None:
        """Send off the last batch of that size once more: what is left of a step when the host has no part in it."""
        self._replays[size]()

    def _ready(self, size: int) -> Callable[[], None] | None:
        """What runs a step of that size on what lies in the buffers; None if it cannot be captured."""
        run = self._replays.get(size)
        if run is None:
            try:
                run = self._replays[size] = self._capture(partial(self._compute, size, self._inputs(size)))
            except Exception as error:
                if self._must:
                    raise
                self._broken = True
                warnings.warn(
                    f"decoding goes on without captured graphs, more slowly: one of {size} rows failed to be captured "
                    f"({type(error).__name__}: {error}); graphs=False leaves them out",
                    stacklevel=2,
                )
        return run

    @torch.inference_mode()
    def _compute(self, size: int, inputs: Inputs) -> None:
        logits = self.path.compute(inputs, self.kv)
        self._logits[:size].copy_(logits)
        self._ids[:size].copy_(likeliest(logits))

    def _inputs(self, size: int) -> Inputs:
        """The buffers' parts, as a step of that size reads them on the device."""
        wide, split, sequences, queries, _ = _parts(self._there, size, 0)
        shape = self.path.shape
        plan = AttentionPlan.of_decoding(
            self._tables[:size],
            sequences,
            self._tiles[:size],
            queries,
            split,
            heads=shape.num_heads,
            kv_heads=shape.num_kv_heads,
            num_splits=self._num_splits(size),
            invariant=self.path.batch_invariant,
        )
        return Inputs(wide[0], wide[1], wide[2], None, partial(attention_triton.attend, plan=plan))

    def _fill(
        self,
        size: int,
        token_ids: np.ndarray,
        positions: np.ndarray,
        slots: np.ndarray,
        context_lens: np.ndarray,
        block_tables: np.ndarray,
    ) -> None:
        """Put a batch into the buffers, and rows of the scratch block after it, and send it to the device."""
        rows, width = len(token_ids), min(block_tables.shape[1], self._width)
        # The allocator of page-locked memory gives it to nobody else before the copy is done.
        host = torch.empty(_numbers(size, width), dtype=torch.int64, pin_memory=self.path.device.type == "cuda")
        parts = _parts(host, size, width)
        wide, split, sequences, queries, tables = (part.numpy() for part in parts)
        for row, (numbers, filling) in enumerate(
            ((token_ids, 0), (positions, 0), (slots, self.scratch * self.kv.block_size))
        ):
            wide[row, :rows], wide[row, rows:] = numbers, filling
        context = sequences[:, 2]
        context[:rows], context[rows:] = context_lens, 1
        sequences[:, 0], sequences[:, 1] = np.arange(size), 1
        queries[:, 0], queries[:, 1] = sequences[:, 0], context
        split[:] = attention_triton.decode_split(
            context,
            self.path.shape.num_kv_heads,
            self._num_splits(size),
            self.path.device,
            invariant=self.path.batch_invariant,
        )
        tables[:rows, :width], tables[rows:] = block_tables[:, :width], self.scratch
        self._there[: len(host)].copy_(host, non_blocking=True)
        self._tables[:size, :width].copy_(_parts(self._there, size, width)[-1])

    def _num_splits(self, size: int) -> int:
        return attention_triton.decode_splits(
            size,
            self.path.shape.num_kv_heads,
            self.max_context,
            self.path.device,
            invariant=self.path.batch_invariant,
        )


@dataclass(frozen=True)
class Replay:
    """A batch that was sent off.

    Args:
        logits: [rows, vocab] in the model's dtype, on the device; the next replay changes them.
        ids: [rows] int64, on the device: the likeliest id of each row, -1 for a row without a largest logit.
    """

    logits: Tensor
    ids: Tensor


def size_for(rows: int) -> int | None:
    """The smallest of `SIZES` that has room for so many rows; None if none has."""
    return next((size for size in SIZES if size >= rows), None) if rows > 0 else None


def capture_on_gpu() -> Capture:
    """Captures on the present device; all that one function captures shares memory, since it never runs at once."""
    pool = torch.cuda.graph_pool_handle()

    def capture(run: Callable[[], None]) -> Callable[[], None]:
        # Kernels are compiled and libraries make themselves at home on first use, which must not be recorded.
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(2):
                run()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            run()
        return graph.replay

    return capture


def _numbers(size: int, width: int) -> int:
    """64-bit numbers of a step of `size` rows: 3 a row. Then 32-bit ones: the split, 5 a row, and the tables."""
    return 3 * size + (2 + 5 * size + size * width + 1) // 2


def _parts(flat: Tensor, size: int, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """A flat int64 buffer as a step of `size` rows sees it: ids, positions and slots [3, size] int64; the split [1],
    sequences [size, 3], queries [size, 2] and block tables [size, width] int32. Views."""
    wide, narrow = flat[: 3 * size].view(3, size), flat[3 * size :].view(torch.int32)
    _, sequences, queries, tables = narrow[: 2 + 5 * size + size * width].split((2, 3 * size, 2 * size, size * width))
    return wide, narrow[:1], sequences.view(size, 3), queries.view(size, 2), tables.view(size, width)
