"""How long the scheduler, the pool and the loop take for a step, and how much faster than a clock a trace is simulated.

    python tests/benchmarks/scheduling.py --out tests/benchmarks/results/scheduling.json
    python tests/benchmarks/scheduling.py --quick          seconds

See README.md in this folder.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from underload.cache import BlockPool
from underload.engine import Engine, serve
from underload.request import Request, SamplingParams, Timeline, VirtualClock
from underload.scheduling import Plan, Scheduler
from underload.shapes import device, shape
from underload.simulation import CostModelExecutor, LinearStepTime, RooflineStepTime
from underload.workload import PromptIds, load_trace

RUNNING = (16, 32, 64, 256)  # sequences that decode
BLOCK = 16
PROMPT = 200
WAITING = (0, 20_000)
AIMS = {"decide_us_a_sequence": 2.0, "step_us_at_256": 500.0}


def decoding(count: int, steps: int, *, waiting: int = 0, carry: bool = False) -> Engine:
    """An engine with `count` sequences past their prompts, blocks for `steps` more tokens of each, and a queue."""
    blocks = count * (-(-(PROMPT + steps) // BLOCK) + 4)
    scheduler = Scheduler(BlockPool(blocks, BLOCK), max_num_seqs=count, max_num_batched_tokens=8192)
    engine = Engine(scheduler, CostModelExecutor(LinearStepTime(0.01, 1e-5)), VirtualClock())
    engine.join_steps, engine.carry = False, carry  # what one step costs
    for place in range(count + waiting):
        params = SamplingParams(max_tokens=steps + 50)
        engine.add(Request(str(place), [place] * (PROMPT if place < count else 1), params, Timeline(0.0)))
    while any(sequence.num_computed < PROMPT for sequence in scheduler.running) or len(scheduler.running) < count:
        engine.step()
    return engine


def parts(count: int, steps: int, repeats: int, *, waiting: int = 0, carry: bool = False) -> dict[str, Any]:
    """Microseconds of a step and of what it is made of; of this process's own time on a core."""
    now = time.process_time
    found: dict[str, list[float]] = {name: [] for name in ("schedule", "execute", "commit", "step")}
    for _ in range(repeats):
        engine = decoding(count, 3 * steps, waiting=waiting, carry=carry)
        scheduler, executor = engine.scheduler, engine.executor
        sums = dict.fromkeys(found, 0.0)
        gc.collect()
        for _ in range(steps):
            start = now()
            plan = scheduler.schedule(0.0, carry=carry)
            planned = now()
            assert isinstance(plan, Plan)
            result = executor.execute(plan)
            computed = now()
            scheduler.commit(plan, result, 0.0)
            ended = now()
            sums["schedule"] += planned - start
            sums["execute"] += computed - planned
            sums["commit"] += ended - computed
        start = now()
        for _ in range(steps):
            engine.step()
        sums["step"] = now() - start
        assert len(scheduler.running) == count
        for name, seconds in sums.items():
            found[name].append(seconds / steps * 1e6)
    middle = {name: median(each) for name, each in found.items()}
    return {
        "running": count,
        "waiting": waiting,
        **{f"{name}_us": round(value, 2) for name, value in middle.items()},
        "steps_per_s": round(1e6 / middle["step"], 1),
        "decide_us_a_sequence": round((middle["schedule"] + middle["commit"]) / count, 3),
        "all": {name: [round(value, 2) for value in each] for name, each in found.items()},
    }


def replay(most: int) -> dict[str, Any]:
    """The first requests of a trace, at their times, on a model of a card: seconds simulated in a second."""
    record = load_trace("azure-conv", most=most, stand_in=True)
    plan = record.plan()
    llama, h100 = shape("llama-3-8b"), device("h100-sxm")
    scheduler = Scheduler(BlockPool(25_000, BLOCK), max_num_seqs=256, max_num_batched_tokens=2048)
    outputs = {str(planned.index): planned.output_tokens for planned in plan}
    executor = CostModelExecutor(RooflineStepTime(llama, h100), output_tokens=outputs, vocabulary=llama.vocab_size)
    engine = Engine(scheduler, executor, VirtualClock())
    start = time.process_time()
    finished = serve(engine, plan, PromptIds(llama.vocab_size, seed=0))
    seconds = time.process_time() - start
    tokens = sum(step.prefill_tokens + step.decode_tokens for step in engine.steps)
    return {
        "trace": record.name,
        "requests": len(finished),
        "simulated_s": round(engine.clock.now(), 1),
        "seconds": round(seconds, 2),
        "times_real_time": round(engine.clock.now() / seconds, 1),
        "tokens_per_s": round(tokens / seconds),
        "output_tokens_per_s": round(sum(one.timeline.output_tokens for one in finished) / seconds),
        "steps": len(engine.steps),
        "steps_per_s": round(len(engine.steps) / seconds),
        "mean_batch": round(sum(step.batch_size for step in engine.steps) / len(engine.steps), 1),
        "failed": sum(one.error is not None for one in finished),
    }


def measure(*, quick: bool = False) -> dict[str, Any]:
    steps, repeats = (60, 1) if quick else (200, 7)
    return {
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "date": datetime.now(UTC).date().isoformat(),
        },
        "aims": AIMS,
        "steps": [parts(count, steps, repeats) for count in RUNNING],
        "carried": [parts(count, steps, repeats, carry=True) for count in RUNNING],
        "queue": [parts(16, steps, repeats, waiting=waiting) for waiting in WAITING],
        "replay": replay(100 if quick else 2000),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few steps, once")
    parser.add_argument("--out", type=Path, help="store the result as JSON")
    arguments = parser.parse_args()
    found = measure(quick=arguments.quick)
    for row in [*found["steps"], *found["carried"], *found["queue"]]:
        print({name: value for name, value in row.items() if name != "all"})
    print(found["replay"])
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
