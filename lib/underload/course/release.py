"""Handing labs out: a folder a lab with the notebook and a README, for everybody or for each student.

    OUT/LAB/LAB.ipynb, README.md               for everybody
    OUT/STUDENT/LAB/LAB.ipynb, README.md       for each student of a roster, with numbers of their own
    OUT/CHANGES.md                             what was handed out when, and what changed: for people
    OUT/release.json                           the same for programs, and what the next release compares with

Nothing is written before everything that is to be written has been checked. A file that was not written here, or was
changed since, is never overwritten.
"""

from __future__ import annotations

import copy
import datetime
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import nbformat
from nbformat import NotebookNode

from underload.course.changes import contents, differences, hidden_changed, worth
from underload.course.handout import digest, handout
from underload.course.inspection import faults
from underload.course.marks import LabError
from underload.course.outline import Outline, outline
from underload.course.personal import fingerprint, personal, seed_for, seed_of
from underload.course.points import number
from underload.course.readme import student_readme
from underload.course.roster import check_students
from underload.course.secrets import secrets
from underload.course.source import nbgrader

VERSION = 1
_RECORD, _LOG = "release.json", "CHANGES.md"
_LOG_HEAD = (
    "# Hand-outs\n\nWhat was handed out when, and what changed since the time before. "
    "Written by `underload course release`.\n"
)


@dataclass(frozen=True)
class Released:
    """One lab's hand-out. `folders`: how many copies of it there are, `new` of which were not there before.
    `since`: the date and version that it replaces; `changes`: what a student whose copy is that one should know;
    `hidden`: tasks whose hidden checks changed, of which no student has a copy."""

    lab: str
    version: str
    date: str
    state: Literal["first", "changed", "unchanged"]
    worth: str
    folders: int
    new: int
    since: str = ""
    changes: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()


@dataclass(frozen=True)
class Release:
    """What a release wrote; `kept`: READMEs that somebody edited and that were left as they are; `gone`: students of an
    earlier release who are not in the roster any more and whose folders were left."""

    labs: tuple[Released, ...]
    students: tuple[str, ...]
    written: int
    kept: tuple[Path, ...]
    gone: tuple[str, ...]


def hand_out(source: NotebookNode, lab: str, date: str, *, student: str = "", seed: int | None = None) -> NotebookNode:
    """The notebook that a student gets: the hand-out, stamped, locked and with nbgrader's checksums.

    lab: the name under which it is handed out. date: as the stamp says it.
    student, seed: whose copy it is and the numbers it gets; without a seed it has the book's.

    Raises:
        LabError: nbgrader is not installed; or the source is faulty.
    """
    made = handout(source)
    about = made.metadata["underload"]
    if seed is not None:
        made = personal(made, seed)
        about = made.metadata["underload"]
        about["seed"] = seed
    about.update(lab=lab, released=date, **({"student": student} if student else {}))
    for cell in made.cells:
        if cell.cell_type == "markdown":  # a hand-out lies in a folder of its own, one deeper than the lab does
            cell.source = cell.source.replace("](../", "](../../")
    line = f"*Hand-out of {date}, {_short(about['handout'])}.*"
    first = next((cell for cell in made.cells[:1] if cell.cell_type == "markdown" and not nbgrader(cell)), None)
    if first is None:
        made.cells.insert(0, nbformat.v4.new_markdown_cell(line, id="hand-out"))
    else:
        first.source = f"{first.source.rstrip()}\n\n{line}"
    return _for_nbgrader(made)


def _for_nbgrader(made: NotebookNode) -> NotebookNode:
    try:
        from nbgrader.preprocessors import ComputeChecksums, LockCells
    except ImportError as error:
        raise LabError(
            "handing out needs nbgrader, which locks cells and signs them: `make course`, or "
            "`pip install nbgrader` where the library is used alone"
        ) from error
    for step in (LockCells(), ComputeChecksums()):
        made, _ = step.preprocess(made, {})
    nbformat.validate(made)
    return made


