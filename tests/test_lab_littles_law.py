"""Lab 2: what a wrong answer is told, what the tasks start from, and the inputs that checks draw.

What solutions, hand-outs and wrong answers earn is `underload course verify`'s to say, from tests/course.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab_source import LABS, assert_library_is_there, assert_points, benchmark

from underload import metrics, simulation
from underload.labs import littles_law as lab
from underload.queueing import Deterministic, Empirical, Exponential, erlang_b, mg1, mm1, mmc

ROOT = Path(__file__).parents[1]
SOURCE = LABS / "littles-law.ipynb"


# ------------------------------------------------------------------ the notebook


def test_points_and_tasks(source: Any) -> None:
    assert_points(source, 20, 3, 90)


def test_what_an_answer_may_not_use_is_there(source: Any) -> None:
    assert_library_is_there(source)


def test_the_solutions_agree_with_the_library(solved: dict[str, Any]) -> None:
    draw = np.random.default_rng(1)
    for servers in (1, 3):
        queue = lab.drawn_queue(draw, servers)
        stays = lab.Stays.of(solved["simulate"](**queue))
        run = simulation.simulate(arrivals=queue["arrivals"], service=queue["services"], servers=servers)
        assert stays.starts == pytest.approx(run.start) and stays.finishes == pytest.approx(run.finish)
        law = simulation.little(run.arrival, run.finish, 5.0, 30.0)
        mine = solved["little"](run.arrival.tolist(), run.finish.tolist(), 5.0, 30.0)
        assert (mine["L"], mine["rate"], mine["W"]) == pytest.approx((law.mean_system, law.rate, law.mean_sojourn))
        assert mine["before"] - mine["after"] == pytest.approx(law.ends)
    waits = lab.drawn_waits(draw, 10, spare=3)
    interval = metrics.batch_means(waits, 10)
    t = interval.half_width / lab.batch_interval(waits, 10, 1.0)[1]
    assert solved["batch_interval"](waits, 10, t) == pytest.approx((interval.mean, interval.half_width))
    assert solved["sojourn_percentile"](3, 4, 99) == pytest.approx(mm1(3, service_rate=4).sojourn_quantile(99))
    assert solved["sum_rule"](3, 4, 99) == pytest.approx(0.25 + mm1(3, service_rate=4).wait_quantile(99))
    assert solved["sum_rule"](0.02, 4, 99) == 0.25 and mm1(0.02, service_rate=4).wait_quantile(99) == 0
    services = draw.lognormal(size=30).tolist()
    for wait in (solved["pk_wait"], lab.pk_wait):
        assert wait(0.3, services) == pytest.approx(mg1(0.3, Empirical(services)).mean_wait)
    for room in (0, 2):
        queue = lab.drawn_queue(draw, 2)
        run = simulation.simulate(arrivals=queue["arrivals"], service=queue["services"], servers=2, buffer=room)
        mine = [math.nan if start is None else start for start in solved["admit"](**queue, room=room)]
        assert mine == pytest.approx(run.start, nan_ok=True)


def test_what_the_text_says_by_hand(solved: dict[str, Any]) -> None:
    assert solved["simulate"]([0, 1, 2], [2, 3, 1]) == [
        (0, "arrive", 0),
        (0, "start", 0),
        (1, "arrive", 1),
        (2, "finish", 0),
        (2, "start", 1),
        (2, "arrive", 2),
        (5, "finish", 1),
        (5, "start", 2),
        (6, "finish", 2),
    ]
    law = solved["little"]([0, 1, 3, 4, 6, 9], [2.5, 5, 4, 11, 8, 12], 2, 10)
    assert law == {"L": 13.5 / 8, "rate": 0.5, "W": 3.25, "before": 3.5, "after": 3}
    assert law["L"] * 8 == law["rate"] * law["W"] * 8 + law["before"] - law["after"]
    assert solved["batch_interval"]([1, 3, 5, 7, 6, 8], 3, 2) == pytest.approx((5, 3.055), abs=5e-4)
    assert solved["pk_wait"](0.25, [1, 1, 1, 5]) == 1.75
    assert solved["sojourn_percentile"](0.5, 1, 99) == pytest.approx(9.21, abs=5e-3)
    assert solved["sum_rule"](0.5, 1, 99) == pytest.approx(8.824, abs=5e-4)
    third = Empirical([0.4] * 19 + [12.4])
    assert third.mean == pytest.approx(1)
    assert mm1(0.9, service_rate=1).mean_wait == pytest.approx(9)


def test_the_stored_run_shows_what_the_text_says(source: Any) -> None:
    """The start-up bias, the interval that holds the formula, the 44 %, and Erlang's loss for three laws."""
    said = {
        cell.id: "".join(output.get("text", "") for output in cell.outputs)
        for cell in source.cells
        if cell.cell_type == "code"
    }
    first = [float(value) for value in re.findall(r"customers wait ([\d.]+)", said["task-3-start"])]
    assert first[0] < 3 and 5 < first[1] < 6.5 and 7.5 < first[2] < 8.7
    mean, half = map(float, re.findall(r"your batch means: +([\d.]+) ± ([\d.]+)", said["task-3-long"])[0])
    assert abs(mean - 9) < half
    assert "load 0.05" in said["task-5-tails"] and "44% low" in said["task-5-tails"]
    assert said["task-2-windows"].count("True") == 4 and "False" not in said["task-2-windows"]
    lost = [float(value) for value in re.findall(r"([\d.]+)% are turned away", said["task-6-loss"])]
    assert lost == pytest.approx([100 * erlang_b(8, servers=8)] * 3, abs=0.5)
    late = [float(value) for value in re.findall(r"([\d.]+)% of the requests", said["task-5-broken"])]
    assert 0.8 < late[0] < 1.2 and late[1] > 1.4


