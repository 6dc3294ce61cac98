"""Lab 14: what a wrong answer is told, what the tasks start from, the inputs that checks draw, and its leaderboard.

What solutions, hand-outs and wrong answers earn is `underload course verify`'s to say, from tests/course.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lab_source import LABS, assert_library_is_there, assert_points, benchmark, told

from underload import metrics
from underload.course import handout, write_notebook
from underload.course.leaderboard import contest, leaderboard
from underload.course.outline import name_of
from underload.course.sandbox import Limits
from underload.labs import capacity as lab
from underload.metrics import Slo, mean_interval
from underload.request import VirtualClock
from underload.simulation import JoinShortestQueue, LinearStepTime
from underload.simulation.modelled import CostModelExecutor
from underload.workload import PromptIds

SOURCE = LABS / "capacity.ipynb"


def draw(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def cell(source: Any, name: str) -> str:
    return next(str(one.source) for one in source.cells if one.id == name)


# ------------------------------------------------------------------ the notebook


def test_points_and_tasks(source: Any) -> None:
    assert_points(source, 23, 3, 90)


def test_what_an_answer_may_not_use_is_there(source: Any) -> None:
    assert_library_is_there(source)


def test_the_six_requests_by_hand(solved: dict[str, Any]) -> None:
    for goodput in (solved["goodput"], lab.goodput):
        assert goodput(lab.six(), 0.5, 0.1, 0.0, 5.0) == pytest.approx((0.4, 0.5))
        assert goodput([], 0.5, 0.1, 0.0, 1.0) == (0.0, None)


def test_goodput_is_the_library_s(solved: dict[str, Any]) -> None:
    for seed in range(3):
        timelines = lab.drawn_timelines(draw(seed))
        slo = Slo(ttft=0.4, tpot=0.1)
        rate, share = solved["goodput"](timelines, 0.4, 0.1, 5.0, 15.0)
        assert rate == pytest.approx(metrics.goodput(timelines, slo, (5.0, 15.0)))
        assert share == pytest.approx(metrics.attainment([one for one in timelines if 5 <= one.arrival < 15], slo))
        assert [lab.kept(one, lab.Promise(0.4, 0.1)) for one in timelines] == [slo.met(one) for one in timelines]


def test_three_runs_by_hand(solved: dict[str, Any]) -> None:
    edges = (30, 20, 30)
    for capacity in (solved["capacity"], lab.capacity):
        mean, low, high = capacity(lambda load, run: float(load <= edges[run]), [10, 20, 30, 40], 0.95, 3)
        assert (round(mean, 2), round(mean - low, 2), round(high - mean, 2)) == (26.67, 14.34, 14.34)


def test_the_interval_is_the_library_s() -> None:
    for count in range(2, 11):
        values = draw(count).normal(20, 3, count).tolist()
        found = mean_interval(values)
        assert lab.interval(values) == pytest.approx((found.mean, found.low, found.high), abs=0.01)


def test_two_requests_and_four_steps_by_hand(solved: dict[str, Any]) -> None:
    for binds in (solved["binds"], lab.binds):
        assert binds(*lab.by_hand(), lab.LIMITS) == "budget"


def test_four_options_by_hand(solved: dict[str, Any]) -> None:
    windows = {"D": [0.99] * 3, "B": [0.93, 0.94, 0.92], "C": [0.98, 0.97, 0.99], "A": [0.95, 0.7, 0.95]}
    for cheapest in (solved["cheapest"], lab.cheapest):
        looked: list[str] = []
        shares = lambda option: looked.append(option) or windows[option]  # type: ignore[func-returns-value] # noqa: B023, E731
        assert cheapest(list(windows), {"A": 1, "B": 2, "C": 2, "D": 3}.get, shares, 0.9) == "C"
        assert sorted(looked) == ["A", "B", "C"]


# ------------------------------------------------------------------ the service


def test_another_rate_brings_the_same_requests_closer_together() -> None:
    slow, quick = lab.load(5.0, 50, 3), lab.load(20.0, 50, 3)
    assert [(one.prompt_tokens, one.output_tokens) for one in slow] == [
        (one.prompt_tokens, one.output_tokens) for one in quick
    ]
    assert [one.arrival for one in slow] == pytest.approx([4 * one.arrival for one in quick])
    short = lab.short_load(5.0, 50, 3)
    assert [one.arrival for one in short] == [one.arrival for one in slow] and {
        one.arrival for one in lab.at_once(short)
    } == {0.0}


def test_a_burst_is_as_long_and_as_high_as_the_text_says() -> None:
    arrivals = np.array([one.arrival for seed in range(40) for one in lab.burst(seed)])
    within = ((arrivals >= 4) & (arrivals < 8)).sum() / (40 * 4)
    outside = ((arrivals < 4) | (arrivals >= 8)).sum() / (40 * 10)
    assert within / outside == pytest.approx(4, rel=0.1) and arrivals.max() < 14


@pytest.mark.parametrize("name", sorted(lab.BOUND))
def test_every_service_lacks_what_it_is_named_after(name: str) -> None:
    """Whatever is drawn: else a hidden check would look at something other than it says."""
    for seed in range(6):
        run, limits = lab.bound_run(name, draw(seed))
        assert lab.binds(run.timelines, run.replicas[0].steps, limits) == name


def test_more_of_what_a_service_lacks_helps_and_of_anything_else_does_not(said: dict[str, str]) -> None:
    rows = [line for line in said["task-3-table"].splitlines() if "%" in line]
    found = [re.findall(r"(\d+)%", row) for row in rows]
    assert len(found) == 5 and found[-1] == ["100"]
    for before, after in found[:-1]:
        assert int(after) > int(before) + 3


@pytest.mark.parametrize("door", [None, lab.Shed])
def test_the_front_door_of_an_engine_is_the_cluster_s(door: Any) -> None:
    """On a virtual clock, with the simulator's own steps: the same answers at the same instants."""
    requests = lab.short_load(60.0 if door is None else 200.0, 120, 4)
    step_time = LinearStepTime(0.003, 0.0001)
    plan = lab.Plan(1, 8, 64)
    executor = CostModelExecutor(step_time, output_tokens={str(one.index): one.output_tokens for one in requests})
    answered = lab.answer(
        executor,
        requests,
        slots=8,
        chunk=64,
        blocks=512,
        ids=PromptIds(range(5, 1000), 0),
        door=door and door(),
        clock=VirtualClock(),
    ).timelines
    simulated = lab.serve(requests, plan, blocks=512, step_time=step_time, door=door and door()).timelines
    refused = [[one.finish_reason == "refused" for one in run] for run in (answered, simulated)]
    if door is None:
        assert not any(refused[0])
        for one, other in zip(answered, simulated):
            assert one.token_times == pytest.approx(other.token_times)
    else:  # the engine asks between two steps and the cluster within one, so now and then they see another queue
        assert 10 < sum(refused[0]) < 100 and abs(sum(refused[0]) - sum(refused[1])) <= 0.1 * len(requests)


