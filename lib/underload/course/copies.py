"""The reader's own copies of the labs: made when missing, never overwritten."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import underload
from underload.course.handout import digest, handout
from underload.course.marks import LabError
from underload.course.source import read_notebook, write_notebook

if TYPE_CHECKING:
    from nbformat import NotebookNode

State = Literal["made", "kept", "changed", "unknown"]


@dataclass(frozen=True)
class Copy:
    """One copy: `made` now; `kept` and current; `changed` when the lab has a newer hand-out than the one this copy was
    made from; `unknown` when the file in its place is no hand-out of ours."""

    name: str
    path: Path
    state: State

    def __str__(self) -> str:
        match self.state:
            case "made":
                return f"made    {self.path.name}"
            case "kept":
                return f"kept    {self.path.name}"
            case "changed":
                return (
                    f"kept    {self.path.name}: the lab has changed since this copy was made. "
                    "To work in the new one, rename yours and run this again."
                )
            case _:
                return f"kept    {self.path.name}: not made here, left alone"


def find_labs(start: Path | None = None) -> Path:
    """The folder with the labs' sources: $UNDERLOAD_LABS, else `labs/` above `start` (the working directory), else the
    one beside the library's own source.

    Raises:
        LabError: none of them exists.
    """
    named = os.environ.get("UNDERLOAD_LABS")
    if named:
        folder = Path(named)
        if not folder.is_dir():
            raise LabError(f"UNDERLOAD_LABS names {named!r}, which is no folder")
        return folder
    here = (start or Path.cwd()).resolve()
    beside = Path(underload.__file__).resolve().parents[2]
    for folder in [here, *here.parents, beside]:
        if (folder / "labs").is_dir() and (folder / "_toc.yml").is_file():
            return folder / "labs"
    raise LabError("no labs found: run this inside the project's folder, or set UNDERLOAD_LABS to its labs folder")


def refresh_copies(labs: Path, copies: Path) -> list[Copy]:
    """Make the hand-outs that are missing in `copies` from the sources in `labs`; touch no file that is there."""
    copies.mkdir(parents=True, exist_ok=True)
    found = []
    for path in sorted(labs.glob("*.ipynb")):
        made = handout(read_notebook(path))
        target = copies / path.name
        found.append(Copy(path.stem, target, _settle(target, made)))
    return found


def _settle(target: Path, made: NotebookNode) -> State:
    if not target.exists():
        write_notebook(made, target)
        return "made"
    try:
        given = read_notebook(target).metadata.get("underload", {}).get("handout")
    except LabError:
        return "unknown"
    if given is None:
        return "unknown"
    return "kept" if given == digest(made) else "changed"
