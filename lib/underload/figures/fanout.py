"""Two pictures of fan-out: how many pages meet a slow answer, and where the slow answers of a few pages lie.

A *page* needs the answers of k *leaves* and is there with the last of them. A leaf's answer is *slow* or it is not;
the slow ones of different leaves come independently, or at moments that all leaves have in common.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from underload.figures.moving import Bar, Commit, Curve, Frame, Mark, Number, Slider, moving_figure
from underload.figures.palette import FigureError
from underload.figures.pen import Pen, drawing
from underload.figures.plot import Axis, Panel, text_width
from underload.figures.still import Picture
from underload.figures.wording import number
from underload.queueing import prob_any

FANS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
SLOW = (0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0)  # % of a leaf's answers
COMMON = (0, 25, 50, 75, 90, 100)  # % of the slow ones

# --------------------------------------------------------------------------------------------- pages against leaves


def fan_out(
    *,
    fans: Sequence[int] = FANS,
    slow: Sequence[float] = SLOW,
    common: Sequence[float] = COMMON,
    start: tuple[int, float, float] = (100, 1.0, 0),
    commit: Commit | None = None,
    caption: str = "",
    name: str | None = None,
) -> Picture:
    """Pages with a slow answer against the number of leaves, as a curve and as 100 squares.

    Args:
        fans: numbers of leaves that the first slider offers.
        slow: shares of a leaf's answers that are slow, in %.
        common: shares of these that all leaves have in common, in %.
        start: what is shown first.
        commit: what the reader guesses before the figure answers.

    Raises:
        UnderloadError: shares outside 0 to 100 %, or a fan-out below 1.
        FigureError: fewer than two fan-outs, or a start that is not among the values.
    """
    if len(fans) < 2 or sorted(set(fans)) != list(fans):
        raise FigureError(f"fan-outs {list(fans)}: give at least two, ascending")
    fine = sorted({round(fans[0] * (fans[-1] / fans[0]) ** (step / 48)) for step in range(49)} | set(fans))
    curves = {
        (each, share): [100 * prob_any(each / 100, n=k, common=share / 100) for k in fine]
        for each in slow
        for share in {0, *common}
    }

    outlines = _outlines()

    def frame(k: int, each: float, share: float) -> Frame:
        pages = 100 * prob_any(each / 100, n=k, common=share / 100)
        apart = 100 * prob_any(each / 100, n=k)
        may = 100 * (1 - 0.99 ** (1 / k))
        return Frame(
            curves=[
                Curve("independent", fine, curves[each, 0], look="prediction"),
                Curve("with that much in common", fine, curves[each, share], look="prediction", variant=1),
                outlines,
            ],
            marks=[Mark(k, pages, pin=False)],
            bars=[Bar(*_square(n), look="latency", panel=1) for n in range(round(pages))],
            numbers=[
                Number("pages with a slow answer", pages, "%", look="latency"),
                Number("if independent", apart, "%", look="prediction"),
                Number("a leaf may be slow, for 1 slow page in 100", may, "%", look="ink", digits=2),
            ],
            says=_says(k, each, share, pages, apart),
        )

    return moving_figure(
        frame,
        [
            Slider("k", "Leaves of a page", fans, start=start[0]),
            Slider("each", "Slow answers of a leaf", slow, start=start[1], unit="%"),
            Slider("share", "Slowness in common", common, start=start[2], unit="%"),
        ],
        title="How many pages wait for a slow answer",
        alt=(
            "On the left, the share of pages with a slow answer against the number of leaves on a logarithmic axis: an "
            "S-shaped curve that rises from the single leaf's share to all pages. The more of the slowness the leaves "
            "have in common, the lower the second curve lies. On the right, a hundred squares, one a page, with the "
            "slow ones filled."
        ),
        panels=[
            Panel(
                Axis("leaves of a page", log=True, limits=(fans[0], fans[-1]), ticks=_ticks(fans)),
                Axis("slow pages", "%", limits=(0, 100), ticks=(0, 25, 50, 75, 100)),
                half=True,
                height=1.2,
            ),
            Panel(
                Axis("", limits=(0, 10), labels=[]),
                Axis("", limits=(0, 10), labels=[]),
                title="A hundred pages",
                half=True,
                height=1.2,
                grid=False,
            ),
        ],
        caption=caption,
        commit=commit,
        name=name,
    )


def _square(page: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """Where page number so many lies among the hundred, ten to a row from above: its x and its y."""
    x, y = page % 10, 9 - page // 10
    return (x + 0.08, x + 0.92), (y + 0.08, y + 0.92)


def _outlines() -> Curve:
    """The outlines of all hundred, as one line with gaps."""
    xs: list[float] = []
    ys: list[float] = []
    for page in range(100):
        (left, right), (low, high) = _square(page)
        xs += [left, right, right, left, left, math.nan]
        ys += [low, low, high, high, low, math.nan]
    return Curve("", xs, ys, look="quiet", panel=1, thin=True)


def _ticks(fans: Sequence[int]) -> list[float]:
    return [10.0**power for power in range(7) if fans[0] <= 10**power <= fans[-1]]


def _says(k: int, each: float, share: float, pages: float, apart: float) -> str:
    leaves = "1 leaf" if k == 1 else f"{k:,} leaves"
    says = f"{leaves}, each slow in {number(each)} of 100 answers: {number(pages)} of 100 pages wait for a slow one"
    if share and apart - pages >= 0.05:
        return f"{says}; were the slow answers independent, {number(apart)}."
    return says + "."


# ------------------------------------------------------------------------------------------------ where the slow lie

Answers = Sequence[Sequence[bool]]  # [leaf][page]: whether that leaf's answer for that page was slow


def slow_answers(scenes: Mapping[str, Answers], *, caption: str = "", name: str | None = None) -> Picture:
    """Leaves in rows, pages in columns, slow answers filled; below, the pages that have one.

    Args:
        scenes: by the words over each part, one or two of them, with as many leaves and pages in each.

    Raises:
        FigureError: no scene or more than two, none or too many leaves (16) or pages (32), ragged rows.
    """
    if not 1 <= len(scenes) <= 2:
        raise FigureError(f"{len(scenes)} scenes; draw one or two")
    first = next(iter(scenes.values()))
    leaves, pages = len(first), len(first[0]) if first else 0
    if not (1 <= leaves <= 16 and 1 <= pages <= 32):
        raise FigureError(f"{leaves} leaves and {pages} pages; draw up to 16 and 32, and at least one of each")
    for words, rows in scenes.items():
        if [len(row) for row in rows] != [pages] * leaves:
            raise FigureError(
                f"{words!r} has rows of {[len(row) for row in rows]} pages; give {leaves} rows of {pages}"
            )
    counts = {
        words: (sum(map(sum, rows)), sum(any(row[page] for row in rows) for page in range(pages)))
        for words, rows in scenes.items()
    }

    def draw(pen: Pen) -> None:
        beside = 1 if pen.narrow else 2
        label = max(text_width(each, 11.5) for each in ("pages", "leaves")) + 8
        width = (pen.width - 8 - (beside - 1) * 20) / beside
        side = min((width - label) / pages, 16.0)
        deep = 28 + side * leaves + 10 + side + 8
        for place, (words, rows) in enumerate(scenes.items()):
            left = 4 + (place % beside) * (width + 20)
            top = (place // beside) * (deep + 18)
            pen.text(left, top + 13, words, bold=True)
            grid = left + label
            y = top + 28
            pen.box(grid - 1, y - 1, side * pages + 1, side * leaves + 1, look="quiet", dashed=True)
            pen.text(grid - 6, y + side * leaves / 2 + 4, "leaves", size="small", look="quiet", anchor="end")
            for leaf, row in enumerate(rows):
                for page, is_slow in enumerate(row):
                    if is_slow:
                        pen.box(grid + page * side, y + leaf * side, side - 1.5, side - 1.5, look="latency", solid=True)
            y += side * leaves + 8
            pen.text(grid - 6, y + side / 2 + 4, "pages", size="small", look="quiet", anchor="end")
            for page in range(pages):
                is_slow = any(row[page] for row in rows)
                pen.box(
                    grid + page * side, y, side - 1.5, side - 1.5, look="latency" if is_slow else "quiet", solid=is_slow
                )
            y += side + 16
            answers, met = counts[words]
            pen.text(grid, y, f"slow answers: {answers}, slow pages: {met}", size="small", look="quiet")
        pen.height = ((len(scenes) - 1) // beside) * (deep + 18) + deep + 16

    said = "; ".join(
        f"{words}: slow answers: {answers} of {leaves * pages}, slow pages: {met} of {pages}"
        for words, (answers, met) in counts.items()
    )
    return drawing(
        f"A grid for each of {len(scenes)} cases, a row a leaf and a column a page, slow answers filled, and under "
        f"each column whether the page has one. {said}.",
        draw,
        caption=caption,
        name=name,
        data={
            "case": list(scenes),
            "slow answers": [answers for answers, _ in counts.values()],
            "slow pages": [met for _, met in counts.values()],
            "pages": [pages] * len(scenes),
            "leaves": [leaves] * len(scenes),
        },
    )
