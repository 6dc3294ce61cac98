"""Figures as data and markup: looks, numbers in words, stills, the figure that moves, diagrams. No browser here."""

from __future__ import annotations

import itertools
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from underload import figures
from underload.figures import landing, palette, plot
from underload.figures.palette import FAMILIES, LOOKS

HOSTILE = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)> & <!--"
VOID = {"input", "img", "br", "meta", "link", "hr"}


class Page(HTMLParser):
    """A parsed figure: every element with its attributes, texts by element, and whether tags close in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(html)
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> inside {self.open}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag: str, **attrs: str) -> list[dict[str, str | None]]:
        return [a for t, a in self.elements if t == tag and all(a.get(k) == v for k, v in attrs.items())]

    def text_of(self, tag: str) -> list[str]:
        return [text for t, text in self.texts if t == tag]


def data_of(picture: figures.Picture) -> dict[str, Any]:
    found = re.search(r'<script type="application/json">(.*?)</script>', picture.html, re.DOTALL)
    assert found
    return json.loads(found[1])


def one_slider(frame: Any = None, **more: Any) -> figures.Picture:
    def plain(n: int) -> figures.Frame:
        return figures.Frame(
            curves=[figures.Curve("step", [1, 2, 4], [10.0, 11.0, 13.0])],
            marks=[figures.Mark(n, 9.0 + n)],
            numbers=[figures.Number("step time", (9.0 + n) / 1e3, "s")],
            says=f"n is {n}",
        )

    settings: dict[str, Any] = {
        "title": "A title",
        "alt": "what it shows",
        "panels": [figures.Panel(figures.Axis("batch size"), figures.Axis("step time", "ms"))],
    }
    return figures.moving_figure(frame or plain, [figures.Slider("n", "Batch size", [1, 2, 4])], **(settings | more))


# ------------------------------------------------------------------------------------------------ looks


def linear(colour: str) -> np.ndarray:
    value = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str) -> float:
    """WCAG 2 contrast ratio."""
    high, low = sorted((float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (a, b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


# Machado, Oliveira & Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency" (2009),
# severity 1.0, on linear RGB.
SIGHT = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def lab(rgb: np.ndarray) -> np.ndarray:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    t = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.95047, 1, 1.08883])
    f = np.where(t > 0.008856, np.cbrt(t), 7.787 * t + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", [name for name in LOOKS if name not in ("grid", "surface")])
def test_every_colour_stands_out_from_the_page(name: str, theme: str) -> None:
    pages = {"light": ("#ffffff", "#fdfcf9"), "dark": ("#14171b", "#15191f")}[theme]
    colour = getattr(LOOKS[name], theme)
    need = 4.5 if name in ("ink", "quiet", "choice", "limit", "latency", "throughput") else 3.0  # 4.5: also for text
    assert min(contrast(colour, page) for page in pages) >= need


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    ("one", "other"), [pair for names in FAMILIES.values() for pair in itertools.combinations(names, 2)]
)
def test_looks_of_a_family_differ_for_every_kind_of_sight(one: str, other: str, theme: str) -> None:
    a, b = (linear(getattr(LOOKS[name], theme)) for name in (one, other))
    for kind, matrix in SIGHT.items():
        distance = float(np.linalg.norm(lab(matrix @ a) - lab(matrix @ b)))
        assert distance >= 15, f"{one} and {other} are {distance:.0f} apart in {kind}"


def test_light_colours_are_unique_since_show_tells_looks_apart_by_them() -> None:
    assert len({look.light for look in LOOKS.values()}) == len(LOOKS)


def test_evidence_differs_by_shape_and_not_by_colour_alone() -> None:
    shapes = [(LOOKS[n].line, LOOKS[n].marker) for n in FAMILIES["evidence"]]
    assert len(set(shapes)) == len(shapes)


def test_look_gives_matplotlib_keywords_and_refuses_unknown_names() -> None:
    assert figures.look("measurement", alpha=0.5)["alpha"] == 0.5
    assert figures.look("prediction", variant=1)["linestyle"] != figures.look("prediction")["linestyle"]
    with pytest.raises(figures.FigureError, match="no look is called 'guess'"):
        figures.look("guess")
    with pytest.raises(figures.FigureError, match="variant 4"):
        figures.look("prediction", variant=4)


# ------------------------------------------------------------------------------------------------ words


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (0.0213, "s", "21.3 ms"),
        (0.9996, "s", "1 s"),
        (0.99949, "s", "999 ms"),
        (1e-3, "s", "1 ms"),
        (2.04e-5, "s", "20.4 µs"),
        (0.0, "s", "0 s"),
        (61.2, "s", "61.2 s"),
        (5.4e8, "B", "540 MB"),
        (999_600, "B", "1 MB"),
        (12_346, "tokens", "12,346 tokens"),
        (12_346.0, "tokens", "12,300 tokens"),
        (1, "requests", "1 request"),
        (1, "tokens/s", "1 tokens/s"),
        (1, "ms", "1 ms"),
        (-3.2, "s", "−3.2 s"),
        (1.234e10, "", "1.23×10¹⁰"),
        (9.999e9, "", "1×10¹⁰"),
        (3.1e-6, "", "3.1×10⁻⁶"),
        (None, "s", "no value"),
        (math.nan, "s", "no value"),
        (math.inf, "s", "∞"),
        (np.float64(0.5), "s", "500 ms"),
        (np.int64(7), "users", "7 users"),
    ],
)
def test_quantity_says_a_value_as_a_person_would(value: Any, unit: str, said: str) -> None:
    assert figures.quantity(value, unit) == said


# ------------------------------------------------------------------------------------------------ stills


def a_plot(**more: Any) -> figures.Picture:
    fig, ax = figures.axes(xlabel="batch size", ylabel="step time", yunit="ms", xlog=True)
    ax.plot([1, 2, 4], [10, 11, 13], **figures.look("prediction"), label="predicted")
    ax.plot([1, 2, 4], [10.5, 11.2, 13.1], **figures.look("measurement"), label="measured")
    ax.legend()
    return figures.show(fig, alt="Step time <against> batch size", **more)


def test_show_replaces_house_colours_by_variables_and_keeps_text() -> None:
    html = a_plot().html
    assert html.count("<style") == 1, "a style of matplotlib's would reach the whole page"
    svg = html.split("</style>")[1]
    assert "var(--ul-prediction)" in svg and "var(--ul-measurement)" in svg
    assert not re.search(r"#[0-9a-f]{6}\b", svg), "a fixed colour would not follow the theme"
    assert "step time (ms)" in svg and "DejaVu" not in svg
    assert 'aria-label="Step time &lt;against&gt; batch size"' in svg


def test_a_caption_is_no_wider_than_its_plot() -> None:
    figure, axis = figures.axes("x", "y")
    axis.plot([0, 1], [0, 1])
    shown = figures.show(figure, alt="A line", caption="It rises.").html
    svg, caption = (re.search(rf"{what}[^>]*max-width: (\d+)px", shown) for what in ("<svg", "<figcaption"))
    assert svg and caption and svg[1] == caption[1]


def test_show_is_deterministic_and_its_ids_are_its_own() -> None:
    first, second = a_plot().html, a_plot().html
    assert first == second
    other = a_plot(caption="another")
    fig, ax = figures.axes(xlabel="x", ylabel="y")
    ax.plot([1, 2], [1, 3])
    different = figures.show(fig, alt="another drawing")
    ids = [set(re.findall(r'\bid="([^"]+)"', p.html)) for p in (other, different)]
    assert ids[0] and not ids[0] & ids[1]
    for picture in (other, different):
        used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', picture.html))
        assert used <= set(re.findall(r'\bid="([^"]+)"', picture.html))


def test_data_of_a_still_are_its_table() -> None:
    columns = {"batch size": [1, 2, 4], "step time (ms)": np.array([10.25, 11.0, 13.0])}
    picture = a_plot(data=columns)
    page = Page(picture.html)
    assert page.text_of("td") == ["1", "10.25", "2", "11", "4", "13"]
    assert picture.data is not None and picture.data["batch size"] == [1, 2, 4]
    read_off = a_plot(data=True).data
    assert read_off == {"batch size": [1, 2, 4], "predicted": [10, 11, 13], "measured": [10.5, 11.2, 13.1]}


def test_a_column_of_words_is_marked_in_its_head_too_and_numbers_are_not() -> None:
    made = a_plot(data={"run": ["a", "b"], "at": ["5 %", "−3 %"], "p99 (s)": [1.5, "grows"]}).html
    assert re.findall(r"<th [^>]*>", made) == [
        '<th scope="col" class="ul-words">',
        '<th scope="col">',
        '<th scope="col">',
    ]
    assert made.count('<td class="ul-words">') == 2 and made.count("<td>") == 4


def test_what_show_refuses() -> None:
    fig, _ = figures.axes()
    with pytest.raises(figures.FigureError, match="alt is empty"):
        figures.show(fig, alt=" ")
    with pytest.raises(figures.FigureError, match="differ in length"):
        figures.show(fig, alt="a", data={"a": [1], "b": [1, 2]})
    with pytest.raises(figures.FigureError, match="figure name 'Two Words'"):
        figures.show(fig, alt="a", name="Two Words")
    with pytest.raises(figures.FigureError, match="2 labels"):
        figures.axes(xlabel=("a", "b"), cols=3)


def test_a_picture_stands_in_a_terminal_as_its_alternative_text() -> None:
    picture = a_plot()
    assert repr(picture) == "[figure: Step time <against> batch size]"
    assert picture._repr_mimebundle_()["text/html"] == picture.html


def test_pyplot_figures_are_closed_so_that_a_notebook_draws_them_once() -> None:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots()
    ax.plot([1, 2])
    figures.show(fig, alt="a line")
    assert fig.number not in plt.get_fignums()


# ------------------------------------------------------------------------------------------------ the figure that moves


def test_a_moving_figure_is_well_formed_and_labelled() -> None:
    picture = one_slider(caption="What to see", name="step")
    page = Page(picture.html)
    (figure,) = page.all("figure")
    assert figure["id"] == "fig-step"
    (slider,) = page.all("input", type="range")
    assert (slider["min"], slider["max"], slider["aria-valuetext"]) == ("0", "2", "1")
    assert page.all("p", role="status")[0]["aria-live"] == "polite"
    assert all(svg.get("aria-label") for svg in page.all("svg", role="img"))
    assert {svg["class"] for svg in page.all("svg", role="img")} == {"ul-wide", "ul-narrow"}
    assert "step time (ms)" in page.text_of("text") and "batch size" in page.text_of("text")
    assert "src" not in {key for _, attrs in page.elements for key in attrs}
    assert not re.search(r"https?://(?!www\.w3\.org/)", picture.html), "nothing from outside"


def test_whatever_takes_the_focus_keeps_its_keys_in_jupyterlab() -> None:
    """JupyterLab's arrow keys select cells unless the focused element itself says that it wants them."""
    page = Page(one_slider(commit=figures.Commit("?", options=["a", "b"])).html)
    takes = [(t, a) for t, a in page.elements if t in ("input", "button", "summary") or "tabindex" in a]
    assert len(takes) >= 6
    assert all(attrs.get("data-lm-suppress-shortcuts") == "true" for _, attrs in takes)


