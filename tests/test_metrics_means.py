"""Intervals where values depend on each other, warm-up, and how many requests a percentile takes."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.signal import lfilter

from underload import metrics
from underload.request import Timeline, UnderloadError

FIGURES = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40)


def autoregressive(rng, n, phi, runs=None):
    """x[i] = phi x[i-1] + noise, in steady state: mean 0, and (1 - phi)/(1 + phi) of its values' worth."""
    shape = (n,) if runs is None else (runs, n)
    noise = rng.standard_normal(shape)
    first = rng.standard_normal((*shape[:-1], 1)) / math.sqrt(1 - phi**2)
    return lfilter([1.0], [1.0, -phi], noise, zi=phi * first)[0]


def waits_from_empty(rng, runs, n, arrival_rate, service_rate=1.0):
    """Waits of the first n customers of an M/M/1 that starts empty (Lindley's recursion, all runs at once)."""
    steps = rng.exponential(1 / service_rate, (runs, n)) - rng.exponential(1 / arrival_rate, (runs, n))
    walk = np.concatenate([np.zeros((runs, 1)), np.cumsum(steps, axis=1)[:, :-1]], axis=1)
    return walk - np.minimum.accumulate(walk, axis=1)


def arrivals(*times, tokens_after=1.0):
    return [Timeline(arrival=t, token_times=[t + tokens_after], finish_reason="stop") for t in times]


# ---- means --------------------------------------------------------------------------------------------------------


@given(FIGURES, st.floats(0.5, 0.999))
def test_replications_get_students_interval(figures, confidence):
    got = metrics.mean_interval(figures, confidence)
    n, sd = len(figures), float(np.std(figures, ddof=1))
    expected = stats.t.ppf((1 + confidence) / 2, n - 1) * sd / math.sqrt(n)
    assert got.mean == pytest.approx(float(np.mean(figures)), abs=1e-6)
    assert got.half_width == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert got.low <= got.mean <= got.high and got.mean in got
    assert (got.batches, got.confidence, got.lag1, got.correlated) == (n, confidence, None, False)


def test_missing_replications_are_left_out_not_taken_for_0():
    assert metrics.mean_interval([3.0, None, 5.0]) == metrics.mean_interval([3.0, 5.0])
    assert metrics.mean_interval([4.0, 4.0]).half_width == 0


@pytest.mark.parametrize("too_few", [[], [1.0], [1.0, None]])
def test_one_run_has_no_interval(too_few):
    with pytest.raises(UnderloadError, match="at least 2 replications.*other seeds"):
        metrics.mean_interval(too_few)


def test_what_a_mean_cannot_take_is_refused():
    with pytest.raises(UnderloadError, match="infinite"):
        metrics.mean_interval([1.0, math.inf])
    with pytest.raises(UnderloadError, match="NaN"):
        metrics.mean_interval([1.0, math.nan])
    with pytest.raises(UnderloadError, match=r"0\.95 for 95 %"):
        metrics.mean_interval([1.0, 2.0], 95)


def test_relative_precision_has_no_value_at_mean_0():
    assert metrics.mean_interval([-1.0, 1.0]).relative is None
    got = metrics.mean_interval([9.0, 11.0])
    assert got.relative == pytest.approx(got.half_width / 10)


