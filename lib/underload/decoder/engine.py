"""A model made ready to serve: pool, scheduler and executor of one size, in one call.

decoder_engine   Model in, `engine.Engine` out
"""

from __future__ import annotations

from typing import Any

import torch

from underload.cache import BlockPool
from underload.decoder.executor import DecoderExecutor
from underload.decoder.memory import blocks_for_memory
from underload.decoder.model import Model
from underload.engine import Engine
from underload.request import Clock, UnderloadError
from underload.scheduling import Scheduler


def decoder_engine(
    model: Model,
    *,
    kv_memory: float | None = None,
    num_blocks: int | None = None,
    block_size: int = 16,
    kv_dtype: str | torch.dtype | None = None,
    prefix_caching: bool = True,
    clock: Clock | None = None,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 2048,
    max_model_len: int | None = None,
    lookahead: int = 0,
    **options: Any,
) -> Engine:
    """An engine on a real model.

        engine = decoder_engine(load_model("smollm2-135m"), kv_memory=2e9)
        requests = generate(engine, prompts, SamplingParams(max_tokens=64))

    Without `kv_memory` and `num_blocks` the cache gets what the device can spare (`blocks_for_memory`), and no more
    than `max_num_seqs` sequences of the greatest length can fill.

    Args:
        kv_memory: bytes for keys and values.
        num_blocks: blocks instead of bytes.
        block_size: tokens a block.
        kv_dtype: what keys and values are stored in, as in `Model.new_kv`.
        prefix_caching: share blocks with equal content, and keep them after use.
        max_model_len: tokens of one sequence at most; the model's own limit when None.
        lookahead: plans that are made while one is being executed, as in `engine.Engine`. It is meant for a GPU, on
            which it has not been measured yet.
        options: others of `scheduling.Scheduler`: policies and limits. For a `host_pool` the executor gets its blocks.

    Raises:
        UnderloadError: both a number of blocks and a memory, not one block fits, a model without weights, or an option
            that the scheduler refuses.
    """
    if kv_memory is not None and num_blocks is not None:
        raise UnderloadError(
            f"the cache is given as {kv_memory:,.0f} bytes and as {num_blocks:,} blocks; leave one of them out"
        )
    longest = min(max_model_len or model.shape.max_positions, model.shape.max_positions)
    if num_blocks is None:
        fitting = blocks_for_memory(
            model,
            block_size,
            kv_memory,
            kv_dtype,
            step_tokens=max_num_batched_tokens,
            sequences=max_num_seqs,
        )
        num_blocks = max(1, fitting - 1)  # the executor has one besides, for what is thrown away
        if kv_memory is None:
            num_blocks = min(num_blocks, max_num_seqs * -(-longest // block_size))
    scheduler = Scheduler(
        BlockPool(num_blocks, block_size, prefix_caching=prefix_caching),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=longest,
        **options,
    )
    host_pool = scheduler.host_pool  # None where preemption is by recomputing
    host_blocks = host_pool.num_blocks if host_pool is not None else 0
    executor = DecoderExecutor(model, num_blocks, block_size, kv_dtype=kv_dtype, host_blocks=host_blocks, clock=clock)
    return Engine(scheduler, executor, clock, lookahead=lookahead)
