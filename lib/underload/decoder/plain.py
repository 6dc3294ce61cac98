"""The forward pass in plain torch: the one to read, and the oracle the fast ones are held against."""

import torch
import torch.nn.functional as F
from torch import Tensor

from underload.decoder.attention import paged_attention
from underload.decoder.batch import Batch
from underload.decoder.kv import PlainKV
from underload.decoder.rope import cos_sin, inverse_frequencies, rotate
from underload.decoder.weights import LayerWeights, LinearWeights, Weights
from underload.request import UnderloadError
from underload.shapes import ModelShape


class PlainPath:
    """A Llama-family decoder, one torch operation a line.

    Touvron et al., "LLaMA" (2023), section 2.2; biases as in Qwen2, query and key norms as in Qwen3.

    Args:
        batch_invariant: compute every row by itself, so that a sequence's logits are bitwise the same whoever its
            neighbours are and however its prompt is cut. Slow: each row reads all weights.
    """

    name = "plain"

    def __init__(self, shape: ModelShape, weights: Weights, *, batch_invariant: bool = False) -> None:
        self.shape = shape
        self.weights = weights
        self.device = weights.embed.device
        self.dtype = weights.embed.dtype
        if batch_invariant and self.device.type != "cpu":
            raise UnderloadError(
                f"batch_invariant=True needs kernels of its own on {self.device.type}, which this version lacks; "
                "use device='cpu', or batch_invariant=False"
            )
        self.batch_invariant = batch_invariant
        self._inverse_frequencies = inverse_frequencies(shape).to(self.device)

    def new_kv(self, num_blocks: int, block_size: int, dtype: torch.dtype | None = None) -> PlainKV:
        """An empty cache; in the model's dtype when `dtype` is None."""
        return PlainKV(self.shape, num_blocks, block_size, dtype=dtype or self.dtype, device=self.device)

    @torch.inference_mode()
    def forward(self, batch: Batch, kv: PlainKV) -> Tensor:
        """Write the batch's keys and values into `kv`; return float32 logits [len(batch.logit_rows), vocab]."""
        weights, eps = self.weights, self.shape.norm_eps
        slots = torch.from_numpy(batch.slots(kv.block_size)).to(self.device)
        tables = torch.from_numpy(batch.block_tables).to(self.device)
        query_lens, context_lens = batch.query_lens.tolist(), batch.context_lens.tolist()
        cos, sin = cos_sin(self._inverse_frequencies, torch.from_numpy(batch.positions).to(self.device))

        x = weights.embed[torch.from_numpy(batch.token_ids).to(self.device)]  # [tokens, hidden]
        for index, layer in enumerate(weights.layers):
            q, k, v = self._project(rms_norm(x, layer.attention_norm, eps), layer)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            kv.write(index, slots, k, v)
            o = self._attention(q, kv.keys[index], kv.values[index], tables, query_lens, context_lens)
            x = x + self._linear(o.flatten(1), layer.o)

            h = rms_norm(x, layer.mlp_norm, eps)
            x = x + self._linear(F.silu(self._linear(h, layer.gate)) * self._linear(h, layer.up), layer.down)

        last = x[torch.from_numpy(batch.logit_rows).to(self.device)]
        return self._linear(rms_norm(last, weights.norm, eps), LinearWeights(weights.head, None)).float()

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
            q, k = rms_norm(q, layer.q_norm, self.shape.norm_eps), rms_norm(k, layer.k_norm, self.shape.norm_eps)
        return q, k, v

    def _linear(self, x: Tensor, part: LinearWeights) -> Tensor:
        """x [rows, in] -> [rows, out]."""
        if not self.batch_invariant:
            return F.linear(x, part.weight, part.bias)
        # A matrix product may add up in another order when it has another number of rows. One row always has one row.
        # The clone gives each the same alignment, which the order can depend on too.
        return (
            torch.cat([F.linear(row.clone(), part.weight, part.bias) for row in x.split(1)])
            if len(x)
            else x.new_empty(0, part.weight.shape[0])
        )

    def _attention(
        self, q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, query_lens: list[int], context_lens: list[int]
    ) -> Tensor:
        if not self.batch_invariant:
            return paged_attention(q, keys, values, tables, query_lens, context_lens, implementation="torch")
        out = torch.empty_like(q)
        token = 0
        for row, (new, context) in enumerate(zip(query_lens, context_lens, strict=True)):
            for visible in range(context - new + 1, context + 1):  # one query, and just the keys it sees
                one = slice(token, token + 1)
                out[one] = paged_attention(
                    q[one].clone(), keys, values, tables[row : row + 1], [1], [visible], implementation="torch"
                )
                token += 1
        return out

    def close(self) -> None:
        """Nothing to release."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019); over the last axis, in float32."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)
