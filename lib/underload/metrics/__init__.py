"""From timelines and step records to figures: what a request felt, what the machine did.

    latency      one request: queue time, TTFT, ITL, TPOT, E2E, chunk gaps, longest stall
    stages       the latency budget: E2E as a sum of named parts
    attribution  what a request waited for, and the slowest: E2E or TTFT as a sum of parts, by the steps it was in
    percentiles  percentiles with distribution-free intervals; how many values a p99 needs
    samples      that in a table: requests needed, and how sharp a percentile is after so many
    means        means with an interval: batch means of one run, replications, paired differences
    correlation  how many independent values a correlated series is worth
    warmup       the start of a run: cut it, and where
    throughput   tokens and requests a second in a window
    slo          objectives, goodput, attainment
    rates        bytes/s and FLOP/s of steps against ceilings
    summary      all of it in one table
    dialects     the same log in the words of vLLM, SGLang, guidellm, aiperf and llmperf: `dialects.compare(timelines)`

Which interval: of a percentile, `percentile_interval`, which takes the values for independent; where they are not
(the requests of one busy queue) tell it what they are worth, `effective_samples(values, q)`, or use several runs,
`percentile_over_replications`. Of a mean, `batch_means` for one long run and `mean_interval` for one figure a run. Of
the difference between two policies, `paired_difference` over runs on the same seeds. Cut the warm-up before any of
them. A percentile q is in per cent (99), a confidence a share (0.95).

Identities that hold for every timeline: E2E = TTFT + the sum of its ITL; TTFT = queue time + time to first token once
scheduled; the stages add up to E2E, and so do the parts of `attribute`.
"""

from underload.metrics import dialects
from underload.metrics.attribution import PARTS, Slowest, StepShares, attribute, slowest
from underload.metrics.correlation import effective_samples
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
from underload.metrics.means import (
    MeanInterval,
    batch_means,
    mean_interval,
    paired_difference,
    percentile_over_replications,
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
from underload.metrics.samples import SamplesTable, samples_table
from underload.metrics.slo import Slo, attainment, goodput
from underload.metrics.stages import STAGES, mean_stages, stages
from underload.metrics.summary import Summary, summary
from underload.metrics.throughput import request_throughput, span, throughput
from underload.metrics.warmup import cut_warmup, suggest_warmup

__all__ = [
    "PARTS",
    "STAGES",
    "Interval",
    "MeanInterval",
    "SamplesTable",
    "Slo",
    "Slowest",
    "StepRates",
    "StepShares",
    "Summary",
    "attainment",
    "attribute",
    "batch_means",
    "check",
    "chunk_gaps",
    "chunks",
    "cut_warmup",
    "dialects",
    "e2e",
    "effective_samples",
    "goodput",
    "itl",
    "longest_stall",
    "mean",
    "mean_interval",
    "mean_stages",
    "paired_difference",
    "percentile",
    "percentile_interval",
    "percentile_over_replications",
    "percentile_upper_limit",
    "queue_time",
    "request_throughput",
    "samples_needed",
    "samples_table",
    "slowest",
    "span",
    "stages",
    "step_rates",
    "succeeded",
    "suggest_warmup",
    "summary",
    "throughput",
    "tpot",
    "ttft",
]
