"""Lab 2, "Little's law and the queue": what its tasks start from, and checks that say what is wrong with a value.

    simulate, Stays          a queue's run as a log of events, and as three instants a customer
    poisson, works           arrivals and service times, the same for the same seed on every machine
    batch_interval, pk_wait  earlier answers, for the tasks that start from one
    largest_rate             the largest rate that keeps a condition
    Server, your_server      a server and a promise that a student's own number draws
    drawn_*                  inputs for checks that must not be known beforehand
    check_*                  raise AssertionError with the wrong value, what it is instead, and what was wanted
    draw_*                   the pictures of the lab

Times are in s, or in mean service times where a task says so.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from underload import figures
from underload.labs.answers import as_list, as_pair, listed, named, near, number, shown
from underload.labs.answers import check_guess as check_guess
from underload.labs.pace import rate_for as rate_for
from underload.queueing import mg1

Event = tuple[float, str, int]
Array = NDArray[np.float64]
KINDS = ("arrive", "start", "finish")


class Law(Protocol):
    """The law of a service time, such as those of `underload.queueing`."""

    def draw(self, rng: Generator, n: int) -> Array:
        """n independent times in s."""
        ...


# ------------------------------------------------------------------ a queue


def simulate(arrivals: Sequence[float], services: Sequence[float], servers: int = 1) -> list[Event]:
    """Serve customers first come, first served: (instant, "arrive" | "start" | "finish", customer) in order.

    At one instant a finish comes before an arrival, and equal events go by the customers' numbers. A start stands right
    behind the event that makes it possible. Instants and service times in s.
    """
    log: list[Event] = []
    line: deque[int] = deque()
    idle = servers
    events = [(instant, KINDS.index("arrive") + 1, customer) for customer, instant in enumerate(arrivals)]
    heapify(events)
    while events:
        now, comes, customer = heappop(events)
        if comes:
            log.append((now, "arrive", customer))
            line.append(customer)
        else:
            log.append((now, "finish", customer))
            idle += 1
        if line and idle:
            idle -= 1
            began = line.popleft()
            log.append((now, "start", began))
            heappush(events, (now + services[began], 0, began))
    return log


_right_log = simulate  # for the checks, in which `simulate` is the student's


@dataclass(frozen=True)
class Stays:
    """What a log says of each customer, in order of arrival: three instants in s."""

    arrivals: Array
    starts: Array
    finishes: Array

    @classmethod
    def of(cls, log: Sequence[Event]) -> Stays:
        """Read a log in which every customer has all three events."""
        found = {kind: np.full(len(log) // 3, np.nan) for kind in KINDS}
        for instant, what, customer in log:
            found[what][customer] = instant
        return cls(found["arrive"], found["start"], found["finish"])

    @property
    def waits(self) -> Array:
        """From arrival to start."""
        return self.starts - self.arrivals

    @property
    def sojourns(self) -> Array:
        """From arrival to finish."""
        return self.finishes - self.arrivals


def poisson(rate: float, customers: int, seed: int) -> list[float]:
    """The first instants of a Poisson process of `rate` arrivals a second, in s."""
    gaps = np.random.default_rng([seed, 1]).exponential(1 / rate, customers)
    return [float(instant) for instant in np.cumsum(gaps)]


def works(law: Law, customers: int, seed: int) -> list[float]:
    """A service time in s for each customer, from a stream of its own: another rate meets the same work."""
    return [float(seconds) for seconds in law.draw(np.random.default_rng([seed, 2]), customers)]


def batch_interval(values: Sequence[float], batches: int, t: float) -> tuple[float, float]:
    """Mean and half width of its interval by batch means; `t` is Student's factor for batches - 1.

    Values that do not fill the batches are left out at the beginning.
    """
    means = np.asarray(values, dtype=float)[len(values) % batches :].reshape(batches, -1).mean(axis=1)
    return float(means.mean()), t * float(means.std(ddof=1)) / math.sqrt(batches)


def pk_wait(arrival_rate: float, services: Sequence[float]) -> float:
    """Mean wait in s of the M/G/1 whose service takes each of `services` (s) equally often, by Pollaczek-Khinchine."""
    seconds = np.asarray(services, dtype=float)
    mean = float(seconds.mean())
    return mg1(arrival_rate, mean_service=mean, scv=float((seconds**2).mean()) / mean**2 - 1).mean_wait


def largest_rate(holds: Callable[[float], Any], service_rate: float) -> float:
    """The largest arrival rate below `service_rate` for which holds(rate) is true, given that it is so below it only.

    Halves the interval fifty times. 0 where it holds nowhere.
    """
    low, high = 0.0, service_rate
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def book() -> dict[str, Any]:
    """What the book's machine gave in the last task: `seconds`, `machine`, `date`."""
    found: dict[str, Any] = json.loads(Path(__file__).with_name("littles_law.json").read_text(encoding="utf-8"))
    return found


# ------------------------------------------------------------------ task 1: a queue in a page

Simulate = Callable[..., Any]


