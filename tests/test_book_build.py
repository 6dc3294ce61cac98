"""The book's build: what it refuses, what it makes of each box, what it keeps out. On small books made here."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Callable, Iterator
from importlib.resources import files
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import pytest
from book_project import ROOT, build, make_project, sample_project
from browser import Browser, open_browser
from fontTools.ttLib import TTFont
from sample_lab import sample_lab
from site_checks import AXE, Site

from book.build import Edition, execution_key, stage
from book.fonts import FONTS, characters, subset
from book.library import PACKAGES, body_of, public_items, signature
from book.mathml import LatexError, to_mathml
from book.toc import toc_pages
from underload.course import secrets, write_notebook

pytestmark = pytest.mark.slow

PAGE = """---
jupytext: {{text_representation: {{extension: .md, format_name: myst}}}}
kernelspec: {{name: python3, display_name: Python 3}}
---

# A page

{body}
"""


def page(body: str) -> str:
    return PAGE.format(body=body)


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample project, built; not to be changed."""
    project = sample_project(tmp_path_factory.mktemp("sample"))
    done = build(project)
    assert done.returncode == 0, done.stderr
    return project


@pytest.fixture(scope="session")
def site(sample: Path) -> Site:
    return Site(sample / "_build" / "book")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with open_browser() as made:
        yield made


def text(site: Site, name: str) -> str:
    return (site.folder / f"{name}.html").read_text(encoding="utf-8")


# ---- what it refuses ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_failing_cell_fails_the_build_names_the_page_and_fails_it_again(tmp_path: Path, jobs: str) -> None:
    broken = page('```{code-cell} ipython3\nraise ValueError("the cell broke")\n```')
    project = make_project(tmp_path, {"index": page("All is well."), "broken": broken})
    first = build(project, "--jobs", jobs)
    assert first.returncode != 0
    assert "broken.md" in first.stderr and "the cell broke" in first.stderr
    again = build(project, "--jobs", jobs)
    assert again.returncode != 0, "a second build on the same folder passed"
    assert not (project / "_build" / "book" / "index.html").exists()


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("$$\\nosuchcommand{x}$$", "nosuchcommand"),
        ("See {ref}`nowhere`.", "nowhere"),
        ("{term}`Undefined word`", "Undefined word"),
        ("{lib}`underload.nosuchname`", "underload.nosuchname"),
        ("{cite:p}`nobody1999`", "nobody1999"),
        ("```{often-said} A claim without a name\n```", ":name:"),
        ("```{commit} A question?\n* only one\n```", "two choices"),
        ("```{lab} missing\n```", "labs/missing.ipynb"),
        ("```{nosuchbox}\n```", "nosuchbox"),
    ],
)
def test_a_warning_fails_the_build(body: str, told: str, warned: Callable[[str], str]) -> None:
    assert told in warned(body)


