"""What moves in a figure: curves, rules, bands, bars and marks as SVG elements.

An item is a plain dictionary (`moving.as_item` writes it). `draw_item` here draws the start of a figure, the script in
moving.js draws the same elements when a control moves; a browser test holds the two together.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from underload.figures.palette import DASHES, FigureError, find, ink
from underload.figures.plot import Canvas, element, px

Item = Mapping[str, Any]
Point = tuple[float, float]

MARKERS = {
    "circle": "M-4 0A4 4 0 1 0 4 0A4 4 0 1 0 -4 0Z",
    "ring": "M-4 0A4 4 0 1 0 4 0A4 4 0 1 0 -4 0Z",
    "square": "M-3.6 -3.6H3.6V3.6H-3.6Z",
    "diamond": "M0 -6.5L6.5 0L0 6.5L-6.5 0Z",
    "triangle": "M0 -5L4.8 3.8H-4.8Z",
    "pin": "M-7 0A7 7 0 1 0 7 0A7 7 0 1 0 -7 0Z",
}
"""Marker outlines around the origin, in pixels."""


def curve_style(look: str, variant: int) -> dict[str, Any]:
    """How a curve of this look is drawn: whether a line, its dashes, its marker.

    Raises:
        FigureError: an unknown look, or a variant outside 0…3.
    """
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


def draw_item(canvas: Canvas, item: Item) -> str:
    """The SVG of one item on one layout, in a group of its own; what has no place on the axes is left out."""
    draw = {"curve": _curve, "bar": _bar, "band": _band, "rule": _rule, "mark": _mark}[item["kind"]]
    return element("g", children="".join(draw(canvas, item, ink(item["look"]))))


def _curve(canvas: Canvas, item: Item, colour: str) -> list[str]:
    parts = []
    if item.get("low") is not None and item.get("high") is not None:
        whole = [low is not None and high is not None for low, high in zip(item["low"], item["high"], strict=True)]
        tops = _runs(canvas, item["x"], [v if ok else None for v, ok in zip(item["high"], whole, strict=True)])
        bottoms = _runs(canvas, item["x"], [v if ok else None for v, ok in zip(item["low"], whole, strict=True)])
        if [len(run) for run in tops] == [len(run) for run in bottoms]:
            for top, bottom in zip(tops, bottoms, strict=True):
                outline = _line(top, False) + "L" + _line(bottom[::-1], False)[1:] + "Z"
                parts.append(element("path", class_="ul-band", d=outline, fill=colour))
    runs, step = _runs(canvas, item["x"], item["y"]), bool(item.get("step"))
    if item.get("area"):
        for run in runs:
            outline = _line(run, step) + f"V{px(canvas.layout.plot_height)}H{px(run[0][0])}Z"
            parts.append(element("path", class_="ul-area", d=outline, fill=colour))
    if item.get("line"):
        kind = "ul-thin" if item.get("thin") else "ul-curve"
        d = "".join(_line(run, step) for run in runs)
        parts.append(element("path", class_=kind, d=d, stroke=colour, stroke_dasharray=item.get("dash") or None))
    if item.get("marker"):
        fill, stroke = (ink("surface"), colour) if item.get("hollow") else (colour, ink("surface"))
        for x, y in (point for run in runs for point in run):
            at = f"translate({px(x)} {px(y)})"
            parts.append(element("path", class_="ul-dot", d=item["marker"], transform=at, fill=fill, stroke=stroke))
    return parts


def _bar(canvas: Canvas, item: Item, colour: str) -> list[str]:
    if not all(map(canvas.x.usable, item["x"])) or not all(map(canvas.y.usable, item["y"])):
        return []
    left, right = sorted(map(canvas.at_x, item["x"]))
    top, bottom = sorted(map(canvas.at_y, item["y"]))
    kind, edge = ("ul-faint", colour) if item.get("faint") else ("ul-bar", None)
    parts = [_rect(kind, left, top, right - left, bottom - top, colour, edge)]
    label = item.get("label")
    if label and right - left > 0.56 * 12.5 * len(label) + 4 and bottom - top >= 13:
        x, y = px((left + right) / 2), px((top + bottom) / 2 + 4.5)
        parts.append(element("text", label, class_="ul-in", x=x, y=y, text_anchor="middle"))
    return parts


def _band(canvas: Canvas, item: Item, colour: str) -> list[str]:
    width, height = canvas.layout.plot_width, canvas.layout.plot_height
    upright = item.get("x") is not None
    scale, place = (canvas.x, canvas.at_x) if upright else (canvas.y, canvas.at_y)
    low, high = item["x"] if upright else item["y"]
    edges = [low if scale.usable(low) else scale.low, high if scale.usable(high) else scale.high]
    a, b = sorted(min(max(place(v), -1.0), (width if upright else height) + 1.0) for v in edges)
    x, y, w, h = (a, 0.0, b - a, height) if upright else (0.0, a, width, b - a)
    parts = [_rect("ul-region", x, y, w, h, colour)]
    if item.get("label") and b - a > 1:
        late = x + w / 2 > width / 2
        parts.append(_words("ul-note", item["label"], x + w - 5 if late else x + 5, y + 15, late, colour))
    return parts


def _rule(canvas: Canvas, item: Item, colour: str) -> list[str]:
    width, height = canvas.layout.plot_width, canvas.layout.plot_height
    upright = item.get("x") is not None
    scale = canvas.x if upright else canvas.y
    value: Any = item["x"] if upright else item.get("y")
    if not scale.usable(value) or not scale.low <= value <= scale.high:
        return []
    at = canvas.at_x(value) if upright else canvas.at_y(value)
    x1, x2, y1, y2 = (px(at), px(at), "0", px(height)) if upright else ("0", px(width), px(at), px(at))
    parts = [element("line", class_="ul-rule", x1=x1, x2=x2, y1=y1, y2=y2, stroke=colour)]
    if item.get("label") and upright:
        late = at > width / 2
        parts.append(_words("ul-note", item["label"], at - 5 if late else at + 5, 13, late, colour))
    elif item.get("label"):
        parts.append(_words("ul-note", item["label"], 5, at - 5 if at > 18 else at + 15, False, colour))
    return parts


def _mark(canvas: Canvas, item: Item, colour: str) -> list[str]:
    """On top of everything, held inside the plot, its label on the side with room."""
    if not canvas.x.usable(item["x"]) or not canvas.y.usable(item["y"]):
        return []
    width, height = canvas.layout.plot_width, canvas.layout.plot_height
    x = min(max(canvas.at_x(item["x"]), 0.0), width)
    y = min(max(canvas.at_y(item["y"]), 0.0), height)
    parts = []
    if item.get("guides"):
        parts.append(element("path", class_="ul-guide", d=f"M0 {px(y)}H{px(x)}V{px(height)}"))
    fill = "none" if item.get("hollow") else colour
    at = f"translate({px(x)} {px(y)})"
    parts.append(element("path", class_="ul-mark", d=item["marker"], transform=at, fill=fill, stroke=colour))
    if item.get("label"):
        late = x > width / 2
        baseline = y + 20 if item.get("under") else y - 11
        if baseline < 12:
            baseline = y + 20
        if baseline > height - 3:
            baseline = y - 11
        parts.append(_words("ul-label", item["label"], x - 6 if late else x + 6, baseline, late, colour))
    return parts


def _rect(kind: str, x: float, y: float, width: float, height: float, colour: str, edge: str | None = None) -> str:
    return element("rect", class_=kind, x=px(x), y=px(y), width=px(width), height=px(height), fill=colour, stroke=edge)


def _words(kind: str, text: str, x: float, y: float, late: bool, colour: str) -> str:
    return element("text", text, class_=kind, x=px(x), y=px(y), text_anchor="end" if late else "start", fill=colour)


def _runs(canvas: Canvas, xs: Sequence[float | None], ys: Sequence[float | None]) -> list[list[Point]]:
    """The stretches of points that can be drawn; a value that has no place ends one."""
    runs: list[list[Point]] = [[]]
    for x, y in zip(xs, ys, strict=True):
        if x is not None and y is not None and canvas.x.usable(x) and canvas.y.usable(y):
            runs[-1].append((canvas.at_x(x), canvas.at_y(y)))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _line(run: Sequence[Point], step: bool) -> str:
    d = f"M{px(run[0][0])} {px(run[0][1])}"
    for x, y in run[1:]:
        d += f"H{px(x)}V{px(y)}" if step else f"L{px(x)} {px(y)}"
    return d