def test_the_same_data_give_the_same_bytes() -> None:
    assert one_slider().html == one_slider().html
    assert "0x" not in re.sub(r"#[0-9a-f]+", "", one_slider().html)


def test_frames_are_called_once_for_every_combination_in_order() -> None:
    calls: list[tuple[int, str]] = []

    def frame(n: int, rule: str) -> figures.Frame:
        calls.append((n, rule))
        return figures.Frame(numbers=[figures.Number("n", n)], marks=[figures.Mark(n, n)])

    picture = figures.moving_figure(
        frame,
        [figures.Slider("n", "N", [1, 2, 3], start=2), figures.Choice("rule", "Rule", {"a": "Full", "b": "Greedy"})],
        title="t",
        alt="a",
        panels=[figures.Panel(figures.Axis("x"), figures.Axis("y"))],
    )
    assert calls == [(1, "a"), (1, "b"), (2, "a"), (2, "b"), (3, "a"), (3, "b")]
    data = data_of(picture)
    assert [f["n"] for f in data["frames"]] == [["1"], ["1"], ["2"], ["2"], ["3"], ["3"]]
    assert data["start"] == [1, 0] and data["counts"] == [3, 2]
    assert picture.data == {"N": [1, 1, 2, 2, 3, 3], "Rule": ["Full", "Greedy"] * 3, "n": [1, 1, 2, 2, 3, 3]}


