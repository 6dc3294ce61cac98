"""The book's boxes: at a glance, commit yourself, result, often said, deeper, test yourself, and the rest.

A box that folds is a native <details>, so it opens without a script, by keyboard, and in print.
"""

from __future__ import annotations

from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.writers.html5 import HTML5Translator


class fold(nodes.General, nodes.Element):
    """A <details>; its first child is a `fold_title`."""


class fold_title(nodes.General, nodes.TextElement):
    """The <summary> of a fold."""


class choices(nodes.General, nodes.Element):
    """A <fieldset>: a question in a `choices_title`, then `choice`s; `group` names the radio buttons."""


class choices_title(nodes.General, nodes.TextElement):
    """The <legend> of a set of choices."""


class choice(nodes.General, nodes.TextElement):
    """One radio button with its label."""


class Box(SphinxDirective):
    """An admonition with a house class: `kind`, a default `title`, whether one must be given."""

    has_content = True
    optional_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar[dict[str, Any]] = {"name": directives.unchanged, "class": directives.class_option}

    kind: str = ""
    title: str = ""
    title_required = False

    def heading(self) -> str:
        if self.title_required and not self.arguments:
            raise self.error(f"{{{self.name}}} needs a title after its name")
        return self.arguments[0] if self.arguments else self.title

    def children_of(self, node: nodes.Element, content: StringList | None = None) -> None:
        block = self.content if content is None else content
        self.state.nested_parse(block, self.content_offset, node)

    def titled(self, node: nodes.Element, make: type[nodes.TextElement], text: str) -> None:
        parts, messages = self.state.inline_text(text, self.lineno)
        node += make(text, "", *parts)
        node.extend(messages)

    def run(self) -> list[nodes.Node]:
        node = nodes.admonition(classes=["box", self.kind, *self.options.get("class", [])])
        self.set_source_info(node)
        self.titled(node, nodes.title, self.heading())
        self.children_of(node)
        self.add_name(node)
        return [node]


class Lines(Box):
    """A box whose content is one entry a line; an indented line goes on with the one before."""

    def run(self) -> list[nodes.Node]:
        node = nodes.admonition(classes=["box", self.kind])
        self.set_source_info(node)
        self.titled(node, nodes.title, self.heading())
        entries: list[list[str]] = []
        for line in self.content:
            if not line.strip():
                continue
            if line[:1].isspace() and entries:
                entries[-1].append(line.strip())
            else:
                entries.append([line])
        items = nodes.bullet_list(classes=["plain"])
        for entry in entries:
            item = nodes.list_item()
            self.children_of(item, StringList([" ".join(entry)], self.env.docname))
            items += item
        node += items
        self.add_name(node)
        return [node]


class Fold(Box):
    """A box that folds."""

    def run(self) -> list[nodes.Node]:
        node = fold(classes=["fold", self.kind, *self.options.get("class", [])])
        self.set_source_info(node)
        self.titled(node, fold_title, self.heading())
        self.children_of(node)
        self.add_name(node)
        return [node]


class Numbered(Box):
    """A question or an exercise: numbered on its page."""

    option_spec: ClassVar[dict[str, Any]] = {**Box.option_spec, "kind": directives.unchanged}

    def heading(self) -> str:
        count = self.env.temp_data.get(f"book:{self.kind}", 0) + 1
        self.env.temp_data[f"book:{self.kind}"] = count
        sort = self.options.get("kind")
        return (
            f"{self.title} {count}"
            + (f" ({sort})" if sort else "")
            + (f": {self.arguments[0]}" if self.arguments else "")
        )


