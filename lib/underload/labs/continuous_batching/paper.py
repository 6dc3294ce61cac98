"""Task 1: how many steps a load takes on paper, in whole batches and with everybody coming and going."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.random import Generator

from underload.labs.answers import listed, near, number


def static_steps(lengths: Sequence[int], size: int) -> int:
    """Steps of batches of `size`, in order, one after the other; a batch ends with its longest member."""
    return sum(max(lengths[start : start + size]) for start in range(0, len(lengths), size))


def continuous_steps(lengths: Sequence[int], slots: int) -> int:
    """Steps where a slot that becomes free is taken in the next step by the first that waits."""
    queue, running, steps = deque(lengths), list[int](), 0
    while queue or running:
        while queue and len(running) < slots:
            running.append(queue.popleft())
        running = [left - 1 for left in running if left > 1]
        steps += 1
    return steps


_right_static, _right_continuous = static_steps, continuous_steps


def answer_lengths(seed: int, count: int, mean: float = 100.0) -> list[int]:
    """Lengths of answers that end after each token with the same probability: geometric, the exponential law in whole
    tokens."""
    return drawn_lengths(np.random.default_rng(seed), count, mean)


def drawn_lengths(draw: Generator, count: int, mean: float = 12.0) -> list[int]:
    """The same, drawn from a stream."""
    return draw.geometric(1 / mean, count).tolist()


def check_static_steps(static_steps: Callable[..., Any], lengths: Sequence[int], size: int) -> None:
    """The steps of a load in whole batches.

    Raises:
        AssertionError: naming the value, what gives it, and what was wanted.
    """
    got = number(static_steps(list(lengths), size), f"static_steps({listed(lengths)}, {size})")
    wanted = _right_static(lengths, size)
    batches = -(-len(lengths) // size)
    slips = {
        "that is what continuous batching takes": float(_right_continuous(lengths, size)),
        "a batch's longest member holds it, not its mean": float(
            sum(np.mean(lengths[start : start + size]) for start in range(0, len(lengths), size))
        ),
        "every batch ends with its own longest member, not with the longest of all": float(batches * max(lengths)),
        "the last batch, which is not full, was left out": float(
            _right_static(lengths[: len(lengths) // size * size], size) if len(lengths) >= size else 0
        ),
        "batches are made in the order in which requests came, not by length": float(
            _right_static(sorted(lengths), size)
        ),
        "tokens, not steps: all rows compute in one step": float(sum(lengths)),
        "all tokens divided by the size, as if no row were ever kept for nothing": sum(lengths) / size,
        "all tokens divided by the size and rounded up, as if no row were kept for nothing": float(
            -(-sum(lengths) // size)
        ),
    }
    assert near(got, wanted), (
        f"static_steps({listed(lengths)}, {size}) is {got:g}{_cause(got, slips)}, and the batches take {wanted} steps"
    )


def check_continuous_steps(continuous_steps: Callable[..., Any], lengths: Sequence[int], slots: int) -> None:
    """The steps of a load where everybody comes and goes.

    Raises:
        AssertionError: naming the value, what gives it, and what was wanted.
    """
    got = number(continuous_steps(list(lengths), slots), f"continuous_steps({listed(lengths)}, {slots})")
    wanted = _right_continuous(lengths, slots)
    slips = {
        "that is what whole batches take": float(_right_static(lengths, slots)),
        "all tokens divided by the slots, as if no slot were ever empty": sum(lengths) / slots,
        "all tokens divided by the slots and rounded up, as if no slot were empty": float(-(-sum(lengths) // slots)),
        "requests are dealt out to the slots in advance; the next one takes the slot that is free first": float(
            max(sum(lengths[slot::slots]) for slot in range(slots))
        ),
        "the longest request comes first there; here they begin in the order in which they came": float(
            _right_continuous(sorted(lengths, reverse=True), slots)
        ),
        "a step is lost whenever a slot changes hands": float(_late_steps(lengths, slots)),
    }
    assert near(got, wanted), (
        f"continuous_steps({listed(lengths)}, {slots}) is {got:g}{_cause(got, slips)}, and it takes {wanted} steps"
    )


def _cause(got: float, slips: Mapping[str, float]) -> str:
    """The first slip that gives this value, in brackets, or nothing."""
    return next((f" ({words})" for words, value in slips.items() if near(got, value)), "")


def _late_steps(lengths: Sequence[int], slots: int) -> int:
    """Where a freed slot stays empty for one step."""
    return _right_continuous([*lengths[:slots], *(length + 1 for length in lengths[slots:])], slots)
