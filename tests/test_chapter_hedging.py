"""What the page on hedged and tied requests works out by hand or answers without a cell, recomputed."""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from underload.queueing import Empirical, Erlang, Exponential, Lognormal, hedged, mm1
from underload.simulation import (
    Call,
    Hedge,
    PowerOfChoices,
    Random,
    Sending,
    StationReplica,
    Tied,
    simulate_cluster,
)
from underload.workload import FixedTokens, Lengths, Planned, Poisson, Workload

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "chapters/hedging.md").read_text("utf-8")
ANY = Lengths(FixedTokens(1), FixedTokens(1))


@pytest.fixture(scope="module")
def recording() -> dict[str, Any]:
    return json.loads((ROOT / "chapters/data/hedging.json").read_text("utf-8"))


def test_nineteen_of_twenty_by_hand() -> None:
    law = hedged(Empirical([0.010] * 19 + [0.200]), delay=0.010)
    assert law.extra_load == pytest.approx(0.05) and law.quantile(99) == pytest.approx(0.020)
    assert law.mean == pytest.approx(0.95 * 0.010 + 0.0475 * 0.020 + 0.0025 * 0.200) == pytest.approx(0.01095)
    assert law.tail(0.0199) == pytest.approx(0.05) and law.tail(0.020) == pytest.approx(1 / 400)


@pytest.mark.parametrize("law", [Exponential(1.0), Lognormal(1.0, 1.0), Lognormal(1.0, 4.0), Lognormal(3.0, 0.1)])
def test_the_p99_is_at_most_p95_and_p80(law: Any) -> None:
    assert hedged(law, percentile=95).quantile(99) <= law.quantile(95) + law.quantile(80) + 1e-9
    if isinstance(law, Exponential):
        assert law.quantile(95) + law.quantile(80) == pytest.approx(law.quantile(99))


def test_memoryless_copies_need_the_time_of_one() -> None:
    law = Exponential(1.0)
    for delay in (0.0, 0.3, 2.0):
        hedge = hedged(law, delay=delay)
        assert 2 * hedge.mean - (law.mean - float(law.excess(delay))) == pytest.approx(1.0)


def test_two_of_the_three_published_numbers_give_the_third() -> None:
    worst = 1 - 0.999 ** (1 / 1000)
    sigma = math.log(180) / (norm.isf(worst) - norm.isf(0.02))
    median = 0.010 * math.exp(-sigma * norm.isf(0.02))
    read = Lognormal(median * math.exp(sigma**2 / 2), math.exp(sigma**2) - 1)
    hedge, level = hedged(read, delay=0.010), 100 * (1 - worst)
    assert read.quantile(level) == pytest.approx(1.8) and hedge.extra_load == pytest.approx(0.02)
    assert hedge.quantile(level) == pytest.approx(0.074, rel=0.1)


def test_everything_twice_pays_below_a_third() -> None:
    def pays(load: float) -> bool:
        return mm1(2 * load, 1.0).mean_sojourn / 2 < mm1(load, 1.0).mean_sojourn

    assert pays(0.33) and not pays(0.34)


def test_the_last_load_at_which_a_hedge_settles() -> None:
    def settles(load: float, delay: float) -> bool:
        extra = np.linspace(0, 1 / load - 1, 200_001)
        return bool((np.exp(-(1 - load * (1 + extra)) * delay) <= extra).any())

    for load, delay in product((0.3, 0.48, 0.52, 0.6, 0.65), (0.5, 1.0, 2.0, 4.0, 6.0, 9.0)):
        if (1 - load) * delay >= 1:  # where the two curves would touch, the servers keep up
            assert settles(load, delay) == ((1 - load) * delay >= 1 + math.log(load * delay)), (load, delay)
        else:
            assert settles(load, delay) == (load < 0.5), (load, delay)


def test_late_and_hedged_at_a_load_of_six_tenths() -> None:
    delay, extra = math.log(20) / 0.5, 0.0
    for _ in range(2000):
        extra = math.exp(-(1 - 0.6 * (1 + extra)) * delay)
    assert math.exp(-0.4 * delay) == pytest.approx(0.09, abs=0.005) and extra == pytest.approx(0.16, abs=0.005)


def test_a_copy_costs_less_machine_time_than_its_share_where_losers_are_stopped() -> None:
    for law in (Erlang(0.1, phases=8), Exponential(0.1), Lognormal(0.1, 1.0), Lognormal(0.1, 4.0)):
        hedge = hedged(law, percentile=95)
        more = (2 * hedge.mean - (law.mean - float(law.excess(hedge.delay)))) / law.mean - 1
        assert more < 0.05
        assert (more > 0.005) == isinstance(law, Erlang)


