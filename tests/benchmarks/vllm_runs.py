"""Two measured runs of vLLM, run again by the library's scheduler and pool on a virtual clock.

    python tests/benchmarks/vllm_runs.py --out tests/benchmarks/results/vllm_runs.json      some minutes
    python tests/benchmarks/vllm_runs.py --quick                                            one rerun of each; no fit

The cost of a step (`OverlapStepTime`) is fitted to the even requests of each run and judged by the odd ones. Then: what
if the number of KV blocks were wrong by half, and what if the cost of one run, scaled by data sheets and shapes of the
models, is used for the other? See README.md in this folder for how to read the result.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from dataclasses import asdict
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from underload.request import UnderloadError
from underload.shapes import ModelShape, shape
from underload.simulation import OverlapStepTime
from underload.simulation.measured import (
    VLLM,
    MeasuredEngine,
    RunErrors,
    fit_overlap,
    rerun,
    roofline_guess,
    transferred,
)
from underload.workload import Measured, load_trace

AIMS = {"tpot": 0.01, "e2e": 0.01, "e2e_each": 0.02}


def even(measured: Measured) -> np.ndarray:
    """[requests] bool: the half that is fitted."""
    return np.arange(len(measured)) % 2 == 0


def of_run(measured: Measured, engine: MeasuredEngine, model: ModelShape, *, quick: bool) -> dict[str, Any]:
    guess = roofline_guess(engine, model)
    found: dict[str, Any] = {
        "engine": {name: value for name, value in asdict(engine).items() if value != float("inf")},
        "requests": len(measured),
        "by_data_sheet": {"step_time": asdict(guess), **errors(measured, engine, guess)},
    }
    if quick:
        return found
    fit = fit_overlap(measured, engine, guess, even(measured), report=lambda cost, off: print(f"  {cost}\n  {off}"))
    found["fit"] = {
        "step_time": asdict(fit.step_time),
        "evaluations": fit.evaluations,
        "fitted_half": asdict(fit.fitted),
        "other_half": asdict(fit.held_out),
        "preemptions": sum(timeline.preemptions for timeline in fit.run.timelines),
        "steps": len(fit.run.steps),
        "most_blocks_used": max(step.blocks_used for step in fit.run.steps),
    }
    found["blocks"] = [
        {"num_blocks": blocks, **errors(measured, engine, fit.step_time, num_blocks=blocks)}
        for blocks in (engine.num_blocks // 2, engine.num_blocks * 3 // 2, engine.num_blocks * 2)
    ]
    return found


def errors(measured: Measured, engine: MeasuredEngine, cost: OverlapStepTime, **how: Any) -> dict[str, Any]:
    """Of a rerun, over all requests."""
    run = rerun(measured, engine, cost, **how)
    return {
        "errors": asdict(RunErrors.of(measured, run)),
        "preemptions": sum(timeline.preemptions for timeline in run.timelines),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="store the result as JSON here")
    parser.add_argument("--quick", action="store_true", help="one rerun of each, by the data sheet; no fit")
    options = parser.parse_args(argv)
    runs: dict[str, Any] = {}
    loaded: dict[str, tuple[Measured, MeasuredEngine, ModelShape]] = {}
    for name, engine in VLLM.items():
        try:
            measured = load_trace(name)
        except UnderloadError as error:
            print(f"{name}: {error}; skipped", file=sys.stderr)
            continue
        assert isinstance(measured, Measured)
        print(name, flush=True)
        loaded[name] = measured, engine, shape(engine.shape)
        runs[name] = of_run(*loaded[name], quick=options.quick)
    if len(loaded) == 2 and not options.quick:
        (first, (_, *here)), (second, (measured, *there)) = loaded.items()
        cost = OverlapStepTime(**runs[first]["fit"]["step_time"])
        for key, links in (("transferred_without_links", False), ("transferred", True)):
            moved = transferred(cost, tuple(here), tuple(there), links=links)
            runs[second][key] = {"from": first, "step_time": asdict(moved), **errors(measured, there[0], moved)}
    for name, run in runs.items():
        show(name, run)
    if options.out:
        packages = {package: version(package) for package in ("numpy", "scipy")}
        about = {"python": platform.python_version(), **packages}
        result = {"date": date.today().isoformat(), "versions": about, "aims": AIMS, "runs": runs}
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    missed = [
        f"{name}: {key} {run['fit']['other_half'][key]:+.2%}, aim {aim:.0%}"
        for name, run in runs.items()
        for key, aim in AIMS.items()
        if "fit" in run and abs(run["fit"]["other_half"][key]) > aim
    ]
    for line in missed:
        print("missed:", line, file=sys.stderr)
    return bool(missed)


def show(name: str, run: dict[str, Any]) -> None:
    rows = [("by data sheet", run["by_data_sheet"]["errors"])]
    if "fit" in run:
        rows += [("fit, its half", run["fit"]["fitted_half"]), ("fit, other half", run["fit"]["other_half"])]
        rows += [(f"{row['num_blocks']:,} blocks", row["errors"]) for row in run["blocks"]]
    for key in ("transferred_without_links", "transferred"):
        if key in run:
            rows.append((key.replace("_", " "), run[key]["errors"]))
    print(f"{name}: {run['requests']} requests; of means: TTFT, TPOT, E2E; of each request's size: TPOT, E2E")
    for label, off in rows:
        means = "  ".join(f"{off[key]:+8.2%}" for key in ("ttft", "tpot", "e2e"))
        print(f"  {label:<28}{means}    {off['tpot_each']:.2%}  {off['e2e_each']:.2%}")


if __name__ == "__main__":
    sys.exit(main())