@given(st.lists(st.floats(-1e3, 1e3), min_size=20, max_size=100), st.integers(2, 20))
def test_batch_means_are_the_interval_of_the_means_of_equal_batches(values, batches):
    got = metrics.batch_means(values, batches)
    used = values[len(values) % batches :]
    size = len(used) // batches
    means = [float(np.mean(used[i * size : (i + 1) * size])) for i in range(batches)]
    expected = metrics.mean_interval(means)
    assert got.mean == pytest.approx(float(np.mean(used)), abs=1e-9)
    assert (got.low, got.high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert got.batches == batches and -1 <= got.lag1 <= 1


def test_the_values_left_over_are_the_first_ones():
    assert metrics.batch_means([1000.0, 1000.0, *range(20)], 20).mean == 9.5


@pytest.mark.parametrize("batches", [1, 0, 2.5, -3])
def test_a_run_is_cut_into_two_batches_at_least(batches):
    with pytest.raises(UnderloadError, match="whole number of at least 2"):
        metrics.batch_means(range(100), batches)


def test_a_run_shorter_than_its_batches_is_refused():
    with pytest.raises(UnderloadError, match="20 batches need at least 20 values, got 19"):
        metrics.batch_means(range(19))


def test_batch_means_hold_the_true_mean_where_the_textbook_interval_does_not():
    runs = autoregressive(np.random.default_rng(5), 4_000, 0.95, runs=300)
    by_batches = sum(0.0 in metrics.batch_means(run) for run in runs) / 300
    textbook = sum(0.0 in metrics.mean_interval(run) for run in runs) / 300
    assert by_batches > 0.90  # 95 % asked for
    assert textbook < 0.40


def test_batches_that_are_too_short_warn_and_long_ones_do_not():
    rng = np.random.default_rng(6)
    short = metrics.batch_means(autoregressive(rng, 2_000, 0.99), batches=100)
    assert short.correlated and short.lag1 > 0.5 and "too narrow" in str(short)
    runs = rng.standard_normal((400, 200))
    false_alarms = sum(metrics.batch_means(run).correlated for run in runs) / 400
    assert false_alarms < 0.05
    assert "too narrow" not in str(metrics.batch_means([1.0] * 40))


@given(FIGURES, st.floats(-1e3, 1e3))
def test_a_paired_difference_is_the_interval_of_the_differences(a, shift):
    b = [value + shift for value in a]
    got = metrics.paired_difference(a, b)
    assert got.mean == pytest.approx(-shift, abs=1e-6)
    assert got.half_width == pytest.approx(0.0, abs=1e-6)  # what the load does to both cancels
    back = metrics.paired_difference(b, a)
    assert (back.low, back.high) == pytest.approx((-got.high, -got.low), abs=1e-6)


def test_the_same_load_shows_a_small_difference_that_separate_loads_hide():
    rng = np.random.default_rng(7)
    load = rng.normal(10, 3, 12)
    a, b = load + rng.normal(0.3, 0.1, 12), load + rng.normal(0.0, 0.1, 12)
    paired, apart = metrics.paired_difference(a, b), metrics.paired_difference(a, rng.permutation(b))
    assert paired.low > 0 and 0 in apart
    assert paired.half_width < apart.half_width / 10


def test_pairs_are_whole_pairs():
    assert metrics.paired_difference([3, None, 5, 6], [1, 1, None, 2]).batches == 2
    with pytest.raises(UnderloadError, match="2 and 3.*same seeds"):
        metrics.paired_difference([1, 2], [1, 2, 3])
    with pytest.raises(UnderloadError, match="2 pairs"):
        metrics.paired_difference([1, None], [1, 2])


def test_a_percentile_over_replications_needs_nothing_of_the_values_inside_a_run():
    # In each run the values come in dependent tens; the runs are independent.
    rng = np.random.default_rng(8)
    true = -math.log(0.05)
    inside = 0
    for _ in range(120):
        runs = [np.repeat(rng.exponential(size=300), 5) for _ in range(10)]
        inside += true in metrics.percentile_over_replications(runs, 95)
    assert inside / 120 > 0.88


def test_a_run_without_values_is_named():
    with pytest.raises(UnderloadError, match="run 1 has no values, so no p99"):
        metrics.percentile_over_replications([[1.0], [None], [2.0]], 99)


# ---- correlation --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9, 0.98])
def test_a_correlated_series_is_worth_what_theory_says(phi):
    rng = np.random.default_rng(9)
    n = 20_000
    expected = n * (1 - phi) / (1 + phi)
    found = [metrics.effective_samples(run) for run in autoregressive(rng, n, phi, runs=40)]
    # By the mean of 1/worth, which is what is estimated; at phi = 0.98 a run alone is easily off by a quarter.
    assert 1 / float(np.mean([1 / worth for worth in found])) == pytest.approx(expected, rel=0.15)
    assert max(found) <= n


def test_order_is_what_correlation_is_about():
    rng = np.random.default_rng(10)
    series = autoregressive(rng, 5_000, 0.95)
    assert metrics.effective_samples(rng.permutation(series)) > 10 * metrics.effective_samples(series)


def test_values_that_alternate_or_stand_still_are_worth_no_more_than_they_are():
    assert metrics.effective_samples([1.0, -1.0] * 500) == 1000
    assert metrics.effective_samples([0.1] * 100) == 100
    assert [metrics.effective_samples(values) for values in ([], [1.0])] == [0, 1]


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=60), st.floats(0.01, 100), st.floats(-100, 100))
def test_units_and_offsets_change_no_worth(values, scale, offset):
    n = len(values)
    worth = metrics.effective_samples(values)
    assert min(1, n) <= worth <= n
    if np.ptp(values) > 1e-3:
        moved = metrics.effective_samples([value * scale + offset for value in values])
        assert moved == pytest.approx(worth, rel=1e-3)


