"""What came back: whose notebook it is, of which lab, and why not where it is none.

Any shape of folder will do: STUDENT/LAB.ipynb at any depth, nbgrader's submitted/STUDENT/LAB/LAB.ipynb, files named
STUDENT_LAB.ipynb, the downloads of Canvas and Moodle, and zip archives of these. A notebook's lab is read from the
notebook, never from its file's name. Whatever the files are, nothing raises: each student's notebook of a lab becomes
one `Found`, and what cannot be graded a refused one that says why.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from underload.course.arrivals import Arrival, arrivals, megabytes, readable
from underload.course.handout import handout
from underload.course.marks import LabError
from underload.course.outline import name_of
from underload.course.source import nbgrader
from underload.course.student import LONGEST, Claim, claimed, of_an_lms, on_the_list, safe_names

#: A notebook is read up to this size (bytes); outputs make them large, and Kernel > Restart and Clear makes them small.
NOTEBOOK = 20_000_000
#: What lies beside a notebook is kept up to this size and number of files, so that data a student uses are there.
BESIDE = 50_000_000
BESIDE_FILES = 200
#: Characters that are kept of the text stored below a cell.
PRINTED = 4_000

_CELLS = 5_000
_CELL = 1_000_000  # characters of one cell
# an instructor's own lists and notes, which may well lie beside a class's files
_NO_SUBMISSION = {".csv", ".tsv", ".xlsx", ".ods", ".json", ".toml", ".yml", ".yaml", ".md", ".txt", ".log", ".db"}
_NBGRADER_FOLDERS = {"source", "release", "autograded", "feedback", "gradebook.db", "nbgrader_config.py"}


@dataclass(frozen=True)
class Found:
    """One student's notebook of one lab. `said`: why it is refused, "" when it can be graded; then `notebook` is None.

    student: a name that is safe as a folder; lab: "" when not even that is known; path: below the submissions;
    notes: what a person should know; beside: the files beside it by their names from there; digest: of all these bytes;
    listed: whether the student is one of the course's list; named: whose hand-out it is by its metadata.
    """

    student: str
    lab: str
    path: str
    said: str = ""
    notebook: NotebookNode | None = None
    notes: tuple[str, ...] = ()
    beside: Mapping[str, Arrival] = field(default_factory=dict)
    digest: str = ""
    listed: bool = False

    @property
    def named(self) -> str:
        return named_in(self.notebook) if self.notebook is not None else ""


def named_in(notebook: NotebookNode) -> str:
    """The student a hand-out was made for, by its metadata; "" where it does not say."""
    named = notebook.metadata.get("underload", {}).get("student")
    return str(named)[:LONGEST] if isinstance(named, str) else ""


def find(folder: Path, labs: Mapping[str, NotebookNode], *, roster: Collection[str] = ()) -> list[Found]:
    """Everything that came back, by student and lab.

    labs: the sources of the labs that are graded, by name; a notebook of another is refused.
    roster: the names of the students as the course has them; a file whose name says one of them (or their number, as
        Canvas and Moodle have it) is theirs. So is one under a name that is nobody's on the list, where its metadata
        say that it is the hand-out of one from whom nothing else came.

    Raises:
        LabError: there is no such folder or archive, or a source is faulty.
    """
    given = {name: handout(source) for name, source in labs.items()}
    theirs: dict[str, list[tuple[Claim, Arrival]]] = {}
    for arrival in _sorted_out(arrivals(folder)):
        first = arrival.parts[0]
        packed = len(arrival.parts) > 1 and first.lower().endswith(".zip")
        claim = claimed(first, labs, folder=len(arrival.parts) > 1 and not packed)
        theirs.setdefault(on_the_list(claim, roster), []).append((claim, arrival))
    theirs, told = _by_metadata(theirs, roster)
    names = safe_names([*theirs, *roster])
    return [
        replace(found, student=names[student], listed=student in roster, notes=found.notes + told.get(student, ()))
        for student in sorted(theirs)
        for found in _of_one_student(student, theirs[student], given)
    ]


_Files = list[tuple[Claim, Arrival]]


def _by_metadata(
    theirs: dict[str, _Files], roster: Collection[str]
) -> tuple[dict[str, _Files], dict[str, tuple[str, ...]]]:
    """Files of nobody on the list given to the one whose hand-out they are, if nothing else came from them and nobody
    else has their hand-out; without a list, files whose name says nothing about whose they are. And a note on each."""
    wanted: dict[str, list[str]] = {}
    for student, files in theirs.items():
        if student in roster or (not roster and not all(claim.guessed for claim, _ in files)):
            continue
        named = {name for _, arrival in files if _is_notebook(arrival.name) and (name := _named_at(arrival))}
        if len(named) == 1:
            wanted.setdefault(named.pop(), []).append(student)
    made, told = dict(theirs), {}  # type: dict[str, _Files], dict[str, tuple[str, ...]]
    for owner, students in wanted.items():
        if len(students) > 1 or owner in theirs or (roster and owner not in roster):
            continue
        made[owner] = made.pop(students[0])
        told[owner] = (
            f"it came under the name {students[0]!r}, which is nobody's here, and is the hand-out of {owner!r} by its "
            "metadata: taken for theirs",
        )
    return made, told


def _named_at(arrival: Arrival) -> str:
    try:
        return named_in(parse(arrival.read(NOTEBOOK)))
    except LabError:
        return ""


def found_at(path: Path, lab: str, source: NotebookNode, student: str) -> Found:
    """One notebook of a lab where its file is known, with the files that lie in its folder beside it."""
    files = [one for one in arrivals(path.parent, deep=False) if len(one.parts) == 1]
    mine = [one for one in files if one.name == readable(path.name)]
    if not mine:
        return Found(student, lab, path.name, "there is no such file")
    one = _read(mine[0], {lab: handout(source)})
    if one.notebook is None:
        return Found(student, lab, path.name, one.said)
    inside = [replace(other, parts=(".", other.name)) for other in files]
    beside, left = _beside(replace(mine[0], parts=(".", path.name)), [(Claim(student), other) for other in inside])
    return Found(student, lab, path.name, "", one.notebook, one.notes + left, beside, _digest(one.digest, beside))


def _sorted_out(found: list[Arrival]) -> Iterator[Arrival]:
    """Without nbgrader's other folders and without files at the top that are nobody's submission."""
    nbgraders = any(one.parts[0] == "submitted" and len(one.parts) > 2 for one in found)
    for one in found:
        first = one.parts[0]
        if nbgraders and first == "submitted" and len(one.parts) > 2:
            yield replace(one, parts=one.parts[1:])
        elif nbgraders and (first in _NBGRADER_FOLDERS or len(one.parts) == 1):
            continue
        elif len(one.parts) == 1 and Path(first).suffix.lower() in _NO_SUBMISSION and not _is_notebook(first):
            if of_an_lms(first):
                yield one
        else:
            yield one


def _is_notebook(name: str) -> bool:
    """By its name; mail programs and browsers put .txt or .json behind."""
    return bool(re.search(r"(?i)\.ipynb(\.(txt|json|download))?$", name))


@dataclass(frozen=True)
class _Candidate:
    arrival: Arrival
    lab: str
    notebook: NotebookNode | None
    said: str
    digest: str
    notes: tuple[str, ...] = ()


def _of_one_student(
    student: str, files: list[tuple[Claim, Arrival]], given: Mapping[str, NotebookNode]
) -> Iterator[Found]:
    notebooks = [_read(arrival, given) for _, arrival in files if _is_notebook(arrival.name)]
    late = {arrival.parts for claim, arrival in files if claim.late}
    unread = [arrival for _, arrival in files if arrival.said and not _is_notebook(arrival.name)]
    about = tuple(f"{one.shown}: {one.said}" for one in unread)
    good = [one for one in notebooks if one.notebook is not None]
    bad = [one for one in notebooks if one.notebook is None]
    graded: list[Found] = []
    for lab in given:
        mine = sorted((one for one in good if one.lab == lab), key=lambda one: (one.arrival.time, one.arrival.parts))
        if not mine:
            continue
        newest = mine[-1]
        notes = [*newest.notes, *_older(newest, mine[:-1])]
        if newest.arrival.parts in late:
            notes.append("Canvas marks it as late")
        beside, left = _beside(newest.arrival, files)
        graded.append(
            Found(
                student,
                lab,
                newest.arrival.shown,
                "",
                newest.notebook,
                tuple(notes) + left,
                beside,
                _digest(newest.digest, beside),
            )
        )
    refused: dict[str, list[_Candidate]] = {}
    for one in bad:
        lab = one.lab or _only(given) or _named_in(one.arrival, given)
        refused.setdefault(lab, []).append(one)
    have = {one.lab for one in graded}
    for lab, ones in refused.items():
        told = tuple(f"{one.arrival.shown}: {one.said}" for one in ones)
        if lab in have or (not lab and have):
            graded = [replace(one, notes=one.notes + told) if lab in ("", one.lab) else one for one in graded]
            continue
        ones.sort(key=lambda one: one.arrival.time)
        newest = ones[-1]
        others = tuple(f"also {one.arrival.shown}: {one.said}" for one in ones[:-1])
        graded.append(Found(student, lab, newest.arrival.shown, newest.said, None, others, {}, newest.digest))
    if graded:
        yield from (replace(one, notes=one.notes + about) for one in graded)
        return
    if unread:
        yield Found(student, _only(given), unread[0].shown, unread[0].said, None, about[1:])
        return
    kinds = sorted({arrival.name for _, arrival in files})
    some = ", ".join(kinds[:5]) + (f" and {len(kinds) - 5} more" if len(kinds) > 5 else "")
    path = files[0][1].parts[0]
    yield Found(student, _only(given), path, f"no notebook (a file that ends in .ipynb) came; there is {some}")


def _only(given: Mapping[str, NotebookNode]) -> str:
    return next(iter(given)) if len(given) == 1 else ""


def _named_in(arrival: Arrival, given: Mapping[str, NotebookNode]) -> str:
    """The lab that the path of a file names which is no notebook of any lab: where its refusal is listed."""
    path = arrival.shown.casefold()
    named = [lab for lab in given if lab.casefold() in path]
    return max(named, key=len) if named else ""


def _older(newest: _Candidate, others: list[_Candidate]) -> Iterator[str]:
    different = [one for one in others if one.digest != newest.digest]
    if different:
        when = [f"{one.arrival.shown} ({_time(one.arrival.time)})" for one in different]
        yield (
            f"{len(different) + 1} notebooks of this lab: {newest.arrival.shown} ({_time(newest.arrival.time)}) is the "
            f"newest by the files' own times and was graded; the others are {', '.join(when)}"
        )


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")


def _beside(notebook: Arrival, files: list[tuple[Claim, Arrival]]) -> tuple[dict[str, Arrival], tuple[str, ...]]:
    """What lies beside a notebook and below, by its name from there, within limits; and what was left out.

    At the top of the submissions lie everybody's files: there, those that the platform gave the same student's name.
    """
    folder = notebook.parts[:-1]
    found: dict[str, Arrival] = {}
    left: list[str] = []
    size = 0
    for claim, arrival in files:
        if arrival.parts == notebook.parts or arrival.said or _is_notebook(arrival.name):
            continue
        if folder:
            if arrival.parts[: len(folder)] != folder:
                continue
            name = "/".join(arrival.parts[len(folder) :])
        else:
            name = claim.file if len(arrival.parts) == 1 else ""
        if not name or name in found:
            continue
        size += arrival.size
        if size > BESIDE or len(found) >= BESIDE_FILES:
            size -= arrival.size
            left.append(name)
        else:
            found[name] = arrival
    notes: tuple[str, ...] = ()
    if left:
        some = ", ".join(left[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else "")
        notes = (
            f"beside the notebook lies more than {BESIDE_FILES} files or {megabytes(BESIDE)}: {some} "
            "were not there when it was run",
        )
    return found, notes


def _digest(notebook: str, beside: Mapping[str, Arrival]) -> str:
    made = hashlib.sha256(notebook.encode())
    for name, arrival in sorted(beside.items()):
        try:
            content = hashlib.sha256(arrival.read(BESIDE)).hexdigest()
        except LabError as error:
            content = str(error)
        made.update(json.dumps([name, content]).encode())
    return made.hexdigest()


def _read(arrival: Arrival, given: Mapping[str, NotebookNode]) -> _Candidate:
    try:
        data = arrival.read(NOTEBOOK)
    except LabError as error:
        remedy = "; clear its outputs and hand it in again" if arrival.size > NOTEBOOK else ""
        return _Candidate(arrival, "", None, f"{error}{remedy}", "")
    digest = hashlib.sha256(data).hexdigest()
    try:
        notebook = parse(data)
        lab = lab_of(notebook, given)
        return _Candidate(arrival, lab, notebook, "", digest, tuple(mend(notebook, given[lab])))
    except LabError as error:
        return _Candidate(arrival, "", None, str(error), digest)
    except RecursionError:
        return _Candidate(
            arrival, "", None, "it is no notebook: what it says about itself is nested too deeply", digest
        )


# ---- reading a notebook whoever wrote it -------------------------------------------------------------------------


def parse(data: bytes) -> NotebookNode:
    """A notebook of format 4 from a file's bytes: cells with their text and what they say about themselves, and the
    text that was stored below them, cut; everything else is left out, so that nothing in it matters.

    Raises:
        LabError: it is none; the message says what it is, and has no path, the caller has.
    """
    if not data.strip():
        raise LabError("the file is empty")
    for start, what in _DISGUISED.items():
        if data.lstrip()[:64].lower().startswith(start):
            raise LabError(f"it is {what} under a notebook's name; hand in the .ipynb file itself")
    try:
        content = json.loads(data)
    except RecursionError:
        raise LabError("it is no notebook: its JSON is nested too deeply") from None
    except UnicodeDecodeError:
        raise LabError("it is no notebook: it is no text") from None
    except ValueError as error:
        if re.search(rb"^(<{7}|>{7}) ", data, re.MULTILINE):
            raise LabError("it holds a merge conflict that git left (lines with <<<<<<<); resolve it") from None
        where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise LabError(f"it is no JSON{where}, so no notebook: cut off while it was saved or sent?") from None
    if not isinstance(content, dict) or not ({"cells", "worksheets"} & content.keys()):
        raise LabError("it is JSON and no notebook: it has no cells")
    version = content.get("nbformat")
    if version == 3:
        content = _from_format_3(content)
    elif version != 4:
        raise LabError(f"it has notebook format {version!r}; open it in Jupyter and save it, which makes it format 4")
    cells = content.get("cells")
    if not isinstance(cells, list):
        raise LabError("it is JSON and no notebook: its cells are no list")
    if len(cells) > _CELLS:
        raise LabError(f"it has {len(cells):,} cells; at most {_CELLS:,} are read")
    about = content.get("metadata")
    made = nbformat.v4.new_notebook()
    made.cells = [_cell(cell, number) for number, cell in enumerate(cells, 1)]
    ours = about.get("underload") if isinstance(about, dict) else None
    if isinstance(ours, dict):
        made.metadata["underload"] = nbformat.from_dict(ours)
    return made


_DISGUISED = {
    b"%pdf": "a PDF",
    b"pk\x03\x04": "a zip archive or an office document",
    b"<!doctype html": "a web page",
    b"<html": "a web page",
    b"\x89png": "a picture",
    b"\xff\xd8\xff": "a picture",
}


def _from_format_3(content: dict[str, Any]) -> dict[str, Any]:
    """The cells of an old notebook in today's form: headings were cells of their own, and code was called input."""
    cells: list[Any] = []
    sheets = content.get("worksheets")
    for sheet in sheets if isinstance(sheets, list) else [{"cells": None}]:
        found = sheet.get("cells") if isinstance(sheet, dict) else None
        if not isinstance(found, list):
            raise LabError("it has notebook format 3 and cannot be read; open it in Jupyter and save it")
        for cell in found:
            if isinstance(cell, dict) and cell.get("cell_type") == "heading":
                text = cell.get("source")
                title = "".join(map(str, text)) if isinstance(text, list) else str(text)
                cells.append({**cell, "cell_type": "markdown", "source": f"## {title}"})
            elif isinstance(cell, dict) and cell.get("cell_type") == "code":
                cells.append({**cell, "source": cell.get("input", "")})
            else:
                cells.append(cell)
    return {**content, "cells": cells}


