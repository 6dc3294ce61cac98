"""Labs as assignments: what is made from a lab's source, and what becomes of what comes back.

A lab is one notebook, `labs/NAME.ipynb`: the instructor's source, solutions and hidden tests included, marked the way
nbgrader marks them. Its tasks have parts, a part is one graded cell, and a part's points come from checks.

    the source      marks, source, outline, points (what a test cell is made of), inspection (what is wrong with it),
                    store (its stored outputs)
    made from it    handout, page (in the book), answers, copies (a reader's own), secrets (what these must not hold)
    handed out      release, changes, readme, personal (numbers of one's own, from a secret), roster, shelf; check (a
                    student's own)
    what came back  submission, arrivals, student -> assemble (the steps to run) -> attempt, grade -> results, ledger
    compared        leaderboard (policies on held-back loads, ranked)
    running it      process and inside (a process that runs cells and can be forked), wire, sandbox (what it may
                    touch), watch (tampering, and the library's own version)
    told            report, summary, table, feedback, titles, similar, marking (of open answers), lms, gradebook,
                    gradescope, stale, render
    the grader      wrong (typical wrong answers), verify (that each earns what it should)

Three things always hold. A hand-out contains nothing of a solution or a hidden test. What a submission holds never
stops another's grading, and costs points only where an answer is wrong, missing, or not the student's own. A result
depends on the submission, the lab, the class's secret and the limits alone, so that grading can stop and go on.
Nothing heavy is imported with this package, which every lab and every process that runs cells imports; nbformat is
loaded where a notebook is read or written.
"""

from underload.course.answers import Answer, solution, tasks
from underload.course.copies import Copy, find_labs, refresh_copies
from underload.course.handout import handout
from underload.course.inspection import faults
from underload.course.marks import LabError
from underload.course.page import lab_page
from underload.course.points import Points
from underload.course.secrets import Secrets, secrets
from underload.course.source import read_notebook, write_notebook

__all__ = [
    "Answer",
    "Copy",
    "LabError",
    "Points",
    "Secrets",
    "faults",
    "find_labs",
    "handout",
    "lab_page",
    "read_notebook",
    "refresh_copies",
    "secrets",
    "solution",
    "tasks",
    "write_notebook",
]
