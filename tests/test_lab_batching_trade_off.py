"""Lab 5: what a wrong answer is told, what the tasks start from, and the inputs that checks draw.

What solutions, hand-outs and wrong answers earn is `underload course verify`'s to say, from tests/course.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from lab_source import LABS, assert_library_is_there, assert_points, benchmark, printed, told

from underload.labs import batching_trade_off as lab
from underload.queueing import bulk_service
from underload.scheduling import Batching, Greedy, SizeOrTimeout, Static

SOURCE = LABS / "batching-trade-off.ipynb"


def draw(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# ------------------------------------------------------------------ the notebook


def test_points_and_tasks(source: Any) -> None:
    assert_points(source, 20, 3, 85)


def test_what_an_answer_may_not_use_is_there(source: Any) -> None:
    assert_library_is_there(source)


def test_the_book_s_numbers_come_from_the_lab_s_own_cells(source: Any) -> None:
    script = benchmark("batching_trade_off_lab", source)
    end = next(cell.source for cell in source.cells if cell.id == "end")
    assert "lab.book()" in end and script.COUNTED.format(script.REQUESTS) in "".join(
        cell.source for cell in source.cells
    )
    book = lab.book()
    assert book["requests"] == script.REQUESTS and len(book["seconds"]) == 6 and min(book["seconds"].values()) > 0
    for name, (least, most) in book["range"].items():
        assert least <= book["seconds"][name] <= most


# ------------------------------------------------------------------ the texts' numbers


def test_the_knee_by_hand(solved: dict[str, Any]) -> None:
    for knee in (solved["knee"], lab.knee):
        assert [knee(0.020, 0.001, share) for share in (0.5, 0.8, 0.81)] == [20, 80, 86]
        assert knee(0.001, 0.010, 0.5) == 1
    assert round(0.81 / 0.19 * 20, 2) == 85.26
    for fit in (solved["fit_line"], lab.fit_line):
        o, t = fit([1, 4, 16], [0.021, 0.024, 0.036])
        assert o == pytest.approx(0.020) and t == pytest.approx(0.001)


def test_full_batches_by_hand(solved: dict[str, Any]) -> None:
    for full in (solved["full_batches"], lab.full_batches):
        assert full([0, 3, 4, 5, 20], 2, 2, 1) == [7, 7, 11, 11, 23]


def test_patience_by_hand(solved: dict[str, Any]) -> None:
    for rule in (solved["Patient"], lab.Patient):
        left = lab.departures_of(lab.play(rule(2, 0.050), [0.0, 0.001, 0.002, 0.100, 0.200, 0.201]))
        assert [1e3 * one for one in left] == pytest.approx([23, 23, 73, 171, 223, 223])


def test_batches_settle_by_hand(solved: dict[str, Any]) -> None:
    for settles in (solved["settles"], lab.settles):
        assert settles(200, 0.020, 0.001) == pytest.approx(5)
        assert settles(10, 0.020, 0.001) == 1 and settles(1000, 0.020, 0.001) == math.inf


def test_eager_batches_by_hand(solved: dict[str, Any]) -> None:
    for greedy in (solved["greedy_batches"], lab.greedy_batches):
        assert greedy([0, 0.5, 0.6, 0.7, 9], 2, 0, 1) == [1, 3, 3, 4, 10]


def test_what_the_text_of_task_6_says_of_the_long_run() -> None:
    assert bulk_service(0.9, batch_size=512, overhead=0, per_item=1).mean_sojourn == pytest.approx(7.6, abs=0.05)
    assert bulk_service(0.9, batch_size=1, overhead=0, per_item=1).mean_sojourn == pytest.approx(5.5)
    load = lab.poisson(0.9, 10_000, seed=4)
    for cap, formula in ((10_000, 7.6), (1, 5.5)):
        assert lab.means(load, lab.greedy_batches(load, cap, 0, 1)) == pytest.approx(formula, rel=0.1)


# ------------------------------------------------------------------ paper and scheduler


@pytest.mark.parametrize("rate", [40.0, 300.0, 600.0])
def test_on_paper_and_in_the_scheduler_answers_leave_at_the_same_instants(rate: float) -> None:
    arrivals = lab.drawn_arrivals(draw(3), rate, 200)
    costs = (lab.OVERHEAD, lab.PER_REQUEST)
    for policy, paper in (
        (Static(8), lab.full_batches(arrivals, 8, *costs)),
        (SizeOrTimeout(8, 0.02), lab.timed_batches(arrivals, 8, 0.02, *costs)),
        (Greedy(8), lab.greedy_batches(arrivals, 8, *costs)),
        (lab.Patient(8, 0.02), lab.timed_batches(arrivals, 8, 0.02, *costs)),
        (lab.Eager(8), lab.greedy_batches(arrivals, 8, *costs)),
    ):
        assert lab.departures_of(lab.play(policy, arrivals)) == pytest.approx(paper)


@pytest.mark.parametrize("seed", range(12))
def test_the_eager_rule_beats_both_on_every_load_that_may_be_drawn(seed: int) -> None:
    for rate in (60, 100, 200, 350):
        lab.check_beats(lab.Eager, draw(seed), rate)
    lab.check_all_served(lab.Eager, draw(seed))


@pytest.mark.parametrize("seed", range(20))
def test_every_student_s_server_can_keep_its_promise_and_not_with_every_timeout(seed: int) -> None:
    timeout = lab.your_timeout(seed)
    assert timeout is not None and lab.TIMEOUTS[0] < timeout < lab.TIMEOUTS[-1]
    lab.check_my_timeout(timeout, seed)


def test_a_rule_that_is_not_written_is_replaced(capsys: pytest.CaptureFixture[str], solved: dict[str, Any]) -> None:
    from underload.scheduling import Batching

    class Unwritten(Batching):
        def __init__(self, *_: float) -> None:
            pass

    assert lab.usable(Unwritten, lab.Patient, 2, 0.01) is lab.Patient
    assert "not written yet" in capsys.readouterr().out
    assert lab.usable(solved["Patient"], lab.Patient, 2, 0.01) is solved["Patient"]
    assert lab.usable(solved["Mine"], lab.Eager, 2) is solved["Mine"]
    assert capsys.readouterr().out == ""


def test_a_rule_that_lets_nobody_go_on_is_replaced_before_the_decoder_meets_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert lab.usable(OnlyTheQueue, lab.Eager, 2) is lab.Eager
    said = capsys.readouterr().out
    assert f"OnlyTheQueue, on answers of {lab.TOKENS} tokens" in said and "the library's was taken" in said
    lab.check_all_served(OnlyTheQueue, draw(1))
    assert "must be let run on" in told(lab.check_all_served, OnlyTheQueue, draw(1), tokens=lab.TOKENS)


def test_a_rule_that_raises_is_replaced_and_its_line_named(capsys: pytest.CaptureFixture[str]) -> None:
    code = """class Slip(Batching):
    def __init__(self, size):
        self.size = size

    def fill(self, step):
        return list(step.waiting)[0].timeline

