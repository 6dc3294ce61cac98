"""Who is next: the lines in which visits wait, one for each discipline."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

from underload.request.errors import UnderloadError
from underload.simulation.visit import Visit, VisitState

#: The disciplines, in words.
DISCIPLINES = {
    "fcfs": "first come, first served",
    "lifo": "last come, first served; a service that has begun is not interrupted",
    "sjf": "shortest service first; a service that has begun is not interrupted",
    "priority": "smallest priority number first, equal ones as they came; a service that has begun is not interrupted",
    "ps": "processor sharing: all inside are served at once, at equal speed",
}

WAITING = VisitState.WAITING
# So many cancelled visits may stand in a line whatever its length, before it is swept.
_FEW = 64


class Line(ABC):
    """Visits that wait. Cancelled ones stay where they are and are passed over, until they are more than half."""

    def __init__(self) -> None:
        self.length = 0  # those that still wait
        self._cancelled = 0

    @abstractmethod
    def push(self, visit: Visit) -> None:
        """Add one that has begun to wait."""

    @abstractmethod
    def pop(self) -> Visit:
        """Take out the next one that still waits; there must be one."""

    @abstractmethod
    def _sweep(self) -> None:
        """Drop those that no longer wait."""

    @abstractmethod
    def __iter__(self) -> Iterator[Visit]:
        """Those that still wait, in no promised order."""

    def drop(self) -> None:
        """One of those in line has just been cancelled."""
        self.length -= 1
        self._cancelled += 1
        if self._cancelled > _FEW and self._cancelled > self.length:
            self._sweep()
            self._cancelled = 0


class Fcfs(Line):
    def __init__(self) -> None:
        super().__init__()
        self._visits: deque[Visit] = deque()
        self._take: Callable[[], Visit] = self._visits.popleft

    def push(self, visit: Visit) -> None:
        self._visits.append(visit)
        self.length += 1

    def pop(self) -> Visit:
        visit = self._take()
        while visit.state is not WAITING:
            self._cancelled -= 1
            visit = self._take()
        self.length -= 1
        return visit

    def _sweep(self) -> None:
        kept = [visit for visit in self._visits if visit.state is WAITING]
        self._visits.clear()
        self._visits.extend(kept)

    def __iter__(self) -> Iterator[Visit]:
        return (visit for visit in self._visits if visit.state is WAITING)


class Lifo(Fcfs):
    def __init__(self) -> None:
        super().__init__()
        self._take = self._visits.pop


class Ordered(Line):
    """By a key, equal ones as they came."""

    def __init__(self, key: Callable[[Visit], float]) -> None:
        super().__init__()
        self._key = key
        self._heap: list[tuple[float, int, Visit]] = []
        self._serial = 0

    def push(self, visit: Visit) -> None:
        self._serial += 1
        heappush(self._heap, (self._key(visit), self._serial, visit))
        self.length += 1

    def pop(self) -> Visit:
        visit = heappop(self._heap)[2]
        while visit.state is not WAITING:
            self._cancelled -= 1
            visit = heappop(self._heap)[2]
        self.length -= 1
        return visit

    def _sweep(self) -> None:
        self._heap = [entry for entry in self._heap if entry[2].state is WAITING]
        heapify(self._heap)

    def __iter__(self) -> Iterator[Visit]:
        return (visit for _, _, visit in self._heap if visit.state is WAITING)


def line_of(discipline: str) -> Line:
    """An empty line of that discipline.

    Raises:
        UnderloadError: an unknown discipline, or "ps", in which nobody waits.
    """
    if discipline == "fcfs":
        return Fcfs()
    if discipline == "lifo":
        return Lifo()
    if discipline == "sjf":
        return Ordered(lambda visit: visit.service)
    if discipline == "priority":
        return Ordered(lambda visit: visit.priority)
    raise UnderloadError(f"discipline must be one of {', '.join(DISCIPLINES)}, got {discipline!r}")
