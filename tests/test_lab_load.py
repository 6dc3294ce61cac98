"""Lab 3: what a wrong answer is told, what the tasks start from, and the inputs that checks draw.

What solutions, hand-outs and wrong answers earn is `underload course verify`'s to say, from tests/course.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from lab_source import LABS, assert_library_is_there, assert_points, benchmark, told

from underload import metrics, workload
from underload.labs import load as lab
from underload.request import FinishReason, Timeline, UnderloadError
from underload.simulation import simulate

SOURCE = LABS / "load.ipynb"


# ------------------------------------------------------------------ the notebook


def test_points_and_tasks(source: Any) -> None:
    assert_points(source, 20, 3, 80)


def test_what_an_answer_may_not_use_is_there(source: Any) -> None:
    assert_library_is_there(source)


def test_what_the_text_says_by_hand(solved: dict[str, Any]) -> None:
    clock = lab.SleepyClock(7.0)
    held = {1: 0.3}

    def send(request: int) -> None:
        clock.time += held.get(request, 0.0)

    assert solved["open_loop"]([0, 0.5, 0.6, 2], send, clock) == pytest.approx([0, 0.5, 0.8, 2])
    events = lab.Events()
    line = lab.Line(events, [2.0])
    assert solved["closed_loop"](2, lambda user: 1.0, 5, line.submit, events) == [
        (1, 0),
        (1, 1),
        (4, 0),
        (6, 1),
        (8, 0),
    ]
    from_schedule, from_send = solved["latencies"]([i / 10 for i in range(10)], [0.19] * 10)
    assert from_send == [0.19] * 10
    assert from_schedule == pytest.approx([0.19 + 0.09 * i for i in range(10)]) and from_schedule[-1] == pytest.approx(
        1
    )
    assert solved["dispersion"]([0.5, 2.1, 2.2, 2.3, 3.4, 4.2], 1, 4.5) == pytest.approx(0.95)
    assert solved["tpot"](lab.by_hand()) == pytest.approx({"vLLM": 0.1, "guidellm": 1.9 / 6, "llmperf": 2.9 / 6})
    assert solved["ranks"](6, 50) == (1, 6) and solved["ranks"](5, 50) is None and solved["needed"](50) == 6


def test_the_solutions_agree_with_the_library(solved: dict[str, Any]) -> None:
    draw = np.random.default_rng(1)
    for connections in (1, 3):
        client = lab.drawn_client(draw, connections)
        run = simulate(arrivals=client["schedule"], service=client["services"], servers=connections)
        mine = solved["latencies"](**client)
        assert mine[0] == pytest.approx(run.finish - run.arrival) and mine[1] == pytest.approx(client["services"])
    law = workload.Gamma(5.0, 0.25)
    drawn = solved["gaps"](draw, 5.0, 0.25, 50_000)
    assert np.mean(drawn) == pytest.approx(1 / law.rate, rel=0.05) and solved["cv"](drawn) == pytest.approx(
        law.cv, rel=0.05
    )
    trace = np.array(lab.your_trace(3))
    found = workload.dispersion(trace, lab.WINDOW, lab.TRACE)
    assert found is not None and lab.dispersion(trace.tolist(), lab.WINDOW, lab.TRACE) == pytest.approx(
        found.index, rel=0.01
    )  # it lets ticks of a clock be 2 ms off
    log = lab.drawn_log(draw, failures=3, singles=2)
    tools = {"vLLM": "TPOT", "guidellm": "TPOT", "llmperf": "ITL"}
    table = metrics.dialects.compare(log, tools=list(tools))
    wanted = {tool: table.find(quantity, tool).mean for tool, quantity in tools.items()}
    assert solved["tpot"](log) == pytest.approx(wanted) and lab.dialects(log) == pytest.approx(wanted)
    for n, q, confidence in ((400, 99, 0.95), (100, 75, 0.99), (30, 20, 0.9), (50, 95, 0.95)):
        interval = metrics.percentile_interval([float(i) for i in range(1, n + 1)], q, confidence)
        expected = None if interval is None else (interval.low, interval.high)
        assert solved["ranks"](n, q, confidence) == expected == lab.ranks(n, q, confidence)
        assert solved["needed"](q, confidence) == metrics.samples_needed(q, confidence) == lab.needed(q, confidence)


def test_time_passes_in_the_shortest_sleep_and_in_nothing_else() -> None:
    clock = lab.SleepyClock(100.0)
    clock.sleep(1e-18)  # as a loop asks for, whose rest is rounding
    assert clock.now() == math.nextafter(100.0, math.inf)
    with pytest.raises(AssertionError, match=r"time passes in clock.sleep\(\)"):
        while clock.now() < 101:
            clock.sleep(0)


def test_the_generators_do_what_the_librarys_do(solved: dict[str, Any]) -> None:
    schedule = lab.poisson(5.0, 50, 1)
    sent = solved["open_loop"](schedule, lambda request: None, lab.SleepyClock(3.0))
    assert sent == pytest.approx(schedule)
    events = lab.Events(2.0)
    line = lab.Line(events, [0.4, 0.7])
    mine = solved["closed_loop"](3, lambda user: 0.5 + user, 12, line.submit, events)
    events = lab.Events(2.0)
    line = lab.Line(events, [0.4, 0.7])
    assert mine == lab.closed_loop(3, lambda user: 0.5 + user, 12, line.submit, events)


def test_the_stored_run_shows_what_the_text_says(source: Any) -> None:
    said = {
        cell.id: "".join(output.get("text", "") for output in cell.outputs)
        for cell in source.cells
        if cell.cell_type == "code"
    }
    both = said["task-1-both"]
    opened = [float(value) for value in re.findall(r"/s: latency +([\d.]+) s", both)]
    closed = [float(value) for value in re.findall(r"users: +([\d.]+)/s", both)]
    assert opened[3] > 50 * opened[2] and closed == pytest.approx([10] * 4, rel=0.03)
    times, wrote = map(float, re.findall(r"(\d+) times as large; you wrote ([\d.]+)", said["task-2-answer"])[0])
    assert times > 50 and wrote == 10
    three = {name: float(ms) for name, ms in re.findall(r"(.+?) +mean .* p99 +([\d.]+) ms", said["task-2-three"])}
    assert three["one connection, from the send"] < three["one connection, from the schedule"]
    mine, mixed, knob = (
        [float(v) for v in re.findall(r"[\d.]+", line.split("  ", 1)[1])]
        for line in said["task-3-shuffle"].splitlines()[1:]
    )
    assert mine[0] == pytest.approx(mixed[0], abs=0.011) and mine[-2] > 3 * mixed[-2] and mine[-2] > 3 * knob[-2]
    ones, fours = (
        {tool: float(ms) for tool, ms in re.findall(r"(\w+) ([\d.]+) ms \(", line)}
        for line in said["task-4-real"].splitlines()
    )
    assert fours["vLLM"] < 0.75 * ones["vLLM"] and fours["llmperf"] > 1.5 * ones["llmperf"]
    assert fours["guidellm"] == pytest.approx(ones["guidellm"])
    assert all(
        f"(the library: {a})" in said["task-4-real"] for a in re.findall(r"\w+ ([\d.]+) ms", said["task-4-real"])
    )
    assert 94 <= float(re.findall(r"in ([\d.]+)% of the tests", said["task-5-cover"])[0]) <= 98.5


# ------------------------------------------------------------------ what the tasks start from


def test_the_book_has_its_numbers() -> None:
    book = lab.book()
    p99 = book["seconds"]
    assert set(p99) == {
        "open, from the schedule",
        "one connection, from the schedule",
        "one connection, from the send",
        "closed, one user",
    }
    assert p99["one connection, from the send"] < p99["one connection, from the schedule"]
    assert p99["closed, one user"] < p99["open, from the schedule"]
    assert book["machine"]["cpu"] and re.fullmatch(r"\d{4}-\d\d-\d\d", book["date"])
    assert "load_lab.py" in json.dumps(book)


@pytest.mark.parametrize("seed", range(0, 300, 3))
def test_every_students_inputs_are_as_hard_as_the_others(seed: int) -> None:
    server = lab.your_server(seed)
    from_schedule, from_send = lab.latencies(server.schedule, server.services)
    late, fast = np.percentile(from_schedule, 99), np.percentile(from_send, 99)
    assert late > 0.5 * server.stall > 20 * fast
    for method in ("linear", "nearest", "lower", "higher"):
        lab.check_my_p99(np.percentile(from_schedule, 99, method=method), "from schedule", server)
        lab.check_my_p99(np.percentile(from_send, 99, method=method), "from send", server)
    trace = lab.your_trace(seed)
    assert trace == sorted(trace) and trace[0] >= 0 and trace[-1] < lab.TRACE
    spread, index = lab.cv(np.diff(trace)), lab.dispersion(trace, lab.WINDOW, lab.TRACE)
    assert 1.2 < spread < 2.2 and index > 3 * spread**2
    lab.check_my_cv(lab.cv(np.diff([0.0, *trace])), trace)
    lab.check_my_dispersion(index * 119 / 120, trace)
    with pytest.raises(AssertionError, match="and not that of your trace"):
        lab.check_my_dispersion(spread**2, trace)


def test_the_inputs_of_the_book_stay() -> None:
    assert str(lab.your_server(0)) == (
        "your server: answers in about 31 ms, and once stands still for 5.7 s; "
        "600 requests, 10 a second, one connection"
    )
    assert len(lab.your_trace(0)) == 4514


def test_shuffled_gaps_are_the_same_gaps() -> None:
    trace = lab.your_trace(1)
    assert sorted(np.diff([0, *lab.shuffled(trace)])) == pytest.approx(sorted(np.diff([0, *trace])), abs=1e-8)


@pytest.mark.parametrize("seed", range(20))
def test_drawn_inputs_are_what_their_checks_are_about(seed: int) -> None:
    draw = np.random.default_rng(seed)
    schedule, takes = lab.drawn_schedule(draw), lab.drawn_holdups(draw)
    assert schedule == sorted(schedule) and len(set(schedule)) == len(schedule) - 1
    clock = lab.SleepyClock()

    def send(request: int) -> None:
        clock.time += takes[request]

    late = [s - d for s, d in zip(lab.open_loop(schedule, send, clock), schedule, strict=True)]
    assert max(late) > 0.1 and late[-1] < 0.01, "somebody is late, and it is made up for"
    users = lab.drawn_users(draw)
    _, line = lab._closed(lab.closed_loop, **users)
    assert line.most_inside > 1 and len(line.sends) == users["requests"]
    assert len({instant for instant, _ in line.sends}) == users["requests"], "no ties"
    for connections in (1, 2, 5):
        from_schedule, from_send = lab.latencies(**lab.drawn_client(draw, connections))
        assert sum(a > b + 0.01 for a, b in zip(from_schedule, from_send, strict=True)) > 5
        assert any(a == pytest.approx(b) for a, b in zip(from_schedule, from_send, strict=True))
    arrivals = lab.drawn_instants(draw)
    whole = int(arrivals["horizon"] / arrivals["window"])
    assert arrivals["instants"][0] > arrivals["window"] and arrivals["instants"][-1] > whole * arrivals["window"]
    log = lab.drawn_log(draw, failures=4, singles=2)
    failed = [t for t in log if t.finish_reason == FinishReason.ERROR]
    assert sorted(t.output_tokens for t in failed) == [0, 0, 3, 3] and len(log) == 14
    assert any(len(set(t.token_times)) < t.output_tokens - 1 for t in log)


def test_something_real_is_driven_in_all_three_ways() -> None:
    served: list[int] = []

    def serve(request: int) -> None:
        served.append(request)
        time.sleep(0.002)

    server = lab.Behind(serve, warm=2)
    lab.open_loop([0, 0, 0.001], server.send, server)
    finished = server.finished()
    assert len(finished) == 3 and (np.diff(finished) > 0.0015).all()
    server.restart()
    sent = lab.open_loop([0, 0, 0.001], server.ask, server)
    assert (np.array(sent)[1:] >= server.finished()[:-1] - 1e-3).all(), "one at a time"
    server.restart()
    sends = lab.closed_loop(2, lambda user: 0.001, 5, server.submit, server)
    assert len(sends) == 5 == len(server.finished()) and {user for _, user in sends} == {0, 1}
    server.close()
    assert served == [0, 1, *range(3), *range(3), *range(5)]


def test_what_is_closed_says_so_instead_of_keeping_its_caller_waiting() -> None:
    server = lab.Behind(lambda request: None)
    server.ask(0)
    server.close()
    for ask in (server.send, server.ask, lambda request: server.submit(0, lambda: None)):
        with pytest.raises(UnderloadError, match="closed and would never answer"):
            ask(1)
    server.run()
    assert len(server.finished()) == 1


def test_a_run_that_broke_off_leaves_nothing_to_the_next() -> None:
    server = lab.Behind(lambda request: time.sleep(0.002))

    def breaks(user: int) -> float:
        if len(server._served) > 2:
            raise ValueError("no think time left")
        return 0.0

    with pytest.raises(ValueError, match="no think time left"):
        lab.closed_loop(3, breaks, 50, server.submit, server)
    server.restart()
    sends = lab.closed_loop(2, lambda user: 0.001, 5, server.submit, server)
    assert len(sends) == 5 == len(server.finished()) and server.now() < 5
    server.close()


def test_users_who_never_stop_are_stopped_on_the_wall_clock_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "_MOST", 1000)
    server = lab.Behind(lambda request: None)

    def again() -> None:
        server.at(server.now(), again)

    again()
    with pytest.raises(AssertionError, match="events and no end"):
        server.run()
    server.close()


def test_what_fails_behind_the_line_is_raised_before_it() -> None:
    def serve(request: int) -> None:
        raise ValueError("out of order")

    server = lab.Behind(serve)
    with pytest.raises(ValueError, match="out of order"):
        server.ask(0)
    server.close()


# ------------------------------------------------------------------ what a wrong answer is told


def _slept(schedule: list[float], send: Callable[[int], None], clock: Any) -> list[float]:
    begin, before, sent = clock.now(), 0.0, []
    for request, due in enumerate(schedule):
        clock.sleep(due - before)
        before = due
        sent.append(clock.now() - begin)
        send(request)
    return sent


def test_what_an_open_loop_is_told() -> None:
    steady = [i / 200 for i in range(2_000)]
    said = told(lab.check_open, _slept, steady, overshoot=0.0005)
    assert "request 1999" in said and "999.5 ms late; each gap is slept in full" in said

    def at_once(schedule: Any, send: Any, clock: Any) -> None:
        for request in range(len(schedule)):
            send(request)

    assert "all went out together" in told(lab.check_open, at_once, [0, 0.5, 2])
    assert "no request was sent" in told(lab.check_open, lambda *_: None, [0, 1])
    assert "sent once each, 0 first" in told(lab.check_open, lambda s, send, c: send(1), [0, 1])
    assert "there is no request 9" in told(lab.check_open, lambda s, send, c: send(9), [0, 1])
    assert "time passes in clock.sleep()" in told(
        lab.check_open, lambda s, send, c: [c.now() for _ in range(100_000)], [0, 1]
    )
    assert "nobody sleeps backwards" in told(lab.check_open, lambda s, send, c: c.sleep(-1), [0, 1])
    assert "must be a number, got None" in told(lab.check_open, lambda s, send, c: c.sleep(None), [0, 1])

    def late_stamp(schedule: Any, send: Any, clock: Any) -> list[float]:
        begin, sent = clock.now(), []
        for request, due in enumerate(schedule):
            clock.sleep(max(0, begin + due - clock.now()))
            send(request)
            sent.append(clock.now() - begin)
        return sent

    stamps = {"schedule": [0.1, 0.5], "takes": [0.01, 0.01]}
    assert "read after send()" in told(lab.check_stamps, late_stamp, **stamps)
    plus = lambda s, send, c: [value + 100 for value in lab.open_loop(s, send, c)]  # noqa: E731
    assert "by the clock; the call was at 100 s" in told(lab.check_stamps, plus, **stamps)
    nothing = lambda s, send, c: lab.open_loop(s, send, c) and None  # noqa: E731
    assert "must return a list of instants, got None" in told(lab.check_stamps, nothing, **stamps)


def test_what_a_closed_loop_is_told() -> None:
    two: dict[str, Any] = {"users": 2, "thinks": [[1], [1]], "services": [2], "requests": 5}

    def eager(users: int, think: Any, requests: int, submit: Any, events: Any) -> None:
        for user in range(users):
            submit(user, lambda: None)
            submit(user, lambda: None)
        events.run()

    assert "has a request inside already" in told(lab.check_one_each, eager, **two)
    assert "send 0 is user 0's at 0 s after the call" in told(lab.check_users, eager, **two)
    assert "4 requests were sent; 5 were asked for" in told(lab.check_returned, eager, **two)
    assert "no request was sent" in told(lab.check_users, lambda *_: None, **two)
    said = told(lab.check_users, lambda u, t, r, s, events: events.at(1, s, 0), **two)
    assert "lies in the past, it is 100 s" in said
    assert "needs something to call" in told(lab.check_users, lambda u, t, r, s, events: events.at(101, None), **two)
    assert "when the answer is there, got None" in told(lab.check_users, lambda u, t, r, s, e: s(0, None), **two)

    def endless(users: int, think: Any, requests: int, submit: Any, events: Any) -> None:
        def go() -> None:
            submit(0, go)

        go()
        events.run()

    assert "no end" in told(lab.check_users, endless, **two)
    assert "1 of the 2 users" in told(lab.check_one_each, lambda u, *rest: lab.closed_loop(1, *rest), **two)
    bare = lambda *all: [instant for instant, _ in lab.closed_loop(*all)]  # noqa: E731
    assert "must return a list of (instant, user)" in told(lab.check_returned, bare, **two)


def test_what_latencies_are_told() -> None:
    ten = {"schedule": [i / 10 for i in range(10)], "services": [0.19] * 10}
    swapped = lambda *all: lab.latencies(*all)[::-1]  # noqa: E731
    assert "request 1 took 0.19 s (that is from the send)" in told(lab.check_latencies, swapped, "from schedule", **ten)
    client = lab.drawn_client(np.random.default_rng(1), 3)
    one = lambda schedule, services, connections: lab.latencies(schedule, services)  # noqa: E731
    assert "as if there were one connection" in told(lab.check_latencies, one, "from schedule", **client)
    assert "two lists" in told(lab.check_latencies, lambda *_: None, "from send", **ten)
    assert "0 latencies of 10 requests" in told(lab.check_latencies, lambda *_: ([], []), "from send", **ten)
    server = lab.your_server(0)
    p99 = [float(np.percentile(values, 99)) for values in lab.latencies(server.schedule, server.services)]
    assert "(the other one)" in told(lab.check_my_p99, p99[1], "from schedule", server)
    assert "in milliseconds" in told(lab.check_my_p99, 1e3 * p99[1], "from send", server)
    with pytest.raises(NotImplementedError, match="my_from_send"):
        lab.check_my_p99(None, "from send", server)


def test_what_gaps_are_told() -> None:
    by_rate = lambda rng, rate, b, n: rng.gamma(b, rate / b, n)  # noqa: E731
    assert "(the rate where the mean belongs)" in told(lab.check_gap_mean, by_rate, 4, 1)
    unshaped = lambda rng, rate, b, n: rng.gamma(b, 1 / rate, n)  # noqa: E731
    assert "the shape was forgotten" in told(lab.check_gap_mean, unshaped, 4, 3)
    backwards = lambda rng, rate, b, n: rng.gamma(1 / b, b / rate, n)  # noqa: E731
    assert "burstiness runs backwards" in told(lab.check_gap_cv, backwards, 4, 0.25)
    assert "gaps that are NaN" in told(lab.check_gap_law, lambda rng, r, b, n: [math.nan] * n, 4, math.inf)
    assert "all gaps are equal" in told(lab.check_gap_law, lambda rng, r, b, n: rng.random(n), 4, math.inf)
    normal = lambda rng, rate, b, n: rng.lognormal(0, 1.27, n)  # noqa: E731
    assert "in a gamma law of that shape" in told(lab.check_gap_law, normal, 4, 0.25)
    assert "gaps were asked for, got 1" in told(lab.check_gap_mean, lambda *_: [1], 4, 1)
    assert "the square of it" in told(lab.check_cv, lambda gaps: np.var(gaps) / np.mean(gaps) ** 2, [1, 1, 1, 5])
    instants = [0.5, 2.1, 2.2, 2.3, 3.4, 4.2]
    for value, why in ((0.96 / 1.2, "no whole one"), (0.889 / 1.6667, "")):
        assert why in told(lab.check_dispersion, lambda *_, value=value: value, instants, 1, 4.5)


def test_what_dialects_are_told() -> None:
    log = lab.by_hand()[:1]
    said = told(lab.check_dialect, lambda log: {"vLLM": 0.08}, log, "vLLM")
    assert "80 ms (divided by n; n tokens have n − 1 gaps)" in said and "100 ms" in said
    assert "that is guidellm's" in told(lab.check_dialect, lambda log: {"vLLM": 0.28}, log, "vLLM")
    assert "it counts chunks" in told(lab.check_dialect, lambda log: {"llmperf": 1.4 / 5}, log, "llmperf")
    assert "'llmperf' is missing" in told(lab.check_dialect, lambda log: {"vLLM": 0.1}, log, "llmperf")
    draw = np.random.default_rng(2)
    good, failed = lab.drawn_log(draw), lab.drawn_log(draw, failures=4, answers=0)
    singles = lab.drawn_log(draw, singles=3, answers=0)

    def forgetful(log: list[Timeline]) -> dict[str, float | None]:
        return lab.dialects([lab.timeline(t.sent or 0, *((x, 1) for x in t.token_times)) for t in log if t.token_times])

    assert "a request that failed, with or without tokens" in told(lab.check_failures, forgetful, good, failed)
    zero = lambda log: {name: value or 0.0 for name, value in lab.dialects(log).items()}  # noqa: E731
    assert "a 0 would look like the fastest server" in told(lab.check_failures, zero, good, failed)
    assert "vLLM of nothing but answers of one token is 0 s" in told(lab.check_singles, zero, good, singles)
    said = told(lab.check_singles, lambda log: {"vLLM": sum(1 / (t.output_tokens - 1) for t in log)}, good, singles)
    assert "is missing" in said or "divides by 0" in said


def test_what_ranks_are_told() -> None:
    zero = lambda n, q, c=0.95: (lab.ranks(n, q, c)[0] - 1, lab.ranks(n, q, c)[1] - 1)  # type: ignore[index]  # noqa: E731
    assert "ranks count from 1" in told(lab.check_ranks, zero, 1_000, 99)
    sided = lambda n, q, c=0.95: lab.ranks(n, q, 2 * c - 1)  # noqa: E731
    assert "the whole risk was given to each side" in told(lab.check_ranks, sided, 1_000, 99)
    assert "too few for an interval" in told(lab.check_ranks, lambda *_: (1, 5), 5, 50)
    assert "there are enough" in told(lab.check_ranks, lambda *_: None, 6, 50)
    assert "an upper limit only" in told(lab.check_needed, lambda *_: 299, 99)
    assert "rounded down" in told(lab.check_needed, lambda *_: 367, 99)


# ------------------------------------------------------------------ the benchmark


def test_the_benchmark_names_cells_that_are_there(source: Any) -> None:
    bench = benchmark("load_lab", source)
    cells = {cell.id: cell.source for cell in source.cells}
    assert set(re.findall(r'"([^"]+)": \w+', cells[bench.MEASURED[-1]].partition("rows = ")[2])) == set(
        lab.book()["seconds"]
    )
