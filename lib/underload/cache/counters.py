"""What a pool has done so far."""

from dataclasses import dataclass


@dataclass
class PoolCounters:
    """Sums since the pool was made; a caller who wants a difference keeps the earlier values.

    queries: tokens looked up when a sequence was given its blocks.
    hits: tokens of those that were found, and need not be computed.
    allocations: blocks taken, whether free or evicted.
    evictions: blocks taken that held something which could have been found again.
    copies: blocks copied because a shared one was about to be written.
    """

    queries: int = 0
    hits: int = 0
    allocations: int = 0
    evictions: int = 0
    copies: int = 0
