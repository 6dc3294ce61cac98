"""A number and its unit stay on one line, and so do a day and its month, and a letter = a number.

Authors type a space between the two, glue puts numbers beside text, and a browser breaks a line at any space. So the
space between a digit and a unit becomes one that does not break (U+00A0), in text that is read and nowhere else.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

from underload.figures.wording import keep_units

NOT_PROSE = (nodes.literal, nodes.literal_block, nodes.math, nodes.math_block, nodes.raw, nodes.comment)

AFTER_SIGN = re.compile(r"(?<= [=≈]) (?=[−-]?\d)")
BEFORE_SIGN = re.compile(r"(?<=\S) (?=[=≈]\u00a0)")

A_VALUE = re.compile(r" [=≈](?:\u00a0\S*)+")


class KeepUnits(SphinxPostTransform):
    """Runs when glue has put its numbers there."""

    default_priority = 900

    def run(self, **_: Any) -> None:
        keep_units_in(self.document)
        keep_values_in(self.document)


def keep_units_in(tree: nodes.Node) -> None:
    """Change the spaces between numbers and units, and of dates and short equations, in a tree, in place."""
    paragraphs: list[list[nodes.Text]] = [[]]
    for node in tree.findall():
        if isinstance(node, nodes.TextElement) and not isinstance(node, nodes.Inline):
            paragraphs.append([])  # or a title or cell of its own
        elif isinstance(node, nodes.Text):
            paragraphs[-1].append(node)
    for texts in paragraphs:
        said = [str(node) for node in texts]
        for node, before, text, after in zip(texts, ["", *said], said, [*said[1:], ""], strict=False):
            if _verbatim(node):
                continue
            left = before[-1:].strip()
            made = AFTER_SIGN.sub("\u00a0", keep_units(left + text + after[:20]))[len(left) :][: len(text)]
            made = BEFORE_SIGN.sub("\u00a0", made)  # in one text only: beside a formula a browser breaks all the same
            if made != text:
                siblings = node.parent.children
                place = next(i for i, one in enumerate(siblings) if one is node)  # equal texts are not the same
                node.parent[place] = nodes.Text(made)


def keep_values_in(tree: nodes.Node) -> None:
    """Put each short formula and the value after it, which has its U+00A0 by now, into one element, in place."""
    for formula in list(tree.findall(nodes.math)):
        siblings = formula.parent
        place = next(i for i, one in enumerate(siblings.children) if one is formula)
        after = siblings.children[place + 1 : place + 3]
        found = A_VALUE.match(str(after[0])) if after and isinstance(after[0], nodes.Text) else None
        if found is None or len(formula.astext()) > 12 or len(found[0]) > 16:
            continue
        parts: list[nodes.Node] = [formula, nodes.Text(found[0])]
        rest = found.string[found.end() :]
        if found[0].endswith("\u00a0") and not rest and isinstance(after[-1], nodes.inline):
            parts.append(after[-1])  # the number is a node of its own
        whole = nodes.inline("", "", *parts, classes=["whole"])
        siblings[place : place + len(parts)] = [whole, nodes.Text(rest)] if rest else [whole]


def _verbatim(node: nodes.Node) -> bool:
    above: nodes.Node | None = node
    while above is not None:
        if isinstance(above, NOT_PROSE):
            return True
        above = above.parent
    return False


def setup(app: Sphinx) -> None:
    app.add_post_transform(KeepUnits)
