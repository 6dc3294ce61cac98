"""The marks in a lab's cells: where a solution or a hidden test begins and ends, and what stands in its place.

### BEGIN SOLUTION         nbgrader's own marks, one a line, indented like the code around them;
...                        kept in the source, replaced by a stub in everything a reader sees
### END SOLUTION

### BEGIN HIDDEN TESTS     removed altogether
...
### END HIDDEN TESTS

### STUB: return 0.0       directly above BEGIN SOLUTION (several lines allowed): the stub to use
                           instead of `raise NotImplementedError`
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from underload.request import UnderloadError

_MARK = re.compile(r"^(?P<indent>\s*)#{2,}\s*(?P<edge>BEGIN|END) (?P<kind>SOLUTION|HIDDEN TESTS)\s*$")
_STUB = re.compile(r"^(?P<indent>\s*)#{2,}\s*STUB:\s?(?P<code>.*)$")
# Anything that looks like an attempt at a mark: a mark that is misspelt must not pass as a comment.
_NEAR = re.compile(r"(?i)^\s*#+\s*(begin|end)[\s_-]*(solution|hidden)|^\s*#+\s*stub\b")

Kind = Literal["text", "solution", "hidden"]


class LabError(UnderloadError):
    """A lab notebook that cannot be handed out as it stands: the message names the cell and the remedy."""


@dataclass(frozen=True)
class Region:
    """A run of lines of one kind; `stub` is what the author wants in place of a solution (None: the default)."""

    kind: Kind
    lines: tuple[str, ...]
    indent: str = ""
    stub: tuple[str, ...] | None = None


def regions(source: str, where: str) -> Iterator[Region]:
    """Split a cell's source into text, solutions and hidden tests, in order.

    Raises:
        LabError: a mark is misspelt, nested, unopened or never closed; `where` says in which cell.
    """
    text: list[str] = []
    inside: list[str] = []
    stub: list[str] | None = None
    kind: Kind = "text"
    indent = ""
    for number, line in enumerate(source.splitlines(), 1):
        mark = _MARK.match(line)
        if mark is None:
            wanted = _STUB.match(line)
            if wanted is not None and kind == "text":
                stub = [*(stub or []), wanted["indent"] + wanted["code"]]
                continue
            if _NEAR.match(line):
                raise LabError(f"{where}, line {number}: {line.strip()!r} is not a mark; {_MARKS_ARE}")
            if kind == "text":
                if stub is not None and line.strip():
                    raise LabError(f"{where}, line {number}: '### STUB:' must stand directly above BEGIN SOLUTION")
                text.append(line)
            else:
                inside.append(line)
            continue
        wanted_kind: Kind = "solution" if mark["kind"] == "SOLUTION" else "hidden"
        if mark["edge"] == "BEGIN":
            if kind != "text":
                raise LabError(f"{where}, line {number}: {line.strip()!r} inside an open {kind} region; close it first")
            if wanted_kind == "hidden" and stub is not None:
                raise LabError(f"{where}, line {number}: '### STUB:' belongs above BEGIN SOLUTION, not hidden tests")
            if text:
                yield Region("text", tuple(text))
            text, inside, kind, indent = [], [], wanted_kind, mark["indent"]
        else:
            if kind != wanted_kind:
                raise LabError(f"{where}, line {number}: {line.strip()!r} closes nothing; {_MARKS_ARE}")
            yield Region(kind, tuple(inside), indent, tuple(stub) if stub is not None and kind == "solution" else None)
            kind, stub = "text", None
    if kind != "text":
        raise LabError(f"{where}: a {kind} region is never closed; {_MARKS_ARE}")
    if stub is not None:
        raise LabError(f"{where}: '### STUB:' without a solution below it")
    if text:
        yield Region("text", tuple(text))


def strip(source: str, where: str, *, default_stub: str = "raise NotImplementedError", guesses: bool = False) -> str:
    """The cell's source with stubs for solutions and without hidden tests.

    guesses: the cell holds a prediction; its stub assigns None to each name the solution assigns.
    """
    kept: list[str] = []
    for region in regions(source, where):
        if region.kind == "text":
            kept.extend(region.lines)
        elif region.kind == "solution":
            kept.extend(_stub(region, default_stub, guesses))
    return "\n".join(kept).rstrip() if kept else ""


def _stub(region: Region, default: str, guesses: bool) -> list[str]:
    if region.stub is not None:
        return list(region.stub)
    if guesses:
        names = _assigned(region.lines)
        if names:
            return [f"{region.indent}{name} = None" for name in names]
    return [region.indent + default]


def _assigned(lines: tuple[str, ...]) -> list[str]:
    """Names that these lines assign at their top level, in order."""
    body = "\n".join(lines)
    try:
        tree = ast.parse(body if not body[:1].isspace() else "if True:\n" + body)
    except SyntaxError:
        return []
    names: list[str] = []
    for node in ast.walk(tree):
        targets: list[Any] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            found = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
            names.extend(item.id for item in found if isinstance(item, ast.Name) and item.id not in names)
    return names


_MARKS_ARE = "the marks are '### BEGIN SOLUTION', '### END SOLUTION', '### BEGIN HIDDEN TESTS', '### END HIDDEN TESTS'"
