"""How many replicas a load needs: on the whole, and window by window through its day."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from underload import metrics
from underload.planning.capacity import check_share
from underload.planning.loads import mean_rate, source_of, window_starts
from underload.planning.probe import check_slo, needed, saturated_rate
from underload.planning.sweep import check_sendable, workers
from underload.planning.system import System, check_system
from underload.queueing import arguments
from underload.request import UnderloadError
from underload.workload import Load, Planned, Trace

#: Of what a replica does at most, the share that the first guess gives it to do.
_GUESS = 0.7
MOST_WINDOWS = 10_000


@dataclass(frozen=True)
class Fleet:
    """The answer.

    replicas: the fewest with which the SLO holds over the whole load.
    attainment_with: the share that met it with as many.
    rows: one a window: start (s), end (s), requests, rate (1/s), replicas (the fewest with which the SLO holds for
        those who arrive in it; 0 for a window without arrivals) and attainment with as many. The whole load is one row
        where no window was asked for.
    saturated: requests/s of one replica whose queue never empties.
    """

    replicas: int
    attainment_with: float
    rows: list[dict[str, Any]]
    saturated: float
    slo: metrics.Slo
    attainment: float

    @property
    def mean(self) -> float:
        """Replicas on average over the windows, if each had just what it needs: what scaling could save at best."""
        spans = [(row["end"] - row["start"], row["replicas"]) for row in self.rows]
        whole = math.fsum(seconds for seconds, _ in spans)
        return math.fsum(seconds * count for seconds, count in spans) / whole if whole else float(self.replicas)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "replicas": self.replicas,
            "attainment_with": self.attainment_with,
            "mean_replicas": self.mean,
            "saturated_per_s": self.saturated,
            "slo_s": self.slo.terms,
            "attainment": self.attainment,
            "windows": self.rows,
        }

    def __str__(self) -> str:
        lines = [
            f"replicas    {self.replicas} for the whole; {self.mean:.3g} on average if each window had just its own",
            f"{'from':>10}{'requests':>10}{'rate':>10}{'replicas':>10}",
        ]
        for row in self.rows:
            lines.append(f"{row['start']:>8.6g} s{row['requests']:>10,}{row['rate']:>8.3g}/s{row['replicas']:>10}")
        return "\n".join(lines)

    __repr__ = __str__


def replicas_needed(
    workload: Load | Trace | Sequence[Planned],
    slo: metrics.Slo,
    system: System,
    *,
    attainment: float = 0.99,
    window: float | None = None,
    speed: float = 1.0,
    requests: int | None = None,
    most: int = 64,
    seed: int = 0,
    processes: int = 1,
    scheduler: str | None = None,
) -> Fleet:
    """The fewest replicas with which the SLO holds for a load as it comes; `system.replicas` is what is looked for.

    The whole load is served by one number of replicas. Each window is served by itself, from an empty system, as if
    whatever ran before it had kept up: what scaling could save at best, not what a rule for scaling does.

    Args:
        attainment: the share of the requests that must meet the SLO, of the whole and of each window.
        window: s; None: the whole is one. The last is as long as there are arrivals, and what is too short to tell a
            rate goes into the one before it.
        speed: 2 is twice as fast.
        requests: of a drawn load; of a trace at most so many from its beginning.
        most: replicas to try at most.

    Raises:
        UnderloadError: an argument outside its range, or `most` replicas are too few.
    """
    check_share("attainment", attainment)
    check_slo(slo)
    check_system(system)
    source = source_of(workload, requests=requests, seed=seed)
    base = source.base(0)
    planned = source.at(base, mean_rate(base) * arguments.above_zero("speed", speed, ""), 0)
    most = arguments.whole("most", most, least=1, most=10_000)
    system = replace(system, replicas=1)
    end = math.nextafter(planned[-1].arrival, math.inf)
    span = end if window is None else min(arguments.above_zero("window", window, "s"), end)
    if end / span > MOST_WINDOWS:
        raise UnderloadError(
            f"windows of {span:g} s make {end / span:.3g} of {end:.4g} s, and {MOST_WINDOWS:,} are the most; take "
            "longer ones"
        )
    if processes > 1:
        check_sendable(system)
    with workers(processes, scheduler) as executor:
        one = executor.submit(saturated_rate, source, system).result()
        question = _Question(slo, system, attainment, one, most)
        return _answer(question, executor, planned, span, end)


@dataclass(frozen=True)
class _Question:
    slo: metrics.Slo
    system: System
    attainment: float
    saturated: float
    most: int


def _answer(question: _Question, executor: Executor, planned: list[Planned], span: float, end: float) -> Fleet:
    arrivals = [one.arrival for one in planned]
    # Between edges as they are: start + span may be another double than the next one's start.
    edges = window_starts(arrivals, span)
    ends = [*edges[1:], end]
    places = [bisect_left(arrivals, edge) for edge in edges]
    windows = [planned[a:b] for a, b in pairwise([*places, len(planned)])]
    whole = executor.submit(fewest, question, planned, end)
    # The longest task first; with one window the whole is it.
    parts = [whole]
    if len(edges) > 1:
        parts = [
            executor.submit(fewest, question, part, last - start) for start, last, part in zip(edges, ends, windows)
        ]
    count, share = whole.result()
    rows = []
    for start, last, part, future in zip(edges, ends, windows, parts):
        its, met = future.result()
        rows.append(
            {
                "start": start,
                "end": last,
                "requests": len(part),
                "rate": len(part) / (last - start),
                "replicas": its,
                "attainment": met,
            }
        )
    return Fleet(count, share, rows, question.saturated, question.slo, question.attainment)


def fewest(question: _Question, planned: list[Planned], span: float) -> tuple[int, float]:
    """The fewest replicas that keep the SLO for these requests, which come within `span` s, and the share that met it.

    Raises:
        UnderloadError: `most` do not.
    """
    if not planned:
        return 0, 1.0
    rate, one = len(planned) / span, question.saturated
    tried: dict[int, int] = {}

    def met(count: int) -> int:
        if count not in tried:
            run = replace(question.system, replicas=count).run(planned)
            tried[count] = sum(map(question.slo.met, run.timelines))
        return tried[count]

    def holds(count: int) -> bool:
        # Where the queue would never empty, a short window may look fine.
        return count * one > rate and met(count) >= needed(question.attainment, len(planned))

    count = min(max(math.ceil(rate / (_GUESS * one)), 1), question.most)
    if holds(count):
        while count > 1 and holds(count - 1):
            count -= 1
    else:
        while not holds(count):
            if count >= question.most:
                raise UnderloadError(
                    f"{question.most} replicas do not keep the SLO: {met(count) / len(planned):.1%} of "
                    f"{len(planned):,} requests met it; allow more, loosen it, or see what a request takes alone"
                )
            count += 1
    return count, met(count) / len(planned)
