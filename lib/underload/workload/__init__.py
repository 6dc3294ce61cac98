"""Load: when requests come, how long they are, what they share, who sends them, and how to send them.

    streams   Streams: independent random streams by name
    arrivals  processes: Poisson, Gamma, Weibull, Deterministic, OnOff, PiecewiseConstant, Diurnal, Windowed, Replay
    lengths   prompt and answer: FixedTokens … LognormalTokens, Lengths (correlated, limited), EmpiricalPairs
    prompts   what prompts share: SharedPrefix, Conversations; PromptIds, block_keys, shared_blocks
    mix       Workload, Tenants, Mix: `plan(seed, horizon=…)` gives a list of Planned requests
    turns     Turns: which requests come at their own time, and which follow an answer
    drive     open_loop, closed_loop (and async): send a plan by any clock, get a Log
    readers   read_trace: Azure, BurstGPT, Mooncake, ServeGen, ShareGPT lengths, measured vLLM runs, our own
    trace     what they give: Trace (`plan`, `arrivals`, `lengths`), ClientWindows, ClientLengths, Measured
    public    load_trace, find_trace: public traces by name; synthetic stand-ins where there are none
    description  describe: what a trace is like: rate, CV, index of dispersion, lengths, sharing; is it Poisson?

What to rely on:

- A plan is a function of the seed and the workload. Arrivals, lengths, prompts and think times have streams of their
  own, so that changing one leaves the others; tenants too. A longer horizon keeps the earlier requests.
- Times are in s, rates in 1/s, lengths in tokens. Arrivals lie in [0, horizon). Nothing is rescaled to hit a number.
- Drivers keep an absolute schedule, and both latencies: from the schedule and from the send.
- A failed request is an entry in the log like any other.

No torch; SciPy inside the functions that need it.
"""

from underload.workload.arrivals import Arrivals
from underload.workload.description import Description, Dispersion, describe, dispersion
from underload.workload.drive import closed_loop, closed_loop_async, open_loop, open_loop_async
from underload.workload.lengths import (
    EmpiricalPairs,
    EmpiricalTokens,
    FixedTokens,
    GeometricTokens,
    Lengths,
    LognormalTokens,
    Tokens,
    UniformTokens,
)
from underload.workload.log import Log, Sent
from underload.workload.mix import Load, Mix, Share, Tenants, Workload
from underload.workload.planned import Planned, Segment, write_plan
from underload.workload.prompts import (
    Conversations,
    PromptIds,
    Prompts,
    SharedPrefix,
    Sharing,
    Unshared,
    block_keys,
    shared_blocks,
)
from underload.workload.public import PUBLIC, find_trace, load_trace, synthetic, trace_folders
from underload.workload.readers import read_columns, read_plan, read_trace
from underload.workload.renewal import Deterministic, Gamma, Poisson, Renewal, Weibull
from underload.workload.replay import Replay, Windowed
from underload.workload.runners import Events
from underload.workload.streams import Streams
from underload.workload.trace import ClientLengths, ClientWindows, Measured, Trace
from underload.workload.turns import Turns
from underload.workload.varying import Diurnal, OnOff, PiecewiseConstant

__all__ = [
    "PUBLIC",
    "Arrivals",
    "ClientLengths",
    "ClientWindows",
    "Conversations",
    "Description",
    "Deterministic",
    "Dispersion",
    "Diurnal",
    "EmpiricalPairs",
    "EmpiricalTokens",
    "Events",
    "FixedTokens",
    "Gamma",
    "GeometricTokens",
    "Lengths",
    "Load",
    "Log",
    "LognormalTokens",
    "Measured",
    "Mix",
    "OnOff",
    "PiecewiseConstant",
    "Planned",
    "Poisson",
    "PromptIds",
    "Prompts",
    "Renewal",
    "Replay",
    "Segment",
    "Sent",
    "Share",
    "SharedPrefix",
    "Sharing",
    "Streams",
    "Tenants",
    "Tokens",
    "Trace",
    "Turns",
    "UniformTokens",
    "Unshared",
    "Weibull",
    "Windowed",
    "Workload",
    "block_keys",
    "closed_loop",
    "closed_loop_async",
    "describe",
    "dispersion",
    "find_trace",
    "load_trace",
    "open_loop",
    "open_loop_async",
    "read_columns",
    "read_plan",
    "read_trace",
    "shared_blocks",
    "synthetic",
    "trace_folders",
    "write_plan",
]
