"""The files of a folder of submissions, wherever they lie: in folders, in zip archives, in archives within archives.

Nothing is unpacked and nothing is followed: an archive's members are read from it when they are wanted, each up to a
limit, so that neither a path in an archive nor its real size can do harm. Links, pipes and devices are named and not
opened.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from underload.course.marks import LabError
from underload.course.student import of_an_lms

#: Folders deeper than this, and more files than this of one student, are not looked at.
DEPTH = 12
FILES = 2_000
#: An archive within an archive is read into memory, up to this size.
INNER_ARCHIVE = 100_000_000

_IGNORED = {"__MACOSX", "__pycache__", "node_modules", "Thumbs.db", "desktop.ini"}


@dataclass(frozen=True)
class Arrival:
    """One file. `parts`: its path below the folder, an archive being one of them; `time`: when it was last changed, by
    its own word (seconds since 1970); `said`: why it cannot be read, "" when it can; `disk`: where it lies, for a file
    that is in no archive."""

    parts: tuple[str, ...]
    size: int = 0
    time: float = 0.0
    said: str = ""
    fetch: Callable[[int], bytes] | None = None
    disk: Path | None = None

    @property
    def name(self) -> str:
        return self.parts[-1]

    @property
    def shown(self) -> str:
        """The path as a message names it."""
        return "/".join(self.parts)

    def read(self, limit: int) -> bytes:
        """The content.

        Raises:
            LabError: it cannot be read, or is larger than `limit` bytes; the message has no path, the caller has.
        """
        if self.said or self.fetch is None:
            raise LabError(self.said or "it cannot be read")
        if self.size > limit:
            raise LabError(f"it has {megabytes(self.size)}; at most {megabytes(limit)} are read")
        try:
            data = self.fetch(limit + 1)
        except LabError:
            raise
        except Exception as error:  # zipfile raises whatever its decompressors raise
            raise LabError(f"it cannot be read: {getattr(error, 'strerror', None) or error}") from error
        if len(data) > limit:
            raise LabError(f"it is larger than it says; at most {megabytes(limit)} are read")
        return data


def megabytes(size: int) -> str:
    """100 MB, 0.3 MB: as a person writes a size."""
    return f"{size / 1e6:.3g} MB" if size < 1e9 else f"{size / 1e9:.3g} GB"


def arrivals(place: Path, *, deep: bool = True) -> list[Arrival]:
    """Every file below a folder, or in a zip archive of submissions, in the order of their names.

    deep: False for what lies in the folder itself and not below, archives unopened.

    Raises:
        LabError: there is no such folder or archive.
    """
    place = place.resolve()
    if place.is_file():
        about = place.stat()
        whole = Arrival((), about.st_size, about.st_mtime, "", _on_disk(place), place)
        found = list(_unpacked(whole, (), 0))
        if len(found) == 1 and found[0].said:
            raise LabError(f"{place.name}: {found[0].said}; give the folder of submissions, or a zip archive of it")
        return _limited(found)
    if not place.is_dir():
        raise LabError(f"no folder of submissions at {place}")
    if not deep:
        return list(_below(place, (), deep=False))
    return _limited(_below(place, (), lone=sum(not _ignored(name) for name in os.listdir(place)) == 1))


def _limited(found: Iterator[Arrival] | list[Arrival]) -> list[Arrival]:
    """At most FILES for each first part of a path, which is a student's."""
    kept: list[Arrival] = []
    count: dict[str, int] = {}
    for one in found:
        first = one.parts[0]
        count[first] = count.get(first, 0) + 1
        if count[first] <= FILES:
            kept.append(one)
        elif count[first] == FILES + 1:
            kept.append(Arrival((first, "…"), said=f"more than {FILES:,} files; the others were not looked at"))
    return kept


def _ignored(name: str) -> bool:
    return name.startswith(".") or name in _IGNORED


def _below(folder: Path, parts: tuple[str, ...], *, lone: bool = False, deep: bool = True) -> Iterator[Arrival]:
    try:
        with os.scandir(folder) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
    except OSError as error:
        yield Arrival((*parts, "…"), said=f"the folder cannot be read: {error.strerror}")
        return
    for entry in entries:
        if _ignored(entry.name):
            continue
        here = (*parts, readable(entry.name))
        try:
            about = entry.stat(follow_symlinks=False)
        except OSError as error:
            yield Arrival(here, said=f"it cannot be read: {error.strerror}")
            continue
        if stat.S_ISLNK(about.st_mode):
            yield Arrival(here, said="it is a link to another place, and links are not followed")
        elif stat.S_ISDIR(about.st_mode):
            if not deep:
                continue
            if len(here) > DEPTH:
                yield Arrival((*here, "…"), said=f"more than {DEPTH} folders deep; not looked at")
            else:
                yield from _below(Path(entry.path), here)
        elif not stat.S_ISREG(about.st_mode):
            yield Arrival(here, said="it is no file with content (a pipe or a device)")
        else:
            one = Arrival(here, about.st_size, about.st_mtime, "", _on_disk(Path(entry.path)), Path(entry.path))
            packed = deep and entry.name.lower().endswith(".zip")
            yield from _unpacked(one, parts, 1, lone=lone) if packed else (one,)


