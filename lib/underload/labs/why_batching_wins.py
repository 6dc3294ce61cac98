"""Lab 4, "Why batching wins": what its tasks start from, checks that say what is wrong with a value, pictures.

    recorded        the measurement that chapter and lab draw, as `tests/benchmarks/step_time.py` stored it
    series          one curve of it: batch sizes and median step times
    ScriptedStep    a step that takes known times on a virtual clock: a stopwatch can be checked exactly
    check_*         raise AssertionError with the wrong value, the slip that gives it, and what was wanted
    draw_*          the pictures that page and lab share

Torch-free: the lab's set-up cell brings the real decoder.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from numbers import Integral
from typing import Any

from underload import figures
from underload.request import UnderloadError, VirtualClock
from underload.shapes import ModelShape, StepLine, decode_cost, fit_step_time, roofline, shape

# ------------------------------------------------------------------ the recorded measurement


@cache
def recorded() -> dict[str, Any]:
    """The stored measurement: machine, date, command, and the sweeps; see `tests/benchmarks/step_time.py`."""
    return json.loads(resources.files(__package__).joinpath("step_time.json").read_text(encoding="utf-8"))


def find(sweep: str, model: str, path: str | None = None) -> dict[str, Any]:
    """One series of a sweep ("decode", "context" or "prefill"): the fast path's where there is one, unless `path` says.

    Raises:
        UnderloadError: no such series; the message lists those there are.
    """
    found = [one for one in recorded()[sweep] if one["model"] == model and path in (None, one["path"])]
    if not found:
        there = ", ".join(f"{one['model']} ({one['path']})" for one in recorded()[sweep])
        raise UnderloadError(f"the recorded {sweep} sweep has no {model} on path {path or 'any'}; it has {there}")
    return max(found, key=lambda one: one["path"] == "fast")


def series(sweep: str, model: str, path: str | None = None) -> tuple[list[int], list[float]]:
    """The x values and the median seconds of one series."""
    rows = find(sweep, model, path)["rows"]
    name = next(key for key in rows[0] if key != "seconds")
    return [row[name] for row in rows], [statistics.median(row["seconds"]) for row in rows]


def example_times(path: str | None = None, model: str = "smollm2-135m") -> dict[int, float]:
    """Batch size -> seconds of a decode step, from the recorded measurement: for the tasks that start from times."""
    return dict(zip(*series("decode", model, path), strict=True))


# ------------------------------------------------------------------ task 1: a stopwatch


@dataclass
class ScriptedStep:
    """A step whose calls take these seconds on `clock`, one after the other; the last one repeats."""

    clock: VirtualClock
    seconds: Sequence[float]
    calls: int = field(default=0, init=False)

    def __call__(self) -> None:
        self.clock.wait(self.clock.now() + self.seconds[min(self.calls, len(self.seconds) - 1)])
        self.calls += 1


SLOW_START = (0.900, 0.140, 0.0210, 0.0200, 0.0560, 0.0204, 0.0208)
"""Two calls that warm up, then five of which one was disturbed: median 20.8 ms, mean 27.6 ms."""


def check_step_time(
    step_time: Callable[..., float], seconds: Sequence[float] = SLOW_START, *, warmup: int = 2, repeats: int = 5
) -> str:
    """Run `step_time` on a scripted step. Returns a line that says what was found.

    Raises:
        AssertionError: naming the value, and the slip that gives it.
    """
    clock = VirtualClock(start=100.0)
    step = ScriptedStep(clock, seconds)
    got = step_time(step, clock, warmup=warmup, repeats=repeats)
    wanted_calls = warmup + repeats
    assert step.calls == wanted_calls, (
        f"the step was run {step.calls} times; {warmup} to warm up and {repeats} to measure make {wanted_calls}"
    )
    assert isinstance(got, (int, float)), f"step_time() must return seconds, a number; got {got!r}"
    measured, everything = list(seconds[warmup:wanted_calls]), list(seconds[:wanted_calls])
    wanted = statistics.median(measured)
    slips = {
        "the mean: one disturbed run moved it": statistics.mean(measured),
        "the smallest: that is what the machine can do, not what it does": min(measured),
        "the median with the warm-up runs counted": statistics.median(everything),
        "the mean with the warm-up runs counted": statistics.mean(everything),
        "the sum of all runs": sum(measured),
        "a middle value, but the runs were not sorted": measured[len(measured) // 2],
        "one of the two middle values: with an even number of runs the median is their mean": sorted(measured)[
            len(measured) // 2
        ],
    }
    if abs(got - wanted) > 1e-9:
        slip = next((f" ({words})" for words, value in slips.items() if abs(got - value) < 1e-9), "")
        raise AssertionError(
            f"step_time() is {got:.4f} s{slip}; the median of the {repeats} measured runs is {wanted:.4f} s"
        )
    return f"{step.calls} runs, {repeats} of them counted, median {got * 1e3:.1f} ms: as it should be."


def step_time(step: Callable[[], object], clock: Any, *, warmup: int = 2, repeats: int = 5) -> float:
    """Median seconds of `repeats` calls of `step` after `warmup` calls that do not count: the library's stopwatch."""
    for _ in range(warmup):
        step()
    seconds = []
    for _ in range(repeats):
        start = clock.now()
        step()
        seconds.append(clock.now() - start)
    return statistics.median(seconds)