def test_a_curve_that_no_control_changes_is_stored_once() -> None:
    data = data_of(one_slider())
    assert [item["kind"] for item in data["pool"]].count("curve") == 1
    assert len({f["i"][0] for f in data["frames"]}) == 1


def test_the_numbers_in_the_table_are_the_data() -> None:
    page = Page(one_slider().html)
    cells = page.text_of("td")
    assert cells[:6] == ["1", "0.01", "2", "0.011", "4", "0.013"]
    assert cells[6:] == ["1", "10", "2", "11", "4", "13"]
    heads = page.text_of("th")
    assert heads == ["Batch size", "step time (s)", "batch size", "step"]


def test_hostile_text_stays_text_everywhere() -> None:
    def frame(n: str) -> figures.Frame:
        return figures.Frame(
            curves=[figures.Curve(HOSTILE, [1, 2], [1, 2])],
            marks=[figures.Mark(1, 1, HOSTILE)],
            rules=[figures.Rule(x=1.5, label=HOSTILE)],
            bands=[figures.Band(y=(1, None), label=HOSTILE)],
            bars=[figures.Bar((1, 2), (0, 1), label=HOSTILE, name=HOSTILE)],
            numbers=[figures.Number(HOSTILE, HOSTILE)],
            says=HOSTILE,
        )

    picture = figures.moving_figure(
        frame,
        [figures.Slider("n", HOSTILE, [HOSTILE, "b"]), figures.Choice("n2", HOSTILE, {"k": HOSTILE})][:1],
        title=HOSTILE,
        alt=HOSTILE,
        caption=HOSTILE,
        panels=[figures.Panel(figures.Axis(HOSTILE, HOSTILE), figures.Axis(HOSTILE), title=HOSTILE)],
        commit=figures.Commit(HOSTILE, options=[HOSTILE, "b"], replies=HOSTILE),
    )
    assert len(Page(picture.html).all("script")) == 2
    assert not Page(picture.html).all("img")
    assert data_of(picture)["frames"][0]["s"] == HOSTILE, "and arrives unchanged"
    drawings = [
        figures.token_strip([HOSTILE], [1], caption=HOSTILE),
        figures.stage_bar({HOSTILE: 1.0}),
        figures.ragged_batch([(HOSTILE, 2, 1)]),
        a_plot(caption=HOSTILE, data={HOSTILE: [HOSTILE]}),
    ]
    for drawing in drawings:
        page = Page(drawing.html)
        assert not page.all("script") and not page.all("img")


