"""Grading: one submission, or all that came back.

Each submission runs in a process of its own, forked from one that has run the lab's given cells; several at a time.
What is wrong with one never stops another: it becomes a reason in that result. Results are written as they are made,
so that a run that was interrupted goes on where it was.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from nbformat import NotebookNode

from underload.course.assemble import Assembly, assemble
from underload.course.attempt import Attempt, Root, Runner, clean, written
from underload.course.handout import handout
from underload.course.ledger import keep, key_of, stored
from underload.course.marks import LabError
from underload.course.outline import Outline, name_of, outline, role
from underload.course.personal import personal, seed_for, seed_of
from underload.course.points import number
from underload.course.results import PartResult, Result
from underload.course.roster import Roster
from underload.course.sandbox import Limits
from underload.course.submission import BESIDE, Found, find, found_at

if TYPE_CHECKING:
    from underload.course.report import Report

#: What one submission may take in all (seconds by the clock).
SUBMISSION_SECONDS = 600.0
_LIMITS = Limits()

_SEED = re.compile(r"^SEED[ \t]*=[ \t]*(\d{1,20})(?=[ \t]*(?:#.*)?$)", re.MULTILINE)


def grade_one(
    source: NotebookNode,
    submission: NotebookNode | Path | Found,
    student: str,
    *,
    lab: str = "",
    secret: bytes = b"",
    limits: Limits = _LIMITS,
    seconds: float = SUBMISSION_SECONDS,
    root: Root | None = None,
) -> Result:
    """Grade one submission of a lab.

    submission: a notebook, the file it is in, or what `course.submission` found.
    lab: the lab's name where its metadata do not say it.
    secret: the class's; it gives the student the SEED of their hand-out, and the hidden checks their inputs.
    seconds: what the whole submission may take, by the clock.
    root: a process to fork from, when several submissions of one lab are graded.

    Returns:
        the result; whatever the submission holds, nothing raises: what cannot be graded is `refused`.

    Raises:
        LabError: the lab itself is faulty, or its own cells fail.
    """
    lab = lab or outline(source).lab
    if isinstance(submission, Path):
        submission = found_at(submission, lab, source, student)
    elif not isinstance(submission, Found):
        submission = Found(student, lab, "", "", submission)
    found = replace(submission, student=student, lab=lab if submission.notebook is not None else submission.lab)
    if found.notebook is None:
        return refused(found, found.said)
    if root is not None:
        return _guarded(source, found, secret, limits, seconds, root)
    with Root(source, limits) as own:
        return _guarded(source, found, secret, limits, seconds, own)


def refused(found: Found, said: str) -> Result:
    """The result of a submission that could not be graded at all."""
    return Result(found.student, found.lab, found.path, "refused", clean(said, 20_000), notes=found.notes)


def _guarded(source: NotebookNode, found: Found, secret: bytes, limits: Limits, seconds: float, root: Root) -> Result:
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="underload-"))
    try:
        _lay_out(found, folder)
        return _grade(source, found, secret, seconds, root, folder, began)
    except Exception:
        said = "the grader itself failed at this submission; please report it:\n" + traceback.format_exc()
        return replace(refused(found, said), seconds=time.monotonic() - began)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _lay_out(found: Found, folder: Path) -> None:
    """Put what came beside the notebook into the folder that it runs in."""
    for name, arrival in found.beside.items():
        try:
            content = arrival.read(BESIDE)
            path = folder.joinpath(*name.split("/"))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except (OSError, LabError, ValueError):
            continue  # a cell that wants it says that it is not there


def _grade(
    source: NotebookNode, found: Found, secret: bytes, seconds: float, root: Root, folder: Path, began: float
) -> Result:
    assert found.notebook is not None
    notes = list(found.notes)
    about = found.notebook.metadata.get("underload", {})
    version = about.get("handout") if isinstance(about.get("handout"), str) else ""
    now = handout(source).metadata["underload"]["handout"]
    if version and version != now:
        notes.append(f"made from another version of the hand-out ({version[:8]}; the lab's is {now[:8]} now)")
    source, notebook, told = _with_seed(source, found, secret)
    assembly = assemble(source, notebook)
    made = Runner(source, assembly, root, folder, lab=found.lab, secret=secret, seconds=seconds).run()
    return Result(
        found.student,
        found.lab,
        found.path,
        "graded",
        "",
        str(version)[:64],
        tuple(_parts(assembly, made)),
        assembly.problems,
        tuple(made.cells[index] for index in sorted(made.cells)),
        written(source, assembly),
        tuple(clean(note, 2_000) for note in (*notes, *told, *made.notes)),
        round(time.monotonic() - began, 3),
        named=found.named,
        printed=_printed(source, notebook),
    )


def _printed(source: NotebookNode, notebook: NotebookNode) -> dict[str, str]:
    """The text that came stored below the lab's show cells, by their names, for who marks what was written about it."""
    shown = {name_of(cell) for cell in source.cells if role(cell) == "show"}
    return {
        name_of(cell): "\n".join(output.text for output in cell.outputs if output.get("output_type") == "stream")
        for cell in notebook.cells
        if cell.cell_type == "code" and name_of(cell) in shown and cell.get("outputs")
    }


