"""Whether a lab's grader is right: the hand-out earns nothing, the solution everything, and typical wrong answers what
they should, and no other task's points with them.

A wrong answer runs from the lab's state before its task: one process goes through the solution once and is forked
where a task begins, so that a wrong answer costs a fork and the cells that it can reach: its own task's, and what reads
a name that they bind, however indirectly. Before the first of them that process goes once through all solutions and
tests, so that what the checks remember is in memory; this run also says what grading the lab takes, and what it loads.
The first wrong answer of each task runs with everything after it, so that a task that reaches others by another way is
noticed too. Of each lab one wrong answer is graded end to end besides, as a submission.

The watch over library calls, under which every call in a test costs more, is on where it may find something or be
wrong: in the tests of the solution, of a task's first wrong answer, of the harmless ones, and of those that are to be
found out. The solution's marks are those that the run under nbval stored and compared; here they are read.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from nbformat import NotebookNode

from underload.course.answers import solved
from underload.course.assemble import Step, as_python, assemble, bound, given_names
from underload.course.attempt import Root, load_library
from underload.course.handout import handout
from underload.course.inspection import faults
from underload.course.marks import LabError
from underload.course.outline import Outline, name_of, outline
from underload.course.points import number
from underload.course.process import Limits, Process
from underload.course.source import read_notebook
from underload.course.wrong import Wrong, read_wrong

#: Wrong answers that a task needs before its grader counts as tried.
ENOUGH = 6
#: Hidden inputs that are drawn with each of these must give the solution full marks.
SECRETS = (b"", b"one class", b"another class")
#: What takes a second or more to load, once a submission, and only shows things or runs a model.
HEAVY = ("ipywidgets", "matplotlib", "scipy", "torch")


@dataclass
class Verified:
    """What verifying one lab found: `complaints` is empty for a sound one.

    once: processor seconds of all its solutions and tests, run once; loads: what of `HEAVY` the lab's cells bring
    (what an answer may not use is loaded whatever they do).
    """

    lab: str
    complaints: list[str] = field(default_factory=list)
    wrong: int = 0
    harmless: int = 0
    parts: int = 0
    points: float = 0.0
    bonus: float = 0.0
    seconds: float = 0.0
    seconds_each: float = 0.0
    once: float = 0.0
    loads: tuple[str, ...] = ()


def verify(path: Path, wrong: Path | None = None, *, workers: int = 2) -> Verified:
    """Verify one lab. `wrong`: its wrong answers (default: ../tests/course/LAB.toml beside the lab's folder).

    Raises:
        LabError: the lab or its wrong answers cannot be read at all.
    """
    began = time.perf_counter()
    source = read_notebook(path)
    found = Verified(path.stem, [f"as a source: {fault}" for fault in faults(source)])
    if found.complaints:
        return found
    lab = outline(source)
    found.parts, found.points, found.bonus = len(lab.parts), lab.points, lab.bonus
    if not lab.parts:
        return found
    answers = read_wrong(wrong or default_wrong(path), source)
    found.wrong = sum(not one.harmless for one in answers)
    found.harmless = len(answers) - found.wrong
    found.complaints += _enough(source, lab, answers)
    found.complaints += stored_marks(source, lab)
    try:
        with Root(source, Limits()) as root:
            found.complaints += _run_all(root, source, answers, workers, found)
            found.complaints += _end_to_end(root, source, answers)
    except LabError as error:
        found.complaints.append(str(error))
    found.seconds = time.perf_counter() - began
    return found


def default_wrong(path: Path) -> Path:
    """Where a lab's wrong answers lie."""
    return path.resolve().parent.parent / "tests" / "course" / f"{path.stem}.toml"


def _enough(source: NotebookNode, lab: Outline, answers: Sequence[Wrong]) -> Iterator[str]:
    for task in lab.tasks:
        if all(part.manual for part in task.parts):
            continue
        count = sum(one.task == task.name and not one.harmless for one in answers)
        if count < ENOUGH:
            yield f"task {task.name} has {count} wrong answers; it needs {ENOUGH}"


def stored_marks(source: NotebookNode, lab: Outline) -> Iterator[str]:
    """Parts whose stored output, which the run under nbval compares, is not their full points."""
    cells = {name_of(cell): cell for cell in source.cells}
    for part in lab.parts:
        if part.manual:
            continue
        said = [
            output.data.get("text/plain", "")
            for output in cells[part.name].outputs
            if output.output_type == "execute_result"
        ]
        if said != [number(part.points)]:
            yield (
                f"the stored run gives {part.name} {' '.join(said) or 'nothing'} of {number(part.points)} points; "
                f"run python -m underload.course.store labs/{lab.lab}.ipynb"
            )


def _run_all(
    root: Root, source: NotebookNode, answers: Sequence[Wrong], workers: int, found: Verified
) -> Iterator[str]:
    lab, names = root.outline, given_names(source)
    steps = assemble(source).steps
    reads = [_reads(step.source) for step in steps]
    full = {part.name: part.points for part in lab.parts if not part.manual}
    begins = len(root.steps)
    untouched = assemble(source, handout(source)).steps
    with root.fork() as blank:
        earned = _go(blank, untouched[begins:], lab, names, watched=lambda step: True)
    for name, (points, _) in earned.items():
        if points:
            yield f"the hand-out earns {number(points)} points in {name}; it must earn 0"
    with root.fork(shut_in=False) as process, ThreadPoolExecutor(workers) as pool:
        patience = len(steps) * process.limits.cell_seconds
        rehearsed = process.run(_rehearsal(steps[begins:]), name="rehearsal", seconds=patience)
        if rehearsed.ended != "done":
            yield f"all solutions and tests in one process: {rehearsed.error}"
        found.once = rehearsed.seconds
        loads = rehearsed.output.split()
        found.loads = tuple(set(loads) - set(_brought(lab))) if loads else ()
        seen: set[str] = set()
        spent = 0.0
        for index, step in enumerate(steps[begins:], begins):
            if step.role == "answer" and step.task not in seen:
                seen.add(str(step.task))
                mine = [one for one in answers if one.task == step.task]
                rests = [
                    steps[index:] if place == 0 else reached(one, steps, reads, index) for place, one in enumerate(mine)
                ]
                began = time.perf_counter()
                looks = [one.harmless or place == 0 for place, one in enumerate(mine)]
                tried = pool.map(
                    lambda one, rest, look: list(_try(process, one, rest, lab, names, full, look)), mine, rests, looks
                )
                for one, complaints in zip(mine, tried, strict=True):
                    yield from (f"{one}: {complaint}" for complaint in complaints)
                spent += time.perf_counter() - began
            if step.role == "test":
                part = lab.part(step.name)
                for secret in SECRETS:
                    library = None if secret else _library(lab, part.task)
                    tested = process.test(step.source, name=step.name, library=library, given=names, hidden_seed=secret)
                    if tested.points != part.points:
                        why = tested.error or tested.used or _failed(tested.checks)
                        drawn = f" with hidden inputs drawn from {secret!r}" if secret else ""
                        yield f"the solution earns {number(tested.points)} of {part.name}{drawn}: {why}"
            else:
                error = process.run(step.source, name=step.name).error
                if error:
                    yield f"the cell {step.name} fails with the solutions before it: {error}"
        found.seconds_each = spent / max(1, len(answers))


def _rehearsal(steps: Sequence[Step]) -> str:
    """A cell that runs solutions, tests and what stands between them beside the notebook's names, and leaves none: what
    the checks keep of the runs that they set an answer's beside is then there in every fork. It says what was loaded.
    A cell may fail; nothing is judged."""
    code = [as_python(step.source) for step in steps]
    return f"""
def _rehearse():
    import contextlib, io, sys
    names = dict(globals())
    with contextlib.redirect_stdout(io.StringIO()):
        for code in {code!r}:
            with contextlib.suppress(Exception):
                exec(compile(code, "<rehearsal>", "exec"), names)
    print(*(name for name in {HEAVY!r} if name in sys.modules))
_rehearse()
del _rehearse
"""


def _brought(lab: Outline) -> tuple[str, ...]:
    """What of `HEAVY` comes with the library's versions that answers may not use."""
    with Process.start() as process:
        load_library(process, lab)
        loaded = f"import sys\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
        return tuple(process.run(loaded, name="loaded").output.split())


def reached(one: Wrong, steps: Sequence[Step], reads: Sequence[frozenset[str]], begin: int) -> list[Step]:
    """The steps from `begin` on that a wrong answer can reach: its task's tests and those that read a name bound by its
    task's answers, by the wrong one, or by a cell that itself reads such a name; and the cells before the last of them.

    reads: the names that each of the steps reads. Functions count as reading what they will read when they are called,
    so that it does not matter which of them stands first.
    """
    own = [step.role == "answer" and step.task == one.task for step in steps]
    dirty = {
        name
        for step, mine in zip(steps, own)
        if mine
        for name in bound(step.source) | bound(one.code.get(step.name, ""))
    }
    count = -1
    while count != len(dirty):
        count = len(dirty)
        for step, read in zip(steps, reads):
            if step.role != "test" and not dirty.isdisjoint(read):
                dirty |= bound(step.source)
    wanted = [
        index
        for index, (step, read) in enumerate(zip(steps, reads))
        if index >= begin and step.role == "test" and (step.task == one.task or not dirty.isdisjoint(read))
    ]
    last = max(wanted, default=begin - 1)
    return [steps[index] for index in range(begin, last + 1) if steps[index].role != "test" or index in wanted]


def _reads(code: str) -> frozenset[str]:
    """Every name in a cell; attributes and strings that are a name count too: one too many only costs time."""
    found = set()
    for node in ast.walk(ast.parse(as_python(code))):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return frozenset(found)


def _library(lab: Outline, task: str) -> tuple[str, ...]:
    return next(one.library for one in lab.tasks if one.name == task)


def _go(
    process: Process, steps: Sequence[Step], lab: Outline, names: frozenset[str], *, watched: Callable[[Step], bool]
) -> dict[str, tuple[float, str]]:
    """Run cells and tests; each tested part's points, and why not more. watched: which tests look for library use."""
    earned: dict[str, tuple[float, str]] = {}
    for step in steps:
        if step.role == "test":
            library = _library(lab, lab.part(step.name).task) if watched(step) else None
            tested = process.test(step.source, name=step.name, library=library, given=names)
            earned[step.name] = tested.points, tested.used or tested.error or _failed(tested.checks)
        else:
            process.run(step.source, name=step.name, given=step.role == "given")
    return earned


def _failed(checks: Sequence[object]) -> str:
    return "; ".join(f"{check.what}: {check.said}" for check in checks if check.said)  # type: ignore[attr-defined]


def _try(
    process: Process,
    one: Wrong,
    rest: Sequence[Step],
    lab: Outline,
    names: frozenset[str],
    full: Mapping[str, float],
    look: bool,
) -> Iterator[str]:
    """What one wrong answer earned against what it should, in the steps that it runs with.

    look: whether the tests of its own task look for library use; of one that is to be found out, all do.
    """
    steps = [Step(s.role, s.name, one.code.get(s.name, s.source), s.task) for s in rest]
    with process.fork() as child:
        earned = _go(child, steps, lab, names, watched=lambda step: bool(one.uses) or (look and step.task == one.task))
    for name, (points, why) in earned.items():
        wanted = one.earns.get(name, full[name])
        if abs(points - wanted) > 1e-9:
            said = why or "every check passed"
            yield f"{name} earned {number(points)} points and should have {number(wanted)} ({said})"
    if one.uses and not any(one.uses in why for _, why in earned.values()):
        yield f"that it uses {one.uses} was not seen"


def _end_to_end(root: Root, source: NotebookNode, answers: Sequence[Wrong]) -> Iterator[str]:
    """One wrong answer as a submission, through everything that a submission goes through."""
    from underload.course.grade import grade_one

    one = next((one for one in answers if not one.harmless), None)
    if one is None:
        return
    result = grade_one(source, solved(source, one.code), "verify", root=root)
    full = {part.name: part.points for part in result.parts}
    for part in result.parts:
        if part.manual:
            continue
        wanted = one.earns.get(part.name, full[part.name])
        if part.earned != wanted:
            earned = f"{part.name} earned {part.earned} and should have {number(wanted)}"
            yield f"{one}, graded as a submission: {earned} ({part.said})"
