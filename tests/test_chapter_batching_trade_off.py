"""What the page on the batching trade-off works out by hand or answers without a cell, recomputed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from underload.queueing import batch_fill, bulk_service, linear_batch, md1
from underload.scheduling import Batching, Greedy, SizeOrTimeout, Static, Step
from underload.simulation import LinearStepTime, simulate_serving
from underload.workload import FixedTokens, Lengths, Planned, Poisson, Workload

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "chapters/batching-trade-off.md").read_text("utf-8")
LINE = linear_batch(overhead=0.020, per_item=0.001)
SERVER = LinearStepTime(0.020, 0.001)
ONE = Lengths(FixedTokens(1), FixedTokens(1))


@pytest.fixture(scope="module")
def recording() -> dict[str, Any]:
    return json.loads((ROOT / "chapters/data/batching_policies.json").read_text("utf-8"))


def latency(plan: list[Planned], batching: Batching) -> np.ndarray:
    return np.array([x.finished - x.arrival for x in simulate_serving(plan, SERVER, batching=batching).timelines])


def test_the_opening() -> None:
    assert pytest.approx(10.3, abs=0.05) == 31 / 3
    assert LINE.step_time(1) == pytest.approx(0.021) and LINE.throughput(32) > 600 > LINE.throughput(8)


def test_four_at_a_hundred_a_second_wait_fifteen_milliseconds() -> None:
    assert "wait 30, 20, 10 and 0 ms, 15 on average" in PAGE
    assert batch_fill(100, batch_size=4).mean_wait == pytest.approx(0.015)


def test_six_keep_up_with_200_requests_a_second_and_five_do_not() -> None:
    assert LINE.smallest_stable_batch(200) == 6 and LINE.load(200, 5) == pytest.approx(1)
    assert "so 6 will do; 5 will not" in PAGE


@pytest.mark.parametrize(("size", "rate"), [(6, 200), (16, 50), (4, 100)])
def test_fill_queue_and_service_add_up_to_the_latency_of_full_batches(size: int, rate: float) -> None:
    full = bulk_service(rate, batch_size=size, overhead=0.020, per_item=0.001, kind="full")
    queue = full.mean_wait - (size - 1) / (2 * rate)
    assert queue >= 0 and full.mean_sojourn == pytest.approx(full.mean_wait + 0.020 + size * 0.001)
    # Batches come more evenly than single requests would at that load.
    assert queue < md1(rate / size, mean_service=0.020 + size * 0.001).mean_wait


def test_the_floor_of_the_valley_lies_just_above_the_smallest_batch_that_keeps_up() -> None:
    for rate in (100, 200, 400, 600):
        best, _ = LINE.best_batch(rate, kind="full")
        assert LINE.smallest_stable_batch(rate) <= best <= 1.25 * LINE.smallest_stable_batch(rate) + 1


def test_the_greedy_cycle_by_hand() -> None:
    cycle = 0.020 / (1 - 0.6)
    assert (cycle, 600 * cycle, 1.5 * cycle) == pytest.approx((0.050, 30, 0.075))
    assert "$\\bar T$ = 20/(1 − 0.6) = 50 ms, batches of 30, and 75 ms for a request" in PAGE
    assert LINE.measures(600, batch_size=256).mean_batch == pytest.approx(30, abs=1e-3)


@pytest.mark.parametrize("rate", [400, 600, 800])
def test_the_exact_law_of_the_cycle(rate: float) -> None:
    o, t = 0.020, 0.001
    share = rate * t
    seen = o / (1 - share) + rate * t**2 / (1 - share**2)
    assert o + t + (0.5 + share) * seen == pytest.approx(LINE.latency(rate, batch_size=512), rel=1e-5)


def test_without_an_overhead_company_costs() -> None:
    alone, together = md1(0.9, mean_service=1.0), bulk_service(0.9, batch_size=512, overhead=0, per_item=1)
    assert alone.mean_sojourn == pytest.approx(5.5) and together.mean_sojourn == pytest.approx(7.63, abs=0.005)


def test_two_together_are_as_fast_as_one_by_one_where_o_is_t() -> None:
    o = t = 1.0
    assert (o + t + 2 * (o + t)) / 2 == o + 2 * t


def test_greedy_beats_every_full_batch_at_twenty_to_one() -> None:
    for rate in (25, 50, 100, 200, 400, 600, 800):
        assert LINE.latency(rate, batch_size=256) < 0.9 * LINE.best_batch(rate, kind="full")[1]


def test_a_mean_of_100_ms_by_hand() -> None:
    by_hand = (1 - 3 * 0.020 / (2 * 0.100)) / 0.001
    assert by_hand == pytest.approx(700)
    assert LINE.capacity(0.100, batch_size=128) == pytest.approx(by_hand, rel=0.02)
    assert LINE.capacity(0.100, batch_size=64, kind="full") == 0.0


def test_the_answer_on_images() -> None:
    line = linear_batch(overhead=0.008, per_item=0.002)
    assert line.smallest_stable_batch(250) == 5 and line.load(250, 4) == pytest.approx(1)
    assert 0.008 / (1 - 0.5) == 0.016 and line.knee == pytest.approx(4)


def test_the_answer_on_full_batches_of_sixteen() -> None:
    assert LINE.load(40, 16) == pytest.approx(0.09)
    assert LINE.latency(40, batch_size=16, kind="full") == pytest.approx(15 / 80 + 0.036, rel=1e-6)
    assert 15 / 40 + LINE.step_time(16) == pytest.approx(0.411)


def test_the_answer_on_bunches() -> None:
    def took(size: int) -> float:
        return 6 + 0.5 * size

    assert (took(1), took(9), took(1) + took(9), 2 + took(10)) == (6.5, 10.5, 17, 13)
    assert "about 6.5 + 10.5 = 17 ms" in PAGE and "after 2 + 11 = 13 ms" in PAGE


def test_the_answer_on_a_cap_that_is_always_met() -> None:
    before, after = (LINE.latency(610, batch_size=cap) for cap in (32, 64))
    assert after == pytest.approx(before / 2, rel=0.05)


def test_a_timer_of_zero_is_greedy_and_one_without_an_end_is_full() -> None:
    plan = Workload(Poisson(150), ONE).plan(seed=4, requests=400)
    assert (latency(plan, SizeOrTimeout(8, 0.0)) == latency(plan, Greedy(8))).all()
    assert (latency(plan, SizeOrTimeout(8, math.inf)) == latency(plan, Static(8))).all()


class Threshold(Batching):
    """The policy that an exercise asks for: nobody starts before `least` wait, and then all do."""

    def __init__(self, least: int) -> None:
        self.least = least

    def fill(self, step: Step) -> None:
        if not step.running and (len(step.waiting) >= self.least or step.closing):
            while step.waiting and step.admit(step.waiting[0], 1) is not None:
                pass


def test_holding_out_for_a_second_request_costs_at_a_low_load_and_next_to_nothing_where_it_pays() -> None:
    plan = Workload(Poisson(25), ONE).plan(seed=5, requests=2000)
    assert latency(plan, Threshold(2)).mean() > 1.4 * latency(plan, Greedy(256)).mean()
    plan = Workload(Poisson(170), ONE).plan(seed=6, requests=4000)
    assert latency(plan, Threshold(2)).mean() == pytest.approx(latency(plan, Greedy(256)).mean(), rel=0.01)


# ---- the recording


def test_every_setting_of_the_timer_that_is_stable_was_recorded(recording: dict[str, Any]) -> None:
    rows = recording["timer"]
    rates, sizes, timeouts = ({row[key] for row in rows} for key in ("rate", "batch_size", "timeout"))
    found = {(row["rate"], row["batch_size"], row["timeout"]) for row in rows}
    wanted = {(r, b, d) for r in rates for b in sizes for d in timeouts if LINE.load(r, b) < 1}
    assert found == wanted and len(rows) == len(wanted)


def test_the_timer_of_the_recording_is_that_of_the_simulator(recording: dict[str, Any]) -> None:
    row = next(r for r in recording["timer"] if (r["rate"], r["batch_size"], r["timeout"]) == (100, 32, 0.020))
    plan = Workload(Poisson(100), ONE).plan(seed=8, requests=4000)
    again = (latency(plan, SizeOrTimeout(32, 0.020)) - latency(plan, Greedy(32))).mean()
    assert again + LINE.latency(100, batch_size=32) == pytest.approx(row["mean"], rel=0.02)


def test_each_run_on_the_decoder_says_how_it_was_made(recording: dict[str, Any]) -> None:
    decoder = recording["decoder"]
    assert {"date", "machine", "model", "path", "threads"} <= decoder.keys()
    assert recording["command"] in PAGE
    for row in decoder["rows"]:
        mean, low, high = row["mean"]
        assert low < mean < high and row["requests"] >= 1000 and 0 <= row["other_load"] <= 1
        o, t = row["line"]
        assert o > 0 and t >= 0 and row["rate"] * (o + t * row["batch_size"]) < row["batch_size"]
