"""Task 4: what it costs to come back, by computing again and by copies on the host."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator

from underload.labs.answers import named, near, number, or_library, shown
from underload.shapes import Device, ModelShape, device, shape


def recompute(tokens: Any, shape: ModelShape, device: Device) -> Any:
    """s to compute the keys and values of so many tokens again, beside others' steps: by FLOPs alone."""
    matrices = 2 * shape.num_layers * shape.layer_matrix_parameters * tokens
    attention = 4 * shape.num_layers * shape.query_size * tokens * (tokens + 1) / 2
    return (matrices + attention) / device.flops


def swap(tokens: int, shape: ModelShape, link: float, block_size: int, per_block: float) -> float:
    """s to copy the blocks of so many tokens to the host and back over a link of so many bytes/s."""
    blocks = math.ceil(tokens / block_size)
    return 2 * blocks * (block_size * shape.kv_bytes_per_token(2) / link + per_block)


def break_even(again: Callable[[int], float], copied: Callable[[int], float], most: int) -> int | None:
    """The fewest tokens from which on, up to `most`, copying is quicker than computing again; None if it never is."""
    shortest = None
    for tokens in range(most, 0, -1):
        if copied(tokens) >= again(tokens):
            return shortest
        shortest = tokens
    return shortest


_right_recompute, _right_swap, _right_break_even = recompute, swap, break_even

LINK, PER_BLOCK, BLOCK = 64e9, 100e-6, 16  # given: bytes/s of a PCIe 5.0 x16 link, s a block, tokens a block
_MODELS = ("llama-2-7b", "llama-2-13b", "llama-3-8b", "llama-2-70b")
_DEVICES = ("a100-80gb", "h100-sxm", "l40s")


def drawn_swap(draw: Generator) -> dict[str, Any]:
    """A model, a device, and a link to its host."""
    return {
        "shape": shape(str(draw.choice(_MODELS))),
        "device": device(str(draw.choice(_DEVICES))),
        "link": float(draw.choice([16e9, 32e9, 64e9])),
        "block_size": int(draw.choice([8, 16, 32])),
        "per_block": float(draw.uniform(10e-6, 200e-6)),
        "tokens": int(draw.integers(100, 4000)),
    }


def check_recompute(recompute: Callable[..., Any], tokens: int, shape: ModelShape, device: Device, **_: Any) -> None:
    """s of computing again, by FLOPs; 1 % more or less, which leaves room for tokens² as the number of pairs.

    Raises:
        AssertionError: naming the value and the slip that gives it.
    """
    got = number(recompute(tokens, shape, device), "recompute()")
    right = _right_recompute(tokens, shape, device)
    linear = _right_recompute(1, shape, device) * tokens
    pairs = 4 * shape.num_layers * shape.query_size * tokens * (tokens + 1) / 2 / device.flops
    slips = {
        "without attention, which grows with the square": right - pairs,
        "every token attends to all, also to those after it: the causal mask halves that": right + pairs,
        "one FLOP a weight; a product and a sum are two": (right - pairs) / 2 + pairs,
        "with the embedding, which is looked up and not multiplied": right
        + 2 * shape.embedding_parameters * tokens / device.flops,
        "in ms; it should be in s": 1e3 * right,
        "attention for one layer only": right - pairs + pairs / shape.num_layers,
        "as many times the cost of one token": linear,
    }
    assert math.isclose(got, right, rel_tol=0.004), (
        f"recompute({tokens}, {shape.name}, {device.name}) is {got:.4g} s{named(got, slips, 2e-3)}; it should be "
        f"{right:.4g} s: 2 FLOPs for each weight of a layer's matrices and token, and 4 · query_size for each layer "
        "and pair of tokens, over device.flops"
    )


