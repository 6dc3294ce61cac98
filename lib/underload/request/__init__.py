"""The vocabulary: what a request asks, what it has become, and what was recorded on the way.

Plain data and protocols, no torch and no clock of its own. Everything else in the library speaks in
these nouns:

    Request         what a client asked: prompt ids, sampling parameters, how many samples
    Sequence        one sample of a request as it grows: tokens, progress counters, block table
    BlockTable      which cache blocks hold a sequence's keys and values
    SamplingParams  how the next token is chosen, and when to stop
    Timeline        one record a request: every instant that a latency is made of
    StepRecord      one record a step: what was computed, for how many, how long
    StepSize        what a step's time depends on: names that a plan and a record share
    Clock           where time comes from: the wall, this process's share of a processor, or a simulation
"""

from underload.request.clock import Clock, ProcessorClock, VirtualClock, WallClock
from underload.request.errors import InvalidRequest, OutOfBlocks, UnderloadError
from underload.request.params import SamplingParams
from underload.request.records import StepRecord, StepSize, Timeline
from underload.request.sequence import MAX_ID, BlockTable, FinishReason, Request, Sequence, SequenceState

__all__ = [
    "MAX_ID",
    "BlockTable",
    "Clock",
    "FinishReason",
    "InvalidRequest",
    "OutOfBlocks",
    "ProcessorClock",
    "Request",
    "SamplingParams",
    "Sequence",
    "SequenceState",
    "StepRecord",
    "StepSize",
    "Timeline",
    "UnderloadError",
    "VirtualClock",
    "WallClock",
]
