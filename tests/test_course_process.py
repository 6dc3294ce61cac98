"""The process that runs a student's cells: as a notebook does, within limits, and copied at any moment."""

from __future__ import annotations

import os
import shutil
import sys
import time
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from underload.course import LabError
from underload.course.process import Limits, Process, Ran, _from_ps

if TYPE_CHECKING:
    from underload.course.process import Tested  # pytest would take it for tests

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="grading needs Linux or macOS")]
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

SET_UP = """
import asyncio, os, sys, threading, time
import numpy as np
from underload.course import Points
limit = 3
"""
GIVEN = {"asyncio", "os", "sys", "threading", "time", "np", "Points", "limit"}
LIMITS = Limits(cell_seconds=0.5, check_seconds=0.3, memory=256 << 20, output=2000, file_size=1 << 20)

TWO_CHECKS = """
points = Points(3)
with points.check(1, "one"):
    assert f(1) == 2
with points.check(2, "two"):
    assert f(2) == 4, f"f(2) is {f(2)}"
points.earned()
"""


@pytest.fixture(scope="module")
def root() -> Iterator[Process]:
    with Process.start(limits=LIMITS) as process:
        assert process.run(SET_UP, name="set-up", seconds=60).error == ""
        yield process


@pytest.fixture
def student(root: Process) -> Iterator[Process]:
    with root.fork() as process:
        yield process


def run(process: Process, code: str) -> Ran:
    return process.run(code, name="task-1-solution")


def check(process: Process, code: str = TWO_CHECKS, **more: object) -> Tested:
    return process.test(code, name="task-1-check", given=GIVEN, **more)  # type: ignore[arg-type]


# --- cells


def test_a_cell_runs_as_in_a_notebook(student: Process) -> None:
    ran = run(student, "print('hello')\nx = 2\nx + 1")
    assert (ran.error, ran.output, ran.ended, ran.cut) == ("", "hello\n3\n", "done", False)
    assert run(student, "_ + x").output == "5\n"
    assert run(student, "await asyncio.sleep(0)\nx;").output == ""
    assert run(student, "from IPython.display import display\ndisplay({'a': 1})").output == "{'a': 1}\n"
    assert run(student, "get_ipython().user_ns['x']").output == "2\n"
    assert (
        "asyncio.run() cannot be called from a running event loop"
        in run(student, "asyncio.run(asyncio.sleep(0))").error
    )
    assert run(student, "async def g():\n    return 7\ntask = asyncio.create_task(g())").error == ""
    assert run(student, "await task").output == "7\n"


@pytest.mark.parametrize(
    "code", ["x = '\0'", "x = '\ud800'", "-" * 100_000 + "1", "(" * 1000, "x" * 1000 + "?", "%nothing"]
)
def test_a_source_that_is_no_python_costs_itself_only(root: Process, code: str) -> None:
    with root.fork() as process:
        ran = process.run(code, name="x", seconds=10)
        assert ran.error or "not found" in ran.output
        assert ran.ended == "died" or run(process, "limit").output == "3\n"


def test_cells_of_one_name_are_told_apart(student: Process) -> None:
    student.run("def f(x):\n    return 1 / x", name="own")
    student.run("y = 0", name="own")
    ran = student.run("f(y)", name="own\n\0<>")
    assert (
        "return 1 / x" in ran.traceback and "<cell own (2)>" not in ran.traceback and "<cell own____>" in ran.traceback
    )


