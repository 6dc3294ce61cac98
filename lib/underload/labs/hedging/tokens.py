"""Task 5: a call that answers in tokens, where a second copy is a second prefill.

A replica is the real `Engine`, `Scheduler` and block pool, with a clock of its own. A step takes 8 ms, and 0.1 ms for
each token in it (given); now and then a replica stands still for about a second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng

from underload.cache import BlockPool
from underload.labs.answers import listed, named, near, number
from underload.labs.hedging.policies import FirstToken
from underload.labs.hedging.stage import (
    Lowest,
    all_answered,
    check_copies,
    check_same,
    drawing_from,
    simulated,
    state_of,
)
from underload.metrics import percentile
from underload.scheduling import Scheduler
from underload.simulation import (
    ClusterRun,
    EngineReplica,
    Episodes,
    JoinShortestQueue,
    LinearStepTime,
    Once,
)
from underload.workload import Planned

OVERHEAD, PER_TOKEN = 0.008, 0.0001  # s
STEP = LinearStepTime(OVERHEAD, PER_TOKEN)

Made = Callable[[float], Any]  # a student's class, which takes the delay
Asks = Sequence[tuple[int, int]]  # of every call: tokens of the prompt, tokens of the answer


def at_most(asks: Asks, hedged: Sequence[int], until: str) -> float:
    """Tokens that second copies compute at most, as a share of what the calls need.

    Args:
        hedged: the places of the calls that have a second copy.
        until: "first token" where the other copy is cancelled by then, or "answer".
    """
    needed = [prompt + answer - 1 for prompt, answer in asks]  # nothing is computed after the last token
    more = [asks[place][0] if until == "first token" else needed[place] for place in hedged]
    return sum(more) / sum(needed)


def check_at_most(answer: Callable[..., Any], asks: Asks, hedged: Sequence[int], until: str) -> None:
    """The bound on what second copies compute.

    Raises:
        AssertionError: naming the value, and the slip that gives it.
    """
    got, right = number(answer(list(asks), list(hedged), until), "at_most()"), at_most(asks, hedged, until)
    prompts, answers = sum(ask[0] for ask in asks), sum(ask[1] for ask in asks)
    needed = prompts + answers - len(asks)
    of_both = sum(asks[place][0] + asks[place][1] for place in hedged)
    slips = {
        "the last token of an answer is not computed with": at_most_with_last(asks, hedged, until),
        "a share of all calls' prompts": sum(asks[place][0] for place in hedged) / prompts,
        "a share of all calls' prompts and answers, their last tokens with them": of_both / (prompts + answers),
        "until the first token a copy computes its prompt, and no answer": at_most(asks, hedged, "answer"),
        "until the answer a copy may compute all of it": at_most(asks, hedged, "first token"),
        "calls, and not tokens": len(hedged) / len(asks),
        "both copies' tokens, and not the second's alone": (needed + right * needed) / needed,
    }
    sizes = listed([float(prompt) for prompt, _ in asks]), listed([float(tokens) for _, tokens in asks])
    assert near(got, right), (
        f"prompts of {sizes[0]} tokens, answers of {sizes[1]}, {len(hedged)} of the calls with a second copy until the "
        f"{until}: {got:.6g}{named(got, slips)}; wanted {right:.6g}"
    )


def at_most_with_last(asks: Asks, hedged: Sequence[int], until: str) -> float:
    """The slip that computes with an answer's last token, too."""
    needed = [prompt + answer for prompt, answer in asks]
    return sum(asks[place][0] if until == "first token" else needed[place] for place in hedged) / sum(needed)


