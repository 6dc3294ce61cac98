"""Task 2: whether a policy lets everybody come and go, step by step."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from numpy.random import Generator

from underload.labs.answers import listed
from underload.labs.continuous_batching.paper import continuous_steps, drawn_lengths, static_steps
from underload.labs.continuous_batching.stage import (
    Ask,
    check_steps,
    described,
    drawn_load,
    name_of,
    serve,
    told,
)
from underload.scheduling import LeastComputed

Made = Callable[[], Any]  # a student's class


def check_joins(policy: Made) -> None:
    """B comes while A runs, and is in the next step.

    Raises:
        AssertionError: naming the step, what it holds and what it should.
    """
    asks = [Ask(3, 5), Ask(4, 3, 0.010)]
    wanted = [{0: 3}, {0: 1}, {0: 1, 1: 4}, {0: 1, 1: 1}, {0: 1, 1: 1}]
    check_steps(policy(), asks, wanted, "B is there from 0.010 s on, which is within step 2, and there is a free slot")


def check_leaves(policy: Made) -> None:
    """Four requests and two slots: a slot that becomes free has somebody in the next step.

    Raises:
        AssertionError: naming the step, what it holds and what it should.
    """
    asks = [Ask(2, 2), Ask(2, 5), Ask(2, 3), Ask(2, 2)]
    wanted = [{0: 2, 1: 2}, {0: 1, 1: 1}, {1: 1, 2: 2}, {1: 1, 2: 1}, {1: 1, 2: 1}, {3: 2}, {3: 1}]
    check_steps(policy(), asks, wanted, "whoever waits takes a free slot in the next step", slots=2)


def check_all_at_once(policy: Made) -> None:
    """Five that come together begin together.

    Raises:
        AssertionError: naming who does not.
    """
    asks = [Ask(4 + number, 3) for number in range(5)]
    run = serve(policy(), asks)
    got, wanted = run.counts(0), {number: ask.prompt for number, ask in enumerate(asks)}
    assert got == wanted, (
        f"{described(asks, {})}: step 1 computes {told(got, asks)}, and has slots and budget for {told(wanted, asks)} "
        "(tokens each)" + ("; step.waiting loses whom you admit, while you walk along it" if len(got) == 3 else "")
    )


def check_small_budget(policy: Made) -> None:
    """Six tokens in a step: who runs comes first, a prompt is begun with what is left, and nobody joins without work.

    Raises:
        AssertionError: naming the step, what it holds and what it should; or who was let in without work.
    """
    asks = [Ask(4, 6), Ask(9, 2), Ask(4, 2)]
    wanted = [{0: 4, 1: 2}, {0: 1, 1: 5}, {0: 1, 1: 2, 2: 3}, {0: 1, 1: 1, 2: 1}, {0: 1, 2: 1}, {0: 1}]
    check_steps(
        policy(),
        asks,
        wanted,
        "those who run come first; a prompt that does not fit into what is left of the budget is begun with that, and "
        "goes on in the next step",
        budget=6,
    )


def check_put_back(policy: Made) -> None:
    """In step 2 two are put back for want of blocks, and what the second gave is not taken by the first.

    Raises:
        AssertionError: naming the step, what it holds and what it should.
    """
    asks = [Ask(8, 2), Ask(4, 2), Ask(8, 4)]
    wanted = [{0: 8, 1: 4, 2: 8}, {0: 1}, {1: 5, 2: 9}, {2: 1}, {2: 1}]
    why = "blocks of 4, and who has computed least is put back: in step 2 that is B, and then C; so nobody joins in it"
    check_steps(policy(), asks, wanted, why, blocks=5, block_size=4, victim=LeastComputed())


def check_queue(policy: Made) -> None:
    """The first in the queue does not fit, and the second would: it waits, too.

    Raises:
        AssertionError: it overtook.
    """
    asks = [Ask(8, 8), Ask(26, 2), Ask(2, 2)]
    run = serve(policy(), asks, blocks=8, block_size=4)
    assert run.first_step(1) <= run.first_step(2), (
        f"{described(asks, {})}, in 8 blocks of 4: there is no room for B at first, and C begins before it, in step "
        f"{run.first_step(2) + 1} against {run.first_step(1) + 1}; if small ones may pass whenever B does not fit, B "
        "may wait for ever"
    )


def check_overtakes(policy: Made, draw: Generator) -> None:
    """In a small pool nobody begins before who came earlier.

    Raises:
        AssertionError: naming two requests in the wrong order.
    """
    asks = [
        ask._replace(prompt=min(ask.prompt, 200), answer=min(ask.answer, 60))
        for ask in drawn_load(draw, 30, rate=80, prompt=60)
    ]
    run = serve(policy(), asks, blocks=20)
    begins = [run.first_step(number) for number in range(len(asks))]
    for number, (one, other) in enumerate(pairwise(begins)):
        assert one <= other, (
            f"{described(asks, {'blocks': 20})}: {name_of(number + 1, asks)} begins in step {other + 1} and "
            f"{name_of(number, asks)}, which came before it, in step {one + 1}; when the first in the queue has to "
            "wait, those behind it wait"
        )


def check_fills(policy: Made, draw: Generator) -> None:
    """A drawn load, where budget and blocks suffice: every step has whom it could have.

    Raises:
        AssertionError: naming the first step that has not.
    """
    slots = int(draw.integers(4, 9))
    asks = drawn_load(draw, 40, rate=60)
    run = serve(policy(), asks, slots=slots)
    words = described(asks, {"slots": slots})
    begun: set[int] = set()
    done: dict[int, int] = dict.fromkeys(range(len(asks)), 0)  # tokens of each answer
    for place, step in enumerate(run.steps):
        counts = run.counts(place)
        for number in begun:
            assert number in step, (
                f"{words}: {name_of(number, asks)} runs and computes nothing in step {place + 1}, which computes "
                f"{told(counts, asks)} (tokens each)"
            )
        for number in set(step) - begun:
            assert counts[number] == asks[number].prompt, (
                f"{words}: {name_of(number, asks)} begins in step {place + 1} with {counts[number]} of the "
                f"{asks[number].prompt} tokens of its prompt; the budget has room for all"
            )
        late = [
            number
            for number, ask in enumerate(asks)
            if number not in step and not done[number] and ask.arrival <= run.records[place].start
        ]
        assert len(step) == slots or not late, (
            f"{words}: step {place + 1} computes {told(counts, asks)} (tokens each), and {name_of(late[0], asks)} "
            f"waits though {slots - len(step)} of the slots are free"
        )
        for number in step:
            done[number] += 1
        begun = {number for number in begun | set(step) if done[number] < asks[number].answer}


def check_paper(policy: Made, draw: Generator) -> None:
    """As many steps as on paper, where all requests are there from the start.

    Raises:
        AssertionError: naming both numbers.
    """
    slots = int(draw.integers(3, 8))
    lengths = drawn_lengths(draw, 50)
    run = serve(policy(), [Ask(1, length) for length in lengths], slots=slots)
    wanted, batches = continuous_steps(lengths, slots), static_steps(lengths, slots)
    assert len(run.steps) == wanted, (
        f"answers of {listed(lengths)} tokens, {slots} slots: {len(run.steps)} steps, and {wanted} are enough"
        + (": those are whole batches" if len(run.steps) >= batches else "")
    )
