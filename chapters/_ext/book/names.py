"""Names in production: what other systems call a thing, from the book's one data file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import yaml
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

DATA = Path("chapters/data/production-names.yml")
NEEDED = ("key", "concept", "system", "name", "kind", "version", "date", "source")
KINDS = {"flag", "metric", "class", "setting"}


def read_names(path: Path) -> list[dict[str, Any]]:
    """The rows of the data file.

    Raises:
        ValueError: a row lacks a field, or has a kind that is not one of KINDS.
    """
    rows = yaml.safe_load(path.read_text(encoding="utf-8")) or []
    for number, row in enumerate(rows, 1):
        missing = [field for field in NEEDED if not row.get(field)]
        if missing:
            raise ValueError(f"{path.name}, entry {number}: no {', '.join(missing)}")
        if row["kind"] not in KINDS:
            raise ValueError(f"{path.name}, entry {number}: kind {row['kind']!r} is none of {sorted(KINDS)}")
    return list(rows)


class ProductionNames(SphinxDirective):
    """`{production-names} KEY KEY …`: the rows with these keys, or all."""

    optional_arguments = 100
    option_spec: ClassVar[dict[str, Any]] = {}

    def run(self) -> list[nodes.Node]:
        path = Path(self.env.srcdir) / DATA
        if not path.is_file():
            raise self.error(f"{{production-names}}: there is no {DATA}")
        self.env.note_dependency(str(path))
        try:
            rows = read_names(path)
        except ValueError as error:
            raise self.error(str(error)) from error
        known = {row["key"] for row in rows}
        unknown = [key for key in self.arguments if key not in known]
        if unknown:
            raise self.error(f"{{production-names}}: no such key: {', '.join(unknown)}; there are: {sorted(known)}")
        if self.arguments:
            rows = [row for key in self.arguments for row in rows if row["key"] == key]
        return [_table(rows)]


def _table(rows: list[dict[str, Any]]) -> nodes.table:
    table = nodes.table(classes=["production-names"])
    group = nodes.tgroup(cols=4)
    table += group
    for width in (30, 15, 40, 15):
        group += nodes.colspec(colwidth=width)
    head = nodes.thead()
    head += _row([nodes.Text(word)] for word in ("What", "System", "Its name there", "As of"))
    body = nodes.tbody()
    group += [head, body]
    for row in rows:
        name = [nodes.literal("", str(row["name"])), nodes.Text(f" ({row['kind']})")]
        if row.get("note"):
            name.append(nodes.Text(f"; {row['note']}"))
        date = nodes.inline("", str(row["date"]), classes=["date"])  # on one line
        source = nodes.reference("", f"{row['version']}, ", date, refuri=str(row["source"]))
        body += _row([[nodes.Text(str(row["concept"]))], [nodes.Text(str(row["system"]))], name, [source]])
    return table


def _row(cells: Any) -> nodes.row:
    row = nodes.row()
    for parts in cells:
        entry = nodes.entry()
        entry += nodes.paragraph("", "", *parts)
        row += entry
    return row


def setup(app: Sphinx) -> None:
    app.add_directive("production-names", ProductionNames)
