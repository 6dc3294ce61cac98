"""A leaderboard: what every student's policy is worth on loads that nobody has seen, and who is better than whom.

A lab says in its metadata what is compared, beside its tasks:

    "underload": {"leaderboard": {
        "policy": "Door",                               the name that an answer binds
        "part": "task-5-check",                         the tested part whose answer that is
        "score": "underload.labs.capacity.score_door",  called with the policy and a seed, returns a number
        "what": "requests that kept the promise",       what that number is
        "unit": "%",
        "better": "higher",                             or "lower"
        "beside": {"no door": "underload.labs.capacity.Open"}}}     the library's own policies, to compare with

What to rely on:

- A policy runs like a graded answer (`course.grade`): in a process of its own, shut in, limited in time and memory, one
  test for each seed, so that nothing is carried from one to the next. The library's own version in its place, an
  error, a time limit, a number that is none: the policy is listed with the reason and has no place.
- While a policy runs, the seed of its hidden inputs is blank, so that whoever draws from it draws something else. A
  load that is being served is in the memory of its process all the same: code that names one of the ways to it (`gc`,
  `inspect`, frames, profilers) is refused unread. Somebody who hides such a name from a reader of names gets through;
  read the code of whoever stands first.
- Every policy meets the same seeds (common random numbers), each seed another, drawn from the class's secret. Without
  a secret they are the book's, which anybody can work out.
- Two policies differ where the interval of their paired difference leaves out 0. There are as many such intervals as
  pairs, so each is made wider (Bonferroni) until `confidence` holds for all of them at once. A policy's place is 1 and
  one more for every policy that is better than it in this sense, so places are shared. More policies make more ties,
  and more seeds fewer.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import hashlib
import hmac
import math
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from underload.course.answers import solved
from underload.course.assemble import as_python, bound
from underload.course.attempt import Root
from underload.course.grade import grade_one, sensible_workers
from underload.course.marks import LabError
from underload.course.outline import name_of, outline, role
from underload.course.points import number
from underload.course.results import Result
from underload.course.roster import Roster
from underload.course.sandbox import Limits
from underload.course.submission import Found, find, found_at
from underload.metrics import mean_interval, paired_difference
from underload.metrics.means import MeanInterval

#: Seeds that a policy is scored on, where nothing else is said; and the fewest that give an interval worth the name.
SEEDS, FEWEST = 20, 5
#: What one policy may take in all (s by the clock).
POLICY_SECONDS = 600.0
_LIMITS = Limits()
_KEYS = {"policy", "part", "score", "what", "unit", "better", "beside"}
_PART = "leaderboard-"

_TEST = """import contextlib, importlib, os
points = Points(1)
with points.check(1, {name!r}):
    score = getattr(importlib.import_module({module!r}), {function!r})
    drawn = importlib.import_module(Points.__module__)
    seeds = [int(points.draw().integers(1, 2**31, size={count})[-1])]
    held, drawn.hidden_seed = [drawn.hidden_seed], b""
    try:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            value = float(score({policy}, seeds.pop()))
    finally:
        drawn.hidden_seed = held.pop()
    print({token!r}, repr(value))
points.earned()"""

#: Names with which code sees more than it is given: the class's seed, who has called it, what else is in memory.
_BEYOND = frozenset(
    {
        *(
            "hidden_seed",
            "_getframe",
            "_getframemodulename",
            "_current_frames",
            "currentframe",
            "settrace",
            "setprofile",
        ),
        *("f_back", "f_locals", "f_globals", "tb_frame", "gi_frame", "cr_frame", "ag_frame"),
        *("getouterframes", "getinnerframes", "get_objects", "get_referrers"),
    }
)
_MODULE = 1 << 20  # bytes of one beside the notebook
_MODULES = frozenset(("gc", "inspect", "linecache", "ctypes", "tracemalloc"))


@dataclass(frozen=True)
class Contest:
    """What a lab compares: see the module's text. `lab` is its name, `cell` the answer cell that binds the policy."""

    lab: str
    policy: str
    part: str
    score: str
    cell: str
    what: str
    unit: str = ""
    better: str = "higher"
    beside: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """One policy: its scores by seed, in one order for all; `said` is why it has no place, and "" where it has one.

    own: whether the policy is the lab's own, set beside those of the class.
    """

    name: str
    scores: tuple[float, ...]
    said: str = ""
    own: bool = False


