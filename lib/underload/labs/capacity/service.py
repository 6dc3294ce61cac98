"""The service that the lab plans: what comes, what is promised, what a machine takes, and a run of all of it.

A replica's step takes 10 ms and 0.1 ms for each token in it, and its cache holds 500 blocks of 16 tokens (given).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator, default_rng

from underload.cache import BlockPool
from underload.labs.answers import shown
from underload.request import Timeline
from underload.scheduling import Scheduler
from underload.simulation import EngineReplica, LinearStepTime, simulate_cluster
from underload.simulation.cluster import ClusterRun
from underload.workload import Planned

OVERHEAD, PER_TOKEN = 0.010, 0.0001  # s
BLOCKS, BLOCK_SIZE = 500, 16
BURST = 14.0  # s
LIMIT = 200  # tokens that a request may ask for; how many it will need, nobody knows at the door
PROMPT, ANSWER = 220, 40  # tokens on average, nearly


class Promise(NamedTuple):
    """What a request is to keep to (s), and the share of requests that is to do so."""

    ttft: float
    tpot: float
    share: float = 0.95


class Plan(NamedTuple):
    """How a service is set up: machines, sequences that run at once on each, tokens in a step."""

    replicas: int
    slots: int
    chunk: int


PROMISE = Promise(0.5, 0.030)
PLAN = Plan(1, 32, 128)


class Asked(NamedTuple):
    """A request as a door sees it: when it comes (s), its prompt, and the most tokens that it may be answered with."""

    now: float
    prompt_tokens: int
    max_tokens: int


# ------------------------------------------------------------------ what comes


def lengths(draw: Generator, count: int) -> tuple[list[int], list[int]]:
    """Tokens of prompts and of answers: most prompts short and some long, answers geometric."""
    prompts = np.clip(draw.lognormal(np.log(PROMPT) - 0.32, 0.8, count), 8, 1500).astype(int)
    answers = np.clip(draw.geometric(1 / ANSWER, count), 1, LIMIT).astype(int)
    return prompts.tolist(), answers.tolist()


def planned(arrivals: Sequence[float], draw: Generator) -> list[Planned]:
    """Requests at these instants."""
    prompts, answers = lengths(draw, len(arrivals))
    return [
        Planned(float(at), prompt, answer, number)
        for number, (at, prompt, answer) in enumerate(zip(arrivals, prompts, answers))
    ]


def load(rate: float, count: int, seed: int | Generator) -> list[Planned]:
    """A Poisson load; with another rate the same requests come in the same order, closer together or farther apart."""
    draw = default_rng(seed)
    gaps = draw.exponential(1.0, count)
    return planned((np.cumsum(gaps) / rate).tolist(), draw)


def short_load(rate: float, count: int, seed: int | Generator) -> list[Planned]:
    """The same for a small model: prompts of a sixth and answers of half the tokens."""
    return [
        replace(one, prompt_tokens=max(2, one.prompt_tokens // 6), output_tokens=min(40, 1 + one.output_tokens // 2))
        for one in load(rate, count, seed)
    ]


def at_once(requests: Sequence[Planned]) -> list[Planned]:
    """The same requests, all at the start."""
    return [replace(one, arrival=0.0) for one in requests]


def burst(seed: int | Generator, factor: float = 4.0, *, base: float = 10.0, replicas: int = 1) -> list[Planned]:
    """14 s: four of them, from 4 s on, bring `factor` times as many requests as the others."""
    draw = default_rng(seed)
    arrivals: list[float] = []
    for begin, end, rate in ((0.0, 4.0, base), (4.0, 8.0, factor * base), (8.0, BURST, base)):
        count = draw.poisson(rate * replicas * (end - begin))
        arrivals += sorted(draw.uniform(begin, end, count).tolist())
    return planned(arrivals, draw)


# ------------------------------------------------------------------ a run


def _scheduler(slots: int, chunk: int, blocks: int) -> Scheduler:
    pool = BlockPool(blocks, BLOCK_SIZE, prefix_caching=False)
    return Scheduler(pool, max_num_seqs=slots, max_num_batched_tokens=chunk)


@dataclass(frozen=True)
class Seen:
    """A replica, as a door sees it: the names of `simulation.router.View`, and nothing behind them."""

    index: int
    inside: int
    waiting: int
    kv_used: float
    up: bool = True


class Hung:
    """A student's door, hung in the cluster's frame: it sees what a door can see, and says yes or no."""

    def __init__(self, door: Any) -> None:
        self.door = door

    def admit(self, request: Planned, front: Any) -> Planned | None:
        asked = Asked(front.now, request.prompt_tokens, LIMIT)
        seen = [Seen(one.index, one.inside, one.waiting, one.kv_used, one.up) for one in front.views]
        return request if lets_in(self.door, asked, seen) else None


def lets_in(door: Any, asked: Asked, replicas: Sequence[Any]) -> bool:
    """What a door says.

    Raises:
        AssertionError: something that is neither True nor False.
    """
    said = door.admit(asked, replicas)
    assert isinstance(said, bool | np.bool_), f"admit() says True or False, got {shown(said)}"
    return bool(said)


def serve(
    requests: Sequence[Planned],
    plan: Plan = PLAN,
    *,
    door: Any = None,
    router: Any = None,
    slowness: Sequence[Any] = (),
    blocks: int = BLOCKS,
    step_time: Any = None,
) -> ClusterRun:
    """Run a load through a service on a virtual clock.

    Args:
        door: an object with `admit(asked, replicas)`; None lets everybody in.
        router: join the shortest queue if None.
        slowness: of the first replicas, one each.
        step_time: s that a step takes, where it is not the lab's.
    """
    one = EngineReplica(
        step_time or LinearStepTime(OVERHEAD, PER_TOKEN),
        partial(_scheduler, plan.slots, plan.chunk, blocks),
        max_tokens=LIMIT,
    )
    slow = [replace(one, slowness=it) for it in slowness]
    replicas = [*slow, *[one] * (plan.replicas - len(slow))]
    return simulate_cluster(requests, replicas, router=router, door=None if door is None else Hung(door))


def kept(timeline: Timeline, promise: Promise = PROMISE) -> bool:
    """Whether a request was answered as promised."""
    times = timeline.token_times
    if timeline.finish_reason not in ("stop", "length") or not times:
        return False
    if times[0] - timeline.arrival > promise.ttft:
        return False
    return len(times) < 2 or (times[-1] - times[0]) / (len(times) - 1) <= promise.tpot


def share_kept(timelines: Sequence[Timeline], promise: Promise = PROMISE) -> float:
    """The share of requests, refused ones among them, that were answered as promised."""
    return sum(kept(one, promise) for one in timelines) / len(timelines)


def attained(
    rate: float,
    run: int,
    plan: Plan = PLAN,
    *,
    promise: Promise = PROMISE,
    count: int = 400,
    blocks: int = BLOCKS,
    step_time: Any = None,
    requests: Callable[[float, int, int], list[Planned]] = load,
) -> float:
    """The share that kept the promise at so many requests a second, in the run of this number; the first fifth, for
    whom the machine was still empty, is left out."""
    timelines = serve(requests(rate, count, 100 + run), plan, blocks=blocks, step_time=step_time).timelines
    return share_kept(timelines[count // 5 :], promise)
