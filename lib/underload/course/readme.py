"""The README that lies beside a hand-out: set-up, checking, handing in, points, help, limits."""

from __future__ import annotations

from pathlib import Path
from string import Template

from underload.course.changes import worth
from underload.course.outline import Outline
from underload.course.points import number

_HERE = Path(__file__).parent


def student_readme(
    lab: Outline,
    *,
    date: str,
    version: str,
    personal: bool,
    deadline: str = "",
    book: str = "",
    rules: str | None = None,
) -> str:
    """The README for the students of one lab, as Markdown.

    lab.lab must be the name under which the notebook is handed out.
    date, version: as the notebook's first cell says them.
    personal: whether the copy has numbers of the student's own.
    deadline: until when to hand in, in words; "" leaves the line out.
    book: where students get the book's folder from, such as the address of a repository; "" tells them to ask.
    rules: the section on getting help, as Markdown; None for the book's own.
    """
    from underload.course.sandbox import Limits

    limits = Limits()
    own = rules if rules is not None else (_HERE / "help_rules.md").read_text(encoding="utf-8")
    return Template((_HERE / "student_readme.md").read_text(encoding="utf-8")).substitute(
        title=lab.title or lab.lab,
        lab=lab.lab,
        work=_work(lab),
        deadline=f"\n**Hand in by {deadline}.**\n" if deadline else "",
        book=f"from {book.strip()}" if book.strip() else "your teacher says from where",
        outputs=_OPEN_OUTPUTS if any(part.manual for part in lab.parts) else "Outputs need not be in it.",
        date=date,
        version=version,
        points=_points(lab),
        open=_open(lab),
        library=_LIBRARY if any(task.library for task in lab.tasks) else "",
        personal=_PERSONAL if personal else "",
        time=_time(lab),
        rules=own.strip(),
        cell_seconds=number(limits.cell_seconds),
        check_seconds=number(limits.check_seconds),
        memory=number(round(limits.memory / 2**30, 1)),
        output=f"{limits.output:,}",
        file_size=number(round(limits.file_size / 2**20)),
    )


_PERSONAL = """
**Your numbers are your own.**
The line `SEED = …` near the top is another one in every copy, and some answers depend on it.
Leave it as it is: an answer with another student's numbers is a wrong one.
"""
_OPEN_OUTPUTS = (
    "Leave the outputs in: the grader makes its own, and the person who reads your open answers sees the numbers that "
    "you write about."
)
_LIBRARY = (
    "- **The library's own version.** Some tasks build what `underload` already has; their text names it. "
    "Compare with it as much as you like, but an answer that calls it earns nothing for that task.\n"
)


def _work(lab: Outline) -> str:
    core = [task for task in lab.tasks if not task.further]
    text = f"A lab of {len(core)} {'task' if len(core) == 1 else 'tasks'} and {worth(lab.points)}"
    if lab.minutes:
        text += f", about {lab.minutes} minutes"
    if lab.bonus:
        text += f"; *Further* tasks give up to {worth(lab.bonus)} on top"
    return text + "."


def _points(lab: Outline) -> str:
    rows = ["| task | points | minutes |", "|---|---|---|"]
    for task in lab.tasks:
        title = task.title.replace("|", "\\|")
        name = f"Further: {title}" if task.further else f"{task.name}. {title}"
        worth = f"{number(task.points)} on top" if task.further else number(task.points)
        rows.append(f"| {name} | {worth} | {task.minutes or '–'} |")
    return "\n".join(rows) + "\n"


def _open(lab: Outline) -> str:
    """The line on open answers, where the lab asks for one."""
    tasks = list(dict.fromkeys(part.task for part in lab.parts if part.manual))
    if not tasks:
        return ""
    where = "task" if len(tasks) == 1 else "tasks"
    return f"- **Open answers** ({where} {', '.join(tasks)}) are read by a person.\n"


def _time(lab: Outline) -> str:
    if not lab.minutes:
        return "The lab's first cell says how long it takes."
    extra = sum(task.minutes or 0 for task in lab.tasks if task.further)
    text = f"About {lab.minutes} minutes"
    if extra:
        text += f" for the core, and {extra} more for the *Further* tasks"
    return text + ". Each task says its own time."