def test_an_error_is_told_in_a_line_and_with_the_lines_it_came_through(student: Process) -> None:
    assert run(student, "def half(x):\n    return x / 0").error == ""
    ran = student.run("y = 1\nhalf(y)", name="task-2")
    assert ran.error == "ZeroDivisionError: division by zero"
    assert "<cell task-2>" in ran.traceback and "return x / 0" in ran.traceback
    assert "inside.py" not in ran.traceback and "IPython" not in ran.traceback
    assert run(student, "y").output == "1\n"
    assert run(student, "def f(:").error.startswith("SyntaxError: invalid syntax")
    assert run(student, "raise KeyError('k')").error == "KeyError: 'k'"
    assert run(student, "def f(n): return f(n + 1)\nf(0)").error.startswith("RecursionError")
    assert run(student, "class E(Exception):\n    def __str__(self): raise ValueError\nraise E").error == "E"
    assert run(student, "sys.exit('bye')").error == "SystemExit: bye"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("input('name? ')", "EOFError: nobody answers input()"),
        ("import getpass; getpass.getpass()", "nobody answers"),
        ("exit()", "exit() does nothing in a graded notebook"),
        ("quit()", "exit() does nothing in a graded notebook"),
        ("!ls", "not run in a graded notebook: ls"),
        ("x = !ls -l\nx", "not run in a graded notebook: ls -l"),
        ("%timeit -n1 -r1 pass", "per loop"),
        ("%%bash\nls", "may not start programs"),
        ("print = 3\n1 + 1", "2"),
        ("import builtins\nbuiltins.print = None\n1 + 1", "2"),
        ("sys.stdout = None\n1 + 1", "2"),
        ("sys.setrecursionlimit(50)\n1 + 1", "2"),
        ("%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1]); plt.show()\nlen(plt.get_fignums())", "1"),
        ("import ipywidgets\nipywidgets.interact(lambda x: print('x', x), x=4);", "x 4"),
        ("import tqdm.auto\nfor i in tqdm.auto.tqdm(range(2)): pass", "2/2"),
    ],
)
def test_what_waits_for_a_person_or_a_screen_does_not_hang(student: Process, code: str, told: str) -> None:
    ran = student.run(code, name="x", seconds=20)
    assert told in ran.output + ran.error
    assert ran.ended == "done"
    assert run(student, "'still here'").output == "'still here'\n"


def test_output_is_cut_in_its_middle(student: Process) -> None:
    ran = run(student, "print('a' * 10**8)\nprint('the end')")
    assert ran.cut and len(ran.output) < 2100
    assert ran.output.startswith("aaa") and ran.output.endswith("the end\n") and "100,000,0" not in ran.output[:10]
    ran = run(student, "for i in range(10_000): print(i)")
    assert ran.cut and ran.output.startswith("0\n1\n2\n") and ran.output.endswith("9998\n9999\n")
    assert run(student, "'x' * 10**6").cut
    assert not run(student, "print('short')").cut


def test_one_thread_only_and_the_grader_s_secrets_stay_outside(root: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPLOAD_TOKEN", "secret")
    with Process.start() as fresh:
        assert fresh.run("import os; 'UPLOAD_TOKEN' in os.environ", name="x").output == "False\n"
    names = "OMP_NUM_THREADS NUMBA_NUM_THREADS OPENBLAS_NUM_THREADS MKL_NUM_THREADS NUMBA_THREADING_LAYER"
    with root.fork() as process:
        ran = run(process, f"[os.environ[name] for name in {names.split()}]")
        assert ran.output == "['1', '1', '1', '1', 'workqueue']\n"
        assert run(process, "threading.active_count()").output == "1\n"


# --- limits


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "while True:\n    try:\n        1 + 1\n    except Exception: pass",
        "await asyncio.sleep(1000)",
        "time.sleep(1000)",
        "try:\n    while True: pass\nexcept KeyboardInterrupt: pass",
    ],
)
def test_a_cell_without_end_is_interrupted_and_its_state_kept(root: Process, code: str) -> None:
    with root.fork() as process:
        process.limits = Limits(cell_seconds=0.2)
        run(process, "x = 5")
        ran = run(process, code)
        assert (ran.ended, ran.error) == ("time", "did not end within 0.2 s")
        assert process.alive
        assert run(process, "x").output == "5\n"


