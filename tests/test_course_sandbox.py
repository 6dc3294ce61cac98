"""What a process that runs a student's cells can reach: its own folder, and nothing else."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import underload
from underload.course import sandbox
from underload.course.process import Limits, Process, Ran

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="grading needs Linux or macOS")
kernel = pytest.mark.skipif(not sandbox.landlock_version(), reason="this kernel has no Landlock")

LABS = Path(__file__).resolve().parents[1] / "labs"
SET_UP = """
import os, sys, socket, subprocess
from pathlib import Path
from underload.decoder import generate, load_model
generate(load_model("pocket"), "Mira")
"""
# Past Python and its hooks: straight to the system.
PAST = "import ctypes, os\nlibc = ctypes.CDLL(None)\n"


@pytest.fixture(scope="module")
def root() -> Iterator[Process]:
    limits = Limits(cell_seconds=20, memory=512 << 20, file_size=1 << 20)
    with Process.start(limits=limits) as process:
        assert process.run(SET_UP, name="set-up", seconds=60).error == ""
        yield process


@pytest.fixture(scope="module")
def held(root: Process) -> Iterator[Process]:
    with root.fork() as process:
        yield process


def run(process: Process, code: str) -> Ran:
    return process.run(code, name="cell")


@pytest.mark.parametrize(
    "path",
    [
        "/etc/shadow",
        str(LABS / "start-here.ipynb"),
        str(Path(__file__)),
        str(Path.home() / ".profile"),
        "/root/.bashrc",
    ],
)
def test_it_reads_no_file_outside(held: Process, path: str) -> None:
    for code in ("open({!r})", "os.open({!r}, os.O_RDONLY)", "Path({!r}).read_text()", "import io; io.open_code({!r})"):
        ran = run(held, code.format(path))
        assert ran.error.startswith("PermissionError: a graded notebook may not read outside its folder (")
        assert ran.error.endswith("; put the file beside the notebook")


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_it_looks_into_no_other_process(held: Process) -> None:
    for path in ("environ", "cmdline", "maps", "mem", "cwd/x", "fd/0"):
        assert run(held, f"open(f'/proc/{{os.getppid()}}/{path}', 'rb').read()").error.startswith("PermissionError")
    assert run(held, "len(open('/proc/self/status').read()) > 100").output == "True\n"
    if sandbox.landlock_version():
        assert run(held, PAST + "libc.open(f'/proc/{os.getppid()}/environ'.encode(), os.O_RDONLY)").output == "-1\n"


def test_it_reads_no_other_submission(root: Process, tmp_path: Path) -> None:
    (tmp_path / "eve").mkdir()
    (tmp_path / "eve" / "lab.ipynb").write_text("{}")
    with root.fork(folder=tmp_path / "ada") as ada:
        (tmp_path / "ada" / "link").symlink_to(tmp_path / "eve" / "lab.ipynb")
        for path in ("../eve/lab.ipynb", str(tmp_path / "eve" / "lab.ipynb"), "link"):
            assert "may not read outside" in run(ada, f"open({path!r})").error
        assert "may not list a folder" in run(ada, "os.listdir('..')").error
        assert "may not list a folder" in run(ada, f"list(os.scandir({str(LABS)!r}))").error
        assert "may not" in run(ada, "import glob; os.chdir('..'); os.listdir()").error


@pytest.mark.parametrize(
    "code",
    [
        "open('{0}/new', 'w')",
        "open('{0}/kept', 'a')",
        "os.remove('{0}/kept')",
        "os.rename('{0}/kept', 'mine')",
        "open('mine', 'w').close(); os.rename('mine', '{0}/new')",
        "os.mkdir('{0}/new')",
        "os.chmod('{0}/kept', 0)",
        "os.truncate('{0}/kept', 0)",
        "os.link('{0}/kept', 'mine-2')",
        "import shutil; shutil.rmtree('{0}')",
        "import sqlite3; sqlite3.connect('{0}/new')",
        "import numpy; numpy.save('{0}/new', [1])",
        "Path('{0}/kept').write_text('')",
    ],
)
def test_it_changes_nothing_outside(held: Process, tmp_path: Path, code: str) -> None:
    (tmp_path / "kept").write_text("kept")
    ran = run(held, code.format(tmp_path))
    assert ran.error.startswith("PermissionError: a graded notebook may not ")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept").read_text() == "kept"


def test_its_own_folder_is_its_own(held: Process) -> None:
    code = """
os.makedirs('a/b')
Path('a/b/c').write_text('x')
os.rename('a/b/c', 'a/d')
import tempfile
with tempfile.TemporaryDirectory() as folder:
    Path(folder, 'y').write_text('y')
