"""The book's own numbers for lab 3: the p99 of pocket under an open loop, one connection and a closed loop.

    python tests/benchmarks/load_lab.py --out lib/underload/labs/load.json
    python tests/benchmarks/load_lab.py             prints, stores nothing
    python tests/benchmarks/load_lab.py --quick     a quarter of the requests; stores nothing

It runs the lab's own cells, so that the experiment is the one that a student runs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from lab_numbers import LabRun, read_options, show_and_store

LAB = "load"
BEFORE = ("setup", "pictures", "task-1-open-solution", "task-1-closed-solution", "task-1-late", "task-1-both")
REQUESTS, QUICK = 400, 100  # of the lab's cells, which name this number, and of a quick run
MEASURED = ("task-2-decoder", "task-2-three")


def measure(source: Path, requests: int = REQUESTS) -> dict[str, object]:
    lab = LabRun(source)
    lab.run(BEFORE)
    lab.measure(MEASURED, instead=(str(REQUESTS), str(requests)))
    what = (
        "pocket, one request at a time: the p99 latency of the same requests by an open loop, by an open loop "
        "through one connection, counted from the schedule and from the send, and by a closed loop of one user"
    )
    return lab.record(LAB, what) | {
        "requests": lab.names["REQUESTS"],
        "load": lab.names["LOAD"],
        "usual service": round(float(lab.names["usual"]), 9),  # s
        "path": lab.names["model"].path,
        "seconds": {name: round(float(np.percentile(values, 99)), 9) for name, values in lab.names["rows"].items()},
    }


def main() -> None:
    options = read_options(__doc__, LAB, small="--quick")
    show_and_store(measure(options.lab, QUICK if options.small else REQUESTS), options.out)


if __name__ == "__main__":
    main()
