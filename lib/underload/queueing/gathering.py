"""Waiting for company: until a batch is full, or until it is full or a timer runs out. The server is always free."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from underload.queueing import arguments
from underload.queueing.measures import PERCENTILES, percentile_rows, seconds
from underload.queueing.waits import Never, Stages, Wait, invert, poisson_more


@dataclass(frozen=True)
class Gathering:
    """How batches come together under Poisson arrivals; times in s, as a member of a batch spends them waiting."""

    name: str
    arrival_rate: float  # 1/s
    batch_size: int  # the size at which a batch leaves at once
    timeout: float  # s after the first arrival, at which it leaves anyway; infinite without a timer
    prob_full: float  # that a batch leaves because it is full
    mean_size: float  # members of a batch
    mean_wait: float  # of a member picked at random among all requests
    mean_first_wait: float  # of the first member, which is how long a batch takes to gather
    wait: Wait = field(repr=False, compare=False)
    first_wait: Wait = field(repr=False, compare=False)

    @property
    def batch_rate(self) -> float:
        """Batches that leave a second."""
        return self.arrival_rate / self.mean_size

    def wait_quantile(self, q: float) -> float:
        """The q-th percentile of the wait of a member picked at random, in s; `q` in percent: 99 for p99.

        Raises:
            UnderloadError: q below 0, or not below 100.
        """
        return self.wait.quantile(q)

    def first_wait_quantile(self, q: float) -> float:
        """The q-th percentile of the first member's wait, in s; `q` in percent: 99 for p99.

        Raises:
            UnderloadError: q below 0, or not below 100.
        """
        return self.first_wait.quantile(q)

    def wait_tail(self, t: float) -> float:
        """P(wait > t) of a member picked at random, t in s.

        Raises:
            UnderloadError: t is no finite number.
        """
        return self.wait.tail(arguments.number("t", t))

    def as_dict(self) -> dict[str, Any]:
        """The figures by name, as for JSON; without the laws."""
        names = ("name", "arrival_rate", "batch_size", "timeout", "prob_full", "mean_size", "batch_rate", "mean_wait")
        return {name: getattr(self, name) for name in (*names, "mean_first_wait")}

    def rows(self, percentiles: Sequence[float] = PERCENTILES) -> list[tuple[str, str]]:
        """Label and value with unit of each line that `str` prints."""
        return [
            ("batch is full", f"{self.prob_full:.4%}"),
            ("mean size", f"{self.mean_size:.6g}"),
            ("batches", f"{self.batch_rate:.6g} /s"),
            ("mean wait", seconds(self.mean_wait)),
            ("mean wait of the first", seconds(self.mean_first_wait)),
            *percentile_rows("wait", self.wait_quantile, percentiles),
            *percentile_rows("first's wait", self.first_wait_quantile, percentiles),
        ]

    def __str__(self) -> str:
        timer = "" if math.isinf(self.timeout) else f" or after {seconds(self.timeout)}"
        head = f"{self.name}: {self.arrival_rate:g} requests/s, leaves at {self.batch_size}{timer}"
        return "\n".join([head, *(f"  {label:<24}{value}" for label, value in self.rows())])


def batch_fill(arrival_rate: float, *, batch_size: int) -> Gathering:
    """The wait for a full batch of `batch_size` = B under Poisson arrivals, without a timer.

        member at random   mean (B - 1)/(2 arrival_rate); k gaps with probability 1/B each, k = 0 … B - 1
        first member       mean (B - 1)/arrival_rate; Erlang with B - 1 phases
        last member        none

    The queue for the server comes on top: `bulk_service(kind="full")` has both. At arrival rate 0 a batch of two never
    fills. Rates in 1/s, times in s.

    Source: Gross et al., "Fundamentals of Queueing Theory" (4th ed., 2008), section 1.7, on Poisson arrivals; k gaps
    are Erlang.

    Raises:
        UnderloadError: a negative arrival rate, a batch size that is no whole number from 1, or what is no number.
    """
    arrival_rate = arguments.at_least_zero("arrival_rate", arrival_rate, "1/s")
    size = arguments.whole("batch_size", batch_size, least=1, most=1_000_000)
    common: dict[str, Any] = {
        "name": "full batches",
        "arrival_rate": arrival_rate,
        "batch_size": size,
        "timeout": math.inf,
        "prob_full": 1.0,
        "mean_size": float(size),
    }
    if arrival_rate == 0 and size > 1:
        return Gathering(mean_wait=math.inf, mean_first_wait=math.inf, wait=Never(), first_wait=Never(), **common)
    rate = arrival_rate or 1.0  # with B = 1 there is nothing to wait for, at whatever rate
    return Gathering(
        mean_wait=(size - 1) / (2 * rate),
        mean_first_wait=(size - 1) / rate,
        wait=Stages(np.arange(size - 1, 0, -1) / size, rate),
        first_wait=Stages(np.ones(size - 1), rate),
        **common,
    )


def size_or_timeout(arrival_rate: float, *, batch_size: int, timeout: float) -> Gathering:
    """A batch leaves when `batch_size` = B are there or `timeout` = T seconds after its first arrival.

    The timer starts at the first arrival, the server is always free, arrivals are Poisson. With N(t) a Poisson number
    of mean arrival_rate x t:

        P(full)            P(N(T) >= B - 1)
        mean size          1 + E[min(N(T), B - 1)]
        mean wait          sum over n = 0 … B - 2 of (n + 1) P(N(T) > n) / (arrival_rate x mean size), by renewal reward
        wait of a member   for t < T, P(W > t) = (F + sum over n = 0 … B - 3 of P(N(T) > n) - P(N(t) > n)) / mean size,
                           F = P(N(t) <= B - 2) for the first member, the sum for the later ones

    T = 0 sends everybody alone. Rates in 1/s, times in s.

    Source: renewal reward, Ross, "Introduction to Probability Models" (10th ed., 2010), section 7.4; the law of a
    member's wait is derived here and tested by simulation.

    Raises:
        UnderloadError: a negative arrival rate or timeout, a batch size that is no whole number from 1, or what is no
            number.
    """
    arrival_rate = arguments.at_least_zero("arrival_rate", arrival_rate, "1/s")
    size = arguments.whole("batch_size", batch_size, least=1, most=1_000_000)
    timeout = arguments.at_least_zero("timeout", timeout, "s")
    n = np.arange(size - 1)
    more = poisson_more(arrival_rate * timeout, n)  # P(N(T) > n), n = 0 … B - 2
    mean_size = 1 + float(more.sum())
    if arrival_rate:
        mean_wait = float((n + 1) @ more) / arrival_rate / mean_size
        gather = float(more.sum()) / arrival_rate
    else:
        mean_wait = gather = timeout if size > 1 else 0.0
    return Gathering(
        name="size or timeout",
        arrival_rate=arrival_rate,
        batch_size=size,
        timeout=timeout,
        prob_full=float(more[-1]) if size > 1 else 1.0,
        mean_size=mean_size,
        mean_wait=mean_wait,
        mean_first_wait=gather,
        wait=TimedWait(arrival_rate, size, timeout),
        first_wait=TimedWait(arrival_rate, size, timeout, first=True),
    )


@dataclass(frozen=True)
class TimedWait(Wait):
    """The wait of a member picked at random, or of the first, until size or timeout."""

    arrival_rate: float
    size: int
    timeout: float
    first: bool = False

    @cached_property
    def _ends(self) -> float:
        return float(poisson_more(self.arrival_rate * self.timeout, np.arange(self.size - 1)).sum())

    def tail(self, t: float) -> float:
        if t < 0:
            return 1.0
        if t >= self.timeout or self.size == 1:
            return 0.0
        more = poisson_more(self.arrival_rate * t, np.arange(self.size - 1))
        if self.first:
            return 1 - float(more[-1])
        last = float(poisson_more(self.arrival_rate * self.timeout, np.array([self.size - 2]))[0])
        later = (self._ends - last) - float(more[:-1].sum())
        return max(0.0, (1 - float(more[-1]) + later) / (1 + self._ends))

    def isf(self, share: float) -> float:
        if not self.timeout or self.tail(math.nextafter(self.timeout, 0)) > share:
            return self.timeout if self.size > 1 else 0.0
        return min(self.timeout, invert(self.tail, share, self.timeout / 2))
