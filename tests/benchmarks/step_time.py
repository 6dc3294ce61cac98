"""How long one step takes, against how many are in it: the recorded measurement behind "Why batching wins".

    python tests/benchmarks/step_time.py --out lib/underload/labs/step_time.json      some minutes, on a quiet machine
    python tests/benchmarks/step_time.py --quick                                 seconds; prints, stores nothing

Four sweeps, each taken in several rounds that go over all settings in turn, so that a machine that drifts drifts
under all of them alike. All times of all rounds are stored; readers take the median and may look at the spread.

    decode   step time against batch size, one context, for a model whose weights no cache holds and for pocket
    context  step time against context, one batch size: the reading of keys and values
    prefill  step time against the number of prompts in one step
    product  rows of activations times one weight matrix, in torch: what happens between one row and two
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import torch
from load import other_load

from underload.decoder import Model, ceilings, decode_steps, load_model, machine, prefill_steps

BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
CONTEXTS = (64, 256, 512, 1024, 2048)
PROMPTS = (1, 2, 4, 8)
ROWS = (1, 2, 3, 4, 8, 16, 32)


def store(path: Path, found: dict[str, Any]) -> None:
    """Write a recording with one line a list of numbers, so that people can read it and see what a new one changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = re.sub(r"\[[^\[\]{}]*\]", lambda lot: " ".join(lot.group().split()), json.dumps(found, indent=1))
    path.write_text(text + "\n")


def sweep_decode(
    models: list[Model], batches: tuple[int, ...], context: int, steps: int, rounds: int
) -> list[dict[str, Any]]:
    """Step times by batch size for each model, the models taking turns."""
    series = [
        {**describe(model), "context": context, "rows": [{"batch_size": b, "seconds": []} for b in batches]}
        for model in models
    ]
    for _ in range(rounds):
        for row, batch in enumerate(batches):
            for model, one in zip(models, series, strict=True):
                one["rows"][row]["seconds"] += seconds(decode_steps(model, batch, context, steps=steps))
    return series


def sweep_context(
    models: list[Model], contexts: tuple[int, ...], batch: int, steps: int, rounds: int
) -> list[dict[str, Any]]:
    """Step times by context for each model, at one batch size."""
    series = [
        {**describe(model), "batch_size": batch, "rows": [{"context": n, "seconds": []} for n in contexts]}
        for model in models
    ]
    for _ in range(rounds):
        for row, context in enumerate(contexts):
            for model, one in zip(models, series, strict=True):
                one["rows"][row]["seconds"] += seconds(decode_steps(model, batch, context, steps=steps))
    return series


def sweep_prefill(
    models: list[Model], prompts: tuple[int, ...], prompt_len: int, repeats: int, rounds: int
) -> list[dict[str, Any]]:
    """Step times of whole prompts computed together."""
    series = [
        {**describe(model), "prompt_len": prompt_len, "rows": [{"prompts": k, "seconds": []} for k in prompts]}
        for model in models
    ]
    for _ in range(rounds):
        for row, k in enumerate(prompts):
            for model, one in zip(models, series, strict=True):
                one["rows"][row]["seconds"] += seconds(prefill_steps(model, prompt_len, k, repeats=repeats))
    return series


def sweep_product(
    rows: tuple[int, ...], repeats: int, rounds: int, inputs: int = 2048, outputs: int = 16_384
) -> dict[str, Any]:
    """Times of x @ W^T in torch for a W of 128 MiB, by the number of rows of x."""
    weight = torch.randn(outputs, inputs)
    found: dict[str, Any] = {
        "inputs": inputs,
        "outputs": outputs,
        "weight_bytes": weight.numel() * weight.element_size(),
        "rows": [{"rows": r, "seconds": []} for r in rows],
    }
    for _ in range(rounds):
        for entry in found["rows"]:
            x = torch.randn(entry["rows"], inputs)
            for _ in range(repeats + 1):
                start = time.perf_counter()
                torch.nn.functional.linear(x, weight)
                entry["seconds"].append(round(time.perf_counter() - start, 7))
    return found


def describe(model: Model) -> dict[str, Any]:
    """What a series is of."""
    return {
        "model": model.shape.name,
        "path": model.path,
        "dtype": str(model.dtype).removeprefix("torch."),
        "weight_bytes": model.weight_bytes,
    }


def seconds(records: list[Any]) -> list[float]:
    """Durations to a tenth of a microsecond: more digits would be noise in a stored file."""
    return [round(record.duration, 7) for record in records]


def load(source: str, paths: list[str]) -> list[Model]:
    """One model a path that can run it here."""
    models = [load_model(source, path=path) for path in paths]
    return list({model.path: model for model in models}.values())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="store the measurement as JSON here")
    parser.add_argument("--quick", action="store_true", help="a small run that shows that everything works")
    parser.add_argument("--big", default="shape:smollm2-135m", help="a model whose weights no cache holds")
    parser.add_argument("--small", default="pocket", help="a model whose weights every cache holds")
    parser.add_argument("--paths", default="plain,auto", help="paths of the decoder, by commas")
    parser.add_argument("--rounds", type=int, default=3, help="times each setting gets its turn")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    paths = options.paths.split(",")
    if options.quick:
        options.big = "shape:bench-s" if options.big == "shape:smollm2-135m" else options.big
    batches = (1, 2, 4) if options.quick else BATCHES
    contexts = (16, 64) if options.quick else CONTEXTS
    prompts = (1, 2) if options.quick else PROMPTS
    rows = (1, 2, 4) if options.quick else ROWS
    steps, rounds = (2, 1) if options.quick else (6, options.rounds)
    big, small = load(options.big, paths), load(options.small, paths)
    found: dict[str, Any] = {
        "what": "step times of the decoder, by batch size, context and prompts in a step; one matrix product, by rows",
        "command": "python tests/benchmarks/step_time.py --out lib/underload/labs/step_time.json",
        "date": date.today().isoformat(),
        "machine": machine(),
    }
    with other_load(found):
        before = ceilings()
        found["decode"] = sweep_decode(big + small, batches, 32 if options.quick else 128, steps, rounds)
        found["context"] = sweep_context(
            big, contexts, 2 if options.quick else 16, max(2, steps // 2), max(1, rounds - 1)
        )
        found["prefill"] = sweep_prefill(big, prompts, 16 if options.quick else 128, 2, max(1, rounds - 1))
        found["product"] = sweep_product(rows, steps, rounds)
    found["ceilings"] = {**asdict(before), "read_bandwidth": round(before.read_bandwidth), "flops": round(before.flops)}
    for model in big + small:
        model.close()
    for one in found["decode"]:
        medians = {row["batch_size"]: sorted(row["seconds"])[len(row["seconds"]) // 2] for row in one["rows"]}
        shown = "  ".join(f"{batch}: {median * 1e3:.1f}" for batch, median in medians.items())
        print(f"{one['model']}, {one['path']}: ms a step by batch size   {shown}")
    print(f"other processes used {found['other_load'] or 0:.0%} of the machine")
    if options.out:
        store(options.out, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
