"""Arrivals made of records: given instants, and windows with a process fitted to each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from underload.queueing import arguments
from underload.request.errors import UnderloadError
from underload.workload.arrivals import Arrivals, Times


@dataclass(frozen=True)
class Windowed(Arrivals):
    """Another stationary process in each window of `width` seconds, None where nothing arrives; for fitted traces.

    Each window starts afresh, so that gaps across a border are less regular, or less bursty, than those inside.
    CV and index are those of the processes within a window; the rate that changes between windows adds to the index.

    Raises:
        UnderloadError: a width not above 0, no window, or windows that are all empty.
    """

    width: float  # s
    windows: Sequence[Arrivals | None]
    rate: float = field(init=False)

    def __post_init__(self) -> None:
        arguments.above_zero("width", self.width, "s")
        rates = [process.rate for process in self.windows if process is not None]
        if not rates:
            raise UnderloadError("every window is empty: nothing ever arrives; give one window a process")
        object.__setattr__(self, "windows", tuple(self.windows))
        object.__setattr__(self, "rate", math.fsum(rates) / len(self.windows))

    @property
    def span(self) -> float:
        """Seconds that the windows cover."""
        return self.width * len(self.windows)

    def arrivals(self, rng: np.random.Generator, horizon: float) -> Times:
        if arguments.at_least_zero("horizon", horizon, "s") > self.span:
            raise UnderloadError(
                f"the windows end at {self.span:g} s, before the horizon of {horizon:g} s; shorten the horizon"
            )
        return super().arrivals(rng, horizon)

    def _chunks(self, rng: np.random.Generator) -> Iterator[Times]:
        for index, process in enumerate(self.windows):
            if process is not None:
                yield index * self.width + process.arrivals(rng, self.width)


@dataclass(frozen=True, eq=False)
class Replay(Arrivals):
    """Instants as they are, `speed` times as fast: 2 halves every gap and doubles the rate.

    CV and index in windows of w/speed are those of the record in windows of w. Nothing is drawn: the generator is not
    touched, and no instant is moved. `Trace.arrivals` makes one.

    Raises:
        UnderloadError: instants that are unsorted, negative or not finite, or a speed not above 0.
    """

    instants: ArrayLike  # s
    speed: float = 1.0
    rate: float = field(init=False)

    def __post_init__(self) -> None:
        arguments.above_zero("speed", self.speed, "")
        instants = np.array(self.instants, dtype=np.float64).ravel()
        if not np.isfinite(instants).all() or (len(instants) and instants[0] < 0) or (np.diff(instants) < 0).any():
            raise UnderloadError("instants must be finite, sorted and at least 0 s; sort them and subtract the first")
        instants = instants / self.speed
        instants.flags.writeable = False
        object.__setattr__(self, "instants", instants)
        span = float(instants[-1]) if len(instants) else 0.0
        object.__setattr__(self, "rate", (len(instants) - 1) / span if span else math.nan)

    @property
    def cv(self) -> float | None:
        gaps = np.diff(np.asarray(self.instants))
        return float(gaps.std() / gaps.mean()) if len(gaps) and gaps.any() else None

    def arrivals(self, rng: np.random.Generator, horizon: float) -> Times:
        instants, horizon = np.asarray(self.instants), arguments.at_least_zero("horizon", horizon, "s")
        if len(instants) and horizon > np.nextafter(instants[-1], math.inf):
            raise UnderloadError(
                f"the record ends at {instants[-1]:g} s, before the horizon of {horizon:g} s; a longer one would be "
                "silence that nobody measured: shorten the horizon"
            )
        return instants[
            : np.searchsorted(instants, arguments.at_least_zero("horizon", horizon, "s"), side="left")
        ].copy()

    def _chunks(self, rng: np.random.Generator) -> Iterator[Times]:
        yield np.asarray(self.instants)
