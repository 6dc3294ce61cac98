"""The serving engine on a virtual clock: its own loop, scheduler and block pool, with a model of what a step costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from underload.cache import BlockPool, Pool
from underload.engine import Engine, serve
from underload.request import Request, StepRecord, Timeline, UnderloadError, VirtualClock
from underload.scheduling import Plan, Scheduler
from underload.simulation.modelled import CostModelExecutor
from underload.simulation.slowness import Slowness
from underload.simulation.step_time import StepTime
from underload.workload import Planned, PromptIds


@dataclass(frozen=True)
class ServingRun:
    """What came of a load: the two records that every metric reads.

    requests: in the order of the plan.
    steps: in the order in which they ran.
    """

    requests: list[Request] = field(repr=False)
    steps: list[StepRecord] = field(repr=False)

    @property
    def timelines(self) -> list[Timeline]:
        return [request.timeline for request in self.requests]

    @classmethod
    def of(cls, engine: Engine) -> ServingRun:
        """The run of an engine that has served a plan and nothing else (`engine.serve` names requests by number)."""
        return cls(sorted(engine.finished, key=lambda request: int(request.request_id)), engine.steps)


def simulate_serving(
    planned: Iterable[Planned],
    step_time: StepTime | Callable[[Plan], float],
    *,
    pool: Pool | None = None,
    max_tokens: int | None = None,
    ids: PromptIds | None = None,
    seed: int = 0,
    slowness: Slowness | None = None,
    **options: Any,
) -> ServingRun:
    """Serve a plan of requests on a virtual clock.

    Args:
        planned: what comes, and when (`workload.Workload.plan`, or a trace's).
        step_time: s that a plan takes.
        pool: a fresh one; 100,000 blocks of 16 tokens if None, which is as good as no limit.
        max_tokens: what every request is allowed, of which the scheduler knows; how long an answer really gets, only
            the executor does. None: just what it will need, so that policies which go by it know the future.
        ids: makes the prompts; from `seed` if None.
        seed: of the tokens.
        slowness: when the engine is slower than `step_time` says; never if None.
        options: the scheduler's (`scheduling.Scheduler`): policies and limits.

    Raises:
        InvalidRequest: a request that could never be served.
        UnderloadError: an answer longer than `max_tokens`, a slowness that is none.
    """
    requests = list(planned)
    outputs = {str(request.index): request.output_tokens for request in requests}
    if max_tokens is not None and (most := max(outputs.values(), default=0)) > max_tokens:
        raise UnderloadError(f"an answer has {most} tokens, and max_tokens = {max_tokens}; allow as many, or clip it")
    if slowness is not None and not callable(getattr(slowness, "end", None)):
        raise UnderloadError(f"slowness is an object such as Steady(2.0), got {slowness!r:.60}")
    scheduler = Scheduler(pool or BlockPool(100_000, 16), **options)
    clock = VirtualClock()
    executor = CostModelExecutor(step_time, output_tokens=outputs, seed=seed, slowness=slowness, clock=clock)
    engine = Engine(scheduler, executor, clock)
    serve(engine, requests, ids or PromptIds(executor.vocabulary, seed=seed), max_tokens=max_tokens)
    return ServingRun.of(engine)
