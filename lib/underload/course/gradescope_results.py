"""A result of grading in the form that Gradescope reads, and the rules of that form.

The rules are those of Gradescope's autograder specification (specs.md in gradescope/autograder_samples, read in
November 2026): a score on top or on every test; visibility one of four words; names of formats; types.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from nbformat import NotebookNode

from underload.course.feedback import visible_checks
from underload.course.outline import Outline, Task
from underload.course.points import Check, number
from underload.course.results import PartResult, Result

VISIBILITY = ("hidden", "after_due_date", "after_published", "visible")
FORMATS = ("text", "html", "simple_format", "md", "ansi")
_TOP = {
    "score", "execution_time", "output", "output_format", "test_output_format", "test_name_format", "visibility",
    "stdout_visibility", "extra_data", "tests", "leaderboard",
}  # fmt: skip
_TEST = {
    "score", "max_score", "status", "name", "name_format", "number", "output", "output_format", "tags", "visibility",
    "extra_data",
}  # fmt: skip

#: Characters of one test's output.
_LONGEST = 8_000
_SAME = 1e-9


def as_gradescope(result: Result, lab: Outline, source: NotebookNode) -> dict[str, Any]:
    """One result as the content of results.json.

    Every graded part becomes a test; where it has hidden checks, two: those that the student can see and run, shown at
    once, and the hidden ones, shown when the marks are published. The score is the core's and the bonus, without open
    answers, which a person marks in Gradescope.
    """
    if result.status == "refused":
        tests: list[dict[str, Any]] = [
            {
                "name": "The notebook",
                "number": "0",
                "score": 0.0,
                "max_score": lab.points,
                "status": "failed",
                "output": _cut(result.said or "it could not be graded"),
                "output_format": "text",
                "visibility": "visible",
            }
        ]
    else:
        tests = list(_tests(result, lab, source))
    said = [problem.said for problem in result.problems]
    said += result.notes
    return {
        "score": round(sum(test["score"] for test in tests), 6),
        "execution_time": round(result.seconds, 2),
        "output": _cut(_head(result, lab) + "".join(f"\n- {line}" for line in said)),
        "output_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": tests,
        "extra_data": {"lab": result.lab, "handout": result.handout, "student": result.student},
    }


def failed(why: str) -> dict[str, Any]:
    """results.json for an autograder that broke: its own fault, not the student's."""
    return {
        "score": 0,
        "output": _cut(
            f"The autograder itself failed, which is not your fault: {why}\n"
            "Your teacher can see more in its output, and can run it again; you need not hand in again."
        ),
        "output_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": [],
    }


def _head(result: Result, lab: Outline) -> str:
    if result.status == "refused":
        return f"{lab.title or lab.lab}: this could not be graded."
    text = f"{lab.title or lab.lab}."
    if any(part.manual for part in lab.parts):
        text += " Open answers are marked by a person and are not in these points yet."
    if result.problems or result.notes:
        text += "\nWhat the grader came upon:"
    return text


def _tests(result: Result, lab: Outline, source: NotebookNode) -> Iterator[dict[str, Any]]:
    shown = visible_checks(source)
    found = {part.name: part for part in result.parts}
    for task in lab.tasks:
        parts = [found[part.name] for part in task.parts if part.name in found]
        for place, part in enumerate(parts, 1):
            label = f"{task.name}.{place}" if len(parts) > 1 else task.name
            if part.manual:
                yield _open(part, task, label)
                continue
            seen = [any(known.fullmatch(check.what) for known in shown.get(part.name, ())) for check in part.checks]
            yield from _test(part, task, label, part.checks, seen)


def _test(
    part: PartResult, task: Task, label: str, checks: Sequence[Check], seen: Sequence[bool]
) -> Iterator[dict[str, Any]]:
    """The test of one part, or its two: what can be seen, and what is hidden. Their scores add up to the part's."""
    earned = part.earned or 0.0
    visible = [check for check, is_seen in zip(checks, seen) if is_seen]
    hidden = [check for check, is_seen in zip(checks, seen) if not is_seen]
    name = _name(task, part)
    tags = ["bonus"] if part.further else []
    # A part that lost its points for another reason than a check (it used the library's version, the time was over)
    # says so on top of the checks.
    why = [part.said] if part.said else []
    if not hidden or not visible:
        # With hidden checks alone there is nothing to see before the marks are out; without any check, the reason is.
        late = bool(hidden) and not visible
        yield _one(name, label, earned, part.points, [*why, *_lines(checks)], late, tags)
        return
    here = min(sum(check.worth for check in visible), part.points)
    seen_earned = min(sum(check.earned for check in visible), here, earned)
    yield _one(
        f"{name}: the checks you can see", label, seen_earned, here, [*why, *_lines(visible)], False, tags
    )  # fmt: skip
    rest = part.points - here
    yield _one(
        f"{name}: hidden checks", f"{label}h", min(earned - seen_earned, rest), rest, _lines(hidden), True,
        [*tags, "hidden"],
    )  # fmt: skip


def _one(
    name: str, label: str, earned: float, worth: float, lines: Sequence[str], late: bool, tags: Sequence[str]
) -> dict[str, Any]:
    return {
        "name": name,
        "number": label,
        "score": round(earned, 6),
        "max_score": round(worth, 6),
        "status": "passed" if earned >= worth - _SAME else "failed",
        "output": _cut("\n".join(lines)),
        "output_format": "text",
        "visibility": "after_published" if late else "visible",
        "tags": list(tags),
    }


