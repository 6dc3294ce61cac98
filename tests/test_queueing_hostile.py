"""The formulas under hostile input: what is no number, numbers out of all reach, and loads a hair below 1."""

import math
import warnings
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats

from underload import queueing as q
from underload.request import UnderloadError

NO_NUMBERS = [
    "0.5",
    b"1",
    None,
    True,
    np.bool_(True),
    np.array(True),
    np.array("1"),
    np.array([0.5]),
    [0.5],
    1j,
    math.nan,
]
OUT_OF_REACH = [math.inf, 1e101, 1e308, 10**400]
BUILDERS = {
    "Exponential": lambda x: q.Exponential(x),
    "Deterministic": lambda x: q.Deterministic(x),
    "Erlang": lambda x: q.Erlang(x, 3),
    "Lognormal": lambda x: q.Lognormal(x, 2.0),
    "Lognormal, scv": lambda x: q.Lognormal(0.1, x),
    "Pareto": lambda x: q.Pareto(x, 2.5),
    "Pareto, shape": lambda x: q.Pareto(0.1, x),
    "BoundedPareto": lambda x: q.BoundedPareto(x, 1e90, 1.1),
    "BoundedPareto, high": lambda x: q.BoundedPareto(1e-90, x, 1.1),
    "Hyperexponential": lambda x: q.Hyperexponential.of(x, 4.0),
    "mm1": lambda x: q.mm1(x, 1.0),
    "mmc": lambda x: q.mmc(1.0, x, servers=2),
    "md1": lambda x: q.md1(1.0, mean_service=x),
    "power_of_choices": lambda x: q.power_of_choices(x, 1.0, choices=2),
    "shortest_queue": lambda x: q.shortest_queue(1.0, x),
    "fork_join": lambda x: q.fork_join(0.5, x, n=3),
    "gg1": lambda x: q.gg1(0.5, mean_service=1.0, arrival_scv=x, service_scv=1.0),
    "bulk": lambda x: q.bulk_service(1.0, batch_size=4, overhead=x, per_item=0.01),
    "wait_tail": lambda x: q.mm1(0.5, 1.0).wait_tail(x),
    "sojourn_quantile": lambda x: q.mm1(0.5, 1.0).sojourn_quantile(x),
    "hedged": lambda x: q.hedged(q.Exponential(1.0), delay=x),
    "max tail": lambda x: q.max_of_n(q.Exponential(1.0), n=3).tail(x),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_what_is_no_number_is_named(name):
    for value in NO_NUMBERS:
        with pytest.raises(UnderloadError):
            BUILDERS[name](value)


@pytest.mark.parametrize("name", [name for name in BUILDERS if name not in ("wait_tail", "max tail")])
def test_a_number_that_no_formula_can_hold_asks_for_the_unit(name):
    for value in OUT_OF_REACH:
        with pytest.raises(UnderloadError):
            BUILDERS[name](value)


@pytest.mark.parametrize(
    "number", [Decimal("0.25"), Fraction(1, 4), np.float32(0.25), np.array(0.25), np.float64(0.25)]
)
def test_any_kind_of_number_makes_the_same_law(number):
    laws = [
        (q.Exponential(number), q.Exponential(0.25)),
        (q.Deterministic(number), q.Deterministic(0.25)),
        (q.Erlang(number, np.int64(3)), q.Erlang(0.25, 3)),
        (q.Lognormal(number, number), q.Lognormal(0.25, 0.25)),
        (q.Pareto(number, Fraction(5, 2)), q.Pareto(0.25, 2.5)),
        (q.BoundedPareto(number, Decimal(2), number), q.BoundedPareto(0.25, 2.0, 0.25)),
    ]
    for made, plain in laws:
        assert made == plain and hash(made) == hash(plain)
        assert type(made.mean) is float
        assert made.lst(2.0) == plain.lst(2.0) and made.quantile(99) == plain.quantile(99)


def test_extreme_laws_stay_numbers():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for law in (
            q.Exponential(1e100),
            q.Exponential(1e-100),
            q.Lognormal(1e-100, 1e-90),
            q.Lognormal(1e100, 1e100),
            q.BoundedPareto(1e-3, 0.03, 436.0),
            q.BoundedPareto(1e-90, 1e90, 50.0),
            q.Empirical([1e-100, 0.0, 1e100]),
        ):
            found = [law.mean, law.scv, law.second_moment, float(law.tail(0.01)), law.quantile(0), law.quantile(99.9)]
            assert all(value >= 0 and math.copysign(1, value) > 0 for value in found), law


def test_a_tiny_variability_or_rate_is_none():
    assert q.mg1(0.5, mean_service=1.0, scv=1e-216).mean_wait == q.md1(0.5, mean_service=1.0).mean_wait
    assert q.mm1(-0.0, 1.0).mean_wait == 0 and math.copysign(1, q.mm1(-0.0, 1.0).load) == 1


def test_a_family_of_scipy_wants_its_parameters():
    for family in (scipy.stats.gamma, scipy.stats.expon, scipy.stats.poisson):
        with pytest.raises(UnderloadError, match="freeze it first"):
            q.mg1(0.5, family)
    assert q.mg1(0.5, scipy.stats.expon(scale=0.5)).load == 0.25


def test_values_beyond_doubles_are_refused():
    for values in ([1.0, 10**400], [1e308], [1e-300]):
        with pytest.raises(UnderloadError, match="value"):
            q.Empirical(values)


# ---- next to load 1 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spare", [1e-3, 1e-6, 1e-9, 1e-12])
def test_gm1_keeps_its_digits_next_to_load_1(spare):
    """Against heavy traffic: 1 - sigma -> 2 (1 - rho)/(1 + scv), with a relative error of the order of 1 - rho."""
    for law in (q.Deterministic(1.0), q.Erlang(1.0, 2), q.Hyperexponential.of(1.0, 4.0), q.Exponential(1.0)):
        found = q.gm1(law, 1 / (1 - spare))
        assert found.stable and 0 < found.prob_wait < 1
        free = found.wait.rate * (1 - spare)
        assert free == pytest.approx(2 * spare / (1 + law.scv), rel=2 * spare + 1e-15 / spare)


def test_gm1_is_exact_against_mm1_at_every_load():
    for load in (1e-12, 1e-6, 0.3, 0.9, 1 - 1e-6, 1 - 1e-10):
        made, known = q.gm1(q.Exponential(1.0), 1 / load), q.mm1(1.0, 1 / load)
        assert made.mean_wait == pytest.approx(known.mean_wait, rel=1e-14 + 1e-15 / (1 - load))


def test_gm1_with_a_seldom_met_server_keeps_a_tiny_probability():
    found = q.gm1(q.Deterministic(1.0), 100.0)
    assert found.prob_wait == pytest.approx(math.exp(-100), rel=1e-12)  # 1 - free would be 0
    assert q.gm1(q.Pareto(0.3, 2.5), 441.0).prob_wait >= 0  # no sign change within the integral's error


def test_gm1_with_heavy_gaps_finds_a_tiny_root_or_says_that_it_cannot():
    assert 1e15 < q.gm1(q.Pareto.of(1 / 0.9, 1.06), 1.0).mean_wait < 1e16
    with pytest.raises(UnderloadError, match="rounding hides"):
        q.gm1(q.Pareto.of(1 / 0.999, 1.03), 1.0)


@pytest.mark.parametrize("spare", [0.5, 1e-4, 1e-8, 1e-11])
@pytest.mark.parametrize("kind", ["greedy", "full"])
def test_a_batch_of_one_is_md1_and_mm1_at_every_load(spare, kind):
    rate = 1 - spare
    made, known = q.bulk_service(rate, batch_size=1, overhead=1.0, kind=kind), q.md1(rate, mean_service=1.0)
    assert made.mean_wait == pytest.approx(known.mean_wait, rel=1e-11 + 1e-14 / spare)
    for t in (0.3, 2.5, 20.0):
        assert made.wait_tail(t) == pytest.approx(known.wait_tail(t), abs=2e-12)
    made, known = q.bulk_service(rate, batch_size=1, overhead=1.0, kind=kind, service="exponential"), q.mm1(rate, 1.0)
    assert made.mean_wait == pytest.approx(known.mean_wait, rel=1e-12 + 1e-14 / spare)


@pytest.mark.parametrize("spare", [1e-6, 1e-8])
def test_the_tail_of_md1_next_to_load_1(spare):
    """Erlang's series itself, which is exact over few services: P(W <= t) in units of a service, rho = 1 - spare."""
    load = 1 - spare
    found = q.md1(load, mean_service=1.0)
    for t in (0.5, 3.25, 6.5):
        terms = ((-load * (t - j)) ** j / math.factorial(j) * math.exp(load * (t - j)) for j in range(int(t) + 1))
        assert found.wait_tail(t) == pytest.approx(1 - spare * math.fsum(terms), abs=1e-13)


@pytest.mark.parametrize("kind", ["greedy", "full", "bailey"])
def test_a_bulk_server_that_hardly_ever_works(kind):
    for rate in (1e-90, 1e-22, 1e-12):
        for service in ("constant", "exponential"):
            found = q.bulk_service(rate, batch_size=30, overhead=1.0, per_item=0.5, kind=kind, service=service)
            assert 0 <= found.prob_wait <= 1 and found.mean_wait >= 0
            if kind == "greedy":  # who comes waits only for one who is inside alone
                assert found.prob_wait == pytest.approx(1.5 * rate, rel=1e-9)


def test_a_time_past_all_times_is_exceeded_by_nobody():
    found = q.bulk_service(1.0, batch_size=5, overhead=1e-20, per_item=1e-30)
    assert found.wait_tail(1e300) == 0 == found.sojourn_tail(1e300)
    assert q.batch_fill(1e90, batch_size=3).wait_tail(1e300) == 0


def test_a_narrow_law_keeps_its_transform():
    """A sigma of 1e-4 hides its fall between the points of a rule that sees the whole range at once."""
    law = q.Lognormal(0.5, 1e-8)
    # exp(-s mean) (1 + s² variance/2 - …)
    assert law.lst(0.5) == pytest.approx(math.exp(-0.25) * (1 + 0.25 * 0.25e-8 / 2), rel=1e-12)


def test_the_slowest_of_a_million_keeps_its_digits():
    shape = 5.0  # E[max] = n B(n, 1 - 1/5), in whole steps: the product of k/(k - 1/5)
    expected = math.exp(math.fsum(-math.log1p(-1 / (shape * k)) for k in range(1, 1_000_001)))
    assert q.max_of_n(q.Pareto(1.0, shape), n=1_000_000).mean == pytest.approx(expected, rel=1e-13)


def test_an_unusual_percentile_keeps_its_name():
    labels = [label for label, _ in q.mm1(0.5, 1.0).rows((99.99999,))]
    assert "wait p99.99999" in labels
