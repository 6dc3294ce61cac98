"""Where a contiguous run of blocks goes: into the first gap that is long enough, or by halving (buddies)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Protocol


class Placement(Protocol):
    """The gaps between runs."""

    free: int  # blocks in gaps

    def rounded(self, length: int) -> int:
        """Blocks that a run of `length` really takes."""
        ...

    def fits(self, length: int) -> bool:
        """Whether `take` would find a gap now."""
        ...

    def take(self, length: int) -> int | None:
        """The first block of a new run of `rounded(length)` blocks; None where no gap is long enough."""
        ...

    def give(self, start: int, length: int) -> None:
        """A run that was taken is a gap again, and one with the gaps beside it."""
        ...

    def gaps(self) -> list[tuple[int, int]]:
        """Start and length of every gap, in order of their starts; none holds a run longer than its length."""
        ...


class FirstFit:
    """Runs as long as asked, each in the first gap that is long enough. Time goes by the number of gaps."""

    def __init__(self, num_blocks: int) -> None:
        self.free = num_blocks
        self._gaps = [(0, num_blocks)]

    def rounded(self, length: int) -> int:
        return length

    def fits(self, length: int) -> bool:
        return any(gap >= length for _, gap in self._gaps)

    def take(self, length: int) -> int | None:
        for place, (start, gap) in enumerate(self._gaps):
            if gap >= length:
                self._gaps[place : place + 1] = [(start + length, gap - length)] if gap > length else []
                self.free -= length
                return start
        return None

    def give(self, start: int, length: int) -> None:
        self.free += length
        place = bisect_left(self._gaps, (start, length))
        # gaps:  [before)   [start, start + length)   [after)      touching ones become one
        after = self._gaps[place : place + 1]
        if after and after[0][0] == start + length:
            length += self._gaps.pop(place)[1]
        if place and sum(self._gaps[place - 1]) == start:
            place -= 1
            length += start - self._gaps[place][0]
            start = self._gaps.pop(place)[0]
        self._gaps.insert(place, (start, length))

    def gaps(self) -> list[tuple[int, int]]:
        return list(self._gaps)


class Buddies:
    """Runs of 2^k blocks that start at a multiple of their length (Knuth, The Art of Computer Programming 1, 2.5).

    A longer gap is halved until it fits, and two halves become one again when both are free. Time goes by the number
    of sizes, not of blocks.
    """

    def __init__(self, num_blocks: int) -> None:
        self.free = 0
        # Per size, the starts of the gaps. Dicts, for their order: which of equal gaps is taken must be no chance.
        self._starts: list[dict[int, None]] = [{} for _ in range(num_blocks.bit_length())]
        start = 0
        for power in reversed(range(num_blocks.bit_length())):
            if num_blocks >> power & 1:
                self.give(start, 1 << power)
                start += 1 << power

    def rounded(self, length: int) -> int:
        return 1 << (length - 1).bit_length()

    def fits(self, length: int) -> bool:
        return any(self._starts[(length - 1).bit_length() :])

    def take(self, length: int) -> int | None:
        power = (length - 1).bit_length()
        for larger in range(power, len(self._starts)):
            if self._starts[larger]:
                start, _ = self._starts[larger].popitem()
                for half in range(larger - 1, power - 1, -1):
                    self._starts[half][start + (1 << half)] = None
                self.free -= 1 << power
                return start
        return None

    def give(self, start: int, length: int) -> None:
        self.free += length
        power = length.bit_length() - 1
        # The buddy of a run is the other half of the run twice as long: the one bit of its start is the other way.
        while (buddy := start ^ (1 << power)) in self._starts[power]:
            del self._starts[power][buddy]
            start = min(start, buddy)
            power += 1
        self._starts[power][start] = None

    def gaps(self) -> list[tuple[int, int]]:
        return sorted((start, 1 << power) for power, starts in enumerate(self._starts) for start in starts)


PLACEMENTS: dict[str, Callable[[int], Placement]] = {"buddy": Buddies, "first-fit": FirstFit}
