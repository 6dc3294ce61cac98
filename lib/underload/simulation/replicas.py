"""Replicas: what stands behind a front door, described; and the server that each description makes.

    EngineReplica    the project's own engine, scheduler and block pool, with a model of a step's time
    StationReplica   servers behind one line, or one that all inside share
    Server           a replica at work on an event queue

A description is plain data that may stand in a list several times (`[replica] * 8`) and travel to another process.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from underload.cache import BlockPool
from underload.engine import Engine, request_of
from underload.queueing.service import law_of
from underload.request import FinishReason, Request, Sequence, StepRecord, UnderloadError, VirtualClock
from underload.scheduling import Plan, Scheduler, StepResult
from underload.simulation.failures import Failures
from underload.simulation.modelled import CostModelExecutor
from underload.simulation.slowness import Slowness
from underload.simulation.station import station
from underload.simulation.step_time import StepTime
from underload.simulation.visit import Visit, VisitState

if TYPE_CHECKING:
    from underload.simulation.call import Attempt
    from underload.simulation.cluster import Front
    from underload.simulation.events import Event


class Replica(Protocol):
    """A description of a replica."""

    @property
    def failures(self) -> Failures | None: ...

    def serve(self, front: Front, index: int) -> Server:
        """A server as described, empty, on the front's event queue."""
        ...


@dataclass(frozen=True)
class StationReplica:
    """A plain station (`simulation.station`).

    service: the law of a copy's service (s), drawn anew for each attempt; equal laws of several replicas draw the same.
    common: the law of a part of the service that is the request's own, so that all its copies have it: what no second
        copy makes shorter. None is none.
    slowness: of its servers; not under "ps".

    Raises:
        UnderloadError: a law that is none, or slowness under processor sharing.
    """

    service: Any
    common: Any = None
    servers: int = 1
    discipline: str = "fcfs"
    buffer: int | None = None
    slowness: Slowness | None = None
    failures: Failures | None = None

    def __post_init__(self) -> None:
        law_of(self.service)
        if self.common is not None:
            law_of(self.common)
        if self.slowness is not None and self.discipline == "ps":
            raise UnderloadError('slowness goes with servers that serve one at a time, not with "ps"; leave one out')

    def serve(self, front: Front, index: int) -> Server:
        return StationServer(self, front, index)


@dataclass(frozen=True)
class EngineReplica:
    """The engine that also drives the real decoder, on a virtual clock of its own.

    step_time: s that a step takes.
    scheduler: makes a fresh scheduler with its own pool and policies; None: continuous batching over 100,000 blocks of
        16 tokens. A function at the top of a module, where the description is to travel.
    max_tokens: what each request is allowed, of which the scheduler knows; None: just what it will need.
    slowness: of its steps.
    failures: when it is down. It comes back empty, and with an empty cache.
    vocabulary: token ids of answers are below it.
    """

    step_time: StepTime | Callable[[Plan], float]
    scheduler: Callable[[], Scheduler] | None = None
    max_tokens: int | None = None
    slowness: Slowness | None = None
    failures: Failures | None = None
    vocabulary: int = 32_000

    def serve(self, front: Front, index: int) -> Server:
        return EngineServer(self, front, index)


