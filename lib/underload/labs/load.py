"""Lab 3, "The load you measure with": what its tasks start from, and checks that say what is wrong with a value.

    SleepyClock, Events, Line   time that moves only when told to, and a server in it
    Behind                      something real that serves one at a time, behind a line, on the wall clock
    open_loop, closed_loop      earlier answers, for the tasks that start from one; so are latencies, gaps, dispersion
    Server, your_server, your_trace              what a student's own number draws
    drawn_*                     inputs for checks that must not be known beforehand
    check_*                     raise AssertionError with the wrong value, what it is instead, and what was wanted
    draw_*                      the pictures of the lab

Times are in s.
"""

from __future__ import annotations

import json
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from heapq import heapify, heappop, heappush, heapreplace
from inspect import isgenerator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from underload import figures
from underload.labs.answers import as_list, as_pair, listed, named, near, number, shown
from underload.labs.answers import check_guess as check_guess
from underload.labs.pace import rate_for as rate_for
from underload.metrics import chunks
from underload.request import FinishReason, Timeline, UnderloadError

Array = NDArray[np.float64]
_POLLS = 20_000  # readings of a clock without any passing of time
_MOST = 100_000  # events of a run
_NAP = 1e-3  # s by which a request may be late


def book() -> dict[str, Any]:
    """What the book's machine gave with the real decoder: `seconds`, `machine`, `date`."""
    found: dict[str, Any] = json.loads(Path(__file__).with_name("load.json").read_text(encoding="utf-8"))
    return found


# ------------------------------------------------------------------ time that moves only when told to


class SleepyClock:
    """A clock on which nothing but sleeping takes time, and sleeping takes `overshoot` s more than was asked for."""

    def __init__(self, start: float = 0.0, overshoot: float = 0.0) -> None:
        self.time, self.overshoot, self.slept = start, overshoot, 0
        self._polls = 0

    def now(self) -> float:
        """The present instant in s."""
        self._polls += 1
        assert self._polls < _POLLS, (
            f"the clock was read {_POLLS:,} times while nothing passed; on this clock time passes in clock.sleep()"
        )
        return self.time

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass, and a little more."""
        length = number(seconds, "what clock.sleep() is given, in s,")
        assert length >= 0, (
            f"clock.sleep({length:.4g}): nobody sleeps backwards; a request that is late goes out at once"
        )
        self.slept += 1
        if length:  # at least to the next float, as any timer ticks: whoever sleeps until the clock says so gets there
            self._polls = 0
            self.time = max(self.time + length + self.overshoot, math.nextafter(self.time, math.inf))


class Events:
    """What is to come, on a clock of its own; equal instants in the order in which they were asked for."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._count = 0

    def now(self) -> float:
        """The present instant in s."""
        return self._now

    def at(self, instant: float, action: Callable[..., object], *arguments: Any) -> None:
        """Call `action(*arguments)` at that instant."""
        when = number(instant, "the instant that events.at() is given, in s,")
        assert callable(action), (
            f"events.at() needs something to call at {when:.4g} s, got {shown(action)}; "
            "events.at(instant, f, x) calls f(x) then"
        )
        assert when >= self._now - 1e-9, (
            f"events.at({when:.4g}, …) lies in the past, it is {self._now:.4g} s; an instant is events.now() and more"
        )
        self._count += 1
        assert self._count < _MOST, f"{_MOST:,} events and no end: users must stop when all requests were sent"
        heappush(self._heap, (max(when, self._now), self._count, action, arguments))

    def run(self) -> None:
        """Carry out all that is to come."""
        while self._heap:
            self._now, _, action, arguments = heappop(self._heap)
            action(*arguments)


class Line:
    """A server in virtual time that serves one at a time: `submit(user, done)` calls done() when the answer is there.

    Notes each send as (instant, user), and each answer's latency.
    """

    def __init__(self, events: Events, services: Sequence[float]) -> None:
        self._events, self._services = events, services
        self._free = -math.inf
        self.sends: list[tuple[float, int]] = []
        self.latencies: list[float] = []
        self.inside: dict[int, int] = {}
        self.most_inside = 0

    def submit(self, user: int, done: Callable[[], object]) -> None:
        """Take a request of `user`, and call `done()` when it is answered."""
        assert callable(done), f"submit() needs a function to call when the answer is there, got {shown(done)}"
        now = self._events.now()
        service = self._services[len(self.sends) % len(self._services)]
        self.sends.append((now, user))
        self.inside[user] = self.inside.get(user, 0) + 1
        self.most_inside = max(self.most_inside, sum(self.inside.values()))
        self._free = max(self._free, now) + service
        self.latencies.append(self._free - now)
        self._events.at(self._free, self._answer, user, done)

    def _answer(self, user: int, done: Callable[[], object]) -> None:
        self.inside[user] -= 1
        done()


