"""The one figure that moves without a kernel: values computed here for every setting, looked up by a small script.

`moving_figure` calls an author's function once for every combination of control values and writes the answers into one
self-contained piece of HTML: the drawing as it starts, native sliders and radios, numbers, a data table, and a script
that looks frames up and draws them. It computes nothing: formulas and simulations stay in the library. The figure works
in the built book and in JupyterLab, offline, with a keyboard, on a phone and in both themes; without a script, and on
paper, it is a still with its numbers. The same data give the same bytes.
"""

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from underload.figures.items import MARKERS, curve_style, draw_item
from underload.figures.palette import FigureError, find, ink
from underload.figures.plot import (
    Canvas,
    Layout,
    Panel,
    Scale,
    Ticks,
    element,
    frame_of_axes,
    layouts,
    left_margin,
    nice_limits,
    ticks,
)
from underload.figures.still import Picture, asset, columns_of_lines, data_fold, opening
from underload.figures.wording import OWN_KEYS, attributes, keep_units, quantity, significant, table

MAX_FRAMES = 2_000
MAX_BYTES = 600_000

# ------------------------------------------------------------------------------------------------ controls


@dataclass(frozen=True)
class Slider:
    """A native slider over exactly these values, smallest step by step. `unit` follows the value."""

    name: str
    label: str
    values: Sequence[float | int | str]
    start: float | int | str | None = None
    unit: str = ""

    def options(self) -> list[tuple[Any, str]]:
        return [(v, v if isinstance(v, str) else quantity(v, self.unit, 4)) for v in self.values]


@dataclass(frozen=True)
class Choice:
    """Native radios: `choices` maps the value the frame function gets to the words the reader sees."""

    name: str
    label: str
    choices: Mapping[str, str]
    start: str | None = None

    def options(self) -> list[tuple[Any, str]]:
        return list(self.choices.items())


Control = Slider | Choice

# ------------------------------------------------------------------------------------------------ what a frame holds


