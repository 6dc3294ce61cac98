"""How much faster than real time a measured vLLM run is simulated, by the real scheduler, pool and engine.

    python tests/benchmarks/serving_simulation.py --out tests/benchmarks/results/serving_simulation.json   a minute
    python tests/benchmarks/serving_simulation.py --quick                                      prints, stores nothing

The run on an RTX 4090 (300 requests, 184 s, a pool that is too small: `underload.simulation.VLLM`), with the step times
fitted to it (results/vllm_runs.json). Like decode steps are taken at once, or one by one, and in these those who decode
are carried together, or named each in a work, as for an executor that computes; prompts and answers are named block by
block for the prefix cache, or not. In each round every case runs once; records are compared, so that nobody is
fast by doing something else. The time is of everything from the planned requests to the last record; tokens are those
of prompts and answers.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

from load import other_load

from underload.cache import BlockPool
from underload.decoder import machine
from underload.engine import Engine, serve
from underload.request import StepRecord, UnderloadError, VirtualClock
from underload.scheduling import Continuous, Scheduler
from underload.simulation import CostModelExecutor, OverlapStepTime
from underload.simulation.measured import VLLM
from underload.workload import Measured, Planned, PromptIds, load_trace

NAME = "vllm-rtx4090-llama31-8b"
FITTED = Path(__file__).parent / "results" / "vllm_runs.json"
AIMS = {"real_time": 1000.0, "tokens_per_s": 2e6}
CASES = {  # like steps at once; those who decode together; prefix cache
    "joined, no prefix cache": (True, True, False),
    "joined, prefix cache": (True, True, True),
    "single steps, no prefix cache": (False, True, False),
    "single steps, prefix cache": (False, True, True),
    "single steps of works, no prefix cache": (False, False, False),
    "single steps of works, prefix cache": (False, False, True),
}


def simulated(
    planned: list[Planned], cost: OverlapStepTime, join: bool, carry: bool, caching: bool
) -> tuple[float, list[StepRecord]]:
    """s that it took, and the steps."""
    about = VLLM[NAME]
    gc.collect()
    began = time.perf_counter()
    scheduler = Scheduler(
        BlockPool(about.num_blocks, about.block_size, prefix_caching=caching),
        batching=Continuous(prefill="mixed"),
        max_num_seqs=about.max_num_seqs,
        max_num_batched_tokens=about.max_num_batched_tokens,
    )
    outputs = {str(request.index): request.output_tokens for request in planned}
    engine = Engine(scheduler, CostModelExecutor(cost, output_tokens=outputs), VirtualClock())
    engine.join_steps, engine.carry = join, carry
    serve(engine, planned, PromptIds(32_000))
    return time.perf_counter() - began, engine.steps


def measure(rounds: int, command: str) -> dict[str, Any]:
    run = load_trace(NAME)
    assert isinstance(run, Measured)
    rows = zip(run.queued.tolist(), run.prompt_tokens.tolist(), run.output_tokens.tolist())
    planned = [Planned(queued, prompt, output, index) for index, (queued, prompt, output) in enumerate(rows)]
    fitted = json.loads(FITTED.read_text(encoding="utf-8"))["runs"][NAME]["fit"]["step_time"]
    cost = OverlapStepTime(**fitted)
    tokens = sum(request.prompt_tokens + request.output_tokens for request in planned)
    record: dict[str, float] = {}
    taken: dict[str, list[float]] = {name: [] for name in CASES}
    steps: dict[str, list[StepRecord]] = {}
    with other_load(record):
        for _ in range(rounds):
            for name, how in CASES.items():
                seconds, steps[name] = simulated(planned, cost, *how)
                taken[name].append(seconds)
    for how in ("no prefix cache", "prefix cache"):
        assert steps[f"joined, {how}"] == steps[f"single steps, {how}"] == steps[f"single steps of works, {how}"], how
    lasts = {name: found[-1].start + found[-1].duration for name, found in steps.items()}
    return {
        "what": f"{NAME} simulated by scheduler, pool and engine; medians of the rounds, wall time",
        "command": command,
        "date": date.today().isoformat(),
        "machine": machine(),
        **record,
        "rounds": rounds,
        "requests": len(planned),
        "tokens": tokens,
        "aims": AIMS,
        "rows": [
            {
                "case": name,
                "steps": len(steps[name]),
                "seconds": taken[name],
                "real_time": lasts[name] / median(taken[name]),
                "tokens_per_s": tokens / median(taken[name]),
            }
            for name in CASES
        ],
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="store the measurement as JSON here")
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args(argv)
    try:
        to = f" --out {options.out}" if options.out else ""
        found = measure(1 if options.quick else options.rounds, f"python tests/benchmarks/serving_simulation.py{to}")
    except UnderloadError as error:
        print(f"skipped: {error}", file=sys.stderr)
        return 0
    for row in found["rows"]:
        print(f"{row['case']:40} {row['real_time']:7.0f} x real time  {row['tokens_per_s'] / 1e6:5.2f} M tokens/s")
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
