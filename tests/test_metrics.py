"""The metrics against their definitions: identities on any timeline, and the faults that other tools had."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from underload import metrics
from underload.metrics import Slo
from underload.request import StepRecord, Timeline, UnderloadError


def timeline(times, *, arrival=0.0, reason="stop", **stamps) -> Timeline:
    return Timeline(arrival=arrival, token_times=list(times), finish_reason=reason, **stamps)


@st.composite
def timelines(draw, min_tokens=1):
    """A finished request with stamps in order; tokens come in chunks."""
    step = st.floats(0, 10)
    now = draw(st.floats(-100, 100))
    made = Timeline(arrival=now, finish_reason=draw(st.sampled_from(["stop", "length"])))
    for stamp in ("sent", "queued", "scheduled"):
        now += draw(step)
        if draw(st.booleans()):
            setattr(made, stamp, now)
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=8).filter(lambda s: sum(s) >= min_tokens))
    for size in sizes:
        now += draw(step)
        made.token_times += [now] * size
    made.finished = now + draw(step)
    made.detokenize_seconds = draw(st.floats(0, 5))
    return made


# ---- one request --------------------------------------------------------------------------------------------------


def test_a_chunk_of_k_tokens_is_k_tokens():
    made = timeline([1.0, 1.3, 1.3, 1.3, 1.4])
    assert metrics.ttft(made) == 1.0
    assert metrics.itl(made) == pytest.approx([0.1] * 4)
    assert metrics.chunks(made) == [(1.0, 1), (1.3, 3), (1.4, 1)]
    assert metrics.chunk_gaps(made) == pytest.approx([0.3, 0.1])
    assert metrics.longest_stall(made) == pytest.approx(0.3)


def test_the_further_tokens_of_the_first_chunk_came_with_the_first():
    assert metrics.itl(timeline([1.0, 1.0, 1.0, 2.0])) == [0, 0, 1.0]


@given(timelines())
def test_identities_hold_for_every_timeline(made):
    gaps = metrics.itl(made)
    assert len(gaps) == made.output_tokens - 1
    assert metrics.e2e(made) == pytest.approx(metrics.ttft(made) + sum(gaps), abs=1e-9)
    assert sum(gaps) == pytest.approx(sum(metrics.chunk_gaps(made)), abs=1e-9)
    if made.output_tokens > 1:
        assert metrics.tpot(made) == pytest.approx(sum(gaps) / len(gaps), abs=1e-9)
    if made.scheduled is not None:
        assert metrics.ttft(made) == pytest.approx(
            metrics.queue_time(made) + made.first_token - made.scheduled, abs=1e-9
        )
    metrics.check(made)


def test_one_token_has_no_tpot_and_five_have():
    one, five = timeline([1.0]), timeline([1.0, 1.1, 1.2, 1.3, 1.4])
    assert metrics.tpot(one) is None and metrics.itl(one) == [] and metrics.longest_stall(one) is None
    assert metrics.tpot(five) == pytest.approx(0.1)
    assert metrics.mean(map(metrics.tpot, [one, five])) == pytest.approx(0.1)
    assert metrics.mean(map(metrics.tpot, [one, one])) is None
    assert metrics.summary([one, one]).latencies["TPOT"].mean is None


def test_what_has_not_happened_is_missing():
    waiting = Timeline(arrival=3.0)
    for metric in (metrics.queue_time, metrics.ttft, metrics.e2e, metrics.tpot, metrics.longest_stall):
        assert metric(waiting) is None
    assert metrics.itl(waiting) == metrics.chunk_gaps(waiting) == [] and metrics.stages(waiting) == {}
    assert not metrics.succeeded(waiting)


def test_latency_runs_from_the_intended_arrival_not_from_the_send():
    late = timeline([3.0], sent=2.5, queued=2.5, scheduled=2.75)
    assert (metrics.queue_time(late), metrics.ttft(late), metrics.e2e(late)) == (2.75, 3.0, 3.0)


@pytest.mark.parametrize(
    "broken", [{"sent": -1.0}, {"queued": 2.0, "scheduled": 1.5}, {"finished": 3.9}, {"sent": math.nan}]
)
def test_a_timeline_that_runs_backwards_is_refused(broken):
    made = timeline([3.0, 4.0], **broken)
    with pytest.raises(UnderloadError, match=list(broken)[-1]):
        metrics.check(made)
    with pytest.raises(UnderloadError):
        metrics.summary([made])


def test_tokens_out_of_order_are_refused():
    with pytest.raises(UnderloadError, match="token 1"):
        metrics.check(timeline([3.0, 2.0]))


# ---- the latency budget -------------------------------------------------------------------------------------------


def test_the_stages_of_a_request():
    made = timeline([1.0, 1.5, 2.0, 2.5], sent=0.1, queued=0.15, scheduled=0.4, detokenize_seconds=0.04)
    assert metrics.stages(made) == pytest.approx(
        {"client": 0.1, "tokenise": 0.05, "queue": 0.25, "prefill": 0.59, "decode": 1.47, "detokenise": 0.04}
    )
    assert tuple(metrics.stages(made)) == metrics.STAGES


@given(timelines())
def test_the_stages_add_up_to_e2e_and_none_is_negative(made):
    parts = metrics.stages(made)
    assert sum(parts.values()) == pytest.approx(metrics.e2e(made), abs=1e-9)
    assert min(parts.values()) >= 0
    assert list(parts) == [stage for stage in metrics.STAGES if stage in parts]


def test_an_unrecorded_instant_gives_its_time_to_the_next_stage():
    assert metrics.stages(timeline([2.0], queued=0.5)) == {
        "tokenise": 0.5,
        "prefill": 1.5,
        "decode": 0.0,
        "detokenise": 0.0,
    }


@given(st.lists(timelines(), min_size=1, max_size=5))
def test_mean_stages_add_up_to_the_mean_e2e(many):
    expected = sum(metrics.e2e(t) for t in many) / len(many)
    assert sum(metrics.mean_stages([*many, Timeline(arrival=0)]).values()) == pytest.approx(expected, abs=1e-9)


def test_mean_stages_of_nothing():
    assert metrics.mean_stages([]) == metrics.mean_stages([Timeline(arrival=0)]) == {}


# ---- percentiles --------------------------------------------------------------------------------------------------


def test_percentiles_of_few_values():
    assert metrics.percentile([10, 20, 30], 50) == 20
    assert metrics.percentile([30, 10, 20], 99) == pytest.approx(29.8)
    assert metrics.percentile([7], 99) == metrics.percentile([7], 0) == 7
    assert metrics.percentile([], 50) is None and metrics.percentile([None, None], 50) is None
    assert metrics.percentile([None, 4.0, None], 50) == 4.0  # missing is not 0
    assert metrics.mean([]) is None


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0, 100))
def test_percentiles_are_numpys(values, q):
    assert metrics.percentile(values, q) == pytest.approx(float(np.percentile(values, q)), rel=1e-9, abs=1e-9)
    assert min(values) <= metrics.percentile(values, q) <= max(values)


def test_a_request_that_never_came_back_may_count_as_infinite():
    assert metrics.percentile([1, 2, 3, math.inf], 50) == 2.5
    assert metrics.percentile([1, math.inf, math.inf], 90) == math.inf
    assert metrics.percentile([1, math.inf], 0) == 1


@pytest.mark.parametrize("q", [-1, 100.1, math.nan])
def test_a_percentile_outside_0_to_100_is_refused(q):
    with pytest.raises(UnderloadError, match="between 0 and 100"):
        metrics.percentile([1.0], q)


def test_nan_is_neither_a_value_nor_missing():
    with pytest.raises(UnderloadError, match="NaN"):
        metrics.percentile([1.0, math.nan], 50)


def test_a_p99_needs_299_values_for_an_upper_limit_and_368_for_an_interval():
    assert metrics.samples_needed(99, two_sided=False) == 299
    assert metrics.samples_needed(99) == 368
    assert metrics.percentile_upper_limit(range(298), 99) is None
    assert metrics.percentile_upper_limit(range(299), 99) == 298
    assert metrics.percentile_interval(range(367), 99) is None
    assert metrics.percentile_interval(range(368), 99).high == 367
    # A p1 is a p99 seen from below; a median needs six.
    assert metrics.samples_needed(1) == 368 and metrics.samples_needed(50) == 6
    assert metrics.percentile_interval(range(5), 50) is None
    assert metrics.percentile_interval(range(6), 50).ranks == (1, 6)


@pytest.mark.parametrize("q", [1, 10, 50, 90, 95, 99, 99.9])
@pytest.mark.parametrize("n", [6, 72, 368, 1000, 3688, 20_000])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_the_interval_is_the_tightest_that_leaves_at_most_half_the_rest_on_each_side(q, n, confidence):
    interval = metrics.percentile_interval(range(1, n + 1), q, confidence)
    below = stats.binom(n, q / 100)
    tail = (1 - confidence) / 2
    if interval is None:
        assert below.cdf(0) > tail or below.cdf(n - 1) < 1 - tail
        return
    low, high = interval.ranks
    assert (interval.low, interval.high) == (low, high)  # the values are their own ranks
    assert below.cdf(low - 1) <= tail < below.cdf(low)
    assert below.cdf(high - 1) >= 1 - tail > below.cdf(high - 2)


def test_the_interval_holds_the_true_percentile_as_often_as_it_says():
    rng = np.random.default_rng(11)
    true = -math.log(0.05)  # p95 of an exponential of mean 1
    intervals = [metrics.percentile_interval(rng.exponential(size=200), 95) for _ in range(600)]
    inside = sum(i.low <= true <= i.high for i in intervals)
    assert inside / 600 > 0.93  # a conservative 95 % interval; fixed seed


@settings(max_examples=50)
@given(st.floats(0.5, 99.5), st.floats(0.5, 0.99), st.booleans())
def test_samples_needed_is_where_the_interval_begins(q, confidence, two_sided):
    limit = metrics.percentile_interval if two_sided else metrics.percentile_upper_limit
    n = metrics.samples_needed(q, confidence, two_sided=two_sided)
    assert limit(range(n), q, confidence) is not None
    assert n == 1 or limit(range(n - 1), q, confidence) is None


def test_a_confidence_outside_0_to_1_is_refused():
    with pytest.raises(UnderloadError, match=r"0\.95 for 95 %"):
        metrics.percentile_interval([1.0], 50, 95)


# ---- many requests ------------------------------------------------------------------------------------------------


def test_throughput_counts_the_tokens_of_a_half_open_window():
    made = [timeline([1, 2, 3, 4]), timeline([2, 3], arrival=1), timeline([3], reason="error")]
    assert metrics.span(made) == (0, 4)
    assert metrics.throughput(made) == 7 / 4  # every token: the window is the run
    assert metrics.throughput(made, (1, 3)) == 3 / 2  # at 1, 2, 2; those at 3 belong to the next window
    assert metrics.throughput(made, (1, 2)) + metrics.throughput(made, (2, 3)) == 3
    assert metrics.request_throughput(made) == 2 / 4  # the failed one does not count
    assert metrics.request_throughput(made, (3, 4)) == 1


def test_a_rate_over_nothing_is_no_rate():
    assert metrics.throughput([]) is None and metrics.span([]) is None
    assert metrics.throughput([Timeline(arrival=1.0)]) is None
    assert metrics.throughput([timeline([1])], (1, 1)) is None
    with pytest.raises(UnderloadError, match="before it starts"):
        metrics.throughput([timeline([1])], (2, 1))


def test_failures_are_neither_forgotten_nor_fast():
    served = [timeline([seconds]) for seconds in range(1, 9)]
    refused = [Timeline(arrival=0, finished=0.01, finish_reason="error") for _ in range(2)]
    slo = Slo(e2e=5)
    got = metrics.summary([*served, *refused], slo=slo)
    assert got.latencies["E2E"].percentiles[50] == 4.5
    assert got.failure_rate == 0.2
    assert got.attainment == 0.5
    assert got.goodput == pytest.approx(5 / 8)
    nothing = metrics.summary(refused, slo=slo)
    assert nothing.latencies["E2E"].percentiles[50] is None and nothing.latencies["E2E"].count == 0
    assert nothing.goodput == 0 and nothing.attainment == 0 and nothing.failure_rate == 1


def test_a_failure_that_had_streamed_some_tokens_is_no_fast_success():
    cut_off = timeline([0.1, 0.2], reason="error")
    assert not Slo(ttft=1).met(cut_off) and Slo(ttft=1).broken(cut_off) == ["failed"]
    assert metrics.summary([cut_off]).latencies["TTFT"].count == 0
    assert metrics.request_throughput([cut_off]) == 0


def test_an_slo_is_met_by_meeting_every_term_and_a_limit_reached_is_met():
    made = timeline([1.0, 1.5, 2.5], scheduled=0.25)
    assert Slo(ttft=1.0, tpot=0.75, e2e=2.5, queue_time=0.25, longest_stall=1.0).met(made)
    assert Slo(ttft=0.99, tpot=0.75).broken(made) == ["ttft"]
    assert Slo(ttft=0.5, tpot=0.5, longest_stall=0.99).broken(made) == ["ttft", "tpot", "longest_stall"]
    assert Slo(tpot=0.001, longest_stall=0.001).met(timeline([1.0]))  # one token cannot break them


def test_an_slo_without_terms_or_with_a_senseless_one_is_refused():
    with pytest.raises(UnderloadError, match="at least one term"):
        Slo()
    for limit in (0, -1, math.nan):
        with pytest.raises(UnderloadError, match="ttft"):
            Slo(ttft=limit)


@given(st.lists(timelines(), min_size=1, max_size=6), st.floats(0.1, 30))
def test_goodput_is_never_above_request_throughput(many, limit):
    slo = Slo(e2e=limit)
    total = metrics.request_throughput(many)
    if total is not None:
        assert metrics.goodput(many, slo) == pytest.approx(total * metrics.attainment(many, slo))


# ---- steps --------------------------------------------------------------------------------------------------------


def test_step_rates_are_what_the_step_moved_over_what_it_took():
    step = StepRecord(
        start=0, duration=0.5, batch_size=4, decode_tokens=4, padding_tokens=9, bytes_read=10e9, flops=1e9
    )
    rates = metrics.step_rates(step, bandwidth=40e9, flops=8e9)
    assert (rates.bytes_per_second, rates.flops_per_second, rates.tokens_per_second) == (20e9, 2e9, 8)
    assert (rates.bandwidth_fraction, rates.flops_fraction) == (0.5, 0.25)
    assert metrics.step_rates(step).bandwidth_fraction is None


def test_rates_of_several_steps_are_sums_divided_not_means_of_rates():
    steps = [
        StepRecord(start=0, duration=1.0, batch_size=1, decode_tokens=1, bytes_read=1e9),
        StepRecord(start=1, duration=3.0, batch_size=1, prefill_tokens=7, bytes_read=1e9),
    ]
    assert metrics.step_rates(steps).bytes_per_second == 0.5e9
    assert metrics.step_rates(steps).tokens_per_second == 2.0
    assert metrics.step_rates([]) is None
    assert metrics.step_rates(StepRecord(start=0, duration=0.0, batch_size=1)) is None


# ---- the table ----------------------------------------------------------------------------------------------------


def test_a_summary_shows_no_percentile_that_it_has_too_few_requests_for():
    few = metrics.summary([timeline([1.0, 2.0]) for _ in range(71)])
    assert few.latencies["TTFT"].percentiles == {50: 1.0, 95: None, 99: None}
    enough = metrics.summary([timeline([1.0, 2.0]) for _ in range(368)])
    assert enough.latencies["TTFT"].percentiles[99] == 1.0 and enough.latencies["TTFT"].intervals[99] == (1.0, 1.0)
    assert "p99 368" in str(few) and "too few" not in str(enough)


def test_a_summary_as_text_and_as_data_agree():
    import json

    got = metrics.summary(
        [timeline([0.25, 0.5], scheduled=0.1), Timeline(arrival=0, finish_reason="error")], slo=Slo(ttft=1)
    )
    data = json.loads(json.dumps(got.as_dict()))
    assert data["latencies_s"]["TTFT"]["p50"] == 0.25 and data["latencies_s"]["TTFT"]["p99"] is None
    assert data["failed"] == 1 and data["slo_s"] == {"ttft": 1}
    text = str(got)
    assert "2 requests, 1 failed" in text and "250 ms" in text and "ttft <= 1 s" in text


def test_a_summary_takes_what_generate_returns():
    class Completion:
        timeline = timeline([1.0])

    class Run:
        completions = (Completion(), Completion())

    assert metrics.summary(Run()).requests == 2
    assert metrics.summary([]).throughput is None and "no data" in str(metrics.summary([]))
