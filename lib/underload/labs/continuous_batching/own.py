"""A student's objects where they work, the lab's where they do not; and both on the real decoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from underload.cache import BlockPool
from underload.engine import Engine
from underload.labs.continuous_batching import chunks, joining, policies, room
from underload.request import Request, SamplingParams, StepRecord, Timeline
from underload.scheduling import Plan, Scheduler, StepResult


def _or_lab(yours: Any, library: Any, *checks: Callable[[], None]) -> Any:
    """`yours` if these checks let it pass, the lab's if not; it is said which."""
    name = getattr(yours, "__name__", "your class")
    try:
        for check in checks:
            check()
    except NotImplementedError:
        print(f"{name} is not written yet: the lab's was taken in its place")
    except Exception as error:  # whatever a student's code raises; the check's card says in which line
        print(f"{name} does not pass its first checks ({str(error)[:80]} …): the lab's was taken in its place")
    else:
        return yours
    return library


def whose(written: Any, used: Any) -> str:
    """Whose class a picture shows, in a word for its label: the student's, or the one that stood in for it."""
    return "your" if used is written else "the lab's"


def usable_joining(yours: Any) -> Any:
    """Task 2's class if it passes its first checks, the lab's if not."""
    return _or_lab(yours, policies.Joining, lambda: joining.check_joins(yours), lambda: joining.check_leaves(yours))


def usable_chunked(yours: Any) -> Any:
    """Task 3's class if it passes its first checks, the lab's if not."""
    return _or_lab(yours, policies.Chunked, lambda: chunks.check_pieces(yours), lambda: chunks.check_goes_on(yours))


def usable_headroom(yours: Any) -> Any:
    """Task 4's admission if it passes its first check, the lab's if not."""
    return _or_lab(yours, policies.Headroom, lambda: room.check_admits(yours, *room.BY_HAND))


def usable_spread(yours: Any) -> Any:
    """Task 4's choice of a victim if it passes its first check, the lab's if not."""
    return _or_lab(yours, policies.Spread, lambda: room.check_chooses(yours, *room.BY_HAND_ROWS))


def usable_quick(yours: Any) -> Any:
    """Task 6's class if it passes a first check, the lab's if not."""
    return _or_lab(yours, policies.Quick, lambda: joining.check_joins(yours))


def answer(
    executor: Any,
    prompts: Sequence[Sequence[int]],
    tokens: Sequence[int],
    *,
    blocks: int,
    block_size: int,
    late: int = 0,
    **policies: Any,
) -> Engine:
    """Have the real decoder answer all prompts, greedily, under these policies; the engine that did.

    Args:
        executor: a `DecoderExecutor` with so many blocks of this size.
        tokens: of each answer.
        late: the last prompt comes after so many steps; the others are there from the start.
        policies: the scheduler's `batching`, `admission`, `victim` and limits.
    """
    scheduler = Scheduler(BlockPool(blocks, block_size), max_model_len=executor.model.shape.max_positions, **policies)

    def send(place: int) -> None:
        params = SamplingParams(max_tokens=tokens[place], temperature=0, ignore_eos=True)
        engine.add(Request(str(place), list(prompts[place]), params, Timeline(engine.clock.now())))

    def note(plan: Plan, result: StepResult, record: StepRecord) -> None:
        if len(engine.steps) == late:
            send(len(prompts) - 1)

    engine = Engine(scheduler, executor, on_step=note)
    for place in range(len(prompts) - (late > 0)):
        send(place)
    engine.run()
    return engine


def words_of(engine: Engine, count: int) -> list[list[int]]:
    """The ids of each answer, in the order of the prompts."""
    found = {request.request_id: request.sequences[0].output_ids for request in engine.finished}
    return [found[str(place)] for place in range(count)]


def stall(engine: Engine, request_id: str) -> float:
    """The longest time (s) between two tokens of anybody else."""
    return max(
        later - earlier
        for request in engine.finished
        if request.request_id != request_id
        for earlier, later in zip(request.timeline.token_times, request.timeline.token_times[1:])
    )
