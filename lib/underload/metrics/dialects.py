"""One log, the words of six tools: what each would report of the same requests.

Names are shared, definitions are not. `compare` computes each tool's own from one list of timelines; `TOOLS` holds
them, with the source they were read in. What a tool's clock and network would add is not in it: only the definitions
differ. How a timeline is read for all tools but this library:

- a request starts when it was really sent (`sent`; `arrival` where that was not recorded). In none of these latencies
  of the five is the time that a late client held it back.
- a chunk is what was handed over at one instant. Events of a protocol without a token (roles, usage) are not in a
  timeline, and no tool's figure counts them here.
- the stream ends at `finished`; at the last token where that was not recorded.
- the run lasts from the first arrival to the last end of any request, failed ones too.
- token counts are exact; a tool that counts by its own tokenizer may differ.
- a request counts if it `succeeded`. All five leave failed ones out of latencies and rates.

Where nothing was measured vLLM, SGLang and guidellm report 0, and so does the table; the others say nothing (None).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from underload.metrics import latency
from underload.metrics.percentiles import mean, percentile, percentile_interval, present
from underload.metrics.throughput import request_throughput, throughput
from underload.request.errors import UnderloadError
from underload.request.records import Timeline

# What is compared: the rows of the table, under this book's names.
LATENCIES = ("TTFT", "TPOT", "ITL", "chunk gap", "E2E")
RATES = ("output tokens/s", "requests/s")

# (value in s, weight) of one request, none or many
Samples = Callable[[Timeline], Iterable[tuple[float, float]]]


@dataclass(frozen=True)
class Definition:
    """What a tool calls a quantity, how it computes it, and that computation."""

    name: str  # the tool's own
    formula: str
    samples: Samples = field(repr=False)


@dataclass(frozen=True)
class Tool:
    """One tool's definitions. A quantity that it does not report is not among them."""

    name: str
    version: str  # with the month of its release, or a commit
    source: str  # where the definitions stand: files of that version
    percentile_method: str  # "linear": between order statistics; "rank": the smallest value that reaches the share
    definitions: dict[str, Definition]
    no_data: dict[str, float]  # what it reports of a quantity that was never measured; absent: no number
    note: str = ""

    def __str__(self) -> str:
        lines = [f"{self.name} {self.version}: {self.source}"]
        lines += [f"  {quantity:<10} {d.name}: {d.formula}" for quantity, d in self.definitions.items()]
        method = {
            "linear": "linear between order statistics",
            "rank": "the smallest value that reaches the share, by weight",
        }[self.percentile_method]
        lines.append(f"  {'percentile':<10} {method}" + (f". {self.note}" if self.note else ""))
        return "\n".join(lines)


@dataclass(frozen=True)
class Figures:
    """One quantity as one tool reports it: seconds, or per second for the rates (a mean alone)."""

    quantity: str
    tool: str
    name: str  # the tool's own
    count: int
    mean: float | None
    percentiles: dict[float, float | None]


