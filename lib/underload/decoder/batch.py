"""What one forward pass computes: the tokens of many sequences laid end to end.

    sequences       A: 3 prompt tokens        B: 1 token at 7     C: 2 tokens of a longer prompt
    token_ids     [ a0  a1  a2                b7                  c4  c5 ]
    positions     [ 0   1   2                 7                   4   5  ]
    query_lens    [ 3                         1                   2      ]
    context_lens  [ 3                         8                   6      ]   in the cache once the pass is done
    block_tables  [ A's blocks                B's                 C's    ]   padded with -1
    logit_rows    [         2                 3                       5  ]   rows whose logits are wanted

Prefill and decode are not told apart: a sequence brings one token or many, and the causal mask does the rest.

A token that an earlier batch draws, and that the host has not seen yet, is named by its place among those drawn
(`fill_in`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from underload.request import Sequence, UnderloadError

if TYPE_CHECKING:
    from underload.scheduling import Plan


@dataclass(frozen=True)
class Batch:
    """A flattened ragged batch; NumPy on the host, so that each path moves it where it computes.

    Args:
        token_ids, positions: [tokens] int64.
        query_lens, context_lens: [sequences] int32.
        block_tables: [sequences, at least the most blocks of any] int32, padded with -1.
        logit_rows: [rows] int64, indices into the tokens.
        drawn: [tokens drawn] int64 on the model's device: what `token_ids` below 0 stand for, as `fill_in` says; None
            where there are none.
    """

    token_ids: np.ndarray
    positions: np.ndarray
    query_lens: np.ndarray
    context_lens: np.ndarray
    block_tables: np.ndarray
    logit_rows: np.ndarray
    drawn: Tensor | None = None

    @classmethod
    def of(cls, work: Iterable[tuple[Sequence, int]], *, all_logits: bool = False) -> Batch:
        """The next `n` tokens of each sequence, from its `num_computed` on.

        Logits are wanted for a sequence's last token when that is the last it has (a partial prompt yields none);
        `all_logits` wants them for every token.

        Raises:
            UnderloadError: a sequence without a block table, or without n tokens left, or without room for them.
        """
        spans = [(sequence, sequence.num_computed, sequence.num_computed + new) for sequence, new in work]
        wanted = [stop == len(sequence.tokens) for sequence, _, stop in spans]
        batch = cls._lay(spans, wanted, [], Tables(), {})
        return replace(batch, logit_rows=np.arange(batch.num_tokens)) if all_logits else batch

    @classmethod
    def of_plan(
        cls,
        plan: Plan,
        tables: Tables,
        scratch: int,
        places: Mapping[Sequence, int] | None = None,
        drawn: Tensor | None = None,
    ) -> Batch:
        """The tokens that a plan's work names, with logits for each work that is to be sampled; and after them, the
        tokens that it throws away, one row each.

        A held sequence's row looks at all that the sequence has in the cache, as a real one would. Its own key and
        value go into the scratch block, which stands in for the last of its blocks. The other padding tokens, those of
        short prompts, lie in the scratch block and look at themselves.

        Args:
            tables: of the steps before; the batch's block tables are valid until they are used again.
            scratch: a block that no sequence has.
            places: for sequences that go on from a token which is not among theirs yet, where it is in `drawn`.

        Raises:
            UnderloadError: as `of` does, or a held sequence without its blocks.
        """
        spans = [(work.sequence, work.start, work.stop) for work in plan.work]
        padding: list[tuple[int, list[int]]] = []
        for sequence in plan.held:
            table, context = sequence.table, sequence.num_computed
            if table is None or not 0 < context <= table.capacity:
                room = 0 if table is None else table.capacity
                raise UnderloadError(
                    f"a held sequence of {context} tokens must keep their blocks, but they hold {room}"
                )
            padding.append((context, [*table.blocks[: (context - 1) // table.block_size], scratch]))
        padding += [(1, [scratch])] * (plan.padding_tokens - len(padding))
        batch = cls._lay(spans, [work.samples > 0 for work in plan.work], padding, tables, places or {})
        return replace(batch, drawn=drawn) if places else batch

    @classmethod
    def _lay(
        cls,
        spans: list[tuple[Sequence, int, int]],
        wanted: list[bool],
        padding: list[tuple[int, list[int]]],
        tables: Tables,
        places: Mapping[Sequence, int],
    ) -> Batch:
        """Tokens [start, stop) of each sequence, end to end, then padding: a token at the end of a context, and the
        blocks it looks at. Once a step, so it has to cost little beside one."""
        token_ids: list[int] = []
        starts, stops, blocks = [], [], []
        for sequence, start, stop in spans:
            table, tokens = sequence.table, sequence.tokens
            if table is None or stop > table.capacity:
                room = 0 if table is None else table.capacity
                raise UnderloadError(
                    f"tokens {start} to {stop} need cache blocks, but the sequence's blocks hold {room}"
                )
            if 0 <= start < stop <= len(tokens):
                if stop == start + 1:
                    token_ids.append(tokens[start])
                else:
                    token_ids += tokens[start:stop]
            elif stop == start + 1 and sequence in places:
                token_ids.append(-1 - places[sequence])
            else:
                raise UnderloadError(
                    f"asked for {stop - start} tokens of a sequence that has {len(tokens) - start} left"
                )
            starts.append(start)
            stops.append(stop)
            blocks.append(table.blocks)
        for context, mine in padding:
            token_ids.append(0)
            starts.append(context - 1)
            stops.append(context)
            blocks.append(mine)
        context_lens = np.array(stops, dtype=np.int32)
        if len(token_ids) == len(stops):  # decoding
            query_lens: np.ndarray = np.ones(len(stops), dtype=np.int32)
            positions = context_lens - np.int64(1)
            logit_rows: np.ndarray = np.arange(len(spans)) if all(wanted) else np.flatnonzero(wanted)
        else:
            query_lens = context_lens - np.array(starts, dtype=np.int32)
            ends = np.cumsum(query_lens)  # int64
            # A sequence's last token lies at context - 1 and in row end - 1.
            positions = np.repeat(context_lens - ends, query_lens) + np.arange(len(token_ids))
            logit_rows = ends[np.flatnonzero(wanted)] - 1
        return cls(
            token_ids=np.array(token_ids, dtype=np.int64),
            positions=positions,
            query_lens=query_lens,
            context_lens=context_lens,
            block_tables=tables.of(blocks),
            logit_rows=logit_rows,
        )

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_sequences(self) -> int:
        return len(self.query_lens)

    @property
    def score_pairs(self) -> int:
        """Pairs of a query and a key that it may look at."""
        if self.num_tokens == self.num_sequences:
            return int(self.context_lens.sum())
        new, context = self.query_lens.astype(np.int64), self.context_lens.astype(np.int64)
        return int((new * (context - new) + new * (new + 1) // 2).sum())

    def seen(self) -> Batch:
        """This batch with all its token ids on the host; waits for those that are drawn."""
        if self.drawn is None:
            return self
        token_ids = fill_in(torch.from_numpy(self.token_ids), self.drawn.cpu()).numpy()
        return replace(self, token_ids=token_ids, drawn=None)

    def slots(self, block_size: int) -> np.ndarray:
        """Where each token's key and value go: [tokens] int64, block x block_size + offset."""
        rows = np.repeat(np.arange(self.num_sequences), self.query_lens)
        blocks = self.block_tables[rows, self.positions // block_size].astype(np.int64)
        return blocks * block_size + self.positions % block_size


def fill_in(token_ids: Tensor, drawn: Tensor) -> Tensor:
    """The token ids, where -1 - i stands for `drawn[i]`; both int64, on one device, which alone need know them.

    What was drawn from a broken row is no id: whoever goes on from it is computed for nothing, with token 0.
    """
    return torch.where(token_ids < 0, drawn[(-1 - token_ids).clamp(min=0)].clamp(min=0), token_ids)


class Tables:
    """Block tables as one array, kept from step to step: from one to the next, most sequences have the blocks they had.

    A row is written where its blocks differ from what it held. What they are is looked up each time, so it does not
    matter how they came to change.
    """

    def __init__(self) -> None:
        self._array = np.full((0, 0), -1, dtype=np.int32)
        self._rows: list[list[int]] = []  # what each row holds

    def of(self, tables: list[list[int]]) -> np.ndarray:
        """[tables, at least the longest] int32, filled up with -1; valid until the next call."""
        rows, width = self._array.shape
        longest = max(map(len, tables), default=0)
        if len(tables) > rows or longest > width:
            rows, width = max(rows, len(tables)), max(width, -(-longest // 8) * 8 if width else longest)
            self._array = np.full((rows, width), -1, dtype=np.int32)
            self._rows = [[] for _ in range(rows)]
        for row, (blocks, held) in enumerate(zip(tables, self._rows, strict=False)):
            if blocks == held:
                continue
            kept = len(held) if blocks[: len(held)] == held else 0  # decoding, a sequence takes one more at the end
            self._array[row, kept : len(blocks)] = blocks[kept:]
            if len(blocks) < len(held):
                self._array[row, len(blocks) : len(held)] = -1
            self._rows[row] = blocks.copy()
        return self._array[: len(tables)]
