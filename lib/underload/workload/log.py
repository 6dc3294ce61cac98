"""What a driver saw: one entry a request, failures and all."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from underload.metrics import check, mean
from underload.request import FinishReason, Timeline, UnderloadError
from underload.workload.planned import Planned


@dataclass
class Sent:
    """One request as it went. `timeline.arrival` is when the client meant to send it, `timeline.sent` when it did."""

    planned: Planned
    timeline: Timeline
    user: int | None = None  # who sent it, in a closed loop
    error: str = ""  # what went wrong: "TimeoutError: …"

    @property
    def failed(self) -> bool:
        """Whether it ended in an error."""
        return self.timeline.finish_reason == FinishReason.ERROR

    @property
    def client_wait(self) -> float | None:
        """sent - arrival, in s: spent in the client, for want of a connection or because the client was late."""
        return None if self.timeline.sent is None else self.timeline.sent - self.timeline.arrival

    @property
    def latency_from_schedule(self) -> float | None:
        """Last token - arrival, in s: what its sender waited (E2E). None when it failed or did not end."""
        return self._latency(self.timeline.arrival)

    @property
    def latency_from_send(self) -> float | None:
        """Last token - sent, in s: what the server took. It hides the client's wait (coordinated omission)."""
        return None if self.timeline.sent is None else self._latency(self.timeline.sent)

    def _latency(self, start: float) -> float | None:
        last = self.timeline.last_token
        return None if self.failed or last is None or self.timeline.finished is None else last - start


@dataclass
class Log:
    """A run of a driver. `timelines` is what `underload.metrics` reads."""

    start: float  # s on the clock: where the plan's time 0 lay
    entries: list[Sent] = field(default_factory=list)  # in the order of the plan
    not_sent: list[Planned] = field(default_factory=list)  # a closed loop that stopped by time leaves some

    @property
    def timelines(self) -> list[Timeline]:
        """Of all that were sent, failures included."""
        return [entry.timeline for entry in self.entries]

    @property
    def failures(self) -> list[Sent]:
        """Those that ended in an error."""
        return [entry for entry in self.entries if entry.failed]

    @property
    def unfinished(self) -> list[Sent]:
        """Sent, and still inside when the run ended."""
        return [entry for entry in self.entries if entry.timeline.finished is None]

    @property
    def latencies_from_schedule(self) -> list[float | None]:
        """s, one a request, None where there is none."""
        return [entry.latency_from_schedule for entry in self.entries]

    @property
    def latencies_from_send(self) -> list[float | None]:
        """s, one a request, None where there is none."""
        return [entry.latency_from_send for entry in self.entries]

    @property
    def client_waits(self) -> list[float | None]:
        """s, one a request: sent - arrival."""
        return [entry.client_wait for entry in self.entries]

    def __str__(self) -> str:
        lines = [f"{len(self.entries)} requests sent, {len(self.failures)} failed, {len(self.unfinished)} unfinished"]
        if self.not_sent:
            lines.append(f"{len(self.not_sent)} of the plan not sent")
        rows = {
            "from schedule": self.latencies_from_schedule,
            "from send": self.latencies_from_send,
            "client's wait": self.client_waits,
        }
        for name, values in rows.items():
            found = mean(values)
            lines.append(f"{name:<14} mean {'no data' if found is None else f'{found:.4g} s'}")
        for error, count in Counter(entry.error for entry in self.failures).most_common(3):
            lines.append(f"{count} × {error or 'failed without a reason'}")
        return "\n".join(lines)

    __repr__ = __str__


# What only a server knows. Arrival and send are the client's.
_INSTANTS = ("queued", "scheduled", "finished", "finish_reason")
_COUNTS = ("prompt_tokens", "cached_tokens", "preemptions", "detokenize_seconds")


def absorb(entry: Sent, answer: Any) -> None:
    """Take over what a submit function returned: a timeline, or a completion or run that carries one.

    What stands in the entry's own timeline already stays: who stamped it was nearer to the event.
    """
    if getattr(answer, "completions", None):
        answer = answer.completions[0]
    theirs = answer if isinstance(answer, Timeline) else getattr(answer, "timeline", None)
    if isinstance(theirs, Timeline) and theirs is not entry.timeline:
        mine = entry.timeline
        for name in _INSTANTS:
            if getattr(mine, name) is None:  # 0 s is an instant
                setattr(mine, name, getattr(theirs, name))
        for name in _COUNTS:
            setattr(mine, name, getattr(mine, name) or getattr(theirs, name))
        mine.token_times = mine.token_times or list(theirs.token_times)
        mine.prefills = mine.prefills or list(theirs.prefills)
        mine.preempted = mine.preempted or list(theirs.preempted)
        entry.error = entry.error or str(getattr(answer, "error", None) or "")


def settle(entry: Sent, now: float) -> None:
    """Close the timeline of a request whose submit has come back at `now`.

    Raises:
        UnderloadError: instants that run backwards or lie in the future: two clocks were used.
    """
    timeline = entry.timeline
    if timeline.finish_reason is None:
        timeline.finish_reason = FinishReason.LENGTH
        if not timeline.token_times:  # a reply that came all at once
            timeline.token_times = [now] * entry.planned.output_tokens
    timeline.finished = now if timeline.finished is None else timeline.finished
    timeline.prompt_tokens = timeline.prompt_tokens or entry.planned.prompt_tokens
    if not _in_order(timeline):
        check(timeline)  # says which instant is wrong, and takes its time
    if timeline.finished > now:
        raise UnderloadError(
            f"request {entry.planned.index} finished at {timeline.finished} s, and the driver's clock reads {now} s; "
            "give the server the same clock"
        )


def _in_order(timeline: Timeline) -> bool:
    tokens = timeline.token_times
    stamps = (timeline.arrival, timeline.sent, timeline.queued, timeline.scheduled, *tokens[:1], *tokens[-1:])
    known = [stamp for stamp in (*stamps, timeline.finished) if stamp is not None]
    ordered = known == sorted(known) and tokens == sorted(tokens)
    return ordered and not math.isnan(sum(known) + sum(tokens))


def failed(entry: Sent, error: BaseException | str, now: float) -> None:
    """Close the timeline of a request that ended in an error at `now`."""
    entry.error = error if isinstance(error, str) else f"{type(error).__name__}: {error}".rstrip(": ")
    entry.timeline.finish_reason = FinishReason.ERROR
    entry.timeline.finished = now
    entry.timeline.prompt_tokens = entry.timeline.prompt_tokens or entry.planned.prompt_tokens
