"""Simulation on a virtual clock: the same questions as the formulas, where there is no formula.

    events        EventQueue: what happens when; ties in a stated order
    visit         Visit: one customer's stay at one station
    line          who is next: fcfs, lifo, sjf, priority
    station       station: servers behind a line, or one that all share (ps); chained into networks
    driven        submit_to: a station as the server that the loops of `workload` drive
    fast          fcfs: first come, first served without events, millions of customers a second
    simulate      simulate: one station, one load, one call
    run           Run: what happened to every customer, in the words of `queueing.Measures`
    little        Little's law on a window, ends and all
    step_time     LinearStepTime, OverlapStepTime, ReplayStepTime, SwapStepTime: how long a step of the engine takes
    roofline      RooflineStepTime: by the model's shape and the device's data sheet
    table         TableStepTime: by a table of measurements
    fitted        FittedStepTime: as this machine was seen to take it
    calibrate     from records of steps to a FittedStepTime: design, measure, fit, StepErrors
    modelled      CostModelExecutor: runs the engine's plans on a virtual clock
    serving       simulate_serving: the engine's own loop, scheduler and pool on a virtual clock
    replay        replay: a recorded run again, with the times of its steps
    measured      runs of another engine, measured by others: rerun, RunErrors, fit_overlap
    cluster       simulate_cluster: replicas behind a front door; Front, Door, ClusterRun
    replicas      EngineReplica, StationReplica: what stands behind it
    router        which replica: Random, RoundRobin, JoinShortestQueue, PowerOfChoices, LeastKvUsed, PrefixAffine
    sending       what is done with a request: Once, Hedge, Tied, Retry, FanOut, or a policy of your own
    call          Call, Attempt: a client's request, and the copies sent for it
    disaggregated simulate_disaggregated: prefill in one pool, decode in another, and a Link between them
    slowness      Steady, Episodes, Product: a server that is not always at its best
    failures      Failures: one that goes down and comes back
    scaling       Scaling, TargetInside, Timetable: replicas that start after a lag and drain before they stop
    backlog       serve_backlog: what a pool's memory holds while requests wait
    replications  replicate, compare: independent runs; alternatives on the same random numbers

Two ways in. `simulate(arrivals=Poisson(0.9), service=Exponential(1), horizon=100_000)` is one station from end to end.
An `EventQueue` with stations on it is everything else: networks, routing, copies that cancel each other.

What to rely on:

- Times are in s. At one instant a finish comes before an arrival, and equal events run in the order in which they were
  scheduled, whatever else is scheduled or cancelled.
- Arrivals in [0, horizon) count. arrived = finished + inside + refused at the horizon, and who would finish at that
  very instant is inside. Those inside are then served to the end, so that no wait is cut off; nobody comes after.
- Warm-up is cut by arrival time.
- A customer brings its own work, drawn in order of arrival from a stream of its own: two policies with one seed meet
  the same customers with the same work.
- No server is idle while somebody waits, and a service that has begun is not interrupted (under "ps" all are served).
- Both paths of `simulate` give the same numbers to the last bit, where both can run.
- Little's law is checked on every run, to rounding.
- One run's customers depend on each other: an interval comes from `replicate`, or from `metrics.batch_means`.
"""

from underload.simulation.backlog import Occupancy, serve_backlog
from underload.simulation.call import Attempt, Call
from underload.simulation.cluster import ClusterRun, Door, Front, ReplicaRun, simulate_cluster
from underload.simulation.disaggregated import DisaggregatedRun, Link, Transfer, simulate_disaggregated
from underload.simulation.driven import submit_to
from underload.simulation.events import Event, EventQueue
from underload.simulation.failures import Failures, drawn_failures
from underload.simulation.fast import fcfs
from underload.simulation.fitted import FittedStepTime
from underload.simulation.line import DISCIPLINES
from underload.simulation.little import Little, little, number_inside
from underload.simulation.modelled import CostModelExecutor
from underload.simulation.replay import replay
from underload.simulation.replicas import EngineReplica, Replica, StationReplica
from underload.simulation.replications import Comparison, Replications, compare, replicate
from underload.simulation.roofline import RooflineStepTime
from underload.simulation.router import (
    JoinShortestQueue,
    LeastKvUsed,
    PowerOfChoices,
    PrefixAffine,
    Random,
    RoundRobin,
    Router,
    View,
)
from underload.simulation.run import Run
from underload.simulation.scaling import FleetRun, Scaling, Size, TargetInside, Timetable
from underload.simulation.sending import FanOut, Hedge, Once, Retry, Sending, Tied
from underload.simulation.serving import ServingRun, simulate_serving
from underload.simulation.simulate import simulate
from underload.simulation.slowness import Episodes, Product, Slowness, Steady, drawn_episodes
from underload.simulation.station import ServerStation, SharedStation, Station, station
from underload.simulation.step_time import LinearStepTime, OverlapStepTime, ReplayStepTime, StepTime, SwapStepTime
from underload.simulation.table import TableStepTime
from underload.simulation.visit import Visit, VisitState

__all__ = [
    "DISCIPLINES",
    "Attempt",
    "Call",
    "ClusterRun",
    "Comparison",
    "CostModelExecutor",
    "DisaggregatedRun",
    "Door",
    "EngineReplica",
    "Episodes",
    "Event",
    "EventQueue",
    "Failures",
    "FanOut",
    "FittedStepTime",
    "FleetRun",
    "Front",
    "Hedge",
    "JoinShortestQueue",
    "LeastKvUsed",
    "LinearStepTime",
    "Link",
    "Little",
    "Occupancy",
    "Once",
    "OverlapStepTime",
    "PowerOfChoices",
    "PrefixAffine",
    "Product",
    "Random",
    "ReplayStepTime",
    "Replica",
    "ReplicaRun",
    "Replications",
    "Retry",
    "RooflineStepTime",
    "RoundRobin",
    "Router",
    "Run",
    "Scaling",
    "Sending",
    "ServerStation",
    "ServingRun",
    "SharedStation",
    "Size",
    "Slowness",
    "Station",
    "StationReplica",
    "Steady",
    "StepTime",
    "SwapStepTime",
    "TableStepTime",
    "TargetInside",
    "Tied",
    "Timetable",
    "Transfer",
    "View",
    "Visit",
    "VisitState",
    "compare",
    "drawn_episodes",
    "drawn_failures",
    "fcfs",
    "little",
    "number_inside",
    "replay",
    "replicate",
    "serve_backlog",
    "simulate",
    "simulate_cluster",
    "simulate_disaggregated",
    "simulate_serving",
    "station",
    "submit_to",
]
