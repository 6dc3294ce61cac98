"""Number inside over time, and Little's law on one run, ends and all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from underload.queueing import arguments
from underload.request.errors import UnderloadError

Array = NDArray[np.float64]


def number_inside(arrival: Array, finish: Array) -> tuple[Array, NDArray[np.int64]]:
    """The number inside as a staircase: instants of change (s, ascending), and how many are inside from each on.

    Everybody is inside during [arrival, finish). Several changes at one instant are steps of no length, leaving before
    coming. Who stays for no time makes no step.

    Raises:
        UnderloadError: arrivals and finishes that are no numbers or not as many.
    """
    arrival, finish = _stays(arrival, finish)
    stays = finish > arrival
    coming, leaving = arrival[stays], finish[stays]
    times = np.concatenate([leaving, coming])
    order = np.argsort(times, kind="stable")  # stable: of equal instants, those of leaving come first
    changes = np.ones(times.size, dtype=np.int64)
    changes[: leaving.size] = -1
    return times[order], np.cumsum(changes[order])


def _stays(arrival: Array, finish: Array) -> tuple[Array, Array]:
    try:
        made = np.asarray(arrival, dtype=np.float64), np.asarray(finish, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise UnderloadError("arrival and finish must be rows of numbers in s; mend what made them") from None
    if made[0].ndim != 1 or made[0].shape != made[1].shape or np.isnan(made[0].sum() + made[1].sum()):
        raise UnderloadError(
            f"each arrival needs a finish, in s and not NaN, got {made[0].shape} and {made[1].shape}; leave out "
            "those who were refused"
        )
    return made


def some_time(length: float) -> float:
    """The length of a window in s, by which a rate divides.

    Raises:
        UnderloadError: it is 0.
    """
    if not length:
        raise UnderloadError("the window has no length, so it has no rates; give a longer horizon or more customers")
    return length


def area_under(times: Array, counts: NDArray[np.int64], begin: float, end: float) -> float:
    """The integral of a staircase from `begin` to `end`: customer-seconds."""
    if not times.size:
        return 0.0
    edges = np.clip(np.concatenate([times, [max(end, float(times[-1]))]]), begin, end)
    return float(np.diff(edges) @ counts)


def overlap(begin: Array, finish: Array, start: float, end: float) -> float:
    """How much of the intervals [begin, finish) lies in [start, end), added up, in s."""
    return float(np.maximum(np.minimum(finish, end) - np.maximum(begin, start), 0.0).sum())


@dataclass(frozen=True)
class Little:
    """Little's law on a window [begin, end) of one run, in customer-seconds.

        area    the integral of the number inside: counted along the clock
        parts   the parts of all stays that lie in the window: added up over customers

    They are one and the same area, cut into upright strips and into lying ones, so they agree on every run, whatever
    the discipline and however short. L = lambda W needs one thing more: that whole stays may stand for parts.
    `stays` are the whole stays of those who came in the window, and `ends` = area - stays is what the two ends change:
    the remainders of those who were there before, less what happens to the last ones after. It is 0 when nobody is
    inside at either end, and gets small beside the area as the window grows.
    """

    begin: float  # s
    end: float  # s
    area: float
    parts: float
    entered: int  # customers admitted in the window
    stays: float

    @property
    def length(self) -> float:
        """Of the window, in s."""
        return self.end - self.begin

    @property
    def mean_system(self) -> float:
        """L, the mean number inside.

        Raises:
            UnderloadError: a window of no length.
        """
        return self.area / some_time(self.length)

    @property
    def rate(self) -> float:
        """lambda, customers admitted a second.

        Raises:
            UnderloadError: a window of no length.
        """
        return self.entered / some_time(self.length)

    @property
    def mean_sojourn(self) -> float:
        """W, the mean of the whole stays of those who came in the window, in s; 0 when nobody came."""
        return self.stays / self.entered if self.entered else 0.0

    @property
    def ends(self) -> float:
        """area - stays: what the ends of the window do to L = lambda W."""
        return self.area - self.stays

    def check(self) -> None:
        """Raises UnderloadError when area and parts differ by more than rounding: the run contradicts itself."""
        if abs(self.area - self.parts) > 1e-9 * max(abs(self.area), self.length):
            raise UnderloadError(
                f"Little's law fails on this run: {self.area!r} customer-seconds along the clock, {self.parts!r} added "
                "up over customers; the simulator is wrong, please report it"
            )


def little(arrival: Array, finish: Array, begin: float, end: float) -> Little:
    """Little's law for customers who are inside during [arrival, finish), on the window [begin, end) in s.

    Raises:
        UnderloadError: arrivals and finishes that are no numbers or not as many, or a window that runs backwards.
    """
    arrival, finish = _stays(arrival, finish)
    begin, end = arguments.number("begin", begin), arguments.number("end", end)
    if end < begin:
        raise UnderloadError(f"a window must not end before it begins, got [{begin:g}, {end:g}); swap them?")
    times, counts = number_inside(arrival, finish)
    came = (arrival >= begin) & (arrival < end)
    return Little(
        begin=begin,
        end=end,
        area=area_under(times, counts, begin, end),
        parts=overlap(arrival, finish, begin, end),
        entered=int(came.sum()),
        stays=float((finish[came] - arrival[came]).sum()),
    )
