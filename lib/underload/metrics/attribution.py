"""What a request waited for: its latency as a sum of parts, from its timeline and the records of the steps.

    attribute    the parts of one request's E2E, or of its TTFT; they add up to it
    slowest      a table: what the slowest requests waited for, beside all of them
    StepShares   the steps, cut up once for many requests

A request that is being served shares each step with others, and a step ends for all of them at once. So the time of a
step is cut in two first:

    base    what the step would have lasted, had it done nothing but decode: of those who decode in it, one token each
    rest    what the prompts and the padding in it added; cut among them by their tokens

The base of a step that only decodes is all of it. Of any other it is estimated, from the run itself: the median of
those nine steps of the run that only decode, as many sequences or nearly so, and lie nearest to it in time. Where a
model of the step's time is given, the base is the share of the step that the model says. In a run in which no step only
decodes, the base of a mixed step is 0, and tokens alone divide it. Never is the base longer than the step.

Then each piece goes to a part. For one that computes in the step, the base is its own; a request that is in service
and does not compute, waits for the others' base, too.

    arrival   sent        scheduled                                                     last token
       |-------|--------------|---------|----|---|--|--|-----------|--|--|xxxxxxxx|-----|--|
        client  queue, or fill  own      others'  own    a step with             preemption
                where no step   prefill  prefill  decode another's prompt
                runs

What the estimate can err on is the border between own decode, others' prefill and padding. The sum is the latency
whatever it says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from underload.metrics import latency
from underload.metrics.percentiles import mean
from underload.request.errors import UnderloadError
from underload.request.records import StepRecord, StepSize, Timeline

#: In the order in which they are drawn.
PARTS = (
    "client",  # arrival -> sent: the client was late
    "fill",  # before it was scheduled, while no step ran: a batch was to fill first
    "queue",  # before it was scheduled, while steps ran
    "own prefill",  # its prompt: those steps, less what the others' prompts and padding added to them
    "others' prefill",  # what other prompts added to steps, its own or others', once it was scheduled
    "padding",  # what rows added that are computed and thrown away
    "passed over",  # once it was scheduled, steps that decoded for others and not for it
    "own decode",  # one step for each token after the first, in the company of whoever decodes beside it
    "preemption",  # without its blocks, and computing again what it had computed before
    "gaps",  # once it was scheduled, between two steps
)

OF = ("E2E", "TTFT")

_NEIGHBOURS = 9  # steps that only decode, whose median is the base of one that does more

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _Size:
    """A step that only decodes, for a model of its time (`StepSize`)."""

    batch_size: int
    context_tokens: int
    prefill_tokens: int = 0
    padding_tokens: int = 0

    @property
    def decode_tokens(self) -> int:
        return self.batch_size

    @property
    def score_pairs(self) -> int:
        return self.context_tokens

    @property
    def logit_rows(self) -> int:
        return self.batch_size


class StepShares:
    """The steps of one engine, each cut into base and rest; made once, it serves for any number of requests.

    Args:
        steps: all of the run, in the order in which they ran.
        step_time: s that a step of some size takes, by a model (`simulation.StepTime`); None: as the run itself tells.

    Raises:
        UnderloadError: steps that overlap or run backwards, or a model by which a step takes no time.
    """

    def __init__(self, steps: Iterable[StepRecord], *, step_time: Callable[[StepSize], float] | None = None) -> None:
        steps = list(steps)
        self.starts = np.array([step.start for step in steps], dtype=float)
        self.durations = np.array([step.duration for step in steps], dtype=float)
        self.ends = self.starts + self.durations
        self.prefill = np.array([step.prefill_tokens for step in steps], dtype=float)
        self.padding = np.array([step.padding_tokens for step in steps], dtype=float)
        self.decode = np.array([step.decode_tokens for step in steps], dtype=float)
        wrong = ~(self.durations >= 0)
        wrong[1:] |= ~(self.starts[1:] >= self.ends[:-1] - _hair(self.ends[:-1]))
        if wrong.any():
            at = int(np.argmax(wrong))
            raise UnderloadError(
                f"step {at} starts at {self.starts[at]} s and lasts {self.durations[at]} s, and the one before ends at "
                f"{self.ends[at - 1]} s; give the steps of one engine, in their order"
            )
        self._covered = np.concatenate([[0.0], np.cumsum(self.durations)])
        mixed = np.flatnonzero(self.prefill + self.padding > 0)
        self.base = self.durations.copy()
        if step_time is None:
            self.base[mixed] = np.minimum(self._bases(mixed), self.durations[mixed])
        else:
            for i in mixed:
                whole, alone = step_time(steps[i]), step_time(_alone(steps[i]))
                if not 0 < whole < math.inf:
                    raise UnderloadError(f"by the model step {i} takes {whole} s; it must take some, or fit it anew")
                self.base[i] *= min(max(alone / whole, 0.0), 1.0)
        self.rest = self.durations - self.base

    def covered(self, instant: float) -> float:
        """s in which steps ran, up to an instant."""
        before = int(np.searchsorted(self.starts, instant, side="right"))
        if not before:
            return 0.0
        return float(self._covered[before - 1] + min(instant - self.starts[before - 1], self.durations[before - 1]))

    def ending(self, instants: Iterable[float]) -> NDArray[np.intp]:
        """Which steps ended at these instants.

        Raises:
            UnderloadError: none did.
        """
        at = np.array(list(instants), dtype=float)
        found = np.searchsorted(self.ends, at - _hair(at))
        near = np.minimum(found, max(len(self.ends) - 1, 0))
        wrong = np.flatnonzero(np.abs(self.ends[near] - at) > _hair(at)) if len(self.ends) else np.arange(len(at))
        if len(wrong):
            raise UnderloadError(
                f"no step ended at {at[wrong[0]]} s, where the request was given a token or computed its prompt; give "
                "all steps of the engine that served it, and the timeline that this engine kept"
            )
        return found

    def _bases(self, mixed: NDArray[np.intp]) -> Floats:
        """What steps would have lasted, had they only decoded, by those of the run that did no more."""
        alone = np.flatnonzero((self.prefill + self.padding == 0) & (self.decode > 0))
        if not len(alone):
            return np.zeros(len(mixed))
        rows = self.decode[alone]
        known = np.unique(rows)
        wanted = np.maximum(self.decode[mixed], 1)
        above = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        below = np.maximum(above - 1, 0)
        nearest = known[np.where(wanted - known[below] <= known[above] - wanted, below, above)]
        found = np.empty(len(mixed))
        for row in np.unique(nearest):
            like, asked = alone[rows == row], nearest == row
            width = min(_NEIGHBOURS, len(like))
            medians = np.median(sliding_window_view(self.durations[like], width), axis=1)
            first = np.searchsorted(like, mixed[asked]) - width // 2
            found[asked] = medians[np.clip(first, 0, len(like) - width)]
        return found


def attribute(
    timeline: Timeline,
    steps: Iterable[StepRecord] | StepShares,
    *,
    of: str = "E2E",
    step_time: Callable[[StepSize], float] | None = None,
) -> dict[str, float]:
    """What one request waited for: s by part (`PARTS`). They add up to its E2E, or its TTFT; none is negative.

    What an answer cost that had to be computed again (after a preemption, or a step that failed) is preemption, less
    the step that its next token would have taken anyway. Copies to and from the host are in the steps that made them.
    Turning ids into text is in steps and gaps (`stages` tells it apart). Of several samples it is the first one's
    latency, and what the others compute of the prompt again counts as others' prefill.

    Args:
        timeline: of a request that the engine served (`engine.finished`).
        steps: of that engine (`engine.steps`); for many requests, `StepShares(engine.steps)`.
        of: "E2E" or "TTFT".
        step_time: s that a step takes, by a model; see `StepShares`.

    Returns:
        Empty, when there is no token.

    Raises:
        UnderloadError: another word for `of`; a timeline that runs backwards, that was kept by somebody other than the
            engine, or of another engine than the steps; a model beside steps that are cut up already.
    """
    if of not in OF:
        raise UnderloadError(f"of must be one of {', '.join(OF)}, got {of!r}")
    shares = _shares(steps, step_time)
    latency.check(timeline)
    if timeline.first_token is None:
        return {}
    if timeline.scheduled is None or not timeline.prefills:
        raise UnderloadError(
            "the timeline does not say when the request was scheduled and in which steps its prompt was computed; give "
            "the one that the engine kept (engine.finished)"
        )
    times = timeline.token_times if of == "E2E" else timeline.token_times[:1]
    end = times[-1]
    tokens = shares.ending(times)
    prefills = [entry for entry in timeline.prefills if entry[0] <= end + _hair(end)]
    computing = shares.ending(at for at, _, _ in prefills)
    last = int(tokens[-1]) + 1

    # A step that was under way when it was scheduled counts to the queue.
    first = int(np.searchsorted(shares.starts, timeline.scheduled - _hair(timeline.scheduled)))
    begin = timeline.scheduled
    if first and shares.ends[first - 1] > begin:
        begin = min(float(shares.ends[first - 1]), end)
    sent = timeline.arrival if timeline.sent is None else timeline.sent
    parts = dict.fromkeys(PARTS, 0.0)
    parts["client"] = sent - timeline.arrival
    parts["queue"] = shares.covered(begin) - shares.covered(sent)
    parts["fill"] = max(begin - sent - parts["queue"], 0.0)

    window = slice(first, last)
    durations, decode = shares.durations[window], shares.decode[window]
    new, again = _own(timeline, prefills, computing - first, last - first)
    later = np.zeros(last - first, dtype=bool)  # a token that is not the first comes of the step
    later[tokens[1:] - first] = True
    later[tokens[0] - first] = False

    # Without its blocks: from a preemption to the beginning of the step in which it computes again.
    away = np.zeros(last - first)
    own = np.union1d(tokens, computing)
    since = begin
    for instant in timeline.preempted:
        come_back = int(np.searchsorted(shares.starts[own], instant - _hair(instant)))
        until = float(shares.starts[own[come_back]]) if come_back < len(own) else end
        since = max(since, instant)
        if since < until:
            parts["preemption"] += until - since
            overlap = np.minimum(shares.ends[window], until) - np.maximum(shares.starts[window], since)
            away += np.maximum(overlap, 0.0)
            since = until
    here = np.divide(np.maximum(durations - away, 0.0), durations, out=np.zeros_like(durations), where=durations > 0)
    parts["gaps"] = max(end - begin - parts["preemption"] - float(here @ durations), 0.0)

    # What prompts and padding added, by their tokens.
    prefill, padding = shares.prefill[window], shares.padding[window]
    first_time, repeats = new > 0, again > 0
    again = np.minimum(again, prefill)  # of two steps that end at one instant, the other may have been found
    new = np.minimum(new, prefill - again)
    each = np.divide(
        here * shares.rest[window], prefill + padding, out=np.zeros_like(durations), where=prefill + padding > 0
    )
    parts["own prefill"] = float(each @ np.where(later, 0.0, new))
    parts["own decode"] = float(each @ np.where(later, new, 0.0))
    parts["preemption"] += float(each @ again)
    parts["others' prefill"] = float(each @ (prefill - new - again))
    parts["padding"] = float(each @ padding)

    # The base, to what the request got of the step.
    base = here * shares.base[window]
    sits_out = ~later & ~first_time & ~repeats
    parts["own decode"] += float(base[later].sum())
    parts["own prefill"] += float(base[~later & first_time].sum())
    parts["preemption"] += float(base[~later & ~first_time & repeats].sum())
    parts["others' prefill"] += float(base[sits_out & (decode == 0) & (prefill > 0)].sum())
    parts["passed over"] = float(base[sits_out & ((decode > 0) | (prefill == 0))].sum())
    return parts


@dataclass(frozen=True)
class Slow:
    """One slow request: its place among the timelines, its latency (s), and the parts of it (s)."""

    place: int
    latency: float
    parts: dict[str, float]


@dataclass(frozen=True)
class Slowest:
    """What the slowest requests waited for; prints as a table.

    of: "E2E" or "TTFT".
    share: of the requests that count as slow.
    requests: how many succeeded; `left_out` others did not, and have no latency.
    slow: the slow ones, the slowest first.
    slow_parts, all_parts: the mean of each part (s), over the slow ones and over all that succeeded.
    """

    of: str
    share: float
    requests: int
    left_out: int
    slow: tuple[Slow, ...]
    slow_parts: dict[str, float]
    all_parts: dict[str, float]

    @property
    def threshold(self) -> float | None:
        """The least latency among the slow ones, in s."""
        return self.slow[-1].latency if self.slow else None

    @property
    def excess(self) -> dict[str, float]:
        """By part: s that the slow ones spend on it beyond the mean of all. It adds up to what they are slower by."""
        return {part: self.slow_parts[part] - self.all_parts[part] for part in self.slow_parts}

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON and pictures; s."""
        return {
            "of": self.of,
            "share": self.share,
            "requests": self.requests,
            "left_out": self.left_out,
            "threshold_s": self.threshold,
            "slow_parts_s": self.slow_parts,
            "all_parts_s": self.all_parts,
            "excess_s": self.excess,
            "slow": [{"place": one.place, "latency_s": one.latency, "parts_s": one.parts} for one in self.slow],
        }

    def __str__(self) -> str:
        if self.threshold is None:
            return f"no request succeeded, so none was slow; {self.left_out} left out"
        slow, everybody = sum(self.slow_parts.values()), sum(self.all_parts.values())
        lines = [
            f"{self.of} of the slowest {len(self.slow)} of {self.requests} requests, {1e3 * self.threshold:.4g} ms and "
            f"longer; {self.left_out} others did not succeed",
            f"{'ms on average':<18}{'slow':>10}{'all':>10}{'excess':>10}{'share of it':>13}",
        ]
        for part, excess in self.excess.items():
            if max(self.slow_parts[part], self.all_parts[part]) > 1e-9 * slow:  # rounding is no part
                share = f"{excess / (slow - everybody):.0%}" if slow > everybody else "–"
                cells = (self.slow_parts[part], self.all_parts[part], excess)
                lines.append(f"{part:<18}" + "".join(f"{1e3 * cell:>10.4g}" for cell in cells) + f"{share:>13}")
        cells = (slow, everybody, slow - everybody)
        lines.append(f"{self.of:<18}" + "".join(f"{1e3 * cell:>10.4g}" for cell in cells))
        return "\n".join(lines)

    __repr__ = __str__


