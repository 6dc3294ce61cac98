"""`underload capacity`: the library's answer under the options of the simulation, a page, JSON, a picture."""

from __future__ import annotations

import contextlib
import io
import json
import re

import pytest

from underload.cli import build_parser, main
from underload.cli.plan_options import ROUTERS, system_of, workload_of
from underload.metrics import Slo
from underload.planning import System, capacity
from underload.simulation import EngineReplica, LinearStepTime, PowerOfChoices
from underload.workload import FixedTokens, GeometricTokens, Lengths, Poisson, Workload

STEP = ["--step-time", "linear:10ms,500us"]
LOAD = ["--prompt", "40", "--output", "geometric:10", "--requests", "80"]
SLO = ["--slo", "ttft=200ms,tpot=30ms", "--attainment", "0.9"]
WORDS = [*STEP, *LOAD, *SLO, "--runs", "2"]


def told(words: list[str]) -> dict:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["capacity", *words, "--json"]) == 0
    return json.loads(out.getvalue())


def test_the_answer_is_the_librarys():
    data = told(WORDS)
    load = Workload(Poisson(1.0), Lengths(FixedTokens(40), GeometricTokens(10)))
    found = capacity(
        load, Slo(ttft=0.2, tpot=0.03), System(EngineReplica(LinearStepTime(0.01, 0.0005))), attainment=0.9,
        requests=80, runs=2,
    )  # fmt: skip
    assert data["capacity_per_s"] == pytest.approx(found.rate) and data["crossings_per_s"] == list(found.crossings)
    assert data["interval_per_s"] == [found.interval.low, found.interval.high]
    assert data["binds"]["term"] == found.binds.term and data["headroom"] is None
    assert data["slo_s"] == {"ttft": 0.2, "tpot": 0.03} and data["attainment"] == 0.9


def test_the_rate_that_was_given_only_says_how_bursts_are_and_changes_nothing_for_poisson():
    assert told([*WORDS, "--rate", "50"])["capacity_per_s"] == pytest.approx(told(WORDS)["capacity_per_s"], rel=1e-6)


def test_the_page_says_load_system_answer_and_what_binds(capsys):
    assert main(["capacity", *WORDS, "--max-num-seqs", "2"]) == 0
    out = capsys.readouterr().out
    for text in ("one replica", "continuous", "0.9 of requests with ttft ≤ 200 ms, tpot ≤ 30 ms", "capacity", "binds",
                 "with 95% confidence", "each run"):  # fmt: skip
        assert text in out
    assert "sequences at their limit" in out
    rate = re.search(r"capacity +(\S+) requests/s", out)
    own = re.search(r"(\S+) times the load's own (\S+) requests/s", out)
    assert rate and own and float(own[1]) * float(own[2]) == pytest.approx(float(rate[1]), rel=2e-3)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--runs", "1"], ["searching   0 %", "9 of 9 parts"]),
        (["--runs", "1", "--replicas", "2", "--down", "1"], ["search 1 of 2", "search 2 of 2"]),
    ],
)
def test_a_terminal_is_told_how_far_the_search_has_come(more, says, monkeypatch, capsys):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    assert main(["capacity", *WORDS, *more]) == 0
    assert all(text in terminal.getvalue() for text in says)
    assert "parts" not in capsys.readouterr().out


def test_who_reads_no_terminal_is_told_the_answer_alone(monkeypatch, capsys):
    assert main(["capacity", *WORDS, "--runs", "1"]) == 0
    assert capsys.readouterr().err == ""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    assert main(["capacity", *WORDS, "--runs", "1", "--json"]) == 0
    assert terminal.getvalue() == ""


def test_a_trace_is_asked_about_as_it_is():
    words = [*STEP, "--trace", "synthetic:azure-conv", "--horizon", "12s", "--limit", "200", "--beyond", "truncate"]
    data = told([*words, *SLO, "--runs", "1"])
    assert data["requests"] > 30 and any("synthetic" in note for note in data["load"]["notes"])
    assert data["probes"][0]["requests"] == data["requests"]


