"""`underload course verify`: whether a lab's grader is right."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any


def add_verify(words: Any) -> None:
    parser = words.add_parser(
        "verify",
        help="whether a lab's grader is right",
        description=(
            "For each lab: the hand-out earns nothing, the solution everything, and each typical wrong answer "
            "(tests/course/LAB.toml) exactly what it should, and none of another task's points."
        ),
        epilog="Example: underload course verify latency-budget",
    )
    parser.add_argument("labs_wanted", nargs="*", metavar="LAB", help="by name (default: all)")
    parser.add_argument("--labs", type=Path, metavar="DIR", help="a folder with labs of your own")
    parser.add_argument(
        "--wrong", type=Path, metavar="DIR", help="where the wrong answers lie (default: tests/course beside the labs)"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from underload.course import find_labs
    from underload.course.points import number
    from underload.course.shelf import read_labs
    from underload.course.verify import verify

    wrong_in = args.wrong
    found = []
    for name in read_labs(args.labs_wanted, args.labs):
        path = (args.labs or find_labs()) / f"{name}.ipynb"
        one = verify(path, wrong_in / f"{path.stem}.toml" if wrong_in else None)
        found.append(one)
        if args.json:
            continue
        if not one.parts and not one.complaints:
            print(f"{one.lab:<28} nothing in it is graded")
            continue
        print(
            f"{one.lab:<28} {one.parts} parts, {number(one.points)} + {number(one.bonus)} points; "
            f"{one.wrong} wrong and {one.harmless} harmless answers, {one.seconds_each:.2f} s each: "
            + (complaints(len(one.complaints)) if one.complaints else "as it should be")
        )
        for complaint in one.complaints:
            print(f"  {complaint}")
        if one.loads:
            print(f"  what is graded loads {', '.join(one.loads)}, which takes a second or more of each submission")
    if args.json:
        from underload.cli import print_json

        print_json({"labs": [dataclasses.asdict(one) for one in found]})
    return 1 if any(one.complaints for one in found) else 0


def complaints(count: int) -> str:
    """'1 complaint', '2 complaints'."""
    return f"{count} complaint{'' if count == 1 else 's'}"
