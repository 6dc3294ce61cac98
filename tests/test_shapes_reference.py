"""Values of `underload.shapes` against figures worked out elsewhere: data sheets, published configurations, papers.

Reference values carry their source. "Weights only" means that every parameter counts as read once a step, and that
attention FLOPs are left out: the arithmetic of the back of an envelope, which `step_cost` refines.
"""

import math

import numpy as np
import pytest

from underload.request import UnderloadError
from underload.shapes import (
    DEVICES,
    ModelShape,
    StepLine,
    critical_batch,
    critical_batch_with_kv,
    decode_cost,
    device,
    fit_step_time,
    prefill_cost,
    roofline,
    sequences_that_fit,
    shape,
    step_cost,
)


def opt_like(name: str, layers: int, hidden: int) -> ModelShape:
    """A decoder with as many KV heads as query heads, for caches of models outside the Llama family."""
    return ModelShape(name, 50_272, hidden, layers, hidden // 128, hidden // 128, 128, 4 * hidden, 2048)


# ------------------------------------------------------------------ parameters: published configurations


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama-3.1-405b", 405_853_388_800),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-70b", 68_976_648_192),
        ("qwen2.5-7b", 7_615_616_512),
        ("mistral-7b-v0.1", 7_241_732_096),
        ("smollm2-135m", 134_515_008),
    ],
)
def test_parameters_are_those_of_the_published_checkpoints(name: str, parameters: int) -> None:
    assert shape(name).num_parameters == parameters


# ------------------------------------------------------------------ KV bytes: 2 x layers x KV heads x head_dim x bytes


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (shape("llama-3-70b"), 327_680),
        (shape("mistral-7b-v0.1"), 131_072),
        (shape("qwen2.5-7b"), 57_344),
        (shape("llama-2-7b"), 524_288),
        (shape("llama-3-8b"), 131_072),
        (opt_like("OPT-175B or GPT-3", 96, 12_288), 4_718_592),
        (opt_like("OPT-66B", 64, 9_216), 2_359_296),
        (opt_like("OPT-13B: the 800 KB of Kwon et al., section 3, are KiB", 40, 5_120), 800 * 1024),
    ],
    ids=lambda value: value.name if isinstance(value, ModelShape) else None,
)
def test_kv_bytes_a_token(model: ModelShape, expected: int) -> None:
    assert model.kv_bytes_per_token(2) == expected


def test_kv_slots_of_opt_66b_in_21_gib() -> None:
    # Kwon et al., table 1, print 9.7K for a cache printed as 21 GB; 21 GiB hold this many.
    assert math.floor(21 * 2**30 / opt_like("OPT-66B", 64, 9_216).kv_bytes_per_token(2)) == 9557


def test_kv_heads_count_not_query_heads() -> None:
    model = shape("llama-2-70b")
    assert model.kv_bytes_per_token(2) * 131_072 == pytest.approx(42.9e9, rel=2e-3)
    by_query_heads = 2 * model.num_layers * model.num_heads * model.head_dim * 2 * 131_072
    assert by_query_heads == pytest.approx(343.6e9, rel=2e-3)


# ------------------------------------------------------------------ the machine: balance and critical batch


@pytest.mark.parametrize(
    ("name", "flops", "bandwidth"),
    [("a100-80gb", 312e12, 2039e9), ("h100-sxm", 989.4e12, 3350e9), ("h200", 989.4e12, 4800e9)],
)
def test_devices_have_dense_peaks(name: str, flops: float, bandwidth: float) -> None:
    # The H100 and H200 sheets print 1,979 TFLOP/s "with sparsity"; half of it is dense.
    assert (device(name).flops, device(name).bandwidth) == (flops, bandwidth)


def test_machine_balance_of_the_h100() -> None:
    assert DEVICES["h100-sxm"].flops / DEVICES["h100-sxm"].bandwidth == pytest.approx(295.34328358208955, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "weight_bytes", "expected"),
    [
        ("a100-80gb", 2, 153.01618440411966),
        ("h100-sxm", 2, 295.34328358208955),
        ("h200", 2, 206.125),
        ("h200", 1, 103.0625),  # int8 weights, bf16 arithmetic: half as many bytes, half the batch
    ],
)
def test_critical_batch(name: str, weight_bytes: float, expected: float) -> None:
    found = critical_batch(bandwidth=device(name).bandwidth, flops=device(name).flops, weight_bytes=weight_bytes)
    assert found == pytest.approx(expected, rel=1e-9)