# ------------------------------------------------------------------ task 2: o and t


def check_fit(fit: Callable[[Sequence[float], Sequence[float]], tuple[float, float]]) -> str:
    """A line to be found again, then one whose largest step was disturbed.

    Raises:
        AssertionError: naming the value, and the slip that gives it.
    """
    sizes = [1, 2, 4, 8, 16, 32]
    found = fit(sizes, [0.030 + 0.002 * size for size in sizes])
    try:
        o, t = map(float, found)  # a pair of any kind: tuple, list or array
    except (TypeError, ValueError):
        raise AssertionError(f"fit() must return (o, t), got {found!r}") from None
    assert not (abs(o - 0.002) < 1e-9 and abs(t - 0.030) < 1e-9), "fit() returned (t, o); the order is (o, t)"
    assert abs(o - 0.030) < 1e-6 and abs(t - 0.002) < 1e-6, (
        f"the times were made with o = 30 ms and t = 2 ms; fit() found o = {o * 1e3:.3f} ms and t = {t * 1e3:.3f} ms"
    )
    bent = [1, 2, 4, 8, 16, 64]
    times = [0.030 + 0.002 * size for size in bent]
    times[-1] *= 1.15
    o, t = map(float, fit(bent, times))
    wanted = fit_step_time(bent, times)
    if abs(o - wanted.o) > 1e-6 or abs(t - wanted.t) > 1e-6:
        import numpy as np

        plain_o = float(np.polyfit(bent, times, 1)[1])
        slip = ": these make the absolute errors least" if abs(o - plain_o) < 1e-6 else ""
        raise AssertionError(
            f"with the step at B = 64 15 % too long, fit() found o = {o * 1e3:.2f} ms, t = {t * 1e3:.3f} ms{slip}; "
            f"the least relative errors are at o = {wanted.o * 1e3:.2f} ms and t = {wanted.t * 1e3:.3f} ms"
        )
    return f"Both lines found; with one step 15 % off, o moved from 30 ms to {o * 1e3:.1f} ms only."


# ------------------------------------------------------------------ task 3: the floor


def decode_floor(
    model: ModelShape, batch_size: int, context: int, bandwidth: float, flops: float, bytes_per_value: float = 4
) -> float:
    """The roofline of a decode step as task 3 counts it: all weights once, keys and values of every sequence, 2 FLOPs
    a weight and sequence."""
    read = bytes_per_value * model.num_parameters + batch_size * context * model.kv_bytes_per_token(bytes_per_value)
    return max(read / bandwidth, 2 * model.num_parameters * batch_size / flops)


