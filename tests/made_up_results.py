"""A small lab and made-up results of grading it, for the tests of what is written about results."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Sequence
from typing import Any

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from sample_lab import grading

from underload.course.assemble import Problem
from underload.course.outline import Outline, outline
from underload.course.points import Check
from underload.course.results import CellRun, PartResult, Result

LAB = "queue"

MEAN = '''def waiting(arrivals, served):
    """Mean time from arrival to service, in seconds."""
    ### BEGIN SOLUTION
    return sum(begun - came for came, begun in zip(arrivals, served)) / len(arrivals)
    ### END SOLUTION'''

QUEUE = '''def serve(arrivals, seconds):
    """When each request begins to be served, one at a time, in order."""
    ### BEGIN SOLUTION
    free, begun = 0.0, []
    for came, takes in zip(arrivals, seconds):
        start = max(free, came)
        begun.append(start)
        free = start + takes
    return begun
    ### END SOLUTION'''

TWO = "def two(arrivals):\n    ### BEGIN SOLUTION\n    return arrivals\n    ### END SOLUTION"

WHY = """### BEGIN SOLUTION
The queue grows without end, since requests come faster than the server works them off.
### RUBRIC
- 1: says that requests come faster than they are served
- 1: says that the queue therefore never stops growing
### END SOLUTION"""


@functools.cache
def lab() -> nbformat.NotebookNode:
    """Two tasks of code, an open answer, a bonus."""

    def task(name: str) -> dict[str, Any]:
        return {"underload": {"task": name}}

    def test(name: str, points: float, lines: str, **more: Any) -> nbformat.NotebookNode:
        return new_code_cell(
            f"points = Points({points:g})\n{lines}\npoints.earned()",
            id=name,
            metadata={"nbgrader": grading(name, solution=False, points=points), "underload": {**more}},  # type: ignore[arg-type]
        )

    def answer(name: str, source: str, **more: Any) -> nbformat.NotebookNode:
        return new_code_cell(
            source, id=name, metadata={"nbgrader": grading(name, solution=True), "underload": {**more}}
        )

    def check(worth: float, what: str) -> str:
        return f'with points.check({worth}, "{what}"):\n    pass'

    def hidden(lines: str) -> str:
        return f"\n### BEGIN HIDDEN TESTS\n{lines}\n### END HIDDEN TESTS"

    cells = [
        new_markdown_cell("# The queue", id="top"),
        new_code_cell("from underload.course import Points", id="setup"),
        new_markdown_cell("## Task 1. The mean wait (about 10 minutes, 2 points)", id="one"),
        answer("task-1-solution", MEAN),
        test("task-1-check", 2, check(1, "three requests") + hidden(check(1, "one request"))),
        new_markdown_cell("## Task 2. One server (about 20 minutes, 4 points)", id="two"),
        answer("task-2-solution", QUEUE),
        test("task-2-check", 4, check(2, "an idle server") + hidden(check(2, "a busy server"))),
        new_markdown_cell(
            "## Task 3. Too much (about 5 minutes, 2 points)\n\nWhat happens at a load of 1.2, and **why**?", id="three"
        ),
        new_markdown_cell(
            WHY, id="task-3-why", metadata={"nbgrader": grading("task-3-why", solution=True, points=2), **task("3")}
        ),
        new_markdown_cell("## Further: two servers (about 20 minutes, 3 points)", id="four"),
        answer("further-1-solution", TWO, task="further 1"),
        test("further-1-check", 3, check(3, "two in parallel"), task="further 1", further=True),
    ]  # fmt: skip
    made = new_notebook(cells=cells)
    made.metadata["underload"] = {
        "lab": LAB,
        "title": "The queue",
        "minutes": 55,
        "tasks": {
            "1": {"goal": "compute a mean wait", "minutes": 10, "library": []},
            "2": {"goal": "simulate a queue of one server", "minutes": 20, "library": ["underload.queueing.serve"]},
        },
    }
    return made


@functools.cache
def lab_outline() -> Outline:
    return outline(lab())


def outlines() -> dict[str, Outline]:
    return {LAB: lab_outline()}


def part(name: str, earned: float | None, **more: Any) -> PartResult:
    """The result of one part; without `checks`, a test's checks passed or failed so that they add up."""
    asked = lab_outline().part(name)
    if "checks" not in more and not asked.manual and not more.get("said"):
        names = {
            "task-1-check": [("three requests", 1.0), ("one request", 1.0)],
            "task-2-check": [("an idle server", 2.0), ("a busy server", 2.0)],
            "further-1-check": [("two in parallel", 3.0)],
        }[name]
        left, checks = earned or 0.0, []
        for what, worth in names:
            passed = left >= worth
            left -= worth if passed else 0.0
            checks.append(Check(what, worth, worth if passed else 0.0, "" if passed else f"{what}: 3.5 s is not 2.5 s"))
        more["checks"] = tuple(checks)
    return PartResult(name, asked.task, asked.points, earned, asked.further, asked.manual, **more)


def result(
    student: str,
    one: float = 2,
    two: float = 4,
    why: float | None = None,
    further: float = 0,
    *,
    answer: str = "It never stops growing, because more comes in than goes out.",
    code: dict[str, str] | None = None,
    **more: Any,
) -> Result:
    """A graded submission with these points."""
    made = Result(
        student,
        LAB,
        f"{student}/queue.ipynb",
        "graded",
        handout="a1b2c3d4",
        parts=(
            part("task-1-check", one),
            part("task-2-check", two),
            part("task-3-why", why, answer=answer),
            part("further-1-check", further),
        ),
        code=code or {"task-1-solution": f"def waiting(arrivals, served):\n    return {len(student)}"},
        seconds=0.4,
    )
    return dataclasses.replace(made, **more)


