"""Lab 7, "The KV cache and its waste": what its tasks start from, and checks that say what is wrong with a value.

    Sizes, sizes                 what of a model decides how large its cache is
    Job, trace, your_trace       requests as an allocator sees them
    replay, Replay               a trace run through one memory, step by step
    run, with_yours, account_by  the same by an allocator and an account of a student's, or the library's
    bytes_per_token, fits, FirstFit, Buddy, Blocks, divide, expected_waste, best_block
                                 earlier answers, for the tasks that start from one
    drawn_*                      inputs for checks that must not be known beforehand
    check_*                      raise AssertionError with the wrong value, what it is instead, and what was wanted
    draw_*                       the pictures of the lab

A slot is room for the keys and values of one token. A step stores one more token of every sequence.
"""

from __future__ import annotations

import contextlib
import io
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.random import Generator

from underload import figures
from underload.cache import BlockPool
from underload.cache.placement import FirstFit as _Gaps
from underload.labs.answers import as_list, as_pair, listed, named, near, number, shown
from underload.labs.answers import check_guess as check_guess
from underload.request import BlockTable
from underload.shapes import SHAPES, shape

SLOTS = 2048  # of the memory in which the lab's traces run
BLOCK = 16
PARTS = ("stored", "reserved", "internal", "external", "free")
_WORDS = {
    "stored": "stored",
    "reserved": "to be filled later",
    "internal": "never filled",
    "external": "gaps too short",
    "free": "free",
}
_MOST_STEPS = 100_000


# ------------------------------------------------------------------ task 1: bytes a token


@dataclass(frozen=True)
class Sizes:
    """What a model's configuration says: its weights, and what its attention is made of."""

    name: str
    num_parameters: int
    num_layers: int
    num_heads: int  # query heads
    num_kv_heads: int  # heads of keys, and as many of values
    head_dim: int


def sizes(name: str) -> Sizes:
    """A known model by name, such as "llama-2-7b"."""
    known = shape(name)
    return Sizes(name, known.num_parameters, known.num_layers, known.num_heads, known.num_kv_heads, known.head_dim)


def bytes_per_token(model: Sizes, width: float = 2) -> float:
    """Bytes of one token in the cache: keys and values, in every layer, of every KV head."""
    return 2 * model.num_layers * model.num_kv_heads * model.head_dim * width


def fits(model: Sizes, memory: float, context: int, width: float = 2, usable: float = 0.9) -> int:
    """Whole sequences of `context` tokens that fit beside the weights into the usable part of `memory` bytes."""
    room = memory * usable - model.num_parameters * width
    return max(0, math.floor(room / (context * bytes_per_token(model, width))))


_right_bytes, _right_fits = bytes_per_token, fits


def drawn_models(draw: Generator, count: int = 3) -> list[Sizes]:
    """Known models whose heads differ from their KV heads, and one whose width is not heads times head_dim."""
    several = [name for name, one in SHAPES.items() if one.num_kv_heads not in (1, one.num_heads)]
    chosen = [sizes(str(name)) for name in draw.choice(several, count, replace=False)]
    return [*chosen, sizes("qwen3-0.6b")]


def check_bytes(bytes_per_token: Callable[..., Any], model: Sizes, width: float = 2) -> None:
    """Bytes of one token.

    Raises:
        AssertionError: naming the bytes, those wanted, and the slip that gives them.
    """
    got, right = number(bytes_per_token(model, width), "what bytes_per_token() returns"), _right_bytes(model, width)
    per_head, heads = right / model.num_kv_heads, model.num_heads
    slips = {
        "the query heads were counted; only KV heads are cached": per_head * heads,
        "keys or values alone; both are cached": right / 2,
        "one layer alone": right / model.num_layers,
        "values counted, not their bytes": right / width,
        "2 bytes a value, whatever `width` is": right / width * 2,
        "one KV head alone": per_head,
        "head_dim was left out": right / model.head_dim,
        "in bits": 8 * right,
        "in kB": right / 1000,
        "in KiB": right / 1024,
    }
    assert near(got, right), (
        f"a token of {model.name} takes {right:,.0f} bytes at {width:g} bytes a value, got {got:,.6g}"
        f"{named(got, {words: value for words, value in slips.items() if not near(value, right)})}"
    )


def check_fits(
    fits: Callable[..., Any], model: Sizes, memory: float, context: int, width: float = 2, usable: float = 0.9
) -> None:
    """Sequences that fit.

    Raises:
        AssertionError: naming the number, the one wanted, and the slip that gives it.
    """
    got = number(fits(model, memory, context, width, usable), "what fits() returns")
    right = _right_fits(model, memory, context, width, usable)
    room, each = memory * usable - model.num_parameters * width, context * _right_bytes(model, width)
    slips = {
        "the weights take room too": math.floor(memory * usable / each),
        "all of the memory was used; only a part is usable": max(
            0, math.floor((memory - model.num_parameters * width) / each)
        ),
        "the usable part was taken of what the weights leave, not of the memory": max(
            0, math.floor((memory - model.num_parameters * width) * usable / each)
        ),
        "the weights were counted in bytes of 1": max(0, math.floor((memory * usable - model.num_parameters) / each)),
        "a part of a sequence is no sequence": room / each,
        "rounded up, or to the nearest": float(math.ceil(room / each)),
        "the query heads were counted": max(0, math.floor(room / (each * model.num_heads / model.num_kv_heads))),
        "tokens, not sequences of so many": max(0, math.floor(room / (each / context))),
    }
    where = f"{model.name}, {memory / 1e9:g} GB of which {usable:.0%} are used, {context:,} tokens each"
    assert got >= 0, f"{where}: {got:g} sequences; where the weights alone do not fit it is 0"
    assert got == right, (
        f"{where}: {right} fit, got {got:,.6g}"
        f"{named(got, {words: value for words, value in slips.items() if value != right})}"
    )


# ------------------------------------------------------------------ requests, and a memory they run in


@dataclass(frozen=True)
class Job:
    """One request as an allocator sees it.

    It stores `prompt` tokens in its first step and one more in every further step, until there are `final`. That it
    will have at most `most` is known beforehand; `final` is not.
    """

    prompt: int
    most: int
    final: int


def _jobs(draw: Generator, count: int, unit: int, asks: str) -> list[Job]:
    """Log-normal prompts and Pareto outputs, in lengths that go with `unit`."""
    if asks not in ("each its own", "all the longest", "exactly what comes"):
        raise ValueError(f"nobody asks for {asks!r}; one of: each its own, all the longest, exactly what comes")
    prompts = np.clip(np.round(5 * unit * draw.lognormal(0.0, 0.8, count)), 1, 32 * unit).astype(int).tolist()
    outputs = np.clip(np.ceil(2.5 * unit * (1 + draw.pareto(1.5, count))), 1, 64 * unit).astype(int).tolist()
    generous = draw.random(count).tolist()
    jobs = []
    for prompt, output, share in zip(prompts, outputs, generous, strict=True):
        enough = [limit * unit for limit in (8, 16, 32, 64) if limit * unit >= output]
        limit = {
            "each its own": enough[int(share * len(enough))],
            "all the longest": enough[-1],
            "exactly what comes": output,
        }[asks]
        jobs.append(Job(prompt, prompt + limit, prompt + output))
    return jobs


