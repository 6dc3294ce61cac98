"""`underload labs`: which labs there are, and the answer to one task of one of them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from underload.course import LabError, find_labs, read_notebook, refresh_copies, solution, tasks

if TYPE_CHECKING:
    from nbformat import NotebookNode


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "labs",
        help="the book's labs, and the answer to a task",
        description="The labs that come with the book. `make lab` opens your own copies of them.",
    )
    words = parser.add_subparsers(dest="labs_command", metavar="COMMAND", required=True)
    listing = words.add_parser(
        "list", help="each lab with its title and tasks", description="Each lab with its title and its tasks."
    )
    listing.add_argument("--json", action="store_true", help="as JSON")
    listing.set_defaults(run=list_labs)
    answer = words.add_parser(
        "solution",
        help="the answer to one task",
        description="Prints the answer to one task, for a reader without a teacher. Try it yourself first.",
        epilog="Example: underload labs solution latency-budget 2",
    )
    answer.add_argument("lab", help="the lab's name, as `underload labs list` gives it")
    answer.add_argument("task", help="the task's number")
    answer.set_defaults(run=print_solution)
    copies = words.add_parser(
        "copy",
        help="your own copies to work in",
        description="Makes your own copies of the labs, without solutions. A copy that is there is never overwritten.",
    )
    copies.add_argument("folder", nargs="?", type=Path, default=Path("my-labs"), help="where (default: my-labs)")
    copies.set_defaults(run=copy_labs)


def list_labs(args: argparse.Namespace) -> None:
    labs = {path.stem: read_notebook(path) for path in sorted(find_labs().glob("*.ipynb"))}
    found = {name: (title_of(lab), tasks(lab)) for name, lab in labs.items()}
    if args.json:
        from underload.cli import print_json

        print_json({"labs": [{"lab": name, "title": title, "tasks": these} for name, (title, these) in found.items()]})
        return
    if not found:
        print("There are no labs in the folder.")
        return
    names, titles = (max(map(len, column), default=0) for column in (found, [title for title, _ in found.values()]))
    for name, (title, these) in found.items():
        what = f"tasks {', '.join(these)}" if these else "no tasks: to look at and play with"
        print(f"{name:<{names}}  {title:<{titles}}  {what}")


def title_of(lab: NotebookNode) -> str:
    """The title that a lab gives itself, else its first heading."""
    lines = (line for cell in lab.cells if cell.cell_type == "markdown" for line in cell.source.splitlines())
    heading = next((line.lstrip("# ").strip() for line in lines if line.startswith("# ")), "")
    about = lab.metadata.get("underload")
    title = about.get("title") if isinstance(about, dict) else None
    return " ".join(str(title or heading).split())


def print_solution(args: argparse.Namespace) -> None:
    folder = find_labs()
    # A path or a suffix is taken off, since a reader may well paste the file's name.
    name = Path(args.lab).name.removesuffix(".ipynb")
    path = folder / f"{name}.ipynb"
    if not path.is_file():
        have = ", ".join(sorted(other.stem for other in folder.glob("*.ipynb"))) or "none"
        raise LabError(f"there is no lab {name!r}; there are: {have}")
    print(solution(read_notebook(path), args.task))


def copy_labs(args: argparse.Namespace) -> None:
    done = refresh_copies(find_labs(), args.folder)
    print(f"Your copies of the labs are in {args.folder.name}/")
    for one in done:
        print(f"  {one}")
