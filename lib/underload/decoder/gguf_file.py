"""A GGUF file: llama.cpp's format, one file with sizes, tokenizer and (often quantised) weights.

The header is read here, since the `gguf` package's own reader believes every count it finds: a header that claims
10^15 entries would keep it busy for ever. Undoing the quantisation is left to that package.

    "GGUF", version, tensor count, metadata count        little-endian
    metadata: key, type, value                           strings are length + bytes; arrays are type + count + values
    tensors: name, dimensions (innermost first), type, offset into the data
    padding, data
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from underload.decoder.checkpoint import Checkpoint
from underload.decoder.optional import require
from underload.decoder.tokenizer import Tokenizer
from underload.decoder.weights import CheckpointError, LazyTensors, Weights, check_sizes
from underload.request import UnderloadError
from underload.shapes import ModelShape, RopeScaling

_MAX_METADATA = 100_000
_MAX_TENSORS = 100_000
_MAX_ARRAY = 10_000_000
_MAX_DEPTH = 4  # arrays of arrays

# Scalar types of metadata by their number: how struct unpacks them.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

# Types of tensors that can be read: number -> name, values a block, bytes a block (ggml's block_q* structures).
_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    20: ("IQ4_NL", 32, 18),
    23: ("IQ4_XS", 256, 136),
    28: ("F64", 1, 8),
    30: ("BF16", 1, 2),
}
# Names of the types that cannot, to refuse them by.
_REFUSED_TYPES = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S",
    24: "I8", 25: "I16", 26: "I32", 27: "I64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip

# Architecture -> whether q, k and v have biases, whether query and key heads have norms.
_ARCHITECTURES = {"llama": (False, False), "qwen2": (True, False), "qwen3": (False, True)}

_LAYER_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Llama 3.1 and later: what each rotary frequency is divided by. It becomes part of the shape.
_ROPE_TABLE = "rope_freqs.weight"

_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


class GgufCheckpoint(Checkpoint):
    """A GGUF file of the llama, qwen2 or qwen3 architecture.

    Raises:
        CheckpointError: no such file, cut short, lying about its counts or sizes, or of an unsupported kind, by name.
    """

    def __init__(self, path: str | os.PathLike[str], name: str | None = None) -> None:
        self.path = Path(path)
        self.name = name or self.path.stem
        self.place = str(self.path)
        self.header = read_header(self.path)
        self.shape = _shape(self.header, self.name)
        self._tensors = _GgufTensors(self.header, self.shape)
        check_sizes(self.shape, self._tensors.sizes)
        kinds = Counter[str]()
        for tensor in self.header.tensors.values():
            kinds[tensor.type] += prod(tensor.size)
        self.stored_as = kinds.most_common(1)[0][0]
        self.stored_bytes = sum(tensor.nbytes for tensor in self.header.tensors.values())

    def weights(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Weights:
        if torch.device(device).type == "meta":
            return Weights.random(self.shape, dtype=dtype, device=device)
        return Weights.from_tensors(self.shape, self._tensors, dtype, device)

    def tokenizer(self) -> Tokenizer | None:
        if not any(key.startswith("tokenizer.") for key in self.header.metadata):
            return None  # bare weights: they still turn ids into ids
        from underload.decoder.gguf_tokenizer import tokenizer_from_metadata

        return tokenizer_from_metadata(self.header.metadata, self.shape, self.name)


@dataclass(frozen=True)
class GgufTensor:
    """Where a tensor lies in the file: `size` outermost first, `begin` in bytes from the start of the file."""

    type: str
    size: tuple[int, ...]
    begin: int
    nbytes: int


@dataclass(frozen=True)
class GgufHeader:
    """All of a GGUF file but its weights."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


