"""The tensors of a model: where each one belongs, and the check that every one is there.

Names on disk are those of Hugging Face's Llama, Qwen2 and Qwen3 checkpoints (`hugging_face_sizes`); names here
are short. A linear layer keeps the layout of the files, [out, in], so that loading moves bytes and nothing else.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from underload.request import UnderloadError

if TYPE_CHECKING:
    from underload.shapes import ModelShape

# Buffers that old checkpoints carry although the model computes them.
_IGNORED = re.compile(r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)")
_INITIAL_STD = 0.02


class CheckpointError(UnderloadError):
    """A checkpoint that cannot be loaded: damaged, incomplete, disagreeing with itself, or of an unsupported kind."""


@dataclass
class LinearWeights:
    """y = x weight^T + bias, with weight [out, in] and bias [out] or None."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass
class LayerWeights:
    """One layer: attention, then the gated MLP, each behind its RMSNorm weight [hidden].

    With H = num_heads x head_dim and K = num_kv_heads x head_dim: q [H, hidden], k and v [K, hidden],
    o [hidden, H], gate and up [intermediate, hidden], down [hidden, intermediate];
    q_norm and k_norm are [head_dim], applied to each head (Qwen3), or None.
    """

    attention_norm: Tensor
    q: LinearWeights
    k: LinearWeights
    v: LinearWeights
    o: LinearWeights
    mlp_norm: Tensor
    gate: LinearWeights
    up: LinearWeights
    down: LinearWeights
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None


class LazyTensors(Mapping[str, Tensor]):
    """Tensors still on disk: sizes known from the headers, values read when asked for, one at a time.

    `tensors[name]` may be called from one thread; what it returns is the caller's to keep.
    """

    @property
    @abstractmethod
    def sizes(self) -> Mapping[str, tuple[int, ...]]:
        """Size of every tensor, read from the headers; no values are read."""

    def __iter__(self) -> Iterator[str]:
        return iter(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)