@dataclass(frozen=True)
class Curve:
    """Points joined as their look says. NaN and infinity leave a gap. `low`/`high`: an interval around the curve."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    look: str = "prediction"
    panel: int = 0
    variant: int = 0
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    area: bool = False
    step: bool = False
    thin: bool = False
    legend: bool = True  # off where the axis says it already; the name stays in the data table


@dataclass(frozen=True)
class Mark:
    """One emphasised point, with thin lines to both axes unless `guides` is off."""

    x: float
    y: float
    label: str = ""
    look: str = "choice"
    panel: int = 0
    guides: bool = True
    pin: bool = True  # whether a commit to a control leaves it behind, as the reader's choice


@dataclass(frozen=True)
class Rule:
    """A line across the plot at one x or one y: an SLO, a ceiling, the edge of stability."""

    x: float | None = None
    y: float | None = None
    label: str = ""
    look: str = "limit"
    panel: int = 0


@dataclass(frozen=True)
class Band:
    """A shaded region between two x or two y; None reaches the edge."""

    x: tuple[float | None, float | None] | None = None
    y: tuple[float | None, float | None] | None = None
    label: str = ""
    look: str = "quiet"
    panel: int = 0


@dataclass(frozen=True)
class Bar:
    """A rectangle in data units: a bar, a row of a schedule, a block of memory. Its label shows where it fits."""

    x: tuple[float, float]
    y: tuple[float, float]
    look: str = "decode"
    label: str = ""
    panel: int = 0
    name: str = ""  # a name puts the look into the legend
    faint: bool = False  # what happens there is nothing: waiting, unused


@dataclass(frozen=True)
class Number:
    """A value shown large, read out, and kept in the data table."""

    name: str
    value: float | int | str | None
    unit: str = ""
    look: str = "ink"
    digits: int = 3

    @property
    def said(self) -> str:
        return self.value if isinstance(self.value, str) else quantity(self.value, self.unit, self.digits)


Item = Curve | Mark | Rule | Band | Bar


@dataclass(frozen=True)
class Frame:
    """Everything to show at one setting of the controls. `says` is one sentence, shown and read out."""

    curves: Sequence[Curve] = ()
    marks: Sequence[Mark] = ()
    rules: Sequence[Rule] = ()
    bands: Sequence[Band] = ()
    bars: Sequence[Bar] = ()
    numbers: Sequence[Number] = ()
    says: str = ""

    def items(self) -> list[Item]:
        """In drawing order: what lies below first."""
        return [*self.bands, *self.bars, *self.rules, *self.curves, *self.marks]


@dataclass(frozen=True)
class Commit:
    """A guess the reader makes before the figure answers. Exactly one of three ways:

    - `control`: the reader sets that control; the marks of the chosen frame stay, labelled `pin`;
    - `options` (with `replies`, one for all or one each): multiple choice;
    - `values` (with `answer`, `unit`, `mark`): a slider of possible answers; the reply names the distance.
    """

    question: str
    control: str | None = None
    options: Sequence[str] = ()
    replies: Sequence[str] | str = ()
    values: Sequence[float] = ()
    unit: str = ""
    answer: float | None = None
    mark: Callable[[float], Mark] | None = None
    pin: str = "your choice"
    button: str = "Commit"

    def reply(self, value: float) -> str:
        """What is said to a guess of `value`: the answer, and how far off the guess was."""
        assert self.answer is not None
        said, truth = quantity(value, self.unit), quantity(self.answer, self.unit)
        if value == self.answer:
            return f"You said {said}: exactly that."
        if value > 0 and self.answer > 0:
            ratio = max(value, self.answer) / min(value, self.answer)
            if ratio < 1.1:
                return f"You said {said}; it is {truth}. Within a tenth."
            how = f"{significant(ratio, 2):g} times too {'high' if value > self.answer else 'low'}"
            return f"You said {said}; it is {truth}. That is {how}."
        return f"You said {said}; it is {truth}. The difference is {quantity(value - self.answer, self.unit)}."


# ------------------------------------------------------------------------------------------------ the figure


def moving_figure(
    frame: Callable[..., Frame],
    controls: Sequence[Control],
    *,
    title: str,
    alt: str,
    panels: Sequence[Panel],
    caption: str = "",
    commit: Commit | None = None,
    name: str | None = None,
) -> Picture:
    """A figure whose controls move through frames computed now, by `frame(**controls)`, one call a combination.

    Args:
        frame: gets one keyword a control (a slider's value, a choice's key) and returns what to show there.
        controls: sliders and choices, in reading order.
        title: what the figure is about, a line.
        alt: what it shows, said to someone who cannot see it.
        panels: the axes; items name theirs by position (`panel=0`).
        caption: what to see in it. Plain text, as are all labels: nothing is taken as HTML.
        commit: the guess to make before the answer shows.
        name: anchor of the figure, "fig-" put before it.

    Returns:
        A `Picture`; a notebook cell that ends with it shows it.

    Raises:
        FigureError: no controls, panels, alt or title; a start outside a control's values; a combination whose frame
            fails; an item without a panel; more than 2,000 combinations or 600 kB of data.
    """
    _check(controls, title, alt, panels, commit)
    options = [control.options() for control in controls]
    count = math.prod(len(each) for each in options)
    if count > MAX_FRAMES:
        raise FigureError(
            f"{count} combinations of control values; at most {MAX_FRAMES}: take fewer values for a control"
        )
    settings = [
        dict(zip((c.name for c in controls), (v for v, _ in combo), strict=True))
        for combo in itertools.product(*options)
    ]
    frames = [_frame_at(frame, setting) for setting in settings]
    start = [_start_index(control) for control in controls]

    drawn = _prepare(panels, frames)
    pool = Pool()
    looked_up = [_encode(each, panels, pool) for each in frames]
    extra = _encode_commit(commit, controls, pool)
    data = {
        "counts": [len(each) for each in options],
        "start": start,
        "said": [[words for _, words in each] for each in options],
        "labels": [control.label for control in controls],
        "panels": [[*_scale_data(each.x), *_scale_data(each.y)] for each in drawn],
        "layouts": [[[shape.plot_width, shape.plot_height] for shape in each.layouts] for each in drawn],
        "pool": pool.items,
        "frames": looked_up,
        "commit": extra,
        "pin": _pin_style(commit),
    }
    encoded = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    if len(encoded) > MAX_BYTES:
        raise FigureError(
            f"the figure holds {len(encoded):,} bytes of data; at most {MAX_BYTES:,}: take fewer points a curve "
            f"or fewer control values"
        )
    # inside a script element only "<" can end it early
    encoded = encoded.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")

    first = _position(start, data["counts"])  # type: ignore[arg-type]
    shown = frames[first]
    body = [
        f'<p class="ul-title">{escape(keep_units(title))}</p>',
        _commit_form(commit, controls),
        _controls_form(controls, start),
        _setting(controls, start),
        _numbers(frames, shown),
        _legend(frames),
        '<div class="ul-panels">',
        *(
            _panel_svg(panel, position, each, looked_up[first]["i"], pool.items, alt)
            for position, (panel, each) in enumerate(zip(panels, drawn, strict=True))
        ),
        "</div>",
        f'<p class="ul-says"{"" if any(f.says for f in frames) else " hidden"}>{escape(shown.says)}</p>',
        '<p class="ul-sr" role="status" aria-live="polite"></p>',
        f'<figcaption class="ul-caption">{escape(keep_units(caption))}</figcaption>' if caption else "",
        _tables(controls, settings, frames, panels, shown, start),
        f'<script type="application/json">{encoded}</script>',
        f"<script>{asset('moving.js')}</script>",
    ]
    html = opening("ul-moving", name, ("figure.css", "moving.css"), data_ul_moving="") + "".join(body) + "</figure>"
    return Picture(html=html, alt=alt, data=_data(controls, settings, frames))


@dataclass(frozen=True)
class Drawn:
    """One panel ready for its items: scales, layouts, and the axes as markup, one for each layout."""

    x: Scale
    y: Scale
    layouts: list[Layout]
    axes: list[str]


class Pool:
    """Each distinct item once; frames name items by number."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._numbers: dict[str, int] = {}

    def number(self, item: dict[str, Any]) -> int:
        key = json.dumps(item, sort_keys=True)
        if key not in self._numbers:
            self._numbers[key] = len(self.items)
            self.items.append(item)
        return self._numbers[key]


