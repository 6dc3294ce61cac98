"""The pictures of the lab."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from underload import figures
from underload.labs.tail.stories import PARTS

_SURFACE = figures.COLORS["surface"]
#: What no colour of its own stands for is hatched.
_LOOKS: dict[str, dict[str, Any]] = {
    "client": {"facecolor": _SURFACE, "edgecolor": figures.COLORS["quiet"], "hatch": "....", "linewidth": 0.8},
    "queue": {"color": figures.COLORS["queue"]},
    "own prefill": {"color": figures.COLORS["prefill"]},
    "others' prefill": {
        "facecolor": _SURFACE,
        "edgecolor": figures.COLORS["prefill"],
        "hatch": "//////",
        "linewidth": 0.8,
    },
    "own decode": {"color": figures.COLORS["decode"]},
    "preemption": {"color": figures.COLORS["stream"]},
    "gaps": {"facecolor": _SURFACE, "edgecolor": figures.COLORS["quiet"], "linewidth": 0.8},
}


def draw_interval(
    values: Sequence[float],
    rows: Mapping[str, tuple[float, tuple[float, float] | None]],
    *,
    name: str,
    caption: str = "",
) -> figures.Picture:
    """The sorted sample, and for each percentile by name its value and the ends of its interval, where there is one."""
    ordered = 1e3 * np.sort(np.asarray(values))
    fig, ax = figures.axes(xlabel="latency", xunit="ms", ylabel="place in the sorted sample", xlog=True)
    ax.step(ordered, np.arange(1, len(ordered) + 1), where="post", **figures.look("latency", marker=""), label="sample")
    spoken = []
    for variant, (words, (value, pair)) in enumerate(rows.items()):
        color = figures.look("choice", marker="")["color"]
        ax.axvline(1e3 * value, color=color, linestyle=("-", "--", ":", "-.")[variant % 4], label=words)
        spoken.append(f"{words} {1e3 * value:.0f} ms")
        if pair is not None:
            ax.axvspan(1e3 * pair[0], 1e3 * pair[1], color=color, alpha=0.15, linewidth=0)
            spoken[-1] += f", interval from {1e3 * pair[0]:.0f} to {1e3 * pair[1]:.0f} ms"
    ax.set_ylim(0, len(ordered) * 1.02)
    ax.legend(loc="upper left")
    data: dict[str, list[Any]] = {
        "percentile": list(rows),
        "value (ms)": [round(1e3 * value, 2) for value, _ in rows.values()],
        "from (ms)": [None if pair is None else round(1e3 * pair[0], 2) for _, pair in rows.values()],
        "to (ms)": [None if pair is None else round(1e3 * pair[1], 2) for _, pair in rows.values()],
    }
    alt = f"{len(ordered):,} latencies in order, from {ordered[0]:.0f} to {ordered[-1]:.0f} ms. {'; '.join(spoken)}."
    return figures.show(fig, alt=alt, caption=caption, name=name, data=data)


def draw_servers(
    p99: Mapping[str, float], rows: Mapping[str, float], *, name: str, caption: str = ""
) -> figures.Picture:
    """Each server's p99 as a point, and what several ways make of them as lines."""
    fig, ax = figures.axes(xlabel="server", ylabel="p99", yunit="ms", ylog=True)
    at = [1e3 * value for value in p99.values()]  # a logarithmic axis has no zero for bars to stand on
    ax.plot(range(len(p99)), at, "o", markersize=8, color=figures.COLORS["queue"], label="p99 of a server")
    ax.set_xticks(range(len(p99)), list(p99))
    for variant, (words, value) in enumerate(rows.items()):
        kind, line = (("limit", "--"), ("choice", ":"), ("latency", "-"))[variant % 3]
        ax.axhline(1e3 * value, **figures.look(kind, marker="", linestyle=line, linewidth=2), label=words)
    ax.grid(visible=False, axis="x")
    ax.legend(loc="upper left")
    spoken = "; ".join(f"{words} {1e3 * value:.0f} ms" for words, value in rows.items())
    alt = (
        f"p99 of {len(p99)} servers, from {1e3 * min(p99.values()):.0f} to {1e3 * max(p99.values()):.0f} ms, one far "
        f"above the others. {spoken}."
    )
    data = {"of": [*p99, *rows], "p99 (ms)": [round(1e3 * value, 1) for value in [*p99.values(), *rows.values()]]}
    return figures.show(fig, alt=alt, caption=caption, name=name, data=data)


def draw_coverage(
    sizes: Sequence[int], rows: Mapping[str, Sequence[float | None]], *, name: str, caption: str = ""
) -> figures.Picture:
    """How often intervals held the truth, against the number of values, for several cases by name."""
    fig, ax = figures.axes(xlabel="values", ylabel="intervals that hold the truth", yunit="%", xlog=True)
    for variant, (words, shares) in enumerate(rows.items()):
        at = [(n, 100 * share) for n, share in zip(sizes, shares) if share is not None]
        if at:
            line, marker = (("-", "o"), ("--", "s"), (":", "^"))[variant % 3]
            ax.plot(*zip(*at), **figures.look("simulation", linestyle=line, marker=marker), label=words)
    ax.axhline(95, **figures.look("limit", marker=""), label="what was asked for")
    ax.set_ylim(0, 102)
    ax.set_xlim(min(sizes) / 1.15, 1.15 * max(sizes))
    ax.set_xticks(list(sizes), [f"{n:,}" for n in sizes])
    ax.minorticks_off()
    ax.legend(loc="lower right", bbox_to_anchor=(1.0, 0.08))
    spoken = "; ".join(
        f"{words}, " + ", ".join("none" if share is None else f"{100 * share:.0f} %" for share in shares)
        for words, shares in rows.items()
    )
    alt = f"Share of intervals that held the true percentile, at {', '.join(map(str, sizes))} values: {spoken}."
    data: dict[str, list[Any]] = {"values": list(sizes)}
    for words, shares in rows.items():
        data[f"{words} (%)"] = [None if share is None else round(100 * share, 1) for share in shares]
    return figures.show(fig, alt=alt, caption=caption, name=name, data=data)


def draw_parts(rows: Mapping[str, Mapping[str, float]], *, name: str, caption: str = "") -> figures.Picture:
    """One bar a request (or a mean of several), its parts end to end, in ms."""
    fig, ax = figures.axes(xlabel="time since arrival", xunit="ms", ylabel="", height=1.4 + 0.34 * len(rows))
    shown = [part for part in PARTS if any(parts.get(part, 0.0) > 0 for parts in rows.values())]
    left = np.zeros(len(rows))
    for part in shown:
        widths = np.array([1e3 * parts.get(part, 0.0) for parts in rows.values()])
        ax.barh(range(len(rows)), widths, left=left, height=0.66, label=part, **_LOOKS[part])
        left += widths
    ax.set_yticks(range(len(rows)), list(rows))
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    ax.set_xlim(0, 1.04 * float(left.max()))
    ax.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    most = {words: max(parts, key=lambda part: parts[part]) for words, parts in rows.items()}
    spoken = "; ".join(
        f"{words}, {total:.1f} ms, most of it {most[words]}" for words, total in zip(rows, left.tolist())
    )
    data: dict[str, list[Any]] = {"request": list(rows)}
    data |= {f"{part} (ms)": [round(1e3 * parts.get(part, 0.0), 3) for parts in rows.values()] for part in shown}
    return figures.show(fig, alt=f"Parts of each latency, end to end: {spoken}.", caption=caption, name=name, data=data)