def _open(part: PartResult, task: Task, label: str) -> dict[str, Any]:
    """An open answer. One that a person has still to mark is neither passed nor failed; Gradescope knows no third."""
    written = part.earned is None
    return {
        "name": f"{_name(task, part)}: open answer",
        "number": label,
        "score": 0.0 if written else round(part.earned or 0.0, 6),
        "max_score": round(part.points, 6),
        "status": "passed" if written or part.earned else "failed",
        "output": (
            f"A person marks this, with up to {number(part.points)} points that are not in the score above."
            if written
            else part.said or "nothing was written"
        ),
        "output_format": "text",
        "visibility": "visible",
        "tags": ["open answer", *(["bonus"] if part.further else [])],
    }


def _name(task: Task, part: PartResult) -> str:
    head = "Further" if part.further else f"Task {task.name}"
    name = f"{head}. {task.title}" if task.title else head
    # task-4-buckets-check is one of several parts: "buckets" tells them apart
    own = re.sub(r"^(task|t)[-_]?\w+[-_]|[-_](check|open|made)$", "", part.name)
    several = len([one for one in task.parts if not one.manual]) > 1 and not part.manual
    return f"{name} ({own.replace('-', ' ')})" if several and own not in ("check", "") else name


def _lines(checks: Sequence[Check]) -> list[str]:
    made = []
    for check in checks:
        sign = "✓" if not check.said else "○" if check.missing else "✗"
        made.append(f"{sign} {number(check.earned)}/{number(check.worth)}  {check.what}")
        made += [f"    {line}" for line in check.said.splitlines()]
    return made


def _cut(text: str) -> str:
    text = "".join(letter for letter in text if letter >= " " or letter in "\n\t")
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "\n… the rest is left out"


# ---- the rules ----------------------------------------------------------------------------------------------------


def validate_results(results: Any) -> list[str]:
    """What Gradescope would not take, or would not show as meant; empty for good results."""
    if not isinstance(results, dict):
        return ["results must be a JSON object"]
    found = list(_top_faults(results))
    try:
        json.dumps(results, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        found.append(f"is no JSON: {error}")
    return found


def _top_faults(results: dict[Any, Any]) -> Iterator[str]:
    yield from _common_faults(results, _TOP, "results")
    tests = results.get("tests")
    if tests is None and "score" not in results:
        yield "results: needs a score or tests"
    if "execution_time" in results and not _is_number(results["execution_time"], least=0):
        yield f"execution_time is {results['execution_time']!r}; it must be seconds, 0 or more"
    for key in ("test_output_format", "test_name_format"):
        if key in results and results[key] not in FORMATS:
            yield f"{key} is {results[key]!r}; it must be one of {', '.join(FORMATS)}"
    if "stdout_visibility" in results and results["stdout_visibility"] not in VISIBILITY:
        yield f"stdout_visibility is {results['stdout_visibility']!r}; it must be one of {', '.join(VISIBILITY)}"
    if tests is not None and not isinstance(tests, list):
        yield "tests must be a list"
        tests = None
    for place, test in enumerate(tests or (), 1):
        if not isinstance(test, dict):
            yield f"test {place} must be an object"
            continue
        yield from _test_faults(test, f"test {place}", scored="score" in results)
    board = results.get("leaderboard", [])
    if not isinstance(board, list):
        yield "leaderboard must be a list"
        return
    for place, entry in enumerate(board, 1):
        if not isinstance(entry, dict) or not {"name", "value"} <= entry.keys():
            yield f"leaderboard entry {place} needs a name and a value"
        elif entry.get("order", "desc") not in ("asc", "desc"):
            yield f"leaderboard entry {place}: order is {entry['order']!r}; it must be asc or desc"


def _test_faults(test: dict[Any, Any], where: str, *, scored: bool) -> Iterator[str]:
    yield from _common_faults(test, _TEST, where)
    if "score" not in test and not scored:
        yield f"{where}: needs a score, since there is none on top"
    if "max_score" in test and not _is_number(test["max_score"], least=0):
        yield f"{where}: max_score is {test['max_score']!r}; it must be a number, 0 or more"
    if test.get("status", "passed") not in ("passed", "failed"):
        yield f"{where}: status is {test['status']!r}; it must be passed or failed"
    for key in ("name", "number"):
        if key in test and not isinstance(test[key], str):
            yield f"{where}: {key} is {test[key]!r}; it must be text"
    if "name_format" in test and test["name_format"] not in FORMATS:
        yield f"{where}: name_format is {test['name_format']!r}; it must be one of {', '.join(FORMATS)}"
    tags = test.get("tags", [])
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        yield f"{where}: tags must be a list of texts"


def _common_faults(item: dict[Any, Any], known: set[str], where: str) -> Iterator[str]:
    """What holds for the whole and for a test alike."""
    unknown = sorted(str(key) for key in item if key not in known)
    if unknown:
        yield f"{where}: has {', '.join(unknown)}, which the specification does not know"
    if "score" in item and not _is_number(item["score"]):
        yield f"{where}: score is {item['score']!r}; it must be a finite number"
    if "output" in item and not isinstance(item["output"], str):
        yield f"{where}: output is {item['output']!r}; it must be text"
    if "output_format" in item and item["output_format"] not in FORMATS:
        yield f"{where}: output_format is {item['output_format']!r}; it must be one of {', '.join(FORMATS)}"
    if "visibility" in item and item["visibility"] not in VISIBILITY:
        yield f"{where}: visibility is {item['visibility']!r}; it must be one of {', '.join(VISIBILITY)}"
    if "extra_data" in item and not isinstance(item["extra_data"], dict):
        yield f"{where}: extra_data must be an object"


def _is_number(value: Any, *, least: float = -math.inf) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= least
