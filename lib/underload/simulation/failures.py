"""A server that goes down and comes back, and how long it takes until anybody notices."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from underload.queueing import arguments
from underload.request.errors import UnderloadError
from underload.simulation.slowness import draw_spells, in_order


@dataclass(frozen=True)
class Failures:
    """When a replica is down.

    Whatever is inside when it goes down fails there. Until `notice` seconds later nobody has noticed: it is chosen as
    before, indeed rather more, since it looks idle, and what is sent to it fails at once. It is up, and known to be, at
    the end of each outage.

    down: (begin, end) of each outage in s, in order; an end of infinity: it does not come back.
    notice: s from the begin of an outage on; infinity: nobody ever notices.

    Raises:
        UnderloadError: what is no pair of instants, outages that overlap or end before they begin, a negative notice.
    """

    down: tuple[tuple[float, float], ...]
    notice: float = 0.0
    _edges: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            pairs = [(arguments.as_float(begin), arguments.as_float(end)) for begin, end in self.down]
        except (TypeError, ValueError):
            raise UnderloadError(f"down is a row of (begin, end) in s, got {self.down!r:.60}") from None
        free = 0.0
        for begin, end in pairs:
            free = in_order("outage", begin, end, free)
        object.__setattr__(self, "down", tuple(pairs))
        notice = self.notice if self.notice == math.inf else arguments.at_least_zero("notice", self.notice, "s")
        object.__setattr__(self, "notice", notice)
        object.__setattr__(self, "_edges", tuple(edge for pair in pairs for edge in pair))

    def is_down(self, instant: float) -> bool:
        """Whether it is down at an instant (s): from the begin of an outage until just before its end."""
        return bisect_right(self._edges, instant) % 2 == 1

    def is_known(self, instant: float) -> bool:
        """Whether it is down at an instant (s) and has been for `notice` seconds, so that no router chooses it."""
        place = bisect_right(self._edges, instant)
        return place % 2 == 1 and instant >= self._edges[place - 1] + self.notice


def drawn_failures(
    rate: float, length: Any, horizon: float, rng: np.random.Generator, *, notice: float = 0.0
) -> Failures:
    """Outages at random: a time up is exponential with mean 1 / `rate`, a time down follows the law `length` (s).

    None begins at `horizon` (s) or later.

    Raises:
        UnderloadError: a rate, horizon or notice below 0, or no law.
    """
    begins, lengths = draw_spells(rate, length, horizon, rng)
    return Failures(tuple((begin, begin + length) for begin, length in zip(begins, lengths)), notice)
