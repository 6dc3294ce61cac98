"""Who carries out a driver: threads on a wall clock, an event queue in virtual time, or asyncio.

A driver is a generator that says what is to happen next and is resumed when it has happened, so that the rules of a
loop stand in one place whatever time is made of:

    Until(time)      go on at that instant, at once if it has passed
    Hold(ticket)     go on when the pool of connections gives one
    Send(entry)      send it; go on when it has come back
    Launch(driver)   let another one run; go on at once
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from typing import Any, NamedTuple, Protocol, runtime_checkable

from underload.request import Clock, Timeline
from underload.workload.log import Sent, absorb, failed, settle
from underload.workload.planned import Planned


class Until(NamedTuple):
    time: float


class Hold(NamedTuple):
    ticket: Ticket


class Send(NamedTuple):
    entry: Sent


class Launch(NamedTuple):
    driver: Driver


Command = Until | Hold | Send | Launch
Driver = Generator[Command, None, None]
OnDone = Callable[[Sent], object]

Blocking = Callable[[Planned, Timeline], Any]
Coroutine = Callable[[Planned, Timeline], Awaitable[Any]]


class Done(Protocol):
    """How a submit function with a callback says that all is there: `done()`, `done(answer)`, `done(error=…)`.

    An answer is a timeline, or what carries one, as a blocking submit function would return it.
    """

    def __call__(self, answer: Any = None, *, error: BaseException | str | None = None) -> None: ...


Callbacks = Callable[[Planned, Timeline, Done], object]


@runtime_checkable
class Events(Protocol):
    """A clock with things to come, such as `simulation.EventQueue`."""

    def now(self) -> float: ...

    def wait(self, until: float) -> None: ...

    def at(self, time: float, action: Callable[..., object], *args: object) -> object:
        """Call `action(*args)` at `time`; equal times in the order in which they were scheduled."""

    def run(self) -> object:
        """Carry out all that is to come."""


def _cancelled() -> type[BaseException]:
    """What asyncio raises in what was cancelled; it is no Exception. Nobody raises it who has not imported asyncio."""
    asyncio = sys.modules.get("asyncio")
    return asyncio.CancelledError if asyncio is not None else Exception


class Ticket:
    """A place in the line for a connection."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.granted = False
        self.call: Callable[[], object] | None = None

    def then(self, call: Callable[[], object]) -> bool:
        """True if it is granted now; otherwise `call` is called when it is."""
        with self._pool.lock:
            if not self.granted:
                self.call = call
            return self.granted


class Pool:
    """So many connections (None: no limit), given out in the order of the tickets."""

    def __init__(self, connections: int | None) -> None:
        self.lock = threading.Lock()
        self._free = connections
        self._line: deque[Ticket] = deque()

    def ticket(self) -> Ticket:
        """Stand in line."""
        ticket = Ticket(self)
        with self.lock:
            if self._free is None or self._free > 0:
                ticket.granted = True
                self._free = None if self._free is None else self._free - 1
            else:
                self._line.append(ticket)
        return ticket

    def release(self) -> None:
        """Give a connection back: to the first in line, if any."""
        with self.lock:
            if not self._line:
                self._free = None if self._free is None else self._free + 1
                return
            ticket = self._line.popleft()
            ticket.granted = True
            call = ticket.call
        if call is not None:
            call()


@dataclass
class Threads:
    """Blocking submit functions, each in a thread of its own, on a clock that runs by itself."""

    clock: Clock
    submit: Blocking
    on_done: OnDone | None = None
    #: More requests than this at once wait in the client, and the log shows it.
    most: int = 4096

    def __post_init__(self) -> None:
        self._lock = threading.Condition()
        self._running = 0
        self._fatal: BaseException | None = None
        self._stop = False

    def run(self, drivers: list[Driver]) -> None:
        """Carry the drivers out. One is carried out here, in the caller's thread."""
        self._pool = ThreadPoolExecutor(self.most, thread_name_prefix="underload-client")
        try:
            for driver in drivers[1:]:
                self._start(driver, None)
            self._carry(drivers[0], None)
            with self._lock:
                while self._running and self._fatal is None:
                    self._lock.wait(0.2)  # in slices, so that Ctrl-C is heard
        finally:
            self._stop = True
            self._pool.shutdown(wait=True, cancel_futures=True)
        if self._fatal is not None:
            raise self._fatal

    def _start(self, driver: Driver, command: Command | None) -> None:
        with self._lock:
            self._running += 1
        self._pool.submit(self._in_thread, driver, command)

    def _in_thread(self, driver: Driver, command: Command | None) -> None:
        try:
            self._carry(driver, command)
        except BaseException as error:
            self._fatal = self._fatal or error
        finally:
            with self._lock:
                self._running -= 1
                self._lock.notify()

    def _carry(self, driver: Driver, command: Command | None) -> None:
        """Until the driver ends, or has to stand in line (it is then started again)."""
        command = command or next(driver, None)
        while command is not None and not self._stop and self._fatal is None:
            if isinstance(command, Until):
                self._wait(command.time)
            elif isinstance(command, Hold):
                with self._lock:
                    self._running += 1  # before the ticket can be granted: in line it still counts
                granted = command.ticket.then(partial(self._pool.submit, self._in_thread, driver, None))
                if not granted:
                    return
                with self._lock:
                    self._running -= 1
            elif isinstance(command, Launch):
                # Its first words are spoken here: tickets are drawn in the order of the plan.
                first = next(command.driver, None)
                if first is not None:
                    self._start(command.driver, first)
            else:
                self._send(command.entry)
            command = next(driver, None)

    def _wait(self, until: float) -> None:
        while not self._stop and self._fatal is None and (now := self.clock.now()) < until:
            self.clock.wait(min(until, now + 0.5))  # in slices, so that a run that has failed ends

    def _send(self, entry: Sent) -> None:
        entry.timeline.sent = self.clock.now()
        try:
            absorb(entry, self.submit(entry.planned, entry.timeline))
        except (Exception, _cancelled()) as error:  # a submit function that was cancelled has failed like any other
            failed(entry, error, self.clock.now())
        else:
            settle(entry, self.clock.now())
        if self.on_done is not None:
            self.on_done(entry)


