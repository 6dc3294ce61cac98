"""What the page on SLOs, goodput and capacity works out by hand or answers without a cell, recomputed."""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar

from underload.cli import build_parser
from underload.metrics import Slo, attainment, percentile
from underload.queueing import Exponential, erlang_c, mm1, mmc
from underload.request import FinishReason, Timeline
from underload.simulation import FittedStepTime, simulate
from underload.workload import PiecewiseConstant, Poisson

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "chapters/capacity.md").read_text("utf-8")


def good(rate: float, limit: float) -> float:
    return rate * (1 - mm1(rate, 1.0).sojourn_tail(limit))


def allowed(limit: float, servers: int, share: float = 0.99) -> float:
    """The rate at which the tail reaches what is allowed, by a root finder of SciPy's."""
    return float(
        brentq(
            lambda x: mmc(x, 1.0, servers=servers).sojourn_tail(limit) - (1 - share), 1e-9, servers - 1e-9, rtol=1e-13
        )
    )


def test_the_opening() -> None:
    late = math.exp(-(10 - 9.5) * 0.5)
    assert 1 - late == pytest.approx(0.221, abs=5e-4)
    few = 4 * (1 - math.exp(-(10 - 4) * 0.5))
    assert few / (9.5 * (1 - late)) == pytest.approx(1.8, abs=0.05)
    assert 4 < 9.5 / 2 and "less than half of the traffic" in PAGE


def test_the_peak_of_goodput() -> None:
    found = minimize_scalar(lambda x: -good(x, 5.0), bounds=(0.1, 0.999), method="bounded", options={"xatol": 1e-12})
    assert found.x == pytest.approx(0.6993328346012323, rel=1e-6)


@pytest.mark.parametrize(
    ("servers", "limit", "rate"),
    [(10, 10.0, 9.487638277083567), (10, 6.0, 8.91584408576048), (100, 6.0, 98.80360687101738)],
)
def test_the_table_of_pools(servers: int, limit: float, rate: float) -> None:
    assert allowed(limit, servers) == pytest.approx(rate, rel=1e-8)


def test_the_formula_for_one_server_is_that_of_the_pool_with_one() -> None:
    assert allowed(6.0, 1) == pytest.approx(1 - math.log(100) / 6, rel=1e-9)


def test_the_promise_by_hand() -> None:
    assert "$10 - 9.2$ leaves 0.8 requests/s" in PAGE and 10 - math.log(100) / 0.5 == pytest.approx(0.8, abs=0.02)
    assert "$10 - 6.0$ leaves 4.0" in PAGE and 10 - math.log(20) / 0.5 == pytest.approx(4.0, abs=0.02)
    assert pytest.approx(0.8) == 1 - 0.8 / 4.0  # four fifths of the traffic
    assert math.log(100) > 4  # a server of 4 requests/s keeps it to nobody


def test_twelve_requests_of_which_six_are_in_time() -> None:
    def line(end: float, reason: FinishReason, tokens: list[float]) -> Timeline:
        return Timeline(0.0, 0.0, token_times=tokens, finished=end, prompt_tokens=8, finish_reason=reason)

    answered = [line(s / 2, FinishReason.LENGTH, [s / 2]) for s in range(1, 10)]
    refused = [line(0.01, FinishReason.REFUSED, []) for _ in range(3)]
    assert percentile([x.finished or 0 for x in answered], 50) == 2.5
    assert attainment([*answered, *refused], Slo(e2e=3.0)) == 0.5
    assert attainment(refused, Slo(e2e=3.0)) == 0


def test_a_month_has_room_for_an_afternoon() -> None:
    assert pytest.approx(7.2) == 0.01 * 30 * 24 and "1 % of 30 days is 7.2 hours" in PAGE


