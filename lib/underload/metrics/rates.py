"""How hard the machine worked in a step, set against the most it can do."""

from collections.abc import Iterable
from dataclasses import dataclass

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

    Raises:
        UnderloadError: a ceiling not above 0, or a duration that is negative or no number.
    """
    for name, ceiling in (("bandwidth", bandwidth), ("flops", flops)):
        if ceiling is not None and not ceiling > 0:
            raise UnderloadError(
                f"the ceiling {name} must be above 0 per second, got {ceiling}; leave out an unknown one"
            )
    steps = [steps] if isinstance(steps, StepRecord) else list(steps)
    wrong = next((step for step in steps if not 0 <= step.duration < float("inf")), None)
    if wrong is not None:
        raise UnderloadError(f"the step at {wrong.start} s lasts {wrong.duration} s; mend the clock that timed it")
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
        bandwidth_fraction=bytes_per_second / bandwidth if bandwidth is not None else None,
        flops_fraction=flops_per_second / flops if flops is not None else None,
    )
