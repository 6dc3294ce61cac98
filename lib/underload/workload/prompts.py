"""What prompts have in common: nothing, a prefix, or the whole conversation so far; as counts and as token ids.

Unshared        every prompt its own
SharedPrefix    groups of requests that begin with the same system prompt
Conversations   turns, each with all turns before it in its prompt
PromptIds       token ids for a vocabulary: equal segments give equal ids, so a prefix cache meets real hits
block_keys      one key for each full block of a prompt, for a cache without ids
shared_blocks   the hits of an infinite cache
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from underload.queueing import Service, arguments
from underload.request.errors import UnderloadError
from underload.workload.arrivals import Times
from underload.workload.lengths import EmpiricalPairs, Lengths, Tokens, whole_law
from underload.workload.planned import Planned, Segment
from underload.workload.streams import Streams


class Prompts(ABC):
    """Makes requests of arrivals and lengths."""

    @abstractmethod
    def plan(self, starts: Times, lengths: Lengths | EmpiricalPairs, streams: Streams, name: str) -> list[Planned]:
        """Requests for the given arrivals (s), numbered from 0; `name` keeps their segments apart from others'."""


@dataclass(frozen=True)
class Unshared(Prompts):
    """Every prompt its own."""

    def plan(self, starts: Times, lengths: Lengths | EmpiricalPairs, streams: Streams, name: str) -> list[Planned]:
        prompts, outputs = lengths.draw(streams["lengths"], len(starts))
        return [
            Planned(start, prompt, output, index, segments=(Segment(f"{name}r{index}", prompt),))
            for index, (start, prompt, output) in enumerate(zip(starts.tolist(), prompts.tolist(), outputs.tolist()))
        ]


@dataclass(frozen=True)
class SharedPrefix(Prompts):
    """Each request belongs to one of `groups` and begins with that group's prefix; its own part follows.

    `prefix` is the length of the prefixes: one number, or a law drawn once for each group. The prompt lengths of the
    workload are those of the own part; a context limit counts both. Group k (from 0) is chosen with weight
    1/(k + 1)^skew: 0 is all alike, 1 Zipf's law.

    Raises:
        UnderloadError: no group, a prefix below 1, or a skew below 0.
    """

    groups: int
    prefix: int | Tokens
    skew: float = 0.0

    def __post_init__(self) -> None:
        arguments.whole("groups", self.groups, least=1, most=10**6)
        arguments.at_least_zero("skew", self.skew, "")
        object.__setattr__(self, "prefix", whole_law(self.prefix))

    def plan(self, starts: Times, lengths: Lengths | EmpiricalPairs, streams: Streams, name: str) -> list[Planned]:
        rng = streams["prompts"]
        prefixes = whole_law(self.prefix).draw(rng, self.groups)
        shares = np.cumsum((np.arange(self.groups) + 1.0) ** -self.skew)
        group = np.searchsorted(shares, rng.random(len(starts)) * shares[-1], side="right")
        before = prefixes[group]
        own, outputs = lengths.draw(streams["lengths"], len(starts), before)
        rows = zip(starts.tolist(), group.tolist(), before.tolist(), own.tolist(), outputs.tolist())
        return [
            Planned(
                start,
                shared + part,
                output,
                index,
                segments=(Segment(f"{name}g{which}", shared), Segment(f"{name}r{index}", part)),
            )
            for index, (start, which, shared, part, output) in enumerate(rows)
        ]


@dataclass(frozen=True)
class Conversations(Prompts):
    """Arrivals are conversations; each turn's prompt is everything said so far and the new message.

    The prompt lengths of the workload are those of the messages, its outputs those of the answers. A turn follows the
    answer before it by a think time; when that answer ends depends on the server, so `think` stands in the plan, and
    `arrival` is the guess that an answer takes `pace` seconds a token. Turns whose guess falls beyond the horizon are
    not planned: at the start, before conversations have grown, the load is lighter than later.

    The answers in later prompts are the planned ones. They fill blocks of a cache as answers do, but hold other ids
    than a model's: `PromptIds.answered` puts in what it really said.

    Args:
        turns: how many, one number or a law.
        think: s, one number or a law of `underload.queueing`.
        system: tokens of a system prompt that all share; 0 for none.
        limit: tokens of prompt and answer together; a turn that does not fit ends its conversation.
        pace: s a token, for the guess.

    Raises:
        UnderloadError: a value outside its range.
    """

    turns: int | Tokens
    think: float | Service = 10.0
    system: int = 0
    limit: int | None = None
    pace: float = 0.02

    def __post_init__(self) -> None:
        object.__setattr__(self, "turns", whole_law(self.turns))
        arguments.whole("system", self.system, least=0, most=10**9)
        arguments.at_least_zero("pace", self.pace, "s a token")
        if self.limit is not None:
            arguments.whole("limit", self.limit, least=self.system + 2, most=10**9)
        check_time("think", self.think)

    def plan(self, starts: Times, lengths: Lengths | EmpiricalPairs, streams: Streams, name: str) -> list[Planned]:
        turns = whole_law(self.turns).draw(streams["prompts"], len(starts))
        messages, answers = (part.tolist() for part in lengths.draw(streams["lengths"], int(turns.sum())))
        thinks = draw_times(self.think, streams["think"], int(turns.sum())).tolist()
        planned: list[Planned] = []
        at = 0
        for session, (start, count) in enumerate(zip(starts.tolist(), turns.tolist())):
            who = f"{name}s{session}"
            said = [Segment(f"{name}system", self.system)] if self.system else []
            now = start
            for turn in range(count):
                message, answer, think = messages[at + turn], answers[at + turn], thinks[at + turn]
                said.append(Segment(f"{who}u{turn}", message))
                prompt = sum(segment.tokens for segment in said)
                if self.limit is not None and prompt + answer > self.limit:
                    break
                if turn:
                    now += think
                planned.append(
                    Planned(
                        now,
                        prompt,
                        answer,
                        len(planned),
                        session=who,
                        turn=turn,
                        think=think if turn else None,
                        segments=tuple(said),
                    )
                )
                now += answer * self.pace
                said.append(Segment(f"{who}a{turn}", answer))
            at += count
        return planned