@pytest.mark.parametrize(
    "code",
    [
        "while True:\n    try:\n        time.sleep(100)\n    except BaseException: pass",
        "sum(range(10**12))",
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
    ],
)
def test_a_cell_that_cannot_be_interrupted_is_killed(root: Process, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("underload.course.process._KILL_AFTER", 0.3)
    with root.fork() as process:
        ran = process.run(code, name="x", seconds=0.2)
        assert (ran.ended, ran.error) == ("time", "did not end within 0.2 s")
        assert not process.alive
        with pytest.raises(LabError, match=r"has ended \(did not end within 0.2 s\); fork another from its root"):
            run(process, "1")
    with root.fork() as again:
        assert run(again, "limit").output == "3\n"


@pytest.mark.parametrize(
    "code",
    [
        "os._exit(0)",
        "os.kill(os.getpid(), 9)",
        "import ctypes; ctypes.string_at(0)",
        "sys.setrecursionlimit(10**8)\nclass A:\n    def __repr__(self): return repr(self)\nrepr(A())",
        "os.closerange(3, 1000)",
    ],
)
def test_a_process_that_ends_itself_ends_nobody_else(root: Process, code: str) -> None:
    with root.fork() as process, root.fork() as other:
        ran = process.run(code, name="x", seconds=10)
        assert ran.ended == "died" and ran.error.startswith("ended the process")
        assert not process.alive
        with pytest.raises(LabError, match="has ended"):
            check(process)
        assert run(other, "limit").output == "3\n"


def test_memory_has_a_limit(root: Process) -> None:
    with root.fork() as process:
        assert run(process, "np.ones(10**9)").error.startswith("MemoryError: Unable to allocate")
        assert run(process, "limit").output == "3\n"
        ran = process.run("x = []\nwhile True: x.append(bytearray(10**6))", name="x", seconds=20)
        assert (ran.ended, ran.error) == ("memory", "needed more than 256 MB of memory")
        assert not process.alive
    with root.fork() as outer, outer.fork() as process:  # nothing is left to answer with
        assert process.run("x = []\nwhile True: x.append(object())", name="x", seconds=20).ended == "memory"
    with root.fork() as process:
        assert run(process, "x = np.ones(10**7)\nlen(x)").output == "10000000\n"


@linux
def test_memory_is_watched_from_outside_too(root: Process) -> None:
    with root.fork() as process:  # shared memory is not counted by the limit that the process itself runs into
        ran = process.run(
            "import mmap\nx = mmap.mmap(-1, 10**9)\nfor i in range(90): x.write(bytes(10**7))\ntime.sleep(60)",
            name="x",
            seconds=20,
        )
        assert ran.ended == "memory"
        assert not process.alive


def test_a_thread_left_running_costs_only_its_own_process(student: Process) -> None:
    ran = run(
        student, "def go():\n    while True: print('on and on')\nthreading.Thread(target=go, daemon=True).start()"
    )
    assert ran.error == "" and ran.ended == "done"
    assert run(student, "def f(x): return 2 * x").ended == "done"
    assert check(student).points == 3
    run(
        student,
        "from concurrent.futures import ThreadPoolExecutor as Pool\n"
        "def f(x):\n    with Pool(2) as pool: return pool.submit(lambda: 2 * x).result()",
    )
    assert check(student).points == 3


@pytest.mark.parametrize("forged", [b"\xff\xff\xff\xff", b"\0\0\0\2[]", b"\0\0\0\1{", b'\0\0\0\x0e{"number": 99}'])
def test_a_hostile_answer_is_not_believed(student: Process, forged: bytes) -> None:
    code = f"""
import gc
from underload.course.inside import Inside
next(one for one in gc.get_objects() if type(one) is Inside).commands.sendall({forged!r})
"""
    assert run(student, code).ended == "died"
    assert not student.alive


# --- forks


def test_a_fork_is_a_copy(root: Process) -> None:
    with root.fork() as one, root.fork() as other:
        run(one, "x = [1]\nlimit = 99")
        with one.fork() as below, one.fork() as second:
            run(below, "x.append(2)")
            run(one, "x.append(3)")
            assert run(below, "x").output == "[1, 2]\n"
            assert run(one, "x").output == "[1, 3]\n"
            assert run(second, "x").output == "[1]\n"
            assert below.shut_in and below.folder == one.folder
        assert run(other, "limit, 'x' in dir()").output == "(3, False)\n"
        assert run(one, "x").output == "[1, 3]\n"
    assert root.run("limit", name="x").output == "3\n"


def test_forks_have_folders_of_their_own(root: Process, tmp_path: Path) -> None:
    with root.fork() as made, root.fork(folder=tmp_path / "ada") as named:
        assert made.folder.is_dir() and named.folder == (tmp_path / "ada").resolve()
        run(named, "open('note.txt', 'w').write('x')")
        assert (tmp_path / "ada" / "note.txt").read_text() == "x"
        (tmp_path / "ada" / "beside.py").write_text("y = 6\n")
        assert run(named, "import beside; beside.y").output == "6\n"
        with pytest.raises(LabError, match="lies outside"):
            named.fork(folder=tmp_path)
        with named.fork(folder=tmp_path / "ada" / "in") as inner:
            assert run(inner, "os.getcwd()").output == f"'{inner.folder}'\n"
        folder = made.folder
    assert not folder.exists()
    assert (tmp_path / "ada" / "note.txt").exists()


def test_many_may_be_forked_and_used_at_once(root: Process) -> None:
    def one(number: int) -> tuple[str, float]:
        with root.fork() as process:
            run(process, f"def f(x): return x + {number}")
            return run(process, "f(0)").output, check(process).points

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, range(12))) == [(f"{n}\n", float(n == 1) + 2 * (n == 2)) for n in range(12)]


