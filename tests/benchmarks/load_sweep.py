"""One decoder under two kinds of load test: the recorded measurement behind "The load you measure with".

    python tests/benchmarks/load_sweep.py --out chapters/data/load_sweep.json               some minutes, quiet machine
    python tests/benchmarks/load_sweep.py --out chapters/data/load_sweep.json --only users-4  one run of it again
    python tests/benchmarks/load_sweep.py --quick                                           seconds; stores nothing

Pocket behind the engine's loop, which runs one request at a time, first come first served; prompts and answers vary in
length. Two kinds of run:

    users-N   a closed loop: N users, each of whom sends as soon as its answer has come
    load-X    an open loop: Poisson arrivals on a schedule, through one connection, so that requests that are due wait
              in the client. Its latencies are kept twice, counted from the send and from the schedule: one run, two
              reports. A request keeps the connection for its service and for the handover to the next one; the rate
              is X / that time, as found just before the run, since a server's speed drifts.

Figures of a run leave out its first tenth.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from littles_law import LENGTHS
from load import other_load
from step_time import store

from underload.decoder import Model, decoder_engine, load_model, machine
from underload.engine import OnlineEngine
from underload.metrics import batch_means, effective_samples, percentile_interval
from underload.request import Request, Timeline, WallClock
from underload.workload import Log, Planned, Poisson, Workload, closed_loop, open_loop

USERS = (1, 2, 4, 8, 16)
LOADS = {0.3: 1200, 0.5: 2000, 0.7: 3200, 0.8: 8000, 0.9: 9000}  # of the connection; and the requests of each
IN_CLOSED = 2000  # requests of a closed loop
PILOT = 500  # requests of each pilot
WARMUP = 0.1  # share of a run's requests that its figures leave out
RUNS = [*(f"users-{users}" for users in USERS), *(f"load-{load}" for load in LOADS)]


def drive(model: Model, planned: list[Planned], users: int | None) -> Log:
    """Send a plan to one server: `users` in a closed loop, or on schedule through one connection."""
    ids = np.random.default_rng(0).integers(3, model.shape.vocab_size, 256).tolist()
    clock = WallClock()

    def answer(request: Planned, _: Timeline) -> Request:
        return online.add_request(ids[: request.prompt_tokens], request.params).wait()

    # Prompts are cut from one row of ids, and nothing of one may be found again for another.
    with OnlineEngine(decoder_engine(model, clock=clock, max_num_seqs=1, prefix_caching=False)) as online:
        if users is None:
            log = open_loop(planned, answer, clock, connections=1)
        else:
            log = closed_loop(planned, answer, clock, users=users)
    assert not log.failures, log
    return log


def occupied(model: Model, requests: int) -> float:
    """How long a request keeps the connection in an open run, in s: its service, and the handover to the next."""

    def service(log: Log) -> float:
        return float(np.mean([line.finished - line.scheduled for line in log.timelines]))  # type: ignore[operator]

    drive(model, Workload(Poisson(1.0), LENGTHS).plan(89, requests=requests // 2), 1)  # warm
    alone = drive(model, Workload(Poisson(1.0), LENGTHS).plan(90, requests=requests), 1)
    cycle = (max(line.finished or 0.0 for line in alone.timelines) - alone.start) / requests
    busy = drive(model, Workload(Poisson(0.8 / cycle), LENGTHS).plan(91, requests=requests), None)  # with its rests
    return cycle - service(alone) + service(busy)


def figures(log: Log) -> dict[str, Any]:
    """What is stored of one run: throughput, the service, and latencies by both clocks, in s, with their intervals."""
    lines = sorted(log.timelines, key=lambda line: line.arrival)[round(WARMUP * len(log.timelines)) :]
    arrival, sent, start, finish = (
        np.array([getattr(line, name) for line in lines]) for name in ("arrival", "sent", "scheduled", "finished")
    )
    service = finish - start
    row: dict[str, Any] = {
        "requests": len(lines),
        "throughput": round(len(lines) / float(finish.max() - arrival.min()), 3),
        "mean_service": round(float(service.mean()), 7),
        "scv": round(float(service.var() / service.mean() ** 2), 4),
        "cycle": round(
            float(np.diff(np.sort(finish)).mean()), 7
        ),  # from one answer to the next; closed: service + handover
    }
    for name, begin in (("from_send", sent), ("from_schedule", arrival)):
        values = finish - begin
        mean = batch_means(values, batches=10)
        row[name] = {"mean": [round(v, 7) for v in (mean.mean, mean.low, mean.high)]}
        for q in (50, 99):
            worth = effective_samples(values, q)
            interval = percentile_interval(values, q, effective=worth)
            ends = (interval.low, interval.high) if interval else (None, None)
            found = (np.percentile(values, q), *ends)
            row[name] |= {
                f"p{q}": [None if v is None else round(float(v), 7) for v in found],
                f"p{q}_worth": round(worth),
            }
    return row


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="store the measurement as JSON here; other runs in it are kept")
    parser.add_argument("--only", nargs="+", choices=RUNS, help="these runs only")
    parser.add_argument("--quick", action="store_true", help="a small run that shows that everything works")
    parser.add_argument("--note", default="", help="kept in the file: what a reader should know of this run")
    options = parser.parse_args(argv)
    model = load_model("pocket", threads=1)  # the other core sends
    found: dict[str, Any] = {
        "what": "pocket as a single server under a closed and an open loop: latencies from send and from schedule, s",
        "command": "python tests/benchmarks/load_sweep.py --out chapters/data/load_sweep.json",
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
    for name in options.only or (("users-2", "load-0.7") if options.quick else RUNS):
        kind, _, value = name.partition("-")
        users = int(value) if kind == "users" else None
        kept = occupied(model, 60 if options.quick else PILOT)
        rate = None if users else float(value) / kept
        requests = 150 if options.quick else IN_CLOSED if users else LOADS[float(value)]
        plan = Workload(Poisson(rate or 1.0), LENGTHS).plan(1 + RUNS.index(name), requests=requests)
        record: dict[str, Any] = {}
        with other_load(record):
            log = drive(model, plan, users)
        row = {"name": name, "users": users, "rate": rate and round(rate, 3), **figures(log), **record}
        found["rows"] = sorted(
            [*(r for r in found["rows"] if r["name"] != name), row], key=lambda r: RUNS.index(r["name"])
        )
        shown = {"service": row["mean_service"], **{by: row[by]["mean"][0] for by in ("from_send", "from_schedule")}}
        print(
            f"{name}: {row['throughput']:.1f}/s, "
            + ", ".join(f"{what} {1e3 * value:.2f} ms" for what, value in shown.items())
            + f", other work {row['other_load']}",
            flush=True,
        )
        if options.out:
            store(options.out, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
