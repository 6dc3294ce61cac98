"""What a step takes on this machine, and what the machine could do at best."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch

from underload.decoder.batch import Batch
from underload.decoder.kv import KVStorage
from underload.decoder.load import free_memory
from underload.decoder.model import Model
from underload.request import BlockTable, Sequence, StepRecord, UnderloadError
from underload.shapes import StepCost, shape, sized_cost


@dataclass(frozen=True)
class Ceilings:
    """The most this machine was seen to do, in one process, with this library's threads.

    A ceiling is a best of several runs, not a mean: what disturbs a run can only lower it.
    """

    read_bandwidth: float  # bytes/s, one pass over an array far larger than the last-level cache
    flops: float  # FLOP/s, a large matrix product in `dtype`
    dtype: str
    device: str
    threads: int


def ceilings(device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Ceilings:
    """Measure the streaming bandwidth and the matrix product of a device: once a process, a second or two."""
    if torch.device(device).type == "meta":
        raise UnderloadError("device 'meta' computes nothing, so it has no speed; use 'cpu' or 'cuda'")
    return _ceilings(str(device), dtype)


@cache
def _ceilings(device: str, dtype: torch.dtype) -> Ceilings:
    on_gpu = device.startswith("cuda")
    elements = (1 << 30) if on_gpu else (1 << 26)  # 4 GiB, or 256 MiB of float32: no cache holds them
    read = 4 * elements / _best_seconds(torch.ones(elements, dtype=torch.float32, device=device).sum, device, runs=7)
    n = 8192 if on_gpu else 1024
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    flops = 2 * n**3 / _best_seconds(lambda: a @ b, device, runs=7)
    if not on_gpu and dtype == torch.float32:
        # A sum in torch does not read as fast as the decoder's own products do: a ceiling that it passes would be none.
        read, flops = (max(pair) for pair in zip((read, flops), _tile_ceiling(torch.get_num_threads()), strict=True))
    return Ceilings(
        read, flops, str(dtype).removeprefix("torch."), device_name(torch.device(device)), torch.get_num_threads()
    )


def _tile_ceiling(threads: int) -> tuple[float, float]:
    """Bytes/s and FLOP/s of the fast path's register tile; zeros where it cannot run."""
    from underload.decoder.fast import unsupported

    if unsupported(shape("bench-s"), torch.device("cpu"), torch.float32) is not None:
        return 0.0, 0.0
    from underload.decoder.fast.ceiling import measure

    return measure(threads)


def _best_seconds(work: Callable[[], object], device: str, runs: int) -> float:
    best = float("inf")
    for _ in range(runs + 1):
        synchronise(device)
        start = time.perf_counter()
        work()
        synchronise(device)
        best = min(best, time.perf_counter() - start)
    return best


def synchronise(device: torch.device | str) -> None:
    """Wait until the device has done what it was given; nothing to do on a CPU."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def device_name(device: torch.device) -> str:
    """What the device calls itself: the GPU's name, or the processor's."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def machine() -> dict[str, object]:
    """What a stored measurement says of where it was taken; no host name, no path."""
    import underload

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "cpu": device_name(torch.device("cpu")),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "underload": underload.__version__,
    }


def decode_steps(model: Model, batch_size: int, context: int, *, steps: int = 8, warmup: int = 2) -> list[StepRecord]:
    """Time decode steps: one token for each of `batch_size` sequences that have `context` tokens in the cache.

    The same step is repeated, so that the context does not grow under the measurement. It ends in the argmax of
    every row: a decode step that picks no token would leave the logits on the device.

    Raises:
        UnderloadError: a context beyond the model's positions.
    """
    return _repeat(model, batch_size, context, computed=context - 1, runs=steps, warmup=warmup)


def prefill_steps(
    model: Model, prompt_len: int, batch_size: int = 1, *, repeats: int = 3, warmup: int = 1
) -> list[StepRecord]:
    """Time prefills: `batch_size` whole prompts of `prompt_len` tokens in one step, down to the first token's argmax.

    Raises:
        UnderloadError: a prompt beyond the model's positions.
    """
    return _repeat(model, batch_size, prompt_len, computed=0, runs=repeats, warmup=warmup)


def _repeat(model: Model, batch_size: int, context: int, *, computed: int, runs: int, warmup: int) -> list[StepRecord]:
    if batch_size < 1 or not 0 < context <= model.shape.max_positions:
        raise UnderloadError(
            f"need a batch of at least 1 and a context of 1 to {model.shape.max_positions} ({model.shape.name}), "
            f"got {batch_size} and {context}"
        )
    needed = batch_size * context * model.kv_bytes_per_token()
    free = free_memory(model.device)
    if free is not None and needed > free:
        raise UnderloadError(
            f"a batch of {batch_size:,} with {context:,} tokens each needs {needed / 1e9:,.1f} GB of cache, and "
            f"{model.device.type} has {free / 1e9:,.1f} GB free; take a smaller batch or context"
        )
    kv = model.new_kv(batch_size, context)
    ids = np.random.default_rng(0).integers(0, model.shape.vocab_size, size=(batch_size, context))
    work = []
    for row in range(batch_size):
        sequence = Sequence(
            prompt_len=context, tokens=ids[row].tolist(), num_computed=computed, table=BlockTable(context, [row])
        )
        work.append((sequence, context - computed))
    batch = Batch.of(work)
    records = []
    for run in range(warmup + runs):
        synchronise(model.device)
        start = time.perf_counter()
        model.forward(batch, kv).argmax(-1).tolist()  # tolist: the ids are on the host, as a server needs them
        prefill = batch.num_tokens if computed == 0 else 0
        record = step_record(model, kv, batch, start, time.perf_counter() - start, prefill_tokens=prefill)
        if run >= warmup:
            records.append(record)
    return records


def step_record(
    model: Model, kv: KVStorage, batch: Batch, start: float, duration: float, *, prefill_tokens: int
) -> StepRecord:
    """The record of one step, with the bytes and FLOPs that its shape demands.

    Args:
        start, duration: seconds.
        prefill_tokens: how many of the batch's tokens were prompt; the others are decode.
    """
    cost = batch_cost(model, kv, batch)
    return StepRecord(
        start=start,
        duration=duration,
        batch_size=batch.num_sequences,
        prefill_tokens=prefill_tokens,
        decode_tokens=batch.num_tokens - prefill_tokens,
        context_tokens=int(batch.context_lens.sum()),
        score_pairs=batch.score_pairs,
        logit_rows=len(batch.logit_rows),
        bytes_read=cost.bytes,
        flops=cost.flops,
    )


def batch_cost(model: Model, kv: KVStorage, batch: Batch) -> StepCost:
    """What computing a batch must move and do, by the model's shape and by what weights and cache are stored in."""
    return sized_cost(
        model.shape,
        batch.num_tokens,
        int(batch.context_lens.sum()),
        batch.score_pairs,
        len(batch.logit_rows),
        weight_bytes=model.dtype.itemsize,
        kv_bytes=kv.dtype.itemsize,
    )
