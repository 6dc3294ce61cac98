"""A small project that the book's build can be pointed at: the real configuration, other pages.

It shares the book's own cache of fonts, which are the same for every page without mathematics and take longer to cut
than the page to build.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml
from sample_lab import sample_lab

from underload.course import write_notebook

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = ROOT / "tests" / "sample_book"


def make_project(folder: Path, pages: dict[str, str], *, lab: bool = False, data: bool = False) -> Path:
    """A project in `folder` with the given pages (name without suffix -> text); the first is the root."""
    for name in ("_config.yml", "requirements.txt", "CITATION.cff"):
        shutil.copyfile(ROOT / name, folder / name)
    for part in ("_ext", "_static", "_templates"):
        (folder / "chapters").mkdir(exist_ok=True)
        shutil.copytree(ROOT / "chapters" / part, folder / "chapters" / part)
    (folder / "lib").symlink_to(ROOT / "lib", target_is_directory=True)
    (folder / "labs").mkdir()
    fonts = ROOT / "_build" / "cache" / "fonts"
    fonts.mkdir(parents=True, exist_ok=True)
    (folder / "_build" / "cache").mkdir(parents=True)
    (folder / "_build" / "cache" / "fonts").symlink_to(fonts, target_is_directory=True)
    files = []
    for name, text in pages.items():
        (folder / "chapters" / f"{name}.md").write_text(text, encoding="utf-8")
        files.append({"file": f"chapters/{name}"})
    if lab:
        write_notebook(sample_lab(), folder / "labs" / "sample.ipynb")
        files.append({"file": "labs/sample"})
    (folder / "chapters" / "data").mkdir()
    if data:
        shutil.copyfile(SAMPLE / "production-names.yml", folder / "chapters" / "data" / "production-names.yml")
    shutil.copyfile(SAMPLE / "references.bib", folder / "chapters" / "references.bib")
    toc = {"format": "jb-book", "root": files[0]["file"]}
    if files[1:]:
        toc["chapters"] = files[1:]
    (folder / "_toc.yml").write_text(yaml.safe_dump(toc, sort_keys=False), encoding="utf-8")
    return folder


def sample_project(folder: Path) -> Path:
    """The project of tests/sample_book: every box, a lab, the back matter."""
    pages = {name: (SAMPLE / f"{name}.md").read_text(encoding="utf-8") for name in ("index", "often-said", "library")}
    return make_project(folder, pages, lab=True, data=True)


def build(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the book's build on a project."""
    paths = os.pathsep.join([str(ROOT / "lib"), str(ROOT / "chapters" / "_ext")])
    return subprocess.run(
        [sys.executable, "-m", "book.build", "--root", str(project), "--quiet", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, "NO_COLOR": "1"},
        cwd=project,
    )


if __name__ == "__main__":
    target = Path(sys.argv[1])
    if not target.exists():
        target.mkdir(parents=True)
        sample_project(target)
    done = build(target)
    print(done.stdout, done.stderr)
