"""The collision: what a batch size does to each user and to all of them, from a recorded run of the decoder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from underload.figures.moving import Bar, Commit, Curve, Frame, Mark, Number, Slider, moving_figure
from underload.figures.palette import FigureError, look
from underload.figures.plot import Axis, Panel
from underload.figures.still import Picture
from underload.figures.style import axes, svg_file
from underload.figures.wording import quantity


@dataclass(frozen=True)
class Group:
    """One recorded run: so many users served together, from the first prompt to the last token. Medians."""

    size: int
    reading: float  # s, all prompts of the group, one after another
    seconds: float  # s, reading and writing
    step: float  # s between two tokens of a user, once all write


@dataclass(frozen=True)
class Serving:
    """All users served in groups of one size, one group after another: each number follows from recorded runs."""

    batch: int
    groups: tuple[Group, ...]
    tokens: int  # of one answer

    @property
    def starts(self) -> list[float]:
        """When each group begins, s after everybody arrived."""
        starts, at = [], 0.0
        for group in self.groups:
            starts.append(at)
            at += group.seconds
        return starts

    @property
    def done(self) -> float:
        return sum(group.seconds for group in self.groups)

    @property
    def last_first_token(self) -> float:
        """When the last in line sees a first token: its group's prompts are read one after another, its own last."""
        return self.starts[-1] + self.groups[-1].reading

    @property
    def throughput(self) -> float:
        return sum(group.size for group in self.groups) * self.tokens / self.done


def groups(recording: Mapping[str, Any]) -> dict[int, Group]:
    """The recorded groups by size."""
    found = {}
    for row in recording["rows"]:
        writing = [sum(steps) / 1e3 for steps in row["steps_ms"]]
        reading = row["prefill_seconds"]
        found[row["batch_size"]] = Group(
            row["batch_size"],
            median(reading),
            median(r + w for r, w in zip(reading, writing, strict=True)),
            median(step for steps in row["steps_ms"] for step in steps) / 1e3,
        )
    return found