def drawn_queue(draw: Generator, servers: int, customers: int = 40) -> dict[str, Any]:
    """A queue without ties in which some wait, some do not, and short services stand behind long ones."""
    while True:
        arrivals = np.cumsum(draw.exponential(1.0, customers))
        services = draw.exponential(0.85 * servers, customers)
        waited = Stays.of(simulate(arrivals.tolist(), services.tolist(), servers)).waits > 1e-6
        if 0.3 < waited.mean() < 0.9 and not waited[-1]:
            return {"arrivals": arrivals.tolist(), "services": services.tolist(), "servers": servers}


def drawn_ties(draw: Generator, customers: int = 12) -> dict[str, Any]:
    """One server, at most one waiting, and an arrival at nearly every finish. All in quarters of a second, which are
    exact in floating point."""
    services = (draw.integers(4, 20, customers) / 4).tolist()
    arrivals = [0.0, 0.5]
    finish = services[0]  # of the customer before the latest
    for customer in range(2, customers):
        arrivals.append(finish)  # while the one before starts
        finish += services[customer - 1]
    return {"arrivals": arrivals, "services": services, "servers": 1}


def _log(simulate: Simulate, arrivals: Sequence[float], services: Sequence[float], servers: int) -> list[Event]:
    """The log that `simulate` gives, whatever kind of numbers and rows it is made of."""
    returned = simulate(list(arrivals), list(services), servers)
    log = []
    for entry in as_list(returned, "simulate() must return a list of events"):
        row = as_list(entry, "an event must be (instant, what, customer)")
        assert len(row) == 3, f"an event must be (instant, what, customer), got {shown(entry)}"
        what = str(row[1]).strip().lower()
        assert what in KINDS, f"what happens must be 'arrive', 'start' or 'finish', got {shown(row[1])}"
        customer = number(row[2], "a customer's number")
        instant = number(row[0], f"the instant of {what!r} of customer {customer:g}")
        log.append((instant, what, int(customer)))
    return log


def check_instants(
    simulate: Simulate, arrivals: Sequence[float], services: Sequence[float], servers: int = 1, *, told: bool = True
) -> None:
    """When each customer arrives, starts and finishes; the order of the log does not matter here.

    Args:
        told: name all inputs in the message, which is for short ones.

    Raises:
        AssertionError: naming the customer, its instant, the one wanted, and why.
    """
    log = _log(simulate, arrivals, services, servers)
    right = {(what, customer): instant for instant, what, customer in _right_log(arrivals, services, servers)}
    of = f"{servers} server{'s' if servers > 1 else ''}"
    where = f" (arrivals {listed(arrivals)}, services {listed(services)}, {of})" if told else f" ({of})"
    found: dict[tuple[str, int], float] = {}
    for instant, what, customer in log:
        assert (what, customer) in right, f"there is no customer {customer}; they are numbered from 0{where}"
        assert (what, customer) not in found, f"customer {customer} has two events {what!r}; each has one{where}"
        found[what, customer] = instant
    for (what, customer), wanted in right.items():
        assert (what, customer) in found, (
            f"customer {customer} has no event {what!r}: everybody arrives, starts and finishes{where}"
        )
        got = found[what, customer]
        if near(got, wanted):
            continue
        why = ""
        if what == "start":
            starts = {j: found.get(("start", j), math.nan) for j in range(len(arrivals))}
            earlier = next((j for j, start in starts.items() if j < customer and start > got + 1e-9), None)
            later = next((j for j, start in starts.items() if j > customer and start < got - 1e-9), None)
            if earlier is not None:
                why = f": customer {earlier} came before it and starts later, at {starts[earlier]:.4g} s"
            elif later is not None and got > wanted:
                why = f": customer {later} came after it and starts earlier, at {starts[later]:.4g} s"
            elif got > wanted:
                why = ": a server is free for it then, and no server stays idle while somebody waits"
            elif got < arrivals[customer]:
                why = f": it arrives only at {arrivals[customer]:.4g} s"
            else:
                why = ": until then all servers are busy or somebody before it waits"
        elif what == "finish":
            why = f": it starts at {right['start', customer]:.4g} s and its service takes {services[customer]:.4g} s"
        verb = {"arrive": "arrives", "start": "starts", "finish": "finishes"}[what]
        raise AssertionError(f"customer {customer} {verb} at {got:.4g} s; it should be {wanted:.4g} s{why}{where}")


def check_order(simulate: Simulate, arrivals: Sequence[float], services: Sequence[float], servers: int = 1) -> None:
    """The order of the log; instants are not looked at.

    Raises:
        AssertionError: naming the first event out of place, the one that belongs there, and the rule.
    """
    got = [(what, customer) for _, what, customer in _log(simulate, arrivals, services, servers)]
    right = _right_log(arrivals, services, servers)
    where = f" (arrivals {listed(arrivals)}, services {listed(services)})"
    for place, (instant, what, customer) in enumerate(right):
        at = f"at {instant:.4g} s: {what!r} of customer {customer}"
        assert place < len(got), f"the log ends after {place} events; next comes, {at}{where}"
        if got[place] == (what, customer):
            continue
        other = got[place]
        why = ""
        if what == "finish" and other[0] == "arrive":
            why = "; at one instant a finish comes before an arrival"
        elif what == "start":
            why = "; a start stands right behind the arrival or finish that makes it possible"
        elif other[0] == what:
            why = "; equal events of one instant keep the order of the customers"
        raise AssertionError(
            f"event {place} of the log is {other[0]!r} of customer {other[1]}; it should be, {at}{why}{where}"
        )
    assert len(got) == len(right), f"the log has {len(got)} events; {len(arrivals)} customers make {len(right)}{where}"


