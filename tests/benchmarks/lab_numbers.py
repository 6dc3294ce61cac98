"""What the scripts share that take a lab's own numbers: running its cells, how a record begins, options, storing.

`NAME_lab.py` runs cells of `labs/NAME.ipynb` and stores `lib/underload/labs/NAME.json`; hyphens become underscores.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any

from load import other_load

from underload.course import read_notebook
from underload.course.outline import role
from underload.decoder import machine

LABS = Path(__file__).resolve().parents[2] / "labs"
PRINTED = "book = lab.book()"  # from here on a lab's last cell sets the numbers beside the book's


class LabRun:
    """A lab of which some cells are run, in whatever order; `names` is what they have set so far."""

    def __init__(self, source: Path) -> None:
        self.cells = read_notebook(source).cells
        self.names: dict[str, Any] = {}
        self.load: dict[str, Any] = {}

    def run_solutions(self) -> None:
        """All that a grader runs, with the solutions as answers."""
        for cell in self.cells:
            if role(cell) in ("given", "answer"):
                exec(cell.source, self.names)

    def run(self, ids: Iterable[str], *, until: str | None = None, instead: tuple[str, str] | None = None) -> None:
        """Run these cells: as far as `until` where they hold it, and with the second of `instead` for the first."""
        cells = {cell.id: cell.source for cell in self.cells}
        for name in ids:
            source = cells[name] if until is None else cells[name].partition(until)[0]
            exec(source if instead is None else source.replace(*instead), self.names)

    def measure(self, ids: Iterable[str], *, until: str | None = None, instead: tuple[str, str] | None = None) -> None:
        """The same for the cells whose numbers count: what else the machine did meanwhile is kept."""
        with other_load(self.load):
            self.run(ids, until=until, instead=instead)

    def record(self, name: str, what: str) -> dict[str, Any]:
        """How the record of `labs/NAME.ipynb` begins: what it is, how and when it was taken, on which machine."""
        stem = name.replace("-", "_")
        return {
            "what": what,
            "command": f"python tests/benchmarks/{stem}_lab.py --out lib/underload/labs/{stem}.json",
            "date": date.today().isoformat(),
            "machine": machine(),
            **self.load,
        }


def read_options(about: str | None, name: str, *, small: str | None = None) -> argparse.Namespace:
    """`out`, `lab`, and `small`: whether the option of that name, if the script has one, was given."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to store the result (JSON)")
    parser.add_argument("--lab", type=Path, default=LABS / f"{name}.ipynb", help="the notebook (default: the book's)")
    if small:
        words = "a small run that shows that everything works"
        parser.add_argument(small, dest="small", action="store_true", help=words)
    options = parser.parse_args()
    if small and options.small and options.out:
        parser.error(f"{small} stores nothing; leave --out away")
    return options


def show_and_store(record: dict[str, Any], out: Path | None) -> None:
    text = json.dumps(record, indent=1, ensure_ascii=False)
    print(text)
    if out:
        out.write_text(text + "\n", encoding="utf-8")
