"""What KV memory holds under four ways of giving it out: the recorded simulations behind "The KV cache and its waste".

    python tests/benchmarks/waste.py --out chapters/data/waste.json       some minutes; needs the public traces
    python tests/benchmarks/waste.py --quick                              seconds; stores nothing

One scheduler, one engine loop and one model of step times; only the pool differs. A virtual clock: the same on every
machine. Only sums over the traces are stored, no row of them.

    systems   the memory of Kwon et al. (SOSP 2023), Fig. 2: OPT-13B on an A100 of 40 GB, ShareGPT lengths
    blocks    the same with pages of other sizes
    traces    other traces, with memory for eight of each trace's longest requests, in steps of up to 16,384 tokens
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from underload.cache import BlockPool, ReservingPool
from underload.metrics import mean_interval
from underload.shapes import Device, shape
from underload.simulation import Occupancy, RooflineStepTime, serve_backlog
from underload.workload import load_trace

CARD = Device("a100-40gb", 1555e9, 312e12, 40e9, "NVIDIA A100 data sheet, 40 GB, bf16 without sparsity")
MODEL = shape("llama-2-13b")  # the layers, heads and width of OPT-13B, and as many weights
KV_MEMORY = 12 * 2**30  # bytes: Table 1 of the paper says 12 GB, and its 15.7K slots make that GiB
LIMIT = 2048  # tokens: the longest that OPT-13B takes
BLOCK = 16
SEEDS, REQUESTS = 6, 500
BLOCK_SIZES = (1, 4, 16, 64, 128, 256, 512, 1024)
STEP_TOKENS = 16_384  # of the traces: in steps of 2,048 reading long prompts limits the batch before memory does
TRACES = ("sharegpt-lengths", "azure-conv", "azure-code", "burstgpt", "mooncake-conversation")
FIELDS = ("stored", "reserved", "internal", "external", "free", "batch", "throughput", "preemptions", "recomputed")


def power_of_two(tokens: int) -> int:
    """The smallest power of two that is at least `tokens`."""
    return 1 << (tokens - 1).bit_length()


#: How the memory is given out: by blocks when needed (None), or reserved by prompt, answer and limit.
SYSTEMS: dict[str, tuple[str, Callable[[int, int, int], int] | None]] = {
    "max": ("buddy", lambda prompt, output, limit: limit),
    "pow2": ("buddy", lambda prompt, output, limit: prompt + power_of_two(output)),
    "oracle": ("buddy", lambda prompt, output, limit: prompt + output),
    "oracle-exact": ("first-fit", lambda prompt, output, limit: prompt + output),
    "paged": ("", None),
}


def pairs(name: str, limit: int | None = None) -> list[tuple[int, int]]:
    """Prompt and answer of every request of a trace that fits the limit."""
    trace = load_trace(name)
    rows = zip(trace.prompt_tokens[trace.usable].tolist(), trace.output_tokens[trace.usable].tolist())
    return [(prompt, output) for prompt, output in rows if limit is None or prompt + output <= limit]


def order(lengths: list[tuple[int, int]], seed: int, count: int) -> list[tuple[int, int]]:
    """`count` of them at random, each once; all of them, shuffled, where there are no more."""
    chosen = np.random.default_rng(seed).permutation(len(lengths))[:count]
    return [lengths[place] for place in chosen]


def law(lengths: list[tuple[int, int]]) -> dict[str, float]:
    """What formulas need: means over the requests, and over the steps that they take."""
    steps = sum(output for _, output in lengths)
    longest = max(prompt + output for prompt, output in lengths)
    totals = np.array([prompt + output for prompt, output in lengths])
    groups = np.random.default_rng(0).choice(totals, (20_000, 8))
    return {
        "requests": len(lengths),
        "prompt": fmean(prompt for prompt, _ in lengths),
        "output": fmean(output for _, output in lengths),
        "longest": longest,
        # A sequence takes part in as many steps as it gives tokens, and holds one more in each: long ones count more.
        "stored": sum(output * (prompt + (output - 1) / 2) for prompt, output in lengths) / steps,
        "final": sum(output * (prompt + output - 1) for prompt, output in lengths) / steps,
        "run_pow2": sum(o * min(power_of_two(p + power_of_two(o)), power_of_two(longest)) for p, o in lengths) / steps,
        "run_oracle": sum(o * power_of_two(p + o) for p, o in lengths) / steps,
        "longest_of_8": float(groups.max(axis=1).mean() / totals.mean()),
    }


def held(lengths: list[tuple[int, int]], block: int) -> float:
    """Token slots in the blocks of a sequence, averaged over the steps of all sequences."""
    slots = [int((-(-np.arange(prompt, prompt + output) // block) * block).sum()) for prompt, output in lengths]
    return sum(slots) / sum(output for _, output in lengths)


def serve(system: str, requests: list[tuple[int, int]], slots: int, block: int, limit: int, **more: Any) -> Occupancy:
    placement, reserve = SYSTEMS[system]
    if reserve is None:
        pool: Any = BlockPool(slots // block, block, prefix_caching=False)
        wanted = None
    else:
        pool = ReservingPool(slots // block, block, placement=placement)
        wanted = lambda prompt, output: reserve(prompt, output, limit)  # noqa: E731
    return serve_backlog(pool, requests, RooflineStepTime(MODEL, CARD), max_model_len=limit, reserve=wanted, **more)


def summary(runs: list[Occupancy]) -> dict[str, list[float]]:
    """Mean and 95 % interval of each figure over the runs."""
    found = {}
    for name in FIELDS:
        values = [float(getattr(run, name)) for run in runs]
        interval = mean_interval(values) if len(values) > 1 else None
        low, high = (interval.low, interval.high) if interval else (values[0], values[0])
        found[name] = [round(value, 5) for value in (fmean(values), low, high)]
    return found


def serve_trace(name: str, lengths: list[tuple[int, int]], count: int) -> dict[str, Any]:
    """Four ways of giving memory out, and `paged-2048`: paged, in steps of 2,048 tokens."""
    found = law(lengths)
    limit = int(found["longest"]) + 1

    def served(system: str, **more: Any) -> dict[str, list[float]]:
        requests = order(lengths, 0, count)
        return summary([serve(system, requests, 8 * power_of_two(limit), BLOCK, limit, look_every=32, **more)])

    runs = {system: served(system, max_num_batched_tokens=STEP_TOKENS) for system in ("max", "pow2", "oracle", "paged")}
    runs["paged-2048"] = served("paged", max_num_batched_tokens=2048)
    print(name, {system: (run["batch"][0], run["free"][0]) for system, run in runs.items()}, flush=True)
    return found | runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    seeds, count = (range(1), 60) if options.quick else (range(SEEDS), REQUESTS)
    slots = int(KV_MEMORY // MODEL.kv_bytes_per_token(2))
    chat = pairs("sharegpt-lengths", LIMIT)
    record: dict[str, Any] = {
        "what": "shares of KV memory by use, and sequences in a step, while requests wait; simulated",
        "command": "python tests/benchmarks/waste.py --out chapters/data/waste.json",
        "date": date.today().isoformat(),
        "memory": {"bytes": KV_MEMORY, "slots": slots, "block": BLOCK, "limit": LIMIT, "model": MODEL.name},
        "card": {"name": CARD.name, "bandwidth": CARD.bandwidth, "flops": CARD.flops, "source": CARD.source},
        "runs": len(seeds),
        "requests_a_run": count,
        "law": law(chat),
        "systems": {},
        "blocks": {},
        "traces": {},
    }
    for name in SYSTEMS:
        runs = [serve(name, order(chat, seed, count), slots, BLOCK, LIMIT) for seed in seeds]
        record["systems"][name] = summary(runs)
        print(name, json.dumps(record["systems"][name]), flush=True)
    for block in BLOCK_SIZES:
        looks = 64 if block < 8 else 8  # a look takes time by the number of blocks
        runs = [serve("paged", order(chat, s, count), slots, block, LIMIT, look_every=looks) for s in list(seeds)[:3]]
        record["blocks"][block] = summary(runs) | {"held": held(chat, block)}
        print(block, json.dumps(record["blocks"][block]), flush=True)
    for name in TRACES[:1] if options.quick else TRACES:
        lengths = chat if name == TRACES[0] else pairs(name)
        record["traces"][name] = serve_trace(name, lengths, count)
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
