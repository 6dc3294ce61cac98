"""What must hold whatever the numbers: Little, limits into one another, order, and no nonsense in or out."""

import math
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pace import slowness

from underload import queueing as q
from underload.queueing.deterministic import SWITCH, DeterministicWait, decay
from underload.queueing.ladder import LadderWait
from underload.request import UnderloadError

loads = st.floats(1e-6, 0.999)
means = st.floats(1e-4, 1e4)
scvs = st.floats(0.01, 20)
few = settings(max_examples=30, deadline=None)
fewer = settings(max_examples=12, deadline=None)


def little(found: q.Measures) -> None:
    assert found.mean_queue == pytest.approx(found.throughput * found.mean_wait, rel=1e-9, abs=1e-300)
    assert found.mean_system == pytest.approx(found.throughput * found.mean_sojourn, rel=1e-9, abs=1e-300)
    assert found.mean_sojourn >= found.mean_wait >= 0
    assert 0 <= found.utilisation <= 1


@few
@given(loads, means, scvs, st.integers(1, 300))
def test_little_holds_on_every_result(load, mean, scv, n):
    rate = load / mean
    results = [
        q.mm1(rate, 1 / mean),
        q.mm1k(3 * rate, 1 / mean, buffer=n),
        q.mmc(rate * n, 1 / mean, servers=n),
        q.md1(rate, mean_service=mean),
        q.mg1(rate, mean_service=mean, scv=scv),
        q.mg1(rate, q.Lognormal(mean, scv)),
        q.mg1_ps(rate, mean_service=mean),
        q.gm1(q.Erlang(1 / rate, 3), 1 / mean),
        *vars(q.gg1(rate, mean_service=mean, arrival_scv=scv, service_scv=1)).values(),
    ]
    for found in results:
        little(found)


@fewer
@given(st.floats(0.01, 0.97), st.integers(1, 24), st.sampled_from(["greedy", "full", "bailey"]), st.floats(0, 0.5))
def test_little_and_the_flow_of_batches_hold_on_bulk_service(load, size, kind, share):
    overhead, per_item = 1.0, share
    rate = load * size / (overhead + per_item * size)
    for service in ("constant", "exponential"):
        found = q.bulk_service(rate, batch_size=size, overhead=overhead, per_item=per_item, kind=kind, service=service)
        little(found)
        assert found.mean_batch * found.batch_rate == pytest.approx(rate, rel=1e-9)
        assert found.mean_batch <= size * (1 + 1e-12)
        assert 0 <= found.prob_wait <= 1


@few
@given(loads, means)
def test_laws_that_are_one_and_the_same(load, mean):
    rate = load / mean
    mm1 = q.mm1(rate, 1 / mean)
    others = [
        q.mmc(rate, 1 / mean, servers=1),
        q.mg1(rate, mean_service=mean, scv=1),
        q.mg1(rate, q.Exponential(mean)),
        q.gm1(q.Exponential(1 / rate), 1 / mean),
        q.gg1(rate, mean_service=mean, arrival_scv=1, service_scv=1).approximation,
    ]
    for other in others:
        assert other.mean_wait == pytest.approx(mm1.mean_wait, rel=1e-8)
    for other in (others[0], others[2], others[3]):
        for percentile in (50, 99):
            assert other.wait_quantile(percentile) == pytest.approx(
                mm1.wait_quantile(percentile), rel=1e-7, abs=1e-9 * mean
            )
            assert other.sojourn_quantile(percentile) == pytest.approx(mm1.sojourn_quantile(percentile), rel=1e-7)
    md1, mg1 = q.md1(rate, mean_service=mean), q.mg1(rate, mean_service=mean, scv=0)
    assert mg1.mean_wait == md1.mean_wait and mg1.wait_quantile(99) == md1.wait_quantile(99)
    assert md1.mean_wait == pytest.approx(mm1.mean_wait / 2, rel=1e-9)


