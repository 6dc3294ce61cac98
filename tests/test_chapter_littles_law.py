"""What the two pages on queues claim, recomputed: hand examples, answers, the recording, and their figures."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from underload import figures
from underload.figures import FigureError
from underload.metrics import percentile_over_replications
from underload.queueing import Empirical, Exponential, Hyperexponential, erlang_c, mg1, mg1_ps, mm1, mmc
from underload.simulation import little, simulate
from underload.workload import Poisson

ROOT = Path(__file__).resolve().parents[1]
PAGES = {name: (ROOT / f"chapters/{name}.md") for name in ("littles-law", "variability-and-pooling")}
FIVE = ([0, 1, 2, 5, 6], [2, 3, 1, 1, 2])


@pytest.fixture(scope="module")
def recording() -> dict[str, Any]:
    return json.loads((ROOT / "chapters/data/littles_law.json").read_text(encoding="utf-8"))


# ---- by hand -----------------------------------------------------------------------------------------------------


def test_the_five_requests_have_the_area_worked_out_by_hand() -> None:
    run = simulate(arrivals=FIVE[0], service=FIVE[1], horizon=10)
    assert run.sojourns.tolist() == [2, 4, 4, 2, 3]
    assert (run.mean_system, run.arrival_rate, run.mean_sojourn) == (1.5, 0.5, 3.0)


def test_the_hockey_stick_has_its_heights() -> None:
    assert [mm1(load, 1.0).mean_wait for load in (0.5, 0.8, 0.9, 0.95)] == pytest.approx([1, 4, 9, 19])
    queue = mm1(1.5, 2.0)
    assert (queue.load, queue.mean_sojourn, queue.mean_wait, queue.mean_system) == (0.75, 2.0, 1.5, 3.0)


def test_the_sum_rule_is_44_percent_low_at_5_percent_load() -> None:
    queue = mm1(0.05, 1.0)
    assert queue.sojourn_quantile(99) == pytest.approx(math.log(100) / 0.95)
    wrong = queue.mean_service + queue.wait_quantile(99)
    assert wrong / queue.sojourn_quantile(99) - 1 == pytest.approx(-0.44, abs=0.005)


def test_ten_services_of_the_drawing() -> None:
    ten = Empirical([0.5] * 9 + [5.5])
    assert (ten.mean, ten.scv) == pytest.approx((1.0, 2.25))
    assert mg1(0.8, ten).mean_wait == pytest.approx(6.5)


def test_answers_of_the_first_page() -> None:
    assert 30 * 6 == 180 and 240 / 30 == 8
    assert mm1(15, 20).mean_sojourn == pytest.approx(0.2)
    assert mm1(10.789, 20).sojourn_quantile(99) < 0.5 < mm1(10.795, 20).sojourn_quantile(99)
    faster = mm1(0.85, 1.1).mean_sojourn / mm1(0.85, 1.0).mean_sojourn
    assert faster == pytest.approx(0.6, abs=0.01)
    text, load = PAGES["littles-law"].read_text("utf-8"), 0.85 / 1.1
    for said in (
        f"0.85/1.1 = {load:.2f}, and what is left from 0.15 to {1 - load:.2f}",
        f"takes the load to {0.95 * 0.85:.2f}",
        f"85 − 60 = {85 - 6 * 10} over 300 s are {(85 - 6 * 10) * 300:,} request-seconds",
    ):
        assert said in text, said


def test_the_exercise_on_three_loads() -> None:
    assert mm1(0.9, 1.0).mean_wait == pytest.approx(9.0)
    text = PAGES["littles-law"].read_text("utf-8")
    assert f"$2\\sqrt{{3600/\\pi}}$ = {2 * math.sqrt(3600 / math.pi):.0f} s" in text
    assert f"3,600/1.1 = {3600 / 1.1:,.0f} s" in text and f"waits about {3600 - 3600 / 1.1:.0f} s" in text


def test_ten_minutes_at_half_load_leave_an_interval_as_wide_as_the_mean() -> None:
    """300 requests of the question; the variance of a mean wait is Daley's (J. Austral. Math. Soc. 8, 1968)."""
    load, requests = 0.5, 600 * 0.5
    spread = load * (2 + 5 * load - 4 * load**2 + load**3) / (1 - load) ** 4
    width = 2 * 1.96 * math.sqrt(spread / requests)
    assert width == pytest.approx(mm1(load, 1.0).mean_wait, rel=0.3)


