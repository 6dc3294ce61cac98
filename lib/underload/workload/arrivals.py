"""When requests come: arrival processes.

    Poisson            independent of all before; the reference
    Gamma              a renewal process; `burstiness` as vLLM's benchmark names it
    Weibull            a renewal process, as ServeGen fits its clients
    Deterministic      equal gaps
    OnOff              a Poisson process whose rate jumps between two levels
    PiecewiseConstant  a Poisson process with a rate in steps
    Diurnal            a Poisson process with a rate that swings over the day
    Windowed           another process in each window of time
    Replay             given instants, such as those of a trace

Two numbers tell them apart. The CV of the gaps between arrivals (standard deviation / mean), and the index of
dispersion for counts: variance / mean of the number of arrivals in a window, which sees what the CV cannot, namely that
short gaps follow short gaps. For a Poisson process both are 1, for every window. For a renewal process the index tends
to CV² in long windows; for a rate that wanders it grows with the window.

What to rely on:

- Times are in s and rates in 1/s; instants are sorted and lie in [0, horizon).
- Nothing is rescaled to hit a count or a duration: how many arrive is random, with mean rate x horizon.
- Renewal and on/off processes are stationary from 0 on: time 0 is no arrival but a look at the clock, so that the first
  gap is what is left of one (longer than the mean gap when gaps vary much; this is the inspection paradox).
  `Deterministic` alone starts where its phase says.
- A longer horizon keeps the earlier arrivals: the same generator gives the same instants, and more after them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

from underload.queueing import arguments
from underload.request.errors import UnderloadError

Times = NDArray[np.float64]

MOST = 50_000_000  # arrivals in one answer: 400 MB


def checked_window(window: float) -> float:
    """A window of some s; infinity is one."""
    found = arguments.as_float(window)
    if not found > 0:
        raise UnderloadError(f"a window must be above 0 s, got {window!r:.40}; math.inf is the longest")
    return found


class Arrivals(ABC):
    """A process of arrivals on [0, ∞)."""

    #: Long-run arrivals per second.
    rate: float

    @property
    def cv(self) -> float | None:
        """Standard deviation / mean of the gaps; None where the law of the gaps changes with time."""
        return None

    def idc_at(self, window: float) -> float | None:
        """Index of dispersion for counts in windows of that many seconds (may be inf); None where it is not known.

        Raises:
            UnderloadError: a window that is not above 0 s.
        """
        return None

    @abstractmethod
    def _chunks(self, rng: np.random.Generator) -> Iterator[Times]:
        """Sorted instants from 0 on, in chunks whose sizes do not depend on how many are wanted."""

    def arrivals(self, rng: np.random.Generator, horizon: float) -> Times:
        """The instants in [0, horizon).

        Raises:
            UnderloadError: a horizon below 0 or infinite, an infinite rate, or more than 50 million arrivals.
        """
        horizon = arguments.at_least_zero("horizon", horizon, "s")
        if math.isinf(self.rate) and horizon > 0:
            raise UnderloadError("at an infinite rate infinitely many arrive at once; say how many: first(rng, n)")
        _bearable(self.rate * horizon)
        taken, count = [np.empty(0)], 0
        for chunk in self._chunks(rng):
            taken.append(chunk[: np.searchsorted(chunk, horizon, side="left")])
            count += len(taken[-1])
            _bearable(count)
            if len(taken[-1]) < len(chunk):
                break
        return np.concatenate(taken)

    def first(self, rng: np.random.Generator, n: int) -> Times:
        """The first n instants.

        Raises:
            UnderloadError: n is no whole number from 0 to 50 million, or the process ends before.
        """
        n = arguments.whole("n", n, least=0, most=MOST)
        taken, count = [np.empty(0)], 0
        for chunk in self._chunks(rng) if n else ():
            taken.append(chunk[: n - count])
            count += len(taken[-1])
            if count == n:
                break
        if count < n:
            raise UnderloadError(
                f"only {count} requests arrive, {n} were asked for; ask for fewer, or repeat the rates"
            )
        return np.concatenate(taken)

    def gaps(self, rng: np.random.Generator, n: int) -> Times:
        """n consecutive gaps, from the first arrival on."""
        return np.diff(self.first(rng, arguments.whole("n", n, least=0, most=MOST - 1) + 1))


def _bearable(count: float) -> None:
    if count > MOST:
        raise UnderloadError(
            f"about {count:.3g} arrivals are more than the {MOST:,} that one answer holds; shorten the horizon, or "
            "check the unit of the rate (1/s)"
        )


def sizes() -> Iterator[int]:
    """Sizes of successive chunks: small for those who want little, large for those who want much."""
    return chain((1 << power for power in range(8, 16)), repeat(1 << 16))


def checked_rate(rate: float) -> float:
    """A rate above 0, which may be infinite."""
    if isinstance(rate, (int, float)) and rate == math.inf:
        return math.inf
    return arguments.above_zero("rate", rate, "1/s")
