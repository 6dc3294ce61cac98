"""Blocks on the host, where preempted sequences are put aside."""

from collections.abc import Iterable

from underload.cache.tables import MAX_BLOCKS
from underload.request import OutOfBlocks, UnderloadError


class HostPool:
    """Ids of the blocks of a host storage. Nothing is shared or found again: what is here belongs to one sequence.

    Raises:
        UnderloadError: fewer than 0 blocks, or more than `tables.MAX_BLOCKS`. None at all is fine: then nothing can be
            put aside.
    """

    def __init__(self, num_blocks: int) -> None:
        if not 0 <= num_blocks <= MAX_BLOCKS:
            raise UnderloadError(f"a host pool has 0 to {MAX_BLOCKS:,} blocks, got {num_blocks:,}")
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._used: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return len(self._used)

    def allocate(self, count: int) -> list[int]:
        """`count` blocks.

        Raises:
            OutOfBlocks: fewer are free; nothing has changed.
            UnderloadError: a count below 0.
        """
        if count < 0:
            raise UnderloadError(f"the number of blocks must be at least 0, got {count}")
        if count > len(self._free):
            raise OutOfBlocks(
                f"{count} host blocks are wanted, and {len(self._free)} of {self.num_blocks} are free; compute the "
                "sequence again instead, or make the host pool larger"
            )
        taken = [self._free.pop() for _ in range(count)]
        self._used.update(taken)
        return taken

    def free(self, blocks: Iterable[int]) -> None:
        """Give blocks back.

        Raises:
            UnderloadError: one of them is not in use, or comes twice; nothing has changed.
        """
        given = list(blocks)
        if len(set(given)) < len(given) or not self._used.issuperset(given):
            raise UnderloadError(f"host blocks {given} are not all in use, once each; free them once")
        self._used.difference_update(given)
        self._free.extend(reversed(given))
