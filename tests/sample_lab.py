"""A lab of every kind of cell, for the tests of what is made from a lab."""

from __future__ import annotations

import base64

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

#: A 1x1 picture.
PIXEL = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010804000000b51c0c020000000b4944415478da6364f80f00010501"
        "012718e3660000000049454e44ae426082"
    )
).decode()


def grading(grade_id: str, *, solution: bool, points: int | None = None) -> dict[str, object]:
    made: dict[str, object] = {
        "schema_version": 3,
        "grade_id": grade_id,
        "grade": points is not None,
        "solution": solution,
        "locked": not solution,
        "task": False,
    }
    if points is not None:
        made["points"] = points
    return made


def sample_lab() -> nbformat.NotebookNode:
    picture = new_output("display_data", {"image/png": PIXEL, "text/plain": "<Figure: the secret is 42.195>"})
    cells = [
        new_markdown_cell("# A sample lab\n\nGoal: count to four.", id="top"),
        new_code_cell(
            "import math", id="setup", metadata={"tags": ["recorded"]}, outputs=[new_output("stream", text="ready\n")]
        ),
        new_markdown_cell("## Task 1\n\nDouble a number.", id="t1-text"),
        new_code_cell(
            "def double(x):\n"
            '    """Twice x."""\n'
            "    ### STUB: return 0\n"
            "    ### BEGIN SOLUTION\n"
            "    secret_factor = 2\n"
            "    return secret_factor * x\n"
            "    ### END SOLUTION\n"
            "\n"
            "print(double(2))",
            id="t1",
            metadata={"tags": ["nbval-check-output"], "nbgrader": grading("task-1-double", solution=True)},
            outputs=[new_output("stream", text="4\n")],
        ),
        new_code_cell(
            "assert double(3) == 6, f'double(3) should be 6, not {double(3)}'\n"
            "### BEGIN HIDDEN TESTS\n"
            "assert double(1_234_567) == 2_469_134\n"
            "### END HIDDEN TESTS",
            id="t1-check",
            metadata={
                "tags": ["nbval-check-output"],
                "nbgrader": grading("test-1-double", solution=False, points=2),
            },
        ),
        new_markdown_cell("## Task 2\n\nPlot it.", id="t2-text"),
        new_code_cell(
            "### BEGIN SOLUTION\nhalved = [value / 2 for value in range(17)]\n### END SOLUTION",
            id="t2",
            metadata={
                "tags": ["recorded"],
                "underload": {"task": "2"},
                "nbgrader": grading("plot", solution=True),
            },
            outputs=[picture, new_output("stream", text="answer: 42.195\n")],
        ),
        new_code_cell(
            "### BEGIN SOLUTION\nmy_guess_ms = 17.5\nmy_other_guess: float = 3.0\n### END SOLUTION",
            id="guess",
            metadata={"tags": ["nbval-check-output", "prediction"], "nbgrader": grading("predict", solution=True)},
        ),
        new_code_cell(
            "show()",
            id="result",
            metadata={"tags": ["recorded", "prediction-result"]},
            outputs=[new_output("display_data", {"image/png": PIXEL})],
        ),
        new_code_cell(
            "table()",
            id="table",
            metadata={"tags": ["recorded", "keep-output"]},
            outputs=[new_output("stream", text="batch  ms\n    1  21\n")],
        ),
        new_code_cell(
            "panel()",
            id="panel",
            metadata={"tags": ["live"]},
            outputs=[new_output("display_data", {"image/png": PIXEL, "text/plain": "widget"})],
        ),
        new_markdown_cell(
            "Why?\n\n### BEGIN SOLUTION\nBecause waiting is work.\n### END SOLUTION",
            id="why",
            metadata={"nbgrader": grading("task-3-why", solution=True, points=1)},
        ),
    ]
    for number, cell in enumerate(cells):
        if cell.cell_type == "code":
            cell.execution_count = number
    return new_notebook(
        cells=cells,
        metadata={
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
            "language_info": {"name": "python"},
            "underload": {"title": "A sample lab", "minutes": 75},
            "widgets": {"application/vnd.jupyter.widget-state+json": {"state": {"a": 1}}},
        },
    )
