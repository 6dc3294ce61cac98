"""The card by which a chapter leads to its lab."""

from __future__ import annotations

from pathlib import Path

import nbformat
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

from book.boxes import Box


class Lab(Box):
    """`{lab} NAME`: title and time from the notebook, how to open it; the content is put in between."""

    kind = "lab-card"

    def run(self) -> list[nodes.Node]:
        if not self.arguments:
            raise self.error("{lab} needs the name of a lab, as in {lab} latency-budget")
        name = self.arguments[0].strip()
        path = Path(self.env.srcdir) / "labs" / f"{name}.ipynb"
        if not path.is_file():
            raise self.error(f"{{lab}} {name}: there is no labs/{name}.ipynb")
        self.env.note_dependency(str(path))
        notebook = nbformat.read(path, as_version=4)
        about = notebook.metadata.get("underload", {})
        title = about.get("title") or _first_heading(notebook) or name
        node = nodes.admonition(classes=["box", self.kind])
        self.set_source_info(node)
        link = addnodes.pending_xref(
            "",
            nodes.inline("", title),
            refdomain="std",
            reftype="doc",
            reftarget=f"/labs/{name}",
            refexplicit=True,
            refwarn=True,
            refdoc=self.env.docname,
        )
        node += nodes.title("", "", nodes.Text("Lab: "), link)
        self.children_of(node)
        minutes = about.get("minutes")
        how = nodes.paragraph(classes=["lab-how"])
        if minutes:
            how += nodes.Text(f"About {minutes} minutes. ")
        how += [nodes.Text("Run "), nodes.literal("", "make lab"), nodes.Text(" and open ")]
        how += [nodes.literal("", f"{name}.ipynb"), nodes.Text(".")]
        node += how
        return [node]


def _first_heading(notebook: nbformat.NotebookNode) -> str | None:
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for line in cell.source.splitlines():
                if line.startswith("# "):
                    return str(line[2:].strip())
    return None


def setup(app: Sphinx) -> None:
    app.add_directive("lab", Lab)
