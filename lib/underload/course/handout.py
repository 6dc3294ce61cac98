"""The hand-out: what a reader opens and a student is given."""

from __future__ import annotations

import copy
import hashlib
import json
from typing import TYPE_CHECKING

from underload.course.marks import LabError, regions, strip
from underload.course.outline import role
from underload.course.source import is_solution, tags, task_of, where

if TYPE_CHECKING:
    from nbformat import NotebookNode

MARKDOWN_STUB = "*Your answer here.*"


def handout(source: NotebookNode) -> NotebookNode:
    """The source with stubs for solutions, without hidden tests, outputs, widget state and execution counts.

    nbgrader's metadata stays, so that the same file can be handed out and collected. The notebook's metadata
    gains `underload.handout`, a digest of what was handed out, by which a later version is told apart.
    The source is not changed.

    Raises:
        LabError: marks that do not match, or a cell whose metadata says `solution` and which has no mark, so that
            its answer would be given away.
    """
    import nbformat

    made = copy.deepcopy(source)
    for index, cell in enumerate(made.cells):
        place = where(cell, index)
        kinds = {region.kind for region in regions(cell.source, place)}
        if is_solution(cell) and cell.cell_type == "code" and "solution" not in kinds and cell.source.strip():
            raise LabError(f"{place} is a solution by its metadata and has no '### BEGIN SOLUTION'")
        if kinds - {"text"}:
            cell.source = strip(
                cell.source,
                place,
                default_stub=MARKDOWN_STUB if cell.cell_type == "markdown" else _stub_line(cell),
                guesses="prediction" in tags(cell),
            )
        if cell.cell_type == "code":
            cell.outputs = []
            cell.execution_count = None
            cell.metadata.pop("execution", None)
            if role(cell) in ("answer", "show"):
                # Run All stops at a cell that fails, and these do until an answer is written: the tag lets it go on.
                cell.metadata["tags"] = sorted(tags(cell) | {"raises-exception"})
    made.metadata.pop("widgets", None)
    made.metadata.setdefault("underload", nbformat.NotebookNode())["handout"] = digest(made)
    nbformat.validate(made)
    return made


def digest(made: NotebookNode) -> str:
    """A short digest of what a reader sees: types, sources and grading metadata of the cells, in order."""
    seen = [(cell.cell_type, cell.source, cell.metadata.get("nbgrader")) for cell in made.cells]
    return hashlib.sha256(json.dumps(seen, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:16]


def _stub_line(cell: NotebookNode) -> str:
    task = task_of(cell)
    return f'raise NotImplementedError("Task {task}")' if task else "raise NotImplementedError"
