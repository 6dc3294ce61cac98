"""Poisson processes whose rate changes: at random, in steps, or over the day."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from underload.queueing import arguments
from underload.request.errors import UnderloadError
from underload.workload.arrivals import Arrivals, Times, checked_window, sizes


@dataclass(frozen=True)
class OnOff(Arrivals):
    """A Poisson process whose rate jumps between `on_rate` and `off_rate` (two-state MMPP), stationary.

    It stays exponential times of mean `mean_on` and `mean_off` seconds in each. With λ₁, λ₂ the rates, σ₁ = 1/mean_on,
    σ₂ = 1/mean_off and λ the mean rate, with D = (λ₁ - λ₂)² σ₁σ₂ / (σ₁ + σ₂)²:

        CV² = 1 + 2D / (λ₁λ₂ + λ₁σ₂ + λ₂σ₁)
        index in windows of t = 1 + 2D / (λ (σ₁ + σ₂)) · (1 - (1 - exp(-(σ₁ + σ₂)t)) / ((σ₁ + σ₂)t))

    Sources: Heffes and Lucantoni, IEEE JSAC 4(6), 1986; Fischer and Meier-Hellstern, Performance Evaluation 18, 1993.

    Raises:
        UnderloadError: a rate below 0, both rates 0, or a mean time not above 0.
    """

    on_rate: float  # 1/s
    off_rate: float  # 1/s
    mean_on: float  # s
    mean_off: float  # s

    def __post_init__(self) -> None:
        arguments.at_least_zero("on_rate", self.on_rate, "1/s")
        arguments.at_least_zero("off_rate", self.off_rate, "1/s")
        arguments.above_zero("mean_on", self.mean_on, "s")
        arguments.above_zero("mean_off", self.mean_off, "s")
        if self.on_rate == self.off_rate == 0:
            raise UnderloadError("on_rate and off_rate are both 0: nothing ever arrives; give one of them a rate")

    @property
    def share_on(self) -> float:
        """Share of the time in the on state."""
        return self.mean_on / (self.mean_on + self.mean_off)

    @property
    def rate(self) -> float:  # type: ignore[override]  # a derived number here
        return self.share_on * self.on_rate + (1 - self.share_on) * self.off_rate

    @property
    def _spread(self) -> float:
        return (self.on_rate - self.off_rate) ** 2 * self.share_on * (1 - self.share_on)

    @property
    def cv(self) -> float:
        below = self.on_rate * self.off_rate + self.on_rate / self.mean_off + self.off_rate / self.mean_on
        return math.sqrt(1 + 2 * self._spread / below)

    def idc_at(self, window: float) -> float:
        window = checked_window(window)
        speed = 1 / self.mean_on + 1 / self.mean_off
        most = 2 * self._spread / (self.rate * speed)
        if math.isinf(window):
            return 1 + most
        return 1 + most * (1 + math.expm1(-speed * window) / (speed * window))

    def _chunks(self, rng: np.random.Generator) -> Iterator[Times]:
        pairs = 256
        means = np.tile([self.mean_on, self.mean_off], pairs)
        rates = np.tile([self.on_rate, self.off_rate], pairs)
        if rng.random() >= self.share_on:  # off at 0; what is left of an exponential stay is one
            means, rates = means[::-1], rates[::-1]

        def pieces(start: float, area: float) -> tuple[Times, Times]:
            stays = rng.standard_exponential(2 * pairs) * means
            return _running(start, stays), _running(area, stays * rates)

        edges, cumulative = pieces(0.0, 0.0)
        work = 0.0
        for size in sizes():
            target = work + np.cumsum(rng.standard_exponential(size))
            work = float(target[-1])
            found = []
            while len(target):
                inside = target[: np.searchsorted(target, cumulative[-1], side="left")]
                found.append(_inverse(inside, edges, rates, cumulative))
                target = target[len(inside) :]
                if len(target):
                    edges, cumulative = pieces(float(edges[-1]), float(cumulative[-1]))
            yield np.concatenate(found)


@dataclass(frozen=True)
class PiecewiseConstant(Arrivals):
    """A Poisson process with rate `rates[i]` from `edges[i]` to `edges[i + 1]`, by inversion, hence exact.

    The first edge is 0; the last may be infinite. With `repeat` the whole comes again after the last edge. Without, the
    time after the last edge is not known, and a horizon beyond it is an error rather than silence.

    Within a step CV and index are 1. Over the whole, where the rate changes slowly against the gaps, the CV² of the
    gaps tends to 2 E[λ] E[1/λ] - 1 (time averages), and the index in windows to 1 + variance / mean of the expected
    counts.

    Raises:
        UnderloadError: edges that do not rise from 0, another number of rates than of steps, a rate below 0, no rate
            above 0, or `repeat` with an infinite last edge.
    """

    edges: Sequence[float]  # s
    rates: Sequence[float]  # 1/s
    repeat: bool = False
    rate: float = field(init=False)

    def __post_init__(self) -> None:
        if not (isinstance(self.edges, Iterable) and isinstance(self.rates, Iterable)):
            raise UnderloadError(f"edges and rates are rows of numbers, got {self.edges!r:.40} and {self.rates!r:.40}")
        edges = tuple(map(arguments.as_float, self.edges))  # NaN rises from nowhere
        rates = tuple(arguments.at_least_zero("a rate", rate, "1/s") for rate in self.rates)
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "rates", rates)
        if len(edges) != len(rates) + 1 or not rates:
            raise UnderloadError(
                f"{len(rates)} rates need {len(rates) + 1} edges, got {len(edges)}; give each step an end"
            )
        if edges[0] != 0 or not all(a < b for a, b in pairwise(edges)):
            raise UnderloadError(f"edges must rise from 0, got {edges!r:.80}; sort them, and begin at 0")
        if self.repeat and math.isinf(edges[-1]):
            raise UnderloadError("what never ends cannot repeat; give the last edge a time, or leave repeat out")
        if not any(rates):
            raise UnderloadError("every rate is 0: nothing ever arrives; give one step a rate")
        if math.isinf(edges[-1]):
            rate = rates[-1]
        else:
            rate = math.fsum(r * (b - a) for r, a, b in zip(rates, edges, edges[1:])) / edges[-1]
        object.__setattr__(self, "rate", rate)

    def rate_at(self, t: ArrayLike) -> Times:
        """The rate in 1/s at an instant or many."""
        times = np.asarray(t, float) % self.edges[-1] if self.repeat else np.asarray(t, float)
        piece = np.searchsorted(self.edges, times, side="right") - 1
        inside = (piece >= 0) & (piece < len(self.rates))
        return np.where(inside, np.asarray(self.rates)[np.clip(piece, 0, len(self.rates) - 1)], 0.0)

    def arrivals(self, rng: np.random.Generator, horizon: float) -> Times:
        if not self.repeat and arguments.at_least_zero("horizon", horizon, "s") > self.edges[-1]:
            raise UnderloadError(
                f"the rates end at {self.edges[-1]:g} s, before the horizon of {horizon:g} s; shorten the horizon, or "
                "give repeat=True"
            )
        return super().arrivals(rng, horizon)

    def _chunks(self, rng: np.random.Generator) -> Iterator[Times]:
        edges, rates = np.asarray(self.edges), np.asarray(self.rates)
        stays = np.diff(edges)
        # an infinite piece of rate 0 has no area; inf * 0 is not a number
        cumulative = _running(0.0, np.where(rates > 0, np.where(rates > 0, stays, 0.0) * rates, 0.0))
        period, area = float(edges[-1]), float(cumulative[-1])
        work = 0.0
        for size in sizes():
            target = work + np.cumsum(rng.standard_exponential(size))
            work = float(target[-1])
            if self.repeat:
                rounds, rest = np.divmod(target, area)
                yield np.maximum.accumulate(rounds * period + _inverse(rest, edges, rates, cumulative))
                continue
            inside = target[: np.searchsorted(target, area, side="left")]
            yield _inverse(inside, edges, rates, cumulative)
            if len(inside) < size:
                return


def _running(start: float, steps: Times) -> Times:
    return np.concatenate([[start], start + np.cumsum(steps)])


def _inverse(work: Times, edges: Times, rates: Times, cumulative: Times) -> Times:
    """The instants at which the integral of the rate reaches `work`, inside the pieces given."""
    # side="right" steps over the pieces of rate 0, whose integral stands still
    piece = np.minimum(np.searchsorted(cumulative, work, side="right") - 1, len(rates) - 1)
    return np.minimum(edges[piece] + (work - cumulative[piece]) / rates[piece], edges[piece + 1])


DAY = 86400.0


@dataclass(frozen=True)
class Diurnal(Arrivals):
    """A Poisson process with rate · (1 + swing · cos(2π (t - peak) / period)), by thinning. `hourly` takes 24 rates.

    Seen at a random phase, the index of dispersion in windows of w is
    1 + rate · w · swing²/2 · (sin(πw/period) / (πw/period))².

    Raises:
        UnderloadError: a rate or a period not above 0, or a swing outside 0 to 1.
    """

    rate: float  # mean, 1/s
    swing: float = 0.5
    period: float = DAY  # s
    peak: float = 0.0  # s: when the rate is highest

    def __post_init__(self) -> None:
        arguments.above_zero("rate", self.rate, "1/s")
        arguments.above_zero("period", self.period, "s")
        arguments.number("peak", self.peak)
        if not 0 <= arguments.number("swing", self.swing) <= 1:
            raise UnderloadError(f"swing must be from 0 (constant) to 1 (down to rate 0), got {self.swing:g}")

    @staticmethod
    def hourly(rates: Sequence[float]) -> PiecewiseConstant:
        """Rates in 1/s for the 24 hours from midnight, day after day.

        Raises:
            UnderloadError: other than 24 rates, or a rate below 0.
        """
        if len(rates) != 24:
            raise UnderloadError(f"a day has 24 hourly rates, got {len(rates)}; PiecewiseConstant takes any steps")
        return PiecewiseConstant([hour * 3600.0 for hour in range(25)], rates, repeat=True)

    def rate_at(self, t: ArrayLike) -> Times:
        """The rate in 1/s at an instant or many."""
        return self.rate * (1 + self.swing * np.cos(2 * np.pi * (np.asarray(t, float) - self.peak) / self.period))

    def idc_at(self, window: float) -> float:
        window = checked_window(window)
        if math.isinf(window):
            return 1.0
        return float(1 + self.rate * window * self.swing**2 / 2 * np.sinc(window / self.period) ** 2)

    def _chunks(self, rng: np.random.Generator) -> Iterator[Times]:
        most = self.rate * (1 + self.swing)
        last = 0.0
        for size in sizes():
            candidates = last + np.cumsum(rng.standard_exponential(size)) / most
            last = float(candidates[-1])
            yield candidates[rng.random(size) * most < self.rate_at(candidates)]
