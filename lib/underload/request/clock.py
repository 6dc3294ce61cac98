"""Where time comes from. The engine asks a clock; only the clock knows whether time is real."""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since an arbitrary start, never going backwards."""

    def now(self) -> float:
        """The present instant in seconds."""
        ...

    def wait(self, until: float) -> None:
        """Return once `now() >= until`; at once when that has passed."""
        ...


#: s for which a thread sleeps at most before it looks at the clock again: the operating system's timers take no instant
#: however far, and it costs nothing.
LONGEST_WAIT = 3600.0


class WallClock:
    """Real time, counted from the moment the clock was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._start

    def wait(self, until: float) -> None:
        # Aims at the instant, not at the gap: an oversleeping timer must not push later events back.
        while (remaining := until - self.now()) > 0:
            time.sleep(min(remaining, LONGEST_WAIT))


class ProcessorClock:
    """The time for which this process had a core, to measure on a machine that others use as well.

    What others take of the machine is left out, but for the caches that they share; waiting takes no such time and is
    skipped. For a single thread: the time of several is added up, and instants of the wall are another thing.
    """

    def __init__(self) -> None:
        self._skipped = -time.process_time()

    def now(self) -> float:
        return time.process_time() + self._skipped

    def wait(self, until: float) -> None:
        self._skipped += max(until - self.now(), 0.0)


class VirtualClock:
    """Simulated time: it moves only when told to."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def wait(self, until: float) -> None:
        self._now = max(self._now, until)
