"""Conversations on the real decoder with pools of several sizes: the measurement behind "Sharing, and running out".

    python tests/benchmarks/sharing.py --out chapters/data/sharing.json                     about ten minutes
    python tests/benchmarks/sharing.py --out chapters/data/sharing.json --only blocks-300   one run of it again
    python tests/benchmarks/sharing.py --quick                    under a minute; stores nothing

Pocket serves conversations of equal turns behind the library's own engine; users think between turns. Two kinds of run:

    blocks-K      a pool of K blocks at one rate: which share of the prompts it finds
    rate-R-on     a pool that never forgets, R conversations/s: TTFT
    rate-R-off    the same without prefix caching

Figures of a run leave out the requests of its first seconds (`warmup`), and of its last, in which no conversation
begins.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from load import other_load
from step_time import store

from underload.cache import BlockPool
from underload.decoder import DecoderExecutor, Model, load_model, machine
from underload.engine import Engine, serve
from underload.metrics import batch_means, ttft
from underload.queueing import Exponential
from underload.scheduling import Scheduler
from underload.workload import Conversations, FixedTokens, Lengths, Planned, Poisson, PromptIds, Workload

LOAD = {"turns": 6, "system": 64, "message": 40, "answer": 24, "think": 4.0, "block_size": 16, "rate": 1.0}
BLOCKS = (100, 200, 300, 600)
MANY = 1000  # a pool that never has to forget
RATES = (1,)
SECONDS = 70.0  # in which conversations begin
WARMUP = 25.0  # s, in which there are fewer conversations than later
RUNS = [*(f"rate-{rate}-{on}" for rate in RATES for on in ("on", "off")), *(f"blocks-{blocks}" for blocks in BLOCKS)]


def plan(rate: float, seconds: float, seed: int) -> list[Planned]:
    lengths = Lengths(FixedTokens(int(LOAD["message"])), FixedTokens(int(LOAD["answer"])))
    prompts = Conversations(
        FixedTokens(int(LOAD["turns"])), think=Exponential(LOAD["think"]), system=int(LOAD["system"])
    )
    return Workload(Poisson(rate), lengths, prompts).plan(seed, requests=max(round(rate * seconds), 1))


def measure(model: Model, name: str, seconds: float, warmup: float) -> tuple[dict[str, Any], list[tuple[int, float]]]:
    """One run: what is stored of it, and (tokens, s) of each of its steps."""
    kind, value, *more = name.split("-")
    blocks, rate = (int(value), LOAD["rate"]) if kind == "blocks" else (MANY, float(value))
    size, caching = int(LOAD["block_size"]), more != ["off"]
    seed = 1 + (RUNS.index(name) if kind == "blocks" else RATES.index(int(value)))  # on and off: the same requests
    pool = BlockPool(blocks, size, prefix_caching=caching)
    engine = Engine(Scheduler(pool), DecoderExecutor(model, blocks, size))
    record: dict[str, Any] = {}
    with other_load(record):
        done = serve(engine, plan(rate, seconds, seed), PromptIds(range(5, model.shape.vocab_size), seed))
    lines = [request.timeline for request in done if warmup <= request.timeline.arrival < seconds]
    first = batch_means([ttft(line) for line in lines], batches=10)
    used = sum(step.blocks_used * step.duration for step in engine.steps if warmup <= step.start < seconds)
    row = {
        "name": name,
        "blocks": blocks,
        "rate": rate,
        "caching": caching,
        "seed": seed,
        "requests": len(lines),
        "hit_rate": round(sum(x.cached_tokens for x in lines) / sum(x.prompt_tokens for x in lines), 4),
        "ttft_mean": [round(v, 6) for v in (first.mean, first.low, first.high)],
        "used": round(used / (seconds - warmup), 2),
        "preemptions": sum(request.timeline.preemptions for request in done),
        **record,
    }
    return row, [(step.prefill_tokens + step.decode_tokens, step.duration) for step in engine.steps]


def line_through(steps: list[tuple[int, float]]) -> list[float]:
    """o and t of o + t x tokens, in s, by least squares; the slowest hundredth is somebody else's doing."""
    tokens, seconds = np.array(steps).T
    kept = seconds <= np.quantile(seconds, 0.99)
    t, o = np.polyfit(tokens[kept], seconds[kept], 1)
    return [round(float(o), 7), round(float(t), 8)]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="store the measurement as JSON here; other runs in it are kept")
    parser.add_argument("--only", nargs="+", choices=RUNS, help="these runs only")
    parser.add_argument("--quick", action="store_true", help="a small run that shows that everything works")
    options = parser.parse_args(argv)
    model = load_model("pocket", threads=1)
    found: dict[str, Any] = {
        "what": "pocket under conversations: share of prompt tokens found in the cache, and TTFT in s",
        "command": "python tests/benchmarks/sharing.py --out chapters/data/sharing.json",
        "date": date.today().isoformat(),
        "machine": machine(),
        "model": model.shape.name,
        "decoder_threads": 1,
        "load": LOAD,
        "seconds": SECONDS,
        "warmup": WARMUP,
        "step_time": None,
        "rows": [],
    }
    if options.out and options.out.exists() and options.only:
        found = json.loads(options.out.read_text(encoding="utf-8"))
    seconds, warmup = (12.0, 0.0) if options.quick else (SECONDS, WARMUP)
    measure(model, "rate-1-on", 16.0, 0.0)  # warm
    steps: list[tuple[int, float]] = []
    for name in options.only or (("blocks-200", "rate-1-off") if options.quick else RUNS):
        row, each = measure(model, name, seconds, warmup)
        steps += each
        found["rows"] = sorted(
            [*(r for r in found["rows"] if r["name"] != name), row], key=lambda r: RUNS.index(r["name"])
        )
        print(
            f"{name}: found {row['hit_rate']:.1%}, TTFT {1e3 * row['ttft_mean'][0]:.1f} ms, "
            f"other work {row['other_load']}",
            flush=True,
        )
        if options.out:
            if not options.only:
                found["step_time"] = line_through(steps)
            store(options.out, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
