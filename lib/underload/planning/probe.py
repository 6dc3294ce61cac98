"""One run of a load at one rate, and what it says about an SLO.

A request is as far from its limits as the worst of its terms: value / limit, the largest of them. `stretch` is the
share of all requests that must meet the SLO, read off these: the factor by which every limit would have to be
multiplied for that share to meet it. At or below 1 the SLO holds; near saturation it grows as a queue does, smoothly,
where the share that met it falls off a cliff. That is why a search looks at it.

A run holds where three things do:

    slo      the share that met it is large enough
    load     the rate is below what the system does while its queue never empties; above, a queue that has come about
             never goes away again, however well a short run looks
    growth   of a drawn load, which should be steady: the requests inside do not grow from each fifth of the run to the
             next, by more than a share of those who come
"""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from underload import metrics
from underload.planning.loads import Source, backlog
from underload.planning.system import System
from underload.request import Timeline, UnderloadError
from underload.simulation import ClusterRun, StationReplica
from underload.workload import Planned

#: The share of those who come that may stay inside, over a run, before it counts as growing. A queue at 90 % of an
#: M/M/1 wanders by half of it in 2,000 requests.
GROWTH = 0.02
_FIFTHS = 5


@contextmanager
def uncollected() -> Iterator[None]:
    """While a run is made and judged, nothing of it can be thrown away: that Python looks for what could, again and
    again and through all there is, takes a sixth of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@dataclass(frozen=True)
class Probe:
    """What a run at a rate came to.

    run: which one: with its random numbers.
    rate: requests a second, on average over the run.
    load: rate / what the system does with a queue that never empties.
    attainment: the share of the requests after the warm-up that met the SLO; those that failed did not.
    stretch: see above; inf where too many failed.
    growth: the share of those who came that stayed inside.
    goodput: requests a second that met the SLO, by their last token, while requests came.
    broken: by term of the SLO, and "failed": the share of requests that broke it.
    limits: by limit of the replicas, the share of time in which somebody waited for it ("sequences", "KV blocks",
        "batch"), or steps were as large as they may be ("tokens a step").
    preemptions: of all sequences.
    window: s from the first arrival that counts to the last.
    requests: that count.
    fails: "" where it holds, or the first of "slo", "load", "growth" that does not.
    simulated: whether it was run. A rate of load 1 or more need not be.
    """

    run: int
    rate: float
    load: float
    attainment: float = 0.0
    stretch: float = math.inf
    growth: float = 0.0
    goodput: float = 0.0
    broken: dict[str, float] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    preemptions: int = 0
    window: float = 0.0
    requests: int = 0
    fails: str = ""
    simulated: bool = True

    @property
    def holds(self) -> bool:
        return not self.fails

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON: s and 1/s."""
        return {
            "run": self.run,
            "rate_per_s": self.rate,
            "load": self.load,
            "attainment": self.attainment if self.simulated else None,
            "stretch": self.stretch if self.simulated else None,
            "growth": self.growth if self.simulated else None,
            "goodput_per_s": self.goodput if self.simulated else None,
            "broken": self.broken,
            "limits": self.limits,
            "preemptions": self.preemptions,
            "window_s": self.window,
            "requests": self.requests,
            "holds": self.holds,
            "fails": self.fails or None,
            "simulated": self.simulated,
        }


@dataclass(frozen=True)
class Question:
    """What is asked of every run: sendable to another process.

    warmup: the share of a run's span, by arrival time, that does not count.
    recovery: of a load with a burst: s behind it that count as well. Nothing else does.
    """

    source: Source
    slo: metrics.Slo
    system: System
    attainment: float
    warmup: float
    saturated: float = math.inf
    recovery: float = 0.0

    @uncollected()
    def probe(self, base: Sequence[Planned], rate: float, run: int) -> Probe:
        """The run at a rate."""
        load = rate / self.saturated
        if load >= 1:
            return Probe(run, rate, load, fails="load", simulated=False)
        return self.judge(self.system.run(self.source.at(base, rate, run), seed=run), rate, run)

    def window(self, everyone: Sequence[Timeline]) -> tuple[float, float]:
        """From the first arrival (s) that counts to the last."""
        first, last = min(t.arrival for t in everyone), max(t.arrival for t in everyone)
        burst = self.source.burst
        if burst is None:
            return first + self.warmup * (last - first), last
        # With the burst the span is shorter, by what came early.
        start = first + burst.begin * (last - first + (burst.factor - 1) * burst.seconds)
        return start, min(start + burst.seconds + self.recovery, last)

    def judge(self, served: ClusterRun, rate: float, run: int) -> Probe:
        """What a run that was made comes to."""
        everyone = served.timelines
        start, last = self.window(everyone)
        kept = [timeline for timeline in everyone if start <= timeline.arrival <= last]
        if not kept:
            raise UnderloadError(
                f"nobody arrives from {start:.4g} s to {last:.4g} s, which is what counts; take longer"
            )
        broken: Counter[str] = Counter()
        met = 0
        for timeline in kept:
            terms = self.slo.broken(timeline)
            broken.update(terms)
            met += not terms
        attainment = met / len(kept)
        growth = growth_of(kept) if self.source.drawn and self.source.burst is None else 0.0
        fails = "slo" if met < needed(self.attainment, len(kept)) else "growth" if growth > GROWTH else ""
        window = (start, math.nextafter(last, math.inf))
        return Probe(
            run,
            rate,
            rate / self.saturated,
            attainment,
            stretch_of(kept, self.slo, self.attainment),
            growth,
            metrics.goodput(everyone, self.slo, window) or 0.0,
            {name: count / len(kept) for name, count in sorted(broken.items())},
            limits_of(self.system, served, start, last, max(one.prompt_tokens for one in everyone)),
            sum(timeline.preemptions for timeline in everyone),
            last - start,
            len(kept),
            fails,
        )


