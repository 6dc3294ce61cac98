"""A step's time as a machine was seen to take it."""

from __future__ import annotations

import json
import math
import warnings
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from underload.request import StepSize, UnderloadError
from underload.simulation.step_time import growth

FORMAT = "underload fitted step time 1"
# What a step is asked for, in the order in which it is checked.
NAMES = ("tokens", "batch_size", "context_tokens", "score_pairs", "logit_rows")


@dataclass(frozen=True)
class FittedStepTime:
    """Straight lines over the number of tokens, and so much for each sequence, key, pair and row of logits, all in s.

    The time of the products is no line in the number of tokens: tiles, buckets and caches make steps in it, so it is
    given at `knots` and runs straight between them and, with the slope of the last piece, beyond. `calibrate.fit` makes
    one of records.

    It knows what it was fitted on. Asked for more or less than that it answers all the same, and warns: once for each
    name, with the value and the limit.

    knots, at_knots: tokens computed in a step (padding included), rising, and s.
    per_sequence, per_context, per_pair, per_logit_row: s for each of `batch_size`, `context_tokens`, `score_pairs`,
        `logit_rows`.
    ranges: the least and the most of each of NAMES that was seen.
    about: what was measured: model, machine, versions, date, errors.

    Raises:
        UnderloadError: knots that do not rise, one without its time, a negative time, or a name without a range.
    """

    knots: tuple[float, ...]
    at_knots: tuple[float, ...]
    per_sequence: float
    per_context: float
    per_pair: float
    per_logit_row: float
    ranges: Mapping[str, tuple[float, float]]
    about: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    _warned: set[str] = field(default_factory=set, init=False, repr=False, compare=False)
    _limits: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        knots, times = self.knots, self.at_knots
        if not knots or len(knots) != len(times) or any(a >= b for a, b in pairwise(knots)):
            raise UnderloadError(f"knots must rise, with one time for each, got {knots} and {times}")
        terms = (*times, self.per_sequence, self.per_context, self.per_pair, self.per_logit_row)
        if not all(0 <= term < math.inf for term in terms) or not sum(terms) > 0:
            raise UnderloadError(f"a step takes some time and no part of it is negative, got {terms} s")
        if missing := [name for name in NAMES if name not in self.ranges]:
            raise UnderloadError(
                f"no range for {', '.join(missing)}; each of {', '.join(NAMES)} has a least and a most"
            )
        object.__setattr__(self, "_limits", tuple(limit for name in NAMES for limit in self.ranges[name]))

    def __call__(self, step: StepSize) -> float:
        self._check(step, 0)
        return self._seconds(step, self._products(step), 0)

    def run(self, step: StepSize, k: int) -> list[float]:
        if not k:
            return []
        more = growth(step, k)
        self._check(step, 0)
        self._check(step, more[-1])
        products = self._products(step)
        return [self._seconds(step, products, keys) for keys in more]

    def _seconds(self, step: StepSize, products: float, more: int) -> float:
        """`more` keys and pairs than the step itself has."""
        return (
            products
            + self.per_sequence * step.batch_size
            + self.per_logit_row * step.logit_rows
            + self.per_context * (step.context_tokens + more)
            + self.per_pair * (step.score_pairs + more)
        )

    def _products(self, step: StepSize) -> float:
        tokens = step.prefill_tokens + step.decode_tokens + step.padding_tokens
        knots, times = self.knots, self.at_knots
        if len(knots) == 1:
            return times[0]
        place = min(max(bisect_right(knots, tokens), 1), len(knots) - 1)
        low, high = knots[place - 1], knots[place]
        share = (tokens - low) / (high - low)
        return max(times[place - 1] + (times[place] - times[place - 1]) * share, 0.0)

    def _check(self, step: StepSize, more: int) -> None:
        tokens = step.prefill_tokens + step.decode_tokens + step.padding_tokens
        keys, pairs = step.context_tokens + more, step.score_pairs + more
        low_t, high_t, low_b, high_b, low_c, high_c, low_p, high_p, low_r, high_r = self._limits
        if (
            low_t <= tokens <= high_t
            and low_b <= step.batch_size <= high_b
            and low_c <= keys <= high_c
            and low_p <= pairs <= high_p
            and low_r <= step.logit_rows <= high_r
        ):
            return
        for name, value in zip(NAMES, (tokens, step.batch_size, keys, pairs, step.logit_rows)):
            low, high = self.ranges[name]
            if not low <= value <= high and name not in self._warned:
                self._warned.add(name)
                warnings.warn(
                    f"a step with {name} = {value:,} was asked for, and the model of step times was fitted on "
                    f"{low:,g} to {high:,g}: what it says there is a guess; calibrate on larger loads",
                    stacklevel=4,
                )

    # ---- files -----------------------------------------------------------------------------------------------------

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        held = {name: value for name, value in asdict(self).items() if not name.startswith("_")}
        return {"format": FORMAT, **held}

    def save(self, path: str | Path) -> None:
        """Write it as JSON.

        Raises:
            OSError: it cannot be written.
        """
        Path(path).write_text(json.dumps(self.as_dict(), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> FittedStepTime:
        """What `save` wrote.

        Raises:
            UnderloadError: a file that is not there, or is none of `save`'s.
        """
        try:
            held = json.loads(Path(path).read_text(encoding="utf-8"))
            if held.pop("format") != FORMAT:
                raise ValueError("another format")
            return cls(
                knots=tuple(held.pop("knots")),
                at_knots=tuple(held.pop("at_knots")),
                ranges={name: (low, high) for name, (low, high) in held.pop("ranges").items()},
                **held,
            )
        except OSError as error:
            raise UnderloadError(f"{path} cannot be read: {error.strerror or error}; check the name") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UnderloadError(
                f"{path} holds no fitted step times ({' '.join(str(error).split())[:80]}); "
                "make one with underload calibrate"
            ) from error
