"""A mixed load on this engine beside others: the same requests, weights and machine, taking turns.

    python tests/benchmarks/serving.py --out tests/benchmarks/results/serving.json    some minutes, on a quiet machine
    python tests/benchmarks/serving.py --quick                               under a minute; prints, stores nothing

64 requests arrive at once, with prompts of 16 to 256 tokens and answers of 8 to 256, lognormal; 16 may run at a time.
The model is S of `decode.py`, random weights, float32. In each round every engine serves the load once, and the one
that begins changes from round to round. What is not installed is skipped, by name. README.md in this folder says what
the figures mean, and how llama.cpp's server is found.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from datetime import date
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from decode import MODELS, QUIET, Process
from peers import write_checkpoint
from servers import SERVERS, missing

OURS = "underload"
MODEL, REQUESTS, SLOTS, ROUNDS = "S", 64, 16, 5
PROMPT, NEW = (16, 256), (8, 256)  # tokens, least and most
MEAN_PROMPT, MEAN_NEW, CV = 90, 80, 0.7  # of the laws, before they are cut off
FIGURES = ("tokens_per_second", "mean_finish_seconds", "mean_ttft_seconds", "p99_ttft_seconds")


def mixed_load(requests: int, vocabulary: int, seed: int = 1) -> tuple[list[list[int]], list[int]]:
    """Prompts of random ids, and how many tokens each is to get."""
    from underload.workload import LognormalTokens

    rng = np.random.default_rng(seed)
    lengths = np.clip(LognormalTokens.of(MEAN_PROMPT, CV).draw(rng, requests), *PROMPT)
    new = np.clip(LognormalTokens.of(MEAN_NEW, CV).draw(rng, requests), *NEW)
    # Ids below 3 end a text for some engines.
    return [rng.integers(3, vocabulary, length).tolist() for length in lengths], new.tolist()


def compare(
    engines: list[str], prompts: list[list[int]], new: list[int], slots: int, rounds: int, threads: int, folder: Path
) -> list[dict[str, Any]]:
    """One row an engine, with every round in it.

    Raises:
        RuntimeError: an engine did not start, or gave another number of tokens than was asked for.
    """
    processes = [Process(name, folder, threads, "servers.py") for name in engines]
    try:
        rows: dict[str, dict[str, Any]] = {
            process.name: {
                "engine": process.name, **process.about, "tokens_per_second": [], "mean_finish_seconds": [],
                "mean_ttft_seconds": [], "p99_ttft_seconds": [], "other_load": [],
            }
            for process in processes
        }  # fmt: skip
        tokens: dict[str, list[list[int]]] = {}
        for process in processes:  # compile, allocate, fault pages in
            process.ask(prompts[: 2 * slots], new[: 2 * slots], slots=slots)
        for number in range(rounds):
            for process in processes[number % len(processes) :] + processes[: number % len(processes)]:
                answer = process.ask(prompts, new, slots=slots)
                if [len(ids) for ids in answer["tokens"]] != new:
                    raise RuntimeError(f"{process.name} gave another number of tokens than was asked for")
                row, tokens[process.name] = rows[process.name], answer["tokens"]
                total = sum(map(len, prompts)) + sum(new)
                row["tokens_per_second"].append(round(total / answer["seconds"], 1))
                row["mean_finish_seconds"].append(round(mean(answer["last"]), 4))
                row["mean_ttft_seconds"].append(round(mean(answer["first"]), 4))
                row["p99_ttft_seconds"].append(round(float(np.percentile(answer["first"], 99)), 4))
                row["other_load"].append(answer["other_load"])
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        for name, row in rows.items():
            row["same_tokens"] = sum(a == b for a, b in zip(tokens[name], tokens[engines[0]], strict=True))
        return list(rows.values())
    finally:
        for process in processes:
            process.close()


def summarise(rows: list[dict[str, Any]]) -> None:
    """Add medians over the quiet rounds, and how much faster we were than that engine in the same round: the median of
    the quiet ones, and the range of all."""
    ours = next((row for row in rows if row["engine"] == OURS), None)
    for row in rows:
        kept = _quiet([row])
        row["quiet_rounds"] = sum(load is None or load <= QUIET for load in row["other_load"])
        for figure in FIGURES:
            row[f"median_{figure}"] = round(median(row[figure][i] for i in kept), 4)
        if ours is not None:
            ratios = [a / b for a, b in zip(ours["tokens_per_second"], row["tokens_per_second"], strict=True)]
            row["underload_is_faster_by"] = round(median(ratios[i] for i in _quiet([row, ours])), 3)
            row["underload_is_faster_by_range"] = [round(min(ratios), 3), round(max(ratios), 3)]


def _quiet(rows: list[dict[str, Any]]) -> list[int]:
    """The rounds in which nothing else ran beside any of these; all of them where there is none."""
    every = range(len(rows[0]["other_load"]))
    quiet = [i for i in every if all(row["other_load"][i] is None or row["other_load"][i] <= QUIET for row in rows)]
    return quiet or list(every)


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| engine | weights | total tokens/s | mean finish, s | mean TTFT, s | p99 TTFT, s | underload is faster by |",
        "|" + "---|" * 7,
    ]
    for row in sorted(rows, key=lambda row: -row["median_tokens_per_second"]):
        faster = row.get("underload_is_faster_by")
        low, high = row.get("underload_is_faster_by_range", (0, 0))
        lines.append(
            f"| {row['engine']} | {row['weights']} | {row['median_tokens_per_second']:.0f} | "
            f"{row['median_mean_finish_seconds']:.2f} | {row['median_mean_ttft_seconds']:.2f} | "
            f"{row['median_p99_ttft_seconds']:.2f} | " + (f"{faster:.2f} ({low:.2f}-{high:.2f}) |" if faster else "- |")
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="store the result as JSON here")
    parser.add_argument("--quick", action="store_true", help="a small run that shows that everything works")
    parser.add_argument("--engines", nargs="+", choices=list(SERVERS), default=list(SERVERS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--note", default="", help="a remark on the circumstances, stored with the result")
    options = parser.parse_args(argv)
    requests = REQUESTS
    if options.quick:
        options.rounds, requests = 1, 24

    engines = []
    for name in options.engines:
        if lacking := missing(name):
            print(f"{name}: skipped, {lacking} is not installed", file=sys.stderr)
        else:
            engines.append(name)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_checkpoint(MODELS[MODEL], folder)
        vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
        prompts, new = mixed_load(requests, vocabulary)
        rows = compare(engines, prompts, new, SLOTS, options.rounds, options.threads, folder)
    summarise(rows)

    print(f"{requests} requests, {sum(map(len, prompts))} prompt and {sum(new)} new tokens, {SLOTS} at a time\n")
    print(table(rows))
    for row in rows:
        if row["same_tokens"] < requests:
            print(f"{row['engine']}: {row['same_tokens']} of {requests} answers equal {engines[0]}'s")
    if options.out:
        from underload.decoder import machine

        result = {
            "benchmark": "serving", "date": date.today().isoformat(),
            "machine": machine() | {"threads": options.threads}, "note": options.note,
            "model": MODELS[MODEL], "requests": requests, "slots": SLOTS, "prompt_tokens": sum(map(len, prompts)),
            "new_tokens": sum(new), "longest_prompt": max(map(len, prompts)), "longest_answer": max(new), "rows": rows,
        }  # fmt: skip
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