@few
@given(loads, means, scvs)
def test_vut_is_exact_for_poisson_arrivals_and_kingman_never_below_the_truth(load, mean, scv):
    rate = load / mean
    both = q.gg1(rate, mean_service=mean, arrival_scv=1, service_scv=scv)
    exact = q.mg1(rate, mean_service=mean, scv=scv).mean_wait
    assert both.approximation.mean_wait == pytest.approx(exact, rel=1e-9)
    assert both.bound.mean_wait >= exact
    for gaps in (q.Deterministic(1 / rate), q.Erlang(1 / rate, 4), q.Hyperexponential.of(1 / rate, 1 + scv)):
        bound = q.gg1(rate, mean_service=mean, arrival_scv=gaps.scv, service_scv=1).bound
        assert bound.mean_wait >= q.gm1(gaps, 1 / mean).mean_wait * (1 - 1e-9)


@few
@given(st.floats(0.01, 0.95), st.integers(1, 200))
def test_erlang_b_and_c_fit_together_and_pasta_holds(load, servers):
    a = load * servers
    b, c = q.erlang_b(a, servers=servers), q.erlang_c(a, servers=servers)
    assert c == pytest.approx(b / (1 - load * (1 - b)), rel=1e-9)
    assert b <= c
    if servers > 1:  # the recursion of every textbook
        before = q.erlang_b(a, servers=servers - 1)
        assert b == pytest.approx(a * before / (servers + a * before), rel=1e-9)
    # PASTA: a loss system without room is M/M/1/1; and what is lost is what arrivals find.
    lossy = q.mm1k(load, 1, buffer=0)
    assert lossy.prob_lost == pytest.approx(q.erlang_b(load, servers=1), rel=1e-12)
    assert lossy.prob_wait == lossy.mean_wait == 0
    assert q.mm1(load, 1).prob_wait == pytest.approx(q.mm1(load, 1).utilisation)


@few
@given(st.floats(0.01, 0.9))
def test_a_large_buffer_is_no_buffer(load):
    large, endless = q.mm1k(load, 1, buffer=2_000), q.mm1(load, 1)
    assert large.mean_wait == pytest.approx(endless.mean_wait, rel=1e-9)
    assert large.sojourn_quantile(99) == pytest.approx(endless.sojourn_quantile(99), rel=1e-9)
    assert large.prob_lost < 1e-80


def test_a_finite_buffer_is_stable_at_every_load_and_continuous_at_load_one():
    below, at, above = (q.mm1k(load, 1, buffer=20) for load in (1 - 1e-9, 1, 1 + 1e-9))
    assert at.stable and at.mean_wait == pytest.approx(10, rel=1e-12)
    assert below.mean_wait == pytest.approx(at.mean_wait, rel=1e-6)
    assert above.mean_wait == pytest.approx(at.mean_wait, rel=1e-6)
    flooded = q.mm1k(1e6, 1, buffer=20)
    assert flooded.stable and flooded.throughput == pytest.approx(1, rel=1e-5) and flooded.mean_wait < 20


@fewer
@given(st.floats(0.05, 0.95), means)
def test_bulk_service_of_one_is_the_single_server(load, mean):
    rate = load / mean
    md1, mm1 = q.md1(rate, mean_service=mean), q.mm1(rate, 1 / mean)
    for kind in ("greedy", "full"):
        constant = q.bulk_service(rate, batch_size=1, overhead=mean, kind=kind)
        assert constant.mean_wait == pytest.approx(md1.mean_wait, rel=1e-8)
        assert constant.prob_wait == pytest.approx(load, rel=1e-8)
        for percentile in (50, 99):
            expected = md1.wait_quantile(percentile)
            assert constant.wait_quantile(percentile) == pytest.approx(expected, rel=1e-7, abs=1e-9 * mean)
        exponential = q.bulk_service(rate, batch_size=1, overhead=mean, kind=kind, service="exponential")
        assert exponential.mean_wait == pytest.approx(mm1.mean_wait, rel=1e-8)
        assert exponential.sojourn_quantile(99) == pytest.approx(mm1.sojourn_quantile(99), rel=1e-8)


