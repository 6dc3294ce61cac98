"""`paged_attention` on a CPU, compiled with numba: keys and values are read where they lie, nothing is copied.

The same pieces of attention as in the fast path (`fast/attend.py`), on tensors, without a model around them.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from underload.decoder.fast.team import CONTROL_WORDS, OVER, TICKET, team
from underload.request import UnderloadError

_STORED = (torch.float32, torch.float16, torch.bfloat16)


def unavailable(q: Tensor, keys: Tensor, values: Tensor) -> str | None:
    """Why it cannot take these tensors here, or None if it can."""
    if not all(part.device.type == "cpu" for part in (q, keys, values)):
        return f"it runs on a CPU, and the tensors are on {q.device.type} and {keys.device.type}"
    if keys.dtype not in _STORED or values.dtype != keys.dtype or q.dtype not in _STORED:
        found = ", ".join(str(part.dtype).removeprefix("torch.") for part in (q, keys, values))
        return f"it takes float32, float16 and bfloat16, keys and values alike; q, keys and values are {found}"
    if not keys.stride(3) == values.stride(3) == 1:
        return (
            "the numbers of one head must lie side by side (stride 1), and lie "
            f"{keys.stride(3)} and {values.stride(3)} apart"
        )
    return _missing()


def _missing() -> str | None:
    if sys.byteorder != "little":
        return "it assumes a little-endian machine"
    try:
        importlib.import_module("numba")
        tile = importlib.import_module("underload.decoder.fast.tile")
    except ImportError as error:
        return f"numba cannot be imported ({error}); pip install numba"
    return None if tile.HAS_FMA else "this processor has no fused multiply-add (x86 before 2013)"


def paged_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
) -> Tensor:
    """See `attention.paged_attention`, which checks the sizes; with as many threads as torch uses."""
    out = torch.empty_like(q, dtype=torch.float32, memory_format=torch.contiguous_format)
    if len(q):
        _kernel(keys.dtype, torch.get_num_threads()).run(
            q.float() if q.stride(2) == 1 else q.float().contiguous(),
            keys,
            values,
            block_tables,
            np.asarray(query_lens, dtype=np.int64),
            np.asarray(context_lens, dtype=np.int64),
            out,
        )
    return out.to(q.dtype)


class _Kernel:
    """The buffers of one storage format and number of threads; one call at a time."""

    def __init__(self, dtype: torch.dtype, threads: int) -> None:
        from underload.decoder.fast import attend, paged
        from underload.decoder.fast.pack import BITS

        self._attend, self._paged = attend, paged
        self._bits = BITS[dtype]
        self._kind = torch.empty(0, dtype=self._bits).numpy()  # tells compiled code what the addresses point to
        self._threads = threads
        self._team = team(threads)
        self._job: Any = None
        self._held: Any = None
        self._blocks = self._turns = np.empty(0, dtype=np.int64)
        self._scratch = np.empty((threads, 0))
        self._lock, self._process = threading.Lock(), os.getpid()

    def run(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        block_tables: Tensor,
        query_lens: np.ndarray,
        context_lens: np.ndarray,
        out: Tensor,
    ) -> None:
        if self._process != os.getpid():  # a forked child: the thread that may hold the lock did not come along
            self._lock, self._process = threading.Lock(), os.getpid()
        tables = block_tables.numpy()
        (tokens, heads, dim), (sequences, table_width) = q.shape, tables.shape
        num_blocks, block_size, kv_heads, _ = keys.shape
        group, width = heads // kv_heads, -(-dim // 16) * 16
        failed = -1

        def before() -> None:
            nonlocal failed
            # Kept: a call that an interrupt left half done is finished by the next, and reads and writes these.
            self._held = q, keys, values, out
            self._call[:] = (
                q.data_ptr(), q.stride(0), q.stride(1),
                keys.data_ptr(), *keys.stride()[:3],
                values.data_ptr(), *values.stride()[:3],
                out.data_ptr(), group, kv_heads, dim, width, block_size, num_blocks, table_width, self._threads,
            )  # fmt: skip
            failed = self._paged.prepare(
                self._control, self._call, query_lens, context_lens, tables, self._blocks, self._pieces, self._partials
            )

        with self._lock:
            self._bind(
                sequences * table_width,
                self._attend.most_pieces(tokens, sequences, kv_heads, group, self._threads),
                self._attend.scratch_size(group, width),
            )
            self._team.run(self._job, before)
            self._held = None
        if failed >= 0:
            raise UnderloadError(
                f"block id {tables.flat[failed]} of sequence {failed // table_width} is outside the cache of "
                f"{num_blocks} blocks"
            )

    def _bind(self, blocks: int, pieces: int, scratch: int) -> None:
        """Have buffers of these sizes. A new set of them is a new job for the team."""
        if (
            self._job
            and self._blocks.size >= blocks
            and self._turns.size >= pieces
            and self._scratch.shape[1] >= scratch
        ):
            return
        self._team.forget(self._job)
        attend, paged = self._attend, self._paged
        self._control = np.zeros(CONTROL_WORDS, dtype=np.int64)
        self._control[TICKET] = OVER
        self._call = np.zeros(paged.CALL_FIELDS, dtype=np.int64)
        self._blocks = np.zeros(max(blocks * 5 // 4, self._blocks.size, 1024), dtype=np.int32)
        turns = max(pieces * 5 // 4, self._turns.size, 256)
        self._pieces, self._turns = (
            np.zeros(turns * attend.PIECE_FIELDS, dtype=np.int64),
            np.zeros(turns, dtype=np.int64),
        )
        self._partials = np.zeros(attend.PARTIALS if self._threads > 1 else 0, dtype=np.float32)
        self._scratch = np.zeros((self._threads, max(scratch, self._scratch.shape[1])), dtype=np.float32)
        self._places = np.zeros((self._threads, 2 * attend.PLACES), dtype=np.int64)
        rest = (
            self._call, self._kind, self._blocks, self._pieces, self._turns, self._partials, self._scratch,
            self._places,
        )  # fmt: skip
        paged.work(0, 0, self._control, *rest)  # there is nothing to do yet: this only compiles
        self._job = (paged.work, self._control, rest)


_kernels: dict[tuple[torch.dtype, int], _Kernel] = {}
_kernels_lock = threading.Lock()


def _kernel(dtype: torch.dtype, threads: int) -> _Kernel:
    with _kernels_lock:
        if (dtype, threads) not in _kernels:
            _kernels[dtype, threads] = _Kernel(dtype, threads)
        return _kernels[dtype, threads]
