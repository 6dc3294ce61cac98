"""The book's own numbers for lab 6: steps, gaps and preemptions on the virtual clock, and pocket's stall measured.

    python tests/benchmarks/continuous_batching_lab.py --out lib/underload/labs/continuous_batching.json
    python tests/benchmarks/continuous_batching_lab.py             prints, stores nothing

It runs the lab's own cells with its solutions, so that the experiment is the one that a student runs.
"""

from __future__ import annotations

from pathlib import Path

from lab_numbers import PRINTED, LabRun, read_options, show_and_store

LAB = "continuous-batching"
BEFORE = ("pictures", "task-1-serve", "task-3-picture", "task-4-serve", "task-5-decoder")
MEASURED = ("task-5-measured", "end")


def measure(source: Path) -> dict[str, object]:
    lab = LabRun(source)
    lab.run_solutions()
    lab.run(BEFORE)
    lab.measure(MEASURED, until=PRINTED)
    what = (
        "steps, times between tokens and preemptions of the lab's loads on a virtual clock, and how long a "
        "long prompt stops those who decode on pocket, in one piece and in chunks of 32"
    )
    return lab.record(LAB, what) | {
        "path": lab.names["model"].path,
        "numbers": {name: round(float(value), 6) for name, value in lab.names["ours"].items()},
    }


def main() -> None:
    options = read_options(__doc__, LAB)
    show_and_store(measure(options.lab), options.out)


if __name__ == "__main__":
    main()
