"""Lab 8, "Paged attention": what its tasks start from, and checks that say what is wrong with a value.

    slot, slot_mapping, gather, attend, part, merge, grouped, paged_attention
                                 earlier answers, for the tasks that start from one
    blocks, Stream               keys and values a block at a time, in one small buffer
    Batch, batch, drawn_batch    a ragged batch over a pool whose unwritten slots are NaN
    on_tensors, serve            the real decoder with an attention in NumPy
    triton_language, launch      a kernel in Triton, where that is installed
    drawn_*, your_*              inputs for checks that must not be known beforehand, and a student's own
    check_*                      raise AssertionError with the wrong value, what it is instead, and what was wanted
    draw_*                       the pictures of the lab

A slot is room for the key and value of one token in one layer: slot = block x block size + offset. A *state* is what
is known of a softmax that has seen some of its scores s: the largest of them, total = sum of exp(s - largest), and
mixed = sum of exp(s - largest) times value. Arrays are NumPy's throughout.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from underload import figures
from underload.cache import BlockPool
from underload.engine import Engine
from underload.labs.answers import as_list, named, near, number, shown
from underload.labs.answers import check_guess as check_guess
from underload.request import Request, SamplingParams, Timeline
from underload.scheduling import Scheduler

Array = NDArray[Any]
State = tuple[float, float, Array]

_LETTERS = "ABCDEFGH"  # sequences in a picture
_CLOSE = 1e-5  # of the largest number that is wanted: an answer may compute in float32


def book() -> dict[str, Any]:
    """What the book's machine gave: `ms` of a decode step's attention by kernel, `machine`, `date`."""
    found: dict[str, Any] = json.loads(Path(__file__).with_name("paged_attention.json").read_text(encoding="utf-8"))
    return found


# ------------------------------------------------------------------ reading what an answer returned


def _array(value: Any, what: str, shape: tuple[int, ...]) -> Array:
    """`value` as float64 numbers of that shape, NaN allowed."""
    assert value is not None, f"{what} must be an array of shape {shape}, got None"
    try:
        found = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise AssertionError(f"{what} must be an array of shape {shape}, got {shown(value)}") from None
    assert found.shape == shape, f"{what} must have the shape {shape}, got {found.shape}"
    return found


def _same(got: Array, wanted: Array) -> bool:
    """Whether two arrays are one but for rounding; NaN is like nothing."""
    bound = _CLOSE * max(1.0, float(np.abs(wanted).max(initial=0.0)))
    return bool(np.all(np.abs(got - wanted) <= bound))


def _said(numbers: Array, most: int = 4) -> str:
    flat = np.asarray(numbers, dtype=float).ravel()
    text = ", ".join(f"{value:.4g}" for value in flat[:most])
    return f"[{text}, …]" if len(flat) > most else f"[{text}]"


def _slip(got: Array, wanted: Array, slips: Mapping[str, Array]) -> str:
    """The slips that give this array, in brackets, or nothing."""
    found = [
        words
        for words, value in slips.items()
        if value.shape == got.shape and _same(got, value) and not _same(value, wanted)
    ]
    return f" ({'; or '.join(found)})" if found else ""


# ------------------------------------------------------------------ task 1: where a token lies


def slot(table: Sequence[int], position: int, size: int) -> int:
    """The slot in which the token at `position` of a sequence lies."""
    place, offset = divmod(position, size)
    return int(table[place]) * size + offset


def slot_mapping(
    tables: Sequence[Sequence[int]], query_lens: Sequence[int], context_lens: Sequence[int], size: int
) -> list[int]:
    """The slots of the new tokens of a batch, the sequences end to end."""
    return [
        slot(table, position, size)
        for table, new, context in zip(tables, query_lens, context_lens, strict=True)
        for position in range(context - new, context)
    ]


def gather(pool: Array, table: Sequence[int], length: int) -> Array:
    """pool [blocks, size, …] -> the first `length` tokens of a sequence in their order, [length, …]."""
    size = pool.shape[1]
    full, rest = divmod(length, size)
    found = np.empty((length, *pool.shape[2:]), pool.dtype)
    for place in range(full + bool(rest)):
        start = place * size
        found[start : start + size] = pool[table[place], : min(size, length - start)]
    return found


_right_slot, _right_mapping, _right_gather = slot, slot_mapping, gather


@dataclass(frozen=True)
class Tables:
    """Sequences in a pool: their tables, the tokens that are new in this step, and those in the cache with them."""

    tables: Array  # [sequences, most blocks], padded with -1
    query_lens: list[int]
    context_lens: list[int]
    size: int

    def __iter__(self) -> Iterator[Any]:
        """The arguments of `slot_mapping`, which may change what it is given."""
        return iter((self.tables.copy(), list(self.query_lens), list(self.context_lens), self.size))


def tables(rows: Sequence[Sequence[int]], query_lens: Sequence[int], context_lens: Sequence[int], size: int) -> Tables:
    """Block tables as an array padded with -1, and what is in them."""
    padded = np.full((len(rows), max(map(len, rows))), -1)
    for row, blocks in zip(padded, rows, strict=True):
        row[: len(blocks)] = blocks
    return Tables(padded, list(query_lens), list(context_lens), size)


def drawn_tables(draw: Generator, sequences: int = 4) -> Tables:
    """Sequences of all kinds: one that decodes, one that begins, others amid their prompts; two blocks stay free."""
    size = int(draw.integers(3, 9))
    contexts = [int(one) for one in draw.integers(size + 2, 5 * size, sequences)]
    new = [1, contexts[1], *(int(draw.integers(2, context)) for context in contexts[2:])]
    order = iter(draw.permutation(sum(-(-context // size) for context in contexts) + 2).tolist())
    return tables([[next(order) for _ in range(-(-context // size))] for context in contexts], new, contexts, size)


def check_slot(slot: Callable[..., Any], table: Sequence[int], position: int, size: int) -> None:
    """One token's slot.

    Raises:
        AssertionError: naming the slot, the one wanted, and the slip that gives it.
    """
    got, right = number(slot(list(table), position, size), "what slot() returns"), _right_slot(table, position, size)
    place, offset = divmod(position, size)
    slips = {
        "the position itself; the table says where its block lies": position,
        "the offset in the block was left out": table[place] * size,
        "the number of the block, and not yet a slot": table[place],
        "block and offset added; a block is `size` slots": table[place] + offset,
        "the position was added, and not the offset in the block": table[place] * size + position,
        "the place in the table was taken for the block": place * size + offset,
    }
    if offset < len(table):
        slips["// and % are exchanged"] = table[offset] * size + place
    assert near(got, right), (
        f"table {list(table)}, blocks of {size}: the token at position {position} lies in slot {right}, got {got:g}"
        f"{named(got, {words: value for words, value in slips.items() if value != right})}"
    )


def check_mapping(slot_mapping: Callable[..., Any], given: Tables) -> None:
    """The slots of a batch's new tokens.

    Raises:
        AssertionError: naming the first one that is wrong, whose it is, and what was wanted.
    """
    got = [
        number(one, "each entry of what slot_mapping() returns")
        for one in as_list(slot_mapping(*given), "slot_mapping() must return the slots in a list or an array")
    ]
    wanted = _right_mapping(*given)
    where = (
        f"new tokens {given.query_lens} in contexts {given.context_lens}, blocks of {given.size}"
        if len(given.query_lens) <= 4
        else f"{len(given.query_lens)} sequences"
    )
    total, all_of_them = len(wanted), sum(given.context_lens)
    assert len(got) == total, (
        f"{where}: {total} tokens are new, got {len(got)} slots"
        + (
            " (a slot for each token of the contexts; the old ones were written before)"
            if len(got) == all_of_them
            else ""
        )
        + (" (one a sequence)" if len(got) == len(given.query_lens) else "")
    )
    for token, (one, right) in enumerate(zip(got, wanted, strict=True)):
        row = int(np.searchsorted(np.cumsum(given.query_lens), token, side="right"))
        first = given.context_lens[row] - given.query_lens[row]
        position = first + token - sum(given.query_lens[:row])
        table = given.tables[row].tolist()
        slips: dict[str, float] = {"a slot of another block: the table was not asked": position}
        other = position - first
        slips["new tokens counted from position 0; they follow the old ones"] = _right_slot(table, other, given.size)
        if position:
            slips["one position too early"] = _right_slot(table, position - 1, given.size)
        if position + 1 < given.context_lens[row]:
            slips["one position too late"] = _right_slot(table, position + 1, given.size)
        assert near(one, right), (
            f"{where}: entry {token} is sequence {row}'s token at position {position}, which goes to slot {right}, got "
            f"{one:g}{named(one, {words: value for words, value in slips.items() if value != right})}"
        )


@dataclass(frozen=True)
class Held:
    """A pool [blocks, size, …] in which one sequence has written its tokens; what nobody wrote is NaN."""

    pool: Array
    table: Array
    length: int


def held(table: Sequence[int], length: int, size: int, *, num_blocks: int, more: tuple[int, ...] = ()) -> Held:
    """Token p of the sequence holds the number p (and p + 0.01, …): what is out of order can be read off."""
    pool = np.full((num_blocks, size, *more), np.nan)
    steps = 0.01 * np.arange(math.prod(more)).reshape(more)
    for position in range(length):
        place, offset = divmod(position, size)
        pool[table[place], offset] = position + steps
    return Held(pool, np.array(table), length)


def drawn_held(draw: Generator, *, longer: bool = False) -> Held:
    """A pool with a sequence in it. longer: its table has a block that waits for tokens, and a -1 behind it."""
    size, full = int(draw.integers(3, 7)), int(draw.integers(2, 5))
    length = size * full if longer else size * full - int(draw.integers(1, size))
    order = draw.permutation(full + 3).tolist()
    table = [*order[:full], order[full], -1] if longer else order[:full]
    found = held(table, length, size, num_blocks=full + 3, more=(2, 3))
    found.pool[order[full + 1]] = draw.uniform(100, 200, (size, 2, 3))  # a neighbour's
    return found


def check_gather(gather: Callable[..., Any], given: Held) -> None:
    """The tokens of a sequence, in order, and nothing else.

    Raises:
        AssertionError: naming what came too many or too few, or the first token that is another.
    """
    pool, length = given.pool, given.length
    size, more = pool.shape[1], pool.shape[2:]
    got = gather(pool.copy(), given.table.copy(), length)
    where = f"table {given.table.tolist()}, blocks of {size}, length {length}"
    assert got is not None, "gather() returned None; return an array"
    try:
        found = np.asarray(got, dtype=float)
    except (TypeError, ValueError):
        raise AssertionError(f"gather() must return an array, got {shown(got)}") from None
    why = ""
    if found.shape == (len(given.table), size, *more):
        why = " (whole blocks; put them end to end, and stop at `length`)"
    elif found.ndim and found.shape[1:] == more and found.shape[0] > length:
        why = " (slots behind the last token, which nobody has written)"
    assert found.shape == (length, *more), f"{where}: the shape must be {(length, *more)}, got {found.shape}{why}"
    wanted = _right_gather(pool, given.table.tolist(), length)
    for position in range(length):
        one, right = found[position], wanted[position]
        if not np.allclose(one, right):
            place, offset = divmod(position, size)
            said = f"{where}: row {position} is the token in block {given.table[place]}, offset {offset}"
            assert not np.isnan(one).any(), f"{said}; got NaN, from a slot that nobody has written"
            other = np.flatnonzero([np.allclose(one, each) for each in wanted])
            assert not len(other), f"{said}; got token {other[0]}"
            assert not np.allclose(one, given.table[place] * size + offset), (
                f"{said}; got the slot's number, and not what lies in it"
            )
            foreign = any(np.allclose(one, each) for each in pool.reshape(-1, *more))
            raise AssertionError(f"{said}; got " + ("another sequence's numbers" if foreign else _said(one)))


@dataclass(frozen=True)
class Owned:
    """A pool as an engine's tables describe it, and a slot to be found in it."""

    tables: list[list[int]]
    lengths: list[int]
    size: int
    slot: int