def test_missing_and_infinite_values_leave_gaps_and_say_so() -> None:
    def frame(n: int) -> figures.Frame:
        return figures.Frame(
            curves=[
                figures.Curve("c", [1, 2, 3, 4], [1.0, math.nan, math.inf, 2.0], low=[0, 0, math.nan, 1], high=[2] * 4)
            ],
            marks=[figures.Mark(2, math.inf)],
            numbers=[figures.Number("a", math.inf, "s"), figures.Number("b", math.nan), figures.Number("c", None)],
        )

    picture = one_slider(frame)
    data = data_of(picture)
    curve = next(item for item in data["pool"] if item["kind"] == "curve")
    assert curve["y"] == [1, None, None, 2]
    assert data["frames"][0]["n"] == ["∞", "no value", "no value"]
    d = next(a["d"] for _, a in Page(picture.html).elements if a.get("class") == "ul-curve" and a["d"].count("M") > 1)
    assert d.count("M") == 2 and "NaN" not in picture.html.split("<script>")[0]


def test_what_a_figure_says_keeps_its_units_with_their_numbers() -> None:
    """As title and caption do: the sentence of each setting, as first drawn and as the script takes it, and replies."""
    frame = lambda n: figures.Frame(says=f"{n} requests wait 20 ms.")  # noqa: E731
    guess = figures.Commit("How long?", values=[0.01, 0.02], unit="s", answer=0.02)
    choice = figures.Commit("How long?", options=["a", "b"], replies=["10 ms", "20 ms"])
    picture = one_slider(frame, commit=guess)
    assert "1 requests wait 20\u00a0ms." in Page(picture.html).text_of("p")
    data = data_of(picture)
    assert [each["s"] for each in data["frames"]] == [f"{n} requests wait 20\u00a0ms." for n in (1, 2, 4)]
    assert data["commit"]["replies"][0].startswith("You said 10\u00a0ms; it is 20\u00a0ms.")
    assert data_of(one_slider(commit=choice))["commit"]["replies"] == ["10\u00a0ms", "20\u00a0ms"]


