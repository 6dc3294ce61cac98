"""The pictures of KV memory: how many fit, one sequence twice, and what memory is used for."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from underload import figures
from underload.figures import FigureError, Kept
from underload.figures.wording import keep_units
from underload.shapes import sequences_that_fit, shape

LLAMA = shape("llama-2-7b")
CARDS = {"24 GB": 24e9, "80 GB": 80e9}


def kept(name: str = "Llama-2-7B") -> Kept:
    return Kept(name, LLAMA.num_parameters, lambda n: n * LLAMA.kv_bytes_per_token(1), LLAMA.max_positions)


def frames_of(picture: figures.Picture) -> list[dict[str, Any]]:
    found = re.search(r'<script type="application/json">(.*?)</script>', picture.html, re.DOTALL)
    assert found
    return json.loads(found[1])["frames"]


def words_of(picture: figures.Picture) -> str:
    return re.sub(r"<[^>]+>", " ", picture.html.split("</style>", 1)[1])


# ---- how many fit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", [256, 2048])
def test_as_many_fit_as_the_library_says(context: int) -> None:
    picture = figures.kv_memory([kept()], CARDS, [256, 2048], start=("Llama-2-7B", "24 GB", context))
    fit = sequences_that_fit(LLAMA, context, 24e9)
    assert f"{fit} sequences of {context:,} tokens" in words_of(picture)


def test_a_value_of_one_byte_and_a_larger_card_let_more_in() -> None:
    picture = figures.kv_memory([kept()], CARDS, [2048])
    assert picture.data is not None
    said = [json.dumps(frame, ensure_ascii=False) for frame in frames_of(picture)]
    assert len(said) == 4  # one model, one context, two widths, two cards
    for width, card in ((2, 24e9), (1, 24e9), (2, 80e9), (1, 80e9)):
        fit = sequences_that_fit(LLAMA, 2048, card, kv_bytes=width)
        assert any(f"{fit} sequences of 2,048 tokens" in frame for frame in said), (width, card)


def test_weights_that_do_not_fit_are_said_and_so_is_a_text_too_long_for_the_model() -> None:
    large = Kept("large", 70e9, lambda n: 1000 * n, 1024)
    assert keep_units("The weights alone are 140 GB") in words_of(figures.kv_memory([large], CARDS, [512]))
    assert "made for 1,024 tokens at most" in words_of(figures.kv_memory([large], CARDS, [2048]))


def test_nothing_to_choose_from_is_refused() -> None:
    for models, cards, contexts, usable in (
        ([], CARDS, [1], 0.9),
        ([kept()], {}, [1], 0.9),
        ([kept()], CARDS, [], 0.9),
    ):
        with pytest.raises(FigureError, match="at least"):
            figures.kv_memory(models, cards, contexts, usable=usable)
    with pytest.raises(FigureError, match=r"usable 1\.5"):
        figures.kv_memory([kept()], CARDS, [1], usable=1.5)


# ---- one sequence twice ------------------------------------------------------------------------------------------


def test_a_row_and_blocks_hold_the_same_tokens() -> None:
    picture = figures.reserved_and_paged(prompt=5, written=4, coming=3, reserved=24, block=4, blocks=(7, 2, 10))
    assert "9 are stored, 3 will be filled and 12 never" in picture.alt
    assert "blocks 7, 2, 10 of a pool of 12; 9 of their 12 places are filled, and 3 are empty" in picture.alt
    assert picture.html.count("<svg") == 2


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"reserved": 11}, "12 tokens in a row of 11"),
        ({"reserved": 40}, "at most 32"),
        ({"prompt": 0}, "at least 1"),
        ({"blocks": (7, 2)}, "give 3"),
        ({"blocks": (7, 2, 12)}, "numbered 0 to 11"),
        ({"others": (7,)}, "others' at once"),
    ],
)
def test_a_sequence_that_does_not_fit_its_blocks_is_refused(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(FigureError, match=says):
        figures.reserved_and_paged(**changed)


# ---- what memory is used for -------------------------------------------------------------------------------------

SHARES = {"stored": 0.2, "reserved": 0.1, "internal": 0.6, "external": 0.1, "free": 0.0}


def test_bars_carry_their_shares_and_what_others_published() -> None:
    picture = figures.waste_bars({"rows": SHARES}, cited={"rows": 0.204}, cited_from="a paper")
    assert picture.data is not None
    assert picture.data["stored (%)"] == [20.0] and picture.data["stored, a paper (%)"] == [20.4]
    assert "20.0 % stored" in picture.alt and "20.4 %" in words_of(picture)


def test_shares_that_are_not_all_of_the_memory_are_refused() -> None:
    for shares in (SHARES | {"stored": 0.5}, {"stored": 1.0}):
        with pytest.raises(FigureError, match="sum to 1"):
            figures.waste_bars({"rows": shares})
    with pytest.raises(FigureError, match="name systems that are there"):
        figures.waste_bars({"rows": SHARES}, cited={"blocks": 0.9})
    with pytest.raises(FigureError, match="0 systems"):
        figures.waste_bars({})
