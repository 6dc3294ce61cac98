"""A real decoder as a single server, at several loads: the recorded measurement behind "Little's law and the queue".

    python tests/benchmarks/littles_law.py --out chapters/data/littles_law.json              some minutes, quiet machine
    python tests/benchmarks/littles_law.py --out chapters/data/littles_law.json --only 0.9   one load of it again
    python tests/benchmarks/littles_law.py --quick                                           seconds; stores nothing

Pocket behind the engine's loop, which runs one request at a time (max_num_seqs=1), first come first served. Prompts
and answers vary in length, arrivals are Poisson.
Each load is driven open loop, by a plan of its own seed, with more requests the busier the server is, since neighbours
in a busy queue tell the same story. The rate of a run is the load wanted / the mean service time of the run before it
(of a pilot, for the first); a server's speed drifts, so the load reached is another one and stored with it. Figures of
a run leave out its first tenth. A part of one run is stored request by request, to check Little's law on.
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

from underload.decoder import Model, decoder_engine, load_model, machine
from underload.engine import OnlineEngine
from underload.metrics import batch_means, effective_samples, percentile_interval
from underload.request import Request, Timeline, WallClock
from underload.simulation import simulate
from underload.workload import (
    Lengths,
    LognormalTokens,
    Planned,
    Poisson,
    UniformTokens,
    Workload,
    open_loop,
)

LOADS = (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
REQUESTS = {0.1: 500, 0.3: 1500, 0.5: 2500, 0.6: 3000, 0.7: 3600, 0.8: 4200, 0.9: 5000}
PILOT = 400  # requests of the pilot
KEPT = 250  # service times of each run that are stored
TRACE = (0.7, 240)  # of this load, so many requests are stored one by one
LENGTHS = Lengths(UniformTokens(8, 24), LognormalTokens.of(4, 0.7), limit=96, beyond="truncate")
WARMUP = 0.1  # share of a load's requests that its figures leave out
Served = dict[str, np.ndarray]


def serve(model: Model, planned: list[Planned], clock: WallClock) -> Served:
    """Drive a plan through one server; instants in s since its start."""
    rng = np.random.default_rng(0)
    ids = rng.integers(3, model.shape.vocab_size, 256).tolist()

    def answer(request: Planned, _: Timeline) -> Request:
        return online.add_request(ids[: request.prompt_tokens], request.params).wait()

    # Prompts are cut from one row of ids, and nothing of one may be found again for another.
    with OnlineEngine(decoder_engine(model, clock=clock, max_num_seqs=1, prefix_caching=False)) as online:
        log = open_loop(planned, answer, clock)
    assert not log.failures, log
    columns = ("arrival", "scheduled", "finished")
    return {name: np.array([getattr(line, name) for line in log.timelines]) - log.start for name in columns}


def pilot(model: Model, requests: int) -> float:
    """Mean service time at a moderate load, in s: alone, between rests, it would be longer."""
    served = serve(model, Workload(Poisson(90.0), LENGTHS).plan(90, requests=requests), WallClock())
    return float(np.mean(served["finished"] - served["scheduled"]))


def figures(served: Served, load: float, rate: float) -> dict[str, Any]:
    """What is stored of one load: means with intervals by batch means, percentiles with theirs."""
    skip = round(WARMUP * served["arrival"].size)
    arrival, start, finish = (served[name][skip:] for name in ("arrival", "scheduled", "finished"))
    wait, inside, service = start - arrival, finish - arrival, finish - start
    means = {name: batch_means(values, batches=10) for name, values in (("wait", wait), ("inside", inside))}
    row: dict[str, Any] = {"load": load, "rate": round(rate, 3), "requests": int(arrival.size)}
    row["mean_service"], row["scv"] = (
        round(float(service.mean()), 7),
        round(float(service.var() / service.mean() ** 2), 4),
    )
    replay = simulate(arrivals=served["arrival"], service=served["finished"] - served["scheduled"]).waits[skip:]
    row["replayed_wait"] = round(float(replay.mean()), 7)  # the simulator on the same arrivals and service times
    free = np.maximum(arrival[1:], finish[:-1])
    row["handover"] = round(float((start[1:] - free).mean()), 7)  # the server could have begun, and had not
    row["service"] = [round(float(value), 5) for value in service[:: max(service.size // KEPT, 1)][:KEPT]]
    row["busy"] = round(float(service.sum() / (finish.max() - arrival[0])), 4)
    for name, found in means.items():
        row[f"mean_{name}"] = [round(value, 7) for value in (found.mean, found.low, found.high)]
        row[f"lag1_{name}"] = round(found.lag1 or 0.0, 3)
    for name, values in (("wait", wait), ("inside", inside)):
        for q in (50, 99):
            worth = effective_samples(values, q)
            interval = percentile_interval(values, q, effective=worth)
            ends = (interval.low, interval.high) if interval else (None, None)
            row[f"p{q}_{name}"] = [None if v is None else round(float(v), 7) for v in (np.percentile(values, q), *ends)]
            row[f"p{q}_{name}_worth"] = round(worth)
    return row


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="store the measurement as JSON here; other loads in it are kept")
    parser.add_argument("--only", type=float, nargs="+", choices=LOADS, help="these loads only")
    parser.add_argument("--quick", action="store_true", help="a small run that shows that everything works")
    parser.add_argument("--note", default="", help="kept in the file: what a reader should know of this run")
    options = parser.parse_args(argv)
    model = load_model("pocket", threads=1)  # the other core sends
    pilot(model, 20)  # warm
    mean = pilot(model, 60 if options.quick else PILOT)
    found: dict[str, Any] = {
        "what": "pocket as a single server: waits and times inside by load, s",
        "command": "python tests/benchmarks/littles_law.py --out chapters/data/littles_law.json",
        "date": date.today().isoformat(),
        "machine": machine(),
        "model": model.shape.name,
        "path": model.path,
        "decoder_threads": 1,
        "lengths": "prompts of 8 to 24 tokens, uniform; answers lognormal, mean 4, CV 0.7, at least 1",
        "note": options.note,
        "rows": [],
    }
    if options.out and options.out.exists() and options.only:
        found = json.loads(options.out.read_text(encoding="utf-8"))
    for load in options.only or ((0.5, 0.7) if options.quick else LOADS):
        requests = 120 if options.quick else REQUESTS[load]
        plan = Workload(Poisson(load / mean), LENGTHS).plan(1 + LOADS.index(load), requests=requests)
        record: dict[str, Any] = {}
        with other_load(record):
            served = serve(model, plan, WallClock())
        row = figures(served, load, load / mean) | {"other_load": record["other_load"]}
        mean = row["mean_service"]
        found["rows"] = sorted([*(r for r in found["rows"] if r["load"] != load), row], key=lambda r: r["load"])
        if load == TRACE[0]:
            part = slice(requests // 2, requests // 2 + TRACE[1])
            found["trace"] = {"load": load} | {
                k: [round(float(v), 5) for v in each[part]] for k, each in served.items()
            }
        print(
            f"load {load} wanted, {row['rate'] * mean:.3f} reached: mean service {1e3 * mean:.2f} ms, "
            f"mean wait {1e3 * row['mean_wait'][0]:.2f} ms, other work {row['other_load']}",
            flush=True,
        )
        if options.out:
            store(options.out, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