@fewer
@given(st.floats(0.05, 0.9), st.floats(0.05, 0.9), st.integers(2, 12), st.sampled_from([0.0, 0.05]))
def test_more_load_waits_longer(one, other, size, per_item):
    assume(abs(one - other) > 1e-3)
    low, high = sorted((one, other))
    pairs = [
        (q.mm1(low, 1), q.mm1(high, 1)),
        (q.mmc(low * size, 1, servers=size), q.mmc(high * size, 1, servers=size)),
        (q.md1(low, mean_service=1), q.md1(high, mean_service=1)),
        (q.mg1(low, q.Erlang(1.0, 3)), q.mg1(high, q.Erlang(1.0, 3))),
        (q.mg1_ps(low, mean_service=1), q.mg1_ps(high, mean_service=1)),
        (q.mm1k(low, 1, buffer=size), q.mm1k(high, 1, buffer=size)),
    ]
    ceiling = size / (1 + per_item * size)
    for kind in ("greedy", "bailey"):
        pairs.append(
            tuple(
                q.bulk_service(x * ceiling, batch_size=size, overhead=1.0, per_item=per_item, kind=kind)
                for x in (low, high)
            )
        )
    for quiet, busy in pairs:
        assert quiet.mean_sojourn < busy.mean_sojourn
        if quiet.sojourn is not None:
            assert quiet.sojourn_quantile(99) <= busy.sojourn_quantile(99)
            assert quiet.sojourn_quantile(50) <= quiet.sojourn_quantile(99)


@pytest.mark.parametrize(
    "found",
    [
        q.mm1(0.8, 1),
        q.mm1k(1.2, 1, buffer=9),
        q.mmc(8, 1, servers=10),
        q.md1(0.8, mean_service=1),
        q.mg1(0.8, q.Erlang(1.0, 4)),
        q.mg1(0.4, q.Empirical([0.5, 1.0, 3.0])),
        q.gm1(q.Deterministic(1.25), 1),
        q.bulk_service(400, batch_size=16, overhead=0.02, per_item=0.001),
        q.bulk_service(400, batch_size=32, overhead=0.02, per_item=0.001, kind="full"),
        q.bulk_service(100, batch_size=4, overhead=0.02, kind="bailey"),
    ],
    ids=lambda found: found.name,
)
def test_a_law_has_the_mean_that_the_formula_gives(found):
    """The area under P(T > t), by Simpson's rule piece by piece, is E[T]: laws and means come by different ways."""
    for law, mean in ((found.wait, found.mean_wait), (found.sojourn, found.mean_sojourn)):
        numerical = isinstance(law, LadderWait)  # a transform for each point: fewer of them, and not as far out
        levels = (10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 99.9, 99.97 if numerical else 99.9999)
        ends, points = [0.0, *(law.quantile(p) for p in levels)], 5 if numerical else 15
        t = np.unique(np.concatenate([np.linspace(a, b, points) for a, b in pairwise(ends)]))
        if numerical and law.law.atoms() is not None:  # on either side of a jump
            values = law.law.atoms()[0]
            t = np.unique(np.concatenate([t, values, values * (1 - 1e-9)]))
        tails = np.array([law.tail(x) for x in t])
        assert np.all(np.diff(tails) <= 1e-9) and tails[0] <= 1
        assert np.trapezoid(tails, t) == pytest.approx(mean, rel=3e-3)
        assert law.tail(-1.0) == 1
        for p in (50, 95, 99):
            assert law.tail(law.quantile(p) * (1 + 1e-6) + 1e-12) <= (100 - p) / 100 * (1 + 1e-5)


# ---- numerical safety ------------------------------------------------------------------------------------------


