"""The house's own rules: what imports what, what is committed, what the versions and the pins say."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "lib" / "underload"

#: The rows of the library, each on what is above it. Those of one line do not import each other.
ROWS = (
    ("request",),
    ("shapes",),
    ("metrics",),
    ("queueing",),
    ("workload",),
    ("cache",),
    ("scheduling",),
    ("engine",),
    ("simulation",),
    ("planning",),
    ("figures",),
    ("course",),
    ("labs",),
    ("decoder",),
    ("models",),
    ("serving",),
    ("cli",),
)
ROW = {name: number for number, row in enumerate(ROWS) for name in row}
TORCH_FREE = [name for name in ROW if ROW[name] < ROW["decoder"]]


def packages() -> list[str]:
    return sorted(path.parent.name for path in LIBRARY.glob("*/__init__.py"))


def imports(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Line, module, and whether it is imported when the module is: not inside a function, not for types only."""

    def walk(node: ast.AST, now: bool) -> Iterator[tuple[int, str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield child.lineno, alias.name, now
            elif isinstance(child, ast.ImportFrom):
                if child.level == 0 and child.module:
                    yield child.lineno, child.module, now
                    for alias in child.names:
                        yield child.lineno, f"{child.module}.{alias.name}", now
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) or (
                isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            ):
                yield from walk(child, False)
            else:
                yield from walk(child, now)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), True)


def test_every_package_has_its_row() -> None:
    assert [name for name in packages() if name not in ROW] == []


def test_a_package_imports_only_from_rows_above_its_own() -> None:
    wrong = []
    for name in packages():
        for path in sorted((LIBRARY / name).rglob("*.py")):
            for line, module, _ in imports(path):
                parts = module.split(".")
                if parts[0] == "underload" and len(parts) > 1 and parts[1] in ROW and ROW[parts[1]] > ROW[name]:
                    wrong.append(f"{path.relative_to(LIBRARY)}:{line} imports {module}, which is a row below")
    assert wrong == []


def test_rows_above_the_line_never_import_torch_not_even_later() -> None:
    wrong = [
        f"{path.relative_to(LIBRARY)}:{line}"
        for name in TORCH_FREE
        if (LIBRARY / name).is_dir()
        for path in sorted((LIBRARY / name).rglob("*.py"))
        for line, module, now in imports(path)
        if module.split(".")[0] in {"torch", "transformers", "safetensors"} | ({"numba"} if now else set())
    ]
    assert wrong == []


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "lib"), **environment},
    )


def test_the_torch_free_rows_start_without_torch() -> None:
    wanted = [f"underload.{name}" for name in TORCH_FREE if (LIBRARY / name / "__init__.py").is_file()]
    code = f"import importlib, sys\nfor n in {wanted!r}: importlib.import_module(n)\nprint('torch' in sys.modules)"
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False"


HIDING = """
import importlib.abc, sys
HIDDEN = {"numba", "gguf", "triton", "tokenizers", "transformers", "jinja2", "huggingface_hub", "matplotlib", "scipy",
          "tqdm", "nbformat"}
class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r} (hidden)", name=name)
sys.meta_path.insert(0, Hide())
"""


