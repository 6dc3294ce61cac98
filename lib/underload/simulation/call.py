"""One request as the front door sees it: a call, and the attempts that are made to answer it.

    Call      what a client asked for once, and is answered once
    Attempt   a copy of it at one replica

A call counts once, whatever is sent on its behalf: its latency is that of its first answer, and an attempt that was
cancelled because another was faster is no failure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from underload.request import Request, Timeline, UnderloadError
from underload.workload import Planned

if TYPE_CHECKING:
    from underload.simulation.cluster import Front
    from underload.simulation.events import Event
    from underload.simulation.sending import Sending


class Attempt:
    """A copy of a request at one replica; instants in s, None until they come.

    number: of all attempts for the client's call, those of its leaves included, from 0.
    replica: its index; -1 where none was up.
    started: its service began, or the first step that computes tokens for it.
    state: "inside", then "answered", "cancelled", "failed" or "refused". Only the first answer of a call counts as one:
        the others are cancelled.
    work: s that a station has served it, or tokens that an engine has computed for it (prompt and answer).
    kv_seconds: tokens held in the cache of an engine, times the seconds, while it was computed. Like an engine's
        `work`, counted where a policy may send copies.
    """

    __slots__ = (
        "call", "ended", "error", "first_token", "held", "kv_seconds", "number", "replica", "request", "sent",
        "started", "state", "work",
    )  # fmt: skip

    def __init__(self, call: Call, number: int, replica: int, sent: float) -> None:
        self.call = call
        self.number = number
        self.replica = replica
        self.sent = sent
        self.started: float | None = None
        self.first_token: float | None = None
        self.ended: float | None = None  # answered, cancelled, failed or refused
        self.state = "inside"
        self.error: str | None = None
        self.request: Request | None = None  # at an engine
        self.held: Any = None  # what its replica knows it by
        self.work = 0.0
        self.kv_seconds = 0.0

    @property
    def inside(self) -> bool:
        """Whether it may still be answered."""
        return self.state == "inside"

    def __repr__(self) -> str:
        return f"<Attempt {self.number} at replica {self.replica}, {self.state}>"


class Call:
    """A client's request, from its arrival until it is answered, fails or is given up; a leaf of one that fans out is a
    call itself.

    attempts: in the order in which they were sent, without those of leaves.
    state: for the policy; None at first.
    outcome: None, then "answered", "failed", "refused", "abandoned" (its client left) or "cancelled" (a leaf that
        nobody waits for any more).
    """

    def __init__(
        self, front: Front, request: Planned, arrival: float, sending: Sending, parent: Call | None = None
    ) -> None:
        self.front = front
        self.request = request
        self.arrival = arrival
        self.sending = sending
        self.parent = parent
        self.root: Call = self if parent is None else parent.root
        self.attempts: list[Attempt] = []
        self.leaves: list[Call] = []
        self.state: Any = None
        self.outcome: str | None = None
        self.winner: Attempt | None = None
        self.ended: float | None = None
        self.error: str | None = None
        self.prompt_ids: list[int] | None = None  # of the root, while it is live
        self._sent = 0  # attempts of the root and its leaves
        self._visited: dict[int, int] = {}  # replica -> attempts of the root and its leaves there
        self._timers: list[Event] = []

    # ---- what a policy sees ----------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """The present instant, s."""
        return self.front.now

    @property
    def over(self) -> bool:
        """Whether it has its outcome."""
        return self.outcome is not None

    @property
    def inside(self) -> list[Attempt]:
        """Attempts that may still answer."""
        return [attempt for attempt in self.attempts if attempt.inside]

    @property
    def latency(self) -> float | None:
        """s from its arrival to its answer; None without one."""
        return self.ended - self.arrival if self.outcome == "answered" and self.ended is not None else None

    # ---- what a policy does ----------------------------------------------------------------------------------------

    def send(self, avoid: Collection[int] = ()) -> Attempt:
        """Send a copy to a replica: the router chooses, among those that hold none yet while there are such.

        Args:
            avoid: indices of replicas that are no candidates while there are others.

        Raises:
            UnderloadError: the call is over.
        """
        self._check()
        root = self.root
        attempt = self.front.place(self, root._sent, avoid, root._visited)
        root._sent += 1
        root._visited[attempt.replica] = root._visited.get(attempt.replica, 0) + 1
        self.attempts.append(attempt)
        self.front.enter(attempt)
        return attempt

    def after(self, delay: float, function: Callable[..., object], *args: object) -> None:
        """Call `function(*args)` in `delay` s, unless the call is over by then.

        Ends of services and steps at that very instant come first.
        """
        self._check()
        self._timers.append(self.front.queue.after(delay, function, *args))

    def cancel(self, attempt: Attempt, after: float = 0.0) -> None:
        """Take a copy back, `after` s from now, if it is inside then; its replica is free of it at once (an engine:
        after the step that it is part of)."""
        if after > 0:
            # The message is under way, whatever becomes of the call.
            self.front.queue.after(after, self.front.cancel, attempt)
        else:
            self.front.cancel(attempt)

    def answer(self, attempt: Attempt | None) -> None:
        """The client has its answer, from this attempt (None: from leaves). The other copies are cancelled.

        Raises:
            UnderloadError: the call is over, or the attempt is another call's.
        """
        self._check()
        if attempt is not None and attempt.call.root is not self.root:
            raise UnderloadError(
                f"an attempt for request {attempt.call.request.index} does not answer request {self.request.index}; "
                "keep what a policy remembers of a call in call.state"
            )
        self.winner = attempt
        self._end("answered")

    def fail(self, error: str = "") -> None:
        """The client gets an error. Copies that are inside are cancelled.

        Raises:
            UnderloadError: the call is over.
        """
        self._check()
        self.error = error or next((attempt.error for attempt in reversed(self.attempts) if attempt.error), None)
        refused = bool(self.attempts) and all(attempt.state == "refused" for attempt in self.attempts)
        self._end("refused" if refused else "failed")

    def leaf(self, sending: Sending) -> Call:
        """Ask for a part of the answer, by a policy of its own; `sending.leaf_answered` hears of it.

        Raises:
            UnderloadError: the call is over.
        """
        self._check()
        leaf = Call(self.front, self.request, self.now, sending, self)
        self.leaves.append(leaf)
        sending.begin(leaf)
        return leaf

    # ---- ends ------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self.outcome is not None:
            raise UnderloadError(
                f"the call of request {self.request.index} is over ({self.outcome}); ask call.over before acting on it"
            )

    def _end(self, outcome: str) -> None:
        self.outcome, self.ended = outcome, self.now
        for timer in self._timers:
            self.front.queue.cancel(timer)
        self._timers.clear()
        for attempt in self.attempts:
            if attempt.inside:
                self.front.cancel(attempt)
        for leaf in self.leaves:
            if not leaf.over:
                leaf._end("cancelled")
        self.prompt_ids = None
        parent = self.parent
        if parent is None:
            self.front.ended(self)
        elif not parent.over and outcome != "cancelled":
            if outcome == "answered":
                parent.sending.leaf_answered(parent, self)
            else:
                parent.sending.leaf_failed(parent, self)

    def abandon(self) -> None:
        """The client has left: everything is cancelled. Nothing happens to a call that is over."""
        if not self.over:
            self.error = "the client gave up"
            self._end("abandoned")

    @property
    def timeline(self) -> Timeline:
        """What the client saw: its own arrival, and the tokens of the copy that answered it.

        One that was not answered ends without a token; an answer of leaves comes in one piece.
        """
        request, winner = self.request, self.winner
        made = Timeline(self.arrival, sent=self.arrival, finished=self.ended, prompt_tokens=request.prompt_tokens)
        made.finish_reason = _REASONS[self.outcome or "abandoned"]
        if self.outcome != "answered":
            return made
        made.queued = self.arrival
        assert self.ended is not None
        if winner is None:
            firsts = [leaf.timeline.scheduled for leaf in self.leaves]
            made.scheduled = min((at for at in firsts if at is not None), default=self.ended)
            made.token_times = [self.ended]
        elif winner.request is None:
            made.scheduled, made.token_times = winner.started, [self.ended]
        else:
            its = winner.request.timeline
            made.queued, made.scheduled, made.token_times = its.queued, its.scheduled, list(its.token_times)
            made.prefills, made.preempted = list(its.prefills), list(its.preempted)
            made.cached_tokens, made.preemptions, made.finish_reason = (
                its.cached_tokens, its.preemptions, its.finish_reason,
            )  # fmt: skip
        return made

    def __repr__(self) -> str:
        return f"<Call of request {self.request.index}, {self.outcome or 'live'}, {len(self.attempts)} attempts>"


_REASONS = {
    "answered": "stop",
    "failed": "error",
    "refused": "refused",
    "abandoned": "cancelled",
    "cancelled": "cancelled",
}
