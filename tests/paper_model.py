"""A model on paper, for tests of whatever decides and stores: it computes no attention, and forgets nothing.

The "keys and values" of a token are a fingerprint of it and of all tokens before it, kept in blocks as real ones would
be. Each token is drawn from the fingerprint at its place. So a block that is shared wrongly, overwritten, lost on the
way to the host or read before it is filled shows: as a failed comparison in the executor, or as another answer than
that of the same request alone.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any

from underload.cache import BlockPool
from underload.request import FinishReason, Request, SamplingParams, Sequence, SequenceState, Timeline
from underload.scheduling import Plan, Sampled, Scheduler, StepResult, Work

VOCABULARY = 40
END = 0


class Injected(RuntimeError):
    """A fault put in on purpose."""


def request(
    name: str, prompt: list[int], max_tokens: int = 8, n: int = 1, arrival: float = 0.0, **more: Any
) -> Request:
    return Request(name, prompt, SamplingParams(max_tokens=max_tokens, n=n), Timeline(arrival), **more)


def fingerprint(tokens: list[int], salt: str = "") -> int:
    value = hash(tuple(salt.encode()))
    for token in tokens:
        value = hash((value, token))
    return value


def drawn(value: int, sample: int) -> int:
    return hash((value, sample)) % VOCABULARY


def alone(prompt: list[int], max_tokens: int, sample: int = 0, salt: str = "") -> list[int]:
    """What the model says to a prompt when nobody else is there."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_tokens:
        tokens.append(drawn(fingerprint(tokens, salt), sample))
        if tokens[-1] == END:
            break
    return tokens[len(prompt) :]


