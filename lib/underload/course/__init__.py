"""A lab's four forms: the instructor's source, the hand-out, the page in the book, the answer to one task.

`labs/NAME.ipynb` is the source, solutions and hidden tests included, marked the way nbgrader marks them.
Everything else is made from it, by functions that take a notebook and return a new one:

    handout(source)            what a reader or student works in: stubs for solutions, no hidden tests, no outputs
    lab_page(source)           what the book shows: the hand-out's text and code with the source's stored pictures
    solution(source, task)     the answer to one task, for a reader without a teacher
    refresh_copies(...)        the reader's own copies on disk: made when missing, never overwritten

`secrets(source)` lists what none of the first two may contain, so that a test can search a built site for it;
`faults(source)` lists what is wrong with a source before anybody runs it.
Needs nbformat only.
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
