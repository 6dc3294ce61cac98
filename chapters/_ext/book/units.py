"""A number and its unit stay on one line.

Authors type a space between the two, glue puts numbers beside text, and a browser breaks a line at any space. So the
space between a digit and a unit becomes one that does not break (U+00A0), in text that is read and nowhere else.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

from underload.figures.wording import keep_units

NOT_PROSE = (nodes.literal, nodes.literal_block, nodes.math, nodes.math_block, nodes.raw, nodes.comment)


class KeepUnits(SphinxPostTransform):
    """Runs when glue has put its numbers there."""

    default_priority = 900

    def run(self, **_: Any) -> None:
        keep_units_in(self.document)


def keep_units_in(tree: nodes.Node) -> None:
    """Change the spaces between numbers and units in a tree, in place."""
    before = ""  # what is read just before the text
    for node in list(tree.findall()):
        if isinstance(node, nodes.TextElement) and not isinstance(node, nodes.Inline):
            before = ""  # a paragraph, title or cell of its own
        elif isinstance(node, nodes.Text):
            text = str(node)
            if not _verbatim(node):
                digit = before[-1:] if before[-1:].isdigit() else ""
                made = keep_units(digit + text).removeprefix(digit)
                if made != text:
                    siblings = node.parent.children
                    place = next(i for i, one in enumerate(siblings) if one is node)  # equal texts are not the same
                    node.parent[place] = nodes.Text(made)
            before = text


def _verbatim(node: nodes.Node) -> bool:
    above: nodes.Node | None = node
    while above is not None:
        if isinstance(above, NOT_PROSE):
            return True
        above = above.parent
    return False


def setup(app: Sphinx) -> None:
    app.add_post_transform(KeepUnits)
