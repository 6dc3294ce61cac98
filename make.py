#!/usr/bin/env python3
"""Everything this project does by one word: `make WORD`, or `python3 make.py WORD` where there is no make.

    book            build the book, every cell executed, and say where it is     (--solutions: the instructor's edition)
    page PAGE       build one page only, quickly: python3 make.py page chapters/latency-budget
    lab             open JupyterLab on your own copies of the labs, in my-labs/  (--solutions: on the sources)
    test            everything that can be checked: style, library, book, labs, the book as built
    check           style, types and the tests that are not marked slow
    course          what handing out and grading needs besides, and how to begin
    setup           the environment in .venv, which the others make by themselves
    clean           remove what was built (not .venv, not my-labs)

Python 3.11 or later is needed. The first run installs about 3 GB into .venv; later ones change nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = BIN / ("python.exe" if os.name == "nt" else "python")
BUILD = ROOT / "_build"
NEEDED = (3, 11)

# Carries the axe-core script (accessibility rules). Its other half drives a browser of its own, which is not wanted, so
# it is put aside without its dependencies.
AXE = "axe-playwright-python==0.1.8"

# `test` fails when it took longer than this many minutes on a machine on which `yardstick` takes this many seconds, and
# on a slower one in proportion: what has to be noticed is a suite that grows, not a laptop or a busy host. After MOST
# minutes it fails anywhere.
MINUTES, MOST = 30, 90
YARDSTICK = 0.046


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words = parser.add_subparsers(dest="word", metavar="WORD")
    for word in ("setup", "test", "check", "course", "clean", "help"):
        words.add_parser(word)
    for word in ("book", "lab"):
        words.add_parser(word).add_argument("--solutions", action="store_true", help="with the labs' solutions")
    words.choices["book"].add_argument("--clean", action="store_true", help="execute and write everything again")
    words.choices["lab"].add_argument("--no-open", action="store_true", help="make the copies, start nothing")
    words.add_parser("page").add_argument("page", help="for example chapters/latency-budget")
    options = parser.parse_args()
    if options.word in (None, "help"):
        parser.print_help()
        return 0
    if options.word == "clean":
        return clean()
    status = setup(course=options.word in ("test", "check", "course"))
    if status or options.word == "setup":
        return status
    if options.word == "course":
        return course()
    if options.word == "book":
        return book(solutions=options.solutions, fresh=options.clean)
    if options.word == "page":
        return run_build("--page", options.page)
    if options.word == "lab":
        return lab(solutions=options.solutions, start=not options.no_open)
    return check() if options.word == "check" else test()


# ---- the environment ---------------------------------------------------------------------------------------------


def setup(*, course: bool = False) -> int:
    """Make .venv and bring it up to the pins; nothing to do when neither changed since.

    course: with what grading needs, which readers are spared: nbgrader puts buttons of its own into JupyterLab.
    """
    wanted = digest(AXE, "requirements.txt", "lib/pyproject.toml")
    wanted_course = digest(wanted, "requirements-course.txt")
    if stamped("underload", wanted) and (not course or stamped("underload-course", wanted_course)):
        return 0
    if not PYTHON.exists():
        base = find_python()
        if base is None:
            needed = ".".join(map(str, NEEDED))
            have = ".".join(map(str, sys.version_info[:3]))
            print(
                f"Python {needed} or later is needed and this is {have}. Install a newer one, or name it: "
                "make PYTHON=/path/to/python3 …",
                file=sys.stderr,
            )
            return 1
        print(f"Making an environment in {VENV.name}/ …")
        made = subprocess.run([base, "-m", "venv", str(VENV)])
        if made.returncode:
            shutil.rmtree(VENV, ignore_errors=True)
            print(
                "Python could not make an environment; on Debian and Ubuntu: apt install python3-venv", file=sys.stderr
            )
            return 1
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    runs: list[list[str]] = []
    if not stamped("underload", wanted):
        print("Installing what requirements.txt pins (about 3 GB the first time) …")
        runs += [
            ["-r", "requirements.txt"],
            ["--no-deps", "-e", "lib"],
            ["--no-deps", "--upgrade", "--target", str(VENV / "axe"), AXE],
        ]
    if course:
        print("Installing what grading needs (requirements-course.txt) …")
        runs.append(["-r", "requirements.txt", "-r", "requirements-course.txt"])
    for arguments in runs:
        if subprocess.run([*pip, *arguments], cwd=ROOT).returncode:
            print("The installation failed; the message above says why.", file=sys.stderr)
            return 1
    (VENV / ".underload").write_text(wanted)
    if course:
        (VENV / ".underload-course").write_text(wanted_course)
    return 0


def digest(text: str, *names: str) -> str:
    """A digest of some text and of files in the project's root."""
    made = hashlib.sha256(text.encode())
    for name in names:
        made.update((ROOT / name).read_bytes())
    return made.hexdigest()