class Server(ABC):
    """A replica at work. It tells the front when a copy starts, has its first token, ends."""

    def __init__(self, front: Front, index: int, failures: Failures | None) -> None:
        self.front = front
        self.index = index
        self.inside = 0  # copies sent here that are not back
        self.waiting = 0  # those of them that have not started
        self.down = False
        self.steps: list[StepRecord] = []
        self.attempts = 0  # sent here
        self.active = True  # part of the fleet
        self._failures = failures
        if failures is not None:
            for begin, end in failures.down:
                front.decide_at(begin, self._go_down)
                if end < math.inf:
                    front.decide_at(end, self._come_up)

    @property
    def up(self) -> bool:
        """Whether it takes requests, as far as is known."""
        return self.active and not (self._failures is not None and self._failures.is_known(self.front.now))

    @property
    @abstractmethod
    def busy(self) -> float:
        """s in which something was served, added up over servers."""

    @property
    def kv_used(self) -> float:
        """The share of its blocks in use after its last step; 0 at a station."""
        return 0.0

    def enter(self, attempt: Attempt) -> None:
        """A copy comes."""
        self.attempts += 1
        if self.down:
            # Not now: whoever sends is told after it has sent.
            self.front.queue.at(self.front.now, self.front.failed, attempt, "the replica is down")
            return
        self.inside += 1
        self.waiting += 1
        self._take(attempt)

    def leave(self, attempt: Attempt) -> None:
        """A copy is taken back that is inside."""
        if attempt.held is not None:
            self._out(attempt)
            self._drop(attempt)
            attempt.held = None

    @abstractmethod
    def boot(self) -> None:
        """It starts, and remembers nothing of what was before."""

    def _out(self, attempt: Attempt) -> None:
        self.inside -= 1
        if attempt.started is None:
            self.waiting -= 1
        if not self.inside and self.front.fleet is not None:
            self.front.fleet.left(self.index)

    def _began(self, attempt: Attempt) -> None:
        # Who is taken out when a replica goes down makes room for the next, who is taken out as well.
        if attempt.started is None and not self.down:
            attempt.started = self.front.now
            self.waiting -= 1
            self.front.started(attempt)

    @abstractmethod
    def _take(self, attempt: Attempt) -> None: ...

    @abstractmethod
    def _drop(self, attempt: Attempt) -> None: ...

    @abstractmethod
    def _all_inside(self) -> list[Attempt]: ...

    def _go_down(self) -> None:
        self.down = True
        for attempt in self._all_inside():
            self.leave(attempt)
            self.front.failed(attempt, "the replica went down")

    def _come_up(self) -> None:
        self.down = False


class StationServer(Server):
    def __init__(self, replica: StationReplica, front: Front, index: int) -> None:
        super().__init__(front, index, replica.failures)
        self.replica = replica
        self._busy = 0.0
        self._inside: dict[Attempt, None] = {}
        self.station = station(
            front.queue,
            servers=replica.servers,
            discipline=replica.discipline,
            buffer=replica.buffer,
            slowness=replica.slowness,
            on_start=lambda visit: self._began(visit.data),
            on_finish=self._finished,
            on_refused=self._refused,
        )

    @property
    def busy(self) -> float:
        return self._busy

    def boot(self) -> None:
        pass  # a station never remembers

    def _take(self, attempt: Attempt) -> None:
        call = attempt.call
        work = self.front.drawn(self.replica.service, "service", call, attempt.number)
        if self.replica.common is not None:
            work += self.front.drawn(self.replica.common, "common", call, 0)
        self._inside[attempt] = None
        visit = self.station.enter(work, 0.0, attempt)
        if visit.state is not VisitState.REFUSED:
            attempt.held = visit

    def _drop(self, attempt: Attempt) -> None:
        visit: Visit = attempt.held
        visit.cancel()
        self._inside.pop(attempt)
        self._serve(attempt, visit)

    def _serve(self, attempt: Attempt, visit: Visit) -> None:
        if visit.start is not None and visit.finish is not None:
            attempt.work = visit.finish - visit.start
            self._busy += attempt.work

    def _finished(self, visit: Visit) -> None:
        attempt: Attempt = visit.data
        self._inside.pop(attempt)
        attempt.held = None
        self._out(attempt)
        self._serve(attempt, visit)
        self.front.first_token(attempt)
        self.front.finished(attempt)

    def _refused(self, visit: Visit) -> None:
        attempt: Attempt = visit.data
        self._inside.pop(attempt)
        self._out(attempt)
        self.front.queue.at(self.front.now, self.front.failed, attempt, "the queue was full", "refused")

    def _all_inside(self) -> list[Attempt]:
        return list(self._inside)


