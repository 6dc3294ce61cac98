"""`simulate`: one station, one load, one call."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from underload.queueing import arguments
from underload.queueing.service import law_of
from underload.request.errors import UnderloadError
from underload.simulation.events import EventQueue
from underload.simulation.fast import fcfs
from underload.simulation.line import DISCIPLINES
from underload.simulation.little import Array
from underload.simulation.run import Run
from underload.simulation.station import station
from underload.simulation.visit import Visit
from underload.workload import Streams

PATHS = ("auto", "fast", "events")


def simulate(
    *,
    arrivals: Any,
    service: Any,
    servers: int = 1,
    discipline: str = "fcfs",
    buffer: int | None = None,
    priority: Any = None,
    horizon: float | None = None,
    customers: int | None = None,
    warmup: float = 0.0,
    seed: int | Streams = 0,
    path: str = "auto",
) -> Run:
    """Simulate one station, empty at 0, under one load.

    Arrivals, services and priorities are drawn from streams of their own, a draw a customer in order of arrival, so
    that another discipline, number of servers or buffer meets the same customers with the same work. At one instant a
    finish comes before an arrival. Little's law is checked on every run.

    Args:
        arrivals: a process of `underload.workload`, such as Poisson(0.9), or the instants themselves (ascending, s).
        service: a law, such as Exponential(1.0) of `underload.queueing` or a frozen distribution of scipy.stats, or a
            time for each customer (s).
        servers: at least 1. Under "ps", how many unit speeds are shared.
        discipline: "fcfs", "lifo", "sjf", "priority" or "ps"; see `DISCIPLINES`. None of the first four interrupts.
        buffer: how many may be inside beyond the servers; who comes to a full station is refused. None is no limit.
        priority: for "priority", smaller goes first: a number for each customer, or a function of (generator, n) that
            gives n of them.
        horizon: arrivals in [0, horizon) s count. Those inside then are served to the end, but nobody comes after.
        customers: instead of a horizon, how many arrive. The window then ends when the last one leaves. With instants
            given, neither is needed.
        warmup: figures leave out who arrived before (s), and the time before.
        seed: a whole number, or Streams. The same seed gives the same load.
        path: "fast" (FCFS only), "events" (any), or "auto". Where both can, they agree to the last bit.

    Raises:
        UnderloadError: arguments out of range, a load that is none, lengths that do not match, a discipline that the
            fast path does not know.
    """
    streams = seed if isinstance(seed, Streams) else Streams(seed)
    servers = arguments.whole("servers", servers, least=1)
    if buffer is not None:
        buffer = arguments.whole("buffer", buffer, least=0)
    if not isinstance(discipline, str) or discipline not in DISCIPLINES:
        raise UnderloadError(f"discipline must be one of {', '.join(DISCIPLINES)}, got {discipline!r}")
    if not isinstance(path, str) or path not in PATHS:
        raise UnderloadError(f"path must be one of {', '.join(PATHS)}, got {path!r}")
    if path == "fast" and discipline != "fcfs":
        raise UnderloadError(
            f"the fast path serves first come, first served only, not {discipline}; take path='events'"
        )
    if (priority is not None) != (discipline == "priority"):
        raise UnderloadError("discipline 'priority' and the argument priority go together; give both or neither")
    end = _end(arrivals, horizon, customers)
    warmup = arguments.at_least_zero("warmup", warmup, "s")
    if warmup >= end:
        raise UnderloadError(
            f"warmup must end before the horizon of {end:g} s, got {warmup:g} s; give a longer horizon"
        )

    instants = _instants(arrivals, end, customers, streams)
    kept = int(np.searchsorted(instants, end, side="left"))
    times = _times(service, instants.size, streams)[:kept]
    urgent = None if priority is None else _priorities(priority, instants.size, streams)[:kept]
    instants = instants[:kept]
    if discipline == "fcfs" and path != "events":
        start = fcfs(instants, times, servers, buffer)
        finish, path = start + times, "fast"
    else:
        start, finish = _by_events(instants, times, urgent, servers, discipline, buffer)
        path = "events"
    run = Run(
        arrival=instants,
        service=times,
        start=start,
        finish=finish,
        servers=servers,
        discipline=discipline,
        buffer=buffer,
        horizon=end,
        warmup=warmup,
        path=path,
        priority=urgent,
    )
    if warmup >= run.end > 0:
        raise UnderloadError(
            f"warmup must end before the last customer leaves at {run.end:g} s, got {warmup:g} s; take more customers"
        )
    run.little.check()
    return run


def _by_events(
    arrival: Array, service: Array, priority: Array | None, servers: int, discipline: str, buffer: int | None
) -> tuple[Array, Array]:
    """Starts and finishes through the event queue; NaN for those refused."""
    n = arrival.size
    starts: list[float | None] = [math.nan] * n
    finishes: list[float | None] = [math.nan] * n
    works = service.tolist()

    def note(visit: Visit) -> None:
        starts[visit.data], finishes[visit.data] = visit.start, visit.finish

    # Noted here, not kept: a million visits would keep the garbage collector busier than the simulation.
    queue = EventQueue()
    enter = station(queue, servers=servers, discipline=discipline, buffer=buffer, on_finish=note).enter
    if priority is None:
        queue.at_each(arrival, lambda i: enter(works[i], 0.0, i))
    else:
        urgent = priority.tolist()
        queue.at_each(arrival, lambda i: enter(works[i], urgent[i], i))
    queue.run()
    return np.array(starts, dtype=np.float64), np.array(finishes, dtype=np.float64)


def _end(arrivals: Any, horizon: float | None, customers: int | None) -> float:
    if horizon is not None and customers is not None:
        raise UnderloadError("horizon and customers both say when to stop; give one of them")
    if horizon is not None:
        return arguments.above_zero("horizon", horizon, "s")
    if customers is None and hasattr(arrivals, "arrivals"):
        raise UnderloadError("a process of arrivals goes on for ever; say when to stop with horizon (s) or customers")
    return math.inf


def _instants(arrivals: Any, end: float, customers: int | None, streams: Streams) -> Array:
    if hasattr(arrivals, "arrivals"):
        rng = streams.fresh("arrivals")
        made = arrivals.arrivals(rng, end) if customers is None else arrivals.first(rng, customers)
        return np.asarray(made, dtype=np.float64)
    if customers is not None:
        raise UnderloadError("customers goes with a process of arrivals; of given instants all count")
    if _is_one(arrivals):
        raise UnderloadError(
            f"arrivals must be a process such as Poisson(0.9) or a row of instants in s, got {arrivals!r:.60}"
        )
    found = _row("arrivals", arrivals)
    if found.size and (found[0] < 0 or (np.diff(found) < 0).any() or found[-1] > arguments.HUGEST):
        raise UnderloadError(
            "arrivals must be ascending instants from 0 s on, 1e100 s at most; sort them, or count from the first"
        )
    return found


def _times(service: Any, n: int, streams: Streams) -> Array:
    if _is_one(service):
        law = service if hasattr(service, "draw") else law_of(service)
        found = np.asarray(law.draw(streams.fresh("service"), n), dtype=np.float64)
    else:
        found = _row("service", service)
    if found.shape != (n,):
        raise UnderloadError(f"service must have a time for each of {n} arrivals, got {found.size}; match the two")
    right = (found >= 0) & (found <= arguments.HUGEST)
    if not right.all():
        i = int(np.argmin(right))
        raise UnderloadError(
            f"service times must be finite and at least 0 s, 1e100 s at most, got {found[i]:g} for customer {i}"
        )
    return found


def _priorities(priority: Any, n: int, streams: Streams) -> Array:
    found = _row("priority", priority(streams.fresh("priority"), n) if callable(priority) else priority)
    if found.shape != (n,):
        raise UnderloadError(f"priority must have a number for each of {n} arrivals, got {found.size}; match the two")
    return found


def _is_one(value: Any) -> bool:
    """Whether it is one thing, such as a process or a law, and no row of numbers."""
    try:
        return np.ndim(value) == 0
    except ValueError:  # rows of unlike length, which `_row` names
        return False


def _row(name: str, values: ArrayLike) -> Array:
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise UnderloadError(f"{name} must be numbers, got {values!r:.60}") from None
    if found.ndim != 1 or np.isnan(found).any():
        raise UnderloadError(
            f"{name} must be one row of numbers without NaN, got shape {found.shape}; mend what made it"
        )
    return found
