"""Lab 5, "The batching trade-off": what its tasks start from, and checks that say what is wrong with a value.

    fit_line, knee          Task 1: overhead and time per request of measured steps, and where more stops helping
    full_batches, best_size Task 2: full batches on paper, and the size that answers soonest
    Patient, choose_timeout Task 3: a batch leaves when it is full or its first member has waited for long enough
    Eager                   Task 4: nobody waits who could be served
    settles                 Task 5: how large batches become where nobody waits
    greedy_batches, best_cap  Task 6: the eager rule on paper, and the cap that mends it
    play                    a policy under the real scheduler on a virtual clock; a batch of B takes o + B t
    check_*                 raise AssertionError with the wrong value, the slip that gives it, and what was wanted
    draw_*                  the pictures of the lab

Times are in s. Torch-free: the cells that show things bring the real decoder.
"""

from __future__ import annotations

import json
import math
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng

from underload import figures
from underload.labs.answers import as_list, as_pair, listed, named, near, number, shown
from underload.labs.answers import check_guess as check_guess
from underload.labs.answers import or_library as or_library
from underload.labs.continuous_batching.stage import Ask, Run, serve
from underload.metrics import percentile
from underload.scheduling import Batching, Greedy, SizeOrTimeout, Static
from underload.simulation import LinearStepTime

OVERHEAD, PER_REQUEST = 0.020, 0.001  # s: a step of the lab, where nothing else is said
SIZE = 32  # the largest batch of the lab's server
SIZES = (1, 2, 4, 8, 16, 32, 64)
TOKENS = 8  # of an answer on the real decoder

Departures = list[float]


@cache
def book() -> dict[str, Any]:
    """What the lab's own cells gave when they were recorded: machine, date, command, numbers."""
    return json.loads(resources.files(__package__).joinpath("batching_trade_off.json").read_text(encoding="utf-8"))


# ------------------------------------------------------------------ loads


def poisson(rate: float, count: int, seed: int) -> list[float]:
    """Instants of a Poisson process, in s."""
    return np.cumsum(default_rng(seed).exponential(1 / rate, count)).tolist()


def drawn_arrivals(draw: Generator, rate: float, count: int = 400) -> list[float]:
    """The same from a check's own stream."""
    return np.cumsum(draw.exponential(1 / rate, count)).tolist()


def means(arrivals: Sequence[float], departures: Sequence[float]) -> float:
    """Mean s from arrival to answer."""
    return float(np.mean(np.subtract(departures, arrivals)))


# ------------------------------------------------------------------ what the tasks ask for


