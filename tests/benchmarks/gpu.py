"""Everything that needs a GPU to be believed, in one script of a few minutes.

    python tests/benchmarks/gpu.py [--out FILE] [--quick] [--part NAME] [--minutes 8]

Runs from a bare checkout (PYTHONPATH=lib) on torch and numpy, and on triton for the kernels, whose parts are otherwise
skipped by name. Each part is a function that takes the device and returns plain data. A part that raises is recorded
with its error, and the others still run; what no time is left for is named in its place. Without a GPU, or with
--quick, the same code runs small, and without a GPU on the CPU (kernels in Triton's interpreter), so that it cannot
rot: those figures say nothing about a GPU, and the record says which it is.
"""

import argparse
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import gpu_serving
import numpy as np
import torch
import torch.nn.functional as F

from underload.cache import BlockPool
from underload.decoder import (
    Batch,
    DecoderExecutor,
    Model,
    Weights,
    ceilings,
    decode_steps,
    generate,
    machine,
    prefill_steps,
)
from underload.decoder.attention import paged_attention
from underload.decoder.attention_triton import AttentionPlan, attend, rotate_write, unsupported
from underload.decoder.kv import PlainKV
from underload.decoder.rope import cos_sin, inverse_frequencies, rotate
from underload.decoder.sampling import SamplingState, probabilities, sample
from underload.engine import Engine
from underload.request import BlockTable, Request, SamplingParams, Sequence, Timeline
from underload.scheduling import Scheduler
from underload.shapes import ModelShape, roofline, shape, step_cost


@dataclass(frozen=True)
class Setting:
    """Where the parts run and how large."""

    device: torch.device
    quick: bool
    until: float  # by time.monotonic()

    def left(self) -> float:
        """Seconds that remain."""
        return self.until - time.monotonic()

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32


def _logits(model: Model, prompts: list[list[int]], chunk: int | None = None) -> torch.Tensor:
    """Last-row logits of ragged prompts in one batch, on the CPU: [prompts, vocab]; with `chunk`, fed in pieces."""
    longest = max(map(len, prompts))
    kv = model.new_kv(len(prompts), longest)
    sequences = [Sequence(len(ids), list(ids), table=BlockTable(longest, [row])) for row, ids in enumerate(prompts)]
    last = {}
    while unfinished := [s for s in sequences if s.num_computed < len(s.tokens)]:
        work = [(s, min(chunk or len(s.tokens), len(s.tokens) - s.num_computed)) for s in unfinished]
        batch = Batch.of(work)
        logits = iter(model.forward(batch, kv).cpu())
        for sequence, new in work:
            sequence.num_computed += new
            if sequence.num_computed == len(sequence.tokens):
                last[id(sequence)] = next(logits)
    return torch.stack([last[id(sequence)] for sequence in sequences])


def parity(setting: Setting) -> dict:
    """The device's logits beside the CPU's on the same weights: float32 to rounding, 16-bit by how often the best
    token agrees."""
    small = replace(shape("smollm2-135m"), num_layers=4 if setting.quick else 30, name="smollm2-135m")
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(small.vocab_size, (n,), generator=generator).tolist() for n in (3, 1, 17, 64, 40)]
    weights = Weights.random(small, seed=0)
    reference = _logits(Model(small, weights, path="plain"), prompts)
    tensors = dict(_hugging_face_names(small, weights))
    torch.backends.cuda.matmul.allow_tf32 = False
    rows = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        model = Model(small, Weights.from_tensors(small, tensors, dtype=dtype, device=setting.device), path="plain")
        for how, chunk in (("whole", None), ("chunks of 5", 5)):
            got = _logits(model, prompts, chunk)
            rows[f"{str(dtype).removeprefix('torch.')}, {how}"] = {
                "relative_error": ((got - reference).abs().max() / reference.abs().max()).item(),
                "best_token_agrees": (got.argmax(-1) == reference.argmax(-1)).float().mean().item(),
            }
    worst = max(row["relative_error"] for name, row in rows.items() if name.startswith("float32"))
    if worst > 1e-4:
        raise AssertionError(f"float32 logits differ by {worst:.2e} of the largest logit; the bound is 1e-4")
    return {"prompt_lengths": [len(p) for p in prompts], "layers": small.num_layers, "rows": rows}


