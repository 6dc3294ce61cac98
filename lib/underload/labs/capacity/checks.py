"""Checks of the lab's tasks: each raises AssertionError with the wrong value, the slip that gives it, and what was
wanted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng

from underload.labs.answers import as_list, as_pair, listed, named, near, number, shown
from underload.labs.capacity.mechanisms import (
    Limits,
    Shed,
    binds,
    cheapest,
    goodput,
    interval,
    largest,
    meets,
)
from underload.labs.capacity.service import (
    BURST,
    PROMISE,
    Plan,
    kept,
    load,
    planned,
    serve,
    share_kept,
)
from underload.request import StepRecord, Timeline
from underload.simulation import JoinShortestQueue, Steady
from underload.simulation.cluster import ClusterRun
from underload.workload import Planned

# ------------------------------------------------------------------ task 1: goodput


def timeline(arrival: float, *times: float, reason: str = "length") -> Timeline:
    """A request by hand: when it came, and when each token of its answer did."""
    return Timeline(arrival, token_times=list(times), finish_reason=reason)


def six() -> list[Timeline]:
    """The requests of the text."""
    return [
        timeline(0.0, 0.3, 0.35, 0.4),
        timeline(1.0, 1.7, 1.75, 1.8),
        timeline(1.0, reason="refused"),
        timeline(2.0, 2.4),
        timeline(3.0, 3.2, 3.4, 3.6),
        timeline(4.9, 5.1, 5.15, 5.2),
    ]


def drawn_timelines(draw: Generator, count: int = 60) -> list[Timeline]:
    """Requests over 20 s: most are answered, some late or slowly, some fail after a token or two."""
    found = []
    for arrival in sorted(draw.uniform(0, 20, count).tolist()):
        first = arrival + float(draw.gamma(2.0, 0.15))
        tokens = int(draw.geometric(0.15))
        gaps = draw.uniform(0.02, 0.18) * draw.uniform(0.5, 1.5, tokens - 1)
        times = [first, *(first + np.cumsum(gaps)).tolist()]
        reason = str(draw.choice(["length", "stop", "cancelled", "error", "refused"], p=[0.5, 0.3, 0.08, 0.06, 0.06]))
        if reason == "refused":
            times = []
        elif reason == "error":
            times = times[: int(draw.integers(0, 3))]
        found.append(Timeline(arrival, token_times=times, finish_reason=reason))
    return found


def check_meets(answer: Callable[..., Any], one: Timeline, ttft: float, tpot: float) -> None:
    """Whether one request met both limits.

    Raises:
        AssertionError: naming the request, the word and the right one.
    """
    got, right = answer(one, ttft, tpot), meets(one, ttft, tpot)
    assert isinstance(got, bool | np.bool_), f"meets() says True or False, got {shown(got)}"
    if got == right:
        return
    times = one.token_times
    why = ""
    if one.finish_reason not in ("stop", "length"):
        why = f"; it ended in {one.finish_reason!r}, which is no answer"
    elif len(times) == 1:
        why = "; an answer of one token has no time per token, so it cannot break that limit"
    raise AssertionError(
        f"a request that came at {one.arrival:g} s, tokens at {listed(times)} s, ended {one.finish_reason!r}, limits "
        f"{ttft:g} and {tpot:g} s: {got}, and it is {right}{why}"
    )


def check_goodput(
    answer: Callable[..., Any], timelines: Sequence[Timeline], ttft: float, tpot: float, begin: float, end: float
) -> None:
    """Goodput and the share.

    Raises:
        AssertionError: naming both numbers, the slip that gives one, and the right ones.
    """
    words = f"{len(timelines)} requests, limits {ttft:g} and {tpot:g} s, a window from {begin:g} to {end:g} s"
    pair = as_pair(answer(list(timelines), ttft, tpot, begin, end), "goodput() returns two things: a rate and a share")
    rate, share = goodput(timelines, ttft, tpot, begin, end)
    good = [one for one in timelines if meets(one, ttft, tpot)]
    came = [one for one in timelines if begin <= one.arrival < end]
    answered = [one for one in came if one.finish_reason in ("stop", "length")]
    closed = sum(begin <= one.arrival <= end for one in timelines)
    good_came = sum(begin <= one.arrival < end for one in good)
    got = number(pair[0], "the rate")
    slips = {
        "a count; divide it by the window's seconds": rate * (end - begin),
        "those who came in the window; the rate counts last tokens in it": good_came / (end - begin),
        "with a last token at the end, which is the next window's": sum(
            begin <= one.token_times[-1] <= end for one in good
        )
        / (end - begin),
        "whoever was answered, in time or not": sum(
            one.finish_reason in ("stop", "length") and begin <= one.token_times[-1] < end for one in timelines
        )
        / (end - begin),
    }
    assert near(got, rate), f"{words}: {got:.6g} a second{named(got, slips)}; it is {rate:.6g}"
    if share is None:
        assert pair[1] is None, f"{words}: nobody came, so there is no share: None, got {shown(pair[1])}"
        return
    got = number(pair[1], "the share")
    slips = {
        "of those who were answered; who was refused or failed came, too": good_came / max(1, len(answered)),
        "of all requests; only who came in the window counts": len(good) / len(timelines),
        "with who came at the end, which is the next window's": sum(begin <= one.arrival <= end for one in good)
        / max(1, closed),
    }
    assert near(got, share), f"{words}: a share of {got:.6g}{named(got, slips)}; it is {share:.6g}"


# ------------------------------------------------------------------ task 2: the largest load

_PATIENCE = 1_000  # questions of one search: more is a loop that does not end


def _one_of(value: Any, known: Sequence[Any]) -> bool:
    """Whether a number is one of those; nothing that a student may hand over makes this fail."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and value in known


