"""A lab that runs in no time and has everything a lab can have: a seed, partial points, a prediction, an open answer, a
bonus, a function of the library that an answer may not use."""

from __future__ import annotations

import copy

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from sample_lab import grading

WAIT = '''def waits(arrivals, service):
    """How long each arrival waits for one server, in seconds."""
    ### BEGIN SOLUTION
    free, found = 0.0, []
    for arrival in arrivals:
        start = max(free, arrival)
        found.append(start - arrival)
        free = start + service
    return found
    ### END SOLUTION'''

WAIT_CHECK = """points = Points(4)
with points.check(1, "nobody waits alone"):
    assert waits([5.0], 1.0) == [0.0], f"one arrival alone waits {waits([5.0], 1.0)}"
with points.check(1, "two at once"):
    got = waits([0.0, 0.0], 2.0)
    assert list(got) == [0.0, 2.0], f"the second of two waits for the first, 2 s; got {got}"
### BEGIN HIDDEN TESTS
with points.check(2, "many arrivals"):
    hidden_draw = points.draw().uniform(0.5, 1.5, size=20)
    times = [float(value) for value in hidden_draw.cumsum()]
    assert abs(sum(waits(times, 0.1))) < 1e-9, "a fast server keeps nobody waiting"
### END HIDDEN TESTS
points.earned()"""

MINE_CHECK = """points = Points(2)
with points.check(1, "a number of your own"):
    assert my_sum is not None, "write a number"
with points.check(1, "the right one"):
    assert my_sum == sum(mine), f"your numbers add up to something else than {my_sum}"
points.earned()"""


def code(source: str, id: str, tag: str = "nbval-check-output", **metadata: object) -> NotebookNode:
    return new_code_cell(source, id=id, metadata={"tags": [tag], **metadata}, execution_count=1)


def queue_lab(name: str = "queue-lab") -> NotebookNode:
    cells = [
        new_markdown_cell("# A lab about a queue\n\nGoal: know who waits.", id="title"),
        code(
            "import random\n\nfrom underload.course import Points\n\n"
            "SEED = 0  # yours\n\nmine = [random.Random(SEED).randrange(100) for _ in range(3)]",
            "setup",
        ),
        new_markdown_cell("## Task 1. Who waits (about 10 minutes, 4 points)\n\nWrite `waits`.", id="t1"),
        code(WAIT, "t1-answer", nbgrader=grading("task-1-solution", solution=True)),
        code(WAIT_CHECK, "t1-check", nbgrader=grading("task-1-check", solution=False, points=4)),
        new_markdown_cell("## Task 2. Your numbers (about 5 minutes, 4 points)\n\nAdd up `mine`.", id="t2"),
        code(
            "### STUB: my_sum = None\n### BEGIN SOLUTION\nmy_sum = sum(mine)\n### END SOLUTION",
            "t2-answer",
            nbgrader=grading("task-2-solution", solution=True),
        ),
        code(MINE_CHECK, "t2-check", nbgrader=grading("task-2-check", solution=False, points=2)),
        code("print('my numbers are', mine)", "t2-show", tag="live"),
        new_markdown_cell(
            "Why does the sum not tell who waits?\n\n### BEGIN SOLUTION\nBecause waiting depends on their order.\n"
            "### RUBRIC\n- 1: says that the order matters\n- 1: gives an example\n### END SOLUTION",
            id="t2-why",
            metadata={"nbgrader": grading("task-2-why", solution=True, points=2)},
        ),
        new_markdown_cell("## Further: more (about 3 minutes, 1 point)\n\nName the answer.", id="t3"),
        code(
            "### BEGIN SOLUTION\nthe_answer = 6 * 7 + len('')\n### END SOLUTION",
            "t3-answer",
            nbgrader=grading("task-3-solution", solution=True),
        ),
        code(
            'points = Points(1)\nwith points.check(1, "the answer"):\n    assert the_answer == 42\npoints.earned()',
            "t3-check",
            nbgrader=grading("task-3-check", solution=False, points=1),
            underload={"further": True},
        ),
    ]
    cells[8].metadata["tags"] = ["live", "show"]
    return new_notebook(
        cells=cells,
        metadata={
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
            "language_info": {"name": "python"},
            "underload": {
                "lab": name,
                "title": "A lab about a queue",
                "minutes": 20,
                "tasks": {
                    "1": {"goal": "work out who waits", "minutes": 10, "library": ["underload.metrics.ttft"]},
                    "2": {"goal": "add up", "minutes": 5},
                    "3": {"goal": "answer", "minutes": 3},
                },
            },
        },
    )


def edited(notebook: NotebookNode, **cells: str) -> NotebookNode:
    """The notebook with other sources in some cells, named by id with _ for -."""
    made = copy.deepcopy(notebook)
    for id, source in cells.items():
        next(cell for cell in made.cells if cell.id == id.replace("_", "-")).source = source
    nbformat.validate(made)
    return made


def solved_by_hand(notebook: NotebookNode) -> NotebookNode:
    """A hand-out of this lab with right answers, written as a student would."""
    return edited(
        notebook,
        t1_answer=(
            "def waits(arrivals, service):\n    clock, out = 0, []\n    for t in arrivals:\n"
            "        out.append(max(clock - t, 0.0))\n        clock = max(clock, t) + service\n    return out"
        ),
        t2_answer="my_sum = sum(mine)",
        t2_why="The order matters: [0, 9] and [9, 0] have one sum.",
        t3_answer="the_answer = 42",
    )
