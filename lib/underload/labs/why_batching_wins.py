"""Lab 4, "Why batching wins": what its tasks start from, checks that say what is wrong with a value, pictures.

    recorded        the measurement that chapter and lab draw, as `tests/benchmarks/step_time.py` stored it
    series          one curve of it: batch sizes and median step times
    ScriptedStep    a step that takes known times on a virtual clock: a stopwatch can be checked exactly
    your_machine    a machine and a promise, drawn from a student's own number
    check_*         each about one idea of a task; raise AssertionError with the wrong value, the slip that gives it,
                    and what was wanted
    draw_*          the pictures that page and lab share

Torch-free: the lab's set-up cell brings the real decoder.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from underload import figures
from underload.labs.answers import as_pair, named, near, number
from underload.labs.answers import check_guess as check_guess
from underload.labs.answers import or_library as or_library
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


# ------------------------------------------------------------------ what a check is handed


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


class AskedClock(VirtualClock):
    """A virtual clock that knows whether anybody but the step asked it for the time."""

    asked = 0

    def now(self) -> float:
        self.asked += 1
        return super().now()


SLOW_START = (0.900, 0.140, 0.0208, 0.0200, 0.0204, 0.0560, 0.0208)
"""Two calls that warm up, then five of which one was disturbed: median 20.8 ms, mean 27.6 ms. The median of the first
five, and that of all seven, are 20.8 ms too: what a stopwatch makes of the warm-up is told by LONG_WARMUP."""

LONG_WARMUP = (0.900, 0.140, 0.100, 0.080, 0.050, 0.020, 0.020, 0.020)
"""Five calls that warm up, each faster than the one before, then three that agree: median, mean and smallest are 20 ms,
so that a wrong result says that other calls were counted."""


def check_runs(step_time: Callable[..., object], *, warmup: int, repeats: int) -> None:
    """The step must run `warmup` and `repeats` times, whatever is returned.

    Raises:
        AssertionError: naming the number of runs.
    """
    clock = VirtualClock(start=100.0)
    step = ScriptedStep(clock, (0.020,))
    step_time(step, clock, warmup=warmup, repeats=repeats)
    assert step.calls == warmup + repeats, (
        f"the step was run {step.calls} times; {warmup} to warm up and {repeats} to measure make {warmup + repeats}"
    )


def check_step_time(
    step_time: Callable[..., object], seconds: Sequence[float] = SLOW_START, *, warmup: int = 2, repeats: int = 5
) -> None:
    """Compare the result of `step_time` on a scripted step with the median of the measured runs.

    Raises:
        AssertionError: naming the value, and the slip that gives it.
    """
    clock = AskedClock(start=100.0)
    step = ScriptedStep(clock, seconds)
    got = number(step_time(step, clock, warmup=warmup, repeats=repeats), "what step_time() returns, in seconds,")
    measured, everything = list(seconds[warmup : warmup + repeats]), list(seconds[: warmup + repeats])
    wanted = statistics.median(measured)
    if near(got, wanted):
        return
    assert clock.asked > step.calls, (
        f"step_time() is {got:.4g} s, and the clock that was handed over was never asked; take the time by clock.now()"
    )
    slips = {
        "the mean: one disturbed run moved it": statistics.mean(measured),
        "the smallest: that is what the machine can do, not what it does": min(measured),
        "the median with the warm-up runs counted": statistics.median(everything),
        "the mean with the warm-up runs counted": statistics.mean(everything),
        "the median of the first runs, warm-up included": statistics.median(seconds[:repeats]),
        "the sum of all runs": sum(measured),
        "a middle value, but the runs were not sorted": measured[len(measured) // 2],
        "one of the two middle values: with an even number of runs the median is their mean": sorted(measured)[
            len(measured) // 2
        ],
        "the lower of the two middle values: with an even number of runs the median is their mean": sorted(measured)[
            (len(measured) - 1) // 2
        ],
    }
    raise AssertionError(
        f"with warmup={warmup} and repeats={repeats}, step_time() is {got:.4f} s{named(got, slips)}; "
        f"the median of the {repeats} measured runs is {wanted:.4f} s"
    )


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

Fit = Callable[[Sequence[float], Sequence[float]], object]


def _pair(found: Any) -> tuple[float, float]:
    """What fit() returned as two numbers: a pair of any kind."""
    first, second = as_pair(found, "fit() must return (o, t)")
    return number(first, "o, the first of what fit() returns,"), number(second, "t, the second,")


def check_slope(fit: Fit, *, o: float = 0.030, t: float = 0.002, sizes: Sequence[int] = (1, 2, 4, 8, 16, 32)) -> None:
    """Times that lie on a line: one of the two numbers must be its slope.

    Raises:
        AssertionError: naming both numbers.
    """
    first, second = _pair(fit(list(sizes), [o + t * size for size in sizes]))
    assert near(first, t, 1e-4) or near(second, t, 1e-4), (
        f"the times were made with t = {t * 1e3:g} ms for each sequence; fit() found o = {first * 1e3:.4g} ms and "
        f"t = {second * 1e3:.4g} ms"
    )


def check_line(
    fit: Fit, *, o: float = 0.030, t: float = 0.002, sizes: Sequence[int] = (1, 2, 4, 8, 16, 32), ordered: bool = True
) -> None:
    """Times that lie on a line: it must be found again. `ordered`: as (o, t); otherwise (t, o) will do as well.

    Raises:
        AssertionError: naming both numbers, and the slip that gives them.
    """
    found = _pair(fit(list(sizes), [o + t * size for size in sizes]))
    swapped = near(found[0], t, 1e-4) and near(found[1], o, 1e-4)
    assert not (ordered and swapped), "fit() returned (t, o); the order is (o, t)"
    if swapped or (near(found[0], o, 1e-4) and near(found[1], t, 1e-4)):
        return
    first = " (o + t is the step for one sequence; o is what is left with none)" if near(found[0], o + t, 1e-4) else ""
    raise AssertionError(
        f"the times were made with o = {o * 1e3:.4g} ms and t = {t * 1e3:.4g} ms; "
        f"fit() found o = {found[0] * 1e3:.4g} ms{first} and t = {found[1] * 1e3:.4g} ms"
    )


def check_fit(
    fit: Fit,
    sizes: Sequence[int] = (1, 2, 4, 8, 16, 64),
    seconds: Sequence[float] = (0.032, 0.034, 0.038, 0.046, 0.062, 1.15 * 0.158),
) -> None:
    """Times that lie on no line (without arguments: o = 30 ms, t = 2 ms, and the largest step 15 % too long): the line
    must be the one with the least relative errors. (t, o) will do as well: the order is `check_line`'s.

    Raises:
        AssertionError: naming both numbers, and the slip that gives them.
    """
    found = _pair(fit(list(sizes), list(seconds)))
    wanted = fit_step_time(sizes, seconds)
    if any(near(o, wanted.o, 1e-3) and near(t, wanted.t, 1e-3) for o, t in (found, found[::-1])):
        return
    times = np.asarray(seconds)
    slips = {
        "these make the absolute errors least": np.polyfit(sizes, times, 1)[1],
        "each error was divided by T twice: polyfit's weights multiply the error before it is squared": np.polyfit(
            sizes, times, 1, w=times**-2
        )[1],
        "the errors were divided by B, not by T": np.polyfit(sizes, times, 1, w=1 / np.asarray(sizes))[1],
    }
    raise AssertionError(
        f"step times of {', '.join(f'{1e3 * s:.4g}' for s in seconds)} ms at batch sizes "
        f"{', '.join(map(str, sizes))}: fit() found o = {found[0] * 1e3:.3f} ms and t = {found[1] * 1e3:.4f} ms"
        f"{named(found[0], slips)}; the least relative errors are at o = {wanted.o * 1e3:.3f} ms and "
        f"t = {wanted.t * 1e3:.4f} ms"
    )


# ------------------------------------------------------------------ task 3: the floor


@dataclass(frozen=True)
class BareShape:
    """A shape that tells its sizes and counts nothing: what task 3 hands to `floor`."""

    num_parameters: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    @classmethod
    def of(cls, model: ModelShape) -> BareShape:
        return cls(*(getattr(model, one.name) for one in fields(cls)))

    def __getattr__(self, name: str) -> Any:
        has = ", ".join(one.name for one in fields(self))
        raise AttributeError(f"the shape in this task has {has}, and no {name}: count it yourself")


def decode_floor(
    model: ModelShape | BareShape,
    batch_size: int,
    context: int,
    bandwidth: float,
    flops: float,
    bytes_per_value: float = 4,
) -> float:
    """The roofline of a decode step as task 3 counts it: all weights once, keys and values of every sequence, 2 FLOPs
    a weight and sequence."""
    kv = 2 * model.num_layers * model.num_kv_heads * model.head_dim * bytes_per_value
    read = bytes_per_value * model.num_parameters + batch_size * context * kv
    return max(read / bandwidth, 2 * model.num_parameters * batch_size / flops)


Floor = Callable[..., object]
_NO_TIME, _FOR_EVER = 1e30, 1.0  # bytes/s or FLOP/s that make one of the two times nothing, or endless


def _floor(
    floor: Floor, name: str, batch: int, context: int, *, width: float, bandwidth: float = _NO_TIME, flops: float
) -> float:
    made = floor(BareShape.of(shape(name)), batch, context, bandwidth, flops, width)
    return number(made, "what floor() returns, in seconds,")


def _reading(floor: Floor, name: str, batch: int, context: int, width: float, bandwidth: float) -> float:
    """Seconds that `floor` counts for reading. Of a `floor` that takes the smaller of its two times, too: which of them
    it should take is checked by `check_longer`."""

    def alone(flops: float) -> float:
        return _floor(floor, name, batch, context, width=width, bandwidth=bandwidth, flops=flops)

    got = alone(_NO_TIME)
    return got if got > 1e-12 else alone(_FOR_EVER)


def check_weights(
    floor: Floor, name: str = "smollm2-135m", batch: int = 8, width: float = 4, bandwidth: float = 30e9
) -> None:
    """Hardly any cache, and arithmetic that takes no time: what is left is reading the weights.

    Raises:
        AssertionError: naming the step, the value, and the slip that gives it.
    """
    got, weights = _reading(floor, name, batch, 1, width, bandwidth), width * shape(name).num_parameters
    slips = {
        "the weights are read once a step, not once a sequence": batch * weights,
        "each weight is bytes_per_value wide": weights / width,
    }
    slip = named(got * bandwidth, slips, 0.01)
    assert near(got, weights / bandwidth, 0.01), (
        f"{batch} sequences of one token, arithmetic that takes no time: a step of {name} at {bandwidth / 1e9:g} GB/s "
        f"takes {got * 1e3:.4g} ms by floor(){slip}; its weights take {weights / bandwidth * 1e3:.4g} ms"
    )


def _cache(floor: Floor, name: str, batch: int, context: int, width: float) -> float:
    """Bytes that a step reads more, by `floor`, for one more token in each of `batch` sequences."""
    bandwidth = 30e9
    longer, shorter = (_reading(floor, name, batch, tokens, width, bandwidth) for tokens in (2 * context, context))
    return (longer - shorter) / context * bandwidth


def check_cache(floor: Floor, name: str = "smollm2-135m", context: int = 4096, width: float = 4) -> None:
    """One sequence with a short context and with a longer one: the difference is keys and values alone.

    Raises:
        AssertionError: naming the bytes that a token more costs, and the slip that gives them.
    """
    model = shape(name)
    got, wanted = _cache(floor, name, 1, context, width), model.kv_bytes_per_token(width)
    slips = {
        "query heads instead of KV heads": wanted * model.num_heads / model.num_kv_heads,
        "keys without values, or values without keys": wanted / 2,
        "of one layer only": wanted / model.num_layers,
        "of one KV head only": wanted / model.num_kv_heads,
        "heads counted, not their dimension": wanted / model.head_dim,
        "each value is bytes_per_value wide": wanted / width,
        "4 bytes a value, whatever bytes_per_value says": wanted / width * 4,
    }
    slip = named(got, slips, 1e-4)
    if abs(got) < 1:
        slip = " (keys and values are missing)"
    assert near(got, wanted, 1e-4), (
        f"with {width:g} bytes a value, one more token in the cache of {name} costs {got:,.0f} bytes of reading by "
        f"floor(){slip}; its keys and values are {wanted:,.0f} bytes"
    )


def check_caches(floor: Floor, name: str, batch: int, context: int = 4096, width: float = 2) -> None:
    """`batch` sequences must read `batch` times the cache of one, whatever `floor` takes that to be.

    Raises:
        AssertionError: naming both.
    """
    one, many = (_cache(floor, name, size, context, width) for size in (1, batch))
    assert one > 1, f"keys and values are missing: a longer context costs a step of {name} nothing by floor()"
    slip = " (keys and values of one sequence only)" if near(many, one, 1e-4) else ""
    assert near(many, batch * one, 1e-4), (
        f"a token more in each of {batch} sequences costs {many / one:.4g} times as much reading as in one{slip}; "
        f"every sequence reads its own cache, which makes {batch} times"
    )


def check_arithmetic(
    floor: Floor,
    name: str = "smollm2-135m",
    batch: int = 32,
    context: int = 128,
    width: float = 4,
    flops: float = 150e9,
) -> None:
    """A memory that takes no time: what is left is arithmetic.

    Raises:
        AssertionError: naming the step, the value, and the slip that gives it.
    """

    def alone(bandwidth: float) -> float:
        return _floor(floor, name, batch, context, width=width, bandwidth=bandwidth, flops=flops)

    wanted = 2 * shape(name).num_parameters * batch / flops
    got = alone(_NO_TIME)
    if near(got, wanted, 1e-4) or near(alone(_FOR_EVER), wanted, 1e-4):  # the second: the smaller of two times
        return
    slips = {
        "one FLOP a weight; a multiplication and an addition are two": wanted / 2,
        "arithmetic of one sequence only": wanted / batch,
        "of every token in the context; a decode step computes one token a sequence": wanted * context,
        "FLOPs, not bytes: bytes_per_value has no part in them": wanted * width,
        "2 bytes_per_value FLOPs a weight": wanted * width / 2,
    }
    slip = named(got, slips, 1e-4)
    if got < 1e-12:
        slip = " (arithmetic is missing)"
    raise AssertionError(
        f"{batch} sequences, memory that takes no time: a step of {name} at {flops / 1e9:g} GFLOP/s takes "
        f"{got * 1e3:.4g} ms by floor(){slip}; its arithmetic takes {wanted * 1e3:.4g} ms"
    )


def check_longer(floor: Floor, name: str = "smollm2-135m", bandwidth: float = 30e9) -> None:
    """One sequence of one token, on a machine that computes in 0.8 times the time in which it reads, and on one that
    computes in 3 times that time: the longer one counts.

    Raises:
        AssertionError: naming the step, the value, and the slip that gives it.
    """
    model = shape(name)
    read = 4 * model.num_parameters / bandwidth
    for share, wanted in ((0.8, read), (3.0, 3.0 * read)):
        flops = 2 * model.num_parameters / (share * read)
        got = _floor(floor, name, 1, 1, width=4, bandwidth=bandwidth, flops=flops)
        slips = {
            "the two times added; reading and computing go on at once, so the longer one counts": (1 + share) * read,
            "the shorter of the two times": min(1.0, share) * read,
        }
        slip = named(got, slips, 0.01)
        # On the second machine it is enough that arithmetic counts: how much of it there is, is check_arithmetic's.
        assert near(got, wanted, 0.01) if share < 1 else got > 1.2 * read, (
            f"where reading takes {read * 1e3:.1f} ms and arithmetic {share * read * 1e3:.1f} ms, floor() is "
            f"{got * 1e3:.1f} ms{slip}; the two overlap, so the step takes at least {wanted * 1e3:.1f} ms"
        )


def check_floor(
    floor: Floor, name: str, batch: int, context: int, bandwidth: float, flops: float, width: float
) -> None:
    """A whole step against the count by hand.

    Raises:
        AssertionError: naming the step, the value, and the slip that gives it.
    """
    model = shape(name)
    got = _floor(floor, name, batch, context, width=width, bandwidth=bandwidth, flops=flops)
    weights, kv = width * model.num_parameters, batch * context * model.kv_bytes_per_token(width)
    compute = 2 * model.num_parameters * batch / flops
    read = (weights + kv) / bandwidth
    wanted = max(read, compute)
    all_heads = kv * model.num_heads / model.num_kv_heads
    slips = {
        "the time of reading alone; arithmetic takes longer": min(read, compute) if compute > read else math.nan,
        "the time of arithmetic alone; reading takes longer": min(read, compute) if read > compute else math.nan,
        "the two times added; reading and computing go on at once, so the longer one counts": read + compute,
        "keys and values are missing": max(weights / bandwidth, compute),
        "the weights are read once a step, not once a sequence": max((batch * weights + kv) / bandwidth, compute),
        "keys and values of one sequence only": max((weights + kv / batch) / bandwidth, compute),
        "query heads instead of KV heads": max((weights + all_heads) / bandwidth, compute),
        "keys without values": max((weights + kv / 2) / bandwidth, compute),
        "one FLOP a weight; a multiplication and an addition are two": max(read, compute / 2),
        "arithmetic of one sequence only": max(read, compute / batch),
    }
    assert near(got, wanted), (
        f"floor of a step of {name} with {batch} sequences of {context} tokens, {width:g} bytes a value, at "
        f"{bandwidth / 1e9:.0f} GB/s and {flops / 1e9:.0f} GFLOP/s is {got * 1e3:.4g} ms{named(got, slips)}; "
        f"it should be {wanted * 1e3:.4g} ms"
    )


# ------------------------------------------------------------------ task 4: the knee


def check_knee(knee: Callable[[float, float], object], o: float = 0.030, t: float = 0.004) -> None:
    """The knee, without arguments at numbers small enough for paper. It is no whole number: a rounded one is wrong.

    Raises:
        AssertionError: naming the value, and the slip that gives it.
    """
    call = f"knee(o = {o * 1e3:.4g} ms, t = {t * 1e3:.4g} ms)"
    got = number(knee(o, t), f"what {call} returns")
    slips = {"t/o instead of o/t": t / o, "90 % of 1/t instead of half": 9 * o / t, "the limit 1/t itself": 1 / t}
    for whole in (math.floor(o / t), math.ceil(o / t)):
        slips.setdefault(f"rounded to {whole}; a knee need not be a whole number", whole)
    assert near(got, o / t), f"{call} is {got:.4g}{named(got, slips)}; B/(o + Bt) is half of 1/t at B = {o / t:.4g}"


def check_batch(largest_batch: Callable[[float, float, float], object], o: float, t: float, limit: float) -> None:
    """The largest batch within a limit. A limit that a batch meets exactly allows it.

    Raises:
        AssertionError: naming the call, its value, and what was wanted.
    """
    call = f"largest_batch(o = {o:.6g}, t = {t:.6g}, limit = {limit:.6g})"
    wanted = StepLine(o, t).batch_for_step_time(limit)
    found = _whole(largest_batch(o, t, limit), call)
    assert found >= 0, f"{call} is {found}; when no step is short enough it is 0"
    more = f"{o + (wanted + 1) * t:.6g} s"
    took = f"{wanted} take {o + wanted * t:.6g} s and {wanted + 1} take {more}" if wanted else f"even one takes {more}"
    assert found == wanted, f"{call} is {found}; {took}, so the largest within the limit is {wanted}"


def _whole(value: object, what: str) -> int:
    """A whole number of any kind, also one that is written 10.0."""
    found = number(value, what)
    assert found == int(found), f"{what} must be a whole number, got {found!r}"
    return int(found)


@dataclass(frozen=True)
class Machine:
    """A machine's line and the promise that was made on it, all in seconds."""

    o: float
    t: float
    limit: float

    def __str__(self) -> str:
        return (
            f"your machine: o = {self.o * 1e3:.1f} ms, t = {self.t * 1e3:.2f} ms; "
            f"promised: a token at least every {self.limit * 1e3:.0f} ms"
        )


