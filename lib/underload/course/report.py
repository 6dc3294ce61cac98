"""Everything that is written about a class's results: tables, a page for the instructor, pages for the students, the
page to mark open answers in, exports. A pure function of the results and the marks, called again when either changes.

    OUT/report.html               the class: figures, what went wrong most, what to look at
    OUT/marks.csv marks-wide.csv  a row a student and lab; a row a student
    OUT/marks.json                everything
    OUT/feedback/STUDENT/LAB.html what each student gets back
    OUT/marking.html              open answers to mark; what it saves goes into OUT/marks/
    OUT/lms/                      canvas.csv, moodle.csv, plain.csv
    OUT/gradebook.db              nbgrader's gradebook, where nbgrader is installed
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from underload.course.feedback import feedback
from underload.course.gradebook import write_gradebook
from underload.course.lms import write_exports
from underload.course.marking import keep_marks, marking_page, merge, passed_over, read_marks
from underload.course.outline import Outline
from underload.course.render import file_name, plural, points, render
from underload.course.results import Result
from underload.course.similar import Similar, similar
from underload.course.stale import remove_stale
from underload.course.summary import Bin, Summary, summarise
from underload.course.table import (
    Row,
    left_open,
    lost_to,
    marks_csv,
    marks_json,
    reasons,
    rows,
    task_heading,
    wide_csv,
    write,
)

#: Pairs that the page shows side by side; the rest is counted.
_PAIRS = 60


@dataclass(frozen=True)
class Report:
    """What was written. `said`: what a person should know, a sentence each; `results`: with the marks in them."""

    folder: Path
    page: Path
    marking: Path | None
    labs: tuple[Summary, ...]
    similar: Similar
    results: tuple[Result, ...]
    said: tuple[str, ...]

    @property
    def unmarked(self) -> int:
        """Open answers that nobody has marked yet."""
        return sum(lab.unmarked for lab in self.labs)


def write_reports(
    results: Sequence[Result],
    outlines: Mapping[str, Outline],
    out: Path,
    *,
    marks: Sequence[Path] = (),
    roster: Sequence[str] = (),
    sources: Mapping[str, NotebookNode] | None = None,
    people: Mapping[str, Mapping[str, str]] | None = None,
    hidden_messages: bool = False,
) -> Report:
    """Write all of it into `out`; files of other names are left alone. What an earlier run wrote for students and
    submissions of these labs that are no longer there is removed.

    marks: files that the marking page saved; those in OUT/marks are read as well, and these are copied there, so that
        a later run has them without being told.
    roster: the ids of all students; those from whom nothing came are listed with 0.
    sources: the labs' notebooks. They tell hidden checks from visible ones, give the questions of open answers, and are
        what similar submissions are compared against; without them a report says less.
    people: what the roster says about each student (`roster.Roster.about`), for the learning platforms.
    hidden_messages: let the feedback show what hidden checks said.

    Raises:
        LabError: marks that do not fit the results (`marking.merge`), or two graded results of one student in one lab.
            Nothing was written then.
    """
    files = {path.resolve(): path for path in [*sorted((out / "marks").glob("*.json")), *marks]}
    given = [mark for path in files.values() for mark in read_marks(path)]
    merged = merge(results, given)
    found = rows(merged, outlines, roster)
    alike = similar(merged, outlines, sources)
    labs = tuple(
        summarise(
            outlines[lab],
            [row.result for row in found if row.lab == lab and row.result is not None],
            sum(row.status == "no submission" for row in found if row.lab == lab),
        )
        for lab in outlines
        if any(row.lab == lab for row in found)
    )
    keep_marks(marks, out / "marks")
    write(out / "marks.csv", marks_csv(found, outlines))
    write(out / "marks-wide.csv", wide_csv(found, outlines))
    write(out / "marks.json", marks_json(found, outlines, merged))
    written = set()
    for result in {id(row.result): row.result for row in found if row.result is not None}.values():
        place = _feedback_place(result)
        text = feedback(
            result,
            outlines.get(result.lab),
            source=(sources or {}).get(result.lab),
            marks=given,
            hidden_messages=hidden_messages,
        )
        written.add(write(out / place, text))
    remove_stale(out, merged, outlines, written)
    marking = marking_page(merged, outlines, given, sources)
    if marking is not None:
        write(out / "marking.html", marking)
    else:
        (out / "marking.html").unlink(missing_ok=True)  # of an earlier run: it would show answers that are gone
    exports = write_exports(found, outlines, out / "lms", people)
    missing = write_gradebook(found, outlines, out / "gradebook.db", people)
    noticed = (*passed_over(merged, given), *_strangers(found, roster))
    exported = tuple(text for text in (*exports.said, missing) if text)
    text = report_page(labs, found, merged, outlines, alike, exported, marking is not None, noticed)
    page = write(out / "report.html", text)
    said = (*noticed, *exported)
    return Report(out, page, out / "marking.html" if marking is not None else None, labs, alike, tuple(merged), said)


def _strangers(found: Sequence[Row], roster: Sequence[str]) -> list[str]:
    """Who handed in and is not on the roster, where there is one."""
    listed = set(roster)
    others = list(dict.fromkeys(row.student for row in found if row.student not in listed)) if listed else []
    if not others:
        return []
    some = ", ".join(others[:5]) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
    return [
        f"roster: {plural(len(others), 'submission is', 'submissions are')} of nobody on it ({some}); if one is of a "
        "student who has none, give its folder their id and grade again"
    ]


def _feedback_place(result: Result) -> Path:
    return Path("feedback") / file_name(result.student) / f"{file_name(result.lab) if result.lab else 'unknown'}.html"


def report_page(
    labs: Sequence[Summary],
    found: Sequence[Row],
    results: Sequence[Result],
    outlines: Mapping[str, Outline],
    alike: Similar,
    said: Sequence[str],
    marking: bool,
    noticed: Sequence[str] = (),
) -> str:
    """The instructor's page. said: about the exports; noticed: about marks and the roster."""
    sections = []
    for lab in labs:
        name = lab.outline.lab or next(lab_name for lab_name, one in outlines.items() if one is lab.outline)
        here = [row for row in found if row.lab == name]
        own = [row.result for row in here if row.result is not None]
        pairs = [pair for pair in alike.pairs if pair.lab == name]
        sections.append(
            {
                "name": name,
                "summary": lab,
                "picture": histogram(lab.bins, lab.outline.title or name),
                "rows": here,
                "refused": _refused(name, here, results),
                "absent": [row.student for row in here if row.status == "no submission"],
                "unclear": [(row.student, reasons(row)[0]) for row in here if row.status == "unclear"],
                "library": _library(own, lab.outline),
                "reasons": _by_student((who, f"{part}: {said}") for who, part, said in _reasons(own, lab.outline)),
                "noticed": _by_student(
                    (result.student, text)
                    for result in own
                    for text in (*(problem.said for problem in result.problems), *result.notes)
                ),
                "pairs": pairs[:_PAIRS],
                "more_pairs": max(0, len(pairs) - _PAIRS),
                "published": [one for one in alike.published if one.lab == name],
                "unmarked": _unmarked(own),
                "slowest": sorted((r for r in own if r.seconds > 0), key=lambda result: -result.seconds)[:5],
            }
        )
    return render(
        "report.html",
        sections=sections,
        lost=[result for result in results if result.lab not in {section["name"] for section in sections}],
        said=said,
        noticed=noticed,
        marking=marking,
        students=len({row.student for row in found}),
        place=lambda result: _feedback_place(result).as_posix(),
        quoted=lambda path: "/".join(piece.replace("%", "%25").replace("#", "%23") for piece in path.split("/")),
        remarks=_remarks,
        heading=task_heading,
        bin_name=bin_name,
    )


