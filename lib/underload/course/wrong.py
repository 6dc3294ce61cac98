"""Typical wrong answers to a lab's tasks: what a grader is tested with.

They stand in one TOML file a lab, `tests/course/LAB.toml`:

    [[wrong]]
    task = "2"
    name = "ttft from the scheduling"        # its own within the file
    because = "thinks waiting in the queue is no part of the time to the first token"
    earns = { task-2-check = 1.5 }           # of each part of the task that is not full
    from = '''times[0] - line.arrival'''     # a piece of the task's solution that occurs once,
    to = '''times[0] - line.scheduled'''     # and what stands there instead

Several changes are `edits = [{ from = …, to = … }, …]`; a whole other answer is `answer = …`; `cell` names the answer
cell where the task has several. `uses` is the library's own version that the answer takes, which earns nothing.
A `[[harmless]]` entry is an answer written another way, which earns everything: it has the same keys and no `earns`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from underload.course.answers import solved_cell
from underload.course.marks import LabError
from underload.course.outline import name_of, outline
from underload.course.source import is_solution, task_of

_KEYS = {"task", "name", "because", "earns", "cell", "from", "to", "edits", "answer", "uses"}


@dataclass(frozen=True)
class Wrong:
    """One answer to one task. `earns` has every part of the task, `code` the cells that differ from the solution."""

    task: str
    name: str
    because: str
    earns: Mapping[str, float]
    code: Mapping[str, str]
    uses: str = ""
    harmless: bool = False

    def __str__(self) -> str:
        return f"task {self.task}, {self.name!r}"


def read_wrong(path: Path, source: NotebookNode) -> list[Wrong]:
    """The wrong and the harmless answers of a lab, in the order of the file.

    Raises:
        LabError: the file is missing or malformed, or an entry does not fit the lab; the message names the entry.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LabError(f"no wrong answers at {path}; every lab has at least six a task") from None
    except tomllib.TOMLDecodeError as error:
        raise LabError(f"{path.name} is no TOML: {error}") from error
    unknown = sorted(data.keys() - {"wrong", "harmless"})
    if unknown:
        raise LabError(f"{path.name}: {unknown[0]!r} is neither [[wrong]] nor [[harmless]]")
    found: list[Wrong] = []
    for kind in ("wrong", "harmless"):
        for number, entry in enumerate(data.get(kind, ()), 1):
            place = f"{path.name}, [[{kind}]] {number} ({entry.get('name', 'no name')})"
            one = _entry(entry, kind == "harmless", source, place)
            if any(other.name == one.name for other in found):
                raise LabError(f"{place}: the name occurs twice")
            found.append(one)
    return found


def _entry(entry: dict[str, Any], harmless: bool, source: NotebookNode, place: str) -> Wrong:
    for key in entry.keys() - _KEYS:
        raise LabError(f"{place}: unknown key {key!r}; the keys are {', '.join(sorted(_KEYS))}")
    for key in ("task", "name", "because"):
        if not str(entry.get(key, "")).strip():
            raise LabError(f"{place}: {key!r} is missing")
    task = str(entry["task"])
    cells = {
        name_of(cell): solved_cell(cell, index)
        for index, cell in enumerate(source.cells)
        if cell.cell_type == "code" and is_solution(cell) and task_of(cell) == task
    }
    if not cells:
        raise LabError(f"{place}: the lab has no answer cell in a task {task!r}")
    earns = {part.name: part.points for part in outline(source).parts if part.task == task and not part.manual}
    lost = dict(entry.get("earns", {}))
    if harmless and lost:
        raise LabError(f"{place}: a harmless answer earns everything; leave 'earns' out")
    for name, points in lost.items():
        if name not in earns:
            raise LabError(f"{place}: task {task} has no part {name!r}; it has {', '.join(earns)}")
        if not 0 <= points < earns[name]:
            raise LabError(
                f"{place}: {name} earns {points}, which is not from 0 to less than its {earns[name]:g} points"
            )
    uses = str(entry.get("uses", ""))
    if not harmless and not lost:
        raise LabError(f"{place}: a wrong answer loses something; say what it earns, as in earns = {{ PART = 1 }}")
    return Wrong(
        task, str(entry["name"]), str(entry["because"]), {**earns, **lost}, _code(entry, cells, place), uses, harmless
    )


def _code(entry: dict[str, Any], cells: dict[str, str], place: str) -> dict[str, str]:
    edits = list(entry.get("edits", ()))
    if "from" in entry or "to" in entry:
        edits.append({"from": entry.get("from"), "to": entry.get("to")})
    if ("answer" in entry) == bool(edits):
        raise LabError(f"{place}: give either 'from' and 'to' (or 'edits'), or a whole 'answer'")
    if "answer" in entry:
        name = _cell(entry, cells, place)
        return {name: str(entry["answer"])}
    changed: dict[str, str] = {}
    for edit in edits:
        old, new = edit.get("from"), edit.get("to")
        if not isinstance(old, str) or not isinstance(new, str) or not old:
            raise LabError(f"{place}: an edit has a 'from' and a 'to'")
        named = edit.get("cell", entry.get("cell"))
        if named is None:
            holding = [name for name in cells if old in changed.get(name, cells[name])]
            if len(holding) != 1:
                raise LabError(
                    f"{place}: {old!r} occurs in {len(holding)} answer cells of the task; name one by 'cell'"
                )
            named = holding[0]
        name = _cell({"cell": named}, cells, place)
        text = changed.get(name, cells[name])
        if text.count(old) != 1:
            raise LabError(f"{place}: {old!r} occurs {text.count(old)} times in {name}; it must occur once")
        changed[name] = text.replace(old, new)
    return changed


def _cell(entry: dict[str, Any], cells: dict[str, str], place: str) -> str:
    name = entry.get("cell")
    if name is None and len(cells) == 1:
        return next(iter(cells))
    if name not in cells:
        raise LabError(f"{place}: 'cell' is {name!r}; the task's answer cells are {', '.join(cells)}")
    return str(name)
