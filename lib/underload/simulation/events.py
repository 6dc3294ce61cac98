"""The event queue: what is to happen when, on a virtual clock that jumps from one event to the next."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from underload.queueing import arguments
from underload.request.clock import VirtualClock
from underload.request.errors import UnderloadError

#: What `at` gives back, to be handed to `cancel` and otherwise left alone: [time, serial, action, arguments]. A plain
#: list, since it is made and compared a million times a second. Serials differ, so actions are never compared.
Event = list[Any]

# Endings have serials below all others, which puts them first at their instant.
_FIRST_ENDING = -(1 << 62)
# So many cancelled events may lie in the heap whatever its size, before it is swept.
_FEW = 64


class EventQueue(VirtualClock):
    """Actions to come, in order of time; running them moves the clock.

    Events of one instant run in this order, whatever else is scheduled or cancelled meanwhile: first endings
    (`end_at`), then the others (`at`, `after`), each in the order in which they were scheduled. An action may schedule
    at the present instant; it then runs before the clock moves on. Time never goes back.

    It is a clock itself: `now()` tells the time, and `wait(until)` runs all that is due until then.
    """

    def __init__(self, start: float = 0.0) -> None:
        super().__init__(arguments.number("start", start))
        self._heap: list[Event] = []
        self._serial = 0
        self._ending = _FIRST_ENDING
        self._cancelled = 0  # of those in the heap
        self._running = False

    def __len__(self) -> int:
        """Events to come; cancelled ones do not count."""
        return len(self._heap) - self._cancelled

    @property
    def next_time(self) -> float:
        """When the next event is due in s; infinite when there is none."""
        heap = self._heap
        while heap and heap[0][2] is None:
            heappop(heap)
            self._cancelled -= 1
        return float(heap[0][0]) if heap else math.inf

    def at(self, time: float, action: Callable[..., object], *args: object) -> Event:
        """Call `action(*args)` at `time` (s), after the endings of that instant. Infinity means never.

        Raises:
            UnderloadError: a time that has passed, or is no number; an action that cannot be called.
        """
        instant = time if time.__class__ is float else arguments.as_float(time)
        if not instant >= self._now or not callable(action):
            raise self._refusal(time, action)
        self._serial = serial = self._serial + 1
        event = [instant, serial, action, args]
        heappush(self._heap, event)
        return event

    def after(self, delay: float, action: Callable[..., object], *args: object) -> Event:
        """Call `action(*args)` in `delay` seconds.

        Raises:
            UnderloadError: a delay that is negative or no number; an action that cannot be called.
        """
        seconds = arguments.as_float(delay)
        if not seconds >= 0:
            raise UnderloadError(f"a delay is a number of at least 0 s, got {delay!r:.60}; time never goes back")
        return self.at(self._now + seconds, action, *args)

    def end_at(self, time: float, action: Callable[..., object], *args: object) -> Event:
        """As `at`, for what ends then, such as a service: it runs before all that is not an ending at that instant.

        Raises:
            UnderloadError: as `at`.
        """
        instant = time if time.__class__ is float else arguments.as_float(time)
        if not instant >= self._now or not callable(action):
            raise self._refusal(time, action)
        self._ending = serial = self._ending + 1
        event = [instant, serial, action, args]
        heappush(self._heap, event)
        return event

    def at_each(self, times: ArrayLike, action: Callable[[int], object]) -> None:
        """Call `action(i)` at `times[i]` for every i; ascending, in s. As so many calls of `at` now, but only the next
        one of them is held.

        Raises:
            UnderloadError: times that are not one row of ascending numbers, or begin in the past; an action that cannot
                be called.
        """
        if not callable(action):
            raise self._refusal(self._now, action)
        try:
            instants = np.asarray(times, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            raise UnderloadError(f"times must be numbers in s, got {times!r:.60}; mend what made them") from None
        if instants.ndim != 1 or np.isnan(instants).any() or (np.diff(instants) < 0).any():
            raise UnderloadError("times must be one row of ascending numbers in s; sort them first")
        ordered = instants.tolist()
        if not ordered:
            return
        last = len(ordered) - 1
        if ordered[0] < self._now:
            raise self._refusal(ordered[0], action)
        # Their places among the events of an instant are taken now: of two that come at once, the second would else
        # come behind what the first has led to.
        first = self._serial + 1
        self._serial += len(ordered)

        def step(i: int) -> None:
            if i < last:
                heappush(self._heap, [ordered[i + 1], first + i + 1, step, (i + 1,)])
            action(i)

        heappush(self._heap, [ordered[0], first, step, (0,)])

    def cancel(self, event: Event) -> bool:
        """Take an event back. False, and no effect, when it has run or was cancelled before.

        The rest keep their order, and the memory of many cancelled ones is freed.

        Raises:
            UnderloadError: what is no event.
        """
        if event.__class__ is not list or len(event) != 4:
            raise UnderloadError(f"to cancel takes what at, after or end_at gave back, got {event!r:.60}")
        if event[2] is None:
            return False
        event[2], event[3] = None, ()
        self._cancelled += 1
        if self._cancelled > _FEW and 2 * self._cancelled > len(self._heap):
            self._heap[:] = [kept for kept in self._heap if kept[2] is not None]  # in place: `run` holds the list
            heapify(self._heap)
            self._cancelled = 0
        return True

    def run(self, until: float = math.inf) -> int:
        """Run every event before `until`, not those at it, then stand at `until`; how many ran.

        Half-open, as the horizon of a simulation: an arrival at `until` belongs to what comes next. Without `until`
        the clock stays at the last event.

        Raises:
            UnderloadError: until lies in the past or is no number; called from an action of this very queue.
        """
        return self._run(until, False)

    def wait(self, until: float) -> None:
        """Run every event up to and including `until`, then stand there: what a clock owes whoever waits on it.

        Raises:
            UnderloadError: until is no number; called from an action of this very queue.
        """
        if not arguments.as_float(until) < self._now:
            self._run(until, True)

    def _run(self, until: float, through: bool) -> int:
        asked, until = until, arguments.as_float(until)
        if not until >= self._now:
            raise UnderloadError(
                f"the clock stands at {self._now!r} s and cannot run until {asked!r:.60}; give a later time"
            )
        if self._running:
            raise UnderloadError("an action must not run its own queue; schedule what is to happen with at or after")
        heap, count, self._running = self._heap, 0, True
        try:
            while heap:
                event = heap[0]
                time = event[0]
                if time >= until and not (through and time == until < math.inf):
                    break
                heappop(heap)
                action = event[2]
                if action is None:
                    self._cancelled -= 1
                    continue
                event[2] = None  # it has run: cancelling it changes nothing now
                self._now = time
                count += 1
                action(*event[3])
        finally:
            self._running = False
        if until < math.inf:
            self._now = max(self._now, until)
        return count

    def _refusal(self, time: float, action: object) -> UnderloadError:
        if not callable(action):
            return UnderloadError(f"an action must be callable, got {action!r:.60}; pass the function, not its result")
        return UnderloadError(
            f"an event at {time!r:.60} s cannot be scheduled at {self._now!r} s; it is a number, and never goes back"
        )
