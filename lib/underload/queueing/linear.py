"""A batch of b takes o + bt: what that line alone says, and what it says together with an arrival rate and an SLO."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from underload.queueing import arguments
from underload.queueing.bulk import BatchMeasures, BulkWait, bulk_service
from underload.queueing.gathering import batch_fill
from underload.request.errors import UnderloadError
from underload.shapes.line import StepLine


@dataclass(frozen=True)
class LinearBatch(StepLine):
    """A server whose batches take T(B) = o + Bt; `o` and `t` in s, as `StepLine`, whose throughput and knee it has.

    With kind "greedy" or "full" of `bulk_service` and constant services, all of it exact. An SLO is on the time in
    system: on its mean (`percentile=None`) or on a percentile in percent (99 for p99).
    """

    @property
    def most(self) -> float:
        """The throughput 1/t that no batch size reaches, in requests/s; infinite at t = 0."""
        return 1 / self.t if self.t else math.inf

    def load(self, arrival_rate: float, batch_size: int) -> float:
        """arrival_rate / X(B): stable below 1.

        Raises:
            UnderloadError: a negative arrival rate, or a batch size that is no whole number from 1.
        """
        size = arguments.whole("batch_size", batch_size, least=1)
        return arguments.at_least_zero("arrival_rate", arrival_rate, "1/s") * self.step_time(size) / size

    def smallest_stable_batch(self, arrival_rate: float) -> float:
        """The smallest B that keeps up: the first whole number above arrival_rate o / (1 - arrival_rate t).

        Infinite where arrival_rate t >= 1: then no batch does. A quotient that is a whole number but for the rounding
        of its three doubles counts as one.

        Raises:
            UnderloadError: a negative arrival rate.
        """
        rate = arguments.at_least_zero("arrival_rate", arrival_rate, "1/s")
        spare = 1 - Fraction(rate) * Fraction(self.t)
        if spare <= 0:
            return math.inf
        bound = Fraction(rate) * Fraction(self.o) / spare
        size = math.floor(bound) + 1
        # What rounding can have moved the bound by, unless that is more than a step: next to 1/t nothing is a whole
        # number for certain.
        rounding = bound / spare / 2**51
        return size + 1 if size - bound <= rounding < 1 else size

    def measures(self, arrival_rate: float, *, batch_size: int, kind: str = "greedy") -> BatchMeasures:
        """`bulk_service` with this line."""
        return bulk_service(arrival_rate, batch_size=batch_size, overhead=self.o, per_item=self.t, kind=kind)

    def latency(
        self, arrival_rate: float, *, batch_size: int, kind: str = "greedy", percentile: float | None = None
    ) -> float:
        """The mean time in system, or a percentile of it, in s; infinite past stability."""
        found = self.measures(arrival_rate, batch_size=batch_size, kind=kind)
        return found.mean_sojourn if percentile is None else found.sojourn_quantile(percentile)

    def best_batch(
        self, arrival_rate: float, *, kind: str = "greedy", percentile: float | None = None, largest: int = 512
    ) -> tuple[int, float]:
        """The B up to `largest` with the lowest mean (or percentile) of the time in system, and that time in s.

        Of sizes that agree to 1e-9 it is the smallest. Compare the time with the SLO: if it is longer, no batch size
        meets it at this arrival rate. Every size that could win is tried. A larger one cannot once filling and serving
        it takes longer than the best so far ("full"), or once the cap is met too seldom to matter ("greedy", where the
        sizes past it are all the same). A size takes milliseconds; under "greedy" hundredths of a second where batches
        are of hundreds, and a percentile ten times as long: next to the highest load, with hundreds of sizes to try,
        minutes. A smaller `largest` takes less.

        Raises:
            UnderloadError: no batch size up to `largest` is stable at this arrival rate, or another kind than "greedy"
                and "full".
        """
        rate = arguments.above_zero("arrival_rate", arrival_rate, "1/s")
        largest = arguments.whole("largest", largest, least=1, most=10_000)
        if kind not in ("greedy", "full"):
            raise UnderloadError(f"best_batch compares kinds greedy and full, got {kind!r}; call `latency` for others")
        first = self.smallest_stable_batch(rate)
        if first > largest:
            limit = "no batch size keeps up" if math.isinf(first) else f"the smallest stable batch size is {first:,.0f}"
            raise UnderloadError(
                f"at {rate:g} requests/s {limit}, and largest is {largest:,}; lower the rate or raise largest"
            )
        best, least = 0, math.inf
        for size in range(int(first), largest + 1):
            if kind == "full":
                fill = batch_fill(rate, batch_size=size)
                waits = fill.mean_wait if percentile is None else fill.wait_quantile(percentile)
                if waits + self.step_time(size) > least:
                    break
            found = self.measures(rate, batch_size=size, kind=kind)
            time = found.mean_sojourn if percentile is None else found.sojourn_quantile(percentile)
            if time < least * (1 - 1e-9):
                best, least = size, time
            if kind == "greedy" and found.wait is not None and _seldom(found):
                break
        return best, least

    def capacity(self, slo: float, *, batch_size: int, kind: str = "greedy", percentile: float | None = None) -> float:
        """The largest arrival rate whose mean (or percentile) time in system is at most `slo` seconds, in requests/s.

        0 where even a single request misses it. Under "full" a low rate is slow as well, since batches fill slowly: the
        range that meets the SLO then has two ends, and this is the upper.

        Raises:
            UnderloadError: an SLO not above 0, a batch size that is no whole number from 1, or another kind than
                "greedy" and "full".
        """
        slo = arguments.above_zero("slo", slo, "s")
        if kind not in ("greedy", "full"):
            raise UnderloadError(f"capacity knows kinds greedy and full, got {kind!r}; call `latency` for others")
        size = arguments.whole("batch_size", batch_size, least=1, most=10_000)
        ceiling = self.throughput(size)

        def misses(rate: float) -> bool:
            return self.latency(rate, batch_size=size, kind=kind, percentile=percentile) > slo

        low, high = 0.0, ceiling * (1 - 1e-7)
        if not misses(high):
            return high
        if kind == "full" and size > 1:
            # Latency falls, then rises with the rate: find a rate that meets the SLO first, if there is one.
            tried = [
                ceiling * share for share in (0.99, 0.97, 0.95, 0.9, *(x / 20 for x in range(17, 0, -1)), 0.02, 0.01)
            ]
            meets = next((rate for rate in tried if not misses(rate)), None) or self._quickest(
                [high, *tried, ceiling * 1e-3], size, percentile
            )
            if misses(meets):
                return 0.0
            low = meets
        elif misses(ceiling * 1e-9):
            return 0.0

        from scipy.optimize import brentq

        def spare(rate: float) -> float:  # as rates of completion, which reach 0 smoothly at the ceiling
            return 1 / slo - 1 / self.latency(rate, batch_size=size, kind=kind, percentile=percentile)

        return float(brentq(spare, low or ceiling * 1e-9, high, xtol=1e-11 * high, rtol=1e-11))

    def _quickest(self, rates: list[float], size: int, percentile: float | None) -> float:
        """The rate between the second and the last but one of these, which descend, at which full batches answer
        soonest."""
        from scipy.optimize import minimize_scalar

        def time(rate: float) -> float:
            return self.latency(rate, batch_size=size, kind="full", percentile=percentile)

        best = min(range(1, len(rates) - 1), key=lambda place: time(rates[place]))
        within = (rates[best + 1], rates[best - 1])
        found = minimize_scalar(time, bounds=within, method="bounded", options={"xatol": 1e-9 * within[1]})
        return float(found.x)


def linear_batch(*, overhead: float, per_item: float) -> LinearBatch:
    """The server whose batches of B take o + Bt, `overhead` o and `per_item` t in s: its line, its limits, its best B.

        throughput X(B) = B / (o + Bt) towards 1/t;   knee B = o/t, where X is half of that
        stable while arrival_rate < X(B), that is B > arrival_rate o / (1 - arrival_rate t)

    Source: the arithmetic of the line; `bulk_service` for the queue.

    Raises:
        UnderloadError: a negative time, or both 0.
    """
    o = arguments.at_least_zero("overhead", overhead, "s")
    t = arguments.at_least_zero("per_item", per_item, "s")
    if o == t == 0:
        raise UnderloadError(
            "overhead and per_item are both 0 s, so a batch takes no time; give one of them a duration"
        )
    return LinearBatch(o, t)


def _seldom(found: BatchMeasures) -> bool:
    """Whether the batches reach their cap too seldom for a larger one to change any figure."""
    return isinstance(found.wait, BulkWait) and found.wait.prob_full < 1e-10