def test_random_numbers_go_on_in_a_fork_where_they_were(root: Process) -> None:
    with root.fork() as process:
        run(process, "import random; random.seed(1); np.random.seed(1)")
        drawn = [run(fork, "random.random(), np.random.random()").output for fork in (process.fork(), process.fork())]
        assert drawn[0] == drawn[1] == run(process, "random.random(), np.random.random()").output


def test_a_fork_that_is_not_shut_in_goes_on_as_the_root(root: Process) -> None:
    with root.fork(shut_in=False) as state:
        state.run("def f(x): return 2 * x\nlimit = 4", name="given")
        with state.fork() as process:
            assert check(process).points == 3
            run(process, "limit = 0")
            tested = process.test(
                "points = Points(1)\nwith points.check(1, 'given'): assert limit == 4\npoints.earned()",
                name="c",
                given=GIVEN,
            )
            assert (tested.points, tested.restored) == (1, ("limit",))


@linux
def test_two_hundred_forks_leave_nothing_behind(root: Process) -> None:
    def handles() -> int:
        return len(os.listdir("/proc/self/fd"))

    def below() -> int:
        return sum(len(Path(f"/proc/{root._watched.pid}/task/{task}/children").read_text().split())
                   for task in os.listdir(f"/proc/{root._watched.pid}/task"))  # fmt: skip

    def inside() -> str:
        return root.run("len(os.listdir('/proc/self/fd'))", name="x").output

    before, inside_before = handles(), inside()
    for _ in range(100):
        with root.fork() as process:
            run(process, "def f(x): return 2 * x")
            assert check(process).points == 3
    assert inside() == inside_before
    assert handles() == before
    end = time.monotonic() + 5
    while below() and time.monotonic() < end:
        time.sleep(0.02)
    assert below() == 0


