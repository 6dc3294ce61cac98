"""Lab 1: its solutions pass, its hand-out scores nothing, and a typical wrong answer is told what is wrong with it."""

from __future__ import annotations

import codecs
import re
import statistics
from collections.abc import Callable
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest

from underload import metrics
from underload.course import handout, read_notebook
from underload.labs import latency_budget as lab
from underload.request import SamplingParams, Timeline, VirtualClock

SOURCE = Path(__file__).parents[1] / "labs" / "latency-budget.ipynb"
GIVEN = {"lab": lab, "metrics": metrics, "Timeline": Timeline, "SamplingParams": SamplingParams}
GIVEN |= {"codecs": codecs, "statistics": statistics, "groupby": groupby}


@pytest.fixture(scope="module")
def source() -> Any:
    return read_notebook(SOURCE)


def graded(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("grade")]


def run_solutions(notebook: Any) -> tuple[dict[str, Any], dict[str, BaseException]]:
    """Execute solution and graded cells, no others: the names they leave, and what each graded cell raised."""
    names: dict[str, Any] = dict(GIVEN)
    raised: dict[str, BaseException] = {}
    for cell in notebook.cells:
        mark = cell.metadata.get("nbgrader", {})
        if not mark:
            continue
        try:
            exec(cell.source, names)
        except Exception as error:
            assert mark["grade"], f"{cell.id} must run by itself: {error}"
            raised[cell.id] = error
    return names, raised


@pytest.fixture(scope="module")
def solved(source: Any) -> tuple[dict[str, Any], dict[str, BaseException]]:
    return run_solutions(source)


# ------------------------------------------------------------------ the notebook


def test_the_solutions_earn_every_point_without_the_decoder(solved: Any) -> None:
    assert not solved[1]


def test_the_handout_earns_none(source: Any) -> None:
    _, raised = run_solutions(handout(source))
    assert set(raised) == {cell.id for cell in graded(source)}
    assert all(isinstance(error, NotImplementedError | AssertionError) for error in raised.values()), raised


def test_points_and_marks(source: Any) -> None:
    core = [c for c in graded(source) if not c.metadata["underload"].get("further")]
    further = [c for c in graded(source) if c.metadata["underload"].get("further")]
    assert sum(c.metadata.nbgrader.points for c in core) == 20
    assert sum(c.metadata.nbgrader.points for c in further) == 2
    ids = [c.metadata.nbgrader.grade_id for c in source.cells if "nbgrader" in c.metadata]
    assert len(ids) == len(set(ids))
    for cell in source.cells:
        if cell.cell_type == "code":
            assert len({"nbval-check-output", "recorded", "live"} & set(cell.metadata.tags)) == 1, cell.id


def test_one_wrong_task_costs_only_its_own_points(source: Any) -> None:
    broken = read_notebook(SOURCE)
    for cell in broken.cells:
        if cell.id == "task-1-solution":
            cell.source = (
                "def serve(server, clock, text, max_tokens, arrival):\n    return '', Timeline(arrival=arrival)"
            )
    _, raised = run_solutions(broken)
    assert set(raised) == {"task-1-check"}


def test_the_solutions_stamp_as_observing_from_outside_does(solved: Any) -> None:
    names, _ = solved
    lines = []
    for serve in (names["serve"], lab.observe):
        clock = VirtualClock()
        server = lab.ScriptedServer(clock, decode_seconds=(0.01, 0.3, 0.02), tail="!")
        lines.append(serve(server, clock, "A prompt.", 5, -0.2))
    (mine, my_line), (theirs, their_line) = lines
    assert mine == theirs == "One or two.!"
    assert my_line.token_times == pytest.approx(their_line.token_times)
    for field in ("arrival", "sent", "queued", "scheduled", "finished", "prompt_tokens", "detokenize_seconds"):
        assert getattr(my_line, field) == pytest.approx(getattr(their_line, field)), field