def test_the_decoder_imports_and_runs_with_torch_numpy_and_safetensors_alone() -> None:
    """A GPU machine may have no more than these; the test hides the rest."""
    code = HIDING + (
        "from underload.decoder import generate, load_model\n"
        "from underload.request import SamplingParams\n"
        "model = load_model('shape:bench-s', path='plain', device='cpu')\n"
        "run = generate(model, [[1, 2, 3]], SamplingParams(max_tokens=2, temperature=0, ignore_eos=True))\n"
        "print(len(run[0].token_ids))\n"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "2"


def test_labs_and_the_command_line_start_without_nbformat() -> None:
    """Its schema's checks build a parser when they are loaded."""
    code = (
        "import sys, underload.course, underload.course.inside, underload.course.points\n"
        "from underload.cli import build_parser\nbuild_parser()\n"
        "print(sorted({'nbformat', 'jsonschema'} & set(sys.modules)))"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"


def test_help_answers_without_torch() -> None:
    code = (
        "import sys\nfrom underload.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\nprint('torch' in sys.modules)"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "False"


# ---- what is committed -------------------------------------------------------------------------------------------


def committed() -> list[Path]:
    """The project's files: those under version control, or all but what is made, where there is none."""
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True, timeout=30
        )
        names = [name for name in done.stdout.split("\0") if name]
    except (OSError, subprocess.SubprocessError):
        names = []
    paths = [ROOT / name for name in names]
    return [path for path in paths if path.is_file()]


def texts() -> Iterator[tuple[Path, str]]:
    for path in committed():
        if path.name in {"test_house.py", "LICENSE", "LICENSE-text"}:
            continue
        try:
            yield path, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def test_no_path_of_one_machine_and_no_package_registry_is_written_down() -> None:
    forbidden = re.compile(
        r"(?<![\w.])/(?:home|Users|root|work|mnt)/\w|py"
        r"pi\.org|files\.python"
        r"hosted|registry\.np"
        r"mjs|deb\.deb"
        r"ian\.org"
        r"|index-url|--extra-index"
    )
    wrong = []
    for path, text in texts():
        for number, line in enumerate(text.splitlines(), 1):
            if forbidden.search(line):
                wrong.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert wrong == []


def test_no_third_party_bundle_and_no_large_file_is_committed() -> None:
    wrong = []
    for path in committed():
        size = path.stat().st_size
        limit = 10_000_000 if path.suffix == ".safetensors" else 1_000_000
        if size > limit:
            wrong.append(f"{path.relative_to(ROOT)}: {size} bytes")
        if re.search(r"\.min\.(js|css)$|\.(woff2?|ttf|otf|whl)$", path.name):
            wrong.append(f"{path.relative_to(ROOT)}: a bundle")
    assert wrong == []


def test_every_python_file_can_be_read_by_the_oldest_version_it_promises() -> None:
    for path in committed():
        if path.suffix == ".py":
            ast.parse(path.read_text(encoding="utf-8"), filename=str(path), feature_version=(3, 11))
    # make.py must be able to tell an older Python what is wrong, so it may use nothing newer itself.
    ast.parse((ROOT / "make.py").read_text(encoding="utf-8"), feature_version=(3, 8))


# ---- versions and pins -------------------------------------------------------------------------------------------


def pins() -> dict[str, str]:
    found = {}
    for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines():
        line = line.split("#")[0].strip()
        if line:
            match = re.match(r"^([A-Za-z0-9_.-]+)(\[[\w,]+\])?==([\w.!+]+)(\s*;.*)?$", line)
            assert match, f"requirements.txt: {line!r} is not pinned"
            found[match[1].lower().replace("_", "-").replace(".", "-")] = match[3]
    return found


def metadata() -> dict[str, object]:
    made: dict[str, object] = tomllib.loads((ROOT / "lib" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return made


def test_one_version_everywhere() -> None:
    import underload

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert metadata()["version"] == underload.__version__ == str(citation["version"])
    assert f"## {underload.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_pins_lie_inside_the_ranges_the_library_promises() -> None:
    from packaging.requirements import Requirement

    pinned = pins()
    for text in metadata()["dependencies"]:  # type: ignore[attr-defined]
        requirement = Requirement(text)
        name = requirement.name.lower()
        assert name in pinned, f"{name} is not pinned in requirements.txt"
        assert requirement.specifier.contains(pinned[name]), f"{text} does not allow {pinned[name]}"


def test_what_is_pinned_is_what_is_installed_and_fits_together() -> None:
    from importlib.metadata import version

    for name, pinned in pins().items():
        # A build for one kind of machine (2.13.0+cpu) is the same version.
        assert version(name).split("+")[0] == pinned, (
            f"{name} {version(name)} is installed, {pinned} is pinned: make setup"
        )
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_libraries_that_are_imported_are_the_ones_that_are_declared() -> None:
    """A fresh environment with the library's own dependencies must be able to import everything at its top level.

    All but the Triton kernels, which are imported when the first of them is launched: triton exists for Linux only.
    """
    known = set(sys.stdlib_module_names) | {"underload"}
    declared = {re.split(r"[<>=;\[ ]", text)[0].lower() for text in metadata()["dependencies"]}  # type: ignore[attr-defined]
    names = {"huggingface_hub": "huggingface-hub", "llvmlite": "numba"}  # numba is built on it and brings it
    wrong = set()
    for path in sorted(set(LIBRARY.rglob("*.py")) - {LIBRARY / "decoder" / "kernels.py"}):
        for _, module, now in imports(path):
            top = module.split(".")[0]
            if now and top not in known and names.get(top, top).lower() not in declared:
                wrong.add(f"{path.relative_to(LIBRARY)}: {top}")
    assert wrong == set()


# ---- labs --------------------------------------------------------------------------------------------------------


def test_every_lab_and_every_finished_page_is_in_the_table_of_contents() -> None:
    from book.toc import toc_pages

    named = set(toc_pages(yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))))
    there = {f"labs/{path.stem}" for path in (ROOT / "labs").glob("*.ipynb")}
    there |= {
        path.relative_to(ROOT).with_suffix("").as_posix()
        for path in (ROOT / "chapters").rglob("*.md")
        if not {"_ext", "_static", "_templates", "data"} & set(path.relative_to(ROOT).parts)
    }
    assert named == there


@pytest.mark.parametrize("word", ["book", "lab", "test", "check", "clean", "setup"])
def test_make_explains_and_knows_each_word(word: str) -> None:
    done = subprocess.run([sys.executable, str(ROOT / "make.py"), "help"], capture_output=True, text=True)
    assert done.returncode == 0 and re.search(rf"^    {word}\b", done.stdout, re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^(?:\w+ )*{word}\b.*:", makefile, re.MULTILINE)


@pytest.mark.parametrize(
    ("slowness", "minutes", "status"),
    [(1.0, 29, 0), (1.0, 31, 1), (0.5, 29, 0), (0.5, 31, 1), (2.0, 59, 0), (2.0, 61, 1), (9.0, 89, 0), (9.0, 91, 1)],
)
def test_the_time_limit_is_that_of_the_machine_and_ninety_minutes_on_any(
    slowness: float, minutes: float, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    make = runpy.run_path(str(ROOT / "make.py"))
    report = make["Report"]()
    report.yardsticks, report.begun = [slowness * make["YARDSTICK"]], time.monotonic() - 60 * minutes
    assert report.close(make["MINUTES"]) == status
    assert ("Failed: time" in capsys.readouterr().out) == bool(status)


def test_stored_measurements_are_json_that_names_machine_and_date() -> None:
    results = ROOT / "tests" / "benchmarks" / "results"
    for path in sorted(results.glob("*.json")) if results.is_dir() else []:
        text = json.dumps(json.loads(path.read_text(encoding="utf-8")))
        assert re.search(r'"(cpu|machine|device)"', text) and re.search(r"20\d\d-\d\d-\d\d", text), path.name


def test_the_benchmarks_readme_has_a_heading_or_a_line_for_every_script() -> None:
    folder = ROOT / "tests" / "benchmarks"
    text = (folder / "README.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## ([^:\n]*)", text, re.MULTILINE)
    named = {name for heading in headings for name in re.findall(r"\w+\.py", heading)}
    named |= set(re.findall(r"^- `(\w+\.py)`", text, re.MULTILINE))
    assert {path.name for path in folder.glob("*.py")} - named == set()