def fit_line(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Overhead and s per request of the line through measured steps, by least squares."""
    slope, intercept = np.polyfit(sizes, seconds, 1)
    return float(intercept), float(slope)


def knee(overhead: float, per_request: float, share: float = 0.8) -> int:
    """The smallest batch that reaches this share of the highest throughput, 1/per_request."""
    return max(1, math.ceil(share * overhead / ((1 - share) * per_request) - 1e-9))


def full_batches(arrivals: Sequence[float], size: int, overhead: float, per_request: float) -> Departures:
    """When each answer leaves: a batch waits for its last member and for the server, and is answered as one."""
    departures, free = [], 0.0
    for first in range(0, len(arrivals), size):
        batch = arrivals[first : first + size]
        free = max(batch[-1], free) + overhead + per_request * len(batch)
        departures += [free] * len(batch)
    return departures


def best_size(arrivals: Sequence[float], sizes: Sequence[int], overhead: float, per_request: float) -> int:
    """The size of full batches that answers soonest on average; of several, the smallest."""
    return min(sizes, key=lambda size: (means(arrivals, full_batches(arrivals, size, overhead, per_request)), size))


class Patient(Batching):
    """A batch leaves when `size` wait, or `timeout` s after the first of those waiting came."""

    def __init__(self, size: int, timeout: float) -> None:
        self.size, self.timeout = size, timeout

    def fill(self, step: Any) -> None:
        if step.running:
            for sequence in list(step.running):
                step.run(sequence, step.budget)
        elif step.waiting:
            leaves = min(one.request.timeline.arrival for one in step.waiting) + self.timeout
            if len(step.waiting) < self.size and step.now < leaves and not step.closing:
                step.wait_until(leaves)
            else:
                for sequence in list(step.waiting)[: self.size]:
                    step.admit(sequence, step.budget)


class Eager(Batching):
    """Whenever the server is free, whoever waits is a batch, up to `size`."""

    def __init__(self, size: int) -> None:
        self.size = size

    def fill(self, step: Any) -> None:
        for sequence in list(step.running):
            step.run(sequence, step.budget)
        if not step.num_work:
            for sequence in list(step.waiting)[: self.size]:
                step.admit(sequence, step.budget)


def choose_timeout(p95: Callable[[float], float], timeouts: Sequence[float], promise: float) -> float | None:
    """The longest of the timeouts with which the promise is kept; None if it is with none."""
    kept = [timeout for timeout in timeouts if p95(timeout) <= promise]
    return max(kept, default=None)


def settles(rate: float, overhead: float, per_request: float) -> float:
    """The batch whose step takes just as long as its like needs to arrive; inf where no batch is large enough."""
    busy = rate * per_request
    return math.inf if busy >= 1 else max(1.0, rate * overhead / (1 - busy))


def timed_batches(
    arrivals: Sequence[float], size: int, timeout: float, overhead: float, per_request: float
) -> Departures:
    """When each answer leaves under size-or-timeout, on paper; the rest at the end does not wait for company."""
    departures: Departures = []
    free = 0.0
    while len(departures) < len(arrivals):
        first = len(departures)
        leaves = arrivals[first] + timeout
        if first + size <= len(arrivals):
            leaves = min(leaves, arrivals[first + size - 1])
        else:
            leaves = min(leaves, arrivals[-1])
        start = max(free, leaves)
        count = 1
        while count < size and first + count < len(arrivals) and arrivals[first + count] <= start:
            count += 1
        free = start + overhead + per_request * count
        departures += [free] * count
    return departures


def greedy_batches(arrivals: Sequence[float], cap: int, overhead: float, per_request: float) -> Departures:
    """When each answer leaves, where a free server takes whoever waits, up to `cap`, and the first that comes else."""
    departures: Departures = []
    free = 0.0
    while len(departures) < len(arrivals):
        first = len(departures)
        start = max(free, arrivals[first])
        count = 1
        while count < cap and first + count < len(arrivals) and arrivals[first + count] <= start:
            count += 1
        free = start + overhead + per_request * count
        departures += [free] * count
    return departures


def best_cap(arrivals: Sequence[float], caps: Sequence[int], overhead: float, per_request: float) -> int:
    """The cap that answers soonest on average; of several, the smallest."""
    return min(caps, key=lambda cap: (means(arrivals, greedy_batches(arrivals, cap, overhead, per_request)), cap))


# ------------------------------------------------------------------ a policy at work


def play(
    policy: Any,
    arrivals: Sequence[float],
    *,
    overhead: float = OVERHEAD,
    per_request: float = PER_REQUEST,
    tokens: int = 1,
) -> Run:
    """Requests of one prompt token and `tokens` output tokens each, through the real scheduler and engine; a step of B
    requests takes overhead + B per_request.

    Raises:
        AssertionError: the policy lets nobody compute although nothing else will happen.
    """
    asks = [Ask(1, tokens, arrival) for arrival in arrivals]
    return serve(policy, asks, slots=4096, budget=4096, step_time=LinearStepTime(overhead, per_request))


def departures_of(run: Run) -> Departures:
    """When each answer was complete, in the order of the arrivals."""
    return [request.timeline.last_token or math.nan for request in run.requests]


def waits_of(run: Run) -> list[float]:
    """s from arrival to the answer's end."""
    return [run.latency(place) for place in range(len(run.requests))]


def mean_of(policy: Any, arrivals: Sequence[float], **more: Any) -> float:
    """Mean s from arrival to answer under a policy."""
    return float(np.mean(waits_of(play(policy, arrivals, **more))))


def p95_of(policy: Any, arrivals: Sequence[float], **more: Any) -> float:
    """95th percentile of the same."""
    found = percentile(waits_of(play(policy, arrivals, **more)), 95)
    assert found is not None
    return found


def usable(made: Callable[..., Any], library: Callable[..., Any], *arguments: float) -> Callable[..., Any]:
    """A student's class where it serves a few requests, the library's where it does not; it is said which.

    The answers have as many tokens as those of the real decoder, so that a class which passes can drive that, too.
    """
    name = getattr(made, "__name__", "your class")
    try:
        play(made(*arguments), [0.0, 0.001, 0.002, 0.1, 0.1, 0.5], tokens=TOKENS)
    except NotImplementedError:
        why = f"{name} is not written yet"
    except AssertionError as error:  # of the stage: its words are for the student as they stand
        why = f"{name}, on answers of {TOKENS} tokens: {error}"
    except Exception as error:  # whatever a student's code raises
        why = f"{name} raised {type(error).__name__}: {error}{_line(error)}"
    else:
        return made
    print(f"{why}: the library's was taken in its place")
    return library


def _line(error: BaseException) -> str:
    """Where in a notebook's cell it was raised: IPython and ipykernel compile cells under names such as these."""
    frames = traceback.extract_tb(error.__traceback__)
    typed = [one for one in frames if "ipykernel_" in one.filename or one.filename.startswith(("<ipython-", "<cell "))]
    return f" (in {typed[-1].name}(), line {typed[-1].lineno} of its cell)" if typed else ""


# ------------------------------------------------------------------ task 1: the line and its knee


def noisy_steps(draw: Generator) -> tuple[list[int], list[float]]:
    """Batch sizes and s of a step, as a machine might measure them."""
    overhead, per_request = float(draw.uniform(0.002, 0.05)), float(draw.uniform(0.0002, 0.004))
    sizes = sorted(int(size) for size in draw.choice(np.arange(1, 65), size=8, replace=False))
    return sizes, [(overhead + per_request * size) * float(draw.uniform(0.97, 1.03)) for size in sizes]


def check_line(fit: Callable[..., Any], sizes: Sequence[int], seconds: Sequence[float]) -> None:
    """Overhead and time per request, by least squares.

    Raises:
        AssertionError: naming both values, and the slip that gives them.
    """
    pair = as_pair(fit(list(sizes), list(seconds)), "fit_line() returns two numbers, o and t")
    got = tuple(number(value, name) for value, name in zip(pair, ("o", "t")))
    right = fit_line(sizes, seconds)
    words = f"steps of {listed(list(sizes))} requests that take {listed([1e3 * s for s in seconds])} ms"
    slips = {
        "the other way round: first o, then t": right[::-1],
        "the line through the first and the last point": _through_ends(sizes, seconds),
        "o is the shortest step; it has its requests in it, too": (min(seconds), right[1]),
    }
    if all(near(a, b, 1e-5) for a, b in zip(got, right)):
        return
    why = next((f" ({slip})" for slip, pair in slips.items() if all(near(a, b, 1e-5) for a, b in zip(got, pair))), "")
    raise AssertionError(
        f"{words}: o = {1e3 * got[0]:.5g} ms and t = {1e3 * got[1]:.5g} ms{why}; by least squares they are "
        f"{1e3 * right[0]:.5g} ms and {1e3 * right[1]:.5g} ms"
    )


def _through_ends(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    slope = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])
    return seconds[0] - slope * sizes[0], slope


