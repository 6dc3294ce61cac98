"""Replicas behind a front door: who goes where, what is sent twice, and what it costs.

    simulate_cluster   a plan of requests through a front door to replicas
    Front              the front door at work: what policies can see
    Door               may a request come in at all, and how?
    ClusterRun         what came of it: calls, attempts, and each replica's steps

Every replica runs by itself on one event queue. A cluster of one engine gives, record for record, what
`simulate_serving` gives. At one instant services and steps end first; then come arrivals and timers, in the order in
which they were set.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from underload.queueing import arguments
from underload.queueing.service import law_of
from underload.request import StepRecord, Timeline, UnderloadError
from underload.simulation.call import Attempt, Call
from underload.simulation.events import EventQueue
from underload.simulation.replicas import EngineServer, Replica, Server
from underload.simulation.router import JoinShortestQueue, Router, View
from underload.simulation.scaling import Fleet, FleetRun, Scaling
from underload.simulation.sending import Once, Sending
from underload.workload import Planned, PromptIds, Streams, Turns


class Door(Protocol):
    """Who decides, before anything is sent, whether a request is let in."""

    def admit(self, request: Planned, front: Front) -> Planned | None:
        """The request, or one that asks for less in its place; None turns it away."""
        ...


class Front:
    """The front door of a run.

    calls: that sent at least one copy (a leaf is one).
    attempts: copies sent.
    latencies: of the calls answered so far that sent copies, in s, in the order of their answers.
    views: the replicas, as a router sees them.
    """

    def __init__(
        self,
        planned: Iterable[Planned],
        replicas: Sequence[Replica],
        router: Router,
        sending: Sending,
        door: Door | None,
        patience: float | None,
        ids: PromptIds | None,
        seed: int | Streams,
        scaling: Scaling | None,
    ) -> None:
        self.queue = EventQueue()
        self.router, self.sending, self.door, self.patience = router, sending, door, patience
        self.streams = seed if isinstance(seed, Streams) else Streams(seed)
        self.seed = self.streams.seed
        self.ids = ids or PromptIds(32_000, seed=self.seed)
        self.calls = self.attempts = 0
        self.latencies: list[float] = []
        self._plan = list(planned)
        self._turns = Turns(self._plan)
        # Copies are weighed where there may be several; like steps are joined only where none can come or go between.
        self.counts_work = type(sending) is not Once
        self._reacts = self.counts_work or self._turns.waiting > 0 or patience is not None
        self._decisions: list[float] = []  # a heap: instants at which something may come or go
        self._arriving = len(self._turns.first)
        self._following = 0  # turns that are due at a known instant
        self._arrived = 0
        self.ended_calls: dict[int, Call] = {}
        self.all_attempts: list[Attempt] = []
        self._draws: dict[tuple[Any, str, int], list[float]] = {}
        self._root_numbers = {request.index: number for number, request in enumerate(self._plan)}
        if len(self._root_numbers) < len(self._plan):
            raise UnderloadError("two requests of the plan have one index; number them (`workload` plans are numbered)")
        self._rng = self.streams.fresh("routing")
        self.fleet: Fleet | None = None
        self.servers: list[Server] = [description.serve(self, index) for index, description in enumerate(replicas)]
        if scaling is not None:
            self.fleet = Fleet(self, scaling)

    # ---- what policies see -----------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """The present instant, s."""
        return self.queue.now()

    @property
    def views(self) -> Sequence[View]:
        return self.servers

    @property
    def extra(self) -> float:
        """Copies beyond the first, as a share of the calls; 0 before the first."""
        return self.attempts / self.calls - 1 if self.calls else 0.0

    # ---- the run ---------------------------------------------------------------------------------------------------

    def run(self) -> ClusterRun:
        first = sorted(self._turns.first, key=lambda request: request.arrival)
        self._decisions += [request.arrival for request in first]  # ascending, so a heap
        self._decisions.sort()
        self.queue.at_each([request.arrival for request in first], lambda i: self._first(first[i]))
        self.queue.run()
        if live := [server for server in self.servers if server.inside]:
            raise UnderloadError(
                f"replica {live[0].index} holds {live[0].inside} requests that it never answers; the simulator is "
                "wrong, please report it"
            )
        if self._arrived > len(self.ended_calls):
            raise UnderloadError(
                f"{self._arrived - len(self.ended_calls)} calls have no outcome: {type(self.sending).__name__} neither "
                "answers them nor lets them fail; see to call.answer or call.fail"
            )
        calls = [self.ended_calls[request.index] for request in self._plan if request.index in self.ended_calls]
        ran = [ReplicaRun(server.steps, server.busy, server.attempts) for server in self.servers]
        fleet = None
        if self.fleet is not None:
            fleet = self.fleet.run(max((call.ended for call in calls if call.ended is not None), default=0.0))
        return ClusterRun(calls, self.all_attempts, ran, self._plan, fleet)

    def decide_at(self, instant: float, action: Any, *args: object) -> None:
        """Call `action(*args)` at an instant (s) at which replicas must have stopped to look."""
        heappush(self._decisions, instant)
        self.queue.at(instant, action, *args)

    def horizon(self) -> float:
        """The instant until which nobody comes or goes; what an engine may count on when it joins steps."""
        if self._reacts:
            return self.queue.next_time
        decisions, now = self._decisions, self.now
        while decisions and decisions[0] <= now:
            heappop(decisions)
        return decisions[0] if decisions else math.inf

    @property
    def more_to_come(self) -> bool:
        """Whether requests may still arrive."""
        return self._arriving + self._following > 0

    @property
    def live(self) -> bool:
        """Whether anybody is to be answered, now or later."""
        return self.more_to_come or self._arrived > len(self.ended_calls)

    def _first(self, request: Planned) -> None:
        self._arriving -= 1
        self._arrive(request)

    def _follow(self, request: Planned) -> None:
        self._following -= 1
        self._arrive(request)

    def _arrive(self, request: Planned) -> None:
        self._arrived += 1
        admitted: Planned | None = request if self.door is None else self.door.admit(request, self)
        call = Call(self, admitted or request, self.now, self.sending)
        if admitted is None:
            call.outcome, call.ended, call.error = "refused", self.now, "turned away at the door"
            self.ended(call)
        else:
            if getattr(admitted, "index", None) != request.index:
                raise UnderloadError(
                    f"the door answered request {request.index} with {admitted!r:.60}; keep its index "
                    "(dataclasses.replace)"
                )
            self.sending.begin(call)
            if self.patience is not None and not call.over:
                call.after(self.patience, call.abandon)
        if not self.more_to_come:
            for server in self.servers:
                if isinstance(server, EngineServer) and server.waits:
                    server.wake()  # nobody waits for company that will not come

    # ---- for calls -------------------------------------------------------------------------------------------------

    def place(self, call: Call, number: int, avoid: Collection[int], visited: dict[int, int]) -> Attempt:
        """A copy, and the replica where it will go."""
        up = [server for server in self.servers if server.up]
        candidates: Sequence[Server] = up
        for out in (avoid, visited):
            candidates = [server for server in candidates if server.index not in out] or candidates
        index = -1
        if candidates:
            chosen = self.router.choose(call, candidates, self._rng)
            if chosen not in candidates:
                raise UnderloadError(f"{type(self.router).__name__} chose {chosen!r:.60}, which is no candidate")
            index = chosen.index
        attempt = Attempt(call, number, index, self.now)
        if not call.attempts:
            self.calls += 1
        self.attempts += 1
        self.all_attempts.append(attempt)
        return attempt

    def enter(self, attempt: Attempt) -> None:
        """The copy is sent."""
        if attempt.replica < 0:
            self.queue.at(self.now, self.failed, attempt, "no replica is up")
        else:
            self.servers[attempt.replica].enter(attempt)

    def cancel(self, attempt: Attempt) -> None:
        """The copy is taken back, if it is still inside."""
        if attempt.inside:
            attempt.state, attempt.ended = "cancelled", self.now
            if attempt.replica >= 0:
                self.servers[attempt.replica].leave(attempt)

    def orphan(self, attempt: Attempt) -> None:
        """Nobody listens for this copy any more, and its replica is not told: it works on."""
        if attempt.inside:
            attempt.state, attempt.ended = "cancelled", self.now

    def ended(self, call: Call) -> None:
        """A client's call has its outcome."""
        request = call.request
        self.ended_calls[request.index] = call
        if call.outcome == "answered" and call.winner is not None and call.winner.request is not None:
            self.ids.answered(request, call.winner.request.sequences[0].output_ids)
        following = self._turns.after(request) if self._reacts else None
        if following is not None:
            self._following += 1
            self.queue.after(following.think or 0.0, self._follow, following)

    def prompt_of(self, call: Call) -> list[int]:
        """The ids of a call's prompt, the same for all its copies."""
        root = call.root
        if root.prompt_ids is None:
            root.prompt_ids = self.ids(root.request)
        return root.prompt_ids

    def drawn(self, law: Any, name: str, call: Call, number: int) -> float:
        """A time of this law (s) for a client's call and the number of its attempt, whoever asks, and when."""
        key = (law if _hashable(law) else id(law), name, number)
        row = self._draws.get(key)
        if row is None:
            streams = self.streams if not number else self.streams.under(number)
            made = law if hasattr(law, "draw") else law_of(law)
            times: NDArray[np.float64] = np.asarray(made.draw(streams.fresh(name), len(self._plan)), dtype=np.float64)
            row = self._draws[key] = times.tolist()
        return row[self._root_numbers[call.root.request.index]]

    # ---- from replicas ---------------------------------------------------------------------------------------------

    def started(self, attempt: Attempt) -> None:
        if attempt.inside and not attempt.call.over:
            attempt.call.sending.started(attempt.call, attempt)

    def first_token(self, attempt: Attempt) -> None:
        if attempt.inside and not attempt.call.over:
            attempt.first_token = self.now
            attempt.call.sending.first_token(attempt.call, attempt)

    def finished(self, attempt: Attempt) -> None:
        call = attempt.call
        if not attempt.inside or call.over:
            return
        attempt.state, attempt.ended = "answered", self.now
        call.sending.finished(call, attempt)
        if call.over and (latency := call.latency) is not None:
            self.latencies.append(latency)

    def failed(self, attempt: Attempt, error: str, state: str = "failed") -> None:
        if attempt.inside:
            attempt.state, attempt.ended, attempt.error = state, self.now, error
            if not attempt.call.over:
                attempt.call.sending.failed(attempt.call, attempt)


