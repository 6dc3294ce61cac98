"""The instructor's notebook: reading and writing it, and what its cells say about themselves."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from underload.course.marks import LabError

if TYPE_CHECKING:
    from nbformat import NotebookNode

#: Each code cell of a lab carries exactly one of these: whether its output is compared, kept, or not kept at all.
TREATMENTS = {"nbval-check-output": "checked", "recorded": "recorded", "live": "live"}


def read_notebook(path: Path) -> NotebookNode:
    """Read a notebook of format 4.

    Raises:
        LabError: the file is missing, or is no notebook of format 4.5 or later.
    """
    import nbformat

    try:
        notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    except FileNotFoundError:
        raise LabError(f"no notebook at {path}") from None
    except Exception as error:  # nbformat raises whatever its JSON and schema libraries raise
        raise LabError(f"{path} is not a notebook that can be read: {error}") from error
    version = (notebook.get("nbformat", 0), notebook.get("nbformat_minor", 0))
    if version < (4, 5):
        raise LabError(f"{path} has notebook format {version[0]}.{version[1]}; 4.5 is needed")
    return notebook


def write_notebook(notebook: NotebookNode, path: Path) -> None:
    """Write a notebook: UTF-8, one final newline, keys sorted as nbformat sorts them."""
    import nbformat

    nbformat.validate(notebook)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = nbformat.writes(notebook, version=nbformat.NO_CONVERT)
    path.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")


def tags(cell: NotebookNode) -> set[str]:
    return set(cell.metadata.get("tags", ()))


def nbgrader(cell: NotebookNode) -> dict[str, Any]:
    return dict(cell.metadata.get("nbgrader", {}))


def is_solution(cell: NotebookNode) -> bool:
    return bool(nbgrader(cell).get("solution"))


def where(cell: NotebookNode, index: int) -> str:
    """How a message names a cell."""
    name = nbgrader(cell).get("grade_id") or cell.get("id") or "no id"
    return f"cell {index + 1} ({name})"


def task_of(cell: NotebookNode) -> str | None:
    """The task a cell belongs to: its own `underload.task`, else the number in a grade_id such as `task-2-stamp`."""
    named = cell.metadata.get("underload", {}).get("task")
    if named is not None:
        return str(named)
    found = re.match(r"(?i)(?:task|t)[-_ ]?(\d+[a-z]?|[a-z])(?:[-_ ]|$)", str(nbgrader(cell).get("grade_id", "")))
    return found[1] if found else None
