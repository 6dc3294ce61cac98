"""The back matter holds what the pages lean on: terms, symbols, names with their sources, a bibliography."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from datetime import date
from pathlib import Path

import nbformat
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from sphinx.application import Sphinx

from underload.cli import build_parser
from underload.course import read_notebook
from underload.course.outline import outline
from underload.course.store import store

ROOT = Path(__file__).parents[1]
CHAPTERS = ROOT / "chapters"
PAGES = sorted(CHAPTERS.rglob("*.md"))


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def glossary_terms() -> list[str]:
    block = re.search(r"```\{glossary\}\n(.*?)```", text(CHAPTERS / "back/glossary.md"), re.DOTALL)
    assert block, "chapters/back/glossary.md has no {glossary} block"
    return [line.strip() for line in block[1].splitlines() if line.strip() and not line.startswith((" ", ":"))]


def used(role: str, path: Path) -> set[str]:
    """Targets of a role on a page: `{role}`target`` and `{role}`words <target>``."""
    found = re.findall(r"\{" + role + r"\}`([^`]+)`", text(path))
    return {re.sub(r"^.*<(.+)>$", r"\1", target.replace("\n", " ")).strip() for target in found}


def bibliography_keys() -> list[str]:
    return re.findall(r"^@\w+\{([^,]+),", text(CHAPTERS / "references.bib"), re.MULTILINE)


# ------------------------------------------------------------------ glossary


def test_terms_are_sorted_and_defined_once() -> None:
    terms = glossary_terms()
    assert [term for term, count in Counter(map(str.lower, terms)).items() if count > 1] == []
    assert terms == sorted(terms, key=str.lower)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_term_used_is_in_the_glossary(page: Path) -> None:
    known = {term.lower() for term in glossary_terms()}
    assert {term for term in used("term", page) if term.lower() not in known} == set()


def test_a_definition_is_a_sentence_and_not_the_term_again() -> None:
    block = text(CHAPTERS / "back/glossary.md").split("```{glossary}")[1]
    for term, body in re.findall(r"^(\S[^\n]*)\n((?:  [^\n]*\n)+)", block, re.MULTILINE):
        assert body.strip().endswith("."), f"{term}: the definition ends without a full stop"
        assert len(body.split()) > 4, f"{term}: a definition of {len(body.split())} words tells nothing"


# ------------------------------------------------------------------ sources


def test_bibliography_is_in_order_of_key_without_doubles() -> None:
    keys = bibliography_keys()
    assert keys == sorted(set(keys))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_source_cited_is_in_the_bibliography(page: Path) -> None:
    cited = {
        key.strip() for role in ("cite:t", "cite:p", "cite") for target in used(role, page) for key in target.split(",")
    }
    assert cited - set(bibliography_keys()) == set()


def test_every_entry_says_who_when_and_what() -> None:
    for entry in re.split(r"^@", text(CHAPTERS / "references.bib"), flags=re.MULTILINE)[1:]:
        key = entry[entry.index("{") + 1 : entry.index(",")]
        for field in ("author", "title", "year"):
            assert re.search(rf"^\s*{field}\s*=", entry, re.MULTILINE), f"{key} has no {field}"


# ------------------------------------------------------------------ names in production


@pytest.fixture(scope="module")
def names() -> list[dict[str, str]]:
    return yaml.safe_load(text(CHAPTERS / "data/production-names.yml"))


def test_every_name_says_where_and_when_it_was_read(names: list[dict[str, str]]) -> None:
    for row in names:
        label = f"{row.get('system')}: {row.get('name')}"
        for field in ("key", "concept", "system", "name", "kind", "version", "date", "source"):
            assert str(row.get(field, "")).strip(), f"{label} has no {field}"
        assert row["kind"] in {"flag", "metric", "class", "setting"}, label
        assert date.fromisoformat(str(row["date"])) >= date(2026, 1, 1), label
        assert str(row["source"]).startswith("https://"), label
        # A link to a branch shows something else tomorrow.
        assert not re.search(r"/(main|master|latest)/", str(row["source"])), (
            f"{label}: the source is not pinned to a version"
        )
        assert str(row["version"]).removeprefix("commit ") in str(row["source"]), (
            f"{label}: the source is not of version {row['version']}"
        )


def test_a_key_means_one_concept_and_names_a_system_once(names: list[dict[str, str]]) -> None:
    concepts: dict[str, set[str]] = {}
    for row in names:
        concepts.setdefault(row["key"], set()).add(row["concept"])
    assert {key: found for key, found in concepts.items() if len(found) > 1} == {}
    assert [
        pair for pair, count in Counter((row["key"], row["system"], row["name"]) for row in names).items() if count > 1
    ] == []


def test_flags_of_one_system_carry_one_version(names: list[dict[str, str]]) -> None:
    for system in ("vLLM", "SGLang"):
        assert len({row["version"] for row in names if row["system"] == system}) == 1, system


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_ask_for_names_that_are_there(page: Path, names: list[dict[str, str]]) -> None:
    known = {row["key"] for row in names}
    asked = {
        key
        for keys in re.findall(r"^\s*(?:```|:::)\{production-names\}([^\n]*)$", text(page), re.MULTILINE)
        for key in keys.split()
    }
    assert asked - known == set()


def test_a_name_is_printed_in_one_chapter_and_linked_from_the_others() -> None:
    asked = [
        (key, page.stem)
        for page in CHAPTERS.glob("*.md")
        for keys in re.findall(r"^\s*(?:```|:::)\{production-names\}([^\n]*)$", text(page), re.MULTILINE)
        for key in keys.split()
    ]
    pages: dict[str, list[str]] = {}
    for key, page in asked:
        pages.setdefault(key, []).append(page)
    assert {key: found for key, found in pages.items() if len(found) > 1} == {}


# ------------------------------------------------------------------ the book in a row


def test_no_sentence_stands_on_two_pages() -> None:
    found: dict[str, set[str]] = {}
    for page in PAGES:
        prose = re.sub(
            r"^---.*?^---$|```\{code-cell\}.*?^```$|\$\$.*?\$\$", "", text(page), flags=re.DOTALL | re.MULTILINE
        )
        for sentence in re.split(r"(?<=[.?!]) |\n", prose):
            if len(sentence.split()) >= 5 and sentence.strip()[-1:] in ".?!" and "not measured yet" not in sentence:
                found.setdefault(sentence.strip(), set()).add(page.stem)
    assert {sentence: sorted(pages) for sentence, pages in found.items() if len(pages) > 1} == {}


# ------------------------------------------------------------------ notation


def test_one_symbol_means_one_thing() -> None:
    symbols = re.findall(r"^\| (\$[^|]+\$) \|", text(CHAPTERS / "back/notation.md"), re.MULTILINE)
    assert symbols
    assert [symbol for symbol, count in Counter(symbols).items() if count > 1] == []


# ------------------------------------------------------------------ teaching, and for students

COURSE_PAGES = [CHAPTERS / "back/teaching.md", CHAPTERS / "back/for-students.md"]


def blocks(path: Path, language: str) -> list[str]:
    """The page's code blocks in one language."""
    return re.findall(rf"^ *```{language}\n(.*?)^ *```$", text(path), re.MULTILINE | re.DOTALL)


