"""The diagrams several pages share: a request's life, a decode step, a ragged batch, a cache, tokens, stages."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from underload.figures.palette import LOOKS, FigureError
from underload.figures.pen import Pen, drawing
from underload.figures.plot import text_width
from underload.figures.still import Picture
from underload.figures.wording import quantity


def request_life(tokens: int = 5, *, caption: str = "", name: str | None = None) -> Picture:
    """The stages of one request in order, what the client sees, and the spans that the metrics measure. Not to scale.

    Raises:
        FigureError: fewer than 3 or more than 8 tokens: too few for a gap between tokens, too many for the width.
    """
    if not 3 <= tokens <= 8:
        raise FigureError(f"{tokens} tokens; draw 3 to 8: a gap needs two of them, and more do not fit")

    def across(pen: Pen) -> None:
        left, right = 64.0, pen.width - 8.0
        spans = [("tokenise", 70.0), ("queue", 96.0), ("prefill", 112.0)] + [("decode", 0.0)] * (tokens - 1)
        rest = (right - left - sum(w for _, w in spans)) / (tokens - 1)
        y, client = 66.0, 160.0
        pen.text(0, y + 24, "server", look="quiet")
        pen.text(0, client + 5, "client", look="quiet")
        pen.line(left, client, right, client)
        pen.arrow(left, client - 2, left, y + 44)
        x, arrivals = left, []
        for stage, width in spans:
            width = width or rest
            pen.box(x + 1, y, width - 2, 38, stage if width > text_width(stage, 13) + 6 else "", look=stage)
            x += width
            if stage in ("prefill", "decode"):
                pen.arrow(x, y + 40, x, client - 6)
                pen.dot(x, client, look="stream")
                arrivals.append(x)
        pen.text(arrivals[0] + 9, y + 66, "detokenise," if rest > 66 else "", size="small", look="quiet")
        pen.text(arrivals[0] + 9, y + 80, "stream" if rest > 66 else "", size="small", look="quiet")
        pen.text(left + 8, y + 66, "the request", size="small", look="quiet")
        queued = left + spans[0][1] + spans[1][1]
        pen.bracket(left, queued, y - 9, "queue time", below=False)
        pen.bracket(left, arrivals[0], y - 36, "TTFT", below=False)
        for a, b in pairwise(arrivals[:3]):
            pen.bracket(a + 3, b - 3, client + 16, "ITL")
        pen.bracket(left, arrivals[-1], client + 46, "E2E")
        pen.height = client + 68

    def down(pen: Pen) -> None:
        x, width, client = 118.0, 104.0, 264.0
        y = 34.0
        pen.text(x + width / 2, 16, "server", look="quiet", anchor="middle")
        pen.text(client, 16, "client", look="quiet", anchor="middle")
        top, arrivals, queued = y, [], 0.0
        for stage, height in [("tokenise", 34.0), ("queue", 52.0), ("prefill", 62.0)] + [("decode", 36.0)] * (
            tokens - 1
        ):
            pen.box(x, y + 1, width, height - 2, stage, look=stage)
            y += height
            if stage == "queue":
                queued = y
            if stage in ("prefill", "decode"):
                pen.arrow(x + width + 2, y, client - 7, y)
                pen.dot(client, y, look="stream")
                arrivals.append(y)
        pen.line(client, top, client, y)
        pen.arrow(client - 2, top, x + width + 3, top)
        pen.upright(top, queued, x - 8, "queue time", left=True)
        pen.upright(top, arrivals[0], 34, "", left=True)
        pen.text(38, (queued + arrivals[0]) / 2 + 4, "TTFT", size="small", bold=True)
        for a, b in pairwise(arrivals[:3]):
            pen.upright(a + 3, b - 3, client + 16, "ITL")
        pen.upright(top, arrivals[-1], client + 44, "")
        pen.text(client + 50, (top + arrivals[0]) / 2, "E2E", size="small", bold=True)
        pen.text(x + width / 2, y + 20, "each token: detokenise, stream", size="small", look="quiet", anchor="middle")
        pen.height = y + 30

    return drawing(
        "A request's life. The server tokenises it, it waits in the queue, one prefill step reads the prompt and "
        "gives the first token, "
        f"then {tokens - 1} decode steps give one token each; every token is detokenised and streamed to the "
        f"client. Queue time runs from "
        "arrival to the start of the prefill, TTFT from arrival to the first token, ITL from one token to the "
        "next, E2E from arrival to the last.",
        lambda pen: down(pen) if pen.narrow else across(pen),
        caption=caption,
        name=name,
    )


def decode_step(batches: Sequence[int] = (1, 4), *, caption: str = "", name: str | None = None) -> Picture:
    """One decode step for each batch size: the weights are read once, whoever is there. Below, where its time goes.

    Raises:
        FigureError: no batch, more than two, or one outside 1…6.
    """
    if not 1 <= len(batches) <= 2 or not all(1 <= b <= 6 for b in batches):
        raise FigureError(f"batches {tuple(batches)}; draw one or two, each of 1 to 6 requests")
    most = max(batches)

    def one(pen: Pen, x: float, y: float, batch: int) -> None:
        pen.text(x, y + 12, f"{batch} request{'s' if batch > 1 else ''} in the step", bold=True)
        y += 26
        height = most * 30 - 4
        pen.box(x, y, 92, height, "all the\nweights,\nread once", look="weights", solid=True, small=True)
        top = y + (height - (batch * 30 - 4)) / 2
        for row in range(batch):
            at = top + row * 30
            pen.arrow(x + 95, at + 13, x + 122, at + 13)
            pen.box(x + 125, at, 92, 26, f"keys, values {'ABCDEF'[row]}", look="kv", small=True)
            pen.arrow(x + 220, at + 13, x + 247, at + 13)
            pen.box(x + 250, at, 62, 26, f"token {'ABCDEF'[row]}", look="decode", small=True)
        y += height + 34
        o, t = 150.0, 20.0
        pen.text(x, y - 7, "time of the step", size="small", look="quiet")
        pen.box(x, y, o - 1, 22, "weights, launches: o", look="weights", small=True)
        for row in range(batch):
            pen.box(x + o + row * t, y, t - 1, 22, "t", look="kv", small=True)
        end = o + batch * t
        formula = "o + t" if batch == 1 else f"o + {batch}t"
        pen.text(x + end + 8, y + 16, formula, bold=True, size="small")

    def draw(pen: Pen) -> None:
        step = most * 30 + 104.0
        for number, batch in enumerate(batches):
            if pen.narrow or len(batches) == 1:
                one(pen, 4, number * step, batch)
            else:
                one(pen, 2 + number * 350, 0, batch)
        pen.height = step * (len(batches) if pen.narrow else 1) - 14

    said = " and ".join(f"of {b} request{'s' if b > 1 else ''}" for b in batches)
    return drawing(
        f"A decode step {said}. Each step reads all the weights once; every request in it adds only the reading "
        f"of its own keys and "
        "values, and gets one token. So the step takes o, for weights and launches, plus t for each request.",
        draw,
        caption=caption,
        name=name,
    )


def ragged_batch(
    sequences: Sequence[tuple[str, int, int]] = (("A", 5, 0), ("B", 1, 7), ("C", 1, 3)),
    *,
    caption: str = "",
    name: str | None = None,
) -> Picture:
    """Sequences of different lengths flattened into the tokens of one forward pass, with the numbers that describe it.

    Args:
        sequences: (name, new tokens in this step, tokens whose keys and values are cached) each.

    Raises:
        FigureError: nothing to compute, or more than 12 tokens in a sequence or 14 new ones in all: they do not fit.
    """
    new = sum(n for _, n, _ in sequences)
    if not sequences or any(n < 1 or c < 0 or n + c > 12 for _, n, c in sequences) or new > 14:
        raise FigureError(
            f"sequences {list(sequences)}; each needs 1 or more new tokens and at most 12 in all, together at "
            f"most 14 new"
        )

    def draw(pen: Pen) -> None:
        size = 22.0 if pen.narrow else 34.0
        left = 22.0 if pen.narrow else 96.0
        x = left
        for look, words in (("kv", "in the cache"), ("prefill", "new, prefill"), ("decode", "new, decode")):
            pen.box(x, 3, 13, 13, look=look)
            pen.text(x + 18, 14, words, size="small", look="quiet")
            x += 106
        y = 28.0
        for who, n, cached in sequences:
            kind = "prefill" if n > 1 else "decode"
            pen.text(0, y + size / 2 + 4, who if pen.narrow else f"{who} · {kind}", bold=pen.narrow)
            end = pen.cells(left, y, size, [str(i) for i in range(cached)], look="kv")
            pen.cells(end, y, size, [str(cached + i) for i in range(n)], look=kind)
            y += size + 5
        y += 8
        pen.arrow(left + size / 2, y - 6, left + size / 2, y + 20)
        pen.text(left + size / 2 + 12, y + 11, "flattened: no padding", size="small", look="quiet")
        y += 28
        flat = min(size, (pen.width - left) / new)
        x, line = left, y + flat + (64 if pen.narrow else 20)
        if not pen.narrow:
            for number, title in enumerate(("positions", "query_lens", "context_lens")):
                pen.text(0, line + number * 20, title, size="small", look="quiet")
        else:
            pen.text(left, y + flat + 36, "positions above; below, a sequence each:", size="small", look="quiet")
            pen.text(left, y + flat + 54, "query_lens, context_lens", size="small", look="quiet")
            line = y + flat + 16
        for who, n, cached in sequences:
            end = pen.cells(x, y, flat, [who] * n, look="prefill" if n > 1 else "decode")
            for i in range(n):
                pen.text(x + (i + 0.5) * flat - 1, line, str(cached + i), size="small", anchor="middle")
            middle = (x + end) / 2 - 1
            below = line + (56 if pen.narrow else 20)
            pen.text(middle, below, str(n), size="small", anchor="middle")
            pen.text(middle, below + 20, str(n + cached), size="small", anchor="middle")
            x = end
        y = line + (84 if pen.narrow else 50)
        pen.height = y - 6

    said = "; ".join(f"{w} computes {n} new token{'s' if n > 1 else ''} on {c} cached" for w, n, c in sequences)
    return drawing(
        f"A ragged batch. {said}. The {new} new tokens stand one after another in one forward pass, without "
        f"padding; positions, query "
        "lengths and context lengths say which belongs where.",
        draw,
        caption=caption,
        name=name,
    )


def kv_filling(
    prompt: int = 4, new: int = 4, reserved: int = 12, *, caption: str = "", name: str | None = None
) -> Picture:
    """The cache of one request step by step: the prompt's keys and values at once, then one token's a step.

    Raises:
        FigureError: no prompt, no new token, more than fit the reservation, or more than 14 reserved.
    """
    # the last token needs no keys and values: nothing reads them
    filled = prompt + new - 1
    if prompt < 1 or new < 1 or filled > reserved or reserved > 14:
        raise FigureError(
            f"prompt {prompt}, new {new}, reserved {reserved}; at least 1 of each, prompt + new − 1 ≤ reserved ≤ 14"
        )

    def draw(pen: Pen) -> None:
        left = 66.0 if pen.narrow else 150.0
        size = min((pen.width - left) / reserved, 36.0)
        y = 24.0
        pen.text(left, 13, f"reserved for {reserved} tokens", size="small", look="quiet")
        for step in range(new):
            held = prompt + step
            words, look = ("prefill", "prefill") if step == 0 else (f"decode {step}", "decode")
            pen.text(0, y + size / 2 + 4, words, size="normal" if not pen.narrow else "small", look=look)
            looks = ["kv"] * held + ["free"] * (reserved - held)
            if step == 0:
                looks[:prompt] = ["prefill"] * prompt
            else:
                looks[held - 1] = "decode"
            pen.cells(left, y, size, [str(i) if i < held else "" for i in range(reserved)], look=looks)
            y += size + 5
        if reserved > filled:
            pen.bracket(left + filled * size, left + reserved * size - 2, y + 5, "never used", look="quiet")
        pen.bracket(left, left + filled * size - 2, y + 5, "used", look="ink")
        pen.height = y + 28

    return drawing(
        f"The key-value cache of one request, reserved for {reserved} tokens. The prefill writes {prompt} entries "
        f"at once, each of the "
        f"{new - 1} decode steps after it one more. At the end {filled} are used and {reserved - filled} never were.",
        draw,
        caption=caption,
        name=name,
    )


def token_strip(pieces: Sequence[str], ids: Sequence[int], *, caption: str = "", name: str | None = None) -> Picture:
    """Text cut into tokens: each piece (a space shown as ␣, a line break as ↵) in a box with its id below.

    Raises:
        FigureError: no pieces, or not one id for each.
    """
    if not pieces or len(pieces) != len(ids):
        raise FigureError(f"{len(pieces)} pieces and {len(ids)} ids; give one id for each piece, and at least one")
    shown = [piece.replace(" ", "␣").replace("\n", "↵") or "∅" for piece in pieces]

    def draw(pen: Pen) -> None:
        x, y = 1.0, 2.0
        for number, (piece, token) in enumerate(zip(shown, ids, strict=True)):
            width = max(text_width(piece, 14), text_width(str(token), 11.5)) + 16
            if x + width > pen.width - 1 and x > 1:
                x, y = 1.0, y + 58
            pen.box(x, y, width - 5, 30, piece, look=("decode", "prefill")[number % 2])
            pen.text(x + (width - 5) / 2, y + 45, str(token), size="small", look="quiet", anchor="middle")
            x += width
        pen.height = y + 52

    said = ", ".join(f"{piece!r} is {token}" for piece, token in zip(pieces, ids, strict=True))
    return drawing(
        f"{len(ids)} tokens: {said}.", draw, caption=caption, name=name, data={"piece": shown, "token id": list(ids)}
    )


def stage_bar(
    stages: Mapping[str, float],
    *,
    total_label: str = "E2E",
    unit: str = "s",
    caption: str = "",
    name: str | None = None,
) -> Picture:
    """Measured stages of one request to scale on one bar, each named with its time and share; with a table.

    Args:
        stages: seconds (or `unit`) by stage, in order; a stage with a look of its name gets its colour.

    Raises:
        FigureError: no stage, a negative time, or nothing that took time.
    """
    total = sum(stages.values())
    if not stages or any(not v >= 0 for v in stages.values()) or not total > 0:
        raise FigureError(f"stages {dict(stages)}; give times of 0 or more, at least one above 0")

    def draw(pen: Pen) -> None:
        x = 1.0
        room = pen.width - 2.0
        for stage, spent in stages.items():
            width = spent / total * room
            fits = width > text_width(stage, 13) + 10
            pen.box(x, 2, max(width - 1.0, 0.8), 36, stage if fits else "", look=_look(stage), solid=True)
            x += width
        pen.bracket(1, pen.width - 1, 52, f"{total_label} {quantity(total, unit)}")
        y = 96.0
        columns = 1 if pen.narrow else 2
        rows = -(-len(stages) // columns)
        for number, (stage, spent) in enumerate(stages.items()):
            at_x = (number // rows) * (pen.width / columns)
            at_y = y + (number % rows) * 23
            pen.box(at_x + 1, at_y - 11, 14, 14, look=_look(stage), solid=True)
            pen.text(at_x + 24, at_y, stage)
            pen.text(at_x + 190, at_y, quantity(spent, unit), anchor="end", bold=True)
            share = 100 * spent / total
            pen.text(
                at_x + 200,
                at_y,
                "under 0.1 %" if 0 < share < 0.1 else quantity(share, "%", 2 if share < 10 else 3),
                look="quiet",
            )
        pen.height = y + rows * 23 - 8

    said = ", ".join(f"{stage} {quantity(spent, unit)}" for stage, spent in stages.items())
    return drawing(
        f"Where {total_label}, {quantity(total, unit)}, goes: {said}.",
        draw,
        caption=caption,
        name=name,
        data={
            "stage": list(stages),
            f"time ({unit})": list(stages.values()),
            "share (%)": [100 * v / total for v in stages.values()],
        },
    )


def _look(stage: str) -> str:
    return stage if stage in LOOKS else "quiet"
