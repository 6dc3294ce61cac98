"""A pool of blocks as it was, step by step, and the two mechanisms that let sequences share them, drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from underload.cache import BlockPool, BlockState
from underload.engine import Executor
from underload.figures.moving import Bar, Choice, Commit, Frame, Number, Slider, moving_figure
from underload.figures.palette import FigureError
from underload.figures.pen import Pen, drawing
from underload.figures.plot import Axis, Panel, text_width
from underload.figures.still import Picture
from underload.request import Request, UnderloadError
from underload.request import Sequence as Sample
from underload.scheduling import Plan, Scheduler, StepResult

_OWNERS = ("decode", "prefill", "detokenise", "stream", "tokenise", "kv")


@dataclass(frozen=True)
class Moment:
    """A pool while one step runs.

    tables: by sequence, its blocks and how many of them are found by their content.
    writers: of each block that can be found, the sequence that computed it.
    """

    states: list[BlockState]
    tables: dict[str, tuple[list[int], int]]
    writers: list[str]
    tokens: int
    says: str


@dataclass
class BlockRecording:
    """An executor around another one that keeps, of every step, who holds which block of the scheduler's pool.

        recording = BlockRecording(scheduler, CostModelExecutor(...))
        Engine(scheduler, recording, VirtualClock()).run()
        block_pool(recording)

    A sequence is called by its request's id, and by its number where a request has several.
    """

    scheduler: Scheduler
    executor: Executor
    moments: list[Moment] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        pool = self.scheduler.pool
        if not isinstance(pool, BlockPool):
            raise UnderloadError(f"a picture of blocks needs a BlockPool, got {type(pool).__name__}")
        self.pool = pool
        self._names: dict[str, Sample] = {}
        self._held: dict[str, int] = {}  # preemptions of each sequence that held blocks in the last step
        self._writers: dict[Any, str] = {}  # by the identity of a block's content
        self._evictions = 0

    @property
    def max_model_len(self) -> int | None:
        return self.executor.max_model_len

    def check(self, request: Request) -> None:
        self.executor.check(request)

    def release(self, request: Request) -> None:
        self.executor.release(request)

    def execute(self, plan: Plan) -> StepResult:
        """Look at the pool, then do what the plan says."""
        self._look(plan)
        return self.executor.execute(plan)

    def _look(self, plan: Plan) -> None:
        tables: dict[str, tuple[list[int], int]] = {}
        for sequence in self.scheduler.running:
            assert sequence.table is not None
            name = _name(sequence)
            self._names[name] = sequence
            tables[name] = (list(sequence.table.blocks), sequence.table.num_hashed)
        states = self.pool.snapshot()
        for name, (blocks, _) in tables.items():
            for number in blocks:
                if (content := self.pool.index.names[number]) is not None:
                    self._writers.setdefault(content.identity, name)
        kept = [self.pool.index.names[number] for number in range(self.pool.num_blocks)]
        writers = ["" if content is None else self._writers.get(content.identity, "") for content in kept]
        says = self._say(plan, tables)
        self._held = {name: self._names[name].preemptions for name in tables}
        self.moments.append(Moment(states, tables, writers, plan.num_tokens, says))

    def _say(self, plan: Plan, tables: Mapping[str, tuple[list[int], int]]) -> str:
        said = []
        for name, before in self._held.items():
            sequence = self._names[name]
            if sequence.finished:
                said.append(f"{name} has finished")
            elif sequence.preemptions > before:
                said.append(f"{name} is preempted and gives up its blocks")
        for sequence in plan.admitted:
            blocks, found = tables[_name(sequence)]
            back = " again" if sequence.preemptions else ""
            hit = f", {found} of them found" if found else ""
            said.append(f"{_name(sequence)} is admitted{back} with {_blocks(len(blocks))}{hit}")
        new = [name for name in tables if name not in self._held and self._names[name] not in plan.admitted]
        if new:
            said.append(f"{' and '.join(new)} forked: another table on the same blocks")
        for source, destination in plan.copies:
            said.append(f"block {source} is copied to {destination} before it is written")
        evicted, self._evictions = self.pool.counters.evictions - self._evictions, self.pool.counters.evictions
        if evicted:
            said.append(f"{_blocks(evicted)} of cached content evicted")
        if plan.queue_length:
            waiting = ", ".join(_name(sequence) for sequence in self.scheduler.waiting)
            said.append(f"{waiting} {'wait' if plan.queue_length > 1 else 'waits'}")
        text = "; ".join(said) or "everybody writes one token"
        return text[0].upper() + text[1:] + "."


def _name(sequence: Sample) -> str:
    request = sequence.request
    assert request is not None
    return request.request_id if len(request.sequences) == 1 else f"{request.request_id}{sequence.index + 1}"


def _blocks(count: int) -> str:
    return f"{count} block{'s' if count != 1 else ''}"


def block_pool(
    recordings: BlockRecording | Mapping[str, BlockRecording],
    *,
    label: str = "Run",
    start: int = 1,
    commit: Commit | None = None,
    caption: str = "",
    name: str | None = None,
) -> Picture:
    """A pool to step through: above, its blocks by owner; below, the block table of each sequence.

    Args:
        recordings: one, or several to choose between, by the words of the choice; the last moment of a shorter one
            stays.
        label: of that choice.
        start: the step shown first, from 1.

    Raises:
        FigureError: no recording, one without a step, or pools of different sizes.
    """
    runs = {"": recordings} if isinstance(recordings, BlockRecording) else dict(recordings)
    if not runs or not all(run.moments for run in runs.values()):
        raise FigureError(f"{len(runs)} recordings, one of them without a step; run an engine with each of them first")
    sizes = {run.pool.num_blocks for run in runs.values()}
    if len(sizes) > 1:
        raise FigureError(f"pools of {sorted(sizes)} blocks in one figure; give recordings of equal pools")
    total = sizes.pop()
    owners = list(dict.fromkeys(who for run in runs.values() for moment in run.moments for who in moment.tables))
    looks = {who: _OWNERS[place % len(_OWNERS)] for place, who in enumerate(owners)}
    steps = max(len(run.moments) for run in runs.values())
    widest = max(len(blocks) for run in runs.values() for at in run.moments for blocks, _ in at.tables.values())

    def frame(step: int, run: str = "") -> Frame:
        moments = runs[run].moments
        moment = moments[min(step, len(moments)) - 1]
        bars: list[Bar] = []
        for number, state in enumerate(moment.states):
            x = (number - 0.46, number + 0.46)
            if state.place == "used":
                holders = [who for who in owners if number in moment.tables.get(who, ([], 0))[0]]
                part = 1 / len(holders)
                for place, who in enumerate(holders):
                    y = (1 - (place + 1) * part, 1 - place * part)
                    bars.append(Bar(x, y, look=looks[who], label=who))
            elif state.place == "cached":
                wrote = moment.writers[number].lower()
                bars.append(Bar(x, (0, 1), look="queue", label=wrote, name="cached"))
            else:
                bars.append(Bar(x, (0, 0.06), look="free", name="free", faint=True))
        for who, (blocks, hashed) in moment.tables.items():
            row = owners.index(who)
            for place, number in enumerate(blocks):
                half = 0.42 if place < hashed else 0.27
                y = (row - half, row + half)
                bars.append(Bar((place - 0.46, place + 0.46), y, look=looks[who], label=str(number), panel=1))
        count = {place: sum(state.place == place for state in moment.states) for place in ("used", "cached", "free")}
        return Frame(
            bars=bars,
            numbers=[
                Number("in use", count["used"], "", look="decode"),
                Number("cached", count["cached"], "", look="queue"),
                Number("free", count["free"], "", look="quiet"),
                Number("tokens computed", moment.tokens, "", look="prefill"),
            ],
            says=f"{moment.says}" + (" (The run is over.)" if step > len(moments) else ""),
        )

    controls: list[Slider | Choice] = [Slider("step", "Step", list(range(1, steps + 1)), start=start)]
    if len(runs) > 1:
        controls.append(Choice("run", label, {words: words for words in runs}))
    return moving_figure(
        frame,
        controls,
        title=f"A pool of {total} blocks, step by step",
        alt=f"Above, the {total} blocks of a pool: coloured by the sequence that holds them, striped where several do, "
        "grey where the content is kept and nobody holds it, empty where free. Below, a row a sequence with the "
        "numbers of its blocks in order, lower where the content cannot be found yet. What happens in each step is "
        "said in a sentence under the figure, and stands in its table.",
        panels=[
            Panel(Axis("block", labels=[str(number) for number in range(total)]),
                  Axis("who holds it", limits=(0, 1), ticks=()), height=0.62, grid=False),
            Panel(Axis("place in the table", labels=[str(place) for place in range(widest)]),
                  Axis("sequence", labels=owners, descending=True), height=0.34 + 0.14 * len(owners), grid=False),
        ],
        commit=commit,
        caption=caption,
        name=name,
    )  # fmt: skip


def named_blocks(
    prompts: Mapping[str, Sequence[str]], block: int = 4, *, caption: str = "", name: str | None = None
) -> Picture:
    """Prompts cut into blocks, each full block named after itself and its parent; equal names have one number.

    Args:
        prompts: by their names, their tokens as words.
        block: tokens in a block.

    Raises:
        FigureError: no prompt, more than three, or one without a full block.
    """
    if not 1 <= len(prompts) <= 3 or any(not block <= len(tokens) <= 4 * block for tokens in prompts.values()):
        raise FigureError(
            f"{len(prompts)} prompts of {[len(tokens) for tokens in prompts.values()]} tokens; draw one to three, each "
            f"of {block} to {4 * block}"
        )
    numbers: dict[tuple[str, ...], int] = {}
    named: dict[str, list[int]] = {}
    for who, tokens in prompts.items():
        ends = range(block, len(tokens) + 1, block)
        named[who] = [numbers.setdefault(tuple(tokens[:end]), len(numbers)) for end in ends]
    first = {number: who for who in reversed(list(prompts)) for number in named[who]}
    most = max(len(tokens) for tokens in prompts.values())

    def draw(pen: Pen) -> None:
        columns = 2 if pen.narrow else -(-most // block)
        size = min((pen.width - 2) / columns, 168.0)
        y = 4.0
        for who, tokens in prompts.items():
            pen.text(0, y + 12, who, bold=True)
            y += 22
            for start in range(0, len(tokens), block):
                place = start // block
                x, top = (place % columns) * size + 1, y + (place // columns) * 84
                words = tokens[start : start + block]
                full = len(words) == block
                look = "kv" if full and first[named[who][place]] == who else "prediction" if full else "waste"
                pen.box(x, top, size - 14, 40, _fold(words, size - 22), look=look, small=True, dashed=not full)
                if full:
                    new = first[named[who][place]] == who
                    pen.text(x + 2, top + 56, f"d{named[who][place]}", bold=True, size="small", look=look)
                    pen.text(x + 26, top + 56, "computed" if new else "found", size="small", look="quiet")
                    if (place + 1) * block < len(tokens) and (place + 1) % columns:
                        pen.arrow(x + size - 13, top + 20, x + size - 1, top + 20)
                else:
                    pen.text(x + 2, top + 56, "open: no name", size="small", look="quiet")
            rows = math.ceil(math.ceil(len(tokens) / block) / columns)
            y += 84 * rows
        pen.height = y - 14

    said = ". ".join(
        f"{who} has the names {', '.join(f'd{number}' for number in named[who])}"
        + (f" and {len(tokens) % block} tokens in an open block" if len(tokens) % block else "")
        for who, tokens in prompts.items()
    )
    return drawing(
        f"Prompts cut into blocks of {block} tokens, each full block with a name made of its parent's name and its own "
        f"tokens. {said}. A name that occurs twice is computed once and found the second time.",
        draw,
        caption=caption,
        name=name,
    )


def _fold(words: Sequence[str], width: float) -> str:
    """Words on one line, or on two where they do not fit."""
    line = " ".join(words)
    if text_width(line, 11.5) <= width or len(words) < 2:
        return line
    half = (len(words) + 1) // 2
    return " ".join(words[:half]) + "\n" + " ".join(words[half:])


def fork_and_copy(
    prompt: int = 6, block: int = 4, written: int = 3, *, caption: str = "", name: str | None = None
) -> Picture:
    """One prompt, two samples: tables before the fork, after it, and once both have written. By a real pool.

    Raises:
        FigureError: a prompt that ends with a block (nothing would be copied) or is too long to draw.
    """
    if not 1 <= block <= 4 or not 1 <= prompt <= 4 * block or prompt % block == 0 or not 1 <= written <= 2 * block:
        raise FigureError(
            f"a prompt of {prompt} tokens in blocks of {block}, and {written} written; draw blocks of up to 4, a "
            f"prompt of up to {4 * block} that leaves its last block open, and up to {2 * block} written"
        )
    pool = BlockPool(8, block)
    stages: list[tuple[str, dict[str, tuple[list[int], int]]]] = []
    one = pool.allocate(None, prompt)
    stages.append(("The prompt is computed once", {"first": (list(one.blocks), prompt)}))
    two = pool.fork(one)
    both = {"first": (list(one.blocks), prompt), "second": (list(two.blocks), prompt)}
    stages.append(("Fork: a second table on the same blocks", both))
    copies: list[tuple[int, int]] = []
    for table in (one, two):
        pool.append(table, prompt + written)
        copies += pool.write(table, prompt, prompt + written)
    final = {"first": (list(one.blocks), prompt + written), "second": (list(two.blocks), prompt + written)}
    (source, destination), *_ = copies
    stages.append((f"Each writes: block {source} is copied to {destination} first", final))
    looks = {"first": "decode", "second": "prefill"}

    def draw(pen: Pen) -> None:
        y, cell = 0.0, 12.5 if pen.narrow else 15.0
        step = block * cell + 12
        for title, tables in stages:
            pen.text(0, y + 13, title, bold=True, size="small" if pen.narrow else "normal")
            y += 26
            held: dict[int, list[str]] = {}
            for who, (blocks, _) in tables.items():
                for number in blocks:
                    held.setdefault(number, []).append(who)
            for who, (blocks, _) in tables.items():
                pen.text(0, y + 15, who, size="small", look=looks[who])
                for place, number in enumerate(blocks):
                    pen.box(54 + place * 34, y, 30, 20, str(number), look=looks[who], small=True)
                y += 25
            y += 20
            x = 0.0
            for number, holders in sorted(held.items()):
                if x + step > pen.width:
                    x, y = 0.0, y + 46
                blocks, tokens = tables[holders[0]]
                first = blocks.index(number) * block
                cells = []
                for position in range(first, first + block):
                    own = "kv" if position < prompt or len(holders) > 1 else looks[holders[0]]
                    cells.append(own if position < tokens else "free")
                pen.text(x, y - 2, str(number), size="small", bold=True)
                pen.text(x + 16, y - 2, "×2" if len(holders) > 1 else "", size="small", look="quiet")
                pen.cells(x, y + 3, cell, [""] * block, look=cells, height=20)
                x += step
            y += 48
        x = 0.0
        for look, words in (
            ("kv", "prompt"),
            ("decode", "first's tokens"),
            ("prefill", "second's tokens"),
            ("free", "empty"),
        ):
            pen.box(x, y - 6, 11, 11, look=look, dashed=look == "free")
            pen.text(x + 15, y + 4, words, size="small", look="quiet")
            x += text_width(words, 11.5) + 24
        pen.height = y + 12

    return drawing(
        f"A prompt of {prompt} tokens in blocks of {block}, and two samples of it. The prompt fills blocks "
        f"{_listed(stages[0][1]['first'][0])}. After the fork both tables name the same blocks. When each writes its "
        f"first token, the open block {source} is copied to {destination} for the one that writes first, and the other "
        f"keeps {source}. In the end the first holds {_listed(final['first'][0])} and the second "
        f"{_listed(final['second'][0])}; the full blocks of the prompt are still shared.",
        draw,
        caption=caption,
        name=name,
    )


def _listed(numbers: Sequence[int]) -> str:
    return " and ".join(", ".join(map(str, numbers)).rsplit(", ", 1))
