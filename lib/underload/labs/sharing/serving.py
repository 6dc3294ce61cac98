"""A student's pool under the real scheduler: on a virtual clock, and on pocket."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator

from underload.cache import BlockChain, HostPool, PoolCounters
from underload.cache.tables import Tables
from underload.engine import Engine
from underload.labs.sharing import forks
from underload.labs.sharing.names import VOCABULARY, Entry
from underload.labs.sharing.pool import Pool, check_finds, check_grows, check_refuses
from underload.labs.sharing.returning import BLOCK, LINK, PER_BLOCK, swap
from underload.request import BlockTable, OutOfBlocks, Request, SamplingParams, Timeline, UnderloadError, VirtualClock
from underload.scheduling import Plan, Scheduler
from underload.shapes import device, shape
from underload.simulation import CostModelExecutor, RooflineStepTime
from underload.workload import Conversations, GeometricTokens, Lengths, Planned, Poisson, PromptIds, Workload


class Adapted:
    """A pool in the lab's few methods as the scheduler wants one (`underload.cache.Pool`).

    Args:
        pool: has `find`, `can_allocate`, `allocate`, `append`, `publish`, `free` and `counts`.
        fork, write: Task 3's two functions; the lab's where None.
        names: digests(tokens, size, salt, adapter), by which blocks are named; the library's where None.
        confirm: Task 1's confirmed(): of what a name finds, only that is given to a sequence; None trusts names.
    """

    def __init__(
        self,
        pool: Any,
        num_blocks: int,
        block_size: int,
        *,
        fork: Callable[..., Any] | None = None,
        write: Callable[..., Any] | None = None,
        names: Callable[..., Any] | None = None,
        confirm: Callable[..., Any] | None = None,
    ) -> None:
        self.pool = pool
        self.num_blocks, self.block_size = num_blocks, block_size
        self.counters, self.tables = PoolCounters(), Tables()
        self._fork_of, self._write_of = fork or forks.fork, write or forks.write
        self._names, self._confirm = names, confirm
        self._named: dict[BlockChain, list[Any]] = {}
        self._index: dict[Any, Entry] = {}
        self._generations: defaultdict[int, int] = defaultdict(int)

    @property
    def num_free(self) -> int:
        return int(self.pool.counts()[0])

    @property
    def num_cached(self) -> int:
        return int(self.pool.counts()[1])

    @property
    def num_used(self) -> int:
        return int(self.pool.counts()[2])

    def can_allocate(self, chain: BlockChain | None, tokens: int, *, reserve: int | None = None) -> bool:
        return bool(self.pool.can_allocate(self._trusted(chain), tokens))

    def allocate(self, chain: BlockChain | None, tokens: int, *, reserve: int | None = None) -> BlockTable:
        try:
            blocks, hits = self.pool.allocate(self._trusted(chain), tokens)
        except OutOfBlocks as error:  # the scheduler has asked before
            raise OutOfBlocks(
                f"can_allocate() said that there is room for {tokens} tokens, and allocate() was refused ({error}); "
                "what was found and is cached is no room for the rest"
            ) from error
        self.counters.queries += tokens
        self.counters.hits += hits * self.block_size
        return self.tables.add(BlockTable(self.block_size, list(map(int, blocks)), int(hits)))

    def fork(self, table: BlockTable) -> BlockTable:
        blocks = list(self._fork_of(self.pool, table.blocks))
        return self.tables.add(BlockTable(self.block_size, blocks, table.num_hashed))

    def append(self, table: BlockTable, tokens: int) -> None:
        if tokens > table.capacity:
            self.pool.append(table.blocks, tokens)

    def ready(self, table: BlockTable, position: int) -> bool:
        """Nobody knows before `append` and `write` were asked."""
        return False

    def write(self, table: BlockTable, start: int, stop: int) -> list[tuple[int, int]]:
        copies = [(int(source), int(target)) for source, target in self._write_of(self.pool, table.blocks, start, stop)]
        self.counters.copies += len(copies)
        return copies

    def announce(self, table: BlockTable, chain: BlockChain | None, tokens: int) -> None:
        """Nothing: here a block is found once it is filled, and not while a plan is to fill it."""

    def publish(self, table: BlockTable, chain: BlockChain | None, tokens: int) -> None:
        full = tokens // self.block_size
        if chain is None or full <= table.num_hashed:
            return
        names = self._digests(chain, full)
        self.pool.publish(table.blocks, list(names))
        if self._confirm is not None:
            self._enter(table, chain, names)
        table.num_hashed = full

    def retract(self, table: BlockTable, tokens: int) -> None:
        """Nothing: nothing was announced."""

    def free(self, table: BlockTable) -> None:
        self.tables.require(table)
        self.pool.free(list(table.blocks))
        self.tables.remove(table)

    # ---- names

    def _trusted(self, chain: BlockChain | None) -> list[Any]:
        """The digests that the pool is given: those of the prefix that is confirmed, if anything is."""
        if chain is None:
            return []
        names = self._digests(chain, len(chain))
        if self._confirm is None:
            return list(names)
        contents = [_tokens(chain, place) for place in range(len(chain))]
        return list(names[: len(self._confirm(dict(self._index), list(names), contents, chain.root))])

    def _digests(self, chain: BlockChain, count: int) -> list[Any]:
        if self._names is None:
            return [name for name, _ in chain.names(0, count)]
        named = self._named.get(chain, [])
        if len(named) < count:
            tokens = [token for place in range(len(chain)) for token in _tokens(chain, place)]
            named = self._named[chain] = list(self._names(tokens, self.block_size, *chain.root))
        return named[:count]

    def _enter(self, table: BlockTable, chain: BlockChain, names: Sequence[Any]) -> None:
        parent: tuple[Any, Any] = chain.root
        for place, name in enumerate(names):
            block, tokens = table.blocks[place], _tokens(chain, place)
            entry = self._index.get(name)
            if entry is None or self.pool.find([name], 2 * self.block_size) == [block] != [entry.block]:
                self._generations[block] += 1
                entry = self._index[name] = Entry(block, self._generations[block], tokens, parent)
            if entry.tokens != tokens or entry.parent != parent:
                return
            parent = (entry.block, entry.generation)


def _tokens(chain: BlockChain, place: int) -> tuple[int, ...]:
    return struct.unpack(f"<{chain.block_size}q", chain.content(place))


def usable(pool: Callable[[int, int], Any]) -> Callable[[int, int], Any]:
    """The student's class if a small program runs on it, the lab's if not; it is said which."""
    try:
        check_grows(pool)
        check_finds(pool)
        check_refuses(pool)
    except NotImplementedError:
        why = "your Pool is not written yet"
    except Exception as error:  # whatever a student's code raises; the check's card says in which line
        why = f"your Pool does not pass its first checks ({str(error)[:80]} …)"
    else:
        missing = [name for name in ("refs", "block_size") if not hasattr(pool(8, 4), name)]
        if not missing:
            return pool
        why = f"your Pool has no {' and no '.join(missing)}, which fork() and write() read"
    print(f"{why}: the lab's was taken in its place")
    return Pool


def usable_functions(fork: Callable[..., Any], write: Callable[..., Any]) -> tuple[Callable[..., Any], ...]:
    """The student's fork and write if they pass their first checks, the lab's if not; it is said which."""
    try:
        forks.check_own_words(fork, write)
        forks.check_copies(fork, write)
    except NotImplementedError:
        why = "your fork and write are not written yet"
    except Exception as error:
        why = f"your fork and write do not pass their first checks ({str(error)[:80]} …)"
    else:
        return fork, write
    print(f"{why}: the lab's were taken in their place")
    return forks.fork, forks.write


def conversations(seed: int = 9, sessions: int = 30, rate: float = 20.0, answer: int = 80) -> list[Planned]:
    """People who talk for some turns: every prompt holds all that was said before, after one system prompt."""
    lengths = Lengths(GeometricTokens(48), GeometricTokens(answer))
    chats = Conversations(GeometricTokens(4), think=0.5, system=96, limit=1200, pace=0.008)
    return Workload(Poisson(rate), lengths, chats).plan(seed, requests=sessions)


@dataclass
class Served:
    """What a run of the engine left: its records, and the pool's."""

    engine: Engine
    answered: int
    refused: int
    seconds: float

    @property
    def pool(self) -> Any:
        return self.engine.scheduler.pool

    @property
    def hit_rate(self) -> float:
        """Tokens found, of those that prompts asked for when they were admitted."""
        return self.pool.counters.hits / max(1, self.pool.counters.queries)

    @property
    def preemptions(self) -> int:
        return sum(one.preemptions for request in self.engine.finished for one in request.sequences)

    @property
    def ttft(self) -> float:
        """Mean time to first token in s."""
        waits = [
            request.timeline.first_token - request.timeline.arrival
            for request in self.engine.finished
            if request.timeline.first_token is not None
        ]
        return float(np.mean(waits))

    @property
    def prefilled(self) -> int:
        """Prompt tokens that were computed, those computed again included."""
        return sum(step.prefill_tokens for step in self.engine.steps)

    def __str__(self) -> str:
        return (
            f"{self.hit_rate:6.1%} of prompt tokens found, {self.prefilled:6,} computed, {self.preemptions:3} "
            f"preemptions, TTFT {1e3 * self.ttft:6.1f} ms, {self.seconds:6.2f} s"
        )


