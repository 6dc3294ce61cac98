"""Figures in a real browser: keyboard, live region, a guess first, both themes, a phone, print, hostile text.

The figures are on a page of their own here, without the book around them, as in a notebook.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from browser import Browser, open_browser

from underload import figures

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]

LEFT, RIGHT, END, TAB, SPACE, ENTER, DOWN = "\ue012", "\ue014", "\ue010", "\ue004", " ", "\ue007", "\ue015"
HOSTILE = "</script><script>window.hurt = 1</script><img src=x onerror='window.hurt = 2'>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as window:
        yield window


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Iterator[tuple[Browser, Path]]:
    browser.size(800)
    browser.media()
    yield browser, tmp_path / "page.html"


def write(path: Path, *pictures: figures.Picture, theme: str = "light") -> Path:
    body = "\n".join(picture.html for picture in pictures)
    path.write_text(
        f'<!doctype html><html lang="en" data-theme="{theme}"><meta charset="utf-8"><title>figures</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<body style="margin: 16px; font-family: sans-serif">{body}</body></html>',
        encoding="utf-8",
    )
    return path


def every_kind(n: int, rule: str) -> figures.Frame:
    """A frame with every kind of item, among them gaps, logarithms, labels near every edge."""
    x = np.array([1, 2, 4, 8, 16, 32, 64], dtype=float)
    y = np.where(x == 4, np.nan, (0.02 + x * 0.001) * n * (2 if rule == "full" else 1))
    return figures.Frame(
        curves=[
            figures.Curve("line", x, y, low=y * 0.9, high=y * 1.1),
            figures.Curve("steps", x, y * 2, look="simulation", step=True, area=True),
            figures.Curve("dashed", x, y / 2, look="recorded", variant=2, thin=True),
        ],
        marks=[figures.Mark(n, 0.05 * n, f"n = {n}"), figures.Mark(64, 1e9, "off the axis", look="live", pin=False)],
        rules=[figures.Rule(y=0.3, label="SLO"), figures.Rule(x=n, label="here"), figures.Rule(x=50, label="late")],
        bands=[figures.Band(x=(40, None), label="unstable"), figures.Band(y=(None, 0.03), label="low")],
        bars=[figures.Bar((1, n + 1), (0.02, 0.5), label="busy", name="busy"), figures.Bar((1, 2), (0, 1), faint=True)],
        numbers=[figures.Number("step time", 0.02 * n, "s"), figures.Number("nothing", None)],
        says=f"{rule}, {n}",
    )


def moving(commit: figures.Commit | None = None, name: str | None = None) -> figures.Picture:
    return figures.moving_figure(
        every_kind,
        [
            figures.Slider("n", "Batch size", [1, 2, 5, 40], start=2, unit="requests"),
            figures.Choice("rule", "Rule", {"full": "Full batches", "greedy": "Greedy"}),
        ],
        title="Everything at once",
        alt="What the figure shows",
        panels=[
            figures.Panel(
                figures.Axis("batch size", log=True, limits=(0.9, 70)),
                figures.Axis("time", "s", log=True, limits=(0.01, 10)),
                title="A panel",
            ),
        ],
        commit=commit,
        name=name,
    )


def shown(browser: Browser, css: str) -> str:
    return browser.run(f"return document.querySelector({css!r}).textContent")


def drawing(browser: Browser) -> list[str]:
    return browser.run("return Array.from(document.querySelectorAll('.ul-items')).map((e) => e.innerHTML)")


def focus(browser: Browser, css: str) -> None:
    browser.run(f"document.querySelector({css!r}).focus()")


def visible(browser: Browser, css: str) -> bool:
    return browser.run(f"const e = document.querySelector({css!r}); return !!e && e.getClientRects().length > 0")


def test_the_keyboard_moves_it_and_everything_follows(page: tuple[Browser, Path]) -> None:
    browser, path = page
    browser.open(write(path, moving()))
    before = drawing(browser)
    focus(browser, "input[type=range]")
    browser.press(RIGHT)
    assert shown(browser, ".ul-value") == "5 requests"
    assert (
        browser.run("return document.querySelector('input[type=range]').getAttribute('aria-valuetext')") == "5 requests"
    )
    assert shown(browser, ".ul-now") == "100 ms"
    assert shown(browser, ".ul-says") == "full, 5"
    assert shown(browser, ".ul-setting b") == "5 requests"
    assert drawing(browser) != before
    browser.press(TAB)  # to the radios
    browser.press(DOWN)
    assert shown(browser, ".ul-says") == "greedy, 5"
    assert browser.complaints() == []


def test_the_script_draws_what_the_library_drew(page: tuple[Browser, Path]) -> None:
    """Away and back again: the script's elements equal those written with the figure, in both layouts."""
    browser, path = page
    browser.open(write(path, moving()))
    written = drawing(browser)
    focus(browser, "input[type=range]")
    browser.press(RIGHT)
    assert drawing(browser) != written
    browser.press(LEFT)
    for ours, theirs in zip(written, drawing(browser), strict=True):
        assert ours == theirs


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_pale_bar_has_an_outline_that_is_seen(page: tuple[Browser, Path], theme: str) -> None:
    browser, path = page
    waits = figures.moving_figure(
        lambda n: figures.Frame(bars=[figures.Bar((0, n), (0, 1), look="queue", faint=True)]),
        [figures.Slider("n", "Time", [1, 2])],
        title="A wait",
        alt="A bar",
        panels=[figures.Panel(figures.Axis("time"), figures.Axis("who"))],
    )
    browser.open(write(path, waits, theme=theme))
    drawn = "const style = getComputedStyle(document.querySelector('.ul-items .ul-faint')); "
    assert browser.run(drawn + "return style.stroke === style.fill && style.strokeOpacity === '1'")
    assert browser.run(drawn + "return style.strokeWidth") == "1px"