def shown_commands(path: Path) -> list[str]:
    """Every `underload …` of the page's shell blocks, continued lines joined."""
    lines = "\n".join(blocks(path, "sh")).replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip().startswith("underload ")]


@pytest.mark.parametrize("page", COURSE_PAGES, ids=lambda page: page.name)
def test_every_command_shown_is_one(page: Path) -> None:
    commands = shown_commands(page)
    assert commands
    for command in commands:
        # argparse exits when it is given something that it does not know
        arguments = build_parser().parse_args(shlex.split(command)[1:])
        assert callable(arguments.run), command


def miniature(folder: Path, open_answer: bool = False) -> Path:
    """The lab that the page writes as an example, as a notebook with its wrong answers beside it."""
    page = CHAPTERS / "back/teaching.md"
    cells = blocks(page, r"\{code-cell\} ipython3")
    setup, answer, check = (cell for cell in cells if not cell.startswith(":tags:"))
    told, asked = blocks(page, "markdown")
    of_answer, of_check, about, of_asked = blocks(page, "json")
    made = [
        new_code_cell(setup, id="setup", metadata={"tags": ["live"]}),
        new_markdown_cell(told, id="told"),
        new_code_cell(answer, id="answer", metadata=json.loads(of_answer)),
        new_code_cell(check, id="check", metadata=json.loads(of_check)),
    ]
    if open_answer:
        made.append(new_markdown_cell(asked, id="asked", metadata=json.loads(of_asked)))
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}, **json.loads("{" + about + "}")}
    path = folder / "my-lab.ipynb"
    nbformat.write(new_notebook(cells=made, metadata=metadata), path)
    (folder / "my-lab.toml").write_text("\n".join(blocks(page, "toml")), encoding="utf-8")
    return path


