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

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from underload.request import Sequence, UnderloadError


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
    def of(cls, work: Iterable[tuple[Sequence, int]], *, all_logits: bool = False) -> "Batch":
        """The next `n` tokens of each sequence, from its `num_computed` on.

        Logits are wanted for a sequence's last token when that is the last it has (a partial prompt yields none);
        `all_logits` wants them for every token.

        Raises:
            UnderloadError: a sequence without a block table, or without n tokens left, or without room for them.
        """
        work = list(work)
        token_ids: list[int] = []
        positions: list[int] = []
        query_lens: list[int] = []
        context_lens: list[int] = []
        rows: list[int] = []
        for sequence, new in work:
            start, end = sequence.num_computed, sequence.num_computed + new
            if sequence.table is None or end > sequence.table.capacity:
                room = 0 if sequence.table is None else sequence.table.capacity
                raise UnderloadError(
                    f"tokens {start} to {end} need cache blocks, but the sequence's blocks hold {room}"
                )
            if not 0 < new <= len(sequence.tokens) - start:
                raise UnderloadError(
                    f"asked for {new} tokens of a sequence that has {len(sequence.tokens) - start} left"
                )
            token_ids += sequence.tokens[start:end]
            positions += range(start, end)
            query_lens.append(new)
            context_lens.append(end)
            if all_logits:
                rows += range(len(token_ids) - new, len(token_ids))
            elif end == len(sequence.tokens):
                rows.append(len(token_ids) - 1)
        tables = [sequence.table.blocks for sequence, _ in work if sequence.table is not None]
        block_tables = np.full((len(work), max(map(len, tables), default=0)), -1, dtype=np.int32)
        for row, blocks in enumerate(tables):
            block_tables[row, : len(blocks)] = blocks
        return cls(
            token_ids=np.asarray(token_ids, dtype=np.int64),
            positions=np.asarray(positions, dtype=np.int64),
            query_lens=np.asarray(query_lens, dtype=np.int32),
            context_lens=np.asarray(context_lens, dtype=np.int32),
            block_tables=block_tables,
            logit_rows=np.asarray(rows, dtype=np.int64),
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
