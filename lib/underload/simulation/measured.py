"""Runs of another engine, measured by others, on this library's scheduler and pool: how far off is the simulation?

    MeasuredEngine   how an engine was set: pool, limits, policies
    VLLM             two measured runs of vLLM 0.19.0, by their names among the public traces
    rerun            the load of a run on the real scheduler and pool, on a virtual clock
    RunErrors        how far a rerun is from what was measured
    fit_overlap      the step's cost that brings them together, from some of the requests
    transferred      that cost on other hardware, for another model

A run enters with the instants at which its requests were queued in the engine; all is measured from there. Every
request takes part in a fit's runs, whose errors count or not: those that are held out only need to be left out of the
errors that the fit sees.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from underload.cache import BlockPool
from underload.request import StepSize, UnderloadError
from underload.scheduling import Continuous
from underload.shapes import Device, ModelShape, device, sized_cost
from underload.simulation.serving import ServingRun, simulate_serving
from underload.simulation.step_time import OverlapStepTime, StepTime
from underload.workload import Measured, Planned

Chosen = NDArray[np.bool_]


@dataclass(frozen=True)
class MeasuredEngine:
    """What a measured engine ran on, and how it was set.

    shape: name of the model's shape.
    num_blocks: blocks that sequences can have.
    devices: that share each layer of the model (tensor parallel), all like `device`.
    link: bytes/s from one device to the next, each way.
    """

    trace: str
    shape: str
    device: Device
    num_blocks: int
    devices: int = 1
    link: float = math.inf
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048


_RTX_PRO_6000 = Device(
    "rtx-pro-6000-server",
    bandwidth=1597e9,
    flops=480e12,
    memory=96e9,
    source="NVIDIA RTX PRO 6000 Blackwell Server Edition data sheet: 1,597 GB/s, 120 TFLOP/s in 32 bit, of which this "
    "generation's tensor cores do four times as many in 16 bit",
)

# vLLM 0.19.0 V1 with its defaults, as the runs' meta.json say (github.com/casys-kaist/LLMServingSim, bench/examples and
# bench/results): bfloat16; prefix cache; chunked prefill; first come, first served; running sequences in the order in
# which they came, then the queue; the next begins when all tokens it has fit (scheduler_reserve_full_isl), and not in
# a step that had to preempt; the last to come is preempted, and computed again.
VLLM = {
    engine.trace: engine
    for engine in (
        MeasuredEngine(
            trace="vllm-rtx4090-llama31-8b",
            shape="llama-3.1-8b",
            device=device("rtx-4090"),
            # 2,588, of which vLLM keeps the first for itself (its null block).
            num_blocks=2587,
        ),
        MeasuredEngine(
            trace="vllm-rtxpro6000-qwen3-32b",
            shape="qwen3-32b",
            device=_RTX_PRO_6000,
            devices=2,
            link=63e9,  # PCIe 5.0, 16 lanes
            # Not recorded. 128 sequences never filled it: any number from about 12,000 gives the same run.
            num_blocks=28_000,
            max_num_seqs=128,
        ),
    )
}


def rerun(
    measured: Measured,
    engine: MeasuredEngine,
    step_time: StepTime | Callable[[StepSize], float],
    *,
    num_blocks: int | None = None,
) -> ServingRun:
    """The load of a measured run on this library's scheduler and pool, set as the engine was.

    Args:
        num_blocks: instead of the engine's.

    Raises:
        UnderloadError: answers of one token, which have no TPOT to compare.
    """
    if (short := int((measured.output_tokens < 2).sum())) > 0:
        raise UnderloadError(f"{short} answers of {measured.name} have one token and no TPOT; leave them out")
    rows = zip(measured.queued.tolist(), measured.prompt_tokens.tolist(), measured.output_tokens.tolist())
    planned = [Planned(queued, prompt, output, index) for index, (queued, prompt, output) in enumerate(rows)]
    return simulate_serving(
        planned,
        step_time,
        pool=BlockPool(num_blocks or engine.num_blocks, engine.block_size),
        batching=Continuous(prefill="mixed"),
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
    )


@dataclass(frozen=True)
class RunErrors:
    """A rerun against the measurement, over some requests; all relative, 0.01 is 1 % too long.

    ttft, tpot, e2e: of the mean over requests, from the instant each was queued.
    tpot_each, e2e_each: mean over requests of the error's size, each relative to its own measured time.
    requests: how many were compared.
    """

    ttft: float
    tpot: float
    e2e: float
    tpot_each: float
    e2e_each: float
    requests: int

    @classmethod
    def of(cls, measured: Measured, run: ServingRun, chosen: Chosen | None = None) -> RunErrors:
        """Over `chosen` ([requests] bool), or all."""
        picked = np.ones(len(measured), bool) if chosen is None else chosen
        (ttft, real_ttft), (tpot, real_tpot), (e2e, real_e2e) = (
            (simulated[picked], real[picked]) for simulated, real in _latencies(measured, run)
        )
        return cls(
            ttft=_off(ttft, real_ttft),
            tpot=_off(tpot, real_tpot),
            e2e=_off(e2e, real_e2e),
            tpot_each=float(np.abs(tpot / real_tpot - 1).mean()),
            e2e_each=float(np.abs(e2e / real_e2e - 1).mean()),
            requests=int(picked.sum()),
        )


@dataclass(frozen=True)
class OverlapFit:
    """A step's cost, fitted to a measured run.

    fitted, held_out: the errors over the requests that the fit saw, and over the others.
    evaluations: reruns that it took.
    """

    step_time: OverlapStepTime
    fitted: RunErrors
    held_out: RunErrors
    run: ServingRun = field(repr=False)
    evaluations: int


def roofline_guess(engine: MeasuredEngine, shape: ModelShape, *, overlap: float = 0.5) -> OverlapStepTime:
    """The step's cost by data sheet: weights and cache at full bandwidth, products at full FLOP/s; 16 bit."""
    nothing = sized_cost(shape, 0, 0, 0, 1, weight_bytes=2, kv_bytes=2)
    token = sized_cost(shape, 1, 0, 0, 0, weight_bytes=2, kv_bytes=2)
    context = sized_cost(shape, 0, 1, 0, 0, weight_bytes=2, kv_bytes=2)
    bandwidth, flops = engine.device.bandwidth * engine.devices, engine.device.flops * engine.devices
    return OverlapStepTime(
        base=nothing.bytes / bandwidth,
        per_context=context.kv_bytes / bandwidth,
        per_token=token.flops / flops,
        overlap=overlap,
    )