class _Cursor:
    """Reads forwards through the file's bytes; what would lie past the end is an error, never a short answer."""

    def __init__(self, path: Path, data: np.ndarray) -> None:
        self.path = path
        self.data = data
        self.position = 0

    def take(self, count: int, what: str) -> bytes:
        end = self.position + count
        if end > len(self.data):
            raise CheckpointError(
                f"{self.path} is cut short or lies: {what} claims {count} bytes at {self.position}, the file has"
                f" {len(self.data)}"
            )
        raw = self.data[self.position : end].tobytes()
        self.position = end
        return raw

    def number(self, code: str, what: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code), what))[0]

    def count(self, what: str, most: int, least_bytes: int) -> int:
        """A count of things that take at least `least_bytes` each: believed only if so many could still follow."""
        value: int = self.number("Q", what)
        room = (len(self.data) - self.position) // least_bytes
        if value > min(most, room):
            raise CheckpointError(
                f"{self.path} is cut short or lies: it claims {value} {what}, at most {min(most, room)} are possible"
            )
        return value

    def text(self, what: str) -> str:
        raw = self.take(self.count(f"bytes of {what}", len(self.data), 1), what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self.path}: {what} is not UTF-8") from error

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.number(_SCALARS[kind], what)
        if kind == _STRING:
            return self.text(what)
        if kind != _ARRAY or depth >= _MAX_DEPTH:
            raise CheckpointError(f"{self.path}: {what} has the unknown value type {kind}")
        inner = self.number("I", what)
        if inner in _SCALARS:
            width = struct.calcsize("<" + _SCALARS[inner])
            count = self.count(f"values of {what}", _MAX_ARRAY, width)
            return list(struct.unpack(f"<{count}{_SCALARS[inner]}", self.take(count * width, what)))
        return [self.value(inner, what, depth + 1) for _ in range(self.count(f"values of {what}", _MAX_ARRAY, 8))]


