"""The baseline: every sequence gets one contiguous run of blocks, as long as it may become.

So the first serving systems kept their caches: one tensor a sequence, of the longest length it might reach. What the
sequence does not grow into is lost while it lives, and what lies free between two runs may be too short for the next.
Kwon et al. (SOSP 2023), section 2 and Fig. 2, measure how much that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from underload.cache.chain import BlockChain
from underload.cache.counters import PoolCounters
from underload.cache.placement import PLACEMENTS
from underload.cache.pool import BlockState
from underload.cache.tables import Tables, blocks_for, require_pool, require_within
from underload.request import BlockTable, OutOfBlocks, UnderloadError


@dataclass(eq=False)
class _Run:
    """Blocks start to start + length - 1, given to one table; the first of them are in the table as it grows."""

    start: int
    length: int
    held: bool = True  # by its table
    readers: int = 0  # forks that still owe a copy from it
    source: _Run | None = None  # what the copies owed are read from
    copies: list[tuple[int, int]] = field(default_factory=list)


class ReservingPool:
    """What `BlockPool` does, with reserved runs instead of blocks on demand: nothing is shared, kept or found again.

    Args:
        placement: where a run goes. "buddy": runs of a power of two blocks, at a multiple of their length, the way Orca
            was taken to work (Kwon et al., section 6.1). "first-fit": as long as asked, into the first gap that is long
            enough; takes time by the number of gaps.

    Raises:
        UnderloadError: no block, more than `tables.MAX_BLOCKS`, or blocks of no token; an unknown placement; in any
            call: a table that the pool does not hold, a number of tokens below 1 or beyond the table. Nothing has
            changed then.
    """

    reserves = True

    def __init__(self, num_blocks: int, block_size: int, *, placement: str = "buddy") -> None:
        require_pool(num_blocks, block_size)
        if placement not in PLACEMENTS:
            raise UnderloadError(f"placement must be one of {', '.join(PLACEMENTS)}, got {placement!r}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_caching = False
        self.counters = PoolCounters()
        self.tables = Tables()
        self._gaps = PLACEMENTS[placement](num_blocks)
        self._runs: dict[int, _Run] = {}  # by the id() of their table

    @property
    def num_free(self) -> int:
        """Blocks in no run, whether or not a run would fit."""
        return self._gaps.free

    @property
    def num_cached(self) -> int:
        return 0

    @property
    def num_used(self) -> int:
        """Blocks in runs, also those that no token has reached yet."""
        return self.num_blocks - self._gaps.free

    # ---- a sequence comes ----------------------------------------------------------------------------------------

    def cached_tokens(self, chain: BlockChain | None, tokens: int) -> int:
        """None: nothing is kept."""
        blocks_for(tokens, self.block_size)
        return 0

    def taken_into_use(self, chain: BlockChain | None, tokens: int) -> int:
        """The length of a run for so many tokens, without what is reserved besides. Changes nothing."""
        return self._gaps.rounded(blocks_for(tokens, self.block_size))

    def can_allocate(self, chain: BlockChain | None, tokens: int, *, reserve: int | None = None) -> bool:
        """Whether `allocate` would succeed now. Changes nothing."""
        return self._gaps.fits(self._length(tokens, reserve))

    def allocate(self, chain: BlockChain | None, tokens: int, *, reserve: int | None = None) -> BlockTable:
        """A run for `reserve` tokens (or `tokens`, if that is more), and a table with the blocks of the first `tokens`.

        Raises:
            OutOfBlocks: no gap is long enough, even if there are as many free blocks; the pool is as it was.
        """
        run = self._take(self._length(tokens, reserve))
        blocks = list(range(run.start, run.start + blocks_for(tokens, self.block_size)))
        return self._register(BlockTable(self.block_size, blocks), run)

    def fork(self, table: BlockTable) -> BlockTable:
        """A table with a run of its own, as long as that of `table`. The copies of what is in it are owed at its first
        `write`; until then the run of `table` stays as it is, also after `free(table)`.

        Raises:
            OutOfBlocks: no gap is long enough; the pool is as it was.
        """
        self.tables.require(table)
        origin = self._runs[id(table)]
        run = self._take(origin.length)
        # A fork of a fork that has not been written reads from where that one would have read.
        run.source = origin.source or origin
        run.source.readers += 1
        copied = len(origin.copies) if origin.source else len(table.blocks)
        run.copies = [(run.source.start + place, run.start + place) for place in range(copied)]
        blocks = list(range(run.start, run.start + len(table.blocks)))
        return self._register(BlockTable(self.block_size, blocks), run)

    # ---- it grows ------------------------------------------------------------------------------------------------

    def can_append(self, table: BlockTable, tokens: int) -> bool:
        """Whether `append` would succeed: whether the run is long enough. Changes nothing."""
        self.tables.require(table)
        return blocks_for(tokens, self.block_size) <= self._runs[id(table)].length

    def append(self, table: BlockTable, tokens: int) -> None:
        """Grow `table` within its run until it has room for `tokens` tokens in all.

        Raises:
            OutOfBlocks: the run is shorter than that; nothing has changed.
        """
        self.tables.require(table)
        if 0 < tokens <= len(table.blocks) * self.block_size:
            return
        run, wanted = self._runs[id(table)], blocks_for(tokens, self.block_size)
        if wanted > run.length:
            raise OutOfBlocks(
                f"{tokens} tokens do not fit into the {run.length} blocks of {self.block_size} that were reserved; "
                "reserve as many tokens as the sequence may have"
            )
        table.blocks += range(run.start + len(table.blocks), run.start + wanted)

    def grow(self, tables: Sequence[BlockTable]) -> None:
        """One block more for each of `tables`, within their runs.

        Raises:
            OutOfBlocks: a run has no more; nothing has changed.
        """
        sizes: dict[int, int] = {}  # blocks that each is to have, also where it is named several times
        for table in tables:
            sizes[id(table)] = sizes.get(id(table), len(table.blocks)) + 1
        for table in tables:
            if not self.can_append(table, sizes[id(table)] * self.block_size):
                self.append(table, sizes[id(table)] * self.block_size)  # which says why not
        for table in tables:
            self.append(table, sizes[id(table)] * self.block_size)

    def ready(self, table: BlockTable, position: int) -> bool:
        """Whether the token at `position` can be written as things are. Changes nothing."""
        self.tables.require(table)
        run = self._runs[id(table)]
        return position < len(table.blocks) * self.block_size and run.source is None and not run.copies

    def can_write(self, table: BlockTable, start: int, stop: int) -> bool:
        """True: a run is never shared. Changes nothing."""
        self.tables.require(table)
        require_within(table, start, stop)
        return True

    def write(self, table: BlockTable, start: int, stop: int) -> list[tuple[int, int]]:
        """The copies owed since `table` was forked, (source, destination) each; none from the second time on.

        Raises:
            UnderloadError: a position that has no block yet.
        """
        self.tables.require(table)
        require_within(table, start, stop)
        run = self._runs[id(table)]
        copies, run.copies = run.copies, []
        self._stop_reading(run)
        self.counters.copies += len(copies)
        return copies

    # ---- what it holds stays unknown -----------------------------------------------------------------------------

    def announce(self, table: BlockTable, chain: BlockChain | None, tokens: int) -> None:
        """Nothing: there is no index."""

    def publish(self, table: BlockTable, chain: BlockChain | None, tokens: int) -> None:
        """Nothing: there is no index."""

    def retract(self, table: BlockTable, tokens: int) -> None:
        """Nothing: there is no index."""

    # ---- it goes -------------------------------------------------------------------------------------------------

    def trim(self, table: BlockTable, tokens: int) -> None:
        """Shorten `table` to its first `tokens` tokens; its run stays reserved."""
        self.tables.require(table)
        del table.blocks[blocks_for(tokens, self.block_size) :]

    def free(self, table: BlockTable) -> None:
        """Give back the run of `table`, which is empty afterwards. Freeing it again is an error."""
        self.tables.require(table)
        run = self._runs.pop(id(table))
        run.held = False
        self._stop_reading(run)
        self._give_back(run)
        self.tables.remove(table)

    # ---- for pictures and tests ----------------------------------------------------------------------------------

    def snapshot(self) -> list[BlockState]:
        """The state of every block, in the order of their ids."""
        states = [BlockState("used", 1)] * self.num_blocks
        for start, length in self._gaps.gaps():
            states[start : start + length] = [BlockState("free")] * length
        return states

    def owned(self, table: BlockTable) -> int:
        """The length of its run: nothing is shared."""
        return self._runs[id(table)].length

    def granted(self, table: BlockTable) -> list[int]:
        """The blocks that are kept for `table`: its whole run."""
        self.tables.require(table)
        run = self._runs[id(table)]
        return list(range(run.start, run.start + run.length))

    def usable(self, blocks: int) -> int:
        """Free blocks in gaps that a run of `blocks` would fit into."""
        wanted = self._gaps.rounded(blocks)
        return sum(length for _, length in self._gaps.gaps() if length >= wanted)

    # ---- inside --------------------------------------------------------------------------------------------------

    def _length(self, tokens: int, reserve: int | None) -> int:
        return blocks_for(max(tokens, reserve or 0), self.block_size)

    def _take(self, length: int) -> _Run:
        start = self._gaps.take(length)
        if start is None:
            longest = max((length for _, length in self._gaps.gaps()), default=0)
            raise OutOfBlocks(
                f"a run of {self._gaps.rounded(length)} blocks is wanted, and the longest gap among {self.num_free} "
                f"free blocks of {self.num_blocks} has {longest}; free a sequence first, reserve less, or make the "
                "pool larger"
            )
        run = _Run(start, self._gaps.rounded(length))
        self.counters.allocations += run.length
        return run

    def _register(self, table: BlockTable, run: _Run) -> BlockTable:
        self._runs[id(table)] = run
        return self.tables.add(table)

    def _stop_reading(self, run: _Run) -> None:
        if run.source is not None:
            run.source.readers -= 1
            self._give_back(run.source)
            run.source = None

    def _give_back(self, run: _Run) -> None:
        if not run.held and not run.readers:
            self._gaps.give(run.start, run.length)
