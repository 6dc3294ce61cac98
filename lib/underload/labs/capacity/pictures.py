"""The pictures of the lab."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from underload import figures
from underload.labs.capacity.service import PROMISE, Promise, kept
from underload.request import Timeline

#: Who was turned away took nothing: an outline, dotted.
_BARS: dict[str, dict[str, Any]] = {
    "kept": {"color": figures.COLORS["simulation"]},
    "late": {"color": figures.COLORS["latency"]},
    "turned away": {
        "facecolor": figures.COLORS["surface"],
        "edgecolor": figures.COLORS["quiet"],
        "hatch": "....",
        "linewidth": 0.8,
    },
}
_MARKS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")


def draw_rates(
    loads: Sequence[float], answered: Sequence[float], good: Sequence[float], *, name: str, caption: str = ""
) -> figures.Picture:
    """Answers a second, and those that kept the promise, against the requests a second that come."""
    fig, ax = figures.axes(xlabel="load", xunit="1/s", ylabel="answers", yunit="1/s")
    ax.plot(loads, loads, **figures.look("quiet", marker=""), label="all that come")
    ax.plot(loads, answered, **figures.look("throughput"), label="answered")
    ax.plot(loads, good, **figures.look("simulation", marker="s"), label="as promised")
    ax.set_ylim(bottom=0)
    ax.legend()
    best = int(np.argmax(good))
    alt = (
        f"Answers a second against a load from {loads[0]:g} to {loads[-1]:g} a second: all answers grow to "
        f"{max(answered):.1f} and stay there; those as promised grow to {good[best]:.1f} at a load of {loads[best]:g}, "
        f"and fall to {good[-1]:.1f} at {loads[-1]:g}."
    )
    data = {
        "load (1/s)": list(loads),
        "answered (1/s)": [round(value, 2) for value in answered],
        "as promised (1/s)": [round(value, 2) for value in good],
    }
    return figures.show(fig, alt=alt, caption=caption, name=name, data=data)


def draw_search(
    looked: Mapping[int, Mapping[float, float]],
    found: tuple[float, float, float],
    *,
    name: str,
    caption: str = "",
    target: float = PROMISE.share,
) -> figures.Picture:
    """Every load that a search looked at, in each run, and the capacity with its interval.

    looked: for each run, the share at each load.
    """
    fig, ax = figures.axes(xlabel="load", xunit="1/s", ylabel="requests that kept the promise", yunit="%")
    data: dict[str, list[Any]] = {"run": [], "load (1/s)": [], "kept (%)": []}
    for run, shares in looked.items():
        rows = sorted(shares.items())
        values = [100 * share for _, share in rows]
        mark = _MARKS[run % len(_MARKS)]
        ax.plot([rate for rate, _ in rows], values, **figures.look("simulation", linestyle="", marker=mark), alpha=0.8)
        data["run"] += [run] * len(rows)
        data["load (1/s)"] += [rate for rate, _ in rows]
        data["kept (%)"] += [round(value, 1) for value in values]
    mean, low, high = found
    ax.axhline(100 * target, **figures.look("limit", marker=""), label=f"{target:.0%} promised")
    ax.axvspan(low, high, color=figures.look("prediction")["color"], alpha=0.15)
    ax.axvline(mean, **figures.look("prediction", marker=""), label="capacity, and its interval")
    ax.set_ylim(0, 104)
    ax.legend(loc="lower left")
    alt = (
        f"The share of requests that kept the promise, at the loads that {len(looked)} searches looked at: near 100 % "
        f"at low loads, and falling around {mean:.1f} a second. The capacity is {mean:.1f}, {low:.1f} to {high:.1f}."
    )
    return figures.show(fig, alt=alt, caption=caption, name=name, data=data)


def draw_options(
    rows: Sequence[tuple[str, float, float, float, float]],
    *,
    name: str,
    caption: str = "",
    target: float = PROMISE.share,
) -> figures.Picture:
    """The share that each plan keeps, with its interval, and the share in what came afterwards.

    rows: words, mean, low and high of the planning part, and the share afterwards.
    """
    fig, ax = figures.axes(xlabel="requests that keep the promise", xunit="%", height=0.7 + 0.36 * len(rows))
    at = np.arange(len(rows))[::-1]
    look = figures.look("simulation", linestyle="")
    for y, (_, _, low, high, _) in zip(at, rows):
        ax.plot([100 * low, 100 * min(1.0, high)], [y, y], color=look["color"], linewidth=2.5, alpha=0.6)
    ax.plot([100 * row[1] for row in rows], at, **look, label="planned with, and interval")
    ax.plot([100 * row[4] for row in rows], at, **figures.look("live", linestyle="", marker="D"), label="afterwards")
    ax.axvline(100 * target, **figures.look("limit", marker=""), label=f"{target:.0%} promised")
    ax.set_yticks(at, [row[0] for row in rows])
    ax.legend(loc="center left")
    alt = f"Plans and the share of requests that keep the promise, of which {target:.0%} are wanted: " + "; ".join(
        f"{words}: {mean:.1%}, {low:.1%} to {min(1.0, high):.1%}, and {after:.1%} afterwards"
        for words, mean, low, high, after in rows
    )
    data = {
        "plan": [row[0] for row in rows],
        "planned with (%)": [round(100 * row[1], 1) for row in rows],
        "lower end (%)": [round(100 * row[2], 1) for row in rows],
        "afterwards (%)": [round(100 * row[4], 1) for row in rows],
    }
    return figures.show(fig, alt=alt + ".", caption=caption, name=name, data=data)


def draw_burst(
    runs: Mapping[str, Sequence[Timeline]],
    *,
    name: str,
    caption: str = "",
    promise: Promise = PROMISE,
    width: float = 1.0,
    unit: str = "s",
) -> figures.Picture:
    """What became of those who came in each second: answered as promised, too late, or turned away.

    width: s that a bar is wide.
    """
    fig, grid = figures.axes(
        xlabel="came at", xunit=unit, ylabel=list(runs), rows=len(runs), height=1.0 + 1.9 * len(runs), sharex=True
    )
    axes = [grid] if len(runs) == 1 else list(grid)
    data: dict[str, list[Any]] = {"door": [], f"came at ({unit})": [], "kept": [], "late": [], "turned away": []}
    words_of = []
    starts = {words: min(one.arrival for one in timelines) for words, timelines in runs.items()}
    end = max(one.arrival - starts[words] for words, timelines in runs.items() for one in timelines)
    edges = np.arange(0.0, end + width, width)
    for ax, (words, timelines) in zip(axes, runs.items()):
        counts = {"kept": np.zeros(len(edges)), "late": np.zeros(len(edges)), "turned away": np.zeros(len(edges))}
        for one in timelines:
            what = "kept" if kept(one, promise) else "turned away" if one.finish_reason == "refused" else "late"
            counts[what][min(int((one.arrival - starts[words]) / width), len(edges) - 1)] += 1
        below = np.zeros(len(edges))
        for what, look in _BARS.items():
            ax.bar(edges, counts[what], width=0.9 * width, bottom=below, align="edge", label=what, **look)
            below += counts[what]
        share = counts["kept"].sum() / max(1, len(timelines))
        words_of.append(
            f"{words}: {share:.0%} kept the promise, {counts['late'].sum():.0f} were late and "
            f"{counts['turned away'].sum():.0f} turned away"
        )
        data["door"] += [words] * len(edges)
        data[f"came at ({unit})"] += [round(float(edge), 3) for edge in edges]
        for what, values in counts.items():
            data[what] += [int(value) for value in values]
    for ax in axes[:-1]:
        ax.set_xlabel("")  # the lowest says it for all
    axes[0].legend(ncols=3)
    alt = "Requests by the second in which they came, and what became of them. " + "; ".join(words_of) + "."
    return figures.show(fig, alt=alt, caption=caption, name=name, data=data)


def draw_shares(
    loads: Sequence[float],
    rows: Mapping[str, Sequence[float]],
    *,
    name: str,
    caption: str = "",
    target: float = PROMISE.share,
    capacity: tuple[float, float, float] | None = None,
) -> figures.Picture:
    """The share that kept the promise against the load: simulated and measured, with a door and without.

    rows: words that begin with "simulated" or "measured".
    """
    fig, ax = figures.axes(xlabel="load", xunit="1/s", ylabel="requests that kept the promise", yunit="%")
    for place, (words, shares) in enumerate(rows.items()):
        kind = "measurement" if words.startswith("measured") else "simulation"
        style: dict[str, Any] = {"linestyle": "" if kind == "measurement" else "-", "marker": "os^D"[place % 4]}
        ax.plot(loads, [100 * share for share in shares], **figures.look(kind, **style), label=words)
    if capacity is not None:
        ax.axvspan(capacity[1], capacity[2], color=figures.look("prediction")["color"], alpha=0.15)
        ax.axvline(capacity[0], **figures.look("prediction", marker=""), label="capacity, searched for")
    ax.axhline(100 * target, **figures.look("limit", marker=""), label=f"{target:.0%} promised")
    ax.set_ylim(-4, 104)  # a mark at 0 is seen whole
    ax.legend()
    alt = (
        f"The share of requests that kept the promise, against loads from {loads[0]:.0f} to {loads[-1]:.0f} a second: "
    )
    alt += "; ".join(f"{words}, {', '.join(f'{share:.0%}' for share in shares)}" for words, shares in rows.items())
    data: dict[str, list[Any]] = {"load (1/s)": [round(rate, 1) for rate in loads]}
    data |= {f"{words} (%)": [round(100 * share, 1) for share in shares] for words, shares in rows.items()}
    return figures.show(fig, alt=alt + ".", caption=caption, name=name, data=data)
