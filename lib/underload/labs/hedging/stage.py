"""The stage on which a policy plays: replicas behind a front door, on a virtual clock.

A service is replicas of one server each (or of one engine each, in `tokens`), and what a copy takes is drawn anew for
every copy, from a stream of its own: another policy meets the same calls, and copies that take the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng

from underload.labs.answers import shown
from underload.metrics import percentile
from underload.queueing.service import Deterministic, Empirical, Service
from underload.request import UnderloadError
from underload.simulation import (
    Attempt,
    ClusterRun,
    Episodes,
    Failures,
    JoinShortestQueue,
    Once,
    ReplicaRun,
    Router,
    Sending,
    Slowness,
    StationReplica,
    simulate_cluster,
)
from underload.workload import Planned

_COPIES = 20  # of one call: more is a loop that does not end
_TIMERS = 200  # of one call
_LOOKS = 200_000  # at one call: more is a loop that waits for what cannot come while it runs


class Bounded:
    """A call, as the front door gives it, whose use is watched: what cannot be, or would have no end, ends in words.

    All but `send`, `after`, `cancel` and `answer` is the call's own, also what is written to it.
    """

    def __init__(self, call: Any, guard: Guarded) -> None:
        self.__dict__.update(_call=call, _guard=guard, _timers=0, _looks=0)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.__dict__["_looks"] += 1
        if self._looks > _LOOKS:
            raise AssertionError(
                f"{self._name} was asked {_LOOKS:,} times for something: a loop that waits? No time passes while a "
                "method runs; call.after(delay, self.late, call) waits"
            )
        return getattr(self._call, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._call, name, value)

    def __repr__(self) -> str:
        return repr(self._call)

    @property
    def _name(self) -> str:
        return f"call {self._call.request.index}"

    def send(self, *more: Any) -> Any:
        if more:
            raise AssertionError(f"send() takes nothing: the front door chooses the replica; got {shown(more[0])}")
        if len(self._call.attempts) >= _COPIES:
            raise AssertionError(f"{self._name} has {_COPIES} copies and wants one more: a call here has two at most")
        return self._call.send()

    def after(self, delay: Any, function: Any, *args: Any) -> None:
        _at_least_0(delay, "after() takes a delay")
        if not callable(function):
            raise AssertionError(
                f"after() takes a function and what it is called with, as in call.after(0.1, self.late, call); got "
                f"{shown(function)}"
            )
        self._guard.check_call(function, args)
        self.__dict__["_timers"] += 1
        if self._timers > _TIMERS:
            raise AssertionError(f"{self._name} has set {_TIMERS} timers: one that sets itself again?")
        self._call.after(delay, self._guard.tell, function, *args)

    def cancel(self, attempt: Any, after: Any = 0.0) -> None:
        self._own(attempt, "cancel")
        _at_least_0(after, "cancel() takes a time of the message")
        self._call.cancel(attempt, after)

    def answer(self, attempt: Any) -> None:
        self._own(attempt, "answer")
        if attempt.state != "answered":
            raise AssertionError(
                f"answer() takes a copy that has its whole answer, as in finished(); of {self._name} this one is "
                f"{attempt.state}"
            )
        self._call.answer(attempt)

    def _own(self, attempt: Any, method: str) -> None:
        if not isinstance(attempt, Attempt):
            raise AssertionError(f"{method}() takes one copy, such as call.attempts[0]; got {shown(attempt)}")
        if attempt.call is not self._call:
            other = attempt.call.request.index
            raise AssertionError(
                f"{method}() of {self._name} got a copy of call {other}: one object serves all calls, and what it "
                "remembers of one of them belongs in call.state"
            )


def _at_least_0(value: Any, words: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not value >= 0:
        raise AssertionError(f"{words} of 0 s or more, got {shown(value)}")


class Guarded(Sending):
    """A policy whose calls are watched.

    broke: whether an exception came out of the policy's own code; began: whether any call came.
    """

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.broke = False
        self._calls: dict[int, Bounded] = {}
        self._fits: set[tuple[Any, int]] = set()

    def tell(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a method of the policy."""
        try:
            function(*args)
        except BaseException:
            self.broke = True
            raise

    def check_call(self, function: Callable[..., Any], args: Sequence[Any]) -> None:
        """A timer's function takes what it will be called with; looked at once for each function.

        Raises:
            AssertionError: it does not.
        """
        code = getattr(function, "__func__", None), len(args)
        if code in self._fits:
            return
        try:
            signature(function).bind(*args)
        except ValueError:  # one that does not say what it takes
            pass
        except TypeError as error:
            raise AssertionError(
                f"after() cannot call {getattr(function, '__name__', 'the function')} with {len(args)} of what it "
                f"takes ({error}); as in call.after(0.1, self.late, call)"
            ) from None
        if code[0] is not None:
            self._fits.add(code)

    @property
    def began(self) -> bool:
        return bool(self._calls)

    def _bounded(self, call: Any) -> Bounded:
        number = id(call)
        if number not in self._calls:
            self._calls[number] = Bounded(call, self)  # holds the call, whose id is then nobody else's
        return self._calls[number]

    def begin(self, call: Any) -> None:
        self.tell(self.policy.begin, self._bounded(call))
        if not call.attempts:
            raise AssertionError(f"begin() sends no copy of call {call.request.index}: it would never be answered")

    def started(self, call: Any, attempt: Any) -> None:
        self.tell(self.policy.started, self._bounded(call), attempt)

    def first_token(self, call: Any, attempt: Any) -> None:
        self.tell(self.policy.first_token, self._bounded(call), attempt)

    def finished(self, call: Any, attempt: Any) -> None:
        self.tell(self.policy.finished, self._bounded(call), attempt)

    def failed(self, call: Any, attempt: Any) -> None:
        self.tell(self.policy.failed, self._bounded(call), attempt)

    def so_far(self, planned: list[Planned]) -> ClusterRun:
        """A run that came to its end with calls that have none."""
        calls = sorted((one._call for one in self._calls.values()), key=lambda call: call.request.index)
        front = calls[0].front
        replicas = [ReplicaRun(server.steps, server.busy, server.attempts) for server in front.servers]
        return ClusterRun(calls, front.all_attempts, replicas, planned)


