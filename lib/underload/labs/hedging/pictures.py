"""The pictures of the lab."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from underload import figures
from underload.metrics import percentile

Rows = Mapping[str, Sequence[float]]
#: About as many of a run's calls are drawn, beside its slowest twentieth.
_MOST = 300
_LOOKS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("prediction", {"marker": ""}),
    ("simulation", {}),
    ("quiet", {"marker": "s"}),
    ("measurement", {}),
)


def draw_delay(
    delays: Sequence[float], predicted: Sequence[float], simulated: Sequence[float], *, name: str, caption: str
) -> figures.Picture:
    """The p99 (s) against the delay (s), by the formula and on the virtual clock."""
    fig, ax = figures.axes(xlabel="delay of the second copy", xunit="ms", ylabel="99th percentile", yunit="ms")
    x = [1e3 * delay for delay in delays]
    for words, kind, row in (("from the times", "prediction", predicted), ("simulated", "simulation", simulated)):
        ax.plot(x, [1e3 * value for value in row], **figures.look(kind), label=words)
    ax.set_ylim(bottom=0)
    ax.legend()
    alt = (
        f"The 99th percentile against the delay of the second copy, from {x[0]:.0f} to {x[-1]:.0f} ms: from the times "
        f"alone it goes from {1e3 * predicted[0]:.0f} to {1e3 * predicted[-1]:.0f} ms, in the simulation from "
        f"{1e3 * simulated[0]:.0f} to {1e3 * simulated[-1]:.0f} ms."
    )
    data = {
        "delay (ms)": [round(value, 2) for value in x],
        "from the times (ms)": [round(1e3 * value, 1) for value in predicted],
        "simulated (ms)": [round(1e3 * value, 1) for value in simulated],
    }
    return figures.show(fig, alt=alt, caption=caption, name=name, data=data)


def draw_loads(loads: Sequence[float], rows: Rows, *, name: str, caption: str) -> figures.Picture:
    """The p99 (s) against the load, a line for each policy."""
    fig, ax = figures.axes(xlabel="load with one copy each", ylabel="99th percentile", yunit="ms")
    for place, (words, row) in enumerate(rows.items()):
        kind, more = _LOOKS[place % len(_LOOKS)]
        style = {**more, "linestyle": ("-", "--", ":", "-.")[place % 4]}
        ax.plot(loads, [1e3 * value for value in row], **figures.look(kind, **style), label=words)
    ax.set_ylim(bottom=0)
    ax.legend()
    alt = "The 99th percentile against the load. " + "; ".join(
        f"{words}: {1e3 * row[0]:.0f} ms at a load of {loads[0]:g}, {1e3 * row[-1]:.0f} ms at {loads[-1]:g}"
        for words, row in rows.items()
    )
    data: dict[str, list[Any]] = {"load": list(loads)}
    data |= {f"{words} (ms)": [round(1e3 * value, 1) for value in row] for words, row in rows.items()}
    return figures.show(fig, alt=alt + ".", caption=caption, name=name, data=data)


def draw_tail(rows: Rows, *, xlabel: str, name: str, caption: str) -> figures.Picture:
    """The share of calls that take longer than a time (s), on a logarithmic axis."""
    fig, ax = figures.axes(xlabel=xlabel, xunit="ms", ylabel="share of calls that take longer")
    data: dict[str, list[Any]] = {"run": [], "share": [], "longer than (ms)": []}
    words_of = []
    for place, (words, row) in enumerate(rows.items()):
        values = sorted(1e3 * value for value in row)
        shares = [1 - k / len(values) for k in range(len(values))]  # up to a value: so many take longer
        kind, more = _LOOKS[(place + 1) % len(_LOOKS)]
        style = {**more, "marker": "", "linestyle": ("-", "--", ":", "-.")[place % 4], "drawstyle": "steps-pre"}
        ax.plot(values, shares, **figures.look(kind, **style), label=words)
        for share in (0.5, 0.1, 0.05, 0.02, 0.01):
            if share * len(values) >= 1:  # fewer calls do not say
                data["run"].append(words)
                data["share"].append(share)
                data["longer than (ms)"].append(round(percentile(values, 100 * (1 - share)) or 0.0, 1))
        late = percentile(values, 99) or 0.0
        enough = f"one in a hundred takes longer than {late:.0f} ms"
        words_of.append(f"{words}: {enough if len(values) >= 100 else f'the longest takes {values[-1]:.0f} ms'}")
    ax.set_yscale("log")
    ax.legend()
    alt = f"The share of calls against {xlabel}. " + "; ".join(words_of) + "."
    return figures.show(fig, alt=alt, caption=caption, name=name, data=data)


def draw_calls(runs: Mapping[str, Any], *, name: str, caption: str, limit: float | None = None) -> figures.Picture:
    """Latency of calls against their arrivals: of the slowest twentieth all, of the others at most some hundreds.

    Args:
        runs: a `ClusterRun` for each policy.
        limit: s; the axis ends there.
    """
    fig, ax = figures.axes(xlabel="arrival", xunit="s", ylabel="latency", yunit="ms")
    data: dict[str, list[Any]] = {"run": [], "calls": [], "second copies": [], "p50 (ms)": [], "p99 (ms)": []}
    words_of = []
    for place, (words, run) in enumerate(runs.items()):
        kind, more = _LOOKS[(place + 1) % len(_LOOKS)]
        # the small dots of the first lie over the others' marks
        style = {**more, "linestyle": "", "marker": (".", "x", "+")[place % 3], "zorder": 3 - place / 10}
        points = [(call.arrival, 1e3 * call.latency) for call in run.calls if call.latency is not None]
        half, slow, late = (percentile([value for _, value in points], share) or 0.0 for share in (50, 95, 99))
        ax.plot(*zip(*_drawn(points, slow)), **figures.look(kind, **style), label=words)
        second = sum(len(call.attempts) > 1 for call in run.calls)
        row: tuple[Any, ...] = (words, len(points), second, round(half, 1), round(late, 1))
        for key, value in zip(data, row):
            data[key].append(value)
        words_of.append(f"{words}: half take at most {half:.0f} ms, one in a hundred more than {late:.0f} ms")
    ax.set_ylim(bottom=0, top=None if limit is None else 1e3 * limit)
    ax.legend()
    if any(len(run.calls) > _MOST for run in runs.values()):
        caption += " Of the fastest 95 % some are drawn, of the others all."
    return figures.show(
        fig, alt="Latencies against arrivals. " + "; ".join(words_of) + ".", caption=caption, name=name, data=data
    )


def _drawn(points: Sequence[tuple[float, float]], slow: float) -> list[tuple[float, float]]:
    """Fewer points: a picture of each call would be larger than the notebook around it."""
    every = max(1, len(points) // _MOST)
    return [point for place, point in enumerate(points) if point[1] >= slow or place % every == 0]
