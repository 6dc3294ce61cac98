"""What must hold of a built book, as functions that return what is wrong: used on the book and on planted faults."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from browser import Browser

from underload.course import Secrets
from underload.course.secrets import squeeze

ROOT = Path(__file__).resolve().parents[1]
AXE = ROOT / ".venv" / "axe" / "axe_playwright_python" / "axe.min.js"


class _Page(HTMLParser):
    """Ids, links, and addresses that a browser fetches by itself."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.text: list[str] = []
        self._silent = 0

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        if "id" in found:
            self.ids.add(found["id"])
        if tag == "a":
            if "name" in found:
                self.ids.add(found["name"])
            if "href" in found:
                self.links.append(found["href"])
        elif tag == "link":
            if found.get("rel") not in {"canonical", "next", "prev", "index", "search", "author", "copyright"}:
                self.fetched.append(found.get("href", ""))
            else:
                self.links.append(found.get("href", ""))
        else:
            for name in ("src", "poster", "data"):
                if found.get(name):
                    self.fetched.append(found[name])
            for candidate in found.get("srcset", "").split(","):
                if candidate.strip():
                    self.fetched.append(candidate.split()[0])
        if tag in {"script", "style"}:
            self._silent += 1

    def handle_endtag(self, tag: str) -> None:
        if tag in {"script", "style"}:
            self._silent -= 1

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.text.append(data)


