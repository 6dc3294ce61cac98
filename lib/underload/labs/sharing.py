"""Lab 9, "Sharing, and running out": what its tasks start from, and checks that say what is wrong with a value.

    digests, collide, confirmed      earlier answers, for the tasks that start from one; so are Pool, fork, write,
    recompute, swap, break_even      victim
    thin_digests, Entry              names that collide, and what an index knows of a block
    Trial, Writers                   a pool, and forks, beside what they should do; every call is looked at
    Adapted                          a student's pool as the real scheduler wants one
    conversations, serve, say        a load of many turns through the engine, on a virtual clock and on pocket
    check_*                          raise AssertionError with the wrong value, what it is instead, and what was wanted
    draw_*                           the pictures of the lab

Times are in s.
"""

from __future__ import annotations

import json
import math
import struct
from bisect import bisect_right
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from underload import figures
from underload.cache import BlockChain, HostPool, PoolCounters
from underload.cache.tables import Tables
from underload.engine import Engine
from underload.labs.answers import as_list, as_pair, named, near, number, shown
from underload.labs.answers import check_guess as check_guess
from underload.request import BlockTable, OutOfBlocks, Request, SamplingParams, Timeline, UnderloadError, VirtualClock
from underload.scheduling import Plan, Scheduler
from underload.shapes import Device, ModelShape, device, shape
from underload.simulation import CostModelExecutor, RooflineStepTime
from underload.workload import Conversations, GeometricTokens, Lengths, Planned, Poisson, PromptIds, Workload

VOCABULARY = 1024  # pocket's
_NAME_BYTES = 64  # what a name may have at most
_LAST_CALLS = 4  # calls that a message lists


def book() -> dict[str, Any]:
    """What the book's machine gave: `serving` and `seconds` of pocket, `machine`, `date`."""
    found: dict[str, Any] = json.loads(Path(__file__).with_name("sharing.json").read_text(encoding="utf-8"))
    return found


# ------------------------------------------------------------------ task 1: names, and how far they can be trusted


def digests(tokens: Sequence[int], size: int, salt: str = "", adapter: str = "") -> list[bytes]:
    """A name for each full block of `size` tokens: of the block, of all before it, and of salt and adapter."""
    before, found = sha256(repr((salt, adapter)).encode()).digest(), []
    for end in range(size, len(tokens) + 1, size):
        before = sha256(before + struct.pack(f"<{size}q", *tokens[end - size : end])).digest()
        found.append(before)
    return found


_right_digests = digests


def thin_digests(tokens: Sequence[int], size: int, salt: str = "", adapter: str = "") -> list[bytes]:
    """Names that keep one byte of each token: 65 and 321 look alike. Chained, and wrong."""
    before, found = sha256(repr((salt, adapter)).encode()).digest(), []
    for start in range(0, len(tokens) - size + 1, size):
        before = sha256(before + bytes(int(token) % 256 for token in tokens[start : start + size])).digest()
        found.append(before)
    return found


def collide(tokens: Sequence[int], vocabulary: int = VOCABULARY) -> list[int]:
    """Another prompt, different at every place, whose thin names are the same."""
    return [token + 256 if token + 256 < vocabulary else token - 256 for token in tokens]


@dataclass(frozen=True)
class Entry:
    """What an index knows of the block that it has under a digest.

    block, generation: which block, and how often it had been filled by then; together no two contents have them.
    tokens: the ids in it.
    parent: (block, generation) of the block before it in its sequence; (salt, adapter) for a first block.
    """

    block: int
    generation: int
    tokens: tuple[int, ...]
    parent: tuple[Any, Any]


def confirmed(
    index: Mapping[bytes, Entry], digests: Sequence[bytes], contents: Sequence[tuple[int, ...]], root: tuple[str, str]
) -> list[int]:
    """The blocks of the longest prefix that the index has under these digests and that holds these contents."""
    blocks: list[int] = []
    parent: tuple[Any, Any] = root
    for name, tokens in zip(digests, contents):
        entry = index.get(name)
        if entry is None or entry.tokens != tuple(tokens) or entry.parent != parent:
            return blocks
        blocks.append(entry.block)
        parent = (entry.block, entry.generation)
    return blocks


def _names(digests: Callable[..., Any], tokens: Sequence[int], size: int, *more: str) -> list[Any]:
    """What a student's digests() gives, if these are names at all."""
    said = f"digests({_brief(tokens)}, {size}{''.join(f', {part!r}' for part in more)})"
    found = as_list(digests(list(tokens), size, *more), f"{said} must return a list of names")
    for name in found:
        assert isinstance(name, bytes | str), (
            f"{said} holds {shown(name)}, which is {type(name).__name__}; a name is bytes, as sha256(…).digest() gives "
            "(hash() gives the same number for -1 and -2, and another in every process for text)"
        )
        assert len(name) == len(found[0]), f"{said} has names of {len(found[0])} and of {len(name)} characters"
        assert len(name) <= 2 * _NAME_BYTES, (
            f"{said} has a name of {len(name)} bytes; a name that holds all tokens before it grows with the sequence: "
            "hash them"
        )
    full = len(tokens) // size
    assert len(found) == full, (
        f"{said} has {len(found)} names; {len(tokens)} tokens fill {full} blocks of {size}, and a block that is not "
        "full has no name"
    )
    return found


def _brief(tokens: Sequence[int]) -> str:
    return str(list(tokens)) if len(tokens) <= 12 else f"[{', '.join(map(str, tokens[:3]))}, … {len(tokens)} tokens]"


def check_names(digests: Callable[..., Any], tokens: Sequence[int], size: int) -> None:
    """A name for each full block, the same at every call, and for every longer sequence that begins so.

    Raises:
        AssertionError: naming the tokens and the block.
    """
    first, again = _names(digests, tokens, size), _names(digests, tokens, size)
    assert first == again, f"digests({_brief(tokens)}, {size}) gives other names at the second call"
    longer = _names(digests, [*tokens, *tokens[:size], 7], size)
    for place, (short, long) in enumerate(zip(first, longer)):
        assert short == long, (
            f"block {place} of {_brief(tokens)} changes its name when the sequence grows: then no request would ever "
            "find what another has computed; a name may depend on the block and on those before it only"
        )
    assert len({*first}) == len(first), f"two blocks of {_brief(tokens)} have one name, and hold different tokens"


