"""The book as built: links, secrets, requests, accessibility, themes, phone, print, search, citing and reporting.

Reads the book that `make book` left in _build/book, or the folder in $UNDERLOAD_BOOK.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from browser import Browser, open_browser
from site_checks import AXE, ROOT, Site

from book.toc import toc_pages
from underload.course import Secrets, read_notebook, secrets
from underload.course.outline import outline

BOOK = Path(os.environ.get("UNDERLOAD_BOOK", ROOT / "_build" / "book"))
REQUIRED = bool(os.environ.get("UNDERLOAD_BOOK"))
LABS = sorted((ROOT / "labs").glob("*.ipynb"))


def articles() -> list[str]:
    """Names of the pages that the table of contents lists: each is looked at by itself."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    return toc_pages(toc)


PAGES = [*articles(), "report", "search", "genindex"]


@pytest.fixture(scope="module")
def site() -> Site:
    if not (BOOK / "index.html").is_file():
        message = f"no built book in {BOOK.name}/: make book"
        pytest.fail(message) if REQUIRED else pytest.skip(message)
    return Site(BOOK)


@pytest.fixture(scope="module")
def browser(site: Site) -> Iterator[Browser]:
    with open_browser() as made:
        yield made


def path_of(site: Site, page: str) -> Path:
    return site.folder / f"{page}.html"


# ---- as files ----------------------------------------------------------------------------------------------------


def test_every_page_of_the_table_of_contents_is_there_and_nothing_else(site: Site) -> None:
    wanted = {f"{name}.html" for name in articles()}
    assert {path.relative_to(site.folder).as_posix() for path in site.articles} == wanted


def test_no_link_is_dead(site: Site) -> None:
    assert site.dead_links() == []


def test_no_page_fetches_anything_from_elsewhere(site: Site) -> None:
    assert site.outside_addresses() == []


@pytest.fixture(scope="module")
def kept() -> list[Secrets]:
    """What the labs' sources hold and the book must not. A line that the book shows anyway is no secret: the same
    statement stands in a chapter, or in the library that the reader has on disk."""
    shown = [
        *(path.read_text(encoding="utf-8") for path in (ROOT / "chapters").rglob("*.md")),
        *(path.read_text(encoding="utf-8") for path in (ROOT / "lib" / "underload").rglob("*.py")),
    ]
    text = re.sub(r"\s+", "", "\n".join(shown))
    words = set(re.findall(r"\w+", "\n".join(shown)))
    made = []
    for path in LABS:
        found = secrets(read_notebook(path))
        given = {line for line in found.lines if line in text}
        made.append(Secrets(found.lines - given, found.names - words))
    return made


def test_no_solution_and_no_hidden_test_is_in_the_site(site: Site, kept: list[Secrets]) -> None:
    assert site.leaks(kept) == []


@pytest.mark.parametrize("lab", LABS, ids=lambda path: path.stem)
def test_every_lab_that_has_tasks_has_secrets_to_keep(lab: Path) -> None:
    """Otherwise the search above would find nothing because it looks for nothing."""
    from underload.course import tasks

    notebook = read_notebook(lab)
    if tasks(notebook):
        assert len(secrets(notebook).lines) >= len(tasks(notebook))


def test_the_instructors_page_has_every_goal_of_every_lab(site: Site) -> None:
    page = re.sub(r"<[^>]+>", "", path_of(site, "chapters/back/teaching").read_text(encoding="utf-8"))
    shown = " ".join(html.unescape(page).split()).replace("’", "'")  # the page has typographer's apostrophes
    for path in LABS:
        for task in outline(read_notebook(path)).tasks:
            assert task.goal, f"{path.stem}, task {task.name}, has no goal"
            assert task.minutes, f"{path.stem}, task {task.name}, has no minutes"
            plain = re.sub(r"[`*$\\]", "", task.goal)
            assert plain in shown or task.goal in shown, f"{path.stem}, task {task.name}: {task.goal}"


