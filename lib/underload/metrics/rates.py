"""How hard the machine worked in a step, set against the most it can do; and the line that step times lie on."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from underload.request.errors import UnderloadError
from underload.request.records import StepRecord


@dataclass(frozen=True)
class StepRates:
    """What one or several steps achieved. Fractions are of the ceilings given; None where none was."""

    seconds: float
    tokens_per_second: float  # computed for somebody: prompt and output, no padding
    bytes_per_second: float
    flops_per_second: float
    bandwidth_fraction: float | None = None
    flops_fraction: float | None = None


def step_rates(
    steps: StepRecord | Iterable[StepRecord], *, bandwidth: float | None = None, flops: float | None = None
) -> StepRates | None:
    """Achieved bytes/s and FLOP/s of one step, or of several as a whole (their sums divided, so long steps weigh more).

    Args:
        steps: records; their `bytes_read` and `flops` are what the model's shape demands, not what counters saw.
        bandwidth: the ceiling for reading, bytes/s.
        flops: the ceiling for computing, FLOP/s.

    None for no steps, or steps that took no time. A fraction above 1 says that the ceiling is too low, or that the
    data lay in a cache.
    """
    steps = [steps] if isinstance(steps, StepRecord) else list(steps)
    seconds = sum(step.duration for step in steps)
    if seconds <= 0:
        return None
    bytes_per_second = sum(step.bytes_read for step in steps) / seconds
    flops_per_second = sum(step.flops for step in steps) / seconds
    return StepRates(
        seconds=seconds,
        tokens_per_second=sum(step.prefill_tokens + step.decode_tokens for step in steps) / seconds,
        bytes_per_second=bytes_per_second,
        flops_per_second=flops_per_second,
        bandwidth_fraction=bytes_per_second / bandwidth if bandwidth else None,
        flops_fraction=flops_per_second / flops if flops else None,
    )


@dataclass(frozen=True)
class StepTimeFit:
    """T(B) = o + B t, fitted: what a step costs whoever is in it, and what each sequence adds."""

    overhead: float  # o, s
    per_item: float  # t, s
    residuals: tuple[float, ...]  # measured - fitted, s, one per point

    def seconds(self, batch_size: float) -> float:
        """T(B)."""
        return self.overhead + self.per_item * batch_size

    @property
    def rms_residual(self) -> float:
        """Root mean square of the residuals, s."""
        return float(np.sqrt(np.mean(np.square(self.residuals))))


def fit_step_time(batch_sizes: Sequence[float], seconds: Sequence[float]) -> StepTimeFit:
    """The straight line with the least squared error through (batch size, step time) points.

    It always finds a line; look at the residuals to see whether there is one.

    Raises:
        UnderloadError: fewer than two different batch sizes, or lists of different lengths.
    """
    if len(batch_sizes) != len(seconds):
        raise UnderloadError(f"{len(batch_sizes)} batch sizes but {len(seconds)} step times; give one time per size")
    if len(set(batch_sizes)) < 2:
        raise UnderloadError(f"a line needs two different batch sizes, got {sorted(set(batch_sizes))}")
    b, y = np.asarray(batch_sizes, dtype=float), np.asarray(seconds, dtype=float)
    slope = float(((b - b.mean()) * (y - y.mean())).sum() / ((b - b.mean()) ** 2).sum())
    overhead = float(y.mean() - slope * b.mean())
    return StepTimeFit(overhead, slope, tuple((y - (overhead + slope * b)).tolist()))