def test_for_a_percentile_the_worth_is_that_of_being_above_it():
    series = autoregressive(np.random.default_rng(12), 50_000, 0.95)
    above = (series > np.percentile(series, 99)).astype(float)
    worth = metrics.effective_samples(series, 99)
    assert worth == pytest.approx(metrics.effective_samples(above))
    assert worth > 1.5 * metrics.effective_samples(series)  # excursions above the p99 are shorter than the memory
    with pytest.raises(UnderloadError, match="infinite"):
        metrics.effective_samples([1.0, math.inf])
    assert metrics.effective_samples([1.0, math.inf, 1.0, 1.0], 50) > 0  # above is above


def test_an_interval_on_queueing_delays_is_honest_only_with_their_worth():
    # p95 of the wait in an M/M/1 at load 0.8: P(W > t) = 0.8 exp(-0.2 t).
    true = -math.log(0.05 / 0.8) / 0.2
    runs = waits_from_empty(np.random.default_rng(13), 80, 12_000, 0.8)[:, 2_000:]
    naive = honest = 0
    for run in runs:
        plain = metrics.percentile_interval(run, 95)
        told = metrics.percentile_interval(run, 95, effective=metrics.effective_samples(run, 95))
        naive += plain.low <= true <= plain.high
        honest += told is not None and told.low <= true <= told.high
        assert told is None or (told.low <= plain.low and plain.high <= told.high)
    assert naive / 80 < 0.4
    assert honest / 80 > 0.85


@given(st.integers(6, 400), st.floats(5, 95), st.data())
def test_fewer_independent_values_never_make_an_interval_narrower(n, q, data):
    values = range(n)
    plain = metrics.percentile_interval(values, q)
    assert metrics.percentile_interval(values, q, effective=n) == plain
    worth = data.draw(st.floats(0, n))
    told = metrics.percentile_interval(values, q, effective=worth)
    assert (told is None) == (metrics.percentile_interval(range(math.floor(worth)), q) is None)
    if told is not None:
        assert told.low <= plain.low and plain.high <= told.high


@pytest.mark.parametrize("effective", [-1, 11, math.nan])
def test_values_cannot_be_worth_more_than_they_are(effective):
    with pytest.raises(UnderloadError, match="10 values cannot be worth"):
        metrics.percentile_interval(range(10), 50, effective=effective)


# ---- warm-up ------------------------------------------------------------------------------------------------------


def test_warmup_is_cut_by_arrival_not_by_finish():
    slow, early, late = *arrivals(1.0, tokens_after=100), *arrivals(2.0), *arrivals(12.0)
    assert metrics.cut_warmup([late, slow, early], 10) == [late]  # 11 s after the first arrival
    assert metrics.cut_warmup([late, slow, early], 11) == [late]  # reached exactly: it stays
    assert metrics.cut_warmup([late, slow, early], 0) == [late, slow, early]
    assert metrics.cut_warmup([late, slow, early], 2, start=0.0) == [late, early]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30), st.floats(0, 50), st.floats(0, 50))
def test_two_cuts_are_the_longer_one(times, first, second):
    made = arrivals(*times)
    begin = min(times)
    longer = max(first, second)
    if begin + longer > max(times):
        return
    twice = metrics.cut_warmup(metrics.cut_warmup(made, first, start=begin), second, start=begin)
    assert twice == metrics.cut_warmup(made, longer, start=begin)


def test_a_cut_that_leaves_nothing_is_refused_and_nothing_stays_nothing():
    assert metrics.cut_warmup([], 10) == []
    with pytest.raises(UnderloadError, match="60 s leaves no request, the last arrives after 5 s"):
        metrics.cut_warmup(arrivals(1.0, 6.0), 60)
    for seconds in (-1, math.inf, math.nan):
        with pytest.raises(UnderloadError, match="at least 0 seconds"):
            metrics.cut_warmup(arrivals(1.0), seconds)


