"""Who runs next, how many tokens each, and on which blocks: one plan a step.

    Plan, Work     what an executor is to do, as data
    Idle           nothing to do, and until when
    StepResult     what came of it: sampled tokens, and how long it took
    Scheduler      requests in, plans out

    plan = scheduler.schedule(now)                 may take, evict and preempt; touches no tensor
    result = executor.execute(plan)                the only part that differs between serving and simulating
    scheduler.commit(plan, result, now)            counters advance and tokens are appended here and nowhere else
    scheduler.abort(plan, error, now)              or, when execute failed: as if the plan had not been

There is no prefill phase and no decode phase. A sequence has tokens, and `num_computed` of them are in the cache; a
plan lets some sequences catch up, under one budget of tokens a step. A long prompt catches up in several steps (chunked
prefill: Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI 2024), and
sequences join and leave between any two (iteration-level scheduling: Yu et al., "Orca", OSDI 2022).
"""

from underload.scheduling.plan import Idle, Plan, Sampled, StepResult, Work
from underload.scheduling.scheduler import Scheduler

__all__ = ["Idle", "Plan", "Sampled", "Scheduler", "StepResult", "Work"]
