"""A second copy, simulated and on the real decoder: the recordings behind "Hedged and tied requests".

    python tests/benchmarks/hedging.py --out chapters/data/hedging.json               about half an hour
    python tests/benchmarks/hedging.py --out chapters/data/hedging.json --part engine a quarter, on a quiet machine
    python tests/benchmarks/hedging.py --small                                        a minute; stores nothing

Three parts:

    grid      p99, copies and busy time of ten servers behind a front door that sends to the shorter of two lines, for
              three reasons to be slow, with copies that can be stopped and copies that cannot, by load and by the
              delay of a hedge. On the virtual clock: the same on every machine. Load 0 is a request that meets nobody,
              by formula.
    engine    pocket as two replicas behind the simulator's front door. Every step is computed by the decoder and timed;
              each replica has its own cache and a clock that moves by the times of its own steps, and the two take
              turns on one core: two machines that share nothing, each as fast as this core alone. All policies meet the
              same requests. Beside each run, the same one with step times fitted to the steps of the run without
              copies. And what one copy costs: a prompt's time and blocks.
    cancel    how long a cancelled request keeps its place in an engine that runs in a thread of its own. Some minutes.

Figures of a run leave out its first twentieth.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from load import other_load
from step_time import store

from underload.cache import BlockPool
from underload.decoder import Model, TimedSteps, decoder_engine, load_model, machine
from underload.engine import OnlineEngine, Stream
from underload.metrics import effective_samples, percentile_interval, ttft
from underload.queueing import Deterministic, Lognormal, Service, hedged
from underload.request import SamplingParams
from underload.scheduling import Scheduler
from underload.simulation import (
    Attempt,
    Call,
    ClusterRun,
    EngineReplica,
    Hedge,
    Once,
    PowerOfChoices,
    Random,
    Sending,
    StationReplica,
    StepTime,
    Tied,
    simulate_cluster,
)
from underload.simulation.calibrate import fit
from underload.workload import FixedTokens, GeometricTokens, Lengths, Planned, Poisson, PromptIds, Workload

MEAN, SCV, SERVERS = 0.100, 4.0, 10  # s, of a request that meets nobody
LOADS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9)
DELAYS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.2)  # s
WARMUP = 0.05
SEED = 1
NOTHING = Deterministic(1e-9)


@dataclass(frozen=True)
class Slow:
    """A reason to be slow: what each copy draws anew, and what all copies of a request share."""

    anew: Service | None
    own: Service | None

    def replica(self) -> StationReplica:
        return StationReplica(self.anew or NOTHING, common=self.own)

    def p99(self, delay: float | None) -> float:
        """Of a request that meets nobody, in s: own + min(first, delay + second), by quadrature over its own part."""
        if self.anew is None:
            assert self.own is not None
            return self.own.quantile(99)
        if self.own is None:
            return self.anew.quantile(99) if delay is None else hedged(self.anew, delay=delay).quantile(99)
        # Its own part at the middles of equally likely slices; the last, which decide the tail, are cut finer.
        edges = np.concatenate([np.linspace(0, 0.99, 991), 1 - np.logspace(-2, -7, 400)])
        middles, weights = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
        own = np.asarray(self.own.isf(1 - middles))

        def tail(t: float) -> float:
            left = np.maximum(t - own, 0.0)
            first = np.where(own < t, np.asarray(self.anew.tail(left)), 1.0)  # type: ignore[union-attr]
            second = 1.0
            if delay is not None and t >= delay:
                rest = np.maximum(t - delay - own, 0.0)
                second = np.where(own < t - delay, np.asarray(self.anew.tail(rest)), 1.0)  # type: ignore[union-attr]
            return float(weights @ (first * second)) + 1e-7

        low, high = 0.0, 100.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if tail(middle) > 0.01 else (low, middle)
        return high

    def extra(self, delay: float | None) -> float:
        """Copies of a request that meets nobody."""
        if delay is None:
            return 0.0
        if self.anew is None or self.own is None:
            law = self.anew or self.own
            assert law is not None
            return float(law.tail(delay))
        slices = (np.arange(4000) + 0.5) / 4000
        left = np.maximum(delay - np.asarray(self.own.isf(1 - slices)), 0.0)
        return float(np.where(left > 0, np.asarray(self.anew.tail(left)), 1.0).mean())


SLOW = {
    "server": Slow(Lognormal(MEAN, SCV), None),
    "both": Slow(Lognormal(MEAN / 2, SCV), Lognormal(MEAN / 2, SCV)),
    "own": Slow(None, Lognormal(MEAN, SCV)),
}


class Unstopped(Hedge):
    """A hedge whose servers cannot be told to stop: what was sent runs to its end, and nobody listens."""

    def finished(self, call: Call, attempt: Attempt) -> None:
        for other in call.inside:
            call.front.orphan(other)
        call.answer(attempt)


class TiedLater(Tied):
    """Tied, but the second copy is sent after two messages' time, and only if the first has not started by then."""

    def begin(self, call: Call) -> None:
        call.send()
        call.after(2 * self.message, self.second, call)

    def second(self, call: Call) -> None:
        if call.state is None:
            call.send()