def read_header(path: Path) -> GgufHeader:
    """Metadata and tensor table of a GGUF file, every count and place checked against the length of the file.

    Raises:
        CheckpointError: see the class `GgufCheckpoint`.
    """
    try:
        data = np.memmap(path, mode="r", dtype=np.uint8)
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    cursor = _Cursor(path, data)
    if cursor.take(4, "the format's mark") != b"GGUF":
        raise CheckpointError(f"{path} is no GGUF file: it does not begin with GGUF")
    version = cursor.number("I", "the version")
    if version not in (2, 3):
        hint = "it is big-endian" if version and version & 0xFFFF == 0 else "supported: 2 and 3"
        raise CheckpointError(f"{path}: GGUF version {version} is not supported; {hint}")
    tensor_count = cursor.count("tensors", _MAX_TENSORS, 24)
    metadata_count = cursor.count("metadata entries", _MAX_METADATA, 13)
    metadata: dict[str, Any] = {}
    for _ in range(metadata_count):
        key = cursor.text("a metadata key")
        if key in metadata:
            raise CheckpointError(f"{path} has the metadata key {key[:100]!r} twice")
        metadata[key] = cursor.value(cursor.number("I", key[:100]), key[:100])
    places = [_tensor_place(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
        raise CheckpointError(f"{path}: general.alignment must be a power of two, got {alignment!r}")
    start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    for name, size, kind, offset in places:
        if name in tensors:
            raise CheckpointError(f"{path} has the tensor {name[:100]!r} twice")
        type_name, block, block_bytes = kind
        if size[-1] % block:
            raise CheckpointError(
                f"{path}: tensor {name[:100]!r} has rows of {size[-1]}, which {type_name} cannot cut into blocks of"
                f" {block}"
            )
        nbytes = prod(size) // block * block_bytes
        if offset % alignment or start + offset + nbytes > len(data):
            raise CheckpointError(
                f"{path} is cut short or lies: tensor {name[:100]!r} claims {nbytes} bytes at {start + offset}, the"
                f" file has {len(data)}"
            )
        tensors[name] = GgufTensor(type_name, size, start + offset, nbytes)
    return GgufHeader(path, metadata, tensors)


def _tensor_place(cursor: _Cursor) -> tuple[str, tuple[int, ...], tuple[str, int, int], int]:
    name = cursor.text("a tensor's name")
    what = f"tensor {name[:100]!r}"
    dimensions = cursor.number("I", what)
    if not 1 <= dimensions <= 4:
        raise CheckpointError(f"{cursor.path}: {what} has {dimensions} dimensions, expected 1 to 4")
    size = tuple(cursor.number("Q", what) for _ in range(dimensions))[::-1]
    if not all(0 < length < 2**40 for length in size):
        raise CheckpointError(f"{cursor.path}: {what} has an impossible size, {list(size)}")
    kind = cursor.number("I", what)
    if kind not in _TYPES:
        named = _REFUSED_TYPES.get(kind, f"number {kind}")
        supported = ", ".join(known for known, _, _ in _TYPES.values())
        raise CheckpointError(
            f"{cursor.path}: {what} is stored as {named}, which is not supported; supported: {supported}"
        )
    return name, size, _TYPES[kind], cursor.number("Q", what)


def _shape(header: GgufHeader, name: str) -> ModelShape:
    """The sizes in the metadata, in this library's names."""
    metadata, where = header.metadata, f"{name}: GGUF metadata"
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in _ARCHITECTURES:
        raise CheckpointError(
            f"{where}: architecture {architecture!r} is not supported; supported: {', '.join(_ARCHITECTURES)}"
        )
    with_bias, with_head_norm = _ARCHITECTURES[architecture]

    def read(key: str, default: Any = None, kinds: tuple[type, ...] = (int,)) -> Any:
        value = metadata.get(f"{architecture}.{key}", default)
        if isinstance(value, bool) or not isinstance(value, kinds):
            found = "is missing" if value is None else f"must be one number, got {str(value)[:80]}"
            raise CheckpointError(f"{where}: {architecture}.{key} {found}")
        return value

    if metadata.get(f"{architecture}.expert_count"):
        raise CheckpointError(f"{where}: a mixture of experts ({architecture}.expert_count) is not supported")
    if metadata.get(f"{architecture}.attention.sliding_window"):
        raise CheckpointError(f"{where}: sliding-window attention is not supported")
    scaling = metadata.get(f"{architecture}.rope.scaling.type", "none")
    if scaling != "none" or metadata.get(f"{architecture}.rope.scale_linear", 1.0) != 1.0:
        raise CheckpointError(f"{where}: rope scaling {scaling!r} is not supported in GGUF files")
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.size) != 2:
        raise CheckpointError(f"{name}: the GGUF file has no tensor token_embd.weight [vocabulary, hidden]")
    heads, hidden = read("attention.head_count"), read("embedding_length")
    head_dim = read("attention.key_length", hidden // heads if heads > 0 else 0)
    if read("attention.value_length", head_dim) != head_dim or read("rope.dimension_count", head_dim) != head_dim:
        raise CheckpointError(f"{where}: keys, values and rotary positions of different widths are not supported")
    theta = _shortest(read("rope.freq_base", 10_000.0, (int, float)))
    stretch = _rope_scaling(header, name, head_dim, theta)
    eos = [metadata.get("tokenizer.ggml.eos_token_id"), metadata.get("tokenizer.ggml.eot_token_id")]
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    try:
        return ModelShape(
            name=name,
            vocab_size=embedding.size[0],
            hidden_size=hidden,
            num_layers=read("block_count"),
            num_heads=heads,
            num_kv_heads=read("attention.head_count_kv", heads),
            head_dim=head_dim,
            intermediate_size=read("feed_forward_length"),
            max_positions=read("context_length"),
            rope_theta=theta,
            rope_scaling=stretch,
            norm_eps=_shortest(read("attention.layer_norm_rms_epsilon", None, (int, float))),
            tied="output.weight" not in header.tensors,
            attention_bias=with_bias,
            qk_norm=with_head_norm,
            bos_token_id=bos if isinstance(bos, int) else None,
            eos_token_ids=tuple(dict.fromkeys(index for index in eos if isinstance(index, int))),
        )
    except CheckpointError:
        raise
    except UnderloadError as error:
        raise CheckpointError(f"{where}: {error}") from error


def _rope_scaling(header: GgufHeader, name: str, head_dim: int, theta: float) -> RopeScaling | None:
    """Llama-3's stretching of the rotary frequencies, from the table of divisors that the file has in its place.

    The converter writes down what came out and not the four numbers that went in. All published models blend between
    1 and 4 turns; the factor is the largest divisor; the original length is the power of two that gives this table.
    """
    place = header.tensors.get(_ROPE_TABLE)
    if place is None:
        return None
    if place.size != (head_dim // 2,) or theta <= 0:
        raise CheckpointError(f"{name}: {_ROPE_TABLE} is {list(place.size)}, expected [{head_dim // 2}]")
    table = read_tensor(header.path, place).astype(np.float64)
    inverse = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    factor = float(f"{table.max():.5g}")  # a round number that float32 arithmetic has gone over
    for original in (2**power for power in range(4, 21)):
        blend = np.clip((original * inverse / (2 * np.pi) - 1.0) / (4.0 - 1.0), 0.0, 1.0)
        if factor > 0 and np.allclose(1 / (blend + (1 - blend) / factor), table, rtol=1e-4, atol=0.0):
            return RopeScaling(
                _shortest(factor), low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=original
            )
    raise CheckpointError(f"{name}: the rotary frequencies are stretched ({_ROPE_TABLE}) in no way that is known here")


def _shortest(value: float) -> float:
    """The shortest decimal that rounds to the same float32: 1e-05, where the file has 9.99999974e-06."""
    return float(str(np.float32(value))) if np.isfinite(value) else value


class _GgufTensors(LazyTensors):
    """The file's tensors under Hugging Face names, quantisation and row order undone as they are read."""

    def __init__(self, header: GgufHeader, shape: ModelShape) -> None:
        self._header = header
        self._shape = shape
        self._names = {hugging_face_name(name): name for name in header.tensors if name != _ROPE_TABLE}
        # llama.cpp rotates neighbouring pairs of a llama's query and key rows, Hugging Face the two halves of a head;
        # its converter reorders the rows once. Qwen's files are left as they were.
        self._permuted = header.metadata["general.architecture"] == "llama"

    @property
    def sizes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: self._header.tensors[original].size for name, original in self._names.items()}

    def __getitem__(self, name: str) -> Tensor:
        place = self._header.tensors[self._names[name]]
        values = read_tensor(self._header.path, place)
        if self._permuted and (".q_proj." in name or ".k_proj." in name):
            heads = self._shape.num_heads if ".q_proj." in name else self._shape.num_kv_heads
            # rows [heads, head_dim/2 pairs, 2 members] → [heads, 2 halves, head_dim/2]
            rows = values.reshape(heads, self._shape.head_dim // 2, 2, *values.shape[1:])
            values = np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(values.shape)
        return torch.from_numpy(values)


def hugging_face_name(name: str) -> str:
    """blk.3.attn_q.weight → model.layers.3.self_attn.q_proj.weight; an unknown name stays (and is refused later)."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    block, _, rest = name.partition(".")
    number, _, rest = rest.partition(".")
    if block == "blk" and number.isdecimal():
        stem, _, kind = rest.rpartition(".")
        if rest in _LAYER_NAMES:
            return f"model.layers.{int(number)}.{_LAYER_NAMES[rest]}"
        if stem in _LAYER_NAMES and kind in ("weight", "bias"):
            return f"model.layers.{int(number)}.{_LAYER_NAMES[stem]}.{kind}"
    return name


def read_tensor(path: Path, place: GgufTensor) -> np.ndarray:
    """The values of one tensor as float32, [*size], in memory of their own.

    Raises:
        CheckpointError: the package that undoes the quantisation is not installed, or the file has shrunk meanwhile.
    """
    try:
        with path.open("rb") as file:
            file.seek(place.begin)
            raw = np.frombuffer(file.read(place.nbytes), dtype=np.uint8)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(raw) < place.nbytes:
        raise CheckpointError(f"{path} has become shorter since its header was read; load it again")
    if place.type in ("F32", "F16", "F64"):
        plain = raw.view({"F32": "<f4", "F16": "<f2", "F64": "<f8"}[place.type])
        return plain.astype(np.float32).reshape(place.size)  # a copy, also where the type does not change
    gguf = require("gguf", f"undoing the quantisation of {path.name} ({place.type})")
    rows = raw.reshape(*place.size[:-1], -1)
    with np.errstate(all="ignore"):  # a damaged scale is found when the weights are checked
        values = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[place.type])
    return np.ascontiguousarray(values, dtype=np.float32).reshape(place.size)