def parse(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


@dataclass
class Site:
    """A built book in a folder."""

    folder: Path
    _parsed: dict[Path, _Page] = field(default_factory=dict)

    @cached_property
    def pages(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*.html") if "_static" not in path.parts)

    @cached_property
    def articles(self) -> list[Path]:
        """Pages with text of the book: not the index, the search, or the redirect at the top."""
        left_out = {"genindex.html", "search.html", "index.html", "report.html"}
        return [path for path in self.pages if path.parent != self.folder or path.name not in left_out]

    def page(self, path: Path) -> _Page:
        if path not in self._parsed:
            self._parsed[path] = parse(path)
        return self._parsed[path]

    # ---- without a browser ---------------------------------------------------------------------------------------

    def dead_links(self) -> list[str]:
        """Links and fetched files inside the book that lead nowhere, anchors included."""
        found = []
        for path in self.pages:
            for link in [*self.page(path).links, *self.page(path).fetched]:
                parts = urlsplit(link)
                if parts.scheme or parts.netloc:
                    continue
                target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
                if target.is_dir():
                    target /= "index.html"
                if not target.is_file():
                    found.append(f"{path.relative_to(self.folder)}: {link} leads nowhere")
                elif parts.fragment and target.suffix == ".html":
                    anchor = unquote(parts.fragment)
                    if anchor not in self.page(target).ids and anchor not in {"", "top"}:
                        found.append(f"{path.relative_to(self.folder)}: {link} has no such place")
        return found

    def outside_addresses(self) -> list[str]:
        """Addresses elsewhere that a page or style sheet fetches by itself (a link to follow is another thing)."""
        found = []
        for path in self.pages:
            for address in self.page(path).fetched:
                if re.match(r"(https?:)?//", address):
                    found.append(f"{path.relative_to(self.folder)}: {address}")
        for path in self.folder.rglob("*.css"):
            for address in re.findall(
                r"(?:url\(\s*|@import\s+)[\"']?((?:https?:)?//[^\"')\s]+)", path.read_text("utf-8")
            ):
                found.append(f"{path.relative_to(self.folder)}: {address}")
        return found

    def leaks(self, secrets: Iterable[Secrets]) -> list[str]:
        """Where a line of a solution or hidden test, or a name that occurs only there, can be read."""
        secrets = list(secrets)
        found = []
        for path in sorted(self.folder.rglob("*")):
            if not path.is_file() or path.suffix in {".woff2", ".ttf", ".png", ".jpg", ".inv", ".ico"}:
                continue
            if "_static" in path.parts and path.suffix in {".js", ".css", ".map", ".svg"}:
                continue
            raw = path.read_text(encoding="utf-8", errors="replace")
            variants = {squeeze(raw), squeeze(html.unescape(raw))}
            if path.suffix == ".html":
                variants.add(squeeze("".join(self.page(path).text)))
            if path.suffix in {".ipynb", ".json"}:
                variants.add(squeeze(" ".join(_strings(json.loads(raw)))))
            for secret in secrets:
                for line in sorted(secret.lines):
                    if any(line in text for text in variants):
                        found.append(f"{path.relative_to(self.folder)}: {line}")
            if path.name == "searchindex.js":
                words = set(re.findall(r"\w+", raw.lower()))
                for secret in secrets:
                    found += [f"searchindex.js: {name}" for name in sorted(secret.names) if name.lower() in words]
        return found

    # ---- in a browser --------------------------------------------------------------------------------------------

    def complaints(self, browser: Browser, path: Path) -> list[str]:
        """What the console says and what the page asks for outside the book, read through in both themes."""
        browser.size(1280)
        browser.open(path)
        found = browser.complaints()
        for theme in ("dark", "light"):
            browser.theme(theme)
            browser.run("scrollTo(0, document.body.scrollHeight)")
            browser.settle()
        found += browser.complaints()
        base = self.folder.resolve().as_uri()
        found += [f"asked for {url}" for url in browser.requests() if not url.startswith(base)]
        return found

    def axe(self, browser: Browser, path: Path, *, width: int = 1280) -> list[str]:
        """Serious and critical findings of axe-core, in both themes.

        Nearly all of its time goes into contrast, text by text; so each look that a text can have (its colour, size
        and weight, and everything painted behind it, in both themes) is judged once a page, not once a word of code.
        And of the reference's hundreds of entries those stay that have a kind of element which none before them has.
        """
        browser.size(width)
        browser.media(prefers_reduced_motion="reduce")  # colours are judged at rest, not halfway through a fade
        browser.open(path)
        browser.run("document.querySelectorAll('details').forEach(fold => fold.open = true)")
        browser.run(_ENTRIES)
        browser.run(AXE.read_text(encoding="utf-8"))
        for theme in ("dark", "light"):
            browser.theme(theme)
            browser.settle()
            browser.run(_LOOKS)
        browser.run(_SAME_LOOK)
        found = []
        for theme in ("light", "dark"):
            browser.theme(theme)
            browser.settle()
            made = browser.driver.execute_async_script(
                "const done = arguments[0]; axe.run(document, {resultTypes: ['violations'], preload: false}).then("
                "r => done(r.violations), e => done([{id: 'axe', impact: 'critical', help: String(e), nodes: []}]));"
            )
            found += [
                f"{theme}: {item['impact']}: {item['id']}: {item['help']}: "
                + "; ".join(
                    f"{node['html'][:120]} {node.get('failureSummary', '')[:200]}" for node in item["nodes"][:3]
                )
                for item in made
                if item["impact"] in {"serious", "critical"}
            ]
        browser.media()
        browser.theme("light")
        return found

    def sideways(self, browser: Browser, path: Path, width: int = 360, *, fresh: bool = True) -> list[str]:
        """What makes the page, or anything in it but tables, code and plots, scroll sideways. fresh: open it first."""
        browser.size(width, 740)
        if fresh:
            browser.open(path)
        browser.run("document.querySelectorAll('details').forEach(fold => fold.open = true)")
        browser.settle()
        return list(browser.run(_SIDEWAYS))

    def printed(self, browser: Browser, path: Path) -> list[str]:
        """What a printed page lacks: an open fold; and what it has too much of: navigation, a figure's controls."""
        browser.size(800)
        browser.open(path)
        browser.run("window.dispatchEvent(new Event('beforeprint'))")
        browser.media(media="print")
        browser.settle()
        found = list(browser.run(_PRINTED))
        browser.media()
        browser.run("window.dispatchEvent(new Event('afterprint'))")
        if browser.run("return document.querySelectorAll('details.fold[open]').length"):
            found.append("folds stay open after printing")
        return found


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        # A notebook keeps a cell's lines in a list.
        if all(isinstance(item, str) for item in value):
            yield "".join(value)
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)


_ENTRIES = """
const seen = new Set();
for (const entry of document.querySelectorAll('.lib-entry')) {
  const kinds = [...entry.querySelectorAll('*')].map((item) => `${item.parentElement.tagName} ${item.tagName} ` +
    (item.getAttribute('class') || '') + (item.id ? ' #' : ''));
  if (kinds.every((kind) => seen.has(kind))) entry.remove();
  kinds.forEach((kind) => seen.add(kind));
}
"""

# What axe's rule on contrast may pass over: a text that looks, in both themes, like one before it, on the same layers
# of background. A text is judged by itself where its background need not be that of the elements around it (in or below
# something positioned, moved or drawn), where it is cut off, and in what axe lets pass because it is disabled.
#
# _LOOKS notes how every text looks in the present theme; all is read before anything is written, since a style that is
# asked for after a change is computed anew. _SAME_LOOK marks the texts that look alike. Of these, a word of code loses
# its element and stays where it is as text: axe asks each element of a page for its style, and in the reference half of
# them are words of code.
_LOOKS = """
const behind = new Map([[null, '']]);
const layers = (item) => {
  if (!behind.has(item)) {
    const style = getComputedStyle(item), around = layers(item.parentElement);
    const moved = style.position !== 'static' && (style.position !== 'relative' ||
      [style.left, style.top].some((offset) => !['auto', '0px'].includes(offset)));
    behind.set(item, around === null || moved || style.transform !== 'none' || item instanceof SVGElement ? null :
      [around, style.backgroundColor, style.backgroundImage, style.opacity, style.filter, style.mixBlendMode].join());
  }
  return behind.get(item);
};
window.looks ||= new Map();
for (const item of document.querySelectorAll('body *')) {
  if (![...item.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim())) continue;
  const around = layers(item), style = getComputedStyle(item);
  const box = item.getBoundingClientRect();
  const frame = (item.closest('pre, table') || document.body).getBoundingClientRect();
  const alone = around === null || style.visibility !== 'visible' || !box.width || !box.height ||
    box.left < frame.left || box.right > frame.right || item.closest('label, fieldset, [disabled], [aria-disabled]');
  const look = alone ? null : [around, style.color, style.fontSize, style.fontWeight, style.textShadow].join();
  looks.set(item, [...(looks.get(item) || []), look]);
}
"""
_SAME_LOOK = """
const seen = new Set();
for (const [item, look] of looks) {
  if (look.includes(null)) continue;
  const both = look.join(' / ');
  if (seen.has(both)) {
    item.dataset.sameLook = '';
    if (item.matches('pre span, code span') && !item.children.length) item.replaceWith(...item.childNodes);
  }
  seen.add(both);
}
document.body.normalize();
axe.configure({rules: [{id: 'color-contrast', selector: '*:not([data-same-look])'}]});
"""

_SIDEWAYS = """
const found = [];
const root = document.documentElement;
if (root.scrollWidth > root.clientWidth) found.push(`the page: ${root.scrollWidth} > ${root.clientWidth}`);
const allowed = 'pre, table, .ul-plot, .pst-scrollable-table-container, [data-scroll], .visually-hidden, .sr-only';
for (const item of document.querySelectorAll('main *')) {
  if (item.closest(allowed) || item.namespaceURI.endsWith('MathML') || item.namespaceURI.endsWith('svg')) continue;
  const style = getComputedStyle(item);
  const scrolls = /auto|scroll|hidden|clip/.test(style.overflowX);
  const holds = item.querySelector(allowed);
  if (item.scrollWidth > item.clientWidth + 1 && item.clientWidth > 0 && scrolls && !holds
      && style.textOverflow !== 'ellipsis' && style.position !== 'absolute' && item.tagName !== 'INPUT') {
    found.push(`${item.tagName}.${item.className} "${item.textContent.trim().slice(0, 40)}": ` +
               `${item.scrollWidth} > ${item.clientWidth}`);
  }
  const box = item.getBoundingClientRect();
  if (box.width > 1 && box.right > root.clientWidth + 1 && !item.closest('dialog, [hidden]')) {
    let clipped = false;
    for (let up = item.parentElement; up; up = up.parentElement) {
      if (up.matches(allowed) || /auto|scroll/.test(getComputedStyle(up).overflowX)) { clipped = true; break; }
    }
    if (!clipped && style.visibility !== 'hidden' && style.position !== 'fixed')
      found.push(`${item.tagName}.${item.className} sticks out: ${Math.round(box.right)}`);
  }
}
return found.slice(0, 12);
"""

_PRINTED = """
const found = [];
const seen = (item) => item.getClientRects().length > 0 && getComputedStyle(item).visibility !== 'hidden';
for (const fold of document.querySelectorAll('article details')) {
  if (!fold.open && !fold.closest('.page-tools, [data-no-print]') && seen(fold))
    found.push('a fold is shut: ' + fold.textContent.trim().slice(0, 40));
}
const unwanted = ['.bd-sidebar-primary', '.bd-header-article', '.prev-next-footer', '.page-tools',
                  'article input[type=range]', 'article button'];
for (const css of unwanted) {
  for (const item of document.querySelectorAll(css)) if (seen(item)) found.push('printed: ' + css);
}
return [...new Set(found)];
"""
