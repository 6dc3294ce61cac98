"""The labs that there are, by name: the book's, or an instructor's own in the same format."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nbformat import NotebookNode

from underload.course.copies import find_labs
from underload.course.marks import LabError
from underload.course.source import read_notebook


def read_labs(names: Iterable[str] = (), folder: Path | None = None) -> dict[str, NotebookNode]:
    """The sources of these labs, or of all there are, by name (the file's, without its ending).

    names: a path or an ending is taken off, since one may well paste a file's name.
    folder: where they are; None for the book's own.

    Raises:
        LabError: there is no such folder or lab (the message lists those there are), or a notebook cannot be read.
    """
    if folder is not None and not folder.is_dir():
        raise LabError(f"there is no folder {folder} to take labs from")
    place = folder or find_labs()
    there = {path.stem: path for path in sorted(place.glob("*.ipynb")) if not path.name.startswith(".")}
    wanted = list(dict.fromkeys(Path(name).name.removesuffix(".ipynb") for name in names)) or list(there)
    unknown = [name for name in wanted if name not in there]
    if unknown or not there:
        have = ", ".join(there) or "none"
        what = ", ".join(map(repr, unknown)) or "to be found"
        raise LabError(f"there is no lab {what} in {place.name}/; there are: {have}")
    return {name: read_notebook(there[name]) for name in wanted}
