"""Start here: the panel and the picture of the two-minute notebook. Torch-free: the notebook brings the decoder.

rate       tokens a second that each user of a finished run got
panel      buttons that add users, with the first user's text as it comes
measure    what `serve` gives for every number of users
draw       the picture of it
summary    the reader's guess and measurement beside the book's recorded one
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any, Protocol

from underload import figures
from underload.request import StepRecord

# (tokens/s for each user, tokens/s for all together)
Rates = tuple[float, float]


class Serve(Protocol):
    """The notebook's own function: tell `users` stories at once."""

    def __call__(self, users: int, *, on_token: Callable[..., None] | None = None) -> Rates: ...


class Finished(Protocol):
    """What this module needs of a run: the record of its steps."""

    @property
    def steps(self) -> list[StepRecord]: ...


def rate(run: Finished) -> float:
    """Tokens a second that each user got: one over the median step that prefilled nothing."""
    return 1 / statistics.median(step.duration for step in run.steps if step.prefill_tokens == 0)


def measure(serve: Serve, users: Sequence[int]) -> dict[int, Rates]:
    """Call `serve` for every number of users."""
    return {number: serve(number) for number in users}


def recorded() -> dict[str, Any]:
    """The book's own measurement: machine, date, and the rates for each number of users."""
    return json.loads(resources.files(__package__).joinpath("start_here.json").read_text(encoding="utf-8"))


def recorded_rates() -> dict[int, Rates]:
    """Number of users -> (tokens/s for each, tokens/s together), as the book recorded them."""
    return {int(users): (each, together) for users, (each, together) in recorded()["rates"].items()}


def panel(serve: Serve, users: Sequence[int]) -> Any:
    """Buttons for the number of users; each click serves them and shows the first user's text as it comes.

    The text is drawn at most every 40 ms: a browser that draws every token would be slower than the model.
    """
    import ipywidgets as widgets

    buttons = widgets.ToggleButtons(
        options=[(str(number), number) for number in users], description="Users", value=None
    )
    shown = widgets.HTML(value=_panel_html("", None, ""))

    def run(change: Mapping[str, Any]) -> None:
        if change["new"] is None:
            return
        text, drawn = "", 0.0
        buttons.disabled = True

        def on_token(index: int, delta: str, token: int, timeline: Any) -> None:
            nonlocal text, drawn
            if index == 0:
                text += delta
                if time.perf_counter() - drawn > 0.04:
                    drawn = time.perf_counter()
                    shown.value = _panel_html(text, None, f"{change['new']} at once …")

        try:
            rates = serve(change["new"], on_token=on_token)
            shown.value = _panel_html(text, rates, f"{change['new']} at once")
        finally:
            buttons.disabled = False

    buttons.observe(run, names="value")
    return widgets.VBox([buttons, shown])


def _panel_html(text: str, rates: Rates | None, title: str) -> str:
    each, together = rates or (None, None)
    rows = "".join(
        f"<div style='margin:.2em 0'><b style='display:inline-block;width:7em'>{name}</b>"
        f"{'…' if value is None else figures.quantity(value, 'tokens/s')}</div>"
        for name, value in (("each user", each), ("together", together))
    )
    story = escape(text) or "<i>Pick a number of users.</i>"
    return (
        f"<div style='max-width:42em'><div style='min-height:1.6em'>{escape(title)}</div>{rows}"
        f"<div style='min-height:9em;margin-top:.6em;line-height:1.45'>{story}</div></div>"
    )


def draw(rates: Mapping[int, Rates], where: Mapping[str, Any]) -> Any:
    """Both rates against the number of users, as a `Picture`."""
    users = list(rates)
    each, together = ([rates[number][i] for number in users] for i in (0, 1))
    fig, (left, right) = figures.axes(
        rows=1,
        cols=2,
        xlabel="users at once",
        ylabel=("each of them gets", "all together get"),
        yunit="tokens/s",
        xlog=True,
    )
    left.plot(users, each, **figures.look("latency"), label="each user")
    right.plot(users, together, **figures.look("throughput"), label="together")
    for ax in (left, right):
        ax.set_ylim(bottom=0)
        ax.set_xticks(users, [str(number) for number in users])
    device = where.get("gpu") or where.get("cpu")
    return figures.show(
        fig,
        alt=f"Two curves against the number of users, 1 to {users[-1]}. What each user gets falls, from "
        f"{each[0]:,.0f} to {each[-1]:,.0f} tokens a second; what all get together rises, "
        f"from {together[0]:,.0f} to {max(together):,.0f}.",
        caption=f"pocket on {device}. Left: the more users, the slower the text of each. "
        "Right: the more users, the more gets done in a second.",
        data={"users": users, "each (tokens/s)": each, "together (tokens/s)": together},
        name="start-here",
    )


def summary(rates: Mapping[int, Rates], guess: float | None, users: int = 32) -> None:
    """Print the reader's guess, the reader's measurement and the book's, in per cent of what one user had alone."""
    book = recorded_rates()
    said = "you made no guess" if guess is None else f"{guess:g} %"
    print(f"what each of {users} users gets, in per cent of what one alone gets")
    print(f"  your guess:      {said}")
    for label, each in (("your machine:   ", rates), ("the book's:     ", book)):
        if users in each and 1 in each:
            print(
                f"  {label} {100 * each[users][0] / each[1][0]:.0f} %"
                f" (and together {each[users][1] / each[1][1]:.1f} times as much as one alone)"
            )
    told = recorded()
    where = told["machine"]["gpu"] or told["machine"]["cpu"]
    load = told["other_load"]
    busy = "" if load is None else f", while other work took {100 * load:.0f} % of the machine"
    print(f"the book's was recorded on {told['date']}, {where}, {told['machine']['threads']} threads{busy}")
