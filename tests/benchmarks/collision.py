"""Fifty users at once, in groups of every size: the recorded run behind the landing page's figure.

    python tests/benchmarks/collision.py --out chapters/data/collision.json      some minutes, on a quiet machine
    python tests/benchmarks/collision.py --draw chapters/data/collision.json     the README's picture of it
    python tests/benchmarks/collision.py --quick                                 seconds; prints, stores nothing

For each batch size B, B users with a prompt each are served together by the naive loop (`underload.decoder.generate`):
prompts read one after another, then all answers written a token at a time. Every decode step is stored. Sizes that only
the last, smaller group of a queue of fifty needs are recorded too, so that the figure never interpolates. The rounds go
over all sizes in turn, so that a machine that drifts drifts under all of them alike.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from datetime import date
from pathlib import Path
from typing import Any

import torch
from load import other_load
from step_time import store

from underload.decoder import Model, generate, load_model, machine
from underload.figures.landing import cover
from underload.request import SamplingParams

USERS = 50
BATCHES = (1, 2, 4, 5, 8, 10, 16, 25, 32, 50)
PROMPT, OUTPUT = 32, 100


def sizes(batches: tuple[int, ...], users: int) -> list[int]:
    """Every group size that serving `users` in groups of these sizes needs."""
    return sorted({*batches, *(users % b for b in batches if users % b)})


def serve(model: Model, size: int, prompt: int, output: int) -> tuple[float, list[float]]:
    """Seconds of reading all prompts, and ms of each decode step, of one group."""
    generator = torch.Generator().manual_seed(size)
    prompts = torch.randint(3, model.shape.vocab_size, (size, prompt), generator=generator).tolist()
    params = SamplingParams(max_tokens=output, ignore_eos=True, temperature=0)
    run = generate(model, prompts, params, max_context=prompt + output)
    reading = sum(step.duration for step in run.steps if step.prefill_tokens)
    return round(reading, 5), [round(step.duration * 1e3, 3) for step in run.steps if not step.prefill_tokens]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="store the measurement as JSON here")
    parser.add_argument("--quick", action="store_true", help="a small run that shows that everything works")
    parser.add_argument("--model", default="shape:smollm2-135m")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--draw", type=Path, help="write chapters/_static/collision.svg from this stored measurement")
    options = parser.parse_args(argv)
    if options.draw:
        picture = Path(__file__).parents[2] / "chapters" / "_static" / "collision.svg"
        picture.write_text(cover(json.loads(options.draw.read_text(encoding="utf-8"))), encoding="utf-8")
        return 0
    torch.set_num_threads(options.threads)
    users, batches, prompt, output, rounds = USERS, BATCHES, PROMPT, OUTPUT, options.rounds
    if options.quick:
        options.model, users, batches, prompt, output, rounds = "shape:bench-s", 5, (1, 2, 5), 8, 6, 1
    model = load_model(options.model)
    serve(model, 2, prompt, 4)  # compiled and warm before anything counts
    rows: list[dict[str, Any]] = [
        {"batch_size": n, "prefill_seconds": [], "steps_ms": []} for n in sizes(batches, users)
    ]
    found: dict[str, Any] = {
        "what": f"{users} users who arrive together, served in groups: seconds of reading all prompts of a group, "
        f"ms of each decode step",
        "command": "python tests/benchmarks/collision.py --out chapters/data/collision.json",
        "date": date.today().isoformat(),
        "machine": machine(),
        "model": model.shape.name,
        "path": model.path,
        "dtype": str(model.dtype).removeprefix("torch."),
        "users": users,
        "prompt_tokens": prompt,
        "output_tokens": output,
        "batch_sizes": list(batches),
    }
    with other_load(found):
        for _ in range(rounds):
            for row in rows:
                reading, steps = serve(model, row["batch_size"], prompt, output)
                row["prefill_seconds"].append(reading)
                row["steps_ms"].append(steps)
    found["rows"] = rows
    model.close()
    for row in rows:
        every = sorted(step for steps in row["steps_ms"] for step in steps)
        print(
            f"{row['batch_size']:3d} users: read {min(row['prefill_seconds']):6.2f} s, then "
            f"{every[len(every) // 2]:7.1f} ms a step"
        )
    print(f"other processes used {found['other_load'] or 0:.0%} of the machine")
    if options.out:
        store(options.out, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
