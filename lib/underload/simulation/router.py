"""Which replica a request goes to.

    Router               the base: choose one of the candidates
    Random               any
    RoundRobin           in turn
    JoinShortestQueue    the one with fewest requests inside
    PowerOfChoices       the one with fewest inside, of d that are drawn
    LeastKvUsed          the one whose cache is least full
    PrefixAffine         the one that has seen most of the prompt, unless it is overloaded

A router knows what a real one knows: how many requests it has sent somewhere that are not back, and what a replica said
after its last step. An object belongs to one run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from underload.queueing import arguments
from underload.request import UnderloadError
from underload.workload import block_keys

if TYPE_CHECKING:
    from underload.simulation.call import Call


class View(Protocol):
    """A replica, as a router sees it.

    index: its place among the replicas.
    inside: requests sent there that are not back.
    waiting: those of them that have not started.
    kv_used: the share of its blocks in use after its last step; 0 at a station.
    up: whether it takes requests, as far as is known.
    """

    @property
    def index(self) -> int: ...
    @property
    def inside(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def kv_used(self) -> float: ...
    @property
    def up(self) -> bool: ...


class Router(ABC):
    @abstractmethod
    def choose(self, call: Call, replicas: Sequence[View], rng: np.random.Generator) -> View:
        """One of `replicas`, at least one. What is drawn comes from `rng`."""


def least(replicas: Sequence[View], figures: Sequence[float], rng: np.random.Generator) -> View:
    """The replica with the least figure; one of them at random where several have it."""
    low = min(figures)
    lowest = [replica for replica, figure in zip(replicas, figures) if figure == low]
    return lowest[0] if len(lowest) == 1 else lowest[int(rng.random() * len(lowest))]


class Random(Router):
    def choose(self, call: Call, replicas: Sequence[View], rng: np.random.Generator) -> View:
        return replicas[int(rng.random() * len(replicas))]


class RoundRobin(Router):
    """In turn, by index; one that is no candidate is passed over."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, call: Call, replicas: Sequence[View], rng: np.random.Generator) -> View:
        chosen = min(replicas, key=lambda replica: (replica.index < self._next, replica.index))
        self._next = chosen.index + 1
        return chosen


class JoinShortestQueue(Router):
    """Fewest inside, of all; one of them at random where several have as few."""

    def choose(self, call: Call, replicas: Sequence[View], rng: np.random.Generator) -> View:
        return least(replicas, [replica.inside for replica in replicas], rng)


class PowerOfChoices(Router):
    """Fewest inside, of `d` that are drawn without replacement (Mitzenmacher, "The Power of Two Choices in Randomized
    Load Balancing", IEEE TPDS 12(10), 2001).

    Raises:
        UnderloadError: d below 1.
    """

    def __init__(self, d: int = 2) -> None:
        self.d = arguments.whole("d", d, least=1)

    def choose(self, call: Call, replicas: Sequence[View], rng: np.random.Generator) -> View:
        left = list(replicas)
        drawn = [left.pop(int(rng.random() * len(left))) for _ in range(min(self.d, len(left)))]
        return min(drawn, key=lambda replica: replica.inside)  # drawn in random order: no tie to break


class LeastKvUsed(Router):
    """The least share of blocks in use; fewest inside where several have it, and then at random."""

    def choose(self, call: Call, replicas: Sequence[View], rng: np.random.Generator) -> View:
        low = min(replica.kv_used for replica in replicas)
        lowest = [replica for replica in replicas if replica.kv_used == low]
        return least(lowest, [replica.inside for replica in lowest], rng)


class PrefixAffine(Router):
    """The replica that was sent the longest prefix of the prompt before, so that its cache may hold it; where none was,
    or where it has more inside than `limit` times the least and `slack` on top, the one with fewest.

    What it goes by is what it sent, not what a cache still holds: no router sees that for free.

    Args:
        block_size: tokens in a block of a prefix.
        limit, slack: how far the load may be out of balance for a prefix's sake.

    Raises:
        UnderloadError: a block below 1 token, a limit below 1, a slack below 0.
    """

    def __init__(self, *, block_size: int = 16, limit: float = 2.0, slack: int = 8) -> None:
        self.block_size = arguments.whole("block_size", block_size, least=1)
        self.limit = arguments.above_zero("limit", limit, "")
        if self.limit < 1:
            raise UnderloadError(f"limit must be at least 1, got {limit!r}; at 1 only slack allows for imbalance")
        self.slack = arguments.whole("slack", slack, least=0)
        self._seen: dict[int, set[bytes]] = {}  # replica -> blocks that were sent there

    def choose(self, call: Call, replicas: Sequence[View], rng: np.random.Generator) -> View:
        keys = block_keys(call.request, self.block_size)
        chosen = least(replicas, [replica.inside for replica in replicas], rng)
        allowed = self.limit * chosen.inside + self.slack
        longest = 0
        for replica in replicas:
            if replica.inside <= allowed and (length := self._prefix(replica.index, keys)) > longest:
                chosen, longest = replica, length
        self._seen.setdefault(chosen.index, set()).update(keys)
        return chosen

    def _prefix(self, index: int, keys: list[bytes]) -> int:
        seen = self._seen.get(index, set())
        return next((place for place, key in enumerate(keys) if key not in seen), len(keys))
