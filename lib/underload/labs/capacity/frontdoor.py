"""A door in front of a real engine: it is asked whenever somebody comes, between two steps, and who is turned away
never reaches the scheduler.

The engine is the library's, and so are scheduler and pool; an executor is brought by whoever calls. On a virtual clock
the same loop gives what a cluster of one gives, but for steps that a cluster takes at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from underload.cache import BlockPool
from underload.engine import Engine
from underload.labs.capacity.service import BLOCK_SIZE, Asked, Seen, lets_in
from underload.request import Clock, FinishReason, Request, StepRecord, Timeline
from underload.scheduling import Scheduler
from underload.workload import Planned, PromptIds


class Answered(NamedTuple):
    """What came of a load: in the order of the plan, and the steps."""

    timelines: list[Timeline]
    steps: list[StepRecord]


def answer(
    executor: Any,
    requests: Sequence[Planned],
    *,
    slots: int,
    chunk: int,
    blocks: int,
    ids: PromptIds,
    door: Any = None,
    clock: Clock | None = None,
    most: int = 0,
) -> Answered:
    """Send a load at its instants, counted from now, and step until all of it is answered.

    Args:
        executor: with room for so many blocks of 16 tokens.
        door: an object with `admit(asked, replicas)`; None lets everybody in.
        clock: the wall if None.
        most: tokens that the door is told each may be answered with; the longest answer if 0.
    """
    pool = BlockPool(blocks, BLOCK_SIZE, prefix_caching=False)
    engine = Engine(Scheduler(pool, max_num_seqs=slots, max_num_batched_tokens=chunk), executor, clock)
    engine.more_to_come, engine.join_steps = True, False  # the next arrival is not the engine's to know
    most = most or max(one.output_tokens for one in requests)
    prompts = {one.index: ids(one) for one in requests}  # made beforehand: it is not the server that makes them
    begin = engine.clock.now()
    timelines = [Timeline(begin + one.arrival) for one in requests]
    coming = deque(zip(requests, timelines, strict=True))
    while coming or not engine.scheduler.idle:
        now = engine.clock.now()
        while coming and coming[0][1].arrival <= now:
            one, timeline = coming.popleft()
            waiting, running = len(engine.scheduler.waiting), len(engine.scheduler.running)
            seen = Seen(0, waiting + running, waiting, pool.num_used / pool.num_blocks)
            if door is None or lets_in(door, Asked(now - begin, one.prompt_tokens, most), [seen]):
                engine.add(Request(str(one.index), prompts[one.index], one.params, timeline))
            else:
                timeline.finish_reason = FinishReason.REFUSED
        engine.more_to_come = bool(coming)
        if not engine.step() and coming:
            engine.clock.wait(coming[0][1].arrival)
    return Answered(timelines, engine.steps)
