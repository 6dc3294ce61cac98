"""The students of a class, from a CSV file such as a spreadsheet or a learning platform writes."""

from __future__ import annotations

import csv
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from underload.course.marks import LabError

#: A first row with one of these is a header; the column `student` holds the ids, else the first column does.
_HEADINGS = {
    "student", "students", "student id", "student_id", "id", "ids", "login", "user", "username", "user name", "name",
    "email", "e-mail", "email address", "sis login id", "sis user id", "matriculation number", "full name",
    "last, first", "first name", "last name", "surname", "given name", "family name", "section", "group",
}  # fmt: skip
_CANVAS_ID = "sis login id"
_NO_STUDENTS = {"Points Possible", "Student, Test"}
_NAME = re.compile(r"[\w][\w.@+-]*")
_LONGEST = 64
_CALLED = {" ": "space", ",": "comma", "\n": "line break", "\t": "tab", "\u00a0": "hard space"}
_RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))}


@dataclass(frozen=True)
class Roster:
    """The students' ids in the file's order, and what the file says about each: id → heading (in small letters) →
    value, as learning platforms want it back."""

    students: tuple[str, ...]
    about: Mapping[str, Mapping[str, str]]


def read_roster(path: Path) -> Roster:
    """Read a class list. Commas, semicolons and tabs are taken, empty rows are not.

    The ids stand in the column headed `student`, else in the first. In a gradebook exported from Canvas, which has the
    names there, they are the login ids, and its row of possible points and its test student are no students.

    Raises:
        LabError: the file cannot be read, lists nobody, or has an id that is no folder name or occurs twice.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise LabError(f"no roster at {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise LabError(f"the roster {path} cannot be read as UTF-8 text ({error}); save it as CSV UTF-8") from error
    first = next((line for line in text.splitlines() if line.strip()), "")
    delimiter = max(",;\t", key=first.count)
    try:
        rows = [row for row in csv.reader(text.splitlines(), delimiter=delimiter) if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise LabError(f"the roster {path} is no CSV file: {error}") from error
    if not rows:
        raise LabError(f"the roster {path} lists nobody")
    headings = [" ".join(cell.split()).casefold() for cell in rows[0]]
    ids = next((heading for heading in (_CANVAS_ID, "student") if heading in headings), headings[0])
    column = headings.index(ids)
    named = bool(_HEADINGS.intersection(headings))
    if named:
        rows = rows[1:]
    if ids == _CANVAS_ID:
        rows = [row for row in rows if row[0].strip() not in _NO_STUDENTS]
        headings = [{"student": "student name", "id": "canvas id"}.get(heading, heading) for heading in headings]
    if not rows:
        raise LabError(f"the roster {path} has a header and lists nobody")
    given = [row[column].strip() if column < len(row) else "" for row in rows]
    students = check_students(given, str(path))
    cells = [
        {heading: cell.strip() for heading, cell in zip(headings, row) if cell.strip()} if named else {} for row in rows
    ]
    return Roster(tuple(students), dict(zip(students, cells, strict=True)))


def check_students(students: Iterable[str], where: str = "the roster") -> list[str]:
    """The ids, each once and each good as the name of a folder on every system.

    Raises:
        LabError: names each id that is not, and why.
    """
    found: dict[str, str] = {}
    wrong: list[str] = []
    for number, given in enumerate(students, 1):
        student = unicodedata.normalize("NFC", given)
        why = _unfit(student)
        if why:
            wrong.append(f"{given!r} ({why})" if student else f"entry {number} (empty)")
        elif student.casefold() in found:
            wrong.append(f"{given!r} (occurs twice; upper and lower case are the same folder on some systems)")
        else:
            found[student.casefold()] = student
    if wrong:
        more = f" and {len(wrong) - 8} more" if len(wrong) > 8 else ""
        raise LabError(
            f"{where}: {', '.join(wrong[:8])}{more}; an id is letters, digits and . _ - + @, begins with a letter, a "
            f"digit or _, has at most {_LONGEST} characters, and occurs once. Head the column of the ids with `student`"
        )
    return list(found.values())


def _unfit(student: str) -> str:
    """Why this id is no folder name; empty for a good one."""
    if not student:
        return "empty"
    if len(student) > _LONGEST:
        return f"{len(student)} characters"
    odd = next((letter for letter in student if not re.fullmatch(r"[\w.@+-]", letter)), "")
    if odd or not _NAME.fullmatch(student):
        what = _CALLED.get(odd or student[0], repr(odd or student[0]))
        return f"has the character {what}" if odd else f"begins with {what}"
    if student.endswith(".") or student.split(".")[0].casefold() in _RESERVED:
        return "is no folder name on Windows"
    return ""
