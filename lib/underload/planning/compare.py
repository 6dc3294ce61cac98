"""Systems side by side under the same loads, and goodput against load: rows of plain numbers.

Run i of every system meets the same requests at the same instants, so that a difference is one of policy; its interval
is that of the paired differences. Unlike a search for a capacity, nothing is left out here that is hopeless: the far
side of the cliff is what these pictures are about.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from underload import metrics
from underload.metrics import mean_interval, paired_difference
from underload.planning.capacity import check_share, runs_of, warmup_of
from underload.planning.loads import source_of
from underload.planning.probe import Question, check_slo, saturated_rate
from underload.planning.sweep import check_sendable, workers
from underload.planning.system import System
from underload.queueing import arguments
from underload.request import UnderloadError
from underload.workload import Load, Planned, Trace

LOADS = (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5)
#: Latencies of which a row has the percentile that the attainment names.
_LATENCIES = ("ttft", "tpot", "e2e")

Row = dict[str, Any]


def compare_systems(
    workload: Load | Trace | Sequence[Planned],
    slo: metrics.Slo,
    systems: Mapping[str, System],
    *,
    rates: Sequence[float] | None = None,
    loads: Sequence[float] | None = None,
    attainment: float = 0.99,
    requests: int | None = None,
    runs: int = 4,
    scaling: str = "speed",
    warmup: float | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    processes: int = 1,
    scheduler: str | None = None,
) -> list[Row]:
    """A row for each system at each rate, the systems in their order.

    Args:
        systems: by name. The first is what the others are compared with.
        rates: mean rates in 1/s.
        loads: instead, shares of what the first system does while its queue never empties; `LOADS` if neither is given.
        attainment: also says which percentile of the latencies a row has: 0.99 the p99.
        requests, runs, scaling, warmup, processes, scheduler: as for `capacity`.

    Returns:
        Rows of: system, rate (1/s), load, runs; then each of goodput (1/s), attainment, answered, refused, failed
        (shares of the requests), attempts (copies a request), wasted (share of the work that answered nobody), ttft,
        tpot, e2e (s, the percentile), and goodput of each tenant ("goodput:NAME") as a mean over the runs, with
        NAME_low and NAME_high (None for one run, and where a run has no such value), and NAME_change, _change_low,
        _change_high: the paired difference from the first system.

    Raises:
        UnderloadError: as `capacity`; no system, or both rates and loads.
    """
    check_share("attainment", attainment)
    check_slo(slo)
    if (
        not isinstance(systems, Mapping)
        or not systems
        or not all(isinstance(system, System) for system in systems.values())
    ):
        raise UnderloadError(f"give systems by name, each a planning.System, got {systems!r:.60}")
    if rates is not None and loads is not None:
        raise UnderloadError("give rates in 1/s or loads as shares of the saturated rate, not both")
    source = source_of(workload, requests=requests, scaling=scaling, seed=seed)
    runs, _ = runs_of(source, runs)
    share = warmup_of(source, warmup)
    questions = {name: Question(source, slo, system, attainment, share) for name, system in systems.items()}
    if processes > 1:
        check_sendable(questions)
    with workers(processes, scheduler) as executor:
        saturated = executor.submit(saturated_rate, source, next(iter(systems.values()))).result()
        chosen = _rates(rates, loads, saturated)
        futures = {
            (name, rate, run): executor.submit(measure, question, rate, run)
            for rate in chosen
            for name, question in questions.items()
            for run in range(runs)
        }
        found = {key: future.result() for key, future in futures.items()}
    first = next(iter(systems))
    rows = []
    for name in systems:
        for rate in chosen:
            row: Row = {"system": name, "rate": rate, "load": rate / saturated, "runs": runs}
            mine = [found[name, rate, run] for run in range(runs)]
            theirs = [found[first, rate, run] for run in range(runs)]
            for figure in dict.fromkeys(key for one in mine for key in one):
                row |= _figure(figure, mine, None if name == first else theirs, confidence)
            rows.append(row)
    return rows


def goodput_curve(
    workload: Load | Trace | Sequence[Planned], slo: metrics.Slo, system: System, **how: Any
) -> list[Row]:
    """Goodput against load: the rows of `compare_systems` for one system. It rises with the load as long as the SLO
    holds, and falls off a cliff where it does not: the machine works as hard as before, for requests that are late.

    Raises:
        UnderloadError: as `compare_systems`.
    """
    rows = compare_systems(workload, slo, {"": system}, **how)
    return [{name: value for name, value in row.items() if name != "system"} for row in rows]


def measure(question: Question, rate: float, run: int) -> dict[str, float | None]:
    """The figures of one run."""
    source = question.source
    served = question.system.run(source.at(source.base(run), rate, run), seed=run)
    probe = replace(question, saturated=math.inf).judge(served, rate, run)
    everyone = served.timelines
    start, end = question.window(everyone)
    window = (start, math.nextafter(end, math.inf))
    kept = [(call, line) for call, line in zip(served.calls, everyone) if start <= line.arrival <= end]
    outcomes = Counter(call.outcome for call, _ in kept)
    good = [line for _, line in kept if metrics.succeeded(line)]
    made: dict[str, float | None] = {
        "goodput": probe.goodput,
        "attainment": probe.attainment,
        "answered": outcomes["answered"] / len(kept),
        "refused": outcomes["refused"] / len(kept),
        "failed": (outcomes["failed"] + outcomes["abandoned"]) / len(kept),
        "attempts": sum(max(len(call.attempts), 1) for call, _ in kept) / len(kept),
        "wasted": served.extra_work,
    }
    for name in _LATENCIES:
        made[name] = metrics.percentile(map(getattr(metrics, name), good), 100 * question.attainment)
    tenants = sorted({call.request.tenant for call in served.calls})
    if len(tenants) > 1:
        for tenant in tenants:
            its = [line for call, line in zip(served.calls, everyone) if call.request.tenant == tenant]
            made[f"goodput:{tenant}"] = metrics.goodput(its, question.slo, window) or 0.0
    return made


def _rates(rates: Sequence[float] | None, loads: Sequence[float] | None, saturated: float) -> list[float]:
    if rates is not None:
        chosen = [arguments.above_zero("a rate", rate, "1/s") for rate in _several("rates", rates)]
    else:
        given = LOADS if loads is None else _several("loads", loads)
        chosen = [arguments.above_zero("a load", load, "") * saturated for load in given]
    if not chosen:
        raise UnderloadError("there is no rate to run at; give one at least")
    return list(dict.fromkeys(chosen))


def _several(name: str, values: Sequence[float]) -> list[float]:
    try:
        return list(values)
    except TypeError:
        raise UnderloadError(f"{name} are several numbers, as in {name}=[{values!r:.40}], got {values!r:.40}") from None


def _figure(
    name: str, mine: Sequence[dict[str, float | None]], theirs: Sequence[dict[str, float | None]] | None, share: float
) -> Row:
    values = [one.get(name) for one in mine]
    known = [value for value in values if value is not None]
    whole = len(known) == len(values) > 1
    around = mean_interval(known, share) if whole else None
    row: Row = {
        name: math.fsum(known) / len(known) if known else None,
        f"{name}_low": around.low if around is not None else None,
        f"{name}_high": around.high if around is not None else None,
    }
    if theirs is not None:
        others = [one.get(name) for one in theirs]
        both = whole and None not in others
        change = paired_difference(values, others, share) if both else None
        row |= {
            f"{name}_change": change.mean if change is not None else None,
            f"{name}_change_low": change.low if change is not None else None,
            f"{name}_change_high": change.high if change is not None else None,
        }
    return row