def as_item(thing: Item) -> dict[str, Any]:
    """An item as plain data for the pool: five significant digits, None where there is no value."""
    if isinstance(thing, Curve):
        xs, ys = _values(thing.x), _values(thing.y)
        if len(xs) != len(ys):
            raise FigureError(
                f"curve {thing.name!r} has {len(xs)} x and {len(ys)} y values; give as many of one as of the other"
            )
        item: dict[str, Any] = {
            "kind": "curve",
            "panel": thing.panel,
            "look": thing.look,
            "name": thing.name,
            "x": xs,
            "y": ys,
        }
        item |= curve_style(thing.look, thing.variant)
        if len(xs) > 60 or thing.thin:
            item["marker"] = ""  # so many points are a line, and a thin one is there to compare with
            item["line"] = True
        if (thing.low is None) != (thing.high is None):
            raise FigureError(f"curve {thing.name!r} has one of low and high; give both ends of the interval")
        if thing.low is not None and thing.high is not None:
            item |= {"low": _values(thing.low), "high": _values(thing.high)}
            if not len(item["low"]) == len(item["high"]) == len(xs):
                raise FigureError(f"curve {thing.name!r}: low and high need {len(xs)} values each, as x has")
        return item | {"area": thing.area, "step": thing.step, "thin": thing.thin}
    find(thing.look)
    common = {"panel": thing.panel, "look": thing.look, "label": thing.label}
    if isinstance(thing, Mark):
        found = find(thing.look)
        return common | {
            "kind": "mark",
            "x": _value(thing.x),
            "y": _value(thing.y),
            "guides": thing.guides,
            "pin": thing.pin,
            "marker": MARKERS[found.marker or "circle"],
            "hollow": found.marker in ("ring", "pin"),
        }
    if isinstance(thing, Bar):
        return common | {"kind": "bar", "x": _values(thing.x), "y": _values(thing.y), "faint": thing.faint}
    kind = "rule" if isinstance(thing, Rule) else "band"
    if (thing.x is None) == (thing.y is None):
        raise FigureError(f"a {kind} needs exactly one of x and y, got x={thing.x}, y={thing.y}")
    axis, given = ("x", thing.x) if thing.x is not None else ("y", thing.y)
    value = _values(given) if isinstance(given, tuple) else _value(given)
    return common | {"kind": kind, axis: value}