def serve(recorded: Mapping[int, Group], batch: int, users: int, tokens: int) -> Serving:
    """Everybody in groups of `batch`, the rest in a last, smaller one.

    Raises:
        FigureError: a group of a size that was not recorded.
    """
    sizes = [batch] * (users // batch) + [users % batch] * (users % batch > 0)
    missing = sorted({size for size in sizes if size not in recorded})
    if missing:
        raise FigureError(
            f"{users} users in groups of {batch} need a run of {missing[0]} that was not recorded; sizes: "
            f"{sorted(recorded)}"
        )
    return Serving(batch, tuple(recorded[size] for size in sizes), tokens)


def collision(
    recording: Mapping[str, Any],
    *,
    live: tuple[int, float] | None = None,
    caption: str = "",
    name: str | None = "collision",
) -> Picture:
    """Choose a batch size for everybody who is waiting: the figure of the landing page.

    Args:
        recording: what tests/benchmarks/collision.py stores.
        live: (batch size, s a step) measured just now, drawn beside the recorded curve.
        caption: what to see in it.

    Raises:
        FigureError: a batch size of the slider that leaves a group which was not recorded.
    """
    users, tokens = recording["users"], recording["output_tokens"]
    recorded = groups(recording)
    batches = list(recording["batch_sizes"])
    served = {batch: serve(recorded, batch, users, tokens) for batch in batches}
    steps = [recorded[b].step * 1e3 for b in batches]
    rates = [served[b].throughput for b in batches]
    step_curve = Curve("time to a user's next token", batches, steps, look="latency", panel=1, legend=False)
    rate_curve = Curve("tokens a second, all users together", batches, rates, look="throughput", panel=2, legend=False)
    between = _boundaries(users, served[batches[0]].done if batches else 1.0)
    ceiling = 1.15 * max(steps)
    again, off = _again(live, ceiling)

    def frame(batch: int) -> Frame:
        run, step = served[batch], recorded[batch].step
        bars, first = [], 0.5
        for start, group in zip(run.starts, run.groups, strict=True):
            rows = (first, first + group.size)
            bars += [
                Bar((0, start), rows, look="queue", name="waiting", faint=True),
                Bar((start, start + group.reading), rows, look="prefill", name="prompt being read"),
                Bar((start + group.reading, start + group.seconds), rows, look="decode", name="answer being written"),
            ]
            first += group.size
        return Frame(
            bars=bars,
            curves=[between, step_curve, rate_curve, *again],
            marks=[
                *off,
                Mark(batch, step * 1e3, look="latency", panel=1),
                Mark(batch, run.throughput, look="throughput", panel=2),
            ],
            numbers=[
                Number("first in line: answered after", run.groups[0].seconds, "s"),
                Number("last in line: answered after", run.done, "s"),
                Number("once served: a token every", step, "s", look="latency"),
                Number("the machine writes", run.throughput, "tokens/s", look="throughput"),
            ],
            says=_says(run, users),
        )

    return moving_figure(
        frame,
        [Slider("batch", "Batch size", batches, start=batches[len(batches) // 2], unit="users")],
        title=f"{users} users, one machine",
        alt=(
            f"Three plots that move with the batch size. Above, a row for each of {users} users who arrive together: "
            "how long each waits, and when the answer is written. Small batches make a long staircase of waiting; "
            "large ones a short, broad block. Below, against the batch size: the time to a user's next token, from "
            f"{quantity(recorded[batches[0]].step, 's')} at batch {batches[0]} to "
            f"{quantity(recorded[batches[-1]].step, 's')} at batch {batches[-1]}, and the tokens a second of all "
            f"users together, from {quantity(rates[0])} to {quantity(rates[-1])}."
        ),
        panels=[
            Panel(
                Axis("time since all of them arrived", "s"),
                Axis(
                    "user, in order of the queue",
                    limits=(0.5, users + 0.5),
                    ticks=[1, *range(10, users + 1, 10)],
                    descending=True,
                ),
                height=1.25,
                grid=False,
            ),
            Panel(
                Axis("batch size", log=True, ticks=_few(batches)),
                Axis("a user's next token takes", "ms", limits=(0, ceiling)),
                half=True,
            ),
            Panel(
                Axis("batch size", log=True, ticks=_few(batches)), Axis("all users together get", "tokens/s"), half=True
            ),
        ],
        caption=caption,
        commit=Commit(
            f"{users} people press Enter at the same moment, and each wants {tokens} tokens. How many do you "
            f"serve at once?",
            control="batch",
            button="Serve them",
        ),
        name=name,
    )


def _again(live: tuple[int, float] | None, ceiling: float) -> tuple[list[Curve], list[Mark]]:
    """The live point, if there is one: on the plot, or at its upper edge when the machine was busy."""
    if live is None:
        return [], []
    batch, milliseconds = live[0], live[1] * 1e3
    if milliseconds <= ceiling:
        return [Curve("measured again just now", [batch], [milliseconds], look="live", panel=1)], []
    said = f"measured just now: {quantity(live[1], 's')} ↑"
    return [], [Mark(batch, milliseconds, said, look="live", panel=1, guides=False, pin=False)]


def cover(recording: Mapping[str, Any]) -> str:
    """The two curves of the collision as the text of an SVG file, for where nothing moves."""
    users, tokens = recording["users"], recording["output_tokens"]
    recorded, batches = groups(recording), list(recording["batch_sizes"])
    figure, (left, right) = axes(
        xlabel="batch size",
        ylabel=("a user's next token takes", "all users together get"),
        yunit=("ms", "tokens/s"),
        xlog=True,
        cols=2,
        width=9.2,
        height=3.3,
    )
    left.plot(batches, [recorded[b].step * 1e3 for b in batches], **look("latency"))
    right.plot(batches, [serve(recorded, b, users, tokens).throughput for b in batches], **look("throughput"))
    for panel in (left, right):
        panel.set_xticks(_few(batches), [str(b) for b in _few(batches)])
        panel.set_ylim(bottom=0)
    left.set_title("The user wants a small batch", color=look("latency")["color"])
    right.set_title("The machine wants a large one", color=look("throughput")["color"])
    return svg_file(
        figure,
        alt=f"Batch size against the time to a user's next token and against the tokens a second of all {users} users.",
    )


def _says(run: Serving, users: int) -> str:
    count = len(run.groups)
    rest = run.groups[-1].size
    if count == 1:
        return f"All {users} are served together: nobody waits for a turn, and everybody waits at every token."
    last = "" if rest == run.batch else f", the last of {rest}"
    return (
        f"{count} turns of {quantity(run.batch, 'users')}{last}. The last in line sees nothing for "
        f"{quantity(run.last_first_token, 's')}."
    )


def _boundaries(users: int, until: float) -> Curve:
    """Thin lines of the page's colour between the rows: one row, one person."""
    xs, ys = [], []
    for user in range(1, users):
        xs += [0.0, until * 1.1, until]
        ys += [user + 0.5, user + 0.5, float("nan")]
    return Curve("", xs, ys, look="surface", thin=True)


def _few(batches: Sequence[int]) -> list[int]:
    """Tick positions: the batch sizes, thinned where they would touch on a logarithmic axis."""
    kept: list[int] = []
    for batch in batches:
        if not kept or batch >= 1.5 * kept[-1]:
            kept.append(batch)
    if kept[-1] != batches[-1]:
        kept[-1] = batches[-1]
    return kept
