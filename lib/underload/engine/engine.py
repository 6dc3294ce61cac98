"""Requests in, tokens out: the loop over scheduler, executor and clock."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from itertools import count

from underload.engine.executor import AheadExecutor, Executor
from underload.request import Clock, InvalidRequest, Request, StepRecord, UnderloadError, WallClock
from underload.scheduling import Idle, Plan, Scheduler, StepResult

# Called after every step that was committed: the plan, what came of it, and its record.
OnStep = Callable[[Plan, StepResult, StepRecord], None]


class Engine:
    """One scheduler, one executor, one clock.

    Args:
        scheduler: decides; the engine alone calls it. Its `max_model_len` becomes the executor's, if that is shorter.
        executor: computes.
        clock: the wall, or a virtual clock that moves by the durations which the executor states.
        on_step: sees every committed step, on this thread, and may add and cancel; what it raises ends the run, after
            the step.
        lookahead: plans that are made and begun while one is being executed, by an executor that can
            (`AheadExecutor`). A sequence that turns out to have ended has then been computed once for nothing.

    Raises:
        UnderloadError: a lookahead below 0, or of an executor that executes one plan after the other.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        clock: Clock | None = None,
        *,
        on_step: OnStep | None = None,
        lookahead: int = 0,
    ) -> None:
        limits = [limit for limit in (scheduler.max_model_len, executor.max_model_len) if limit is not None]
        scheduler.max_model_len = min(limits, default=None)
        self.scheduler = scheduler
        self.executor = executor
        self.clock = clock or WallClock()
        self.on_step = on_step
        self.steps: list[StepRecord] = []
        self.finished: list[Request] = []
        self.aborted = 0  # steps that failed
        # Whether requests may come that nobody has announced: no policy then takes the last one for the last.
        self.more_to_come = False
        # How to wait for an instant where nothing can be computed before; a front end may cut the wait short.
        self.sleep: Callable[[float], None] = self.clock.wait
        self.join_steps = True  # whether like steps may be taken at once on a virtual clock (`Executor`)
        self.carry = getattr(executor, "carries", False)  # whether plans may have sequences `carried` (`Executor`)
        self.horizon = math.inf  # the instant up to which nobody comes or goes but whom the engine knows of
        self._coming: dict[str, Request] = {}  # not yet arrived, by id
        self._arrivals: list[tuple[float, int, Request]] = []  # a heap; those that are not in `_coming` were cancelled
        self._numbers = count()
        self._torn = False
        self._flights: deque[tuple[Plan, float]] = deque()  # plans begun, and when
        self._ended = -math.inf  # the last step
        self.lookahead = lookahead
        self._ahead = executor if lookahead and isinstance(executor, AheadExecutor) else None
        if lookahead < 0 or (lookahead and self._ahead is None):
            raise UnderloadError(
                f"lookahead = {lookahead} plans of {type(executor).__name__}: it must be at least 0, and above 0 the "
                "executor needs launch, collect, forget and unseen"
            )
        if self._ahead is not None:
            scheduler.unseen = self._ahead.unseen

    def add(self, request: Request) -> None:
        """Take a request; it joins the queue when the clock reaches its `timeline.arrival`.

        Raises:
            InvalidRequest: it could never be served, its id is in use, or it arrives at no instant (inf, nan).
        """
        name, timeline = request.request_id, request.timeline
        if not math.isfinite(timeline.arrival):
            raise InvalidRequest(f"request {name!r} arrives at {timeline.arrival} s; give the instant it is meant for")
        if name in self._coming:
            raise InvalidRequest(f"request id {name!r} is in use; wait for it to finish, or choose another")
        self.scheduler.check(request)
        self.executor.check(request)
        if timeline.sent is None:
            timeline.sent = timeline.arrival
        if timeline.arrival > self.clock.now():
            self._coming[name] = request
            heapq.heappush(self._arrivals, (timeline.arrival, next(self._numbers), request))
        else:
            self._queue(request)

    def is_live(self, request_id: str) -> bool:
        """Whether a request of that name is to come, waits or runs."""
        return request_id in self._coming or request_id in self.scheduler.requests

    def cancel(self, request_id: str) -> bool:
        """Let a request go; whether there was one. Its blocks are free after at most one more step."""
        if (coming := self._coming.pop(request_id, None)) is not None:
            # It came and went now: no timeline ends before it begins.
            now = self.clock.now()
            coming.timeline.arrival = coming.timeline.sent = coming.timeline.queued = now
            self.scheduler.pass_by(coming, now)
            return True
        return self.scheduler.cancel(request_id)

    def run(self) -> list[Request]:
        """Step until every request is finished; those that finished meanwhile, in that order."""
        before = len(self.finished)
        while self.step():
            pass
        return self.finished[before:]

    def step(self) -> bool:
        """One turn of the loop: one plan, or waiting for the next arrival. False when nothing is left to do.

        Raises:
            UnderloadError: requests are live, and neither a plan nor an arrival can move them: a fault of the policies.
                Or an earlier step was interrupted half-way through the scheduler's books.
        """
        if self._torn:
            raise UnderloadError(
                "an earlier step was interrupted while blocks changed hands, and what the scheduler knows of them may "
                "be wrong; make a new engine and send what is unfinished again"
            )
        while (arrival := self._next_arrival()) is not None and arrival <= self.clock.now():
            self._queue(self._coming.pop(heapq.heappop(self._arrivals)[2].request_id))
        if self.on_step is None and self.join_steps and self._repeat():
            return True
        idle = self._prepare()
        if not self._flights:
            return self._pause(idle) if idle is not None else True
        plan, start = self._flights[0]
        try:
            result = self.executor.execute(plan) if self._ahead is None else self._ahead.collect()
            self.scheduler.check_result(plan, result)
            if result.duration is not None:
                self.clock.wait(start + result.duration)
        except BaseException as error:
            self._fail(plan, error)
            return True
        self._flights.popleft()
        now = self.clock.now()
        self._torn = True
        self.scheduler.commit(plan, result, now)
        self._torn = False
        # One that was launched behind another begins when that ends.
        start = max(start, self._ended)
        self._ended = now
        record = self._record(plan, result, start, now - start)
        self.steps.append(record)
        self.take_finished()
        if self.on_step is not None:
            self.on_step(plan, result, record)
        return True

    def _prepare(self) -> Idle | None:
        """Make the next plan and, where the executor can work while others are being made, those after it; begin them.
        What the scheduler said where it had nothing to do."""
        while len(self._flights) <= self.lookahead:
            start = self.clock.now()
            self._torn = True
            closing = not self.more_to_come and self._next_arrival() is None
            plan = self.scheduler.schedule(start, closing=closing, carry=self.carry and self.on_step is None)
            self._torn = False
            self.take_finished()
            if isinstance(plan, Idle):
                return plan
            self._flights.append((plan, start))
            if self._ahead is not None:
                try:
                    self._ahead.launch(plan)
                except BaseException as error:
                    self._fail(plan, error)
                    return None
        return None

    def _fail(self, plan: Plan, error: BaseException) -> None:
        """Executing a plan failed: undo it, and those made after it."""
        self.aborted += 1
        while self._flights and self._flights.pop()[0] is not plan:
            pass
        if self._ahead is not None:
            self._ahead.forget(len(self._flights))
        self._torn = True
        self.scheduler.abort(plan, error, self.clock.now())
        self._torn = False
        self.take_finished()
        if not isinstance(error, Exception):  # Ctrl-C ends the run; what it was doing can be done again
            raise error

    def _repeat(self) -> bool:
        """Where the executor can, take the next steps at once, in which all who run decode and nobody comes in. The
        records are those of as many turns of the loop. Whether there were any such steps."""
        execute = getattr(self.executor, "repeat", None)
        repeat = self.scheduler.repeat() if execute is not None else None
        if execute is None or repeat is None:
            return False
        instants = [at for at in (self._next_arrival(), self.scheduler.next_expiry(), self.horizon) if at is not None]
        start, rows, held = self.clock.now(), len(repeat.sequences), len(repeat.held)
        context, waiting = repeat.context_tokens, len(self.scheduler.waiting)
        first = StepRecord(start, 0.0, rows + held, 0, rows, held, context, context, rows)
        found = execute(repeat.sequences, repeat.most, first, start, min(instants))
        if found is None:
            return False
        ids, stopped, ends = found
        self._torn = True
        states = repeat.commit(ids, stopped, ends)
        self._torn = False
        for end, blocks in zip(ends, states):
            self.steps.append(
                StepRecord(
                    start, end - start, rows + held, 0, rows, held, context, context, rows,
                    blocks.used, blocks.free, blocks.cached, waiting,
                )
            )  # fmt: skip
            start = end
            context += rows
        self.clock.wait(ends[-1])
        self.take_finished()
        return True

    def _queue(self, request: Request) -> None:
        request.timeline.queued = self.clock.now()
        self.scheduler.add(request)

    def take_finished(self) -> None:
        """Move those who have finished to `finished`; each step does so, and nobody else need, but who wants to know
        between two of them who was turned away."""
        finished = self.scheduler.take_finished()
        self.finished += finished  # before anything can raise: nobody vanishes
        for request in finished:
            self.executor.release(request)

    def _next_arrival(self) -> float | None:
        while self._arrivals:
            first = self._arrivals[0][2]
            if self._coming.get(first.request_id) is first:
                break
            heapq.heappop(self._arrivals)
        return self._arrivals[0][0] if self._arrivals else None

    def _pause(self, idle: Idle) -> bool:
        instants = [until for until in (idle.until, self._next_arrival()) if until is not None]
        if instants:
            self.sleep(min(instants))
            return True
        if not self.scheduler.idle and not self.more_to_come:
            raise UnderloadError(
                f"{len(self.scheduler.requests)} requests are live and nothing can be scheduled: "
                f"{type(self.scheduler.batching).__name__}.fill() lets nobody compute and names no instant to wait "
                "until; if that is the library's own, please report it with the scheduler's and pool's settings"
            )
        return False

    def _record(self, plan: Plan, result: StepResult, start: float, duration: float) -> StepRecord:
        pool = self.scheduler.pool
        return StepRecord(
            start=start,
            duration=duration,
            batch_size=plan.batch_size,
            prefill_tokens=plan.prefill_tokens,
            decode_tokens=plan.decode_tokens,
            padding_tokens=plan.padding_tokens,
            context_tokens=plan.context_tokens,
            score_pairs=plan.score_pairs,
            logit_rows=plan.logit_rows,
            blocks_used=pool.num_used,
            blocks_free=pool.num_free,
            blocks_cached=pool.num_cached,
            queue_length=plan.queue_length,
            bytes_read=result.bytes_read,
            flops=result.flops,
        )