@dataclass
class Weights:
    """Every tensor of a model. `head` is the same object as `embed` when the two are tied.

    embed [vocab, hidden], norm [hidden], head [vocab, hidden].
    """

    embed: Tensor
    layers: list[LayerWeights]
    norm: Tensor
    head: Tensor

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor once (a tied head is not repeated)."""
        yield self.embed
        for layer in self.layers:
            for value in vars(layer).values():
                if isinstance(value, LinearWeights):
                    yield value.weight
                    if value.bias is not None:
                        yield value.bias
                elif value is not None:
                    yield value
        yield self.norm
        if self.head is not self.embed:
            yield self.head

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.tensors())

    @classmethod
    def from_tensors(
        cls,
        shape: ModelShape,
        tensors: Mapping[str, Tensor],
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Weights:
        """Weights from tensors under Hugging Face names, cast to `dtype` on `device`.

        All names and sizes are checked before the first value is read, so a checkpoint that does not fit costs
        nothing and never becomes half a model.

        Raises:
            CheckpointError: a tensor missing, unknown, or of another size than the shape says; a head that the
                shape calls tied and that differs from the embedding; a tensor of integers; values that are not finite.
        """
        if isinstance(tensors, LazyTensors):
            sizes = tensors.sizes
        else:
            sizes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        check_sizes(shape, sizes)

        def take(name: str) -> Tensor:
            tensor = tensors[name]
            if not tensor.is_floating_point():
                raise CheckpointError(
                    f"tensor {name!r} holds {str(tensor.dtype).removeprefix('torch.')} values, expected floating point:"
                    " this looks like a quantised checkpoint; load the unquantised one, or a GGUF file"
                )
            if tensor.shape != sizes[name]:
                raise CheckpointError(
                    f"tensor {name!r} was announced as {list(sizes[name])} and is {list(tensor.shape)}"
                )
            cast = tensor.to(device=device, dtype=dtype).contiguous()
            if not torch.isfinite(cast).all():
                kind = str(dtype).removeprefix("torch.")
                raise CheckpointError(
                    f"tensor {name!r} holds values that are not finite as {kind}: the file is damaged, or they are too"
                    " large for that type (bfloat16 and float32 reach further than float16)"
                )
            return cast

        weights = cls._build(shape, take)
        if shape.tied and "lm_head.weight" in sizes and not torch.equal(take("lm_head.weight"), weights.embed):
            raise CheckpointError(
                "the config says tie_word_embeddings, but 'lm_head.weight' differs from 'model.embed_tokens.weight'; "
                "set tie_word_embeddings to false in config.json if the separate head is meant"
            )
        return weights

    @classmethod
    def random(
        cls,
        shape: ModelShape,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Weights:
        """Seeded random weights of a shape, for timing and memory; device "meta" allocates nothing.

        Normal with standard deviation 0.02, norms 1, biases 0; the two matrices of a layer that write to the
        residual stream are smaller by sqrt(2 x layers), which keeps its size about the same at any depth
        (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, section 2.3).
        The values depend on the seed and on the kind of device (CPU and CUDA have different generators).
        """
        device = torch.device(device)
        sizes = hugging_face_sizes(shape)
        generator = None if device.type == "meta" else torch.Generator(device).manual_seed(seed)

        def make(name: str) -> Tensor:
            if name.endswith("norm.weight"):
                return torch.ones(sizes[name], dtype=dtype, device=device)
            if name.endswith(".bias"):
                return torch.zeros(sizes[name], dtype=dtype, device=device)
            std = _INITIAL_STD
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                std /= math.sqrt(2 * shape.num_layers)
            # Drawn in float32 whatever the dtype: the same model, rounded, not another model.
            tensor = torch.empty(sizes[name], dtype=torch.float32, device=device)
            return tensor.normal_(0.0, std, generator=generator).to(dtype)

        return cls._build(shape, make)

    @classmethod
    def _build(cls, shape: ModelShape, take) -> Weights:  # type: ignore[no-untyped-def]
        """Assembles the weights; `take(name)` gives the tensor of a Hugging Face name."""

        def layer(i: int) -> LayerWeights:
            prefix = f"model.layers.{i}."

            def linear(name: str, bias: bool = False) -> LinearWeights:
                return LinearWeights(take(f"{prefix}{name}.weight"), take(f"{prefix}{name}.bias") if bias else None)

            return LayerWeights(
                attention_norm=take(prefix + "input_layernorm.weight"),
                q=linear("self_attn.q_proj", shape.attention_bias),
                k=linear("self_attn.k_proj", shape.attention_bias),
                v=linear("self_attn.v_proj", shape.attention_bias),
                o=linear("self_attn.o_proj"),
                mlp_norm=take(prefix + "post_attention_layernorm.weight"),
                gate=linear("mlp.gate_proj"),
                up=linear("mlp.up_proj"),
                down=linear("mlp.down_proj"),
                q_norm=take(prefix + "self_attn.q_norm.weight") if shape.qk_norm else None,
                k_norm=take(prefix + "self_attn.k_norm.weight") if shape.qk_norm else None,
            )

        embed = take("model.embed_tokens.weight")
        return cls(
            embed=embed,
            layers=[layer(i) for i in range(shape.num_layers)],
            norm=take("model.norm.weight"),
            head=embed if shape.tied else take("lm_head.weight"),
        )


def hugging_face_sizes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Name and size of every tensor that a checkpoint of this shape must hold."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    heads, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    sizes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocab_size, hidden)}
    for i in range(shape.num_layers):
        prefix = f"model.layers.{i}."
        sizes[prefix + "input_layernorm.weight"] = (hidden,)
        for name, out in (("q", heads), ("k", kv), ("v", kv)):
            sizes[f"{prefix}self_attn.{name}_proj.weight"] = (out, hidden)
            if shape.attention_bias:
                sizes[f"{prefix}self_attn.{name}_proj.bias"] = (out,)
            if shape.qk_norm and name != "v":
                sizes[f"{prefix}self_attn.{name}_norm.weight"] = (shape.head_dim,)
        sizes[prefix + "self_attn.o_proj.weight"] = (hidden, heads)
        sizes[prefix + "post_attention_layernorm.weight"] = (hidden,)
        sizes[prefix + "mlp.gate_proj.weight"] = (inner, hidden)
        sizes[prefix + "mlp.up_proj.weight"] = (inner, hidden)
        sizes[prefix + "mlp.down_proj.weight"] = (hidden, inner)
    sizes["model.norm.weight"] = (hidden,)
    if not shape.tied:
        sizes["lm_head.weight"] = (shape.vocab_size, hidden)
    return sizes


def check_sizes(shape: ModelShape, found: Mapping[str, tuple[int, ...]]) -> None:
    """Every tensor the shape needs is there, of its size, and nothing else is.

    Raises:
        CheckpointError: naming the first tensor that is missing, of another size, or unknown, and how many more are.
    """
    # Before the expected names are spelled out: a config that claims 10^12 layers must not make 10^12 names.
    if shape.num_layers > len(found):
        raise CheckpointError(
            f"the config says {shape.num_layers} layers, but the checkpoint holds {len(found)} tensors in all"
        )
    expected = hugging_face_sizes(shape)
    if missing := [name for name in expected if name not in found]:
        hint = "; is tie_word_embeddings right in config.json?" if missing == ["lm_head.weight"] else ""
        raise CheckpointError(
            f"tensor {missing[0]!r} {list(expected[missing[0]])} is missing{_and_more(missing)} from the"
            f" checkpoint{hint}"
        )
    if wrong := [name for name, size in expected.items() if tuple(found[name]) != size]:
        name = wrong[0]
        raise CheckpointError(
            f"tensor {name!r} is {list(found[name])}, expected {list(expected[name])} by the config{_and_more(wrong)}"
        )
    allowed = {"lm_head.weight"} if shape.tied else set()
    if extra := [
        name for name in found if name not in expected and name not in allowed and not _IGNORED.fullmatch(name)
    ]:
        raise CheckpointError(
            f"the checkpoint holds tensor {extra[0]!r} {list(found[extra[0]])}{_and_more(extra)}, for which this"
            " architecture has no place; the model would not compute what its authors meant"
        )


def _and_more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
