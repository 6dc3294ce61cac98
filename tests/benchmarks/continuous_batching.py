"""Batches on the real decoder, static and continuous: the measurements behind "Continuous batching".

    python tests/benchmarks/continuous_batching.py --out chapters/data/continuous_batching.json      about ten minutes
    python tests/benchmarks/continuous_batching.py --out chapters/data/continuous_batching.json --only chunks
    python tests/benchmarks/continuous_batching.py --quick                    under a minute; stores nothing

Pocket behind the library's own engine, one thread. Four parts, each run of which says how busy others kept the machine:

    rows     everybody waits from the start; throughput against the rows of the batch, for a static and a continuous
             one, over several draws of the lengths. Counted while somebody waits.
    load     requests arrive; E2E against the rate, for batches of whoever waits (greedy, 16 rows) and continuous ones
    chunks   eight sequences decode, and a long prompt joins: its TTFT and their longest gap, by the tokens of a step
    joins    forty sequences decode, and a long request comes: it joins at once, when few are left, or when all are done

and one on the virtual clock, which comes out the same on any machine:

    pool     ShareGPT's lengths on a pool that is too small for them, under each rule of admission and two of order;
             step times by the roofline of Llama-3-8B on an H100
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from load import other_load
from step_time import store

from underload.cache import BlockPool
from underload.decoder import DecoderExecutor, Model, load_model, machine
from underload.engine import Engine, serve
from underload.metrics import e2e, longest_stall, percentile, queue_time, ttft
from underload.request import Request, SamplingParams, Sequence, StepRecord, Timeline
from underload.scheduling import (
    Batching,
    Continuous,
    FitsNow,
    Greedy,
    Noisy,
    Oracle,
    PredictedPeak,
    ReserveAll,
    Scheduler,
    ShortestFirst,
    Static,
    Watermark,
)
from underload.shapes import DEVICES, shape
from underload.simulation import RooflineStepTime, simulate_serving
from underload.simulation.calibrate import StepErrors, fit, periods
from underload.workload import GeometricTokens, Lengths, Planned, Poisson, PromptIds, Streams, Workload, load_trace

PARTS = ("rows", "load", "chunks", "joins", "pool")

LOAD = {"prompt": 16, "answer": 40, "block_size": 16}  # answers geometric, the mean
ROWS = (1, 2, 4, 8, 16, 32)
SEEDS = 5
CAP = 16  # rows under load
SHARES = {"continuous": (0.2, 0.4, 0.55, 0.7, 0.85), "greedy": (0.1, 0.16, 0.22)}  # of the continuous capacity
REQUESTS, WARMUP, REPEATS = 800, 100, 3  # under load; the first are left out
CHUNK = {"decoding": 8, "prompt": 512, "answer": 700, "at": (60, 260, 460), "own": 16}
BUDGETS = (16, 32, 64, 128, 256, 1024)
ROUNDS = 8
JOIN = {"busy": 40, "answer": 30, "own": 16, "prompt": 200, "long": 200, "slots": 64, "few": 20}
JOINS = 12  # draws
POOL = {"requests": 1200, "blocks": 500, "block_size": 16, "limit": 1024, "rate": 12.0, "warmup": 200, "seed": 4}

GREEDY = SamplingParams(temperature=0)  # drawing at random costs time by the row, as argmax does not
BLOCKS = 4000  # of 16 tokens: more than any of it needs


def lengths(seed: int, count: int) -> list[int]:
    """Tokens of so many answers."""
    return [int(m) for m in GeometricTokens(LOAD["answer"]).draw(np.random.default_rng(seed), count)]


def batching_of(kind: str, rows: int) -> Batching:
    return {"static": Static(rows), "greedy": Greedy(rows), "continuous": Continuous()}[kind]


def engine_of(model: Model, scheduler: Scheduler, **more: Any) -> Engine:
    return Engine(scheduler, DecoderExecutor(model, scheduler.pool.num_blocks, LOAD["block_size"]), **more)


def line_through(runs: list[list[StepRecord]]) -> list[float]:
    """o and t of o + t x tokens, in s: the line through the mean step of each run, by least squares of relative
    errors. Means, because it is to say what many steps take, and runs of small batches have many more of them."""
    seconds = np.array([mean_of([step.duration for step in steps]) for steps in runs])
    tokens = np.array([mean_of([step.num_tokens for step in steps]) for steps in runs])
    (o, t), *_ = np.linalg.lstsq(np.stack([1 / seconds, tokens / seconds], axis=1), np.ones(len(runs)), rcond=None)
    return [float(f"{value:.5g}") for value in (o, t)]


def some(runs: list[list[StepRecord]], most: int = 600) -> list[StepRecord]:
    """Some of the steps of each run, for a model of all sizes."""
    rng = np.random.default_rng(0)
    return [steps[i] for steps in runs for i in sorted(rng.permutation(len(steps))[:most])]


# ---- rows --------------------------------------------------------------------------------------------------------


def backlog(answers: list[int]) -> list[Planned]:
    """Everybody is there from the start."""
    return [Planned(0.0, LOAD["prompt"], tokens, index, sampling=GREEDY) for index, tokens in enumerate(answers)]


def saturated(engine: Engine, answers: list[int], seed: int) -> float:
    """Output tokens/s while somebody waits."""
    serve(engine, backlog(answers), PromptIds(range(5, 1024), seed))
    steps = [step for step in periods(engine.steps) if step.queue_length]
    return sum(step.logit_rows for step in steps) / sum(step.duration for step in steps)


def measure_rows(model: Model, quick: bool) -> tuple[list[dict[str, Any]], list[list[StepRecord]]]:
    found, runs = [], []
    for rows in (4,) if quick else ROWS:
        for kind in ("static", "continuous"):
            each, load = [], {}
            with other_load(load):
                for seed in range(1 if quick else SEEDS):
                    scheduler = Scheduler(BlockPool(BLOCKS, 16), batching=batching_of(kind, rows), max_num_seqs=rows)
                    engine = engine_of(model, scheduler)
                    each.append(saturated(engine, lengths(seed, 24 * rows), seed))
                    runs.append(periods(engine.steps))
            found.append({"kind": kind, "rows": rows, "tokens_per_second": [round(x, 1) for x in each], **load})
            print(f"{kind}, {rows} rows: {mean_of(each):,.0f} tokens/s, others {load['other_load']}", flush=True)
    return found, runs


def mean_of(values: list[float]) -> float:
    return sum(values) / len(values)


# ---- load --------------------------------------------------------------------------------------------------------


def arriving(rate: float, requests: int, seed: int) -> list[Planned]:
    law = Lengths(LOAD["prompt"], GeometricTokens(LOAD["answer"]))
    return Workload(Poisson(rate), law, sampling=GREEDY).plan(seed, requests=requests)


def measure_load(model: Model, capacity: float, quick: bool) -> list[dict[str, Any]]:
    """capacity: requests/s that the continuous batch carries."""
    found = []
    for kind, shares in SHARES.items():
        for share in (0.2,) if quick else shares:
            rate, load = round(share * capacity, 1), {}
            plan = arriving(rate, 150 if quick else REQUESTS, seed=7)
            means, tails = [], []
            with other_load(load):
                for _ in range(1 if quick else REPEATS):
                    scheduler = Scheduler(BlockPool(BLOCKS, 16), batching=batching_of(kind, CAP), max_num_seqs=CAP)
                    done = serve(engine_of(model, scheduler), plan, PromptIds(range(5, 1024), seed=7))
                    late = [r for r in done if int(r.request_id) >= (30 if quick else WARMUP)]
                    times = [e2e(request.timeline) for request in late]
                    means.append(round(mean_of(times), 6))
                    tails.append(round(percentile(times, 99), 6))
            found.append(
                {"kind": kind, "rate": rate, "requests": len(late), "e2e_mean": means, "e2e_p99": tails, **load}
            )
            print(f"{kind}, {rate}/s: E2E {1e3 * median(means):.1f} ms, others {load['other_load']}", flush=True)
    return found


# ---- chunks ------------------------------------------------------------------------------------------------------


def interrupted(engine: Engine, seed: int = 0) -> tuple[list[float], list[float], float]:
    """Eight sequences decode, and at each of the steps in CHUNK["at"] a long prompt comes, for one token.

    Returns:
        TTFT of each long prompt, the longest gap between two tokens of the eight meanwhile, and tokens/s of all.
    """
    ids, begin = PromptIds(range(5, 1024), seed), engine.clock.now()
    eight = [
        Request(
            f"d{i}", ids(Planned(0.0, CHUNK["own"], 1, i)), of_length(CHUNK["answer"]), Timeline(engine.clock.now())
        )
        for i in range(CHUNK["decoding"])
    ]
    long: list[Request] = []

    def join(plan: Any, result: Any, record: Any) -> None:
        if len(engine.steps) in CHUNK["at"]:
            index = 1000 + len(long)
            prompt = ids(Planned(0.0, CHUNK["prompt"], 1, index))
            long.append(Request(f"p{index}", prompt, of_length(1), Timeline(engine.clock.now())))
            engine.add(long[-1])

    engine.on_step = join
    for request in eight:
        engine.add(request)
    engine.run()
    firsts, gaps = [], []
    for request in long:
        line = request.timeline
        firsts.append(ttft(line))
        gaps.append(max(gap_around(other.timeline, line.arrival, line.token_times[0]) for other in eight))
    tokens = sum(step.prefill_tokens + step.decode_tokens for step in engine.steps)
    return firsts, gaps, tokens / (engine.clock.now() - begin)


def gap_around(line: Timeline, begin: float, end: float) -> float:
    """The longest gap between two tokens, of those gaps that touch the time from `begin` to `end`."""
    times = line.token_times
    return max(b - a for a, b in itertools.pairwise(times) if b > begin and a < end)


def of_length(tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0)


def chunk_setting(name: str) -> tuple[Batching, int]:
    """`prefill-first`, or the tokens of a step."""
    return (Continuous(prefill="prefill-first"), 1024) if name == "prefill-first" else (Continuous(), int(name))


def measure_chunks(model: Model, quick: bool) -> tuple[list[dict[str, Any]], list[list[StepRecord]]]:
    names = [str(budget) for budget in BUDGETS] + ["prefill-first"]
    taken: dict[str, list[tuple[list[float], list[float], float]]] = {name: [] for name in names}
    runs, load = [], {}
    with other_load(load):
        for round_ in range(1 if quick else ROUNDS):  # in turn, so that a machine that drifts drifts under all alike
            for name in ("64",) if quick else names:
                batching, budget = chunk_setting(name)
                scheduler = Scheduler(
                    BlockPool(1000, 16, prefix_caching=False), batching=batching, max_num_batched_tokens=budget
                )
                engine = engine_of(model, scheduler)
                taken[name].append(interrupted(engine, round_))
                runs.append(periods(engine.steps))
    found = []
    for name in names:
        if taken[name]:
            firsts = [x for one, _, _ in taken[name] for x in one]
            gaps = [x for _, one, _ in taken[name] for x in one]
            row = {
                "budget": name,
                "prompts": len(firsts),
                "ttft": quartiles(firsts),
                "longest_gap": quartiles(gaps),
                "tokens_per_second": round(median(x for _, _, x in taken[name]), 1),
                **load,
            }
            found.append(row)
            print(f"{name}: TTFT {1e3 * row['ttft'][1]:.1f} ms, gap {1e3 * row['longest_gap'][1]:.2f} ms", flush=True)
    return found, runs


def quartiles(values: list[float]) -> list[float]:
    return [round(float(x), 6) for x in np.percentile(values, [25, 50, 75])]


# ---- joins -------------------------------------------------------------------------------------------------------


class WhenFew:
    """Long prompts are admitted while at most `busy` sequences hold blocks; all others at once."""

    grows_only_stricter = True

    def __init__(self, busy: int, long: int) -> None:
        self.busy, self.long = busy, long

    def admits(self, sequence: Sequence, holding: Any, pool: Any) -> bool:
        return sequence.prompt_len < self.long or len(holding) <= self.busy


def forty_and_one(engine: Engine, seed: int) -> dict[str, float]:
    """Forty decode; after their first step comes a long request. Times in s from then on."""
    rng, ids = np.random.default_rng(seed), PromptIds(range(5, 1024), seed)
    answers = [int(m) + 1 for m in GeometricTokens(JOIN["answer"]).draw(rng, JOIN["busy"])]
    forty = []
    for index, tokens in enumerate(answers):
        prompt = ids(Planned(0.0, JOIN["own"], 1, index))
        forty.append(Request(f"s{index}", prompt, of_length(tokens), Timeline(engine.clock.now())))
        engine.add(forty[-1])
    late: list[Request] = []

    def join(plan: Any, result: Any, record: Any) -> None:
        if not late:
            prompt = ids(Planned(0.0, JOIN["prompt"], 1, 1000))
            late.append(Request("long", prompt, of_length(JOIN["long"]), Timeline(engine.clock.now())))
            engine.add(late[0])

    engine.on_step = join
    engine.run()
    begin = late[0].timeline.arrival
    lines = [request.timeline for request in forty]
    end = max(line.token_times[-1] for line in [*lines, late[0].timeline])
    return {
        "long": late[0].timeline.token_times[-1] - begin,
        "forty": mean_of([line.token_times[-1] - begin for line in lines]),
        "gap": max(gap_around(line, begin, end) for line in lines if len(line.token_times) > 1),
        "tokens_per_second": (sum(answers) - len(answers) + JOIN["long"]) / (end - begin),
    }


JOIN_RULES = {"now": JOIN["slots"], "few": JOIN["few"], "drained": 0}


def measure_joins(model: Model, quick: bool) -> tuple[list[dict[str, Any]], list[list[StepRecord]]]:
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in JOIN_RULES}
    runs, load = [], {}
    with other_load(load):
        for seed in range(1 if quick else JOINS):
            for name, busy in JOIN_RULES.items():
                scheduler = Scheduler(
                    BlockPool(1000, 16, prefix_caching=False),
                    admission=WhenFew(busy, JOIN["prompt"]),
                    max_num_seqs=JOIN["slots"],
                )
                engine = engine_of(model, scheduler)
                taken[name].append(forty_and_one(engine, seed))
                runs.append(periods(engine.steps))
    found = []
    for name, draws in taken.items():
        row: dict[str, Any] = {"rule": name, "draws": len(draws), **load}
        for key in draws[0]:
            row[key] = [round(draw[key], 6) for draw in draws]
        found.append(row)
        print(
            f"{name}: long {1e3 * mean_of(row['long']):.1f} ms, forty {1e3 * mean_of(row['forty']):.1f} ms", flush=True
        )
    return found, runs


# ---- pool --------------------------------------------------------------------------------------------------------


def conversations(requests: int) -> list[Planned]:
    """ShareGPT's pairs within the limit that the server sets, arriving at random."""
    trace = load_trace("sharegpt-lengths", stand_in=True)
    fits = [
        (int(p), int(m))
        for p, m in zip(trace.prompt_tokens, trace.output_tokens, strict=True)
        if max(p, m) <= POOL["limit"]
    ]
    streams = Streams(POOL["seed"])
    picked = streams.fresh("lengths").integers(0, len(fits), requests)
    arrivals = Poisson(POOL["rate"]).first(streams.fresh("arrivals"), requests)
    return [
        Planned(float(at), *fits[pair], index) for index, (at, pair) in enumerate(zip(arrivals, picked, strict=True))
    ]


