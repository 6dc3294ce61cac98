"""How long prompts and answers are, in tokens.

    FixedTokens, UniformTokens, GeometricTokens, LognormalTokens, EmpiricalTokens   one length
    Lengths          a prompt and an answer, independent or correlated, inside a context limit
    EmpiricalPairs   pairs as they were measured, so that long prompts keep their answers

All draw by inversion, one uniform number for each length: with the same generator another law, or another mean, gives
requests that are long where they were long before, which makes comparisons sharper.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from underload.queueing import arguments
from underload.request.errors import UnderloadError

Ints = NDArray[np.int64]
Beyond = Literal["truncate", "redraw"]

MOST = 10**9  # tokens in one length


class Tokens(ABC):
    """The law of a whole number from 1."""

    @abstractmethod
    def quantile(self, u: NDArray[np.float64]) -> Ints:
        """The lengths below which a share `u` (0 to 1) lies."""

    def draw(self, rng: np.random.Generator, n: int) -> Ints:
        """n independent lengths."""
        return self.quantile(rng.random(n))


def _counts(values: NDArray[np.float64]) -> Ints:
    """Rounded to whole tokens, at least one, at most a billion."""
    return np.clip(np.rint(values), 1, MOST).astype(np.int64)


@dataclass(frozen=True)
class FixedTokens(Tokens):
    """Always the same.

    Raises:
        UnderloadError: fewer than 1 token.
    """

    tokens: int

    def __post_init__(self) -> None:
        arguments.whole("tokens", self.tokens, least=1, most=MOST)

    def quantile(self, u: NDArray[np.float64]) -> Ints:
        return np.full(np.shape(u), self.tokens, np.int64)


@dataclass(frozen=True)
class UniformTokens(Tokens):
    """Every whole number from `low` to `high`, both included, alike.

    Raises:
        UnderloadError: low below 1, or high below low.
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        arguments.whole("low", self.low, least=1, most=MOST)
        arguments.whole("high", self.high, least=self.low, most=MOST)

    def quantile(self, u: NDArray[np.float64]) -> Ints:
        return np.minimum(self.low + np.floor(u * (self.high - self.low + 1)), self.high).astype(np.int64)


@dataclass(frozen=True)
class GeometricTokens(Tokens):
    """1, 2, 3, … with P(more than k) = (1 - 1/mean)^k: as if every token ended the text with the same probability.

    Raises:
        UnderloadError: a mean below 1.
    """

    mean: float

    def __post_init__(self) -> None:
        if arguments.number("mean", self.mean) < 1:
            raise UnderloadError(f"the mean of lengths from 1 on is at least 1, got {self.mean:g}; raise it")

    def quantile(self, u: NDArray[np.float64]) -> Ints:
        if self.mean == 1:
            return np.ones(np.shape(u), np.int64)
        return _counts(np.ceil(np.log1p(-np.asarray(u)) / math.log1p(-1 / self.mean)))


@dataclass(frozen=True)
class LognormalTokens(Tokens):
    """exp of a normal variable, rounded to whole tokens, at least one. `of` makes one from a mean and a CV.

    `median` in tokens, `sigma` the standard deviation of the logarithm. Before rounding the mean is
    median · exp(sigma²/2) and the CV √(exp(sigma²) - 1); where the median is a few tokens, rounding up to 1 adds to it.

    Raises:
        UnderloadError: a median not above 0, or a sigma below 0.
    """

    median: float
    sigma: float

    def __post_init__(self) -> None:
        arguments.above_zero("median", self.median, "tokens")
        arguments.at_least_zero("sigma", self.sigma, "")

    @classmethod
    def of(cls, mean: float, cv: float) -> LognormalTokens:
        """With this mean (tokens) and coefficient of variation.

        Raises:
            UnderloadError: a mean not above 0, or a CV below 0.
        """
        variance = math.log1p(arguments.at_least_zero("cv", cv, "") ** 2)
        return cls(arguments.above_zero("mean", mean, "tokens") * math.exp(-variance / 2), math.sqrt(variance))

    @property
    def mean(self) -> float:
        """Before rounding, and before any length is cut to the longest that there is; infinite beyond all doubles."""
        with np.errstate(over="ignore"):
            return float(self.median * np.exp(self.sigma**2 / 2))

    def quantile(self, u: NDArray[np.float64]) -> Ints:
        from scipy.special import ndtri

        if not self.sigma:
            return _counts(np.full(np.shape(u), self.median))
        with np.errstate(over="ignore"):
            return _counts(np.exp(math.log(self.median) + self.sigma * ndtri(u)))


