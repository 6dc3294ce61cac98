"""A class of made-up students of the lab *The latency budget*: every kind of good and bad submission, in every shape.

Each says what its submission must earn: full points in every part but those named. The lab's solution is the perfect
student's; what is wrong with the others is written here.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from underload.course import handout
from underload.course.answers import solved
from underload.course.source import nbgrader

LAB = "latency-budget"
OPEN = "task-3-open"
#: The tested parts of each task.
PARTS = {
    "1": ("task-1-check",),
    "2": ("task-2-check",),
    "3": ("task-3-prediction-check", "task-3-check"),
    "4": ("task-4-prediction-check", "task-4-buckets-check", "task-4-line-check", "task-4-mine-check"),
    "5": ("task-5-check",),
    "6": ("task-6-check",),
}
TESTED = tuple(part for parts in PARTS.values() for part in parts)

#: Another way to write task 2, as a student would.
OWN_TIMES = '''def times_of(line):
    """The latencies of one timeline that has at least one token, in seconds."""
    times = line.token_times
    itl, stalls, place = [], [], 1
    while place < len(times):
        end = place
        while end < len(times) and times[end] == times[place]:
            end += 1
        pause = times[place] - times[place - 1]
        if pause > 0:
            stalls.append(pause)
        itl.extend([pause / (end - place)] * (end - place))
        place = end
    return dict(
        ttft=times[0] - line.arrival, itl=itl, tpot=sum(itl) / len(itl) if itl else None,
        e2e=times[-1] - line.arrival, longest_stall=max(stalls) if stalls else None,
    )
'''


@dataclass(frozen=True)
class Made:
    """One student. `lost`: what each part earns that is not full; `refused`: a piece of the reason, "" for a submission
    that is graded; `says`: pieces of text that its result must hold somewhere; `files`: by path in the submissions."""

    student: str
    what: str
    files: Mapping[str, bytes]
    lost: Mapping[str, float] = field(default_factory=dict)
    refused: str = ""
    says: tuple[str, ...] = ()
    open_answer: bool = True


def written(notebook: NotebookNode) -> bytes:
    return nbformat.writes(notebook, version=nbformat.NO_CONVERT).encode()


def at(notebook: NotebookNode, grade_id: str) -> int:
    return next(index for index, cell in enumerate(notebook.cells) if nbgrader(cell).get("grade_id") == grade_id)


def made_up_class(source: NotebookNode, secret_place: Path) -> list[Made]:
    """The class. `secret_place`: where the lab's source lies, which one of them tries to read."""
    return [
        Made(student, what, files=files, **expected)
        for student, what, files, expected in _students(source, secret_place)
    ]


def write_class(made: list[Made], folder: Path) -> None:
    """Lay the submissions out below a folder."""
    for one in made:
        for name, content in one.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def nothing(*tasks: str) -> dict[str, float]:
    """All tested parts of these tasks lost."""
    return dict.fromkeys((part for task in tasks for part in PARTS[task]), 0.0)