class Behind:
    """Something real that serves one request at a time, behind a line, in a thread of its own.

    It is all that a generator needs: a clock (`now`, `sleep`), events (`now`, `at`, `run`), `send` and `ask` for an
    open loop and `submit` for a closed one. It counts requests itself, in the order in which they come.

    Args:
        serve: serve(i) returns when request i is answered.
        warm: so many requests are served before the constructor returns; they count nowhere.
    """

    def __init__(self, serve: Callable[[int], object], warm: int = 0) -> None:
        self._serve = serve
        self._line: queue.SimpleQueue[tuple[int, Callable[[], object]] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Callable[[], object]]
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._failure: BaseException | None = None
        self._closed = False
        self._came = 0
        self._served: list[float] = []
        self._thread = threading.Thread(target=self._work, name="underload-server", daemon=True)
        self._thread.start()
        self.restart()
        for request in range(warm):
            self.ask(request)
        self.restart()

    def restart(self) -> None:
        """Forget what was served and what was to come; the clock begins at 0, and requests count from 0.

        Waits for those in line: an answer from before must not be taken for one that comes after.
        """
        while len(self._served) < self._came:
            time.sleep(0.001)
        self._heap.clear()
        self._answers = queue.SimpleQueue()
        self._served = []
        self._came = self._waiting = self._order = 0
        self._zero = time.perf_counter()

    def now(self) -> float:
        """The present instant in s, since the latest restart."""
        return time.perf_counter() - self._zero

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass."""
        time.sleep(seconds)

    def send(self, request: int) -> None:
        """Put a request in the line; returns at once."""
        self._put(lambda: None)

    def ask(self, request: int) -> None:
        """Put a request in the line; returns when it is answered, as on a connection that carries one at a time."""
        answered = threading.Event()
        self._put(answered.set)
        answered.wait()
        self._check()

    def submit(self, user: int, done: Callable[[], object]) -> None:
        """Put a request in the line, and have `done()` called by `run` when it is answered."""
        answers = self._answers
        self._put(lambda: answers.put(done))
        self._waiting += 1

    def at(self, instant: float, action: Callable[..., object], *arguments: Any) -> None:
        """Call `action(*arguments)` at that instant, in `run`."""
        self._order += 1
        assert self._order < _MOST, f"{_MOST:,} events and no end: users must stop when all requests were sent"
        heappush(self._heap, (instant, self._order, action, arguments))

    def run(self) -> None:
        """Carry out what is to come, until nothing is and nobody waits for an answer."""
        while self._heap or self._waiting:
            self._check()
            remaining = self._heap[0][0] - self.now() if self._heap else 0.5
            if remaining <= 0:
                _, _, action, arguments = heappop(self._heap)
                action(*arguments)
                continue
            try:
                answer = self._answers.get(timeout=min(remaining, 0.5))
            except queue.Empty:
                continue
            self._waiting -= 1
            answer()

    def finished(self) -> Array:
        """The instant in s at which each request since the latest restart was answered; waits for those in line."""
        while len(self._served) < self._came:
            self._check()
            time.sleep(0.001)
        return np.array(self._served)

    def close(self) -> None:
        """Serve those in line, then stop; nothing can be sent any more."""
        self._closed = True
        self._line.put(None)
        self._thread.join()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _put(self, answered: Callable[[], object]) -> None:
        if self._closed:
            raise UnderloadError("it is closed and would never answer; make another with lab.Behind(serve)")
        self._line.put((self._came, answered))
        self._came += 1

    def _work(self) -> None:
        while (job := self._line.get()) is not None:
            request, answered = job
            try:
                self._serve(request)
            except BaseException as error:  # whoever drives is told
                self._failure = error
            self._served.append(self.now())
            answered()


# ------------------------------------------------------------------ task 1: two generators


def open_loop(schedule: Sequence[float], send: Callable[[int], object], clock: Any) -> list[float]:
    """Send request i at schedule[i] s after now, or at once when that has passed; when each was really sent."""
    begin, sent = clock.now(), []
    for request, due in enumerate(schedule):
        remaining = begin + due - clock.now()
        if remaining > 0:
            clock.sleep(remaining)
        sent.append(clock.now() - begin)
        send(request)
    return sent


def closed_loop(
    users: int, think: Callable[[int], float], requests: int, submit: Callable[..., object], events: Any
) -> list[tuple[float, int]]:
    """`users` think and send in turn, until `requests` were sent; (instant, user) of each send."""
    sent: list[tuple[float, int]] = []

    def ready(user: int) -> None:
        events.at(events.now() + think(user), go, user)

    def go(user: int) -> None:
        if len(sent) < requests:
            sent.append((events.now(), user))
            submit(user, lambda: ready(user))

    for user in range(users):
        ready(user)
    events.run()
    return sent


_right_closed = closed_loop  # for the checks, in which `closed_loop` is the student's


class _Recorder:
    """Takes requests of an open loop: notes when, and holds the sender up for a while."""

    def __init__(self, clock: SleepyClock, takes: Sequence[float]) -> None:
        self._clock, self._takes = clock, takes
        self.sends: list[tuple[int, float]] = []

    def __call__(self, request: Any) -> None:
        which = int(number(request, "what send() is given, the request's number,"))
        assert 0 <= which < len(self._takes), f"there is no request {which}; they are numbered from 0"
        self.sends.append((which, self._clock.time))
        self._clock.time += self._takes[which]


def drawn_schedule(draw: Generator, requests: int = 40) -> list[float]:
    """Instants of a Poisson process of 20/s, the first of them above 0, two of them equal."""
    instants = (0.3 + np.cumsum(draw.exponential(0.05, requests))).tolist()
    place = int(draw.integers(5, requests))
    instants[place] = instants[place - 1]
    return [float(instant) for instant in instants]


def drawn_holdups(draw: Generator, requests: int = 40) -> list[float]:
    """s that each send takes: little, but for one in the middle that makes the next ones late."""
    takes = draw.uniform(0.0001, 0.001, requests)
    takes[int(draw.integers(5, requests // 2))] = draw.uniform(0.3, 0.5)
    return [float(seconds) for seconds in takes]


def _open(
    open_loop: Callable[..., Any], schedule: Sequence[float], start: float, overshoot: float, takes: Sequence[float]
) -> tuple[Any, list[float]]:
    """What an open loop returned, and when it sent each request, on the schedule's time."""
    clock = SleepyClock(start, overshoot)
    recorder = _Recorder(clock, takes)
    returned = open_loop(list(schedule), recorder, clock)
    order = [which for which, _ in recorder.sends]
    assert order, "no request was sent: call send(i) for each of them" + (
        "; a function with yield does nothing until somebody asks for its values" if isgenerator(returned) else ""
    )
    assert order == list(range(len(schedule))), (
        f"{len(schedule)} requests should be sent once each, 0 first and then in order; sent were {listed(order)}"
        + (f", {len(order)} in all" if len(order) != len(schedule) else "")
    )
    return returned, [instant - start for _, instant in recorder.sends]


def _by_gaps(schedule: Sequence[float], overshoot: float, takes: Sequence[float]) -> list[float]:
    """When requests go out if each gap is slept, whatever else took time."""
    now, sent = 0.0, []
    for gap, spent in zip(np.diff([0.0, *schedule]), takes, strict=True):
        now += float(gap) + (overshoot if gap > 0 else 0.0)
        sent.append(now)
        now += spent
    return sent


def check_open(
    open_loop: Callable[..., Any],
    schedule: Sequence[float],
    *,
    start: float = 100.0,
    overshoot: float = 0.0,
    takes: Sequence[float] | None = None,
) -> None:
    """When each request goes out: never before it is due, and no later than sleep and sends made necessary.

    A millisecond is let pass, for who sleeps in short naps until the instant has come.

    Raises:
        AssertionError: naming the request, when it went out, when it should have, and why.
    """
    spent = [0.0] * len(schedule) if takes is None else takes
    _, sent = _open(open_loop, schedule, start, overshoot, spent)
    wanted, now = [], 0.0
    for due, taken in zip(schedule, spent, strict=True):
        now = now if now >= due else due + overshoot
        wanted.append(now)
        now += taken
    worst = max(range(len(sent)), key=lambda i: max(schedule[i] - sent[i], sent[i] - wanted[i]))
    got, due, right = sent[worst], schedule[worst], wanted[worst]
    early, late = got < due - 1e-9, got > right + max(overshoot, _NAP) + 1e-9
    if not early and not late:
        return
    drifted = _by_gaps(schedule, overshoot, spent)
    why = ""
    if all(instant == sent[0] for instant in sent) and len(set(schedule)) > 1:
        why = "; all went out together: the schedule counts from when open_loop() was called, and the clock does not"
    elif all(near(a, b) for a, b in zip(sent, drifted, strict=True)):
        why = "; each gap is slept in full, and what sleep and sends take besides is never made up for"
    elif late and got > due + start / 2:
        why = "; the clock's present instant was added to a wait"
    raise AssertionError(
        f"request {worst} is due at {due:.4f} s after the call and went out at {got:.4f} s, "
        f"{1e3 * abs(got - due):.1f} ms {'early' if early else 'late'}{why}. It could go out at {right:.4f} s "
        f"(the clock begins at {start:g} s and oversleeps by {1e3 * overshoot:g} ms; "
        f"sends take up to {1e3 * max(spent):.3g} ms)"
    )