def check_differ(
    digests: Callable[..., Any],
    one: Sequence[int],
    other: Sequence[int],
    size: int,
    *,
    this: tuple[str, str] = ("", ""),
    that: tuple[str, str] = ("", ""),
    why: str = "",
) -> None:
    """Two sequences whose names are equal up to where they part, and differ in every block from there on.

    Raises:
        AssertionError: naming the block, what is in it, and what makes the difference.
    """
    names = _names(digests, one, size, *this), _names(digests, other, size, *that)
    for place in range(min(map(len, names))):
        end = (place + 1) * size
        same = list(one[:end]) == list(other[:end]) and this == that
        equal = names[0][place] == names[1][place]
        contents = one[place * size : end], other[place * size : end]
        where = f"block {place} of {_brief(one)} {_of(this)}and of {_brief(other)} {_of(that)}"
        if same and not equal:
            raise AssertionError(f"{where}have different names, though all tokens up to there are the same")
        if equal and not same:
            raise AssertionError(
                f"{where}have one name"
                + (
                    "; the block holds the same tokens, but what comes before differs, and keys and values depend on "
                    "all of it: put the name of the block before into the name"
                    if contents[0] == contents[1] and this == that
                    else f": {why}"
                )
            )


def _of(root: tuple[str, str]) -> str:
    return "" if root == ("", "") else f"(salt {root[0]!r}, adapter {root[1]!r}) "


def drawn_tokens(draw: Generator, count: int, vocabulary: int = VOCABULARY) -> list[int]:
    """Token ids, any below the vocabulary."""
    return [int(token) for token in draw.integers(vocabulary, size=count)]


def check_whole_ids(digests: Callable[..., Any], draw: Generator) -> None:
    """Ids count whole: neither their low bytes nor their digits in a row are enough, nor their sum, nor their order.

    Raises:
        AssertionError: naming two blocks with one name.
    """
    why = "the ids are not kept whole, so that one prompt would be given another's keys and values"
    check_differ(digests, [65] * 4, [321] * 4, 4, why=f"{why} (65 and 321 have one low byte)")
    check_differ(digests, [1, 23], [12, 3], 2, why=f"{why} (their digits in a row are the same; put something between)")
    check_differ(digests, [11, 1, 7, 7], [1, 11, 7, 7], 4, why=f"{why} (the order counts)")
    check_differ(digests, [5, 9], [6, 8], 2, why=f"{why} (their sum is the same)")
    for _ in range(4):
        one = drawn_tokens(draw, 12, 120_000)
        other = list(one)
        other[int(draw.integers(4, 12))] += int(draw.choice([256, 65_536]))
        check_differ(digests, one, other, 4, why=f"{why} (two ids differ by a multiple of 256)")


def check_root(digests: Callable[..., Any], draw: Generator) -> None:
    """Salt and adapter are part of every name.

    Raises:
        AssertionError: naming the two.
    """
    tokens = drawn_tokens(draw, 12)
    word = f"tenant-{int(draw.integers(100, 999))}"
    roots = [("", ""), (word, ""), ("", word), (word, word), (word[:3], word[3:]), (word[:4], word[4:])]
    for place, this in enumerate(roots):
        check_differ(digests, tokens, tokens, 4, this=this, that=this)
        for that in roots[:place]:
            check_differ(
                digests, tokens, tokens, 4, this=this, that=that,
                why="salt and adapter do not both count, each by itself (joined without a mark between them, 'ab' + "
                "'c' and 'a' + 'bc' are the same)",
            )  # fmt: skip


def check_collision(collide: Callable[..., Any], tokens: Sequence[int], size: int = 4) -> None:
    """A prompt with another token at every place and with the same thin names.

    Raises:
        AssertionError: naming the place or the block.
    """
    found = as_list(collide(list(tokens)), "collide() must return a list of token ids")
    other = [number(token, f"token {place} of collide()") for place, token in enumerate(found)]
    assert len(other) == len(tokens), f"collide() returned {len(other)} tokens for {len(tokens)}; give as many"
    for place, (mine, theirs) in enumerate(zip(other, tokens)):
        assert mine == int(mine) and 0 <= mine < VOCABULARY, (
            f"token {place} is {mine:g}; pocket knows the ids from 0 to {VOCABULARY - 1}"
        )
        assert mine != theirs, f"token {place} is {theirs} in both prompts; it should be another one"
    names = thin_digests([int(token) for token in other], size), thin_digests(tokens, size)
    for place, (a, b) in enumerate(zip(*names)):
        ids = tokens[place * size : (place + 1) * size], other[place * size : (place + 1) * size]
        assert a == b, (
            f"block {place} has another thin name: the ids {list(ids[0])} are {[t % 256 for t in ids[0]]} modulo 256, "
            f"and {[int(t) for t in ids[1]]} are {[int(t) % 256 for t in ids[1]]}"
        )


@dataclass(frozen=True)
class Lookup:
    """A question to an index: what a prompt's blocks are called and hold. `wanted`: blocks that may be shared."""

    index: dict[bytes, Entry]
    digests: list[bytes]
    contents: list[tuple[int, ...]]
    root: tuple[str, str]
    wanted: list[int]
    said: str


def lookup(what: str = "", *, place: int = 2, blocks: int = 5, size: int = 4, draw: Generator | None = None) -> Lookup:
    """A prompt that the index knows, but for one thing at one block.

    what: "missing", "tokens", "parent" (another block), "generation" (of the parent), "salt", or "" for nothing wrong.
    """
    draws = draw or np.random.default_rng(9)
    tokens = drawn_tokens(draws, blocks * size)
    names = digests(tokens, size, "blue")
    contents = [tuple(tokens[at : at + size]) for at in range(0, len(tokens), size)]
    numbers = [int(block) for block in draws.permutation(64)[:blocks]]
    root = ("blue", "")
    parents: list[tuple[Any, Any]] = [root, *((block, 1 + at % 3) for at, block in enumerate(numbers))]
    index = {name: Entry(numbers[at], 1 + at % 3, contents[at], parents[at]) for at, name in enumerate(names)}
    if what == "salt":
        place = 0
    entry = index[names[place]]
    said = {
        "": "every block is there",
        "missing": f"block {place} is not in the index, and the later ones are",
        "tokens": f"under the digest of block {place} the index has a block with other tokens",
        "parent": f"the entry of block {place} holds the right tokens after another block: its parent is no block of "
        "this prompt",
        "generation": f"the entry of block {place} has a parent that has been filled with something else since: the "
        "block's number is right and its generation is not",
        "salt": "the first block was entered under another salt",
    }[what]
    if what == "missing":
        del index[names[place]]
    elif what:
        spoilt = {
            "tokens": {"tokens": tuple((token + 256) % VOCABULARY for token in entry.tokens)},
            "parent": {"parent": (63 - entry.parent[0] if place else 1, entry.parent[1])},
            "generation": {"parent": (entry.parent[0], entry.parent[1] if not place else entry.parent[1] + 1)},
            "salt": {"parent": ("red", "")},
        }[what]
        index[names[place]] = Entry(**{**vars(entry), **spoilt})  # type: ignore[arg-type]
    return Lookup(index, names, contents, root, numbers[: place if what else blocks], said)


