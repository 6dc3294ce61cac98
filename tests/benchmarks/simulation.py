"""Customers per second of the simulator, beside SimPy and Ciw, on M/M/1 and M/M/8.

    python tests/benchmarks/simulation.py --out tests/benchmarks/results/simulation.json   five minutes, quiet machine
    python tests/benchmarks/simulation.py --quick                                     seconds; prints, stores nothing

All get the same customers, drawn beforehand: instants of arrival and services, and each gives back when every one of
them started. The results are compared, so that nobody is fast by doing something else. In each round every engine does
every queue once before the next round begins, so that a machine that drifts drifts under all of them. What is not
installed is skipped, by name. See README.md in this folder for how to read the result.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from load import other_load

from underload.queueing import Exponential
from underload.simulation import fcfs, simulate
from underload.workload import Poisson, Streams

Array = np.ndarray
QUEUES = {"M/M/1": 1, "M/M/8": 8}
LOAD = 0.8
LARGE, SMALL = 1_000_000, 100_000
AIMS = {"underload, fast": 1_000_000, "underload, fast, plain Python": 1_000_000}  # customers/s
AIM_EVENTS = 300_000  # events/s of the general path


def customers(servers: int, n: int) -> tuple[Array, Array]:
    """Instants of arrival and services of n customers; services of mean 1 s."""
    streams = Streams(1)
    return Poisson(LOAD * servers).first(streams["arrivals"], n), Exponential(1.0).draw(streams["service"], n)


# ---- engines: arrivals, services, servers -> starts --------------------------------------------------------------


def fast(arrival: Array, service: Array, servers: int) -> Array:
    """`simulate` whole, with its checks; compiled."""
    return simulate(arrivals=arrival, service=service, servers=servers).start


def kernel(arrival: Array, service: Array, servers: int) -> Array:
    """The compiled recursion alone."""
    return fcfs(arrival, service, servers, engine="compiled")


def plain(arrival: Array, service: Array, servers: int) -> Array:
    """The recursion in plain Python, as where numba is missing."""
    return fcfs(arrival, service, servers, engine="plain")


def events(arrival: Array, service: Array, servers: int) -> Array:
    """`simulate` whole, through the event queue: two events a customer."""
    return simulate(arrivals=arrival, service=service, servers=servers, path="events").start


def simpy(arrival: Array, service: Array, servers: int) -> Array:
    """A process a customer and a Resource, as SimPy's own bank example has it."""
    import simpy

    env = simpy.Environment()
    counter = simpy.Resource(env, capacity=servers)
    starts: list[float] = [0.0] * len(arrival)

    def customer(i: int, takes: float) -> Any:
        with counter.request() as request:
            yield request
            starts[i] = env.now
            yield env.timeout(takes)

    def source() -> Any:
        for i, (at, takes) in enumerate(zip(arrival.tolist(), service.tolist())):
            yield env.timeout(at - env.now)
            env.process(customer(i, takes))

    env.process(source())
    env.run()
    return np.array(starts)


def ciw(arrival: Array, service: Array, servers: int) -> Array:
    """A network of one node, its times in sequence, run until all have finished."""
    import ciw

    gaps = np.diff(arrival, prepend=0.0).tolist()
    network = ciw.create_network(
        arrival_distributions=[ciw.dists.Sequential([*gaps, float("inf")])],
        service_distributions=[ciw.dists.Sequential(service.tolist())],
        number_of_servers=[servers],
    )
    simulation = ciw.Simulation(network)
    simulation.simulate_until_max_customers(len(arrival), method="Finish")
    records = sorted(simulation.get_all_records(), key=lambda record: record.arrival_date)
    return np.array([record.service_start_date for record in records])


ENGINES: dict[str, tuple[Callable[[Array, Array, int], Array], int, str | None]] = {
    "underload, fast": (fast, LARGE, None),
    "underload, fast, the recursion alone": (kernel, LARGE, None),
    "underload, fast, plain Python": (plain, LARGE, None),
    "underload, events": (events, SMALL, None),
    "SimPy": (simpy, SMALL, "simpy"),
    "Ciw": (ciw, SMALL, "ciw"),
}


