"""An equation of another page is cited with that page's title.

Every page counts its equations from (1), so "(3)" alone would be read as one of the page at hand.
"""

from __future__ import annotations

from typing import Any, cast

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.domains.math import MathDomain
from sphinx.transforms.post_transforms import SphinxPostTransform


class NameThePage(SphinxPostTransform):
    """Runs before references are resolved: (3) becomes "(3) of *Continuous batching*"."""

    default_priority = 5

    def run(self, **_: Any) -> None:
        equations = cast(MathDomain, self.env.get_domain("math")).equations
        for reference in list(self.document.findall(pending_xref)):
            if reference.get("refdomain") != "math" or reference.get("reftype") not in ("eq", "numref"):
                continue
            home, _number = equations.get(reference["reftarget"], (self.env.docname, 0))
            if home != self.env.docname:
                title = nodes.emphasis("", "", nodes.Text(self.env.titles[home].astext()))
                place = reference.parent.index(reference) + 1
                reference.parent[place:place] = [nodes.Text(" of\u00a0"), title]


def setup(app: Sphinx) -> None:
    app.add_post_transform(NameThePage)
