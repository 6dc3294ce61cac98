"""Task 4: blocks run out: who may begin, and who gives up its blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.random import Generator

from underload.cache import BlockPool
from underload.labs.answers import shown
from underload.labs.continuous_batching.policies import Chunked
from underload.labs.continuous_batching.stage import Ask, Run, serve
from underload.request import Sequence
from underload.scheduling import FitsNow, LastArrived, LeastComputed

BLOCKS, LIMIT, TYPICAL = 60, 400, 60  # blocks of 16 tokens; max_tokens; tokens of an answer, on average

#: Two that run, one that wants to, and the blocks they come to.
BY_HAND: tuple[float, list[tuple[int, int, int]], int] = (60, [(30, 10, 430), (20, 100, 420), (50, 0, 70)], 19)
#: Candidates (tokens computed, preemptions), and the place of the one that goes.
BY_HAND_ROWS: tuple[list[tuple[int, int]], int] = ([(40, 1), (90, 0), (70, 0)], 2)


def tight_load(draw: Generator, requests: int = 50) -> list[Ask]:
    """More than fits into `BLOCKS` blocks at once: answers have `TYPICAL` tokens on average, and everybody asks for
    `LIMIT`."""
    arrivals = np.cumsum(draw.exponential(1 / 60, requests))
    prompts = np.minimum(draw.geometric(1 / 60, requests), 300)
    answers = np.minimum(draw.geometric(1 / TYPICAL, requests), LIMIT)
    return [
        Ask(int(prompt), int(answer), float(arrival), LIMIT)
        for arrival, prompt, answer in zip(arrivals, prompts, answers)
    ]


def serve_tight(asks: SequenceOf[Ask], admission: Any, victim: Any = None) -> Run:
    """Run a load in `BLOCKS` blocks, in chunks of 256 tokens."""
    return serve(Chunked(256), asks, blocks=BLOCKS, admission=admission, victim=victim or LastArrived())


def sequence(prompt: int, answered: int, limit: int, *, computed: int = 0, preemptions: int = 0) -> Sequence:
    """A sequence by hand: so many tokens of prompt and answer, `limit` in all."""
    return Sequence(
        prompt,
        list(range(prompt + answered)),
        max_len=limit,
        num_computed=computed,
        num_scheduled=computed,
        preemptions=preemptions,
    )


def check_admits(
    headroom: Callable[[float], Any], typical: float, sizes: SequenceOf[tuple[int, int, int]], blocks: int
) -> None:
    """The last of `sizes` wants to join the others, in a pool of so many blocks of 16, and of one block less.

    Args:
        sizes: prompt, tokens of the answer so far, most tokens in all; `blocks` are just enough for all of them.

    Raises:
        AssertionError: naming who runs, who wants to, and what was said.
    """
    *holding, newcomer = (sequence(*size) for size in sizes)
    for pool, wanted in ((BlockPool(blocks, 16), True), (BlockPool(blocks - 1, 16), False)):
        got = headroom(typical).admits(newcomer, holding, pool)
        assert isinstance(got, bool | np.bool_), f"admits() must return True or False, got {shown(got)}"
        words = "; ".join(f"{p} + {a} of at most {m}" for p, a, m in sizes[:-1])
        each = [_blocks(typical, *size) for size in sizes]
        sums = f" ({' + '.join(map(str, each))})" if len(each) > 1 else ""
        assert bool(got) is wanted, (
            f"typical answers have {typical:g} tokens; there run (prompt + answer so far) {words or 'none'}; one of "
            f"{sizes[-1][0]} + {sizes[-1][1]} of at most {sizes[-1][2]} wants to join, in {pool.num_blocks} blocks of "
            f"16: admits() says {bool(got)}, and they come to {blocks} blocks{sums}"
        )


def drawn_sizes(draw: Generator) -> tuple[float, list[tuple[int, int, int]], int]:
    """A typical answer, sequences of every kind, and the blocks they come to."""
    typical = int(draw.integers(20, 80))
    sizes = []
    for _ in range(int(draw.integers(3, 7))):
        prompt = int(draw.integers(1, 90))
        most = prompt + int(draw.integers(10, 300))
        sizes.append((prompt, int(draw.integers(0, most - prompt)), most))
    prompt = int(draw.integers(1, 90))
    sizes.append((prompt, 0, prompt + int(draw.integers(10, 300))))
    return typical, sizes, sum(_blocks(typical, *size) for size in sizes)


def _blocks(typical: float, prompt: int, answered: int, most: int) -> int:
    """Blocks of 16 that a sequence is expected to come to."""
    return math.ceil(min(prompt + max(answered, typical), most) / 16)


@lru_cache(maxsize=4)
def _fits_now(load: tuple[Ask, ...]) -> tuple[int, float]:
    """Preemptions and makespan (s) of a load where whatever fits now begins."""
    run = serve_tight(load, FitsNow())
    return run.preemptions, run.makespan


def check_few_preemptions(headroom: Callable[[float], Any], draw: Generator) -> None:
    """At most a third of the preemptions of admitting what fits now.

    Raises:
        AssertionError: naming both numbers.
    """
    load = tight_load(draw)
    got, most = serve_tight(load, headroom(TYPICAL)).preemptions, _fits_now(tuple(load))[0]
    assert got <= most / 3, (
        f"a load in {BLOCKS} blocks: {got} preemptions with your admission, and {most} where whatever fits now begins; "
        "a third of these is asked for"
    )


def check_quick_enough(headroom: Callable[[float], Any], draw: Generator) -> None:
    """At most 1.3 times as long as admitting what fits now.

    Raises:
        AssertionError: naming both times.
    """
    load = tight_load(draw)
    got, now = serve_tight(load, headroom(TYPICAL)).makespan, _fits_now(tuple(load))[1]
    assert got <= 1.3 * now, (
        f"a load in {BLOCKS} blocks takes {got:.2f} s with your admission, and {now:.2f} s where whatever fits now "
        f"begins; {1.3 * now:.2f} s are asked for: nearly nobody gets as long as the limit of {LIMIT} tokens"
    )


def check_chooses(victim: Callable[[], Any], rows: SequenceOf[tuple[int, int]], wanted: int) -> None:
    """Of candidates, last to come first, the right one goes.

    Args:
        rows: tokens computed, and preemptions so far, of each.

    Raises:
        AssertionError: naming the candidates and who was chosen.
    """
    candidates = [sequence(20, 300, 600, computed=computed, preemptions=times) for computed, times in rows]
    # As the scheduler hands them over: they can be gone through once.
    once = _Once(candidates)
    try:
        got = victim().choose(once, BlockPool(8, 16))
    except (ValueError, IndexError, StopIteration) as error:  # what is raised where nothing is left
        if once.times > 1:
            raise AssertionError(f"candidates can be gone through once: make a list of them first ({error})") from error
        raise
    words = ", ".join(f"{computed} ({times}x)" for computed, times in rows)
    if not candidates:
        assert got is None, f"nobody can be chosen: return None, got {shown(got)}"
        return
    assert any(got is one for one in candidates), (
        f"choose() must return one of the candidates, got {shown(got)}; they can be gone through once: make a list of "
        "them first"
    )
    place = next(place for place, one in enumerate(candidates) if one is got)
    assert place == wanted, (
        f"candidates with so many tokens computed, and so often preempted: {words}; choose() takes the "
        f"{_nth(place)}, and the {_nth(wanted)} should go"
    )


class _Once(Iterator[Sequence]):
    """Candidates that can be gone through once. times: how often somebody began to."""

    def __init__(self, candidates: SequenceOf[Sequence]) -> None:
        self._left = iter(candidates)
        self.times = 0

    def __iter__(self) -> Iterator[Sequence]:
        self.times += 1
        return self

    def __next__(self) -> Sequence:
        return next(self._left)


def drawn_rows(draw: Generator) -> tuple[list[tuple[int, int]], int]:
    """Candidates, and the place of the one that goes."""
    rows = [(int(draw.integers(20, 60)), int(draw.integers(0, 3))) for _ in range(int(draw.integers(2, 9)))]
    return rows, min(range(len(rows)), key=lambda place: (rows[place][1], rows[place][0], place))


def check_spread(victim: Callable[[], Any], draw: Generator) -> None:
    """On two loads that do not fit, the one that is preempted most is so at most 0.8 times as often as where always
    the least computed goes.

    Raises:
        AssertionError: naming the numbers.
    """
    loads = [tight_load(draw, 40) for _ in range(2)]
    worst, least = (
        sum(
            max(one.sequences[0].preemptions for one in serve_tight(load, FitsNow(), choice).requests) for load in loads
        )
        for choice in (victim(), LeastComputed())
    )
    assert worst <= 0.8 * least, (
        f"two loads in {BLOCKS} blocks: the request of each that is preempted most is so {worst} times with your "
        f"choice, and {least} times where always the least computed goes; {0.8 * least:.0f} are asked for"
    )


def _nth(place: int) -> str:
    return f"{place + 1}{ {0: 'st', 1: 'nd', 2: 'rd'}.get(place, 'th') }"
