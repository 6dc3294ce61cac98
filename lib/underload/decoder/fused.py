"""The small steps between a decoder's matrix products, each in one pass over its numbers.

A decode step has hundreds of them, and each separate operation costs a launch and a trip through memory, which take
longer than its arithmetic. Rows do not know of each other, so that both serve `batch_invariant=True`.
"""

import torch
from torch import Tensor

from underload.decoder.optional import require

_TILE = 1024  # numbers that one program of `silu_mul` takes


def add_rms_norm(x: Tensor, change: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x + change, and `invariant.rms_norm` of it: both [..., size], bitwise what the two would give one by one."""
    require("triton", "fused=True")
    from underload.decoder import kernels

    x, change = x.contiguous(), change.contiguous()
    size = x.shape[-1]
    total, out = torch.empty_like(x), torch.empty_like(x)
    if x.numel():
        with torch.cuda.device_of(x):  # Triton launches on the current device, wherever the tensors are
            kernels.add_rms_norm[(x.numel() // size,)](
                x, change, weight, total, out, eps, SIZE=size, TILE=1 << (size - 1).bit_length(), num_warps=4
            )
    return total, out


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) x up, element by element; of one shape and dtype."""
    require("triton", "fused=True")
    from underload.decoder import kernels

    gate, up = gate.contiguous(), up.contiguous()
    out = torch.empty_like(gate)
    if gate.numel():
        with torch.cuda.device_of(gate):
            kernels.silu_mul[(-(-gate.numel() // _TILE),)](gate, up, out, gate.numel(), TILE=_TILE, num_warps=4)
    return out
