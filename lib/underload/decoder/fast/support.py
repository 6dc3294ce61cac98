"""Where the fast path can run. Asking needs none of what running needs."""

import importlib
import sys

import torch

from underload.shapes import ModelShape

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def unsupported(shape: ModelShape, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the fast path cannot run this model here, or None if it can. Every shape is supported."""
    if device.type != "cpu":
        return f"it runs on a CPU, not on {device.type}"
    if dtype not in _DTYPES:
        return f"weights must be float32, float16 or bfloat16, not {str(dtype).removeprefix('torch.')}"
    if sys.byteorder != "little":
        return "it assumes a little-endian machine"
    try:
        importlib.import_module("numba")
        tile = importlib.import_module("underload.decoder.fast.tile")
    except ImportError as error:
        return f"numba cannot be imported ({error}); pip install numba"
    return None if tile.HAS_FMA else "this processor has no fused multiply-add (x86 before 2013)"
