"""`underload compare`: systems under the same loads, with the difference and its interval."""

from __future__ import annotations

import contextlib
import io
import json

import pytest

from underload.cli import build_parser, main
from underload.cli.compare import _alternative, _beside, _between, _change, _in_full

STEP = ["--step-time", "linear:10ms,500us"]
LOAD = ["--rate", "10", "--requests", "100", "--prompt", "40", "--output", "geometric:10"]
WORDS = [*STEP, *LOAD, "--slo", "ttft=200ms,tpot=30ms", "--attainment", "0.9", "--runs", "2"]
SLOTS = ["--against", "two slots: --max-num-seqs 2"]


def told(words: list[str]) -> dict:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["compare", *words, "--json"]) == 0
    return json.loads(out.getvalue())


def test_alternatives_differ_in_what_they_say_and_in_nothing_else():
    data = told([*WORDS, "--order", "shortest-first", *SLOTS, "--against", "again: --max-num-seqs 256"])
    base, slots, again = data["rows"]
    assert [row["system"] for row in data["rows"]] == ["base", "two slots", "again"]
    assert all("shortest-first" in words for words in data["systems"].values())
    assert [words.rpartition("; ")[2] for words in data["systems"].values()] == [
        "--max-num-seqs 256", "--max-num-seqs 2", "--max-num-seqs 256",
    ]  # fmt: skip
    assert again["goodput_change"] == 0.0 and again["ttft"] == base["ttft"]
    assert slots["ttft_change"] > 0 and slots["ttft"] == pytest.approx(base["ttft"] + slots["ttft_change"])
    assert base["rate"] == pytest.approx(10, rel=0.3) and len({row["rate"] for row in data["rows"]}) == 1


def test_loads_and_a_picture(tmp_path):
    where = tmp_path / "both.svg"
    data = told([*WORDS, "--loads", "0.5,1.2", *SLOTS, "--name", "many", "--picture", str(where)])
    assert [(row["system"], round(row["load"], 6)) for row in data["rows"]] == [
        ("many", 0.5), ("many", 1.2), ("two slots", 0.5), ("two slots", 1.2),
    ]  # fmt: skip
    assert "Goodput" in where.read_text(encoding="utf-8")
    one = tmp_path / "one.png"
    told([*WORDS, *SLOTS, "--runs", "1", "--picture", str(one)])
    assert one.read_bytes().startswith(b"\x89PNG")


def test_the_page_has_figures_intervals_and_differences(capsys):
    assert (
        main(["compare", *WORDS, *SLOTS, "--runs", "5", "--against", "again: --max-num-seqs 256", "--processes", "2"])
        == 0
    )
    out = capsys.readouterr().out
    for text in (
        "latencies are p90",
        "goodput",
        "two slots against base: ",
        "TTFT +",
        "again against base: no difference",
    ):
        assert text in out
    base, slots, again = out.splitlines()[1:4]
    assert base.startswith("base         one replica; continuous") and base.endswith("; --max-num-seqs 256")
    assert slots == "two slots    as base, but --max-num-seqs 2"
    assert again == "again        the same as base"


def test_systems_are_told_apart_by_what_differs_and_is_said_once():
    def said(*words):
        base, *others = [build_parser().parse_args(["compare", *STEP, *words])]
        for text in ("a: --replicas 2 --no-prefix-caching", "b: --no-chunked-prefill --step-time 'linear:9ms, 1ms'"):
            others.append(_alternative(text, base)[1])
        return _in_full(base, [base, *others]), [_beside(one, base, "base") for one in others]

    words, beside = said()
    assert words.endswith("; linear:10ms,500us")  # nothing else is untold
    assert beside == [
        "as base, but --replicas 2 --no-prefix-caching",
        "as base, but --step-time 'linear:9ms, 1ms' --no-chunked-prefill",
    ]
    assert said("--no-prefix-caching")[1][0] == "as base, but --replicas 2"


@pytest.mark.parametrize(
    ("change", "says"),
    [(0.012, "met SLO +1.2%"), (-0.0004, "met SLO −0.04%"), (-1e-5, "met SLO −0.001%")],
)
def test_a_difference_that_is_one_is_not_printed_as_0(change, says):
    row = {"attainment_change": change, "attainment_change_low": change / 2, "attainment_change_high": 2 * change}
    row = row if change > 0 else row | {"attainment_change_low": 2 * change, "attainment_change_high": change / 2}
    assert _change("attainment", "met SLO", row) == says


def test_an_end_that_is_0_has_no_sign():
    assert _between("attainment", 0.2, -0.0, 0.5) == "0.0%–50.0%"


def test_replicas_routers_and_step_times_are_alternatives_too():
    data = told([*WORDS, "--replicas", "2", "--against", "random: --router random", "--against",
                 "slow: --step-time 'linear:20ms, 1ms'"])  # fmt: skip
    assert "2 replicas, random" in data["systems"]["random"] and "linear:20ms, 1ms" in data["systems"]["slow"]
    assert data["rows"][2]["tpot"] > 1.5 * data["rows"][0]["tpot"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([*WORDS, "--against", "no options"], "takes a name and options"),
        ([*WORDS, "--against", ": --max-num-seqs 2"], "takes a name and options"),
        ([*WORDS, "--against", "a: --max-num-seqs 'two"], "close its quotes"),
        ([*WORDS, "--against", "a: --rate 3"], "--against: unrecognized arguments: --rate 3; it takes step time"),
        ([*WORDS, "--against", "a: --batching sometimes"], "invalid choice"),
        ([*WORDS, *SLOTS, *SLOTS], "two systems are called 'two slots'"),
        ([*WORDS, "--against", "a: --num-blocks 1"], "the KV cache holds 16 tokens"),
        ([*WORDS, "--num-blocks", "90", "--against", "a: --kv-memory 2GB"], "leave one of them out"),
        ([*WORDS, "--loads", "0.5,many"], "--loads"),
        ([*WORDS, "--loads", "0"], "a load must be above 0"),
        ([*STEP, *LOAD], "say what is to hold"),
        ([*WORDS, "--requests", "1"], "no rate that could be scaled"),
        ([*WORDS, "--rate", "inf"], "no rate that could be scaled"),
        ([*WORDS, "--name", " "], "--name is of the first system"),
        ([*WORDS, "--picture", "nowhere/x.svg"], "there is no folder 'nowhere'"),
    ],
)
def test_what_can_be_mended_is_said_on_one_line(words, says, capsys):
    assert main(["compare", *words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and err.startswith("underload: ") and says in err


def test_an_interval_is_in_the_unit_of_its_value() -> None:
    assert _between("tpot", 0.278, -0.5, 1.43) == "0–1,430" and _between("ttft", 1.2, 0.9, 1.5) == "0.9–1.5"
    assert _between("tpot", 0.0278, 0.02, 0.03) == "20–30" and _between("tpot", 2e-4, 1e-4, 3e-4) == "100–300"
