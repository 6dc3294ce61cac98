"""What a front door does with a request: send it once, hedge it, tie two copies together, try again, fan it out.

    Sending   the base: what a policy hears of, and what happens if it does nothing about it
    Once      one copy
    Hedge     another copy where no answer is there after a delay; the first answer counts
    Tied      copies at several replicas at once; the first to start cancels the others
    Retry     after a timeout, or a failure, once more
    FanOut    parts of the answer from several replicas; all of them are needed, or so many

A policy of your own is a class with `begin`, and whatever else it wants to hear of. One object serves all calls of a
run; what it has to remember of one of them it keeps in `call.state`. All that it can do, `simulation.call.Call` shows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from underload.queueing import arguments
from underload.request import UnderloadError
from underload.simulation.call import Attempt, Call


class Sending(ABC):
    """What becomes of a call. Nobody is told of an attempt that was cancelled, or of anything once the call is over."""

    @abstractmethod
    def begin(self, call: Call) -> None:
        """It has arrived; `call.send()` sends a copy."""

    def started(self, call: Call, attempt: Attempt) -> None:  # noqa: B027
        """A copy's service has begun: at a station, or with the first step that computes for it."""

    def first_token(self, call: Call, attempt: Attempt) -> None:  # noqa: B027
        """A copy has its first token. At a station the answer is one piece, and this comes just before `finished`."""

    def finished(self, call: Call, attempt: Attempt) -> None:
        """A copy has its whole answer. Without a policy of its own: the client gets it."""
        call.answer(attempt)

    def failed(self, call: Call, attempt: Attempt) -> None:
        """A copy failed or was refused. Without a policy of its own: the client hears of it when no copy is left."""
        if not call.inside:
            call.fail()

    def leaf_answered(self, call: Call, leaf: Call) -> None:  # noqa: B027
        """A part of the answer is there."""

    def leaf_failed(self, call: Call, leaf: Call) -> None:
        """A part of the answer will not come. Without a policy of its own: the whole call fails."""
        call.fail(leaf.error or "a part of the answer failed")


class Once(Sending):
    """One copy, and whatever becomes of it."""

    def begin(self, call: Call) -> None:
        call.send()


#: s after which to send another copy, or None for never; or a function of the call that says so.
Delay = float | Callable[[Call], float | None]

_UNTIL = ("answer", "first token")


class Hedge(Sending):
    """Another copy, elsewhere, where nothing is there after a delay (Dean and Barroso, "The Tail at Scale", CACM 56(2),
    2013).

    Args:
        delay: s after the copy before; or a function of the call that says how long to wait, or None for no copy.
        until: what a copy is sent for the lack of: the "answer", or the "first token". With the first token a copy has
            won, and the others are cancelled then.
        most: copies beyond the first.
        budget: copies beyond the first, as a share of the calls so far; None is no limit. A copy that would exceed it
            is not sent.

    Raises:
        UnderloadError: a delay or a budget below 0, copies below 1, or nothing to wait for.
    """

    def __init__(self, delay: Delay, *, until: str = "answer", most: int = 1, budget: float | None = None) -> None:
        self.delay = delay if callable(delay) else arguments.at_least_zero("delay", delay, "s")
        self.until = _one_of_until(until)
        self.most = arguments.whole("most", most, least=1)
        self.budget = None if budget is None else arguments.at_least_zero("budget", budget, "")

    def begin(self, call: Call) -> None:
        call.send()
        self._wait(call)

    def first_token(self, call: Call, attempt: Attempt) -> None:
        if self.until == "first token":
            call.state = attempt  # it has won; no copy is sent any more
            for other in call.inside:
                if other is not attempt:
                    call.cancel(other)

    def failed(self, call: Call, attempt: Attempt) -> None:
        if call.state is attempt:
            call.state = None
        super().failed(call, attempt)

    def _wait(self, call: Call) -> None:
        delay = self.delay(call) if callable(self.delay) else self.delay
        if delay is not None:
            call.after(delay, self._hedge, call)

    def _hedge(self, call: Call) -> None:
        front = call.front
        if call.state is not None:
            return
        if self.budget is not None and front.attempts + 1 - front.calls > self.budget * front.calls:
            return
        call.send()
        if len(call.attempts) <= self.most:
            self._wait(call)


