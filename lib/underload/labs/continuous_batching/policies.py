"""What the tasks ask for: batching policies, an admission and a choice of victim, as the scheduler takes them."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

from underload.cache import Pool
from underload.request import Sequence
from underload.scheduling import Batching, Step


class Joining(Batching):
    """Everybody who runs computes; whoever waits joins, in order, until one has to wait."""

    def fill(self, step: Step) -> None:
        for sequence in list(step.running):
            step.run(sequence, step.behind(sequence))
        _join(step, step.budget)


class Chunked(Batching):
    """First a token for each that decodes, then prompts, in order, with `chunk` tokens of prompts a step at most."""

    def __init__(self, chunk: int) -> None:
        self.chunk = chunk

    def fill(self, step: Step) -> None:
        by_turn = sorted(step.running, key=lambda sequence: sequence.last_turn)
        prompts = [sequence for sequence in step.running if step.behind(sequence) > 1]
        for sequence in by_turn:
            if step.behind(sequence) == 1:
                step.run(sequence, 1)
        left = self.chunk
        for sequence in prompts:
            left -= step.run(sequence, left)
        _join(step, left)


def _join(step: Step, tokens: int) -> None:
    """Admit from the front of the queue, with so many tokens in all."""
    while tokens > 0 and step.budget and step.waiting and not step.preempted:
        count = step.admit(step.waiting[0], tokens)
        if count is None:
            return
        tokens -= count


class Headroom:
    """Lets a sequence begin if all that run, and it, could grow to a typical answer."""

    grows_only_stricter = False

    def __init__(self, typical: float) -> None:
        self.typical = typical

    def admits(self, sequence: Sequence, holding: SequenceOf[Sequence], pool: Pool) -> bool:
        blocks = 0
        for one in [*holding, sequence]:
            tokens = min(max(len(one.tokens), one.prompt_len + self.typical), one.max_len)
            blocks += -(-int(tokens) // pool.block_size)
        return blocks <= pool.num_blocks


class Spread:
    """Who was preempted least often goes; among those, who has least to compute again, and then the last to come."""

    def choose(self, candidates: Iterable[Sequence], pool: Pool) -> Sequence | None:
        return min(candidates, key=lambda one: (one.preemptions, one.num_computed), default=None)


class Quick(Batching):
    """Of those that wait, the one that needs least goes first; each second of waiting makes up for `aging` tokens."""

    def __init__(self, aging: float = 300.0) -> None:
        self.aging = aging

    def fill(self, step: Step) -> None:
        for sequence in list(step.running):
            step.run(sequence, step.behind(sequence))

        def need(sequence: Sequence) -> float:
            assert sequence.request is not None
            return sequence.max_len + self.aging * sequence.request.timeline.arrival

        for sequence in sorted(step.waiting, key=need):
            if step.preempted or not step.budget or step.admit(sequence, step.budget) is None:
                return
