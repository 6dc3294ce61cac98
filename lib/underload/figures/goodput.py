"""Two pictures of goodput, by formula: against the load with the SLO movable, and with a limit on who is let in.

A request needs one second of service on average (exponential), arrivals are Poisson, and one is *good* if it is done
within the SLO's limit. Past a load of one a line without a limit grows for ever: in the long run nobody is in time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from underload.figures.moving import Choice, Commit, Curve, Frame, Mark, Number, Rule, Slider, moving_figure
from underload.figures.palette import FigureError
from underload.figures.plot import Axis, Panel
from underload.figures.still import Picture
from underload.figures.wording import number, quantity
from underload.queueing import mm1k, mmc

LOADS = (*(round(0.02 * step, 2) for step in range(1, 50)), 0.985, 0.99, 0.995, 0.999)

# ------------------------------------------------------------------------------------------- goodput against the load


def in_time(load: float, servers: int, limit: float) -> float:
    """The share of requests that are done within `limit` s, at `load` for each of `servers` on one line (M/M/c)."""
    if load >= 1:
        return 0.0
    return 1.0 - mmc(load * servers, 1.0, servers=servers).sojourn_tail(limit)


def promised(servers: int, limit: float, percentile: float) -> float:
    """The largest load of each server at which the percentile is within the limit; 0 where a lone request misses it."""
    share = percentile / 100
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if in_time(middle, servers, limit) >= share else (low, middle)
    return low if in_time(low, servers, limit) >= share else 0.0


def goodput_against_load(
    *,
    servers: Sequence[int] = (1, 2, 8, 32),
    limits: Sequence[float] = (2, 3, 4, 5, 6, 8, 10, 20),
    loads: Sequence[float] = (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.1),
    percentiles: Sequence[float] = (90, 99),
    start: tuple[float, int, float, float] | None = None,
    commit: Commit | None = None,
    caption: str = "",
    name: str | None = None,
) -> Picture:
    """Requests in time each second against the load, for a limit, a percentile and a number of servers on one line.

    Args:
        limits: of the SLO, s; a request needs 1 s on average.
        loads: of each server, that the mark can be moved to; past 1 nobody is in time in the long run.
        percentiles: that an SLO may promise, in per cent.
        start: limit, servers, load and percentile shown first.
        commit: what the reader guesses before the figure answers.

    Raises:
        FigureError: no value for a control, a limit or a load not above 0, a percentile outside 0 to 100.
    """
    for what, values in (("servers", servers), ("limits", limits), ("loads", loads), ("percentiles", percentiles)):
        if not values or min(values) <= 0:
            raise FigureError(f"{what} are {list(values)!r:.60}; give at least one, all above 0")
    if max(percentiles) >= 100:
        raise FigureError(f"a percentile of {max(percentiles):g} cannot be promised; give values below 100")
    settings = [(count, limit) for count in servers for limit in limits]
    good = {at: [load * in_time(load, *at) for load in LOADS] for at in settings}
    most = {at: max(zip(curve, LOADS)) for at, curve in good.items()}
    kept = {(*at, q): promised(*at, q) for at in settings for q in percentiles}

    def frame(limit: float, servers: int, load: float, percentile: str) -> Frame:
        q = float(percentile)
        share = in_time(load, servers, limit)
        here, (best, where), edge = load * share, most[servers, limit], kept[servers, limit, q]
        tail = mmc(load * servers, 1.0, servers=servers).sojourn_quantile(q) if load < 1 else math.inf
        return Frame(
            curves=[
                Curve("answered", [0, 1, 1.2], [0, 1, 1], look="throughput", thin=True),
                Curve("answered in time", [0, *LOADS, 1, 1.2], [0, *good[servers, limit], 0, 0], look="prediction"),
            ],
            rules=[Rule(x=edge, label=f"p{q:g} at the limit")] if edge else [],
            marks=[
                Mark(where, best, look="latency", guides=False, pin=False),
                Mark(load, here),
            ],
            numbers=[
                Number("in time, of all that come", 100 * share, "%", look="prediction"),
                Number("goodput of each server", here, "requests/s", look="prediction"),
                Number("promised percentile", tail, "s", look="latency"),
                Number("promise kept up to a load of", edge if edge else "none", "", look="limit"),
            ],
            says=_says(load, here, limit, q, edge, best, where),
        )

    first = start or (limits[len(limits) // 2], servers[0], loads[len(loads) // 2], percentiles[-1])
    return moving_figure(
        frame,
        [
            Slider("limit", "In time means within", limits, start=first[0], unit="s"),
            Slider("servers", "Servers on one line", servers, start=first[1]),
            Slider("load", "Load of each", loads, start=first[2]),
            Choice(
                "percentile",
                "The promise is for",
                {f"{q:g}": f"{q:g} % of the requests" for q in percentiles},
                start=f"{first[3]:g}",
            ),
        ],
        title="How many answers a second are in time",
        alt=(
            "Answers per second and server against load. The answered ones rise in a straight line to one and stay "
            "there. The ones in time rise with them, bend away, reach a peak below a load of one, and fall to zero; "
            "with many servers on one line the peak moves right and the fall becomes a cliff. An upright line left of "
            "the peak marks the load up to which the promise is kept."
        ),
        panels=[
            Panel(
                Axis("load of each server", limits=(0, 1.2)),
                Axis("answers of each server", "requests/s", limits=(0, 1.15)),  # a label stands above 1
            )
        ],
        caption=caption,
        commit=commit,
        name=name,
    )


def _says(load: float, here: float, limit: float, q: float, edge: float, best: float, where: float) -> str:
    peak = f"The most in time is {number(best)} requests/s, at a load of {number(where)}."
    if load >= 1:
        return f"More comes than can be served: the line grows, and in the long run nobody is in time. {peak}"
    if not edge:
        return f"Even on an empty server fewer than {q:g} % are done within {quantity(limit, 's')}. {peak}"
    word = "kept" if load <= edge else "broken"
    return f"The promise is {word}; {number(here)} of {number(load)} requests/s are in time. {peak}"


# ---------------------------------------------------------------------------------------------------- at the door


def goodput_at_the_door(load: float, inside: int, limit: float) -> float:
    """Requests/s in time at a server that lets at most `inside` in (M/M/1/K); those turned away are not in time."""
    queue = mm1k(load, 1.0, buffer=inside - 1)
    return queue.throughput * (1.0 - queue.sojourn_tail(limit))


def refusing_at_the_door(
    *,
    inside: Sequence[int] = (1, 2, 3, 4, 5, 6, 8, 12, 20, 50),
    limits: Sequence[float] = (3, 5, 10),
    loads: Sequence[float] = (0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0),
    start: tuple[int, float, float] | None = None,
    commit: Commit | None = None,
    caption: str = "",
    name: str | None = None,
) -> Picture:
    """Requests in time each second against the load, for a server that turns away who finds so many inside.

    Args:
        inside: how many may be inside at most, the one in service among them.
        limits: of the SLO, s; a request needs 1 s on average.
        loads: arrivals/s that the mark can be moved to.
        start: most inside, limit and load shown first.
        commit: what the reader guesses before the figure answers.

    Raises:
        FigureError: no value for a control, fewer than one inside, a limit or a load not above 0.
    """
    for what, values in (("inside", inside), ("limits", limits), ("loads", loads)):
        if not values or min(values) <= 0:
            raise FigureError(f"{what} are {list(values)!r:.60}; give at least one, all above 0")
    grid = [round(0.05 * step, 2) for step in range(1, math.ceil(20 * max(loads)) + 1)]
    good = {(most, limit): [goodput_at_the_door(x, most, limit) for x in grid] for most in inside for limit in limits}
    open_door = {limit: [x * in_time(x, 1, limit) for x in grid] for limit in limits}

    def frame(inside_: int, limit: float, load: float) -> Frame:
        queue = mm1k(load, 1.0, buffer=inside_ - 1)
        here = goodput_at_the_door(load, inside_, limit)
        best = max(inside, key=lambda most: goodput_at_the_door(load, most, limit))
        return Frame(
            curves=[
                Curve("everybody let in", grid, open_door[limit], look="prediction", variant=1),
                Curve("in time", grid, good[inside_, limit], look="prediction"),
            ],
            rules=[Rule(x=1.0)],
            marks=[Mark(load, here)],
            numbers=[
                Number("in time", round(here, 3), "requests/s", look="prediction"),  # short enough for its place
                Number("let in", queue.throughput, "requests/s", look="throughput"),
                Number("turned away", 100 * queue.prob_lost, "%", look="queue"),
                Number("late, of those let in", 100 * queue.sojourn_tail(limit), "%", look="latency"),
            ],
            says=_door_says(load, inside_, limit, here, best),
        )

    first = start or (inside[-1], limits[len(limits) // 2], loads[-1])
    return moving_figure(
        lambda inside, limit, load: frame(inside, limit, load),
        [
            Slider("inside", "Inside at most", inside, start=first[0]),
            Slider("limit", "In time means within", limits, start=first[1], unit="s"),
            Slider("load", "Requests a second", loads, start=first[2]),
        ],
        title="A server that turns requests away",
        alt=(
            "Requests in time each second against the requests that come. With everybody let in the curve rises, peaks "
            "below one request a second and falls to zero at one. With a limit on how many are inside it rises and "
            "stays level however many come: lower for a very small limit, lower again for a large one."
        ),
        panels=[
            Panel(
                Axis("requests that come", "1/s", limits=(0, grid[-1])),
                Axis("in time", "requests/s", limits=(0, 1.05)),
            )
        ],
        caption=caption,
        commit=commit,
        name=name,
    )


def _door_says(load: float, inside: int, limit: float, here: float, best: int) -> str:
    top = goodput_at_the_door(load, best, limit)
    ending = "the best limit here" if best == inside else f"{best} would be best, with {number(top)}"
    return f"At most {inside} inside: {number(here)} of {number(load)} requests/s are in time; {ending}."
