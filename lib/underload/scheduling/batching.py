"""Who computes how many tokens in a step: the policies for forming batches.

    Continuous      everybody who can, anew at every step
    Static          full batches of a size, each held together to its end
    SizeOrTimeout   the same, and a batch leaves earlier once its first member has waited for long enough
    Greedy          the same, and nobody waits who could be served: whoever is there makes the batch

A policy is an object with one method, `fill(step)`: it looks at who waits and who runs, and gives them tokens of the
step's budget (`scheduling.Step`). It keeps nothing between steps, so it can be changed between two.
"""

from __future__ import annotations

import math

from underload.request import Request, Sequence, UnderloadError
from underload.scheduling.admission import Admission, FitsNow, ReserveAll
from underload.scheduling.step import Step

PREFILL = ("decode-first", "mixed", "prefill-first")


class Batching:
    """Fills steps; the base of those here and of a reader's own.

    keeps_finished: finished members of a batch keep their rows and blocks until nobody of it runs any more, and nobody
        is admitted before.
    repeats: where all running sequences decoded in a step and nobody can be admitted, the next step is the same again,
        so that a simulation may take several at once (`repeat`).
    """

    keeps_finished = False
    repeats = False

    def __init_subclass__(cls, **more: object) -> None:
        # What is promised of one `fill` is not promised of another.
        super().__init_subclass__(**more)
        if "fill" in vars(cls):
            if "repeats" not in vars(cls):
                cls.repeats = False
            if "carries" not in vars(cls) and cls.carries is not Batching.carries:
                cls.carries = Batching.carries  # type: ignore[method-assign]

    def fill(self, step: Step) -> None:
        """Give the step its work.

        Nobody has to be served. But where nobody is although requests are live, the policy says until when
        (`step.wait_until`), or it waits for a request to come; with `step.closing` none will.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method fill(self, step)")

    def carries(self, decoding: int, running: int) -> bool:
        """Whether those who decode, so many of all who run, come first in the next step, each with a token; a
        simulation may then take them together (`Scheduler.schedule`). Asked where the budget is enough for all."""
        return False

    def admission(self) -> Admission:
        """What decides on admission where the scheduler was given nothing else."""
        return FitsNow()

    def refuses(self, request: Request, most_tokens: int, budget: int) -> str | None:
        """Why a request could never be served, whose sequences come to compute `most_tokens` at most; or None."""
        return None


class Continuous(Batching):
    """Sequences join and leave between any two steps (iteration-level scheduling: Yu et al., "Orca", OSDI 2022).

    Args:
        chunked_prefill: a prompt longer than what the budget has left is computed in several steps (Agrawal et al.,
            "Sarathi-Serve", OSDI 2024). Without, a prompt is computed in one, for which the budget has to suffice, and
            goes before those that decode, or it might never find room beside them.
        prefill: whose tokens the budget goes to first. "decode-first": running sequences that need one token, then
            prompts partly computed, then the queue. "mixed": running sequences in the order of the queue, prompts
            partly computed among them, then the queue. "prefill-first": prompts, those of the queue included; where
            there are any, nobody decodes in that step.

    Where the budget is smaller than the number of running sequences, those go first that have waited longest.

    Raises:
        UnderloadError: another word for `prefill`.
    """

    repeats = True

    def __init__(self, *, chunked_prefill: bool = True, prefill: str = "decode-first") -> None:
        if prefill not in PREFILL:
            raise UnderloadError(f"prefill must be one of {', '.join(PREFILL)}, got {prefill!r}")
        self.chunked_prefill = chunked_prefill
        self.prefill = prefill

    def carries(self, decoding: int, running: int) -> bool:
        first = self.prefill == "decode-first" or (self.prefill == "mixed" and decoding == running)
        return self.chunked_prefill and first

    def refuses(self, request: Request, most_tokens: int, budget: int) -> str | None:
        if self.chunked_prefill or most_tokens <= budget:
            return None
        return (
            f"without chunked prefill a sequence has to fit one step, and its {most_tokens} tokens are more than "
            f"max_num_batched_tokens = {budget}; raise that, lower max_tokens, or chunk the prefill"
        )

    def fill(self, step: Step) -> None:
        running = list(step.running)
        prompts = step.prompts
        behind = set(prompts)
        decoding = [sequence for sequence in running if sequence not in behind] if behind else list(running)
        if len(running) > step.budget:
            decoding.sort(key=_last_turn)
            running.sort(key=_last_turn)
        whole = not self.chunked_prefill
        if whole or self.prefill == "prefill-first":
            step.run_each(prompts, step.budget, whole=whole)
            step.admit_in_order(whole=whole)
            if not (step.num_work and self.prefill == "prefill-first"):
                step.run_each(decoding, step.budget, whole=whole)
            return
        step.run_each(running if self.prefill == "mixed" else decoding + prompts, step.budget)
        step.admit_in_order()


class _Gathering(Batching):
    """One batch at a time: it gathers in the queue, computes its prompts in step, padded to the longest, and decodes
    until its longest member is done. Finished members keep their rows and blocks for as long.

    A batch leaves when `size` sequences wait, when `timeout` s have passed since the first of those waiting arrived,
    or when no more requests are to come. Members that do not fit into the pool together wait for the next.
    """

    keeps_finished = True
    repeats = True

    def __init__(self, size: int, timeout: float) -> None:
        if size < 1:
            raise UnderloadError(f"size must be at least 1, got {size}")
        if not timeout >= 0:
            raise UnderloadError(f"timeout must be at least 0 s, got {timeout}")
        self.size = size
        self.timeout = timeout

    def admission(self) -> Admission:
        return ReserveAll()

    def refuses(self, request: Request, most_tokens: int, budget: int) -> str | None:
        most, samples = min(self.size, budget), len(request.sequences)
        if samples <= most:
            return None
        return (
            f"n = {samples} samples are more than a batch has rows (size {self.size}, max_num_batched_tokens "
            f"{budget}); ask for fewer, or make batches larger"
        )

    def fill(self, step: Step) -> None:
        if not step.running and not step.held:
            self._gather(step)
        rows = [sequence for sequence in step.running if step.behind(sequence)]
        if not rows:
            return
        longest = max(map(step.behind, rows))
        # All rows go the same way in a step. Tokens that a row does not have come before its own, as padding:
        #   row of 3     . . . a a a        row of 6     b b b b b b        computed two columns at a time
        width = min(longest, max(1, step.budget // (len(rows) + len(step.held))))
        padding = 0
        for sequence in rows:
            own = max(0, step.behind(sequence) - (longest - width))
            padding += width - step.run(sequence, own)
        if step.num_work:
            step.hold()
            step.pad(padding + (width - 1) * len(step.held))

    def _gather(self, step: Step) -> None:
        waiting = step.waiting
        if not waiting:
            return
        most = min(self.size, step.budget)  # a row is a token a step
        if sum(sequence.width for sequence in waiting) < most and not step.closing:
            leaves = min(_arrival(sequence) for sequence in waiting) + self.timeout
            if step.now < leaves:
                if leaves < math.inf:
                    step.wait_until(leaves)
                return
        gathered = 0
        while waiting and (not gathered or gathered + waiting[0].width <= most):
            first = waiting[0]
            if step.admit(first, 0) is not None:
                gathered += first.width
            elif waiting and waiting[0] is first:
                return


class Static(_Gathering):
    """Full batches: nobody is served before `size` sequences wait, or before no more are to come."""

    def __init__(self, size: int) -> None:
        super().__init__(size, math.inf)


class SizeOrTimeout(_Gathering):
    """A batch leaves when it is full, or `timeout` s after the first of those waiting arrived."""

    def __init__(self, size: int, timeout: float) -> None:
        super().__init__(size, timeout)


class Greedy(_Gathering):
    """Whenever no batch runs, all who wait leave, up to `size`."""

    def __init__(self, size: int) -> None:
        super().__init__(size, 0.0)


def _last_turn(sequence: Sequence) -> int:
    return sequence.last_turn


def _arrival(sequence: Sequence) -> float:
    return -math.inf if sequence.request is None else sequence.request.timeline.arrival
