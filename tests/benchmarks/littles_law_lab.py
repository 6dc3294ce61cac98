"""The book's own numbers for lab 2: pocket as a single server behind a queue; waits by clock, simulator and formula.

    python tests/benchmarks/littles_law_lab.py --out lib/underload/labs/littles_law.json
    python tests/benchmarks/littles_law_lab.py             prints, stores nothing
    python tests/benchmarks/littles_law_lab.py --quick     a quarter of the requests; stores nothing

It runs the lab's own cells, so that the experiment is the one that a student runs.
"""

from __future__ import annotations

from pathlib import Path

from lab_numbers import LabRun, read_options, show_and_store

LAB = "littles-law"
BEFORE = (
    "setup",
    "pictures",
    "task-1-solution",
    "switch",
    "task-3-interval-solution",
    "switch-interval",
    "task-4-solution",
)
REQUESTS, QUICK = 400, 100  # of the lab's cells, which name this number, and of a quick run
MEASURED = ("task-5-decoder", "task-5-three")


def measure(source: Path, requests: int = REQUESTS) -> dict[str, object]:
    lab = LabRun(source)
    lab.run(BEFORE)
    lab.measure(MEASURED, instead=(str(REQUESTS), str(requests)))
    services = lab.names["services"]
    seconds = {
        "mean service": services.mean(),
        "wait by the clock": lab.names["mean"],
        "wait by the simulator": lab.names["replayed"].mean(),
        "wait by the formula": lab.names["formula"],
    }
    what = (
        "pocket, one request at a time behind a queue: mean service, and the mean wait of the same requests by "
        "the clock, by a simulator given their arrivals and services, and by Pollaczek and Khinchine's formula"
    )
    return lab.record(LAB, what) | {
        "requests": len(services),
        "path": lab.names["model"].path,
        "interval": round(float(lab.names["half"]), 9),  # half width by batch means, s
        "seconds": {name: round(float(value), 9) for name, value in seconds.items()},
    }


def main() -> None:
    options = read_options(__doc__, LAB, small="--quick")
    show_and_store(measure(options.lab, QUICK if options.small else REQUESTS), options.out)


if __name__ == "__main__":
    main()