def _is_one(value: object, method: str) -> bool:
    """Whether it is an object with the method, and no class of such."""
    return callable(getattr(value, method, None)) and not isinstance(value, type)


def _hashable(law: Any) -> bool:
    try:
        hash(law)
    except TypeError:
        return False
    return True


@dataclass(frozen=True)
class ReplicaRun:
    """What a replica did: its steps (none at a station), s in which it was busy (a station's servers added up), and how
    many copies were sent to it."""

    steps: list[StepRecord] = field(repr=False)
    busy: float
    attempts: int


@dataclass(frozen=True)
class ClusterRun:
    """What came of a plan.

    calls: in its order, leaves under the call that they are part of.
    attempts: every copy, in the order in which they were sent.
    replicas: in their order.
    fleet: how many replicas there were, and when; None where all were on all the time.
    """

    calls: list[Call] = field(repr=False)
    attempts: list[Attempt] = field(repr=False)
    replicas: list[ReplicaRun] = field(repr=False)
    planned: list[Planned] = field(repr=False)
    fleet: FleetRun | None = None

    @property
    def timelines(self) -> list[Timeline]:
        """One a call, as its client saw it: what every metric reads."""
        return [call.timeline for call in self.calls]

    @property
    def latencies(self) -> list[float]:
        """s from arrival to answer, of the calls that were answered."""
        return [latency for call in self.calls if (latency := call.latency) is not None]

    def count(self, outcome: str) -> int:
        """Calls with this outcome: "answered", "failed", "refused" or "abandoned"."""
        return sum(call.outcome == outcome for call in self.calls)

    @property
    def extra_load(self) -> float:
        """Copies beyond the first of each call (of each leaf, where calls fan out), as a share of them; 0 for none."""
        sent = len({id(attempt.call) for attempt in self.attempts})
        return len(self.attempts) / sent - 1 if sent else 0.0

    @property
    def extra_work(self) -> float:
        """The share of all work that went into copies whose answer nobody got: s at stations, tokens at engines."""
        total = math.fsum(attempt.work for attempt in self.attempts)
        wasted = math.fsum(attempt.work for attempt in self.attempts if attempt.call.winner is not attempt)
        return wasted / total if total else 0.0

    @property
    def error_rate(self) -> float | None:
        """Failed and refused copies as a share of those that were not cancelled; None without any. A copy that was
        taken back says nothing about whether it would have failed."""
        judged = [attempt for attempt in self.attempts if attempt.state != "cancelled"]
        return sum(attempt.state != "answered" for attempt in judged) / len(judged) if judged else None


