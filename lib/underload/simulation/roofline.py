"""The least time that a step can take on a device."""

from __future__ import annotations

from dataclasses import dataclass, field

from underload.request import StepSize, UnderloadError
from underload.shapes import Device, ModelShape, sized_cost
from underload.simulation.step_time import growth


@dataclass(frozen=True)
class RooflineStepTime:
    """By the bytes that a step must move or by its FLOPs, whichever takes longer, and `overhead` (s) on top.

    Williams et al., "Roofline" (CACM 2009). Counted as `shapes.sized_cost` counts; padding is computed and neither read
    from the cache nor written to it. Copies of blocks are not in it, nor what is swapped (`SwapStepTime`).

    Args:
        weight_bytes, kv_bytes: bytes that a weight and a cached value are stored in.

    Raises:
        UnderloadError: a negative overhead, or nothing to store a weight or a value in.
    """

    shape: ModelShape
    device: Device
    weight_bytes: float = 2
    kv_bytes: float = 2
    overhead: float = 0.0
    # `shapes.sized_cost`, taken apart: a simulation asks for every step.
    _layers: float = field(init=False, repr=False, compare=False)
    _head: float = field(init=False, repr=False, compare=False)
    _embedding: float = field(init=False, repr=False, compare=False)
    _kv: float = field(init=False, repr=False, compare=False)
    _token_flops: float = field(init=False, repr=False, compare=False)
    _row_flops: float = field(init=False, repr=False, compare=False)
    _pair_flops: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.overhead < 0 or self.weight_bytes <= 0 or self.kv_bytes <= 0:
            raise UnderloadError(
                f"overhead must be at least 0 s, weight_bytes and kv_bytes above 0, got {self.overhead}, "
                f"{self.weight_bytes} and {self.kv_bytes}"
            )
        nothing, token, context, pair, row = (
            sized_cost(self.shape, *size, weight_bytes=self.weight_bytes, kv_bytes=self.kv_bytes)
            for size in ((0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1))
        )
        for name, value in (
            ("_layers", nothing.weight_bytes),
            ("_head", row.weight_bytes - nothing.weight_bytes),
            ("_embedding", token.weight_bytes - nothing.weight_bytes),
            ("_kv", context.kv_bytes),
            ("_token_flops", token.matrix_flops),
            ("_row_flops", row.matrix_flops),
            ("_pair_flops", pair.attention_flops),
        ):
            object.__setattr__(self, name, value)

    def __call__(self, step: StepSize) -> float:
        return self._seconds(step, 0)

    def run(self, step: StepSize, k: int) -> list[float]:
        return [self._seconds(step, more) for more in growth(step, k)]

    def _seconds(self, step: StepSize, more: int) -> float:
        """`more` keys, values and pairs than the step itself has."""
        new = step.prefill_tokens + step.decode_tokens
        tokens = new + step.padding_tokens
        if not tokens:
            return self.overhead  # copies alone
        rows = step.logit_rows
        moved = (
            self._layers
            + (self._head if rows else 0.0)
            + self._embedding * min(tokens, self.shape.vocab_size)
            + self._kv * (step.context_tokens + more + new)
        )
        flops = self._token_flops * tokens + self._row_flops * rows + self._pair_flops * (step.score_pairs + more)
        return self.overhead + max(moved / self.device.bandwidth, flops / self.device.flops)