def check_slo(slo: object) -> None:
    """Raises:
    UnderloadError: it is no SLO.
    """
    if not isinstance(slo, metrics.Slo):
        raise UnderloadError(f"the SLO is a metrics.Slo, such as Slo(ttft=0.5, tpot=0.05), got {slo!r:.60}")


def needed(share: float, count: int) -> int:
    """How many of `count` make up a share; 0.99 of 100 are 99, whatever the rounding of doubles says."""
    return math.ceil(share * count - 1e-9)


def stretch_of(timelines: Sequence[Timeline], slo: metrics.Slo, share: float) -> float:
    """The factor on all limits at which just that share of the requests meets the SLO; inf where too many failed."""
    worst = sorted(stretch(timeline, slo) for timeline in timelines)
    return worst[max(needed(share, len(worst)), 1) - 1]


def stretch(timeline: Timeline, slo: metrics.Slo) -> float:
    """The largest value / limit of a request's terms; inf for one that did not succeed."""
    if not metrics.succeeded(timeline):
        return math.inf
    return max((getattr(metrics, name)(timeline) or 0.0) / limit for name, limit in slo.terms.items())


def growth_of(timelines: Sequence[Timeline]) -> float:
    """By how many the requests inside grew, as a share of those who came: from the mean over the first fifth of the
    arrivals to that over the last, where it grew from each fifth to the next; else 0. In an overload it is about
    1 - 1/load. A queue that wanders rises through all five by chance in one run of 120, and in one of 15 where the run
    is short beside its wandering (an M/M/1 at 95 %, 360 requests)."""
    arrivals = np.sort([timeline.arrival for timeline in timelines])
    ends = np.sort([t.finished if t.finished is not None else math.inf for t in timelines])
    fifth = len(arrivals) // _FIFTHS
    if fifth < 2:
        return 0.0
    inside = np.arange(len(arrivals)) - np.searchsorted(ends, arrivals, side="right")
    means = inside[: _FIFTHS * fifth].reshape(_FIFTHS, fifth).mean(axis=1)
    if not (np.diff(means) > 0).all():
        return 0.0
    return float((means[-1] - means[0]) / ((_FIFTHS - 1) * fifth))


def limits_of(system: System, served: ClusterRun, start: float, end: float, longest: int) -> dict[str, float]:
    """By limit, the share of the time with steps in which it held somebody up.

    Somebody waits while all slots are taken: "sequences". Else while the free blocks would not hold the longest prompt
    of the load, or some sequence: "KV blocks". Else the policy lets nobody in: "batch". And a step with as many tokens
    as it may have is "tokens a step", whoever waits.
    """
    scheduler = system.scheduler()
    if scheduler is None:
        return {}
    slots, budget = scheduler.max_num_seqs, scheduler.max_num_batched_tokens
    room = -(-longest // scheduler.pool.block_size)
    spent = dict.fromkeys(("sequences", "KV blocks", "batch", "tokens a step"), 0.0)
    busy = 0.0
    for replica in served.replicas:
        for step in replica.steps:
            if not start <= step.start <= end:
                continue
            busy += step.duration
            full = step.num_tokens >= budget
            if full:
                spent["tokens a step"] += step.duration
            if not step.queue_length:
                continue
            if step.batch_size >= slots:
                spent["sequences"] += step.duration
            elif step.blocks_free + step.blocks_cached < room:
                spent["KV blocks"] += step.duration
            elif not full:
                spent["batch"] += step.duration
    return {name: seconds / busy for name, seconds in spent.items()} if busy else {}


@uncollected()
def saturated_rate(source: Source, system: System, run: int = 0) -> float:
    """Requests a second that the system answers while its queue never empties: the design's saturated throughput.

    All requests of a run are there at the start, and more of its kind where they are fewer than 1,000 or too few to
    fill the batch eight times. What counts is the middle half of the answers, when the batch is as full as it gets,
    prompts and answers are computed side by side, and it is not yet running dry.

    Raises:
        UnderloadError: it answers nobody, or takes no time.
    """
    if isinstance(system.replica, StationReplica):
        # Of fewer draws the mean is far off, and no load above what comes of it may hold.
        count = max(1000, source.requests, 8 * system.replica.servers * system.replicas)
    else:
        scheduler = system.scheduler()
        assert scheduler is not None
        count = max(1000, 8 * scheduler.max_num_seqs * system.replicas)
    base = source.plenty(run, count)
    served = system.bare.run(backlog(base), seed=run)
    ends = np.sort([t.finished for t in served.timelines if t.finished is not None and metrics.succeeded(t)])
    if not len(ends):
        why = next((call.error for call in served.calls if call.error), "nobody said why")
        raise UnderloadError(f"the system answers none of {len(base):,} requests, so that no load is left ({why:.200})")
    if not ends[-1] > 0:
        raise UnderloadError(
            "the system answers everybody in no time, so that no load is too much; say what steps take"
        )
    whole = len(ends) / float(ends[-1])
    first, last = len(ends) // 4, 3 * len(ends) // 4
    if last - first < 10 or not ends[last] > ends[first]:
        return whole
    return max(whole, (last - first) / float(ends[last] - ends[first]))