def check_stamps(
    open_loop: Callable[..., Any], schedule: Sequence[float], *, start: float = 100.0, takes: Sequence[float]
) -> None:
    """What is returned: the instant of each send, on the schedule's time.

    Raises:
        AssertionError: naming the request, its stamp, and when it was really sent.
    """
    returned, sent = _open(open_loop, schedule, start, 0.0002, takes)
    got = as_list(returned, "open_loop() must return a list of instants")
    assert len(got) == len(sent), f"{len(sent)} requests were sent, and open_loop() returned {len(got)} instants"
    for which, (stamp, real) in enumerate(zip(got, sent, strict=True)):
        value = number(stamp, f"the instant of request {which}")
        if near(value, real):
            continue
        slips = {
            "by the clock; the call was at " + f"{start:g} s": real + start,
            "read after send(), which took a while": real + takes[which],
            "when it was due": schedule[which],
        }
        raise AssertionError(
            f"request {which} was sent {real:.4f} s after the call and has the instant {value:.4f} s"
            f"{named(value, slips)}"
        )


@dataclass
class _Thinks:
    """think(user): the next think time of that user, from a list of its own."""

    times: Sequence[Sequence[float]]
    asked: dict[int, int] = field(default_factory=dict)

    def __call__(self, user: Any) -> float:
        which = int(number(user, "what think() is given, the user's number,"))
        assert 0 <= which < len(self.times), f"there is no user {which}; they are numbered from 0"
        place = self.asked.get(which, 0)
        self.asked[which] = place + 1
        return self.times[which][place % len(self.times[which])]


def drawn_users(draw: Generator) -> dict[str, Any]:
    """Users who think for different times, and a server at which they meet; no two sends at one instant."""
    users = int(draw.integers(2, 6))
    return {
        "users": users,
        "thinks": draw.uniform(0.1, 3.0, (users, 7)).tolist(),
        "services": draw.uniform(0.2, 1.2, 11).tolist(),
        "requests": int(draw.integers(4 * users, 8 * users)),
        "start": float(draw.uniform(5, 500)),
    }


def _closed(
    closed_loop: Callable[..., Any],
    users: int,
    thinks: Sequence[Sequence[float]],
    services: Sequence[float],
    requests: int,
    start: float,
) -> tuple[Any, Line]:
    events = Events(start)
    line = Line(events, services)
    returned = closed_loop(users, _Thinks(thinks), requests, line.submit, events)
    assert line.sends, "no request was sent: call submit(user, done), and events.run() to let time pass"
    return returned, line


def check_users(closed_loop: Callable[..., Any], *, start: float = 100.0, **run: Any) -> None:
    """When which user sends; sends beyond the number asked for are not looked at here.

    Raises:
        AssertionError: naming the send, its user and instant, and what it should be.
    """
    _, line = _closed(closed_loop, start=start, **run)
    _, right = _closed(_right_closed, start=start, **run)
    got, wanted = sorted(line.sends), sorted(right.sends)
    for place, (instant, user) in enumerate(wanted):
        assert place < len(got), f"after {len(got)} sends nobody sends any more; {len(wanted)} were asked for"
        mine, who = got[place]
        if near(mine, instant) and who == user:
            continue
        raise AssertionError(
            f"send {place} is user {who}'s at {mine - start:.4g} s after the call; it should be user {user}'s at "
            f"{instant - start:.4g} s: a user thinks first, and again from the instant of each answer on "
            f"({run['users']} users; user 0 thinks {listed(run['thinks'][0])} s; services {listed(run['services'])} s)"
        )


def check_one_each(closed_loop: Callable[..., Any], *, start: float = 100.0, **run: Any) -> None:
    """No user has two requests inside, and all users take part.

    Raises:
        AssertionError: naming the user, or how many took part.
    """
    events = Events(start)
    line = Line(events, run["services"])

    def submit(user: Any, done: Callable[[], object]) -> None:
        who = int(number(user, "what submit() is given, the user's number,"))
        assert not line.inside.get(who), (
            f"user {who} sends at {events.now() - start:.4g} s and has a request inside already; "
            "in a closed loop the answer comes first"
        )
        line.submit(who, done)

    closed_loop(run["users"], _Thinks(run["thinks"]), run["requests"], submit, events)
    assert line.sends, "no request was sent: call submit(user, done), and events.run() to let time pass"
    count = len({user for _, user in line.sends})
    assert count == run["users"], f"{count} of the {run['users']} users sent something; all should"
    assert len(line.sends) > run["users"], f"each user sent once; {run['requests']} requests were asked for"


def check_returned(closed_loop: Callable[..., Any], *, start: float = 100.0, **run: Any) -> None:
    """So many were sent as asked for, and what is returned is what was sent.

    Raises:
        AssertionError: naming the number, or the entry that is wrong.
    """
    returned, line = _closed(closed_loop, start=start, **run)
    assert len(line.sends) == run["requests"], (
        f"{len(line.sends)} requests were sent; {run['requests']} were asked for, of all {run['users']} users together"
    )
    words = "closed_loop() must return a list of (instant, user)"
    got = as_list(returned, words)
    assert len(got) == len(line.sends), f"{len(line.sends)} were sent, and the list has {len(got)} entries"
    for place, (entry, (instant, user)) in enumerate(zip(got, line.sends, strict=True)):
        row = as_list(entry, words)
        assert len(row) == 2, f"{words}; entry {place} is {shown(entry)}"
        when, who = number(row[0], f"the instant of send {place}"), number(row[1], f"the user of send {place}")
        assert near(when, instant) and who == user, (
            f"entry {place} is ({when:.6g}, {who:g}); user {user} sent then, at {instant:.6g} s by events.now()"
        )


def lateness(sent: Sequence[float], schedule: Sequence[float]) -> list[float]:
    """How late each request went out, in s."""
    return [when - due for when, due in zip(sent, schedule, strict=True)]


def by_gaps(schedule: Sequence[float], overshoot: float) -> list[float]:
    """When requests go out if each gap is slept, on a clock that oversleeps by `overshoot` s."""
    return _by_gaps(schedule, overshoot, [0.0] * len(schedule))


def poisson(rate: float, requests: int, seed: int) -> list[float]:
    """The first instants of a Poisson process of `rate` a second, in s."""
    found = np.cumsum(np.random.default_rng([seed, 1]).exponential(1 / rate, requests))
    return [float(instant) for instant in found]