def _value(value: Any) -> float | int | None:
    if value is None:
        return None
    value = float(value)
    if not math.isfinite(value):
        return None
    value = float(f"{value:.5g}")
    return int(value) if value == int(value) and abs(value) < 1e15 else value


def _values(values: Iterable[Any]) -> list[float | int | None]:
    return [_value(v) for v in values]


def _check(controls: Sequence[Control], title: str, alt: str, panels: Sequence[Panel], commit: Commit | None) -> None:
    if not controls or not panels:
        raise FigureError(
            f"{len(controls)} controls and {len(panels)} panels; a moving figure needs at least one of each"
        )
    if not title.strip() or not alt.strip():
        raise FigureError("title and alt must say something: alt is all that a reader who cannot see gets")
    names = [control.name for control in controls]
    if len(set(names)) < len(names):
        raise FigureError(f"control names {names} repeat: give each its own")
    for control in controls:
        if not control.options():
            raise FigureError(f"control {control.name!r} has no values; give at least one")
        _start_index(control)
    if commit is None:
        return
    if [commit.control is not None, bool(commit.options), bool(commit.values)].count(True) != 1:
        raise FigureError("a commit takes exactly one of control=, options= and values=")
    if commit.control is not None and commit.control not in names:
        raise FigureError(f"commit names the control {commit.control!r}; the controls are {names}")
    if commit.values and commit.answer is None:
        raise FigureError("a commit with values= needs answer=, the value that is right")
    if commit.options and not isinstance(commit.replies, str) and len(commit.replies) not in (0, len(commit.options)):
        raise FigureError(
            f"{len(commit.replies)} replies to {len(commit.options)} options; give one for all, or one each"
        )


def _start_index(control: Control) -> int:
    values = [value for value, _ in control.options()]
    if control.start is None:
        return 0
    if control.start not in values:
        raise FigureError(f"control {control.name!r} starts at {control.start!r}, which is none of its values {values}")
    return values.index(control.start)


def _frame_at(frame: Callable[..., Frame], setting: dict[str, Any]) -> Frame:
    try:
        result = frame(**setting)
    except Exception as error:
        raise FigureError(f"the frame at {setting} failed: {type(error).__name__}: {error}") from error
    if not isinstance(result, Frame):
        raise FigureError(f"the frame at {setting} is a {type(result).__name__}; return a figures.Frame")
    return replace(result, says=keep_units(result.says))


def _position(indices: Sequence[int], counts: Sequence[int]) -> int:
    at = 0
    for index, count in zip(indices, counts, strict=True):
        at = at * count + index
    return at


def _prepare(panels: Sequence[Panel], frames: Sequence[Frame]) -> list[Drawn]:
    """Scales, layouts and the static markup of the panels; those in a column over one x-axis start at one left margin,
    and the lowest of them names it."""
    scaled = [_scaled(panel, position, frames) for position, panel in enumerate(panels)]
    columns: list[list[int]] = []
    for here, panel in enumerate(panels):
        over = columns[-1][-1] if columns else here
        shared = not panel.half and not panels[over].half and panel.x.title == panels[over].x.title
        if here and shared and scaled[here][:2] == scaled[over][:2]:
            columns[-1].append(here)
        else:
            columns.append([here])
    drawn = []
    for column in columns:
        left = max(left_margin(scaled[here][3]) for here in column)
        for here in column:
            x, x_ticks, y, y_ticks = scaled[here]
            panel = panels[here]
            if here != column[-1]:
                panel = replace(panel, x=replace(panel.x, label="", unit=""))
            shapes = layouts(panel, x_ticks, left)
            drawn.append(Drawn(x, y, shapes, [frame_of_axes(panel, at, x, y, x_ticks, y_ticks) for at in shapes]))
    return drawn