def check_knee(find: Callable[..., Any], overhead: float, per_request: float, share: float) -> None:
    """The smallest batch with so much of the highest throughput.

    Raises:
        AssertionError: naming the value, the slip that gives it, and the throughput there.
    """
    got, right = number(find(overhead, per_request, share), "the knee"), knee(overhead, per_request, share)
    words = f"o = {1e3 * overhead:g} ms, t = {1e3 * per_request:g} ms, a share of {share:g}"
    exact = share * overhead / ((1 - share) * per_request)
    slips = {
        "a batch has at least one request": 0.0 if exact < 1 else math.nan,
        "not rounded up to a whole request": exact if exact > 0 else math.nan,
        "rounded down: the share is not reached there": math.floor(exact) if exact >= 1 else math.nan,
        "o/t, which is the knee for a share of one half": overhead / per_request,
        "share times o/t": share * overhead / per_request,
    }
    reached = got * per_request / (overhead + got * per_request) if got > 0 else 0.0
    assert got == right, (
        f"{words}: {got:g}{named(got, slips)}; there the throughput is {reached:.4f} of 1/t, and {right} is the "
        "smallest batch that reaches the share"
    )


# ------------------------------------------------------------------ task 2: full batches


def check_size_guess(guess: Any) -> None:
    """A guess of the best size earns its point for being made, so long as it is a size that there is.

    Raises:
        NotImplementedError: nothing was written down yet.
        AssertionError: it is none of the sizes, or no number.
    """
    if guess is None:
        raise NotImplementedError("my_size is still None")
    fine = isinstance(guess, int | float | np.number) and not isinstance(guess, bool) and guess in SIZES
    assert fine, f"my_size is {shown(guess)}; write one of {', '.join(map(str, SIZES))}: any of them earns the point"


