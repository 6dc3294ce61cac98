"""What the lab's tasks build, as the library has it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from underload.labs.capacity.service import PROMISE, Asked, kept
from underload.request import StepRecord, Timeline

Option = TypeVar("Option")

#: Student's t, 97.5 %, for so many values.
_STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}


class Limits(NamedTuple):
    """What a replica is held to: sequences at once, tokens in a step; and the promise (s)."""

    slots: int
    budget: int
    ttft: float = PROMISE.ttft
    tpot: float = PROMISE.tpot


def student(count: int) -> float:
    """How many standard errors of the mean of `count` values, 2 to 10, an interval of 95 % reaches either way."""
    return _STUDENT[count]


# ------------------------------------------------------------------ task 1


def meets(timeline: Timeline, ttft: float, tpot: float) -> bool:
    """Whether a request was answered to its end and within both limits; one token has no gap to be too long."""
    return kept(timeline, PROMISE._replace(ttft=ttft, tpot=tpot))


def goodput(
    timelines: Sequence[Timeline], ttft: float, tpot: float, begin: float, end: float
) -> tuple[float, float | None]:
    """Answers a second that kept to both limits, by their last token; and the share of those who came that got one."""
    good = [one for one in timelines if meets(one, ttft, tpot)]
    came = [one for one in timelines if begin <= one.arrival < end]
    done = sum(one.last_token is not None and begin <= one.last_token < end for one in good)
    share = sum(begin <= one.arrival < end for one in good) / len(came) if came else None
    return done / (end - begin), share


# ------------------------------------------------------------------ task 2


def largest(holds: Callable[[float], bool], loads: Sequence[float]) -> float | None:
    """The largest of rising loads that holds, where every smaller one does, too; None if not even the first does."""
    low, high = 0, len(loads)
    while low < high:
        middle = (low + high) // 2
        if holds(loads[middle]):
            low = middle + 1
        else:
            high = middle
    return loads[low - 1] if low else None


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean, and both ends of Student's interval of 95 %."""
    mean = float(np.mean(values))
    half = student(len(values)) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def capacity(
    attained: Callable[[float, int], float], loads: Sequence[float], target: float, runs: int
) -> tuple[float, float, float]:
    """The largest load that holds, once in each run: the mean with its interval. Where none holds, it is 0."""
    found = [largest(lambda rate, run=run: attained(rate, run) >= target, loads) for run in range(runs)]  # type: ignore[misc]
    return interval([0.0 if one is None else one for one in found])


# ------------------------------------------------------------------ task 3


def binds(timelines: Sequence[Timeline], steps: Sequence[StepRecord], limits: Limits) -> str:
    """What keeps a service from more: "tpot", "slots", "budget", "blocks", or "nothing" where the promise was kept."""
    late = [one for one in timelines if not meets(one, limits.ttft, limits.tpot)]
    if not late:
        return "nothing"
    slow = [
        one for one in late if one.output_tokens > 1 and _tpot(one) > limits.tpot and one.finish_reason in _SUCCESSES
    ]
    if 2 * len(slow) > len(late):
        return "tpot"
    counts = dict.fromkeys(("slots", "budget", "blocks"), 0)
    for step in steps:
        if step.queue_length:
            full = "slots" if step.batch_size >= limits.slots else "budget"
            counts[full if full == "slots" or step.num_tokens >= limits.budget else "blocks"] += 1
    return max(counts, key=lambda name: counts[name]) if any(counts.values()) else "nothing"


_SUCCESSES = ("stop", "length")


def _tpot(timeline: Timeline) -> float:
    times = timeline.token_times
    return (times[-1] - times[0]) / (len(times) - 1)


# ------------------------------------------------------------------ task 4


def cheapest(
    options: Sequence[Option],
    price: Callable[[Option], float],
    shares: Callable[[Option], Sequence[float]],
    target: float,
) -> Option | None:
    """The cheapest option the lower end of whose interval holds; of several as cheap, the one with the highest mean.
    Whatever costs more than it is not tried."""
    for cost in sorted({price(one) for one in options}):
        found: dict[int, float] = {}
        same = [one for one in options if price(one) == cost]
        for place, option in enumerate(same):
            mean, low, _ = interval(shares(option))
            if low >= target:
                found[place] = mean
        if found:
            return same[max(found, key=lambda place: found[place])]
    return None


# ------------------------------------------------------------------ task 5


class Open:
    """A door that lets everybody in."""

    def admit(self, asked: Asked, replicas: Sequence[Any]) -> bool:
        return True


class Shed:
    """A door that is shut while so many wait, on the replica where fewest do, that one more would come too late."""

    def __init__(self, most: int = 4) -> None:
        self.most = most

    def admit(self, asked: Asked, replicas: Sequence[Any]) -> bool:
        return min(replica.waiting for replica in replicas if replica.up) < self.most


class Frugal:
    """A door that asks how long a prompt is: the more wait, the shorter it has to be."""

    def __init__(self, tokens: int = 1200) -> None:
        self.tokens = tokens

    def admit(self, asked: Asked, replicas: Sequence[Any]) -> bool:
        return min(replica.waiting for replica in replicas if replica.up) * asked.prompt_tokens < self.tokens
