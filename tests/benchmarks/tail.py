"""Mean, median and p99 of a continuous batch as its load grows: the recording behind "The tail is what users feel".

    python tests/benchmarks/tail.py --out chapters/data/tail.json                     about four minutes
    python tests/benchmarks/tail.py --out chapters/data/tail.json --only 0.7          one load of it again
    python tests/benchmarks/tail.py --small                                           seconds; stores nothing

Pocket behind the library's own engine, one thread, four rows, by the clock of that thread's own time
(`request.ProcessorClock`): what others take of the machine is left out, and nobody waits for an arrival. Requests
arrive as a Poisson process; their rate is a share of what a full batch carries, as found by a pilot just before the
run, since a machine's speed drifts. Each run keeps

    mean, p50, p99    of E2E, with intervals; a p99 only where the run is worth 368 independent requests
    line              o and t of o + t x tokens, through its own steps
    simulated         the same three figures of the same requests, on the virtual clock, with step times fitted to its
                      own steps
    slow, simulated_slow    what the slowest hundredth waited for, beside all (`metrics.slowest`)

and one of them its latencies, request by request, and p50 and p99 of each part by itself. Figures leave out the first
twentieth.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import warnings
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from load import other_load
from step_time import store

from underload.cache import BlockPool
from underload.decoder import DecoderExecutor, Model, load_model, machine
from underload.engine import Engine, serve
from underload.metrics import (
    StepShares,
    attribute,
    batch_means,
    e2e,
    effective_samples,
    mean,
    percentile,
    percentile_interval,
    slowest,
)
from underload.request import ProcessorClock, SamplingParams, StepRecord
from underload.scheduling import Scheduler
from underload.shapes import fit_step_time
from underload.simulation import ServingRun, simulate_serving
from underload.simulation.calibrate import fit, periods
from underload.workload import GeometricTokens, Lengths, Planned, Poisson, PromptIds, Workload

PROMPT, ANSWER = 16, 12  # tokens; answers geometric, the mean
ROWS = 4
BLOCKS = 400  # of 16 tokens: nobody is ever put back
REQUESTS = {0.2: 3500, 0.4: 4500, 0.55: 6000, 0.7: 12_000, 0.8: 20_000, 0.88: 20_000}
KEPT = 0.7  # the load whose latencies are kept
WARMUP = 0.05
PILOT = 1500
GREEDY = SamplingParams(temperature=0)  # drawing at random costs time by the row, as argmax does not


def plan_of(rate: float, requests: int, seed: int) -> list[Planned]:
    lengths = Lengths(PROMPT, GeometricTokens(ANSWER))
    return Workload(Poisson(rate), lengths, sampling=GREEDY).plan(seed, requests=requests)


def drive(model: Model, plan: list[Planned]) -> ServingRun:
    """Serve a plan on the decoder, by the library's own engine."""
    scheduler = Scheduler(BlockPool(BLOCKS, 16), max_num_seqs=ROWS)
    engine = Engine(scheduler, DecoderExecutor(model, BLOCKS, 16), ProcessorClock())
    gc.collect()
    gc.disable()  # with all the records of a run it would stop the engine for longer than most requests take
    try:
        serve(engine, plan, PromptIds(range(5, model.shape.vocab_size), 0))
    finally:
        gc.enable()
    return ServingRun.of(engine)


def carried(model: Model, requests: int) -> float:
    """Requests/s that a full batch carries: tokens/s while somebody waits, over the mean answer."""
    run = drive(model, plan_of(1e6, requests, seed=99))
    steps = [step for step in periods(run.steps) if step.queue_length]
    return sum(step.logit_rows for step in steps) / sum(step.duration for step in steps) / ANSWER


def whole_steps(steps: list[StepRecord]) -> list[StepRecord]:
    """Each up to the start of the next, where the next decodes: then somebody was inside, and the engine not idle."""
    return [one for one, (_, then) in zip(periods(steps), pairwise(steps), strict=True) if then.decode_tokens]


def rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(float(seconds), 7)


def three(run: ServingRun, skip: int) -> dict[str, float | None]:
    """Mean, median and p99 of E2E in s."""
    times = [e2e(line) for line in run.timelines[skip:]]
    return {
        "mean": rounded(mean(times)),
        "p50": rounded(percentile(times, 50)),
        "p99": rounded(percentile(times, 99)),
    }


