"""Weights as the tile reads them: panels of 16 outputs, [out / 16, in, 16], all matrices end to end in one array.

    one layer    q heads | k heads | v heads | o | gate 0, up 0, gate 1, up 1, ... | down        the head comes last

Sizes are rounded up to whole panels with zeros: hidden and intermediate size to multiples of 16, each attention head to
a multiple of 16 on its own, the vocabulary likewise. Zeros in, zeros out: the padding changes no result.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from underload.decoder.fast.tile import LANES
from underload.decoder.weights import LayerWeights, Weights
from underload.shapes import ModelShape

# What NumPy, which knows no bfloat16, holds a number of each dtype in.
BITS = {torch.float32: torch.float32, torch.float16: torch.int16, torch.bfloat16: torch.uint16}


def wide(n: int) -> int:
    """n rounded up to whole panels."""
    return -(-n // LANES) * LANES


def as_numpy(tensor: Tensor) -> np.ndarray:
    """The tensor's values (float32) or bits (float16 as int16, bfloat16 as uint16), flat, without a copy."""
    return tensor.detach().contiguous().view(BITS[tensor.dtype]).numpy().reshape(-1)


@dataclass(frozen=True)
class Packed:
    """All matrices, flat, and all small vectors (norms, biases) as float32.

    vectors, one layer: attention norm, MLP norm, biases of every q, k, v head, query norm, key norm;
    then the last norm.
    """

    matrices: np.ndarray
    vectors: np.ndarray
    layer_matrices: int  # elements of one layer in `matrices`
    layer_vectors: int  # and in `vectors`


def pack(shape: ModelShape, weights: Weights) -> Packed:
    """Copy a model's weights into panels; they keep their dtype."""
    hidden, inner, head = wide(shape.hidden_size), wide(shape.intermediate_size), wide(shape.head_dim)
    heads, all_heads = shape.num_heads, shape.num_heads + 2 * shape.num_kv_heads
    layer_matrices = hidden * head * (all_heads + heads) + 3 * inner * hidden
    layer_vectors = 2 * hidden + (all_heads + 2) * head
    vocab = wide(shape.vocab_size)
    matrices = torch.from_numpy(
        np.empty(shape.num_layers * layer_matrices + vocab * hidden, dtype=_numpy_bits(weights.embed))
    )
    matrices = matrices.view(weights.embed.dtype)
    vectors = torch.zeros(shape.num_layers * layer_vectors + hidden)

    for index, layer in enumerate(weights.layers):
        out = matrices[index * layer_matrices : (index + 1) * layer_matrices]
        parts = [_heads_out(part.weight, shape.head_dim, head) for part in (layer.q, layer.k, layer.v)]
        at = 0
        for part in parts:
            at = _put(part, hidden, out, at)
        at = _put(_heads_in(layer.o.weight, shape.head_dim, head), heads * head, out, at, rows=hidden)
        both = torch.zeros(inner // LANES, 2, LANES, hidden, dtype=out.dtype)
        for i, linear in enumerate((layer.gate, layer.up)):
            padded = torch.zeros(inner, hidden, dtype=out.dtype)
            padded[: shape.intermediate_size, : shape.hidden_size] = linear.weight
            both[:, i] = padded.view(-1, LANES, hidden)
        at = _put(both.view(2 * inner, hidden), hidden, out, at)
        _put(layer.down.weight, inner, out, at, rows=hidden)
        _vectors(vectors[index * layer_vectors : (index + 1) * layer_vectors], layer, shape, hidden, head)
    _put(weights.head, hidden, matrices[shape.num_layers * layer_matrices :], 0, rows=vocab)
    vectors[shape.num_layers * layer_vectors :][: shape.hidden_size] = weights.norm.float()
    return Packed(as_numpy(matrices), vectors.numpy(), layer_matrices, layer_vectors)


def _numpy_bits(tensor: Tensor) -> np.dtype:
    return torch.empty(0, dtype=BITS[tensor.dtype]).numpy().dtype


def _put(matrix: Tensor, wide_in: int, out: Tensor, at: int, rows: int | None = None) -> int:
    """Write a [out, in] matrix as panels at `at`, padded to `rows` and `wide_in`; returns where it ends."""
    rows = rows or matrix.shape[0]
    place = out[at : at + rows * wide_in].view(rows // LANES, wide_in, LANES)
    whole, rest = divmod(matrix.shape[0], LANES)
    n = matrix.shape[1]
    if n < wide_in or rows > matrix.shape[0]:
        place.zero_()
    place[:whole, :n] = matrix[: whole * LANES].view(whole, LANES, n).transpose(1, 2)
    if rest:
        place[whole, :n, :rest] = matrix[whole * LANES :].T
    return at + rows * wide_in


def _heads_out(weight: Tensor, dim: int, head: int) -> Tensor:
    """[heads x dim, in] -> [heads x head, in]: each head's outputs padded."""
    if dim == head:
        return weight
    padded = torch.zeros(weight.shape[0] // dim, head, weight.shape[1], dtype=weight.dtype)
    padded[:, :dim] = weight.view(-1, dim, weight.shape[1])
    return padded.view(-1, weight.shape[1])


def _heads_in(weight: Tensor, dim: int, head: int) -> Tensor:
    """[out, heads x dim] -> [out, heads x head]: each head's inputs padded."""
    if dim == head:
        return weight
    padded = torch.zeros(weight.shape[0], weight.shape[1] // dim, head, dtype=weight.dtype)
    padded[..., :dim] = weight.view(weight.shape[0], -1, dim)
    return padded.view(weight.shape[0], -1)


def _vectors(out: Tensor, layer: LayerWeights, shape: ModelShape, hidden: int, head: int) -> None:
    out[: shape.hidden_size] = layer.attention_norm.float()
    out[hidden : hidden + shape.hidden_size] = layer.mlp_norm.float()
    per_head = out[2 * hidden :].view(-1, head)
    at = 0
    for part, heads in ((layer.q, shape.num_heads), (layer.k, shape.num_kv_heads), (layer.v, shape.num_kv_heads)):
        if part.bias is not None:
            per_head[at : at + heads, : shape.head_dim] = part.bias.float().view(heads, shape.head_dim)
        at += heads
    for norm in (layer.q_norm, layer.k_norm):
        if norm is not None:
            per_head[at, : shape.head_dim] = norm.float()
        at += 1
