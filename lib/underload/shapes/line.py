"""The straight line that step times follow, T(B) = o + Bt, and what follows from it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from underload.request.errors import UnderloadError


@dataclass(frozen=True)
class StepLine:
    """T(B) = o + Bt: `o` seconds whoever is in the step, `t` seconds more for each sequence.

    throughput  X(B) = B / (o + Bt)      rises towards 1/t, and never reaches it
    knee        B = o/t                  X is half of 1/t there; past it, growing the batch by 1 % adds less than
                                         half a percent of throughput and more than half a percent of step time
    """

    o: float  # s
    t: float  # s a sequence

    def step_time(self, batch_size: float) -> float:
        """Seconds a step takes with `batch_size` sequences in it."""
        return self.o + batch_size * self.t

    def throughput(self, batch_size: float) -> float:
        """Sequences' tokens a second, B / T(B)."""
        return batch_size / self.step_time(batch_size)

    @property
    def knee(self) -> float:
        """The batch size o/t: throughput is half of what it can ever be, and a step takes twice `o`."""
        if self.t <= 0:
            raise UnderloadError(
                f"a line with t = {self.t:.3g} s has no knee: its throughput grows for ever; t must be positive"
            )
        return self.o / self.t

    def batch_for_share(self, share: float) -> float:
        """The batch size at which throughput is `share` of 1/t: share/(1 - share) x o/t.

        Raises:
            UnderloadError: a share that no batch size reaches (1 or more), or not above 0.
        """
        if not 0 < share < 1:
            raise UnderloadError(f"throughput reaches a share of 1/t strictly between 0 and 1, got {share}")
        return share / (1 - share) * self.knee

    def batch_for_step_time(self, seconds: float) -> int:
        """The largest batch whose step takes at most `seconds`; 0 when not even a single sequence does."""
        if self.t <= 0:
            raise UnderloadError(f"a line with t = {self.t:.3g} s has no largest batch; t must be positive")
        # The tolerance keeps a batch that meets the limit exactly: (0.06 - 0.04) / 0.002 is 9.99..., not 10.
        return max(0, int((seconds - self.o) / self.t + 1e-9))


def fit_step_time(batch_sizes: Sequence[float], seconds: Sequence[float]) -> StepLine:
    """The line through measured step times that makes the *relative* errors least, in the sense of least squares.

    Relative, because a step of 200 ms that is 5 % off should not outweigh one of 20 ms that is 5 % off: plain least
    squares would let the largest batches decide and leave `o`, which the small ones tell, to chance.

    Raises:
        UnderloadError: lists of unlike length, fewer than two different batch sizes, or a time that is not positive.
    """
    sizes, times = np.asarray(batch_sizes, dtype=float), np.asarray(seconds, dtype=float)
    if sizes.shape != times.shape:
        raise UnderloadError(f"{sizes.size} batch sizes but {times.size} times; give one time for each")
    if len(set(sizes.tolist())) < 2:
        raise UnderloadError(
            f"a line needs times at two different batch sizes at least, got {sorted(set(sizes.tolist()))}"
        )
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise UnderloadError(f"step times must be positive and finite, got {times.tolist()}")
    columns = np.stack([1 / times, sizes / times], axis=1)
    (o, t), *_ = np.linalg.lstsq(columns, np.ones_like(times), rcond=None)
    return StepLine(float(o), float(t))
