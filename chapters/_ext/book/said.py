"""*Often said, and right*: claims are boxed where they are shown, and gathered on one page of the back matter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.builders import Builder
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, new_document
from sphinx.writers.html5 import HTML5Translator

from book.boxes import Box

LOG = logging.getLogger(__name__)


class claim(nodes.Admonition, nodes.Element):
    """One claim; the title is the claim as people say it."""


class claim_list(nodes.General, nodes.Element):
    """Stands where the gathered claims go."""


class OftenSaid(Box):
    kind = "often-said"
    title_required = True

    def run(self) -> list[nodes.Node]:
        if "name" not in self.options:
            raise self.error("{often-said} needs a :name: of its own, by which other pages can refer to it")
        node = claim(classes=["admonition", "box", "often-said"])
        self.set_source_info(node)
        self.titled(node, nodes.title, self.heading())
        self.children_of(node)
        self.add_name(node)
        return [node]


class OftenSaidList(SphinxDirective):
    option_spec: ClassVar[dict[str, Any]] = {"class": directives.class_option}

    def run(self) -> list[nodes.Node]:
        gathered(self.env).add(self.env.docname)
        return [claim_list("")]


def gathered(env: BuildEnvironment) -> set[str]:
    """The pages that gather claims."""
    if not hasattr(env, "book_claim_pages"):
        env.book_claim_pages = set()  # type: ignore[attr-defined]
    return env.book_claim_pages  # type: ignore[attr-defined,no-any-return]


def purge(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    gathered(env).discard(docname)


def merge(app: Sphinx, env: BuildEnvironment, docnames: list[str], other: BuildEnvironment) -> None:
    gathered(env).update(gathered(other))


def always(app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """A gathering page is out of date as soon as any page is."""
    return sorted(gathered(env) & env.all_docs.keys()) if added or changed or removed else []


def in_order(env: BuildEnvironment, docname: str, seen: set[str] | None = None) -> Iterator[str]:
    """Pages in the order of the table of contents."""
    seen = set() if seen is None else seen
    if docname in seen:
        return
    seen.add(docname)
    yield docname
    for child in env.toctree_includes.get(docname, []):
        yield from in_order(env, child, seen)


def gather(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    for place in list(doctree.findall(claim_list)):
        place.replace_self(list(_claims(app.env, app.builder, docname, doctree)) or [nodes.paragraph("", "None yet.")])


def _claims(env: BuildEnvironment, builder: Builder, here: str, page: nodes.document) -> Iterator[nodes.Node]:
    for docname in in_order(env, env.config.root_doc):
        if docname == here:
            continue
        found = list(env.get_doctree(docname).findall(claim))
        if not found:
            continue
        title = env.titles[docname].astext()
        link = nodes.reference("", title, internal=True, refuri=builder.get_relative_uri(here, docname))
        yield nodes.rubric("", "", link, classes=["claims-from"])
        for node in found:
            copied = node.deepcopy()
            target = builder.get_relative_uri(here, docname) + "#" + (node["ids"][0] if node["ids"] else "")
            copied["ids"] = []
            copied["names"] = []
            for link in copied.findall(nodes.reference):
                if "refid" in link:  # a place on the claim's own page
                    link["refuri"] = builder.get_relative_uri(here, docname) + "#" + link["refid"]
                    link["internal"] = True
                    del link["refid"]
            _resolve(env, builder, copied, here, new_document(str(env.doc2path(docname)), page.settings))
            more = nodes.paragraph(classes=["claim-source"])
            more += nodes.reference("", "Where it is shown", internal=True, refuri=target)
            copied += more
            yield copied


def _resolve(env: BuildEnvironment, builder: Builder, node: claim, here: str, shell: nodes.document) -> None:
    """Resolve the references inside a copied claim as seen from the page it is copied to, held in `shell` meanwhile."""
    for xref in node.findall(addnodes.pending_xref):
        if "refdoc" in xref:
            xref["refdoc"] = here
    shell += node
    env.resolve_references(shell, here, builder)
    shell.remove(node)


def visit_claim(self: HTML5Translator, node: claim) -> None:
    self.body.append(self.starttag(node, "div"))


def depart_claim(self: HTML5Translator, node: claim) -> None:
    self.body.append("</div>\n")


def _pass(self: Any, node: nodes.Node) -> None:
    """Other writers show the content and nothing else."""


def setup(app: Sphinx) -> None:
    app.add_node(claim, html=(visit_claim, depart_claim), text=(_pass, _pass), latex=(_pass, _pass))
    app.add_node(claim_list)
    app.add_directive("often-said", OftenSaid)
    app.add_directive("often-said-list", OftenSaidList)
    app.connect("env-purge-doc", purge)
    app.connect("env-merge-info", merge)
    app.connect("env-get-outdated", always)
    app.connect("doctree-resolved", gather)