def check_confirmed(confirmed: Callable[..., Any], asked: Lookup) -> None:
    """The blocks that may be shared, from the first to where something is not as the prompt has it.

    Raises:
        AssertionError: naming what was wrong with the index, and how many blocks were taken.
    """
    got = confirmed(dict(asked.index), list(asked.digests), list(asked.contents), asked.root)
    found = as_list(got, "confirmed() must return a list of blocks")
    numbers = [entry.block if isinstance(entry, Entry) else entry for entry in found]
    assert numbers == found, "confirmed() must return the numbers of the blocks (entry.block), and not the entries"
    assert [number(block, "a block") for block in found] == asked.wanted, (
        f"{asked.said}: the blocks {asked.wanted} can be shared, {len(asked.wanted)} of {len(asked.digests)}; "
        f"confirmed() gave {shown(found)}"
    )


# ------------------------------------------------------------------ task 2: a pool


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
        tokens, names = len(text), _right_digests(text, self.size)
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
        names = _right_digests(held.text, self.size)[:full]
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


_HEAD = list(range(100, 200))
_OTHER = list(range(300, 400))


def check_grows(pool: Callable[[int, int], Any]) -> None:
    """Two sequences that share nothing come, grow and go.

    Raises:
        AssertionError: naming the call and what went wrong.
    """
    trial = Trial(pool, 8, 4, "counts")
    one, two = trial.admit("A", _HEAD[:6]), trial.admit("B", _OTHER[:4])
    assert one and two
    for tokens in (7, 8, 9):
        trial.grow(one, tokens)
    trial.grow(two, 5)
    trial.drop(one)
    three = trial.admit("C", _HEAD[50:70])
    assert three
    trial.drop(two)
    trial.drop(three)


def check_refuses(pool: Callable[[int, int], Any]) -> None:
    """Too little room is OutOfBlocks, and nothing has changed.

    Raises:
        AssertionError: naming the call and the trace that it left.
    """
    trial = Trial(pool, 6, 4, "refusals", "counts")
    one, two = trial.admit("A", _HEAD[:8]), trial.admit("B", _OTHER[:9])
    assert one and two
    assert trial.admit("C", _HEAD[50:58]) is None, trial._say("there is one block, and two are needed")
    trial.grow(two, 16)
    assert not trial.grow(one, 12), trial._say("no block is left")
    assert trial.admit("D", _HEAD[50:51]) is None, trial._say("no block is left")


def check_finds(pool: Callable[[int, int], Any]) -> None:
    """What was published is found: while somebody holds it, and after.

    Raises:
        AssertionError: naming the call, the hits, and what was wanted.
    """
    trial = Trial(pool, 12, 4, "hits", "counts")
    one = trial.admit("A", _HEAD[:14])
    assert one
    trial.publish(one)
    two = trial.admit("B", _HEAD[:8] + _OTHER[:5])
    assert two
    trial.publish(two)
    trial.drop(one)
    three = trial.admit("C", _HEAD[:14])
    assert three
    trial.drop(two)
    trial.drop(three)
    trial.admit("D", [*_OTHER[:4], *_HEAD[4:12]])  # same second block after another first one


def check_last(pool: Callable[[int, int], Any]) -> None:
    """The block of the last token is computed, though it be known; a longer prompt finds it.

    Raises:
        AssertionError: naming the hits.
    """
    trial = Trial(pool, 12, 4, "hits")
    one = trial.admit("A", _HEAD[:8])
    assert one
    trial.publish(one)
    trial.drop(one)
    again = trial.admit("A again", _HEAD[:8])
    assert again
    trial.publish(again)
    trial.admit("A and 4 more", _HEAD[:12])


def check_oldest(pool: Callable[[int, int], Any]) -> None:
    """Free blocks go first, then the sequence that has been out of use for longest.

    Raises:
        AssertionError: naming the blocks that went and those that should have gone.
    """
    trial = Trial(pool, 8, 4, "order", "hits")
    texts = {"A": _HEAD[:4], "B": _OTHER[:4], "C": _HEAD[50:54]}
    for name, text in texts.items():
        held = trial.admit(name, text)
        assert held
        trial.publish(held)
        trial.drop(held)
    longer = trial.admit("A and 4 more", _HEAD[:8])  # A was used just now
    assert longer
    trial.drop(longer)
    held = trial.admit("D", _OTHER[50:74])  # six blocks: five free ones, and one of those that are cached
    assert held
    trial.admit("A and 2 more", _HEAD[:6])


def check_tails(pool: Callable[[int, int], Any]) -> None:
    """Of one sequence the tail goes before the head: a prefix without its head is of no use to anybody.

    Raises:
        AssertionError: naming the blocks that went and those that should have gone.
    """
    trial = Trial(pool, 6, 4, "order", "hits")
    one = trial.admit("A", _HEAD[:24])
    assert one
    trial.publish(one)
    trial.drop(one)
    two = trial.admit("B", _OTHER[:12])
    assert two
    trial.drop(two)
    trial.admit("A", _HEAD[:24])


def drawn_texts(draw: Generator, size: int, most: int) -> list[list[int]]:
    """Texts of which many begin alike: as conversations and system prompts make them."""
    heads = [drawn_tokens(draw, most * size) for _ in range(3)]
    texts = []
    for _ in range(16):
        head = heads[int(draw.integers(3))][: int(draw.integers(0, most * size - 1))]
        own = drawn_tokens(draw, int(draw.integers(1, most * size - len(head) + 1)))
        texts.append(head + own)
    return texts


def check_pool(pool: Callable[[int, int], Any], draw: Generator, *watch: str, calls: int = 90) -> None:
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
    trial = Trial(pool, old + more, size, "hits")
    text, other = drawn_tokens(draw, old * size), drawn_tokens(draw, more * size)
    for name, tokens in (("P", text), ("Q", other)):  # P is longer out of use than Q
        held = trial.admit(name, tokens)
        assert held
        trial.publish(held)
        trial.drop(held)
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


# ------------------------------------------------------------------ task 3: forks, and copies at the moment of writing


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
                f"it was refused, though {len(shared)} copies need no more than {room}"
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
        if kind < 0.3 and len(both.writers) < 6:
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
    two.said = two.said[:1]  # from here it says something else: all of its blocks are to be rewritten
    both.say(two, blocks * size - 1)
    assert len(two.said) == 1, both._say(f"{blocks} blocks are shared and {blocks - 1} are free: that is OutOfBlocks")
    both.end(one)
    both.say(two, blocks * size - 1)


# ------------------------------------------------------------------ task 4: compute again, or copy out and back


def recompute(tokens: int, shape: ModelShape, device: Device) -> float:
    """s to compute the keys and values of so many tokens again, beside others' steps: by FLOPs alone."""
    matrices = 2 * shape.num_layers * shape.layer_matrix_parameters * tokens
    attention = 4 * shape.num_layers * shape.query_size * tokens * (tokens + 1) / 2
    return (matrices + attention) / device.flops


