"""What passes between a scheduler and an executor: a plan, and what came of it."""

from dataclasses import dataclass, field
from typing import Any

from underload.request import FinishReason, Sequence


@dataclass(slots=True, eq=False)
class Work:
    """Compute `sequence.tokens[start:stop]`, their keys and values into the sequence's blocks.

    samples: tokens to draw from the last one's logits. 0 while more of the prompt is to come; n where a prompt of n
    samples ends; 1 otherwise.

    last: there is no room for a token after the one that is drawn, so that no text need be held back for it.
    """

    sequence: Sequence
    start: int
    stop: int
    samples: int = 1
    last: bool = False

    @property
    def num_tokens(self) -> int:
        return self.stop - self.start

    @property
    def decodes(self) -> bool:
        """Whether it is the one token that the sequence drew last."""
        return self.start >= self.sequence.prompt_len and self.stop == self.start + 1 and self.samples > 0


@dataclass(eq=False)
class Plan:
    """One step, as data. Its block tables are those of the sequences: valid until the plan is committed or aborted.

    An executor does four things in this order, so that a block may leave for the host and be filled again in one step:

        swap_out   device block -> host block
        copies     device block -> device block: a shared block that is about to be written
        swap_in    host block -> device block
        work       in this order; a later one may read blocks that an earlier one fills

    A batch that is held together to its end wastes some of the step, and pays for it: `padding_tokens` are computed
    beside the work and thrown away. One is for each sequence in `held`, which is finished and keeps its row: its
    context is read, and nothing is written. The others lengthen prompts that are shorter than the longest.

    Where nobody looks at the works (`Scheduler.schedule`), those who decode one more token, and have the room for it,
    may be named in `carried` alone, and in no work. They come before all works.

    How large the step is, it says in the names of `request.StepSize`, summed up when the plan is complete.
    """

    number: int
    work: list[Work] = field(default_factory=list)
    swap_out: list[tuple[int, int]] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    swap_in: list[tuple[int, int]] = field(default_factory=list)
    held: list[Sequence] = field(default_factory=list)
    carried: list[Sequence] = field(default_factory=list)
    queue_length: int = 0  # sequences still waiting

    batch_size: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    padding_tokens: int = 0
    context_tokens: int = 0
    score_pairs: int = 0
    logit_rows: int = 0

    # What undoing it takes.
    admitted: list[Sequence] = field(default_factory=list, repr=False)
    copied: list[Sequence] = field(default_factory=list, repr=False)
    left: list[Sequence] = field(default_factory=list, repr=False)  # preempted to the host
    checked: Any = field(default=None, repr=False)  # the result that was found to fit it

    @property
    def num_tokens(self) -> int:
        """Tokens of its work; padding comes on top."""
        return self.prefill_tokens + self.decode_tokens

    def sum_up(self) -> None:
        """Work and held sequences are complete: count them."""
        decodes = prefill = context = pairs = rows = 0
        for work in self.work:
            stop, new = work.stop, work.stop - work.start
            context += stop
            if new == 1:
                pairs += stop
                if work.samples and work.start >= work.sequence.prompt_len:
                    decodes += 1
                else:
                    prefill += 1
            else:
                prefill += new
                pairs += new * (stop - new) + new * (new + 1) // 2
            if work.samples:
                rows += 1
        kept = sum([sequence.num_computed for sequence in self.held])
        read = sum([sequence.num_scheduled for sequence in self.carried])
        carried = len(self.carried)
        self.batch_size = len(self.work) + len(self.held) + carried
        self.prefill_tokens, self.decode_tokens, self.logit_rows = prefill, decodes + carried, rows + carried
        self.context_tokens, self.score_pairs = context + kept + read, pairs + kept + read


@dataclass(frozen=True)
class Idle:
    """Nothing can be computed now, and nothing will change by itself before `until` (s); None: not before a request
    comes or a plan is committed."""

    until: float | None = None


@dataclass(slots=True)
class Sampled:
    """One token drawn, whether it ends its sequence, and the text that can be shown now.

    An executor says STOP (only it sees what was said) and ERROR (with a message; the token counts for nothing then);
    the limits on length are the scheduler's. `draw` carries log-probabilities and the like through to the caller.
    One object may stand in several results, so that who wants another takes a copy.
    """

    token_id: int
    finish_reason: FinishReason | None = None
    text: str = ""
    error: str | None = None
    draw: Any = None


@dataclass
class StepResult:
    """What came of a plan.

    sampled: for each work of the plan, in order, as many tokens as it has samples.
    carried: an id for each of those that the plan carries.
    stopped: those of them that end with it.
    duration: s that the step took, by which a virtual clock moves; None where the clock saw it pass.
    bytes_read, flops: what the step had to move and do, where the executor knows its model's shape.
    """

    sampled: list[list[Sampled]]
    duration: float | None = None
    bytes_read: float = 0.0
    flops: float = 0.0
    carried: list[int] = field(default_factory=list)
    stopped: set[Sequence] = field(default_factory=set)