def _cell(cell: Any, number: int) -> NotebookNode:
    if not isinstance(cell, dict) or cell.get("cell_type") not in ("code", "markdown", "raw"):
        raise LabError(f"its cell {number} is no cell of a notebook")
    source = cell.get("source", "")
    if isinstance(source, list) and all(isinstance(line, str) for line in source):
        source = "".join(source)
    if not isinstance(source, str):
        raise LabError(f"its cell {number} has no text")
    if len(source) > _CELL:
        raise LabError(f"its cell {number} has {len(source):,} characters; at most {_CELL:,} are read")
    # half of a surrogate pair is allowed in JSON and cannot be written to any file
    source = source.encode("utf-8", "replace").decode("utf-8")
    metadata: dict[str, Any] = cell["metadata"] if isinstance(cell.get("metadata"), dict) else {}
    kept: dict[str, Any] = {}
    marks = metadata.get("nbgrader")
    if isinstance(marks, dict) and isinstance(marks.get("grade_id"), str):
        kept["nbgrader"] = marks
    made = nbformat.from_dict({"cell_type": cell["cell_type"], "source": source, "metadata": kept})
    made["id"] = cell["id"] if isinstance(cell.get("id"), str) else ""
    if cell["cell_type"] == "code":
        text = _printed(cell.get("outputs"))
        made["outputs"] = [nbformat.v4.new_output("stream", name="stdout", text=text)] if text else []
        made["execution_count"] = None
    return made