# ------------------------------------------------------------------ what the tasks start from


def test_a_run_has_the_law_it_should_have() -> None:
    arrivals, work = lab.poisson(3.2, 40_000, 3), lab.works(Exponential(1.0), 40_000, 3)
    stays = lab.Stays.of(lab.simulate(arrivals, work, 4))
    found = metrics.batch_means(stays.waits[2_000:], 20)
    assert mmc(3.2, service_rate=1.0, servers=4).mean_wait in found
    assert stays.sojourns - stays.waits == pytest.approx(work)
    assert np.mean(np.diff(arrivals)) == pytest.approx(1 / 3.2, rel=0.02)
    assert lab.poisson(3.2, 10, 3) == arrivals[:10] and lab.works(Deterministic(2.0), 3, 1) == [2.0, 2.0, 2.0]


def test_the_largest_rate_is_found_to_the_last_digits() -> None:
    assert lab.largest_rate(lambda rate: rate <= 2.5, 7.0) == pytest.approx(2.5, rel=1e-12)
    assert lab.largest_rate(lambda rate: False, 7.0) < 1e-12


def test_the_book_has_its_numbers() -> None:
    book = lab.book()
    assert set(book["seconds"]) == {
        "mean service",
        "wait by the clock",
        "wait by the simulator",
        "wait by the formula",
    }
    clock, simulator = book["seconds"]["wait by the clock"], book["seconds"]["wait by the simulator"]
    assert simulator == pytest.approx(clock, rel=0.1), "arrivals and services fix every wait"
    assert book["machine"]["cpu"] and re.fullmatch(r"\d{4}-\d\d-\d\d", book["date"])


def test_every_students_server_is_as_hard_as_the_others() -> None:
    servers = [lab.your_server(seed) for seed in range(300)]
    assert len({(server.mean_service, server.promise) for server in servers}) > 280
    for server in servers:
        mu = server.service_rate
        right = mu - math.log(100) / server.promise
        rule = lab.largest_rate(lambda rate: lab._rule(rate, mu, 99) <= server.promise, mu)  # noqa: B023
        assert 0.1 < right / mu < 0.25 and rule > 1.3 * right
        lab.check_my_rate(float(f"{right:.3g}"), server)
        lab.check_rule_rate(np.float64(rule), server)
        assert f"{server.promise * 1e3:.0f} ms" in str(server)
        assert server.promise == pytest.approx(round(server.promise, 3), abs=1e-12), "what is printed is what there is"


def test_the_server_of_the_book_stays() -> None:
    assert str(lab.your_server(0)) == (
        "your server: 140 ms of service on average; promised: 99 of 100 requests within 817 ms"
    )


# ------------------------------------------------------------------ drawn inputs