def transferred(
    step_time: OverlapStepTime,
    measured_on: tuple[MeasuredEngine, ModelShape],
    wanted_on: tuple[MeasuredEngine, ModelShape],
    *,
    links: bool = True,
) -> OverlapStepTime:
    """A fitted cost on other hardware, for another model.

    Each term keeps its efficiency: the share of what the data sheet says that was reached. Devices that share a layer
    add up their parts twice a layer, for every token; in a ring of n each sends 2 (n - 1)/n of the row (Thakur,
    Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005). That is added at the
    full speed of the link, if `links`, and nothing is known here of what starting it takes.
    """
    was, will = roofline_guess(*measured_on), roofline_guess(*wanted_on)
    engine, shape = wanted_on
    sent = 2 * shape.num_layers * shape.hidden_size * 2 * 2 * (engine.devices - 1) / engine.devices
    return OverlapStepTime(
        base=step_time.base * (will.base / was.base),
        per_context=step_time.per_context * (will.per_context / was.per_context),
        per_token=step_time.per_token * (will.per_token / was.per_token) + (sent / engine.link if links else 0.0),
        overlap=step_time.overlap,
    )


def fit_overlap(
    measured: Measured,
    engine: MeasuredEngine,
    start: OverlapStepTime,
    chosen: Chosen,
    *,
    most: int = 12,
    report: Callable[[OverlapStepTime, RunErrors], object] | None = None,
) -> OverlapFit:
    """The overlap model with which a rerun comes closest to the requests in `chosen`.

    Least squares over the logarithms of their TPOT and E2E, with the errors of the two means weighing as much as those
    of all requests. First all three times are stretched alike until the mean E2E is right; then every term moves, by
    large steps and by small ones. A rerun of a run that preempts is no
    smooth function of its costs, so this is a good fit, not the best one.

    Args:
        start: where to begin, as `roofline_guess` gives it.
        chosen: [requests] bool; not all, so that something is held out.
        most: moves of each of the two passes.
        report: called after each.

    Raises:
        UnderloadError: nobody chosen, or all.
    """
    from scipy.optimize import least_squares

    if len(chosen) != len(measured) or not 0 < chosen.sum() < len(measured):
        raise UnderloadError(
            f"chosen marks {int(chosen.sum())} of {len(measured)} requests; fit on some, so that others are held out"
        )
    runs = 0

    def step_time(terms: NDArray[Any]) -> OverlapStepTime:
        base, per_context, per_token = np.exp(terms[:3]).tolist()
        return OverlapStepTime(base, per_context, per_token, float(1 / (1 + np.exp(-terms[3]))))

    def residuals(terms: NDArray[Any]) -> NDArray[Any]:
        nonlocal runs
        runs += 1
        _, *both = _latencies(measured, rerun(measured, engine, step_time(terms)))
        logs = [np.log(simulated[chosen] / real[chosen]) for simulated, real in both]
        means = [_off(simulated[chosen], real[chosen]) * np.sqrt(chosen.sum()) for simulated, real in both]
        return np.concatenate([*logs, means])

    inside = min(max(start.overlap, 0.02), 0.98)
    terms = np.log([start.base, start.per_context, start.per_token, inside / (1 - inside)])
    for _ in range(4):
        *_, (simulated, real) = _latencies(measured, rerun(measured, engine, step_time(terms)))
        runs += 1
        terms[:3] -= np.log(simulated[chosen].mean() / real[chosen].mean())
    for change in (0.05, 0.01):
        terms = least_squares(
            residuals, terms, diff_step=change, x_scale=np.array([0.1, 0.1, 0.1, 1.0]), max_nfev=most
        ).x
        found = step_time(terms)
        run = rerun(measured, engine, found)
        if report is not None:
            report(found, RunErrors.of(measured, run, chosen))
    return OverlapFit(found, RunErrors.of(measured, run, chosen), RunErrors.of(measured, run, ~chosen), run, runs)


def _latencies(measured: Measured, run: ServingRun) -> tuple[tuple[NDArray[Any], NDArray[Any]], ...]:
    """TTFT, TPOT and E2E of every request, simulated and measured, from the instant it was queued."""
    first = np.array([timeline.token_times[0] for timeline in run.timelines])
    last = np.array([timeline.token_times[-1] for timeline in run.timelines])
    gaps = measured.output_tokens - 1
    return (
        (first - measured.queued, measured.first_token - measured.queued),
        ((last - first) / gaps, (measured.last_token - measured.first_token) / gaps),
        (last - measured.queued, measured.last_token - measured.queued),
    )


def _off(simulated: NDArray[Any], real: NDArray[Any]) -> float:
    return float(simulated.mean() / real.mean() - 1)
