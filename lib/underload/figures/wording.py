"""Numbers and text as they stand in figures: three significant digits, the prefix a person would say, HTML escaped."""

import math
import re
from collections.abc import Iterable
from html import escape
from numbers import Integral

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_PREFIXED = ("B", "B/s", "FLOP", "FLOPs", "FLOP/s", "W", "J", "Hz")
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

NO_VALUE = "no value"

UNITS = (
    *("ns", "µs", "ms", "s", "min", "h", "%", "Hz", "MHz", "GHz", "W", "kW", "px"),
    *("B", "kB", "KB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB", "FLOP", "FLOPs", "GFLOP", "TFLOP"),
    *("KB/s", "MB/s", "GB/s", "TB/s", "MiB/s", "GiB/s", "Gbit/s", "tokens/s", "requests/s"),
    *("FLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s"),
)
"""Those that are written as symbols. Words (tokens, requests, blocks) may begin a line."""
_UNIT = "|".join(sorted(map(re.escape, UNITS), key=len, reverse=True))
# not the beginning of a word, nor of a quotient that is not in the list
_BETWEEN = re.compile(rf"(?<=\d) (?=(?:{_UNIT})(?![\w/]))")
_DATE = re.compile(
    r"(?<=\d) (?=(?:January|February|March|April|May|June|July|August|September|October|November|December)\b)"
)

_NUMERIC = re.compile(r"[−+-]?[.\d∞]")

OWN_KEYS = ' data-lm-suppress-shortcuts="true"'
"""On each element that takes the focus (a parent is not enough): JupyterLab would use its arrow keys for cells."""


def keep_units(text: str) -> str:
    """`text` with a space that does not break (U+00A0) between each number and its unit, each day and its month."""
    return _DATE.sub("\u00a0", _BETWEEN.sub("\u00a0", text))


def significant(value: float, digits: int = 3) -> float:
    """`value` rounded to so many significant digits."""
    if value == 0 or not math.isfinite(value):
        return value
    return round(value, digits - 1 - math.floor(math.log10(abs(value))))


def number(value: float | int | None, digits: int = 3) -> str:
    """`value` in words a reader can say: 0.0213, 431, 12,300, 3.2×10⁹, ∞, "no value" for None and NaN.

    Whole numbers given as int stay exact.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NO_VALUE
    if isinstance(value, Integral):
        return f"{int(value):,}".replace("-", "−")
    value = float(value)
    if math.isnan(value):
        return NO_VALUE
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    value = significant(value, digits)
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if exponent >= 9 or exponent < -4:
        mantissa = f"{value / 10.0**exponent:.{digits - 1}f}".rstrip("0").rstrip(".")
        said = f"{mantissa}×10{str(exponent).translate(_SUPERSCRIPT)}"
    else:
        said = f"{value:,.{max(digits - 1 - exponent, 0)}f}"
        if "." in said:
            said = said.rstrip("0").rstrip(".")
    return said.replace("-", "−")


def quantity(value: float | int | None, unit: str = "", digits: int = 3) -> str:
    """`value` with its unit, scaled to the prefix a person would use.

    Seconds below one become ms, µs or ns; bytes, FLOP and the like take k, M, G, T (powers of 1000). Other units stay
    as they are. `quantity(0.0213, "s")` is "21.3 ms", `quantity(5.4e8, "B")` is "540 MB".
    """
    if value is None or not math.isfinite(float(value)):
        said = number(None if value is None else float(value))
        return said  # "no value", ∞: what a unit would say is in the label
    rounded = significant(float(value), digits)  # first, so that 0.9996 s is 1 s and not 1000 ms
    if unit == "s" and 0 < abs(rounded) < 1:
        for scale, name in _SECONDS:
            if abs(rounded) >= scale * (1 - 1e-12):
                return f"{number(rounded / scale, digits)} {name}"
        return f"{number(rounded, digits)} s"
    if unit in _PREFIXED and abs(rounded) >= 1e3:
        for scale, prefix in _PREFIXES:
            if abs(rounded) >= scale:
                return f"{number(rounded / scale, digits)} {prefix}{unit}"
    said = number(value, digits)
    if said == "1" and len(unit) > 3 and unit.isalpha() and unit.endswith("s"):
        unit = unit[:-1]  # 1 request, 2 requests
    return f"{said} {unit}" if unit else said


def attributes(**values: object) -> str:
    """HTML attributes in the order given, escaped; `_` at the end is dropped, inside it is `-`; None leaves one out."""
    return "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for name, value in values.items()
        if value is not None
    )


def table(columns: Iterable[str], rows: Iterable[Iterable[object]], caption: str = "") -> str:
    """An HTML table; numbers as `number` says them at five digits, so that a reader can copy them.

    Columns of words have the class ul-words, in their heads too; numbers stand at the right.
    """
    names, lines = list(columns), [list(row) for row in rows]
    words = [
        all(v is None or (isinstance(v, str) and not _NUMERIC.match(v)) for v in column)
        for column in zip(*lines, strict=True)
    ]
    kinds = [' class="ul-words"' if wordy else "" for wordy in words] or [""] * len(names)
    head = "".join(f'<th scope="col"{kind}>{escape(str(name))}</th>' for kind, name in zip(kinds, names, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{escape(_cell(value))}</td>" for kind, value in zip(kinds, row, strict=True))
        + "</tr>"
        for row in lines
    )
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f'<div class="ul-scroll" tabindex="0"{OWN_KEYS} role="region" '
        f'aria-label="{escape(caption or "Data of this figure")}">'
        f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(value: object) -> str:
    if value is None:
        return NO_VALUE
    if isinstance(value, str):
        return value
    if hasattr(value, "item"):  # a NumPy scalar
        value = value.item()
    return number(value, 5) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
