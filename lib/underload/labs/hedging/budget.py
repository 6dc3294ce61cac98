"""Task 3: copies within a budget, also on the day on which everything is slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.random import Generator

from underload.labs.hedging.policies import Budgeted, Second
from underload.labs.hedging.stage import (
    all_answered,
    by_hand,
    check_same,
    copies,
    delay_of,
    drawn_service,
    once,
    own_work,
    p99,
    serve,
    slow_together,
)
from underload.simulation import ClusterRun, Episodes

Made = Callable[[float, float, float], Any]  # a student's class, which takes delay, share and most


def with_second(run: ClusterRun) -> list[int]:
    """The calls that have two copies."""
    return [place for place, call in enumerate(copies(run)) if len(call) > 1]


def check_share(made: Made) -> None:
    """Every call is late, and every fourth has a token.

    Raises:
        AssertionError: naming the calls that have a second copy.
    """
    arrivals = [0.2 * place for place in range(10)]
    run = by_hand(made(0.020, 0.25, 1.0), (0.100, 0.100, 0.100), arrivals)
    _hedged(run, [0, 4, 8], "10 calls that all take 100 ms, a delay of 20 ms, a quarter of a token each, 1 at most")


def check_most(made: Made) -> None:
    """A long quiet time fills the bucket, and no further.

    Raises:
        AssertionError: naming the calls that have a second copy.
    """
    arrivals = [0.5 * place for place in range(12)] + [10.0 + 0.1 * place for place in range(6)]
    slow = Episodes((9.9,), (100.0,), 100.0)
    run = by_hand(made(0.020, 0.25, 2.0), (0.005,) * 14, arrivals, slowness=slow)
    words = (
        "12 quick calls, then 6 that are late because all replicas are slow; a quarter of a token each, 2 at most, all "
        "of them there at the start"
    )
    _hedged(run, [12, 13, 16], words)


def check_idle(made: Made) -> None:
    """Where nobody is idle there is no copy, and its token is there for a later call.

    Raises:
        AssertionError: naming the calls that have a second copy.
    """
    run = by_hand(made(0.020, 2.0**-10, 1.0), (0.100, 0.100), (0.0, 0.005, 0.5))
    words = "two replicas that take 100 ms, calls at 0, 5 and 500 ms, a delay of 20 ms, one token"
    _hedged(run, [2], words, "when the first call's delay ends, the other replica is busy with the second")


def check_down(made: Made) -> None:
    """A replica that is down has nobody inside, and is no place for a copy.

    Raises:
        AssertionError: naming the calls that have a second copy.
    """
    down = (None, None, (0.0, 9.0))
    run = by_hand(made(0.020, 2.0**-10, 1.0), (0.100, 0.100, 0.100), (0.001, 0.005, 0.5), down)
    words = (
        "three replicas that take 100 ms, the third of them down; calls at 1, 5 and 500 ms, a delay of 20 ms, one token"
    )
    _hedged(run, [2], words, "when the first call's delay ends, nobody who is up is idle")


def check_never_above(made: Made, draw: Generator) -> None:
    """Everything is slow at once: in no stretch of time more copies than the bucket and its calls allow.

    Raises:
        AssertionError: naming the stretch.
    """
    for factor in (8.0, 40.0):
        service = slow_together(drawn_service(draw, 0.1), factor)
        delay, share, most = delay_of(service, 0.05), float(draw.choice([0.03, 0.05, 0.08])), 4.0
        run = serve(made(delay, share, most), service)
        words = f"{service.calls} calls, all replicas slow by {factor:g} for a while; share {share:g}, most {most:g}"
        all_answered(run, words)
        over, begin, end = most_above(run, share)
        assert over <= most + 1e-6, (
            f"{words}: from {begin:.3f} to {end:.3f} s there are {over:.2f} more copies than "
            f"{share:g} for each call that came"
        )
        assert run.extra_load > 0, f"{words}: there is not a single second copy"


def most_above(run: ClusterRun, share: float) -> tuple[float, float, float]:
    """The stretch of time with most copies above `share` for every call that comes in it: how many, from, until (s)."""
    events = [(call.arrival, -share) for call in run.calls]
    events += [(attempt.sent, 1.0) for call in run.calls for attempt in call.attempts[1:]]
    worst, here, begin = (0.0, 0.0, 0.0), 0.0, 0.0
    for at, change in sorted(events):
        if here <= 0:
            here, begin = 0.0, at
        here += change
        if here > worst[0]:
            worst = here, begin, at
    return worst


def check_quiet(made: Made, draw: Generator) -> None:
    """A quiet service: within the budget nearly all is gained that a second copy for everybody late would.

    Raises:
        AssertionError: naming the p99 of both.
    """
    service = drawn_service(draw, 0.15)
    delay = delay_of(service, 0.05)
    got, free = serve(made(delay, 0.10, 5.0), service), serve(Second(delay), service)
    words = f"{service.calls} calls at a load of 0.15, a delay of {1e3 * delay:.4g} ms, a budget of 10 %"
    all_answered(got, words)
    assert p99(got) <= 1.3 * p99(free), (
        f"{words}: the p99 is {1e3 * p99(got):.4g} ms, and {1e3 * p99(free):.4g} ms without a budget; at most "
        "1.3 times that is asked for"
    )


def check_busy(made: Made, draw: Generator) -> None:
    """Near saturation copies that would wait are not sent: few are left, and the mean is hardly above one copy's.

    Not the p99: at such a load a few copies more move that of a thousand calls by a half, in one draw of twenty.

    Raises:
        AssertionError: naming the mean of both, and the copies.
    """
    service = own_work(draw, 0.9)
    delay = delay_of(service, 0.05)
    got, plain = serve(made(delay, 0.20, 5.0), service), once(service)
    words = (
        f"{service.calls} calls at a load of 0.9 that are long or short by themselves, a delay of {1e3 * delay:.4g} "
        "ms, a budget of 20 %"
    )
    all_answered(got, words)
    mine, one = (sum(run.latencies) / len(run.latencies) for run in (got, plain))
    assert mine <= 1.3 * one and got.extra_load <= 0.08, (
        f"{words}: a call takes {1e3 * mine:.4g} ms on average, and {1e3 * one:.4g} ms with one copy each; "
        f"{got.extra_load:.1%} of copies on top; at most 1.3 times the mean and 8 % of copies are asked for: hardly "
        "ever is a replica idle"
    )


def check_rules(made: Made, draw: Generator) -> None:
    """Drawn services: every call has the copies that the rules give it.

    Raises:
        AssertionError: naming the first that has others.
    """
    for load, share in ((0.3, 0.03), (0.7, 0.0625)):
        service = drawn_service(draw, load, calls=600)
        delay = delay_of(service, 0.06)
        got, right = (serve(one(delay, share, 3.0), service) for one in (made, Budgeted))
        words = f"{service.calls} calls at a load of {load:g}, a delay of {1e3 * delay:.4g} ms, share {share:g}, most 3"
        all_answered(got, words)
        check_same(got, right, words)


def _hedged(run: ClusterRun, wanted: list[int], words: str, why: str = "") -> None:
    all_answered(run, words)
    got = with_second(run)
    assert got == wanted, f"{words}: calls {got} have a second copy; wanted {wanted}{'; ' + why if why else ''}"