def refused(student: str, why: str = "the file is empty", lab: str = LAB) -> Result:
    return Result(student, lab, f"{student}/queue.ipynb", "refused", why)


def crowd(count: int, seed: int = 1) -> list[Result]:
    """A class with everything that a report has to show."""
    draw = random.Random(seed)
    texts = [
        "It never stops growing, because more comes in than goes out.",
        "The waiting time goes to infinity: 1.2 s of work come in every second, so 0.2 s a second are left over.",
        "Nothing much, a queue of about five.",
        "",
    ]
    made: list[Result] = []
    for number in range(count):
        name = f"student-{number + 1:02}"
        text = draw.choice(texts)
        made.append(
            result(
                name,
                draw.choice([0, 1, 2, 2]),
                draw.choice([0, 2, 4, 4, 4]),
                None if text else 0,
                draw.choice([0, 0, 3]),
                answer=text,
                code={"task-2-solution": QUEUES[number % len(QUEUES)]},
                seconds=0.3 + draw.random(),
            )
        )
    if count > 8:
        made[1] = dataclasses.replace(
            made[1],
            problems=(Problem("missing", "task-2-check", None, "the check task-2-check is not in the notebook"),),
            cells=(CellRun("task-2-solution", "ZeroDivisionError: division by zero", "12\n"),),
        )  # fmt: skip
        made[2] = dataclasses.replace(
            made[2],
            parts=(
                made[2].parts[0],
                part("task-2-check", 0.0, said="the answer used underload.queueing.serve, the library's own version"),
                *made[2].parts[2:],
            ),
            notes=("Points.check was replaced by the notebook and put back before the checks ran",),
        )  # fmt: skip
        made[3] = refused(made[3].student, "the file is a PDF, renamed to .ipynb")
        made[4] = dataclasses.replace(
            made[4],
            parts=(
                made[4].parts[0],
                part("task-2-check", 0.0, said="the cell task-2-solution did not end in 20 s"),
                *made[4].parts[2:],
            ),
            cells=(CellRun("task-2-solution", "", "", "time", 20.0),),
            seconds=21.5,
        )  # fmt: skip
    return made


def renamed(code: str, names: Sequence[tuple[str, str]]) -> str:
    """The code with names changed, a comment added and blank lines put in: what a copier does."""
    import re

    for old, new in names:
        code = re.sub(rf"\b{old}\b", new, code)
    return "# my own solution\n" + code.replace("\n    return", "\n\n    return")


#: `serve` as different people write it, each on their own; all right but the last.
QUEUES = (
    """def serve(arrivals, seconds):
    begun = []
    clock = arrivals[0] if arrivals else 0
    for i in range(len(arrivals)):
        if arrivals[i] > clock:
            clock = arrivals[i]
        begun.append(clock)
        clock += seconds[i]
    return begun""",
    """import itertools

def serve(arrivals, seconds):
    def next_start(previous, request):
        start, length = previous
        came, takes = request
        return max(start + length, came), takes
    states = itertools.accumulate(zip(arrivals, seconds), next_start, initial=(0.0, 0.0))
    return [start for start, _ in states][1:]""",
    """def serve(arrivals, seconds):
    result = [0.0] * len(arrivals)
    for n, arrival in enumerate(arrivals):
        if n == 0:
            result[n] = arrival
        else:
            end_of_previous = result[n - 1] + seconds[n - 1]
            result[n] = end_of_previous if end_of_previous > arrival else arrival
    return result""",
    """def serve(arrivals, seconds):
    if not arrivals:
        return []
    starts = [arrivals[0]]
    finish = arrivals[0] + seconds[0]
    for a, s in list(zip(arrivals, seconds))[1:]:
        begin = max(a, finish)
        starts.append(begin)
        finish = begin + s
    return starts""",
    """import numpy as np

def serve(arrivals, seconds):
    a = np.asarray(arrivals, dtype=float)
    s = np.asarray(seconds, dtype=float)
    done_before = np.concatenate([[0.0], np.cumsum(s)[:-1]])
    return list(np.maximum.accumulate(a - done_before) + done_before)""",
    """def serve(arrivals, seconds):
    queue = list(zip(arrivals, seconds))
    now, out = 0, []
    while queue:
        came, takes = queue.pop(0)
        now = came if now < came else now
        out += [now]
        now = now + takes
    return out""",
    """def serve(arrivals, seconds):
    def go(rest, free):
        if not rest:
            return []
        (came, takes), *others = rest
        start = max(came, free)
        return [start, *go(others, start + takes)]
    return go(list(zip(arrivals, seconds)), 0.0)""",
    """def serve(arrivals, seconds):
    waits = [0.0]
    for k in range(1, len(arrivals)):
        gap = arrivals[k] - arrivals[k - 1]
        waits.append(max(0.0, waits[-1] + seconds[k - 1] - gap))
    return [arrivals[k] + waits[k] for k in range(len(arrivals))]""",
    """class Server:
    def __init__(self):
        self.free_at = 0.0

    def take(self, came, takes):
        start = self.free_at if self.free_at > came else came
        self.free_at = start + takes
        return start

def serve(arrivals, seconds):
    server = Server()
    return [server.take(came, takes) for came, takes in zip(arrivals, seconds)]""",
    """def serve(arrivals, seconds):
    begun = []
    total = 0.0
    for came, takes in zip(arrivals, seconds):
        begun.append(total)
        total = total + takes
    return begun""",
)
