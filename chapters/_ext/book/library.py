"""The library reference, read from the source: each package's public names with signature and docstring.

The source is parsed, not imported, so the page costs no torch and cannot fail on a missing extra. Docstrings are plain
text with `names` in backticks, indented blocks, "- " lists and sections such as "Raises:"; anything else is shown as
it stands.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any, ClassVar

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.domains.std import StandardDomain
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_id

#: In the order of the rows of the library: each imports only from those before it.
PACKAGES = (
    "request",
    "shapes",
    "metrics",
    "queueing",
    "workload",
    "cache",
    "scheduling",
    "engine",
    "simulation",
    "planning",
    "figures",
    "course",
    "labs",
    "decoder",
    "serving",
    "cli",
)


@dataclass(frozen=True)
class Item:
    """A public name and its definition. Of a module that is public itself, `members` are its own public names."""

    name: str
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign | ast.Module
    comment: str
    members: tuple[Item, ...] = ()


def library_root() -> Path:
    spec = importlib.util.find_spec("underload")
    if spec is None or spec.origin is None:
        raise RuntimeError("the library is not installed: pip install -e lib")
    return Path(spec.origin).parent


def public_items(root: Path, package: str) -> tuple[str, list[Item]]:
    """The package's docstring and what its __init__ makes public, in the order of __all__."""
    init = root / package / "__init__.py"
    tree = ast.parse(init.read_text(encoding="utf-8"))
    wanted = _all(tree)
    homes = _homes(tree, root)
    own = {item.name: item for item in _definitions(init)}
    cache: dict[Path, dict[str, Item]] = {}
    found: list[Item] = []
    for name in wanted:
        if name in own:
            found.append(own[name])
            continue
        home = homes.get(name)
        if home is None:
            continue
        path, original = home
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if candidate.is_file():
                items = cache.setdefault(candidate, {item.name: item for item in _definitions(candidate)})
                if original in items:
                    found.append(items[original])
                elif (path / f"{original}.py").is_file():
                    found.append(_module(name, path / f"{original}.py"))
                break
    return ast.get_docstring(tree) or "", found


