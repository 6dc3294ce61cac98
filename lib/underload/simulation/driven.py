"""A station as a server that load is driven at: the same loops as against the real thing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from underload.request.records import Timeline
from underload.simulation.station import Station
from underload.simulation.visit import Visit


def submit_to(place: Station, service: Callable[[Any], float]) -> Callable[[Any, Timeline, Any], None]:
    """A submit function for `workload.open_loop` and `closed_loop`, on the clock of the station's queue.

        queue = EventQueue()
        log = closed_loop(plan, submit_to(station(queue), lambda planned: 0.02), queue, users=8)

    Each planned request enters with `service(planned)` seconds of work. Its timeline says when it was queued and when
    its service began; all its tokens come when it finishes. One that is refused has failed. Takes the place of the
    station's callbacks, so one station has one load.
    """

    def start(visit: Visit) -> None:
        visit.data[0].scheduled = visit.start

    def finish(visit: Visit) -> None:
        visit.data[1]()

    def refused(visit: Visit) -> None:
        visit.data[1](error=f"refused: {place.inside} were inside, and that is all there is room for")

    place.on_start, place.on_finish, place.on_refused = start, finish, refused

    def submit(planned: Any, timeline: Timeline, done: Any) -> None:
        timeline.queued = place.queue.now()
        place.enter(service(planned), 0.0, (timeline, done))

    return submit