@dataclass(frozen=True)
class Standing:
    """A policy's place, which others may share.

    level: the others that are not told apart from it, by name.
    behind: how much worse it is than the one that stands first, with its interval; None for that one itself.
    """

    entry: Entry
    place: int
    mean: MeanInterval
    level: tuple[str, ...] = ()
    behind: MeanInterval | None = None


@dataclass(frozen=True)
class Leaderboard:
    """The standings, best first, and the entries that have none. `secret`: whether the seeds were held back."""

    contest: Contest
    standings: tuple[Standing, ...]
    unplaced: tuple[Entry, ...]
    seeds: int
    confidence: float
    secret: bool

    @property
    def shared(self) -> frozenset[int]:
        """The places that several policies have."""
        places = [standing.place for standing in self.standings]
        return frozenset(place for place in places if places.count(place) > 1)


def contest(source: NotebookNode, lab: str = "") -> Contest:
    """What a lab compares.

    Raises:
        LabError: nothing, or its metadata do not fit the lab.
    """
    made = outline(source)
    lab = lab or made.lab
    about = source.metadata.get("underload", {}).get("leaderboard")
    if not isinstance(about, Mapping):
        raise LabError(f"the lab {lab} has no leaderboard; one that has says underload.leaderboard in its metadata")
    if unknown := sorted(set(about) - _KEYS):
        raise LabError(f"the leaderboard of {lab} says {', '.join(unknown)}; known are {', '.join(sorted(_KEYS))}")
    if missing := sorted({"policy", "part", "score", "what"} - set(about)):
        raise LabError(f"the leaderboard of {lab} does not say {', '.join(missing)}")
    if about.get("better", "higher") not in ("higher", "lower"):
        raise LabError(f"the leaderboard of {lab}: better is {about['better']!r}; write 'higher' or 'lower'")
    if made.part(about["part"]).manual:
        raise LabError(f"the leaderboard of {lab}: a person marks {about['part']}; name a part with a test")
    policy = about["policy"]
    answers = [name_of(cell) for cell in source.cells if role(cell) == "answer" and policy in bound(_plain(cell))]
    if len(answers) != 1:
        raise LabError(f"the leaderboard of {lab}: {len(answers)} answer cells bind {policy}; it must be just one")
    return Contest(lab=lab, cell=answers[0], **about)


def _plain(cell: NotebookNode) -> str:
    return "\n".join(line for line in str(cell.source).split("\n") if not line.lstrip().startswith("### "))


def leaderboard(
    source: NotebookNode,
    submissions: Path | None = None,
    *,
    lab: str = "",
    secret: bytes = b"",
    seeds: int = SEEDS,
    confidence: float = 0.95,
    roster: Roster | None = None,
    limits: Limits = _LIMITS,
    seconds: float = POLICY_SECONDS,
    workers: int | None = None,
    progress: bool = False,
) -> Leaderboard:
    """Score every policy, and rank them.

    Args:
        submissions: a folder or an archive of them, or one notebook; None for the lab's own policies alone.
        secret: the class's; the seeds are drawn from it.
        seeds: how many loads.
        roster: the students of the class, for whose a file is.
        seconds: what one policy may take in all, by the clock.

    Raises:
        LabError: no leaderboard in the lab, no submissions, too few seeds, or a lab whose own cells fail.
    """
    what = contest(source, lab)
    if not FEWEST <= seeds <= 1_000:
        raise LabError(f"{seeds} seeds: give a number from {FEWEST} to 1000")
    if not 0.5 <= confidence < 1:
        raise LabError(f"a confidence of {confidence:g}: give a number from 0.5 to below 1, such as 0.95")
    token = secrets.token_hex(16)  # tells a score from whatever a policy prints
    board = _board(source, what, seeds, token)
    found = [_cut(source, what, one) for one in _found(source, what, submissions, roster)]
    own = _own(board, what)
    lent = _without_library(board)  # the lab's own policies may be the library's
    with Root(board, limits) as root:

        def score(one: Found) -> Entry:
            mine = any(one is other for other in own)
            if not mine and (name := beyond(one)):
                return Entry(
                    one.student,
                    (),
                    f"its code names {name}, by which it could see the load before it comes; a policy goes by what it "
                    "is given",
                )
            result = grade_one(
                lent if mine else board,
                one,
                one.student,
                lab=what.lab,
                secret=secret,
                limits=limits,
                seconds=seconds,
                root=root,
            )
            return _entry(result, seeds, token, own=mine)

        entries = _each(score, [*own, *found], workers or sensible_workers(limits), progress, what.lab)
    return ranked(what, entries, confidence=confidence, seeds=seeds, secret=bool(secret))


