"""The book's own numbers for lab 9: conversations through the lab's pool, and pocket's first token with and without it.

    python tests/benchmarks/sharing_lab.py --out lib/underload/labs/sharing.json
    python tests/benchmarks/sharing_lab.py             prints, stores nothing

It runs the lab's own cells with its solutions, so that the experiment is the one that a student runs.
"""

from __future__ import annotations

import argparse
import json
from datetime import date
from pathlib import Path
from typing import Any

from load import other_load

from underload.course import read_notebook
from underload.course.outline import role
from underload.decoder import machine

LAB = Path(__file__).resolve().parents[2] / "labs" / "sharing.ipynb"
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
PRINTED = "book = lab.book()"  # from here on the last cell sets the numbers beside the book's


def measure(source: Path) -> dict[str, object]:
    notebook = read_notebook(source)
    cells = {cell.id: cell.source for cell in notebook.cells}
    names: dict[str, Any] = {}
    record: dict[str, float] = {}
    for cell in notebook.cells:
        if role(cell) in ("given", "answer"):
            exec(cell.source, names)
    for name in BEFORE:
        exec(cells[name].partition("ipywidgets.interact(")[0], names)
    with other_load(record):
        for name in MEASURED:
            exec(cells[name].partition(PRINTED)[0], names)
    return {
        "what": "conversations through the lab's pool on a virtual clock, a break-even, and pocket's time to the first "
        "token of 1,000 tokens that are new and that were there before",
        "command": "python tests/benchmarks/sharing_lab.py --out lib/underload/labs/sharing.json",
        "date": date.today().isoformat(),
        "machine": machine(),
        **record,
        "path": names["model"].path,
        "numbers": {name: round(float(value), 6) for name, value in names["ours"].items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the JSON file to write")
    parser.add_argument("--lab", type=Path, default=LAB, help="the notebook whose cells are run")
    options = parser.parse_args()
    text = json.dumps(measure(options.lab), indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
