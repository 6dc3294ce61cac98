"""An autograder for Gradescope, made from a lab's source and grading with the same code as `underload course grade`.

The zip holds what Gradescope asks for (setup.sh and run_autograder at its root) and beside them the lab with its hidden
checks, the class's secret if there is one, this library, and the pinned packages that grading needs. On Gradescope,

    python -m underload.course.gradescope SOURCE SUBMISSION_DIR RESULTS.json

grades the one submission in a folder. With `--forget` it first reads the source and the secret and deletes both, since
the container is a fresh one for every submission: a student's code can then not find them on the disk.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import traceback
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

import underload
from underload.course.gradescope_results import as_gradescope, failed, validate_results
from underload.course.marks import LabError
from underload.course.outline import Outline, outline
from underload.course.points import number
from underload.course.release import check_source
from underload.course.results import Result
from underload.course.source import read_notebook

__all__ = ["as_gradescope", "grade_folder", "main", "requirements", "validate_results", "write_autograder"]

#: What running a lab's cells needs; the book, the tests and the notebook's front end are left out.
_NEEDED = (
    "torch", "numpy", "scipy", "matplotlib", "numba", "safetensors", "tokenizers", "jinja2", "gguf", "huggingface-hub",
    "tqdm", "ipykernel", "ipython", "ipywidgets", "nbformat",
)  # fmt: skip
_LAB, _SECRET = "lab.ipynb", "secret"

SETUP = """\
#!/usr/bin/env bash
# Runs once, when Gradescope builds the image: Python with the pinned packages, in {base}/venv.
set -euo pipefail
BASE="${{UNDERLOAD_AUTOGRADER:-{base}}}"

python=""
for name in python3.12 python3.13 python3.11; do
    if command -v "$name" >/dev/null; then python="$name"; break; fi
done
if [ -z "$python" ]; then
    apt-get update
    for name in python3.12 python3.11; do
        if DEBIAN_FRONTEND=noninteractive apt-get install -y "$name" "$name-venv"; then
            python="$name"
            break
        fi
    done
elif ! "$python" -c "import ensurepip" 2>/dev/null; then
    apt-get update
    DEBIAN_FRONTEND=noninteractive apt-get install -y "$python-venv"
fi
if [ -z "$python" ]; then
    echo "Python 3.11 or later is needed, and this image has none to install: choose a newer Ubuntu as base image" >&2
    exit 1
fi

"$python" -m venv "$BASE/venv"

# The default build of torch carries CUDA on Linux: several gigabytes, and nothing here uses them. The CPU build of the
# same version is smaller by far. PyTorch's Start Locally page prints its pip command when you choose CPU: put it here,
# as "$BASE/venv/bin/pip install ... torch=={torch}", and the line below finds the pin met.

"$BASE/venv/bin/pip" install --disable-pip-version-check --no-cache-dir -r "$BASE/source/requirements.txt"
"""

RUN = """\
#!/usr/bin/env bash
# Runs for every submission, in a fresh container.
BASE="${{UNDERLOAD_AUTOGRADER:-{base}}}"
python="${{UNDERLOAD_PYTHON:-$BASE/venv/bin/python}}"
export PYTHONPATH="$BASE/source" OMP_NUM_THREADS=1 MPLBACKEND=Agg NUMBA_CACHE_DIR="$BASE/cache"
mkdir -p "$BASE/results" "$BASE/cache"
cd "$BASE"
# --forget deletes the lab and the secret before any of the student's code runs; the next container has them again.
exec "$python" -m underload.course.gradescope --forget --metadata "$BASE/submission_metadata.json" \\
    "$BASE/source/{lab}" "$BASE/submission" "$BASE/results/results.json"
"""

_README = """\
# An autograder for Gradescope: {title}

Keep this zip to yourself: it holds the solutions, the hidden checks{and_secret}.

1. Create a *Programming Assignment*. Autograder points: **{core}** (the core{without_open}).{bonus}
2. *Configure Autograder*: upload this zip. Take the newest Ubuntu as base image: Python 3.11 or later is needed.
   The first build installs the packages of requirements.txt and takes some minutes.
   setup.sh says how to make it smaller, with the CPU build of torch.
3. *Settings*: the container needs more than the default 0.75 GB of memory and half a processor.
   Take at least 3 GB and one processor; a timeout of 20 minutes.
4. *Test Autograder* with your own solution and with the hand-out as it is: full marks and 0.
{manual}
Students see the checks that are in their notebook at once.
The hidden checks are shown when you publish the grades; until then Gradescope shows them no total, either.
What the autograder prints is for you alone.

