"""Who is turned away: at the door, or after too long a wait. Work that nobody will wait for is best not begun.

A request that is shed finishes at once with `FinishReason.REFUSED` and an `error` that says why; nothing is raised. One
that has begun is never shed.
"""

from __future__ import annotations

import math

from underload.request import Request, UnderloadError


class Shedding:
    """Limits on the queue; by default there are none.

    Args:
        max_queue: sequences that may wait; who comes when so many do is refused.
        max_wait: s from arrival; who has not begun by then is dropped.
        deadlines: drop who has not begun by its `Request.deadline`.

    Raises:
        UnderloadError: a wait below 0, or a queue of none: everybody goes through it, if only for an instant.
    """

    def __init__(self, *, max_queue: int | None = None, max_wait: float | None = None, deadlines: bool = False) -> None:
        for name, value, least in (("max_queue", max_queue, 1), ("max_wait", max_wait, 0)):
            if value is not None and not value >= least:
                raise UnderloadError(f"{name} must be at least {least}, got {value}")
        self.max_queue = max_queue
        self.max_wait = max_wait
        self.deadlines = deadlines

    def refuses(self, request: Request, queue_length: int) -> str | None:
        """Why the request is turned away at the door; None if it may wait."""
        if self.max_queue is not None and queue_length >= self.max_queue:
            return f"{queue_length} sequences wait already, and max_queue is {self.max_queue}; send it again later"
        return None

    def expires(self, request: Request) -> float:
        """The instant at which it is dropped, if it has not begun by then; inf for never."""
        latest = math.inf
        if self.max_wait is not None:
            latest = request.timeline.arrival + self.max_wait
        if self.deadlines and request.deadline is not None:
            latest = min(latest, request.deadline)
        return latest
