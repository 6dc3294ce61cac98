"""Pages that stand alone: one HTML file each, style and script inside, no network asked, all text escaped."""

from __future__ import annotations

import base64
import functools
import hashlib
import math
import re
from pathlib import Path
from typing import Any

#: By this a page is known for one of ours.
GENERATOR = "underload course grade"
_FOLDER = Path(__file__).with_name("templates")


def render(template: str, script: str = "", **values: Any) -> str:
    """One page from `templates/`.

    A page may run no script but `script` (a file beside the templates) and ask for nothing: its Content-Security-Policy
    says so to the browser, in case some text of a submission should ever slip through the escaping.
    """
    code = (_FOLDER / script).read_text(encoding="utf-8") if script else ""
    allowed = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    if script:
        policy += f"; script-src 'sha256-{allowed}'"
    css = (_FOLDER / "page.css").read_text(encoding="utf-8")
    return str(
        _environment().get_template(template).render(css=css, script=code, policy=policy, generator=GENERATOR, **values)
    )


def points(value: float | None) -> str:
    """Points as a person writes them; what is not known is a dash, never a 0."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{round(value, 2):g}"


def plural(count: int, one: str, many: str = "") -> str:
    """'1 check', '3 checks'."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def share(value: float | None) -> str:
    """A share as whole per cent; a dash where there is none."""
    return "–" if value is None or not math.isfinite(value) else f"{100 * value:.0f} %"


def file_name(student: str) -> str:
    """A student's id as a folder's name: itself where that is safe, else escaped, so that no two ids meet."""
    kept = re.sub(r"[^\w.@+ -]", lambda found: "".join(f"%{byte:02X}" for byte in _bytes(found[0])), student)
    kept = re.sub(r"^[. ]|[. ]$", lambda found: f"%{ord(found[0]):02X}", kept) or "%"
    if len(kept.encode()) > 120:
        kept = f"{kept[:30]}%{hashlib.sha256(_bytes(student)).hexdigest()[:16]}"
    return kept


def part_name(name: str) -> str:
    """'task-2-check' → 'Check', 'task-3-prediction-check' → 'Prediction': a part's name inside its task, where its lab
    is not at hand to say more."""
    text = re.sub(r"(?i)^(task|t|further)[-_ ]?\w{1,2}[-_ ]", "", name).replace("-", " ").replace("_", " ").strip()
    text = re.sub(r"(?i)\s+(check|solution|answer)$", "", text) or name
    return text[:1].upper() + text[1:]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # a notebook may hold half a character


@functools.cache
def _environment() -> Any:
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.filters |= {
        "points": points,
        "share": share,
        "capitalize_first": lambda text: text[:1].upper() + text[1:],
        "lower_first": lambda text: text[:1].lower() + text[1:],
        "first_line": lambda text: text.strip().split("\n")[0],
    }
    made.globals |= {"plural": plural}
    return made
