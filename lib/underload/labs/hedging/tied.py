"""Task 4: two copies in two lines, and the first to start calls the other back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.random import Generator

from underload.labs.answers import near
from underload.labs.hedging.policies import TwoQueues
from underload.labs.hedging.stage import (
    all_answered,
    by_hand,
    check_copies,
    check_same,
    drawn_service,
    once,
    serve,
)
from underload.simulation import ClusterRun, Random

Made = Callable[[float], Any]  # a student's class, which takes the time of a message


def check_one_is_enough(made: Made) -> None:
    """The first copy starts at once, and there is no second.

    Raises:
        AssertionError: naming the copies.
    """
    run = by_hand(made(0.001), (0.050, 0.050))
    check_copies(
        run, [[(0.0, 0, "answered")]], "two idle replicas, a message takes 1 ms", "the first copy starts at once"
    )


def check_called_back(made: Made) -> None:
    """Both replicas are busy: the copy behind the shorter work starts, and the other leaves its line.

    Raises:
        AssertionError: naming the copies, or when the call after it is answered.
    """
    words = "calls at 0, 1, 2 and 5 ms; replica 0 takes 100 ms, replica 1 60 ms; a message takes 1 ms"
    run = by_hand(made(0.001), (0.100, 0.060), (0.0, 0.001, 0.002, 0.005))
    wanted = [
        [(0.0, 0, "answered")],
        [(0.0, 1, "answered")],
        [(0.0, 0, "cancelled"), (0.002, 1, "answered")],
        [(0.0, 0, "answered"), (0.002, 1, "cancelled")],
    ]
    check_copies(run, wanted, words, "a copy that has not started is called back by the one that has")
    left = run.calls[2].attempts[0].ended or 0.0
    assert near(left, 0.062), (
        f"{words}: the third call's copy at replica 0 leaves its line at {1e3 * left:.4g} ms; the other one starts at "
        "61 ms, and a message takes 1 ms"
    )
    started = run.calls[3].attempts[0].started or 0.0
    assert near(started, 0.100), (
        f"{words}: the last call starts at {1e3 * started:.4g} ms; at 100 ms replica 0 has finished, and nobody is in "
        "front of it any more"
    )


def check_both_start(made: Made) -> None:
    """Both copies start within the time of a message: one of them is answered, and not none.

    Raises:
        AssertionError: naming the copies.
    """
    words = (
        "calls at 0, 1 and 2 ms; replica 0 takes 60 ms, replica 1 59.5 ms, so that both copies of the last call start "
        "within half a message of 1 ms"
    )
    run = by_hand(made(0.001), (0.060, 0.0595), (0.0, 0.001, 0.002))
    all_answered(run, words)
    wanted = [[(0.0, 0, "answered")], [(0.0, 1, "answered")], [(0.0, 0, "answered"), (0.002, 1, "cancelled")]]
    check_copies(run, wanted, words, "who starts when another has started calls nobody back")


def check_lines(made: Made, draw: Generator) -> None:
    """Drawn services: every call has the copies that the rules give it.

    Raises:
        AssertionError: naming the first that has others.
    """
    for load in (0.5, 0.75):
        service = drawn_service(draw, load, calls=500, router=Random())
        message = 0.05 * service.law.mean
        got, right = (serve(one(message), service) for one in (made, TwoQueues))
        words = f"{service.calls} calls at a load of {load:g}, a message takes {1e3 * message:.3g} ms"
        all_answered(got, words)
        check_same(got, right, words)


def check_waits(made: Made, draw: Generator) -> None:
    """At a load of 0.6 the mean time in line falls to less than half of one line at random, for hardly any work.

    Raises:
        AssertionError: naming both, and the work for nothing.
    """
    service = drawn_service(draw, 0.6, router=Random())
    message = 0.02 * service.law.mean
    run = serve(made(message), service)
    words = f"{service.calls} calls at a load of 0.6, sent at random"
    all_answered(run, words)
    got, plain = mean_wait(run), mean_wait(once(service))
    assert got <= 0.5 * plain and run.extra_work <= 0.03, (
        f"{words}: {1e3 * got:.4g} ms in line on average, and "
        f"{1e3 * plain:.4g} ms with one copy each; {run.extra_work:.1%} of the work is for nothing; at most half of "
        "the time in line, and 3 % of the work, are asked for"
    )


def mean_wait(run: ClusterRun) -> float:
    """s from the call until the copy starts that answers it, on average."""
    waits = [
        attempt.started - call.arrival
        for call in run.calls
        for attempt in call.attempts
        if attempt.state == "answered" and attempt.started is not None
    ]
    return sum(waits) / len(waits)
