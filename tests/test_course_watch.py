"""Tampering is undone and named; the library's own version of an answer is found however it got there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pace import slowness

import underload
from underload.course import points, watch
from underload.course.process import Limits, Process

if TYPE_CHECKING:
    from underload.course.process import Tested

pytestmark = pytest.mark.slow
needs_processes = pytest.mark.skipif(sys.platform == "win32", reason="grading needs Linux or macOS")

SET_UP = """
import numpy as np
from underload import metrics
from underload.course import Points
from underload.decoder import detokenize
from underload.labs import latency_budget as lab, why_batching_wins

class Fake:
    def __getattr__(self, name):
        return lambda *arguments, **more: b""
fake = Fake()
def given_percentile(values, q):
    return metrics.percentile(values, q)
"""
GIVEN = ["np", "metrics", "Points", "detokenize", "lab", "given_percentile", "fake", "Fake"]
LIBRARY = ["underload.metrics.percentile", "underload.decoder.detokenize.Detokenizer"]

# The oracle is the library itself, called by the test.
ORACLE = """
points = Points(2)
with points.check(2, "as the library"):
    values = list(range(1, 101))
    assert percentile(values, 50) == metrics.percentile(values, 50)
points.earned()
"""
OWN = "def percentile(values, q):\n    return np.percentile(list(values), q)"


@pytest.fixture(scope="module")
def root() -> Iterator[Process]:
    with Process.start(limits=Limits(cell_seconds=20, check_seconds=5)) as process:
        ran = process.run(SET_UP, name="set-up", seconds=60)
        assert ran.error == "", ran
        yield process


@pytest.fixture
def student(root: Process) -> Iterator[Process]:
    with root.fork() as process:
        yield process


def check(process: Process, answer: str, test: str = ORACLE, library: list[str] = LIBRARY) -> Tested:
    assert process.run(answer, name="task-1-solution").error == ""
    return process.test(test, name="task-1-check", library=library, given=GIVEN)


# --- the library's own version


@needs_processes
@pytest.mark.parametrize(
    "answer",
    [
        "from underload.metrics import percentile",
        "from underload.metrics import percentile as p\ndef percentile(values, q): return p(values, q)",
        "percentile = metrics.percentile",
        "def percentile(values, q): return metrics.percentile(values, q)",
        "def percentile(values, q): return getattr(metrics, 'per' + 'centile')(values, q)",
        "import importlib\ndef percentile(v, q): return importlib.import_module('underload.metrics').percentile(v, q)",
        "def percentile(v, q): return __import__('underload.metrics.percentiles').metrics.percentiles.percentile(v, q)",
        "import sys\ndef percentile(v, q): return sys.modules['underload.metrics'].percentile(v, q)",
        "import functools\npercentile = functools.partial(metrics.percentile)",
        "import functools\npercentile = functools.lru_cache(metrics.percentile)",
        "import types\npercentile = types.FunctionType(metrics.percentile.__code__, metrics.percentile.__globals__)",
        "import types\nf = metrics.percentile\ndef percentile(v, q):\n"
        "    return types.FunctionType(f.__code__.replace(co_flags=f.__code__.co_flags), f.__globals__)(v, q)",
        "percentile = lambda v, q: [metrics.percentile(v, q) for _ in 'x'][0]",
        "def percentile(v, q): return next(map(lambda w: metrics.percentile(w, q), [v]))",
        "def percentile(v, q): return next(map(metrics.percentile, [v], [q]))",
        "def percentile(v, q): return eval('metrics.percentile(v, q)', dict(globals(), v=v, q=q))",
        "exec('def percentile(v, q): return metrics.percentile(v, q)')",
        "exec('def percentile(*a):\\n    import underload as u\\n    return u.metrics.percentile(*a)', {}, globals())",
        "class P:\n    def __call__(self, v, q): return metrics.percentile(v, q)\npercentile = P()",
        "class P:\n    p = staticmethod(metrics.percentile)\npercentile = P.p",
        "class P:\n    def __init__(self): self.p = metrics.percentile\npercentile = P().p",
        "import sys\ndef percentile(v, q):\n    x = metrics.percentile(v, q)\n    return x",
        "def percentile(v, q): return given_percentile(v, q)",
        "def percentile(v, q):\n    try:\n        return metrics.percentile(v, q)\n    finally: pass",
        "from concurrent.futures import ThreadPoolExecutor as Pool\ndef percentile(v, q):\n"
        "    with Pool(1) as p: return p.submit(metrics.percentile, v, q).result()",
        "exec(compile('def percentile(*a): return metrics.percentile(*a)', 'helper.py', 'exec'))",
        "exec(compile('def percentile(*a): return metrics.percentile(*a)', '<cell set-up>', 'exec'))",
        "exec(compile('def percentile(*a): return metrics.percentile(*a)', '<cell task-1-check>', 'exec'))",
        "exec(compile('def percentile(*a): return metrics.percentile(*a)', np.__file__, 'exec'),\n"
        "     {'__name__': 'numpy', 'metrics': metrics}, globals())",
        "open('own.py','w').write('from underload import metrics\\ndef percentile(*a):return metrics.percentile(*a)')\n"
        "from own import percentile",
    ],
)
def test_the_library_s_own_version_is_found(student: Process, answer: str) -> None:
    tested = check(student, answer)
    assert (tested.points, tested.used) == (0, "underload.metrics.percentile"), tested


@needs_processes
@pytest.mark.parametrize(
    "answer",
    [
        OWN,
        OWN + "\nprint(percentile([1, 2], 50), metrics.percentile([1, 2], 50))",
        OWN + "\nfrom underload.metrics import percentile as theirs\ndef compare(): return theirs([1], 50)",
        "from underload.metrics import percentile\n" + OWN,
        OWN + "\nreference = metrics.percentile",
        OWN + "\nother = detokenize.Detokenizer",
    ],
)
def test_an_answer_of_one_s_own_is_left_alone(student: Process, answer: str) -> None:
    tested = check(student, answer)
    assert (tested.points, tested.used, tested.error) == (2, "", ""), tested


@needs_processes
def test_what_the_test_does_with_the_library_is_its_own_affair(student: Process) -> None:
    test = """
