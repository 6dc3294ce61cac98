"""What each lab teaches, in how much time and for how many points: tables made from the labs' own metadata."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import yaml
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from book.toc import toc_pages
from underload.course import LabError, read_notebook
from underload.course.outline import Outline, Task, outline


class LearningGoals(SphinxDirective):
    """`{learning-goals} LAB …`: a table for each of these labs or, without a name, for all that have tasks."""

    optional_arguments = 100
    option_spec: ClassVar[dict[str, Any]] = {}

    def run(self) -> list[nodes.Node]:
        toc = Path(self.env.srcdir) / "_toc.yml"
        # A new lab comes with a line in the table of contents: this page is then made again.
        self.env.note_dependency(str(toc))
        pages = toc_pages(yaml.safe_load(toc.read_text(encoding="utf-8")))
        names = [page.removeprefix("labs/") for page in pages if page.startswith("labs/")]
        unknown = [name for name in self.arguments if name not in names]
        if unknown:
            raise self.error(f"{{learning-goals}}: no lab {', '.join(unknown)}; there are: {', '.join(names)}")
        made: list[nodes.Node] = []
        for name in self.arguments or names:
            path = Path(self.env.srcdir) / "labs" / f"{name}.ipynb"
            self.env.note_dependency(str(path))
            try:
                lab = outline(read_notebook(path))
            except LabError as error:
                raise self.error(f"{{learning-goals}}: labs/{name}.ipynb: {error}") from error
            if lab.tasks:
                made += [self._title(lab, name), self._table(lab)]
        return made

    def _title(self, lab: Outline, name: str) -> nodes.paragraph:
        link = addnodes.pending_xref(
            "",
            nodes.inline("", lab.title or name),
            refdomain="std",
            reftype="doc",
            reftarget=f"/labs/{name}",
            refexplicit=True,
            refwarn=True,
            refdoc=self.env.docname,
        )
        return nodes.paragraph("", "", nodes.strong("", "", link), nodes.Text(f": {summary(lab)}"))

    def _table(self, lab: Outline) -> nodes.table:
        table = nodes.table(classes=["learning-goals"])
        group = nodes.tgroup(cols=4)
        table += group
        for width in (8, 66, 13, 13):
            group += nodes.colspec(colwidth=width)
        head = nodes.thead()
        head += _row("Task", "The student can …", "Points", "Minutes")
        body = nodes.tbody()
        for task in lab.tasks:
            goal, _ = self.state.inline_text(task.goal or task.title, self.lineno)
            body += _row(task.name, goal, worth(task), str(task.minutes or "not stated"))
        group += [head, body]
        return table


def summary(lab: Outline) -> str:
    """'20 points and 3 of bonus, about 90 minutes'."""
    bonus = f" and {lab.bonus:g} of bonus" if lab.bonus else ""
    return f"{lab.points:g} points{bonus}" + (f", about {lab.minutes} minutes" if lab.minutes else "")


def worth(task: Task) -> str:
    """What a task is worth, and how much of it a person marks."""
    by_hand = sum(part.points for part in task.parts if part.manual)
    notes = [note for note, holds in (("bonus", task.further), (f"{by_hand:g} by a person", by_hand)) if holds]
    return f"{task.points:g}" + (f" ({', '.join(notes)})" if notes else "")


def _row(*cells: str | list[nodes.Node]) -> nodes.row:
    row = nodes.row()
    for cell in cells:
        entry = nodes.entry()
        entry += nodes.paragraph("", "", *([nodes.Text(cell)] if isinstance(cell, str) else cell))
        row += entry
    return row


def setup(app: Sphinx) -> None:
    app.add_directive("learning-goals", LearningGoals)