def test_a_queue_that_starts_empty_waits_too_little_until_the_warmup_is_cut():
    runs = waits_from_empty(np.random.default_rng(51), 200, 12_000, 0.9)  # M/M/1, load 0.9: Wq = 9
    first_200 = metrics.mean_interval(runs[:, :200].mean(axis=1))
    first_1000 = metrics.mean_interval(runs[:, :1000].mean(axis=1))
    after = metrics.mean_interval(runs[:, 4_000:].mean(axis=1))
    assert 5.8 in first_200 and 8.1 in first_1000
    assert 9 not in first_200
    assert 9 in after and after.relative < 0.06


def test_a_warmup_is_found_where_it_ends():
    rng = np.random.default_rng(14)
    settled = rng.normal(1.0, 0.3, 5_000)
    climbing = settled + np.where(np.arange(5_000) < 600, 3.0, 0.0)
    assert 600 <= metrics.suggest_warmup(climbing) <= 650
    assert metrics.suggest_warmup(settled) < 500
    assert metrics.suggest_warmup([7.0] * 50) == 0


def test_a_run_that_never_settles_has_no_warmup():
    rng = np.random.default_rng(15)
    assert metrics.suggest_warmup(np.arange(1_000) + rng.normal(0, 5, 1_000)) is None


@settings(max_examples=30)
@given(st.lists(st.integers(-100, 100), min_size=50, max_size=150))
def test_the_suggestion_is_the_least_error_of_the_mean_over_all_cuts(values):
    fives = [sum(values[i : i + 5]) / 5 for i in range(0, len(values) - 4, 5)]
    scores = [np.var(fives[d:]) / (len(fives) - d) for d in range(len(fives) - 5)]
    got = metrics.suggest_warmup(values)
    if got is None:
        assert min(scores[: len(fives) // 2 + 1]) >= min(scores) - 1e-9
    else:
        assert got % 5 == 0 and scores[got // 5] == pytest.approx(min(scores), abs=1e-9)


def test_too_short_a_run_shows_no_warmup():
    with pytest.raises(UnderloadError, match="50 values at least, got 49"):
        metrics.suggest_warmup(range(49))


# ---- how many requests --------------------------------------------------------------------------------------------


def test_the_table_of_samples_says_what_the_functions_say():
    table = metrics.samples_table((50, 99, 99.9), sizes=(368, 10_000))
    p50, p99, p999 = table.rows
    assert (p99.upper_limit, p99.interval, p999.interval) == (299, 368, 3688)
    assert p999.levels[368] is None and p50.upper_limit == 5
    for row in table.rows:
        for n, levels in row.levels.items():
            found = metrics.percentile_interval(range(n), row.q)
            assert levels == (None if found is None else tuple(100 * rank / n for rank in found.ranks))
            assert levels is None or levels[0] < row.q < levels[1]
    text = str(table)
    assert "p99.9" in text and "3,688" in text and "–" in text
    data = json.loads(json.dumps(table.as_dict()))
    assert data["percentiles"]["p99"]["interval"] == 368 and data["percentiles"]["p99.9"]["levels"]["368"] is None


@pytest.mark.parametrize("size", [0, -5, 2.5])
def test_a_size_is_a_number_of_requests(size):
    with pytest.raises(UnderloadError, match="whole number of at least 1"):
        metrics.samples_table(sizes=(size,))


def test_arrays_and_lists_give_the_same():
    assert metrics.percentile(np.array([3, 1, 2, 4]), 50) == metrics.percentile([3, 1, 2, 4], 50) == 2.5
    with pytest.raises(UnderloadError, match="NaN"):
        metrics.percentile(np.array([1.0, math.nan]), 50)


def test_runs_side_by_side_are_not_taken_for_one_series():
    runs = np.ones((20, 500))
    for function in (metrics.mean_interval, metrics.batch_means, metrics.mean, metrics.effective_samples):
        with pytest.raises(UnderloadError, match=r"shape \(20, 500\)"):
            function(runs)
    assert metrics.mean_interval(runs.mean(axis=1)).batches == 20
    assert metrics.percentile_over_replications(runs, 99).batches == 20  # here each row is a run
