"""A finished figure as HTML: the drawing, its text alternative, its caption, its data as a folded table."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from underload.figures.palette import FigureError, css_variables
from underload.figures.wording import OWN_KEYS, attributes, keep_units, table


@dataclass(frozen=True)
class Picture:
    """What the functions of this package return: shown by a notebook cell that ends with it.

    `html` is self-contained: drawing, style, and script where it moves. In a terminal, and for a reader of the stored
    notebook without HTML, `alt` stands in its place.
    """

    html: str
    alt: str
    data: Mapping[str, Sequence[Any]] | None = None

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": repr(self)}

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return f"[figure: {self.alt}]"


@cache
def asset(name: str) -> str:
    """The text of a file of this package."""
    return (files("underload.figures") / name).read_text(encoding="utf-8").strip()


@cache
def stylesheet(*sheets: str) -> str:
    """The style a figure carries: the colours of both themes, and the rules of these files on one line."""
    light, dark = css_variables(dark=False), css_variables(dark=True)
    themes = (
        f".ul-fig{{{light}}}"
        # the book (data-theme), JupyterLab, VS Code; else what the system prefers
        f'html[data-theme="dark"] .ul-fig,[data-jp-theme-light="false"] .ul-fig,.vscode-dark .ul-fig{{{dark}}}'
        "@media(prefers-color-scheme:dark){"
        "html:not([data-theme]) body:not([data-jp-theme-light]):not(.vscode-light) .ul-fig"
        f"{{{dark}}}}}"
        f"@media print{{html .ul-fig.ul-fig.ul-fig.ul-fig{{{light}}}}}"
    )
    rules = re.sub(r"/\*.*?\*/", "", "\n".join(map(asset, sheets)), flags=re.DOTALL)
    return themes + re.sub(r"\s*\n\s*", "", rules)


def opening(kind: str, name: str | None = None, sheets: Sequence[str] = ("figure.css",), **more: object) -> str:
    """The start of a figure's HTML: its element and its style.

    Raises:
        FigureError: a name that cannot be an anchor.
    """
    if name is not None and not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name):
        raise FigureError(f"figure name {name!r}: use lower-case letters, digits and hyphens, as in an address")
    anchor = f"fig-{name}" if name else None
    return f"<figure{attributes(class_=f'ul-fig {kind}', id=anchor, **more)}><style>{stylesheet(*sheets)}</style>"


def data_fold(tables: Sequence[str]) -> str:
    """The folded table(s) under a figure, or nothing."""
    if not tables:
        return ""
    return f'<details class="ul-data"><summary{OWN_KEYS}>Data of this figure</summary>{"".join(tables)}</details>'


def columns_of(data: Any) -> dict[str, list[Any]]:
    """`data` as columns: a mapping of sequences, or anything with `.columns` and `[...]` such as a DataFrame.

    Raises:
        FigureError: columns of different lengths, or something that is no table.
    """
    if isinstance(data, Mapping):
        columns = {str(key): list(values) for key, values in data.items()}
    elif hasattr(data, "columns"):
        columns = {str(key): list(data[key]) for key in data.columns}
    else:
        raise FigureError(
            f"data is a {type(data).__name__}; give a dict of columns, a DataFrame, or True for the labelled lines"
        )
    lengths = {key: len(values) for key, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise FigureError(f"the columns of data differ in length: {lengths}")
    return columns


def still(
    drawing: str,
    *,
    alt: str,
    caption: str = "",
    data: Any = None,
    name: str | None = None,
    kind: str = "ul-still",
    most: int | None = None,
) -> Picture:
    """A picture of finished SVG (made here, not by an author) with its words and its table.

    `most`: px that the drawing is wide at most; its caption then runs no further.

    Raises:
        FigureError: an empty `alt`, a bad name, data that are no table.
    """
    if not alt.strip():
        raise FigureError("alt is empty: say what the figure shows to someone who cannot see it")
    columns = columns_of(data) if data is not None else None
    fold = data_fold([table(columns, zip(*columns.values(), strict=True))]) if columns else ""
    width = attributes(style=f"max-width: {most}px" if most else None)
    words = f'<figcaption class="ul-caption"{width}>{escape(keep_units(caption))}</figcaption>' if caption else ""
    return Picture(html=f"{opening(kind, name)}{drawing}{words}{fold}</figure>", alt=alt, data=columns)


def columns_of_lines(
    lines: Iterable[tuple[str, Sequence[Any], Sequence[Any]]], x: str = "x", y: str = "y"
) -> dict[str, list[Any]]:
    """The points of several named lines: a column each where they share their x, else (curve, x, y) row by row."""
    named = [(label, list(xs), list(ys)) for label, xs, ys in lines]
    labels = [label for label, _, _ in named]
    if len(set(labels)) == len(labels) and all(xs == named[0][1] for _, xs, _ in named) and x not in labels:
        return {x: named[0][1]} | {label: ys for label, _, ys in named} if named else {}
    rows = [(label, a, b) for label, xs, ys in named for a, b in zip(xs, ys, strict=True)]
    return {"curve": [r[0] for r in rows], x or "x": [r[1] for r in rows], y or "y": [r[2] for r in rows]}
