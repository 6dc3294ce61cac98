"""How much a system can take: capacity at an SLO, what it takes besides, and runs by the dozen.

    capacity   the largest rate at which an SLO holds, with an interval, and what binds
    headroom   what to leave unused, so that it holds with a replica down, or through a burst
    fleet      replicas_needed: on the whole, and window by window through a day
    compare    compare_systems, goodput_curve: systems under the same loads, on both sides of the cliff
    shedding   who is turned away: at the door, by deadline, by a shorter answer; storm: retries after a burst
    system     System: replicas of a kind behind a front door
    loads      a load at any rate, with the same random numbers: by speed or by thinning; Burst
    probe      one run at one rate: attainment, stretch, growth, limits
    sweep      a function over a grid, on processes or on a Dask cluster; workers

Everything here runs the engine's own loop on a virtual clock (`simulation`) and reads its two records. What is asked
is answered in plain data; pictures are for `figures`. Work is spread over `processes`, or over the workers of a Dask
`scheduler`, and comes out the same.
"""

from underload.planning.capacity import Binds, Capacity, capacity
from underload.planning.compare import compare_systems, goodput_curve
from underload.planning.fleet import Fleet, replicas_needed
from underload.planning.headroom import Headroom, headroom
from underload.planning.loads import Burst
from underload.planning.probe import Probe
from underload.planning.shedding import (
    Backoff,
    DegradeAbove,
    RejectAbove,
    Storm,
    shedding_policies,
    storm,
    through_time,
)
from underload.planning.sweep import sweep, workers
from underload.planning.system import System

__all__ = [
    "Backoff",
    "Binds",
    "Burst",
    "Capacity",
    "DegradeAbove",
    "Fleet",
    "Headroom",
    "Probe",
    "RejectAbove",
    "Storm",
    "System",
    "capacity",
    "compare_systems",
    "goodput_curve",
    "headroom",
    "replicas_needed",
    "shedding_policies",
    "storm",
    "sweep",
    "through_time",
    "workers",
]
