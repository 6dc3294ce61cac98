"""Drivers: send a plan to anything that answers, by any clock.

    open_loop     requests go out on schedule, whether or not the ones before have come back
    closed_loop   so many users, each waits for an answer (and thinks) before sending again

Both loops take the plan, a submit function and a clock, and return a `Log`. What a submit function looks like follows
from what time is made of:

    WallClock          submit(planned, timeline) returns when the answer is complete; called in a thread of its own
    simulation.EventQueue (any clock with `at`)
                       submit(planned, timeline, done) returns at once and calls done() when the answer is complete
    VirtualClock       submit(planned, timeline) moves the clock itself; one connection, or one user
    open_loop_async, closed_loop_async
                       async submit(planned, timeline)

`timeline` has `arrival` (intended) and `sent` (actual) stamped; the submit function stamps what it knows, on the same
clock. It may return a timeline, or a completion or run that carries one (what `decoder.generate` returns), and the rest
is taken from there. One that stamps nothing is believed to have answered all at once, when it returned, with
`planned.output_tokens` tokens.

What to rely on:

- The schedule is absolute: request i is due at start + planned.arrival. Time lost by oversleeping or by a slow submit
  is never added to later requests.
- With limited connections, requests that are due stand in the client's line, first come first served, and their wait
  shows: `latency_from_schedule` counts it, `latency_from_send` does not (coordinated omission).
- A submit function that raises is a failed request: recorded with its error, its time, and finish reason "error". The
  run goes on.
- In an open loop, a turn of a conversation that has a think time is sent that long after the answer before it, so that
  its arrival depends on the server ("partly open": Schroeder, Wierman and Harchol-Balter, "Open Versus Closed: A
  Cautionary Tale", NSDI 2006).
- In a closed loop the arrival of a request is when its user is ready to send it; the plan's arrivals do not count.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from underload.queueing import Service, arguments
from underload.request import Clock, ProcessorClock, Timeline, UnderloadError, VirtualClock
from underload.workload.log import Log, Sent
from underload.workload.planned import Planned
from underload.workload.prompts import check_time, draw_times
from underload.workload.runners import (
    Blocking,
    Callbacks,
    Coroutine,
    Driver,
    Events,
    Hold,
    InAsyncio,
    InEvents,
    Launch,
    OnDone,
    Pool,
    Send,
    Threads,
    Until,
    one_by_one,
)
from underload.workload.streams import Streams


def open_loop(
    planned: Iterable[Planned],
    submit: Blocking | Callbacks,
    clock: Clock,
    *,
    connections: int | None = None,
    on_done: OnDone | None = None,
) -> Log:
    """Send every request when it is due; returns when all have come back.

    Args:
        planned: what to send; time 0 of the plan is now.
        submit: see the module; its kind follows from the clock.
        connections: requests inside at once; the rest wait in the client. None is no limit.
        on_done: called with each entry as it comes back (a progress bar), in whatever thread that happens.

    Raises:
        UnderloadError: connections below 1, a virtual clock with more than one, or a server on another clock.
    """
    run = _OpenLoop(planned, clock, connections)
    _carry_out(run.drivers(), submit, clock, on_done, at_once=connections)
    return run.log()


def closed_loop(
    planned: Iterable[Planned],
    submit: Blocking | Callbacks,
    clock: Clock,
    users: int,
    think: float | Service | None = None,
    *,
    stop: float | None = None,
    seed: int | Streams = 0,
    on_done: OnDone | None = None,
) -> Log:
    """`users` send the plan's requests, in its order, each one as soon as its answer has come and it has thought.

    The turns of a conversation stay with one user. All users start now, with a think time of their own.

    Args:
        planned: what to send. Its arrivals are not used.
        think: s before each request, one number or a law of `underload.queueing`. None takes what the plan's
            conversations say, and 0 elsewhere. Each request has its own, whoever sends it and when.
        stop: s from now; nobody becomes ready from then on (those inside come back), and the log names what is left.
        seed: of the think times.
        on_done: called with each entry as it comes back, in whatever thread that happens.

    Raises:
        UnderloadError: users below 1, a time below 0, a virtual clock with more than one user, or a server on another
            clock.
    """
    run = _ClosedLoop(planned, clock, users, think, stop, seed)
    _carry_out(run.drivers(), submit, clock, on_done, at_once=users)
    return run.log()


async def open_loop_async(
    planned: Iterable[Planned],
    submit: Coroutine,
    clock: Clock,
    *,
    connections: int | None = None,
    on_done: OnDone | None = None,
) -> Log:
    """`open_loop` for an async submit function, in the running event loop.

    Raises:
        UnderloadError: as `open_loop`; a virtual clock, which no event loop moves.
    """
    _check_real(clock)
    run = _OpenLoop(planned, clock, connections)
    await InAsyncio(clock, submit, on_done).run(run.drivers())
    return run.log()


async def closed_loop_async(
    planned: Iterable[Planned],
    submit: Coroutine,
    clock: Clock,
    users: int,
    think: float | Service | None = None,
    *,
    stop: float | None = None,
    seed: int | Streams = 0,
    on_done: OnDone | None = None,
) -> Log:
    """`closed_loop` for an async submit function, in the running event loop.

    Raises:
        UnderloadError: as `closed_loop`; a virtual clock, which no event loop moves.
    """
    _check_real(clock)
    run = _ClosedLoop(planned, clock, users, think, stop, seed)
    await InAsyncio(clock, submit, on_done).run(run.drivers())
    return run.log()


def _check_real(clock: Clock) -> None:
    if isinstance(clock, ProcessorClock):
        raise UnderloadError(
            "an event loop of asyncio waits in real time, and a ProcessorClock stands still meanwhile; give a "
            "WallClock, or open_loop or closed_loop a submit function that is not async"
        )
    if isinstance(clock, VirtualClock | Events):
        raise UnderloadError(
            "an event loop of asyncio waits in real time and moves no virtual clock; give a WallClock, or open_loop or "
            "closed_loop a submit function that is not async"
        )


def _carry_out(
    drivers: list[Driver], submit: Any, clock: Clock, on_done: OnDone | None, *, at_once: int | None
) -> None:
    if not drivers:
        return
    if isinstance(clock, Events):
        InEvents(clock, submit, on_done).run(drivers)
    elif isinstance(clock, VirtualClock):
        if at_once != 1:
            raise UnderloadError(
                f"in virtual time a submit function that blocks can serve one request at a time, got "
                f"{'no limit' if at_once is None else at_once}; give 1 connection or user, or a simulation.EventQueue "
                "as the clock and a submit function with a callback"
            )
        one_by_one(clock, submit, on_done).run(drivers)
    else:
        Threads(clock, submit, on_done).run(drivers)


class _Loop:
    """What both loops keep: where time 0 lies, and what was sent."""

    def __init__(self, planned: Iterable[Planned], clock: Clock) -> None:
        self.planned = list(planned)
        for request in self.planned:
            if not isinstance(request, Planned):
                raise UnderloadError(f"a plan is made of Planned, got {request!r:.60}; Workload(…).plan(…) makes one")
        self.start = clock.now()
        self._sent: dict[int, Sent] = {}  # by place in the plan

    def enter(self, place: int, arrival: float, user: int | None = None) -> Sent:
        """The entry of a request that is due at `arrival`."""
        self._sent[place] = entry = Sent(self.planned[place], Timeline(arrival=arrival), user)
        return entry

    def chains(self) -> list[list[int]]:
        """Places in the plan that belong together: the turns of a conversation, or one request."""
        chains: dict[object, list[int]] = {}
        for place, request in enumerate(self.planned):
            key = (request.tenant, request.session) if request.session is not None else place
            chains.setdefault(key, []).append(place)
        return list(chains.values())

    def log(self) -> Log:
        """What has become of the plan."""
        return Log(
            self.start,
            [self._sent[place] for place in sorted(self._sent)],
            [request for place, request in enumerate(self.planned) if place not in self._sent],
        )


class _OpenLoop(_Loop):
    def __init__(self, planned: Iterable[Planned], clock: Clock, connections: int | None) -> None:
        super().__init__(planned, clock)
        if connections is not None:
            connections = arguments.whole("connections", connections, least=1)
        self._pool = Pool(connections)

    def drivers(self) -> list[Driver]:
        return [self._dispatch()] if self.planned else []

    def _dispatch(self) -> Driver:
        # A turn without a think time keeps its own schedule: it is a chain of its own.
        chains: list[list[int]] = []
        for chain in self.chains():
            for place in chain:
                if place == chain[0] or self.planned[place].think is None:
                    chains.append([])
                chains[-1].append(place)
        for chain in sorted(chains, key=lambda chain: self.planned[chain[0]].arrival):
            yield Until(self.start + self.planned[chain[0]].arrival)
            yield Launch(self._conversation(chain))

    def _conversation(self, chain: list[int]) -> Driver:
        arrival = ended = self.start + self.planned[chain[0]].arrival
        for number, place in enumerate(chain):
            if number:
                arrival = ended + (self.planned[place].think or 0.0)
                yield Until(arrival)
            entry = self.enter(place, arrival)
            yield Hold(self._pool.ticket())
            yield Send(entry)
            self._pool.release()
            assert entry.timeline.finished is not None  # a runner goes on when it is
            ended = entry.timeline.finished


@dataclass
class _Source:
    """Conversations, handed out one by one to whoever asks."""

    chains: Iterator[list[int]]

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def take(self) -> list[int] | None:
        with self._lock:
            return next(self.chains, None)


class _ClosedLoop(_Loop):
    def __init__(
        self,
        planned: Iterable[Planned],
        clock: Clock,
        users: int,
        think: float | Service | None,
        stop: float | None,
        seed: int | Streams,
    ) -> None:
        super().__init__(planned, clock)
        self._users = arguments.whole("users", users, least=1, most=Threads.most)
        self._stop = None if stop is None else self.start + arguments.at_least_zero("stop", stop, "s")
        if think is None:
            self._thinks = [request.think or 0.0 for request in self.planned]
        else:
            check_time("think", think)
            streams = seed if isinstance(seed, Streams) else Streams(seed)
            self._thinks = draw_times(think, streams.fresh("think"), len(self.planned)).tolist()
        self._source = _Source(iter(self.chains()))

    def drivers(self) -> list[Driver]:
        return [self._user(number) for number in range(self._users)] if self.planned else []

    def _user(self, number: int) -> Driver:
        ready = self.start
        while (chain := self._source.take()) is not None:
            for place in chain:
                arrival = ready + self._thinks[place]
                if self._stop is not None and arrival >= self._stop:
                    return
                yield Until(arrival)
                entry = self.enter(place, arrival, number)
                yield Send(entry)
                assert entry.timeline.finished is not None  # a runner goes on when it is
                ready = entry.timeline.finished
