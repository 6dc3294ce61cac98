"""Plans on the real decoder."""

from __future__ import annotations

import torch

from underload.decoder.batch import Batch
from underload.decoder.continuation import Continuation, check_request, draw
from underload.decoder.kv import HostKV, KVStorage
from underload.decoder.measure import batch_cost
from underload.decoder.model import Model
from underload.decoder.sampling import BadLogits, Draw
from underload.request import Clock, FinishReason, InvalidRequest, Request, Sequence, UnderloadError, WallClock
from underload.scheduling import Plan, Sampled, StepResult


class DecoderExecutor:
    """Runs a scheduler's plans on a model (`engine.Executor`).

    A step is the copies that the plan owes, one forward pass over the tokens of all its sequences, and a draw for each
    that has reached its end. What is kept between steps is a continuation for each sample; it follows from the
    sequence's tokens, so that a step may fail anywhere and be tried again, and a sequence that was preempted and
    computed again says nothing twice.

    Args:
        num_blocks, block_size: of the pool that the scheduler plans with.
        kv_dtype: what keys and values are stored in, as in `Model.new_kv`.
        host_blocks: blocks on the host for swapped sequences, those of the scheduler's host pool.
        clock: times the making of text; the wall when None.

    Raises:
        UnderloadError: a model without weights, or a cache without blocks.
    """

    def __init__(
        self,
        model: Model,
        num_blocks: int,
        block_size: int,
        *,
        kv_dtype: str | torch.dtype | None = None,
        host_blocks: int = 0,
        clock: Clock | None = None,
    ) -> None:
        if model.device.type == "meta":
            raise UnderloadError(f"{model.shape.name} is on device 'meta', which holds no weights; load it on 'cpu'")
        self.model = model
        self.max_model_len: int | None = model.shape.max_positions
        self.kv: KVStorage = model.new_kv(num_blocks, block_size, kv_dtype)
        self.host: HostKV = self.kv.new_host(host_blocks)
        self.clock = clock or WallClock()
        self._continuations: dict[Request, list[Continuation]] = {}

    def check(self, request: Request) -> None:
        """Refuse what would fail a whole step; changes nothing.

        Raises:
            InvalidRequest: token ids outside the vocabulary, or stop strings without a tokenizer.
        """
        try:
            check_request(self.model, request.prompt_ids, request.params)
        except InvalidRequest as error:
            raise InvalidRequest(f"request {request.request_id!r}: {error}") from error

    def execute(self, plan: Plan) -> StepResult:
        """Do what the plan says. The sequences are read and not changed.

        A row without a law to draw from, or a token that the tokenizer does not know, is an error of that sample alone
        (`Sampled.error`).

        Raises:
            UnderloadError: a plan for another cache than this one.
        """
        self.kv.swap_out(plan.swap_out, self.host)
        self.kv.copy_blocks(plan.copies)
        self.kv.swap_in(plan.swap_in, self.host)
        if not plan.work:
            return StepResult([])

        batch = Batch.of_plan(plan)
        speakers: list[tuple[Continuation, bool]] = []  # with whether the token is the last there is room for
        rows: list[int] = []
        row = 0
        for work in plan.work:
            if work.samples:
                speakers += [(one, work.last) for one in self._of(work.sequence, work.samples)]
                rows += [row] * work.samples
                row += 1
        draws = draw(self.model, batch, self.kv, [one.state for one, _ in speakers], rows)
        sampled = iter([self._say(one, drawn, last) for (one, last), drawn in zip(speakers, draws, strict=True)])
        cost = batch_cost(self.model, self.kv, batch)
        return StepResult(
            [[next(sampled) for _ in range(work.samples)] for work in plan.work],
            bytes_read=cost.bytes,
            flops=cost.flops,
        )

    def release(self, request: Request) -> None:
        """Forget the request's samples."""
        self._continuations.pop(request, None)

    def _of(self, sequence: Sequence, samples: int) -> list[Continuation]:
        """What continues the sequence, or all samples of its request where they part ways."""
        request = sequence.request
        if request is None:
            raise UnderloadError("a sequence in a plan must belong to a request; make it with Request(...)")
        found = self._continuations.get(request)
        if found is None:
            found = self._continuations[request] = Continuation.of(self.model, request)
        return found if samples > 1 else [found[sequence.index]]

    def _say(self, continuation: Continuation, drawn: Draw | BadLogits, last: bool) -> Sampled:
        if isinstance(drawn, BadLogits):
            return Sampled(-1, FinishReason.ERROR, error=str(drawn))
        start = self.clock.now()
        try:
            text, ends = continuation.say(drawn.token_id, last=last)
        except InvalidRequest as error:
            return Sampled(drawn.token_id, FinishReason.ERROR, error=str(error), draw=drawn)
        request = continuation.state.sequence.request
        if request is not None:
            request.timeline.detokenize_seconds += self.clock.now() - start
        return Sampled(drawn.token_id, FinishReason.STOP if ends else None, text, draw=drawn)
