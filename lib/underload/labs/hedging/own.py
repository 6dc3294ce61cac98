"""A student's objects where they work, the lab's where they do not."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from underload.labs.answers import number, or_library
from underload.labs.hedging import budget, policies, second, tied, tokens
from underload.labs.hedging.learned import changing
from underload.labs.hedging.stage import all_answered, by_chance, by_itself, serve
from underload.simulation import Random


def _or_lab(yours: Any, library: Any, *checks: Callable[[Any], None]) -> Any:
    """`yours` if these checks let it pass, the lab's if not; it is said which."""
    name = getattr(yours, "__name__", "your class")
    try:
        for check in checks:
            check(yours)
    except NotImplementedError:
        print(f"{name} is not written yet: the lab's was taken in its place")
    except Exception as error:  # whatever a student's code raises; the check's card says in which line
        print(f"{name} does not pass its first checks ({str(error)[:80]} …): the lab's was taken in its place")
    else:
        return yours
    return library


def usable_number(yours: Callable[..., Any], library: Callable[..., Any]) -> Callable[..., Any]:
    """A function of yours wherever it gives a number of 0 or more, the lab's where it does not; it is said once."""

    @wraps(yours)
    def read(*given: Any) -> float:
        name = f"{yours.__name__}()"
        value = number(yours(*given), name)
        assert value >= 0, f"{name} gives {value:.6g}"
        return value

    return or_library(read, library)


def usable_account(yours: Callable[..., Any]) -> Callable[..., Any]:
    """Task 2's function where it gives three numbers, the lab's where it does not."""

    @wraps(yours)
    def read(calls: second.States) -> list[float]:
        return second.three(yours(calls))

    return or_library(read, second.account)


def usable_second(yours: Any) -> Any:
    """Task 2's class if it passes its first checks, the lab's if not."""
    return _or_lab(yours, policies.Second, second.check_saves, second.check_needless, _second_serves)


def usable_budgeted(yours: Any) -> Any:
    """Task 3's class if it passes its first checks, the lab's if not."""
    return _or_lab(yours, policies.Budgeted, budget.check_share, budget.check_idle, _budgeted_serves)


def usable_two_queues(yours: Any) -> Any:
    """Task 4's class if it passes its first checks, the lab's if not."""
    return _or_lab(yours, policies.TwoQueues, tied.check_one_is_enough, tied.check_called_back, _two_queues_serve)


def usable_first_token(yours: Any) -> Any:
    """Task 5's class if it passes its first checks, the lab's if not."""
    return _or_lab(yours, policies.FirstToken, tokens.check_paused, tokens.check_no_need, _first_token_serves)


def usable_learned(yours: Any) -> Any:
    """Task 6's class if it serves a day, the lab's if not."""
    return _or_lab(yours, policies.Learned, _learned_serves)


# ------------------------------------------------------------------ what the cells below will ask of them


def _second_serves(made: Any) -> None:
    all_answered(serve(made(0.028), by_chance(0.1)), "the service of the text")


def _budgeted_serves(made: Any) -> None:
    all_answered(serve(made(0.085, 0.10, 5.0), by_itself(0.9)), "the service of the text")


def _two_queues_serve(made: Any) -> None:
    all_answered(serve(made(0.0003), by_chance(0.5, router=Random())), "the service of the text")


def _first_token_serves(made: Any) -> None:
    all_answered(tokens.chat(calls=100).run(made(0.15)), "the service of the text")


def _learned_serves(made: Any) -> None:
    all_answered(changing(seed=6).run(made(0.05)), "the day of the text")
