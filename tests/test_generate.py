"""The naive loop: the same words whatever the company, limits that are named, records that add up."""

import sys

import numpy as np
import pytest
import torch

from underload.decoder import Batch, Model, Weights, ceilings, generate, load_model
from underload.request import BlockTable, FinishReason, InvalidRequest, SamplingParams, Sequence, UnderloadError
from underload.shapes import ModelShape

SHAPE = ModelShape("tiny", 61, 32, 2, 4, 2, 8, 48, 32, tied=True)
PROMPTS = [[1, 2, 3], [4], [5] * 20, [7, 60]]


@pytest.fixture(scope="module")
def model():
    return Model(SHAPE, Weights.random(SHAPE, seed=1), path="plain", batch_invariant=True)


@pytest.fixture(scope="module")
def talker(tiny_checkpoint):
    return load_model(tiny_checkpoint("llama"), device="cpu", path="plain")


def loop_of_one(model, ids, steps):
    """Greedy continuation with only the forward pass, the whole text computed anew for each token."""
    out = []
    for _ in range(steps):
        tokens = [*ids, *out]
        sequence = Sequence(len(tokens), tokens, table=BlockTable(len(tokens), [0]))
        logits = model.forward(Batch.of([(sequence, len(tokens))]), model.new_kv(1, len(tokens)))
        out.append(int(logits[0].argmax()))
    return out


def test_greedy_text_is_that_of_a_loop_without_cache_or_company(model):
    run = generate(model, PROMPTS, SamplingParams(max_tokens=10, temperature=0))
    assert [c.token_ids for c in run] == [loop_of_one(model, ids, 10) for ids in PROMPTS]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_neighbours_change_nothing(model, temperature):
    params = SamplingParams(max_tokens=9, temperature=temperature, seed=42)
    together = generate(model, PROMPTS, params)
    for ids, completion in zip(PROMPTS, together, strict=True):
        assert generate(model, ids, params)[0].token_ids == completion.token_ids
    unseeded = [SamplingParams(max_tokens=9, temperature=0.8)] * 3 + [params]
    assert generate(model, PROMPTS, unseeded)[3].token_ids == together[3].token_ids


def test_samples_of_one_prompt_share_its_prefill_and_part_ways(model):
    run = generate(model, [[1, 2, 3], [9]], SamplingParams(max_tokens=8, seed=5, n=3))
    assert [(c.prompt_index, c.sample) for c in run] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert len({tuple(c.token_ids) for c in run.completions[:3]}) == 3
    assert sum(step.prefill_tokens for step in run.steps) == 4
    assert run[0].token_ids == generate(model, [1, 2, 3], SamplingParams(max_tokens=8, seed=5))[0].token_ids
    # A copied row is as good as a computed one: greedy samples agree.
    greedy = generate(model, [1, 2, 3], SamplingParams(max_tokens=8, temperature=0, n=2))
    assert greedy[0].token_ids == greedy[1].token_ids


@pytest.mark.parametrize("length, tokens", [(31, 1), (30, 2), (1, 31)])
def test_a_text_ends_where_the_context_does(model, length, tokens):
    run = generate(model, [3] * length, SamplingParams(max_tokens=100, temperature=0, ignore_eos=True))
    assert len(run[0].token_ids) == tokens and run[0].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("length", [32, 33, 500])
def test_a_prompt_that_leaves_no_room_is_refused_with_both_numbers(model, length):
    with pytest.raises(InvalidRequest, match=rf"prompt 1: .*{length} tokens.*32") as caught:
        generate(model, [[1], [3] * length])
    assert "-" not in str(caught.value).replace("max-", "")


