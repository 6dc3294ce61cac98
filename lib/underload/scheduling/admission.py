"""Whether the next in the queue may begin now, beyond there being a slot and blocks for what it has.

What it has now always has to fit, or it could not begin. The question is what comes after: running sequences grow, and
when blocks run out one of them is put back and does work twice. Whoever admits late wastes memory; whoever admits
early, work. Where nobody runs, the first in the queue is admitted whatever an admission says.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from underload.cache import Pool
from underload.request import Sequence, UnderloadError
from underload.scheduling.predictor import LengthPredictor

Sequences = SequenceOf[Sequence]


class Admission:
    """Says who may begin; the base of those here and of a reader's own.

    grows_only_stricter: a no stays a no until a running sequence finishes or is preempted; else it may change by
        itself, from step to step.
    """

    grows_only_stricter = False

    def __init_subclass__(cls, **more: object) -> None:
        # What is promised of one `admits` is not promised of another.
        super().__init_subclass__(**more)
        if "admits" in vars(cls) and "grows_only_stricter" not in vars(cls):
            cls.grows_only_stricter = False

    def admits(self, sequence: Sequence, holding: Sequences, pool: Pool) -> bool:
        """Whether `sequence`, for which there is a slot and there are blocks now, may join those in `holding`: the
        sequences that hold blocks, running or held by a static batch."""
        raise NotImplementedError(f"{type(self).__name__} needs a method admits(self, sequence, holding, pool)")


class FitsNow(Admission):
    """What fits now may begin; running sequences may be preempted for it later."""

    grows_only_stricter = True

    def admits(self, sequence: Sequence, holding: Sequences, pool: Pool) -> bool:
        return True


class ReserveAll(Admission):
    """Only what fits if every sequence grows to its limit (prompt + max_tokens): nobody is preempted.

    But for one case: samples of a request that outgrow the pool by themselves. Where nobody runs, it is admitted.
    """

    grows_only_stricter = True

    def admits(self, sequence: Sequence, holding: Sequences, pool: Pool) -> bool:
        promised = sum(_most(one, pool) for one in holding) + _most(sequence, pool)
        return promised <= pool.num_blocks


class Watermark(Admission):
    """Leaves a share of the blocks free or evictable, for those who run already to grow into. (A `watermark` of 0.01
    was vLLM's default in its first engine.)

    Raises:
        UnderloadError: a share outside [0, 1).
    """

    grows_only_stricter = True

    def __init__(self, share: float = 0.01) -> None:
        if not 0 <= share < 1:
            raise UnderloadError(f"share must be at least 0 and below 1, got {share}")
        self.share = share

    def admits(self, sequence: Sequence, holding: Sequences, pool: Pool) -> bool:
        wanted = pool.taken_into_use(sequence.chain, len(sequence.tokens))
        return pool.num_blocks - pool.num_used - wanted >= self.share * pool.num_blocks


class PredictedPeak(Admission):
    """Lays the predicted lengths side by side: as sequences grow and finish, one after the other, the memory they hold
    goes up and down; what counts is its peak (Gong et al., "Past-Future Scheduler for LLM Serving under SLA
    Guarantees", ASPLOS 2025).

    With those that remain longest first, the k-th to the last to finish does so when all k that outlast it have grown
    by what it still had to: sum of their tokens + k x its remainder. Shared blocks count for each that holds them.
    """

    grows_only_stricter = False

    def __init__(self, predictor: LengthPredictor) -> None:
        self.predictor = predictor

    def admits(self, sequence: Sequence, holding: Sequences, pool: Pool) -> bool:
        sizes = sorted((self._remaining(one), len(one.tokens), one.width) for one in [*holding, sequence])
        tokens = count = peak = 0.0
        for remaining, now, width in reversed(sizes):
            tokens += now * width
            count += width
            # On average a sequence's last block is half empty.
            peak = max(peak, (tokens + count * remaining) / pool.block_size + count / 2)
        return peak <= pool.num_blocks

    def _remaining(self, sequence: Sequence) -> float:
        """Tokens still to come, by the prediction; one at least, until it has finished."""
        if sequence.request is None or sequence.finished:
            return 0.0
        done = len(sequence.tokens) - sequence.prompt_len
        return min(max(self.predictor.predict(sequence.request) - done, 1.0), sequence.max_len - len(sequence.tokens))


def _most(sequence: Sequence, pool: Pool) -> int:
    """Blocks that a sequence, with the samples that will fork from it, can come to hold; its last token needs none."""
    return -(-max(sequence.max_len - 1, 1) // pool.block_size) * sequence.width