def _module(name: str, path: Path) -> Item:
    """A module that is public as a whole, with its names: those in its __all__, or all that are explained."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    wanted = _all(tree)
    members = [
        item
        for item in _definitions(path)
        if (item.name in wanted if wanted else not item.name.startswith("_") and _explained(item))
    ]
    return Item(name, tree, "", tuple(members))


def _explained(item: Item) -> bool:
    node = item.node
    documented = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    return bool(item.comment or (documented and ast.get_docstring(node)))


def _all(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            try:
                return [str(name) for name in ast.literal_eval(node.value)]
            except ValueError:
                return []
    return []


def _homes(tree: ast.Module, root: Path) -> dict[str, tuple[Path, str]]:
    """For each name imported into a package (or under TYPE_CHECKING): the module it comes from."""
    homes: dict[str, tuple[Path, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("underload."):
            path = root.joinpath(*node.module.split(".")[1:])
            for alias in node.names:
                homes[alias.asname or alias.name] = (path, alias.name)
        if isinstance(node, ast.Dict):
            # A lazy package keeps a table {public name: module}.
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
                    module = str(value.value)
                    if module.startswith("underload."):
                        homes[str(key.value)] = (root.joinpath(*module.split(".")[1:]), str(key.value))
    return homes


def _definitions(path: Path) -> Iterator[Item]:
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield Item(node.name, node, "")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    yield Item(target.id, node, comment_above(lines, node.lineno))


def comment_above(lines: list[str], lineno: int) -> str:
    """The `#:` comment that stands directly above a line, or behind it."""
    behind = re.search(r"#: ?(.*)$", lines[lineno - 1])
    if behind:
        return behind[1]
    found: list[str] = []
    for line in reversed(lines[: lineno - 1]):
        mark = re.match(r"\s*#: ?(.*)$", line)
        if mark is None:
            break
        found.insert(0, mark[1])
    return " ".join(found)


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef, *, method: bool = False) -> str:
    """`name(arguments) -> result`, without self; "async" before what must be awaited."""
    arguments = ast.unparse(node.args)
    if method:
        arguments = re.sub(r"^(self|cls)(, |$)", "", arguments)
    result = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    called = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    return f"{called}{node.name}({arguments}){result}"


_SECTION = re.compile(r"^(Args|Arguments|Attributes|Raises|Returns|Yields|Example|Examples|Note|Notes):\s*$")


def body_of(docstring: str) -> list[nodes.Node]:
    """A docstring as paragraphs, literal blocks, lists and titled sections."""
    made: list[nodes.Node] = []
    block: list[str] = []

    def flush() -> None:
        if not block:
            return
        text = dedent("\n".join(block)).rstrip()
        if block[0].startswith(("    ", "\t")):
            made.append(nodes.literal_block(text, text, language="text"))
        elif all(line.startswith(("- ", "  ")) for line in block):
            made.append(_bullets(block))
        else:
            head, listed = _split_list(block)
            made.append(nodes.paragraph("", "", *inline(" ".join(line.strip() for line in head))))
            if listed:
                made.append(_bullets(listed))
        block.clear()

    lines = docstring.splitlines()
    index = 0
    while index < len(lines):
        line = lines[index]
        section = _SECTION.match(line)
        if section:
            flush()
            index += 1
            entries: list[str] = []
            while index < len(lines) and (lines[index].startswith((" ", "\t")) or not lines[index].strip()):
                entries.append(lines[index])
                index += 1
            made.extend(_section(section[1], dedent("\n".join(entries)).strip("\n")))
            continue
        if not line.strip():
            # A blank line inside an indented block belongs to it.
            if block and block[0].startswith("    ") and index + 1 < len(lines) and lines[index + 1].startswith("    "):
                block.append("")
            else:
                flush()
        else:
            begins = block and line.startswith("    ") and not block[0].startswith(("    ", "- "))
            ends = block and block[0].startswith("    ") and not line.startswith("    ")
            if begins or ends:
                flush()
            block.append(line)
        index += 1
    flush()
    return made


def _split_list(block: list[str]) -> tuple[list[str], list[str]]:
    for position, line in enumerate(block):
        if line.startswith("- "):
            return block[:position], block[position:]
    return block, []


def _bullets(block: list[str]) -> nodes.bullet_list:
    items: list[str] = []
    for line in block:
        if line.startswith("- "):
            items.append(line[2:])
        elif items:
            items[-1] += " " + line.strip()
        else:
            items.append(line.strip())
    made = nodes.bullet_list()
    for item in items:
        made += nodes.list_item("", nodes.paragraph("", "", *inline(item)))
    return made


def _section(title: str, text: str) -> list[nodes.Node]:
    if title.startswith("Example"):
        return [nodes.literal_block(text, text, language="python")]
    entries: list[tuple[str, str]] = []
    for line in text.splitlines():
        start = re.match(r"^([\w., *|`\[\]]+?)(?: \([^)]*\))?: (.*)$", line)
        if start and not line.startswith((" ", "\t")):
            entries.append((start[1], start[2]))
        elif entries:
            entries[-1] = (entries[-1][0], f"{entries[-1][1]} {line.strip()}")
        else:
            entries.append(("", line.strip()))
    made = nodes.definition_list(classes=["doc-section"])
    item = nodes.definition_list_item()
    item += nodes.term("", title)
    definition = nodes.definition()
    for name, meaning in entries:
        parts: list[nodes.Node] = [nodes.literal("", name), nodes.Text(": ")] if name else []
        definition += nodes.paragraph("", "", *parts, *inline(meaning))
    item += definition
    made += item
    return [made]


def inline(text: str) -> list[nodes.Node]:
    """Text with `names` in backticks (one or two)."""
    made: list[nodes.Node] = []
    for position, part in enumerate(re.split(r"``?([^`]+)``?", text)):
        if part:
            made.append(nodes.literal("", part) if position % 2 else nodes.Text(part))
    return made


class Library(SphinxDirective):
    """`{library}`: a section for each package that has public names."""

    option_spec: ClassVar[dict[str, Any]] = {}

    def run(self) -> list[nodes.Node]:
        root = library_root()
        made: list[nodes.Node] = []
        for package in PACKAGES:
            if not (root / package / "__init__.py").is_file():
                continue
            for path in sorted((root / package).rglob("*.py")):
                self.env.note_dependency(str(path))
            text, items = public_items(root, package)
            if not items and not text:
                continue
            full = f"underload.{package}"
            section = nodes.section(ids=[make_id(self.env, self.state.document, "", full)], names=[full])
            self._note(full, section)
            section += nodes.title("", "", nodes.literal("", full))
            section += body_of(text)
            for item in items:
                section += self._entry(full, item)
            made.append(section)
        return made

    def _note(self, name: str, node: nodes.Element) -> None:
        domain = self.env.get_domain("std")
        assert isinstance(domain, StandardDomain)
        domain.note_object("lib-object", name, node["ids"][0], location=None)
        self.state.document.note_explicit_target(node)

    def _entry(self, package: str, item: Item) -> nodes.Element:
        name = f"{package}.{item.name}"
        entry = nodes.container(classes=["lib-entry"], ids=[make_id(self.env, self.state.document, "", name)])
        self._note(name, entry)
        node = item.node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            entry += _code(signature(node))
            entry += body_of(ast.get_docstring(node) or "")
        elif isinstance(node, ast.Module):
            entry += _code(f"from {package} import {item.name}")
            entry += body_of(ast.get_docstring(node) or "")
            for member in item.members:
                entry += self._entry(name, member)
        elif isinstance(node, ast.ClassDef):
            entry += _code(f"class {class_line(node)}")
            entry += body_of(ast.get_docstring(node) or "")
            entry += _members(node)
        else:
            value = ast.unparse(node.value) if node.value is not None else ""
            entry += _code(f"{item.name} = {value}" if len(value) <= 60 else item.name)
            if item.comment:
                entry += nodes.paragraph("", "", *inline(item.comment))
        return entry


def class_line(node: ast.ClassDef) -> str:
    """`Name(constructor)` from __init__ or from a dataclass's fields; `Name(Base)` without either."""
    for child in node.body:
        if isinstance(child, ast.FunctionDef) and child.name == "__init__":
            return signature(child, method=True).replace("__init__", node.name, 1).removesuffix(" -> None")
    if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        fields = [
            ast.unparse(child.target)
            + (f"={ast.unparse(child.value)}" if child.value is not None and len(ast.unparse(child.value)) < 30 else "")
            for child in node.body
            if isinstance(child, ast.AnnAssign) and not ast.unparse(child.target).startswith("_")
        ]
        return f"{node.name}({', '.join(fields)})"
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    return f"{node.name}({bases})" if bases else node.name


def _members(node: ast.ClassDef) -> list[nodes.Node]:
    made = nodes.definition_list(classes=["members"])
    for child in node.body:
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) or child.name.startswith("_"):
            continue
        text = ast.get_docstring(child)
        decorators = {ast.unparse(decorator) for decorator in child.decorator_list}
        shown = child.name if "property" in decorators else signature(child, method=True)
        if "property" in decorators and child.returns is not None:
            shown += f": {ast.unparse(child.returns)}"
        item = nodes.definition_list_item()
        item += nodes.term("", "", nodes.literal("", shown))
        definition = nodes.definition()
        definition += body_of(text) if text else [nodes.paragraph()]
        item += definition
        made += item
    return [made] if made.children else []


def _code(text: str) -> nodes.literal_block:
    block = nodes.literal_block(text, text, language="python", classes=["lib-signature"])
    return block


def setup(app: Sphinx) -> None:
    app.add_crossref_type("lib-object", "lib", objname="library name")
    app.add_directive("library", Library)