def test_ten_thousand_servers_next_to_saturation():
    for load in (0.5, 0.99, 1 - 1e-9):
        found = q.mmc(10_000 * load, 1.0, servers=10_000)
        assert 0 <= found.prob_wait <= 1 and math.isfinite(found.mean_wait) and found.mean_wait >= 0
        little(found)
    assert q.mmc(10_000 * (1 - 1e-9), 1.0, servers=10_000).prob_wait == pytest.approx(1, abs=1e-5)
    assert q.erlang_b(1.0, servers=10_000) == 0  # below what a double holds, and no error
    assert q.erlang_b(1e9, servers=10_000) == pytest.approx(1 - 1e-5, rel=1e-9)


@pytest.mark.parametrize("gap", [1e-3, 1e-6, 1e-9, 1e-12])
def test_next_to_saturation_the_waits_follow_heavy_traffic(gap):
    """As rho nears 1 the wait tends to an exponential with mean (1 + scv)/2 x mean/(1 - rho), whatever the law."""
    for found, scv in ((q.md1(1 - gap, mean_service=1), 0), (q.mm1(1 - gap, 1), 1)):
        mean = (1 + scv) / 2 / (1 - found.load)
        assert found.mean_wait == pytest.approx(mean, rel=2 * gap + 1e-12)
        assert found.wait_quantile(99) == pytest.approx(mean * math.log(100), rel=2 * gap + 1e-9)
    if gap >= 1e-6:
        found = q.bulk_service(32 * (1 - gap), batch_size=32, overhead=1.0)
        assert found.mean_left == pytest.approx(1 / (2 * gap), abs=40) and found.stable


def test_the_two_forms_of_the_m_d_1_wait_meet():
    for load in (0.3, 0.7, 0.95, 0.9999):
        law = DeterministicWait(load, 1.0)
        exact = law.tail(math.nextafter(SWITCH, 0))
        assert law.tail(float(SWITCH)) == pytest.approx(exact, rel=1e-12)
        theta = decay(load)
        assert load * math.expm1(theta) == pytest.approx(theta, rel=1e-12)


def test_m_d_1_against_its_series_in_exact_arithmetic():
    from fractions import Fraction

    load, t = Fraction(4, 5), Fraction(11)
    # Crommelin's alternating series, with e^x in 60-digit decimals: what double precision cannot do.
    from decimal import Decimal, getcontext

    getcontext().prec = 60
    total = Decimal(0)
    for k in range(int(t) + 1):
        x = load * (t - k)
        power = Decimal((-x).numerator) / Decimal((-x).denominator)
        total += power**k * (-power).exp() / math.factorial(k) if k or x else Decimal(1)
    exact = float(1 - (1 - Decimal(4) / 5) * total)
    assert q.md1(0.8, mean_service=1).wait_tail(11.0) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("load", [0.1, 0.5, 0.9, 0.99])
def test_the_numerical_m_g_1_meets_the_laws_known_exactly(load):
    for law, exact in (
        (q.Exponential(1.0), q.mm1(load, 1.0)),
        (q.Deterministic(1.0), q.md1(load, mean_service=1.0)),
    ):
        for percentile in (90, 99):
            wait = LadderWait(load, law).quantile(percentile)
            assert wait == pytest.approx(exact.wait_quantile(percentile), rel=1e-6, abs=1e-7)
            sojourn = LadderWait(load, law, served=True).quantile(percentile)
            assert sojourn == pytest.approx(exact.sojourn_quantile(percentile), rel=1e-6)


def test_the_wait_of_m_h2_1_against_its_partial_fractions():
    """Two exponentials: the wait's transform is rational, and its two poles can be written down."""
    law, rate = q.Hyperexponential((0.9, 0.1), (0.5, 5.5)), 0.7
    load = rate * law.mean
    mu = 1 / np.array(law.means)
    p = np.array(law.shares)
    # P(W > t) = sum of c exp(-s t) over the roots s of rate x sum p/(mu - s) = 1.
    roots = np.roots([-1, mu.sum() - rate, rate * (p @ mu[::-1]) - mu.prod()])
    c = [(1 - load) / (rate * (p @ (mu / (mu - s) ** 2)) - 1) for s in roots]
    found = q.mg1(rate, law)
    for t in (0.5, 2.0, 10.0, 40.0):
        assert found.wait_tail(t) == pytest.approx(float(np.real(c @ np.exp(-roots * t))), rel=1e-6)