# ------------------------------------------------------------------ task 2: Little's law

Little = Callable[[Sequence[float], Sequence[float], float, float], Mapping[str, Any]]


def drawn_window(draw: Generator, customers: int = 24) -> dict[str, Any]:
    """Stays and a window with somebody inside at either end, and one who is there from before it to after it."""
    begin, end = float(draw.uniform(30, 45)), float(draw.uniform(70, 85))
    arrivals = draw.uniform(0, 100, customers)
    finishes = arrivals + draw.exponential(8.0, customers) + 1.0
    special = [
        (begin - draw.uniform(5, 10), end + draw.uniform(5, 10)),  # from before to after
        (begin - draw.uniform(5, 10), begin + draw.uniform(5, 10)),  # from before, leaves in the window
        (end - draw.uniform(5, 10), end + draw.uniform(5, 10)),  # comes in the window, stays on
        (begin + draw.uniform(1, 5), end - draw.uniform(1, 5)),  # in the window altogether
    ]
    stays = sorted(
        [*zip(arrivals.tolist(), finishes.tolist(), strict=True), *((float(a), float(b)) for a, b in special)]
    )
    return {"arrivals": [a for a, _ in stays], "finishes": [b for _, b in stays], "begin": begin, "end": end}


def check_little(
    little: Little, arrivals: Sequence[float], finishes: Sequence[float], begin: float, end: float, *names: str
) -> None:
    """Compare the named entries of what `little` says about a window.

    Raises:
        AssertionError: naming the entry, its value, what was wanted, and the slip that gives that value.
    """
    window = f"the window from {begin:.4g} to {end:.4g} s"
    try:
        got = little(list(arrivals), list(finishes), begin, end)
    except ZeroDivisionError:
        if any(begin <= instant < end for instant in arrivals):
            raise
        raise AssertionError(f"in {window} nobody comes, and little() divides by 0; W is None there") from None
    assert isinstance(got, Mapping), f"little() must return a dictionary, got {shown(got)}"
    a, f = np.asarray(arrivals, dtype=float), np.asarray(finishes, dtype=float)
    came, there = (a >= begin) & (a < end), (a < begin) & (f > begin)
    whole, parts = f - a, np.maximum(np.minimum(f, end) - np.maximum(a, begin), 0.0)
    count, length = int(came.sum()), end - begin
    right = {
        "L": float(parts.sum()) / length,
        "rate": count / length,
        "W": float(whole[came].mean()) if count else None,
        "before": float(parts[a < begin].sum()),
        "after": float(np.maximum(f[came] - end, 0.0).sum()),
    }
    slips: dict[str, dict[str, float]] = {
        "L": {
            "whole stays of those who came, over the window's length: the ends are wrong": float(whole[came].sum())
            / length,
            "without those who were inside when the window began": float(parts[came].sum()) / length,
            "customer-seconds; divide by the window's length": float(parts.sum()),
        },
        "rate": {
            "those who were already there are counted too": (count + int(there.sum())) / length,
            "a number of customers; divide by the window's length": float(count),
            "all customers there are, over the window's length": len(a) / length,
        },
        "W": {
            "stays cut off at the end of the window": float(parts[came].mean()) if count else math.nan,
            "the mean over everybody who was there": float(parts[parts > 0].mean()) if (parts > 0).any() else math.nan,
            "the mean whole stay of all customers there are": float(whole.mean()),
        },
        "before": {
            "their whole stays; count only what lies in the window": float(whole[there].sum()),
            "up to their finish, also where that is after the window": float((f[there] - begin).sum()),
            "what they spent before the window": float((begin - a[there]).sum()),
        },
        "after": {
            "of everybody who stays on; of those who came before, nothing is counted in λW": float(
                np.maximum(f[(came | there) & (f > end)] - end, 0.0).sum()
            ),
            "whole stays of those who stay on": float(whole[came & (f > end)].sum()),
        },
    }
    for name in names:
        assert name in got, f"{name!r} is missing; the keys are {shown(list(got))}"
        wanted = right[name]
        if wanted is None:
            assert got[name] is None, (
                f"in {window} nobody comes, so W is None: there is no such mean; got {shown(got[name])}"
            )
            continue
        value = number(got[name], name)
        unit = {"L": "", "rate": "/s", "W": " s"}.get(name, " customer-seconds")
        assert near(value, wanted), (
            f"{name} is {value:.5g}{unit}{named(value, slips[name])}; in {window} it is {wanted:.5g}{unit} "
            f"(arrivals {listed(arrivals)}, finishes {listed(finishes)})"
        )


# ------------------------------------------------------------------ task 3: the start of a run, and an interval


