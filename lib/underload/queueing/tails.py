"""The slowest of many, and the faster of two: fan-out and hedged requests on independent times."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from underload.queueing import arguments
from underload.queueing.measures import PERCENTILES, percentile_rows, seconds
from underload.queueing.service import Exponential, Pareto, Service, integral, law_of
from underload.queueing.waits import invert
from underload.request.errors import UnderloadError


def prob_any(p_slow: float, *, n: int, common: float = 0.0) -> float:
    """The probability that at least one of `n` calls is slow, each with probability `p_slow`.

        1 - (1 - p_slow)^n:   63.4 % for a hundred independent calls that are slow once in a hundred

    `common` is for calls that share a cause (one overloaded machine, one pause of all): that share of each call's slow
    cases, 0 to 1, falls into moments in which every call is slow; in all other moments they are independent. At 1 a
    fan-out amplifies nothing, and the result is `p_slow`.

    Source: Dean and Barroso, "The tail at scale", CACM 56(2), 2013; the split into common and own causes is the shock
    model of Marshall and Olkin, "A multivariate exponential distribution", JASA 62, 1967.

    Raises:
        UnderloadError: p_slow or common outside 0 to 1, or n that is no whole number from 1.
    """
    p = arguments.at_least_zero("p_slow", p_slow, "")
    n = arguments.whole("n", n, least=1, most=10**12)
    together = arguments.at_least_zero("common", common, "")
    if p > 1:
        raise UnderloadError(f"p_slow is a probability and at most 1, got {p:g}; write 0.01 for 1 %")
    if together > 1:
        raise UnderloadError(f"common is a share of the slow cases and at most 1, got {together:g}; write 0.5 for 50 %")
    if p == 1:
        return 1.0
    moments = p * together
    own = (p - moments) / (1 - moments)
    return moments - (1 - moments) * math.expm1(n * math.log1p(-own))


@dataclass(frozen=True)
class Slowest:
    """The longest of `n` independent times of one law, in s."""

    law: Service
    n: int
    mean: float  # s; infinite where the law's own mean is
    variance: float  # s²

    def tail(self, t: float) -> float:
        """P(the longest > t), t in s.

        Raises:
            UnderloadError: t is no finite number.
        """
        return _any(float(self.law.tail(arguments.number("t", t))), self.n)

    def quantile(self, q: float) -> float:
        """The q-th percentile in s, `q` in percent: the single call's at (q/100)^(1/n).

        Raises:
            UnderloadError: q below 0, or not below 100.
        """
        share = arguments.level(q)
        return float(self.law.isf(1.0 if share == 1 else -math.expm1(math.log1p(-share) / self.n)))

    def as_dict(self) -> dict[str, Any]:
        """The figures by name, as for JSON."""
        return {"n": self.n, "mean": self.mean, "variance": self.variance, "mean_of_one": self.law.mean}

    def rows(self, percentiles: Sequence[float] = PERCENTILES) -> list[tuple[str, str]]:
        """Label and value with unit of each line that `str` prints."""
        return [
            ("mean of one", seconds(self.law.mean)),
            ("mean of the slowest", seconds(self.mean)),
            *percentile_rows("one", self.law.quantile, percentiles),
            *percentile_rows("slowest", self.quantile, percentiles),
            ("slower than one's p99", f"{prob_any(0.01, n=self.n):.4%}"),
        ]

    def __str__(self) -> str:
        return "\n".join([f"the slowest of {self.n:,}", *(f"  {label:<24}{value}" for label, value in self.rows())])


def max_of_n(law: Any, *, n: int) -> Slowest:
    """The slowest of `n` independent calls of one law: what a request waits for that fans out to `n` servers.

        P(max <= t) = P(S <= t)^n;   for an exponential the mean is mean x (1 + 1/2 + … + 1/n)

    Exact for exponential, power-law and measured (`Empirical`) times; otherwise mean and variance come from numerical
    integrals of the exact law. `law` is of module `service` or a frozen scipy.stats distribution; times in s.
    Independence is assumed: shared causes make the true maximum smaller.

    Source: David and Nagaraja, "Order Statistics" (3rd ed., 2003), sections 2.1 and 3.1; Dean and Barroso, CACM 56(2),
    2013.

    Raises:
        UnderloadError: no law, or n that is no whole number from 1 to a million.
    """
    one = law_of(law, "law")
    n = arguments.whole("n", n, least=1, most=1_000_000)
    atoms = one.atoms()
    if isinstance(one, Exponential):
        k = np.arange(n, 0, -1.0)
        return Slowest(one, n, one.mean * float((1 / k).sum()), one.mean**2 * float((1 / k**2).sum()))
    if atoms is not None:
        values, weights = atoms
        below = np.minimum(np.cumsum(weights), 1.0)
        below[-1] = 1.0
        chance = np.diff(below**n, prepend=0.0)
        mean = float(values @ chance)
        return Slowest(one, n, mean, max(0.0, float((values - mean) ** 2 @ chance)))

    if isinstance(one, Pareto):  # a heavy tail wants its closed form: E[max^k] = low^k n B(n, 1 - k/shape)
        from scipy.special import poch

        def moment(k: int) -> float:
            if k >= one.shape:
                return math.inf
            part = k / one.shape  # as a ratio of gammas: the difference of their logarithms loses digits at large n
            return one.low**k * math.gamma(1 - part) * float(poch(n + 1 - part, part))

        return Slowest(one, n, moment(1), max(0.0, moment(2) - moment(1) ** 2))

    def tail(t: float) -> float:
        return _any(float(one.tail(t)), n)

    mean = integral(tail, one, scale=one.mean)
    second = (
        2 * integral(lambda t: t * tail(t), one, scale=one.second_moment)
        if math.isfinite(one.second_moment)
        else math.inf
    )
    return Slowest(one, n, mean, max(0.0, second - mean**2))


@dataclass(frozen=True)
class Hedged:
    """A request sent once more when no answer is there after `delay` seconds; the first answer counts."""

    law: Service
    backup: Service
    delay: float  # s
    extra_load: float  # requests sent on top, as a share of all
    mean: float  # s

    def tail(self, t: float) -> float:
        """P(no answer by t), t in s: the first copy's tail, from the delay on times the backup's.

        Raises:
            UnderloadError: t is no finite number.
        """
        t = arguments.number("t", t)
        first = float(self.law.tail(t))
        return first if t < self.delay else first * float(self.backup.tail(t - self.delay))

    def quantile(self, q: float) -> float:
        """The q-th percentile in s; `q` in percent: 99 for p99.

        Raises:
            UnderloadError: q below 0, or not below 100.
        """
        share = arguments.level(q)
        few = share * (1 + 1e-12)  # a share of measured values is a quotient, and may be rounded up
        first_atoms, second_atoms = self.law.atoms(), self.backup.atoms()
        if first_atoms is None and second_atoms is None:
            return invert(self.tail, share, self.law.mean)
        # The tail falls in steps, here at least: where it does, no root finder would meet the step.
        steps = [np.array([0.0, self.delay])]
        if first_atoms is not None:
            steps.append(first_atoms[0])
        if second_atoms is not None:
            later = self.delay + second_atoms[0]
            # `tail` takes the delay off again, and must not find itself before the step.
            steps.append(np.where(later - self.delay < second_atoms[0], np.nextafter(later, np.inf), later))
        places = np.unique(np.concatenate(steps))
        first = bisect_left(places, True, key=lambda t: self.tail(float(t)) <= few)
        high = float(places[first]) if first < places.size else math.inf
        stepwise = first_atoms is not None and second_atoms is not None
        if first == 0 or stepwise or (high < math.inf and self.tail(math.nextafter(high, 0)) > few):
            return high
        low = float(places[first - 1])
        if math.isinf(high):
            high = 2 * low + self.law.mean
            while self.tail(high) > few:
                low, high = high, 2 * high
        while high - low > 1e-15 * high and low < (middle := (low + high) / 2) < high:
            low, high = (low, middle) if self.tail(middle) <= few else (middle, high)
        return high

    def as_dict(self) -> dict[str, Any]:
        """The figures by name, as for JSON."""
        return {
            "delay": self.delay,
            "extra_load": self.extra_load,
            "mean": self.mean,
            "mean_without": self.law.mean,
        }

    def rows(self, percentiles: Sequence[float] = PERCENTILES) -> list[tuple[str, str]]:
        """Label and value with unit of each line that `str` prints."""
        return [
            ("hedge after", seconds(self.delay)),
            ("extra requests", f"{self.extra_load:.4%}"),
            ("mean without", seconds(self.law.mean)),
            ("mean hedged", seconds(self.mean)),
            *percentile_rows("without", self.law.quantile, percentiles),
            *percentile_rows("hedged", self.quantile, percentiles),
        ]

    def __str__(self) -> str:
        return "\n".join(["hedged requests", *(f"  {label:<22}{value}" for label, value in self.rows())])


def hedged(law: Any, *, delay: float | None = None, percentile: float | None = None, backup: Any = None) -> Hedged:
    """A backup copy after `delay` seconds, or after the `percentile` (95 for p95) of the first copy's own law.

        P(T > t) = P(S > t) for t < delay, P(S > t) P(S' > t - delay) from there on
        extra load = P(S > delay): 5 % when hedging after the p95

    `backup` is the law of the second copy's time, the same by default. An answer at exactly `delay` needs no backup. It
    is assumed that the copies are independent and that the extra load slows nobody down: both flatter the hedge, and
    simulation tells by how much. Times in s.

    Source: Dean and Barroso, "The tail at scale", CACM 56(2), 2013.

    Raises:
        UnderloadError: no law, both or neither of delay and percentile, a negative delay, or a percentile outside 0 to
            100.
    """
    first = law_of(law, "law")
    second = first if backup is None else law_of(backup, "backup")
    if (delay is None) == (percentile is None):
        raise UnderloadError(
            "hedged needs one of delay (in s) and percentile (95 for p95), to say when the backup goes"
        )
    after = arguments.at_least_zero("delay", delay, "s") if percentile is None else first.quantile(percentile)

    def both(t: float) -> float:
        return float(first.tail(after + t)) * float(second.tail(t))

    # Up to the delay, the area under the first tail is E[S] - E[max(S - delay, 0)].
    mean = first.mean - float(first.excess(after))
    if first.atoms() is not None or second.atoms() is not None:
        mean += _stepwise(first, second, after)
    elif isinstance(first, Exponential) and isinstance(second, Exponential):
        mean += float(first.tail(after)) / (1 / first.mean + 1 / second.mean)
    else:
        mean += integral(both, second, scale=first.mean)
    return Hedged(first, second, after, float(first.tail(after)), mean)


def _any(share: float, n: int) -> float:
    return 1.0 if share >= 1 else -math.expm1(n * math.log1p(-share))


def _stepwise(first: Service, second: Service, delay: float) -> float:
    """The integral from 0 of P(first > delay + t) P(second > t), one of the two being constant between its values."""
    steps: list[np.ndarray] = []
    for law, shift in ((first, delay), (second, 0.0)):
        atoms = law.atoms()
        if atoms is not None:
            steps.append(atoms[0] - shift)
    edges = np.unique(np.concatenate([np.zeros(1), *(step[step > 0] for step in steps)]))
    low, high = edges[:-1], edges[1:]
    if first.atoms() is None:  # the backup is constant on each piece, the first copy's area is known
        areas = np.asarray(first.excess(delay + low)) - np.asarray(first.excess(delay + high))
        return float(areas @ np.asarray(second.tail(low)))
    areas = np.asarray(second.excess(low)) - np.asarray(second.excess(high))
    return float(areas @ np.asarray(first.tail(delay + low)))