@pytest.mark.parametrize(
    "prompts, params, says",
    [
        ([[1], []], None, "prompt 1: .*empty prompt"),
        ([[1, 61]], None, "token id 61 is outside the vocabulary of 61"),
        ([[-1]], None, "token id -1"),
        (["text"], None, "no tokenizer"),
        ([[1]], SamplingParams(stop=("x",)), "no tokenizer"),
        ([[1]], SamplingParams(logit_bias={99: 1.0}), "99"),
        ([[1], [2]], [SamplingParams()], "2 prompts but 1"),
        (None, None, "prompts: text.*None"),
        (5, None, "prompts: text.*5"),
        (b"abc", None, "prompts: text.*abc"),
        ([b"abc"], None, "prompt 0: a prompt is"),
        ([[1], None], None, "prompt 1: a prompt is.*None"),
        ([{"role": "user"}], None, "prompt 0: a prompt is.*role"),
        ([1, "text"], None, "prompt 0: a prompt is.*1"),
        ([[1.7]], None, "whole numbers, got 1.7"),
        ([["1"]], None, "whole numbers, got '1'"),
        ([[True]], None, "whole numbers, got True"),
        ([[[1]]], None, r"whole numbers, got \[1\]"),
        ([[1]], {"max_tokens": 3}, "params: one SamplingParams"),
        ([[1]], [None], "params must hold SamplingParams, got None"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_runs(model, prompts, params, says):
    with pytest.raises(InvalidRequest, match=says):
        generate(model, prompts, params)


@pytest.mark.parametrize(
    "prompts",
    [np.array([1, 2, 3]), torch.tensor([1, 2, 3]), [np.int64(1), np.int32(2), 3], (1, 2, 3), [torch.tensor([1, 2, 3])],
     np.array([[1, 2, 3]]), range(1, 4), (ids for ids in [[1, 2, 3]])],
    ids=["array", "tensor", "numpy ints", "tuple", "list of tensors", "2-d array", "range", "generator"],
)  # fmt: skip
def test_ids_may_come_in_whatever_holds_them(model, prompts):
    params = SamplingParams(max_tokens=4, temperature=0)
    run = generate(model, prompts, iter([params]))
    assert [c.prompt_ids for c in run] == [[1, 2, 3]]
    assert all(type(token) is int for token in run[0].prompt_ids)
    assert run[0].token_ids == generate(model, [1, 2, 3], params)[0].token_ids


def test_all_prompts_together_must_fit_into_memory(model, monkeypatch):
    module = sys.modules["underload.decoder.generate"]  # the name in the package is the function
    monkeypatch.setattr(module, "free_memory", lambda device: 20_000.0)  # 8 kB are reserved for each
    generate(model, [[1]] * 2, SamplingParams(max_tokens=31))
    with pytest.raises(InvalidRequest, match="16,384 samples reserve.* GB free"):
        generate(model, [[1]], SamplingParams(n=16_384))
    with pytest.raises(InvalidRequest, match="prompt 2: 3 samples reserve 32 tokens"):
        generate(model, [[1]] * 3, SamplingParams(max_tokens=31))
    with pytest.raises(InvalidRequest, match="3 samples reserve 32 tokens"):  # the longest sets the length of all rows
        generate(model, [[1]] * 3, [SamplingParams(max_tokens=n) for n in (31, 2, 2)])


def test_a_model_without_weights_is_refused():
    with pytest.raises(InvalidRequest, match="'meta'.* holds no weights"):
        generate(load_model("shape:bench-s", device="meta", path="plain"), [[1]])
    with pytest.raises(UnderloadError, match="'meta' computes nothing"):
        ceilings("meta")


@pytest.mark.parametrize("limit", [0, -1, 33, 3.5, "7"])
def test_max_context_is_the_models_at_most(model, limit):
    with pytest.raises(InvalidRequest, match="max_context must be 1 to 32"):
        generate(model, [[1]], max_context=limit)


def test_no_prompts_is_an_empty_run(model):
    assert len(generate(model, [])) == 0


def test_the_records_add_up(model):
    run = generate(model, PROMPTS, SamplingParams(max_tokens=6, temperature=0, ignore_eos=True))
    assert sum(s.prefill_tokens for s in run.steps) == sum(map(len, PROMPTS))
    # The first token comes out of the prefill; each of the others is one decode token.
    assert sum(s.decode_tokens for s in run.steps) == sum(len(c.token_ids) - 1 for c in run)
    assert all(s.duration > 0 and s.bytes_read > 0 and s.flops > 0 for s in run.steps)
    starts = [s.start for s in run.steps]
    assert starts == sorted(starts)
    for completion in run:
        t = completion.timeline
        stamps = [t.arrival, t.sent, t.queued, t.scheduled, *t.token_times, t.finished]
        assert stamps == sorted(stamps)
        assert t.output_tokens == len(completion.token_ids) and t.prompt_tokens == len(completion.prompt_ids)


def test_an_end_token_ends_the_ids_but_is_no_text(talker):
    plain = generate(talker, "The train leaves", SamplingParams(max_tokens=8, temperature=0, ignore_eos=True))[0]
    end = plain.token_ids[3]
    first = plain.token_ids.index(end)
    ended = generate(
        talker, "The train leaves", SamplingParams(max_tokens=8, temperature=0, stop_token_ids=(end,), ignore_eos=True)
    )[0]
    assert ended.token_ids == plain.token_ids[: first + 1] and ended.finish_reason is FinishReason.STOP
    assert ended.text == talker.tokenizer.decode(plain.token_ids[:first])
    held = generate(
        talker,
        "The train leaves",
        SamplingParams(max_tokens=8, min_tokens=8, temperature=0, stop_token_ids=(end,), ignore_eos=True),
    )[0]
    assert len(held.token_ids) == 8 and end not in held.token_ids


def test_streamed_text_is_the_text_and_stop_strings_never_show(talker):
    prompts = ["A batch of eight", "queue", "ü"]
    free = generate(talker, prompts, SamplingParams(max_tokens=24, temperature=0, ignore_eos=True))
    stop = free[0].text[6:9]
    streamed = ["", "", ""]

    def take(index, text, token_id, timeline):
        streamed[index] += text
        assert timeline.token_times

    run = generate(
        talker, prompts, SamplingParams(max_tokens=24, temperature=0, stop=stop, ignore_eos=True), on_token=take
    )
    assert streamed == [c.text for c in run]
    assert run[0].finish_reason is FinishReason.STOP and run[0].text == free[0].text[: free[0].text.index(stop)]
    for before, after in zip(free, run, strict=True):
        assert before.text.startswith(after.text) and stop not in after.text


def test_a_row_without_a_law_fails_alone():
    weights = Weights.random(SHAPE, seed=1)
    weights.embed = weights.embed.clone()
    poisoned = ModelShape(**{**vars(SHAPE), "tied": False})
    weights.head = weights.embed.clone()
    weights.embed[60] = torch.nan  # whoever reads token 60 computes NaN
    model = Model(poisoned, weights, path="plain")
    run = generate(model, [[1, 2], [60], [3]], SamplingParams(max_tokens=4, temperature=0))
    assert run[1].finish_reason is FinishReason.ERROR and "NaN" in run[1].error and run[1].token_ids == []
    assert len(run[0].token_ids) == len(run[2].token_ids) == 4
    assert run[0].token_ids == generate(model, [1, 2], SamplingParams(max_tokens=4, temperature=0))[0].token_ids


def test_what_the_callback_raises_ends_the_run_and_leaves_the_model_usable(model):
    def hang_up(*_):
        raise ConnectionError("client went away")

    with pytest.raises(ConnectionError):
        generate(model, [[1]], on_token=hang_up)
    assert len(generate(model, [[1]], SamplingParams(max_tokens=2))[0].token_ids) == 2
