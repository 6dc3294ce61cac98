"""Marks for a learning platform: CSV files that Canvas and Moodle import, and a plain one.

canvas.csv   the format of Canvas's own gradebook export: the columns Student, ID, SIS User ID, SIS Login ID and Section
             in this order, one column an assignment, and `Points Possible` in the second row. Canvas finds a student by
             ID, else by SIS User ID, else by SIS Login ID, else by name; an empty cell changes nothing there.
moodle.csv   one row a student with a column to find them by (email address, username or ID number, chosen at import)
             and one grade column a lab.
plain.csv    student and one column a lab.

A grade is the core's points and the bonus together, and appears when nothing of the submission is left to mark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from underload.course.outline import Outline
from underload.course.render import plural
from underload.course.table import Row, csv_text, harmless, write

CANVAS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
MOODLE = ("Username", "ID number", "Email address", "First name", "Last name")
#: Headings of a roster that mean the same, in small letters.
_MEANS = {
    "Student": ("student name", "name", "full name"),
    "ID": ("canvas id", "canvas user id"),
    "SIS User ID": ("sis user id", "sis id", "id number", "matriculation number"),
    "SIS Login ID": ("sis login id", "login", "login id", "username", "user name"),
    "Section": ("section", "group"),
    "Username": ("username", "user name", "login", "sis login id"),
    "ID number": ("id number", "sis user id", "matriculation number"),
    "Email address": ("email address", "email", "e-mail", "mail"),
    "First name": ("first name", "firstname", "given name"),
    "Last name": ("last name", "lastname", "surname", "family name"),
}


@dataclass(frozen=True)
class Exports:
    """The files written, and what a person has to know or fill in."""

    files: tuple[Path, ...]
    said: tuple[str, ...]


def write_exports(
    found: Sequence[Row],
    outlines: Mapping[str, Outline],
    folder: Path,
    people: Mapping[str, Mapping[str, str]] | None = None,
) -> Exports:
    """Write the three files into `folder`.

    people: what a roster says about each student (`roster.Roster.about`). Without it the files hold the ids alone, and
        `said` tells which column to fill.
    """
    known = people or {}
    labs = [lab for lab in outlines if any(row.lab == lab for row in found)]
    students = list(dict.fromkeys(row.student for row in found if row.lab in labs))
    final = {(row.student, row.lab): row.final for row in found}
    status = {(row.student, row.lab): row.status for row in found}

    def grades(student: str) -> list[object]:
        return [final.get((student, lab)) for lab in labs]

    titles = [_canvas_title(outlines[lab].title or lab) for lab in labs]
    canvas: list[list[object]] = [["    Points Possible", "", "", "", "", *(outlines[lab].points for lab in labs)]]
    canvas += [[*_canvas(student, known.get(student, {})), *grades(student)] for student in students]
    moodle = [[*_moodle(student, known.get(student, {})), *grades(student)] for student in students]
    plain = [[student, *grades(student)] for student in students]
    files = (
        write(folder / "canvas.csv", csv_text([*CANVAS, *titles], canvas)),
        write(folder / "moodle.csv", csv_text([*MOODLE, *titles], moodle)),
        write(folder / "plain.csv", csv_text(["student", *labs], plain)),
    )
    return Exports(files, tuple(_said(students, labs, outlines, known, final, status)))


def _said(
    students: Sequence[str],
    labs: Sequence[str],
    outlines: Mapping[str, Outline],
    known: Mapping[str, Mapping[str, str]],
    final: Mapping[tuple[str, str], float | None],
    status: Mapping[tuple[str, str], str],
) -> list[str]:
    made: list[str] = []
    waiting = sum(status.get((s, lab)) == "graded" and final[s, lab] is None for s in students for lab in labs)
    refused = sum(status.get((s, lab)) == "refused" for s in students for lab in labs)
    if waiting:
        made.append(f"lms: {plural(waiting, 'grade')} left empty until the open answers are marked")
    if refused:
        made.append(f"lms: {plural(refused, 'grade')} left empty because the submission was refused")
    unclear = sum(status.get((s, lab)) == "unclear" for s in students for lab in labs)
    if unclear:
        made.append(f"lms: {plural(unclear, 'grade')} left empty because it is not clear whether something came")
    for lab in labs:
        core, bonus = outlines[lab].points, outlines[lab].bonus
        if bonus:
            made.append(
                f"lms: a grade in {lab} is core and bonus together, up to {core + bonus:g} where 'Points Possible' "
                f"says {core:g}; marks-wide.csv has the two apart"
            )
    without = [student for student in students if not any(_canvas("", known.get(student, {}))[1:4])]
    if without:
        made.append(
            f"lms/canvas.csv: SIS Login ID holds the student's id for {_who(without, students)}; if that is not their "
            "login in Canvas, fill ID or SIS User ID from a gradebook exported there"
        )
    without = [student for student in students if not _any(known.get(student, {}), *MOODLE[:3])]
    if without:
        made.append(
            f"lms/moodle.csv: Username holds the student's id for {_who(without, students)}; if that is not their "
            "username in Moodle, fill Email address or ID number, and map by that column at import"
        )
    odd = [student for student in students if harmless(student) != student]
    if odd:
        made.append(
            f"lms: the ids {', '.join(map(repr, odd[:5]))} begin like a formula and have an apostrophe in front"
        )
    return made


def _who(some: Sequence[str], everybody: Sequence[str]) -> str:
    return "everybody" if len(some) == len(everybody) else f"{len(some)} of {len(everybody)} students"


def _any(person: Mapping[str, str], *columns: str) -> bool:
    return any(_of(person, column) for column in columns)


def _of(person: Mapping[str, str], column: str) -> str:
    return next((person[name] for name in _MEANS[column] if person.get(name)), "")


def _canvas(student: str, person: Mapping[str, str]) -> list[object]:
    name = _of(person, "Student") or ", ".join(
        part for part in (_of(person, "Last name"), _of(person, "First name")) if part
    )
    login = _of(person, "SIS Login ID")
    canvas = person.get("id", "") if {"sis user id", "sis login id"} & set(person) else ""  # else another system's
    ids = [_of(person, "ID") or canvas, _of(person, "SIS User ID"), login]
    if not any(ids):
        ids[2] = student
    return [name or student, *ids, _of(person, "Section")]


def _moodle(student: str, person: Mapping[str, str]) -> list[object]:
    user, number, mail, first, last = (_of(person, column) for column in MOODLE)
    return [user if user or number or mail else student, number, mail, first, last]


def _canvas_title(title: str) -> str:
    """Canvas reads a number in parentheses at the end of a heading as the assignment's id."""
    return title.rstrip(")").replace(" (", ": ") if title.endswith(")") else title