"""
    names = {"Batching": Batching, "lab": lab}
    exec(compile(code, "<cell 4>", "exec"), names)
    exec(compile("found = lab.usable(Slip, lab.Eager, 2)", "<cell 5>", "exec"), names)
    assert names["found"] is lab.Eager
    assert "no attribute 'timeline' (in fill(), line 6 of its cell): the library's" in capsys.readouterr().out


class OnlyTheQueue(Batching):
    """Serves whoever waits, and nobody who runs."""

    def __init__(self, size: int) -> None:
        self.size = size

    def fill(self, step: Any) -> None:
        for one in list(step.waiting)[: self.size]:
            step.admit(one, step.budget)


# ------------------------------------------------------------------ what a wrong answer is told


def test_what_is_said_of_a_line_and_a_knee() -> None:
    steps = ([1, 4, 16], [0.021, 0.024, 0.036])
    assert "the other way round" in told(lab.check_line, lambda *_: (0.001, 0.020), *steps)
    assert "returns two numbers" in told(lab.check_line, lambda *_: 0.02, *steps)
    assert "rounded down" in told(lab.check_knee, lambda *_: 85, 0.020, 0.001, 0.81)
    assert "at least one request" in told(lab.check_knee, lambda *_: 0, 0.0, 0.010, 0.5)
    assert "a share of one half" in told(lab.check_knee, lambda *_: 20, 0.020, 0.001, 0.8)
    assert "must be a number" in told(lab.check_knee, lambda *_: None, 0.020, 0.001, 0.8)


def test_what_is_said_of_full_batches() -> None:
    five = [0, 3, 4, 5, 20]
    for wrong, slip in (
        ([7, 7, 8, 9, 23], ""),
        ([7, 7, 9, 9, 23], "the server is not free yet then"),
        ([4, 4, 8, 8, 23], "has not gathered yet"),
        ([6, 7, 10, 11, 23], "an answer leaves when its batch does"),
        ([7, 7, 11, 11, 24], "the last batch is not full"),
    ):
        said = told(lab.check_full, lambda *_, wrong=wrong: wrong, five, 2, o=2, t=1)
        assert slip in said and "it should leave at" in said
    assert "4 instants for 5 requests" in told(lab.check_full, lambda *_: [7, 7, 11, 11], five, 2, o=2, t=1)
    for wrong, slip, other in (
        ([6, 6, 9, 9, 23], "takes t for each member", "one after the other"),
        ([7, 4, 7, 6, 3], "these are waiting times", "gathered"),
    ):
        said = told(lab.check_full, lambda *_, wrong=wrong: wrong, five, 2, o=2, t=1)
        assert slip in said and other not in said
    load = lab.poisson(100, 100, seed=1)
    assert "is none of these" in told(lab.check_best, lambda *_: 3, load, [1, 4], o=0.02, t=0.001)
    assert "with batches of 64 the mean is" in told(lab.check_best, lambda *_: 64, load, [1, 4, 64], o=0.02, t=0.001)
    slow = lab.poisson(0.9, 300, seed=2)
    said = told(lab.check_best, lambda *_: 16, slow, [1, 4, 16], o=0, t=1, caps=True)
    rate = len(slow) / slow[-1]
    assert (
        f"at {rate:.3g} a second" in said and "with a cap of 16 the mean is" in said and " s, and with a cap of" in said
    )


@pytest.mark.parametrize("guess", [3, "32", [32], True, 0, math.nan])
def test_what_is_no_size_is_refused_by_name(guess: object) -> None:
    assert told(lab.check_size_guess, guess).startswith("my_size is ")
    for size in (*lab.SIZES, np.int64(8), 8.0):
        lab.check_size_guess(size)
    with pytest.raises(NotImplementedError, match="my_size is still None"):
        lab.check_size_guess(None)


def test_what_is_said_of_a_rule() -> None:
    six = [0.0, 0.001, 0.002, 0.100, 0.200, 0.201]
    for rule, slip in (
        (lambda size, timeout: Static(size), "as if nobody ever lost patience"),
        (lambda size, timeout: Greedy(size), "as if nobody had any patience"),
        (lambda size, timeout: SizeOrTimeout(4096, timeout), "no largest size"),
    ):
        assert slip in told(lab.check_patient, rule, six, 2, 0.050)
    for slipped, slip, arrivals, size, timeout in (
        ({"hopes": True}, "although step.closing says", [0.0, 0.001, 0.002, 0.003, 0.004], 2, 9.0),
        ({"most": 4096}, "not its first `size`", [0.0, 0.0, 0.0], 2, 9.0),
        ({"since": max}, "counts from the last arrival", [0.037, 0.060, 0.200], 3, 0.050),
    ):
        rule = lambda size, timeout, slipped=slipped: lab._Slipped(size, timeout, **{"most": size} | slipped)  # noqa: E731
        assert slip in told(lab.check_patient, rule, arrivals, size, timeout)
    assert "the longest that keeps the promise is 20 ms" in told(
        lab.check_choice, lambda *_: 0.01, {0.01: 0.04, 0.02: 0.05, 0.04: 0.07}, 0.05
    )
    assert "None, though 20 ms keeps it" in told(lab.check_choice, lambda *_: None, {0.02: 0.05}, 0.05)
    right = lab.your_timeout(0) or 0
    for wrong in (1e3 * right, 20, -1, 0.0201):
        said = told(lab.check_my_timeout, wrong, 0)
        assert said == f"my_timeout is {wrong:g}; write seconds, one of lab.TIMEOUTS, which go from 0 to 0.052"
    assert "with it the 95th percentile is" in told(lab.check_my_timeout, 0.0, 0)
    with pytest.raises(NotImplementedError):
        lab.check_my_timeout(None, 0)
    assert "a batch of" in told(lab.check_all_served, lambda size: Greedy(200), draw(1))
    said = told(lab.check_beats, lambda size: Static(4), draw(1), 200)
    assert "requests a second: your mean is" in said and "and with full batches of 8 it is" in said


class ByDifference(Batching):
    """Patience, measured by a difference of two instants; with some arrivals it is a hair shorter than the timeout."""

    def __init__(self, size: int, timeout: float) -> None:
        self.size, self.timeout = size, timeout

    def fill(self, step: Any) -> None:
        queue = list(step.waiting)
        arrival = queue[0].request.timeline.arrival if queue else step.now
        if len(queue) >= self.size or step.closing or step.now - arrival >= self.timeout:
            for one in queue[: self.size]:
                step.admit(one, step.budget)
        else:
            step.wait_until(arrival + self.timeout)


def test_a_rule_that_waits_for_an_instant_that_has_come_is_told_so() -> None:
    arrival = 0.05799675040642444
    assert (arrival + 0.03) - arrival < 0.03
    assert "an instant that has come already" in told(lab.check_patient, ByDifference, [arrival, 1.0], 16, 0.03)
    assert "an instant that has come already" in told(lab.check_patient, ByDifference, [0.037, 0.060, 0.200], 3, 0.050)


def test_what_is_said_of_a_batch_that_settles() -> None:
    assert "the two balance at 5" in told(lab.check_settles, lambda *_: 4.0, 200, 0.020, 0.001)
    assert "the arrivals during o alone" in told(lab.check_settles, lambda *_: 4.0, 200, 0.020, 0.001)
    for rounded in (8, 9):
        assert "need not be a whole number" in told(lab.check_settles, lambda *_, b=rounded: b, 300, 0.020, 0.001)
    assert "at least one request" in told(lab.check_settles, lambda *_: 0.2 / 0.99, 10, 0.020, 0.001)
    lab.check_settles(lambda *_: math.inf, 1000, 0.020, 0.001)
    assert "as if there were no cap" in told(
        lab.check_greedy, lambda *_: [1, 4, 4, 4, 10], [0, 0.5, 0.6, 0.7, 9], 2, o=0, t=1
    )


# ------------------------------------------------------------------ the open answer and the pictures


def test_the_open_answer_has_the_numbers_of_the_runs(source: Any) -> None:
    cells = {cell.id: cell.source for cell in source.cells}
    text, stored = cells["task-5-open"], printed(source)["task-5-runs"]
    for rate in (340, 60):
        load = lab.poisson(rate, 1000, seed=3)
        patient, mine = lab.play(lab.Patient(lab.SIZE, 0.010), load), lab.play(lab.Eager(lab.SIZE), load)
        means = [1e3 * one.mean_latency for one in (patient, mine)]
        sizes = [len(load) / len(one.records) for one in (patient, mine)]
        if rate == 340:
            assert abs(means[0] / means[1] - 1) < 0.01
            assert f"a mean of {means[0]:.1f} ms against {means[1]:.1f} for Mine" in text
            assert [f"{size:.1f}" for size in sizes] == ["9.9", "9.9"] and "in batches of 9.9 under both" in text
        else:
            assert f"At 60 a second batches are of {sizes[1]:.1f}," in text
            assert f"the mean is {means[0] / means[1] - 1:.0%} higher".replace("%", " %") in text
    rows = re.findall(
        r"measured ([\d.]+) ms .*simulated ([\d.]+) ms, run by run ([-+]\d+)% \(([-+]\d+)% to ([-+]\d+)%", stored
    )
    assert len(rows) == 2
    for clock, paper, off, least, most in rows:
        assert f"{clock} ms by the clock and {paper} ms simulated" in text
        assert f"run by run {off} % ({least} to {most} % in five rounds)" in text


def test_no_two_curves_of_a_picture_look_alike() -> None:
    looks = [
        (look["color"], str(look["linestyle"]))
        for evidence in ("measurement", "simulation")
        for look in (lab.figures.look(evidence, **lab._dash(place)) for place in range(4))
    ]
    assert len(set(looks)) == len(looks) == 8
    assert len({line for _, line in looks}) == 4
