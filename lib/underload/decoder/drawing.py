"""A batch that is being computed, and the tokens to draw from it: begun, then waited for.

Between the two, a GPU computes and the host is free: another batch can be begun, and go on from tokens that this one
draws. On a CPU the first does all the computing.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from underload.decoder.batch import Batch
from underload.decoder.kv import KVStorage
from underload.decoder.model import Model
from underload.decoder.plain import likeliest
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

    Attributes:
        rows: for each state, where in `drawn` its token is, if it takes the likeliest.
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
        self._states, self._wanted = states, list(rows)
        self.rows = self._wanted
        self._greedy = all(state.takes_argmax for state in states)
        on_gpu = model.device.type == "cuda"
        self._logits: Tensor | None = None
        self._drawn: Tensor | None = None
        self._ids: list[int] | None = None
        if graphs is not None and (replay := graphs.replay(batch)) is not None:
            # It has all rows of the batch, wanted or not.
            self.rows = batch.logit_rows[np.asarray(self.rows, dtype=np.int64)].tolist()
            self._drawn = replay.ids
            self._logits = None if self._greedy else replay.logits.clone()
        elif self._greedy and not on_gpu:  # on the fast path the logits are never written out
            self._ids = model.greedy(batch, kv)
        else:
            self._logits = model.forward(batch, kv)
        self._said: Tensor | None = None  # the ids, on their way to the host
        self._done: torch.cuda.Event | None = None
        if on_gpu:
            if self._greedy:
                self._said = torch.empty(len(self.drawn), dtype=torch.int64, pin_memory=True)
                self._said.copy_(self.drawn, non_blocking=True)
            self._done = torch.cuda.Event()
            self._done.record()

    @property
    def drawn(self) -> Tensor:
        """The likeliest ids, int64 on the model's device, -1 for a row without a largest logit; nobody waits for them
        here."""
        if self._drawn is None:
            ids = self._ids
            self._drawn = likeliest(self._logits) if self._logits is not None else torch.tensor(ids, dtype=torch.int64)
        return self._drawn

    def take(self) -> list[Draw | BadLogits]:
        """Wait for the batch and choose each state's token; a row that holds no law yields its error in its place."""
        if self._done is not None:
            self._done.synchronize()
        if not self.rows:
            return []
        if self._greedy:
            ids = self._ids if self._ids is not None else (self.drawn if self._said is None else self._said).tolist()
            chosen = [ids[row] for row in self.rows]
            if min(chosen) >= 0:
                return [Draw(token_id) for token_id in chosen]
        rows, logits = self.rows, self._logits
        if logits is None:
            # A broken row. Computing the batch again changes nothing, and its logits say what is wrong.
            logits = self._model.forward(self._batch, self._kv)
            rows = self._wanted
        return sample(logits if rows == list(range(len(logits))) else logits[rows], self._states)
