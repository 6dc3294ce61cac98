"""The book's own numbers for lab 2: pocket as a single server behind a queue; waits by clock, simulator and formula.

    python tests/benchmarks/littles_law_lab.py --out lib/underload/labs/littles_law.json
    python tests/benchmarks/littles_law_lab.py             prints, stores nothing
    python tests/benchmarks/littles_law_lab.py --quick     a quarter of the requests; stores nothing

It runs the lab's own cells, so that the experiment is the one that a student runs.
"""

from __future__ import annotations

import argparse
import json
from datetime import date
from pathlib import Path
from typing import Any

from load import other_load

from underload.course import read_notebook
from underload.decoder import machine

LAB = Path(__file__).resolve().parents[2] / "labs" / "littles-law.ipynb"
BEFORE = (
    "setup",
    "pictures",
    "task-1-solution",
    "switch",
    "task-3-interval-solution",
    "switch-interval",
    "task-4-solution",
)
REQUESTS, QUICK = 400, 100  # of the lab's cells, which name this number, and of a quick run
MEASURED = ("task-5-decoder", "task-5-three")


def measure(source: Path, requests: int = REQUESTS) -> dict[str, object]:
    cells = {cell.id: cell.source for cell in read_notebook(source).cells}
    names: dict[str, Any] = {}
    record: dict[str, float] = {}
    for name in BEFORE:
        exec(cells[name], names)
    with other_load(record):
        for name in MEASURED:
            exec(cells[name].replace(str(REQUESTS), str(requests)), names)
    services = names["services"]
    seconds = {
        "mean service": services.mean(),
        "wait by the clock": names["mean"],
        "wait by the simulator": names["replayed"].mean(),
        "wait by the formula": names["formula"],
    }
    return {
        "what": "pocket, one request at a time behind a queue: mean service, and the mean wait of the same requests by "
        "the clock, by a simulator given their arrivals and services, and by Pollaczek and Khinchine's formula",
        "command": "python tests/benchmarks/littles_law_lab.py --out lib/underload/labs/littles_law.json",
        "date": date.today().isoformat(),
        "machine": machine(),
        **record,
        "requests": len(services),
        "path": names["model"].path,
        "interval": round(float(names["half"]), 9),  # half width by batch means, s
        "seconds": {name: round(float(value), 9) for name, value in seconds.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to store the result (JSON)")
    parser.add_argument("--lab", type=Path, default=LAB, help="the notebook (default: the book's)")
    parser.add_argument("--quick", action="store_true", help="a small run that shows that everything works")
    options = parser.parse_args()
    if options.quick and options.out:
        parser.error("--quick stores nothing; leave --out away")
    text = json.dumps(measure(options.lab, QUICK if options.quick else REQUESTS), indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
