"""The same objects in front of real engines: two replicas of one decoder, stepped in turn on the wall clock.

    result = live([engine, other], FirstToken(0.02), prompts, tokens, arrivals, still=(0.1, 0.3))

A front door in one thread: what is due is done, then each engine has a step. So a replica computes while the other
waits, as two programs on one processor do. From `still[0]` until `still[1]` s the first engine has no step: that is
the disturbance, and it is given; all else is as long as it takes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from underload.engine import Engine
from underload.request import Request, SamplingParams, Timeline


@dataclass(frozen=True)
class Seen:
    """An engine, as the front door sees it."""

    index: int
    inside: int
    waiting: int
    kv_used: float
    up: bool = True


@dataclass(eq=False)
class LiveCopy:
    """A copy of a call on a real engine; instants in s on the engines' clock."""

    number: int
    replica: int
    sent: float
    request: Request
    state: str = "inside"
    started: float | None = None
    first_token: float | None = None
    ended: float | None = None


@dataclass(eq=False)
class LiveCall:
    """A call at the front door of real engines: what a policy sees, and may do, as in a simulated cluster."""

    number: int
    arrival: float  # s on the engines' clock
    front: LiveFront
    prompt: list[int]
    params: SamplingParams
    attempts: list[LiveCopy] = field(default_factory=list)
    state: Any = None
    winner: LiveCopy | None = None
    over: bool = False

    @property
    def now(self) -> float:
        return self.front.clock.now()

    @property
    def inside(self) -> list[LiveCopy]:
        return [attempt for attempt in self.attempts if attempt.state == "inside"]

    def send(self) -> LiveCopy:
        """A copy to the next engine in turn that has had none of this call, if there is one."""
        engines, had = len(self.front.engines), {attempt.replica for attempt in self.attempts}
        to = min(range(engines), key=lambda place: (place in had, (place - self.number) % engines))
        name = f"{self.number}.{len(self.attempts)}"
        request = Request(name, list(self.prompt), self.params, Timeline(self.now))
        copy = LiveCopy(len(self.attempts), to, self.now, request)
        self.attempts.append(copy)
        self.front.engines[to].add(request)
        return copy

    def after(self, delay: float, function: Callable[..., object], *args: Any) -> None:
        """Call the function in so many seconds, unless the call is over by then."""
        self.front.at(self.now + delay, lambda: None if self.over else function(*args))

    def cancel(self, attempt: LiveCopy, after: float = 0.0) -> None:
        """Take a copy out of its engine, which lets go of it after at most one more step."""
        if after:
            self.front.at(self.now + after, lambda: self.cancel(attempt))
        elif attempt.state == "inside":
            attempt.state = "cancelled"
            self.front.engines[attempt.replica].cancel(attempt.request.request_id)

    def answer(self, attempt: LiveCopy) -> None:
        """This copy is the call's answer; the others are cancelled."""
        self.over, self.winner = True, attempt
        for other in self.inside:
            self.cancel(other)

    def fail(self, reason: str = "") -> None:
        """The call has no answer."""
        self.over = True
        for other in self.inside:
            self.cancel(other)


class LiveFront:
    """The front door: what is due, and who is inside where."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = list(engines)
        self.clock = engines[0].clock
        self.calls: list[LiveCall] = []
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()

    @property
    def views(self) -> list[Seen]:
        found = []
        for place, engine in enumerate(self.engines):
            pool, scheduler = engine.scheduler.pool, engine.scheduler
            inside = sum(attempt.replica == place for call in self.calls for attempt in call.inside)
            found.append(Seen(place, inside, len(scheduler.waiting), pool.num_used / pool.num_blocks))
        return found

    def at(self, instant: float, action: Callable[[], object]) -> None:
        """Do it when the clock is there."""
        heapq.heappush(self._due, (instant, next(self._numbers), action))

    def do_what_is_due(self) -> None:
        while self._due and self._due[0][0] <= self.clock.now():
            heapq.heappop(self._due)[2]()

    @property
    def next_due(self) -> float | None:
        return self._due[0][0] if self._due else None


def live(
    engines: Sequence[Engine],
    policy: Any,
    prompts: Sequence[Sequence[int]],
    tokens: Sequence[int],
    arrivals: Sequence[float],
    still: tuple[float, float] = (0.0, 0.0),
) -> list[LiveCall]:
    """Have the engines answer every prompt, greedily, under a policy; the calls, in order.

    Args:
        tokens: of each answer.
        arrivals: of each call, in s from now on, ascending.
        still: from when until when (s from now on) the first engine has no step.
    """
    front = LiveFront(engines)
    began = front.clock.now()

    def come(place: int) -> None:
        params = SamplingParams(max_tokens=tokens[place], temperature=0, ignore_eos=True)
        call = LiveCall(place, began + arrivals[place], front, list(prompts[place]), params)
        front.calls.append(call)
        policy.begin(call)

    for place in range(len(prompts)):
        front.at(began + arrivals[place], lambda place=place: come(place))  # type: ignore[misc]
    while True:
        front.do_what_is_due()
        busy = False
        for place, engine in enumerate(engines):
            if place == 0 and began + still[0] <= front.clock.now() < began + still[1]:
                front.at(front.clock.now() + 1e-3, lambda: None)  # it has work, and will go on
                continue
            if engine.step():
                busy = True
                _tell(policy, front, place)
        if busy:
            continue
        if front.next_due is None:
            return front.calls
        front.clock.wait(front.next_due)


def _tell(policy: Any, front: LiveFront, place: int) -> None:
    """What a step of an engine brought, to the policy."""
    for call in front.calls:
        for attempt in call.inside:
            if attempt.replica != place or attempt.state != "inside":  # an earlier one's news may have cancelled it
                continue
            timeline = attempt.request.timeline
            if attempt.started is None and timeline.scheduled is not None:
                attempt.started = timeline.scheduled
                policy.started(call, attempt)
            if attempt.first_token is None and timeline.first_token is not None:
                attempt.first_token = timeline.first_token
                policy.first_token(call, attempt)
            if timeline.finished is not None and attempt.state == "inside":
                attempt.state, attempt.ended = "answered", timeline.finished
                policy.finished(call, attempt)