def test_a_commit_hides_nothing_without_a_script() -> None:
    html = one_slider(commit=figures.Commit("Which?", control="n")).html
    before = html.split("<script>")[0].split("</style>")[1]
    assert "ul-waiting" not in before
    assert '<form class="ul-guess" hidden>' in before


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (40.0, "You said 40 ms: exactly that."),
        (42.0, "You said 42 ms; it is 40 ms. Within a tenth."),
        (80.0, "You said 80 ms; it is 40 ms. That is 2 times too high."),
        (10.0, "You said 10 ms; it is 40 ms. That is 4 times too low."),
        (0.0, "You said 0 ms; it is 40 ms. The difference is −40 ms."),
    ],
)
def test_the_reply_to_a_guess_names_the_distance(guess: float, said: str) -> None:
    assert figures.Commit("?", values=[10, 40, 80], unit="ms", answer=40.0).reply(guess) == said


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"alt": " "}, "title and alt"),
        ({"panels": []}, "1 controls and 0 panels"),
        ({"commit": figures.Commit("?", control="m")}, "the controls are"),
        ({"commit": figures.Commit("?")}, "exactly one of"),
        ({"commit": figures.Commit("?", values=[1, 2])}, "needs answer="),
        ({"commit": figures.Commit("?", options=["a", "b"], replies=["1", "2", "3"])}, "3 replies to 2 options"),
        ({"name": "Step Time"}, "figure name"),
        ({"frame": lambda n: None}, "is a NoneType"),
        ({"frame": lambda n: 1 / 0}, "ZeroDivisionError"),
        ({"frame": lambda n: figures.Frame(marks=[figures.Mark(1, 1, panel=3)])}, "panel 3"),
        ({"frame": lambda n: figures.Frame(curves=[figures.Curve("c", [1], [1, 2])])}, "1 x and 2 y"),
        ({"frame": lambda n: figures.Frame(rules=[figures.Rule()])}, "exactly one of x and y"),
        ({"frame": lambda n: figures.Frame(curves=[figures.Curve("c", [1], [1], look="mine")])}, "no look"),
        ({"frame": lambda n: figures.Frame(numbers=[figures.Number(f"n{n}", n)])}, "give every frame the same"),
        (
            {
                "frame": lambda n: figures.Frame(
                    curves=[figures.Curve("c", range(40_000), np.arange(40_000) * (n + 0.1))]
                )
            },
            "at most 600,000",
        ),
    ],
)
def test_what_a_moving_figure_refuses(change: dict[str, Any], words: str) -> None:
    with pytest.raises(figures.FigureError, match=re.escape(words)):
        one_slider(**change)


def test_too_many_combinations_are_refused_before_any_is_computed() -> None:
    def frame(**_: Any) -> figures.Frame:
        raise AssertionError("never called")

    controls = [figures.Slider(name, name, range(50)) for name in ("a", "b")]
    with pytest.raises(figures.FigureError, match="2500 combinations"):
        figures.moving_figure(
            frame, controls, title="t", alt="a", panels=[figures.Panel(figures.Axis("x"), figures.Axis("y"))]
        )


def test_a_start_outside_the_values_is_refused() -> None:
    with pytest.raises(figures.FigureError, match="starts at 3"):
        figures.moving_figure(
            lambda n: figures.Frame(),
            [figures.Slider("n", "N", [1, 2], start=3)],
            title="t",
            alt="a",
            panels=[figures.Panel(figures.Axis("x"), figures.Axis("y"))],
        )


# ------------------------------------------------------------------------------------------------ axes


