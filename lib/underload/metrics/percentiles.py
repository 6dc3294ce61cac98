"""Percentiles, and how far to trust them. Missing values (None) are left out, never taken for 0; no data gives None."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from underload.request.errors import UnderloadError


def present(values: Iterable[float | None]) -> list[float]:
    """The values that are there, in their order.

    Raises:
        UnderloadError: one is NaN, which is neither a value nor a missing one; one is no number; or no single series.
    """
    if isinstance(values, str | bytes) or not isinstance(values, Iterable) or _is_complex(values):
        raise UnderloadError(f"values come as one series, got {values!r:.60}; put numbers in a list")
    if isinstance(values, np.ma.MaskedArray):
        values = values.compressed()  # what is masked is missing
    if isinstance(values, np.ndarray) and values.ndim != 1:
        raise UnderloadError(
            f"values come as one series, got an array of shape {values.shape}; take one run, or one figure of each run"
        )
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiu":
        known = values.astype(float).tolist()  # a simulation's million values, at once
    else:
        try:
            known = [float(value) for value in values if value is not None]
        except (TypeError, ValueError, OverflowError) as error:
            raise UnderloadError(f"a value is no number ({error}); leave it out as None if it is missing") from None
    if any(map(math.isnan, known)):
        raise UnderloadError("a value is NaN; leave it out as None if it is missing, or mend what computed it")
    return known


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are there."""
    known = present(values)
    if not known:
        return None
    try:
        return math.fsum(known) / len(known)
    except OverflowError:  # of the sum, not of the mean
        return math.fsum(value / len(known) for value in known)
    except ValueError:
        raise UnderloadError(
            "values of +inf and -inf have no mean; leave out what did not happen, and count it"
        ) from None


def percentile(values: Iterable[float | None], q: float) -> float | None:
    """The q-th percentile, 0 <= q <= 100, by linear interpolation between order statistics (NumPy's default).

    An infinite value (a request that never came back) may stand among them.

    Raises:
        UnderloadError: q outside 0 to 100, or among the values a NaN or what is no number.
    """
    _check_q(q, closed=True)
    known = sorted(present(values))
    if not known:
        return None
    rank = (len(known) - 1) * float(q) / 100
    below = math.floor(rank)
    low, high = known[below], known[min(below + 1, len(known) - 1)]
    share = rank - below
    # Three cases by hand: 0 x inf and inf - inf are NaN. The clamp: rounding must not leave [low, high].
    if share == 0 or low == high:
        return low
    if math.isinf(high - low):  # one of them is infinite, or they are too far apart to subtract
        return high if math.isinf(high) else (1 - share) * low + share * high
    return min(max(low + share * (high - low), low), high)


@dataclass(frozen=True)
class Interval:
    """A confidence interval between two order statistics."""

    low: float
    high: float
    ranks: tuple[int, int]  # which order statistics: 1 is the smallest value
    confidence: float  # what was asked for; what is reached is at least that