def test_mathematics_needs_no_script(site: Site) -> None:
    for path in site.articles:
        made = path.read_text(encoding="utf-8")
        assert not re.search(r"mathjax(?!_ignore)", made.lower()), path
        assert "math-error" not in made, path


def test_every_picture_says_what_it_shows(site: Site) -> None:
    for path in site.articles:
        made = path.read_text(encoding="utf-8")
        for image in re.findall(r"<img\b[^>]*>", made):
            assert re.search(r'\balt="[^"]', image) or 'role="presentation"' in image, f"{path.name}: {image[:160]}"


def test_the_fonts_are_the_book_s_own_and_small(site: Site) -> None:
    fonts = {path.name: path.stat().st_size for path in (site.folder / "_static" / "fonts").glob("*.woff2")}
    assert {"math.woff2", "serif.woff2", "sans.woff2"} <= fonts.keys()
    assert sum(fonts.values()) < 600_000


# ---- in a browser ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_on_a_desk(site: Site, browser: Browser, page: str) -> None:
    """A page asks nobody and complains of nothing, nothing but tables and code scrolls sideways, and a page of the
    table of contents can be cited and reported: read off one opening, which takes a second."""
    path = path_of(site, page)
    assert site.complaints(browser, path) == []
    assert site.sideways(browser, path, 1280, fresh=False) == []
    if page in articles():
        citation = browser.run("return document.getElementById('cite-bibtex').textContent")
        assert page in citation and re.search(r"Version \d+\.\d+\.\d+", citation)
        (link,) = browser.find("a.report-page")
        browser.open(link.get_attribute("href"))
        assert browser.run("return document.getElementById('report-page').value").startswith(page)
        assert re.match(r"\d+\.\d+\.\d+", browser.run("return document.getElementById('report-version').value"))


@pytest.mark.parametrize("page", PAGES)
def test_on_a_phone_nothing_scrolls_sideways_but_tables_code_and_plots(site: Site, browser: Browser, page: str) -> None:
    assert site.sideways(browser, path_of(site, page), 360) == []


@pytest.mark.skipif(not AXE.is_file() and not REQUIRED, reason="axe-core is not there: python3 make.py setup brings it")
@pytest.mark.parametrize("page", PAGES)
def test_axe_finds_nothing_serious(site: Site, browser: Browser, page: str) -> None:
    assert site.axe(browser, path_of(site, page)) == []


@pytest.mark.parametrize("page", articles())
def test_printing_opens_folds_and_leaves_out_what_cannot_be_used_on_paper(
    site: Site, browser: Browser, page: str
) -> None:
    assert site.printed(browser, path_of(site, page)) == []


def test_both_themes_differ_and_are_kept_from_page_to_page(site: Site, browser: Browser) -> None:
    browser.size(1280)
    first, second = (path_of(site, name) for name in articles()[:2])
    browser.open(first)
    colours = {}
    for theme in ("light", "dark"):
        browser.theme(theme)
        colours[theme] = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert colours["light"] != colours["dark"]
    browser.open(second)
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == colours["dark"]
    browser.theme("light")


def test_text_and_mathematics_are_set_in_the_book_s_fonts(site: Site, browser: Browser) -> None:
    path = next(path for path in site.articles if "<math" in path.read_text(encoding="utf-8"))
    browser.open(path)
    used = browser.run("return [...document.fonts].filter(f => f.status === 'loaded').map(f => f.family)")
    assert any("Book Serif" in one for one in used) and any("Book Math" in one for one in used)
    assert browser.run("return document.querySelector('math').getBoundingClientRect().width") > 2


MOVING = "[data-moving], .moving, .ul-moving"


@pytest.mark.parametrize("page", articles())
def test_figures_answer_to_their_controls_by_keyboard(site: Site, browser: Browser, page: str) -> None:
    """Each slider and each set of radio buttons in a figure changes what the figure says when a key is pressed."""
    path = path_of(site, page)
    browser.size(1100)
    browser.open(path)
    for number in range(browser.run("return document.querySelectorAll('figure input[type=range]').length")):
        assert _moves(browser, "figure input[type=range]", number), f"slider {number + 1} moves nothing"
    for number in range(browser.run(_RADIO_SETS + "return sets.length")):
        assert _picks(browser, number), f"choice {number + 1} changes nothing"


