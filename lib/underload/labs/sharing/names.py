"""Task 1: names of blocks, names that collide, and hits that are confirmed."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.random import Generator

from underload.labs.answers import as_list, number, shown

VOCABULARY = 1024  # pocket's
_NAME_BYTES = 64  # what a name may have at most


def digests(tokens: Sequence[int], size: int, salt: str = "", adapter: str = "") -> list[bytes]:
    """A name for each full block of `size` tokens: of the block, of all before it, and of salt and adapter."""
    before, found = sha256(repr((salt, adapter)).encode()).digest(), []
    for end in range(size, len(tokens) + 1, size):
        before = sha256(before + struct.pack(f"<{size}q", *tokens[end - size : end])).digest()
        found.append(before)
    return found


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
        one = drawn_tokens(draw, 4, 120_000)
        other = list(one)
        other[int(draw.integers(4))] += int(draw.choice([256, 65_536]))
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
        choices: dict[str, dict[str, Any]] = {
            "tokens": {"tokens": tuple((token + 256) % VOCABULARY for token in entry.tokens)},
            "parent": {"parent": (63 - entry.parent[0] if place else 1, entry.parent[1])},
            "generation": {"parent": (entry.parent[0], entry.parent[1] if not place else entry.parent[1] + 1)},
            "salt": {"parent": ("red", "")},
        }
        spoilt = choices[what]
        index[names[place]] = replace(entry, **spoilt)
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