@pytest.fixture(scope="module")
def warned(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """What one build says about pages that each hold one fault; built once for all of them."""
    marks = [mark for mark in test_a_warning_fails_the_build.pytestmark if mark.name == "parametrize"]  # type: ignore[attr-defined]
    bodies = [case[0] for case in marks[0].args[1]]
    pages = {"index": "# Sound\n\nNothing wrong."}
    pages |= {f"fault{number}": f"# Fault {number}\n\n{body}\n" for number, body in enumerate(bodies)}
    done = build(make_project(tmp_path_factory.mktemp("faults"), pages, data=True))
    assert done.returncode != 0

    def said(body: str) -> str:
        name = f"fault{bodies.index(body)}.md"
        lines = done.stderr.splitlines()
        starts = [number for number, line in enumerate(lines) if name in line]
        assert starts, f"no warning about {body!r}"
        return "\n".join(line for start in starts for line in lines[start : start + 8])

    return said


def test_output_on_stderr_is_a_warning(tmp_path: Path) -> None:
    noisy = page('```{code-cell} ipython3\nimport sys\nprint("progress", file=sys.stderr)\n```')
    done = build(make_project(tmp_path, {"index": noisy}))
    assert done.returncode != 0 and "stderr" in done.stderr


# ---- what it keeps out -------------------------------------------------------------------------------------------


def test_no_solution_reaches_the_site_its_sources_or_its_search(site: Site) -> None:
    assert site.leaks([secrets(sample_lab())]) == []
    assert (site.folder / "labs" / "sample.html").is_file()
    assert list((site.folder / "_sources" / "labs").glob("sample.*"))


def test_the_instructor_s_edition_has_the_solutions_and_its_own_folder(sample: Path) -> None:
    edition = Edition.instructor(sample)
    stage(edition)
    assert "secret_factor" in (edition.source / "labs" / "sample.ipynb").read_text(encoding="utf-8")
    reader = Edition.reader(sample)
    assert edition.output != reader.output and edition.source != reader.source
    assert "secret_factor" not in (reader.source / "labs" / "sample.ipynb").read_text(encoding="utf-8")


def test_staging_copies_what_changed_and_drops_what_is_gone(tmp_path: Path) -> None:
    project = make_project(tmp_path, {"index": "# One\n", "other": "# Two\n"})
    edition = Edition.reader(project)
    stage(edition)
    kept, gone = edition.source / "chapters" / "index.md", edition.source / "chapters" / "other.md"
    before = kept.stat().st_mtime_ns
    assert gone.is_file()
    (project / "chapters" / "other.md").unlink()
    (project / "_toc.yml").write_text("format: jb-book\nroot: chapters/index\n")
    stage(edition)
    assert not gone.exists()
    assert kept.stat().st_mtime_ns == before, "an unchanged page was written again"
    assert not (edition.source / "chapters" / "_ext").exists()


def test_cells_run_again_when_the_library_the_data_or_the_pins_change(tmp_path: Path) -> None:
    project = make_project(tmp_path, {"index": "# One\n"})
    (project / "lib").unlink()
    (project / "lib" / "underload").mkdir(parents=True)
    module = project / "lib" / "underload" / "__init__.py"
    module.write_text("__version__ = '0'\n")
    keys = [execution_key(project)]
    assert execution_key(project) == keys[0]
    module.write_text("__version__ = '1'\n")
    keys.append(execution_key(project))
    (project / "chapters" / "data" / "run.json").write_text("{}")
    keys.append(execution_key(project))
    (project / "requirements.txt").write_text("torch==0\n")
    keys.append(execution_key(project))
    (project / "chapters" / "index.md").write_text("# Another text\n")
    assert len(set(keys)) == 4 and execution_key(project) == keys[-1]


def test_pages_run_side_by_side_once_each_and_a_second_build_runs_none(tmp_path: Path) -> None:
    """Each of two pages waits until the other has begun."""
    code = """```{{code-cell}} ipython3
from pathlib import Path
from time import monotonic, sleep

here = Path({folder!r})
with (here / "{name}").open("a") as file:
    file.write("ran\\n")
end = monotonic() + 120
while not (here / "{other}").exists():
    assert monotonic() < end, "nobody came"
    sleep(0.05)
print("met", "{other}")
```"""
    met = tmp_path / "met"
    met.mkdir()
    (tmp_path / "project").mkdir()
    pages = {
        name: page(code.format(folder=str(met), name=name, other=other))
        for name, other in (("left", "right"), ("right", "left"))
    }
    project = make_project(tmp_path / "project", pages | {"plain": "# Without a cell\n\nNothing runs."})
    for _ in range(2):
        done = build(project, "--jobs", "2")
        assert done.returncode == 0, done.stderr
    assert {one.name: one.read_text() for one in met.iterdir()} == {"left": "ran\n", "right": "ran\n"}
    for name, other in (("left", "right"), ("right", "left")):
        assert f"met {other}" in (project / "_build" / "book" / "chapters" / f"{name}.html").read_text()


def test_the_table_of_contents_is_read_at_every_depth() -> None:
    toc = {"root": "a", "parts": [{"caption": "x", "chapters": [{"file": "b", "sections": [{"file": "c"}]}]}]}
    assert toc_pages(toc) == ["a", "b", "c"]


# ---- what it makes -----------------------------------------------------------------------------------------------


def test_every_box_is_there_with_its_parts(site: Site) -> None:
    made = text(site, "chapters/index")
    for kind in ("glance", "by-the-end", "result", "often-said", "look-closer", "in-production", "remember"):
        assert re.search(rf'<div class="(?=[^"]*\badmonition\b)[^"]*\b{kind}\b', made), kind
    for kind in ("deeper", "answer", "hint", "plain-fold", "commit-after"):
        assert re.search(rf'<details class="fold[^"]*\b{kind}\b[^>]*>\s*<summary>', made), kind
    assert made.count('<input type="radio" name="commit-0"') == 3
    assert "Question 1 (number)" in made and "Question 2 (judgement): A trade-off" in made and "Exercise 1: " in made
    assert "About 75 minutes." in made and 'href="../labs/sample.html"' in made
    assert "--max-running-requests" in made and 'href="https://example.org/other"' in made
    assert "36.2\u00a0ms" in re.sub(r"<[^>]+>", "", made), "glue did not reach the text, or may part from its unit"
    assert "<details open" not in made


def test_mathematics_is_mathml_numbered_and_referred_to(site: Site) -> None:
    made = text(site, "chapters/index")
    assert made.count("<math alttext=") >= 11 and '<math alttext="T(B) = o + B\\,t" display="block">' in made
    assert 'id="equation-eq-sample-step"' in made and 'href="#equation-eq-sample-step"' in made
    assert not re.search(r"mathjax(?!_ignore)", made.lower()) and not re.search(
        r"\\\(|\\\[|\$\$", re.sub(r'alttext="[^"]*"', "", made)
    )


@pytest.mark.parametrize(
    "latex", [r"\frac{a}{b}", r"a &= b \\ c &= d", r"\begin{cases} 1 \\ 2 \end{cases}", "a < b > c"]
)
def test_formulas_become_mathml(latex: str) -> None:
    made = to_mathml(latex, display=True)
    assert made.startswith("<math alttext=") and made.endswith("</math>")
    assert "a < b" not in made


def test_words_in_a_formula_are_no_space() -> None:
    """Beside <mtext>, which is, a minus counts as the first thing in its row, and is set like that of −1."""
    made = to_mathml(r"\frac{\text{before} - \text{after}}{H} \text{ } x", display=True)
    words = '<mi class="text" mathvariant="normal">{}</mi>'
    assert f"{words.format('before')}<mo>−</mo>{words.format('after')}" in made
    assert made.count("<mtext>") == 1


def test_a_formula_that_cannot_be_set_raises() -> None:
    with pytest.raises(LatexError, match="nosuch"):
        to_mathml(r"\nosuch", display=False)


def test_an_equation_of_another_page_is_cited_with_that_page(site: Site) -> None:
    here, elsewhere = (re.sub(r"[ \n]+", " ", text(site, f"chapters/{name}")) for name in ("index", "often-said"))
    title = re.search(r"<h1>(.*?)<", here)
    assert title
    cited = r'href="{}#equation-eq-sample-step"[^>]*>.{{0,60}}?\(1\).{{0,30}}?</a> of\u00a0<em>' + title[1]
    assert re.search(cited.format("index.html"), elsewhere), "nobody can tell whose (1) it is"
    assert re.search(r'href="#equation-eq-sample-step"', here) and f"of\u00a0<em>{title[1]}" not in here


def test_claims_are_gathered_with_their_references_resolved(site: Site) -> None:
    made = text(site, "chapters/often-said")
    assert "“Batching always raises latency”" in made
    assert 'href="index.html#said-sample"' in made, "no way back to where it is shown"
    assert 'href="index.html#predict"' in made and 'href="index.html#equation-eq-sample-step"' in made
    assert "36.2\u00a0ms" in re.sub(r"<[^>]+>", "", made)


def test_the_lab_s_page_shows_stubs_pictures_and_folded_results(site: Site) -> None:
    made = text(site, "labs/sample")
    plain = re.sub(r"<[^>]+>", "", made)
    assert 'raise NotImplementedError("Task 2")' in plain.replace("&quot;", '"')
    assert made.count("<img") >= 2 and "Show the result" in made


def test_the_library_page_lists_what_is_public_and_can_be_linked_to(site: Site) -> None:
    made = text(site, "chapters/library")
    assert 'id="underload.course.handout"' in made
    assert 'href="library.html#underload.course.handout"' in text(site, "chapters/index")


def test_the_reference_reads_every_public_name_of_every_package() -> None:
    for package in PACKAGES:
        init = ROOT / "lib" / "underload" / package / "__init__.py"
        if not init.is_file():
            continue  # named in advance
        listed = re.search(r"^__all__ = (\[.*?\])", init.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        wanted = ast.literal_eval(listed[1]) if listed else []
        _, items = public_items(ROOT / "lib" / "underload", package)
        assert [item.name for item in items] == wanted, package


def test_the_reference_shows_a_public_module_with_its_names_and_what_must_be_awaited() -> None:
    _, items = public_items(ROOT / "lib" / "underload", "metrics")
    dialects = next(item for item in items if item.name == "dialects")
    assert {"compare", "Comparison", "Tool"} <= {member.name for member in dialects.members}
    assert not any(member.name.startswith("_") for member in dialects.members)
    _, items = public_items(ROOT / "lib" / "underload", "workload")
    awaited = next(item.node for item in items if item.name == "open_loop_async")
    assert isinstance(awaited, ast.AsyncFunctionDef) and signature(awaited).startswith("async open_loop_async(")


def test_a_root_in_a_formula_asks_the_font_for_its_sign(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(to_mathml(r"\frac{1}{\sqrt{N}}", display=True), encoding="utf-8")
    formulas, _ = characters(tmp_path)
    assert {ord("√"), ord("N")} <= formulas
    (tmp_path / "page.html").write_text(to_mathml("N", display=True), encoding="utf-8")
    assert ord("√") not in characters(tmp_path)[0]


def test_the_font_has_low_roots_of_one_width() -> None:
    """A taller sign than its formula hangs below the line, and a wider one than it needs leaves a gap after it."""
    package, inside, _ = FONTS["math.woff2"]
    font = TTFont(BytesIO(subset(files(package).joinpath(inside).read_bytes(), {ord("√"), ord("N")}, maths=True)))
    variants = font["MATH"].table.MathVariants
    root = font.getBestCmap()[ord("√")]
    signs = variants.VertGlyphConstruction[variants.VertGlyphCoverage.glyphs.index(root)]
    heights = {one.VariantGlyph: one.AdvanceMeasurement for one in signs.MathGlyphVariantRecord}
    assert next(iter(heights)) == root and heights[root] < 900
    assert all(later < 1.15 * sooner for sooner, later in pairwise(heights.values()))
    for name, height in heights.items():
        drawn = font["glyf"][name]
        assert abs(drawn.yMax - drawn.yMin - height) < 5
    assert len({font["hmtx"][name][0] for name in [*heights, *(p.glyph for p in signs.GlyphAssembly.PartRecords)]}) == 1


def test_docstrings_keep_their_blocks_lists_and_sections() -> None:
    lines = ["One `name` here.", "", "    a   b", "    1   2", "", "Then:", "- first", "- second", "  goes on", ""]
    made = body_of("\n".join([*lines, "Raises:", "    E: when."]))
    kinds = [node.tagname for node in made]
    assert kinds == ["paragraph", "literal_block", "paragraph", "bullet_list", "definition_list"]
    assert made[1].astext() == "a   b\n1   2"
    assert [item.astext() for item in made[3].children] == ["first", "second goes on"]


# ---- the checks themselves: each finds the fault that is planted for it --------------------------------------------


def test_a_sound_site_has_no_dead_link_and_asks_nobody(site: Site) -> None:
    assert site.dead_links() == []
    assert site.outside_addresses() == []


@pytest.fixture
def planted(site: Site, tmp_path: Path) -> Callable[[str], Site]:
    """A copy of the site with something put into its first page."""

    def plant(what: str) -> Site:
        folder = tmp_path / "site"
        shutil.copytree(site.folder, folder)
        path = folder / "chapters" / "index.html"
        before = path.read_text(encoding="utf-8")
        assert "</article>" in before
        path.write_text(before.replace("</article>", what + "</article>", 1), encoding="utf-8")
        return Site(folder)

    return plant


@pytest.mark.parametrize("what", ['<a href="gone.html">x</a>', '<a href="#gone">x</a>', '<img src="gone.png" alt="">'])
def test_a_dead_link_is_found(planted: Callable[[str], Site], what: str) -> None:
    assert len(planted(what).dead_links()) == 1


@pytest.mark.parametrize(
    "what",
    [
        '<img src="https://example.org/x.png" alt="">',
        '<script src="//example.org/x.js"></script>',
        '<img srcset="https://example.org/x.png 2x" alt="">',
        '<link rel="stylesheet" href="https://example.org/x.css">',
    ],
)
def test_an_outside_address_is_found(planted: Callable[[str], Site], what: str) -> None:
    assert len(planted(what).outside_addresses()) == 1


@pytest.mark.parametrize(
    "what",
    [
        "<pre>    <span>return</span> <span>secret_factor</span> <span>*</span> x</pre>",
        "<!-- assert double(1_234_567) == 2_469_134 -->",
        "<p>Because waiting is&nbsp;work.</p>".replace("&nbsp;", " "),
    ],
)
def test_a_leaked_solution_is_found(planted: Callable[[str], Site], what: str) -> None:
    assert planted(what).leaks([secrets(sample_lab())])


def test_a_leak_into_the_sources_or_the_search_index_is_found(site: Site, tmp_path: Path) -> None:
    folder = tmp_path / "site"
    shutil.copytree(site.folder, folder)
    write_notebook(sample_lab(), folder / "_sources" / "labs" / "sample.ipynb.txt")
    index = folder / "searchindex.js"
    index.write_text(index.read_text(encoding="utf-8") + '//"secret_factor":[1]', encoding="utf-8")
    found = Site(folder).leaks([secrets(sample_lab())])
    assert any("_sources" in one for one in found) and any("searchindex" in one for one in found)


@pytest.mark.parametrize(
    "what",
    [
        '<script>console.error("broken")</script>',
        "<script>nosuch()</script>",
        '<script>setTimeout(() => new Image().src = "http://127.0.0.1:9/x.png", 0)</script>',
    ],
)
def test_a_complaint_or_an_outside_request_is_found(
    planted: Callable[[str], Site], browser: Browser, what: str
) -> None:
    made = planted(what)
    assert made.complaints(browser, made.folder / "chapters" / "index.html")


def test_something_that_scrolls_sideways_is_found(planted: Callable[[str], Site], browser: Browser) -> None:
    made = planted('<div style="width: 700px">wide</div>')
    assert made.sideways(browser, made.folder / "chapters" / "index.html")


needs_axe = pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not there: python3 make.py setup")


@needs_axe
@pytest.mark.parametrize(
    "what",
    [
        '<p style="color: #bbb; background: #ccc">faint</p>',
        '<p>fine</p><div style="background: #444"><p>the same text on another ground</p></div>',
        '<p style="color: #888; font-size: 24px">large</p><p style="color: #888">the same colour, too small</p>',
        '<p>fine</p><div style="opacity: 0.3"><p>the same colour, seen through</p></div>',
        '<pre><span style="color: #222">if</span> <span style="color: #222">x</span> '
        '<span style="color: #ddd">None</span></pre>',
        '<div style="position: relative; height: 3em; background: #444"><p style="position: absolute">above</p></div>',
        '<img src="_static/logo.svg">',
    ],
)
def test_what_axe_finds_serious_is_found(planted: Callable[[str], Site], browser: Browser, what: str) -> None:
    made = planted(what)
    rule = "image-alt" if "<img" in what else "color-contrast"
    found = made.axe(browser, made.folder / "chapters" / "index.html")
    assert any(one.startswith("light") and rule in one for one in found), found


@needs_axe
def test_of_many_texts_that_look_alike_axe_judges_one(planted: Callable[[str], Site], browser: Browser) -> None:
    made = planted('<div style="background: #444">' + "<p>alike</p>" * 40 + "</div>")
    made.axe(browser, made.folder / "chapters" / "index.html")
    assert browser.run("return document.querySelectorAll('p[data-same-look]').length") >= 39


def test_a_fold_that_stays_shut_in_print_is_found(planted: Callable[[str], Site], browser: Browser) -> None:
    made = planted("<script>addEventListener('beforeprint', () => setTimeout(() => {}))</script>")
    first = made.folder / "chapters" / "index.html"
    assert made.printed(browser, first) == []
    shut = "<script>addEventListener('beforeprint', () => document.querySelector('details.fold').open = false)</script>"
    path = made.folder / "chapters" / "index.html"
    path.write_text(path.read_text(encoding="utf-8").replace("</article>", shut + "</article>", 1), encoding="utf-8")
    assert made.printed(browser, path)


# ---- the sample in a browser: every box, every theme ---------------------------------------------------------------


def test_picking_an_answer_opens_what_the_page_has_to_say(site: Site, browser: Browser) -> None:
    browser.size(900)
    browser.open(site.folder / "chapters" / "index.html")
    (after,) = browser.find("details.commit-after")
    assert after.get_attribute("open") is None
    first = browser.find("fieldset[data-commit] input")[0]
    browser.run("arguments[0].focus()", first)
    browser.press(" ")
    assert first.is_selected() and after.get_attribute("open") is not None


def test_folds_open_by_keyboard(site: Site, browser: Browser) -> None:
    browser.open(site.folder / "chapters" / "index.html")
    summary = browser.find("details.deeper > summary")[0]
    browser.run("arguments[0].focus()", summary)
    browser.press("\ue007")
    assert browser.find("details.deeper[open]")


def test_names_in_other_systems_are_cards_on_a_phone(site: Site, browser: Browser) -> None:
    where = "[...document.querySelectorAll('.production-names tbody tr:first-child td')].map(each)"
    browser.size(360)
    browser.open(site.folder / "chapters" / "index.html")
    lefts = browser.run(f"const each = (td) => Math.round(td.getBoundingClientRect().left); return {where};")
    assert lefts[0] == lefts[1] == lefts[3]
    assert browser.run("return document.querySelector('.production-names .date').getClientRects().length") == 1
    browser.size(1100)
    tops = browser.run(f"const each = (td) => Math.round(td.getBoundingClientRect().top); return {where};")
    assert len(set(tops)) == 1


def pages(site: Site) -> list[Path]:
    """All but the reference: it is the book's own, with which its tests do the same, and takes a minute."""
    return [path for path in site.articles if path.stem != "library"]


def test_the_sample_is_sound_in_the_browser(site: Site, browser: Browser) -> None:
    for path in pages(site):
        assert site.complaints(browser, path) == [], path
        assert site.sideways(browser, path) == [], path
        assert site.printed(browser, path) == [], path


@needs_axe
def test_axe_finds_nothing_serious_in_the_sample(site: Site, browser: Browser) -> None:
    for path in [*pages(site), site.folder / "report.html"]:
        assert site.axe(browser, path) == [], path
