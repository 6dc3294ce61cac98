"""A request, and the sequences it grows into."""

from dataclasses import dataclass, field
from enum import StrEnum

from underload.request.errors import InvalidRequest
from underload.request.params import SamplingParams
from underload.request.records import Timeline


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"  # a stop token, a stop string, or the model's end of text
    LENGTH = "length"  # max_tokens reached, or no room left in the context
    CANCELLED = "cancelled"  # the client went away
    ERROR = "error"  # it failed, by name, and alone


@dataclass
class BlockTable:
    """Which cache blocks hold a sequence's keys and values.

    Token `p` lies in block `blocks[p // block_size]`, at offset `p % block_size`.
    """

    block_size: int
    blocks: list[int] = field(default_factory=list)

    def slot(self, position: int) -> int:
        """The flat slot, block x block_size + offset, of the token at `position`."""
        return self.blocks[position // self.block_size] * self.block_size + position % self.block_size

    @property
    def capacity(self) -> int:
        """Tokens that fit into the blocks held now."""
        return len(self.blocks) * self.block_size


@dataclass
class Sequence:
    """One sample of a request as it grows.

    There is no prefill phase and no decode phase: `num_computed`, the tokens whose keys and values lie in the
    cache, catches up with `len(tokens)`. While it is further than one behind, that is prefill; one behind, decode.

        tokens   [ prompt ........ | output ........ ]
                 [0, num_computed)  in the cache
                 [num_computed, num_scheduled)  in a plan that has not been committed yet
                 [num_scheduled, len(tokens))   still to be scheduled
    """

    prompt_len: int
    tokens: list[int]
    index: int = 0
    num_computed: int = 0
    num_scheduled: int = 0
    table: BlockTable | None = None
    logprobs: list[dict[int, float]] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    @property
    def output_ids(self) -> list[int]:
        return self.tokens[self.prompt_len :]

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class Request:
    """What a client asked, with the sequences (n samples) that answer it.

    Raises:
        InvalidRequest: an empty prompt.
    """

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    timeline: Timeline
    sequences: list[Sequence] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise InvalidRequest(f"request {self.request_id!r} has an empty prompt; give at least one token")
        if not self.sequences:
            self.sequences = [
                Sequence(prompt_len=len(self.prompt_ids), tokens=list(self.prompt_ids), index=i)
                for i in range(self.params.n)
            ]
        self.timeline.prompt_tokens = len(self.prompt_ids)
