"""What the tasks ask for, as the lab has it: what its pictures fall back on, and what drawn runs are set beside."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from underload.simulation import Sending


class Second(Sending):
    """A second copy `delay` s after the first, or when that fails; never a third."""

    def __init__(self, delay: float) -> None:
        self.delay = delay

    def begin(self, call: Any) -> None:
        call.send()
        call.after(self.delay, self.late, call)

    def late(self, call: Any) -> None:
        """The delay is over, and the call is not answered."""
        if len(call.attempts) == 1:
            call.send()

    def failed(self, call: Any, attempt: Any) -> None:
        self.late(call)
        if not call.inside:
            call.fail("both copies failed")


class Budgeted(Second):
    """A second copy where a bucket of tokens and an idle replica allow one: `share` tokens a call, `most` at once."""

    def __init__(self, delay: float, share: float, most: float) -> None:
        super().__init__(delay)
        self.share, self.most, self.tokens = share, most, most

    def begin(self, call: Any) -> None:
        self.tokens = min(self.most, self.tokens + self.share)
        super().begin(call)

    def late(self, call: Any) -> None:
        idle = any(view.up and not view.inside for view in call.front.views)
        if len(call.attempts) == 1 and idle and self.tokens >= 1 - 1e-9:
            self.tokens -= 1
            call.send()


class TwoQueues(Sending):
    """Two copies that wait in two lines; the first to start calls the other back, `message` s later."""

    def __init__(self, message: float) -> None:
        self.message = message

    def begin(self, call: Any) -> None:
        call.send()
        call.after(2 * self.message, self.late, call)

    def late(self, call: Any) -> None:
        """The second copy, unless the first has started meanwhile."""
        if all(attempt.started is None for attempt in call.inside):
            call.send()

    def started(self, call: Any, attempt: Any) -> None:
        for other in call.inside:
            if other is not attempt and other.started is None:
                call.cancel(other, after=self.message)


class FirstToken(Sending):
    """A second copy where `delay` s have brought no token; the first token decides whose answer it is."""

    def __init__(self, delay: float) -> None:
        self.delay = delay

    def begin(self, call: Any) -> None:
        call.send()
        call.after(self.delay, self.late, call)

    def late(self, call: Any) -> None:
        """The delay is over, and the call is not answered."""
        if len(call.attempts) == 1 and all(attempt.first_token is None for attempt in call.inside):
            call.send()

    def first_token(self, call: Any, attempt: Any) -> None:
        for other in call.inside:
            if other is not attempt:
                call.cancel(other)


class Learned(Sending):
    """A second copy after the quantile of the latest latencies that leaves `share` of them above, within a bucket."""

    LOOK, FIRST, MOST = 200, 50, 5.0  # latencies looked at, latencies before the first copy, tokens of the bucket

    def __init__(self, share: float) -> None:
        self.share, self.tokens = share, 1.0
        self.latest: deque[float] = deque(maxlen=self.LOOK)

    def begin(self, call: Any) -> None:
        self.tokens = min(self.MOST, self.tokens + self.share)
        call.send()
        if len(self.latest) >= self.FIRST:
            call.after(float(np.quantile(self.latest, 1 - self.share, method="higher")), self.late, call)

    def late(self, call: Any) -> None:
        """The delay is over, and the call is not answered."""
        if self.tokens >= 1 - 1e-9:
            self.tokens -= 1
            call.send()

    def finished(self, call: Any, attempt: Any) -> None:
        self.latest.append(call.now - call.arrival)
        call.answer(attempt)
