"""Task 6: a delay that is learned from what is answered, and learned again when that changes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng

from underload.labs.hedging.budget import most_above
from underload.labs.hedging.stage import all_answered, drawing_from, drawn_service, simulated, state_of
from underload.metrics import percentile
from underload.queueing.service import Service
from underload.simulation import Call, ClusterRun, Episodes, JoinShortestQueue, Once, StationReplica
from underload.workload import Planned

Made = Callable[[float], Any]  # a student's class, which takes the share
_WHEN = ("before", "after")

CALLS, SETTLED, ALLOWED = 3200, 300, 10.0  # calls, those after a change that do not count, copies above the share
SHARE = 0.05  # the budget
GAIN, LATE, LONG = 0.6, 1.7, 1.6  # at most: of one copy's p99, of the share, of the delay that the share buys


class Changing:
    """A service whose copies take `factor` times as long from the middle on, for good."""

    def __init__(self, law: Service, load: float, factor: float, seed: int, replicas: int = 8) -> None:
        self.law, self.factor, self.seed, self.replicas = law, factor, seed, replicas
        gaps = default_rng((seed, 31)).exponential(law.mean * max(factor, 1.0) / (load * replicas), CALLS)
        self.arrivals = np.cumsum(gaps)
        self.noon = float(self.arrivals[CALLS // 2])

    def run(self, policy: Any) -> ClusterRun:
        """Its calls under a policy."""
        slow = Episodes((self.noon,), (float("inf"),), self.factor)
        planned = [Planned(float(at), 1, 1, index=place) for place, at in enumerate(self.arrivals)]
        replicas = [StationReplica(self.law, slowness=slow)] * self.replicas
        return simulated(policy, planned, replicas, JoinShortestQueue(), self.seed)

    @cached_property
    def once(self) -> ClusterRun:
        """Its calls with one copy each."""
        return self.run(Once())

    def halves(self, run: ClusterRun, q: float = 99) -> list[float]:
        """A percentile (s) before and after noon, the p99, without the calls in which a policy may still learn."""
        found = []
        for calls in self._settled(run):
            value = percentile([call.latency for call in calls if call.latency is not None], q)
            assert value is not None, "no call was answered"
            found.append(value)
        return found

    def delays(self, run: ClusterRun) -> list[float | None]:
        """s from a call to its second copy, the median before and after noon; None where there are none."""
        return [
            percentile([call.attempts[1].sent - call.arrival for call in calls if len(call.attempts) > 1], 50)
            for calls in self._settled(run)
        ]

    def late(self, run: ClusterRun) -> list[float]:
        """The share of calls before and after noon that take longer than the last second copy before them waited."""
        found = []
        for calls in self._settled(run):
            above, delay = [], None
            for call in calls:
                if len(call.attempts) > 1:
                    delay = call.attempts[1].sent - call.arrival
                if delay is not None and call.latency is not None:
                    above.append(call.latency > delay)
            found.append(sum(above) / len(above) if above else 0.0)
        return found

    def bought(self, share: float) -> list[float]:
        """The delay (s) that this share of first copies exceeds, before and after noon."""
        return [float(self.law.isf(share)) * factor for factor in (1.0, self.factor)]

    @staticmethod
    def _settled(run: ClusterRun) -> list[list[Call]]:
        return [run.calls[first : first + CALLS // 2 - SETTLED] for first in (SETTLED, CALLS // 2 + SETTLED)]


def changing(seed: int) -> Changing:
    """The service of the text: three times as slow in the afternoon."""
    return drawn_changing(default_rng(seed), 3.0)


def drawn_changing(draw: Generator, factor: float) -> Changing:
    """A service with a law of its own, of whose calls more than one in a hundred are slow in either half."""
    while True:
        service = Changing(drawn_service(draw).law, 0.2, factor, int(draw.integers(1 << 30)))
        if all(late > 2 * middle for late, middle in zip(*(service.halves(service.once, q) for q in (99, 90)))):
            return service


def check_learns(made: Made, draw: Generator, factor: float) -> None:
    """Before and after noon a p99 far below one copy's, by a delay that is neither too long nor too short.

    Raises:
        AssertionError: naming the p99s, the delays, or the share of calls that take longer.
    """
    service, run, words = _day(made, draw, factor)
    for when, mine, one in zip(_WHEN, service.halves(run), service.halves(service.once)):
        assert mine <= GAIN * one, (
            f"{words}: {when} noon the p99 is "
            f"{1e3 * mine:.4g} ms, and {1e3 * one:.4g} ms with one copy each; at most {GAIN:g} of it is asked for"
        )
    for when, delay, right, late in zip(_WHEN, service.delays(run), service.bought(SHARE), service.late(run)):
        assert delay is not None, f"{words}: {when} noon there is not a single second copy"
        assert delay <= LONG * right, (
            f"{words}: {when} noon the delay is {1e3 * delay:.4g} ms, the median of the second copies; {SHARE:g} of "
            f"the first copies take longer than {1e3 * right:.4g} ms, and at most {LONG:g} times that is asked for"
        )
        assert late <= LATE * SHARE, (
            f"{words}: {when} noon {late:.3f} of the calls take longer than your delay, {1e3 * delay:.4g} ms in the "
            f"median; at most {LATE:g} times the share is asked for"
        )


def check_keeps(made: Made, draw: Generator, factor: float) -> None:
    """In no stretch of time more than ten copies above the share.

    Raises:
        AssertionError: naming the stretch.
    """
    _, run, words = _day(made, draw, factor)
    over, begin, end = most_above(run, SHARE)
    assert over <= ALLOWED, (
        f"{words}: from {begin:.3f} to {end:.3f} s there are {over:.1f} more copies than {SHARE:g} for each call; "
        f"{ALLOWED:g} are allowed"
    )


def _day(made: Made, draw: Generator, factor: float) -> tuple[Changing, ClusterRun, str]:
    """A drawn service, its day under a policy, and what day it was, in words. The draw stays where it is."""
    service = _service(state_of(draw), factor)
    words = f"{CALLS} calls, {service.factor:g} times as long from noon ({service.noon:.3f} s) on, a share of {SHARE:g}"
    run = _run(made, service)
    all_answered(run, words)
    return service, run, words


@lru_cache(maxsize=8)
def _service(state: str, factor: float) -> Changing:
    return drawn_changing(drawing_from(state), factor)


@lru_cache(maxsize=4)
def _run(made: Made, service: Changing) -> ClusterRun:
    """Once for all that is asked of a day."""
    return service.run(made(SHARE))