def figures(run: ServingRun, skip: int) -> dict[str, Any]:
    """The same with intervals: [value, low, high]; no p99 where the run is not worth one."""
    times = np.array([e2e(line) for line in run.timelines[skip:]], dtype=float)
    means = batch_means(times, batches=10)
    found: dict[str, Any] = {"mean": [rounded(x) for x in (means.mean, means.low, means.high)]}
    for q in (50, 99):
        worth = effective_samples(times, q)
        interval = percentile_interval(times, q, effective=worth)
        found[f"p{q}"] = interval and [rounded(x) for x in (percentile(times, q), interval.low, interval.high)]
        found[f"p{q}_worth"] = round(worth)
    return found


def slow(run: ServingRun, skip: int) -> dict[str, Any]:
    """What the slowest hundredth waited for, and all, by part; means in s."""
    found = slowest(run.timelines[skip:], run.steps, share=0.01)
    return {
        "requests": len(found.slow),
        "threshold": rounded(found.threshold),
        "slow": {part: rounded(seconds) for part, seconds in found.slow_parts.items()},
        "all": {part: rounded(seconds) for part, seconds in found.all_parts.items()},
    }


def percentiles_of_parts(run: ServingRun, skip: int) -> dict[str, list[float | None]]:
    """p50 and p99 of each part by itself, in s."""
    shares = StepShares(run.steps)
    each = [attribute(line, shares) for line in run.timelines[skip:]]
    return {part: [rounded(percentile([one[part] for one in each], q)) for q in (50, 99)] for part in each[0]}


def measure(model: Model, load: float, requests: int, pilot: int) -> dict[str, Any]:
    rate = load * carried(model, pilot)
    plan = plan_of(rate, requests, seed=1 + list(REQUESTS).index(load))
    record: dict[str, Any] = {}
    with other_load(record):
        run = drive(model, plan)
    skip = round(WARMUP * requests)
    whole = whole_steps(run.steps)
    line = fit_step_time([step.num_tokens for step in whole], [step.duration for step in whole])
    with warnings.catch_warnings():  # of steps a little larger than any that was seen
        warnings.simplefilter("ignore", UserWarning)
        again = simulate_serving(plan, fit(whole[:20_000]), max_num_seqs=ROWS)
    row = {
        "load": load,
        "rate": round(rate, 3),
        "requests": requests - skip,
        "line": [float(f"{value:.5g}") for value in (line.o, line.t)],
        **figures(run, skip),
        "simulated": three(again, skip),
        "slow": slow(run, skip),
        "simulated_slow": slow(again, skip),
        **record,
    }
    if load == KEPT:
        lines = run.timelines[skip:]
        row["latencies_us"] = [round(1e6 * (e2e(each) or 0.0)) for each in lines]
        row["parts"] = percentiles_of_parts(run, skip)
    return row


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="store the measurement as JSON here; other loads in it are kept")
    parser.add_argument("--only", nargs="+", type=float, choices=list(REQUESTS), help="these loads only")
    parser.add_argument("--small", action="store_true", help="a small run that shows that everything works")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)  # the clock adds up all threads
    model = load_model("pocket", threads=1)
    found: dict[str, Any] = {
        "what": "E2E in s of a continuous batch of pocket by load: mean, median, p99, and what the slow waited for",
        "command": "python tests/benchmarks/tail.py --out chapters/data/tail.json",
        "rows": [],
    }
    known: dict[float, Any] = {}
    if options.out and options.out.exists() and options.only:
        known = {row["load"]: row for row in json.loads(options.out.read_text(encoding="utf-8"))["rows"]}
    found |= {
        "date": date.today().isoformat(),
        "machine": machine(),
        "model": model.shape.name,
        "path": model.path,
        "threads": 1,
        "clock": "processor",
        "batch_rows": ROWS,
        "prompt_tokens": PROMPT,
        "answer_tokens": ANSWER,
        "kept": KEPT,
    }
    carried(model, 200)  # warm
    for load in options.only or ((0.4, KEPT) if options.small else REQUESTS):
        row = known[load] = measure(model, load, *((400, 200) if options.small else (REQUESTS[load], PILOT)))
        found["rows"] = [known[each] for each in REQUESTS if each in known]
        shown = ", ".join(
            f"{name} {1e3 * row[name][0]:.1f} ({1e3 * row['simulated'][name]:.1f})" if row[name] else f"{name} –"
            for name in ("mean", "p50", "p99")
        )
        print(f"{load}: {row['rate']:.0f}/s, {shown} ms, other work {row['other_load']}", flush=True)
        if options.out:
            store(options.out, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
