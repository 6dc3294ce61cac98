"""Submissions that are nearly the same, for a person to look at. A list of pairs, never a verdict.

Code is compared by its structure: names that the student chose, comments, docstrings, texts and formatting do not
count; what is left is cut into short overlapping pieces (k-grams of the syntax tree in its written order).
A piece says little when the lab itself gave it, when the published solution has it (right answers resemble it), or when
much of the class has it: all three are left out.
So a short answer that can only be written one way is nobody's fault here, and cannot be found out either.

Answers equal to the published solution are listed apart: the solutions are public, and reading them is no copying
between students.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from nbformat import NotebookNode

from underload.course.answers import solved_cell
from underload.course.handout import handout
from underload.course.outline import Outline, name_of, role
from underload.course.results import Result
from underload.course.source import task_of

#: Nodes of the syntax tree in one piece.
PIECE = 7
#: A pair is listed from this share of the larger of its two answers, and this many pieces in common: two slips in the
#: same places of a right answer are 14, a function of six lines of one's own is about 40.
SHARE, ENOUGH = 0.7, 18
#: A piece that more submissions have than this, and more than a twentieth of the class, is how one writes it.
COMMON = 5
#: Pieces a whole cell must have to be called equal to the published solution; below, that is how one writes it.
LONG = 30
#: An open answer is compared from this many words on.
WORDS = 12
#: Words of an open answer in one piece.
PHRASE = 3
#: Notebook lines that are no Python.
_MAGIC = re.compile(r"^\s*[%!?].*$", re.MULTILINE)


@dataclass(frozen=True)
class Alike:
    """One answer cell that two submissions have in common: `share` of the pieces of the larger of the two."""

    cell: str
    task: str
    share: float
    first: str
    second: str


@dataclass(frozen=True)
class Pair:
    """Two submissions of one lab to look at, the cells that are alike first in the order of their share."""

    lab: str
    first: str
    second: str
    share: float
    cells: tuple[Alike, ...]


@dataclass(frozen=True)
class AsPublished:
    """Answer cells of one submission that are the published solution, but for names and formatting."""

    lab: str
    student: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Similar:
    pairs: tuple[Pair, ...] = ()
    published: tuple[AsPublished, ...] = ()


def similar(
    results: Sequence[Result], outlines: Mapping[str, Outline], sources: Mapping[str, NotebookNode] | None = None
) -> Similar:
    """Pairs of near-identical submissions, lab by lab, the most alike first.

    sources: the labs' notebooks. Without them what a lab gives and what its solution looks like is not known: only the
        pieces that much of the class shares are left out, and nothing is compared with the published solution.
    """
    pairs: list[Pair] = []
    published: list[AsPublished] = []
    for lab, outline in outlines.items():
        graded = [result for result in results if result.lab == lab and result.status == "graded"]
        source = (sources or {}).get(lab)
        pairs += _pairs(lab, graded, outline, source)
        if source is not None:
            published += _published(lab, graded, outline, source)
    return Similar(tuple(sorted(pairs, key=lambda pair: -pair.share)), tuple(published))


# ---- pieces of code ------------------------------------------------------------------------------------------------


def normalised(code: str) -> tuple[str, ...]:
    """The syntax tree of a cell in its written order, without what a copier changes: names of the student's own, texts,
    docstrings, comments, formatting, hints on types. Code that is no Python is taken as its words."""
    try:
        tree = ast.parse(_MAGIC.sub("", code))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return tuple(re.findall(r"\w+|[^\w\s]", re.sub(r"#.*", "", code)))
    try:
        return tuple(_walk(tree, _own_names(tree)))
    except RecursionError:
        return tuple(re.findall(r"\w+|[^\w\s]", code))


def _own_names(tree: ast.AST) -> set[str]:
    """Names that this code gives to something."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).split(".")[0])
    return found


