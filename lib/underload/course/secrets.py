"""What a reader must not come across by accident: the lines of solutions and hidden tests, for a test to search for."""

from __future__ import annotations

import io
import keyword
import re
import tokenize
from dataclasses import dataclass
from typing import TYPE_CHECKING

from underload.course.handout import handout
from underload.course.marks import regions
from underload.course.source import where

if TYPE_CHECKING:
    from nbformat import NotebookNode

#: A shorter line (`return x`, `else:`) occurs anywhere and gives nothing away.
TELLING = 14


@dataclass(frozen=True)
class Secrets:
    """Lines and names that occur in solutions or hidden tests and nowhere in the hand-out.

    `lines` are compared with all white space removed (a highlighter may break a line into pieces);
    `names` are identifiers, for indexes that keep words and not lines.
    """

    lines: frozenset[str]
    names: frozenset[str]

    def lines_in(self, text: str) -> list[str]:
        """Those of the lines that occur in `text`."""
        dense = squeeze(text)
        return sorted(line for line in self.lines if line in dense)


def squeeze(text: str) -> str:
    """The text without white space."""
    return re.sub(r"\s+", "", text)


def secrets(source: NotebookNode) -> Secrets:
    """Everything of a lab that its hand-out must not hold."""
    lines: set[str] = set()
    names: set[str] = set()
    for index, cell in enumerate(source.cells):
        for region in regions(cell.source, where(cell, index)):
            if region.kind == "text":
                continue
            lines.update(squeeze(line) for line in region.lines)
            if cell.cell_type == "code":
                names.update(_names("\n".join(region.lines)))
    given = "\n".join(cell.source for cell in handout(source).cells)
    dense = squeeze(given)
    known = set(re.findall(r"\w+", given))
    return Secrets(
        frozenset(line for line in lines if len(line) >= TELLING and line not in dense),
        frozenset(name for name in names if name not in known and len(name) >= 6),
    )


def _names(code: str) -> set[str]:
    """Identifiers of a piece of code that need not stand alone (it may be an indented body)."""
    found: set[str] = set()
    try:
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
                found.add(token.string)
    except (tokenize.TokenError, IndentationError, SyntaxError):
        found.update(re.findall(r"[A-Za-z_]\w*", code))
    return found