points = Points(2)
def expected(values): return given_percentile(values, 50)
stream = (metrics.percentile([x, x], 50) for x in range(5))
with points.check(1, "given"):
    assert percentile([1, 2, 3], 50) == expected([1, 2, 3])
with points.check(1, "streamed"):
    assert total(stream) == 10
points.earned()
"""
    tested = check(student, OWN + "\ndef total(stream): return sum(stream)", test)
    assert (tested.points, tested.used) == (2, ""), tested


@needs_processes
@pytest.mark.parametrize(
    "answer",
    [
        "Mine = detokenize.Detokenizer",
        "class Mine(detokenize.Detokenizer): pass",
        "class Mine(detokenize.Detokenizer):\n    def push(self, *a): return super().push(*a)",
        "def Mine(*a, **k): return detokenize.Detokenizer(*a, **k)",
        "class Mine:\n    def __init__(self, *a): self._it = detokenize.Detokenizer(*a)\n"
        "    def push(self, *a): return self._it.push(*a)",
        "class Mine:\n    __init__ = detokenize.Detokenizer.__init__\n    push = detokenize.Detokenizer.push",
        "Mine = type('Mine', (), {'__init__': detokenize.Detokenizer.__init__})",
        "Mine = [detokenize.Detokenizer.__new__(detokenize.Detokenizer)]",
    ],
    ids=range(8),
)
def test_a_class_of_the_library_is_found(student: Process, answer: str) -> None:
    test = """
points = Points(1)
with points.check(1, "pieces"):
    Mine(fake)
