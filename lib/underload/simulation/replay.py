"""A recorded run once more, step by step: its requests and its step times, under the same scheduler.

What comes out is the run itself, to rounding, or the scheduler has decided otherwise: the test of a simulator that has
no model of time in it.
"""

from __future__ import annotations

from typing import Any

from underload.cache import Pool
from underload.engine import Engine
from underload.request import Request, StepRecord, Timeline, UnderloadError, VirtualClock
from underload.scheduling import Plan, Scheduler, StepResult
from underload.simulation.modelled import CostModelExecutor
from underload.simulation.serving import ServingRun
from underload.simulation.step_time import ReplayStepTime


def replay(recorded: ServingRun, pool: Pool, **options: Any) -> ServingRun:
    """Serve the recorded requests again, each step starting when it did and lasting as long as it did.

    A request arrives when the engine put it into its queue: between an arrival and that instant there may have been a
    step, which this then cannot see. All other instants come out as they were.

    Args:
        pool: a fresh one, as the run had it.
        options: the scheduler's, as the run had them.

    Raises:
        UnderloadError: a request that did not run to its end, or has several samples; or the run takes more steps, or
            other ones, than were recorded.
    """
    for request in recorded.requests:
        if len(request.sequences) > 1 or request.timeline.queued is None or request.error or request.cancelled:
            raise UnderloadError(
                f"request {request.request_id!r} has several samples or did not run to its end; replay finished "
                "requests of one sample"
            )
    steps = recorded.steps
    clock = VirtualClock(steps[0].start if steps else 0.0)
    executor = CostModelExecutor(
        ReplayStepTime([step.duration for step in steps]),
        output_tokens={one.request_id: len(one.sequences[0].output_ids) for one in recorded.requests},
    )

    def compare(plan: Plan, result: StepResult, record: StepRecord) -> None:
        number = len(engine.steps)
        if _size(record) != (before := _size(steps[number - 1])):
            raise UnderloadError(
                f"step {number} was {before} (sequences, tokens, keys) and is {_size(record)}; {_SAME}"
            )
        if number < len(steps):
            clock.wait(steps[number].start)

    engine = Engine(Scheduler(pool, **options), executor, clock, on_step=compare)
    engine.join_steps = False  # the clock is set between any two
    queued = {one.request_id: one.timeline.queued for one in recorded.requests if one.timeline.queued is not None}
    for one in sorted(recorded.requests, key=lambda one: queued[one.request_id]):
        again = Request(
            one.request_id,
            one.prompt_ids,
            one.params,
            Timeline(queued[one.request_id]),
            salt=one.salt,
            adapter=one.adapter,
            tenant=one.tenant,
            priority=one.priority,
            deadline=one.deadline,
        )
        engine.add(again)
    engine.run()
    if engine.aborted or len(engine.steps) != len(steps):
        more = " and would have gone on" if engine.aborted else ""
        raise UnderloadError(f"the run took {len(engine.steps)} steps{more}, and {len(steps)} were recorded; {_SAME}")
    by_name = {request.request_id: request for request in engine.finished}
    return ServingRun([by_name[one.request_id] for one in recorded.requests], engine.steps)


_SAME = "replay it with the pool and the scheduler's options that it was recorded with"


def _size(step: StepRecord) -> tuple[int, int, int]:
    return step.batch_size, step.num_tokens, step.context_tokens
