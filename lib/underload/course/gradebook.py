"""The marks as nbgrader's own gradebook, so that a class can go on with nbgrader's tools."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from underload.course.outline import Outline
from underload.course.points import number
from underload.course.results import PartResult
from underload.course.table import Row

#: Said instead of a gradebook where nbgrader is not installed.
NOT_INSTALLED = (
    "gradebook.db was not made: nbgrader is not installed here; "
    "get it with 'make course', or pip install \"underload[course]\""
)


def write_gradebook(
    found: Sequence[Row],
    outlines: Mapping[str, Outline],
    path: Path,
    people: Mapping[str, Mapping[str, str]] | None = None,
) -> str:
    """Write `path` anew: assignments, notebooks and cells from the outlines, students and their scores from the rows.

    What the grader gave is a cell's automatic score; what a person gave an open answer its manual one. Refused
    submissions and students without one have no submission there, which nbgrader counts as 0. The points of Further
    tasks are cells worth 0 with the points as extra credit, so that they come on top of the core as they do here.

    Returns:
        "" when it was written, else why not.
    """
    try:
        from nbgrader.api import Gradebook
    except ImportError:
        return NOT_INSTALLED
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    try:
        url = f"sqlite:///{beside.resolve()}"
        _make_tables(url)
        with Gradebook(url) as book:
            _fill(book, found, outlines, people or {})
            book.engine.dispose()
        os.replace(beside, path)
    except OSError as error:
        return f"gradebook.db was not made: {error}"
    finally:
        beside.unlink(missing_ok=True)
    return ""


def _make_tables(url: str) -> None:
    """Make nbgrader's tables, as nbgrader does for a new gradebook. To learn the version of its tables it starts
    another Python by a name on the path; asking the same library here is ten times as fast and needs no path."""
    import nbgrader
    from alembic.script import ScriptDirectory
    from nbgrader.api import Base
    from sqlalchemy import create_engine, text

    version = ScriptDirectory(str(Path(nbgrader.__file__).with_name("alembic"))).get_current_head()
    engine = create_engine(url)
    with engine.begin() as database:
        Base.metadata.create_all(bind=database)
        database.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)"))
        database.execute(text("INSERT INTO alembic_version (version_num) VALUES (:version)"), {"version": version})
    engine.dispose()


def _fill(
    book: Any, found: Sequence[Row], outlines: Mapping[str, Outline], people: Mapping[str, Mapping[str, str]]
) -> None:
    from nbgrader.api import (
        Assignment,
        Comment,
        Grade,
        GradeCell,
        Notebook,
        SolutionCell,
        Student,
        SubmittedAssignment,
        SubmittedNotebook,
    )

    for student in dict.fromkeys(row.student for row in found):
        person = people.get(student, {})
        book.db.add(
            Student(
                id=_text(student),
                first_name=person.get("first name") or None,
                last_name=person.get("last name") or None,
                email=person.get("email") or person.get("email address") or None,
            )
        )
    students = {student.id: student for student in book.db.new}
    for lab, outline in outlines.items():
        here = [row for row in found if row.lab == lab]
        if not here:
            continue
        assignment = Assignment(name=lab, course_id=book.course_id)
        notebook = Notebook(name=lab, assignment=assignment)
        book.db.add(assignment)
        cells, texts = {}, {}
        for asked in outline.parts:
            cells[asked.name] = GradeCell(
                name=asked.name,
                notebook=notebook,
                max_score=0.0 if asked.further else asked.points,
                cell_type="markdown" if asked.manual else "code",
            )
            # a comment belongs to a solution cell, and an open answer is both
            texts[asked.name] = SolutionCell(name=asked.name, notebook=notebook)
            book.db.add_all([cells[asked.name], texts[asked.name]])
        book.db.flush()
        for row in here:
            if row.result is None or row.status != "graded":
                continue
            sent = SubmittedAssignment(assignment=assignment, student=students[_text(row.student)])
            within = SubmittedNotebook(notebook=notebook, assignment=sent)
            book.db.add(sent)
            for part in row.result.parts:
                if part.name not in cells:
                    continue
                book.db.add(Grade(cell_id=cells[part.name].id, notebook=within, **_scores(part)))
                book.db.add(
                    Comment(
                        cell_id=texts[part.name].id,
                        notebook=within,
                        auto_comment=_text(_comment(part)) or None,
                        manual_comment=_text(part.comment) or None,
                    )
                )
    book.db.commit()


def _text(text: str) -> str:
    """The text as a database takes it: half characters, which a notebook may hold, become question marks."""
    return text.encode("utf-8", "replace").decode()


def _scores(part: PartResult) -> dict[str, Any]:
    waiting = part.earned is None
    by_hand = part.manual and not waiting and not part.said
    score = 0.0 if part.further else part.earned
    return {
        "auto_score": None if waiting or by_hand else score,
        "manual_score": score if by_hand else None,
        "extra_credit": part.earned if part.further else None,
        "needs_manual_grade": waiting,
    }


def _comment(part: PartResult) -> str:
    """What the grader has to say: the reason, and each check."""
    lines = [part.said] if part.said else []
    lines += [
        f"{number(check.earned)}/{number(check.worth)} {check.what}" + (f": {check.said}" if check.said else "")
        for check in part.checks
    ]
    return "\n".join(lines)
