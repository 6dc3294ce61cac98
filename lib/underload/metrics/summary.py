"""One table for one run: who was served, how fast, and how far the figures carry."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from underload.metrics import latency
from underload.metrics.percentiles import mean, percentile, percentile_interval, present, samples_needed
from underload.metrics.slo import Slo, attainment, goodput
from underload.metrics.throughput import Window, checked, request_throughput, span, throughput
from underload.request.records import Timeline

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Distribution:
    """One quantity over many requests. A percentile is None where too few values give no interval around it."""

    count: int
    mean: float | None
    percentiles: dict[int, float | None]
    intervals: dict[int, tuple[float, float] | None]  # 95 %, two-sided

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Distribution":
        known = present(values)
        intervals = {q: percentile_interval(known, q) for q in PERCENTILES}
        return cls(
            count=len(known),
            mean=mean(known),
            # The median is shown from the first value on: it misleads nobody as a p99 of ten values does.
            percentiles={q: percentile(known, q) if intervals[q] or q == 50 else None for q in PERCENTILES},
            intervals={q: (i.low, i.high) if (i := intervals[q]) else None for q in PERCENTILES},
        )


@dataclass(frozen=True)
class Summary:
    """What a run comes to. Latencies are those of the requests that succeeded; the failures are counted beside them."""

    requests: int  # all that were given, whenever they came or ended
    failed: int  # of them
    window: Window | None
    output_tokens: int  # handed over in the window
    throughput: float | None  # tokens/s
    request_throughput: float | None  # requests/s
    latencies: dict[str, Distribution]  # seconds
    slo: Slo | None = None
    goodput: float | None = None  # requests/s
    attainment: float | None = None

    @property
    def failure_rate(self) -> float | None:
        return self.failed / self.requests if self.requests else None

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON: seconds, tokens/s, requests/s; None for what could not be known."""
        return {
            "requests": self.requests,
            "failed": self.failed,
            "failure_rate": self.failure_rate,
            "window_s": list(self.window) if self.window else None,
            "output_tokens": self.output_tokens,
            "throughput_tokens_per_s": self.throughput,
            "throughput_requests_per_s": self.request_throughput,
            "slo_s": self.slo.terms if self.slo else None,
            "goodput_requests_per_s": self.goodput,
            "slo_attainment": self.attainment,
            "latencies_s": {
                name: {
                    "count": d.count,
                    "mean": d.mean,
                    **{f"p{q}": d.percentiles[q] for q in PERCENTILES},
                    "intervals_95": {f"p{q}": list(i) if (i := d.intervals[q]) else None for q in PERCENTILES},
                }
                for name, d in self.latencies.items()
            },
        }

    def __str__(self) -> str:
        lines = [
            f"{self.requests} requests, {self.failed} failed; {self.output_tokens} output tokens"
            + (f" in {_time(self.window[1] - self.window[0])}" if self.window else ""),
            f"throughput  {_number(self.throughput)} tokens/s, {_number(self.request_throughput)} requests/s",
        ]
        if self.slo is not None:
            terms = ", ".join(f"{name} <= {_time(limit)}" for name, limit in self.slo.terms.items())
            share = "no data" if self.attainment is None else f"{self.attainment:.0%} of requests"
            lines.append(f"goodput     {_number(self.goodput)} requests/s, {share} within {terms}")
        lines += ["", f"{'':<14}{'count':>8}{'mean':>12}" + "".join(f"{f'p{q}':>12}" for q in PERCENTILES)]
        for name, d in self.latencies.items():
            cells = [_time(d.mean), *(_time(d.percentiles[q]) for q in PERCENTILES)]
            lines.append(f"{name:<14}{d.count:>8}" + "".join(f"{cell:>12}" for cell in cells))
        if any(d.count and None in d.percentiles.values() for d in self.latencies.values()):
            needed = ", ".join(f"p{q} {samples_needed(q)}" for q in PERCENTILES if q != 50)
            lines.append(f"– too few values for a 95 % interval ({needed})")
        return "\n".join(lines)

    __repr__ = __str__


def summary(run: Any, *, slo: Slo | None = None, window: Window | None = None) -> Summary:
    """Sum a run up.

    Args:
        run: timelines, or anything with `completions` that each have a `timeline` (what `generate` returns).
        slo: adds goodput and attainment.
        window: what is counted by instants is counted in [start, end) only: output tokens, throughputs and goodput.
            `requests`, `failed`, the attainment and the latencies are of all requests given.

    Raises:
        UnderloadError: a timeline that runs backwards, or a window that is none.
    """
    timelines: list[Timeline] = [c.timeline for c in run.completions] if hasattr(run, "completions") else list(run)
    for timeline in timelines:
        latency.check(timeline)
    good = [timeline for timeline in timelines if latency.succeeded(timeline)]
    return Summary(
        requests=len(timelines),
        failed=len(timelines) - len(good),
        window=window or span(timelines),
        output_tokens=_tokens(timelines, window),
        throughput=throughput(timelines, window),
        request_throughput=request_throughput(timelines, window),
        latencies={
            "queue time": Distribution.of(map(latency.queue_time, good)),
            "TTFT": Distribution.of(map(latency.ttft, good)),
            "ITL": Distribution.of(gap for timeline in good for gap in latency.itl(timeline)),
            "TPOT": Distribution.of(map(latency.tpot, good)),
            "longest stall": Distribution.of(map(latency.longest_stall, good)),
            "E2E": Distribution.of(map(latency.e2e, good)),
        },
        slo=slo,
        goodput=goodput(timelines, slo, window) if slo else None,
        attainment=attainment(timelines, slo) if slo else None,
    )


def _tokens(timelines: list[Timeline], window: Window | None) -> int:
    if window is None:
        return sum(timeline.output_tokens for timeline in timelines)
    start, end = checked(window)
    return sum(start <= instant < end for timeline in timelines for instant in timeline.token_times)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if abs(seconds) >= size:
            return f"{seconds / size:.3g} {unit}" if abs(seconds) < 1000 else f"{seconds:.0f} s"
    return f"{seconds / 1e-6:.3g} µs"


def _number(value: float | None) -> str:
    if value is None:
        return "no data for"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