def simulated(policy: Any, planned: list[Planned], replicas: Sequence[Any], router: Router, seed: int) -> ClusterRun:
    """`simulate_cluster` under a watched policy; a call that nobody answers is in it, without an outcome."""
    guarded = Guarded(policy)
    try:
        return simulate_cluster(planned, replicas, router=router, sending=guarded, seed=seed)
    except UnderloadError:
        if guarded.broke or not guarded.began:
            raise
        return guarded.so_far(planned)


class Lowest(Router):
    """Fewest inside first, and of several the lowest number: nothing is left to chance, for runs by hand."""

    def choose(self, call: Any, replicas: Sequence[Any], rng: Generator) -> Any:
        return min(replicas, key=lambda view: (view.inside, view.index))


@dataclass(frozen=True)
class Hidden:
    """A service that a policy meets.

    law: of what one copy takes on an undisturbed replica, in s.
    common: of what every copy of a call takes on top: what is the call's own, and no replica's. None is nothing.
    rate: calls a second, at random instants.
    slowness: of each replica, in turn; the same object in all places makes them slow together.
    """

    law: Service
    rate: float
    replicas: int = 8
    calls: int = 1200
    slowness: tuple[Slowness | None, ...] = (None,)
    router: Router = field(default_factory=JoinShortestQueue)
    seed: int = 0
    common: Service | None = None

    @property
    def mean(self) -> float:
        """s that a copy takes on average, where nothing is slow."""
        return self.law.mean + (0.0 if self.common is None else self.common.mean)

    @property
    def load(self) -> float:
        """The share of time in which a replica is busy, where no call has a second copy and nothing is slow."""
        return self.rate * self.mean / self.replicas

    def at(self, load: float) -> Hidden:
        """The same service under another load."""
        return replace(self, rate=load * self.replicas / self.mean)