@pytest.mark.parametrize(
    ("limits", "log", "room", "names"),
    [
        ((0.0, 100.0), False, 4, ["0", "25", "50", "75", "100"]),
        ((0.0, 1.0), False, 5, ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        ((1.0, 50.0), True, 6, ["1", "2", "5", "10", "20", "50"]),
        ((1e-3, 10.0), True, 5, ["0.001", "0.01", "0.1", "1", "10"]),
        ((1.0, 1e7), True, 8, ["1", "10", "100", "1,000", "10,000", "100,000", "1,000,000", "10,000,000"]),
    ],
)
def test_ticks_stand_on_round_numbers(limits: tuple[float, float], log: bool, room: int, names: list[str]) -> None:
    assert plot.ticks(figures.Axis("a", log=log), limits, room).names == names


def test_limits_hold_every_usable_value() -> None:
    axis = figures.Axis("a")
    assert plot.nice_limits([1.0, 5.0, math.nan, math.inf], axis)[0] == 0.0
    low, high = plot.nice_limits([90.0, 100.0], axis)
    assert 0 < low < 90 and high > 100
    assert plot.nice_limits([], axis) == (0.0, 1.0)
    assert plot.nice_limits([0.0, -1.0, 10.0], figures.Axis("a", log=True))[0] > 0
    with pytest.raises(figures.FigureError, match="both above 0"):
        plot.nice_limits([], figures.Axis("a", log=True, limits=(0, 1)))


@pytest.mark.parametrize("value", [0.05, 0.25, 2.45, 2.5, -0.05, -3.25, 1e4 + 0.05, 12.0])
def test_pixels_are_rounded_as_the_script_rounds_them(value: float) -> None:
    assert float(plot.px(value)) == math.floor(value * 10 + 0.5) / 10


# ------------------------------------------------------------------------------------------------ diagrams


@pytest.mark.parametrize(
    "make",
    [
        lambda: figures.request_life(3),
        lambda: figures.request_life(8),
        lambda: figures.decode_step(),
        lambda: figures.decode_step((6,)),
        lambda: figures.ragged_batch(),
        lambda: figures.ragged_batch([("A", 12, 0), ("B", 2, 10)]),
        lambda: figures.kv_filling(),
        lambda: figures.kv_filling(1, 1, 1),
        lambda: figures.kv_filling(4, 11, 14),
        lambda: figures.token_strip(["a"] * 60, range(60)),
        lambda: figures.stage_bar({"queue": 0.0, "prefill": 1e-9, "decode": 1.0, "mine": 2e-3}),
    ],
)
def test_a_diagram_has_both_layouts_inside_its_frame(make: Any) -> None:
    page = Page(make().html)
    drawn = page.all("svg", role="img")
    assert [svg["class"] for svg in drawn] == ["ul-wide", "ul-narrow"]
    assert len({svg["aria-label"] for svg in drawn}) == 1 and len(drawn[0]["aria-label"] or "") > 40
    widths = iter((680.0, 340.0))
    width = 0.0
    for tag, attrs in page.elements:
        if tag == "svg":
            width = next(widths)
        elif tag in ("rect", "text", "circle") and width:
            x = float(attrs.get("x") or attrs.get("cx") or 0)
            assert -0.5 <= x <= width + 0.5
            assert x + float(attrs.get("width") or 0) <= width + 0.5


def test_diagrams_refuse_what_does_not_fit() -> None:
    for call, words in [
        (lambda: figures.request_life(2), "draw 3 to 8"),
        (lambda: figures.decode_step((7,)), "1 to 6"),
        (lambda: figures.ragged_batch([("A", 0, 3)]), "1 or more new"),
        (lambda: figures.kv_filling(10, 10, 12), "reserved"),
        (lambda: figures.token_strip(["a"], [1, 2]), "one id for each"),
        (lambda: figures.stage_bar({"queue": -1.0}), "0 or more"),
        (lambda: figures.stage_bar({"queue": 0.0}), "above 0"),
    ]:
        with pytest.raises(figures.FigureError, match=words):
            call()


def test_a_ragged_batch_says_the_numbers_of_its_batch() -> None:
    picture = figures.ragged_batch([("A", 3, 0), ("B", 1, 7)])
    wide = picture.html.split('class="ul-wide"')[1].split('class="ul-narrow"')[0]
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", wide)
    assert texts[-3:] == ["7", "1", "8"], "position, query length and context length of the last sequence"


# ------------------------------------------------------------------------------------------------ the collision


def recording(users: int = 5, batches: tuple[int, ...] = (1, 2, 5)) -> dict[str, Any]:
    sizes = sorted({*batches, *(users % b for b in batches if users % b)})
    return {
        "users": users,
        "output_tokens": 4,
        "prompt_tokens": 2,
        "batch_sizes": list(batches),
        "rows": [{"batch_size": n, "prefill_seconds": [n * 1.0], "steps_ms": [[1000.0 * (1 + n)] * 3]} for n in sizes],
    }


def test_serving_in_groups_adds_up() -> None:
    # groups of 2, 2 and 1; a group of n reads for n s, then writes 3 further tokens at (1 + n) s each
    run = landing.serve(landing.groups(recording()), 2, 5, 4)
    assert [g.size for g in run.groups] == [2, 2, 1]
    assert run.starts == [0, 11, 22]
    assert run.done == 11 + 11 + 7
    assert run.last_first_token == 22 + 1
    assert run.throughput == 5 * 4 / 29


def test_the_collision_never_interpolates() -> None:
    less = recording()
    less["rows"] = [row for row in less["rows"] if row["batch_size"] != 2]
    with pytest.raises(figures.FigureError, match="a run of 2 that was not recorded"):
        figures.collision(less)


def test_the_collision_draws_every_user_and_the_live_point() -> None:
    picture = figures.collision(recording(), live=(2, 3.5))
    data = data_of(picture)
    for frame in data["frames"]:
        rows = [
            data["pool"][i]
            for i in frame["i"]
            if data["pool"][i]["kind"] == "bar" and data["pool"][i]["look"] == "decode"
        ]
        assert [rows[0]["y"][0], rows[-1]["y"][1]] == [0.5, 5.5]
        assert all(a["y"][1] == b["y"][0] for a, b in itertools.pairwise(rows)), "one group after another, nobody twice"
    live = [item for item in data["pool"] if item["look"] == "live"]
    assert [(item["x"], item["y"]) for item in live] == [([2], [3500])]
    assert picture.data is not None
    assert picture.data["the machine writes (tokens/s)"] == [20 / 35, 20 / 29, 20 / 23]


def test_a_live_point_beyond_the_recorded_ones_keeps_the_plot_and_says_its_value() -> None:
    busy = data_of(figures.collision(recording(), live=(2, 60.0)))
    quiet = data_of(figures.collision(recording(), live=(2, 3.5)))
    assert busy["panels"] == quiet["panels"]
    (mark,) = (item for item in busy["pool"] if item["look"] == "live")
    assert mark["label"] == "measured just now: 60 s ↑" and not mark["pin"]


def test_the_cover_is_a_file_of_its_own_in_both_themes() -> None:
    svg = landing.cover(recording())
    root = ElementTree.fromstring(svg)
    assert root.tag.endswith("svg") and root.get("aria-label")
    used = set(re.findall(r"var\((--ul-[a-z]+)\)", svg))
    assert used and used <= set(re.findall(r"(--ul-[a-z]+):", svg)), "every colour is defined in the file"
    assert "prefers-color-scheme:dark" in svg
    assert landing.cover(recording()) == svg


def test_the_recorded_collision_is_whole() -> None:
    stored = Path(__file__).parents[1] / "chapters" / "data" / "collision.json"
    found = json.loads(stored.read_text())
    assert {"date", "machine", "command", "model", "path", "other_load"} <= set(found)
    assert found["users"] == 50
    for row in found["rows"]:
        assert len(row["prefill_seconds"]) == len(row["steps_ms"]) >= 2
        assert all(len(steps) == found["output_tokens"] - 1 and min(steps) > 0 for steps in row["steps_ms"])
    figures.collision(found)  # every group of every slider position was recorded


# ------------------------------------------------------------------------------------------------ imports


def test_figures_start_without_matplotlib_and_never_with_torch() -> None:
    code = (
        "import sys; from underload import figures; figures.request_life(); assert 'matplotlib' not in sys.modules;"
        "figures.show(figures.axes()[0], alt='a'); "
        "assert 'torch' not in sys.modules and 'matplotlib.pyplot' not in sys.modules"
    )
    lib = Path(palette.__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(lib), "PATH": ""}, timeout=120)
