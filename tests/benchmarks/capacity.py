"""The capacity planner: how long an hour's question takes, and whether the real engine sustains what it says.

    python tests/benchmarks/capacity.py --out tests/benchmarks/results/capacity.json          both, about six minutes
    python tests/benchmarks/capacity.py --part hour --out …                                   a minute
    OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 python tests/benchmarks/capacity.py --part engine --clock processor --out …
    python tests/benchmarks/capacity.py --quick                                     prints, stores nothing

A part that is not asked for keeps what the file has of it. See README.md in this folder for how to read the result.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import sys
import time
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from load import other_load
from simulation_error import LENGTHS, LIMITS, LONGEST, NUM_BLOCKS, engine_run, new_clock

from underload import metrics
from underload.cache import BlockPool
from underload.decoder import DecoderExecutor, Model, load_model, machine
from underload.metrics import Slo, mean_interval
from underload.planning import System, capacity
from underload.planning.loads import Source, source_of
from underload.planning.probe import Question, stretch_of
from underload.request import StepRecord, UnderloadError
from underload.scheduling import Scheduler
from underload.shapes import device, shape
from underload.simulation import EngineReplica, RooflineStepTime, StepTime
from underload.simulation.calibrate import BLOCK_SIZE, StepErrors, design, fit, measure_rounds
from underload.workload import Poisson, Workload, load_trace

HOUR = {"shape": "llama-3-8b", "device": "h100-sxm", "overhead": 0.002}
HOUR_SLO = Slo(ttft=1.0, tpot=0.05)
AIMS = {"hour_seconds": 60.0, "engine": 0.05}

#: Of the engine's part: which term, the share of requests that must keep to it, and the load (of the saturated rate, in
#: the simulation) at which its limit lies.
SLOS = {"tpot": ("tpot", 0.95, 0.60), "ttft": ("ttft", 0.95, 0.75)}
#: Rates at which the engine runs, of what the planner says after the first calibration.
AROUND = (0.92, 1.0, 1.08)


# ---- an hour of a trace ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HourScheduler:
    """Memory as 90 % of the device leaves beside the weights."""

    num_blocks: int

    def __call__(self) -> Scheduler:
        # The trace has lengths and no text: no prompt can be known from another, and looking costs half of the time.
        return Scheduler(BlockPool(self.num_blocks, BLOCK_SIZE, prefix_caching=False))


def hour(requests: int | None, runs: int, processes: int) -> dict[str, Any]:
    model, gpu = shape(str(HOUR["shape"])), device(str(HOUR["device"]))
    step_time = RooflineStepTime(model, gpu, overhead=float(HOUR["overhead"]))
    room = 0.9 * gpu.memory - model.num_parameters * step_time.weight_bytes
    blocks = int(room // (model.kv_bytes_per_token(step_time.kv_bytes) * BLOCK_SIZE))
    trace = load_trace("azure-conv", stand_in=True)
    system = System(EngineReplica(step_time, HourScheduler(blocks)))
    record: dict[str, Any] = {}
    busy = _seconds_of_processes()
    with other_load(record, own=_seconds_of_processes):
        began = time.perf_counter()
        found = capacity(trace, HOUR_SLO, system, requests=requests, runs=runs, tolerance=0.05, processes=processes)
        seconds = time.perf_counter() - began
    return {
        "trace": trace.name,
        "system": {**HOUR, "num_blocks": blocks, "block_size": BLOCK_SIZE},
        "processes": processes,
        "seconds": seconds,
        "processor_seconds": _seconds_of_processes() - busy,
        **record,
        "answer": found.as_dict(),
    }


def _seconds_of_processes() -> float:
    """s of processor time of this process and of those that it started and that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def show_hour(found: dict[str, Any]) -> None:
    answer = found["answer"]
    print(
        f"{found['trace']}, {answer['requests']:,} requests: {found['seconds']:.1f} s, {found['processes']} processes, "
        f"{found['processor_seconds']:.0f} s of processors, {len(answer['probes'])} runs of the search"
    )
    around = answer["interval_per_s"] or [math.nan, math.nan]
    print(
        f"  capacity {answer['capacity_per_s']:.4g}/s ({around[0]:.4g} to {around[1]:.4g}), {answer['scale']:.3g} "
        f"times its own rate; binds: {(answer['binds'] or {}).get('term')}, {(answer['binds'] or {}).get('limit')}"
    )


