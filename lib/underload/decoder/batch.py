"""What one forward pass computes: the tokens of many sequences laid end to end, no padding.

    sequences       A: 3 prompt tokens        B: 1 token at 7     C: 2 tokens of a longer prompt
    token_ids     [ a0  a1  a2                b7                  c4  c5 ]
    positions     [ 0   1   2                 7                   4   5  ]
    query_lens    [ 3                         1                   2      ]
    context_lens  [ 3                         8                   6      ]   in the cache once the pass is done
    block_tables  [ A's blocks                B's                 C's    ]   padded with -1
    logit_rows    [         2                 3                       5  ]   rows whose logits are wanted

Prefill and decode are not told apart: a sequence brings one token or many, and the causal mask does the rest.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from underload.request import Sequence, UnderloadError

if TYPE_CHECKING:
    from underload.scheduling import Plan


@dataclass(frozen=True)
class Batch:
    """A flattened ragged batch; NumPy on the host, so that each path moves it where it computes.

    Args:
        token_ids, positions: [tokens] int64.
        query_lens, context_lens: [sequences] int32.
        block_tables: [sequences, most blocks of any] int32, padded with -1.
        logit_rows: [rows] int64, indices into the tokens.
    """

    token_ids: np.ndarray
    positions: np.ndarray
    query_lens: np.ndarray
    context_lens: np.ndarray
    block_tables: np.ndarray
    logit_rows: np.ndarray

    @classmethod
    def of(cls, work: Iterable[tuple[Sequence, int]], *, all_logits: bool = False) -> Batch:
        """The next `n` tokens of each sequence, from its `num_computed` on.

        Logits are wanted for a sequence's last token when that is the last it has (a partial prompt yields none);
        `all_logits` wants them for every token.

        Raises:
            UnderloadError: a sequence without a block table, or without n tokens left, or without room for them.
        """
        spans = [(sequence, sequence.num_computed, sequence.num_computed + new) for sequence, new in work]
        batch = cls._lay(spans, [stop == len(sequence.tokens) for sequence, _, stop in spans])
        return replace(batch, logit_rows=np.arange(batch.num_tokens)) if all_logits else batch

    @classmethod
    def of_plan(cls, plan: Plan) -> Batch:
        """The tokens that a plan's work names, with logits for each work that is to be sampled.

        Raises:
            UnderloadError: as `of` does.
        """
        spans = [(work.sequence, work.start, work.stop) for work in plan.work]
        return cls._lay(spans, [work.samples > 0 for work in plan.work])

    @classmethod
    def _lay(cls, spans: list[tuple[Sequence, int, int]], wanted: list[bool]) -> Batch:
        """Tokens [start, stop) of each sequence, end to end. Once a step, so it has to cost little beside one."""
        token_ids: list[int] = []
        for sequence, start, stop in spans:
            if sequence.table is None or stop > sequence.table.capacity:
                room = 0 if sequence.table is None else sequence.table.capacity
                raise UnderloadError(
                    f"tokens {start} to {stop} need cache blocks, but the sequence's blocks hold {room}"
                )
            if not 0 <= start < stop <= len(sequence.tokens):
                raise UnderloadError(
                    f"asked for {stop - start} tokens of a sequence that has {len(sequence.tokens) - start} left"
                )
            if stop == start + 1:
                token_ids.append(sequence.tokens[start])
            else:
                token_ids += sequence.tokens[start:stop]
        context_lens = np.array([stop for _, _, stop in spans], dtype=np.int32)
        query_lens = context_lens - np.array([start for _, start, _ in spans], dtype=np.int32)
        ends = np.cumsum(query_lens)  # int64
        # A sequence's last token lies at context - 1 and in row end - 1.
        positions = np.repeat(context_lens - ends, query_lens) + np.arange(len(token_ids))
        return cls(
            token_ids=np.array(token_ids, dtype=np.int64),
            positions=positions,
            query_lens=query_lens,
            context_lens=context_lens,
            block_tables=_padded([sequence.table.blocks for sequence, _, _ in spans if sequence.table is not None]),
            logit_rows=ends[np.array(wanted, dtype=bool)] - 1,
        )

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_sequences(self) -> int:
        return len(self.query_lens)

    def slots(self, block_size: int) -> np.ndarray:
        """Where each token's key and value go: [tokens] int64, block x block_size + offset."""
        rows = np.repeat(np.arange(self.num_sequences), self.query_lens)
        blocks = self.block_tables[rows, self.positions // block_size].astype(np.int64)
        return blocks * block_size + self.positions % block_size


def _padded(tables: list[list[int]]) -> np.ndarray:
    """[tables, longest] int32, filled up with -1. An array takes a list's numbers a third faster than NumPy does."""
    longest = max(map(len, tables), default=0)
    padding = array("i", [-1]) * longest
    flat = array("i")
    for blocks in tables:
        flat.fromlist(blocks)
        flat.extend(padding[len(blocks) :])
    return np.frombuffer(flat, dtype=np.int32).reshape(len(tables), longest)