def swap(tokens: int, shape: ModelShape, link: float, block_size: int, per_block: float) -> float:
    """s to copy the blocks of so many tokens to the host and back over a link of so many bytes/s."""
    blocks = math.ceil(tokens / block_size)
    return 2 * blocks * (block_size * shape.kv_bytes_per_token(2) / link + per_block)


def break_even(again: Callable[[int], float], copied: Callable[[int], float], most: int) -> int | None:
    """The fewest tokens from which on, up to `most`, copying is quicker than computing again; None if it never is."""
    shortest = None
    for tokens in range(most, 0, -1):
        if copied(tokens) >= again(tokens):
            return shortest
        shortest = tokens
    return shortest


_right_recompute, _right_swap, _right_break_even = recompute, swap, break_even

LINK, PER_BLOCK, BLOCK = 64e9, 100e-6, 16  # given: bytes/s of a PCIe 5.0 x16 link, s a block, tokens a block
_MODELS = ("llama-2-7b", "llama-2-13b", "llama-3-8b", "llama-2-70b")
_DEVICES = ("a100-80gb", "h100-sxm", "l40s")


def drawn_swap(draw: Generator) -> dict[str, Any]:
    """A model, a device, and a link to its host."""
    return {
        "shape": shape(str(draw.choice(_MODELS))),
        "device": device(str(draw.choice(_DEVICES))),
        "link": float(draw.choice([16e9, 32e9, 64e9])),
        "block_size": int(draw.choice([8, 16, 32])),
        "per_block": float(draw.uniform(10e-6, 200e-6)),
        "tokens": int(draw.integers(100, 4000)),
    }


def check_recompute(recompute: Callable[..., Any], tokens: int, shape: ModelShape, device: Device, **_: Any) -> None:
    """s of computing again, by FLOPs; 1 % more or less, which leaves room for tokens² as the number of pairs.

    Raises:
        AssertionError: naming the value and the slip that gives it.
    """
    got = number(recompute(tokens, shape, device), "recompute()")
    right = _right_recompute(tokens, shape, device)
    linear = _right_recompute(1, shape, device) * tokens
    pairs = 4 * shape.num_layers * shape.query_size * tokens * (tokens + 1) / 2 / device.flops
    slips = {
        "without attention, which grows with the square": right - pairs,
        "every token attends to all, also to those after it: the causal mask halves that": right + pairs,
        "one FLOP a weight; a product and a sum are two": (right - pairs) / 2 + pairs,
        "with the embedding, which is looked up and not multiplied": right
        + 2 * shape.embedding_parameters * tokens / device.flops,
        "in ms; it should be in s": 1e3 * right,
        "attention for one layer only": right - pairs + pairs / shape.num_layers,
        "as many times the cost of one token": linear,
    }
    assert math.isclose(got, right, rel_tol=0.004), (
        f"recompute({tokens}, {shape.name}, {device.name}) is {got:.4g} s{named(got, slips, 2e-3)}; it should be "
        f"{right:.4g} s: 2 FLOPs for each weight of a layer's matrices and token, and 4 · query_size for each layer "
        "and pair of tokens, over device.flops"
    )


