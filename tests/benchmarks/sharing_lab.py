"""The book's own numbers for lab 9: conversations through the lab's pool, and pocket's first token with and without it.

    python tests/benchmarks/sharing_lab.py --out lib/underload/labs/sharing.json
    python tests/benchmarks/sharing_lab.py             prints, stores nothing

It runs the lab's own cells with its solutions, so that the experiment is the one that a student runs.
"""

from __future__ import annotations

from pathlib import Path

from lab_numbers import PRINTED, LabRun, read_options, show_and_store

LAB = "sharing"
BEFORE = (
    "pictures",
    "task-1-picture",
    "task-1-leak",
    "task-2-picture",
    "task-3-picture",
    "task-3-serve",
    "task-4-panel",
)
MEASURED = ("task-4-answer", "end")


def measure(source: Path) -> dict[str, object]:
    lab = LabRun(source)
    lab.run_solutions()
    lab.run(BEFORE, until="ipywidgets.interact(")
    lab.measure(MEASURED, until=PRINTED)
    what = (
        "conversations through the lab's pool on a virtual clock, a break-even, and pocket's time to the first "
        "token of 1,000 tokens that are new and that were there before"
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
