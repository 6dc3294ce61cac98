"""The forward pass in plain torch: the one to read, and the oracle the fast ones are held against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from underload.decoder import attention_triton, fused, invariant
from underload.decoder.attention import IMPLEMENTATIONS, paged_attention
from underload.decoder.batch import Batch, fill_in
from underload.decoder.kv import PlainKV
from underload.decoder.rope import cos_sin, inverse_frequencies, rotate
from underload.decoder.weights import LayerWeights, LinearWeights, Weights
from underload.request import UnderloadError
from underload.shapes import ModelShape

Attention = str | Callable[..., Tensor]  # an implementation of `paged_attention` by name, or one's own


@dataclass(frozen=True)
class Inputs:
    """A batch on the device.

    Args:
        token_ids, positions, slots: [tokens] integer.
        logit_rows: [rows] integer, the tokens whose logits are wanted; None: all of them.
        attend: one layer's attention, (q, keys, values) -> out.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    logit_rows: Tensor | None
    attend: Callable[[Tensor, Tensor, Tensor], Tensor]


class PlainPath:
    """A Llama-family decoder, one torch operation a line.

    Touvron et al., "LLaMA" (2023), section 2.2; biases as in Qwen2, query and key norms as in Qwen3.

    Args:
        batch_invariant: a sequence's logits are bitwise the same whoever its neighbours are and however its prompt is
            cut. On a CPU each row is computed by itself, which is slow: each reads all weights. With Triton attention,
            every sum is done by kernels that have one order of summation.
        attention: the implementation of `paged_attention`; "auto" is Triton on a GPU that has it, else torch. Or a
            function of one's own, called with the first six arguments of `paged_attention` and returning what it does.
        fused: the small steps between the matrix products as Triton kernels of their own, each in one pass over its
            numbers (`fused`; `attention_triton.rotate_write`). None means with Triton attention.

    Raises:
        UnderloadError: an implementation that is unknown or cannot run here, or that has no batch-invariant mode.
    """

    name = "plain"

    def __init__(
        self,
        shape: ModelShape,
        weights: Weights,
        *,
        batch_invariant: bool = False,
        attention: Attention = "auto",
        fused: bool | None = None,
    ) -> None:
        self.shape = shape
        self.weights = weights
        self.device = weights.embed.device
        self.dtype = weights.embed.dtype
        self.attention = _choose_attention(attention, self.device)
        self.fused = self.attention == "triton" if fused is None else fused
        if self.fused and (reason := attention_triton.unsupported(self.device)):
            raise UnderloadError(f"fused=True cannot run here: {reason}; use fused=False")
        if batch_invariant and self.attention != "triton" and (self.attention != "torch" or self.device.type != "cpu"):
            raise UnderloadError(
                f"batch_invariant=True on {self.device.type} cannot go with attention={self.attention!r}, which may "
                "add in another order in another batch; use attention='triton', or on a CPU 'torch'"
            )
        if batch_invariant and self.attention == "triton" and not self.fused:
            raise UnderloadError(
                "batch_invariant=True with attention='triton' cannot go with fused=False, whose norms may "
                "add in another order in another batch; leave fused out"
            )
        self.batch_invariant = batch_invariant
        self._inverse_frequencies = inverse_frequencies(shape).to(self.device)

    def new_kv(self, num_blocks: int, block_size: int, dtype: torch.dtype | None = None) -> PlainKV:
        """An empty cache; in the model's dtype when `dtype` is None."""
        return PlainKV(self.shape, num_blocks, block_size, dtype=dtype or self.dtype, device=self.device)

    def forward(self, batch: Batch, kv: PlainKV) -> Tensor:
        """Write the batch's keys and values into `kv`; return float32 logits [len(batch.logit_rows), vocab]."""
        arrays = (batch.token_ids, batch.positions, batch.slots(kv.block_size), batch.logit_rows, batch.block_tables)
        token_ids, positions, slots, logit_rows, tables = _send(arrays, self.device)
        if batch.drawn is not None:
            token_ids = fill_in(token_ids, batch.drawn)
        attend = self._attention(batch, tables)
        return self.compute(Inputs(token_ids, positions, slots, logit_rows, attend), kv).float()

    @torch.inference_mode()
    def compute(self, inputs: Inputs, kv: PlainKV) -> Tensor:
        """The forward pass on what lies on the device already: logits [logit rows, vocab] in the model's dtype.

        It waits for nothing, and reads nothing on the host that changes from step to step: it can be captured.
        """
        weights, slots = self.weights, inputs.slots
        cos, sin = cos_sin(self._inverse_frequencies, inputs.positions)

        x = weights.embed[inputs.token_ids]  # [tokens, hidden]
        h = self._norm(x, weights.layers[0].attention_norm)
        for index, layer in enumerate(weights.layers):
            q, k, v = self._project(h, layer)
            if self.fused:
                q = attention_triton.rotate_write(q, k, v, cos, sin, slots, kv.keys[index], kv.values[index])
            else:
                q, k = rotate(q, cos, sin), rotate(k, cos, sin)
                kv.write(index, slots, k, v)
            o = inputs.attend(q, kv.keys[index], kv.values[index])
            x, h = self._add_norm(x, self._linear(o.flatten(1), layer.o), layer.mlp_norm)
            gated = self._gate(self._linear(h, layer.gate), self._linear(h, layer.up))
            following = weights.layers[index + 1].attention_norm if index + 1 < len(weights.layers) else weights.norm
            x, h = self._add_norm(x, self._linear(gated, layer.down), following)

        last = h if inputs.logit_rows is None else h[inputs.logit_rows]
        return self._linear(last, LinearWeights(weights.head, None))

    def greedy(self, batch: Batch, kv: PlainKV) -> Tensor:
        """The likeliest id of each logit row, [logit_rows] int64; -1 for a row without a largest logit."""
        return likeliest(self.forward(batch, kv))

    def _project(self, h: Tensor, layer: LayerWeights) -> tuple[Tensor, Tensor, Tensor]:
        """h [tokens, hidden] -> q [tokens, heads, head_dim], k and v [tokens, kv_heads, head_dim]."""
        q, k, v = (
            self._linear(h, part).unflatten(-1, (-1, self.shape.head_dim)) for part in (layer.q, layer.k, layer.v)
        )
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)
        return q, k, v

    def _linear(self, x: Tensor, part: LinearWeights) -> Tensor:
        """x [rows, in] -> [rows, out]."""
        if not self.batch_invariant:
            return F.linear(x, part.weight, part.bias)
        if self.attention == "triton":
            return invariant.linear(x, part.weight, part.bias)
        # A matrix product may add up in another order when it has another number of rows. One row always has one row.
        # The clone gives each the same alignment, which the order can depend on too.
        return (
            torch.cat([F.linear(row.clone(), part.weight, part.bias) for row in x.split(1)])
            if len(x)
            else x.new_empty(0, part.weight.shape[0])
        )

    def _gate(self, gate: Tensor, up: Tensor) -> Tensor:
        """SwiGLU's product: silu(gate) x up."""
        if self.fused:
            return fused.silu_mul(gate, up)
        if not self.batch_invariant or self.device.type != "cpu" or not len(gate):
            return F.silu(gate) * up
        # What is left over after whole vectors is computed by another function, with other last bits. Where an array's
        # rest lies depends on how many rows there are; in a row by itself it is always the same.
        return torch.cat([F.silu(row.clone()) for row in gate.split(1)]) * up

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        if self.fused:
            return invariant.rms_norm(x, weight, self.shape.norm_eps)
        return rms_norm(x, weight, self.shape.norm_eps)

    def _add_norm(self, x: Tensor, change: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream x + change, and its norm."""
        if self.fused:
            return fused.add_rms_norm(x, change, weight, self.shape.norm_eps)
        x = x + change
        return x, rms_norm(x, weight, self.shape.norm_eps)

    def _attention(self, batch: Batch, tables: Tensor) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """One layer's attention, (q, keys, values) -> out, for all layers of this step."""
        if self.attention == "triton":
            plan = attention_triton.AttentionPlan.of(
                batch.query_lens,
                batch.context_lens,
                tables,
                heads=self.shape.num_heads,
                kv_heads=self.shape.num_kv_heads,
                invariant=self.batch_invariant,
            )
            return partial(attention_triton.attend, plan=plan)
        query_lens, context_lens = batch.query_lens.tolist(), batch.context_lens.tolist()
        lengths = {"block_tables": tables, "query_lens": query_lens, "context_lens": context_lens}
        if not isinstance(self.attention, str):
            return partial(self.attention, **lengths)
        if not self.batch_invariant:
            return partial(paged_attention, **lengths, implementation=self.attention)

        def one_by_one(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            out = torch.empty_like(q)
            token = 0
            for row, (new, context) in enumerate(zip(query_lens, context_lens, strict=True)):
                for visible in range(context - new + 1, context + 1):  # one query, and just the keys it sees
                    one, table = slice(token, token + 1), tables[row : row + 1]
                    out[one] = paged_attention(
                        q[one].clone(), keys, values, table, [1], [visible], implementation="torch"
                    )
                    token += 1
            return out

        return one_by_one

    def close(self) -> None:
        """Nothing to release."""


def likeliest(logits: Tensor) -> Tensor:
    """The largest logit's id in each row, [rows] int64; -1 for a row without a largest."""
    best, ids = logits.max(dim=-1)  # a NaN is larger than everything
    return ids.masked_fill_(~best.isfinite(), -1)


def _send(arrays: tuple[np.ndarray, ...], device: torch.device) -> list[Tensor]:
    """The arrays on the device, which they reach in one copy that nobody waits for; on a CPU they stay where they are.

    (The allocator of page-locked memory keeps it from being used again before the copy is done.)
    """
    if device.type != "cuda":
        return [torch.from_numpy(array).to(device) for array in arrays]
    sizes = [-(-array.nbytes // 8) * 8 for array in arrays]  # so that each begins where its numbers may
    host = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=True)
    for part, array in zip(host.split(sizes), arrays, strict=True):
        part[: array.nbytes] = torch.from_numpy(np.ascontiguousarray(array)).view(torch.uint8).flatten()
    there = host.to(device, non_blocking=True).split(sizes)
    return [
        part[: array.nbytes].view(getattr(torch, array.dtype.name)).view(array.shape)
        for part, array in zip(there, arrays, strict=True)
    ]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019); over the last axis, in float32."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def _choose_attention(attention: Attention, device: torch.device) -> Attention:
    if not isinstance(attention, str):
        return attention
    if attention == "auto":
        on_gpu = device.type == "cuda" and attention_triton.unsupported(device) is None
        return "triton" if on_gpu else "torch"
    if attention not in IMPLEMENTATIONS:
        raise UnderloadError(f"attention must be 'auto', {', '.join(map(repr, IMPLEMENTATIONS))}, got {attention!r}")
    if attention == "triton" and (reason := attention_triton.unsupported(device)):
        raise UnderloadError(f"attention='triton' cannot run here: {reason}; use attention='auto' or 'torch'")
    if attention == "cpu" and device.type != "cpu":
        raise UnderloadError(f"attention='cpu' cannot run on {device.type}; use attention='auto' or 'torch'")
    return attention