@pytest.mark.parametrize("open_answer", [False, True])
def test_the_lab_written_on_the_page_verifies(tmp_path: Path, open_answer: bool) -> None:
    from underload.course.release import check_source
    from underload.course.verify import verify

    path = miniature(tmp_path, open_answer)
    store(path)
    found = verify(path, tmp_path / "my-lab.toml")
    assert found.complaints == [] and check_source(read_notebook(path), "my-lab") == []
    assert (found.points, found.wrong, found.harmless) == (6 if open_answer else 4, 6, 2)


def test_what_the_page_shows_of_the_screen_is_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Points, minutes and counts of a lab that the page speaks of change with the lab; '…' stands for what may."""
    from underload.cli import main
    from underload.course.wrong import read_wrong

    lab = read_notebook(ROOT / "labs" / "latency-budget.ipynb")
    answers = read_wrong(ROOT / "tests" / "course" / "latency-budget.toml", lab)
    harmless = sum(one.harmless for one in answers)
    made = outline(lab)
    worth = f"{made.points:g} points and {made.bonus:g} on top"
    assert main(["course", "list"]) == 0
    printed = [
        *capsys.readouterr().out.splitlines(),
        f"latency-budget, 00000000, {worth}: handed out; handed-out/latency-budget/",
        f"latency-budget {len(made.parts)} parts, {made.points:g} + {made.bonus:g} points; "
        f"{len(answers) - harmless} wrong and {harmless} harmless answers, 0.20 s each: as it should be",
    ]
    shown = [line for block in blocks(COURSE_PAGES[0], "text") for line in block.splitlines()]
    of_lab = [
        " ".join(line.split())
        for line in shown
        if re.match(r"latency-budget([:,]| +\d+ parts)| +\d  \w", line)  # not the table of a made-up class
    ]
    assert len(of_lab) == 7
    there = [" ".join(line.split()) for line in printed]
    for line in of_lab:
        pattern = re.escape(line).replace("…", ".*")
        assert any(re.fullmatch(pattern, one) for one in there), f"{line!r} is printed otherwise by now"


def goals_of(labs: dict[str, nbformat.NotebookNode], folder: Path, arguments: str = "") -> str:
    """The text of the page's tables, from the labs in a folder that stands for the book's sources."""
    toc = {"root": "index", "chapters": [{"file": f"labs/{name}"} for name in labs]}
    (folder / "_toc.yml").write_text(yaml.safe_dump(toc), encoding="utf-8")
    (folder / "labs").mkdir()
    for name, notebook in labs.items():
        nbformat.write(notebook, folder / "labs" / f"{name}.ipynb")
    page = folder / "page.rst"
    page.write_text(f".. learning-goals:: {arguments}\n", encoding="utf-8")
    (folder / "index.rst").write_text("x\n=\n\n.. toctree::\n\n   page\n", encoding="utf-8")
    (folder / "conf.py").write_text("extensions = ['book.goals']\n", encoding="utf-8")
    app = Sphinx(folder, folder, folder / "out", folder / "trees", "text", status=None, warning=None)
    app.build()
    return (folder / "out" / "page.txt").read_text(encoding="utf-8")


def test_the_goals_are_those_of_the_labs(tmp_path: Path) -> None:
    lab = read_notebook(miniature(tmp_path))
    lab.cells[-1].metadata["underload"] = {"further": True}
    made = re.sub(r"[\s|+=-]+", " ", goals_of({"my-lab": lab}, tmp_path))
    assert "**My lab**: 0 points and 4 of bonus, about 10 minutes" in made
    assert "count late requests, and say when there is nothing to count 4 (bonus) 10" in made
