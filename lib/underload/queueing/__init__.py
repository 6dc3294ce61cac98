"""Closed forms: what a queue must be like before anything is simulated or measured.

    markov     mm1, mm1k, mmc; erlang_b, erlang_c, halfin_whitt
    general    md1, mg1, mg1_ps, gm1, gg1
    service    laws of a service time: Exponential, Lognormal, Empirical and others
    gathering  batch_fill, size_or_timeout: waiting for company, the server always free
    bulk       bulk_service: a server that takes batches, "greedy", "full" or "bailey"
    linear     linear_batch: o + bt, its throughput, knee, best batch and capacity at an SLO
    routing    power_of_choices, shortest_queue, fork_join: queues side by side
    tails      max_of_n, prob_any: fan-out; hedged: a backup copy after a delay

A queue is a function of its parameters that returns `Measures`, once and for all: frozen, in steady state, with its law
of the wait and of the time in system wherever that is known. The rest of the nouns (`Gathering`, `Slowest`, `Hedged`,
`LinearBatch`) answer in the same words. What to rely on:

- Rates are in 1/s and times in s, and the arguments say so: `service_rate`, `mean_service`. All after the first two are
  named. One number each: for a curve, call in a loop.
- A percentile is asked for in percent, 99 for p99, as in `metrics.percentile`.
- Little's law holds on every result: mean_queue = throughput x mean_wait, mean_system = throughput x mean_sojourn.
- At load 1 and above `stable` is False and what diverges is infinite, never negative. What does not diverge stays
  finite: an M/M/1/K is stable at every load.
- At arrival rate 0 the waits are those of the one request that might come.
- Exact where exact is known. The exceptions carry it in the name (`halfin_whitt`, `gg1(...).bound` and
  `.approximation`) or are numerical to a stated error (percentiles of `mg1` with a law).
- A percentile that a formula does not give is an error that says what would give it, not a guess.

Scalars in, scalars out, SciPy inside the functions: importing the package is quick, and loads no torch.
"""

from underload.queueing.bulk import BatchMeasures, bulk_service
from underload.queueing.gathering import Gathering, batch_fill, size_or_timeout
from underload.queueing.general import Estimates, gg1, gm1, md1, mg1, mg1_ps
from underload.queueing.linear import LinearBatch, linear_batch
from underload.queueing.markov import erlang_b, erlang_c, halfin_whitt, mm1, mm1k, mmc
from underload.queueing.measures import Measures
from underload.queueing.routing import ForkJoin, fork_join, power_of_choices, shortest_queue
from underload.queueing.service import (
    BoundedPareto,
    Deterministic,
    Empirical,
    Erlang,
    Exponential,
    Hyperexponential,
    Lognormal,
    Pareto,
    Service,
)
from underload.queueing.tails import Hedged, Slowest, hedged, max_of_n, prob_any

__all__ = [
    "BatchMeasures",
    "BoundedPareto",
    "Deterministic",
    "Empirical",
    "Erlang",
    "Estimates",
    "Exponential",
    "ForkJoin",
    "Gathering",
    "Hedged",
    "Hyperexponential",
    "LinearBatch",
    "Lognormal",
    "Measures",
    "Pareto",
    "Service",
    "Slowest",
    "batch_fill",
    "bulk_service",
    "erlang_b",
    "erlang_c",
    "fork_join",
    "gg1",
    "gm1",
    "halfin_whitt",
    "hedged",
    "linear_batch",
    "max_of_n",
    "md1",
    "mg1",
    "mg1_ps",
    "mm1",
    "mm1k",
    "mmc",
    "power_of_choices",
    "prob_any",
    "shortest_queue",
    "size_or_timeout",
]