def check_full(answer: Callable[..., Any], arrivals: Sequence[float], size: int, *, o: float, t: float) -> None:
    """When each answer leaves.

    Raises:
        AssertionError: naming the first request whose answer leaves at another instant, and the slip.
    """
    right = full_batches(arrivals, size, o, t)
    got = as_list(answer(list(arrivals), size, o, t), "full_batches() returns a list of instants")
    words = f"arrivals at {listed(arrivals)} s, batches of {size}, o = {o:g} s, t = {t:g} s"
    assert len(got) == len(right), f"{words}: {len(got)} instants for {len(right)} requests"
    slips = {
        "these are waiting times; instants are asked for, counted from 0": np.subtract(right, arrivals).tolist(),
        "the server is not free yet then": _never_busy(arrivals, size, o, t),
        "the last batch is not full, and its step is as long as its own requests": _full_price(arrivals, size, o, t),
        "the batch has not gathered yet": _no_wait(arrivals, size, o, t),
        "an answer leaves when its batch does, not one after the other": _one_by_one(arrivals, size, o, t),
        "the step takes t for each member": full_batches(arrivals, size, o + t, 0.0),
        "the step takes o, too": full_batches(arrivals, size, 0.0, t),
    }
    _compare(got, right, slips, words)


def _compare(got: Sequence[Any], right: Departures, slips: Mapping[str, Departures], words: str) -> None:
    """The first instant at which an answer should not leave, with the slip that gives it."""
    values = [number(one, f"instant {place}") for place, one in enumerate(got)]
    for place, (value, wanted) in enumerate(zip(values, right)):
        if not near(value, wanted):
            raise AssertionError(
                f"{words}: the answer to request {place} leaves at {value:.6g} s{_why(values, place, slips)}; it "
                f"should leave at {wanted:.6g} s"
            )


def _why(got: Sequence[float], place: int, slips: Mapping[str, Departures]) -> str:
    """The slips that give all of these instants, or, where none does, the one at this place."""
    whole = [words for words, instants in slips.items() if all(near(a, b) for a, b in zip(got, instants))]
    if whole:
        return f" ({'; or '.join(whole)})"
    return named(got[place], {words: instants[place] for words, instants in slips.items()})


def _never_busy(arrivals: Sequence[float], size: int, o: float, t: float) -> Departures:
    found: Departures = []
    for first in range(0, len(arrivals), size):
        batch = arrivals[first : first + size]
        found += [batch[-1] + o + t * len(batch)] * len(batch)
    return found


def _full_price(arrivals: Sequence[float], size: int, o: float, t: float) -> Departures:
    found: Departures = []
    free = 0.0
    for first in range(0, len(arrivals), size):
        batch = arrivals[first : first + size]
        free = max(batch[-1], free) + o + t * size
        found += [free] * len(batch)
    return found


def _no_wait(arrivals: Sequence[float], size: int, o: float, t: float) -> Departures:
    found: Departures = []
    free = 0.0
    for first in range(0, len(arrivals), size):
        batch = arrivals[first : first + size]
        free = max(batch[0], free) + o + t * len(batch)
        found += [free] * len(batch)
    return found


def _one_by_one(arrivals: Sequence[float], size: int, o: float, t: float) -> Departures:
    found: Departures = []
    free = 0.0
    for first in range(0, len(arrivals), size):
        batch = arrivals[first : first + size]
        start = max(batch[-1], free)
        found += [start + o + t * (place + 1) for place in range(len(batch))]
        free = start + o + t * len(batch)
    return found


