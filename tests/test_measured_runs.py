"""Measured runs of another engine on this library's scheduler and pool: the stored errors, and how they are made."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from underload.request import UnderloadError
from underload.shapes import Device, shape
from underload.simulation import OverlapStepTime
from underload.simulation.measured import (
    VLLM,
    MeasuredEngine,
    RunErrors,
    fit_overlap,
    rerun,
    roofline_guess,
    transferred,
)
from underload.workload import Measured, load_trace

STORED = Path(__file__).parent / "benchmarks/results/vllm_runs.json"
TRUTH = OverlapStepTime(0.018, 1.4e-7, 8e-5, 0.5)
SMALL = MeasuredEngine(
    trace="made here",
    shape="llama-3-8b",
    device=Device("none", bandwidth=1e12, flops=1e14, memory=1e10, source="made up"),
    num_blocks=300,
    max_num_seqs=24,
)


# ---- public runs -----------------------------------------------------------------------------------------------------


def public(name: str) -> Measured:
    try:
        measured = load_trace(name)
    except UnderloadError as error:
        pytest.skip(f"no {name}: {error}")
    assert isinstance(measured, Measured)
    return measured


def same(off: RunErrors, stored: dict[str, float]) -> None:
    assert asdict(off) == pytest.approx(stored, abs=1e-9)


@pytest.mark.parametrize("name", VLLM)
def test_a_rerun_comes_within_the_stated_errors_on_requests_that_were_not_fitted(name):
    stored = json.loads(STORED.read_text())
    measured, fit = public(name), stored["runs"][name]["fit"]
    run = rerun(measured, VLLM[name], OverlapStepTime(**fit["step_time"]))
    odd = np.arange(len(measured)) % 2 == 1
    off = RunErrors.of(measured, run, odd)
    assert abs(off.tpot) < 0.01 and abs(off.e2e) < 0.01 and off.e2e_each < 0.02
    same(off, fit["other_half"])
    same(RunErrors.of(measured, run, ~odd), fit["fitted_half"])
    assert sum(timeline.preemptions for timeline in run.timelines) == fit["preemptions"]


def test_the_number_of_blocks_matters_as_much_as_the_step_s_cost():
    name = "vllm-rtx4090-llama31-8b"
    row = json.loads(STORED.read_text())["runs"][name]
    measured, cost = public(name), OverlapStepTime(**row["fit"]["step_time"])
    for found, factor in zip(row["blocks"], (0.5, 1.5, 2), strict=True):
        assert found["num_blocks"] == int(VLLM[name].num_blocks * factor)
        off = RunErrors.of(measured, rerun(measured, VLLM[name], cost, num_blocks=found["num_blocks"]))
        same(off, found["errors"])
        # Fewer blocks: smaller batches, so faster tokens for those who run, and a longer wait for the others.
        assert abs(off.tpot) > 0.15 and off.tpot * off.e2e < 0


# ---- a run that was made here, so that the truth is known ------------------------------------------------------------


def made(engine: MeasuredEngine = SMALL, cost: OverlapStepTime = TRUTH, requests: int = 60) -> Measured:
    """What the library's own scheduler would have measured."""
    rng = np.random.default_rng(4)
    queued = np.cumsum(rng.exponential(0.05, requests))
    prompts, outputs = rng.integers(20, 400, requests), rng.integers(20, 120, requests)
    blank = Measured("made here", queued, queued, queued, queued, queued, prompts, outputs)
    timelines = rerun(blank, engine, cost).timelines
    return replace(
        blank,
        first_token=np.array([timeline.token_times[0] for timeline in timelines]),
        last_token=np.array([timeline.token_times[-1] for timeline in timelines]),
    )


@pytest.fixture(scope="module")
def truth() -> Measured:
    return made()


def test_a_run_against_itself_is_without_error(truth):
    run = rerun(truth, SMALL, TRUTH)
    assert sum(timeline.preemptions for timeline in run.timelines) > 0
    assert RunErrors.of(truth, run) == RunErrors(0.0, 0.0, 0.0, 0.0, 0.0, 60)


def test_errors_are_those_of_means_and_of_single_requests(truth):
    run = rerun(truth, SMALL, TRUTH)
    first, second = run.requests[0].timeline, run.requests[1].timeline
    length = [t.token_times[-1] - float(q) for t, q in zip((first, second), truth.queued)]
    first.token_times[-1] += 0.5 * length[0]  # the first takes half as long again
    chosen = np.arange(60) < 2
    off = RunErrors.of(truth, run, chosen)
    assert off.requests == 2 and off.ttft == 0
    assert off.e2e == pytest.approx(0.5 * length[0] / sum(length))
    assert off.e2e_each == pytest.approx(0.25)
    assert off.tpot > 0 and off.tpot_each > 0