@dataclass
class InEvents:
    """Submit functions with a callback, in virtual time."""

    events: Events
    submit: Callbacks
    on_done: OnDone | None = None

    def run(self, drivers: list[Driver]) -> None:
        """Start the drivers now, and carry out all that is to come."""
        for driver in drivers:
            self.events.at(self.events.now(), self._carry, driver)
        self.events.run()

    def _carry(self, driver: Driver) -> None:
        for command in driver:
            if isinstance(command, Until):
                if command.time > self.events.now():
                    self.events.at(command.time, self._carry, driver)
                    return
            elif isinstance(command, Hold):
                if not command.ticket.then(partial(self._carry, driver)):
                    return
            elif isinstance(command, Launch):
                self._carry(command.driver)
            else:
                self._send(command.entry, driver)
                return

    def _send(self, entry: Sent, driver: Driver) -> None:
        entry.timeline.sent = self.events.now()
        over = False

        def done(answer: Any = None, *, error: BaseException | str | None = None) -> None:
            nonlocal over
            if over:  # the answer of a request is complete once; a server that says so twice is not believed twice
                return
            over = True
            now = self.events.now()
            absorb(entry, answer)
            if error is not None:
                failed(entry, error, now)
            else:
                settle(entry, now)
            if self.on_done is not None:
                self.on_done(entry)
            # By an event: after the endings of this instant, and never deep in the server's own call.
            self.events.at(now, self._carry, driver)

        try:
            self.submit(entry.planned, entry.timeline, done)
        except (Exception, _cancelled()) as error:
            if over:
                raise  # not the submit function's failure, but what its answer led to
            done(error=error)


class Agenda:
    """Things to come on a clock that moves only when told to; they may move it themselves, and then others are late."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []
        self._serial = 0

    def now(self) -> float:
        return self._clock.now()

    def wait(self, until: float) -> None:
        self._clock.wait(until)

    def at(self, time: float, action: Callable[..., object], *args: object) -> None:
        self._serial += 1
        heappush(self._heap, (time, self._serial, action, args))

    def run(self) -> None:
        while self._heap:
            time, _, action, args = heappop(self._heap)
            self._clock.wait(time)
            action(*args)


def one_by_one(clock: Clock, submit: Blocking, on_done: OnDone | None = None) -> InEvents:
    """A blocking submit function in virtual time: it moves the clock itself, so there can be one at a time."""

    def call(planned: Planned, timeline: Timeline, done: Done) -> None:
        done(submit(planned, timeline))

    return InEvents(Agenda(clock), call, on_done)


@dataclass
class InAsyncio:
    """Coroutine submit functions in the running event loop."""

    clock: Clock
    submit: Coroutine
    on_done: OnDone | None = None

    async def run(self, drivers: list[Driver]) -> None:
        """Carry the drivers out."""
        import asyncio

        try:
            async with asyncio.TaskGroup() as self._group:
                for driver in drivers:
                    self._group.create_task(self._carry(driver, None))
        except BaseExceptionGroup as several:
            # As the other runners do: the first failure, itself.
            error: BaseException = several
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            raise error from None

    async def _carry(self, driver: Driver, command: Command | None) -> None:
        import asyncio

        command = command or next(driver, None)
        while command is not None:
            if isinstance(command, Until):
                while (remaining := command.time - self.clock.now()) > 0:
                    await asyncio.sleep(remaining)
            elif isinstance(command, Hold):
                granted = asyncio.get_running_loop().create_future()
                if not command.ticket.then(partial(granted.set_result, None)):
                    await granted
            elif isinstance(command, Launch):
                first = next(command.driver, None)
                if first is not None:
                    self._group.create_task(self._carry(command.driver, first))
            else:
                await self._send(command.entry)
            command = next(driver, None)

    async def _send(self, entry: Sent) -> None:
        import asyncio

        entry.timeline.sent = self.clock.now()
        try:
            absorb(entry, await self.submit(entry.planned, entry.timeline))
        except asyncio.CancelledError as error:
            # Of this driver, from outside: obey. Of something in the submit function: that request has failed.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            failed(entry, error, self.clock.now())
        except Exception as error:
            failed(entry, error, self.clock.now())
        else:
            settle(entry, self.clock.now())
        if self.on_done is not None:
            self.on_done(entry)