def test_half_and_half_is_six_times_at_its_p99(recording: dict[str, Any]) -> None:
    rows = {row["law"]: row for row in recording["grid"]["rows"] if row["load"] == 0 and row["delay"] is None}
    times = {law: row["p99"] / recording["mean"] for law, row in rows.items()}
    assert 8 < times["server"] == times["own"] < 9 and 6 < times["both"] < 7


def test_six_by_hand() -> None:
    assert math.log(20) / 0.5 == pytest.approx(6, abs=0.01)
    for load, left, right in ((0.6, 2.4, 2.28), (0.65, 2.1, 2.36)):
        assert (1 - load) * 6 == pytest.approx(left) and 1 + math.log(load * 6) == pytest.approx(right, abs=0.005)


class Unstopped(Hedge):
    def finished(self, call: Call, attempt: Any) -> None:
        for other in call.inside:
            call.front.orphan(other)
        call.answer(attempt)


def late(load: float, policy: Sending) -> float:
    """Copies in the second half of a run, as a share."""
    plan = Workload(Poisson(20 * load), ANY).plan(seed=3, requests=6000)
    run = simulate_cluster(plan, [StationReplica(Exponential(1.0))] * 20, router=Random(), sending=policy, seed=3)
    return float(np.mean([len(call.attempts) - 1 for call in run.calls[3000:]]))


def test_past_that_load_it_runs_away_and_a_budget_stops_it() -> None:
    delay = math.log(20) / 0.5
    assert late(0.5, Unstopped(delay)) < 0.12
    assert late(0.72, Unstopped(delay)) > 0.9
    assert late(0.72, Unstopped(delay, budget=0.1)) < 0.2


@pytest.mark.parametrize("base, stays", [(0.55, True), (0.45, False)])
def test_the_evening_stays_where_twice_its_load_is_more_than_the_servers_can_do(base: float, stays: bool) -> None:
    rng, plan, at = np.random.default_rng(11), [], 0.0
    for load, lasts in ((base, 30), (0.75, 40), (base, 300)):
        inside = at + np.cumsum(rng.exponential(0.1 / 20 / load, int(2 * 200 * load * lasts)))
        plan += [float(t) for t in inside[inside < at + lasts]]
        at += lasts
    calls = simulate_cluster(
        [Planned(t, 1, 1, i) for i, t in enumerate(plan)],
        [StationReplica(Lognormal(0.1, 4.0))] * 20,
        router=PowerOfChoices(2),
        sending=Unstopped(0.5),
        seed=4,
    ).calls
    twice = [(call.arrival, len(call.attempts) - 1) for call in calls]
    morning, end = (np.mean([n for t, n in twice if low <= t < high]) for low, high in ((0, 30), (340, 370)))
    assert morning < 0.15 and (end > 0.99 if stays else end < 0.2)
    assert "BASE, RUSH, SHOWN, LONG = 0.55, 0.75" in PAGE and "twice 45 % is less than the servers can do" in PAGE


def test_the_program_calls_requests_back_at_any_instant_of_a_step(recording: dict[str, Any]) -> None:
    assert "time.sleep(rng.uniform(0, 0.6))" in (ROOT / "tests/benchmarks/hedging.py").read_text("utf-8")
    for row in recording["cancel"]["rows"]:
        pauses = np.random.default_rng(2).uniform(0, 0.6, 400_000)  # that begin with a step
        left = row["step"] - pauses % row["step"]
        assert left.mean() == pytest.approx(row["step"] / 2, rel=0.05)


def test_what_the_recording_makes_the_page_say_of_late_copies(recording: dict[str, Any]) -> None:
    engine = recording["engine"]
    rows = {row["policy"]: row for row in engine["rows"]}
    assert all(rows[name]["extra"] > 0.07 for name in ("one delay", "whole answer"))
    assert abs(engine["one_delay"] / rows["once"]["document"][0] - 1) < 0.03  # right where long prompts are done
    heap = 2 * engine["own"]["chat"] + engine["slack"]
    assert heap == pytest.approx(rows["by length"]["chat"][2], rel=0.02)
    for row in recording["cancel"]["rows"]:
        assert row["kept"][0] == pytest.approx(row["residual"], rel=0.2)


class TiedLater(Tied):
    def begin(self, call: Call) -> None:
        call.send()
        call.after(2 * self.message, self.second, call)

    def second(self, call: Call) -> None:
        if call.state is None:
            call.send()


