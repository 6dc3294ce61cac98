"""The two-minute notebook: its rate, its panel and its summary, on made-up numbers."""

import json

import pytest

from underload.labs import start_here as lab
from underload.request import StepRecord


class Run:
    steps = (
        StepRecord(start=0, duration=0.5, batch_size=1, prefill_tokens=9),
        StepRecord(start=1, duration=0.1, batch_size=4),
        StepRecord(start=2, duration=0.2, batch_size=4),
        StepRecord(start=3, duration=9.0, batch_size=4),
    )


def test_rate_is_one_over_the_median_decode_step():
    assert lab.rate(Run()) == pytest.approx(5)  # the prefill does not count, and one disturbed step does not either


def test_the_recorded_run_is_complete_and_consistent():
    rates = lab.recorded_rates()
    assert list(rates) == [1, 2, 4, 8, 16, 32, 64]
    for users, (each, together) in rates.items():
        assert together == pytest.approx(users * each, rel=0.01)
    assert {"date", "machine", "command", "other_load"} <= set(lab.recorded())


def test_the_panel_serves_the_number_that_was_clicked_and_shows_text_as_text():
    pytest.importorskip("ipywidgets")
    asked = []

    def serve(users, *, on_token=None):
        asked.append(users)
        on_token(0, "<b>loud</b>", 7, None)
        on_token(1, "another user", 7, None)
        return 10.0, 40.0

    buttons, shown = lab.panel(serve, users=(1, 4)).children
    buttons.value = 4
    assert asked == [4] and not buttons.disabled
    assert "&lt;b&gt;loud" in shown.value and "<b>loud" not in shown.value
    assert "another user" not in shown.value
    assert "10 tokens/s" in shown.value and "40 tokens/s" in shown.value


def test_the_panel_works_again_after_a_failure():
    pytest.importorskip("ipywidgets")

    def serve(users, *, on_token=None):
        raise RuntimeError("no model")

    buttons, _ = lab.panel(serve, users=(1, 4)).children
    with pytest.raises(RuntimeError):
        buttons.value = 4
    assert not buttons.disabled


def test_the_picture_says_its_numbers(capsys):
    rates = {1: (100.0, 100.0), 32: (20.0, 640.0)}
    html = lab.draw(rates, {"cpu": "a machine", "gpu": None})._repr_html_()
    assert "from 100 to 20 tokens a second" in html and "a machine" in html
    lab.summary(rates, 30)
    said = capsys.readouterr().out
    assert "30 %" in said and "20 % (and together 6.4 times" in said
    lab.summary(rates, None)
    assert "you made no guess" in capsys.readouterr().out
    assert json.dumps(lab.recorded())