def step_time(
    model: str = "llama-3-8b", on: str = "h100-sxm", link: float = LINK, per_block: float = PER_BLOCK, size: int = BLOCK
) -> Callable[[Plan], float]:
    """s of a plan: the roofline of its work, and the copies to the host and back, one after the other."""
    compute, each = (
        RooflineStepTime(shape(model), device(on)),
        swap(size, shape(model), link, size, per_block) / 2,
    )

    def seconds(plan: Plan) -> float:
        return compute(plan) + each * (len(plan.swap_out) + len(plan.swap_in))

    return seconds


def serve(
    pool: Any,
    load: Sequence[Planned],
    *,
    host_blocks: int = 0,
    max_num_seqs: int = 32,
    seconds_of: Callable[[Plan], float] | None = None,
) -> Served:
    """Run a load of conversations through scheduler and engine on a virtual clock. A turn follows the answer to the
    one before by its think time, and holds what was really said. With `host_blocks`, who is preempted is swapped."""
    ids = PromptIds(VOCABULARY, seed=1)
    executor = CostModelExecutor(
        seconds_of or step_time(size=pool.block_size),
        output_tokens={str(planned.index): planned.output_tokens for planned in load},
        vocabulary=VOCABULARY,
    )
    swapped: dict[str, Any] = {"preemption": "swap", "host_pool": HostPool(host_blocks)} if host_blocks else {}
    scheduler = Scheduler(pool, max_num_seqs=max_num_seqs, max_num_batched_tokens=512, **swapped)
    engine = Engine(scheduler, executor, VirtualClock())
    engine.join_steps = engine.carry = False  # a reader's pool is asked at each step, as a decoder would
    turns: dict[str, list[Planned]] = defaultdict(list)
    for planned in load:
        turns[planned.session or str(planned.index)].append(planned)
    refused = 0

    def send(planned: Planned, arrival: float) -> None:
        nonlocal refused
        params = SamplingParams(max_tokens=planned.output_tokens, temperature=0)
        try:
            engine.add(Request(str(planned.index), ids(planned), params, Timeline(arrival)))
        except UnderloadError:  # longer than the whole pool: the conversation ends
            refused += 1
            turns[planned.session or ""].clear()

    by_index = {str(planned.index): planned for planned in load}
    for queue in list(turns.values()):
        first = queue.pop(0)
        send(first, first.arrival)
    seen = 0
    while True:
        going = engine.step()
        while seen < len(engine.finished):
            request = engine.finished[seen]
            seen += 1
            planned = by_index[request.request_id]
            ids.answered(planned, request.sequences[0].output_ids)
            queue = turns[planned.session or ""]
            if queue:
                following = queue.pop(0)
                send(following, (request.timeline.finished or 0.0) + (following.think or 0.0))
                going = True
        if not going:
            return Served(engine, len(engine.finished), refused, engine.clock.now())


