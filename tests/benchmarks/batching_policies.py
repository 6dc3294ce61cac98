"""Rules for forming batches, simulated and on the real decoder: the recordings behind "The batching trade-off".

    python tests/benchmarks/batching_policies.py --out chapters/data/batching_policies.json            some ten minutes
    python tests/benchmarks/batching_policies.py --out chapters/data/batching_policies.json --part decoder
    python tests/benchmarks/batching_policies.py --out chapters/data/batching_policies.json --only greedy-8-0.6
    python tests/benchmarks/batching_policies.py --quick                           under a minute; stores nothing

Two parts:

    timer     size or timeout, on the virtual clock: the library's engine, a step of o + bt, requests of a single token,
              so that a batch is one step. Every rate, size and timeout that is stable; all settings of a rate meet the
              same arrivals. The same on every machine.
    decoder   pocket under full batches, size or timeout, and greedy batches, on a quiet machine; all prompts have one
              length, all answers too. `RULE-SIZE-LOAD`: load is the arrival rate over what batches of 8 carry, as
              found by a pilot just before the run, since a machine's speed drifts. Each run keeps the line o + bt
              through its own batches, and what the simulator makes of the same arrivals when batches follow that line.
              A run that was disturbed, by the width of its interval and by nothing else, is made again.

Figures of a run leave out its first twentieth.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from load import other_load
from step_time import store

from underload.cache import BlockPool
from underload.decoder import DecoderExecutor, Model, load_model, machine
from underload.engine import Engine, serve
from underload.metrics import batch_means, effective_samples, percentile_interval
from underload.queueing import linear_batch
from underload.request import Timeline
from underload.scheduling import Batching, Greedy, Scheduler, SizeOrTimeout, Static
from underload.shapes import StepLine, fit_step_time
from underload.simulation import LinearStepTime, ServingRun, simulate_serving
from underload.workload import FixedTokens, Lengths, Planned, Poisson, PromptIds, Workload

OVERHEAD, PER_ITEM = 0.020, 0.001  # s, of the simulated server
RATES = (25, 50, 100, 200, 400, 600)
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64)
TIMEOUTS = (0.005, 0.010, 0.020, 0.050, 0.100)
WARMUP = 0.05

PROMPT, ANSWER = 16, 16  # tokens
CAP = 8  # of the runs over loads
LOADS = (0.2, 0.4, 0.6, 0.8)  # of what full batches of CAP carry
SHARE = 0.6  # the load, of CAP, of the runs over sizes
OTHER_SIZES = (4, 6, 12, 16, 24)
TIMER = 1.0  # of the decoder's runs, in services of one request
DISTURBED = 0.3  # an interval wider than this part of the mean: something else had the machine for a while
ATTEMPTS = 4  # at a run that was; the narrowest is kept
RUNS = [
    *(f"{rule}-{CAP}-{load}" for load in LOADS for rule in ("full", "timer", "greedy")),
    *(f"{rule}-{size}-{SHARE}" for size in OTHER_SIZES for rule in ("full", "greedy")),
]
REQUESTS = {0.2: 1500, 0.4: 2000, 0.6: 3000, 0.8: 4000}


def rule_of(name: str, size: int, timeout: float) -> Batching:
    return {"full": Static(size), "timer": SizeOrTimeout(size, timeout), "greedy": Greedy(size)}[name]


# ---------------------------------------------------------------------------------------------------- simulated


def simulated(rate: float, batching: Batching, requests: int) -> ServingRun:
    """One rule at the simulated server; all rules of a rate meet the same arrivals."""
    plan = Workload(Poisson(rate), Lengths(FixedTokens(1), FixedTokens(1))).plan(RATES.index(rate), requests=requests)
    return simulate_serving(plan, LinearStepTime(OVERHEAD, PER_ITEM), batching=batching)


def inside(run: ServingRun) -> np.ndarray:
    """s from arrival to the end of the batch, in order of arrival, without the first of the run."""
    lines = run.timelines[round(WARMUP * len(run.requests)) :]
    return np.array([line.finished - line.arrival for line in lines])


def timers(rate: float, size: int, requests: int) -> list[dict[str, Any]]:
    """Size or timeout at the simulated server, for every timeout; more requests where the load is high.

    What chance did to the greedy rule on the same arrivals, whose mean is known exactly, is taken off (a control
    variate): the interval is that of the difference between the two rules.
    """
    exact = linear_batch(overhead=OVERHEAD, per_item=PER_ITEM).measures(rate, batch_size=size)
    many = requests * (8 if exact.load > 0.8 else 1)
    greedy = inside(simulated(rate, Greedy(size), many))
    rows = []
    for timeout in TIMEOUTS:
        run = simulated(rate, SizeOrTimeout(size, timeout), many)
        mean = batch_means(inside(run) - greedy, batches=10)
        sizes = [step.batch_size for step in run.steps]
        own = OVERHEAD + PER_ITEM * float(np.mean(np.square(sizes)) / np.mean(sizes))  # as a request sees it
        row = {"rate": rate, "batch_size": size, "timeout": timeout, "requests": len(greedy)}
        values = {"mean": mean.mean, "low": mean.low, "high": mean.high}
        row |= {name: float(f"{exact.mean_sojourn + value:.5g}") for name, value in values.items()}
        row |= {"wait": float(f"{row['mean'] - own:.5g}"), "batch": float(f"{np.mean(sizes):.4g}")}
        rows.append(row)
    return rows


def stable(rate: float, size: int) -> bool:
    return linear_batch(overhead=OVERHEAD, per_item=PER_ITEM).load(rate, size) < 1


# -------------------------------------------------------------------------------------------------- the decoder


def batches(lines: list[Timeline]) -> tuple[list[int], list[float]]:
    """Size and duration (s) of every batch: its members start and end together."""
    members: dict[float, list[Timeline]] = {}
    for line in lines:
        members.setdefault(line.scheduled, []).append(line)
    return [len(each) for each in members.values()], [each[0].finished - begun for begun, each in members.items()]


def drive(model: Model, batching: Batching, plan: list[Planned]) -> ServingRun:
    """Serve a plan on the decoder, by the library's own engine on the wall's clock."""
    blocks = 64 * -(-(PROMPT + ANSWER) // 16)
    scheduler = Scheduler(BlockPool(blocks, 16, prefix_caching=False), batching=batching)
    engine = Engine(scheduler, DecoderExecutor(model, blocks, 16))
    serve(engine, plan, PromptIds(range(5, model.shape.vocab_size), 0))
    return ServingRun.of(engine)


def lengths() -> Lengths:
    return Lengths(FixedTokens(PROMPT), FixedTokens(ANSWER))


def pilot(model: Model, size: int, requests: int) -> float:
    """Mean s of a full batch of `size`, one after another."""
    plan = Workload(Poisson(1e6), lengths()).plan(99, requests=size * max(requests // size, 1))
    return float(np.mean(batches(drive(model, Static(size), plan).timelines)[1]))


def measure(model: Model, name: str, requests: int, trials: int) -> dict[str, Any]:
    """One run, and the same arrivals simulated."""
    rule, cap, share = name.split("-")
    size = int(cap)
    rate = float(share) * CAP / pilot(model, CAP, trials)
    timeout = TIMER * pilot(model, 1, trials // 8)
    batching = rule_of(rule, size, timeout)
    plan = Workload(Poisson(rate), lengths()).plan(1 + RUNS.index(name), requests=requests)
    record: dict[str, Any] = {}
    with other_load(record):
        run = drive(model, batching, plan)
    skip = round(WARMUP * requests)
    lines = run.timelines[skip:]
    latencies = inside(run)
    sizes, durations = batches(run.timelines)
    # Full batches have one size, and no line: their mean is all that there is to know.
    line = fit_step_time(sizes, durations) if len(set(sizes)) > 2 else StepLine(float(np.mean(durations)), 0.0)
    whole = [replace(each, prompt_tokens=1, output_tokens=1, segments=()) for each in plan]  # a batch is one step
    modelled = simulate_serving(whole, LinearStepTime(line.o, line.t), batching=batching)
    mean, worth = batch_means(latencies, batches=10), effective_samples(latencies, 99)
    p99 = percentile_interval(latencies, 99, effective=worth)
    return {
        "name": name,
        "rule": rule,
        "batch_size": size,
        "timeout": round(timeout, 6) if rule == "timer" else None,
        "load": float(share),
        "rate": round(rate, 3),
        "requests": len(lines),
        "service": [round(float(np.mean(durations)), 7), round(float(np.std(durations)), 7)],
        "line": [round(line.o, 7), round(line.t, 7)],
        "batch": round(float(np.mean(sizes)), 3),
        "wait": round(float(np.mean([each.scheduled - each.arrival for each in lines])), 7),
        "mean": [round(value, 7) for value in (mean.mean, mean.low, mean.high)],
        "p99": [round(float(v), 7) for v in (np.percentile(latencies, 99), *((p99.low, p99.high) if p99 else ()))],
        "simulated": round(float(inside(modelled).mean()), 7),
        **record,
    }


def width(row: dict[str, Any]) -> float:
    """Of the interval on the mean, as part of the mean."""
    mean, low, high = row["mean"]
    return float((high - low) / mean)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="store the measurement as JSON here; other rows in it are kept")
    parser.add_argument("--part", choices=("timer", "decoder"), help="this part only")
    parser.add_argument("--only", nargs="+", choices=RUNS, help="these runs of the decoder only")
    parser.add_argument("--quick", action="store_true", help="a small run that shows that everything works")
    options = parser.parse_args(argv)
    found: dict[str, Any] = {
        "what": "mean latency in s by batching rule: a simulated server of o + bt, and pocket",
        "command": "python tests/benchmarks/batching_policies.py --out chapters/data/batching_policies.json",
        "overhead": OVERHEAD,
        "per_item": PER_ITEM,
        "timer": [],
    }
    if options.out and options.out.exists():
        found = json.loads(options.out.read_text(encoding="utf-8"))

    if options.part != "decoder" and not options.only:
        settings = [(rate, size) for rate in RATES for size in SIZES if stable(rate, size)]
        found["timer"] = []
        for rate, size in settings[::12] if options.quick else settings:
            found["timer"] += timers(rate, size, 200 if options.quick else 3000)
        print(f"{len(found['timer'])} settings of the timer", flush=True)
        if options.out:
            store(options.out, found)

    if options.part != "timer":
        torch.set_num_threads(1)  # for the draws: two threads that wait for each other stall where there is other work
        model = load_model("pocket", threads=1)
        pilot(model, CAP, 200)  # warm
        known = {row["name"]: row for row in found.get("decoder", {}).get("rows", ())}
        found["decoder"] = {
            "date": date.today().isoformat(),
            "machine": machine(),
            "model": model.shape.name,
            "path": model.path,
            "threads": 1,
            "prompt_tokens": PROMPT,
            "answer_tokens": ANSWER,
            "cap": CAP,
            "share": SHARE,
        }
        for name in options.only or (RUNS[6:9] if options.quick else RUNS):
            load = float(name.rsplit("-", 1)[1])
            size, trials, most = (150, 80, 1) if options.quick else (REQUESTS[load], 800, ATTEMPTS)
            tried = []
            while len(tried) < most and not any(width(row) < DISTURBED for row in tried):
                tried.append(measure(model, name, size, trials))
            row = known[name] = min(tried, key=width) | {"attempts": len(tried)}
            found["decoder"]["rows"] = [known[each] for each in RUNS if each in known]
            print(
                f"{name}: {row['rate']:.0f}/s, mean {1e3 * row['mean'][0]:.1f} ms "
                f"({1e3 * row['mean'][1]:.1f} to {1e3 * row['mean'][2]:.1f}), simulated {1e3 * row['simulated']:.1f}, "
                f"line {row['line']}, other work {row['other_load']}",
                flush=True,
            )
            if options.out:
                store(options.out, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