class EngineServer(Server):
    """An engine, a step at a time. A step is computed when it begins, and what came of it is told when it ends: whoever
    comes or is cancelled meanwhile takes part from the next one on, as on a real server."""

    def __init__(self, replica: EngineReplica, front: Front, index: int) -> None:
        super().__init__(front, index, replica.failures)
        self.replica = replica
        self._inside: dict[str, Attempt] = {}
        self._event: Event | None = None  # the next turn
        self._in_step = False
        self.boot()

    def boot(self) -> None:
        """A fresh engine, that knows nobody."""
        self._plan(math.inf)
        self._booted = len(self.steps)  # those before are another engine's
        scheduler = (
            self.replica.scheduler() if self.replica.scheduler is not None else Scheduler(BlockPool(100_000, 16))
        )
        clock = VirtualClock(self.front.now)
        self.executor = _Watched(self, clock)
        self.engine = Engine(scheduler, self.executor, clock)
        self.engine.sleep = self._sleep
        self.engine.steps = self.steps
        self._seen = 0  # of its finished requests
        self._in_step = False

    @property
    def busy(self) -> float:
        return math.fsum(step.duration for step in self.steps)

    @property
    def kv_used(self) -> float:
        # A step's record is there when it begins, and those of joined steps are all there when the first begins: the
        # last that is over is the one before that which runs, or the last of all.
        over = bisect_left(self.steps, self.front.now, lo=self._booted, key=_start)
        if self.engine.clock.now() > self.front.now or over < len(self.steps):
            begins = over < len(self.steps) and self.steps[over].start == self.front.now
            over -= not begins
        if over <= self._booted:
            return 0.0
        last = self.steps[over - 1]
        blocks = last.blocks_used + last.blocks_free + last.blocks_cached
        return last.blocks_used / blocks if blocks else 0.0

    @property
    def waits(self) -> bool:
        """Whether it may be waiting for company."""
        return not self._in_step and bool(self._inside)

    def _ask(self, attempt: Attempt) -> tuple[Request, int]:
        """The copy as the engine takes it, and the tokens that it answers with."""
        call = attempt.call
        planned, most = call.request, self.replica.max_tokens
        name = str(planned.index) if not attempt.number else f"{planned.index}/{attempt.number}"
        if most is not None and planned.output_tokens > most:
            raise UnderloadError(
                f"request {planned.index} has {planned.output_tokens} tokens of answer, and max_tokens = {most}; allow "
                "as many, or clip it"
            )
        params = planned.params if most is None else replace(planned.params, max_tokens=most)
        prompt_ids = self.front.prompt_of(call)
        request = request_of(planned, name, prompt_ids, params, call.root.arrival, self.front.now)
        return request, planned.output_tokens

    def _take(self, attempt: Attempt) -> None:
        request, tokens = self._ask(attempt)
        name = request.request_id
        self.executor.output_tokens[name] = tokens
        if not self._in_step:
            self.engine.clock.wait(self.front.now)
        self.engine.add(request)
        attempt.request, attempt.held = request, name
        self._inside[name] = attempt
        if not self._in_step:
            self.wake()

    def _drop(self, attempt: Attempt) -> None:
        self.engine.cancel(attempt.held)
        self._inside.pop(attempt.held)
        if not self._in_step:
            self.wake()  # whoever waited for its blocks

    def _all_inside(self) -> list[Attempt]:
        return list(self._inside.values())

    def _go_down(self) -> None:
        super()._go_down()
        self._plan(math.inf)

    def _come_up(self) -> None:
        super()._come_up()
        self.boot()

    def wake(self) -> None:
        """Look at once whether there is something to do; after those who come at this very instant."""
        if not self._in_step:
            self._plan(self.front.now)

    def _plan(self, instant: float) -> None:
        if self._event is not None:
            self.front.queue.cancel(self._event)
        self._event = self.front.queue.at(instant, self._turn) if instant < math.inf else None

    def _sleep(self, until: float) -> None:
        # Not by moving the clock: somebody may come before.
        self._plan(until)

    def _turn(self) -> None:
        self._event = None
        engine, front = self.engine, self.front
        engine.clock.wait(front.now)
        # Whoever was turned away during the last step is told before anybody looks how far the next ones may go: who
        # is told may come again.
        engine.take_finished()
        self._deliver(front.now)
        self._plan(math.inf)
        engine.horizon = front.horizon()
        engine.more_to_come = front.more_to_come
        began = len(self.steps)
        if not engine.step():
            self._deliver(front.now)
        elif len(self.steps) == began:
            self._deliver(front.now)
            if self._event is None:
                self._plan(front.now)
        else:
            self._in_step = True
            firsts = self.executor.take_firsts()
            for attempt in self.executor.take_started():
                self._began(attempt)
            self._deliver(front.now)
            self._event = front.queue.end_at(engine.clock.now(), self._ended, firsts)

    def _ended(self, firsts: list[Attempt]) -> None:
        self._in_step = False
        self._event = None
        for attempt in firsts:
            self.front.first_token(attempt)
        self._deliver(self.front.now)
        if self._event is None:
            self._plan(self.front.now)

    def _deliver(self, now: float) -> None:
        """Tell of those who finished by now; a step that is under way may have finished others."""
        finished = self.engine.finished
        while self._seen < len(finished):
            request = finished[self._seen]
            ended = request.timeline.finished
            if ended is not None and ended > now:
                return
            self._seen += 1
            attempt = self._inside.pop(request.request_id, None)
            if attempt is None:
                continue  # it was taken back
            attempt.held = None
            self._out(attempt)
            reason = request.timeline.finish_reason
            if reason in (FinishReason.STOP, FinishReason.LENGTH):
                self.front.finished(attempt)
            else:
                state = "refused" if reason == FinishReason.REFUSED else "failed"
                self.front.failed(attempt, request.error or str(reason), state)

    def attempt_of(self, request: Request) -> Attempt | None:
        return self._inside.get(request.request_id)


