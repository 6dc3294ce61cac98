"""A server that is slower than it should be for some of the time: a noisy neighbour, a garbage collection, heat.

    Slowness        when is work done that was begun then? the one question a replica asks
    Steady          always slower by one factor
    Episodes        slower by a factor in stated episodes; a factor of infinity is a pause
    drawn_episodes  Episodes that come and go at random
    Product         several at once: their factors multiply

A factor is the time that work takes over the time it takes undisturbed: at 2 the server works at half its speed, at
infinity not at all, below 1 it is faster. Work that is under way when an episode begins is slowed for what is left of
it. What is summed up are whole pieces, nothing is stepped through: undisturbed work ends at start + work to the last
bit. These objects never change, so that one of them on several replicas makes these slow at the same time.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from underload.queueing import arguments
from underload.queueing.service import law_of
from underload.request.errors import UnderloadError

# Beyond it a server is not slow but stands still, for which there is infinity; and products stay finite.
_MOST = 1e9


class Slowness(Protocol):
    """When work is done on a server that is not always at its best."""

    def end(self, start: float, work: float) -> float:
        """The instant (s) at which `work` s of undisturbed work are done that are begun at `start`: finite, never
        before `start`, and never later than more work would be."""
        ...


class Pieces:
    """A factor that is constant between instants: what the slownesses of this file are made of.

    edges: instants (s) at which the factor changes, ascending.
    factors: factors[i] holds from edges[i - 1] until just before edges[i]; one more than there are edges.
    """

    edges: list[float]
    factors: list[float]

    def factor_at(self, instant: float) -> float:
        """The factor at an instant (s): at an edge, the one that begins there."""
        return self.factors[bisect_right(self.edges, instant)]

    def end(self, start: float, work: float) -> float:
        """As `Slowness.end`.

        Raises:
            UnderloadError: work below 0 s, or what is no number.
        """
        if not (work >= 0 and start == start):
            raise UnderloadError(f"work takes at least 0 s from some instant on, got {work!r:.40} s at {start!r:.40} s")
        edges, factors = self.edges, self.factors
        place, left = bisect_right(edges, start), work
        if not left:
            return start  # even in a pause, which nothing times infinity would not tell
        while place < len(edges):
            edge, factor = edges[place], factors[place]
            done = start + left * factor
            if done <= edge:
                return done
            left -= (edge - start) / factor
            if left <= 0:  # by rounding
                return edge
            start, place = edge, place + 1
        return start + left * factors[place]

    def _set(self, edges: list[float], factors: list[float]) -> None:
        """Keep them, but for edges at which nothing changes. What derives from this is frozen."""
        kept: list[tuple[float, float]] = []
        last = factors[0]
        for edge, factor in zip(edges, factors[1:]):
            if kept and kept[-1][0] == edge:  # what it says holds for no time
                kept.pop()
                last = kept[-1][1] if kept else factors[0]
            if factor != last and edge < math.inf:
                kept.append((edge, factor))
                last = factor
        object.__setattr__(self, "edges", [edge for edge, _ in kept])
        object.__setattr__(self, "factors", [factors[0], *(factor for _, factor in kept)])


@dataclass(frozen=True)
class Steady(Pieces):
    """Always slower by `factor`, as an older machine; below 1, a faster one.

    Raises:
        UnderloadError: a factor that is no number above 0, or beyond 1e9.
    """

    factor: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "factor", _factor(self.factor))
        self._set([], [self.factor])


@dataclass(frozen=True)
class Episodes(Pieces):
    """Slower by `factor` from begins[i] on, for lengths[i]; undisturbed at all other times.

    begins: s, ascending; an episode may begin where another ends, but not before.
    lengths: s, one for each; infinity where it does not end.
    factor: infinity is a pause: work stands still, and then goes on.

    Raises:
        UnderloadError: rows that are no numbers or of unlike length, episodes that overlap, a factor that is none, or
            a pause without end, which is a failure (`Failures`).
    """

    begins: tuple[float, ...]
    lengths: tuple[float, ...]
    factor: float

    def __post_init__(self) -> None:
        begins, lengths = self._rows()
        factor = math.inf if arguments.as_float(self.factor) == math.inf else _factor(self.factor)
        if factor == math.inf and lengths and lengths[-1] == math.inf:
            raise UnderloadError(
                f"the pause at {begins[-1]:g} s never ends; a replica that does not come back is down (Failures)"
            )
        for name, value in (("begins", begins), ("lengths", lengths), ("factor", factor)):
            object.__setattr__(self, name, value)
        edges: list[float] = []
        factors = [1.0]
        for begin, length in zip(begins, lengths):
            edges += [begin, begin + length]
            factors += [factor, 1.0]
        self._set(edges, factors)

    def _rows(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        try:
            begins, lengths = (tuple(map(arguments.as_float, row)) for row in (self.begins, self.lengths))
        except TypeError:
            raise UnderloadError(
                f"begins and lengths are rows of numbers in s, got {self.begins!r:.40} and {self.lengths!r:.40}"
            ) from None
        if len(begins) != len(lengths):
            raise UnderloadError(f"{len(begins)} episodes have {len(lengths)} lengths; give one for each")
        free = 0.0
        for begin, length in zip(begins, lengths):
            free = in_order("episode", begin, begin + length if length >= 0 else math.nan, free)
        return begins, lengths


class Product(Pieces):
    """Several slownesses at once: where they overlap, their factors multiply.

    Raises:
        UnderloadError: a part that is none of this file's, or a product beyond 1e9.
    """

    def __init__(self, *parts: Pieces) -> None:
        for part in parts:
            if not isinstance(part, Pieces):
                raise UnderloadError(
                    f"a product takes Steady, Episodes and products of them, got {part!r:.60}; what `end` alone says "
                    "has no factor to multiply"
                )
        self.parts = parts
        edges = sorted({edge for part in parts for edge in part.edges})
        factors = [math.prod(part.factors[0] for part in parts)]
        factors += [math.prod(part.factor_at(edge) for part in parts) for edge in edges]
        if high := [factor for factor in factors if _MOST < factor < math.inf]:
            raise UnderloadError(f"the factors multiply to {high[0]:g}; beyond {_MOST:g} use a pause (infinity)")
        self._set(edges, factors)

    def __repr__(self) -> str:
        return f"Product({', '.join(map(repr, self.parts))})"


def drawn_episodes(rate: float, length: Any, factor: float, horizon: float, rng: np.random.Generator) -> Episodes:
    """Episodes at random: an undisturbed stretch is exponential with mean 1 / `rate`, then comes an episode.

    In the long run the server is in one for a share rate x m / (1 + rate x m) of the time, m the mean length.

    Args:
        rate: episodes begun a second of undisturbed time; 0 is none.
        length: the law of an episode's length (s).
        factor: as that of `Episodes`.
        horizon: s; none begins at it or later, though one may last longer.
        rng: draws them.

    Raises:
        UnderloadError: a rate below 0, no law, a horizon below 0, or a bad factor.
    """
    begins, lengths = draw_spells(rate, length, horizon, rng)
    return Episodes(begins, lengths, factor)


def draw_spells(
    rate: float, length: Any, horizon: float, rng: np.random.Generator
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Begins and lengths (s) of what comes and goes: gaps exponential with mean 1 / `rate`, each then a length."""
    rate = arguments.at_least_zero("rate", rate, "1/s")
    horizon = arguments.at_least_zero("horizon", horizon, "s")
    law = law_of(length, "length")
    begins: list[float] = []
    lengths: list[float] = []
    now = 0.0
    while rate:
        now += rng.exponential(1 / rate)
        if now >= horizon:
            break
        begins.append(now)
        lengths.append(float(law.draw(rng, 1)[0]))
        now += lengths[-1]
    return tuple(begins), tuple(lengths)


def in_order(what: str, begin: float, end: float, free: float) -> float:
    """`end`, once it is found to be no earlier than `begin`, and `begin` no earlier than `free`, the end before (s).

    Raises:
        UnderloadError: it is not so, or one of them is no number.
    """
    if not (free <= begin < math.inf and begin <= end):
        raise UnderloadError(
            f"an {what} lasts from {begin:g} to {end:g} s, and the one before until {free:g} s; give finite begins "
            "from 0 s on, in order, none after its end, and join those that overlap"
        )
    return end


def _factor(value: object) -> float:
    found = arguments.above_zero("factor", value, "")
    if found > _MOST:
        raise UnderloadError(f"factor must be at most {_MOST:g}, got {found:g}; infinity is a pause")
    return found