def check_best(
    choose: Callable[..., Any],
    arrivals: Sequence[float],
    sizes: Sequence[int],
    *,
    o: float,
    t: float,
    caps: bool = False,
) -> None:
    """The size of full batches (or, with `caps`, the cap of greedy ones) with the least mean.

    Raises:
        AssertionError: naming the choice, its mean, and the best.
    """
    paper, best = (greedy_batches, best_cap) if caps else (full_batches, best_size)
    got = number(choose(list(arrivals), list(sizes), o, t), "the best cap" if caps else "the best size")
    right = best(arrivals, sizes, o, t)
    rate = len(arrivals) / arrivals[-1]
    unit, what, them = (1.0, "a cap of", "caps") if caps else (1e3, "batches of", "sizes")
    name = "s" if caps else "ms"
    words = (
        f"{len(arrivals)} arrivals at {rate:.3g} a second, {them} {list(sizes)}, o = {unit * o:g} {name}, "
        f"t = {unit * t:g} {name}"
    )
    assert got in sizes, f"{words}: {shown(got)} is none of these"
    mean, least = (unit * means(arrivals, paper(arrivals, int(size), o, t)) for size in (got, right))
    assert near(mean, least) and got <= right, (
        f"{words}: with {what} {got:g} the mean is {mean:.4g} {name}, and with {what} {right} it is {least:.4g} {name}"
        + ("; of several as good, take the smallest" if near(mean, least) else "")
    )


# ------------------------------------------------------------------ task 3: a rule that loses patience


def check_patient(made: Callable[..., Any], arrivals: Sequence[float], size: int, timeout: float) -> None:
    """When each answer leaves under size-or-timeout.

    Raises:
        AssertionError: naming the first request whose answer leaves at another instant, and the slip.
    """
    words = f"arrivals at {listed([1e3 * a for a in arrivals])} ms, size {size}, a timeout of {1e3 * timeout:g} ms"
    right = departures_of(play(SizeOrTimeout(size, timeout), arrivals))
    slips = {
        "as if nobody ever lost patience": departures_of(play(Static(size), arrivals)),
        "as if nobody had any patience": departures_of(play(Greedy(size), arrivals)),
        "as if a batch had no largest size": departures_of(play(SizeOrTimeout(4096, timeout), arrivals)),
        "admits the whole queue, not its first `size`": departures_of(play(_Slipped(size, timeout, 4096), arrivals)),
        "its timeout counts from the last arrival, not from the first of those waiting": departures_of(
            play(_Slipped(size, timeout, size, since=max), arrivals)
        ),
        "waits for company although step.closing says that none will come": departures_of(
            play(_Slipped(size, timeout, size, hopes=True), arrivals)
        ),
    }
    got = departures_of(play(made(size, timeout), arrivals))
    for place, (one, wanted) in enumerate(zip(got, right)):
        if not near(one, wanted):
            raise AssertionError(
                f"{words}: the answer to request {place}, which came at {1e3 * arrivals[place]:.5g} ms, leaves at "
                f"{1e3 * one:.6g} ms{_why(got, place, slips)}; it should leave at {1e3 * wanted:.6g} ms"
            )


class _Slipped(Batching):
    """`Patient` with a slip: it admits `most`, counts from another arrival, or hopes on when nobody will come."""

    def __init__(self, size: int, timeout: float, most: int, *, since: Any = min, hopes: bool = False) -> None:
        self.size, self.timeout, self.most, self.since, self.hopes = size, timeout, most, since, hopes

    def fill(self, step: Any) -> None:
        for sequence in list(step.running):
            step.run(sequence, step.budget)
        if step.num_work or not step.waiting:
            return
        leaves = self.since(one.request.timeline.arrival for one in step.waiting) + self.timeout
        if len(step.waiting) < self.size and step.now < leaves and (self.hopes or not step.closing):
            step.wait_until(leaves)
        else:
            for sequence in list(step.waiting)[: self.most]:
                step.admit(sequence, step.budget)


def check_serves_long(made: Callable[..., Any]) -> None:
    """Answers of five tokens: a batch goes on until it is done, and who comes meanwhile waits for its end.

    Raises:
        AssertionError: naming what a step holds and what it should.
    """
    arrivals = [0.0, 0.001, 0.030, 0.031]
    run = play(made(2, 0.050), arrivals, tokens=5)
    right = play(Patient(2, 0.050), arrivals, tokens=5)
    got, wanted = ([len(step) for step in one.steps] for one in (run, right))
    assert got == wanted, (
        f"four requests at 0, 1, 30 and 31 ms, answers of 5 tokens, size 2: the steps compute {listed(got)} requests, "
        f"and should compute {listed(wanted)}: while somebody runs, those are let run, and nobody else comes in"
    )


