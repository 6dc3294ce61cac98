"""Running one submission: the student's cells in order, each test where it stands, and going on after what went wrong.

A `Root` is a process that has run the lab's given cells once; every submission runs in a fork of it. A cell that never
ends, ends its process or takes all memory is left out: the state is built again from the root without it, and the rest
goes on. What an answer should have defined and did not is not there for its tests either, so that no older value of the
same name is graded in its place.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from nbformat import NotebookNode

from underload.course.assemble import Assembly, Step, assemble, bound, given_names
from underload.course.marks import LabError
from underload.course.outline import Outline, Part, name_of, outline, role
from underload.course.personal import hidden_seed, seed_of
from underload.course.points import Check, number
from underload.course.process import Process
from underload.course.results import CellRun, PartResult
from underload.course.sandbox import Limits

#: Characters that are kept of a cell's output, and of what a check says or prints.
OUTPUT = 4_000
SAID = 2_000
#: Characters that are kept of an answer's code.
CODE = 50_000


class Root:
    """A process that has run a lab's given cells up to its first answer. Many threads may fork it at once; one that
    died is started again."""

    def __init__(self, source: NotebookNode, limits: Limits) -> None:
        """Raises LabError where the lab's own cells fail, which is the lab's fault."""
        steps = assemble(source).steps
        first = next((index for index, step in enumerate(steps) if step.role != "given"), len(steps))
        self.steps = steps[:first]
        self.outline = outline(source)
        self.limits = limits
        self._lock = threading.Lock()
        self._closed = False
        self._process = self._start()

    def _start(self) -> Process:
        process = Process.start(limits=self.limits)
        try:
            load_library(process, self.outline)
            for step in self.steps:
                ran = process.run(step.source, name=step.name)
                if ran.error or ran.ended != "done":
                    why = ran.error or ran.ended
                    raise LabError(f"the lab's own cell {step.name} fails before any answer: {why}; mend the lab")
        except BaseException:
            process.close()
            raise
        return process

    def fork(self, folder: Path | None = None, *, shut_in: bool = True) -> Process:
        """A copy of the present state, in `folder` (one of its own if None) and shut into it unless only the lab's own
        cells will run in it."""
        with self._lock:
            if self._closed:
                raise LabError("grading was stopped")
            if self._process.alive:
                try:
                    return self._process.fork(folder=folder, shut_in=shut_in)
                except LabError:  # it has ended just now, or cannot go on
                    pass
            self._process.close()
            self._process = self._start()
            return self._process.fork(folder=folder, shut_in=shut_in)

    def close(self) -> None:
        """End it, and every process that was forked from it."""
        with self._lock:
            self._closed = True
            self._process.close()

    def __enter__(self) -> Root:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def load_library(process: Process, lab: Outline) -> None:
    """Load what the lab's answers may not use: a test looks it up, and would load it in each fork anew (a second, where
    it brings torch).

    Raises:
        LabError: the lab names something that the library does not have.
    """
    names = sorted({name for task in lab.tasks for name in task.library})
    ran = process.run(
        f"from underload.course.watch import resolve as _load\n[_load(_name) for _name in {names!r}]\ndel _load",
        name="(library)",
    )
    if ran.error:
        raise LabError(f"the lab {lab.lab}: {ran.error.partition(': ')[2] or ran.error}")


@dataclass
class Attempt:
    """How one submission ran: each tested part, each of the student's cells, and what a person should know."""

    parts: dict[str, PartResult] = field(default_factory=dict)
    cells: dict[int, CellRun] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


