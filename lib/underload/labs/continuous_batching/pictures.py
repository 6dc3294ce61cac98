"""The pictures of the lab."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from underload import figures
from underload.figures.gantt import BatchRecording, batch_gantt
from underload.labs.continuous_batching.stage import Ask, Run, name_of, serve


def draw_batches(
    policies: Mapping[str, Any], asks: Sequence[Ask], *, name: str, caption: str, **limits: Any
) -> figures.Picture:
    """A small load under each policy, to be stepped through: a row a slot."""
    recordings = {}
    for words, policy in policies.items():
        recordings[words] = BatchRecording()
        serve(policy, asks, on_step=recordings[words], **limits)
    return batch_gantt(recordings, label="Policy", unit="ms", name=name, caption=caption)


def draw_gaps(runs: Mapping[str, Run], *, name: str, caption: str, predicted: float | None = None) -> figures.Picture:
    """Everybody's time between tokens against the instant of the later one; the last request is the long prompt.

    Args:
        predicted: a gap (s) to draw as a line.
    """
    fig, ax = figures.axes(xlabel="time", xunit="s", ylabel="between two tokens", yunit="ms")
    looks: tuple[tuple[str, dict[str, Any]], ...] = (
        ("simulation", {"linestyle": ""}),
        ("quiet", {"linestyle": "", "marker": "."}),
    )
    words_of: list[str] = []
    data: dict[str, list[Any]] = {"run": [], "request": [], "tokens": [], "mean gap (ms)": [], "longest gap (ms)": []}
    for place, (words, run) in enumerate(runs.items()):
        kind, more = looks[place % len(looks)]
        last = len(run.requests) - 1
        longest = 0.0
        dots: set[tuple[float, float]] = set()  # one for all whose tokens come in one step
        for number, request in enumerate(run.requests[:last]):
            own = [1e3 * gap for gap in run.gaps(number)]
            dots |= {(round(at, 5), round(gap, 3)) for at, gap in zip(request.timeline.token_times[1:], own)}
            longest = max([longest, *own])
            data["run"].append(words)
            data["request"].append(name_of(number, run.requests))
            data["tokens"].append(len(request.timeline.token_times))
            data["mean gap (ms)"].append(round(sum(own) / max(len(own), 1), 2))
            data["longest gap (ms)"].append(round(max(own, default=0.0), 2))
        ax.plot(*zip(*sorted(dots)), **figures.look(kind, **more), label=words)
        words_of.append(
            f"{words}: at most {longest:.1f} ms, and the long prompt's first token {1e3 * run.ttft(last):.0f} ms after "
            "it came"
        )
    if predicted is not None:
        ax.axhline(1e3 * predicted, **figures.look("prediction", marker=""), label="by the formula")
    ax.set_ylim(bottom=0)
    ax.legend()
    alt = (
        "The time between tokens of everybody who decodes while a long prompt is computed. " + "; ".join(words_of) + "."
    )
    return figures.show(fig, alt=alt, caption=caption, name=name, data=data)


def draw_room(runs: Mapping[str, Run], *, name: str, caption: str) -> figures.Picture:
    """Blocks in use against time, under each admission."""
    fig, ax = figures.axes(xlabel="time", xunit="s", ylabel="blocks in use")
    looks = ("simulation", "quiet", "prediction")
    words_of = []
    data: dict[str, list[Any]] = {"admission": [], "time (s)": [], "blocks in use": []}
    for place, (words, run) in enumerate(runs.items()):
        times = [record.start for record in run.records]
        used = [record.blocks_used for record in run.records]
        style: dict[str, Any] = {"marker": "", "linestyle": ("-", "--", ":")[place % 3]}
        ax.plot(times, used, **figures.look(looks[place % 3], **style), label=words)
        words_of.append(
            f"{words}: {max(used)} at most, {run.preemptions} preemptions, all done after {run.makespan:.1f} s"
        )
        for at in range(0, len(times), max(1, len(times) // 30)):
            data["admission"].append(words)
            data["time (s)"].append(round(times[at], 3))
            data["blocks in use"].append(used[at])
    pool = next(iter(runs.values())).engine.scheduler.pool.num_blocks
    ax.axhline(pool, **figures.look("limit", marker=""), label="all")
    ax.set_ylim(bottom=0)
    ax.legend()
    alt = f"Blocks in use of {pool}, against time. " + "; ".join(words_of) + "."
    return figures.show(fig, alt=alt, caption=caption, name=name, data=data)


def draw_waits(runs: Mapping[str, Run], asks: Sequence[Ask], *, name: str, caption: str) -> figures.Picture:
    """Each request's latency against the tokens of its answer, under each policy."""
    fig, ax = figures.axes(xlabel="tokens of the answer", ylabel="latency", yunit="s")
    looks: tuple[tuple[str, dict[str, Any]], ...] = (
        ("simulation", {"linestyle": ""}),
        ("quiet", {"linestyle": "", "marker": "."}),
    )
    data: dict[str, list[Any]] = {"answer": [ask.answer for ask in asks]}
    words_of = []
    for place, (words, run) in enumerate(runs.items()):
        kind, more = looks[place % len(looks)]
        values = [run.latency(number) for number in range(len(asks))]
        ax.plot([ask.answer for ask in asks], values, **figures.look(kind, **more), label=words)
        data[f"{words} (s)"] = [round(value, 3) for value in values]
        words_of.append(f"{words}: {run.mean_latency:.2f} s on average, {max(values):.2f} s at most")
    ax.set_ylim(bottom=0)
    ax.legend()
    alt = "The latency of each request against the tokens of its answer. " + "; ".join(words_of) + "."
    return figures.show(fig, alt=alt, caption=caption, name=name, data=data)
