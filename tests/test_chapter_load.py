"""What the page on load claims, recomputed: hand examples, answers, the recording, and its drawing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from underload import figures, metrics
from underload.metrics import Slo
from underload.queueing import Exponential, mg1, mm1
from underload.request import Timeline
from underload.simulation import EventQueue, simulate, station, submit_to
from underload.workload import Log, Planned, Poisson, closed_loop, dispersion, open_loop, synthetic

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "chapters/load.md"


@pytest.fixture(scope="module")
def recording() -> dict[str, Any]:
    return json.loads((ROOT / "chapters/data/load_sweep.json").read_text(encoding="utf-8"))


def plan(requests: int, gap: float = 0.0) -> list[Planned]:
    return [Planned(place * gap, 1, 1, index=place) for place in range(requests)]


def on_schedule(service: Any, connections: int, gap: float = 0.1, requests: int = 10) -> Log:
    queue = EventQueue()
    server = submit_to(station(queue), lambda request: service(request.index))
    return open_loop(plan(requests, gap), server, queue, connections=connections)


# ---- open and closed ---------------------------------------------------------------------------------------------


def test_a_tenth_less_traffic_takes_ten_times_as_long() -> None:
    assert mm1(0.9, 1.0).mean_sojourn == pytest.approx(10.0)
    queue = EventQueue()
    log = closed_loop(plan(500), submit_to(station(queue), lambda request: 1.0), queue, users=1)
    assert log.latencies_from_schedule == [1.0] * 500


@pytest.mark.parametrize(("users", "think"), [(30, 10.0), (8, 0.0), (5, 20.0)])
def test_a_closed_loop_keeps_its_law(users: int, think: float) -> None:
    queue = EventQueue()
    work = Exponential(1.0).draw(np.random.default_rng(1), 20_000)
    server = submit_to(station(queue), lambda request: float(work[request.index]))
    log = closed_loop(plan(20_000), server, queue, users=users, think=Exponential(think) if think else None)
    lines = sorted(log.timelines, key=lambda line: line.finished or 0.0)[1000:-1000]
    assert lines[0].finished is not None and lines[-1].finished is not None
    rate = (len(lines) - 1) / (lines[-1].finished - lines[0].finished)
    inside = float(np.mean([line.finished - line.arrival for line in lines if line.finished]))
    assert inside == pytest.approx(users / rate - think, rel=0.02, abs=0.05)
    assert rate <= 1.02 * min(1.0 / work.mean(), users / (think + 1.0))


def test_the_first_answer() -> None:
    assert (32 / 8, 32 / 16) == (4.0, 2.0)
    assert mm1(7, 8).mean_sojourn == pytest.approx(1.0)
    assert mm1(7, 16).mean_sojourn == pytest.approx(1 / 9)


# ---- two clocks --------------------------------------------------------------------------------------------------


def test_one_connection_hides_what_the_schedule_shows() -> None:
    log = on_schedule(lambda place: 0.19, 1)
    assert log.latencies_from_send == pytest.approx([0.19] * 10)
    assert log.latencies_from_schedule == pytest.approx([0.19 + 0.09 * place for place in range(10)])
    free = on_schedule(lambda place: 0.19, 10)
    assert free.latencies_from_send == pytest.approx(log.latencies_from_schedule)


def test_one_stall_is_one_request_from_the_send_and_seven_from_the_schedule() -> None:
    log = on_schedule(lambda place: 0.8 if place == 2 else 0.02, 1)
    assert sum(value > 0.25 for value in log.latencies_from_send if value) == 1
    assert sum(value > 0.25 for value in log.latencies_from_schedule if value) == 7
    text = PAGE.read_text("utf-8")
    assert "shows seven" in text and "seven by the users'" in text


def test_the_exercise_on_the_stall() -> None:
    log = on_schedule(lambda place: 1.0 if place == 3000 else 0.005, 1, gap=0.01, requests=6000)
    slow = [
        sum(value > 0.1 + 1e-9 for value in by if value)
        for by in (log.latencies_from_send, log.latencies_from_schedule)
    ]
    assert slow == [1, 180]
    assert np.percentile([value or 0.0 for value in log.latencies_from_schedule], 99) > 0.5


# ---- failures, dialects, warm-up, samples ------------------------------------------------------------------------


def test_refusals_make_a_median_better_and_users_worse_off() -> None:
    good = [
        Timeline(arrival=0.0, token_times=[float(s)], finished=float(s), finish_reason="length") for s in range(1, 9)
    ]
    bad = [Timeline(arrival=0.0, finished=0.01, finish_reason="error") for _ in range(2)]
    times = [metrics.e2e(line) for line in good]
    assert metrics.percentile(times, 50) == 4.5
    assert metrics.percentile([*times, 0.01, 0.01], 50) == 3.5
    assert metrics.attainment([*good, *bad], Slo(e2e=5.0)) == 0.5
    assert metrics.percentile([metrics.e2e(line) for line in bad], 50) is None


def test_the_best_waiting_room_is_neither_the_largest_nor_none() -> None:
    work = Exponential(1.0).draw(np.random.default_rng(2), 4000)
    arrivals = np.cumsum(Poisson(1.2).gaps(np.random.default_rng(3), 4000))
    content = {}
    for buffer in (50, 2, 0):
        run = simulate(arrivals=arrivals, service=work, buffer=buffer)
        content[buffer] = float(np.sum(run.sojourns <= 5.0)) / 4000
    assert content[2] > content[0] > content[50]


def test_the_five_tokens_in_three_chunks() -> None:
    five = Timeline(arrival=0.0, sent=0.0, token_times=[1.0, 1.3, 1.3, 1.3, 1.4], finished=1.4, finish_reason="length")
    found = metrics.dialects.compare([five])
    wanted = {("TPOT", "vLLM"): 0.1, ("TPOT", "guidellm"): 0.28, ("ITL", "underload"): 0.1, ("ITL", "vLLM"): 0.2}
    for (quantity, tool), value in (wanted | {("ITL", "llmperf"): 1.4 / 3}).items():
        assert found.find(quantity, tool).mean == pytest.approx(value), (quantity, tool)


def test_the_answer_on_twenty_more_tokens() -> None:
    late = Timeline(arrival=-3.0, sent=0.0, token_times=[2.0 + 0.1 * i for i in range(21)], finished=4.0)
    late.finish_reason = "length"
    found = metrics.dialects.compare([late])
    wanted = {("TPOT", "vLLM"): 0.1, ("TPOT", "guidellm"): 4 / 21, ("ITL", "llmperf"): 4 / 21, ("TTFT", "vLLM"): 2.0}
    for (quantity, tool), value in (wanted | {("TTFT", "underload"): 5.0}).items():
        assert found.find(quantity, tool).mean == pytest.approx(value), (quantity, tool)


def test_the_exercise_on_a_p99_from_two_minutes() -> None:
    worth = {}
    for load in (0.5, 0.9):
        run = simulate(arrivals=Poisson(load), service=Exponential(1.0), customers=101_000, seed=4)
        worth[load] = metrics.effective_samples(run.sojourns[1000:], 99) / 100_000
    assert 140 * worth[0.9] < 1
    assert 368 / worth[0.5] / (5 * 0.5 / 0.9) / 60 == pytest.approx(15, abs=4)


def test_three_tools_report_a_tpot_and_all_five_an_itl_by_as_many_formulas() -> None:
    others = [tool for name, tool in metrics.dialects.TOOLS.items() if name != "underload"]
    for quantity, count in (("TPOT", 3), ("ITL", 5)):
        formulas = [tool.definitions[quantity].formula for tool in others if quantity in tool.definitions]
        assert len(formulas) == len(set(formulas)) == count


def test_a_busy_queue_from_an_empty_start() -> None:
    waits = np.mean(
        [simulate(arrivals=Poisson(0.9), service=Exponential(1.0), customers=1000, seed=s).waits for s in range(400)],
        axis=0,
    )
    assert waits[:200].mean() == pytest.approx(5.8, abs=0.4)
    assert waits.mean() == pytest.approx(8.1, abs=0.6)


def test_what_a_p99_takes() -> None:
    assert (metrics.samples_needed(99, two_sided=False), metrics.samples_needed(99)) == (299, 368)


def test_thinning_pulls_the_index_towards_one() -> None:
    instants = synthetic("azure-conv").instants
    assert instants is not None
    kept = instants[np.random.default_rng(0).random(len(instants)) < 0.1]
    full, thin = dispersion(instants, 10.0), dispersion(kept, 10.0)
    assert full is not None and thin is not None
    assert thin.index == pytest.approx(1 + 0.1 * (full.index - 1), abs=0.3)


def test_thirty_users_who_think_for_ten_seconds() -> None:
    users, think, service = 30, 10.0, 1.0
    rate = min(1 / service, users / (think + service))
    assert (rate, users / rate - think) == (1.0, 20.0)
    enough = (think + service) / service  # keep the server busy if nobody ever collides
    text = PAGE.read_text("utf-8")
    assert enough == 11 and "Eleven users would have been enough" in text
    assert f"$W \\ge {users}/1 - 10 = {users / rate - think:.0f}$ s" in text


def test_a_stall_of_a_second_a_minute_makes_the_p99() -> None:
    log = on_schedule(lambda place: 1.0 if place == 3000 else 0.001, 1, gap=0.01, requests=6000)
    sent, due = log.latencies_from_send, log.latencies_from_schedule
    assert sum(value > 0.1 for value in sent if value) == 1
    assert 60 < sum(value > 0.1 for value in due if value) < 150
    assert np.percentile([value or 0.0 for value in sent], 99) < 0.01
    assert np.percentile([value or 0.0 for value in due], 99) > 0.1


def test_without_a_waiting_room_more_than_half_are_turned_away() -> None:
    work = Exponential(1.0).draw(np.random.default_rng(2), 20_000)
    run = simulate(arrivals=Poisson(1.2), service=work, buffer=0, customers=20_000, seed=3)
    assert 1 - run.sojourns.size / 20_000 == pytest.approx(1.2 / 2.2, abs=0.02)  # Erlang's B; above one half


# ---- the recording -----------------------------------------------------------------------------------------------


def test_the_recording_says_what_it_is(recording: dict[str, Any]) -> None:
    assert recording["machine"]["cpu"] and re.fullmatch(r"20\d\d-\d\d-\d\d", recording["date"])
    assert "scheduling priority" in recording["note"]
    assert recording["command"] in PAGE.read_text("utf-8")
    assert {row["users"] for row in recording["rows"]} == {None, 1, 2, 4, 8, 16}


def test_page_and_script_drive_the_same_requests() -> None:
    laws = []
    for path in (ROOT / "tests/benchmarks/littles_law.py", PAGE):
        found = re.search(r"= (Lengths\(.*?\))\n[A-Z#i]", path.read_text("utf-8"), re.DOTALL)
        assert found is not None, path
        laws.append(re.sub(r"\s+", "", found.group(1)))
    assert laws[0] == laws[1]
    assert "from littles_law import LENGTHS" in (ROOT / "tests/benchmarks/load_sweep.py").read_text("utf-8")


def test_the_two_tests_disagree_and_neither_lies(recording: dict[str, Any]) -> None:
    rows = {row["name"]: row for row in recording["rows"]}
    first, second = rows["users-1"], rows["load-0.8"]
    assert second["throughput"] < 0.9 * first["throughput"]
    # by the unfavourable end of either interval
    assert second["from_schedule"]["mean"][1] > 3 * first["from_schedule"]["mean"][2]
    low, high = second["from_schedule"]["mean"][1:]
    assert (high - low) / 2 < 0.25 * second["from_schedule"]["mean"][0]


def test_closed_runs_keep_their_law_and_sends_see_no_load(recording: dict[str, Any]) -> None:
    for row in recording["rows"]:
        if row["users"]:
            assert row["from_schedule"]["mean"][0] == pytest.approx(row["users"] / row["throughput"], rel=0.02)
        else:
            assert row["from_send"]["mean"][0] == pytest.approx(row["mean_service"], rel=0.05)


def test_open_runs_are_those_of_a_server_with_a_turnaround(recording: dict[str, Any]) -> None:
    first = recording["rows"][0]
    turnaround = 1 / first["throughput"] - first["mean_service"]
    assert 0 < turnaround < 0.1 * first["mean_service"]
    held = 0
    rows = [row for row in recording["rows"] if row["users"] is None]
    for row in rows:
        queue = mg1(row["throughput"], mean_service=row["mean_service"] + turnaround, scv=row["scv"])
        formula = queue.mean_wait + row["mean_service"]
        mean, low, high = row["from_schedule"]["mean"]
        held += low <= formula <= high or abs(mean / formula - 1) < 0.05
    assert held >= len(rows) - 2


# ---- the drawing -------------------------------------------------------------------------------------------------


def test_the_two_loops_are_told_in_words_too() -> None:
    alt = figures.open_and_closed().alt
    assert "Open" in alt and "Closed" in alt and "only then can send again" in alt