def trace(seed: int = 0, count: int = 80, asks: str = "each its own") -> list[Job]:
    """Requests for a memory of `SLOTS`, all of them waiting from the start.

    asks: what `most` is. "each its own": prompt and a max_tokens of 64, 128, 256 or 512 that is enough for the output;
        "all the longest": prompt and 512; "exactly what comes": as if outputs were known beforehand.
    """
    return _jobs(np.random.default_rng([7, seed]), count, 8, asks)


def your_trace(seed: int) -> list[Job]:
    """Requests of a student's own."""
    return trace(seed + 1000)


def drawn_jobs(draw: Generator, count: int = 30) -> list[Job]:
    """Requests for a memory of 256 slots."""
    return _jobs(draw, count, 1, "each its own")


@dataclass
class Life:
    """Slots start to start + held - 1 and who had them, from one step to another; `stored` of them at first, `final`
    in the end."""

    owner: int
    start: int
    held: int
    begin: int
    end: int
    stored: int
    final: int


@dataclass
class Replay:
    """What became of a trace.

    parts: of each step in which somebody waited, slots by what they were used for. batch: the sequences that ran then.
    steps: until the last one was done. preempted: how often a sequence was put back for want of a block.
    """

    slots: int
    block_size: int | None
    parts: list[dict[str, float]] = field(default_factory=list)
    batch: list[int] = field(default_factory=list)
    steps: int = 0
    preempted: int = 0
    lives: list[Life] = field(default_factory=list)

    def shares(self) -> dict[str, float]:
        """Of each part of memory the share of all slots, averaged over the steps in which somebody waited."""
        count = max(1, len(self.parts)) * self.slots
        return {part: sum([one[part] for one in self.parts]) / count for part in PARTS}

    @property
    def mean_batch(self) -> float:
        """Sequences in a step, on average over the same steps."""
        return sum(self.batch) / max(1, len(self.batch))


@dataclass(eq=False)
class _Running:
    job: Job
    owner: int
    stored: int
    held: int
    where: Any
    begin: int
    begins: list[int] = field(default_factory=list)  # of each block


class _Runs:
    """An allocator of contiguous runs, as `replay` uses it."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory
        self._look()
        self.slots = sum(self.gaps)

    def _look(self) -> None:
        self.gaps = [int(number(length, "the length of a gap")) for _, length in self.memory.gaps()]

    def admit(self, job: Job, tokens: int, running: int) -> tuple[Any, int] | None:
        start = self.memory.take(job.most)
        if start is None:
            return None
        before = sum(self.gaps)
        self._look()
        return start, before - sum(self.gaps)

    def leave(self, one: _Running) -> None:
        self.memory.give(one.where)
        self._look()

    def wanted(self, job: Job) -> int:
        return job.most

    def lives(self, one: _Running, now: int) -> list[Life]:
        return [Life(one.owner, int(one.where), one.held, one.begin, now, one.job.prompt, one.stored)]


class _Tables:
    """An allocator of blocks, as `replay` uses it: a newcomer leaves one block in 64 for those who run."""

    def __init__(self, memory: Any, block_size: int) -> None:
        self.memory, self.size = memory, block_size
        self.slots = self._free() * block_size
        self._spare = self._free() // 64

    def _free(self) -> int:
        found = self.memory.num_free()
        return found if type(found) is int else int(number(found, "what num_free() returns"))

    @property
    def gaps(self) -> list[int]:
        return [self.size] * self._free()

    def admit(self, job: Job, tokens: int, running: int) -> tuple[Any, int] | None:
        if running and self._free() < -(-tokens // self.size) + self._spare:
            return None
        table = self.memory.allocate(tokens)
        return None if table is None else (table, len(table) * self.size)

    def grow(self, one: _Running) -> bool:
        if not self.memory.append(one.where, one.stored + 1):
            return False
        one.held = len(one.where) * self.size
        return True

    def leave(self, one: _Running) -> None:
        self.memory.free(one.where)

    def wanted(self, job: Job) -> int:
        return self.size

    def lives(self, one: _Running, now: int) -> list[Life]:
        return [
            Life(one.owner, int(block) * self.size, self.size, begun, now, self.size, self.size)
            for block, begun in zip(one.where, one.begins, strict=False)
        ]


def replay(
    jobs: Sequence[Job],
    memory: Any,
    *,
    block_size: int | None = None,
    divide: Callable[..., Any] | None = None,
) -> Replay:
    """Run requests through a memory, first come, first served; all of them wait from the start.

    In every step those who fit are let in, then every sequence stores a token more, or leaves when it has its `final`.
    Of blocks, one in 64 is kept back for those who run already. Where a block is wanted and none is free, the sequence
    that came last is put back to the head of the line with the tokens it has. Computing them again takes no time here.

    Args:
        memory: an allocator of runs (take, give, gaps), or with `block_size` one of blocks (allocate, append, free,
            num_free). It must be empty.
        divide: what divides the slots of a step; the library's when None.

    Raises:
        AssertionError: nothing runs, and the next one is refused.
        TypeError: blocks without a `block_size`, or runs with one.
    """
    if block_size is None and not hasattr(memory, "take") and hasattr(memory, "allocate"):
        raise TypeError("this memory gives out blocks: write replay(…, block_size=16) with the size that it has")
    if block_size is not None and not hasattr(memory, "allocate") and hasattr(memory, "take"):
        raise TypeError(f"this memory gives out runs: write replay(…) without block_size={block_size}")
    place: Any = _Runs(memory) if block_size is None else _Tables(memory, block_size)
    split = divide or _right_divide
    result = Replay(place.slots, block_size)
    line: list[tuple[int, Job, int]] = [(owner, job, job.prompt) for owner, job in enumerate(jobs)][::-1]
    running: list[_Running] = []
    changed = True
    step = 0
    while line or running:
        assert step < _MOST_STEPS, f"{_MOST_STEPS:,} steps and no end"
        while line and changed:  # a run that was refused is refused again until somebody left
            owner, job, tokens = line[-1]
            found = place.admit(job, tokens, len(running))
            if found is None:
                assert running, (
                    f"nothing is in the memory of {place.slots:,} slots, and a request for "
                    f"{job.most if block_size is None else tokens} is refused: what left was not given back"
                )
                changed = False
                break
            where, held = found
            one = _Running(job, owner, tokens, held, where, step)
            one.begins = [step] * len(where) if block_size else []
            running.append(one)
            line.pop()
        if line:
            now = [(one.held, one.stored, one.job.final) for one in running]
            result.parts.append(split(place.slots, now, list(place.gaps), place.wanted(line[-1][1])))
            result.batch.append(len(running))
        step += 1
        for one in list(running):
            if one not in running:  # put back for the sake of an older one
                continue
            if one.stored >= one.job.final:
                changed = True
                result.lives += place.lives(one, step)
                place.leave(one)
                running.remove(one)
                continue
            while block_size and one.stored % block_size == 0 and not place.grow(one):  # its last block is full
                last = running.pop()
                changed = True
                result.lives += place.lives(last, step)
                place.leave(last)
                line.append((last.owner, last.job, last.stored))
                result.preempted += 1
                assert running or last is not one, (
                    f"nobody but one sequence is in the memory of {place.slots:,} slots, and a block for its token "
                    f"number {one.stored + 1} is refused"
                )
                if last is one:
                    break
            else:
                one.stored += 1
                if block_size and len(one.begins) < len(one.where):
                    one.begins += [step] * (len(one.where) - len(one.begins))
                    changed = True
    result.steps = step
    return result


def run(
    jobs: Sequence[Job],
    yours: Callable[..., Any],
    library: Callable[..., Any],
    *shape_of: int,
    divide: Callable[..., Any] | None = None,
) -> Any:
    """A `Replay` of a trace through an allocator of yours, or through the library's where yours does not work.

    Args:
        shape_of: what the allocator is made with: slots, or blocks and block size.
        divide: as of `replay`.
    """
    block_size = shape_of[1] if len(shape_of) > 1 else None
    return with_yours(
        lambda memory: replay(jobs, memory, block_size=block_size, divide=divide), yours, library, *shape_of
    )


def with_yours(
    use: Callable[[Any], Any], yours: Callable[..., Any], library: Callable[..., Any], *shape_of: int
) -> Any:
    """What `use` makes of an allocator of yours, or of the library's where yours does not work, which it says."""
    name = getattr(yours, "__name__", "your allocator")
    try:
        with _few_lines():
            return use(yours(*shape_of))
    except NotImplementedError:
        why = f"{name} is not written yet"
    except Exception as error:  # whatever a student's code raises; the check's card says in which line
        why = f"{name} raised {type(error).__name__}: {error}"
    print(f"{why}: the library's was taken in its place")
    with _few_lines():
        return use(library(*shape_of))


