"""Where keys and values lie.

Storage is blocks of `block_size` tokens, and a sequence's block table says which blocks are its own. The contiguous,
reserving cache of the first serving systems is the special case of one block a sequence, as long as the longest text
that it may become: `reserve` gives a sequence such a block. It is simple, and wastes what the text does not grow into.
"""

from typing import Protocol

import torch
from torch import Tensor

from underload.request import BlockTable, UnderloadError
from underload.shapes import ModelShape


class KVStorage(Protocol):
    """Keys and values of every layer, in blocks. The layout inside is known to the path that computes with it."""

    num_blocks: int
    block_size: int

    @property
    def nbytes(self) -> int:
        """Memory of the whole pool, in bytes."""
        ...

    def read(self, table: BlockTable, length: int) -> tuple[Tensor, Tensor]:
        """A copy of a sequence's first `length` keys and values: two of [layers, length, kv_heads, head_dim]."""
        ...

    def copy_block(self, source: int, destination: int) -> None:
        """Make block `destination` equal to block `source`, in every layer."""
        ...


class PlainKV:
    """One tensor a layer for keys and one for values, each [blocks, block_size, kv_heads, head_dim]."""

    def __init__(
        self, shape: ModelShape, num_blocks: int, block_size: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        if num_blocks < 1 or block_size < 1:
            raise UnderloadError(
                f"a cache needs at least one block of one token, got {num_blocks} blocks of {block_size}"
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        size = (num_blocks, block_size, shape.num_kv_heads, shape.head_dim)
        self.keys = [torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.num_layers)]
        self.values = [torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.num_layers)]

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.keys + self.values)

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put new keys and values, [tokens, kv_heads, head_dim] each, into their slots [tokens]."""
        self.keys[layer].flatten(0, 1)[slots] = keys
        self.values[layer].flatten(0, 1)[slots] = values

    def read(self, table: BlockTable, length: int) -> tuple[Tensor, Tensor]:
        blocks = torch.tensor(table.blocks, device=self.keys[0].device)
        keys = torch.stack([layer[blocks].flatten(0, 1)[:length] for layer in self.keys])
        values = torch.stack([layer[blocks].flatten(0, 1)[:length] for layer in self.values])
        return keys, values

    def copy_block(self, source: int, destination: int) -> None:
        for layer in self.keys + self.values:
            layer[destination] = layer[source]


class ReservedRows:
    """Hands out the blocks of a contiguous cache, one whole row a sequence: the baseline that paging is held to."""

    def __init__(self, num_rows: int, row_tokens: int) -> None:
        self.row_tokens = row_tokens
        self._free = list(range(num_rows - 1, -1, -1))

    def reserve(self) -> BlockTable:
        """A row of its own for a sequence.

        Raises:
            UnderloadError: all rows are taken.
        """
        if not self._free:
            raise UnderloadError(
                "every reserved row of the cache is taken; release one first, or make the cache with more rows"
            )
        return BlockTable(self.row_tokens, [self._free.pop()])

    def release(self, table: BlockTable) -> None:
        """Give the row back; `table` is empty afterwards."""
        self._free += table.blocks
        table.blocks.clear()