def check_cut(
    after_warmup: Callable[..., Any], arrivals: Sequence[float], waits: Sequence[float], warmup: float
) -> None:
    """The waits of those who arrived at `warmup` or later, in their order.

    Raises:
        AssertionError: naming how many are left, how many should be, or the first that is wrong.
    """
    got = as_list(after_warmup(list(arrivals), list(waits), warmup), "after_warmup() must return a list of waits")
    pairs = list(zip(arrivals, waits, strict=True))
    right = [wait for instant, wait in pairs if instant >= warmup]
    slips = {
        "cut by the start of service; who waited long would stay, though it came early": [
            wait for instant, wait in pairs if instant + wait >= warmup
        ],
        "so many customers were cut; the warm-up is in seconds": list(waits)[int(warmup) :],
        "nobody was left out": list(waits),
        "who arrives at that very instant stays": [wait for instant, wait in pairs if instant > warmup],
    }
    where = f"arrivals {listed(arrivals)} s, waits {listed(waits)} s, a warm-up of {warmup:.4g} s"
    instead = next((f" ({words})" for words, slip in slips.items() if slip != right and _same(got, slip)), "")
    assert len(got) == len(right), (
        f"{len(got)} of {len(waits)} waits are left{instead}; it should be {len(right)}: {where}"
    )
    for place, (value, wanted) in enumerate(zip(got, right, strict=True)):
        found = number(value, f"wait {place} of those left")
        assert near(found, wanted), f"wait {place} of those left is {found:.4g} s; it should be {wanted:.4g} s: {where}"


def _same(got: Sequence[Any], wanted: Sequence[float]) -> bool:
    try:
        return len(got) == len(wanted) and all(near(float(a), b) for a, b in zip(got, wanted, strict=True))
    except (TypeError, ValueError):
        return False


Interval = Callable[[Sequence[float], int, float], Any]
_INTERVAL_IS = "batch_interval() must return (mean, half_width)"


def check_batch_mean(batch_interval: Interval, values: Sequence[float], batches: int, t: float = 2.0) -> None:
    """The mean of a run in equal batches; values that fill no batch are left out at the beginning.

    Raises:
        AssertionError: naming the mean, the one wanted, and the slip that gives it.
    """
    got = number(as_pair(batch_interval(list(values), batches, t), _INTERVAL_IS)[0], "the mean")
    spare = len(values) % batches
    kept = np.asarray(values[spare:], dtype=float)
    slips = {
        "of all values": float(np.mean(values)),
        "the last ones are left out instead of the first": float(np.mean(values[: len(values) - spare])),
        "the sum": float(kept.sum()),
    }
    assert near(got, float(kept.mean())), (
        f"the mean is {got:.5g}{named(got, slips)}; it should be {kept.mean():.5g}: "
        f"{len(values)} values in {batches} batches leave out the first {spare}"
    )


def check_half_width(batch_interval: Interval, values: Sequence[float], batches: int, t: float = 2.0) -> None:
    """Half the width of the interval around the mean of a run whose length is a multiple of `batches`.

    Raises:
        AssertionError: naming the half width, the one wanted, and the slip that gives it.
    """
    got = number(as_pair(batch_interval(list(values), batches, t), _INTERVAL_IS)[1], "the half width")
    every = np.asarray(values, dtype=float)
    cut = every.reshape(batches, -1)
    means, n = cut.mean(axis=1), len(every)
    right = t * float(means.std(ddof=1)) / math.sqrt(batches)
    slips = {
        "t·s/√n of all values, as if they did not depend on each other": t * float(every.std(ddof=1)) / math.sqrt(n),
        "t·s/√n of all values, as if they did not depend on each other, with n in s": t
        * float(every.std())
        / math.sqrt(n),
        "s with k in its denominator; it is k − 1": t * float(means.std()) / math.sqrt(batches),
        "not divided by √k": t * float(means.std(ddof=1)),
        "divided by √n; there are k batch means": t * float(means.std(ddof=1)) / math.sqrt(n),
        "the whole width": 2 * right,
        "s/√k without the factor t": right / t,
        "1.96 instead of t": 1.96 * right / t,
        "every k-th value in a batch; neighbours belong together": t
        * float(every.reshape(-1, batches).mean(axis=0).std(ddof=1))
        / math.sqrt(batches),
    }
    assert near(got, right), (
        f"the half width is {got:.5g}{named(got, slips)}; it should be {right:.5g}: "
        f"{n} values in {batches} batches, t = {t:g}"
    )


def drawn_waits(draw: Generator, batches: int, spare: int = 0) -> list[float]:
    """Waits of a busy queue, which depend on each other: so many batches and `spare` more, the first ones far off."""
    customers = batches * int(draw.integers(8, 30))
    arrivals = np.cumsum(draw.exponential(1.0, customers)).tolist()
    waits = Stays.of(_right_log(arrivals, draw.exponential(0.9, customers).tolist(), 1)).waits
    return [float(wait) for wait in [*draw.uniform(20, 40, spare), *waits]]


# ------------------------------------------------------------------ task 4: Pollaczek and Khinchine

Wait = Callable[[float, Sequence[float]], Any]


