"""How long a step takes, by a model of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from underload.request import UnderloadError
from underload.scheduling import Plan
from underload.shapes import Device, ModelShape, roofline, step_cost


class StepTime(Protocol):
    """s that a plan takes."""

    def __call__(self, plan: Plan) -> float: ...


@dataclass(frozen=True)
class LinearStepTime:
    """overhead + per_token x tokens computed + per_context_token x keys and values read, all in s.

    The first two terms are the line o + Bt of a decode step at a short context; the third is what a long one adds.

    Raises:
        UnderloadError: a negative term, or a step that takes no time at all.
    """

    overhead: float
    per_token: float
    per_context_token: float = 0.0

    def __post_init__(self) -> None:
        terms = (self.overhead, self.per_token, self.per_context_token)
        if min(terms) < 0 or not sum(terms) > 0:
            raise UnderloadError(f"a step takes some time and no term of it is negative, got {terms} s")

    def __call__(self, plan: Plan) -> float:
        tokens = plan.num_tokens + plan.padding_tokens
        return self.overhead + self.per_token * tokens + self.per_context_token * sum(work.stop for work in plan.work)


@dataclass(frozen=True)
class RooflineStepTime:
    """The least time that a step can take on a device: by the bytes it must move or by its FLOPs, whichever is more.

    Williams et al., "Roofline" (CACM 2009), over `shapes.step_cost`. Blocks that go to the host or come back, and
    copies of blocks, are not in it. `overhead` (s) is added to every step.
    """

    shape: ModelShape
    device: Device
    weight_bytes: float = 2
    kv_bytes: float = 2
    overhead: float = 0.0

    def __call__(self, plan: Plan) -> float:
        if not plan.work:
            return self.overhead
        cost = step_cost(
            self.shape,
            [work.stop - work.start for work in plan.work],
            [work.stop for work in plan.work],
            logit_rows=sum(work.samples > 0 for work in plan.work),
            weight_bytes=self.weight_bytes,
            kv_bytes=self.kv_bytes,
        )
        return self.overhead + roofline(cost, bandwidth=self.device.bandwidth, flops=self.device.flops).seconds