# ---- the real engine -------------------------------------------------------------------------------------------------


def engine_scheduler() -> Scheduler:
    return Scheduler(BlockPool(NUM_BLOCKS, BLOCK_SIZE), **LIMITS)


def system_of(step_time: StepTime) -> System:
    return System(EngineReplica(step_time, engine_scheduler))


class Engine:
    """The decoder behind the engine, and loads for it."""

    def __init__(self, name: str, requests: int, kind: str) -> None:
        self.model: Model = load_model(name)
        self.executor = DecoderExecutor(self.model, NUM_BLOCKS, BLOCK_SIZE)
        self.kind = kind
        self.source: Source = source_of(Workload(Poisson(1.0), LENGTHS), requests=requests)

    def calibrate(self, seed: int) -> list[StepRecord]:
        load = design(longest=LONGEST, seed=seed, **LIMITS)
        vocabulary = self.model.shape.vocab_size
        (found,) = measure_rounds(
            self.executor, [load], vocabulary=vocabulary, num_blocks=NUM_BLOCKS, clock=new_clock(self.kind)
        )
        return found

    def stretch(self, question: Question, rate: float, run: int) -> float:
        """Of a run of the real engine, as `planning.probe` has it."""
        planned = self.source.at(self.source.base(run), rate, run)
        served, _ = engine_run(self.model, self.executor, planned, self.kind)
        start, last = question.window(served.timelines)
        kept = [line for line in served.timelines if start <= line.arrival <= last]
        return stretch_of(kept, question.slo, question.attainment)


def limits_of_slos(engine: Engine, step_time: StepTime) -> dict[str, Question]:
    """Each SLO with the limit that the simulation keeps to at its load, to two digits."""
    from underload.planning.probe import saturated_rate

    system = system_of(step_time)
    saturated = saturated_rate(engine.source, system)
    made = {}
    for name, (term, share, load) in SLOS.items():
        run = system.run(engine.source.at(engine.source.base(0), load * saturated, 0))
        limit = metrics.percentile(map(getattr(metrics, term), run.timelines), 100 * share)
        assert limit is not None
        made[name] = Question(engine.source, Slo(**{term: float(f"{limit:.2g}")}), system, share, 0.1)
    return made


def planned_crossings(engine: Engine, question: Question, step_time: StepTime, rounds: int, requests: int) -> Any:
    return capacity(
        Workload(Poisson(1.0), LENGTHS),
        question.slo,
        system_of(step_time),
        attainment=question.attainment,
        requests=requests,
        runs=rounds,
        tolerance=0.01,
    )


def read_crossing(points: list[tuple[float, float]]) -> tuple[float, bool]:
    """Where the line through the logarithms of (rate, stretch) passes a stretch of 1, between the points next to it;
    and whether it lies between two, or is continued beyond them."""
    pairs = list(pairwise(points))
    for (low, below), (high, above) in pairs:
        if below <= 1 < above:
            return low * (high / low) ** (-math.log(below) / math.log(above / below)), True
    (low, below), (high, above) = pairs[0] if points[0][1] > 1 else pairs[-1]
    slope = max(math.log(above / below) / math.log(high / low), 1.0)
    nearest, stretch = points[0] if points[0][1] > 1 else points[-1]
    return nearest * stretch ** (-1 / slope), False


