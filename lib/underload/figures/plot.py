"""Axes and the things drawn on them, as SVG: what the script of a moving figure draws again when a control moves.

A panel is drawn in up to two layouts (wide page, phone), both from the same data. Static parts (axes, ticks, titles)
are written once; items (curves, marks, rules, bands, bars) are plain dictionaries that `draw_item` here and
`drawItem` in moving.js turn into the same elements; a browser test holds the two together.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from underload.figures.palette import DASHES, FigureError, find, ink
from underload.figures.wording import attributes, number

MARKERS = {
    "circle": "M-4 0A4 4 0 1 0 4 0A4 4 0 1 0 -4 0Z",
    "ring": "M-4 0A4 4 0 1 0 4 0A4 4 0 1 0 -4 0Z",
    "square": "M-3.6 -3.6H3.6V3.6H-3.6Z",
    "diamond": "M0 -6.5L6.5 0L0 6.5L-6.5 0Z",
    "triangle": "M0 -5L4.8 3.8H-4.8Z",
    "pin": "M-7 0A7 7 0 1 0 7 0A7 7 0 1 0 -7 0Z",
}
"""Marker outlines around the origin, in pixels."""


@dataclass(frozen=True)
class Axis:
    """One axis: its label and unit, linear or logarithmic, limits from the data of all frames unless given.

    `ticks` replaces the computed tick positions; `labels` names the positions 0, 1, 2, … of a categorical axis;
    `descending` turns the axis round.
    """

    label: str
    unit: str = ""
    log: bool = False
    limits: tuple[float, float] | None = None
    ticks: Sequence[float] | None = None
    labels: Sequence[str] | None = None
    descending: bool = False

    @property
    def title(self) -> str:
        return f"{self.label} ({self.unit})" if self.unit else self.label


@dataclass(frozen=True)
class Panel:
    """One pair of axes. `height` scales it; `half` lets two stand side by side where the page is wide enough."""

    x: Axis
    y: Axis
    title: str = ""
    height: float = 1.0
    half: bool = False
    grid: bool = True


@dataclass(frozen=True)
class Scale:
    """From data to the unit interval, linear or logarithmic: the one formula that moving.js repeats."""

    low: float
    high: float
    log: bool = False
    descending: bool = False

    def unit(self, value: float) -> float:
        if self.log:
            share = (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        else:
            share = (value - self.low) / (self.high - self.low)
        return 1 - share if self.descending else share

    def usable(self, value: float | None) -> bool:
        """Whether `value` has a place on this axis: finite, and positive on a logarithmic one."""
        return value is not None and math.isfinite(value) and (not self.log or value > 0)


@dataclass(frozen=True)
class Layout:
    """Pixels of one layout of a panel: the whole picture and the plot inside it."""

    name: str  # "wide" or "narrow"
    width: float
    height: float
    left: float
    top: float
    right: float
    bottom: float

    @property
    def plot_width(self) -> float:
        return self.width - self.left - self.right

    @property
    def plot_height(self) -> float:
        return self.height - self.top - self.bottom


@dataclass(frozen=True)
class Ticks:
    positions: list[float]
    names: list[str] = field(default_factory=list)


def nice_limits(values: Sequence[float], axis: Axis) -> tuple[float, float]:
    """Limits that hold all usable values with a little air; from zero where the data are near it.

    Raises:
        FigureError: limits that are no interval, or not positive on a logarithmic axis.
    """
    if axis.limits is not None:
        low, high = map(float, axis.limits)
        if not (math.isfinite(low) and math.isfinite(high) and low < high and (low > 0 or not axis.log)):
            raise FigureError(
                f"limits {axis.limits} of axis {axis.label!r}: give two finite numbers, the smaller first"
                + (", both above 0 on a logarithmic axis" if axis.log else "")
            )
        return low, high
    if axis.labels is not None:
        return -0.5, len(axis.labels) - 0.5
    usable = [v for v in values if math.isfinite(v) and (v > 0 or not axis.log)]
    if not usable:
        return (1.0, 10.0) if axis.log else (0.0, 1.0)
    low, high = min(usable), max(usable)
    if axis.log:
        if low == high:
            return low / 2, high * 2
        air = (high / low) ** 0.04
        return low / air, high * air
    if low >= 0 and low < 0.6 * high:
        low = 0.0
    if low == high:
        return (low - 1, high + 1) if low == 0 else (low - abs(low) / 2, high + abs(high) / 2)
    air = 0.05 * (high - low)
    return (low if low == 0 else low - air), high + air


def ticks(axis: Axis, limits: tuple[float, float], room: int) -> Ticks:
    """Tick positions inside `limits`, about `room` of them, and their names."""
    low, high = limits
    if axis.labels is not None:
        return Ticks([float(i) for i in range(len(axis.labels))], [str(label) for label in axis.labels])
    if axis.ticks is not None:
        at = [float(t) for t in axis.ticks if low <= t <= high]
        return Ticks(at, [_tick_name(t) for t in at])
    at = _log_ticks(low, high, room) if axis.log else _linear_ticks(low, high, room)
    return Ticks(at, [_tick_name(t) for t in at])


def _linear_ticks(low: float, high: float, room: int) -> list[float]:
    rough = (high - low) / max(room, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def _log_ticks(low: float, high: float, room: int) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for multiples in ((1, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 5), (1, 3), (1,)):
        at = [m * 10.0**d for d in decades for m in multiples if low * 0.9999 <= m * 10.0**d <= high * 1.0001]
        if len(at) <= room + 1:
            return at
    return at[:: max(len(at) // room, 1)]


def _tick_name(value: float) -> str:
    return number(value, 6) if value != int(value) or abs(value) >= 1e9 else number(int(value))


def text_width(text: str, size: float = 12.5) -> float:
    """About how wide `text` runs in a sans-serif of this size (px)."""
    return sum(0.3 if c in "iljtf.,:;'|! " else 0.86 if c in "mwMW—" else 0.56 for c in text) * size


def layouts(panel: Panel, y_ticks: Ticks) -> list[Layout]:
    """The layouts a panel is drawn in: one if it is `half` (as wide as a phone anyway), else wide and narrow."""
    left = max([text_width(name) for name in y_ticks.names], default=10.0) + 12
    top = 52.0 if panel.title else 34.0
    height = 250.0 * panel.height
    narrow = Layout("narrow", 340, round(max(height * 0.9, 150)), round(left), top, 12, 46)
    if panel.half:
        return [Layout("half", 340, round(height * 0.9), round(left), top, 12, 46)]
    return [Layout("wide", 680, round(height), round(left), top, 16, 46), narrow]


# ------------------------------------------------------------------------------------------------ drawing


def element(tag: str, text: str | None = None, children: str = "", **values: object) -> str:
    """One SVG element; `text` is escaped, `children` is markup made here."""
    inner = escape(text, quote=False) if text is not None else children
    return f"<{tag}{attributes(**values)}>{inner}</{tag}>"


def px(value: float) -> str:
    """A pixel coordinate with one decimal, written as JavaScript writes it."""
    rounded = math.floor(value * 10 + 0.5) / 10
    return str(int(rounded)) if rounded == int(rounded) else repr(rounded)


@dataclass(frozen=True)
class Canvas:
    """One layout of one panel with its scales: places data on pixels of the plot."""

    layout: Layout
    x: Scale
    y: Scale

    def at_x(self, value: float) -> float:
        return self.x.unit(value) * self.layout.plot_width

    def at_y(self, value: float) -> float:
        return (1 - self.y.unit(value)) * self.layout.plot_height


def _runs(canvas: Canvas, xs: Sequence[float | None], ys: Sequence[float | None]) -> list[list[tuple[float, float]]]:
    """The stretches of points that can be drawn; a value that has no place ends one."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(xs, ys, strict=True):
        if x is not None and y is not None and canvas.x.usable(x) and canvas.y.usable(y):
            runs[-1].append((canvas.at_x(x), canvas.at_y(y)))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _line(run: Sequence[tuple[float, float]], step: bool) -> str:
    d = f"M{px(run[0][0])} {px(run[0][1])}"
    for x, y in run[1:]:
        d += f"H{px(x)}V{px(y)}" if step else f"L{px(x)} {px(y)}"
    return d