def check_source(source: NotebookNode, lab: str) -> list[str]:
    """What keeps a lab from being handed out; empty for a sound one."""
    found = faults(source)
    named = source.metadata.get("underload", {}).get("lab", lab)
    if named != lab:
        found.append(f"its metadata calls it {named!r} and its file {lab!r}; they must agree")
    if found:
        return found
    try:
        made = handout(source)
        tasks = outline(source).tasks
        personal(source, 1)
    except LabError as error:
        return [str(error)]
    if not tasks:
        found.append("nothing in it is graded, so there is nothing to hand in; `make lab` opens it for everybody")
    kept = secrets(source)
    text = "\n".join(_strings(made))
    found += [f"the hand-out would give away {line!r}" for line in kept.lines_in(text)]
    found += _uncompilable(made)
    return found


def _strings(node: Any) -> list[str]:
    """Every string anywhere in a notebook."""
    if isinstance(node, str):
        return [node]
    if isinstance(node, Mapping):
        return [text for key, value in node.items() for text in (str(key), *_strings(value))]
    if isinstance(node, list | tuple):
        return [text for item in node for text in _strings(item)]
    return []


def _uncompilable(made: NotebookNode) -> list[str]:
    from IPython.core.inputtransformer2 import TransformerManager

    wrong = []
    for index, cell in enumerate(made.cells):
        if cell.cell_type == "code":
            try:
                code = TransformerManager().transform_cell(cell.source)
                compile(code, "<cell>", "exec", flags=0x2000)  # ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            except SyntaxError as error:
                name = nbgrader(cell).get("grade_id") or cell.get("id")
                wrong.append(f"cell {index + 1} ({name}) is no Python once its solution is out: {error}")
    return wrong


def release(
    labs: Mapping[str, NotebookNode],
    out: Path,
    *,
    secret: bytes = b"",
    students: Sequence[str] = (),
    deadline: str = "",
    book: str = "",
    rules: str | None = None,
    day: datetime.date | None = None,
) -> Release:
    """Hand out these labs (sources by name) in the folder `out`.

    students: their ids, each of whom gets a folder with numbers drawn from `secret`; empty for one folder for all.
    deadline, book, rules: for the README (see `readme.student_readme`). day: the date of the stamp; today's if None.

    Raises:
        LabError: a lab cannot be handed out; the secret is missing or another one than before; a student's id is no
            folder name; `out` holds copies for everybody and these are for each student, or the other way round; or a
            file in `out` is somebody else's. Nothing has been written then.
    """
    date = (day or datetime.date.today()).isoformat()
    students = check_students(students)
    if students and not secret:
        raise LabError("a copy for each student needs a secret, from which their numbers are drawn (--secret FILE)")
    clash = sorted({student.casefold() for student in students} & {*map(str.casefold, labs), "changes.md", _RECORD})
    if clash:
        raise LabError(f"a student cannot be called {clash[0]!r}: the folder {out.name}/ has something of this name")
    wrong = [f"{lab}: {fault}" for lab, source in labs.items() for fault in check_source(source, lab)]
    if wrong:
        raise LabError(_several(wrong, "cannot be handed out"))
    record = _read_record(out)
    if students and record["secret"] not in ("", fingerprint(secret)):
        raise LabError(
            f"{out} was handed out with another secret; with this one every student would get other numbers. "
            "Name the same secret, or another folder"
        )
    _one_kind(out, labs, students, record)
    planned: dict[str, str] = {}
    done: list[Released] = []
    for lab, source in labs.items():
        one, files = _plan(lab, source, date, record, secret, students, deadline, book, rules)
        planned.update(files)
        done.append(one)
        seeded = seed_of(source) is not None
        record["labs"][lab] = {"version": one.version, "date": one.date, "seeded": seeded, **contents(source)}
    kept = _settle(out, planned, record["files"])
    gone = sorted(set(record["students"]) - set(students)) if students else []
    for student in students:
        record["students"][student] = seed_for(secret, student)
    if students:
        record["secret"] = fingerprint(secret)
    # On record before they are written, so that files of a release that was interrupted are known for ours.
    for name, text in planned.items():
        record["files"].setdefault(name, []).append(_sha(text.encode()))
    _write_record(out, record)
    for name, text in planned.items():
        _write(out / name, text)
        record["files"][name] = record["files"][name][-1:]
    _write(out / _LOG, _logged(_log(out), date, _entry(done, students)))
    _write_record(out, record)
    return Release(tuple(done), tuple(students), len(planned), tuple(out / name for name in kept), tuple(gone))