open(os.devnull, 'w').write('x')
Path('a/d').read_text(), sorted(os.listdir('a')), Path.home() == Path.cwd()
"""
    assert run(held, code).output == "('x', ['b', 'd'], True)\n"
    assert (held.folder / "a" / "d").read_text() == "x"
    assert run(held, "open('big', 'wb').write(bytes(2 << 20))").error.startswith("OSError: [Errno 27] File too large")


@pytest.mark.parametrize(
    "code",
    [
        "subprocess.run(['ls'])",
        "os.system('ls')",
        "os.execv('/bin/ls', ['ls'])",
        "os.posix_spawn('/bin/ls', ['ls'], {})",
        "os.fork()",
        "os.forkpty()",
        "import multiprocessing\nmultiprocessing.Process(target=print).start()",
    ],
)
def test_it_starts_no_program(held: Process, code: str) -> None:
    assert "PermissionError: a graded notebook may not start p" in run(held, code).error


@pytest.mark.parametrize(
    "code",
    [
        "socket.create_connection(('127.0.0.1', 9))",
        "socket.socket().connect(('127.0.0.1', 9))",
        "socket.socket().bind(('127.0.0.1', 0))",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))",
        "socket.socket(socket.AF_UNIX).connect('/var/run/docker.sock')",
        "socket.gethostbyname('localhost')",
        "import urllib.request; urllib.request.urlopen('http://localhost')",
    ],
)
def test_it_connects_to_nothing(held: Process, code: str) -> None:
    error = run(held, code).error
    assert error.startswith("PermissionError: ") and ("may not connect" in error or sandbox._filter())


def test_it_sends_no_signals(held: Process) -> None:
    assert "may not send signals to other processes" in run(held, "os.kill(os.getppid(), 9)").error
    assert "may not send signals to other processes" in run(held, "os.killpg(os.getpgid(os.getppid()), 9)").error
    assert run(held, "os.kill(os.getpid(), 0)").error == ""


@kernel
def test_what_goes_past_python_is_held_by_the_kernel(root: Process, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    with root.fork() as process:
        assert run(process, PAST).error == ""
        for path in ("/etc/shadow", LABS / "start-here.ipynb", tmp_path / "kept", Path(__file__), LABS):
            assert run(process, f"libc.open({str(path).encode()!r}, os.O_RDONLY)").output == "-1\n"
        assert (
            run(process, f"libc.open({str(tmp_path / 'new').encode()!r}, os.O_WRONLY | os.O_CREAT, 0o600)").output
            == "-1\n"
        )
        assert run(process, f"libc.unlink({str(tmp_path / 'kept').encode()!r})").output == "-1\n"
        assert run(process, "libc.open(b'mine', os.O_WRONLY | os.O_CREAT, 0o600) >= 0").output == "True\n"
        assert run(process, f"libc.system(b'echo x > {tmp_path}/new')").output == "32512\n"  # 127: not executable
        assert run(process, f"libc.execv({sys.executable.encode()!r}, None)").output == "-1\n"
        if sandbox.landlock_version() >= 6:
            assert run(process, "libc.kill(os.getppid(), 0)").output == "-1\n"
        if sandbox._filter():
            assert run(process, "[libc.socket(family, 1, 0) for family in (2, 10)]").output == "[-1, -1]\n"
            assert run(process, "libc.socket(1, 1, 0) >= 0").output == "True\n"
            assert run(
                process, "libc.connect(libc.socket(1, 1, 0), b'\\x01\\x00/tmp/x\\0', 10), ctypes.get_errno()"
            ).output.startswith("(-1")
        assert process.alive
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept"]


@kernel
def test_what_it_may_read_never_is_a_folder_above_the_project(root: Process) -> None:
    listed = ast.literal_eval(
        root.run("from underload.course import sandbox\nprint(list(sandbox.readable()))", name="x").output
    )
    project = Path(underload.__file__).resolve().parents[2]
    assert str(project / "lib" / "underload") in listed or any("site-packages" in path for path in listed)
    for path in listed:
        assert not LABS.is_relative_to(path), path
        assert not Path(__file__).is_relative_to(path), path
    assert "/" not in listed and "/etc" not in listed and "/usr" not in listed


def test_what_a_notebook_needs_works(held: Process) -> None:
    assert run(held, "import scipy.stats, torch, statistics, zoneinfo; torch.ones(3).sum().item()").output == "3.0\n"
    ran = run(held, "model = load_model('pocket')\nlen(generate(model, 'Mira goes').completions[0].token_ids) > 3")
    assert ran.error == "" and ran.output.endswith("True\n")
    assert ran.seconds < 3  # what numba compiled for the grader is read, not compiled once more
    ran = run(
        held,
        "import matplotlib.pyplot as plt\nplt.plot([1])\nplt.savefig('x.png')\nos.path.getsize('x.png') > 1000",
    )
    assert (ran.error, ran.output) == ("", "True\n")
    assert run(held, "import underload.labs.latency_budget, underload.figures").error == ""


def test_protection_says_what_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    said = sandbox.protection()
    assert said.endswith(".") and "\n" not in said
    for version, words in ((0, "audit hooks alone"), (1, "files (Landlock)"), (7, "signals (Landlock)")):
        monkeypatch.setattr(sandbox, "landlock_version", lambda version=version: version)
        assert words in sandbox.protection()


@pytest.mark.skipif(sys.platform != "linux", reason="the hooks alone, as on a system without Landlock")
def test_the_hooks_alone_refuse_too(tmp_path: Path) -> None:
    with Process.start(limits=Limits(cell_seconds=20)) as root:
        root.run(
            "from underload.course import sandbox\nsandbox.landlock_version = lambda: 0\nsandbox._filter = lambda: b''",
            name="x",
        )
        with root.fork() as process:
            assert "may not read outside" in run(process, f"open({str(LABS / 'start-here.ipynb')!r})").error
            assert "may not write outside" in run(process, f"open({str(tmp_path / 'x')!r}, 'w')").error
            assert "may not start programs" in run(process, "import subprocess; subprocess.run(['ls'])").error
            assert "may not connect" in run(process, "import socket; socket.socket().connect(('127.0.0.1', 9))").error
            assert run(process, "import scipy.stats").error == ""