def your_machine(seed: int) -> Machine:
    """The machine of task 4, drawn from a student's own number.

    None is easier than another: each allows 20 to 60 sequences with a good half of another one to spare (so that
    rounding up is wrong for everybody), and gives 35 to 65 % of its 1/t at that.
    """
    draw = np.random.default_rng([4, abs(int(seed))])
    while True:  # one draw in twelve will do
        o, t, limit = 10 * int(draw.integers(80, 300)), int(draw.integers(15, 75)), 100 * int(draw.integers(20, 60))
        batch, rest = divmod(limit - o, t)  # in units of 10 us, whole numbers
        if 20 <= batch <= 60 and 0.6 <= rest / t <= 0.9 and 0.35 <= batch * t / (o + batch * t) <= 0.65:
            return Machine(o / 1e5, t / 1e5, limit / 1e5)


def check_my_batch(my_batch: object, machine: Machine) -> None:
    """The batch that a student wrote down for the machine of their own.

    Raises:
        NotImplementedError: nothing was written down yet.
        AssertionError: naming the step time of that batch, and the promise.
    """
    if my_batch is None:
        raise NotImplementedError("my_batch is still None")
    got, line = _whole(my_batch, "my_batch"), StepLine(machine.o, machine.t)
    promised = f"promised are {machine.limit * 1e3:g} ms"
    assert got >= 1, f"my_batch is {got}; this machine keeps its promise to some"
    took, more = line.step_time(got) * 1e3, line.step_time(got + 1) * 1e3
    assert took <= machine.limit * 1e3, f"my_batch is {got}, whose step takes {took:.2f} ms; {promised}"
    assert more > machine.limit * 1e3, (
        f"my_batch is {got}; one sequence more takes {more:.2f} ms a step and still keeps the promise: {promised}"
    )