def _parts(assembly: Assembly, made: Attempt) -> list[PartResult]:
    parts = []
    for part in assembly.outline.parts:
        if not part.manual:
            parts.append(made.parts[part.name])
            continue
        text = clean(assembly.answers.get(part.name, ""), 50_000)
        empty = not text.strip()
        parts.append(
            PartResult(
                part.name,
                part.task,
                part.points,
                0.0 if empty else None,
                part.further,
                True,
                "nothing was written" if empty else "",
                answer=text,
            )
        )
    return parts


def _with_seed(source: NotebookNode, found: Found, secret: bytes) -> tuple[NotebookNode, NotebookNode, list[str]]:
    """The lab and the notebook with the SEED that the student was given, and what is to be told about another one."""
    assert found.notebook is not None
    had = seed_of(source)
    if had is None:
        return source, found.notebook, []
    notes = []
    about = found.notebook.metadata.get("underload", {})
    if "released" in about and not {"seed", "student"} & about.keys():
        secret = b""  # one copy for everybody, with the book's numbers; the secret is for the hidden inputs alone
    named = about.get("student")
    owner = found.student
    if secret and isinstance(named, str) and named != owner:
        if found.listed:
            notes.append(f"it is the hand-out of {named[:80]!r} by its metadata; it was graded with {owner}'s numbers")
        else:
            owner = named
            notes.append(f"it is the hand-out of {named[:80]!r} by its metadata; it was graded with those numbers")
    seed = seed_for(secret, owner) if secret else had
    places = {name_of(cell) for cell in source.cells if role(cell) == "given" and _SEED.search(cell.source)}
    theirs = {name_of(cell): cell for cell in found.notebook.cells if name_of(cell) in places}
    if not theirs:
        return personal(source, seed), found.notebook, notes
    notebook = NotebookNode({**found.notebook, "cells": list(found.notebook.cells)})
    for index, cell in enumerate(notebook.cells):
        if name_of(cell) not in places:
            continue
        line = _SEED.search(cell.source)
        if line is None or int(line[1]) != seed:
            was = f"SEED = {line[1]}" if line else "no number there"
            what = f"{owner}'s own is {seed}" if secret else f"the lab's is {seed}, and no secret was given"
            notes.append(f"the notebook has {was}; {what}, with which it was graded")
        cell = NotebookNode({**cell, "source": _SEED.sub(f"SEED = {seed}", cell.source)})
        notebook.cells[index] = cell
    return personal(source, seed), notebook, notes