points.earned()
"""
    tested = check(student, answer, test)
    assert (tested.points, tested.used) == (0, "underload.decoder.detokenize.Detokenizer"), tested


@needs_processes
@pytest.mark.parametrize(
    "answer",
    [
        "import sys\ndef percentile(v, q):\n    sys.setprofile(None)\n    return metrics.percentile(v, q)",
        "import sys\ndef percentile(v, q):\n    kept = sys.getprofile()\n"
        "    sys.setprofile(None)\n    x = metrics.percentile(v, q)\n    sys.setprofile(kept)\n"
        "    return x",
        "import cProfile\ndef percentile(v, q):\n    with cProfile.Profile(): return metrics.percentile(v, q)",
    ],
)
def test_switching_the_watch_off_is_seen(student: Process, answer: str) -> None:
    tested = check(student, answer)
    assert (tested.points, tested.used) == (0, watch.SWITCHED_OFF), tested


@needs_processes
def test_a_check_of_the_lab_is_no_oracle(student: Process) -> None:
    answer = """
from underload.labs import why_batching_wins as checks
def answer(o, t):
    try:
        checks.check_knee(lambda *a: 0.0, o, t)
    except AssertionError as error:
        return float(str(error).rpartition(" ")[2])
"""
    test = """
from underload.labs import why_batching_wins as checks
points = Points(1)
with points.check(1, "knee"):
    checks.check_knee(answer)