def _printed(outputs: Any) -> str:
    """The text among stored outputs: what was printed, and values that say more than their type and address."""
    found: list[str] = []
    for output in outputs if isinstance(outputs, list) else ():
        if not isinstance(output, dict):
            continue
        data = output.get("data")
        text: Any = ""
        if output.get("output_type") == "stream" and output.get("name") != "stderr":
            text = output.get("text")
        elif output.get("output_type") in ("display_data", "execute_result") and isinstance(data, dict):
            text = data.get("text/plain")
        text = "".join(map(str, text)) if isinstance(text, list) else text
        if isinstance(text, str) and not re.match(r"\s*<[^\n]*>\s*$", text):
            found.append(text[:PRINTED])
    text = "\n".join(part.strip("\n") for part in found if part.strip())
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)[:PRINTED].encode("utf-8", "replace").decode("utf-8")


# ---- which lab it is ---------------------------------------------------------------------------------------------


def lab_of(notebook: NotebookNode, given: Mapping[str, NotebookNode]) -> str:
    """Which of the labs a notebook is of: by what its metadata say, and where they say nothing by its cells.

    Raises:
        LabError: none, another than these, or no telling; the message says which.
    """
    said = notebook.metadata.get("underload", {}).get("lab")
    fits = {lab: _fit(notebook, made) for lab, made in given.items()}
    if isinstance(said, str) and said:
        if said not in given:
            raise LabError(f"it is a notebook of the lab {said[:80]!r}, which is not graded here ({', '.join(given)})")
        if fits[said][0]:
            return said
        other = _best(fits)
        if other is None:
            raise LabError(f"it says that it is the lab {said}, and has none of its cells")
        return other
    best = _best(fits)
    if best is None:
        raise LabError(f"it has none of the cells of {' or '.join(given)}: some other notebook")
    return best


