"""The book's own numbers for lab 1: pocket's time to first token by prompt length, the line through it, and its TPOT.

    python tests/benchmarks/latency_budget.py --out lib/underload/labs/latency_budget.json
    python tests/benchmarks/latency_budget.py     prints, stores nothing

Rounds go over all lengths in turn, so that a machine that drifts drifts under all of them alike; medians are stored.
"""

from __future__ import annotations

import argparse
import json
from datetime import date
from pathlib import Path
from statistics import linear_regression, median

from load import other_load

from underload import metrics
from underload.decoder import generate, load_model, machine
from underload.request import SamplingParams, Timeline

LENGTHS = (16, 48, 96, 192, 288, 384)  # prompt tokens, as in the lab
PROMPT = "On Friday Zoë goes to the bakery to buy a plum cake. "


def measure(rounds: int) -> dict[str, object]:
    model = load_model("pocket")
    assert model.tokenizer is not None
    ids = model.tokenizer.encode(PROMPT * 100)

    def serve(length: int, tokens: int) -> Timeline:
        wishes = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
        return generate(model, ids[:length], wishes)[0].timeline

    serve(48, 8)  # warms up
    record: dict[str, float] = {}
    first: dict[int, list[float]] = {length: [] for length in LENGTHS}
    gaps = []
    with other_load(record):
        for _ in range(rounds):
            for length in LENGTHS:
                first[length].append(metrics.ttft(serve(length, 1)) or 0.0)
            gaps.append(metrics.tpot(serve(16, 96)) or 0.0)
    seconds = {length: median(times) for length, times in first.items()}
    line = linear_regression(list(seconds), list(seconds.values()))
    return {
        "what": "pocket alone: time to first token by prompt length, the line f + g p through it, and TPOT",
        "command": "python tests/benchmarks/latency_budget.py --out lib/underload/labs/latency_budget.json",
        "date": date.today().isoformat(),
        "machine": machine(),
        **record,
        "rounds": rounds,
        "path": model.path,
        "seconds": {f"TTFT at {length} tokens": round(value, 9) for length, value in seconds.items()}
        | {
            "floor": round(line.intercept, 9),
            "per prompt token": round(line.slope, 12),
            "TPOT": round(median(gaps), 9),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to store the result (JSON)")
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    text = json.dumps(measure(options.rounds), indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