def _room_to_write(pool: Any, blocks: Sequence[int], start: int, stop: int) -> list[tuple[int, int]]:
    """write() where nobody forks, so that nothing is copied: it reads no `refs`, which a pool may keep otherwise."""
    assert len(blocks) * BLOCK >= stop, (
        f"position {stop - 1} is to be written, and the table has {len(blocks)} blocks of {BLOCK}"
    )
    return []


def check_served(pool: Callable[[int, int], Any], draw: Generator) -> None:
    """Under the scheduler, a load of conversations is answered, and as much is found as with the lab's own pool.

    Raises:
        AssertionError: naming the requests that were not answered, or both numbers of tokens found.
    """
    load = conversations(int(draw.integers(1000)), sessions=5, answer=6)
    blocks = int(draw.integers(30, 50))
    mine = serve(Adapted(pool(blocks, 16), blocks, 16, write=_room_to_write), load)
    right = serve(Adapted(Pool(blocks, 16), blocks, 16), load)
    failed = [request for request in mine.engine.finished if request.error]
    assert not failed and mine.answered == right.answered, (
        f"{mine.answered - len(failed)} requests were answered and {right.answered} could be"
        + (f"; {failed[0].request_id}: {failed[0].error}" if failed else "")
    )
    got, wanted = mine.pool.counters.hits, right.pool.counters.hits
    assert got == wanted, (
        f"{len(load)} requests in {blocks} blocks of 16: {got:,} tokens were found, and {wanted:,} with the lab's pool"
    )
    assert not mine.pool.num_used, f"all requests are answered, and {mine.pool.num_used} blocks are still used"


