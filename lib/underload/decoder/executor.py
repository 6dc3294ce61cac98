"""Plans on the real decoder."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from underload.decoder.batch import Batch, Tables
from underload.decoder.continuation import Continuation, check_request
from underload.decoder.drawing import Drawing
from underload.decoder.graph import DecodeGraphs, decode_graphs
from underload.decoder.kv import HostKV, KVStorage, check_size
from underload.decoder.measure import batch_cost
from underload.decoder.model import Model
from underload.decoder.sampling import BadLogits, Draw
from underload.request import Clock, FinishReason, InvalidRequest, Request, Sequence, UnderloadError, WallClock
from underload.scheduling import Plan, Sampled, StepResult


class DecoderExecutor:
    """Runs a scheduler's plans on a model (`engine.AheadExecutor`).

    A step is the copies that the plan owes, one forward pass over the tokens of all its sequences, and a draw for each
    that has reached its end. What is kept between steps is a continuation for each sample; it follows from the
    sequence's tokens, so that a step may fail anywhere and be tried again, and a sequence that was preempted and
    computed again says nothing twice.

    A plan that is launched behind others takes the tokens that those draw from where they drew them. On a GPU that is
    on the device, and the host sees none of them in between.

    Args:
        num_blocks, block_size: of the pool that the scheduler plans with.
            The cache has one block more, into which tokens that are thrown away are written.
        kv_dtype: what keys and values are stored in, as in `Model.new_kv`.
        host_blocks: blocks on the host for swapped sequences, those of the scheduler's host pool.
        clock: times the making of text; the wall when None.
        graphs: decode by captured graphs. "auto": where there is a GPU and its kernels; should a graph fail to be
            captured there, with a warning, without.

    Raises:
        UnderloadError: a model without weights, a cache without blocks, or graphs=True where there can be none.
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
        graphs: str | bool = "auto",
    ) -> None:
        if model.device.type == "meta":
            raise UnderloadError(f"{model.shape.name} is on device 'meta', which holds no weights; load it on 'cpu'")
        check_size(num_blocks, block_size)
        self.model = model
        self.max_model_len: int | None = model.shape.max_positions
        self.kv: KVStorage = model.new_kv(num_blocks + 1, block_size, kv_dtype)
        self._scratch = num_blocks
        self.host: HostKV = self.kv.new_host(host_blocks)
        self.clock = clock or WallClock()
        self.graphs: DecodeGraphs | None = decode_graphs(model, self.kv, self._scratch, graphs)
        self._flights: deque[_Flight] = deque()
        self._spare: list[Tables] = []
        self._continuations: dict[Request, list[Continuation]] = {}
        self._choosy: set[Request] = set()  # those who do not just take the likeliest token

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
        self.forget(0)
        self.launch(plan)
        return self.collect()

    def launch(self, plan: Plan) -> None:
        """Begin what the plan says, behind the plans that were begun before. On a GPU this returns while it computes;
        on a CPU the forward pass is done then.

        Raises: as `execute`; the plan was not begun then.
        """
        self.kv.swap_out(plan.swap_out, self.host)
        self.kv.copy_blocks(plan.copies)
        self.kv.swap_in(plan.swap_in, self.host)
        if not plan.work and not plan.held:
            self._flights.append(_Flight(plan, [], None))
            return

        ahead = any(work.stop > len(work.sequence.tokens) for work in plan.work)
        places, drawn = self._drawn() if ahead else ({}, None)
        tables = self._spare.pop() if self._spare else Tables()
        batch = Batch.of_plan(plan, tables, self._scratch, places, drawn)
        speakers: list[tuple[Continuation, bool]] = []  # with whether the token is the last there is room for
        rows: list[int] = []
        row = 0
        for work in plan.work:
            if work.samples == 1:
                speakers.append((self._of(work.sequence)[work.sequence.index], work.last))
                rows.append(row)
            elif work.samples:  # where a prompt's samples part ways
                speakers += [(one, work.last) for one in self._of(work.sequence)]
                rows += [row] * work.samples
            else:
                continue
            row += 1
        states = [one.state for one, _ in speakers]
        drawing = Drawing(self.model, batch, self.kv, states, rows, self.graphs)
        cost = batch_cost(self.model, self.kv, batch)  # on a GPU, while it computes
        self._flights.append(_Flight(plan, speakers, drawing, tables, cost.bytes, cost.flops))

    def collect(self) -> StepResult:
        """What came of the step that was launched first, of those not collected; waits for it.

        Raises:
            UnderloadError: none was.
        """
        if not self._flights:
            raise UnderloadError("no step is under way; launch a plan, then collect what came of it")
        flight = self._flights.popleft()
        if flight.drawing is None:
            return StepResult([])
        sampled = iter(self._say(flight.speakers, flight.drawing.take()))
        if flight.tables is not None:
            self._spare.append(flight.tables)
        return StepResult(
            [[next(sampled) for _ in range(work.samples)] for work in flight.plan.work],
            bytes_read=flight.bytes_read,
            flops=flight.flops,
        )

    def forget(self, kept: int) -> None:
        """Drop all steps under way but the first `kept`."""
        while len(self._flights) > kept:
            self._flights.pop()

    def unseen(self, sequence: Sequence) -> bool:
        """Whether the sequence can go on from a token that was drawn and not collected yet: where it is the likeliest.

        While there is anybody who chooses otherwise, nobody goes ahead. A step of the others alone takes as long as one
        of all, and who waits for his token would be in every second one.
        """
        self._of(sequence)
        return not self._choosy

    def release(self, request: Request) -> None:
        """Forget the request's samples."""
        self._continuations.pop(request, None)
        self._choosy.discard(request)

    def _drawn(self) -> tuple[dict[Sequence, int], Tensor | None]:
        """The tokens of all steps under way, end to end, and where in them the latest of each sequence is."""
        places: dict[Sequence, int] = {}
        drawn: list[Tensor] = []
        before = 0
        for flight in self._flights:
            if flight.drawing is not None:
                for (continuation, _), row in zip(flight.speakers, flight.drawing.rows, strict=True):
                    places[continuation.state.sequence] = before + row
                drawn.append(flight.drawing.drawn)
                before += len(drawn[-1])
        return places, torch.cat(drawn) if len(drawn) > 1 else drawn[0] if drawn else None

    def _of(self, sequence: Sequence) -> list[Continuation]:
        """What continues each sample of the sequence's request."""
        request = sequence.request
        found = self._continuations.get(request) if request is not None else None
        if found is None:
            if request is None:
                raise UnderloadError("a sequence in a plan must belong to a request; make it with Request(...)")
            found = self._continuations[request] = Continuation.of(self.model, request)
            if not found[0].state.takes_argmax:
                self._choosy.add(request)
        return found

    def _say(self, speakers: list[tuple[Continuation, bool]], draws: list[Draw | BadLogits]) -> list[Sampled]:
        said = []
        timed = self.model.tokenizer is not None
        before = self.clock.now() if timed else 0.0
        for (continuation, last), drawn in zip(speakers, draws, strict=True):
            if continuation.state.sequence.finished:  # in a step that was collected after this one was launched
                said.append(Sampled(-1))
                continue
            if isinstance(drawn, BadLogits):
                said.append(Sampled(-1, FinishReason.ERROR, error=str(drawn)))
                continue
            try:
                text, ends = continuation.say(drawn.token_id, last=last)
            except InvalidRequest as error:
                said.append(Sampled(drawn.token_id, FinishReason.ERROR, error=str(error), draw=drawn))
                continue
            said.append(Sampled(drawn.token_id, FinishReason.STOP if ends else None, text, draw=drawn))
            if timed and (request := continuation.state.sequence.request) is not None:
                now = self.clock.now()
                request.timeline.detokenize_seconds += now - before
                before = now
        return said


@dataclass(slots=True)
class _Flight:
    """A step under way.

    speakers: who says the tokens that are drawn, with whether there is room for one more.
    drawing: None where nothing is computed.
    tables: what the drawing's batch has its block tables in, and nobody else meanwhile.
    """

    plan: Plan
    speakers: list[tuple[Continuation, bool]]
    drawing: Drawing | None
    tables: Tables | None = None
    bytes_read: float = 0.0
    flops: float = 0.0
