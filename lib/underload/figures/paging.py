"""Pictures of attention over blocks: where a token lies, a softmax that is never finished, parts and their merge."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from underload.figures.moving import Bar, Choice, Commit, Curve, Frame, Mark, Number, Rule, Slider, moving_figure
from underload.figures.palette import FigureError
from underload.figures.pen import Pen, drawing
from underload.figures.plot import Axis, Panel
from underload.figures.still import Picture
from underload.figures.wording import number


def token_lookup(
    tables: Mapping[int, tuple[Sequence[int], Sequence[int]]],
    tokens: int,
    slots: int,
    *,
    start: tuple[int, int],
    commit: Commit | None = None,
    caption: str = "",
    name: str | None = None,
) -> Picture:
    """A token of a sequence, and where it lies in memory: position and block size are the reader's to choose.

    Args:
        tables: by block size (tokens): the sequence's block table, and the blocks that others hold.
        tokens: of the sequence.
        slots: places for tokens in the whole memory.
        start: block size and position shown first.

    Raises:
        FigureError: no table, one that is too short or names a block twice or outside the memory.
    """
    if not tables or tokens < 1:
        raise FigureError(f"{len(tables)} tables for {tokens} tokens; give at least one of each")
    for size, (table, others) in tables.items():
        named = [*table, *others]
        if (
            len(table) != -(-tokens // size)
            or len(set(named)) < len(named)
            or not set(named) <= set(range(slots // size))
        ):
            raise FigureError(
                f"table {list(table)} and others' blocks {list(others)} of {size} tokens: {tokens} tokens need "
                f"{-(-tokens // size)} blocks, each named once, numbered 0 to {slots // size - 1}"
            )
    width = max(-(-tokens // size) * size for size in tables)
    gap = 0.07  # between two cells, in tokens

    def frame(size: str, position: int) -> Frame:
        b = int(size)
        table, others = tables[b]
        index, offset = divmod(position, b)
        slot = table[index] * b + offset

        def cell(at: int, look: str, panel: int, name: str, faint: bool) -> Bar:
            return Bar((at + gap, at + 1 - gap), (0.0, 0.5), look=look, panel=panel, name=name, faint=faint)

        bars = []
        for place, block in enumerate(table):
            look, title = ("decode", "its block") if place == index else ("kv", "the sequence")
            for first, label, panel in ((place * b, f"[{place}] = {block}", 0), (block * b, str(block), 1)):
                bars.append(Bar((first + gap, first + b - gap), (0.56, 1.0), look=look, label=label, panel=panel))
                for each in range(b):
                    if place * b + each < tokens:
                        bars.append(cell(first + each, look, panel, title, False))
                    else:
                        bars.append(cell(first + each, "waste", panel, "empty, held", True))
        for block in set(range(slots // b)) - set(table):
            look, title = ("quiet", "others") if block in others else ("free", "free")
            bars += [cell(block * b + each, look, 1, title, block not in others) for each in range(b)]
        return Frame(
            bars=bars,
            marks=[Mark(position + 0.5, 0.25, guides=False), Mark(slot + 0.5, 0.25, panel=1, guides=False)],
            numbers=[
                Number("entry of the table", index),
                Number("block it names", table[index], look="kv"),
                Number("offset", offset),
                Number("slot", slot, look="kv"),
            ],
            says=(
                f"Token {position}: entry {position} // {b} = {index} of the table names block {table[index]}, and the "
                f"offset is {position} mod {b} = {offset}. So it lies in slot {table[index]} × {b} + {offset} = {slot}."
            ),
        )

    one = Axis("", limits=(-0.06, 1.1), ticks=[])
    return moving_figure(
        frame,
        [
            Slider("position", "Token", list(range(tokens)), start=start[1]),
            Choice("size", "Tokens in a block", {str(size): str(size) for size in tables}, start=str(start[0])),
        ],
        title="Where is token number …?",
        alt=(
            f"Two strips. Above, the {tokens} tokens of a sequence in order, cut into blocks. Below, a memory of "
            f"{slots} slots, in which the same blocks lie scattered among those of others. A ring marks the chosen "
            "token in both."
        ),
        panels=[
            Panel(Axis("position in the sequence", limits=(0, width)), one, height=0.5, grid=False),
            Panel(Axis("slot in memory", limits=(0, slots)), one, height=0.5, grid=False),
        ],
        caption=caption,
        commit=commit,
        name=name,
    )


def softmax_in_blocks(
    scores: Sequence[float],
    values: Sequence[float],
    block: int,
    *,
    start: int = 1,
    commit: Commit | None = None,
    caption: str = "",
    name: str | None = None,
) -> Picture:
    """The online softmax, a block at a time, forwards or backwards: largest score, sum, and output so far.

    Args:
        scores, values: one number a token.
        block: tokens of a block; they divide the tokens.
        start: blocks read at first.

    Raises:
        FigureError: not one value for each score, or a block size that does not divide them.
    """
    n = len(scores)
    if n == 0 or len(values) != n or block < 1 or n % block:
        raise FigureError(
            f"{n} scores, {len(values)} values, blocks of {block}; give one value a score, in blocks that divide them"
        )
    count = n // block
    whole = _State().take(scores, values)

    def blocks(order: str) -> list[int]:
        return list(range(count)) if order == "forwards" else list(range(count))[::-1]

    states = {}
    for order in ("forwards", "backwards"):
        state = states[order, 0] = _State()
        for done, place in enumerate(blocks(order), 1):
            at = slice(place * block, (place + 1) * block)
            state = states[order, done] = state.take(scores[at], values[at])

    def frame(order: str, read: int) -> Frame:
        before, now = states[order, read - 1], states[order, read]
        seen = {place * block + each for place in blocks(order)[:read] for each in range(block)}
        last = blocks(order)[read - 1]
        bars = []
        for token, score in enumerate(scores):
            x = (token + 0.1, token + 0.9)
            fresh = token // block == last
            look, title = ("decode", "this block") if fresh else ("kv", "read before")
            if token in seen:
                bars.append(Bar(x, (0, score), look=look, name=title))
                bars.append(Bar(x, (0, math.exp(score - now.most)), look=look, panel=1, name=title))
            else:
                bars.append(Bar(x, (0, score), look="quiet", name="not read yet", faint=True))
        if read == 1:
            says = "The first block: its largest score is taken off, and its exponentials are summed."
        elif now.most > before.most:
            says = (
                f"This block brings a larger score, {number(now.most)} instead of {number(before.most)}. What was "
                f"summed so far is multiplied by e^({number(before.most)} − {number(now.most)}) = "
                f"{number(math.exp(before.most - now.most), 2)}; then the block's own is added."
            )
        else:
            says = f"No larger score in this block: {number(now.most)} stays, and the block's exponentials are added."
        if read == count:
            says += f" All is read, and the output is that of the whole softmax, {number(whole.output)}."
        so_far = [states[order, done].output for done in range(1, read + 1)]
        return Frame(
            bars=bars,
            rules=[
                Rule(y=now.most, label="largest so far", look="limit"),
                Rule(y=whole.output, label="all at once", panel=2),
            ],
            curves=[Curve("output so far", list(range(1, read + 1)), so_far, look="prediction", panel=2, legend=False)],
            marks=[Mark(read, now.output, panel=2, guides=False)],
            numbers=[
                Number("largest so far", now.most),
                Number("sum", now.total),
                Number("output so far", now.output, look="prediction"),
                Number("all at once", whole.output),
            ],
            says=says,
        )

    return moving_figure(
        frame,
        [
            Slider("read", "Blocks read", list(range(1, count + 1)), start=start),
            Choice(
                "order", "Order", {"forwards": "first block first", "backwards": "last block first"}, start="forwards"
            ),
        ],
        title="A softmax that is never finished and always right",
        alt=(
            f"Three plots. The scores of {n} tokens as bars, in blocks of {block}, with the largest one read so far as "
            "a line. The exponentials of the scores that were read, less that largest one: whenever it grows, all bars "
            "from before shrink by the same factor. The output after each block, which ends on the line of the whole "
            "softmax in either order."
        ),
        panels=[
            Panel(Axis("token", limits=(0, n)), Axis("score"), half=True),
            Panel(Axis("token", limits=(0, n)), Axis("e^(score − largest so far)", limits=(0, 1.05)), half=True),
            Panel(
                Axis("blocks read", limits=(0.6, count + 0.4), ticks=list(range(1, count + 1))),
                Axis("output so far"),
                height=0.6,
            ),
        ],
        caption=caption,
        commit=commit,
        name=name,
    )


class _State:
    """Largest score, sum of exponentials and mix of values, of what was read."""

    def __init__(self, most: float = -math.inf, total: float = 0.0, mix: float = 0.0) -> None:
        self.most, self.total, self.mix = most, total, mix

    def take(self, scores: Sequence[float], values: Sequence[float]) -> _State:
        most = max(self.most, *scores)
        weights = [math.exp(score - most) for score in scores]
        old = math.exp(self.most - most)
        mix = sum(weight * value for weight, value in zip(weights, values, strict=True))
        return _State(most, self.total * old + sum(weights), self.mix * old + mix)

    @property
    def output(self) -> float:
        return self.mix / self.total


def attention_times(
    recording: Mapping[str, Any],
    start: tuple[str, int, int],
    *,
    live: float | None = None,
    caption: str = "",
    name: str | None = None,
) -> Picture:
    """Recorded times of attention by block size, in readings: multiples of the time that its bytes alone would take.

    Args:
        recording: what `tests/benchmarks/paging.py` stored.
        start: model, context and batch size shown first.
        live: s that a layer of that case took just now, in place in blocks of 16.

    Raises:
        FigureError: the recording does not have the case to start from.
    """
    cases = {(case["model"], case["context"], case["batch_size"]): case for case in recording["cases"]}
    if start not in cases:
        raise FigureError(f"no case {start} in the recording; it has {', '.join(map(str, cases))}")
    contexts, batches = (list(dict.fromkeys(key[part] for key in cases)) for part in (1, 2))
    heads = {key[0]: f"{case['heads']} and {case['kv_heads']} ({key[0]})" for key, case in cases.items()}
    prefix = "in place, blocks of "
    sizes = sorted(int(way.removeprefix(prefix)) for way in cases[start]["microseconds"] if way.startswith(prefix))
    ends = [sizes[0], sizes[-1]]

    def frame(model: str, context: int, batch: int) -> Frame:
        case = cases[model, context, batch]
        reading = 1e6 * case["kv_bytes"] / recording["read_bandwidth"]
        times = case["microseconds"]
        place = [times[f"{prefix}{size}"] / reading for size in sizes]
        row, gathered = times[case["contiguous"]] / reading, times[case["gathered"]] / reading
        curves = [
            Curve("in place, recorded", sizes, place, look="recorded"),
            Curve("contiguous, recorded", ends, [row] * 2, look="recorded", variant=1),
            Curve("gathered (blocks of 16), recorded", ends, [gathered] * 2, look="recorded", variant=2),
            Curve("one reading", ends, [1, 1], look="prediction"),
            Curve("three readings", ends, [3, 3], look="prediction", variant=1),
        ]
        if live is not None and (model, context, batch) == start:
            curves.append(Curve("in place, measured just now", [16], [1e6 * live / reading], look="live"))
        usual = times[f"{prefix}16"]
        return Frame(
            curves=curves,
            numbers=[
                Number("one reading", reading / 1e6, "s", look="prediction"),
                Number("in place, blocks of 16", usual / 1e6, "s", look="recorded"),
                Number("contiguous", times[case["contiguous"]] / 1e6, "s", look="recorded"),
                Number("gathered", times[case["gathered"]] / 1e6, "s", look="recorded"),
            ],
            says=(
                f"Beside a contiguous cache, blocks of 16 in place took {number(usual / times[case['contiguous']], 2)} "
                f"times as long, and gathering them {number(gathered / row, 2)} times."
            ),
        )

    return moving_figure(
        frame,
        [
            Choice("model", "Query heads, and heads of keys and values", heads, start=start[0]),
            Slider("context", "Tokens in each sequence", contexts, start=start[1]),
            Slider("batch", "Sequences", batches, start=start[2]),
        ],
        title="A layer's attention, in place, in a row, and gathered",
        alt=(
            f"Time of a layer's attention against the block size, from {sizes[0]} to {sizes[-1]} tokens, as a multiple "
            "of the time in which its keys and values could be read once. A curve for blocks read in place, level "
            "lines for a contiguous cache and for gathering first, and two more for the predictions of one reading and "
            "of three."
        ),
        panels=[
            Panel(Axis("tokens in a block", log=True, ticks=sizes), Axis("a layer's attention", "readings", log=True)),
        ],
        caption=caption,
        name=name,
    )


def tables_and_pool(
    sequences: Mapping[str, tuple[int, Sequence[int]]] | None = None,
    block: int = 4,
    pool: int = 8,
    *,
    caption: str = "",
    name: str | None = None,
) -> Picture:
    """Sequences, their block tables, and the pool that the tables point into.

    Args:
        sequences: by name, the tokens of each and its block table; two of them, 9 and 6 tokens long, if not given.
        block: tokens of a block.
        pool: blocks in all.

    Raises:
        FigureError: none or more than two sequences, a table that does not fit its tokens, a block held twice or not
            in the pool.
    """
    given = dict(sequences or {"A": (9, (5, 1, 6)), "B": (6, (3, 0))})
    held = [number for _, table in given.values() for number in table]
    fits = all(tokens >= 1 and len(table) == -(-tokens // block) for tokens, table in given.values())
    inside = set(held) <= set(range(pool)) and len(held) <= pool
    if not 1 <= len(given) <= 2 or not fits or len(set(held)) < len(held) or not inside:
        raise FigureError(
            f"sequences {given} in {pool} blocks of {block}; give one or two, each with a block for every {block} "
            f"tokens, no block twice, numbered 0 to {pool - 1}"
        )
    looks = dict(zip(given, ("kv", "prefill"), strict=False))
    most = sum(len(table) for _, table in given.values())

    def draw(pen: Pen) -> None:
        left = 1.0 if pen.narrow else 70.0
        entry = (pen.width - left - 12) / most  # the width of a block of tokens
        cell = entry / block
        top = 32.0
        table_y = top + 46
        pool_y = table_y + 108
        if not pen.narrow:
            pen.text(0, top + 16, "tokens", size="small", look="quiet")
            pen.text(0, table_y + 18, "block table", size="small", look="quiet")
            pen.text(0, pool_y + 22, "pool", size="small", look="quiet")
        wide = (pen.width - left - 1) / pool
        x = left
        for who, (tokens, table) in given.items():
            pen.text(x, 14, f"{who}: {tokens} tokens", bold=True, look=looks[who])
            for place, number_ in enumerate(table):
                full = min(max(tokens - place * block, 0), block)
                at = x + place * entry
                names = [str(place * block + each) if cell > 15 else "" for each in range(full)]
                pen.cells(at, top, cell, names, look=looks[who], height=22)
                pen.cells(at + full * cell, top, cell, [""] * (block - full), look="waste", height=22)
                pen.box(at, table_y, entry - 3, 26, str(number_), look=looks[who])
                middle = at + (entry - 3) / 2
                pen.arrow(middle, table_y + 27, left + (number_ + 0.5) * wide - 1, pool_y - 3, look=looks[who])
            x += len(table) * entry + 10
        owners = {number_: who for who, (_, table) in given.items() for number_ in table}
        for number_ in range(pool):
            at = left + number_ * wide
            owner = owners.get(number_)
            if owner is None:
                colours, full = ["free"] * block, block
            else:
                tokens, table = given[owner]
                full = min(max(tokens - list(table).index(number_) * block, 0), block)
                colours = [looks[owner]] * full + ["waste"] * (block - full)
            pen.cells(at, pool_y, (wide - 4) / block, [""] * block, look=colours, height=30)
            pen.text(at + wide / 2 - 2, pool_y + 46, str(number_), size="small", anchor="middle", look="quiet")
        pen.height = pool_y + 56

    said = "; ".join(
        f"{who} has {tokens} tokens and the table {', '.join(map(str, table))}"
        for who, (tokens, table) in given.items()
    )
    free = [str(number_) for number_ in range(pool) if number_ not in held]
    return drawing(
        f"Block tables and a pool of {pool} blocks of {block} tokens. {said}. Every entry points to its block in the "
        f"pool, in no order; blocks {', '.join(free) or 'none'} are free.",
        draw,
        caption=caption,
        name=name,
    )


def parts_and_merge(parts: int = 3, blocks: int = 9, *, caption: str = "", name: str | None = None) -> Picture:
    """One long context read in parts by workers who do not know each other, and put together at the end.

    Args:
        parts: 2 to 4.
        blocks: of the whole context, a multiple of the parts, at most 16.

    Raises:
        FigureError: parts or blocks out of range.
    """
    if not 2 <= parts <= 4 or blocks % parts or not parts <= blocks <= 16:
        raise FigureError(f"{parts} parts of {blocks} blocks; draw 2 to 4, of a multiple of them, at most 16")

    def draw(pen: Pen) -> None:
        share = blocks // parts
        room = (pen.width - 2) / parts
        gap = 14.0
        cell = (room - gap) / share
        pen.text(1, 13, "the query", size="small", look="quiet")
        pen.box(pen.width / 2 - 26, 2, 52, 24, "q", look="decode")
        top, below = 62.0, 118.0
        words = "largest, sum, mix" if not pen.narrow else "ŝ, ℓ, u"
        for part in range(parts):
            x = 1 + part * room
            middle = x + (room - gap) / 2
            pen.arrow(pen.width / 2, 28, middle, top - 4)
            pen.cells(x, top, cell, [""] * share, look="kv", height=24)
            pen.arrow(middle, top + 26, middle, below - 2)
            pen.box(x + 4, below, room - gap - 8, 28, words, look="prefill", small=True)
            pen.arrow(middle, below + 30, pen.width / 2 + (part - (parts - 1) / 2) * 24, below + 62)
        pen.box(pen.width / 2 - 52, below + 64, 104, 28, "merge", look="decode")
        pen.arrow(pen.width / 2, below + 93, pen.width / 2, below + 116)
        pen.text(pen.width / 2, below + 131, "the output of the whole context", anchor="middle", size="small")
        pen.text(1, top - 7, "keys and values" if not pen.narrow else "", size="small", look="quiet")
        pen.height = below + 140

    return drawing(
        f"A context of {blocks} blocks cut into {parts} parts. The same query goes to each part; each gives its "
        "largest score, its sum of exponentials and its mix of values; a merge of these makes the output of the whole "
        "context.",
        draw,
        caption=caption,
        name=name,
    )
