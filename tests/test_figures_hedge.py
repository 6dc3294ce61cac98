"""The pictures of a second copy say what the rows and the copies say, and both layouts hold them."""

from __future__ import annotations

import itertools
import math
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from underload import figures
from underload.figures.hedge import Copy
from underload.figures.moving import Commit
from underload.figures.wording import keep_units

LAWS = {"server": "the server it meets", "own": "its own length"}
LOADS, DELAYS = (0.3, 0.8), (0.0, 0.1, 0.4)


def rows() -> list[dict[str, Any]]:
    """Made-up outcomes: copies help at the low load, drown the servers at the high one, and do nothing for `own`."""
    found: list[dict[str, Any]] = []
    for law, stops, load, delay in itertools.product(LAWS, (True, False), (0.0, *LOADS), (*DELAYS, None)):
        p99: float | None = 0.5 * (1 + load)
        if law == "server" and delay is not None:
            p99 = 0.2 + delay if load < 0.5 else 1.2 if stops or delay else None
        extra = 0.0 if delay is None else math.exp(-5 * delay)
        found.append(
            {"law": law, "stops": stops, "load": load, "delay": delay, "p99": p99, "extra": extra, "busy": load}
        )
    return found


def picture(**more: Any) -> figures.Picture:
    return figures.hedge_delay(rows(), laws=LAWS, **more)


def test_numbers_at_every_setting_are_those_of_the_rows() -> None:
    shown = picture()
    assert shown.data is not None
    names = (
        "A request is slow because of",
        "A copy that is not needed any more",
        "Load without hedges",
        "Hedge after (s)",
    )
    settings = list(zip(*(shown.data[name] for name in names), strict=True))
    assert len(settings) == 2 * len(LAWS) * len(LOADS) * len(DELAYS)
    found = {(row["law"], row["stops"], row["load"], row["delay"]): row for row in rows()}
    words = {value: key for key, value in LAWS.items()}
    for position, (law, rest, load, delay) in enumerate(settings):
        key = (words[law], rest == "is stopped", load)
        row, never = found[*key, delay], found[*key, None]
        p99 = shown.data["p99 (s)"][position]
        assert p99 == (math.inf if row["p99"] is None else row["p99"])
        assert shown.data["p99 without (s)"][position] == never["p99"]
        assert shown.data["extra requests (%)"][position] == pytest.approx(100 * row["extra"])
        assert shown.data["servers busy (%)"][position] == pytest.approx(100 * row["busy"])


def test_it_says_whether_a_copy_helps() -> None:
    assert (
        keep_units("61 % more requests take the p99 down to 46 % of what it was; 0 s would be best.")
        in picture(start=("server", True, 0.3, 0.1)).html
    )
    assert (
        keep_units("14 % more requests make the p99 1.3 times as long; no delay here helps.")
        in picture(start=("server", True, 0.8, 0.4)).html
    )
    assert (
        keep_units("14 % more requests change next to nothing; no delay here helps.")
        in picture(start=("own", True, 0.3, 0.4)).html
    )
    assert "With so many copies the servers cannot keep up." in picture(start=("server", False, 0.8, 0.0)).html


def test_a_guess_is_made_first() -> None:
    html = picture(commit=Commit("Which delay?", control="delay")).html
    assert "Which delay?" in html and 'class="ul-guess"' in html


def test_no_combination_may_be_missing() -> None:
    with pytest.raises(figures.FigureError, match="no row for law 'own', stops False, load 0.8 and a delay of ∞"):
        figures.hedge_delay(rows()[:-1], laws=LAWS)
    with pytest.raises(figures.FigureError, match="0 loads above 0"):
        figures.hedge_delay([row for row in rows() if row["load"] == 0], laws=LAWS)


# ---- copies in time

OTHERS = [Copy(0, 0, 0, 90), Copy(1, 0, 0, 40)]
ONCE = [*OTHERS, Copy(0, 10, 90, 120, mine=True)]
TIED = [*OTHERS, Copy(0, 10, None, 40, answered=False, mine=True), Copy(1, 10, 40, 70, mine=True)]
RUNS = [*OTHERS, Copy(0, 10, 90, 100, answered=False, mine=True), Copy(1, 60, 70, 100, mine=True)]


class Drawn(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))


def test_copies_say_who_answers_and_what_becomes_of_the_other() -> None:
    shown = figures.copies_in_time({"once": ONCE, "tied": TIED, "hedged": RUNS}, servers=("A", "B"), end=130)
    assert "once: answered by A after 110 ms" in shown.alt
    assert "tied: answered by B after 60 ms, the copy at A is taken out of the line" in shown.alt
    assert "hedged: answered by B after 90 ms, the copy at A is stopped while it runs" in shown.alt
    assert "110 ms" in shown.html and "60 ms" in shown.html
    assert shown.data is not None and shown.data["started (ms)"] == [90, None, 40, 90, 70]


def test_copies_stay_inside_both_layouts() -> None:
    policies = {str(number): RUNS for number in range(4)}
    drawn = Drawn(figures.copies_in_time(policies, servers=("server A", "server B"), end=125).html).elements
    width = height = 0.0
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
    assert boxes == 2 * 4 * 4


@pytest.mark.parametrize(
    "policies",
    [
        {},
        {str(number): ONCE for number in range(5)},
        {"unanswered": OTHERS},
        {"past the end": [Copy(0, 10, 90, 140, mine=True)]},
        {"backwards": [Copy(0, 10, 5, 20, mine=True)]},
        {"no lane": [Copy(2, 10, 15, 20, mine=True)]},
    ],
)
def test_copies_that_cannot_be_drawn_are_refused(policies: dict[str, list[Copy]]) -> None:
    with pytest.raises(figures.FigureError):
        figures.copies_in_time(policies, servers=("A", "B"), end=130)


def test_plots_over_one_axis_start_at_one_place_and_name_it_once() -> None:
    drawn = re.sub(r"<script.*", "", picture().html, flags=re.DOTALL)
    plots = re.findall(r'<svg class="ul-(wide|narrow)".*?<svg class="ul-items" x="(\d+)"', drawn)
    assert [kind for kind, _ in plots] == ["wide", "narrow"] * 2
    assert len({left for _, left in plots}) == 1
    assert drawn.count(">hedge after (ms)</text>") == 2  # under the lower plot, in both layouts


def test_both_plots_are_shaded_where_the_servers_fall_behind() -> None:
    shown = picture(start=("server", False, 0.8, 0.1)).html
    assert re.sub(r"<script.*", "", shown, flags=re.DOTALL).count('class="ul-region"') == 4  # two plots, two layouts
