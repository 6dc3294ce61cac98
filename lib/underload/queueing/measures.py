"""What a queue in steady state is like: the one result type of the formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from underload.queueing import arguments
from underload.queueing.waits import Never, Wait
from underload.request.errors import UnderloadError

#: The percentiles that `str` prints.
PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Measures:
    """A queue in steady state; times in s, rates in 1/s, numbers of requests as means over time.

    Little's law holds on every one: mean_queue = throughput x mean_wait, mean_system = throughput x mean_sojourn.
    What diverges is infinite; what the formula does not tell is None, or asks in an error when called for.

    `load` is what is offered, arrival rate x mean service / servers (of a batch server: arrival rate / throughput at
    full batches), and may exceed 1. `utilisation` is the fraction of time that a server is busy, and cannot.
    """

    name: str  # of the model, as in "M/M/1"
    arrival_rate: float
    mean_service: float  # s that a request is in service
    servers: int
    load: float
    utilisation: float
    stable: bool
    prob_wait: float | None  # that a request admitted has to wait
    mean_wait: float  # s before its service starts; under processor sharing, s lost to sharing
    mean_sojourn: float  # s from arrival to end of service
    mean_queue: float
    mean_system: float
    throughput: float  # requests served a second
    prob_lost: float = 0.0  # that a request is turned away
    wait: Wait | None = field(default=None, repr=False, compare=False)  # the law of the wait, where known
    sojourn: Wait | None = field(default=None, repr=False, compare=False)
    unknown: str = field(default="", repr=False, compare=False)  # why a law is missing, and what to do instead

    @property
    def slowdown(self) -> float:
        """How many times longer a request is inside than in service: mean_sojourn / mean_service."""
        return self.mean_sojourn / self.mean_service

    def wait_quantile(self, q: float) -> float:
        """The q-th percentile of the wait in s; `q` in percent: 99 for p99.

        Raises:
            UnderloadError: the formula does not tell the law of the wait, or q is below 0 or not below 100.
        """
        return self._known("wait", self.wait).quantile(q)

    def sojourn_quantile(self, q: float) -> float:
        """The q-th percentile of the time in system in s; `q` in percent: 99 for p99.

        It is not the percentile of the wait plus that of the service.

        Raises:
            UnderloadError: the formula does not tell the law of the time in system, or q is below 0 or not below 100.
        """
        return self._known("time in system", self.sojourn).quantile(q)

    def wait_tail(self, t: float) -> float:
        """P(wait > t), t in s.

        Raises:
            UnderloadError: the formula does not tell the law of the wait, or t is no finite number.
        """
        return self._known("wait", self.wait).tail(arguments.number("t", t))

    def sojourn_tail(self, t: float) -> float:
        """P(time in system > t), t in s.

        Raises:
            UnderloadError: the formula does not tell the law of the time in system, or t is no finite number.
        """
        return self._known("time in system", self.sojourn).tail(arguments.number("t", t))

    def _known(self, what: str, law: Wait | None) -> Wait:
        if law is None:
            raise UnderloadError(
                f"{self.name}: the formula gives means, not the law of the {what}"
                + (f"; {self.unknown}" if self.unknown else "; simulate it for a percentile")
            )
        return law

    def as_dict(self) -> dict[str, Any]:
        """The figures by name, as for JSON; without the laws."""
        hidden = ("wait", "sojourn", "unknown")
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name not in hidden}

    def rows(self, percentiles: Sequence[float] = PERCENTILES) -> list[tuple[str, str]]:
        """Label and value with unit of each line that `str` prints."""
        made = [
            ("load", f"{self.load:.6g}" + ("" if self.stable else "  (unstable: the queue grows without end)")),
            ("utilisation", f"{self.utilisation:.4%}"),
            ("throughput", f"{self.throughput:.6g} /s"),
        ]
        if self.prob_lost:
            made.append(("turned away", f"{self.prob_lost:.4%}"))
        made.append(("has to wait", "not known" if self.prob_wait is None else f"{self.prob_wait:.4%}"))
        made += [
            ("mean wait", seconds(self.mean_wait)),
            ("mean time in system", seconds(self.mean_sojourn)),
            ("mean number waiting", f"{self.mean_queue:.6g}".replace("inf", "infinite")),
            ("mean number inside", f"{self.mean_system:.6g}".replace("inf", "infinite")),
        ]
        for label, law in (("wait", self.wait), ("time in system", self.sojourn)):
            if law is not None:
                made += percentile_rows(label, law.quantile, percentiles)
        return made

    def __str__(self) -> str:
        servers = f"{self.servers:,} server" + ("" if self.servers == 1 else "s")
        head = f"{self.name}: {self.arrival_rate:g} requests/s, {seconds(self.mean_service)} of service, {servers}"
        return "\n".join([head, *(f"  {label:<22}{value}" for label, value in self.rows())])


def percentile_rows(
    label: str, quantile: Callable[[float], float], percentiles: Sequence[float]
) -> list[tuple[str, str]]:
    """A line for each percentile; where one is too rough to give, the line says so."""
    made = []
    for q in percentiles:
        try:
            made.append((f"{label} p{q:.12g}", seconds(quantile(q))))
        except UnderloadError as refused:
            made.append((f"{label} p{q:.12g}", f"not given: {refused}"))
    return made


def seconds(value: float) -> str:
    """A time as a person reads it: s, ms or µs."""
    if math.isinf(value):
        return "infinite"
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if not value or abs(value) >= 0.9999995 * scale:
            return f"{value / scale:.6g} {unit}"
    return f"{value / 1e-6:.6g} µs"


def steady(
    name: str,
    arrival_rate: float,
    mean_service: float,
    *,
    servers: int = 1,
    prob_wait: float | None,
    mean_wait: float,
    wait: Wait | None = None,
    sojourn: Wait | None = None,
    unknown: str = "",
) -> Measures:
    """A stable queue that loses nobody, completed from its mean wait by Little's law."""
    load = arrival_rate * mean_service / servers
    mean_sojourn = mean_wait + mean_service
    return Measures(
        name=name,
        arrival_rate=arrival_rate,
        mean_service=mean_service,
        servers=servers,
        load=load,
        utilisation=load,
        stable=True,
        prob_wait=prob_wait,
        mean_wait=mean_wait,
        mean_sojourn=mean_sojourn,
        mean_queue=arrival_rate * mean_wait if arrival_rate else 0.0,
        mean_system=arrival_rate * mean_sojourn if arrival_rate else 0.0,
        throughput=arrival_rate,
        wait=wait,
        sojourn=sojourn,
        unknown=unknown,
    )


def unstable(name: str, arrival_rate: float, mean_service: float, *, servers: int = 1) -> Measures:
    """A queue at load 1 or more: always busy, everybody waits, and the wait has no limit."""
    return Measures(
        name=name,
        arrival_rate=arrival_rate,
        mean_service=mean_service,
        servers=servers,
        load=arrival_rate * mean_service / servers,
        utilisation=1.0,
        stable=False,
        prob_wait=1.0,
        mean_wait=math.inf,
        mean_sojourn=math.inf,
        mean_queue=math.inf,
        mean_system=math.inf,
        throughput=servers / mean_service,
        wait=Never(),
        sojourn=Never(),
    )