def percentile_interval(
    values: Iterable[float | None], q: float, confidence: float = 0.95, *, effective: float | None = None
) -> Interval | None:
    """A two-sided interval for the true q-th percentile, whatever the distribution.

    The number of n independent values below the percentile is binomial(n, q/100); the interval lies between the two
    order statistics that leave at most (1 - confidence)/2 on each side (David and Nagaraja, "Order Statistics", 3rd
    ed., section 7.1). None where n is too small for it: `samples_needed` says how many it takes (p99: 368).
    Values that depend on each other (neighbours in one queue) carry less than their number: say how many independent
    ones they are worth as `effective` (`effective_samples(values, q)`), or read the interval as a lower limit on the
    uncertainty. With `effective` the ends lie at the same shares of the sample as those of so many independent values.

    Raises:
        UnderloadError: q not between 0 and 100, confidence not between 0 and 1, or effective below 0 or above n.
    """
    known = sorted(present(values))
    n = len(known)
    if effective is not None and not _within(effective, 0, n):
        raise UnderloadError(
            f"{n} values cannot be worth {effective} independent ones; give what effective_samples finds in them"
        )
    worth = n if effective is None else math.floor(effective)
    ranks = _ranks(worth, q, confidence)
    if ranks is None:
        return None
    # In whole numbers: for worth = n these are the ranks themselves. Rounded outwards, never beyond the sample.
    low = max(ranks[0] * (n + 1) // (worth + 1), 1)
    high = min(-(-ranks[1] * (n + 1) // (worth + 1)), n)
    return Interval(known[low - 1], known[high - 1], (low, high), confidence)


def percentile_upper_limit(values: Iterable[float | None], q: float, confidence: float = 0.95) -> float | None:
    """A one-sided upper limit for the true q-th percentile: the smallest order statistic above it with `confidence`.

    None where n is too small: on a p99 at 95 %, below 299.

    Raises:
        UnderloadError: q not between 0 and 100, or confidence not between 0 and 1.
    """
    known = sorted(present(values))
    below = _binomial_cdf(len(known), _check_q(q))
    rank = int(np.searchsorted(below, _check_confidence(confidence) * (1 - 1e-15), side="left")) + 1
    return known[rank - 1] if rank <= len(known) else None


def samples_needed(q: float, confidence: float = 0.95, *, two_sided: bool = True) -> int:
    """The fewest independent values that give the q-th percentile an interval (or, one-sided, an upper limit) at all.

    All n lie below the percentile with probability (q/100)^n; that must not exceed what the upper side may miss. Of a
    two-sided interval the same holds below.

    Raises:
        UnderloadError: q not between 0 and 100, or confidence not between 0 and 1.
    """
    share = _check_q(q)
    miss = 1 - _check_confidence(confidence)
    log_share = math.log(share)
    if two_sided:
        miss, log_share = miss / 2, max(log_share, math.log1p(-share))
    # A hair is taken off, so that an exact power is not pushed up by rounding.
    return max(1, math.ceil(math.log(miss) / log_share - 1e-12))


def _ranks(n: int, q: float, confidence: float) -> tuple[int, int] | None:
    """Between which two of n independent values (1 is the smallest) the percentile lies; None where n is too small."""
    tail = (1 - _check_confidence(confidence)) / 2
    below = _binomial_cdf(n, _check_q(q))
    # low: the largest rank r with P(K <= r - 1) <= tail; high: the smallest with P(K <= r - 1) >= 1 - tail.
    low = int(np.searchsorted(below, tail * (1 + 1e-12), side="right"))
    high = int(np.searchsorted(below, (1 - tail) * (1 - 1e-15), side="left")) + 1
    return (low, high) if low >= 1 and high <= n else None


def _check_q(q: float, closed: bool = False) -> float:
    if not _within(q, 0, 100) or not (closed or 0 < q / 100 < 1):
        raise UnderloadError(f"a percentile lies between 0 and 100, got {q!r}; write 99 for p99, not 0.99 x 100 %")
    return float(q) / 100


def _check_confidence(confidence: float) -> float:
    if not _within(confidence, 0, 1) or confidence in (0, 1):
        raise UnderloadError(f"confidence must lie between 0 and 1, got {confidence!r}; write 0.95 for 95 %")
    return float(confidence)


def _is_complex(values: object) -> bool:
    return isinstance(values, np.ndarray) and values.dtype.kind == "c"  # NumPy would drop a part, with a warning


def _within(value: object, least: float, most: float) -> bool:
    """Whether it is one number, from `least` to `most`."""
    try:
        return bool(least <= value <= most)  # type: ignore[operator]
    except (TypeError, ValueError):
        return False


def whole(name: str, value: object, least: int) -> int:
    """`value` as a whole number from `least` on.

    Raises:
        UnderloadError: it is none.
    """
    if not _within(value, least, 2**53) or value != int(value):  # type: ignore[call-overload]
        raise UnderloadError(f"{name} must be a whole number of at least {least}, got {value!r:.60}; count them")
    return int(value)  # type: ignore[call-overload]


def _binomial_cdf(n: int, p: float) -> np.ndarray:
    """P(K <= k) for k = 0 … n - 1, K binomial(n, p); P(K <= n) = 1 is left out, as no order statistic lies beyond n."""
    k = np.arange(1, n + 1, dtype=float)
    steps = np.log((n - k + 1) / k) + (math.log(p) - math.log1p(-p))
    log_pmf = n * math.log1p(-p) + np.concatenate([[0.0], np.cumsum(steps)])
    return np.minimum(np.cumsum(np.exp(log_pmf[:n])), 1.0)