def test_infinite_variance_is_an_infinite_mean_wait_with_finite_percentiles():
    found = q.mg1(0.5, q.Pareto.of(1.0, 1.8))
    assert found.stable and found.mean_wait == found.mean_queue == math.inf
    assert 0 < found.wait_quantile(99) < 1e4


@few
@given(st.floats(0, 5), st.floats(0.1, 5))
def test_zero_arrivals_wait_for_nobody(scv, mean):
    for found in (
        q.mm1(0, 1 / mean),
        q.mm1k(0, 1 / mean, buffer=3),
        q.mmc(0, 1 / mean, servers=4),
        q.md1(0, mean_service=mean),
        q.mg1(0, mean_service=mean, scv=scv),
        q.mg1_ps(0, mean_service=mean),
        q.bulk_service(0, batch_size=4, overhead=mean),
        *vars(q.gg1(0, mean_service=mean, arrival_scv=scv, service_scv=scv)).values(),
    ):
        assert found.mean_wait == found.mean_queue == found.mean_system == found.throughput == found.load == 0
        assert found.mean_sojourn == pytest.approx(mean) and found.stable
        if found.wait is not None:
            assert found.wait_quantile(99.9) == 0
        assert str(found)
    assert q.mg1(0, q.Lognormal(2.0, 3.0)).sojourn_quantile(99) == q.Lognormal(2.0, 3.0).quantile(99)
    assert q.batch_fill(0, batch_size=2).mean_wait == math.inf and q.batch_fill(0, batch_size=1).mean_wait == 0
    assert q.size_or_timeout(0, batch_size=8, timeout=mean).mean_wait == mean
    assert q.bulk_service(0, batch_size=4, overhead=1.0, kind="full").mean_wait == math.inf


@few
@given(st.floats(1, 100), st.floats(0.1, 10), st.integers(1, 20))
def test_past_stability_all_is_infinite_that_should_be(load, mean, size):
    rate = load / mean
    for found in (
        q.mm1(rate * (1 + 1e-9), 1 / mean),
        q.mmc(rate * size * (1 + 1e-9), 1 / mean, servers=size),
        q.md1(rate * (1 + 1e-9), mean_service=mean),
        q.mg1(rate * (1 + 1e-9), q.Lognormal(mean, 2.0)),
        q.mg1_ps(rate * (1 + 1e-9), mean_service=mean),
        q.gm1(q.Deterministic(1 / rate / (1 + 1e-9)), 1 / mean),
        q.gg1(rate * (1 + 1e-9), mean_service=mean, arrival_scv=0, service_scv=0).bound,
        q.bulk_service(rate * size * (1 + 1e-9), batch_size=size, overhead=mean),
    ):
        assert not found.stable and found.load >= 1 and found.utilisation == 1
        assert found.mean_wait == found.mean_sojourn == found.mean_queue == found.sojourn_quantile(50) == math.inf
        assert math.isfinite(found.throughput) and "infinite" in str(found)


# ---- service laws, extremes, hedges ----------------------------------------------------------------------------

LAWS = [
    q.Deterministic(2.0),
    q.Exponential(2.0),
    q.Erlang(2.0, 5),
    q.Hyperexponential.of(2.0, 9.0),
    q.Lognormal(2.0, 3.0),
    q.Pareto.of(2.0, 2.5),
    q.BoundedPareto(0.1, 50.0, 1.0),
    q.BoundedPareto(0.1, 50.0, 1.5),
    q.Empirical([1.0, 1.0, 2.5, 7.0]),
]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: type(law).__name__)
def test_a_law_is_of_one_piece(law):
    assert law.excess(0.0) == pytest.approx(law.mean, rel=1e-12)
    assert law.scv == pytest.approx(law.second_moment / law.mean**2 - 1, abs=1e-12)
    t = np.linspace(0, 12, 12_001)
    area = np.trapezoid(np.asarray(law.tail(t)), t)
    assert float(law.excess(0.0) - law.excess(12.0)) == pytest.approx(area, abs=2e-3)
    if law.atoms() is None:
        for share in (0.9, 0.5, 1e-3, 1e-6):
            assert law.tail(law.isf(share)) == pytest.approx(share, rel=1e-9)
    assert float(law.isf(0.01)) == law.quantile(99)
    # The transform is the Laplace integral of the tail, whichever way it was come by.
    assert law.lst(0.7) == pytest.approx(1 - 0.7 * np.trapezoid(np.exp(-0.7 * t) * law.tail(t), t), abs=1e-3)
    assert law.lst(0.0) == pytest.approx(1)


