"""The labs that there are, by name: the book's, or an instructor's own in the same format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from nbformat import NotebookNode

from underload.course.copies import find_labs
from underload.course.marks import LabError
from underload.course.source import read_notebook


def read_labs(names: Iterable[str] = (), folder: Path | Sequence[Path] | None = None) -> dict[str, NotebookNode]:
    """The sources of these labs, or of all there are, by name (the file's, without its ending).

    names: a path or an ending is taken off, since one may well paste a file's name.
    folder: where they are, also several; None for the book's own.

    Raises:
        LabError: there is no such folder or lab (the message lists those there are), two folders have a lab of one
            name, or a notebook cannot be read.
    """
    places = [folder] if isinstance(folder, Path) else list(folder or [find_labs()])
    there: dict[str, Path] = {}
    for place in dict.fromkeys(path.resolve() for path in places):
        if not place.is_dir():
            raise LabError(f"there is no folder {place} to take labs from")
        for path in sorted(place.glob("*.ipynb")):
            if path.name.startswith("."):
                continue
            if path.stem in there:
                raise LabError(f"two labs are called {path.stem}: {there[path.stem]} and {path}; rename one of them")
            there[path.stem] = path
    wanted = list(dict.fromkeys(Path(name).name.removesuffix(".ipynb") for name in names)) or list(there)
    unknown = [name for name in wanted if name not in there]
    if unknown or not there:
        have = ", ".join(there) or "none"
        what = ", ".join(map(repr, unknown)) or "to be found"
        where = " or ".join(f"{place.resolve().name}/" for place in places)
        raise LabError(f"there is no lab {what} in {where}; there are: {have}")
    return {name: read_notebook(there[name]) for name in wanted}
