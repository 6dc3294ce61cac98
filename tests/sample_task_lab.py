"""A small lab with tasks that are graded, for the tests of what grades them: it needs nothing but Python."""

from __future__ import annotations

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from sample_lab import grading


def task_lab() -> nbformat.NotebookNode:
    """Three tasks: one that the library ships a version of, one with an open answer, a bonus."""
    cells = [
        new_markdown_cell("# Counting", id="top"),
        new_code_cell(
            "import math\nfrom underload.course import Points\n\nSEED = 0\n\nasync def helper():\n    return 1",
            id="setup",
            metadata={"tags": ["nbval-check-output"]},
        ),
        new_markdown_cell("## Task 1. Double (about 5 minutes, 2 points)", id="t1"),
        new_code_cell(
            "def double(x):\n    ### BEGIN SOLUTION\n    return 2 * x\n    ### END SOLUTION",
            id="c-double",
            metadata={"tags": ["live"], "nbgrader": grading("task-1-double", solution=True)},
        ),
        new_code_cell(
            "points = Points(2)\n"
            'with points.check(1, "three"):\n'
            "    assert double(3) == 6, f'double(3) is {double(3)}; it should be 6'\n"
            "### BEGIN HIDDEN TESTS\n"
            'with points.check(1, "others"):\n'
            "    for x in points.draw().integers(-99, 99, size=5):\n"
            "        assert double(x) == 2 * x\n"
            "### END HIDDEN TESTS\n"
            "points.earned()",
            id="c-double-check",
            metadata={"tags": ["nbval-check-output"], "nbgrader": grading("task-1-check", solution=False, points=2)},
            outputs=[new_output("execute_result", {"text/plain": "2"}, execution_count=3)],
        ),
        new_code_cell("double(21)", id="look", metadata={"tags": ["live", "show"]}),
        new_code_cell("USE_MINE = False", id="switch", metadata={"tags": ["live"]}),
        new_markdown_cell("## Task 2. Halve (about 10 minutes, 3 points)", id="t2"),
        new_code_cell(
            "def halve(x):\n    ### BEGIN SOLUTION\n    return x / 2\n    ### END SOLUTION",
            id="c-halve",
            metadata={"tags": ["live"], "nbgrader": grading("task-2-halve", solution=True)},
        ),
        new_code_cell(
            "points = Points(2)\n"
            'with points.check(1, "even"):\n'
            "    assert halve(4) == 2\n"
            'with points.check(1, "odd"):\n'
            "    assert halve(3) == 1.5, f'halve(3) is {halve(3)}; it should be 1.5'\n"
            "points.earned()",
            id="c-halve-check",
            metadata={"tags": ["nbval-check-output"], "nbgrader": grading("task-2-check", solution=False, points=2)},
            outputs=[new_output("execute_result", {"text/plain": "2"}, execution_count=6)],
        ),
        new_markdown_cell(
            "Why?\n\n### BEGIN SOLUTION\nBecause waiting is work.\n### RUBRIC\n- 1: says why\n### END SOLUTION",
            id="c-why",
            metadata={"nbgrader": grading("task-2-why", solution=True, points=1)},
        ),
        new_markdown_cell("## Further: Task 3. Treble (about 5 minutes, 1 bonus point)", id="t3"),
        new_code_cell(
            "def treble(x):\n    ### BEGIN SOLUTION\n    return 3 * x\n    ### END SOLUTION",
            id="c-treble",
            metadata={"tags": ["live"], "nbgrader": grading("task-3-treble", solution=True)},
        ),
        new_code_cell(
            "points = Points(1)\nwith points.check(1, 'one'):\n    assert treble(2) == 6\npoints.earned()",
            id="c-treble-check",
            metadata={
                "tags": ["nbval-check-output"],
                "underload": {"further": True},
                "nbgrader": grading("task-3-check", solution=False, points=1),
            },
            outputs=[new_output("execute_result", {"text/plain": "1"}, execution_count=8)],
        ),
    ]
    for number, cell in enumerate(cells):
        if cell.cell_type == "code":
            cell.execution_count = number
    tasks = {
        "1": {"goal": "double a number", "minutes": 5, "library": ["underload.metrics.mean"]},
        "2": {"goal": "halve a number", "minutes": 10},
        "3": {"goal": "treble a number", "minutes": 5},
    }
    return new_notebook(
        cells=cells,
        metadata={
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
            "language_info": {"name": "python"},
            "underload": {"lab": "counting", "title": "Counting", "minutes": 15, "tasks": tasks},
        },
    )