def your_slot(seed: int) -> Owned:
    """Tables of six sequences, and a slot that one of them has written: a student's own."""
    draw = np.random.default_rng([8, seed])
    size = int(draw.choice([8, 16]))
    lengths = [int(one) for one in draw.integers(3 * size, 9 * size, 6)]
    order = iter(draw.permutation(sum(-(-one // size) for one in lengths) + 7).tolist())
    rows = [[next(order) for _ in range(-(-one // size))] for one in lengths]
    sequence = int(draw.integers(6))
    position = int(draw.integers(size, lengths[sequence]))
    return Owned(rows, lengths, size, _right_slot(rows[sequence], position, size))


def check_my_owner(sequence: Any, position: Any, given: Owned) -> None:
    """Whose token lies in a slot.

    Raises:
        NotImplementedError: nothing was written down.
        AssertionError: the wrong sequence or position, and what was taken for it.
    """
    for name, value in (("my_sequence", sequence), ("my_position", position)):
        if value is None:
            raise NotImplementedError(f"{name} is still None")
    block, offset = divmod(given.slot, given.size)
    row = next(row for row, table in enumerate(given.tables) if block in table)
    right = given.tables[row].index(block) * given.size + offset
    got = number(sequence, "my_sequence")
    assert got == row, (
        f"slot {given.slot} lies in a block of {given.size} that another sequence's table names, not sequence {got:g}'s"
        f"{named(got, {'sequences count from 0': row + 1})}"
    )
    place = number(position, "my_position")
    slips = {
        "positions count from 0": right + 1,
        "the offset alone; blocks before it in the table hold tokens too": offset,
        "the slot; the position counts along the table": given.slot,
        "the place in the table, and not yet a position": right // given.size,
    }
    assert place == right, (
        f"the token in slot {given.slot} is not at position {place:g} of its sequence"
        f"{named(place, {words: value for words, value in slips.items() if value != right})}"
    )


# ------------------------------------------------------------------ task 2: one query, whole and block by block


def attend(q: Array, keys: Array, values: Array) -> Array:
    """softmax(keys q / sqrt(dim)) values, of one query q [dim] and keys, values [tokens, dim]."""
    scores = keys @ q / math.sqrt(len(q))
    weights = np.exp(scores - scores.max())
    return weights @ values / weights.sum()


def part(q: Array, blocks: Any) -> State:
    """The state after all of `blocks`, an iterator over pairs of keys and values [tokens of the block, dim]."""
    largest, total, mixed = -math.inf, 0.0, np.zeros(len(q))
    for keys, values in blocks:
        scores = keys @ q / math.sqrt(len(q))
        larger = max(largest, float(scores.max()))
        fade, weights = math.exp(largest - larger), np.exp(scores - larger)
        total = total * fade + float(weights.sum())
        mixed = mixed * fade + weights @ values
        largest = larger
    return largest, total, mixed


_right_attend = attend


class Stream:
    """Keys and values, a block at a time, in one buffer: what it held is gone when the next one is asked for.

    So it is on a GPU, where a kernel has room for a block or two and not for a context. It can be gone through once.
    """

    def __init__(self, keys: Array, values: Array, size: int) -> None:
        self._keys, self._values, self._size = keys, values, size
        self._begun = False

    def __iter__(self) -> Iterator[tuple[Array, Array]]:
        assert not self._begun, (
            "the blocks can be gone through once: keys and values are read from memory once, and all that a kernel "
            "keeps is the largest score, the total and the mix"
        )
        self._begun = True
        return self._blocks()

    def _blocks(self) -> Iterator[tuple[Array, Array]]:
        keys, values = (np.empty((self._size, one.shape[1]), one.dtype) for one in (self._keys, self._values))
        for start in range(0, len(self._keys), self._size):
            here = slice(start, start + self._size)
            count = len(self._keys[here])
            keys[:count], values[:count] = self._keys[here], self._values[here]
            yield keys[:count], values[:count]
            keys.fill(np.nan)
            values.fill(np.nan)


def blocks(keys: Array, values: Array, size: int) -> Stream:
    """Keys and values [tokens, dim] in blocks of `size` tokens, the last one perhaps shorter."""
    return Stream(np.asarray(keys), np.asarray(values), size)


def keys_with(q: Array, scores: Sequence[float] | Array) -> Array:
    """Keys [tokens, dim] whose scores with q are these."""
    return np.outer(np.asarray(scores, dtype=float) * math.sqrt(len(q)) / (q @ q), q)


@dataclass(frozen=True)
class One:
    """One query on one head's keys and values."""

    q: Array
    keys: Array
    values: Array

    @property
    def scores(self) -> Array:
        scores: Array = self.keys @ self.q / math.sqrt(len(self.q))
        return scores

    def copied(self) -> tuple[Array, Array, Array]:
        return self.q.copy(), self.keys.copy(), self.values.copy()


def one(scores: Sequence[float] | Array, values: Any, dim: int = 4) -> One:
    """A query whose scores are these, on these values; with one number a token, it stands `dim` times."""
    q = np.ones(dim)
    given = np.asarray(values, dtype=float)
    return One(q, keys_with(q, scores), given if given.ndim == 2 else np.repeat(given[:, None], dim, 1))


def drawn_one(draw: Generator, kind: str = "", tokens: int | None = None) -> One:
    """A query. kind: "steep" scores lie between -1e4 and 1e4, "low" ones all about -1e4, others within a few of 0."""
    dim, n = int(draw.choice([4, 6, 9])), int(draw.integers(9, 20)) if tokens is None else tokens
    scores = {
        "steep": lambda: draw.uniform(-1e4, 1e4, n),
        "low": lambda: -1e4 - draw.uniform(0, 3, n),
        "": lambda: draw.normal(0, 2, n),
    }[kind]()
    q = draw.normal(0, 1, dim) + 0.1
    side = draw.normal(0, 1, (n, dim))
    return One(q, keys_with(q, scores) + side - np.outer(side @ q / (q @ q), q), draw.normal(0, 1, (n, dim)))


def check_attend(attend: Callable[..., Any], given: One) -> None:
    """Attention of one query.

    Raises:
        AssertionError: naming the output, the one wanted, and the slip that gives it.
    """
    got = _array(attend(*given.copied()), "what attend() returns", given.q.shape)
    wanted, scores, dim = _right_attend(given.q, given.keys, given.values), given.scores, len(given.q)
    steep = float(np.abs(scores).max())
    assert np.isfinite(got).all(), (
        f"scores between {scores.min():.4g} and {scores.max():.4g}: the output is {_said(got)}, and should be "
        f"{_said(wanted)}"
        + (
            "; exp() of a large number is infinite, and of all small ones 0: take the largest off first"
            if steep > 700
            else ""
        )
    )
    undivided = "not divided by the sum of the weights"
    slips = {undivided: np.exp(scores - scores.max()) @ given.values}
    if steep < 700:
        slips[f"{undivided}, nor the largest score taken off"] = np.exp(scores) @ given.values
    for words, factor in (
        ("the scores were not divided by the root of dim", math.sqrt(dim)),
        ("divided by dim, and not by its root", 1 / math.sqrt(dim)),
        ("the scores have the wrong sign", -1.0),
    ):
        weights = np.exp(factor * scores - (factor * scores).max())
        slips[words] = weights @ given.values / weights.sum()
    assert _same(got, wanted), (
        f"{len(scores)} tokens with scores {_said(scores)}: the output is {_said(got)}, and should be {_said(wanted)}"
        f"{_slip(got, wanted, slips)}"
    )


_GONE = "a block's keys and values are NaN when the next one comes, also in a list that has kept them: use them before"


def check_part(part: Callable[..., Any], given: One, size: int) -> None:
    """The state after blocks of `size` tokens.

    Raises:
        AssertionError: naming which of largest, total and mixed is wrong, and the slip that gives it.
    """
    q, keys, values = given.copied()
    state = as_list(part(q, Stream(keys, values, size)), "part() must return (largest, total, mixed)")
    assert len(state) == 3, f"part() must return (largest, total, mixed), got {len(state)} things"
    n, scores = len(keys), given.scores
    where = f"{n} tokens in blocks of {size}, scores {_said(scores, 6)}" if n else "no block at all"
    steep = float(np.abs(scores).max(initial=0.0)) > 700
    nan = "exp() of a large score is infinite: take the largest off first" if steep else _GONE if n else ""
    _check_state(state, _state(scores, given.values), where, lambda right: _slips_of_part(given, size, right), nan)


def _state(scores: Array, values: Array) -> State:
    """The state of these scores: what a part of a context comes to."""
    if not len(scores):
        return -math.inf, 0.0, np.zeros(values.shape[1])
    weights = np.exp(scores - scores.max())
    return float(scores.max()), float(weights.sum()), weights @ values


_Slips = tuple[dict[str, float], dict[str, float], dict[str, Array]]


def _check_state(got: Sequence[Any], right: State, where: str, slips: Callable[[State], _Slips], nan: str = "") -> None:
    """Raises for the first of the three that is wrong; `slips` are asked for only then. nan: where NaN comes from."""

    def no_nan(value: Any, name: str, why: str) -> None:
        if why and isinstance(value, float | np.floating | np.ndarray) and np.isnan(value).any():
            raise AssertionError(f"{where}: {name} is {_said(np.asarray(value))}; {why}")

    no_nan(got[0], "largest", nan)
    largest = number(got[0], f"{where}: largest", infinite=True)
    if not near(largest, right[0]):
        known = {words: value for words, value in slips(right)[0].items() if not near(value, right[0])}
        raise AssertionError(f"{where}: largest is {largest:.6g}, and should be {right[0]:.6g}{named(largest, known)}")
    no_nan(got[1], "total", nan)
    total = number(got[1], f"{where}: total", infinite=True)
    if not near(total, right[1], _CLOSE):
        known = {words: value for words, value in slips(right)[1].items() if not near(value, right[1], _CLOSE)}
        said = f"{where}: total is {total:.6g}, and should be {right[1]:.6g}{named(total, known, _CLOSE)}"
        raise AssertionError(said)
    no_nan(got[2], "mixed", nan and _GONE)  # the total was right, so that the weights are numbers
    mixed = _array(got[2], f"{where}: mixed", right[2].shape)
    if not _same(mixed, right[2]):
        said = f"{where}: mixed is {_said(mixed)}, and should be {_said(right[2])}"
        raise AssertionError(said + _slip(mixed, right[2], slips(right)[2]))


def _slips_of_part(given: One, size: int, right: State) -> _Slips:
    scores, values = given.scores, given.values
    if not len(scores):
        return {"without a block nothing was seen, and the largest of nothing is −∞": 0.0}, {}, {}
    starts = range(0, len(scores), size)
    last = scores[starts[-1] :]
    unscaled = math.sqrt(len(given.q)) * scores

    def walk(fade_total: Callable[[float, float], float], fade_mixed: Callable[[float, float], float]) -> State:
        largest, total, mixed = -math.inf, 0.0, np.zeros(values.shape[1])
        for start in starts:
            here = slice(start, start + size)
            larger = max(largest, float(scores[here].max()))
            weights = np.exp(scores[here] - larger)
            old = math.isfinite(largest)
            total = total * (fade_total(largest, larger) if old else 0.0) + float(weights.sum())
            mixed = mixed * (fade_mixed(largest, larger) if old else 0.0) + weights @ values[here]
            largest = larger
        return largest, total, mixed

    right_fade = lambda before, now: math.exp(before - now)  # noqa: E731
    backwards = lambda before, now: math.exp(min(now - before, 700))  # noqa: E731
    none = lambda before, now: 1.0  # noqa: E731
    most = float(scores.max())
    largest = {
        "the last block's; keep the largest of all blocks": float(last.max()),
        "it began at 0, and no score is above that: begin at −∞": 0.0,
        "the scores were not divided by the root of dim": float(unscaled.max()),
        f"it was never brought up to date, or all scores are NaN, over which max() passes; {_GONE}": -math.inf,
        "the smallest of the largest": min(float(scores[at : at + size].max()) for at in starts),
    }
    total = {
        "where a larger score came, what was summed before did not shrink": walk(none, none)[1],
        "the fade runs backwards: it is exp(before − now)": walk(backwards, backwards)[1],
        "the last block alone": float(np.exp(last - most).sum()),
        "the largest was not taken off": float(np.exp(np.minimum(scores, 700)).sum()),
    }
    mixed = {
        "divided by the total; leave that for the end": right[2] / right[1],
        "where a larger score came, what was mixed before did not shrink": walk(right_fade, none)[2],
        "the fade runs backwards: it is exp(before − now)": walk(right_fade, backwards)[2],
        "the last block alone": np.exp(last - most) @ values[starts[-1] :],
    }
    return largest, total, mixed


def growing(part: Callable[..., Any], given: One, size: int) -> list[State]:
    """The states after 1, 2, … blocks, by `part`."""
    found = []
    for stop in range(size, len(given.keys) + size, size):
        largest, total, mixed = part(given.q.copy(), blocks(given.keys[:stop], given.values[:stop], size))
        found.append((float(largest), float(total), np.asarray(mixed, dtype=float)))
    return found


# ------------------------------------------------------------------ task 3: parts, and heads that share


def merge(parts: Sequence[State]) -> State:
    """The state of all that the parts have seen together."""
    largest = max(part[0] for part in parts)
    if largest == -math.inf:
        return parts[0]
    fades = [math.exp(part[0] - largest) for part in parts]
    total = sum(fade * part[1] for fade, part in zip(fades, parts, strict=True))
    return largest, total, sum((fade * part[2] for fade, part in zip(fades, parts, strict=True)), np.zeros(()))


def grouped(q: Array, keys: Array, values: Array) -> Array:
    """Attention of one token's heads q [heads, dim] on keys and values [tokens, kv_heads, dim]: [heads, dim]."""
    group = len(q) // keys.shape[1]
    return np.stack([_right_attend(q[h], keys[:, h // group], values[:, h // group]) for h in range(len(q))])


_right_grouped = grouped


def parts_of(given: One, cuts: Sequence[int]) -> list[State]:
    """States of the parts between the cuts; two equal cuts have an empty part between them."""
    stops = [0, *cuts, len(given.keys)]
    scores = given.scores
    return [_state(scores[start:stop], given.values[start:stop]) for start, stop in pairwise(stops)]


def drawn_cuts(draw: Generator, tokens: int, count: int) -> list[int]:
    """`count` places in which to cut a context."""
    return sorted(int(at) for at in draw.integers(1, tokens, count))


def check_merge(merge: Callable[..., Any], parts: Sequence[State], what: str = "") -> None:
    """Several states made one.

    Raises:
        AssertionError: naming which of largest, total and mixed is wrong, and the slip that gives it.
    """
    own = [(largest, total, mixed.copy()) for largest, total, mixed in parts]
    got = as_list(merge(own), "merge() must return (largest, total, mixed)")
    assert len(got) == 3, f"merge() must return (largest, total, mixed), got {len(got)} things"
    seen = [state for state in parts if state[1]]
    largest = max((state[0] for state in seen), default=-math.inf)
    fades = [math.exp(state[0] - largest) for state in seen]
    mixed = sum((fade * state[2] for fade, state in zip(fades, seen, strict=True)), np.zeros_like(parts[0][2]))
    right = largest, sum(fade * state[1] for fade, state in zip(fades, seen, strict=True)), mixed
    empty = len(parts) - len(seen)
    where = f"{len(parts)} parts{f', {empty} of them empty' if empty else ''}{what and ', ' + what}"
    for place, name in enumerate(("largest", "total")):
        if isinstance(got[place], float | np.floating) and math.isnan(got[place]):
            raise AssertionError(
                f"{where}: {name} is NaN, and should be {right[place]:.6g}"
                + ("; an empty part has −∞, and −∞ − (−∞) is NaN" if empty else "")
            )
    if not seen:
        nothing = np.asarray(got[2], dtype=float)
        assert not np.isnan(nothing).any(), (
            f"{where}: mixed is {_said(nothing)}, and should be zeros; −∞ − (−∞) is NaN, so ask before you subtract"
        )
    _check_state(got, right, where, lambda right: _slips_of_merge(seen, right))


def _slips_of_merge(seen: Sequence[State], right: State) -> _Slips:
    if not seen:
        return {"the largest of nothing is −∞": 0.0}, {}, {}
    largest = {
        "the sum of them": sum(state[0] for state in seen),
        "the first part's": seen[0][0],
        "the last part's": seen[-1][0],
        "the mean of them": sum(state[0] for state in seen) / len(seen),
    }
    total = {
        "the totals were added as they are; each belongs to its own largest": sum(state[1] for state in seen),
        "faded backwards": sum(math.exp(min(right[0] - state[0], 700)) * state[1] for state in seen),
        "divided by itself": 1.0,
    }
    shape = np.zeros_like(right[2])
    mixed = {
        "divided by the total; leave that for the end": right[2] / right[1],
        "added as they are; each belongs to its own largest": sum((state[2] for state in seen), shape),
        "the mean of the parts' outputs": sum((state[2] / state[1] for state in seen), shape) / len(seen),
    }
    return largest, total, mixed


@dataclass(frozen=True)
class Heads:
    """One token's query heads, and the keys and values of its context."""

    q: Array  # [heads, dim]
    keys: Array  # [tokens, kv_heads, dim]
    values: Array


def heads(count: int, kv_heads: int, tokens: int, draw: Generator | int = 0, dim: int = 4) -> Heads:
    """Random numbers of these sizes."""
    rng = np.random.default_rng(draw) if isinstance(draw, int) else draw
    return Heads(*(rng.normal(0, 1, shape) for shape in ((count, dim), *[(tokens, kv_heads, dim)] * 2)))


def check_grouped(grouped: Callable[..., Any], given: Heads) -> None:
    """Query heads in groups.

    Raises:
        AssertionError: naming the head that is wrong, and the KV head that it read instead.
    """
    count, kv_heads = len(given.q), given.keys.shape[1]
    got = grouped(given.q.copy(), given.keys.copy(), given.values.copy())
    found = _array(got, "what grouped() returns", given.q.shape)
    wanted = _right_grouped(given.q, given.keys, given.values)
    for head, (mine, right) in enumerate(zip(found, wanted, strict=True)):
        if not _same(mine, right):
            slips = {
                f"that is what it gets from KV head {other}": _right_attend(
                    given.q[head], given.keys[:, other], given.values[:, other]
                )
                for other in range(kv_heads)
            }
            raise AssertionError(
                f"{count} query heads, {kv_heads} KV heads: query head {head} reads KV head {head * kv_heads // count} "
                f"and should give {_said(right)}, got {_said(mine)}{_slip(mine, right, slips)}"
            )


# ------------------------------------------------------------------ task 4: a ragged batch


@dataclass(frozen=True)
class Batch:
    """A ragged batch over a pool, as a decoder's layer hands it over; slots that no table reaches are NaN.

    q [tokens, heads, dim]; keys, values [blocks, size, kv_heads, dim]; block_tables [sequences, most blocks], padded
    with -1; query_lens, context_lens: a sequence's new tokens, and its tokens in the cache including these.
    """

    q: Array
    keys: Array
    values: Array
    block_tables: Array
    query_lens: list[int]
    context_lens: list[int]

    def __iter__(self) -> Iterator[Any]:
        """The arguments of an attention, which may change what it is given."""
        arrays = (self.q, self.keys, self.values, self.block_tables)
        return iter((*(one.copy() for one in arrays), list(self.query_lens), list(self.context_lens)))

    @property
    def num_bytes(self) -> int:
        """Bytes of keys and values that the batch's queries look at."""
        each = self.keys.itemsize * math.prod(self.keys.shape[2:])
        return 2 * sum(self.context_lens) * each

    def whose(self, token: int) -> tuple[int, int, int]:
        """(sequence, which of its new tokens, position) of a row of q."""
        row = int(np.searchsorted(np.cumsum(self.query_lens), token, side="right"))
        place = token - sum(self.query_lens[:row])
        return row, place, self.context_lens[row] - self.query_lens[row] + place


def batch(
    sequences: Sequence[tuple[int, int]],
    *,
    size: int = 4,
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 4,
    seed: Generator | int = 0,
    share: int = 0,
    dtype: Any = np.float64,
) -> Batch:
    """Sequences of (new tokens, tokens in all) with random queries, keys and values.

    share: so many first blocks are the same for all sequences, as after a hit in a prefix cache.
    """
    draw = np.random.default_rng(seed) if isinstance(seed, int) else seed
    needed = [-(-context // size) for _, context in sequences]
    order = draw.permutation(sum(needed) + 3).tolist()
    keys = np.full((len(order), size, kv_heads, dim), np.nan, dtype=dtype)
    values = keys.copy()
    table = np.full((len(sequences), max(needed) + 1), -1)
    common = [order.pop() for _ in range(share)]
    for row, (_, context) in zip(table, sequences, strict=True):
        for place in range(-(-context // size)):
            mine = place >= share
            row[place] = order.pop() if mine else common[place]
            full = min(size, context - place * size)
            if mine or np.isnan(keys[row[place], 0, 0, 0]):
                for pool in (keys, values):
                    pool[row[place], :full] = draw.normal(0, 1, (full, kv_heads, dim))
    neighbour = order.pop()  # somebody's who is not in this step
    keys[neighbour], values[neighbour] = draw.normal(0, 9, (2, size, kv_heads, dim))
    new, context_lens = ([pair[place] for pair in sequences] for place in (0, 1))
    q = draw.normal(0, 1, (sum(new), heads, dim)).astype(dtype)
    return Batch(q, keys, values, table, new, context_lens)


def drawn_batch(draw: Generator, kind: str) -> Batch:
    """kind: "decode" (one new token each), "chunks" (of prompts, amid them), "ragged" (both, grouped heads), "shared"
    (both, with first blocks in common)."""
    size, count = int(draw.integers(2, 6)), 3
    contexts = [int(one) for one in draw.integers(2 * size + 1, 4 * size + 1, count)]
    first = {
        "decode": [1] * count,
        "chunks": [int(draw.integers(2, context)) for context in contexts],
        "ragged": [1, contexts[1], int(draw.integers(2, contexts[2]))],
        "shared": [1, 2, 1],
    }[kind]
    group, kv_heads = (int(draw.choice([2, 3])), 2) if kind == "ragged" else (1, 2)
    both = list(zip(first, contexts, strict=True))
    share = 2 if kind == "shared" else 0
    return batch(both, size=size, heads=group * kv_heads, kv_heads=kv_heads, seed=draw, share=share)


def paged_attention(
    q: Array,
    keys: Array,
    values: Array,
    block_tables: Array,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
) -> Array:
    """Each query looks at its own sequence's keys up to its own position; [tokens, heads, dim]."""
    return _paged(q, keys, values, block_tables, query_lens, context_lens)


def _paged(
    q: Array,
    keys: Array,
    values: Array,
    block_tables: Array,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    *,
    sees: Callable[[int, int, int], int] = lambda new, context, place: context - new + place + 1,
    factor: float = 1.0,
    modulo: bool = False,
    again: bool = False,
) -> Array:
    """Attention right or wrong: `sees` is how many keys a query looks at, `factor` goes to the scores, and with `again`
    each sequence takes its queries from the beginning of q."""
    out, token = np.empty(q.shape, np.result_type(q, values)), 0
    count, kv_heads = q.shape[1], keys.shape[2]
    order = [head % kv_heads if modulo else head * kv_heads // count for head in range(count)]
    for table, new, context in zip(block_tables.tolist(), query_lens, context_lens, strict=True):
        k, v = (_right_gather(pool, table, context)[:, order] for pool in (keys, values))  # [context, heads, dim]
        for place in range(new):
            seen = min(max(sees(new, context, place), 1), context)
            scores = factor / math.sqrt(q.shape[2]) * np.einsum("thd,hd->ht", k[:seen], q[place if again else token])
            weights = np.exp(scores - scores.max(1, keepdims=True))
            out[token] = np.einsum("ht,thd->hd", weights, v[:seen]) / weights.sum(1, keepdims=True)
            token += 1
    return out


def _wrong_ways(given: Batch) -> Iterator[tuple[str, Array]]:
    """Attention with the usual mistakes, by name."""
    for words, more in (
        ("every new token looks at the whole context, at those after it too", {"sees": lambda n, c, i: c}),
        ("the mask hangs from the top left: the first new token sees one key only", {"sees": lambda n, c, i: i + 1}),
        ("a token does not look at itself", {"sees": lambda n, c, i: c - n + i}),
        ("each looks at one token too many", {"sees": lambda n, c, i: c - n + i + 2}),
        ("query head h reads KV head h % kv_heads; neighbours share, so it is h // group", {"modulo": True}),
        ("each sequence's queries were taken from the beginning of q; they stand end to end", {"again": True}),
        ("the scores were not divided by the root of dim", {"factor": math.sqrt(given.q.shape[2])}),
        ("the scores were divided by the root of dim twice", {"factor": 1 / math.sqrt(given.q.shape[2])}),
    ):
        how: dict[str, Any] = more
        yield words, _paged(*given, **how)


def _check_output(got: Any, given: Batch, what: str) -> None:
    found = _array(got, f"what {what} returns", given.q.shape)
    wanted = _paged(*given)
    if _same(found, wanted):
        return
    off = np.abs(found - wanted)
    bound = _CLOSE * max(1.0, float(np.abs(wanted).max()))
    token, head, _ = np.argwhere(~(off <= bound))[0]
    row, place, position = given.whose(int(token))
    where = (
        f"new tokens {given.query_lens} in contexts {given.context_lens}: token {token} of q is new token {place} of "
        f"sequence {row}, at position {position}; its head {head} gives {_said(found[token, head])} and should give "
        f"{_said(wanted[token, head])}"
    )
    assert not np.isnan(found[token, head]).any(), (
        f"{where}; NaN comes from slots that nobody has written, and 0 · NaN is NaN: read what the table names, up to "
        "the end of the context"
    )
    slip = next((words for words, value in _wrong_ways(given) if _same(found, value)), "")
    raise AssertionError(where + (f" ({slip})" if slip else ""))


def check_paged(paged_attention: Callable[..., Any], given: Batch) -> None:
    """The attention of a ragged batch.

    Raises:
        AssertionError: naming the first token and head that is wrong, and the slip that gives it.
    """
    _check_output(paged_attention(*given), given, "paged_attention()")


def seen_keys(kernel: Callable[..., Any], sequences: Sequence[tuple[int, int]], size: int = 4) -> list[Array]:
    """Which keys each query looks at, found out from outside: [new, context] of each sequence, the weight of each key.

    All scores are 0, and a token's value has a 1 in the place of its position: what comes out are the weights.
    """
    longest = max(context for _, context in sequences)
    given = batch(sequences, size=size, heads=1, kv_heads=1, dim=longest)
    values = np.full_like(given.values, np.nan)
    for table, (_, context) in zip(given.block_tables, sequences, strict=True):
        for position in range(context):
            values[table[position // size], position % size, 0] = np.arange(longest) == position
    _, keys, _, *rest = given
    out = np.asarray(kernel(np.zeros_like(given.q), keys, values, *rest), dtype=float)[:, 0]
    ends = np.cumsum([0, *given.query_lens])
    return [out[start:stop, :context] for (start, stop), (_, context) in zip(pairwise(ends), sequences, strict=True)]


# ------------------------------------------------------------------ the real decoder


def on_tensors(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """An attention on NumPy arrays as the decoder calls it, on tensors: `load_model("pocket", attention=…)`."""

    def attention(q: Any, keys: Any, values: Any, block_tables: Any, query_lens: Any, context_lens: Any) -> Any:
        arrays = (one.detach().cpu().float().numpy() for one in (q, keys, values))
        out = kernel(*arrays, block_tables.cpu().numpy(), list(query_lens), list(context_lens))
        return q.new_tensor(np.array(out, dtype=np.float32))

    return attention


def serve(executor: Any, prompts: Sequence[Sequence[int]], tokens: int, *, budget: int) -> tuple[Any, Any]:
    """Have a `DecoderExecutor` answer all prompts at once under the scheduler: the ids of each, and the steps.

    Greedily. budget: tokens of a step, so that prompts are computed in chunks beside those that decode.
    """
    pool = BlockPool(executor.kv.num_blocks, executor.kv.block_size)
    engine = Engine(
        Scheduler(pool, max_num_batched_tokens=budget, max_model_len=executor.model.shape.max_positions), executor
    )
    params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
    requests = [
        Request(f"prompt {place}", list(prompt), params, Timeline(engine.clock.now()))
        for place, prompt in enumerate(prompts)
    ]
    for request in requests:
        engine.add(request)
    engine.run()
    return [request.sequences[0].output_ids for request in requests], engine.steps


def milliseconds(action: Callable[[], object], times: int = 15) -> float:
    """How long it takes, in ms: the median of several runs after one that does not count."""
    action()
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        action()
        taken.append(time.perf_counter() - begin)
    return 1e3 * float(np.median(taken))


# ------------------------------------------------------------------ task 5: the same in Triton


def triton_language() -> Any:
    """`triton.language`; where Triton is not installed something that only has `constexpr`, so that a kernel can be
    written down. Without a GPU Triton's interpreter runs kernels, which has to be chosen before Triton is imported."""
    if not has_gpu():
        os.environ.setdefault("TRITON_INTERPRET", "1")
    return SimpleNamespace(constexpr="constexpr") if without_triton() else importlib.import_module("triton.language")


def has_gpu() -> bool:
    """Whether there is an NVIDIA driver."""
    return Path("/dev/nvidiactl").exists()


def without_triton() -> str:
    """Why no kernel can run here, in words, or "" if it can."""
    try:
        language = importlib.import_module("triton.language")
    except ImportError:
        return "triton is not installed; it exists for Linux only (pip install triton)"
    if not has_gpu() and type(language.max).__name__ == "JITFunction":
        return "triton was imported before its interpreter was chosen; restart the kernel, and run all cells in order"
    return ""


def launch(kernel: Callable[..., None], given: Batch, to_gpu: Callable[[Array], Any] | None = None) -> Array:
    """Run a decode kernel on a batch of one new token each, a program for each sequence and head: [tokens, heads, dim].

    to_gpu: copies an array into a tensor on a GPU; without it, Triton's interpreter works on the arrays as they are.

    Raises:
        NotImplementedError: it is not written yet, or nothing here can run it.
        AssertionError: it stopped; with what Triton says.
    """
    if reason := without_triton():
        raise NotImplementedError(reason)
    import triton

    count, kv_heads, dim, size = given.q.shape[1], given.keys.shape[2], given.keys.shape[3], given.keys.shape[1]
    arrays = [np.ascontiguousarray(one, np.float32) for one in (given.q, given.keys, given.values)]
    arrays.append(np.full(given.q.shape, np.nan, np.float32))
    # A table's padding must not lead out of memory where an answer forgets that the context has an end.
    arrays.append(np.maximum(given.block_tables, 0).astype(np.int32))
    arrays.append(np.array(given.context_lens, np.int32))
    sizes = {"HEADS": count, "KV_HEADS": kv_heads, "DIM": dim, "BLOCK": size}
    grid, rest = (len(given.context_lens), count), (given.block_tables.shape[1], 1 / math.sqrt(dim))
    # A copy with names of its own: the interpreter adds some of its own to those that a function sees.
    code = FunctionType(kernel.__code__, {**kernel.__globals__}, kernel.__name__, kernel.__defaults__, None)
    code.__annotations__ = kernel.__annotations__
    compiled = triton.jit(code)
    if to_gpu is not None:
        tensors = [to_gpu(array) for array in arrays]
        compiled[grid](*tensors, *rest, **sizes)
        return np.asarray(tensors[3].cpu().numpy())
    padded = [_inside(array) for array in arrays]
    try:
        compiled[grid](*map(_pointer, padded), _whole(rest[0]), rest[1], **sizes)
    except Exception as error:
        said = str(error)
        if "NotImplementedError" in said:
            raise NotImplementedError("decode() has no inner loop yet") from None
        raise AssertionError(f"the kernel stopped: {said[:300]}") from None
    return padded[3].copy()


def _inside(array: Array) -> Array:
    """A copy with room on both sides, so that an address which is a little off reads nothing of anybody else's."""
    room = 1 << 14
    outer = (
        np.zeros(array.size + 2 * room, array.dtype)
        if array.dtype == np.int32
        else np.full(array.size + 2 * room, np.nan, array.dtype)
    )
    inner = outer[room : room + array.size].reshape(array.shape)
    inner[:] = array
    return inner


def _pointer(array: Array) -> Any:
    """An array's address as the interpreter hands it to a kernel; by way of a tensor it would import torch."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    kind = tl.pointer_type({"float32": tl.float32, "int32": tl.int32}[array.dtype.name])
    return tl.tensor(TensorHandle(np.array([array.ctypes.data], np.uint64), kind), kind)


def _whole(value: int) -> Any:
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    return tl.tensor(TensorHandle(np.array([value], np.int32), tl.int32), tl.int32)


def check_decode(decode: Callable[..., None], given: Batch, to_gpu: Callable[[Array], Any] | None = None) -> None:
    """A decode kernel in Triton.

    Raises:
        NotImplementedError: it is not written yet, or Triton is not there.
        AssertionError: naming the first token and head that is wrong, and the slip that gives it.
    """
    _check_output(launch(decode, given, to_gpu), given, "decode()")


def drawn_decode(
    draw: Generator, contexts: Sequence[int], *, group: int = 1, kv_heads: int = 1, steepness: float = 1.0
) -> Batch:
    """One new token each, for a kernel whose sizes are powers of two; scores are `steepness` times as large."""
    each = [(1, context) for context in contexts]
    given = batch(each, heads=group * kv_heads, kv_heads=kv_heads, seed=draw)
    while not _telling(given):
        given = batch(each, heads=group * kv_heads, kv_heads=kv_heads, seed=draw)
    return replace(given, q=given.q * steepness)


def _telling(given: Batch) -> bool:
    """Whether slips show: the first block is not block 0, and of several blocks a later one has the largest score."""
    size = given.keys.shape[1]
    for q, table, context in zip(given.q, given.block_tables, given.context_lens, strict=True):
        scores = _right_gather(given.keys, table, context)[:, 0] @ q[0]
        if context > size and scores[:size].max() > scores[size:].max():
            return False
    return bool(given.block_tables[0, 0] != 0)


# ------------------------------------------------------------------ pictures


def draw_pool(
    given: Tables, slot: Callable[..., Any], mapping: Callable[..., Any], *, name: str, caption: str
) -> figures.Picture:
    """Who lies where in the pool, by `slot`; what the step writes, by `mapping`, has a frame."""
    looks = ("kv", "prefill", "decode", "stream")
    where: dict[int, tuple[int, int]] = {}
    for row, (table, context) in enumerate(zip(given.tables.tolist(), given.context_lens, strict=True)):
        for position in range(context):
            where[int(slot(table, position, given.size))] = row, position
    fresh = {int(one) for one in mapping(*given)}
    blocks = int(given.tables.max()) + 3

    def draw(pen: figures.Pen) -> None:
        columns = 1 if pen.narrow else 2
        left, cell = 34.0, min(30.0, (pen.width / columns - 48) / given.size)
        for block in range(blocks):
            x, y = left + block % columns * (pen.width / columns), 8 + block // columns * 34
            pen.text(x - 28, y + 18, str(block), size="small", look="quiet")
            for offset in range(given.size):
                row, position = where.get(block * given.size + offset, (-1, -1))
                new = block * given.size + offset in fresh
                pen.box(
                    x + offset * cell,
                    y,
                    cell - 2,
                    26,
                    f"{_LETTERS[row]}{position}" if row >= 0 else "",
                    look=looks[row % len(looks)] if row >= 0 else "free",
                    dashed=row < 0,
                    solid=new and row >= 0,
                    small=True,
                )
        rows = -(-blocks // columns)
        text = "sequence and position; filled: written in this step; dashed: nobody's"
        pen.text(4, 8 + rows * 34 + 14, text, size="small", look="quiet")

    order = sorted(where)
    said = "; ".join(
        f"sequence {_LETTERS[row]}: {context} tokens in blocks {', '.join(str(one) for one in table if one >= 0)}"
        for row, (table, context) in enumerate(zip(given.tables.tolist(), given.context_lens, strict=True))
    )
    alt = f"{blocks} blocks of {given.size} slots. {said}. Slots {', '.join(map(str, sorted(fresh)))} are written now."
    data = {
        "slot": order,
        "sequence": [_LETTERS[where[one][0]] for one in order],
        "position": [where[one][1] for one in order],
        "written now": ["yes" if one in fresh else "" for one in order],
    }
    return figures.drawing(alt, draw, caption=caption, name=name, data=data)


def draw_growing(states: Sequence[State], given: One, size: int, *, name: str, caption: str) -> figures.Picture:
    """Largest score and output after each block, and the whole softmax that the output ends on."""
    count = range(1, len(states) + 1)
    scores, whole = given.scores, _right_attend(given.q, given.keys, given.values)[0]
    outputs = [float(mixed[0] / total) if total else math.nan for _, total, mixed in states]
    largest = [state[0] for state in states]
    fig, (top, bottom) = figures.axes(
        xlabel=["", "blocks read"], ylabel=["score", "output so far"], rows=2, cols=1, height=5.2, sharex=True
    )
    places = (np.arange(len(scores)) + 0.5) / size + 0.5
    top.plot(places, scores, **figures.look("quiet", marker=".", linestyle="none"), label="scores")
    top.plot(count, largest, **figures.look("limit", marker="", drawstyle="steps-mid"), label="largest so far")
    bottom.plot(count, outputs, **figures.look("simulation", linestyle="-"), label="by your part()")
    bottom.axhline(whole, **figures.look("prediction", marker=""), label="softmax of the whole")
    for axis in (top, bottom):
        axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    grown = 1 + sum(now > before for before, now in pairwise(largest))
    alt = (
        f"Above, {len(scores)} scores in blocks of {size} and the largest so far, which grows "
        f"{'once' if grown == 1 else f'{grown} times'}, to "
        f"{largest[-1]:.3g}. Below, the output after each block, from {outputs[0]:.3g} to {outputs[-1]:.3g}; the whole "
        f"softmax gives {whole:.3g}."
    )
    data = {
        "blocks read": list(count),
        "largest so far": [round(one, 4) for one in largest],
        "output so far": [round(one, 4) for one in outputs],
    }
    return figures.show(fig, alt=alt, caption=caption, name=name, data=data)


def draw_shares(parts: Sequence[State], merged: State, *, name: str, caption: str) -> figures.Picture:
    """What each part's weights come to in the merged softmax, in percent."""
    shares = [100 * math.exp(largest - merged[0]) * total / merged[1] for largest, total, _ in parts]
    fig, ax = figures.axes(xlabel="part", ylabel="share of the weights", yunit="%")
    ax.bar(range(len(shares)), shares, color=figures.COLORS["kv"], width=0.8)
    ax.set_ylim(bottom=0)
    best = int(np.argmax(shares))
    alt = (
        f"Shares of {len(shares)} parts of a context in the weights of one query, from {min(shares):.3g} % to "
        f"{shares[best]:.3g} % in part {best}."
    )
    data = {"part": list(range(len(shares))), "share (%)": [round(share, 3) for share in shares]}
    return figures.show(fig, alt=alt, caption=caption, name=name, data=data)


def draw_seen(
    seen: Sequence[Array], sequences: Sequence[tuple[int, int]], *, name: str, caption: str
) -> figures.Picture:
    """Which keys each new token looks at: a row for each, a column for each position."""
    longest = max(context for _, context in sequences)

    def draw(pen: figures.Pen) -> None:
        left = 74.0 if pen.narrow else 150.0
        cell, y = min(26.0, (pen.width - left - 4) / longest), 8.0
        for sequence, (rows, (new, context)) in enumerate(zip(seen, sequences, strict=True)):
            for place, weights in enumerate(rows):
                position = context - new + place
                words = f"{sequence}: {position}" if pen.narrow else f"sequence {sequence}, token {position}"
                pen.text(4, y + 15, words, size="small")
                for key, weight in enumerate(weights):
                    looks = weight > 1e-9
                    look = ("decode" if key == position else "kv") if looks else "free"
                    pen.box(left + key * cell, y, cell - 2, 20, "", look=look, solid=bool(looks), dashed=not looks)
                y += 23
            y += 10
        pen.text(4, y + 8, "filled: it looks at this key; blue: its own", size="small", look="quiet")

    counts = [int((weights > 1e-9).sum()) for rows in seen for weights in rows]
    tokens = [(row, context - new + place) for row, (new, context) in enumerate(sequences) for place in range(new)]
    alt = "How many keys each new token looks at: " + "; ".join(
        f"token {position} of sequence {row}: {count}" for (row, position), count in zip(tokens, counts, strict=True)
    )
    data = {
        "sequence": [row for row, _ in tokens],
        "position": [position for _, position in tokens],
        "keys seen": counts,
    }
    return figures.drawing(alt + ".", draw, caption=caption, name=name, data=data)
