"""Products and norms whose rows do not know of each other, on a GPU.

A library's matrix product picks another kernel, and with it another order of summation, for another number of rows: the
same token then gets other last bits in another batch. Here one tile configuration serves all, no program shares its
inner sum with another, and a row's result is bitwise the same in every batch. He et al., "Defeating Nondeterminism in
LLM Inference" (Thinking Machines Lab, 2025).
"""

import torch
from torch import Tensor

from underload.decoder.optional import require

_ROWS, _OUTPUTS, _INPUTS = 64, 32, 64  # one tile of `linear`, whatever the number of rows


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [rows, inputs] -> [rows, outputs], summed in float32 from the first input to the last; weight contiguous."""
    require("triton", "batch_invariant=True on a GPU")
    from underload.decoder import kernels

    x = x.contiguous()
    rows, (outputs, inputs) = len(x), weight.shape
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    if not rows:
        return out
    with torch.cuda.device_of(x):  # Triton launches on the current device, wherever the tensors are
        kernels.linear[(-(-rows // _ROWS), -(-outputs // _OUTPUTS))](
            x,
            weight,
            weight if bias is None else bias,
            out,
            rows,
            outputs,
            inputs,
            TILE_ROWS=_ROWS,
            TILE_OUTPUTS=_OUTPUTS,
            TILE_INPUTS=_INPUTS,
            BIAS=bias is not None,
            WIDE=kernels.INTERPRETED or x.dtype == torch.float32,
            num_warps=4,
            num_stages=4,
        )
    return out


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`plain.rms_norm` over the last axis, one program a row."""
    require("triton", "batch_invariant=True on a GPU")
    from underload.decoder import kernels

    x = x.contiguous()
    size = x.shape[-1]
    out = torch.empty_like(x)
    if not x.numel():
        return out
    with torch.cuda.device_of(x):
        kernels.rms_norm[(x.numel() // size,)](
            x, weight, out, eps, SIZE=size, TILE=1 << (size - 1).bit_length(), num_warps=4
        )
    return out
