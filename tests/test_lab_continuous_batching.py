"""Lab 6: what a wrong answer is told, what the tasks start from, and the inputs that checks draw.

What solutions, hand-outs and wrong answers earn is `underload course verify`'s to say, from tests/course.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab_source import answers, assert_points, benchmark, told

from underload.course import read_notebook
from underload.course.outline import outline
from underload.course.watch import resolve
from underload.labs import continuous_batching as lab
from underload.scheduling import Batching, Continuous, FitsNow, LeastComputed, ReserveAll, Static

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "labs" / "continuous-batching.ipynb"


@pytest.fixture(scope="module")
def source() -> Any:
    return read_notebook(SOURCE)


@pytest.fixture(scope="module")
def solved(source: Any) -> dict[str, Any]:
    return answers(source)


@pytest.fixture(scope="module")
def said(source: Any) -> dict[str, str]:
    return {
        cell.id: "".join(output.get("text", "") for output in cell.outputs)
        for cell in source.cells
        if cell.cell_type == "code"
    }


# ------------------------------------------------------------------ the notebook


def test_points_and_tasks(source: Any) -> None:
    assert_points(source, 20, 3, 85)


def test_what_an_answer_may_not_use_is_there(source: Any) -> None:
    for task in outline(source).tasks:
        assert task.library and all(callable(resolve(name)) for name in task.library)


def test_steps_by_hand(solved: dict[str, Any]) -> None:
    for static, continuous in (
        (solved["static_steps"], solved["continuous_steps"]),
        (lab.static_steps, lab.continuous_steps),
    ):
        assert static([3, 1, 4, 1, 5], 2) == 12 and continuous([3, 1, 4, 1, 5], 2) == 9
        assert static([5], 3) == continuous([5], 3) == 5


def test_the_batch_by_hand(solved: dict[str, Any]) -> None:
    for policy in (solved["Joining"], lab.Joining):
        run = lab.serve(policy(), [lab.Ask(2, tokens) for tokens in (2, 5, 3, 2)], slots=2)
        assert [run.counts(place) for place in (0, 2, 5)] == [{0: 2, 1: 2}, {1: 1, 2: 2}, {3: 2}]
        assert len(run.steps) == 7


def test_the_chunks_by_hand(solved: dict[str, Any]) -> None:
    for policy in (solved["Chunked"], lab.Chunked):
        run = lab.serve(policy(8), [lab.Ask(6, 2), lab.Ask(9, 2)])
        assert [run.counts(place) for place in range(3)] == [{0: 6, 1: 2}, {0: 1, 1: 7}, {1: 1}]
        timeline = run.requests[1].timeline
        assert timeline.first_token == pytest.approx(2 * (lab.OVERHEAD + 8 * lab.PER_TOKEN))


def test_a_long_prompt_stops_everybody_as_the_text_says(solved: dict[str, Any]) -> None:
    whole = lab.with_a_prompt(solved["Chunked"](2000))
    assert whole.longest_gap == pytest.approx(lab.longest_gap(1000, 1000, 12, 0.008, 0.0001)) == pytest.approx(0.1092)
    assert lab.longest_gap(200, 1000, 12, 0.008, 0.0001) == pytest.approx(0.0292)
    assert lab.first_token(200, 1000, 12, 0.008, 0.0001) == pytest.approx(0.146)
    assert lab.chunk_for(0.020, 12, 0.008, 0.0001) == solved["chunk_for"](0.020, 12, 0.008, 0.0001) == 108
    assert lab.chunk_for(0.0080999, 1, 0.008, 0.0001) is None


def test_formulas_and_scheduler_agree(solved: dict[str, Any]) -> None:
    for chunk in (25, 60, 333, 1000):
        run = lab.with_a_prompt(solved["Chunked"](chunk))
        case = {"chunk": chunk, "prompt": 1000, "decoding": 12, "overhead": lab.OVERHEAD, "per_token": lab.PER_TOKEN}
        assert run.longest_gap == pytest.approx(solved["longest_gap"](**case))
        timeline = run.requests[-1].timeline
        assert timeline.first_token is not None and timeline.scheduled is not None
        assert timeline.first_token - timeline.scheduled == pytest.approx(solved["first_token"](**case))


def test_paper_and_scheduler_agree() -> None:
    for seed in range(4):
        draw = np.random.default_rng(seed)
        lengths, slots = lab.drawn_lengths(draw, 30), int(draw.integers(2, 9))
        asks = [lab.Ask(1, length) for length in lengths]
        for policy, right in ((Static(slots), lab.static_steps), (Continuous(), lab.continuous_steps)):
            assert len(lab.serve(policy, asks, slots=slots).steps) == right(lengths, slots)


def test_the_room_by_hand(solved: dict[str, Any]) -> None:
    for headroom in (solved["Headroom"], lab.Headroom):
        lab.check_admits(headroom, *lab.BY_HAND)
    assert lab.BY_HAND == (60, [(30, 10, 430), (20, 100, 420), (50, 0, 70)], 19)


def test_admissions_and_victims_differ_as_the_task_says() -> None:
    """Headroom preempts little and takes hardly longer; reserving to the limit takes far longer."""
    load = lab.tight_load(np.random.default_rng(4), requests=60)
    now, room, most = (lab.serve_tight(load, admission) for admission in (FitsNow(), lab.Headroom(60), ReserveAll()))
    assert now.preemptions > 20 > 4 * room.preemptions >= most.preemptions == 0
    assert room.makespan < 1.3 * now.makespan < 0.5 * most.makespan
    worst = [
        max(one.sequences[0].preemptions for one in lab.serve_tight(load, FitsNow(), victim).requests)
        for victim in (lab.Spread(), LeastComputed())
    ]
    assert worst[0] < worst[1]


def test_own_objects_serve_as_the_labs_do(solved: dict[str, Any]) -> None:
    load = lab.drawn_load(np.random.default_rng(8), 50)
    for mine, right in ((solved["Joining"](), lab.Joining()), (solved["Chunked"](32), lab.Chunked(32))):
        assert lab.serve(mine, load, slots=9).steps == lab.serve(right, load, slots=9).steps
    assert lab.serve(lab.Joining(), load, slots=9).steps == lab.serve(Continuous(), load, slots=9).steps


def test_a_class_that_is_not_written_is_replaced(capsys: pytest.CaptureFixture[str], solved: dict[str, Any]) -> None:
    class Unwritten(Batching):
        def __init__(self, *_: Any) -> None:
            pass

        def fill(self, step: Any) -> None:
            raise NotImplementedError

        def admits(self, *_: Any) -> bool:
            raise NotImplementedError

        def choose(self, *_: Any) -> Any:
            raise NotImplementedError

    for usable, name in (
        (lab.usable_joining, "Joining"),
        (lab.usable_chunked, "Chunked"),
        (lab.usable_headroom, "Headroom"),
        (lab.usable_spread, "Spread"),
        (lab.usable_quick, "Quick"),
    ):
        assert usable(Unwritten) is getattr(lab, name)
        assert "not written yet: the lab's was taken" in capsys.readouterr().out
        assert usable(solved[name]) is solved[name] and capsys.readouterr().out == ""
    assert lab.usable_chunked(lambda chunk: lab.Joining()) is lab.Chunked
    assert "does not pass its first checks" in capsys.readouterr().out


def test_the_stored_run_shows_what_the_text_says(said: dict[str, str]) -> None:
    rows = re.findall(r"(\d+) steps on paper, +(\d+) under the scheduler", said["task-1-serve"])
    assert len(rows) == 2 and all(paper == scheduler for paper, scheduler in rows)
    assert "9 of 9 answers are generate's, word for word; the same under" in said["task-5-decoder"]
    preempted = [int(count) for count in re.findall(r"(\d+) preemptions", said["task-5-decoder"])]
    assert preempted[0] <= preempted[1] > 0
    whole, pieces = map(float, re.findall(r"for ([\d.]+) ms", said["task-5-measured"]))
    assert pieces < whole
    table = [line.split() for line in said["task-5-table"].splitlines()[2:]]
    assert len(table) == 6 and all(row[1] == row[2] and row[3] == row[4] for row in table)


def test_the_open_answer_has_the_numbers_of_the_run(source: Any, said: dict[str, str]) -> None:
    table = {row[0]: row for row in map(str.split, said["task-5-table"].splitlines()[2:])}
    text = next(cell.source for cell in source.cells if cell.id == "task-5-open")
    assert f"longer than {table['25'][1]} ms for a token, and with chunks of 100 {table['100'][1]} ms" in text
    assert f"after {table['25'][3]} ms instead of {table['100'][3]} ms" in text
    assert f"a gap of {table['1000'][1]} ms" in text
    gaps, firsts = ([float(table[chunk][column]) for chunk in ("25", "50")] for column in (1, 3))
    assert f"the gap gets {gaps[1] - gaps[0]:.1f} ms shorter" in text
    assert f"the first token {firsts[0] - firsts[1]:.0f} ms longer" in text


def test_a_hair_below_a_whole_chunk_is_what_the_text_says(source: Any) -> None:
    assert math.floor((0.0192 - 0.008) / 0.0001 - 12) == 99
    assert lab.chunk_for(0.0192, 12, 0.008, 0.0001) == 100
    text = next(cell.source for cell in source.cells if cell.id == "task-5-text")
    assert "For 19.2 ms it is 100, and a computer's (0.0192 − 0.008) / 0.0001 − 12 is a hair below 100" in text


def test_the_worth_of_waiting_by_hand_is_of_the_load_that_is_printed(source: Any, said: dict[str, str]) -> None:
    few, long = re.findall(r"without end.* need +(\d+) tokens on average, +1 need (\d+)", said["task-6-load"])[0]
    text = next(cell.source for cell in source.cells if cell.id == "task-6-text")
    assert f"one that needs {long} lets all those of {few} pass" in text
    assert f"({long} − {few}) / 50 = {(int(long) - int(few)) / 50:.1f} s" in text


def test_a_label_says_whose_class_it_was() -> None:
    assert lab.whose(Static, Static) == "your" and lab.whose(Static, lab.Joining) == "the lab's"


# ------------------------------------------------------------------ inputs that are drawn


@pytest.mark.parametrize("seed", range(5))
def test_every_check_lets_the_right_answer_pass(solved: dict[str, Any], seed: int) -> None:
    draw = np.random.default_rng(seed)
    lab.check_static_steps(solved["static_steps"], lab.drawn_lengths(draw, 25), int(draw.integers(2, 8)))
    lab.check_continuous_steps(solved["continuous_steps"], lab.drawn_lengths(draw, 25), int(draw.integers(2, 8)))
    for check in (lab.check_fills, lab.check_paper, lab.check_overtakes):
        check(solved["Joining"], draw)
    for chunked in (lab.check_no_stall, lab.check_limit, lab.check_nothing_left, lab.check_in_order):
        chunked(solved["Chunked"], draw)
    lab.check_admits(solved["Headroom"], *lab.drawn_sizes(draw))
    lab.check_chooses(solved["Spread"], *lab.drawn_rows(draw))
    lab.check_few_preemptions(solved["Headroom"], draw)
    lab.check_quick_enough(solved["Headroom"], draw)
    lab.check_spread(solved["Spread"], draw)
    lab.check_longest_gap(solved["longest_gap"], **lab.drawn_case(draw))
    lab.check_first_token(solved["first_token"], **lab.drawn_case(draw))
    lab.check_chunk_for(solved["chunk_for"], **lab.drawn_promise(draw))
    lab.check_chunk_for(solved["chunk_for"], **lab.drawn_promise(draw, chunk=0))
    lab.check_quicker(solved["Quick"], draw)
    lab.check_begins(solved["Quick"], draw)


def test_a_drawn_server_keeps_its_promise_by_one_chunk() -> None:
    for seed in range(20):
        server = lab.your_server(seed)
        where = server.decoding, server.overhead, server.per_token
        chunk = lab.chunk_for(server.gap, *where)
        assert chunk is not None and 40 <= chunk < 400 < server.prompt
        lab.check_my_chunk(chunk, server)
        assert "were promised" in told(lab.check_my_chunk, chunk + 1, server)


# ------------------------------------------------------------------ what a wrong answer is told


def test_what_steps_on_paper_are_told() -> None:
    lengths = [3, 1, 4, 1, 5]
    assert "not its mean" in told(lab.check_static_steps, lambda *_: 9.5, lengths, 2)
    assert "its own longest member" in told(lab.check_static_steps, lambda *_: 15, lengths, 2)
    assert "that is what continuous" in told(lab.check_static_steps, lab.continuous_steps, lengths, 2)
    assert "that is what whole batches take" in told(lab.check_continuous_steps, lab.static_steps, lengths, 2)
    assert "as if no slot were ever empty" in told(lab.check_continuous_steps, lambda *_: 7, lengths, 2)
    assert "must be a number, got None" in told(lab.check_continuous_steps, lambda *_: None, lengths, 2)


def test_lengths_that_tell_slips_apart_are_told_one_cause_each(source: Any) -> None:
    lengths, rows = [3, 8, 7, 1, 8], 2
    check = next(cell.source for cell in source.cells if cell.id == "task-1-check")
    assert check.count(f"{lengths}, {rows})") == 2
    share, dealt = sum(lengths) / rows, max(sum(lengths[row::rows]) for row in range(rows))
    for check_steps, slips in (
        (lab.check_static_steps, (17.5, 24, 15, 19, 27, 17, share, math.ceil(share))),
        (lab.check_continuous_steps, (23, share, math.ceil(share), 15, 19, dealt)),
    ):
        said = [
            re.findall(r"is [\d.]+ \((.+?)\), and", told(check_steps, lambda *_, slip=slip: slip, lengths, rows))
            for slip in slips
        ]
        assert all(len(causes) == 1 and "; or " not in causes[0] for causes in said)
        assert len({causes[0] for causes in said}) == len(slips)
    assert told(lab.check_continuous_steps, lambda *_: 7, [3, 1, 4, 1, 5], 2).count("divided") == 1


class OneByOne(Batching):
    """Whole batches of those who are there."""

    def fill(self, step: Any) -> None:
        if not step.running:
            for sequence in list(step.waiting):
                step.admit(sequence, step.behind(sequence))
        for sequence in list(step.running):
            step.run(sequence, step.behind(sequence))


class Passing(lab.Joining):
    """Small ones pass a large one that does not fit."""

    def fill(self, step: Any) -> None:
        for sequence in list(step.running):
            step.run(sequence, step.behind(sequence))
        for sequence in list(step.waiting):
            step.admit(sequence, step.behind(sequence))


class Walking(lab.Joining):
    """Walks along the queue while it changes."""

    def fill(self, step: Any) -> None:
        for sequence in list(step.running):
            step.run(sequence, step.behind(sequence))
        for sequence in step.waiting:
            step.admit(sequence, step.behind(sequence))


class Asking(Batching):
    """Asks for ever."""

    def fill(self, step: Any) -> None:
        while step.waiting:
            step.admit(step.waiting[0], 1)


class Nothing(Batching):
    def fill(self, step: Any) -> None:
        pass


def test_what_a_policy_is_told() -> None:
    said = told(lab.check_joins, OneByOne)
    assert "step 3 computes A 1, and should compute A 1, B 4" in said and "B is there from 0.010 s on" in said
    assert "step 3 computes B 1, and should compute B 1, C 2" in told(lab.check_leaves, OneByOne)
    assert "loses whom you admit" in told(lab.check_all_at_once, Walking)
    assert "C begins before it" in told(lab.check_queue, Passing)
    assert "those behind it wait" in told(lab.check_overtakes, Passing, np.random.default_rng(1))
    assert "fill() lets nobody compute, though 2 wait" in told(lab.check_joins, Nothing)
    assert "10,000 times in one step" in told(lab.check_leaves, Asking)
    assert "waits though" in told(lab.check_fills, OneByOne, np.random.default_rng(1))
    assert "those are whole batches" in told(lab.check_paper, OneByOne, np.random.default_rng(2))

    class Floating(Batching):
        def fill(self, step: Any) -> None:
            step.admit(step.waiting[0], 2.0)

    assert "whole number of tokens, got 2.0" in told(lab.check_joins, Floating)

    class Numbered(Batching):
        def fill(self, step: Any) -> None:
            step.run(0, 1)

    assert "takes a sequence of step.running or step.waiting, got 0" in told(lab.check_joins, Numbered)


class Open(Batching):
    """Lets in whom it has no token for, and whoever was put back in the same step."""

    def __init__(self, looks: bool) -> None:
        self.looks = looks

    def fill(self, step: Any) -> None:
        for sequence in list(step.running):
            step.run(sequence, step.behind(sequence))
        for sequence in list(step.waiting):
            if self.looks and not step.budget:
                break
            if step.admit(sequence, step.behind(sequence)) is None:
                break


class Late(lab.Joining):
    """Those who run come after those who join."""

    def fill(self, step: Any) -> None:
        running = list(step.running)
        while step.budget and step.waiting and not step.preempted:
            if step.admit(step.waiting[0], step.budget) is None:
                break
        for sequence in running:
            step.run(sequence, step.behind(sequence))


def test_what_a_policy_is_told_where_budget_or_blocks_are_small() -> None:
    assert "at 0 ms C is let in with no token to compute" in told(lab.check_small_budget, lambda: Open(looks=False))
    said = told(lab.check_small_budget, Late)
    assert "step 2 computes A 1, B 1, C 4, and should compute A 1, B 5" in said and "who run come first" in said
    said = told(lab.check_put_back, lambda: Open(looks=True))
    assert "step 2 computes A 1, B 5, and should compute A 1 (" in said and "so nobody joins in it" in said


def test_the_last_token_of_a_prompt_is_outside_the_chunk_as_the_text_says(source: Any, solved: dict[str, Any]) -> None:
    run = lab.serve(solved["Chunked"](4), [lab.Ask(5, 1), lab.Ask(8, 1)])
    assert run.counts(1) == {0: 1, 1: 4}
    text = next(cell.source for cell in source.cells if cell.id == "task-3-text")
    assert "`Chunked(4)` and prompts of 5 and 8 tokens: step 2 computes the fifth of the one" in text


def test_what_one_pass_and_a_chunk_shared_with_decodes_are_told() -> None:
    class OnePass(lab.Chunked):
        def fill(self, step: Any) -> None:
            left = self.chunk
            for sequence in list(step.running):
                done = step.run(sequence, 1 if step.behind(sequence) == 1 else left)
                left -= done if step.behind(sequence) or done > 1 else 0
            while left > 0 and step.budget and step.waiting and not step.preempted:
                count = step.admit(step.waiting[0], left)
                if count is None:
                    return
                left -= count

    said = told(lab.check_in_front, OnePass)
    assert "step 10 computes B 4, and should compute B 3, C 1" in said and "C decodes, and goes first" in said

    class Counting(lab.Chunked):
        def fill(self, step: Any) -> None:
            decoding = sum(step.behind(sequence) == 1 for sequence in step.running)
            lab.Chunked(self.chunk - decoding).fill(step)

    said = told(lab.check_beside, Counting)
    assert "computes A 1, B 1, C 2, and should compute A 1, B 1, C 4" in said and "do not count" in said

    class QueueFirst(lab.Chunked):
        def fill(self, step: Any) -> None:
            prompts, left = [one for one in step.running if step.behind(one) > 1], self.chunk
            for sequence in list(step.running):
                if step.behind(sequence) == 1:
                    step.run(sequence, 1)
            while left > 0 and step.budget and step.waiting:
                count = step.admit(step.waiting[0], left)
                if count is None:
                    break
                left -= count
            for sequence in prompts:
                left -= step.run(sequence, left)

    assert "begun goes before one that waits" in told(lab.check_in_turn, QueueFirst)


def test_what_chunks_are_told() -> None:
    whole = lambda chunk: lab.Chunked(10_000)  # noqa: E731
    assert "at most 4 tokens of prompts in a step" in told(lab.check_pieces, whole)
    assert "and the chunk is" in told(lab.check_limit, whole, np.random.default_rng(1))

    class PromptsFirst(lab.Chunked):
        def fill(self, step: Any) -> None:
            for sequence in [one for one in step.running if step.behind(one) > 1]:
                step.run(sequence, self.chunk)
            lab.Chunked.fill(self, step)

    assert "A, which decodes, waits for its token" in told(lab.check_goes_on, PromptsFirst)
    assert "decodes and has no token in step" in told(lab.check_no_stall, PromptsFirst, np.random.default_rng(1))
    small = lambda chunk: lab.Chunked(max(1, chunk // 4))  # noqa: E731
    assert "12 are enough" in told(lab.check_goes_on, lambda chunk: lab.Chunked(2))
    assert "more would be within chunk and budget" in told(lab.check_nothing_left, small, np.random.default_rng(1))
    assert "which came before it" in told(
        lab.check_in_order, lambda chunk: lab.Quick(aging=1e-6), np.random.default_rng(1)
    )


def test_what_an_admission_is_told() -> None:
    class Everybody(lab.Headroom):
        def admits(self, *_: Any) -> bool:
            return True

    said = told(lab.check_admits, Everybody, *lab.BY_HAND)
    assert "in 18 blocks of 16: admits() says True, and they come to 19 blocks (6 + 8 + 5)" in said
    assert "where whatever fits now begins" in told(lab.check_few_preemptions, Everybody, np.random.default_rng(1))

    class Never(lab.Headroom):
        def admits(self, *_: Any) -> bool:
            return False

    assert "nearly nobody gets as long" in told(lab.check_quick_enough, Never, np.random.default_rng(1))

    class Words(lab.Headroom):
        def admits(self, *_: Any) -> Any:
            return "yes"

    assert "must return True or False, got 'yes'" in told(lab.check_admits, Words, *lab.BY_HAND)


def test_what_a_choice_is_told() -> None:
    class Twice:
        def choose(self, candidates: Any, pool: Any) -> Any:
            if not list(candidates):
                return None
            return max(candidates, key=lambda one: one.num_computed, default=None)

    assert "they can be gone through once" in told(lab.check_chooses, Twice, *lab.BY_HAND_ROWS)

    class TwiceAndRaises:
        def choose(self, candidates: Any, pool: Any) -> Any:
            return min(candidates, key=lambda one: (min(other.preemptions for other in candidates), one.num_computed))

    said = told(lab.check_chooses, TwiceAndRaises, [(40, 1)], 0)
    assert said.startswith("candidates can be gone through once") and "empty" in said
    said = told(lab.check_chooses, LeastComputed, *lab.BY_HAND_ROWS)
    assert "40 (1x), 90 (0x), 70 (0x)" in said and "takes the 1st, and the 3rd should go" in said


class Hard:
    """The same one, again and again."""

    def choose(self, candidates: Any, pool: Any) -> Any:
        return max(candidates, key=lambda one: (one.preemptions, one.num_computed), default=None)


def test_who_is_hit_again_and_again_is_named() -> None:
    said = told(lab.check_spread, Hard, np.random.default_rng(1))
    assert re.search(r"is preempted most is so \d+ times with your choice, and \d+ times where always", said)


def test_what_formulas_are_told() -> None:
    case = {"chunk": 200, "prompt": 900, "decoding": 12, "overhead": 0.008, "per_token": 0.0001}
    assert "without those who decode" in told(lab.check_longest_gap, lambda **_: 0.028, **case)
    assert "it comes in chunks" in told(lab.check_longest_gap, lambda **_: 0.0992, **case)
    assert "the last is not full" in told(lab.check_first_token, lambda **_: 4.5 * 0.0092 + 0.09, **case)
    assert "every step as long as a full one" in told(lab.check_first_token, lambda **_: 5 * 0.0292, **case)
    promise = {"gap": 0.02005, "decoding": 12, "overhead": 0.008, "per_token": 0.0001}
    assert "one more than the promise allows" in told(lab.check_chunk_for, lambda **_: 109, **promise)
    assert "a chunk is a whole number" in told(lab.check_chunk_for, lambda **_: 108.5, **promise)
    assert "and 108 tokens are within the promise" in told(lab.check_chunk_for, lambda **_: None, **promise)
    assert "should be None" in told(lab.check_chunk_for, lambda **_: 0, **(promise | {"gap": 0.009}))
    server = lab.your_server(3)
    assert "to spare: a larger one" in told(lab.check_my_chunk, 5, server)
    assert "116.5; tokens come whole" in told(lab.check_my_chunk, 116.5, server)
    with pytest.raises(NotImplementedError, match="my_chunk"):
        lab.check_my_chunk(None, server)


def test_what_an_order_is_told() -> None:
    assert "where the first to come goes first" in told(lab.check_quicker, lab.Joining, np.random.default_rng(1))
    said = told(lab.check_begins, lambda: lab.Quick(aging=1e-6), np.random.default_rng(1))
    assert re.search(r"where \d+ are allowed: .* count a second of waiting for more tokens", said)


# ------------------------------------------------------------------ pictures, the benchmark


def test_pictures_carry_their_numbers() -> None:
    run = lab.with_a_prompt(lab.Chunked(100), decoding=3)
    picture = lab.draw_gaps({"chunks": run}, name="gaps", caption="", predicted=0.02)
    assert picture.data is not None and list(picture.data["request"]) == ["A", "B", "C"]
    assert max(picture.data["longest gap (ms)"]) == pytest.approx(1e3 * run.longest_gap, abs=0.01)
    assert f"at most {1e3 * run.longest_gap:.1f} ms" in picture.alt
    load = lab.tight_load(np.random.default_rng(1), requests=12)
    rooms = {"now": lab.serve_tight(load, FitsNow())}
    assert "preemptions" in lab.draw_room(rooms, name="room", caption="").alt
    asks = [lab.Ask(4, 6), lab.Ask(4, 3)]
    waits = lab.draw_waits({"first": lab.serve(Continuous(), asks)}, asks, name="waits", caption="")
    assert waits.data is not None and list(waits.data["answer"]) == [6, 3]
    batches = lab.draw_batches({"a": Static(2), "b": Continuous()}, asks, name="batches", caption="", slots=2)
    assert "Gantt" in batches.alt


def test_the_benchmark_names_cells_that_are_there(source: Any) -> None:
    bench = benchmark("continuous_batching_lab", source)
    cells = {cell.id: cell.source for cell in source.cells}
    assert bench.PRINTED in cells["end"]
    assert set(re.findall(r'^    "([^"]+)": ', cells["end"], re.M)) == set(lab.book()["numbers"])