@contextlib.contextmanager
def _few_lines(most: int = 8) -> Iterator[None]:
    """The first lines of what is printed meanwhile, and how many more there were: a run has hundreds of steps."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            yield
    finally:
        lines = printed.getvalue().splitlines()
        for line in lines[:most]:
            print(line)
        if len(lines) > most:
            print(f"… and {len(lines) - most:,} lines more")


def account_by(divide: Callable[..., Any]) -> Callable[..., dict[str, float]]:
    """`divide`, or the library's from the step on in which it gives no account of the slots; that is said once."""
    name, out = getattr(divide, "__name__", "divide"), sys.stdout  # as it is now: `run` keeps most lines back
    broken = False

    def parts(
        slots: int, running: Sequence[tuple[int, int, int]], gaps: Sequence[int], wanted: int
    ) -> dict[str, float]:
        nonlocal broken
        if broken:
            return _right_divide(slots, running, gaps, wanted)
        moment = Moment(slots, tuple(running), tuple(gaps), wanted)
        try:
            found = _parts(divide, moment)
            for part, count in found.items():
                assert count >= 0, f"{moment}: {part} is {count:g} slots, which is less than none"
            return found
        except NotImplementedError:
            why = f"{name}() is not written yet"
        except AssertionError as error:
            why = str(error) or f"{name}() raised an AssertionError"
        except Exception as error:  # whatever a student's code raises; the check's card says in which line
            why = f"{name}() raised {type(error).__name__}: {error}"
        broken = True
        print(f"{why}: the library's was taken in its place", file=out)
        return _right_divide(slots, running, gaps, wanted)

    return parts


# ------------------------------------------------------------------ tasks 2 and 3: contiguous runs


class FirstFit:
    """A row of slots; a run of any length goes into the first gap that is long enough."""

    def __init__(self, slots: int) -> None:
        self._gaps = _Gaps(slots)
        self._runs: dict[int, int] = {}

    def take(self, length: int) -> int | None:
        """The first slot of a new run, or None."""
        start = self._gaps.take(length)
        if start is not None:
            self._runs[start] = length
        return start

    def give(self, start: int) -> None:
        """Take a run back.

        Raises:
            ValueError: no run begins there.
        """
        if start not in self._runs:
            raise ValueError(f"no run begins at slot {start}")
        self._gaps.give(start, self._runs.pop(start))

    def gaps(self) -> list[tuple[int, int]]:
        """Start and length of every gap, in order."""
        return self._gaps.gaps()


class Buddy:
    """A row of slots; runs are powers of two that begin at a multiple of their length (Knuth, TAOCP 1, 2.5).

    The shortest free run that is long enough is halved until it fits, the first one where several are as short.
    """

    def __init__(self, slots: int) -> None:
        self._free = {(0, slots)}
        self._runs: dict[int, int] = {}

    def take(self, length: int) -> int | None:
        """The first slot of a new run, or None."""
        size = _power(length)
        fitting = [(run, start) for start, run in self._free if run >= size]
        if not fitting:
            return None
        run, start = min(fitting)
        self._free.remove((start, run))
        while run > size:
            run //= 2
            self._free.add((start + run, run))
        self._runs[start] = size
        return start

    def give(self, start: int) -> None:
        """Take a run back; it grows together with its buddy as long as that is free.

        Raises:
            ValueError: no run begins there.
        """
        if start not in self._runs:
            raise ValueError(f"no run begins at slot {start}")
        size = self._runs.pop(start)
        while (start ^ size, size) in self._free:
            self._free.remove((start ^ size, size))
            start, size = min(start, start ^ size), 2 * size
        self._free.add((start, size))

    def gaps(self) -> list[tuple[int, int]]:
        """Start and length of every free run, in order."""
        return sorted(self._free)


def _power(length: int) -> int:
    return 1 << max(0, int(length) - 1).bit_length()


Program = Sequence[tuple[str, int]]  # ("take", length), or ("give", k): what the take number k got, from 0


class _Recording:
    """A first-fit or buddy row that notes what is asked of it."""

    def __init__(self, memory: FirstFit | Buddy) -> None:
        self.memory = memory
        self.program: list[tuple[str, int]] = []
        self.inside: list[int] = []  # runs after each call
        self._takes = 0
        self._number: dict[int, int] = {}

    def take(self, length: int) -> int | None:
        start = self.memory.take(length)
        self.program.append(("take", length))
        if start is not None:
            self._number[start] = self._takes
        self._takes += 1
        self.inside.append(len(self._number))
        return start

    def give(self, start: int) -> None:
        self.memory.give(start)
        self.program.append(("give", self._number.pop(start)))
        self.inside.append(len(self._number))

    def gaps(self) -> list[tuple[int, int]]:
        return self.memory.gaps()


def drawn_program(draw: Generator, kind: str, count: int = 28) -> list[tuple[str, int]]:
    """What a heavy-tailed trace asks of a row of 512 slots, a power of two first; four runs or more are left in it."""
    while True:
        recording = _Recording(_oracle(kind)(512))
        first, *others = drawn_jobs(draw, count)
        replay([Job(first.prompt, _power(first.most), first.final), *others], recording, divide=lambda *_: {})
        calls = max((place + 1 for place, inside in enumerate(recording.inside) if inside >= 4), default=0)
        if calls > len(recording.program) // 2:
            row = _oracle(kind)(512)
            _drive(row, kind, 512, recording.program[:calls])
            return [*recording.program[:calls], *(("take", gap) for _, gap in row.gaps()[:1])]  # the first gap, exactly


def _oracle(kind: str) -> type[FirstFit] | type[Buddy]:
    return FirstFit if kind == "first fit" else Buddy


def _taken(runs: Mapping[int, int]) -> str:
    shown_runs = [f"{start} to {start + length - 1}" for start, length in sorted(runs.items())]
    if len(shown_runs) > 6:
        shown_runs = [*shown_runs[:5], f"… ({len(runs)} runs)"]
    return "slots " + ", ".join(shown_runs) if shown_runs else "nothing"


