"""Numbers and their units, dates and short equations stay on one line, in prose and only there."""

from __future__ import annotations

import pytest
from docutils import nodes

from book.units import keep_units_in, keep_values_in
from underload.figures.wording import UNITS

KEPT = "\u00a0"


def paragraph(*parts: nodes.Node | str) -> nodes.paragraph:
    made = nodes.paragraph()
    made.extend(nodes.Text(part) if isinstance(part, str) else part for part in parts)
    return made


def read(tree: nodes.Element) -> str:
    keep_units_in(tree)
    return tree.astext()


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_stays_with_its_number(unit: str) -> None:
    for after in ("", " of it", ", or", ".", ")"):
        assert read(paragraph(f"It takes 12 {unit}{after}")) == f"It takes 12{KEPT}{unit}{after}"


def test_words_and_quotients_that_are_no_unit_may_begin_a_line() -> None:
    for text in ("12 seats", "3 spare", "4 hands", "5 tokens", "2 s/x", "1 Bit", "a s", "7 MBs"):
        assert read(paragraph(text)) == text


def test_a_number_that_is_a_node_of_its_own_counts() -> None:
    glued = nodes.inline("", "", nodes.Text("3.2"))
    assert read(paragraph("about ", glued, " ms of 5 %")) == f"about 3.2{KEPT}ms of 5{KEPT}%"
    assert read(paragraph(nodes.math("", "40"), " GB/s")) == f"40{KEPT}GB/s"
    assert read(paragraph(nodes.strong("", "", nodes.Text("most")), " s of it")) == "most s of it"


def test_a_day_stays_with_its_month() -> None:
    assert read(paragraph("As of 1 December 2026.")) == f"As of 1{KEPT}December 2026."
    assert read(paragraph("7 Mayors, 3 may")) == "7 Mayors, 3 may"


def test_a_short_equation_stays_whole() -> None:
    assert read(paragraph("so 1.4/5 = 0.28 s of it")) == f"so 1.4/5{KEPT}={KEPT}0.28{KEPT}s of it"
    assert read(paragraph("the load ", nodes.math("", r"\rho"), " = −0.75, or")).endswith(f" ={KEPT}−0.75, or")
    glued = nodes.inline("", "", nodes.Text("3.2"))
    assert read(paragraph(nodes.math("", "L"), " = ", glued, " = 16/5")) == f"L ={KEPT}3.2 ={KEPT}16/5"
    for text in ("utilisation = load", "a = b", "= 3", "a=3"):
        assert read(paragraph(text)) == text


def test_a_formula_and_its_value_are_in_one_element() -> None:
    def kept(*parts: nodes.Node | str) -> list[str]:
        made = paragraph("at ", nodes.math("", r"\rho"), *parts)
        said = read(made)
        keep_values_in(made)
        assert made.astext() == said
        return [node.astext() for node in made.findall(nodes.inline) if "whole" in node["classes"]]

    assert kept(" = 0.75, or so") == [rf"\rho ={KEPT}0.75,"]
    assert kept(" = 3 s of it") == [rf"\rho ={KEPT}3{KEPT}s"]
    assert kept(" = ", nodes.inline("", "", nodes.Text("3.2")), " or so") == [rf"\rho ={KEPT}3.2"]
    assert kept(" is 3") == kept(" = load") == kept() == []


def test_what_follows_in_a_node_of_its_own_counts() -> None:
    assert read(paragraph("12 ", nodes.emphasis("", "", nodes.Text("ms")))) == f"12{KEPT}ms"
    assert read(paragraph("12 ", nodes.emphasis("", "", nodes.Text("minutes")))) == "12 minutes"


def test_of_two_equal_texts_the_right_one_changes() -> None:
    made = paragraph(
        nodes.literal("", "", nodes.Text("a")), " s and ", nodes.inline("", "", nodes.Text("3")), " s and "
    )
    assert read(made) == f"a s and 3{KEPT}s and "


def test_nothing_is_joined_from_one_paragraph_to_the_next() -> None:
    section = nodes.section("", paragraph("There are 3"), paragraph(" s"))
    keep_units_in(section)
    assert section[1].astext() == " s"


def test_code_stays_as_it_is() -> None:
    code = nodes.literal_block("", "", nodes.Text("wait 5 s"))
    inline = nodes.literal("", "", nodes.Text("sleep 5 s"))
    for tree in (code, paragraph("type ", inline)):
        assert KEPT not in read(tree)