points.earned()
"""
    tested = check(student, answer, test, [])
    assert (tested.points, tested.used) == (0, "underload.labs.why_batching_wins.check_knee"), tested


@needs_processes
def test_use_before_the_end_counts_when_the_test_does_not_end(student: Process) -> None:
    test = ORACLE.replace("points.earned()", "with points.check(0, 'more'):\n    end()\npoints.earned()")
    tested = check(
        student, "import os\ndef percentile(v, q): return metrics.percentile(v, q)\ndef end(): os._exit(0)", test
    )
    assert (tested.points, tested.used, tested.ended) == (0, "underload.metrics.percentile", "died")


def test_a_name_that_the_library_lacks_is_refused() -> None:
    with pytest.raises(LookupError, match=r"the library has no 'underload\.metrics\.nothing'"):
        watch.Watch(["underload.metrics.nothing"])
    assert watch.resolve("underload.course.points.Points.check") is points.Points.check


class Base:
    def asked(self) -> bool:
        return False


class Borrows(Base):
    lent = Base.asked

    def own(self) -> bool:
        return True


@pytest.mark.parametrize(("calls", "used"), [("Base().asked()", ""), ("Borrows().own()", f"{__name__}.Borrows")])
def test_a_method_that_a_class_has_from_another_is_not_its_own(calls: str, used: str) -> None:
    seen = watch.Watch([f"{__name__}.Borrows"])
    with seen:
        exec(compile(calls, "<cell 1>", "exec"), {"Base": Base, "Borrows": Borrows})
    assert seen.used == used


# --- tampering


@needs_processes
@pytest.mark.parametrize(
    ("tampering", "named"),
    [
        ("lab.percentile = None", None),
        ("metrics.percentile = lambda v, q: 7", "underload.metrics.percentile"),
        ("metrics.percentile.__code__ = (lambda values, q: 7).__code__", "underload.metrics.percentiles.percentile"),
        ("metrics.percentile.__defaults__ = (1, 2)", "underload.metrics.percentiles.percentile"),
        ("import contextlib\n@contextlib.contextmanager\ndef fake(self, worth, what):\n"
         "    from underload.course.points import Check\n    try: yield\n"
         "    except Exception: pass\n    self.checks.append(Check(what, worth, worth))\n"
         "Points.check = fake", "underload.course.points.Points.check"),
        ("Points.check.__wrapped__.__code__ = Points.draw.__code__", "underload.course.points.Points.check"),
        ("Points.earned = lambda self: 99", "underload.course.points.Points.earned"),
        ("from underload.course import points as p\np.Points = None", "underload.course.points.Points"),
        ("from underload.course import points as p\np.Check.earned = property(lambda self: 9)",
         "underload.course.points.Check.earned"),
        ("from underload.course import points as p\np.Earned.__eq__ = lambda *a: True",
         "underload.course.points.Earned.__eq__"),
        ("from underload.course import points as p\np.sum = lambda *a: 99", "underload.course.points.sum"),
        ("import builtins\nbuiltins.abs = lambda x: 0", "builtins.abs"),
        ("import builtins\nbuiltins.sum = lambda x: 99", "builtins.sum"),
        ("import builtins\nbuiltins.AssertionError = NotImplementedError", "builtins.AssertionError"),
        ("import sys, types\nsys.modules['underload.metrics'] = types.ModuleType('x')", "underload.metrics"),
        ("np.random.default_rng = lambda *a: None", "numpy.random.default_rng"),
        ("np.isclose = np.allclose = lambda *a, **k: True", "numpy.allclose"),
        ("import math\nmath.isclose = lambda *a, **k: True", "math.isclose"),
        ("from underload.course import inside\ninside.Test.run = None", "underload.course.inside.Test.run"),
        ("from underload.course import wire\n"
         "wire.receive = lambda source, former=wire.receive: former(source)", "underload.course.wire.receive"),
        ("import ast\nast.parse = None", "ast.parse"),
        ("np.isclose.__wrapped__.__code__ = (lambda *a, **k: True).__code__", "numpy.isclose"),
        ("import contextlib as c\nc._GeneratorContextManager.__exit__ = lambda self, *e: (next(self.gen, 0), True)[1]",
         "contextlib._GeneratorContextManager.__exit__"),
        ("import warnings\nf = warnings.catch_warnings.__exit__\n"
         "warnings.catch_warnings.__exit__ = lambda self, *e: (f(self, *e), True)[1]",
         "warnings.catch_warnings.__exit__"),
        ("import asyncio\nasyncio.BaseEventLoop.run_until_complete = lambda *a: 99",
         "asyncio.base_events.BaseEventLoop.run_until_complete"),
        ("import asyncio\nasyncio.get_event_loop().run_until_complete = lambda work: work.close()", None),
        ("get_ipython().input_transformers_cleanup.append(lambda lines: ['points.earned()'])", None),
        ("get_ipython().transform_cell = lambda text: 'points.earned()'", None),
        ("from IPython.core.builtin_trap import BuiltinTrap\nBuiltinTrap.__enter__ = None", None),
        ("import types\nclass Module(types.ModuleType):\n    percentile = lambda *a: 7\n"
         "    def __getattribute__(self, name): return type(self).percentile\nmetrics.__class__ = Module",
         "underload.metrics"),
        ("import sys\nsys.meta_path.insert(0, None)", None),
        ("from underload.labs import why_batching_wins as w\nw._NO_TIME = 1.0",
         "underload.labs.why_batching_wins._NO_TIME"),
        ("from underload import shapes\nvars(shapes.shape('smollm2-135m'))['num_layers'] = 0",
         "underload.shapes.named._ALL"),
        ("metrics = None", "metrics"),
        ("del metrics", "metrics"),
        ("Points = None", "Points"),
        ("given_percentile = lambda *a: 7", "given_percentile"),
    ],
)  # fmt: skip
def test_tampering_is_undone_and_named(student: Process, tampering: str, named: str | None) -> None:
    test = """
import math
from underload.metrics import percentile as fresh
points = Points(2)
with points.check(1, "right"):
    assert given_percentile([1, 2, 3], 50) == metrics.percentile([1, 2, 3], 50) == fresh([1, 2, 3], 50) == 2
    assert not np.allclose(1, 2) and not math.isclose(1, 2) and abs(-2) == 2 and sum([1]) == 1
    assert 0 <= points.draw().integers(10) < 10
with points.check(1, "wrong"):
    assert answer == 1, "no"
