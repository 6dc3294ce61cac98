"""What *Probability you need* says without a cell: its examples by hand, its counts and its words about the figures."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from underload.metrics import batch_means, effective_samples, percentile, percentile_interval, samples_needed
from underload.queueing import Empirical, Erlang, Exponential, Hyperexponential, Lognormal, Pareto, max_of_n, mg1, mm1
from underload.simulation import simulate
from underload.workload import OnOff, Poisson, dispersion

PAGE = Path(__file__).resolve().parents[1] / "chapters/back/probability.md"


@pytest.fixture(scope="module")
def sections() -> dict[str, str]:
    parts = re.split(r"^## (.+)\n", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


# ---- the page ----------------------------------------------------------------------------------------------------


def test_there_are_ten_ideas_each_with_something_computed_and_a_place_that_uses_it(sections: dict[str, str]) -> None:
    ideas = {name: body for name, body in sections.items() if name != "Go deeper"}
    assert len(ideas) == 10
    for name, body in ideas.items():
        assert "{code-cell}" in body, f"{name}: nothing computed"
        used = re.search(r"^\*In the book:\*(.+)$", body, re.MULTILINE)
        assert used and re.search(r"\]\([^)]+\)|\{lib\}", used[1]), f"{name}: not said where the book uses it"


def test_it_stays_short() -> None:
    prose = re.sub(r"```.*?^```$|\$\$.*?\$\$|^---.*?^---$", "", PAGE.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert 1000 < len(prose.split()) < 2000  # at 200 words a minute


# ---- by hand -----------------------------------------------------------------------------------------------------


def test_four_requests_and_ten() -> None:
    four = Empirical([1, 1, 1, 5])
    assert (four.mean, four.second_moment - four.mean**2, four.scv) == pytest.approx((2.0, 3.0, 0.75))
    ten = Empirical([0.5] * 9 + [5.5])
    assert (ten.mean, ten.scv) == pytest.approx((1.0, 2.25))


def test_a_mean_case_by_case() -> None:
    queue = mm1(0.8, 1.0)
    assert (queue.prob_wait, queue.mean_wait / queue.prob_wait, queue.mean_wait) == pytest.approx((0.8, 5.0, 4.0))


def test_fewer_than_368_values_all_lie_below_the_p99_too_often() -> None:
    assert 0.99**368 <= 0.025 < 0.99**367
    assert samples_needed(99) == 368
    assert percentile_interval(range(367), 99) is None and percentile_interval(range(368), 99) is not None


def test_the_slowest_of_k_takes_the_logarithm_of_k_and_a_bit() -> None:
    for k in (10, 100, 1000):
        assert max_of_n(Exponential(1.0), n=k).mean == pytest.approx(math.log(k) + 0.58, abs=0.06)
    assert 1 - 0.99**100 > 0.5


# ---- the words about the figures ------------------------------------------------------------------------------------


def test_only_the_exponential_law_forgets() -> None:
    def left(law: Erlang | Exponential | Lognormal | Pareto) -> list[float]:
        return [float(law.excess(t) / law.tail(t)) for t in (0.5, 1.0, 2.0, 4.0)]

    assert left(Exponential(1.0)) == pytest.approx([1.0] * 4)
    regular, lognormal, power = left(Erlang(1.0, phases=4)), left(Lognormal(1.0, scv=4)), left(Pareto.of(1.0, 1.5))
    assert regular == sorted(regular, reverse=True) and regular[-1] == pytest.approx(1 / 3, abs=0.05)
    assert lognormal == sorted(lognormal) and power == sorted(power) and power[-1] > lognormal[-1]


def test_poisson_counts_vary_as_much_as_their_mean_and_bursts_more_in_longer_windows() -> None:
    bursts = OnOff(on_rate=4.0, off_rate=0.0, mean_on=5, mean_off=15)
    assert bursts.rate == pytest.approx(1.0)
    index = [bursts.idc_at(window) for window in (2, 10, 100)]
    assert 1 < index[0] < index[1] < index[2]
    for window in (2, 10, 100):
        found = dispersion(Poisson(1.0).arrivals(np.random.default_rng(9), 200_000), window)
        assert found is not None and found.index == pytest.approx(1.0, abs=4 * math.sqrt(2 / found.windows))


def test_a_stream_split_by_the_toss_of_a_coin_stays_poisson_and_one_split_in_turn_does_not() -> None:
    rng = np.random.default_rng(5)
    instants = Poisson(2.0).arrivals(rng, 50_000)
    tossed, in_turn = (
        dispersion(part, 10, 50_000) for part in (instants[rng.random(len(instants)) < 0.5], instants[::2])
    )
    assert tossed is not None and tossed.p_value > 0.01
    assert in_turn is not None and in_turn.index < 0.7


def test_slow_waits_come_together_and_slow_services_do_not() -> None:
    run = simulate(arrivals=Poisson(0.8), service=Exponential(1.0), customers=200_000, warmup=500, seed=2)

    def after_a_slow_one(times: np.ndarray) -> float:
        slow = times > percentile(times, 99)
        return float(slow[1:][slow[:-1]].mean())

    assert after_a_slow_one(run.waits) > 0.8
    assert after_a_slow_one(run.service[run.counted]) < 0.03


def test_the_textbook_s_interval_is_nine_times_too_narrow_on_this_queue() -> None:
    """Variance of the mean wait in a long M/M/1 run (Daley, J. Austral. Math. Soc. 8, 1968) over that of one wait."""
    load = 0.8
    spread = load * (2 + 5 * load - 4 * load**2 + load**3) / (1 - load) ** 4
    own = (2 * load - load**2) / (1 - load) ** 2
    assert math.sqrt(spread / own) == pytest.approx(9, abs=0.5)
    runs = [
        simulate(arrivals=Poisson(load), service=Exponential(1.0), customers=401_000, warmup=1000, seed=seed).waits
        for seed in range(4)
    ]
    worth = float(np.mean([effective_samples(waits) for waits in runs]))
    assert 400_000 / worth == pytest.approx(spread / own, rel=0.2)


def test_of_a_thousand_waits_batch_means_too_are_too_narrow() -> None:
    load, held = 0.8, []
    for seed in range(200):
        run = simulate(arrivals=Poisson(load), service=Exponential(1.0), customers=2000, warmup=1000, seed=seed)
        held.append(4.0 in batch_means(run.waits))
    assert np.mean(held) < 0.85  # of intervals that promise 0.95


def test_the_gap_you_stand_in_is_longer_by_the_scv() -> None:
    law, rng = Lognormal(1.0, scv=4), np.random.default_rng(6)
    gaps = law.draw(rng, 400_000)
    assert float((gaps**2).sum() / gaps.sum()) == pytest.approx(1 + law.scv, rel=0.1)
    assert mg1(0.5, law).mean_wait == pytest.approx(0.5 / 0.5 * (1 + law.scv) / 2)


def test_heavy_tails_hold_their_work_in_a_few() -> None:
    def top(law: Exponential | Pareto) -> float:
        p99 = law.quantile(99)
        return float((law.excess(p99) + p99 * law.tail(p99)) / law.mean)

    assert top(Exponential(1.0)) == pytest.approx(0.01 * (1 + math.log(100)))
    assert top(Pareto.of(1.0, 1.5)) == pytest.approx(0.01 ** (1 - 1 / 1.5))
    doubled = [float(Pareto.of(1.0, 1.5).tail(2 * t) / Pareto.of(1.0, 1.5).tail(t)) for t in (1, 4, 32)]
    assert doubled == pytest.approx([2**-1.5] * 3)


def test_the_p99_of_a_mixture_is_neither_s_nor_the_weighted_mean() -> None:
    whole = Hyperexponential((0.95, 0.05), (1.0, 10.0))
    within, between = 0.95 * 1 + 0.05 * 100, 0.95 * (1 - 1.45) ** 2 + 0.05 * (10 - 1.45) ** 2
    assert whole.second_moment - whole.mean**2 == pytest.approx(within + between)
    assert whole.scv > 1
    chats, reports = Exponential(1.0).quantile(99), Exponential(10.0).quantile(99)
    assert 0.95 * chats + 0.05 * reports < 0.5 * whole.quantile(99) < 0.5 * reports