def test_an_error_in_the_load_counts_ten_times_at_nine_tenths() -> None:
    def wait(rate: float, service: float) -> float:
        return mg1(rate, mean_service=service, scv=0.3).mean_wait

    assert (wait(0.9 * 1.0001, 1.0) / wait(0.9, 1.0) - 1) / 1e-4 == pytest.approx(10, abs=0.1)
    assert (wait(0.9, 1.0001) / wait(0.9, 1.0) - 1) / 1e-4 == pytest.approx(11, abs=0.1)


def test_answers_of_the_second_page() -> None:
    two = Empirical([2.0] * 8 + [12.0] * 2)
    assert (two.mean, two.scv) == pytest.approx((4.0, 1.0))
    assert mg1(0.6 / 4, two).mean_wait == pytest.approx(6.0)
    assert mg1(0.6 / 4, mean_service=4.0, scv=0.0).mean_wait == pytest.approx(3.0)
    before, after = 2.0, 0.999 * 2 + 0.001 * 40**2
    load = 0.6 * (0.999 + 0.001 * 40)
    assert after / before * 0.4 / (1 - load) == pytest.approx(1.91, abs=0.005)
    assert 0.2 * mg1_ps(0.75, mean_service=1.0).slowdown == pytest.approx(0.8)
    assert mg1(0.75, mean_service=1.0, scv=3.0).mean_wait == pytest.approx(6.0)
    assert (10 / (1 - 0.75), 6.0 + 10) == (40, 16)


def test_two_servers_on_one_line_by_hand() -> None:
    assert erlang_c(1.6, servers=2) == pytest.approx(2 * 0.8**2 / 1.8) == pytest.approx(0.711, abs=5e-4)
    assert mmc(1.6, 1.0, servers=2).mean_wait == pytest.approx(1.78, abs=0.005)
    assert mm1(0.8, 1.0).mean_wait == pytest.approx(4.0)


def test_five_laws_at_one_load_wait_between_two_and_ten_seconds() -> None:
    waits = [mg1(0.8, mean_service=1.0, scv=scv).mean_wait for scv in (0, 0.25, 1, 2.25, 4)]
    assert waits == pytest.approx([2, 2.5, 4, 6.5, 10])


def test_an_express_lane_pays_for_uneven_requests_with_the_right_border_only() -> None:
    """The exercise's answer, by simulation where the page uses the formula of each lane."""
    rng, requests = np.random.default_rng(2), 400_000
    arrivals = np.cumsum(rng.exponential(1.0, requests))

    def split(work: np.ndarray, border: float) -> float:
        parts = (work < border, work >= border)
        return sum(float(simulate(arrivals=arrivals[p], service=work[p]).sojourns.sum()) for p in parts) / requests

    even, uneven = Exponential(1.0).draw(rng, requests), Hyperexponential.of(1.0, 16).draw(rng, requests)
    assert split(even, 2.0) > 1.3 * mg1(1.0, mean_service=0.5, scv=1.0).mean_sojourn
    undivided = mg1(1.0, mean_service=0.5, scv=16.0).mean_sojourn
    assert split(uneven, 2.0) < 0.7 * undivided < 0.7 * split(uneven, 1.0)


def test_the_three_services_of_the_opening_have_the_waits_it_names() -> None:
    rare = (1 - 1 / 3) / (30 - 1 / 3)
    law = Empirical([30.0] + [1 / 3] * (round(1 / rare) - 1))
    assert law.mean == pytest.approx(1.0, rel=0.02)
    assert mg1(0.8, mean_service=1.0, scv=(1 - rare) / 9 + rare * 900 - 1).mean_wait > 10 * 4 > 10 * 2


