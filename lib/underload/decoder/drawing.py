"""A batch that is being computed, and the tokens to draw from it: begun, then waited for.

Between the two, a GPU computes and the host is free. On a CPU the first does all the computing.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from underload.decoder.batch import Batch
from underload.decoder.kv import KVStorage
from underload.decoder.measure import synchronise
from underload.decoder.model import Model
from underload.decoder.sampling import BadLogits, Draw, SamplingState, sample

if TYPE_CHECKING:
    from underload.decoder.graph import DecodeGraphs


class Drawing:
    """The next token of each of some sequences; making one begins to compute the batch.

    Args:
        kv: of the model; the batch's keys and values are written into it.
        states: what each token's choice depends on.
        rows: for each state, which of `batch.logit_rows` it draws from; several may draw from one (samples of a
            prompt).
        graphs: captured decode steps of the same model and cache, taken where the batch is one of them.
    """

    def __init__(
        self,
        model: Model,
        batch: Batch,
        kv: KVStorage,
        states: Seq[SamplingState],
        rows: Seq[int],
        graphs: DecodeGraphs | None = None,
    ) -> None:
        self._model, self._batch, self._kv = model, batch, kv
        self._states, self._rows = states, rows
        self._greedy = all(state.takes_argmax for state in states)
        self._replay = graphs.replay(batch) if graphs is not None else None
        self._ids: list[int] | None = None
        self._logits: Tensor | None = None
        if self._replay is None:
            # On the fast path a greedy batch's logits are never written out; on a GPU nobody waits for them here.
            if self._greedy and model.device.type == "cpu":
                self._ids = model.greedy(batch, kv)
            else:
                self._logits = model.forward(batch, kv)

    def take(self) -> list[Draw | BadLogits]:
        """Wait for the batch and choose each state's token; a row that holds no law yields its error in its place."""
        rows, logits = self._rows, self._logits
        if not rows:
            synchronise(self._model.device)
            return []
        if self._replay is not None:  # has all rows of the batch, wanted or not
            self._ids, logits = self._replay.ids(), self._replay.logits
            rows = self._batch.logit_rows[np.asarray(rows)].tolist()
        if self._greedy and self._ids is not None:
            ids = self._ids
            chosen = [ids[row] for row in rows]
            if min(chosen) >= 0:
                return [Draw(token_id) for token_id in chosen]
            # A broken row. Computing the batch again changes nothing, and its logits say what is wrong.
        if logits is None:
            logits = self._model.forward(self._batch, self._kv)
        return sample(logits if list(rows) == list(range(len(logits))) else logits[list(rows)], self._states)