def test_a_pause_before_the_second_copy_keeps_both_from_starting() -> None:
    plan = Workload(Poisson(40), ANY).plan(seed=5, requests=3000)
    fleet = [StationReplica(Exponential(0.1))] * 10
    both, later = (
        simulate_cluster(plan, fleet, router=Random(), sending=policy, seed=5)
        for policy in (Tied(2, message=0.001), TiedLater(2, message=0.001))
    )
    assert both.extra_load == 1 and later.extra_load < 0.6
    assert both.extra_work > 0.1 and later.extra_work < 0.02


def test_the_prefix_at_home() -> None:
    assert (2000 + 50) / 50 == 41 and "forty-one times as much" in PAGE


def test_the_answer_on_nine_in_ten() -> None:
    law = Empirical([0.020] * 9 + [0.320])
    after, together = hedged(law, delay=0.020), hedged(law, delay=0.0)
    assert law.mean == pytest.approx(0.050) and after.extra_load == pytest.approx(0.1)
    assert after.quantile(98.9) == pytest.approx(0.040)
    assert after.mean == pytest.approx(0.9 * 0.020 + 0.09 * 0.040 + 0.01 * 0.320)
    assert together.mean == pytest.approx(0.0230) and together.quantile(98.9) == pytest.approx(0.020)
    assert after.mean - together.mean == pytest.approx(0.0018)


def test_the_answer_on_twelve_of_twenty() -> None:
    for gets, delay, runs_away in ((12, 0.2, True), (12, 0.4, False), (0.9 * 12, 0.2, False)):
        left, right = (20 - gets) * delay, 1 + math.log(gets * delay)
        assert left >= 1 and (left < right) == runs_away
        assert 2 * gets > 20  # everything twice is more than the server can do


# ---- the recording


def test_every_setting_of_the_grid_is_there(recording: dict[str, Any]) -> None:
    rows = recording["grid"]["rows"]
    sets = [{row[key] for row in rows} for key in ("law", "stops", "load", "delay")]
    assert len(rows) == math.prod(map(len, sets)) and 0.0 in sets[2] and None in sets[3]


def test_load_zero_is_the_formula(recording: dict[str, Any]) -> None:
    law = Lognormal(recording["mean"], recording["scv"])
    for row in recording["grid"]["rows"]:
        if row["load"] == 0 and row["law"] == "server":
            made = None if row["delay"] is None else hedged(law, delay=row["delay"])
            assert row["p99"] == pytest.approx((made or law).quantile(99), rel=1e-3)
            assert row["extra"] == pytest.approx(made.extra_load if made else 0, abs=1e-4)


def test_what_the_page_says_of_the_figure(recording: dict[str, Any]) -> None:
    at = {(r["law"], r["stops"], r["load"], r["delay"]): r for r in recording["grid"]["rows"]}
    assert at["server", False, 0.7, 0.4]["p99"] is None and at["server", False, 0.7, None]["p99"] is not None
    assert at["server", False, 0.3, 0.4]["p99"] < 0.7 * at["server", False, 0.3, None]["p99"]
    assert at["server", True, 0.7, 0.4]["p99"] < 0.5 * at["server", True, 0.7, None]["p99"]
    assert at["server", True, 0.9, 0.0]["busy"] < 0.85
    assert at["own", True, 0.3, 0.4]["p99"] > 0.75 * at["own", True, 0.3, None]["p99"]
    high = at["own", True, 0.9, 0.4]["p99"]
    assert high is None or high > at["own", True, 0.9, None]["p99"]


def test_the_engine_says_how_it_was_measured(recording: dict[str, Any]) -> None:
    engine = recording["engine"]
    assert {"date", "machine", "model", "path", "threads", "requests", "rate", "other_load"} <= engine.keys()
    assert f"\n{recording['command']}\n" in PAGE
    rows = {row["policy"]: row for row in engine["rows"]}
    assert set(rows) == {"once", "one delay", "by length", "whole answer", "tied", "tied, later"}
    assert engine["requests"] >= 1000
    for row in rows.values():
        for found in (row, row["simulated"]):
            p50, p95, p99, *band = found["chat"]
            assert p50 < p95 <= p99 and (not band or band[0] <= p99 <= band[1])
    assert rows["once"]["extra"] == 0 and rows["once"]["tokens_lost"] == 0
    assert rows["tied"]["tokens_lost"] > 4 * rows["tied, later"]["tokens_lost"]
    assert rows["tied, later"]["chat"][1] < 0.8 * rows["once"]["chat"][1]
    assert rows["by length"]["tokens_lost"] < rows["one delay"]["tokens_lost"]
    steps = {row["tokens"]: row["step"] for row in engine["copy"]}
    assert steps[0] < steps[64] < steps[1024]
    for row in recording["cancel"]["rows"]:
        assert row["count"] >= 100 and 0.2 < row["kept"][0] / row["residual"] < 5
