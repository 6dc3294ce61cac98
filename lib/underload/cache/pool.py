"""Blocks of KV cache: who holds them, what they contain, which goes next.

The pool hands out block ids and never touches a tensor, so the decoder and the simulator share it.
A block is in exactly one of three places:

    free     on the free list; its content means nothing
    in use   ref_count >= 1: that many block tables hold it
    cached   ref_count == 0, content still valid under its digest; reused on a hit, evicted when free runs out

    free + in use + cached == num_blocks        (checked after every call in tests)

A block in use is open, pending or valid:

    open     found by nobody, and written by its only holder; a sequence's last block, as a rule
    pending  found on a promise: a plan that has been made, and not yet carried out, fills it
    valid    filled, and never written again

A pending block has one writer, the table that announced it. Once that table publishes it, it is valid. If the writer
retracts it, or is freed before, the block leaves the index at once, whoever else holds it. Those others keep their
reference, so that nobody is given the block under their eyes, but what it was to contain will not come: they have to be
freed, and computed again.

Kwon et al., "Efficient Memory Management for LLM Serving with PagedAttention" (SOSP 2023), section 4.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from underload.cache.chain import BlockChain
from underload.cache.counters import PoolCounters
from underload.cache.index import Identity, PrefixIndex
from underload.cache.tables import Tables, blocks_for, require_pool, require_within
from underload.request import BlockTable, OutOfBlocks, UnderloadError


@dataclass(frozen=True)
class BlockState:
    """One block, for pictures and tests. place: "free", "used" or "cached"."""

    place: str
    ref_count: int = 0
    pending: bool = False


class BlockPool:
    """Blocks of `block_size` tokens, shared where content is equal, kept after use until their room is needed.

    With `prefix_caching=False` nothing is hashed, looked up or kept; all else is the same. A call takes time by the
    blocks it is about, not by those in the pool.

    Raises:
        UnderloadError: no block, more than `tables.MAX_BLOCKS`, or blocks of no token; in any call: a table that the
            pool does not hold, a chain of another block size, a number of tokens below 1 or beyond the table. Nothing
            has changed then.
    """

    reserves = False  # whether sequences are given blocks that they may never fill

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        require_pool(num_blocks, block_size)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.counters = PoolCounters()
        self.tables = Tables()
        self.index = PrefixIndex(num_blocks)
        self._ref_counts = [0] * num_blocks
        self._writers: dict[int, BlockTable] = {}  # of pending blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        # Longest out of use first. A plain dict would find its first key ever more slowly as others before it go.
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free) - len(self._cached)

    # ---- a sequence comes ----------------------------------------------------------------------------------------

    def cached_tokens(self, chain: BlockChain | None, tokens: int) -> int:
        """Tokens of the longest known prefix of the first `tokens`, always fewer than these. Changes nothing."""
        return len(self._find(chain, tokens)) * self.block_size

    def taken_into_use(self, chain: BlockChain | None, tokens: int) -> int:
        """Blocks that `allocate` would take into use: new ones, and cached ones that it would find. Changes nothing."""
        found = self._find(chain, tokens)
        return blocks_for(tokens, self.block_size) - sum(self._ref_counts[number] > 0 for number in found)

    def can_allocate(self, chain: BlockChain | None, tokens: int, *, reserve: int | None = None) -> bool:
        """Whether `allocate` would succeed now. Changes nothing."""
        wanted = blocks_for(tokens, self.block_size)
        if wanted <= len(self._free):
            return True
        found = self._find(chain, tokens)
        return wanted - len(found) <= self._room(found)

    def allocate(self, chain: BlockChain | None, tokens: int, *, reserve: int | None = None) -> BlockTable:
        """Blocks for the first `tokens` tokens of a sequence: known ones for its longest known prefix, others after.

        The last of these tokens is never taken from the cache: its logits are what the request came for. A prompt that
        is known to its end, and fills its last block, has that one block computed again.

        Args:
            chain: the names of the sequence's blocks; None if they are not to be found.
            reserve: of no effect here: a paged pool takes blocks when they are needed (see `ReservingPool`).

        Returns:
            A table whose first `num_hashed` blocks were found. The pool holds it until `free`.

        Raises:
            OutOfBlocks: too few free and cached blocks; the pool is as it was.
        """
        found = self._find(chain, tokens)
        hits, fresh = len(found), blocks_for(tokens, self.block_size) - len(found)
        self._require_room(fresh, self._room(found))
        # Held before anything is evicted: those longest out of use may be the very ones that were found.
        for number in found:
            if not self._ref_counts[number]:
                del self._cached[number]
            self._ref_counts[number] += 1
        found += self._take(fresh)
        if chain is not None and self.prefix_caching:
            self.counters.queries += tokens
            self.counters.hits += hits * self.block_size
        return self.tables.add(BlockTable(self.block_size, found, hits))

    def fork(self, table: BlockTable) -> BlockTable:
        """Another table on the same blocks. Before writing, either asks `write` for blocks of its own."""
        self.tables.require(table)
        for number in table.blocks:
            self._ref_counts[number] += 1
        return self.tables.add(BlockTable(self.block_size, list(table.blocks), table.num_hashed))

    # ---- it grows ------------------------------------------------------------------------------------------------

    def can_append(self, table: BlockTable, tokens: int) -> bool:
        """Whether `append` would succeed now. Changes nothing."""
        self.tables.require(table)
        return blocks_for(tokens, self.block_size) - len(table.blocks) <= self._room()

    def append(self, table: BlockTable, tokens: int) -> None:
        """Grow `table` until it has room for `tokens` tokens in all.

        Raises:
            OutOfBlocks: too few free and cached blocks; table and pool are as they were.
        """
        self.tables.require(table)
        if 0 < tokens <= len(table.blocks) * self.block_size:
            return
        more = blocks_for(tokens, self.block_size) - len(table.blocks)
        self._require_room(more, self._room())
        table.blocks += self._take(more)

    def grow(self, tables: Sequence[BlockTable]) -> None:
        """One block more for each of `tables`, in this order, as so many calls of `append` would give them.

        Raises:
            OutOfBlocks: too few free and cached blocks; tables and pool are as they were.
        """
        for table in tables:
            self.tables.require(table)
        self._require_room(len(tables), self._room())
        for table, number in zip(tables, self._take(len(tables))):
            table.blocks.append(number)

    def ready(self, table: BlockTable, position: int) -> bool:
        """Whether the token at `position` can be written as things are: no block to take, none to copy. Changes
        nothing. Nearly every decoded token finds it so, and need not ask `append` and `write`; so this call alone does
        not look whether the table is the pool's."""
        place = position // self.block_size
        if place >= len(table.blocks):
            return False
        number = table.blocks[place]
        return self._ref_counts[number] == 1 and self.index.names[number] is None

    def can_write(self, table: BlockTable, start: int, stop: int) -> bool:
        """Whether `write` would find the blocks it needs. Changes nothing."""
        return len(self._shared(table, start, stop)) <= self._room()

    def write(self, table: BlockTable, start: int, stop: int) -> list[tuple[int, int]]:
        """Make the blocks of positions start to stop - 1 the table's own: those that others hold too are copied.

        Returns:
            The copies owed, (source, destination) each. A destination is safe to write once its copy has run; the
            source stays with its other holders.

        Raises:
            OutOfBlocks: no block for a copy; table and pool are as they were.
            UnderloadError: a position that has no block yet, or whose block can be found by others.
        """
        shared = self._shared(table, start, stop)
        self._require_room(len(shared), self._room())
        copies = []
        for place in shared:
            source, (destination,) = table.blocks[place], self._take(1)
            self._ref_counts[source] -= 1
            table.blocks[place] = destination
            copies.append((source, destination))
        self.counters.copies += len(copies)
        return copies

    # ---- what it holds becomes known -----------------------------------------------------------------------------

    def announce(self, table: BlockTable, chain: BlockChain | None, tokens: int) -> None:
        """A plan fills the first `tokens` tokens: their full blocks are found from now on, as pending ones.

        What the index has already stays: a promise takes nobody's place.
        """
        if tokens < (table.num_hashed + 1) * self.block_size or chain is None or not self.prefix_caching:
            return
        parent = self._parent(table, chain, tokens)
        first, full = table.num_hashed, tokens // self.block_size
        for number, (digest, content) in zip(table.blocks[first:full], chain.names(first, full)):
            if parent is None:
                return
            name, entry = self.index.names[number], self.index.entry(digest)
            if name is None and entry is None:
                name = self.index.enter(number, digest, content, parent)
                self._writers[number] = table
            elif name is None and entry is not None:
                name = self.index.names[entry]
                if name is not None and (name.content != content or name.parent != parent):
                    return
            parent = None if name is None else name.identity

    def publish(self, table: BlockTable, chain: BlockChain | None, tokens: int) -> None:
        """The first `tokens` tokens are computed: their full blocks are valid, and found from now on.

        Content that can be found already stays where it was first, and this block shares its name, so that what
        follows is found through the first. If nobody holds the first, this one takes its place and the first is free.
        """
        if tokens < (table.num_hashed + 1) * self.block_size or chain is None or not self.prefix_caching:
            return
        parent = self._parent(table, chain, tokens)
        first, full = table.num_hashed, tokens // self.block_size
        for number, (digest, content) in zip(table.blocks[first:full], chain.names(first, full)):
            if parent is None:
                return
            if self.index.names[number] is None:
                self._publish(number, digest, content, parent)
            self._writers.pop(number, None)
            parent = self._identity(number)
            table.num_hashed += 1

    def retract(self, table: BlockTable, tokens: int) -> None:
        """A plan was aborted: what `table` announced past its first `tokens` tokens is found no more."""
        self.tables.require(table)
        require_within(table, 0, tokens)
        for number in table.blocks[tokens // self.block_size :]:
            self._break_promise(number, table)

    # ---- it goes -------------------------------------------------------------------------------------------------

    def trim(self, table: BlockTable, tokens: int) -> None:
        """Give back the blocks past those of the first `tokens` tokens: taken for drafts that were not kept.

        Raises:
            UnderloadError: a block past them can be found by others; table and pool are as they were.
        """
        self.tables.require(table)
        kept = blocks_for(tokens, self.block_size)
        # blocks:  [0, num_hashed) valid   [num_hashed, ...) some pending: both must lie before kept
        #          [kept, end) open, and given back
        for number in table.blocks[kept:]:
            if self.index.names[number] is not None:
                raise UnderloadError(
                    f"block {number}, past the table's first {tokens} tokens, can be found by others; keep it, or "
                    "retract it first"
                )
        for number in table.blocks[kept:]:
            self._release(number)
        del table.blocks[kept:]

    def free(self, table: BlockTable) -> None:
        """Give back every block of `table`, last block first, so that a shared prefix outlives its tails.

        The table is empty afterwards, and freeing it again is an error that changes nothing.
        """
        self.tables.require(table)
        # blocks:  [0, num_hashed)        [num_hashed, ...)              [..., end)
        #          valid: kept as cached  pending: the promise breaks    open: nothing to find it by, so free
        counts, names, free = self._ref_counts, self.index.names, self._free
        for number in reversed(table.blocks):
            if counts[number] == 1 and names[number] is None:  # nearly all, where nothing is shared
                counts[number] = 0
                free.append(number)
            else:
                self._break_promise(number, table)
                self._release(number)
        self.tables.remove(table)

    # ---- for pictures and tests ----------------------------------------------------------------------------------

    def snapshot(self) -> list[BlockState]:
        """The state of every block, in the order of their ids."""
        states = [BlockState("used", count, number in self._writers) for number, count in enumerate(self._ref_counts)]
        for place, numbers in (("free", self._free), ("cached", self._cached)):
            for number in numbers:
                states[number] = BlockState(place)
        return states

    def owners(self, number: int) -> list[BlockTable]:
        """The tables that hold block `number`; looks through all of them."""
        return [table for table in self.tables if number in table.blocks]

    def owned(self, table: BlockTable) -> int:
        """Blocks that nobody else holds, and that would be free or cached without this table."""
        return sum(self._ref_counts[number] == 1 for number in table.blocks)

    def granted(self, table: BlockTable) -> list[int]:
        """The blocks that are kept for `table`: here, those it has."""
        return table.blocks

    def usable(self, blocks: int) -> int:
        """Blocks that could go to a sequence which wants `blocks` of them: here, whatever is free or cached."""
        return self._room()

    # ---- inside --------------------------------------------------------------------------------------------------

    def _find(self, chain: BlockChain | None, tokens: int) -> list[int]:
        """Blocks of the longest known prefix of the first `tokens` tokens, the last of these left out."""
        most = blocks_for(tokens, self.block_size) - 1
        if chain is None or not self.prefix_caching:
            return []
        self._require_size(chain)
        return self.index.find(chain, min(most, len(chain)))

    def _room(self, found: list[int] | None = None) -> int:
        """Blocks that can be taken, once those found are held."""
        room = len(self._free) + len(self._cached)
        return room - sum(not self._ref_counts[number] for number in found) if found else room

    def _take(self, count: int) -> list[int]:
        """Blocks for new content: free ones, then cached ones, that out of use for longest first. There are as many."""
        kept = max(len(self._free) - count, 0)
        taken = self._free[kept:][::-1]
        del self._free[kept:]
        while len(taken) < count:
            number, _ = self._cached.popitem(last=False)
            self.index.forget(number)
            self.counters.evictions += 1
            taken.append(number)
        for number in taken:
            self._ref_counts[number] = 1
        self.counters.allocations += count
        return taken

    def _release(self, number: int) -> None:
        """One holder fewer. Without any, a block is cached if it can be found, and free if not."""
        self._ref_counts[number] -= 1
        if self._ref_counts[number]:
            return
        if self.index.keeps(number):
            self._cached[number] = None
        else:
            self._make_free(number)

    def _make_free(self, number: int) -> None:
        self.index.forget(number)
        self._free.append(number)

    def _break_promise(self, number: int, writer: BlockTable) -> None:
        if self._writers.get(number) is writer:
            del self._writers[number]
            self.index.forget(number)

    def _publish(self, number: int, digest: bytes, content: bytes, parent: Identity) -> None:
        """Name an open block whose digest may have an entry."""
        entry = self.index.entry(digest)
        known = None if entry is None else self.index.names[entry]
        if known is not None and known.content == content and known.parent == parent:
            self.index.names[number] = known
            if entry is not None and not self._ref_counts[entry]:
                self.index.point(number)
        else:
            # What is under this digest has another content, or a parent that is gone: it would not be found again.
            self.index.enter(number, digest, content, parent)
        if entry is not None and not self._ref_counts[entry]:
            del self._cached[entry]
            self._make_free(entry)

    def _identity(self, number: int) -> Identity | None:
        name = self.index.names[number]
        return None if name is None else name.identity

    def _parent(self, table: BlockTable, chain: BlockChain, tokens: int) -> Identity | None:
        """Identity of the table's last hashed block, which what follows is named after; None if it is known no more."""
        self.tables.require(table)
        self._require_size(chain)
        require_within(table, 0, tokens)
        return self._identity(table.blocks[table.num_hashed - 1]) if table.num_hashed else chain.root

    def _shared(self, table: BlockTable, start: int, stop: int) -> list[int]:
        """Places in `table` of the blocks of positions start to stop - 1 that others hold too."""
        self.tables.require(table)
        require_within(table, start, stop)
        places = range(start // self.block_size, -(-stop // self.block_size)) if start < stop else range(0)
        for place in places:
            if self.index.names[table.blocks[place]] is not None:
                raise UnderloadError(
                    f"block {table.blocks[place]}, of positions from {place * self.block_size}, can be found by others "
                    "and must stay as it is; write past it, or retract it first"
                )
        return [place for place in places if self._ref_counts[table.blocks[place]] > 1]

    def _require_size(self, chain: BlockChain) -> None:
        if chain.block_size != self.block_size:
            raise UnderloadError(
                f"a chain of blocks of {chain.block_size} tokens means nothing to a pool of blocks of "
                f"{self.block_size}; make it with the pool's block_size"
            )

    def _require_room(self, wanted: int, room: int) -> None:
        if wanted > room:
            raise OutOfBlocks(
                f"{wanted} blocks are wanted, and {room} of the pool's {self.num_blocks} are free or cached; free a "
                "sequence first, or make the pool larger"
            )
