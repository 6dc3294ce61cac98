"""Blocks of KV cache: who holds them, what they contain, which goes next.

The pool hands out block ids and never touches a tensor, so the decoder and the simulator share it.
A block is in exactly one of three places:

    free     on the free list; its content means nothing
    in use   ref_count >= 1: that many block tables hold it
    cached   ref_count == 0, content still valid under its digest; reused on a hit, evicted when free runs out

    free + in use + cached == num_blocks        (checked after every call in tests)

A block in use is open, pending or valid:

    open     found by nobody, written by its only holder; a table's last block, as a rule
    pending  in the index on a promise: a plan that has been made, and not yet carried out, fills it
    valid    in the index for good; never written again

A pending block has one writer, the table that announced it. When the writer publishes it, it is valid. When the writer
retracts it or is freed before, the block leaves the index at once, whoever else holds it. Those others keep their
reference, so that nobody is given the block under their eyes, but what it was to contain will not come: they must be
freed, and computed again.

Kwon et al., "Efficient Memory Management for LLM Serving with PagedAttention" (SOSP 2023), section 4.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from underload.cache.chain import BlockChain
from underload.cache.counters import PoolCounters
from underload.request import BlockTable, OutOfBlocks, UnderloadError


class _Block:
    """What the pool knows of a block. All names are None while it is open or free."""

    __slots__ = ("content", "digest", "generation", "identity", "parent", "ref_count", "writer")

    def __init__(self) -> None:
        self.ref_count = 0
        self.generation = 0  # contents it has been named for
        self.digest: bytes | None = None
        self.content: bytes | None = None
        self.parent: tuple[object, ...] | None = (
            None  # identity of the block before it; of a first one, the chain's root
        )
        self.identity: tuple[object, ...] | None = None  # (block, generation) of the first block with this content
        self.writer: BlockTable | None = None  # of a pending block


@dataclass(frozen=True)
class BlockState:
    """One block, for pictures and tests. place: "free", "used" or "cached"."""

    place: str
    ref_count: int = 0
    pending: bool = False


class BlockPool:
    """Blocks of `block_size` tokens, shared where tokens are the same, kept after use until the room is needed.

    A digest says where to look, and no more: a hit is confirmed by the block's tokens and by the identity of its
    parent, which is (block, generation) of the first block that held this content. No pair of these comes twice, so a
    block that has been given other content since is not taken for what it was.

    With `prefix_caching=False` nothing is looked up, hashed or kept; all else is the same.

    Each call takes time by the blocks it is about, not by those in the pool.

    Raises:
        UnderloadError: no block, or blocks of no token; any call with a table that the pool does not hold, or with
            a chain of another block size. Nothing has changed then.
    """

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        if num_blocks < 1 or block_size < 1:
            raise UnderloadError(
                f"a pool needs at least one block of one token, got {num_blocks} blocks of {block_size}"
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.counters = PoolCounters()
        self._blocks = [_Block() for _ in range(num_blocks)]
        self._free = list(range(num_blocks - 1, -1, -1))
        # In order of last use, oldest first. A plain dict finds its first key ever more slowly as others go before it.
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._index: dict[bytes, int] = {}
        self._tables: dict[int, BlockTable] = {}  # those handed out and not freed, by id()

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

    def can_allocate(self, chain: BlockChain | None, tokens: int, *, reserve: int | None = None) -> bool:
        """Whether `allocate` would succeed now. Changes nothing."""
        if 0 < tokens <= len(self._free) * self.block_size:
            return True
        found = self._find(chain, tokens)
        return self._blocks_for(tokens) - len(found) <= self._room(found)

    def allocate(self, chain: BlockChain | None, tokens: int, *, reserve: int | None = None) -> BlockTable:
        """Blocks for the first `tokens` tokens of a sequence: known ones for their longest known prefix, others after.

        The last of these tokens is never taken from the cache: its logits are what the request came for. So a prompt
        that is known to its end, and fills its last block, has this one block computed again.

        Args:
            chain: the sequence's names; None: nothing to find it by.
            reserve: not used; a paged pool takes blocks when they are needed (see `ReservingPool`).

        Returns:
            A table whose first `num_hashed` blocks are found ones. The pool holds it until `free`.

        Raises:
            OutOfBlocks: too few free and cached blocks; the pool is as it was.
        """
        found = self._find(chain, tokens)
        fresh = self._blocks_for(tokens) - len(found)
        if fresh > self._room(found):
            raise self._refusal(fresh, self._room(found))
        # Held before anything is evicted: the oldest cached blocks may be the very ones that were found.
        for number in found:
            self._hold(number)
        if chain is not None and self.prefix_caching:
            self.counters.queries += tokens
            self.counters.hits += len(found) * self.block_size
        hits = len(found)
        found.extend(self._take() for _ in range(fresh))
        return self._register(BlockTable(self.block_size, found, hits))

    def fork(self, table: BlockTable) -> BlockTable:
        """Another table on the same blocks. Whoever writes into a shared one first asks `write`."""
        self._require(table)
        for number in table.blocks:
            self._blocks[number].ref_count += 1
        return self._register(BlockTable(self.block_size, list(table.blocks), table.num_hashed))

    # ---- it grows ------------------------------------------------------------------------------------------------

    def can_append(self, table: BlockTable, tokens: int) -> bool:
        """Whether `append` would succeed now. Changes nothing."""
        return self._blocks_for(tokens) - len(table.blocks) <= self._room()

    def append(self, table: BlockTable, tokens: int) -> None:
        """Grow `table` so that it has room for `tokens` tokens in all.

        Raises:
            OutOfBlocks: too few free and cached blocks; table and pool are as they were.
        """
        if tokens <= len(table.blocks) * self.block_size:
            return
        self._require(table)
        more = self._blocks_for(tokens) - len(table.blocks)
        if more > self._room():
            raise self._refusal(more, self._room())
        table.blocks.extend([self._take() for _ in range(more)])

    def can_write(self, table: BlockTable, start: int, stop: int) -> bool:
        """Whether `write` would find the blocks it needs. Changes nothing."""
        return len(self._shared(table, start, stop)) <= self._room()

    def write(self, table: BlockTable, start: int, stop: int) -> list[tuple[int, int]]:
        """Make the blocks of positions start to stop - 1 private to `table`: those that others hold too are copied.

        Returns:
            The copies owed, source and destination block each. The destination is safe to write once that copy has
            run; the source stays with its other holders.

        Raises:
            OutOfBlocks: no block for a copy; table and pool are as they were.
            UnderloadError: a position without a block (`append` first), or in a block that is in the index.
        """
        if start + 1 == stop and start < len(table.blocks) * self.block_size:  # decoding, nearly always
            block = self._blocks[table.blocks[start // self.block_size]]
            if block.ref_count == 1 and block.identity is None:
                return []
        shared = self._shared(table, start, stop)
        if len(shared) > self._room():
            raise self._refusal(len(shared), self._room())
        copies = []
        for place in shared:
            source = table.blocks[place]
            self._blocks[source].ref_count -= 1
            table.blocks[place] = self._take()
            copies.append((source, table.blocks[place]))
        self.counters.copies += len(copies)
        return copies

    # ---- what it holds becomes known -----------------------------------------------------------------------------

    def announce(self, table: BlockTable, chain: BlockChain | None, tokens: int) -> None:
        """A plan fills the first `tokens` tokens: their full blocks are found from now on, as pending ones.

        What the index has already stays as it is: a promise takes nobody's place.
        """
        if tokens < (table.num_hashed + 1) * self.block_size or chain is None or not self.prefix_caching:
            return
        parent = self._parent(table, chain, tokens)
        first, full = table.num_hashed, tokens // self.block_size
        for number, (digest, content) in zip(table.blocks[first:full], chain.names(first, full)):
            if parent is None:
                return
            block = self._blocks[number]
            holder = self._index.get(digest)
            if block.identity is not None:  # announced with an earlier plan
                parent = block.identity
            elif holder is None:
                self._name(number, digest, content, parent)
                block.writer = table
                parent = block.identity
            else:
                known = self._blocks[holder]
                parent = known.identity if known.content == content and known.parent == parent else None

    def publish(self, table: BlockTable, chain: BlockChain | None, tokens: int) -> None:
        """The first `tokens` tokens are computed: their full blocks are valid, and found from now on.

        Content that the index has already stays under the block that had it first, and this block stands for it too:
        what follows is found through the first. If nobody holds the first, this one takes its place and it is free.
        """
        if tokens < (table.num_hashed + 1) * self.block_size or chain is None or not self.prefix_caching:
            return
        parent = self._parent(table, chain, tokens)
        first, full = table.num_hashed, tokens // self.block_size
        for number, (digest, content) in zip(table.blocks[first:full], chain.names(first, full)):
            if parent is None:
                return
            block = self._blocks[number]
            if block.identity is None:
                self._publish(number, digest, content, parent)
            block.writer = None
            parent = block.identity
            table.num_hashed += 1

    def retract(self, table: BlockTable, tokens: int) -> None:
        """A plan was aborted: the blocks that `table` announced past the first `tokens` tokens leave the index."""
        self._require(table)
        for number in table.blocks[tokens // self.block_size :]:
            if self._blocks[number].writer is table:
                self._forget(number)

    # ---- it goes -------------------------------------------------------------------------------------------------

    def trim(self, table: BlockTable, tokens: int) -> None:
        """Give back the blocks past those of the first `tokens` tokens: what was taken for drafts and not kept.

        Raises:
            UnderloadError: fewer than one token (`free` gives back all), or a block past them is in the index.
        """
        self._require(table)
        kept = self._blocks_for(tokens)
        # blocks:  [0, num_hashed) valid   [num_hashed, ...) perhaps pending   [kept, end) open, and given back
        for number in table.blocks[kept:]:
            if self._blocks[number].identity is not None:
                raise UnderloadError(f"block {number} past {tokens} tokens is in the index; retract it, or keep it")
        for number in reversed(table.blocks[kept:]):
            self._release(number)
        del table.blocks[kept:]

    def free(self, table: BlockTable) -> None:
        """Give back every block of `table`, last block first, so that a shared prefix outlives its tails.

        The table is empty afterwards.

        Raises:
            UnderloadError: the pool does not hold this table: it was freed before, or comes from another pool.
        """
        self._require(table)
        # blocks:  [0, num_hashed)            [num_hashed, ...)                 [..., end)
        #          valid: kept by digest      pending: its promise is broken    open: nothing to find it by
        for number in reversed(table.blocks):
            if self._blocks[number].writer is table:
                self._forget(number)
            self._release(number)
        del self._tables[id(table)]
        table.blocks.clear()
        table.num_hashed = 0

    # ---- for pictures and tests ----------------------------------------------------------------------------------

    def snapshot(self) -> list[BlockState]:
        """The state of every block, in order of their ids."""
        free = set(self._free)
        return [
            BlockState("free")
            if number in free
            else BlockState("used" if block.ref_count else "cached", block.ref_count, block.writer is not None)
            for number, block in enumerate(self._blocks)
        ]

    def owners(self, number: int) -> list[BlockTable]:
        """The tables that hold block `number`. Looks through all tables."""
        return [table for table in self._tables.values() if number in table.blocks]

    @property
    def tables(self) -> list[BlockTable]:
        """The tables handed out and not freed."""
        return list(self._tables.values())

    # ---- inside --------------------------------------------------------------------------------------------------

    def _find(self, chain: BlockChain | None, tokens: int) -> list[int]:
        """Blocks of the longest known prefix of the first `tokens` tokens, without the last of these."""
        if tokens < 1:
            raise UnderloadError(f"a sequence has at least 1 token, got {tokens}")
        found: list[int] = []
        if chain is None or not self.prefix_caching:
            return found
        self._require_size(chain)
        index, blocks = self._index, self._blocks
        parent: tuple[object, ...] | None = chain.root
        for digest, content in chain.names(0, min((tokens - 1) // self.block_size, len(chain))):
            number = index.get(digest)
            if number is None:
                break
            block = blocks[number]
            if block.content != content or block.parent != parent:
                break
            found.append(number)
            parent = block.identity
        return found

    def _blocks_for(self, tokens: int) -> int:
        if tokens < 1:
            raise UnderloadError(f"a sequence has at least 1 token, got {tokens}")
        return -(-tokens // self.block_size)

    def _room(self, found: list[int] | None = None) -> int:
        """Blocks that can be taken, once those found are held."""
        room = len(self._free) + len(self._cached)
        return room - sum(not self._blocks[number].ref_count for number in found) if found else room

    def _hold(self, number: int) -> None:
        block = self._blocks[number]
        if not block.ref_count:
            del self._cached[number]
        block.ref_count += 1

    def _take(self) -> int:
        """A block for new content: a free one, or the cached one that was out of use for longest."""
        if self._free:
            number = self._free.pop()
        else:
            number, _ = self._cached.popitem(last=False)
            self._forget(number)
            self.counters.evictions += 1
        self._blocks[number].ref_count = 1
        self.counters.allocations += 1
        return number

    def _release(self, number: int) -> None:
        """One holder fewer; without any, the block is kept if it can be found, and otherwise free."""
        block = self._blocks[number]
        block.ref_count -= 1
        if block.ref_count:
            return
        # A second block of the same content stands in for the first if that was evicted meanwhile.
        if block.digest is not None and self._index.setdefault(block.digest, number) == number:
            self._cached[number] = None
        else:
            self._forget(number)
            self._free.append(number)

    def _name(self, number: int, digest: bytes, content: bytes, parent: tuple[object, ...]) -> None:
        block = self._blocks[number]
        block.generation += 1
        block.digest, block.content, block.parent = digest, content, parent
        block.identity = (number, block.generation)
        self._index[digest] = number

    def _publish(self, number: int, digest: bytes, content: bytes, parent: tuple[object, ...]) -> None:
        """Put an open block into the index, which may have an entry under its digest."""
        holder = self._index.get(digest)
        if holder is None:
            return self._name(number, digest, content, parent)
        block, known = self._blocks[number], self._blocks[holder]
        if known.content == content and known.parent == parent:
            block.digest, block.content, block.parent, block.identity = digest, content, parent, known.identity
            if known.ref_count:
                return None
            self._index[digest] = number
        else:
            # Another content under the same digest, or the same after a parent that is gone. The newer is found from
            # now on; the older was of no use any more, or is as likely to be wanted.
            self._name(number, digest, content, parent)
        if not known.ref_count:
            del self._cached[holder]
            self._forget(holder)
            self._free.append(holder)
        return None

    def _forget(self, number: int) -> None:
        """The block's content is found no more."""
        block = self._blocks[number]
        if block.digest is not None and self._index.get(block.digest) == number:
            del self._index[block.digest]
        block.digest = block.content = block.parent = block.identity = block.writer = None

    def _parent(self, table: BlockTable, chain: BlockChain, tokens: int) -> tuple[object, ...] | None:
        """Identity of the last block that the index knows of `table`; None if it has left the index since."""
        self._require(table)
        self._require_size(chain)
        if tokens > len(table.blocks) * self.block_size:
            raise UnderloadError(
                f"{tokens} tokens do not fit into the table's {len(table.blocks)} blocks of {self.block_size}; "
                "append first"
            )
        if not table.num_hashed:
            return chain.root
        return self._blocks[table.blocks[table.num_hashed - 1]].identity

    def _shared(self, table: BlockTable, start: int, stop: int) -> list[int]:
        """Places in `table` of the blocks of positions start to stop - 1 that others hold too."""
        self._require(table)
        if not 0 <= start <= stop <= len(table.blocks) * self.block_size:
            raise UnderloadError(
                f"positions {start} to {stop} are not within the table's {len(table.blocks)} blocks of "
                f"{self.block_size}; append first"
            )
        places = range(start // self.block_size, self._blocks_for(stop)) if start < stop else range(0)
        for place in places:
            if self._blocks[table.blocks[place]].identity is not None:
                raise UnderloadError(
                    f"block {table.blocks[place]} at position {place * self.block_size} is in the index and must not "
                    "be written: others may be reading it; write past it, or retract it first"
                )
        return [place for place in places if self._blocks[table.blocks[place]].ref_count > 1]

    def _register(self, table: BlockTable) -> BlockTable:
        self._tables[id(table)] = table
        return table

    def _require(self, table: BlockTable) -> None:
        if id(table) not in self._tables:
            raise UnderloadError(
                f"the pool does not hold this table of {len(table.blocks)} blocks: it was freed before, or comes from "
                "another pool; a table is freed once, by the pool that made it"
            )

    def _require_size(self, chain: BlockChain) -> None:
        if chain.block_size != self.block_size:
            raise UnderloadError(
                f"a chain of blocks of {chain.block_size} tokens cannot be looked up in a pool of blocks of "
                f"{self.block_size}; make it with the pool's block_size"
            )

    def _refusal(self, wanted: int, room: int) -> OutOfBlocks:
        return OutOfBlocks(
            f"{wanted} blocks are wanted, and {room} of the pool's {self.num_blocks} are free or cached; free a "
            "sequence first, or make the pool larger"
        )
