"""A batch as a Gantt chart: one row a slot of the batch, one bar a step, each as wide as the step took.

    BatchRecording   sees every step of an engine, and keeps who had which row in it and what was computed there
    batch_gantt      the chart, to be stepped through, of one recording or of several to choose between

The recording is of the plans that a real scheduler made; nothing is laid out here that did not run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from underload.figures.moving import Bar, Choice, Commit, Frame, Number, Rule, Slider, moving_figure
from underload.figures.palette import FigureError
from underload.figures.plot import Axis, Panel
from underload.figures.still import Picture
from underload.request import Sequence as Sample
from underload.request import StepRecord
from underload.scheduling import Plan, StepResult

_OWNERS = ("decode", "prefill", "detokenise", "stream", "tokenise", "kv", "latency", "weights")

PROMPT, TOKEN, HELD = "prompt", "token", "held"


@dataclass(frozen=True)
class Cell:
    """One row in one step.

    kind: "prompt" where tokens are computed that stood before the step (of a prompt, or of an answer again), "token"
    where the last one is, and "held" where the sequence is finished and its row is kept.
    tokens: computed for the sequence; padding: computed in its row beside them and thrown away.
    """

    row: int
    who: str
    kind: str
    tokens: int
    padding: int = 0


@dataclass(frozen=True)
class Moment:
    """One step: when it ran (s), what was in it, who had finished before the next one, and how many waited."""

    start: float
    duration: float
    cells: tuple[Cell, ...]
    finished: tuple[str, ...]
    joined: tuple[str, ...]
    waiting: int

    @property
    def stop(self) -> float:
        return self.start + self.duration


@dataclass
class BatchRecording:
    """Hand it to an engine as `on_step`, and draw it afterwards.

        recording = BatchRecording()
        Engine(scheduler, executor, clock, on_step=recording).run()
        batch_gantt(recording)

    A sequence keeps its row from the step in which it joins until the batch lets go of it. It is called by its
    request's id, and by its number where a request has several.
    """

    moments: list[Moment] = field(default_factory=list)
    rows: int = field(default=0, init=False)  # the most that were taken at once
    _taken: dict[int, Sample] = field(default_factory=dict, init=False, repr=False)
    _done: set[Sample] = field(default_factory=set, init=False, repr=False)

    def __call__(self, plan: Plan, result: StepResult, record: StepRecord) -> None:
        works = {work.sequence: work for work in plan.work}
        here = list(dict.fromkeys([*works, *plan.held, *plan.admitted]))
        for row, sequence in list(self._taken.items()):
            # Not in this step: out of the batch, unless it still has its blocks and only had no turn.
            if sequence not in here and (sequence.finished or sequence.table is None):
                del self._taken[row]
        rows = {sequence: row for row, sequence in self._taken.items()}
        joined = [sequence for sequence in here if sequence not in rows]
        for sequence in joined:
            row = next(number for number in range(len(self._taken) + 1) if number not in self._taken)
            self._taken[row], rows[sequence] = sequence, row
        self.rows = max(self.rows, len(self._taken))
        # A padded step is a rectangle: every row of it has as many tokens as the longest.
        width = max(work.num_tokens for work in plan.work) if plan.padding_tokens else 0
        cells = []
        for sequence, row in rows.items():
            work = works.get(sequence)
            if work is not None:
                kind, tokens = TOKEN if work.decodes else PROMPT, work.num_tokens
                cells.append(Cell(row, name_of(sequence), kind, tokens, max(width - tokens, 0)))
            elif width:
                cells.append(Cell(row, name_of(sequence), HELD if sequence in plan.held else PROMPT, 0, width))
        finished = [one for one in here if one.finished and one not in self._done]
        self._done.update(finished)
        self.moments.append(
            Moment(
                record.start,
                record.duration,
                tuple(sorted(cells, key=lambda cell: cell.row)),
                tuple(map(name_of, finished)),
                tuple(map(name_of, joined)),
                record.queue_length,
            )
        )


def name_of(sequence: Sample) -> str:
    """What a sequence is called in a figure: its request's id, and its number where the request has several."""
    request = sequence.request
    assert request is not None
    return request.request_id if len(request.sequences) == 1 else f"{request.request_id}{sequence.index + 1}"


