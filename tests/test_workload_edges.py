"""The edges of reading: what stands in files that nobody checked, and what can be written again."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

from underload.request import UnderloadError
from underload.workload import (
    Deterministic,
    EmpiricalTokens,
    LognormalTokens,
    OnOff,
    PiecewiseConstant,
    Planned,
    dispersion,
    load_trace,
    read_columns,
    read_plan,
    read_trace,
    write_plan,
)

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
ROW = "2024-05-10 00:00:00.{:06d},10,20"
MOONCAKE = json.dumps({"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]})


def file(folder: Path, text: str) -> Path:
    path = folder / "trace"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_quote_that_is_never_closed_costs_its_own_row(tmp_path: Path) -> None:
    rows = [ROW.format(number) for number in range(2000)]
    rows[1] = '"' + rows[1]
    path = file(tmp_path, "\n".join([AZURE, *rows]))
    with pytest.raises(UnderloadError, match=r"1 malformed rows of 2000: line 3:"):
        read_trace(path)
    trace = read_trace(path, skip_bad=True)
    assert len(trace) == 1999 and "1 malformed rows left out (line 3:" in trace.oddities[0]


def test_a_blank_line_before_the_header_is_none(tmp_path: Path) -> None:
    text = "\n \n" + "\n".join([AZURE, ROW.format(0), ROW.format(1), "bad,1,1"])
    assert len(read_trace(file(tmp_path, text), skip_bad=True)) == 2
    with pytest.raises(UnderloadError, match="line 6"):
        read_trace(file(tmp_path, text))
    assert read_columns(file(tmp_path, "\na,b\n1,2\n"))["b"].tolist() == [2.0]


def test_a_broken_first_row_is_left_out_as_any_other(tmp_path: Path) -> None:
    path = file(tmp_path, "\n".join(["{broken", *[MOONCAKE] * 3]))
    assert len(read_trace(path, skip_bad=True)) == 3
    with pytest.raises(UnderloadError, match="1 malformed rows of 4: line 1"):
        read_trace(path)


@pytest.mark.parametrize(
    ("name", "value"), [("hash_ids", [7.2, 7.9]), ("hash_ids", "12"), ("input_length", True), ("output_length", "1_0")]
)
def test_what_is_no_number_is_not_taken_for_one(tmp_path: Path, name: str, value: object) -> None:
    row = json.dumps(json.loads(MOONCAKE) | {name: value})
    with pytest.raises(UnderloadError, match="1 malformed rows of 2: line 2"):
        read_trace(file(tmp_path, "\n".join([MOONCAKE, row])))


def test_columns_are_all_there_and_ids_stay_text(tmp_path: Path) -> None:
    with pytest.raises(UnderloadError, match="two columns of one name: a, a"):
        read_columns(file(tmp_path, "a,a\n1,2\n"))
    assert read_columns(file(tmp_path, "id\n1_2\n1_3\n"))["id"].tolist() == ["1_2", "1_3"]


def test_an_answer_that_nobody_can_have_measured_is_refused(tmp_path: Path) -> None:
    row = {"input_toks": 5, "output_toks": 1e15, "arrival_time": 0.0, "queued_ts": 0.0, "scheduled_ts": 0.0,
           "first_token_ts": 1.0, "last_token_ts": 2.0}  # fmt: skip
    with pytest.raises(UnderloadError, match="10,000,000 at most"):
        read_trace(file(tmp_path, json.dumps(row)))


def test_a_plan_may_hold_an_array_s_numbers_and_is_written_whole() -> None:
    text = io.StringIO()
    row = Planned(np.float32(0.5), np.int64(5), np.int32(3), turn=np.int64(1), session="s", deadline=np.float32(2))
    assert write_plan([row], text) == 1
    assert Planned.of(json.loads(text.getvalue()), 0) == row


def test_a_plan_s_text_can_be_written_again(tmp_path: Path) -> None:
    good = {"arrival": 0.0, "prompt_tokens": 1, "output_tokens": 1}
    for more in ({"tenant": "\ud800"}, {"session": "\udc00"}, {"segments": [["\ud800", 1]]}):
        path = file(tmp_path, "\n".join(json.dumps(row) for row in (good, good | more)))
        with pytest.raises(UnderloadError, match="line 2.*surrogates"):
            read_plan(path)


def test_a_trace_of_a_plan_says_what_it_does_not_keep(tmp_path: Path) -> None:
    path = tmp_path / "plan.jsonl"
    with path.open("w", encoding="utf-8") as to:
        write_plan([Planned(0.0, 5, 3, priority=2.0, deadline=1.0), Planned(1.0, 5, 3)], to)
    assert "a trace has no priorities and no deadlines; read_plan keeps them" in read_trace(path).oddities
    assert read_plan(path)[0].deadline == 1.0


def test_a_stand_in_stops_where_a_file_would() -> None:
    for trace in (load_trace("synthetic:azure-conv", most=10), load_trace("synthetic:sharegpt-lengths", most=10)):
        assert len(trace) == 10 and trace.oddities[-1] == "only the first 10 rows were read"
        assert len(trace.failed) == len(trace.output_tokens) == 10
    whole = load_trace("synthetic:azure-conv")
    assert whole.prompt_tokens[:10].tolist() == load_trace("synthetic:azure-conv", most=10).prompt_tokens.tolist()


def test_windows_shorter_than_the_allowance_for_ticks_are_counted_as_they_are() -> None:
    instants = np.sort(np.random.default_rng(3).uniform(0, 0.02, 400))
    found = dispersion(instants, 0.001, 0.02)
    counts = np.histogram(instants, np.arange(21) * 0.001)[0]
    assert found.mean == pytest.approx(counts.mean(), rel=0.01)
    assert found.index == pytest.approx(counts.var(ddof=1) / counts.mean(), rel=0.25)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: EmpiricalTokens(["a"]), "lengths must be numbers"),
        (lambda: EmpiricalTokens([1, 2], ["a", "b"]), "weights must be numbers"),
        (lambda: EmpiricalTokens([1, 9e15]), "from 1 to 1,000,000,000, .*got 9e\\+15"),
        (lambda: PiecewiseConstant(["a", "b"], [1]), "edges must rise from 0"),
        (lambda: PiecewiseConstant(None, [1]), "rows of numbers"),
        (lambda: OnOff(10, 1, 1, 1).idc_at(0), "above 0 s, got 0"),
        (lambda: OnOff(10, 1, 1, 1).idc_at(-1), "above 0 s, got -1"),
        (lambda: Deterministic(5).idc_at(0), "above 0 s, got 0"),
        (lambda: read_trace("a\0b"), "is no name of a file"),
    ],
)
def test_what_is_no_number_or_name_is_refused_by_name(call, said: str) -> None:
    with pytest.raises(UnderloadError, match=said):
        call()


def test_a_mean_beyond_all_doubles_is_infinite() -> None:
    assert LognormalTokens(100, 40).mean == np.inf


def test_a_client_s_cv_that_no_law_has_is_refused(tmp_path: Path) -> None:
    for cv in ("1e200", "1e-200"):
        windows = read_trace(file(tmp_path, f"0,1.0,{cv},Gamma,1.0,1.0\n600,1.0,1.0,Gamma,1.0,1.0\n"))
        with pytest.raises(UnderloadError, match="a gamma law has"):
            windows.arrivals(by="cv")
