"""Prepare a source folder for Jupyter Book and build it.

    python -m book.build                    the reader's book         -> _build/book
    python -m book.build --solutions        the instructor's edition  -> _build/instructor
    python -m book.build --page PAGE        one page, quickly         -> _build/pages/PAGE

The source folder (`_build/…-src`) holds copies of the chapters and, for each lab, the page that `underload.course`
makes of it: what is not in it cannot reach the built site, its downloads or its search index. Files are copied only
when they changed, so that Sphinx rebuilds only what it must.

Executed cells come from a cache that is named after the library, the data and the pins: change one of these, and
everything runs again. The build fails on any warning and on any cell that raises.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import nbformat
import yaml

from book.pages import about
from book.toc import toc_pages
from underload.course import lab_page, read_notebook

ROOT = Path(__file__).resolve().parents[3]
LEFT_OUT = {"_ext", "_static", "_templates", "__pycache__", ".ipynb_checkpoints"}


@dataclass(frozen=True)
class Edition:
    """Where one edition of the book is prepared and built."""

    root: Path
    source: Path
    output: Path
    cache: Path
    solutions: bool = False
    page: str | None = None

    @classmethod
    def reader(cls, root: Path) -> Edition:
        build = root / "_build"
        return cls(root, build / "book-src", build / "book", build / "cache")

    @classmethod
    def instructor(cls, root: Path) -> Edition:
        build = root / "_build"
        return cls(root, build / "instructor-src", build / "instructor", build / "cache", solutions=True)

    @classmethod
    def one_page(cls, root: Path, page: str) -> Edition:
        build = root / "_build" / "pages" / page.replace("/", "-")
        return cls(root, build / "src", build / "html", build / "cache", page=page)


def execution_key(root: Path) -> str:
    """A digest of everything that a cell's output may depend on beside the cell: library, data, pins."""
    digest = hashlib.sha256()
    for path in [root / "requirements.txt", *_files(root / "lib"), *_files(root / "chapters" / "data")]:
        if path.suffix == ".pyc" or not path.is_file() or ".egg-info" in path.as_posix():
            continue
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if path.is_file() and not LEFT_OUT & set(path.relative_to(folder).parts):
            yield path


def stage(edition: Edition) -> None:
    """Bring the source folder up to date: copy what changed, drop what is gone."""
    root, target = edition.root, edition.source
    wanted: dict[Path, bytes] = {}
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    if edition.page and edition.page not in toc_pages(toc):
        toc.setdefault("parts", []).append({"caption": "Draft", "chapters": [{"file": edition.page}]})
    for path in _files(root / "chapters"):
        wanted[path.relative_to(root)] = path.read_bytes()
    for folder in ("_static", "_templates"):
        for path in _files(root / "chapters" / folder):
            wanted[path.relative_to(root / "chapters")] = path.read_bytes()
    for path in sorted((root / "labs").glob("*.ipynb")):
        notebook = read_notebook(path)
        page = notebook if edition.solutions else lab_page(notebook)
        wanted[path.relative_to(root)] = nbformat.writes(page, version=nbformat.NO_CONVERT).encode()
    config = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))
    wanted[Path("_config.yml")] = yaml.safe_dump(configured(config, edition, toc), sort_keys=False).encode()
    wanted[Path("_toc.yml")] = yaml.safe_dump(toc, sort_keys=False).encode()
    for path, content in wanted.items():
        place = target / path
        if not place.is_file() or place.read_bytes() != content:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
    for path in sorted(target.rglob("*")) if target.is_dir() else ():
        if path.is_file() and path.relative_to(target) not in wanted:
            path.unlink()


def configured(config: dict[str, Any], edition: Edition, toc: dict[str, Any]) -> dict[str, Any]:
    """The configuration with what is known only now: cache, key, version, what to leave unexecuted."""
    execute = config.setdefault("execute", {})
    key = execution_key(edition.root)
    execute["cache"] = str(edition.cache / f"executed-{key}")
    never = ["labs/*"]
    if edition.page:
        never += [page + ".*" for page in toc_pages(toc) if page != edition.page]
    execute["exclude_patterns"] = never
    sphinx = config["sphinx"]["config"]
    sphinx["nb_execution_key"] = {"key": key}
    sphinx["book_about"] = about(edition.root)
    sphinx["book_font_cache"] = str(edition.root / "_build" / "cache" / "fonts")
    if edition.solutions:
        config["title"] = f"{config['title']} (instructor’s edition)"
    return config


