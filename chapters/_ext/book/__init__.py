"""What this book adds to Jupyter Book: its boxes, mathematics without a script, pages made from data, its fonts.

`build.py` prepares a source folder and builds it; the other modules are one Sphinx extension, switched on by
`_config.yml`.
"""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx

from book import ahead, boxes, equations, fonts, goals, labs, library, mathml, names, pages, said, units


def setup(app: Sphinx) -> dict[str, Any]:
    # Jupyter Book sets these for extensions that this book leaves out (see _config.yml).
    for unused in ("comments_config", "nb_execution_key"):
        app.add_config_value(unused, {}, "env")
    for module in (ahead, boxes, said, equations, mathml, labs, goals, names, library, pages, units, fonts):
        module.setup(app)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