def check_share_form(my_share: object) -> None:
    """Whether a share was written down as one: between 0 and 1. Not whether it is right.

    Raises:
        NotImplementedError: nothing was written down yet.
        AssertionError: it is no number, or none between 0 and 1.
    """
    if my_share is None:
        raise NotImplementedError("my_share is still None")
    got = number(my_share, "my_share")
    assert 0 < got < 1, f"my_share is {got:.4g}; a share lies between 0 and 1, and 0.5 is one half"


def check_my_share(my_share: object, my_batch: object, machine: Machine) -> None:
    """The share of 1/t that a student wrote down: that of their own batch, or of the right one; two digits will do.

    Raises:
        NotImplementedError: nothing was written down yet.
        AssertionError: naming the two throughputs whose ratio it is.
    """
    if my_share is None:
        raise NotImplementedError("my_share is still None")
    line = StepLine(machine.o, machine.t)
    right = line.batch_for_step_time(machine.limit)
    try:
        own = max(1.0, number(my_batch, "my_batch"))
    except AssertionError:
        own = right
    got = number(my_share, "my_share")
    slips = {
        "in per cent; a share is between 0 and 1": 100 * line.throughput(own) * line.t,
        "over the throughput of one sequence": line.throughput(own) / line.throughput(1),
        "in tokens/s; divide by 1/t": line.throughput(own),
        "of the step time that is o": line.o / line.step_time(own),
    }
    assert any(near(got, line.throughput(batch) * line.t, 0.02) for batch in (own, right)), (
        f"my_share is {got:.4g}{named(got, slips, 0.02)}; a batch of {own:g} gives "
        f"B/(o + Bt) = {line.throughput(own):.0f} tokens/s, and 1/t is {1 / line.t:.0f} tokens/s"
    )


