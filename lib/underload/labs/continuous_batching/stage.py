"""The stage on which a policy plays: the real scheduler, pool and engine, on a virtual clock.

A step takes 8 ms, and 0.1 ms for each token in it (given): about what a small model takes on a graphics card.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

from underload.cache import BlockPool
from underload.engine import Engine
from underload.engine.engine import OnStep
from underload.labs.answers import shown
from underload.request import Request, SamplingParams, Sequence, StepRecord, Timeline, UnderloadError, VirtualClock
from underload.scheduling import Admission, Batching, Plan, Scheduler, StepResult
from underload.simulation import CostModelExecutor, LinearStepTime

OVERHEAD, PER_TOKEN = 0.008, 0.0001  # s
_CALLS = 10_000  # of admit() or run() in one step: more is a loop that does not end
_VOCABULARY = 1000


class Ask(NamedTuple):
    """A request, as far as a scheduler is concerned.

    prompt, answer: tokens. arrival: s. limit: the `max_tokens` that it asks for; the answer's own length if 0.
    """

    prompt: int
    answer: int
    arrival: float = 0.0
    limit: int = 0


class Counted:
    """A step, as the scheduler gives it, whose calls are counted: a loop that asks again and again ends with a word."""

    def __init__(self, step: Any) -> None:
        self._step = step
        self._calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    def _count(self, call: str, sequence: Any, tokens: Any) -> int:
        self._calls += 1
        if self._calls > _CALLS:
            raise AssertionError(
                f"fill() called {call}() {_CALLS:,} times in one step: a loop over the queue ends when the budget is "
                "used up, and when admit() says None"
            )
        if not isinstance(sequence, Sequence):
            raise AssertionError(f"{call}() takes a sequence of step.running or step.waiting, got {shown(sequence)}")
        if isinstance(tokens, bool) or not isinstance(tokens, int | np.integer):
            raise AssertionError(f"{call}() takes a whole number of tokens, got {shown(tokens)}")
        return int(tokens)

    def run(self, sequence: Any, tokens: Any) -> int:
        return int(self._step.run(sequence, self._count("run", sequence, tokens)))

    def admit(self, sequence: Any, tokens: Any, **more: Any) -> int | None:
        count: int | None = self._step.admit(sequence, self._count("admit", sequence, tokens), **more)
        return count


class Guarded(Batching):
    """A batching policy whose calls are counted."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.keeps_finished = bool(policy.keeps_finished)

    def fill(self, step: Any) -> None:
        self.policy.fill(Counted(step))

    def admission(self) -> Admission:
        found: Admission = self.policy.admission()
        return found

    def refuses(self, request: Request, most_tokens: int, budget: int) -> str | None:
        why: str | None = self.policy.refuses(request, most_tokens, budget)
        return why


class Busy(Guarded):
    """A batching policy that lets nobody in without work: who is given a slot and nothing to compute is named."""

    def fill(self, step: Any) -> None:
        self.policy.fill(step)
        for sequence in step.running:
            assert sequence.num_scheduled, (
                f"at {1e3 * step.now:.4g} ms {sequence.request.request_id} is let in with no token to compute, and "
                "holds a slot and blocks for nothing: ask only while tokens are left for it"
            )


@dataclass
class Run:
    """What a run left: the requests in the order of the asks, and what each step was made of."""

    engine: Engine
    requests: list[Request]
    steps: list[dict[int, tuple[int, int]]]  # by number of the request: the tokens [start, stop) that it computed

    @property
    def records(self) -> list[StepRecord]:
        return self.engine.steps

    @property
    def makespan(self) -> float:
        """s from the start until the last token."""
        return max(record.start + record.duration for record in self.records)

    @property
    def preemptions(self) -> int:
        return sum(one.preemptions for request in self.requests for one in request.sequences)

    @property
    def prefilled(self) -> int:
        """Tokens of prompts, and of answers that were computed again."""
        return sum(record.prefill_tokens for record in self.records)

    def latency(self, number: int) -> float:
        """s from arrival to the last token."""
        timeline = self.requests[number].timeline
        assert timeline.last_token is not None
        return timeline.last_token - timeline.arrival

    @property
    def mean_latency(self) -> float:
        return float(np.mean([self.latency(number) for number in range(len(self.requests))]))

    def ttft(self, number: int) -> float:
        """s from arrival to the first token."""
        timeline = self.requests[number].timeline
        assert timeline.first_token is not None
        return timeline.first_token - timeline.arrival

    @property
    def mean_ttft(self) -> float:
        return float(np.mean([self.ttft(number) for number in range(len(self.requests))]))

    def gaps(self, number: int) -> list[float]:
        """s between each token and the next."""
        return np.diff(self.requests[number].timeline.token_times).tolist()

    @property
    def longest_gap(self) -> float:
        return max((gap for number in range(len(self.requests)) for gap in self.gaps(number)), default=0.0)

    def first_step(self, number: int) -> int:
        """Where it computes for the first time."""
        return next(place for place, step in enumerate(self.steps) if number in step)

    def counts(self, place: int) -> dict[int, int]:
        """Tokens that each request computed in a step."""
        return {number: stop - start for number, (start, stop) in self.steps[place].items()}

    def prompt_tokens(self, place: int) -> int:
        """Tokens of a step that are not the one of a sequence that decodes."""
        return self.records[place].prefill_tokens


