"""Replicas that come and go with the load: asked for, started after a lag, drained before they stop.

    Scaling       how often who decides, and how long a start takes
    TargetInside  as many as keep so many requests inside each: decided by what is seen
    Timetable     as many as stand in a table: decided in advance
    Fleet         which replicas of a cluster are on

    off -> starting -> on -> draining -> off
           a start that is no longer wanted is called off; a draining replica that is wanted again is on at once

Only those that are on get requests. One that drains finishes what is inside, so that nobody is cut off; who starts,
serves or drains is paid for. A decision sees the past and takes effect a lag later: what the load does meanwhile meets
the replicas that are there.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from underload.queueing import arguments
from underload.request.errors import UnderloadError

if TYPE_CHECKING:
    from underload.simulation.cluster import Front
    from underload.simulation.events import Event
    from underload.simulation.router import View

#: How many replicas are wanted at an instant (s), by the views of those that are on or drain. Rounded up.
Wanted = Callable[[float, "Sequence[View]"], float]


@dataclass(frozen=True)
class TargetInside:
    """As many replicas as have `target` requests inside each, on average, with what is inside now.

    The rule of a common autoscaler: replicas x (what each has now / what each should have), rounded up.

    Raises:
        UnderloadError: a target not above 0.
    """

    target: float

    def __post_init__(self) -> None:
        arguments.above_zero("target", self.target, "requests inside a replica")

    def __call__(self, now: float, views: Sequence[View]) -> float:
        return sum(view.inside for view in views) / self.target


@dataclass(frozen=True)
class Timetable:
    """numbers[i] replicas from instants[i] (s) on, decided in advance; before the first, as many as at the first.

    Whoever knows the lag has them started that much earlier.

    Raises:
        UnderloadError: rows of unlike length or of nothing, instants that do not ascend, numbers below 0.
    """

    instants: tuple[float, ...]
    numbers: tuple[float, ...]

    def __post_init__(self) -> None:
        instants = tuple(arguments.number("an instant", value) for value in self.instants)
        numbers = tuple(arguments.at_least_zero("a number of replicas", value, "") for value in self.numbers)
        if not instants or len(instants) != len(numbers) or list(instants) != sorted(instants):
            raise UnderloadError(
                f"a timetable has ascending instants and a number for each, got {self.instants!r:.60} and "
                f"{self.numbers!r:.60}"
            )
        object.__setattr__(self, "instants", instants)
        object.__setattr__(self, "numbers", numbers)

    def __call__(self, now: float, views: Sequence[View]) -> float:
        return self.numbers[max(bisect_right(self.instants, now) - 1, 0)]


@dataclass(frozen=True)
class Scaling:
    """How a cluster's replicas are scaled.

    wanted: decides; asked every `period`.
    period: s.
    lag: s from the decision until a new replica takes requests: the machine, the weights, the warm-up.
    least, most: replicas at all times; all that the cluster has if `most` is None.
    first: on at the start, without a lag; `least` if None.
    hold: s; it is scaled down only to the most that was wanted in so long (a common autoscaler's stabilisation
        window), which keeps it from following every dip.

    Raises:
        UnderloadError: a policy that cannot be called, a period not above 0, a negative lag or hold, or numbers that
            are not least <= first <= most, from 1 on.
    """

    wanted: Wanted
    period: float
    lag: float
    least: int = 1
    most: int | None = None
    first: int | None = None
    hold: float = 0.0

    def __post_init__(self) -> None:
        if not callable(self.wanted):
            raise UnderloadError(f"wanted is a function of (now, views), got {self.wanted!r:.60}")
        arguments.above_zero("period", self.period, "s")
        arguments.at_least_zero("lag", self.lag, "s")
        arguments.at_least_zero("hold", self.hold, "s")
        least = arguments.whole("least", self.least, least=1)
        most = least if self.most is None else arguments.whole("most", self.most, least=least)
        if self.first is not None:
            arguments.whole("first", self.first, least=least, most=most if self.most is not None else 10**8)


class ReplicaState(StrEnum):
    """Where a replica stands."""

    OFF = "off"
    STARTING = "starting"
    ON = "on"
    DRAINING = "draining"


OFF, STARTING, ON, DRAINING = ReplicaState.OFF, ReplicaState.STARTING, ReplicaState.ON, ReplicaState.DRAINING


class Size(NamedTuple):
    """Replicas of a fleet from an instant (s) on."""

    instant: float
    wanted: int
    starting: int
    on: int
    draining: int


@dataclass(frozen=True)
class FleetRun:
    """What a fleet was.

    sizes: a row for the start, and one after each change.
    replica_seconds: replicas times s for which they were starting, on or draining: what is paid for.
    """

    sizes: list[Size] = field(repr=False)
    replica_seconds: float


class Fleet:
    """Which replicas of a cluster are on; decides every period, on its clock, as long as anybody is to be answered.

    The first replicas of the cluster are on at the start. Those that start are the first that are off, those that stop
    the last that are on. One that starts is empty, and so is its cache.

    Raises:
        UnderloadError: fewer replicas than `scaling` may want.
    """

    def __init__(self, front: Front, scaling: Scaling) -> None:
        self._front = front
        self._scaling = scaling
        self._servers = front.servers
        first = scaling.least if scaling.first is None else scaling.first
        self._most = len(self._servers) if scaling.most is None else scaling.most
        if max(first, self._most) > len(self._servers):
            raise UnderloadError(
                f"the fleet may have {max(first, self._most)} replicas, and {len(self._servers)} are described; "
                "describe as many, or lower most"
            )
        self._states = [ON if index < first else OFF for index in range(len(self._servers))]
        for server, state in zip(self._servers, self._states):
            server.active = state is ON
        self._since = [front.now] * len(self._servers)  # when it was last off
        self._paid = 0.0
        self._starts: dict[int, Event] = {}
        self._asked: list[tuple[float, int]] = []  # what was wanted, as far back as `hold` reaches
        self._sizes: list[Size] = []
        self._note(first)
        front.decide_at(front.now + scaling.period, self._decide)

    def left(self, index: int) -> None:
        """The last copy has left the replica; if it drains, it stops."""
        if self._states[index] is DRAINING:
            self._stop(index)
            self._note(self._sizes[-1].wanted)

    def run(self, until: float) -> FleetRun:
        """What it was until the last answer, at `until` (s)."""
        running = sum(until - since for state, since in zip(self._states, self._since) if state is not OFF)
        return FleetRun(list(self._sizes), self._paid + running)

    def _decide(self) -> None:
        front, scaling = self._front, self._scaling
        if not front.live:
            return
        now = front.now
        front.decide_at(now + scaling.period, self._decide)
        working = [server for server in self._servers if self._states[server.index] in (ON, DRAINING)]
        asked = arguments.as_float(scaling.wanted(now, working))
        if math.isnan(asked):
            raise UnderloadError(f"the policy wants {asked} replicas at {now:g} s; it must say a number")
        # Rounded up, but for rounding: 3.0000000001 are 3.
        wanted = math.ceil(min(max(asked, scaling.least), self._most) - 1e-9)
        self._asked = [(at, number) for at, number in self._asked if at > now - scaling.hold]
        self._asked.append((now, wanted))
        number = self._count(STARTING) + self._count(ON)
        if wanted > number:
            self._grow(wanted - number)
        else:
            self._shrink(number - max(most for _, most in self._asked))
        self._note(wanted)

    def _grow(self, more: int) -> None:
        warm = [index for index, state in enumerate(self._states) if state is DRAINING][:more]
        cold = [index for index, state in enumerate(self._states) if state is OFF][: more - len(warm)]
        for index in warm:
            self._set(index, ON)
        for index in cold:
            self._since[index] = self._front.now
            self._set(index, STARTING)
            self._starts[index] = self._front.queue.after(self._scaling.lag, self._start, index)

    def _shrink(self, fewer: int) -> None:
        last_first = range(len(self._states) - 1, -1, -1)
        starting = [index for index in last_first if self._states[index] is STARTING]
        on = [index for index in last_first if self._states[index] is ON]
        for index in (starting + on)[: max(fewer, 0)]:
            if index in self._starts:
                self._front.queue.cancel(self._starts.pop(index))
            if self._servers[index].inside:
                self._set(index, DRAINING)
            else:
                self._stop(index)

    def _start(self, index: int) -> None:
        del self._starts[index]
        self._servers[index].boot()
        self._set(index, ON)
        self._note(self._sizes[-1].wanted)

    def _stop(self, index: int) -> None:
        self._paid += self._front.now - self._since[index]
        self._set(index, OFF)

    def _set(self, index: int, state: ReplicaState) -> None:
        self._states[index] = state
        self._servers[index].active = state is ON

    def _count(self, state: ReplicaState) -> int:
        return sum(one is state for one in self._states)

    def _note(self, wanted: int) -> None:
        row = Size(self._front.now, wanted, *(self._count(state) for state in (STARTING, ON, DRAINING)))
        if not self._sizes or self._sizes[-1][1:] != row[1:]:
            self._sizes.append(row)
