"""A request, and the sequences it grows into."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from numbers import Real
from operator import index
from typing import Any

from underload.request.errors import InvalidRequest
from underload.request.params import SamplingParams
from underload.request.records import Timeline

MAX_ID = 2**63 - 1  # ids are kept in 64 bits, with their sign


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"  # a stop token, a stop string, or the model's end of text
    LENGTH = "length"  # max_tokens reached, or no room left in the context
    CANCELLED = "cancelled"  # the client went away
    REFUSED = "refused"  # shed: the queue was full, or it had waited too long
    ERROR = "error"  # it failed, by name, and alone


class SequenceState(StrEnum):
    """Where a sequence stands with the scheduler."""

    WAITING = "waiting"  # holds no block; perhaps some on the host, from which it goes on
    RUNNING = "running"  # holds its blocks, and may be part of the next plan
    FINISHED = "finished"


@dataclass(slots=True)
class BlockTable:
    """Which cache blocks hold a sequence's keys and values.

    Token `p` lies in block `blocks[p // block_size]`, at offset `p % block_size`. The pool that gave the blocks keeps
    in `num_hashed` how many of them, from the first, it can be asked for by their content.
    """

    block_size: int
    blocks: list[int] = field(default_factory=list)
    num_hashed: int = 0

    def slot(self, position: int) -> int:
        """The flat slot, block x block_size + offset, of the token at `position`."""
        return self.blocks[position // self.block_size] * self.block_size + position % self.block_size

    @property
    def capacity(self) -> int:
        """Tokens that fit into the blocks held now."""
        return len(self.blocks) * self.block_size


@dataclass(slots=True, eq=False)
class Sequence:
    """One sample of a request as it grows.

    There is no prefill phase and no decode phase: `num_computed`, the tokens whose keys and values lie in the
    cache, catches up with `len(tokens)`. While it is further than one behind, that is prefill; one behind, decode.

        tokens   [ prompt ........ | output ........ ] and num_drawing more, which plans in flight will draw
                 [0, num_computed)  in the cache
                 [num_computed, num_scheduled)  in plans that have not been committed yet
                 [num_scheduled, len(tokens) + num_drawing)  still to be scheduled

    While it waits it holds no block and both counters are 0; `host_blocks` then hold its first `host_tokens` keys and
    values, if it was swapped out.
    """

    prompt_len: int
    tokens: list[int]
    index: int = 0
    num_computed: int = 0
    num_scheduled: int = 0
    num_drawing: int = 0
    table: BlockTable | None = None
    logprobs: list[dict[int, float]] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    request: Request | None = field(default=None, repr=False, compare=False)
    state: SequenceState = SequenceState.WAITING
    chain: Any = field(default=None, repr=False, compare=False)  # its tokens in blocks (`underload.cache.BlockChain`)
    host_blocks: list[int] = field(default_factory=list)
    host_tokens: int = 0
    preemptions: int = 0
    last_turn: int = -1  # when it was part of a plan last, counted in turns of all sequences
    max_len: int = 0  # tokens it has at most, prompt and output, once a scheduler has taken it
    own_until: int = 0  # tokens not computed yet, before this one: their blocks are there, and nobody else's

    @property
    def output_ids(self) -> list[int]:
        return self.tokens[self.prompt_len :]

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def width(self) -> int:
        """Slots that it takes: before its prompt is done, one for each sample that will fork from it."""
        if self.index or self.request is None or self.request.forked:
            return 1
        return len(self.request.sequences)


@dataclass(slots=True, eq=False)
class Request:
    """What a client asked, with the sequences (n samples) that answer it.

    salt, adapter: two requests share cached keys and values only where both are equal. A salt keeps tenants from seeing
    by the clock what others have asked; an adapter changes the values themselves.

    tenant, priority, deadline: for whoever decides who is next, or who is turned away (`underload.scheduling`). A
    larger priority is more important; a deadline is an instant (s) on the engine's clock.

    The prompt is computed once: the first sequence runs, and the others fork from it when it is done (`forked`).

    Raises:
        InvalidRequest: an empty prompt, one that is not token ids (whole numbers of 64 bits), a salt, adapter or tenant
            that is no text, or a priority or deadline that is no finite number.
    """

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    timeline: Timeline
    sequences: list[Sequence] = field(default_factory=list)
    salt: str = ""
    adapter: str = ""
    tenant: str = ""
    priority: float = 0.0
    deadline: float | None = None
    cancelled: bool = False  # nobody waits for it any more, or it failed: no plan takes it up
    forked: bool = False
    aborts: int = 0  # steps it was part of that failed, since one that did not
    error: str | None = None  # what went wrong, when it failed

    def __post_init__(self) -> None:
        name = self.request_id
        try:
            # Of an array, too; no float passes for an id. What adds up to an int is ints already.
            given = list(self.prompt_ids)
            self.prompt_ids = given if type(sum(given)) is int else list(map(index, given))
        except TypeError as error:
            raise InvalidRequest(
                f"request {name!r}: a prompt is token ids, which are whole numbers: {error}"
            ) from error
        if not self.prompt_ids:
            raise InvalidRequest(f"request {name!r} has an empty prompt; give at least one token")
        least, most = min(self.prompt_ids), max(self.prompt_ids)
        if least < -MAX_ID or most > MAX_ID:
            wrong = least if least < -MAX_ID else most
            raise InvalidRequest(f"request {name!r}: token ids are whole numbers of at most 64 bits, got {wrong}")
        for field_name, value in (("salt", self.salt), ("adapter", self.adapter), ("tenant", self.tenant)):
            if not isinstance(value, str):
                raise InvalidRequest(f"request {name!r}: {field_name} must be a string, got {value!r}")
        for field_name, number in (("priority", self.priority), ("deadline", self.deadline or 0.0)):
            if not isinstance(number, Real) or not math.isfinite(number):
                raise InvalidRequest(f"request {name!r}: {field_name} must be a finite number, got {number!r}")
        if not self.sequences:
            self.sequences = [
                Sequence(prompt_len=len(self.prompt_ids), tokens=list(self.prompt_ids), index=i)
                for i in range(self.params.n)
            ]
        for sequence in self.sequences:
            sequence.request = self
        self.timeline.prompt_tokens = len(self.prompt_ids)

    @property
    def finished(self) -> bool:
        return all(sequence.finished for sequence in self.sequences)