def check_swap(
    swap: Callable[..., Any], tokens: int, shape: ModelShape, link: float, block_size: int, per_block: float, **_: Any
) -> None:
    """s of copying out and back.

    Raises:
        AssertionError: naming the value and the slip that gives it.
    """
    got = number(swap(tokens, shape, link, block_size, per_block), "swap()")
    right = _right_swap(tokens, shape, link, block_size, per_block)
    blocks, byte = math.ceil(tokens / block_size), shape.kv_bytes_per_token(2)
    heads = shape.num_heads / shape.num_kv_heads
    moved = 2 * blocks * block_size * byte / link
    slips = {
        "one way only": right / 2,
        "the tokens' bytes; a block is copied whole": 2 * (tokens * byte / link + blocks * per_block),
        "without per_block": moved,
        "per_block counted once": moved + per_block,
        "per_block one way only": moved + blocks * per_block,
        "per_block for each token": moved + 2 * tokens * per_block,
        "rounded down to full blocks": 2 * (tokens // block_size) * (block_size * byte / link + per_block),
        "one byte a value; there are two": moved / 2 + 2 * blocks * per_block,
        "keys, and no values": moved / 2 + 2 * blocks * per_block,
    }
    if heads > 1:
        slips["by attention heads; only KV heads are kept"] = heads * moved + 2 * blocks * per_block
    assert near(got, right, 1e-4), (
        f"swap({tokens}, {shape.name}, {link:.3g}, {block_size}, {per_block:.3g}) is {got:.4g} s"
        f"{named(got, slips, 1e-4)}; it should be {right:.4g} s for {blocks} blocks"
    )


def check_break_even(
    break_even: Callable[..., Any], again: Callable[[int], float], copied: Callable[[int], float], most: int
) -> None:
    """The fewest tokens from which on copying is quicker, at every length up to `most`.

    Raises:
        AssertionError: naming the value and a length at which it is wrong.
    """
    got = break_even(again, copied, most)
    right = _right_break_even(again, copied, most)
    if right is None:
        assert got is None, (
            f"break_even() is {shown(got)}, and at {most} tokens copying takes {copied(most):.4g} s, computing again "
            f"{again(most):.4g} s: there is no such length, which is None"
        )
        return
    first = next(tokens for tokens in range(1, most + 1) if copied(tokens) < again(tokens))
    value = number(got, "break_even()") if got is not None else math.nan
    assert value == right, (
        f"break_even() is {shown(got)}"
        f"{named(value, {'the first such length; a block more, and copying is dearer again': first})}"
        f"; it should be {right}: there copying takes {copied(right):.4g} s and computing again {again(right):.4g} s"
        + (f", and at {right - 1} tokens {copied(right - 1):.4g} s and {again(right - 1):.4g} s" if right > 1 else "")
    )


# ------------------------------------------------------------------ a student's pool under the real scheduler


class Adapted:
    """A pool in the lab's few methods as the scheduler wants one (`underload.cache.Pool`).

    Args:
        pool: has `find`, `can_allocate`, `allocate`, `append`, `publish`, `free` and `counts`.
        fork, write: Task 3's two functions; the lab's where None.
        names: digests(tokens, size, salt, adapter), by which blocks are named; the library's where None.
        confirm: Task 1's confirmed(): of what a name finds, only that is given to a sequence; None trusts names.
    """

    def __init__(
        self,
        pool: Any,
        num_blocks: int,
        block_size: int,
        *,
        fork: Callable[..., Any] | None = None,
        write: Callable[..., Any] | None = None,
        names: Callable[..., Any] | None = None,
        confirm: Callable[..., Any] | None = None,
    ) -> None:
        self.pool = pool
        self.num_blocks, self.block_size = num_blocks, block_size
        self.counters, self.tables = PoolCounters(), Tables()
        self._fork_of, self._write_of = fork or _right_fork, write or _right_write
        self._names, self._confirm = names, confirm
        self._named: dict[BlockChain, list[Any]] = {}
        self._index: dict[Any, Entry] = {}
        self._generations: defaultdict[int, int] = defaultdict(int)

    @property
    def num_free(self) -> int:
        return int(self.pool.counts()[0])

    @property
    def num_cached(self) -> int:
        return int(self.pool.counts()[1])

    @property
    def num_used(self) -> int:
        return int(self.pool.counts()[2])

    def can_allocate(self, chain: BlockChain | None, tokens: int, *, reserve: int | None = None) -> bool:
        return bool(self.pool.can_allocate(self._trusted(chain), tokens))

    def allocate(self, chain: BlockChain | None, tokens: int, *, reserve: int | None = None) -> BlockTable:
        blocks, hits = self.pool.allocate(self._trusted(chain), tokens)
        self.counters.queries += tokens
        self.counters.hits += hits * self.block_size
        return self.tables.add(BlockTable(self.block_size, list(map(int, blocks)), int(hits)))

    def fork(self, table: BlockTable) -> BlockTable:
        blocks = list(self._fork_of(self.pool, table.blocks))
        return self.tables.add(BlockTable(self.block_size, blocks, table.num_hashed))

    def append(self, table: BlockTable, tokens: int) -> None:
        if tokens > table.capacity:
            self.pool.append(table.blocks, tokens)

    def write(self, table: BlockTable, start: int, stop: int) -> list[tuple[int, int]]:
        copies = [(int(source), int(target)) for source, target in self._write_of(self.pool, table.blocks, start, stop)]
        self.counters.copies += len(copies)
        return copies

    def announce(self, table: BlockTable, chain: BlockChain | None, tokens: int) -> None:
        """Nothing: here a block is found once it is filled, and not while a plan is to fill it."""

    def publish(self, table: BlockTable, chain: BlockChain | None, tokens: int) -> None:
        full = tokens // self.block_size
        if chain is None or full <= table.num_hashed:
            return
        names = self._digests(chain, full)
        self.pool.publish(table.blocks, list(names))
        if self._confirm is not None:
            self._enter(table, chain, names)
        table.num_hashed = full

    def retract(self, table: BlockTable, tokens: int) -> None:
        """Nothing: nothing was announced."""

    def free(self, table: BlockTable) -> None:
        self.tables.require(table)
        self.pool.free(list(table.blocks))
        self.tables.remove(table)

    # ---- names

    def _trusted(self, chain: BlockChain | None) -> list[Any]:
        """The digests that the pool is given: those of the prefix that is confirmed, if anything is."""
        if chain is None:
            return []
        names = self._digests(chain, len(chain))
        if self._confirm is None:
            return list(names)
        contents = [_tokens(chain, place) for place in range(len(chain))]
        return list(names[: len(self._confirm(dict(self._index), list(names), contents, chain.root))])

    def _digests(self, chain: BlockChain, count: int) -> list[Any]:
        if self._names is None:
            return [name for name, _ in chain.names(0, count)]
        named = self._named.get(chain, [])
        if len(named) < count:
            tokens = [token for place in range(len(chain)) for token in _tokens(chain, place)]
            named = self._named[chain] = list(self._names(tokens, self.block_size, *chain.root))
        return named[:count]

    def _enter(self, table: BlockTable, chain: BlockChain, names: Sequence[Any]) -> None:
        parent: tuple[Any, Any] = chain.root
        for place, name in enumerate(names):
            block, tokens = table.blocks[place], _tokens(chain, place)
            entry = self._index.get(name)
            if entry is None or self.pool.find([name], 2 * self.block_size) == [block] != [entry.block]:
                self._generations[block] += 1
                entry = self._index[name] = Entry(block, self._generations[block], tokens, parent)
            if entry.tokens != tokens or entry.parent != parent:
                return
            parent = (entry.block, entry.generation)


_right_fork, _right_write = fork, write


def _tokens(chain: BlockChain, place: int) -> tuple[int, ...]:
    return struct.unpack(f"<{chain.block_size}q", chain.content(place))


def usable(pool: Callable[[int, int], Any]) -> Callable[[int, int], Any]:
    """The student's class if a small program runs on it, the lab's if not; it is said which."""
    try:
        check_grows(pool)
        check_finds(pool)
        check_refuses(pool)
    except NotImplementedError:
        why = "your Pool is not written yet"
    except Exception as error:  # whatever a student's code raises; the check's card says in which line
        why = f"your Pool does not pass its first checks ({str(error)[:80]} …)"
    else:
        return pool
    print(f"{why}: the lab's was taken in its place")
    return Pool


def usable_functions(fork: Callable[..., Any], write: Callable[..., Any]) -> tuple[Callable[..., Any], ...]:
    """The student's fork and write if they pass their first checks, the lab's if not; it is said which."""
    try:
        check_own_words(fork, write)
        check_copies(fork, write)
    except NotImplementedError:
        why = "your fork and write are not written yet"
    except Exception as error:
        why = f"your fork and write do not pass their first checks ({str(error)[:80]} …)"
    else:
        return fork, write
    print(f"{why}: the lab's were taken in their place")
    return _right_fork, _right_write


def conversations(seed: int = 9, sessions: int = 30, rate: float = 20.0) -> list[Planned]:
    """People who talk for some turns: every prompt holds all that was said before, after one system prompt."""
    lengths = Lengths(GeometricTokens(48), GeometricTokens(80))
    chats = Conversations(GeometricTokens(4), think=0.5, system=96, limit=1200, pace=0.008)
    return Workload(Poisson(rate), lengths, chats).plan(seed, requests=sessions)


@dataclass
class Served:
    """What a run of the engine left: its records, and the pool's."""

    engine: Engine
    answered: int
    refused: int
    seconds: float

    @property
    def pool(self) -> Any:
        return self.engine.scheduler.pool

    @property
    def hit_rate(self) -> float:
        """Tokens found, of those that prompts asked for when they were admitted."""
        return self.pool.counters.hits / max(1, self.pool.counters.queries)

    @property
    def preemptions(self) -> int:
        return sum(one.preemptions for request in self.engine.finished for one in request.sequences)

    @property
    def ttft(self) -> float:
        """Mean time to first token in s."""
        waits = [
            request.timeline.first_token - request.timeline.arrival
            for request in self.engine.finished
            if request.timeline.first_token is not None
        ]
        return float(np.mean(waits))

    @property
    def prefilled(self) -> int:
        """Prompt tokens that were computed, those computed again included."""
        return sum(step.prefill_tokens for step in self.engine.steps)

    def __str__(self) -> str:
        return (
            f"{self.hit_rate:6.1%} of prompt tokens found, {self.prefilled:6,} computed, {self.preemptions:3} "
            f"preemptions, TTFT {1e3 * self.ttft:6.1f} ms, {self.seconds:6.2f} s"
        )


def step_time(
    model: str = "llama-3-8b", on: str = "h100-sxm", link: float = LINK, per_block: float = PER_BLOCK, size: int = BLOCK
) -> Callable[[Plan], float]:
    """s of a plan: the roofline of its work, and the copies to the host and back, one after the other."""
    compute, each = (
        RooflineStepTime(shape(model), device(on)),
        _right_swap(size, shape(model), link, size, per_block) / 2,
    )

    def seconds(plan: Plan) -> float:
        return compute(plan) + each * (len(plan.swap_out) + len(plan.swap_in))

    return seconds


def serve(
    pool: Any,
    load: Sequence[Planned],
    *,
    host_blocks: int = 0,
    max_num_seqs: int = 32,
    seconds_of: Callable[[Plan], float] | None = None,
) -> Served:
    """Run a load of conversations through scheduler and engine on a virtual clock. A turn follows the answer to the
    one before by its think time, and holds what was really said. With `host_blocks`, who is preempted is swapped."""
    ids = PromptIds(VOCABULARY, seed=1)
    executor = CostModelExecutor(
        seconds_of or step_time(size=pool.block_size),
        output_tokens={str(planned.index): planned.output_tokens for planned in load},
        vocabulary=VOCABULARY,
    )
    swapped: dict[str, Any] = {"preemption": "swap", "host_pool": HostPool(host_blocks)} if host_blocks else {}
    scheduler = Scheduler(pool, max_num_seqs=max_num_seqs, max_num_batched_tokens=512, **swapped)
    engine = Engine(scheduler, executor, VirtualClock())
    turns: dict[str, list[Planned]] = defaultdict(list)
    for planned in load:
        turns[planned.session or str(planned.index)].append(planned)
    refused = 0

    def send(planned: Planned, arrival: float) -> None:
        nonlocal refused
        params = SamplingParams(max_tokens=planned.output_tokens, temperature=0)
        try:
            engine.add(Request(str(planned.index), ids(planned), params, Timeline(arrival)))
        except UnderloadError:  # longer than the whole pool: the conversation ends
            refused += 1
            turns[planned.session or ""].clear()

    by_index = {str(planned.index): planned for planned in load}
    for queue in list(turns.values()):
        first = queue.pop(0)
        send(first, first.arrival)
    seen = 0
    while True:
        going = engine.step()
        while seen < len(engine.finished):
            request = engine.finished[seen]
            seen += 1
            planned = by_index[request.request_id]
            ids.answered(planned, request.sequences[0].output_ids)
            queue = turns[planned.session or ""]
            if queue:
                following = queue.pop(0)
                send(following, (request.timeline.finished or 0.0) + (following.think or 0.0))
                going = True
        if not going:
            return Served(engine, len(engine.finished), refused, engine.clock.now())


def say(model: Any, prompts: Sequence[Sequence[int]], pool: Any, tokens: int = 20) -> list[Request]:
    """Have pocket answer one prompt after the other, greedily, with its keys and values in this pool's blocks.

    The prompts are sent one by one, so that each finds what those before it have left.
    """
    from underload.decoder import DecoderExecutor

    executor = DecoderExecutor(model, pool.num_blocks, pool.block_size)
    engine = Engine(Scheduler(pool, max_model_len=model.shape.max_positions), executor)
    answered = []
    for place, prompt in enumerate(prompts):
        params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
        request = Request(f"prompt {place}", list(prompt), params, Timeline(engine.clock.now()))
        engine.add(request)
        engine.run()
        assert request.error is None and len(request.sequences[0].output_ids) == tokens, (
            f"prompt {place} was not answered: {request.error or 'steps with it failed'}"
        )
        answered.append(request)
    return answered


def together(model: Any, prompts: Sequence[Sequence[int]], pool: Any, tokens: int = 20, n: int = 1) -> Engine:
    """Have pocket answer all prompts at once, n samples of each, with their keys and values in this pool's blocks."""
    from underload.decoder import DecoderExecutor

    executor = DecoderExecutor(model, pool.num_blocks, pool.block_size)
    engine = Engine(Scheduler(pool, max_model_len=model.shape.max_positions), executor)
    for place, prompt in enumerate(prompts):
        params = SamplingParams(max_tokens=tokens, temperature=0.8, seed=place, n=n, ignore_eos=True)
        engine.add(Request(f"prompt {place}", list(prompt), params, Timeline(engine.clock.now())))
    engine.run()
    return engine


# ------------------------------------------------------------------ task 5: another order of eviction


@dataclass(frozen=True)
class Cached:
    """A block that nobody holds and that could be found.

    place: where it stands in its sequence; 0 is the head.
    hits: how often it was found since it was filled.
    idle: requests that came since it was used last.
    """

    place: int
    hits: int
    idle: int


def victim(cached: Sequence[Cached]) -> int:
    """Which of the cached blocks goes: one that nobody has found, else one that nobody has found lately, else LRU."""
    return min(range(len(cached)), key=lambda at: (cached[at].hits > 0 and cached[at].idle < _LATELY, at))


def least_recent(cached: Sequence[Cached]) -> int:
    """LRU: the first, since they come longest out of use first."""
    return 0


_right_victim = victim
Load = list[list[str]]  # for each request, the names of its blocks in order

CACHE = 48  # blocks of the cache that task 5's loads are served with
_LATELY = 30  # requests


def scans(draw: Generator, requests: int = 120) -> Load:
    """A few system prompts that many use, each with a question of its own; and long documents that nobody asks for
    again."""
    load, prompts = [], int(draw.integers(5, 8))
    for request in range(requests):
        if request % 3 == 2:
            load.append([f"document {request}, {place}" for place in range(int(draw.integers(14, 24)))])
        else:
            which = int(draw.integers(prompts))
            load.append([*(f"prompt {which}, {place}" for place in range(5)), f"own {request}"])
    return load


def moves(draw: Generator, requests: int = 160) -> Load:
    """What is asked for changes: four times, other prompts take over, and the earlier ones are not seen again."""
    load = []
    for request in range(requests):
        which = request * 4 // requests, int(draw.integers(6))
        load.append([*(f"prompt {which}, {place}" for place in range(6)), f"own {request}"])
    return load


def cache_hits(victim: Callable[..., Any], load: Load, blocks: int = CACHE) -> int:
    """Blocks of a load that are found in a cache of so many blocks, where `victim` says which of the cached ones goes.

    Requests come one after the other. A request's own blocks stay while it is served, and are given back last first.

    Raises:
        AssertionError: what `victim` returned is no place in the list it was given.
    """
    order: dict[str, None] = {}  # cached, longest out of use first
    place_of: dict[str, int] = {}
    found_of: dict[str, int] = {}
    used_at: dict[str, int] = {}
    hits = 0
    for now, names in enumerate(load):
        found = next((place for place, name in enumerate(names) if name not in order), len(names))
        for name in names[:found]:
            found_of[name] += 1
            del order[name]
        hits += found
        fresh = [name for name in names[found:] if name not in order]
        rest = [name for name in names[found:] if name in order]  # its head is gone: it is filled anew
        for name in rest:
            del order[name]
        names = names[:blocks]
        while len(order) + len(names) > blocks:
            if victim is least_recent:
                del order[next(iter(order))]
                continue
            listed = list(order)
            entries = tuple(Cached(place_of[name], found_of[name], now - used_at[name]) for name in listed)
            which = victim(entries)
            if isinstance(which, Cached):
                which = entries.index(which)
            at = number(which, "victim() must return a place in the list it is given; it")
            assert at == int(at) and 0 <= at < len(listed), (
                f"victim() returned {shown(which)} for a list of {len(listed)} blocks; return a place from 0 to "
                f"{len(listed) - 1}"
            )
            del order[listed[int(at)]]
        for name in (*fresh, *rest):
            found_of[name] = 0
        for place in range(len(names) - 1, -1, -1):
            order[names[place]] = None
            place_of[names[place]], used_at[names[place]] = place, now
    return hits


def most_hits(load: Load, blocks: int = CACHE) -> int:
    """Hits of a cache that knows the future: what is asked for latest goes first (Belady, 1966)."""
    when: dict[str, list[int]] = defaultdict(list)
    for now, names in enumerate(load):
        for name in names:
            when[name].append(now)
    order: dict[str, None] = {}
    hits = 0
    for now, names in enumerate(load):
        found = next((place for place, name in enumerate(names) if name not in order), len(names))
        hits += found
        for name in names:
            order.pop(name, None)
        while len(order) + len(names) > blocks:

            def following(name: str, now: int = now) -> float:
                times = when[name]
                place = bisect_right(times, now)
                return times[place] if place < len(times) else math.inf

            del order[max(order, key=following)]
        for name in reversed(names):
            order[name] = None
    return hits


def check_beats(victim: Callable[..., Any], loads: Sequence[Load], least: float = 1.5) -> None:
    """So many times the hits of LRU, on loads with scans.

    Raises:
        AssertionError: naming both numbers, and what a cache that knows the future would find.
    """
    mine, lru, blocks = _sums(victim, loads)
    assert mine >= least * lru, (
        f"{mine} blocks of {blocks:,} were found; LRU finds {lru}, and {least:g} times as many are asked for "
        f"({math.ceil(least * lru)}). Who knows the future finds {sum(map(most_hits, loads))}: what do the blocks of "
        "documents that nobody asks for again look like, when they are in the list?"
    )


def check_keeps_up(victim: Callable[..., Any], loads: Sequence[Load], least: float = 0.65) -> None:
    """Not far below the hits of LRU where what is asked for changes, which is where LRU is good.

    Raises:
        AssertionError: naming both numbers.
    """
    mine, lru, blocks = _sums(victim, loads)
    assert mine >= least * lru, (
        f"where other prompts take over, {mine} blocks of {blocks:,} were found, and LRU finds {lru}; {least:.0%} of "
        "that are asked for. What many have found an hour ago, and nobody since, must go at last"
    )


def _sums(victim: Callable[..., Any], loads: Sequence[Load]) -> tuple[int, int, int]:
    mine = sum(cache_hits(victim, load) for load in loads)
    return (
        mine,
        sum(cache_hits(least_recent, load) for load in loads),
        sum(len(names) for load in loads for names in load),
    )


# ------------------------------------------------------------------ pictures


def draw_names(
    prompts: Mapping[str, tuple[Sequence[str], Sequence[Any]]], *, name: str, caption: str
) -> figures.Picture:
    """Blocks of some prompts under their names: (what is in each block, its name) by prompt; equal names look alike."""
    counts: dict[Any, int] = defaultdict(int)
    for _, names in prompts.values():
        for one in names:
            counts[one] += 1

    def short(one: Any) -> str:
        return (one.hex() if isinstance(one, bytes) else str(one))[:6]

    def draw(pen: figures.Pen) -> None:
        y = 22.0
        for words, (texts, names) in prompts.items():
            pen.text(4, y, words, bold=True)
            step = (pen.width - 8) / max(len(names), 1)
            for place, (text, one) in enumerate(zip(texts, names)):
                look = "kv" if counts[one] > 1 else "quiet"
                room = max(3, int(step / 7.5))
                body = text if len(text) <= room else text[: room - 1] + "…"
                pen.box(4 + place * step, y + 8, step - 4, 42, f"{body}\n{short(one)}", look=look, small=True)
            y += 82

    shared = sum(count > 1 for count in counts.values())
    alt = f"The blocks of {len(prompts)} prompts with the first digits of their names; {shared} occur more than once."
    data: dict[str, list[Any]] = {"prompt": [], "block": [], "name": []}
    for words, (texts, names) in prompts.items():
        for text, one in zip(texts, names):
            data["prompt"].append(words)
            data["block"].append(text)
            data["name"].append(short(one))
    return figures.drawing(alt, draw, caption=caption, name=name, data=data)


def history(pool: Callable[[int, int], Any]) -> list[tuple[str, tuple[int, ...], list[int]]]:
    """A small day in a pool of eight blocks: (call, counts, holders of each block) after each call."""
    trial = Trial(pool, 8, 4)
    rows: list[tuple[str, tuple[int, ...], list[int]]] = []

    def note(call: str) -> None:
        states = [
            trial.holders(block) if trial.holders(block) else -1 if block in trial.cached else 0 for block in range(8)
        ]
        rows.append((call, trial.counts(), states))

    def come(who: str, text: Sequence[int]) -> Held:
        held = trial.admit(who, text)
        assert held is not None, f"{who} does not fit"
        trial.publish(held)
        note(f"{who}: {len(text)} tokens")
        return held

    one = come("A", _HEAD[:14])
    two = come("B", _HEAD[:8] + _OTHER[:5])
    trial.drop(one)
    note("A ends")
    trial.drop(two)
    note("B ends")
    three = come("C", _HEAD[:14])
    four = come("D", _OTHER[50:65])
    trial.drop(four)
    note("D ends")
    trial.drop(three)
    note("C ends")
    return rows


def draw_history(rows: Sequence[tuple[str, tuple[int, ...], list[int]]], *, name: str, caption: str) -> figures.Picture:
    """The blocks of a pool after each call: how many hold them, cached, or free."""

    def draw(pen: figures.Pen) -> None:
        left, size = (108.0, 28.0) if pen.narrow else (180.0, 44.0)
        for line, (call, _, states) in enumerate(rows):
            y = 8 + line * 32
            pen.text(4, y + 19, call, size="small")
            for block, state in enumerate(states):
                text = str(state) if state > 0 else "c" if state else ""
                look = "kv" if state > 0 else "waste" if state else "free"
                pen.box(
                    left + block * size, y, size - 3, 26, text, look=look, dashed=not state, solid=state > 0, small=True
                )
        pen.text(
            4, 8 + len(rows) * 32 + 14, "a number: so many hold it; c: cached; dashed: free", size="small", look="quiet"
        )

    alt = "The eight blocks of a pool after each call: " + "; ".join(
        f"{call}: {counts[0]} free, {counts[1]} cached, {counts[2]} used" for call, counts, _ in rows
    )
    data = {
        "call": [call for call, _, _ in rows],
        "free": [counts[0] for _, counts, _ in rows],
        "cached": [counts[1] for _, counts, _ in rows],
        "used": [counts[2] for _, counts, _ in rows],
    }
    return figures.drawing(alt + ".", draw, caption=caption, name=name, data=data)


def held_by_samples(
    fork: Callable[..., Any], write: Callable[..., Any], samples: int, prompt: int, answer: int, size: int = 16
) -> list[int]:
    """Blocks used after each token of `samples` answers to one prompt that fork from it."""
    pool = Pool(samples * -(-(prompt + answer) // size) + samples, size)
    first, _ = pool.allocate([], prompt)
    lists = [first, *(list(fork(pool, first)) for _ in range(samples - 1))]
    used = []
    for position in range(prompt, prompt + answer):
        for blocks in lists:
            pool.append(blocks, position + 1)
            write(pool, blocks, position, position + 1)
        used.append(pool.counts()[2])
    return used


def draw_samples(used: Mapping[str, Sequence[int]], *, name: str, caption: str) -> figures.Picture:
    """Blocks used against tokens of the answers."""
    fig, ax = figures.axes(xlabel="tokens of each answer", ylabel="blocks used")
    for place, (words, values) in enumerate(used.items()):
        kind = "simulation" if not place else "quiet"
        more = {"marker": "", "linestyle": "-" if not place else "--"}
        ax.plot(range(1, len(values) + 1), values, **figures.look(kind, **more), label=words)
    ax.set_ylim(bottom=0)
    ax.legend()
    alt = "Blocks used while several answers to one prompt grow: " + "; ".join(
        f"{words} from {values[0]} to {values[-1]}" for words, values in used.items()
    )
    longest = max(map(len, used.values()))
    every = range(0, longest, max(1, longest // 60))
    data = {"tokens": [at + 1 for at in every]} | {
        words: [values[at] for at in every] for words, values in used.items()
    }
    return figures.show(fig, alt=alt + ".", caption=caption, name=name, data=data)


def draw_break_even(
    again: Callable[[int], float], copied: Callable[[int], float], at: int | None, most: int, *, name: str, caption: str
) -> figures.Picture:
    """Both ways of coming back, against length."""
    lengths = sorted({*range(1, most + 1, max(1, most // 120)), most, *([at] if at else [])})
    fig, ax = figures.axes(xlabel="tokens of the sequence", ylabel="cost", yunit="ms")
    looks = {"recompute": figures.look("prediction", marker=""), "swap": figures.look("quiet", marker="", variant=1)}
    rows = {
        "recompute": [1e3 * float(again(tokens)) for tokens in lengths],
        "swap": [1e3 * float(copied(tokens)) for tokens in lengths],
    }
    for words, values in rows.items():
        ax.plot(lengths, values, **looks[words], label=words)
    if at:
        ax.plot([at], [1e3 * float(again(at))], **figures.look("choice"), label=f"from {at:,} tokens on")
    ax.set_ylim(bottom=0)
    ax.legend()
    alt = (
        f"The cost of coming back against length, up to {most:,} tokens: recompute reaches {rows['recompute'][-1]:.3g} "
        f"ms and swap {rows['swap'][-1]:.3g} ms; "
        + (f"from {at:,} tokens on swap is quicker." if at else "there is no length from which on swap is quicker.")
    )
    data = {"tokens": lengths} | {f"{words} (ms)": [round(v, 4) for v in values] for words, values in rows.items()}
    return figures.show(fig, alt=alt, caption=caption, name=name, data=data)


def draw_blocks(served: Served, *, name: str, caption: str) -> figures.Picture:
    """Blocks used, cached and free against time, from the engine's records."""
    steps = served.engine.steps
    times = [step.start for step in steps]
    fig, ax = figures.axes(xlabel="time", xunit="s", ylabel="blocks")
    rows = {
        "used": [step.blocks_used for step in steps],
        "used or cached": [step.blocks_used + step.blocks_cached for step in steps],
    }
    ax.plot(times, rows["used"], **figures.look("kv", marker=""), label="used")
    ax.plot(times, rows["used or cached"], **figures.look("waste", marker="", variant=1), label="used or cached")
    ax.axhline(served.pool.num_blocks, **figures.look("limit", marker=""), label="all")
    ax.set_ylim(bottom=0)
    ax.legend()
    alt = (
        f"Blocks of a pool of {served.pool.num_blocks} over {times[-1]:.1f} s: at most {max(rows['used'])} in use, and "
        f"{rows['used or cached'][-1]} used or cached at the end; {served.preemptions} preemptions."
    )
    every = range(0, len(times), max(1, len(times) // 100))
    data = {"time (s)": [round(times[at], 3) for at in every]} | {
        words: [values[at] for at in every] for words, values in rows.items()
    }
    return figures.show(fig, alt=alt, caption=caption, name=name, data=data)


def draw_policies(
    sizes: Sequence[int], rows: Mapping[str, Sequence[float]], *, name: str, caption: str
) -> figures.Picture:
    """The share of blocks found against the size of the cache, by policy."""
    looks = ("simulation", "quiet", "prediction")
    fig, ax = figures.axes(xlabel="blocks of the cache", ylabel="blocks found", yunit="%")
    for place, (words, values) in enumerate(rows.items()):
        more = {} if not place else {"marker": "", "linestyle": ("-", "--", ":")[place % 3]}
        ax.plot(sizes, [100 * value for value in values], **figures.look(looks[place % 3], **more), label=words)
    ax.set_ylim(bottom=0)
    ax.legend()
    alt = "The share of blocks found against the size of the cache: " + "; ".join(
        f"{words} {values[0]:.0%} with {sizes[0]} blocks and {values[-1]:.0%} with {sizes[-1]}"
        for words, values in rows.items()
    )
    data = {"blocks": list(sizes)} | {words: [round(value, 4) for value in values] for words, values in rows.items()}
    return figures.show(fig, alt=alt + ".", caption=caption, name=name, data=data)