@linux
def test_closing_kills_what_was_started(root: Process) -> None:
    code = """
import ctypes
for _ in range(3):
    if ctypes.CDLL(None).fork() == 0:
        os.setsid()
        time.sleep(1000)
print(os.getpid())
"""
    process = root.fork()
    pid = int(run(process, code).output)
    children = [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    assert len(children) == 3
    process.close()
    assert not any(_running(one) for one in [pid, *children])


@linux
def test_a_fork_bomb_is_ended(root: Process) -> None:
    code = """
import ctypes
for _ in range(60):
    if ctypes.CDLL(None).fork() == 0:
        time.sleep(60)
time.sleep(60)
"""
    with root.fork() as process:
        ran = process.run(code, name="x", seconds=20)
        assert ran.ended == "died"
        assert not process.alive
    assert root.run("limit", name="x").output == "3\n"


def _running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_closed_process_says_so(root: Process) -> None:
    process = root.fork()
    process.close()
    process.close()
    assert not process.alive
    with pytest.raises(LabError, match="is closed"):
        run(process, "1")


def test_closing_ends_a_cell_that_another_thread_waits_for(root: Process) -> None:
    with ThreadPoolExecutor(2) as pool:
        for waiting in (run, check):
            process = root.fork()
            run(process, "def f(x): time.sleep(100)")
            process.limits = Limits()
            told = pool.submit(waiting, process, "time.sleep(100)\nPoints(1).earned()")
            time.sleep(0.3)
            process.close()
            assert told.result(timeout=20).ended == "died"


def test_closing_a_process_closes_its_forks(root: Process) -> None:
    with root.fork(shut_in=False) as first:
        below = first.fork()
        deeper = below.fork()
    assert not below.alive and not deeper.alive
    assert not below.folder.exists()


def test_on_windows_the_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(LabError, match="run it in WSL"):
        Process.start()


@linux
def test_it_works_where_there_are_no_handles_on_processes(root: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("ps") is None:
        pytest.skip("there is no ps here")
    monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.setattr("underload.course.process.sys", types.SimpleNamespace(platform="darwin"))
    with root.fork() as process:
        assert run(process, "def f(x): return 2 * x").ended == "done"
        assert check(process).points == 3
        assert process.run("while True: pass", name="x", seconds=0.2).ended == "time"
        assert run(process, "f(2)").output == "4\n"
        assert run(process, "os._exit(0)").ended == "died"
        assert not process.alive


def test_what_ps_says_is_read() -> None:
    assert _from_ps("  2048   1:02.50\n") == (62.5, 2 << 20)
    assert _from_ps(" 10 2-03:00:01") == (2 * 86400 + 3 * 3600 + 1, 10240)
    assert _from_ps("") == (0.0, 0)


# --- tests


def test_a_test_gives_its_checks_and_their_sum(student: Process) -> None:
    run(student, "def f(x):\n    print('working')\n    return 2 if x == 1 else 5")
    tested = check(student)
    assert (tested.points, tested.error, tested.used, tested.restored, tested.ended) == (1, "", "", (), "done")
    one, two = tested.checks
    assert (one.what, one.worth, one.earned, one.said, one.printed) == ("one", 1, 1, "", "working\n")
    assert (two.what, two.worth, two.earned, two.said) == ("two", 2, 0, "f(2) is 5")


def test_a_check_that_fails_names_the_student_s_line(student: Process) -> None:
    run(student, "def f(x):\n    y = x - x\n    return 1 / y")
    assert check(student).checks[0].said == "ZeroDivisionError: division by zero\nin f, line 3: return 1 / y"
    assert check(student).checks[0].missing is False
    run(student, "def f(x): raise NotImplementedError")
    assert [one.missing for one in check(student).checks] == [True, True]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("while True: pass", "did not end within 0.3 s\nin f, line"),
        ("time.sleep(100)", "did not end within 0.3 s"),
        ("while True: print('x' * 1000)", "did not end within 0.3 s"),
        ("raise SystemExit", "SystemExit"),
        ("raise KeyboardInterrupt", "ended in KeyboardInterrupt"),
        ("raise GeneratorExit", "ended in GeneratorExit"),
        ("return f(x)", "RecursionError"),
        ("a = []\n    while True: a.append(bytearray(10**6))", "MemoryError"),
        ("a = []\n    while True: a.append((object(), object()))", "MemoryError"),
        ("return np.ones(10**10)", "MemoryError"),
        ("return open('/etc/shadow')", "may not read outside its folder"),
        ("import signal; signal.setitimer(signal.ITIMER_PROF, 0)\n    while True: pass", "did not end within 0.3 s"),
        ("sys.exit(3)", "SystemExit: 3"),
    ],
)
def test_whatever_a_function_does_costs_its_check_only(root: Process, body: str, told: str) -> None:
    with root.fork() as process:
        process.limits = Limits(check_seconds=10 if told == "MemoryError" else 0.3, cell_seconds=20)
        run(process, f"def f(x):\n    if x == 2: return 4\n    {body}")
        tested = check(process)
        assert (tested.points, tested.ended) == (2, "done")
        assert told in tested.checks[0].said
        assert tested.checks[1].earned == 2
        assert run(process, "f(2)").output == "4\n"


def test_a_check_that_never_ends_is_not_taken_for_one_who_switched_the_watch_off(student: Process) -> None:
    """Most of its time goes to the watch, which looks at each of its calls, so there the time is up."""
    student.limits = Limits(check_seconds=0.3, cell_seconds=20)
    run(student, "def mean(x): return x\ndef f(x):\n    while True: mean(x)")
    tested = student.test(
        "points = Points(2)\nwith points.check(1, 'endless'): f(1)\n"
        "with points.check(1, 'fine'): pass\npoints.earned()",
        name="task-1-check",
        library=["underload.metrics.mean"],
        given={"Points"},
    )
    assert tested.used == "" and tested.points == 1
    assert "did not end within 0.3 s" in tested.checks[0].said