def _scaled(panel: Panel, position: int, frames: Sequence[Frame]) -> tuple[Scale, Ticks, Scale, Ticks]:
    """The scales and ticks of one panel: limits hold the data of every frame."""
    reach: dict[str, list[float]] = {"x": [], "y": []}
    for each in {id(thing): thing for frame in frames for thing in frame.items() if thing.panel == position}.values():
        item = as_item(each)
        for key, axis in (("x", "x"), ("y", "y"), ("low", "y"), ("high", "y")):
            found = item.get(key)
            reach[axis] += [v for v in (found if isinstance(found, list) else [found]) if v is not None]
    (x, x_ticks), (y, y_ticks) = (
        (Scale(*limits, axis.log, axis.descending), ticks(axis, limits, room))
        for axis, limits, room in (
            (panel.x, nice_limits(reach["x"], panel.x), 6),
            (panel.y, nice_limits(reach["y"], panel.y), max(round(4 * panel.height), 2)),
        )
    )
    return x, x_ticks, y, y_ticks


def _scale_data(scale: Scale) -> list[float | int]:
    return [scale.low, scale.high, int(scale.log), int(scale.descending)]


def _encode(each: Frame, panels: Sequence[Panel], pool: Pool) -> dict[str, Any]:
    numbers = []
    for thing in each.items():
        if not 0 <= thing.panel < len(panels):
            raise FigureError(f"an item is for panel {thing.panel}; the figure has panels 0…{len(panels) - 1}")
        numbers.append(pool.number(as_item(thing)))
    return {"i": numbers, "n": [n.said for n in each.numbers], "s": each.says}


def _encode_commit(commit: Commit | None, controls: Sequence[Control], pool: Pool) -> dict[str, Any] | None:
    if commit is None:
        return None
    if commit.control is not None:
        return {"way": "control", "control": [c.name for c in controls].index(commit.control)}
    if commit.options:
        replies = [commit.replies] * len(commit.options) if isinstance(commit.replies, str) else list(commit.replies)
        return {"way": "options", "replies": list(map(keep_units, replies)) or [""] * len(commit.options)}
    marks = (
        [
            pool.number(as_item(replace(commit.mark(v), look="choice", guides=False, label=commit.pin)))
            for v in commit.values
        ]
        if commit.mark
        else []
    )
    return {
        "way": "values",
        "said": [quantity(v, commit.unit, 4) for v in commit.values],
        "replies": [keep_units(commit.reply(v)) for v in commit.values],
        "marks": marks,
    }


def _pin_style(commit: Commit | None) -> dict[str, Any] | None:
    if commit is None:
        return None
    return {
        "look": "choice",
        "marker": MARKERS["pin"],
        "hollow": True,
        "label": commit.pin,
        "guides": False,
        "under": True,
    }


def _panel_svg(
    panel: Panel, position: int, drawn: Drawn, numbers: Sequence[int], pool: Sequence[Mapping[str, Any]], alt: str
) -> str:
    parts = []
    label = alt if position == 0 else f"{panel.title or panel.y.label}: part of the same figure"
    mine = [pool[n] for n in numbers if pool[n]["panel"] == position]
    for layout, axes in zip(drawn.layouts, drawn.axes, strict=True):
        canvas = Canvas(layout, drawn.x, drawn.y)
        below = "".join(draw_item(canvas, item) for item in mine if item["kind"] != "mark")
        above = "".join(draw_item(canvas, item) for item in mine if item["kind"] == "mark")
        plot = attributes(x=layout.left, y=layout.top, width=layout.plot_width, height=layout.plot_height)
        x, y = layout.left + layout.plot_width / 2, layout.top + layout.plot_height / 2 + 22
        parts.append(
            f'<svg class="ul-{layout.name}" viewBox="0 0 {layout.width:g} {layout.height:g}" role="img" '
            f'aria-label="{escape(label)}" data-panel="{position}">{axes}'
            f'<svg class="ul-items"{plot}>{below}</svg><svg class="ul-items ul-open"{plot}>{above}</svg>'
            f"{element('text', '?', class_='ul-curtain', x=x, y=y, text_anchor='middle')}</svg>"
        )
    return f'<div class="ul-panel{" ul-half" if panel.half else ""}">{"".join(parts)}</div>'