def pool_rules(answers: dict[str, int]) -> dict[str, dict[str, Any]]:
    """By name: what a scheduler is given."""
    return {
        "fits-now": {"admission": FitsNow()},
        "reserve-all": {"admission": ReserveAll()},
        "watermark-1": {"admission": Watermark(0.01)},
        "watermark-10": {"admission": Watermark(0.10)},
        "peak-oracle": {"admission": PredictedPeak(Oracle(answers))},
        "peak-noisy": {"admission": PredictedPeak(Noisy(answers, 0.7))},
        "shortest-oracle": {
            "admission": PredictedPeak(Oracle(answers)),
            "order": ShortestFirst(Oracle(answers), aging=10.0),
        },
        "shortest-guessed": {
            "admission": PredictedPeak(Oracle(answers)),
            "order": ShortestFirst(Noisy(answers, 0.7), aging=10.0),
        },
        "shortest-noisy": {
            "admission": PredictedPeak(Noisy(answers, 0.7)),
            "order": ShortestFirst(Noisy(answers, 0.7), aging=10.0),
        },
        "shortest-hasty": {
            "admission": PredictedPeak(Oracle(answers)),
            "order": ShortestFirst(Oracle(answers), aging=1000.0),
        },
    }


def through_pool(name: str, load: list[Planned]) -> dict[str, Any]:
    """One rule, on the virtual clock."""
    answers = {str(planned.index): planned.output_tokens for planned in load}
    run = simulate_serving(
        load,
        RooflineStepTime(shape("llama-3-8b"), DEVICES["h100-sxm"]),
        pool=BlockPool(POOL["blocks"], POOL["block_size"]),
        max_tokens=POOL["limit"],
        **pool_rules(answers)[name],
    )
    lines = run.timelines[POOL["warmup"] :]
    stalls = [longest_stall(line) for line in lines if line.output_tokens > 1]
    first, queued = [ttft(line) for line in lines], [queue_time(line) for line in lines]
    crowded = [step for step in run.steps if step.queue_length]
    computed, end = sum(step.prefill_tokens for step in run.steps), run.steps[-1].start + run.steps[-1].duration
    return {
        "rule": name,
        "preempted": sum(line.preemptions for line in run.timelines),
        "computed_again": round(computed / sum(planned.prompt_tokens for planned in load) - 1, 4),
        "batch_with_queue": round(mean_of([step.batch_size for step in crowded]), 1) if crowded else None,
        "tokens_per_second": round(sum(answers.values()) / end, 1),
        "ttft_mean": round(mean_of(first), 4),
        "ttft_p99": round(percentile(first, 99), 4),
        "queue_max": round(max(queued), 4),
        "e2e_mean": round(mean_of([e2e(line) for line in lines]), 4),
        "stall_p50": round(percentile(stalls, 50), 4),
        "stall_p99": round(percentile(stalls, 99), 4),
    }