@pytest.mark.parametrize("seed", range(20))
def test_drawn_inputs_are_what_their_checks_are_about(seed: int) -> None:
    draw = np.random.default_rng(seed)
    for servers in (1, 2, 5):
        queue = lab.drawn_queue(draw, servers)
        instants = [instant for instant, what, _ in lab.simulate(**queue) if what != "start"]
        assert len(set(instants)) == len(instants), "no ties"
        assert max(before for before in _waiting(lab.simulate(**queue))) >= 2, "the order of the line must show"
    ties = lab.drawn_ties(draw)
    log = lab.simulate(**ties)
    finishes = {instant for instant, what, _ in log if what == "finish"}
    assert sum(instant in finishes for instant in ties["arrivals"]) == len(ties["arrivals"]) - 2
    # An arrival that comes between a finish and the start it makes possible would make two.
    assert max(_waiting(log)) == 1
    for with_ties in (False, True):
        lab.check_refused(_admit, **lab.drawn_full(draw, ties=with_ties))
    window = lab.drawn_window(draw)
    a, f = np.array(window["arrivals"]), np.array(window["finishes"])
    begin, end = window["begin"], window["end"]
    assert ((a < begin) & (f > end)).any() and ((a < begin) & (f > begin) & (f < end)).any()
    assert ((a >= begin) & (a < end) & (f > end)).any() and (a == np.sort(a)).all()


def _waiting(log: list[lab.Event]) -> list[int]:
    counts = [0]
    for _, what, _ in log:
        counts.append(counts[-1] + {"arrive": 1, "start": -1, "finish": 0}[what])
    return counts


def _admit(arrivals: list[float], services: list[float], servers: int, room: int) -> Any:
    return simulation.simulate(arrivals=arrivals, service=services, servers=servers, buffer=room).start


def test_the_check_of_task_6_agrees_with_the_librarys_buffers() -> None:
    draw = np.random.default_rng(5)
    for servers, room in ((1, 0), (1, 2), (3, 1)):
        arrivals = (np.cumsum(draw.integers(0, 4, 60)) / 2).tolist()  # with ties of all kinds
        services = (draw.integers(1, 9, 60) * servers / 2).tolist()
        mine = [math.nan if s is None else s for s in lab._admitted(arrivals, services, servers, room)[0]]
        assert mine == pytest.approx(_admit(arrivals, services, servers, room), nan_ok=True)


# ------------------------------------------------------------------ what a wrong answer is told


def log_with(change: Callable[[list[lab.Event]], Any]) -> Callable[..., Any]:
    return lambda arrivals, services, servers: change(lab.simulate(arrivals, services, servers))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda log: None, r"must return a list of events, got None"),
        (lambda log: {"log": log}, r"must return a list of events, got \{"),
        (
            lambda log: [event[:2] for event in log],
            r"an event must be \(instant, what, customer\), got \(0, 'arrive'\)",
        ),
        (lambda log: [(i, "leave", c) for i, _, c in log], r"'arrive', 'start' or 'finish', got 'leave'"),
        (lambda log: [("soon", w, c) for _, w, c in log], r"the instant of 'arrive' of customer 0 must be a number"),
        (lambda log: [(i, w, c + 1) for i, w, c in log], r"no customer 3; they are numbered from 0"),
        (lambda log: log + log[:1], r"customer 0 has two events 'arrive'"),
        (lambda log: log[:-1], r"customer 2 has no event 'finish': everybody arrives, starts and finishes"),
        (
            lambda log: [(i - 1 if (w, c) == ("start", 1) else i, w, c) for i, w, c in log],
            r"customer 1 starts at 1 s; it should be 2 s: until then all servers are busy",
        ),
        (
            lambda log: [(i + 1 if (w, c) == ("start", 2) else i, w, c) for i, w, c in log],
            r"customer 2 starts at 6 s; it should be 5 s: a server is free for it then",
        ),
        (
            lambda log: [(0.5 if (w, c) == ("start", 1) else i, w, c) for i, w, c in log],
            r"customer 1 starts at 0.5 s; it should be 2 s: it arrives only at 1 s",
        ),
        (
            lambda log: [(i + 1 if w == "finish" else i, w, c) for i, w, c in log],
            r"customer 0 finishes at 3 s; it should be 2 s: it starts at 0 s and its service takes 2 s",
        ),
    ],
)
def test_a_wrong_instant_is_told_what_is_wrong(change: Any, told: str) -> None:
    lab.check_instants(lab.simulate, [0, 1, 2], [2, 3, 1])
    with pytest.raises(AssertionError, match=told):
        lab.check_instants(log_with(change), [0, 1, 2], [2, 3, 1])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda log: sorted(log), r"'arrive' of customer 2; .* 'finish' of customer 0; at one instant a finish comes"),
        (lambda log: [log[1], log[0], *log[2:]], r"event 0 of the log is 'start' of customer 0"),
        (
            lambda log: [*log[:3], log[3], log[5], log[4], *log[6:]],
            r"event 4 .* 'start' of customer 1; a start stands right behind the arrival or finish",
        ),
        (lambda log: log[:6], r"the log ends after 6 events; next comes, at 5 s: 'finish' of customer 1"),
        (lambda log: log + log, r"the log has 18 events; 3 customers make 9"),
    ],
)
def test_a_wrong_order_is_told_the_rule(change: Any, told: str) -> None:
    lab.check_order(lab.simulate, [0, 1, 2], [2, 3, 1])
    with pytest.raises(AssertionError, match=told):
        lab.check_order(log_with(change), [0, 1, 2], [2, 3, 1])


