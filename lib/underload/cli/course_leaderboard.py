"""`underload course leaderboard`: every student's policy on loads that nobody has seen, ranked."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

_EXAMPLES = """\
SUBMISSIONS is what `underload course grade` takes: a folder, an archive, a download of Canvas or Moodle; or one
notebook. Without it the lab's own policies are ranked alone.

  underload course leaderboard capacity submissions/ --secret ~/course.secret
  underload course leaderboard capacity my-labs/capacity.ipynb                   where would I stand?
  underload course leaderboard capacity submissions/ --secret ~/course.secret --codes
                                                                                 a board to show to the class
"""


def add_leaderboard(words: Any) -> None:
    """Add the word `leaderboard` to those of `underload course`."""
    parser = words.add_parser(
        "leaderboard",
        help="every student's policy on held-back loads, ranked",
        description=(
            "Runs the policy that each student wrote in LAB on loads that nobody has seen, the same for everybody,\n"
            "shut in and limited as when it is graded, beside the lab's own policies. Ranks them by paired\n"
            "differences with intervals: what cannot be told apart shares a place. What does not run is named with\n"
            "the reason."
        ),
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("lab", metavar="LAB", help="a lab that has a leaderboard, by name")
    parser.add_argument("submissions", nargs="?", type=Path, metavar="SUBMISSIONS", help="a folder, zip or notebook")
    parser.add_argument("--secret", type=Path, metavar="FILE", help="the class's secret: the loads are drawn from it")
    parser.add_argument("--students", type=Path, metavar="ROSTER.csv", help="the class, for whose a file is")
    parser.add_argument("--seeds", type=int, default=20, metavar="N", help="loads that each meets (default: 20)")
    parser.add_argument(
        "--confidence", type=float, default=0.95, metavar="C", help="of all intervals together (default: 0.95)"
    )
    parser.add_argument(
        "--seconds", type=float, default=20.0, metavar="S", help="processor seconds for one load (default: 20)"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="policies at a time (default: one a core)")
    parser.add_argument(
        "--codes", action="store_true", help="code names, made from the secret, in place of the students' names"
    )
    parser.add_argument("--labs", type=Path, metavar="DIR", help="a folder with labs of your own")
    parser.add_argument("--json", action="store_true", help="as JSON, and no progress bar")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Score, rank, and print the board."""
    from underload.course.leaderboard import as_json, as_text, code_name, leaderboard, renamed
    from underload.course.marks import LabError
    from underload.course.personal import read_secret
    from underload.course.roster import read_roster
    from underload.course.sandbox import Limits
    from underload.course.shelf import read_labs

    for option, value, least, most in (("--seconds", args.seconds, 0.1, 3600), ("--workers", args.workers, 1, 1024)):
        if value is not None and not least <= value <= most:
            raise LabError(f"{option} {value:g}: give a number from {least:g} to {most:g}")
    if args.codes and not args.secret:
        raise LabError("--codes needs --secret FILE: code names that anybody could work out would hide nobody")
    secret = read_secret(args.secret) if args.secret else b""
    ((name, source),) = read_labs([args.lab], args.labs).items()
    board = leaderboard(
        source,
        args.submissions,
        lab=name,
        secret=secret,
        seeds=args.seeds,
        confidence=args.confidence,
        roster=read_roster(args.students) if args.students else None,
        limits=dataclasses.replace(Limits(), check_seconds=args.seconds),
        workers=args.workers,
        progress=not args.json and sys.stderr.isatty(),
    )
    if args.codes:
        board = renamed(board, lambda student: code_name(secret, student))
    if args.json:
        from underload.cli import print_json

        print_json(as_json(board))
    else:
        print(as_text(board))
