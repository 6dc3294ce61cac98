"""`describe` and `underload workload`: figures that a person can use, verdicts that claim no more than they know."""

import json
import math

import numpy as np
import pytest

from underload.cli import main
from underload.workload import (
    Deterministic,
    Gamma,
    Lengths,
    LognormalTokens,
    OnOff,
    PiecewiseConstant,
    Poisson,
    Trace,
    Workload,
    describe,
    dispersion,
    read_plan,
    synthetic,
)


def trace_of(arrivals, *, seed=0, n=4_000, step=None) -> Trace:
    instants = arrivals.first(np.random.default_rng(seed), n)
    instants = instants - instants[0]
    if step:
        instants = np.floor(instants / step) * step
    lengths = np.arange(1, len(instants) + 1)
    return Trace("made up", instants, lengths, lengths[::-1], np.zeros(len(instants), bool), step=step)


# ---- dispersion --------------------------------------------------------------------------------------------------


def test_an_index_by_hand():
    # counts 2, 0, 2, 0, … in windows of 1 s: mean 1, variance 1 · 10/9; neighbours differ by 2
    instants = np.repeat(np.arange(0, 10, 2), 2) + np.tile([0.1, 0.2], 5)
    found = dispersion(instants, 1.0, span=10.0)
    assert (found.windows, found.mean) == (10, 1)
    assert found.index == pytest.approx(10 / 9) and found.neighbours == pytest.approx(2)


def test_too_few_windows_or_arrivals_have_no_index():
    assert dispersion(np.arange(100.0), 10.0, span=99.0) is None  # nine whole windows
    assert dispersion(np.arange(0.0, 100.0, 3.0), 1.0) is None  # a third of an arrival in each
    assert dispersion(np.arange(0.0, 100.0, 0.5), 10.0, span=100.0).windows == 10


def test_a_slow_drift_shows_in_the_index_and_not_between_neighbours():
    drift = PiecewiseConstant([0, 1_000, 2_000], [2, 6])
    instants = drift.arrivals(np.random.default_rng(0), 2_000)
    found = dispersion(instants, 4.0, 2_000.0)
    assert found.index == pytest.approx(1 + 4 * 4 / 4, rel=0.15)  # 1 + variance of the rates x window / mean rate
    assert found.neighbours == pytest.approx(1, abs=0.3)


# ---- the verdict -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arrivals", "says"),
    [
        (Poisson(5), "Nothing here speaks against it"),
        (Gamma(5, 0.1), "it comes in bursts"),
        (OnOff(50, 0, 5, 45), "it comes in bursts"),
        (OnOff(7, 3, 200, 200), "its rate wanders"),
        (Deterministic(5.01), "more regular"),
        (Gamma(5, 8), "more regular"),
    ],
)
def test_the_verdict_names_what_is_wrong(arrivals, says):
    assert says in describe(trace_of(arrivals)).verdict


def test_a_poisson_process_is_seldom_accused():
    accused = sum(
        "Nothing here speaks" not in describe(trace_of(Poisson(5), seed=s, n=1_500)).verdict for s in range(60)
    )
    assert accused <= 4  # at most 1 % by the counts and 0.3 % by the CV are expected: 0.8 of 60


def test_the_verdict_says_what_it_could_not_have_seen():
    said = describe(trace_of(Poisson(5), n=400)).verdict
    assert "would not have shown" in said and "longer windows were not looked at" in said
    assert "Too little to tell: 20 arrivals" in describe(trace_of(Poisson(5), n=20)).verdict


def test_a_coarse_clock_is_not_taken_for_bursts():
    found = describe(trace_of(Poisson(5), step=3.0))
    assert found.cv_is_artefact and found.cv > 2
    assert [d.window for d in found.dispersions][:2] == [3.0, 12.0]  # whole steps only
    assert "Nothing here speaks against it" in found.verdict
    assert "artefact of the clock" in str(found)
    sparse = describe(trace_of(Poisson(0.05), step=1.0))
    assert not sparse.cv_is_artefact and sparse.cv == pytest.approx(1, abs=0.1)


# ---- figures -----------------------------------------------------------------------------------------------------


