"""What an executor takes of a decode step beside the model: laying out the batch, and making tokens into answers.

    python tests/benchmarks/executor.py [--out FILE] [--quick]

A step's time is taken inside one call of `execute`, and the time inside the model's own call within it is taken off, so
that both belong to the same step on the same machine. It is the time of the thread that does both, so that other load
hardly counts; with one thread it is also the model's. Decode steps only, greedy, sequences of equal length.
"""

import argparse
import json
import os
import statistics
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from underload.cache import BlockPool
from underload.decoder import DecoderExecutor, Model, Weights, load_model, machine
from underload.engine import Engine
from underload.request import Request, SamplingParams, Timeline
from underload.scheduling import Scheduler
from underload.shapes import shape

BLOCK_SIZE = 16


class Stopwatch(DecoderExecutor):
    """Notes what each call of `execute` took, and how much of it was the model's."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.steps: list[tuple[float, float]] = []
        self._inside = 0.0

    def watch(self) -> None:
        self.steps.clear()
        compute = self.model.greedy

        def greedy(batch, kv):
            start = time.thread_time()
            ids = compute(batch, kv)
            self._inside += time.thread_time() - start
            return ids

        self.model.greedy = greedy  # type: ignore[method-assign]

    def execute(self, plan):
        self._inside = 0.0
        start = time.thread_time()
        result = super().execute(plan)
        self.steps.append((time.thread_time() - start, self._inside))
        return result


def measure(model: Model, batch: int, context: int, steps: int) -> dict:
    """Microseconds a step, medians, of `steps` decode steps that begin at `context` tokens."""
    blocks = batch * (-(-(context + steps + 8) // BLOCK_SIZE) + 1)
    executor = Stopwatch(model, blocks, BLOCK_SIZE)
    engine = Engine(
        Scheduler(
            BlockPool(blocks, BLOCK_SIZE, prefix_caching=False),
            max_num_seqs=batch,
            max_num_batched_tokens=batch * context,
            max_model_len=model.shape.max_positions,
        ),
        executor,
    )
    rng = np.random.default_rng(0)
    for index in range(batch):
        prompt = rng.integers(0, min(model.shape.vocab_size, 256), context).tolist()
        params = SamplingParams(max_tokens=steps + 8, temperature=0, ignore_eos=True)
        engine.add(Request(str(index), prompt, params, Timeline(0.0)))
    engine.step()  # the prompts, and what is compiled on first use
    executor.watch()
    try:
        for _ in range(steps + 4):
            engine.step()
    finally:
        del model.greedy  # type: ignore[method-assign]
    if engine.steps[-1].decode_tokens != batch or engine.aborted:
        raise RuntimeError(f"not a run of decode steps: {engine.steps[-1]}, {engine.aborted} failed")
    taken = executor.steps[4:]
    beside = [whole - inside for whole, inside in taken]
    return {
        "batch": batch,
        "context": context,
        "steps": len(taken),
        "execute_us": round(1e6 * statistics.median(whole for whole, _ in taken), 1),
        "model_us": round(1e6 * statistics.median(inside for _, inside in taken), 1),
        "beside_us": round(1e6 * statistics.median(beside), 1),
        "beside_us_least": round(1e6 * min(beside), 1),
        "beside_us_a_sequence": round(1e6 * statistics.median(beside) / batch, 2),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the record (JSON) here; default: standard output")
    parser.add_argument("--quick", action="store_true", help="few steps, small batches")
    args = parser.parse_args(argv)
    small = shape("bench-s")
    models = {"pocket": load_model("pocket", device="cpu", path="fast")}
    if not args.quick:
        models["S"] = Model(small, Weights.random(small, seed=0), path="fast")
    rows = []
    for name, model in models.items():
        for batch, context, steps in [(1, 16, 8), (4, 16, 8)] if args.quick else CASES:
            rows.append({"model": name, "text": model.tokenizer is not None} | measure(model, batch, context, steps))
            print(rows[-1], file=sys.stderr)
    record = {
        "date": datetime.now(UTC).date().isoformat(),
        "command": "python tests/benchmarks/executor.py" + (" --quick" if args.quick else ""),
        "machine": machine(),
        "load_average": round(os.getloadavg()[0], 1),  # of the last minute, as the run began
        "rows": rows,
    }
    text = json.dumps(record, indent=1) + "\n"
    if args.out:
        args.out.write_text(text)
    else:
        print(text, end="")
    return 0


CASES = [(1, 16, 200), (32, 16, 100), (256, 16, 30), (32, 400, 60)]

if __name__ == "__main__":
    sys.exit(main())
