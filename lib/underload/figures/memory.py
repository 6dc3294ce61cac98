"""Three pictures of KV memory: how many sequences fit, one sequence reserved and paged, and what memory is used for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from underload.figures.moving import Band, Choice, Commit, Curve, Frame, Mark, Number, Rule, Slider, moving_figure
from underload.figures.palette import FigureError
from underload.figures.pen import Pen, drawing
from underload.figures.plot import Axis, Panel, text_width
from underload.figures.still import Picture
from underload.figures.wording import number, quantity

_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


@dataclass(frozen=True)
class Kept:
    """What a model keeps in memory: its weights, and so many cached values for a sequence of so many tokens."""

    name: str
    weights: float  # how many
    values: Callable[[int], float]  # tokens -> cached values of one sequence
    most: int  # tokens it was made for


def kv_memory(
    models: Sequence[Kept],
    cards: Mapping[str, float],
    contexts: Sequence[int],
    *,
    usable: float = 0.9,
    start: tuple[str, str, int] | None = None,
    commit: Commit | None = None,
    caption: str = "",
    name: str | None = None,
) -> Picture:
    """Memory of weights and caches against the number of sequences, under the line of a card.

    Args:
        models: to choose between. Weights are in 2 bytes; the width of a cached value is a choice.
        cards: bytes by the words of the choice.
        contexts: tokens of each sequence, the values of a slider.
        usable: the share of a card that weights and caches may take.
        start: model, card and context shown first.

    Raises:
        FigureError: nothing to choose between, or a share outside (0, 1].
    """
    if not models or not cards or not contexts or not 0 < usable <= 1:
        raise FigureError(
            f"{len(models)} models, {len(cards)} cards, {len(contexts)} contexts, usable {usable}; give one of each at "
            "least, and a share above 0 and at most 1"
        )
    by_name = {model.name: model for model in models}
    bottom, top = 0.7 * min(2 * model.weights for model in models) / 1e9, 3 * max(cards.values()) / 1e9

    def frame(model: str, context: int, width: str, card: str) -> Frame:
        chosen, memory = by_name[model], cards[card]
        weights, each = 2 * chosen.weights, chosen.values(context) * float(width)
        fit = max(math.floor((usable * memory - weights) / each), 0)
        total = [(weights + batch * each) / 1e9 for batch in _BATCHES]
        shown = [(float(batch), value) for batch, value in zip(_BATCHES, total, strict=True) if value <= top]
        if shown and len(shown) < len(_BATCHES):
            shown.append(((top * 1e9 - weights) / each, top))  # to the edge of the plot, not to its last point inside
        if weights > usable * memory:
            says = f"The weights alone are {quantity(weights, 'B')}: more than the usable part of this card."
        else:
            says = (
                f"{number(fit)} sequence{'' if fit == 1 else 's'} of {number(context)} tokens, {quantity(each, 'B')} "
                f"each, beside {quantity(weights, 'B')} of weights."
            )
        if context > chosen.most:
            says += f" This model was made for {number(chosen.most)} tokens at most."
        marks = [Mark(fit, (weights + fit * each) / 1e9)] if 1 <= fit <= _BATCHES[-1] else []
        return Frame(
            curves=[
                Curve("weights", [1, _BATCHES[-1]], [weights / 1e9] * 2, look="weights"),
                Curve("weights and caches", [b for b, _ in shown], [v for _, v in shown], look="kv"),
            ],
            rules=[Rule(y=usable * memory / 1e9, label=f"{100 * usable:.0f} % of the card")],
            bands=[Band(y=(usable * memory / 1e9, None))],
            marks=marks,
            numbers=[
                Number("a token", chosen.values(context) * float(width) / context, "B", look="kv"),
                Number("a sequence", each, "B", look="kv"),
                Number("sequences that fit", fit, "", look="throughput"),
            ],
            says=says,
        )

    first = start or (models[0].name, next(iter(cards)), contexts[0])
    return moving_figure(
        frame,
        [
            Choice("model", "Model", {model.name: model.name for model in models}, start=first[0]),
            Slider("context", "Tokens in each sequence", list(contexts), start=first[2]),
            Choice("width", "A cached value takes", {"2": "2 bytes", "1": "1 byte"}, start="2"),
            Choice("card", "Card", {card: card for card in cards}, start=first[1]),
        ],
        title="What fits on a card beside the weights",
        alt=(
            "Memory against the number of sequences, both on logarithmic axes. The weights are a level line; weights "
            "and caches together rise from it and meet the line of the card where no further sequence fits. Longer "
            "sequences and wider values move the meeting point to the left."
        ),
        panels=[
            Panel(
                Axis("sequences", log=True, limits=(1, _BATCHES[-1]), ticks=[1, 4, 16, 64, 256, 1024]),
                Axis("memory", "GB", log=True, limits=(bottom, top)),
            )
        ],
        caption=caption,
        commit=commit,
        name=name,
    )


# A place in memory: its look, whether it is filled, whether it is only outlined.
_STORED, _COMING, _NEVER = ("kv", True, False), ("kv", False, False), ("waste", True, False)
_OTHERS, _FREE = ("quiet", False, False), ("free", False, True)


def _row(pen: Pen, x: float, y: float, size: float, kinds: Sequence[tuple[str, bool, bool]]) -> None:
    for place, (look, solid, dashed) in enumerate(kinds):
        pen.box(x + place * size, y, size - 2, 26, look=look, solid=solid, dashed=dashed)


def reserved_and_paged(
    prompt: int = 5,
    written: int = 4,
    coming: int = 3,
    reserved: int = 24,
    block: int = 4,
    blocks: Sequence[int] = (7, 2, 10),
    others: Sequence[int] = (0, 1, 4, 5, 8),
    *,
    caption: str = "",
    name: str | None = None,
) -> Picture:
    """One sequence in the middle of its answer, twice: in a row reserved for the longest, and in blocks of a pool.

    Args:
        prompt, written, coming: tokens of the prompt, of the answer so far, and of the answer still to come.
        reserved: tokens that its row was reserved for.
        block: tokens of a block.
        blocks: which of the pool's twelve blocks hold it, in order.
        others: blocks that hold other sequences.

    Raises:
        FigureError: a row that is shorter than the sequence or longer than 32, blocks that do not match the tokens, or
            ones that are not in the pool.
    """
    stored, final, pool = prompt + written, prompt + written + coming, 12
    if min(prompt, written) < 1 or coming < 0 or not final <= reserved <= 32:
        raise FigureError(
            f"{final} tokens in a row of {reserved}; at least 1 of prompt and answer, a row of at most 32"
        )
    if len(blocks) != -(-stored // block) or not set(blocks) | set(others) <= set(range(pool)) or block > 6:
        raise FigureError(
            f"blocks {list(blocks)} of {block} tokens for {stored} tokens; give {-(-stored // block)}, numbered 0 to "
            f"{pool - 1}"
        )
    if set(blocks) & set(others):
        raise FigureError(f"blocks {sorted(set(blocks) & set(others))} are the sequence's and others' at once")

    def draw(pen: Pen) -> None:
        left = 1.0
        size = (pen.width - 2 * left) / reserved
        pen.text(0, 13, f"Reserved: one row for {reserved} tokens, the most it may become", bold=not pen.narrow)
        y = 24.0
        _row(pen, left, y, size, [_STORED] * stored + [_COMING] * coming + [_NEVER] * (reserved - final))
        under = y + 36
        pen.bracket(left, left + stored * size - 2, under, f"{stored} stored", look="kv")
        if coming:
            words = f"{coming} to come" if coming * size > text_width("9 to come", 12.5) else str(coming)
            pen.bracket(left + stored * size, left + final * size - 2, under, words, look="kv")
        if reserved > final:
            pen.bracket(
                left + final * size,
                left + reserved * size - 2,
                under,
                f"{reserved - final} never used",
                look="quiet",
            )
        y = under + 46
        pen.text(0, y, f"Paged: blocks of {block}, taken when needed", bold=not pen.narrow)
        y += 14
        pen.text(left, y + 15, "block table", size="small", look="quiet")
        cell = 36.0
        for place, each in enumerate(blocks):
            pen.box(left + 74 + place * cell, y, cell - 3, 22, str(each), look="kv", small=True)
        y += 44
        columns = 6 if pen.narrow else pool
        step = (pen.width - 2 * left) / columns
        inner = (step - 8) / block
        for place in range(pool):
            x, row = left + place % columns * step, y + place // columns * 50
            pen.text(x, row, str(place), size="small", look="kv" if place in blocks else "quiet", bold=place in blocks)
            if place in blocks:
                full = min(max(stored - blocks.index(place) * block, 0), block)
                kinds = [_STORED] * full + [_COMING] * (block - full)
            else:
                kinds = [_OTHERS if place in others else _FREE] * block
            _row(pen, x, row + 5, inner, kinds)
        y += (pool // columns) * 50 - 10
        x = left
        for (look, solid, dashed), words in (
            (_STORED, "stored"),
            (_COMING, "to come"),
            (_NEVER, "never used"),
            (_OTHERS, "others"),
            (_FREE, "free"),
        ):
            pen.box(x, y + 4, 12, 12, look=look, dashed=dashed, solid=solid)
            pen.text(x + 17, y + 14, words, size="small", look="quiet")
            x += text_width(words, 11.5) + (23 if pen.narrow else 40)
        pen.height = y + 24

    spare = len(blocks) * block - stored
    return drawing(
        f"One sequence of {prompt} prompt tokens and {written} tokens of answer, with {coming} still to come. "
        f"Reserved: a row of {reserved} places, of which {stored} are stored, {coming} will be filled and "
        f"{reserved - final} never. "
        f"Paged: its block table names blocks {', '.join(map(str, blocks))} of a pool of {pool}; {stored} of their "
        f"{len(blocks) * block} places are filled, and {spare} "
        f"{'is' if spare == 1 else 'are'} empty in the last block.",
        draw,
        caption=caption,
        name=name,
    )


_PARTS = (
    ("stored", "stored", "kv", True),
    ("reserved", "to be filled later", "kv", False),
    ("internal", "asked for, never filled", "waste", True),
    ("external", "never asked for", "waste", False),
    ("free", "free, not enough for the next", "free", False),
)
"""Field of `simulation.Occupancy`, its words, its look, and whether it is solid."""


def waste_bars(
    systems: Mapping[str, Mapping[str, float]],
    *,
    cited: Mapping[str, float] | None = None,
    cited_from: str = "published",
    caption: str = "",
    name: str | None = None,
) -> Picture:
    """A bar a system: the shares of its memory by use, and above it the share that others published as stored.

    Args:
        systems: by name, the shares `stored`, `reserved`, `internal`, `external` and `free`, which sum to 1.
        cited: by the same names, published shares of what is stored.
        cited_from: where those come from, for the legend.

    Raises:
        FigureError: no system, shares that do not sum to 1, or a published one for a system that is not there.
    """
    cited = cited or {}
    for who, shares in systems.items():
        if set(shares) != {part for part, *_ in _PARTS} or abs(sum(shares.values()) - 1) > 2e-3:
            raise FigureError(f"the shares of {who!r}, {dict(shares)}, are not five that sum to 1")
    if not systems or not set(cited) <= set(systems):
        raise FigureError(
            f"{len(systems)} systems, and published shares for {sorted(cited)}; name systems that are there"
        )

    def draw(pen: Pen) -> None:
        x, y = 1.0, 4.0
        for _, words, look, solid in _PARTS:
            width = text_width(words, 11.5) + 34
            if x + width > pen.width and x > 1:
                x, y = 1.0, y + 21
            pen.box(x, y, 13, 13, look=look, solid=solid, dashed=look == "free")
            pen.text(x + 19, y + 11, words, size="small", look="quiet")
            x += width
        if cited:
            if x + text_width(f"stored, {cited_from}", 11.5) + 20 > pen.width:
                x, y = 1.0, y + 21
            _pointer(pen, x + 6, y + 12)
            pen.text(x + 19, y + 11, f"stored, {cited_from}", size="small", look="quiet")
        y += 36
        left = 0.0 if pen.narrow else 152.0
        room = pen.width - left - 2
        for who, shares in systems.items():
            if pen.narrow:
                pen.text(0, y + 2, who, bold=True, size="small")
                y += 20
            else:
                pen.text(0, y + 20, who, bold=True)
            if who in cited:
                at = left + cited[who] * room
                _pointer(pen, at, y - 2)
                words, size = f"{100 * cited[who]:.1f} %", 11.5
                fits = at + 10 + text_width(words, size) < pen.width
                pen.text(at + (9 if fits else -9), y - 3, words, size="small", look="prediction",
                         anchor="start" if fits else "end")  # fmt: skip
            x = left
            for part, _, look, solid in _PARTS:
                width = shares[part] * room
                words = f"{100 * shares[part]:.1f} %"
                fits = width > text_width(words, 11.5) + 8
                if width >= 1:
                    pen.box(x, y, max(width - 1, 0.8), 30, words if fits else "", look=look, solid=solid, small=True,
                            dashed=look == "free")  # fmt: skip
                x += width
            y += 54 if not pen.narrow else 56
        pen.height = y - 14

    said = "; ".join(
        f"{who}: "
        + ", ".join(f"{100 * shares[part]:.1f} % {words}" for part, words, *_ in _PARTS if shares[part] > 5e-4)
        for who, shares in systems.items()
    )
    data: dict[str, list[str] | list[float] | list[float | None]] = {"system": list(systems)}
    for part, words, *_ in _PARTS:
        data[f"{words} (%)"] = [round(100 * shares[part], 2) for shares in systems.values()]
    if cited:
        data[f"stored, {cited_from} (%)"] = [round(100 * cited[who], 2) if who in cited else None for who in systems]
    return drawing(f"What memory is used for. {said}.", draw, caption=caption, name=name, data=data)


def _pointer(pen: Pen, x: float, y: float) -> None:
    """A small arrowhead whose point is at (x, y), in the colour of what is not ours."""
    pen.arrow(x, y - 12, x, y, look="prediction")
