"""The book's typefaces, cut to what its pages use and written as woff2 when the build is finished.

STIX Two Math sets the mathematics, Source Serif the text, Source Sans what surrounds it; all under the SIL Open Font
License, taken from pinned packages, served by the book itself.
"""

from __future__ import annotations

import hashlib
import html
import io
import re
import shutil
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

#: File to write -> (package, file in it, whether it sets mathematics).
FONTS: dict[str, tuple[str, str, bool]] = {
    "math.woff2": ("ziamath.fonts", "STIXTwoMath-Regular.ttf", True),
    "serif.woff2": ("font_source_serif_pro", "files/SourceSerifPro-Regular.ttf", False),
    "serif-italic.woff2": ("font_source_serif_pro", "files/SourceSerifPro-It.ttf", False),
    "serif-semibold.woff2": ("font_source_serif_pro", "files/SourceSerifPro-Semibold.ttf", False),
    "serif-semibold-italic.woff2": ("font_source_serif_pro", "files/SourceSerifPro-SemiboldIt.ttf", False),
    "sans.woff2": ("font_source_sans_pro", "files/SourceSansPro-Regular.ttf", False),
    "sans-italic.woff2": ("font_source_sans_pro", "files/SourceSansPro-It.ttf", False),
    "sans-semibold.woff2": ("font_source_sans_pro", "files/SourceSansPro-Semibold.ttf", False),
}
LICENCES = {
    "SourceSerif-LICENSE.txt": ("font_source_serif_pro", "files/LICENSE.txt"),
    "SourceSans-LICENSE.txt": ("font_source_sans_pro", "files/LICENSE.txt"),
}
#: Always there: what a script may write into a page later.
LATIN = set(range(0x20, 0x7F)) | set(range(0xA0, 0x100)) | {0x2013, 0x2014, 0x2018, 0x2019, 0x201C, 0x201D, 0x2026}
MORE = {0x2212, 0x00D7, 0x2248, 0x2264, 0x2265, 0x2192, 0x2190, 0x2191, 0x2193, 0x221E, 0x2009, 0x202F, 0x2032}

#: Heights that a root's sign comes in, in thousandths of the font's size, and the least room under its bar.
ROOTS = (820, 890, 970, 1060, 1188, 1330, 1490, 1670, 1855, 2100, 2371, 2630, 2892)
ROOT_GAP = 130


def characters(folder: Path) -> tuple[set[int], set[int]]:
    """Code points in the built pages: in formulas, and in all text."""
    formulas: set[int] = set()
    text: set[int] = set()
    for path in folder.rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        for found in re.findall(r"<math\b.*?</math>", page, re.DOTALL):
            formulas.update(map(ord, html.unescape(re.sub(r"<[^>]+>", "", found))))
            if "<msqrt" in found or "<mroot" in found:
                formulas.add(ord("√"))  # drawn by the browser, written nowhere
        text.update(map(ord, html.unescape(page)))
    return formulas, text


def italics(points: set[int]) -> set[int]:
    """The mathematical italic forms of letters: MathML Core shows a one-letter <mi> by them."""
    made = set()
    for point in points:
        if 0x41 <= point <= 0x5A:
            made.add(0x1D434 + point - 0x41)
        elif 0x61 <= point <= 0x7A:
            made.add(0x210E if point == 0x68 else 0x1D44E + point - 0x61)
        elif 0x391 <= point <= 0x3A9:
            made.add(0x1D6E2 + point - 0x391)
        elif 0x3B1 <= point <= 0x3C9:
            made.add(0x1D6FC + point - 0x3B1)
    return made


