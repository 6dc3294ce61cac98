"""The book's own numbers for lab 14: capacity and a burst on the virtual clock, and pocket around its capacity.

The clock is that of the process, as in the lab: others on the machine take nothing but its caches.

    python tests/benchmarks/capacity_lab.py --out lib/underload/labs/capacity.json
    python tests/benchmarks/capacity_lab.py             prints, stores nothing
    python tests/benchmarks/capacity_lab.py --small     a third of the requests; stores nothing

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

LAB = Path(__file__).resolve().parents[2] / "labs" / "capacity.ipynb"
REQUESTS, SMALL = 300, 100  # of the lab's cells, which name this number, and of a small run
BEFORE = ("pictures", "task-2-answer")
MEASURED = ("task-5-decoder", "task-5-search", "task-5-measured")
DOOR = "door = Door\n"  # the panel makes it in the lab
PRINTED = "book = lab.book()"  # from here on the last cell sets the numbers beside the book's


def measure(source: Path, requests: int = REQUESTS) -> dict[str, object]:
    notebook = read_notebook(source)
    cells = {cell.id: cell.source for cell in notebook.cells}
    names: dict[str, Any] = {}
    record: dict[str, float] = {}
    for cell in notebook.cells:
        if role(cell) in ("given", "answer"):
            exec(cell.source, names)
    for name in BEFORE:
        exec(cells[name], names)
    exec(DOOR, names)
    with other_load(record):
        for name in MEASURED:
            exec(cells[name].replace(f"64, 512, {REQUESTS}", f"64, 512, {requests}"), names)
    exec(cells["end"].partition(PRINTED)[0], names)
    return {
        "what": "what one replica of the lab carries and a burst before it, on a virtual clock; and the share of "
        "requests that pocket served as promised around the capacity that was searched for, in the time for which it "
        "had a core",
        "command": "python tests/benchmarks/capacity_lab.py --out lib/underload/labs/capacity.json",
        "date": date.today().isoformat(),
        "machine": machine(),
        **record,
        "requests": requests,
        "path": names["model"].path,
        "numbers": {name: round(float(value), 4) for name, value in names["ours"].items()},
        "simulated and measured": {
            name: [round(float(share), 4) for share in shares] for name, shares in names["shares"].items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to store the result (JSON)")
    parser.add_argument("--lab", type=Path, default=LAB, help="the notebook (default: the book's)")
    parser.add_argument("--small", action="store_true", help="a small run that shows that everything works")
    options = parser.parse_args()
    if options.small and options.out:
        parser.error("--small stores nothing; leave --out away")
    text = json.dumps(measure(options.lab, SMALL if options.small else REQUESTS), indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