PICTURE = ([0, 1, 3, 4, 6, 9], [2.5, 5, 4, 11, 8, 12], 2, 10)
RIGHT = {"L": 1.6875, "rate": 0.5, "W": 3.25, "before": 3.5, "after": 3.0}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"L": 1.625}, r"L is 1.625 \(whole stays of those who came"),
        ({"L": 1.25}, r"without those who were inside when the window began"),
        ({"L": 13.5}, r"customer-seconds; divide by the window's length"),
        ({"rate": 4}, r"rate is 4/s \(a number of customers"),
        ({"rate": 0.75}, r"those who were already there are counted too; or all customers there are"),
        ({"W": 2.5}, r"W is 2.5 s \(stays cut off at the end"),
        ({"W": None}, r"W must be a number, got None"),
        ({"before": 6.5}, r"their whole stays; count only what lies in the window"),
        ({"before": 3.0}, r"what they spent before the window"),
        ({"after": 10}, r"whole stays of those who stay on"),
    ],
)
def test_a_wrong_window_is_told_what_is_wrong(changes: dict[str, Any], told: str) -> None:
    lab.check_little(lambda *_: RIGHT, *PICTURE, *RIGHT)
    with pytest.raises(AssertionError, match=told):
        lab.check_little(lambda *_: RIGHT | changes, *PICTURE, *RIGHT)


def test_a_window_in_which_nobody_comes() -> None:
    empty = ([1.0, 2.0], [9.0, 3.0], 4.0, 6.0)
    lab.check_little(lambda *_: RIGHT | {"rate": 0, "W": None}, *empty, "rate", "W")
    with pytest.raises(AssertionError, match="nobody comes, so W is None"):
        lab.check_little(lambda *_: RIGHT | {"rate": 0, "W": 0.0}, *empty, "rate", "W")
    with pytest.raises(AssertionError, match=r"nobody comes, and little\(\) divides by 0"):
        lab.check_little(lambda *_: {"W": 1 / 0}, *empty, "W")
    with pytest.raises(ZeroDivisionError):
        lab.check_little(lambda *_: {"W": 1 / 0}, *PICTURE, "W")
    with pytest.raises(AssertionError, match="'W' is missing"):
        lab.check_little(lambda *_: {"L": 1.6875}, *PICTURE, "L", "W")


@pytest.mark.parametrize(
    ("left", "told"),
    [
        ([4, 3, 1], "cut by the start of service"),
        ([4, 0.2, 3, 1], "so many customers were cut; the warm-up is in seconds"),
        ([0, 0.5, 4, 0.2, 3, 1], "nobody was left out"),
        ([1], "who arrives at that very instant stays"),
        ([3, 2], "wait 1 of those left is 2 s; it should be 1 s"),
        (None, "must return a list of waits, got None"),
    ],
)
def test_a_wrong_cut_is_told_what_is_wrong(left: Any, told: str) -> None:
    run = ([0, 0.5, 1, 1.5, 2, 5], [0, 0.5, 4, 0.2, 3, 1], 2)
    lab.check_cut(lambda *_: np.array([3, 1]), *run)
    with pytest.raises(AssertionError, match=told):
        lab.check_cut(lambda *_: left, *run)


