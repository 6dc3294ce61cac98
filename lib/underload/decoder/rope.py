"""Rotary positions: each pair of channels turns by an angle that grows with the token's position.

Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021), section 3.2. Channels are paired
half a head apart, (i, i + head_dim / 2), as Llama checkpoints on the Hugging Face hub store them.
"""

import math

import torch
from torch import Tensor

from underload.shapes import ModelShape


def inverse_frequencies(shape: ModelShape) -> Tensor:
    """Turning speed of each channel pair in radians per token, [head_dim / 2] float32 on the CPU."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    inverse = 1.0 / (shape.rope_theta**exponents)
    scaling = shape.rope_scaling
    if scaling is None:
        return inverse
    # Slow pairs never finished a turn within the original context: slow them by `factor`, so that the longer context
    # looks like the old one to them. Fast pairs have seen every angle: leave them. Between the two, blend.
    turns = scaling.original_max_positions * inverse / (2 * math.pi)
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0, 1)
    return blend * inverse + (1 - blend) * inverse / scaling.factor


def cos_sin(inverse: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines of every position's angles: two of [tokens, head_dim / 2], float32."""
    angles = positions.to(torch.float32)[:, None] * inverse
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn every head of `x` [tokens, heads, head_dim] by its token's angles, in float32; the result has x's dtype."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]  # the same angle for every head
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
