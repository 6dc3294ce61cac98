"""How far a run has come, for whoever watches it."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from time import monotonic
from typing import Protocol

from underload.request import Request

# A bar that is drawn more often than this is work for the terminal and flicker for the eye.
_REDRAW = 0.2  # s


class Progress(Protocol):
    def finish(self, request: Request) -> None:
        """One more request is finished."""

    def draw(self) -> None:
        """Show the rate, if it has not been shown just now."""


def progress_bar(shown: bool | None, total: int) -> AbstractContextManager[Progress]:
    """A bar of finished requests on standard error, with the output tokens a second beside it.

    Args:
        shown: None shows it where standard error is a terminal. True draws in a notebook, too.
        total: requests.
    """
    if shown is None:
        shown = sys.stderr is not None and sys.stderr.isatty()
    return _Bar(total) if shown else nullcontext(_NoBar())


class _NoBar:
    """A progress bar that shows nothing."""

    def finish(self, request: Request) -> None:
        pass

    def draw(self) -> None:
        pass


class _Bar:
    """tqdm's."""

    def __init__(self, total: int) -> None:
        from tqdm.auto import tqdm  # where it is not installed, serving without a bar still works

        self._bar = tqdm(total=total, unit="request", dynamic_ncols=True)
        self._start = self._drawn = monotonic()
        self._tokens = 0

    def finish(self, request: Request) -> None:
        self._tokens += sum(len(sequence.tokens) - sequence.prompt_len for sequence in request.sequences)
        self._bar.update(1)

    def draw(self) -> None:
        now = monotonic()
        if now - self._drawn >= _REDRAW:
            self._drawn = now
            self._bar.set_postfix_str(f"{self._tokens / (now - self._start):,.0f} tokens/s")

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