def test_an_scipy_law_is_as_good_as_ours():
    ours, theirs = q.Lognormal(2.0, 3.0), scipy.stats.lognorm(math.sqrt(math.log(4)), scale=1.0)
    a, b = q.mg1(0.3, ours), q.mg1(0.3, theirs)
    assert b.mean_wait == pytest.approx(a.mean_wait, rel=1e-9)
    assert b.wait_quantile(99) == pytest.approx(a.wait_quantile(99), rel=1e-6)
    assert q.gm1(theirs, 1.0).mean_wait == pytest.approx(q.gm1(ours, 1.0).mean_wait, rel=1e-7)


@fewer
@given(st.floats(1, 50), st.floats(0.01, 100))
def test_balanced_means_give_the_moments_asked_for(scv, mean):
    law = q.Hyperexponential.of(mean, scv)
    assert law.mean == pytest.approx(mean, rel=1e-12) and law.scv == pytest.approx(scv, rel=1e-9)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: type(law).__name__)
def test_the_slowest_of_one_is_the_call_itself_and_more_are_slower(law):
    alone, ten = q.max_of_n(law, n=1), q.max_of_n(law, n=10)
    assert alone.mean == pytest.approx(law.mean, rel=1e-7)
    assert alone.variance == pytest.approx(law.second_moment - law.mean**2, rel=1e-6, abs=1e-12)
    assert alone.quantile(99) == pytest.approx(law.quantile(99), rel=1e-12)
    assert ten.mean >= law.mean and ten.quantile(50) >= law.quantile(50)
    assert ten.quantile(50) == pytest.approx(float(law.isf(1 - 0.5**0.1)), rel=1e-9)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: type(law).__name__)
def test_a_hedge_never_hurts_here_and_one_that_never_goes_changes_nothing(law):
    hedge = q.hedged(law, percentile=50)
    assert hedge.mean <= law.mean * (1 + 1e-9)
    assert hedge.quantile(99) <= law.quantile(99) * (1 + 1e-9)
    never = q.hedged(law, delay=1e9)
    assert never.mean == pytest.approx(law.mean, rel=1e-6) and never.extra_load < 1e-9
    at_once = q.hedged(law, delay=0)
    assert at_once.extra_load == pytest.approx(1)
    assert at_once.mean <= hedge.mean * (1 + 1e-9)


def test_the_mean_of_an_exponential_hedge_in_closed_form():
    hedge = q.hedged(q.Exponential(1.0), delay=2.0, backup=q.Exponential(0.5))
    assert hedge.mean == pytest.approx(1 - math.exp(-2) + math.exp(-2) / 3, rel=1e-12)


def test_fill_and_timeout_are_one_law_at_their_ends():
    full, timed = q.batch_fill(200, batch_size=32), q.size_or_timeout(200, batch_size=32, timeout=100)
    assert timed.mean_wait == pytest.approx(full.mean_wait, rel=1e-12)
    assert timed.prob_full == pytest.approx(1)
    for percentile in (1, 50, 99):
        assert timed.wait_quantile(percentile) == pytest.approx(full.wait_quantile(percentile), rel=1e-8, abs=1e-12)
        first = full.first_wait_quantile(percentile)
        assert timed.first_wait_quantile(percentile) == pytest.approx(first, rel=1e-8)
    alone = q.size_or_timeout(200, batch_size=32, timeout=0)
    assert alone.mean_size == 1 and alone.mean_wait == alone.wait_quantile(99) == 0
    short = q.size_or_timeout(1, batch_size=32, timeout=0.001)
    assert short.wait_quantile(99) == 0.001  # most wait out the timer: an atom, met exactly


