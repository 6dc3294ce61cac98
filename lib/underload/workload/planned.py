"""What a client means to send: one record a request, before anything has happened to it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from numbers import Integral
from typing import Any, NamedTuple, TextIO

from underload.queueing import arguments
from underload.request import SamplingParams, UnderloadError
from underload.workload.lengths import MOST


def _is_count(value: object, least: int) -> bool:
    if type(value) is int:  # nearly all, and the abstract class is slow to ask
        return least <= value <= MOST
    return isinstance(value, Integral) and not isinstance(value, bool) and least <= int(value) <= MOST


def _text(value: Any) -> str:
    """Text that can be written again: half a surrogate pair, which JSON lets through, cannot."""
    text = str(value)
    text.encode()
    return text


def _count(value: Any) -> int:
    """A whole number; 12.0 is one, 12.5 and true are not."""
    if isinstance(value, bool) or value != int(value):
        raise ValueError(f"{value!r:.40} is no whole number")
    return int(value)


class Segment(NamedTuple):
    """A run of tokens in a prompt. Equal identities mean equal tokens, so leading segments in common can be reused."""

    identity: str
    tokens: int


@dataclass(frozen=True)
class Planned:
    """One request as planned.

        arrival        s from the start of the run: when the client means to send it
        prompt_tokens  the whole prompt, what it shares with others included
        output_tokens  how many the answer will have; an engine learns it by generating
        tenant         who sends it
        session, turn  the conversation it belongs to, and which of its turns it is, from 0
        think          s between the answer before and this turn. With it, a driver sends this turn that long after that
                       answer and `arrival` is only a guess; without, it is sent at `arrival` come what may
        segments       what the prompt is made of, in order; empty when nothing is known to be shared
        sampling       wishes other than the length
        priority       larger is more important, to whoever asks (`scheduling.Priority`)
        deadline       s after its arrival within which the answer is worth something (`scheduling.Deadline`)

    Raises:
        UnderloadError: a prompt or an answer without a token, an arrival before 0, or segments that are not the prompt.
    """

    arrival: float
    prompt_tokens: int
    output_tokens: int
    index: int = 0
    tenant: str = ""
    session: str | None = None
    turn: int = 0
    think: float | None = None
    segments: tuple[Segment, ...] = ()
    sampling: SamplingParams | None = None
    priority: float = 0.0
    deadline: float | None = None

    def __post_init__(self) -> None:
        if not (_is_count(self.prompt_tokens, 1) and _is_count(self.output_tokens, 1)):
            raise UnderloadError(
                f"request {self.index} has {self.prompt_tokens!r:.40} prompt and {self.output_tokens!r:.40} output "
                f"tokens; both must be whole and at least 1, {MOST:,} at most: leave such a request out"
            )
        if not 0 <= arguments.as_float(self.arrival) < float("inf"):
            raise UnderloadError(
                f"request {self.index} arrives at {self.arrival!r:.40} s; count from the start of the run"
            )
        if self.think is not None and not 0 <= arguments.as_float(self.think) < float("inf"):
            raise UnderloadError(
                f"request {self.index} follows a think time of {self.think!r:.40} s; it must be at least 0 s, or None"
            )
        if not math.isfinite(arguments.as_float(self.priority)):
            raise UnderloadError(f"request {self.index} has priority {self.priority!r:.40}; it is a finite number")
        if self.deadline is not None and not 0 < arguments.as_float(self.deadline) < math.inf:
            raise UnderloadError(
                f"request {self.index} has a deadline {self.deadline!r:.40} s after its arrival; it must be above 0 s, "
                "or None"
            )
        if not _is_count(self.turn, 0) or not all(_is_count(segment.tokens, 1) for segment in self.segments):
            raise UnderloadError(
                f"request {self.index} has turn {self.turn!r:.40}, and segments of "
                f"{[segment.tokens for segment in self.segments]!r:.60} tokens; turns count from 0, tokens from 1"
            )
        if self.segments and sum(segment.tokens for segment in self.segments) != self.prompt_tokens:
            raise UnderloadError(
                f"the segments of request {self.index} have {sum(s.tokens for s in self.segments)} tokens, its prompt "
                f"has {self.prompt_tokens}; make them the same"
            )

    @property
    def params(self) -> SamplingParams:
        """For an engine: exactly `output_tokens` tokens, whatever the model says, and the other wishes as given.

        A seed in them is the first request's; request i gets seed + i.
        """
        if self.sampling is None:
            return _exactly(self.output_tokens)
        base = self.sampling
        seed = None if base.seed is None else base.seed + self.index
        return replace(base, max_tokens=self.output_tokens, min_tokens=0, ignore_eos=True, seed=seed)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for a line of JSON; what has its default is left out, and so are the sampling wishes."""
        row: dict[str, Any] = {
            "arrival": float(self.arrival),
            "prompt_tokens": int(self.prompt_tokens),  # arrays' numbers are none to JSON
            "output_tokens": int(self.output_tokens),
        }
        if self.tenant:
            row["tenant"] = self.tenant
        if self.session is not None:
            row |= {"session": self.session, "turn": int(self.turn)}
        if self.think is not None:
            row["think"] = float(self.think)
        if self.segments:
            row["segments"] = [[name, int(tokens)] for name, tokens in self.segments]
        if self.priority:
            row["priority"] = float(self.priority)
        if self.deadline is not None:
            row["deadline"] = float(self.deadline)
        return row

    @classmethod
    def of(cls, row: Mapping[str, Any], index: int) -> Planned:
        """The request of a line that `as_dict` wrote.

        Raises:
            UnderloadError: a value of the wrong kind; KeyError, TypeError and ValueError for what is no such line.
        """
        return cls(
            arrival=float(row["arrival"]),
            prompt_tokens=_count(row["prompt_tokens"]),
            output_tokens=_count(row["output_tokens"]),
            index=index,
            tenant=_text(row.get("tenant", "")),
            session=None if row.get("session") is None else _text(row["session"]),
            turn=_count(row.get("turn", 0)),
            think=None if row.get("think") is None else float(row["think"]),
            segments=tuple(Segment(_text(name), _count(tokens)) for name, tokens in row.get("segments", ())),
            priority=float(row.get("priority", 0.0)),
            deadline=None if row.get("deadline") is None else float(row["deadline"]),
        )


def write_plan(planned: Iterable[Planned], to: TextIO) -> int:
    """One line of JSON for each request; how many. `read_plan` reads them, and `read_trace` does as well."""
    count = 0
    for request in planned:
        to.write(json.dumps(request.as_dict(), ensure_ascii=False) + "\n")
        count += 1
    return count


def numbered(planned: Iterable[Planned]) -> list[Planned]:
    """In order of arrival, equal ones as they stood, and numbered from 0."""
    ordered = sorted(planned, key=lambda request: request.arrival)
    return [one if one.index == index else replace(one, index=index) for index, one in enumerate(ordered)]


@lru_cache(4096)
def _exactly(tokens: int) -> SamplingParams:
    """So many tokens, and no other wishes. Thousands of requests share a few hundred such."""
    return SamplingParams(max_tokens=tokens, ignore_eos=True)
