"""Task 2: the lab's pool, and a trial of a student's beside what it should do."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator

from underload.labs.answers import as_list, as_pair, number, shown
from underload.labs.sharing.names import digests, drawn_tokens
from underload.request import OutOfBlocks

_LAST_CALLS = 4  # calls that a message lists


class Pool:
    """Blocks of KV cache: who holds them, what they contain, which goes next. Names are trusted here."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.free_blocks = list(range(num_blocks))
        self.refs = [0] * num_blocks
        self.cached: OrderedDict[int, None] = OrderedDict()
        self.known: dict[Any, int] = {}
        self.digest: list[Any] = [None] * num_blocks

    def counts(self) -> tuple[int, int, int]:
        """Blocks that are free, cached and used."""
        return len(self.free_blocks), len(self.cached), sum(holders > 0 for holders in self.refs)

    def find(self, digests: Sequence[Any], tokens: int) -> list[int]:
        """Blocks of the longest known prefix, without the one of the last token."""
        blocks: list[int] = []
        for name in list(digests)[: (tokens - 1) // self.block_size]:
            if name not in self.known:
                return blocks
            blocks.append(self.known[name])
        return blocks

    def can_allocate(self, digests: Sequence[Any], tokens: int) -> bool:
        """Whether `allocate` would succeed now. Changes nothing."""
        hits = self.find(digests, tokens)
        room = len(self.free_blocks) + len(self.cached) - sum(not self.refs[block] for block in hits)
        return -(-tokens // self.block_size) - len(hits) <= room

    def take(self) -> int:
        """A block for new content, held once."""
        if self.free_blocks:
            block = self.free_blocks.pop()
        elif self.cached:
            block, _ = self.cached.popitem(last=False)
            del self.known[self.digest[block]]
            self.digest[block] = None
        else:
            raise OutOfBlocks("every block is held by a sequence; free one first")
        self.refs[block] = 1
        return block

    def allocate(self, digests: Sequence[Any], tokens: int) -> tuple[list[int], int]:
        """Blocks for the first `tokens` tokens, and how many of them were found."""
        if not self.can_allocate(digests, tokens):
            raise OutOfBlocks(f"there is no room for {tokens} tokens")
        blocks = self.find(digests, tokens)
        hits = len(blocks)
        for block in blocks:
            self.cached.pop(block, None)
            self.refs[block] += 1
        blocks += [self.take() for _ in range(-(-tokens // self.block_size) - hits)]
        return blocks, hits

    def append(self, blocks: list[int], tokens: int) -> None:
        """Lengthen `blocks` until there is room for `tokens` tokens in all."""
        more = -(-tokens // self.block_size) - len(blocks)
        if more > len(self.free_blocks) + len(self.cached):
            raise OutOfBlocks(f"there is no room for {more} blocks more")
        blocks += [self.take() for _ in range(more)]

    def publish(self, blocks: Sequence[int], digests: Sequence[Any]) -> None:
        """The first blocks hold what these digests name; they are found from now on."""
        for block, name in zip(blocks, digests):
            if name not in self.known and self.digest[block] is None:
                self.known[name], self.digest[block] = block, name

    def free(self, blocks: Sequence[int]) -> None:
        """Give back every block, the last one first."""
        for block in reversed(blocks):
            self.refs[block] -= 1
            if self.refs[block]:
                continue
            if self.digest[block] is None:
                self.free_blocks.append(block)
            else:
                self.cached[block] = None


@dataclass(eq=False)
class Held:
    """One sequence of a trial: its tokens, the student's list of blocks, and what that should be."""

    name: str
    text: list[int]
    blocks: list[int]
    right: list[int]


class Trial:
    """A student's pool beside what it should do; every call is looked at.

    A block that somebody holds is given to nobody else, and none gets lost: that is always insisted on. Of the rest,
    what `watch` names; where it is not named, the student's choice is taken as it is:

        counts    free, cached and used after each call
        hits      the longest known prefix, and not a block more or less
        order     free blocks before cached ones; of these the one longest out of use, tails before heads
        refusals  can_allocate() says what allocate() does, and a refusal leaves the counts as they were
    """

    def __init__(self, pool: Callable[[int, int], Any], num_blocks: int, size: int, *watch: str) -> None:
        self.pool = pool(num_blocks, size)
        self.size, self.num_blocks, self.watch = size, num_blocks, set(watch)
        self.tables: list[Held] = []
        self.known: dict[bytes, int] = {}
        self.names: dict[int, bytes] = {}
        self.free = set(range(num_blocks))
        self.cached: list[int] = []
        self.calls: list[str] = []

    # ---- calls

    def admit(self, name: str, text: Sequence[int]) -> Held | None:
        """allocate() for all tokens of a text; None if it was refused, and rightly."""
        tokens, names = len(text), digests(text, self.size)
        self._call(f"allocate({name}: {tokens} tokens)")
        expected = self._find(names, tokens)
        wanted = -(-tokens // self.size) - len(expected)
        room = len(self.free) + len(self.cached) - sum(block in self.cached for block in expected)
        before = self.counts()
        if "refusals" in self.watch:
            can = self.pool.can_allocate(list(names), tokens)
            assert bool(can) == (wanted <= room), self._say(
                f"can_allocate() says {can}; {wanted} new blocks are needed and {room} could be had besides the "
                f"{len(expected)} that were found"
            )
            assert self.counts() == before, self._say("can_allocate() changed the counts; it only asks")
        try:
            got = self.pool.allocate(list(names), tokens)
        except OutOfBlocks:
            assert wanted > room, self._say(
                f"it was refused, though {wanted} new blocks are needed and {room} could be had"
            )
            self._unchanged(before)
            return None
        words = "allocate() must return (blocks, hits)"
        blocks, hits = as_pair(got, words)
        blocks = blocks if isinstance(blocks, list) else as_list(blocks, words)
        found = int(number(hits, "the hits of allocate()"))
        self._ids(blocks, -(-tokens // self.size))
        if "hits" in self.watch:
            assert found == len(expected), self._say(
                f"{found} of the blocks are hits; the pool knew {self._known_prefix(names)} blocks of this text from "
                f"its beginning, and the last token's block is never one of them, so {len(expected)} was right"
            )
        for place, block in enumerate(blocks[:found]):
            assert self.known.get(names[place] if place < len(names) else b"") == block, self._say(
                f"block {block} was given as a hit for block {place} of the text, and holds something else"
            )
        held = Held(name, list(text), blocks, list(blocks))
        self.cached = [block for block in self.cached if block not in blocks[:found]]
        self._took(blocks[found:])
        self.tables.append(held)
        self._counted()
        return held

    def grow(self, held: Held, tokens: int) -> bool:
        """append() until there is room for so many tokens; whether there was."""
        self._call(f"append({held.name} to {tokens} tokens)")
        more = max(-(-tokens // self.size) - len(held.right), 0)
        room, before = len(self.free) + len(self.cached), self.counts()
        try:
            self.pool.append(held.blocks, tokens)
        except OutOfBlocks:
            assert more > room, self._say(f"it was refused, though {more} blocks are needed and {room} could be had")
            self._unchanged(before)
            if "refusals" in self.watch:
                assert held.blocks == held.right, self._say("append() was refused and has changed the list of blocks")
            return False
        assert held.blocks[: len(held.right)] == held.right, self._say(
            "append() changed blocks that the list had before; it adds at the end of the very list it is given"
        )
        self._ids(held.blocks, len(held.right) + more)
        self._took(held.blocks[len(held.right) :])
        held.right = list(held.blocks)
        self._counted()
        return True

    def publish(self, held: Held) -> None:
        """publish() all full blocks of the text that have a place."""
        full = min(len(held.text) // self.size, len(held.right))
        self._call(f"publish({held.name}: {full} blocks)")
        names = digests(held.text, self.size)[:full]
        self.pool.publish(held.blocks, list(names))
        for block, name in zip(held.right, names):
            if name not in self.known and block not in self.names:
                self.known[name], self.names[block] = block, name
        self._kept(held)
        self._counted()

    def drop(self, held: Held) -> None:
        """free() a sequence's blocks."""
        self._call(f"free({held.name})")
        self.pool.free(held.blocks)
        self.tables.remove(held)
        for block in reversed(held.right):
            if self.holders(block):
                continue
            if block in self.names:
                self.cached.append(block)
            else:
                self.free.add(block)
        self._counted()

    # ---- what is looked at

    def holders(self, block: int) -> int:
        return sum(block in table.right for table in self.tables)

    def counts(self) -> tuple[int, ...]:
        """What the student's counts() says."""
        words = "counts() must return (free, cached, used)"
        found = as_list(self.pool.counts(), words)
        assert len(found) == 3, f"{words}, got {shown(found)}"
        return tuple(int(number(value, "a count")) for value in found)

    def _call(self, call: str) -> None:
        self.calls.append(call)

    def _say(self, what: str) -> str:
        before = "; ".join(self.calls[-_LAST_CALLS - 1 : -1])
        return f"{self.calls[-1]}: {what}. A pool of {self.num_blocks} blocks of {self.size} tokens" + (
            f", after: {'… ' if len(self.calls) > _LAST_CALLS + 1 else ''}{before}" if before else ", at its first call"
        )

    def _known_prefix(self, names: Sequence[bytes]) -> int:
        return next((place for place, name in enumerate(names) if name not in self.known), len(names))

    def _find(self, names: Sequence[bytes], tokens: int) -> list[int]:
        most = min(self._known_prefix(names), (tokens - 1) // self.size)
        return [self.known[name] for name in names[:most]]

    def _ids(self, blocks: Sequence[Any], wanted: int) -> None:
        assert len(blocks) == wanted, self._say(f"the list has {len(blocks)} blocks, {wanted} were needed")
        for block in blocks:
            assert isinstance(block, int | np.integer) and 0 <= block < self.num_blocks, self._say(
                f"{shown(block)} is no block; they are numbered from 0 to {self.num_blocks - 1}"
            )
        twice = [block for place, block in enumerate(blocks) if block in blocks[:place]]
        assert not twice, self._say(
            f"block {twice and twice[0]} stands twice in the list {list(blocks)}: a block that was found has been "
            "given away again for new content; hold what was found before anything is taken"
        )

    def _kept(self, held: Held) -> None:
        assert held.blocks == held.right, self._say(f"the list of {held.name} was {held.right} and is {held.blocks}")

    def _took(self, fresh: Sequence[int]) -> None:
        """New blocks were given out: nobody's, free ones first, then those longest out of use."""
        for block in fresh:
            owner = next((table for table in self.tables if block in table.right), None)
            assert owner is None, self._say(
                f"block {block} was given out as a new one, and {owner and owner.name} holds it: what "
                f"{owner and owner.name} has computed would be overwritten"
            )
        gone = [block for block in fresh if block in self.cached]
        if "order" in self.watch and gone:
            left = len(self.free) - (len(fresh) - len(gone))
            assert not left, self._say(
                f"block {gone[0]} could be found again and was given up, though {left} blocks were free"
            )
            oldest = self.cached[: len(gone)]
            assert sorted(gone) == sorted(oldest), self._say(
                f"blocks {sorted(gone)} were given up; those longest out of use are {sorted(oldest)} (a sequence gives "
                "back its last block first, so that its tail goes before its head)"
            )
        for block in fresh:
            if block in self.cached:
                self.cached.remove(block)
                del self.known[self.names.pop(block)]
            self.free.discard(block)

    def _counted(self) -> None:
        if "counts" in self.watch:
            got = self.counts()
            right = len(self.free), len(self.cached), sum(self.holders(block) > 0 for block in range(self.num_blocks))
            assert got == right, self._say(
                f"counts() says {got[0]} free, {got[1]} cached and {got[2]} used, {sum(got)} in all; it should be "
                f"{right[0]} free, {right[1]} cached and {right[2]} used"
            )

    def _unchanged(self, before: tuple[int, ...]) -> None:
        if "refusals" in self.watch:
            assert self.counts() == before, self._say(
                f"it was refused and has left a trace: the counts were {before} and are {self.counts()}"
            )


HEAD = list(range(100, 200))
OTHER = list(range(300, 400))


def check_grows(pool: Callable[[int, int], Any]) -> None:
    """Two sequences that share nothing come, grow and go.

    Raises:
        AssertionError: naming the call and what went wrong.
    """
    trial = Trial(pool, 8, 4, "counts")
    one, two = trial.admit("A", HEAD[:6]), trial.admit("B", OTHER[:4])
    assert one and two
    for tokens in (7, 8, 9):
        trial.grow(one, tokens)
    trial.grow(two, 5)
    trial.drop(one)
    three = trial.admit("C", HEAD[50:70])
    assert three
    trial.drop(two)
    trial.drop(three)


def check_refuses(pool: Callable[[int, int], Any]) -> None:
    """Too little room is OutOfBlocks, and nothing has changed.

    Raises:
        AssertionError: naming the call and the trace that it left.
    """
    trial = Trial(pool, 6, 4, "refusals", "counts")
    one, two = trial.admit("A", HEAD[:8]), trial.admit("B", OTHER[:9])
    assert one and two
    assert trial.admit("C", HEAD[50:58]) is None, trial._say("there is one block, and two are needed")
    trial.grow(two, 16)
    assert not trial.grow(one, 12), trial._say("no block is left")
    assert trial.admit("D", HEAD[50:51]) is None, trial._say("no block is left")


def check_finds(pool: Callable[[int, int], Any]) -> None:
    """What was published is found: while somebody holds it, and after.

    Raises:
        AssertionError: naming the call, the hits, and what was wanted.
    """
    trial = Trial(pool, 12, 4, "hits", "counts")
    one = trial.admit("A", HEAD[:14])
    assert one
    trial.publish(one)
    two = trial.admit("B", HEAD[:8] + OTHER[:5])
    assert two
    trial.publish(two)
    trial.drop(one)
    three = trial.admit("C", HEAD[:14])
    assert three
    trial.drop(two)
    trial.drop(three)
    trial.admit("D", [*OTHER[:4], *HEAD[4:12]])  # same second block after another first one


def check_last(pool: Callable[[int, int], Any]) -> None:
    """The block of the last token is computed, though it be known; a longer prompt finds it.

    Raises:
        AssertionError: naming the hits.
    """
    trial = Trial(pool, 12, 4, "hits")
    one = trial.admit("A", HEAD[:8])
    assert one
    trial.publish(one)
    trial.drop(one)
    again = trial.admit("A again", HEAD[:8])
    assert again
    trial.publish(again)
    trial.admit("A and 4 more", HEAD[:12])


def check_oldest(pool: Callable[[int, int], Any]) -> None:
    """Free blocks go first, then the sequence that has been out of use for longest.

    Raises:
        AssertionError: naming the blocks that went and those that should have gone.
    """
    trial = Trial(pool, 8, 4, "order", "hits")
    texts = {"A": HEAD[:4], "B": OTHER[:4], "C": HEAD[50:54]}
    for name, text in texts.items():
        held = trial.admit(name, text)
        assert held
        trial.publish(held)
        trial.drop(held)
    longer = trial.admit("A and 4 more", HEAD[:8])  # A was used just now
    assert longer
    trial.drop(longer)
    held = trial.admit("D", OTHER[50:74])  # six blocks: five free ones, and one of those that are cached
    assert held
    trial.admit("A and 2 more", HEAD[:6])


def check_tails(pool: Callable[[int, int], Any]) -> None:
    """Of one sequence the tail goes before the head: a prefix without its head is of no use to anybody.

    Raises:
        AssertionError: naming the blocks that went and those that should have gone.
    """
    trial = Trial(pool, 6, 4, "order", "hits")
    one = trial.admit("A", HEAD[:24])
    assert one
    trial.publish(one)
    trial.drop(one)
    two = trial.admit("B", OTHER[:12])
    assert two
    trial.drop(two)
    trial.admit("A", HEAD[:24])


def drawn_texts(draw: Generator, size: int, most: int) -> list[list[int]]:
    """Texts of which many begin alike: as conversations and system prompts make them."""
    heads = [drawn_tokens(draw, most * size) for _ in range(3)]
    texts = []
    for _ in range(16):
        head = heads[int(draw.integers(3))][: int(draw.integers(0, most * size - 1))]
        own = drawn_tokens(draw, int(draw.integers(1, most * size - len(head) + 1)))
        texts.append(head + own)
    return texts


def check_pool(pool: Callable[[int, int], Any], draw: Generator, *watch: str, calls: int = 70) -> None:
    """A drawn program of calls, each looked at (see `Trial`).

    Raises:
        AssertionError: naming the call, what went wrong, and the calls before it.
    """
    size, num_blocks = int(draw.integers(2, 5)), int(draw.integers(10, 18))
    texts = drawn_texts(draw, size, num_blocks // 2)
    trial = Trial(pool, num_blocks, size, *watch)
    for step in range(calls):
        kind = draw.random()
        if kind < 0.45 or not trial.tables:
            held = trial.admit(f"request {step}", texts[int(draw.integers(len(texts)))])
            if held is not None and draw.random() < 0.8:
                trial.publish(held)
            elif held is None and trial.tables:
                trial.drop(trial.tables[int(draw.integers(len(trial.tables)))])
            continue
        held = trial.tables[int(draw.integers(len(trial.tables)))]
        if kind < 0.7:
            held.text += drawn_tokens(draw, int(draw.integers(1, size + 1)))
            if trial.grow(held, len(held.text)):
                trial.publish(held)
            else:
                trial.drop(held)
        else:
            trial.drop(held)


def check_holds(pool: Callable[[int, int], Any], draw: Generator) -> None:
    """A prompt that is found, and needs so much more that something cached must go: anything but what was found.

    Raises:
        AssertionError: naming the list in which a block stands twice, or what was found no more.
    """
    size, old, more = int(draw.integers(2, 5)), int(draw.integers(2, 5)), int(draw.integers(2, 4))
    trial = Trial(pool, old + more, size, "hits", "refusals")
    text, other = drawn_tokens(draw, old * size), drawn_tokens(draw, more * size)
    for name, tokens in (("P", text), ("Q", other)):  # P is longer out of use than Q
        held = trial.admit(name, tokens)
        assert held
        trial.publish(held)
        trial.drop(held)
    too_long = trial.admit("P and too much", text + drawn_tokens(draw, (more + 1) * size))
    assert too_long is None, trial._say("what was found is no room for the rest")
    longer = trial.admit("P and more", text + drawn_tokens(draw, more * size))
    assert longer, trial._say("what Q left is enough for it")
    assert trial.admit("R", drawn_tokens(draw, 1)) is None, trial._say("every block is held by P and more")


def check_forgets(pool: Callable[[int, int], Any], draw: Generator) -> None:
    """What was given up is found no more, and what two sequences computed at once is found once.

    Raises:
        AssertionError: naming the block that is found and holds something else.
    """
    size = int(draw.integers(2, 5))
    trial = Trial(pool, 6, size, "counts")
    text = drawn_tokens(draw, 3 * size)
    twins = [trial.admit(f"{name}, the same text", text) for name in ("A", "B")]
    assert twins[0] and twins[1]
    trial.publish(twins[0])
    trial.publish(twins[1])
    trial.drop(twins[0])
    trial.drop(twins[1])
    other = trial.admit("C", drawn_tokens(draw, 6 * size))
    assert other
    trial.publish(other)
    trial.drop(other)
    again = trial.admit("A again", text)
    assert again
    trial.publish(again)
    trial.drop(again)
    trial.admit("C again", other.text)
    _check_gap(pool, drawn_tokens(draw, 6 * size), size)


def _check_gap(pool: Callable[[int, int], Any], text: Sequence[int], size: int) -> None:
    """A head that is known no more, before a tail that is: two sequences computed the head at once."""
    trial = Trial(pool, 7, size, "hits")
    one = trial.admit("A", text[: 2 * size])
    two = trial.admit("B, with the first block of A", [*text[:size], *text[2 * size : 4 * size]])
    assert one and two
    trial.publish(one)
    trial.publish(two)
    trial.drop(one)
    three = trial.admit("C", text[: -4 * size - 1 : -1])  # takes what A has left
    assert three
    trial.drop(three)
    trial.admit("D, as B", [*text[:size], *text[2 * size : 4 * size]])