def _one_kind(out: Path, labs: Mapping[str, NotebookNode], students: Sequence[str], record: Mapping[str, Any]) -> None:
    """Refuse to put copies with everybody's numbers among those with numbers of the students' own: who sends the
    folders out could not tell one kind from the other."""
    handed = [name for name in record["files"] if name.endswith(".ipynb") and (out / name).exists()]
    for lab in labs:
        if students and f"{lab}/{lab}.ipynb" in handed:
            raise LabError(
                f"{out / lab} holds the copy of {lab} for everybody that was handed out before, with the book's "
                "numbers; hand out the students' own copies in another folder"
            )
        theirs = sum(name.endswith(f"/{lab}/{lab}.ipynb") for name in handed)
        if not students and theirs:
            raise LabError(
                f"{out} holds the copies of {lab} for {theirs} students, each with numbers of their own; give "
                "--students again, or hand out the copy for everybody in another folder"
            )


def _plan(
    lab: str,
    source: NotebookNode,
    date: str,
    record: Mapping[str, Any],
    secret: bytes,
    students: Sequence[str],
    deadline: str,
    book: str,
    rules: str | None,
) -> tuple[Released, dict[str, str]]:
    """One lab's hand-out and the files of it, by their place in the folder."""
    before: dict[str, Any] | None = record["labs"].get(lab)
    full = digest(handout(source))
    changes: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    state: Literal["first", "changed", "unchanged"] = "first"
    if before is not None:
        now = contents(source)
        hidden = tuple(hidden_changed(before, now))
        if before["version"] == full:
            state, date = "unchanged", before["date"]  # copies of today and of then are the same file
        else:
            state = "changed"
            changes = tuple(differences(before, now)) or ("cells were renamed, or their order changed",)
    about = copy.deepcopy(source)
    about.metadata.setdefault("underload", NotebookNode())["lab"] = lab
    described = outline(about)
    seeded = seed_of(source) is not None
    files: dict[str, str] = {}
    new = 0
    for student in students or ("",):
        seed = seed_for(secret, student) if student else None
        made = hand_out(source, lab, date, student=student, seed=seed if seeded else None)
        folder = f"{student}/{lab}" if student else lab
        new += f"{folder}/{lab}.ipynb" not in record["files"]
        text = nbformat.writes(made, version=nbformat.NO_CONVERT)
        files[f"{folder}/{lab}.ipynb"] = text if text.endswith("\n") else text + "\n"
        files[f"{folder}/README.md"] = student_readme(
            described, date=date, version=_short(full), personal=bool(student) and seeded, deadline=deadline,
            book=book, rules=rules,
        )  # fmt: skip
    since = f"{before['date']}, {_short(before['version'])}" if before is not None else ""
    count = len(students) or 1
    return Released(lab, full, date, state, _worth(described), count, new, since, changes, hidden), files


def _settle(out: Path, planned: dict[str, str], ours: Mapping[str, Sequence[str]]) -> list[str]:
    """Take out of the plan what is there already, and READMEs that somebody edited; returns the latter.

    Raises:
        LabError: a notebook in the way that was not written here, or was changed since.
    """
    kept: list[str] = []
    foreign: list[str] = []
    for name, text in list(planned.items()):
        path = out / name
        if not path.exists() and not path.is_symlink():
            continue
        there = _sha(path.read_bytes()) if path.is_file() else ""
        if there == _sha(text.encode()):
            if there in ours.get(name, ()):
                del planned[name]
        elif there not in ours.get(name, ()):
            if path.name == "README.md" and path.is_file():
                kept.append(name)
                del planned[name]
            else:
                foreign.append(str(path))
    if foreign:
        raise LabError(
            _several(foreign, "in the way: not written by a release, or changed since; move it, or use another folder")
        )
    return kept


