"""How many independent values a correlated series is worth."""

from collections.abc import Iterable

import numpy as np

from underload.metrics.percentiles import percentile, present
from underload.request.errors import UnderloadError

# Sokal's window: sum correlations up to the lag that is this many times what they add up to so far.
WINDOW = 5


def effective_samples(values: Iterable[float | None], q: float | None = None) -> float:
    """How many independent values would tell the mean as well as these: n / τ, with τ = 1 + 2 · Σ correlations.

    The correlations are summed up to the first lag of at least 5 τ, beyond which there is mostly noise (Sokal, "Monte
    Carlo methods in statistical mechanics", 1997). Never more than n. The values stand in the order in which they
    came.

    Args:
        values: one run, its warm-up cut. Missing ones (None) are left out.
        q: for the q-th percentile (in per cent) instead of the mean: what counts there is how long the series stays
            above it, not how the values themselves go together. `percentile_interval` takes the result as `effective`.

    A result below about 50 is itself too high: the run is too short to show how long its memory is. For a percentile
    in the tail of a busy queue that is so until it is about twice `samples_needed(q)`, since the series goes above it
    in few, long stretches: then trust several runs (`percentile_over_replications`) rather than one.

    Raises:
        UnderloadError: a value that is not finite (unless q is given), or q outside 0 to 100.
    """
    series = np.asarray(present(values), dtype=float)
    if q is not None:
        level = percentile(series, q)
        series = np.asarray(series > level, dtype=float)
    elif not np.isfinite(series).all():
        raise UnderloadError("a value is infinite; leave it out and count it, or ask for a percentile with q")
    n = len(series)
    most = float(np.abs(series).max()) if n else 0.0
    if n < 2 or not most:
        return float(n)
    series = series / most  # squares of the largest numbers would overflow
    if np.ptp(series) <= 1e-12:
        return float(n)  # nothing varies but by rounding, so nothing correlates
    series = series - series.mean()
    power = float(series @ series)
    size = 1 << (2 * n - 1).bit_length()  # padded, so that the end of the series does not meet its beginning
    spectrum = np.fft.rfft(series, size)
    correlation = np.fft.irfft(spectrum * spectrum.conj(), size)[:n] / power
    tau = 2 * np.cumsum(correlation) - 1
    long_enough = np.arange(n) >= WINDOW * tau
    lag = int(np.argmax(long_enough)) if long_enough.any() else n - 1
    return float(min(max(n / max(float(tau[lag]), 1.0), 1.0), n))