def test_after_a_check_that_never_ends_the_others_get_less_time(student: Process) -> None:
    """One endless loop must not take the whole limit in each check; what ends quickly has its points all the same."""
    student.limits = Limits(check_seconds=3, cell_seconds=60)
    run(student, "def f(x):\n    while x < 3: pass\n    return 2 * x")
    tested = check(
        student,
        "points = Points(4)\n"
        + "".join(f"with points.check(1, 'of {x}'):\n    assert f({x}) == {2 * x}\n" for x in (5, 1, 2, 4))
        + "points.earned()",
    )
    assert [one.earned for one in tested.checks] == [1, 0, 0, 1]
    first, second = (one.said.splitlines()[0] for one in tested.checks[1:3])
    assert first == "TimeoutError: did not end within 3 s"
    assert second == "TimeoutError: did not end within 2 s (no longer, since a check before it took all of 3 s)"
    assert 4.5 <= tested.seconds < 5.9  # and not 6


@pytest.mark.parametrize(
    ("body", "ended"),
    [
        ("os._exit(0)", "died"),
        ("os.kill(os.getpid(), 9)", "died"),
        ("import ctypes; ctypes.string_at(0)", "died"),
        ("return sum(range(10**12))", "time"),
        ("while True:\n        try: time.sleep(100)\n        except BaseException: pass", "time"),
    ],
)
def test_a_check_that_takes_the_test_with_it_leaves_those_before(
    root: Process, body: str, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("underload.course.process._KILL_AFTER", 0.3)
    with root.fork() as process:
        process.limits = Limits(check_seconds=0.3, cell_seconds=20)
        run(process, f"def f(x):\n    if x == 1: return 2\n    {body}")
        tested = check(process)
        assert (tested.points, tested.ended) == (1, ended)
        assert [one.earned for one in tested.checks] == [1, 0]
        assert tested.checks[1].said and tested.checks[1].worth == 2 and tested.checks[1].what == "two"
        assert tested.error == tested.checks[1].said
        assert run(process, "f(1)").output == "2\n"


def test_a_test_leaves_no_trace(student: Process) -> None:
    run(student, "seen = []\ndef f(x):\n    seen.append(x)\n    return 2 * x")
    run(student, "before = set(dir())")
    assert check(student, TWO_CHECKS.replace("points.earned()", "secret = f(3)\npoints.earned()")).points == 3
    assert run(student, "seen").output == "[]\n"
    assert run(student, "[name for name in dir() if name not in before and name[0] != '_']").output == "['before']\n"


@linux
def test_the_source_of_a_test_never_is_in_the_student_s_memory(student: Process) -> None:
    look = """
def count(word):
    found = 0
    for line in open('/proc/self/maps'):
        span, rights = line.split()[:2]
        start, end = (int(bound, 16) for bound in span.split('-'))
        if rights.startswith('rw'):
            with open('/proc/self/mem', 'rb', buffering=0) as memory:
                memory.seek(start)
                try:
                    found += memory.read(end - start).count(word)
                except (OSError, OverflowError):
                    pass
    return found
def f(x): return 2 * x
"""
    run(student, look)
    word = bytes(reversed(b"Q7-rekram-neddih"))
    secret = f"note = {word.decode()!r}\n" + TWO_CHECKS
    backwards = word[::-1]
    assert check(student, secret).points == 3
    # found backwards: it was typed backwards into this cell; forwards only in the copies that turning it round makes
    ran = student.run(f"count(bytes({backwards!r}[i] for i in range(15, -1, -1)))", name="look", seconds=20)
    assert ran.error == "" and int(ran.output) <= 2
    kept = student.run(
        f"note = {word.decode()!r}\ncount(bytes({backwards!r}[i] for i in range(15, -1, -1)))", name="kept"
    )
    assert int(kept.output) > 2  # so that it would have been found


def test_the_student_s_threads_stand_still_while_a_test_runs(student: Process) -> None:
    code = """
count = 0
def go():
    global count
    while True:
        count += 1
        time.sleep(0.005)
threading.Thread(target=go, daemon=True).start()
def f(x): return 2 * x
"""
    run(student, code)
    assert check(student).points == 3  # the first test waits half a second for the thread
    before = int(run(student, "count").output)
    assert check(student, "time.sleep(1)\n" + TWO_CHECKS).points == 3
    after = int(run(student, "count").output)
    assert after - before < 150  # of the 200 that a second has room for


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("1 / 0\nPoints(1).earned()", "ZeroDivisionError: division by zero"),
        ("4", "the test cell ends in int; it must end in points.earned()"),
        ("points = Points(1)", "SyntaxError: a test cell must end in points.earned()"),
        ("points = Points(1)\nwith points.check(2, 'x'): pass\npoints.earned()", "ValueError: the checks are worth 2"),
        ("def f(:", "SyntaxError"),
        ("missing_name\nPoints(1).earned()", "NameError: name 'missing_name' is not defined"),
        ("raise SystemExit", "SyntaxError: a test cell must end in"),
        ("sys.exit()", "SystemExit"),
    ],
)
def test_a_test_cell_that_is_wrong_itself_says_so(student: Process, code: str, told: str) -> None:
    tested = check(student, code)
    assert tested.points == 0 and tested.error.startswith(told) and tested.checks == ()


