"""The one loop: ask the scheduler, run the plan, commit what came of it.

    Engine      requests in, tokens out, a record of every step
    Executor    what runs a plan: the real decoder (`decoder.DecoderExecutor`), or a model of its cost
                (`simulation.CostModelExecutor`) on a virtual clock
    serve       sends the requests of a plan when they are due, a conversation's next turn after its answer
    generate    offline: many prompts in, their requests back in order
    OnlineEngine, Stream    a thread for the loop, and each answer as a stream, for threads and event loops
    chrome_trace            a run for the eye: steps, counters and requests, as Perfetto draws them

Serving and simulating are this loop, object for object. Only the executor and the clock differ.
"""

from underload.engine.chrome import chrome_trace, write_chrome_trace
from underload.engine.engine import Engine
from underload.engine.executor import AheadExecutor, Executor
from underload.engine.generate import generate
from underload.engine.load import request_of, serve
from underload.engine.online import EngineStopped, OnlineEngine, RequestFailed, Stream, Token

__all__ = [
    "AheadExecutor",
    "Engine",
    "EngineStopped",
    "Executor",
    "OnlineEngine",
    "RequestFailed",
    "Stream",
    "Token",
    "chrome_trace",
    "generate",
    "request_of",
    "serve",
    "write_chrome_trace",
]
