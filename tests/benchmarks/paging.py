"""What paging costs in attention: blocks read in place, beside one contiguous cache and beside gathering first.

    python tests/benchmarks/paging.py --out chapters/data/paging.json   five minutes, on a quiet machine
    python tests/benchmarks/paging.py --quick                            under a minute; prints, stores nothing

Decoding, one new token a sequence, over the layers of a model without what stands between them. In each round everyone
does the same case once, in turn. See README.md in this folder for how to read the result.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pool
import torch
import torch.nn.functional as F
from load import other_load

from underload.decoder import ceilings, machine
from underload.decoder.attention import paged_attention
from underload.shapes import shape

MODELS = {"S": "bench-s", "M": "bench-m", "SmolLM2-135M": "smollm2-135m"}
CONTEXTS, BATCHES = (128, 2048), (1, 4, 16)
BLOCKS = (1, 4, 8, 16, 32, 64)
USUAL = 16  # block size of the comparisons and of the 16-bit pools
MEMORY = 300e6  # bytes of keys and values of a case at most; fewer layers where a model has more
TURN = 0.005  # seconds that a turn takes at least: calls are repeated until then
QUIET, FEWEST = 0.06, 5  # rounds with more other load are left out, as long as so many remain
AIMS = {"in_place_over_contiguous": 1.0, "gather_over_in_place_at_2048_x_16": 5.0}

Call = Callable[[], Any]


def calls_of(heads: int, kv_heads: int, dim: int, context: int, batch: int, layers: int) -> dict[str, Call]:
    """Everyone's pass over all layers, by name. All read the same numbers, each as blocks of its own size."""
    tokens = batch * context
    generator = torch.Generator().manual_seed(0)
    keys = [torch.randn(tokens * kv_heads * dim, generator=generator) for _ in range(layers)]
    values = [torch.randn(tokens * kv_heads * dim, generator=generator) for _ in range(layers)]
    q = torch.randn(batch, heads, dim, generator=generator)
    rng = np.random.default_rng(0)
    new, contexts = [1] * batch, [context] * batch

    def in_place(block_size: int, dtype: torch.dtype = torch.float32) -> Call:
        blocks = tokens // block_size
        tables = torch.from_numpy(rng.permutation(blocks).reshape(batch, -1).astype(np.int32))
        layered = [
            [layer.to(dtype).view(blocks, block_size, kv_heads, dim) for layer in part] for part in (keys, values)
        ]

        def call() -> None:
            for k, v in zip(*layered, strict=True):
                paged_attention(q, k, v, tables, new, contexts, implementation="cpu")

        both = (
            paged_attention(q, layered[0][0], layered[1][0], tables, new, contexts, implementation=name)
            for name in ("cpu", "torch")
        )
        torch.testing.assert_close(*both, rtol=1e-5, atol=1e-5)
        return call

    row = q.unsqueeze(2)  # [batch, heads, 1, head_dim]
    tables = torch.from_numpy(rng.permutation(tokens // USUAL).reshape(batch, -1))

    def contiguous() -> None:
        for k, v in zip(keys, values, strict=True):
            F.scaled_dot_product_attention(
                row, k.view(batch, kv_heads, context, dim), v.view(batch, kv_heads, context, dim),
                enable_gqa=heads != kv_heads,
            )  # fmt: skip

    def gathered() -> None:
        for k, v in zip(keys, values, strict=True):
            k, v = (
                part.view(-1, USUAL, kv_heads, dim)[tables].view(batch, context, kv_heads, dim).transpose(1, 2)
                for part in (k, v)
            )
            F.scaled_dot_product_attention(row, k, v, enable_gqa=heads != kv_heads)

    found = {f"in place, blocks of {size}": in_place(size) for size in BLOCKS}
    found["in place, one block"] = in_place(context)
    found["in place, float16"], found["in place, bfloat16"] = (
        in_place(USUAL, dtype) for dtype in (torch.float16, torch.bfloat16)
    )
    found["contiguous"], found["gathered"] = contiguous, gathered
    if heads != kv_heads:
        copies = [
            [part.view(batch, kv_heads, context, dim).repeat_interleave(heads // kv_heads, 1) for part in layers_of]
            for layers_of in (keys, values)
        ]

        def repeated() -> None:
            for k, v in zip(*copies, strict=True):
                F.scaled_dot_product_attention(row, k, v)

        def gathered_repeated() -> None:
            for k, v in zip(keys, values, strict=True):
                k, v = (
                    part.view(-1, USUAL, kv_heads, dim)[tables].view(batch, context, kv_heads, dim).transpose(1, 2)
                    .repeat_interleave(heads // kv_heads, 1)
                    for part in (k, v)
                )  # fmt: skip
                F.scaled_dot_product_attention(row, k, v)

        found["contiguous, heads repeated"], found["gathered, heads repeated"] = repeated, gathered_repeated
    return found


def measure_case(label: str, context: int, batch: int, rounds: int) -> dict[str, Any]:
    sizes = shape(MODELS[label])
    kv_bytes = 2 * 4 * batch * context * sizes.num_kv_heads * sizes.head_dim
    layers = max(1, min(sizes.num_layers, int(MEMORY // kv_bytes)))
    calls = calls_of(sizes.num_heads, sizes.num_kv_heads, sizes.head_dim, context, batch, layers)
    repeats = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        repeats[name] = max(1, round(TURN / (time.perf_counter() - start)))
    names = list(calls)
    microseconds: dict[str, list[float]] = {name: [] for name in names}
    loads: list[float | None] = []
    for number in range(rounds):
        record: dict[str, Any] = {}
        with other_load(record):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                start = time.perf_counter()
                for _ in range(repeats[name]):
                    calls[name]()
                spent = (time.perf_counter() - start) / repeats[name] / layers
                microseconds[name].append(round(spent * 1e6, 2))
        loads.append(record["other_load"])
    return {
        "model": label, "heads": sizes.num_heads, "kv_heads": sizes.num_kv_heads, "head_dim": sizes.head_dim,
        "context": context, "batch_size": batch, "layers": layers, "kv_bytes": kv_bytes,
        "other_load": loads, "microseconds_each": microseconds,
    }  # fmt: skip


def summarise(case: dict[str, Any], bandwidth: float) -> None:
    """Medians of the quiet rounds, ratios round by round, and what part of the bandwidth the reading reached."""
    each, loads = case["microseconds_each"], case["other_load"]
    quiet = [i for i, load in enumerate(loads) if load is None or load <= QUIET]
    case["quiet_rounds"] = len(quiet)
    kept = quiet if len(quiet) >= FEWEST else range(len(loads))
    case["microseconds"] = {name: median(found[i] for i in kept) for name, found in each.items()}
    case["microseconds_best"] = {name: min(found) for name, found in each.items()}

    def best(kind: str) -> str:
        return min((name for name in each if name.startswith(kind)), key=lambda name: case["microseconds"][name])

    contiguous, gathered = best("contiguous"), best("gathered")
    case["contiguous"], case["gathered"] = contiguous, gathered
    in_place = [name for name in each if name.startswith("in place")]
    case["over_contiguous"] = {
        name: round(median(each[name][i] / each[contiguous][i] for i in kept), 3) for name in in_place
    }
    usual = f"in place, blocks of {USUAL}"
    case["gathered_over_in_place"] = round(median(each[gathered][i] / each[usual][i] for i in kept), 2)
    case["of_bandwidth"] = {
        name: round(case["kv_bytes"] / (2 if "float" in name else 1) / case["microseconds"][name] * 1e6 / bandwidth, 3)
        for name in in_place
    }


def table(cases: list[dict[str, Any]]) -> str:
    usual = f"in place, blocks of {USUAL}"
    lines = [
        "| model | context | B | in place, us a layer | over contiguous: 1 | 4 | 8 | 16 | 32 | 64 | one block "
        "| float16 | bfloat16 | gathered / in place | of bandwidth | quiet rounds |",
        "|" + "---|" * 16,
    ]
    for case in cases:
        ratios = " | ".join(f"{ratio:.2f}" for ratio in case["over_contiguous"].values())
        lines.append(
            f"| {case['model']} | {case['context']} | {case['batch_size']} | {case['microseconds'][usual]:.1f} "
            f"| {ratios} | {case['gathered_over_in_place']:.1f} | {case['of_bandwidth'][usual]:.2f} "
            f"| {case['quiet_rounds']} |"
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="store the result as JSON here")
    parser.add_argument("--quick", action="store_true", help="a small run that shows that everything works")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--note", default="", help="a remark on the circumstances, stored with the result")
    options = parser.parse_args(argv)
    contexts, batches = CONTEXTS, BATCHES
    if options.quick:
        options.models, options.rounds, contexts, batches = ["M"], 2, (128,), (1, 4)
    torch.set_num_threads(options.threads)
    bandwidth = ceilings("cpu").read_bandwidth
    cases = []
    for label in options.models:
        for context in contexts:
            for batch in batches:
                cases.append(measure_case(label, context, batch, options.rounds))
                print(f"{label}, context {context}, batch {batch}", file=sys.stderr, flush=True)
    for case in cases:
        summarise(case, bandwidth)
    print(f"reads {bandwidth / 1e9:.1f} GB/s at best\n\n{table(cases)}")
    result = {
        "benchmark": "paging", "date": date.today().isoformat(), "machine": machine(), "note": options.note,
        "aims": AIMS, "read_bandwidth": bandwidth, "cases": cases, "pool": pool.measure(quick=options.quick),
    }  # fmt: skip
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
