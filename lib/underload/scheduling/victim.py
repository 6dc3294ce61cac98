"""Who gives up its blocks when there are none.

Every block of a sequence is read at every step, so half a sequence is of no use: whoever is chosen loses all. It keeps
its place in the order, and comes back by computing its tokens again, or by copies from the host.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from underload.cache import Pool
from underload.request import Sequence


class Victim(Protocol):
    """Chooses among the running sequences that are in no plan, last in the order first; None only if there is none."""

    def choose(self, candidates: Iterable[Sequence], pool: Pool) -> Sequence | None: ...


class LastArrived:
    """The last in the order: whoever came before is never set back by whoever came later."""

    def choose(self, candidates: Iterable[Sequence], pool: Pool) -> Sequence | None:
        return next(iter(candidates), None)


class LeastComputed:
    """The one with the fewest tokens in the cache."""

    def choose(self, candidates: Iterable[Sequence], pool: Pool) -> Sequence | None:
        return min(candidates, key=lambda sequence: sequence.num_computed, default=None)


class Cheapest:
    """The one with the fewest tokens to compute again, where blocks that others hold as well cost nothing. One that
    holds no block for itself would give nothing back, and is chosen last."""

    def choose(self, candidates: Iterable[Sequence], pool: Pool) -> Sequence | None:
        def cost(sequence: Sequence) -> float:
            own = pool.owned(sequence.table) if sequence.table is not None else 0
            return min(own * pool.block_size, sequence.num_computed) if own else float("inf")

        return min(candidates, key=cost, default=None)
