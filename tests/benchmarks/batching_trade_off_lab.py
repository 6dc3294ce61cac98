"""The book's own numbers for lab 5: pocket's line, and its mean latency under two rules, by the clock and simulated.

    python tests/benchmarks/batching_trade_off_lab.py --out lib/underload/labs/batching_trade_off.json
    python tests/benchmarks/batching_trade_off_lab.py             prints, stores nothing
    python tests/benchmarks/batching_trade_off_lab.py --quick     a quarter of the requests; stores nothing

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

LAB = Path(__file__).resolve().parents[2] / "labs" / "batching-trade-off.ipynb"
BEFORE = ("setup", "pictures", "task-1-solution", "task-3-solution", "task-4-solution")
REQUESTS, QUICK = 300, 75  # of the lab's cells, which name this number, and of a quick run
MEASURED = ("task-1-measure", "task-5-decoder", "task-5-picture")
RULES = "patient, eager = Patient, Mine\n"  # the panel makes them in the lab


def measure(source: Path, requests: int = REQUESTS) -> dict[str, object]:
    cells = {cell.id: cell.source for cell in read_notebook(source).cells}
    names: dict[str, Any] = {}
    record: dict[str, float] = {}
    for name in BEFORE:
        exec(cells[name], names)
    exec(RULES, names)
    with other_load(record):
        for name in MEASURED:
            exec(cells[name].replace(f"COUNT = 8, {REQUESTS}", f"COUNT = 8, {requests}"), names)
    seconds = {"o of a step": names["o_engine"], "t of a step": names["t_engine"]}
    seconds |= {name: sum(waits) / len(waits) for name, waits in names["waits"].items()}
    return {
        "what": "pocket's decode step as a line, and the mean latency of requests for 8 tokens under two rules, by the "
        "clock and by the simulator with that line",
        "command": "python tests/benchmarks/batching_trade_off_lab.py --out lib/underload/labs/batching_trade_off.json",
        "date": date.today().isoformat(),
        "machine": machine(),
        **record,
        "requests": requests,
        "path": names["model"].path,
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
