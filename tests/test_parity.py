"""Logits beside transformers' on the same weights, in float32: alone, in a ragged batch, and with the prompt in chunks.

The bound is 1e-4 of the largest logit. Greedy text is the same for 64 tokens.
"""

import numpy as np
import pytest
import torch

from underload.decoder import Batch, generate, load_model
from underload.request import BlockTable, SamplingParams, Sequence

BOUND = 1e-4
KINDS = ["llama", "llama-untied", "llama-3-rope", "mistral", "qwen2", "qwen3"]


def prompts_for(vocab, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(3, vocab, size=n).tolist() for n in (1, 2, 5, 33, 17)]


@torch.no_grad()
def reference_logits(reference, ids):
    return reference(torch.tensor([ids])).logits[0].float()


def chunked(length, chunk):
    return [chunk] * (length // chunk) + ([length % chunk] if length % chunk else [])


def logits_of(model, prompts, chunk=None, block_size=None):
    """Logits of every position of every prompt, all in the same batches, fed whole or `chunk` tokens at a time."""
    size = block_size or max(map(len, prompts))
    per_prompt = [-(-len(ids) // size) for ids in prompts]
    blocks = iter(np.random.default_rng(1).permutation(sum(per_prompt)).tolist())
    kv = model.new_kv(sum(per_prompt), size)
    sequences = [
        Sequence(len(ids), list(ids), table=BlockTable(size, [next(blocks) for _ in range(count)]))
        for ids, count in zip(prompts, per_prompt, strict=True)
    ]
    out = [[] for _ in prompts]
    while any(s.num_computed < len(s.tokens) for s in sequences):
        work = [(i, s, min(chunk or len(s.tokens), len(s.tokens) - s.num_computed)) for i, s in enumerate(sequences)]
        work = [item for item in work if item[2]]
        logits = model.forward(Batch.of([(s, new) for _, s, new in work], all_logits=True), kv).cpu()
        for (i, s, new), rows in zip(work, logits.split([new for _, _, new in work]), strict=True):
            out[i].append(rows)
            s.num_computed += new
    return [torch.cat(rows) for rows in out]


def assert_close(got, expected):
    error = (got - expected).abs().max() / expected.abs().max()
    assert error < BOUND, f"logits differ by {error:.2e} of the largest"


def greedy_by_transformers(reference, ids, steps):
    with torch.no_grad():
        out = reference.generate(
            torch.tensor([ids]), max_new_tokens=steps, min_new_tokens=steps, do_sample=False, pad_token_id=0
        )
    return out[0, len(ids) :].tolist()


@pytest.fixture(scope="module", params=KINDS)
def pair(request, tiny_checkpoint):
    from transformers import AutoModelForCausalLM

    folder = tiny_checkpoint(request.param)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    return folder, reference


@pytest.fixture(params=["plain", "fast"])
def model_and_reference(request, pair):
    folder, reference = pair
    with load_model(folder, device="cpu", path=request.param) as model:
        yield model, reference


def test_one_sequence(model_and_reference):
    model, reference = model_and_reference
    for ids in prompts_for(model.shape.vocab_size):
        assert_close(logits_of(model, [ids])[0], reference_logits(reference, ids))


@pytest.mark.parametrize("chunk", [None, 1, 4, 7])
@pytest.mark.parametrize("block_size", [None, 4])
def test_a_ragged_batch_whole_and_in_chunks(model_and_reference, chunk, block_size):
    model, reference = model_and_reference
    prompts = prompts_for(model.shape.vocab_size)
    for ids, got in zip(prompts, logits_of(model, prompts, chunk, block_size), strict=True):
        assert_close(got, reference_logits(reference, ids))


def test_sixty_four_greedy_tokens(model_and_reference):
    model, reference = model_and_reference
    prompts = prompts_for(model.shape.vocab_size, seed=5)
    run = generate(model, prompts, SamplingParams(max_tokens=64, temperature=0, ignore_eos=True))
    for ids, completion in zip(prompts, run, strict=True):
        assert completion.token_ids == greedy_by_transformers(reference, ids, 64)


@pytest.fixture(scope="module")
def smollm2_reference(smollm2):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32).eval()


@pytest.mark.parametrize("path", ["plain", "fast"])
def test_smollm2_says_what_transformers_says(smollm2, smollm2_reference, path):
    with load_model(smollm2, device="cpu", path=path) as model:
        texts = ["The queue grew because", "def fibonacci(n):", "Once"]
        prompts = [model.tokenizer.encode(text) for text in texts]
        for ids, whole, pieces in zip(
            prompts, logits_of(model, prompts), logits_of(model, prompts, chunk=2), strict=True
        ):
            expected = reference_logits(smollm2_reference, ids)
            assert_close(whole, expected)
            assert_close(pieces, expected)
        chat = model.tokenizer.apply_chat_template([{"role": "user", "content": "Name three colours."}])
        ids = model.tokenizer.encode(chat)
        run = generate(model, [ids], SamplingParams(max_tokens=64, temperature=0, ignore_eos=True))
        assert run[0].token_ids == greedy_by_transformers(smollm2_reference, ids, 64)
