"""Records of real load: requests with their times and lengths, windows of fitted clients, and measured runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from underload.queueing import arguments
from underload.request import FinishReason, Timeline, UnderloadError
from underload.workload.arrivals import Times
from underload.workload.lengths import Beyond, EmpiricalPairs, EmpiricalTokens, Ints
from underload.workload.planned import Planned, Segment
from underload.workload.renewal import Gamma, Poisson, Weibull
from underload.workload.replay import Replay, Windowed
from underload.workload.streams import Streams


@dataclass(frozen=True, eq=False)
class Trace:
    """Requests as they were recorded, in order of time.

    instants       s from the first row; None where only lengths were kept
    prompt_tokens  0 where the record says nothing or the request failed
    output_tokens  likewise
    failed         rows that the record marks as failures: they arrived, and got no answer
    labels         who or what: a tenant or a model; empty when the record has none
    segments       what each prompt is made of, as far as the record knows; None where it does not
    block_size     tokens of a block in `segments`, where they are blocks
    step           s between the ticks of the clock that stamped the rows, where it is coarse (3 s, whole seconds);
                   None for a fine one
    oddities       what a user should know, one sentence each
    source         where it comes from, under which licence
    synthetic      drawn here to resemble a public trace, not recorded
    """

    name: str
    instants: Times | None
    prompt_tokens: Ints
    output_tokens: Ints
    failed: NDArray[np.bool_]
    labels: tuple[str, ...] = ()
    segments: tuple[tuple[Segment, ...], ...] | None = None
    sessions: tuple[tuple[str | None, int], ...] | None = None
    block_size: int | None = None
    step: float | None = None
    oddities: tuple[str, ...] = ()
    source: str = ""
    synthetic: bool = False

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    @property
    def usable(self) -> NDArray[np.bool_]:
        """Rows with a prompt and an answer: those that can be planned."""
        return ~self.failed & (self.prompt_tokens > 0) & (self.output_tokens > 0)

    @property
    def times(self) -> Times:
        """`instants`.

        Raises:
            UnderloadError: the record has none.
        """
        if self.instants is None:
            raise UnderloadError(
                f"{self.name} has lengths and no times; give it arrivals: Workload(Poisson(rate), trace.lengths())"
            )
        return self.instants

    def spread(self, seed: int | Streams = 0) -> Times:
        """The instants, those of a coarse clock at random places within its step, in s.

        A clock with steps puts requests on one instant that came one after the other; replayed as it stands it makes
        bursts that never happened. Rows keep their order. With a fine clock nothing moves.

        Raises:
            UnderloadError: the record has no times.
        """
        if self.step is None:
            return self.times
        tick = np.rint(self.times / self.step)
        streams = seed if isinstance(seed, Streams) else Streams(seed)
        inside = streams.fresh("spread").random(len(tick))
        return np.asarray((tick + inside)[np.lexsort((inside, tick))] * self.step)

    def arrivals(self, *, speed: float = 1.0, spread: bool = True, seed: int | Streams = 0) -> Replay:
        """All arrivals, failures included, `speed` times as fast; those of a coarse clock spread unless told otherwise.

        Raises:
            UnderloadError: the record has no times, or a speed not above 0.
        """
        return Replay(self.spread(seed) if spread else self.times, speed)

    def lengths(self, *, limit: int | None = None, beyond: Beyond | None = None) -> EmpiricalPairs:
        """The pairs of prompt and answer of the usable rows, to draw from."""
        keep = self.usable
        return EmpiricalPairs(self.prompt_tokens[keep], self.output_tokens[keep], limit=limit, beyond=beyond)

    def plan(
        self, *, speed: float = 1.0, spread: bool = True, seed: int | Streams = 0, horizon: float | None = None
    ) -> list[Planned]:
        """The usable rows as a plan, row for row; failures are left out, for nobody knows how long they would be.

        Args:
            speed: 2 is twice as fast.
            spread: rows of a coarse clock at random places within its step (`seed`).
            horizon: s, after the speed; None takes all.

        Raises:
            UnderloadError: the record has no times, or a number outside its range.
        """
        instants = (self.spread(seed) if spread else self.times) / arguments.above_zero("speed", speed, "")
        planned: list[Planned] = []
        for row in np.flatnonzero(self.usable).tolist():
            if horizon is not None and instants[row] >= horizon:
                break
            session, turn = self.sessions[row] if self.sessions else (None, 0)
            planned.append(
                Planned(
                    float(instants[row]),
                    int(self.prompt_tokens[row]),
                    int(self.output_tokens[row]),
                    len(planned),
                    tenant=self.labels[row] if self.labels else "",
                    session=session,
                    turn=turn,
                    segments=self.segments[row] if self.segments else (),
                )
            )
        return planned


@dataclass(frozen=True, eq=False)
class ClientWindows:
    """One client of ServeGen: a rate and a fitted law of the gaps for each window of time.

    `family` is "Gamma", "Weibull" or "" (nothing arrived); `cv` is that of the recorded gaps.
    """

    name: str
    width: float  # s
    rate: Times  # 1/s
    cv: Times
    family: tuple[str, ...]
    shape: Times
    source: str = ""

    def __len__(self) -> int:
        return len(self.rate)

    def arrivals(self, first: int = 0, last: int | None = None, *, by: Literal["fit", "cv"] = "fit") -> Windowed:
        """Arrivals of windows `first` to `last` (not included), with time 0 at the first of them.

        The rate is the recorded one in either case. "fit" takes the fitted family and shape, whose CV is often below
        the recorded one (a fit follows the bulk, a CV the longest gaps); "cv" takes a gamma law with the recorded CV.

        Raises:
            UnderloadError: no window in the range, all of them empty, or another `by`.
        """
        if by not in ("fit", "cv"):
            raise UnderloadError(f'by must be "fit" or "cv", got {by!r}')
        chosen = range(len(self))[first:last]
        if not len(chosen):
            raise UnderloadError(f"windows {first} to {last} are none of the {len(self)} of {self.name}; count from 0")
        return Windowed(self.width, [self._process(index, by) for index in chosen])

    def _process(self, index: int, by: str) -> Gamma | Weibull | Poisson | None:
        rate, cv, shape = float(self.rate[index]), float(self.cv[index]), float(self.shape[index])
        if rate == 0:
            return None
        if by == "cv" and cv > 0:
            if not 1e-6 <= cv <= 1e6:
                raise UnderloadError(f"window {index} of {self.name} has a CV of {cv:g}; a gamma law has 1e-6 to 1e6")
            return Gamma(rate, 1 / cv**2)
        if by == "fit" and shape > 0 and self.family[index] in ("Gamma", "Weibull"):
            return Gamma(rate, shape) if self.family[index] == "Gamma" else Weibull(rate, shape)
        return Poisson(rate)  # too few arrivals for a fit


@dataclass(frozen=True, eq=False)
class ClientLengths:
    """Lengths of a ServeGen client: for each stretch of time the law of its prompts and of its answers."""

    name: str
    starts: tuple[float, ...]  # s
    prompt: tuple[EmpiricalTokens | None, ...]
    output: tuple[EmpiricalTokens | None, ...]
    source: str = ""


@dataclass(frozen=True, eq=False)
class Measured:
    """A measured run of a real engine, one row a request. All times in s from the first arrival, on one clock.

    The client stamps arrivals with the wall clock and the engine its own events with another one. The offset between
    them is taken from the request that got through fastest: whatever that one spent between client and engine is taken
    for 0 in all.
    """

    name: str
    arrival: Times
    queued: Times
    scheduled: Times
    first_token: Times
    last_token: Times
    prompt_tokens: Ints
    output_tokens: Ints
    source: str = ""

    def __len__(self) -> int:
        return len(self.arrival)

    def timelines(self) -> list[Timeline]:
        """One timeline a request. Only the first and the last token were stamped: those between are spread evenly.

        TTFT, TPOT and E2E are measured; ITL and stalls are not, and equal TPOT here.
        """
        rows = zip(
            *(
                values.tolist()
                for values in (self.arrival, self.queued, self.scheduled, self.first_token, self.last_token)
            ),
            self.prompt_tokens.tolist(),
            self.output_tokens.tolist(),
        )
        return [
            Timeline(
                arrival=arrival,
                sent=arrival,
                queued=queued,
                scheduled=scheduled,
                token_times=np.linspace(first, last, output).tolist() if output > 1 else [last],
                finished=last,
                prompt_tokens=prompt,
                finish_reason=FinishReason.LENGTH,
            )
            for arrival, queued, scheduled, first, last, prompt, output in rows
        ]

    def trace(self) -> Trace:
        """The load of the run: what came when."""
        return Trace(
            self.name,
            self.arrival,
            self.prompt_tokens,
            self.output_tokens,
            np.zeros(len(self), bool),
            step=clock_step(self.arrival),
            source=self.source,
        )


# Steps that clocks and recorders have, in s, and how far off a tick may be (a recorder that rounds to ms).
_STEPS = (3600.0, 900.0, 600.0, 300.0, 60.0, 30.0, 20.0, 15.0, 10.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.5, 0.2, 0.1)
_OFF = 0.0015


def clock_step(instants: Times) -> float | None:
    """The step of a coarse clock in s, read off the instants; None when it is finer than 0.1 s, or too few are there.

    Arrivals at equal gaps are not taken for a coarse clock.
    """
    if len(instants) < 20:
        return None
    gaps = np.diff(instants)
    if np.allclose(gaps, gaps[0], rtol=0, atol=_OFF):
        return None
    for step in _STEPS:
        off = np.abs(instants - np.rint(instants / step) * step)
        if off.max() <= _OFF and instants[-1] >= 8 * step:
            return step
    return None


def step_oddity(instants: Times, step: float) -> str:
    """What to say about a coarse clock."""
    ticks = len(np.unique(np.rint(instants / step)))
    return (
        f"the clock has steps of {step:g} s: {len(instants)} rows share {ticks} instants; gaps below that are "
        "artefacts, and a replay should spread rows within a step"
    )


def relative(instants: Times) -> tuple[Times, NDArray[np.int64], bool]:
    """Instants in order from 0 on, the order itself, and whether rows had to be moved for it.

    Raises:
        UnderloadError: one that is not finite.
    """
    if not np.isfinite(instants).all():
        raise UnderloadError("a time is not finite; mend the row or leave it out")
    order = np.argsort(instants, kind="stable")
    moved = bool((np.diff(instants) < 0).any())
    ordered = instants[order]
    return ordered - (ordered[0] if len(ordered) else 0.0), order, moved


def finite_rate(instants: Times) -> float | None:
    """Arrivals per second: gaps / span; None for fewer than two instants."""
    span = float(instants[-1] - instants[0]) if len(instants) > 1 else 0.0
    return (len(instants) - 1) / span if span > 0 and math.isfinite(span) else None
