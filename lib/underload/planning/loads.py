"""A load at any rate: what a capacity question asks about, run by run, with the same random numbers at every rate.

    source_of   a `workload.Load`, a `Trace` or a plan, as a Source
    Source      `plan(run, rate)`: the requests of a run at a mean rate
    Burst       a stretch in which requests come so many times as fast

By speed: every gap is multiplied by one factor, so that the same requests come in the same order, only closer. Bursts
and quiet hours shrink with them. Lengths, what prompts share, and think times stay. By thinning: each request has a
number of its own between 0 and 1, and those stay whose number is below rate / recorded rate; the pattern over time
stays, and a rate above the recorded one cannot be had.

A drawn load is drawn anew for each run. A plan or a trace is one piece of history: run 0 is that piece. The other runs
keep its arrivals and exchange the requests among them at random, where they share nothing and belong to no
conversation; where they do, there is no second run.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

import numpy as np

from underload.planning.system import shares_nothing
from underload.queueing import arguments
from underload.request import UnderloadError
from underload.workload import Load, Planned, Streams, Trace

SCALINGS = ("speed", "thinning")
# A last window with so few arrivals tells no rate where it is short.
_FEW = 10


@dataclass(frozen=True)
class Burst:
    """Requests come `factor` times as fast for `seconds`, from a share `begin` of the load's span on. They are those
    that would have come anyhow, only earlier.

    Raises:
        UnderloadError: a factor below 1, or seconds not above 0.
    """

    factor: float
    seconds: float
    begin: float = 0.5

    def __post_init__(self) -> None:
        if not arguments.number("factor", self.factor) >= 1:
            raise UnderloadError(f"a burst's factor must be at least 1, got {self.factor}; 3 is three times the rate")
        arguments.above_zero("seconds", self.seconds, "s")
        if not 0 <= arguments.number("begin", self.begin) < 1:
            raise UnderloadError(f"a burst begins at a share of the span from 0 up to 1, got {self.begin}")

    def start(self, planned: Sequence[Planned]) -> float:
        """The instant (s) at which it begins in this plan."""
        first, last = planned[0].arrival, planned[-1].arrival
        return first + self.begin * (last - first)

    def on(self, planned: Sequence[Planned]) -> list[Planned]:
        """The plan with the burst in it.

        Raises:
            UnderloadError: too little of the plan is left behind its beginning.
        """
        start = self.start(planned)
        inside = self.factor * self.seconds  # as long took without it what now comes within it
        if inside > planned[-1].arrival - start:
            raise UnderloadError(
                f"a burst of {self.factor:g} times the rate for {self.seconds:g} s takes in what came in {inside:.4g} "
                f"s, and {planned[-1].arrival - start:.4g} s are left of the load; take more requests, or a smaller one"
            )
        made = []
        for one in planned:
            past = one.arrival - start
            if past > 0:
                past = past / self.factor if past < inside else past - inside + self.seconds
                one = replace(one, arrival=start + past)
            made.append(one)
        return made


def check_burst(burst: object) -> None:
    """Raises:
    UnderloadError: neither a Burst nor None.
    """
    if burst is not None and not isinstance(burst, Burst):
        raise UnderloadError(f"a burst is a planning.Burst, such as Burst(3, 60), got {burst!r:.60}")


@dataclass(frozen=True)
class Source:
    """Requests of a run at a rate.

    load: drawn anew for each run; None where `rows` are the load.
    rows: a plan as it stands.
    requests: of a run.
    scaling: how a rate is reached.
    burst: put into the plan once it has its rate; None: there is none.
    """

    load: Load | None
    rows: tuple[Planned, ...]
    requests: int
    scaling: str = "speed"
    seed: int = 0
    burst: Burst | None = None

    @property
    def drawn(self) -> bool:
        return self.load is not None

    @property
    def exchangeable(self) -> bool:
        """Whether there can be a second run."""
        return self.drawn or shares_nothing(self.rows)

    def base(self, run: int, requests: int | None = None) -> list[Planned]:
        """The requests of a run at the rate that they have by themselves; fewer of them where asked."""
        streams = Streams(self.seed).under(run)
        count = self.requests if requests is None else min(requests, self.requests)
        if self.load is not None:
            planned = self.load.plan(streams, requests=count)
        else:
            planned = list(self.rows)
            if run:
                order = streams.fresh("exchange").permutation(len(planned)).tolist()
                planned = [
                    replace(planned[place], arrival=at.arrival, index=index)
                    for index, (at, place) in enumerate(zip(planned, order))
                ]
            if count < len(planned):
                planned = _every(planned, count)
        mean_rate(planned)
        return planned

    def plenty(self, run: int, count: int) -> list[Planned]:
        """So many requests of a run, however few it has: a drawn load is drawn for longer, those of a plan come again
        and again, where they share nothing. Else fewer of them."""
        if self.load is not None:
            return self.load.plan(Streams(self.seed).under(run), requests=count)
        base = self.base(run, count)
        if len(base) == count or not self.exchangeable:
            return base
        again = islice(cycle(base), count)
        return [replace(one, index=index, segments=()) for index, one in enumerate(again)]

    def at(self, base: Sequence[Planned], rate: float, run: int) -> list[Planned]:
        """Those requests at a mean rate (1/s).

        Raises:
            UnderloadError: by thinning, a rate above that of the requests, or one that leaves nobody.
        """
        first, own = base[0].arrival, mean_rate(base)
        if self.scaling == "speed":
            made = squeezed(base, own / rate)
            return made if self.burst is None else self.burst.on(made)
        if rate > own * (1 + 1e-9):
            raise UnderloadError(
                f"thinning leaves requests out: {rate:.4g}/s cannot be had from a load of {own:.4g}/s; take more of "
                "it, or scale by speed"
            )
        numbers = Streams(self.seed).under(run).fresh("thinning").random(len(base))
        kept = [one for one, number in zip(base, numbers.tolist()) if number < rate / own]
        if not kept:
            raise UnderloadError(
                f"thinned to {rate:.4g}/s, none of {len(base):,} requests at {own:.4g}/s is left; take more of them, "
                "or scale by speed"
            )
        made = [replace(one, arrival=one.arrival - first, index=index) for index, one in enumerate(kept)]
        return made if self.burst is None else self.burst.on(made)


def source_of(
    workload: Load | Trace | Sequence[Planned], *, requests: int | None = None, scaling: str = "speed", seed: int = 0
) -> Source:
    """What to ask about.

    Args:
        requests: of a run; of a trace or a plan at most so many from its beginning. None: 2,000 of a drawn load, all of
            a trace.

    Raises:
        UnderloadError: no load, an empty one, a way of scaling that does not exist, or requests below 2.
    """
    if scaling not in SCALINGS:
        raise UnderloadError(f"a load is scaled by {' or '.join(SCALINGS)}, got {scaling!r:.40}")
    if requests is not None:
        requests = arguments.whole("requests", requests, least=2)
    if isinstance(workload, Load):
        return Source(workload, (), requests or 2000, scaling, seed)
    if isinstance(workload, Trace):
        rows = workload.plan(seed=seed)
    else:
        try:
            rows = list(workload)
        except TypeError:
            rows = []
    if not rows or not all(isinstance(one, Planned) for one in rows):
        raise UnderloadError(f"a load is a Workload, a Trace or a list of Planned requests, got {workload!r:.60}")
    rows = sorted(rows, key=lambda one: one.arrival)[:requests]
    return Source(None, tuple(rows), len(rows), scaling, seed)


def mean_rate(planned: Sequence[Planned]) -> float:
    """Arrivals a second: gaps / span.

    Raises:
        UnderloadError: they come within no time.
    """
    if len(planned) < 2 or not planned[-1].arrival > planned[0].arrival:
        raise UnderloadError(
            f"{len(planned)} requests within no time have no rate that could be scaled; give more of them"
        )
    return (len(planned) - 1) / (planned[-1].arrival - planned[0].arrival)


def window_starts(arrivals: Sequence[float], window: float) -> list[float]:
    """Where windows of so many s begin, from 0 on, up to the last of these sorted arrivals, which lies in the last one.

    What is left behind the last whole window goes into that one where it would tell no rate of its own: a hundredth of
    a window, or less than half of one with few arrivals. A single arrival just behind an edge is no rush.
    """
    end = arrivals[-1]
    starts = [k * window for k in range(max(math.ceil(end / window), 1))]
    left = end - starts[-1]
    few = len(arrivals) - bisect_left(arrivals, starts[-1]) < _FEW
    if len(starts) > 1 and (left < window / 100 or (few and left < window / 2)):
        starts.pop()
    return starts


def squeezed(planned: Sequence[Planned], factor: float) -> list[Planned]:
    """The same requests, with every gap multiplied by one factor; the first comes at 0."""
    first = planned[0].arrival
    return [replace(one, arrival=(one.arrival - first) * factor) for one in planned]


def busiest(planned: Sequence[Planned], count: int) -> list[Planned]:
    """So many of them in a row: those that come within the least time."""
    arrivals = np.array([one.arrival for one in planned])
    count = min(count, len(planned))
    first = int(np.argmin(arrivals[count - 1 :] - arrivals[: len(arrivals) - count + 1]))
    return [replace(one, index=index) for index, one in enumerate(planned[first : first + count])]


def backlog(planned: Sequence[Planned]) -> list[Planned]:
    """The same requests, all there at the start; turns of a conversation follow without a pause."""
    return [replace(one, arrival=0.0, think=None if one.think is None else 0.0) for one in planned]


def _every(planned: Sequence[Planned], count: int) -> list[Planned]:
    """So many of them: every k-th where each stands for itself, the first ones where turns follow each other."""
    if any(one.session is not None for one in planned):
        return list(planned[:count])
    places = np.linspace(0, len(planned) - 1, count).round().astype(int)
    return [replace(planned[place], index=index) for index, place in enumerate(places.tolist())]