def test_the_budget_agrees_with_the_librarys_stages(solved: Any) -> None:
    names, _ = solved
    for line in lab.example_log(30, seed=2):
        assert names["budget"](line) == pytest.approx(
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


@pytest.mark.parametrize(
    ("slip", "told"),
    [
        ("arrival", r"arrival is .*; it is the intended arrival .* hides how late the client was"),
        (
            "queued",
            r"queued is .*, the instant when turn\(\) had returned; it is the instant when the prompt had become",
        ),
        ("scheduled", r"scheduled is .*, the instant when encode\(\) had returned; .* its turn had come"),
        ("turn", r"turn\(\) was never called; a request is tokenised, waits for its turn"),
        ("order", r"turn\(\) was called before encode\(\)"),
        ("early", r"token_times\[0\] is .*, the instant when prefill\(\) had returned; .* handed over as text"),
        ("first", r"token_times has 3 entries for 4 tokens"),
        ("wasted", r"decode\(\) ran 4 times for 4 tokens; it should run 3 times"),
        ("rest", r"the text is 'One or two.'; all that .* returned is 'One or two.!'"),
        ("finished", r"finished was never stamped"),
        ("seconds", r"detokenize_seconds is .*; 4 calls of to_text\(\) and one of rest\(\) took"),
    ],
)
def test_a_wrong_stamp_is_named(slip: str, told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        lab.check_stamps(serve_with(**{slip: True}), tail="!")
    assert "right" in lab.check_stamps(serve_with(), tail="!")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"ttft": 0.3}, r"ttft is 0.3000 s \(counted from when it was scheduled\); it should be 0.5000"),
        ({"tpot": 0.19}, r"tpot is 0.1900 s \(the whole time over all tokens"),
        ({"tpot": 0.09}, r"tpot is 0.0900 s \(divided by 5 tokens, but there are 4 gaps\)"),
        ({"e2e": 0.96}, r"e2e is 0.9600 s \(up to `finished`"),
        ({"itl": [0.5, 0.05, 0.05, 0.3, 0.05]}, r"itl has 5 gaps; 5 tokens have 4 between them"),
        ({"itl": [0.05, 0.05, 0.05, 0.30]}, r"itl\[2\] is 0.0500 s; it should be 0.3000 s"),
        ({"longest_stall": None}, r"longest_stall is None; it should be 0.3000 s"),
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
    ("wrong", "told"),
    [
        (
            lambda log, edges: [statistics.mean([0.1, 0.3, 0.11]), None, 0.5, 0.9],
            r"\[1, 50\) holds 0.1700 s.*the median",
        ),
        (lambda log, edges: [0.11, 0.0, 0.5, 0.9], r"\[50, 100\) holds 0.0000 s; .*no data gives no number"),
        (lambda log, edges: [0.11, 0.5, None, 0.9], r"\[50, 100\) holds 0.5000 s"),
        (lambda log, edges: [0.11], r"5 edges make 4 buckets, got 1"),
    ],
)
def test_a_wrong_bucket_is_named(wrong: Any, told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        lab.check_buckets(wrong)


def test_a_swapped_line_is_named() -> None:
    def swapped(xs: Any, ys: Any) -> tuple[float, float]:
        line = statistics.linear_regression(xs, ys)
        return line.slope, line.intercept

    with pytest.raises(AssertionError, match="floor and per_token are swapped"):
        lab.check_line(swapped)
    lab.check_line(lambda xs, ys: tuple(reversed(statistics.linear_regression(xs, ys))))


class Naive:
    """Decodes piece by piece and looks for the stop string in each piece alone."""

    def __init__(self, stop: str) -> None:
        self.stop = stop

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
    with pytest.raises(AssertionError, match="was safe"):
        lab.check_random_streams(Hoarder)
    with pytest.raises(AssertionError, match="was sent"):
        lab.check_random_streams(Naive)


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
