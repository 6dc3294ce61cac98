"""Task 6: who waits goes first if it needs little, and nobody waits for ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.random import Generator

from underload.labs.continuous_batching.policies import Joining
from underload.labs.continuous_batching.stage import Ask, Run, serve

SLOTS = 8  # of Task 6's loads
LONG = 50  # the place of the long request of `endless_load`


def mixed_load(draw: Generator, requests: int = 60) -> list[Ask]:
    """Many short requests and some long ones, a little more than the slots can take while they come."""
    arrivals = np.cumsum(draw.exponential(1 / 90, requests))
    long = draw.random(requests) < 0.2
    answers = np.where(long, draw.integers(100, 200, requests), draw.integers(5, 25, requests))
    return [Ask(int(draw.integers(5, 60)), int(answer), float(arrival)) for arrival, answer in zip(arrivals, answers)]


def endless_load(draw: Generator, requests: int = 240) -> list[Ask]:
    """One long request, and then more short ones than the slots can take, for as long as anybody looks."""
    gaps = draw.exponential(1 / 130, requests)
    short = [Ask(int(draw.integers(4, 12)), int(draw.integers(8, 14)), float(at)) for at in np.cumsum(gaps)]
    return [*short[:LONG], Ask(40, 150, short[LONG - 1].arrival), *short[LONG:]]


def serve_mixed(policy: Any, asks: list[Ask]) -> Run:
    """Run a load in so many slots, where blocks and budget suffice."""
    return serve(policy, asks, slots=SLOTS)


def check_quicker(policy: Callable[[], Any], draw: Generator) -> None:
    """A mean latency of at most 0.9 times that of first come, first served.

    Raises:
        AssertionError: naming both.
    """
    load = mixed_load(draw)
    got, first = (serve_mixed(one, load).mean_latency for one in (policy(), Joining()))
    assert got <= 0.9 * first, (
        f"{len(load)} requests, {SLOTS} slots: {got:.3f} s from arrival to the last token on average, and "
        f"{first:.3f} s where the first to come goes first; {0.9 * first:.3f} s are asked for: what a request needs "
        "has to count for more, and the time that it has waited for less"
    )


def check_begins(policy: Callable[[], Any], draw: Generator) -> None:
    """A long request begins, whatever short ones come after it.

    Raises:
        AssertionError: naming how many that came later began before it.
    """
    load = endless_load(draw)
    run = serve_mixed(policy(), load)
    begins = run.first_step(LONG)
    before = sum(run.first_step(number) < begins for number in range(LONG + 1, len(load)))
    later = len(load) - LONG - 1
    assert before <= 0.7 * later, (
        f"a request of {load[LONG].answer} tokens waits, and {before} of the {later} short ones that come after it "
        f"begin before it, where {0.7 * later:.0f} are allowed: if short ones never stop coming, it may never begin; "
        "count a second of waiting for more tokens"
    )