def test_whoever_plans_by_the_lower_end_gets_the_point(
    solved: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the number in SEED, and whatever comes afterwards: in number 27's second half far more does."""
    for seed in (0, 27, 20_261_201):
        before, _ = lab.your_trace(seed)
        windows = lambda plan: lab.windows(before, plan)  # noqa: B023, E731
        plan = solved["cheapest"](lab.OPTIONS, lambda plan: plan.replicas, windows, lab.PROMISE.share)
        lab.check_my_plan(plan, seed)
        said = capsys.readouterr().out
        assert re.search(r"replicas, \d+ slots, a budget of \d+: afterwards [\d.]+% kept the promise", said)
        assert seed != 27 or "afterwards 73.7%" in said


# ------------------------------------------------------------------ inputs that are drawn


@pytest.mark.parametrize("seed", range(3))
def test_every_check_lets_the_right_answer_pass(solved: dict[str, Any], seed: int) -> None:
    rng = draw(seed)
    for one in lab.drawn_timelines(rng):
        lab.check_meets(solved["meets"], one, 0.4, 0.1)
    lab.check_goodput(solved["goodput"], lab.drawn_timelines(rng), 0.4, 0.1, 3.0, 11.0)
    loads = sorted({float(load) for load in rng.uniform(1, 200, 40).round(1)})
    lab.check_largest(solved["largest"], loads, float(rng.choice(loads)))
    lab.check_capacity(solved["capacity"], *lab.drawn_service(rng, 6), 0.95, 6)
    for hopeless in (False, True):
        shares, target = lab.drawn_options(rng, hopeless=hopeless)
        lab.check_cheapest(solved["cheapest"], shares, lambda plan: plan.replicas, target)
    for name in ("slots", "blocks"):
        run, limits = lab.bound_run(name, rng)
        lab.check_binds(solved["binds"], run.timelines, run.replicas[0].steps, limits, name)
    lab.check_quiet(solved["Door"], rng)
    lab.check_burst(solved["Door"], lab.burst(rng, float(rng.uniform(3, 5))))
    lab.check_reopens(solved["Door"], lab.burst(rng, 4.0))
    two = lab.DOOR_PLAN._replace(replicas=2)
    lab.check_burst(solved["Door"], lab.burst(rng, 3.0, replicas=2), two)
    for rate, slow in ((48.0, 3.0), (40.0, 3.0), (44.0, 5.0)):
        lab.check_router(solved["Route"], rng, rate, slow)
    lab.check_room(solved["Route"], rng)


# ------------------------------------------------------------------ what a wrong answer is told


def test_what_a_goodput_is_told() -> None:
    six = (lab.six(), 0.5, 0.1, 0.0, 5.0)
    assert "True or False, got None" in told(lab.check_meets, lambda *_: None, lab.six()[0], 0.5, 0.1)
    assert "which is no answer" in told(lab.check_meets, lambda *_: True, lab.six()[2], 0.5, 0.1)
    assert "no time per token" in told(lab.check_meets, lambda *_: False, lab.six()[3], 0.5, 0.1)
    lab.check_meets(lambda *_: np.bool_(True), lab.six()[0], 0.5, 0.1)
    assert "divide it by the window's seconds" in told(lab.check_goodput, lambda *_: (2, 0.5), *six)
    assert "counts last tokens" in told(lab.check_goodput, lambda *_: (3 / 5, 0.5), *six)
    assert "who was refused or failed came, too" in told(lab.check_goodput, lambda *_: (0.4, 3 / 5), *six)
    assert "two things: a rate and a share, got 0.4" in told(lab.check_goodput, lambda *_: 0.4, *six)
    assert "the rate must be a number, got None" in told(lab.check_goodput, lambda *_: (None, 0.5), *six)
    assert "the share must be a number, got None" in told(lab.check_goodput, lambda *_: (0.4, None), *six)
    assert "the next window's" in told(lab.check_goodput, lambda *_: (1.0, 0.5), lab.six(), 0.5, 0.1, 0.4, 2.4)
    assert "who came at the end" in told(lab.check_goodput, lambda *_: (1.0, 0.5), lab.six(), 0.5, 0.1, 2.0, 3.0)
    assert "nobody came, so there is no share" in told(
        lab.check_goodput, lambda *_: (1, 0.0), lab.six(), 0.5, 0.1, 5.0, 6.0
    )
    lab.check_goodput(lambda *_: np.array([0.4, 0.5]), *six)


LOADS = [10, 20, 30, 40]


def endless(holds: Callable[[float], bool], loads: Sequence[float]) -> float:
    low, high = 0, len(loads) - 1
    while low < high:
        middle = (low + high) // 2
        if holds(loads[middle]):
            low = middle  # the slip of nearly everybody who writes this for the first time
        else:
            high = middle - 1
    return loads[low]


def test_what_a_search_is_told() -> None:
    said = told(lab.check_largest, endless, LOADS, 30)
    assert "asked 1000 times and goes on" in said and "get smaller with every question" in said
    assert "the first that does not hold" in told(lab.check_largest, lambda *_: 40, LOADS, 30)
    assert "return the load" in told(lab.check_largest, lambda *_: 2, LOADS, 30)
    assert "None, though 30 holds" in told(lab.check_largest, lambda *_: None, LOADS, 30)
    assert "not even the first holds, and that is None" in told(lab.check_largest, lambda *_: 10, LOADS, 5)
    assert "must be a number, got [30]" not in told(lab.check_largest, lambda *_: "30", LOADS, 30)
    for place in (2.5, None, [10], "10", np.array([10, 20])):
        assert "ask for one of the loads" in told(lab.check_largest, lambda holds, _: holds(place), LOADS, 30)  # noqa: B023
    one_by_one = lambda holds, loads: [load for load in loads if holds(load)][-1]  # noqa: E731
    assert "it looked 4 times" in told(lab.check_largest, one_by_one, LOADS, 30)


def test_what_a_capacity_is_told() -> None:
    edges = (30, 20, 30)
    attained = lambda load, run: 1.0 if load <= edges[run] else 0.5  # noqa: E731
    asks = (attained, LOADS, 0.95, 3)
    mean, half = 80 / 3, 14.342
    right = lab.capacity(*asks)
    half = right[2] - right[0]
    for answer, words in (
        ((20.0, 10, 30), "one crossing for all"),
        ((30.0, 10, 30), "the largest of the runs' loads"),
        ((mean, mean - half * 3**0.5, mean + half * 3**0.5), "divide by the root of their number"),
        ((mean, mean - half * (2 / 3) ** 0.5, mean), "take ddof=1"),
        ((mean, mean - half / 4.303, mean), "one standard error"),
        ((mean, mean - 1.96 * half / 4.303, mean), "1.96"),
        ((mean, mean - half, mean), "the high end"),
        (mean, "three numbers: mean, low and high, got"),
        ((mean, (1, 2)), "three numbers: mean, low and high, got"),
        (None, "got None"),
    ):
        assert words in told(lab.check_capacity, lambda *_: answer, *asks), words  # noqa: B023
    just = lambda load, run: 0.95 if load <= edges[run] else 0.5  # noqa: E731
    assert "just the target is carried" in told(lab.check_capacity, lambda *_: (0, 0, 0), just, *asks[1:])
    assert "runs are numbered from 0 to 2" in told(lab.check_capacity, lambda ask, *_: ask(10, 3), *asks)
    assert "and then for the number of a run" in told(lab.check_capacity, lambda ask, *_: ask(0, 10), *asks)

    def forever(ask: Callable[..., float], loads: Sequence[float], target: float, runs: int) -> Any:
        return [endless(lambda load: ask(load, run) >= target, loads) for run in range(runs)]  # noqa: B023

    assert "does every search come to an end" in told(lab.check_capacity, forever, *asks)
    lab.check_capacity(lambda *_: np.array(right), *asks)


def test_what_a_word_is_told() -> None:
    asks = (*lab.by_hand(), lab.LIMITS, "by hand")
    said = told(lab.check_binds, lambda *_: "slots", *asks)
    assert "'slots', and it is 'budget': 1 of 2 requests broke the promise, 0 of them answers with too long" in said
    assert "waited in 3 of 4 steps, with all slots taken in 1 of these, the budget spent in 2 more" in said
    assert "returned nothing" in told(lab.check_binds, lambda *_: None, *asks)
    for value in ("Budget", ["budget"], 3, {"budget": 2}, np.array(["a", "b"])):
        assert "one of the words 'nothing', 'tpot'" in told(lab.check_binds, lambda *_: value, *asks)  # noqa: B023


def test_what_a_plan_is_told() -> None:
    shares = {"B": [0.93, 0.94, 0.92], "C": [0.98, 0.97, 0.99], "A": [0.95, 0.7, 0.95], "D": [0.99] * 3}
    asks = (shares, {"A": 1, "B": 2, "C": 2, "D": 3}.__getitem__, 0.9)
    assert "'A' costs 1, with a mean of 0.8667 and a lower end of" in told(lab.check_cheapest, lambda *_: "A", *asks)
    assert "None, though 'C' costs 2" in told(lab.check_cheapest, lambda *_: None, *asks)
    for value in (["C", 0.98], 2, 0.98, ("C", 2), {}):
        assert "return the option itself" in told(lab.check_cheapest, lambda *_: value, *asks)  # noqa: B023
        assert "none of the options" in told(lab.check_cheapest, lambda o, p, look, t: look(value), *asks)  # noqa: B023

    def all_of_them(options: Any, price: Any, look: Any, target: float) -> Any:
        return [look(one) for one in options] and "C"

    assert "'D' for 3 was tried, though 'C' holds for 2" in told(lab.check_cheapest, all_of_them, *asks)
    twice = lambda options, price, look, target: (look("C"), look("C"), "C")[-1]  # noqa: E731
    assert "'C' was looked at 2 times" in told(lab.check_cheapest, twice, *asks)


def test_what_my_plan_is_told() -> None:
    with pytest.raises(NotImplementedError, match="still None"):
        lab.check_my_plan(None, 0)
    for value in ((3, 64), (3, 63, 128), "3, 64, 128", (0, 0, 0)):
        assert "my_plan is" in told(lab.check_my_plan, value, 0)
    assert "three numbers" in told(lab.check_my_plan, 3, 0)
    assert "it is the lower end that has to be 95%" in told(lab.check_my_plan, (1, 64, 128), 0)
    assert "the lower end holds, and so does that of 4 replicas" in told(lab.check_my_plan, (5, 64, 128), 0)


def door(says: Callable[[Any, Any], Any]) -> Any:
    return lambda: SimpleNamespace(admit=says)


def test_what_a_door_is_told() -> None:
    burst = lab.burst(2)
    said = told(lab.check_burst, lab.Open, burst)
    assert "0 were turned away" in said and "wait behind all who were let in before" in said
    assert "requests are still turned away" in told(lab.check_reopens, door(lambda *_: False), burst)
    assert "9 requests a second, which the service carries" in told(lab.check_quiet, door(lambda *_: False), draw())
    for value in (None, 3, "yes", lambda: True):
        assert "admit() says True or False, got" in told(lab.check_quiet, door(lambda *_: value), draw())  # noqa: B023
    lab.check_quiet(door(lambda *_: np.bool_(True)), draw())


def test_what_a_router_is_told() -> None:
    for value in (None, 0, "first"):
        router = lambda: SimpleNamespace(choose=lambda *_: value)  # noqa: B023, E731
        assert "choose() returns one of the replicas, got" in told(lab.check_router, router, draw(), 48.0, 3.0)
    first = lambda: SimpleNamespace(choose=lambda call, replicas, rng: replicas[0])  # noqa: E731
    assert "the slow one was sent 100% of all" in told(lab.check_router, first, draw(), 48.0, 3.0)
    said = told(lab.check_room, JoinShortestQueue, draw())
    assert "on the other three alone" in said and re.search(r"index [123] slower by 3", said)


# ------------------------------------------------------------------ what cells that show things fall back on


def test_a_function_that_cannot_be_shown_is_replaced_once(capsys: pytest.CaptureFixture[str]) -> None:
    def goodput(*_: Any) -> float:
        return 0.4

    count = lab.usable_goodput(goodput)
    six = (lab.six(), 0.5, 0.1, 0.0, 5.0)
    assert count(*six) == count(*six) == lab.goodput(*six)
    said = capsys.readouterr().out
    assert said.count("the library's was taken") == 1 and "two things: a rate and a share, got 0.4" in said

    def binds(*_: Any) -> str:
        raise NotImplementedError

    assert lab.usable_binds(binds)(*lab.by_hand(), lab.LIMITS) == "budget"
    assert "binds() is not written yet: the library's was taken" in capsys.readouterr().out
    assert lab.usable_binds(lambda *_: 1 / 0)(*lab.by_hand(), lab.LIMITS) == "budget"
    assert "raised ZeroDivisionError" in capsys.readouterr().out


def test_a_search_without_an_end_is_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    def capacity(ask: Any, loads: Any, target: float, runs: int) -> Any:
        return endless(lambda load: ask(load, 0) >= target, loads)

    asks = (lambda load, run: float(load <= 30), LOADS, 0.95, 3)
    assert lab.usable_capacity(capacity)(*asks) == (30, 30, 30)
    assert "asked 15 times and went on: the library's was taken" in capsys.readouterr().out
    assert lab.usable_capacity(lambda *_: [1, 2, 3])(*asks) == (1, 2, 3)
    assert capsys.readouterr().out == ""


def test_a_class_that_cannot_be_shown_is_replaced(capsys: pytest.CaptureFixture[str], solved: dict[str, Any]) -> None:
    assert lab.usable_door(solved["Door"]) is solved["Door"] and lab.usable_route(solved["Route"]) is solved["Route"]
    assert capsys.readouterr().out == ""

    class Door:
        def admit(self, asked: Any, replicas: Any) -> Any:
            return True if replicas[0].waiting < 5 else None  # says nothing where it should say no

    assert lab.usable_door(Door) is lab.Shed
    assert "admit() says True or False, got None: the library's was taken" in capsys.readouterr().out

    class Route:
        def choose(self, call: Any, replicas: Any, rng: Any) -> Any:
            raise NotImplementedError

    assert lab.usable_route(Route) is JoinShortestQueue
    assert "Route is not written yet: the library's was taken" in capsys.readouterr().out


def test_only_cells_that_show_things_take_the_library_s(source: Any) -> None:
    for one in source.cells:
        if "lab.usable_" in one.source:
            assert "show" in one.metadata.tags


# ------------------------------------------------------------------ the stored run, the benchmark


def test_the_stored_run_shows_what_the_text_says(said: dict[str, str]) -> None:
    rows = re.findall(r"^ *(\d+) +([\d.]+) +([\d.]+)$", said["task-1-picture"], flags=re.MULTILINE)
    answered, good = ([float(row[place]) for row in rows] for place in (1, 2))
    assert len(rows) == 8 and min(answered[4:]) > 0.85 * max(answered) and good[-1] < 0.1 * max(good)
    carried = float(re.findall(r"carries ([\d.]+) requests", said["task-2-answer"])[0])
    assert carried == pytest.approx(lab.book()["numbers"]["capacity of a replica (1/s)"], abs=0.05)
    lower = re.findall(r"(\d) +(\d+) +[\d.]+% +(-?[\d.]+)% +([\d.]+)%", said["task-4-picture"])
    assert len(lower) == 8
    for _, _, low, afterwards in lower:  # what held by the lower end held afterwards, and nothing else did
        assert (float(low) >= 95) == (float(afterwards) >= 95)
    shares = [float(share) for share in re.findall(r"([\d.]+)%", said["task-5-picture"])]
    assert shares[1] > 2.5 * shares[0]
    table = {line[:14].strip(): re.findall(r"([\d.]+)%", line) for line in said["task-6-table"].splitlines()}
    for column in range(3):
        mine, turn, chance = (float(table[name][column]) for name in ("yours", "in turn", "at random"))
        assert mine > turn + 5 and mine > chance + 5


def test_the_engine_breaks_its_promise_where_the_simulator_says(said: dict[str, str]) -> None:
    rows = {
        line[:21].strip(): [float(share) for share in re.findall(r"([\d.]+)%", line)]
        for line in said["task-5-measured"].splitlines()[1:]
    }
    for kind in ("simulated", "measured"):
        plain, behind = rows[f"{kind}, no door"], rows[f"{kind}, your door"]
        assert plain[0] > 90 > 20 > plain[2] and behind[2] > plain[2] + 20


def test_the_open_answer_has_the_numbers_of_the_run(source: Any, said: dict[str, str]) -> None:
    text = cell(source, "task-5-open")
    plain, behind = re.findall(r"([\d.]+)%", said["task-5-picture"])
    assert f"{float(plain):.0f} % are served as promised without a door, and {float(behind):.0f} % behind" in text
    frugal = lab.share_kept(lab.serve(lab.burst(2), lab.DOOR_PLAN, door=lab.Frugal()).timelines)
    assert f"serves {100 * frugal:.0f} %" in text
    rows = said["task-5-measured"].splitlines()[1:]
    shares = {line[:21].strip(): re.findall(r"([\d.]+)%", line) for line in rows}
    simulated, measured = (shares[f"{kind}, no door"] for kind in ("simulated", "measured"))
    assert f"still serves {float(measured[0]):.0f} % at seven tenths" in text
    assert f"{float(simulated[1]):.0f} % by the simulator and {float(measured[1]):.0f} % by the engine" in text


def test_the_recorded_run_is_the_lab_s(source: Any) -> None:
    book, end = lab.book(), cell(source, "end")
    assert set(book["numbers"]) == set(re.findall(r'^    "([^"]+)":', end, flags=re.MULTILINE))
    assert "capacity_lab.py" in book["command"] and book["machine"]["cpu"] and book["date"]
    script = benchmark("capacity_lab", source)
    assert script.PRINTED in end and f"64, 512, {script.REQUESTS}" in cell(source, "task-5-decoder")
    assert {len(shares) for shares in book["simulated and measured"].values()} == {
        len(re.findall(r"[\d.]+", re.findall(r"around = \[(.*)\]", cell(source, "task-5-measured"))[0]))
    }
    numbers = book["numbers"]
    assert numbers["burst served, your door (%)"] > 2.5 * numbers["burst served, no door (%)"]
    assert numbers["pocket at 0.7 of it, measured (%)"] > 90 > 20 > numbers["pocket at 1.5 of it, measured (%)"]


def test_pictures_carry_their_numbers() -> None:
    runs = {
        "none": lab.serve(lab.burst(2), lab.DOOR_PLAN).timelines,
        "mine": lab.serve(lab.burst(2), lab.DOOR_PLAN, door=lab.Shed()).timelines,
    }
    picture = lab.draw_burst(runs, name="burst")
    assert picture.data is not None
    counted = sum(sum(picture.data[what]) for what in ("kept", "late", "turned away"))
    assert counted == sum(map(len, runs.values()))
    for words, timelines in runs.items():
        assert f"{words}: {lab.share_kept(timelines):.0%} kept the promise" in picture.alt
    rates = lab.draw_rates([8, 16], [8.0, 15.0], [8.0, 4.0], name="rates")
    assert rates.data is not None and list(rates.data["as promised (1/s)"]) == [8.0, 4.0]
    shares = {"simulated, no door": [1.0, 0.2], "measured, no door": [0.9, 0.1]}
    drawn = lab.draw_shares([10.0, 20.0], shares, name="shares", capacity=(15.0, 14.0, 16.0))
    assert drawn.data is not None and "measured, no door, 90%, 10%" in drawn.alt


# ------------------------------------------------------------------ the leaderboard


def test_a_score_is_a_share_of_one_burst_and_nothing_else() -> None:
    for seed in (1, 2):
        scores = [lab.score_door(made, seed) for made in (lab.Open, lab.Shed, lab.Frugal)]
        assert 0 < scores[0] < scores[1] < scores[2] < 100
        assert lab.score_door(lab.Shed, seed) == scores[1]
    assert lab.score_door(door(lambda *_: False), 1) == 0


DOORS = {
    "patient": "    def admit(self, asked, replicas):\n        return min(one.waiting for one in replicas) < 6",
    "crashes": "    def admit(self, asked, replicas):\n        return 1 / (asked.now - asked.now) > 0",
    "hangs": "    def admit(self, asked, replicas):\n        while True:\n            pass",
    # Whoever has no secret takes the book's seeds, from which anybody can work out every request.
    "knows-the-book": """    def __init__(self):
        import hashlib
        from underload.labs.capacity import service
        draw = np.random.default_rng(list(hashlib.sha256(b"hidden inputs").digest()))
        draw = np.random.default_rng(int(draw.integers(1, 2**31)))
        self.known = {round(one.arrival, 9) for one in service.burst(draw, float(draw.uniform(3, 5)))}
    def admit(self, asked, replicas):
        assert round(asked.now, 9) in self.known, "another burst"
        return True""",
    # What a door draws for itself while it is tried is not what it is tried with.
    "rebuilds-the-burst": """    def __init__(self):
        import underload.course.points as points
        from underload.labs.capacity import service
        draw = np.random.default_rng(int(points.Points(1).draw().integers(1, 2**31)))
        requests = service.planned(sorted(draw.uniform(0, 14, 200).tolist()), draw)
        self.known = {round(one.arrival, 9) for one in requests}
    def admit(self, asked, replicas):
        assert round(asked.now, 9) in self.known, "another burst"
        return True""",
    "reads-the-seed": """    def __init__(self):
        import underload.course.points as points
        self.seed = points.hidden_seed
    def admit(self, asked, replicas):
        return True""",
    # The burst that belongs to a seed is nobody's to make.
    "makes-the-burst": """    def __init__(self):
        import underload.course.points as points
        draw = np.random.default_rng(int(points.Points(1).draw().integers(1, 2**31)))
        self.known = lab.burst(draw, float(draw.uniform(3, 5)))
    def admit(self, asked, replicas):
        return True""",
    "puts-another-score": """    def __init__(self):
        import underload.labs.capacity.score as score
        score.share_kept = lambda timelines: 1.0
    def admit(self, asked, replicas):
        return True""",
    "prints-a-score": """    def admit(self, asked, replicas):
        print(100.0)
        return True""",
    "takes-the-library": "    def admit(self, asked, replicas):\n        return lab.Shed().admit(asked, replicas)",
    "says-nan": """    def admit(self, asked, replicas):
        return float('nan')""",
}


@pytest.mark.slow
def test_the_leaderboard_holds_whatever_a_class_hands_in(source: Any, tmp_path: Path) -> None:
    for name, code in DOORS.items():
        made = handout(source)
        for one in made.cells:
            if name_of(one) == "task-5-solution":
                one.source = f"class Door:\n{code}\n"
        write_notebook(made, tmp_path / name / "capacity.ipynb")
    board = leaderboard(
        source, tmp_path, lab="capacity", secret=b"a class", seeds=5, limits=Limits(check_seconds=2.0), workers=2
    )
    placed = {one.entry.name: one for one in board.standings}
    assert {name for name, one in placed.items() if not one.entry.own} == {"patient", "prints-a-score"}
    assert placed["prints-a-score"].entry.scores == placed["(always open)"].entry.scores
    assert placed["(by the length of the prompt)"].place == 1 < placed["patient"].place
    said = {entry.name: entry.said for entry in board.unplaced}
    for name, words in (
        ("crashes", "ZeroDivisionError"),
        ("hangs", "did not end within 2 s"),
        ("knows-the-book", "burst"),
        ("puts-another-score", "score.share_kept"),
        ("takes-the-library", "Shed"),
        ("makes-the-burst", "burst"),
        ("rebuilds-the-burst", "burst"),
        ("reads-the-seed", "names hidden_seed"),
        ("says-nan", "admit() says True or False, got nan"),
    ):
        assert words in said[name], said[name]
    assert contest(source).beside and len(said) == 9