def _closed(upper: Sequence[tuple[float, float]], lower: Sequence[tuple[float, float]], step: bool) -> str:
    return _line(upper, step) + "L" + _line(list(reversed(lower)), False)[1:] + "Z"


def draw_item(canvas: Canvas, item: Mapping[str, Any]) -> str:
    """The SVG of one item on one layout. Kinds: curve, rule, band, bar, mark (as `moving.as_items` writes them)."""
    layout, width, height = canvas.layout, canvas.layout.plot_width, canvas.layout.plot_height
    colour = ink(item["look"])
    if item["kind"] == "curve":
        parts = []
        low, high = item.get("low"), item.get("high")
        if low is not None and high is not None:
            both = [(l, h) if l is not None and h is not None else (None, None) for l, h in zip(low, high, strict=True)]
            uppers = _runs(canvas, item["x"], [h for _, h in both])
            lowers = _runs(canvas, item["x"], [l for l, _ in both])
            if [len(r) for r in uppers] == [len(r) for r in lowers]:
                parts += [
                    element("path", class_="ul-band", d=_closed(u, l, False), fill=colour)
                    for u, l in zip(uppers, lowers, strict=True)
                ]
        runs = _runs(canvas, item["x"], item["y"])
        if item.get("area"):
            parts += [
                element("path", class_="ul-area", d=_line(run, bool(item.get("step"))) + f"V{px(height)}H{px(run[0][0])}Z", fill=colour)
                for run in runs
            ]
        if item.get("line"):
            d = "".join(_line(run, bool(item.get("step"))) for run in runs)
            dash = item.get("dash") or None
            parts.append(element("path", class_="ul-curve", d=d, stroke=colour, stroke_dasharray=dash))
        if item.get("marker"):
            parts += [
                element("path", class_="ul-dot", d=item["marker"], transform=f"translate({px(x)} {px(y)})",
                        fill=ink("surface") if item.get("hollow") else colour, stroke=colour if item.get("hollow") else ink("surface"))
                for run in runs for x, y in run
            ]  # fmt: skip
        return element("g", children="".join(parts))
    if item["kind"] == "bar":
        (x0, x1), (y0, y1) = item["x"], item["y"]
        if not all(map(canvas.x.usable, (x0, x1))) or not all(map(canvas.y.usable, (y0, y1))):
            return element("g")
        left, right = sorted((canvas.at_x(x0), canvas.at_x(x1)))
        upper, lower = sorted((canvas.at_y(y0), canvas.at_y(y1)))
        parts = [element("rect", class_="ul-bar", x=px(left), y=px(upper), width=px(right - left), height=px(lower - upper), fill=colour)]
        if item.get("label") and right - left > 0.56 * 12.5 * len(item["label"]) + 4 and lower - upper >= 13:
            parts.append(
                element("text", item["label"], class_="ul-in", x=px((left + right) / 2), y=px((upper + lower) / 2 + 4.5), text_anchor="middle")
            )
        return element("g", children="".join(parts))
    if item["kind"] == "band":
        axis = "x" if item.get("x") is not None else "y"
        scale = canvas.x if axis == "x" else canvas.y
        place = canvas.at_x if axis == "x" else canvas.at_y
        low, high = item[axis]
        ends = [scale.low if low is None or not scale.usable(low) else low, scale.high if high is None or not scale.usable(high) else high]
        a, b = sorted(min(max(place(v), -1.0), (width if axis == "x" else height) + 1.0) for v in ends)
        box = (a, 0.0, b - a, height) if axis == "x" else (0.0, a, width, b - a)
        parts = [element("rect", class_="ul-region", x=px(box[0]), y=px(box[1]), width=px(box[2]), height=px(box[3]), fill=colour)]
        if item.get("label") and b - a > 1:
            late = box[0] + box[2] / 2 > width / 2
            parts.append(
                element("text", item["label"], class_="ul-note", x=px(box[0] + box[2] - 5 if late else box[0] + 5), y=px(box[1] + 15),
                        text_anchor="end" if late else "start", fill=colour)
            )  # fmt: skip
        return element("g", children="".join(parts))
    if item["kind"] == "rule":
        axis = "x" if item.get("x") is not None else "y"
        value = item[axis]
        scale = canvas.x if axis == "x" else canvas.y
        if not scale.usable(value) or not min(scale.low, scale.high) <= value <= max(scale.low, scale.high):
            return element("g")
        at = canvas.at_x(value) if axis == "x" else canvas.at_y(value)
        ends = {"x1": px(at), "x2": px(at), "y1": "0", "y2": px(height)} if axis == "x" else {"x1": "0", "x2": px(width), "y1": px(at), "y2": px(at)}
        parts = [element("line", class_="ul-rule", **ends, stroke=colour)]
        if item.get("label"):
            if axis == "x":
                late = at > width / 2
                parts.append(element("text", item["label"], class_="ul-note", x=px(at - 5 if late else at + 5), y="13", text_anchor="end" if late else "start", fill=colour))
            else:
                above = at > 18
                parts.append(element("text", item["label"], class_="ul-note", x=px(width - 4), y=px(at - 5 if above else at + 15), text_anchor="end", fill=colour))
        return element("g", children="".join(parts))
    # a mark: on top of everything, its label on the side with room, held inside the plot
    x, y = item["x"], item["y"]
    if not canvas.x.usable(x) or not canvas.y.usable(y):
        return element("g")
    at_x = min(max(canvas.at_x(x), 0.0), width)
    at_y = min(max(canvas.at_y(y), 0.0), height)
    parts = []
    if item.get("guides"):
        parts.append(element("path", class_="ul-guide", d=f"M0 {px(at_y)}H{px(at_x)}V{px(height)}"))
    parts.append(
        element("path", class_="ul-mark", d=item["marker"], transform=f"translate({px(at_x)} {px(at_y)})",
                fill=ink("surface") if item.get("hollow") else colour, stroke=colour)
    )  # fmt: skip
    if item.get("label"):
        late = at_x > width / 2
        under = bool(item.get("under"))
        y_text = at_y + 20 if under else at_y - 11
        if y_text < 12:
            y_text = at_y + 20
        if y_text > height - 3:
            y_text = at_y - 11
        parts.append(
            element("text", item["label"], class_="ul-label", x=px(at_x - 6 if late else at_x + 6), y=px(y_text),
                    text_anchor="end" if late else "start", fill=colour)
        )  # fmt: skip
    return element("g", children="".join(parts))