def fit_roots(font: Any) -> None:
    """Give a mathematics font (TrueType, 1000 units to the em) roots that Chromium sets well, in place.

    MathML Core hangs a root's sign from its bar, so a sign taller than what it covers sticks out below the line: there
    must be low ones, in small steps, the lowest under the character itself, which is tried first. And it leaves room
    for the widest sign there is: all must be of one width.
    """
    from fontTools.pens.transformPen import TransformPen
    from fontTools.pens.ttGlyphPen import TTGlyphPen
    from fontTools.ttLib.tables import otTables

    math, glyphs, names = font["MATH"].table, font.getGlyphSet(), font.getGlyphOrder()
    root = font.getBestCmap()[ord("√")]
    construction = math.MathVariants.VertGlyphConstruction[math.MathVariants.VertGlyphCoverage.glyphs.index(root)]
    drawn = [(record.VariantGlyph, record.AdvanceMeasurement) for record in construction.MathGlyphVariantRecord]
    width = glyphs[root].width
    added: dict[str, Any] = {}

    def scaled(glyph: str, upwards: float, name: str) -> None:
        across = width / glyphs[glyph].width
        pen = TTGlyphPen(None)
        glyphs[glyph].draw(TransformPen(pen, (across, 0, 0, upwards, 0, 0)))
        added[name] = pen.glyph(dropImpliedOnCurves=False)

    construction.MathGlyphVariantRecord = []
    for height in ROOTS:
        near, its = min(drawn, key=lambda one: abs(one[1] - height))
        record = otTables.MathGlyphVariantRecord()
        record.VariantGlyph, record.AdvanceMeasurement = f"root.{height}" if height > ROOTS[0] else root, height
        construction.MathGlyphVariantRecord.append(record)
        scaled(near, height / its, record.VariantGlyph)
    construction.VariantCount = len(ROOTS)
    for part in construction.GlyphAssembly.PartRecords:
        scaled(part.glyph, 1.0, f"root.{part.glyph}")
        part.glyph = f"root.{part.glyph}"
    font.setGlyphOrder([*names, *(name for name in added if name != root)])
    for name, glyph in added.items():
        font["glyf"][name] = glyph
        glyph.recalcBounds(font["glyf"])
        font["hmtx"][name] = (width, glyph.xMin)
    for constant in ("RadicalVerticalGap", "RadicalDisplayStyleVerticalGap"):
        value = getattr(math.MathConstants, constant)
        value.Value = max(value.Value, ROOT_GAP)


def subset(source: bytes, points: set[int], *, maths: bool) -> bytes:
    """The font cut to `points`, as woff2; a mathematics font keeps its MATH table and stretchy variants."""
    from fontTools.subset import Options, Subsetter
    from fontTools.ttLib import TTFont

    font = TTFont(io.BytesIO(source))
    options = Options(flavor="woff2", hinting=False, desubroutinize=True, notdef_outline=True)
    if maths:
        options.layout_features = ["*"]
        fit_roots(font)
    options.drop_tables += ["DSIG"]
    cutter = Subsetter(options)
    cutter.populate(unicodes=points)
    cutter.subset(font)
    font.flavor = "woff2"
    out = io.BytesIO()
    font.save(out)
    return out.getvalue()


def write_fonts(folder: Path, cache: Path) -> dict[str, int]:
    """Write the fonts that the pages in `folder` need; sizes by file. A font cut once is kept in `cache`."""
    formulas, text = characters(folder)
    target = folder / "_static" / "fonts"
    target.mkdir(parents=True, exist_ok=True)
    cache.mkdir(parents=True, exist_ok=True)
    sizes = {}
    for name, (package, inside, maths) in FONTS.items():
        source = files(package).joinpath(inside).read_bytes()
        points = formulas | italics(formulas) | LATIN if maths else LATIN | MORE | {p for p in text if p < 0x2C00}
        made_of = (sorted(points), *((ROOTS, ROOT_GAP) if maths else ()))
        key = hashlib.sha256(source + repr(made_of).encode()).hexdigest()[:20]
        kept = cache / f"{key}.woff2"
        if not kept.is_file():
            with tempfile.NamedTemporaryFile(dir=cache, delete=False) as made:  # two builds may share the cache
                made.write(subset(source, points, maths=maths))
            Path(made.name).replace(kept)
        shutil.copyfile(kept, target / name)
        sizes[name] = kept.stat().st_size
    for name, (package, inside) in LICENCES.items():
        (target / name).write_bytes(files(package).joinpath(inside).read_bytes())
    return sizes


def finish(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        write_fonts(Path(app.outdir), Path(app.config.book_font_cache or Path(app.doctreedir) / "fonts"))


def setup(app: Sphinx) -> None:
    app.add_config_value("book_font_cache", "", "")
    app.connect("build-finished", finish)