def test_the_smallest_stable_batch_is_the_first_that_keeps_up():
    line = q.linear_batch(overhead=0.02, per_item=0.001)
    for rate in (1, 100, 600, 900, 999):
        size = line.smallest_stable_batch(rate)
        assert line.load(rate, int(size)) < 1 and (size == 1 or line.load(rate, int(size) - 1) >= 1 - 2**-52)
    assert line.smallest_stable_batch(1000) == math.inf
    assert q.linear_batch(overhead=1.0, per_item=0.0).smallest_stable_batch(5) == 6  # 5 is equality: not stable


@pytest.mark.parametrize(("kind", "percentile"), [("full", None), ("full", 99), ("greedy", None), ("greedy", 99)])
def test_the_best_batch_beats_every_other_and_capacity_meets_its_slo(kind, percentile):
    line = q.linear_batch(overhead=0.02, per_item=0.004)
    best, time = line.best_batch(150, kind=kind, percentile=percentile, largest=24)
    tried = [
        line.latency(150, batch_size=size, kind=kind, percentile=percentile)
        for size in range(int(line.smallest_stable_batch(150)), 25)
    ]
    assert time == pytest.approx(min(tried), rel=1e-9)
    assert line.latency(150, batch_size=best, kind=kind, percentile=percentile) == pytest.approx(time, rel=1e-12)
    rate = line.capacity(0.2, batch_size=8, kind=kind, percentile=percentile)
    assert line.latency(rate, batch_size=8, kind=kind, percentile=percentile) == pytest.approx(0.2, rel=1e-6)
    assert line.capacity(0.001, batch_size=8, kind=kind, percentile=percentile) == 0