def _refused(lab: str, here: Sequence[Row], results: Sequence[Result]) -> list[Result]:
    """The refused submissions of a lab, and what was refused and may be one."""
    own = [result for result in results if result.lab == lab and result.status == "refused"]
    return own + [row.result for row in here if row.result is not None and row.result.lab != lab]


def _remarks(row: Row) -> list[str]:
    """The reasons of a row, without that open answers wait, which is so for nearly everybody and said further up."""
    waiting = {f"{part}: not marked yet" for part in row.result.unmarked} if row.result else set()
    return [text for text in reasons(row) if text not in waiting]


def _library(results: Sequence[Result], outline: Outline) -> list[tuple[str, str, str]]:
    """Parts whose reason names something the library ships of the task: student, part, reason."""
    names = {task.name: task.library for task in outline.tasks}
    return [
        (result.student, part.name, lost_to(part))
        for result in results
        for part in result.parts
        if part.said and any(name in part.said for name in names.get(part.task, ()))
    ]


def _reasons(results: Sequence[Result], outline: Outline) -> list[tuple[str, str, str]]:
    """All other points lost for something that is no check; that nothing was written says the table of tasks."""
    library = set(_library(results, outline))
    return [
        entry
        for result in results
        for part in result.parts
        if not left_open(part)
        and (said := lost_to(part))
        and (entry := (result.student, part.name, said)) not in library
    ]


