"""The book's own numbers for lab 8: attention of one decode step in NumPy, in torch, and compiled.

    python tests/benchmarks/paged_attention_lab.py --out lib/underload/labs/paged_attention.json
    python tests/benchmarks/paged_attention_lab.py      prints, stores nothing

It runs the lab's own cells, so that the experiment is the one that a student runs.
"""

from __future__ import annotations

from pathlib import Path

from lab_numbers import LabRun, read_options, show_and_store

LAB = "paged-attention"
BEFORE = ("setup", "pictures", "task-4-solution", "task-4-seen", "task-4-model", "task-4-prediction")
MEASURED = ("task-4-times",)
CONTEXT = 1_000  # tokens of each sequence, in the row that is stored


def measure(source: Path) -> dict[str, object]:
    lab = LabRun(source)
    lab.run(BEFORE)
    lab.measure(MEASURED)
    what = (
        f"one layer of pocket, a decode step with 8 sequences of {CONTEXT:,} tokens: ms of its attention by "
        "the lab's solution in NumPy, by torch on a gathered copy, and by the compiled kernel in place"
    )
    return lab.record(LAB, what) | {
        "ms": {words: round(ms, 6) for words, ms in lab.names["rows"][CONTEXT].items()},
    }


def main() -> None:
    options = read_options(__doc__, LAB)
    show_and_store(measure(options.lab), options.out)


if __name__ == "__main__":
    main()
