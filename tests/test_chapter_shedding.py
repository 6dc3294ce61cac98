"""What the page on shedding and autoscaling works out by hand or answers without a cell, recomputed."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from underload.metrics import mean_interval
from underload.queueing import Deterministic, Exponential, mm1, mm1k
from underload.simulation import Retry, StationReplica, simulate, simulate_cluster
from underload.workload import FixedTokens, Lengths, PiecewiseConstant, Planned, Poisson, Workload
from underload.workload.public import trace_folders

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "chapters/shedding.md").read_text("utf-8")


def good(load: float, inside: int, limit: float = 5.0) -> float:
    queue = mm1k(load, 1.0, buffer=inside - 1)
    return queue.throughput * (1 - queue.sojourn_tail(limit))


def test_three_inside_give_the_most_at_one_and_a_half_times_the_load() -> None:
    assert max(range(1, 60), key=lambda most: good(1.5, most)) == 3
    assert good(1.5, 20) < 0.01 < 0.6 < good(1.5, 5) < good(1.5, 3)
    assert mm1k(1.5, 1.0, buffer=2).prob_lost == pytest.approx(0.4, abs=0.02)  # two in five
    assert mm1k(1.5, 1.0, buffer=19).prob_lost == pytest.approx(1 / 3, abs=0.02)  # of twenty inside, one in three
    assert good(1.5, 20) / mm1k(1.5, 1.0, buffer=19).throughput < 0.01  # nearly all of the others are late


def test_a_line_of_four_by_hand() -> None:
    assert "1 × (5 − 1) gives four places to wait, five inside" in PAGE


def test_the_symbol_of_the_rule_is_the_notation_s() -> None:
    assert r"$$L_{q,\max} \le X\,(y - E[S])$$" in PAGE and r"$L_{\max}$" not in PAGE
    assert r"| $L_{q,\max}$ | places to wait" in (ROOT / "chapters/back/notation.md").read_text("utf-8")


@pytest.mark.parametrize("load", [1.1, 1.5, 3.0])
def test_the_rule_is_the_best_door_where_services_do_not_vary(load: float) -> None:
    def in_time(places: int) -> float:
        run = simulate(
            arrivals=Poisson(load), service=Deterministic(1.0), seed=1, buffer=places, horizon=20_000, warmup=500
        )
        return float(np.sum(run.sojourns <= 5.0))

    found = [in_time(places) for places in range(9)]
    assert found[4] >= 0.999 * max(found) and max(found[5:]) < 0.8 * found[4]  # at 3 a door of two loses as little


def test_of_those_who_take_the_last_place_of_the_rule_many_are_late() -> None:
    """Five services of 1 s on average, the first of them under way, take longer than 5 s."""
    drawn = np.random.default_rng(1).exponential(size=(200_000, 5)).sum(axis=1)
    by_page = 100 * sum(math.exp(-5) * 5**k / math.factorial(k) for k in range(5))
    assert 100 * (drawn > 5).mean() == pytest.approx(by_page, abs=0.5)


def test_the_answer_on_a_line_of_fifteen() -> None:
    assert f"8 × (2 − 0.1) = **{8 * (2 - 0.1):.0f}**" in PAGE and f"The thousandth waits for {1000 / 8:.0f} s" in PAGE


def test_the_answer_on_retries() -> None:
    assert f"40/3 = **{40 / 3:.1f} requests/s**" in PAGE and f"so **{40 / 1.2:.1f}**" in PAGE


def test_a_fifth_must_be_free_for_six_minutes_of_growth() -> None:
    assert f"{100 / 30 * 6:.0f} requests/s must be free at every moment of it, a fifth" in PAGE


def attempts(rate: float, most: int, patience: float, service: float, start: float) -> float:
    """Where the attempts a second settle, from a guess on."""
    reaching = start
    for _ in range(10_000):
        late = 1.0 if reaching >= service else mm1(reaching, service).sojourn_tail(patience)
        reaching = rate * sum(late**k for k in range(most))
    return reaching


def test_there_are_two_futures_at_a_load_of_six_tenths() -> None:
    assert attempts(6.0, 3, 3.0, 10.0, start=6.0) == pytest.approx(6.0, rel=1e-3)
    assert attempts(6.0, 3, 3.0, 10.0, start=15.0) == pytest.approx(18.0)


def test_there_is_one_below_a_third() -> None:
    assert attempts(3.3, 3, 3.0, 10.0, start=9.9) == pytest.approx(3.3, rel=1e-3)
    assert attempts(3.3, 3, 3.0, 10.0, start=30.0) == pytest.approx(3.3, rel=1e-3)


def burst(rate: float, seed: int) -> list[Planned]:
    rates = PiecewiseConstant([0, 100, 160, 1200], [rate, 15.0, rate])
    return Workload(rates, Lengths(FixedTokens(1), FixedTokens(1))).plan(seed, horizon=1200)


@pytest.mark.parametrize(("rate", "returns"), [(2.0, True), (6.0, False)])
def test_a_storm_stays_only_where_the_attempts_exceed_the_server(rate: float, returns: bool) -> None:
    run = simulate_cluster(
        burst(rate, 1), [StationReplica(Exponential(0.1))], sending=Retry(3.0, cancels=False), seed=1
    )
    answered = float(np.mean([call.outcome == "answered" for call in run.calls if call.arrival > 1000]))
    assert answered > 0.9 if returns else answered < 0.1


def test_taking_back_what_was_given_up_ends_it() -> None:
    run = simulate_cluster(burst(6.0, 1), [StationReplica(Exponential(0.1))], sending=Retry(3.0, cancels=True), seed=1)
    assert np.mean([call.outcome == "answered" for call in run.calls if call.arrival > 300]) > 0.9


def test_the_newest_first_serves_most_of_them_in_time_under_overload() -> None:
    """The exercise: last come, first served at a load of 1.2, a limit of 5 s."""

    def in_time(discipline: str) -> float:
        run = simulate(arrivals=Poisson(1.2), service=Exponential(1.0), horizon=4000, seed=3, discipline=discipline)
        return float(np.sum(run.sojourns <= 5.0)) / 4000

    assert in_time("fcfs") < 0.1 and in_time("lifo") > 0.5


def test_the_reserve_covers_the_growth_of_two_windows() -> None:
    """A plan that knows the load of two windows ago is short exactly where it grew by more than its reserve."""
    load = np.array([10.0, 10, 10, 12, 15, 20, 30, 30, 30])
    seen = np.concatenate([[10.0, 10.0], load[:-2]])
    for reserve in (0.0, 0.5, 1.0, 2.0):
        short = load > 5 * np.ceil(seen * (1 + reserve) / 5)
        grew = load / seen - 1
        assert not short[grew <= reserve].any()


def run_cells(*beginnings: str) -> dict:
    """What the page's imports and the cells that begin so leave behind."""
    cells = re.findall(r"^```\{code-cell\} ipython3\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    setup = cells[0].removeprefix(":tags: [remove-cell]\n").replace("from myst_nb import glue\n", "")
    left: dict = {}
    found = [cell for cell in cells if cell.startswith(beginnings)]
    assert len(found) == len(beginnings)
    for cell in (setup, *found):
        exec(cell, left)
    return left


def test_the_budget_spends_in_the_burst_what_it_saved_before() -> None:
    """The copies of the burst are a tenth of all requests so far, and what stays in line sets the echo's length."""
    calls = run_cells("PATIENCE =", "CLIENTS =")["storms"]["on a budget"].calls
    before = sum(call.arrival < 300 for call in calls)
    burst = sum(300 <= call.arrival < 360 for call in calls)
    copies = sum(300 <= attempt.sent < 360 for call in calls for attempt in call.attempts[1:])
    assert copies == pytest.approx(0.1 * (before + burst), rel=0.02) and copies > 0.2 * burst
    over = max(call.arrival for call in calls if call.outcome != "answered") - 360
    assert over == pytest.approx((burst + copies - 600) / (10 - 6.6), rel=0.1)
    assert not any(call.outcome != "answered" for call in calls if call.arrival < 300)


@pytest.mark.slow
def test_cutting_short_gains_up_to_twice_the_load_and_fails_at_three_times() -> None:
    """In longer runs than the page's: more than the capacity at 1.5 and at 2, no fall that can be told, none at 3."""
    left = run_cells("STEP =", "RULES =", "def can_do")
    assert 2 < left["short"] / left["most"] < 3

    def served(load: float, seed: int) -> float:
        plan = left["chat"](load * left["most"], seed, horizon=240)
        run = simulate_cluster(plan, [left["replica"]()], door=left["Shorter"]())
        return load * float(np.mean([left["SOON"].met(line) for line in run.timelines if line.arrival > 15]))

    one, two, three = (mean_interval([served(load, seed) for seed in range(1, 5)]) for load in (1.5, 2.0, 3.0))
    assert one.low > 1.1 and two.low > 1.0 and three.high < 0.05
    assert one.low < two.high and two.low < one.high


def test_people_are_an_hour_ahead() -> None:
    from underload.scheduling import Priority

    assert 60 * Priority().aging == 1 and "priority=60.0" in PAGE and "Sixty levels are an hour's start" in PAGE


@pytest.mark.parametrize("real", [True, False], ids=["the record", "the stand-in"])
def test_the_day_is_as_the_page_tells_it_with_the_record_and_without(real, tmp_path, monkeypatch) -> None:
    if real and not (trace_folders()[0] / "servegen_m-large_client142_trace.csv").exists():
        pytest.skip("the record is not here")
    if not real:
        monkeypatch.setenv("UNDERLOAD_TRACES", str(tmp_path))
    left = run_cells("WINDOW =", "EACH =", "def timetable")
    assert left["real"] is real
    today, tomorrow = left["today"], left["tomorrow"]
    # the alternative text: small at first, a steep climb, a dip in the middle, a fall towards the end
    night, morning, noon, evening, end = (today[hour * 6] for hour in (4, 10, 13, 16, 23))
    assert night < morning / 20 and noon < min(morning, evening) / 2 and end < evening / 20
    assert (today[1:] / np.maximum(today[:-1], 1.0)).max() > 1.4  # a window's step at the steepest
    assert today[54] > 10 * today[42]  # the three hours that are simulated have the rise
    short = np.maximum(today - left["EACH"] * left["reacting"](0.0), 0.0)
    assert short[1:][np.diff(today) > 0].sum() > 0.9 * short.sum()  # nearly all where the load rises
    lost = [left["day"](left["reacting"](reserve))[2] for reserve in (0.0, 0.25, 0.5)]
    assert lost[0] > 2 * lost[1] > 4 * lost[2] > 0
    # the morning does not come every day: a table from the next day leaves most of this one out
    assert tomorrow.mean() < today.mean() / 5
    assert left["day"](left["PLANS"]["timetable of the next day"])[2] > 0.5
    # half as much again is the spare capacity of the rule only above the load at which the climbs begin
    spare = left["growth"] * 20
    assert left["WINDOW"] * 2 == 20 * 60
    half = left["reacting"](0.5)
    began = np.concatenate([np.full(2, today[0]), today[:-2]])[
        today > left["EACH"] * half
    ]  # what was known, where it is short
    assert began.max() < spare / 0.5 and began.min() < 0.2 * spare / 0.5


@pytest.mark.slow
def test_what_is_said_of_two_pools(tmp_path, monkeypatch) -> None:
    """Where the text puts one fleet before another, the intervals do too; also with the lengths of the stand-in."""
    monkeypatch.setenv("UNDERLOAD_TRACES", str(tmp_path))
    left = run_cells("model, card =", "def cards(", "def p95(")
    found = {}
    for words, served in left["FLEETS"].items():
        runs = [
            [line for line in served(left["load"].plan(seed, horizon=12)).timelines
             if line.arrival > 2 and line.output_tokens > 1]
            for seed in range(3)
        ]  # fmt: skip
        for of in ("ttft", "tpot", "longest_stall"):
            _, low, high = map(float, re.findall(r"[\d.]+", left["p95"](runs, left[of])))
            found[words, of] = low, high
    large, small, two = left["FLEETS"]
    for of in ("ttft", "tpot", "longest_stall"):
        assert found[small, of][1] < found[two, of][0], of
        better, worse = (large, two) if of == "ttft" else (two, large)
        assert found[better, of][1] < found[worse, of][0], of


def test_the_production_names_that_the_page_asks_for() -> None:
    assert ":::{production-names} shedding" in PAGE