def _by_student(found: Iterable[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    made: dict[str, dict[str, None]] = {}
    for student, text in found:
        made.setdefault(student, {})[text] = None
    return [(student, list(texts)) for student, texts in made.items()]


def _unmarked(results: Sequence[Result]) -> list[tuple[str, int]]:
    counts: dict[str, int] = {}
    for result in results:
        for part in result.unmarked:
            counts[part] = counts.get(part, 0) + 1
    return list(counts.items())


def histogram(found: Sequence[Bin], title: str) -> str:
    """The bins as a picture (SVG), with its description as text; the data stand in a table beside it."""
    total = sum(one.count for one in found)
    if not found or not total:
        return ""
    width, height, left, bottom, top = 640, 236, 44, 50, 14
    step = (width - left - 12) / len(found)
    most = max(one.count for one in found)
    tick = next(size for size in (1, 2, 5, 10, 20, 50, 100, 200, 500, 10**9) if most / size <= 5)
    scale = (height - bottom - top) / (tick * -(-most // tick))
    base = height - bottom
    drawn = []
    for level in range(0, tick * -(-most // tick) + 1, tick):
        y = base - level * scale
        drawn.append(f'<line x1="{left}" x2="{width - 12}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--line)"/>')
        drawn.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{level}</text>')
    every = 1 if len(found) <= 11 else 2 if len(found) <= 21 else 5
    for index, one in enumerate(found):
        x, tall = left + index * step, one.count * scale
        full = one.low == one.high
        if one.count:
            colour = "var(--good)" if full else "var(--accent)"
            drawn.append(
                f'<rect x="{x + 1.5:.1f}" y="{base - tall:.1f}" width="{step - 3:.1f}" height="{tall:.1f}" '
                f'fill="{colour}"><title>{html.escape(bin_name(one))}: {one.count}</title></rect>'
            )
        if full:
            drawn.append(f'<text x="{x + step / 2:.1f}" y="{base + 17}" text-anchor="middle">{points(one.low)}</text>')
        elif index % every == 0 and index < len(found) - (1 if every > 1 else 0):
            drawn.append(f'<text x="{x:.1f}" y="{base + 17}" text-anchor="middle">{points(one.low)}</text>')
    drawn.append(f'<text x="{(left + width) / 2:.0f}" y="{height - 6}" text-anchor="middle">points of the core</text>')
    words = f"Histogram of points, {title}: " + "; ".join(f"{bin_name(one)}: {one.count}" for one in found if one.count)
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(words, quote=True)}">'
        f"{''.join(drawn)}</svg>"
    )


def bin_name(one: Bin) -> str:
    """'12 to under 13', '20 (full marks)'."""
    if one.low == one.high:
        return f"{points(one.low)} (full marks)"
    return f"{points(one.low)} to under {points(one.high)}"
