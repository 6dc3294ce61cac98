"""Lab 1: what a wrong answer is told, what the tasks start from, and the inputs that checks draw.

What solutions, hand-outs and wrong answers earn is `underload course verify`'s to say, from tests/course.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from lab_source import LABS, assert_library_is_there, assert_points

from underload import metrics
from underload.labs import latency_budget as lab
from underload.request import Timeline, VirtualClock

SOURCE = LABS / "latency-budget.ipynb"


# ------------------------------------------------------------------ the notebook


def test_points_and_tasks(source: Any) -> None:
    assert_points(source, 20, 2, 95)


def test_what_an_answer_may_not_use_is_there(source: Any) -> None:
    assert_library_is_there(source)


def test_the_solutions_stamp_as_observing_from_outside_does(solved: dict[str, Any]) -> None:
    lines = []
    for serve in (solved["serve"], lab.observe):
        clock = VirtualClock()
        server = lab.ScriptedServer(clock, decode_seconds=(0.01, 0.3, 0.02), tail="!")
        lines.append(serve(server, clock, "A prompt.", 5, -0.2))
    (mine, my_line), (theirs, their_line) = lines
    assert mine == theirs == "One or two.!"
    assert my_line.token_times == pytest.approx(their_line.token_times)
    for field in ("arrival", "sent", "queued", "scheduled", "finished", "prompt_tokens", "detokenize_seconds"):
        assert getattr(my_line, field) == pytest.approx(getattr(their_line, field)), field


def test_the_budget_agrees_with_the_librarys_stages(solved: dict[str, Any]) -> None:
    for line in lab.example_log(30, seed=2):
        assert solved["budget"](line) == pytest.approx(
            {stage: seconds for stage, seconds in metrics.stages(line).items() if stage in lab.STAGES}
        )


# ------------------------------------------------------------------ what a wrong answer is told


def serve_with(**slips: bool) -> Callable[..., tuple[str, Timeline]]:
    """The right loop with named slips in it."""

    def serve(server: Any, clock: Any, text: str, max_tokens: int, arrival: float) -> tuple[str, Timeline]:
        line = Timeline(arrival=clock.now() if "arrival" in slips else arrival)
        line.sent = clock.now()
        if "order" in slips:
            server.turn()
            line.scheduled = clock.now()
        ids = server.encode(text)
        line.prompt_tokens = len(ids)
        if "queued" not in slips:
            line.queued = clock.now()
        if "scheduled" in slips:
            line.scheduled = clock.now()
        if "turn" not in slips and "order" not in slips:
            server.turn()
        if "queued" in slips:
            line.queued = clock.now()
        if "scheduled" not in slips and "order" not in slips:
            line.scheduled = clock.now()
        answer, token = "", server.prefill(ids)
        for number in range(1, max_tokens + 1):
            began = clock.now()
            if "early" in slips:
                line.token_times.append(began)
            answer += server.to_text(token)
            if "early" not in slips and not ("first" in slips and number == 1):
                line.token_times.append(clock.now())
            line.detokenize_seconds += clock.now() - began
            if number < max_tokens or "wasted" in slips:
                token = server.decode(token)
        began = clock.now()
        answer += "" if "rest" in slips else server.rest()
        line.finished = None if "finished" in slips else clock.now()
        if "seconds" not in slips:
            line.detokenize_seconds += clock.now() - began
        return answer, line

    return serve


CHECKS = (lab.check_calls, lab.check_waiting, lab.check_tokens, lab.check_totals)


@pytest.mark.parametrize(
    ("slip", "check", "told"),
    [
        ("arrival", lab.check_waiting, r"arrival is .*; it is the intended arrival .* hides how late the client was"),
        (
            "queued",
            lab.check_waiting,
            r"queued is .*, the instant when turn\(\) had returned; it is the instant when the prompt had become",
        ),
        ("scheduled", lab.check_waiting, r"scheduled is .*, the instant when encode\(\) had returned; .* its turn had"),
        ("turn", lab.check_calls, r"turn\(\) was never called; a request is tokenised, waits for its turn"),
        ("order", lab.check_calls, r"turn\(\) was called before encode\(\)"),
        ("early", lab.check_tokens, r"token_times\[0\] is .*, the instant when prefill\(\) had returned; .* as text"),
        ("first", lab.check_tokens, r"token_times has 3 instants for 4 tokens"),
        ("wasted", lab.check_calls, r"decode\(\) ran 4 times for 4 tokens; it should run 3 times"),
        ("rest", lab.check_calls, r"rest\(\) was never called"),
        ("finished", lab.check_totals, r"finished was never stamped"),
        ("seconds", lab.check_totals, r"detokenize_seconds is .*; 4 calls of to_text\(\) and one of rest\(\) took"),
    ],
)
def test_a_slip_is_named_by_its_own_check_and_passes_the_others(slip: str, check: Any, told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        check(serve_with(**{slip: True}), tail="!")
    for other in CHECKS:
        other(serve_with(), tail="!")
        if other is not check:
            other(serve_with(**{slip: True}), tail="!")


def test_a_wrong_argument_is_named_and_stops_nothing() -> None:
    def serve(server: Any, clock: Any, text: str, max_tokens: int, arrival: float) -> tuple[str, Timeline]:
        ids = server.encode(text)
        server.turn()
        token = server.prefill(ids[:-1])
        answer = server.to_text(token)
        for _ in range(max_tokens - 1):
            answer += server.to_text(server.decode(token))
        return answer + server.rest(), Timeline(arrival=arrival)

    with pytest.raises(AssertionError, match=r"prefill\(\) was given .*, not the 9 ids of encode\(\)"):
        lab.check_calls(serve)
    with pytest.raises(AssertionError, match=r"sent was never stamped"):
        lab.check_waiting(serve)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"ttft": 0.3}, r"ttft is 0.3000 s \(counted from when it was scheduled\); it should be 0.5000"),
        ({"tpot": 0.19}, r"tpot is 0.1900 s \(the whole time over all tokens"),
        ({"tpot": 0.09}, r"tpot is 0.0900 s \(divided by 5 tokens, but there are 4 gaps\)"),
        ({"e2e": 0.96}, r"e2e is 0.9600 s \(up to `finished`"),
        ({"itl": [0.5, 0.05, 0.05, 0.3, 0.05]}, r"itl has 5 gaps; it should have 4, between 5 tokens"),
        ({"itl": [0.05, 0.05, 0.05, 0.30]}, r"itl\[2\] is 0.0500 s; it should be 0.3000 s"),
        ({"longest_stall": None}, r"longest_stall is None; it should be 0.3000 s"),
        ({"itl": 0.1}, r"itl must be a list of gaps, got 0.1"),
        ({"ttft": "500 ms"}, r"ttft is '500 ms'; it should be 0.5000 s"),
    ],
)
def test_a_wrong_latency_is_named(changes: dict[str, Any], told: str) -> None:
    line = Timeline(arrival=0.0, sent=0.01, scheduled=0.2, token_times=[0.5, 0.55, 0.6, 0.9, 0.95], finished=0.96)
    right = {"ttft": 0.5, "itl": [0.05, 0.05, 0.3, 0.05], "tpot": 0.1125, "e2e": 0.95, "longest_stall": 0.3}
    with pytest.raises(AssertionError, match=told):
        lab.check_times(lambda _: right | changes, line, right)
    lab.check_times(lambda _: right, line, right)


def test_a_zero_where_there_is_no_number_is_refused() -> None:
    line = Timeline(arrival=2.0, scheduled=2.1, token_times=[2.5])
    wanted = {"tpot": None}
    with pytest.raises(AssertionError, match="one token has no gap.*it should be None"):
        lab.check_times(lambda _: {"tpot": 0.0}, line, wanted)


def test_the_mean_of_shares_is_told_from_the_share_of_all() -> None:
    log = [lab.scripted_timeline(0.0), lab.scripted_timeline(5.0, queue=4.0)]

    def wrong(lines: Any) -> dict[str, float]:
        parts = [{s: v for s, v in metrics.stages(line).items() if s in lab.STAGES} for line in lines]
        return {s: sum(p[s] / sum(p.values()) for p in parts) / len(parts) for s in lab.STAGES}

    with pytest.raises(AssertionError, match="the mean of the requests' own shares"):
        lab.check_shares(wrong, log)


@pytest.mark.parametrize(
    ("word", "stage"),
    [("Tokenize", "tokenise"), ("tokenising", "tokenise"), (" queuing", "queue"), ("QUEUEING", "queue")],
)
def test_a_stage_may_be_spelt_otherwise(word: str, stage: str) -> None:
    assert lab.stage_of(word) == stage
    lab.check_prediction(largest_of_A=word)
    line = lab.scripted_timeline(3.0, client=0.1, queue=0.2)
    right = {name: end - begin for name, (begin, end) in lab._spans(line).items()}
    other = {word if name == stage else name: seconds for name, seconds in right.items()}
    assert list(lab.by_stage(other)) == list(lab.STAGES)
    lab.check_budget(lambda _: other, line)
    lab.check_shares(lambda _: {name: seconds / sum(right.values()) for name, seconds in other.items()}, [line])


@pytest.mark.parametrize("word", ["network", "", 3])
def test_what_is_no_stage_says_what_to_write(word: object) -> None:
    assert lab.stage_of(word) == word
    with pytest.raises(AssertionError, match="write one of client, tokenise, queue"):
        lab.check_prediction(largest_of_A=word)


def test_shares_that_follow_from_a_wrong_budget_are_right() -> None:
    log = lab.example_log(20)

    def late(line: Timeline) -> dict[str, float]:
        return {stage: end - line.arrival for stage, (_, end) in lab._spans(line).items()}

    def constant(line: Timeline) -> dict[str, float]:
        return dict.fromkeys(lab.STAGES, 1.0)

    def following(budget: Any) -> Any:
        return lambda lines: lab._share_of_all([budget(line) for line in lines])

    lab.check_shares(following(late), log, late)
    with pytest.raises(AssertionError, match="the share of client is"):
        lab.check_shares(following(late), log)
    with pytest.raises(AssertionError, match="the share of client is"):
        lab.check_shares(following(constant), log, constant)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (
            [0.12, 0.0, 0.3, 0.898],
            r"\[50, 100\) holds 0.0000 s; .*no prompt has 50 to 99 tokens, and no data gives no number",
        ),
        ([0.12, 0.3, None, 0.898], r"\[50, 100\) holds 0.3000 s; it should hold None"),
        ([0.12, None, None, 0.898], r"\[100, 200\) holds None; .* the median TTFT of its 1 prompt \(100 tokens"),
        ([0.12], r"5 edges make 4 buckets, got 1"),
        (0.12, r"ttft_by_length\(\) must return a list, got 0.12"),
    ],
)
def test_a_wrong_bucket_is_named(wrong: Any, told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        lab.check_borders(lambda log, edges: wrong)
    lab.check_borders(lambda log, edges: (0.12, None, 0.3, 0.898))


def test_a_mean_is_told_from_a_median() -> None:
    log = [lab.scripted_timeline(0.0, queue=0.1, prefill=seconds) for seconds in (0.1, 0.1, 0.7)]
    with pytest.raises(AssertionError, match="the mean: one slow request speaks for all"):
        lab.check_medians(lambda lines, edges: [statistics.mean(metrics.ttft(x) or 0 for x in lines)], log, (1, 50))
    with pytest.raises(AssertionError, match="counted from when it was scheduled"):
        lab.check_medians(lambda lines, edges: [0.1], log, (1, 50))


def test_a_wrong_line_is_named() -> None:
    xs, ys = [0.0, 10.0, 20.0, 30.0], [0.020, 0.060, 0.120, 0.200]
    for wrong, told in (
        ((0.006, 0.010), "floor and per_token are swapped"),
        ((0.020, 0.006), r"floor is 0.020000, it should be 0.010000"),
        ((0.0, 9.0 / 1400), "the slope of a line through the origin"),
        (0.01, r"fit_line\(\) must return \(floor, per_token\), got 0.01"),
    ):
        with pytest.raises(AssertionError, match=told):
            lab.check_line(lambda xs, ys, wrong=wrong: wrong, xs, ys)
    with pytest.raises(AssertionError, match="the slope from the first point to the last"):
        lab.check_line(lambda xs, ys: (0.02, 0.002), [0, 1, 2, 5], [0.02, 0.09, 0.05, 0.03])
    lab.check_line(lambda xs, ys: [0.010, 0.006], xs, ys)


def test_every_seed_is_fair() -> None:
    """Whatever the seed: three right ways are right, and a line through all requests costs the floor and it alone."""

    def line(log: Any, seconds: Any) -> tuple[float, float]:
        found = statistics.linear_regression([x.prompt_tokens for x in log], [seconds(x) for x in log])
        return found.intercept, found.slope

    for seed in range(150):
        log = lab.personal_log(seed)
        alone = [request for request in log if (metrics.queue_time(request) or 0) < 0.1]
        for floor, per_token in (
            line(alone, metrics.ttft),
            line(log, lambda x: x.token_times[0] - x.scheduled),
            line(log, lambda x: x.token_times[0] - x.arrival - (x.scheduled - x.queued)),
        ):
            lab.check_floor(floor, log)
            lab.check_per_token(per_token, log)
        floor, per_token = line(log, metrics.ttft)
        lab.check_per_token(per_token, log)
        with pytest.raises(AssertionError, match="a line through all requests has this floor"):
            lab.check_floor(floor, log)
        with pytest.raises(AssertionError, match="these look like milliseconds"):
            lab.check_floor(1e3 * line(alone, metrics.ttft)[0], log)
        with pytest.raises(AssertionError, match="is the wait for a turn still in some of the times"):
            lab.check_floor(1.2 * line(alone, metrics.ttft)[0], log)
        with pytest.raises(AssertionError, match="more than a tenth off"):
            lab.check_floor(0.8 * line(alone, metrics.ttft)[0], log)
    with pytest.raises(NotImplementedError, match="my_floor is None"):
        lab.check_floor(None, log)


def test_two_seeds_have_two_logs_and_one_has_one() -> None:
    assert lab.personal_log(3) == lab.personal_log(3) != lab.personal_log(4)
    for line in lab.personal_log(3):
        metrics.check(line)


class Naive:
    """Decodes piece by piece and looks for the stop string in each piece alone."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.stopped = False

    def push(self, piece: bytes) -> str:
        return piece.decode(errors="replace")

    def finish(self) -> str:
        return ""