def check_largest(search: Callable[..., Any], loads: Sequence[float], edge: float) -> None:
    """The largest load up to `edge`, in as few looks as halving takes.

    Raises:
        AssertionError: naming the load and the right one, or how many looks it took.
    """
    asked: list[float] = []

    def holds(rate: float) -> bool:
        assert _one_of(rate, loads), f"holds({shown(rate)}): ask for one of the loads"
        assert len(asked) < _PATIENCE, (
            f"loads {listed(list(loads))}, all up to {edge:g} hold: it asked {_PATIENCE} times and goes on, the last "
            f"time for {shown(rate)}; does the range get smaller with every question?"
        )
        asked.append(rate)
        return bool(rate <= edge)

    got, right = search(holds, list(loads)), largest(lambda rate: rate <= edge, loads)
    words = f"loads {listed(list(loads))}, all up to {edge:g} hold"
    if right is None:
        assert got is None, f"{words}: {shown(got)}; not even the first holds, and that is None"
    else:
        assert got is not None, f"{words}: None, though {right:g} holds"
        value = number(got, "the load")
        place = list(loads).index(right)
        slips = {
            "the first that does not hold": loads[place + 1] if place + 1 < len(loads) else math.nan,
            "its place in the list; return the load": float(place),
        }
        assert near(value, right), f"{words}: {value:g}{named(value, slips)}; the largest that holds is {right:g}"
    most = math.ceil(math.log2(len(loads) + 1))
    assert len(asked) <= most, (
        f"{words}: it looked {len(asked)} times, and each look is a simulation; halving takes {most} at most"
    )


def drawn_service(draw: Generator, runs: int) -> tuple[Callable[[float, int], float], list[float]]:
    """A service whose share falls with the load, at another load in every run; and loads to look at."""
    edges = draw.normal(30.0, 3.0, runs)
    loads = sorted({round(float(rate), 1) for rate in draw.uniform(10, 50, 30)})

    def attained(rate: float, run: int) -> float:
        return float(1 / (1 + math.exp((rate - edges[run]) / 1.5)))

    return attained, loads


