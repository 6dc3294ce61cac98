"""The book's own numbers for lab 13: percentiles on the virtual clock, and first tokens of pocket, measured.

    python tests/benchmarks/hedging_lab.py --out lib/underload/labs/hedging.json
    python tests/benchmarks/hedging_lab.py             prints, stores nothing

It runs the lab's own cells with its solutions, so that the experiment is the one that a student runs. About 20 s.
"""

from __future__ import annotations

from pathlib import Path

from lab_numbers import PRINTED, LabRun, read_options, show_and_store

LAB = "hedging"
BEFORE = ("pictures", "task-1-answer", "task-2-picture", "task-3-loads", "task-5-table")
MEASURED = ("task-5-decoder", "end")


def measure(source: Path) -> dict[str, object]:
    lab = LabRun(source)
    lab.run_solutions()
    lab.run(BEFORE)
    lab.measure(MEASURED, until=PRINTED)
    what = (
        "percentiles of the lab's services on a virtual clock, and the longest time to first token of sixteen "
        "calls to two engines with pocket, of which one stands still for 0.2 s"
    )
    return lab.record(LAB, what) | {
        "path": lab.names["exact"].path,
        "numbers": {name: round(float(value), 6) for name, value in lab.names["ours"].items()},
    }


def main() -> None:
    options = read_options(__doc__, LAB)
    show_and_store(measure(options.lab), options.out)


if __name__ == "__main__":
    main()
