"""The book's own numbers for lab 8: attention of one decode step in NumPy, in torch, and compiled.

    python tests/benchmarks/paged_attention_lab.py --out lib/underload/labs/paged_attention.json
    python tests/benchmarks/paged_attention_lab.py      prints, stores nothing

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

LAB = Path(__file__).resolve().parents[2] / "labs" / "paged-attention.ipynb"
BEFORE = ("setup", "pictures", "task-4-solution", "task-4-seen", "task-4-model", "task-4-prediction")
MEASURED = ("task-4-times",)
CONTEXT = 1_000  # tokens of each sequence, in the row that is stored


def measure(source: Path) -> dict[str, object]:
    cells = {cell.id: cell.source for cell in read_notebook(source).cells}
    names: dict[str, Any] = {}
    record: dict[str, float] = {}
    for name in BEFORE:
        exec(cells[name], names)
    with other_load(record):
        for name in MEASURED:
            exec(cells[name], names)
    return {
        "what": f"one layer of pocket, a decode step with 8 sequences of {CONTEXT:,} tokens: ms of its attention by "
        "the lab's solution in NumPy, by torch on a gathered copy, and by the compiled kernel in place",
        "command": "python tests/benchmarks/paged_attention_lab.py --out lib/underload/labs/paged_attention.json",
        "date": date.today().isoformat(),
        "machine": machine(),
        **record,
        "ms": {words: round(ms, 6) for words, ms in names["rows"][CONTEXT].items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the JSON file to write")
    parser.add_argument("--lab", type=Path, default=LAB, help="the notebook whose cells are run")
    options = parser.parse_args()
    text = json.dumps(measure(options.lab), indent=1, ensure_ascii=False)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
