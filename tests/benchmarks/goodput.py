"""Goodput of the real decoder against the load, for two SLOs: the measurement behind "SLOs, goodput and capacity".

    python tests/benchmarks/goodput.py --out chapters/data/goodput.json          some six minutes, a quiet machine
    python tests/benchmarks/goodput.py --quick                                   seconds; stores nothing

Pocket behind the library's own engine, one thread, sixteen slots, by the time that this process had a core: what other
programs take of the machine is left out. What it can do is found first, output tokens while somebody waits. The limits
of the SLOs follow from that, so that on another machine they bind in the same places:

    smooth   TPOT within what 99 % have at 55 % of that: it breaks because too many decode together
    prompt   TTFT within some twenty full steps: it breaks because a queue has formed

Each round runs every load once, on arrivals of its own, so that a machine that drifts drifts under all loads alike.
Step times are fitted to steps of all runs, and stored beside the measurement. So is, for each run, how much longer its
steps took than fitted, moment by moment: a promise on the slowest hundredth is broken in a machine's slow moments.
"""

from __future__ import annotations

import argparse
import gc
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
from underload.metrics import Slo, percentile, tpot, ttft
from underload.request import ProcessorClock, SamplingParams, StepRecord, Timeline
from underload.scheduling import Scheduler
from underload.simulation import FittedStepTime
from underload.simulation.calibrate import fit, periods
from underload.workload import GeometricTokens, Lengths, Planned, Poisson, PromptIds, Workload

PROMPT, ANSWER = 16, 40  # tokens; answers geometric, the mean
SLOTS, BLOCKS, BLOCK_SIZE = 16, 4000, 16
SHARES = (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1.05)  # of what it can do
SMOOTH = 0.55  # the load at which the limit on TPOT is taken
REQUESTS, WARMUP, ROUNDS = 1150, 150, 4
MOMENT = 0.02  # s, of which each has a factor
VOCABULARY = range(5, 1024)
GREEDY = SamplingParams(temperature=0)


def arriving(rate: float, requests: int, seed: int) -> list[Planned]:
    return Workload(Poisson(rate), Lengths(PROMPT, GeometricTokens(ANSWER)), sampling=GREEDY).plan(
        seed, requests=requests
    )


def run(model: Model, planned: list[Planned], seed: int) -> tuple[list[Timeline], list[StepRecord]]:
    """In the order of the plan; times count from its beginning."""
    engine = Engine(
        Scheduler(BlockPool(BLOCKS, BLOCK_SIZE), max_num_seqs=SLOTS),
        DecoderExecutor(model, BLOCKS, BLOCK_SIZE),
        ProcessorClock(),
    )
    gc.collect()
    began = engine.clock.now()
    done = serve(engine, planned, PromptIds(VOCABULARY, seed=seed))
    done.sort(key=lambda request: int(request.request_id))
    return [request.timeline for request in done], [replace(step, start=step.start - began) for step in engine.steps]


def followed(steps: list[StepRecord]) -> list[StepRecord]:
    """Steps that another followed at once, each until that one began: it went on with rows of theirs."""
    return [period for period, then in zip(periods(steps), steps[1:]) if then.decode_tokens]


def moments(steps: list[StepRecord], fitted: FittedStepTime) -> list[float]:
    """For each `MOMENT` of a run, what the steps begun in it took over what they take by the fit; 1 without steps."""
    taken = np.zeros(int(steps[-1].start / MOMENT) + 1)
    expected = np.zeros_like(taken)
    for step in followed(steps):
        taken[int(step.start / MOMENT)] += step.duration
        expected[int(step.start / MOMENT)] += fitted(step)
    return np.round(np.where(expected > 0, taken / np.maximum(expected, 1e-12), 1.0), 2).tolist()


def saturated(model: Model, requests: int, seed: int) -> tuple[float, list[StepRecord]]:
    """Requests/s while somebody waits, and the steps."""
    planned = [
        Planned(0.0, PROMPT, one.output_tokens, one.index, sampling=GREEDY) for one in arriving(1, requests, seed)
    ]
    _, steps = run(model, planned, seed)
    busy = [step for step in periods(steps) if step.queue_length]
    return sum(step.logit_rows for step in busy) / sum(step.duration for step in busy) / ANSWER, busy


