"""The book's own numbers for lab 13: percentiles on the virtual clock, and first tokens of pocket, measured.

    python tests/benchmarks/hedging_lab.py --out lib/underload/labs/hedging.json
    python tests/benchmarks/hedging_lab.py             prints, stores nothing

It runs the lab's own cells with its solutions, so that the experiment is the one that a student runs. About 20 s.
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

LAB = Path(__file__).resolve().parents[2] / "labs" / "hedging.ipynb"
BEFORE = ("pictures", "task-1-answer", "task-2-picture", "task-3-loads", "task-5-table")
MEASURED = ("task-5-decoder", "end")
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
        exec(cells[name], names)
    with other_load(record):
        for name in MEASURED:
            exec(cells[name].partition(PRINTED)[0], names)
    return {
        "what": "percentiles of the lab's services on a virtual clock, and the longest time to first token of sixteen "
        "calls to two engines with pocket, of which one stands still for 0.2 s",
        "command": "python tests/benchmarks/hedging_lab.py --out lib/underload/labs/hedging.json",
        "date": date.today().isoformat(),
        "machine": machine(),
        **record,
        "path": names["exact"].path,
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
