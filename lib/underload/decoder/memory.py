"""How many cache blocks fit."""

from __future__ import annotations

import gc

import torch

from underload.decoder.batch import Batch
from underload.decoder.load import free_memory
from underload.decoder.model import Model
from underload.decoder.sampling import SamplingState, sample
from underload.request import BlockTable, SamplingParams, Sequence, UnderloadError

# A CPU's memory belongs to other programs too, and to the page cache that weights and data are read through.
CPU_SHARE = 0.5
# A GPU is the model's alone; the rest is for what the dry run cannot see, as an allocator that fragments.
GPU_SHARE = 0.9


def blocks_for_memory(
    model: Model,
    block_size: int,
    bytes: float | None = None,
    dtype: str | torch.dtype | None = None,
    *,
    step_tokens: int = 2048,
    sequences: int = 256,
) -> int:
    """How many blocks `model.new_kv` may be asked for.

    With `bytes` that is a division. Without, a CPU gives half of its free memory (CPU_SHARE), and a GPU nine tenths
    (GPU_SHARE) of what the largest step leaves: it is run once, from the embedding to the draws, and its peak measured.

    Args:
        block_size: tokens a block.
        bytes: budget for the whole cache; None takes what the device can spare.
        dtype: of the cache, as in `Model.new_kv`.
        step_tokens, sequences: of the largest step that will be run, for the dry run on a GPU.

    Raises:
        UnderloadError: not even one block fits, with both sizes; or a device that does not say what it has free.
    """
    each = model.kv_bytes_per_token(dtype) * block_size
    if bytes is not None:
        budget, source = float(bytes), "the budget given"
    elif model.device.type == "cuda":
        budget = _left_by_a_step(model, block_size, dtype, step_tokens, sequences) * GPU_SHARE
        source = f"{GPU_SHARE:.0%} of what the largest step ({step_tokens:,} tokens) leaves on the GPU"
    else:
        free = free_memory(model.device)
        if free is None:
            raise UnderloadError(
                f"device {model.device.type!r} does not say what memory it has free; give the cache a budget: bytes="
            )
        budget, source = free * CPU_SHARE, f"{CPU_SHARE:.0%} of the {free / 1e9:,.2f} GB that are free"
    if budget < each:
        raise UnderloadError(
            f"one cache block of {block_size:,} tokens takes {each:,} bytes, and {source} is {max(budget, 0):,.0f}; "
            "give more (bytes=), a smaller block_size, or a narrower dtype (dtype='float16')"
        )
    return int(budget // each)


def _left_by_a_step(
    model: Model, block_size: int, dtype: str | torch.dtype | None, step_tokens: int, sequences: int
) -> float:
    """Bytes of GPU memory that stay free while the largest step runs."""
    shape = model.shape
    sequences = min(sequences, step_tokens)
    # As few long chunks as hold the tokens, and one token for each of the others: the most tokens in the longest
    # chunks, and the most rows of logits.
    lengths, spare = [], step_tokens - sequences
    for _ in range(sequences):
        more = min(spare, shape.max_positions - 1)
        lengths.append(1 + more)
        spare -= more
    work, first = [], 0
    for length in lengths:
        blocks = list(range(first, first + -(-length // block_size)))
        first += len(blocks)
        work.append((Sequence(length, [0] * length, table=BlockTable(block_size, blocks)), length))
    states = [SamplingState(SamplingParams(temperature=1.0, top_p=0.9), sequence, seed=0) for sequence, _ in work]
    gc.collect()
    torch.cuda.empty_cache()
    try:
        kv = model.new_kv(first, block_size, dtype)
        torch.cuda.reset_peak_memory_stats(model.device)
        before = torch.cuda.memory_allocated(model.device)
        sample(model.forward(Batch.of(work), kv), states)
        torch.cuda.synchronize(model.device)
    except torch.cuda.OutOfMemoryError as error:
        raise UnderloadError(
            f"a step of {sum(lengths):,} tokens in {sequences:,} sequences does not fit into the GPU's memory beside "
            "the weights; take smaller steps (step_tokens=, sequences=), or a smaller model or dtype"
        ) from error
    needed = torch.cuda.max_memory_allocated(model.device) - before
    del kv
    gc.collect()
    torch.cuda.empty_cache()
    free = free_memory(model.device)
    assert free is not None
    return free - needed