def test_one_line_for_eight_waits_a_tenth() -> None:
    assert mmc(0.9, 1.0, servers=1).mean_wait / mmc(7.2, 1.0, servers=8).mean_wait == pytest.approx(10, abs=0.5)
    assert erlang_c(0.1, servers=1) == pytest.approx(0.1)


# ---- simulated ---------------------------------------------------------------------------------------------------


def test_at_load_one_the_wait_grows_as_the_square_root() -> None:
    runs = [
        simulate(arrivals=Poisson(1.0), service=Exponential(1.0), customers=2000, seed=seed).waits
        for seed in range(150)
    ]
    last = np.array([run[1900:].mean() for run in runs])
    wanted = 2 * math.sqrt(1950 / math.pi)
    assert abs(last.mean() - wanted) < 3 * last.std(ddof=1) / math.sqrt(len(runs))


def test_the_approximation_for_several_servers_is_one() -> None:
    """(1 + scv)/2 x the wait of M/M/c: the hockey stick's and the layouts' curve where no exact formula exists."""
    for scv, load in ((4.0, 0.8), (9.0, 0.8)):
        run = simulate(
            arrivals=Poisson(8 * load),
            service=Hyperexponential.of(1.0, scv),
            servers=8,
            customers=800_000,
            warmup=200,
            seed=3,
        )
        assert run.mean_wait == pytest.approx((1 + scv) / 2 * mmc(8 * load, 1.0, servers=8).mean_wait, rel=0.25)


def test_the_interval_leaves_the_sum_rule_out_at_half_load_and_not_at_nine_tenths() -> None:
    for load, told in ((0.05, True), (0.5, True), (0.9, False)):
        queue = mm1(load, 1.0)
        runs = (
            simulate(arrivals=Poisson(load), service=Exponential(1.0), customers=200_000, seed=seed)
            for seed in range(20)
        )
        seen = percentile_over_replications((run.sojourns for run in runs), 99)
        assert queue.sojourn_quantile(99) in seen
        assert (queue.mean_service + queue.wait_quantile(99) not in seen) == told


def test_what_rounds_to_zero_has_no_sign() -> None:
    made: dict[str, Any] = {}
    exec(
        re.findall(r"^def percent\(.*?\n\n", PAGES["littles-law"].read_text("utf-8"), re.DOTALL | re.MULTILINE)[0], made
    )
    found = [
        made["percent"](share, digits) for share, digits in ((-0.004, 0), (0.0, 1), (-0.04, 0), (0.1, 1), (1.07, 0))
    ]
    assert found == ["0 %", "0.0 %", "−4 %", "+10.0 %", "+107 %"]


def test_uneven_requests_turn_the_choice_between_fast_and_many() -> None:
    def fast(scv: float) -> float:
        return mg1(6.4, mean_service=1 / 8, scv=scv).mean_sojourn

    even = simulate(arrivals=Poisson(6.4), service=Exponential(1.0), servers=8, customers=300_000).mean_sojourn
    uneven = simulate(
        arrivals=Poisson(6.4), service=Hyperexponential.of(1.0, 16), servers=8, customers=600_000
    ).mean_sojourn
    assert fast(1.0) < 0.6 * even
    assert uneven < 0.85 * fast(16.0)


# ---- the recording -----------------------------------------------------------------------------------------------


def test_the_recording_says_what_it_is(recording: dict[str, Any]) -> None:
    assert recording["machine"]["cpu"] and re.fullmatch(r"20\d\d-\d\d-\d\d", recording["date"])
    assert "scheduling priority" in recording["note"]
    assert recording["command"] in PAGES["littles-law"].read_text("utf-8")
    assert [row["load"] for row in recording["rows"]] == [0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9]


def test_page_and_script_drive_the_same_requests() -> None:
    laws = []
    for path in (ROOT / "tests/benchmarks/littles_law.py", PAGES["littles-law"]):
        found = re.search(r"= (Lengths\(.*?\))\n[A-Z#i]", path.read_text("utf-8"), re.DOTALL)
        assert found is not None, path
        laws.append(re.sub(r"\s+", "", found.group(1)))
    assert laws[0] == laws[1]