def check_choice(choose: Callable[..., Any], p95: Mapping[float, float], promise: float) -> None:
    """The longest timeout that keeps a promise.

    Raises:
        AssertionError: naming the choice and the right one.
    """
    got = choose(lambda timeout: p95[timeout], list(p95), promise)
    right = choose_timeout(lambda timeout: p95[timeout], list(p95), promise)
    words = ", ".join(f"{1e3 * timeout:g} ms gives {1e3 * value:g}" for timeout, value in p95.items())
    words = f"95th percentiles ({words} ms), and {1e3 * promise:g} ms promised"
    if right is None:
        assert got is None, f"{words}: {shown(got)}; none keeps the promise, and that is None"
        return
    assert got is not None, f"{words}: None, though {1e3 * right:g} ms keeps it"
    value = number(got, "the timeout")
    assert near(value, right), f"{words}: {1e3 * value:g} ms; the longest that keeps the promise is {1e3 * right:g} ms"


def drawn_choice(draw: Generator) -> tuple[dict[float, float], float]:
    """Timeouts in any order, their 95th percentiles, which need not grow, and a promise."""
    timeouts = [float(value) for value in draw.permutation([0.001, 0.005, 0.010, 0.020, 0.040, 0.080])]
    return {one: round(0.03 + 0.9 * one + float(draw.uniform(0, 0.02)), 4) for one in timeouts}, float(
        draw.choice([0.04, 0.06, 0.075])
    )


def your_server(seed: int) -> tuple[float, float]:
    """A student's own load (1/s) and promise (s)."""
    draw = default_rng(seed + 500)
    return float(draw.integers(18, 30) * 10), float(draw.integers(66, 82)) / 1000


TIMEOUTS = tuple(round(0.004 * k, 3) for k in range(14))


def your_load(seed: int) -> list[float]:
    """The arrivals of a student's own server."""
    return poisson(your_server(seed)[0], 600, seed=seed + 7)


@cache
def your_timeout(seed: int) -> float | None:
    """What `choose_timeout` finds on a student's own load."""
    arrivals = your_load(seed)

    def p95(timeout: float) -> float:
        left = timed_batches(arrivals, SIZE, timeout, OVERHEAD, PER_REQUEST)
        return float(np.percentile(np.subtract(left, arrivals), 95))

    return choose_timeout(p95, TIMEOUTS, your_server(seed)[1])


def check_my_timeout(value: Any, seed: int) -> None:
    """A student's own number, in s.

    Raises:
        NotImplementedError: nothing was written down yet.
        AssertionError: naming the number, what it gives, and what is promised.
    """
    if value is None:
        raise NotImplementedError("my_timeout is still None")
    got, right = number(value, "my_timeout"), your_timeout(seed)
    assert right is not None
    assert any(near(got, one) for one in TIMEOUTS), (
        f"my_timeout is {got:g}; write seconds, one of lab.TIMEOUTS, which go from {TIMEOUTS[0]:g} to {TIMEOUTS[-1]:g}"
    )
    promise, p95 = your_server(seed)[1], p95_of(Patient(SIZE, got), your_load(seed))
    assert near(got, right), (
        f"my_timeout is {got:g} s; with it the 95th percentile is {1e3 * p95:.2f} ms, "
        f"{1e3 * promise:g} ms are promised, and of lab.TIMEOUTS another one is the longest that keeps it"
    )


# ------------------------------------------------------------------ task 4: a rule that beats both


def check_all_served(made: Callable[..., Any], draw: Generator, tokens: int = 1) -> None:
    """A drawn burst: everybody is answered, no batch is larger than allowed, and nobody overtakes.

    Raises:
        AssertionError: naming what went wrong.
    """
    # more than it can do, so that batches would grow
    arrivals = drawn_arrivals(draw, 2000.0, 300 if tokens == 1 else 100)
    words = f"{len(arrivals)} answers of {tokens} tokens: " if tokens > 1 else ""
    try:
        run = play(made(SIZE), arrivals, tokens=tokens)
    except AssertionError as error:
        if tokens == 1:
            raise
        raise AssertionError(f"{words}{error}; whoever runs must be let run on, with step.run") from error
    largest = max(record.batch_size for record in run.records)
    assert largest <= SIZE, f"{words}a batch of {largest} requests; the server takes {SIZE} at most"
    left = departures_of(run)
    for place in range(len(left) - 1):
        assert left[place] <= left[place + 1], (
            f"{words}request {place} is answered at {1e3 * left[place]:.5g} ms, after request {place + 1}, which came "
            "later"
        )