def kernel_settings(folder: Path) -> Path:
    """Settings for the kernels that run the book's cells: the reader's own start-up files stay out of the book, and a
    kernel does not warn on every start that it talks over a local socket."""
    profile = folder / "profile_default"
    profile.mkdir(parents=True, exist_ok=True)
    (profile / "ipython_kernel_config.py").write_text("c = get_config()\nc.IPKernelApp.log_level = 40\n")
    return folder


def warm_up(edition: Edition) -> None:
    """Compile what the decoder compiles once on a machine, so that no page's first cell waits for it and says so."""
    pages = (edition.source / "chapters").rglob("*.md")
    wanted = any("underload.decoder" in path.read_text(encoding="utf-8") for path in pages)
    if not wanted or (edition.cache / f"executed-{execution_key(edition.root)}").is_dir():
        return
    code = (
        "from underload.decoder import generate, load_model; from underload.request import SamplingParams; "
        "generate(load_model('shape:bench-s'), [[1, 2, 3]], SamplingParams(max_tokens=2, ignore_eos=True))"
    )
    # If this fails, so does the first page that needs it, with a better message.
    subprocess.run([sys.executable, "-c", code], check=False)


def forget(edition: Edition, keep: int = 2) -> None:
    """Drop all but the newest execution caches."""
    caches = sorted(edition.cache.glob("executed-*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in caches[keep:]:
        shutil.rmtree(old, ignore_errors=True)


def build(edition: Edition, *, quiet: bool = False, jobs: int = 1) -> int:
    """Stage and build an edition. 0 when there was no error and, unless it is a single page, no warning.

    jobs: pages whose cells run at a time (`book.ahead`).
    """
    from jupyter_book.sphinx import build_sphinx

    stage(edition)
    forget(edition)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(edition.root / "lib"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    os.environ["IPYTHONDIR"] = str(kernel_settings(edition.root / "_build" / "ipython"))
    sys.path.insert(0, str(edition.root / "chapters" / "_ext"))
    warm_up(edition)
    result = build_sphinx(
        str(edition.source),
        str(edition.output),
        noconfig=True,
        path_config=str(edition.source / "_config.yml"),
        confoverrides={
            "external_toc_path": str(edition.source / "_toc.yml"),
            "latex_individualpages": False,
            "book_jobs": jobs,
        },
        doctreedir=str(edition.source.parent / f".doctrees-{edition.source.name}"),
        warningiserror=edition.page is None,
        keep_going=True,
        quiet=quiet,
    )
    if result:
        return 1
    _front_door(edition)
    return 0


def _front_door(edition: Edition) -> None:
    """`index.html` at the top leads to the first page, by a link where a redirect is not followed."""
    toc = yaml.safe_load((edition.root / "_toc.yml").read_text(encoding="utf-8"))
    first = f"{toc['root']}.html"
    title = escape(yaml.safe_load((edition.root / "_config.yml").read_text(encoding="utf-8"))["title"])
    (edition.output / "index.html").write_text(
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f'<meta http-equiv="refresh" content="0; url={first}">\n</head>\n'
        f'<body><main><h1>{title}</h1><p><a href="{first}">Open the book</a></p></main></body>\n</html>\n',
        encoding="utf-8",
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m book.build", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT, help="the project's folder (for tests)")
    parser.add_argument("--solutions", action="store_true", help="the instructor's edition: labs with solutions")
    parser.add_argument("--page", help="build one page only, for example chapters/latency-budget; warnings are shown")
    parser.add_argument("--clean", action="store_true", help="from nothing: no page and no executed cell is reused")
    parser.add_argument(
        "--jobs", type=int, default=1, help="pages whose cells run at a time; above 1 they disturb what they measure"
    )
    parser.add_argument("--quiet", action="store_true", help="print warnings and errors only")
    options = parser.parse_args(arguments)
    if options.page:
        options.page = options.page.removesuffix(".md").removesuffix(".ipynb")
        edition = Edition.one_page(options.root, options.page)
    else:
        edition = (Edition.instructor if options.solutions else Edition.reader)(options.root)
    if options.clean:
        for folder in (edition.source, edition.output, edition.source.parent / f".doctrees-{edition.source.name}"):
            shutil.rmtree(folder, ignore_errors=True)
        for executed in edition.cache.glob("executed-*"):
            shutil.rmtree(executed, ignore_errors=True)
    start = time.monotonic()
    status = build(edition, quiet=options.quiet, jobs=options.jobs)
    place = edition.output / (f"{options.page}.html" if options.page else "index.html")
    if status:
        print("The book was not built: see the messages above.", file=sys.stderr)
    else:
        print(f"Built in {time.monotonic() - start:.0f} s. Open {place.resolve().as_uri()}")
    return status


if __name__ == "__main__":
    sys.exit(main())
