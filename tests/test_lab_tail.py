"""Lab 12: what a wrong answer is told, what the tasks start from, and the inputs that checks draw.

What solutions, hand-outs and wrong answers earn is `underload course verify`'s to say, from tests/course.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from lab_source import LABS, assert_library_is_there, assert_points, benchmark, printed, told

from underload import metrics
from underload.labs import tail as lab
from underload.labs.tail import stories as insides
from underload.queueing import mm1, prob_any

SOURCE = LABS / "tail.ipynb"


def draw(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# ------------------------------------------------------------------ the notebook


def test_points_and_tasks(source: Any) -> None:
    assert_points(source, 20, 5, 88)


def test_what_an_answer_may_not_use_is_there(source: Any) -> None:
    assert_library_is_there(source)


def test_the_recorded_run_comes_from_the_lab_s_own_cell(source: Any) -> None:
    script = benchmark("tail_lab", source)
    end = next(cell.source for cell in source.cells if cell.id == "end")
    drive = next(cell.source for cell in source.cells if cell.id == "task-5-drive")
    assert "lab.book()" in end and f"COUNT = {script.REQUESTS}\n" in drive and "0.7 * carried" in drive
    book = lab.book()
    assert book["requests"] == script.REQUESTS == len(book["run"]["requests"]) and book["rate"] > 0
    assert book["clock"] == "processor" and "ProcessorClock()" in drive


def test_the_open_answer_has_the_numbers_of_the_run(source: Any) -> None:
    said, text = printed(source), next(cell.source for cell in source.cells if cell.id == "task-5-open")
    table = said["task-5-beside"].partition("the library\n")[2]
    rows = re.findall(r"^(\D+?) +([\d.]+) +([\d.]+)$", table, flags=re.MULTILINE)
    assert [name for name, _, _ in rows] == list(lab.PARTS) and all(mine == theirs for _, mine, theirs in rows)
    ms = {name: float(mine) for name, mine, _ in rows}
    assert f"took {sum(ms.values()):.0f} ms on average: {ms['own decode']:.0f} in their own decode, " in text
    behind = ms["others' prefill"]
    assert f"{behind:.0f} behind the prompts of others and {ms['queue']:.0f} in the queue" in text
    shares = {
        name: (float(mine), float(book))
        for name, mine, book in re.findall(r"(.+), share of the slowest \(%\) +([\d.]+) +([\d.]+)", said["end"])
    }
    largest = [shares[name] for name in ("own decode", "others' prefill", "queue")]
    assert min(largest) > max(value for name, value in shares.items() if value not in largest)
    mine = [f"{100 * ms[name] / sum(ms.values()):.0f}" for name in ("own decode", "others' prefill", "queue")]
    book = [f"{share:.0f}" for _, share in largest]
    assert f"with {book[0]}, {book[1]} and {book[2]} % of the slow time where I have" in text
    assert f"where I have {mine[0]}, {mine[1]} and {mine[2]} %" in text and shares["preemption"][0] < 1
    worth, then = re.findall(r"worth (\d+) independent values: (.+)", said["task-5-beside"])[0]
    assert then == "too few for an interval" and "ms, if independent" in said["task-5-beside"]
    assert f"worth {worth}, fewer than the 368 it takes" in text and int(worth) < 368 == lab.needed(99)


# ------------------------------------------------------------------ places and samples


def test_the_places_by_hand(solved: dict[str, Any]) -> None:
    law = lab.chances(10, 0.5)
    assert [round(1024 * chance) for chance in law] == [math.comb(10, k) for k in range(11)]
    assert (sum(law[:2]), sum(law[:3])) == pytest.approx((11 / 1024, 56 / 1024))
    for ranks in (solved["ranks"], lab.ranks):
        assert tuple(ranks(10, 50)) == (2, 9) and tuple(ranks(1000, 99)) == (983, 997)
        assert ranks(367, 99) is None and ranks(368, 99) is not None


def test_places_and_numbers_are_the_library_s(solved: dict[str, Any]) -> None:
    numbers = draw(1)
    for _ in range(150):
        n, q = int(numbers.integers(1, 2500)), float(numbers.uniform(1, 99.5))
        confidence = float(numbers.uniform(0.5, 0.99))
        found = metrics.percentile_interval(range(1, n + 1), q, confidence)
        for ranks in (solved["ranks"], lab.ranks):
            got = ranks(n, q, confidence)
            assert (got and tuple(got)) == (found and found.ranks)
        for needed in (solved["needed"], lab.needed):
            for sides in (1, 2):
                assert needed(q, confidence, sides) == metrics.samples_needed(q, confidence, two_sided=sides == 2)
    assert [lab.needed(50, sides=sides) for sides in (1, 2)] == [5, 6]


def test_the_queue_of_task_3_is_in_its_steady_state() -> None:
    numbers, queue = draw(2), mm1(0.5, 1.0)
    firsts, lasts = zip(*((run[0], run[-1]) for run in (lab.queue_latencies(30, 0.5, numbers) for _ in range(6000))))
    for times in (firsts, lasts):
        assert np.mean(times) == pytest.approx(queue.mean_sojourn, abs=0.12)
        assert np.mean(np.array(times) > queue.sojourn_quantile(99)) == pytest.approx(0.01, abs=0.006)
    assert queue.sojourn_quantile(99) == pytest.approx(math.log(100) / 0.5)


def test_neighbours_in_a_queue_are_worth_less_than_independent_values(source: Any) -> None:
    lines = printed(source)["task-3-answer"].splitlines()
    shares = {line[:18].strip(): [int(held.strip("%")) for held in line[18:].split()[1:]] for line in lines[1:4]}
    nothing = re.findall(r"none in (\d+) of 300 samples, (\d+) on average in the others", "\n".join(lines))[0]
    assert int(nothing[0]) > 200 and int(nothing[1]) > 30, "hardly any stretch has a crowd in it"
    assert min(shares["independent"]) >= 93 and lines[1].split()[1] == "none"
    assert max(shares["a queue, load 0.5"]) < 75 and max(shares["a queue, load 0.9"]) < 20


# ------------------------------------------------------------------ sketches


def test_the_sketch_by_hand(solved: dict[str, Any]) -> None:
    for made in (solved["Sketch"], lab.Sketch):
        sketch = made(1 / 3)
        for value in (3, 1.5, 5, 3.5):
            sketch.add(value)
        assert dict(sketch.counts) == {1: 1, 2: 2, 3: 1} and sketch.percentile(50) == pytest.approx(8 / 3)


def test_above_an_edge_only_the_point_of_the_text_is_near_enough(solved: dict[str, Any]) -> None:
    numbers = draw(5)
    for error in (0.01, 0.04, 0.2, 1 / 3):
        for values in (lab.above_edges(error), lab.above_edges(error, numbers)):
            for made in (solved["Sketch"], lab.Sketch):
                lab.check_sketch(made, values, error)
            for power, slip in ((0.5, "in logarithms"), (None, "halfway between the edges")):

                class Other(lab.Sketch):
                    def percentile(self, q: float, power: float | None = power) -> Any:
                        found = super().percentile(q)
                        upper = found and found * (self.gamma + 1) / 2
                        other = self.gamma**-power if power else (1 + 1 / self.gamma) / 2
                        return upper and upper * other

                assert slip in told(lab.check_sketch, Other, values, error)


def test_no_average_finds_the_p99_of_all_servers() -> None:
    for seed in range(6):
        seen = lab.servers(seed)
        whole = [value for values in seen.values() for value in values]
        right = lab.nearest(whole, 99)
        each = [lab.nearest(values, 99) for values in seen.values()]
        weighted = float(np.average(each, weights=[len(values) for values in seen.values()]))
        assert abs(float(np.mean(each)) / right - 1) > 0.1 and abs(weighted / right - 1) > 0.1
        merged = lab.Sketch(0.01)
        for values in seen.values():
            sketch = lab.Sketch(0.01)
            for value in values:
                sketch.add(value)
            merged.merge(sketch)
        assert merged.percentile(99) == pytest.approx(right, rel=0.0101)


# ------------------------------------------------------------------ stories


def test_the_request_of_the_text(solved: dict[str, Any]) -> None:
    right = {"client": 1, "queue": 2, "own prefill": 3, "others' prefill": 3, "own decode": 4.25, "preemption": 5.75}
    for attribute in (solved["attribute"], lab.attribute):
        assert attribute(lab.by_hand()) == pytest.approx(right | {"gaps": 0.5})
    assert lab.by_hand().e2e == 19.5


def same(run: lab.Run, found: Iterable[insides.Story]) -> int:
    """The lab's parts are the library's; how many requests there were."""
    shares, count = metrics.StepShares(run.steps), 0
    for story in found:
        theirs = metrics.attribute(run.timelines[story.place], shares)
        theirs["queue"] += theirs.pop("fill")
        assert theirs.pop("padding") == 0 and theirs.pop("passed over") == pytest.approx(0, abs=1e-9)
        assert lab.attribute(story) == pytest.approx(theirs, abs=1e-9)
        assert sum(theirs.values()) == pytest.approx(story.e2e, abs=1e-9)
        count += 1
    return count


@pytest.mark.parametrize("swap", [False, True])
def test_the_parts_of_a_simulated_run_are_the_library_s(swap: bool) -> None:
    numbers = draw(3)
    for _ in range(3):
        run = lab.simulated(numbers, swap=swap)
        assert same(run, run.stories) == 120 and any(line.preempted for line in run.timelines)
        again = lab.Run.from_data(run.as_data())
        for one, other in zip(run.stories, again.stories, strict=True):
            assert lab.attribute(one) == pytest.approx(lab.attribute(other), abs=1e-4)
            assert [row.own + row.again for row in one.rows] == [row.own + row.again for row in other.rows]


def test_the_parts_of_the_recorded_run_are_the_library_s() -> None:
    run = lab.recorded()
    assert same(run, run.stories) == 400


@pytest.mark.parametrize("seed", range(8))
def test_a_drawn_request_adds_up(seed: int, solved: dict[str, Any]) -> None:
    story = lab.drawn_story(draw(seed))
    for attribute in (solved["attribute"], lab.attribute):
        parts = attribute(story)
        assert sum(parts.values()) == pytest.approx(story.e2e) and min(parts.values()) >= 0


def test_the_drawn_request_of_the_hand_out_shows_every_slip() -> None:
    story = lab.drawn_story(draw(1))
    for slip, why in insides._SLIPS.items():
        assert why in told(lab.check_story, lambda one, slip=slip: insides._parts(one, slip), story)


# ------------------------------------------------------------------ what a wrong answer is told


@pytest.mark.parametrize(
    "wrong, slip",
    [
        ((982, 996), "the places count from 1"),
        ((984, 997), "the lower place is one too high"),
        ((983, 998), "the upper place is one too high"),
        (lab.ranks(1000, 99, 0.9), "each side may miss half"),
        ((1, 2), "983 and 997 are the innermost"),
    ],
)
def test_what_is_said_of_places(wrong: Any, slip: str) -> None:
    assert slip in told(lab.check_ranks, lambda *_: wrong, 1000, 99)


def test_where_the_law_just_meets_a_limit_the_place_will_do(solved: dict[str, Any]) -> None:
    numbers = draw(4)
    for _ in range(40):
        n, confidence = lab.meeting(numbers)
        places = lab.ranks(n, 50, confidence)
        assert places and tuple(solved["ranks"](n, 50, confidence)) == places and sum(places) == n + 1
        law = lab.chances(n, 0.5)
        assert math.fsum(law[: places[0]]) == (1 - confidence) / 2 and math.fsum(law) == 1
        for wrong in ((places[0] - 1, places[1]), (places[0], places[1] + 1), (places[0] - 1, places[1] + 1)):
            assert "just is the limit" in told(lab.check_ranks, lambda *_, pair=wrong: pair, n, 50, confidence)
    assert "just is" not in told(lab.check_ranks, lambda *_: (1, 9), 10, 50)


def test_what_is_said_of_an_interval() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0, 9.0, 8.0, 7.0, 6.0, 10.0]
    assert "None, though there is an interval" in told(lab.check_interval, lambda *_: None, values, 50)
    assert "these are the places" in told(lab.check_interval, lambda *_: (2, 9), [10 * v for v in values], 50)
    assert "were not sorted" in told(lab.check_interval, lambda v, *_: (v[1], v[8]), values, 50)
    assert "sort a copy" in told(lab.check_interval, lambda v, *_: v.sort(), values, 50)
    assert "there is no interval, which is None" in told(lab.check_interval, lambda *_: (1, 2), [1.0, 2.0], 50)


@pytest.mark.parametrize(
    "wrong, slip",
    [
        (299, "each side of an interval may miss half"),
        (367, "rounded down"),
        (100, "one of them lies beyond on average"),
        (369, "one more than it takes"),
        (50, "it takes 368"),
    ],
)
def test_what_is_said_of_a_number_of_values(wrong: int, slip: str) -> None:
    assert slip in told(lab.check_needed, lambda *_: wrong, 99, 0.95, 2)


def counting(change: Callable[[int, int, int], Any]) -> Callable[..., Any]:
    def count(sample: Any, truth: float, find: Any, rounds: int) -> Any:
        pairs = [find(sample()) for _ in range(rounds)]
        there = [pair for pair in pairs if pair is not None]
        return change(sum(low <= truth <= high for low, high in there), len(there), rounds)

    return count


def test_what_is_said_of_a_coverage() -> None:
    for change, slip in (
        (lambda held, there, rounds: held / rounds, "count as misses"),
        (lambda held, there, rounds: (held + rounds - there) / rounds, "count as hits"),
        (lambda held, there, rounds: held, "the number, not the share"),
        (lambda held, there, rounds: 1 - held / there, "the share that misses"),
        (lambda held, there, rounds: 100 * held / there, "in per cent"),
    ):
        assert slip in told(lab.check_coverage, counting(change), 7)
    assert "0 samples were drawn" in told(lab.check_coverage, lambda *_: 0.6, 7)
    assert "there is no share: None" in told(lab.check_coverage, counting(lambda *_: 0.0), 4, none=True)


def test_what_is_said_of_a_sketch() -> None:
    class Edge(lab.Sketch):
        def percentile(self, q: float) -> Any:
            found = super().percentile(q)
            return found and found * (self.gamma + 1) / 2

    class Forgets(lab.Sketch):
        def merge(self, other: Any) -> None:
            self.counts = other.counts.copy()

    class Shares(lab.Sketch):
        def merge(self, other: Any) -> None:
            if self.counts:
                super().merge(other)
            else:
                self.counts = other.counts

    values = lab.latencies(500, seed=1)
    assert "the upper edge of its bucket" in told(lab.check_sketch, Edge, values, 0.01)
    parts = [lab.latencies(n, seed=n) for n in (50, 60)]
    assert "only the last one's are left" in told(lab.check_merge, Forgets, parts, 0.01)
    assert "has changed" in told(lab.check_merge, Shares, parts, 0.01)
    assert "and counts holds 0" in told(lab.check_counts, lambda error: _Silent(), values, 0.01)

    class Returns(lab.Sketch):
        def merge(self, other: Any) -> Any:
            return other

    class Listed(lab.Sketch):
        def __init__(self, error: float = 0.01) -> None:
            super().__init__(error)
            self.counts: Any = [0] * 10

        def add(self, value: float) -> None:
            self.counts[0] += 1

    counts: Any = {}

    class Shared(lab.Sketch):
        def __init__(self, error: float = 0.01) -> None:
            super().__init__(error)
            self.counts = counts

        def add(self, value: float) -> None:
            bucket = math.ceil(math.log(value) / math.log(self.gamma))
            self.counts[bucket] = self.counts.get(bucket, 0) + 1

    decades = [10.0**k for k in range(100)]

    class Below(lab.Sketch):
        def percentile(self, q: float) -> Any:
            return lab.nearest(decades, q - 1.0001) if self.counts else None

    assert "what it returns is not used" in told(lab.check_merge, Returns, parts, 0.01)
    assert "must be a dictionary" in told(lab.check_counts, Listed, values, 0.01)
    assert "make them in __init__" in told(lab.check_sketch, Shared, values, 0.01)
    assert "near to the value at place 98" in told(lab.check_sketch, Below, decades, 0.01, (99,))


class _Silent(lab.Sketch):
    def add(self, value: float) -> None:
        pass


def test_what_is_said_of_parts() -> None:
    story = lab.by_hand()
    assert "there is no part 'prefill'" in told(lab.check_story, lambda _: {"prefill": 1.0}, story)
    assert "returns a dictionary" in told(lab.check_story, lambda _: 19.5, story)
    assert "19.5 s too little" in told(lab.check_story, lambda _: {}, story)


def test_what_is_not_written_is_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    class Unwritten:
        def __init__(self, error: float) -> None:
            raise NotImplementedError

    def silent(*_: Any) -> None:
        return None

    assert lab.usable(Unwritten) is lab.Sketch and "not written yet" in capsys.readouterr().out
    assert lab.tried(silent, lab.interval, [1.0], 50) is lab.interval and "returned nothing" in capsys.readouterr().out
    for yours in (lab.interval, lambda values, q: list(lab.interval(values, q) or ()) or None):
        find = lab.tried(yours, lab.interval, list(range(40)), 50)
        assert find(list(range(40)), 50) == lab.interval(list(range(40)), 50) and find([1.0], 50) is None
    assert not capsys.readouterr().out


def test_what_works_at_first_is_replaced_where_it_fails_later(capsys: pytest.CaptureFixture[str]) -> None:
    def forgets_none(values: Any, q: float) -> Any:
        low, high = lab.ranks(len(values), q)  # type: ignore[misc]
        return sorted(values)[low - 1], sorted(values)[high - 1]

    find = lab.tried(forgets_none, lab.interval, list(range(40)), 50)
    assert find([1.0], 50) is None and find([2.0], 99) is None
    assert capsys.readouterr().out.count("forgets_none() raised TypeError") == 1
    assert lab.tried(lambda *_: 3.0, lab.interval, list(range(40)), 50) is lab.interval
    assert "should return a pair, got 3.0" in capsys.readouterr().out
    rounded = lab.tried(lambda q, k: float(round(lab.leaf_percentile(q, k), 1)), lab.leaf_percentile, 90, 10, below=100)
    assert rounded(90, 10) == 99.0
    assert rounded(99, 100) == lab.leaf_percentile(99, 100) and "returned 100.0" in capsys.readouterr().out


def test_parts_that_a_student_leaves_out_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    story = lab.by_hand()
    assert lab.parts_of(lambda _: {"queue": np.float64(2)})(story) == dict.fromkeys(lab.PARTS, 0.0) | {"queue": 2.0}
    assert not capsys.readouterr().out
    for wrong, why in (
        (lambda _: None, "returned nothing"),
        (lambda _: [1.0], "dictionary by part"),
        (len, "TypeError"),
    ):
        assert lab.parts_of(wrong)(story) == lab.attribute(story)
        assert why in capsys.readouterr().out


# ------------------------------------------------------------------ further


@pytest.mark.parametrize("seed", range(4))
def test_the_bootstrap_is_near_its_exact_law(seed: int) -> None:
    for n, q in ((701, 50), (801, 25), (801, 80), (801, 90)):
        lab.check_bootstrap(lab.bootstrap, lab.drawn_latencies(draw(seed), n), q, seed)


def test_the_bootstrap_fails_at_a_p99_of_few_values(source: Any) -> None:
    rows = [line.split() for line in printed(source)["task-6-answer"].splitlines()[1:]]
    held = {name: [int(share.strip("%")) for share in shares] for name, *shares in rows}
    assert max(held["p99"][:2]) < 75 < min(held["p50"])
    assert 1 - 0.99**100 < 0.65  # "more than a third of all samples have nothing beyond the truth"


def test_pages_and_leaves() -> None:
    assert lab.leaf_percentile(90, 10) == pytest.approx(98.95, abs=0.005)
    assert lab.leaf_percentile(99, 100) == pytest.approx(99.98995, abs=1e-5)
    for common in (0.0, 0.2, 0.7, 1.0):
        assert lab.shared(0.01, prob_any(0.01, n=100, common=common), 100) == pytest.approx(common, abs=1e-6)
    assert "that is how many pages are done" in told(lab.check_leaf, lambda q, k: 100 * (q / 100) ** k, 90, 10)
    assert "a share; write it in per cent" in told(lab.check_leaf, lambda q, k: (q / 100) ** (1 / k), 90, 10)
    assert "would make" in told(lab.check_shared, lambda *_: 0.1, 0.01, 0.4, 100)
