"""An executor that computes nothing: a plan takes the time that a model of it says, and lengths come from the load."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from underload.request import Clock, FinishReason, Request, Sequence, StepRecord, UnderloadError
from underload.scheduling import Plan, Sampled, StepResult
from underload.simulation.slowness import Slowness
from underload.simulation.step_time import StepTime, run_of

_MASK = (1 << 64) - 1


class CostModelExecutor:
    """Runs plans on a virtual clock, for the engine that also drives the real decoder.

    Token ids are a function of (seed, request, sample, position), as those of a seeded request on the decoder are. How
    long an answer gets is known here and nowhere else: a scheduler that could see it would cheat.

    Args:
        step_time: s that a plan takes (`LinearStepTime`, `RooflineStepTime`, or any function of a plan).
        output_tokens: tokens of each request's answer, by its id; one that is missing runs to its `max_tokens`.
        vocabulary: ids are drawn below it.
        seed: of the ids.
        slowness: when steps take longer than the model says.
        clock: the engine's, which says when a step begins; only slowness asks.

    Raises:
        UnderloadError: an answer without a token, a vocabulary without one, or slowness without a clock.
    """

    max_model_len: int | None = None

    def __init__(
        self,
        step_time: StepTime | Callable[[Plan], float],
        *,
        output_tokens: Mapping[str, int] | None = None,
        vocabulary: int = 32_000,
        seed: int = 0,
        slowness: Slowness | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.step_time = step_time
        self._run_of_steps = run_of(step_time)
        self.carries = self._run_of_steps is not None  # any function of a plan may read the works
        self.slowness = slowness
        self.clock = clock
        if slowness is not None and clock is None:
            raise UnderloadError("slowness depends on when a step begins; give the engine's clock, too")
        self.vocabulary = vocabulary
        self.seed = seed
        self._answers: dict[Request, _Answer] = {}  # of live requests
        self._said: dict[int, list[Sampled]] = {}  # by id
        self.output_tokens = dict(output_tokens or {})
        if vocabulary < 1:
            raise UnderloadError(f"a vocabulary has at least 1 token, got {vocabulary}")
        if short := [name for name, tokens in self.output_tokens.items() if tokens < 1]:
            raise UnderloadError(
                f"request {short[0]!r} answers with {self.output_tokens[short[0]]} tokens; every answer has at least 1"
            )

    def check(self, request: Request) -> None:
        """A model of a cost takes any request."""

    def execute(self, plan: Plan) -> StepResult:
        """The tokens of a plan, and how long it took."""
        sampled: list[list[Sampled]] = []
        answers, said = self._answers, self._said
        for work in plan.work:
            sequence, samples = work.sequence, work.samples
            request = sequence.request
            assert request is not None
            answer = answers.get(request) or self._answer(request)
            at = len(sequence.tokens) - sequence.prompt_len
            if samples == 1 and at + 1 < answer.most:
                known = answer.known[sequence.index]
                token_id = known[at] if at < len(known) else answer.id(sequence.index, at)
                sampled.append(said.get(token_id) or self._say(token_id))
            else:
                reason = FinishReason.STOP if at + 1 >= answer.most else None
                sampled.append([Sampled(answer.id(sequence.index + k, at), reason) for k in range(samples)])
        carried: list[int] = []
        stopped: set[Sequence] = set()
        for sequence in plan.carried:
            request = sequence.request
            answer = answers.get(request) or self._answer(request)  # type: ignore[arg-type]
            at = len(sequence.tokens) - sequence.prompt_len
            known = answer.known[sequence.index]
            carried.append(known[at] if at < len(known) else answer.id(sequence.index, at))
            if at + 1 >= answer.most:
                stopped.add(sequence)
        duration = self.step_time(plan)
        if self.slowness is not None and self.clock is not None:
            now = self.clock.now()
            duration = self.slowness.end(now, duration) - now
        return StepResult(sampled, duration=duration, carried=carried, stopped=stopped)

    def release(self, request: Request) -> None:
        self._answers.pop(request, None)

    def repeat(
        self, sequences: list[Sequence], most: int, first: StepRecord, now: float, until: float
    ) -> tuple[list[list[int]], list[bool], list[float]] | None:
        """Steps in which all decode, as `engine.Executor` says."""
        durations_of = self._run_of_steps
        if durations_of is None or now >= until:
            return None
        answers = []
        for sequence in sequences:
            request = sequence.request
            assert request is not None
            answer = self._answers.get(request) or self._answer(request)
            at = len(sequence.tokens) - sequence.prompt_len
            answers.append((answer, sequence.index, at))
            if answer.most - at < most:
                most = answer.most - at
        ends: list[float] = []
        # Where something may come between, not all at once: times that are replayed in order would be lost.
        count = most if until == math.inf else 1
        while len(ends) < most and now < until:
            for duration in durations_of(first, count):
                # As a single step says, and to the same bit: a duration first, and then an instant.
                now += duration if self.slowness is None else self.slowness.end(now, duration) - now
                ends.append(now)
            first.context_tokens += count * first.decode_tokens
            first.score_pairs += count * first.decode_tokens
        k = len(ends)
        ids = [answer.ids(index, at, at + k) for answer, index, at in answers]
        return ids, [at + k >= answer.most for answer, _, at in answers], ends

    def _say(self, token_id: int) -> list[Sampled]:
        """A draw of this id that ends nothing, which is one and the same whenever it comes: there are millions."""
        said = self._said[token_id] = [Sampled(token_id)]
        return said

    def _answer(self, request: Request) -> _Answer:
        name, most = request.request_id, request.params.max_tokens
        tokens = self.output_tokens.get(name, most)
        # An answer that is cut off has not stopped, and only the scheduler knows of the limit.
        answer = self._answers[request] = _Answer(
            hash_of(self.seed, name), tokens if tokens < most else most + 1, len(request.sequences), self.vocabulary
        )
        return answer


class _Answer:
    """The tokens of a request's answers, made a stretch at a time.

    most: tokens at which each of them stops.
    known: of each sample, those made so far.
    """

    __slots__ = ("_key", "_vocabulary", "known", "most")

    def __init__(self, key: int, most: int, samples: int, vocabulary: int) -> None:
        self.most = most
        self._key = key
        self._vocabulary = vocabulary
        self.known: list[list[int]] = [[] for _ in range(samples)]

    def id(self, sample: int, at: int) -> int:
        known = self.known[sample]
        if at >= len(known):
            self._extend(sample, at + 1)
        return known[at]

    def ids(self, sample: int, start: int, stop: int) -> list[int]:
        known = self.known[sample]
        if stop > len(known):
            self._extend(sample, stop)
        return known[start:stop]

    def _extend(self, sample: int, stop: int) -> None:
        known = self.known[sample]
        stop = max(stop, min(2 * len(known) + 256, self.most))
        places = _places(sample, 1 << (stop - 1).bit_length())[len(known) : stop]
        drawn = mix64_of(places ^ np.uint64(self._key))
        known += (drawn % np.uint64(self._vocabulary)).tolist()


@lru_cache(64)
def _places(sample: int, count: int) -> NDArray[np.uint64]:
    """A number for each of the first positions of a sample, whoever's it is."""
    return mix64_of(np.arange(count, dtype=np.uint64) | np.uint64(sample << 40))


def mix64_of(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`mix64` of every number of an array."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def mix64(x: int) -> int:
    """A 64-bit number that looks random and is a function of another: splitmix64's output step (Steele, Lea and Flood,
    "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014)."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def hash_of(seed: int, name: str) -> int:
    """A 64-bit number of a seed and a name, the same in every process."""
    value = mix64(seed & _MASK)
    data = name.encode("utf-8", "surrogatepass")
    for start in range(0, len(data), 8):
        value = mix64(value ^ int.from_bytes(data[start : start + 8], "little"))
    return mix64(value ^ len(data))
