"""The queue, those who run, and what changes hands between them, a step at a time.

    waiting    sequences without blocks, in the order that `order` gives; a preempted one keeps its place
    running    in the same order; each holds its blocks
    held       finished, and still holding their blocks, until the static batch that they were part of is over
    ending     finished, and still holding their blocks, until the last plan that names them is committed
    in flight  plans handed out and not yet committed; no sequence in one is preempted, and no block of it is freed

The scheduler keeps the books; policies decide. Each is a small object with one question to answer:

    batching   who computes how many tokens in this step?            `batching`
    order      who is first in the queue?                            `order`
    admission  may the first begin now, or would there be too many?  `admission`
    victim     who is put back when there are no blocks?             `victim`
    shedding   who is turned away?                                   `shedding`
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from math import inf
from numbers import Integral
from operator import index

from underload.cache import BlockChain, HostPool, Pool
from underload.request import (
    MAX_ID,
    FinishReason,
    InvalidRequest,
    OutOfBlocks,
    Request,
    Sequence,
    SequenceState,
    UnderloadError,
)
from underload.scheduling.admission import Admission
from underload.scheduling.batching import Batching, Continuous
from underload.scheduling.order import FirstCome, Order
from underload.scheduling.plan import Idle, Plan, Sampled, StepResult
from underload.scheduling.repeat import Repeat
from underload.scheduling.shedding import Shedding
from underload.scheduling.step import Step
from underload.scheduling.victim import LastArrived, Victim


class Scheduler:
    """Requests in, plans out.

    Args:
        pool: the blocks (`cache.BlockPool`, or `cache.ReservingPool` for the baseline).
        batching, order, admission, victim, shedding: the policies; an object of them belongs to one scheduler. Without
            an admission, the batching policy's own decides.
        max_num_seqs: sequences running at once, the n samples of a prompt counted from its admission on.
        max_num_batched_tokens: tokens in one step, padding included.
        max_model_len: tokens of one sequence, prompt and output; None leaves only the pool as the limit.
        preemption: "recompute", or "swap", which falls back to recompute when the host pool is full.
        host_pool: blocks on the host for "swap".
        reserve: for a reserving pool: the tokens to reserve for a request's sequence; as many as it may get when None.
            One that outgrows them begins again with a longer run. Of no effect with a pool that reserves nothing.
        max_aborts: failed steps in a row that a request may be part of; with one more it fails itself. Before it comes
            to that, those under suspicion are let into steps one at a time, so that others do not fail with it.

    Raises:
        UnderloadError: a limit below 1 (`max_aborts`: below 0) or of parts of a token, a way of preempting that does
            not exist, or "swap" without a host pool.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        batching: Batching | None = None,
        order: Order | None = None,
        admission: Admission | None = None,
        victim: Victim | None = None,
        shedding: Shedding | None = None,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = 2048,
        max_model_len: int | None = None,
        preemption: str = "recompute",
        host_pool: HostPool | None = None,
        reserve: Callable[[Request], int] | None = None,
        max_aborts: int = 3,
    ) -> None:
        for name, value in (
            ("max_num_seqs", max_num_seqs),
            ("max_num_batched_tokens", max_num_batched_tokens),
            ("max_model_len", 1 if max_model_len is None else max_model_len),
        ):
            _require_count(name, value, 1)
        if preemption not in ("recompute", "swap"):
            raise UnderloadError(f"preemption must be 'recompute' or 'swap', got {preemption!r}")
        if preemption == "swap" and host_pool is None:
            raise UnderloadError("preemption='swap' needs a host_pool to swap to; HostPool(0) has room for nothing")
        _require_count("max_aborts", max_aborts, 0)
        self.pool = pool
        self.names_blocks = getattr(pool, "prefix_caching", True)  # a reader's own pool need not say
        self.batching = batching or Continuous()
        self.order = order or FirstCome()
        self.admission = admission or self.batching.admission()
        self.victim = victim or LastArrived()
        self.shedding = shedding or Shedding()
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.host_pool = host_pool if preemption == "swap" else None
        self.max_aborts = max_aborts
        self.suspicious = max(1, max_aborts - 1)  # failed steps after which a request shares none with another such
        self._reserve = (reserve or self._most) if getattr(pool, "reserves", False) else None
        self.requests: dict[str, Request] = {}  # live, by id
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.held: list[Sequence] = []
        self.ending: list[Sequence] = []
        #: Whether an executor can go on from a token of the sequence that it has drawn and not told yet; such sequences
        #: may be part of a plan while one before it is in flight. None: nobody can.
        self.unseen: Callable[[Sequence], bool] | None = None
        self.num_slots = 0  # taken by running sequences, and by samples that will fork from them
        self.turns = 0  # works handed out so far
        self._order: dict[Sequence, tuple[float, int]] = {}  # of live sequences: the order's key, and who came before
        self._arrivals = 0
        self._expiring: list[tuple[float, int, Request]] = []  # a heap of those that `shedding` may yet drop
        self._leaving: list[Request] = []  # cancelled or failed, and not yet taken out
        self._finished: list[Request] = []
        self._in_flight: deque[Plan] = deque()
        self._plans = 0

    # ---- requests come and go ------------------------------------------------------------------------------------

    def check(self, request: Request) -> None:
        """Refuse what could never be served; changes nothing.

        Raises:
            InvalidRequest: the id is in use, the request was served before, the prompt leaves no room for a token, the
                request has more samples than may run, a sequence of it could outgrow the whole pool, or the batching
                policy could never serve it. Each names the value and the limit.
        """
        name, prompt = request.request_id, len(request.prompt_ids)
        if name in self.requests:
            raise InvalidRequest(f"request id {name!r} is in use; wait for it to finish, or choose another")
        if request.cancelled or request.forked or any(one.finished or one.max_len for one in request.sequences):
            raise InvalidRequest(f"request {name!r} was served or cancelled before; make a new one with its prompt")
        if self.max_model_len is not None and prompt >= self.max_model_len:
            raise InvalidRequest(
                f"request {name!r}: a prompt of {prompt} tokens leaves no room for an answer within "
                f"max_model_len = {self.max_model_len}; shorten it"
            )
        if len(request.sequences) > self.max_num_seqs:
            raise InvalidRequest(
                f"request {name!r} asks for n = {len(request.sequences)} samples, and at most "
                f"max_num_seqs = {self.max_num_seqs} sequences run at once; ask for fewer"
            )
        most = max(self._most(request), self._reserve(request) if self._reserve else 0)
        if most > self.pool.num_blocks * self.pool.block_size:
            raise InvalidRequest(
                f"request {name!r} can need {most} tokens of cache (prompt {prompt}, max_tokens "
                f"{request.params.max_tokens}), and the pool holds {self.pool.num_blocks * self.pool.block_size} "
                f"({self.pool.num_blocks} blocks of {self.pool.block_size}): lower max_tokens, shorten the prompt, or "
                "make the pool larger"
            )
        if why := self.batching.refuses(request, self._most(request), self.max_num_batched_tokens):
            raise InvalidRequest(f"request {name!r}: {why}")

    def add(self, request: Request) -> None:
        """Put a request into the queue, or turn it away at once, if `shedding` says so: it is finished then.

        Raises:
            InvalidRequest: as `check` says; nothing has changed then.
        """
        self.check(request)
        refusal = self.shedding.refuses(request, len(self.waiting))
        self._take_in(request, 0.0 if refusal else self.order.key(request))
        if refusal:
            timeline = request.timeline
            self._refuse(request, refusal, timeline.arrival if timeline.queued is None else timeline.queued)
            return
        if (latest := self.shedding.expires(request)) < inf:
            heapq.heappush(self._expiring, (latest, self._arrivals, request))
        self._wait(request.sequences[0])

    def pass_by(self, request: Request, now: float) -> None:
        """Take a request that was checked, and cancelled before it came: it is finished at once, and no policy hears of
        it."""
        self._take_in(request, 0.0)
        request.cancelled = True
        for sequence in request.sequences:
            self._finish(sequence, FinishReason.CANCELLED, now)

    def cancel(self, request_id: str) -> bool:
        """Mark a request; its blocks come back with the next `schedule` or `commit`. Whether it was live."""
        request = self.requests.get(request_id)
        if request is None or request.cancelled:
            return False
        self._let_go(request)
        return True

    def take_finished(self) -> list[Request]:
        """Requests that finished since the last call, in that order: answered, failed or cancelled."""
        finished, self._finished = self._finished, []
        return finished

    @property
    def idle(self) -> bool:
        """Whether no request is live."""
        return not self.requests

    # ---- a plan --------------------------------------------------------------------------------------------------

    def schedule(self, now: float, *, closing: bool = False, carry: bool = False) -> Plan | Idle:
        """The next step: blocks are taken, but no counter of what is computed moves before `commit`.

        Args:
            closing: no more requests are known to come; a policy need not wait for company.
            carry: the executor knows of `Plan.carried`, and nobody else looks at the works: who decodes is named there,
                where it can be.

        Returns:
            A plan (with no work but copies to the host, in a rare case), or `Idle`.
        """
        self._drop_leaving(now)
        self._drop_expired(now)
        self._end_batch()
        plan = Plan(self._plans)
        if carry:
            self._carry(plan)
        step = Step(self, plan, now, closing)
        self.batching.fill(step)
        if step.preempted and not plan.work and not self.running:
            # Whoever still ran found no blocks beside those of a batch that is over now.
            self._end_batch()
            self.batching.fill(step)
        if not plan.work and not plan.carried and not plan.swap_out:
            # Whoever waits may be dropped by then.
            return Idle(min((until for until in (step.until, self.next_expiry()) if until is not None), default=None))
        self._plans += 1
        plan.queue_length = len(self.waiting)
        plan.sum_up()
        self._in_flight.append(plan)
        return plan

    def _carry(self, plan: Plan) -> None:
        """Take all who decode into the plan, if each of them can without a question: no copy is owed, and nobody has to
        make room."""
        pool, running = self.pool, self.running
        if self._in_flight or self._leaving or len(running) > self.max_num_batched_tokens:
            return
        size, carried, opening = pool.block_size, [], 0
        for sequence in running:
            length = len(sequence.tokens)
            if length - sequence.num_scheduled != 1:
                continue
            if length <= sequence.prompt_len or sequence.request.aborts:  # type: ignore[union-attr]
                return
            if length > sequence.own_until:
                assert sequence.table is not None
                if (length - 1) % size:
                    if not pool.ready(sequence.table, length - 1):
                        return
                elif self._reserve is None:
                    opening += 1
                elif not self._owes_nothing(sequence) or not pool.can_append(sequence.table, length):
                    return
            carried.append(sequence)
        if opening > pool.num_free + pool.num_cached or not self.batching.carries(len(carried), len(running)):
            return
        # From here on as in `Step.run_each`, in the same order.
        names_blocks, turn = self.names_blocks, self.turns
        for sequence in carried:
            table, length = sequence.table, len(sequence.tokens)
            assert table is not None
            if length > sequence.own_until and not (length - 1) % size:
                pool.append(table, length)
                sequence.own_until = table.capacity
            if names_blocks and length >= (table.num_hashed + 1) * size:
                pool.announce(table, sequence.chain, length)
            sequence.num_scheduled = length
            sequence.last_turn = turn
            turn += 1
        self.turns = turn
        plan.carried = carried

    # ---- what a `Step` asks for ------------------------------------------------------------------------------------

    def may_begin(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence may run now: a slot, blocks for all it has, and the admission's word."""
        if self.num_slots + sequence.width > self.max_num_seqs:
            return False
        if not self.pool.can_allocate(sequence.chain, len(sequence.tokens), reserve=self._reserved(sequence)):
            return False
        holding = self.running + self.held if self.held else self.running
        return not holding or self.admission.admits(sequence, holding, self.pool)

    def begin(self, sequence: Sequence, plan: Plan, now: float) -> None:
        """Give a waiting sequence its slot and its blocks. The whole of it has to fit, although a long prompt may be
        computed in several steps."""
        request = sequence.request
        assert request is not None
        table = self.pool.allocate(sequence.chain, len(sequence.tokens), reserve=self._reserved(sequence))
        cached = table.num_hashed * table.block_size
        if request.timeline.scheduled is None:
            request.timeline.scheduled = now
            request.timeline.cached_tokens = cached
            self.order.admitted(request, self._order[sequence][0])
        if sequence.host_tokens > cached:
            first, last = table.num_hashed, len(sequence.host_blocks)
            plan.swap_in += zip(sequence.host_blocks[first:last], table.blocks[first:last])
        sequence.table = table
        sequence.own_until = table.capacity
        sequence.num_computed = sequence.num_scheduled = max(cached, sequence.host_tokens)
        self._leave(self.waiting, sequence)
        sequence.state = SequenceState.RUNNING
        insort(self.running, sequence, key=self._place)
        self.num_slots += sequence.width
        plan.admitted.append(sequence)

    def refuse_for_good(self, sequence: Sequence, now: float) -> None:
        """Fail the request of a sequence that finds no room although nobody holds a block; those behind it go on.
        `check` cannot know where a pool rounds up, or is a reader's own."""
        request = sequence.request
        assert request is not None
        request.error = (
            f"its {len(sequence.tokens)} tokens find no room in the empty pool of {self.pool.num_blocks} blocks of "
            f"{self.pool.block_size}; shorten it, reserve less, or make the pool larger"
        )
        self._let_go(request)
        self._drop_leaving(now)

    def choose_victim(self, sequence: Sequence, plan: Plan) -> Sequence | None:
        """Who makes room for `sequence`, perhaps itself; None where all who run are in plans."""
        if self._reserve is not None:
            return sequence  # what others give back does not lengthen a run
        # Nor is it one that this plan admits, for no token yet: copies may be on their way into its blocks.
        named = set(plan.admitted)
        free = (one for one in reversed(self.running) if one.num_scheduled == one.num_computed and one not in named)
        return self.victim.choose(free, self.pool)

    def preempt(self, sequence: Sequence, plan: Plan, now: float) -> None:
        """Take all blocks of a running sequence; it goes back to its place among the waiting."""
        assert sequence.table is not None
        # One that never ran holds what its prompt's first sample computed, and a reserving pool has yet to copy it.
        if self.host_pool is not None and sequence.last_turn >= 0:
            # blocks:  [0, used) hold keys and values    [used, end) taken for tokens that are not computed yet
            used = -(-sequence.num_computed // sequence.table.block_size)
            if used and self.host_pool.num_free >= used:
                sequence.host_blocks = self.host_pool.allocate(used)
                sequence.host_tokens = sequence.num_computed
                plan.swap_out += zip(sequence.table.blocks[:used], sequence.host_blocks)
                plan.left.append(sequence)
        sequence.preemptions += 1
        if sequence.request is not None and sequence.index == 0:
            sequence.request.timeline.preemptions += 1
            sequence.request.timeline.preempted.append(now)
        self._stop(sequence)
        self._wait(sequence)

    # ---- places, slots and blocks ------------------------------------------------------------------------------------

    def _reserved(self, sequence: Sequence) -> int | None:
        return None if self._reserve is None or sequence.request is None else self._reserve(sequence.request)

    def _stop(self, sequence: Sequence) -> None:
        """A running sequence gives up its slot and its blocks."""
        self._leave(self.running, sequence)
        self.num_slots -= sequence.width
        assert sequence.table is not None
        self.pool.free(sequence.table)
        sequence.table = None
        sequence.num_computed = sequence.num_scheduled = 0

    def _wait(self, sequence: Sequence) -> None:
        sequence.state = SequenceState.WAITING
        if sequence.chain is None:
            request = sequence.request
            assert request is not None
            sequence.chain = BlockChain(
                sequence.tokens, self.pool.block_size, salt=request.salt, adapter=request.adapter
            )
        insort(self.waiting, sequence, key=self._place)

    def _place(self, sequence: Sequence) -> tuple[float, int]:
        return self._order[sequence]

    def _leave(self, queue: list[Sequence], sequence: Sequence) -> None:
        """Take a sequence out of a queue, if it is in it, without a walk through those before it."""
        place = bisect_left(queue, self._order[sequence], key=self._place)
        if place < len(queue) and queue[place] is sequence:
            del queue[place]

    def _take_in(self, request: Request, key: float) -> None:
        self.requests[request.request_id] = request
        for sequence in request.sequences:
            sequence.max_len = self._limit(request)
            self._order[sequence] = (key, self._arrivals)
            self._arrivals += 1

    def _owes_nothing(self, sequence: Sequence) -> bool:
        """Of a reserving pool: whether nothing has to be copied into the run before it is written to."""
        assert sequence.table is not None
        return self.pool.ready(sequence.table, len(sequence.tokens) - 2)

    def _most(self, request: Request) -> int:
        """Tokens that a sequence of the request has in the cache at most: the last is never fed back."""
        return max(self._limit(request) - 1, 1)

    def _limit(self, request: Request) -> int:
        """Tokens that a sequence of the request has at most."""
        limit = len(request.prompt_ids) + request.params.max_tokens
        return limit if self.max_model_len is None else min(limit, self.max_model_len)

    def _drop_host(self, sequence: Sequence) -> None:
        if sequence.host_blocks and self.host_pool is not None:
            self.host_pool.free(sequence.host_blocks)
        sequence.host_blocks, sequence.host_tokens = [], 0

    # ---- what came of a plan -------------------------------------------------------------------------------------

    def commit(self, plan: Plan, result: StepResult, now: float) -> None:
        """The plan was executed: counters advance, tokens are appended, samples fork, the finished go.

        Raises:
            UnderloadError: not the oldest plan in flight, another number of samples than the plan wants, what is no
                token id, or a duration below 0 s or without end; nothing has changed then.
        """
        if plan.checked is not result:
            self.check_result(plan, result)
        self._in_flight.popleft()
        for sequence in plan.admitted:
            self._drop_host(sequence)
        publish, block_size, names_blocks = self.pool.publish, self.pool.block_size, self.names_blocks
        stopped = result.stopped
        for sequence, token_id in zip(plan.carried, result.carried):
            tokens, table = sequence.tokens, sequence.table
            sequence.num_computed = computed = len(tokens)
            if names_blocks and computed >= (table.num_hashed + 1) * block_size:  # type: ignore[union-attr]
                publish(table, sequence.chain, computed)  # type: ignore[arg-type]
            tokens.append(token_id)
            if not sequence.index:
                sequence.request.timeline.token_times.append(now)  # type: ignore[union-attr]
            if computed + 1 >= sequence.max_len or (stopped and sequence in stopped):
                self.end_if_complete(sequence, FinishReason.STOP if sequence in stopped else None, now)
        for work, sampled in zip(plan.work, result.sampled):
            sequence, start, stop = work.sequence, work.start, work.stop
            request, table = sequence.request, sequence.table
            sequence.num_computed = stop
            if request is not None:
                request.aborts = 0
            if sequence.finish_reason is not None:
                self._end(sequence)  # it ended in a step before this one, and what this one drew is nobody's
                continue
            if names_blocks and table is not None and stop >= (table.num_hashed + 1) * block_size:
                publish(table, sequence.chain, stop)  # a full block is not known yet
            if (stop - start > 1 or start < sequence.prompt_len or not sampled) and not sequence.index:
                assert request is not None
                request.timeline.prefills.append((now, start, stop))
            if not sampled:
                continue
            if len(sampled) > 1:
                self._fork(sequence, sampled[1:], now)
            self._append(sequence, sampled[0], now)
        self._drop_leaving(now)
        self._end_batch()

    def repeat(self) -> Repeat | None:
        """The steps to come in which all who run decode and nobody else comes in, as far as that is certain; None where
        the next may be another."""
        running, pool = self.running, self.pool
        if not self.batching.repeats or self._in_flight or self._leaving or not running:
            return None
        if len(running) + len(self.held) > self.max_num_batched_tokens:
            return None
        queueing = bool(self.waiting) and not self.batching.keeps_finished
        if queueing and self.may_begin(self.waiting[0]):
            return None
        most, size, names_blocks = MAX_ID, pool.block_size, self.names_blocks
        for sequence in running:
            assert sequence.table is not None
            computed, length = sequence.num_computed, len(sequence.tokens)
            if length - computed != 1 or computed < sequence.prompt_len:
                return None
            if sequence.max_len - length < most:
                most = sequence.max_len - length
            if computed >= sequence.own_until and computed % size and not pool.ready(sequence.table, computed):
                return None  # a copy is owed
            if self._reserve is not None:  # one that outgrows its run begins again, in a step of its own
                if computed >= sequence.own_until and not self._owes_nothing(sequence):
                    return None
                most = min(most, len(pool.granted(sequence.table)) * size - computed)
            if names_blocks and sequence.table.num_hashed != computed // size:
                return None  # blocks that came back from the host, say, become known in the next step
        if queueing and self._may_come_in(self.waiting[0], most):
            return None
        repeat = Repeat(self, list(running), list(self.held), most)
        return repeat if repeat.most else None

    def _may_come_in(self, first: Sequence, steps: int) -> bool:
        """Whether the first in the queue may find room in the next so many steps, although nobody finishes."""
        if self.num_slots + first.width > self.max_num_seqs:
            return False
        if not self.admission.grows_only_stricter or self.may_begin(first):
            return True
        if not self.names_blocks:
            return False
        # The next block that it could share may become known meanwhile: by one that has said the same so far.
        size = self.pool.block_size
        known = self.pool.cached_tokens(first.chain, len(first.tokens)) // size
        for one in self.running:
            if one.table is None or not one.table.num_hashed <= known < (one.num_computed + steps) // size:
                continue
            told = min(len(one.tokens) // size, known) - 1
            if told < 0 or one.chain.digest(told) == first.chain.digest(told):
                return True
        return False

    def end_if_complete(self, sequence: Sequence, reason: FinishReason | None, now: float) -> None:
        """Finish a sequence that has stopped, or is as long as it may get."""
        if reason is None and len(sequence.tokens) >= sequence.max_len:
            reason = FinishReason.LENGTH
        if reason is not None:
            self._finish(sequence, reason, now)

    def steps_taken(self, count: int) -> None:
        """So many steps were taken without a plan (`Repeat`)."""
        self._plans += count
        self._end_batch()

    def next_expiry(self) -> float | None:
        """The instant at which somebody who waits may be dropped; None if nobody is."""
        return self._expiring[0][0] if self._expiring and self.waiting else None

    def check_result(self, plan: Plan, result: StepResult) -> None:
        """Refuse a result that cannot be committed; changes nothing.

        Raises:
            UnderloadError: as `commit` says.
        """
        if not self._in_flight or self._in_flight[0] is not plan:
            raise UnderloadError(f"plan {plan.number} is not the oldest in flight; commit plans once, and in order")
        fits = len(result.sampled) == len(plan.work) and len(result.carried) == len(plan.carried)
        for work, draws in zip(plan.work, result.sampled):
            fits = fits and len(draws) == work.samples
            for sampled in draws:
                token_id = sampled.token_id
                if not (type(token_id) is int and -MAX_ID <= token_id <= MAX_ID):
                    _require_id(token_id, plan)
        if result.carried and not (
            set(map(type, result.carried)) == {int} and min(result.carried) >= -MAX_ID and max(result.carried) <= MAX_ID
        ):
            for token_id in result.carried:
                _require_id(token_id, plan)
        if not fits:
            got, wanted = [len(draws) for draws in result.sampled], [work.samples for work in plan.work]
            more = f", and {len(plan.carried)} ids beside them, got {len(result.carried)}" if plan.carried else ""
            raise UnderloadError(
                f"plan {plan.number} wants {wanted} samples for its works, and the result has {got}{more}"
            )
        if result.duration is not None and not 0 <= result.duration < inf:
            raise UnderloadError(
                f"plan {plan.number} took {result.duration} s, by its result; a step takes 0 s or more"
            )
        plan.checked = result

    def _fork(self, first: Sequence, draws: list[Sampled], now: float) -> None:
        """The other samples of a prompt go on from its blocks. Where these cannot be shared, they compute it again."""
        request = first.request
        assert request is not None
        assert first.table is not None
        request.forked = True
        first.own_until = 0
        self.num_slots -= len(draws)
        for sequence, sampled in zip(request.sequences[1:], draws):
            try:
                sequence.table = self.pool.fork(first.table)
            except OutOfBlocks:
                self._wait(sequence)
            else:
                sequence.chain = BlockChain(
                    sequence.tokens, self.pool.block_size, salt=request.salt, adapter=request.adapter
                )
                sequence.num_computed = sequence.num_scheduled = first.num_computed
                sequence.state = SequenceState.RUNNING
                insort(self.running, sequence, key=self._place)
                self.num_slots += 1
            self._append(sequence, sampled, now)

    def _append(self, sequence: Sequence, sampled: Sampled, now: float) -> None:
        request = sequence.request
        assert request is not None
        if sampled.error is not None:
            request.error = sampled.error
            self._finish(sequence, FinishReason.ERROR, now)
            return
        tokens = sequence.tokens
        tokens.append(index(sampled.token_id))
        if sequence.num_drawing:
            sequence.num_drawing -= 1
        if not sequence.index:
            request.timeline.token_times.append(now)
        if sampled.finish_reason is not None or len(tokens) >= sequence.max_len:
            self.end_if_complete(sequence, sampled.finish_reason, now)

    def _finish(self, sequence: Sequence, reason: FinishReason, now: float) -> None:
        request = sequence.request
        assert request is not None
        if sequence.state is not SequenceState.RUNNING:
            self._leave(self.waiting, sequence)
        elif self.batching.keeps_finished and sequence.num_computed:
            self._leave(self.running, sequence)
            self.num_slots -= sequence.width
            self.held.append(sequence)
        elif sequence.num_scheduled > sequence.num_computed:
            self._leave(self.running, sequence)
            self.num_slots -= sequence.width
            self.ending.append(sequence)
        else:
            self._stop(sequence)
        self._drop_host(sequence)
        sequence.state = SequenceState.FINISHED
        sequence.finish_reason = reason
        del self._order[sequence]
        if request.finished:
            request.timeline.finished = now
            reasons = [one.finish_reason for one in request.sequences]
            # A request with a sample that failed is no success, whatever the others said.
            worst = next((r for r in (FinishReason.ERROR, FinishReason.CANCELLED) if r in reasons), reasons[0])
            request.timeline.finish_reason = str(worst)
            del self.requests[request.request_id]
            self._finished.append(request)

    def _let_go(self, request: Request) -> None:
        request.cancelled = True
        self._leaving.append(request)

    def _end(self, sequence: Sequence) -> None:
        """The blocks of a finished sequence come back, unless a plan in flight still names them."""
        if sequence in self.ending and sequence.num_scheduled == sequence.num_computed:
            self.ending.remove(sequence)
            assert sequence.table is not None
            self.pool.free(sequence.table)
            sequence.table = None
            sequence.num_computed = sequence.num_scheduled = 0

    def _refuse(self, request: Request, why: str, now: float) -> None:
        """Turn away a request of which nothing has been computed."""
        request.error = why
        for sequence in request.sequences:
            self._finish(sequence, FinishReason.REFUSED, now)

    def _drop_expired(self, now: float) -> None:
        """Turn away those who have waited for too long."""
        while self._expiring and self._expiring[0][0] <= now:
            latest, _, request = heapq.heappop(self._expiring)
            if request.timeline.scheduled is None and not request.finished and not request.cancelled:
                waited = latest - request.timeline.arrival
                self._refuse(request, f"it was to begin within {waited:.6g} s, and did not; send it again later", now)

    def _end_batch(self) -> None:
        """The finished members of a static batch give back their blocks once nobody of it runs."""
        if self.held and not self.running and not self._in_flight:
            for sequence in self.held:
                assert sequence.table is not None
                self.pool.free(sequence.table)
                sequence.table = None
                sequence.num_computed = sequence.num_scheduled = 0
            self.held = []

    def _drop_leaving(self, now: float) -> None:
        """Take out the cancelled and failed that no plan in flight names; the others follow at their commit."""
        still: list[Request] = []
        for request in self._leaving:
            reason = FinishReason.CANCELLED if request.error is None else FinishReason.ERROR
            # Samples that have not parted yet go with the first, which may be in flight.
            for sequence in request.sequences:
                one = sequence if request.forked else request.sequences[0]
                if not sequence.finished and one.num_scheduled == one.num_computed:
                    self._finish(sequence, reason, now)
            if not request.finished:
                still.append(request)
        self._leaving = still

    def abort(self, plan: Plan, error: BaseException, now: float) -> None:
        """Executing the plan failed: leave no trace of it, nor of plans made after it.

        What was to be copied may be copied or not, and blocks that another sequence was to fill may be empty: those
        sequences compute their tokens again. The others try the same step again. A request that was part of more than
        `max_aborts` failed steps in a row fails, by name.

        Raises:
            UnderloadError: the plan is not in flight.
        """
        if plan not in self._in_flight:
            raise UnderloadError(f"plan {plan.number} is not in flight: it was committed or aborted before")
        while self._in_flight:
            last = self._in_flight.pop()
            self._undo(last)
            if last is plan:
                break
        taking_part = [*plan.carried, *(work.sequence for work in plan.work)]
        for request in dict.fromkeys(sequence.request for sequence in taking_part):
            assert request is not None
            request.aborts += 1
            if request.aborts > self.max_aborts and not request.cancelled:
                request.error = f"{request.aborts} steps with it failed; the last: {type(error).__name__}: {error}"
                self._let_go(request)
        self._drop_leaving(now)
        self._end_batch()

    def _undo(self, plan: Plan) -> None:
        for sequence in plan.carried:
            assert sequence.table is not None
            sequence.num_scheduled -= 1
            self.pool.retract(sequence.table, sequence.num_scheduled)
        for work in reversed(plan.work):  # a sequence may have several, one behind the other
            sequence = work.sequence
            assert sequence.table is not None
            self.pool.retract(sequence.table, work.start)
            sequence.num_scheduled = work.start  # an earlier plan may still be in flight
            if work.samples:
                sequence.num_drawing = max(work.stop - len(sequence.tokens), 0)
            if sequence.finished:
                self._end(sequence)
        for sequence in dict.fromkeys([*plan.admitted, *plan.copied]):
            if sequence.finished:
                continue
            assert sequence.request is not None
            if sequence.request.timeline.first_token is None and not sequence.preemptions:
                sequence.request.timeline.scheduled = None  # it has not begun after all
            self._stop(sequence)
            self._drop_host(sequence)
            self._wait(sequence)
        for sequence in plan.left:
            self._drop_host(sequence)


def _require_count(name: str, value: object, least: int) -> None:
    if not isinstance(value, Integral) or int(value) < least:
        raise UnderloadError(f"{name} must be a whole number of at least {least}, got {value!r}")


def _require_id(token_id: object, plan: Plan) -> None:
    """An id may be any whole number of 64 bits, an array's for one."""
    if not isinstance(token_id, Integral) or not -MAX_ID <= int(token_id) <= MAX_ID:
        raise UnderloadError(f"plan {plan.number} drew {token_id!r}; a token id is a whole number of at most 64 bits")