def slowest(
    timelines: Iterable[Timeline],
    steps: Iterable[StepRecord] | StepShares,
    *,
    share: float = 0.01,
    of: str = "E2E",
    step_time: Callable[[StepSize], float] | None = None,
) -> Slowest:
    """What the slowest share of the requests waited for, part by part, beside all of them.

    Only requests that succeeded have a latency; the others are counted and left out. There is always one that is the
    slowest; of two as slow, the earlier.

    Args:
        share: above 0 and at most 1; rounded up to whole requests.

    Raises:
        UnderloadError: a share outside of that, or what `attribute` says.
    """
    if not 0 < share <= 1:
        raise UnderloadError(f"share is the part of the requests that counts as slow, above 0 and at most 1: {share}")
    timelines = list(timelines)
    shares = _shares(steps, step_time)
    found: list[Slow] = []
    for place, timeline in enumerate(timelines):
        if latency.succeeded(timeline):
            took = latency.e2e(timeline) if of == "E2E" else latency.ttft(timeline)
            assert took is not None
            found.append(Slow(place, took, attribute(timeline, shares, of=of)))
    slow = sorted(found, key=lambda one: (-one.latency, one.place))[: math.ceil(share * len(found) - 1e-9)]

    def means(ones: list[Slow]) -> dict[str, float]:
        return {part: mean(one.parts[part] for one in ones) or 0.0 for part in PARTS}

    return Slowest(of, share, len(found), len(timelines) - len(found), tuple(slow), means(slow), means(found))


