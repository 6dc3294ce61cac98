"""The pictures of the batching trade-off say what formulas and recording say, and both layouts hold them."""

from __future__ import annotations

import math
from html.parser import HTMLParser
from typing import Any

import pytest

from underload import figures
from underload.figures.moving import Commit
from underload.figures.wording import keep_units
from underload.queueing import bulk_service, linear_batch

FIXED, EACH = 0.020, 0.001
LINE = linear_batch(overhead=FIXED, per_item=EACH)
RATES, SIZES, TIMEOUTS = (50.0, 200.0), (2, 4, 8, 16), (0.010, 0.050)


def rows() -> list[dict[str, Any]]:
    """Made-up figures of a timer, one for each stable setting: tenths of a second, told apart by their parts."""
    return [
        {"rate": rate, "batch_size": size, "timeout": timeout, "mean": 0.1 + timeout + size / 1e4, "wait": 0.07,
         "batch": size / 2}
        for rate in RATES for size in SIZES for timeout in TIMEOUTS if LINE.load(rate, size) < 1
    ]  # fmt: skip


def picture(**more: Any) -> figures.Picture:
    return figures.batching_trade_off(rows(), overhead=FIXED, per_item=EACH, **more)


def settings(shown: figures.Picture) -> dict[tuple[str, float, int, float], dict[str, Any]]:
    assert shown.data is not None
    numbers = ("mean latency (s)", "waiting (s)", "mean batch", "server busy (%)")
    keys = zip(*(shown.data[name] for name in ("A batch leaves", "Requests a second", "Batch size", "Timeout (s)")))
    values = zip(*(shown.data[name] for name in numbers), strict=True)
    return {key: dict(zip(numbers, each, strict=True)) for key, each in zip(keys, values, strict=True)}  # type: ignore[misc]


@pytest.mark.parametrize(("words", "kind"), [("full", "full"), ("at once (greedy)", "greedy")])
def test_full_and_greedy_batches_are_the_formulas(words: str, kind: str) -> None:
    found = settings(picture())
    for rate in RATES:
        for size in SIZES:
            law = bulk_service(rate, batch_size=size, overhead=FIXED, per_item=EACH, kind=kind)
            for timeout in TIMEOUTS:
                here = found[words, rate, size, timeout]
                assert here["mean latency (s)"] == pytest.approx(law.mean_sojourn)
                assert here["waiting (s)"] == pytest.approx(law.mean_wait)
                assert here["mean batch"] == pytest.approx(law.mean_batch)
                if law.stable:
                    assert here["server busy (%)"] == pytest.approx(100 * law.utilisation)


def test_the_timer_is_the_recording() -> None:
    found = settings(picture())
    for row in rows():
        here = found["full or timed out", row["rate"], row["batch_size"], row["timeout"]]
        assert here["mean latency (s)"] == row["mean"] and here["mean batch"] == row["batch"]


def test_a_server_that_falls_behind_has_no_latency() -> None:
    found = settings(picture())
    for words in ("full", "full or timed out", "at once (greedy)"):
        here = found[words, 200.0, 4, 0.010]
        assert math.isinf(here["mean latency (s)"]) and here["server busy (%)"] == 100
    html = picture(start=(200.0, 4, 0.010)).html
    assert keep_units("Batches of 4 carry fewer than 167 requests/s; 200 are too many. From 8 on it keeps up.") in html


def test_it_says_which_size_would_be_best() -> None:
    best = min((8, 16), key=lambda size: LINE.latency(200, batch_size=size, kind="full"))
    assert best == 8
    assert keep_units("8 would be best, with 47.3 ms") in picture(start=(200.0, 16, 0.010)).html
    assert "the best size here" in picture(start=(200.0, 8, 0.010)).html


def test_a_guess_is_made_first() -> None:
    html = picture(commit=Commit("Which size?", control="size")).html
    assert "Which size?" in html and 'class="ul-guess"' in html


def test_no_setting_may_be_missing() -> None:
    with pytest.raises(figures.FigureError, match="no simulated row for 200 requests/s, batches of 16 and 50 ms"):
        figures.batching_trade_off(rows()[:-1], overhead=FIXED, per_item=EACH)
    with pytest.raises(figures.FigureError, match="no simulated row"):
        figures.batching_trade_off([], overhead=FIXED, per_item=EACH)


# ---- rules in time

STAYS = {
    "full": [(0.0, 30.0, 52.0), (30.0, 30.0, 52.0)],
    "greedy": [(0.0, 0.0, 21.0), (30.0, 30.0, 51.0)],
}


class Drawn(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))


def test_rules_in_time_say_their_means_and_batches() -> None:
    shown = figures.rules_in_time(STAYS, end=60)
    assert "mean 37 ms" in shown.html and "mean 21 ms" in shown.html
    assert "full: batches of 2; greedy: batches of 1, 1" in shown.alt
    assert shown.data is not None and shown.data["greedy: leaves (ms)"] == [21.0, 51.0]


def test_rules_in_time_stay_inside_both_layouts() -> None:
    nine = [(10.0 * k, 10.0 * k + 5, 10.0 * k + 20) for k in range(9)]
    drawn = Drawn(figures.rules_in_time({"a rule": nine, "another": nine, "a third": nine}, end=105).html).elements
    width = 0.0
    boxes = 0
    for tag, attributes in drawn:
        if tag == "svg":
            _, _, width, height = map(float, attributes["viewbox"].split())
        if tag == "rect" and "width" in attributes and width:
            boxes += 1
            assert float(attributes["x"]) >= 0 and float(attributes["x"]) + float(attributes["width"]) <= width
            assert float(attributes["y"]) + float(attributes["height"]) <= height
        if tag == "text" and width:
            assert 0 <= float(attributes["x"]) <= width and float(attributes["y"]) <= height
    assert boxes == 2 * 3 * 9 * 2


@pytest.mark.parametrize(
    ("rules", "end"),
    [
        ({}, 60),
        ({str(k): STAYS["full"] for k in range(5)}, 60),
        ({"full": []}, 60),
        ({"full": STAYS["full"], "greedy": STAYS["greedy"][:1]}, 60),
        ({"full": STAYS["full"]}, 50),
        ({"full": [(5.0, 4.0, 9.0)]}, 60),
        ({"full": [(float(k), 20.0, 30.0) for k in range(13)]}, 60),
    ],
)
def test_rules_that_cannot_be_drawn_are_refused(rules: Any, end: float) -> None:
    with pytest.raises(figures.FigureError):
        figures.rules_in_time(rules, end=end)