def stamped(name: str, wanted: str) -> bool:
    """Whether the environment carries this stamp."""
    stamp = VENV / f".{name}"
    return PYTHON.exists() and stamp.exists() and stamp.read_text() == wanted


def find_python() -> str | None:
    """This interpreter if it is recent enough, else a recent one on the path."""
    if sys.version_info >= NEEDED:
        return sys.executable
    for minor in (13, 12, 11, 14):
        found = shutil.which(f"python3.{minor}")
        if found:
            return found
    return None


def environment(**more: str) -> dict[str, str]:
    """What commands run in: the environment's own programs first, the library and the book's extension importable."""
    made = dict(os.environ, **more)
    made["PATH"] = os.pathsep.join([str(BIN), made.get("PATH", "")])
    made["VIRTUAL_ENV"] = str(VENV)
    made["PYTHONPATH"] = os.pathsep.join([str(ROOT / "lib"), str(ROOT / "chapters" / "_ext")])
    made.setdefault("JUPYTER_PLATFORM_DIRS", "1")
    # Hundreds of processes import the library: compiled once, and not in each of them. `make clean` removes it.
    made.pop("PYTHONDONTWRITEBYTECODE", None)
    return made


def python(*arguments: str, **more: str) -> int:
    return subprocess.run([str(PYTHON), *arguments], cwd=ROOT, env=environment(**more)).returncode


# ---- the words ----------------------------------------------------------------------------------------------------


def run_build(*arguments: str) -> int:
    return python("-m", "book.build", *arguments)


def book(*, solutions: bool = False, fresh: bool = False) -> int:
    return run_build(*(["--solutions"] if solutions else []), *(["--clean"] if fresh else []))


def lab(*, solutions: bool = False, start: bool = True) -> int:
    """Open JupyterLab on the reader's copies, or on the sources."""
    folder = ROOT / ("labs" if solutions else "my-labs")
    if not solutions:
        status = python("-m", "underload.cli", "labs", "copy", str(folder), UNDERLOAD_LABS=str(ROOT / "labs"))
        if status:
            return status
    if not start:
        return 0
    first = folder / "start-here.ipynb"
    command = [str(PYTHON), "-m", "jupyterlab", f"--ServerApp.root_dir={folder}"]
    if first.exists():
        command.append(str(first))
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")  # in a container; Jupyter refuses otherwise
    try:
        return subprocess.run(command, cwd=folder, env=environment()).returncode
    except KeyboardInterrupt:
        return 0


def course() -> int:
    """Grading is set up by now; its manual is the program's own help."""
    print("Grading is set up. `underload` is in " + str(BIN.relative_to(ROOT)) + ":\n", flush=True)
    return python("-m", "underload.cli", "course", "--help")


def clean() -> int:
    shutil.rmtree(BUILD, ignore_errors=True)
    for name in (".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"):
        shutil.rmtree(ROOT / name, ignore_errors=True)
    for folder in ("lib", "tests", "chapters"):
        for path in (ROOT / folder).rglob("__pycache__"):
            shutil.rmtree(path, ignore_errors=True)
    print("Removed what was built. Your copies in my-labs/ and the environment in .venv/ stay.")
    return 0


def yardstick() -> float:
    """s of this process's own time that a fixed piece of Python takes: how slow the machine is now."""
    taken = []
    for _ in range(5):
        start, seen, total = time.process_time(), {}, 0
        for i in range(300_000):
            seen[i & 1023] = total
            total = (total + (seen.get(i & 511, 0) & 7)) ^ i
        taken.append(time.process_time() - start)
    return statistics.median(taken)