# ---------------------------------------------------------------------------------------------------- simulated


def setting(law: str, stops: bool, load: float, delay: float | None, requests: int) -> dict[str, Any]:
    """One point of the grid; all meet the same arrivals but for their rate, and each attempt the same work."""
    rate = load * SERVERS / MEAN
    plan = Workload(Poisson(rate), Lengths(FixedTokens(1), FixedTokens(1))).plan(SEED, requests=requests)
    policy: Sending = Once() if delay is None else (Hedge if stops else Unstopped)(delay)
    run = simulate_cluster(plan, [SLOW[law].replica()] * SERVERS, router=PowerOfChoices(2), sending=policy, seed=SEED)
    latencies = np.array(run.latencies)[round(WARMUP * requests) :]
    # Work that came with the second half of the arrivals, against what the servers can do in that time: a run that
    # falls behind does so slowly, and its first half may look well.
    half = run.calls[requests // 2 :]
    span = half[-1].arrival - half[0].arrival
    work = math.fsum(attempt.work for call in half for attempt in call.attempts) / (SERVERS * span)
    extra = sum(len(call.attempts) - 1 for call in half) / len(half)
    # Past this, a run of this length says nothing about a steady state.
    behind = work > 0.97
    return {
        "law": law,
        "stops": stops,
        "load": load,
        "delay": delay,
        "p99": None if behind else float(f"{np.percentile(latencies, 99):.4g}"),
        "extra": round(extra, 4),
        "busy": round(min(work, 1.0), 4),
    }


def meets_nobody(law: str, stops: bool, delay: float | None) -> dict[str, Any]:
    slow = SLOW[law]
    return {
        "law": law,
        "stops": stops,
        "load": 0.0,
        "delay": delay,
        "p99": float(f"{slow.p99(delay):.4g}"),
        "extra": round(slow.extra(delay), 4),
        "busy": 0.0,
    }


def grid(requests: int, processes: int, every: int = 1) -> list[dict[str, Any]]:
    """Every `every`-th setting of the grid, and all of load 0."""
    cases = [
        (law, stops, load, delay, requests)
        for law in SLOW
        for stops in (True, False)
        for load in LOADS
        for delay in (*DELAYS, None)
    ][::every]
    rows = [meets_nobody(law, stops, delay) for law in SLOW for stops in (True, False) for delay in (*DELAYS, None)]
    with ProcessPoolExecutor(processes) as pool:
        return rows + list(pool.map(setting, *zip(*cases, strict=True), chunksize=4))


# --------------------------------------------------------------------------------------------------- the decoder

PROMPTS = {"chat": 64, "document": 1024}  # tokens
DOCUMENTS, ANSWER = 0.05, 24  # share of the requests; mean tokens
REPLICAS, BLOCKS, BUSY, REQUESTS = 2, 2000, 0.4, 3000
MESSAGE = 0.0005  # s from one front door's word to a replica
PREFIXES = (64, 256, 1024)  # tokens of a copy's prompt
BESIDE = 8  # sequences that decode beside it


def pool() -> Scheduler:
    return Scheduler(BlockPool(BLOCKS, 16))


def requests_of(rate: float, count: int, seed: int) -> list[Planned]:
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate, count))
    prompts = np.where(rng.random(count) < DOCUMENTS, PROMPTS["document"], PROMPTS["chat"])
    answers = GeometricTokens(ANSWER).draw(rng, count)
    return [Planned(float(at), int(p), int(m), i) for i, (at, p, m) in enumerate(zip(arrivals, prompts, answers))]


def serve_plan(model: Model | None, pace: StepTime | None, plan: list[Planned], policy: Sending) -> ClusterRun:
    """On the decoder, or with step times fitted to it: everything else is the same."""
    vocabulary = 1024 if model is None else model.shape.vocab_size
    steps = [pace if model is None else TimedSteps(model, BLOCKS) for _ in range(REPLICAS)]
    fleet = [EngineReplica(each, pool, vocabulary=vocabulary) for each in steps]  # type: ignore[arg-type]
    ids = PromptIds(range(5, vocabulary))
    return simulate_cluster(plan, fleet, router=Random(), sending=policy, ids=ids, seed=1)