def check_floor(
    floor: Callable[..., float], cases: Sequence[tuple[str, int, int, float, float, float]] | None = None
) -> str:
    """Compare `floor` with the count by hand, on steps that memory binds and steps that arithmetic binds.

    Raises:
        AssertionError: naming the step, the value, and the slip that gives it.
    """
    cases = cases or (
        ("smollm2-135m", 1, 128, 30e9, 150e9, 4),
        ("smollm2-135m", 64, 128, 30e9, 150e9, 4),
        ("llama-3-8b", 32, 2048, 3350e9, 989.4e12, 2),
    )
    for name, batch, context, bandwidth, flops, width in cases:
        model = shape(name)
        got = floor(model, batch, context, bandwidth, flops, width)
        assert isinstance(got, (int, float)), f"floor() must return seconds, a number; got {got!r}"
        weights, kv = width * model.num_parameters, batch * context * model.kv_bytes_per_token(width)
        compute = 2 * model.num_parameters * batch / flops
        wanted = max((weights + kv) / bandwidth, compute)
        all_heads = 2 * model.num_layers * model.num_heads * model.head_dim * width * batch * context
        slips = {
            "the two times added; reading and computing go on at once, so the larger one counts": (weights + kv)
            / bandwidth
            + compute,
            "keys and values are missing": max(weights / bandwidth, compute),
            "the weights are read once a step, not once a sequence": max((batch * weights + kv) / bandwidth, compute),
            "keys and values of one sequence only": max((weights + kv / batch) / bandwidth, compute),
            "query heads instead of KV heads": max((weights + all_heads) / bandwidth, compute),
            "keys without values": max((weights + kv / 2) / bandwidth, compute),
            "one FLOP a weight; a multiplication and an addition are two": max((weights + kv) / bandwidth, compute / 2),
            "arithmetic of one sequence only": max((weights + kv) / bandwidth, compute / batch),
            "the smaller of the two times": min((weights + kv) / bandwidth, compute),
        }
        if abs(got - wanted) > 1e-9 * wanted:
            slip = next((f" ({words})" for words, value in slips.items() if abs(got - value) <= 1e-9 * value), "")
            raise AssertionError(
                f"floor of a step of {name} with {batch} sequences of {context} tokens is {got * 1e3:.4g} ms{slip}; "
                f"it should be {wanted * 1e3:.4g} ms"
            )
    return f"{len(cases)} floors right, some bound by memory and some by arithmetic."


# ------------------------------------------------------------------ task 4: the knee


def check_choice(knee: Callable[[float, float], float], largest_batch: Callable[[float, float, float], int]) -> str:
    """The knee and the largest batch within a limit, at numbers small enough for paper.

    Raises:
        AssertionError: naming the call, its value, and what was wanted.
    """
    got = knee(0.020, 0.001)
    slip = (
        " (t/o instead of o/t)"
        if abs(got - 0.05) < 1e-9
        else " (90 % of 1/t instead of half)"
        if abs(got - 180) < 1e-9
        else ""
    )
    assert abs(got - 20) < 1e-9, f"knee(o = 20 ms, t = 1 ms) is {got:.4g}{slip}; B/(o + Bt) is half of 1/t at B = 20"
    for o, t, limit, wanted in (
        (0.020, 0.001, 0.030, 10),
        (0.020, 0.001, 0.0309, 10),
        (0.040, 0.002, 0.060, 10),
        (0.020, 0.001, 0.0205, 0),
    ):
        found = largest_batch(o, t, limit)
        assert isinstance(found, Integral), f"largest_batch() must return a whole number (int), got {found!r}"
        assert found >= 0, (
            f"largest_batch(o = {o}, t = {t}, limit = {limit}) is {found}; when no step is short enough it is 0"
        )
        assert found == wanted, (
            f"largest_batch(o = {o}, t = {t}, limit = {limit}) is {found}; {found} take {o + found * t:.4f} s,"
            f" {found + 1} take {o + (found + 1) * t:.4f} s, so the largest within the limit is {wanted}"
        )
    return "The knee is at o/t, and the largest batch keeps to its limit."


# ------------------------------------------------------------------ task 5: the second sequence


def check_second(second: Callable[[float, float, float], str]) -> str:
    """Five machines whose second sequence costs next to nothing, half a step, or a whole step.

    Raises:
        AssertionError: naming the machine, its verdict, and what was wanted.
    """
    cases = (
        (0.030, 0.0312, 0.001, "shared", "the second sequence cost 1.2 ms, 0.2 ms more than t: 1 % of a step"),
        (0.030, 0.0462, 0.001, "partly", "the second sequence cost 16.2 ms, 15.2 ms more than t: half a step"),
        (0.030, 0.0590, 0.001, "twice", "the second sequence cost 29 ms, 28 ms more than t: 93 % of a step"),
        (0.030, 0.0310, 0.001, "shared", "the second sequence cost exactly t"),
        (0.030, 0.0295, 0.001, "shared", "two took less than one: noise, and certainly no second read"),
    )
    for one, two, t, wanted, why in cases:
        got = second(one, two, t)
        assert got in ("shared", "partly", "twice"), f"the verdict must be 'shared', 'partly' or 'twice', got {got!r}"
        assert got == wanted, (
            f"T(1) = {one * 1e3:.1f} ms, T(2) = {two * 1e3:.1f} ms, t = {t * 1e3:.1f} ms: the verdict is {got!r}; "
            f"it should be {wanted!r}, because {why}"
        )
    return "Five machines judged rightly."


