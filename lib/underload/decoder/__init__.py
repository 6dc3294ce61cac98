"""The real decoder: a Llama-family model, its cache, and the loop that makes text with it.

    load_model       a checkpoint (or a shape with random weights) becomes a Model
    Model            computes one Batch: tokens of many sequences, prefill and decode mixed
    generate         the naive loop; everything cleverer must say the same words
    DecoderExecutor  runs a scheduler's plans, for the engine
    TimedSteps       how long a plan takes, by computing it: a replica of the simulator whose work is real
    decoder_engine   pool, scheduler and executor for a model, by a memory budget: ready to serve
    measure          what a step takes here, and what the machine could do at best
    memory           how many cache blocks fit

Reading order: batch, plain (the forward pass), attention, kv, rope, weights; then sampling, detokenize, continuation,
drawing, generate, executor, engine, timed; on a GPU, attention_triton, fused, graph.
Importing this package needs torch, numpy and safetensors; numba, gguf, tokenizers and others load on first use.
"""

from underload.decoder.batch import Batch
from underload.decoder.engine import decoder_engine
from underload.decoder.executor import DecoderExecutor
from underload.decoder.generate import Completion, Run, generate
from underload.decoder.kv import HostKV, KVStorage
from underload.decoder.load import load_model
from underload.decoder.measure import Ceilings, ceilings, decode_steps, machine, prefill_steps, step_record
from underload.decoder.memory import blocks_for_memory
from underload.decoder.model import Model
from underload.decoder.timed import TimedSteps
from underload.decoder.weights import CheckpointError, LayerWeights, LinearWeights, Weights

__all__ = [
    "Batch",
    "Ceilings",
    "CheckpointError",
    "Completion",
    "DecoderExecutor",
    "HostKV",
    "KVStorage",
    "LayerWeights",
    "LinearWeights",
    "Model",
    "Run",
    "TimedSteps",
    "Weights",
    "blocks_for_memory",
    "ceilings",
    "decode_steps",
    "decoder_engine",
    "generate",
    "load_model",
    "machine",
    "prefill_steps",
    "step_record",
]
