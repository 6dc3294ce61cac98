"""Prefill in one pool of replicas, decode in another, and what it costs to move keys and values between them.

    simulate_disaggregated   a plan of requests through both pools
    Link                     what moves the keys and values, and how long that takes
    Transfer                 one request's

A request goes to a prefill replica, which computes its prompt and draws the first token: the client has it then. The
keys and values of the prompt go over that replica's link, one request after the other, and lie at a decode replica's
host until it has a slot and blocks for them; it draws the other tokens. No prompt stalls a decode in this way, and
none waits for memory that answers take up. Each replica runs the project's own engine, scheduler and pool, on its own
pool's policies (Zhong et al., "DistServe", OSDI 2024; Patel et al., "Splitwise", ISCA 2024).

What to rely on:

- Tokens are those that one pool for both would draw.
- Blocks at the prefill replica are free again when the prompt is computed, and those of the decode replica are taken
  when the answer goes on there: what is between lies in host memory, of which there is enough (`waiting_tokens` says
  how much that was).
- All of a prompt moves, also what the decode replica may know of it already.
- Who is preempted at a decode replica is swapped or computed again there, prompt and all, as its scheduler says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate

import numpy as np

from underload.queueing import arguments
from underload.request import Request, Timeline, UnderloadError
from underload.request import Sequence as Sample
from underload.simulation.call import Attempt, Call
from underload.simulation.cluster import Front, ReplicaRun
from underload.simulation.replicas import EngineReplica, EngineServer, Server
from underload.simulation.router import JoinShortestQueue, Router, View
from underload.simulation.sending import Sending
from underload.simulation.station import Station, station
from underload.simulation.visit import Visit
from underload.workload import Planned, PromptIds, Streams


@dataclass(frozen=True)
class Link:
    """What a prefill replica sends keys and values over: each takes bytes / bandwidth, one after the other, and arrives
    `latency` s later.

    bytes_per_token: of keys and values (`shapes.ModelShape.kv_bytes_per_token`).
    bandwidth: bytes/s; infinity: they are there at once.
    latency: s.

    Raises:
        UnderloadError: bytes or a latency below 0, or a bandwidth not above 0.
    """

    bytes_per_token: float
    bandwidth: float = math.inf
    latency: float = 0.0

    def __post_init__(self) -> None:
        arguments.at_least_zero("bytes_per_token", self.bytes_per_token, "bytes")
        arguments.at_least_zero("latency", self.latency, "s")
        if self.bandwidth != math.inf:
            arguments.above_zero("bandwidth", self.bandwidth, "bytes/s")

    def seconds(self, tokens: int) -> float:
        """s for which the keys and values of so many tokens take up the link."""
        return tokens * self.bytes_per_token / self.bandwidth


@dataclass(frozen=True)
class Transfer:
    """The keys and values of one prompt on their way; instants in s.

    index: of the request, in the plan.
    prefill: the replica that they come from.
    tokens, bytes: how many.
    ready: the prompt was computed.
    begun: the link was free for them.
    arrived: they were at the decode replica's host.
    decode: the replica that they went to; -1 where it came to nothing.
    left: they left the host's memory: the first step there with the request began, or nobody wanted it any more.
    """

    index: int
    prefill: int
    tokens: int
    bytes: float
    ready: float
    begun: float
    arrived: float
    decode: int
    left: float


@dataclass(frozen=True)
class DisaggregatedRun:
    """What came of a plan.

    calls: in its order.
    prefill, decode: what the replicas of each pool did.
    transfers: in the order in which the prompts were computed; answers of one token need none.
    """

    calls: list[Call] = field(repr=False)
    prefill: list[ReplicaRun] = field(repr=False)
    decode: list[ReplicaRun] = field(repr=False)
    transfers: list[Transfer] = field(repr=False)

    @property
    def timelines(self) -> list[Timeline]:
        """One a call, as its client saw it: the first token from one pool, the others from the other."""
        return [call.timeline for call in self.calls]

    @property
    def waiting_tokens(self) -> int:
        """The most tokens whose keys and values ever lay in host memory at once, at either end of a link or on it."""
        changes = [(one.ready, one.tokens) for one in self.transfers]
        changes += [(one.left, -one.tokens) for one in self.transfers]
        return max(accumulate(tokens for _, tokens in sorted(changes)), default=0)


def simulate_disaggregated(
    planned: Iterable[Planned],
    prefill: Sequence[EngineReplica],
    decode: Sequence[EngineReplica],
    link: Link,
    *,
    prefill_router: Router | None = None,
    decode_router: Router | None = None,
    patience: float | None = None,
    ids: PromptIds | None = None,
    seed: int | Streams = 0,
) -> DisaggregatedRun:
    """Send a plan of requests through a pool of prefill replicas and one of decode replicas.

    Args:
        planned: what comes, and when (`workload.Workload.plan`, or a trace's), each for one answer.
        prefill, decode: the replicas of each pool.
        link: each prefill replica has one.
        prefill_router, decode_router: which replica of the pool; `JoinShortestQueue()` if None. An object belongs to
            one pool.
        patience: s after which a client gives up.
        ids: makes the prompts; from `seed` if None.
        seed: a whole number, or Streams.

    Raises:
        UnderloadError: a pool without a replica, or of others than engines; a request for several answers.
        InvalidRequest: a request that a replica could never serve.
    """
    requests = list(planned)
    for name, pool in (("prefill", prefill), ("decode", decode)):
        if not pool or not all(isinstance(one, EngineReplica) for one in pool):
            raise UnderloadError(f"{name} is a pool of at least one EngineReplica, got {pool!r:.60}")
    if several := [request.index for request in requests if request.params.n > 1]:
        raise UnderloadError(
            f"request {several[0]} is for several answers to one prompt, which separate pools do not hand over; ask "
            "for one (n = 1)"
        )
    if patience is not None:
        patience = arguments.above_zero("patience", patience, "s")
    replicas = [_as(_PrefillReplica, one) for one in prefill] + [_as(_DecodeReplica, one) for one in decode]
    handover = _Handover(link, range(len(prefill)), range(len(prefill), len(replicas)))
    router = _PoolRouter(handover, prefill_router or JoinShortestQueue(), decode_router or JoinShortestQueue())
    run = Front(requests, replicas, router, handover, None, patience, ids, seed, None).run()
    return DisaggregatedRun(run.calls, run.replicas[: len(prefill)], run.replicas[len(prefill) :], handover.told())


class _PrefillReplica(EngineReplica):
    def serve(self, front: Front, index: int) -> Server:
        return _PrefillServer(self, front, index)


class _DecodeReplica(EngineReplica):
    def serve(self, front: Front, index: int) -> Server:
        return _DecodeServer(self, front, index)


def _as(kind: type[EngineReplica], replica: EngineReplica) -> EngineReplica:
    return kind(**{item.name: getattr(replica, item.name) for item in fields(EngineReplica)})


class _PrefillServer(EngineServer):
    """Computes prompts, and draws one token."""

    def _ask(self, attempt: Attempt) -> tuple[Request, int]:
        request, _ = super()._ask(attempt)
        request.params = replace(request.params, max_tokens=1, min_tokens=0)
        return request, 1


class _DecodeServer(EngineServer):
    """Goes on behind a prompt whose keys and values were sent here."""

    def _ask(self, attempt: Attempt) -> tuple[Request, int]:
        request, tokens = super()._ask(attempt)
        # The name is that of the copy before: it is one answer, whose tokens are a function of it.
        before = attempt.call.attempts[0].request
        assert before is not None
        request.request_id = before.request_id
        first = before.sequences[0]
        sample = Sample(first.prompt_len, list(first.tokens), request=request)
        sample.host_tokens = first.prompt_len  # with no host block of the scheduler's own
        request.sequences = [sample]
        request.timeline.token_times = list(before.timeline.token_times)
        return request, tokens


@dataclass
class _Moved:
    """A call's keys and values on their way."""

    copy: Attempt  # at the prefill replica
    ready: float
    begun: float = math.nan
    arrived: float = math.nan
    following: Attempt | None = None


class _Handover(Sending):
    """A prompt at a prefill replica, the link, and then the rest at a decode replica."""

    def __init__(self, link: Link, prefill: range, decode: range) -> None:
        self.link = link
        self.pools = (prefill, decode)
        self.moved: list[_Moved] = []
        self._links: dict[int, Station] = {}

    def pool_of(self, call: Call) -> range:
        """Where the call's next copy goes."""
        return self.pools[0 if not call.attempts else 1]

    def begin(self, call: Call) -> None:
        self._send(call)

    def finished(self, call: Call, attempt: Attempt) -> None:
        if attempt.replica in self.pools[1]:
            _join(attempt.call.attempts[0], attempt)
        elif call.request.output_tokens > 1:
            self._move(call, attempt)
            return
        call.answer(attempt)

    def told(self) -> list[Transfer]:
        found = []
        for moved in self.moved:
            copy, after, request = moved.copy, moved.following, moved.copy.call.request
            to, left = -1, moved.arrived
            if after is not None:
                to = after.replica - len(self.pools[0])
                left = after.started if after.started is not None else after.ended or left
            moves = request.prompt_tokens * self.link.bytes_per_token
            found.append(
                Transfer(
                    request.index, copy.replica, request.prompt_tokens, moves, moved.ready, moved.begun, moved.arrived,
                    to, left,
                )
            )  # fmt: skip
        return found

    def _send(self, call: Call) -> Attempt | None:
        pool = self.pool_of(call)
        if not any(view.up for view in call.front.views[pool.start : pool.stop]):
            call.fail(f"no {'decode' if pool.start else 'prefill'} replica is up")
            return None
        return call.send()

    def _move(self, call: Call, attempt: Attempt) -> None:
        moved = _Moved(attempt, call.now)
        self.moved.append(moved)
        place = self._links.get(attempt.replica)
        if place is None:
            place = self._links[attempt.replica] = station(call.front.queue, on_start=self._begun, on_finish=self._sent)
        place.enter(self.link.seconds(call.request.prompt_tokens), 0.0, moved)

    def _begun(self, visit: Visit) -> None:
        visit.data.begun = visit.start

    def _sent(self, visit: Visit) -> None:
        moved: _Moved = visit.data
        queue = moved.copy.call.front.queue
        # After all that ends at this instant, as any arrival.
        queue.after(self.link.latency, self._arrived, moved)

    def _arrived(self, moved: _Moved) -> None:
        call = moved.copy.call
        moved.arrived = call.now
        if not call.over:
            moved.following = self._send(call)


class _PoolRouter(Router):
    """A router for each pool."""

    def __init__(self, handover: _Handover, *routers: Router) -> None:
        self._handover = handover
        self._routers = routers

    def choose(self, call: Call, replicas: Sequence[View], rng: np.random.Generator) -> View:
        pool = self._handover.pool_of(call)
        router = self._routers[1 if pool.start else 0]
        return router.choose(call, [replica for replica in replicas if replica.index in pool], rng)


def _join(prompt: Attempt, answer: Attempt) -> None:
    """The answer's timeline tells of the prompt, too."""
    assert prompt.request is not None
    assert answer.request is not None
    before, its = prompt.request.timeline, answer.request.timeline
    its.queued, its.scheduled, its.cached_tokens = before.queued, before.scheduled, before.cached_tokens
    its.prefills, its.preempted = before.prefills + its.prefills, before.preempted + its.preempted
    its.preemptions += before.preemptions