def check_capacity(
    find: Callable[..., Any], attained: Callable[[float, int], float], loads: Sequence[float], target: float, runs: int
) -> None:
    """The mean crossing with its interval.

    Raises:
        AssertionError: naming the numbers, the slip that gives one, and the right ones.
    """
    seen: set[tuple[float, int]] = set()
    asked = 0

    def watched(rate: float, run: int) -> float:
        nonlocal asked
        question = f"attained({shown(rate)}, {shown(run)})"
        assert _one_of(rate, loads), f"{question}: ask for one of the loads, and then for the number of a run"
        assert _one_of(run, range(runs)), f"{question}: runs are numbered from 0 to {runs - 1}"
        asked += 1
        assert asked <= runs * _PATIENCE, (
            f"{question}: it asked {runs * _PATIENCE} times and goes on; does every search come to an end?"
        )
        seen.add((float(rate), int(run)))
        return attained(rate, run)

    words = f"{len(loads)} loads, {runs} runs, a share of {target:g}"
    got = as_list(find(watched, list(loads), target, runs), "capacity() returns three numbers: mean, low and high")
    assert len(got) == 3, f"capacity() returns three numbers: mean, low and high, got {shown(got)}"
    mean, low, high = (number(value, name) for value, name in zip(got, ("the mean", "the low end", "the high end")))
    found = [largest(lambda rate, run=run: attained(rate, run) >= target, loads) for run in range(runs)]  # type: ignore[misc]
    values = [0.0 if one is None else one for one in found]
    right = interval(values)
    above = [largest(lambda rate, run=run: attained(rate, run) > target, loads) or 0.0 for run in range(runs)]  # type: ignore[misc]
    pooled = largest(lambda rate: float(np.mean([attained(rate, run) for run in range(runs)])) >= target, loads)
    slips = {
        "the load at which the runs' mean share holds: one crossing for all": pooled or math.nan,
        "a load whose share is just the target is carried, too": float(np.mean(above)),
        "runs without any such load are left out; they count as 0": float(np.mean([v for v in values if v] or [0.0])),
        "the largest of the runs' loads": max(values),
        "the smallest of the runs' loads": min(values),
    }
    assert near(mean, right[0]), f"{words}: a mean of {mean:.6g}{named(mean, slips)}; it is {right[0]:.6g}"
    deviation = float(np.std(values, ddof=1))
    half = right[2] - right[0]
    slips = {
        "the interval of one run, not of the mean of all: divide by the root of their number": half * math.sqrt(runs),
        "with the deviation that divides by n; take ddof=1": half * math.sqrt((runs - 1) / runs),
        "1.96, which is for many runs; take lab.student(runs)": 1.96 * deviation / math.sqrt(runs),
        "one standard error": deviation / math.sqrt(runs),
    }
    for name, end in (("low", mean - low), ("high", high - mean)):
        assert near(end, half), (
            f"{words}: the {name} end is {end:.6g} from the mean{named(end, slips)}; it should be {half:.6g}"
        )
    most = runs * math.ceil(math.log2(len(loads) + 1))
    assert len(seen) <= most, f"{words}: {len(seen)} simulations; halving takes {most} at most"


# ------------------------------------------------------------------ task 3: what binds

LIMITS = Limits(32, 128)
_WORDS = ("nothing", "tpot", "slots", "budget", "blocks")
#: Services that each thing keeps from more: plan, blocks, requests a second.
BOUND: dict[str, tuple[Plan, int, float]] = {
    "slots": (Plan(1, 8, 128), 500, 16.0),
    "budget": (Plan(1, 64, 128), 500, 28.0),
    "tpot": (Plan(1, 64, 512), 500, 18.0),
    "blocks": (Plan(1, 64, 256), 150, 18.0),
    "nothing": (Plan(1, 64, 128), 500, 8.0),
}


def bound_run(name: str, seed: int | Generator, count: int = 160) -> tuple[ClusterRun, Limits]:
    """A run of one of these services, and its limits."""
    plan, blocks, rate = BOUND[name]
    run = serve(load(rate, count, seed), plan, blocks=blocks)
    return run, Limits(plan.slots, plan.chunk)


def by_hand() -> tuple[list[Timeline], list[StepRecord]]:
    """The two requests and four steps of the text."""
    late = [timeline(0.0, 0.9, 0.92, 0.94), timeline(0.1, 0.2, 0.22, 0.24)]
    steps = [
        StepRecord(0.0, 0.02, 32, decode_tokens=32, queue_length=1),
        StepRecord(0.02, 0.02, 20, prefill_tokens=108, decode_tokens=20, queue_length=2),
        StepRecord(0.04, 0.02, 21, prefill_tokens=107, decode_tokens=21, queue_length=1),
        StepRecord(0.06, 0.02, 32, prefill_tokens=96, decode_tokens=32, queue_length=0),
    ]
    return late, steps