def frame_of_axes(panel: Panel, layout: Layout, x: Scale, y: Scale, x_ticks: Ticks, y_ticks: Ticks) -> str:
    """The static part: title, grid, axis line, ticks and their names, axis titles."""
    canvas = Canvas(layout, x, y)
    left, top, width, height = layout.left, layout.top, layout.plot_width, layout.plot_height
    parts = []
    if panel.title:
        parts.append(element("text", panel.title, class_="ul-panel-title", x="0", y="16"))
    parts.append(element("text", panel.y.title, class_="ul-axis-title", x="0", y=px(top - 14)))
    for value, name in zip(y_ticks.positions, y_ticks.names, strict=True):
        at = top + canvas.at_y(value)
        if panel.grid:
            parts.append(element("line", class_="ul-grid", x1=px(left), x2=px(left + width), y1=px(at), y2=px(at)))
        parts.append(element("text", name, class_="ul-tick", x=px(left - 7), y=px(at + 4.3), text_anchor="end"))
    parts.append(element("line", class_="ul-axis", x1=px(left), x2=px(left + width), y1=px(top + height), y2=px(top + height)))
    taken = -1e9
    places = sorted((left + canvas.at_x(v), n) for v, n in zip(x_ticks.positions, x_ticks.names, strict=True))
    for at, name in places:
        parts.append(element("line", class_="ul-axis", x1=px(at), x2=px(at), y1=px(top + height), y2=px(top + height + 4)))
        half = text_width(name) / 2
        if at - half < taken + 5:  # no room: the tick stays, its name does not
            continue
        middle = min(at, layout.width - half)
        parts.append(element("text", name, class_="ul-tick", x=px(middle), y=px(top + height + 18), text_anchor="middle"))
        taken = middle + half
    parts.append(element("text", panel.x.title, class_="ul-axis-title", x=px(left + width / 2), y=px(layout.height - 7), text_anchor="middle"))
    return "".join(parts)


def curve_style(look: str, variant: int) -> dict[str, Any]:
    """How a curve of this look is drawn: whether a line, its dashes, its marker."""
    found = find(look)
    if not 0 <= variant < len(DASHES):
        raise FigureError(f"variant {variant} is outside 0…{len(DASHES) - 1}: draw fewer curves of one look")
    dash = {"dotted": "1.5 3.5", "dashed": "6 4"}.get(found.line, "") if variant == 0 else DASHES[variant]
    return {
        "line": found.line != "none" or variant > 0,
        "dash": dash,
        "marker": MARKERS.get(found.marker, ""),
        "hollow": found.marker == "ring",
    }
