"""Laws of a service time (or of a gap between arrivals): what the formulas ask of one.

    Deterministic     always the same
    Exponential       memoryless; scv 1
    Erlang            a sum of equal exponential phases; scv 1/phases
    Hyperexponential  one exponential or another; scv above 1
    Lognormal         a skewed law with a moderate tail
    Pareto            a power law: its variance is infinite at shape 2 and below
    BoundedPareto     a power law between two limits
    Empirical         the values you measured, each as likely as the other

A frozen distribution of `scipy.stats` that is continuous and not negative does as well. All times in s. `tail`, `isf`
and `excess` take a number or an array; `draw` makes samples.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from underload.queueing import arguments
from underload.request.errors import UnderloadError

Real = float | NDArray[np.float64]


class Service(ABC):
    """The law of a time S >= 0 in seconds."""

    if TYPE_CHECKING:  # not at run time: a property here would bar a field of that name in a dataclass below

        @property
        def mean(self) -> float:
            """E[S] in s."""

        @property
        def scv(self) -> float:
            """The squared coefficient of variation, variance / mean²: 0 for a constant, 1 for an exponential."""

    @property
    @abstractmethod
    def second_moment(self) -> float:
        """E[S²] in s²; may be infinite."""

    @abstractmethod
    def tail(self, t: Real) -> Any:
        """P(S > t)."""

    @abstractmethod
    def isf(self, share: Real) -> Any:
        """The smallest t that S exceeds with probability `share` at most."""

    @abstractmethod
    def excess(self, t: Real) -> Any:
        """E[max(S - t, 0)] in s, the area under the tail from t >= 0 on."""

    def quantile(self, q: float) -> float:
        """The q-th percentile in s; `q` in percent: 99 for p99.

        Raises:
            UnderloadError: q below 0, or not below 100.
        """
        return float(self.isf(arguments.level(q)))

    def draw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        """n independent times in s. The first k of them do not depend on n, and so not on how long a run is."""
        return np.asarray(self.isf(1 - rng.random(n)), dtype=np.float64)

    def lst(self, s: float) -> float:
        """E[exp(-s S)] for s >= 0 in 1/s, the Laplace–Stieltjes transform."""
        return max(0.0, 1 - self.lst_rest(s))  # an integral's own error may take it below 0, where no transform is

    def lst_rest(self, s: float) -> float:
        """1 - E[exp(-s S)], which keeps its digits where s is small."""
        # s ∫ exp(-st) P(S > t) dt, where the exponential cuts the tail off.
        if s == 0:
            return 0.0

        def cut(t: float) -> float:
            return math.exp(-s * t) * float(self.tail(t))

        return s * integral(cut, self, scale=min(self.mean, 1 / s), reach=40 / s)

    def atoms(self) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """The values and their probabilities, ascending, where there are finitely many; else None."""
        return None


class Moments(Service):
    """A law whose scv follows from its first two moments."""

    @property
    def scv(self) -> float:
        return max(0.0, self.second_moment / self.mean**2 - 1)


@dataclass(frozen=True)
class Deterministic(Service):
    """Always `value` seconds.

    Raises:
        UnderloadError: a value not above 0.
    """

    value: float  # s

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", arguments.above_zero("value", self.value, "s"))

    @property
    def mean(self) -> float:
        return self.value

    @property
    def second_moment(self) -> float:
        return self.value**2

    @property
    def scv(self) -> float:
        return 0.0

    def tail(self, t: Real) -> Any:
        return np.where(np.asarray(t) < self.value, 1.0, 0.0)

    def isf(self, share: Real) -> Any:
        return np.where(np.asarray(share) < 1, self.value, 0.0)

    def excess(self, t: Real) -> Any:
        return np.maximum(self.value - np.asarray(t), 0.0)

    def draw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        return np.full(n, float(self.value))

    def lst(self, s: float) -> float:
        return math.exp(-s * self.value)

    def lst_rest(self, s: float) -> float:
        return -math.expm1(-s * self.value)

    def atoms(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return np.array([self.value]), np.ones(1)


@dataclass(frozen=True)
class Hyperexponential(Moments):
    """With probability `shares[i]` exponential with mean `means[i]` seconds. `of` makes one from a mean and an scv.

    Raises:
        UnderloadError: lists of unlike length, a mean not above 0, a share not above 0, or shares whose sum is not 1.
    """

    shares: tuple[float, ...]
    means: tuple[float, ...]  # s

    def __post_init__(self) -> None:
        object.__setattr__(self, "shares", tuple(arguments.above_zero("a share", p, "") for p in self.shares))
        object.__setattr__(self, "means", tuple(arguments.above_zero("a mean", m, "s") for m in self.means))
        if not self.shares or len(self.shares) != len(self.means) or abs(math.fsum(self.shares) - 1) > 1e-9:
            raise UnderloadError(
                f"shares {self.shares} and means {self.means} must be as many, and the shares must add up to 1"
            )

    @classmethod
    def of(cls, mean: float, scv: float) -> Hyperexponential:
        """Two exponentials with this mean and scv, each carrying half of the work ("balanced means").

        Source: Tijms, "A First Course in Stochastic Models" (2003), appendix B.

        Raises:
            UnderloadError: a mean not above 0, or an scv below 1, which no mixture of exponentials has (take `Erlang`).
        """
        mean, scv = arguments.above_zero("mean", mean, "s"), arguments.at_least_zero("scv", scv, "")
        if scv < 1:
            raise UnderloadError(f"a mixture of exponentials has an scv of at least 1, got {scv:g}; take Erlang")
        gap = math.sqrt((scv - 1) / (scv + 1))
        # The smaller share is written so that it keeps its digits at a large scv.
        shares = ((1 + gap) / 2, 1 / ((scv + 1) * (1 + gap)))
        return cls(shares, (mean / (2 * shares[0]), mean / (2 * shares[1])))

    @property
    def mean(self) -> float:
        return math.fsum(p * m for p, m in zip(self.shares, self.means))

    @property
    def second_moment(self) -> float:
        return math.fsum(2 * p * m * m for p, m in zip(self.shares, self.means))

    def tail(self, t: Real) -> Any:
        t = np.maximum(t, 0.0)
        return np.minimum(sum(p * np.exp(-t / m) for p, m in zip(self.shares, self.means)), 1.0)

    def isf(self, share: Real) -> Any:
        return inverse(self.tail, share, self.mean)

    def excess(self, t: Real) -> Any:
        return sum(p * m * np.exp(-np.asarray(t) / m) for p, m in zip(self.shares, self.means))

    def draw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        which, how_long = rng.random((n, 2)).T  # a row each, so that the first draws do not depend on n
        edges = np.cumsum(self.shares)[:-1]
        return -np.asarray(self.means)[np.searchsorted(edges, which, side="right")] * np.log1p(-how_long)

    def lst(self, s: float) -> float:
        return math.fsum(p / (1 + s * m) for p, m in zip(self.shares, self.means))

    def lst_rest(self, s: float) -> float:
        return math.fsum(p * (s * m / (1 + s * m)) for p, m in zip(self.shares, self.means))


@dataclass(frozen=True)
class Exponential(Service):
    """Exponential with mean `mean` seconds: P(S > t) = exp(-t / mean).

    Raises:
        UnderloadError: a mean not above 0.
    """

    mean: float  # s

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", arguments.above_zero("mean", self.mean, "s"))

    @property
    def second_moment(self) -> float:
        return 2 * self.mean**2

    @property
    def scv(self) -> float:
        return 1.0

    def tail(self, t: Real) -> Any:
        return np.exp(-np.maximum(t, 0.0) / self.mean)

    def isf(self, share: Real) -> Any:
        return self.mean * (0.0 - np.log(share))

    def excess(self, t: Real) -> Any:
        return self.mean * np.exp(-np.asarray(t) / self.mean)

    def draw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        return self.mean * rng.standard_exponential(n)

    def lst(self, s: float) -> float:
        return 1 / (1 + s * self.mean)

    def lst_rest(self, s: float) -> float:
        return s * self.mean / (1 + s * self.mean)


@dataclass(frozen=True)
class Erlang(Service):
    """The sum of `phases` independent exponentials, `mean` seconds together; scv 1/phases.

    Raises:
        UnderloadError: a mean not above 0, or phases that are no whole number from 1.
    """

    mean: float  # s
    phases: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", arguments.above_zero("mean", self.mean, "s"))
        object.__setattr__(self, "phases", arguments.whole("phases", self.phases, least=1))

    @property
    def second_moment(self) -> float:
        return self.mean**2 * (1 + self.scv)

    @property
    def scv(self) -> float:
        return 1 / self.phases

    def tail(self, t: Real) -> Any:
        from scipy.special import gammaincc

        return gammaincc(self.phases, np.maximum(t, 0.0) * (self.phases / self.mean))

    def isf(self, share: Real) -> Any:
        from scipy.special import gammainccinv

        return gammainccinv(self.phases, share) * (self.mean / self.phases)

    def excess(self, t: Real) -> Any:
        from scipy.special import gammaincc

        x = np.asarray(t) * (self.phases / self.mean)
        return self.mean * gammaincc(self.phases + 1, x) - t * gammaincc(self.phases, x)

    def draw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        return (self.mean / self.phases) * rng.standard_gamma(self.phases, n)

    def lst(self, s: float) -> float:
        return math.exp(-self.phases * math.log1p(s * self.mean / self.phases))

    def lst_rest(self, s: float) -> float:
        return -math.expm1(-self.phases * math.log1p(s * self.mean / self.phases))


@dataclass(frozen=True)
class Lognormal(Service):
    """exp of a normal variable, with mean `mean` seconds and the given `scv`: sigma² = ln(1 + scv).

    Raises:
        UnderloadError: a mean or an scv not above 0.
    """

    mean: float  # s
    scv: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", arguments.above_zero("mean", self.mean, "s"))
        object.__setattr__(self, "scv", arguments.above_zero("scv", self.scv, ""))

    @property
    def sigma(self) -> float:
        """The standard deviation of ln S."""
        return math.sqrt(math.log1p(self.scv))

    @property
    def median(self) -> float:
        """exp of the mean of ln S, in s."""
        return self.mean / math.sqrt(1 + self.scv)

    @property
    def second_moment(self) -> float:
        return self.mean**2 * (1 + self.scv)

    def tail(self, t: Real) -> Any:
        from scipy.special import ndtr

        with np.errstate(divide="ignore"):
            return ndtr(-np.log(np.maximum(t, 0.0) / self.median) / self.sigma)

    def isf(self, share: Real) -> Any:
        from scipy.special import ndtri

        return self.median * np.exp(-self.sigma * ndtri(share))

    def excess(self, t: Real) -> Any:
        from scipy.special import ndtr

        with np.errstate(divide="ignore"):
            z = np.log(np.maximum(t, 0.0) / self.median) / self.sigma
        return self.mean * ndtr(self.sigma - z) - t * ndtr(-z)

    def draw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        return self.median * np.exp(self.sigma * rng.standard_normal(n))


@dataclass(frozen=True)
class Pareto(Moments):
    """A power law from `low` seconds on: P(S > t) = (low / t)^shape. `of` makes one from its mean.

    Mean shape low / (shape - 1). At shape 2 and below the variance is infinite, and with it the mean wait.

    Raises:
        UnderloadError: a low not above 0, or a shape of 1 or less, where even the mean is infinite.
    """

    low: float  # s
    shape: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", arguments.above_zero("low", self.low, "s"))
        shape = arguments.number("shape", self.shape)
        if shape <= 1:
            raise UnderloadError(
                f"shape must be above 1, got {shape:g}: a heavier tail has no finite mean; take BoundedPareto"
            )
        object.__setattr__(self, "shape", arguments.within_reach("shape", shape, ""))

    @classmethod
    def of(cls, mean: float, shape: float) -> Pareto:
        """The power law of this shape with this mean (s).

        Raises:
            UnderloadError: a mean not above 0, or a shape of 1 or less.
        """
        shaped = cls(1.0, shape)
        return cls(arguments.above_zero("mean", mean, "s") / shaped.mean, shape)

    @property
    def mean(self) -> float:
        return self.low * self.shape / (self.shape - 1)

    @property
    def second_moment(self) -> float:
        return self.low**2 * self.shape / (self.shape - 2) if self.shape > 2 else math.inf

    def tail(self, t: Real) -> Any:
        return (self.low / np.maximum(t, self.low)) ** self.shape

    def isf(self, share: Real) -> Any:
        return self.low * np.asarray(share) ** (-1 / self.shape)

    def excess(self, t: Real) -> Any:
        beyond = np.maximum(t, self.low)
        return np.maximum(self.low - np.asarray(t), 0.0) + beyond * (self.low / beyond) ** self.shape / (self.shape - 1)


@dataclass(frozen=True)
class BoundedPareto(Moments):
    """A power law of exponent `shape` between `low` and `high` seconds, cut off and renormalised.

    Raises:
        UnderloadError: limits that are not above 0 or not ascending, or a shape not above 0.
    """

    low: float  # s
    high: float  # s
    shape: float

    def __post_init__(self) -> None:
        low, high = arguments.above_zero("low", self.low, "s"), arguments.above_zero("high", self.high, "s")
        if high <= low:
            raise UnderloadError(f"high must be above low = {low:g} s, got {high:g}; swap them?")
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)
        object.__setattr__(self, "shape", arguments.above_zero("shape", self.shape, ""))

    def _area(self, power: float, t: Real) -> Any:
        """shape low^shape times the integral of x^(power - shape - 1) from t to high."""
        rest = power - self.shape
        t = np.asarray(t, dtype=float)
        # (high^rest - t^rest)/rest / t^rest, without cancellation and without a special case at rest = 0.
        span = np.log(self.high / t)
        part = np.expm1(rest * span) / rest if abs(rest) > 1e-12 else span
        # A power of low/t, which is 1 at most: low^shape by itself may leave the doubles.
        return self.shape * (self.low / t) ** self.shape * t**power * part

    @property
    def _kept(self) -> float:
        return -math.expm1(self.shape * math.log(self.low / self.high))

    @property
    def mean(self) -> float:
        return float(self._area(1, self.low) / self._kept)

    @property
    def second_moment(self) -> float:
        return float(self._area(2, self.low) / self._kept)

    def tail(self, t: Real) -> Any:
        return np.minimum(self._area(0, np.clip(t, self.low, self.high)) / self._kept, 1.0)

    def isf(self, share: Real) -> Any:
        cut = (self.low / self.high) ** self.shape
        return self.low * (np.asarray(share) * self._kept + cut) ** (-1 / self.shape)

    def excess(self, t: Real) -> Any:
        inside = np.clip(t, self.low, self.high)
        over = (self._area(1, inside) - inside * self._area(0, inside)) / self._kept
        return np.maximum(over, 0.0) + np.maximum(self.low - np.asarray(t), 0.0)


class Empirical(Moments):
    """The measured values themselves, each as likely as the other: seconds, at least one above 0.

    Raises:
        UnderloadError: no value, a negative one, one that is not finite, or nothing but zeros.
    """

    def __init__(self, values: Sequence[float] | NDArray[np.float64]) -> None:
        try:
            found = np.sort(np.asarray(values, dtype=float).ravel())
        except (TypeError, ValueError, OverflowError):
            raise UnderloadError(
                f"values must be numbers in seconds, got {values!r:.60}; mend what read them"
            ) from None
        if not found.size or not np.isfinite(found).all() or found[0] < 0 or found[-1] == 0:
            what = f"{found.size} values" + (f" from {found[0]:g} to {found[-1]:g}" if found.size else "")
            raise UnderloadError(f"values must be finite, none negative and one above 0 s at least, got {what}")
        arguments.within_reach("the largest value", float(found[-1]), "s")
        self._values = found
        self._mean = float(found.mean())  # asked for at every draw, by whoever tells services apart
        # _after[i]: the sum of the values from the i-th on.
        self._after = np.concatenate([np.cumsum(found[::-1])[::-1], [0.0]])

    def __repr__(self) -> str:
        return f"Empirical(<{self._values.size} values, mean {self.mean:g} s, scv {self.scv:g}>)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Empirical) and np.array_equal(self._values, other._values)

    def __hash__(self) -> int:
        return hash((self._values.size, self._mean))

    @property
    def mean(self) -> float:
        return self._mean

    @property
    def second_moment(self) -> float:
        return float(np.mean(self._values**2))

    def tail(self, t: Real) -> Any:
        return 1 - np.searchsorted(self._values, t, side="right") / self._values.size

    def isf(self, share: Real) -> Any:
        n = self._values.size
        # The smallest value with at most share x n above it; the hair keeps 0.01 x 100 from counting as less than 1.
        above = np.floor(np.asarray(share) * n * (1 + 1e-12)).astype(int)
        return np.where(above >= n, 0.0, self._values[np.maximum(n - 1 - above, 0)])

    def excess(self, t: Real) -> Any:
        first = np.searchsorted(self._values, t, side="right")
        return (self._after[first] - np.asarray(t) * (self._values.size - first)) / self._values.size

    def draw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        return self._values[rng.integers(self._values.size, size=n)]

    def lst(self, s: float) -> float:
        return float(np.exp(-s * self._values).mean())

    def lst_rest(self, s: float) -> float:
        return float(-np.expm1(-s * self._values).mean())

    def atoms(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        values, counts = np.unique(self._values, return_counts=True)
        return values, counts / self._values.size


@dataclass(frozen=True, eq=False)
class Frozen(Moments):
    """A frozen continuous distribution of `scipy.stats` that takes no negative value."""

    law: Any

    @property
    def mean(self) -> float:
        return float(self.law.mean())

    @property
    def second_moment(self) -> float:
        return float(self.law.var()) + self.mean**2

    def tail(self, t: Real) -> Any:
        return self.law.sf(t)

    def isf(self, share: Real) -> Any:
        return self.law.isf(share)

    def draw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        return np.asarray(self.law.rvs(size=n, random_state=rng), dtype=np.float64)

    def excess(self, t: Real) -> Any:
        # The area under the tail is built up from one t to the next, so a grid costs one pass.
        points = np.atleast_1d(np.asarray(t, dtype=float))
        order = np.argsort(points, kind="stable")
        ends = points[order]
        nodes, weights = np.polynomial.legendre.leggauss(8)
        pieces = np.concatenate([[0.0], ends])
        if ends.size < 16:  # a few far ends: each piece needs more than eight points
            pieces = np.unique(np.concatenate([pieces, np.linspace(0, ends[-1], 2_049)]))
        half = np.diff(pieces) / 2
        area = np.cumsum((self.tail(half[:, None] * (nodes + 1) + pieces[:-1, None]) @ weights) * half)
        area = np.concatenate([[0.0], area])[np.searchsorted(pieces, ends, side="left")]
        found = np.empty_like(points)
        found[order] = np.maximum(self.mean - area, 0.0)
        return found if np.ndim(t) else float(found[0])


def law_of(service: Any, name: str = "service") -> Service:
    """`service` as a law: itself, or a frozen distribution of scipy.stats in its wrapper.

    Raises:
        UnderloadError: neither, a discrete one, one that may be negative, or one without a finite mean above 0.
    """
    if isinstance(service, Service):
        return service
    if not (hasattr(service, "sf") and hasattr(service, "isf") and hasattr(service, "mean")):
        raise UnderloadError(
            f"{name} must be a law such as Exponential(0.02) or a frozen scipy.stats distribution, got {service!r:.60}"
        )
    if hasattr(service, "freeze"):  # a family, whose functions take the parameters that nobody gave
        raise UnderloadError(
            f"{name} is a family of scipy.stats without its parameters; freeze it first, as in expon(scale=0.02)"
        )
    if not hasattr(service, "pdf"):
        raise UnderloadError(f"{name} is a discrete distribution; give its values as Empirical(values)")
    low = float(service.support()[0])
    if low < 0:
        raise UnderloadError(f"{name} may be as low as {low:g}, but a time is never negative; take another law")
    mean = float(service.mean())
    if not 0 < mean < math.inf:
        raise UnderloadError(f"{name} has mean {mean:g}; the formulas need one that is above 0 and finite")
    arguments.within_reach(f"the mean of {name}", mean, "s")
    return Frozen(service)


def inverse(tail: Any, share: Real, scale: float) -> Any:
    """The t at which a tail without jumps falls to `share`, number or array, by bisection of the doubles."""
    goal = np.asarray(share, dtype=float)
    low, high = np.zeros_like(goal), np.full_like(goal, scale)
    for _ in range(1_100):
        over = tail(high) > goal
        if not over.any():
            break
        low, high = np.where(over, high, low), np.where(over, 2 * high, high)
    for _ in range(70):
        middle = (low + high) / 2
        over = tail(middle) > goal
        low, high = np.where(over, middle, low), np.where(over, high, middle)
    return high


def integral(function: Any, law: Service, *, scale: float, reach: float = math.inf) -> float:
    """The integral of `function` from 0 to `reach`, cut where a law's bulk and its tail want finer steps.

    Each piece is good to 1e-10 of itself or to 1e-13 of `scale`, a value that the whole is known to be near.
    """
    from scipy.integrate import quad

    shares = (1.0, 1 - 1e-12, 1 - 1e-9, 1 - 1e-6, 0.999, 0.9, 0.5, 0.1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-9, 1e-12)
    cuts = {float(law.isf(share)) for share in shares} | {0.0}
    if isinstance(law, Frozen):
        cuts |= {float(end) for end in law.law.support()}
    ends = [*sorted(cut for cut in cuts if 0 <= cut < reach and math.isfinite(cut)), reach]
    total = [
        quad(function, a, b, limit=200, epsabs=1e-13 * scale, epsrel=1e-10)[0]
        for a, b in pairwise(ends)
        if a < b and math.isfinite(b)
    ]
    if math.isinf(reach):
        # The rest in logarithms of t, where a power law falls exponentially.
        start = ends[-2]
        far = 650 - math.log(start)

        def scaled(x: float) -> float:
            return float(function(start * math.exp(x))) * start * math.exp(x)

        ends = [0.0, 3.0, 30.0, far]
        total += [quad(scaled, a, b, limit=200, epsabs=1e-13 * scale, epsrel=1e-10)[0] for a, b in pairwise(ends)]
    return math.fsum(total)