class Report:
    """What ran, how long it took, and what its tests said."""

    def __init__(self) -> None:
        self.begun = time.monotonic()
        self.seconds: dict[str, float] = {}
        self.yardsticks = [yardstick()]
        self.counts = {"passed": 0, "failed": 0, "skipped": 0}
        self.wrong: list[str] = []

    def stage(self, share: str, name: str, *arguments: str, **more: str) -> bool:
        """Run a command and book its time to a share of the budget."""
        print(f"\n── {name} " + "─" * max(0, 100 - len(name)), flush=True)
        start = time.monotonic()
        status = python(*arguments, **more)
        self.seconds[share] = self.seconds.get(share, 0.0) + time.monotonic() - start
        self.yardsticks.append(yardstick())
        if status:
            self.wrong.append(name)
        return status == 0

    def step(self, share: str, name: str, *arguments: str, **more: str) -> bool:
        """A command that is one test by itself."""
        good = self.stage(share, name, *arguments, **more)
        self.counts["passed" if good else "failed"] += 1
        return good

    def beside(self, share: str, name: str, *arguments: str) -> Callable[[], bool]:
        """Begin a command that is one test by itself and keeps one core busy; call what is returned for its end."""
        said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        running = subprocess.Popen(
            [str(PYTHON), *arguments], cwd=ROOT, env=environment(), stdout=said, stderr=subprocess.STDOUT
        )

        def end() -> bool:
            print(f"\n── {name} " + "─" * max(0, 100 - len(name)), flush=True)
            start = time.monotonic()
            good = running.wait() == 0
            said.seek(0)
            print(said.read().decode(errors="replace"), end="", flush=True)
            self.seconds[share] = self.seconds.get(share, 0.0) + time.monotonic() - start
            self.counts["passed" if good else "failed"] += 1
            if not good:
                self.wrong.append(name)
            return good

        return end

    def pytest(self, share: str, name: str, *arguments: str, **more: str) -> bool:
        BUILD.mkdir(exist_ok=True)
        results = BUILD / f"results-{len(self.seconds)}-{os.getpid()}.xml"
        good = self.stage(share, name, "-m", "pytest", "-q", f"--junitxml={results}", *arguments, **more)
        if results.exists():
            for suite in xml.etree.ElementTree.parse(results).iter("testsuite"):
                bad = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
                skipped = int(suite.get("skipped", 0))
                self.counts["failed"] += bad
                self.counts["skipped"] += skipped
                self.counts["passed"] += int(suite.get("tests", 0)) - bad - skipped
            results.unlink()
        return good

    def close(self, limit_minutes: float | None) -> int:
        total = time.monotonic() - self.begun
        print("\n── time " + "─" * 95)
        for share, seconds in self.seconds.items():
            print(f"{share:<28}{seconds / 60:6.1f} min")
        slowness = statistics.median(self.yardsticks) / YARDSTICK
        allowed = limit_minutes and min(limit_minutes * max(slowness, 1.0), MOST)
        print(f"{'all':<28}{total / 60:6.1f} min" + (f" of at most {allowed:.1f}" if allowed else ""))
        print(f"Between the stages this machine took {slowness:.2f} times as long as the one that the limit is set on.")
        if allowed and total > allowed * 60:
            print(f"That is over the limit: {limit_minutes:g} minutes on that one, and {MOST:g} on any.")
            self.wrong.append("time")
            self.counts["failed"] += 1
        if self.wrong:
            print("Failed: " + ", ".join(self.wrong))
            self.counts["failed"] = max(self.counts["failed"], 1)
        print("\n{passed} passed, {failed} failed, {skipped} skipped".format(**self.counts), flush=True)
        return 1 if self.wrong else 0


COURSE = ("test_course*.py", "test_lab*.py")
BUILT = "test_book_site.py"  # looks at the book that was built before

# Two processes on two cores, of tests, labs or pages: with more threads than cores, they would spend their time waiting
# for each other. What needs several threads asks for them by argument.
TWO = ("-n", "2", "--dist", "worksteal")
SINGLE = {"OMP_NUM_THREADS": "1"}


def style_and_unit_tests(report: Report, *which: str) -> None:
    types = report.beside("everything else", "mypy", "-m", "mypy")  # a minute of one core
    report.step("everything else", "ruff: lint", "-m", "ruff", "check", "--quiet", ".")
    report.step("everything else", "ruff: format", "-m", "ruff", "format", "--quiet", "--check", ".")
    others = [f"--ignore-glob=*{pattern}" for pattern in (*COURSE, BUILT)]
    report.pytest("everything else", "library tests", "tests", *which, *others, *TWO, **SINGLE)
    types()
    files = [str(path) for pattern in COURSE for path in (ROOT / "tests").glob(pattern)]
    files.sort(key=lambda name: ("verify" not in name, name))  # what takes longest first, so that nobody waits for it
    if files:
        report.pytest("course checks", "course tests", *files, *which, *TWO, **SINGLE)


def check() -> int:
    report = Report()
    style_and_unit_tests(report, "-m", "not slow")
    return report.close(None)


def test() -> int:
    report = Report()
    style_and_unit_tests(report)
    build = ("-m", "book.build", "--clean", "--quiet", "--jobs", "2")
    built = report.step("chapters", "the book, from clean", *build, **SINGLE)
    if any((ROOT / "labs").glob("*.ipynb")):
        report.pytest("labs", "labs", "--nbval-lax", "labs", "-n", "2", "--dist", "loadfile", **SINGLE)
    if built:
        book = str(BUILD / "book")
        report.pytest("everything else", "the book as built", f"tests/{BUILT}", *TWO, **SINGLE, UNDERLOAD_BOOK=book)
    return report.close(MINUTES)


if __name__ == "__main__":
    sys.exit(main())
