"""Task 5: which cached block goes, on loads with scans and on loads that move."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

from underload.labs.answers import number, shown


class Cached(NamedTuple):
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


def generator(seed: int) -> Generator:
    """A stream of random numbers for a load that everybody has."""
    return np.random.default_rng(seed)


Load = list[list[str]]  # for each request, the names of its blocks in order

CACHE = 40  # blocks of the cache that task 5's loads are served with
_LATELY = 30  # requests


def scans(draw: Generator, requests: int = 90) -> Load:
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
            entries = tuple(
                tuple.__new__(Cached, (place_of[name], found_of[name], now - used_at[name])) for name in listed
            )
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


def check_beats(victim: Callable[..., Any], loads: Sequence[Load], least: float = 1.4) -> None:
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


def check_keeps_up(victim: Callable[..., Any], loads: Sequence[Load], least: float = 0.6) -> None:
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