def serve(
    policy: Any,
    asks: SequenceOf[Ask],
    *,
    slots: int = 64,
    budget: int = 2048,
    blocks: int = 4096,
    block_size: int = 16,
    admission: Any = None,
    victim: Any = None,
    step_time: Any = None,
    on_step: OnStep | None = None,
) -> Run:
    """Run requests through scheduler and engine, with this policy in the scheduler.

    Args:
        slots, budget: sequences that may run at once; tokens in a step.
        admission, victim: the scheduler's own where None.
        step_time: s that a plan takes, where it is not 8 ms and 0.1 ms a token.
        on_step: sees every step.

    Raises:
        AssertionError: the policy lets nobody compute although somebody could, or a request was not answered.
    """
    scheduler = Scheduler(
        BlockPool(blocks, block_size, prefix_caching=False),
        batching=Guarded(policy),
        max_num_seqs=slots,
        max_num_batched_tokens=budget,
        **({} if admission is None else {"admission": admission}),
        **({} if victim is None else {"victim": victim}),
    )
    steps: list[dict[int, tuple[int, int]]] = []
    names = [name_of(number, asks) for number in range(len(asks))]
    numbers = {name: number for number, name in enumerate(names)}

    def note(plan: Plan, result: StepResult, record: StepRecord) -> None:
        found: dict[int, tuple[int, int]] = {}
        for work in plan.work:
            assert work.sequence.request is not None
            found[numbers[work.sequence.request.request_id]] = work.start, work.stop
        steps.append(found)
        if on_step is not None:
            on_step(plan, result, record)

    executor = CostModelExecutor(
        step_time or LinearStepTime(OVERHEAD, PER_TOKEN),
        output_tokens={name: ask.answer for name, ask in zip(names, asks)},
        vocabulary=_VOCABULARY,
    )
    engine = Engine(scheduler, executor, VirtualClock(), on_step=note)
    requests = [
        Request(
            names[number],
            [1 + (number + place) % (_VOCABULARY - 1) for place in range(ask.prompt)],
            SamplingParams(max_tokens=ask.limit or ask.answer, temperature=0),
            Timeline(ask.arrival),
        )
        for number, ask in enumerate(asks)
    ]
    for request in requests:
        engine.add(request)
    most = 20 * sum(ask.prompt + ask.answer for ask in asks)
    stood, turns = engine.clock.now(), 0  # a policy that waits for an instant that has come would turn for ever
    try:
        while engine.step():
            assert len(steps) < most, f"after {most:,} steps the requests are still not answered"
            stood, turns = (stood, turns + 1) if engine.clock.now() == stood else (engine.clock.now(), 0)
            assert turns < 100, (
                f"at {stood!r} s fill() lets nobody compute and waits until an instant that has come already; compare "
                "step.now with the very number that wait_until gets (a difference of two may be a hair smaller)"
            )
    except UnderloadError as error:
        waiting, running = len(scheduler.waiting), len(scheduler.running)
        if waiting + running and "nothing can be scheduled" in str(error):
            raise AssertionError(
                f"at {engine.clock.now():.3f} s fill() lets nobody compute, though {waiting} wait and {running} run: "
                "nothing will ever change"
            ) from error
        raise
    failed = [request for request in requests if request.error]
    assert not failed, f"{failed[0].request_id} was not answered: {failed[0].error}"
    return Run(engine, requests, steps)


def name_of(number: int, asks: SequenceOf[Any]) -> str:
    """A request in a message: a letter where there are few."""
    return chr(ord("A") + number) if len(asks) <= 26 else f"request {number}"


def told(counts: dict[int, int], asks: SequenceOf[Any]) -> str:
    """What a step is made of, in words."""
    if not counts:
        return "nobody"
    return ", ".join(f"{name_of(number, asks)} {tokens}" for number, tokens in sorted(counts.items()))


def check_steps(
    policy: Any, asks: SequenceOf[Ask], wanted: SequenceOf[dict[int, int]], why: str = "", **limits: Any
) -> None:
    """A load, step by step: who computes how many tokens.

    Raises:
        AssertionError: naming the first step that is another, what it holds and what it should; or who was let in
            without work.
    """
    run = serve(Busy(policy), asks, **limits)
    for place, right in enumerate(wanted):
        got = run.counts(place) if place < len(run.steps) else {}
        assert got == right, (
            f"{described(asks, limits)}: step {place + 1} computes {told(got, asks)}, and should compute "
            f"{told(right, asks)} (tokens each){'; ' + why if why else ''}"
        )
    assert len(run.steps) <= len(wanted), (
        f"{described(asks, limits)}: there are {len(run.steps)} steps; {len(wanted)} are enough"
    )


def described(asks: SequenceOf[Ask], limits: dict[str, Any]) -> str:
    """A load in a message."""
    words = ", ".join(f"{value} {name}" for name, value in limits.items() if name in ("slots", "budget", "blocks"))
    if len(asks) > 8:
        return f"{len(asks)} requests" + (f", {words}" if words else "")
    parts = [
        f"{name_of(number, asks)} ({ask.prompt} + {ask.answer} tokens{f' at {ask.arrival:g} s' if ask.arrival else ''})"
        for number, ask in enumerate(asks)
    ]
    return ", ".join(parts) + (f"; {words}" if words else "")


def drawn_load(
    draw: Generator, requests: int = 40, *, rate: float = 40.0, prompt: float = 40.0, answer: float = 20.0
) -> list[Ask]:
    """Requests as they come: Poisson arrivals, geometric prompts and answers."""
    arrivals = np.cumsum(draw.exponential(1 / rate, requests))
    prompts = draw.geometric(1 / prompt, requests)
    answers = draw.geometric(1 / answer, requests)
    return [Ask(int(long), int(tokens), float(arrival)) for arrival, long, tokens in zip(arrivals, prompts, answers)]