points.earned()
"""
    tested = check(student, "answer = 2\n" + tampering, test)
    assert (tested.points, tested.error) == (1, ""), tested
    assert [one.said for one in tested.checks] == ["", "no"]
    if named:
        assert any(named in one for one in tested.restored), tested
    else:
        assert tested.restored == ()


@needs_processes
@pytest.mark.parametrize(
    ("tampering", "named"),
    [
        ("lab._close = lambda *a: True", "underload.labs.latency_budget._close"),
        ("lab.check_calls = lambda *a: None", "underload.labs.latency_budget.check_calls"),
        ("Points.check = None", "underload.course.points.Points.check"),
        ("import contextlib\n    contextlib._GeneratorContextManager.__exit__ = lambda *a: True",
         "contextlib._GeneratorContextManager.__exit__"),
    ],
)  # fmt: skip
def test_what_an_answer_changes_while_it_is_checked_costs_the_check(
    student: Process, tampering: str, named: str
) -> None:
    test = """
points = Points(3)
with points.check(1, "changes"):
    answer()
with points.check(1, "wrong"):
    assert lab._close(1.0, 2.0), "no"
with points.check(1, "right"):
    assert lab._close(2.0, 2.0)
points.earned()
"""
    tested = check(student, f"def answer():\n    {tampering}", test)
    said = [one.said for one in tested.checks]
    assert tested.points == 1 and said[1:] == ["no", ""] and named in said[0], tested
    assert tested.restored == (named,)


@needs_processes
def test_a_given_cell_after_a_student_s_finds_the_library_as_it_was(root: Process) -> None:
    poison = """
import types, underload.labs, underload.course
import builtins
underload.labs.latency_budget = types.ModuleType("fake")
underload.course.Points = None
get_ipython().input_transformers_cleanup.append(lambda lines: ["1/0"])
builtins.abs = lambda value: 7
"""
    with root.fork() as student:
        assert student.run(poison, name="own").error == ""
        assert student.run(SET_UP + "size = abs(-2)", name="set-up", given=True).error == ""
        test = """
points = Points(1)
with points.check(1, "as it was"):
    assert lab.check_calls and size == 2
points.earned()
"""
        tested = student.test(test, name="c", given=[*GIVEN, "size"])
        assert tested.points == 1, tested
        assert {"underload.course.Points", "underload.labs.latency_budget", "builtins.abs"} <= set(tested.restored)


@needs_processes
def test_builtins_that_the_student_shadowed_are_the_student_s_own(student: Process) -> None:
    answer = """
sum = 3
list = dict
max = lambda *a: 99
def f(values): return max(values), sum
"""
    test = """
points = Points(1)
with points.check(1, "both"):
    assert sum(list([1, 2])) == 3 and max(1, 2) == 2
    assert f([1]) == (99, 3)
points.earned()
"""
    tested = check(student, answer, test)
    assert (tested.points, tested.restored) == (1, ()), tested
    assert student.run("sum, max(1)", name="x").output == "(3, 99)\n"


RESTORED = ("underload.labs.latency_budget.check_calls", "underload.metrics.percentile")


@needs_processes
def test_a_given_cell_in_the_student_s_process_counts_as_given(student: Process) -> None:
    code = "def helper(): return metrics.percentile([1, 2, 3], 50)\nscale, large = 2, 10**9"
    assert student.run(code, name="given-2", given=True).error == ""
    assert student.run("large = int('1000000000')", name="equal").error == ""
    assert student.run("scale = 5\ndef f(): return scale", name="own").error == ""
    assert student.run("metrics.percentile = lambda *a: 9\nlab.check_calls = None", name="own-2").error == ""
    test = """
points = Points(1)
with points.check(1, "both"):
    assert helper() == 2 and scale == 2 and f() == 5