# ---- nonsense --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: q.mm1(-1, 1), "arrival_rate must be at least 0 (in 1/s), got -1"),
        (lambda: q.mm1(math.nan, 1), "arrival_rate must be a finite number, got nan"),
        (lambda: q.mm1(math.inf, 1), "arrival_rate must be a finite number, got inf"),
        (lambda: q.mm1("8", 1), "arrival_rate must be a number, got '8'"),
        (lambda: q.mm1(True, 1), "arrival_rate must be a number, got True"),
        (lambda: q.mm1(np.array([1.0, 2.0]), 1), "call them in a loop"),
        (lambda: q.mm1([1.0], 1), "call them in a loop"),
        (lambda: q.mm1(1, 0), "service_rate must be above 0"),
        (lambda: q.mmc(1, 1, servers=0), "servers must be a whole number from 1"),
        (lambda: q.mmc(1, 1, servers=2.5), "got 2.5"),
        (lambda: q.mm1k(1, 1, buffer=-1), "buffer must be a whole number from 0"),
        (lambda: q.mm1k(1, 1, buffer=10**9), "buffer must be a whole number from 0 to 10,000,000"),
        (lambda: q.erlang_b(-1, servers=1), "offered_load"),
        (lambda: q.md1(1, mean_service=0), "mean_service must be above 0"),
        (lambda: q.mg1(1), "mg1 needs the service"),
        (lambda: q.mg1(1, mean_service=1), "mg1 needs the service"),
        (lambda: q.mg1(1, q.Exponential(1.0), scv=1), "mg1 needs the service"),
        (lambda: q.mg1(1, mean_service=1, scv=-1), "scv must be at least 0"),
        (lambda: q.mg1(1, 5), "service must be a law"),
        (lambda: q.mg1(1, scipy.stats.norm()), "a time is never negative"),
        (lambda: q.mg1(1, scipy.stats.poisson(3)), "discrete"),
        (lambda: q.mg1(0.5, mean_service=1, scv=2).wait_quantile(99), "needs the whole service law"),
        (lambda: q.mg1_ps(0.5, mean_service=1).sojourn_quantile(99), "simulate processor sharing"),
        (lambda: q.gg1(0.5, mean_service=1, arrival_scv=1, service_scv=1).bound.wait_tail(1), "two moments"),
        (lambda: q.mm1(0.5, 1).wait_quantile(100), "a percentile of a law lies from 0 up to but not at 100"),
        (lambda: q.mm1(0.5, 1).wait_quantile(-1), "got -1"),
        (lambda: q.batch_fill(1, batch_size=0), "batch_size"),
        (lambda: q.size_or_timeout(1, batch_size=2, timeout=-1), "timeout must be at least 0 (in s)"),
        (lambda: q.bulk_service(1, batch_size=2, overhead=0), "overhead is 0 s"),
        (lambda: q.bulk_service(1, batch_size=2, overhead=0, per_item=1, kind="bailey"), "an empty batch"),
        (lambda: q.bulk_service(1, batch_size=2, overhead=1, kind="lazy"), "greedy, full, bailey, got 'lazy'"),
        (lambda: q.bulk_service(1, batch_size=2, overhead=1, service="gamma"), "got 'gamma'"),
        (
            lambda: q.bulk_service(1, batch_size=2, overhead=1, service="exponential").wait_quantile(9),
            "simulate it",
        ),
        (lambda: q.linear_batch(overhead=0, per_item=0), "takes no time"),
        (lambda: q.linear_batch(overhead=1, per_item=1).best_batch(2), "no batch size keeps up"),
        (lambda: q.linear_batch(overhead=1, per_item=0).best_batch(50, largest=9), "smallest stable batch size is 51"),
        (lambda: q.linear_batch(overhead=1, per_item=1).capacity(1, batch_size=2, kind="bailey"), "bailey"),
        (lambda: q.max_of_n(q.Exponential(1.0), n=0), "n must be a whole number from 1"),
        (lambda: q.prob_any(1.5, n=2), "at most 1"),
        (lambda: q.hedged(q.Exponential(1.0)), "one of delay"),
        (lambda: q.hedged(q.Exponential(1.0), delay=1, percentile=95), "one of delay"),
        (lambda: q.Exponential(-1.0), "mean must be above 0"),
        (lambda: q.Erlang(1.0, 0), "phases"),
        (lambda: q.Pareto(1.0, 1.0), "no finite mean"),
        (lambda: q.BoundedPareto(2.0, 1.0, 1.0), "high must be above low"),
        (lambda: q.Hyperexponential((0.5, 0.6), (1.0, 1.0)), "the shares must add up to 1"),
        (lambda: q.Hyperexponential.of(1.0, 0.5), "take Erlang"),
        (lambda: q.Empirical([]), "0 values"),
        (lambda: q.Empirical([1.0, -1.0]), "none negative"),
        (lambda: q.Empirical(["fast"]), "numbers in seconds"),
    ],
)
def test_nonsense_is_named_with_its_limit(call, named):
    with pytest.raises(UnderloadError) as refused:
        call()
    assert named in str(refused.value)


@few
@given(st.one_of(st.floats(), st.integers(), st.text(max_size=3), st.none()), st.one_of(st.floats(), st.integers()))
def test_any_two_values_give_a_sound_result_or_a_refusal(first, second):
    for call in (lambda: q.mm1(first, second), lambda: q.md1(first, mean_service=second)):
        try:
            found = call()
        except UnderloadError:
            continue
        assert found.mean_wait >= 0 and found.mean_sojourn >= found.mean_wait and found.load >= 0


def test_the_package_imports_quickly_and_without_torch():
    code = (
        "import sys, time\nbegan = time.process_time()\nimport underload.queueing\n"
        "print(time.process_time() - began, 'torch' in sys.modules, 'scipy' in sys.modules)"
    )
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(root / "lib"), "OMP_NUM_THREADS": "1"},
    )
    spent, torch, scipy_too = done.stdout.split()
    assert (torch, scipy_too) == ("False", "False")
    assert float(spent) < 0.5 * slowness()