A student's notebook runs in a process of its own with limits on time, memory and files, as with `underload course
grade`. Gradescope's container is the outer wall: it is a fresh one for every submission.
"""

_MANUAL = """
Open answers are marked by a person, {points} points in all ({parts}):
enable *manual grading* in the assignment's settings, and in *Edit Outline* add a question for each with its points.
The answer is in the submitted notebook; the rubric and a model answer are in the lab's source.
In the autograder's list they stand with 0 points and a line that says so.
"""


# ---- the zip ------------------------------------------------------------------------------------------------------


def write_autograder(source: NotebookNode, lab: str, out: Path, *, secret: bytes = b"") -> str:
    """Write the autograder for one lab as a zip file; returns a line on what is in it.

    secret: the class's, if the lab was handed out with one. It lies in the zip.

    Raises:
        LabError: the lab is faulty or nothing in it is graded, or `out` is in the way.
    """
    wrong = check_source(source, lab)
    if wrong:
        raise LabError(f"{lab} cannot be graded as it is: {'; '.join(wrong[:4])}")
    described = outline(source)
    if out.suffix != ".zip" or out.is_dir():
        raise LabError(f"--out must name a zip file, not {out.name!r}")
    if out.exists() and not _ours(out):
        raise LabError(f"{out} is there and is no autograder of ours; name another file")
    source = NotebookNode({**source, "metadata": {**source.metadata}})
    source.metadata["underload"] = NotebookNode({**source.metadata.get("underload", {}), "lab": lab})
    files = dict(_files(source, lab, described, secret))
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as made:
            for name, data in files.items():
                entry = zipfile.ZipInfo(name, date_time=(2026, 1, 1, 0, 0, 0))  # the same input, the same zip
                entry.compress_type = zipfile.ZIP_DEFLATED
                mode = 0o755 if name in ("setup.sh", "run_autograder") else 0o600 if name == _SECRET else 0o644
                entry.external_attr = (stat.S_IFREG | mode) << 16
                made.writestr(entry, data)
        os.replace(beside, out)
    finally:
        beside.unlink(missing_ok=True)
    return (
        f"{len(described.parts)} parts, {number(described.points)} points, {out.stat().st_size / 1e6:.1f} MB; "
        "it holds solutions and hidden checks" + (" and the secret" if secret else "") + "; README.md in it says "
        "how to set it up"
    )


def _files(source: NotebookNode, lab: str, described: Outline, secret: bytes) -> Iterator[tuple[str, bytes]]:
    pins = requirements()
    torch = next((pin.partition("==")[2] for pin in pins if pin.startswith("torch==")), "VERSION")
    yield "setup.sh", SETUP.format(base="/autograder", torch=torch).encode()
    yield "run_autograder", RUN.format(base="/autograder", lab=_LAB).encode()
    yield "requirements.txt", ("# What grading needs, pinned.\n" + "\n".join(pins) + "\n").encode()
    yield _LAB, nbformat.writes(source, version=nbformat.NO_CONVERT).encode()
    yield "README.md", _readme(described, lab, bool(secret)).encode()
    if secret:
        yield _SECRET, secret + b"\n"
    package = Path(underload.__file__).parent
    for path in sorted(package.rglob("*")):
        name = path.relative_to(package)
        if path.is_file() and "__pycache__" not in name.parts and not any(part.startswith(".") for part in name.parts):
            yield f"underload/{name.as_posix()}", path.read_bytes()


def _readme(described: Outline, lab: str, secret: bool) -> str:
    open_ = [part for part in described.parts if part.manual and not part.further]
    marked = sum(part.points for part in open_)
    manual = ""
    if marked:
        manual = _MANUAL.format(
            points=number(marked), parts=", ".join(f"{part.name}: {number(part.points)}" for part in open_)
        )
    bonus = f" Bonus points come on top, up to {number(described.bonus)}." if described.bonus else ""
    return _README.format(
        title=described.title or lab,
        core=number(described.points - marked),
        without_open=" without the open answers" if marked else "",
        bonus=bonus,
        manual=manual,
        and_secret=" and the secret of your class" if secret else "",
    )


def _ours(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as there:
            return {"run_autograder", "setup.sh", _LAB} <= set(there.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def requirements() -> list[str]:
    """What grading needs, pinned as in the project's requirements.txt; what that does not pin, as it is installed."""
    pinned: dict[str, str] = {}
    file = Path(underload.__file__).resolve().parents[2] / "requirements.txt"
    if file.is_file():
        for line in file.read_text(encoding="utf-8").splitlines():
            found = re.match(r"([A-Za-z0-9._-]+)==([^\s;#]+)", line)
            if found:
                pinned[found[1].lower()] = found[2]
    made = []
    for name in _NEEDED:
        if name not in pinned:
            try:
                pinned[name] = version(name)
            except PackageNotFoundError:
                raise LabError(
                    f"{name} is neither pinned in requirements.txt nor installed; run `make course`"
                ) from None
        made.append(f"{name}=={pinned[name].partition('+')[0]}")  # a local build's tag is on no index
    return made


# ---- on Gradescope ------------------------------------------------------------------------------------------------


def grade_folder(
    source: NotebookNode, folder: Path, *, secret: bytes = b"", people: Sequence[str] = ()
) -> tuple[Result, dict[str, Any]]:
    """Grade the one submission in a folder; returns the result and what results.json is to hold.

    people: the names that Gradescope has for who handed it in, the surest first.

    Raises:
        LabError: the lab itself is faulty.
    """
    from underload.course.grade import grade_one
    from underload.course.submission import find

    lab = outline(source).lab or "lab"
    with tempfile.TemporaryDirectory(prefix="underload-") as wrap:
        # One student's folder among the submissions of a class, which may then look like anything.
        shutil.copytree(folder, Path(wrap) / "student", symlinks=True)
        found = find(Path(wrap), {lab: source})
        mine = next((one for one in found if one.lab in (lab, "")), None)
        if mine is None:
            raise LabError(f"there is nothing in {folder} to grade")
        named = None
        if mine.notebook is not None:
            named = mine.notebook.metadata.get("underload", {}).get("student")
        # Who Gradescope says it is, under the name that the class's roster has for them.
        student = named if isinstance(named, str) and named in people else (people[0] if people else "student")
        result = grade_one(source, replace(mine, student=student), student, lab=lab, secret=secret)
    return result, as_gradescope(result, outline(source), source)


def people_in(metadata: Path) -> list[str]:
    """The names that submission_metadata.json has for who handed in: addresses, what stands before their @, student
    ids, names. Empty when there is no such file."""
    try:
        users = json.loads(metadata.read_text(encoding="utf-8")).get("users", [])
    except (OSError, ValueError, AttributeError):
        return []
    found: list[str] = []
    for user in users if isinstance(users, list) else []:
        if isinstance(user, dict):
            address = str(user.get("email") or "")
            names = [address, address.partition("@")[0], user.get("sid"), user.get("name"), user.get("id")]
            found += [str(name) for name in names if name]
    return list(dict.fromkeys(found))


def main(argv: Sequence[str] | None = None) -> int:
    """What run_autograder starts. Writes the results whatever happens; returns 0 when they are a grading's."""
    parser = argparse.ArgumentParser(prog="python -m underload.course.gradescope", description=main.__doc__)
    parser.add_argument(
        "source", type=Path, help="the lab with its solutions; a file `secret` beside it is the class's"
    )
    parser.add_argument("submission", type=Path, help="the folder with what was handed in")
    parser.add_argument("results", type=Path, help="results.json")
    parser.add_argument("--metadata", type=Path, help="submission_metadata.json: who handed in")
    parser.add_argument("--forget", action="store_true", help="delete SOURCE and the secret once they are read")
    args = parser.parse_args(argv)
    code = 0
    try:
        source = read_notebook(args.source)
        beside = args.source.with_name(_SECRET)
        secret = beside.read_bytes().strip() if beside.is_file() else b""
        if args.forget:
            args.source.unlink()
            beside.unlink(missing_ok=True)
        people = people_in(args.metadata) if args.metadata else []
        result, results = grade_folder(source, args.submission, secret=secret, people=people)
        wrong = validate_results(results)
        if wrong:
            raise LabError(f"the results are not as Gradescope wants them: {'; '.join(wrong)}")
        print(_summary(result))
    except Exception as error:
        traceback.print_exc(file=sys.stdout)  # to the teacher, who alone sees it
        what = str(error) if isinstance(error, LabError) else type(error).__name__
        results, code = failed(what), 1
    args.results.parent.mkdir(parents=True, exist_ok=True)
    beside_results = args.results.with_name(f".{args.results.name}.{os.getpid()}")
    beside_results.write_text(json.dumps(results, indent=1, ensure_ascii=False), encoding="utf-8")
    os.replace(beside_results, args.results)
    return code


def _summary(result: Result) -> str:
    lines = io.StringIO()
    print(
        f"{result.lab}, {result.student}: {result.status}; {result.said or f'{number(result.earned)} points'}",
        file=lines,
    )
    for part in result.parts:
        earned = "?" if part.earned is None else number(part.earned)
        print(f"  {part.name}: {earned} of {number(part.points)} {part.said}".rstrip(), file=lines)
    for problem in result.problems:
        print(f"  {problem.kind}: {problem.said}", file=lines)
    for note in result.notes:
        print(f"  {note}", file=lines)
    return lines.getvalue()


if __name__ == "__main__":
    sys.exit(main())