class Hoarder(Naive):
    """Holds everything back until the end."""

    def __init__(self, stop: str) -> None:
        super().__init__(stop)
        self.all = b""

    def push(self, piece: bytes) -> str:
        self.all += piece
        self.stopped = bool(self.stop) and self.stop in self.all.decode(errors="ignore")
        return ""

    def finish(self) -> str:
        text = self.all.decode(errors="replace")
        return text[: text.index(self.stop)] if self.stop and self.stop in text else text


def test_a_stream_that_sends_too_early_or_too_late_is_named() -> None:
    train = "🚉".encode()
    with pytest.raises(AssertionError, match="half a character became a replacement mark"):
        lab.check_stream(Naive, [train[:2], train[2:]], "", ["", "🚉", ""])
    with pytest.raises(AssertionError, match="part of a stop string went out"):
        lab.check_stream(Naive, [b"ABC", b"DEF"], "DEFG", ["ABC", "", "DEF"])
    with pytest.raises(AssertionError, match="this text was safe to send and was kept"):
        lab.check_stream(Hoarder, [b"ABC", b"DEF"], "DEFG", ["ABC", "", "DEF"])
    with pytest.raises(AssertionError, match="what has been sent cannot be called back"):
        lab.check_stop(Naive, [b"ABC", b"DEF", b"G!"], "DEFG")
    lab.check_stop(Hoarder, [b"ABC", b"DEF", b"G!"], "DEFG")


