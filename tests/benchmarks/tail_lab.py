"""The run that lab 12 takes apart: pocket behind the library's engine, four hundred requests, both records of it.

    python tests/benchmarks/tail_lab.py --out lib/underload/labs/tail.json     some seconds
    python tests/benchmarks/tail_lab.py                                        prints what the slowest waited for
    python tests/benchmarks/tail_lab.py --quick                                a hundred requests; stores nothing

It runs the lab's own cells, so that the recorded run is the one that a student's machine repeats; by the clock of the
thread's own time (`request.ProcessorClock`), so that what others take of the machine is left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lab_numbers import LabRun, read_options

from underload.metrics import slowest

LAB = "tail"
BEFORE = ("setup", "pictures")
MEASURED = ("task-5-drive",)
REQUESTS, QUICK = 400, 100  # of the lab's cell, which names this number, and of a quick run


def measure(source: Path, requests: int = REQUESTS) -> dict[str, Any]:
    lab = LabRun(source)
    lab.run(BEFORE)
    lab.measure(MEASURED, instead=(f"COUNT = {REQUESTS}", f"COUNT = {requests}"))
    run = lab.names["run"]
    print(slowest(run.timelines, run.steps, share=0.05))
    what = (
        "pocket behind the engine at 0.7 of what it carries; instants in ticks of 0.1 µs; steps: gap before "
        "it, duration, tokens decoded, tokens of prompts; requests name steps by their place"
    )
    return lab.record(LAB, what) | {
        "requests": requests,
        "rate": round(0.7 * lab.names["carried"], 3),
        "path": lab.names["model"].path,
        "clock": "processor",
        "run": run.as_data(),
    }


def written(record: dict[str, Any]) -> str:
    """The record as JSON: a line for each request, steps in lines of some length."""
    run = record.pop("run")
    lines, line = [], ""
    for step in run["steps"]:
        text = json.dumps(step, separators=(",", ":"))
        if len(line) + len(text) > 110:
            lines.append(line)
            line = ""
        line += text + ","
    lines.append(line[:-1])
    head = json.dumps(record, indent=1)[:-2]
    steps = "\n".join(lines)
    requests = ",\n".join(json.dumps(one, separators=(",", ":")) for one in run["requests"])
    return f'{head},\n "run": {{"steps": [\n{steps}\n], "requests": [\n{requests}\n]}}\n}}\n'


def main() -> None:
    options = read_options(__doc__, LAB, small="--quick")
    record = measure(options.lab, QUICK if options.small else REQUESTS)
    if options.out:
        options.out.write_text(written(record), encoding="utf-8")


if __name__ == "__main__":
    main()