def readable(name: str) -> str:
    """A file's name as text that can be written anywhere: bytes that are no UTF-8 and control characters become �."""
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def _on_disk(path: Path) -> Callable[[int], bytes]:
    def fetch(limit: int) -> bytes:
        # what was a file when it was found may be a pipe by now, and opening that would wait for ever
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(path, flags), "rb") as file:
            return file.read(limit)

    return fetch


def _unpacked(archive: Arrival, parent: tuple[str, ...], depth: int, *, lone: bool = False) -> Iterator[Arrival]:
    """The members of a zip archive. One student's archive is like a folder of its name; the download of a whole class
    (by the names in it, or because there is nothing else and it holds several folders) is as if it were unpacked here.
    """

    def opened() -> zipfile.ZipFile:
        if archive.disk is not None:
            return zipfile.ZipFile(archive.disk)
        return zipfile.ZipFile(io.BytesIO(archive.read(INNER_ARCHIVE)))

    try:
        with opened() as whole:
            members = whole.infolist()
    except Exception as error:  # as above: whatever it raises, the file is what it is
        said = str(error) if isinstance(error, LabError) else "it is no zip archive that can be opened"
        yield Arrival(archive.parts, archive.size, archive.time, said)
        return
    kept = [member for member in members if not member.is_dir()]
    if any(member.filename.startswith("/") or ".." in _split(member.filename) for member in kept):
        yield Arrival(
            archive.parts, archive.size, archive.time, "it holds paths that lead out of it, and was left alone"
        )
        return
    tops = {_split(member.filename)[0] for member in kept if _split(member.filename)}
    folders = {_split(m.filename)[0] for m in kept if len(_split(m.filename)) > 1 and _is_notebook(m.filename)}
    class_download = depth == 0 or (
        not parent and depth == 1 and (any(of_an_lms(name) for name in tops) or (lone and len(folders) > 1))
    )
    base = parent if class_download else (archive.parts or ("submissions.zip",))
    for number, member in enumerate(sorted(kept, key=lambda one: one.filename)):
        parts = tuple(map(readable, _split(member.filename)))
        if not parts or any(_ignored(part) for part in parts):
            continue
        where = (*base, *parts)
        if number >= FILES and not class_download:
            yield Arrival((*base, "…"), said=f"more than {FILES:,} files in the archive; the others were not looked at")
            return
        one = Arrival(where, member.file_size, _when(member), "", _in_zip(opened, member))
        if stat.S_ISLNK(member.external_attr >> 16):
            yield Arrival(where, said="it is a link to another place, and links are not followed")
        elif member.flag_bits & 0x1:
            yield Arrival(where, said="it is encrypted")
        elif len(where) > DEPTH:
            yield Arrival(where, said=f"more than {DEPTH} folders deep; not looked at")
        elif not parts[-1].lower().endswith(".zip"):
            yield one
        elif depth >= 3:
            yield Arrival(where, said="an archive in an archive in an archive; not looked at")
        else:
            yield from _unpacked(one, where[:-1], max(2, depth + 1))


def _split(name: str) -> tuple[str, ...]:
    return tuple(part for part in name.replace("\\", "/").split("/") if part not in ("", "."))


def _is_notebook(name: str) -> bool:
    return name.lower().endswith(".ipynb")


def _in_zip(opened: Callable[[], zipfile.ZipFile], member: zipfile.ZipInfo) -> Callable[[int], bytes]:
    def fetch(limit: int) -> bytes:
        with _recent(opened) as whole, whole.open(member) as file:
            return file.read(limit)

    return fetch


@contextlib.contextmanager
def _recent(opened: Callable[[], zipfile.ZipFile]) -> Iterator[zipfile.ZipFile]:
    """The archive, opened. One is kept open, for its next member: all of them would be a class's number of files, or of
    archives in memory; none would read the list of members for every member."""
    with _ONE_AT_A_TIME:
        if not _held or _held[0][0] is not opened:
            whole = opened()
            while _held:
                _held.pop()[1].close()
            _held.append((opened, whole))
        yield _held[0][1]


_ONE_AT_A_TIME = threading.RLock()  # opening an archive in an archive reads from the outer one
_held: list[tuple[Callable[[], zipfile.ZipFile], zipfile.ZipFile]] = []


def _when(member: zipfile.ZipInfo) -> float:
    try:
        return datetime(*member.date_time).timestamp()  # an archive has local times, without a zone
    except (ValueError, OverflowError, OSError):
        return 0.0
