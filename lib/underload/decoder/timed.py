"""Steps that are computed and timed: a replica of the simulator whose work is real.

TimedSteps   how long a plan takes, by doing it on the model
"""

from __future__ import annotations

import time
from collections.abc import Callable

from underload.decoder.executor import DecoderExecutor
from underload.decoder.model import Model
from underload.scheduling import Plan


class TimedSteps:
    """The time of a plan, found by computing it (a `step_time` for `simulation.EngineReplica`).

        replica = EngineReplica(TimedSteps(model, 500), lambda: Scheduler(BlockPool(500, 16)), vocabulary=1024)

    Front door, queues and clocks are then the simulator's, and every step is one of the decoder's. Each replica needs
    one of its own, for it holds the cache. Replicas take turns on this machine, so what one of them computes slows no
    other: they are machines that share nothing. Tokens are the simulator's, and its vocabulary must be the model's;
    what the model would have said is drawn, and thrown away.

    Args:
        num_blocks, block_size: of the pool that the replica's scheduler plans with.
        timer: s on some clock. By default the processor's, of this process alone: what other programs do meanwhile is
            not counted, and neither is any waiting.

    Raises:
        UnderloadError: a model without weights, or a cache without blocks.
    """

    def __init__(
        self, model: Model, num_blocks: int, block_size: int = 16, *, timer: Callable[[], float] = time.process_time
    ) -> None:
        self.executor = DecoderExecutor(model, num_blocks, block_size)
        self.timer = timer

    def __call__(self, plan: Plan) -> float:
        """Compute the plan; s that it took."""
        before = self.timer()
        self.executor.execute(plan)
        return self.timer() - before