def test_figures_are_those_of_the_rows():
    instants = np.concatenate([np.arange(0, 60, 2.0), np.arange(60, 120, 0.5), [500.0]])
    trace = Trace(
        "t", instants, np.arange(1, 152), np.arange(1, 152), np.zeros(151, bool), labels=("a",) * 150 + ("b",)
    )
    found = describe(trace)
    assert (found.rows, found.failed, found.span) == (151, 0, 500)
    assert found.rate == pytest.approx(0.3) and found.peak == pytest.approx(2.0)  # the second minute
    assert found.longest_gap == pytest.approx(380.5)
    assert found.prompt.percentiles[50] == 76 and found.longest_prompt == 151
    assert found.prompt.percentiles[99] is None  # 151 rows carry no p99
    assert found.rank_correlation == pytest.approx(1)
    assert found.labels == {"a": 150, "b": 1}
    data = json.loads(json.dumps(found.as_dict()))
    assert data["rate_per_s"] == found.rate and data["prompt_tokens"]["p99"] is None


def test_a_record_of_one_row_or_without_lengths_is_described():
    one = Trace("t", np.zeros(1), np.zeros(1, int), np.zeros(1, int), np.ones(1, bool))
    assert "1, of which 1 failed" in str(describe(one))
    twice = Trace("t", np.zeros(60), np.ones(60, int), np.ones(60, int), np.zeros(60, bool))
    found = describe(twice)
    assert found.rate is None and found.cv is None and "Too little to tell" in str(found)


# ---- on the command line -----------------------------------------------------------------------------------------


def run(capsys, *words):
    code = main(["workload", *words])
    return code, *capsys.readouterr()


def test_describe_prints_and_as_json_gives_the_same_figures(capsys):
    code, out, _ = run(capsys, "describe", "synthetic:azure-conv")
    assert code == 0 and "synthetic: made here, not recorded" in out and "Is it Poisson?" in out
    assert max(map(len, out.splitlines())) <= 130
    code, out, _ = run(capsys, "describe", "synthetic:azure-conv", "--json")
    data = json.loads(out)
    expected = describe(synthetic("azure-conv"))
    assert code == 0 and data["rate_per_s"] == pytest.approx(expected.rate) and data["synthetic"] is True
    assert data["dispersion"][2]["index"] == pytest.approx(expected.dispersions[2].index)


@pytest.mark.parametrize(("name", "ending"), [("azure-code", "svg"), ("sharegpt-lengths", "png"), ("burstgpt", "pdf")])
def test_describe_draws(name, ending, tmp_path, capsys):
    path = tmp_path / f"drawn.{ending}"
    code, _, err = run(capsys, "describe", f"synthetic:{name}", "--plot", str(path))
    assert code == 0 and "drawn in" in err
    start = path.read_bytes()[:5]
    assert start.startswith({"svg": b"<svg", "png": b"\x89PNG", "pdf": b"%PDF"}[ending])


def test_describe_draws_windows_and_measured_runs_and_refuses_laws(tmp_path, capsys):
    windows = tmp_path / "w.csv"
    windows.write_text("0,1,1,Gamma,1,1\n600,2,3,Weibull,0.5,1\n1200,0,0,,0,0\n")
    code, out, _ = run(capsys, "describe", str(windows), "--plot", str(tmp_path / "w.svg"))
    assert code == 0 and "3 of 10 min" in out and "1 empty" in out and (tmp_path / "w.svg").is_file()
    measured = tmp_path / "m.jsonl"
    row = {"input_toks": 5, "output_toks": 3, "arrival_time": 1.0, "queued_ts": 2.0, "scheduled_ts": 2.0}
    row |= {"first_token_ts": 2.5, "last_token_ts": 3.0}
    late = {key: value + 1 if "t" in key[-4:] and "toks" not in key else value for key, value in row.items()}
    measured.write_text(json.dumps(row) + "\n" + json.dumps(late) + "\n")
    code, out, _ = run(capsys, "describe", str(measured), "--plot", str(tmp_path / "m.svg"))
    assert code == 0 and "TTFT" in out and "even spread" in out
    laws = tmp_path / "l.json"
    laws.write_text('{"0": {"input_tokens": "{5: 1.0}", "output_tokens": "{7: 1.0}"}}')
    code, out, err = run(capsys, "describe", str(laws), "--plot", str(tmp_path / "l.svg"))
    assert code == 2 and "no requests to draw" in err
    assert run(capsys, "describe", str(laws))[0] == 0