def check_swap(
    swap: Callable[..., Any], tokens: int, shape: ModelShape, link: float, block_size: int, per_block: float, **_: Any
) -> None:
    """s of copying out and back.

    Raises:
        AssertionError: naming the value and the slip that gives it.
    """
    got = number(swap(tokens, shape, link, block_size, per_block), "swap()")
    right = _right_swap(tokens, shape, link, block_size, per_block)
    blocks, byte = math.ceil(tokens / block_size), shape.kv_bytes_per_token(2)
    heads = shape.num_heads / shape.num_kv_heads
    moved = 2 * blocks * block_size * byte / link
    slips = {
        "one way only": right / 2,
        "the tokens' bytes; a block is copied whole": 2 * (tokens * byte / link + blocks * per_block),
        "without per_block": moved,
        "per_block counted once": moved + per_block,
        "per_block one way only": moved + blocks * per_block,
        "per_block for each token": moved + 2 * tokens * per_block,
        "rounded down to full blocks": 2 * (tokens // block_size) * (block_size * byte / link + per_block),
        "one byte a value; there are two": moved / 2 + 2 * blocks * per_block,
        "keys, and no values": moved / 2 + 2 * blocks * per_block,
    }
    if heads > 1:
        slips["by attention heads; only KV heads are kept"] = heads * moved + 2 * blocks * per_block
    assert near(got, right, 1e-4), (
        f"swap({tokens}, {shape.name}, {link:.3g}, {block_size}, {per_block:.3g}) is {got:.4g} s"
        f"{named(got, slips, 1e-4)}; it should be {right:.4g} s for {blocks} blocks"
    )


def check_break_even(
    break_even: Callable[..., Any], again: Callable[[int], float], copied: Callable[[int], float], most: int
) -> None:
    """The fewest tokens from which on copying is quicker, at every length up to `most`.

    Raises:
        AssertionError: naming the value and a length at which it is wrong.
    """
    got = break_even(again, copied, most)
    right = _right_break_even(again, copied, most)
    if right is None:
        assert got is None, (
            f"break_even() is {shown(got)}, and at {most} tokens copying takes {copied(most):.4g} s, computing again "
            f"{again(most):.4g} s: there is no such length, which is None"
        )
        return
    first = next(tokens for tokens in range(1, most + 1) if copied(tokens) < again(tokens))
    value = number(got, "break_even()") if got is not None else math.nan
    assert value == right, (
        f"break_even() is {shown(got)}"
        f"{named(value, {'the first such length; a block more, and copying is dearer again': first})}"
        f"; it should be {right}: there copying takes {copied(right):.4g} s and computing again {again(right):.4g} s"
        + (f", and at {right - 1} tokens {copied(right - 1):.4g} s and {again(right - 1):.4g} s" if right > 1 else "")
    )


def drawn_stairs(draw: Generator) -> tuple[Callable[[int], float], Callable[[int], float], int]:
    """A curve that bends, a staircase of blocks that crosses it more than once, and the most tokens."""
    size, bend = int(draw.integers(4, 40)), float(draw.uniform(1e-6, 1e-4))
    rise = float(draw.uniform(0.7, 0.95))  # of a token, where the curve begins with 1
    begin = float(draw.uniform(5, 20))

    def again(tokens: int) -> float:
        return tokens + bend * tokens * tokens

    def copied(tokens: int) -> float:
        return begin + rise * size * math.ceil(tokens / size)

    return again, copied, int(draw.integers(400, 600))


def or_none(yours: Callable[..., Any], library: Callable[..., Any]) -> Callable[..., Any]:
    """As `or_library`, for a function of which None is an answer."""

    def told(function: Callable[..., Any]) -> Callable[..., Any]:
        def answer(*arguments: Any) -> Any:
            found = function(*arguments)
            return math.inf if found is None else found

        answer.__name__ = getattr(function, "__name__", "your function")
        return answer

    either = or_library(told(yours), told(library))

    def result(*arguments: Any) -> Any:
        found = either(*arguments)
        return None if found == math.inf else found

    return result


@dataclass(frozen=True)
class Server:
    """A model on a device, and the link over which its blocks go to the host."""

    shape: ModelShape
    device: Device
    link: float  # bytes/s
    block_size: int
    per_block: float  # s

    def __str__(self) -> str:
        return (
            f"your server: {self.shape.name} on {self.device.name}, a link of {self.link / 1e9:.0f} GB/s to the host, "
            f"blocks of {self.block_size} tokens, {1e6 * self.per_block:.0f} µs for each block that is copied"
        )

    def break_even(self) -> int:
        """From how many tokens on, up to `MOST`, copying costs less; more than `MOST` if it never does."""
        tokens = np.arange(1, MOST + 1)
        blocks = -(-tokens // self.block_size)
        copied = blocks * _right_swap(1, self.shape, self.link, self.block_size, self.per_block)
        dearer = np.flatnonzero(copied >= _right_recompute(tokens, self.shape, self.device))
        return int(dearer[-1]) + 2 if len(dearer) else 1

    def first(self) -> int:
        """The first length at which copying costs less."""
        tokens = np.arange(1, MOST + 1)
        copied = -(-tokens // self.block_size) * _right_swap(1, self.shape, self.link, self.block_size, self.per_block)
        return int(np.argmax(copied < _right_recompute(tokens, self.shape, self.device))) + 1


MOST = 4000  # tokens up to which a break-even is looked for


def your_server(seed: int) -> Server:
    """The server that a student's number draws: one that has a break-even, and not at once."""
    draws = np.random.default_rng([seed, 9])
    while True:
        server = Server(
            shape(str(draws.choice(_MODELS))),
            device(str(draws.choice(_DEVICES))),
            float(draws.choice([16e9, 32e9, 64e9])),
            int(draws.choice([8, 16, 32])),
            int(draws.integers(2, 41)) * 5e-6,
        )
        found = server.break_even()
        if 300 < found < 0.9 * MOST:
            return server


def check_my_break_even(value: Any, server: Server) -> None:
    """The break-even that the student wrote down, a block more or less.

    Raises:
        NotImplementedError: nothing was written down yet.
        AssertionError: naming the value and what it is instead.
    """
    if value is None:
        raise NotImplementedError("my_break_even is still None")
    got = number(value, "my_break_even")
    right = server.break_even()
    slips = {
        "the first such length; a block more, and copying is dearer again": float(server.first()),
        "blocks, not tokens": right / server.block_size,
    }
    assert abs(got - right) <= max(server.block_size, 0.02 * right), (
        f"my_break_even is {got:g}{named(got, slips, 0.02)}, which is not that of {server}: call your break_even() "
        f"with your recompute() and swap() as functions of tokens, up to {MOST:,}"
    )
