"""Tokens per second of this decoder beside others, on the same weights and the same machine, taking turns.

    python tests/benchmarks/decode.py --out tests/benchmarks/results/decode.json   ten minutes, on a quiet machine
    python tests/benchmarks/decode.py --quick                                 under a minute; prints, stores nothing

Two models with random weights: S, 15 million parameters, and M, 100 million (`bench-s`, `bench-m`). Every engine gets
the same static batch of prompts of 64 random tokens and adds 64 greedily. In each round every engine does every batch
size once before the next round begins, so that a machine that drifts drifts under all of them. What is not installed
is skipped, by name. See README.md in this folder for how to read the result.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from peers import ENGINES, missing, write_checkpoint

MODELS = {"S": "bench-s", "M": "bench-m"}
BATCHES = (1, 2, 4, 8, 16, 32)
PROMPT, NEW = 64, 64
QUIET = 0.06  # runs during which others used more of the machine than this are left out, as long as some remain
OURS = "underload"
FLOAT32_PEERS = ("transformers", "ctranslate2", "llama.cpp")


class Process:
    """An engine in a process of its own, ready once made.

    Raises:
        RuntimeError: the engine did not start, with the end of what it printed.
    """

    def __init__(self, name: str, folder: Path, threads: int, script: str = "peers.py") -> None:
        self.name = name
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed with the process
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(script)), name, str(folder), str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
        )  # fmt: skip
        self.about = self._answer()

    def ask(self, prompts: list[list[int]], new: int | list[int], **more: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(json.dumps({"prompts": prompts, "new": new, **more}), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._log.seek(0)
            raise RuntimeError(f"{self.name} ended with status {self._process.returncode}:\n{self._log.read()[-2000:]}")
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def compare(
    label: str,
    engines: list[str],
    batches: list[int],
    rounds: int,
    threads: int,
    prompt: int,
    new: int,
    ceilings: list[dict[str, float]],
) -> list[dict[str, Any]]:
    """One row for each engine and batch size, with every single measurement in it; ceilings are measured in between."""
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(MODELS[label], Path(folder))
        vocabulary = json.loads((Path(folder) / "config.json").read_text())["vocab_size"]
        processes = [Process(name, Path(folder), threads) for name in engines]
        try:
            rows = {
                (process.name, batch): {
                    "model": label, "engine": process.name, "batch_size": batch, **process.about,
                    "first_seconds": [], "all_seconds": [], "other_load": [], "same_tokens": None,
                }
                for process in processes
                for batch in batches
            }  # fmt: skip
            for process in processes:  # compile, allocate, fault pages in
                process.ask([[1] * prompt] * max(batches), 2)
            for number in range(rounds):
                for batch in batches:
                    ceilings.append(measured_ceilings(threads))
                    ids = np.random.default_rng(batch).integers(3, vocabulary, (batch, prompt)).tolist()
                    expected = None
                    for process in processes[number % len(processes) :] + processes[: number % len(processes)]:
                        row = rows[process.name, batch]
                        first, everything = process.ask(ids, 1), process.ask(ids, new)
                        row["first_seconds"].append(round(first["seconds"], 6))
                        row["all_seconds"].append(round(everything["seconds"], 6))
                        row["other_load"].append(everything["other_load"])
                        row["_tokens"] = everything["tokens"]
                    expected = rows[processes[0].name, batch]["_tokens"]
                    for process in processes:
                        tokens = rows[process.name, batch].pop("_tokens")
                        assert all(len(ids) == new for ids in tokens), (
                            f"{process.name} gave another number of tokens than asked for"
                        )
                        rows[process.name, batch]["same_tokens"] = sum(
                            a == b for a, b in zip(tokens, expected, strict=True)
                        )
                print(f"{label}: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            return list(rows.values())
        finally:
            for process in processes:
                process.close()


def summarise(row: dict[str, Any], ceilings: dict[str, float], prompt: int, new: int) -> None:
    """Add the rates of a row, from the median of its quiet runs, and what part of the roofline the decoding is."""
    from underload.shapes import shape, step_cost

    sizes, batch = shape(MODELS[row["model"]]), row["batch_size"]
    quiet = [i for i, load in enumerate(row["other_load"]) if load is None or load <= QUIET]
    row["quiet_runs"] = len(quiet)
    kept = quiet or range(len(row["other_load"]))
    first = median(row["first_seconds"][i] for i in kept)
    # On a busy machine the one token can take longer than all 64 in another moment: such a pair says nothing.
    decode = [max(row["all_seconds"][i] - row["first_seconds"][i], 0.0) or float("inf") for i in kept]
    tokens = batch * (new - 1)
    row["decode_tokens_per_second"] = round(tokens / median(decode), 1)
    row["decode_range"] = [round(tokens / max(decode), 1), round(tokens / min(decode), 1)]
    row["prefill_tokens_per_second"] = round(batch * prompt / first, 1)
    width = {"float32": 4, "float16": 2}
    cost = step_cost(
        sizes,
        [1] * batch,
        [prompt + new // 2] * batch,
        logit_rows=batch,
        weight_bytes=width[row["weights"]],
        kv_bytes=width[row["kv"]],
    )
    at_best = max(cost.bytes / ceilings["read_bandwidth"], cost.flops / ceilings["flops"])
    row["of_roofline"] = round((new - 1) * at_best / median(decode), 3)


def table(rows: list[dict[str, Any]], quantity: str) -> str:
    """Engines across, batch sizes down; then ours over the best float32 peer, and decoding's part of the roofline."""
    engines = list(dict.fromkeys(row["engine"] for row in rows))
    lines = [
        "| model | B | " + " | ".join(engines) + " | underload / best float32 peer | of roofline |",
        "|" + "---|" * (len(engines) + 4),
    ]
    for label in dict.fromkeys(row["model"] for row in rows):
        for batch in dict.fromkeys(row["batch_size"] for row in rows):
            here = {row["engine"]: row for row in rows if (row["model"], row["batch_size"]) == (label, batch)}
            if not here:
                continue
            peers = [here[name][quantity] for name in FLOAT32_PEERS if name in here]
            ratio = f"{here[OURS][quantity] / max(peers):.2f}" if peers and OURS in here else "-"
            decoding = quantity.startswith("decode") and OURS in here
            roof = f"{here[OURS]['of_roofline']:.2f}" if decoding else "-"
            lines.append(
                f"| {label} | {batch} | "
                + " | ".join(f"{here[name][quantity]:.0f}" for name in engines)
                + f" | {ratio} | {roof} |"
            )
    return "\n".join(lines)


