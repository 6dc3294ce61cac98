"""Two pictures of one queue: Little's law as an area cut two ways, and a queue that can be watched moment by moment."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from underload.figures.moving import Bar, Choice, Curve, Frame, Number, Rule, Slider, moving_figure
from underload.figures.palette import FigureError
from underload.figures.pen import Pen, drawing
from underload.figures.plot import Axis, Panel, text_width
from underload.figures.still import Picture

Stays = Sequence[tuple[float, float, float]]  # arrival, start of service, finish; in order of arrival, s


def two_ways(stays: Stays, *, end: float, unit: str = "s", caption: str = "", name: str | None = None) -> Picture:
    """The area of Little's law twice: one lying strip a request above, one upright column an interval below.

    Args:
        stays: arrival, start and finish of each request, at most 8, in order of arrival.
        end: where the time axis ends; nobody is inside there.

    Raises:
        FigureError: no stay or more than 8, one that runs backwards, or one that is not over at `end`.
    """
    _check(stays, end, most=8)
    edges = sorted({0.0, end, *(time for arrival, _, finish in stays for time in (arrival, finish))})
    inside = [sum(arrival <= a < finish for arrival, _, finish in stays) for a in edges[:-1]]
    columns = [(a, b, count) for a, b, count in zip(edges, edges[1:], inside, strict=False) if count]

    def draw(pen: Pen) -> None:
        left, row = 30.0, 24.0
        scale = (pen.width - left - 14) / end

        def at(time: float) -> float:
            return left + scale * time

        pen.text(0, 12, "one strip a request: how long it stays", look="quiet", size="small")
        top = 20.0
        for number, (arrival, start, finish) in enumerate(stays):
            y = top + number * row
            if start > arrival:
                word = "waits" if scale * (start - arrival) > text_width("waits", 11.5) + 4 else ""
                pen.box(at(arrival), y, scale * (start - arrival) - 1, row - 3, word, look="queue", small=True)
            length = f"{finish - arrival:g}"
            word = "served" if scale * (finish - start) > text_width("served", 11.5) + 4 else ""
            pen.box(at(start), y, scale * (finish - start) - 1, row - 3, word, look="decode", small=True)
            pen.text(at(finish) + 5, y + row - 9, f"{length} {unit}", size="small", bold=True)
        base = top + len(stays) * row + 6
        _axis(pen, at, base, end, unit)
        floor = base + 62 + max(inside) * row
        pen.text(0, base + 46, "one column a moment: how many are inside", look="quiet", size="small")
        for a, b, count in columns:
            for level in range(count):
                pen.box(at(a), floor - (level + 1) * row, scale * (b - a) - 1, row - 2, look="latency")
            size = f"{count} × {b - a:g}"
            if scale * (b - a) > 34:
                pen.text(
                    at((a + b) / 2), floor - (count - 0.5) * row + 3, size, size="small", bold=True, anchor="middle"
                )
        _axis(pen, at, floor, end, unit)
        pen.height = floor + 26

    total = sum(finish - arrival for arrival, _, finish in stays)
    lengths = " + ".join(f"{finish - arrival:g}" for arrival, _, finish in stays)
    slices = " + ".join(f"{count} × {b - a:g}" for a, b, count in columns)
    return drawing(
        f"The stays of {len(stays)} requests on a time axis of {end:g} {unit}, as lying strips of "
        f"{lengths} = {total:g}, and below the number inside as upright columns of {slices} = {total:g}: the same "
        "area.",
        draw,
        caption=caption,
        name=name,
        data={
            f"arrives ({unit})": [a for a, _, _ in stays],
            f"service begins ({unit})": [s for _, s, _ in stays],
            f"leaves ({unit})": [f for _, _, f in stays],
        },
    )


def _axis(pen: Pen, at: Callable[[float], float], y: float, end: float, unit: str) -> None:
    pen.line(at(0), y, at(end), y)
    step = 1 if end <= 12 else 5
    for time in range(0, math.floor(end) + 1, step):
        pen.line(at(time), y, at(time), y + 4)
        words = f"{time} {unit}" if time + step > end else f"{time}"
        pen.text(at(time), y + 17, words, size="small", look="quiet", anchor="middle")


def watch_queue(
    queues: Mapping[str, Stays],
    moments: Sequence[float],
    *,
    label: str,
    start: str | None = None,
    unit: str = "s",
    caption: str = "",
    name: str | None = None,
) -> Picture:
    """A queue to watch: a slider moves time, a bar a request grows, and Little's area is counted both ways so far.

    Args:
        queues: what the reader chooses between, by the words of the choice: the stays of each.
        moments: the values of the slider, ascending, above 0.
        label: of the choice.
        start: the choice shown first.

    Raises:
        FigureError: no queue, no moment, a moment that is not above 0, or a stay that runs backwards.
    """
    if not queues or not moments or min(moments) <= 0:
        raise FigureError(f"{len(queues)} queues at the moments {list(moments)[:5]}; give one of each, moments above 0")
    for stays in queues.values():
        _check(stays, math.inf)
    end = max(moments)
    rows = max(sum(arrival < end for arrival, _, _ in stays) for stays in queues.values())
    most = max(_inside(stays, time) for stays in queues.values() for time, _, _ in stays if time < end)

    def frame(queue: str, now: float) -> Frame:
        here = [stay for stay in queues[queue] if stay[0] < now]
        bars = []
        for number, (arrival, began, finish) in enumerate(here):
            y = (number + 0.1, number + 0.9)
            if began > arrival:
                bars.append(Bar((arrival, min(began, now)), y, look="queue", name="waiting", faint=True))
            if began < now:
                bars.append(Bar((began, min(finish, now)), y, look="decode", name="in service"))
        changes = sorted({0.0, now, *(t for stay in here for t in (stay[0], stay[2]) if t < now)})
        count = [_inside(here, time) for time in changes[:-1]]
        area = sum(n * (b - a) for n, a, b in zip(count, changes, changes[1:], strict=False))
        parts = sum(min(finish, now) - arrival for arrival, _, finish in here)
        gone = sum(finish <= now for _, _, finish in here)
        waiting = sum(began > now for _, began, _ in here)
        return Frame(
            bars=bars,
            rules=[Rule(x=now, label="now"), Rule(x=now, panel=1)],
            curves=[
                Curve("inside", changes, [*count, count[-1]], look="ink", panel=1, step=True, area=True, legend=False)
            ],
            numbers=[
                Number("waiting now", waiting, "", look="queue"),
                Number("by the clock", round(area, 2), f"request·{unit}", look="ink"),
                Number("by requests", round(parts, 2), f"request·{unit}", look="decode"),
                Number("L so far", area / now, "", look="ink"),
            ],
            says=f"After {now:g} {unit}: {len(here)} came, {gone} left, {len(here) - gone} inside.",
        )

    return moving_figure(
        frame,
        [
            Slider("now", "Time", list(moments), start=moments[len(moments) * 2 // 3], unit=unit),
            Choice("queue", label, {words: words for words in queues}, start=start),
        ],
        title="A queue to watch",
        alt="Above, a bar for each request, in order of arrival: pale while it waits, dark while it is served; the "
        "dark parts never overlap. Below, the number inside as a staircase with its area filled.",
        panels=[
            Panel(Axis("time", unit, limits=(0, end)), Axis("request", limits=(0, rows)), height=1.3),
            Panel(Axis("time", unit, limits=(0, end)), Axis("inside", limits=(0, most + 1)), height=0.6),
        ],
        caption=caption,
        name=name,
    )


def _inside(stays: Stays, time: float) -> int:
    return sum(arrival <= time < finish for arrival, _, finish in stays)


def _check(stays: Any, end: float, most: float = math.inf) -> None:
    if not 1 <= len(stays) <= most:
        raise FigureError(
            f"{len(stays)} stays; draw at least one" + (f" and at most {most}" if most < math.inf else "")
        )
    for arrival, start, finish in stays:
        if not 0 <= arrival <= start <= finish <= end:
            raise FigureError(
                f"a stay of {arrival:g}, {start:g}, {finish:g} does not run forwards from 0 to {end:g}; give arrival, "
                "start of service and finish in this order"
            )


def layouts_of_servers(servers: int = 4, *, caption: str = "", name: str | None = None) -> Picture:
    """The same capacity three ways: a line each, one line for all, one server that is as fast as all together.

    Raises:
        FigureError: fewer than 2 or more than 6 servers.
    """
    if not 2 <= servers <= 6:
        raise FigureError(f"{servers} servers; draw 2 to 6: with one there is nothing to choose, and more do not fit")
    row = 30.0

    def line_of(pen: Pen, right: float, y: float, waiting: int) -> None:
        for place in range(waiting):
            pen.box(right - 16 * (place + 1), y + 5, 13, 16, look="queue")
        pen.arrow(right + 2, y + 13, right + 22, y + 13)

    def one(pen: Pen, x: float, y: float, which: int) -> None:
        words = (f"{servers} lines", "one line", f"one server, {servers} times as fast")[which]
        pen.text(x, y + 12, words, bold=True)
        y += 24
        middle = y + (servers - 1) * row / 2
        if which == 0:
            waiting = (3, 0, 2, 1, 0, 2)
            for number in range(servers):
                line_of(pen, x + 70, y + number * row, waiting[number])
                idle = waiting[number] == 0
                pen.box(
                    x + 96,
                    y + number * row,
                    70,
                    26,
                    "idle" if idle else "1 / s",
                    look="decode",
                    dashed=idle,
                    small=True,
                )
        elif which == 1:
            line_of(pen, x + 70, middle, 3)
            for number in range(servers):
                pen.box(x + 96, y + number * row, 70, 26, "1 / s", look="decode", small=True)
        else:
            line_of(pen, x + 70, middle, 4)
            pen.box(x + 96, y, 70, servers * row - 4, f"{servers} / s", look="decode")

    def draw(pen: Pen) -> None:
        step = servers * row + 44
        for which in range(3):
            if pen.narrow:
                one(pen, 60, which * step, which)
            else:
                one(pen, 10 + which * 232, 0, which)
        pen.height = step * (3 if pen.narrow else 1) - 14

    return drawing(
        f"The same capacity in three layouts: {servers} servers with a line each, where one server stands idle while "
        f"others have a line; {servers} servers that share one line; and one server that is {servers} times as fast.",
        draw,
        caption=caption,
        name=name,
    )


def inspection(services: Sequence[float], arrows: int = 12, *, caption: str = "", name: str | None = None) -> Picture:
    """Services one after another on a time axis, met by evenly spread arrivals: long ones are met more often.

    Raises:
        FigureError: no service, one that takes no time, or no arrow.
    """
    if not services or min(services) <= 0 or arrows < 1:
        raise FigureError(f"services {list(services)} and {arrows} arrows; give times above 0 and at least one arrow")
    total = sum(services)
    longest = max(services)
    instants = [(number + 0.5) * total / arrows for number in range(arrows)]

    def draw(pen: Pen) -> None:
        left, y = 4.0, 62.0
        scale = (pen.width - 2 * left) / total
        x = left
        for service in services:
            words = f"{service:g} s" if scale * service > 26 else ""
            look = "prefill" if service == longest else "decode"
            pen.box(x, y, scale * service - 2, 34, words, look=look, small=True)
            x += scale * service
        pen.text(left, 13, "requests that arrive", size="small", look="quiet")
        for instant in instants:
            pen.arrow(left + scale * instant, 24, left + scale * instant, y - 3)
        pen.text(left, y + 54, "what the server is doing", size="small", look="quiet")
        pen.height = y + 62

    met = _met(services, instants)
    there = sum(count for count, service in zip(met, services, strict=True) if service == longest)
    long = sum(service == longest for service in services)
    return drawing(
        f"{len(services)} services in a row, {long} of them the longest, of {longest:g} s. Of {arrows} evenly spread "
        f"arrivals {there} fall there.",
        draw,
        caption=caption,
        name=name,
        data={"service (s)": list(services), "arrivals during it": met},
    )


def _met(services: Sequence[float], instants: Sequence[float]) -> list[int]:
    counts, begin = [], 0.0
    for service in services:
        counts.append(sum(begin <= instant < begin + service for instant in instants))
        begin += service
    return counts
