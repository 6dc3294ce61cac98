"""Exports: the files learning platforms import, and nbgrader's own gradebook."""

from __future__ import annotations

import csv
import dataclasses
import io
import sys
from pathlib import Path
from typing import Any

import pytest
from made_up_results import LAB, crowd, lab_outline, outlines, part, refused, result

from underload.course.gradebook import NOT_INSTALLED, write_gradebook
from underload.course.lms import write_exports
from underload.course.results import Result
from underload.course.roster import read_roster
from underload.course.table import rows

ROSTER = """student,Student Name,SIS User ID,Section,Email address,First name,Last name,ID
ann,"Lee, Ann",000123,A,ann@example.org,Ann,Lee,4711
bob,"Ray, Bob",000124,B,bob@example.org,Bob,Ray,4712
"""


def export(tmp_path: Path, results: list[Result], roster: list[str] | None = None, people: Any = None) -> Any:
    made = write_exports(rows(results, outlines(), roster or []), outlines(), tmp_path, people)
    return made, {path.name: list(csv.reader(io.StringIO(path.read_text(encoding="utf-8")))) for path in made.files}


def people(tmp_path: Path, text: str = ROSTER) -> Any:
    path = tmp_path / "roster.csv"
    path.write_text(text, encoding="utf-8-sig")
    return read_roster(path).about


def test_canvas_gets_its_columns_in_order_and_points_possible_in_the_second_row(tmp_path: Path) -> None:
    results = [result("ann", why=1, further=3), result("bob", 0, 2, 0)]
    made, files = export(tmp_path, results, people=people(tmp_path))
    assert files["canvas.csv"] == [
        ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "The queue"],
        ["    Points Possible", "", "", "", "", "8"],
        ["Lee, Ann", "4711", "000123", "", "A", "10"],
        ["Ray, Bob", "4712", "000124", "", "B", "2"],
    ]
    [said] = made.said
    assert "core and bonus together, up to 11 where 'Points Possible' says 8" in said


def test_moodle_gets_a_column_to_find_students_by_and_a_grade_column(tmp_path: Path) -> None:
    _, files = export(tmp_path, [result("ann", why=2)], people=people(tmp_path))
    assert files["moodle.csv"] == [
        ["Username", "ID number", "Email address", "First name", "Last name", "The queue"],
        ["", "000123", "ann@example.org", "Ann", "Lee", "8"],
    ]


def test_ids_alone_go_where_a_login_goes_and_what_to_fill_is_said(tmp_path: Path) -> None:
    made, files = export(tmp_path, [result("ann", why=2)])
    assert files["canvas.csv"][2] == ["ann", "", "", "ann", "", "8"]
    assert files["moodle.csv"][1] == ["ann", "", "", "", "", "8"]
    assert files["plain.csv"] == [["student", LAB], ["ann", "8"]]
    assert any("canvas.csv: SIS Login ID holds the student's id for everybody" in text for text in made.said)
    assert any("moodle.csv: Username holds the student's id for everybody" in text for text in made.said)


def test_a_mark_that_is_not_final_is_empty_and_never_0(tmp_path: Path) -> None:
    results = [result("ann", why=None), refused("bob"), result("cleo", 0, 0, 0)]
    made, files = export(tmp_path, results, roster=["dan"])
    assert dict(files["plain.csv"][1:]) == {"dan": "0", "ann": "", "bob": "", "cleo": "0"}
    assert any("1 grade left empty until the open answers" in text for text in made.said)
    assert any("1 grade left empty because the submission was refused" in text for text in made.said)