def check_time(name: str, law: float | Service) -> None:
    """Raises UnderloadError when it is neither a time from 0 s nor a law of one."""
    if not hasattr(law, "draw"):
        arguments.at_least_zero(name, law, "s")


def draw_times(law: Any, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    """n times in s: always the number given, or drawn from the law."""
    return np.asarray(law.draw(rng, n)) if hasattr(law, "draw") else np.full(n, float(law))


# ---- ids and blocks ----------------------------------------------------------------------------------------------


class PromptIds:
    """Token ids of planned prompts: `ids(planned)`.

    Equal segments give equal ids, from the seed alone, in any order and in any process.

    Args:
        vocabulary: a number of tokens, or a range of ids such as range(3, 512) to leave special ones out.
        seed: a whole number from 0.

    Raises:
        UnderloadError: an empty vocabulary, or a seed that is none.
    """

    def __init__(self, vocabulary: int | range, seed: int = 0) -> None:
        ids = vocabulary if isinstance(vocabulary, range) else range(arguments.whole("vocabulary", vocabulary, least=1))
        if not len(ids) or min(ids[0], ids[-1]) < 0:
            raise UnderloadError(f"{vocabulary!r} holds no token ids; give a size, or a range such as range(3, 512)")
        self._ids = np.asarray(ids)
        self._streams = Streams(seed)
        self._kept: dict[str, list[int]] = {}
        self._answers: dict[tuple[str, int], list[int]] = {}

    def __call__(self, planned: Planned) -> list[int]:
        """The ids of the whole prompt."""
        segments = planned.segments or (Segment(f"{planned.tenant}r{planned.index}", planned.prompt_tokens),)
        answer_turns = _answer_turns(planned)
        found: list[int] = []
        for place, segment in enumerate(segments):
            turn = answer_turns.get(place)
            real = None if turn is None else self._answers.get((planned.session or "", turn))
            again = planned.session is not None or place + 1 < len(segments)  # another prompt may hold it too
            found += real if real is not None else self._segment(segment, keep=again)
        return found

    def answered(self, planned: Planned, token_ids: Sequence[int]) -> None:
        """Keep what the model said to a turn: the prompts of later turns will hold it instead of the planned ids."""
        if planned.session is not None:
            self._answers[planned.session, planned.turn] = [int(token) for token in token_ids]

    def _segment(self, segment: Segment, *, keep: bool) -> list[int]:
        known = self._kept.get(segment.identity, [])
        if len(known) < segment.tokens:
            rng = self._streams.fresh(segment.identity)
            known = self._ids[rng.integers(len(self._ids), size=segment.tokens)].tolist()
            if keep:
                self._kept[segment.identity] = known
        return known[: segment.tokens]


def _answer_turns(planned: Planned) -> dict[int, int]:
    """Which segments of a turn's prompt are answers: place -> turn. They follow each message but the last."""
    if planned.session is None:
        return {}
    places = range(len(planned.segments) - 2, -1, -2)
    return {place: planned.turn - 1 - back for back, place in enumerate(places) if planned.turn - 1 - back >= 0}


def block_keys(planned: Planned, block_size: int) -> list[bytes]:
    """A key for each full block of the prompt: equal exactly where this and all blocks before it hold the same tokens.

    Raises:
        UnderloadError: a block below 1 token.
    """
    size = arguments.whole("block_size", block_size, least=1)
    keys: list[bytes] = []
    key, content, room = b"", [], size
    for identity, tokens in planned.segments or ((f"{planned.tenant}r{planned.index}", planned.prompt_tokens),):
        start = 0
        while start < tokens:
            part = min(room, tokens - start)
            content.append((identity, start, part))
            start, room = start + part, room - part
            if not room:
                key = hashlib.blake2b(key + repr(content).encode(), digest_size=16).digest()
                keys.append(key)
                content, room = [], size
    return keys


@dataclass(frozen=True)
class Sharing:
    """How many full blocks of prompts a cache that never forgets would have held already."""

    block_size: int
    blocks: int
    hits: int

    @property
    def hit_rate(self) -> float | None:
        """hits / blocks; None without a full block."""
        return self.hits / self.blocks if self.blocks else None


def shared_blocks(planned: Iterable[Planned], block_size: int) -> Sharing:
    """Hits of an infinite cache, in order of arrival, prompts only.

    Raises:
        UnderloadError: a block below 1 token.
    """
    seen: set[bytes] = set()
    blocks = hits = 0
    for request in planned:
        keys = block_keys(request, block_size)
        blocks += len(keys)
        hits += sum(key in seen for key in keys)
        seen.update(keys)
    return Sharing(block_size, blocks, hits)