def check_pk(pk_wait: Wait, arrival_rate: float, services: Sequence[float]) -> None:
    """The mean wait below full load.

    Raises:
        AssertionError: naming the wait, the one wanted, and the slip that gives it.
    """
    times = np.asarray(services, dtype=float)
    mean, square = float(times.mean()), float((times**2).mean())
    load = arrival_rate * mean
    right = arrival_rate * square / (2 * (1 - load))
    got = number(pk_wait(arrival_rate, list(services)), "what pk_wait() returns, in s,", infinite=True)
    slips = {
        "with the square of the mean for the mean of the squares: every service the same": load
        * mean
        / (2 * (1 - load)),
        "the exponential's: pk_wait is given the service times themselves": load * mean / (1 - load),
        "with the variance for the mean of the squares": arrival_rate * (square - mean**2) / (2 * (1 - load)),
        "without the 2 in the denominator": 2 * right,
        "without 1 − ρ in the denominator": arrival_rate * square / 2,
        "the time in system: the service is added": right + mean,
        "the number waiting, λ times the wait": arrival_rate * right,
        "the mean of squares over n − 1": right * len(times) / max(len(times) - 1, 1),
    }
    assert near(got, right), (
        f"at {arrival_rate:.4g} arrivals a second and services {listed(services)} s pk_wait() is {got:.5g} s"
        f"{named(got, slips)}; it should be {right:.5g} s (mean {mean:.4g} s, load {load:.3g})"
    )


def check_overload(pk_wait: Wait, arrival_rate: float, services: Sequence[float]) -> None:
    """At load 1 and above the wait grows without end.

    Raises:
        AssertionError: naming the load and the wait.
    """
    load = arrival_rate * float(np.mean(services))
    try:
        got = number(pk_wait(arrival_rate, list(services)), "what pk_wait() returns, in s,", infinite=True)
    except ZeroDivisionError:
        raise AssertionError(f"at load {load:.4g} pk_wait() divides by 0; it should return math.inf there") from None
    assert got == math.inf, (
        f"at load {load:.4g} pk_wait() is {got:.5g} s; the queue grows without end there, so it should be math.inf"
    )


# ------------------------------------------------------------------ task 5: a percentile


def _sojourn(arrival_rate: float, service_rate: float, q: float) -> float:
    return -math.log(1 - q / 100) / (service_rate - arrival_rate)


def _rule(arrival_rate: float, service_rate: float, q: float) -> float:
    load = arrival_rate / service_rate
    wait = math.log(load / (1 - q / 100)) / (service_rate - arrival_rate) if load > 1 - q / 100 else 0.0
    return 1 / service_rate + wait


Percentile = Callable[[float, float, float], Any]


def check_sojourn(sojourn_percentile: Percentile, arrival_rate: float, service_rate: float, q: float) -> None:
    """The q-th percentile of the time in system of an M/M/1.

    Raises:
        AssertionError: naming the percentile, the one wanted, and the slip that gives it.
    """
    got = number(sojourn_percentile(arrival_rate, service_rate, q), "what sojourn_percentile() returns, in s,")
    right, share = _sojourn(arrival_rate, service_rate, q), q / 100
    slips = {
        "mean service + percentile of the wait, the rule that is wrong": _rule(arrival_rate, service_rate, q),
        "the wait's percentile": _rule(arrival_rate, service_rate, q) - 1 / service_rate,
        "a logarithm to the base of 10": right / math.log(10),
        "the time that a share of q exceeds": -math.log(share) / (service_rate - arrival_rate),
        "an empty server's: μ instead of μ − λ": right * (service_rate - arrival_rate) / service_rate,
        "the mean": 1 / (service_rate - arrival_rate),
        "a negative time; the logarithm of a share is negative": -right,
    }
    assert near(got, right), (
        f"p{q:g} of the time in system at λ = {arrival_rate:.4g}/s and μ = {service_rate:.4g}/s is {got:.5g} s"
        f"{named(got, slips)}; it should be {right:.5g} s"
    )


def check_rule(sum_rule: Percentile, arrival_rate: float, service_rate: float, q: float) -> None:
    """What the wrong rule says: the mean service time and the q-th percentile of the wait.

    Raises:
        AssertionError: naming the value, the one wanted, and the slip that gives it.
    """
    got = number(sum_rule(arrival_rate, service_rate, q), "what sum_rule() returns, in s,")
    right, load, left = _rule(arrival_rate, service_rate, q), arrival_rate / service_rate, 1 - q / 100
    service = 1 / service_rate
    slips = {
        "the right percentile of the time in system": _sojourn(arrival_rate, service_rate, q),
        "the wait alone: the mean service is missing": right - service,
        "as if everybody waited: P(W > t) is ρ e^(−(μ−λ)t)": service + _sojourn(arrival_rate, service_rate, q),
        "the percentile of the service, not its mean": right - service - math.log(left) / service_rate,
        "a wait below 0; so few wait that the percentile of the wait is 0": service
        + math.log(load / left) / (service_rate - arrival_rate),
    }
    assert near(got, right), (
        f"the rule for p{q:g} at λ = {arrival_rate:.4g}/s and μ = {service_rate:.4g}/s (load {load:.3g}) is {got:.5g} s"
        f"{named(got, slips)}; it should be {right:.5g} s: {service:.4g} s of service, {right - service:.4g} s of wait"
    )


@dataclass(frozen=True)
class Server:
    """A server with exponential service, and what its users were promised."""

    mean_service: float  # s
    promise: float  # s: 99 of 100 requests are answered within it

    @property
    def service_rate(self) -> float:
        """Requests a second that it serves when it is never idle."""
        return 1 / self.mean_service

    def __str__(self) -> str:
        return (
            f"your server: {self.mean_service * 1e3:.0f} ms of service on average; "
            f"promised: 99 of 100 requests within {self.promise * 1e3:.0f} ms"
        )