def as_word(value: Any, where: str = "") -> str:
    """One of the words of task 3.

    Raises:
        AssertionError: it is none.
    """
    assert value is not None, f"{where}binds() returned nothing; does every path through it return a word?"
    assert isinstance(value, str) and value in _WORDS, (
        f"{where}binds() returns one of the words {', '.join(map(repr, _WORDS))}, got {shown(value)}"
    )
    return value


def check_binds(
    find: Callable[..., Any], timelines: Sequence[Timeline], steps: Sequence[StepRecord], limits: Limits, words: str
) -> None:
    """The word for what binds.

    Raises:
        AssertionError: naming the word, and what was counted.
    """
    got, right = find(list(timelines), list(steps), limits), binds(timelines, steps, limits)
    got = as_word(got, f"{words}: ")
    late = [one for one in timelines if not meets(one, limits.ttft, limits.tpot)]
    slow = sum(
        one.finish_reason in ("stop", "length") and not meets(one, math.inf, limits.tpot)
        for one in late
        if one.token_times
    )
    waited = [step for step in steps if step.queue_length]
    full = sum(step.batch_size >= limits.slots for step in waited)
    spent = sum(step.batch_size < limits.slots and step.num_tokens >= limits.budget for step in waited)
    assert got == right, (
        f"{words}: {shown(got)}, and it is {right!r}: {len(late)} of {len(timelines)} requests broke the promise, "
        f"{slow} of them answers with too long a time per token; "
        f"somebody waited in {len(waited)} of {len(steps)} steps, with all slots taken in {full} of these, the budget "
        f"spent in {spent} more, and neither in {len(waited) - full - spent}"
    )


# ------------------------------------------------------------------ task 4: a plan


def check_cheapest(
    choose: Callable[..., Any], shares: dict[Any, Sequence[float]], price: Callable[[Any], float], target: float
) -> None:
    """The cheapest option that holds, without a look at what costs more.

    Raises:
        AssertionError: naming the option, its interval and the right one; or what was looked at for nothing.
    """
    asked: list[Any] = []
    options = list(shares)

    def looked(option: Any) -> list[float]:
        assert option in options, f"shares({shown(option)}): that is none of the options"
        asked.append(option)
        return list(shares[option])

    got = choose(list(options), price, looked, target)
    right = cheapest(options, price, lambda option: shares[option], target)
    words = (
        f"{len(options)} options from {min(map(price, options)):g} to {max(map(price, options)):g}, {target:g} wanted"
    )

    def told(option: Any) -> str:
        mean, low, _ = interval(shares[option])
        return f"{option!r} costs {price(option):g}, with a mean of {mean:.4f} and a lower end of {low:.4f}"

    if right is None:
        assert got is None, f"{words}: {shown(got)}; the lower end of none is as high, and that is None"
    else:
        assert got is not None, f"{words}: None, though {told(right)}"
        assert got in options, f"{words}: {shown(got)} is none of the options; return the option itself"
        assert got == right, f"{words}: {told(got)}; {told(right)}"
        dearer = [one for one in asked if price(one) > price(right)]
        assert not dearer, (
            f"{words}: {dearer[0]!r} for {price(dearer[0]):g} was tried, though {right!r} holds for {price(right):g}; "
            "each look takes simulations, so go by the price"
        )
    twice = next((one for place, one in enumerate(asked) if one in asked[:place]), None)
    assert twice is None, (
        f"{words}: {twice!r} was looked at {asked.count(twice)} times, and each look takes simulations"
    )


def drawn_options(draw: Generator, hopeless: bool = False) -> tuple[dict[Any, Sequence[float]], float]:
    """Plans in any order, their shares in five windows, and a target."""
    kinds = [Plan(replicas, slots, chunk) for replicas in (1, 2, 3, 4) for slots in (16, 64) for chunk in (128, 256)]
    need = 9.0 if hopeless else float(draw.uniform(1.5, 3.5))
    found: dict[Any, Sequence[float]] = {}
    for place in draw.permutation(len(kinds)):
        plan = kinds[place]
        mean = 1 / (1 + math.exp(-4 * (plan.replicas - need) - float(draw.uniform(-1.5, 1.5))))
        spread = float(draw.uniform(0.001, 0.03))
        found[plan] = [float(min(1.0, max(0.0, mean + draw.normal(0, spread)))) for _ in range(5)]
    return found, 0.9


