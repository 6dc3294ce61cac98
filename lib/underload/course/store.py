"""Run a lab's source and store its outputs as its tags say:  python -m underload.course.store labs/NAME.ipynb …

*checked* and *recorded* cells keep what they print and draw; *live* ones keep nothing, widget state is never stored,
and what went to standard error is dropped. The notebook is written only if every cell ran.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat


def store(path: Path, timeout: float = 600) -> float:
    """Execute the notebook in place, in its own folder.

    Returns:
        seconds that the execution took.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed; the file is as it was.
    """
    import time

    from nbclient import NotebookClient  # not needed by anything else in this package

    notebook = nbformat.read(path, as_version=4)
    start = time.perf_counter()
    NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        extra_arguments=["--log-level=ERROR"],  # it warns of what is no matter between two processes of one person
    ).execute()
    seconds = time.perf_counter() - start
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # time stamps would change the file at every run
        if cell.cell_type == "code":
            live = "live" in cell.metadata.get("tags", [])
            cell.outputs = [] if live else [o for o in cell.outputs if o.get("name") != "stderr"]
    notebook.metadata.pop("widgets", None)
    nbformat.write(notebook, path)
    return seconds


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(f"{name}: {store(Path(name)):.1f} s")
