"""How far the simulator is from the decoder on this machine: one step, one run replayed, and whole loads.

    python tests/benchmarks/simulation_error.py --out tests/benchmarks/results/simulation_error.json    three minutes
    python tests/benchmarks/simulation_error.py --quick                                 seconds; prints, stores nothing

Rounds take turns: in each a round of calibration loads runs on the real engine, then the same requests at 30, 60 and
85 % of what the engine can do. The model of step times is fitted to the calibration rounds alone; all else is judged by
it. See README.md in this folder for how to read the result.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from load import other_load

from underload.cache import BlockPool
from underload.decoder import DecoderExecutor, Model, load_model, machine
from underload.engine import Engine, serve
from underload.request import Clock, ProcessorClock, StepRecord, Timeline, UnderloadError, WallClock
from underload.scheduling import Scheduler
from underload.simulation import FittedStepTime, ServingRun, replay, simulate_serving
from underload.simulation.calibrate import BLOCK_SIZE, StepErrors, design, fit, measure_rounds
from underload.workload import Lengths, Planned, Poisson, PromptIds, UniformTokens, Workload

LOADS = (0.30, 0.60, 0.85)
LIMITS = {"max_num_seqs": 12, "max_num_batched_tokens": 96}
LONGEST = 128
NUM_BLOCKS = 12 * LONGEST // BLOCK_SIZE + 12
LENGTHS = Lengths(UniformTokens(4, 88), UniformTokens(2, 36))
AIMS = {"step": 0.05, "mean": 0.05, "p99": 0.10, "replay": 1e-9}
FOR_P99 = 368  # requests that a two-sided interval of a 99th percentile needs


def new_clock(kind: str) -> Clock:
    return WallClock() if kind == "wall" else ProcessorClock()


def plan(rate: float, requests: int) -> list[Planned]:
    return Workload(Poisson(rate), LENGTHS).plan(7, requests=requests)


def engine_run(
    model: Model, executor: DecoderExecutor, planned: list[Planned], kind: str
) -> tuple[ServingRun, list[bool]]:
    """A load on the real engine, and for each step whether somebody was still there when it ended, so that the next
    one followed at once."""
    follows: list[bool] = []
    engine = Engine(
        Scheduler(BlockPool(NUM_BLOCKS, BLOCK_SIZE), **LIMITS),
        executor,
        new_clock(kind),
        on_step=lambda *_: follows.append(not engine.scheduler.idle),
    )
    ids = PromptIds(model.shape.vocab_size, seed=1)
    prompts = {one.index: ids(one) for one in planned}  # made before time runs
    gc.collect()
    gc.disable()
    try:
        serve(engine, planned, _Ready(prompts))
    finally:
        gc.enable()
    return ServingRun.of(engine), follows


class _Ready(PromptIds):
    """Prompts that are there already."""

    def __init__(self, prompts: dict[int, list[int]]) -> None:
        super().__init__(2)
        self._prompts = prompts

    def __call__(self, planned: Planned) -> list[int]:
        return self._prompts[planned.index]


def latencies(timelines: list[Timeline]) -> dict[str, float]:
    """Means and 99th percentiles of TTFT, TPOT and E2E, in s."""
    found: dict[str, float] = {}
    columns: dict[str, list[float]] = {"ttft": [], "tpot": [], "e2e": []}
    for timeline in timelines:
        times = timeline.token_times
        columns["ttft"].append(times[0] - timeline.arrival)
        columns["e2e"].append(times[-1] - timeline.arrival)
        if len(times) > 1:
            columns["tpot"].append((times[-1] - times[0]) / (len(times) - 1))
    for name, values in columns.items():
        found[f"mean {name}"] = float(np.mean(values))
        if len(values) >= FOR_P99:
            found[f"p99 {name}"] = float(np.percentile(values, 99))
    return found


def until_next(run: ServingRun, follows: list[bool]) -> list[StepRecord]:
    """Records of steps that were followed at once, each lasting until the next one's start."""
    return [
        replace(one, duration=then.start - one.start)
        for one, then, at_once in zip(run.steps, run.steps[1:], follows)
        if at_once
    ]


def replay_error(run: ServingRun) -> float:
    """The largest difference of an instant between a run and its replay, in s."""
    again = replay(run, BlockPool(NUM_BLOCKS, BLOCK_SIZE), **LIMITS)
    return max(
        abs(a - b)
        for before, after in zip(run.timelines, again.timelines, strict=True)
        for a, b in zip(
            [*before.token_times, before.scheduled or 0.0, before.finished or 0.0],
            [*after.token_times, after.scheduled or 0.0, after.finished or 0.0],
            strict=True,
        )
    )


