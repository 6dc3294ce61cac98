"""One customer's stay at one station."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from underload.simulation.events import Event
    from underload.simulation.station import Station


class VisitState(StrEnum):
    """Where a visit stands. The last three are for good."""

    WAITING = "waiting"
    SERVING = "serving"
    FINISHED = "finished"
    REFUSED = "refused"  # the buffer was full
    CANCELLED = "cancelled"


class Visit:
    """One customer's stay at one station; instants in s on the queue's clock, None until they come.

    A customer who goes through a network makes one visit at each station; `data` is what ties them together.
    """

    __slots__ = ("arrival", "data", "event", "finish", "priority", "service", "start", "state", "station", "target")

    def __init__(self, station: Station, arrival: float, service: float, priority: float, data: Any) -> None:
        self.station = station
        self.arrival = arrival
        self.service = service  # s of work it brings
        self.priority = priority  # smaller goes first, where the station asks
        self.data = data  # the caller's own
        self.state = VisitState.WAITING
        self.start: float | None = None  # of its service
        self.finish: float | None = None  # when it left: served, or cancelled
        self.event: Event | None = None  # the end of its service, to cancel (stations with servers)
        self.target = 0.0  # the attained service at which it is done (processor sharing)

    def cancel(self) -> bool:
        """Take it out of its station: `Station.cancel`."""
        return self.station.cancel(self)

    def __repr__(self) -> str:
        return f"<Visit at {self.arrival:g} s, {self.service:g} s of service, {self.state}>"
