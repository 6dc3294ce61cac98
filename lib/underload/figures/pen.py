"""Drawn diagrams: boxes, arrows, brackets and cells as SVG by code, once for a wide page and once for a phone."""

from collections.abc import Callable, Sequence
from typing import Any

from underload.figures.palette import FigureError, find, ink
from underload.figures.plot import element, px, text_width
from underload.figures.still import Picture, still
from underload.figures.wording import attributes

WIDE, NARROW = 680, 340
_SIZES = {"small": 11.5, "normal": 13.0, "large": 16.0}


class Pen:
    """Draws on one layout. Coordinates are pixels from the top left; `width` is given, `height` is set at the end."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.height = 0.0
        self._parts: list[str] = []
        self._low = 0.0  # lowest pixel drawn: the height, unless set

    @property
    def narrow(self) -> bool:
        return self.width < 500

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: str = "normal",
        anchor: str = "start",
        look: str = "ink",
        bold: bool = False,
    ) -> None:
        """One line of text with its baseline at y."""
        if size not in _SIZES:
            raise FigureError(f"text size {size!r}; use one of: {', '.join(_SIZES)}")
        weight = "650" if bold else None
        self._words(text, x, y, _SIZES[size], anchor, ink(look), weight)

    def _words(self, text: str, x: float, y: float, size: float, anchor: str, fill: str, weight: str | None) -> None:
        style = f"font-size:{size:g}px"
        bare: dict[str, Any] = {
            "x": px(x),
            "y": px(y),
            "text_anchor": anchor,
            "fill": fill,
            "style": style,
            "font_weight": weight,
        }
        self._add(element("text", text, **bare), y + 4)

    def box(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        text: str = "",
        *,
        look: str = "decode",
        dashed: bool = False,
        solid: bool = False,
        small: bool = False,
    ) -> None:
        """A rounded box: tinted, filled (`solid`), or the outline of what is absent (`dashed`). "\\n" starts a line."""
        at: dict[str, Any] = {"x": px(x), "y": px(y), "width": px(w), "height": px(h), "rx": px(min(5, w / 4))}
        opacity = "1" if solid else "0" if dashed else "0.16"
        dash = "4 3" if dashed else None
        colour = ink(look)
        drawn: dict[str, str | None] = {
            "fill": colour,
            "stroke": colour,
            "fill_opacity": opacity,
            "stroke_width": "1.4",
            "stroke_dasharray": dash,
        }
        self._add(element("rect", **at | drawn), y + h + 1)
        lines = text.split("\n") if text else []
        size = 11.5 if small else 13.0
        first = y + h / 2 + size * 0.36 - (len(lines) - 1) * (size + 3) / 2
        for number, line in enumerate(lines):
            fill, weight = (ink("surface"), "600") if solid else (ink("ink"), None)
            self._words(line, x + w / 2, first + number * (size + 3), size, "middle", fill, weight)

    def line(self, x1: float, y1: float, x2: float, y2: float, *, look: str = "quiet", dashed: bool = False) -> None:
        self._add(
            element("line", x1=px(x1), y1=px(y1), x2=px(x2), y2=px(y2), stroke=ink(look), stroke_width="1.3",
                    stroke_dasharray="3 3" if dashed else None),
            max(y1, y2),
        )  # fmt: skip

    def arrow(self, x1: float, y1: float, x2: float, y2: float, label: str = "", *, look: str = "quiet") -> None:
        """A straight arrow; its label stands beside the middle."""
        length = max(((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5, 1e-9)
        ux, uy = (x2 - x1) / length, (y2 - y1) / length
        bx, by = x2 - 7 * ux, y2 - 7 * uy
        self._add(
            element("line", x1=px(x1), y1=px(y1), x2=px(bx), y2=px(by), stroke=ink(look), stroke_width="1.6"),
            max(y1, y2),
        )
        head = f"M{px(x2)} {px(y2)}L{px(bx - 4 * uy)} {px(by + 4 * ux)}L{px(bx + 4 * uy)} {px(by - 4 * ux)}Z"
        self._add(element("path", d=head, fill=ink(look)), max(y1, y2))
        if label:
            steep = abs(y2 - y1) > abs(x2 - x1)
            x, y = (x1 + x2) / 2, (y1 + y2) / 2
            self.text(
                x + 7 if steep else x,
                y + 4 if steep else y - 6,
                label,
                size="small",
                anchor="start" if steep else "middle",
                look="quiet",
            )

    def bracket(self, x1: float, x2: float, y: float, label: str, *, below: bool = True, look: str = "ink") -> None:
        """A measured span from x1 to x2 with its name."""
        up = -5 if below else 5
        self._add(
            element(
                "path",
                d=f"M{px(x1)} {px(y + up)}V{px(y)}H{px(x2)}V{px(y + up)}",
                fill="none",
                stroke=ink(look),
                stroke_width="1.5",
            ),
            y,
        )
        middle = (x1 + x2) / 2
        half = text_width(label, 12.5) / 2
        middle = min(max(middle, half), self.width - half)
        self.text(middle, y + 16 if below else y - 7, label, anchor="middle", look=look, bold=True, size="small")

    def upright(self, y1: float, y2: float, x: float, label: str, *, look: str = "ink", left: bool = False) -> None:
        """A bracket standing up, from y1 to y2, with its name beside it."""
        inward = 5 if left else -5
        self._add(
            element(
                "path",
                d=f"M{px(x + inward)} {px(y1)}H{px(x)}V{px(y2)}H{px(x + inward)}",
                fill="none",
                stroke=ink(look),
                stroke_width="1.5",
            ),
            y2,
        )
        self.text(
            x - 6 if left else x + 6,
            (y1 + y2) / 2 + 4,
            label,
            anchor="end" if left else "start",
            look=look,
            bold=True,
            size="small",
        )

    def dot(self, x: float, y: float, *, look: str = "stream", radius: float = 5) -> None:
        self._add(element("circle", cx=px(x), cy=px(y), r=px(radius), fill=ink(look)), y + radius)

    def cells(
        self,
        x: float,
        y: float,
        size: float,
        texts: Sequence[str],
        *,
        look: str | Sequence[str] = "kv",
        dashed: bool = False,
        height: float | None = None,
    ) -> float:
        """A row of square cells, one a text; returns the x after the last."""
        looks = [look] * len(texts) if isinstance(look, str) else list(look)
        for number, (text, each) in enumerate(zip(texts, looks, strict=True)):
            self.box(
                x + number * size,
                y,
                size - 2,
                height or size - 2,
                text,
                look=each,
                dashed=dashed or find(each).line == "dashed",
                small=True,
            )
        return x + len(texts) * size

    def _add(self, markup: str, low: float) -> None:
        self._parts.append(markup)
        self._low = max(self._low, low)

    def svg(self, alt: str) -> str:
        name = "narrow" if self.narrow else "wide"
        height = self.height or self._low + 4
        bare = attributes(class_=f"ul-{name}", viewBox=f"0 0 {self.width} {px(height)}", role="img", aria_label=alt)
        return f"<svg{bare}>{''.join(self._parts)}</svg>"


def drawing(
    alt: str, draw: Callable[[Pen], Any], *, caption: str = "", name: str | None = None, data: Any = None
) -> Picture:
    """A diagram made by `draw(pen)`, called for a wide layout (680 px) and a narrow one (340 px).

    Raises:
        FigureError: an empty `alt`, or something outside the pen's words.
    """
    drawn = []
    for width in (WIDE, NARROW):
        pen = Pen(width)
        draw(pen)
        drawn.append(pen.svg(alt))
    return still("".join(drawn), alt=alt, caption=caption, name=name, data=data, kind="ul-still ul-drawing")