# ------------------------------------------------------------------ pictures


def draw_step_times(
    measured: Mapping[int, float],
    *,
    line: StepLine | None = None,
    floor: Callable[[int], float] | None = None,
    others: Mapping[str, Mapping[int, float]] | None = None,
    live: Mapping[int, float] | None = None,
    label: str = "measured",
    caption: str = "",
    name: str | None = None,
) -> figures.Picture:
    """Step time against batch size: measured points, the fitted line, the roofline, and what else is handed over.

    Args:
        measured: batch size -> seconds.
        line: the fitted line.
        floor: batch size -> least seconds by the roofline.
        others: further curves by name, drawn with other dashes.
        live: points measured again just now.
        label: what to call the measured points.
    """
    sizes = sorted(measured)
    fine = sorted({*sizes, *range(1, max(sizes) + 1)})
    fig, ax = figures.axes(xlabel="batch size", ylabel="step time", yunit="ms", xlog=True)
    if floor is not None:
        ax.plot(
            fine,
            [floor(size) * 1e3 for size in fine],
            **figures.look("prediction"),
            label="roofline: the least it can take",
        )
    if line is not None:
        ax.plot(
            fine,
            [line.step_time(size) * 1e3 for size in fine],
            **figures.look("quiet", variant=1),
            label="o + Bt, fitted",
        )
    ax.plot(sizes, [measured[size] * 1e3 for size in sizes], **figures.look("recorded"), label=label)
    for variant, (name_of, curve) in enumerate((others or {}).items(), start=1):
        xs = sorted(curve)
        ax.plot(xs, [curve[x] * 1e3 for x in xs], **figures.look("recorded", variant=variant), label=name_of)
    # A live point taken on a busy machine must not squeeze the recorded ones flat: it is drawn at the edge, in words.
    top = 1.1e3 * max([*measured.values(), *(s for curve in (others or {}).values() for s in curve.values())])
    if live:
        ms = [seconds * 1e3 for seconds in live.values()]
        said = "measured again just now" + (f", above the picture: {max(ms):.0f} ms" if max(ms) > top else "")
        ax.plot(list(live), [min(value, top) for value in ms], **figures.look("live"), label=said, clip_on=False)
        ax.set_ylim(top=max(top, *(min(value, top) for value in ms)))
    ax.set_ylim(bottom=0)
    ticks = [size for size in sizes if size & (size - 1) == 0]
    ax.set_xticks(ticks, [str(size) for size in ticks])
    ax.minorticks_off()
    ax.legend()
    table: dict[str, Sequence[Any]] = {
        "batch size": sizes,
        f"{label} (ms)": [round(measured[size] * 1e3, 2) for size in sizes],
    }
    if floor is not None:
        table["roofline (ms)"] = [round(floor(size) * 1e3, 2) for size in sizes]
        table["over roofline"] = [round(measured[size] / floor(size), 2) for size in sizes]
    if line is not None:
        table["o + Bt (ms)"] = [round(line.step_time(size) * 1e3, 2) for size in sizes]
        table["over o + Bt"] = [round(measured[size] / line.step_time(size), 2) for size in sizes]
    for name_of, curve in (others or {}).items():
        table[f"{name_of} (ms)"] = [round(curve[size] * 1e3, 2) if size in curve else None for size in sizes]
    first, last = sizes[0], sizes[-1]
    alt = (
        f"Step time against batch size. Measured: {measured[first] * 1e3:.0f} ms at batch size {first}, "
        f"{measured[last] * 1e3:.0f} ms at {last}."
    )
    if floor is not None:
        alt += f" The roofline lies below: {floor(first) * 1e3:.0f} ms and {floor(last) * 1e3:.0f} ms."
    if line is not None:
        alt += f" The fitted line starts at {line.o * 1e3:.0f} ms and rises by {line.t * 1e3:.2f} ms a sequence."
    return figures.show(fig, alt=alt, caption=caption, data=table, name=name)


