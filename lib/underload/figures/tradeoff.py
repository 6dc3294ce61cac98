"""Two pictures of the batching trade-off: latency against batch size under three rules, and the rules on one timeline.

The three rules: `full` (a batch leaves with exactly B), `timer` (with B, or when its oldest request has waited long
enough), `greedy` (with whoever is there, up to B, as soon as the server is free).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from underload.figures.moving import Band, Choice, Commit, Curve, Frame, Mark, Number, Slider, moving_figure
from underload.figures.palette import FigureError
from underload.figures.pen import Pen, drawing
from underload.figures.plot import Axis, Panel, round_step, round_values, text_width
from underload.figures.still import Picture
from underload.figures.wording import number, quantity
from underload.queueing import LinearBatch, linear_batch

RULES = {"full": "full", "timer": "full or timed out", "greedy": "at once (greedy)"}

# ------------------------------------------------------------------------------------- latency against batch size


@dataclass(frozen=True)
class Outcome:
    """What one rule does at one setting; times in s, infinite where the server falls behind."""

    latency: float  # mean, from arrival to the end of the batch
    wait: float  # of it, before the batch starts
    batch: float  # mean requests in a batch

    @property
    def stable(self) -> bool:
        return math.isfinite(self.latency)


def batching_trade_off(
    timed: Iterable[Mapping[str, Any]],
    *,
    overhead: float,
    per_item: float,
    start: tuple[float, int, float] | None = None,
    commit: Commit | None = None,
    caption: str = "",
    name: str | None = None,
) -> Picture:
    """Mean latency against batch size at one server that takes o + bt for b requests, and the rule switched.

    Full and greedy batches are the formulas of `underload.queueing`. The timer has none where the server is busy at
    times, so its figures come simulated, and they say which rates, sizes and timeouts the controls offer.

    Args:
        timed: rows with `rate` (1/s), `batch_size`, `timeout` (s), `mean`, `wait` (s), `batch`, one for each
            combination that is stable, as tests/benchmarks/batching_policies.py stores them.
        overhead, per_item: o and t in s.
        start: rate, batch size and timeout shown first.
        commit: what the reader guesses before the figure answers.

    Raises:
        FigureError: no row, or a combination that is stable and has none.
    """
    line = linear_batch(overhead=overhead, per_item=per_item)
    rows = list(timed)
    rates, sizes, timeouts = (sorted({row[key] for row in rows}) for key in ("rate", "batch_size", "timeout"))
    if not rows:
        raise FigureError("no simulated row; give the rows of a recording for this overhead and per_item")
    found = {
        ("timer", row["rate"], row["batch_size"], row["timeout"]): Outcome(row["mean"], row["wait"], row["batch"])
        for row in rows
    }
    for rate in rates:
        for size in sizes:
            for kind in ("full", "greedy"):
                solved = line.measures(rate, batch_size=size, kind=kind)
                answer = Outcome(solved.mean_sojourn, solved.mean_wait, solved.mean_batch)
                found |= {(kind, rate, size, timeout): answer for timeout in timeouts}
            for timeout in timeouts:
                if line.load(rate, size) >= 1:
                    found["timer", rate, size, timeout] = Outcome(math.inf, math.inf, float(size))
                elif ("timer", rate, size, timeout) not in found:
                    raise FigureError(
                        f"no simulated row for {rate:g} requests/s, batches of {size} and {quantity(timeout, 's')}; "
                        "record every combination that is stable"
                    )

    def frame(rule: str, rate: float, size: int, timeout: float) -> Frame:
        over = [found[rule, rate, each, timeout] for each in sizes]
        here = found[rule, rate, size, timeout]
        look, words = ("simulation", "simulated") if rule == "timer" else ("prediction", "by formula")
        edge = rate * line.o / (1 - rate * line.t)
        return Frame(
            curves=[Curve(words, sizes, [1e3 * one.latency for one in over], look=look)],
            marks=[Mark(size, 1e3 * here.latency)] if here.stable else [],
            bands=[Band(x=(None, edge), label="falls behind")] if edge > sizes[0] else [],
            numbers=[
                Number("mean latency", here.latency, "s", look="latency"),
                Number("waiting", here.wait, "s", look="queue"),
                Number("mean batch", here.batch, "", look="throughput"),
                Number("server busy", 100 * min(1.0, rate * (line.o / here.batch + line.t)), "%", look="ink"),
            ],
            says=_says(line, rule, rate, size, here, dict(zip(sizes, over, strict=True))),
        )

    first = start or (rates[len(rates) // 2], sizes[len(sizes) // 2], timeouts[len(timeouts) // 2])
    return moving_figure(
        frame,
        [
            Choice(
                "rule", "A batch leaves", {"full": "full", "timer": "full or timed out", "greedy": "at once (greedy)"}
            ),
            Slider("rate", "Requests a second", rates, start=first[0]),
            Slider("size", "Batch size", sizes, start=first[1]),
            Slider("timeout", "Timeout", timeouts, start=first[2], unit="s"),
        ],
        title="How long a request takes when requests are served in batches",
        alt=(
            "Mean latency against batch size, both on logarithmic axes. Under full batches the curve is a valley: it "
            "falls from the size below which the server falls behind, and rises again where requests wait for company. "
            "With a timeout the right side bends over and becomes level; under the greedy rule it is level from the "
            "bottom of the valley on."
        ),
        panels=[
            Panel(
                Axis("batch size", log=True, limits=(sizes[0], sizes[-1]), ticks=_ticks(sizes)),
                Axis("mean latency", "ms", log=True, limits=_limits(line), ticks=round_values(*_limits(line))),
                height=1.25,
            )
        ],
        caption=caption,
        commit=commit,
        name=name,
    )


def _limits(line: LinearBatch) -> tuple[float, float]:
    """Of the latency axis, in ms: from under the least that a request can take to a hundred times that."""
    least = 0.8e3 * line.step_time(1)
    return least, 100 * least


def _ticks(sizes: Sequence[int]) -> list[float]:
    return [2.0**power for power in range(20) if sizes[0] <= 2**power <= sizes[-1]]


def _says(line: LinearBatch, rule: str, rate: float, size: int, here: Outcome, over: Mapping[int, Outcome]) -> str:
    best = min(over, key=lambda each: over[each].latency)
    if not over[best].stable:
        return f"No size here keeps up with {rate:g} requests/s."
    least = quantity(over[best].latency, "s")
    if not here.stable:
        carries = line.throughput(size)
        return (
            f"Batches of {size} carry fewer than {number(carries)} requests/s; {rate:g} are too many. "
            f"From {next(each for each in over if over[each].stable)} on it keeps up."
        )
    took = quantity(here.latency, "s")
    if rule == "greedy":
        says = f"Allowed {size}, it takes {number(here.batch)} on average: {took}."
        return says if over[best].latency < 0.995 * here.latency else says + " No other size does noticeably better."
    waits = "half of it or more is waiting" if here.wait >= here.latency / 2 else "less than half of it is waiting"
    ending = "the best size here" if best == size else f"{best} would be best, with {least}"
    return f"{took}, and {waits}; {ending}."


# ------------------------------------------------------------------------------------------- the rules on a timeline

Stays = Sequence[tuple[float, float, float]]  # arrival, start of the batch, its end; in order of arrival


def rules_in_time(
    rules: Mapping[str, Stays], *, end: float, unit: str = "ms", caption: str = "", name: str | None = None
) -> Picture:
    """The same arrivals under several rules, one below another: each request pale while it waits, dark in its batch.

    Args:
        rules: by the words over each part, the stays of its requests.
        end: where the time axis ends; everybody has left by then.

    Raises:
        FigureError: no rule, more than four, rules with different arrivals, more than 12 requests, or a stay that runs
            backwards or past the end.
    """
    if not 1 <= len(rules) <= 4:
        raise FigureError(f"{len(rules)} rules; draw one to four")
    arrivals = [arrival for arrival, _, _ in next(iter(rules.values()))]
    if not 1 <= len(arrivals) <= 12:
        raise FigureError(f"{len(arrivals)} requests; draw one to 12")
    for words, stays in rules.items():
        if [arrival for arrival, _, _ in stays] != arrivals:
            raise FigureError(f"{words!r} has other arrivals than the first rule; compare rules on the same requests")
        for arrival, begins, leaves in stays:
            if not 0 <= arrival <= begins <= leaves <= end:
                raise FigureError(
                    f"{words!r}: a stay of {arrival:g}, {begins:g}, {leaves:g} does not run forwards from 0 to {end:g}"
                )

    def draw(pen: Pen) -> None:
        left, row, y = 4.0, 15.0, 0.0
        scale = (pen.width - 2 * left - 8) / end
        for words, stays in rules.items():
            mean = math.fsum(leaves - arrival for arrival, _, leaves in stays) / len(stays)
            pen.text(left, y + 13, words, bold=True)
            pen.text(pen.width - left, y + 13, f"mean {number(mean)} {unit}", anchor="end", look="quiet", size="small")
            top = y + 22
            for place, (arrival, begins, leaves) in enumerate(stays):
                level = top + place * row
                if begins > arrival:
                    pen.box(left + scale * arrival, level, scale * (begins - arrival), row - 3, look="queue")
                pen.box(left + scale * begins, level, scale * (leaves - begins), row - 3, look="decode", solid=True)
            base = top + len(stays) * row + 2
            pen.line(left, base, left + scale * end, base)
            y = base + 14
        step = round_step(end, 5 if pen.narrow else 10)
        for tick in range(math.floor(end / step) + 1):
            x = left + scale * step * tick
            last = (tick + 1) * step > end
            words = f"{step * tick:g} {unit}" if last else f"{step * tick:g}"
            pen.line(x, base, x, base + 4)
            anchor = (
                "start" if not tick else "end" if last and x + text_width(words, 11.5) / 2 > pen.width else "middle"
            )
            pen.text(x, base + 17, words, size="small", look="quiet", anchor=anchor)
        pen.height = base + 24

    said = "; ".join(
        f"{words}: batches of {', '.join(str(size) for size in _batches(stays))}" for words, stays in rules.items()
    )
    return drawing(
        f"{len(arrivals)} requests on a time axis of {end:g} {unit}, once for each rule, a bar each, pale while the "
        f"request waits and dark while its batch is served. {said}.",
        draw,
        caption=caption,
        name=name,
        data={f"arrives ({unit})": arrivals}
        | {
            f"{words}: {what} ({unit})": [stay[column] for stay in stays]
            for words, stays in rules.items()
            for what, column in (("begins", 1), ("leaves", 2))
        },
    )


def _batches(stays: Stays) -> list[int]:
    """Sizes of the batches in the order in which they start."""
    starts = sorted(begins for _, begins, _ in stays)
    return [starts.count(begins) for begins in sorted(set(starts))]
