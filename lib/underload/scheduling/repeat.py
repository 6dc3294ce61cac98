"""Decode steps that are like the one before, taken at once.

Most steps of a serving engine differ from the one before by nothing but a token more for everybody. Where it is certain
beforehand that k of them will follow, a simulation need not ask k times who runs: it appends k tokens to each sequence
and moves the clock k times. What it must not skip are the borders of blocks, where a sequence takes a block, perhaps
one that is evicted for it, and where a block gets full and can be found from then on. They are replayed in the order
in which single steps would have come to them, so that the pool, and every record, is the same afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from underload.request import FinishReason, Sequence

if TYPE_CHECKING:
    from underload.scheduling.scheduler import Scheduler


class Blocks(NamedTuple):
    """Blocks of the pool after a step."""

    used: int
    free: int
    cached: int


class Repeat:
    """Steps to come in which each of `sequences` decodes, in that order, and nothing else happens.

    most: how many will follow for certain, unless a request comes or a sequence stops. With the last of them a sequence
        may get as long as it is allowed to.
    held: finished members of a static batch, whose rows are kept.
    """

    def __init__(self, scheduler: Scheduler, sequences: list[Sequence], held: list[Sequence], most: int) -> None:
        self.sequences = sequences
        self.held = held
        self._scheduler = scheduler
        pool = scheduler.pool
        size = pool.block_size
        # By the step in which it happens, modulo the block size: who writes into a new block, and who fills one that
        # can be found from then on.
        self._opens: list[list[Sequence]] = [[] for _ in range(size)]
        self._fills: list[list[Sequence]] = [[] for _ in range(size)]
        names_blocks = scheduler.names_blocks
        for sequence in sequences:
            opening = -sequence.num_computed % size
            self._opens[opening].append(sequence)
            if names_blocks:
                self._fills[opening - 1].append(sequence)
        room = pool.num_blocks - pool.num_used
        if len(sequences) * (-(-most // size)) > room:
            for step in range(most):
                room -= len(self._opens[step % size])
                if room < 0:
                    most = step
                    break
        self.most = most

    @property
    def context_tokens(self) -> int:
        """Keys that the first of the steps reads."""
        kept = sum(sequence.num_computed for sequence in self.held)
        return sum(sequence.num_computed for sequence in self.sequences) + len(self.sequences) + kept

    def commit(self, ids: list[list[int]], stopped: list[bool], ends: list[float]) -> list[Blocks]:
        """The steps were carried out.

        Args:
            ids: for each sequence, the tokens drawn in these steps.
            stopped: for each, whether the last of its tokens ends it.
            ends: the instants at which the steps ended.

        Returns:
            The pool's blocks after each of them.
        """
        scheduler, pool, sequences, k = self._scheduler, self._scheduler.pool, self.sequences, len(ends)
        size, now = pool.block_size, ends[-1]
        turn = scheduler.turns + (k - 1) * len(sequences)
        for place, (sequence, drawn) in enumerate(zip(sequences, ids)):
            sequence.tokens += drawn
            sequence.last_turn = turn + place
            if not sequence.index and sequence.request is not None:
                sequence.request.timeline.token_times += ends
        scheduler.turns += k * len(sequences)
        states: list[Blocks] = []
        state = Blocks(pool.num_used, pool.num_free, pool.num_cached)
        for step in range(k):
            opens, fills = self._opens[step % size], self._fills[step % size]
            if opens:  # unless it has the block already, as one that came back from the host
                tables = [(sequence.table, sequence.num_computed + step) for sequence in opens]
                pool.grow([table for table, position in tables if table and table.capacity <= position])
            if step == k - 1:
                break
            for sequence in fills:
                assert sequence.table is not None
                pool.publish(sequence.table, sequence.chain, sequence.num_computed + step + 1)
            if opens or fills:
                state = Blocks(pool.num_used, pool.num_free, pool.num_cached)
            states.append(state)
        # In the last step some may finish, each before the next one's block becomes known.
        for sequence, stops in zip(sequences, stopped):
            table = sequence.table
            assert table is not None
            sequence.num_computed = sequence.num_scheduled = computed = sequence.num_computed + k
            if computed > sequence.own_until:
                sequence.own_until = table.capacity
            if fills and not computed % size:
                pool.publish(table, sequence.chain, computed)
            if stops or computed + 1 >= sequence.max_len:
                scheduler.end_if_complete(sequence, FinishReason.STOP if stops else None, now)
        scheduler.steps_taken(k)
        states.append(Blocks(pool.num_used, pool.num_free, pool.num_cached))
        return states
