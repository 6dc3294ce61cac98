"""Lab 13: what a wrong answer is told, what the tasks start from, and the inputs that checks draw.

What solutions, hand-outs and wrong answers earn is `underload course verify`'s to say, from tests/course.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab_source import answers, assert_points, benchmark, printed, told

from underload.course import read_notebook
from underload.course.outline import outline
from underload.course.watch import resolve
from underload.labs import hedging as lab
from underload.queueing import hedged
from underload.queueing.service import Empirical
from underload.simulation import Hedge, Once, Sending

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "labs" / "hedging.ipynb"


@pytest.fixture(scope="module")
def source() -> Any:
    return read_notebook(SOURCE)


@pytest.fixture(scope="module")
def solved(source: Any) -> dict[str, Any]:
    return answers(source)


@pytest.fixture(scope="module")
def said(source: Any) -> dict[str, str]:
    return printed(source)


# ------------------------------------------------------------------ the notebook


def test_points_and_tasks(source: Any) -> None:
    assert_points(source, 20, 3, 85)


def test_what_an_answer_may_not_use_is_there(source: Any) -> None:
    for task in outline(source).tasks:
        assert task.library and all(callable(resolve(name)) for name in task.library)


def test_the_times_of_the_text(source: Any) -> None:
    times = lab.measured_times(np.random.default_rng(13), 1000)
    text = next(cell.source for cell in source.cells if cell.id == "task-1-text")
    assert f"half took at most {1e3 * np.median(times):.1f} ms" in text
    assert f"the 99th percentile is {1e3 * np.percentile(times, 99):.0f} ms" in text
    assert lab.by_chance(0.1).law == Empirical(times)


def test_the_delay_by_hand(solved: dict[str, Any]) -> None:
    times = [1.0, 9.0, 1.0, 1.0]
    for delay_for, left_after in (
        (solved["delay_for"], solved["left_after"]),
        (lab.delay_for, lab.left_after),
    ):
        assert delay_for(times, 0.25) == 1 and left_after(times, 1, 90) == 2
        assert delay_for(list(range(1, 101)), 0.29) == 71  # 0.29 of 100 are 29, and not 28.999


def test_the_paper_is_the_formula_s(solved: dict[str, Any]) -> None:
    draw = np.random.default_rng(1)
    for share, level in ((0.05, 99), (0.2, 90), (0.02, 99.5)):
        times = lab.drawn_times(draw)
        delay = lab.delay_for(times, share)
        formula = hedged(Empirical(times), percentile=100 * (1 - share))
        assert delay == pytest.approx(formula.delay)
        for left_after in (solved["left_after"], lab.left_after):
            assert left_after(times, delay, level) == pytest.approx(formula.quantile(level), rel=1e-6)


@pytest.mark.parametrize("name", ["Second", "Budgeted", "TwoQueues", "FirstToken"])
def test_own_objects_send_as_the_labs_do(solved: dict[str, Any], name: str) -> None:
    mine, right = solved[name], getattr(lab, name)
    arguments = {"Second": (0.03,), "Budgeted": (0.03, 0.0625, 3.0), "TwoQueues": (0.001,), "FirstToken": (0.03,)}[name]
    service = lab.drawn_service(np.random.default_rng(3), 0.5, calls=400)
    runs = [lab.serve(made(*arguments), service) for made in (mine, right)]
    assert runs[0].latencies == runs[1].latencies and runs[0].extra_load == runs[1].extra_load > 0


def test_the_policies_are_the_library_s_where_it_has_them() -> None:
    service = lab.drawn_service(np.random.default_rng(4), 0.4, calls=400)
    delay = lab.delay_of(service, 0.05)
    assert lab.serve(lab.Second(delay), service).latencies == lab.serve(Hedge(delay), service).latencies
    chat = lab.drawn_chat(np.random.default_rng(4), calls=60)
    runs = [chat.run(policy) for policy in (lab.FirstToken(0.1), Hedge(0.1, until="first token"))]
    assert lab.first_tokens(runs[0]) == lab.first_tokens(runs[1]) and runs[0].extra_load == runs[1].extra_load > 0


def test_a_hundred_calls_forty_of_them_twice(solved: dict[str, Any]) -> None:
    for account in (solved["account"], lab.account):
        assert account(lab.hundred()) == pytest.approx((100, 0.4, 0.0))
        assert account([["answered"], ["cancelled", "answered"], ["failed", "failed"], ["answered"]]) == pytest.approx(
            (3, 0.5, 0.4)
        )
        assert account([["cancelled"]])[2] == 0


def test_the_account_is_the_run_s(solved: dict[str, Any]) -> None:
    run = lab.by_hand(lab.Second(0.02), (0.1, 0.06, 0.06), (0.0, 0.001, 0.3), down=[(0.005, 0.2)])
    states = [[attempt.state for attempt in call.attempts] for call in run.calls]
    found = solved["account"](states)
    assert found == pytest.approx((run.count("answered"), run.extra_load, run.error_rate))
    assert "failed" in states[0] and run.count("answered") == 3


def test_the_bucket_by_hand(solved: dict[str, Any]) -> None:
    for budgeted in (solved["Budgeted"], lab.Budgeted):
        run = lab.by_hand(budgeted(0.02, 0.25, 1.0), (0.1,) * 3, [0.2 * place for place in range(10)])
        assert lab.with_second(run) == [0, 4, 8]
        assert lab.most_above(run, 0.25)[0] <= 1.0


def test_a_stretch_above_the_budget_is_found() -> None:
    run = lab.by_hand(lab.Second(0.02), (0.1,) * 4, [0.0, 0.2, 0.4, 5.0])
    over, begin, end = lab.most_above(run, 0.25)
    assert over == pytest.approx(4 - 4 * 0.25 + 0.25) and (begin, end) == pytest.approx((0.02, 5.02))


def test_the_two_lines_by_hand(solved: dict[str, Any]) -> None:
    for tied in (solved["TwoQueues"], lab.TwoQueues):
        run = lab.by_hand(tied(0.001), (0.100, 0.060), (0.0, 0.001, 0.002))
        first, second = run.calls[2].attempts
        assert second.started == pytest.approx(0.061) and first.ended == pytest.approx(0.062)


def test_what_a_duplicate_costs_at_most(solved: dict[str, Any]) -> None:
    asks = [(100, 11), (200, 51)]
    for at_most in (solved["at_most"], lab.at_most):
        assert at_most(asks, [1], "first token") == pytest.approx(200 / 360)
        assert at_most(asks, [1], "answer") == pytest.approx(250 / 360)
        assert at_most(asks, [], "answer") == 0
    chat = lab.drawn_chat(np.random.default_rng(9), calls=80)
    for policy, until in ((lab.FirstToken(0.08), "first token"), (Hedge(0.3), "answer")):
        run = chat.run(policy)
        assert 0 < lab.extra_tokens(run) <= lab.at_most(chat.asks, lab.hedged_calls(run), until)


def test_both_services_are_what_the_text_says() -> None:
    """By chance a copy saves work, at every load; where calls are long by themselves it costs, and feeds on itself."""
    for load in (0.1, 0.9):
        service = lab.by_chance(load)
        plain, twice = lab.once(service), lab.serve(lab.Second(lab.delay_of(service, 0.05)), service)
        assert lab.p99(twice) < 0.5 * lab.p99(plain)
        assert sum(one.busy for one in twice.replicas) < sum(one.busy for one in plain.replicas)
    service = lab.by_itself(0.9)
    delay = lab.delay_of(service, 0.05)
    plain, twice = lab.once(service), lab.serve(lab.Second(delay), service)
    mine = lab.serve(lab.Budgeted(delay, 0.10, 5.0), service)
    assert lab.p99(twice) > 1.4 * lab.p99(plain) > 1.2 * lab.p99(mine) and twice.extra_load > 0.3 > 5 * mine.extra_load
    quiet = lab.by_itself(0.1)
    assert lab.p99(lab.serve(lab.Second(delay), quiet)) > 0.95 * lab.p99(lab.once(quiet))


def test_a_storm_is_worse_for_all_and_not_within_the_budget() -> None:
    stormy = lab.storm(0.3, 3.0)
    plain, twice = lab.once(stormy), lab.serve(lab.Second(0.085), stormy)
    mine = lab.serve(lab.Budgeted(0.085, 0.05, 5.0), stormy)
    assert lab.p99(twice) > 1.3 * lab.p99(plain) and lab.p99(mine) < 1.1 * lab.p99(plain)
    assert lab.most_above(twice, 0.05)[0] > 50 and lab.most_above(mine, 0.05)[0] <= 5.0 + 1e-6


def test_the_share_above_a_delay_is_right_hedged_or_not() -> None:
    """What the further task rests on: a second copy cuts latencies short, and none of them below its delay."""
    service = lab.by_chance(0.05)
    delay = lab.delay_of(service, 0.05)
    above = [
        np.mean([late > delay for late in run.latencies])
        for run in (lab.once(service), lab.serve(lab.Second(delay), service))
    ]
    assert above[0] == pytest.approx(above[1], abs=0.005)


def test_a_class_that_is_not_written_is_replaced(capsys: pytest.CaptureFixture[str], solved: dict[str, Any]) -> None:
    class Unwritten(Sending):
        def __init__(self, *_: Any) -> None:
            pass

        def begin(self, call: Any) -> None:
            raise NotImplementedError

    for usable, name in (
        (lab.usable_second, "Second"),
        (lab.usable_budgeted, "Budgeted"),
        (lab.usable_two_queues, "TwoQueues"),
        (lab.usable_first_token, "FirstToken"),
        (lab.usable_learned, "Learned"),
    ):
        assert usable(Unwritten) is getattr(lab, name)
        assert "not written yet: the lab's was taken" in capsys.readouterr().out
        assert usable(solved[name]) is solved[name] and capsys.readouterr().out == ""
    assert lab.usable_second(lambda delay: Once()) is lab.Second
    assert "does not pass its first checks" in capsys.readouterr().out


def test_the_stored_run_shows_what_the_text_says(said: dict[str, str]) -> None:
    rows = re.findall(r"\d% +[\d.]+ +([\d.]+) +([\d.]+) +([\d.]+) +[\d.]+%", said["task-1-answer"])
    assert len(rows) == 5
    for mine, formula, simulated in rows:
        assert mine == formula and abs(float(simulated) / float(mine) - 1) < 0.1
    busy = [float(line.split()[-1]) for line in said["task-2-picture"].splitlines()[2:]]
    assert busy[1] < 0.9 * busy[0]
    waits = [line.split() for line in said["task-4-table"].splitlines()[2:6]]
    assert all(float(row[4]) < float(row[2]) for row in waits)  # yours, and two at random
    table = {line[:25].strip(): line[25:].split() for line in said["task-5-table"].splitlines()[2:]}
    assert float(table["yours, 150 ms"][1]) < 0.5 * float(table["one copy"][1])
    assert float(table["until the answer, 2 s"][1]) > 0.8 * float(table["one copy"][1])
    both = re.findall(r"([\d.]+) +([\d.]+) +\d+ +16 of 16 +0$", said["task-5-decoder"], flags=re.MULTILINE)
    assert len(both) == 2  # all answers right, and no block still in use
    longest = [float(value) for _, value in both]
    assert longest[1] < 0.6 * longest[0] and longest[0] > 150
    above = [float(line.split()[-1]) for line in said["task-6-picture"].splitlines()[3:5]]  # fixed, yours
    assert above[0] > 100 > 10 >= above[1]


def test_the_open_answer_has_the_numbers_of_the_run(source: Any, said: dict[str, str]) -> None:
    table = {line[:25].strip(): line[25:].split() for line in said["task-5-table"].splitlines()[2:]}
    text = next(cell.source for cell in source.cells if cell.id == "task-5-open")
    mine, answer, late = (
        table[name] for name in ("yours, 150 ms", "until the answer, 150 ms", "until the answer, 2 s")
    )
    assert f"longer than {mine[1]} ms instead of {table['one copy'][1]} ms" in text
    assert f"{mine[4]} of the 400 calls are sent twice, and that computes {mine[5]} more tokens" in text
    assert f"where their prompts are {mine[6]}" in text
    assert f"is sent for {answer[4]} calls" in text and f"{answer[5]} more tokens are computed" in text
    assert f"there are {late[4]} copies and {late[5]} more tokens" in text and f"({late[1]} ms)" in text


# ------------------------------------------------------------------ inputs that are drawn


@pytest.mark.parametrize("seed", range(4))
def test_every_check_lets_the_right_answer_pass(solved: dict[str, Any], seed: int) -> None:
    draw = np.random.default_rng(seed)
    for share in (0.05, 0.01, 0.1):
        lab.check_delay(solved["delay_for"], lab.drawn_times(draw), share)
    times = lab.drawn_times(draw)
    lab.check_left(solved["left_after"], times, lab.delay_for(times, 0.05), 99)
    lab.check_account(solved["account"], lab.drawn_states(draw))
    for check in (lab.check_many, lab.check_gain):
        check(solved["Second"], draw)
    for budget in (lab.check_never_above, lab.check_quiet, lab.check_busy, lab.check_rules):
        budget(solved["Budgeted"], draw)
    for tied in (lab.check_lines, lab.check_waits):
        tied(solved["TwoQueues"], draw)
    for tokens in (lab.check_chat, lab.check_ttft):
        tokens(solved["FirstToken"], draw)
    for until in ("first token", "answer"):
        lab.check_at_most(solved["at_most"], *lab.drawn_asks(draw), until)
    for factor in (0.4, 3.0, 5.0):
        lab.check_learns(solved["Learned"], draw, factor)
        lab.check_keeps(solved["Learned"], draw, factor)


# ------------------------------------------------------------------ what a wrong answer is told


def test_what_paper_is_told() -> None:
    times = [0.004, 0.001, 0.007, 0.002, 0.009]
    assert "draws a line there" in told(lab.check_delay, lambda times, share: np.quantile(times, 1 - share), times, 0.3)
    assert "a shorter delay keeps the budget" in told(lab.check_delay, lambda times, _: max(times), times, 0.3)
    hasty = lambda times, share: sorted(times)[-1 - math.floor(share * len(times))]  # noqa: E731
    assert "add a billionth of a call" in told(lab.check_delay, hasty, [float(place) for place in range(100)], 0.29)
    assert "not in order" in told(lab.check_delay, lambda times, _: times[3], times, 0.3)
    assert "got None" in told(lab.check_delay, lambda *_: None, times, 0.3)
    assert "no second copy" in told(lab.check_left, lambda times, *_: max(times), times, 0.004, 90)
    at_once = lambda times, delay, q: lab.left_after([min(a, b) for a in times for b in times], 1.0, q)  # noqa: E731
    assert "begins with the delay, and not at 0" in told(lab.check_left, at_once, times, 0.004, 90)
    nothing: list[Any] = [None, "soon", (1, 2), [], {}, float("nan"), float("inf"), True]
    for wrong in nothing:
        returns = lambda *_, value=wrong: value  # noqa: E731
        assert "delay_for() must be a number" in told(lab.check_delay, returns, times, 0.3)
        assert "left_after() must be a number" in told(lab.check_left, returns, times, 0.004, 90)
        assert "at_most() must be a number" in told(lab.check_at_most, returns, [(100, 11)], [0], "answer")
        assert "account() returns three numbers, got" in told(lab.check_account, returns, [["answered"]])
        assert "must be a number" in told(lab.check_account, lambda _, value=wrong: (value,) * 3, [["answered"]])
    lab.check_delay(lambda *given: np.array([lab.delay_for(*given)]), times, 0.3)


class Never(Sending):
    """One copy."""

    def __init__(self, *_: Any) -> None:
        pass

    def begin(self, call: Any) -> None:
        call.send()


class AtOnce(Never):
    """Two copies from the beginning."""

    def begin(self, call: Any) -> None:
        call.send()
        call.send()


class Endless(Never):
    """A copy for ever."""

    def begin(self, call: Any) -> None:
        while True:
            call.send()


class Nothing(Never):
    def begin(self, call: Any) -> None:
        pass


def test_what_a_second_copy_is_told() -> None:
    said = told(lab.check_saves, Never)
    assert "at 0 ms to replica 0, answered; wanted: at 0 ms to replica 0, cancelled; at 20 ms to replica 1" in said
    assert "at 0 ms to replica 1" in told(lab.check_needless, AtOnce)
    assert "has 20 copies and wants one more" in told(lab.check_saves, Endless)
    assert "begin() sends no copy of call 0" in told(lab.check_saves, Nothing)
    assert "at most 0.6 of it" in told(lab.check_gain, Never, np.random.default_rng(1))
    assert "by the rules:" in told(lab.check_many, Never, np.random.default_rng(1))

    class Timed(Never):
        def begin(self, call: Any) -> None:
            call.send()
            call.after("soon", self.begin, call)

    class Called(Never):
        def begin(self, call: Any) -> None:
            call.send()
            call.after(0.01, call.send())

    assert "a delay of 0 s or more, got 'soon'" in told(lab.check_saves, Timed)
    assert "takes a function and what it is called with" in told(lab.check_saves, Called)

    class Ticking(Never):
        def tick(self, call: Any) -> None:
            call.after(0.0, self.tick, call)

        def begin(self, call: Any) -> None:
            call.send()
            self.tick(call)

    assert "one that sets itself again" in told(lab.check_saves, Ticking)


class Door(Never):
    """One copy, and then whatever a test has done with the call."""

    does: Callable[..., Any]
    ends: Callable[..., Any] | None = None

    def begin(self, call: Any) -> None:
        call.send()
        type(self).does(self, call)

    def late(self, call: Any) -> None:
        pass

    def finished(self, call: Any, attempt: Any) -> None:
        (type(self).ends or Sending.finished)(self, call, attempt)


def waits(self: Any, call: Any) -> None:
    while call.now < call.arrival + 0.02:
        pass


def mixed(self: Any, call: Any) -> None:
    self.first = getattr(self, "first", call.attempts[0])
    call.cancel(self.first)


@pytest.mark.parametrize(
    ("does", "words"),
    [
        (lambda self, call: call.send(1), "send() takes nothing: the front door chooses the replica; got 1"),
        (lambda self, call: call.cancel(None), "cancel() takes one copy, such as call.attempts[0]; got None"),
        (lambda self, call: call.cancel(call.inside), "cancel() takes one copy, such as call.attempts[0]; got [<Att"),
        (lambda self, call: call.cancel(call.inside[0], after="1 ms"), "of 0 s or more, got '1 ms'"),
        (lambda self, call: call.cancel(call.inside[0], after=-1), "of 0 s or more, got -1"),
        (mixed, "cancel() of call 1 got a copy of call 0: one object serves all calls"),
        (lambda self, call: call.answer(call.attempts[0]), "answer() takes a copy that has its whole answer"),
        (lambda self, call: call.answer(None), "answer() takes one copy, such as call.attempts[0]; got None"),
        (lambda self, call: call.after(None, self.late, call), "a delay of 0 s or more, got None"),
        (lambda self, call: call.after(float("nan"), self.late, call), "a delay of 0 s or more, got nan"),
        (lambda self, call: call.after(0.01, self.late), "cannot call late with 0 of what it takes"),
        (lambda self, call: call.after(0.01, self.late, call, call.attempts[0]), "cannot call late with 2 of what"),
        (lambda self, call: call.after(0.01, self.late(call)), "takes a function and what it is called with"),
        (waits, "a loop that waits? No time passes while a method runs"),
        (lambda self, call: call.fail("too slow"), "call 0 has no answer, but failed"),
        (lambda self, call: call.cancel(call.inside[0]), "none of them is inside any more"),
    ],
)
def test_what_cannot_be_done_is_told(does: Callable[..., Any], words: str) -> None:
    door = type("One", (Door,), {"does": does})
    assert words in told(lab.check_share, door)
    assert words in told(lab.check_rules, door, np.random.default_rng(1))


def test_a_call_that_nobody_answers_is_told() -> None:
    silent = type("One", (Door,), {"does": lambda self, call: None, "ends": lambda self, call, attempt: None})
    assert "finished() has to say call.answer(attempt)" in told(lab.check_share, silent)

    class Mute(lab.Second):
        def failed(self, call: Any, attempt: Any) -> None:
            if len(call.attempts) < 2:
                call.send()

    assert "when the last copy has failed, say call.fail()" in told(lab.check_failed, Mute)


class GivesUp(lab.Second):
    """What is late is failed, and never counted among the latencies."""

    def late(self, call: Any) -> None:
        call.fail("too slow")


def test_whoever_gives_up_is_not_fast() -> None:
    draw = np.random.default_rng
    assert "has no answer, but failed" in told(lab.check_gain, GivesUp, draw(1))
    within = lambda delay, *_: GivesUp(delay)  # noqa: E731
    for check in (lab.check_never_above, lab.check_quiet, lab.check_busy, lab.check_rules):
        assert "has no answer, but failed" in told(check, within, draw(1))
    assert "has no answer, but failed" in told(lab.check_waits, GivesUp, draw(1))
    assert "has no answer, but failed" in told(lab.check_ttft, GivesUp, draw(1))
    for learned in (lab.check_learns, lab.check_keeps):
        assert "has no answer, but failed" in told(learned, lambda share: GivesUp(0.03), draw(1), 3.0)


def test_a_value_that_cannot_be_drawn_is_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (None, "soon", -1.0, [1, 2], float("nan")):
        assert lab.usable_number(lambda *_, value=wrong: value, lab.delay_for)([1.0, 2.0], 0.5) == 1
        assert "the library's was taken in its place" in capsys.readouterr().out
    assert lab.usable_number(lambda *_: np.float32(3), lab.delay_for)([1.0, 2.0], 0.5) == 3
    assert lab.usable_account(lambda _: (1, 2))([["answered"]]) == (1, 0, 0)
    assert "account() returns three numbers, got (1, 2)" in capsys.readouterr().out
    assert list(lab.usable_account(lambda _: [1, np.float64(0), 0])([["answered"]])) == [1, 0, 0]
    assert capsys.readouterr().out == ""


def test_what_an_account_is_told() -> None:
    calls = [["answered"], ["cancelled", "answered"], ["failed", "failed"], ["answered"]]
    assert "copies, and not calls" in told(lab.check_account, lambda _: (6, 0.5, 0.4), calls)
    assert "the first one with them" in told(lab.check_account, lambda _: (3, 1.5, 0.4), calls)
    assert "leave it out below the line" in told(lab.check_account, lambda _: (3, 0.5, 2 / 6), calls)
    assert "three numbers, got 3" in told(lab.check_account, lambda _: 3, calls)


def test_what_a_budget_is_told() -> None:
    second = lambda delay, *_: lab.Second(delay)  # noqa: E731
    assert "wanted [0, 4, 8]" in told(lab.check_share, second)
    assert "wanted [2]; when the first call's delay ends, the other replica is busy" in told(lab.check_idle, second)
    assert "nobody who is up is idle" in told(lab.check_down, second)
    said = told(lab.check_never_above, second, np.random.default_rng(2))
    assert re.search(r"from [\d.]+ to [\d.]+ s there are [\d.]+ more copies than", said)
    assert "not a single second copy" in told(lab.check_never_above, Never, np.random.default_rng(2))
    assert "8 % of copies are asked for" in told(lab.check_busy, second, np.random.default_rng(2))
    assert "at most 1.3 times that is asked for" in told(lab.check_quiet, Never, np.random.default_rng(2))


def test_what_two_lines_are_told() -> None:
    class Everybody(lab.TwoQueues):
        def started(self, call: Any, attempt: Any) -> None:
            for other in call.inside:
                if other is not attempt:
                    call.cancel(other, after=self.message)

    assert "is never answered. Its copies: at 0 ms to replica 0, cancelled; at 2 ms to replica 1, cancelled" in told(
        lab.check_both_start, Everybody
    )
    assert "the first copy starts at once" in told(lab.check_one_is_enough, AtOnce)
    assert "at most half of the time in line, and 3 % of the work, are asked for" in told(
        lab.check_waits, Never, np.random.default_rng(1)
    )

    class Left(lab.TwoQueues):
        def started(self, call: Any, attempt: Any) -> None:
            pass

    assert "called back by the one that has" in told(lab.check_called_back, Left)


def test_what_tokens_are_told() -> None:
    assert "at 100 ms to replica 1, answered" in told(lab.check_paused, Never)
    assert "a long answer is as long on every replica" in told(lab.check_no_need, lambda delay: Hedge(delay))
    assert "until then it computes for nothing" in told(lab.check_first_wins, lambda delay: Hedge(delay))
    assert "at most 0.8 of the time" in told(lab.check_ttft, Never, np.random.default_rng(1))
    asks = [(100, 11), (200, 51)]
    assert "computes its prompt, and no answer" in told(
        lab.check_at_most, lambda *_: 250 / 360, asks, [1], "first token"
    )
    assert "calls, and not tokens" in told(lab.check_at_most, lambda *_: 0.5, asks, [1], "answer")


def test_what_a_learner_is_told() -> None:
    assert "before noon the p99" in told(lab.check_learns, Never, np.random.default_rng(1), 3.0)
    fixed = lambda share: lab.Second(0.001)  # noqa: E731
    late = told(lab.check_learns, lambda share: lab.Second(0.1), np.random.default_rng(1), 3.0)
    assert "before noon the delay is 100 ms, the median of the second copies" in late and "1.6 times that" in late

    class OneCopyOnly(lab.Learned):
        def finished(self, call: Any, attempt: Any) -> None:
            if len(call.attempts) == 1:
                self.latest.append(call.now - call.arrival)
            call.answer(attempt)

    said = told(lab.check_learns, OneCopyOnly, np.random.default_rng(6), 3.0)
    assert re.search(r"noon 0\.\d+ of the calls take longer than your delay, .* 1.7 times the share", said)
    assert "10 are allowed" in told(lab.check_keeps, fixed, np.random.default_rng(1), 3.0)


# ------------------------------------------------------------------ before real engines


def test_the_front_door_of_real_engines(solved: dict[str, Any]) -> None:
    """The same policy, two engines with pocket: same words, nothing left in the pools, and the wait cut short."""
    from underload.cache import BlockPool
    from underload.decoder import DecoderExecutor, generate, load_model
    from underload.engine import Engine
    from underload.request import SamplingParams
    from underload.scheduling import Scheduler

    model = load_model("pocket", batch_invariant=True, threads=1)
    assert model.tokenizer is not None
    prompts = [model.tokenizer.encode(f"Mira went to the bakery {word}") for word in ("on", "at", "with", "in")]
    right = generate(model, prompts, SamplingParams(max_tokens=6, temperature=0, ignore_eos=True))
    for policy in (Once(), solved["FirstToken"](0.01), lab.Second(0.0), lab.TwoQueues(0.002)):
        engines = [Engine(Scheduler(BlockPool(32, 16)), DecoderExecutor(model, 32, 16)) for _ in range(2)]
        calls = lab.live(engines, policy, prompts, [6] * 4, [0.0, 0.0, 0.01, 0.02], still=(0.0, 0.15))
        assert [call.winner.request.sequences[0].output_ids for call in calls if call.winner] == [
            one.token_ids for one in right
        ]
        assert [engine.scheduler.pool.num_used for engine in engines] == [0, 0]
        states = [attempt.state for call in calls for attempt in call.attempts]
        assert states.count("answered") == 4 and states.count("cancelled") == len(states) - 4
        waits = [(call.winner.first_token or 0.0) - call.arrival for call in calls if call.winner]
        # Calls 0 and 2 go to the engine that stands still; nobody hurries where one copy is all there is.
        assert (waits[0] >= 0.149) == isinstance(policy, Once)
        assert len(states) > 4 or isinstance(policy, Once)


# ------------------------------------------------------------------ recorded


def test_the_recorded_run_is_the_lab_s(source: Any) -> None:
    book = lab.book()
    cell = next(cell.source for cell in source.cells if cell.id == "end")
    assert set(book["numbers"]) == set(re.findall(r'^    "([^"]+)":', cell, flags=re.MULTILINE))
    assert "hedging_lab.py" in book["command"] and book["machine"]["cpu"] and book["date"]
    assert (
        book["numbers"]["longest to first token on pocket, hedged (ms)"]
        < book["numbers"]["longest to first token on pocket, one copy (ms)"]
    )
    quiet = lab.by_chance(0.1)
    assert book["numbers"]["p99 with one copy (ms)"] == pytest.approx(1e3 * lab.p99(lab.once(quiet)), abs=1e-5)
    benchmark("hedging_lab", source)
