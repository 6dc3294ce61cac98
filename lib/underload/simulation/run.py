"""One simulated station under one load: what happened to every customer, and what that comes to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from underload.queueing import arguments
from underload.queueing.measures import PERCENTILES, percentile_rows, seconds
from underload.request.errors import UnderloadError
from underload.request.records import Timeline
from underload.request.sequence import FinishReason
from underload.simulation.line import DISCIPLINES
from underload.simulation.little import Array, Little, little, number_inside, overlap, some_time

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Run:
    """What `simulate` gives back: an entry a customer, in order of arrival; times in s.

    Everybody who arrives in [0, horizon) is here and is followed to the end, past the horizon if need be; nobody comes
    after it. At the horizon arrived = finished + inside + refused, where who finishes at that very instant is still
    inside, as the interval is half-open.

    Figures about customers (waits, times in system) are over those admitted who arrived in [warmup, horizon), with
    their true times also where these end after the horizon. Figures about time (numbers inside, utilisation, rates) are
    over the window [warmup, end). Names and meanings are those of `queueing.Measures`, to be set side by side. A figure
    that has no customer to be about is an error, not a 0.
    """

    arrival: Array
    service: Array
    start: Array  # NaN for those refused
    finish: Array  # NaN for those refused
    servers: int
    discipline: str
    buffer: int | None
    horizon: float  # infinite where the load was given customer by customer, and all of it
    warmup: float
    path: str  # "fast" or "events"
    priority: Array | None = None  # of each customer, where the discipline asked for one

    # ---- who -----------------------------------------------------------------------------------------------------

    @cached_property
    def refused(self) -> Mask:
        """Who found the buffer full."""
        return np.isnan(self.start)

    @cached_property
    def inside(self) -> Mask:
        """Who was still there at the horizon."""
        return self.finish >= self.horizon

    @cached_property
    def counted(self) -> Mask:
        """Whom figures about customers are about: admitted, and arrived after the warm-up."""
        return ~self.refused & (self.arrival >= self.warmup)

    @cached_property
    def counts(self) -> dict[str, int]:
        """arrived = finished + inside + refused, at the horizon."""
        arrived, refused, inside = self.arrival.size, int(self.refused.sum()), int(self.inside.sum())
        return {"arrived": arrived, "finished": arrived - refused - inside, "inside": inside, "refused": refused}

    @property
    def end(self) -> float:
        """Of the window: the horizon, or without one the instant when the last customer leaves."""
        if self.horizon < math.inf:
            return self.horizon
        admitted = self.finish[~self.refused]
        return max(
            float(admitted.max()) if admitted.size else 0.0, float(self.arrival[-1]) if self.arrival.size else 0.0
        )

    # ---- customers -----------------------------------------------------------------------------------------------

    @cached_property
    def sojourns(self) -> Array:
        """Times in system of the customers counted, in s."""
        return self.finish[self.counted] - self.arrival[self.counted]

    @cached_property
    def waits(self) -> Array:
        """Waits of the customers counted until their service began, in s; under "ps" what sharing cost them.

        Those of one class are `run.waits[run.priority[run.counted] == 1]`.
        """
        if self.discipline == "ps":
            return np.maximum(self.sojourns - self.service[self.counted], 0.0)
        return self.start[self.counted] - self.arrival[self.counted]

    @property
    def mean_wait(self) -> float:
        """The mean of `waits`, in s."""
        return float(_some(self.waits).mean())

    @property
    def mean_sojourn(self) -> float:
        """The mean of `sojourns`, in s."""
        return float(_some(self.sojourns).mean())

    @property
    def mean_service(self) -> float:
        """Of the customers counted, in s."""
        return float(_some(self.service[self.counted]).mean())

    @cached_property
    def prob_wait(self) -> float:
        """The share of customers counted who had to wait; under "ps", who met as many as there are servers."""
        if self.discipline == "ps":
            here = ~self.refused
            before = np.arange(int(here.sum()))
            gone = np.searchsorted(np.sort(self.finish[here]), self.arrival[here], side="right")
            return float(_some((before - gone >= self.servers)[self.counted[here]]).mean())
        return float(np.mean(_some(self.waits) > 0))

    @property
    def prob_lost(self) -> float:
        """The share of those who arrived in the window that was refused."""
        return float(_some(self.refused[self.arrival >= self.warmup]).mean())

    def wait_quantile(self, q: float) -> float:
        """The q-th percentile of the waits in s; `q` in percent, linear interpolation as in `metrics.percentile`.

        Raises:
            UnderloadError: q outside 0 to 100, or nobody counted.
        """
        return _percentile(self.waits, q)

    def sojourn_quantile(self, q: float) -> float:
        """The q-th percentile of the times in system in s; `q` in percent.

        Raises:
            UnderloadError: q outside 0 to 100, or nobody counted.
        """
        return _percentile(self.sojourns, q)

    # ---- time ----------------------------------------------------------------------------------------------------

    @property
    def length(self) -> float:
        """Of the window [warmup, end), in s."""
        return self.end - self.warmup

    @cached_property
    def little(self) -> Little:
        """Little's law on the window, checked when the run was made."""
        here = ~self.refused
        return little(self.arrival[here], self.finish[here], self.warmup, self.end)

    @property
    def mean_system(self) -> float:
        """L: the mean number inside over time."""
        return self.little.mean_system

    @cached_property
    def utilisation(self) -> float:
        """The share of the servers' time that they were busy."""
        if self.discipline == "ps":
            times, inside = self.number_inside()
            edges = np.clip(np.concatenate([times, [self.end]]), self.warmup, self.end)
            busy = float(np.diff(edges) @ np.minimum(inside, self.servers)) if times.size else 0.0
        else:
            here = ~self.refused
            busy = overlap(self.start[here], self.finish[here], self.warmup, self.end)
        return busy / self.servers / some_time(self.length)

    @property
    def mean_queue(self) -> float:
        """Lq: the mean number waiting over time; under "ps", inside beyond the servers."""
        return max(self.mean_system - self.utilisation * self.servers, 0.0)

    @property
    def arrival_rate(self) -> float:
        """Arrivals a second, refused ones with them."""
        return float((self.arrival >= self.warmup).sum()) / some_time(self.length)

    @property
    def throughput(self) -> float:
        """Customers who finished in the window, a second."""
        last = self.finish <= self.end if self.horizon == math.inf else self.finish < self.end
        return float(((self.finish >= self.warmup) & last).sum()) / some_time(self.length)

    @property
    def load(self) -> float:
        """Arrival rate x mean service / servers."""
        return self.arrival_rate * self.mean_service / self.servers

    def number_inside(self) -> tuple[Array, NDArray[np.int64]]:
        """The staircase of the number inside: instants of change, and how many are inside from each on."""
        here = ~self.refused
        return number_inside(self.arrival[here], self.finish[here])

    # ---- to others -----------------------------------------------------------------------------------------------

    def timelines(self) -> list[Timeline]:
        """A timeline a customer who arrived after the warm-up, for `underload.metrics`: the answer is one token.

        E2E and TTFT are the time in system, queue time is start - arrival. Those refused have no token and failed.
        """
        made = []
        for arrival, start, finish in zip(self.arrival.tolist(), self.start.tolist(), self.finish.tolist()):
            if arrival < self.warmup:
                continue
            line = Timeline(arrival=arrival, sent=arrival, queued=arrival)
            if math.isnan(start):
                line.finished, line.finish_reason = arrival, FinishReason.ERROR
            else:
                line.scheduled, line.token_times, line.finished = start, [finish], finish
                line.finish_reason = FinishReason.LENGTH
            made.append(line)
        return made

    def as_dict(self) -> dict[str, Any]:
        """The figures by name, as for JSON; a horizon of None is none."""
        names = (
            "servers", "discipline", "buffer", "horizon", "warmup", "path", "arrival_rate", "mean_service", "load",
            "utilisation", "throughput", "prob_lost", "prob_wait", "mean_wait", "mean_sojourn", "mean_queue",
            "mean_system",
        )  # fmt: skip
        made = self.counts | {name: getattr(self, name) for name in names}
        return made | {"horizon": None if self.horizon == math.inf else self.horizon}

    def rows(self, percentiles: Sequence[float] = PERCENTILES) -> list[tuple[str, str]]:
        """Label and value with unit of each line that `str` prints; labels as those of `queueing.Measures`."""
        counts = self.counts
        made = [
            ("load", f"{self.load:.6g}"),
            ("utilisation", f"{self.utilisation:.4%}"),
            ("throughput", f"{self.throughput:.6g} /s"),
        ]
        if counts["refused"]:
            made.append(("turned away", f"{self.prob_lost:.4%}"))
        made += [
            ("has to wait", f"{self.prob_wait:.4%}"),
            ("mean wait", seconds(self.mean_wait)),
            ("mean time in system", seconds(self.mean_sojourn)),
            ("mean number waiting", f"{self.mean_queue:.6g}"),
            ("mean number inside", f"{self.mean_system:.6g}"),
        ]
        made += percentile_rows("wait", self.wait_quantile, percentiles)
        made += percentile_rows("time in system", self.sojourn_quantile, percentiles)
        return made

    def __str__(self) -> str:
        servers = f"{self.servers:,} server" + ("" if self.servers == 1 else "s")
        counts = ", ".join(f"{count:,} {name}" for name, count in self.counts.items())
        window = f"window {self.warmup:g} to {self.end:g} s"
        head = f"simulated, {servers}, {DISCIPLINES[self.discipline].split(';')[0]}; {window}: {counts}"
        if not self.counted.any() or not self.length:
            return head
        return "\n".join([head, *(f"  {label:<22}{value}" for label, value in self.rows())])

    def __repr__(self) -> str:
        return f"<Run of {self.arrival.size:,} customers, {self.discipline}, {self.servers} servers>"


def _some(values: Any) -> Any:
    if not values.size:
        raise UnderloadError(
            "no customer arrived between warm-up and horizon; give a longer horizon or a shorter warm-up"
        )
    return values


def _percentile(values: Array, q: float) -> float:
    if not 0 <= arguments.as_float(q) <= 100:
        raise UnderloadError(f"a percentile lies between 0 and 100, got {q!r:.60}; write 99 for p99")
    return float(np.percentile(_some(values), float(q)))
