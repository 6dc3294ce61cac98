"""What changed between two hand-outs of a lab, told task by task."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from nbformat import NotebookNode

from underload.course.handout import handout
from underload.course.marks import regions
from underload.course.outline import outline, role
from underload.course.points import number
from underload.course.source import task_of, where

#: What a task consists of, in the words of the changelog.
_PIECES = {"text": "text", "answer": "code to start from", "test": "checks", "given": "given code", "show": "pictures"}


def contents(source: NotebookNode) -> dict[str, Any]:
    """A lab's tasks and points with a digest of each piece, as plain data to be kept and compared later.

    Of hidden checks there is a digest only, so that a record lying beside hand-outs gives nothing away.
    """
    lab = outline(source)
    pieces: dict[str, dict[str, list[str]]] = {}
    given = handout(source)
    for index, (cell, task) in enumerate(zip(given.cells, _tasks(source), strict=True)):
        of_task = pieces.setdefault(task, {})
        of_task.setdefault(role(cell), []).append(cell.source)
        for region in regions(source.cells[index].source, where(cell, index)):
            if region.kind == "hidden":
                of_task.setdefault("hidden", []).append("\n".join(region.lines))
    return {
        "title": lab.title,
        "points": lab.points,
        "bonus": lab.bonus,
        "tasks": {
            task.name: {"title": task.title, "parts": {part.name: part.points for part in task.parts}}
            for task in lab.tasks
        },
        "pieces": {
            task: {piece: _digest(texts) for piece, texts in of_task.items()} for task, of_task in pieces.items()
        },
    }


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What a student whose copy is the old one should know, one line a change; empty when they are the same."""
    return list(_differences(old, new))


def hidden_changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The tasks in both whose hidden checks are not what they were; students have no copy of these."""
    return [
        task
        for task in new["tasks"]
        if task in old["tasks"]
        and old["pieces"].get(task, {}).get("hidden") != new["pieces"].get(task, {}).get("hidden")
    ]


def worth(points: float) -> str:
    """'1 point', '2.5 points'."""
    return f"{number(points)} {'point' if points == 1 else 'points'}"


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    if old["title"] != new["title"]:
        yield f"the title is {new['title']!r} instead of {old['title']!r}"
    for what, key in (("core", "points"), ("bonus", "bonus")):
        if old[key] != new[key]:
            yield f"the {what} has {number(new[key])} points instead of {number(old[key])}"
    for task, was in old["tasks"].items():
        if task not in new["tasks"]:
            yield f"task {task} ({was['title']}) was taken out"
    for task, now in new["tasks"].items():
        was = old["tasks"].get(task)
        if was is None:
            yield f"task {task} ({now['title']}, {worth(sum(now['parts'].values()))}) is new"
            continue
        if was["title"] != now["title"]:
            yield f"task {task} is called {now['title']!r} instead of {was['title']!r}"
        for part in sorted(was["parts"].keys() | now["parts"].keys()):
            before, after = was["parts"].get(part), now["parts"].get(part)
            if before != after:
                if before is None:
                    yield f"task {task}: {part} is new, {worth(after)}"
                elif after is None:
                    yield f"task {task}: {part} was taken out"
                else:
                    yield f"task {task}: {part} is worth {worth(after)} instead of {number(before)}"
        changed = _changed(old["pieces"].get(task, {}), new["pieces"].get(task, {}))
        if changed:
            yield f"task {task}: {_listed(changed)} changed"
    rest = _changed(old["pieces"].get("", {}), new["pieces"].get("", {}))
    if rest:
        yield f"outside the tasks: {_listed(rest)} changed"
    both = [task for task in old["tasks"] if task in new["tasks"]]
    if both != [task for task in new["tasks"] if task in old["tasks"]]:
        yield "the tasks stand in another order"


def _changed(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return [words for piece, words in _PIECES.items() if old.get(piece) != new.get(piece)]


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _tasks(source: NotebookNode) -> list[str]:
    """The task each cell belongs to ("" for none): its own; for others, that of the section they stand in."""
    sections: list[list[int]] = [[]]
    for index, cell in enumerate(source.cells):
        if cell.cell_type == "markdown" and re.search(r"^#{1,2}\s", cell.source, re.MULTILINE):
            sections.append([])
        sections[-1].append(index)
    known = {task.name for task in outline(source).tasks}
    found = [""] * len(source.cells)
    for section in sections:
        own = {index: task for index in section if (task := task_of(source.cells[index])) in known}
        first = next((task for task in own.values() if task), "")
        for index in section:
            found[index] = own.get(index) or first
    return found


def _digest(texts: list[str]) -> str:
    return hashlib.sha256(json.dumps(texts, ensure_ascii=False).encode()).hexdigest()[:12]
