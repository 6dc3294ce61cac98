"""The scheduler under random programs of calls: what is answered is what each request says alone (`paper_model`)."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from paper_model import Injected, PaperExecutor, alone, check_books, request

import underload.scheduling.scheduler as module
from underload.cache import BlockChain, BlockPool, HostPool, ReservingPool, block_digest
from underload.request import InvalidRequest, Request, UnderloadError
from underload.scheduling import (
    Cheapest,
    Continuous,
    FairShare,
    FirstCome,
    FitsNow,
    Greedy,
    LastArrived,
    LeastComputed,
    MaxTokens,
    Plan,
    PredictedPeak,
    Priority,
    ReserveAll,
    Scheduler,
    ShortestFirst,
    Static,
    StepResult,
    Watermark,
)

pytestmark = pytest.mark.slow

SALTS = st.sampled_from(("", "", "x"))
SHARED = [7, 3, 9, 1, 4, 4, 2, 8, 30, 31, 32, 33]


BATCHINGS = (
    Continuous,
    Continuous,
    lambda: Continuous(prefill="mixed"),
    lambda: Continuous(prefill="prefill-first"),
    lambda: Continuous(chunked_prefill=False),
    lambda: Static(3),
    lambda: Greedy(4),
)
ORDERS = (FirstCome, FirstCome, ShortestFirst, Priority, FairShare)
ADMISSIONS = (FitsNow, FitsNow, ReserveAll, lambda: Watermark(0.3), lambda: PredictedPeak(MaxTokens()))
VICTIMS = (LastArrived, LastArrived, LeastComputed, Cheapest)


def always_seven(parent: bytes, content: bytes) -> bytes:
    """A name that says nothing: only what confirms a hit keeps texts apart."""
    return b"7"


class SchedulerMachine(RuleBasedStateMachine):
    """Requests come and go while up to three plans are in flight; the oldest is committed, or any aborted."""

    @initialize(
        num_blocks=st.integers(3, 12),
        size=st.integers(1, 5),
        pool=st.sampled_from(("paged", "paged", "uncached", "buddy", "first-fit")),
        reserved=st.sampled_from((0.0, 0.5, 1.0)),
        host=st.sampled_from((None, 0, 1, 3, 20)),
        seqs=st.sampled_from((1, 4, 16)),
        tokens=st.sampled_from((1, 5, 64)),
        aborts=st.sampled_from((0, 2, 1000)),
        carry=st.booleans(),
        digest=st.sampled_from((block_digest, block_digest, always_seven)),
        batching=st.sampled_from(BATCHINGS),
        order=st.sampled_from(ORDERS),
        admission=st.sampled_from((None, *ADMISSIONS)),
        victim=st.sampled_from(VICTIMS),
    )
    def make(
        self,
        num_blocks,
        size,
        pool,
        reserved,
        host,
        seqs,
        tokens,
        aborts,
        carry,
        digest,
        batching,
        order,
        admission,
        victim,
    ):
        module.BlockChain = partial(BlockChain, digest=digest)
        if pool in ("buddy", "first-fit"):
            blocks = ReservingPool(num_blocks, size, placement=pool)
            reserve = lambda one: len(one.prompt_ids) + int(reserved * (one.params.max_tokens - 1))  # noqa: E731
        else:
            blocks, reserve = BlockPool(num_blocks, size, prefix_caching=pool == "paged"), None
        self.scheduler = Scheduler(
            blocks,
            batching=batching(),
            order=order(),
            admission=admission and admission(),
            victim=victim(),
            max_num_seqs=seqs,
            max_num_batched_tokens=tokens,
            max_aborts=aborts,
            reserve=reserve,
            preemption="recompute" if host is None else "swap",
            host_pool=None if host is None else HostPool(host),
        )
        self.executor = PaperExecutor(num_blocks, size, host or 0)
        self.budget = tokens
        self.carry = carry
        self.closing = False
        self.in_flight: list[Plan] = []
        self.taken: list[Request] = []
        self.ended: list[Request] = []

    @rule(
        several=st.lists(
            st.tuples(st.integers(0, 12), st.integers(1, 9), st.integers(3, 24), st.sampled_from((1, 1, 2, 3)), SALTS),
            min_size=1,
            max_size=5,
        )
    )
    def add(self, several):
        for common, rest, answer, n, salt in several:
            name = str(len(self.taken))
            one = request(
                name,
                SHARED[:common] + [len(self.taken) + 1] * rest,
                answer,
                n=n,
                salt=salt,
                tenant=salt,
                priority=common % 3,
                arrival=float(len(self.taken)),
            )
            try:
                self.scheduler.add(one)
            except InvalidRequest:
                pool = self.scheduler.pool
                most = pool.num_blocks * pool.block_size
                by_policy = self.scheduler.batching.refuses(one, common + rest + answer - 1, self.budget)
                assert n > self.scheduler.max_num_seqs or common + rest + answer - 1 > most or by_policy
            else:
                self.taken.append(one)

    def planned(self):
        return self.scheduler.schedule(float(len(self.taken)), closing=self.closing, carry=self.carry)

    @precondition(lambda self: not self.scheduler.idle)
    @rule(ahead=st.integers(1, 3), times=st.integers(1, 9))
    def go_on(self, ahead, times):
        for _ in range(times):
            while len(self.in_flight) < ahead and isinstance(plan := self.planned(), Plan):
                self.in_flight.append(plan)
            self.holds()
            if self.in_flight:
                plan = self.in_flight.pop(0)
                self.scheduler.commit(plan, self.executor.execute(plan), 0.0)
                self.holds()

    @precondition(lambda self: not self.scheduler.idle)
    @rule(ahead=st.integers(1, 3), place=st.integers(0, 2))
    def abort(self, ahead, place):
        while len(self.in_flight) < ahead and isinstance(plan := self.planned(), Plan):
            self.in_flight.append(plan)
        if not self.in_flight:
            return
        self.holds()
        place %= len(self.in_flight)
        self.scheduler.abort(self.in_flight[place], Injected("before it ran"), 0.0)
        del self.in_flight[place:]

    @precondition(lambda self: self.in_flight)
    @rule(survives=st.integers(0, 12))
    def fail(self, survives):
        """The oldest is carried out in part."""
        left = iter(range(survives))

        def fault(point):
            if next(left, None) is None:
                raise Injected(point)

        self.executor._fault = fault
        try:
            result = self.executor.execute(self.in_flight[0])
        except Injected as error:
            self.scheduler.abort(self.in_flight[0], error, 0.0)
            self.in_flight.clear()
        else:
            self.scheduler.commit(self.in_flight.pop(0), result, 0.0)
        self.executor._fault = lambda point: None

    @rule(closing=st.booleans())
    def close(self, closing):
        self.closing = closing

    @precondition(lambda self: self.taken)
    @rule(place=st.integers(0, 99), often=st.integers(0, 2))
    def cancel(self, place, often):
        if not often:
            self.scheduler.cancel(self.taken[place % len(self.taken)].request_id)

    @precondition(lambda self: self.ended)
    @rule(place=st.integers(0, 99))
    def add_again(self, place):
        with pytest.raises(InvalidRequest, match="served or cancelled before"):
            self.scheduler.add(self.ended[place % len(self.ended)])

    @precondition(lambda self: len(self.in_flight) > 1)
    @rule()
    def commit_out_of_order(self):
        with pytest.raises(UnderloadError, match="not the oldest"):
            self.scheduler.commit(self.in_flight[1], StepResult([]), 0.0)

    @invariant()
    def holds(self):
        if not hasattr(self, "scheduler"):
            return
        check_books(self.scheduler, self.in_flight)
        for one in self.scheduler.take_finished():
            assert one.finished and one not in self.ended
            self.ended.append(one)
            for sequence in one.sequences:
                words = alone(one.prompt_ids, one.params.max_tokens, sequence.index, one.salt)
                said = sequence.output_ids
                assert said == (words[: len(said)] if one.cancelled else words)

    def teardown(self):
        if not hasattr(self, "scheduler"):
            return
        steps, self.closing = 0, True
        # A program of a hundred requests at one token a step, in runs that are outgrown, needs three steps a token.
        tokens = sum(len(one.prompt_ids) + len(one.sequences) * one.params.max_tokens for one in self.taken)
        while self.in_flight or not self.scheduler.idle:
            self.go_on(2, 1)
            assert (steps := steps + 1) < 5000 + 10 * tokens
        module.BlockChain = BlockChain
        assert len(self.ended) == len(self.taken) and self.scheduler.pool.num_used == 0


SchedulerMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=40)
TestSchedulerMachine = SchedulerMachine.TestCase
