"""How a time is distributed: P(T > t), and the t that a given share exceeds.

Each law works on the tail P(T > t), not on P(T <= t), which has no digits left where it is close to 1.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from underload.queueing.arguments import level

if TYPE_CHECKING:
    from numpy.typing import NDArray


def invert(tail: Callable[[float], float], share: float, scale: float, within: float = 1e-14) -> float:
    """The smallest t >= 0 with tail(t) <= share, for a tail that never rises; `scale` (s) is where to start looking.

    It is good to `within`, relatively; infinite where no double reaches it.
    """
    if tail(0.0) <= share:
        return 0.0
    low, high = 0.0, scale
    while tail(high) > share:
        low, high = high, 2 * high
        if math.isinf(high):
            return math.inf

    from scipy.optimize import brentq

    goal = math.log(max(share, 1e-320))

    def distance(t: float) -> float:
        # In logarithms an exponential tail is a straight line, which the root finder meets at once.
        return math.log(max(tail(t), 1e-320)) - goal

    below = distance(high)
    if below == 0:
        return high
    return float(brentq(distance, low, high, xtol=within * high, rtol=max(within, 1e-14), maxiter=500))


class Wait(ABC):
    """The law of a waiting time or of a time in system, in seconds."""

    @abstractmethod
    def tail(self, t: float) -> float:
        """P(T > t); 1 for t < 0."""

    @abstractmethod
    def isf(self, share: float) -> float:
        """The smallest t that is exceeded with probability `share` at most (SciPy's name for it)."""

    def quantile(self, q: float) -> float:
        """The q-th percentile in seconds: `q` in percent, 99 for p99.

        Raises:
            UnderloadError: q below 0, or not below 100.
        """
        return self.isf(level(q))


@dataclass(frozen=True)
class Never(Wait):
    """Past stability: every wait outgrows every limit."""

    def tail(self, t: float) -> float:
        return 1.0

    def isf(self, share: float) -> float:
        return math.inf


@dataclass(frozen=True)
class ExponentialWait(Wait):
    """Zero with probability 1 - `prob`, else exponential: P(T > t) = prob exp(-rate t)."""

    prob: float
    rate: float  # 1/s

    def tail(self, t: float) -> float:
        return 1.0 if t < 0 else self.prob * math.exp(-self.rate * t)

    def isf(self, share: float) -> float:
        return 0.0 if self.prob <= share else math.log(self.prob / share) / self.rate


@dataclass(frozen=True)
class Shifted(Wait):
    """Another time plus a constant of `by` seconds."""

    of: Wait
    by: float

    def tail(self, t: float) -> float:
        return self.of.tail(t - self.by)

    def isf(self, share: float) -> float:
        return self.of.isf(share) + self.by


@dataclass(frozen=True)
class WaitThenExponential(Wait):
    """A wait of law `ExponentialWait(prob, drain)` and after it an exponential service of rate `service`."""

    prob: float
    drain: float  # 1/s
    service: float  # 1/s

    def tail(self, t: float) -> float:
        if t < 0:
            return 1.0
        # The sum of two exponentials, written from the slower one so that nothing overflows and equal rates are no
        # special case: exp(-at) (1 + a (1 - exp(-(b-a)t))/(b-a)).
        slow, gap = min(self.drain, self.service), abs(self.drain - self.service)
        reach = -math.expm1(-gap * t) / gap if gap * t > 1e-300 else t
        both = math.exp(-slow * t) * (1 + slow * reach)
        return (1 - self.prob) * math.exp(-self.service * t) + self.prob * both

    def isf(self, share: float) -> float:
        return invert(self.tail, share, 1 / self.service)


@dataclass(frozen=True, eq=False)
class Stages(Wait):
    """The sum of N exponential stages of one rate; `more[j]` = P(N > j)."""

    more: NDArray[np.float64]
    rate: float  # 1/s

    def tail(self, t: float) -> float:
        if t < 0:
            return 1.0
        return min(1.0, float(poisson(self.rate * t, np.arange(self.more.size)) @ self.more))

    def isf(self, share: float) -> float:
        return invert(self.tail, share, 1 / self.rate)


def poisson(mean: float, k: NDArray[np.int64]) -> NDArray[np.float64]:
    """P(N = k) for a Poisson number N of this mean, at each k >= 0."""
    from scipy.special import gammaln

    if mean <= 0:
        return (k == 0).astype(float)
    if math.isinf(mean):
        return np.zeros(k.shape)
    return np.asarray(np.exp(k * math.log(mean) - mean - gammaln(k + 1.0)))


def poisson_more(mean: float | NDArray[np.float64], k: NDArray[np.int64]) -> NDArray[np.float64]:
    """P(N > k) for a Poisson number N of this mean; 1 where k < 0."""
    from scipy.special import gammainc

    return np.where(k < 0, 1.0, gammainc(np.maximum(k, 0) + 1.0, mean))