def test_a_wrong_interval_is_told_what_is_wrong() -> None:
    values = [9.0, 1, 3, 5, 7, 6, 8]
    lab.check_batch_mean(lab.batch_interval, values, 3)
    lab.check_half_width(lab.batch_interval, values[1:], 3)
    for mean, told in ((39 / 7, "of all values"), (31 / 6, "the last ones are left out"), (30, "the sum")):
        with pytest.raises(AssertionError, match=told):
            lab.check_batch_mean(lambda *_: (mean, 1), values, 3)  # noqa: B023
    for half, told in (
        (2 * np.std(values[1:], ddof=1) / math.sqrt(6), "as if they did not depend"),
        (2 * math.sqrt(14 / 3 / 3), "it is k − 1"),
        (2 * math.sqrt(7), "not divided by √k"),
        (4 * math.sqrt(7 / 3), "the whole width"),
        (1.96 * math.sqrt(7 / 3), "1.96 instead of t"),
        ("wide", "the half width must be a number, got 'wide'"),
    ):
        with pytest.raises(AssertionError, match=told):
            lab.check_half_width(lambda *_: [5, half], values[1:], 3)  # noqa: B023
    with pytest.raises(AssertionError, match=r"must return \(mean, half_width\), got 5"):
        lab.check_batch_mean(lambda *_: 5, values, 3)


@pytest.mark.parametrize(
    ("wait", "told"),
    [
        (1.0, "the square of the mean"),
        (0.75, "with the variance"),
        (2.0, "the exponential's"),
        (3.5, "without the 2"),
        (0.875, "without 1 − ρ"),
        (3.75, "the service is added"),
        (math.nan, "must be a number, got nan"),
        (None, "must be a number, got None"),
    ],
)
def test_a_wrong_wait_is_told_what_is_wrong(wait: Any, told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        lab.check_pk(lambda *_: wait, 0.25, [1, 1, 1, 5])


def test_what_an_overload_may_not_be() -> None:
    lab.check_overload(lambda *_: np.inf, 0.5, [2, 2])
    with pytest.raises(AssertionError, match="at load 1 .* without end there, so it should be math.inf"):
        lab.check_overload(lambda *_: -3, 0.5, [2, 2])
    with pytest.raises(AssertionError, match=r"at load 1 pk_wait\(\) divides by 0"):
        lab.check_overload(lambda *_: 1 / 0, 0.5, [2, 2])


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (8.824046, "the rule that is wrong"),
        (4.0, "base of 10"),
        (4.60517019, "μ instead of μ − λ"),
        (2.0, "the mean"),
        (-9.21034037, "a negative time"),
    ],
)
def test_a_wrong_percentile_is_told_what_is_wrong(value: float, told: str) -> None:
    lab.check_sojourn(lambda *_: math.log(100) / 0.5, 0.5, 1.0, 99)
    with pytest.raises(AssertionError, match=told):
        lab.check_sojourn(lambda *_: value, 0.5, 1.0, 99)


def test_a_wrong_rule_is_told_what_is_wrong() -> None:
    wait = math.log(50) / 0.5
    for value, told in (
        (math.log(100) / 0.5, "the right percentile"),
        (wait, "the wait alone"),
        (1 + math.log(100) / 0.5, "as if everybody waited"),
        (math.log(100) + wait, "the percentile of the service"),
    ):
        with pytest.raises(AssertionError, match=told):
            lab.check_rule(lambda *_: value, 0.5, 1.0, 99)  # noqa: B023
    with pytest.raises(AssertionError, match="a wait below 0"):
        lab.check_rule(lambda *_: 1 + math.log(0.5) / 0.995, 0.005, 1.0, 99)


