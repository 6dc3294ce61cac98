"""The pictures of paged attention: what they say is what the library computes, and both layouts hold what is drawn."""

from __future__ import annotations

import math
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from underload import figures
from underload.decoder import Batch
from underload.request import BlockTable, Sequence

TABLES = {2: ([3, 4, 5, 1, 9, 11, 12], [6, 7]), 4: ([2, 3, 1, 6], [4, 5])}
SCORES = [0.4, -0.3, 0.9, 0.1, 1.2, 0.2, 2.3, -0.5]
VALUES = [4.0, 1.0, 3.0, 2.0, 5.0, 6.0, 2.0, 4.0]


class Drawn(HTMLParser):
    """Attributes of every element of the drawings, in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))


def column(picture: figures.Picture, name: str) -> list[Any]:
    return list(picture.data[name])


# ---- where a token lies


def test_every_slot_is_where_the_decoder_writes_it() -> None:
    picture = figures.token_lookup(TABLES, 14, 32, start=(4, 9))
    found = {
        (int(size), position): slot
        for size, position, slot in zip(
            column(picture, "Tokens in a block"), column(picture, "Token"), column(picture, "slot"), strict=True
        )
    }
    assert len(found) == 28
    for size, (table, _) in TABLES.items():
        sequence = Sequence(14, tokens=list(range(14)), table=BlockTable(size, list(table)))
        slots = Batch.of([(sequence, 14)]).slots(size).tolist()
        assert [found[size, position] for position in range(14)] == slots
    assert "slot 1 × 4 + 1 = 5" in picture.html


@pytest.mark.parametrize(
    ("tables", "tokens", "slots"),
    [({}, 14, 32), (TABLES, 0, 32), (TABLES, 15, 32), (TABLES, 14, 16), ({4: ([2, 3, 1, 6], [6])}, 14, 32)],
)
def test_tables_that_do_not_fit_are_refused(tables: Any, tokens: int, slots: int) -> None:
    with pytest.raises(figures.FigureError):
        figures.token_lookup(tables, tokens, slots, start=(4, 0))


# ---- a softmax in blocks


@pytest.mark.parametrize("block", [1, 2, 4, 8])
def test_a_softmax_in_blocks_ends_at_the_softmax_in_either_order(block: int) -> None:
    picture = figures.softmax_in_blocks(SCORES, VALUES, block)
    weights = np.exp(SCORES) / np.exp(SCORES).sum()
    outputs = dict(
        zip(
            zip(column(picture, "Blocks read"), column(picture, "Order"), strict=True),
            column(picture, "output so far"),
            strict=True,
        )
    )
    for order in ("first block first", "last block first"):
        assert outputs[8 // block, order] == pytest.approx(weights @ VALUES)
    first = np.exp(SCORES[:block])
    assert outputs[1, "first block first"] == pytest.approx(first @ VALUES[:block] / first.sum())


def test_a_larger_score_shrinks_what_was_summed() -> None:
    picture = figures.softmax_in_blocks(SCORES, VALUES, 4, start=2)
    assert f"e^(0.9 − 2.3) = {math.exp(0.9 - 2.3):.2f}" in picture.html
    falling = figures.softmax_in_blocks(SCORES[::-1], VALUES, 4, start=2)
    assert "No larger score in this block: 2.3 stays" in falling.html


def test_scores_far_out_do_not_overflow() -> None:
    picture = figures.softmax_in_blocks([-2000.0, 2000.0], [1.0, 3.0], 1)
    assert column(picture, "output so far")[-2:] == [3.0, 3.0]


@pytest.mark.parametrize(("scores", "values", "block"), [([], [], 1), ([1.0], [], 1), ([1.0] * 3, [1.0] * 3, 2)])
def test_blocks_that_do_not_divide_the_tokens_are_refused(scores: Any, values: Any, block: int) -> None:
    with pytest.raises(figures.FigureError):
        figures.softmax_in_blocks(scores, values, block)


# ---- recorded times


def recording() -> dict[str, Any]:
    """Two cases as `tests/benchmarks/paging.py` stores them, at 1 GB/s: a byte takes a nanosecond to read."""
    times = {f"in place, blocks of {size}": 3000.0 / size for size in (1, 4, 16)}
    return {
        "read_bandwidth": 1e9,
        "cases": [
            {
                "model": "S", "context": context, "batch_size": 2, "heads": 6, "kv_heads": 3,
                "kv_bytes": 1000 * context, "contiguous": "contiguous", "gathered": "gathered, heads repeated",
                "microseconds": times | {"contiguous": 250.0, "gathered": 9999.0, "gathered, heads repeated": 750.0},
            }
            for context in (100, 200)
        ],
    }  # fmt: skip


def test_times_are_drawn_in_readings() -> None:
    picture = figures.attention_times(recording(), ("S", 100, 2), live=2e-4)
    assert column(picture, "one reading (s)") == [1e-4, 2e-4]
    assert column(picture, "gathered (s)") == [7.5e-4, 7.5e-4], "the faster way of the two"
    assert "blocks of 16 in place took 0.75 times as long, and gathering them 3 times" in picture.html
    assert picture.html.count("measured just now") >= 1
    assert "measured just now" not in figures.attention_times(recording(), ("S", 100, 2)).html


def test_a_case_that_was_not_recorded_is_refused() -> None:
    with pytest.raises(figures.FigureError, match="no case"):
        figures.attention_times(recording(), ("M", 100, 2))


# ---- diagrams


@pytest.mark.parametrize(
    "make",
    [
        lambda: figures.tables_and_pool(),
        lambda: figures.tables_and_pool({"A": (1, (7,))}),
        lambda: figures.tables_and_pool({"A": (9, (5, 1, 6)), "B": (13, (3, 0, 2, 4))}, pool=12),
        lambda: figures.parts_and_merge(),
        lambda: figures.parts_and_merge(2, 16),
        lambda: figures.parts_and_merge(4, 4),
    ],
)
def test_a_diagram_stays_inside_both_layouts(make: Any) -> None:
    picture = make()
    drawn = Drawn(picture.html)
    widths, width, labels = iter((680.0, 340.0)), 0.0, []
    for tag, attrs in drawn.elements:
        if tag == "svg":
            width = next(widths)
            labels.append(attrs["aria-label"])
        elif tag in ("rect", "text", "line") and width:
            for name in ("x", "x1", "x2"):
                assert -0.5 <= float(attrs.get(name, 0)) + float(attrs.get("width", 0)) <= width + 0.5
    assert len(labels) == 2 and labels[0] == labels[1] == picture.alt


def test_tables_and_pool_says_who_holds_what() -> None:
    alt = figures.tables_and_pool({"A": (9, (5, 1, 6)), "B": (6, (3, 0))}).alt
    assert "A has 9 tokens and the table 5, 1, 6" in alt and "blocks 2, 4, 7 are free" in alt


def test_diagrams_refuse_what_does_not_fit() -> None:
    for call in (
        lambda: figures.tables_and_pool({"A": (9, (5, 1))}),
        lambda: figures.tables_and_pool({"A": (8, (5, 1)), "B": (3, (5,))}),
        lambda: figures.tables_and_pool({"A": (4, (8,))}),
        lambda: figures.tables_and_pool({"A": (4, (0,)), "B": (4, (1,)), "C": (4, (2,))}),
        lambda: figures.parts_and_merge(1, 4),
        lambda: figures.parts_and_merge(3, 8),
    ):
        with pytest.raises(figures.FigureError):
            call()