def limits(model: Model, quick: bool) -> tuple[dict[str, dict[str, float]], float, float]:
    """The SLOs in s, to two digits, the requests/s that the machine can do, and s of a step with all slots taken."""
    rate, steps = saturated(model, 200 if quick else 1600, seed=99)
    full = float(np.median([step.duration for step in steps if step.batch_size == SLOTS]))
    lines, _ = run(model, arriving(SMOOTH * rate, 150 if quick else 1600, seed=98), seed=98)
    gaps = [gap for line in lines if (gap := tpot(line)) is not None]

    def rounded(seconds: float) -> float:
        return float(f"{seconds:.2g}")

    return {"smooth": {"tpot": rounded(percentile(gaps, 99))}, "prompt": {"ttft": rounded(20 * full)}}, rate, full


def measured(lines: list[Timeline], slos: dict[str, Slo]) -> dict[str, Any]:
    first = [ttft(line) for line in lines]
    gaps = [gap for line in lines if (gap := tpot(line)) is not None]
    return {
        "met": {name: round(sum(slo.met(line) for line in lines) / len(lines), 5) for name, slo in slos.items()},
        "ttft_p99": round(percentile(first, 99), 6),
        "tpot_p99": round(percentile(gaps, 99), 7),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="store the measurement as JSON here")
    parser.add_argument("--quick", action="store_true", help="a small run that shows that everything works")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)  # processor time is that of one thread
    model = load_model("pocket", threads=1)
    run(model, arriving(1e4, 60, seed=97), seed=97)  # warms up
    slos, rate, full = limits(model, options.quick)
    terms = {name: Slo(**each) for name, each in slos.items()}
    requests, warmup, rounds = (150, 30, 1) if options.quick else (REQUESTS, WARMUP, ROUNDS)
    rows: list[dict[str, Any]] = [{"share": share, "rate": round(share * rate, 2), "runs": []} for share in SHARES]
    kept: list[StepRecord] = []
    whole: list[tuple[dict[str, Any], list[StepRecord]]] = []
    rng = np.random.default_rng(0)
    for seed in range(rounds):
        for row in rows:
            load: dict[str, Any] = {}
            with other_load(load):
                lines, steps = run(model, arriving(row["rate"], requests, seed), seed)
            row["runs"].append({"seed": seed, **measured(lines[warmup:], terms), **load})
            whole.append((row["runs"][-1], steps))
            some = followed(steps)
            kept += [some[i] for i in sorted(rng.permutation(len(some))[:400])]
            kept.append(max(some, key=lambda step: step.context_tokens))
        print(f"round {seed + 1} of {rounds}: load, and the share of requests that met {', '.join(slos)}")
        for row in rows:
            print(row["share"], *(f"{share:.3f}" for share in row["runs"][-1]["met"].values()), flush=True)
    about = {
        "date": date.today().isoformat(),
        "machine": machine(),
        "model": model.shape.name,
        "path": model.path,
        "threads": 1,
        "clock": "processor",
    }
    fitted = fit(kept, about=about)
    for one, steps in whole:
        one["moments"] = moments(steps, fitted)
    found = {
        "what": "share of requests that met an SLO, by arrival rate (requests/s): pocket, continuous batching",
        "command": "python tests/benchmarks/goodput.py --out chapters/data/goodput.json",
        **about,
        "prompt_tokens": PROMPT,
        "answer_tokens": ANSWER,
        "slots": SLOTS,
        "requests": requests - warmup,
        "warmup": warmup,
        "saturated": round(rate, 2),
        "full_step": round(full, 7),
        "moment": MOMENT,
        "slos": slos,
        "rows": rows,
    }
    if options.out:
        store(options.out, found)
        fitted.save(options.out.with_name(f"{options.out.stem}_steps.json"))
    else:
        print(json.dumps(found["rows"])[:2000])
    return 0


if __name__ == "__main__":
    sys.exit(main())