def measure_pool(quick: bool) -> list[dict[str, Any]]:
    load = conversations(POOL["warmup"] + 100 if quick else POOL["requests"])
    found = []
    for name in ("fits-now", "reserve-all") if quick else pool_rules({}):
        found.append(through_pool(name, load))
        print(found[-1], flush=True)
    return found


# ------------------------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="store the measurement as JSON here; other parts in it are kept")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="these parts only")
    parser.add_argument("--quick", action="store_true", help="a small run that shows that everything works")
    options = parser.parse_args(argv)
    found: dict[str, Any] = {
        "what": "pocket in static and continuous batches: throughput in tokens/s, times in s; and a pool, simulated",
        "command": "python tests/benchmarks/continuous_batching.py --out chapters/data/continuous_batching.json",
    }
    if options.out and options.out.exists() and options.only:
        found = json.loads(options.out.read_text(encoding="utf-8"))
    found |= {
        "date": date.today().isoformat(),
        "machine": machine(),
        "model": "pocket",
        "decoder_threads": 1,
        "load_of_rows": LOAD,
        "chunk": CHUNK,
        "join": JOIN,
        "pool_settings": POOL,
        "cap": CAP,
        "warmup": WARMUP,
    }
    model = load_model("pocket", threads=1)
    wanted = options.only or PARTS
    saturated(engine_of(model, Scheduler(BlockPool(BLOCKS, 16), max_num_seqs=8)), lengths(0, 64), 0)  # warm
    taken: dict[str, list[list[StepRecord]]] = {}
    for part in wanted:
        if part == "rows":
            found["rows"], taken[part] = measure_rows(model, options.quick)
            found["line"] = line_through(taken[part])
            print(f"o, t = {found['line']}", flush=True)
        elif part == "load":
            carried = [row for row in found.get("rows", []) if row["kind"] == "continuous" and row["rows"] == CAP]
            capacity = mean_of(carried[0]["tokens_per_second"]) / LOAD["answer"] if carried else 100.0
            found["load"] = measure_load(model, capacity, options.quick)
        elif part == "chunks":
            found["chunks"], taken[part] = measure_chunks(model, options.quick)
            # each run twice: its steps with a part of a prompt, and those without
            joined = [[step for step in run if step.prefill_tokens and step.decode_tokens] for run in taken[part]]
            alone = [[step for step in run if not step.prefill_tokens] for run in taken[part]]
            found["line_of_chunks"] = line_through([steps for steps in [*joined, *alone] if steps])
            print(f"o, t = {found['line_of_chunks']}", flush=True)
        elif part == "joins":
            found["joins"], taken[part] = measure_joins(model, options.quick)
        else:
            found["pool"] = measure_pool(options.quick)
        if options.out:
            store(options.out, found)
    if len(taken) == 3:  # all sizes of step that a page will ask for
        steps = fit(some([run for runs in taken.values() for run in runs]), about={"model": "pocket", **machine()})
        for part, runs in taken.items():
            print(f"{part}: {StepErrors.of(steps, some(runs))}", flush=True)
        if options.out:
            steps.save(options.out.with_name(options.out.stem + "_steps.json"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
