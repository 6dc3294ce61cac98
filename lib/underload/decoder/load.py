"""One call from the name of a model to a model that runs."""

from __future__ import annotations

import os

import torch

from underload.decoder.model import Model, choose_device, choose_dtype
from underload.decoder.plain import Attention
from underload.decoder.sources import open_checkpoint
from underload.request import UnderloadError


def load_model(
    source: str | os.PathLike[str],
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    path: str = "auto",
    batch_invariant: bool = False,
    attention: Attention = "auto",
    seed: int = 0,
    threads: int | None = None,
) -> Model:
    """A model, loaded and ready.

    Args:
        source: "pocket", "pocket-draft", "smollm2-135m", "shape:NAME" (random weights), a Hugging Face folder, a
            .gguf file, or a hub id such as "owner/name".
        device: "auto" is CUDA where there is one, else the CPU; "meta" allocates nothing and cannot run.
        dtype: "auto" is float32 on a CPU and the checkpoint's own on a GPU.
        path: "plain" (torch), "fast" (numba, CPU), or "auto".
        batch_invariant: one order of summation whoever the neighbours are; see `Model`.
        attention: "torch", "cpu", "triton", "auto", or a function in its place; see `Model`.
        seed: of a shape's random weights.
        threads: of the fast path; None takes the machine's cores.

    Raises:
        UnderloadError: no such model, one that is damaged or unsupported, one that does not fit into memory, or a
            device, dtype or path that is not to be had here. The message says what to do.
    """
    checkpoint = open_checkpoint(source, seed=seed)
    place = choose_device(device)
    kind = choose_dtype(dtype, place, checkpoint.dtype)
    check_memory(checkpoint.name, checkpoint.shape.weight_bytes(kind.itemsize), place)
    tokenizer = checkpoint.tokenizer()
    weights = checkpoint.weights(kind, place)
    return Model(
        checkpoint.shape,
        weights,
        tokenizer,
        path=path,
        batch_invariant=batch_invariant,
        attention=attention,
        threads=threads,
    )


def check_memory(name: str, needed: float, device: torch.device) -> None:
    """Refuses weights that cannot fit, before they are read: running out half-way takes the process with it.

    Raises:
        UnderloadError: the device has less memory free than the weights take.
    """
    free = free_memory(device)
    if free is not None and needed > free:
        raise UnderloadError(
            f"the weights of {name} take {needed / 1e9:.1f} GB, and {device.type} has {free / 1e9:.1f} GB free; take a"
            " smaller model, or a smaller dtype (dtype='bfloat16'), or size it up without loading: underload model"
            f" info {name}"
        )


def free_memory(device: torch.device) -> float | None:
    """Bytes that could still be allocated on a device, None where nobody says."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next(float(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        pass
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return None
