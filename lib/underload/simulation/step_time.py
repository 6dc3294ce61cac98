"""How long a step takes, by a model of its size.

A model reads the names of `request.StepSize` and nothing else: a plan that is to be simulated and the record of a step
that was measured are the same question. It is asked for every step of a simulation, so a call costs about a
microsecond.

    LinearStepTime    overhead + so much a token + so much a key read
    OverlapStepTime   memory and computing side by side, the shorter hidden in part
    ReplayStepTime    durations that were recorded, in order
    SwapStepTime      any of these, and the way of swapped blocks to the host and back

and in files of their own `RooflineStepTime`, `TableStepTime`, `FittedStepTime`.

`run(step, k)` is what k decode steps in a row take, bit for bit as k calls would say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from underload.queueing import arguments
from underload.request import StepSize, UnderloadError


class StepTime(Protocol):
    """s that a step of some size takes."""

    def __call__(self, step: StepSize) -> float: ...

    def run(self, step: StepSize, k: int) -> list[float]:
        """s that each of k decode steps in a row takes, the first of them `step`. From one to the next each sequence
        that decodes has a token more (`context_tokens` and `score_pairs` grow by `decode_tokens`); all else stays."""
        ...


def run_of(step_time: Any) -> Callable[[StepSize, int], list[float]] | None:
    """The `run` of a step time; None where it has none, or where a class that is derived from one with `run` says
    otherwise what a step takes."""
    run = getattr(step_time, "run", None)
    if isinstance(step_time, type) or not callable(run):
        return None
    for cls in type(step_time).__mro__:
        if "run" in vars(cls):
            break
        if "__call__" in vars(cls):
            return None
    return run


def growth(step: StepSize, k: int) -> range:
    """What k decode steps in a row have more to read than the first of them, `step`: tokens of context."""
    return range(0, k * step.decode_tokens, step.decode_tokens)


def tokens_of(step: StepSize) -> int:
    """Tokens that a step computes, those included that are thrown away."""
    return step.prefill_tokens + step.decode_tokens + step.padding_tokens


@dataclass(frozen=True)
class LinearStepTime:
    """overhead + per_token x tokens computed + per_context_token x keys and values read, all in s.

    The first two terms are the line o + Bt of a decode step at a short context; the third is what a long one adds.

    Raises:
        UnderloadError: a negative term, or a step that takes no time at all.
    """

    overhead: float
    per_token: float
    per_context_token: float = 0.0

    def __post_init__(self) -> None:
        terms = (self.overhead, self.per_token, self.per_context_token)
        if min(terms) < 0 or not 0 < sum(terms) < math.inf:
            raise UnderloadError(f"a step takes some time, with an end, and no term of it is negative, got {terms} s")

    def __call__(self, step: StepSize) -> float:
        return self._seconds(tokens_of(step), step.context_tokens)

    def run(self, step: StepSize, k: int) -> list[float]:
        tokens, context = tokens_of(step), step.context_tokens
        return [self._seconds(tokens, context + more) for more in growth(step, k)]

    def _seconds(self, tokens: int, context: int) -> float:
        return self.overhead + self.per_token * tokens + self.per_context_token * context


@dataclass(frozen=True)
class OverlapStepTime:
    """max(m, c) + overlap x min(m, c), with m = base + per_context x keys and values read, c = per_token x tokens.

    Reading memory (m) and computing (c) go on side by side. `overlap` is the share of the shorter that shows all the
    same: 0 where the longer hides it, which is the roofline (Williams et al., CACM 2009), 1 where one waits for the
    other. All in s, but `overlap`.

    Raises:
        UnderloadError: a negative term, an `overlap` outside [0, 1], or a step that takes no time at all.
    """

    base: float
    per_context: float
    per_token: float
    overlap: float

    def __post_init__(self) -> None:
        terms = (self.base, self.per_context, self.per_token)
        if min(terms) < 0 or not 0 < sum(terms) < math.inf:
            raise UnderloadError(f"a step takes some time, with an end, and no term of it is negative, got {terms} s")
        if not 0 <= self.overlap <= 1:
            raise UnderloadError(
                f"overlap is the share of the shorter part that shows, from 0 to 1, got {self.overlap}"
            )

    def __call__(self, step: StepSize) -> float:
        return self._seconds(tokens_of(step), step.context_tokens)

    def run(self, step: StepSize, k: int) -> list[float]:
        tokens, context = tokens_of(step), step.context_tokens
        return [self._seconds(tokens, context + more) for more in growth(step, k)]

    def _seconds(self, tokens: int, context: int) -> float:
        memory = self.base + self.per_context * context
        compute = self.per_token * tokens
        return memory + self.overlap * compute if memory > compute else compute + self.overlap * memory


class ReplayStepTime:
    """Durations that were recorded (s), one a step, in order: what a run would have been on just this machine's luck.

    It remembers how far it has come, so one belongs to one run; joined steps take as many as they join.

    Raises:
        UnderloadError: asked for more steps than were recorded.
    """

    def __init__(self, durations: Sequence[float]) -> None:
        self.durations = list(durations)
        self._next = 0

    def __call__(self, step: StepSize) -> float:
        return self.run(step, 1)[0]

    def run(self, step: StepSize, k: int) -> list[float]:
        start, self._next = self._next, self._next + k
        if self._next > len(self.durations):
            raise UnderloadError(
                f"step {self._next} was asked for and {len(self.durations)} were recorded; replay the same requests "
                "under the same scheduler, from a fresh ReplayStepTime"
            )
        return self.durations[start : self._next]


@dataclass(frozen=True)
class SwapStepTime:
    """Another step time, and `per_block` s for each block that a plan swaps out or in.

    As `DecoderExecutor` carries a plan out: copies first, one after another, and nothing is computed meanwhile. Over a
    link of so many bytes/s a block takes its tokens x `ModelShape.kv_bytes_per_token` / bytes per second.

    Raises:
        UnderloadError: a time below 0 s or above 1,000,000 s, or a step time without `run`.
    """

    step_time: StepTime
    per_block: float

    def __post_init__(self) -> None:
        if not 0 <= arguments.as_float(self.per_block) <= 1e6:
            raise UnderloadError(f"a block is swapped in 0 s or more, 1e6 at most, got {self.per_block!r:.40} s")
        if run_of(self.step_time) is None:
            raise UnderloadError(
                f"step_time is an object such as LinearStepTime(0.02, 0.001), got {self.step_time!r:.60}; a function "
                "has no `run`: add the swaps in the function itself"
            )

    def __call__(self, step: Any) -> float:
        """step: a plan; a record does not say what was swapped."""
        return self.step_time(step) + self.per_block * (len(step.swap_out) + len(step.swap_in))

    def run(self, step: StepSize, k: int) -> list[float]:
        return self.step_time.run(step, k)  # in steps that are like the one before nothing is swapped
