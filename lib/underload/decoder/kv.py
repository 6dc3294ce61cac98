"""Where keys and values lie.

Storage is blocks of `block_size` tokens, and a sequence's block table says which blocks are its own. The contiguous,
reserving cache of the first serving systems is the special case of one block a sequence, as long as the longest text
that it may become. Storage gives out nothing: which block is whose is decided by the pool in `underload.cache`, which
touches no tensor. The ids in the block tables are all that the two share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from underload.request import BlockTable, UnderloadError
from underload.shapes import ModelShape

Pairs = Sequence[tuple[int, int]]  # (source block, destination block), in the order in which they are owed
_STAGED = (
    32  # blocks that cross the bus together: what is gathered for it takes memory on a device that has none to spare
)


class KVStorage(Protocol):
    """Keys and values of every layer, in blocks. The layout inside is known to the path that computes with it.

    A block's content is undefined until a forward pass, a copy or a swap has written it. Every call takes effect after
    all earlier calls and forward passes on the same storage, and before all later ones: a block may be named as the
    destination of a copy as soon as the call that reads it has returned. (On a GPU the order is the stream's, and the
    calls return before the bytes have moved.)
    """

    num_blocks: int
    block_size: int
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Memory of the whole pool, in bytes."""
        ...

    def read(self, table: BlockTable, length: int) -> tuple[Tensor, Tensor]:
        """A sequence's first `length` keys and values: two of [layers, length, kv_heads, head_dim] in the storage's
        dtype. Copies, the caller's to keep; nothing is changed."""
        ...

    def copy_blocks(self, pairs: Pairs) -> None:
        """Make each destination block equal to its source, in every layer, one pair after the other: a source that is
        an earlier pair's destination is read as that pair left it. Changes the destinations only.

        Raises:
            UnderloadError: an id outside the storage; nothing was copied then.
        """
        ...

    def new_host(self, num_blocks: int) -> HostKV:
        """Room for `num_blocks` swapped blocks in the host's memory (page-locked where the storage is on a GPU)."""
        ...

    def swap_out(self, pairs: Pairs, host: HostKV) -> None:
        """Copy blocks of this storage to blocks of `host`: pairs of (block here, block there). Changes `host` only.

        The blocks here may be given to others at once, since whatever writes them comes after.

        Raises:
            UnderloadError: an id outside either of the two, or a host storage of another layout; nothing was copied.
        """
        ...

    def swap_in(self, pairs: Pairs, host: HostKV) -> None:
        """Copy blocks of `host` into blocks of this storage: pairs of (block there, block here). Changes this storage
        only. Raises as `swap_out` does.
        """
        ...


@dataclass(frozen=True)
class HostKV:
    """Swapped blocks. Each is one stretch of memory, so that it crosses the bus in one piece.

    Args:
        data: [blocks, 2 (keys, values), layers, block_size, kv_heads, head_dim], a tensor or array of the storage that
            made it. On a GPU machine, synchronise before reading it.
    """

    data: Any

    @property
    def num_blocks(self) -> int:
        return len(self.data)

    @property
    def nbytes(self) -> int:
        """Memory of all its blocks, in bytes."""
        return int(self.data.nbytes)