@pytest.mark.parametrize("seed", range(20))
def test_drawn_streams_fail_what_they_are_for(seed: int) -> None:
    def draw() -> np.random.Generator:
        return np.random.default_rng(seed)

    for make, check in (
        (Naive, lab.check_drawn_characters),
        (Naive, lab.check_drawn_stops),
        (Naive, lab.check_drawn_holds),
        (Hoarder, lab.check_drawn_characters),
        (Hoarder, lab.check_drawn_holds),
    ):
        with pytest.raises(AssertionError):
            check(make, draw())
    lab.check_drawn_stops(Hoarder, draw())


@pytest.mark.parametrize("seed", range(20))
def test_drawn_timelines_hold_what_their_checks_are_about(seed: int) -> None:
    draw = np.random.default_rng(seed)
    line, chunked = lab.drawn_timeline(draw), lab.drawn_timeline(draw, chunks=True)
    for one in (line, chunked):
        metrics.check(one)
    stall, whole = metrics.longest_stall(line) or 0, metrics.longest_stall(chunked) or 0
    assert (metrics.ttft(line) or 0) > stall == pytest.approx(max(metrics.itl(line)))
    assert (metrics.ttft(chunked) or 0) < whole and whole > 1.5 * max(metrics.itl(chunked))
    assert metrics.chunks(chunked)[0][1] > 1
    scripts = list(lab.drawn_scripts(draw))
    assert scripts[0]["max_tokens"] == 1
    assert all(script["tail"] and script["pieces"][1] == "" for script in scripts[1:])


