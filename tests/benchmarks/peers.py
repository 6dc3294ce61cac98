"""The decoders that the benchmark compares, each behind the same three lines, each in a process of its own.

    python tests/benchmarks/peers.py ENGINE CHECKPOINT THREADS

reads requests from stdin, one JSON object a line, and answers each with one: {"prompts": [[id, ...], ...], "new": n}
asks for n greedy tokens after every prompt, all prompts as one static batch, and gets {"seconds",
"tokens", "other_load"}.
A process of its own means that no engine meets another's thread pools, allocator or settings.

All engines load the same weights: a Hugging Face folder written by `write_checkpoint`, from which CTranslate2's and
llama.cpp's formats are made.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from load import other_load

Prompts = list[list[int]]


class Engine:
    """Loads a checkpoint; `generate` continues prompts of equal length greedily by exactly `new` tokens each."""

    needs = "torch"  # the module that must be installed
    weights = kv = "float32"  # how they are stored
    version = ""

    def __init__(self, folder: Path, threads: int) -> None:
        raise NotImplementedError

    def generate(self, prompts: Prompts, new: int) -> Prompts:
        raise NotImplementedError

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer a line of input."""
        start = time.perf_counter()
        tokens = self.generate(request["prompts"], request["new"])
        return {"tokens": tokens, "seconds": time.perf_counter() - start}

    def cpu_seconds(self) -> float:
        """What the engine has used of the processors so far, in all of its processes."""
        return time.process_time()

    def close(self) -> None:
        """Nothing more will be asked."""


class Underload(Engine):
    path, dtype = "fast", "float32"

    def __init__(self, folder: Path, threads: int) -> None:
        import torch
        from safetensors.torch import load_file

        import underload
        from underload.decoder import Model, Weights
        from underload.shapes import shape

        torch.set_num_threads(threads)
        self.version = underload.__version__
        sizes = shape(json.loads((folder / "config.json").read_text())["underload_shape"])
        tensors = load_file(folder / "model.safetensors")
        self.model = Model(
            sizes, Weights.from_tensors(sizes, tensors, dtype=getattr(torch, self.dtype)), path=self.path
        )

    def generate(self, prompts: Prompts, new: int) -> Prompts:
        from underload.decoder import Batch
        from underload.request import BlockTable, Sequence

        room = len(prompts[0]) + new
        kv = self.model.new_kv(len(prompts), room)
        sequences = [Sequence(len(ids), list(ids), table=BlockTable(room, [row])) for row, ids in enumerate(prompts)]
        for _ in range(new):
            batch = Batch.of([(sequence, len(sequence.tokens) - sequence.num_computed) for sequence in sequences])
            for sequence, token in zip(sequences, self.model.greedy(batch, kv), strict=True):
                sequence.num_computed = len(sequence.tokens)
                sequence.tokens.append(token)
        return [sequence.output_ids for sequence in sequences]


class UnderloadGenerate(Underload):
    """The library's naive loop, which reads prompts one by one, samples, and keeps timelines and records."""

    def generate(self, prompts: Prompts, new: int) -> Prompts:
        from underload.decoder import generate
        from underload.request import SamplingParams

        params = SamplingParams(max_tokens=new, temperature=0, ignore_eos=True)
        run = generate(self.model, prompts, params, max_context=len(prompts[0]) + new)
        return [completion.token_ids for completion in run]


class UnderloadPlain(Underload):
    path = "plain"


class UnderloadHalf(Underload):
    dtype, weights = "float16", "float16"


class Transformers(Engine):
    needs = "transformers"

    def __init__(self, folder: Path, threads: int) -> None:
        import torch
        import transformers

        torch.set_num_threads(threads)
        self.version = transformers.__version__
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def generate(self, prompts: Prompts, new: int) -> Prompts:
        import torch

        with torch.inference_mode():
            ids = torch.tensor(prompts)
            out = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=new,
                max_new_tokens=new,
                pad_token_id=0,
            )
        return out[:, ids.shape[1] :].tolist()