def test_the_day_keeps_its_p99_and_breaks_it_for_minutes() -> None:
    rates = PiecewiseConstant([0, 54_000, 54_300, 86_400], [5.0, 9.0, 5.0])
    run = simulate(arrivals=rates, service=Exponential(1.0), servers=8, horizon=86_400, seed=2)
    late = run.sojourns > 6.0
    minute = (run.arrival // 60).astype(int)
    share = np.bincount(minute, late) / np.bincount(minute)
    assert run.sojourn_quantile(99) < 6 and late.mean() < 0.01
    assert 3 <= (share > 0.5).sum() <= 12 and 20 < (share > 0.01).sum() < 200


def test_the_echo_of_a_burst_by_hand() -> None:
    assert pytest.approx(100) == 300 * (9 - 8) / (8 - 5) and "so 100 s after its end the line is gone" in PAGE
    assert pytest.approx(375) == 300 * (9 - 8) / (8 - 7.2) and "would have been felt for 375 s" in PAGE


def test_the_answer_on_sixteen_requests_a_second() -> None:
    assert 16 - math.log(20) / 0.25 == pytest.approx(4.0, abs=0.05)
    assert 32 - math.log(20) / 0.25 == pytest.approx(20, abs=0.05)
    assert "= **4.0 requests/s**" in PAGE and "= **20**" in PAGE


def test_the_ceilings_of_an_engine_by_hand() -> None:
    """20 ms and 1 ms a token, prompts of 20 tokens, answers of 50, a TPOT of 50 ms."""
    assert pytest.approx(8.7, abs=0.05) == (1 - 20 / 50) / (0.001 * 69)
    full = {rows: rows / (0.020 + 0.001 * rows * 69 / 50) for rows in (16, 64)}
    assert full[64] == pytest.approx(591, abs=0.5) and full[64] / 50 == pytest.approx(11.8, abs=0.05)
    assert full[16] == pytest.approx(380, abs=0.5) and full[16] / 50 == pytest.approx(7.6, abs=0.05)
    assert 16 / full[16] == pytest.approx(0.042, abs=5e-4)
    assert pytest.approx(0.00138) == 0.001 * 69 / 50
    assert "= 8.7 requests/s; 64 rows write 64/(0.020 + 64 · 0.00138) = 591 tokens/s" in PAGE
    assert "it is 380/50 = 7.6 requests/s" in PAGE


def test_the_command_that_the_page_shows_is_one() -> None:
    shown = PAGE.split("```text\nunderload ")[1].split("```")[0].replace("\\\n", " ")
    assert callable(build_parser().parse_args(shlex.split(shown)).run)


def test_the_burn_rate_of_the_rule() -> None:
    assert pytest.approx(14.4) == 0.02 * 30 * 24 and "above 14.4 in the last hour" in PAGE


def test_the_answer_on_ten_minutes_of_too_much() -> None:
    assert 40 * 600 == 24_000 and 24_000 / 20 == 1200
    assert f"600 × 140 + 1200 × 80 = **{600 * 140 + 1200 * 80:,} requests**" in PAGE


def test_the_answer_on_the_month() -> None:
    assert pytest.approx(0.75) == 0.25 / (10 / 30) and "is 0.75 % late requests" in PAGE


def test_the_exercise_on_errors() -> None:
    share = 1 - math.log(100) / 6
    assert share == pytest.approx(0.232, abs=5e-4) and 0.05 / share == pytest.approx(0.21, abs=0.006)


@pytest.mark.parametrize(
    ("work", "after", "share", "servers"), [(90, 0.0, 0.2, 101), (900, 0.0, 0.2, 933), (90, 0.1, 0.01, 107)]
)
def test_the_staff(work: float, after: float, share: float, servers: int) -> None:
    def waits(c: int) -> float:
        return erlang_c(work, servers=c) * math.exp(-(c - work) * after)

    assert waits(servers) <= share < waits(servers - 1)


def test_a_crossing_rises_and_falls_with_the_run_that_it_was_found_in() -> None:
    """Same users, closer together: the p99 of a run rises with the rate."""

    def tail(rate: float) -> float:
        run = simulate(arrivals=Poisson(rate), service=Exponential(1.0), servers=10, customers=5000, seed=3)
        return run.sojourn_quantile(99)

    tails = [tail(rate) for rate in (7.0, 8.0, 8.5, 9.0, 9.5)]
    assert tails == sorted(tails)


# ---- the recording


@pytest.fixture(scope="module")
def recording() -> dict[str, Any]:
    return json.loads((ROOT / "chapters/data/goodput.json").read_text("utf-8"))


def test_the_recording_says_how_it_was_made(recording: dict[str, Any]) -> None:
    assert {"date", "machine", "model", "path", "threads", "clock", "saturated", "slos"} <= recording.keys()
    assert recording["requests"] >= 368 and set(recording["slos"]) == {"smooth", "prompt"}
    rates = [row["rate"] for row in recording["rows"]]
    assert rates == sorted(rates) and rates[-1] > recording["saturated"] > rates[0]
    for row in recording["rows"]:
        assert row["rate"] == pytest.approx(row["share"] * recording["saturated"], rel=1e-3)
        for run in row["runs"]:
            assert set(run["met"]) == {"smooth", "prompt"} and all(0 <= share <= 1 for share in run["met"].values())


def test_a_recording_that_tells_its_slow_moments_tells_them_of_every_run(recording: dict[str, Any]) -> None:
    for row in recording["rows"]:
        for run in row["runs"]:
            assert ("moment" in recording) == bool(run.get("moments"))
            assert 0.5 < np.median(run.get("moments", [1.0])) < 2.0


def test_both_promises_are_kept_at_a_light_load_and_neither_past_the_edge(recording: dict[str, Any]) -> None:
    first, last = recording["rows"][0], recording["rows"][-1]
    for name in ("smooth", "prompt"):
        assert min(run["met"][name] for run in first["runs"]) > 0.9
    assert max(run["met"]["prompt"] for run in last["runs"]) < 0.95


def test_the_steps_of_the_recording_can_be_asked() -> None:
    steps = FittedStepTime.load(ROOT / "chapters/data/goodput_steps.json")
    assert steps.about["clock"] == "processor" and min(steps.at_knots) >= 0