def rivals(arrivals: Sequence[float]) -> dict[str, tuple[float, float]]:
    """Mean and 95th percentile (s) of full batches at their best size, and of a timeout of 40 ms."""
    best = best_size(arrivals, [size for size in SIZES if size <= SIZE], OVERHEAD, PER_REQUEST)
    found = {
        f"full batches of {best}": full_batches(arrivals, best, OVERHEAD, PER_REQUEST),
        "a timeout of 40 ms": timed_batches(arrivals, SIZE, 0.040, OVERHEAD, PER_REQUEST),
    }
    waits = {name: np.subtract(left, arrivals) for name, left in found.items()}
    return {name: (float(one.mean()), float(np.percentile(one, 95))) for name, one in waits.items()}


def check_beats(made: Callable[..., Any], draw: Generator, rate: float) -> None:
    """Mean and 95th percentile below both of the others, on one load.

    Raises:
        AssertionError: naming the rule that is better, and both numbers.
    """
    arrivals = drawn_arrivals(draw, rate)
    waits = waits_of(play(made(SIZE), arrivals))
    mean, p95 = float(np.mean(waits)), float(np.percentile(waits, 95))
    for name, (other_mean, other_p95) in rivals(arrivals).items():
        for what, mine, other in (("mean", mean, other_mean), ("95th percentile", p95, other_p95)):
            assert mine < other, (
                f"{rate:.0f} requests a second: your {what} is {1e3 * mine:.2f} ms, and with {name} it is "
                f"{1e3 * other:.2f} ms"
            )


# ------------------------------------------------------------------ task 5: where batches settle


def check_settles(find: Callable[..., Any], rate: float, o: float, t: float) -> None:
    """The batch at which step and arrivals balance.

    Raises:
        AssertionError: naming the value, the slip that gives it, and the step and arrivals it leads to.
    """
    got, right = number(find(rate, o, t), "the batch", infinite=True), settles(rate, o, t)
    busy = rate * t
    slips = {
        "a batch has at least one request": rate * o / (1 - busy) if busy < 1 else math.nan,
        "there is no such batch where the requests alone keep the server busy: inf": rate * o / (1 - busy)
        if busy > 1
        else math.nan,
        "the arrivals during o alone; those during the B t come on top": rate * o,
        "the arrivals during one request's step": rate * (o + t),
        "rounded; what batches come to on average need not be a whole number": got
        if math.isfinite(right) and got in (math.floor(right), math.ceil(right))
        else math.nan,
    }
    words = f"{rate:g} requests a second, o = {1e3 * o:g} ms, t = {1e3 * t:g} ms"
    if got == right or near(got, right):
        return
    step = f"a step of {got:.4g} takes {1e3 * (o + got * t):.4g} ms, in which {rate * (o + got * t):.4g} arrive"
    raise AssertionError(f"{words}: {got:.6g}{named(got, slips)}; {step}, and the two balance at {right:.6g}")


# ------------------------------------------------------------------ task 6: when eagerness loses


def check_greedy(answer: Callable[..., Any], arrivals: Sequence[float], cap: int, *, o: float, t: float) -> None:
    """When each answer leaves, where a free server takes whoever waits.

    Raises:
        AssertionError: naming the first request whose answer leaves at another instant.
    """
    right = greedy_batches(arrivals, cap, o, t)
    got = as_list(answer(list(arrivals), cap, o, t), "greedy_batches() returns a list of instants")
    words = f"arrivals at {listed(list(arrivals))} s, a cap of {cap}, o = {o:g} s, t = {t:g} s"
    assert len(got) == len(right), f"{words}: {len(got)} instants for {len(right)} requests"
    slips = {
        "these are waiting times; instants are asked for, counted from 0": np.subtract(right, arrivals).tolist(),
        "as if there were no cap": greedy_batches(arrivals, len(arrivals), o, t),
        "as if each were served alone": greedy_batches(arrivals, 1, o, t),
        "as if it waited for a full batch": full_batches(arrivals, cap, o, t),
    }
    _compare(got, right, slips, words)


# ------------------------------------------------------------------ pictures


def _dash(place: int) -> dict[str, Any]:
    """The line of the curve at this place among four or fewer, none of which looks like another."""
    return ({"linestyle": "-"}, {"variant": 1}, {"variant": 2}, {"variant": 3})[place]


