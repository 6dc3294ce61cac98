"""From records of a decoder's steps to a model of their time.

    design       loads that visit many batch sizes, contexts and chunks
    measure      the records of such a load, on the real engine; measure_rounds: of several rounds in turn
    fit          records -> FittedStepTime
    StepErrors   what it says against records that it has not seen

A record's duration ends when the tokens are there; the engine then writes its books before the next step can begin. A
simulated step has no time between steps, so `measure` counts from one step's start to the next's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from underload.cache import BlockPool
from underload.engine import Engine, Executor
from underload.request import Clock, Request, SamplingParams, StepRecord, StepSize, Timeline, UnderloadError
from underload.scheduling import Scheduler
from underload.simulation.fitted import NAMES, FittedStepTime
from underload.simulation.step_time import StepTime
from underload.workload import Planned

BLOCK_SIZE = 16
# Knots are looked for at these numbers of tokens and their multiples by powers of two.
_STEPS = (4, 5, 6, 7)
_NEAR = 1.12  # a knot needs records within this factor
_LEAST = 4  # so many of them


@dataclass(frozen=True)
class CalibrationLoad:
    """Requests that all wait at the start: (prompt tokens, output tokens), and the limits they are served under."""

    max_num_seqs: int
    max_num_batched_tokens: int
    requests: tuple[tuple[int, int], ...]

    @property
    def num_blocks(self) -> int:
        """So many that nobody is preempted."""
        longest = sorted((prompt + output for prompt, output in self.requests), reverse=True)
        return sum(-(-tokens // BLOCK_SIZE) + 1 for tokens in longest[: self.max_num_seqs])


def design(
    *, max_num_seqs: int = 32, max_num_batched_tokens: int = 256, longest: int = 512, seed: int = 0
) -> list[CalibrationLoad]:
    """One round of loads. With twice as many requests as slots, steps with prompts, steps with decodes and steps with
    both come by themselves; slots, budgets and lengths differ from load to load.

    Args:
        max_num_seqs, max_num_batched_tokens: the most that a simulation will be asked for.
        longest: tokens of a sequence at most.
        seed: another one gives another round, such as one to test on.

    Raises:
        UnderloadError: a limit below 1, or `longest` below 8.
    """
    if min(max_num_seqs, max_num_batched_tokens) < 1 or longest < 8:
        raise UnderloadError(
            f"max_num_seqs and max_num_batched_tokens must be at least 1 and longest at least 8, got {max_num_seqs}, "
            f"{max_num_batched_tokens} and {longest}"
        )
    rng = np.random.default_rng(seed)
    loads = []
    slots = sorted(
        {min(size, max_num_seqs) for size in (1, 2, 3, 4, 6, 8, 12, 16, 24, *range(32, max_num_seqs + 1, 16))}
    )
    for size in [*slots, max_num_seqs]:
        least = min(max(size, 16), max_num_batched_tokens)
        budget = round(math.exp(rng.uniform(math.log(least), math.log(max_num_batched_tokens))))
        outputs = rng.integers(2, max(3, min(24, longest // 4)), 2 * size)
        prompts = np.exp(rng.uniform(math.log(4), math.log(longest - outputs.max()), 2 * size)).astype(int)
        loads.append(CalibrationLoad(size, budget, tuple(zip(prompts.tolist(), outputs.tolist()))))
    # As many keys as there can be: all slots full, and the first still talking when the last prompt is done.
    tokens = min(-(-max_num_seqs * longest // max_num_batched_tokens) + 4, longest // 2)
    loads.append(CalibrationLoad(max_num_seqs, max_num_batched_tokens, ((longest - tokens, tokens),) * max_num_seqs))
    return [loads[place] for place in rng.permutation(len(loads))]


def measure(
    executor: Executor,
    load: CalibrationLoad,
    *,
    vocabulary: int,
    num_blocks: int,
    seed: int = 0,
    sampling: SamplingParams | None = None,
    clock: Clock | None = None,
) -> list[StepRecord]:
    """Serve the load on the real engine; one record a step, each up to the start of the next.

    Args:
        executor: with room for `num_blocks` blocks of BLOCK_SIZE tokens.
        vocabulary: prompts are drawn below it, so that no two share anything.
        sampling: how tokens are drawn, as in `workload.Planned`.
        clock: the wall if None.

    Raises:
        UnderloadError: fewer blocks than the load needs.
    """
    if num_blocks < load.num_blocks:
        raise UnderloadError(
            f"the load needs {load.num_blocks} blocks, and there are {num_blocks}; make the cache larger"
        )
    rng = np.random.default_rng(seed)
    scheduler = Scheduler(
        BlockPool(num_blocks, BLOCK_SIZE),
        max_num_seqs=load.max_num_seqs,
        max_num_batched_tokens=load.max_num_batched_tokens,
    )
    engine = Engine(scheduler, executor, clock)
    for place, (prompt, output) in enumerate(load.requests):
        # As a planned load asks: how a token is drawn is a part of the step.
        params = Planned(0.0, prompt, output, sampling=sampling).params
        engine.add(Request(str(place), rng.integers(vocabulary, size=prompt).tolist(), params, Timeline(0.0)))
    engine.run()
    return periods(engine.steps)


def measure_rounds(
    executor: Executor,
    rounds: Sequence[Sequence[CalibrationLoad]],
    *,
    vocabulary: int,
    num_blocks: int,
    sampling: SamplingParams | None = None,
    clock: Clock | None = None,
    done: Callable[[], object] | None = None,
) -> list[list[StepRecord]]:
    """The records of each round of loads. The rounds take turns, load by load, so that a machine that drifts drifts
    under all of them; one load beforehand warms it up.

    Args:
        done: called after each load.
    """
    how: dict[str, Any] = {"vocabulary": vocabulary, "num_blocks": num_blocks, "sampling": sampling, "clock": clock}
    measure(executor, rounds[0][0], **how)
    found: list[list[StepRecord]] = [[] for _ in rounds]
    for turn in range(max(map(len, rounds))):
        for seed, (loads, records) in enumerate(zip(rounds, found)):
            if turn < len(loads):
                records += measure(executor, loads[turn], seed=seed, **how)
                if done is not None:
                    done()
    return found


def periods(records: Sequence[StepRecord]) -> list[StepRecord]:
    """Records of steps that followed each other without a pause, each lasting until the next begins; the last one of
    all is left out, since nothing says what came after it."""
    return [replace(one, duration=then.start - one.start) for one, then in pairwise(records)]


def fit(records: Iterable[StepRecord], *, about: Mapping[str, Any] | None = None) -> FittedStepTime:
    """The model of step times that is closest to the records.

    Least squares of the relative errors with no part below 0 (Lawson and Hanson, "Solving Least Squares Problems",
    1974), each error relative to what the model says, so that the sum of many steps comes out right. Errors beyond
    three standard deviations, by their median, count as if they lay there (Huber, "Robust Estimation of a Location
    Parameter", 1964): other programs disturb a measurement now and then, and only ever make a step longer.

    Args:
        about: kept with the model.

    Raises:
        UnderloadError: fewer than 20 records, or one that took no time.
    """
    from scipy.optimize import nnls

    kept = list(records)
    if len(kept) < 20:
        raise UnderloadError(f"{len(kept)} records are too few to fit step times to; give at least 20")
    seconds = np.array([record.duration for record in kept])
    if not (seconds > 0).all() or not np.isfinite(seconds).all():
        raise UnderloadError("a record took no time, or no finite one; fit step times to measured steps")
    sizes = np.array([_size(record) for record in kept], dtype=float)
    knots = _knots(sizes[:, 0])
    table = np.hstack([_hats(sizes[:, 0], knots), sizes[:, 1:]])
    scale = table.max(axis=0)
    scale[scale == 0] = 1.0
    weights, expected = np.ones(len(kept)), seconds
    for _ in range(12):
        row = np.sqrt(weights) / expected
        terms = nnls(table / scale * row[:, None], seconds * row, maxiter=50 * table.shape[1])[0] / scale
        expected = np.maximum(table @ terms, 1e-3 * seconds)
        off = seconds / expected - 1
        limit = max(3 * 1.4826 * float(np.median(np.abs(off - np.median(off)))), 1e-9)
        weights = np.minimum(1.0, limit / np.maximum(np.abs(off), 1e-12))
    *products, per_sequence, per_context, per_pair, per_logit_row = terms.tolist()
    return FittedStepTime(
        knots=tuple(knots),
        at_knots=tuple(products),
        per_sequence=per_sequence,
        per_context=per_context,
        per_pair=per_pair,
        per_logit_row=per_logit_row,
        ranges={
            # What is paid for by the piece is known from the first one on.
            name: (float(low) if name in ("tokens", "batch_size") else 0.0, float(high))
            for name, low, high in zip(NAMES, sizes.min(axis=0), sizes.max(axis=0))
        },
        about=dict(about or {}),
    )


@dataclass(frozen=True)
class StepErrors:
    """A model of step times against measured steps; relative, 0.01 is 1 %.

    median, mean: of the single steps' errors, whatever their sign.
    total: of the time of all steps together, with its sign: what a simulation of many steps is off by.
    steps: how many were compared.
    """

    median: float
    mean: float
    total: float
    steps: int

    @classmethod
    def of(cls, model: StepTime, records: Sequence[StepRecord]) -> StepErrors:
        said = np.array([model(record) for record in records])
        took = np.array([record.duration for record in records])
        off = np.abs(said / took - 1)
        return cls(float(np.median(off)), float(off.mean()), float(said.sum() / took.sum() - 1), len(records))


def _size(step: StepSize) -> tuple[int, ...]:
    """The values of NAMES."""
    tokens = step.prefill_tokens + step.decode_tokens + step.padding_tokens
    return tokens, step.batch_size, step.context_tokens, step.score_pairs, step.logit_rows


def _knots(tokens: NDArray[Any]) -> list[float]:
    """The ends of what was seen, and numbers between them near which enough was seen; 1, 2 and 3 as they are."""
    low, high = float(tokens.min()), float(tokens.max())
    wanted = {1.0, 2.0, 3.0} | {float(step << shift) for step in _STEPS for shift in range(20)}
    between = [
        knot
        for knot in sorted(wanted)
        if low * _NEAR < knot < high / _NEAR and ((tokens > knot / _NEAR) & (tokens < knot * _NEAR)).sum() >= _LEAST
    ]
    return sorted({low, *between, high})


def _hats(tokens: NDArray[Any], knots: list[float]) -> NDArray[Any]:
    """[records, knots]: shares that a straight line between the knots next to it takes of each."""
    return np.stack([np.interp(tokens, knots, row) for row in np.eye(len(knots))], axis=1)