def real(name: str, rounds: int, requests: int, kind: str) -> dict[str, Any]:
    engine = Engine(name, requests, kind)
    engine.calibrate(1000)  # warms up
    records = engine.calibrate(0)
    questions = limits_of_slos(engine, fit(records))
    guesses = {
        key: planned_crossings(engine, question, fit(records), 2, requests).rate for key, question in questions.items()
    }
    measured: dict[str, list[list[tuple[float, float]]]] = {key: [] for key in questions}
    others: list[dict[str, Any]] = []
    for run in range(rounds):
        others.append({})
        with other_load(others[-1]):
            if run:
                records += engine.calibrate(run)
            for key, question in questions.items():
                rates = [share * guesses[key] for share in AROUND]
                measured[key].append([(rate, engine.stretch(question, rate, run)) for rate in rates])
        print(f"round {run + 1} of {rounds}", flush=True)
    step_time = fit(records)
    found: dict[str, Any] = {
        "model": name,
        "path": engine.model.path,
        "clock": kind,
        "limits": LIMITS,
        "requests": requests,
        "rounds": rounds,
        "other_load": [row["other_load"] for row in others],
        "step_errors": vars(StepErrors.of(step_time, records)),
        "slos": {},
    }
    for key, question in questions.items():
        answer = planned_crossings(engine, question, step_time, rounds, requests)
        crossed = [read_crossing(points) for points in measured[key]]
        rates = [rate for rate, _ in crossed]
        ratios = [planned / rate for planned, rate in zip(answer.crossings, rates, strict=True)]
        error = median(ratios) - 1
        around = mean_interval(rates)
        found["slos"][key] = {
            "slo_s": question.slo.terms,
            "attainment": question.attainment,
            "planned": answer.as_dict() | {"probes": None},
            "engine_per_s": around.mean,
            "engine_interval_per_s": [around.low, around.high],
            "engine_crossings_per_s": rates,
            "between_two_rates": [inside for _, inside in crossed],
            "engine_stretches": measured[key],
            "ratios": ratios,
            "error": error,
            # How far the farthest round is from the median: planner and engine had the same requests in each.
            "spread": max(abs(ratio / (1 + error) - 1) for ratio in ratios),
        }
    return found


def show_real(found: dict[str, Any]) -> None:
    print(f"{found['model']} ({found['path']}), {found['clock']} time, {found['rounds']} rounds")
    for row in found["slos"].values():
        ((term, limit),) = row["slo_s"].items()
        low, high = row["planned"]["interval_per_s"] or (math.nan, math.nan)
        least, most = row["engine_interval_per_s"]
        print(
            f"  {row['attainment']:.0%} of {term.upper()} ≤ {limit * 1e3:.3g} ms: planned "
            f"{row['planned']['capacity_per_s']:.4g}/s ({low:.4g} to {high:.4g}), sustained "
            f"{row['engine_per_s']:.4g}/s ({least:.4g} to {most:.4g}); {row['error']:+.1%}, spread {row['spread']:.1%}"
        )


def missed(found: dict[str, Any]) -> list[str]:
    said = []
    if (one := found.get("hour")) and one["seconds"] > AIMS["hour_seconds"]:
        said.append(f"the hour took {one['seconds']:.0f} s, aim {AIMS['hour_seconds']:.0f} s")
    for name, row in found.get("engine", {}).get("slos", {}).items():
        allowed = max(AIMS["engine"], row["spread"])
        if abs(row["error"]) > allowed:
            said.append(f"the capacity by {name} is {row['error']:+.1%} off, aim {allowed:.1%}")
    return said


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="store the measurement as JSON here")
    parser.add_argument("--part", choices=("hour", "engine"), action="append", help="one of them alone")
    parser.add_argument("--quick", action="store_true", help="a small run that shows that everything works")
    parser.add_argument("--model", default="shape:bench-s")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=360, help="of a run of the engine")
    parser.add_argument("--processes", type=int, default=2, help="of the hour's question")
    parser.add_argument("--clock", choices=("wall", "processor"), default="wall", help="processor: for one thread only")
    options = parser.parse_args(argv)
    parts = options.part or ["hour", "engine"]
    if "engine" in parts and options.clock == "processor" and machine()["threads"] != 1:
        raise UnderloadError("processor time adds up all threads; set OMP_NUM_THREADS=1 and NUMBA_NUM_THREADS=1")
    rounds, requests = (2, 60) if options.quick else (options.rounds, options.requests)
    found: dict[str, Any] = {}
    if options.out and options.out.exists():
        found = json.loads(options.out.read_text(encoding="utf-8"))
    about = {"date": date.today().isoformat(), "machine": machine()}
    if "hour" in parts:
        found["hour"] = about | hour(400 if options.quick else None, 2 if options.quick else 4, options.processes)
        show_hour(found["hour"])
    if "engine" in parts:
        found["engine"] = about | real(options.model, rounds, requests, options.clock)
        show_real(found["engine"])
    if options.out:
        found = {"aims": AIMS, **found}
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    said = missed(found)
    for line in said:
        print("missed:", line, file=sys.stderr)
    return bool(said) and not options.quick


if __name__ == "__main__":
    sys.exit(main())