def _shares(steps: Iterable[StepRecord] | StepShares, step_time: Callable[[StepSize], float] | None) -> StepShares:
    if not isinstance(steps, StepShares):
        return StepShares(steps, step_time=step_time)
    if step_time is not None:
        raise UnderloadError("the steps are cut up already; give step_time to StepShares, where that is done")
    return steps


def _own(
    timeline: Timeline, prefills: list[tuple[float, int, int]], steps: NDArray[np.intp], count: int
) -> tuple[Floats, Floats]:
    """Tokens that the request's prefill computed in each of `count` steps, for the first time and again."""
    new, again = np.zeros(count), np.zeros(count)
    known = 0  # tokens of which keys and values were computed, or found in the cache, at some time
    for (at, start, stop), step in zip(prefills, steps.tolist()):
        # The last token that was drawn before has not been fed back.
        drawn = int(np.searchsorted(timeline.token_times, at - _hair(at)))
        known = max(known, timeline.prompt_tokens + drawn - 1 if drawn else 0)
        repeated = min(max(known - start, 0), stop - start)
        again[step] += repeated
        new[step] += stop - start - repeated
        known = max(known, stop)
    return new, again


def _alone(step: StepRecord) -> _Size:
    """The step without its prompts and its padding. Which of the keys that it read were the prompts', a record does not
    say: it follows from their pairs of a query and a key, exactly where one prompt is in the step, or several of one
    length."""
    rows = max(step.decode_tokens, 1)
    if not step.decode_tokens:
        return _Size(rows, 0)
    context = step.context_tokens
    if not step.prefill_tokens:
        return _Size(rows, context * rows // (rows + step.padding_tokens))
    # Of r prompts with q new tokens and a context of c each, beside others of one new token:
    #     context = others + r c        pairs = others + r (q c - q (q - 1) / 2)
    prompts = max(step.batch_size - rows, 1)
    each = step.prefill_tokens / prompts
    if each > 1:
        theirs = (step.score_pairs - context) / (each - 1) + step.prefill_tokens / 2
    else:
        theirs = context * prompts / step.batch_size
    return _Size(rows, int(context - min(max(theirs, step.prefill_tokens), context - rows)))


def _hair(instant: Any) -> Any:
    """Instants are equal that are so near to each other: a start and a duration add up to an end but for rounding."""
    return 1e-9 * (1.0 + np.abs(instant))