def serve(policy: Any, service: Hidden) -> ClusterRun:
    """Run the calls of a service under a policy.

    Raises:
        AssertionError: a call gets no copy, or copies without end.
    """
    gaps = default_rng((service.seed, 13)).exponential(1 / service.rate, service.calls)
    slow = service.slowness
    replicas = [
        StationReplica(service.law, common=service.common, slowness=slow[place % len(slow)])
        for place in range(service.replicas)
    ]
    return run(policy, np.cumsum(gaps).tolist(), replicas, service.router, service.seed)


def run(policy: Any, arrivals: Sequence[float], replicas: Sequence[Any], router: Router, seed: int = 0) -> ClusterRun:
    """Run calls at these instants (s) under a policy."""
    planned = [Planned(float(at), 1, 1, index=place) for place, at in enumerate(arrivals)]
    return simulated(policy, planned, replicas, router, seed)


def by_hand(
    policy: Any,
    times: Sequence[float],
    arrivals: Sequence[float] = (0.0,),
    down: Sequence[tuple[float, float] | None] = (),
    slowness: Slowness | None = None,
) -> ClusterRun:
    """Replicas that take fixed times (s), and a router that leaves nothing to chance.

    Args:
        down: of each replica, from when until when; copies inside fail when it begins.
        slowness: of all of them.
    """
    replicas = [
        StationReplica(
            Deterministic(seconds),
            slowness=slowness,
            failures=Failures((down[place],)) if place < len(down) and down[place] else None,  # type: ignore[arg-type]
        )
        for place, seconds in enumerate(times)
    ]
    return run(policy, arrivals, replicas, Lowest())


def once(service: Hidden) -> ClusterRun:
    """The same calls, one copy each."""
    return serve(Once(), service)


def p99(run: ClusterRun) -> float:
    """99th percentile of the latencies (s).

    Raises:
        AssertionError: no call was answered.
    """
    found = percentile(list(run.latencies), 99)
    assert found is not None, f"none of {len(run.calls)} calls was answered"
    return found


def all_here(run: ClusterRun, words: str) -> None:
    """Every call came to an end, good or bad.

    Raises:
        AssertionError: naming one that hangs for ever, with its copies.
    """
    for call in run.calls:
        if call.outcome is None:
            states = [attempt.state for attempt in call.attempts]
            why = (
                "finished() has to say call.answer(attempt)" if "answered" in states
                else "when the last copy has failed, say call.fail()" if "cancelled" not in states
                else "none of them is inside any more"
            )  # fmt: skip
            raise AssertionError(
                f"{words}: call {call.request.index} is never answered. Its copies: {story(call)}; {why}"
            )


def all_answered(run: ClusterRun, words: str) -> None:
    """Every call has an answer.

    Raises:
        AssertionError: naming one that has none, with its copies.
    """
    all_here(run, words)
    for call in run.calls:
        assert call.outcome == "answered", (
            f"{words}: call {call.request.index} has no answer, but {call.outcome}; its copies: {story(call)}"
        )


def story(call: Any) -> str:
    """What became of a call's copies, in words."""
    return "; ".join(
        f"at {1e3 * (attempt.sent - call.arrival):.4g} ms to replica {attempt.replica}, {attempt.state}"
        for attempt in call.attempts
    )


def copies(run: ClusterRun) -> list[list[tuple[float, int, str]]]:
    """Of every call the copies: s after the call's arrival, the replica, what became of it."""
    return [
        [(attempt.sent - call.arrival, attempt.replica, str(attempt.state)) for attempt in call.attempts]
        for call in run.calls
    ]


def check_copies(
    run: ClusterRun, wanted: Sequence[Sequence[tuple[float, int, str]]], words: str, why: str = ""
) -> None:
    """The copies of every call.

    Raises:
        AssertionError: naming the first call that has others.
    """
    all_here(run, words)
    for place, (call, right) in enumerate(zip(run.calls, wanted)):
        got = copies(run)[place]
        same = len(got) == len(right) and all(
            abs(one[0] - other[0]) < 1e-9 and one[1:] == other[1:] for one, other in zip(got, right)
        )
        should = "; ".join(f"at {1e3 * at:.4g} ms to replica {to}, {state}" for at, to, state in right)
        which = f"call {place}" if len(wanted) > 1 else "the call"
        assert same, f"{words}: {which} has these copies: {story(call)}; wanted: {should}{'; ' + why if why else ''}"


