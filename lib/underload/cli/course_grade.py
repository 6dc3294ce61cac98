"""`underload course grade`: points, feedback and a report for everything that came back."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import shlex
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from underload.course.grade import Grading
    from underload.course.results import Result

_EXAMPLES = """\
SUBMISSIONS is whatever you downloaded: a folder a student, nbgrader's submitted/, files named
STUDENT_LAB.ipynb, a download of Canvas or Moodle, zip archives of these, or one archive of them all.

  underload course grade submissions/ --out graded
  underload course grade submissions/ --out graded --lab latency-budget --students class.csv --secret secret.txt
  underload course grade submissions/ --out graded --labs my-tasks --labs labs     your own labs and the book's

The same command again goes on where it stopped, grades only what is new or has changed, and reads the marks of open
answers that lie in graded/marks/. Marks that lie elsewhere are named with --marks FILE.
"""


def add_grade(words: Any) -> None:
    """Add the word `grade` to those of `underload course`."""
    parser = words.add_parser(
        "grade",
        help="points, feedback and a report for everything that came back",
        description=(
            "Grades every notebook in SUBMISSIONS, each in a process of its own with limits on time, memory\n"
            "and files, and writes to DIR: report.html, marks.csv and marks.json, a page of feedback a student,\n"
            "and a page to mark open answers in. What cannot be graded is named there with its reason, and stops\n"
            "nothing else."
        ),
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("submissions", type=Path, metavar="SUBMISSIONS", help="a folder, or a zip archive of one")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the results go")
    parser.add_argument(
        "--lab",
        dest="labs_wanted",
        nargs="+",
        action="extend",
        default=[],
        metavar="LAB",
        help="only these (default: all)",
    )
    parser.add_argument(
        "--labs",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="a folder with labs of your own, instead of the book's; may be given again for another (labs: the book's)",
    )
    parser.add_argument("--secret", type=Path, metavar="FILE", help="the secret that the hand-outs were made with")
    parser.add_argument(
        "--students", type=Path, metavar="ROSTER.csv", help="the class: who handed in nothing is listed with 0 points"
    )
    parser.add_argument(
        "--marks", type=Path, nargs="+", action="extend", default=[], metavar="FILE", help="marks of open answers"
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="submissions at a time (default: one a core, less if memory is short)"
    )
    parser.add_argument(
        "--hidden-messages",
        action="store_true",
        help="let the feedback show what hidden checks said: once nobody can hand in any more",
    )
    parser.add_argument("--again", action="store_true", help="grade also what an earlier run has graded")
    parser.add_argument(
        "--cell-seconds", type=float, metavar="S", help="processor seconds that a cell may take (default: 60)"
    )
    parser.add_argument("--memory", type=float, metavar="GB", help="memory that a submission may take (default: 2)")
    parser.add_argument("--json", action="store_true", help="a summary as JSON, and no progress bar")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Grade, and say in a few lines what came out."""
    from underload.course.grade import grade
    from underload.course.marks import LabError
    from underload.course.personal import read_secret
    from underload.course.roster import read_roster
    from underload.course.sandbox import Limits
    from underload.course.shelf import read_labs

    limits = Limits()
    for option, value, least, most in (
        ("--workers", args.workers, 1, 1024),
        ("--cell-seconds", args.cell_seconds, 0.1, 86_400),
        ("--memory", args.memory, 0.1, 1024),
    ):
        if value is not None and not least <= value <= most:
            raise LabError(f"{option} {value:g}: give a number from {least:g} to {most:g}")
    if args.cell_seconds is not None:
        limits = dataclasses.replace(
            limits, cell_seconds=args.cell_seconds, check_seconds=min(limits.check_seconds, args.cell_seconds)
        )
    if args.memory is not None:
        limits = dataclasses.replace(limits, memory=int(args.memory * 2**30))
    for path in args.marks:
        if not path.is_file():
            raise LabError(f"--marks {path}: there is no such file; marking.html saves one")
    seconds = max(600.0, 10 * limits.cell_seconds)
    try:
        done = grade(
            args.submissions,
            args.out,
            labs=read_labs(args.labs_wanted, args.labs),
            secret=read_secret(args.secret) if args.secret else b"",
            workers=args.workers,
            limits=limits,
            seconds=seconds,
            again=args.again,
            marks=args.marks,
            roster=read_roster(args.students) if args.students else None,
            hidden_messages=args.hidden_messages,
            progress=not args.json,
        )
    except KeyboardInterrupt:
        kept = sum(1 for _ in (args.out / "results").rglob("*.json"))
        print(f"\n{kept} results are kept in {args.out}/; the same command again goes on from there", file=sys.stderr)
        raise
    if args.json:
        from underload.cli import print_json

        print_json(_summary(done, args.out))
    else:
        _print(done, args)
    return 0