def test_whoever_handed_something_in_has_no_0(tmp_path: Path) -> None:
    """A PDF, of which nobody can say which lab it should be; a folder of another name with the hand-out of dan."""
    other = dataclasses.replace(lab_outline(), lab="other", title="Other")
    both = {**outlines(), "other": other}
    strange = dataclasses.replace(result("Dan-Doe", why=1), named="dan")
    results = [result("ann", why=1), refused("kofi", "no notebook came; there is lab.pdf", lab=""), strange]
    results.append(dataclasses.replace(result("ann", why=1), lab="other"))
    found = rows(results, both, ["ann", "kofi", "dan", "eve"])
    made = write_exports(found, both, tmp_path)
    plain = {row[0]: row[1:] for row in csv.reader(io.StringIO((tmp_path / "plain.csv").read_text()))}
    assert plain["kofi"] == ["", ""] and plain["dan"] == ["", "0"] and plain["eve"] == ["0", "0"]
    assert [(row.lab, row.status) for row in found if row.student == "kofi"] == [(LAB, "refused"), ("other", "refused")]
    assert [row.status for row in found if row.student == "dan"] == ["unclear", "no submission"]
    assert any("2 grades left empty because the submission was refused" in text for text in made.said)
    assert any("1 grade left empty because it is not clear whether something came" in text for text in made.said)


def test_an_id_that_begins_like_a_formula_is_made_harmless_and_said(tmp_path: Path) -> None:
    made, files = export(tmp_path, [result("=cmd", why=0)])
    assert files["plain.csv"][1][0] == "'=cmd" and any("begin like a formula" in text for text in made.said)


def test_a_title_that_ends_in_parentheses_is_no_assignments_id_to_canvas(tmp_path: Path) -> None:
    named = {LAB: dataclasses.replace(lab_outline(), title="The queue (2)")}
    write_exports(rows([result("ann", why=0)], named), named, tmp_path)
    head = next(csv.reader(io.StringIO((tmp_path / "canvas.csv").read_text())))
    assert head[-1] == "The queue: 2"


def test_a_gradebook_exported_from_canvas_serves_as_a_roster(tmp_path: Path) -> None:
    text = (
        "Student,ID,SIS User ID,SIS Login ID,Section\n    Points Possible,,,,\n"
        '"Lee, Ann",101,s-1,ann,A\n"Student, Test",999,,test,A\n'
    )
    about = people(tmp_path, text)
    assert list(about) == ["ann"]
    _, files = export(tmp_path, [result("ann", why=1, further=3)], people=about)
    assert files["canvas.csv"][2][:5] == ["Lee, Ann", "101", "s-1", "ann", "A"]


def test_what_a_roster_says_is_kept_by_student(tmp_path: Path) -> None:
    semicolons = "\n\nUsername;Email\nann;ann@example.org\n"
    assert people(tmp_path, semicolons) == {"ann": {"username": "ann", "email": "ann@example.org"}}
    assert people(tmp_path, "ann\nbob\n") == {"ann": {}, "bob": {}}


# ---- nbgrader --------------------------------------------------------------------------------------------------------


def exported(folder: Path, book: Any) -> dict[str, dict[str, str]]:
    """What nbgrader's own CSV exporter makes of a gradebook, by student."""
    from nbgrader.plugins.export import CsvExportPlugin

    plugin = CsvExportPlugin()
    plugin.to = str(folder / "grades.csv")
    plugin.export(book)
    return {row["student_id"]: row for row in csv.DictReader(io.StringIO((folder / "grades.csv").read_text()))}


def test_nbgraders_own_export_gives_the_same_totals(tmp_path: Path) -> None:
    api = pytest.importorskip("nbgrader.api", reason="nbgrader is not installed")
    found = rows(crowd(12), outlines(), ["nobody"])
    assert write_gradebook(found, outlines(), tmp_path / "gradebook.db") == ""
    with api.Gradebook(f"sqlite:///{tmp_path / 'gradebook.db'}") as book:
        theirs = exported(tmp_path, book)
        assert set(theirs) == {row.student for row in found}
        for row in found:
            ours = (row.earned or 0.0) + (row.bonus or 0.0)
            assert float(theirs[row.student]["score"]) == pytest.approx(ours), row.student
            assert float(theirs[row.student]["max_score"]) == lab_outline().points
        waiting = sum(len(row.result.unmarked) for row in found if row.result and row.status == "graded")
        assert waiting and book.db.query(api.Grade).filter(api.Grade.needs_manual_grade).count() == waiting
        assert len(book.assignment_submissions(LAB)) == sum(row.status == "graded" for row in found)
        book.engine.dispose()