@pytest.mark.parametrize(
    ("check", "value", "told"),
    [
        (lab.check_my_rate, 2.13, "what the wrong rule allows.* p99 of the time in system is 919 ms"),
        (lab.check_my_rate, 0.2109, "a load; multiply"),
        (lab.check_my_rate, 5.92, "the promise as the mean"),
        (lab.check_my_rate, 7.2, "is without limit"),
        (lab.check_my_rate, "1.5/s", "must be a number"),
        (lab.check_rule_rate, 1.506, "that is the right one"),
        (lab.check_rule_rate, 0.298, "a load; multiply"),
        (lab.check_rule_rate, 1.8, "there the rule says 74"),
    ],
)
def test_a_wrong_rate_is_told_what_is_wrong(check: Any, value: Any, told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        check(value, lab.your_server(0))


def test_a_wrong_admission_is_told_what_is_wrong() -> None:
    full = ([0, 1, 2, 3, 4.5], [4, 2, 2, 1, 1], 1, 1)
    right = [0, 4, None, None, 6]
    lab.check_refused(lambda *_: right, *full)
    lab.check_refused(lambda *_: np.array([0, 4, np.nan, np.nan, 6]), *full)
    with pytest.raises(
        AssertionError, match=r"customer 2, who comes at 2 s, is let in; all servers are busy .* 1 wait"
    ):
        lab.check_refused(lambda *_: [0, 4, 6, None, 6], *full)
    with pytest.raises(AssertionError, match=r"customer 4, who comes at 4.5 s, is turned away; there is room"):
        lab.check_refused(lambda *_: [0, 4, None, None, None], *full)
    with pytest.raises(AssertionError, match=r"somebody leaves at that very instant, and a finish comes first"):
        lab.check_refused(lambda *_: [0, 2, None, 5], [0, 1, 2, 5], [2, 3, 2, 1], 1, 1)
    with pytest.raises(AssertionError, match=r"returned 2 starts for 5 customers"):
        lab.check_refused(lambda *_: [0, 4], *full)
    roomy = ([0, 1, 2], [4, 2, 1], 1, 9)
    lab.check_admitted(lambda *_: (0, 4.0, np.float64(6)), *roomy)
    with pytest.raises(AssertionError, match=r"customer 2 starts at 4 s; it should be 6 s"):
        lab.check_admitted(lambda *_: [0, 4, 4], *roomy)
    with pytest.raises(AssertionError, match=r"customer 2 is turned away; there is room for 9"):
        lab.check_admitted(lambda *_: [0, 4, None], *roomy)


@pytest.mark.parametrize("guess", [2, 0.01, np.float64(3), np.array([4.0])])
def test_any_positive_guess_will_do(guess: Any) -> None:
    lab.check_guess(my_guess=guess)


def test_what_was_not_written_yet_is_not_wrong() -> None:
    server = lab.your_server(0)
    for check in (
        lambda: lab.check_guess(my_guess=None),
        lambda: lab.check_my_rate(None, server),
        lambda: lab.check_rule_rate(None, server),
    ):
        with pytest.raises(NotImplementedError, match="still None"):
            check()
    for guess in ("two", 0, -1, math.inf, True):
        with pytest.raises(AssertionError, match="my_guess"):
            lab.check_guess(my_guess=guess)


# ------------------------------------------------------------------ pictures


def test_pictures_carry_their_numbers_in_words_and_in_a_table() -> None:
    log = lab.simulate([0, 1, 2], [2, 3, 1])
    html = lab.draw_inside(log)._repr_html_()
    assert "from 0 to 6 mean services: 2 at the most, 1.7 on average, with 1 server." in html
    html = lab.draw_stays(*PICTURE)._repr_html_()
    assert "a window from 2 to 10 s: customer 0 from 0 to 2.5 s" in html
    html = lab.draw_start([0.0] * 20 + [4.0] * 20 + [8.5] * 20, 9.0)._repr_html_()
    assert "from 0.0 mean services for the first 20 customers to 8.5 for the last 20 of 60" in html
    html = lab.draw_laws(0.7, [("constant", 1.0, 1.17, 0.05), ("exponential", 2.0, 2.35, 0.12)])._repr_html_()
    assert "constant 1.17 ± 0.05; exponential 2.35 ± 0.12" in html
    html = lab.draw_tails([0.05, 0.5], [4.85, 9.21], [2.69, 8.82], {0.5: 9.2})._repr_html_()
    assert "4.8 at load 0.05" in html and "the sum rule says 2.7 and 8.8. Simulated: 9.2 at load 0.5" in html
    html = lab.draw_waits([0.0, 0.0104, 0.02], [0.0, 0.0103, 0.02])._repr_html_()
    assert "The waits of 3 requests, up to 20 ms by the clock" in html and "0.10 ms apart at the most" in html


# ------------------------------------------------------------------ the benchmark


def test_the_benchmark_names_cells_that_are_there(source: Any) -> None:
    bench = benchmark("littles_law_lab", source)
    cells = {cell.id: cell.source for cell in source.cells}
    last = cells[bench.MEASURED[-1]]
    assert all(re.search(rf"\b{name}\b[^=\n]*=", last) for name in ("mean", "half", "replayed", "formula"))
    assert json.loads((ROOT / "lib/underload/labs/littles_law.json").read_text())["command"].split()[1] == (
        "tests/benchmarks/littles_law_lab.py"
    )