def test_critical_batch_with_kv_reads_moves_out_and_away() -> None:
    h100 = DEVICES["h100-sxm"]
    at = {
        n: critical_batch_with_kv(shape("llama-2-7b"), n, bandwidth=h100.bandwidth, flops=h100.flops)
        for n in (0, 50, 2048)
    }
    assert at[0] == pytest.approx(critical_batch(bandwidth=h100.bandwidth, flops=h100.flops), rel=1e-12)
    assert at[50] == pytest.approx(694.0854661237217, rel=1e-9)
    assert at[2048] == math.inf


# ------------------------------------------------------------------ step times


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a100-80gb", 0.007876666256007848), ("h100-sxm", 0.004794185819701493), ("h200", 0.0033459421866666667)],
)
def test_decode_floor_of_llama_3_8b_at_batch_1(name: str, expected: float) -> None:
    assert shape("llama-3-8b").weight_bytes(2) / device(name).bandwidth == pytest.approx(expected, rel=1e-9)


DECODE_64 = [
    ("llama-2-7b", "a100-80gb", 0.040312068645414416),
    ("llama-2-7b", "h100-sxm", 0.024536211333731343),
    ("llama-3-8b", "a100-80gb", 0.01630230097106425),
    ("llama-3-8b", "h100-sxm", 0.009922504979104478),
]


@pytest.mark.parametrize(("model", "name", "expected"), DECODE_64)
def test_decode_floor_of_64_sequences_with_2048_tokens(model: str, name: str, expected: float) -> None:
    what, on = shape(model), device(name)
    read = what.weight_bytes(2) + 64 * 2048 * what.kv_bytes_per_token(2)
    compute = 2 * what.num_parameters * 64
    assert max(read / on.bandwidth, compute / on.flops) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("model", "name", "expected"), DECODE_64)
def test_step_cost_differs_from_the_envelope_by_what_it_says(model: str, name: str, expected: float) -> None:
    """Of an untied embedding only the rows looked up are read; the new tokens' keys and values are written."""
    what, on = shape(model), device(name)
    cost = decode_cost(what, 64, 2048, weight_bytes=2, kv_bytes=2)
    unread = 2 * (what.embedding_parameters - 64 * what.hidden_size)
    written = 64 * what.kv_bytes_per_token(2)
    bound = roofline(cost, bandwidth=on.bandwidth, flops=on.flops)
    assert bound.bound == "memory"
    assert cost.bytes == pytest.approx(expected * on.bandwidth - unread + written, rel=1e-9)
    assert bound.seconds == pytest.approx(expected, rel=0.08)


def test_long_context_makes_64_sequences_far_dearer_than_one() -> None:
    what, on = shape("llama-2-7b"), device("h100-sxm")

    def floor(batch: int, context: int) -> float:
        return (what.weight_bytes(2) + batch * context * what.kv_bytes_per_token(2)) / on.bandwidth

    assert floor(64, 2048) / floor(1, 2048) == pytest.approx(5.65, abs=0.005)
    assert floor(64, 1) / floor(1, 1) < 1.01


def test_prefill_floor_of_llama_3_70b_on_eight_h100() -> None:
    what, on = shape("llama-3-70b"), device("h100-sxm")
    assert 2 * what.num_parameters * 2048 / (8 * on.flops) == pytest.approx(0.036510509122652114, rel=1e-9)


@pytest.mark.parametrize("prompts", [2, 8, 32])
def test_prefill_is_compute_bound_and_linear_in_prompts(prompts: int) -> None:
    what, on = shape("llama-3-8b"), device("h100-sxm")
    one, many = (prefill_cost(what, 2048, k, weight_bytes=2, kv_bytes=2) for k in (1, prompts))
    bounds = [roofline(cost, bandwidth=on.bandwidth, flops=on.flops) for cost in (one, many)]
    assert [bound.bound for bound in bounds] == ["compute", "compute"]
    assert bounds[1].seconds / bounds[0].seconds == pytest.approx(prompts, rel=1e-12)


def test_decode_flops_are_linear_and_weight_bytes_are_not() -> None:
    one, many = (decode_cost(shape("llama-3-8b"), b, 512) for b in (1, 64))
    assert many.flops == pytest.approx(64 * one.flops, rel=1e-12)
    assert many.kv_bytes == pytest.approx(64 * one.kv_bytes, rel=1e-12)
    assert many.weight_bytes / one.weight_bytes == pytest.approx(1, abs=1e-3)  # only 63 more embedding rows


