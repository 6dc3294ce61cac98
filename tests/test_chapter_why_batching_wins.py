"""What the page on batching works out by hand or answers without a cell, recomputed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from underload.labs.why_batching_wins import recorded
from underload.shapes import DEVICES, critical_batch, fit_step_time

PAGE = Path(__file__).resolve().parents[1] / "chapters/why-batching-wins.md"


def step(batch: int, weights: float, width: float, bandwidth: float, flops: float) -> float:
    """Least step time at short contexts, in s."""
    return max(weights * width / bandwidth, 2 * weights * batch / flops)


def test_the_page_has_the_command_of_its_recording() -> None:
    assert recorded()["command"] in PAGE.read_text("utf-8")


def test_the_model_on_paper_has_its_corner_at_a_hundred() -> None:
    times = [step(batch, 1e9, 2, 100e9, 10e12) for batch in (1, 50, 100, 200)]
    assert times == pytest.approx([0.020, 0.020, 0.020, 0.040])
    assert critical_batch(bandwidth=100e9, flops=10e12, weight_bytes=2) == pytest.approx(100)


def test_the_answer_on_three_billion_weights() -> None:
    times = [step(batch, 3e9, 2, 1e12, 200e12) for batch in (1, 100, 400)]
    assert times == pytest.approx([0.006, 0.006, 0.012])
    assert critical_batch(bandwidth=1e12, flops=200e12, weight_bytes=2) == pytest.approx(200)


def test_the_answer_on_two_measured_points() -> None:
    line = fit_step_time([4, 20], [0.024, 0.040])
    assert (line.o, line.t, line.knee) == pytest.approx((0.020, 0.001, 20))
    assert (1 / line.t, line.throughput(20)) == pytest.approx((1000, 500))


def test_the_sparse_figure_would_make_the_critical_batch_of_an_h100_twice_as_large() -> None:
    card = DEVICES["h100-sxm"]
    sparse = critical_batch(bandwidth=card.bandwidth, flops=1979e12, weight_bytes=2)
    assert sparse == pytest.approx(590, abs=5)


def test_eight_bit_weights_leave_a_batch_of_200_waiting_for_arithmetic() -> None:
    card = DEVICES["h200"]
    wide, narrow = (critical_batch(bandwidth=card.bandwidth, flops=card.flops, weight_bytes=w) for w in (2, 1))
    assert narrow < 200 < wide < 1.1 * 200


def test_the_answer_on_four_prompts_beside_sixteen_sequences() -> None:
    prompt, one_step = 180, 20  # ms
    first_tokens = [place * prompt + (place - 1) * one_step for place in range(1, 5)]
    text, together = PAGE.read_text("utf-8"), 4 * prompt
    for said in (
        f"about 4 × {prompt} = {together} ms",
        "after {}, {}, {} and {} ms".format(*first_tokens),
        f"on average {sum(first_tokens) / 4:.0f} ms instead of {together}",
        f"one gap of {together + one_step} ms in the first case, and four of {prompt + one_step} in the second",
    ):
        assert said in text, said


def test_line_and_corner_part_by_two_at_the_knee_and_by_less_elsewhere() -> None:
    o, t = 20.0, 1.0
    ratio = {batch: (o + batch * t) / max(o, batch * t) for batch in range(1, 200)}
    assert max(ratio, key=ratio.__getitem__) == 20 and ratio[20] == 2.0
    assert ratio[5] == pytest.approx(1 + 5 / 20)


def test_a_per_cent_of_batch_is_split_between_throughput_and_waiting() -> None:
    line = fit_step_time([4, 20], [0.024, 0.040])
    for batch in (2.0, line.knee, 200.0):
        more = 1.0001 * batch
        gained = (line.throughput(more) / line.throughput(batch) - 1) / 1e-4
        lost = (line.step_time(more) / line.step_time(batch) - 1) / 1e-4
        assert gained + lost == pytest.approx(1, abs=1e-3)
        assert gained == pytest.approx(line.o / (line.o + batch * line.t), abs=1e-3)


def test_half_and_nine_tenths_of_the_ceiling_stand_at_one_and_nine_knees() -> None:
    line = fit_step_time([4, 20], [0.024, 0.040])
    assert [line.throughput(times * line.knee) * line.t for times in (1, 9)] == pytest.approx([0.5, 0.9])


def test_the_mixtures_of_experts_are_multiplied_by_all_weights_over_those_used() -> None:
    text = PAGE.read_text("utf-8")
    for weights, used in ((46.7, 12.9), (671, 37)):
        assert f"* {weights} / {used}" in text and re.search(rf"× {weights}/{used} =", text)