def _commit_form(commit: Commit | None, controls: Sequence[Control]) -> str:
    if commit is None:
        return ""
    question = f'<p class="ul-question">{escape(keep_units(commit.question))}</p>'
    answer = ""
    if commit.options:
        answer = _radios(commit.question, "guess", commit.options, -1, hidden_legend=True)
        question = question.replace('class="ul-question"', 'class="ul-question" aria-hidden="true"')
    elif commit.values:
        middle = len(commit.values) // 2
        words = [quantity(v, commit.unit, 4) for v in commit.values]
        answer = _range("Your guess", "guess", words, middle)
    buttons = (
        f'<p class="ul-buttons"><button type="submit" class="ul-commit"{OWN_KEYS}>{escape(commit.button)}</button>'
        f'<button type="button" class="ul-skip"{OWN_KEYS}>Show me without a guess</button></p>'
    )
    # hidden until the script runs: without one there is nothing to commit to
    return (
        f'<form class="ul-guess" hidden>{question}{answer}<div '
        f'class="ul-slot"></div>{buttons}</form><p class="ul-reply" hidden></p>'
    )


def _controls_form(controls: Sequence[Control], start: Sequence[int]) -> str:
    parts = []
    for position, (control, index) in enumerate(zip(controls, start, strict=True)):
        words = [said for _, said in control.options()]
        if isinstance(control, Slider):
            parts.append(_range(control.label, str(position), words, index))
        else:
            parts.append(_radios(control.label, str(position), words, index))
    one = " ul-one" if len(controls) == 1 else ""
    return f'<form class="ul-controls{one}" autocomplete="off">{"".join(parts)}</form>'


def _range(label: str, name: str, words: Sequence[str], index: int) -> str:
    bare = attributes(
        type="range", name=name, min=0, max=len(words) - 1, step=1, value=index, aria_valuetext=words[index]
    )
    return (
        f'<label class="ul-control"><span class="ul-label-row"><span>{escape(label)}</span><output '
        f'class="ul-value">{escape(words[index])}</output></span>'
        f'<input{bare}{OWN_KEYS}><span class="ul-ends" '
        f'aria-hidden="true"><span>{escape(words[0])}</span><span>{escape(words[-1])}</span></span></label>'
    )


def _radios(label: str, name: str, words: Sequence[str], index: int, hidden_legend: bool = False) -> str:
    radios = "".join(
        f'<label><input type="radio"{OWN_KEYS} name="{escape(name)}" '
        f'value="{i}"{" checked" if i == index else ""}><span>{escape(keep_units(text))}</span></label>'
        for i, text in enumerate(words)
    )
    sr = ' class="ul-sr"' if hidden_legend else ""
    return f'<fieldset class="ul-control ul-radios"><legend{sr}>{escape(label)}</legend>{radios}</fieldset>'


def _setting(controls: Sequence[Control], start: Sequence[int]) -> str:
    """The controls in words: what a printed page shows in their place."""
    words = (
        f"<span>{escape(control.label)}: <b>{escape(keep_units(control.options()[index][1]))}</b></span>"
        for control, index in zip(controls, start, strict=True)
    )
    return f'<p class="ul-setting">{"".join(words)}</p>'


def _numbers(frames: Sequence[Frame], shown: Frame) -> str:
    if not shown.numbers:
        return ""
    names = [n.name for n in shown.numbers]
    for each in frames:
        if [n.name for n in each.numbers] != names:
            raise FigureError(
                f"numbers {[n.name for n in each.numbers]} in one frame, {names} in another: give every frame the same"
            )
    tiles = "".join(
        f'<div class="ul-number"><span class="ul-name">{escape(n.name)}</span>'
        f'<span class="ul-now"{attributes(style=f"--ul-mine:{ink(n.look)}")}>{_value_and_unit(n.said)}</span>'
        '<span class="ul-then" hidden></span></div>'
        for n in shown.numbers
    )
    return f'<div class="ul-numbers">{tiles}</div>'


def _value_and_unit(said: str) -> str:
    found = re.fullmatch(r"([−∞\d][^ ]*) (.+)", said)
    value, unit = found.groups() if found else (said, "")
    return f"<b>{escape(value)}</b><small>{escape(f' {unit}' if unit else '')}</small>"