def exponential(mean: float, n: int, seed: int) -> list[float]:
    """Exponential times of that mean, in s, from a stream of their own."""
    return [float(seconds) for seconds in np.random.default_rng([seed, 2]).exponential(mean, n)]


# ------------------------------------------------------------------ task 2: coordinated omission


def latencies(
    schedule: Sequence[float], services: Sequence[float], connections: int = 1
) -> tuple[list[float], list[float]]:
    """Latencies in s from the schedule and from the send, of a client with so many connections.

    Request i goes out when it is due and a connection is free, first come first served; its answer takes services[i].
    """
    free = [-math.inf] * connections
    heapify(free)
    from_schedule, from_send = [], []
    for due, service in zip(schedule, services, strict=True):
        sent = max(due, free[0])
        heapreplace(free, sent + service)
        from_schedule.append(sent + service - due)
        from_send.append(service)
    return from_schedule, from_send


_right_latencies = latencies


def drawn_client(draw: Generator, connections: int) -> dict[str, Any]:
    """A schedule with a quiet start, services that vary, and one of them so long that many requests become late."""
    schedule = (0.5 + np.cumsum(draw.exponential(0.1, 60))).tolist()
    services = draw.uniform(0.02, 0.12, 60) * connections
    services[20 : 20 + connections] = draw.uniform(2.0, 3.0, connections)
    return {"schedule": schedule, "services": services.tolist(), "connections": connections}


def check_latencies(
    latencies: Callable[..., Any],
    which: str,
    schedule: Sequence[float],
    services: Sequence[float],
    connections: int = 1,
) -> None:
    """One of the two lists that a client reports: "from schedule" or "from send".

    Raises:
        AssertionError: naming the request, its latency, what was wanted, and the slip that gives it.
    """
    words = "latencies() must return two lists, (from_schedule, from_send)"
    pair = as_pair(latencies(list(schedule), list(services), connections), words)
    place = ("from schedule", "from send").index(which)
    got = as_list(pair[place], words)
    right = _right_latencies(schedule, services, connections)
    assert len(got) == len(schedule), f"{which}: {len(got)} latencies of {len(schedule)} requests"
    for i, (value, wanted) in enumerate(zip(got, right[place], strict=True)):
        found = number(value, f"the latency {which} of request {i}")
        if near(found, wanted):
            continue
        slips = {
            "that is from the " + ("send" if place == 0 else "schedule"): right[1 - place][i],
            "the wait alone; the answer takes time too": right[0][i] - services[i],
        }
        if connections > 1:
            slips["as if there were one connection"] = _right_latencies(schedule, services, 1)[place][i]
        raise AssertionError(
            f"{which} request {i} took {found:.4g} s{named(found, slips)}; it should be {wanted:.4g} s "
            f"({connections} connection{'s' if connections > 1 else ''}, schedule {listed(schedule)} s, "
            f"services {listed(services)} s)"
        )


@dataclass(frozen=True)
class Server:
    """A server that answers in `usual` s or so and once stands still for `stall` s, and a minute of load on it."""

    usual: float
    stall: float
    schedule: tuple[float, ...]
    services: tuple[float, ...]

    def __str__(self) -> str:
        return (
            f"your server: answers in about {1e3 * self.usual:.0f} ms, and once stands still for {self.stall:.1f} s; "
            f"{len(self.schedule)} requests, 10 a second, one connection"
        )