def test_a_head_start_too_short_or_too_long_is_named() -> None:
    with pytest.raises(AssertionError, match="the buffer runs dry"):
        lab.check_head_start(lambda times, rate: 1.0, [1.0, 1.1, 1.2, 4.0], 2.0, 1.5)
    with pytest.raises(AssertionError, match="the user waits longer than needed"):
        lab.check_head_start(lambda times, rate: 3.0, [1.0, 1.1, 1.2, 4.0], 2.0, 1.5)


# ------------------------------------------------------------------ what the tasks start from


def test_the_example_log_is_the_same_everywhere_and_consistent() -> None:
    log, again = lab.example_log(), lab.example_log()
    assert log == again
    for line in log:
        metrics.check(line)
        assert sum(metrics.stages(line).values()) == pytest.approx(metrics.e2e(line))
    arrivals = [line.arrival for line in log]
    assert all(earlier < later for earlier, later in pairwise(arrivals))
    assert {16 <= line.prompt_tokens <= 2048 for line in log} == {True}


def test_the_books_numbers_are_there(source: Any) -> None:
    book = lab.book()
    end = next(cell.source for cell in source.cells if cell.id == "end")
    for name in re.findall(r'"([^"{}]+)": ', end):
        assert book["seconds"][name] is not None, name
    assert book["machine"]["cpu"] and re.fullmatch(r"\d{4}-\d{2}-\d{2}", book["date"])


