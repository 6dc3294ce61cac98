"""Task 5: what a prompt costs those who decode, on paper; and a chunk for a promise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator

from underload.labs.answers import named, near, number, shown
from underload.labs.continuous_batching.stage import OVERHEAD, PER_TOKEN, Ask, Run, serve
from underload.simulation import LinearStepTime


def longest_gap(chunk: int, prompt: int, decoding: int, overhead: float, per_token: float) -> float:
    """s between two tokens of a sequence that decodes with `decoding` in all, while the prompt is computed."""
    return overhead + per_token * (decoding + min(chunk, prompt))


def first_token(chunk: int, prompt: int, decoding: int, overhead: float, per_token: float) -> float:
    """s from the step in which the prompt begins until its first token."""
    steps = math.ceil(prompt / chunk)
    return steps * (overhead + per_token * decoding) + per_token * prompt


def chunk_for(gap: float, decoding: int, overhead: float, per_token: float) -> int | None:
    """The largest chunk with which nobody's gap is longer than `gap` s; None if even one token is too much."""
    chunk = math.floor((gap - overhead) / per_token - decoding + 1e-9)
    return chunk if chunk >= 1 else None


_right_gap, _right_first, _right_chunk = longest_gap, first_token, chunk_for


@dataclass(frozen=True)
class Server:
    """How long a step takes, how many decode, and what they were promised."""

    overhead: float  # s
    per_token: float  # s
    decoding: int
    gap: float  # s between two tokens, at most
    prompt: int

    def __str__(self) -> str:
        return (
            f"your server: a step takes {1e3 * self.overhead:g} ms and {1e6 * self.per_token:g} µs for each token; "
            f"{self.decoding} sequences decode, a prompt of {self.prompt:,} tokens comes, and nobody's tokens may be "
            f"more than {1e3 * self.gap:g} ms apart"
        )


def your_server(seed: int) -> Server:
    """The server that a student's number draws."""
    draw = np.random.default_rng([seed, 6])
    overhead = float(draw.integers(6, 21)) * 1e-3
    per_token = float(draw.integers(4, 16)) * 1e-5
    decoding = int(draw.integers(8, 65))
    chunk = int(draw.integers(40, 400))
    # Half a token away from both neighbours, so that no rounding decides.
    gap = round(overhead + per_token * (decoding + chunk + 0.5), 6)
    return Server(overhead, per_token, decoding, gap, int(draw.integers(600, 3000)))


def check_longest_gap(longest_gap: Callable[..., Any], **case: Any) -> None:
    """The longest gap of those who decode.

    Raises:
        AssertionError: naming the value and what gives it.
    """
    got, wanted = number(longest_gap(**case), f"longest_gap({_said(case)})"), _right_gap(**case)
    chunk, prompt, decoding, overhead, per_token = (case[name] for name in _NAMES)
    slips = {
        "without those who decode": overhead + per_token * min(chunk, prompt),
        "the whole prompt: it comes in chunks": overhead + per_token * (decoding + prompt),
        "a whole chunk, and the prompt is shorter": overhead + per_token * (decoding + chunk),
        "without the part that a step takes whatever is in it": per_token * (decoding + min(chunk, prompt)),
        "until the whole prompt is done: tokens come in between": _right_first(**case),
    }
    assert near(got, wanted), (
        f"longest_gap({_said(case)}) is {1e3 * got:.6g} ms{named(got, slips)}, and should be {1e3 * wanted:.6g} ms"
    )


def check_first_token(first_token: Callable[..., Any], **case: Any) -> None:
    """The time to the first token of a prompt in chunks.

    Raises:
        AssertionError: naming the value and what gives it.
    """
    got, wanted = number(first_token(**case), f"first_token({_said(case)})"), _right_first(**case)
    chunk, prompt, decoding, overhead, per_token = (case[name] for name in _NAMES)
    whole, each = prompt / chunk, overhead + per_token * decoding
    slips = {
        "steps are whole: the last is not full": whole * each + per_token * prompt,
        "a last step that is not full is one, too": prompt // chunk * each + per_token * prompt,
        "every step as long as a full one": math.ceil(whole) * (each + per_token * chunk),
        "without those who decode": math.ceil(whole) * overhead + per_token * prompt,
        "one step: it comes in chunks": each + per_token * prompt,
    }
    assert near(got, wanted), (
        f"first_token({_said(case)}) is {1e3 * got:.6g} ms{named(got, slips)}, and should be {1e3 * wanted:.6g} ms"
    )