# ---- all of them -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grading:
    """A class, graded, with the marks of open answers in it. `reused`: results that an earlier run had made."""

    results: tuple[Result, ...]
    outlines: Mapping[str, Outline]
    reused: int
    seconds: float
    workers: int
    report: Report


def grade(
    submissions: Path,
    out: Path,
    *,
    labs: Mapping[str, NotebookNode],
    secret: bytes = b"",
    workers: int | None = None,
    limits: Limits = _LIMITS,
    seconds: float = SUBMISSION_SECONDS,
    again: bool = False,
    marks: Sequence[Path] = (),
    roster: Roster | None = None,
    hidden_messages: bool = False,
    progress: bool = True,
) -> Grading:
    """Grade everything in a folder of submissions, and write the reports.

    labs: the sources by name; those in which nothing is graded are passed over.
    workers: submissions at a time; None for one a core, less where memory is short.
    again: grade also what an earlier run has graded.
    marks: files of marks for open answers. roster: the students of the class, also those from whom nothing came.
    hidden_messages: let the feedback show what hidden checks said; once nobody can hand in any more.

    Raises:
        LabError: no submissions, `out` and `submissions` lie in each other, hand-outs with numbers of their own and no
            secret, or a lab whose own cells fail.
        KeyboardInterrupt: interrupted; what was graded is kept and the next run goes on from there.
    """
    from underload.course.report import write_reports

    began = time.monotonic()
    _apart(submissions, out)
    outlines = {name: made for name, source in labs.items() if (made := replace(outline(source), lab=name)).parts}
    if not outlines:
        raise LabError(f"nothing is graded in {', '.join(labs) or 'no lab'}; name a lab that has points")
    students = roster.students if roster else ()
    found = find(submissions, {name: labs[name] for name in outlines}, roster=students)
    if not found:
        raise LabError(f"no submissions in {submissions}; give the folder that holds the students' folders or files")
    _needs_secret(found, secret)
    found = _same_hand_out(_own_copies(found, secret))
    out.mkdir(parents=True, exist_ok=True)
    results: dict[tuple[str, str], Result] = {}
    waiting: dict[str, list[tuple[Found, str]]] = {}
    reused = 0
    for one in found:
        key = key_of(one, labs.get(one.lab), secret, limits, seconds)
        old = None if again else stored(out, one, key)
        if old is not None:
            results[one.student, one.lab] = old
            reused += 1
        elif one.notebook is None:
            result = replace(refused(one, one.said), key=key)
            keep(result, out)
            results[one.student, one.lab] = result
        else:
            waiting.setdefault(one.lab, []).append((one, key))
    count = workers or sensible_workers(limits)
    for lab, jobs in waiting.items():
        for result in _grade_lab(labs[lab], lab, jobs, out, secret, limits, seconds, count, progress):
            results[result.student, lab] = result
    ordered = tuple(results[one.student, one.lab] for one in found)
    report = write_reports(
        ordered,
        outlines,
        out,
        marks=marks,
        roster=students,
        sources=labs,
        people=roster.about if roster else None,
        hidden_messages=hidden_messages,
    )
    return Grading(report.results, outlines, reused, time.monotonic() - began, count, report)


def _grade_lab(
    source: NotebookNode,
    lab: str,
    jobs: Sequence[tuple[Found, str]],
    out: Path,
    secret: bytes,
    limits: Limits,
    seconds: float,
    workers: int,
    progress: bool,
) -> list[Result]:
    from tqdm import tqdm

    stopped = threading.Event()
    running: dict[str, None] = {}  # in the order in which they began
    made: list[Result] = []
    root = Root(source, limits)

    def one(found: Found, key: str) -> Result | None:
        if stopped.is_set():
            return None
        running[found.student] = None
        result = replace(
            grade_one(source, found, found.student, lab=lab, secret=secret, limits=limits, seconds=seconds, root=root),
            key=key,
        )
        running.pop(found.student, None)
        if stopped.is_set():  # its process was ended in the middle
            return None
        keep(result, out)
        return result

    pool = ThreadPoolExecutor(min(workers, len(jobs)), thread_name_prefix="grade")
    try:
        waiting: list[Future[Result | None]] = [pool.submit(one, found, key) for found, key in jobs]
        with tqdm(total=len(jobs), desc=lab, unit="submission", disable=not progress) as bar:
            for future in as_completed(waiting):
                result = future.result()
                if result is not None:
                    made.append(result)
                names = list(running)  # whom it waits for: an endless loop is somebody's
                bar.set_postfix_str(", ".join(names[:3]) + (" …" if len(names) > 3 else ""), refresh=False)
                bar.update()
                bar.refresh()
    finally:
        stopped.set()
        pool.shutdown(wait=False, cancel_futures=True)
        root.close()
        pool.shutdown()
    return made


