"""The metrics under hostile input: values that are none, windows that are none, timelines half filled or wrong."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from underload import metrics
from underload.metrics import Slo
from underload.request import StepRecord, Timeline, UnderloadError

OF_A_SERIES = [
    metrics.mean,
    lambda values: metrics.percentile(values, 50),
    lambda values: metrics.percentile_interval(values, 50),
    lambda values: metrics.percentile_upper_limit(values, 50),
    metrics.effective_samples,
    metrics.mean_interval,
    metrics.batch_means,
    metrics.suggest_warmup,
]


@pytest.mark.parametrize("function", OF_A_SERIES)
@pytest.mark.parametrize(
    "values", [None, 5, "12", ["x"] * 60, [1j] * 60, np.ones(60) * 1j, np.array(3.0), np.ones((60, 2)), [[1.0]] * 60]
)
def test_what_is_no_series_of_numbers_is_named(function, values):
    with pytest.raises(UnderloadError):
        function(values)


@pytest.mark.parametrize("q", ["99", None, [50], math.nan, math.inf, -1, 101])
def test_what_is_no_percentile_is_named(q):
    for ask in (
        lambda: metrics.percentile([1.0, 2.0], q),
        lambda: metrics.percentile_interval([1.0, 2.0], q),
        lambda: metrics.samples_needed(q),
        lambda: metrics.samples_table([q]),
    ):
        with pytest.raises(UnderloadError, match="percentile lies between 0 and 100"):
            ask()


@pytest.mark.parametrize("confidence", ["x", None, 0, 1, math.nan, 95])
def test_what_is_no_confidence_is_named(confidence):
    for ask in (
        lambda: metrics.mean_interval([1.0, 2.0], confidence),
        lambda: metrics.percentile_interval([1.0, 2.0], 50, confidence),
        lambda: metrics.samples_needed(50, confidence),
    ):
        with pytest.raises(UnderloadError, match="confidence must lie between 0 and 1"):
            ask()


@pytest.mark.parametrize("count", ["20", "x", None, math.nan, math.inf, 1, 0, 2.5])
def test_what_is_no_number_of_batches_is_named(count):
    with pytest.raises(UnderloadError, match="batches must be a whole number"):
        metrics.batch_means(list(range(100)), count)


def test_any_kind_of_number_is_one():
    for q in (Decimal(50), Fraction(50), np.float32(50), np.int64(50)):
        assert metrics.percentile([Decimal(1), Fraction(2), np.float32(3)], q) == 2


def test_masked_values_are_missing():
    masked = np.ma.array([1.0, 99.0, 3.0], mask=[False, True, False])
    assert metrics.mean(masked) == 2 and metrics.percentile(masked, 100) == 3


def test_the_largest_values_do_not_overflow():
    assert metrics.mean([1e308] * 20) == pytest.approx(1e308)
    assert metrics.percentile([-1e308, 1e308], 50) == 0
    assert metrics.percentile([-math.inf, 1.0], 50) == -math.inf
    assert metrics.percentile([-math.inf, math.inf], 50) == math.inf
    scaled = [value * 1e200 for value in np.random.default_rng(0).random(500)]
    assert metrics.effective_samples(scaled) == pytest.approx(metrics.effective_samples([v / 1e200 for v in scaled]))
    with pytest.raises(UnderloadError, match="check its unit"):
        metrics.mean_interval(scaled)
    with pytest.raises(UnderloadError, match="have no mean"):
        metrics.mean([-math.inf, math.inf])


@pytest.mark.parametrize("value", [0.1, 123456789.123, 1e-9])
def test_a_constant_is_not_correlated(value):
    """What the subtraction of the mean leaves is rounding, and all alike."""
    values = [value] * 100
    assert metrics.effective_samples(values) == 100
    assert metrics.batch_means(values).lag1 == 0


def test_a_share_next_to_0_or_to_1_needs_many():
    assert metrics.samples_needed(1e-15) == pytest.approx(math.log(0.025) / math.log1p(-1e-17), rel=1e-9)
    assert metrics.samples_needed(1e-15, two_sided=False) == 1
    with pytest.raises(UnderloadError):
        metrics.samples_needed(5e-324)


def test_the_highest_confidence_has_an_interval():
    found = metrics.mean_interval([1.0, 2.0, 3.0], 1 - 2**-53)
    assert math.isfinite(found.high) and found.low < 1 < found.high
    assert metrics.mean_interval([2.0, 2.0], 1 - 2**-53).half_width == 0


# ---- timelines ---------------------------------------------------------------------------------------------------


def test_a_time_that_is_nan_meets_no_slo():
    for wrong in (
        Timeline(0.0, token_times=[math.nan, 2.0], finish_reason="stop"),
        Timeline(math.nan, token_times=[1.0, 2.0], finish_reason="stop"),
    ):
        assert Slo(ttft=5.0).broken(wrong) == ["ttft"]
        assert metrics.attainment([wrong], Slo(ttft=5.0)) == 0


def test_an_instant_that_is_nan_makes_no_rate():
    wrong = Timeline(math.nan, token_times=[1.0], finish_reason="stop")
    for rate in (metrics.span, metrics.throughput, metrics.request_throughput):
        with pytest.raises(UnderloadError, match="NaN"):
            rate([wrong])


def test_0_s_is_an_instant():
    early = Timeline(-5.0, token_times=[-1.0, 0.0], finished=0.0, finish_reason="stop")
    assert metrics.span([early]) == (-5.0, 0.0) and metrics.throughput([early]) == 0.4
    assert metrics.span([Timeline(-5.0, finished=0.0, finish_reason="error")]) == (-5.0, 0.0)


@pytest.mark.parametrize(
    "window", [(math.nan, 1), (0, math.nan), (0, math.inf), ("a", "b"), (1,), 5, (0, 1, 2), (2, 1)]
)
def test_what_is_no_window_is_named(window):
    for rate in (metrics.throughput, metrics.request_throughput):
        with pytest.raises(UnderloadError, match="window"):
            rate([Timeline(0.0, token_times=[1.0], finish_reason="stop")], window)


@pytest.mark.parametrize("limit", ["0.5", True, [1], math.nan, 0, -1])
def test_what_is_no_limit_is_named(limit):
    with pytest.raises(UnderloadError, match="ttft must be above 0"):
        Slo(ttft=limit)


def test_a_ceiling_of_0_is_no_missing_one():
    step = StepRecord(0.0, 1.0, 1, bytes_read=5.0)
    for ceiling in (0, -1, math.nan):
        with pytest.raises(UnderloadError, match="ceiling bandwidth"):
            metrics.step_rates(step, bandwidth=ceiling)
    for duration in (math.nan, -1.0, math.inf):
        with pytest.raises(UnderloadError, match="mend the clock"):
            metrics.step_rates(StepRecord(0.0, duration, 1))


def test_a_warm_up_is_a_number():
    for seconds in ("x", None, math.nan, math.inf, -1):
        with pytest.raises(UnderloadError, match="warm-up lasts at least 0"):
            metrics.cut_warmup([Timeline(0.0)], seconds)