def check_chunk_for(
    chunk_for: Callable[..., Any], *, gap: float, decoding: int, overhead: float, per_token: float
) -> None:
    """The largest chunk that keeps a promise.

    Raises:
        AssertionError: naming the value, and the gap that it makes.
    """
    case: dict[str, Any] = {"gap": gap, "decoding": decoding, "overhead": overhead, "per_token": per_token}
    got, wanted = chunk_for(**case), _right_chunk(**case)
    words = f"chunk_for({_said(case)})"
    if wanted is None:
        assert got is None, f"{words} is {shown(got)}, and should be None: one token of a prompt is too much there"
        return
    assert got is not None, f"{words} is None, and {wanted} tokens are within the promise"
    value = number(got, words)
    assert value == int(value), f"{words} is {value:g}; a chunk is a whole number of tokens"
    slips = {
        "one more than the promise allows": wanted + 1.0,
        "one more would still be within the promise": wanted - 1.0,
        "without those who decode": float(wanted + decoding),
        "as if a step without tokens took no time": float(math.floor(gap / per_token - decoding)),
    }
    makes = 1e3 * _right_gap(int(value), int(value), decoding, overhead, per_token)
    assert value == wanted, (
        f"{words} is {value:g}{named(value, slips)}, which makes a gap of {makes:.6g} ms; the largest within "
        f"{1e3 * gap:.6g} ms is {wanted}"
    )


def check_my_chunk(my_chunk: Any, server: Server) -> None:
    """The chunk for the student's own server.

    Raises:
        NotImplementedError: nothing was written down yet.
        AssertionError: naming the gap that it makes, or what larger one would do.
    """
    if my_chunk is None:
        raise NotImplementedError("my_chunk is still None")
    got = number(my_chunk, "my_chunk")
    assert got == int(got), f"my_chunk is {got:g}; tokens come whole: write a whole number"
    wanted = _right_chunk(server.gap, server.decoding, server.overhead, server.per_token)
    assert wanted is not None
    makes = _right_gap(max(int(got), 0), server.prompt, server.decoding, server.overhead, server.per_token)
    assert got <= wanted, (
        f"my_chunk is {got:g}, and tokens would come {1e3 * makes:.4g} ms apart; {1e3 * server.gap:g} ms were promised"
    )
    assert got >= max(0.98 * wanted - 1, 1), (
        f"my_chunk is {got:g}, which keeps the promise with {1e3 * (server.gap - makes):.3g} ms to spare: a larger one "
        "would bring the prompt's first token earlier"
    )


def drawn_case(draw: Generator) -> dict[str, Any]:
    """What the two formulas take; now and then the prompt is shorter than the chunk."""
    chunk = int(draw.integers(16, 500))
    return {
        "chunk": chunk,
        "prompt": int(draw.integers(chunk // 2, 6 * chunk)),
        "decoding": int(draw.integers(1, 100)),
        "overhead": float(draw.integers(4, 40)) * 1e-3,
        "per_token": float(draw.integers(2, 40)) * 1e-5,
    }


def drawn_promise(draw: Generator, chunk: int | None = None) -> dict[str, Any]:
    """What chunk_for takes, where `chunk` (or a drawn one) is the answer by half a token; none is, if it is 0."""
    overhead, per_token = float(draw.integers(4, 40)) * 1e-3, float(draw.integers(2, 40)) * 1e-5
    decoding = int(draw.integers(1, 100))
    chunk = int(draw.integers(1, 400)) if chunk is None else chunk
    return {
        "gap": overhead + per_token * (decoding + chunk + 0.5),
        "decoding": decoding,
        "overhead": overhead,
        "per_token": per_token,
    }


def with_a_prompt(policy: Any, *, prompt: int = 1000, at: float = 0.3, decoding: int = 12, server: Any = None) -> Run:
    """Sequences that decode when a long prompt comes, `at` s; it is the last request.

    Args:
        server: whose steps take how long; the stage's own without one.
    """
    asks = [Ask(8 + number, 100 + 2 * number, 0.004 * number) for number in range(decoding)]
    steps = LinearStepTime(server.overhead, server.per_token) if server else LinearStepTime(OVERHEAD, PER_TOKEN)
    return serve(policy, [*asks, Ask(prompt, 20, at)], step_time=steps)


_NAMES = ("chunk", "prompt", "decoding", "overhead", "per_token")


def _said(case: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value:.6g}" for name, value in case.items())
