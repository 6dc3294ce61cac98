"""The forward pass in plain torch: the one to read, and the oracle the fast ones are held against."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from underload.decoder import attention_triton, invariant
from underload.decoder.attention import IMPLEMENTATIONS, paged_attention
from underload.decoder.batch import Batch
from underload.decoder.kv import PlainKV
from underload.decoder.rope import cos_sin, inverse_frequencies, rotate
from underload.decoder.weights import LayerWeights, LinearWeights, Weights
from underload.request import UnderloadError
from underload.shapes import ModelShape

Attention = str | Callable[..., Tensor]  # an implementation of `paged_attention` by name, or one's own


class PlainPath:
    """A Llama-family decoder, one torch operation a line.

    Touvron et al., "LLaMA" (2023), section 2.2; biases as in Qwen2, query and key norms as in Qwen3.

    Args:
        batch_invariant: a sequence's logits are bitwise the same whoever its neighbours are and however its prompt is
            cut. On a CPU each row is computed by itself, which is slow: each reads all weights. With Triton attention,
            every sum is done by kernels that have one order of summation.
        attention: the implementation of `paged_attention`; "auto" is Triton on a GPU that has it, else torch. Or a
            function of one's own, called with the first six arguments of `paged_attention` and returning what it does.
        fused_write: rotate queries and keys, and write the cache, in one Triton kernel; None means with Triton
            attention. The same numbers either way.

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
        fused_write: bool | None = None,
    ) -> None:
        self.shape = shape
        self.weights = weights
        self.device = weights.embed.device
        self.dtype = weights.embed.dtype
        self.attention = _choose_attention(attention, self.device)
        self.fused_write = self.attention == "triton" if fused_write is None else fused_write
        if self.fused_write and (reason := attention_triton.unsupported(self.device)):
            raise UnderloadError(f"fused_write=True cannot run here: {reason}; use fused_write=False")
        if batch_invariant and self.attention != "triton" and (self.attention != "torch" or self.device.type != "cpu"):
            raise UnderloadError(
                f"batch_invariant=True on {self.device.type} cannot go with attention={self.attention!r}, which may "
                "add in another order in another batch; use attention='triton', or on a CPU 'torch'"
            )
        self.batch_invariant = batch_invariant
        self._inverse_frequencies = inverse_frequencies(shape).to(self.device)

    def new_kv(self, num_blocks: int, block_size: int, dtype: torch.dtype | None = None) -> PlainKV:
        """An empty cache; in the model's dtype when `dtype` is None."""
        return PlainKV(self.shape, num_blocks, block_size, dtype=dtype or self.dtype, device=self.device)

    @torch.inference_mode()
    def forward(self, batch: Batch, kv: PlainKV) -> Tensor:
        """Write the batch's keys and values into `kv`; return float32 logits [len(batch.logit_rows), vocab]."""
        weights = self.weights
        slots = torch.from_numpy(batch.slots(kv.block_size)).to(self.device)
        attend = self._attention(batch, torch.from_numpy(batch.block_tables).to(self.device))
        cos, sin = cos_sin(self._inverse_frequencies, torch.from_numpy(batch.positions).to(self.device))

        x = weights.embed[torch.from_numpy(batch.token_ids).to(self.device)]  # [tokens, hidden]
        for index, layer in enumerate(weights.layers):
            q, k, v = self._project(self._norm(x, layer.attention_norm), layer)
            if self.fused_write:
                q = attention_triton.rotate_write(q, k, v, cos, sin, slots, kv.keys[index], kv.values[index])
            else:
                q, k = rotate(q, cos, sin), rotate(k, cos, sin)
                kv.write(index, slots, k, v)
            o = attend(q, kv.keys[index], kv.values[index])
            x = x + self._linear(o.flatten(1), layer.o)

            h = self._norm(x, layer.mlp_norm)
            x = x + self._linear(self._silu(self._linear(h, layer.gate)) * self._linear(h, layer.up), layer.down)

        last = x[torch.from_numpy(batch.logit_rows).to(self.device)]
        return self._linear(self._norm(last, weights.norm), LinearWeights(weights.head, None)).float()

    def greedy(self, batch: Batch, kv: PlainKV) -> Tensor:
        """The likeliest id of each logit row, [logit_rows] int64; -1 for a row without a largest logit."""
        best, ids = self.forward(batch, kv).max(dim=-1)  # a NaN is larger than everything
        return torch.where(best.isfinite(), ids, -1)

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

    def _silu(self, x: Tensor) -> Tensor:
        if not self.batch_invariant or self.device.type != "cpu" or not len(x):
            return F.silu(x)
        # What is left over after whole vectors is computed by another function, with other last bits. Where an array's
        # rest lies depends on how many rows there are; in a row by itself it is always the same.
        return torch.cat([F.silu(row.clone()) for row in x.split(1)])

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        if self.batch_invariant and self.attention == "triton":
            return invariant.rms_norm(x, weight, self.shape.norm_eps)
        return rms_norm(x, weight, self.shape.norm_eps)

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