class Runner:
    """Runs one assembled submission; use it once."""

    def __init__(
        self,
        source: NotebookNode,
        assembly: Assembly,
        root: Root,
        folder: Path,
        *,
        lab: str,
        secret: bytes,
        seconds: float,
    ) -> None:
        """source: the lab with the student's SEED. seconds: of the whole submission, by the clock."""
        self.assembly, self.root, self.folder = assembly, root, folder
        self.lab, self.secret = lab, secret
        self.steps = assembly.steps
        self.given = given_names(source)
        self.seed = seed_of(source)
        self.library = {task.name: task.library for task in assembly.outline.tasks}
        self.syntax = {problem.cell: problem.said for problem in assembly.problems if problem.kind == "syntax"}
        self.lost = _lost_names(source, self.steps)
        self.begin = _common(root.steps, self.steps)
        self.seconds, self.until = seconds, time.monotonic() + seconds
        self.left_out: dict[int, str] = {}  # cells that are not run any more, by their place, and why
        self.last = -1  # the student's cell that ran last
        self.restored: set[str] = set()
        self.made = Attempt()

    def run(self) -> Attempt:
        """Run everything.

        Raises:
            LabError: the lab's own processes cannot be started.
        """
        while not self._once():
            pass
        for index, step in enumerate(self.steps):
            if step.role == "test" and step.name not in self.made.parts:
                part = self.assembly.outline.part(step.name)
                said = (
                    f"the {_minutes(self.seconds)} that one submission may take were over before this check; "
                    + "; ".join([*self.left_out.values()][:3])
                ).rstrip("; ")
                self.made.parts[step.name] = _part(part, 0.0, (), said)
            elif step.role in ("answer", "own") and index not in self.made.cells and step.source.strip():
                self.made.cells[index] = CellRun(step.name, "was not run: the time for this submission was over")
        return self.made

    def _once(self) -> bool:
        """Go through the cells from the root's state; False when it must be done again without one more of them."""
        self.last = -1
        with self.root.fork(self.folder) as process:
            for index in range(self.begin, len(self.steps)):
                if time.monotonic() > self.until:
                    return True
                step = self.steps[index]
                if step.role == "test":
                    if step.name not in self.made.parts and not self._test(process, step, index):
                        return False
                elif not self._cell(process, step, index):
                    return False
        return True

    def _cell(self, process: Process, step: Step, index: int) -> bool:
        theirs = step.role in ("answer", "own")
        if not process.alive:
            return self._died_since()
        gone = index in self.left_out or step.name in self.syntax or not step.source.strip()
        if step.role == "answer" and gone and self.lost.get(step.name):
            process.run(f"[globals().pop(_name, None) for _name in {self.lost[step.name]!r}];", name="(left out)")
        if index in self.left_out or not step.source.strip():
            return True
        if theirs:
            self.last = index
        seconds = min(self.root.limits.cell_seconds, max(1.0, self.until - time.monotonic()))
        ran = process.run(step.source, name=step.name, seconds=seconds, given=step.role == "given")
        if theirs:
            self.made.cells[index] = CellRun(
                step.name, clean(ran.error, SAID), clean(ran.output, OUTPUT), ran.ended, round(ran.seconds, 3)
            )
        elif ran.error:
            self.made.note(
                f"the lab's own cell {step.name} stopped after the student's cells: {clean(ran.error, SAID)}"
            )
        if ran.ended == "done":
            return True
        if not theirs:
            return self._died_since()
        return self._leave_out(index, self._why(step, ran.ended, seconds))

    def _why(self, step: Step, ended: str, seconds: float) -> str:
        what = f"the cell {step.name}" if step.role == "answer" else f"a cell of the student's own ({step.name})"
        if ended == "time":
            return f"{what} did not end within {seconds:.3g} s and was left out"
        if ended == "memory":
            return f"{what} took more than {self.root.limits.memory / 2**30:.3g} GB of memory and was left out"
        return f"{what} ended the process it ran in and was left out"

    def _leave_out(self, index: int, why: str) -> bool:
        self.left_out[index] = why
        if self.steps[index].role == "own":
            self.made.note(why)
        return False

    def _died_since(self) -> bool:
        """The process is gone though the cell at hand is the lab's own: something that the last of the student's cells
        started has ended it."""
        if self.last < 0 or self.last in self.left_out:
            raise RuntimeError(f"the process of {self.lab} ended without any cell of the student's")
        step = self.steps[self.last]
        self.made.cells[self.last] = replace(self.made.cells[self.last], ended="died")
        return self._leave_out(self.last, self._why(step, "died", 0.0))

    def _test(self, process: Process, step: Step, index: int) -> bool:
        part = self.assembly.outline.part(step.name)
        if self.seed is not None and process.alive:
            # the lab's tests rely on it, whatever the student made of it
            process.run(f"SEED = {self.seed}", name="SEED", given=True)
        if not process.alive:
            return self._died_since()
        tested = process.test(
            step.source,
            name=step.name,
            library=self.library.get(part.task, ()),
            given=self.given,
            hidden_seed=hidden_seed(self.secret, self.lab, part.name),
        )
        if not process.alive and tested.ended == "died":
            return self._died_since()
        earned = tested.points if tested.points == tested.points else 0.0
        reasons: list[str] = []
        if tested.used:
            earned = 0.0
            reasons.append(_used(tested.used))
        elif tested.ended == "time":
            reasons.append("the check did not end in time")
        elif tested.ended == "memory":
            reasons.append(f"the check took more than {self.root.limits.memory / 2**30:.3g} GB of memory")
        elif tested.ended == "died":
            reasons.append("the answer ended the process that checked it")
        if tested.error and tested.ended == "done":
            reasons.append(f"the check stopped: {tested.error}")
        reasons += self._broken(index)
        changed = [name for name in tested.restored if name not in self.restored]
        if changed:
            self.restored.update(changed)
            self.made.note(f"changed by the student's code and put back before {step.name}: {_some(changed)}")
        earned = min(max(earned, 0.0), part.points)
        checks = tuple(_clean_check(check) for check in tested.checks)
        self.made.parts[step.name] = _part(
            part, earned, checks, "" if earned >= part.points else clean("; ".join(reasons), SAID)
        )
        return True

    def _broken(self, test: int) -> list[str]:
        """What is wrong with the answers that a test is about: those of its task that stand between it and the test
        before them."""
        reasons: list[str] = []
        answers = False
        for index in range(test - 1, -1, -1):
            step = self.steps[index]
            if step.task != self.steps[test].task or step.role not in ("answer", "test"):
                continue
            if step.role == "test":
                if answers:
                    break
                continue
            answers = True
            ran = self.made.cells.get(index)
            if not step.source.strip():
                reasons.append(f"the answer cell {step.name} is not in the notebook or is empty")
            elif index in self.left_out:
                reasons.append(self.left_out[index])
            elif step.name in self.syntax:
                reasons.append(f"{self.syntax[step.name]}; the cell could not run")
            elif step.name in self.assembly.untouched:
                reasons.append(f"nothing was written in {step.name}")
            elif ran is not None and ran.error:
                reasons.append(f"the cell {step.name} stopped with {ran.error}")
        return reasons[::-1]


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.3g} minutes" if seconds >= 120 else f"{seconds:.3g} seconds"


