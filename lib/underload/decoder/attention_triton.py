"""Paged attention on a GPU: the plan of a step, made once, and the kernels launched by it, once a layer.

    AttentionPlan     a ragged batch cut into tiles of queries, and its contexts into splits
    attend            one layer's attention by that plan
    rotate_write      rotary positions, and new keys and values into their blocks, in one pass

A tile is a few queries of one sequence times the query heads that share a KV head: their keys and values are read once
for all of them, block by block where they lie. Decoding has one query a sequence, so that a long context alone would
leave most of the GPU idle; it is cut into splits, computed side by side and put together by a second kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from underload.decoder.optional import MissingPackage, require
from underload.request import UnderloadError

_LOG2_E = 1.4426950408889634
_NARROW, _WIDE = 16, 128  # rows of a tile: the fewest that matrix units take, and what many queries fill
_SHORTEST_SPLIT = 256  # tokens; a shorter one takes longer to put together than it saves
_TILE_SPLITS = 16  # splits put together at once
_PROCESSORS = 132  # an H100's or H200's, where there is none to ask
#: Tokens of a split under batch invariance: where a context is cut must not depend on who else is in the batch.
INVARIANT_SPLIT = 512
_INVARIANT_ROWS = 64  # and neither must the tile be another for decoding than for a chunk
MOST_SPLITS = 64  #: of a context, in a captured step, which launches all of them
_MOST_PARTIAL = 2**26  # float32 numbers of partial results at a time (256 MiB)


def _kernels() -> ModuleType:
    require("triton", "attention on a GPU by Triton kernels")
    from underload.decoder import kernels

    return kernels


def unsupported(device: torch.device) -> str | None:
    """Why the kernels cannot run on a device, or None if they can."""
    try:
        kernels = _kernels()
    except MissingPackage as error:
        return str(error)
    if device.type == "cpu" and not kernels.INTERPRETED:
        return "on a CPU, Triton runs only in its interpreter; set TRITON_INTERPRET=1 before Python starts"
    if device.type not in ("cpu", "cuda"):
        return f"Triton kernels run on CUDA, not on {device.type}"
    return None


def unavailable(q: Tensor, keys: Tensor, values: Tensor) -> str | None:
    """Why the kernels cannot take these tensors here, or None if they can."""
    for name, tensor in (("q", q), ("keys", keys), ("values", values)):
        if tensor.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            return f"{name} is {tensor.dtype}; the kernels take float32, float16 and bfloat16"
        if tensor.device != q.device:
            return f"{name} is on {tensor.device}, q on {q.device}"
    return unsupported(q.device)


@dataclass(frozen=True)
class _Launch:
    """Tiles of one size, computed by one launch.

    Args:
        tiles: [tiles, 3] int32: sequence, first query within it, first row of partial results.
        queries: [rows, 2] int32: a row's token in q, and the keys it sees. No rows: contexts are not split, and the
            tiles' results are final.
        split: [1] int32: the tokens of a split.
    """

    tiles: Tensor
    queries: Tensor
    split: Tensor
    tile_tokens: int
    tile_rows: int
    num_splits: int


@dataclass(frozen=True)
class AttentionPlan:
    """How a ragged batch is cut up: made once a step on the host, sent to the device in one piece, used by all layers.

    Sequences whose new tokens, times the heads of a group, fit into 16 rows (decoding, drafts to be verified) go into
    narrow tiles, all others (chunks of prompts) into wide ones; each kind is one launch.
    """

    block_tables: Tensor  # [sequences, most blocks] int32
    sequences: Tensor  # [sequences, 3] int32: first row in q, new tokens, tokens in the cache
    launches: tuple[_Launch, ...]
    group: int

    @classmethod
    def of(
        cls,
        query_lens: Sequence[int] | np.ndarray,
        context_lens: Sequence[int] | np.ndarray,
        block_tables: Tensor,
        *,
        heads: int,
        kv_heads: int,
        split_tokens: int | None = None,
        invariant: bool = False,
    ) -> AttentionPlan:
        """The plan of one step.

        Args:
            query_lens, context_lens: a sequence's new tokens, and its tokens in the cache including these.
            block_tables: [sequences, most blocks] integer on the device of the queries, padded with anything.
            split_tokens: tokens of a split; a context is cut at its multiples. None: no more splits than keep every
                multiprocessor of the device busy.
            invariant: one kind of tile for all, and splits of `INVARIANT_SPLIT` tokens unless given: a query's result
                is bitwise the same whoever its neighbours are and however its prompt is cut into chunks.

        Raises:
            UnderloadError: a split of less than one token.
        """
        if split_tokens is not None and split_tokens < 1:
            raise UnderloadError(f"a split needs at least one token, got split_tokens={split_tokens}")
        device = block_tables.device
        new = np.asarray(query_lens, dtype=np.int64)
        context = np.asarray(context_lens, dtype=np.int64)
        starts = np.cumsum(new) - new
        group = heads // kv_heads
        narrow = (new * group <= _NARROW) | (new <= 1)
        kinds = (
            [(_INVARIANT_ROWS, np.ones(len(new), dtype=bool))] if invariant else [(_NARROW, narrow), (_WIDE, ~narrow)]
        )

        cut: list[tuple[np.ndarray, np.ndarray, np.ndarray, int, int, int]] = []
        for rows, members in kinds:
            tile_tokens = max(1, rows // group)
            tiles = _tiles(new, members, tile_tokens)
            if not len(tiles):
                continue
            # Keys that each tile walks over: up to what its last query sees.
            ends = np.minimum(tiles[:, 1] + tile_tokens, new[tiles[:, 0]])
            keys = (context - new)[tiles[:, 0]] + ends
            split = split_tokens or (INVARIANT_SPLIT if invariant else _split(keys, kv_heads, device))
            num_splits = -(-int(keys.max()) // split)
            tile_rows = max(_NARROW, _power_of_two(tile_tokens * group))
            # Under batch invariance a short context takes the long one's way too, so that one kernel computes both.
            partly = invariant or num_splits > 1
            most = max(1, _MOST_PARTIAL // (tile_tokens * heads * num_splits * 128)) if partly else len(tiles)
            for first in range(0, len(tiles), most):
                some, queries = tiles[first : first + most], np.empty((0, 2), dtype=np.int64)
                if partly:
                    some, queries = _rows(some, ends[first : first + most], new, context, starts)
                cut.append((some, queries, np.array([split]), tile_tokens, tile_rows, num_splits))

        # One array, so that one copy takes all of it to the device.
        parts = [np.stack((starts, new, context), axis=1), *(array for some in cut for array in some[:3])]
        flat = np.concatenate([part.ravel() for part in parts]).astype(np.int32)
        whole = torch.from_numpy(flat)
        if device.type == "cuda":
            whole = whole.pin_memory().to(device, non_blocking=True)
        sent = [piece.view(part.shape) for piece, part in zip(whole.split([p.size for p in parts]), parts, strict=True)]
        launches = tuple(
            _Launch(*arrays, *some[3:])
            for arrays, some in zip(zip(sent[1::3], sent[2::3], sent[3::3], strict=True), cut, strict=True)
        )
        return cls(block_tables.to(torch.int32).contiguous(), sent[0], launches, group)

    @classmethod
    def of_decoding(
        cls,
        block_tables: Tensor,
        sequences: Tensor,
        tiles: Tensor,
        queries: Tensor,
        split: Tensor,
        *,
        heads: int,
        kv_heads: int,
        num_splits: int,
        invariant: bool,
    ) -> AttentionPlan:
        """The plan of steps of one query a sequence whose numbers change in place, on the device: only their sizes are
        settled here. In each step no context may be longer than `num_splits` splits.

        Args:
            block_tables, sequences: as the plan's own.
            tiles, queries, split: as a launch's own, a tile and a query for each sequence.
            num_splits: as `decode_splits` has it.
        """
        group = heads // kv_heads
        tile_tokens = max(1, (_INVARIANT_ROWS if invariant else _NARROW) // group)
        tile_rows = max(_NARROW, _power_of_two(tile_tokens * group))
        launch = _Launch(tiles, queries, split, tile_tokens, tile_rows, num_splits)
        return cls(block_tables, sequences, (launch,), group)


def decode_splits(rows: int, kv_heads: int, max_context: int, device: torch.device, *, invariant: bool) -> int:
    """Splits that a captured decode step has room for, whatever its contexts turn out to be: the more the fewer rows
    there are to keep the device busy."""
    if invariant:
        return -(-max_context // INVARIANT_SPLIT)
    return min(
        max(-(-8 * _processors(device) // (rows * kv_heads)), 2), MOST_SPLITS, -(-max_context // _SHORTEST_SPLIT)
    )


def decode_split(
    context_lens: np.ndarray, kv_heads: int, num_splits: int, device: torch.device, *, invariant: bool
) -> int:
    """Tokens of a split in one step of it: as `AttentionPlan.of` would choose, but never more splits than there is room
    for."""
    if invariant:
        return INVARIANT_SPLIT
    least = -(-int(context_lens.max()) // num_splits)
    return max(_split(context_lens, kv_heads, device), -(-least // 64) * 64)


def attend(q: Tensor, keys: Tensor, values: Tensor, plan: AttentionPlan) -> Tensor:
    """One layer's attention by a plan made of the same lengths; arguments and result as `paged_attention`."""
    kernels = _kernels()
    _, heads, head_dim = q.shape
    block_size, kv_heads = keys.shape[1:3]
    dim = max(16, _power_of_two(head_dim))
    # Matrix units take both operands in one dtype; and see kernels.py on the interpreter.
    narrow_type = q.dtype.itemsize == 2 and q.dtype == keys.dtype == values.dtype
    wide = kernels.INTERPRETED or not narrow_type
    # The most keys at a time for which the compiler needs neither spills nor more shared memory than an H100 has.
    tile_keys = (64 if dim <= 128 else 32) if narrow_type else 16
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    with torch.cuda.device_of(q):  # Triton launches on the current device, wherever the tensors are
        for launch in plan.launches:
            split = len(launch.queries) > 0
            cells = len(launch.queries) * heads * launch.num_splits if split else 0
            partial = torch.empty(cells * head_dim, dtype=torch.float32, device=q.device) if split else out
            statistics = torch.empty(cells * 2, dtype=torch.float32, device=q.device) if split else out
            kernels.attend[(len(launch.tiles), kv_heads, launch.num_splits)](
                q,
                keys,
                values,
                out,
                partial,
                statistics,
                plan.block_tables,
                plan.sequences,
                launch.tiles,
                launch.split,
                _LOG2_E / head_dim**0.5,
                *q.stride(),
                *keys.stride(),
                *values.stride(),
                plan.block_tables.stride(0),
                block_size,
                launch.num_splits,
                HEADS=heads,
                GROUP=plan.group,
                HEAD_DIM=head_dim,
                # A block of a pool has one of a few sizes; a reserved row has any, and none is worth a compilation.
                BLOCK_SIZE=block_size if block_size <= 256 and block_size == _power_of_two(block_size) else 0,
                TILE_TOKENS=launch.tile_tokens,
                TILE_ROWS=launch.tile_rows,
                TILE_KEYS=tile_keys,
                DIM=dim,
                SPLIT=split,
                WIDE=wide,
                num_warps=8 if launch.tile_rows > 64 or not narrow_type else 4,
                # Loads ahead: of the table, and of the blocks it names. A narrow tile has room for more of them.
                num_stages=5 if launch.tile_rows == _NARROW else 3,
            )
            if split:
                kernels.reduce[(len(launch.queries), heads)](
                    partial,
                    statistics,
                    out,
                    launch.queries,
                    launch.split,
                    launch.num_splits,
                    HEADS=heads,
                    HEAD_DIM=head_dim,
                    DIM=dim,
                    TILE_SPLITS=_TILE_SPLITS,
                    num_warps=4,
                )
    return out