def test_pictures_say_their_numbers() -> None:
    pytest.importorskip("matplotlib")
    line = lab.scripted_timeline(0.0, queue=0.2)
    assert "queue 200 ms" in lab.draw_budget({"A": dict.fromkeys(lab.STAGES, 0.0) | {"queue": 0.2}})._repr_html_()
    assert "5 tokens" in lab.draw_streams({"one": line})._repr_html_()
    drawn = lab.draw_ttft([16, 64], [0.01, 0.02], 0.007, 0.0002, at=100, held_out=(100, 0.03))._repr_html_()
    assert "At 100 tokens it says 27" in drawn
    log = lab.personal_log(0)
    bare = lab.draw_log(log)._repr_html_()
    assert "at 80 prompt lengths, from " in bare and "fitted" not in bare
    assert lab.draw_log(log, 0.0225, None)._repr_html_() == bare, "half a line is none"
    assert "a line from 22.5 ms" in lab.draw_log(log, 0.0225, 0.00064)._repr_html_()


# ------------------------------------------------------------------ examples that the chapter works by hand


def test_the_chapters_examples() -> None:
    # Test yourself, 1: TTFT 0.80 s, E2E 6.76 s, 45.1 ms a token by the other definition
    line = lab.scripted_timeline(0.0, tokenise=0.0, queue=0.30, prefill=0.50, gaps=[0.040] * 149)
    assert metrics.ttft(line) == pytest.approx(0.80)
    assert metrics.e2e(line) == pytest.approx(6.76)
    assert (metrics.e2e(line) or 0) / line.output_tokens == pytest.approx(0.0451, abs=5e-5)
    # 2: 240 tokens within 5 s, five more with half the prompt
    for prompt, longest in ((2000, 240), (1000, 245)):
        assert int((5 - 0.010 - 0.0001 * prompt) / 0.020 + 1e-9) + 1 == longest
    # The exercise on a stall: 201 tokens, TPOT 50 ms, p50 = p99 = 10 ms, one gap of 8.01 s
    stalled = lab.scripted_timeline(0.0, gaps=[0.01] * 100 + [8.01] + [0.01] * 99)
    gaps = metrics.itl(stalled)
    assert len(gaps) == 200 and metrics.tpot(stalled) == pytest.approx(0.05)
    assert metrics.percentile(gaps, 50) == pytest.approx(0.01) and metrics.percentile(gaps, 99) == pytest.approx(0.01)
    worse = metrics.itl(lab.scripted_timeline(0.0, gaps=[0.01] * 100 + [4.0, 4.02] + [0.01] * 98))
    assert (metrics.percentile(worse, 99) or 0) > 0.011
