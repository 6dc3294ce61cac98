"""What a served load comes to, as `underload simulate` and `underload bench serve` print it.

    slo_of      the objective that --slo names
    report_of   requests and steps -> plain data: latencies with intervals, rates, steps, memory, who was turned away
    print_report    the same for people

Latencies are those of the requests that succeeded and arrived after the warm-up; rates count all that happened after
it. The intervals (95 %) allow for requests of one run depending on each other: of a mean by batch means, where these do
not depend on each other, of a percentile by what the values are worth as independent ones (`effective_samples`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from underload import metrics
from underload.cli.generate import seconds_text
from underload.cli.workload import seconds
from underload.request import Request, StepRecord, Timeline, UnderloadError

PERCENTILES = (50, 95, 99)
# Batch means need so many values a batch, and 20 batches.
_LEAST_FOR_A_MEAN = 100
_TERMS = ("ttft", "tpot", "e2e", "queue_time", "longest_stall")

LATENCIES: dict[str, Callable[[Timeline], Any]] = {
    "queue time": metrics.queue_time,
    "TTFT": metrics.ttft,
    "ITL": metrics.itl,
    "TPOT": metrics.tpot,
    "longest stall": metrics.longest_stall,
    "E2E": metrics.e2e,
}


def slo_of(text: str | None) -> metrics.Slo | None:
    """The objective of "ttft=500ms,tpot=50ms".

    Raises:
        UnderloadError: a term that is none, or no time above 0.
    """
    if text is None:
        return None
    terms: dict[str, float] = {}
    for part in text.split(","):
        name, equals, limit = part.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in _TERMS or name in terms:
            raise UnderloadError(
                f"--slo takes each of {', '.join(_TERMS)} once, as in ttft=500ms,tpot=50ms; got {text!r}"
            )
        terms[name] = seconds(limit.strip(), f"--slo {name}") or 0.0
    return metrics.Slo(**terms)


def report_of(
    requests: Sequence[Request],
    steps: Sequence[StepRecord],
    *,
    block_size: int,
    start: float = 0.0,
    warmup: float = 0.0,
    slo: metrics.Slo | None = None,
) -> dict[str, Any]:
    """What a run comes to, as plain data for JSON: times in s, rates in 1/s, None for what could not be known.

    Args:
        block_size: tokens of a block, for what the pool holds.
        start: the instant of the load's time 0.
        warmup: s from there; arrivals before are left out.

    Raises:
        UnderloadError: a warm-up that leaves no request.
    """
    everyone = sorted((request.timeline for request in requests), key=lambda timeline: timeline.arrival)
    kept = metrics.cut_warmup(everyone, warmup, start)
    good = [timeline for timeline in kept if metrics.succeeded(timeline)]
    span = metrics.span(everyone)
    window = (start + warmup, span[1]) if span is not None and warmup else span
    # A window of a rate is half open: the last token is to be in it. The whole run needs none.
    counted = (window[0], math.nextafter(window[1], math.inf)) if window is not None and warmup else None
    ended = Counter(timeline.finish_reason for timeline in kept)
    first, last = (everyone[0].arrival, everyone[-1].arrival) if everyone else (0.0, 0.0)
    during = [step for step in steps if step.start >= start + warmup]
    return {
        "requests": len(kept),
        "answered": len(good),
        "refused": ended["refused"],
        "failed": ended["error"],
        "cancelled": ended["cancelled"],
        "first_error": next((request.error for request in requests if request.error), None),
        "window_s": list(window) if window else None,
        "offered_requests_per_s": (len(everyone) - 1) / (last - first) if last > first else None,
        "throughput_requests_per_s": metrics.request_throughput(everyone, counted),
        "throughput_tokens_per_s": metrics.throughput(everyone, counted),
        "slo_s": slo.terms if slo else None,
        "goodput_requests_per_s": metrics.goodput(everyone, slo, counted) if slo else None,
        "slo_attainment": metrics.attainment(kept, slo) if slo else None,
        "latencies_s": {name: _distribution(_values(measure, good)) for name, measure in LATENCIES.items()},
        "steps": _steps(during, window),
        "kv": _memory(during, block_size),
        "prompt_tokens": sum(timeline.prompt_tokens for timeline in kept),
        "cached_prompt_tokens": sum(timeline.cached_tokens for timeline in kept),
        "preemptions": sum(sequence.preemptions for request in requests for sequence in request.sequences),
        "preempted_requests": sum(any(one.preemptions for one in request.sequences) for request in requests),
        "warmup": _warmup(everyone, good, start, warmup),
    }


def _values(measure: Callable[[Timeline], Any], timelines: Iterable[Timeline]) -> list[float]:
    values: list[float] = []
    for timeline in timelines:
        value = measure(timeline)
        if isinstance(value, list):
            values += value
        elif value is not None:
            values.append(value)
    return values


def _distribution(values: list[float]) -> dict[str, Any]:
    """Mean and percentiles of values in their order, with intervals where there are enough of them."""
    found: dict[str, Any] = {"count": len(values), "mean": metrics.mean(values), "intervals_95": {}}
    around = metrics.batch_means(values) if len(values) >= _LEAST_FOR_A_MEAN else None
    found["intervals_95"]["mean"] = [around.low, around.high] if around is not None and not around.correlated else None
    for q in PERCENTILES:
        worth = metrics.effective_samples(values, q) if values else 0.0
        interval = metrics.percentile_interval(values, q, effective=min(worth, len(values))) if values else None
        # As in `metrics.summary`: no percentile without an interval, but the median, which misleads nobody.
        found[f"p{q}"] = metrics.percentile(values, q) if interval is not None or q == 50 else None
        found["intervals_95"][f"p{q}"] = [interval.low, interval.high] if interval is not None else None
    return found


def _steps(steps: Sequence[StepRecord], window: tuple[float, float] | None) -> dict[str, Any]:
    """What the steps computed, and how long they took, in all and on average."""
    busy = math.fsum(step.duration for step in steps)
    tokens = {kind: sum(getattr(step, f"{kind}_tokens") for step in steps) for kind in ("prefill", "decode", "padding")}
    span = window[1] - window[0] if window else 0.0
    return {
        "count": len(steps),
        "mean_s": busy / len(steps) if steps else None,
        "mean_batch_size": _weighted([(step.batch_size, step.duration) for step in steps]),
        "mean_queue_length": _weighted([(step.queue_length, step.duration) for step in steps]),
        "tokens": tokens,
        "tokens_per_s": sum(tokens.values()) / busy if busy else None,
        "busy_fraction": min(busy / span, 1.0) if span > 0 else None,
    }


def _memory(steps: Sequence[StepRecord], block_size: int) -> dict[str, Any] | None:
    """Blocks over time: the mean over the steps by their length, and the most."""
    if not steps:
        return None
    blocks = steps[0].blocks_used + steps[0].blocks_free + steps[0].blocks_cached
    return {
        "num_blocks": blocks,
        "block_size": block_size,
        "mean_used": (mean / blocks if (mean := _weighted([(s.blocks_used, s.duration) for s in steps])) else None),
        "peak_used": max(step.blocks_used for step in steps) / blocks,
        "mean_cached": (mean / blocks if (mean := _weighted([(s.blocks_cached, s.duration) for s in steps])) else None),
    }


def _weighted(pairs: list[tuple[float, float]]) -> float | None:
    weight = math.fsum(weight for _, weight in pairs)
    return math.fsum(value * weight for value, weight in pairs) / weight if weight > 0 else None


def _warmup(everyone: list[Timeline], good: list[Timeline], start: float, warmup: float) -> dict[str, Any]:
    """What was cut, and what the run itself suggests to cut (on E2E, by MSER-5), beyond it."""
    left_out = sum(timeline.arrival < start + warmup for timeline in everyone)
    latencies = [value for timeline in good if (value := metrics.e2e(timeline)) is not None]
    settled: bool | None = None
    further: float | None = None
    if len(latencies) >= 50:
        more = metrics.suggest_warmup(latencies)
        settled = more is not None
        further = good[more].arrival - start if more else None
    return {"seconds": warmup, "requests_left_out": left_out, "settled": settled, "suggested_s": further}


# ---- for people ----------------------------------------------------------------------------------------------------


def print_report(report: dict[str, Any]) -> None:
    """The report as a page of text."""
    window = report["window_s"]
    span = window[1] - window[0] if window else 0.0
    others = ", ".join(f"{report[name]:,} {name}" for name in ("refused", "failed", "cancelled") if report[name])
    answered = f"{report['answered']:,} of {report['requests']:,} requests answered"
    print(f"{answered}{others and ', '}{others}, in {seconds_text(span)}")
    if report["failed"] and report["first_error"]:
        print(f"  the first failure: {report['first_error']}")
    print(
        f"throughput   {_rate(report['throughput_tokens_per_s'])} output tokens/s, "
        f"{_rate(report['throughput_requests_per_s'])} requests/s ({_rate(report['offered_requests_per_s'])} offered)"
    )
    if report["slo_s"] is not None:
        terms = ", ".join(f"{name} ≤ {seconds_text(limit)}" for name, limit in report["slo_s"].items())
        print(
            f"goodput      {_rate(report['goodput_requests_per_s'])} requests/s, "
            f"{_share(report['slo_attainment'])} of requests within {terms}"
        )
    columns = ("mean", *(f"p{q}" for q in PERCENTILES))
    print(f"\n{'':<14}{'count':>9}" + "".join(f"{column:>14}" for column in columns))
    short = False
    for name, found in report["latencies_s"].items():
        ends = [found["intervals_95"][column] for column in columns]
        print(f"{name:<14}{found['count']:>9,}" + "".join(f"{seconds_text(found[column]):>14}" for column in columns))
        if any(ends):
            pairs = (_between(end, found[column]) if end else "" for end, column in zip(ends, columns))
            print((f"{'':>23}" + "".join(f"{pair:>14}" for pair in pairs)).rstrip())
        short |= found["count"] > 0 and not all(ends)
    print("below each: its 95 % interval" if any_interval(report) else "no 95 % intervals: too few requests", end="")
    needed = ", ".join(f"{metrics.samples_needed(q)} for p{q}" for q in PERCENTILES)
    print(f"; it takes {needed}, more where they depend on each other" if short else "")
    _print_engine(report)


def _print_engine(report: dict[str, Any]) -> None:
    steps, kv, warmup = report["steps"], report["kv"], report["warmup"]
    tokens = steps["tokens"]
    total = sum(tokens.values())
    if total:
        kinds = ", ".join(f"{count / total:.0%} {kind}" for kind, count in tokens.items() if count)
        print(
            f"\nsteps        {steps['count']:,} of {seconds_text(steps['mean_s'])}: batch "
            f"{_number(steps['mean_batch_size'])} and queue {_number(steps['mean_queue_length'])} on average, "
            f"busy {_share(steps['busy_fraction'])} of the time"
        )
        print(f"computed     {total:,} tokens ({kinds}), {_rate(steps['tokens_per_s'])} tokens/s while busy")
    if kv is not None:
        hits = report["cached_prompt_tokens"] / report["prompt_tokens"] if report["prompt_tokens"] else 0.0
        print(
            f"KV cache     {_share(kv['mean_used'])} of {kv['num_blocks']:,} blocks of {kv['block_size']} in use on "
            f"average, {_share(kv['peak_used'])} at most; {hits:.1%} of prompt tokens came from the prefix cache"
        )
    print(f"preempted    {report['preemptions']:,} times, {report['preempted_requests']:,} requests")
    if warmup["seconds"]:
        print(f"warm-up      {seconds_text(warmup['seconds'])} cut, {warmup['requests_left_out']:,} requests")
    if warmup["settled"] is False:
        print("             the run does not settle: it is too short, or the load grows without end")
    elif warmup["suggested_s"] is not None:
        print(f"warm-up      E2E settles after {seconds_text(warmup['suggested_s'])} by MSER-5: try --warmup with that")


def any_interval(report: dict[str, Any]) -> bool:
    """Whether some figure of the report has an interval."""
    return any(end for found in report["latencies_s"].values() for end in found["intervals_95"].values())


def _between(ends: list[float], value: float) -> str:
    """An interval in the unit that its figure is written in."""
    scale = 1.0 if value >= 1 else 1e3 if value >= 1e-3 else 1e6
    return "–".join(f"{end * scale:.3g}" if end * scale < 1000 else f"{end * scale:.0f}" for end in ends)


def _rate(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}" if value >= 0.1 or not value else f"{value:.1%}"