def measure(rounds: int, scale: float) -> dict[str, Any]:
    """Every engine on every queue, `rounds` times, in turn."""
    found: dict[str, Any] = {"engines": {}, "rows": []}
    chosen = {}
    for name, (run, size, package) in ENGINES.items():
        try:
            found["engines"][name] = "underload" if package is None else f"{package} {version(package)}"
            chosen[name] = (run, max(int(size * scale), 100))
        except PackageNotFoundError:
            print(f"{name} is not installed (pip install underload[peers]); skipped", file=sys.stderr)
    loads = {
        (queue, size): customers(servers, size)
        for queue, servers in QUEUES.items()
        for size in {size for _, size in chosen.values()}
    }
    right = {key: fcfs(*load, QUEUES[key[0]], engine="plain") for key, load in loads.items()}
    for servers in QUEUES.values():  # imported and compiled before anything counts
        kernel(*customers(servers, 10), servers)
        for run, _ in chosen.values():
            run(*customers(servers, 10), servers)
    rows = {
        (name, queue): {"engine": name, "queue": queue, "customers": size, "seconds": [], "cpu_seconds": []}
        for name, (_, size) in chosen.items()
        for queue in QUEUES
    }
    fcfs(np.zeros(4_000_000), np.zeros(4_000_000))  # so many customers that "auto" compiles from here on
    with other_load(found):
        for _ in range(rounds):
            for (name, queue), row in rows.items():
                run, size = chosen[name]
                arrival, service = loads[queue, size]
                gc.collect()
                wall, cpu = time.perf_counter(), time.process_time()
                starts = run(arrival, service, QUEUES[queue])
                row["cpu_seconds"].append(round(time.process_time() - cpu, 6))
                row["seconds"].append(round(time.perf_counter() - wall, 6))
                # Others add up gaps where we compare instants, which rounds differently: a microsecond in a day.
                row["largest_difference"] = float(np.max(np.abs(starts - right[queue, size])))
                if not row["largest_difference"] < 1e-6:
                    raise SystemExit(f"{name} on {queue} differs by {row['largest_difference']:g} s: another queue")
    found["rows"] = list(rows.values())
    for row in found["rows"]:
        row["customers_per_second"] = round(row["customers"] / median(row["seconds"]))
        row["customers_per_cpu_second"] = round(row["customers"] / median(row["cpu_seconds"]))
        if row["engine"] == "underload, events":
            row["events_per_second"] = 2 * row["customers_per_second"]
    found["ratios"] = {
        queue: {
            f"{ours} / {peer}": round(rate(found, ours, queue) / rate(found, peer, queue), 1)
            for ours in ("underload, fast", "underload, events")
            for peer in ("SimPy", "Ciw")
            if peer in chosen
        }
        for queue in QUEUES
    }
    return found


def rate(found: dict[str, Any], engine: str, queue: str) -> float:
    """Customers/s of an engine on a queue."""
    return next(
        float(row["customers_per_second"]) for row in found["rows"] if (row["engine"], row["queue"]) == (engine, queue)
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="store the measurement as JSON here")
    parser.add_argument("--quick", action="store_true", help="a small run that shows that everything works")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(argv)
    found = measure(1 if options.quick else options.rounds, 0.02 if options.quick else 1.0)
    for row in found["rows"]:
        print(
            f"{row['queue']}  {row['engine']:<38}{row['customers_per_second']:>13,} customers/s"
            f"  ({row['customers_per_cpu_second']:,} a CPU second)"
        )
    for queue, ratios in found["ratios"].items():
        print(f"{queue}  " + ", ".join(f"{name} {ratio:g}" for name, ratio in ratios.items()))
    load = found.get("other_load")
    print(f"others used {'an unknown share' if load is None else f'{load:.0%}'} of the machine")
    if not options.quick:
        for queue in QUEUES:
            for engine, aim in AIMS.items():
                if rate(found, engine, queue) < aim:
                    print(f"below the aim of {aim:,} customers/s: {engine} on {queue}")
            if 2 * rate(found, "underload, events", queue) < AIM_EVENTS:
                print(f"below the aim of {AIM_EVENTS:,} events/s: underload, events on {queue}")
    if options.out:
        from underload.decoder import machine

        about: dict[str, Any] = {
            "what": "customers per second through M/M/1 and M/M/8 at load 0.8; medians of the rounds, wall time",
            "command": "python tests/benchmarks/simulation.py --out tests/benchmarks/results/simulation.json",
            "date": date.today().isoformat(),
            "machine": machine(),
            "numba": version("numba"),
            "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
            "load": LOAD,
            "rounds": options.rounds,
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(about | found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
