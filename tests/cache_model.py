"""A block pool beside a naive one and a memory that knows its own right content; every call is checked on both.

`Twin` holds a `BlockPool` and a model of it that counts by searching: references are counted in the tables, what is
known is a dict with whole prefixes for keys, order of use is a list. The memory has a slot for each token and writes
into it the whole prefix that led there, so that a block given to the wrong sequence, overwritten or not copied is seen
by reading it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from underload.cache import BlockChain, BlockPool, block_digest
from underload.cache.chain import Digest
from underload.request import BlockTable, OutOfBlocks, UnderloadError


@dataclass(eq=False)
class Grown:
    """One sequence of the test: all tokens it will ever have, and how far it has come."""

    tokens: list[int]
    salt: str
    chain: BlockChain
    table: BlockTable
    computed: int  # filled, or found
    planned: int | None = None  # where the plan takes it
    copies: list[tuple[int, int]] = field(default_factory=list)
    admitted: bool = True  # since the last commit: what it found may be pending


@dataclass(eq=False)
class Known:
    """A content that was entered; its own object is its identity."""

    prefix: tuple[Any, ...]
    parent: Known | str
    key: Any


class Twin:
    def __init__(
        self, num_blocks: int, block_size: int, *, prefix_caching: bool = True, digest: Digest = block_digest
    ) -> None:
        self.size = block_size
        self.caching = prefix_caching
        self.digest = digest
        self.pool = BlockPool(num_blocks, block_size, prefix_caching=prefix_caching)
        self.sequences: list[Grown] = []
        self.copying: list[Grown] = []  # those whose plan has copies, in its order
        self.memory: list[Any] = ["never written"] * (num_blocks * block_size)
        # The naive pool.
        self.free = set(range(num_blocks))
        self.cached: list[int] = []  # longest out of use first
        self.known: dict[int, Known] = {}  # block -> its content
        self.found: dict[Any, int] = {}  # key -> block
        self.pending: dict[int, Grown] = {}
        self.generations = [0] * num_blocks
        self.operations = 0

    # ---- the naive pool ------------------------------------------------------------------------------------------

    def refs(self, block: int) -> int:
        return sum(sequence.table.blocks.count(block) for sequence in self.sequences)

    def prefix(self, sequence: Grown, place: int) -> tuple[Any, ...]:
        return (sequence.salt, *sequence.tokens[: (place + 1) * self.size])

    def key(self, sequence: Grown, place: int) -> Any:
        """What the index goes by: whole prefixes, or, where digests are made to collide, these."""
        return self.prefix(sequence, place) if self.digest is block_digest else sequence.chain.digest(place)

    def expected_hits(self, sequence: Grown, tokens: int) -> list[int]:
        hits: list[int] = []
        parent: Known | str = sequence.salt
        if not self.caching:
            return hits
        for place in range((tokens - 1) // self.size):
            block = self.found.get(self.key(sequence, place))
            if block is None:
                break
            known = self.known[block]
            if known.prefix[-self.size :] != self.prefix(sequence, place)[-self.size :] or known.parent != parent:
                break
            hits.append(block)
            parent = known
        return hits

    def took(self, blocks: list[int]) -> None:
        """The pool took these, in this order: free ones first, then the ones longest out of use."""
        for block in blocks:
            if self.free:
                assert block in self.free
                self.free.remove(block)
            else:
                assert block == self.cached.pop(0)
                self.forget(block)

    def forget(self, block: int) -> None:
        known = self.known.pop(block, None)
        if known is not None and self.found.get(known.key) == block:
            del self.found[known.key]
        self.pending.pop(block, None)

    def released(self, block: int) -> None:
        """A table gave this block up (and no longer names it)."""
        if self.refs(block):
            return
        known = self.known.get(block)
        if known is not None and self.found.setdefault(known.key, block) == block:
            self.cached.append(block)
        else:
            self.forget(block)
            self.free.add(block)

    def enter(self, sequence: Grown, place: int, parent: Known | str) -> None:
        block = sequence.table.blocks[place]
        known = Known(self.prefix(sequence, place), parent, self.key(sequence, place))
        self.known[block] = known
        self.found[known.key] = block

    def parent(self, sequence: Grown, place: int) -> Known | str | None:
        return self.known.get(sequence.table.blocks[place - 1]) if place else sequence.salt

    def same(self, block: int, sequence: Grown, place: int, parent: Known | str) -> bool:
        known = self.known[block]
        return known.parent == parent and known.prefix[-self.size :] == self.prefix(sequence, place)[-self.size :]

    # ---- calls, each on the pool and on the model ----------------------------------------------------------------

    def state(self) -> Any:
        """Everything a refused call must leave alone."""
        pool = self.pool
        return (
            list(pool._free),
            list(pool._cached),
            list(pool._ref_counts),
            dict(pool.index._entries),
            list(pool.index.names),
            list(pool.index._generations),
            dict(pool._writers),
            vars(pool.counters).copy(),
            [(list(table.blocks), table.num_hashed) for table in pool.tables],
        )

    def refused(self, call: Callable[[], object], error: type[UnderloadError]) -> None:
        before = self.state()
        try:
            call()
        except UnderloadError as raised:
            assert type(raised) is error, raised
        else:
            raise AssertionError(f"{error.__name__} was due")
        assert self.state() == before

    def admit(self, tokens: list[int], length: int, salt: str = "") -> Grown | None:
        """A sequence with all its `tokens` to come, of which it now asks for the first `length`."""
        self.operations += 2
        seen = tokens[:length]
        chain = BlockChain(seen, self.size, salt=salt, digest=self.digest)
        sequence = Grown(tokens, salt, chain, BlockTable(self.size), 0)
        hits = self.expected_hits(sequence, length)
        fresh = -(-length // self.size) - len(hits)
        room = len(self.free) + len([block for block in self.cached if block not in hits])
        before = self.state()
        assert self.pool.can_allocate(chain, length) == (fresh <= room)
        assert self.pool.cached_tokens(chain, length) == len(hits) * self.size
        assert self.state() == before
        if fresh > room:
            self.refused(lambda: self.pool.allocate(chain, length), OutOfBlocks)
            return None
        sequence.table = self.pool.allocate(chain, length)
        assert sequence.table.num_hashed == len(hits) and sequence.table.blocks[: len(hits)] == hits
        assert len(set(sequence.table.blocks)) == len(sequence.table.blocks)
        self.cached = [block for block in self.cached if block not in hits]
        self.took(sequence.table.blocks[len(hits) :])
        sequence.computed = len(hits) * self.size
        # The chain grows with what is planned; later tokens are not known to it before.
        sequence.chain = BlockChain(tokens, self.size, salt=salt, digest=self.digest)
        self.sequences.append(sequence)
        return sequence

    def plan(self, sequence: Grown, count: int) -> bool:
        """Have the next `count` tokens computed by the plan; whether there was room."""
        assert sequence.planned is None
        self.operations += 3
        start, stop = sequence.computed, min(sequence.computed + count, len(sequence.tokens))
        if not self.append(sequence, stop):
            return False
        shared = [
            place
            for place in range(start // self.size, -(-stop // self.size))
            if start < stop and self.refs(sequence.table.blocks[place]) > 1
        ]
        room = len(self.free) + len(self.cached)
        assert self.pool.can_write(sequence.table, start, stop) == (len(shared) <= room)
        if len(shared) > room:
            self.refused(lambda: self.pool.write(sequence.table, start, stop), OutOfBlocks)
            return False
        sources = [sequence.table.blocks[place] for place in shared]
        sequence.copies = self.pool.write(sequence.table, start, stop)
        assert sequence.copies == [(source, sequence.table.blocks[place]) for source, place in zip(sources, shared)]
        self.took([destination for _, destination in sequence.copies])
        self.copying.append(sequence)
        for place in range(start // self.size, -(-stop // self.size)):
            if start < stop:
                assert self.refs(sequence.table.blocks[place]) == 1  # nobody writes a shared block
        sequence.planned = stop
        self.pool.announce(sequence.table, sequence.chain, stop)
        if not self.caching:
            return True
        parent = self.parent(sequence, sequence.table.num_hashed)
        for place in range(sequence.table.num_hashed, stop // self.size):
            block = sequence.table.blocks[place]
            if parent is None:
                break
            entry = self.found.get(self.key(sequence, place))
            if block not in self.known and entry is None:
                self.enter(sequence, place, parent)
                self.pending[block] = sequence
                parent = self.known[block]
            elif block not in self.known:
                parent = self.known[entry] if self.same(entry, sequence, place, parent) else None
            else:
                parent = self.known[block]
        return True

    def append(self, sequence: Grown, tokens: int) -> bool:
        self.operations += 1
        wanted = max(-(-tokens // self.size) - len(sequence.table.blocks), 0)
        fits = wanted <= len(self.free) + len(self.cached)
        if not tokens:
            return True
        assert self.pool.can_append(sequence.table, tokens) == fits
        if not fits:
            self.refused(lambda: self.pool.append(sequence.table, tokens), OutOfBlocks)
            return False
        before = list(sequence.table.blocks)
        self.pool.append(sequence.table, tokens)
        assert sequence.table.blocks[: len(before)] == before and len(sequence.table.blocks) == len(before) + wanted
        self.took(sequence.table.blocks[len(before) :])
        return True

    def commit(self) -> None:
        """Carry out the plan as an executor would: copies, then the tokens of each, then it is published."""
        works = [sequence for sequence in self.sequences if sequence.planned is not None]
        for sequence in self.copying:  # in the order of the plan: a source may be the next one's destination
            for source, destination in sequence.copies:
                self.memory[destination * self.size : (destination + 1) * self.size] = self.memory[
                    source * self.size : (source + 1) * self.size
                ]
        self.copying = []
        for sequence in works:
            assert sequence.planned is not None
            for position in range(sequence.computed, sequence.planned):
                self.memory[sequence.table.slot(position)] = (sequence.salt, *sequence.tokens[: position + 1])
        for sequence in works:
            assert sequence.planned is not None
            self.operations += 1
            self.publish(sequence, sequence.planned)
            sequence.computed, sequence.planned, sequence.copies = sequence.planned, None, []
        for sequence in self.sequences:
            sequence.admitted = False
            for position in range(sequence.computed):
                right = (sequence.salt, *sequence.tokens[: position + 1])
                assert self.memory[sequence.table.slot(position)] == right, (sequence, position)

    def publish(self, sequence: Grown, tokens: int) -> None:
        first = sequence.table.num_hashed
        self.pool.publish(sequence.table, sequence.chain, tokens)
        if not self.caching:
            return
        parent = self.parent(sequence, first)
        for place in range(first, tokens // self.size):
            block = sequence.table.blocks[place]
            assert parent is not None
            if block not in self.known:
                entry = self.found.get(self.key(sequence, place))
                if entry is not None and self.same(entry, sequence, place, parent):
                    self.known[block] = self.known[entry]
                    if entry in self.cached:
                        self.found[self.known[block].key] = block
                else:
                    self.enter(sequence, place, parent)
                if entry in self.cached:
                    self.cached.remove(entry)
                    self.forget(entry)
                    self.free.add(entry)
            self.pending.pop(block, None)
            parent = self.known[block]
        assert sequence.table.num_hashed == tokens // self.size

    def abort(self) -> None:
        """The plan failed: what it announced is retracted; whoever joined in it, or had blocks copied, starts again."""
        works = [sequence for sequence in self.sequences if sequence.planned is not None]
        for sequence in works:
            self.operations += 1
            self.pool.retract(sequence.table, sequence.computed)
            for block in [block for block, writer in self.pending.items() if writer is sequence]:
                self.forget(block)
        for sequence in works:
            sequence.planned = None
        self.copying = []
        for sequence in list(self.sequences):
            if sequence.admitted or sequence.copies:
                self.free_table(sequence)

    def fork(self, sequence: Grown, tokens: list[int]) -> Grown:
        """A second sequence that goes on from the first one's computed tokens with `tokens`."""
        self.operations += 1
        table = self.pool.fork(sequence.table)
        assert table.blocks == sequence.table.blocks and table.num_hashed == sequence.table.num_hashed
        grown = sequence.tokens[: sequence.computed] + tokens
        chain = BlockChain(grown, self.size, salt=sequence.salt, digest=self.digest)
        fork = Grown(grown, sequence.salt, chain, table, sequence.computed, admitted=sequence.admitted)
        self.sequences.append(fork)
        return fork

    def trim(self, sequence: Grown) -> None:
        """Give up what lies past the computed tokens."""
        self.operations += 1
        if not sequence.computed:
            self.refused(lambda: self.pool.trim(sequence.table, 0), UnderloadError)
            return
        kept = -(-sequence.computed // self.size)
        dropped = sequence.table.blocks[kept:]
        self.pool.trim(sequence.table, sequence.computed)
        assert sequence.table.capacity == kept * self.size
        for block in reversed(dropped):
            self.released(block)

    def free_table(self, sequence: Grown) -> None:
        """Free a sequence. If it was to fill blocks that others found, these can only be freed too."""
        self.operations += 1
        broken = [block for block, writer in self.pending.items() if writer is sequence]
        blocks = list(sequence.table.blocks)
        self.sequences.remove(sequence)
        self.copying = [other for other in self.copying if other is not sequence]
        self.pool.free(sequence.table)
        assert sequence.table.blocks == [] and sequence.table.num_hashed == 0
        for block in reversed(blocks):
            if block in broken:
                self.forget(block)
            self.released(block)
        for other in list(self.sequences):
            if other in self.sequences and set(broken) & set(other.table.blocks):
                self.free_table(other)

    def wrong(self, sequence: Grown) -> None:
        """Calls that must be refused and change nothing."""
        self.operations += 1
        table, chain = sequence.table, sequence.chain
        gone = BlockTable(self.size, list(table.blocks), table.num_hashed)  # looks the same, and is not the pool's
        self.refused(lambda: self.pool.free(gone), UnderloadError)
        self.refused(lambda: self.pool.fork(gone), UnderloadError)
        self.refused(lambda: self.pool.retract(gone, 0), UnderloadError)
        self.refused(lambda: self.pool.write(table, 0, table.capacity + 1), UnderloadError)
        self.refused(lambda: self.pool.append(BlockTable(self.size), 1), UnderloadError)
        if table.num_hashed:
            self.refused(
                lambda: self.pool.write(table, table.num_hashed * self.size - 1, table.capacity), UnderloadError
            )
            self.refused(lambda: self.pool.trim(table, 0), UnderloadError)
        if table.num_hashed > 1:
            self.refused(lambda: self.pool.trim(table, 1), UnderloadError)
        if self.caching:
            other = BlockChain(sequence.tokens, self.size + 1)
            full = table.capacity + self.size
            self.refused(lambda: self.pool.cached_tokens(other, 1), UnderloadError)
            self.refused(lambda: self.pool.allocate(other, len(sequence.tokens)), UnderloadError)
            self.refused(lambda: self.pool.publish(table, chain, full), UnderloadError)
            self.refused(lambda: self.pool.announce(table, chain, full), UnderloadError)

    # ---- after every call ----------------------------------------------------------------------------------------

    def check(self) -> None:
        pool = self.pool
        assert pool.num_free + pool.num_cached + pool.num_used == pool.num_blocks
        assert set(pool._free) == self.free and len(pool._free) == len(self.free)
        assert list(pool._cached) == self.cached
        counts = [0] * pool.num_blocks
        for sequence in self.sequences:
            assert sequence.table in pool.tables
            for block in sequence.table.blocks:
                counts[block] += 1
        assert pool._ref_counts == counts and len(pool.tables) == len(self.sequences)
        assert pool.num_used == sum(count > 0 for count in counts)
        assert {block: id(writer) for block, writer in pool._writers.items()} == {
            block: id(sequence.table) for block, sequence in self.pending.items()
        }
        names, entries = pool.index.names, pool.index._entries
        assert sorted(entries.values()) == sorted(self.found.values())
        for digest, block in entries.items():
            name = names[block]
            assert name is not None and name.digest == digest
            assert counts[block] or block in self.cached
        assert {block for block, name in enumerate(names) if name is not None} == self.known.keys()
        for block in self.cached:
            name = names[block]
            assert name is not None and entries[name.digest] == block and block not in self.pending
        assert all(new >= old for new, old in zip(pool.index._generations, self.generations))
        self.generations = list(pool.index._generations)