def outcome(run: ClusterRun) -> dict[str, Any]:
    """TTFT by kind of request (p50, p95, p99 and its interval, in s), and what the copies cost."""
    calls = run.calls[round(WARMUP * len(run.calls)) :]
    found: dict[str, Any] = {}
    for kind, tokens in PROMPTS.items():
        times = np.array([ttft(call.timeline) for call in calls if call.request.prompt_tokens == tokens], dtype=float)
        band = percentile_interval(times, 99, effective=effective_samples(times, 99))
        values = [*np.percentile(times, [50, 95, 99]), *((band.low, band.high) if band else ())]
        found[kind] = [float(f"{value:.4g}") for value in values]
    copies = {
        kind: [len(call.attempts) - 1 for call in calls if call.request.prompt_tokens == n]
        for kind, n in PROMPTS.items()
    }
    attempts = [attempt for call in calls for attempt in call.attempts]
    lost = [attempt for attempt in attempts if attempt.call.winner is not attempt]
    return found | {
        "extra": round(sum(map(sum, copies.values())) / len(calls), 4),
        "extra_by_kind": {kind: round(float(np.mean(made)), 4) for kind, made in copies.items()},
        "tokens_lost": round(sum(a.work for a in lost) / max(sum(a.work for a in attempts), 1), 4),
        "kv_lost": round(sum(a.kv_seconds for a in lost) / max(sum(a.kv_seconds for a in attempts), 1e-9), 4),
        "busy": round(sum(r.busy for r in run.replicas) / REPLICAS / run.calls[-1].arrival, 4),
    }


def alone(model: Model, tokens: int, rounds: int) -> float:
    """Median s of a prompt's step on an idle replica."""
    plan = [Planned(10.0 * i, tokens, 1, i) for i in range(rounds)]
    return float(np.median([ttft(line) for line in serve_plan(model, None, plan, Once()).timelines]))


