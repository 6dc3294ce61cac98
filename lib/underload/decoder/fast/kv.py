"""The fast path's cache: the house layout, with head_dim rounded up to whole vectors."""

import numpy as np
import torch
from torch import Tensor

from underload.decoder.fast.tile import LANES
from underload.request import BlockTable, UnderloadError
from underload.shapes import ModelShape


class FastKV:
    """Keys and values as float32 [layers, blocks, block_size, kv_heads, wide head_dim], read in place by block table.

    Memory that was never written may hold anything: no step reads a token beyond its sequence's context.
    """

    def __init__(self, shape: ModelShape, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise UnderloadError(
                f"a cache needs at least one block of one token, got {num_blocks} blocks of {block_size}"
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._head_dim = shape.head_dim
        wide = -(-shape.head_dim // LANES) * LANES
        size = (shape.num_layers, num_blocks, block_size, shape.num_kv_heads, wide)
        self.keys = np.zeros(size, dtype=np.float32)
        self.values = np.zeros(size, dtype=np.float32)

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def read(self, table: BlockTable, length: int) -> tuple[Tensor, Tensor]:
        """A copy of a sequence's first `length` keys and values: two of [layers, length, kv_heads, head_dim]."""
        keys, values = (
            pool[:, table.blocks].reshape(len(pool), -1, *pool.shape[3:])[:, :length, :, : self._head_dim]
            for pool in (self.keys, self.values)
        )
        return torch.from_numpy(keys.copy()), torch.from_numpy(values.copy())

    def copy_block(self, source: int, destination: int) -> None:
        """Make block `destination` equal to block `source`, in every layer."""
        for pool in (self.keys, self.values):
            pool[:, destination] = pool[:, source]