def drawn_asks(draw: Generator) -> tuple[list[tuple[int, int]], list[int]]:
    """Calls, and the places of those with a second copy."""
    count = int(draw.integers(10, 30))
    asks = [(int(draw.integers(20, 900)), int(draw.integers(2, 300))) for _ in range(count)]
    return asks, sorted(int(place) for place in draw.choice(count, count // 4, replace=False))


# ------------------------------------------------------------------ replicas with engines


def _scheduler() -> Scheduler:
    """Room for everybody; no two prompts have anything in common that could be found again."""
    return Scheduler(BlockPool(8192, 16, prefix_caching=False))


@dataclass(frozen=True)
class Chat:
    """A chat service.

    asks: of every call the tokens of prompt and answer; arrivals: when each comes (s).
    slowness: of each replica, in turn.
    """

    asks: list[tuple[int, int]]
    arrivals: list[float]
    slowness: tuple[Episodes, ...]
    seed: int = 0

    def run(self, policy: Any, router: Any = None) -> ClusterRun:
        """Its calls under a policy.

        Raises:
            AssertionError: a call gets no copy, or copies without end.
        """
        planned = [
            Planned(at, prompt, answer, index=place)
            for place, ((prompt, answer), at) in enumerate(zip(self.asks, self.arrivals))
        ]
        replicas = [EngineReplica(STEP, _scheduler, slowness=slow) for slow in self.slowness]
        return simulated(policy, planned, replicas, router or JoinShortestQueue(), self.seed)


def chat(seed: int = 0, *, calls: int = 400, replicas: int = 4, rate: float = 6.0) -> Chat:
    """A service whose replicas stand still now and then, each for itself."""
    return drawn_chat(default_rng((seed, 29)), calls=calls, replicas=replicas, rate=rate)


def drawn_chat(
    draw: Generator, *, calls: int = 200, replicas: int = 4, rate: float = 6.0, answer: float = 60.0
) -> Chat:
    """Prompts and answers as they come; every replica stands still for about one second in ten."""
    arrivals = np.cumsum(draw.exponential(1 / rate, calls))
    prompts = np.clip(draw.lognormal(5.0, 0.7, calls), 10, 1500)
    answers = np.clip(draw.geometric(1 / answer, calls), 2, 400)
    slow = [_pauses(draw, float(arrivals[-1])) for _ in range(replicas)]
    asks = [(int(prompt), int(answer)) for prompt, answer in zip(prompts, answers)]
    return Chat(asks, arrivals.tolist(), tuple(slow), int(draw.integers(1 << 30)))


def _pauses(draw: Generator, until: float) -> Episodes:
    """A pause of about a second in every ten, somewhere in it: no drawn service is without."""
    begins = np.arange(0.0, until, 10.0)
    begins += draw.uniform(0.5, 8.0, len(begins))
    return Episodes(tuple(begins), tuple(draw.uniform(0.6, 1.4, len(begins))), math.inf)


def first_tokens(run: ClusterRun) -> list[float]:
    """s from arrival to the first token, of every call."""
    return [timeline.first_token - timeline.arrival for timeline in run.timelines if timeline.first_token is not None]


def ends(run: ClusterRun) -> list[float]:
    """s from arrival to the last token, of every call."""
    return [timeline.last_token - timeline.arrival for timeline in run.timelines if timeline.last_token is not None]


def q(values: Sequence[float], percent: float) -> float:
    """A percentile (s).

    Raises:
        AssertionError: of nothing.
    """
    found = percentile(list(values), percent)
    assert found is not None, "no call has a token"
    return found


def extra_tokens(run: ClusterRun) -> float:
    """Tokens computed by copies that did not answer, as a share of those of the copies that did."""
    answered = sum(attempt.work for attempt in run.attempts if attempt.state == "answered")
    return sum(attempt.work for attempt in run.attempts) / answered - 1 if answered else 0.0


def hedged_calls(run: ClusterRun) -> list[int]:
    """The places of the calls with a second copy."""
    return [place for place, call in enumerate(run.calls) if len(call.attempts) > 1]


# ------------------------------------------------------------------ the checks of FirstToken


def check_paused(made: Made) -> None:
    """A replica stands still: the copy on another has the first token, and the first is cancelled.

    Raises:
        AssertionError: naming the copies, or when the first token comes.
    """
    still = Episodes((0.0,), (2.0,), float("inf")), Episodes((), (), 2.0)
    run = Chat([(100, 50)], [0.0], still).run(made(0.100), Lowest())
    words = "replica 0 stands still for 2 s; a prompt of 100 tokens, 50 to answer, a delay of 100 ms"
    check_copies(run, [[(0.0, 0, "cancelled"), (0.100, 1, "answered")]], words)
    got = first_tokens(run)[0]
    assert near(got, 0.118), f"{words}: the first token comes after {1e3 * got:.4g} ms; wanted 118 ms"


def check_no_need(made: Made) -> None:
    """The first token is there before the delay: there is no copy, however long the answer.

    Raises:
        AssertionError: naming the copies.
    """
    quick = Episodes((), (), 2.0), Episodes((), (), 2.0)
    run = Chat([(100, 200)], [0.0], quick).run(made(0.100), Lowest())
    words = "a first token after 18 ms, 200 tokens to answer, a delay of 100 ms"
    check_copies(run, [[(0.0, 0, "answered")]], words, "a long answer is as long on every replica")


def check_first_wins(made: Made) -> None:
    """The first copy has its token after all: the second is cancelled, and does not go on to its own.

    Raises:
        AssertionError: naming the copies.
    """
    slow = Episodes((0.0,), (0.110,), float("inf")), Episodes((0.0,), (9.0,), 40.0)
    run = Chat([(100, 30)], [0.0], slow).run(made(0.100), Lowest())
    words = "replica 0 stands still for 110 ms, replica 1 is slow by 40; a delay of 100 ms"
    check_copies(run, [[(0.0, 0, "answered"), (0.100, 1, "cancelled")]], words, "the first token decides")
    first, second = run.calls[0].attempts
    assert first.first_token is not None and second.ended == first.first_token, (
        f"{words}: the first copy has its first token at {1e3 * (first.first_token or 0.0):.4g} ms, and the second is "
        f"cancelled at {1e3 * (second.ended or 0.0):.4g} ms; until then it computes for nothing"
    )


def check_chat(made: Made, draw: Generator) -> None:
    """A drawn chat service: every call has the copies that the rules give it.

    Raises:
        AssertionError: naming the first that has others.
    """
    service, delay, right = _by_the_rules(state_of(draw))
    got = service.run(made(delay))
    words = f"{len(service.asks)} calls, a delay of {1e3 * delay:.4g} ms"
    all_answered(got, words)
    check_same(got, right, words)


@lru_cache(maxsize=4)
def _by_the_rules(state: str) -> tuple[Chat, float, ClusterRun]:
    draw = drawing_from(state)
    service = drawn_chat(draw, calls=120)
    delay = float(draw.uniform(0.08, 0.2))
    return service, delay, service.run(FirstToken(delay))


def check_ttft(made: Made, draw: Generator) -> None:
    """A drawn chat service: the p99 of the time to first token falls, and no copy costs more than its prompt.

    Raises:
        AssertionError: naming both.
    """
    service, plain = _one_copy(state_of(draw))
    got = service.run(made(0.15))
    words = f"{len(service.asks)} calls, a delay of 150 ms"
    all_answered(got, words)
    before, after = (q(first_tokens(run), 99) for run in (plain, got))
    bound = at_most(service.asks, hedged_calls(got), "first token")
    spent = extra_tokens(got)
    assert after <= 0.8 * before and spent <= bound + 1e-9, (
        f"{words}: the p99 of the time to first token is {1e3 * after:.4g} ms, "
        f"and {1e3 * before:.4g} ms with one copy each; {spent:.2%} more tokens are computed, where prompts alone are "
        f"{bound:.2%}; at most 0.8 of the time and the prompts are asked for"
    )


@lru_cache(maxsize=4)
def _one_copy(state: str) -> tuple[Chat, ClusterRun]:
    service = drawn_chat(drawing_from(state), calls=400, answer=12.0)
    return service, service.run(Once())
