"""What serves a load: replicas of a kind behind a front door, and how to run a plan on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

from underload.cache import BlockPool
from underload.queueing import arguments
from underload.request import UnderloadError
from underload.scheduling import Scheduler, Shedding
from underload.simulation import (
    ClusterRun,
    Door,
    EngineReplica,
    Failures,
    Replica,
    Router,
    Sending,
    StationReplica,
    simulate_cluster,
)
from underload.workload import Planned, PromptIds


@dataclass(frozen=True)
class System:
    """Replicas of a kind behind a front door.

    replica: what each of them is (`simulation.EngineReplica`, `StationReplica`).
    replicas: how many.
    router, sending, door: policies; each run gets a copy, since they may remember something.
    patience: s after which a client gives up; None waits for ever.
    failing: how many of the replicas fail, and when; None: nobody.

    For other processes all of it must be sendable: functions are named ones at the top of a module.

    Raises:
        UnderloadError: no description of a replica, replicas below 1, or more that fail than there are.
    """

    replica: EngineReplica | StationReplica
    replicas: int = 1
    router: Router | None = None
    sending: Sending | None = None
    door: Door | None = None
    patience: float | None = None
    failing: tuple[int, Failures] | None = None

    def __post_init__(self) -> None:
        arguments.whole("replicas", self.replicas, least=1, most=10_000)
        if not isinstance(self.replica, EngineReplica | StationReplica):
            raise UnderloadError(
                f"a replica is an EngineReplica or a StationReplica of `simulation`, got {self.replica!r:.60}"
            )
        if self.failing is not None:
            arguments.whole("replicas that fail", self.failing[0], least=0, most=self.replicas)

    def run(self, planned: Sequence[Planned], *, seed: int = 0) -> ClusterRun:
        """Serve a plan; the same plan and seed give the same run."""
        replicas: list[Replica] = [self.replica] * self.replicas
        if self.failing is not None:
            count, failures = self.failing
            replicas[:count] = [replace(self.replica, failures=failures)] * count
        router, sending, door = deepcopy((self.router, self.sending, self.door))
        return simulate_cluster(
            planned,
            replicas,
            router=router,
            sending=sending,
            door=door,
            patience=self.patience,
            ids=_Ids(planned, seed),
            seed=seed,
        )

    @property
    def bare(self) -> System:
        """The same replicas, none of which fails or sheds; everybody is admitted, sends once and waits for ever."""
        if isinstance(self.replica, StationReplica):
            replica: EngineReplica | StationReplica = replace(self.replica, failures=None, buffer=None)
        else:
            make = self.replica.scheduler
            replica = replace(self.replica, failures=None, scheduler=None if make is None else _Keeping(make))
        return replace(self, replica=replica, sending=None, door=None, patience=None, failing=None)

    def scheduler(self) -> Scheduler | None:
        """A scheduler as each replica has one; None at stations."""
        if not isinstance(self.replica, EngineReplica):
            return None
        if self.replica.scheduler is None:
            return Scheduler(BlockPool(100_000, 16))
        made = self.replica.scheduler() if callable(self.replica.scheduler) else self.replica.scheduler
        if not isinstance(made, Scheduler) or made is self.replica.scheduler:
            raise UnderloadError(
                f"a replica's scheduler is a function that makes a fresh Scheduler each time, got {made!r:.60}"
            )
        return made


@dataclass(frozen=True)
class _Keeping:
    """The same scheduler, which lets everybody wait as long as it takes."""

    make: Callable[[], Scheduler]

    def __call__(self) -> Scheduler:
        scheduler = self.make()
        scheduler.shedding = Shedding()
        return scheduler


def check_system(system: object) -> None:
    """Raises:
    UnderloadError: it is no system.
    """
    if not isinstance(system, System):
        raise UnderloadError(f"the system is a planning.System, got {system!r:.60}")


class _Ids(PromptIds):
    """Prompts of a plan. Where a request shares nothing, its tokens are one and the same, which no other request has: a
    simulation compares tokens and never reads them, and a list of one number takes no time to make."""

    def __init__(self, planned: Sequence[Planned], seed: int) -> None:
        super().__init__(32_000, seed=seed)
        self._uses = Counter(segment.identity for one in planned for segment in one.segments)

    def __call__(self, planned: Planned) -> list[int]:
        if planned.session is not None or any(self._uses[segment.identity] > 1 for segment in planned.segments):
            return super().__call__(planned)
        return [32_000 + planned.index] * planned.prompt_tokens


def shares_nothing(planned: Sequence[Planned]) -> bool:
    """Whether every request stands for itself: no prompt in common, no conversation."""
    uses = Counter(segment.identity for one in planned for segment in one.segments)
    return not any(one.session is not None for one in planned) and max(uses.values(), default=1) == 1
