"""What a batching policy may see and do while it fills one step."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING

from underload.request import OutOfBlocks, Request, Sequence, SequenceState
from underload.scheduling.plan import Plan, Work

if TYPE_CHECKING:
    from underload.scheduling.scheduler import Scheduler

_RUNNING = SequenceState.RUNNING


class Step:
    """One step, being filled. Good until `fill` returns.

    now: s.
    budget: tokens that may still go into the step; padding counts.
    closing: no more requests are known to come, so that there is no use in waiting for company.
    preempted: whether a sequence was put back to make room in this step.
    """

    def __init__(self, scheduler: Scheduler, plan: Plan, now: float, closing: bool) -> None:
        self.now = now
        self.budget = scheduler.max_num_batched_tokens
        self.closing = closing
        self.preempted = False
        self.until: float | None = None
        self._scheduler = scheduler
        self._plan = plan
        self._running = scheduler.running
        if plan.carried:
            self.budget -= len(plan.carried)
            carried = set(plan.carried)
            self._running = [sequence for sequence in scheduler.running if sequence not in carried]

    # ---- what there is -------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> SequenceOf[Sequence]:
        """Sequences without blocks, first in the queue first. The list changes as sequences are admitted."""
        return self._scheduler.waiting

    @property
    def running(self) -> SequenceOf[Sequence]:
        """Sequences with blocks, in the order of the queue, but those that the plan carries. Running through it while
        it changes is your own risk."""
        return self._running

    @property
    def prompts(self) -> list[Sequence]:
        """Running sequences that have more than one token to compute: prompts, and what is computed again."""
        return [
            sequence
            for sequence in self._running
            if len(sequence.tokens) + sequence.num_drawing - sequence.num_scheduled > 1
        ]

    @property
    def held(self) -> SequenceOf[Sequence]:
        """Finished members of a static batch that is not over."""
        return self._scheduler.held

    @property
    def free_slots(self) -> int:
        """Sequences that may run besides."""
        return self._scheduler.max_num_seqs - self._scheduler.num_slots

    @property
    def free_blocks(self) -> int:
        """Blocks that are free, or cached and could be evicted."""
        pool = self._scheduler.pool
        return pool.num_blocks - pool.num_used

    @property
    def num_work(self) -> int:
        """Sequences that the step computes tokens of, so far."""
        return len(self._plan.work) + len(self._plan.carried)

    def behind(self, sequence: Sequence) -> int:
        """Tokens that a running sequence has still to compute; 1 for one that decodes, 0 for one in a plan."""
        return len(sequence.tokens) + sequence.num_drawing - sequence.num_scheduled

    # ---- what can be done ----------------------------------------------------------------------------------------

    def run(self, sequence: Sequence, tokens: int) -> int:
        """Let a running sequence compute its next tokens, `tokens` at most and no more than the budget has left.

        Blocks are taken, from others if need be: some running sequences may wait afterwards, and even this one.

        Returns:
            Tokens computed; 0 if it runs no more, has nothing to compute, or finds no blocks.
        """
        before = self.budget
        self.run_each((sequence,), tokens)
        return before - self.budget

    def run_each(self, sequences: Iterable[Sequence], tokens: int, *, whole: bool = False) -> None:
        """`run` for several, one after the other, while the budget lasts.

        Args:
            whole: leave out those whose tokens do not all fit what the budget has left.
        """
        # Most of a simulation's time is spent here and in `Scheduler.commit`, once for each sequence and step: so
        # nothing is looked up, and nobody asked, that need not be.
        scheduler, take = self._scheduler, self._plan.work.append
        unseen, names_blocks, ready = scheduler.unseen, scheduler.names_blocks, scheduler.pool.ready
        budget, turn = self.budget, scheduler.turns
        for sequence in sequences:
            if not budget:
                break
            start, known = sequence.num_scheduled, len(sequence.tokens)
            end = known + sequence.num_drawing
            count = end - start
            if count > tokens or count > budget:
                if whole and count > budget:
                    continue
                count = min(tokens, budget)
            if count <= 0 or sequence.state is not _RUNNING:
                continue
            request, table = sequence.request, sequence.table
            if request is not None and (request.cancelled or (request.aborts and self._would_mix(request))):
                continue
            assert table is not None
            stop = start + count
            written = stop <= sequence.own_until or (count == 1 and ready(table, start))
            if not written and not self._make_room(sequence, stop):
                continue
            samples, last = 0, False
            if stop == end:
                samples = 1 if sequence.index or stop > sequence.prompt_len else sequence.width
                last = stop + 1 >= sequence.max_len
                if unseen is not None and samples == 1 and not last and unseen(sequence):
                    sequence.num_drawing += 1
            sequence.num_scheduled = stop
            sequence.last_turn = turn
            turn += 1
            # Else no block gets full that is not known, or nobody can tell yet what will be in it.
            if names_blocks and (table.num_hashed + 1) * table.block_size <= stop <= known:
                scheduler.pool.announce(table, sequence.chain, stop)
            take(Work(sequence, start, stop, samples, last))
            budget -= count
        self.budget, scheduler.turns = budget, turn

    def admit(self, sequence: Sequence, tokens: int, *, whole: bool = False) -> int | None:
        """Take a waiting sequence out of the queue: a slot, blocks for all tokens it has, and work for `tokens` of
        them at most.

        Args:
            whole: only if all that is not cached can be computed in this step.

        Returns:
            Tokens computed (0 where none were wanted); None if it has to wait: no slot, no blocks, or the admission
            says so. The first in the queue that cannot run even alone fails, and is in the queue no more.
        """
        scheduler = self._scheduler
        request = sequence.request
        if sequence.state is not SequenceState.WAITING:
            return None
        if tokens and request is not None and request.aborts and self._would_mix(request):
            return None
        if not scheduler.may_begin(sequence):
            # Others may be behind it, but nobody is before it who could still make room.
            alone = not (scheduler.running or scheduler.held or scheduler.ending)
            if alone and sequence is scheduler.waiting[0]:
                scheduler.refuse_for_good(sequence, self.now)
            return None
        if whole:
            known = scheduler.pool.cached_tokens(sequence.chain, len(sequence.tokens))
            if len(sequence.tokens) - max(known, sequence.host_tokens) > min(tokens, self.budget):
                return None
        scheduler.begin(sequence, self._plan, self.now)
        return self.run(sequence, tokens)

    def admit_in_order(self, *, whole: bool = False) -> None:
        """Admit from the front of the queue, with all tokens that the budget has left, until one has to wait.

        Nobody is admitted where somebody was preempted in this step: that one is the first to wait, and would take
        back what it gave.
        """
        while self.budget and self.waiting and not (self.preempted and self.num_work):
            first = self.waiting[0]
            if self.admit(first, self.budget, whole=whole) is None and self.waiting and self.waiting[0] is first:
                return

    def hold(self) -> None:
        """The finished members of the batch keep their rows: one token of padding each."""
        self._plan.held = list(self.held)
        self.pad(len(self._plan.held))

    def pad(self, tokens: int) -> None:
        """Compute that many tokens for nothing."""
        self._plan.padding_tokens += tokens
        self.budget -= tokens

    def wait_until(self, instant: float) -> None:
        """If nothing is to be computed now: ask again at `instant` (s), unless something happens before."""
        self.until = instant if self.until is None else min(self.until, instant)

    # ---- inside --------------------------------------------------------------------------------------------------

    def _would_mix(self, request: Request) -> bool:
        """Whether the request is under suspicion, and so is another in this step. Where steps keep failing, those that
        were in them go one a step: whoever is to blame then fails alone, and the others clear themselves."""
        least = self._scheduler.suspicious
        if request.aborts < least:
            return False
        others = (work.sequence.request for work in self._plan.work)
        return any(one is not None and one is not request and one.aborts >= least for one in others)

    def _make_room(self, sequence: Sequence, stop: int) -> bool:
        """Blocks for the tokens up to `stop`, its own to write; whether there were any left by preempting others."""
        scheduler, plan, table = self._scheduler, self._plan, sequence.table
        pool = scheduler.pool
        assert table is not None
        while True:
            try:
                pool.append(table, stop)
                copies = pool.write(table, sequence.num_scheduled, stop)
            except OutOfBlocks:
                victim = scheduler.choose_victim(sequence, plan)
                if victim is not None:
                    self.preempted = True
                    scheduler.preempt(victim, plan, self.now)
                if victim is None or victim is sequence:
                    return False
                continue
            if copies:
                plan.copies += copies
                plan.copied.append(sequence)
            sequence.own_until = -(-stop // table.block_size) * table.block_size
            return True