@pytest.mark.slow
def test_headroom_for_a_replica_and_for_a_burst():
    down = told([*WORDS, "--replicas", "2", "--down", "1"])["headroom"]
    assert 0.2 < down["headroom"] < 0.9 and down["what"] == "1 of 2 replicas down"
    burst = told([*WORDS, "--requests", "400", "--burst", "2,5s"])["headroom"]
    assert burst["what"] == "2 times the rate for 5 s" and burst["rate_per_s"] <= burst["normal"]["capacity_per_s"]


@pytest.mark.parametrize("name", ["capacity.svg", "capacity.png"])
def test_a_picture_is_drawn_on_request(tmp_path, name):
    where = tmp_path / name
    told([*WORDS, "--runs", "1", "--picture", str(where)])
    data = where.read_bytes()
    assert data.startswith(b"\x89PNG") if name.endswith("png") else b"requests a second" in data


def test_routers_by_name_and_processes_do_not_change_the_answer():
    for name in ROUTERS:
        args = build_parser().parse_args(["capacity", *WORDS, "--replicas", "3", "--router", name])
        system = system_of(args, workload_of(args).example)
        assert system.replicas == 3 and system.router is not None
    assert isinstance(system_of(
        build_parser().parse_args(["capacity", *WORDS, "--replicas", "3", "--router", "two-choices"]),
        workload_of(args).example,
    ).router, PowerOfChoices)  # fmt: skip
    once, twice = (
        told([*WORDS, "--order", "deadline", "--deadline", "1s"]),
        told([*WORDS, "--order", "deadline", "--deadline", "1s", "--processes", "2"]),
    )
    assert once["probes"] == twice["probes"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([*STEP, *LOAD], "say what is to hold: --slo"),
        ([*LOAD, *SLO], "say what a step takes: --step-time"),
        ([*WORDS, "--attainment", "99"], "attainment is a share between 0 and 1"),
        ([*WORDS, "--attainment", "most"], "--attainment"),
        ([*WORDS, "--horizon", "9s", "--requests", "9"], "give --requests N instead"),
        ([*WORDS, "--runs", "0"], "runs must be"),
        ([*WORDS, "--replicas", "0"], "replicas must be"),
        ([*WORDS, "--router", "random"], "one replica to choose from"),
        ([*WORDS, "--order", "shortest-first", "--predictor", "oracle"], "each run here has its own"),
        ([*WORDS, "--picture", "here.bmp"], "--picture takes a .svg"),
        ([*WORDS, "--picture", "nowhere/x.svg"], "there is no folder 'nowhere'; make it"),
        ([*WORDS, "--requests", "1"], "requests must be a whole number from 2"),
        ([*WORDS, "--rate", "0"], "rate must be above 0"),
        ([*WORDS, "--processes", "100000"], "processes must be"),
        ([*WORDS, "--slo", "ttft=nan"], "must be above 0 seconds"),
        ([*WORDS, "--down", "1"], "with 1 of 1 replicas down nobody serves"),
        ([*WORDS, "--burst", "3"], "--burst takes a factor and a time"),
        ([*WORDS, "--burst", "3,1h"], "take more requests, or a smaller one"),
        ([*WORDS, "--trace", "synthetic:azure-conv", "--rate", "3"], "leave one of them out"),
        ([*WORDS, "--trace", "nowhere.csv"], "--prompt makes a load to order"),
        ([*STEP, *SLO, "--trace", "nowhere.csv"], "neither a file nor a known trace"),
        ([*WORDS, "--num-blocks", "2"], "the KV cache holds 32 tokens"),
        ([*WORDS, "--processes", "2", "--scheduler", "tcp://127.0.0.1:1"], "not both"),
        ([*WORDS, "--warmup", "1"], "warmup is a share"),
        ([*WORDS, "--tolerance", "0"], "tolerance is a share"),
        ([*STEP, *LOAD, "--slo", "p99=3"], "--slo takes each of ttft"),
    ],
)
def test_what_can_be_mended_is_said_on_one_line(words, says, capsys):
    if "--horizon" in words:  # argparse takes one of the two
        words = [word for word in words if word not in ("--requests", "80", "9")]
    assert main(["capacity", *words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and err.startswith("underload: ") and says in err


def test_help_explains(capsys):
    with pytest.raises(SystemExit) as done:
        main(["capacity", "--help"])
    out = capsys.readouterr().out
    assert done.value.code == 0 and "underload capacity --step-time" in out and "squeezed in time" in out