def check_same(run: ClusterRun, right: ClusterRun, words: str) -> None:
    """The copies of a run are those that the rules ask for.

    Raises:
        AssertionError: naming the first call that has others.
    """
    all_here(run, words)
    for got, wanted in zip(run.calls, right.calls):
        both = ([(one.sent, one.replica, one.state) for one in call.attempts] for call in (got, wanted))
        same = next(both) == next(both)
        assert same, (
            f"{words}: call {got.request.index}, which comes at {got.arrival:.4f} s, has these copies: {story(got)}; "
            f"by the rules: {story(wanted)}"
        )


# ------------------------------------------------------------------ times


def state_of(draw: Generator) -> str:
    """Where a generator stands, as a key of what is drawn from there on: a check looks at many policies' runs, and
    simulates what it sets beside them once."""
    return json.dumps(draw.bit_generator.state)


def drawing_from(state: str) -> Generator:
    """A generator that stands there."""
    draw = default_rng()
    draw.bit_generator.state = json.loads(state)
    return draw


def measured_times(
    draw: Generator, count: int = 400, *, slow: float = 0.04, median: float = 0.010, exact: bool = False
) -> list[float]:
    """What copies took (s): most around the median, and a few much longer, for reasons that a second copy lacks.

    Args:
        slow: the chance of each to be one of the few; `exact`: the share of them.
    """
    times = median * np.exp(0.35 * draw.standard_normal(count))
    chance = draw.random(count)
    late = chance < (np.quantile(chance, slow) if exact else slow)
    times[late] *= draw.uniform(6, 20, int(late.sum()))
    return [float(round(value, 6)) for value in times]


def drawn_service(draw: Generator, load: float = 0.25, **more: Any) -> Hidden:
    """A service with a law of its own."""
    # More than the one in a hundred that a p99 leaves, by enough that no draw is without; within a budget of 5 %.
    slow, median = float(draw.uniform(0.027, 0.034)), float(draw.uniform(0.004, 0.03))
    law = Empirical(measured_times(draw, 1000, slow=slow, median=median, exact=True))
    return Hidden(law, 1.0, seed=int(draw.integers(1 << 30)), **more).at(load)


def own_work(draw: Generator, load: float, **more: Any) -> Hidden:
    """A service whose calls are long or short by themselves: a second copy of a long one is as long."""
    median, spread = float(draw.uniform(0.006, 0.02)), float(draw.uniform(0.75, 0.95))
    own = Empirical(np.round(median * np.exp(spread * draw.standard_normal(2000)), 6))
    return Hidden(Deterministic(0.1 * own.mean), 1.0, common=own, seed=int(draw.integers(1 << 30)), **more).at(load)


def by_chance(load: float, **more: Any) -> Hidden:
    """The text's service whose copies are slow by chance, one in twenty-five: a second copy is seldom slow, too."""
    return Hidden(Empirical(measured_times(default_rng(13), 1000)), 1.0, seed=13, **more).at(load)


def by_itself(load: float) -> Hidden:
    """The text's service whose calls are long or short by themselves."""
    return own_work(default_rng(13), load)


def storm(load: float, factor: float) -> Hidden:
    """The text's service of long and short calls, with all replicas slow by a factor for a tenth of the time."""
    return slow_together(by_itself(load), factor)


def slow_together(service: Hidden, factor: float) -> Hidden:
    """A service all of whose replicas are slow by a factor for a tenth of the time, together."""
    until = service.calls / service.rate
    return replace(service, slowness=(Episodes((0.3 * until,), (0.1 * until,), factor),))


def delay_of(service: Any, share: float) -> float:
    """The delay (s) that this share of the calls exceeds, where nobody queues and nothing is slow."""
    common = getattr(service, "common", None)  # beside it what a replica takes is the same for every copy
    return float(service.law.isf(share) if common is None else service.law.mean + common.isf(share))
