"""`underload course`: hand labs out, check one's own, grade what comes back."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from underload.cli.course_grade import add_grade
from underload.cli.course_leaderboard import add_leaderboard
from underload.cli.course_verify import add_verify

DESCRIPTION = """\
The labs as assignments, on one machine and without a server.

For a teacher, in this order:
  underload course list                        which labs there are, their tasks, points and minutes
  underload course release latency-budget --out handed-out --secret ~/course.secret --students roster.csv
                                               hand out: a folder for each student, with a README
  (collect)                                    put what comes back into one folder, in whatever shape it comes
  underload course grade submissions --out graded --secret ~/course.secret --students roster.csv
                                               grade: marks as CSV and JSON, a report, feedback for each student
  (mark)                                       open graded/marking.html, mark the open answers, save marks.json
  underload course grade submissions --out graded --secret ~/course.secret --students roster.csv --marks marks.json
                                               grade again: only what is new is run, the marks are merged in

For a student:
  underload course check my-labs/latency-budget.ipynb
                                               what the visible checks give, and what the grader would stumble over
"""

EPILOG = """\
--secret FILE is the secret of a class: from it come the inputs of hidden checks and, with --students, the numbers in
each student's copy. Keep that file, do not commit it, and name it again when you grade. Both options may be left out:
then everybody has the book's numbers.
Each command explains itself: underload course COMMAND --help.
"""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "course",
        help="labs as assignments: hand out, check, grade",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    words = parser.add_subparsers(title="commands", dest="course_command", metavar="COMMAND", required=True)
    _add_list(words)
    _add_release(words)
    add_grade(words)
    add_leaderboard(words)
    _add_gradescope(words)
    _add_check(words)
    add_verify(words)


def _add_labs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--labs", type=Path, metavar="DIR", help="a folder with labs of your own, in the same format")


def _add_list(words: Any) -> None:
    parser = words.add_parser(
        "list",
        help="each lab's tasks, points and minutes",
        description="Each lab with its tasks: points (bonus with a +), minutes, open answers, and whether it has a "
        "SEED, from which every student gets numbers of their own.",
        epilog="Example: underload course list --labs ~/my-own-labs",
    )
    _add_labs(parser)
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=run_list)


def _add_release(words: Any) -> None:
    parser = words.add_parser(
        "release",
        help="hand labs out",
        description=(
            "Writes the hand-outs: no solutions, no hidden checks, no outputs; with a README for students and the "
            "version in the first cell. Again into the same folder, it says what changed and what to tell students "
            "whose copy is older (CHANGES.md). Files that it did not write, it does not touch."
        ),
        epilog="Example: underload course release latency-budget --out handed-out --secret ~/course.secret "
        "--students roster.csv --deadline 'Friday, 4 December, noon'",
    )
    parser.add_argument("wanted", nargs="*", metavar="LAB", help="by name (default: all that have points)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the hand-outs go")
    _add_labs(parser)
    parser.add_argument(
        "--secret", type=Path, metavar="FILE",
        help="your class's secret, made if there is none: hidden inputs and students' numbers come from it",
    )  # fmt: skip
    parser.add_argument(
        "--students", type=Path, metavar="ROSTER.csv",
        help="a copy for each of them, with numbers of their own; the column `student`, else the first",
    )  # fmt: skip
    parser.add_argument("--deadline", default="", metavar="TEXT", help="until when, for the README")
    parser.add_argument(
        "--book", default="", metavar="TEXT", help="where students get the book's folder from, for the README"
    )
    parser.add_argument(
        "--rules", type=Path, metavar="FILE.md", help="your rules on getting help, instead of the book's"
    )
    parser.set_defaults(run=run_release)


def _add_gradescope(words: Any) -> None:
    parser = words.add_parser(
        "gradescope",
        help="an autograder for Gradescope",
        description=(
            "Writes an autograder for one lab: the zip to upload under Configure Autograder. It holds the lab with "
            "its hidden checks, this library and the pinned packages, and grades with the code of `course grade`."
        ),
        epilog="Example: underload course gradescope latency-budget --out latency-budget-autograder.zip",
    )
    parser.add_argument("lab", metavar="LAB", help="by name")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.zip", help="the zip to write")
    _add_labs(parser)
    parser.add_argument("--secret", type=Path, metavar="FILE", help="the secret that the lab was handed out with")
    parser.set_defaults(run=run_gradescope)


def _add_check(words: Any) -> None:
    parser = words.add_parser(
        "check",
        help="for students: check your notebook before you hand it in",
        description=(
            "Runs your notebook from a clean start in the way the grader does, with the checks that you can see. "
            "Lists the points they give, and what the grader would stumble over. Nothing is changed or sent."
        ),
        epilog="Example: underload course check my-labs/latency-budget.ipynb\n\n"
        "Exit codes: 0 it can be handed in, 1 something in it is broken, 2 it is no notebook of a lab.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("notebook", type=Path, metavar="NOTEBOOK", help="your .ipynb file")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=run_check)


# ---- what they do -------------------------------------------------------------------------------------------------


def run_list(args: argparse.Namespace) -> None:
    from underload.course.outline import outline
    from underload.course.personal import seed_of
    from underload.course.points import number
    from underload.course.shelf import read_labs

    found = [(name, outline(source), seed_of(source)) for name, source in read_labs(folder=args.labs).items()]
    if args.json:
        from underload.cli import print_json

        print_json({"labs": [_lab_json(name, lab, seed is not None) for name, lab, seed in found]})
        return
    for name, lab, seed in found:
        if not lab.parts:
            print(f"{name}: {lab.title}; nothing in it is graded\n")
            continue
        bonus = f" + {number(lab.bonus)}" if lab.bonus else ""
        own = "each student can have numbers of their own" if seed is not None else "the same numbers for everybody"
        print(f"{name}: {lab.title}; {number(lab.points)}{bonus} points, {lab.minutes or '?'} minutes; {own}")
        width = max(len(task.title) for task in lab.tasks)
        for task in lab.tasks:
            points = ("+" if task.further else "") + number(task.points)
            open_ = sum(part.points for part in task.parts if part.manual)
            said = f"   {number(open_)} of them for an open answer" if open_ else ""
            minutes = f"{task.minutes} min" if task.minutes else ""
            print(f"  {task.name:>3}  {task.title:<{width}}  {points:>5}  {minutes:>7}{said}".rstrip())
        print()


def _lab_json(name: str, lab: Any, seeded: bool) -> dict[str, Any]:
    return {
        "lab": name,
        "title": lab.title,
        "minutes": lab.minutes,
        "points": lab.points,
        "bonus": lab.bonus,
        "seed": seeded,
        "tasks": [
            {
                "task": task.name,
                "title": task.title,
                "goal": task.goal,
                "minutes": task.minutes,
                "points": task.points,
                "further": task.further,
                "library": task.library,
                "parts": [{"part": part.name, "points": part.points, "open": part.manual} for part in task.parts],
            }
            for task in lab.tasks
        ],
    }


def run_release(args: argparse.Namespace) -> None:
    from underload.course import LabError
    from underload.course.outline import outline
    from underload.course.personal import read_secret
    from underload.course.release import advice, release
    from underload.course.roster import read_roster
    from underload.course.shelf import read_labs

    labs = read_labs(args.wanted, args.labs)
    if not args.wanted:
        labs = {name: source for name, source in labs.items() if outline(source).parts}
        if not labs:
            raise LabError("none of these labs has points, so there is nothing to hand in")
    students = read_roster(args.students).students if args.students else ()
    if students and not args.secret:
        raise LabError("--students needs --secret FILE: every student's numbers are drawn from it")
    rules = _read_text(args.rules) if args.rules else None
    secret, new = b"", False
    if args.secret:
        if args.out.resolve() in args.secret.resolve().parents:
            raise LabError(f"the secret {args.secret} would lie among the hand-outs; name a place outside {args.out}")
        new = not args.secret.exists()
        secret = read_secret(args.secret, make=True)
    try:
        done = release(
            labs, args.out, secret=secret, students=students, deadline=args.deadline, book=args.book, rules=rules
        )
    except LabError:
        if new:
            args.secret.unlink()  # nothing was handed out with it
        raise
    if new:
        print(f"A new secret is in {args.secret}: keep it, do not commit it, and name it again when you grade.")
    if students:
        print(f"{len(students)} students, {students[0]} to {students[-1]}:")
    for one in done.labs:
        where = args.out / one.lab if not students else args.out / "STUDENT" / one.lab
        print(f"{one.lab}, {one.version[:8]}, {one.worth}: {_state(one)}; {where}{'/'}")
    for path in done.kept:
        print(f"kept {path}: it was edited since")
    if done.gone:
        print(f"not on the roster any more, folders left: {', '.join(done.gone)}")
    for one in done.labs:
        if one.hidden:
            print(f"{one.lab}: hidden checks of task {', '.join(one.hidden)} changed; no student has a copy of them")
        if one.state == "changed":
            print(f"\nCHANGED: {one.lab}. Students may have copies of {one.since}. Tell them:\n")
            print("\n".join(f"    {line}" for line in advice(one).splitlines()))
    print(f"\nWhat was handed out when: {args.out / 'CHANGES.md'}")


def _state(one: Any) -> str:
    from underload.course.release import copies

    if one.state == "first":
        return "handed out"
    new = f", {copies(one.new)}" if one.new else ""
    return (f"unchanged since {one.date}" if one.state == "unchanged" else f"replaces {one.since}") + new


def _read_text(path: Path) -> str:
    from underload.course import LabError

    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise LabError(f"there is no file {path}") from None
    except UnicodeDecodeError as error:
        raise LabError(f"{path} is no UTF-8 text ({error})") from error


def run_gradescope(args: argparse.Namespace) -> None:
    from underload.course.gradescope import write_autograder
    from underload.course.personal import read_secret
    from underload.course.shelf import read_labs

    (name, source), *_ = read_labs([args.lab], args.labs).items()
    secret = read_secret(args.secret) if args.secret else b""
    said = write_autograder(source, name, args.out, secret=secret)
    print(f"{args.out}: {said}")


def run_check(args: argparse.Namespace) -> int:
    from underload.course.check import as_json, as_text, check

    if not args.json and sys.stderr.isatty():
        print("Running the notebook from a clean start …", file=sys.stderr)
    found = check(args.notebook)
    if args.json:
        from underload.cli import print_json

        print_json(as_json(found))
    else:
        print(as_text(found))
    return 1 if found.broken else 0