def your_server(seed: int) -> Server:
    """The server of task 5, drawn from a student's own number.

    None is easier than another: each promise is 5.2 to 6 mean services, so that it can be kept at a load between 0.11
    and 0.24, and the wrong rule would admit a third more at the least.
    """
    draw = np.random.default_rng([5, abs(int(seed))])
    mean = int(draw.integers(20, 200))  # ms
    return Server(mean / 1e3, round(mean * draw.uniform(5.22, 5.98)) / 1e3)


def _right_rates(server: Server) -> tuple[float, float]:
    mu = server.service_rate
    return mu - math.log(100) / server.promise, largest_rate(
        lambda rate: rate == 0 or _rule(rate, mu, 99) <= server.promise, mu
    )


def check_my_rate(my_rate: Any, server: Server) -> None:
    """The largest arrival rate that a student wrote down for the promise; 1 % too much or too little is right.

    Raises:
        NotImplementedError: nothing was written down yet.
        AssertionError: naming the p99 at that rate, and the promise.
    """
    if my_rate is None:
        raise NotImplementedError("my_rate is still None")
    got, (right, rule), mu = number(my_rate, "my_rate"), _right_rates(server), server.service_rate
    slips = {
        "that is what the wrong rule allows": rule,
        "a load; multiply by the service rate": right / mu,
        "in requests a ms": right / 1e3,
        "the promise as the mean, not as the p99": mu - 1 / server.promise,
    }
    p99 = f"{_sojourn(got, mu, 99) * 1e3:.0f} ms" if got < 0.9999 * mu else "without limit"
    assert near(got, right, 0.01), (
        f"my_rate is {got:.4g}/s{named(got, slips, 0.01)}; there p99 of the time in system is {p99}, "
        f"and the largest rate is the one at which it is {server.promise * 1e3:.0f} ms"
    )


def check_rule_rate(rule_rate: Any, server: Server) -> None:
    """The rate that the wrong rule would admit; 1 % too much or too little is right.

    Raises:
        NotImplementedError: nothing was written down yet.
        AssertionError: naming what the rule says at that rate, and the promise.
    """
    if rule_rate is None:
        raise NotImplementedError("rule_rate is still None")
    got, (right, rule), mu = number(rule_rate, "rule_rate"), _right_rates(server), server.service_rate
    slips = {
        "that is the right one; what would the rule admit?": right,
        "a load; multiply by the service rate": rule / mu,
    }
    says = f"{_rule(got, mu, 99) * 1e3:.0f} ms" if 0 < got < mu else "nothing"
    assert near(got, rule, 0.01), (
        f"rule_rate is {got:.4g}/s{named(got, slips, 0.01)}; there the rule says {says}, "
        f"and the largest rate it admits is the one at which it says {server.promise * 1e3:.0f} ms"
    )


# ------------------------------------------------------------------ task 6: a finite buffer

Admit = Callable[[Sequence[float], Sequence[float], int, int], Any]


def _admitted(
    arrivals: Sequence[float], services: Sequence[float], servers: int, room: int
) -> tuple[list[float | None], list[int]]:
    """The start of each customer, None for those turned away; and those that a finish at that very instant let in."""
    starts: list[float | None] = []
    finishes: list[float] = []
    just: list[int] = []
    for customer, (now, work) in enumerate(zip(arrivals, services, strict=True)):
        inside = [finish for finish in finishes if finish > now]
        if len(inside) >= servers + room:
            starts.append(None)
            continue
        if len([finish for finish in finishes if finish >= now]) >= servers + room:
            just.append(customer)
        # With n inside and c servers, it starts when all but c - 1 of them have left.
        start = now if len(inside) < servers else sorted(inside)[len(inside) - servers]
        starts.append(start)
        finishes.append(start + work)
    return starts, just


def _starts(admit: Admit, arrivals: Sequence[float], services: Sequence[float], servers: int, room: int) -> list[Any]:
    got = as_list(admit(list(arrivals), list(services), servers, room), "admit() must return a list of starts")
    assert len(got) == len(arrivals), f"admit() returned {len(got)} starts for {len(arrivals)} customers"
    return [None if start is None or (isinstance(start, float) and math.isnan(start)) else start for start in got]


def check_refused(admit: Admit, arrivals: Sequence[float], services: Sequence[float], servers: int, room: int) -> None:
    """Who is turned away; when the others start is not looked at.

    Raises:
        AssertionError: naming the customer and how many are inside when it comes.
    """
    got = _starts(admit, arrivals, services, servers, room)
    right, just = _admitted(arrivals, services, servers, room)
    where = (
        f" ({servers} server{'s' if servers > 1 else ''} and room for {room}; "
        f"arrivals {listed(arrivals)}, services {listed(services)})"
    )
    for customer, (mine, wanted) in enumerate(zip(got, right, strict=True)):
        if wanted is None and mine is not None:
            raise AssertionError(
                f"customer {customer}, who comes at {arrivals[customer]:.4g} s, is let in; all servers are busy then "
                f"and {room} wait, so there is no room{where}"
            )
        if wanted is not None and mine is None:
            why = "; somebody leaves at that very instant, and a finish comes first" if customer in just else ""
            raise AssertionError(
                f"customer {customer}, who comes at {arrivals[customer]:.4g} s, is turned away; "
                f"there is room{why}{where}"
            )