class CTranslate2(Engine):
    needs = "ctranslate2"

    def __init__(self, folder: Path, threads: int) -> None:
        import ctranslate2
        from ctranslate2.converters import TransformersConverter

        self.version = ctranslate2.__version__
        converted = folder / "ctranslate2"
        if not converted.exists():
            TransformersConverter(str(folder)).convert(str(converted))
        self.generator = ctranslate2.Generator(
            str(converted), device="cpu", compute_type="float32", inter_threads=1, intra_threads=threads
        )

    def generate(self, prompts: Prompts, new: int) -> Prompts:
        texts = [[f"t{token}" for token in ids] for ids in prompts]
        results = self.generator.generate_batch(
            texts, max_batch_size=len(texts), beam_size=1, sampling_topk=1, min_length=new, max_length=new,
            include_prompt_in_result=False, end_token=["t0"], return_end_token=True,
        )  # fmt: skip
        return [result.sequences_ids[0] for result in results]


class LlamaCpp(Engine):
    needs, kv = "llama_cpp", "float16"  # its default

    def __init__(self, folder: Path, threads: int) -> None:
        import llama_cpp

        self.lib, self.threads = llama_cpp, threads
        self.version = llama_cpp.__version__
        file = folder / f"{self.weights}.gguf"
        if not file.exists():
            write_gguf(folder, file, self.weights)
        self._quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self._quiet, None)
        self.model = llama_cpp.llama_model_load_from_file(str(file).encode(), llama_cpp.llama_model_default_params())
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def generate(self, prompts: Prompts, new: int) -> Prompts:
        lib, count, length = self.lib, len(prompts), len(prompts[0])
        settings = lib.llama_context_default_params()
        settings.n_ctx = count * -(-(length + new) // 256) * 256
        settings.n_seq_max = count
        settings.n_batch = max(settings.n_batch, count * length)
        settings.n_threads = settings.n_threads_batch = self.threads
        context = lib.llama_init_from_model(self.model, settings)
        batch = lib.llama_batch_init(count * length, 0, 1)
        try:
            outputs: Prompts = [[] for _ in prompts]
            rows = [
                (sequence, at, token, at == length - 1)
                for sequence, ids in enumerate(prompts)
                for at, token in enumerate(ids)
            ]
            for at in range(length, length + new):
                for i, (sequence, position, token, wanted) in enumerate(rows):
                    batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, wanted
                    batch.seq_id[i][0] = sequence
                batch.n_tokens = len(rows)
                if lib.llama_decode(context, batch) != 0:
                    raise RuntimeError("llama_decode failed")
                picked = [i for i, row in enumerate(rows) if row[3]]
                tokens = [
                    int(np.ctypeslib.as_array(lib.llama_get_logits_ith(context, i), shape=(self.vocabulary,)).argmax())
                    for i in picked
                ]
                for output, token in zip(outputs, tokens, strict=True):
                    output.append(token)
                rows = [(sequence, at, token, True) for sequence, token in enumerate(tokens)]
            return outputs
        finally:
            lib.llama_batch_free(batch)
            lib.llama_free(context)


class LlamaCppHalf(LlamaCpp):
    weights = "float16"


ENGINES: dict[str, type[Engine]] = {
    "underload": Underload,
    "underload generate": UnderloadGenerate,
    "underload plain": UnderloadPlain,
    "underload f16": UnderloadHalf,
    "transformers": Transformers,
    "ctranslate2": CTranslate2,
    "llama.cpp": LlamaCpp,
    "llama.cpp f16": LlamaCppHalf,
}


def missing(name: str, engines: Mapping[str, type[Engine]] = ENGINES) -> str | None:
    """The module that engine `name` lacks here, or None."""
    needs = engines[name].needs
    extra = ["gguf"] if "llama.cpp" in name else ["transformers"] if "ctranslate2" in name else []
    return next((module for module in (needs, *extra) if importlib.util.find_spec(module) is None), None)


# -------------------------------------------------- the weights, three ways


def write_checkpoint(shape_name: str, folder: Path, seed: int = 0) -> None:
    """Seeded random weights of a tied Llama shape as a Hugging Face folder, with a vocabulary "t0", "t1", ..."""
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, models, pre_tokenizers

    from underload.decoder import Weights
    from underload.decoder.weights import hugging_face_sizes
    from underload.shapes import shape

    sizes = shape(shape_name)
    assert sizes.tied and not sizes.attention_bias and not sizes.qk_norm, (
        "the peers' files below are written for plain Llama"
    )
    folder.mkdir(parents=True, exist_ok=True)
    weights = Weights.random(sizes, seed=seed)
    for (
        layer
    ) in weights.layers:  # a tied model of small random weights repeats its last token for ever; make the layers speak
        for part in (layer.v, layer.o, layer.gate, layer.up, layer.down):
            part.weight.mul_(4)
    save_file(
        dict(zip(hugging_face_sizes(sizes), weights.tensors(), strict=True)),
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "torch_dtype": "float32",
        "vocab_size": sizes.vocab_size, "hidden_size": sizes.hidden_size, "intermediate_size": sizes.intermediate_size,
        "num_hidden_layers": sizes.num_layers, "num_attention_heads": sizes.num_heads, "head_dim": sizes.head_dim,
        "num_key_value_heads": sizes.num_kv_heads, "max_position_embeddings": sizes.max_positions,
        "rope_theta": sizes.rope_theta, "rms_norm_eps": sizes.norm_eps, "tie_word_embeddings": True,
        "underload_shape": shape_name, "bos_token_id": 1, "eos_token_id": 0, "attention_bias": False, "mlp_bias": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(sizes.vocab_size)}, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "t0", "bos_token": "t1", "unk_token": "t0"}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))