def server_with(usual: float, stall: float, seed: int = 1, rate: float = 10.0) -> Server:
    """A minute of evenly spaced requests; the answer to the one in the middle takes `stall` s."""
    count = round(60 * rate)
    draws = np.random.default_rng([seed, 3])
    services = usual * draws.uniform(0.8, 1.2, count)
    services[count // 3 + int(draws.integers(count // 3))] = stall
    schedule = tuple(i / rate for i in range(count))
    return Server(usual, stall, schedule, tuple(float(seconds) for seconds in services))


def your_server(seed: int) -> Server:
    """The server that a student's number draws."""
    draws = np.random.default_rng([seed, 4])
    return server_with(int(draws.integers(20, 46)) / 1e3, int(draws.integers(30, 61)) / 10, seed=seed)


def check_my_p99(value: Any, which: str, server: Server) -> None:
    """A p99 that the student wrote down, 6 % more or less, which leaves room for any rule between order statistics.

    Raises:
        NotImplementedError: nothing was written down yet.
        AssertionError: naming the value and what it is instead.
    """
    name = "my_from_" + which.split()[-1]
    if value is None:
        raise NotImplementedError(f"{name} is still None")
    got = number(value, name)
    both = dict(zip(("from schedule", "from send"), _right_latencies(server.schedule, server.services), strict=True))
    right = float(np.percentile(both[which], 99))
    other = float(np.percentile(both["from send" if which == "from schedule" else "from schedule"], 99))
    slips = {
        "the other one": other,
        "the mean": float(np.mean(both[which])),
        "the longest": max(both[which]),
        "the median": float(np.median(both[which])),
        "in milliseconds; it should be in seconds": 1e3 * right,
    }
    found = [words for words, slip in slips.items() if math.isclose(got, slip, rel_tol=0.02)]
    instead = f" ({found[0]})" if found else ""
    assert math.isclose(got, right, rel_tol=0.06), (
        f"{name} is {got:.4g} s{instead}; the p99 {which} of your server's minute is not that. "
        f"Take np.percentile(…, 99) of what your latencies() gives for server.schedule and server.services"
    )


# ------------------------------------------------------------------ task 3: gaps, and how bursty they are


def gaps(rng: Generator, rate: float, burstiness: float, n: int) -> Array:
    """n gamma-distributed gaps in s of mean 1/rate and CV 1/√burstiness; equal ones at infinite burstiness."""
    if math.isinf(burstiness):
        return np.full(n, 1 / rate)
    return rng.gamma(burstiness, 1 / (burstiness * rate), n)


def cv(gaps: Sequence[float]) -> float:
    """Coefficient of variation: standard deviation over mean."""
    return float(np.std(gaps) / np.mean(gaps))


def dispersion(instants: Sequence[float], window: float, horizon: float) -> float:
    """Index of dispersion of the counts in consecutive whole windows of [0, horizon): their variance over mean."""
    whole = math.floor(horizon / window + 1e-9)
    place = np.floor(np.asarray(instants) / window).astype(int)
    counts = np.bincount(place[place < whole], minlength=whole)
    return float(counts.var(ddof=1) / counts.mean())


_N = 20_000  # gaps of a check


def _draw(gaps: Callable[..., Any], rate: float, burstiness: float, n: int = _N, seed: int = 5) -> Array:
    returned = gaps(np.random.default_rng(seed), rate, burstiness, n)
    drawn = returned if isinstance(returned, np.ndarray) else as_list(returned, "gaps() must return n gaps")
    assert len(drawn) == n, f"{n:,} gaps were asked for, got {len(drawn):,}"
    try:
        values = np.asarray(drawn, dtype=float)
    except (TypeError, ValueError):
        raise AssertionError(f"a gap is a number of seconds, got {shown(drawn[0])}") from None
    where = f"at rate {rate:g}/s and burstiness {burstiness:g}"
    assert not np.isnan(values).any(), f"{where} there are gaps that are NaN"
    assert np.isfinite(values).all(), f"{where} there are gaps without end"
    assert (values >= 0).all(), f"{where} there is a gap of {values.min():.4g} s; none is below 0"
    return values


def check_gap_mean(gaps: Callable[..., Any], rate: float, burstiness: float) -> None:
    """The mean of many gaps, five standard errors more or less.

    Raises:
        AssertionError: naming the mean, the one wanted, and the slip that gives it.
    """
    mean = float(_draw(gaps, rate, burstiness).mean())
    right = 1 / rate
    slips = {
        "the rate where the mean belongs": rate,
        "the shape was forgotten: a gamma law has mean shape × scale": burstiness / rate,
        "divided by the shape twice": 1 / rate / burstiness,
    }
    found = [w for w, v in slips.items() if math.isclose(mean, v, rel_tol=0.1) and not math.isclose(v, right)]
    instead = f" ({found[0]})" if found else ""
    assert math.isclose(mean, right, rel_tol=5 / math.sqrt(burstiness * _N) + 1e-9), (
        f"{_N:,} gaps at rate {rate:g}/s and burstiness {burstiness:g} have a mean of {mean:.4g} s{instead}; "
        f"it should be near {right:.4g} s"
    )


def check_gap_cv(gaps: Callable[..., Any], rate: float, burstiness: float) -> None:
    """The coefficient of variation of many gaps, 10 % more or less.

    Raises:
        AssertionError: naming it, the one wanted, and the slip that gives it.
    """
    drawn = _draw(gaps, rate, burstiness)
    got, right = float(drawn.std() / drawn.mean()), 1 / math.sqrt(burstiness)
    slips = {
        "√b; burstiness runs backwards: smaller is burstier": 1 / right,
        "1/b": 1 / burstiness,
        "b": burstiness,
        "burstiness has no effect": 1.0,
    }
    found = [w for w, v in slips.items() if math.isclose(got, v, rel_tol=0.07) and not math.isclose(v, right)]
    instead = f" ({found[0]})" if found else ""
    assert math.isclose(got, right, rel_tol=0.1), (
        f"{_N:,} gaps at burstiness {burstiness:g} have a CV of {got:.3g}{instead}; it should be near {right:.3g}"
    )


def check_gap_law(gaps: Callable[..., Any], rate: float, burstiness: float) -> None:
    """Whether gaps have a gamma law of this shape, whatever their mean: how many are short; equal ones at b = ∞.

    Raises:
        AssertionError: naming the share of short gaps and the gamma law's.
    """
    drawn = _draw(gaps, rate, burstiness)
    if math.isinf(burstiness):
        assert np.allclose(drawn, drawn[0]) and drawn[0] > 0, (
            f"at infinite burstiness all gaps are equal; these lie between {drawn.min():.4g} and {drawn.max():.4g} s"
        )
        return
    scaled = drawn / drawn.mean()
    reference = np.random.default_rng(6).gamma(burstiness, 1 / burstiness, 40_000)
    for part in (0.1, 0.5, 2.0):
        got, right = float((scaled < part).mean()), float((reference < part).mean())
        assert abs(got - right) < 0.025, (
            f"at burstiness {burstiness:.3g}, {got:.1%} of the gaps are below {part:g} of their mean; in a gamma law "
            f"of that shape it is {right:.1%}"
        )


def drawn_instants(draw: Generator) -> dict[str, Any]:
    """Arrivals in bursts, a window, and a horizon that is not a whole number of windows; the last window is crowded."""
    window, whole = float(draw.uniform(0.5, 3.0)), int(draw.integers(6, 15))
    horizon = window * (whole + float(draw.uniform(0.4, 0.8)))
    busy = draw.uniform(0, horizon, 30)
    starts = draw.uniform(0, 0.85 * horizon, 3)
    bursts = (starts[:, None] + draw.uniform(0, window / 4, (3, 8))).ravel()
    rest = draw.uniform(window * whole, horizon, 12)
    instants = np.sort(np.concatenate([busy, bursts, rest]))
    instants = instants[(instants > 1.5 * window) & (instants < horizon)]  # so that the first window is empty
    return {"instants": [float(i) for i in instants], "window": window, "horizon": horizon}


def check_cv(cv: Callable[..., Any], gaps: Sequence[float]) -> None:
    """The coefficient of variation of some gaps; n or n - 1 in the variance are both right.

    Raises:
        AssertionError: naming the value, the one wanted, and the slip that gives it.
    """
    got = number(cv(list(gaps)), "what cv() returns")
    values = np.asarray(gaps, dtype=float)
    mean, sd = float(values.mean()), float(values.std())
    right = [sd / mean, float(values.std(ddof=1)) / mean]
    slips = {
        "the variance over the mean": sd**2 / mean,
        "the standard deviation": sd,
        "the square of it": right[0] ** 2,
        "the mean over the standard deviation": mean / sd if sd else math.nan,
        "the variance over the mean, with n − 1": float(values.var(ddof=1)) / mean,
    }
    assert any(near(got, r) for r in right), (
        f"cv({listed(gaps)}) is {got:.4g}{named(got, slips)}; it should be {right[0]:.4g}"
    )


def check_dispersion(dispersion: Callable[..., Any], instants: Sequence[float], window: float, horizon: float) -> None:
    """The index of dispersion of counts; n or n - 1 in the variance are both right.

    Raises:
        AssertionError: naming the value, the one wanted, and the slip that gives it.
    """
    got = number(dispersion(list(instants), window, horizon), "what dispersion() returns")
    whole = math.floor(horizon / window + 1e-9)
    place = np.floor(np.asarray(instants) / window).astype(int)
    counts = np.bincount(place, minlength=whole)
    kept = counts[:whole]
    filled = kept[kept > 0]
    ends = kept[: int(place[place < whole].max()) + 1]

    def index(values: Any) -> list[float]:
        return [float(np.var(values, ddof=d) / np.mean(values)) for d in (0, 1)]

    right = index(kept)
    slips = {
        "the window at the end, which is no whole one, counts too": index(counts) if len(counts) > whole else [],
        "windows in which nobody came are left out": index(filled),
        "windows after the last arrival are left out": index(ends),
        "the standard deviation over the mean": [float(np.std(kept, ddof=d) / np.mean(kept)) for d in (0, 1)],
        "the variance": [float(np.var(kept, ddof=d)) for d in (0, 1)],
        "the squared CV of the gaps": index([0.0])
        if len(instants) < 2
        else [float(np.var(np.diff(instants)) / np.mean(np.diff(instants)) ** 2)],
    }
    found = [words for words, values in slips.items() if any(near(got, value, 1e-6) for value in values)]
    assert any(near(got, value) for value in right), (
        f"dispersion() is {got:.4g}{f' ({found[0]})' if found else ''}; it should be {right[1]:.4g}: {whole} whole "
        f"windows of {window:.4g} s in {horizon:.4g} s, with counts {listed(kept.tolist())}"
    )


#: s: how long a student's trace is, and the window it is looked at through.
TRACE, WINDOW = 1_200.0, 10.0


def your_trace(seed: int) -> list[float]:
    """Twenty minutes of arrivals that a student's number draws: busy and quiet spells in turn, Poisson in each."""
    draws = np.random.default_rng([seed, 5])
    quiet, busy = draws.uniform(1.0, 1.5), draws.uniform(5.0, 7.0)
    instants: list[float] = []
    now, fast = 0.0, bool(draws.integers(2))
    while now < TRACE:
        length = min(float(draws.uniform(20, 40)), TRACE - now)
        rate = busy if fast else quiet
        instants += sorted((now + draws.uniform(0, length, draws.poisson(rate * length))).tolist())
        now, fast = now + length, not fast
    return instants


def shuffled(instants: Sequence[float], seed: int = 1) -> list[float]:
    """The same gaps in another order."""
    steps = np.diff([0.0, *instants])
    np.random.default_rng([seed, 6]).shuffle(steps)
    return [float(instant) for instant in np.cumsum(steps)]


def check_mine(value: Any, name: str, right: float, slips: Mapping[str, float]) -> None:
    """A number that the student wrote down, 3 % more or less.

    Raises:
        NotImplementedError: nothing was written down yet.
        AssertionError: naming the value and, where it is known, what it is instead.
    """
    if value is None:
        raise NotImplementedError(f"{name} is still None")
    got = number(value, name)
    instead = named(got, slips, 0.01)
    assert math.isclose(got, right, rel_tol=0.03), f"{name} is {got:.4g}{instead}, and not that of your trace"


def check_my_cv(value: Any, trace: Sequence[float]) -> None:
    """The CV of the gaps of a student's trace."""
    steps, index = np.diff(trace), dispersion(trace, WINDOW, TRACE)
    check_mine(
        value, "my_cv", cv(steps.tolist()), {"the index of dispersion": index, "the square": cv(steps.tolist()) ** 2}
    )


def check_my_dispersion(value: Any, trace: Sequence[float]) -> None:
    """The index of dispersion of a student's trace in windows of 10 s."""
    steps = np.diff(trace).tolist()
    slips = {"the CV of the gaps": cv(steps), "the squared CV of the gaps": cv(steps) ** 2,
             "in windows of 1 s": dispersion(trace, 1.0, TRACE)}  # fmt: skip
    check_mine(value, "my_dispersion", dispersion(trace, WINDOW, TRACE), slips)


# ------------------------------------------------------------------ task 4: TPOT in three dialects

DIALECTS = ("vLLM", "guidellm", "llmperf")


def timeline(sent: float, *pieces: tuple[float, int], failed: bool = False) -> Timeline:
    """A request by hand: when it was sent, and (instant, tokens) of each chunk."""
    times = [instant for instant, tokens in pieces for _ in range(tokens)]
    reason = FinishReason.ERROR if failed else FinishReason.LENGTH
    return Timeline(
        arrival=sent, sent=sent, token_times=times, finished=times[-1] if times else sent, finish_reason=reason
    )


def by_hand() -> list[Timeline]:
    """The two requests of the text."""
    return [timeline(0.0, (1.0, 1), (1.3, 3), (1.4, 1)), timeline(2.0, (2.5, 1))]


def drawn_log(draw: Generator, *, failures: int = 0, singles: int = 0, answers: int = 8) -> list[Timeline]:
    """Answers in chunks, sent late; some that failed, fast or in the middle; some of one token."""
    log = []
    for _ in range(answers):
        arrival = float(draw.uniform(0, 50))
        sent = arrival + float(draw.uniform(0.1, 2.0))
        sizes = draw.integers(1, 5, int(draw.integers(3, 9)))
        instants = sent + draw.uniform(0.2, 1.0) + np.cumsum(draw.uniform(0.01, 0.2, len(sizes)))
        made = timeline(sent, *((float(t), int(k)) for t, k in zip(instants, sizes, strict=True)))
        made.arrival, made.finished = arrival, made.token_times[-1] + float(draw.uniform(0.01, 0.1))
        log.append(made)
    for place in range(failures):
        sent = float(draw.uniform(0, 50))
        log.append(timeline(sent, *([(sent + 0.01, 2), (sent + 0.02, 1)] if place % 2 else []), failed=True))
    for _ in range(singles):
        sent = float(draw.uniform(0, 50))
        log.append(timeline(sent, (sent + float(draw.uniform(0.2, 2.0)), 1)))
    return [log[int(i)] for i in draw.permutation(len(log))]


def _sent(t: Timeline) -> float:
    return t.arrival if t.sent is None else t.sent


def dialects(log: Sequence[Timeline]) -> dict[str, float | None]:
    """Each tool's mean of what it calls time per output token, or inter-token latency, in s; None: nothing measured."""
    good = [t for t in log if t.finish_reason != FinishReason.ERROR]
    several = [t for t in good if t.output_tokens > 1]
    mean = [(t.token_times[-1] - t.token_times[0]) / (t.output_tokens - 1) for t in several]
    whole = [t.token_times[-1] - _sent(t) for t in good]
    return {
        "vLLM": sum(mean) / len(mean) if mean else None,
        "guidellm": sum(whole) / sum(t.output_tokens for t in good) if good else None,
        "llmperf": sum(w / len(chunks(t)) for w, t in zip(whole, good, strict=True)) / len(good) if good else None,
    }


_right_dialects = dialects


def check_dialect(tpot: Callable[..., Any], log: Sequence[Timeline], *names: str) -> None:
    """What the named tools report of a log.

    Raises:
        AssertionError: naming the tool, its value, what was wanted, and the slip that gives it.
    """
    try:
        got = tpot(list(log))
    except ZeroDivisionError:
        raise AssertionError(
            "tpot() divides by 0 in a log with "
            f"{sum(t.finish_reason == FinishReason.ERROR for t in log)} failed requests and "
            f"{sum(t.output_tokens == 1 for t in log)} of one token, {len(log)} in all; where nothing can be measured "
            "it is None"
        ) from None
    assert isinstance(got, Mapping), f"tpot() must return a dictionary, got {shown(got)}"
    right = dialects(log)
    good = [t for t in log if t.finish_reason != FinishReason.ERROR]
    for name in names:
        assert name in got, f"{name!r} is missing; the keys are {shown(list(got))}"
        wanted, value = right[name], got[name]
        if wanted is None:
            assert value is None, (
                f"{name}: nothing was measured in this log, so it is None; got {shown(value)}: "
                "a 0 would look like the fastest server there is"
            )
            continue
        found = number(value, name)
        instead = named(found, _dialect_slips(log, good, name, right))
        assert near(found, wanted), (
            f"{name} is {1e3 * found:.5g} ms{instead}; it should be {1e3 * wanted:.5g} ms, over {len(log)} requests, "
            f"{len(log) - len(good)} of them failed, {sum(t.output_tokens == 1 for t in good)} of one token"
        )


def _reported(tpot: Callable[..., Any], log: Sequence[Timeline], what: str) -> dict[str, float | None]:
    """What each tool reports of a log, as numbers; None where the student says so."""
    try:
        got = tpot(list(log))
    except ZeroDivisionError:
        raise AssertionError(f"of {what} tpot() divides by 0; where nothing can be measured it is None") from None
    except IndexError:
        raise AssertionError(f"of {what} tpot() asks for a token that is not there (IndexError)") from None
    assert isinstance(got, Mapping), f"tpot() must return a dictionary, got {shown(got)}"
    for name in DIALECTS:
        assert name in got, f"{name!r} is missing; the keys are {shown(list(got))}"
    return {name: None if got[name] is None else number(got[name], f"{name} of {what}") for name in DIALECTS}


def _nothing(name: str, value: float | None, what: str) -> None:
    assert value is None, (
        f"{name} of {what} is {value:.4g} s; nothing was measured, so it is None: "
        "a 0 would look like the fastest server there is"
    )


def check_failures(tpot: Callable[..., Any], log: Sequence[Timeline], failed: Sequence[Timeline]) -> None:
    """That failed requests change no tool's value, and have none by themselves.

    Raises:
        AssertionError: naming the tool, and its value with and without them.
    """
    without = _reported(tpot, log, "a log without failures")
    mixed = _reported(tpot, [*failed[:2], *log, *failed[2:]], f"the same log with {len(failed)} failed requests")
    for name in DIALECTS:
        before, after = without[name], mixed[name]
        assert before is not None, f"{name} of a log of {len(log)} answers is None; all of them can be measured"
        assert after is not None and near(after, before), (
            f"{name} is {1e3 * before:.5g} ms, and with {len(failed)} failed requests in the log "
            f"{'None' if after is None else f'{1e3 * after:.5g} ms'}; a request that failed, with or without tokens, "
            "has no time per output token"
        )
    for name, value in _reported(tpot, failed, "nothing but failed requests").items():
        _nothing(name, value, "nothing but failed requests")


def check_singles(tpot: Callable[..., Any], log: Sequence[Timeline], singles: Sequence[Timeline]) -> None:
    """That answers of one token have no TPOT for vLLM, and something for the others.

    Raises:
        AssertionError: naming the tool and its value.
    """
    without = _reported(tpot, log, "a log without answers of one token")
    mixed = _reported(tpot, [*singles[:2], *log, *singles[2:]], f"the same log with {len(singles)} of one token")
    before, after = without["vLLM"], mixed["vLLM"]
    assert before is not None, f"vLLM of a log of {len(log)} answers is None; all of them can be measured"
    assert after is not None and near(after, before), (
        f"vLLM is {1e3 * before:.5g} ms, and with {len(singles)} answers of one token in the log "
        f"{'None' if after is None else f'{1e3 * after:.5g} ms'}; one token has no gap, so they change nothing"
    )
    alone = _reported(tpot, singles, "nothing but answers of one token")
    _nothing("vLLM", alone["vLLM"], "nothing but answers of one token")
    for name in ("guidellm", "llmperf"):
        assert alone[name] is not None, f"{name} of nothing but answers of one token is None; it counts from the send"


def _dialect_slips(
    log: Sequence[Timeline], good: Sequence[Timeline], name: str, right: Mapping[str, float | None]
) -> dict[str, float]:
    slips = {f"that is {other}'s": value for other, value in right.items() if other != name and value is not None}
    tokens = [t for t in log if t.token_times]
    with_failed = [
        Timeline(arrival=t.arrival, sent=t.sent, token_times=t.token_times, finish_reason=FinishReason.LENGTH)
        for t in tokens
    ]
    failed = _right_dialects(with_failed)[name] if len(tokens) > len(good) else None
    if failed is not None:
        slips["what failed requests got is in it"] = failed
    late = _right_dialects(
        [Timeline(arrival=t.arrival, token_times=t.token_times, finish_reason=t.finish_reason) for t in good]
    )[name]
    if late is not None and name != "vLLM":
        slips["from the schedule; these tools count from the send"] = late
    several = [t for t in good if t.output_tokens > 1]
    if name == "vLLM" and several:
        gaps = [t.token_times[-1] - t.token_times[0] for t in several]
        ends = [(t.finished or 0.0) - t.token_times[0] for t in several]
        counts = [t.output_tokens for t in several]
        slips |= {
            "divided by n; n tokens have n − 1 gaps": sum(g / n for g, n in zip(gaps, counts, strict=True)) / len(gaps),
            "all gaps in one pool; it is a mean of one value a request": sum(gaps) / sum(n - 1 for n in counts),
            "up to the end of the stream": sum(e / (n - 1) for e, n in zip(ends, counts, strict=True)) / len(gaps),
            "a request of one token counts as 0": sum(g / (n - 1) for g, n in zip(gaps, counts, strict=True))
            / len(good),
            "divided by chunks": float(
                np.mean([(b - a) / max(len(chunks(t)) - 1, 1) for t, (a, b) in
                         ((t, (t.token_times[0], t.token_times[-1])) for t in several)])
            ),
        }  # fmt: skip
    if name == "guidellm" and good:
        values = [(t.token_times[-1] - _sent(t)) / t.output_tokens for t in good]
        slips["every request weighs the same; they weigh as many as their tokens"] = sum(values) / len(values)
    if name == "llmperf" and good:
        values = [(t.token_times[-1] - _sent(t)) / t.output_tokens for t in good]
        slips["divided by tokens; it counts chunks"] = sum(values) / len(values)
    return slips


# ------------------------------------------------------------------ task 5: how many for a p99


@cache
def _cumulated(n: int, share: float) -> tuple[float, ...]:
    k = np.arange(1, n + 1, dtype=float)
    steps = np.log((n - k + 1) / k) + (math.log(share) - math.log1p(-share))
    log = n * math.log1p(-share) + np.concatenate([[0.0], np.cumsum(steps)])
    return tuple(np.minimum(np.cumsum(np.exp(log)), 1.0).tolist())


def at_most(k: int, n: int, share: float) -> float:
    """The probability that at most k of n independent values lie below the percentile that a `share` lies below."""
    if k < 0:
        return 0.0
    return 1.0 if k >= n else _cumulated(int(n), float(share))[int(k)]


def ranks(n: int, q: float, confidence: float = 0.95) -> tuple[int, int] | None:
    """Between which two of n values in order (1: smallest) the q-th percentile lies; None where n is too small."""
    tail, share = (1 - confidence) / 2, q / 100
    low = max((r for r in range(n + 1) if at_most(r - 1, n, share) <= tail * (1 + 1e-12)), default=0)
    high = next((r for r in range(1, n + 1) if at_most(r - 1, n, share) >= (1 - tail) * (1 - 1e-15)), n + 1)
    return (low, high) if low >= 1 and high <= n else None


def needed(q: float, confidence: float = 0.95) -> int:
    """The fewest values that give the q-th percentile an interval."""
    share = max(q / 100, 1 - q / 100)
    return math.ceil(math.log((1 - confidence) / 2) / math.log(share) - 1e-12)


_right_ranks, _right_needed = ranks, needed


def check_ranks(ranks: Callable[..., Any], n: int, q: float, confidence: float = 0.95) -> None:
    """The two ranks between which a percentile lies, or None.

    Raises:
        AssertionError: naming the ranks, those wanted, and why.
    """
    got, right = ranks(n, q, confidence), _right_ranks(n, q, confidence)
    where = f"p{q:g} of {n:,} values at {confidence:.0%}"
    if right is None:
        assert got is None, f"{where}: there are too few for an interval, so it is None; got {shown(got)}"
        return
    assert got is not None, f"{where}: there are enough for an interval, from rank {right[0]} to {right[1]}; got None"
    pair = as_pair(got, "ranks() must return (low, high) or None")
    low, high = (number(value, "a rank") for value in pair)
    tail, share = (1 - confidence) / 2, q / 100
    for name, value, wanted in (("low", low, right[0]), ("high", high, right[1])):
        if value == wanted:
            continue
        why = ""
        if value == wanted - 1:
            why = "; ranks count from 1"
        elif name == "low" and value == wanted + 1:
            why = "; one rank too far up: the risk on this side is more than half"
        if confidence > 0.5 and (low, high) == _right_ranks(n, q, 2 * confidence - 1):
            why = "; the whole risk was given to each side, and each may have half"
        raise AssertionError(
            f"{where}: {name} is {value:g}, it should be {wanted}{why} (tail {tail:g}, share {share:g})"
        )


def check_needed(needed: Callable[..., Any], q: float, confidence: float = 0.95) -> None:
    """The fewest values for an interval.

    Raises:
        AssertionError: naming the number, the one wanted, and the slip that gives it.
    """
    got, right = number(needed(q, confidence), "what needed() returns"), _right_needed(q, confidence)
    share = max(q, 100 - q) / 100
    one_sided = math.ceil(math.log(1 - confidence) / math.log(share) - 1e-12)
    slips = {
        "enough for an upper limit only": float(one_sided),
        "rounded down": float(right - 1),
        "one value beyond the percentile, on average": 1 / (1 - q / 100),
    }
    assert got == right, f"p{q:g} at {confidence:.0%} needs {right} values, got {got:g}{named(got, slips)}"


# ------------------------------------------------------------------ pictures


def draw_lateness(
    yours: Sequence[float], slept: Sequence[float], *, name: str = "lateness", caption: str = ""
) -> figures.Picture:
    """How late each request goes out, in s: by the student's generator, and by one that sleeps each gap."""
    order = list(range(len(yours)))
    fig, ax = figures.axes(xlabel="request", ylabel="sent late by", yunit="ms")
    ax.plot(order, [1e3 * s for s in slept], **figures.look("quiet", marker="", variant=1), label="sleeping each gap")
    ax.plot(
        order, [1e3 * s for s in yours], **figures.look("simulation", marker="", linestyle="-"), label="your generator"
    )
    ax.set_ylim(bottom=-0.05 * 1e3 * max([*slept, 1e-3]))
    ax.legend()
    alt = (
        f"How late each of {len(order):,} requests goes out: by your generator at most {1e3 * max(yours):.3g} ms; "
        f"sleeping each gap it grows to {1e3 * slept[-1]:.4g} ms."
    )
    every = range(0, len(order), max(1, len(order) // 100))
    data = {
        "request": [order[i] for i in every],
        "yours (ms)": [round(1e3 * yours[i], 3) for i in every],
        "sleeping each gap (ms)": [round(1e3 * slept[i], 3) for i in every],
    }
    return figures.show(fig, alt=alt, caption=caption, name=name, data=data)


def draw_latencies(
    schedule: Sequence[float],
    from_schedule: Sequence[float],
    from_send: Sequence[float],
    *,
    kind: str = "simulation",
    name: str = "latencies",
    caption: str = "",
) -> figures.Picture:
    """Both latencies of each request against the instant at which it was due."""
    fig, ax = figures.axes(xlabel="due at", xunit="s", ylabel="latency", yunit="s")
    ax.plot(schedule, from_schedule, **figures.look(kind, marker="", linestyle="-"), label="from the schedule")
    ax.plot(schedule, from_send, **figures.look("quiet", marker=".", linestyle="none"), label="from the send")
    ax.set_ylim(bottom=0)
    ax.legend()
    p99 = [float(np.percentile(values, 99)) for values in (from_schedule, from_send)]
    alt = (
        f"Latency of {len(schedule):,} requests against the instant at which each was due, with up to "
        f"{max(from_schedule):.3g} s from the schedule and up to {max(from_send):.3g} s from the send; "
        f"p99 {p99[0]:.3g} s and {p99[1]:.3g} s."
    )
    every = range(0, len(schedule), max(1, len(schedule) // 120))
    data = {
        "due (s)": [round(schedule[i], 3) for i in every],
        "from schedule (s)": [round(from_schedule[i], 4) for i in every],
        "from send (s)": [round(from_send[i], 4) for i in every],
    }
    return figures.show(fig, alt=alt, caption=caption, name=name, data=data)


def draw_dispersion(
    windows: Sequence[float], rows: Mapping[str, Sequence[float]], *, name: str = "dispersion", caption: str = ""
) -> figures.Picture:
    """The index of dispersion against the window, for traces by name; 1 is Poisson."""
    fig, ax = figures.axes(xlabel="window", xunit="s", ylabel="index of dispersion", xlog=True)
    looks = ("measurement", "simulation", "quiet")
    for place, (words, values) in enumerate(rows.items()):
        ax.plot(windows, values, **figures.look(looks[place % 3], linestyle=("-", ":", "--")[place % 3]), label=words)
    ax.axhline(1.0, **figures.look("prediction", marker=""), label="Poisson: 1 in every window")
    ax.set_ylim(bottom=0)
    ax.legend()
    alt = "The index of dispersion against the window: " + "; ".join(
        f"{words} {values[0]:.2f} in windows of {windows[0]:g} s and {values[-1]:.2f} in windows of {windows[-1]:g} s"
        for words, values in rows.items()
    )
    data = {"window (s)": list(windows)} | {
        words: [round(float(value), 3) for value in values] for words, values in rows.items()
    }
    return figures.show(fig, alt=alt + ".", caption=caption, name=name, data=data)