@dataclass(frozen=True)
class Comparison:
    """What each tool reports of one log; prints as a table."""

    figures: tuple[Figures, ...]
    percentiles: tuple[float, ...]

    def find(self, quantity: str, tool: str) -> Figures:
        """The figures of one quantity by one tool.

        Raises:
            UnderloadError: the tool does not report that quantity, or there is no such tool.
        """
        for figures in self.figures:
            if (figures.quantity, figures.tool) == (quantity, tool):
                return figures
        here = ", ".join(dict.fromkeys(f"{f.quantity} of {f.tool}" for f in self.figures))
        raise UnderloadError(f"there is no {quantity!r} of {tool!r} here; there is {here}")

    def spread(self, quantity: str, q: float | None = None) -> float | None:
        """The largest over the smallest figure that any tool reports: of the mean, or of the q-th percentile.

        None where fewer than two report one above 0.

        Raises:
            UnderloadError: a percentile that was not compared.
        """
        if q is not None and q not in self.percentiles:
            raise UnderloadError(f"p{q:.12g} was not compared; ask for it: compare(timelines, percentiles=({q:.12g},))")
        rows = [figures for figures in self.figures if figures.quantity == quantity]
        values = [row.mean if q is None else row.percentiles.get(q) for row in rows]
        positive = [value for value in values if value is not None and value > 0]
        return max(positive) / min(positive) if len(positive) > 1 else None

    def _unit(self, quantity: str) -> str:
        """One unit for all rows of a quantity, so that they compare at a glance."""
        rows = [f for f in self.figures if f.quantity == quantity]
        known = present(value for f in rows for value in (f.mean, *f.percentiles.values()))
        return "s" if max(known, default=0.0) >= 10 else "ms"

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON: quantity -> tool -> figures, in seconds or per second."""
        made: dict[str, Any] = {}
        for f in self.figures:
            made.setdefault(f.quantity, {})[f.tool] = {
                "name": f.name,
                "count": f.count,
                "mean": f.mean,
                **{f"p{q:.12g}": value for q, value in f.percentiles.items()},
            }
        return made

    def __str__(self) -> str:
        heads = "".join(f"{f'p{q:.12g}':>11}" for q in self.percentiles)
        lines = [f"{'':<12}{'by its own name':<38}{'count':>8}{'mean':>11}{heads}"]
        quantity = unit = ""
        for f in self.figures:
            if f.quantity != quantity:
                quantity = f.quantity
                spread = self.spread(quantity) or 1.0
                lines += ["", quantity + (f": means apart by a factor of {spread:.2f}" if spread >= 1.005 else "")]
                unit = "" if quantity in RATES else self._unit(quantity)
            cells = [f.mean, *(f.percentiles.get(q) for q in self.percentiles if f.percentiles)]
            shown = "".join(f"{_shown(value, unit):>11}" for value in cells)
            lines.append(f"  {f.tool:<10}{f.name:<38}{f.count:>8}{shown}")
        return "\n".join(lines)

    __repr__ = __str__


def compare(
    timelines: Iterable[Timeline], *, percentiles: Sequence[float] = (50, 99), tools: Sequence[str] | None = None
) -> Comparison:
    """What each tool would report of these requests.

    This library's own percentiles are None where there are too few values for an interval (the median is always
    shown); the tools print theirs from the first value on, and so does the table.

    Args:
        timelines: the requests of one run, failed ones too.
        percentiles: in per cent.
        tools: names among `TOOLS`, in the order wanted; None is all.

    Raises:
        UnderloadError: a tool that is not there, a percentile outside 0 to 100, or a timeline that runs backwards.
    """
    timelines = list(timelines)
    for timeline in timelines:
        latency.check(timeline)
    wanted = list(TOOLS) if tools is None else list(tools)
    unknown = [name for name in wanted if name not in TOOLS]
    if unknown:
        raise UnderloadError(f"no definitions of {unknown[0]!r} are here; there are {', '.join(TOOLS)}")
    good = [timeline for timeline in timelines if latency.succeeded(timeline)]
    made = []
    for quantity in LATENCIES:
        for tool in (TOOLS[name] for name in wanted):
            if quantity in tool.definitions:
                made.append(_figures(quantity, tool, good, percentiles))
    for quantity in RATES:
        for name in wanted:
            count, rate = _rate(quantity, name, timelines, good)
            made.append(Figures(quantity, name, RATE_NAMES[name][quantity], count, rate, {}))
    return Comparison(tuple(made), tuple(percentiles))


def _figures(quantity: str, tool: Tool, good: list[Timeline], percentiles: Sequence[float]) -> Figures:
    definition = tool.definitions[quantity]
    pairs = [(value, weight) for t in good for value, weight in definition.samples(t) if weight > 0]
    values = [value for value, _ in pairs]
    found: dict[float, float | None]
    if tool.percentile_method == "rank":
        weights = [weight for _, weight in pairs]
        average = float(np.average(values, weights=weights)) if pairs else None
        found = {q: _by_rank(values, weights, q) for q in percentiles}
    else:
        average = mean(values)
        found = {q: percentile(values, q) for q in percentiles}
    if tool.name == OWN:
        found = {q: v if q == 50 or _has_interval(values, q) else None for q, v in found.items()}
    if not pairs:
        average = tool.no_data.get(quantity)
        found = dict.fromkeys(percentiles, average)
    return Figures(quantity, tool.name, definition.name, len(pairs), average, found)


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    scaled = value * 1e3 if unit == "ms" else value
    return (f"{scaled:.4g}" if abs(scaled) < 10_000 else f"{scaled:,.0f}") + (f" {unit}" if unit else "")


def _has_interval(values: list[float], q: float) -> bool:
    return 0 < q < 100 and percentile_interval(values, q) is not None


def _by_rank(values: list[float], weights: list[float], q: float) -> float | None:
    """The smallest value at which the values up to it have q per cent of the weight."""
    if not 0 <= q <= 100:
        raise UnderloadError(f"a percentile lies between 0 and 100, got {q}; write 99 for p99, not 0.99 x 100 %")
    if not values:
        return None
    distinct, place = np.unique(present(values), return_inverse=True)
    # Divided first and summed then, as guidellm does: where rounding decides, it decides alike.
    weight = np.bincount(place, weights=weights)
    shares = np.cumsum(weight / weight.sum())
    return float(distinct[min(int(np.searchsorted(shares, q / 100, side="left")), len(distinct) - 1)])


def _rate(quantity: str, name: str, timelines: list[Timeline], good: list[Timeline]) -> tuple[int, float | None]:
    """What is counted, and that over the time the tool divides by."""
    if name == OWN:
        if quantity == "requests/s":
            return len(good), request_throughput(timelines)
        return sum(t.output_tokens for t in timelines), throughput(timelines)
    count = len(good) if quantity == "requests/s" else sum(t.output_tokens for t in good)
    if name == "aiperf":  # its window is that of the successful requests
        seconds = max(map(_last, good)) - min(map(_start, good)) if good else 0.0
    else:
        ends = [max(_end(t) if t.token_times else t.arrival, t.finished or t.arrival) for t in timelines]
        seconds = max(ends) - min(t.arrival for t in timelines) if timelines else 0.0
    return count, count / seconds if seconds > 0 else None


# ---- one request, as a streaming client sees it -------------------------------------------------------------------


def _start(t: Timeline) -> float:
    return t.arrival if t.sent is None else t.sent


def _first(t: Timeline) -> float:
    return t.token_times[0]


def _last(t: Timeline) -> float:
    return t.token_times[-1]


def _end(t: Timeline) -> float:
    return _last(t) if t.finished is None else t.finished


def _one(value: Callable[[Timeline], float]) -> Samples:
    """One value a request, of weight 1."""
    return lambda t: [(value(t), 1.0)]


def _after_the_first(value: Callable[[Timeline], float]) -> Samples:
    """One value a request of two tokens or more."""
    return lambda t: [(value(t), 1.0)] if t.output_tokens > 1 else []


def _many(values: Callable[[Timeline], list[float]]) -> Samples:
    """All values of all requests in one pool."""
    return lambda t: [(value, 1.0) for value in values(t)]


def _known(value: Callable[[Timeline], float | None]) -> Samples:
    return lambda t: [] if (found := value(t)) is None else [(found, 1.0)]


def _ttft(t: Timeline) -> float:
    return _first(t) - _start(t)


def _tpot(t: Timeline) -> float:
    return (_last(t) - _first(t)) / (t.output_tokens - 1)


def _gaps_of_arriving_tokens(t: Timeline) -> list[float]:
    """Each gap between chunks, spread over the tokens of the later one; the first chunk has none."""
    chunks = latency.chunks(t)
    return [(after - before) / n for (before, _), (after, n) in pairwise(chunks) for _ in range(n)]


# ---- the tools ----------------------------------------------------------------------------------------------------

OWN = "underload"

#: Every tool by name, with its definitions and the source in which they were read.
TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool(
            name=OWN,
            version="",
            source="underload.metrics",
            percentile_method="linear",
            definitions={
                "TTFT": Definition("TTFT", "first token - arrival", _known(latency.ttft)),
                "TPOT": Definition("TPOT", "(last token - first token)/(n - 1)", _known(latency.tpot)),
                "ITL": Definition("ITL", "n - 1 gaps, a chunk's spread over its tokens", _many(latency.itl)),
                "chunk gap": Definition("chunk gaps", "chunk - chunk before", _many(latency.chunk_gaps)),
                "E2E": Definition("E2E", "last token - arrival", _known(latency.e2e)),
            },
            no_data={},
            note="None where there are too few values for an interval",
        ),
        Tool(
            name="vLLM",
            version="0.33.0 (2026-11)",
            source="vllm/benchmarks/serve.py, calculate_metrics; lib/endpoint_request_func.py, "
            "async_request_openai_completions",
            percentile_method="linear",
            definitions={
                "TTFT": Definition("TTFT", "first chunk - sent", _one(_ttft)),
                "TPOT": Definition("TPOT", "(last chunk - first chunk)/(n - 1), if n > 1", _after_the_first(_tpot)),
                "ITL": Definition("ITL", "chunk - chunk before, all requests in one pool", _many(latency.chunk_gaps)),
                "E2E": Definition("E2EL", "last chunk - sent", _one(lambda t: _last(t) - _start(t))),
            },
            no_data=dict.fromkeys(LATENCIES, 0.0),
            note="The wait for its own --max-concurrency is reported apart, as client_queue_time",
        ),
        Tool(
            name="SGLang",
            version="0.5.23 (2026-10)",
            source="sglang/benchmark/serving.py, calculate_metrics and async_request_sglang_generate (its default "
            "backend)",
            percentile_method="linear",
            definitions={
                "TTFT": Definition("TTFT", "first chunk - sent", _one(_ttft)),
                "TPOT": Definition(
                    "TPOT",
                    "(end of stream - first chunk)/(n - 1), if n > 1",
                    _after_the_first(lambda t: (_end(t) - _first(t)) / (t.output_tokens - 1)),
                ),
                "ITL": Definition(
                    "ITL",
                    "a chunk's gap spread over its tokens; none for those of the first chunk",
                    _many(_gaps_of_arriving_tokens),
                ),
                "E2E": Definition("E2E Latency", "end of stream - sent", _one(lambda t: _end(t) - _start(t))),
            },
            no_data=dict.fromkeys(("TTFT", "TPOT", "ITL"), 0.0),
            note="Its OpenAI backends pool the gaps between chunks, as vLLM does",
        ),
        Tool(
            name="guidellm",
            version="0.8.1 (2026-10)",
            source="guidellm/schemas/base/request_stats.py, statistics.py; guidellm/benchmark/schemas/metrics.py, "
            "GenerativeMetrics",
            percentile_method="rank",
            definitions={
                "TTFT": Definition("time_to_first_token_ms", "first chunk - sent", _one(_ttft)),
                "TPOT": Definition(
                    "time_per_output_token_ms",
                    "(last chunk - sent)/n, weighed by n",
                    lambda t: [((_last(t) - _start(t)) / t.output_tokens, float(t.output_tokens))],
                ),
                "ITL": Definition(
                    "inter_token_latency_ms",
                    "(last chunk - first chunk)/(n - 1), one a request, weighed by n - 1",
                    lambda t: [(_tpot(t), t.output_tokens - 1.0)] if t.output_tokens > 1 else [],
                ),
                "E2E": Definition("request_latency", "end of stream - sent", _one(lambda t: _end(t) - _start(t))),
            },
            no_data=dict.fromkeys(LATENCIES, 0.0),
            note="With a schedule of arrivals it also reports request_scheduled_latency, from the intended instant",
        ),
        Tool(
            name="aiperf",
            version="0.13.0 (2026-09)",
            source="aiperf/metrics/types/ttft_metric.py, inter_token_latency_metric.py, inter_chunk_latency_metric.py, "
            "request_latency_metric.py; metrics/metric_dicts.py, metric_result_from_array",
            percentile_method="linear",
            definitions={
                "TTFT": Definition("Time to First Token", "first chunk - sent", _one(_ttft)),
                "ITL": Definition(
                    "Inter Token Latency",
                    "(last chunk - first chunk)/(n - 1), one a request, if n > 1",
                    _after_the_first(_tpot),
                ),
                "chunk gap": Definition(
                    "Inter Chunk Latency", "chunk - chunk before, all requests in one pool", _many(latency.chunk_gaps)
                ),
                "E2E": Definition("Request Latency", "last chunk - sent", _one(lambda t: _last(t) - _start(t))),
            },
            no_data={},
            note="Percentiles of Inter Chunk Latency come from a sketch (t-digest), to about 0.05 %. With "
            "--per-chunk-usage its ITL divides by n less the tokens of the first chunk. Where requests failed it adds "
            "adj_ metrics that count them as infinite",
        ),
        Tool(
            name="llmperf",
            version="f1d6bed",
            source="github.com/ray-project/llmperf, token_benchmark_ray.py at commit f1d6bed; src/llmperf/ray_clients/"
            "openai_chat_completions_client.py at 0451d33. The repository has no release",
            percentile_method="linear",
            definitions={
                "TTFT": Definition("ttft_s", "first chunk - sent", _one(_ttft)),
                "ITL": Definition(
                    "inter_token_latency_s",
                    "(last chunk - sent)/chunks, one a request: TTFT is in it",
                    _one(lambda t: (_last(t) - _start(t)) / len(latency.chunks(t))),
                ),
                "E2E": Definition("end_to_end_latency_s", "end of stream - sent", _one(lambda t: _end(t) - _start(t))),
            },
            no_data={},
            note="It counts every event of the stream as a chunk, also those without text. Its pull request 99, opened "
            "2025-11, would take TTFT out of the ITL",
        ),
    )
}

# Tokens and requests of the successful, over the run; where a tool differs its name says so.
RATE_NAMES: dict[str, dict[str, str]] = {
    name: dict(zip(RATES, names))
    for name, names in {
        OWN: ("throughput, with what failed ones got", "request_throughput"),
        "vLLM": ("Output token throughput", "Request throughput"),
        "SGLang": ("Output token throughput", "Request throughput"),
        "guidellm": ("output_tokens_per_second, mean", "requests_per_second, mean"),
        "aiperf": ("Output Token Throughput", "Request Throughput"),
        "llmperf": ("mean_output_throughput_token_per_s", "num_completed_requests_per_min / 60"),
    }.items()
}
