"""The wait in M/D/1, exactly.

Crommelin's series (1932; Erlang gave it in 1909) alternates in sign, and in double precision it is noise after some
twenty services. Two safe forms take its place:

    t < 64 services   Franx's sum of positive terms over the number in system ("A simple solution for the M/D/c waiting
                      time distribution", Operations Research Letters 29(5), 2001), for c = 1
    beyond            C exp(-theta t), the series' own leading term (Cramér–Lundberg): the next one is smaller by 1e-16
                      or more there, wherever P(wait > t) is above 1e-150. So load 0.999999 costs no more than 0.5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from underload.queueing.waits import Wait, invert, poisson, poisson_more

#: Services after which the leading exponential is the wait to double precision.
SWITCH = 64


@dataclass(frozen=True)
class DeterministicWait(Wait):
    """The wait in an M/D/1 of this load (above 0, below 1) with a service of `service` seconds."""

    load: float
    service: float  # s

    def tail(self, t: float) -> float:
        if t < 0:
            return 1.0
        x = t / self.service
        if x >= SWITCH:
            theta = decay(self.load)
            # C = (1 - rho)/(rho exp(theta) - 1), and rho exp(theta) = rho + theta.
            return (1 - self.load) / (theta - (1 - self.load)) * math.exp(-theta * x)
        m = math.floor(x) + 1
        mean = self.load * (m - x)
        j = np.arange(m)
        found = poisson(mean, j) @ _more_inside(self.load)[m - j] + poisson_more(mean, np.array([m - 1]))[0]
        return float(min(1.0, found))

    def isf(self, share: float) -> float:
        return invert(self.tail, share, self.service)


def decay(load: float) -> float:
    """theta > 0 with load (exp(theta) - 1) = theta, for 0 < load < 1: how fast the wait's tail falls, per service.

    Good to full precision at loads next to 1, where theta is 2 (1 - load) and the plain equation cancels.
    """
    goal = -math.log(load)

    def growth(x: float) -> float:  # ln((exp(x) - 1)/x), which must be `goal`; convex, x/2 near 0
        half = x / 2
        if half < 0.05:
            square = half * half
            return half + square / 6 - square**2 / 180 + square**3 / 2835
        return half + math.log(math.sinh(half) / half) if half < 300 else x - math.log(x)

    # From above, Newton on a convex function comes down without stepping over.
    x = 2 * goal if goal < 1 else goal + math.log(2 * goal + 2) + 1
    for _ in range(60):
        slope = (0.5 + x / 12 if x < 1e-4 else 1 / -math.expm1(-x) - 1 / x) if x else 0.5
        step = (growth(x) - goal) / slope
        x -= step
        if abs(step) <= 4e-16 * x:
            break
    return x


@lru_cache(maxsize=64)
def _more_inside(load: float) -> NDArray[np.float64]:
    """P(more than n in the system), n = 0 … SWITCH: by levelling the flow across each border, all terms positive."""
    size = 2 * SWITCH
    k = np.arange(size + 80)
    arrivals = poisson(load, k)
    more = arrivals[::-1].cumsum()[::-1][1:]  # P(more than k arrive in a service)
    inside = np.empty(size + 1)
    inside[0] = 1 - load
    for n in range(size):
        # Up across the border n | n + 1 as often as down: pi_{n+1} a_0 = pi_0 P(A > n) + sum of pi_k P(A > n + 1 - k).
        up = inside[0] * more[n] + inside[1 : n + 1] @ more[n:0:-1]
        inside[n + 1] = up / arrivals[0]
    beyond = inside[-1] / math.expm1(decay(load))
    tails: NDArray[np.float64] = (beyond + inside[::-1].cumsum()[::-1])[1 : SWITCH + 2]
    return tails