class PlainKV:
    """Keys and values, each [layers, blocks, block_size, kv_heads, head_dim]."""

    def __init__(
        self, shape: ModelShape, num_blocks: int, block_size: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        check_size(num_blocks, block_size)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.dtype = dtype
        size = (2, shape.num_layers, num_blocks, block_size, shape.num_kv_heads, shape.head_dim)
        self._pool = torch.zeros(size, dtype=dtype, device=device)
        self.keys, self.values = self._pool

    @property
    def nbytes(self) -> int:
        return self._pool.nbytes

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put new keys and values, [tokens, kv_heads, head_dim] each, into their slots [tokens]."""
        self.keys[layer].flatten(0, 1)[slots] = keys.to(self.dtype)
        self.values[layer].flatten(0, 1)[slots] = values.to(self.dtype)

    def read(self, table: BlockTable, length: int) -> tuple[Tensor, Tensor]:
        blocks = self._ids(table.blocks[: -(-length // self.block_size)])
        keys, values = self._pool.index_select(2, blocks).flatten(2, 3)[:, :, :length]
        return keys, values

    def copy_blocks(self, pairs: Pairs) -> None:
        check_pairs(pairs, self.num_blocks, self.num_blocks)
        for sources, destinations in _independent(pairs):
            self._pool.index_copy_(2, self._ids(destinations), self._pool.index_select(2, self._ids(sources)))

    def new_host(self, num_blocks: int) -> HostKV:
        kinds, layers, _, *block = self._pool.shape
        on_gpu = self._pool.device.type == "cuda"
        return HostKV(torch.empty((num_blocks, kinds, layers, *block), dtype=self.dtype, pin_memory=on_gpu))

    def swap_out(self, pairs: Pairs, host: HostKV) -> None:
        self._check_host(host)
        check_pairs(pairs, self.num_blocks, host.num_blocks)
        for some in _stretches(pairs):
            # Gathered first: on the stream, that is before whatever later writes the blocks.
            gathered = self._pool.index_select(2, self._ids([here for here, _ in some])).movedim(2, 0).contiguous()
            for block, (_, there) in zip(gathered, some, strict=True):
                host.data[there].copy_(block, non_blocking=True)

    def swap_in(self, pairs: Pairs, host: HostKV) -> None:
        self._check_host(host)
        check_pairs(pairs, host.num_blocks, self.num_blocks)
        latest = list({here: there for there, here in pairs}.items())  # a block filled twice keeps the later content
        for some in _stretches(latest):
            arrived = torch.empty((len(some), *host.data.shape[1:]), dtype=self.dtype, device=self._pool.device)
            for block, (_, there) in zip(arrived, some, strict=True):
                block.copy_(host.data[there], non_blocking=True)
            self._pool.index_copy_(2, self._ids([here for here, _ in some]), arrived.movedim(0, 2))

    def _ids(self, blocks: list[int]) -> Tensor:
        return torch.tensor(blocks, dtype=torch.int64, device=self._pool.device)

    def _check_host(self, host: HostKV) -> None:
        kinds, layers, _, *block = self._pool.shape
        check_host(host, torch.Tensor, (kinds, layers, *block), self.dtype)


def check_size(num_blocks: int, block_size: int) -> None:
    """Refuses a cache without room.

    Raises:
        UnderloadError: fewer than one block, or blocks of less than one token.
    """
    if num_blocks < 1 or block_size < 1:
        raise UnderloadError(f"a cache needs at least one block of one token, got {num_blocks} blocks of {block_size}")


def check_pairs(pairs: Pairs, sources: int, destinations: int) -> None:
    """Refuses ids that are no block's, before anything is copied: a negative one would silently mean another block.

    Raises:
        UnderloadError: a source outside [0, sources), or a destination outside [0, destinations).
    """
    for source, destination in pairs:
        if not 0 <= source < sources or not 0 <= destination < destinations:
            raise UnderloadError(
                f"cannot copy block {source} to block {destination}: sources are 0 to {sources - 1}, destinations 0 to "
                f"{destinations - 1}; take the ids from the pools of these two storages"
            )


def check_host(host: HostKV, kind: type, block: tuple[int, ...], dtype: Any) -> None:
    """Refuses swapped blocks of another storage's layout.

    Raises:
        UnderloadError: the array's kind, the shape of one block, or the dtype differ.
    """
    data = host.data
    if (type(data), tuple(data.shape[1:]), data.dtype) != (kind, block, dtype):
        raise UnderloadError(
            f"host blocks of {tuple(data.shape[1:])} ({data.dtype}) do not fit this cache, whose blocks are {block} "
            f"({dtype}); make them with its new_host"
        )


def _stretches(pairs: Pairs) -> Iterator[Pairs]:
    for start in range(0, len(pairs), _STAGED):
        yield pairs[start : start + _STAGED]


def _independent(pairs: Pairs) -> Iterator[tuple[list[int], list[int]]]:
    """Stretches of `pairs` that may be gathered, then scattered, all at once: no pair in them reads or writes what an
    earlier one of the stretch wrote."""
    sources: list[int] = []
    destinations: list[int] = []
    written: set[int] = set()
    for source, destination in pairs:
        if source in written or destination in written:
            yield sources, destinations
            sources, destinations, written = [], [], set()
        sources.append(source)
        destinations.append(destination)
        written.add(destination)
    if sources:
        yield sources, destinations
