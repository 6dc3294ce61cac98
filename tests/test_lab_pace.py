"""A lab that drives something real ends, however slow the machine was while its service time was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from underload.course import read_notebook
from underload.labs import littles_law, load
from underload.labs.pace import WITHIN, rate_for

LABS = Path(__file__).parents[1] / "labs"


def test_the_rate_puts_the_load_on_the_server() -> None:
    assert rate_for(0.7, 0.005, 400) == pytest.approx(140)


def test_a_service_time_of_a_busy_moment_does_not_stretch_the_schedule() -> None:
    for service in (0.05, 0.3, 60.0):
        schedule = load.poisson(rate_for(0.7, service, 400), 400, seed=8)
        assert schedule[-1] < 1.25 * WITHIN
    assert rate_for(0.7, 60.0, 400, within=5.0) == 80


@pytest.mark.parametrize(("lab", "cell"), [("load", "task-2-decoder"), ("littles-law", "task-5-decoder")])
def test_labs_2_and_3_take_their_rate_from_it(lab: str, cell: str) -> None:
    source = next(one.source for one in read_notebook(LABS / f"{lab}.ipynb").cells if one.id == cell)
    assert "lab.rate_for(" in source and littles_law.rate_for is load.rate_for is rate_for