def _walk(node: ast.AST, own: set[str]) -> Iterator[str]:
    kind = type(node).__name__
    if isinstance(node, ast.Name):
        yield "name" if node.id in own or not hasattr(builtins, node.id) else node.id
        return
    if isinstance(node, ast.Constant):
        yield "text" if isinstance(node.value, str | bytes) else repr(node.value)
        return
    if isinstance(node, ast.JoinedStr):
        yield "text"
        return
    if isinstance(node, ast.AnnAssign) and node.value is not None:  # a = 1 and a: int = 1 are the same
        yield "Assign"
        yield from _walk(node.target, own)
        yield from _walk(node.value, own)
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring, or a text used as a comment
    if isinstance(node, ast.Load | ast.Store | ast.Del | ast.Pass | ast.Module):
        pass
    elif isinstance(node, ast.Attribute):
        yield f".{node.attr}"
    elif isinstance(node, ast.keyword):
        yield f"{node.arg}="
    elif isinstance(node, ast.arg):
        yield "arg"
        return
    else:
        yield kind
    for field, value in ast.iter_fields(node):
        if field in ("returns", "annotation", "type_comment", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _walk(child, own)


def pieces(stream: Sequence[str], size: int = PIECE) -> frozenset[int]:
    """The k-grams of a stream, as numbers."""
    if not stream:
        return frozenset()
    grams = (stream[start : start + size] for start in range(max(1, len(stream) - size + 1)))
    return frozenset(
        int.from_bytes(hashlib.blake2b("\0".join(gram).encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
        for gram in grams
    )


def _lab_code(source: NotebookNode) -> tuple[frozenset[int], dict[str, str]]:
    """The pieces of everything a lab gives, solutions and hand-out alike; and its solutions by cell."""
    solved: dict[str, str] = {}
    given: set[int] = set()
    for index, cell in enumerate(source.cells):
        if cell.cell_type != "code":
            continue
        if role(cell) == "answer":
            solved[name_of(cell)] = solved_cell(cell, index)
        given |= pieces(normalised(solved.get(name_of(cell), cell.source)))
    for cell in handout(source).cells:
        if cell.cell_type == "code":
            given |= pieces(normalised(cell.source))
    return frozenset(given), solved


# ---- pairs ---------------------------------------------------------------------------------------------------------


def _pairs(lab: str, graded: Sequence[Result], outline: Outline, source: NotebookNode | None) -> Iterator[Pair]:
    given, _ = _lab_code(source) if source is not None else (frozenset[int](), {})
    tasks = _tasks_of(outline, source)
    models = {part.name: pieces(_words(part.model), PHRASE) for part in outline.parts if part.manual}
    texts: dict[str, dict[str, str]] = {}  # cell → student → what they wrote
    own: dict[str, dict[str, frozenset[int]]] = {}  # cell → student → pieces of their own
    for result in graded:
        for cell, code in result.code.items():
            texts.setdefault(cell, {})[result.student] = code
            own.setdefault(cell, {})[result.student] = pieces(normalised(code)) - given
        for part in result.parts:
            words = _words(part.answer)
            if part.manual and len(words) >= WORDS:
                texts.setdefault(part.name, {})[result.student] = part.answer
                own.setdefault(part.name, {})[result.student] = pieces(words, PHRASE) - models.get(
                    part.name, frozenset()
                )
    found: dict[tuple[str, str], list[Alike]] = {}
    for cell, students in own.items():
        for first, second, share in _alike(students):
            found.setdefault((first, second), []).append(
                Alike(cell, tasks.get(cell, ""), share, texts[cell][first], texts[cell][second])
            )
    for (first, second), cells in found.items():
        cells.sort(key=lambda alike: -alike.share)
        yield Pair(lab, first, second, cells[0].share, tuple(cells))


def _alike(students: Mapping[str, frozenset[int]]) -> Iterator[tuple[str, str, float]]:
    """Pairs whose pieces are nearly the same; pieces that are common in the class count nothing."""
    spread: Counter[int] = Counter()
    for found in students.values():
        spread.update(found)
    common = max(COMMON, len(students) / 20)
    rare = {
        student: frozenset(piece for piece in found if spread[piece] <= common) for student, found in students.items()
    }
    for first, second in combinations(sorted(student for student in rare if len(rare[student]) >= ENOUGH), 2):
        most, least = sorted((len(rare[first]), len(rare[second])), reverse=True)
        if least < SHARE * most:
            continue
        both = len(rare[first] & rare[second])
        if both >= ENOUGH and both >= SHARE * most:
            yield first, second, both / most


def _tasks_of(outline: Outline, source: NotebookNode | None) -> dict[str, str]:
    """The task of each cell, by name."""
    made = {part.name: part.task for part in outline.parts}
    for cell in source.cells if source is not None else ():
        task = task_of(cell)
        if task is not None:
            made.setdefault(name_of(cell), task)
    return made


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


# ---- the published solution ------------------------------------------------------------------------------------------


def _published(lab: str, graded: Iterable[Result], outline: Outline, source: NotebookNode) -> Iterator[AsPublished]:
    _, solved = _lab_code(source)
    code = {cell: normalised(text) for cell, text in solved.items()}
    code = {cell: stream for cell, stream in code.items() if len(stream) >= LONG}
    models = {part.name: _words(part.model) for part in outline.parts if part.manual}
    for result in graded:
        same = [cell for cell, text in result.code.items() if cell in code and normalised(text) == code[cell]]
        for part in result.parts:
            words = _words(part.answer) if part.manual else []
            if len(words) >= WORDS and words == models.get(part.name):
                same.append(part.name)
        if same:
            yield AsPublished(lab, result.student, tuple(same))