def _hugging_face_names(small: ModelShape, weights: Weights):
    """The tensors under the names `Weights.from_tensors` takes."""
    yield "model.embed_tokens.weight", weights.embed
    yield "model.norm.weight", weights.norm
    if not small.tied:
        yield "lm_head.weight", weights.head
    for index, layer in enumerate(weights.layers):
        prefix = f"model.layers.{index}."
        yield prefix + "input_layernorm.weight", layer.attention_norm
        yield prefix + "post_attention_layernorm.weight", layer.mlp_norm
        for name in ("q", "k", "v", "o"):
            yield f"{prefix}self_attn.{name}_proj.weight", getattr(layer, name).weight
        for name in ("gate", "up", "down"):
            yield f"{prefix}mlp.{name}_proj.weight", getattr(layer, name).weight


def sampling(setting: Setting) -> dict:
    """The law and the draws from it, on the device and on the CPU, from the same logits and seeds."""
    rows, vocab = (8, 500) if setting.quick else (64, 49_152)
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(1)) * 4
    wishes = [
        SamplingParams(temperature=0),
        SamplingParams(temperature=0.8, seed=7),
        SamplingParams(temperature=1.0, top_k=50, seed=8),
        SamplingParams(temperature=1.2, top_p=0.9, min_p=0.02, repetition_penalty=1.2, seed=9),
    ]
    states = [
        SamplingState(wishes[row % len(wishes)], Sequence(2, [row % vocab, 3, row % 5], index=row))
        for row in range(rows)
    ]
    here, there = probabilities(logits, states), probabilities(logits.to(setting.device), states).cpu()
    error = (here - there).abs().max().item()
    if error > 1e-9:
        raise AssertionError(f"the laws differ by {error:.1e}; the bound is 1e-9")
    drawn = [[draw.token_id for draw in sample(where, states)] for where in (logits, logits.to(setting.device))]
    # A draw may differ where the uniform number lies within rounding of a border between two tokens: rare, counted.
    return {
        "rows": rows,
        "law_difference": error,
        "draws_that_differ": sum(a != b for a, b in zip(*drawn, strict=True)),
    }


def decode(setting: Setting) -> dict:
    """Decode step time against batch and context, beside what the roofline with the measured ceilings allows."""
    top = ceilings(setting.device, setting.dtype)
    names = ("bench-s",) if setting.quick else ("smollm2-135m", "llama-3.2-1b", "llama-3-8b")
    batches = (1, 4) if setting.quick else (1, 2, 4, 8, 16, 32, 64, 128, 256)
    rows = []
    for name in names:
        if setting.left() < _LEAST:
            rows.append({"model": name, "skipped": "no time left"})
            continue
        model = Model(
            shape(name), Weights.random(shape(name), dtype=setting.dtype, device=setting.device), path="plain"
        )
        width = model.weights.embed.element_size()
        for context in (64,) if setting.quick else (128, 2048):
            for batch in batches:
                steps = decode_steps(
                    model, batch, context, steps=3 if setting.quick else 20, warmup=1 if setting.quick else 5
                )
                seconds = statistics.median(step.duration for step in steps)
                cost = step_cost(model.shape, [1] * batch, [context] * batch, weight_bytes=width, kv_bytes=width)
                bound = roofline(cost, bandwidth=top.read_bandwidth, flops=top.flops)
                rows.append(
                    {
                        "model": name,
                        "path": model.path,
                        "batch": batch,
                        "context": context,
                        "seconds": seconds,
                        "fastest": min(step.duration for step in steps),
                        "slowest": max(step.duration for step in steps),
                        "tokens_per_s": batch / seconds,
                        "bytes_per_s": cost.bytes / seconds,
                        "fraction_of_roofline": bound.seconds / seconds,
                        "bound": bound.bound,
                    }
                )
        del model
    return {"dtype": str(setting.dtype).removeprefix("torch."), "ceilings": vars(top), "rows": rows}