def policies(model: Model, count: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Every policy on the same requests, measured and simulated; and what they were made of."""
    own = {tokens: alone(model, tokens, 15) for tokens in PROMPTS.values()}
    trial = serve_plan(model, None, requests_of(60.0, max(count // 6, 60), 1), Once())
    busy = sum(one.busy for one in trial.replicas) / REPLICAS / trial.calls[-1].arrival
    rate = 60.0 * BUSY / busy
    plan = requests_of(rate, count, 2)
    base = serve_plan(model, None, plan, Once())
    pace = fit([step for one in base.replicas for step in one.steps])
    times = np.array([ttft(line) for line in base.timelines], dtype=float)
    late = times - np.array([own[request.prompt_tokens] for request in plan])
    one_delay, slack = float(np.percentile(times, 95)), float(np.percentile(late, 95))

    def by_length(call: Call) -> float:
        return own[call.request.prompt_tokens] + slack

    made: dict[str, Callable[[], Sending]] = {
        "once": Once,
        "one delay": lambda: Hedge(one_delay, until="first token"),
        "by length": lambda: Hedge(by_length, until="first token"),
        "whole answer": lambda: Hedge(answer_delay, until="answer"),
        "tied": lambda: Tied(2, message=MESSAGE),
        "tied, later": lambda: TiedLater(2, message=MESSAGE),
    }
    ends = [line.token_times[-1] - line.arrival for line in base.timelines]
    answer_delay = float(np.percentile(ends, 95))
    rows = []
    for name, policy in made.items():
        record: dict[str, Any] = {}
        with other_load(record):
            run = base if name == "once" else serve_plan(model, None, plan, policy())
        rows.append(
            {"policy": name} | outcome(run) | {"simulated": outcome(serve_plan(None, pace, plan, policy()))} | record
        )
        print(rows[-1], flush=True)
    about = {
        "rate": round(rate, 3),
        "requests": count,
        "own": {kind: round(own[tokens], 6) for kind, tokens in PROMPTS.items()},
        "one_delay": round(one_delay, 6),
        "slack": round(slack, 6),
        "answer_delay": round(answer_delay, 6),
        "message": MESSAGE,
    }
    return rows, about


def copy_costs(model: Model, rounds: int) -> list[dict[str, Any]]:
    """Median s of a step of BESIDE decodes, without and with the prompt of a copy, and the blocks that it takes."""
    rows = []
    for tokens in (0, *PREFIXES):
        took = []
        for _ in range(rounds):
            steps = TimedSteps(model, BLOCKS)
            plan = [Planned(0.0, 64, 12, i) for i in range(BESIDE)]
            if tokens:
                plan.append(Planned(1e-9, tokens, 1, BESIDE))
            run = simulate_cluster(
                plan,
                [EngineReplica(steps, pool, vocabulary=model.shape.vocab_size)],
                ids=PromptIds(range(5, model.shape.vocab_size)),
            )
            took.append(run.replicas[0].steps[1 if tokens else 6].duration)
        rows.append({"tokens": tokens, "step": round(float(np.median(took)), 7), "blocks": -(-tokens // 16)})
    return rows


def cancels(model: Model, tokens: int, budget: int, count: int) -> dict[str, Any]:
    """How long a request keeps its place after `cancel`, in s, on an engine in a thread of its own: beside BESIDE users
    who get answers and two who send prompts of `tokens` (0: nobody does), all without a pause. And what is left, on
    average, of the step that a random instant falls into."""
    rng = np.random.default_rng(3)
    engine = decoder_engine(model, num_blocks=BLOCKS, max_num_batched_tokens=budget, prefix_caching=False)
    prompts = {length: rng.integers(5, model.shape.vocab_size, length).tolist() for length in {32, 64, tokens or 64}}
    kept: list[float] = []
    over = threading.Event()
    with OnlineEngine(engine, keep=None) as online:

        def ask(length: int, most: int) -> Stream:
            return online.add_request(prompts[length], SamplingParams(max_tokens=most, ignore_eos=True))

        def user(length: int, most: int) -> None:
            while not over.is_set():
                ask(length, most).wait()

        users = [threading.Thread(target=user, args=(64, 200)) for _ in range(BESIDE)]
        users += [threading.Thread(target=user, args=(tokens, 1)) for _ in range(2 if tokens else 0)]
        for one in users:
            one.start()
        until_first_token(ask(32, 100))  # whatever is slow only once has been by now
        gc.collect()
        gc.freeze()  # and nothing of it need be looked through again in the middle of a step
        first = len(engine.steps)
        while len(kept) < count:
            victim = ask(32, 1900)
            until_first_token(victim)
            time.sleep(rng.uniform(0, 0.6))  # several steps: the first token comes at a step's end, this at any instant
            asked = engine.clock.now()
            if victim.cancel() and (ended := victim.wait().timeline.finished) is not None:
                kept.append(ended - asked)
        over.set()
        for one in users:
            one.join()
    gc.unfreeze()
    steps = np.array([step.duration for step in engine.steps[first:]])
    return {
        "prompt_tokens": tokens,
        "budget": budget,
        "count": len(kept),
        "kept": [round(float(v), 7) for v in (np.mean(kept), *np.percentile(kept, [50, 95]))],
        "step": round(float(steps.mean()), 7),
        "residual": round(float((steps**2).sum() / (2 * steps.sum())), 7),
    }


def until_first_token(stream: Stream) -> None:
    """Wait without reading: whoever stops to read a stream cancels it."""
    while not stream.request.sequences[0].output_ids and not stream.finished:
        time.sleep(0.0005)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="store the measurement as JSON here; other parts in it are kept")
    parser.add_argument("--part", choices=("grid", "engine", "cancel"), help="this part only")
    parser.add_argument("--processes", type=int, default=2, help="of the grid (default: %(default)s)")
    parser.add_argument("--small", action="store_true", help="a small run that shows that everything works")
    options = parser.parse_args(argv)
    found: dict[str, Any] = {
        "what": "what a second copy does to p99 and load: simulated, and on pocket",
        "command": "python tests/benchmarks/hedging.py --out chapters/data/hedging.json",
        "mean": MEAN,
        "scv": SCV,
        "servers": SERVERS,
    }
    if options.out and options.out.exists():
        found |= {key: part for key, part in json.loads(options.out.read_text("utf-8")).items() if key not in found}

    if options.part in (None, "grid"):
        requests = 600 if options.small else 20_000
        found["grid"] = {"requests": requests, "rows": grid(requests, options.processes, 40 if options.small else 1)}
        print(f"{len(found['grid']['rows'])} settings of the grid", flush=True)
        if options.out:
            store(options.out, found)

    if options.part in (None, "engine"):
        model = load_model("pocket", threads=1)
        alone(model, 64, 3)  # whatever is to be compiled is compiled now
        rows, about = policies(model, 120 if options.small else REQUESTS)
        costs = copy_costs(model, 3 if options.small else 25)
        print(costs, flush=True)
        found["engine"] = {
            "date": date.today().isoformat(),
            "machine": machine(),
            "model": model.shape.name,
            "path": model.path,
            "threads": 1,
            "replicas": REPLICAS,
            "prompt_tokens": PROMPTS,
            "documents": DOCUMENTS,
            "answer_tokens": ANSWER,
            "beside": BESIDE,
            **about,
            "rows": rows,
            "copy": costs,
            "other_load": max(row["other_load"] or 0.0 for row in rows),
        }
        if options.out:
            store(options.out, found)

    if options.part in (None, "cancel"):
        model = load_model("pocket", threads=1)
        record: dict[str, Any] = {}
        with other_load(record):
            rows = [
                cancels(model, *each, 10 if options.small else 200) for each in ((0, 2048), (1024, 2048), (1024, 128))
            ]
        print(rows, flush=True)
        found["cancel"] = {"date": date.today().isoformat(), "machine": machine(), "rows": rows, **record}
        if options.out:
            store(options.out, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
