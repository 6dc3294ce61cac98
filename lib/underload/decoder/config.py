"""config.json → ModelShape: what a checkpoint says it is, believed only where it is supported and makes sense."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from underload.decoder.weights import CheckpointError
from underload.request import UnderloadError
from underload.shapes import ModelShape, RopeScaling

_MAX_JSON_BYTES = 10_000_000
_MAX_SIZE = 2**31 - 1  # no width, depth or vocabulary is larger

# Architecture -> (model_type, query/key norms, whether q, k and v have biases without being asked).
_ARCHITECTURES = {
    "LlamaForCausalLM": ("llama", False, False),
    "MistralForCausalLM": ("mistral", False, False),
    "Qwen2ForCausalLM": ("qwen2", False, True),
    "Qwen3ForCausalLM": ("qwen3", True, False),
}


def shape_from_config(config: Mapping[str, Any], name: str, generation: Mapping[str, Any] | None = None) -> ModelShape:
    """The shape that a Hugging Face `config.json` describes, in the layout of transformers 4 or 5.

    Args:
        name: what to call the model.
        generation: `generation_config.json`, whose end tokens come before the config's (a chat model has more of them).

    Raises:
        CheckpointError: an architecture or a variant this decoder has no code for, by name; a value that is missing,
            of the wrong kind, not finite or out of range.
    """
    config = dict(config)
    where = f"{name}: config.json"
    with_head_norm, with_bias = _architecture(config, where)
    _refuse_variants(config, where)

    def whole(key: str, default: int | None = None) -> int:
        value = config.get(key)
        value = default if value is None else value
        if value is None:
            raise CheckpointError(f"{where} lacks {key}")
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_SIZE:
            raise CheckpointError(
                f"{where}: {key} must be a whole number between 1 and {_MAX_SIZE}, got {_short(value)}"
            )
        return value

    own = f"{name}: generation_config.json"
    begin, config_end = (
        _token_ids(config, key, where, whole("vocab_size")) for key in ("bos_token_id", "eos_token_id")
    )
    end = _token_ids(generation or {}, "eos_token_id", own, whole("vocab_size")) or config_end
    heads, hidden = whole("num_attention_heads"), whole("hidden_size")
    theta, scaling = _rope(config, where, whole("max_position_embeddings", 2048))
    try:
        return ModelShape(
            name=name,
            vocab_size=whole("vocab_size"),
            hidden_size=hidden,
            num_layers=whole("num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=whole("num_key_value_heads", heads),
            head_dim=whole("head_dim", 128 if with_head_norm else max(1, hidden // heads)),
            intermediate_size=whole("intermediate_size"),
            max_positions=whole("max_position_embeddings", 2048),
            rope_theta=theta,
            rope_scaling=scaling,
            norm_eps=_positive(config, "rms_norm_eps", 1e-6, where),
            tied=_flag(config, "tie_word_embeddings", False, where),
            attention_bias=with_bias,
            qk_norm=with_head_norm,
            bos_token_id=begin[0] if begin else None,
            eos_token_ids=end,
        )
    except CheckpointError:
        raise
    except UnderloadError as error:
        raise CheckpointError(f"{where}: {error}") from error


def _architecture(config: Mapping[str, Any], where: str) -> tuple[bool, bool]:
    named = config.get("architectures") or []
    model_type = config.get("model_type")
    if isinstance(named, list) and len(named) == 1 and isinstance(named[0], str) and named[0] in _ARCHITECTURES:
        expected, norms, bias = _ARCHITECTURES[named[0]]
        if model_type not in (None, expected):
            raise CheckpointError(
                f"{where}: architecture {named[0]} goes with model_type {expected!r}, got {_short(model_type)}"
            )
        return norms, bias
    for expected, norms, bias in _ARCHITECTURES.values():
        if not named and model_type == expected:
            return norms, bias
    raise CheckpointError(
        f"{where}: architecture {_short(named or model_type)} is not supported; supported: {', '.join(_ARCHITECTURES)}"
    )


def _refuse_variants(config: Mapping[str, Any], where: str) -> None:
    """Refuses, by name, what would change the computation and is not computed here."""
    layer_types = config.get("layer_types")
    if isinstance(layer_types, list) and any(kind != "full_attention" for kind in layer_types):
        other = next(kind for kind in layer_types if kind != "full_attention")
        raise CheckpointError(f"{where}: layers of type {_short(other)} are not supported, only full_attention")
    # Qwen writes a window down and switches it off; Mistral switches it on by writing it down.
    windowed = config.get("sliding_window") is not None and config.get("use_sliding_window", True)
    if windowed and not isinstance(layer_types, list):
        raise CheckpointError(
            f"{where}: sliding-window attention (sliding_window={_short(config['sliding_window'])}) is not supported"
        )
    if config.get("quantization_config") is not None:
        quantised = config["quantization_config"]
        method = quantised.get("quant_method") if isinstance(quantised, Mapping) else quantised
        raise CheckpointError(
            f"{where}: weights quantised by {_short(method)} are not supported; load the unquantised checkpoint, or a"
            " GGUF file"
        )
    if (act := config.get("hidden_act", "silu")) not in ("silu", "swish"):
        raise CheckpointError(f"{where}: activation {_short(act)} is not supported, only silu")
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        if config.get(key):
            raise CheckpointError(f"{where}: a mixture of experts ({key}={_short(config[key])}) is not supported")
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key):
            raise CheckpointError(f"{where}: {key} (biases beyond Qwen2's on q, k and v) is not supported")
    if config.get("attn_logit_softcapping") or config.get("final_logit_softcapping"):
        raise CheckpointError(f"{where}: soft-capped logits are not supported")
    if config.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise CheckpointError(
            f"{where}: partial_rotary_factor {_short(config['partial_rotary_factor'])} is not supported, only 1"
        )


def _rope(config: Mapping[str, Any], where: str, max_positions: int) -> tuple[float, RopeScaling | None]:
    """Base and scaling of the rotary positions; transformers 5 keeps both under `rope_parameters`, 4 apart."""
    rope = config.get("rope_parameters", config.get("rope_scaling"))
    if rope is None:
        rope = {}
    if not isinstance(rope, Mapping):
        raise CheckpointError(f"{where}: rope_parameters must be an object, got {_short(rope)}")
    if rope.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise CheckpointError(
            f"{where}: partial_rotary_factor {_short(rope['partial_rotary_factor'])} is not supported, only 1"
        )
    theta = _positive(rope if "rope_theta" in rope else config, "rope_theta", 10_000.0, where)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind in ("default", None):
        return theta, None
    if kind != "llama3":
        raise CheckpointError(f"{where}: rope scaling {_short(kind)} is not supported; supported: default, llama3")
    original = rope.get("original_max_position_embeddings", max_positions)
    if isinstance(original, bool) or not isinstance(original, int) or not 1 <= original <= _MAX_SIZE:
        raise CheckpointError(
            f"{where}: original_max_position_embeddings must be a positive whole number, got {_short(original)}"
        )
    low, high = (_positive(rope, key, None, where) for key in ("low_freq_factor", "high_freq_factor"))
    if high <= low:
        raise CheckpointError(f"{where}: high_freq_factor ({high:g}) must be above low_freq_factor ({low:g})")
    factor = _positive(rope, "factor", None, where)
    return theta, RopeScaling(
        factor=factor, low_freq_factor=low, high_freq_factor=high, original_max_positions=original
    )


def _positive(config: Mapping[str, Any], key: str, default: float | None, where: str) -> float:
    value = config.get(key)
    value = default if value is None else value
    if value is None:
        raise CheckpointError(f"{where} lacks {key}")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise CheckpointError(f"{where}: {key} must be a number, got {_short(value)}")
    if not 0 < value <= 1e15 or not math.isfinite(value):
        raise CheckpointError(f"{where}: {key} must be a finite number above 0 and at most 1e15, got {_short(value)}")
    return float(value)


def _flag(config: Mapping[str, Any], key: str, default: bool, where: str) -> bool:
    value = config.get(key, default)
    if not isinstance(value, bool):
        raise CheckpointError(f"{where}: {key} must be true or false, got {_short(value)}")
    return value


def _token_ids(config: Mapping[str, Any], key: str, where: str, vocab_size: int) -> tuple[int, ...]:
    value = config.get(key)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for index in ids:
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < vocab_size:
            raise CheckpointError(
                f"{where}: {key} must be a token id below {vocab_size} or a list of them, got {_short(value)}"
            )
    return tuple(ids)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, strictly: no key twice, no NaN or Infinity, of a believable size.

    Raises:
        CheckpointError: the file is absent, too large, not UTF-8, not JSON, or not an object.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_JSON_BYTES + 1)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(raw) > _MAX_JSON_BYTES:
        raise CheckpointError(f"{path} has more than {_MAX_JSON_BYTES} bytes, which is not believed of a configuration")
    return parse_json(raw, str(path))


def parse_json(raw: bytes, where: str) -> dict[str, Any]:
    """A JSON object from bytes, as strictly as `read_json`."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) < len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise CheckpointError(f"{where} has the key {_short(twice)} twice")
        return value

    def not_a_number(text: str) -> None:
        raise CheckpointError(f"{where} holds {text}, which is no JSON number")

    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=once, parse_constant=not_a_number)
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{where} must be a JSON object, got {type(value).__name__}")
    return value


def _short(value: object) -> str:
    """A value for a message, cut where a hostile file would make it long."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a number of more than 30 digits"
    return text if len(text) <= 80 else text[:77] + "…'"