def test_the_live_region_speaks_once_the_control_rests(page: tuple[Browser, Path]) -> None:
    browser, path = page
    browser.open(write(path, moving()))
    assert shown(browser, "[role=status]") == ""
    focus(browser, "input[type=range]")
    browser.press(RIGHT, RIGHT)
    deadline = time.monotonic() + 10
    while not shown(browser, "[role=status]") and time.monotonic() < deadline:
        time.sleep(0.05)
    said = shown(browser, "[role=status]")
    assert said == "Batch size 40 requests, Rule Full batches. step time 800 ms; nothing no value. full, 40"


def test_the_table_of_curves_follows_when_it_is_open(page: tuple[Browser, Path]) -> None:
    browser, path = page
    browser.open(write(path, moving()))
    focus(browser, "summary")
    browser.press(ENTER)
    cells = "return Array.from(document.querySelectorAll('.ul-here td')).slice(0, 3).map((e) => e.textContent)"
    assert browser.run(cells) == ["line", "1", "0.084"]
    focus(browser, "input[type=range]")
    browser.press(RIGHT)
    assert browser.run(cells) == ["line", "1", "0.21"]
    assert shown(browser, ".ul-here caption") == "The curves at this setting"


def test_a_choice_of_a_control_comes_before_the_answer_and_stays(page: tuple[Browser, Path]) -> None:
    browser, path = page
    browser.open(write(path, moving(figures.Commit("Which size?", control="n"))))
    opacity = "return getComputedStyle(document.querySelector('.ul-items')).opacity"
    assert browser.run(opacity) == "0" and not visible(browser, ".ul-numbers") and not visible(browser, ".ul-data")
    hidden_label = "return document.querySelector('svg[data-panel]').getAttribute('aria-label')"
    assert browser.run(hidden_label) == "Hidden until you commit to a guess."
    assert browser.run("return document.querySelector('.ul-controls input').disabled")
    focus(browser, ".ul-guess input[type=range]")
    browser.press(RIGHT)
    assert shown(browser, ".ul-value") == "5 requests" and not visible(browser, ".ul-says")
    browser.press(TAB, ENTER)
    assert visible(browser, ".ul-numbers") and not visible(browser, ".ul-guess")
    assert browser.run(hidden_label) == "What the figure shows"
    assert shown(browser, ".ul-reply") == "You chose 5 requests. Now move it."
    assert browser.run("return document.activeElement.type") == "range", "the focus goes on to the control"
    browser.press(RIGHT)
    assert shown(browser, ".ul-then") == "your choice: 100 ms" and shown(browser, ".ul-now") == "800 ms"
    labels = browser.run("return Array.from(document.querySelectorAll('.ul-wide .ul-label')).map((e) => e.textContent)")
    assert sorted(labels) == ["n = 40", "off the axis", "your choice"]
    assert browser.complaints() == []


