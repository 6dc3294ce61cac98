"""What is run for one submission: the student's answers between the lab's own cells, in the lab's order.

Tests and given cells always come from the source, whatever was made of them in the submission. A given cell that the
student changed (a switch, one more import) runs a second time as they left it; a cell that only shows things runs only
if the student defined something more in it. Cells that the student added run where they stand. What is missing, copied,
moved or changed is a problem that is told, not one that stops anything.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from nbformat import NotebookNode

from underload.course.handout import MARKDOWN_STUB, handout
from underload.course.outline import Outline, name_of, outline, role
from underload.course.source import nbgrader, task_of

StepRole = Literal["given", "answer", "test", "own"]


@dataclass(frozen=True)
class Step:
    """One cell to run. `own` code is the student's, outside the lab's cells; its errors cost nothing by themselves."""

    role: StepRole
    name: str
    source: str
    task: str | None = None


@dataclass(frozen=True)
class Problem:
    """Something about a submission that a person should know. `task`: whose points it touches, None for none or all."""

    kind: Literal["missing", "copied", "moved", "changed", "syntax"]
    cell: str
    task: str | None
    said: str


@dataclass(frozen=True)
class Assembly:
    """A submission ready to run: the steps in order, the open answers by part ("" where nothing was written), and what
    is wrong with it. `untouched` names the answer cells left as they were handed out."""

    outline: Outline
    steps: tuple[Step, ...]
    answers: dict[str, str]
    problems: tuple[Problem, ...]
    untouched: frozenset[str]


def assemble(source: NotebookNode, submission: NotebookNode | None = None) -> Assembly:
    """Put a submission together with its lab; without one, the lab with its own solutions.

    The submission must be of this lab (`course.submission` says whether it is); whatever its cells are, nothing raises.

    Raises:
        LabError: the source itself is faulty.
    """
    lab = outline(source)
    if submission is None:
        steps = [
            Step(part, name_of(cell), cell.source, task_of(cell))
            for cell in source.cells
            if (part := role(cell)) in ("given", "answer", "test") and cell.source.strip()
        ]
        return Assembly(lab, tuple(steps), {}, (), frozenset())
    given = handout(source)
    matched, extra, problems = _match(given, submission)
    problems += _moved(given, submission, matched)
    made: list[Step] = []
    answers: dict[str, str] = {}
    untouched: set[str] = set()
    for own in extra.get("", []):
        made.append(_own(own))
    for cell, handed in zip(source.cells, given.cells, strict=True):
        name, what, task = name_of(cell), role(cell), task_of(cell)
        theirs = matched.get(name)
        written = None if theirs is None else str(theirs.source)
        changed = written is not None and written.strip() != handed.source.strip()
        if what == "test":
            made.append(Step("test", name, cell.source, task))
            if theirs is None:
                problems.append(
                    Problem("missing", name, None, f"the check {name} is not in the notebook; it was run all the same")
                )
            elif changed:
                problems.append(Problem("changed", name, None, f"the check {name} was changed; the lab's own was run"))
        elif what == "answer":
            if written is None:
                problems.append(Problem("missing", name, task, f"the answer cell {name} is not in the notebook"))
            elif not changed:
                untouched.add(name)
            made.append(Step("answer", name, written or "", task))
        elif what == "given":
            if cell.source.strip():
                made.append(Step("given", name, cell.source, task))
            if changed and written:
                made.append(Step("own", name, written, task))
        elif what == "show":
            # One from an older hand-out looks changed too, so it runs only for what it defines beyond the lab's own.
            if changed and written and bound(written) - bound(cell.source):
                made.append(Step("own", name, written, task))
        elif nbgrader(cell).get("grade"):
            text = (written or "").replace(MARKDOWN_STUB, "").strip()
            kept = handed.source.replace(MARKDOWN_STUB, "").strip()
            answers[name] = text.removeprefix(kept).strip() if changed else ""
            if written is None:
                problems.append(Problem("missing", name, task, f"the open answer {name} is not in the notebook"))
        made += [_own(own) for own in extra.get(name, [])]
    problems += _broken(made)
    return Assembly(lab, tuple(made), answers, tuple(problems), frozenset(untouched))


def given_names(source: NotebookNode) -> frozenset[str]:
    """The names that a lab's given cells import or define: what its tests rely on, whatever a student makes of them."""
    names: set[str] = set()
    for cell in source.cells:
        if role(cell) != "given":
            continue
        for node in ast.parse(cell.source).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
    return frozenset(names)


