"""Task 2: a second copy, and what the copies come to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numpy.random import Generator

from underload.labs.answers import as_list, named, near, number, shown
from underload.labs.hedging.policies import Second
from underload.labs.hedging.stage import (
    all_answered,
    by_hand,
    check_copies,
    check_same,
    delay_of,
    drawn_service,
    p99,
    serve,
)

Made = Callable[[float], Any]  # a student's class, which takes the delay
States = Sequence[Sequence[str]]  # of every call, what became of each copy


def check_saves(made: Made) -> None:
    """The first copy takes 100 ms, the second is sent after 20 and takes 30: the call is answered after 50.

    Raises:
        AssertionError: naming the copies, or when the answer comes.
    """
    words = "replica 0 takes 100 ms, replica 1 30 ms, a delay of 20 ms"
    run = by_hand(made(0.020), (0.100, 0.030))
    check_copies(run, [[(0.0, 0, "cancelled"), (0.020, 1, "answered")]], words)
    assert near(run.latencies[0], 0.050), f"{words}: answered after {1e3 * run.latencies[0]:.4g} ms; wanted 50 ms"
    slow = by_hand(made(0.020), (0.060, 0.100))
    why = "the first copy is the sooner one here, although a second was sent"
    words = "replica 0 takes 60 ms, replica 1 100 ms, a delay of 20 ms"
    check_copies(slow, [[(0.0, 0, "answered"), (0.020, 1, "cancelled")]], words, why)


def check_needless(made: Made) -> None:
    """An answer before the delay, or just at it, needs no second copy.

    Raises:
        AssertionError: naming the copies.
    """
    for seconds in (0.005, 0.020):
        run = by_hand(made(0.020), (seconds, 0.001))
        words = f"replica 0 takes {1e3 * seconds:g} ms, a delay of 20 ms"
        check_copies(run, [[(0.0, 0, "answered")]], words, "the answer is there when the delay ends")


def check_two(made: Made) -> None:
    """Two copies, however long they take.

    Raises:
        AssertionError: naming the copies.
    """
    run = by_hand(made(0.020), (0.200, 0.300, 0.010, 0.010))
    check_copies(
        run,
        [[(0.0, 0, "answered"), (0.020, 1, "cancelled")]],
        "replica 0 takes 200 ms, replica 1 300 ms, a delay of 20 ms",
        "there is never a third copy",
    )


def check_failed(made: Made) -> None:
    """A copy that fails is replaced at once, but not twice; without any left the call fails.

    Raises:
        AssertionError: naming the copies.
    """
    first = "replica 0 goes down after 5 ms and takes the copy with it; a delay of 20 ms"
    run = by_hand(made(0.020), (0.100, 0.060, 0.060), down=[(0.005, 9.0)])
    check_copies(
        run, [[(0.0, 0, "failed"), (0.005, 1, "answered")]], first, "its place is taken at once, and by one copy"
    )
    words = "replica 0 goes down after 5 ms, and replica 1 after 10; a delay of 20 ms"
    run = by_hand(made(0.020), (0.100, 0.060, 0.060), down=[(0.005, 9.0), (0.010, 9.0)])
    check_copies(run, [[(0.0, 0, "failed"), (0.005, 1, "failed")]], words, "two copies are all that a call has")
    words = "a delay of 20 ms; replica 0 goes down after 30 ms, when there is a second copy"
    run = by_hand(made(0.020), (0.100, 0.060, 0.060), down=[(0.030, 9.0)])
    check_copies(run, [[(0.0, 0, "failed"), (0.020, 1, "answered")]], words, "the other copy goes on, and is enough")


def check_many(made: Made, draw: Generator) -> None:
    """Drawn services: every call has the copies that the rules give it.

    Raises:
        AssertionError: naming the first that has others.
    """
    for load in (0.15, 0.4):
        service = drawn_service(draw, load, calls=500)
        delay = float(service.law.isf(draw.uniform(0.03, 0.1)))
        got = serve(made(delay), service)
        words = f"{service.calls} calls at a load of {load:g}, a delay of {1e3 * delay:.4g} ms"
        all_answered(got, words)
        check_same(got, serve(Second(delay), service), words)


def check_gain(made: Made, draw: Generator) -> None:
    """A drawn quiet service: the p99 falls by half, for a few per cent of copies.

    Raises:
        AssertionError: naming both.
    """
    service = drawn_service(draw, 0.15)
    plain, delay = serve(Second(1e6), service), delay_of(service, 0.05)
    got = serve(made(delay), service)
    words = f"{service.calls} calls, a delay of {1e3 * delay:.4g} ms, the p95"
    all_answered(got, words)
    assert p99(got) <= 0.6 * p99(plain) and got.extra_load <= 0.10, (
        f"{words}: the p99 is {1e3 * p99(got):.4g} ms against "
        f"{1e3 * p99(plain):.4g} ms with one copy each, for {got.extra_load:.1%} of copies on top; at most 0.6 of it "
        "and 10 % are asked for"
    )


# ------------------------------------------------------------------ the account


def account(calls: States) -> tuple[int, float, float]:
    """Calls with an answer, copies on top as a share of the calls, failed copies as a share of those not cancelled."""
    every = [state for call in calls for state in call]
    counted = [state for state in every if state != "cancelled"]
    answers = sum("answered" in call for call in calls)
    errors = sum(state == "failed" for state in counted) / len(counted) if counted else 0.0
    return answers, len(every) / len(calls) - 1, errors


def three(value: Any) -> list[float]:
    """What account() returns, as numbers.

    Raises:
        AssertionError: it is something else.
    """
    words = "account() returns three numbers"
    found = as_list(value, words)
    assert len(found) == 3, f"{words}, got {shown(value)}"
    return [number(one, name) for one, name in zip(found, ("answers", "extra", "errors"))]


def check_account(answer: Callable[..., Any], calls: States) -> None:
    """Answers, extra load and error rate.

    Raises:
        AssertionError: naming the value, and the slip that gives it.
    """
    got = three(answer([list(call) for call in calls]))
    every = [state for call in calls for state in call]
    failed = every.count("failed")
    slips: dict[str, dict[str, float]] = {
        "answers": {"copies, and not calls": len(every), "every call, with an answer or without": len(calls)},
        "extra": {
            "copies for each call, the first one with them": len(every) / len(calls),
            "as a share of the copies, and not of the calls": (len(every) - len(calls)) / len(every),
            "only those that were cancelled; one that failed was sent, too": every.count("cancelled") / len(calls),
            "of the calls that were answered": len(every) / max(sum("answered" in call for call in calls), 1) - 1,
        },
        "errors": {
            "a copy that was cancelled could not fail any more: leave it out below the line": failed / len(every),
            "copies, and not calls": sum("answered" not in call for call in calls) / len(calls),
            "of the calls": failed / len(calls),
        },
    }
    few = [list(call) for call in calls[:4]]
    words = f"{len(calls)} calls, {len(every)} copies ({shown(few)[1:-1] if len(calls) <= 4 else _counts(every)})"
    for name, found, right in zip(slips, got, account(calls)):
        assert near(found, right), f"{words}: {name} = {found:.6g}{named(found, slips[name])}; wanted {right:.6g}"


def _counts(states: Sequence[str]) -> str:
    return ", ".join(f"{states.count(state)} {state}" for state in ("answered", "cancelled", "failed"))


def hundred() -> list[list[str]]:
    """A hundred calls, forty of them with a second copy, all answered."""
    return [["cancelled", "answered"] if place % 5 < 2 else ["answered"] for place in range(100)]


def drawn_states(draw: Generator) -> list[list[str]]:
    """Calls with one copy or two, some of which fail."""
    kinds = ["answered", "cancelled answered", "answered cancelled", "failed answered", "failed failed"]
    drawn = draw.choice(kinds, int(draw.integers(40, 90)), p=(0.5, 0.2, 0.1, 0.12, 0.08))
    return [str(kind).split() for kind in drawn]