def test_a_question_with_options_asks_for_one_and_replies(page: tuple[Browser, Path]) -> None:
    browser, path = page
    commit = figures.Commit("What happens?", options=["It doubles", "It stays."], replies=["No.", "Yes."])
    browser.open(write(path, moving(commit)))
    focus(browser, ".ul-commit")
    browser.press(ENTER)
    assert shown(browser, "[role=status]") == "Choose an answer first."
    browser.press(SPACE, DOWN)
    browser.press(TAB, ENTER)
    assert shown(browser, ".ul-reply") == "You said: It stays. Yes."


def test_a_guessed_value_is_marked_and_the_distance_named(page: tuple[Browser, Path]) -> None:
    browser, path = page
    commit = figures.Commit(
        "How long?", values=[0.1, 0.2, 0.4], unit="s", answer=0.1, mark=lambda v: figures.Mark(10, v), pin="your guess"
    )
    browser.open(write(path, moving(commit)))
    focus(browser, "[name=guess]")
    browser.press(RIGHT)
    browser.press(TAB, ENTER)
    assert shown(browser, ".ul-reply") == "You said 400\u00a0ms; it is 100\u00a0ms. That is 4 times too high."
    assert "your guess" in browser.run("return document.querySelector('.ul-wide').textContent")


def test_nobody_has_to_guess(page: tuple[Browser, Path]) -> None:
    browser, path = page
    browser.open(write(path, moving(figures.Commit("Which size?", control="n"))))
    focus(browser, ".ul-skip")
    browser.press(ENTER)
    assert visible(browser, ".ul-numbers") and not visible(browser, ".ul-reply")


def test_on_paper_it_is_a_still_with_its_numbers_whatever_was_guessed(page: tuple[Browser, Path]) -> None:
    browser, path = page
    browser.open(write(path, moving(figures.Commit("Which size?", control="n")), theme="dark"))
    browser.media(media="print")
    assert visible(browser, ".ul-numbers") and visible(browser, ".ul-setting")
    assert not visible(browser, ".ul-controls") and not visible(browser, ".ul-guess")
    assert browser.run("return getComputedStyle(document.querySelector('.ul-items')).opacity") == "1"
    ink = browser.run("return getComputedStyle(document.querySelector('.ul-fig')).getPropertyValue('--ul-ink')")
    assert ink == figures.LOOKS["ink"].light, "paper is light"


@pytest.mark.parametrize(
    ("theme", "scheme", "attribute", "ink"),
    [
        ("light", "dark", "", "light"),
        ("dark", "light", "", "dark"),
        ("", "dark", "", "dark"),
        ("", "light", "", "light"),
        ("", "light", 'data-jp-theme-light="false"', "dark"),
        ("", "dark", 'data-jp-theme-light="true"', "light"),
    ],
)
def test_colours_follow_the_page_then_the_notebook_then_the_system(
    page: tuple[Browser, Path], theme: str, scheme: str, attribute: str, ink: str
) -> None:
    browser, path = page
    write(path, figures.kv_filling())
    html = path.read_text().replace('data-theme="light"', f'data-theme="{theme}"' if theme else "")
    path.write_text(html.replace("<body", f"<body {attribute}"))
    browser.media(prefers_color_scheme=scheme)
    browser.open(path)
    found = browser.run("return getComputedStyle(document.querySelector('.ul-fig')).getPropertyValue('--ul-ink')")
    assert found == getattr(figures.LOOKS["ink"], ink)


