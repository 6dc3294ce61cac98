"""Task 6: a delay that is learned from what is answered, and learned again when that changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng

from underload.labs.hedging.budget import most_above
from underload.labs.hedging.stage import all_answered, drawn_service, simulated
from underload.metrics import percentile
from underload.queueing.service import Service
from underload.simulation import ClusterRun, Episodes, JoinShortestQueue, Once, StationReplica
from underload.workload import Planned

Made = Callable[[float], Any]  # a student's class, which takes the share

CALLS, SETTLED, ALLOWED = 1600, 300, 10.0  # calls, those after a change that do not count, copies above the share


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

    def halves(self, run: ClusterRun, q: float = 99) -> list[float]:
        """A percentile (s) before and after noon, the p99, without the calls in which a policy may still learn."""
        found = []
        for first in (SETTLED, CALLS // 2 + SETTLED):
            calls = run.calls[first : first + CALLS // 2 - SETTLED]
            value = percentile([call.latency for call in calls if call.latency is not None], q)
            assert value is not None, "no call was answered"
            found.append(value)
        return found


def changing(seed: int) -> Changing:
    """The service of the text: three times as slow in the afternoon."""
    return drawn_changing(default_rng(seed), 3.0)


def drawn_changing(draw: Generator, factor: float) -> Changing:
    """A service with a law of its own, of whose calls more than one in a hundred are slow in either half."""
    while True:
        service = Changing(drawn_service(draw).law, 0.2, factor, int(draw.integers(1 << 30)))
        once = service.run(Once())
        if all(late > 2 * middle for late, middle in zip(service.halves(once), service.halves(once, 90))):
            return service


def check_learns(made: Made, draw: Generator, factor: float) -> None:
    """Before and after noon a p99 of at most 0.75 of what one copy each has.

    Raises:
        AssertionError: naming the p99s.
    """
    service = drawn_changing(draw, factor)
    words = f"{CALLS} calls, {factor:g} times as long from noon ({service.noon:.3f} s) on, a share of 0.05"
    run = service.run(made(0.05))
    all_answered(run, words)
    got, plain = service.halves(run), service.halves(service.run(Once()))
    for when, mine, one in zip(("before", "after"), got, plain):
        assert mine <= 0.75 * one, (
            f"{words}: {when} noon the p99 is "
            f"{1e3 * mine:.4g} ms, and {1e3 * one:.4g} ms with one copy each; at most 0.75 of it is asked for"
        )


def check_keeps(made: Made, draw: Generator, factor: float) -> None:
    """In no stretch of time more than ten copies above the share.

    Raises:
        AssertionError: naming the stretch.
    """
    service = drawn_changing(draw, factor)
    words = f"{CALLS} calls, {factor:g} times as long from noon ({service.noon:.3f} s) on, a share of 0.05"
    run = service.run(made(0.05))
    all_answered(run, words)
    over, begin, end = most_above(run, 0.05)
    assert over <= ALLOWED, (
        f"{words}: from {begin:.3f} to {end:.3f} s there are {over:.1f} more copies than 0.05 for each call; "
        f"{ALLOWED:g} are allowed"
    )