def check_admitted(admit: Admit, arrivals: Sequence[float], services: Sequence[float], servers: int, room: int) -> None:
    """When those let in start, with so much room that nobody is turned away.

    Raises:
        AssertionError: naming the customer, its start, and the one wanted.
    """
    got = _starts(admit, arrivals, services, servers, room)
    for customer, (mine, wanted) in enumerate(zip(got, _admitted(arrivals, services, servers, room)[0], strict=True)):
        assert wanted is not None, "the check is meant for a queue with room for all"
        assert mine is not None, f"customer {customer} is turned away; there is room for {room}, and it is never full"
        start = number(mine, f"the start of customer {customer}")
        assert near(start, wanted), f"customer {customer} starts at {start:.4g} s; it should be {wanted:.4g} s"


def drawn_full(draw: Generator, *, ties: bool) -> dict[str, Any]:
    """A queue with little room. Without `ties` no two instants are equal; with them, customers come at the instants
    at which somebody leaves a full station, and nobody is turned away unless arrivals are taken first."""
    if ties:
        queue = drawn_ties(draw)
        return queue | {"room": 1}
    while True:
        servers, room = int(draw.integers(2, 5)), int(draw.integers(0, 4))
        arrivals = np.cumsum(draw.exponential(1.0, 40)).tolist()
        services = draw.exponential(1.2 * servers, 40).tolist()
        refused = sum(start is None for start in _admitted(arrivals, services, servers, room)[0])
        if 4 <= refused <= 20:
            return {"arrivals": arrivals, "services": services, "servers": servers, "room": room}


# ------------------------------------------------------------------ pictures


def draw_inside(log: Sequence[Event], servers: int = 1, *, name: str = "inside", caption: str = "") -> figures.Picture:
    """The number inside over time, from a log of events; above the line of `servers`, customers wait."""
    times, counts = [0.0], [0]
    for instant, what, _ in log:
        if what != "start":
            times.append(instant)
            counts.append(counts[-1] + (1 if what == "arrive" else -1))
    fig, ax = figures.axes(xlabel="time", xunit="mean services", ylabel="customers inside")
    ax.step(times, counts, where="post", color=figures.COLORS["simulation"], label="inside")
    ax.axhline(servers, color=figures.COLORS["limit"], linestyle="--", label="servers: who is above waits")
    ax.set_ylim(0, 1.25 * max([*counts, servers]))  # room for the legend
    ax.legend()
    steps = np.diff(times)
    mean = float(steps @ np.asarray(counts[:-1])) / times[-1] if times[-1] else 0.0
    alt = (
        f"The number of customers inside, from 0 to {times[-1]:.0f} mean services: {max(counts)} at the most, "
        f"{mean:.1f} on average, with {servers} server{'s' if servers > 1 else ''}."
    )
    return figures.show(
        fig, alt=alt, caption=caption, name=name, data={"time": [round(t, 3) for t in times], "inside": counts}
    )


def draw_stays(
    arrivals: Sequence[float],
    finishes: Sequence[float],
    begin: float,
    end: float,
    *,
    name: str = "stays",
    caption: str = "",
) -> figures.Picture:
    """Each customer's stay as a strip from arrival to finish, and the window [begin, end)."""
    fig, ax = figures.axes(xlabel="time", xunit="s", ylabel="customer", height=2.6)
    whole = {"color": figures.COLORS["grid"], "edgecolor": figures.COLORS["quiet"], "linewidth": 0.8}
    for place, (a, f) in enumerate(zip(arrivals, finishes, strict=True)):
        inside = max(min(f, end) - max(a, begin), 0.0)
        ax.barh(place, f - a, left=a, height=0.6, **whole)
        ax.barh(place, inside, left=max(a, begin), height=0.6, color=figures.COLORS["latency"])
    for edge in (begin, end):
        ax.axvline(edge, color=figures.COLORS["limit"], linestyle="--")
    ax.set_yticks(range(len(arrivals)))
    ax.invert_yaxis()
    alt = (
        f"The stays of {len(arrivals)} customers as strips in time, and a window from {begin:g} to {end:g} s: "
        + "; ".join(
            f"customer {place} from {a:g} to {f:g} s"
            for place, (a, f) in enumerate(zip(arrivals, finishes, strict=True))
        )
    )
    data = {"customer": list(range(len(arrivals))), "arrives (s)": list(arrivals), "leaves (s)": list(finishes)}
    return figures.show(fig, alt=alt + ".", caption=caption, name=name, data=data)


def draw_start(means: Sequence[float], theory: float, *, name: str = "start", caption: str = "") -> figures.Picture:
    """The mean wait of the first, second, third customer … over many runs, in groups of 20, and where it ends."""
    group = 20
    grouped = [float(np.mean(means[i : i + group])) for i in range(0, len(means) - group + 1, group)]
    places = [i + group / 2 for i in range(0, len(means) - group + 1, group)]
    fig, ax = figures.axes(xlabel="customer, in order of arrival", ylabel="mean wait", yunit="mean services")
    ax.axhline(theory, **_line("prediction"), label="in the long run")
    ax.plot(places, grouped, **figures.look("simulation"), label="over all runs")
    ax.set_ylim(bottom=0)
    ax.legend()
    alt = (
        f"The mean wait by order of arrival climbs from {grouped[0]:.1f} mean services for the first {group} "
        f"customers to {grouped[-1]:.1f} for the last {group} of {len(means):,}; in the long run it is {theory:g}."
    )
    data = {"customer": places, "mean wait": [round(value, 3) for value in grouped]}
    return figures.show(fig, alt=alt, caption=caption, name=name, data=data)


