"""Matplotlib in the house style, and `show`, which turns one of its figures into a picture for both themes.

Text stays text in the page's own font, lines stay vectors, the background stays open, and every house colour becomes
the CSS variable that follows the theme. Matplotlib is imported on first use.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from underload.figures.palette import COLORS, LOOKS, FigureError, css_variables, ink
from underload.figures.still import Picture, columns_of_lines, still

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def rules() -> Any:
    """The rcParams of the house style."""
    text, quiet = COLORS["ink"], COLORS["quiet"]
    return {
        "figure.figsize": (6.8, 3.7),
        "figure.dpi": 100,
        "figure.facecolor": "none",
        "figure.constrained_layout.use": True,
        "savefig.facecolor": "none",
        "savefig.transparent": True,
        "svg.fonttype": "none",
        "svg.hashsalt": "underload",
        "font.family": ["DejaVu Sans"],  # measures the layout; the page's font is what a reader sees
        "font.size": 10,
        "text.color": text,
        "axes.facecolor": "none",
        "axes.edgecolor": quiet,
        "axes.labelcolor": text,
        "axes.titlecolor": text,
        "axes.titlelocation": "left",
        "axes.titlesize": 11,
        "axes.titleweight": "bold",
        "axes.labelsize": 10,
        "axes.linewidth": 0.8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.formatter.use_mathtext": False,
        "axes.unicode_minus": True,
        "grid.color": COLORS["grid"],
        "grid.linewidth": 0.8,
        "xtick.color": quiet,
        "ytick.color": quiet,
        "xtick.labelsize": 9.5,
        "ytick.labelsize": 9.5,
        "lines.linewidth": 1.9,
        "lines.markersize": 5.5,
        "lines.solid_capstyle": "round",
        "legend.frameon": False,
        "legend.fontsize": 9.5,
        "legend.handlelength": 2.2,
        "patch.linewidth": 0,
        "image.cmap": "cividis",
        "hatch.color": quiet,
    }


def style() -> None:
    """Use the house style for all further matplotlib figures of this process. `axes` does so by itself."""
    import matplotlib
    from cycler import cycler

    order = ("prediction", "simulation", "measurement", "latency", "throughput", "prefill", "decode")
    matplotlib.rcParams.update(rules() | {"axes.prop_cycle": cycler(color=[COLORS[name] for name in order])})


def axes(
    xlabel: str | Sequence[str] = "",
    ylabel: str | Sequence[str] = "",
    *,
    xunit: str | Sequence[str] = "",
    yunit: str | Sequence[str] = "",
    xlog: bool = False,
    ylog: bool = False,
    rows: int = 1,
    cols: int = 1,
    width: float = 6.8,
    height: float | None = None,
    **more: Any,
) -> tuple[Figure, Any]:
    """A figure in the house style and its axes: one, or an array of rows × cols.

    Labels and units are one string for all axes or a sequence with one each, row by row. `more` goes to
    `Figure.subplots` (sharex, sharey, width_ratios in gridspec_kw, …). The figure belongs to nobody else: pyplot does
    not know it, so a notebook does not draw it twice.

    Raises:
        FigureError: a sequence of labels or units of the wrong length.
    """
    from matplotlib.figure import Figure

    style()  # for good: what an author adds later (a legend, a title) should look the same
    count = rows * cols
    height = height if height is not None else (3.7 if cols == 1 else 3.2) * rows
    figure = Figure(figsize=(width, height))
    grid = figure.subplots(rows, cols, **more)
    flat = [grid] if count == 1 else list(grid.flat)
    for axis, x, xu, y, yu in zip(flat, *(_each(v, count) for v in (xlabel, xunit, ylabel, yunit)), strict=True):
        if xlog:
            axis.set_xscale("log")
            _plain_ticks(axis.xaxis)
        if ylog:
            axis.set_yscale("log")
            _plain_ticks(axis.yaxis)
        axis.set_xlabel(f"{x} ({xu})" if xu else x)
        axis.set_ylabel(f"{y} ({yu})" if yu else y)
    return figure, grid


def _plain_ticks(axis: Any) -> None:
    """1, 10, 100 and 2, 5 between them instead of powers in mathtext, whose glyphs the page's font would misplace."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    from underload.figures.wording import number

    axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=8))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(float(value), 6)))
    axis.set_minor_locator(NullLocator())


