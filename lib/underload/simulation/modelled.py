"""An executor that computes nothing: a plan takes the time that a model of it says, and lengths come from the load."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from underload.request import FinishReason, Request, Sequence, UnderloadError
from underload.scheduling import Plan, Sampled, StepResult
from underload.simulation.step_time import StepTime

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

    Raises:
        UnderloadError: an answer without a token, or a vocabulary without one.
    """

    max_model_len: int | None = None

    def __init__(
        self,
        step_time: StepTime | Callable[[Plan], float],
        *,
        output_tokens: Mapping[str, int] | None = None,
        vocabulary: int = 32_000,
        seed: int = 0,
    ) -> None:
        self.step_time = step_time
        self.vocabulary = vocabulary
        self.seed = seed
        self._answers: dict[Request, tuple[int, int]] = {}  # of live requests: key of the ids, tokens of the answer
        self._output_tokens = dict(output_tokens or {})
        if vocabulary < 1:
            raise UnderloadError(f"a vocabulary has at least 1 token, got {vocabulary}")
        if short := [name for name, tokens in self._output_tokens.items() if tokens < 1]:
            raise UnderloadError(
                f"request {short[0]!r} answers with {self._output_tokens[short[0]]} tokens; every answer has at least 1"
            )

    def check(self, request: Request) -> None:
        """A model of a cost takes any request."""

    def execute(self, plan: Plan) -> StepResult:
        """The tokens of a plan, and how long it took."""
        sampled = [self._sample(work.sequence, work.samples) for work in plan.work]
        return StepResult(sampled, duration=self.step_time(plan))

    def release(self, request: Request) -> None:
        self._answers.pop(request, None)

    def _sample(self, sequence: Sequence, samples: int) -> list[Sampled]:
        if not samples:
            return []
        request = sequence.request
        assert request is not None
        key, most = self._answers.get(request) or self._answer(request)
        position = len(sequence.tokens) - sequence.prompt_len
        reason = FinishReason.STOP if position + 1 >= most else None
        return [
            Sampled(mix64(key ^ mix64((sequence.index + k) << 40 | position)) % self.vocabulary, reason)
            for k in range(samples)
        ]

    def _answer(self, request: Request) -> tuple[int, int]:
        name, most = request.request_id, request.params.max_tokens
        tokens = self._output_tokens.get(name, most)
        # An answer that is cut off has not stopped, and only the scheduler knows of the limit.
        answer = self._answers[request] = (hash_of(self.seed, name), tokens if tokens < most else most + 1)
        return answer


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
