"""From records to a model of step times: what it recovers, what it knows of its range, the loads it is made from."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underload.cli import main
from underload.request import StepRecord, StepSize, UnderloadError, VirtualClock
from underload.simulation import CostModelExecutor, FittedStepTime
from underload.simulation.calibrate import (
    CalibrationLoad,
    StepErrors,
    design,
    fit,
    measure,
    measure_rounds,
    periods,
)

LAW = "2 ms, 0.4 ms for each six tokens begun, 50 µs a sequence, 0.1 µs a key, 30 ns a pair, 20 µs a row of logits"


def law(step: StepSize) -> float:
    tiles = math.ceil((step.prefill_tokens + step.decode_tokens + step.padding_tokens) / 6)
    seconds = 2e-3 + 4e-4 * tiles + 5e-5 * step.batch_size + 2e-5 * step.logit_rows
    return seconds + 1e-7 * step.context_tokens + 3e-8 * step.score_pairs


def records(seed: int, noise: float = 0.0, **limits: int) -> list[StepRecord]:
    """Of the design's loads, on the engine, with the law's times: `noise` (relative) on all, and every twentieth step
    held up for three times as long by something else."""
    rng = np.random.default_rng(seed)
    found: list[StepRecord] = []
    for load in (
        design(max_num_seqs=12, max_num_batched_tokens=96, longest=200, seed=seed) if not limits else design(**limits)
    ):
        found += measure(
            CostModelExecutor(law), load, vocabulary=1000, num_blocks=load.num_blocks, clock=VirtualClock()
        )
    for record in found:
        if noise:
            record.duration *= math.exp(rng.normal(0.0, noise)) * (3.0 if rng.random() < 0.05 else 1.0)
    return found


@pytest.fixture(scope="module")
def exact() -> FittedStepTime:
    return fit(records(0) + records(1))


def size(**names: int) -> StepRecord:
    return StepRecord(0.0, 0.0, **{"batch_size": 1, **names})


# ---- fitting ---------------------------------------------------------------------------------------------------------


def test_a_fit_says_what_the_law_says_on_loads_it_has_not_seen(exact):
    off = StepErrors.of(exact, records(2))
    # A step function of six tokens between knots that are wider apart cannot be met everywhere.
    assert off.median < 0.02 and off.mean < 0.03 and abs(off.total) < 0.01
    assert exact.per_context == pytest.approx(1e-7, rel=0.5)
    assert exact.per_pair == pytest.approx(3e-8, rel=0.2)
    assert exact.per_sequence + exact.per_logit_row == pytest.approx(7e-5, rel=0.3)


def test_noise_and_steps_that_something_held_up_do_not_move_it_far():
    noisy = fit(records(0, noise=0.03) + records(1, noise=0.03) + records(3, noise=0.03))
    off = StepErrors.of(noisy, records(2))
    assert off.median < 0.03 and off.mean < 0.05 and abs(off.total) < 0.02


def test_no_part_is_negative_and_what_is_not_there_costs_nothing():
    flat = [replace(record, duration=0.004) for record in records(0)]
    model = fit(flat)
    assert min(*model.at_knots, model.per_sequence, model.per_context, model.per_pair, model.per_logit_row) >= 0
    assert StepErrors.of(model, flat).mean < 1e-6


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda found: found[:19], "19 records are too few"),
        (lambda found: [*found, replace(found[0], duration=0.0)], "took no time"),
        (lambda found: [*found, replace(found[0], duration=math.nan)], "no finite one"),
    ],
)
def test_what_nothing_can_be_fitted_to_is_refused(spoil, says):
    with pytest.raises(UnderloadError, match=says):
        fit(spoil(records(0)))


# ---- the model -------------------------------------------------------------------------------------------------------


@given(batch=st.integers(1, 60), context=st.integers(1, 3000), held=st.integers(0, 3), k=st.integers(0, 30))
@settings(max_examples=60, deadline=None)
def test_k_steps_in_a_row_take_what_k_single_steps_take_to_the_last_bit(exact, batch, context, held, k):
    def step(more: int) -> StepRecord:
        read = batch * (context + more)
        return size(
            batch_size=batch + held,
            decode_tokens=batch,
            padding_tokens=held,
            context_tokens=read,
            score_pairs=read,
            logit_rows=batch,
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert exact.run(step(0), k) == [exact(step(more)) for more in range(k)]


def simple(**parts) -> FittedStepTime:
    ranges = dict.fromkeys(("tokens", "batch_size", "context_tokens", "score_pairs", "logit_rows"), (1, 10))
    whole = {"knots": (2, 4, 8), "at_knots": (0.02, 0.03, 0.07), "per_sequence": 0.0, "per_context": 0.0}
    return FittedStepTime(**{**whole, "per_pair": 0.0, "per_logit_row": 0.0, "ranges": ranges, **parts})


@pytest.mark.parametrize(
    ("tokens", "seconds"), [(2, 0.02), (3, 0.025), (4, 0.03), (7, 0.06), (8, 0.07), (10, 0.09), (1, 0.015)]
)
def test_between_knots_it_runs_straight_and_beyond_them_as_before(tokens, seconds):
    step = size(prefill_tokens=tokens, context_tokens=5, score_pairs=5, logit_rows=1)
    assert simple()(step) == pytest.approx(seconds)


def test_each_part_costs_what_it_says():
    step = size(
        batch_size=3, prefill_tokens=1, decode_tokens=2, padding_tokens=1, context_tokens=7, score_pairs=9, logit_rows=2
    )
    model = simple(per_sequence=1e-3, per_context=1e-4, per_pair=1e-5, per_logit_row=1e-6)
    assert model(step) == pytest.approx(0.03 + 3e-3 + 7e-4 + 9e-5 + 2e-6)


def test_outside_what_it_was_fitted_on_it_warns_once_for_each_name():
    model = simple()
    inside = {"batch_size": 4, "decode_tokens": 4, "context_tokens": 8, "score_pairs": 8, "logit_rows": 4}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(size(**inside))
    with pytest.warns(UserWarning, match=r"batch_size = 11 was asked for, .* fitted on 1 to 10") as warned:
        model(size(**{**inside, "batch_size": 11}))
    assert len(warned) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(size(**{**inside, "batch_size": 12}))
    with pytest.warns(UserWarning, match="score_pairs = 0") as warned:
        model(size(**{**inside, "score_pairs": 0, "batch_size": 12}))
    assert len(warned) == 1
    # A run of steps leaves the range on its way: 8, 12 keys and pairs.
    with pytest.warns(UserWarning) as warned:
        simple().run(size(**inside), 2)
    assert ["context_tokens = 12" in str(warned[0].message), "score_pairs = 12" in str(warned[1].message)] == [True] * 2


def test_it_goes_to_a_file_and_back(exact, tmp_path):
    path = tmp_path / "here.json"
    model = replace(exact, about={"machine": "a test", "errors": {"held_out": 0.01}})
    model.save(path)
    again = FittedStepTime.load(path)
    assert again == model and again.about == model.about
    path.write_text('{"format": "another"}')
    with pytest.raises(UnderloadError, match="holds no fitted step times"):
        FittedStepTime.load(path)
    with pytest.raises(UnderloadError, match="cannot be read"):
        FittedStepTime.load(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"knots": (2, 2, 3)}, "knots must rise"),
        ({"knots": (2, 3)}, "one time for each"),
        ({"per_pair": -1e-9}, "no part of it is negative"),
        ({"at_knots": (0.0, 0.0, 0.0)}, "takes some time"),
        ({"ranges": {"tokens": (1, 2)}}, "no range for batch_size, context_tokens, score_pairs, logit_rows"),
    ],
)
def test_a_model_that_makes_no_sense_is_refused(parts, says):
    with pytest.raises(UnderloadError, match=says):
        simple(**parts)


# ---- the loads -------------------------------------------------------------------------------------------------------


@given(max_num_seqs=st.integers(1, 20), budget=st.integers(1, 80), longest=st.integers(8, 80), seed=st.integers(0, 9))
@settings(max_examples=15, deadline=None)
def test_a_design_stays_within_its_limits_and_nobody_is_preempted(max_num_seqs, budget, longest, seed):
    limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": budget, "longest": longest, "seed": seed}
    loads = design(**limits)
    assert loads == design(**limits)
    assert max(load.max_num_seqs for load in loads) == max_num_seqs
    for load in loads:
        assert load.max_num_batched_tokens <= budget
        assert all(prompt >= 1 and output >= 1 and prompt + output <= longest for prompt, output in load.requests)
        found = measure(CostModelExecutor(law), load, vocabulary=999, num_blocks=load.num_blocks, clock=VirtualClock())
        # Whoever is preempted computes its prompt twice.
        assert sum(step.prefill_tokens for step in found) <= sum(prompt for prompt, _ in load.requests)


def test_a_design_reaches_every_corner_that_a_simulation_may_ask_for():
    found = records(0, max_num_seqs=8, max_num_batched_tokens=64, longest=96)
    decodes = [step for step in found if not step.prefill_tokens]
    assert {step.batch_size for step in decodes} >= {1, 2, 3, 4, 6, 8}
    assert max(step.context_tokens for step in decodes) > 8 * 80
    assert max(step.prefill_tokens for step in found) == 64
    assert sum(bool(step.prefill_tokens and step.decode_tokens) for step in found) > 20
    with pytest.raises(UnderloadError, match="longest at least 8, got 8, 64 and 7"):
        design(max_num_seqs=8, max_num_batched_tokens=64, longest=7)


def test_a_step_lasts_until_the_next_begins():
    steps = [StepRecord(start, 0.1, 1) for start in (0.0, 0.25, 0.5)]
    assert [step.duration for step in periods(steps)] == [0.25, 0.25]
    assert periods([]) == []


def test_rounds_take_turns():
    rounds = [design(max_num_seqs=3, max_num_batched_tokens=16, longest=20, seed=seed) for seed in range(3)]
    asked: list[CalibrationLoad] = []

    class Watched(CostModelExecutor):
        def check(self, request):
            if request.request_id == "0":
                asked.append(len(request.prompt_ids))

    blocks = max(load.num_blocks for loads in rounds for load in loads)
    turns = []
    found = measure_rounds(
        Watched(law), rounds, vocabulary=99, num_blocks=blocks, clock=VirtualClock(), done=lambda: turns.append(1)
    )
    expected = [loads[turn].requests[0][0] for turn in range(len(rounds[0])) for loads in rounds]
    assert asked == [rounds[0][0].requests[0][0], *expected]
    assert len(turns) == len(expected) and len(found) == 3 and all(found)
    with pytest.raises(UnderloadError, match="blocks, and there are 1; make the cache larger"):
        measure(CostModelExecutor(law), rounds[0][0], vocabulary=99, num_blocks=1)


# ---- the command -----------------------------------------------------------------------------------------------------

SMALL = ["calibrate", "pocket", "--path", "plain", "--seqs", "3", "--tokens", "16", "--longest", "24", "--rounds", "1"]


def test_the_command_says_what_it_found_and_saves_it(tmp_path, capsys):
    path = tmp_path / "here.json"
    assert main([*SMALL, "--out", str(path)]) == 0
    said = capsys.readouterr().out
    for words in (
        "a step takes, for the tokens it computes",
        "row of logits",
        "loads it was not",
        "threads",
        "saved to",
    ):
        assert words in said
    model = FittedStepTime.load(path)
    assert model.ranges["batch_size"] == (1, 3) and model.ranges["tokens"][1] <= 16
    assert model.about["model"] == "pocket" and model.about["machine"]["cores"]
    assert model.about["errors"]["held_out"]["steps"] > 20
    assert model(size(decode_tokens=1, context_tokens=9, score_pairs=9, logit_rows=1)) > 0


def test_the_command_prints_json_that_is_the_file(capsys):
    assert main([*SMALL, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["format"].startswith("underload fitted step time") and len(data["knots"]) == len(data["at_knots"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--rounds", "0"], "--rounds must be at least 1"),
        (["--longest", "9999999"], "beyond the"),
        (["--seqs", "0"], "at least 1"),
    ],
)
def test_the_command_refuses_by_name(options, says, capsys):
    assert main([*SMALL, *options]) == 2
    assert says in capsys.readouterr().err
