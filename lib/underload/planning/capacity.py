"""The largest load at which an SLO holds, how sure that is, and what binds there.

The SLO names its metrics and limits (`metrics.Slo`), the share of the requests that must meet them (`attainment`: 0.99
of TTFT says p99), and its window is a run: `requests` of them after the warm-up. The load is scaled by speed or by
thinning (`planning.loads`).

Each run has random numbers of its own, which are the same at every rate, so that within a run the limit is crossed at
a sharp rate: the crossing. The capacity is the mean of the crossings, with Student's interval over the runs: where runs
of this length cross on average. A single run may cross anywhere among the `crossings`. Short runs cross later than
long ones do, since a run that is spared its bad minutes gains more than an unlucky one loses (an M/M/1, 90 % within 5
mean services: by 5 % with 1,000 requests).

How it is found, with few long runs:

    saturated   of each run: what the system does while its queue never empties: no load at or above it holds
                (`planning.probe`)
    pilots      short runs at shares of that, then between two of them, for a first guess, and to see whether the SLO
                fails at low loads, too; of a trace its busiest tenth, in which ten times as large a share may break
                the SLO
    search      of each run: rates that close in on the crossing by the run's stretch, read between a rate that holds
                and one that does not, at most `tolerance` apart. Two runs begin at their pilots' guesses, the others at
                what these two have found. Which runs are made does not depend on who makes them, or how many at once.

Where a load holds again above one that does not, the first crossing counts, and `exceptions` has the rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import Any

from underload import metrics
from underload.metrics import MeanInterval, mean_interval
from underload.planning.loads import Burst, Source, busiest, check_burst, mean_rate, source_of, squeezed
from underload.planning.probe import Probe, Question, check_slo, saturated_rate, uncollected
from underload.planning.sweep import Watched, check_sendable, workers
from underload.planning.system import System, check_system
from underload.queueing import arguments
from underload.request import UnderloadError
from underload.workload import Load, Planned, Trace

#: Shares of the saturated rate at which pilots run.
PILOTS = (0.1, 0.3, 0.5, 0.75, 0.96)
#: Pilots of a run that look closer, between the two of them where the SLO is broken first; and of how many runs.
CLOSER, FIRST = 2, 2
#: Requests of a pilot, and how many of them may break the SLO before it fails.
_PILOT, _MAY_BREAK = 400, 4
#: Rates of one run's search at most.
_MOST = 16
#: A rate below this share of the saturated one counts as none.
_NOTHING = 1e-3
#: Requests that thinning must leave.
_THINNEST = 20
# By how much more the stretch grows than the rate, where nothing is known of it.
_SLOPE = 4.0
# Stands for a stretch of 0, where nobody waits.
_TINY = 1e-9


@dataclass(frozen=True)
class Binds:
    """What keeps the load from being larger, seen at the first rates that failed.

    term: of the SLO, the one that most requests broke; "failed" where they failed or were refused, "load" where the
        queue would never empty, "growth" where it grew.
    limit: of the replicas (`Probe.limits`), the one that had most to do with it: what was waited for, for a larger
        share of the time than of the requests may break the SLO; or steps with as many tokens as they may have, for a
        tenth of the time. A TPOT is lengthened by no wait for a slot: by these steps, or by KV blocks where somebody
        was preempted. "step time" where it was none of them, so that the steps themselves take too long; "servers" at
        stations; "" where no run was needed to see that it fails.
    terms, limits: their shares: of requests, and of time.
    """

    term: str
    limit: str
    terms: dict[str, float]
    limits: dict[str, float]

    @classmethod
    def at(cls, probes: Sequence[Probe], attainment: float) -> Binds:
        """What bound in these runs, each of which failed."""
        seen = [probe for probe in probes if probe.simulated]
        terms = _means([probe.broken for probe in seen])
        limits = _means([probe.limits for probe in seen])
        fails = [probe.fails for probe in probes]
        other = max(("load", "growth"), key=fails.count)
        term = max(terms, key=terms.__getitem__, default="") if fails.count("slo") else other
        if not limits:
            return cls(term, "servers" if seen else "", terms, limits)
        enough = dict.fromkeys(limits, 1 - attainment) | {"tokens a step": 0.1}
        if term in ("tpot", "longest_stall"):
            enough |= {"sequences": 1.0, "batch": 1.0}
            if not any(probe.preemptions for probe in seen):
                enough["KV blocks"] = 1.0
        short = {name: share for name, share in limits.items() if share > enough[name]}
        return cls(term, max(short, key=short.__getitem__, default="step time"), terms, limits)

    def __str__(self) -> str:
        what = {
            "load": "the queue: at this load it would never empty again",
            "growth": "the queue: it grew through the whole run",
            "failed": "requests that failed or were refused",
        }.get(self.term, f"{self.term.replace('_', ' ')}, broken by {self.terms.get(self.term, 0.0):.1%} of requests")
        if (waited := self.limits.get(self.limit)) is not None:
            return f"{what}; {self.limit} at their limit {waited:.0%} of the time"
        if not self.limit:
            return what
        if self.limit == "servers":
            return f"{what}; all servers are busy too often"
        return f"{what}; steps take too long, and no limit of the replicas is met"


@dataclass(frozen=True)
class Capacity:
    """The answer. Rates in requests/s.

    rate: the mean of the crossings.
    interval: of that mean, over the runs; None for one run.
    crossings: of each run; 0 where no rate held.
    scale: rate / the load's own rate.
    saturated: what the system does while its queue never empties, the mean over the runs.
    binds: None where nothing ever failed.
    probes: all runs that were made, in the order of run and rate; pilots are not among them.
    exceptions: rates that held above the crossing, or failed below it.
    requests, window: that count, and s from the first of their arrivals to the last, in a run just below its crossing;
        in the first that was run where no rate held.
    """

    rate: float
    interval: MeanInterval | None
    crossings: tuple[float, ...]
    scale: float
    saturated: float
    binds: Binds | None
    slo: metrics.Slo
    attainment: float
    requests: int
    window: float
    scaling: str
    probes: tuple[Probe, ...]
    exceptions: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def load(self) -> float:
        """rate / saturated."""
        return self.rate / self.saturated if self.saturated else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        around = self.interval
        return {
            "capacity_per_s": self.rate,
            "interval_per_s": None if around is None else [around.low, around.high],
            "confidence": None if around is None else around.confidence,
            "crossings_per_s": list(self.crossings),
            "scale": self.scale,
            "share_of_saturated": self.load,
            "saturated_per_s": self.saturated,
            "slo_s": self.slo.terms,
            "attainment": self.attainment,
            "requests": self.requests,
            "window_s": self.window,
            "scaled_by": self.scaling,
            "binds": None
            if self.binds is None
            else {
                "term": self.binds.term,
                "limit": self.binds.limit,
                "terms": self.binds.terms,
                "limits": self.binds.limits,
            },
            "exceptions_per_s": list(self.exceptions),
            "notes": list(self.notes),
            "probes": [probe.as_dict() for probe in self.probes],
        }

    def __str__(self) -> str:
        terms = ", ".join(f"{name} <= {limit:g} s" for name, limit in self.slo.terms.items())
        around = self.interval
        sure = (
            ""
            if around is None
            else f" ({max(around.low, 0):.4g} to {around.high:.4g}, {around.confidence:.0%} confidence)"
        )
        lines = [
            f"capacity    {self.rate:.4g} requests/s{sure}, at which {self.attainment:.4g} of requests meet {terms}",
            f"load        {self.load:.1%} of the {self.saturated:.4g} requests/s with a queue that never empties",
            f"window      {self.requests:,} requests, {self.window:.4g} s",
        ]
        if self.binds is not None:
            lines.append(f"binds       {self.binds}")
        return "\n".join([*lines, *(f"note        {note}" for note in self.notes)])

    __repr__ = __str__


def capacity(
    workload: Load | Trace | Sequence[Planned],
    slo: metrics.Slo,
    system: System,
    *,
    attainment: float = 0.99,
    requests: int | None = None,
    runs: int = 4,
    scaling: str = "speed",
    warmup: float | None = None,
    tolerance: float = 0.03,
    confidence: float = 0.95,
    seed: int = 0,
    processes: int = 1,
    scheduler: str | None = None,
    burst: Burst | None = None,
    recovery: float = 0.0,
    progress: Callable[[int, int], None] | None = None,
) -> Capacity:
    """The largest rate at which the SLO holds for this load on this system.

    Args:
        workload: a load to draw from, a trace, or a plan.
        attainment: the share of the requests that must meet the SLO; 0.99 of a limit on TTFT is "p99 of TTFT".
        requests: of a run (conversations, where these arrive); None: 2,000 of a drawn load, all of a trace or a plan.
        runs: how many; one gives no interval.
        scaling: "speed" or "thinning".
        warmup: the share of a run's span whose arrivals do not count. None: 0.1 of a drawn load, which should be
            steady; none of a trace, which is what it is.
        tolerance: of a run's crossing: 0.03 is between two rates 3 % apart.
        processes, scheduler: who does the work (`planning.workers`).
        burst: put into every run; who arrives during it, and `recovery` s behind it, is then all that counts.
        progress: called with (done, parts) as parts of the work are done, perhaps from another thread. The last parts,
            one for each run, take longest.

    Raises:
        UnderloadError: an argument outside its range, a load without requests, a request that no replica could serve.
    """
    check_share("attainment", attainment)
    check_share("tolerance", tolerance)
    check_share("confidence", confidence)
    check_burst(burst)
    recovery = arguments.at_least_zero("recovery", recovery, "s")
    check_slo(slo)
    check_system(system)
    source = replace(source_of(workload, requests=requests, scaling=scaling, seed=seed), burst=burst)
    warmup = warmup_of(source, warmup)
    runs, notes = runs_of(source, runs)
    question = Question(source, slo, system, attainment, warmup, recovery=recovery)
    if processes > 1:
        check_sendable(question)
    with workers(processes, scheduler) as executor:
        if progress is not None:
            parts = (runs if source.drawn else 1) + len(PILOTS) + CLOSER * min(runs, FIRST) + runs
            executor = Watched(executor, parts, progress)
        return _answer(question, executor, runs, tolerance, confidence, notes)


def check_share(name: str, value: object) -> float:
    """`value`, which lies between 0 and 1.

    Raises:
        UnderloadError: it does not.
    """
    if not 0 < arguments.number(name, value) < 1:
        raise UnderloadError(f"{name} is a share between 0 and 1, got {value!r:.40}; write 0.99 for 99 %")
    return float(value)  # type: ignore[arg-type]


def warmup_of(source: Source, warmup: float | None) -> float:
    """The share of a run that does not count.

    Raises:
        UnderloadError: no share below 1.
    """
    if warmup is None:
        return 0.1 if source.drawn else 0.0
    if not 0 <= arguments.number("warmup", warmup) < 1:
        raise UnderloadError(f"warmup is a share of a run from 0 up to 1, got {warmup!r:.40}; write 0.1 for a tenth")
    return float(warmup)


def runs_of(source: Source, runs: int) -> tuple[int, list[str]]:
    """How many runs there can be, and what to say about it."""
    runs = arguments.whole("runs", runs, least=1, most=10_000)
    if runs > 1 and not source.exchangeable:
        return 1, [
            "one run and no interval: its requests share prompts or follow each other, so that they cannot be "
            "exchanged for another run"
        ]
    return runs, []


def _answer(
    question: Question, executor: Executor, runs: int, tolerance: float, confidence: float, notes: list[str]
) -> Capacity:
    source = question.source
    # The runs of a plan are its own requests in another order, and a backlog has none.
    drawn = range(runs) if source.drawn else range(1)
    wholes = [executor.submit(saturated_rate, source, question.system, run) for run in drawn]
    each = [future.result() for future in wholes]
    saturated = math.fsum(each) / len(each)
    each = each if source.drawn else each * runs
    questions = [replace(question, saturated=rate) for rate in each]
    question = replace(question, saturated=saturated)
    guesses, slope, low = _pilots(question, executor, min(runs, FIRST))
    searches: list[list[Probe]] = []
    for wave in (range(min(runs, FIRST)), range(FIRST, runs)):
        made: list[Future[list[Probe]]] = [
            executor.submit(search, questions[run], run, guess, slope, tolerance) for run, guess in zip(wave, guesses)
        ]
        searches += [future.result() for future in made]
        crossed = [at for at in map(crossing, searches) if at] or guesses
        guesses = [math.fsum(crossed) / len(crossed)] * runs
        if any(map(crossing, searches)):
            slope = _slope([bracket(one) for one in searches])
    crossings = [crossing(one) for one in searches]
    rate = math.fsum(crossings) / len(crossings)
    failed = [high for one in searches if (high := bracket(one)[1]) is not None]
    binds = Binds.at(failed, question.attainment) if failed else None
    exceptions = sorted({*low, *(at for one in searches for at in _exceptions(one))})
    base = source.base(0)
    below = next((held for held, _ in map(bracket, searches) if held is not None), None)
    # Both of one run: thinned to another rate, it has other requests.
    told = below or next((probe for one in searches for probe in one if probe.simulated), None)
    kept, window = (told.requests, told.window) if told is not None else (0, 0.0)
    if low:
        notes.append(
            f"at low load the SLO fails, too: {', '.join(f'{at:.3g}' for at in low)} requests/s, in short runs; the "
            "capacity is where it fails as the load grows"
        )
    if exceptions and exceptions != low:
        notes.append(
            "it is not monotone: some rates held above the crossing, or failed below; the first crossing counts"
        )
    if kept and kept * (1 - question.attainment) < _MAY_BREAK:
        notes.append(
            f"in {kept:,} requests a share of {question.attainment:g} leaves {kept * (1 - question.attainment):.1f} "
            "that may break it: a few decide; take more requests"
        )
    if binds is not None and binds.term == "growth" and rate:
        notes.append(
            "a run that is short beside the time that a request takes looks as if its queue grew: see whether more "
            "requests give more"
        )
    if below is not None and source.burst is None and any(one.turn and one.think is not None for one in base):
        came = below.requests / below.window
        if not 0.95 < came / below.rate < 1.05:
            notes.append(
                f"turns wait for the answer before them: planned at {below.rate:.4g}/s, {came:.4g} requests/s came; "
                "more conversations bring the two together"
            )
    if any(held is not None and high is None for held, high in map(bracket, searches)):
        notes.append("no rate that could be tried fails: the capacity is that or more")
    if not rate:
        notes.append("no rate holds, however low; loosen the SLO, or take a faster system")
    return Capacity(
        rate,
        mean_interval(crossings, confidence) if len(crossings) > 1 and any(crossings) else None,
        tuple(crossings),
        rate / mean_rate(base),
        saturated,
        binds,
        question.slo,
        question.attainment,
        kept,
        window,
        source.scaling,
        tuple(probe for one in searches for probe in sorted(one, key=lambda probe: probe.rate)),
        tuple(exceptions),
        tuple(notes),
    )


# ---- pilots --------------------------------------------------------------------------------------------------------


@uncollected()
def pilot(question: Question, requests: int, rate: float, run: int) -> Probe:
    """A short run: of a drawn load the first requests, of a plan those of its busiest stretch, where most of what
    breaks an SLO breaks it, and where a larger share may therefore do so."""
    source = question.source
    if source.drawn or source.scaling == "thinning":
        return question.probe(source.base(run, requests), rate, run)
    base = source.base(run)
    part = busiest(base, requests)
    share = 1 - (1 - question.attainment) * len(base) / len(part)
    served = question.system.run(squeezed(part, mean_rate(base) / rate))
    return replace(question, attainment=max(share, 0.5)).judge(served, rate, run)


def _pilots(question: Question, executor: Executor, runs: int) -> tuple[list[float], float, list[float]]:
    """A first guess at the crossing of so many runs, the slope of the stretch there, and low rates that fail."""
    source = question.source
    requests = max(_PILOT, math.ceil(_MAY_BREAK / (1 - question.attainment)))
    # Where a plan comes in stretches, a busy one may be far above the rate of the whole.
    question = replace(question, source=replace(source, burst=None))
    rates = [share * question.saturated for share in PILOTS]
    if source.scaling == "thinning":
        least, own = _reach(question, source.base(0))
        rates = [rate for rate in rates if least <= rate <= own] or sorted({max(own / 2, min(least, own)), own})
        requests = source.requests
    elif not source.drawn:
        requests = max(requests, source.requests // 10)
    probes = _at_once(executor, question, requests, [(rate, 0) for rate in rates])
    low, high = bracket(probes)
    closer: list[Probe] = []
    if low is not None and high is not None:
        # These two are far apart, and a pilot is cheap beside the run that a worse guess would cost.
        steps = [low.rate * (high.rate / low.rate) ** (k / (CLOSER + 1)) for k in range(1, CLOSER + 1)]
        closer = _at_once(executor, question, requests, [(rate, run) for run in range(runs) for rate in steps])
    seen = [
        sorted([*probes, *closer[CLOSER * run : CLOSER * (run + 1)]], key=lambda one: one.rate) for run in range(runs)
    ]
    probes = seen[0]
    holding = [probe.rate for probe in probes if probe.holds]
    if not holding:
        stretched = min(probes, key=lambda probe: probe.stretch)
        return [stretched.rate * (0.5 if stretched.rate > rates[0] else 0.2)] * runs, _SLOPE, []
    low, high = bracket(probes)
    slope = _slope([(low, high)])
    below = [probe.rate for probe in probes if probe.rate < holding[0]]
    if high is None and low is not None:
        up = max(low.stretch, _TINY) ** (-1 / slope)
        return [min(low.rate * min(up, 1.2), 0.98 * question.saturated)] * runs, slope, below
    return [crossing(one) or crossing(probes) for one in seen], slope, below


def _at_once(executor: Executor, question: Question, requests: int, points: Sequence[tuple[float, int]]) -> list[Probe]:
    """Pilots at these rates, each of a run."""
    made: list[Future[Probe]] = [executor.submit(pilot, question, requests, *point) for point in points]
    return [future.result() for future in made]


def _slope(brackets: Sequence[tuple[Probe | None, Probe | None]]) -> float:
    """d log(stretch) / d log(rate) at the crossing, over brackets whose ends have a finite stretch."""
    slopes = [
        math.log(high.stretch / low.stretch) / math.log(high.rate / low.rate)
        for low, high in brackets
        if low is not None and high is not None and 0 < low.stretch < high.stretch < math.inf
    ]
    return min(max(math.fsum(slopes) / len(slopes), 1.0), 50.0) if slopes else _SLOPE


# ---- the search of one run ------------------------------------------------------------------------------------------


def search(question: Question, run: int, guess: float, slope: float, tolerance: float) -> list[Probe]:
    """Rates of one run that close in on its crossing, from a guess; the last ones are at most `tolerance` apart."""
    base = question.source.base(run)
    least, most = _reach(question, base)
    probes: list[Probe] = []
    rate = min(max(guess, least), most)
    step = tolerance / 3
    near = (1 + tolerance) * (1 - 1e-9)  # the farthest that two rates may be apart in the end, whatever is rounded
    while True:
        probes.append(question.probe(base, rate, run))
        low, high = bracket(probes)
        further = 2 ** (len(probes) - 1)  # where nothing turned out as the slope says, in ever longer steps
        if low is None:
            assert high is not None
            if high.rate <= least or len(probes) >= _MOST:
                return probes
            down = max(high.stretch, _TINY) ** (-1 / slope) if high.simulated and math.isfinite(high.stretch) else 0.7
            down = max(min(down, 1 / (1 + step)) ** further, 0.4)
            rate = max(high.rate / (near if down >= 1 / near else (1 + step) / down), least)
        elif high is None:
            if low.rate >= most or len(probes) >= _MOST:
                return probes
            up = min(max(max(low.stretch, _TINY) ** (-1 / slope), 1 + step) ** further, 1.6)
            rate = min(low.rate * (near if up <= near else up * (1 + step)), most)
        else:
            if high.rate <= low.rate * (1 + tolerance) or len(probes) >= _MOST:
                return probes
            rate = _between(low, high, probes, step, near)


def _reach(question: Question, base: Sequence[Planned]) -> tuple[float, float]:
    """The lowest and the highest rate worth a look; the saturated one is known to fail."""
    nothing = _NOTHING * question.saturated
    if question.source.scaling == "speed":
        return nothing, question.saturated
    own = mean_rate(base)
    return max(nothing, own * _THINNEST / len(base)), min(own, question.saturated)


def _between(low: Probe, high: Probe, probes: Sequence[Probe], step: float, near: float) -> float:
    """The next rate inside a bracket. As far from an end as the two may be apart in the end, where the stretch says
    that the crossing is between: it is the last one then. Else on the far side of where it says so, so that both ends
    close in; the middle where that has not halved the bracket in three steps."""
    span = math.log(high.rate / low.rate)
    wide = bracket(probes[:-3])
    if wide[0] is not None and wide[1] is not None and span > 0.5 * math.log(wide[1].rate / wide[0].rate):
        return math.sqrt(low.rate * high.rate)
    at = crossing_between(low, high)
    above, below = low.rate * near, high.rate / near
    if at < above and (at <= below or above * below > at * at):
        at = above
    elif at > below:
        at = below
    else:
        at = at * (1 + step) if high.rate / at > at / low.rate else at / (1 + step)
    edge = math.exp(span / 8)
    return min(max(at, low.rate * edge), high.rate / edge)


def bracket(probes: Sequence[Probe]) -> tuple[Probe | None, Probe | None]:
    """The first crossing seen from the lowest rate that held: the highest that held, below the lowest above that did
    not. Either may be missing; where nothing held, the lowest rate of all stands on the right."""
    ordered = sorted(probes, key=lambda probe: probe.rate)
    first = next((place for place, probe in enumerate(ordered) if probe.holds), None)
    if first is None:
        return None, ordered[0] if ordered else None
    for place in range(first, len(ordered)):
        if not ordered[place].holds:
            return ordered[place - 1], ordered[place]
    return ordered[-1], None


def crossing(probes: Sequence[Probe]) -> float:
    """The rate at which the SLO is first broken; 0 where nothing held, the highest that held where nothing failed."""
    low, high = bracket(probes)
    if low is None:
        return 0.0
    return low.rate if high is None else crossing_between(low, high)


def crossing_between(low: Probe, high: Probe) -> float:
    """By the logarithms of rate and stretch, where the higher rate failed for its stretch; else the middle."""
    if not (high.simulated and high.fails == "slo" and math.isfinite(high.stretch) and 0 < low.stretch < high.stretch):
        return math.sqrt(low.rate * high.rate)
    share = -math.log(low.stretch) / math.log(high.stretch / low.stretch)
    return low.rate * (high.rate / low.rate) ** min(max(share, 0.0), 1.0)


def _exceptions(probes: Sequence[Probe]) -> list[float]:
    """Rates that held above the crossing, or failed below it."""
    at = crossing(probes)
    return [probe.rate for probe in probes if at and probe.holds != (probe.rate <= at)]


def _means(shares: Sequence[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for one in shares for name in one)
    return {name: math.fsum(one.get(name, 0.0) for one in shares) / len(shares) for name in names}
