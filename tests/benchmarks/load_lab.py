"""The book's own numbers for lab 3: the p99 of pocket under an open loop, one connection and a closed loop.

    python tests/benchmarks/load_lab.py --out lib/underload/labs/load.json
    python tests/benchmarks/load_lab.py             prints, stores nothing
    python tests/benchmarks/load_lab.py --quick     a quarter of the requests; stores nothing

It runs the lab's own cells, so that the experiment is the one that a student runs.
"""

from __future__ import annotations

import argparse
import json
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from load import other_load

from underload.course import read_notebook
from underload.decoder import machine

LAB = Path(__file__).resolve().parents[2] / "labs" / "load.ipynb"
BEFORE = ("setup", "pictures", "task-1-open-solution", "task-1-closed-solution", "task-1-late", "task-1-both")
REQUESTS, QUICK = 400, 100  # of the lab's cells, which name this number, and of a quick run
MEASURED = ("task-2-decoder", "task-2-three")


def measure(source: Path, requests: int = REQUESTS) -> dict[str, object]:
    cells = {cell.id: cell.source for cell in read_notebook(source).cells}
    names: dict[str, Any] = {}
    record: dict[str, float] = {}
    for name in BEFORE:
        exec(cells[name], names)
    with other_load(record):
        for name in MEASURED:
            exec(cells[name].replace(str(REQUESTS), str(requests)), names)
    return {
        "what": "pocket, one request at a time: the p99 latency of the same requests by an open loop, by an open loop "
        "through one connection, counted from the schedule and from the send, and by a closed loop of one user",
        "command": "python tests/benchmarks/load_lab.py --out lib/underload/labs/load.json",
        "date": date.today().isoformat(),
        "machine": machine(),
        **record,
        "requests": names["REQUESTS"],
        "load": names["LOAD"],
        "usual service": round(float(names["usual"]), 9),  # s
        "path": names["model"].path,
        "seconds": {name: round(float(np.percentile(values, 99)), 9) for name, values in names["rows"].items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the JSON file to write")
    parser.add_argument("--lab", type=Path, default=LAB, help="the notebook whose cells are run")
    parser.add_argument("--quick", action="store_true", help="a small run that shows that everything works")
    options = parser.parse_args()
    if options.quick and options.out:
        parser.error("--quick stores nothing; leave --out away")
    text = json.dumps(measure(options.lab, QUICK if options.quick else REQUESTS), indent=1, ensure_ascii=False)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
