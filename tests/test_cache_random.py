"""The block pool under random programs of calls, against a naive pool and a memory that knows what it should hold."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from cache_model import Grown, Twin
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from underload.cache import block_digest
from underload.cache.chain import Digest

pytestmark = pytest.mark.slow


def always_seven(parent: bytes, content: bytes) -> bytes:
    return b"7"


def one_of_three(parent: bytes, content: bytes) -> bytes:
    return block_digest(parent, content)[:1].translate(bytes(number % 3 for number in range(256)))


class PoolMachine(RuleBasedStateMachine):
    """Hypothesis chooses the calls, and makes a failing program short."""

    @initialize(
        num_blocks=st.integers(1, 10),
        block_size=st.sampled_from((1, 2, 4)),
        prefix_caching=st.booleans(),
        digest=st.sampled_from((block_digest, always_seven, one_of_three)),
    )
    def make(self, num_blocks: int, block_size: int, prefix_caching: bool, digest: Digest) -> None:
        self.twin = Twin(num_blocks, block_size, prefix_caching=prefix_caching, digest=digest)

    def one(self, place: int) -> Grown:
        return self.twin.sequences[place % len(self.twin.sequences)]

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=24),
        rest=st.lists(st.integers(0, 1), max_size=12),
        salt=st.sampled_from(("", "other")),
    )
    def admit(self, prompt: list[int], rest: list[int], salt: str) -> None:
        self.twin.admit(prompt + rest, len(prompt), salt)

    @precondition(lambda self: self.twin.sequences)
    @rule(place=st.integers(0, 99), count=st.integers(1, 9))
    def plan(self, place: int, count: int) -> None:
        if self.one(place).planned is None:
            self.twin.plan(self.one(place), count)

    @rule()
    def commit(self) -> None:
        self.twin.commit()

    @rule()
    def abort(self) -> None:
        self.twin.abort()

    @precondition(lambda self: self.twin.sequences)
    @rule(place=st.integers(0, 99), tokens=st.lists(st.integers(0, 1), max_size=9))
    def fork(self, place: int, tokens: list[int]) -> None:
        if self.one(place).planned is None:
            self.twin.fork(self.one(place), tokens)

    @precondition(lambda self: self.twin.sequences)
    @rule(place=st.integers(0, 99), more=st.integers(1, 9))
    def append_drafts(self, place: int, more: int) -> None:
        if self.one(place).planned is None:
            self.twin.append(self.one(place), self.one(place).computed + more)

    @precondition(lambda self: self.twin.sequences)
    @rule(place=st.integers(0, 99))
    def trim(self, place: int) -> None:
        if self.one(place).planned is None:
            self.twin.trim(self.one(place))

    @precondition(lambda self: self.twin.sequences)
    @rule(place=st.integers(0, 99))
    def free(self, place: int) -> None:
        self.twin.free_table(self.one(place))

    @precondition(lambda self: self.twin.sequences)
    @rule(place=st.integers(0, 99))
    def wrong(self, place: int) -> None:
        self.twin.wrong(self.one(place))

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "twin"):
            self.twin.check()


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestPoolMachine = PoolMachine.TestCase


CASES: list[tuple[int, int, bool, Digest]] = [
    (16, 4, True, block_digest),
    (7, 2, True, block_digest),
    (12, 1, True, one_of_three),
    (10, 3, True, always_seven),
    (12, 4, False, block_digest),
]
OPERATIONS = 30_000


def run(twin: Twin, rng: random.Random) -> None:
    """One random call."""

    def tokens(most: int) -> list[int]:
        # Mostly from a few beginnings, so that prefixes are met again; sometimes strange.
        start = rng.choice(([0] * 8, [1, 0] * 6, [0] * 4 + [1] * 8, [65_536, -1, 2**40], []))
        return start[: rng.randint(0, most)] + [rng.randint(0, 1) for _ in range(rng.randint(0, most))]

    def one(act: Callable[[Grown], object]) -> None:
        idle = [sequence for sequence in twin.sequences if sequence.planned is None]
        if idle:
            act(rng.choice(idle))

    draw = rng.random()
    if draw < 0.2:
        prompt = tokens(20) or [1]
        twin.admit(prompt + tokens(8), len(prompt), rng.choice(("", "", "other")))
    elif draw < 0.5:
        one(lambda sequence: twin.plan(sequence, rng.choice((1, 1, 2, 5, 16))))
    elif draw < 0.67:
        twin.commit()
    elif draw < 0.7:
        twin.abort()
    elif draw < 0.76:
        one(lambda sequence: twin.fork(sequence, tokens(8)))
    elif draw < 0.8:
        one(lambda sequence: twin.append(sequence, sequence.computed + rng.randint(1, 8)))
    elif draw < 0.84:
        one(twin.trim)
    elif draw < 0.86:
        one(twin.wrong)
    elif twin.sequences:
        twin.free_table(rng.choice(twin.sequences))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}x{case[1]}-{case[2]}-{case[3].__name__}")
def test_a_random_program_of_calls_keeps_every_invariant(case: tuple[int, int, bool, Digest]) -> None:
    num_blocks, block_size, prefix_caching, digest = case
    rng = random.Random(f"{num_blocks} {block_size} {digest.__name__}")
    twin = Twin(num_blocks, block_size, prefix_caching=prefix_caching, digest=digest)
    while twin.operations < OPERATIONS:
        run(twin, rng)
        twin.check()
    counters = twin.pool.counters
    # The program has met what it is for.
    assert counters.copies > 100 and counters.allocations > 1000
    assert (counters.hits > 0) == (counters.queries > 0) == prefix_caching
    assert (counters.evictions > 100) == prefix_caching


def test_these_programs_are_a_hundred_thousand_calls() -> None:
    assert OPERATIONS * len(CASES) >= 100_000
