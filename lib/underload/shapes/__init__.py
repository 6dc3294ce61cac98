"""The shape of a model, and what a step of it must cost before any weight is loaded.

    ModelShape   the sizes that fix a decoder: layers, heads, widths, vocabulary
    step_cost    bytes and FLOPs of one step over a ragged batch
    Device       bandwidth, FLOP/s and memory of an accelerator, with the source of the figures
    roofline     the least time a step can take on a device, and which of the two binds
    StepLine     the line o + Bt that measured step times follow, its throughput and its knee

Torch-free: a capacity plan or a figure needs no model in memory.
"""

from underload.shapes.cost import StepCost, decode_cost, prefill_cost, sized_cost, step_cost
from underload.shapes.device import DEVICES, Device, device
from underload.shapes.line import StepLine, fit_step_time
from underload.shapes.model import ModelShape, RopeScaling
from underload.shapes.named import SHAPES, UnknownShape, shape
from underload.shapes.roofline import Roofline, critical_batch, critical_batch_with_kv, roofline, sequences_that_fit

__all__ = [
    "DEVICES",
    "SHAPES",
    "Device",
    "ModelShape",
    "Roofline",
    "RopeScaling",
    "StepCost",
    "StepLine",
    "UnknownShape",
    "critical_batch",
    "critical_batch_with_kv",
    "decode_cost",
    "device",
    "fit_step_time",
    "prefill_cost",
    "roofline",
    "sequences_that_fit",
    "shape",
    "sized_cost",
    "step_cost",
]
