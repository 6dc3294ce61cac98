"""Whose file this is, by the names that people, nbgrader, Canvas and Moodle give to files and folders."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Collection, Iterable
from dataclasses import dataclass

# Ann Lee_12345_assignsubmission_file_, a folder; or, flat, Ann Lee_12345_assignsubmission_file_lab.ipynb
_MOODLE = re.compile(r"^(?P<name>.+?)_(?P<user>\d+)_assignsubmission_[a-z]+(?:_(?P<file>.*))?$")
# leeann_LATE_12345_67890_latency-budget-1.ipynb: the family name, the given name, the user's id, the submission's id
_CANVAS = re.compile(r"^(?P<name>[^_]+)_(?P<late>LATE_)?(?P<user>\d+)_\d+_(?P<file>.+)$")
_SUFFIX = re.compile(r"(?i)(\.ipynb)?(\.\w{1,8})?$")
_AGAIN = re.compile(r"(?:\s*\(\d+\)|-\d{1,2})$")  # lab (1).ipynb, lab-1.ipynb: the second of its name

#: Longer names of folders make trouble on some systems.
LONGEST = 80
_RESERVED = {"con", "prn", "aux", "nul", *(f"com{n}" for n in range(10)), *(f"lpt{n}" for n in range(10))}


@dataclass(frozen=True)
class Claim:
    """Whose a file says it is. `known`: other names the same person may have on a list of students, the surest first;
    `file`: the file's own name, where the learning platform put something before it; `late`: as Canvas says; `guessed`:
    nothing but the file's own name says it, which may be any name."""

    student: str
    known: tuple[str, ...] = ()
    file: str = ""
    late: bool = False
    guessed: bool = False


def of_an_lms(name: str) -> bool:
    """Whether a learning platform gave this name."""
    return bool(_MOODLE.match(name) or _CANVAS.match(name)) or name == "submitted"


def claimed(first: str, labs: Collection[str], *, folder: bool) -> Claim:
    """Whose a file is by the first part of its path below the submissions: a folder, or the file itself."""
    found = _MOODLE.match(first)
    if found:
        return Claim(f"{found['name']}_{found['user']}", (found["user"], found["name"]), found["file"] or "")
    found = _CANVAS.match(first)
    if found:
        student = f"{found['name']}_{found['user']}"
        return Claim(student, (found["user"], found["name"]), found["file"], bool(found["late"]))
    if folder:
        return Claim(first)
    stem = _SUFFIX.sub("", first)
    for text in (stem, _AGAIN.sub("", stem)):
        for lab in sorted(labs, key=len, reverse=True):
            for pattern in (rf"(.+)[_\-. ]{re.escape(lab)}", rf"{re.escape(lab)}[_\-. ](.+)"):
                named = re.fullmatch(pattern, text, re.IGNORECASE)
                if named:
                    return Claim(named[1], file=first)
    return Claim(stem or first, file=first, guessed=True)


def on_the_list(claim: Claim, roster: Collection[str]) -> str:
    """The student as the list of students names them, else as the file does."""
    lowered: dict[str, list[str]] = {}
    for student in roster:
        lowered.setdefault(student.casefold(), []).append(student)
    for name in (claim.student, *claim.known):
        if name in roster:
            return name
        if len(lowered.get(name.casefold(), ())) == 1:
            return lowered[name.casefold()][0]
    return claim.student


def safe_names(students: Iterable[str]) -> dict[str, str]:
    """A name for each student that can be a folder on every system, and is nobody else's (case does not count)."""
    wanted: dict[str, list[str]] = {}
    for student in sorted(set(students)):
        wanted.setdefault(safe(student).casefold(), []).append(student)
    names: dict[str, str] = {}
    taken: set[str] = set(wanted)
    for same in wanted.values():
        exact = [student for student in same if safe(student) == student]
        for student in same:
            name = safe(student)
            if len(same) > 1 and not (len(exact) == 1 and student == exact[0]):
                digest = hashlib.sha256(student.encode("utf-8", "surrogatepass")).hexdigest()
                size = 6
                while f"{name}-{digest[:size]}".casefold() in taken:
                    size += 1
                name = f"{name}-{digest[:size]}"
                taken.add(name.casefold())
            names[student] = name
    return names


def safe(student: str) -> str:
    """A name that can be a folder on every system: letters, digits and . _ - @ +, no dot in front or at the end."""
    text = unicodedata.normalize("NFC", student)
    text = re.sub(r"[^\w.@+-]+", "-", text).lstrip(".-")[:LONGEST].rstrip(".")
    if text.split(".")[0].casefold() in _RESERVED:
        text = f"student-{text}"
    return text or "unnamed"
