"""Mathematics as MathML, written when the book is built: no script, no network, selectable and read aloud.

LaTeX goes through math-core; a formula it does not understand is a warning that names it (fatal in a real build).
"""

from __future__ import annotations

import re
from functools import lru_cache
from html import escape

from docutils import nodes
from math_core import LatexError, LatexToMathML
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

LOG = logging.getLogger(__name__)


@lru_cache(1)
def _converter() -> LatexToMathML:
    return LatexToMathML(fancy_error=False)


def to_mathml(latex: str, *, display: bool) -> str:
    """MathML Core for a formula, its LaTeX kept as `alttext`.

    Raises:
        LatexError: math-core does not know a command in it.
    """
    source = latex.strip()
    if display and r"\\" in source and r"\begin{" not in source:
        source = r"\begin{aligned}" + source + r"\end{aligned}"
    made: str = _converter().convert_with_local_state(source, displaystyle=display)
    # To MathML <mtext> is as good as space: beside it, in "before − after", a sign gets the spacing of a prefix.
    made = re.sub(r"<mtext>([^<]*\w[^<]*)</mtext>", r'<mi class="text" mathvariant="normal">\1</mi>', made)
    return made.replace("<math", f'<math alttext="{escape(latex.strip())}"', 1)


def _convert(node: nodes.Element, *, display: bool) -> str:
    latex = node.astext()
    try:
        return to_mathml(latex, display=display)
    except LatexError as error:
        LOG.warning("mathematics cannot be set: %s: %r", str(error).strip(), latex, location=node)
        return f'<code class="math-error">{escape(latex)}</code>'


def visit_inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(self.starttag(node, "span", "", CLASS="math notranslate nohighlight"))
    self.body.append(_convert(node, display=False) + "</span>")
    raise nodes.SkipNode


def visit_display(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(self.starttag(node, "div", CLASS="math notranslate nohighlight"))
    self.body.append('<div class="formula">' + _convert(node, display=True) + "</div>")
    if node["number"]:
        self.body.append(f'<span class="eqno">({get_node_equation_number(self, node)})')
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    self.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    app.add_html_math_renderer("mathml", inline_renderers=(visit_inline, None), block_renderers=(visit_display, None))