def bound(code: str) -> frozenset[str]:
    """The names that a cell binds at its top level, as far as can be seen without running it; none if it is no
    Python."""
    try:
        tree = ast.parse(as_python(code))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: too deeply nested
        return frozenset()
    names: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
            return
        if isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            return
        if isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        for child in ast.iter_child_nodes(node):
            visit(child)

    try:
        visit(tree)
    except RecursionError:
        return frozenset()
    return frozenset(names)


def _own(cell: NotebookNode) -> Step:
    return Step("own", str(cell.get("id") or "added"), str(cell.source), None)


def _match(
    given: NotebookNode, submission: NotebookNode
) -> tuple[dict[str, NotebookNode], dict[str, list[NotebookNode]], list[Problem]]:
    """The submission's cell for each of the lab's; and the code cells that are nobody's, by the lab's cell they follow.

    Copying a cell in a notebook copies its grade_id and gives it another id: the cell with the id it was handed out
    with is the one that counts, and a copy of an answer runs after it as code of the student's own, as it did for them.
    """
    known = {name_of(cell): cell for cell in given.cells if name_of(cell)}
    candidates: dict[str, list[NotebookNode]] = {}
    for cell in submission.cells:
        name = name_of(cell)
        if name in known and cell.cell_type == known[name].cell_type:
            candidates.setdefault(name, []).append(cell)
    matched: dict[str, NotebookNode] = {}
    problems: list[Problem] = []
    for name, cells in candidates.items():
        chosen = next((cell for cell in cells if cell.get("id") == known[name].get("id")), cells[0])
        matched[name] = chosen
        if len(cells) > 1:
            problems.append(
                Problem(
                    "copied",
                    name,
                    task_of(known[name]),
                    f"the cell {name} occurs {len(cells)} times (a copied cell keeps its name); "
                    + ("they were run in their order" if role(known[name]) == "answer" else "the first counts"),
                )
            )
    extra: dict[str, list[NotebookNode]] = {}
    after = ""
    chosen_ids = {id(cell) for cell in matched.values()}
    for cell in submission.cells:
        name = name_of(cell)
        if id(cell) in chosen_ids:
            after = name
            continue
        if cell.cell_type != "code" or not str(cell.source).strip():
            continue
        if name in known and role(known[name]) in ("test", "given", "show"):
            continue  # a copy of what the lab runs by itself
        place = name if name in known and role(known[name]) == "answer" else after
        extra.setdefault(place, []).append(cell)
    return matched, extra, problems


def _moved(given: NotebookNode, submission: NotebookNode, matched: dict[str, NotebookNode]) -> Iterator[Problem]:
    """Cells that stand in another order than they were handed out in; they are run in the lab's."""
    order = [name_of(cell) for cell in given.cells if name_of(cell) in matched]
    place = {id(cell): index for index, cell in enumerate(submission.cells)}
    found = sorted(order, key=lambda name: place[id(matched[name])])
    kept = {
        name
        for block in SequenceMatcher(None, order, found, autojunk=False).get_matching_blocks()
        for name in order[block.a : block.a + block.size]
    }
    for name in order:
        if name not in kept:
            yield Problem("moved", name, None, f"the cell {name} was moved; it was run at its place in the lab")


def _broken(steps: list[Step]) -> Iterator[Problem]:
    """Answers that are no Python, by the compiler's own words."""
    for step in steps:
        if step.role != "answer":
            continue
        try:
            compile(as_python(step.source), f"<cell {step.name}>", "exec", flags=_TOP_LEVEL_AWAIT)
        except (SyntaxError, ValueError) as error:
            line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            yield Problem("syntax", step.name, step.task, f"{step.name}{line}: {error.args[0]}")
        except (RecursionError, MemoryError):  # MemoryError: the parser's own limit, in the first place
            yield Problem("syntax", step.name, step.task, f"{step.name}: too deeply nested to compile")


def as_python(code: str) -> str:
    """A student's cell as Python, its magics made calls of.

    IPython reads the whole cell again for each line of magic, in minutes if there are hundreds: of a cell like that
    nothing is left to look at ahead of time, and it fails where it runs, within the limits of that.

    Raises:
        SyntaxError: it is no Python as far as IPython sees.
    """
    from IPython.core.inputtransformer2 import TransformerManager

    magic = [line for line in code.split("\n") if _MAGIC.search(line)]
    if not magic and not code.startswith((" ", "\t", "\n")) and ">>>" not in code and "In [" not in code:
        return code
    if len(magic) > 20 and not code.startswith("%%"):
        return ""
    return TransformerManager().transform_cell(code) if len(code) <= 100_000 else ""


#: Lines that IPython may want to change.
_MAGIC = re.compile(r"^\s*[%!?/,;]|\?\s*$|=\s*[%!]")


_TOP_LEVEL_AWAIT = 0x2000  # ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
