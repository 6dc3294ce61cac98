"""Similar submissions: copies are found through disguises, independent answers are not, the solution is apart."""

from __future__ import annotations

import dataclasses
import random
import time
from pathlib import Path

import pytest
from made_up_results import LAB, MEAN, QUEUE, QUEUES, lab, lab_outline, outlines, part, renamed, result
from pace import slowness

from underload.course.outline import outline
from underload.course.results import Result
from underload.course.similar import Similar, normalised, similar
from underload.course.source import read_notebook
from underload.course.wrong import read_wrong

ROOT = Path(__file__).parent.parent
SOURCES = {LAB: lab()}
OPEN = "The queue grows by two tenths of a second of work every second, so nobody who comes later is served on time."


def solved(source: str) -> str:
    return "\n".join(line for line in source.splitlines() if "SOLUTION" not in line)


def queue_of(student: str, code: str) -> Result:
    return result(student, code={"task-2-solution": code}, answer="")


def found(results: list[Result]) -> Similar:
    return similar(results, outlines(), SOURCES)


def test_independent_answers_to_one_task_are_no_pairs() -> None:
    results = [queue_of(f"s{number}", code) for number, code in enumerate(QUEUES)]
    assert found(results).pairs == ()


@pytest.mark.parametrize("original", QUEUES[:9])
def test_a_copy_with_other_names_comments_and_texts_is_found_among_independent_answers(original: str) -> None:
    names = [("begun", "b"), ("clock", "zeit"), ("came", "x"), ("takes", "y"), ("start", "z"), ("n", "nn"), ("a", "aa")]
    copy = renamed(original, names).replace(
        "def serve(arrivals, seconds):", 'def serve(arrivals, seconds):\n    "Mine."'
    )
    results = [queue_of(f"s{number}", code) for number, code in enumerate(QUEUES)]
    pairs = found([*results, queue_of("copier", copy)]).pairs
    assert [{pair.first, pair.second} for pair in pairs] == [{"copier", f"s{QUEUES.index(original)}"}]
    assert pairs[0].share == 1.0 and pairs[0].cells[0].task == "2"
    assert {pairs[0].cells[0].first, pairs[0].cells[0].second} == {copy, original}


def test_a_copy_with_a_statement_added_and_one_changed_is_found() -> None:
    copy = QUEUES[3].replace("    return starts", "    assert len(starts) == len(arrivals)\n    return starts")
    copy = renamed(copy, [("starts", "out"), ("finish", "till")]).replace("max(a, till)", "max(till, a)")
    results = [queue_of(f"s{number}", code) for number, code in enumerate(QUEUES)]
    pairs = found([*results, queue_of("copier", copy)]).pairs
    assert [{pair.first, pair.second} for pair in pairs] == [{"copier", "s3"}]
    assert 0.7 <= pairs[0].share < 1.0


def test_two_copies_are_found_in_a_class_of_two() -> None:
    pairs = found([queue_of("ann", QUEUES[0]), queue_of("bob", renamed(QUEUES[0], [("clock", "t")]))]).pairs
    assert [(pair.first, pair.second) for pair in pairs] == [("ann", "bob")]


def test_five_who_share_one_answer_are_found_in_a_class_of_thirty() -> None:
    ring = [queue_of(f"ring{number}", renamed(QUEUES[7], [("waits", f"w{number}")])) for number in range(5)]
    others = [queue_of(f"s{number}", solved(QUEUE)) for number in range(25)]
    pairs = found([*others, *ring]).pairs
    assert len(pairs) == 10 and {name for pair in pairs for name in (pair.first, pair.second)} == {
        f"ring{number}" for number in range(5)
    }


@pytest.mark.parametrize("count", [6, 40])
def test_what_much_of_the_class_writes_alike_is_nobodys_copy(count: int) -> None:
    results = [queue_of(f"s{number}", renamed(QUEUES[0], [("clock", f"c{number}")])) for number in range(count)]
    assert found(results).pairs == ()
    assert len(found(results[:5]).pairs) == 10


def test_a_short_answer_that_can_only_be_written_one_way_is_no_pair() -> None:
    code = {"task-1-solution": solved(MEAN)}
    assert found([result("ann", code=code, answer=""), result("bob", code=code, answer="")]).pairs == ()


def test_answers_equal_to_the_published_solution_are_listed_apart_and_are_no_pairs() -> None:
    copies = [queue_of("ann", solved(QUEUE)), queue_of("bob", renamed(solved(QUEUE), [("free", "f"), ("begun", "b")]))]
    made = found([*copies, queue_of("cleo", QUEUES[0])])
    assert made.pairs == ()
    assert [(one.student, one.cells) for one in made.published] == [
        ("ann", ("task-2-solution",)),
        ("bob", ("task-2-solution",)),
    ]


