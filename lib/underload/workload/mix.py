"""Workloads: arrivals, lengths and prompts together, for one tenant or for many."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from underload.queueing import arguments
from underload.request import SamplingParams, UnderloadError
from underload.workload.arrivals import Arrivals, Times
from underload.workload.lengths import EmpiricalPairs, Lengths
from underload.workload.planned import Planned, numbered
from underload.workload.prompts import Prompts, Unshared
from underload.workload.streams import Streams


class Load(ABC):
    """Something that can be planned for a seed and a horizon."""

    def plan(
        self, seed: int | Streams = 0, *, horizon: float | None = None, requests: int | None = None
    ) -> list[Planned]:
        """The requests, in order of arrival, numbered from 0. The same seed gives the same; no stream is kept.

        Args:
            horizon: s; all that arrive in [0, horizon).
            requests: instead of a horizon, those of the first so many arrivals (conversations, where these arrive).

        Raises:
            UnderloadError: neither or both of horizon and requests, or a number outside its range.
        """
        if (horizon is None) == (requests is None):
            raise UnderloadError(
                f"give a horizon in s or a number of requests, not {'neither' if horizon is None else 'both'}"
            )
        streams = seed if isinstance(seed, Streams) else Streams(seed)
        planned = numbered(self._plan(streams, horizon, requests))
        if horizon is not None:
            planned = [request for request in planned if request.arrival < horizon]
        return planned

    @abstractmethod
    def _plan(self, streams: Streams, horizon: float | None, requests: int | None) -> list[Planned]: ...


def _starts(arrivals: Arrivals, streams: Streams, horizon: float | None, requests: int | None) -> Times:
    rng = streams.fresh("arrivals")
    return arrivals.arrivals(rng, horizon) if horizon is not None else arrivals.first(rng, requests or 0)


@dataclass(frozen=True)
class Workload(Load):
    """One tenant: when requests come, how long they are, what their prompts share.

    Args:
        sampling: wishes for every request other than the length (`Planned.params`).
    """

    arrivals: Arrivals
    lengths: Lengths | EmpiricalPairs
    prompts: Prompts = field(default_factory=Unshared)
    tenant: str = ""
    sampling: SamplingParams | None = None

    def _plan(self, streams: Streams, horizon: float | None, requests: int | None) -> list[Planned]:
        starts = _starts(self.arrivals, streams, horizon, requests)
        return _of_tenant(starts, self.lengths, self.prompts, self.tenant, self.sampling, streams)


def _of_tenant(
    starts: Times,
    lengths: Lengths | EmpiricalPairs,
    prompts: Prompts,
    tenant: str,
    sampling: SamplingParams | None,
    streams: Streams,
) -> list[Planned]:
    # Streams from their beginning: planning twice from one Streams gives the same plan twice.
    fresh = Streams(streams.seed, path=streams.path)
    name = f"{tenant}/" if tenant else ""
    planned = prompts.plan(starts, lengths, fresh, name)
    if not tenant and sampling is None:
        return list(planned)
    return [replace(request, tenant=tenant, sampling=sampling) for request in planned]


@dataclass(frozen=True)
class Tenants(Load):
    """Several workloads at once, each with arrivals and streams of its own: adding one leaves the others as they were.

    `requests` is a number for each of them.

    Raises:
        UnderloadError: no workload, or two with one tenant name.
    """

    workloads: Sequence[Workload]

    def __post_init__(self) -> None:
        names = [workload.tenant for workload in self.workloads]
        if not names or len(set(names)) < len(names):
            raise UnderloadError(f"tenants need names, each its own, got {names!r:.80}; give Workload(tenant=…)")

    def _plan(self, streams: Streams, horizon: float | None, requests: int | None) -> list[Planned]:
        return [
            request
            for workload in self.workloads
            for request in workload._plan(streams.under(workload.tenant), horizon, requests)
        ]


@dataclass(frozen=True)
class Share:
    """A tenant's part of a `Mix`: how often, how long, with what in common."""

    weight: float
    lengths: Lengths | EmpiricalPairs
    prompts: Prompts = field(default_factory=Unshared)
    sampling: SamplingParams | None = None


@dataclass(frozen=True)
class Mix(Load):
    """One stream of arrivals; each is some tenant's, drawn by weight.

    Raises:
        UnderloadError: no share, or a weight not above 0.
    """

    arrivals: Arrivals
    shares: Mapping[str, Share]

    def __post_init__(self) -> None:
        if not self.shares:
            raise UnderloadError("a mix needs a share: Mix(arrivals, {'chat': Share(0.8, lengths), …})")
        for tenant, share in self.shares.items():
            arguments.above_zero(f"the weight of {tenant!r}", share.weight, "")

    def _plan(self, streams: Streams, horizon: float | None, requests: int | None) -> list[Planned]:
        starts = _starts(self.arrivals, streams, horizon, requests)
        sums = np.cumsum([share.weight for share in self.shares.values()])
        owner = np.searchsorted(sums, streams.fresh("tenants").random(len(starts)) * sums[-1], side="right")
        return [
            request
            for number, (tenant, share) in enumerate(self.shares.items())
            for request in _of_tenant(
                starts[owner == number], share.lengths, share.prompts, tenant, share.sampling, streams.under(tenant)
            )
        ]
