"""The forward pass that is trained: whole sequences at once, no cache, every position predicts the next.

The decoder has its own forward pass, with a cache and ragged batches; this one shares nothing with it but
the names of the weights, so that the two check each other (tests/test_pocket.py).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from underload.shapes import ModelShape

Parameters = dict[str, Tensor]

POCKET = ModelShape(
    name="pocket",
    vocab_size=1024,
    hidden_size=256,
    num_layers=4,
    num_heads=8,
    num_kv_heads=2,
    head_dim=32,
    intermediate_size=512,
    max_positions=2048,
    tied=True,
    bos_token_id=0,
    eos_token_ids=(0, 4),
)

POCKET_DRAFT = ModelShape(
    name="pocket-draft",
    vocab_size=1024,
    hidden_size=128,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    intermediate_size=384,
    max_positions=2048,
    tied=True,
    bos_token_id=0,
    eos_token_ids=(0, 4),
)


def initialise(shape: ModelShape, seed: int) -> Parameters:
    """Fresh weights under their Hugging Face names, the same for the same seed.

    Matrices that write into the residual stream start at zero: at first every layer passes its input on.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(rows: int, columns: int, std: float) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * std

    def linear(rows: int, columns: int) -> Tensor:
        return normal(rows, columns, 0.5 / math.sqrt(columns))

    hidden, wide = shape.hidden_size, shape.intermediate_size
    parameters = {"model.embed_tokens.weight": normal(shape.vocab_size, hidden, 0.02)}
    for i in range(shape.num_layers):
        layer = f"model.layers.{i}"
        parameters |= {
            f"{layer}.input_layernorm.weight": torch.ones(hidden),
            f"{layer}.self_attn.q_proj.weight": linear(shape.query_size, hidden),
            f"{layer}.self_attn.k_proj.weight": linear(shape.kv_size, hidden),
            f"{layer}.self_attn.v_proj.weight": linear(shape.kv_size, hidden),
            f"{layer}.self_attn.o_proj.weight": torch.zeros(hidden, shape.query_size),
            f"{layer}.post_attention_layernorm.weight": torch.ones(hidden),
            f"{layer}.mlp.gate_proj.weight": linear(wide, hidden),
            f"{layer}.mlp.up_proj.weight": linear(wide, hidden),
            f"{layer}.mlp.down_proj.weight": torch.zeros(hidden, wide),
        }
    parameters["model.norm.weight"] = torch.ones(hidden)
    return parameters


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    # x: [batch, heads, tokens, head_dim]; the pairs are (i, i + head_dim/2), as in Hugging Face checkpoints
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def logits(shape: ModelShape, parameters: Parameters, ids: Tensor) -> Tensor:
    """Logits of every position: ids [batch, tokens] -> [batch, tokens, vocab]."""
    batch, tokens = ids.shape
    frequencies = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2) / shape.head_dim)
    angles = torch.outer(torch.arange(tokens), frequencies).repeat(1, 2)  # [tokens, head_dim]
    cos, sin = angles.cos(), angles.sin()

    def norm(x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, (shape.hidden_size,), parameters[f"{name}.weight"], shape.norm_eps)

    def heads(x: Tensor) -> Tensor:
        return x.view(batch, tokens, -1, shape.head_dim).transpose(1, 2)

    embed = parameters["model.embed_tokens.weight"]
    x = F.embedding(ids, embed)
    for i in range(shape.num_layers):
        layer = f"model.layers.{i}"
        y = norm(x, f"{layer}.input_layernorm")
        q, k, v = (heads(F.linear(y, parameters[f"{layer}.self_attn.{name}_proj.weight"])) for name in "qkv")
        y = F.scaled_dot_product_attention(
            _rotate(q, cos, sin), _rotate(k, cos, sin), v, is_causal=True, enable_gqa=True
        )
        x = x + F.linear(y.transpose(1, 2).reshape(batch, tokens, -1), parameters[f"{layer}.self_attn.o_proj.weight"])
        y = norm(x, f"{layer}.post_attention_layernorm")
        gate, up = (F.linear(y, parameters[f"{layer}.mlp.{name}_proj.weight"]) for name in ("gate", "up"))
        x = x + F.linear(F.silu(gate) * up, parameters[f"{layer}.mlp.down_proj.weight"])
    return F.linear(norm(x, "model.norm"), embed)


def loss(shape: ModelShape, parameters: Parameters, ids: Tensor) -> Tensor:
    """Mean negative log-likelihood of each next token, nats; ids [batch, tokens + 1]."""
    return F.cross_entropy(logits(shape, parameters, ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
