"""Who is first in the queue.

An order gives each request one number when it joins the queue, and the smallest goes first; equal ones in order of
arrival. The number never changes, so that the queue stays sorted. That is enough for aging, too: where a second of
waiting is worth so much, all who wait gain it alike, and it is the instant of arrival that tells them apart.

No order here starves anybody: each one's number grows with the time of arrival, so that after a while whoever comes
new comes behind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

from underload.request import Request, UnderloadError
from underload.scheduling.predictor import LengthPredictor, MaxTokens


class Order(Protocol):
    """A key for each request, asked once, when it joins the queue; `admitted` tells who has begun, and its key."""

    def key(self, request: Request) -> float: ...
    def admitted(self, request: Request, key: float) -> None: ...


class FirstCome:
    """In order of arrival."""

    def key(self, request: Request) -> float:
        return 0.0

    def admitted(self, request: Request, key: float) -> None:
        pass


class ShortestFirst:
    """Those first that will take the fewest tokens, prompt and answer; each second of waiting makes up for `aging` of
    them. So whoever needs N tokens more than another is overtaken by it for N/aging seconds, and no longer.

    Args:
        predictor: of the answer's length; without one, `max_tokens` counts.
        aging: tokens a second, above 0.
    """

    def __init__(self, predictor: LengthPredictor | None = None, aging: float = 100.0) -> None:
        self.predictor = predictor or MaxTokens()
        self.aging = _positive("aging", aging, "tokens a second")

    def key(self, request: Request) -> float:
        tokens = len(request.prompt_ids) + self.predictor.predict(request)
        return tokens + self.aging * request.timeline.arrival

    def admitted(self, request: Request, key: float) -> None:
        pass


class Priority:
    """The largest `Request.priority` first; `aging` levels are gained for each second of waiting.

    Args:
        aging: levels a second, above 0. At the default, one level is a minute's start.
    """

    def __init__(self, aging: float = 1 / 60) -> None:
        self.aging = _positive("aging", aging, "levels a second")

    def key(self, request: Request) -> float:
        return self.aging * request.timeline.arrival - request.priority

    def admitted(self, request: Request, key: float) -> None:
        pass


class Deadline:
    """The earliest `Request.deadline` first (Liu and Layland, "Scheduling Algorithms for Multiprogramming in a
    Hard-Real-Time Environment", JACM 1973). Whoever has none, or a later one, is taken to want it `patience` s after
    it came.
    """

    def __init__(self, patience: float = 60.0) -> None:
        self.patience = _positive("patience", patience, "s")

    def key(self, request: Request) -> float:
        latest = request.timeline.arrival + self.patience
        return latest if request.deadline is None else min(request.deadline, latest)

    def admitted(self, request: Request, key: float) -> None:
        pass


class FairShare:
    """Tenants share by weight, whoever sends more: start-time fair queueing (Goyal, Vin and Cheng, "Start-time Fair
    Queuing", SIGCOMM 1996), with tokens, prompt and predicted answer, as the work. Sheng et al., "Fairness in Serving
    Large Language Models" (OSDI 2024), is the idea for LLMs.

    A request's number is where its tenant's work before it ends, or where the queue has got to, if the tenant had
    stopped asking: idle time is not saved up.

    Args:
        weights: by `Request.tenant`; 1 for those that are missing.

    Raises:
        UnderloadError: a weight not above 0.
    """

    def __init__(self, weights: Mapping[str, float] | None = None, predictor: LengthPredictor | None = None) -> None:
        self.weights = {
            tenant: _positive(f"weight of tenant {tenant!r}", weight) for tenant, weight in (weights or {}).items()
        }
        self.predictor = predictor or MaxTokens()
        self._reached = 0.0  # the largest number that has begun
        self._ends: dict[str, float] = {}  # of what each tenant has asked for so far

    def key(self, request: Request) -> float:
        tenant = request.tenant
        start = max(self._reached, self._ends.get(tenant, 0.0))
        tokens = len(request.prompt_ids) + self.predictor.predict(request)
        self._ends[tenant] = start + tokens / self.weights.get(tenant, 1.0)
        return start

    def admitted(self, request: Request, key: float) -> None:
        self._reached = max(self._reached, key)


def _positive(name: str, value: float, unit: str = "") -> float:
    if not 0 < value < math.inf:
        raise UnderloadError(f"{name} must be above 0 and finite{unit and ', in '}{unit}, got {value}")
    return value
