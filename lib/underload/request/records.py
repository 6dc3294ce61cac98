"""The two records that every figure, metric and test reads: one a request, one a step."""

from dataclasses import dataclass, field
from typing import Protocol


class StepSize(Protocol):
    """How much a step has to do: all that its time depends on. A plan has it before, a `StepRecord` after the step.

    batch_size: sequences in the step, with those whose row is only kept.
    prefill_tokens: tokens of prompts, and of outputs that are computed again.
    decode_tokens: one a sequence that is past its prompt.
    padding_tokens: computed and thrown away.
    context_tokens: keys and values read, summed over sequences.
    score_pairs: pairs of a query and a key that it may look at.
    logit_rows: tokens whose logits are wanted.
    """

    @property
    def batch_size(self) -> int: ...
    @property
    def prefill_tokens(self) -> int: ...
    @property
    def decode_tokens(self) -> int: ...
    @property
    def padding_tokens(self) -> int: ...
    @property
    def context_tokens(self) -> int: ...
    @property
    def score_pairs(self) -> int: ...
    @property
    def logit_rows(self) -> int: ...


@dataclass(slots=True)
class Timeline:
    """Every instant of one request, in seconds on one clock; None until it has happened.

        arrival      the client wanted to send (intended: a late client must not hide a wait)
        sent         the client really sent
        queued       tokenised, and waiting to be scheduled
        scheduled    the first step that computes tokens for it begins
        prefills     of each step that computed tokens of its prompt, or of its output again: the instant at which it
                     ended, and from which token to before which
        preempted    the instants at which its blocks were taken from it
        token_times  one instant per output token, when it was handed to the client; the tokens of one chunk share it
        finished     the last of its text was delivered

    With n > 1 samples, `prefills`, `preempted` and `token_times` are those of the first one.
    """

    arrival: float
    sent: float | None = None
    queued: float | None = None
    scheduled: float | None = None
    prefills: list[tuple[float, int, int]] = field(default_factory=list)
    preempted: list[float] = field(default_factory=list)
    token_times: list[float] = field(default_factory=list)
    finished: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens taken from the prefix cache
    preemptions: int = 0
    detokenize_seconds: float = 0.0  # spent turning this request's ids into text, in total
    finish_reason: str | None = None

    @property
    def first_token(self) -> float | None:
        return self.token_times[0] if self.token_times else None

    @property
    def last_token(self) -> float | None:
        return self.token_times[-1] if self.token_times else None

    @property
    def output_tokens(self) -> int:
        return len(self.token_times)


@dataclass(slots=True)
class StepRecord:
    """One step of a model: how much was computed (the names of `StepSize`), how long, at what cost in bytes and FLOPs.

    `bytes_read` and `flops` are what the step must move and do by the shape of the model
    (`underload.shapes.step_cost`), so that bytes_read / duration can be set against a measured ceiling.
    """

    start: float  # s
    duration: float  # s
    batch_size: int
    prefill_tokens: int = 0
    decode_tokens: int = 0
    padding_tokens: int = 0
    context_tokens: int = 0
    score_pairs: int = 0
    logit_rows: int = 0
    blocks_used: int = 0
    blocks_free: int = 0
    blocks_cached: int = 0
    queue_length: int = 0
    bytes_read: float = 0.0
    flops: float = 0.0

    @property
    def num_tokens(self) -> int:
        """Tokens that went through the model."""
        return self.prefill_tokens + self.decode_tokens + self.padding_tokens