WINDOWS, TRACE = 5, 600
OPTIONS = tuple(Plan(replicas, slots, chunk) for replicas in range(1, 6) for slots in (16, 64) for chunk in (128, 256))


def your_trace(seed: int) -> tuple[list[Planned], list[Planned]]:
    """A student's own trace: what is planned with, and what comes afterwards."""
    draw = default_rng(seed + 1400)
    rate = float(draw.integers(42, 72))
    gaps = draw.gamma(0.7, 1 / (0.7 * rate), TRACE)
    whole = planned(np.cumsum(gaps).tolist(), draw)
    half = TRACE // 2
    begin = whole[half].arrival
    later = [
        Planned(one.arrival - begin, one.prompt_tokens, one.output_tokens, i) for i, one in enumerate(whole[half:])
    ]
    return whole[:half], later


def windows(requests: Sequence[Planned], plan: Plan) -> list[float]:
    """The share that keeps the promise in each of five windows of equally many requests."""
    return list(_windows(tuple(requests), plan))


@lru_cache(maxsize=64)  # the plan is looked for, checked and drawn on the same trace
def _windows(requests: tuple[Planned, ...], plan: Plan) -> tuple[float, ...]:
    timelines = serve(requests, plan).timelines
    size = len(timelines) // WINDOWS
    return tuple(share_kept(timelines[place * size : (place + 1) * size]) for place in range(WINDOWS))


def check_my_plan(value: Any, seed: int) -> None:
    """A student's own plan: the lower end holds in the trace that it was planned with, and that of nothing cheaper
    does. What became of it afterwards is printed, and is for no points: more may have come than before.

    Raises:
        NotImplementedError: nothing was written down yet.
        AssertionError: naming the plan and what it gives.
    """
    if value is None:
        raise NotImplementedError("my_plan is still None")
    found = tuple(as_list(value, "my_plan is three numbers: replicas, slots and budget"))
    assert found in OPTIONS, f"my_plan is {shown(found)}, which is none of lab.OPTIONS"
    plan = Plan(*found)
    before, after = your_trace(seed)
    mean, low, _ = interval(windows(before, plan))
    words = f"{plan.replicas} replicas, {plan.slots} slots, a budget of {plan.chunk}"
    assert low >= PROMISE.share, (
        f"{words}: in the trace {mean:.1%} kept the promise, with a lower end of {low:.1%}; it is the lower end that "
        f"has to be {PROMISE.share:.0%}"
    )
    for other in OPTIONS:
        if other.replicas == plan.replicas - 1 and interval(windows(before, other))[1] >= PROMISE.share:
            raise AssertionError(
                f"{words}: the lower end holds, and so does that of {other.replicas} replicas with {other.slots} slots "
                f"and a budget of {other.chunk}"
            )
    print(f"{words}: afterwards {share_kept(serve(after, plan).timelines):.1%} kept the promise")


# ------------------------------------------------------------------ task 5: the door

DOOR_PLAN = Plan(1, 64, 128)
NEARLY = 0.9  # of what the library's door keeps


def check_quiet(made: Callable[[], Any], draw: Generator) -> None:
    """At a load that the service carries, the door stands open.

    Raises:
        AssertionError: naming how many were turned away.
    """
    requests = load(9.0, 150, draw)
    run = serve(requests, DOOR_PLAN, door=made())
    refused = run.count("refused")
    assert refused <= 0.02 * len(requests), (
        f"9 requests a second, which the service carries: {refused} of {len(requests)} were turned away"
    )


def check_burst(made: Callable[[], Any], requests: Sequence[Planned], plan: Plan = DOOR_PLAN, words: str = "") -> None:
    """The share that keeps the promise in a burst is near that of the library's door, or above it.

    Raises:
        AssertionError: naming both, and what became of the others.
    """
    run = serve(requests, plan, door=made())
    share, wanted = share_kept(run.timelines), NEARLY * _behind_the_library_s(tuple(requests), plan)
    refused = run.count("refused")
    late = len(requests) - refused - sum(map(kept, run.timelines))
    assert share >= wanted, (
        f"{words or 'a burst'}: {share:.1%} of {len(requests)} requests kept the promise, {refused} were turned away "
        f"and {late} were let in and answered too late or too slowly; {wanted:.1%} are wanted"
        + ("; who is let in has to wait behind all who were let in before" if late > 0.2 * len(requests) else "")
    )


