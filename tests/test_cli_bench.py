"""`underload bench decode`: a row for each batch size, a line through them, and what it was measured on."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import underload.decoder
from underload.cli import main
from underload.cli.bench import batch_sizes, fitted
from underload.decoder import Ceilings
from underload.request import UnderloadError
from underload.shapes import decode_cost

CEILINGS = Ceilings(1e9, 1e10, "float32", "a test", 1)


@pytest.fixture
def bench(tiny_checkpoint, monkeypatch):
    monkeypatch.setattr(underload.decoder, "ceilings", lambda *_: CEILINGS)
    model = str(tiny_checkpoint("llama"))
    return ["bench", "decode", "--model", model, "--path", "plain", "--steps", "2", "--warmup", "0", "--context", "9"]


def test_json_has_a_row_for_each_size_and_the_line_through_them(bench, tiny_checkpoint, capsys):
    assert main([*bench, "--batch", "4,1,2,2", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    (run,) = data["paths"]
    assert run["path"] == "plain" and [row["batch"] for row in run["rows"]] == [1, 2, 4]
    shape = underload.decoder.load_model(tiny_checkpoint("llama"), path="plain").shape
    for row in run["rows"]:
        assert row["step_s_min"] <= row["step_s"] <= row["step_s_max"]
        assert row["tokens_per_s"] * row["step_s"] == pytest.approx(row["batch"])
        cost = decode_cost(shape, row["batch"], 9)
        assert row["bandwidth_fraction"] * CEILINGS.read_bandwidth * row["step_s"] == pytest.approx(cost.bytes)
        assert row["flops_fraction"] * CEILINGS.flops * row["step_s"] == pytest.approx(cost.flops)
    assert run["line"] == fitted(run["rows"])
    assert data["context"] == 9 and data["machine"]["cores"] and data["parameters"] == shape.num_parameters


def test_the_table_says_what_was_measured_and_on_what(bench, capsys):
    assert main([*bench, "--batch", "1,2,3"]) == 0
    out = capsys.readouterr().out
    for words in (
        "9 tokens of context",
        "threads",
        "ceilings",
        "1.0 GB/s",
        "ms/step",
        "T(B) = o + Bt",
        "(rms) off the line",
    ):
        assert words in out
    assert sum(line.startswith("plain ") for line in out.splitlines()) == 3


def test_two_sizes_make_a_line_that_proves_nothing_and_one_makes_none(bench, capsys):
    assert main([*bench, "--batch", "1,2"]) == 0
    assert "two points always lie on a line" in capsys.readouterr().out
    assert main([*bench, "--batch", "2"]) == 0
    assert "o + Bt" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--batch", "0,1"], "0,1"),
        (["--batch", "1,x"], "1,x"),
        (["--batch", ""], "--batch"),
        (["--path", "slow"], "slow"),
        (["--steps", "0"], "--steps"),
        (["--context", "9999"], "9999"),
        (["--batch", "99999999999999999999"], "99,999,999,999,999,999,999"),
        (["--model", "shape:nope"], "nope"),
    ],
)
def test_what_can_be_mended_is_one_line_and_exit_code_2(bench, capsys, options, named):
    assert main([*bench, *options]) == 2
    err = capsys.readouterr().err
    assert named in err and err.count("\n") == 1


def test_a_path_asked_for_twice_is_measured_once(bench, capsys):
    assert main([*bench, "--batch", "1", "--path", "plain, plain", "--json"]) == 0
    assert [run["path"] for run in json.loads(capsys.readouterr().out)["paths"]] == ["plain"]


@given(st.lists(st.integers(1, 10**6), min_size=1))
def test_batch_sizes_come_out_ascending_each_once(sizes):
    assert batch_sizes(",".join(map(str, sizes))) == sorted(set(sizes))


@given(st.text(alphabet="0123456789,-. x", max_size=8))
def test_any_text_is_sizes_or_a_refusal(text):
    try:
        assert min(batch_sizes(text)) >= 1
    except UnderloadError as refused:
        assert repr(text) in str(refused)


def test_a_fit_of_steps_on_a_line_leaves_nothing_over():
    line = fitted([{"batch": b, "step_s": 0.02 + 0.001 * b} for b in (1, 4, 16)])
    assert line["o_s"] == pytest.approx(0.02) and line["t_s"] == pytest.approx(0.001)
    assert line["relative_residual_rms"] == pytest.approx(0, abs=1e-9)
    off = fitted([{"batch": 1, "step_s": 1.0}, {"batch": 2, "step_s": 3.0}, {"batch": 3, "step_s": 3.0}])
    assert off["relative_residuals"][1] > 0 > off["relative_residuals"][0]
