"""What the preface and *From text to token* work out by hand or answer without a cell, recomputed."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from statistics import mean, median

import pytest
import torch

from underload.decoder import generate, load_model
from underload.request import SamplingParams

CHAPTERS = Path(__file__).resolve().parents[1] / "chapters"


def page(name: str) -> str:
    return (CHAPTERS / f"{name}.md").read_text(encoding="utf-8")


def test_the_first_page_has_the_command_of_its_recording() -> None:
    recording = json.loads((CHAPTERS / "data/collision.json").read_text(encoding="utf-8"))
    assert recording["command"] in page("index")


def test_the_preface_s_five_questions() -> None:
    text = page("preface")
    weights, times = 135e6 * 4, [1.0] * 9 + [11.0]
    rows, inner, columns = torch.ones(100, 64), 64, torch.ones(64, 10)
    products = (rows @ columns).numel() * inner
    for said in (
        f"{weights / 1e6:.0f} MB; {weights / 1e9:.2f} GB at 20 GB/s takes **{1e3 * weights / 20e9:.0f} ms**",
        f"= **{mean(times):.0f} s**, median **{median(times):.0f} s**",
        f"0.99 × 0.99 = {0.99**2:.4f}, so it is slow in **{1 - 0.99**2:.2%}".replace("%", " %"),
        f"products: **{products:,}**.\nWith one row, {products // len(rows)}.",
    ):
        assert said in text, said
    assert 1 - 0.99**100 > 0.5
    instants = [0.2, 0.5, 0.6, 4.0]
    gaps = sum(later - earlier for earlier, later in pairwise(instants))
    assert gaps == pytest.approx(instants[-1] - instants[0])


def test_a_gib_is_larger_than_a_gb_by_what_two_pages_say() -> None:
    said = f"{100 * (2**30 / 1e9 - 1):.1f} % more"
    assert said in page("preface") and said in page("back/notation")


def test_three_scores_at_two_temperatures() -> None:
    scores = torch.tensor([2.0, 1.0, 0.0])
    assert scores.exp().tolist() == pytest.approx([7.4, 2.7, 1.0], abs=0.05)
    assert (2 * scores).exp().tolist() == pytest.approx([54.6, 7.4, 1.0], abs=0.05)
    shares = [float((scores / temperature).softmax(-1)[0]) for temperature in (1.0, 0.5)]
    assert shares == pytest.approx([0.67, 0.87], abs=0.005)


@pytest.mark.parametrize(("prompt", "answer"), [(5, 4), (1, 1), (9, 7)])
def test_a_request_takes_as_many_steps_as_it_has_tokens_of_answer(prompt: int, answer: int) -> None:
    """The page's rule, m steps and p + m - 1 tokens computed; its question has p = 900 and m = 100."""
    run = generate(
        load_model("shape:bench-s"),
        [list(range(3, 3 + prompt))],
        SamplingParams(max_tokens=answer, temperature=0, ignore_eos=True),
    )
    computed = [record.prefill_tokens + record.decode_tokens for record in run.steps]
    assert len(computed) == answer
    assert sum(computed) == prompt + answer - 1
    assert computed[0] == prompt
    assert f"100 steps and 900 + 100 − 1 = {900 + 100 - 1} tokens" in page("from-text-to-token")


def test_without_a_cache_every_step_would_compute_the_whole_text() -> None:
    def tokens(prompt: int, answer: int) -> int:
        return sum(prompt + written for written in range(answer))

    for prompt, answer in ((12, 9), (1000, 500)):
        assert tokens(prompt, answer) == answer * prompt + answer * (answer - 1) // 2


def test_what_the_page_says_of_the_loop_is_what_the_library_s_loop_does() -> None:
    """Prompts one after the other, each in a step of its own that yields a first token: the preface predicts by it."""
    run = generate(
        load_model("shape:bench-s"), [[3, 4]] * 5, SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
    )
    assert [bool(record.prefill_tokens) for record in run.steps] == [True] * 5 + [False] * 2
