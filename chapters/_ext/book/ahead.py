"""Pages whose cells run side by side, before the pages are read.

Sphinx reads one page after the other, and each waits for its own cells, so that on two cores one has nothing to do.
With `book_jobs` above 1, cells of so many pages run at a time, and what came of them lies in the cache by the time
MyST-NB looks there. A page that fails is left to MyST-NB, which runs it again and says where.

What one page measures is then disturbed by another: good for finding out whether the book builds, not for a reader.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path, PurePosixPath

from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn, JupyterCacheAbstract
from jupyter_cache.executors.utils import single_nb_execution
from myst_nb.core.read import create_nb_reader
from nbformat import NotebookNode
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment


def setup(app: Sphinx) -> None:
    app.add_config_value("book_jobs", 1, "", [int])
    app.connect("env-before-read-docs", run_ahead)


def run_ahead(app: Sphinx, env: BuildEnvironment, names: list[str]) -> None:
    """Run the cells of the pages that will be read and are not in the cache, the last ones first: they take longest."""
    jobs, settings = app.config.book_jobs, env.mystnb_config  # type: ignore[attr-defined]
    if jobs < 2 or settings.execution_mode != "cache":
        return
    cache = get_cache(settings.execution_cache_path)
    places = {name: place for place, name in enumerate(app.config.external_site_map)}
    with ThreadPoolExecutor(jobs) as pool:
        running = {}
        for name in sorted(names, key=lambda name: -places.get(name, 0)):
            path = Path(env.doc2path(name))
            notebook = _notebook(env, path)
            if notebook is not None and not _known(cache, notebook):
                run = pool.submit(single_nb_execution, notebook, str(path.parent), settings.execution_timeout, False)
                running[run] = path
        # Here and not in the threads: the cache is one file.
        for run in as_completed(running):
            if run.result().err is None:
                bundle = CacheBundleIn(
                    run.result().nb, str(running[run]), data={"execution_seconds": run.result().time}
                )
                cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)


def _notebook(env: BuildEnvironment, path: Path) -> NotebookNode | None:
    """What MyST-NB would run: None for a page without cells, and for one that it is told to leave alone."""
    settings = env.mystnb_config  # type: ignore[attr-defined]
    if any(PurePosixPath(path.as_posix()).match(one) for one in settings.execution_excludepatterns):
        return None
    text = path.read_text(encoding="utf-8")
    reader = create_nb_reader(str(path), env.myst_config, settings, text)  # type: ignore[attr-defined]
    return None if reader is None else reader.read(text)


def _known(cache: JupyterCacheAbstract, notebook: NotebookNode) -> bool:
    try:
        cache.match_cache_notebook(notebook)
    except KeyError:
        return False
    return True
