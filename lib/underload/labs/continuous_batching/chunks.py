"""Task 3: decodes first, and prompts in chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.random import Generator

from underload.labs.continuous_batching.policies import Chunked
from underload.labs.continuous_batching.stage import (
    Ask,
    Run,
    check_steps,
    described,
    drawn_load,
    name_of,
    serve,
    told,
)
from underload.scheduling import LeastComputed

Made = Callable[[int], Any]  # a student's class, which takes the chunk


def check_pieces(policy: Made) -> None:
    """A prompt of 10 tokens in pieces of 4: no token comes of the first two steps.

    Raises:
        AssertionError: naming the step, what it holds and what it should.
    """
    asks = [Ask(10, 2)]
    check_steps(policy(4), asks, [{0: 4}, {0: 4}, {0: 2}, {0: 1}], "at most 4 tokens of prompts in a step")
    check_steps(policy(64), asks, [{0: 10}, {0: 1}], "64 tokens of prompts are allowed in a step")


def check_goes_on(policy: Made) -> None:
    """A long prompt comes while A decodes, and the budget is small: A has a token in each step, the prompt the rest.

    Raises:
        AssertionError: naming the step without a token for A, or how long the prompt takes.
    """
    asks = [Ask(4, 40), Ask(100, 2, 0.010)]
    run = serve(policy(50), asks, budget=10)
    last = _last_of(run, 0, asks)
    for place in range(last):
        assert 0 in run.steps[place], (
            f"{described(asks, {'budget': 10})}: step {place + 1} computes {told(run.counts(place), asks)}, and A, "
            "which decodes, waits for its token"
        )
    first, done = run.first_step(1), _prompt_done(run, 1, asks)
    assert done - first + 1 <= 12, (
        f"{described(asks, {'budget': 10})}: B's prompt takes {done - first + 1} steps, and 9 tokens of each step's "
        "budget are free for it: 12 are enough"
    )


def check_shares(policy: Made) -> None:
    """Two prompts share one chunk, the first in the queue first; the last token of one is not in the chunk.

    Raises:
        AssertionError: naming the step, what it holds and what it should.
    """
    asks = [Ask(6, 2), Ask(9, 2)]
    wanted = [{0: 6, 1: 2}, {0: 1, 1: 7}, {1: 1}]
    check_steps(policy(8), asks, wanted, "at most 8 tokens of prompts in a step, all prompts together")
    check_steps(
        policy(4),
        [Ask(5, 1), Ask(8, 1)],
        [{0: 4}, {0: 1, 1: 4}, {1: 4}],
        "in step 2 A is one token behind, and has it outside the chunk of 4, which is B's",
    )


def check_beside(policy: Made) -> None:
    """A and B decode when C's prompt comes: they take nothing from its chunk.

    Raises:
        AssertionError: naming the step, what it holds and what it should.
    """
    asks = [Ask(2, 6), Ask(2, 6), Ask(10, 2, 0.010)]
    wanted = [{0: 2, 1: 2}, {0: 1, 1: 1}, *2 * [{0: 1, 1: 1, 2: 4}], {0: 1, 1: 1, 2: 2}, {0: 1, 1: 1, 2: 1}]
    check_steps(policy(4), asks, wanted, "chunks of 4 tokens; the tokens of A and B do not count in them")


def check_in_turn(policy: Made) -> None:
    """A's prompt is begun and B waits: A's goes on first.

    Raises:
        AssertionError: naming the step, what it holds and what it should.
    """
    asks = [Ask(10, 2), Ask(5, 2)]
    wanted = [{0: 4}, {0: 4}, {0: 2, 1: 2}, {0: 1, 1: 3}, {1: 1}]
    check_steps(policy(4), asks, wanted, "chunks of 4 tokens; a prompt that is begun goes before one that waits")


def check_in_front(policy: Made) -> None:
    """B is put back and joins again: its tokens stand before C, which decodes, and the budget is one chunk.

    Raises:
        AssertionError: naming the step, what it holds and what it should.
    """
    asks = [Ask(2, 8), Ask(3, 7), Ask(6, 7)]
    limits: dict[str, Any] = {"budget": 4, "blocks": 8, "block_size": 4, "victim": LeastComputed()}
    right = serve(Chunked(4), asks, **limits)
    wanted = [right.counts(place) for place in range(len(right.steps))]
    again = next(place for place in range(len(wanted)) if right.steps[place].get(1) == (0, 3) and place) + 1
    check_steps(
        policy(4),
        asks,
        wanted,
        "chunks of 4 tokens, in blocks of 4, where who has computed least is put back; that is B, which computes its "
        f"tokens again from step {again} on and stands before C in step.running; C decodes, and goes first",
        **limits,
    )


def check_no_stall(policy: Made, draw: Generator) -> None:
    """Drawn loads: whoever has begun its answer has a token in every step until it ends.

    Raises:
        AssertionError: naming who waits in which step.
    """
    chunk, asks, slots, budget = _drawn(draw)
    run = serve(policy(chunk), asks, slots=slots, budget=budget)
    for number in range(len(asks)):
        begun, last = _prompt_done(run, number, asks), _last_of(run, number, asks)
        for place in range(begun, last + 1):
            assert number in run.steps[place], (
                f"{described(asks, {'slots': slots, 'budget': budget})}, chunks of {chunk}: "
                f"{name_of(number, asks)} decodes and has no token in step {place + 1}, which computes "
                f"{told(run.counts(place), asks)}"
            )


def check_limit(policy: Made, draw: Generator) -> None:
    """Drawn loads: no step has more tokens of prompts than the chunk.

    Raises:
        AssertionError: naming the step that has.
    """
    chunk, asks, slots, budget = _drawn(draw)
    run = serve(policy(chunk), asks, slots=slots, budget=budget)
    for place in range(len(run.steps)):
        got = prompt_tokens(run, place, asks)
        assert got <= chunk, (
            f"{described(asks, {'slots': slots, 'budget': budget})}: step {place + 1} computes {got} tokens of "
            f"prompts, and the chunk is {chunk} ({told(run.counts(place), asks)})"
        )


def check_nothing_left(policy: Made, draw: Generator) -> None:
    """Drawn loads: what a step may still compute is not left while somebody waits for it.

    Raises:
        AssertionError: naming the step that leaves something, and for whom.
    """
    chunk, asks, slots, budget = _drawn(draw)
    run = serve(policy(chunk), asks, slots=slots, budget=budget)
    words = f"{described(asks, {'slots': slots, 'budget': budget})}, chunks of {chunk}"
    at = dict.fromkeys(range(len(asks)), 0)  # tokens of each that are computed
    ends = [_last_of(run, number, asks) for number in range(len(asks))]
    for place, step in enumerate(run.steps):
        counts = run.counts(place)
        # The only token of a prompt, or its last, may count as one or not.
        single = sum(step[number] == (ask.prompt - 1, ask.prompt) for number, ask in enumerate(asks) if number in step)
        left = min(chunk - prompt_tokens(run, place, asks) - single, budget - sum(counts.values()))
        running = [number for number in at if number in step or (at[number] and ends[number] >= place)]
        at |= {number: stop for number, (_, stop) in step.items()}
        if left <= 0:
            continue
        for number, ask in enumerate(asks):
            comes = ask.arrival <= run.records[place].start and at[number] < ask.prompt
            assert not comes or (number not in running and len(running) == slots), (
                f"{words}: step {place + 1} computes {told(counts, asks)} (tokens each); {left} tokens more would be "
                f"within chunk and budget, and {name_of(number, asks)} has {ask.prompt - at[number]} tokens of its "
                "prompt to compute"
            )


def check_in_order(policy: Made, draw: Generator) -> None:
    """Drawn loads: prompts begin, and end, in the order in which they came.

    Raises:
        AssertionError: naming two in the wrong order.
    """
    chunk, asks, slots, budget = _drawn(draw)
    run = serve(policy(chunk), asks, slots=slots, budget=budget)
    for number in range(1, len(asks)):
        for words, place in (("begun", run.first_step), ("done", lambda one: _prompt_done(run, one, asks))):
            assert place(number - 1) <= place(number), (
                f"{described(asks, {'slots': slots, 'budget': budget})}, chunks of {chunk}: the prompt of "
                f"{name_of(number, asks)} is {words} in step {place(number) + 1}, and that of "
                f"{name_of(number - 1, asks)}, which came before it, in step {place(number - 1) + 1}"
            )


def prompt_tokens(run: Run, place: int, asks: list[Ask]) -> int:
    """Tokens of a step that are not the only one that a sequence is behind by."""
    return sum(
        stop - start
        for number, (start, stop) in run.steps[place].items()
        if stop - start > 1 or stop < asks[number].prompt
    )


def _drawn(draw: Generator) -> tuple[int, list[Ask], int, int]:
    """A load with some long prompts among short ones: the chunk, the requests, slots and budget."""
    asks = [
        ask._replace(prompt=ask.prompt + (int(draw.integers(150, 400)) if number % 9 == 4 else 0))
        for number, ask in enumerate(drawn_load(draw, 30, rate=30, answer=40))
    ]
    chunk = int(draw.choice([16, 24, 32, 48]))
    # All may decode, and hardly a chunk fits beside them.
    return chunk, asks, int(draw.integers(14, 20)), chunk + int(draw.integers(4, 8))


def _prompt_done(run: Run, number: int, asks: list[Ask]) -> int:
    """The step in which the prompt's last token is computed."""
    return next(place for place, step in enumerate(run.steps) if step.get(number, (0, 0))[1] >= asks[number].prompt)


def _last_of(run: Run, number: int, asks: list[Ask]) -> int:
    """The last step in which a request computes."""
    return int(np.max([place for place, step in enumerate(run.steps) if number in step]))
