"""Points in a test cell: what each check is worth, what was earned, and what a check had to say.

    points = Points(4)
    with points.check(1, "one request, call by call"):
        check_stamps(serve)
    ### BEGIN HIDDEN TESTS
    with points.check(3, "other requests"):
        for length in points.draw().integers(2, 9, size=5):
            check_stamps(serve, max_tokens=int(length))
    ### END HIDDEN TESTS
    points.earned()

A check that raises earns nothing and says why; the next one runs all the same. The cell ends in the number of points,
which is nbgrader's way to give part of them, and which a notebook shows as a card with a line for each check.
What the tested code prints or warns during a check is put on the card and not beside it, since nbgrader takes anything
on standard error for a failure.
"""

from __future__ import annotations

import contextlib
import hashlib
import html
import io
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Set by the grader in the process that runs a test, never in a hand-out: draws the hidden inputs of one class.
hidden_seed: bytes = b""
#: Set by the grader: called with a check's name around each check; what it raises is what the check says.
around: Any = contextlib.nullcontext

_SHOWN = 600  # characters of a check's message on the card


@dataclass(frozen=True)
class Check:
    """One check: `earned` is `worth` or 0; `said` is empty when it passed; `missing` when nothing was written yet."""

    what: str
    worth: float
    earned: float
    said: str = ""
    printed: str = ""
    missing: bool = False


class Points:
    """The points of one test cell."""

    def __init__(self, total: float) -> None:
        """total: the points of the cell, as its nbgrader metadata has them."""
        self.total = total
        self.checks: list[Check] = []

    @contextlib.contextmanager
    def check(self, worth: float, what: str) -> Iterator[None]:
        """Run the body; it earns `worth` points unless it raises. `what` names what is checked, for the card."""
        printed = io.StringIO()
        said, missing = "", False
        try:
            with (
                contextlib.redirect_stdout(printed),
                contextlib.redirect_stderr(printed),
                warnings.catch_warnings(),
                around(what),
            ):
                warnings.simplefilter("default")
                warnings.showwarning = lambda message, category, *_, **__: print(
                    f"{category.__name__}: {message}", file=printed
                )
                yield
        except NotImplementedError as error:
            said, missing = f"not written yet ({error})" if str(error) else "not written yet", True
        except (Exception, SystemExit) as error:
            said = _say(error)
        self.checks.append(Check(what, worth, 0.0 if said else float(worth), said, printed.getvalue(), missing))

    def draw(self) -> np.random.Generator:
        """Random inputs for hidden checks: the same at every run, others for every class that sets a secret."""
        return np.random.default_rng(list(hashlib.sha256(b"hidden inputs" + hidden_seed).digest()))

    def earned(self) -> Earned:
        """What the checks so far earned; the last expression of a test cell.

        Raises:
            ValueError: the checks are worth more than the cell.
        """
        worth = sum(check.worth for check in self.checks)
        if worth > self.total + 1e-9:
            raise ValueError(f"the checks are worth {number(worth)} points and the cell {number(self.total)}")
        return Earned(self.total, tuple(self.checks))


class Earned(float):
    """Points earned: a number, which a notebook shows as a card."""

    total: float
    checks: tuple[Check, ...]

    def __new__(cls, total: float, checks: tuple[Check, ...]) -> Earned:
        made = super().__new__(cls, round(sum(check.earned for check in checks), 6))
        made.total, made.checks = total, checks
        return made

    def __repr__(self) -> str:
        return number(self)

    __str__ = __repr__

    def __reduce__(self) -> tuple[Any, ...]:
        return Earned, (self.total, self.checks)

    def _repr_html_(self) -> str:
        return card(self)


def number(value: float) -> str:
    """4, 2.5, 0: as a person writes points."""
    return f"{value:g}"


def card(earned: Earned) -> str:
    """The card of a test cell: the sum, and a line for each check."""
    here = sum(check.worth for check in earned.checks)
    later = earned.total - here
    unit = "point" if earned.total == 1 else "points"
    head = f"<b>{number(earned)} of {number(earned.total)} {unit}</b>"
    if later > 1e-9:
        head += f" so far: {number(later)} more can come from checks that are not shown here"
    rows = "".join(_row(check) for check in earned.checks)
    return (
        '<div style="border-left:4px solid currentColor;padding:.3em .9em;max-width:52em;line-height:1.45">'
        f'<div>{head}</div><table style="border:0;margin:.2em 0 0;width:auto">{rows}</table></div>'
    )


def _row(check: Check) -> str:
    sign, word = ("✓", "passed") if not check.said else ("○", "open") if check.missing else ("✗", "failed")
    detail = ""
    if check.said:
        detail += f'<br><span style="white-space:pre-wrap">{html.escape(_cut(check.said))}</span>'
    if check.printed.strip():
        detail += (
            '<details><summary>printed meanwhile</summary><pre style="white-space:pre-wrap">'
            f"{html.escape(_cut(check.printed))}</pre></details>"
        )
    cell = "border:0;text-align:left;vertical-align:top;background:none;padding:.1em .6em .1em 0;white-space:normal"
    return (
        f'<tr style="background:none"><td style="{cell}"><span role="img" aria-label="{word}">{sign}</span></td>'
        f'<td style="{cell};white-space:nowrap">{number(check.earned)}/{number(check.worth)}</td>'
        f'<td style="{cell}">{html.escape(check.what)}{detail}</td></tr>'
    )


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + " …"


def _say(error: BaseException) -> str:
    """What went wrong, in words for the person whose code it is: a check's own message as it stands, anything else with
    the innermost line of code that was typed into the notebook."""
    if isinstance(error, AssertionError) and str(error):
        return str(error)
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    typed = [entry for entry in traceback.extract_tb(error.__traceback__) if _typed(entry.filename)]
    # the first typed frame is the test cell's own line
    if len(typed) > 1:
        entry = typed[-1]
        text += f"\nin {entry.name}, line {entry.lineno}: {(entry.line or '').strip()}"
    return text


def _typed(filename: str) -> bool:
    """Whether code comes from a notebook's cell: IPython and ipykernel compile cells under names such as these."""
    return "ipykernel_" in filename or filename.startswith(("<ipython-input", "<cell "))
