"""The start of a run, which knows only an empty system, and where to cut it off."""

from collections.abc import Iterable

import numpy as np

from underload.metrics.means import _finite
from underload.metrics.percentiles import _within
from underload.request.errors import UnderloadError
from underload.request.records import Timeline

# MSER-5 looks at means of five, which are steadier than single values.
MSER_BATCH = 5


def cut_warmup(timelines: Iterable[Timeline], seconds: float, start: float | None = None) -> list[Timeline]:
    """The requests that arrived at `start` + `seconds` or later, in their order.

    By arrival, not by finish: a cut by finish would keep the slow ones among the early and drop their quick neighbours.

    Args:
        timelines: the requests of one run.
        seconds: how long the warm-up lasts, at least 0.
        start: when the run began, in seconds on the clock of the timelines; None is the first arrival.

    Raises:
        UnderloadError: seconds below 0 or not finite, or so long that no request is left.
    """
    timelines = list(timelines)
    if not _within(seconds, 0, 1e308):
        raise UnderloadError(f"a warm-up lasts at least 0 seconds, got {seconds!r}; suggest_warmup finds one")
    if not timelines:
        return []
    begin = min(t.arrival for t in timelines) if start is None else start
    kept = [t for t in timelines if t.arrival >= begin + seconds]
    if not kept:
        last = max(t.arrival for t in timelines) - begin
        raise UnderloadError(
            f"a warm-up of {seconds:g} s leaves no request, the last arrives after {last:g} s; cut less or run longer"
        )
    return kept


def suggest_warmup(values: Iterable[float | None]) -> int | None:
    """How many of the first values to leave out of a mean, by MSER-5; None when the run is too short to tell.

    Of all cuts it takes the one after which the mean is known best: the least s²/n of what is left, computed on means
    of five (White, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69(6), 1997;
    on fives: White, Cobb and Spratt, Winter Simulation Conference 2000). A cut in the second half says that the run has
    not settled, or that it ended on chance: None, and the run should be longer.

    Args:
        values: one quantity, such as latency, in order of arrival. Missing ones (None) are left out.

    What it cannot do: it is about the mean, not about a p99, which settles later. It sees one run, and a busy queue
    that wanders slowly looks settled at once, or never. It knows nothing of load: what climbs to the end (an overload)
    has no warm-up that a cut could mend. When in doubt cut more, or average several runs value by value and give it
    those means.

    Raises:
        UnderloadError: fewer than 50 values (ten means of five), or one that is not finite.
    """
    known = _finite(values)
    if len(known) < 10 * MSER_BATCH:
        raise UnderloadError(f"a warm-up shows in {10 * MSER_BATCH} values at least, got {len(known)}; run longer")
    count = len(known) // MSER_BATCH
    means = known[: count * MSER_BATCH].reshape(count, MSER_BATCH).mean(axis=1)
    means -= means.mean()  # sums of squares lose digits far from 0
    left = np.arange(count, 0, -1)
    total, squares = (np.cumsum(part[::-1])[::-1] for part in (means, means**2))
    # The last few cuts leave next to nothing and look steady by accident.
    candidates = slice(0, count - MSER_BATCH)
    score = (np.maximum(squares - total**2 / left, 0.0) / left**2)[candidates]
    best = int(np.argmin(score))
    return best * MSER_BATCH if best <= count // 2 else None