def sensible_workers(limits: Limits) -> int:
    """One a core that this process may use; fewer where their memory would not be there."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    free = available_memory()
    return cores if free is None else max(1, min(cores, int(free // (limits.memory + 2**29))))


def available_memory() -> int | None:
    """Bytes that new processes can have; None where the system does not say."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _apart(submissions: Path, out: Path) -> None:
    one, other = submissions.resolve(), out.resolve()
    if one == other or one in other.parents or other in one.parents:
        raise LabError(
            f"{out} and {submissions} lie in each other: results would be taken for submissions; name another --out"
        )
    if out.exists() and not out.is_dir():
        raise LabError(f"{out} is a file; --out names a folder")


def _needs_secret(found: Sequence[Found], secret: bytes) -> None:
    """Refuse to grade a class with everybody's numbers but their own."""
    if secret:
        return
    notebooks = [one.notebook for one in found if one.notebook is not None]
    seeded = sum("seed" in notebook.metadata.get("underload", {}) for notebook in notebooks)
    if seeded and seeded * 2 >= len(notebooks):
        raise LabError(
            f"{number(seeded)} of {number(len(notebooks))} notebooks have numbers of the student's own, which were "
            "drawn from a secret; name the file it is in (--secret FILE)"
        )


def _own_copies(found: Sequence[Found], secret: bytes) -> list[Found]:
    """Where copies with numbers of the students' own were handed out, one that does not say whose it is gets its
    student's numbers and not the book's, whatever became of its metadata."""

    def about(one: Found) -> dict[str, Any]:
        return {} if one.notebook is None else dict(one.notebook.metadata.get("underload", {}))

    def own(one: Found) -> bool:
        named = about(one).get("student")
        return isinstance(named, str) and about(one).get("seed") == seed_for(secret, named)

    if not secret or not any(own(one) for one in found):
        return list(found)
    made = []
    for one in found:
        if one.notebook is not None and "released" in about(one) and not {"seed", "student"} & about(one).keys():
            metadata = {**one.notebook.metadata, "underload": {**about(one), "student": one.student}}
            notebook = NotebookNode({**one.notebook, "metadata": nbformat.from_dict(metadata)})
            said = "its metadata no longer say whose copy it is; it was graded with the numbers of this student"
            one = replace(one, notebook=notebook, notes=(*one.notes, said))
        made.append(one)
    return made


def _same_hand_out(found: Sequence[Found]) -> list[Found]:
    """With a note where several students hand in what was handed out to one."""
    owners: dict[tuple[str, str], list[str]] = {}
    for one in found:
        named = one.notebook.metadata.get("underload", {}).get("student") if one.notebook is not None else None
        if isinstance(named, str):
            owners.setdefault((one.lab, named), []).append(one.student)
    shared = {
        (one, lab): f"{len(students)} students handed in the hand-out of {named[:80]!r}: {', '.join(students)}"
        for (lab, named), students in owners.items()
        if len(students) > 1
        for one in students
    }
    return [
        replace(one, notes=(*one.notes, shared[one.student, one.lab])) if (one.student, one.lab) in shared else one
        for one in found
    ]