def paged_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
) -> Tensor:
    """As `underload.decoder.attention.paged_attention`: a plan, used once."""
    tables = block_tables.to(q.device)
    plan = AttentionPlan.of(query_lens, context_lens, tables, heads=q.shape[1], kv_heads=keys.shape[2])
    return attend(q, keys, values, plan)


def rotate_write(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """Turn queries and keys by their positions, and write the keys and `v` into their slots.

    The same numbers as `rope.rotate` and `PlainKV.write`, in one pass over them instead of a dozen.

    Args:
        q, k, v: [tokens, heads or kv_heads, head_dim], contiguous, not turned yet.
        cos, sin: [tokens, head_dim / 2] float32.
        slots: [tokens] int64, block x block_size + offset.
        keys, values: [blocks, block_size, kv_heads, head_dim], one layer of the cache; written to.

    Returns:
        The turned queries, [tokens, heads, head_dim].
    """
    kernels = _kernels()
    tokens, heads, head_dim = q.shape
    out = torch.empty_like(q)
    if not tokens:
        return out
    with torch.cuda.device_of(q):
        kernels.rotate_write[(tokens, heads + k.shape[1])](
            q,
            k,
            v,
            cos,
            sin,
            slots,
            out,
            keys,
            values,
            *keys.stride(),
            *values.stride(),
            keys.shape[1],
            HEADS=heads,
            KV_HEADS=k.shape[1],
            HEAD_DIM=head_dim,
            HALF=_power_of_two(head_dim // 2),
            num_warps=1,
        )
    return out


# -------------------------------------------------- cutting a batch up, on the host


def _tiles(new: np.ndarray, members: np.ndarray, tile_tokens: int) -> np.ndarray:
    """The tiles of the chosen sequences, [tiles, 3]: sequence, first query, 0."""
    per_sequence = np.where(members, -(-new // tile_tokens), 0)
    sequence = np.repeat(np.arange(len(new)), per_sequence)
    first = (np.arange(len(sequence)) - np.repeat(np.cumsum(per_sequence) - per_sequence, per_sequence)) * tile_tokens
    return np.stack((sequence, first, np.zeros_like(first)), axis=1)


def _rows(
    tiles: np.ndarray, ends: np.ndarray, new: np.ndarray, context: np.ndarray, starts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The tiles with a row of partial results for each query, and the rows: [rows, 2], token in q and keys it sees."""
    counts = ends - tiles[:, 1]
    first_row = np.cumsum(counts) - counts
    sequence = np.repeat(tiles[:, 0], counts)
    query = np.arange(len(sequence)) - np.repeat(first_row - tiles[:, 1], counts)
    rows = np.stack((starts[sequence] + query, (context - new)[sequence] + query + 1), axis=1)
    return np.stack((tiles[:, 0], tiles[:, 1], first_row), axis=1), rows


def _split(keys: np.ndarray, kv_heads: int, device: torch.device) -> int:
    """Tokens of a split such that the batch's work, in pieces of it, is two programs a multiprocessor."""
    even = -(-int(keys.sum()) * kv_heads // (2 * _processors(device)))
    return max(_SHORTEST_SPLIT, -(-even // 64) * 64)


def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return _PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
