"""Task 3: fork and write, and sequences that fork and go on over a memory that remembers what was written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.random import Generator

from underload.labs.answers import as_list, as_pair, number
from underload.labs.sharing.pool import Pool
from underload.request import OutOfBlocks


def fork(pool: Any, blocks: Sequence[int]) -> list[int]:
    """Another list of the same blocks."""
    for block in blocks:
        pool.refs[block] += 1
    return list(blocks)


def write(pool: Any, blocks: list[int], start: int, stop: int) -> list[tuple[int, int]]:
    """Make the blocks of positions start to stop - 1 the sequence's own; the copies (source, destination) owed."""
    size = pool.block_size
    shared = [place for place in range(start // size, -(-stop // size)) if pool.refs[blocks[place]] > 1]
    free, cached, _ = pool.counts()
    if len(shared) > free + cached:
        raise OutOfBlocks(f"{len(shared)} blocks must be copied, and there is no room")
    copies = []
    for place in shared:
        copies.append((blocks[place], pool.take()))
        pool.refs[blocks[place]] -= 1
        blocks[place] = copies[-1][1]
    return copies


@dataclass(eq=False)
class Writer:
    """One sequence: what it has said, the student's list of its blocks, and what that should hold."""

    name: str
    said: list[Any]
    blocks: list[int]


class Writers:
    """Sequences that fork and go on, on the lab's own pool, over a memory that remembers what was written.

    Each token is written as (who, position), so that a sequence which reads another's word is seen.

        words   every sequence reads its own text, always looked at
        copies  only what is shared and about to be written is copied
        refs    a block's count is the number of lists that hold it
        trace   a refusal changes nothing
    """

    def __init__(self, fork: Callable[..., Any], write: Callable[..., Any], num_blocks: int, size: int, *watch: str):
        self.fork, self.write, self.watch = fork, write, set(watch)
        self.pool = Pool(num_blocks, size)
        self.memory: list[Any] = ["never written"] * (num_blocks * size)
        self.size, self.num_blocks = size, num_blocks
        self.writers: list[Writer] = []
        self.calls: list[str] = []

    def start(self, name: str, tokens: int) -> Writer:
        """A sequence with its prompt written."""
        blocks, _ = self.pool.allocate([], tokens)
        writer = Writer(name, [(name, position) for position in range(tokens)], blocks)
        self.writers.append(writer)
        self.calls.append(f"{name} begins with {tokens} tokens")
        self._put(writer, 0)
        return writer

    def split(self, writer: Writer, name: str) -> Writer:
        """fork() of a sequence."""
        self.calls.append(f"fork({writer.name}) as {name}")
        before, right = self.pool.counts(), list(writer.blocks)
        found = self.fork(self.pool, writer.blocks)
        assert found is not writer.blocks, self._say(
            "fork() returned the very list it was given: when one of the two grows, so does the other; make a new list"
        )
        blocks = as_list(found, "fork() must return a list of blocks")
        assert writer.blocks == right, self._say("fork() changed the list it was given")
        if "copies" in self.watch:
            assert self.pool.counts() == before and blocks == right, self._say(
                f"the fork has the blocks {blocks} for {right}, and {before[0] - self.pool.counts()[0]} free blocks "
                "fewer are left: nothing is copied before somebody writes"
            )
        other = Writer(name, list(writer.said), blocks if isinstance(found, list) is False else found)
        self.writers.append(other)
        self._look()
        return other

    def say(self, writer: Writer, tokens: int) -> bool:
        """A sequence writes so many tokens more; whether there was room."""
        start, stop = len(writer.said), len(writer.said) + tokens
        self.calls.append(f"{writer.name} writes {tokens} token{'s' if tokens > 1 else ''} from position {start}")
        places = range(start // self.size, -(-stop // self.size))
        shared = [place for place in places if place < len(writer.blocks) and self.holders(writer.blocks[place]) > 1]
        try:
            self.pool.append(writer.blocks, stop)
        except OutOfBlocks:
            return False
        right, refs, counts = list(writer.blocks), list(self.pool.refs), self.pool.counts()
        try:
            got = self.write(self.pool, writer.blocks, start, stop)
        except OutOfBlocks:
            room = counts[0] + counts[1]
            assert len(shared) > room, self._say(
                f"it was refused, though {room} blocks could be had for {len(shared)} copies"
                if shared
                else "it was refused, though it writes into no block that others hold: nothing has to be copied"
            )
            if "trace" in self.watch:
                assert writer.blocks == right and self.pool.refs == refs and self.pool.counts() == counts, self._say(
                    f"write() was refused with {len(shared)} copies to make and room for {room}, and has left a trace: "
                    "count before you take"
                )
            return False
        words = "write() must return a list of copies (source, destination)"
        copies = [as_pair(copy, words) for copy in as_list(got, words)]
        if "copies" in self.watch:
            wanted = [right[place] for place in shared]
            assert [int(source) for source, _ in copies] == wanted, self._say(
                f"the blocks {[source for source, _ in copies]} are copied; those that are about to be written and "
                f"that others hold too are {wanted}"
            )
        for source, destination in copies:
            block, target = int(number(source, "a source")), int(number(destination, "a destination"))
            assert 0 <= block < self.num_blocks and 0 <= target < self.num_blocks, self._say(f"no blocks: {copies}")
            assert self.holders(target) <= 1, self._say(f"block {target} is copied over, and others hold it")
            self.memory[target * self.size : (target + 1) * self.size] = self.memory[
                block * self.size : (block + 1) * self.size
            ]
        writer.said += [(writer.name, position) for position in range(start, stop)]
        self._put(writer, start)
        self._look()
        return True

    def back(self, writer: Writer, tokens: int) -> None:
        """A sequence keeps its first tokens, and will write what comes after them anew; its blocks stay."""
        self.calls.append(f"{writer.name} goes back to {tokens} tokens")
        writer.said = writer.said[:tokens]

    def end(self, writer: Writer) -> None:
        """A sequence gives its blocks back."""
        self.calls.append(f"{writer.name} ends")
        self.writers.remove(writer)
        self.pool.free(writer.blocks)
        self._look()

    def holders(self, block: int) -> int:
        """Lists that hold the block."""
        return sum(block in writer.blocks for writer in self.writers)

    def _put(self, writer: Writer, start: int) -> None:
        for position in range(start, len(writer.said)):
            block = writer.blocks[position // self.size]
            self.memory[block * self.size + position % self.size] = writer.said[position]

    def _say(self, what: str) -> str:
        return f"{what}. Blocks of {self.size} tokens; so far: {'; '.join(self.calls[-6:])}"

    def _look(self) -> None:
        for writer in self.writers:
            for position, said in enumerate(writer.said):
                block = writer.blocks[position // self.size]
                read = self.memory[block * self.size + position % self.size]
                whose = f"{read[0]}'s" if isinstance(read, tuple) else "nothing, it was never written,"
                assert read == said, self._say(
                    f"{writer.name} reads {whose} at position {position} (block {block}), and {said[0]} had written "
                    "there for it"
                )
        if "refs" in self.watch:
            right = [self.holders(block) for block in range(self.num_blocks)]
            worst = next((block for block in range(self.num_blocks) if self.pool.refs[block] != right[block]), None)
            assert worst is None, self._say(
                f"block {worst} has the count {self.pool.refs[worst or 0]}, and {right[worst or 0]} lists hold it"
            )


def check_fork(fork: Callable[..., Any]) -> None:
    """A fork holds the same blocks, takes none, and is a list of its own.

    Raises:
        AssertionError: naming the blocks or the counts.
    """
    both = Writers(fork, write, 8, 4, "copies", "refs")
    one = both.start("A", 6)
    two = both.split(one, "B")
    both.split(two, "C")


def check_own_words(fork: Callable[..., Any], write: Callable[..., Any]) -> None:
    """Six tokens forked, and both go on: each reads what it wrote itself.

    Raises:
        AssertionError: naming who reads whose word, where.
    """
    both = Writers(fork, write, 8, 4)
    one = both.start("A", 6)
    two = both.split(one, "B")
    both.say(one, 1)
    both.say(two, 1)
    both.say(one, 3)
    both.say(two, 3)
    both.end(one)
    both.say(two, 2)


def check_copies(fork: Callable[..., Any], write: Callable[..., Any]) -> None:
    """What is copied: the half-full block, once, by the first who writes; never a full one, never the last holder's.

    Raises:
        AssertionError: naming the blocks that were copied, and those that had to be.
    """
    both = Writers(fork, write, 12, 4, "copies", "refs")
    one = both.start("A", 6)
    two = both.split(one, "B")
    three = both.split(one, "C")
    for writer in (one, two, three, one):
        both.say(writer, 1)
    full = both.start("D", 8)
    other = both.split(full, "E")
    both.say(other, 1)
    both.say(full, 1)
    both.back(other, 2)
    both.say(other, 2)  # up to the end of its first block: the second one is not touched


def check_forks(fork: Callable[..., Any], write: Callable[..., Any], draw: Generator, *watch: str) -> None:
    """A drawn tree of sequences that fork, write and end.

    Raises:
        AssertionError: naming what went wrong, and the calls before it.
    """
    size = int(draw.integers(2, 6))
    both = Writers(fork, write, 40, size, *watch)
    both.start("A", int(draw.integers(1, 3 * size)))
    for step in range(40):
        writer = both.writers[int(draw.integers(len(both.writers)))]
        kind = draw.random()
        if kind < 0.1:
            both.back(writer, int(draw.integers(1, len(writer.said) + 1)))
        elif kind < 0.35 and len(both.writers) < 6:
            both.split(writer, "BCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnop"[step])
        elif kind < 0.85 or len(both.writers) == 1:
            if len(writer.said) < 6 * size:
                both.say(writer, int(draw.integers(1, size + 2)))
        else:
            both.end(writer)


def check_no_room(fork: Callable[..., Any], write: Callable[..., Any], draw: Generator) -> None:
    """Several shared blocks are to be rewritten, and there is room for some of the copies only.

    Raises:
        AssertionError: naming the trace that the refusal left.
    """
    size, blocks = int(draw.integers(2, 6)), int(draw.integers(3, 6))
    both = Writers(fork, write, 2 * blocks - 1, size, "trace")
    one = both.start("A", blocks * size)
    two = both.split(one, "B")
    both.back(two, 1)  # all of its blocks are to be written anew
    both.say(two, blocks * size - 1)
    assert len(two.said) == 1, both._say(f"{blocks} blocks are shared and {blocks - 1} are free: that is OutOfBlocks")
    both.end(one)
    both.say(two, blocks * size - 1)