def prefill(setting: Setting) -> dict:
    """Prefill time against prompt length, in FLOP/s of the measured matrix-product ceiling."""
    top = ceilings(setting.device, setting.dtype)
    name = "bench-s" if setting.quick else "llama-3-8b"
    model = Model(shape(name), Weights.random(shape(name), dtype=setting.dtype, device=setting.device), path="plain")
    rows = []
    for prompt, batch in ((64, 1), (64, 2)) if setting.quick else ((128, 1), (512, 1), (2048, 1), (512, 4), (512, 8)):
        steps = prefill_steps(model, prompt, batch, repeats=2 if setting.quick else 7)
        seconds = statistics.median(step.duration for step in steps)
        rows.append(
            {
                "model": name,
                "prompt": prompt,
                "batch": batch,
                "seconds": seconds,
                "tokens_per_s": prompt * batch / seconds,
                "flops_per_s": steps[0].flops / seconds,
                "fraction_of_flops": steps[0].flops / seconds / top.flops,
            }
        )
    return {"dtype": str(setting.dtype).removeprefix("torch."), "ceilings": vars(top), "rows": rows}


# -------------------------------------------------- the kernels


class Paged:
    """A pool with the keys and values of some sequences in shuffled blocks, NaN where nothing was written."""

    def __init__(self, setting: Setting, contexts: list[int], block_size: int, kv_heads: int, dim: int, dtype, seed=0):
        needed = [-(-context // block_size) for context in contexts]
        order = np.random.default_rng(seed).permutation(sum(needed) + 2)
        tables = np.full((len(contexts), max(needed)), -1, dtype=np.int32)
        slots = []
        for row, (context, blocks) in enumerate(zip(contexts, needed, strict=True)):
            mine, order = order[:blocks], order[blocks:]
            tables[row, :blocks] = mine
            positions = np.arange(context)
            slots.append(mine[positions // block_size] * block_size + positions % block_size)
        size = (sum(needed) + 2, block_size, kv_heads, dim)
        self.keys, self.values = (torch.full(size, torch.nan, dtype=dtype, device=setting.device) for _ in range(2))
        written = torch.from_numpy(np.concatenate(slots)).to(setting.device)
        for pool in (self.keys, self.values):
            new = torch.empty(len(written), kv_heads, dim, dtype=dtype, device=setting.device).normal_()
            pool.flatten(0, 1)[written] = new
        self.tables = torch.from_numpy(tables).to(setting.device)


def attention(setting: Setting) -> dict:
    """The attention kernels beside the oracle in float64, over ragged batches of decoding, drafts and chunks."""
    if reason := unsupported(setting.device):
        return {"skipped": reason}
    bounds = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}  # values are of size 1
    rng = np.random.default_rng(0)
    heads = (
        [(2, 1, 16)] if setting.quick else [(32, 8, 128), (9, 3, 64), (6, 6, 48), (16, 1, 80), (8, 8, 96), (8, 2, 256)]
    )
    longest, ways = (20, [16]) if setting.quick else (3000, [1, 16, 100, 256])
    rows = []
    for dtype, bound in bounds.items():
        for number, (num_heads, kv_heads, dim) in enumerate(heads):
            contexts = [1, 9, *rng.integers(2, longest, size=1 if setting.quick else 12).tolist()]
            new = [1, 9, *(min(int(rng.choice([1, 1, 5, 16, 200])), context) for context in contexts[2:])]
            pool = Paged(setting, contexts, ways[number % len(ways)], kv_heads, dim, dtype, seed=number)
            q = torch.randn(sum(new), num_heads, dim, generator=torch.Generator().manual_seed(number))
            q = q.to(setting.device, dtype)
            wanted = paged_attention(
                q.double(), pool.keys.double(), pool.values.double(), pool.tables, new, contexts, implementation="torch"
            )
            for how, options in {
                "chosen splits": {},
                "splits of 192": {"split_tokens": 8 if setting.quick else 192},
                "invariant": {"invariant": True},
            }.items():
                plan = AttentionPlan.of(new, contexts, pool.tables, heads=num_heads, kv_heads=kv_heads, **options)
                error = (attend(q, pool.keys, pool.values, plan).double() - wanted).abs().max().item()
                rows.append(
                    {
                        "dtype": str(dtype).removeprefix("torch."),
                        "heads": [num_heads, kv_heads, dim],
                        "block_size": ways[number % len(ways)],
                        "how": how,
                        "splits": [launch.num_splits for launch in plan.launches],
                        "error": error,
                    }
                )
                if not error <= bound:  # a NaN is no small error
                    raise AssertionError(f"differs from the oracle by {error:.1e}, the bound is {bound}: {rows[-1]}")
    return {"rows": rows}


def invariance(setting: Setting) -> dict:
    """batch_invariant=True: logits bitwise those of a run alone, and what that costs."""
    if reason := unsupported(setting.device):
        return {"skipped": reason}
    small = ModelShape("tiny", 61, 32, 2, 4, 2, 8, 48, 64) if setting.quick else shape("smollm2-135m")
    one, longer = (5, 6) if setting.quick else (600, 1300)  # beyond one split of the context, and two
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, small.vocab_size, size=size).tolist() for size in (one, longer, 1)]
    rows, slower = {}, {}
    for dtype in (torch.float32,) if setting.quick else (torch.float32, torch.bfloat16):
        weights = Weights.random(small, dtype=dtype, device=setting.device)
        model = Model(small, weights, attention="triton", batch_invariant=True)
        alone = _paged_logits(model, prompts[:1], 16, None)[0]
        cases = {
            "among others": _paged_logits(model, prompts, 16, None)[0],
            "in chunks": _paged_logits(model, prompts[:1], 16, 4 if setting.quick else 61)[0],
            "in blocks of 1, in chunks, among others": _paged_logits(model, prompts, 1, 5 if setting.quick else 100)[0],
        }
        name = str(dtype).removeprefix("torch.")
        for case, got in cases.items():
            rows[f"{name}, {case}"] = (got - alone).abs().max().item()
        # The other side: without it, the same cases usually differ.
        loose = Model(small, weights, attention="triton")
        apart = _paged_logits(loose, prompts[:1], 16, None)[0] - _paged_logits(loose, prompts, 16, None)[0]
        rows[f"{name}, among others, not invariant"] = apart.abs().max().item()
        if not setting.quick:
            for batch in (1, 16, 128):
                took = [
                    statistics.median(step.duration for step in decode_steps(way, batch, 512, steps=10, warmup=3))
                    for way in (model, loose)
                ]
                slower[f"{name}, decode step, batch {batch}"] = took[0] / took[1]
            took = [
                statistics.median(step.duration for step in prefill_steps(way, 2048, repeats=5))
                for way in (model, loose)
            ]
            slower[f"{name}, prefill of 2048"] = took[0] / took[1]
    broken = {
        case: difference for case, difference in rows.items() if not case.endswith("not invariant") and difference != 0
    }
    if broken:
        raise AssertionError(f"logits depend on the batch: {broken}")
    return {"largest_difference": rows, "slower_than_not_invariant": slower}


def _paged_logits(model: Model, prompts: list[list[int]], block_size: int, chunk: int | None) -> list[torch.Tensor]:
    """All logits of each prompt, computed together in interleaved blocks, `chunk` tokens of each at a time."""
    per_row = -(-max(map(len, prompts)) // block_size)
    kv = model.new_kv(per_row * len(prompts), block_size)
    sequences = [
        Sequence(len(ids), list(ids), table=BlockTable(block_size, list(range(row, kv.num_blocks, len(prompts)))))
        for row, ids in enumerate(prompts)
    ]
    found: list[list[torch.Tensor]] = [[] for _ in prompts]
    while left := [s for s in sequences if s.num_computed < len(s.tokens)]:
        work = [(s, min(chunk or len(s.tokens), len(s.tokens) - s.num_computed)) for s in left]
        rows = model.forward(Batch.of(work, all_logits=True), kv).split([new for _, new in work])
        for (sequence, new), got in zip(work, rows, strict=True):
            found[sequences.index(sequence)].append(got)
            sequence.num_computed += new
    return [torch.cat(pieces) for pieces in found]


def engine(setting: Setting) -> dict:
    """The engine on the device, its pool too small for all, beside the naive loop: the same tokens."""
    kernels = unsupported(setting.device) is None
    small = ModelShape("tiny", 61, 32, 2, 4, 2, 8, 48, 64) if setting.quick else shape("smollm2-135m")
    count, longest, answer, blocks = (2, 8, 6, 4) if setting.quick else (48, 300, 64, 400)
    rng = np.random.default_rng(1)
    lengths = rng.integers(longest // 2, longest, size=count)
    prompts = [rng.integers(0, small.vocab_size, size=size).tolist() for size in lengths]
    params = SamplingParams(max_tokens=answer, temperature=0, ignore_eos=True)
    weights = Weights.random(small, dtype=setting.dtype, device=setting.device)
    for tensor in weights.tensors():
        if tensor.dim() == 2:  # as drawn, logits hardly depend on the context
            tensor.mul_(68 / small.hidden_size**0.5)
    found = {}
    for invariant in (True,) if setting.quick else (True, False):
        model = Model(
            small,
            weights,
            path="plain",
            attention="triton" if kernels else "torch",
            batch_invariant=invariant and (kernels or setting.device.type == "cpu"),
        )
        naive = [completion.token_ids for completion in generate(model, prompts, params)]
        block_size = 4 if setting.quick else 16
        scheduler = Scheduler(
            BlockPool(blocks, block_size),
            max_num_seqs=32,
            max_num_batched_tokens=8 if setting.quick else 256,
            max_model_len=small.max_positions,
        )
        runner = Engine(scheduler, DecoderExecutor(model, blocks, block_size))
        requests = [
            Request(str(index), prompt, params, Timeline(runner.clock.now())) for index, prompt in enumerate(prompts)
        ]
        for request in requests:
            runner.add(request)
        start = time.perf_counter()
        runner.run()
        seconds = time.perf_counter() - start
        said = [request.sequences[0].tokens[request.sequences[0].prompt_len :] for request in requests]
        same = [a == b for a, b in zip(said, naive, strict=True)]
        found["batch_invariant" if model.batch_invariant else "fast"] = {
            "requests": count,
            "same_tokens": sum(same),
            "preemptions": sum(request.sequences[0].preemptions for request in requests),
            "steps": len(runner.steps),
            "aborted": runner.aborted,
            "tokens_per_s": count * answer / seconds,
        }
        if runner.aborted or not any(request.sequences[0].preemptions for request in requests):
            raise AssertionError(f"steps failed, or nothing had to be preempted: {found}")
        if model.batch_invariant and not all(same):
            raise AssertionError(f"the engine says something else than the naive loop: {found}")
    return found


def _device_seconds(setting: Setting, calls: list[Callable[[], object]]) -> float:
    """Seconds of one of the calls; on a GPU without the host's share, as a captured graph replays them."""
    repeats = 2 if setting.quick else 7
    for call in calls[:3]:
        call()
    if setting.device.type != "cuda":
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            for call in calls:
                call()
            times.append(time.perf_counter() - start)
        return statistics.median(times) / len(calls)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times) / len(calls)


#: Query heads, KV heads and head_dim of Llama 3 8B.
_LLAMA = (32, 8, 128)
_COLD = 256e6  # bytes that a round of calls reads, so that no cache keeps them for the next


def paged_decode(setting: Setting) -> dict:
    """One layer's decode attention, in bytes/s of the measured ceiling: one split and the chosen ones, beside SDPA on
    contiguous keys and values."""
    if reason := unsupported(setting.device):
        return {"skipped": reason}
    heads, kv_heads, dim = (2, 1, 16) if setting.quick else _LLAMA
    top = ceilings(setting.device, setting.dtype)
    width = torch.empty(0, dtype=setting.dtype).element_size()
    cases = [(batch, context, 16) for context in (512, 4096, 32_768) for batch in (1, 8, 64)]
    cases += [(8, 4096, size) for size in (1, 4, 64, 256)]
    rows = []
    for batch, context, block_size in [(1, 280, 16)] if setting.quick else cases:
        size = 2 * batch * context * kv_heads * dim * width
        copies = 1 if setting.quick else max(1, min(64, int(-(-_COLD // size))))
        pool = Paged(setting, [context] * batch * copies, block_size, kv_heads, dim, setting.dtype)
        q = torch.randn(batch, heads, dim, device=setting.device).to(setting.dtype)
        chosen = None
        for how, options in {"chosen": {}, "one split": {"split_tokens": context}}.items():
            plans = [
                AttentionPlan.of([1] * batch, [context] * batch, tables, heads=heads, kv_heads=kv_heads, **options)
                for tables in pool.tables.split(batch)
            ]
            splits = plans[0].launches[0].num_splits
            if splits == chosen:
                continue  # one split was chosen
            chosen = splits
            calls = [partial(attend, q, pool.keys, pool.values, plan) for plan in plans]
            seconds = _device_seconds(setting, calls)
            rows.append(_decode_row(how, batch, context, block_size, splits, seconds, size, top.read_bandwidth))
        if block_size != 16:
            continue
        del pool, calls
        k, v = (
            torch.randn(copies * batch, kv_heads, context, dim, device=setting.device, dtype=setting.dtype)
            for _ in range(2)
        )
        calls = [
            partial(F.scaled_dot_product_attention, q[:, :, None], *dense, enable_gqa=True)
            for dense in zip(k.split(batch), v.split(batch), strict=True)
        ]
        seconds = _device_seconds(setting, calls)
        rows.append(_decode_row("SDPA, contiguous", batch, context, None, None, seconds, size, top.read_bandwidth))
        del k, v, calls
    return {"dtype": str(setting.dtype).removeprefix("torch."), "ceilings": vars(top), "rows": rows}


def _decode_row(how, batch, context, block_size, splits, seconds, size, bandwidth) -> dict:
    return {
        "how": how,
        "batch": batch,
        "context": context,
        "block_size": block_size,
        "splits": splits,
        "seconds": seconds,
        "bytes_per_s": size / seconds,
        "fraction_of_bandwidth": size / seconds / bandwidth,
    }


def paged_prefill(setting: Setting) -> dict:
    """One layer's attention of prompts and chunks, in FLOP/s of the measured ceiling, beside causal SDPA where the
    prompt is whole."""
    if reason := unsupported(setting.device):
        return {"skipped": reason}
    heads, kv_heads, dim = (2, 1, 16) if setting.quick else _LLAMA
    top = ceilings(setting.device, setting.dtype)
    cases = [(2048, 2048, 1), (8192, 8192, 1), (512, 512, 8), (512, 8192, 1), (64, 8192, 1), (5, 4096, 16)]
    rows = []
    for new, context, batch in [(3, 7, 1), (4, 4, 2)] if setting.quick else cases:
        pool = Paged(setting, [context] * batch, 16, kv_heads, dim, setting.dtype)
        q = torch.randn(batch * new, heads, dim, device=setting.device).to(setting.dtype)
        flops = 4 * heads * dim * batch * sum(range(context - new + 1, context + 1))
        ways: dict[str, Callable[[], object]] = {}
        for how, options in {"chosen": {}, "invariant": {"invariant": True}}.items():
            plan = AttentionPlan.of(
                [new] * batch, [context] * batch, pool.tables, heads=heads, kv_heads=kv_heads, **options
            )
            ways[how] = partial(attend, q, pool.keys, pool.values, plan)
        if new == context:
            dense = [
                torch.randn(batch, n, new, dim, device=setting.device, dtype=setting.dtype)
                for n in (heads, kv_heads, kv_heads)
            ]
            ways["SDPA, contiguous"] = partial(F.scaled_dot_product_attention, *dense, is_causal=True, enable_gqa=True)
        for how, call in ways.items():
            seconds = _device_seconds(setting, [call] * (1 if setting.quick else 10))
            rows.append(
                {
                    "how": how,
                    "new": new,
                    "context": context,
                    "batch": batch,
                    "seconds": seconds,
                    "flops_per_s": flops / seconds,
                    "fraction_of_flops": flops / seconds / top.flops,
                }
            )
    return {"dtype": str(setting.dtype).removeprefix("torch."), "ceilings": vars(top), "rows": rows}


def write(setting: Setting) -> dict:
    """Rotary positions and the write of one layer, in one kernel and apart: with the host's share, and without."""
    if reason := unsupported(setting.device):
        return {"skipped": reason}
    model = shape("bench-s" if setting.quick else "llama-3-8b")
    rows = []
    for tokens in (2,) if setting.quick else (1, 64, 2048):
        kv = PlainKV(replace(model, num_layers=1), -(-tokens // 16) + 1, 16, dtype=setting.dtype, device=setting.device)
        q, k, v = (
            torch.randn(tokens, heads, model.head_dim, device=setting.device).to(setting.dtype)
            for heads in (model.num_heads, model.num_kv_heads, model.num_kv_heads)
        )
        slots = torch.randperm(tokens + 16, device=setting.device)[:tokens]
        cos, sin = cos_sin(inverse_frequencies(model).to(setting.device), torch.arange(tokens, device=setting.device))

        def fused(q=q, k=k, v=v, cos=cos, sin=sin, slots=slots, kv=kv):
            return rotate_write(q, k, v, cos, sin, slots, kv.keys[0], kv.values[0])

        def apart(q=q, k=k, v=v, cos=cos, sin=sin, slots=slots, kv=kv):
            turned = rotate(q, cos, sin)
            kv.write(0, slots, rotate(k, cos, sin), v)
            return turned

        difference = (fused().float() - apart().float()).abs().max().item()
        row = {"tokens": tokens, "largest_difference": difference}
        for name, call in (("fused", fused), ("apart", apart)):
            row[name + "_device_seconds"] = _device_seconds(setting, [call] * (1 if setting.quick else 20))
            row[name + "_seconds"] = _host_seconds(setting, call)
        rows.append(row)
    return {"dtype": str(setting.dtype).removeprefix("torch."), "rows": rows}


def _host_seconds(setting: Setting, call: Callable[[], object]) -> float:
    """Seconds of a call as a loop in Python issues them, one after the other."""
    runs = 2 if setting.quick else 50
    if setting.device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(runs):
        call()
    if setting.device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / runs


_LEAST = 20.0  # seconds that a part is begun with
PARTS: dict[str, Callable[[Setting], dict]] = {
    "parity": parity,
    "sampling": sampling,
    "attention": attention,
    "invariance": invariance,
    "engine": engine,
    "captured": gpu_serving.captured,
    "memory": gpu_serving.memory,
    "steps": gpu_serving.steps,
    "mixed": gpu_serving.mixed,
    "load": gpu_serving.load,
    "paged_decode": paged_decode,
    "paged_prefill": paged_prefill,
    "write": write,
    "decode": decode,
    "prefill": prefill,
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the record (JSON) here; default: standard output")
    parser.add_argument("--quick", action="store_true", help="run small, whatever the device")
    parser.add_argument("--part", choices=PARTS, action="append", help="run only this part (may be repeated)")
    parser.add_argument("--minutes", type=float, default=8.0, help="begin nothing that would end later (default: 8)")
    args = parser.parse_args(argv)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported, which is not yet
    setting = Setting(device, args.quick or device.type == "cpu", time.monotonic() + 60 * args.minutes)
    record: dict = {
        "date": datetime.now(UTC).date().isoformat(),
        "command": "python tests/benchmarks/gpu.py" + (" --quick" if args.quick else ""),
        "on_gpu": device.type == "cuda",
        "quick": setting.quick,
        "machine": machine(),
        "parts": {},
    }
    failed = []
    for name in args.part or PARTS:
        start = time.perf_counter()
        try:
            result = PARTS[name](setting) if setting.left() > _LEAST else {"skipped": "no time left"}
        except Exception:
            failed.append(name)
            result = {"error": traceback.format_exc(limit=3)}
        record["parts"][name] = {"wall_seconds": round(time.perf_counter() - start, 2)} | result
        print(
            f"{name}: {'failed' if name in failed else 'done'} in {record['parts'][name]['wall_seconds']} s",
            file=sys.stderr,
        )
        # Written after every part: a run that is cut short keeps what it has measured.
        if args.out:
            args.out.write_text(json.dumps(record, indent=1) + "\n")
    if not args.out:
        print(json.dumps(record, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