@dataclass(frozen=True, eq=False)
class EmpiricalTokens(Tokens):
    """Measured lengths, resampled: each as likely as the other, or with the given weights.

    Raises:
        UnderloadError: no length, one below 1, or weights that are negative, all 0 or not as many.
    """

    lengths: ArrayLike
    weights: ArrayLike | None = None
    _sorted: Ints = field(init=False, repr=False)
    _shares: NDArray[np.float64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        lengths = _measured("lengths", self.lengths)
        weights = np.ones(len(lengths)) if self.weights is None else _floats("weights", self.weights)
        if len(weights) != len(lengths) or (weights < 0).any() or not 0 < weights.sum() < math.inf:
            raise UnderloadError(
                f"{len(lengths)} lengths need as many weights, at least 0 and not all 0; got {len(weights)}"
            )
        order = np.argsort(lengths, kind="stable")
        object.__setattr__(self, "_sorted", lengths[order])
        object.__setattr__(self, "_shares", np.cumsum(weights[order]) / weights.sum())

    def quantile(self, u: NDArray[np.float64]) -> Ints:
        # side="right" steps over lengths of weight 0
        return self._sorted[np.minimum(np.searchsorted(self._shares, u, side="right"), len(self._sorted) - 1)]


def _measured(name: str, values: ArrayLike) -> Ints:
    found = _floats(name, values)
    wrong = found[~((found >= 1) & (found <= MOST) & (found == np.rint(found)))]
    if not len(found) or len(wrong):
        raise UnderloadError(
            f"{name} must be whole numbers from 1 to {MOST:,}, at least one of them, got "
            f"{f'{wrong[0]:g}' if len(wrong) else 'none'}; leave out rows without a prompt or an answer"
        )
    return found.astype(np.int64)


def _floats(name: str, values: ArrayLike) -> NDArray[np.float64]:
    try:
        return np.asarray(values, float).ravel()
    except (TypeError, ValueError, OverflowError):
        raise UnderloadError(f"{name} must be numbers, got {values!r:.60}") from None


def whole_law(value: int | Tokens) -> Tokens:
    """A law: itself, or always the number given."""
    return value if isinstance(value, Tokens) else FixedTokens(value)


@dataclass(frozen=True)
class _Pairs(ABC):
    """Pairs of a prompt and an answer inside a context limit (tokens of both together).

    What to do with a pair that does not fit is a choice that changes the load, so a limit asks for one: "truncate" cuts
    the prompt to limit - 1 and the answer to the room that is left, as most servers do, and heaps up requests at the
    limit; "redraw" draws that pair again until it fits, which shortens the mean of both.
    """

    limit: int | None = field(default=None, kw_only=True)
    beyond: Beyond | None = field(default=None, kw_only=True)

    def _check(self) -> None:
        if self.limit is not None:
            arguments.whole("limit", self.limit, least=2, most=MOST)
            if self.beyond not in ("truncate", "redraw"):
                raise UnderloadError(
                    f'a limit needs beyond="truncate" or "redraw", got {self.beyond!r}; the two give other loads'
                )
        elif self.beyond is not None:
            raise UnderloadError(f"beyond={self.beyond!r} says what to do at a limit; give limit=… too")

    @abstractmethod
    def _free(self, rng: np.random.Generator, n: int) -> tuple[Ints, Ints]:
        """n pairs, without a limit."""

    def draw(self, rng: np.random.Generator, n: int, before: ArrayLike = 0) -> tuple[Ints, Ints]:
        """n prompts and n answers, in tokens.

        Args:
            before: tokens that stand before the drawn part in each prompt (one number, or n) and count for the limit.

        Raises:
            UnderloadError: no room before the limit, or pairs that hardly ever fit ("redraw").
        """
        prompt, output = self._free(rng, n)
        if self.limit is None or not n:
            return prompt, output
        room = self.limit - np.broadcast_to(np.asarray(before, np.int64), n)
        if room.min() < 2:
            raise UnderloadError(
                f"{self.limit - int(room.min())} tokens stand before a prompt, and the limit is {self.limit}: no room "
                "for a prompt and an answer of one token each; raise the limit or shorten the prefix"
            )
        if self.beyond == "truncate":
            prompt = np.minimum(prompt, room - 1)
            return prompt, np.minimum(output, room - prompt)
        for _ in range(2000):
            wrong = np.flatnonzero(prompt + output > room)
            if not len(wrong):
                return prompt, output
            # A generator of its own for each round, so that how many requests there are changes none of them.
            (child,) = rng.spawn(1)
            again = self._free(child, int(wrong[-1]) + 1)
            prompt[wrong], output[wrong] = again[0][wrong], again[1][wrong]
        raise UnderloadError(
            f"2,000 draws found no pair within the limit of {self.limit} tokens for {len(wrong)} of {n} requests; "
            'raise the limit, shorten the lengths, or choose beyond="truncate"'
        )


@dataclass(frozen=True)
class Lengths(_Pairs):
    """A prompt and an answer from two laws (or two fixed numbers).

    `correlation` ties them by a Gaussian copula: it is the correlation of the two normal variables behind the ranks.
    The laws stay as given; Spearman's rank correlation becomes 6/π · arcsin(correlation/2) (near the same number), and
    the ordinary correlation of skewed lengths is smaller in size.

    Raises:
        UnderloadError: a correlation outside -1 to 1, a limit below 2, or a limit without a choice (`beyond`).
    """

    prompt: Tokens | int
    output: Tokens | int
    correlation: float = 0.0

    def __post_init__(self) -> None:
        self._check()
        object.__setattr__(self, "prompt", whole_law(self.prompt))
        object.__setattr__(self, "output", whole_law(self.output))
        if not -1 <= arguments.number("correlation", self.correlation) <= 1:
            raise UnderloadError(f"correlation must be from -1 to 1, got {self.correlation:g}; 0 is independent")

    def _free(self, rng: np.random.Generator, n: int) -> tuple[Ints, Ints]:
        u, v = rng.random((n, 2)).T
        if self.correlation:
            from scipy.special import ndtr, ndtri

            tiny = np.finfo(float).tiny  # 0 would be minus infinity, and 0 x that is no number
            rest = math.sqrt(1 - self.correlation**2)
            v = ndtr(self.correlation * ndtri(np.maximum(u, tiny)) + rest * ndtri(np.maximum(v, tiny)))
        return whole_law(self.prompt).quantile(u), whole_law(self.output).quantile(v)


@dataclass(frozen=True, eq=False)
class EmpiricalPairs(_Pairs):
    """Measured pairs, resampled whole: keeps whatever ties prompt and answer together.

    Raises:
        UnderloadError: no pair, lists of unlike length, a length below 1, or a limit without a choice (`beyond`).
    """

    prompts: Sequence[int] | Ints
    outputs: Sequence[int] | Ints

    def __post_init__(self) -> None:
        self._check()
        object.__setattr__(self, "prompts", _measured("prompts", self.prompts))
        object.__setattr__(self, "outputs", _measured("outputs", self.outputs))
        if len(self.prompts) != len(self.outputs):
            raise UnderloadError(
                f"{len(self.prompts)} prompts and {len(self.outputs)} outputs are no pairs; match them"
            )

    def _free(self, rng: np.random.Generator, n: int) -> tuple[Ints, Ints]:
        chosen = (rng.random(n) * len(self.prompts)).astype(np.int64)
        return np.asarray(self.prompts)[chosen], np.asarray(self.outputs)[chosen]