def test_a_phone_gets_its_own_layout_and_nothing_sticks_out(page: tuple[Browser, Path]) -> None:
    browser, path = page
    fig, ax = figures.axes(xlabel="x", ylabel="y")
    ax.plot([1, 2], [1, 2], **figures.look("prediction"), label="a")
    still = figures.show(fig, alt="a line", data=True)
    pictures = [
        moving(figures.Commit("?", control="n")),
        moving(),
        still,
        figures.request_life(),
        figures.decode_step(),
    ]
    pictures += [figures.ragged_batch(), figures.kv_filling(), figures.token_strip(["words"] * 9, range(9))]
    browser.open(write(path, *pictures))
    assert visible(browser, ".ul-wide") and not visible(browser, ".ul-narrow")
    browser.size(360)
    assert visible(browser, ".ul-narrow") and not visible(browser, ".ul-wide")
    browser.run("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    assert browser.run("return document.documentElement.scrollWidth") <= 360
    small = browser.run(
        "return Array.from(document.querySelectorAll('.ul-narrow text')).filter((t) => t.getClientRects().length)"
        ".map((t) => t.getScreenCTM().a * parseFloat(getComputedStyle(t).fontSize)).filter((px) => px < 10)"
    )
    assert small == [], "text a reader can read"


def test_hostile_text_runs_nothing(page: tuple[Browser, Path]) -> None:
    browser, path = page

    def frame(n: str) -> figures.Frame:
        return figures.Frame(
            curves=[figures.Curve(HOSTILE + n, [1, 2], [1, 2])],
            marks=[figures.Mark(1, 1, HOSTILE)],
            numbers=[figures.Number(HOSTILE, HOSTILE)],
            says=HOSTILE,
        )

    picture = figures.moving_figure(
        frame,
        [figures.Slider("n", HOSTILE, [HOSTILE, "b"])],
        title=HOSTILE,
        alt=HOSTILE,
        caption=HOSTILE,
        panels=[figures.Panel(figures.Axis(HOSTILE), figures.Axis(HOSTILE), title=HOSTILE)],
        commit=figures.Commit(HOSTILE, options=[HOSTILE], replies=HOSTILE),
    )
    browser.open(write(path, picture, figures.token_strip([HOSTILE], [1])))
    browser.run("document.querySelector('[name=guess]').click(); document.querySelector('.ul-commit').click()")
    browser.run("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    focus(browser, ".ul-controls input")
    browser.press(RIGHT, LEFT)
    assert shown(browser, ".ul-says") == HOSTILE
    assert browser.run("return [window.hurt, document.images.length]") == [None, 0]
    assert browser.requests() == [path.resolve().as_uri()] and browser.complaints() == []


def test_the_same_figure_twice_on_a_page_moves_one_at_a_time(page: tuple[Browser, Path]) -> None:
    browser, path = page
    browser.open(write(path, moving(), moving()))
    focus(browser, "input[type=range]")
    browser.press(END)
    browser.press(TAB, DOWN)
    says = "return Array.from(document.querySelectorAll('.ul-says')).map((e) => e.textContent)"
    assert browser.run(says) == ["greedy, 40", "full, 2"]


def test_axe_finds_nothing(page: tuple[Browser, Path]) -> None:
    from site_checks import AXE

    browser, path = page
    if not AXE.exists():
        pytest.skip("no axe-core here: make setup puts it beside the environment")
    script = AXE.read_text(encoding="utf-8")
    for theme in ("light", "dark"):
        body = [moving(), figures.request_life(), figures.stage_bar({"prefill": 0.1, "decode": 1.0})]
        browser.open(write(path, *body, theme=theme))
        browser.run(f"document.body.style.background = '{'#fff' if theme == 'light' else '#14171b'}'")
        browser.run("document.querySelectorAll('details').forEach((d) => (d.open = true))")
        browser.run(script)
        found = browser.driver.execute_async_script(
            "const done = arguments[0]; axe.run(document.querySelector('body'), {rules: {region: {enabled: false},"
            "'landmark-one-main': {enabled: false}, 'page-has-heading-one': {enabled: false},"
            "'heading-order': {enabled: false}}}).then((r) => done(r.violations.map((v) => v.id + ' '"
            " + v.nodes.map((n) => n.html.slice(0, 120) + ' ' + n.failureSummary).join(' | '))));"
        )
        assert found == []