def test_a_fit_finds_a_cost_that_holds_for_requests_it_has_not_seen(truth):
    start = OverlapStepTime(TRUTH.base * 1.3, TRUTH.per_context * 0.6, TRUTH.per_token * 1.2, 0.3)
    before = RunErrors.of(truth, rerun(truth, SMALL, start))
    chosen = np.arange(60) % 2 == 0
    reports = []
    fit = fit_overlap(truth, SMALL, start, chosen, most=6, report=lambda *found: reports.append(found))
    assert abs(before.e2e) > 0.05
    assert abs(fit.held_out.e2e) < 0.01 and abs(fit.held_out.tpot) < 0.01 and fit.held_out.e2e_each < 0.02
    assert (fit.fitted.requests, fit.held_out.requests) == (30, 30)
    assert len(reports) == 2 and fit.evaluations > 10
    # The one term that most of the time goes to is found itself.
    assert fit.step_time.base == pytest.approx(TRUTH.base, rel=0.1)


def test_half_the_blocks_make_another_run(truth):
    assert abs(RunErrors.of(truth, rerun(truth, SMALL, TRUTH, num_blocks=150)).e2e) > 0.1


@pytest.mark.parametrize("chosen", [np.ones(60, bool), np.zeros(60, bool), np.ones(3, bool)])
def test_something_has_to_be_held_out(truth, chosen):
    with pytest.raises(UnderloadError, match="so that others are held out"):
        fit_overlap(truth, SMALL, TRUTH, chosen)


def test_answers_without_a_gap_have_nothing_to_compare(truth):
    short = replace(truth, output_tokens=np.where(np.arange(60) == 7, 1, truth.output_tokens))
    with pytest.raises(UnderloadError, match="1 answers of made here have one token"):
        rerun(short, SMALL, TRUTH)


# ---- other hardware --------------------------------------------------------------------------------------------------


def test_a_cost_moves_with_bandwidth_flops_and_shape():
    small, large = shape("llama-3-8b"), shape("llama-3-70b")
    assert transferred(TRUTH, (SMALL, small), (SMALL, small)) == TRUTH
    twice = replace(SMALL, device=replace(SMALL.device, bandwidth=2e12, flops=4e14))
    moved = transferred(TRUTH, (SMALL, small), (twice, small))
    assert (moved.base, moved.per_context) == pytest.approx((TRUTH.base / 2, TRUTH.per_context / 2))
    assert moved.per_token == pytest.approx(TRUTH.per_token / 4) and moved.overlap == TRUTH.overlap
    moved = transferred(TRUTH, (SMALL, small), (SMALL, large))
    # Both have 8 KV heads of 128; 80 layers to 32.
    assert moved.per_context == pytest.approx(TRUTH.per_context * 80 / 32)
    assert moved.base == pytest.approx(TRUTH.base * 8.7, rel=0.1)


def test_devices_that_share_a_layer_send_each_token_s_row_twice_a_layer():
    model = shape("llama-3-8b")
    pair = replace(SMALL, devices=2, link=50e9)
    alone = transferred(TRUTH, (SMALL, model), (pair, model), links=False)
    assert alone.per_token == pytest.approx(TRUTH.per_token / 2)
    # 32 layers x 2 sums x 4,096 values x 2 bytes, of which each of two sends as much as there is.
    sent = 32 * 2 * 4096 * 2
    moved = transferred(TRUTH, (SMALL, model), (pair, model))
    assert moved.per_token - alone.per_token == pytest.approx(sent / 50e9)
    four = transferred(TRUTH, (SMALL, model), (replace(pair, devices=4), model))
    assert four.per_token == pytest.approx(TRUTH.per_token / 4 + 1.5 * sent / 50e9)


def test_by_data_sheet_a_step_reads_weights_and_cache_and_multiplies():
    guess = roofline_guess(SMALL, shape("llama-3-8b"))
    assert guess.base == pytest.approx(15.0e9 / 1e12, rel=0.01)  # all weights but the embedding, 2 bytes each
    assert guess.per_context == pytest.approx(131_072 / 1e12)
    assert guess.per_token == pytest.approx(2 * 6.98e9 / 1e14, rel=0.01)  # the layers' products


def test_the_speed_of_a_simulation_is_measured_on_equal_records(capsys):
    """One round; the script itself compares what joined and single steps leave."""
    here = Path(__file__).parent / "benchmarks"
    sys.path.insert(0, str(here))
    try:
        import serving_simulation
    finally:
        sys.path.remove(str(here))
    assert serving_simulation.main(["--quick"]) == 0
    said = capsys.readouterr()
    assert "skipped" in said.err or all(case in said.out for case in serving_simulation.CASES)
