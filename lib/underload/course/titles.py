"""What a person calls a cell of a lab: by what it defines or by its heading, where the lab itself has ids."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from nbformat import NotebookNode

from underload.course.answers import solved_cell
from underload.course.marks import LabError, strip
from underload.course.outline import name_of, role
from underload.course.render import part_name
from underload.course.source import is_solution, nbgrader, tags, task_of, where

_CODE = re.compile(r"(```.*?```|~~~.*?~~~|`+[^`]*`+)", re.DOTALL)
_FENCE = re.compile(r"^(```|~~~)[^\n]*\n?|\n?(```|~~~)$")


def titles(source: NotebookNode) -> dict[str, str]:
    """By name, the lab's answers and graded parts.

    An answer is called by what it defines ("budget and shares"), a part by the answers above it that it checks; a
    prediction is one; an open answer has the heading above it, if that is not the whole task's.
    """
    made: dict[str, str] = {}
    heading = ""
    since: list[NotebookNode] = []  # the answers since the last check
    for index, cell in enumerate(source.cells):
        graded, code = bool(nbgrader(cell).get("grade")), cell.cell_type == "code"
        if not code and not is_solution(cell):
            heading = _heading(cell.source, heading)
        elif not code and graded:
            made[name_of(cell)] = heading or "Open answer"
        elif role(cell) == "answer":
            since.append(cell)
            made[name_of(cell)] = _prediction(cell) or _joined(_names(cell, index)) or part_name(name_of(cell))
        elif role(cell) == "test":
            used = set(re.findall(r"\w+", cell.source))
            every = [name for one in since for name in _names(one, index)]
            names = [name for name in every if name in used] or every
            guess = next((found for one in since if (found := _prediction(one))), "")
            made[name_of(cell)] = guess or _joined(names) or part_name(name_of(cell))
            since = []
    return made


def sections(source: NotebookNode) -> dict[str, str]:
    """By name, the task of every cell: its own, else that of the cells below the same heading."""
    made: dict[str, str] = {}
    for cells in _sections(source):
        task = next((found for cell in cells if (found := task_of(cell)) is not None), None)
        for cell in cells:
            own = task_of(cell) or task
            if own is not None and name_of(cell):
                made[name_of(cell)] = own
    return made


def plain(text: str) -> str:
    """Markdown as a person reads it, without its marks: emphasis, links, code, dollars around mathematics, headings."""
    pieces = []
    for piece in _CODE.split(text):
        if piece.startswith(("```", "~~~")):
            pieces.append(_FENCE.sub("", piece))
        elif piece.startswith("`"):
            pieces.append(piece.strip("`"))
        else:
            piece = re.sub(r"(?m)^#+\s+", "", piece)
            piece = re.sub(r"!?\[([^\]\n]*)\]\([^)\n]*\)", r"\1", piece)
            piece = re.sub(r"\{[a-z:]+\}$", "", piece)  # a role, of which the code follows
            piece = re.sub(r"(?<![\\\w*])(\*{1,3})(?=\S)([^*]+?)(?<=\S)\1(?![\w*])", r"\2", piece)
            piece = re.sub(r"(?<![\\\w])(_{1,2})(?=\S)([^_]+?)(?<=\S)\1(?!\w)", r"\2", piece)
            piece = re.sub(r"\$([^$\n]+)\$", r"\1", piece)
            pieces.append(re.sub(r"\\([\\`*_{}\[\]()#+.!$-])", r"\1", piece))
    return "".join(pieces)


def defined(code: str) -> list[str]:
    """The functions and classes that code defines at its top level; where there are none, the names it assigns."""
    try:
        tree = ast.parse(re.sub(r"(?m)^\s*[%!?].*$", "", code))
    except (SyntaxError, ValueError):
        return []
    made = [n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    if not made:
        found = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
        found += [node.target for node in tree.body if isinstance(node, ast.AnnAssign)]
        names = [name for one in found for name in (one.elts if isinstance(one, ast.Tuple | ast.List) else [one])]
        made = [name.id for name in names if isinstance(name, ast.Name)]
    return [name for name in dict.fromkeys(made) if not name.startswith("_")]


def _names(cell: NotebookNode, index: int) -> list[str]:
    """What an answer cell defines: as handed out, else, where the hand-out leaves that open, as solved."""
    try:
        return defined(strip(cell.source, where(cell, index))) or defined(solved_cell(cell, index))
    except LabError:
        return []  # `underload course verify` says what is wrong with a lab


def _prediction(cell: NotebookNode) -> str:
    return "Your prediction" if "prediction" in tags(cell) else ""


def _joined(names: Sequence[str]) -> str:
    return " and ".join(text for text in (", ".join(names[:-1][:3]), *names[-1:]) if text)


def _heading(text: str, before: str) -> str:
    """The last heading below the task's own; "" after a task's own."""
    for marks, words in re.findall(r"(?m)^(#+)\s+(.+?)\s*$", re.sub(r"(?ms)^```.*?^```", "", text)):
        before = plain(words) if len(marks) > 2 else ""
    return before


def _sections(source: NotebookNode) -> Iterator[list[NotebookNode]]:
    cells: list[NotebookNode] = []
    for cell in source.cells:
        if cell.cell_type == "markdown" and re.search(r"(?m)^##?\s", cell.source) and cells:
            yield cells
            cells = []
        cells.append(cell)
    yield cells