def draw_line(
    sizes: Sequence[int], seconds: Sequence[float], line: tuple[float, float], at: int, *, name: str, caption: str = ""
) -> figures.Picture:
    """Throughput against the batch size: measured steps, the line's curve, its ceiling and the knee."""
    overhead, per_request = line
    fig, ax = figures.axes(xlabel="batch size", ylabel="requests", yunit="1/s", xlog=True)
    fine = np.geomspace(1, max(2 * at, sizes[-1]), 120)
    ax.plot(fine, fine / (overhead + per_request * fine), **figures.look("prediction", marker=""), label="B/(o + Bt)")
    measured = [size / one for size, one in zip(sizes, seconds)]
    ax.plot(sizes, measured, **figures.look("measurement", linestyle=""), label="measured")
    ax.axhline(1 / per_request, **figures.look("quiet", marker=""), label="1/t")
    knee_at = at / (overhead + per_request * at)
    ax.plot([at], [knee_at], **figures.look("prediction", marker="D", linestyle=""), label=f"the knee, {at}")
    ax.set_ylim(bottom=0)
    ax.legend()
    alt = (
        f"Requests a second against the batch size from 1 to {fine[-1]:.0f}: measured from {measured[0]:,.0f} at 1 to "
        f"{measured[-1]:,.0f} at {sizes[-1]}; the line's curve bends towards 1/t = {1 / per_request:,.0f}, and reaches "
        f"the wanted share of it at {at}."
    )
    data = {"batch size": list(sizes), "measured (1/s)": [round(value, 1) for value in measured]}
    return figures.show(fig, alt=alt, caption=caption, name=name, data=data)


def draw_means(
    sizes: Sequence[int], rows: Mapping[str, Sequence[float]], *, xlabel: str, name: str, caption: str = ""
) -> figures.Picture:
    """Mean latency against a size, for several loads or rules by name; what is beyond 1 s is left out."""
    fig, ax = figures.axes(xlabel=xlabel, ylabel="mean latency", yunit="ms", xlog=True, ylog=True)
    for place, (words, values) in enumerate(rows.items()):
        at = [(size, 1e3 * value) for size, value in zip(sizes, values) if value <= 1]
        if at:
            ax.plot(*zip(*at), **figures.look("simulation", **_dash(place)), label=words)
    ax.legend()
    least = {words: int(np.argmin(values)) for words, values in rows.items()}
    alt = f"Mean latency against {xlabel} from {sizes[0]} to {sizes[-1]}: " + "; ".join(
        f"{words}, least at {sizes[place]} with {1e3 * rows[words][place]:.1f} ms" for words, place in least.items()
    )
    data: dict[str, list[Any]] = {xlabel: list(sizes)}
    data |= {f"{words} (ms)": [round(1e3 * value, 2) for value in values] for words, values in rows.items()}
    return figures.show(fig, alt=alt + ".", caption=caption, name=name, data=data)


def draw_waits(
    rows: Mapping[str, Sequence[float]], *, measured: Collection[str] = (), name: str, caption: str = ""
) -> figures.Picture:
    """The share of requests that were answered within a time, for up to four rules by name; those in `measured` were
    timed by the clock, the others simulated."""
    fig, ax = figures.axes(xlabel="latency", xunit="ms", ylabel="requests answered within it", yunit="%")
    marks = (50, 95)
    for place, (words, waits) in enumerate(rows.items()):
        ordered = 1e3 * np.sort(np.asarray(waits))
        shares = 100 * np.arange(1, len(ordered) + 1) / len(ordered)
        evidence = "measurement" if words in measured else "simulation"
        ax.plot(ordered, shares, **figures.look(evidence, **_dash(place), marker=""), label=words)
    ax.set_ylim(0, 100)
    ax.legend()
    found = {words: [1e3 * float(np.percentile(waits, mark)) for mark in marks] for words, waits in rows.items()}
    alt = "Share of requests answered within a time: " + "; ".join(
        f"{words}, half within {half:.1f} ms and 95 % within {most:.1f} ms" for words, (half, most) in found.items()
    )
    data = {"percentile": list(marks)} | {f"{words} (ms)": [round(v, 2) for v in got] for words, got in found.items()}
    return figures.show(fig, alt=alt + ".", caption=caption, name=name, data=data)
