"""How much a system can take: capacity at an SLO, what it takes besides, and runs by the dozen.

    sweep      a function over a grid, on processes or on a Dask cluster; workers
    loads      a load at any rate, with the same random numbers: by speed or by thinning; Burst
    system     System: replicas of a kind behind a front door
    probe      one run at one rate: attainment, stretch, growth, limits
    capacity   the largest rate at which an SLO holds, with an interval, and what binds

Everything here runs the engine's own loop on a virtual clock (`simulation`) and reads its two records.
"""

from underload.planning.capacity import Binds, Capacity, capacity
from underload.planning.loads import Burst
from underload.planning.probe import Probe
from underload.planning.sweep import sweep, workers
from underload.planning.system import System

__all__ = ["Binds", "Burst", "Capacity", "Probe", "System", "capacity", "sweep", "workers"]
