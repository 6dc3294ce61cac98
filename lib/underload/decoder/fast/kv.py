"""The fast path's cache: the house layout, with head_dim rounded up to whole vectors."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from underload.decoder.fast.pack import BITS, wide
from underload.decoder.kv import HostKV, Pairs, check_host, check_pairs, check_size
from underload.request import BlockTable, UnderloadError
from underload.shapes import ModelShape


class FastKV:
    """Keys and values [layers, blocks, block_size, kv_heads, wide head_dim], read in place by block table.

    Memory that was never written may hold anything: no step reads a token beyond its sequence's context.

    Args:
        dtype: what a number is stored in. The arrays hold float32, or a 16-bit number's bits as the weights do
            (float16 as int16, bfloat16 as uint16).
    """

    def __init__(
        self, shape: ModelShape, num_blocks: int, block_size: int, *, dtype: torch.dtype = torch.float32
    ) -> None:
        check_size(num_blocks, block_size)
        if dtype not in BITS:
            kinds = ", ".join(str(kind).removeprefix("torch.") for kind in BITS)
            raise UnderloadError(f"the fast path's cache stores {kinds}, not {str(dtype).removeprefix('torch.')}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.dtype = dtype
        self._head_dim = shape.head_dim
        size = (2, shape.num_layers, num_blocks, block_size, shape.num_kv_heads, wide(shape.head_dim))
        self._pool = np.zeros(size, dtype=torch.empty(0, dtype=BITS[dtype]).numpy().dtype)
        self.keys, self.values = self._pool

    @property
    def nbytes(self) -> int:
        return self._pool.nbytes

    def read(self, table: BlockTable, length: int) -> tuple[Tensor, Tensor]:
        blocks = self._pool[:, :, table.blocks[: -(-length // self.block_size)]]
        tokens = blocks.reshape(*blocks.shape[:2], -1, *blocks.shape[4:])[:, :, :length, :, : self._head_dim]
        keys, values = torch.from_numpy(tokens.copy()).view(self.dtype)
        return keys, values

    # One block after the other: on a CPU a gather and a scatter of all at once takes as long, and needs a copy besides.

    def copy_blocks(self, pairs: Pairs) -> None:
        check_pairs(pairs, self.num_blocks, self.num_blocks)
        for source, destination in pairs:
            self._pool[:, :, destination] = self._pool[:, :, source]

    def new_host(self, num_blocks: int) -> HostKV:
        return HostKV(np.empty((num_blocks, *self._block_shape), dtype=self._pool.dtype))

    def swap_out(self, pairs: Pairs, host: HostKV) -> None:
        check_host(host, np.ndarray, self._block_shape, self._pool.dtype)
        check_pairs(pairs, self.num_blocks, host.num_blocks)
        for here, there in pairs:
            host.data[there] = self._pool[:, :, here]

    def swap_in(self, pairs: Pairs, host: HostKV) -> None:
        check_host(host, np.ndarray, self._block_shape, self._pool.dtype)
        check_pairs(pairs, host.num_blocks, self.num_blocks)
        for there, here in pairs:
            self._pool[:, :, here] = host.data[there]

    @property
    def _block_shape(self) -> tuple[Any, ...]:
        kinds, layers, _, *block = self._pool.shape
        return (kinds, layers, *block)
