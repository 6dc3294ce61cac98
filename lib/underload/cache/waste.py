"""What the memory of a pool is used for, token slot by token slot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from underload.cache.protocol import Pool
from underload.cache.tables import blocks_for
from underload.request import BlockTable, UnderloadError


@dataclass(frozen=True)
class Waste:
    """Token slots of a pool by what they are used for, after Kwon et al. (SOSP 2023), Fig. 2. They sum to all slots.

    stored: hold the keys and values of a token; a shared slot counts once.
    reserved: kept for a sequence that will fill them, and empty still.
    internal: kept for a sequence that will never fill them.
    external: free, but in gaps too short for the sequence that waits.
    free: free, or holding what nobody uses and would be evicted; can be had now.
    """

    stored: int
    reserved: int
    internal: int
    external: int
    free: int

    @property
    def slots(self) -> int:
        return self.stored + self.reserved + self.internal + self.external + self.free


def waste(
    pool: Pool,
    tables_with_tokens: Iterable[tuple[BlockTable, int]],
    final_lengths: Sequence[int] | None = None,
    *,
    waiting: int | None = None,
) -> Waste:
    """Divide the slots of `pool` by what they are used for.

    Args:
        tables_with_tokens: every table that the pool has handed out, and the tokens stored in it.
        final_lengths: the tokens that each will have stored in the end, in the same order; None: no more than now.
        waiting: the tokens that the next sequence wants reserved, which tells what is too short for it; None: nobody
            waits, and no gap is too short.

    Raises:
        UnderloadError: not all tables of the pool, or others; tokens beyond what a table holds; a final length below
            the tokens stored.
    """
    held = list(tables_with_tokens)
    finals = [tokens for _, tokens in held] if final_lengths is None else list(final_lengths)
    if len(finals) != len(held):
        raise UnderloadError(f"{len(held)} tables and {len(finals)} final lengths; give one for each table")
    if len({id(table) for table, _ in held}) != len(held) or len(held) != len(pool.tables):
        raise UnderloadError(
            f"the pool has handed out {len(pool.tables)} tables, got {len(held)}; give each of them once"
        )
    size = pool.block_size
    stored: dict[int, int] = {}  # tokens in each block, by the holder that has most in it
    wanted: dict[int, int] = {}  # and in the end
    for (table, tokens), final in zip(held, finals):
        pool.tables.require(table)
        if not 0 <= tokens <= min(final, table.capacity):
            raise UnderloadError(
                f"a table of {table.capacity} slots and a final length of {final} cannot hold {tokens} tokens"
            )
        for place, number in enumerate(pool.granted(table)):
            before = place * size
            stored[number] = max(stored.get(number, 0), min(max(tokens - before, 0), size))
            wanted[number] = max(wanted.get(number, 0), min(max(final - before, 0), size))
    in_use, full, later = pool.num_used * size, sum(stored.values()), sum(wanted.values())
    open_slots = pool.num_blocks * size - in_use
    usable = open_slots if waiting is None else pool.usable(blocks_for(waiting, size)) * size
    return Waste(full, later - full, in_use - later, open_slots - usable, usable)
