"""How many replicas a load needs: on the whole, and window by window through its day."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

from underload import metrics
from underload.planning.capacity import check_share
from underload.planning.loads import Source, mean_rate, source_of
from underload.planning.probe import Question, needed, saturated_rate
from underload.planning.sweep import check_sendable, workers
from underload.planning.system import System
from underload.queueing import arguments
from underload.request import UnderloadError
from underload.workload import Load, Planned, Trace

#: Of what a replica does at most, the share that the first guess gives it to do.
_GUESS = 0.7


@dataclass(frozen=True)
class Fleet:
    """The answer.

    replicas: the fewest with which the SLO holds over the whole load.
    rows: one a window: start (s), end (s), requests, rate (1/s), replicas (the fewest from which on every number that
        was tried keeps the SLO for those who arrive in it; None for a window without arrivals) and attainment with as
        many. All of the load is one row where no window was asked for.
    attainments: over the whole load, by the number of replicas.
    saturated: requests/s of one replica whose queue never empties.
    """

    replicas: int
    rows: list[dict[str, Any]]
    attainments: dict[int, float]
    saturated: float
    slo: metrics.Slo
    attainment: float

    @property
    def mean(self) -> float:
        """Replicas on average over the windows, if each had just what it needs: what scaling could save at best."""
        spans = [(row["end"] - row["start"], row["replicas"] or 0) for row in self.rows]
        whole = math.fsum(seconds for seconds, _ in spans)
        return math.fsum(seconds * count for seconds, count in spans) / whole if whole else float(self.replicas)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "replicas": self.replicas,
            "mean_replicas": self.mean,
            "saturated_per_s": self.saturated,
            "slo_s": self.slo.terms,
            "attainment": self.attainment,
            "attainments": {str(count): share for count, share in self.attainments.items()},
            "windows": self.rows,
        }

    def __str__(self) -> str:
        lines = [
            f"replicas    {self.replicas} for the whole; {self.mean:.3g} on average if each window had just its own",
            f"{'from':>10}{'requests':>10}{'rate':>10}{'replicas':>10}",
        ]
        for row in self.rows:
            count = "–" if row["replicas"] is None else row["replicas"]
            lines.append(f"{row['start']:>8.6g} s{row['requests']:>10,}{row['rate']:>8.3g}/s{count:>10}")
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
    """The fewest replicas with which the SLO holds for a load as it comes, `system.replicas` being what is looked for.

    With windows, every number of replicas from what the quietest needs to what the whole needs serves the whole load,
    and each window is judged by those who arrive in it. So a window's figure supposes that as many had run before it,
    too: it says what scaling could save, not what a rule for scaling does.

    Args:
        attainment: the share of the requests that must meet the SLO, of the whole and of each window.
        window: s; None: the whole is one.
        speed: 2 is twice as fast.
        requests: of a drawn load; of a trace at most so many from its beginning.
        most: replicas to try at most.

    Raises:
        UnderloadError: an argument outside its range, or `most` replicas are too few.
    """
    check_share("attainment", attainment)
    source = source_of(workload, requests=requests, seed=seed)
    base = source.base(0)
    rate = mean_rate(base) * arguments.above_zero("speed", speed, "")
    most = arguments.whole("most", most, least=1)
    window = None if window is None else arguments.above_zero("window", window, "s")
    question = Question(source, slo, replace(system, replicas=1), attainment, 0.0)
    if processes > 1:
        check_sendable(question)
    with workers(processes, scheduler) as executor:
        return _answer(question, executor, rate, window, most)


def _answer(question: Question, executor: Executor, rate: float, window: float | None, most: int) -> Fleet:
    one = executor.submit(saturated_rate, question.source, question.system).result()
    if not one:
        raise UnderloadError("a replica answers nobody, so that no number of them is enough; look at its limits")
    tried: dict[int, list[tuple[float, bool]]] = {}

    def look(counts: Sequence[int]) -> None:
        fresh = [count for count in counts if count not in tried]
        futures = [executor.submit(judge, question, count, rate) for count in fresh]
        tried.update(zip(fresh, (future.result() for future in futures)))

    def holds(count: int) -> bool:
        if count * one <= rate:
            return False  # its queue would never empty
        look([count])
        return _holds(tried[count], question.attainment)

    least = max(math.ceil(rate / one), 1)
    count = min(max(math.ceil(rate / (_GUESS * one)), 1), most)
    if holds(count):
        while count > 1 and holds(count - 1):
            count -= 1
    else:
        while not holds(count):
            if count >= most:
                raise UnderloadError(
                    f"{most} replicas do not keep the SLO (they keep it for {_share(tried.get(most, [])):.1%} of "
                    "requests); allow more, loosen it, or look at what a request takes by itself"
                )
            count += 1
    arrivals = [at for at, _ in tried[count]]
    end = max(arrivals)
    span = window if window is not None and window < end else math.nextafter(end, math.inf)
    edges = [k * span for k in range(math.ceil(end / span) + (end % span == 0))]
    if len(edges) > 1:
        quiet = min(sum(start <= at < start + span for at in arrivals) / span for start in edges)
        look(range(max(min(math.floor(quiet / one), least), 1), count))
    rows = [_row(tried, start, min(start + span, end), span, question.attainment) for start in edges]
    return Fleet(
        count,
        rows,
        {number: _share(tried[number]) for number in sorted(tried)},
        one,
        question.slo,
        question.attainment,
    )


def judge(question: Question, count: int, rate: float) -> list[tuple[float, bool]]:
    """With so many replicas, for each request: when it arrives (s), and whether it met the SLO."""
    source: Source = question.source
    system = replace(question.system, replicas=count)
    served = system.run(source.at(source.base(0), rate, 0), seed=0)
    return [(timeline.arrival, question.slo.met(timeline)) for timeline in served.timelines]


def _row(
    tried: dict[int, list[tuple[float, bool]]], start: float, end: float, span: float, attainment: float
) -> dict[str, Any]:
    found: int | None = None
    share: float | None = None
    requests = 0
    for count in sorted(tried, reverse=True):
        mine = [(at, met) for at, met in tried[count] if start <= at < start + span]
        requests = len(mine)
        if not mine or not _holds(mine, attainment):
            break
        found, share = count, _share(mine)
    return {
        "start": start,
        "end": end,
        "requests": requests,
        "rate": requests / (end - start) if end > start else 0.0,
        "replicas": found,
        "attainment": share,
    }


def _holds(judged: Sequence[tuple[float, bool]], attainment: float) -> bool:
    return sum(met for _, met in judged) >= needed(attainment, len(judged))


def _share(judged: Sequence[tuple[float, bool]]) -> float:
    return sum(met for _, met in judged) / len(judged) if judged else 0.0
