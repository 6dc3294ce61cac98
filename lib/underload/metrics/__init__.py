"""From timelines and step records to figures: what a request felt, what the machine did.

    latency      one request: queue time, TTFT, ITL, TPOT, E2E, chunk gaps, longest stall
    stages       the latency budget: E2E as a sum of named parts
    percentiles  percentiles with distribution-free intervals; how many values a p99 needs
    throughput   tokens and requests a second in a window
    slo          objectives, goodput, attainment
    rates        bytes/s and FLOP/s of steps against ceilings
    summary      all of it in one table

Identities that hold for every timeline: E2E = TTFT + the sum of its ITL; TTFT = queue time + time to first token once
scheduled; the stages add up to E2E.
"""

from underload.metrics.latency import (
    check,
    chunk_gaps,
    chunks,
    e2e,
    itl,
    longest_stall,
    queue_time,
    succeeded,
    tpot,
    ttft,
)
from underload.metrics.percentiles import (
    Interval,
    mean,
    percentile,
    percentile_interval,
    percentile_upper_limit,
    samples_needed,
)
from underload.metrics.rates import StepRates, step_rates
from underload.metrics.slo import Slo, attainment, goodput
from underload.metrics.stages import STAGES, mean_stages, stages
from underload.metrics.summary import Summary, summary
from underload.metrics.throughput import request_throughput, span, throughput

__all__ = [
    "STAGES",
    "Interval",
    "Slo",
    "StepRates",
    "Summary",
    "attainment",
    "check",
    "chunk_gaps",
    "chunks",
    "e2e",
    "goodput",
    "itl",
    "longest_stall",
    "mean",
    "mean_stages",
    "percentile",
    "percentile_interval",
    "percentile_upper_limit",
    "queue_time",
    "request_throughput",
    "samples_needed",
    "span",
    "stages",
    "step_rates",
    "succeeded",
    "summary",
    "throughput",
    "tpot",
    "ttft",
]