class Commit(Box):
    """A question that the reader answers before the page does.

    Content: text and one bullet list, whose items become radio buttons; after a line `+++`, what to say then.
    """

    kind = "commit"
    title_required = True

    def run(self) -> list[nodes.Node]:
        lines = list(self.content)
        cut = lines.index("+++") if "+++" in lines else len(lines)
        node = nodes.container(classes=["box", "commit"])
        self.set_source_info(node)
        number = self.env.new_serialno("book-commit")
        field = choices(group=f"commit-{number}")
        self.titled(field, choices_title, self.heading())
        parsed = nodes.Element()
        self.children_of(parsed, self.content[:cut])
        options = [child for child in parsed.children if isinstance(child, nodes.bullet_list)]
        if len(options) != 1 or len(options[0].children) < 2:
            raise self.error("{commit} needs one bullet list of at least two choices")
        for child in list(parsed.children):
            if child is not options[0]:
                field += child
        for item in options[0].children:
            paragraph = item.next_node(nodes.paragraph)
            field += choice("", "", *(paragraph.children if paragraph is not None else []))
        node += field
        if cut < len(lines):
            after = fold(classes=["fold", "commit-after"])
            after += fold_title("", "What happens")
            self.children_of(after, self.content[cut + 1 :])
            node += after
        self.add_name(node)
        return [node]


def _box(base: type[Box], kind: str, title: str, *, required: bool = False) -> type[Box]:
    name = kind.title().replace("-", "")
    return type(name, (base,), {"kind": kind, "title": title, "title_required": required, "__doc__": base.__doc__})


DIRECTIVES: dict[str, type[Box]] = {
    "glance": _box(Lines, "glance", "At a glance"),
    "by-the-end": _box(Lines, "by-the-end", "By the end of this page you can"),
    "commit": Commit,
    "result": _box(Box, "result", "Result"),
    "look-closer": _box(Box, "look-closer", "Look closer"),
    "in-production": _box(Box, "in-production", "In production"),
    "remember": _box(Box, "remember", "Remember this"),
    "deeper": _box(Fold, "deeper", "Deeper", required=True),
    "fold": _box(Fold, "plain-fold", "More", required=True),
    "answer": _box(Fold, "answer", "Answer"),
    "hint": _box(Fold, "hint", "Hint"),
    "question": _box(Numbered, "question", "Question"),
    "exercise": _box(Numbered, "exercise", "Exercise"),
}


def visit_fold(self: HTML5Translator, node: fold) -> None:
    self.body.append(self.starttag(node, "details"))


def depart_fold(self: HTML5Translator, node: fold) -> None:
    self.body.append("</div></details>\n")


def visit_fold_title(self: HTML5Translator, node: fold_title) -> None:
    self.body.append(self.starttag(node, "summary", ""))


def depart_fold_title(self: HTML5Translator, node: fold_title) -> None:
    self.body.append('</summary>\n<div class="fold-body">\n')


def visit_choices(self: HTML5Translator, node: choices) -> None:
    self.body.append(self.starttag(node, "fieldset", **{"data-commit": node["group"]}))


def depart_choices(self: HTML5Translator, node: choices) -> None:
    self.body.append("</fieldset>\n")


def visit_choices_title(self: HTML5Translator, node: choices_title) -> None:
    self.body.append(self.starttag(node, "legend", ""))


def depart_choices_title(self: HTML5Translator, node: choices_title) -> None:
    self.body.append("</legend>\n")


def visit_choice(self: HTML5Translator, node: choice) -> None:
    group = node.parent["group"]
    value = sum(isinstance(other, choice) for other in node.parent.children[: node.parent.index(node)])
    self.body.append(f'<label class="choice"><input type="radio" name="{group}" value="{value}"><span>')


def depart_choice(self: HTML5Translator, node: choice) -> None:
    self.body.append("</span></label>\n")


def _pass(self: Any, node: nodes.Node) -> None:
    """Other writers (text, LaTeX) show the content and nothing else."""


def setup(app: Sphinx) -> None:
    for name, directive in DIRECTIVES.items():
        # "hint" is also a plain admonition of docutils; this book's folds.
        app.add_directive(name, directive, override=True)
    for node, visit, depart in (
        (fold, visit_fold, depart_fold),
        (fold_title, visit_fold_title, depart_fold_title),
        (choices, visit_choices, depart_choices),
        (choices_title, visit_choices_title, depart_choices_title),
        (choice, visit_choice, depart_choice),
    ):
        app.add_node(node, html=(visit, depart), text=(_pass, _pass), latex=(_pass, _pass))
