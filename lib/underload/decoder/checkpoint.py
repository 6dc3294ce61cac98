"""What every source of a model offers: its shape and size at once, its weights and its tokenizer when asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch

from underload.decoder.weights import Weights

if TYPE_CHECKING:
    from underload.decoder.tokenizer import Tokenizer
    from underload.shapes import ModelShape


class Checkpoint(ABC):
    """A model that could be loaded. Making one reads headers only; no weight is in memory before `weights()`.

    Attributes:
        name: what it was asked for by.
        shape: its sizes.
        stored_as: how the weights lie on disk: "float32", "bfloat16", "Q4_1", …, or "random" where none do.
        stored_bytes: what they take there; 0 where nothing is stored.
        place: the folder or file, for a person to find it; empty where there is none.
    """

    name: str
    shape: ModelShape
    stored_as: str = "random"
    stored_bytes: int = 0
    place: str = ""

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type to compute in where there is a choice: the stored one; for what is quantised or
        random bfloat16, whose range no activation leaves."""
        stored = {"float32": torch.float32, "float16": torch.float16, "F32": torch.float32, "F16": torch.float16}
        return stored.get(self.stored_as, torch.bfloat16)

    @abstractmethod
    def weights(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Weights:
        """The weights, read now, each tensor checked. On device "meta" nothing is read or allocated.

        Raises:
            CheckpointError: see `Weights.from_tensors`.
        """

    @abstractmethod
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer, read now; None where the source has none (a shape, or bare weights).

        Raises:
            CheckpointError: there is one, and it is damaged or of an unsupported kind.
        """


class RandomCheckpoint(Checkpoint):
    """The true shape of a known model with seeded random weights: for timing and memory, no download."""

    def __init__(self, shape: ModelShape, seed: int = 0) -> None:
        self.name = f"shape:{shape.name}"
        self.shape = shape
        self.seed = seed

    def weights(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Weights:
        return Weights.random(self.shape, self.seed, dtype, device)

    def tokenizer(self) -> None:
        return None
