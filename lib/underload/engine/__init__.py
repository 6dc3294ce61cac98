"""The one loop: ask the scheduler, run the plan, commit what came of it.

    Engine      requests in, tokens out, a record of every step
    Executor    what runs a plan: the real decoder (`decoder.DecoderExecutor`), or a model of its cost
                (`simulation.CostModelExecutor`) on a virtual clock
    serve       sends the requests of a plan when they are due, a conversation's next turn after its answer

Serving and simulating are this loop, object for object. Only the executor and the clock differ.
"""

from underload.engine.engine import Engine
from underload.engine.executor import Executor
from underload.engine.load import serve

__all__ = ["Engine", "Executor", "serve"]