def draw_laws(
    load: float, rows: Sequence[tuple[str, float, float, float]], *, name: str = "laws", caption: str = ""
) -> figures.Picture:
    """Mean wait at one load against the mean square of the service time (its mean is 1): formula and simulations.

    Args:
        rows: name of the law, mean square, simulated mean wait, half width of its interval.
    """
    squares = [0.0, 1.1 * max(square for _, square, _, _ in rows)]
    fig, ax = figures.axes(xlabel="mean of the squared service time", ylabel="mean wait", yunit="mean services")
    ax.plot(
        squares,
        [load * x / (2 * (1 - load)) for x in squares],
        **figures.look("prediction"),
        label="Pollaczek–Khinchine",
    )
    ax.errorbar(
        [square for _, square, _, _ in rows],
        [wait for _, _, wait, _ in rows],
        yerr=[half for _, _, _, half in rows],
        **figures.look("simulation", linestyle="none", capsize=4),
        label="simulated, with its interval",
    )
    for law, square, wait, _ in rows:
        left = square > 0.6 * squares[1]  # a name to the right of the last point would leave the picture
        ax.annotate(
            law,
            (square, wait),
            xytext=(-12, 2) if left else (8, -12),
            textcoords="offset points",
            ha="right" if left else "left",
        )
    ax.set_xlim(0, squares[1])
    ax.set_ylim(bottom=0)
    ax.legend()
    alt = (
        f"Mean wait at load {load:g} against the mean square of a service time of mean 1, a straight line; simulated: "
    )
    alt += "; ".join(f"{law} {wait:.2f} ± {half:.2f}" for law, _, wait, half in rows) + "."
    data = {
        "law": [row[0] for row in rows],
        "mean square": [round(row[1], 3) for row in rows],
        "formula": [round(load * row[1] / (2 * (1 - load)), 3) for row in rows],
        "simulated": [round(row[2], 3) for row in rows],
        "half width": [round(row[3], 3) for row in rows],
    }
    return figures.show(fig, alt=alt, caption=caption, name=name, data=data)


def draw_tails(
    loads: Sequence[float],
    right: Sequence[float],
    rule: Sequence[float],
    simulated: Mapping[float, float],
    *,
    name: str = "tails",
    caption: str = "",
) -> figures.Picture:
    """p99 of the time in system of an M/M/1 against load: formula, wrong rule and simulations, in mean services."""
    fig, ax = figures.axes(xlabel="load", ylabel="p99 of the time in system", yunit="mean services")
    ax.plot(loads, right, **figures.look("prediction"), label="4.605/(μ − λ)")
    ax.plot(loads, rule, **figures.look("quiet", variant=1), label="mean service + p99 of the wait")
    ax.plot(
        list(simulated), list(simulated.values()), **figures.look("simulation", linestyle="none"), label="simulated"
    )
    ax.set_ylim(bottom=0)
    ax.legend()
    first, last = loads[0], loads[-1]
    alt = (
        f"p99 of the time in system against load, in mean services: {right[0]:.1f} at load {first:g} and "
        f"{right[-1]:.1f} at {last:g}; the sum rule says {rule[0]:.1f} and {rule[-1]:.1f}. Simulated: "
        + "; ".join(f"{value:.1f} at load {load:g}" for load, value in simulated.items())
        + "."
    )
    data = {
        "load": list(loads),
        "formula": [round(value, 3) for value in right],
        "sum rule": [round(value, 3) for value in rule],
        "simulated": [round(simulated[load], 3) if load in simulated else None for load in loads],
    }
    return figures.show(fig, alt=alt, caption=caption, name=name, data=data)


def draw_waits(
    measured: Sequence[float], simulated: Sequence[float], *, name: str = "waits", caption: str = ""
) -> figures.Picture:
    """The wait of each request: by the clock, and by a simulator that was given the same arrivals and services."""
    order = list(range(len(measured)))
    fig, ax = figures.axes(xlabel="request, in order of arrival", ylabel="wait", yunit="ms")
    ax.plot(order, [1e3 * s for s in simulated], **figures.look("simulation", marker=""), label="simulated")
    ax.plot(order, [1e3 * s for s in measured], **figures.look("measurement", markersize=3), label="measured")
    ax.set_ylim(bottom=0)
    ax.legend()
    apart = max(abs(a - b) for a, b in zip(measured, simulated, strict=True))
    alt = (
        f"The waits of {len(measured)} requests, up to {1e3 * max(measured):.0f} ms by the clock and "
        f"{1e3 * max(simulated):.0f} ms simulated; the two are {1e3 * apart:.2f} ms apart at the most."
    )
    data = {
        "request": order,
        "measured (ms)": [round(1e3 * s, 3) for s in measured],
        "simulated (ms)": [round(1e3 * s, 3) for s in simulated],
    }
    return figures.show(fig, alt=alt, caption=caption, name=name, data=data)


def _line(name: str) -> dict[str, Any]:
    return figures.look(name, marker="")