def test_little_s_law_with_its_ends_is_exact_on_the_recorded_log(recording: dict[str, Any]) -> None:
    arrival, finish = (np.array(recording["trace"][name]) for name in ("arrival", "finished"))
    rng = np.random.default_rng(0)
    off = []
    for _ in range(50):
        begin, end = np.sort(rng.uniform(finish[0], arrival[-1], 2))
        found = little(arrival, finish, begin, end)
        found.check()
        before = np.maximum(finish[arrival < begin] - begin, 0).sum()
        after = np.maximum(finish[arrival < end] - end, 0).sum()
        assert found.mean_system == pytest.approx(
            found.rate * found.mean_sojourn + (before - after) / found.length, abs=1e-9
        )
        off.append(abs(found.ends) / found.area)
    assert max(off) > 0.01  # the ends do matter somewhere


def test_the_recorded_waits_are_those_of_a_single_server(recording: dict[str, Any]) -> None:
    rows = recording["rows"]
    for row in rows:
        # the simulator on the same arrivals and services lacks the handover only, and each one delays those behind it
        reached = row["rate"] * row["mean_service"]
        missing = row["mean_wait"][0] - row["replayed_wait"]
        assert 0 < missing < 4 * row["handover"] / (1 - reached)
    heavy = [row for row in rows if row["rate"] * row["mean_service"] > 0.4]
    held = 0
    for row in heavy:
        formula = mg1(row["rate"], mean_service=row["mean_service"], scv=row["scv"]).mean_wait
        held += row["mean_wait"][1] <= formula <= row["mean_wait"][2]
    assert held >= len(heavy) - 1


def test_the_server_is_slower_when_it_rests(recording: dict[str, Any]) -> None:
    first, last = recording["rows"][0], recording["rows"][-1]
    assert first["mean_service"] > 1.1 * last["mean_service"]
    assert first["handover"] > last["handover"]


# ---- figures -----------------------------------------------------------------------------------------------------


def stays(customers: int = 40) -> list[tuple[float, float, float]]:
    run = simulate(arrivals=Poisson(0.8), service=Exponential(1.0), customers=customers, seed=5)
    return list(zip(run.arrival.tolist(), run.start.tolist(), run.finish.tolist(), strict=True))


def test_rows_and_columns_of_the_drawing_are_one_area() -> None:
    run = simulate(arrivals=FIVE[0], service=FIVE[1])
    picture = figures.two_ways(
        list(zip(run.arrival.tolist(), run.start.tolist(), run.finish.tolist(), strict=True)), end=10
    )
    assert picture.alt.count("= 15") == 2


def test_both_areas_agree_at_every_moment_of_the_watched_queue() -> None:
    picture = figures.watch_queue({"0.8": stays()}, [1.0, 2.5, 7.0, 20.0], label="Load")
    assert picture.data is not None
    clock, requests = picture.data["by the clock (request·s)"], picture.data["by requests (request·s)"]
    assert clock == requests and clock[-1] > clock[0]


def test_the_drawn_inspection_counts_its_arrivals() -> None:
    picture = figures.inspection([0.5] * 4 + [5.5] + [0.5] * 5, arrows=20)
    assert picture.data is not None
    assert sum(picture.data["arrivals during it"]) == 20
    assert picture.data["arrivals during it"][4] > 10  # more than half meet the long one, as the page says


@pytest.mark.parametrize(
    "draw",
    [
        lambda: figures.two_ways([], end=1),
        lambda: figures.two_ways([(0, 1, 12)], end=10),
        lambda: figures.two_ways([(2, 1, 3)], end=10),
        lambda: figures.watch_queue({}, [1.0], label="Load"),
        lambda: figures.watch_queue({"a": stays(3)}, [0.0], label="Load"),
        lambda: figures.layouts_of_servers(1),
        lambda: figures.inspection([1.0, 0.0]),
    ],
)
def test_pictures_of_what_is_no_queue_are_refused(draw: Any) -> None:
    with pytest.raises(FigureError):
        draw()