class PaperExecutor:
    """Runs plans on fingerprints, and compares all that a work reads with what it should be.

    fault: called at each point where something could fail, with the point's name; it may raise.
    wrong: what was found in a wrong place. An engine takes what is raised for a failed step and tries again, so a test
        asks here.
    """

    max_model_len: int | None = None

    def __init__(
        self, num_blocks: int, block_size: int, host_blocks: int = 0, *, fault: Callable[[str], None] | None = None
    ) -> None:
        self.block_size = block_size
        self.device: list[list[int | None]] = [[None] * block_size for _ in range(num_blocks)]
        self.host: list[list[int | None]] = [[None] * block_size for _ in range(host_blocks)]
        self.plans: list[Plan] = []
        self.released: list[str] = []
        self.wrong: list[str] = []
        self.computed = 0
        self._pending: dict[Sequence, list[int]] = {}  # drawn, and not collected yet
        self._begun: deque[tuple[Plan, StepResult]] = deque()
        self._fault = fault or (lambda point: None)

    def check(self, request: Request) -> None:
        """Any id will do."""

    def execute(self, plan: Plan) -> StepResult:
        self._fault("begin")
        for device, host in plan.swap_out:
            self.host[host] = list(self.device[device])
            self._fault("swap out")
        for source, target in plan.copies:
            self.device[target] = list(self.device[source])
            self._fault("copy")
        for host, device in plan.swap_in:
            self.device[device] = list(self.host[host])
            self._fault("swap in")
        sampled: list[list[Sampled]] = []
        carried = [Work(one, len(one.tokens) - 1, len(one.tokens)) for one in plan.carried]
        for work in carried + plan.work:
            sequence, owner = work.sequence, work.sequence.request
            assert owner is not None and sequence.table is not None and work.start < work.stop
            tokens = sequence.tokens + self._pending.get(sequence, [])
            for position in range(work.start):
                found, right = sequence.table.slot(position), fingerprint(tokens[: position + 1], owner.salt)
                if self._slot(found) != right:
                    self.wrong.append(f"{owner.request_id}/{sequence.index}: position {position} holds another text")
                    raise AssertionError(self.wrong[-1])
            value = fingerprint(tokens[: work.start], owner.salt)
            for position in range(work.start, work.stop):
                value = hash((value, tokens[position]))
                slot = sequence.table.slot(position)
                self.device[slot // self.block_size][slot % self.block_size] = value
                self._fault("compute")
            self.computed += work.stop - work.start
            words = [drawn(value, sequence.index + k) for k in range(work.samples)]
            sampled.append([Sampled(token, FinishReason.STOP if token == END else None) for token in words])
        self._fault("end")
        self.plans.append(plan)
        first, rest = [one for (one,) in sampled[: len(carried)]], sampled[len(carried) :]
        stopped = {work.sequence for work, one in zip(carried, first) if one.finish_reason}
        return StepResult(rest, duration=1.0, carried=[one.token_id for one in first], stopped=stopped)

    def launch(self, plan: Plan) -> None:
        result = self.execute(plan)
        self._begun.append((plan, result))
        for work, sampled in zip(plan.work, result.sampled):
            if work.samples:
                self._pending.setdefault(work.sequence, []).append(sampled[0].token_id)

    def collect(self) -> StepResult:
        self._fault("collect")
        plan, result = self._begun.popleft()
        for work in plan.work:
            if work.samples:
                self._pending[work.sequence].pop(0)
        return result

    def forget(self, kept: int) -> None:
        while len(self._begun) > kept:
            for work in self._begun.pop()[0].work:
                if work.samples:
                    self._pending[work.sequence].pop()

    def unseen(self, sequence: Sequence) -> bool:
        return sequence.prompt_len % 3 != 0  # some can, some cannot

    def release(self, request: Request) -> None:
        assert request.request_id not in self.released
        self.released.append(request.request_id)

    def _slot(self, slot: int) -> int | None:
        return self.device[slot // self.block_size][slot % self.block_size]


class Faults:
    """Raises with a given chance at each point, by a seeded generator; a failed step may leave anything behind."""

    def __init__(self, chance: float, seed: int, most: int | None = None) -> None:
        self.chance, self.left = chance, most
        self.random = random.Random(seed)
        self.raised: list[str] = []

    def __call__(self, point: str) -> None:
        if self.left != 0 and self.random.random() < self.chance:
            self.left = None if self.left is None else self.left - 1
            self.raised.append(point)
            raise Injected(point)


def check_books(scheduler: Scheduler, in_flight: Iterable[Plan] = ()) -> None:
    """What holds after every call, whatever happened before: who has which block, slot and place."""
    pool, running, waiting = scheduler.pool, scheduler.running, scheduler.waiting
    assert pool.num_free + pool.num_cached + pool.num_used == pool.num_blocks
    holding = running + scheduler.held + scheduler.ending
    assert {id(table) for table in pool.tables} == {id(one.table) for one in holding}
    held = Counter(block for one in holding for block in one.table.blocks)
    if isinstance(pool, BlockPool):
        assert [state.ref_count for state in pool.snapshot()] == [held[block] for block in range(pool.num_blocks)]
    else:
        assert max(held.values(), default=1) == 1
    places = [scheduler._order[one] for one in running], [scheduler._order[one] for one in waiting]
    assert all(order == sorted(set(order)) for order in places)
    for one in running:
        assert one.state is SequenceState.RUNNING and one.num_scheduled <= one.table.capacity
        assert 0 <= one.num_computed <= one.num_scheduled <= len(one.tokens) + one.num_drawing <= one.max_len
    for one in waiting:
        assert one.state is SequenceState.WAITING and one.table is None and one.num_scheduled == one.num_computed == 0
    slots = sum(1 if one.request.forked else len(one.request.sequences) for one in running)
    assert slots == scheduler.num_slots <= scheduler.max_num_seqs
    away = [block for one in [*running, *waiting] for block in one.host_blocks]
    if scheduler.host_pool is not None:
        assert len(away) == len(set(away)) == scheduler.host_pool.num_used
    else:
        assert not away
    for plan in in_flight:
        assert plan.num_tokens + len(plan.swap_out) > 0
        assert plan.num_tokens + plan.padding_tokens <= scheduler.max_num_batched_tokens
        assert plan.padding_tokens >= len(plan.held) and all(one.finished for one in plan.held)
        assert all(one.table is not None for one in [work.sequence for work in plan.work] + plan.held)
