"""What every page carries beside its text: how to cite it, and how to report a fault in it."""

from __future__ import annotations

import re
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml
from docutils import nodes
from sphinx.application import Sphinx


def add_context(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    about = app.config.book_about
    title = re.sub(r"<[^>]+>", "", str(context.get("title", ""))) or page
    context["book"] = about
    context["page_title"] = title
    context["page_key"] = re.sub(r"\W+", "-", page.removeprefix("chapters/"))
    context["report_query"] = urlencode({"page": page, "title": title, "version": about.get("version", "")})
    context["report_target"] = app.config.book_report_target
    if "body" in context:
        # docutils puts entries of one role into a list of another, which screen readers refuse.
        context["body"] = context["body"].replace(' role="doc-biblioentry"', ' role="listitem"')
    if doctree is None:
        context["page_is_generated"] = True


def name_toggles(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Give the sidebar's toggles a name: the theme leaves them empty, and a screen reader says nothing."""
    generate = context.get("generate_toctree_html")
    if generate is None:
        return

    def named(*arguments: Any, **options: Any) -> Any:
        made = generate(*arguments, **options)
        return re.sub(
            r"(<a [^>]*>([^<]*)</a>\s*<details[^>]*>\s*<summary)>",
            lambda found: f'{found[1]} aria-label="Pages under {escape(unescape(found[2]).strip())}">',
            str(made),
        )

    context["generate_toctree_html"] = named


def about(root: Path) -> dict[str, str]:
    """Title, version, year and revision of the book, for citing it."""
    citation = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))
    init = (root / "lib" / "underload" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"', init, re.MULTILINE)
    version = found[1] if found else str(citation["version"])
    return {
        "title": str(citation["title"]),
        "version": version,
        "year": str(citation["date-released"])[:4],
        "revision": _revision(root),
        "authors": " and ".join(str(author.get("name", "")) for author in citation["authors"]),
    }


def _revision(root: Path) -> str:
    """The short id of the checked-out revision, or nothing where there is no version control."""
    try:
        made = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return made.stdout.strip() if made.returncode == 0 else ""


def setup(app: Sphinx) -> None:
    app.add_config_value("book_about", {}, "html")
    app.add_config_value("book_report_target", "", "html")
    app.connect("html-page-context", add_context)
    app.connect("html-page-context", name_toggles, priority=900)  # after the theme has put its functions there
