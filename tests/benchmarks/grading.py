"""Grading a class of 200: the made-up class of the tests, again and again, with every kind of failure in it.

    python tests/benchmarks/grading.py --out tests/benchmarks/results/grading.json     minutes, on a quiet machine
    python tests/benchmarks/grading.py --quick                                         twenty; prints, stores nothing

The limits are those of `underload course grade`, so a cell that never ends takes its minute. What is measured is the
whole run: finding, grading, and the reports.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from dataclasses import replace
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from made_up_class import LAB, Made, made_up_class, write_class  # noqa: E402

import underload  # noqa: E402
from underload.course import read_notebook  # noqa: E402
from underload.course.grade import grade  # noqa: E402
from underload.course.sandbox import Limits  # noqa: E402
from underload.decoder import machine  # noqa: E402


def class_of(size: int, source: Path) -> list[Made]:
    """The made-up class until it has this size, each time under other names."""
    once = made_up_class(read_notebook(source), source)
    return [
        replace(one, files={f"c{number}-{name}": content for name, content in one.files.items()})
        for number in range(-(-size // len(once)))
        for one in once
    ][:size]


def measure(size: int, workers: int | None, limits: Limits) -> dict[str, Any]:
    source = ROOT / "labs" / f"{LAB}.ipynb"
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        submissions = Path(folder) / "in"
        write_class(class_of(size, source), submissions)
        done = grade(
            submissions, Path(folder) / "out", labs={LAB: read_notebook(source)}, limits=limits, workers=workers
        )
    seconds = [result.seconds for result in done.results if result.status == "graded"]
    usual = [result.seconds for result in done.results if result.status == "graded" and not result.notes]
    return {
        "what": "grading a class of made-up submissions of one lab, every kind of failure among them",
        "command": "python tests/benchmarks/grading.py --out tests/benchmarks/results/grading.json",
        "date": date.today().isoformat(),
        "machine": machine(),
        "load_before": round(load, 2),
        "versions": {
            "python": platform.python_version(),
            "underload": underload.__version__,
            **{name: version(name) for name in ("ipython", "numpy", "nbformat", "nbgrader")},
        },
        "lab": LAB,
        "limits": {"cell_seconds": limits.cell_seconds, "check_seconds": limits.check_seconds, "memory": limits.memory},
        "workers": done.workers,
        "submissions": len(done.results),
        "graded": len(seconds),
        "refused": len(done.results) - len(seconds),
        "seconds": round(done.seconds, 2),
        "seconds_a_submission": round(done.seconds / len(done.results), 3),
        "graded_seconds": {
            "median": round(statistics.median(seconds), 3),
            "ninth_decile": round(statistics.quantiles(seconds, n=10)[8], 3),
            "most": round(max(seconds), 3),
            "median_without_trouble": round(statistics.median(usual), 3),
        },
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="store the measurement as JSON here")
    parser.add_argument("--quick", action="store_true", help="twenty with short limits: shows that everything works")
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--workers", type=int, help="submissions at a time (default: one a core)")
    options = parser.parse_args(argv)
    limits = Limits(cell_seconds=3, check_seconds=3, memory=400 << 20) if options.quick else Limits()
    size = 20 if options.quick else options.size
    text = json.dumps(measure(size, options.workers, limits), indent=2) + "\n"
    if options.out and not options.quick:
        options.out.write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
