"""The pictures of goodput say what the formulas say, and answer what they ask."""

from __future__ import annotations

import math
from typing import Any

import pytest
from scipy.optimize import minimize_scalar

from underload import figures
from underload.figures.goodput import goodput_at_the_door, in_time, promised
from underload.figures.moving import Commit
from underload.figures.wording import keep_units
from underload.queueing import mm1, mm1k, mmc


def rows(shown: figures.Picture, *names: str) -> list[dict[str, Any]]:
    assert shown.data is not None
    return [dict(zip(names, values)) for values in zip(*(shown.data[name] for name in names), strict=True)]


def test_a_promise_is_kept_up_to_where_its_percentile_reaches_the_limit() -> None:
    assert promised(1, 5.0, 99) == pytest.approx(1 - math.log(100) / 5, rel=1e-9)
    for servers, limit, q in ((2, 6.0, 99), (8, 5.0, 90), (32, 10.0, 99)):
        load = promised(servers, limit, q)
        assert mmc(load * servers, 1.0, servers=servers).sojourn_quantile(q) == pytest.approx(limit, rel=1e-6)


def test_a_limit_below_the_percentile_of_the_service_is_kept_at_no_load() -> None:
    assert promised(1, 4.6, 99) == 0 and promised(32, 4.6, 99) == 0
    assert promised(1, 4.7, 99) > 0


def test_past_a_load_of_one_nobody_is_in_time() -> None:
    assert in_time(1.0, 4, 1e6) == 0 and in_time(1.5, 1, 10.0) == 0
    assert in_time(0.5, 1, 10.0) == pytest.approx(1 - math.exp(-5))


NAMES = ("In time means within (s)", "Servers on one line", "Load of each", "in time, of all that come (%)")


def test_every_setting_is_the_formula() -> None:
    shown = figures.goodput_against_load(servers=(1, 4), limits=(3, 8), loads=(0.5, 0.9, 1.1), start=(3, 1, 0.5, 99))
    found = rows(shown, *NAMES, "goodput of each server (requests/s)", "promised percentile (s)", "The promise is for")
    assert len(found) == 2 * 2 * 3 * 2
    for row in found:
        limit, servers, load, share = (row[name] for name in NAMES)
        assert row["goodput of each server (requests/s)"] == pytest.approx(load * share / 100)
        if load < 1:
            law = mmc(load * servers, 1.0, servers=servers)
            assert share == pytest.approx(100 * (1 - law.sojourn_tail(limit)))
            q = 99 if row["The promise is for"].startswith("99") else 90
            assert row["promised percentile (s)"] == pytest.approx(law.sojourn_quantile(q))
        else:
            assert share == 0 and math.isinf(row["promised percentile (s)"])


def test_the_peak_that_it_names_is_the_peak() -> None:
    found = minimize_scalar(lambda x: x * (mm1(x, 1.0).sojourn_tail(5.0) - 1), bounds=(0.1, 0.99), method="bounded")
    html = figures.goodput_against_load(start=(5, 1, 0.3, 99)).html
    assert found.x == pytest.approx(0.6993, abs=1e-4)
    assert keep_units(f"The most in time is {-found.fun:.3f} requests/s, at a load of 0.7.") in html
    assert "The promise is broken" in html


def test_a_guess_at_the_load_is_answered() -> None:
    commit = Commit("At which load?", values=[0.5, 0.7, 0.9], answer=0.7, mark=lambda x: figures.Mark(x, 0.5))
    html = figures.goodput_against_load(start=(5, 1, 0.3, 99), commit=commit).html
    assert "At which load?" in html and 'class="ul-guess"' in html


def test_the_door_is_a_queue_with_so_many_places() -> None:
    queue = mm1k(1.5, 1.0, buffer=2)
    assert goodput_at_the_door(1.5, 3, 5.0) == pytest.approx(1.5 * (1 - queue.prob_lost) * (1 - queue.sojourn_tail(5)))
    assert max(range(1, 50), key=lambda most: goodput_at_the_door(1.5, most, 5.0)) == 3


def test_every_setting_of_the_door_is_the_formula() -> None:
    shown = figures.refusing_at_the_door(inside=(1, 3, 8), limits=(5,), loads=(0.5, 1.5), start=(8, 5, 1.5))
    names = ("Inside at most", "In time means within (s)", "Requests a second")
    for row in rows(shown, *names, "in time (requests/s)", "let in (requests/s)", "turned away (%)"):
        most, limit, load = (row[name] for name in names)
        assert row["in time (requests/s)"] == pytest.approx(goodput_at_the_door(load, most, limit), abs=5e-4)
        assert row["let in (requests/s)"] == pytest.approx(load * (1 - row["turned away (%)"] / 100))
    assert "3 would be best, with 0.813" in shown.html
    best = figures.refusing_at_the_door(inside=(1, 3, 8), limits=(5,), loads=(1.5,), start=(3, 5, 1.5)).html
    assert "the best limit here" in best


@pytest.mark.parametrize(
    "wrong",
    [{"servers": ()}, {"limits": (0,)}, {"loads": (-1.0,)}, {"percentiles": (100,)}, {"percentiles": ()}],
)
def test_loads_that_are_none_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(figures.FigureError):
        figures.goodput_against_load(**wrong)


@pytest.mark.parametrize("wrong", [{"inside": ()}, {"inside": (0, 1)}, {"limits": (-1,)}, {"loads": (0.0,)}])
def test_doors_that_are_none_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(figures.FigureError):
        figures.refusing_at_the_door(**wrong)