def ranked(
    what: Contest,
    entries: Sequence[Entry],
    *,
    confidence: float = 0.95,
    seeds: int = SEEDS,
    secret: bool = False,
) -> Leaderboard:
    """The standings of entries that met the same seeds in the same order."""
    placed = [entry for entry in entries if not entry.said]
    sign = 1.0 if what.better == "higher" else -1.0
    pairs = max(1, len(placed) * (len(placed) - 1) // 2)
    level = 1 - (1 - confidence) / pairs
    ahead: dict[tuple[int, int], MeanInterval] = {
        (i, j): paired_difference([sign * x for x in one.scores], [sign * x for x in other.scores], level)
        for i, one in enumerate(placed)
        for j, other in enumerate(placed)
        if i != j
    }
    better = {pair for pair, found in ahead.items() if found.low > 0}
    places = [1 + sum((j, i) in better for j in range(len(placed))) for i in range(len(placed))]
    means = [mean_interval(entry.scores, confidence) for entry in placed]
    order = sorted(range(len(placed)), key=lambda i: (places[i], -sign * means[i].mean, placed[i].name))
    standings = tuple(
        Standing(
            placed[i],
            places[i],
            means[i],
            tuple(placed[j].name for j in order if j != i and not {(i, j), (j, i)} & better),
            None if i == order[0] else ahead[order[0], i],
        )
        for i in order
    )
    return Leaderboard(what, standings, tuple(e for e in entries if e.said), seeds, confidence, secret)


# ---- running them ------------------------------------------------------------------------------------------------


def _board(source: NotebookNode, what: Contest, seeds: int, token: str) -> NotebookNode:
    """The lab up to the policy's part, with a test for each seed in that part's place and nothing else to check."""
    made = copy.deepcopy(source)
    place = _place(source, what)
    module, _, function = what.score.rpartition(".")
    tests = []
    for count in range(1, seeds + 1):
        test = copy.deepcopy(made.cells[place])
        name = f"{_PART}{count}"
        test["id"] = test.metadata.nbgrader["grade_id"] = name
        test.metadata.nbgrader["points"] = 1
        test.metadata.setdefault("underload", NotebookNode())["task"] = outline(source).part(what.part).task
        test["source"] = _TEST.format(
            name=f"load {count} of {seeds}",
            module=module,
            function=function,
            policy=what.policy,
            token=token,
            count=count,
        )
        tests.append(test)
    for cell in made.cells[:place]:
        if role(cell) == "test":
            cell["source"] = f"points = Points({number(cell.metadata.nbgrader['points'])})\npoints.earned()"
    made["cells"] = [*made.cells[:place], *tests]
    return made


def _place(source: NotebookNode, what: Contest) -> int:
    return next(index for index, cell in enumerate(source.cells) if name_of(cell) == what.part)


def _without_library(board: NotebookNode) -> NotebookNode:
    made = copy.deepcopy(board)
    for task in made.metadata.underload.get("tasks", {}).values():
        task["library"] = []
    return made


def _own(board: NotebookNode, what: Contest) -> list[Found]:
    """The lab's solution, and the policies that it sets beside those of the class, as submissions."""
    codes: dict[str, dict[str, str]] = {"the lab's solution": {}}
    for name, path in what.beside.items():
        module, _, last = path.rpartition(".")
        codes[name] = {what.cell: f"from {module} import {last} as {what.policy}"}
    return [Found(f"({name})", what.lab, "", "", solved(board, code)) for name, code in codes.items()]


def _found(source: NotebookNode, what: Contest, submissions: Path | None, roster: Roster | None) -> list[Found]:
    if submissions is None:
        return []
    if submissions.suffix.lower() == ".ipynb" and submissions.is_file():
        return [found_at(submissions, what.lab, source, submissions.resolve().stem)]
    found = find(submissions, {what.lab: source}, roster=roster.students if roster else ())
    if not found:
        raise LabError(f"no submissions in {submissions}; give the folder that holds them, or one notebook")
    return found


def _cut(source: NotebookNode, what: Contest, one: Found) -> Found:
    """A submission without what comes after the policy's part: it takes time, and the policy does not need it."""
    if one.notebook is None:
        return one
    later = {name_of(cell) for cell in source.cells[_place(source, what) :]}
    kept = [cell for cell in one.notebook.cells if name_of(cell) not in later]
    return replace(one, notebook=NotebookNode({**one.notebook, "cells": kept}))


def beyond(one: Found) -> str:
    """A name in a submission's code, that of modules beside the notebook too, which reaches beyond what a policy is
    given; or ""."""
    codes = [str(cell.source) for cell in one.notebook.cells if cell.cell_type == "code"] if one.notebook else []
    for path, arrival in one.beside.items():
        if path.endswith(".py") and not arrival.said:
            with contextlib.suppress(LabError, OSError):
                codes.append(arrival.read(_MODULE).decode("utf-8", "replace"))
    return next((name for code in codes if (name := _named_beyond(code))), "")


def _named_beyond(code: str) -> str:
    try:
        tree = ast.parse(as_python(code))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # such a cell does not run
        return ""
    for node in ast.walk(tree):
        names: list[str] = []
        modules: list[str] = []
        if isinstance(node, ast.Name):
            names = [node.id]
        elif isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names, modules = [alias.name for alias in node.names], [node.module or ""]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names, modules = re.findall(r"\w+", node.value), [node.value]  # getattr, __import__, exec
        found = [name for name in names if name in _BEYOND]
        found += [name for name in modules if name.partition(".")[0] in _MODULES]
        if found:
            return found[0]
    return ""


def _each(
    score: Callable[[Found], Entry], found: Sequence[Found], workers: int, progress: bool, lab: str
) -> list[Entry]:
    from tqdm import tqdm

    with (
        ThreadPoolExecutor(min(workers, len(found)), thread_name_prefix="leaderboard") as pool,
        tqdm(total=len(found), desc=lab, unit="policy", disable=not progress) as bar,
    ):
        made = []
        for entry in pool.map(score, found):
            made.append(entry)
            bar.update()
    return made


def _entry(result: Result, seeds: int, token: str, *, own: bool) -> Entry:
    """What a policy scored; why it has no place, where a test did not end in a number."""
    if result.status == "refused":
        return Entry(result.student, (), " ".join(result.said.split()), own)
    scores = []
    for part in (part for part in result.parts if part.name.startswith(_PART)):
        check = part.checks[-1] if part.checks else None
        value = _score(check.printed, token) if check is not None and check.earned else None
        if part.said or value is None:
            said = part.said or (check.said if check is not None else "") or "its score is no finite number"
            where = check.what if check is not None else part.name.removeprefix(_PART)
            return Entry(result.student, (), f"{where}: {' '.join(said.split())}", own)
        scores.append(value)
    return Entry(result.student, tuple(scores), "", own)


def _score(printed: str, token: str) -> float | None:
    """The number behind the token, which alone is the test's own word."""
    found = [line.removeprefix(token) for line in printed.splitlines() if line.startswith(token)]
    with contextlib.suppress(ValueError):
        value = float(found[0]) if len(found) == 1 else math.nan
        return value if math.isfinite(value) else None
    return None


# ---- telling it --------------------------------------------------------------------------------------------------


def code_name(secret: bytes, student: str) -> str:
    """What a student is called on a board that the class sees: eight digits of an HMAC, the same for every lab."""
    return hmac.new(secret, b"leaderboard\0" + student.encode(), hashlib.sha256).hexdigest()[:8]


def renamed(board: Leaderboard, name: Callable[[str], str]) -> Leaderboard:
    """The same board with other names for the students; the lab's own policies keep theirs."""
    own = {entry.name for entry in _entries(board) if entry.own}

    def called(one: str) -> str:
        return one if one in own else name(one)

    return replace(
        board,
        standings=tuple(
            replace(
                standing,
                entry=replace(standing.entry, name=called(standing.entry.name)),
                level=tuple(map(called, standing.level)),
            )
            for standing in board.standings
        ),
        unplaced=tuple(replace(entry, name=called(entry.name)) for entry in board.unplaced),
    )


def _entries(board: Leaderboard) -> list[Entry]:
    return [standing.entry for standing in board.standings] + list(board.unplaced)


def as_json(board: Leaderboard) -> dict[str, Any]:
    """The board as plain data."""
    what = board.contest
    return {
        "lab": what.lab,
        "policy": what.policy,
        "score": what.what,
        "unit": what.unit,
        "better": what.better,
        "seeds": board.seeds,
        "held_back": board.secret,
        "confidence": board.confidence,
        "standings": [
            {
                "place": one.place,
                "shared": one.place in board.shared,
                "name": one.entry.name,
                "own": one.entry.own,
                "mean": one.mean.mean,
                "interval": [one.mean.low, one.mean.high],
                "behind": None if one.behind is None else [one.behind.mean, one.behind.low, one.behind.high],
                "not_told_apart_from": list(one.level),
                "scores": list(one.entry.scores),
            }
            for one in board.standings
        ],
        "unplaced": [{"name": entry.name, "own": entry.own, "said": entry.said} for entry in board.unplaced],
    }


def as_text(board: Leaderboard) -> str:
    """The board as a table for a terminal."""
    what, unit = board.contest, f" {board.contest.unit}" if board.contest.unit else ""
    held = "held back" if board.secret else "the book's own, which anybody can work out: name your --secret"
    lines = [
        f"{what.policy} of {what.lab}: {what.what}{unit and f' ({what.unit})'}, {what.better} is better",
        f"{board.seeds} loads, the same for everybody; their seeds are {held}",
        "",
    ]
    width = max([6, *(len(one.entry.name) for one in board.standings)])
    percent = f"{100 * board.confidence:g} % interval"
    lines.append(f"{'place':>5}  {'policy':<{width}}  {'mean':>8}  {percent:>18}  behind the first")
    for one in board.standings:
        place = f"{one.place}{'=' if one.place in board.shared else ' '}"
        span = f"{one.mean.low:.4g} to {one.mean.high:.4g}"
        behind = "" if one.behind is None else f"{one.behind.mean:.3g} ({one.behind.low:.3g} to {one.behind.high:.3g})"
        lines.append(f"{place:>5}  {one.entry.name:<{width}}  {one.mean.mean:>8.4g}  {span:>18}  {behind}".rstrip())
    lines += [f"{'–':>4}   {entry.name}: {entry.said[:200]}" for entry in board.unplaced]
    pairs = len(board.standings) * (len(board.standings) - 1) // 2
    if board.shared:
        lines += ["", "= the place is shared"]
    if pairs:
        lines.append(
            "A place is 1 and one more for each policy that is better by an interval of the paired difference that "
            f"leaves out 0; {'it holds' if pairs == 1 else f'all {pairs} hold together'} with "
            f"{100 * board.confidence:g} % confidence."
        )
    return "\n".join(lines)