def _students(source: NotebookNode, secret_place: Path) -> Iterator[tuple[str, str, dict[str, bytes], dict]]:
    right = solved(source)
    blank = handout(source)

    def answers(**changed: str) -> NotebookNode:
        return solved(source, {name.replace("_", "-"): text for name, text in changed.items()})

    def text_of(grade_id: str) -> str:
        return str(right.cells[at(right, grade_id)].source)

    def changed(grade_id: str, change: Callable[[str], str]) -> NotebookNode:
        return solved(source, {grade_id: change(text_of(grade_id))})

    def with_own(code: str, after: str, notebook: NotebookNode = right) -> NotebookNode:
        made = solved(source) if notebook is right else notebook
        made.cells.insert(at(made, after) + 1, nbformat.v4.new_code_cell(code, id="scratch"))
        return made

    def usual(student: str, notebook: NotebookNode) -> dict[str, bytes]:
        return {f"{student}/{LAB}.ipynb": written(notebook)}

    def simple(student: str, what: str, notebook: NotebookNode, **expected) -> tuple:
        return student, what, usual(student, notebook), expected

    yield simple("perfect", "everything right", right)
    yield simple(
        "blank", "the hand-out as it was given", blank, lost=nothing(*PARTS), open_answer=False,
        says=("nothing was written in task-1-solution",),
    )  # fmt: skip
    for task in PARTS:
        notebook = handout(source)
        for cell, theirs in zip(notebook.cells, right.cells, strict=True):
            if nbgrader(cell).get("solution") and cell.cell_type == "code" and _task(cell, source) == task:
                cell.source = theirs.source
        others = [other for other in PARTS if other != task]
        yield simple(f"only-{task}", f"task {task} alone", notebook, lost=nothing(*others), open_answer=False)

    yield simple(
        "loop", "a cell that never ends", changed("task-2-solution", lambda text: text + "\n\nwhile True:\n    pass\n"),
        lost=nothing("2"), says=("the cell task-2-solution did not end within",),
    )  # fmt: skip
    stubborn = "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass\n"
    yield simple(
        "stubborn", "a cell that never ends and lets nothing end it",
        changed("task-6-solution", lambda text: stubborn + text),
        lost=nothing("6"), says=("the cell task-6-solution did not end within",),
    )  # fmt: skip
    yield simple(
        "slow-function", "a function that never returns for one of the inputs of the hidden checks",
        changed(
            "task-6-solution",
            lambda text: text.replace("    first =", "    while len(token_times) == 1:\n        pass\n    first =", 1),
        ),
        lost={"task-6-check": 1.5}, says=("did not end within",),
    )  # fmt: skip
    yield simple(
        "typo", "a syntax error", changed("task-1-solution", lambda text: text.replace("def serve(", "def serve((", 1)),
        lost=nothing("1"), says=("task-1-solution, line ", "could not run"),
    )  # fmt: skip
    notebook = solved(source)
    del notebook.cells[at(notebook, "task-3-solution")]
    yield simple(
        "gap", "an answer cell is missing", notebook, lost={"task-3-check": 0.0},
        says=("the answer cell task-3-solution is not in the notebook",),
    )  # fmt: skip

    notebook = answers(task_2_solution="def times_of(line):\n    return {}\n")
    newer = notebook.cells[at(notebook, "task-2-solution")].copy()
    newer.update(id="a-copy", source=text_of("task-2-solution"))
    notebook.cells.insert(at(notebook, "task-2-solution") + 1, newer)
    yield simple("copied", "a copied cell, the answer in the copy", notebook, says=("occurs 2 times",))

    notebook = solved(source)
    cell = notebook.cells.pop(at(notebook, "task-6-solution"))
    notebook.cells.insert(1, cell)
    yield (
        "moved", "cells in another order, in a folder of nbgrader's shape",
        {f"moved/{LAB}/{LAB}.ipynb": written(notebook)}, {"says": ("task-6-solution was moved",)},
    )  # fmt: skip

    notebook = solved(source)
    del notebook.cells[at(notebook, "task-5-check")]
    yield simple("no-check", "a check was deleted", notebook, says=("the check task-5-check is not in the notebook",))

    notebook = handout(source)
    notebook.cells[
        at(notebook, "task-1-check")
    ].source = "points = Points(4)\npoints.earned = lambda: 4\npoints.earned()"
    yield simple(
        "generous", "a check that gives itself points", notebook, lost=nothing(*PARTS), open_answer=False,
        says=("the check task-1-check was changed",),
    )  # fmt: skip

    yield simple(
        "quitter", "a cell that ends its process", changed("task-3-solution", lambda t: "import os\nos._exit(0)\n" + t),
        lost={"task-3-check": 0.0}, says=("task-3-solution ended the process it ran in",),
    )  # fmt: skip
    killer = "def times_of(line):\n    import os, signal\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    yield simple("killer", "a function that kills its process", answers(task_2_solution=killer), lost=nothing("2"))
    yield simple(
        "glutton", "a cell that takes all memory",
        changed("task-6-solution", lambda text: "hoard = [bytearray(50_000_000) for _ in range(1000)]\n" + text),
        lost=nothing("6"), says=("emory",),
    )  # fmt: skip
    yield simple(
        "chatty", "ten million characters of output",
        with_own("for _ in range(100):\n    print('talk ' * 20_000)", "task-1-solution"),
    )  # fmt: skip

    other = json.loads(written(right))
    other["metadata"]["underload"]["lab"] = "why-batching-wins"
    yield (
        "elsewhere", "a notebook of another lab",
        {f"elsewhere/{LAB}.ipynb": json.dumps(other).encode()}, {"refused": "of the lab 'why-batching-wins'"},
    )  # fmt: skip
    yield "paper", "a PDF with another ending", {f"paper_{LAB}.ipynb": b"%PDF-1.7\n\x00"}, {"refused": "it is a PDF"}
    yield "empty", "an empty file", {f"empty/{LAB}.ipynb": b""}, {"refused": "the file is empty"}
    yield (
        "cut-off", "a file that was cut off", {f"cut-off/{LAB}.ipynb": written(right)[:20_000]},
        {"refused": "no JSON"},
    )  # fmt: skip

    notebook = solved(source)
    notebook.metadata["underload"]["handout"] = "0123456789abcdef"
    notebook.cells = [cell for cell in notebook.cells if not cell.source.startswith("## Task 2")]
    yield simple("late-edition", "an older hand-out", notebook, says=("another version of the hand-out (01234567",))

    notebook = answers(
        task_1_solution="import importlib\n\nserve = importlib.import_module('underload.labs.latency_budget').observe",
        task_2_solution=(
            "import underload.metrics\n\n\ndef times_of(line):\n"
            "    names = ('ttft', 'itl', 'tpot', 'e2e', 'longest_stall')\n"
            "    return {name: getattr(underload.metrics, name)(line) for name in names}\n"
        ),
    )
    yield simple(
        "borrower", "the library's own versions, by a dynamic import and by attribute", notebook,
        lost=nothing("1", "2"),
        says=("the answer used underload.labs.latency_budget.observe", "the answer used underload.metrics."),
    )  # fmt: skip

    notebook = answers(task_2_solution="def times_of(line):\n    return {}\n")
    patch = "lab.check_times = lambda *arguments: None\nPoints.earned = lambda self: 3.0"
    yield simple(
        "patcher", "the checks patched", with_own(patch, "task-2-solution", notebook), lost=nothing("2"),
        says=("put back before", "check_times"),
    )  # fmt: skip
    peek = f"stolen = open({str(secret_place)!r}).read()"
    yield simple(
        "peeper", "reads the lab's source for its hidden tests",
        with_own(peek, "task-1-solution", answers(task_1_solution="raise NotImplementedError")),
        lost=nothing("1"), says=("PermissionError",),
    )  # fmt: skip
    thread = (
        "import threading, time\n\n\ndef tick():\n    while True:\n        time.sleep(0.05)\n\n\n"
        "threading.Thread(target=tick, daemon=True).start()"
    )
    yield simple("ticker", "a thread that is left running", with_own(thread, "task-1-solution"))
    yield simple(
        "waiter", "await at the top of a cell",
        changed("task-2-solution", lambda text: f"import asyncio\n\nawait asyncio.sleep(0)\n{text}"),
    )  # fmt: skip
    scalars = (
        "import numpy as np\n\n\ndef fit_line(xs, ys):\n    per_token, floor = np.polyfit(np.asarray(xs), ys, 1)\n"
        "    return np.array([floor, per_token])\n"
    )
    yield simple(
        "scalar", "NumPy's numbers for Python's",
        answers(
            task_4_line_solution=scalars,
            task_6_solution=(
                "import numpy as np\n\n\ndef head_start(token_times, rate):\n    times = np.array(token_times)\n"
                "    return np.max(times - times[0] - np.arange(len(times)) / rate)\n"
            ),
        ),
    )  # fmt: skip
    notebook = with_own("this is no Python at all", "task-1-check")
    notebook.cells.insert(1, nbformat.v4.new_code_cell("1 / 0", id="scratch-2"))
    notebook.cells.append(nbformat.v4.new_code_cell("print(serve)", id="scratch-3"))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("my-labs/latency.ipynb", written(notebook))
        archive.writestr("my-labs/notes.txt", "nothing to see")
    yield "scribbler", "cells of their own, some broken, in an archive", {"scribbler.zip": packed.getvalue()}, {}

    notebook = solved(source)
    place = at(notebook, "task-2-solution")
    notebook.cells[place].source = blank.cells[at(blank, "task-2-solution")].source
    notebook.cells.insert(place + 1, nbformat.v4.new_code_cell(text_of("task-2-solution"), id="elsewhere"))
    yield simple("mover", "an answer in a cell of its own, the stub left", notebook)

    yield simple("alice", "an answer of her own", answers(task_2_solution=OWN_TIMES))
    renamed = re.sub(r"\bitl\b(?!=)", "gaps", re.sub(r"\bstalls\b", "breaks", re.sub(r"\bplace\b", "i", OWN_TIMES)))
    yield (
        "bob", "alice's answer with other names, as Canvas names a file",
        {f"bob_LATE_4711_90125_{LAB}-1.ipynb": written(answers(task_2_solution=f"# mine\n{renamed}"))},
        {"says": ("Canvas marks it as late",)},
    )  # fmt: skip
    yield (
        "twice", "two notebooks, the newer one right",
        {f"twice/old/{LAB}.ipynb": written(blank), f"twice/{LAB} (1).ipynb": written(right)},
        {"says": ("2 notebooks of this lab",)},
    )  # fmt: skip


def _task(cell: NotebookNode, source: NotebookNode) -> str | None:
    from underload.course.source import task_of

    return task_of(next(one for one in source.cells if one.get("id") == cell.get("id")))
