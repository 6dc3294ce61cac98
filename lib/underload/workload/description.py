"""What a load is like: how much, how uneven, how long, how much of it shared. And whether it is Poisson.

The index of dispersion for counts (variance / mean of the arrivals in windows) does the work: a Poisson process has 1
in windows of every length. Beside it stands the same index from neighbouring windows only, half the mean squared
difference over the mean, which a slow drift of the rate leaves alone: index high and neighbours near 1 means that the
rate wanders; both high means bursts within the window.
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from underload.metrics import summary as sum_up
from underload.metrics.summary import Distribution, Summary
from underload.queueing import arguments
from underload.request import UnderloadError
from underload.workload.arrivals import Times
from underload.workload.lengths import EmpiricalTokens, Ints
from underload.workload.prompts import Sharing, shared_blocks
from underload.workload.readers import Record
from underload.workload.replay import Replay
from underload.workload.trace import ClientLengths, ClientWindows, Measured, Trace, finite_rate

WINDOWS = (1.0, 10.0, 60.0, 600.0, 3600.0)  # s
LEVEL = 0.01  # of the test, over all windows together
WIDTH = 100  # characters in a line of prose
BLOCK = 16  # tokens, for sharing where the record has no blocks of its own


@dataclass(frozen=True)
class Dispersion:
    """Counts in windows of one length."""

    window: float  # s
    windows: int  # how many
    mean: float  # arrivals in one
    index: float  # variance / mean
    neighbours: float  # half the mean squared difference of neighbours / mean
    p_value: float  # of an index so far from 1, if the process were Poisson
    detectable: float  # an index so far from 1 would probably have shown


def dispersion(instants: Times, window: float, span: float | None = None) -> Dispersion | None:
    """Index of dispersion in consecutive windows from 0 on; None with fewer than 10 windows or 1 arrival in each.

    The test is the classical one: given their number, Poisson arrivals fall into the windows independently, and
    (windows - 1) × index is nearly chi-square.

    Raises:
        UnderloadError: a window or a span that is not above 0 s, or instants that are no ascending numbers from 0 s on.
    """
    from scipy.stats import chi2

    window = arguments.above_zero("window", window, "s")
    span = None if span is None else arguments.above_zero("span", span, "s")
    instants = np.asarray(Replay(instants).instants)
    if not len(instants):
        return None
    span = float(instants[-1]) if span is None and len(instants) else span or 0.0
    count = math.floor(span / window)
    if count < 10 or len(instants) < count:  # less than one arrival in each
        return None
    # half-open windows, and only whole ones; the allowance is for ticks that were rounded to ms
    place = np.floor(instants / window + 1e-9 + min(0.002 / window, 0.01)).astype(np.int64)
    counts = np.bincount(place[place < count], minlength=count).astype(float)
    mean = float(counts.mean())
    if mean < 1:
        return None
    index = float(counts.var(ddof=1)) / mean
    below = float(chi2.cdf((count - 1) * index, count - 1))
    above = float(chi2.sf((count - 1) * index, count - 1))
    return Dispersion(
        window,
        count,
        mean,
        index,
        float(np.mean(np.diff(counts) ** 2) / 2) / mean,
        min(1.0, 2 * min(below, above)),
        3.6 * math.sqrt(2 / (count - 1)),  # 2.6 standard deviations for the test, 1 more to be beyond it mostly
    )


@dataclass(frozen=True)
class Description:
    """A described trace. Times in s, rates in 1/s, lengths in tokens; None for what cannot be known."""

    name: str
    source: str
    synthetic: bool
    rows: int
    failed: int
    span: float | None = None
    rate: float | None = None
    peak: float | None = None  # 1/s in the busiest minute
    cv: float | None = None
    cv_is_artefact: bool = False
    longest_gap: float | None = None
    dispersions: tuple[Dispersion, ...] = ()
    verdict: str = ""
    prompt: Distribution | None = None
    output: Distribution | None = None
    longest_prompt: int | None = None
    longest_output: int | None = None
    rank_correlation: float | None = None
    labels: dict[str, int] = field(default_factory=dict)
    sharing: Sharing | None = None
    oddities: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""

        def lengths(of: Distribution | None, longest: int | None) -> dict[str, Any] | None:
            if of is None:
                return None
            return {
                "count": of.count,
                "mean": of.mean,
                **{f"p{q}": v for q, v in of.percentiles.items()},
                "max": longest,
            }

        return {
            "name": self.name,
            "source": self.source,
            "synthetic": self.synthetic,
            "rows": self.rows,
            "failed": self.failed,
            "span_s": self.span,
            "rate_per_s": self.rate,
            "peak_minute_rate_per_s": self.peak,
            "gap_cv": self.cv,
            "gap_cv_is_artefact_of_clock": self.cv_is_artefact,
            "longest_gap_s": self.longest_gap,
            "dispersion": [
                {
                    "window_s": d.window,
                    "windows": d.windows,
                    "index": d.index,
                    "neighbours": d.neighbours,
                    "p_value": d.p_value,
                }
                for d in self.dispersions
            ],
            "poisson": self.verdict,
            "prompt_tokens": lengths(self.prompt, self.longest_prompt),
            "output_tokens": lengths(self.output, self.longest_output),
            "rank_correlation": self.rank_correlation,
            "labels": self.labels,
            "prefix_sharing": None
            if self.sharing is None
            else {
                "block_tokens": self.sharing.block_size,
                "blocks": self.sharing.blocks,
                "hit_rate": self.sharing.hit_rate,
            },
            "oddities": list(self.oddities),
        }

    def __str__(self) -> str:
        lines = [self.name + ("  (synthetic: made here, not recorded)" if self.synthetic else "")]
        if self.source:
            lines.append(self.source)
        lines += ["", f"{'requests':<18}{self.rows:,}" + (f", of which {self.failed} failed" if self.failed else "")]
        for label, count in list(self.labels.items())[:6]:
            lines.append(f"  {label:<16}{count:,}")
        if self.span is not None:
            lines.append(f"{'span':<18}{_span(self.span)}")
        if self.rate is not None:
            busiest = f"; {self.peak:.4g}/s in the busiest minute" if self.peak is not None else ""
            lines.append(f"{'rate':<18}{self.rate:.4g}/s{busiest}")
        if self.cv is not None:
            note = "  (an artefact of the clock's steps)" if self.cv_is_artefact else "  (Poisson: 1)"
            lines.append(f"{'CV of gaps':<18}{self.cv:.3g}{note}")
        if self.longest_gap is not None:
            lines.append(f"{'longest gap':<18}{_span(self.longest_gap)}")
        if self.dispersions:
            lines += ["", f"{'arrivals in':<14}{'windows':>8}{'mean':>9}{'index':>9}{'neighbours':>12}{'p-value':>10}"]
            for d in self.dispersions:
                p = "< 0.001" if d.p_value < 0.001 else f"{d.p_value:.3f}"
                lines.append(
                    f"{_span(d.window):<14}{d.windows:>8,}{d.mean:>9.3g}{d.index:>9.3g}{d.neighbours:>12.3g}{p:>10}"
                )
            lines.append("index: variance / mean of the counts (Poisson: 1); neighbours: the same without slow drift")
        if self.verdict:
            lines += ["", textwrap.fill(self.verdict, WIDTH)]
        if self.prompt is not None and self.output is not None:
            lines += ["", f"{'tokens':<14}{'mean':>9}{'p50':>9}{'p95':>9}{'p99':>9}{'max':>9}"]
            for name, of, most in (
                ("prompt", self.prompt, self.longest_prompt),
                ("answer", self.output, self.longest_output),
            ):
                cells = [of.mean, *of.percentiles.values(), most]
                lines.append(f"{name:<14}" + "".join(f"{'–' if c is None else f'{c:,.0f}':>9}" for c in cells))
        if self.rank_correlation is not None:
            lines.append(f"rank correlation of prompt and answer {self.rank_correlation:+.2f} (Spearman)")
        if self.sharing is not None and self.sharing.hit_rate is not None:
            lines.append(
                f"{self.sharing.hit_rate:.1%} of the full prompt blocks of {self.sharing.block_size} tokens were seen "
                "before: what a prefix cache could reuse that never forgets"
            )
        for oddity in self.oddities:
            lines.append(textwrap.fill(f"note: {oddity}", WIDTH, subsequent_indent="      "))
        return "\n".join(lines)

    __repr__ = __str__


def describe(record: Record) -> Description | WindowsDescription | LengthsDescription | MeasuredDescription:
    """What a record is like.

    Raises:
        UnderloadError: lengths or times that no description can be made of, or what is no record.
    """
    if isinstance(record, ClientWindows):
        return _windows(record)
    if isinstance(record, ClientLengths):
        return LengthsDescription(record)
    if isinstance(record, Measured):
        return MeasuredDescription(_trace(record.trace()), sum_up(record.timelines()))
    if not isinstance(record, Trace):
        raise UnderloadError(f"a record is what read_trace or load_trace gives, got {record!r:.60}; read it first")
    return _trace(record)


def _trace(trace: Trace) -> Description:
    keep = trace.usable
    prompts, outputs = trace.prompt_tokens[keep], trace.output_tokens[keep]
    times: dict[str, Any] = {}
    if trace.instants is not None and len(trace) > 1:
        times = _times(trace.instants, trace.step)
    sharing = None
    if trace.segments is not None:
        sharing = shared_blocks(trace.plan(spread=False), trace.block_size or BLOCK)
    return Description(
        name=trace.name,
        source=trace.source,
        synthetic=trace.synthetic,
        rows=len(trace),
        failed=int(trace.failed.sum()),
        prompt=Distribution.of(prompts.tolist()) if len(prompts) else None,
        output=Distribution.of(outputs.tolist()) if len(outputs) else None,
        longest_prompt=int(prompts.max()) if len(prompts) else None,
        longest_output=int(outputs.max()) if len(outputs) else None,
        rank_correlation=_rank_correlation(prompts, outputs),
        labels=dict(Counter(trace.labels).most_common()),
        sharing=sharing,
        oddities=trace.oddities,
        **times,
    )


def _times(instants: Times, step: float | None) -> dict[str, Any]:
    gaps = np.diff(instants)
    span, rate = float(instants[-1]), finite_rate(instants)
    cv = float(gaps.std() / gaps.mean()) if gaps.any() else None
    # With the mean gap well above the step, rounding adds step²/6 to the variance, which is little.
    artefact = step is not None and float(gaps.mean()) < 5 * step
    windows = [w if step is None else math.ceil(w / step) * step for w in WINDOWS]
    found = [d for w in dict.fromkeys(windows) if (d := dispersion(instants, w)) is not None]
    peak = None
    if span >= 60:
        minutes = np.floor(instants[instants < span // 60 * 60] / 60)
        peak = float(np.unique(minutes, return_counts=True)[1].max()) / 60
    return {
        "span": span,
        "rate": rate,
        "peak": peak,
        "cv": cv,
        "cv_is_artefact": artefact,
        "longest_gap": float(gaps.max()),
        "dispersions": tuple(found),
        "verdict": _verdict(len(instants), None if artefact else cv, found),
    }


def _verdict(rows: int, cv: float | None, found: list[Dispersion]) -> str:
    """Is it Poisson? The size of the departure first, its significance second, and what could not be seen."""
    if not found or rows < 50:
        return f"Is it Poisson? Too little to tell: {rows} arrivals give no counts to compare."
    off = [d for d in found if d.p_value < LEVEL / len(found)]
    first, last = found[0], found[-1]
    reach = f"windows of {_span(first.window)}" + (f" to {_span(last.window)}" if last is not first else "")
    # Given Poisson, the CV of n gaps scatters by about 1/√n.
    cv_fits = cv is None or abs(cv - 1) < max(0.05, 3 / math.sqrt(rows))
    if not off and cv_fits:
        sharpest = min(found, key=lambda d: d.detectable)
        return (
            f"Is it Poisson? Nothing here speaks against it in {reach}. An index off by less than about "
            f"{sharpest.detectable:.2g} would not have shown, and longer windows were not looked at."
        )
    if not off:
        return (
            f"Is it Poisson? Its counts could be, in {reach}; its gaps are not: their CV is {cv:.3g}, where 1 ± "
            f"{3 / math.sqrt(rows):.2g} would be chance."
        )
    worst = max(off, key=lambda d: abs(math.log(max(d.index, 1e-9))))
    times = f"{worst.index:.3g} times the variance of a Poisson process in windows of {_span(worst.window)}"
    if worst.index < 1:
        return f"Is it Poisson? No, it is more regular: {times}."
    # From one window to the next like Poisson, and gaps not far from it: what is left is a rate that changes slowly.
    drifts = first.neighbours - 1 < max(0.2, 0.3 * (first.index - 1))
    if drifts and (cv is None or cv < 1.5):
        near = f"near Poisson from gap to gap (CV {cv:.3g})" if cv is not None else "near Poisson in short windows"
        return (
            f"Is it Poisson? No. It is {near}, but its rate wanders: {times}. A formula that assumes Poisson arrivals "
            "at the mean rate is too hopeful about the busy minutes."
        )
    return (
        f"Is it Poisson? No, it comes in bursts: {times}, {first.index:.3g} already in those of {_span(first.window)}."
        + (f" The CV of the gaps is {cv:.3g}." if cv is not None else "")
    )


def _rank_correlation(prompts: Ints, outputs: Ints) -> float | None:
    if len(prompts) < 10 or np.ptp(prompts) == 0 or np.ptp(outputs) == 0:
        return None
    from scipy.stats import rankdata

    return float(np.corrcoef(rankdata(prompts), rankdata(outputs))[0, 1])


def _span(seconds: float) -> str:
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size or (seconds == size and unit != "days"):
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds >= 0.1 else f"{seconds * 1000:.3g} ms"


# ---- other records -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WindowsDescription:
    """A described ServeGen client."""

    name: str
    source: str
    windows: int
    width: float  # s
    rate: float  # 1/s, mean over all windows
    peak: float  # 1/s, the busiest window
    empty: int
    median_cv: float | None
    highest_cv: float | None
    families: dict[str, int]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "name": self.name,
            "source": self.source,
            "windows": self.windows,
            "window_s": self.width,
            "rate_per_s": self.rate,
            "peak_window_rate_per_s": self.peak,
            "empty_windows": self.empty,
            "median_gap_cv": self.median_cv,
            "highest_gap_cv": self.highest_cv,
            "families": self.families,
        }

    def __str__(self) -> str:
        families = ", ".join(f"{count} {name}" for name, count in self.families.items())
        lines = [
            self.name,
            self.source,
            "",
            f"{'windows':<18}{self.windows:,} of {_span(self.width)}, {_span(self.windows * self.width)} in all; "
            f"{self.empty} empty",
            f"{'rate':<18}{self.rate:.4g}/s; {self.peak:.4g}/s in the busiest window",
        ]
        if self.median_cv is not None:
            lines.append(
                f"{'CV of gaps':<18}median {self.median_cv:.3g}, highest {self.highest_cv:.3g} (within a window; "
                "Poisson: 1)"
            )
        lines.append(f"{'fitted':<18}{families}")
        lines.append("note: windows with a fit, not requests; ClientWindows.arrivals draws requests from them")
        return "\n".join(lines)

    __repr__ = __str__


def _windows(record: ClientWindows) -> WindowsDescription:
    busy = record.rate > 0
    return WindowsDescription(
        record.name,
        record.source,
        len(record),
        record.width,
        float(record.rate.mean()),
        float(record.rate.max()),
        int((~busy).sum()),
        float(np.median(record.cv[busy])) if busy.any() else None,
        float(record.cv[busy].max()) if busy.any() else None,
        {name or "none": count for name, count in Counter(record.family).most_common()},
    )


@dataclass(frozen=True)
class LengthsDescription:
    """Described lengths of a ServeGen client."""

    lengths: ClientLengths

    def rows(self) -> list[dict[str, Any]]:
        """One row a stretch of time and kind of length."""
        return [
            {"start_s": start, "tokens": kind, **_quantiles(law)}
            for place, start in enumerate(self.lengths.starts)
            for kind, law in (("prompt", self.lengths.prompt[place]), ("answer", self.lengths.output[place]))
        ]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"name": self.lengths.name, "source": self.lengths.source, "lengths": self.rows()}

    def __str__(self) -> str:
        lines = [
            self.lengths.name,
            self.lengths.source,
            "",
            f"{'from':<10}{'tokens':<10}{'p50':>9}{'p95':>9}{'p99':>9}",
        ]
        for row in self.rows():
            cells = "".join(f"{'–' if row[q] is None else f'{row[q]:,}':>9}" for q in ("p50", "p95", "p99"))
            lines.append(f"{row['start_s'] / 3600:<10g}{row['tokens']:<10}{cells}")
        lines.append("from: hours after the start; quantiles are those of the recorded shares")
        return "\n".join(lines)

    __repr__ = __str__


def _quantiles(law: EmpiricalTokens | None) -> dict[str, int | None]:
    names = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    if law is None:
        return dict.fromkeys(names)
    return {name: int(law.quantile(np.array([share]))[0]) for name, share in names.items()}


@dataclass(frozen=True)
class MeasuredDescription:
    """A described measured run: its load, and what it came to."""

    load: Description
    result: Summary

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"load": self.load.as_dict(), "result": self.result.as_dict()}

    def __str__(self) -> str:
        return (
            f"{self.load}\n\n{self.result}\n"
            "note: the tokens between first and last were not stamped, so ITL and stalls are an even spread"
        )

    __repr__ = __str__