_FIGURE = """
const inside = arguments[0].closest('figure, [role=group], section, article');
const figure = arguments[0].closest('figure') || inside;
"""
_RADIO_SETS = """
const names = new Set([...document.querySelectorAll('figure input[type=radio]')].map(input => input.name));
const sets = [...names].map(name => [...document.querySelectorAll(`figure input[type=radio][name="${name}"]`)]);
"""


def _moves(browser: Browser, css: str, number: int) -> bool:
    slider = browser.find(css)[number]
    if not slider.is_enabled() or not slider.is_displayed():
        return True  # waits for a prediction; the figures' own tests go through that
    browser.run("arguments[0].focus()", slider)
    before = browser.run(_FIGURE + "return [figure.innerHTML, arguments[0].value]", slider)
    browser.press("\ue014" if slider.get_attribute("value") != slider.get_attribute("max") else "\ue012")
    browser.settle()
    after = browser.run(_FIGURE + "return [figure.innerHTML, arguments[0].value]", slider)
    return bool(before[0] != after[0] and before[1] != after[1])


def _picks(browser: Browser, number: int) -> bool:
    inputs = browser.run(_RADIO_SETS + "return sets[arguments[0]]", number)
    if not inputs[0].is_enabled() or not inputs[0].is_displayed():
        return True
    checked = next((one for one in inputs if one.is_selected()), inputs[0])
    browser.run("arguments[0].focus()", checked)
    before = browser.run(_FIGURE + "return figure.innerHTML", checked)
    state = [one.is_selected() for one in inputs]
    browser.press("\ue015")
    browser.settle()
    after = browser.run(_FIGURE + "return figure.innerHTML", checked)
    return before != after or state != [one.is_selected() for one in inputs]


def test_search_works_on_pages_opened_from_disk(site: Site, browser: Browser) -> None:
    browser.size(1280)
    browser.open(site.folder / "search.html", "?q=latency")
    for _ in range(100):
        if browser.find("#search-results li a"):
            break
        browser.settle()
    results = browser.find("#search-results li a")
    assert results, "no result for a word that is all over the book"
    target = results[0].get_attribute("href").split("?")[0].split("#")[0]
    assert target.startswith("file:") and Path(re.sub("^file://", "", target)).is_file()
    assert browser.complaints() == []


def test_the_search_field_of_a_page_leads_to_the_results(site: Site, browser: Browser) -> None:
    browser.size(1280)
    browser.open(path_of(site, articles()[-1]))
    browser.find(".bd-sidebar-primary .search-button__button")[0].click()
    browser.press("batch\ue007")
    for _ in range(50):
        if "search.html" in browser.driver.current_url:
            break
        browser.settle()
    assert "search.html?q=batch" in browser.driver.current_url


def test_a_report_names_page_version_and_what_was_seen(site: Site, browser: Browser) -> None:
    browser.open(site.folder / "report.html", "?page=chapters/index&title=Under+Load")
    browser.find("#report-seen")[0].send_keys("a wrong <number> & more")
    copied = browser.run(
        "window.copied = []; document.execCommand = () => { copied.push(document.activeElement.value); return true; };"
        "Object.defineProperty(navigator, 'clipboard', {value: {writeText: t => { copied.push(t); }}});"
        "document.querySelector('[data-send=copy]').click(); return null;"
    )
    assert copied is None
    for _ in range(50):
        if browser.run("return document.getElementById('report-done').textContent"):
            break
        browser.settle()
    (text,) = browser.run("return copied")
    assert "chapters/index (Under Load)" in text and "a wrong <number> & more" in text and "Version: " in text


def test_the_front_door_leads_to_the_first_page(site: Site, browser: Browser) -> None:
    browser.open(site.folder / "index.html")
    for _ in range(50):
        if articles()[0] in browser.driver.current_url:
            break
        browser.settle()
    assert browser.driver.current_url.endswith(f"{articles()[0]}.html")
