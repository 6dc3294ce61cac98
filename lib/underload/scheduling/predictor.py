"""How long an answer will get, for policies that want to know. They ask here, and see nobody's true length."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Protocol

from underload.request import Request, UnderloadError

_MOST = 600.0  # an error of the logarithm; any length times its exponential is still a number


class LengthPredictor(Protocol):
    """Output tokens that a request is taken to need; the same at every call for one request."""

    def predict(self, request: Request) -> float: ...


class MaxTokens:
    """Knows nothing: every answer may get as long as it was allowed to."""

    def predict(self, request: Request) -> float:
        return float(request.params.max_tokens)


class Oracle:
    """Knows every answer's length, as no server does: the bound for what a predictor could bring.

    Args:
        output_tokens: by request id; for one that is missing, `max_tokens`.
    """

    def __init__(self, output_tokens: Mapping[str, int]) -> None:
        self._output_tokens = output_tokens

    def predict(self, request: Request) -> float:
        most = request.params.max_tokens
        return float(min(self._output_tokens.get(request.request_id, most), most))


class Noisy:
    """An oracle whose logarithm is off by a normal error of standard deviation `sigma`, one draw a request.

    With sigma = 0.7 half of the predictions are wrong by a factor of 1.6 or more.

    Raises:
        UnderloadError: a sigma below 0 or without end.
    """

    def __init__(self, output_tokens: Mapping[str, int], sigma: float, seed: int = 0) -> None:
        if not 0 <= sigma < math.inf:
            raise UnderloadError(f"sigma must be at least 0 and finite, got {sigma}")
        self._oracle = Oracle(output_tokens)
        self._sigma = sigma
        self._seed = seed

    def predict(self, request: Request) -> float:
        # A string's seed is the same in every process; the draw hangs on the request alone, not on who asked before.
        error = Random(f"{self._seed} {request.request_id}").gauss(0.0, self._sigma)
        return max(1.0, self._oracle.predict(request) * math.exp(min(error, _MOST)))
