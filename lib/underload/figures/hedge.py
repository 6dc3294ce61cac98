"""Two pictures of a second copy: what the hedge's delay does to p99 and load, and copies on the lanes of two servers.

A copy is one sending of a request to one server. Under `hedge` the second goes out when no answer is there after a
delay; under `tied` both stand in line at once, and the first that is started takes the other out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from underload.figures.moving import Band, Choice, Commit, Curve, Frame, Mark, Number, Rule, Slider, moving_figure
from underload.figures.palette import FigureError
from underload.figures.pen import Pen, drawing
from underload.figures.plot import Axis, Panel, round_step, round_values, text_width
from underload.figures.still import Picture
from underload.figures.wording import number, quantity

# ---------------------------------------------------------------------------------------------- the hedge's delay


@dataclass(frozen=True)
class Hedging:
    """What one delay does at one load. Times in s; infinite where the servers fall behind."""

    p99: float
    extra: float  # requests sent on top, as a share of all
    busy: float  # share of the servers' time


def hedge_delay(
    rows: Iterable[Mapping[str, Any]],
    *,
    laws: Mapping[str, str],
    start: tuple[str, bool, float, float] | None = None,
    commit: Commit | None = None,
    caption: str = "",
    name: str | None = None,
) -> Picture:
    """p99 and extra requests against the delay after which a second copy goes out; law and load movable.

    Args:
        rows: one for each combination of `law`, `stops` (whether a copy that is not needed is stopped), `load` (share
            of what the servers can do) and `delay` (s; None: never), with `p99` (s; None where the servers fall
            behind), `extra` and `busy` (shares), as tests/benchmarks/hedging.py stores them. Load 0 is the prediction
            for a request that meets nobody.
        laws: what makes a request slow: the key in the rows, and the words of the choice.
        start: law, whether copies are stopped, load and delay shown first.
        commit: what the reader guesses before the figure answers.

    Raises:
        FigureError: no row, a combination that has none, or a load at which nothing was simulated.
    """
    found: dict[tuple[str, bool, float, float], Hedging] = {}
    for row in rows:
        delay = math.inf if row["delay"] is None else float(row["delay"])
        p99 = math.inf if row["p99"] is None else float(row["p99"])
        key = (row["law"], bool(row["stops"]), float(row["load"]), delay)
        found[key] = Hedging(p99, float(row["extra"]), float(row["busy"]))
    loads = sorted({load for _, _, load, _ in found if load > 0})
    delays = sorted({delay for *_, delay in found if math.isfinite(delay)})
    if not loads or not delays:
        raise FigureError(f"{len(found)} rows with {len(loads)} loads above 0; give the rows of a recording")
    for law, stops, load, delay in itertools.product(laws, (True, False), (0.0, *loads), (*delays, math.inf)):
        if (law, stops, load, delay) not in found:
            raise FigureError(
                f"no row for law {law!r}, stops {stops}, load {load:g} and a delay of {quantity(delay, 's')}; record "
                "every combination, load 0 and no hedge among them"
            )
    every = [each.p99 for each in found.values() if math.isfinite(each.p99)]
    low, high = 0.8 * min(every), min(1.1 * max(every), 60 * min(every))

    def frame(law: str, rest: str, load: float, delay: float) -> Frame:
        stops = rest == "stopped"
        over = [found[law, stops, load, each] for each in delays]
        alone = [found[law, stops, 0.0, each] for each in delays]
        here, never = found[law, stops, load, delay], found[law, stops, load, math.inf]
        x = [1e3 * each for each in delays]
        behind = [each for each, outcome in zip(delays, over, strict=True) if not math.isfinite(outcome.p99)]
        bands = []
        if behind:
            edge = next((each for each in delays if each > max(behind)), delays[-1])
            reach = (None, 1e3 * (max(behind) + edge) / 2)
            bands = [Band(x=reach, label="falls behind"), Band(x=reach, panel=1)]
        return Frame(
            curves=[
                Curve("nobody else there, by formula", x, [1e3 * each.p99 for each in alone], look="prediction"),
                Curve("at this load, simulated", x, [1e3 * each.p99 for each in over], look="simulation"),
                Curve("extra requests", x, [100 * each.extra for each in over], look="throughput", panel=1),
            ],
            rules=[Rule(y=1e3 * never.p99, label="never hedged")] if math.isfinite(never.p99) else [],
            marks=[
                *([Mark(1e3 * delay, 1e3 * here.p99)] if math.isfinite(here.p99) else []),
                Mark(1e3 * delay, 100 * here.extra, panel=1, pin=False),
            ],
            bands=bands,
            numbers=[
                Number("p99", here.p99, "s", look="latency"),
                Number("p99 without", never.p99, "s", look="ink"),
                Number("extra requests", 100 * here.extra, "%", look="throughput"),
                Number("servers busy", 100 * here.busy, "%", look="queue"),
            ],
            says=_says(delays, delay, here, never, dict(zip(delays, over, strict=True))),
        )

    first = start or (next(iter(laws)), True, loads[len(loads) // 2], delays[len(delays) // 2])
    return moving_figure(
        frame,
        [
            Choice("law", "A request is slow because of", dict(laws), start=first[0]),
            Choice(
                "rest",
                "A copy that is not needed any more",
                {"stopped": "is stopped", "runs": "runs to its end"},
                start="stopped" if first[1] else "runs",
            ),
            Slider("load", "Load without hedges", loads, start=first[2]),
            Slider("delay", "Hedge after", delays, start=first[3], unit="s"),
        ],
        title="A second copy after a delay",
        alt=(
            "Two plots over the delay after which a second copy is sent. Above, the p99 by formula for a request that "
            "meets nobody and simulated at the chosen load, with a dashed line for no hedging at all. Below, the share "
            "of requests sent twice, which falls from all of them at no delay. Where the server that a request meets "
            "makes it slow, the simulated curve lies below the dashed line at low load and rises above it, from the "
            "left, as the load grows; where its own length does, a copy hardly helps at any load."
        ),
        panels=[
            Panel(
                Axis("hedge after", "ms"),
                Axis("p99", "ms", log=True, limits=(1e3 * low, 1e3 * high), ticks=round_values(1e3 * low, 1e3 * high)),
            ),
            Panel(
                Axis("hedge after", "ms"), Axis("extra requests", "%", limits=(0, 105), ticks=(0, 50, 100)), height=0.6
            ),
        ],
        caption=caption,
        commit=commit,
        name=name,
    )


def _says(delays: Sequence[float], delay: float, here: Hedging, never: Hedging, over: Mapping[float, Hedging]) -> str:
    best = min(delays, key=lambda each: over[each].p99)
    if not math.isfinite(here.p99):
        return "With so many copies the servers cannot keep up."
    change, more = here.p99 / never.p99, f"{number(100 * here.extra, 2)} % more requests"
    if change < 0.97:
        says = f"{more} take the p99 down to {number(100 * change, 2)} % of what it was"
    elif change > 1.03:
        says = f"{more} make the p99 {number(change, 2)} times as long"
    else:
        says = f"{more} change next to nothing"
    if over[best].p99 > 0.97 * never.p99:
        return says + "; no delay here helps."
    if best == delay or here.p99 < 1.03 * over[best].p99:
        return says + "; no delay here does better."
    return says + f"; {quantity(best, 's')} would be best."


# ------------------------------------------------------------------------------------------- copies on two servers


@dataclass(frozen=True)
class Copy:
    """One copy at one server, in the unit of the picture; `started` is None where it was taken out of the line."""

    server: int
    sent: float
    started: float | None
    ended: float
    answered: bool = True
    mine: bool = False  # of the request that the picture is about


def copies_in_time(
    policies: Mapping[str, Sequence[Copy]],
    *,
    servers: Sequence[str],
    end: float,
    unit: str = "ms",
    caption: str = "",
    name: str | None = None,
) -> Picture:
    """One request under several policies, on the lanes of the servers: where its copies wait, run, and are taken out.

    Args:
        policies: by the words over each part, all copies that the servers see; those of other requests are drawn pale.
        servers: names of the lanes, by number.
        end: where the time axis ends.

    Raises:
        FigureError: no policy or more than four, a copy at a server without a lane, one that runs backwards or past the
            end, or a policy under which the request gets no answer.
    """
    if not 1 <= len(policies) <= 4:
        raise FigureError(f"{len(policies)} policies; draw one to four")
    for words, copies in policies.items():
        for copy in copies:
            middle = copy.ended if copy.started is None else copy.started
            if not (0 <= copy.sent <= middle <= copy.ended <= end and 0 <= copy.server < len(servers)):
                raise FigureError(f"{words!r}: {copy} does not run forwards from 0 to {end:g} on {len(servers)} lanes")
        if not any(copy.mine and copy.answered for copy in copies):
            raise FigureError(f"{words!r}: the request gets no answer; mark its copies as mine, and one as answered")

    def draw(pen: Pen) -> None:
        left = max(text_width(words, 11.5) for words in servers) + 14
        scale, lane, y = (pen.width - left - 10) / end, 34.0, 0.0

        def at(time: float) -> float:
            return left + scale * time

        for words, copies in policies.items():
            mine = [copy for copy in copies if copy.mine]
            arrival = min(copy.sent for copy in mine)
            done = min(copy.ended for copy in mine if copy.answered)
            pen.text(4, y + 13, words, bold=True)
            pen.text(
                pen.width - 4,
                y + 13,
                f"{number(done - arrival)} {unit}",
                anchor="end",
                look="latency",
                bold=True,
            )
            top = y + 22
            bottom = top + lane * len(servers)
            for place, server in enumerate(servers):
                pen.text(4, top + place * lane + 16, server, size="small", look="quiet")
                pen.line(left, top + place * lane + lane - 6, at(end), top + place * lane + lane - 6)
            for copy in copies:
                if copy.started is not None and not copy.mine:
                    level = top + copy.server * lane
                    pen.box(at(copy.started), level + 4, scale * (copy.ended - copy.started) - 1, 20, look="waste")
            for copy in mine:
                level = top + copy.server * lane
                pen.dot(at(copy.sent), level - 1, look="choice", radius=3.5)
                begun = copy.ended if copy.started is None else copy.started
                if begun > copy.sent:
                    pen.line(at(copy.sent), level - 1, at(begun), level - 1, look="choice", dashed=True)
                if copy.started is None:
                    pen.text(at(copy.ended), level + 3, "×", anchor="middle", look="choice", bold=True)
                else:
                    width = scale * (copy.ended - copy.started) - 1
                    pen.box(
                        at(copy.started),
                        level + 4,
                        width,
                        20,
                        "" if copy.answered else "×",
                        look="choice",
                        solid=copy.answered,
                        dashed=not copy.answered,
                        small=True,
                    )
            pen.line(at(arrival), top - 6, at(arrival), bottom, look="latency", dashed=True)
            pen.line(at(done), top - 6, at(done), bottom, look="latency", dashed=True)
            y = bottom + 12
        base = y - 8
        pen.line(left, base, at(end), base)
        step = round_step(end, 5 if pen.narrow else 10)
        for tick in range(math.floor(end / step) + 1):
            last = (tick + 1) * step > end
            words = f"{step * tick:g} {unit}" if last else f"{step * tick:g}"
            x = at(step * tick)
            pen.line(x, base, x, base + 4)
            pen.text(
                min(x, pen.width - text_width(words, 11.5) / 2 - 2),
                base + 17,
                words,
                size="small",
                look="quiet",
                anchor="middle",
            )
        pen.height = base + 24

    said = "; ".join(f"{words}: {_told(copies, servers, unit)}" for words, copies in policies.items())
    columns: dict[str, list[Any]] = {"policy": [], "copy": [], "server": [], f"sent ({unit})": []}
    columns |= {f"started ({unit})": [], f"ended ({unit})": [], "answered": []}
    for words, copies in policies.items():
        for place, copy in enumerate(copy for copy in copies if copy.mine):
            row = (words, place + 1, servers[copy.server], copy.sent, copy.started, copy.ended)
            for column, value in zip(columns, (*row, "yes" if copy.answered else "no"), strict=True):
                columns[column].append(value)
    return drawing(
        f"One request on a time axis of {end:g} {unit}, once for each policy, with a lane for each server on which the "
        f"work of others is pale and the request's own is dark. {said}.",
        draw,
        caption=caption,
        name=name,
        data=columns,
    )


def _told(copies: Sequence[Copy], servers: Sequence[str], unit: str) -> str:
    mine = [copy for copy in copies if copy.mine]
    arrival = min(copy.sent for copy in mine)
    done = min((copy for copy in mine if copy.answered), key=lambda copy: copy.ended)
    others = [
        f"the copy at {servers[copy.server]} is "
        + ("taken out of the line" if copy.started is None else "stopped while it runs")
        for copy in mine
        if not copy.answered
    ]
    return ", ".join([f"answered by {servers[done.server]} after {number(done.ended - arrival)} {unit}", *others])