def test_open_answers_that_are_nearly_equal_are_a_pair_and_short_or_own_ones_are_not() -> None:
    near = OPEN.replace("tenths", "TENTHS").replace(", so", " - so")
    other = "Since more work arrives each second than the server can do, the line gets longer for as long as it lasts."
    results = [result("ann", answer=OPEN), result("bob", answer=near), result("cleo", answer=other)]
    results += [result("dan", answer="It grows."), result("eve", answer="It grows.")]
    pairs = [pair for pair in found(results).pairs if pair.cells[0].cell == "task-3-why"]
    assert [(pair.first, pair.second) for pair in pairs] == [("ann", "bob")]


def test_an_open_answer_copied_from_the_model_is_published_and_no_pair() -> None:
    model = lab_outline().part("task-3-why").model
    results = [result(name, answer=model, code={"x": ""}) for name in ("ann", "bob")]
    made = found(results)
    assert made.pairs == () and [one.cells for one in made.published] == [("task-3-why",), ("task-3-why",)]


def test_refused_submissions_and_other_labs_are_not_compared() -> None:
    first = queue_of("ann", QUEUES[0])
    second = dataclasses.replace(queue_of("bob", QUEUES[0]), status="refused")
    assert found([first, second]).pairs == ()
    assert found([first, dataclasses.replace(queue_of("bob", QUEUES[0]), lab="another")]).pairs == ()


@pytest.mark.parametrize(
    "code", ["def f(:\n  pass", "x = " + "(" * 3000, "%matplotlib inline\n!ls", "", "\0", "a" * 100_000]
)
def test_whatever_a_cell_holds_can_be_compared(code: str) -> None:
    normalised(code)
    found([queue_of("ann", code), queue_of("bob", code)])


def test_a_copied_answer_that_is_no_python_is_found_too() -> None:
    broken = QUEUES[0].replace("clock = arrivals[0]", "clock == = arrivals[0]")
    pairs = found([queue_of("ann", broken), queue_of("bob", broken)]).pairs
    assert [(pair.first, pair.second) for pair in pairs] == [("ann", "bob")]


def test_formatting_comments_texts_and_hints_do_not_count_and_calls_do() -> None:
    one = "def f(a: int) -> float:\n    'Says so.'\n    b: float = a * 2.0  # twice\n    raise ValueError(f'no {b}')"
    other = "def g(x):\n    y = (x *\n         2.0)\n    raise ValueError('never')"
    assert normalised(one) == normalised(other)
    assert normalised("sum(x)") != normalised("max(x)")
    assert normalised("line.arrival") != normalised("line.sent")


@pytest.mark.parametrize("path", sorted((ROOT / "tests" / "course").glob("*.toml")), ids=lambda path: path.stem)
def test_typical_wrong_answers_to_a_real_lab_are_no_pairs(path: Path) -> None:
    source = read_notebook(ROOT / "labs" / f"{path.stem}.ipynb")
    wrong = [entry for entry in read_wrong(path, source) if not entry.harmless]
    assert len(wrong) > 30
    results = [Result(str(entry), path.stem, "", "graded", code=dict(entry.code)) for entry in wrong]
    assert similar(results, {path.stem: outline(source)}, {path.stem: source}).pairs == ()


def test_two_hundred_submissions_take_less_than_twenty_seconds() -> None:
    draw = random.Random(3)
    results = []
    for number in range(200):
        code = {}
        for task in range(6):  # statements in an order and with numbers of their own
            lines = [line for line in QUEUES[draw.randrange(10)].splitlines() if line.startswith("    ")]
            extra = [f"    v{draw.randrange(9)} = seconds[{draw.randrange(99)}] + {draw.random()}" for _ in range(12)]
            code[f"task-{task}"] = "def serve(arrivals, seconds):\n" + "\n".join([*extra, *lines])
        results.append(result(f"s{number}", code=code, answer=" ".join(draw.choices(OPEN.split(), k=60))))
    began = time.process_time()
    found(results)
    assert time.process_time() - began < 20 * slowness()


def test_without_the_labs_notebook_pairs_are_found_and_nothing_is_called_published() -> None:
    made = similar([queue_of("ann", QUEUES[1]), queue_of("bob", QUEUES[1])], outlines())
    assert len(made.pairs) == 1 and made.published == ()


def test_the_same_results_give_the_same_list_in_any_order() -> None:
    results = [queue_of(f"s{n}", QUEUES[n % 4]) for n in range(8)]
    assert found(results).pairs == found(results).pairs
    again = {frozenset((pair.first, pair.second)) for pair in found(results[::-1]).pairs}
    assert {frozenset((pair.first, pair.second)) for pair in found(results).pairs} == again


def test_an_answer_nobody_wrote_is_in_no_pair() -> None:
    empty = [
        dataclasses.replace(result(name, code={}), parts=(part("task-3-why", 0, answer=""),)) for name in ("ann", "bob")
    ]
    assert found(empty) == Similar()
