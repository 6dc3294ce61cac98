"""Stations: a line and the servers behind it, or one server that all inside share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

from underload.queueing import arguments
from underload.request.errors import UnderloadError
from underload.simulation.events import Event, EventQueue
from underload.simulation.line import line_of
from underload.simulation.slowness import Slowness
from underload.simulation.visit import Visit, VisitState

Callback = Callable[[Visit], object]

WAITING, SERVING, FINISHED = VisitState.WAITING, VisitState.SERVING, VisitState.FINISHED
REFUSED, CANCELLED = VisitState.REFUSED, VisitState.CANCELLED


class Station(ABC):
    """What all stations have in common: who may enter, who is told, what is counted. `station` makes one.

    At every instant arrived = waiting + serving + finished + refused + cancelled.

    `on_start`, `on_finish` and `on_refused` are called with the visit, at the instant and once the station's own books
    are right; they may enter, cancel and schedule as they like. `on_finish` runs before the freed server takes the
    next visit, so a copy that it cancels does not start. A visit cancelled calls nobody.
    """

    def __init__(
        self,
        queue: EventQueue,
        *,
        servers: int = 1,
        buffer: int | None = None,
        on_start: Callback | None = None,
        on_finish: Callback | None = None,
        on_refused: Callback | None = None,
    ) -> None:
        self.queue = queue
        self.servers = arguments.whole("servers", servers, least=1)
        self.buffer = None if buffer is None else arguments.whole("buffer", buffer, least=0)
        self.on_start = on_start
        self.on_finish = on_finish
        self.on_refused = on_refused
        self.arrived = self.finished = self.refused = self.cancelled = 0
        self._most = math.inf if self.buffer is None else self.servers + self.buffer

    @property
    @abstractmethod
    def waiting(self) -> int:
        """Visits whose service has not begun."""

    @property
    @abstractmethod
    def serving(self) -> int:
        """Visits in service."""

    @property
    def inside(self) -> int:
        """Visits waiting or in service: what a router looks at."""
        return self.waiting + self.serving

    @abstractmethod
    def enter(self, service: float, priority: float = 0.0, data: Any = None) -> Visit:
        """A customer comes now, with `service` seconds of work; the visit may be over already if it is refused.

        It is refused when servers + buffer are inside. Who comes at the same instant as a finish should come by an
        event (`queue.at`, or `then`), which runs after all endings of the instant.

        Raises:
            UnderloadError: a service that is negative, above 1e100 s or no number; a priority that is none.
        """

    @abstractmethod
    def cancel(self, visit: Visit) -> bool:
        """Take a visit out: of the line, or of service, whose server is free at once. False if it is over already.

        Raises:
            UnderloadError: a visit of another station.
        """

    def then(self, following: Station, service: Callable[[Visit], float]) -> None:
        """Send each visit on when it finishes: it enters `following` with `service(visit)` seconds of work.

        It arrives there at the same instant, after all endings. The new visit has the priority and data of the old.
        Takes the place of `on_finish`.
        """

        def go(visit: Visit) -> None:
            self.queue.at(self.queue.now(), following.enter, service(visit), visit.priority, visit.data)

        self.on_finish = go

    def _refuse(self, visit: Visit) -> Visit:
        visit.state, visit.finish = REFUSED, visit.arrival
        self.refused += 1
        if self.on_refused is not None:
            self.on_refused(visit)
        return visit

    def _check(self, visit: Visit) -> None:
        if visit.station is not self:
            raise UnderloadError(f"{visit!r} is at another station; call visit.cancel()")


class ServerStation(Station):
    """Servers behind one line. Who has begun is served to the end; the discipline says who begins next.

    Raises:
        UnderloadError: servers that are no whole number from 1, a buffer that is none from 0, an unknown discipline.
    """

    def __init__(
        self, queue: EventQueue, *, discipline: str = "fcfs", slowness: Slowness | None = None, **rest: Any
    ) -> None:
        super().__init__(queue, **rest)
        self.discipline = discipline
        self.slowness = slowness
        self._line = line_of(discipline)
        self._busy = 0

    @property
    def waiting(self) -> int:
        return self._line.length

    @property
    def serving(self) -> int:
        return self._busy

    def enter(self, service: float, priority: float = 0.0, data: Any = None) -> Visit:
        if service.__class__ is not float or priority.__class__ is not float:
            service, priority = _numbers(service, priority)
        if not 0 <= service <= arguments.HUGEST or priority != priority:
            raise _bad(service, priority)
        queue = self.queue
        now = queue.now()
        visit = Visit(self, now, service, priority, data)
        self.arrived += 1
        line, busy = self._line, self._busy
        if busy < self.servers and not line.length:
            # The common case of `_start`, without a detour through the line.
            self._busy = busy + 1
            visit.state, visit.start = SERVING, now
            end = now + service if self.slowness is None else self.slowness.end(now, service)
            visit.event = queue.end_at(end, self._end, visit)
            if self.on_start is not None:
                self.on_start(visit)
        elif busy + line.length >= self._most:
            self._refuse(visit)
        else:
            line.push(visit)
            if busy < self.servers:
                self._start()
        return visit

    def cancel(self, visit: Visit) -> bool:
        self._check(visit)
        if visit.state is WAITING:
            visit.state, visit.finish = CANCELLED, self.queue.now()
            self.cancelled += 1
            self._line.drop()
            return True
        if visit.state is SERVING and visit.event is not None:
            self.queue.cancel(visit.event)
            visit.event = None
            visit.state, visit.finish = CANCELLED, self.queue.now()
            self.cancelled += 1
            self._busy -= 1
            self._start()
            return True
        return False

    def _start(self) -> None:
        """Free servers take from the line, until there is none of either."""
        queue, line = self.queue, self._line
        while line.length and self._busy < self.servers:
            visit = line.pop()
            self._busy += 1
            now = queue.now()
            visit.state, visit.start = SERVING, now
            end = now + visit.service if self.slowness is None else self.slowness.end(now, visit.service)
            visit.event = queue.end_at(end, self._end, visit)
            if self.on_start is not None:
                self.on_start(visit)

    def _end(self, visit: Visit) -> None:
        visit.state, visit.finish = FINISHED, self.queue.now()
        visit.event = None  # the two name each other; apart, they need no garbage collector
        self.finished += 1
        self._busy -= 1
        if self.on_finish is not None:
            self.on_finish(visit)
        if self._line.length:
            self._start()


class SharedStation(Station):
    """Processor sharing: nobody waits, n inside are served at once, each at speed min(1, servers / n).

    Exact, at log n an event: with `attained`, the service that one inside since the station was last empty would have
    had by now, everybody leaves at the attained service of their arrival plus their own. It grows at the common speed,
    so the next to leave is the least of these sums, and an arrival changes when, but not who. Instants are rounded, as
    shares divide: a finish and an arrival that would coincide may come in either order, a rounding apart.

    Raises:
        UnderloadError: servers that are no whole number from 1, or a buffer that is none from 0.
    """

    discipline = "ps"

    def __init__(self, queue: EventQueue, **rest: Any) -> None:
        super().__init__(queue, **rest)
        self._attained = 0.0
        self._since = 0.0  # when `_attained` was brought up to date
        self._heap: list[tuple[float, int, Visit]] = []
        self._serial = 0
        self._inside = 0
        self._next: Event | None = None  # the next to leave, and when

    @property
    def waiting(self) -> int:
        return 0

    @property
    def serving(self) -> int:
        return self._inside

    def enter(self, service: float, priority: float = 0.0, data: Any = None) -> Visit:
        if service.__class__ is not float or priority.__class__ is not float:
            service, priority = _numbers(service, priority)
        if not 0 <= service <= arguments.HUGEST or priority != priority:
            raise _bad(service, priority)
        now = self.queue.now()
        visit = Visit(self, now, service, priority, data)
        self.arrived += 1
        if self._inside >= self._most:
            return self._refuse(visit)
        self._advance(now)
        self._inside += 1
        visit.state, visit.start, visit.target = SERVING, now, self._attained + service
        self._serial += 1
        heappush(self._heap, (visit.target, self._serial, visit))
        # As long as there is a server for each, an arrival delays nobody.
        if self._inside > self.servers or self._heap[0][2] is visit:
            self._plan(now)
        if self.on_start is not None:
            self.on_start(visit)
        return visit

    def cancel(self, visit: Visit) -> bool:
        self._check(visit)
        if visit.state is not SERVING:
            return False
        now = self.queue.now()
        self._advance(now)
        visit.state, visit.finish = CANCELLED, now
        self.cancelled += 1
        self._inside -= 1
        if len(self._heap) > 2 * self._inside + 64:
            self._heap = [entry for entry in self._heap if entry[2].state is SERVING]
            heapify(self._heap)
        self._plan(now)
        return True

    def _advance(self, now: float) -> None:
        if self._inside > self.servers:
            self._attained += (now - self._since) * (self.servers / self._inside)
        elif self._inside:
            self._attained += now - self._since
        self._since = now

    def _plan(self, now: float) -> None:
        """Schedule the next to leave."""
        if self._next is not None:
            self.queue.cancel(self._next)
            self._next = None
        heap = self._heap
        while heap and heap[0][2].state is not SERVING:
            heappop(heap)
        if not heap:
            self._attained = 0.0  # counted anew in each busy period, so that rounding does not add up
            return
        left = max(heap[0][0] - self._attained, 0.0)
        if self._inside > self.servers:
            left *= self._inside / self.servers
        self._next = self.queue.end_at(now + left, self._end)

    def _end(self) -> None:
        self._next = None
        now = self.queue.now()
        target, _, visit = heappop(self._heap)
        self._attained, self._since = target, now  # what `_advance` would give, but for rounding
        visit.state, visit.finish = FINISHED, now
        self.finished += 1
        self._inside -= 1
        if self.on_finish is not None:
            self.on_finish(visit)
        self._plan(now)


def station(
    queue: EventQueue,
    *,
    servers: int = 1,
    discipline: str = "fcfs",
    buffer: int | None = None,
    slowness: Slowness | None = None,
    on_start: Callback | None = None,
    on_finish: Callback | None = None,
    on_refused: Callback | None = None,
) -> Station:
    """A station on `queue`; `DISCIPLINES` says in words what its discipline may be.

    Args:
        queue: the clock and its events.
        servers: how many serve at once; under "ps" how many unit speeds all inside share.
        discipline: "fcfs", "lifo", "sjf", "priority" or "ps".
        buffer: how many may be inside beyond the servers; None is no limit. Who comes to a full station is refused.
        slowness: when the servers take longer than the work says; not under "ps".
        on_start, on_finish, on_refused: called with the visit.

    Raises:
        UnderloadError: servers that are no whole number from 1, a buffer that is none from 0, an unknown discipline,
            slowness where servers are shared.
    """
    rest: dict[str, Any] = {"servers": servers, "buffer": buffer}
    rest |= {"on_start": on_start, "on_finish": on_finish, "on_refused": on_refused}
    if discipline == "ps":
        if slowness is not None:
            raise UnderloadError('slowness goes with servers that serve one at a time, not with "ps"; leave one out')
        return SharedStation(queue, **rest)
    return ServerStation(queue, discipline=discipline, slowness=slowness, **rest)


def _numbers(service: object, priority: object) -> tuple[float, float]:
    """Both as floats; what is none is named here, as it stands."""
    found = arguments.as_float(service), arguments.as_float(priority)
    if math.isnan(found[0]) or math.isnan(found[1]):
        raise _bad(service, priority)
    return found


def _bad(service: object, priority: object) -> UnderloadError:
    if math.isnan(arguments.as_float(priority)):
        return UnderloadError(f"a priority must be a number, got {priority!r:.60}; smaller goes first")
    return UnderloadError(
        f"a service lasts a finite time of at least 0 s, 1e100 s at most, got {service!r:.60}; mend what drew it"
    )
