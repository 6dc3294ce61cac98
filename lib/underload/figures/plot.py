"""Axes of the figure that moves: limits, ticks, layouts, and their SVG, which no control changes.

A panel is drawn in up to two layouts (wide page, phone), both from the same data.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from underload.figures.palette import FigureError
from underload.figures.wording import attributes, number


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


def round_values(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, … between the two: ticks of a logarithmic axis."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [each * 10.0**power for power in powers for each in (1, 2, 5) if low <= each * 10.0**power <= high]


def round_step(end: float, most: int) -> float:
    """A round distance between ticks from 0 to `end` that gives at most `most` of them."""
    power = 10.0 ** math.floor(math.log10(end / most))
    return next(power * times for times in (1, 2, 5, 10) if end / (power * times) <= most)


def text_width(text: str, size: float = 12.5) -> float:
    """About how wide `text` runs in a sans-serif of this size (px)."""
    return sum(0.3 if c in "iljtf.,:;'|! " else 0.86 if c in "mwMW—" else 0.56 for c in text) * size


def left_margin(y_ticks: Ticks) -> int:
    """Room for the names of the y-axis."""
    return round(max([text_width(name) for name in y_ticks.names], default=10.0) + 12)


def layouts(panel: Panel, x_ticks: Ticks, left: int) -> list[Layout]:
    """The layouts a panel is drawn in: one if it is `half` (as wide as a phone anyway), else wide and narrow.

    Below the plot there is room for what stands there: the names of the ticks and of the axis.
    """
    top = 52.0 if panel.title else 34.0
    bottom = 46 if panel.x.title else 26 if x_ticks.names else 6
    height, less = 250.0 * panel.height, 46 - bottom
    narrow = Layout("narrow", 320, round(max(height * 0.9, 150)) - less, left, top, 12, bottom)
    if panel.half:
        return [Layout("half", 320, round(height * 0.9) - less, left, top, 12, bottom)]
    return [Layout("wide", 680, round(height) - less, left, top, 16, bottom), narrow]


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
    parts.append(
        element("line", class_="ul-axis", x1=px(left), x2=px(left + width), y1=px(top + height), y2=px(top + height))
    )
    taken = -1e9
    places = sorted((left + canvas.at_x(v), n) for v, n in zip(x_ticks.positions, x_ticks.names, strict=True))
    for at, name in places:
        parts.append(
            element("line", class_="ul-axis", x1=px(at), x2=px(at), y1=px(top + height), y2=px(top + height + 4))
        )
        half = text_width(name) / 2
        if at - half < taken + 5:  # no room: the tick stays, its name does not
            continue
        middle = min(at, layout.width - half)
        parts.append(
            element("text", name, class_="ul-tick", x=px(middle), y=px(top + height + 18), text_anchor="middle")
        )
        taken = middle + half
    if panel.x.title:
        parts.append(
            element(
                "text",
                panel.x.title,
                class_="ul-axis-title",
                x=px(left + width / 2),
                y=px(layout.height - 7),
                text_anchor="middle",
            )
        )
    return "".join(parts)