def _each(value: str | Sequence[str], count: int) -> list[str]:
    if isinstance(value, str):
        return [value] * count
    if len(value) != count:
        raise FigureError(f"{len(value)} labels {list(value)} for {count} axes; give one for all, or one each")
    return list(value)


def show(figure: Figure, *, alt: str, caption: str = "", data: Any = None, name: str | None = None) -> Picture:
    """A matplotlib figure as a picture that follows the page's theme; ends a cell.

    Args:
        figure: from `axes`, or any other in house colours. It is closed.
        alt: what it shows, said to someone who cannot see it.
        caption: what to see in it; plain text.
        data: the values drawn, as a dict of columns or a DataFrame; True reads the labelled lines off the axes.
        name: anchor of the figure, "fig-" put before it.

    Raises:
        FigureError: an empty `alt`, a bad name, data that are no table.
    """
    import matplotlib
    import numpy as np

    if data is True:
        lines = [line for axis in figure.axes for line in axis.get_lines() if not str(line.get_label()).startswith("_")]
        x, y = (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) if len(figure.axes) == 1 else ("x", "y")
        data = columns_of_lines(
            (
                (str(line.get_label()), np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist())
                for line in lines
            ),
            x,
            y,
        )
    buffer = io.StringIO()
    with matplotlib.rc_context(rules()):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    _close(figure)
    drawn = themed_svg(buffer.getvalue(), alt)
    wide = re.search(r"max-width: (\d+)px", drawn)
    return still(
        drawn,
        alt=alt,
        caption=caption,
        data=data,
        name=name,
        kind="ul-still ul-plot",
        most=int(wide[1]) if wide else None,
    )


def svg_file(figure: Figure, *, alt: str) -> str:
    """A matplotlib figure as the text of an SVG file of its own, for a README: it follows the reader's system theme.

    Raises:
        FigureError: an empty `alt`.
    """
    svg = show(figure, alt=alt).html.split("</style>", 1)[1].removesuffix("</figure>")
    light, dark = css_variables(dark=False), css_variables(dark=True)
    rules = (
        f"svg{{{light}background:var(--ul-surface);font-family:system-ui,sans-serif}}"
        f"@media(prefers-color-scheme:dark){{svg{{{dark}}}}}"
    )
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert size is not None
    width, height = (round(float(v) * 4 / 3) for v in size.groups())
    head, rest = svg.split(">", 1)
    return f'{head} width="{width}" height="{height}"><style>{rules}</style>{rest}\n'


def _close(figure: Figure) -> None:
    """Forget a pyplot figure, so that a notebook does not draw it a second time. One of `axes` needs nothing."""
    import sys

    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close(figure)


def themed_svg(svg: str, alt: str) -> str:
    """Matplotlib's SVG for use inside a page: house colours as variables, ids of its own, no fixed size or font.

    Ids get the hash of the drawing before them, so that two figures on a page do not share a clip path.
    """
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # its rule for every element would reach the whole page: the root's style says it instead
    svg = re.sub(r"<defs>\s*<style[^>]*>.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)
    mark = "u" + sha256(svg.encode()).hexdigest()[:8]
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{mark}-\1"', svg)
    svg = re.sub(r'\b(xlink:href|href)="#([^"]+)"', rf'\1="#{mark}-\2"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{mark}-\1)", svg)
    svg = re.sub(r'(<g) id="[^"]+"', r"\1", svg)  # groups are never referred to
    by_colour = {look.light: ink(name) for name, look in LOOKS.items()}
    svg = re.sub(r"#[0-9a-f]{6}\b", lambda found: by_colour.get(found.group(), found.group()), svg)
    # "font: 10px 'DejaVu Sans'" -> size only; the family is the page's
    svg = re.sub(
        r"font: (?:(\w+) )?([\d.]+px) [^;\"]*",
        lambda m: f"font-size: {m[2]}" + (f"; font-weight: {m[1]}" if m[1] else ""),
        svg,
    )
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups()  # type: ignore[union-attr]
    style = f"max-width: {float(width) * 4 / 3:.0f}px; stroke-linejoin: round; stroke-linecap: butt"
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    head = f'<svg {spaces} viewBox="0 0 {width} {height}" role="img" aria-label="{_attribute(alt)}" style="{style}">'
    return head + svg[svg.index(">") + 1 :]


def _attribute(text: str) -> str:
    from html import escape

    return escape(text)
