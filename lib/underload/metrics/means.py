"""Means with an interval, when the values depend on each other or come from several runs.

Neighbours in a queue share their wait, so the interval of a textbook, s/√n, is several times too narrow on them. Two
ways out: cut one long run into batches whose means hardly depend on each other (`batch_means`), or make independent
runs and use one figure from each (`mean_interval`). Two policies under the same load differ by `paired_difference`.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from underload.metrics.percentiles import _check_confidence, percentile, present, whole
from underload.request.errors import UnderloadError

_MOST = 1e100  # above it squares and their sums may leave the doubles


@dataclass(frozen=True)
class MeanInterval:
    """A mean, and an interval that holds the true one with `confidence`, by Student's t."""

    mean: float
    low: float
    high: float
    batches: int  # independent figures behind it: batches of one run, or runs
    confidence: float
    lag1: float | None = None  # correlation of each batch mean with the next; None for separate runs

    @property
    def half_width(self) -> float:
        """From the mean to either end, in the unit of the values."""
        return (self.high - self.low) / 2

    @property
    def relative(self) -> float | None:
        """Half width / mean: 0.05 is "to 5 %". None when the mean is 0."""
        return self.half_width / abs(self.mean) if self.mean else None

    @property
    def correlated(self) -> bool:
        """Whether the batch means depend on each other by more than chance, so that the interval is too narrow.

        That is lag1 > 1.645/√batches, which independent means exceed in less than one case of twenty. Take a longer
        run, or fewer batches. False for separate runs.
        """
        return self.lag1 is not None and self.lag1 > 1.645 / math.sqrt(self.batches)

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        made = (
            f"{self.mean:.4g} ({self.low:.4g} to {self.high:.4g}, {self.confidence:.4g} confidence, n = {self.batches})"
        )
        if self.correlated:
            made += (
                f"; too narrow: neighbouring batches correlate ({self.lag1:.2f}), take a longer run or fewer batches"
            )
        return made


def mean_interval(replications: Iterable[float | None], confidence: float = 0.95) -> MeanInterval:
    """The mean of independent figures, one a run, with Student's interval: mean ± t · s/√n.

    Missing figures (None) are left out. Not for the requests of one run, which depend on each other: `batch_means`.

    Raises:
        UnderloadError: fewer than two figures, one that is not finite, or confidence not between 0 and 1.
    """
    return _interval(_finite(replications), confidence, "replications", "run it again with other seeds")


def batch_means(values: Iterable[float | None], batches: int = 20, confidence: float = 0.95) -> MeanInterval:
    """The mean of one long run with an interval by the method of batch means.

    The run, in its order, is cut into equal batches; their means are treated as independent. A few of the first values
    (less than `batches`) are left out to make the batches equal. 10 to 30 batches serve (Schmeiser, "Batch size effects
    in the analysis of simulation output", Operations Research 30(3), 1982): fewer widen the interval, more make it
    dishonest. Ask the result whether it is `correlated`. Cut the warm-up first.

    Raises:
        UnderloadError: fewer values than batches, fewer than two batches, a value that is not finite, or confidence
            not between 0 and 1.
    """
    known = _finite(values)
    batches = whole("batches", batches, 2)
    if len(known) < batches:
        raise UnderloadError(f"{batches} batches need at least {batches} values, got {len(known)}; take a longer run")
    means = known[len(known) % batches :].reshape(batches, -1).mean(axis=1)
    around = means - means.mean()
    total = float(around @ around)
    # Where nothing varies, what is left of the subtraction is rounding, and correlates perfectly.
    lag1 = float(around[:-1] @ around[1:]) / total if total > 0 and np.ptp(means) > 0 else 0.0
    return _interval(means, confidence, "batches", "take a longer run", lag1)


def paired_difference(a: Iterable[float | None], b: Iterable[float | None], confidence: float = 0.95) -> MeanInterval:
    """The mean of a - b over pairs of runs, with an interval: run i of both under the same load (the same seeds).

    What the load does to both runs of a pair cancels, so that a small difference shows after few runs. An interval
    that does not hold 0 says that the policies differ. A pair with a missing figure (None) is left out.

    Raises:
        UnderloadError: lists of different length, fewer than two whole pairs, a figure that is not finite, or
            confidence not between 0 and 1.
    """
    a, b = list(a), list(b)
    if len(a) != len(b):
        raise UnderloadError(f"pairs need as many runs of each, got {len(a)} and {len(b)}; run both on the same seeds")
    whole = [(x, y) for x, y in zip(a, b) if x is not None and y is not None]
    difference = _finite(x for x, _ in whole) - _finite(y for _, y in whole)
    return _interval(difference, confidence, "pairs of runs", "run both again with other seeds")


def percentile_over_replications(
    replications: Iterable[Iterable[float | None]], q: float, confidence: float = 0.95
) -> MeanInterval:
    """The q-th percentile (q in per cent) of each independent run, and the mean of these with Student's interval.

    Needs nothing of the values inside a run, which may depend on each other. A run should be long for its percentile
    (`samples_needed`): a sample percentile of few values is off to one side, and averaging runs does not mend that.

    Raises:
        UnderloadError: a run without values, fewer than two runs, q outside 0 to 100, or a percentile that is infinite.
    """
    found = [percentile(values, q) for values in replications]
    empty = [index for index, value in enumerate(found) if value is None]
    if empty:
        raise UnderloadError(f"run {empty[0]} has no values, so no p{q:.12g}; leave it out, or make the runs longer")
    return _interval(_finite(found), confidence, "replications", "run it again with other seeds")


def _finite(values: Iterable[float | None]) -> np.ndarray:
    known = np.asarray(present(values), dtype=float)
    if not np.isfinite(known).all():
        raise UnderloadError(
            "a value is infinite, so the mean has no interval; leave it out and count it, or use a percentile"
        )
    if known.size and np.abs(known).max() > _MOST:
        raise UnderloadError(
            f"a value is {known[np.abs(known).argmax()]:g}, above {_MOST:g}: its square has no double; check its unit"
        )
    return known


def _interval(
    figures: np.ndarray, confidence: float, what: str, remedy: str, lag1: float | None = None
) -> MeanInterval:
    n = len(figures)
    confidence = _check_confidence(confidence)
    if n < 2:
        raise UnderloadError(f"an interval takes at least 2 {what}, got {n}; {remedy}")
    from scipy.special import stdtrit  # scipy.stats would take half a second to import

    mean = float(figures.mean())
    # The lower quantile, negated: of 1 - 1e-16 the upper one would be that of 1, infinite.
    half = -float(stdtrit(n - 1, (1 - confidence) / 2)) * float(figures.std(ddof=1)) / math.sqrt(n)
    return MeanInterval(mean, mean - half, mean + half, n, confidence, lag1)
