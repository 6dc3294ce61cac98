"""The book's own numbers for lab 14: capacity and a burst on the virtual clock, and pocket around its capacity.

The clock is that of the process, as in the lab: others on the machine take nothing but its caches.

    python tests/benchmarks/capacity_lab.py --out lib/underload/labs/capacity.json
    python tests/benchmarks/capacity_lab.py             prints, stores nothing
    python tests/benchmarks/capacity_lab.py --small     a third of the requests; stores nothing

It runs the lab's own cells with its solutions, so that the experiment is the one that a student runs.
"""

from __future__ import annotations

from pathlib import Path

from lab_numbers import PRINTED, LabRun, read_options, show_and_store

LAB = "capacity"
REQUESTS, SMALL = 300, 100  # of the lab's cells, which name this number, and of a small run
BEFORE = ("pictures", "task-2-answer")
MEASURED = ("task-5-decoder", "task-5-search", "task-5-measured")
DOOR = "door = Door\n"  # the panel makes it in the lab


def measure(source: Path, requests: int = REQUESTS) -> dict[str, object]:
    lab = LabRun(source)
    lab.run_solutions()
    lab.run(BEFORE)
    exec(DOOR, lab.names)
    lab.measure(MEASURED, instead=(f"64, 512, {REQUESTS}", f"64, 512, {requests}"))
    lab.run(("end",), until=PRINTED)
    what = (
        "what one replica of the lab carries and a burst before it, on a virtual clock; and the share of "
        "requests that pocket served as promised around the capacity that was searched for, in the time for which it "
        "had a core"
    )
    return lab.record(LAB, what) | {
        "requests": requests,
        "path": lab.names["model"].path,
        "numbers": {name: round(float(value), 4) for name, value in lab.names["ours"].items()},
        "simulated and measured": {
            name: [round(float(share), 4) for share in shares] for name, shares in lab.names["shares"].items()
        },
    }


def main() -> None:
    options = read_options(__doc__, LAB, small="--small")
    show_and_store(measure(options.lab, SMALL if options.small else REQUESTS), options.out)


if __name__ == "__main__":
    main()