# ------------------------------------------------------------------ task 5: the second sequence

VERDICTS = ("shared", "partly", "twice")


def check_second(second: Callable[[float, float, float], object], *cases: tuple[float, float, float]) -> None:
    """Machines by their T(1), T(2) and t, in seconds; a verdict may be written with capital letters.

    Raises:
        AssertionError: naming the machine, its verdict, and what was wanted.
    """
    for one, two, t in cases:
        answer = second(one, two, t)
        got = str(answer).strip().lower()
        assert got in VERDICTS, f"the verdict must be 'shared', 'partly' or 'twice', got {answer!r}"
        beyond = two - one - t
        share = beyond / one
        wanted = "shared" if share <= 0.25 else "partly" if share <= 0.75 else "twice"
        assert got == wanted, (
            f"T(1) = {one * 1e3:.4g} ms, T(2) = {two * 1e3:.4g} ms, t = {t * 1e3:.4g} ms: the verdict is {got!r}; "
            f"the second sequence cost {(two - one) * 1e3:.4g} ms, {beyond * 1e3:.4g} ms more than t. "
            f"That is {share:.0%} of T(1): {wanted!r}"
        )


# ------------------------------------------------------------------ task 6: the price of the past


def check_cache_rate(
    cache_rate: Callable[..., object],
    *,
    rate: float,
    batch: int = 1,
    kv_bytes: int = 46_080,
    fixed: float = 0.0,
    lengths: Sequence[int] = (64, 256, 512, 1024),
    noise: Sequence[float] = (),
) -> None:
    """Step times of `batch` sequences that read their caches at `rate` bytes/s, `fixed` seconds besides, each longer by
    its share of `noise`: with noise, the rate wanted is that of the least squares.

    Raises:
        AssertionError: naming the value, and the slip that gives it.
    """
    tokens = list(lengths)
    seconds = [fixed + batch * kv_bytes * n / rate for n in tokens]
    if noise:
        seconds = [s * (1 + e) for s, e in zip(seconds, noise, strict=True)]
        rate = batch * kv_bytes / float(np.polyfit(tokens, seconds, 1)[0])
    got = number(cache_rate(tokens, seconds, batch, kv_bytes), "what cache_rate() returns, in bytes/s,")
    slips = {
        "bytes of one sequence; a token more in each sequence is batch_size tokens more": rate / batch,
        "GB/s; bytes/s are wanted": rate / 1e9,
        "from the whole step time; the slope leaves out what does not grow": batch
        * kv_bytes
        * tokens[-1]
        / seconds[-1],
        "from the first point and the last; least squares uses all": batch
        * kv_bytes
        * (tokens[-1] - tokens[0])
        / (seconds[-1] - seconds[0]),
        "tokens, not bytes": rate / kv_bytes,
    }
    assert near(got, rate, 1e-4), (
        f"{batch} sequences of {', '.join(map(str, tokens))} tokens, {kv_bytes:,} bytes each, in steps of "
        f"{', '.join(f'{1e3 * s:.4g}' for s in seconds)} ms: cache_rate() is {got / 1e9:.4g} GB/s{named(got, slips)}; "
        f"it should be {rate / 1e9:.4g} GB/s"
    )


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

    The batch axis doubles at each step, so that the small batches have room; its label says what that does to a line.

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
    bent = ", doubling at each step: a straight line looks bent" if line is not None else ", doubling at each step"
    fig, ax = figures.axes(xlabel=f"batch size{bent}", ylabel="step time", yunit="ms", xlog=True)
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