def _free_runs(slots: int, runs: Mapping[int, int], kind: str) -> list[tuple[int, int]]:
    """The gaps that must be there beside `runs`: as long as can be, for buddies within their halves."""
    if kind == "buddy":
        return _halves(0, slots, sorted(runs.items()))
    found, at = [], 0
    for start, length in [*sorted(runs.items()), (slots, 0)]:
        if start > at:
            found.append((at, start - at))
        at = start + length
    return found


def _halves(start: int, size: int, runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    inside = [(first, length) for first, length in runs if first < start + size and first + length > start]
    if not inside:
        return [(start, size)]
    if inside[0][0] <= start and inside[0][1] >= size:
        return []
    return _halves(start, size // 2, inside) + _halves(start + size // 2, size // 2, inside)


def _start(got: Any, length: int) -> int | None:
    """What take() returned, as a slot or None."""
    if got is None or type(got) is int:
        return got
    found = number(got, f"what take({length}) returns, the first slot of the run or None,")
    assert found == int(found), f"take({length}) returned {found:g}; slots are whole numbers"
    return int(found)


def _collision(start: int, length: int, slots: int, runs: Mapping[int, int]) -> str:
    """Why a run of `length` slots cannot begin at `start`, or nothing."""
    if start < 0 or start + length > slots:
        return f"it would go from slot {start} to {start + length - 1}, and the row ends at {slots - 1}"
    for first, size in runs.items():
        if first < start + length and start < first + size:
            return f"slot {max(start, first)} belongs to the run that begins at {first}"
    return ""


def check_starts(make: Callable[..., Any], kind: str, slots: int, program: Program) -> None:
    """Where each run goes, and that there is none where nothing fits.

    Raises:
        AssertionError: naming the call, what it gave, what was wanted, and why.
    """
    yours, right = make(slots), _oracle(kind)(slots)
    starts: list[int | None] = []
    runs: dict[int, int] = {}
    for what, value in program:
        if what == "give":
            start = starts[value]
            if start is not None:
                yours.give(start)
                right.give(start)
                del runs[start]
            continue
        got, wanted = _start(yours.take(value), value), right.take(value)
        starts.append(wanted)
        size = value if kind == "first fit" else _power(value)
        if got != wanted:
            raise AssertionError(
                f"with {_taken(runs)} taken of {slots}, take({value}) gave {got}; it should be {wanted}"
                + _why_there(kind, got, wanted, value, slots, runs)
            )
        if wanted is not None:
            runs[wanted] = size


def _why_there(kind: str, got: int | None, wanted: int | None, length: int, slots: int, runs: Mapping[int, int]) -> str:
    size = length if kind == "first fit" else _power(length)
    gaps = dict(_free_runs(slots, runs, kind))
    rounded = "" if size == length else f" ({length} are rounded up to {size})"
    if got is None and wanted is not None:
        home = next(start for start, gap in gaps.items() if start <= wanted < start + gap)
        return f": the gap of {gaps[home]} slots at {home} is long enough{rounded}"
    if got is None:
        return ""
    if trouble := _collision(got, size, slots, runs):
        return f": {trouble}{rounded}"
    if wanted is None:
        return f": no gap is long enough for {size}{rounded}"
    if kind == "buddy" and got % size:
        return f": a run of {size} begins at a multiple of {size}{rounded}"
    home = next((start for start, gap in gaps.items() if start <= got < start + gap), got)
    if kind == "buddy":
        best = min(gap for gap in gaps.values() if gap >= size)
        if gaps.get(home, 0) > best:
            return f": the free run of {gaps[home]} at {home} is longer than need be; there is one of {best}"
        if home == wanted:
            return ": of the two halves the first is taken"
        return f": of the free runs of {best} slots the first is taken"
    if got != home:
        return f": a run begins where its gap begins, at {home}"
    if gaps[home] == min(gap for gap in gaps.values() if gap >= size):
        return f": the tightest gap was taken; the first one that is long enough begins at {wanted}"
    return f": the gap at {wanted} is long enough, and comes first"


def _drive(
    yours: Any, kind: str, slots: int, program: Program, look: Callable[[dict[int, int]], None] | None = None
) -> dict[int, int]:
    """Carry a program out on a student's row, each run where the row itself put it; the runs in the end.

    look: called with the runs before every eighth call.
    """
    starts: list[int | None] = []
    runs: dict[int, int] = {}
    for place, (what, value) in enumerate(program):
        if look is not None and place % 8 == 1:
            look(runs)
        if what == "give":
            start = starts[value]
            if start is not None:
                yours.give(start)
                del runs[start]
            continue
        start = _start(yours.take(value), value)
        starts.append(start)
        if start is not None:
            size = value if kind == "first fit" else _power(value)
            trouble = _collision(start, size, slots, runs)
            assert not trouble, f"with {_taken(runs)} taken of {slots}, take({value}) gave {start}: {trouble}"
            runs[start] = size
    return runs


def _gaps_of(yours: Any) -> list[tuple[int, int]]:
    words = "gaps() must return a list of (start, length)"
    found = as_list(yours.gaps(), words)
    if set(map(type, found)) == {tuple} and {tuple(map(type, one)) for one in found} == {(int, int)}:  # nearly always
        return sorted(found)
    pairs = [as_pair(one, words) for one in found]
    return sorted((int(number(a, "the start of a gap")), int(number(b, "the length of a gap"))) for a, b in pairs)


def check_gaps(make: Callable[..., Any], kind: str, slots: int, program: Program, *, back: bool = True) -> None:
    """The gaps between the runs, wherever these are, after a program, and with `back` as each run is given back.

    Raises:
        AssertionError: naming the gaps, those wanted, and what is odd about them.
    """
    yours = make(slots)
    runs = _drive(yours, kind, slots, program, lambda runs: _compare_gaps(yours, kind, slots, runs))
    _compare_gaps(yours, kind, slots, runs)
    for start in list(runs) if back else ():
        yours.give(start)
        del runs[start]
        _compare_gaps(yours, kind, slots, runs)


def _compare_gaps(yours: Any, kind: str, slots: int, runs: Mapping[int, int]) -> None:
    got, right = _gaps_of(yours), _free_runs(slots, runs, kind)
    if got == right:
        return
    touching = [(a, b) for a, b in pairwise(got) if sum(a) == b[0]]
    free, total = slots - sum(runs.values()), sum(length for _, length in got)
    why = ""
    if any(length < 1 for _, length in got):
        why = "; a gap of 0 slots is none"
    elif total != free:
        why = f"; they have {total} slots, and {free} of {slots} are free"
    elif kind == "first fit" and touching:
        why = f"; the gaps at {touching[0][0][0]} and {touching[0][1][0]} touch, so they are one"
    elif kind == "buddy":
        buddies = [(a, b) for a, b in touching if a[1] == b[1] and a[0] % (2 * a[1]) == 0]
        if buddies:
            why = f"; those at {buddies[0][0][0]} and {buddies[0][1][0]} are buddies and both free, so they are one"
        else:
            why = "; two free runs become one only if they are the halves of one"
    raise AssertionError(
        f"with {_taken(runs)} taken of {slots}, gaps() gave {_pairs(got)}; it should be {_pairs(right)}{why}"
    )


def _pairs(gaps: Sequence[tuple[int, int]]) -> str:
    return "[" + ", ".join(map(str, gaps[:6])) + (", …]" if len(gaps) > 6 else "]")


def _refused(action: Callable[[], object], words: str) -> None:
    """That `action` raises.

    Raises:
        AssertionError: it did not.
    """
    try:
        action()
    except NotImplementedError:
        raise
    except Exception:
        return
    raise AssertionError(f"{words} must raise a ValueError, and did not")


def check_refused_take(make: Callable[..., Any], kind: str, slots: int, program: Program) -> None:
    """That a take for which there is no gap gives None and leaves no trace.

    Raises:
        AssertionError: naming what is different afterwards.
    """
    yours = make(slots)
    runs = _drive(yours, kind, slots, program)
    before = _gaps_of(yours)
    longest = max((length for _, length in before), default=0)
    for length in (slots + 1, longest + 1):
        got = yours.take(length)
        assert got is None, f"take({length}) gave {shown(got)} where the longest gap has {longest}; it should be None"
        after = _gaps_of(yours)
        assert after == before, (
            f"take({length}) was refused, and the gaps are {_pairs(after)} where they were {_pairs(before)}: "
            "a refusal leaves no trace"
        )
    if longest:
        got = _start(yours.take(longest), longest)
        assert got is not None, f"after a refusal take({longest}) gave None, though there is a gap of {longest}"
        trouble = _collision(got, longest, slots, runs)
        assert not trouble, f"after a refusal take({longest}) gave {got}: {trouble}"


def check_wrong_give(make: Callable[..., Any], kind: str, slots: int, program: Program) -> None:
    """That a give where no run begins raises, and changes nothing.

    Raises:
        AssertionError: naming the give, and what is different afterwards.
    """
    yours = make(slots)
    runs = _drive(yours, kind, slots, program)
    gone = min(runs)
    yours.give(gone)
    del runs[gone]
    inside = next((start + 1 for start, size in runs.items() if size > 1), None)
    before = _gaps_of(yours)
    for start, words in (
        (gone, f"a second give({gone})"),
        (inside, f"give({inside}), in the middle of a run,"),
        (slots, f"give({slots}), past the end,"),
    ):
        if start is None:
            continue
        _refused(lambda start=start: yours.give(start), words)  # type: ignore[misc]
        after = _gaps_of(yours)
        assert after == before, (
            f"{words} was refused, and the gaps are {_pairs(after)} where they were {_pairs(before)}"
        )


# ------------------------------------------------------------------ task 4: blocks


class Blocks:
    """The library's `BlockPool` behind the calls of the task; it finds and keeps nothing."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._pool = BlockPool(num_blocks, block_size, prefix_caching=False)
        self._tables: dict[int, BlockTable] = {}

    def num_free(self) -> int:
        """Blocks that nobody has."""
        return self._pool.num_free

    def allocate(self, tokens: int) -> list[int] | None:
        """The block table of a new sequence, or None."""
        if not self._pool.can_allocate(None, tokens):
            return None
        table = self._pool.allocate(None, tokens)
        self._tables[id(table.blocks)] = table
        return table.blocks

    def append(self, table: list[int], tokens: int) -> bool:
        """Grow a table to so many tokens in all; False where there are too few blocks."""
        mine = self._tables[id(table)]
        if not self._pool.can_append(mine, tokens):
            return False
        self._pool.append(mine, tokens)
        return True

    def free(self, table: list[int]) -> None:
        """Take all blocks of a table back, and empty it.

        Raises:
            ValueError: it was freed before, or is nobody's.
        """
        mine = self._tables.get(id(table))
        if mine is None or mine.blocks is not table or not table:
            raise ValueError("these blocks were freed before, or nobody has them")
        del self._tables[id(table)]
        self._pool.free(mine)


class _Watched:
    """A student's allocator of blocks, with every call looked at."""

    def __init__(self, make: Callable[..., Any], num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.yours = make(num_blocks, block_size)
        self._held: dict[int, tuple[list[int], list[int]]] = {}  # by id: the table, and what must be in it
        self._left = num_blocks
        self._last = ""  # call, for the message about what is left after it

    @property
    def tables(self) -> list[list[int]]:
        return [table for table, _ in self._held.values()]

    def num_free(self) -> int:
        got, right = number(self.yours.num_free(), "what num_free() returns"), self._left
        assert got == right, (
            f"num_free() is {got:g}{self._last}; {self.num_blocks - right} of {self.num_blocks} blocks are in tables, "
            f"so it should be {right}"
        )
        return right

    def allocate(self, tokens: int) -> list[int] | None:
        wanted, free = -(-tokens // self.block_size), self._left
        table = self.yours.allocate(tokens)
        self._last = f" after allocate({tokens})"
        if wanted > free:
            self._last += ", which was refused"
            assert table is None, (
                f"allocate({tokens}) gave {shown(table)}: it needs {wanted} blocks of {self.block_size} and {free} are "
                "free, so it is None"
            )
            return None
        assert table is not None, (
            f"allocate({tokens}) gave None: it needs {wanted} blocks of {self.block_size} and {free} are free"
        )
        assert isinstance(table, list), f"a block table is a list, allocate({tokens}) gave {shown(table)}"
        self._look(table, [], wanted, f"allocate({tokens})")
        self._held[id(table)] = table, list(table)
        self._left -= wanted
        return table

    def append(self, table: list[int], tokens: int) -> bool:
        before = list(table)
        wanted, free = max(-(-tokens // self.block_size), len(before)), self._left
        answer = self.yours.append(table, tokens)
        call = f"append(table, {tokens}) to a table of {len(before)} blocks"
        self._last = f" after {call}"
        if wanted - len(before) > free:
            self._last += ", which was refused"
            assert answer is not None and not answer, (
                f"{call} gave {shown(answer)}: {wanted - len(before)} more are needed, and {free} are free; "
                "that is False"
            )
            assert table == before, f"{call} was refused, and left {listed(table)} where {listed(before)} was"
            return False
        assert answer, (
            f"{call} gave {shown(answer)}: {wanted - len(before)} more are needed, {free} are free; it is True"
        )
        self._look(table, before, wanted, call)
        self._held[id(table)] = table, list(table)
        self._left -= wanted - len(before)
        return True

    def free(self, table: list[int]) -> None:
        self.yours.free(table)
        self._last = " after free(table)"
        self._left += len(self._held.pop(id(table))[1])
        assert not table, f"after free(table) the table holds {listed(table)}; it is empty then"
        self.unchanged("free(table)")

    def unchanged(self, call: str) -> None:
        """That no table has changed, apart from those a call was about."""
        for table, copy in self._held.values():
            assert table == copy, f"{call} changed another table from {listed(copy)} to {listed(table)}"

    def _look(self, table: list[int], before: list[int], wanted: int, call: str) -> None:
        tokens = f"of {self.block_size} tokens"
        assert len(table) == wanted, (
            f"after {call} there are {len(table)} blocks {tokens} in the table; it should be {wanted}"
            + ("; `tokens` are all the tokens of the sequence, not those that are added" if len(table) > wanted else "")
        )
        assert table[: len(before)] == before, (
            f"{call} changed the blocks that were there: {listed(before)} became {listed(table)}"
        )
        if wanted == len(before):
            return
        others = {block for other, copy in self._held.values() if other is not table for block in copy}
        for block in table[len(before) :]:
            where = number(block, "a block in a table")
            assert where == int(where) and 0 <= where < self.num_blocks, (
                f"{call} gave block {where:g}; blocks are numbered from 0 to {self.num_blocks - 1}"
            )
            assert block not in others, f"{call} gave block {block}, which another table has"
        assert len(set(table)) == len(table), f"{call} gave a block twice: {listed(table)}"


def check_allocate(make: Callable[..., Any], num_blocks: int, block_size: int, lengths: Sequence[int]) -> None:
    """Tables of sequences that come one after the other, and how many blocks are left.

    Raises:
        AssertionError: naming the call and what is wrong with its table.
    """
    watched = _Watched(make, num_blocks, block_size)
    for tokens in lengths:
        watched.allocate(tokens)
        watched.num_free()
    watched.unchanged("allocate()")


def check_append(make: Callable[..., Any], num_blocks: int, block_size: int, start: int, stop: int) -> None:
    """That a table grows by a block when it needs one, token by token, and then by several at once.

    Raises:
        AssertionError: naming the call and what is wrong with the table.
    """
    watched = _Watched(make, num_blocks, block_size)
    table, other = watched.allocate(start), watched.allocate(1)
    assert table is not None and other is not None
    for tokens in range(start, stop + 1):
        watched.append(table, tokens)
    watched.append(table, stop + 2 * block_size)
    watched.append(table, start)  # less than it holds: it stays
    watched.unchanged("append()")
    watched.num_free()


def check_free(make: Callable[..., Any], num_blocks: int, block_size: int, lengths: Sequence[int]) -> None:
    """That blocks come back, all of them, and can be had again.

    Raises:
        AssertionError: naming what is wrong.
    """
    watched = _Watched(make, num_blocks, block_size)
    tables = [watched.allocate(tokens) for tokens in lengths]
    for table in tables[::2]:
        assert table is not None
        watched.free(table)
        watched.num_free()
    watched.allocate(watched.num_free() * block_size)
    watched.unchanged("allocate()")
    watched.num_free()


def check_out_of_blocks(make: Callable[..., Any], num_blocks: int, block_size: int, tokens: int) -> None:
    """That who is refused gets None or False, and that nothing else happens.

    tokens: of two sequences that are there; they leave one or two blocks at least.

    Raises:
        AssertionError: naming the call, and what is different afterwards.
    """
    watched = _Watched(make, num_blocks, block_size)
    table, other = watched.allocate(tokens), watched.allocate(tokens)
    assert table is not None and other is not None
    free = watched._left
    watched.allocate((free + 1) * block_size)
    watched.num_free()
    watched.append(table, (len(table) + free + 1) * block_size)
    watched.num_free()
    watched.unchanged("a refusal")
    assert watched.append(other, (len(other) + free) * block_size)
    watched.num_free()


def check_second_free(make: Callable[..., Any], num_blocks: int, block_size: int, tokens: int) -> None:
    """That blocks which are free cannot be freed, and that who tries changes nothing.

    Raises:
        AssertionError: naming the call, and what is different afterwards.
    """
    watched = _Watched(make, num_blocks, block_size)
    table, other = watched.allocate(tokens), watched.allocate(tokens)
    assert table is not None and other is not None
    gone = list(table)
    watched.free(table)
    watched.num_free()
    for again, words in (
        (table, "a second free(table), of a table that is empty by now,"),
        (list(gone), f"free({listed(gone)}), of blocks that are free already,"),
        ([*other, gone[0]], f"free() of a table in which block {gone[0]} is free already"),
    ):
        _refused(lambda again=again: watched.yours.free(again), words)  # type: ignore[misc]
        try:
            watched.num_free()
        except AssertionError as error:
            raise AssertionError(f"{words} was refused, and yet it changed something: {error}") from None
    watched.allocate(watched._left * block_size)  # must not hand out what `other` has
    watched.unchanged("a free that was refused")


def check_paged_trace(make: Callable[..., Any], jobs: Sequence[Job], slots: int, block_size: int) -> None:
    """A whole trace on blocks, with every call looked at.

    Raises:
        AssertionError: naming the call that went wrong.
    """
    watched = _Watched(make, slots // block_size, block_size)
    mine = replay(jobs, watched, block_size=block_size)
    right = replay(jobs, Blocks(slots // block_size, block_size), block_size=block_size)
    assert watched.num_free() == slots // block_size
    assert (mine.steps, mine.batch) == (right.steps, right.batch), (
        f"the trace took {mine.steps} steps; it should be {right.steps}"
    )


# ------------------------------------------------------------------ task 5: where the memory goes


@dataclass(frozen=True)
class Moment:
    """One instant of a memory.

    running: of each sequence (held, stored, final): the slots kept for it, the tokens stored now, and in the end.
    gaps: lengths of the free runs. wanted: slots in one run that the next in line wants.
    """

    slots: int
    running: tuple[tuple[int, int, int], ...]
    gaps: tuple[int, ...]
    wanted: int

    def __str__(self) -> str:
        some = ", ".join(map(str, self.running[:3])) + (", …" if len(self.running) > 3 else "")
        return f"{self.slots} slots, running [{some}], gaps {listed(self.gaps)}, wanted {self.wanted}"


def divide(slots: int, running: Sequence[tuple[int, int, int]], gaps: Sequence[int], wanted: int) -> dict[str, float]:
    """The slots of a moment by what they are used for; they sum to all of them."""
    stored = reserved = internal = external = 0
    for held, now, final in running:
        stored += now
        reserved += min(held, final) - now
        internal += max(held - final, 0)
    for gap in gaps:
        if gap < wanted:
            external += gap
    return {
        "stored": stored,
        "reserved": reserved,
        "internal": internal,
        "external": external,
        "free": sum(gaps) - external,
    }


_right_divide = divide  # for replay and the checks, in which `divide` is the student's


def by_hand() -> Moment:
    """The moment that the text works out: 20 slots, two sequences, two gaps."""
    return Moment(20, ((8, 5, 6), (6, 2, 6)), (2, 4), 3)


def drawn_moments(draw: Generator, kind: str, count: int = 6) -> list[Moment]:
    """Moments from a heavy-tailed trace, spread over the run; kind: "first fit", "buddy" or "blocks".

    In rows every other one has somebody in line whom the longest gap just fits. In blocks some sequences lack slots,
    and some blocks are free.
    """
    seen: list[Moment] = []

    def note(slots: int, running: Sequence[tuple[int, int, int]], gaps: Sequence[int], wanted: int) -> dict[str, float]:
        fits_one = kind != "blocks" and len(seen) % 2
        seen.append(Moment(slots, tuple(running), tuple(gaps), max(gaps, default=wanted) if fits_one else wanted))
        return _right_divide(slots, running, gaps, wanted)

    while True:
        seen.clear()
        if kind == "blocks":
            replay(drawn_jobs(draw, 30), Blocks(20, 8), block_size=8, divide=note)
        else:
            replay(drawn_jobs(draw, 30), _oracle(kind)(512), divide=note)
        some = seen[:: max(1, len(seen) // count) | 1]
        if kind == "blocks":
            fine = any(held < final for one in some for held, _, final in one.running) and any(one.gaps for one in some)
        else:
            fine = any(len(set(one.gaps)) > 1 and max(one.gaps) == one.wanted for one in some)
        if fine and all(sum(_right_divide(*_arguments(one))[part] for one in some) for part in PARTS[:3]):
            return some


def check_divide(divide: Callable[..., Any], moment: Moment, *parts: str) -> None:
    """Parts of a moment's memory.

    Raises:
        AssertionError: naming the part, its slots, those wanted, and the slip that gives them.
    """
    got, right = _parts(divide, moment), _right_divide(*_arguments(moment))
    running, gaps, wanted = moment.running, moment.gaps, moment.wanted
    held, stored = sum(h for h, _, _ in running), sum(s for _, s, _ in running)
    for part in parts or PARTS:
        if got[part] == right[part]:
            continue
        slips: dict[str, float] = {
            "stored": {"the slots that are kept, not those that are filled": float(held),
                       "the tokens in the end, not now": float(sum(f for _, _, f in running))},
            "reserved": {"all that is empty; some of it will never be filled": float(held - stored),
                         "what it has no slots for yet was counted": float(sum(f - s for _, s, f in running)),
                         "all that is kept": float(held)},
            "internal": {"all that is empty; some of it will be filled": float(held - stored),
                         "a sequence that has fewer slots than it will fill counts as less than nothing":
                             float(sum(h - f for h, _, f in running))},
            "external": {"every gap was counted; long ones can be had": float(sum(gaps)),
                         "a gap that is just long enough can be had": float(sum(g for g in gaps if g <= wanted)),
                         "gaps were counted, not their slots": float(sum(g < wanted for g in gaps)),
                         "all gaps together are shorter or longer, but a run lies in one of them":
                             float(sum(gaps) if sum(gaps) < wanted else 0)},
            "free": {"every gap was counted; short ones cannot be had": float(sum(gaps)),
                     "all slots that store no token": float(moment.slots - stored)},
        }[part]  # fmt: skip
        wrong = {words: value for words, value in slips.items() if value != right[part]}
        raise AssertionError(
            f"{moment}: {part} is {got[part]:g} slots{named(got[part], wrong)}; it should be {right[part]:g}"
        )


def check_sum(divide: Callable[..., Any], moment: Moment) -> None:
    """That the five parts are all the slots there are.

    Raises:
        AssertionError: naming the sum.
    """
    got = _parts(divide, moment)
    total = sum(got[part] for part in PARTS)
    assert total == moment.slots, (
        f"{moment}: the parts sum to {total:g}, and there are {moment.slots} slots: "
        + ", ".join(f"{part} {got[part]:g}" for part in PARTS)
    )


def _arguments(moment: Moment) -> tuple[int, list[tuple[int, int, int]], list[int], int]:
    return moment.slots, list(moment.running), list(moment.gaps), moment.wanted


def _parts(divide: Callable[..., Any], moment: Moment) -> dict[str, float]:
    got = divide(*_arguments(moment))
    assert isinstance(got, Mapping), f"divide() must return a dictionary, got {shown(got)}"
    for part in PARTS:
        assert part in got, f"{part!r} is missing; the keys are {shown(list(got))}"
    return {part: number(got[part], part) for part in PARTS}


def check_my_share(value: Any, name: str, kind: str, jobs: Sequence[Job]) -> None:
    """A student's number: the stored share of memory on a trace of their own.

    Raises:
        NotImplementedError: nothing was written down yet.
        AssertionError: naming the number, the one wanted, and the slip that gives it.
    """
    if value is None:
        raise NotImplementedError(f"{name} is still None")
    got = number(value, name)
    mine = _library_run(jobs, kind).shares()
    right = mine["stored"]
    if abs(got - right) < 6e-4:  # three digits after the point are enough
        return
    other = _library_run(jobs, "blocks" if kind == "first fit" else "first fit").shares()["stored"]
    slips = {
        "in percent; write the share": 100 * right,
        "in slots": SLOTS * right,
        "the other allocator's": other,
        "that of the trace in the text, not of yours": _library_run(trace(), kind).shares()["stored"],
        "what is not stored": 1 - right,
        "what is kept, filled or not": sum(mine[part] for part in PARTS[:3]),
    }
    rounded = " (write three digits after the point)" if abs(got - right) < 6e-3 else ""
    raise AssertionError(f"{name} is {got:.4g}{rounded or named(got, slips, 1e-3)}; it should be {right:.4g}")


def _library_run(jobs: Sequence[Job], kind: str) -> Replay:
    if kind == "blocks":
        return replay(jobs, Blocks(SLOTS // BLOCK, BLOCK), block_size=BLOCK)
    return replay(jobs, _oracle(kind)(SLOTS))


# ------------------------------------------------------------------ task 6: which block size

Law = Mapping[int, float]  # tokens: how probable a sequence of so many is


def expected_waste(law: Law, block_size: int) -> float:
    """Slots of the last block that stay empty, on average."""
    return sum(p * (-length % block_size) for length, p in law.items())


def best_block(law: Law, sizes: Sequence[int], entry: float) -> int:
    """Of some block sizes the one with the least waste and table together, the smallest where several have."""
    return min(sorted(sizes), key=lambda size: _cost(law, size, entry))


def _cost(law: Law, size: int, entry: float) -> float:
    blocks = sum(p * -(-length // size) for length, p in law.items())
    return _right_waste(law, size) + entry * blocks


_right_waste, _right_best = expected_waste, best_block


def drawn_law(draw: Generator, longest: int = 90) -> dict[int, float]:
    """A law of lengths from 1 on, with a heavy tail; its probabilities sum to 1."""
    lengths = sorted({int(n) for n in draw.integers(1, longest, 14)} | {1})
    weights = [1.0 / n ** float(draw.uniform(0.4, 0.9)) for n in lengths]
    return {n: w / sum(weights) for n, w in zip(lengths, weights, strict=True)}


def check_waste(expected_waste: Callable[..., Any], law: Law, block_size: int) -> None:
    """The mean number of empty slots in the last block.

    Raises:
        AssertionError: naming the number, the one wanted, and the slip that gives it.
    """
    got = number(expected_waste(dict(law), block_size), "what expected_waste() returns")
    right, mean = _right_waste(law, block_size), sum(n * p for n, p in law.items())
    slips = {
        "(b − 1)/2, which holds only where the block size divides the range of lengths": (block_size - 1) / 2,
        "b/2": block_size / 2,
        "the waste of the mean length; of a mean nothing is rounded": -(-mean // block_size) * block_size - mean,
        "what is filled in the last block": sum(p * (n % block_size) for n, p in law.items()),
        "a full last block counts as empty": sum(p * (block_size - n % block_size) for n, p in law.items()),
        "every length counts the same": sum(-n % block_size for n in law) / len(law),
        "a sum over lengths, not a mean": float(sum(-n % block_size for n in law)),
        "as a share of a block": right / block_size,
    }
    some = {words: value for words, value in slips.items() if not near(value, right)}
    assert near(got, right), (
        f"blocks of {block_size}, {len(law)} lengths from {min(law)} to {max(law)}: {right:.6g} slots stay empty on "
        f"average, got {got:.6g}{named(got, some)}"
    )


def check_best(best_block: Callable[..., Any], law: Law, sizes: Sequence[int], entry: float) -> None:
    """The best of some block sizes.

    Raises:
        AssertionError: naming the size, what it costs, and the one that costs less.
    """
    got = number(best_block(dict(law), list(sizes), entry), "what best_block() returns")
    right = _right_best(law, sizes, entry)
    assert got in sizes, f"best_block() gave {got:g}, which is none of {listed(sizes)}"
    if got == right:
        return
    mine, least = _cost(law, int(got), entry), _cost(law, right, entry)
    why = f"it costs {mine:.5g} slots, waste and table, and {right} costs {least:.5g}"
    if near(mine, least):
        why = f"{right} costs as little, and is smaller"
    elif got == min(sizes, key=lambda size: (_right_waste(law, size), size)):
        why += "; the table was forgotten"
    elif got == max(sizes):
        why += "; the waste was forgotten"
    raise AssertionError(f"an entry of the table costs {entry:g} slots: best_block() gave {got:g}; {why}")


# ------------------------------------------------------------------ pictures


def draw_fits(
    contexts: Sequence[int], rows: Mapping[str, Sequence[float]], *, name: str = "fits", caption: str = ""
) -> figures.Picture:
    """How many sequences fit against their length, for models by name."""
    fig, ax = figures.axes(xlabel="tokens in each sequence", ylabel="sequences that fit", xlog=True, ylog=True)
    for place, (words, counts) in enumerate(rows.items()):
        at = [(context, count) for context, count in zip(contexts, counts, strict=True) if count >= 1]
        ax.plot(*zip(*at, strict=True), **figures.look("prediction", variant=place % 4, marker="o"), label=words)
    ax.legend()
    alt = "Sequences that fit against their length, on two logarithmic axes: " + "; ".join(
        f"{words} {counts[0]:,.0f} of {contexts[0]:,} tokens and {counts[-1]:,.0f} of {contexts[-1]:,}"
        for words, counts in rows.items()
    )
    data = {"tokens": list(contexts)} | {words: [int(count) for count in counts] for words, counts in rows.items()}
    return figures.show(fig, alt=alt + ".", caption=caption, name=name, data=data)


def draw_lives(result: Replay, *, until: int = 300, name: str = "lives", caption: str = "") -> figures.Picture:
    """Which slots were whose in the first steps: a run is a box as wide as its life, filled as tokens are stored."""
    from matplotlib.collections import PolyCollection

    fig, ax = figures.axes(xlabel="step", ylabel="slot")
    kv, waste = figures.COLORS["kv"], figures.COLORS["waste"]
    edge: dict[str, Any] = {"edgecolors": figures.COLORS["surface"], "linewidths": 0.6}
    some = [life for life in result.lives if life.begin < until]
    if result.block_size is None:
        kept = [_box(one.begin, one.end, one.start, one.start + one.held) for one in some]
        coming = [_box(one.begin, one.end, one.start, one.start + one.final) for one in some]
        full = [
            [
                (one.begin, one.start),
                (one.begin, one.start + one.stored),
                (one.end, one.start + one.final),
                (one.end, one.start),
            ]
            for one in some
        ]
        ax.add_collection(PolyCollection(kept, facecolors=waste, alpha=0.75, label="kept, never filled", **edge))
        ax.add_collection(PolyCollection(coming, facecolors=figures.COLORS["surface"], linewidths=0))
        ax.add_collection(PolyCollection(coming, facecolors=kv, alpha=0.3, linewidths=0, label="filled later"))
        ax.add_collection(PolyCollection(full, facecolors=kv, linewidths=0, label="stored"))
    else:
        for odd, alpha in ((0, 1.0), (1, 0.6)):
            boxes = [_box(one.begin, one.end, one.start, one.start + one.held) for one in some if one.owner % 2 == odd]
            words = "blocks of another one" if odd else "blocks of a sequence"
            ax.add_collection(PolyCollection(boxes, facecolors=kv, alpha=alpha, linewidths=0, label=words))
    ax.set_xlim(0, min(until, max((one.end for one in some), default=1)))
    ax.set_ylim(0, result.slots)
    ax.grid(False)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    kind = "runs" if result.block_size is None else f"blocks of {result.block_size}"
    alt = (
        f"Which of {result.slots:,} slots were kept for whom in the first {until} steps, in {kind}: {len(some)} of "
        f"them began, for {len({one.owner for one in some})} sequences, {result.mean_batch:.1f} at a time on average."
    )
    first = some[:120]
    data = {
        "sequence": [one.owner for one in first],
        "first slot": [one.start for one in first],
        "slots kept": [one.held for one in first],
        "from step": [one.begin for one in first],
        "to step": [one.end for one in first],
    }
    return figures.show(fig, alt=alt, caption=caption, name=name, data=data)


def _box(left: float, right: float, low: float, high: float) -> list[tuple[float, float]]:
    return [(left, low), (left, high), (right, high), (right, low)]


def draw_shares(rows: Mapping[str, Mapping[str, float]], *, name: str = "shares", caption: str = "") -> figures.Picture:
    """What memory is used for, a bar for each allocator by name; shares that sum to 1."""
    fig, ax = figures.axes(xlabel="share of the memory", xunit="%", height=1.3 + 0.62 * len(rows))
    looks = {
        "stored": ("kv", 1.0),
        "reserved": ("kv", 0.35),
        "internal": ("waste", 0.9),
        "external": ("waste", 0.45),
        "free": ("grid", 0.7),
    }
    names = list(rows)
    left = np.zeros(len(names))
    for part, (color, alpha) in looks.items():
        widths = np.array([100 * rows[who][part] for who in names])
        ax.barh(names, widths, left=left, color=figures.COLORS[color], alpha=alpha, label=_WORDS[part], height=0.6)
        for place, width in enumerate(widths):
            if width > 7:
                paint = figures.COLORS["surface" if alpha > 0.8 else "ink"]
                ax.text(left[place] + width / 2, place, f"{width:.0f} %", ha="center", va="center", color=paint)
        left += widths
    ax.set_xlim(0, 100)
    ax.invert_yaxis()
    ax.grid(False)
    ax.legend(loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=5, columnspacing=1.0, handlelength=1.2)
    alt = "What memory is used for, averaged over the steps in which somebody waited. " + "; ".join(
        f"{who}: " + ", ".join(f"{100 * shares[part]:.1f} % {_WORDS[part]}" for part in PARTS)
        for who, shares in rows.items()
    )
    data = {"allocator": names} | {
        f"{_WORDS[part]} (%)": [round(100 * rows[who][part], 1) for who in names] for part in PARTS
    }
    return figures.show(fig, alt=alt + ".", caption=caption, name=name, data=data)


def draw_costs(
    sizes: Sequence[int], rows: Mapping[str, Sequence[float]], *, name: str = "costs", caption: str = ""
) -> figures.Picture:
    """Slots that a sequence costs beyond its tokens against the block size: the waste, the table, both together."""
    fig, ax = figures.axes(xlabel="block size", xunit="tokens", ylabel="a sequence costs", yunit="slots", xlog=True)
    styles = [
        figures.look("quiet", variant=1, marker=""),
        figures.look("quiet", variant=2, marker=""),
        figures.look("prediction", marker="o"),
    ]
    for place, (words, values) in enumerate(rows.items()):
        ax.plot(sizes, values, **styles[min(place, 2)], label=words)
    ax.set_ylim(bottom=0)
    ax.legend()
    words, values = list(rows.items())[-1]
    least = int(np.argmin(values))
    alt = (
        f"Slots that a sequence costs beyond its tokens, against the block size from {sizes[0]} to {sizes[-1]}: the "
        f"waste grows, the table shrinks, and {words} is least at {sizes[least]}, with {values[least]:.1f} slots."
    )
    data = {"block size": list(sizes)} | {
        f"{words} (slots)": [round(float(value), 3) for value in values] for words, values in rows.items()
    }
    return figures.show(fig, alt=alt, caption=caption, name=name, data=data)