def measure(name: str, rounds: int, requests: int, kind: str) -> dict[str, Any]:
    model = load_model(name)
    executor = DecoderExecutor(model, NUM_BLOCKS, BLOCK_SIZE)
    loads = [design(longest=LONGEST, seed=seed, **LIMITS) for seed in range(rounds)]
    vocabulary = model.shape.vocab_size
    backlog = [replace(one, arrival=0.0) for one in plan(1.0, 10 * LIMITS["max_num_seqs"])]
    engine_run(model, executor, backlog, kind)
    saturated = []
    calibration: list[StepRecord] = []
    runs: dict[float, list[tuple[ServingRun, list[bool]]]] = {load: [] for load in LOADS}
    others: list[dict[str, Any]] = []
    for number in range(rounds):
        others.append({})
        with other_load(others[-1]):
            run, _ = engine_run(model, executor, backlog, kind)
            saturated.append(len(backlog) / (run.steps[-1].start + run.steps[-1].duration))
            (found,) = measure_rounds(
                executor, [loads[number]], vocabulary=vocabulary, num_blocks=NUM_BLOCKS, clock=new_clock(kind)
            )
            calibration += found
            for load in LOADS:
                runs[load].append(engine_run(model, executor, plan(load * saturated[0], requests), kind))
        print(f"round {number + 1} of {rounds}: saturated at {saturated[-1]:.1f} requests/s", flush=True)
    step_time = fit(calibration)
    result: dict[str, Any] = {
        "model": name,
        "path": model.path,
        "clock": kind,
        "limits": LIMITS,
        "requests": requests,
        "rounds": rounds,
        "saturated": [round(rate, 3) for rate in saturated],
        "other_load": [row["other_load"] for row in others],
        "step_time": step_time.as_dict(),
        "step_errors": {"calibration": asdict(StepErrors.of(step_time, calibration))},
        "loads": [],
    }
    seen = [step for both in runs.values() for run, follows in both for step in until_next(run, follows)]
    result["step_errors"]["loads"] = asdict(StepErrors.of(step_time, seen))
    result["replay_error"] = max(replay_error(run) for both in runs.values() for run, _ in both[:2])
    for load, both in runs.items():
        result["loads"].append(compare(load, load * saturated[0], [run for run, _ in both], step_time, requests))
    return result


def compare(
    load: float, rate: float, runs: list[ServingRun], step_time: FittedStepTime, requests: int
) -> dict[str, Any]:
    simulated = latencies(
        simulate_serving(plan(rate, requests), step_time, pool=BlockPool(NUM_BLOCKS, BLOCK_SIZE), **LIMITS).timelines
    )
    measured = [latencies(run.timelines) for run in runs]
    rows = {}
    for name, seconds in simulated.items():
        values = [one[name] for one in measured if name in one]
        middle = float(np.median(values))
        rows[name] = {
            "measured": [round(value, 7) for value in values],
            "median": middle,
            "simulated": seconds,
            "error": seconds / middle - 1,
            # How far the farthest repeat is from the median.
            "spread": max(abs(value / middle - 1) for value in values),
        }
    steps = float(np.mean([len(run.steps) for run in runs]))
    return {"load": load, "rate": rate, "steps": steps, "latencies": rows}


def missed(result: dict[str, Any]) -> list[str]:
    said = []
    if result["replay_error"] > AIMS["replay"]:
        said.append(f"a replay is {result['replay_error']:.2g} s off, aim {AIMS['replay']:g} s")
    if (off := result["step_errors"]["loads"]["median"]) > AIMS["step"]:
        said.append(f"steps are {off:.1%} off, aim {AIMS['step']:.0%}")
    for row in result["loads"]:
        for name, found in row["latencies"].items():
            allowed = max(AIMS[name.split()[0]], found["spread"])
            if abs(found["error"]) > allowed:
                said.append(f"{name} at {row['load']:.0%} is {found['error']:+.1%} off, aim {allowed:.1%}")
    return said


def show(result: dict[str, Any]) -> None:
    print(
        f"{result['model']} ({result['path']}), {result['clock']} time; replays within {result['replay_error']:.1g} s"
    )
    for name, off in result["step_errors"].items():
        print(
            f"steps of {name:<12}{off['steps']:>7,}: median {off['median']:.1%}, mean {off['mean']:.1%}, "
            f"all together {off['total']:+.1%}"
        )
    print(f"{'load':>5}  {'':<10}{'simulated':>11}{'measured':>11}{'error':>8}{'spread':>8}")
    for row in result["loads"]:
        for name, found in row["latencies"].items():
            print(
                f"{row['load']:>5.0%}  {name:<10}{found['simulated'] * 1e3:>8.2f} ms{found['median'] * 1e3:>8.2f} ms"
                f"{found['error']:>+8.1%}{found['spread']:>8.1%}"
            )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="store the measurement as JSON here")
    parser.add_argument("--quick", action="store_true", help="a small run that shows that everything works")
    parser.add_argument("--model", default="shape:bench-s")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=400, help=f"a load; a p99 needs {FOR_P99}")
    parser.add_argument("--clock", choices=("wall", "processor"), default="wall", help="processor: for one thread only")
    options = parser.parse_args(argv)
    if options.clock == "processor" and machine()["threads"] != 1:
        raise UnderloadError("processor time adds up all threads; set OMP_NUM_THREADS=1 and NUMBA_NUM_THREADS=1")
    rounds, requests = (2, 40) if options.quick else (options.rounds, options.requests)
    result = measure(options.model, rounds, requests, options.clock)
    show(result)
    if options.out:
        result = {"date": date.today().isoformat(), "machine": machine(), "aims": AIMS, **result}
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    said = missed(result)
    for line in said:
        print("missed:", line, file=sys.stderr)
    return bool(said) and not options.quick


if __name__ == "__main__":
    sys.exit(main())
