"""Who sends what when, where a turn of a conversation waits for the answer before it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from underload.workload.planned import Planned


class Turns:
    """A plan, told apart: requests with a time of their own, and turns that follow an answer.

    A turn that has a think time comes that long after the answer before it; where the plan has no turn before it, it
    comes at its own time.

    first: the requests that come at their own time, in the order of the plan.
    """

    def __init__(self, planned: Iterable[Planned]) -> None:
        self.first: list[Planned] = []
        self._later: dict[tuple[str, str], deque[Planned]] = {}
        begun: set[tuple[str, str]] = set()
        for request in planned:
            follows = request.think is not None and request.turn and (request.tenant, request.session) in begun
            if request.session is not None:
                begun.add((request.tenant, request.session))
            if request.session is not None and follows:
                self._later.setdefault((request.tenant, request.session), deque()).append(request)
            else:
                self.first.append(request)

    def after(self, answered: Planned) -> Planned | None:
        """The turn that its client sends `think` s after this answer; each is given once."""
        following = self._later.get((answered.tenant, answered.session or ""))
        return following.popleft() if following else None

    @property
    def waiting(self) -> int:
        """Turns whose answer before has not come yet."""
        return sum(map(len, self._later.values()))
