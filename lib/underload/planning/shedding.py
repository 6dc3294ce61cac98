"""Who is turned away when not all can be served, decided beforehand; and what happens when they come back.

    RejectAbove    at the door: nobody comes in while so many are inside
    DegradeAbove   at the door: shorter answers while so many are inside
    shedding_policies  the same system under each policy, for `planning.compare_systems`
    through_time   a run window by window: offered, answered in time, attempts
    storm          a burst, clients that try again, and whether the system comes back

Two more policies are the scheduler's: dropping who has not begun by its deadline (`scheduling.Shedding`), and serving
the important first (`scheduling.Priority`).

A client that tries again turns one request into several. A server that cannot tell an answer that somebody waits for
from one that nobody does goes on working for those who have left, and then a burst can leave it busy with nothing else
when the burst is long over (Bronson et al., "Metastable Failures in Distributed Systems", HotOS 2021).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from underload import metrics
from underload.planning.loads import Burst, check_burst, source_of, window_starts
from underload.planning.probe import check_slo
from underload.planning.system import System, check_system
from underload.queueing import arguments
from underload.request import UnderloadError
from underload.scheduling import Scheduler, Shedding
from underload.simulation import ClusterRun, EngineReplica, Front
from underload.workload import Load, Planned, Trace

Row = dict[str, Any]
#: Rows of `through_time` at most.
MOST_WINDOWS = 100_000


@dataclass(frozen=True)
class RejectAbove:
    """Nobody comes in while `inside` copies per replica are inside.

    Raises:
        UnderloadError: below 1.
    """

    inside: int

    def __post_init__(self) -> None:
        arguments.whole("inside", self.inside, least=1)

    def admit(self, request: Planned, front: Front) -> Planned | None:
        """The request, or None."""
        return None if _inside(front) >= self.inside else request


@dataclass(frozen=True)
class DegradeAbove:
    """Answers have `output_tokens` at most while `inside` copies per replica are inside.

    Raises:
        UnderloadError: either below 1.
    """

    inside: int
    output_tokens: int

    def __post_init__(self) -> None:
        arguments.whole("inside", self.inside, least=1)
        arguments.whole("output_tokens", self.output_tokens, least=1)

    def admit(self, request: Planned, front: Front) -> Planned | None:
        """The request, perhaps with a shorter answer."""
        if request.output_tokens <= self.output_tokens or _inside(front) < self.inside:
            return request
        return replace(request, output_tokens=self.output_tokens)


def _inside(front: Front) -> float:
    up = [view.inside for view in front.views if view.up]
    return sum(up) / len(up) if up else 0.0


@dataclass(frozen=True)
class _Dropping:
    """A scheduler that drops who has waited too long."""

    make: EngineReplica
    max_wait: float

    def __call__(self) -> Scheduler:
        scheduler = System(self.make).scheduler()
        assert scheduler is not None
        scheduler.shedding = Shedding(
            max_queue=scheduler.shedding.max_queue, max_wait=self.max_wait, deadlines=scheduler.shedding.deadlines
        )
        return scheduler


def shedding_policies(
    system: System, *, inside: int, max_wait: float, output_tokens: int | None = None
) -> dict[str, System]:
    """The system as it is, and under each policy: "none", "reject", "deadline" and, with `output_tokens`, "degrade".

    Args:
        inside: copies per replica from which on the door rejects or degrades.
        max_wait: s after which who has not begun is dropped, such as the SLO's limit on TTFT.
        output_tokens: of a degraded answer.

    Raises:
        UnderloadError: replicas that are no engines, or an argument outside its range.
    """
    if not isinstance(system.replica, EngineReplica):
        raise UnderloadError("who has waited too long is dropped by an engine's scheduler; give engines as replicas")
    max_wait = arguments.above_zero("max_wait", max_wait, "s")
    dropping = replace(system.replica, scheduler=_Dropping(system.replica, max_wait))
    made = {
        "none": system,
        "reject": replace(system, door=RejectAbove(inside)),
        "deadline": replace(system, replica=dropping),
    }
    if output_tokens is not None:
        made["degrade"] = replace(system, door=DegradeAbove(inside, output_tokens))
    return made


# ---- through time --------------------------------------------------------------------------------------------------


def through_time(run: ClusterRun, slo: metrics.Slo, window: float) -> list[Row]:
    """What happened window by window: of those who arrived in each, from `start` s to `end`: calls, offered (1/s),
    goodput (1/s, counted where they arrived), attainment, attempts (copies sent in the window, 1/s) and refused (a
    share).

    The last window ends with the last arrival, and what is too short to tell a rate goes into the one before it.

    Raises:
        UnderloadError: a window not above 0 s.
    """
    window = arguments.above_zero("window", window, "s")
    arrivals = sorted(call.arrival for call in run.calls) or [0.0]
    end = arrivals[-1]
    if end / window > MOST_WINDOWS:
        raise UnderloadError(
            f"a window of {window:g} s makes {end / window:.3g} rows of {end:.4g} s, and {MOST_WINDOWS:,} are the "
            "most; take a longer one"
        )
    starts = window_starts(arrivals, window)
    rows: list[Row] = [{"start": start, "calls": 0, "met": 0, "attempts": 0, "refused": 0} for start in starts]
    # All at one instant: as many in a window as was asked for.
    ends = [*starts[1:], end if end - starts[-1] >= window / 100 else starts[-1] + window]

    def row_at(instant: float) -> Row:
        return rows[min(int(instant / window), len(rows) - 1)]

    for call, timeline in zip(run.calls, run.timelines):
        row = row_at(call.arrival)
        row["calls"] += 1
        row["met"] += slo.met(timeline)
        row["refused"] += call.outcome == "refused"
    for attempt in run.attempts:
        if attempt.sent <= ends[-1]:
            row_at(attempt.sent)["attempts"] += 1
    return [
        {
            "start": row["start"],
            "end": last,
            "calls": row["calls"],
            "offered": row["calls"] / (last - row["start"]),
            "goodput": row["met"] / (last - row["start"]),
            "attainment": row["met"] / row["calls"] if row["calls"] else None,
            "attempts": row["attempts"] / (last - row["start"]),
            "refused": row["refused"] / row["calls"] if row["calls"] else None,
        }
        for row, last in zip(rows, ends)
    ]


@dataclass(frozen=True)
class Storm:
    """A burst and what came after it.

    rows: of `through_time`.
    burst: (begin, end), s.
    before, after: attainment of those who arrived before the burst (the first tenth of the run left out), and in the
        last quarter of what comes after it.
    """

    rows: list[Row]
    burst: tuple[float, float]
    before: float
    after: float

    @property
    def recovers(self) -> bool:
        """Whether it is as good again as before, to a tenth: if not, it stays down although the burst is over."""
        return self.after >= 0.9 * self.before


def storm(
    workload: Load | Trace | Sequence[Planned],
    slo: metrics.Slo,
    system: System,
    *,
    rate: float,
    burst: Burst,
    window: float | None = None,
    requests: int | None = None,
    seed: int = 0,
) -> Storm:
    """Serve a load at a steady rate with one burst in it, by a system whose clients try again (`System.sending`, such
    as `simulation.Retry` with `cancels=False`).

    Args:
        rate: 1/s, before and after the burst.
        window: s of a row; a fortieth of the run if None.

    Raises:
        UnderloadError: a burst that leaves nothing behind it, or an argument outside its range.
    """
    check_slo(slo)
    check_system(system)
    if burst is None:
        raise UnderloadError("a storm begins with a burst, such as burst=Burst(4, 20, begin=0.3); give one")
    check_burst(burst)
    source = replace(source_of(workload, requests=requests, seed=seed), burst=burst)
    base = source.base(0)
    plain = replace(source, burst=None).at(base, arguments.above_zero("rate", rate, "1/s"), 0)
    begin = burst.start(plain)
    planned = burst.on(plain)
    run = system.run(planned, seed=seed)
    end = planned[-1].arrival
    finish = begin + burst.seconds
    last = end - (end - finish) / 4
    judged = [(line.arrival, slo.met(line)) for line in run.timelines]
    before = [met for at, met in judged if 0.1 * begin <= at < begin]
    after = [met for at, met in judged if at >= last]
    if not before or len(after) < 10:
        raise UnderloadError(
            f"{len(before)} requests come before the burst and {len(after)} in the last quarter behind it, too few to "
            "tell; take more requests, or a burst that begins later or ends sooner"
        )
    return Storm(
        through_time(run, slo, end / 40 if window is None else window),
        (begin, finish),
        sum(before) / len(before),
        sum(after) / len(after),
    )


@dataclass(frozen=True)
class Backoff:
    """s to wait before trying again: `first` x 2 each time, at most `most`, times a random share above 1 - `jitter`, so
    that those who failed together do not come back together (for `simulation.Retry`).

    Raises:
        UnderloadError: first not above 0, most below it, or jitter outside 0 to 1.
    """

    first: float
    most: float = 60.0
    jitter: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        arguments.above_zero("first", self.first, "s")
        if not self.first <= arguments.number("most", self.most):
            raise UnderloadError(f"most must be at least first = {self.first} s, got {self.most}")
        if not 0 <= arguments.number("jitter", self.jitter) <= 1:
            raise UnderloadError(f"jitter is a share from 0 to 1, got {self.jitter}")
        object.__setattr__(self, "_rng", random.Random(self.seed))

    def __call__(self, made: int) -> float:
        longest = min(self.first * 2.0 ** min(made - 1, 60), self.most)
        share: float = self._rng.random()  # type: ignore[attr-defined]
        return longest * (1 - self.jitter * share)