def test_scores_of_the_grader_and_of_a_person_and_comments_are_told_apart(tmp_path: Path) -> None:
    api = pytest.importorskip("nbgrader.api", reason="nbgrader is not installed")
    one = result("ann", 1, 4, 1.5, 3)
    empty = part("task-3-why", 0, answer="", said="nothing was written")
    one = dataclasses.replace(
        one, parts=tuple(dataclasses.replace(p, comment="How fast?") if p.manual else p for p in one.parts)
    )
    two = dataclasses.replace(result("bob"), parts=(empty,))
    known = {"ann": {"first name": "Ann", "last name": "Lee", "email": "ann@example.org"}}
    write_gradebook(rows([one, two], outlines()), outlines(), tmp_path / "g.db", known)
    with api.Gradebook(f"sqlite:///{tmp_path / 'g.db'}") as book:
        test = book.find_grade("task-1-check", LAB, LAB, "ann")
        assert (test.auto_score, test.manual_score, test.score, test.max_score) == (1, None, 1, 2)
        why = book.find_grade("task-3-why", LAB, LAB, "ann")
        assert (why.auto_score, why.manual_score, why.needs_manual_grade) == (None, 1.5, False)
        assert book.find_comment("task-3-why", LAB, LAB, "ann").comment == "How fast?"
        assert "0/1 one request" in book.find_comment("task-1-check", LAB, LAB, "ann").comment
        bonus = book.find_grade("further-1-check", LAB, LAB, "ann")
        assert (bonus.score, bonus.max_score, bonus.extra_credit) == (3, 0, 3)
        assert book.find_grade("task-3-why", LAB, LAB, "bob").auto_score == 0
        student = book.find_student("ann")
        assert (student.first_name, student.last_name, student.email) == ("Ann", "Lee", "ann@example.org")
        book.engine.dispose()


def test_the_gradebooks_tables_are_of_the_version_that_nbgrader_would_make(tmp_path: Path) -> None:
    api = pytest.importorskip("nbgrader.api", reason="nbgrader is not installed")
    import sqlite3

    from nbgrader.dbutil import _temp_alembic_ini  # noqa: F401  the reason the version is not asked of nbgrader

    write_gradebook(rows([result("ann")], outlines()), outlines(), tmp_path / "g.db")
    theirs = {table.name for table in api.Base.metadata.sorted_tables} | {"alembic_version"}
    database = sqlite3.connect(tmp_path / "g.db")
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    [(version,)] = database.execute("SELECT version_num FROM alembic_version").fetchall()
    database.close()
    assert tables == theirs
    folder = Path(api.__file__).with_name("alembic") / "versions"
    texts = [path.read_text() for path in folder.glob("*.py")]
    assert any(f"revision = '{version}'" in text for text in texts)
    assert not any(f"down_revision = '{version}'" in text for text in texts), "a later version follows it"


def test_writing_again_replaces_the_gradebook(tmp_path: Path) -> None:
    api = pytest.importorskip("nbgrader.api", reason="nbgrader is not installed")
    for student in ("ann", "bob"):
        write_gradebook(rows([result(student)], outlines()), outlines(), tmp_path / "g.db")
    with api.Gradebook(f"sqlite:///{tmp_path / 'g.db'}") as book:
        assert [student.id for student in book.students] == ["bob"]
        book.engine.dispose()
    assert [path.name for path in tmp_path.iterdir()] == ["g.db"]


def test_without_nbgrader_the_gradebook_is_skipped_and_how_to_get_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nbgrader", None)
    monkeypatch.setitem(sys.modules, "nbgrader.api", None)
    said = write_gradebook(rows([result("ann")], outlines()), outlines(), tmp_path / "g.db")
    assert said == NOT_INSTALLED and "make course" in said and "underload[course]" in said
    assert not (tmp_path / "g.db").exists()