def test_hidden_inputs_come_from_the_seed(student: Process) -> None:
    code = "points = Points(1)\nprint(points.draw().integers(10**9))\npoints.earned()"
    one, same, other = (check(student, code, hidden_seed=seed).output for seed in (b"a", b"a", b"b"))
    assert one == same != other


def test_a_test_may_await(student: Process) -> None:
    run(student, "async def f(x):\n    await asyncio.sleep(0)\n    return 2 * x")
    code = "points = Points(1)\nwith points.check(1, 'a'): assert await f(1) == 2\npoints.earned()"
    assert check(student, code).points == 1


def test_forged_points_do_not_count(student: Process) -> None:
    run(student, "class Earned(float):\n    total, checks = 100, ()\npoints = 3\ndef f(x): return 0")
    assert check(student).points == 0
    assert check(student, "from __main__ import Earned\nEarned(50)").points == 0
    run(
        student, "def f(x):\n    points = sys._getframe(1).f_globals['points']\n    points.total = 99\n    return 2 * x"
    )
    assert check(student).points <= 3


@pytest.mark.parametrize(
    "answer",
    [
        {"checks": [], "total": 1e9},
        {"checks": [{"what": "x", "worth": 1, "earned": 1e9, "said": "", "printed": "", "missing": False}], "total": 1},
        {"checks": [{"what": "x", "worth": float("nan"), "earned": 9, "said": "", "printed": "", "missing": False}]},
        {"checks": 7},
        {"checks": [7]},
        {"now": []},
        {"nonce": "another", "checks": [], "total": 3},
        {},
    ],
)
def test_a_forged_answer_gives_no_more_than_its_checks_are_worth(student: Process, answer: dict[str, object]) -> None:
    # found through the garbage collector: by a student who knows how the grader works
    told = {"error": "", "used": "", "restored": [], "output": ""} | answer
    run(
        student,
        f"""
import gc, json, struct
nan = float("nan")
def f(x):
    from underload.course.inside import Test
    test = next(one for one in gc.get_objects() if type(one) is Test)
    data = json.dumps({{"nonce": test.message["nonce"]}} | {told!r}).encode()
    test.answers.sendall(struct.pack(">I", len(data)) + data)
    time.sleep(60)
""",
    )
    assert 0 <= check(student).points <= 1


def test_what_is_told_can_be_written_down_anywhere(student: Process) -> None:
    ran = run(student, "print('\\ud800 \\x00')\ndef f(x):\n    print('\\udfff')\n    raise ValueError('\\ud800')")
    tested = check(student)
    for text in (ran.output, tested.checks[0].said, tested.checks[0].printed):
        assert text and text.encode() and "\0" not in text
    assert run(student, "raise ValueError('\\ud800')").error.encode() == b"ValueError: ?"


def test_an_unknown_library_name_is_the_lab_s_fault(student: Process) -> None:
    run(student, "def f(x): return 2 * x")
    tested = check(student, library=["underload.metrics.nothing_of_the_kind"])
    assert tested.points == 0 and "the library has no 'underload.metrics.nothing_of_the_kind'" in tested.error
