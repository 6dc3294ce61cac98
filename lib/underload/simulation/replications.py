"""Many runs, each with its own random numbers, and the same ones for every alternative."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from underload.metrics import mean_interval, paired_difference
from underload.metrics.means import MeanInterval
from underload.queueing import arguments
from underload.request.errors import UnderloadError
from underload.workload import Streams

#: One run: takes the streams of its replication, gives back a figure or whatever the figures are taken from.
Experiment = Callable[[Streams], Any]
#: Takes a figure from what an experiment gave back.
Figure = Callable[[Any], float]


@dataclass(frozen=True)
class Replications:
    """What independent runs of one experiment gave, in their order."""

    results: tuple[Any, ...]
    confidence: float = 0.95
    reached: bool = True  # the precision asked for; True where none was

    def __len__(self) -> int:
        return len(self.results)

    def figures(self, of: Figure | None = None) -> list[float]:
        """One figure a run: the results themselves, or `of` each.

        Raises:
            UnderloadError: one that is no number.
        """
        found = [result if of is None else of(result) for result in self.results]
        for figure in found:
            if isinstance(figure, str | bytes) or not hasattr(figure, "__float__"):
                raise UnderloadError(
                    f"a run gave {figure!r:.60}, which is no number; say what to take from it, as in "
                    "of=lambda run: run.mean_wait"
                )
        return [arguments.as_float(figure) for figure in found]

    def interval(self, of: Figure | None = None) -> MeanInterval:
        """The mean of a figure over the runs, with Student's interval."""
        return mean_interval(self.figures(of), self.confidence)


@dataclass(frozen=True)
class Comparison:
    """What alternatives gave under the same loads: replication i of each met the same random numbers."""

    alternatives: dict[str, Replications]

    def __getitem__(self, name: str) -> Replications:
        if name not in self.alternatives:
            raise UnderloadError(f"no alternative {name!r}; there are {', '.join(map(repr, self.alternatives))}")
        return self.alternatives[name]

    def difference(self, a: str, b: str, of: Figure | None = None) -> MeanInterval:
        """The mean of a - b over pairs of runs under one load, with an interval: if it leaves out 0, they differ."""
        first, second = self[a], self[b]
        return paired_difference(first.figures(of), second.figures(of), first.confidence)

    @property
    def reached(self) -> bool:
        """Whether the precision asked for was reached."""
        return all(one.reached for one in self.alternatives.values())


def replicate(
    experiment: Experiment,
    *,
    runs: int = 10,
    seed: int = 0,
    of: Figure | None = None,
    until: float | None = None,
    most: int = 1_000,
    confidence: float = 0.95,
    processes: int = 1,
) -> Replications:
    """Run an experiment several times with independent random numbers.

        found = replicate(lambda streams: simulate(arrivals=…, service=…, horizon=…, seed=streams).mean_wait, runs=20)
        print(found.interval())

    Args:
        experiment: takes the streams of its replication and should draw from nothing else.
        runs: how many, at least 2; with `until`, how many at first.
        seed: run i has Streams(seed).under(i), whatever `runs` is.
        of: the figure that `until` looks at; None when the experiment gives back the figure itself.
        until: go on until half the interval's width is at most this share of the mean (0.05 is "to 5 %"). Stopping when
            it looks narrow makes it a little too narrow (Law and Kelton, "Simulation Modeling and Analysis", 3rd ed.,
            section 9.4.1), so `runs` should be 10 at least.
        most: with `until`, stop after so many runs all the same; `reached` then says no.
        confidence: of the intervals.
        processes: run so many at once. The experiment must then be a named function at the top of a module.

    Raises:
        UnderloadError: runs below 2, a precision that is none, an experiment that cannot be sent to another process.
    """
    found = compare(
        {"": experiment},
        runs=runs,
        seed=seed,
        of=of,
        until=until,
        most=most,
        confidence=confidence,
        processes=processes,
    )
    return found[""]


def compare(
    experiments: Mapping[str, Experiment],
    *,
    runs: int = 10,
    seed: int = 0,
    of: Figure | None = None,
    until: float | None = None,
    most: int = 1_000,
    confidence: float = 0.95,
    processes: int = 1,
) -> Comparison:
    """Run alternatives on common random numbers: run i of each gets the same streams, so differences are of policy.

    With `until`, goes on until the half width of every alternative's difference from the first is at most that share of
    the first one's mean (of one alternative alone: its own half width). Other arguments as those of `replicate`.

    Raises:
        UnderloadError: no alternative, and as `replicate`.
    """
    if not experiments or not isinstance(experiments, Mapping) or not all(map(callable, experiments.values())):
        raise UnderloadError(
            f"there is no experiment to run; give functions of the streams, each by its name, got {experiments!r:.60}"
        )
    runs = arguments.whole("runs", runs, least=2)
    processes = arguments.whole("processes", processes, least=1)
    most = max(arguments.whole("most", most, least=2), runs)
    if until is not None:
        until = arguments.above_zero("until", until, "")
    base = Streams(seed)
    names = list(experiments)
    results: dict[str, list[Any]] = {name: [] for name in names}

    def made(reached: bool = True) -> Comparison:
        return Comparison({name: Replications(tuple(results[name]), confidence, reached) for name in names})

    def precise(found: Comparison) -> bool:
        first = found[names[0]].interval(of)
        widths = [found.difference(name, names[0], of).half_width for name in names[1:]] or [first.half_width]
        return max(widths) <= (until or 0.0) * abs(first.mean)

    pool: AbstractContextManager[Executor | None] = nullcontext()
    if processes > 1:
        for name in names:
            _check_sendable(experiments[name])
        pool = ProcessPoolExecutor(processes)
    with pool as workers:
        count = runs
        while True:
            for name in names:
                todo = [base.under(i) for i in range(len(results[name]), count)]
                run = experiments[name]
                results[name] += map(run, todo) if workers is None else workers.map(run, todo)
            if until is None:
                return made()
            found = made()
            if precise(found):
                return found
            if count >= most:
                return made(False)
            count = min(count + max(processes, count // 4), most)


def _check_sendable(experiment: Experiment) -> None:
    try:
        pickle.dumps(experiment)
    except Exception as error:
        raise UnderloadError(
            f"{getattr(experiment, '__name__', experiment)!s} cannot be sent to another process ({error}); make it a "
            "named function at the top of a module, or leave processes at 1"
        ) from None