def _again(args: argparse.Namespace) -> str:
    """The command as it was typed, to be typed again."""
    words = ["underload", "course", "grade", str(args.submissions), "--out", str(args.out)]
    if args.labs_wanted:
        words += ["--lab", *args.labs_wanted]
    for option, values in (
        ("--labs", args.labs),
        ("--secret", [args.secret]),
        ("--students", [args.students]),
        ("--workers", [args.workers]),
        ("--cell-seconds", [args.cell_seconds]),
        ("--memory", [args.memory]),
    ):
        for value in values:
            if value is not None:
                words += [option, f"{value:g}" if isinstance(value, float) else str(value)]
    if args.hidden_messages:
        words.append("--hidden-messages")
    return shlex.join([*words, "--marks", *map(str, args.marks)] if args.marks else words)


_ELSEWHERE = re.compile(r"it is a notebook of the lab '(.+?)', which is not graded here")


def _passed_over(results: tuple[Result, ...]) -> tuple[Counter[str], set[int]]:
    """How many notebooks came of each lab that is not graded in this run; and the results that are nothing else."""
    labs: Counter[str] = Counter()
    only: set[int] = set()
    for result in results:
        said = [] if result.status == "graded" else [result.said]
        found = [match[1] for text in (*said, *result.notes) if (match := _ELSEWHERE.search(text))]
        labs.update(found)
        if said and _ELSEWHERE.search(result.said) and all(_ELSEWHERE.search(note) for note in result.notes):
            only.add(id(result))
    return labs, only


def _summary(done: Grading, out: Path) -> dict[str, Any]:
    labs = []
    elsewhere, only = _passed_over(done.results)
    here = [result for result in done.results if id(result) not in only]
    for name, outline in done.outlines.items():
        mine = [result for result in here if result.lab == name]
        graded = [result for result in mine if result.status == "graded"]
        if not mine:
            continue
        labs.append(
            {
                "lab": name,
                "submissions": len(mine),
                "graded": len(graded),
                "refused": len(mine) - len(graded),
                "mean": statistics.fmean(result.earned for result in graded) if graded else None,
                "points": outline.points,
                "bonus": outline.bonus,
                "with_problems": sum(bool(result.problems) for result in graded),
                "unmarked": sum(len(result.unmarked) for result in graded),
            }
        )
    unknown = [result for result in here if result.lab not in done.outlines]
    return {
        "labs": labs,
        "unplaced": [{"student": one.student, "path": one.path, "said": one.said} for one in unknown],
        "passed_over": dict(sorted(elsewhere.items())),
        "reused": done.reused,
        "workers": done.workers,
        "seconds": round(done.seconds, 3),
        "report": str(out / "report.html"),
    }


def _print(done: Grading, args: argparse.Namespace) -> None:
    out: Path = args.out
    found = _summary(done, out)
    print(f"{'lab':<28}{'submissions':>12}{'refused':>9}{'mean':>8}{'of':>6}{'problems':>10}{'to mark':>9}")
    for one in found["labs"]:
        mean = "–" if one["mean"] is None else f"{one['mean']:.1f}"
        print(
            f"{one['lab']:<28}{one['submissions']:>12}{one['refused']:>9}{mean:>8}{one['points']:>6g}"
            f"{one['with_problems']:>10}{one['unmarked']:>9}"
        )
    unplaced = len(found["unplaced"])
    if unplaced:
        print(f"{'(of no lab)':<28}{unplaced:>12}{unplaced:>9}{'–':>8}")
    only = _passed_over(done.results)[1]
    refused = [result for result in done.results if result.status == "refused" and id(result) not in only]
    for result in refused[:10]:
        said = " ".join(result.said.split())
        print(f"  refused: {result.student}, {result.path}: {said[:200]}")
    if len(refused) > 10:
        print(f"  and {len(refused) - 10} more; all are in the report")
    if found["passed_over"]:
        print(
            "passed over: "
            + ", ".join(f"{count} of the lab {lab}" for lab, count in found["passed_over"].items())
            + f"; graded here: {', '.join(done.outlines)}"
        )
        if args.labs:
            print("  to grade the labs of several folders at once, name each of them: --labs DIR --labs labs")
    fresh = len(done.results) - done.reused
    again = f", {done.reused} as graded before" if done.reused else ""
    print(f"{fresh} results made now with {done.workers} at a time, in {done.seconds:.0f} s{again}")
    for sentence in done.report.said:
        print(f"note: {sentence}")
    unmarked = sum(one["unmarked"] for one in found["labs"])
    if unmarked:
        print(
            f"{unmarked} open answers wait for a person: open {out / 'marking.html'}, "
            f"save the marks into {out / 'marks'}{os.sep} (or name the file: --marks FILE), and type again:"
        )
        print(f"  {_again(args)}")
    print(f"report: {out / 'report.html'}")
