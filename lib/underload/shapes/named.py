"""Shapes of models that people run, and two that the benchmarks use; sizes from the published configurations."""

from dataclasses import replace
from typing import Any

from underload.request.errors import UnderloadError
from underload.shapes.model import ModelShape, RopeScaling


class UnknownShape(UnderloadError, KeyError):
    """No shape of that name."""

    def __str__(self) -> str:  # KeyError would print the message in quotes
        return str(self.args[0])


def _llama(
    name: str,
    vocab: int,
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    ffn: int,
    positions: int,
    **more: Any,
) -> ModelShape:
    return ModelShape(
        name=name,
        vocab_size=vocab,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=more.pop("head_dim", hidden // heads),
        intermediate_size=ffn,
        max_positions=positions,
        **more,
    )


_LLAMA_31 = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=8192)
_SMOLLM2 = {"tied": True, "rope_theta": 100_000.0, "bos_token_id": 1, "eos_token_ids": (2,)}
_LLAMA_3 = {"rope_theta": 500_000.0, "bos_token_id": 128_000, "eos_token_ids": (128_001, 128_009)}
_QWEN2 = {"rope_theta": 1_000_000.0, "attention_bias": True, "norm_eps": 1e-6, "eos_token_ids": (151_645, 151_643)}
_QWEN3 = {
    "rope_theta": 1_000_000.0,
    "qk_norm": True,
    "norm_eps": 1e-6,
    "head_dim": 128,
    "eos_token_ids": (151_645, 151_643),
}

_ALL = (
    _llama("smollm2-135m", 49_152, 576, 30, 9, 3, 1536, 8192, **_SMOLLM2),
    _llama("smollm2-360m", 49_152, 960, 32, 15, 5, 2560, 8192, **_SMOLLM2),
    _llama("smollm2-1.7b", 49_152, 2048, 24, 32, 32, 8192, 8192, **(_SMOLLM2 | {"rope_theta": 130_000.0})),
    _llama("llama-2-7b", 32_000, 4096, 32, 32, 32, 11_008, 4096, bos_token_id=1, eos_token_ids=(2,)),
    _llama("llama-2-13b", 32_000, 5120, 40, 40, 40, 13_824, 4096, bos_token_id=1, eos_token_ids=(2,)),
    _llama("llama-2-70b", 32_000, 8192, 80, 64, 8, 28_672, 4096, bos_token_id=1, eos_token_ids=(2,)),
    _llama("llama-3-8b", 128_256, 4096, 32, 32, 8, 14_336, 8192, **_LLAMA_3),
    _llama("llama-3-70b", 128_256, 8192, 80, 64, 8, 28_672, 8192, **_LLAMA_3),
    _llama("llama-3.1-8b", 128_256, 4096, 32, 32, 8, 14_336, 131_072, rope_scaling=_LLAMA_31, **_LLAMA_3),
    _llama("llama-3.1-70b", 128_256, 8192, 80, 64, 8, 28_672, 131_072, rope_scaling=_LLAMA_31, **_LLAMA_3),
    _llama("llama-3.1-405b", 128_256, 16_384, 126, 128, 8, 53_248, 131_072, rope_scaling=_LLAMA_31, **_LLAMA_3),
    _llama(
        "llama-3.2-1b",
        128_256,
        2048,
        16,
        32,
        8,
        8192,
        131_072,
        tied=True,
        rope_scaling=replace(_LLAMA_31, factor=32.0),
        **_LLAMA_3,
    ),
    _llama("mistral-7b-v0.1", 32_000, 4096, 32, 32, 8, 14_336, 32_768, bos_token_id=1, eos_token_ids=(2,)),
    _llama("qwen2.5-0.5b", 151_936, 896, 24, 14, 2, 4864, 32_768, tied=True, **_QWEN2),
    _llama("qwen2.5-7b", 152_064, 3584, 28, 28, 4, 18_944, 32_768, **_QWEN2),
    _llama("qwen3-0.6b", 151_936, 1024, 28, 16, 8, 3072, 40_960, tied=True, **_QWEN3),
    _llama("qwen3-8b", 151_936, 4096, 36, 32, 8, 12_288, 40_960, **_QWEN3),
    _llama("qwen3-32b", 151_936, 5120, 64, 64, 8, 25_600, 40_960, **_QWEN3),
    # The two sizes of the decode benchmark: small enough to live near a large cache, and too large for any.
    _llama("bench-s", 32_000, 288, 6, 6, 6, 768, 2048, tied=True),
    _llama("bench-m", 32_000, 768, 12, 12, 4, 2048, 2048, tied=True),
)

SHAPES: dict[str, ModelShape] = {entry.name: entry for entry in _ALL}


def shape(name: str) -> ModelShape:
    """A known shape by name; a leading "shape:" is accepted.

    Raises:
        UnknownShape: no such shape; the message lists those there are.
    """
    key = name.removeprefix("shape:").lower()
    if key not in SHAPES:
        raise UnknownShape(f"unknown shape {name!r}; known: {', '.join(SHAPES)}")
    return SHAPES[key]
