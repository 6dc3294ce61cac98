"""Sums, worked lines of this book's formulas, and its vocabulary: what pocket knows besides stories.

A `Line` can be asked and answered, and has exactly one right answer, so what a model writes can be
marked without a judge. A tenth of all lines is *held out*: chosen by a checksum of the question's
meaning, never written into the training text in any form, and used to measure whether the model
computes or remembers.
"""

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """One fact that can be worked out: how it is asked in a chat, and how it is written down."""

    key: str  # its meaning, the same for "3 + 4" and "4 + 3": what is held out is held out in every form
    ask: str
    text: str
    stem: int  # characters of `text` before its answer
    by_heart: bool = False  # learnt like a table, because other lines lean on it: never held out

    @property
    def held_out(self) -> bool:
        return not self.by_heart and zlib.crc32(self.key.encode()) % 10 == 0


def _line(key: str, ask: str, stem: str, answer: str, by_heart: bool = False) -> Line:
    return Line(key, ask, stem + answer, len(stem), by_heart)


def addition(rng: random.Random) -> Line:
    """Tens and ones apart, as a pupil thinks aloud: 47 + 38 = 70 + 15 = 85."""
    total = rng.randint(0, 99)
    a = rng.randint(0, total)
    b = total - a
    tens, ones = a // 10 * 10 + b // 10 * 10, a % 10 + b % 10
    aloud = f" {tens} + {ones} =" if tens else ""
    return _line(
        f"{min(a, b)}+{max(a, b)}",
        f"{a} + {b}",
        f"{a} + {b} =",
        f"{aloud} {total}.",
        min(a % 10, b % 10, a // 10, b // 10) == 0,
    )


def subtraction(rng: random.Random) -> Line:
    """First the tens, then the ones: 93 - 75 = 23 - 5 = 18."""
    a, b = sorted((rng.randint(0, 99), rng.randint(0, 99)), reverse=True)
    aloud = f" {a - b // 10 * 10} - {b % 10} =" if b >= 10 else ""
    return _line(f"{a}-{b}", f"{a} - {b}", f"{a} - {b} =", f"{aloud} {a - b}.", b < 10)


def multiplication(rng: random.Random) -> Line:
    a, b = rng.randint(0, 10), rng.randint(0, 10)
    return _line(f"{a}x{b}", f"{a} × {b}", f"{a} × {b} =", f" {a * b}.", by_heart=True)


def step_time(rng: random.Random) -> Line:
    """T(B) = o + B t."""
    o, t, batch = rng.choice((10, 20, 30, 40, 50)), rng.randint(1, 5), rng.randint(1, 9)
    return _line(
        f"T({batch}):{o},{t}",
        f"How long is a step of {batch} at o = {o} and t = {t}?",
        f"A step of {batch} takes {o} + {batch} × {t} =",
        f" {o} + {batch * t} = {o + batch * t} ms.",
    )


def little(rng: random.Random) -> Line:
    """L = lambda W."""
    rate, stay = rng.randint(1, 10), rng.randint(1, 10)
    return _line(
        f"L:{rate},{stay}",
        f"{rate} requests come each second and stay {stay} seconds. How many are inside?",
        f"The number inside is {rate} × {stay} =",
        f" {rate * stay}.",
    )


def _pieces(whole: int, size: int, what: str) -> str:
    full, rest = divmod(whole, size)
    left = "none is left" if rest == 0 else "1 is left" if rest == 1 else f"{rest} are left"
    return f" {full} × {size} = {full * size} and {left}, so {full + (rest > 0)} {what}."


def batches(rng: random.Random) -> Line:
    """Rounded up: the last batch is rarely full."""
    size, requests = rng.choice((2, 4, 5, 8, 10)), rng.randint(1, 60)
    return _line(
        f"ceil:{requests}/{size}",
        f"How many batches of {size} do {requests} requests need?",
        f"{requests} requests in batches of {size}:",
        _pieces(requests, size, "batches"),
    )


def blocks(rng: random.Random) -> Line:
    """Rounded up: the last block is rarely full."""
    size, tokens = rng.choice((4, 8, 16)), rng.randint(1, 80)
    return _line(
        f"ceil:{tokens}/{size}",
        f"How many blocks of {size} hold {tokens} tokens?",
        f"{tokens} tokens in blocks of {size}:",
        _pieces(tokens, size, "blocks"),
    )


def stable(rng: random.Random) -> Line:
    arriving, served = rng.randint(1, 30), rng.randint(1, 30)
    verdict = "is stable" if arriving < served else "grows without end"
    return _line(
        f"stable:{arriving},{served}",
        f"{arriving} requests come each second and {served} can be served. What does the queue do?",
        f"At {arriving} a second in and {served} out, the queue",
        f" {verdict}.",
    )


SUMS: tuple[Callable[[random.Random], Line], ...] = (addition, addition, subtraction, subtraction, multiplication)
WORKED: tuple[Callable[[random.Random], Line], ...] = (step_time, little, batches, blocks, stable)


def draw(rng: random.Random, makers: tuple[Callable[[random.Random], Line], ...], held_out: bool = False) -> Line:
    """A random line of one of these makers, from the training side or from the held-out side."""
    make = rng.choice(makers)
    while (line := make(rng)).held_out is not held_out:
        if held_out:  # some kinds have no held-out side (the times table is learnt by heart): another may
            make = rng.choice(makers)
    return line


# The book's words, a sentence each.
TERMS = {
    "a token": "A token is a piece of text with a number: a word, part of a word, or a single byte.",
    "a tokenizer": "A tokenizer cuts text into tokens and turns tokens back into text.",
    "a prompt": "A prompt is the text that a model reads before it writes.",
    "prefill": "Prefill reads the whole prompt in one pass and fills the KV cache.",
    "decode": "Decode writes one token a step, and each step reads every weight once.",
    "a logit": "A logit is the score a model gives to one token before it chooses.",
    "the KV cache": "The KV cache keeps the keys and values of all earlier tokens, "
    "so that no step computes them again.",
    "a batch": "A batch is a group of requests that share one step.",
    "batching": "Batching lets many requests share one reading of the weights.",
    "static batching": "Static batching keeps a batch together until its longest member is done.",
    "continuous batching": "Continuous batching lets requests join and leave at every step.",
    "chunked prefill": "Chunked prefill cuts a long prompt into pieces, so that others need not wait for all of it.",
    "TTFT": "TTFT is the time to the first token: queue time plus prefill.",
    "ITL": "ITL is the time between one token and the next.",
    "TPOT": "TPOT is the mean time for each token after the first.",
    "latency": "Latency is how long one request takes.",
    "throughput": "Throughput is how much work is finished each second.",
    "goodput": "Goodput counts only the requests that were finished in time.",
    "an SLO": "An SLO is a promise about latency: a metric, a percentile and a limit.",
    "a queue": "A queue is where requests wait when they come faster than they are served.",
    "utilisation": "Utilisation is the share of time that a server is busy.",
    "the tail": "The tail is the slowest few requests, and somebody feels every one of them.",
    "p99": "p99 is the latency that 99 of 100 requests stay below.",
    "a block": "A block is a small piece of the KV cache that holds a few tokens.",
    "a block table": "A block table lists which blocks hold the tokens of one request.",
    "paging": "Paging gives a request its memory block by block, as it grows.",
    "fragmentation": "Fragmentation is memory that is free but of no use.",
    "prefix caching": "Prefix caching reuses the keys and values of a prompt's beginning.",
    "preemption": "Preemption sends a running request back to the queue to free its memory.",
    "a scheduler": "A scheduler decides which requests run in the next step.",
    "a draft model": "A draft model guesses the next tokens, and a larger one checks them all at once.",
    "speculative decoding": "Speculative decoding checks several guessed tokens in one step of the large model.",
    "the roofline": "The roofline says whether memory or arithmetic limits a step.",
    "a hedged request": "A hedged request is sent again to another server when the first is late.",
    "Little's law": "Little's law says that the number inside is the arrival rate times the time spent inside.",
}

SMALL_TALK = {
    "Hello!": "Hello! Ask me for a story, a sum, or a word from this book.",
    "Who are you?": "I am pocket, a very small model that came with this book.",
    "What can you do?": "I tell stories about waiting in line, I add and subtract, "
    "and I explain the words of this book.",
    "Thank you!": "You are welcome.",
    "How are you?": "I am well. Nobody is in my queue.",
    "Are you fast?": "Alone I am fast. Ask me again when fifty of you are waiting.",
}

# What it does not know, it should say.
UNKNOWN = "I do not know. I know lines, sums and the words of this book."
OUT_OF_SCOPE = (
    "What is the capital of {}?",
    "Who wrote {}?",
    "What will the weather be in {}?",
    "How far is it to {}?",
    "Translate {} for me.",
)
SUBJECTS = (
    "France",
    "Peru",
    "Japan",
    "Kenya",
    "Norway",
    "Rome",
    "Oslo",
    "Quito",
    "Hanoi",
    "Hamlet",
    "Emma",
    "the moon",
    "the sea",
)