def batch_gantt(
    recordings: BatchRecording | Mapping[str, BatchRecording],
    *,
    label: str = "Run",
    start: int | None = None,
    unit: str = "s",
    commit: Commit | None = None,
    caption: str = "",
    name: str | None = None,
) -> Picture:
    """A batch to step through: a row a slot, a bar a step, coloured by request.

    Prompts are bars of full height, single tokens lower ones; grey is what is computed and thrown away, in a row that
    is kept for a finished sequence or beside a prompt that is shorter than the longest.

    Args:
        recordings: one, or several to choose between, by the words of the choice; the end of a shorter one stays.
        label: of that choice.
        start: the step shown first, from 1; the middle without it.
        unit: "s" or "ms", of the time axis.

    Raises:
        FigureError: no recording, one without a step, or a unit that is neither.
    """
    runs = {"": recordings} if isinstance(recordings, BatchRecording) else dict(recordings)
    if not runs or not all(run.moments for run in runs.values()):
        raise FigureError(f"{len(runs)} recordings, one of them without a step; run an engine with each of them first")
    if unit not in ("s", "ms"):
        raise FigureError(f"times are drawn in 's' or 'ms', not in {unit!r}")
    scale = 1000.0 if unit == "ms" else 1.0
    owners = list(dict.fromkeys(cell.who for run in runs.values() for at in run.moments for cell in at.cells))
    looks = {who: _OWNERS[place % len(_OWNERS)] for place, who in enumerate(owners)}
    rows = max(run.rows for run in runs.values())
    steps = max(len(run.moments) for run in runs.values())
    origin = min(run.moments[0].start for run in runs.values())
    end = scale * (max(run.moments[-1].stop for run in runs.values()) - origin)
    drawn = {words: [_bars(moment, origin, scale, looks) for moment in run.moments] for words, run in runs.items()}

    def frame(step: int, run: str = "") -> Frame:
        moments = runs[run].moments
        so_far = moments[: min(step, len(moments))]
        cells = [cell for moment in so_far for cell in moment.cells]
        useful, wasted = sum(cell.tokens for cell in cells), sum(cell.padding for cell in cells)
        now = scale * (so_far[-1].stop - origin)
        return Frame(
            bars=[bar for bars in drawn[run][: len(so_far)] for bar in bars],
            rules=[Rule(x=now)],
            numbers=[
                Number("time", now, unit, look="latency"),
                Number("finished", sum(len(moment.finished) for moment in so_far), "", look="throughput"),
                Number("tokens of use", useful, "", look="decode"),
                Number("thrown away", wasted, "", look="waste"),
            ],
            says=_say(so_far[-1]) + (" (The run is over.)" if step > len(moments) else ""),
        )

    controls: list[Slider | Choice] = [
        Slider("step", "Step", list(range(1, steps + 1)), start=start or (steps + 1) // 2)
    ]
    if len(runs) > 1:
        controls.append(Choice("run", label, {words: words for words in runs}))
    return moving_figure(
        frame,
        controls,
        title=f"A batch of {rows} rows, step by step",
        alt=f"A Gantt chart with {rows} rows. Each step is a column of bars as wide as the step takes, coloured by "
        "request: tall and lettered where a prompt is computed, low for a single token, grey where a row is kept for a "
        "finished request or a prompt is padded. What happens in each step is said in a sentence under the figure, and "
        "the counts stand in its table.",
        panels=[
            Panel(
                Axis("time", unit, limits=(0, end)),
                Axis("row of the batch", labels=[str(row + 1) for row in range(rows)], descending=True),
                height=0.4 + 0.15 * rows,
                grid=False,
            )
        ],
        commit=commit,
        caption=caption,
        name=name,
    )


def _bars(moment: Moment, origin: float, scale: float, looks: Mapping[str, str]) -> list[Bar]:
    x = (scale * (moment.start - origin), scale * (moment.stop - origin))
    bars = []
    for cell in moment.cells:
        if cell.kind == HELD:
            y = (cell.row - 0.17, cell.row + 0.17)
            bars.append(Bar(x, y, look="waste", name="kept row, padding", faint=True))
        elif cell.kind == TOKEN:
            y = (cell.row - 0.27, cell.row + 0.27)
            bars.append(Bar(x, y, look=looks[cell.who]))  # its letter stands on the prompt before it
        else:
            # padding lies under the prompt, in its share of the height
            share = cell.tokens / (cell.tokens + cell.padding)
            low, middle, high = cell.row - 0.46, cell.row - 0.46 + 0.92 * share, cell.row + 0.46
            if cell.tokens:
                bars.append(Bar(x, (low, middle), look=looks[cell.who], label=cell.who))
            if cell.padding:
                bars.append(Bar(x, (middle, high), look="waste", name="kept row, padding", faint=True))
    return bars


def _say(moment: Moment) -> str:
    said = []
    back = [cell.who for cell in moment.cells if cell.who in moment.joined]
    if back:
        said.append(f"{_listed(back)} {'join' if len(back) > 1 else 'joins'}")
    reading = [cell for cell in moment.cells if cell.kind == PROMPT and cell.who not in moment.joined]
    if reading:
        who = _listed([cell.who for cell in reading])
        said.append(f"{who} {'read on in their prompts' if len(reading) > 1 else 'reads on in its prompt'}")
    writing = [cell.who for cell in moment.cells if cell.kind == TOKEN]
    if writing:
        said.append(f"{_listed(writing)} {'write a token each' if len(writing) > 1 else 'writes a token'}")
    held = [cell.who for cell in moment.cells if cell.kind == HELD]
    if held:
        said.append(f"the row{'s' if len(held) > 1 else ''} of {_listed(held)} {'are' if len(held) > 1 else 'is'} kept")
    if moment.finished:
        said.append(f"{_listed(moment.finished)} {'have' if len(moment.finished) > 1 else 'has'} finished")
    if moment.waiting:
        said.append(f"{moment.waiting} wait{'' if moment.waiting > 1 else 's'}")
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}."


def _listed(names: Sequence[str]) -> str:
    return " and ".join(", ".join(names).rsplit(", ", 1))