def _start(step: StepRecord) -> float:
    return step.start


class _Watched(CostModelExecutor):
    """One that notes who takes part in a step for the first time, and, where copies are sent, what each has cost."""

    def __init__(self, server: EngineServer, clock: VirtualClock) -> None:
        super().__init__(
            server.replica.step_time,
            vocabulary=server.replica.vocabulary,
            seed=server.front.seed,
            slowness=server.replica.slowness,
            clock=clock,
        )
        self._server = server
        self._counts = server.front.counts_work
        self.carries = self.carries and not self._counts  # each copy's work is read off the plans
        self._started: list[Attempt] = []
        self._firsts: list[Attempt] = []

    def take_started(self) -> list[Attempt]:
        taken, self._started = self._started, []
        return taken

    def take_firsts(self) -> list[Attempt]:
        taken, self._firsts = self._firsts, []
        return taken

    def execute(self, plan: Plan) -> StepResult:
        result = super().execute(plan)
        duration = result.duration or 0.0
        for work in plan.work:
            request = work.sequence.request
            if self._counts or (request is not None and not request.timeline.token_times):
                assert request is not None
                attempt = self._server.attempt_of(request)
                if attempt is None:
                    continue
                if attempt.started is None:
                    self._started.append(attempt)
                if work.samples and not request.timeline.token_times:
                    self._firsts.append(attempt)
                if self._counts:
                    attempt.work += work.stop - work.start
                    attempt.kv_seconds += work.stop * duration
        return result

    def repeat(
        self, sequences: list[Sequence], most: int, first: StepRecord, now: float, until: float
    ) -> tuple[list[list[int]], list[bool], list[float]] | None:
        found = super().repeat(sequences, most, first, now, until)
        if found is not None and self._counts:
            ends = found[2]
            spent, later, begin = ends[-1] - now, 0.0, now
            for k, end in enumerate(ends):
                later += k * (end - begin)
                begin = end
            for sequence in sequences:
                request = sequence.request
                attempt = None if request is None else self._server.attempt_of(request)
                if attempt is not None:
                    attempt.work += len(ends)
                    attempt.kv_seconds += len(sequence.tokens) * spent + later
        return found
