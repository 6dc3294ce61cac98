"""The block tables that a pool has handed out and not taken back."""

from __future__ import annotations

from collections.abc import Iterator

from underload.request import BlockTable, UnderloadError

MAX_BLOCKS = 2**24


class Tables:
    """Tells a pool's own tables from those that were freed before, or come from elsewhere."""

    def __init__(self) -> None:
        self._held: dict[int, BlockTable] = {}  # by id(): a table changes, so it cannot be a key itself

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[BlockTable]:
        return iter(list(self._held.values()))

    def __contains__(self, table: BlockTable) -> bool:
        return id(table) in self._held

    def add(self, table: BlockTable) -> BlockTable:
        self._held[id(table)] = table
        return table

    def remove(self, table: BlockTable) -> None:
        """Strike out a table and empty it."""
        del self._held[id(table)]
        table.blocks.clear()
        table.num_hashed = 0

    def require(self, table: BlockTable) -> None:
        """
        Raises:
            UnderloadError: the pool does not hold this table.
        """
        if id(table) not in self._held:
            raise UnderloadError(
                f"the pool does not hold this table of {len(table.blocks)} blocks: it was freed before, or comes from "
                "another pool; a table is freed once, by the pool that made it"
            )


def require_pool(num_blocks: int, block_size: int) -> None:
    """
    Raises:
        UnderloadError: no pool has that many blocks, or blocks of that size.
    """
    if num_blocks < 1 or block_size < 1:
        raise UnderloadError(f"a pool needs at least one block of one token, got {num_blocks} blocks of {block_size}")
    if num_blocks > MAX_BLOCKS:
        raise UnderloadError(
            f"a pool has at most {MAX_BLOCKS:,} blocks, got {num_blocks:,} of {block_size} tokens; for a pool that is "
            "never full, fewer will do, or larger ones"
        )


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold `tokens` tokens: the smallest whole number >= tokens / block_size.

    Raises:
        UnderloadError: fewer than one token.
    """
    if tokens < 1:
        raise UnderloadError(f"a sequence has at least 1 token, got {tokens}; free its table instead")
    return -(-tokens // block_size)


def require_within(table: BlockTable, start: int, stop: int) -> None:
    """
    Raises:
        UnderloadError: some position from start to stop - 1 has no block in the table.
    """
    if not 0 <= start <= stop <= table.capacity:
        raise UnderloadError(
            f"positions from {start} up to {stop} are not within the {table.capacity} of the table's "
            f"{len(table.blocks)} blocks of {table.block_size}; append first"
        )