def test_mixed_step_costs_what_its_parts_share() -> None:
    what = shape("smollm2-135m")
    prefill, decode = step_cost(what, [100], [100]), step_cost(what, [1], [500])
    mixed = step_cost(what, [100, 1], [100, 500])
    assert mixed.flops == pytest.approx(prefill.flops + decode.flops, rel=1e-12)
    assert mixed.kv_bytes == pytest.approx(prefill.kv_bytes + decode.kv_bytes, rel=1e-12)
    assert mixed.weight_bytes < prefill.weight_bytes + decode.weight_bytes


# ------------------------------------------------------------------ what fits


def test_full_context_sequences_of_qwen_in_80_gb() -> None:
    assert sequences_that_fit(shape("qwen2.5-7b"), 8192, 80e9, usable=0.9, block_size=16) == 120


@pytest.mark.parametrize(
    ("memory", "context", "expected"),
    [(24e9, 2048, 7), (24e9, 256, 60), (24 * 2**30, 2048, 9), (24 * 2**30, 256, 72)],
)
def test_llama_2_7b_on_a_consumer_card(memory: float, context: int, expected: int) -> None:
    assert sequences_that_fit(shape("llama-2-7b"), context, memory, usable=0.9) == expected


def test_nothing_fits_beside_weights_that_do_not() -> None:
    assert sequences_that_fit(shape("llama-2-70b"), 256, 80e9) == 0


# ------------------------------------------------------------------ the line o + Bt


def test_line_of_the_worked_numbers() -> None:
    line = StepLine(o=0.020, t=0.001)
    assert line.step_time(1) == pytest.approx(0.021) and line.step_time(16) == pytest.approx(0.036)
    assert line.knee == pytest.approx(20)
    assert line.throughput(line.knee) == pytest.approx(0.5 / line.t)
    assert line.batch_for_share(0.9) == pytest.approx(180.0)
    assert line.batch_for_step_time(0.030) == 10 and line.batch_for_step_time(0.0209) == 0


def test_knee_is_where_throughput_gains_as_much_as_step_time_loses() -> None:
    line = StepLine(o=0.040, t=0.002)
    more = line.knee * 1.001
    gain = math.log(line.throughput(more) / line.throughput(line.knee))
    loss = math.log(line.step_time(more) / line.step_time(line.knee))
    assert gain == pytest.approx(loss, rel=1e-3)


def test_fit_finds_the_line_that_made_the_times() -> None:
    sizes = [1, 2, 4, 8, 16, 32]
    found = fit_step_time(sizes, [0.0317 + 0.00123 * size for size in sizes])
    assert (found.o, found.t) == (pytest.approx(0.0317), pytest.approx(0.00123))


def test_fit_weighs_relative_errors() -> None:
    """A 10 % error on the largest step must not bend the small ones away; plain least squares lets it."""
    sizes = np.array([1, 2, 4, 8, 16, 256])
    times = 0.020 + 0.001 * sizes
    times[-1] *= 1.1
    relative = fit_step_time(sizes, times)
    plain_t, plain_o = np.polyfit(sizes, times, 1)
    assert abs(relative.o - 0.020) < abs(plain_o - 0.020)
    assert relative.o == pytest.approx(0.020, rel=0.03)
    assert plain_t > 0


@pytest.mark.parametrize(
    ("sizes", "times", "says"),
    [
        ([1, 2], [0.1], "2 batch sizes but 1 times"),
        ([4, 4], [0.1, 0.1], "two different batch sizes"),
        ([1, 2], [0.1, 0.0], "positive and finite"),
        ([1, 2], [0.1, math.nan], "positive and finite"),
    ],
)
def test_fit_refuses_what_makes_no_line(sizes: list[int], times: list[float], says: str) -> None:
    with pytest.raises(UnderloadError, match=says):
        fit_step_time(sizes, times)


def test_a_line_that_does_not_rise_has_no_knee() -> None:
    with pytest.raises(UnderloadError, match="no knee"):
        _ = StepLine(o=0.02, t=0.0).knee
    with pytest.raises(UnderloadError, match="strictly between 0 and 1"):
        StepLine(o=0.02, t=0.001).batch_for_share(1.0)