def _fit(notebook: NotebookNode, given: NotebookNode) -> tuple[int, int]:
    """How many cells of the lab are in the notebook by name; and how many are there word for word. Labs have names such
    as task-1-check in common, but not the cells."""
    texts = {name_of(cell): cell.source.strip() for cell in given.cells if name_of(cell)}
    marked = {name_of(cell) for cell in given.cells if nbgrader(cell)} | {
        cell.get("id") for cell in given.cells if nbgrader(cell)
    }
    theirs = {key for cell in notebook.cells for key in (name_of(cell), cell.get("id")) if key}
    written = {cell.source.strip() for cell in notebook.cells}
    return len(theirs & marked), len(written & {text for text in texts.values() if text})


def _best(fits: Mapping[str, tuple[int, int]]) -> str | None:
    # a word or two (an import, a heading) may be the same in any two labs
    order = sorted((fit for fit in fits.items() if fit[1][0] and fit[1][1] > 2), key=lambda fit: (fit[1][1], fit[1][0]))
    if not order:
        return None
    if len(order) > 1 and order[-1][1] == order[-2][1]:
        raise LabError(f"it does not say which lab it is of, and could be {order[-2][0]} or {order[-1][0]}")
    return order[-1][0]


def mend(notebook: NotebookNode, given: NotebookNode) -> Iterator[str]:
    """Give cells their names back where a program dropped them: grading marks by the cell's id, ids by the cell's text.

    The notebook is changed; yields a note where grading marks had gone.
    """
    known = {name_of(cell): cell for cell in given.cells if name_of(cell)}
    by_id = {cell.get("id"): cell for cell in given.cells if nbgrader(cell) and cell.get("id")}
    have = {name_of(cell) for cell in notebook.cells}
    again: list[str] = []
    for cell in notebook.cells:
        lost = by_id.get(cell.get("id"))
        if lost is not None and not nbgrader(cell) and name_of(lost) not in have and cell.cell_type == lost.cell_type:
            cell.metadata["nbgrader"] = lost.metadata["nbgrader"]
            have.add(name_of(lost))
            again.append(name_of(lost))
    by_text: dict[str, NotebookNode | None] = {}
    for name, cell in known.items():
        if name not in have and cell.source.strip():
            key = f"{cell.cell_type} {cell.source.strip()}"
            by_text[key] = None if key in by_text else cell  # two cells of one text: no telling which
    for cell in notebook.cells:
        lost = by_text.get(f"{cell.cell_type} {cell.source.strip()}")
        if lost is not None and name_of(cell) not in known:
            by_text[f"{cell.cell_type} {cell.source.strip()}"] = None
            cell["id"] = lost.get("id")
            if nbgrader(lost):
                cell.metadata["nbgrader"] = lost.metadata["nbgrader"]
                again.append(name_of(lost))
    if again:
        yield f"the marks for grading were gone from {len(again)} cells, which were known by their ids or texts"