@lru_cache(maxsize=16)  # many doors are set beside the same one
def _behind_the_library_s(requests: tuple[Planned, ...], plan: Plan) -> float:
    return share_kept(serve(requests, plan, door=Shed()).timelines)


def check_reopens(made: Callable[[], Any], requests: Sequence[Planned]) -> None:
    """A while after the burst the door is open again.

    Raises:
        AssertionError: naming how many were turned away then.
    """
    run = serve(requests, DOOR_PLAN, door=made())
    last = [call for call in run.calls if call.request.arrival >= BURST - 4]
    refused = sum(call.outcome == "refused" for call in last)
    assert refused <= 0.1 * len(last), (
        f"two seconds after the burst has ended, {refused} of {len(last)} requests are still turned away"
    )


# ------------------------------------------------------------------ task 6: a router

FLEET = Plan(4, 16, 128)


def fleet(router: Any, requests: Sequence[Planned], slow: float, place: int = 0) -> ClusterRun:
    """Four replicas, one of them slower by a factor: the first, or the one at `place`."""
    return serve(requests, FLEET, router=Checked(router), slowness=[*[Steady(1.0)] * place, Steady(slow)])


class Checked:
    """A student's router, whose choices are looked at."""

    def __init__(self, router: Any) -> None:
        self.router = router

    def choose(self, call: Any, replicas: Sequence[Any], rng: Any) -> Any:
        chosen = self.router.choose(call, list(replicas), rng)
        assert any(chosen is one for one in replicas), f"choose() returns one of the replicas, got {shown(chosen)}"
        return chosen


def check_router(made: Callable[[], Any], draw: Generator, rate: float, slow: float) -> None:
    """Nearly as many keep the promise as where the shortest queue is joined, which is far more than in turn.

    Raises:
        AssertionError: naming the shares, and what the slow replica was sent.
    """
    requests = load(rate, 250, draw)
    run = fleet(made(), requests, slow)
    got, best = share_kept(run.timelines), _shortest(tuple(requests), slow, 0)
    sent = run.replicas[0].attempts / len(requests)
    assert got >= 0.95 * best, (
        f"{rate:g} requests a second on four replicas, the first slower by {slow:g}: {got:.1%} keep the promise, and "
        f"{best:.1%} do in the shortest queue; the slow one was sent {sent:.0%} of all"
    )


@lru_cache(maxsize=16)
def _shortest(requests: tuple[Planned, ...], slow: float, place: int) -> float:
    return share_kept(fleet(JoinShortestQueue(), requests, slow, place).timelines)


@lru_cache(maxsize=4)
def _without_one(requests: tuple[Planned, ...]) -> float:
    return share_kept(serve(requests, FLEET._replace(replicas=FLEET.replicas - 1)).timelines)


ROOM = 1 / 3  # of what the shortest queue leaves to whoever knows which replica is slow


def check_room(made: Callable[[], Any], draw: Generator) -> None:
    """Some of what a slow replica costs in the shortest queue is won back; which it is, is drawn.

    Raises:
        AssertionError: naming the shares, and what the slow replica was sent.
    """
    requests, place = load(40.0, 800, draw), int(draw.integers(1, FLEET.replicas))
    run = fleet(made(), requests, 3.0, place)
    got, queue = share_kept(run.timelines), _shortest(tuple(requests), 3.0, place)
    alone = _without_one(tuple(requests))
    wanted = queue + ROOM * (alone - queue)
    sent = run.replicas[place].attempts / len(requests)
    assert got >= wanted, (
        f"40 requests a second on four replicas, the one with index {place} slower by 3: {got:.1%} keep the promise, "
        f"{queue:.1%} do in the shortest queue and {alone:.1%} on the other three alone; {wanted:.1%} are wanted, and "
        f"the slow one was sent {sent:.0%} of all"
    )