def _used(name: str) -> str:
    if name.startswith("underload"):
        return f"the answer used {name}, the library's own version of what the task asks for"
    return name


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _part(part: Part, earned: float, checks: tuple[Check, ...], said: str) -> PartResult:
    return PartResult(part.name, part.task, part.points, earned, part.further, False, said, checks)


def _clean_check(check: Check) -> Check:
    return replace(check, said=clean(check.said, SAID), printed=clean(check.printed, SAID))


def clean(text: str, most: int) -> str:
    """Text that can be written to any file: no halves of surrogate pairs, not longer than `most` and its middle left
    out if it is."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n… {number(len(text) - 2 * half)} characters left out …\n{text[-half:]}"


def _common(done: Sequence[Step], steps: Sequence[Step]) -> int:
    """How many of the first steps the root has run."""
    count = 0
    for one, other in zip(done, steps, strict=False):
        if (one.role, one.name, one.source) != (other.role, other.name, other.source):
            break
        count += 1
    return count


def _lost_names(source: NotebookNode, steps: Iterable[Step]) -> dict[str, tuple[str, ...]]:
    """By answer cell, the names that its solution defines and that nothing else does: neither a given cell nor a cell
    of the student's own."""
    kept: set[str] = set()
    for cell in source.cells:
        if role(cell) == "given":
            kept |= bound(cell.source)
    for step in steps:
        if step.role == "own":
            kept |= bound(step.source)
    return {name_of(cell): tuple(sorted(bound(cell.source) - kept)) for cell in source.cells if role(cell) == "answer"}


def written(source: NotebookNode, assembly: Assembly) -> dict[str, str]:
    """The student's code by answer cell, to compare submissions with: the cell's own, and below it what stands in cells
    of the student's own and defines the same names."""
    defines = {name: name_of(cell) for cell in source.cells if role(cell) == "answer" for name in bound(cell.source)}
    code = {
        step.name: clean(step.source, CODE) for step in assembly.steps if step.role == "answer" and step.source.strip()
    }
    for step in assembly.steps:
        if step.role == "own":
            for answer in sorted({defines[name] for name in bound(step.source) if name in defines}):
                code[answer] = clean(f"{code.get(answer, '')}\n\n{step.source}".strip("\n"), CODE)
    return code
