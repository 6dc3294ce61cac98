"""The lab's page in the book: the hand-out's text with the pictures that the source's own run left.

The book never runs a lab. What it shows of a run is what the instructor's notebook stored: its pictures, and of text
only what a cell asks to keep. Text output is left out by default, because the answer to a task is often printed.
"""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING

from underload.course.handout import handout
from underload.course.source import tags

if TYPE_CHECKING:
    from nbformat import NotebookNode

#: A cell with this tag keeps its text output on the page.
KEEP = "keep-output"
_PICTURE = re.compile(r"<(svg|figure|img|canvas)\b", re.IGNORECASE)


def lab_page(source: NotebookNode) -> NotebookNode:
    """The hand-out with the source's stored pictures; results of predictions folded.

    Outputs of cells tagged `live` are dropped whole, as is every stream and error.
    """
    from nbformat import NotebookNode

    page = handout(source)
    for cell, original in zip(page.cells, source.cells, strict=True):
        if cell.cell_type != "code":
            continue
        marks = tags(original)
        if "live" not in marks:
            shown = (_shown(output, KEEP in marks) for output in original.get("outputs", []))
            cell.outputs = [output for output in shown if output is not None]
        if "prediction-result" in marks and cell.outputs:
            cell.metadata["tags"] = sorted(marks | {"hide-output"})
            cell.metadata.setdefault("mystnb", NotebookNode())["code_prompt_show"] = "Show the result"
    page.metadata.get("underload", NotebookNode()).pop("handout", None)
    return page


def _shown(output: NotebookNode, keep_text: bool) -> NotebookNode | None:
    """What of one stored output may be shown, or None."""
    if output.output_type == "stream":
        return copy.deepcopy(output) if keep_text and output.name == "stdout" else None
    if output.output_type not in {"display_data", "execute_result"}:
        return None
    data = {
        kind: value
        for kind, value in output.data.items()
        if kind.startswith("image/") or (kind == "text/html" and (keep_text or _PICTURE.search(str(value))))
    }
    if keep_text and "text/plain" in output.data:
        data["text/plain"] = output.data["text/plain"]
    if not data:
        return None
    made = copy.deepcopy(output)
    made.data = type(output.data)(data)
    if made.output_type == "execute_result":
        made.execution_count = None
    return made