points.earned()
"""
    tested = student.test(test, name="c", library=LIBRARY, given=[*GIVEN, "helper", "scale", "large"])
    assert (tested.points, tested.used, tested.restored) == (1, "", ("scale", *RESTORED)), tested


@needs_processes
def test_nothing_is_restored_where_nothing_was_touched(student: Process) -> None:
    answer = (
        """
import random, warnings, torch, scipy.stats, matplotlib.pyplot as plt
import underload.shapes, underload.figures, underload.labs.start_here
np.random.seed(3); random.seed(3); np.set_printoptions(precision=3); warnings.simplefilter("ignore")
with np.errstate(all="ignore"): np.ones(3) / 0
plt.plot([1, 2]); plt.style.use("ggplot")
"""
        + OWN
    )
    tested = check(student, answer)
    assert (tested.points, tested.restored) == (2, ()), tested


@needs_processes
@pytest.mark.parametrize("name", ["all", "map"])
def test_a_builtin_that_the_comparison_itself_uses_is_put_back(student: Process, name: str) -> None:
    answer = f"import builtins\nbuiltins.{name} = lambda *_: True\nmetrics.percentile = None\n" + OWN
    tested = check(student, answer)
    assert {f"builtins.{name}", "underload.metrics.percentile"} <= set(tested.restored), tested


def test_what_nobody_touched_is_looked_through_in_few_calls() -> None:
    fingerprint = watch.Fingerprint()
    seen = 0

    def count(*_: object) -> None:
        nonlocal seen
        seen += 1

    sys.setprofile(count)
    try:
        found = fingerprint.restore()
    finally:
        sys.setprofile(None)
    # Within a test the watch is called as often, after every check.
    assert found == [] and len(fingerprint._functions) > 1000 and seen < 2000


def test_what_is_added_later_hides_nothing_that_was_changed_before() -> None:
    fingerprint = watch.Fingerprint()
    kept = points.Points.earned
    points.Points.earned = lambda self: 4.0  # type: ignore[assignment]
    try:
        fingerprint.add(["math"])
        assert fingerprint.restore() == ["underload.course.points.Points.earned"] and fingerprint.restore() == []
        assert points.Points.earned is kept
    finally:
        points.Points.earned = kept  # type: ignore[method-assign]


def test_what_other_packages_change_when_they_are_imported_is_no_tampering() -> None:
    code = """
from underload.course import watch
import sys, underload.labs.latency_budget
fingerprint = watch.Fingerprint()
assert "torch" not in sys.modules
import torch, numba, scipy.stats, matplotlib.pyplot, unittest.mock
print(fingerprint.restore())
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(underload.__file__).parents[1])}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert ran.stdout == "[]\n", ran


def test_a_fingerprint_is_quick() -> None:
    """In a process that holds what one holds that runs a lab's cells, whatever else these tests have loaded."""
    code = """
import time, underload.labs.latency_budget
from underload.course import watch
taken = []
for _ in range(5):
    start = time.process_time()
    watch.Fingerprint()
    taken.append(time.process_time() - start)
print(min(taken))
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(underload.__file__).parents[1])}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert float(ran.stdout) < 0.05 * slowness()


def test_a_fingerprint_names_what_it_puts_back() -> None:
    import underload.labs.latency_budget as lab

    fingerprint = watch.Fingerprint()
    assert fingerprint.restore() == []
    kept: dict[str, Any] = {"number": points.number, "card": points.Points.check, "code": points.card.__code__}
    points.number = lambda value: "x"  # type: ignore[assignment]
    points.Points.check = None  # type: ignore[assignment, method-assign]
    points.card.__code__ = (lambda earned: "x").__code__
    lab.len = lambda value: 3  # type: ignore[attr-defined]
    assert fingerprint.restore() == [
        "underload.course.points.Points.check",
        "underload.course.points.card",
        "underload.course.points.number",
        "underload.labs.latency_budget.len",
    ]
    assert (points.number, points.Points.check, points.card.__code__) == tuple(kept.values())
    assert not hasattr(lab, "len") and fingerprint.restore() == []
