"""Who runs next, how many tokens each, and on which blocks: one plan a step.

    Plan, Work     what an executor is to do, as data
    Idle           nothing to do, and until when
    StepResult     what came of it: sampled tokens, and how long it took
    Scheduler      requests in, plans out, and the books of who holds what
    Step           what a batching policy may see and do

and the policies that decide, small objects of one question each:

    Batching       who computes how many tokens: Continuous, Static, SizeOrTimeout, Greedy
    Order          who is first: FirstCome, ShortestFirst, Priority, Deadline, FairShare
    Admission      whether the first may begin: FitsNow, ReserveAll, Watermark, PredictedPeak
    Victim         who is put back when blocks run out: LastArrived, LeastComputed, Cheapest
    Shedding       who is turned away
    LengthPredictor  what a policy may believe of an answer's length: MaxTokens, Oracle, Noisy

    plan = scheduler.schedule(now)                 may take, evict and preempt; touches no tensor
    result = executor.execute(plan)                the only part that differs between serving and simulating
    scheduler.commit(plan, result, now)            counters advance and tokens are appended here and nowhere else
    scheduler.abort(plan, error, now)              or, when execute failed: as if the plan had not been

There is no prefill phase and no decode phase. A sequence has tokens, and `num_computed` of them are in the cache; a
plan lets some sequences catch up, under one budget of tokens a step. A long prompt catches up in several steps (chunked
prefill: Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI 2024), and
sequences join and leave between any two (iteration-level scheduling: Yu et al., "Orca", OSDI 2022).
"""

from underload.scheduling.admission import Admission, FitsNow, PredictedPeak, ReserveAll, Watermark
from underload.scheduling.batching import Batching, Continuous, Greedy, SizeOrTimeout, Static
from underload.scheduling.order import Deadline, FairShare, FirstCome, Order, Priority, ShortestFirst
from underload.scheduling.plan import Idle, Plan, Sampled, StepResult, Work
from underload.scheduling.predictor import LengthPredictor, MaxTokens, Noisy, Oracle
from underload.scheduling.scheduler import Scheduler
from underload.scheduling.shedding import Shedding
from underload.scheduling.step import Step
from underload.scheduling.victim import Cheapest, LastArrived, LeastComputed, Victim

__all__ = [
    "Admission",
    "Batching",
    "Cheapest",
    "Continuous",
    "Deadline",
    "FairShare",
    "FirstCome",
    "FitsNow",
    "Greedy",
    "Idle",
    "LastArrived",
    "LeastComputed",
    "LengthPredictor",
    "MaxTokens",
    "Noisy",
    "Oracle",
    "Order",
    "Plan",
    "PredictedPeak",
    "Priority",
    "ReserveAll",
    "Sampled",
    "Scheduler",
    "Shedding",
    "ShortestFirst",
    "SizeOrTimeout",
    "Static",
    "Step",
    "StepResult",
    "Victim",
    "Watermark",
    "Work",
]