class Tied(Sending):
    """Copies at several replicas from the beginning, which know of each other: the first to start cancels the rest.

    Args:
        copies: how many, at least 2.
        message: s until the others hear that one has started. Copies that start within that time of each other are both
            computed.

    Raises:
        UnderloadError: copies below 2, a message that takes less than 0 s.
    """

    def __init__(self, copies: int = 2, *, message: float = 0.0) -> None:
        self.copies = arguments.whole("copies", copies, least=2)
        self.message = arguments.at_least_zero("message", message, "s")

    def begin(self, call: Call) -> None:
        for _ in range(self.copies):
            if call.state is not None and not self.message:
                return  # one has started already: the others need not be sent
            attempt = call.send()
            if call.state not in (None, attempt):
                self._tell(call, attempt)

    def started(self, call: Call, attempt: Attempt) -> None:
        if call.state is None:
            call.state = attempt
            for other in call.inside:
                if other is not attempt:
                    self._tell(call, other)

    def _tell(self, call: Call, other: Attempt) -> None:
        if self.message:
            call.after(self.message, self._hear, call, other)
        else:
            call.cancel(other)

    def _hear(self, call: Call, attempt: Attempt) -> None:
        if attempt.started is None:
            call.cancel(attempt)


class Retry(Sending):
    """Once more when nothing is there after a timeout, or when it failed.

    Args:
        timeout: s that a client waits for each attempt; None: it tries again only when one has failed.
        attempts: in all.
        backoff: s to wait before the next one: a number, or a function of how many were made (1 after the first). None:
            at once.
        cancels: whether the attempt that timed out is taken back. Most clients of most servers just leave, and the
            server works on.
        until: what the client waits for: the "answer" or the "first token".

    Raises:
        UnderloadError: a time below 0, attempts below 1, or nothing to wait for.
    """

    def __init__(
        self,
        timeout: float | None,
        *,
        attempts: int = 3,
        backoff: float | Callable[[int], float] | None = None,
        cancels: bool = True,
        until: str = "answer",
    ) -> None:
        self.timeout = None if timeout is None else arguments.above_zero("timeout", timeout, "s")
        self.attempts = arguments.whole("attempts", attempts, least=1)
        if not callable(backoff) and backoff is not None:
            backoff = arguments.at_least_zero("backoff", backoff, "s")
        self.backoff = backoff
        self.cancels = cancels
        self.until = _one_of_until(until)

    def begin(self, call: Call) -> None:
        self._send(call)

    def first_token(self, call: Call, attempt: Attempt) -> None:
        if self.until == "first token" and attempt is call.attempts[-1]:
            call.state = attempt

    def finished(self, call: Call, attempt: Attempt) -> None:
        if attempt is call.attempts[-1]:  # nobody listens to the others any more
            call.answer(attempt)

    def failed(self, call: Call, attempt: Attempt) -> None:
        if attempt is call.attempts[-1]:
            self._again(call, attempt.error or "it failed")

    def _send(self, call: Call) -> None:
        call.state = None
        attempt = call.send()
        if self.timeout is not None:
            call.after(self.timeout, self._timed_out, call, attempt)

    def _timed_out(self, call: Call, attempt: Attempt) -> None:
        if call.attempts[-1] is not attempt or not attempt.inside or call.state is attempt:
            return
        if self.cancels:
            call.cancel(attempt)
        else:
            call.front.orphan(attempt)
        self._again(call, f"no {self.until} after {self.timeout:g} s")

    def _again(self, call: Call, why: str) -> None:
        made = len(call.attempts)
        if made >= self.attempts:
            call.fail(f"{why}, {made} times" if made > 1 else why)
            return
        pause = self.backoff(made) if callable(self.backoff) else self.backoff
        if pause:
            call.after(pause, self._send, call)
        else:
            self._send(call)


class FanOut(Sending):
    """Parts of the answer from `n` replicas, each different while there are as many; the slowest one counts.

    Args:
        n: parts.
        leaf: how each is sent.
        needed: parts that make an answer; all if None. The rest is cancelled then.

    Raises:
        UnderloadError: parts below 1, or more needed than there are.
    """

    def __init__(self, n: int, leaf: Sending | None = None, *, needed: int | None = None) -> None:
        self.n = arguments.whole("n", n, least=1)
        self.leaf = leaf or Once()
        self.needed = self.n if needed is None else arguments.whole("needed", needed, least=1)
        if self.needed > self.n:
            raise UnderloadError(f"needed must be at most n = {n}, got {needed}; ask for more parts, or need fewer")

    def begin(self, call: Call) -> None:
        call.state = [0, 0]  # answered, failed
        for _ in range(self.n):
            if call.over:
                return
            call.leaf(self.leaf)

    def leaf_answered(self, call: Call, leaf: Call) -> None:
        call.state[0] += 1
        if call.state[0] == self.needed:
            call.answer(leaf.winner if self.n == 1 else None)

    def leaf_failed(self, call: Call, leaf: Call) -> None:
        call.state[1] += 1
        if call.state[1] > self.n - self.needed:
            super().leaf_failed(call, leaf)


def _one_of_until(until: str) -> str:
    if until not in _UNTIL:
        raise UnderloadError(f"until must be 'answer' or 'first token', got {until!r}")
    return until