def draw_throughput(
    measured: Mapping[int, float],
    line: StepLine,
    *,
    choice: float | None = None,
    caption: str = "",
    name: str | None = None,
) -> figures.Picture:
    """Tokens a second against batch size, with the ceiling 1/t, the knee, and a chosen batch size.

    Args:
        measured: batch size -> seconds of a step.
        choice: a batch size to mark on the line.
    """
    sizes = sorted(measured)
    reach = max(max(sizes), int(2 * line.knee) if line.t > 0 else 1, int(choice or 1))
    fine = sorted({1, *sizes, *(max(1, round(reach * step / 80)) for step in range(1, 81))})
    fig, ax = figures.axes(xlabel="batch size", ylabel="throughput", yunit="tokens/s")
    ax.plot(fine, [line.throughput(size) for size in fine], **figures.look("prediction"), label="B/(o + Bt)")
    ax.plot(sizes, [size / measured[size] for size in sizes], **figures.look("measurement"), label="measured")
    if line.t > 0:
        ax.axhline(1 / line.t, color=figures.COLORS["limit"], linestyle="--", label="1/t: never reached")
        ax.axvline(line.knee, color=figures.COLORS["quiet"], linestyle=":", label="knee, o/t: half of it")
    if choice:
        ax.plot([choice], [line.throughput(choice)], **figures.look("choice"), label="chosen")
    ax.set_ylim(bottom=0)
    ax.legend()
    table = {
        "batch size": sizes,
        "measured (tokens/s)": [round(size / measured[size], 1) for size in sizes],
        "B/(o + Bt) (tokens/s)": [round(line.throughput(size), 1) for size in sizes],
    }
    alt = (
        f"Throughput against batch size rises from {1 / measured[sizes[0]]:.0f} tokens/s and bends towards "
        f"{1 / line.t:.0f} tokens/s, half of which it has at a batch size of {line.knee:.0f}."
        if line.t > 0
        else "Throughput against batch size rises in a straight line: another sequence costs nothing here."
    )
    if choice:
        alt += f" A batch of {choice:g} is marked."
    return figures.show(fig, alt=alt, caption=caption, data=table, name=name)


def draw_rates(
    rates: Mapping[int, float], ceiling: float, *, caption: str = "", name: str | None = None
) -> figures.Picture:
    """Bytes of weights a matrix product reads in a second, against its rows, beside what the memory can deliver.

    Args:
        rates: rows -> bytes/s.
        ceiling: bytes/s of a plain read.
    """
    rows = sorted(rates)
    fig, ax = figures.axes(xlabel="rows in the product", ylabel="weights read", yunit="GB/s", xlog=True)
    ax.axhline(ceiling / 1e9, color=figures.COLORS["limit"], linestyle="--", label="a plain read of memory")
    ax.plot(rows, [rates[row] / 1e9 for row in rows], **figures.look("recorded"), label="one matrix product")
    ax.set_ylim(bottom=0)
    ax.set_xticks(rows, [str(row) for row in rows])
    ax.minorticks_off()
    ax.legend()
    alt = (
        f"Rate at which one matrix product reads its weights: {rates[rows[0]] / 1e9:.1f} GB/s with {rows[0]} row, "
        + ", ".join(f"{rates[row] / 1e9:.1f} with {row}" for row in rows[1:])
        + f". A plain read of memory reaches {ceiling / 1e9:.1f} GB/s."
    )
    data = {"rows": rows, "weights read (GB/s)": [round(rates[row] / 1e9, 2) for row in rows]}
    return figures.show(fig, alt=alt, caption=caption, data=data, name=name)


def floor_of(
    name: str, context: int, *, bandwidth: float, flops: float, bytes_per_value: float = 4
) -> Callable[[int], float]:
    """Batch size -> roofline seconds of a decode step, by the library's exact count."""
    what = shape(name)

    def floor(batch_size: int) -> float:
        cost = decode_cost(what, batch_size, context, weight_bytes=bytes_per_value, kv_bytes=bytes_per_value)
        return roofline(cost, bandwidth=bandwidth, flops=flops).seconds

    return floor