def _legend(frames: Sequence[Frame]) -> str:
    entries: dict[tuple[str, str, int], str] = {}
    for each in frames:
        for curve in each.curves:
            if curve.name and curve.legend:
                entries.setdefault((curve.name, curve.look, curve.variant), _swatch(curve))
        for bar in each.bars:
            if bar.name:
                swatch = element(
                    "rect",
                    class_="ul-faint" if bar.faint else "ul-bar",
                    x="4",
                    y="2",
                    width="20",
                    height="10",
                    fill=ink(bar.look),
                    stroke=ink(bar.look) if bar.faint else None,
                )
                entries.setdefault((bar.name, bar.look, 0), swatch)
    if not entries:
        return ""
    rows = "".join(
        f'<li><svg viewBox="0 0 28 14" width="28" height="14" aria-hidden="true">{swatch}</svg>{escape(name)}</li>'
        for (name, _, _), swatch in entries.items()
    )
    return f'<ul class="ul-legend">{rows}</ul>'


def _swatch(curve: Curve) -> str:
    style, colour = curve_style(curve.look, curve.variant), ink(curve.look)
    parts, bare = "", curve.thin or len(list(curve.x)) > 60
    if style["line"] or bare:
        kind, y = ("ul-thin", "7.5") if curve.thin else ("ul-curve", "7")  # one pixel wide: on a whole pixel
        parts += element("path", class_=kind, d=f"M1 {y}H27", stroke=colour, stroke_dasharray=style["dash"] or None)
    if style["marker"] and not bare:
        fill, stroke = (ink("surface"), colour) if style["hollow"] else (colour, ink("surface"))
        at = "translate(14 7)"
        parts += element("path", class_="ul-dot", d=style["marker"], transform=at, fill=fill, stroke=stroke)
    return parts


def _data(
    controls: Sequence[Control], settings: Sequence[Mapping[str, Any]], frames: Sequence[Frame]
) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for control in controls:
        title = f"{control.label} ({control.unit})" if isinstance(control, Slider) and control.unit else control.label
        words = dict(control.options())
        columns[title] = [words[s[control.name]] if isinstance(control, Choice) else s[control.name] for s in settings]
    for position, number in enumerate(frames[0].numbers):
        title = f"{number.name} ({number.unit})" if number.unit else number.name
        columns[title] = [each.numbers[position].value for each in frames]
    return columns


def _tables(
    controls: Sequence[Control],
    settings: Sequence[Mapping[str, Any]],
    frames: Sequence[Frame],
    panels: Sequence[Panel],
    shown: Frame,
    start: Sequence[int],
) -> str:
    columns = _data(controls, settings, frames)
    tables = []
    if frames[0].numbers:
        tables.append(table(columns, zip(*columns.values(), strict=True), "The numbers at every setting"))
    curves = [c for c in shown.curves if c.name]
    if curves and all(_same_curves(f.curves, shown.curves) for f in frames):
        for position, panel in enumerate(panels):
            lines = [(c.name, _values(c.x), _values(c.y)) for c in curves if c.panel == position]
            for _, together in itertools.groupby(lines, key=lambda line: line[1]):
                fixed = columns_of_lines(together, panel.x.title, panel.y.title)
                tables.append(table(fixed, zip(*fixed.values(), strict=True), panel.y.title))
    elif curves:  # the script fills in those of the present setting
        words = ", ".join(f"{c.label} {c.options()[i][1]}" for c, i in zip(controls, start, strict=True))
        heads = ("curve", panels[0].x.title, panels[0].y.title) if len(panels) == 1 else ("curve", "x", "y")
        rows = [(c.name, x, y) for c in curves for x, y in zip(_values(c.x), _values(c.y), strict=True)]
        tables.append(f'<div class="ul-here">{table(heads, rows, f"The curves at {words}")}</div>')
    return data_fold(tables)


def _same_curves(some: Sequence[Curve], others: Sequence[Curve]) -> bool:
    return len(some) == len(others) and all(
        a is b or as_item(a) == as_item(b) for a, b in zip(some, others, strict=True)
    )
