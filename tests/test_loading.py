"""Loading gives back the very tensors that were written, whatever the container; what is unsupported is named."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import TINY_KINDS, tiny_reference, write_tiny

from underload.decoder.config import shape_from_config
from underload.decoder.folder import FolderCheckpoint
from underload.decoder.gguf_file import GgufCheckpoint, read_header, read_tensor
from underload.decoder.sources import UnknownSource, open_checkpoint
from underload.decoder.weights import CheckpointError, Weights, hugging_face_sizes
from underload.request import UnderloadError
from underload.shapes import SHAPES, shape


def by_hugging_face_name(weights: Weights) -> dict[str, torch.Tensor]:
    """The loaded weights under the names they had on disk, written out independently of the loader."""
    named = {"model.embed_tokens.weight": weights.embed, "model.norm.weight": weights.norm}
    for i, layer in enumerate(weights.layers):
        prefix = f"model.layers.{i}."
        named[prefix + "input_layernorm.weight"] = layer.attention_norm
        named[prefix + "post_attention_layernorm.weight"] = layer.mlp_norm
        for short, linear in (("q", layer.q), ("k", layer.k), ("v", layer.v), ("o", layer.o)):
            named[f"{prefix}self_attn.{short}_proj.weight"] = linear.weight
            if linear.bias is not None:
                named[f"{prefix}self_attn.{short}_proj.bias"] = linear.bias
        for short, linear in (("gate", layer.gate), ("up", layer.up), ("down", layer.down)):
            named[f"{prefix}mlp.{short}_proj.weight"] = linear.weight
        if layer.q_norm is not None and layer.k_norm is not None:
            named[prefix + "self_attn.q_norm.weight"] = layer.q_norm
            named[prefix + "self_attn.k_norm.weight"] = layer.k_norm
    if weights.head is not weights.embed:
        named["lm_head.weight"] = weights.head
    return named


def assert_same_as_reference(weights: Weights, kind: str, dtype: torch.dtype = torch.float32) -> None:
    expected = dict(tiny_reference(kind).named_parameters())
    found = by_hugging_face_name(weights)
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert tensor.dtype == dtype
        assert torch.equal(tensor, expected[name].to(dtype)), name


@pytest.mark.parametrize("kind", TINY_KINDS)
def test_a_folder_gives_back_every_tensor(kind, tiny_checkpoint):
    checkpoint = FolderCheckpoint(tiny_checkpoint(kind))
    weights = checkpoint.weights()
    assert_same_as_reference(weights, kind)
    assert (weights.head is weights.embed) == checkpoint.shape.tied == (kind not in ("llama-untied", "mistral"))
    assert checkpoint.shape.num_parameters == sum(t.numel() for t in weights.tensors())
    assert checkpoint.stored_as == "float32"
    assert checkpoint.stored_bytes == weights.nbytes


@pytest.mark.parametrize("kind", ["llama-untied", "qwen2"])
def test_shards_give_back_every_tensor(kind, tmp_path):
    folder = write_tiny(tmp_path / "sharded", kind, max_shard_size="30KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    assert_same_as_reference(FolderCheckpoint(folder).weights(), kind)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_sixteen_bit_checkpoints_are_widened_exactly(stored, tmp_path):
    checkpoint = FolderCheckpoint(write_tiny(tmp_path / "half", "llama", dtype=stored))
    assert checkpoint.dtype == stored
    embed = checkpoint.weights(torch.float32).embed
    assert torch.equal(embed, tiny_reference("llama").model.embed_tokens.weight.to(stored).float())
    assert checkpoint.weights(stored).embed.dtype == stored


def test_the_meta_device_reads_nothing(tiny_checkpoint):
    weights = FolderCheckpoint(tiny_checkpoint("qwen3")).weights(torch.bfloat16, "meta")
    assert all(tensor.is_meta for tensor in weights.tensors())
    assert weights.layers[0].q_norm is not None


def test_bare_weights_load_without_a_tokenizer(tmp_path):
    folder = write_tiny(tmp_path / "bare", "llama")
    for file in folder.glob("tokenizer*"):
        file.unlink()
    checkpoint = FolderCheckpoint(folder)
    assert checkpoint.tokenizer() is None
    assert_same_as_reference(checkpoint.weights(), "llama")
    (folder / "tokenizer.model").write_bytes(b"sentencepiece")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        checkpoint.tokenizer()


def test_loaded_weights_outlive_their_file(tmp_path):
    folder = write_tiny(tmp_path / "gone", "llama")
    weights = FolderCheckpoint(folder).weights()
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(100)
    assert_same_as_reference(weights, "llama")


# --- shapes ----------------------------------------------------------------------------------------------------------


def test_random_weights_come_from_the_seed_alone():
    tiny = FolderShape.tiny
    one, same, other = (Weights.random(tiny, seed=s) for s in (7, 7, 8))
    assert all(torch.equal(a, b) for a, b in zip(one.tensors(), same.tensors(), strict=True))
    assert not torch.equal(one.embed, other.embed)
    assert torch.equal(Weights.random(tiny, 7, torch.bfloat16).embed, one.embed.to(torch.bfloat16))
    assert one.embed.std().item() == pytest.approx(0.02, rel=0.05)


def test_an_eight_billion_shape_on_meta_allocates_nothing():
    weights = open_checkpoint("shape:llama-3-8b").weights(torch.bfloat16, "meta")
    assert sum(t.numel() for t in weights.tensors()) == shape("llama-3-8b").num_parameters == 8_030_261_248


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_parameters_counted_are_tensors_listed(name):
    known = shape(name)
    assert known.num_parameters == sum(int(np.prod(size)) for size in hugging_face_sizes(known).values())


class FolderShape:
    tiny = shape_from_config(
        {
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": 64,
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "intermediate_size": 96,
            "vocab_size": 500,
        },
        "tiny",
    )


# --- GGUF ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "llama-untied", "llama-3-rope", "qwen2", "qwen3"])
def test_gguf_gives_back_every_tensor(kind, tiny_gguf, tiny_checkpoint):
    checkpoint = GgufCheckpoint(tiny_gguf(kind))
    assert_same_as_reference(checkpoint.weights(), kind)
    from_folder = FolderCheckpoint(tiny_checkpoint(kind)).shape
    for field in (
        "vocab_size",
        "head_dim",
        "num_kv_heads",
        "rope_theta",
        "rope_scaling",
        "norm_eps",
        "tied",
        "attention_bias",
        "qk_norm",
        "eos_token_ids",
    ):
        assert getattr(checkpoint.shape, field) == getattr(from_folder, field), field


@pytest.mark.parametrize(
    ("stored", "step"), [("F16", 2**-10), ("BF16", 2**-8), ("Q8_0", 1 / 127), ("Q4_0", 1 / 7), ("Q4_1", 1 / 7)]
)
def test_quantised_gguf_is_close_and_equals_the_reference_reader(stored, step, tiny_gguf):
    gguf = pytest.importorskip("gguf")
    path = tiny_gguf("qwen2", stored)
    checkpoint = GgufCheckpoint(path)
    assert checkpoint.stored_as == stored
    found = by_hugging_face_name(checkpoint.weights())
    for name, expected in tiny_reference("qwen2").named_parameters():
        # A block is scaled by its largest value: an error is at most one step of that scale.
        assert (found[name] - expected).abs().max() <= step * expected.abs().max() + 1e-6, name
    header = read_header(path)
    for tensor in gguf.GGUFReader(path).tensors:
        reference = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(read_tensor(path, header.tensors[tensor.name]), reference), tensor.name


def test_a_rotary_table_of_no_known_kind_is_refused(tiny_gguf, tmp_path):
    raw = tiny_gguf("llama-3-rope").read_bytes()
    place = read_header(tiny_gguf("llama-3-rope")).tensors["rope_freqs.weight"]
    path = tmp_path / "odd.gguf"
    for table in (np.linspace(1, 7, 8), np.full(8, np.nan), np.zeros(8)):
        path.write_bytes(raw[: place.begin] + table.astype("<f4").tobytes() + raw[place.begin + 32 :])
        with pytest.raises(CheckpointError, match="rope_freqs"):
            GgufCheckpoint(path)


SMOLLM2_SUMS = {
    "token_embd.weight": -15353.04449415207,
    "blk.7.attn_q.weight": -26.595428466796875,
    "blk.29.ffn_norm.weight": 196.283203125,
}


def test_smollm2_has_the_shape_and_the_tensors_it_should(smollm2):
    checkpoint = GgufCheckpoint(smollm2, "smollm2-135m")
    assert checkpoint.shape == shape("smollm2-135m")
    header = read_header(smollm2)
    assert len(header.tensors) == 272
    # Sums over whole tensors (a Q8_0, a Q4_1 and an F32 one) as transformers 5.24 and the gguf package read them.
    for name, total in SMOLLM2_SUMS.items():
        assert read_tensor(smollm2, header.tensors[name]).astype(np.float64).sum() == pytest.approx(total, rel=1e-9), (
            name
        )


# --- names -----------------------------------------------------------------------------------------------------------


def test_what_is_not_there_is_answered_with_what_is(tmp_path, monkeypatch):
    monkeypatch.setenv("UNDERLOAD_CACHE", str(tmp_path))
    with pytest.raises(UnknownSource, match="underload model get smollm2-135m"):
        open_checkpoint("smollm2-135m")
    with pytest.raises(UnknownSource, match="pocket.*shape:NAME"):
        open_checkpoint("no-such-model")
    with pytest.raises(UnderloadError, match="llama-3-8b"):
        open_checkpoint("shape:llama-9")
    with pytest.raises(UnknownSource, match="no file or folder"):
        open_checkpoint("./missing.gguf")
    with pytest.raises(UnknownSource, match="named by text"):
        open_checkpoint("")
    (tmp_path / "weights.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(CheckpointError, match="pickle"):
        open_checkpoint(str(tmp_path / "weights.bin"))


def test_a_hub_that_cannot_be_reached_is_a_clear_error(monkeypatch):
    huggingface_hub = pytest.importorskip("huggingface_hub")

    def unreachable(*args, local_files_only, **kwargs):
        raise FileNotFoundError("not cached") if local_files_only else ConnectionError("Name or service not known")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(CheckpointError, match=r"someone/some-model.*Name or service not known.*offline, 'pocket'"):
        open_checkpoint("someone/some-model")


def test_a_hub_repository_is_asked_for_no_pickle_and_opened(monkeypatch, tiny_checkpoint):
    huggingface_hub = pytest.importorskip("huggingface_hub")
    asked = {}

    def snapshot(name, *, allow_patterns, **kwargs):
        asked.update(name=name, patterns=allow_patterns)
        return str(tiny_checkpoint("qwen2"))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    checkpoint = open_checkpoint("someone/some-model")
    assert checkpoint.shape.name == asked["name"] == "someone/some-model"
    assert all(pattern.endswith((".json", ".safetensors", ".jinja")) for pattern in asked["patterns"])


# --- what is not supported is refused, by name -----------------------------------------------------------------------


def changed(source: Path, target: Path, **changes) -> Path:
    """A copy of a checkpoint with other values in its config; None takes the key out."""
    shutil.copytree(source, target)
    config = json.loads((target / "config.json").read_text())
    for key, value in changes.items():
        config.pop(key, None)
        if value is not None:
            config[key] = value
    (target / "config.json").write_text(json.dumps(config))
    return target


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel.*LlamaForCausalLM"),
        ({"architectures": ["LlamaForCausalLM", "Other"]}, "Other"),
        ({"model_type": "gemma"}, "gemma"),
        ({"sliding_window": 64}, "sliding"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}}, "yarn"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}}, "linear"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"num_local_experts": 8}, "mixture of experts"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"num_hidden_layers": 10**15}, "num_hidden_layers"),
        ({"num_hidden_layers": 2_000_000}, "2000000 layers"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers.*'2'"),
        ({"vocab_size": True}, "vocab_size"),
        ({"hidden_size": None}, "lacks hidden_size"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        ({"num_key_value_heads": 3}, "num_kv_heads"),
        ({"head_dim": 7}, "head_dim"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"eos_token_id": -1}, "eos_token_id"),
        ({"vocab_size": 321}, r"embed_tokens.*\[320, 32\], expected \[321, 32\]"),
        ({"num_hidden_layers": 3}, r"model\.layers\.2.*missing"),
        ({"num_hidden_layers": 1}, r"model\.layers\.1.*no\s+place"),
        ({"tie_word_embeddings": False}, r"lm_head\.weight.*missing.*tie_word_embeddings"),
    ],
)
def test_an_unsupported_or_impossible_config_is_refused_by_name(changes, message, tiny_checkpoint, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        FolderCheckpoint(changed(tiny_checkpoint("llama"), tmp_path / "changed", **changes))


def test_both_layouts_of_rope_mean_the_same():
    base = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "intermediate_size": 96,
        "vocab_size": 99,
    }
    llama3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    old = shape_from_config(base | {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **llama3}}, "m")
    new = shape_from_config(base | {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **llama3}}, "m")
    assert old == new
    assert old.rope_theta == 5e5
    assert old.rope_scaling is not None


def test_end_tokens_of_the_generation_config_come_first():
    base = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "intermediate_size": 96,
        "vocab_size": 99,
    }
    assert shape_from_config(base | {"eos_token_id": 2}, "m", {"eos_token_id": [5, 6]}).eos_token_ids == (5, 6)
    assert shape_from_config(base | {"eos_token_id": 2}, "m").eos_token_ids == (2,)


def test_tensors_that_do_not_fit_are_named():
    tiny = FolderShape.tiny
    whole = {name: torch.zeros(size) for name, size in hugging_face_sizes(tiny).items()}
    Weights.from_tensors(tiny, whole)
    with pytest.raises(CheckpointError, match=r"norm\.weight.*missing"):
        Weights.from_tensors(tiny, {k: v for k, v in whole.items() if k != "model.norm.weight"})
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight.*\[63\], expected \[64\]"):
        Weights.from_tensors(tiny, whole | {"model.norm.weight": torch.zeros(63)})
    with pytest.raises(CheckpointError, match=r"self_attn\.q_norm\.weight"):
        Weights.from_tensors(tiny, whole | {"model.layers.0.self_attn.q_norm.weight": torch.ones(16)})
    with pytest.raises(CheckpointError, match="int8"):
        Weights.from_tensors(tiny, whole | {"model.norm.weight": torch.zeros(64, dtype=torch.int8)})
    Weights.from_tensors(tiny, whole | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})


def test_values_that_are_not_finite_are_refused():
    tiny = FolderShape.tiny
    whole = {name: torch.zeros(size) for name, size in hugging_face_sizes(tiny).items()}
    for value in (float("nan"), float("-inf")):
        whole["model.norm.weight"][3] = value
        with pytest.raises(CheckpointError, match=r"model\.norm\.weight.*not finite as float32"):
            Weights.from_tensors(tiny, whole)
    whole["model.norm.weight"][3] = 1e6
    with pytest.raises(CheckpointError, match="not finite as float16"):
        Weights.from_tensors(tiny, whole, torch.float16)
    assert Weights.from_tensors(tiny, whole, torch.bfloat16).norm[3] > 9e5


def test_a_head_that_is_called_tied_and_is_not_is_refused(tiny_checkpoint):
    shape_ = FolderCheckpoint(tiny_checkpoint("llama")).shape
    tensors = {name: parameter.detach() for name, parameter in tiny_reference("llama").named_parameters()}
    same = tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
    assert Weights.from_tensors(shape_, same).head is not None
    with pytest.raises(CheckpointError, match="tie_word_embeddings"):
        Weights.from_tensors(shape_, same | {"lm_head.weight": tensors["model.embed_tokens.weight"] + 1})


@pytest.mark.parametrize(
    ("hidden", "source", "message"),
    [
        ("tokenizers", "folder", "reading a tokenizer needs the package tokenizers.*pip install tokenizers"),
        ("tokenizers", "gguf", "pip install tokenizers"),
        ("gguf", "gguf", r"undoing the quantisation of qwen2\.gguf \(Q8_0\) needs the package gguf"),
        ("huggingface_hub", "hub", "pip install huggingface-hub"),
        ("jinja2", "folder", "a chat template needs the package jinja2"),
    ],
)
def test_a_package_that_is_missing_is_named(hidden, source, message, monkeypatch, tiny_checkpoint, tiny_gguf):
    name = {"folder": str(tiny_checkpoint("qwen2")), "gguf": str(tiny_gguf("qwen2", "Q8_0")), "hub": "owner/name"}[
        source
    ]
    monkeypatch.setitem(sys.modules, hidden, None)
    with pytest.raises(UnderloadError, match=message):
        checkpoint = open_checkpoint(name)
        if hidden == "gguf":
            checkpoint.weights()
        checkpoint.tokenizer().apply_chat_template([{"role": "user", "content": "Hi"}])