def write_gguf(folder: Path, file: Path, dtype: str) -> None:
    """The same weights for llama.cpp, whose rotary pairs lie side by side: (2 i, 2 i + 1) instead of (i, i + half)."""
    import gguf
    from safetensors.numpy import load_file

    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"t{i}" for i in range(config["vocab_size"])])
    writer.add_token_scores([0.0] * config["vocab_size"])
    writer.add_token_types([1] * config["vocab_size"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    short = {
        "model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    }  # fmt: skip
    for name, tensor in tensors.items():
        if name.startswith("model.layers."):
            _, _, layer, rest = name.split(".", 3)
            target = f"blk.{layer}.{short[rest.removesuffix('.weight')]}.weight"
            if "q_proj" in rest or "k_proj" in rest:
                heads = config["num_attention_heads" if "q_proj" in rest else "num_key_value_heads"]
                tensor = tensor.reshape(heads, 2, -1, tensor.shape[-1]).swapaxes(1, 2).reshape(tensor.shape)
        else:
            target = short[name]
        if tensor.ndim == 2 and dtype == "float16":
            tensor = tensor.astype(np.float16)
        writer.add_tensor(target, np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# -------------------------------------------------- the process


def listen(kind: type[Engine], folder: Path, threads: int) -> None:
    """Be that engine's process: say what it is, then answer line by line until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an engine prints must not pass for an answer

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    engine = kind(folder, threads)
    try:
        say({"version": engine.version, "weights": engine.weights, "kv": engine.kv})
        for line in sys.stdin:
            load: dict[str, Any] = {}
            with other_load(load, own=engine.cpu_seconds):
                answer = engine.run(json.loads(line))
            say(answer | load)
    finally:
        engine.close()


if __name__ == "__main__":
    listen(ENGINES[sys.argv[1]], Path(sys.argv[2]), int(sys.argv[3]))