def test_list_says_what_is_here(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("UNDERLOAD_TRACES", str(tmp_path))
    (tmp_path / "BurstGPT_1.csv").write_text("x")
    code, out, _ = run(capsys, "list")
    rows = {line.split()[0]: line for line in out.splitlines()[1:]}
    assert code == 0 and str(tmp_path) in out
    assert " here " in rows["burstgpt"] and "synthetic stand-in" in rows["azure-conv"]
    assert "not here" in rows["vllm-rtx4090-llama31-8b"]
    assert len(json.loads(run(capsys, "list", "--json")[1])) == len(rows)


@pytest.mark.parametrize("name", ["plan.jsonl", "plan.jsonl.gz"])
def test_what_generate_writes_is_the_plan_of_the_library(name, tmp_path, capsys):
    path = tmp_path / name
    words = ["--rate", "5", "--arrivals", "gamma", "--burstiness", "0.5", "--horizon", "1min", "--seed", "3"]
    words += ["--prompt", "lognormal:mean=80,cv=1", "--output", "7", "--limit", "300", "--beyond", "truncate"]
    code, out, err = run(capsys, "generate", *words, "--out", str(path))
    assert code == 0 and out == "" and "requests in" in err
    lengths = Lengths(LognormalTokens.of(80, 1), 7, limit=300, beyond="truncate")
    assert read_plan(path) == Workload(Gamma(5, 0.5), lengths).plan(3, horizon=60)
    assert run(capsys, "describe", str(path))[0] == 0


@pytest.mark.parametrize(
    "words",
    [
        ["--arrivals", "deterministic"],
        ["--arrivals", "onoff", "--on", "10", "--off", "30"],
        ["--arrivals", "diurnal", "--swing", "0.9", "--period", "100"],
        ["--groups", "3", "--prefix", "uniform:10:20", "--skew", "1"],
        ["--turns", "geometric:3", "--think", "500ms", "--system", "10", "--limit", "4000"],
        ["--prompt", "lognormal:median=80,sigma=1", "--output", "geometric:9", "--correlation", "0.5"],
        ["--like", "synthetic:sharegpt-lengths"],
    ],
)
def test_generate_knows_every_kind(words, capsys):
    code, out, _ = run(capsys, "generate", "--rate", "4", "--requests", "30", *words)
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and len(rows) >= 30 and all(row["prompt_tokens"] > 0 for row in rows)
    again = run(capsys, "generate", "--rate", "4", "--requests", "30", *words)[1]
    assert again == out


def test_on_off_keeps_the_mean_rate(capsys):
    words = ["--arrivals", "onoff", "--on", "1", "--off", "3", "--horizon", "2000"]
    out = run(capsys, "generate", "--rate", "4", *words)[1]
    expected, index = 8_000, OnOff(16, 0, 1, 3).idc_at(math.inf)
    assert len(out.splitlines()) == pytest.approx(expected, abs=4 * math.sqrt(expected * index))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["describe", "no-such"], "neither a file nor a known trace"),
        (["describe", "synthetic:burstgpt", "--plot", "x.gif"], "--plot takes"),
        (["describe", "synthetic:burstgpt", "--rows", "0"], "--rows must be"),
        (
            ["generate", "--rate", "1", "--requests", "1", "--burstiness", "1"],
            "--burstiness belongs to --arrivals gamma",
        ),
        (["generate", "--rate", "1", "--requests", "1", "--arrivals", "gamma"], "needs --burstiness"),
        (["generate", "--rate", "1", "--requests", "1", "--prompt", "gauss:1"], "--prompt takes a number, or uniform"),
        (["generate", "--rate", "1", "--requests", "1", "--groups", "2", "--turns", "2"], "give one"),
        (["generate", "--rate", "1", "--requests", "1", "--skew", "1"], "--skew belongs to --groups"),
        (
            ["generate", "--rate", "1", "--requests", "1", "--turns", "2", "--prefix", "9"],
            "--prefix belongs to --groups",
        ),
        (["generate", "--rate", "1", "--requests", "1", "--groups", "2", "--think", "9"], "--think belongs to --turns"),
        (["generate", "--rate", "1", "--requests", "1", "--system", "9"], "--system belongs to --turns"),
        (["generate", "--rate", "1", "--requests", "1", "--prompt", ""], "--prompt takes a number"),
        (
            ["generate", "--rate", "1", "--requests", "1", "--like", "synthetic:burstgpt", "--correlation", "0.5"],
            "leave out --correlation",
        ),
        (["generate", "--rate", "1", "--requests", "1", "--turns", "2", "--beyond", "redraw"], "leave --beyond out"),
        (["generate", "--rate", "1", "--requests", "1", "--limit", "100"], "beyond="),
        (["generate", "--rate", "-1", "--requests", "1"], "rate must be above 0"),
        (["generate", "--rate", "1", "--horizon", "soon"], "--horizon takes a time"),
        (["generate", "--rate", "1", "--requests", "1", "--out", "/no/such/folder/x"], "/no/such/folder/x"),
    ],
)
def test_what_a_user_can_mend_is_told_on_one_line(words, says, capsys):
    code, _, err = run(capsys, *words)
    assert code == 2 and says in err and err.count("\n") == 1