def simulate_cluster(
    planned: Iterable[Planned],
    replicas: Sequence[Replica],
    *,
    router: Router | None = None,
    sending: Sending | None = None,
    door: Door | None = None,
    patience: float | None = None,
    ids: PromptIds | None = None,
    seed: int | Streams = 0,
    scaling: Scaling | None = None,
) -> ClusterRun:
    """Send a plan of requests through a front door to replicas, and follow everybody to the end.

    Services, routing and tokens have random streams of their own: another policy meets the same requests, and each
    attempt of a request the same work.

    Args:
        planned: what comes, and when (`workload.Workload.plan`, or a trace's). Stations draw their own work and ignore
            its tokens.
        replicas: `EngineReplica` and `StationReplica`, in any mixture.
        router: which replica a copy goes to; `JoinShortestQueue()` if None.
        sending: what is done with a request; `Once()` if None.
        door: who is let in; everybody if None.
        patience: s after which a client gives up; everything of its call is cancelled then.
        ids: makes the prompts; from `seed` if None.
        seed: a whole number, or Streams.
        scaling: how many of the replicas are on; all of them if None.

    Raises:
        UnderloadError: no replica, a patience that is none.
        InvalidRequest: a request that a replica could never serve.
    """
    if not isinstance(replicas, Sequence) or not replicas or not all(_is_one(one, "serve") for one in replicas):
        raise UnderloadError(
            f"replicas are descriptions such as [StationReplica(Exponential(1))] * 4, at least one, got "
            f"{replicas!r:.60}"
        )
    for name, given, method in (
        ("router", router, "choose"), ("sending", sending, "begin"), ("door", door, "admit"),
    ):  # fmt: skip
        if given is not None and not _is_one(given, method):
            remedy = f"; make one: {given.__name__}(…)" if isinstance(given, type) else ""
            raise UnderloadError(f"{name} is an object with a method {method}, got {given!r:.60}{remedy}")
    if patience is not None:
        patience = arguments.above_zero("patience", patience, "s")
    front = Front(
        planned, replicas, router or JoinShortestQueue(), sending or Once(), door, patience, ids, seed, scaling
    )
    return front.run()
