"""The book's own numbers for lab 5: pocket's line, and its mean latency under two rules, by the clock and simulated.

    python tests/benchmarks/batching_trade_off_lab.py --out lib/underload/labs/batching_trade_off.json
    python tests/benchmarks/batching_trade_off_lab.py             prints, stores nothing
    python tests/benchmarks/batching_trade_off_lab.py --quick     a quarter of the requests; stores nothing

It runs the lab's own cells, so that the experiment is the one that a student runs.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

from lab_numbers import LabRun, read_options, show_and_store

LAB = "batching-trade-off"
BEFORE = ("setup", "pictures", "task-1-solution", "task-3-solution", "task-4-solution")
REQUESTS, QUICK = 150, 40  # of the lab's cells, which name this number, and of a quick run
MEASURED = ("task-1-measure", "task-5-decoder", "task-5-runs")
COUNTED = "COUNT, ROUNDS = lab.TOKENS, {}, "
RULES = "patient, eager = Patient, Mine\n"  # the panel makes them in the lab


def measure(source: Path, requests: int = REQUESTS) -> dict[str, object]:
    lab = LabRun(source)
    lab.run(BEFORE)
    exec(RULES, lab.names)
    lab.measure(MEASURED, instead=(COUNTED.format(REQUESTS), COUNTED.format(requests)))
    seconds = {"o of a step": lab.names["o_engine"], "t of a step": lab.names["t_engine"]}
    means = {name: sorted(values / 1e3) for name, values in lab.names["means"].items()}
    seconds |= {name: median(values) for name, values in means.items()}
    what = (
        "pocket's decode step as a line, and the mean latency of requests for 8 tokens under two rules, by the "
        "clock (the median of some runs, by turns, and their range) and by the simulator with that line"
    )
    return lab.record(LAB, what) | {
        "requests": requests,
        "rounds": lab.names["ROUNDS"],
        "timeout": round(float(lab.names["timeout"]), 9),
        "path": lab.names["model"].path,
        "seconds": {name: round(float(value), 9) for name, value in seconds.items()},
        "range": {
            name: [round(float(values[place]), 9) for place in (0, -1)]
            for name, values in means.items()
            if name.endswith("measured")
        },
    }


def main() -> None:
    options = read_options(__doc__, LAB, small="--quick")
    show_and_store(measure(options.lab, QUICK if options.small else REQUESTS), options.out)


if __name__ == "__main__":
    main()
