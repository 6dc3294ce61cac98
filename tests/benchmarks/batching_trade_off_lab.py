"""The book's own numbers for lab 5: pocket's line, and its mean latency under two rules, by the clock and simulated.

    python tests/benchmarks/batching_trade_off_lab.py --out lib/underload/labs/batching_trade_off.json
    python tests/benchmarks/batching_trade_off_lab.py             prints, stores nothing
    python tests/benchmarks/batching_trade_off_lab.py --quick     a quarter of the requests; stores nothing

It runs the lab's own cells, so that the experiment is the one that a student runs.
"""

from __future__ import annotations

from pathlib import Path

from lab_numbers import LabRun, read_options, show_and_store

LAB = "batching-trade-off"
BEFORE = ("setup", "pictures", "task-1-solution", "task-3-solution", "task-4-solution")
REQUESTS, QUICK = 300, 75  # of the lab's cells, which name this number, and of a quick run
MEASURED = ("task-1-measure", "task-5-decoder", "task-5-picture")
RULES = "patient, eager = Patient, Mine\n"  # the panel makes them in the lab


def measure(source: Path, requests: int = REQUESTS) -> dict[str, object]:
    lab = LabRun(source)
    lab.run(BEFORE)
    exec(RULES, lab.names)
    lab.measure(MEASURED, instead=(f"COUNT = 8, {REQUESTS}", f"COUNT = 8, {requests}"))
    seconds = {"o of a step": lab.names["o_engine"], "t of a step": lab.names["t_engine"]}
    seconds |= {name: sum(waits) / len(waits) for name, waits in lab.names["waits"].items()}
    what = (
        "pocket's decode step as a line, and the mean latency of requests for 8 tokens under two rules, by the "
        "clock and by the simulator with that line"
    )
    return lab.record(LAB, what) | {
        "requests": requests,
        "path": lab.names["model"].path,
        "seconds": {name: round(float(value), 9) for name, value in seconds.items()},
    }


def main() -> None:
    options = read_options(__doc__, LAB, small="--quick")
    show_and_store(measure(options.lab, QUICK if options.small else REQUESTS), options.out)


if __name__ == "__main__":
    main()