def say(executor: Any, prompts: Sequence[Sequence[int]], pool: Any, tokens: int = 20) -> list[Request]:
    """Have a decoder answer one prompt after the other, greedily, with its keys and values in this pool's blocks.

    The prompts are sent one by one, so that each finds what those before it have left.

    Args:
        executor: a `DecoderExecutor` with as many blocks as the pool has, and of its size.
    """
    engine = _engine(executor, pool)
    answered = []
    for place, prompt in enumerate(prompts):
        params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
        request = Request(f"prompt {place}", list(prompt), params, Timeline(engine.clock.now()))
        engine.add(request)
        engine.run()
        assert request.error is None and len(request.sequences[0].output_ids) == tokens, (
            f"prompt {place} was not answered: {request.error or 'steps with it failed'}"
        )
        answered.append(request)
    return answered


def together(
    executor: Any, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], pool: Any
) -> tuple[list[list[list[int]]], Engine]:
    """Have a decoder answer all prompts at once: the ids of each sample of each, and the engine that ran them."""
    engine = _engine(executor, pool)
    requests = []
    for place, (prompt, wishes) in enumerate(zip(prompts, params)):
        requests.append(Request(f"prompt {place}", list(prompt), wishes, Timeline(engine.clock.now())))
        engine.add(requests[-1])
    engine.run()
    return [[one.output_ids for one in request.sequences] for request in requests], engine


def _engine(executor: Any, pool: Any) -> Engine:
    return Engine(Scheduler(pool, max_model_len=executor.model.shape.max_positions), executor)