def _read_record(out: Path) -> dict[str, Any]:
    """What earlier releases into this folder left on record."""
    path = out / _RECORD
    if out.exists() and not out.is_dir():
        raise LabError(f"{out} is a file; name a folder to hand out in")
    if not path.exists():
        if (out / _LOG).exists():
            raise LabError(f"{out / _LOG} is there and {_RECORD} beside it is not; move it, or use another folder")
        return {"version": VERSION, "labs": {}, "students": {}, "secret": "", "files": {}}
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if record["version"] != VERSION:
            raise ValueError(f"version {record['version']}")
        if not all(isinstance(record[key], dict) for key in ("labs", "students", "files")):
            raise ValueError("not a record")
        record["secret"] = str(record["secret"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LabError(
            f"{path} is no record of a release that this version reads ({error}); use another folder"
        ) from error
    return record


def _write_record(out: Path, record: Mapping[str, Any]) -> None:
    _write(out / _RECORD, json.dumps(record, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


def _log(out: Path) -> str:
    path = out / _LOG
    return path.read_text(encoding="utf-8").rstrip("\n") + "\n" if path.exists() else _LOG_HEAD


def _logged(log: str, date: str, entry: str) -> str:
    """The log with one more entry, under the heading of its day: a day has one, however often something is handed out
    on it."""
    if re.findall(r"^## (.*)$", log, re.MULTILINE)[-1:] != [date]:
        return f"{log}\n## {date}\n\n{entry}"
    return log + ("" if entry.startswith("- ") else "\n") + entry  # one list goes on, a new paragraph stands apart


def _entry(done: Sequence[Released], students: Sequence[str]) -> str:
    """What one hand-out did, a line a lab."""
    lines = [f"To {len(students)} {'student' if len(students) == 1 else 'students'}:\n"] if students else []
    for one in done:
        head = f"- **{one.lab}**, {_short(one.version)}: "
        if one.state == "first":
            lines.append(head + f"first hand-out, {one.worth}")
        elif one.state == "unchanged":
            lines.append(head + f"unchanged since {one.date}" + (f", {copies(one.new)}" if one.new else ""))
        else:
            lines.append(head + f"replaces {one.since}")
            lines += [f"  - {change}" for change in one.changes]
        if one.hidden:
            lines.append(f"  - hidden checks changed (no student has a copy of them): task {', '.join(one.hidden)}")
    return "\n".join(lines) + "\n"


def copies(count: int) -> str:
    """'1 new copy', '12 new copies'."""
    return f"{count} new cop{'y' if count == 1 else 'ies'}"


def advice(one: Released) -> str:
    """What to tell students whose copy of a changed lab is older, as a text to send."""
    changes = "\n".join(f"  - {change}" for change in one.changes)
    return (
        f"The lab {one.lab} has a new hand-out of {one.date} ({_short(one.version)}); the line at the end of the "
        f"notebook's first cell says which one you have.\n{changes}\n"
        "If yours is older, you need not start again: it is graded with the present checks all the same. To work in "
        "the new one, open both and copy the contents of your answer cells over, cell by cell, not the cells."
    )


def _worth(lab: Outline) -> str:
    return worth(lab.points) + (f" and {number(lab.bonus)} on top" if lab.bonus else "")


def _several(wrong: Sequence[str], what: str) -> str:
    more = f"; and {len(wrong) - 6} more" if len(wrong) > 6 else ""
    return f"{what}: {'; '.join(wrong[:6])}{more}"


def _short(version: str) -> str:
    return version[:8]


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8", newline="\n")
    os.replace(beside, path)