def measured_ceilings(threads: int) -> dict[str, float]:
    """The best of what torch and the fast path's tile reach; bytes/s and FLOP/s."""
    import torch

    from underload.decoder import ceilings
    from underload.decoder.fast import ceiling

    torch.set_num_threads(threads)
    by_torch, by_tile = ceilings("cpu"), ceiling.measure(threads, megabytes=256, runs=3)
    return {"read_bandwidth": max(by_torch.read_bandwidth, by_tile[0]), "flops": max(by_torch.flops, by_tile[1])}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="store the result as JSON here")
    parser.add_argument("--quick", action="store_true", help="a small run that shows that everything works")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=list(ENGINES))
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--note", default="", help="a remark on the circumstances, stored with the result")
    options = parser.parse_args(argv)
    prompt, new = PROMPT, NEW
    if options.quick:
        options.models, options.batches, options.rounds, prompt, new = ["S"], [1, 4], 1, 16, 8

    engines = []
    for name in options.engines:
        if module := missing(name):
            print(f"{name}: skipped, {module} is not installed (pip install underload[peers])", file=sys.stderr)
        else:
            engines.append(name)
    rows: list[dict[str, Any]] = []
    every: list[dict[str, float]] = []
    for label in options.models:
        rows += compare(label, engines, options.batches, options.rounds, options.threads, prompt, new, every)
    ceilings = {key: max(one[key] for one in every) for key in every[0]}
    for row in rows:
        summarise(row, ceilings, prompt, new)

    print(
        f"ceilings: {ceilings['read_bandwidth'] / 1e9:.1f} GB/s, {ceilings['flops'] / 1e9:.0f} GFLOP/s\n\n"
        "Decode, tokens/s\n"
    )
    print(table(rows, "decode_tokens_per_second"))
    print("\nPrefill, prompt tokens/s (with the first token)\n")
    print(table(rows, "prefill_tokens_per_second"))
    for row in rows:
        if row["same_tokens"] < row["batch_size"]:
            print(
                f"{row['model']} B={row['batch_size']} {row['engine']}: "
                f"{row['same_tokens']} of {row['batch_size']} rows equal {engines[0]}'s"
            )
    if options.out:
        from underload.decoder import machine

        result = {
            "benchmark": "decode", "date": date.today().isoformat(),
            "machine": machine() | {"threads": options.threads}, "note": options.note,
            "prompt_tokens": prompt, "new_tokens": new,
            "ceilings": ceilings, "ceilings_each": every, "rows": rows,
        }  # fmt: skip
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
