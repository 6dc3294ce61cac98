"""The pictures of fan-out say what the formula says, for pages with and without causes in common."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from underload import figures
from underload.figures.fanout import COMMON, FANS, SLOW
from underload.figures.moving import Commit
from underload.queueing import prob_any
from underload.request import UnderloadError


def settings(shown: figures.Picture) -> dict[tuple[int, float, float], tuple[float, float, float]]:
    assert shown.data is not None
    keys = zip(*(shown.data[name] for name in ("Leaves of a page", "Slow answers of a leaf (%)",
                                               "Slowness in common (%)")))  # fmt: skip
    numbers = ("pages with a slow answer (%)", "if independent (%)", "a leaf may be slow, for 1 slow page in 100 (%)")
    return dict(zip(keys, zip(*(shown.data[name] for name in numbers)), strict=True))


# ---- the formula


def test_a_common_cause_is_a_split_of_the_slow_cases() -> None:
    assert prob_any(0.01, n=100) == prob_any(0.01, n=100, common=0)
    assert prob_any(0.01, n=100, common=1) == pytest.approx(0.01)
    shares = [prob_any(0.01, n=100, common=share) for share in (0, 0.25, 0.5, 0.75, 1)]
    assert shares == sorted(shares, reverse=True)
    for share in (0.0, 0.3, 1.0):
        assert prob_any(0.07, n=1, common=share) == pytest.approx(0.07)  # of one leaf nothing is said


def test_a_common_cause_counted_by_hand() -> None:
    # Half of 20 % are moments of all: 10 % of the time all are slow; else each is slow with 0.1/0.9.
    assert prob_any(0.2, n=2, common=0.5) == pytest.approx(0.1 + 0.9 * (1 - (8 / 9) ** 2))


def test_a_common_cause_drawn() -> None:
    rng = np.random.default_rng(1)
    moments, own = rng.random(200_000) < 0.03, rng.random((200_000, 20)) < (0.05 - 0.03) / 0.97
    slow = own | moments[:, None]
    assert slow[:, 0].mean() == pytest.approx(0.05, abs=0.002)
    assert slow.any(axis=1).mean() == pytest.approx(prob_any(0.05, n=20, common=0.6), abs=0.004)


@pytest.mark.parametrize("common", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_refused(common: float) -> None:
    with pytest.raises(UnderloadError, match="common"):
        prob_any(0.01, n=3, common=common)


# ---- the figure that moves


def test_every_setting_is_the_formula() -> None:
    found = settings(figures.fan_out())
    assert len(found) == len(FANS) * len(SLOW) * len(COMMON)
    for (k, slow, common), (pages, apart, may) in found.items():
        assert pages == pytest.approx(100 * prob_any(slow / 100, n=k, common=common / 100))
        assert apart == pytest.approx(100 * prob_any(slow / 100, n=k))
        assert 100 * prob_any(may / 100, n=k) == pytest.approx(1)


def test_a_hundred_leaves_say_their_63_pages_and_fill_as_many_squares() -> None:
    html = figures.fan_out().html
    assert "100 leaves, each slow in 1 of 100 answers: 63.4 of 100 pages wait for a slow one." in html
    panel = html[html.index('data-panel="1"') :]
    assert len(re.findall(r'class="ul-bar"', panel[: panel.index("</div>")])) == 63


def test_what_is_in_common_is_said() -> None:
    assert "were the slow answers independent, 63.4." in figures.fan_out(start=(100, 1.0, 90)).html
    assert "independent," not in _says(figures.fan_out(start=(1, 1.0, 90)))


def _says(shown: figures.Picture) -> str:
    found = re.search(r'aria-live="polite"[^>]*>([^<]*)<', shown.html)
    assert found
    return found[1]


def test_a_guess_is_made_first() -> None:
    commit = Commit("How many?", values=[1, 50, 99], unit="%", answer=63.4, mark=lambda v: figures.Mark(100, v))
    html = figures.fan_out(commit=commit).html
    assert "How many?" in html and 'class="ul-guess"' in html


@pytest.mark.parametrize("fans", [(5,), (5, 1), (1, 1, 2)])
def test_fan_outs_that_are_no_axis_are_refused(fans: Any) -> None:
    with pytest.raises(figures.FigureError, match="ascending"):
        figures.fan_out(fans=fans, start=(fans[0], 1.0, 0))


# ---- where the slow answers lie

APART = [[page == leaf for page in range(6)] for leaf in range(4)]
TOGETHER = [[page == 2 for page in range(6)] for leaf in range(4)]


class Drawn(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.svgs: list[tuple[float, float, list[dict[str, str]]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "svg" and "viewbox" in values:
            _, _, width, height = map(float, values["viewbox"].split())
            self.svgs.append((width, height, []))
        elif tag == "rect" and self.svgs:
            self.svgs[-1][2].append(values)


def test_the_same_answers_fill_other_pages() -> None:
    shown = figures.slow_answers({"apart": APART, "together": TOGETHER})
    assert shown.data is not None
    assert shown.data["slow answers"] == [4, 4] and shown.data["slow pages"] == [4, 1]
    assert "slow answers: 4, slow pages: 4" in shown.html and "slow answers: 4, slow pages: 1" in shown.html
    assert "together: slow answers: 4 of 24, slow pages: 1 of 6" in shown.alt


def test_all_is_drawn_inside_both_layouts() -> None:
    rows = [[(page + leaf) % 3 == 0 for page in range(32)] for leaf in range(16)]
    svgs = Drawn(figures.slow_answers({"one": rows, "another": rows}).html).svgs
    assert [width for width, _, _ in svgs] == [680, 340]
    filled = sum(map(sum, rows))
    for width, height, rects in svgs:
        assert len(rects) == 2 * (1 + filled + 32)
        for rect in rects:
            assert float(rect["x"]) >= 0 and float(rect["x"]) + float(rect["width"]) <= width
            assert float(rect["y"]) >= 0 and float(rect["y"]) + float(rect["height"]) <= height


@pytest.mark.parametrize(
    "scenes",
    [
        {},
        {str(n): APART for n in range(3)},
        {"none": []},
        {"wide": [[True] * 33]},
        {"deep": [[True]] * 17},
        {"ragged": [[True, False], [True]]},
        {"apart": APART, "other": [[True]]},
    ],
)
def test_answers_that_cannot_be_drawn_are_refused(scenes: Any) -> None:
    with pytest.raises(figures.FigureError):
        figures.slow_answers(scenes)
