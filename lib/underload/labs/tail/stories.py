"""Task 4: one request's way through the steps, and the parts of its time that add up to its latency."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.random import Generator

from underload.labs.answers import near, number, shown

#: What a request's time is cut into, in the order in which it is drawn.
PARTS = ("client", "queue", "own prefill", "others' prefill", "own decode", "preemption", "gaps")


@dataclass(frozen=True)
class Row:
    """One step, as one request met it.

    start, end: s.
    base: s that the step would have lasted without prompts in it; never more than it did last.
    prompts: tokens of prompts in the step, everybody's, and of answers that are computed again.
    own: of these, the request's, computed for the first time.
    again: of these, the request's, computed before and lost.
    token: whether the request got a token at the end of the step.
    away: whether it was without its blocks, waiting to come back.
    """

    start: float
    end: float
    base: float
    prompts: int = 0
    own: int = 0
    again: int = 0
    token: bool = False
    away: bool = False


@dataclass(frozen=True)
class Story:
    """One request: its instants (s), and every step from the one that it began in to that of its last token.

    In each of the steps it computes something, or it is away.
    """

    place: int
    arrival: float
    sent: float
    scheduled: float
    first_token: float
    last_token: float
    rows: tuple[Row, ...]

    @property
    def e2e(self) -> float:
        """s from arrival to the last token."""
        return self.last_token - self.arrival


def attribute(story: Story) -> dict[str, float]:
    """s by part."""
    return _parts(story)


def _parts(story: Story, slip: str = "") -> dict[str, float]:
    """The parts, or what a slip makes of them."""
    parts = dict.fromkeys(PARTS, 0.0)
    parts["client"] = story.sent - story.arrival
    parts["queue"] = story.scheduled - story.sent
    at, away = story.scheduled, False
    for row in story.rows:
        parts["preemption" if away and slip != "gap" else "gaps"] += 0.0 if slip == "no gaps" else row.start - at
        at, away = row.end, row.away
        took = row.end - row.start
        if row.away and slip != "away":
            parts["preemption"] += took
            continue
        base = 0.0 if slip == "tokens" and row.prompts else row.base if row.prompts else took
        each = (took - base) / row.prompts if row.prompts else 0.0
        mine = "own decode" if row.start >= story.first_token else "own prefill"
        if slip == "whole" and mine == "own decode" and row.prompts > row.own + row.again:
            parts["others' prefill"] += took
            continue
        parts[mine if row.token or row.own or slip == "base" else "preemption"] += base
        parts[mine] += each * row.own
        parts[mine if slip == "again" else "preemption"] += each * row.again
        parts["others' prefill"] += each * (row.prompts - row.own - row.again)
    return parts


_SLIPS = {
    "tokens": "the base of a step is not the prompts': only what is beyond it is cut by tokens",
    "whole": "a step with another's prompt in it gave the request a token all the same: the base is its own",
    "away": "while it is away, all of a step is preemption",
    "gap": "between two steps, one that is away waits to come back: preemption",
    "no gaps": "the time between two steps is left out",
    "again": "tokens computed again are preemption",
    "base": "a step in which it only computes again, and gets no token, is preemption, base and all",
}


def by_hand() -> Story:
    """The request of the text, in s."""
    rows = (
        Row(3.0, 7.0, 1.0, prompts=30, own=20, token=True),
        Row(7.5, 9.5, 2.0, token=True),
        Row(9.5, 12.5, 1.0, prompts=10, token=True),
        Row(12.5, 14.5, 2.0, away=True),
        Row(14.5, 17.5, 1.0, prompts=8, again=8),
        Row(17.5, 19.5, 1.0, prompts=4, own=1, again=3, token=True),
    )
    return Story(0, 0.0, 1.0, 3.0, 7.0, 19.5, rows)


def drawn_story(draw: Generator, place: int = 0) -> Story:
    """A request to which everything happens: a late client, gaps, chunks, neighbours, and a preemption or two."""
    arrival = float(draw.uniform(0, 5))
    sent = arrival + float(draw.exponential(0.2))
    scheduled = at = sent + float(draw.exponential(0.5))
    rows: list[Row] = []

    def step(**what: Any) -> None:
        nonlocal at
        start = at + (float(draw.exponential(0.01)) if rows else 0.0)
        took = float(draw.uniform(0.02, 0.2))
        base = took * float(draw.uniform(0.2, 0.95)) if what.get("prompts") else took
        at = start + took
        rows.append(Row(start, at, base, **what))

    def beside() -> int:
        return int(draw.integers(1, 60)) if draw.random() < 0.5 else 0

    chunks = int(draw.integers(1, 4))
    for chunk in range(chunks):
        own = int(draw.integers(1, 40))
        step(prompts=own + beside(), own=own, token=chunk == chunks - 1)
    first = at
    for _ in range(int(draw.integers(1, 3))):
        for _ in range(int(draw.integers(1, 6))):
            step(prompts=beside(), token=True)
        for _ in range(int(draw.integers(1, 4))):
            step(prompts=beside(), away=True)
        chunks = int(draw.integers(1, 3))
        for chunk in range(chunks):
            again, last = int(draw.integers(1, 40)), chunk == chunks - 1
            step(prompts=again + last + beside(), own=int(last), again=again, token=last)
    step(prompts=beside(), token=True)
    return Story(place, arrival, sent, scheduled, first, at, tuple(rows))


def slowest(stories: Sequence[Story], share: float = 0.05) -> list[Story]:
    """The slowest of them, the slowest first."""
    return sorted(stories, key=lambda story: -story.e2e)[: max(1, math.ceil(share * len(stories) - 1e-9))]


def check_story(answer: Callable[..., Any], story: Story) -> None:
    """Every part, and that they add up.

    Raises:
        AssertionError: naming the part, its value, the slip that gives it, and what it should be.
    """
    words = f"request {story.place}, which took {story.e2e:.6g} s"
    got = answer(story)
    assert isinstance(got, Mapping), f"{words}: attribute() returns a dictionary by part, got {shown(got)}"
    unknown = [part for part in got if part not in PARTS]
    assert not unknown, f"{words}: there is no part {unknown[0]!r}; they are {', '.join(PARTS)}"
    found = {part: number(got.get(part, 0.0), f"{words}: {part}") for part in PARTS}
    right, total = _parts(story), sum(found.values())
    wrong = [part for part in PARTS if not near(found[part], right[part])]
    if not wrong:
        return
    slips = {why: _parts(story, slip) for slip, why in _SLIPS.items()}
    fits = [why for why, parts in slips.items() if all(near(found[part], parts[part]) for part in PARTS)]
    if not fits:
        fits = [why for why, parts in slips.items() if near(found[wrong[0]], parts[wrong[0]])][:1]
    apart = total - story.e2e
    raise AssertionError(
        f"{words}: {wrong[0]} is {found[wrong[0]]:.6g} s{f' ({fits[0]})' if fits else ''}; it should be "
        f"{right[wrong[0]]:.6g} s. The parts add up to {total:.6g} s"
        + ("" if near(total, story.e2e) else f", {abs(apart):.4g} s too {'much' if apart > 0 else 'little'}")
    )


def check_run(answer: Callable[..., Any], stories: Sequence[Story], share: float = 1.0) -> None:
    """The same of the slowest requests of a run.

    Raises:
        AssertionError: as `check_story` does.
    """
    for story in slowest(stories, share):
        check_story(answer, story)
