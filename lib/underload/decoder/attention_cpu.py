"""`paged_attention` on a CPU, compiled with numba: keys and values are read where they lie, nothing is copied.

The same pieces of attention as in the fast path (`fast/attend.py`), on tensors, without a model around them.
"""

from __future__ import annotations

import importlib
import operator
import os
import struct
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from underload.decoder.fast.notice import notice_if_slow
from underload.decoder.fast.team import CONTROL_WORDS, OVER, TICKET, team
from underload.request import UnderloadError

_STORED = (torch.float32, torch.float16, torch.bfloat16)


def unavailable(q: Tensor, keys: Tensor, values: Tensor) -> str | None:
    """Why it cannot take these tensors here, or None if it can."""
    if not (q.is_cpu and keys.is_cpu and values.is_cpu):
        return f"it runs on a CPU, and the tensors are on {q.device.type} and {keys.device.type}"
    if keys.dtype not in _STORED or values.dtype != keys.dtype or q.dtype not in _STORED:
        found = ", ".join(str(part.dtype).removeprefix("torch.") for part in (q, keys, values))
        return f"it takes float32, float16 and bfloat16, keys and values alike; q, keys and values are {found}"
    if not keys.stride(3) == values.stride(3) == 1:
        return (
            "the numbers of one head must lie side by side (stride 1), and lie "
            f"{keys.stride(3)} and {values.stride(3)} apart"
        )
    return None if _kernels else _missing()


def _missing() -> str | None:
    """What stands in the way of the first kernel."""
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
    # At short contexts a call of torch more or less is a tenth of the whole: none that changes nothing.
    rows = q if q.dtype is torch.float32 else q.float()
    rows = rows if rows.stride(2) == 1 else rows.contiguous()
    out = torch.empty(q.shape, dtype=torch.float32)
    if len(q):
        _kernel(keys.dtype, torch.get_num_threads()).run(
            rows,
            keys,
            values,
            block_tables.numpy(),
            np.array(query_lens, dtype=np.int64),
            np.array(context_lens, dtype=np.int64),
            out,
        )
    return out if q.dtype is torch.float32 else out.to(q.dtype)


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
        self._fields = struct.Struct(f"={paged.CALL_FIELDS}q")
        self._sizes: tuple[int, ...] = (0, 0, 0)
        self._lock, self._process = threading.Lock(), os.getpid()

    def run(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        tables: np.ndarray,
        query_lens: np.ndarray,
        context_lens: np.ndarray,
        out: Tensor,
    ) -> None:
        if self._process != os.getpid():  # a forked child: the thread that may hold the lock did not come along
            self._lock, self._process = threading.Lock(), os.getpid()
        tokens, heads, dim = q.shape
        sequences, table_width = tables.shape
        num_blocks, block_size, kv_heads, _ = keys.shape
        group, width = heads // kv_heads, -(-dim // 16) * 16
        failed = -1

        def before() -> None:
            nonlocal failed
            # Kept: a call that an interrupt left half done is finished by the next, and reads and writes these.
            self._held = q, keys, values, out
            self._fields.pack_into(
                self._call.data, 0,
                q.data_ptr(), *q.stride()[:2], keys.data_ptr(), *keys.stride()[:3], values.data_ptr(),
                *values.stride()[:3], out.data_ptr(), group, kv_heads, dim, width, block_size, num_blocks, table_width,
                self._threads,
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

    def _bind(self, *sizes: int) -> None:
        """Have buffers for so many block ids, pieces, and float32 values a thread. New ones are a new job."""
        if all(map(operator.le, sizes, self._sizes)):
            return
        self._team.forget(self._job)
        attend, paged = self._attend, self._paged
        self._sizes = tuple(max(new * 5 // 4, old) for new, old in zip(sizes, self._sizes, strict=True))
        blocks, pieces, scratch = self._sizes
        self._control = np.zeros(CONTROL_WORDS, dtype=np.int64)
        self._control[TICKET] = OVER
        self._call = np.zeros(paged.CALL_FIELDS, dtype=np.int64)
        self._blocks = np.zeros(blocks, dtype=np.int32)
        self._pieces = np.zeros(pieces * attend.PIECE_FIELDS, dtype=np.int64)
        self._partials = np.zeros(attend.PARTIALS if self._threads > 1 else 0, dtype=np.float32)
        rest = (
            self._call, self._kind, self._blocks, self._pieces, np.zeros(pieces, dtype=np.int64), self._partials,
            np.zeros((self._threads, scratch), dtype=np.float32),
            np.zeros((self._threads, 2 * attend.PLACES), dtype=np.int64),
        )  # fmt: skip
        with notice_if_slow("compiling attention for this machine (once, some 5 s; kept for the next time)"):
            paged.work(0, 0, self._control, *rest)  # there is nothing to do yet: this only compiles
        self._job = (paged.work, self._control, rest)


_kernels: dict[tuple[torch.dtype, int], _Kernel] = {}
_kernels_lock = threading.Lock()


def _kernel(dtype: torch.dtype, threads: int) -> _Kernel:
    if (dtype, threads) not in _kernels:
        with _kernels_lock:
            _kernels.setdefault((dtype, threads), _Kernel(dtype, threads))
    return _kernels[dtype, threads]
