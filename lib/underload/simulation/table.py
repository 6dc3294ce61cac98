"""Step times read off a table of measurements, between its points."""

from __future__ import annotations

import warnings
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from underload.request import StepSize, UnderloadError

Points = Sequence[tuple[float, float]]


class TableStepTime:
    """Prompts by their tokens, decodes by their number, each on straight lines between measured points.

    A step with both takes as long as the longer of a prompt of all its tokens and a decode of all its rows: they go
    through the model together, and the weights are read once. What a long context adds is not in such a table: it is
    that of the measurements. Beyond the first and last point the end is taken, and a warning says so, once.

    Args:
        prompt: (tokens computed in a step with a prompt, s), at least one.
        decode: (sequences in a step of decodes, s), at least one.
        source: what was measured, for the warning.

    Raises:
        UnderloadError: no point, two for one size, a size below 1, or a step that takes no time.
    """

    def __init__(self, prompt: Points, decode: Points, *, source: str = "the table") -> None:
        self.prompt, self.decode = _checked("prompt", prompt), _checked("decode", decode)
        self.source = source
        self._warned: set[str] = set()

    @classmethod
    def of_columns(
        cls, columns: Mapping[str, Any], *, model: str, hardware: str, tensor_parallel: int
    ) -> TableStepTime:
        """Medians of the timings of Splitwise (Patel et al., ISCA 2024), as `workload.read_columns` reads their file.

        A point of `prompt` is a batch of whole prompts, a point of `decode` the mean step of an answer of 128 tokens
        behind prompts of 512.

        Raises:
            UnderloadError: columns that are missing, or no rows of that model, hardware and parallelism; the message
                lists those there are.
        """
        names = ("model", "hardware", "tensor_parallel", "prompt_size", "batch_size", "token_size")
        if missing := [name for name in (*names, "prompt_time", "token_time") if name not in columns]:
            raise UnderloadError(f"the table has no column {', '.join(missing)}; it has {', '.join(columns)}")
        rows = list(zip(*(columns[name].tolist() for name in (*names, "prompt_time", "token_time"))))
        wanted = (model, hardware, tensor_parallel)
        if not (mine := [row[3:] for row in rows if row[:3] == wanted]):
            known = sorted({f"{name} on {device} x {parallel:g}" for name, device, parallel, *_ in rows})
            raise UnderloadError(
                f"the table has no {model!r} on {hardware!r} x {tensor_parallel}; it has {', '.join(known)}"
            )
        prompt: dict[float, list[float]] = {}
        decode: dict[float, list[float]] = {}
        for prompt_size, batch_size, token_size, prompt_ms, token_ms in mine:
            prompt.setdefault(prompt_size * batch_size, []).append(prompt_ms / 1e3)
            if prompt_size == 512 and token_size == 128:
                decode.setdefault(batch_size, []).append(token_ms / 1e3)
        return cls(
            [(size, median(times)) for size, times in prompt.items()],
            [(size, median(times)) for size, times in decode.items()],
            source=f"{model} on {hardware} x {tensor_parallel} (Splitwise)",
        )

    def __call__(self, step: StepSize) -> float:
        tokens = step.prefill_tokens + step.decode_tokens + step.padding_tokens
        seconds = self._look_up("decode", self.decode, step.batch_size) if step.decode_tokens else 0.0
        if step.prefill_tokens:
            seconds = max(seconds, self._look_up("prompt", self.prompt, tokens))
        return seconds

    def run(self, step: StepSize, k: int) -> list[float]:
        return [self(step)] * k

    def _look_up(self, name: str, points: tuple[list[float], list[float]], size: float) -> float:
        sizes, times = points
        place = bisect_right(sizes, size)
        if place == 0 or place == len(sizes):
            if size != sizes[-1] and name not in self._warned:
                self._warned.add(name)
                what = "sequences in a step of decodes" if name == "decode" else "tokens in a step with a prompt"
                warnings.warn(
                    f"{size:g} {what} lie outside the {sizes[0]:g} to {sizes[-1]:g} that {self.source} has measured; "
                    "its end is taken",
                    stacklevel=4,
                )
            return times[max(place - 1, 0)]
        low, high = sizes[place - 1], sizes[place]
        return times[place - 1] + (times[place] - times[place - 1]) * ((size - low) / (high - low))


def _checked(name: str, points: Points) -> tuple[list[float], list[float]]:
    if not points:
        raise UnderloadError(f"{name} has no point; give at least one (size, seconds)")
    sizes, times = map(list, zip(*sorted(points)))
    if sizes[0] < 1 or len(set(sizes)) < len(sizes) or not min(times) > 0:
        raise UnderloadError(f"{name} needs one time above 0 s for each size from 1 on, got {list(points)}")
    return sizes, times
