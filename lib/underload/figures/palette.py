"""The colours, markers and dashes of the book: one look per quantity, the same on every page.

Each colour exists twice, for a light and for a dark page. Python code uses the light one; whatever leaves this
package is written with CSS variables (`--ul-decode`, …) that carry both, so a figure follows the page's theme.
The pairs keep 3:1 contrast with the page, and within one family (evidence, quantities, stages, memory) they stay
apart for readers with protanopia, deuteranopia and tritanopia; a test computes both. Shape never rests on colour
alone: evidence differs by marker and line, stages and memory carry their names.
"""

from dataclasses import dataclass
from typing import Any

from underload.request import UnderloadError


class FigureError(UnderloadError):
    """A figure that cannot be drawn as asked: the message names the value, the limit and the remedy."""


@dataclass(frozen=True)
class Look:
    """How one quantity looks wherever it appears."""

    light: str  # hex colour on a light page
    dark: str  # the same quantity on a dark one
    line: str = "solid"  # "solid", "dashed", "dotted" or "none"
    marker: str = ""  # "", "circle", "ring", "square", "diamond", "triangle", "pin"


LOOKS: dict[str, Look] = {
    # evidence: where a value comes from
    "prediction": Look("#2458b3", "#86b1ff"),
    "simulation": Look("#0d8065", "#45d3a8", line="dotted", marker="ring"),
    "measurement": Look("#b8480b", "#ffa05c", line="none", marker="square"),
    "recorded": Look("#b8480a", "#ffa05d", marker="square"),
    "live": Look("#b8480e", "#ffa05f", line="none", marker="diamond"),
    # quantities: what a value is
    "latency": Look("#7637c0", "#c6a4ff", marker="circle"),
    "throughput": Look("#8a6000", "#efbf4d", marker="triangle"),
    # stages of a request's life
    "queue": Look("#767d8b", "#b4bcc9"),
    "tokenise": Look("#8a6001", "#efbf4e"),
    "prefill": Look("#ab1f4f", "#ff7096"),
    "decode": Look("#0a6ca0", "#5fc2f4"),
    "detokenise": Look("#4d7a12", "#a4d65e"),
    "stream": Look("#5b4bc4", "#b3a8ff"),
    # what fills a memory
    "weights": Look("#3f51a3", "#9db0ff"),
    "kv": Look("#b8480c", "#ffa05e"),
    "waste": Look("#868c97", "#8b94a3"),
    "free": Look("#7c8493", "#7d8696", line="dashed"),
    # the reader, the page
    "choice": Look("#b0059b", "#ff8cf0", line="none", marker="pin"),
    "limit": Look("#3a4252", "#c9d0db", line="dashed"),
    "ink": Look("#1c2330", "#e6e9ee"),
    "quiet": Look("#5d6675", "#9fa8b6"),
    "grid": Look("#dde1e8", "#333b47"),
    "surface": Look("#fefefe", "#15191f"),
}
"""Every look by name. Each light colour is unique, since a figure's colours are told apart by it."""

FAMILIES: dict[str, tuple[str, ...]] = {
    "evidence": ("prediction", "simulation", "measurement"),
    "quantities": ("latency", "throughput"),
    "phases": ("prefill", "decode", "queue"),
    "memory": ("weights", "kv", "waste"),
    "reader": ("choice", "recorded"),
}
"""Looks that stand in one figure and must be told apart."""

COLORS: dict[str, str] = {name: look.light for name, look in LOOKS.items()}
"""name -> hex colour, for matplotlib. `show` turns it into the pair that follows the page's theme."""

DASHES: tuple[str, ...] = ("", "7 3", "2 3", "9 3 2 3")
"""Stroke patterns of `variant` 0 to 3: several curves of one look in one plot."""

_MPL_DASHES = ("-", (0, (5, 2.2)), (0, (1.4, 2.2)), (0, (6.5, 2.2, 1.4, 2.2)))
_MPL_LINES = {"solid": "-", "dashed": (0, (4, 2.5)), "dotted": (0, (1.2, 2)), "none": ""}
_MPL_MARKERS = {"": "", "circle": "o", "ring": "o", "square": "s", "diamond": "D", "triangle": "^", "pin": "o"}


def find(name: str) -> Look:
    """The look called `name`.

    Raises:
        FigureError: no such look; the message lists them.
    """
    if name not in LOOKS:
        raise FigureError(f"no look is called {name!r}; use one of: {', '.join(LOOKS)}")
    return LOOKS[name]


def look(name: str, variant: int = 0, **more: Any) -> dict[str, Any]:
    """Keyword arguments that make matplotlib's `plot` draw `name` as the whole book does.

    `variant` 1 to 3 gives other dashes to further curves of the same look; `more` is passed on and wins.

    Raises:
        FigureError: an unknown name or a variant outside 0…3.
    """
    found = find(name)
    if not 0 <= variant < len(_MPL_DASHES):
        raise FigureError(f"variant {variant} is outside 0…{len(_MPL_DASHES) - 1}: draw fewer curves of one look")
    line = _MPL_LINES[found.line] if variant == 0 else _MPL_DASHES[variant]
    drawn: dict[str, Any] = {"color": found.light, "linestyle": line, "marker": _MPL_MARKERS[found.marker]}
    if found.marker == "ring":
        drawn["markerfacecolor"] = COLORS["surface"]
    return drawn | more


def ink(name: str) -> str:
    """The CSS colour of a look, for SVG and HTML inside a figure: the variable that follows the theme."""
    find(name)
    return f"var(--ul-{name})"


def css_variables(dark: bool) -> str:
    """The declarations of all colour variables for one theme."""
    colours = {name: each.dark if dark else each.light for name, each in LOOKS.items()}
    colours["surface"] = f"var(--paper,{colours['surface']})"  # the book's page, where there is one
    return "".join(f"--ul-{name}:{colour};" for name, colour in colours.items())
