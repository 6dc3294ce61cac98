"""The least time a step can take, and the batch at which the binding limit changes."""

import math
from dataclasses import dataclass

from underload.request.errors import UnderloadError
from underload.shapes.cost import StepCost
from underload.shapes.model import ModelShape


@dataclass(frozen=True)
class Roofline:
    """A lower bound on a step's time: it reads and computes at once, and the slower of the two decides
    (Williams et al., "Roofline: An Insightful Visual Performance Model", CACM 2009)."""

    memory_seconds: float
    compute_seconds: float

    @property
    def seconds(self) -> float:
        """The least time of the step, in seconds: the longer of the two."""
        return max(self.memory_seconds, self.compute_seconds)

    @property
    def bound(self) -> str:
        """Which limit binds: "memory" or "compute"."""
        return "memory" if self.memory_seconds >= self.compute_seconds else "compute"


def roofline(cost: StepCost, *, bandwidth: float, flops: float) -> Roofline:
    """The bound for one step on a machine that reads `bandwidth` bytes/s and computes `flops` FLOP/s."""
    return Roofline(memory_seconds=cost.bytes / bandwidth, compute_seconds=cost.flops / flops)


def critical_batch(*, bandwidth: float, flops: float, weight_bytes: float = 2) -> float:
    """B*: the decode batch at which computing takes as long as reading the weights, KV reads left out.

    A weight costs 2 FLOPs a sequence and `weight_bytes` bytes a step, so B* = (flops / bandwidth) x weight_bytes / 2.
    Dense models only: an expert of a mixture sees a share of the batch.
    """
    return flops / bandwidth * weight_bytes / 2


def critical_batch_with_kv(
    shape: ModelShape, context: int, *, bandwidth: float, flops: float, weight_bytes: float = 2, kv_bytes: float = 2
) -> float:
    """B* when each sequence also reads `context` tokens of keys and values; infinite when those reads alone keep
    memory behind compute at any batch size. All weights count as read, attention FLOPs are left out."""
    compute = 2 * shape.num_parameters / flops  # s a sequence
    kv = shape.kv_bytes_per_token(kv_bytes) * context / bandwidth  # s a sequence
    weights = shape.weight_bytes(weight_bytes) / bandwidth  # s a step
    return weights / (compute - kv) if compute > kv else math.inf


def sequences_that_fit(
    shape: ModelShape,
    context: int,
    memory: float,
    *,
    weight_bytes: float = 2,
    kv_bytes: float = 2,
    usable: float = 0.9,
    block_size: int = 1,
) -> int:
    """How many sequences of `context` tokens fit beside the weights; 0 when the weights alone do not.

    Args:
        memory: bytes of the device.
        usable: share of it that weights and cache may take.
        block_size: tokens a block; a sequence takes whole blocks.

    Raises:
        UnderloadError: a context, block size or share that makes no sense.
    """
    if context < 1 or block_size < 1 or not 0 < usable <= 1:
        raise UnderloadError(
            f"context ({context}) and block_size ({block_size}) must be at least 1, usable ({usable}) in (0, 1]"
        )
    free = memory * usable - shape.weight_bytes(weight_bytes)
    blocks = math.ceil(context / block_size)
    # Blocks are handed out whole, from the whole pool: the pool is cut first, then shared out.
    pool = math.floor(free / (block_size * shape.kv_bytes_per_token(kv_bytes)))
    return max(pool, 0) // blocks
