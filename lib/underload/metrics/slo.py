"""Service level objectives: what a request must keep to, and how many requests a second did."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cached_property
from numbers import Real

from underload.metrics import latency
from underload.metrics.throughput import Window, _rate
from underload.request.errors import UnderloadError
from underload.request.records import Timeline


@dataclass(frozen=True)
class Slo:
    """Limits on one request, in seconds; None leaves a term out. A request meets it by meeting every term.

    A limit that is reached exactly is met. A term that cannot be broken is met: one token has no TPOT and no stall.
    Not met by any request that failed, was refused or cancelled, or has not finished.

    Raises:
        UnderloadError: no term at all, or one that is not above 0.
    """

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None
    queue_time: float | None = None
    longest_stall: float | None = None

    def __post_init__(self) -> None:
        if not self.terms:
            raise UnderloadError("an SLO needs at least one term, such as Slo(ttft=0.5, tpot=0.05), in seconds")
        for name, limit in self.terms.items():
            if not isinstance(limit, Real) or isinstance(limit, bool) or not limit > 0:
                raise UnderloadError(f"the SLO's {name} must be above 0 seconds, got {limit!r}; write 0.5 for 500 ms")

    @property
    def terms(self) -> dict[str, float]:
        """Name of the metric -> limit in seconds."""
        return dict(self._terms)

    @cached_property
    def _terms(self) -> dict[str, float]:
        return {f.name: limit for f in fields(self) if (limit := getattr(self, f.name)) is not None}

    def broken(self, timeline: Timeline) -> list[str]:
        """The terms that a finished request broke, and "failed" for one that did not succeed. Empty: it met the SLO."""
        if not latency.succeeded(timeline):
            return ["failed"]
        measured = {name: getattr(latency, name)(timeline) for name in self._terms}
        # Asked this way round, a time that is NaN breaks its term.
        return [
            name for name, limit in self._terms.items() if (value := measured[name]) is not None and not value <= limit
        ]

    def met(self, timeline: Timeline) -> bool:
        """Whether the request succeeded and kept to every term."""
        return not self.broken(timeline)


def goodput(timelines: Iterable[Timeline], slo: Slo, window: Window | None = None) -> float | None:
    """Requests a second that finished and met every term, counted at their last token (Zhong et al., "DistServe",
    OSDI 2024, for the name). A server that refuses what it cannot do in time does not look better by it."""
    return _rate(timelines, window, lambda timeline: timeline.token_times[-1:] if slo.met(timeline) else [])


def attainment(timelines: Iterable[Timeline], slo: Slo) -> float | None:
    """The share of all requests given, failures and refusals among them, that met the SLO; None for none."""
    met = [slo.met(timeline) for timeline in timelines]
    return sum(met) / len(met) if met else None
