"""How far below its capacity a system must run, so that it still keeps its SLO when something happens.

headroom    one replica of n is down; or a burst comes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from underload import metrics
from underload.metrics import MeanInterval, mean_interval
from underload.planning.capacity import Capacity, capacity
from underload.planning.loads import Burst, check_burst
from underload.planning.system import System, check_system
from underload.queueing import arguments
from underload.request import UnderloadError
from underload.workload import Load, Planned, Trace


@dataclass(frozen=True)
class Headroom:
    """The answer.

    what: what is to be survived, in words.
    normal, then: the capacity when nothing happens, and when it does.
    share: 1 - then / normal, the part of the capacity to be left unused; the mean over the runs.
    interval: of that mean, over pairs of runs with the same random numbers; None for one run.
    """

    what: str
    normal: Capacity
    then: Capacity
    share: float
    interval: MeanInterval | None

    @property
    def rate(self) -> float:
        """The largest rate (1/s) to run at all the time."""
        return min(self.then.rate, self.normal.rate)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        around = self.interval
        return {
            "what": self.what,
            "headroom": self.share,
            "interval": None if around is None else [around.low, around.high],
            "rate_per_s": self.rate,
            "normal": self.normal.as_dict(),
            "then": self.then.as_dict(),
        }

    def __str__(self) -> str:
        around = self.interval
        sure = "" if around is None else f" ({around.low:.1%} to {around.high:.1%})"
        return (
            f"headroom    {self.share:.1%}{sure} of {self.normal.rate:.4g} requests/s, for {self.what}: run at "
            f"{self.rate:.4g} requests/s at most"
        )

    __repr__ = __str__


def headroom(
    workload: Load | Trace | Sequence[Planned],
    slo: metrics.Slo,
    system: System,
    *,
    down: int | None = None,
    burst: Burst | None = None,
    recovery: float | None = None,
    **how: Any,
) -> Headroom:
    """What to leave unused, so that the SLO also holds with `down` replicas fewer, or through a burst.

    With replicas down, that is a steady state: they have been out for long, and the front door knows. (What happens at
    the moment itself depends on its length in requests; `System.failing` runs it.) With a burst, what counts is who
    arrives during it, and `recovery` s behind it: the rest would hide them.

    Args:
        recovery: None: as long as the burst.
        how: as for `capacity`.

    Raises:
        UnderloadError: neither or both of `down` and `burst`, as many down as there are, and as `capacity`.
    """
    check_system(system)
    check_burst(burst)
    if (down is None) == (burst is None):
        raise UnderloadError("say what is to be survived: down=1 for a replica that is out, or burst=Burst(3, 60)")
    if burst is not None:
        recovery = burst.seconds if recovery is None else arguments.at_least_zero("recovery", recovery, "s")
        what = f"{burst.factor:g} times the rate for {burst.seconds:g} s"
        then = capacity(workload, slo, system, burst=burst, recovery=recovery, **how)
    else:
        down = arguments.whole("down", down, least=1)
        if down >= system.replicas:
            raise UnderloadError(
                f"with {down} of {system.replicas} replicas down nobody serves; give it more, or take fewer down"
            )
        what = f"{down} of {system.replicas} replicas down"
        then = capacity(workload, slo, replace(system, replicas=system.replicas - down), **how)
    normal = capacity(workload, slo, system, **how)
    shares = [1 - after / before for before, after in zip(normal.crossings, then.crossings, strict=True) if before > 0]
    if not shares:
        raise UnderloadError("the SLO holds at no load, even when nothing happens; loosen it, or take a faster system")
    around = mean_interval(shares, how.get("confidence", 0.95)) if len(shares) > 1 else None
    return Headroom(what, normal, then, sum(shares) / len(shares), around)
