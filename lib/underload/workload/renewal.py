"""Renewal processes: gaps that are independent and have one law."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from underload.queueing import arguments
from underload.request.errors import UnderloadError
from underload.workload.arrivals import MOST, Arrivals, Times, checked_rate, checked_window, sizes


class Renewal(Arrivals):
    """Gaps that are independent and have one law: the index of dispersion tends to CV² in long windows."""

    @abstractmethod
    def gaps(self, rng: np.random.Generator, n: int) -> Times:
        """n independent gaps in s."""

    @abstractmethod
    def residual(self, rng: np.random.Generator) -> float:
        """What is left of the gap in which a random instant falls, in s: a random part of a length-biased gap."""

    def idc_at(self, window: float) -> float | None:
        return self.cv**2 if window == math.inf and self.cv is not None else None

    def _chunks(self, rng: np.random.Generator) -> Iterator[Times]:
        if math.isinf(self.rate):
            for size in sizes():
                yield np.zeros(size)
        last = self.residual(rng)
        yield np.array([last])
        for size in sizes():
            chunk = last + np.cumsum(self.gaps(rng, size))
            last = float(chunk[-1])
            yield chunk


@dataclass(frozen=True)
class Poisson(Renewal):
    """Exponential gaps with mean 1/rate: CV 1, index of dispersion 1 in every window.

    At rate inf all arrive at 0 (`first(rng, n)`).

    Raises:
        UnderloadError: a rate not above 0.
    """

    rate: float  # 1/s

    def __post_init__(self) -> None:
        checked_rate(self.rate)

    @property
    def cv(self) -> float:
        return 1.0

    def idc_at(self, window: float) -> float:
        return 1.0

    def gaps(self, rng: np.random.Generator, n: int) -> Times:
        return rng.standard_exponential(arguments.whole("n", n, least=0, most=MOST)) / self.rate

    def residual(self, rng: np.random.Generator) -> float:
        return float(rng.standard_exponential()) / self.rate


@dataclass(frozen=True)
class Gamma(Renewal):
    """Gamma-distributed gaps with mean 1/rate and shape `burstiness`: CV 1/√burstiness, index → 1/burstiness.

    The name is that of `vllm bench serve --burstiness`, and it runs backwards: 1 is Poisson, *smaller* is burstier,
    infinite gives equal gaps (with a random phase). At rate inf all arrive at 0.

    Raises:
        UnderloadError: a rate or a burstiness not above 0.
    """

    rate: float  # 1/s
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        checked_rate(self.rate)
        if self.burstiness != math.inf:
            arguments.above_zero("burstiness (1 is Poisson, below 1 burstier)", self.burstiness, "")

    @property
    def cv(self) -> float:
        return 1 / math.sqrt(self.burstiness)

    def gaps(self, rng: np.random.Generator, n: int) -> Times:
        n = arguments.whole("n", n, least=0, most=MOST)
        if math.isinf(self.rate) or math.isinf(self.burstiness):
            return np.full(n, 1 / self.rate)
        return rng.standard_gamma(self.burstiness, n) / self.burstiness / self.rate

    def residual(self, rng: np.random.Generator) -> float:
        # Length-biased, a gamma law is the gamma law of one more shape.
        if math.isinf(self.burstiness):
            return float(rng.random()) / self.rate
        return float(rng.random() * rng.standard_gamma(self.burstiness + 1) / self.burstiness / self.rate)


@dataclass(frozen=True)
class Weibull(Renewal):
    """Weibull-distributed gaps with mean 1/rate. CV² = Γ(1 + 2/shape)/Γ(1 + 1/shape)² - 1; below shape 1 it is above 1.

    Raises:
        UnderloadError: a rate not above 0, or a shape below 0.05, where the CV passes 10^5.
    """

    rate: float  # 1/s
    shape: float

    def __post_init__(self) -> None:
        checked_rate(self.rate)
        if arguments.number("shape", self.shape) < 0.05:
            raise UnderloadError(f"shape must be at least 0.05 (1 is Poisson, below it burstier), got {self.shape:g}")

    @property
    def cv(self) -> float:
        log = math.lgamma(1 + 2 / self.shape) - 2 * math.lgamma(1 + 1 / self.shape)
        return math.sqrt(max(0.0, math.expm1(log)))

    @property
    def scale(self) -> float:
        """The gap that 1/e of all gaps exceed, in s."""
        return math.exp(-math.lgamma(1 + 1 / self.shape)) / self.rate

    def gaps(self, rng: np.random.Generator, n: int) -> Times:
        return self.scale * rng.weibull(self.shape, arguments.whole("n", n, least=0, most=MOST))

    def residual(self, rng: np.random.Generator) -> float:
        biased = rng.standard_gamma(1 + 1 / self.shape) ** (1 / self.shape)
        return float(rng.random() * biased) * self.scale


@dataclass(frozen=True)
class Deterministic(Renewal):
    """Equal gaps of 1/rate, the first arrival at `phase` seconds: CV 0.

    Its index of dispersion, seen at a random phase, is f(1 - f)/(rate x window) with f the fractional part of
    rate x window: 0 in long windows. At rate inf all arrive at 0.

    Raises:
        UnderloadError: a rate not above 0, or a phase below 0.
    """

    rate: float  # 1/s
    phase: float = 0.0  # s

    def __post_init__(self) -> None:
        checked_rate(self.rate)
        arguments.at_least_zero("phase", self.phase, "s")

    @property
    def cv(self) -> float:
        return 0.0

    def idc_at(self, window: float) -> float:
        mean = self.rate * checked_window(window)
        return 0.0 if math.isinf(mean) else math.fmod(mean, 1) * (1 - math.fmod(mean, 1)) / mean

    def gaps(self, rng: np.random.Generator, n: int) -> Times:
        return np.full(arguments.whole("n", n, least=0, most=MOST), 1 / self.rate)

    def residual(self, rng: np.random.Generator) -> float:
        return self.phase

    def _chunks(self, rng: np.random.Generator) -> Iterator[Times]:
        # Multiples, not sums: the thousandth arrival is 1000/rate to the last digit.
        start = 0
        for size in sizes():
            yield self.phase + np.arange(start, start + size) / self.rate
            start += size
