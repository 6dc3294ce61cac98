"""`underload simulate`: a load, policies by name, and a report that agrees with the records it is made of."""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json

import pytest

from underload import metrics
from underload.cli import build_parser, main
from underload.cli.report import report_of, slo_of
from underload.cli.serve_options import load_of, policies_of
from underload.cli.simulate import num_blocks_of, step_time_of
from underload.request import UnderloadError
from underload.scheduling import (
    Continuous,
    Deadline,
    FairShare,
    Greedy,
    LeastComputed,
    Noisy,
    Oracle,
    PredictedPeak,
    Priority,
    ReserveAll,
    ShortestFirst,
    SizeOrTimeout,
    Static,
    Watermark,
)
from underload.shapes import device, shape
from underload.simulation import LinearStepTime, RooflineStepTime, simulate_serving
from underload.workload import FixedTokens, Lengths, Planned, Poisson, Workload, read_plan, write_plan

LOAD = ["--rate", "20", "--requests", "60", "--prompt", "40", "--output", "uniform:5:30"]
STEP = ["--step-time", "linear:5ms,100us"]


def options(*words: str) -> argparse.Namespace:
    return build_parser().parse_args(["simulate", *STEP, *words])


def told(words: list[str]) -> dict:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["simulate", *words, "--json"]) == 0
    return json.loads(out.getvalue())


def refused(words: list[str], capsys) -> str:
    assert main(["simulate", *words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and err.startswith("underload: ")
    return err


# ---- what it says ----------------------------------------------------------------------------------------------------


def test_the_report_is_what_the_same_run_of_the_library_comes_to():
    data = told([*STEP, *LOAD, "--slo", "ttft=50ms,tpot=8ms", "--seed", "3"])
    load = load_of(options(*LOAD, "--seed", "3"))
    run = simulate_serving(load.planned, LinearStepTime(0.005, 0.0001), seed=3, max_num_batched_tokens=2048)
    slo = metrics.Slo(ttft=0.05, tpot=0.008)
    summary = metrics.summary(run.timelines, slo=slo)
    assert data["requests"] == data["answered"] == 60 == len(run.requests)
    assert data["throughput_tokens_per_s"] == pytest.approx(summary.throughput)
    assert data["goodput_requests_per_s"] == pytest.approx(summary.goodput) and 0 < data["slo_attainment"] < 1
    for name, found in data["latencies_s"].items():
        assert found["mean"] == pytest.approx(summary.latencies[name].mean)
        assert found["p50"] == pytest.approx(summary.latencies[name].percentiles[50])
    assert data["steps"]["count"] == len(run.steps)
    assert sum(data["steps"]["tokens"].values()) == sum(step.num_tokens for step in run.steps)
    assert data["steps"]["busy_fraction"] <= 1
    assert data["kv"]["peak_used"] == max(step.blocks_used for step in run.steps) / 100_000


def test_a_percentile_is_shown_with_its_interval_or_not_at_all():
    few, many = told([*STEP, *LOAD]), told([*STEP, *LOAD, "--requests", "1500"])
    assert few["latencies_s"]["TTFT"]["p99"] is None and few["latencies_s"]["TTFT"]["p50"] is not None
    found = many["latencies_s"]["TTFT"]
    for q in ("p50", "p95", "p99"):
        low, high = found["intervals_95"][q]
        assert low <= found[q] <= high


def test_the_page_says_load_engine_and_figures(capsys):
    words = [*STEP, *LOAD, "--batching", "greedy", "--batch-size", "4", "--slo", "e2e=1s", "--warmup", "500ms"]
    assert main(["simulate", *words]) == 0
    out = capsys.readouterr().out
    for text in ("poisson arrivals at 20/s", "greedy, size 4", "TTFT", "padding", "goodput", "blocks of 16", "warm-up"):
        assert text in out
    assert all(len(line) <= 100 for line in out.splitlines() if line.startswith((" ", "TTFT", "E2E")))


def test_the_warm_up_is_cut_by_arrival_and_counted():
    whole, cut = told([*STEP, *LOAD]), told([*STEP, *LOAD, "--warmup", "1"])
    arrivals = [one.arrival for one in load_of(options(*LOAD)).planned]
    late = sum(arrival >= 1 for arrival in arrivals)
    assert whole["requests"] == 60 and cut["requests"] == late < 60
    assert cut["warmup"]["requests_left_out"] == 60 - late and cut["latencies_s"]["E2E"]["count"] == late


def test_who_is_turned_away_is_counted_and_does_not_look_fast():
    data = told([*STEP, *LOAD, "--rate", "200", "--max-num-seqs", "1", "--max-queue", "3", "--slo", "ttft=10s"])
    assert data["refused"] > 10 and data["answered"] + data["refused"] == 60
    assert data["slo_attainment"] == data["answered"] / 60
    assert "max_queue is 3" in data["first_error"]
    late = told([*STEP, *LOAD, "--rate", "200", "--max-num-seqs", "1", "--max-wait", "100ms"])
    assert late["refused"] > 10 and max(late["latencies_s"]["queue time"]["mean"], 0) <= 0.1


def test_a_small_pool_preempts_and_a_shared_prefix_hits():
    tight = told([*STEP, *LOAD, "--rate", "200", "--num-blocks", "40", "--block-size", "4"])
    assert tight["preemptions"] >= tight["preempted_requests"] > 0 and tight["kv"]["peak_used"] > 0.9
    swapped = ["--num-blocks", "40", "--block-size", "4", "--preemption", "swap", "--host-blocks", "99"]
    free, paid = (told([*STEP, *LOAD, "--rate", "200", *swapped, "--swap-time", each]) for each in ("0s", "1ms"))
    assert free["preemptions"] > 0 and paid["window_s"][1] > free["window_s"][1] + 0.001
    sharing = [*STEP, *LOAD, "--groups", "2", "--prefix", "64"]
    assert told(sharing)["cached_prompt_tokens"] > 1000
    assert told([*sharing, "--no-prefix-caching"])["cached_prompt_tokens"] == 0


def test_policies_change_the_run_and_never_the_load():
    base = [*STEP, *LOAD, "--rate", "100", "--num-blocks", "60"]
    runs = [
        told([*base, *more])
        for more in (
            [],
            ["--batching", "static", "--batch-size", "4"],
            ["--batching", "size-or-timeout", "--batch-size", "8", "--timeout", "50ms"],
            ["--no-chunked-prefill"],
            ["--prefill", "prefill-first"],
            ["--order", "shortest-first", "--predictor", "noisy:0.7"],
            ["--admission", "reserve-all"],
            ["--admission", "predicted-peak", "--predictor", "oracle", "--max-tokens", "100"],
        )
    ]
    loads = [(run["prompt_tokens"], run["latencies_s"]["ITL"]["count"]) for run in runs]
    assert loads == loads[:1] * len(runs)
    assert len({run["latencies_s"]["E2E"]["mean"] for run in runs}) >= 6
    assert all(run["answered"] == 60 for run in runs)
    assert [run["steps"]["tokens"]["padding"] > 0 for run in runs][:3] == [False, True, True]


def test_the_trace_of_a_run_is_written(tmp_path):
    where = tmp_path / "run.json.gz"
    data = told([*STEP, *LOAD, "--trace-out", str(where)])
    events = json.loads(gzip.decompress(where.read_bytes()))["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == data["steps"]["count"]


# ---- loads -----------------------------------------------------------------------------------------------------------


def plan_file(tmp_path, requests: int = 50):
    plan = Workload(Poisson(10.0), Lengths(FixedTokens(30), FixedTokens(20))).plan(1, requests=requests)
    with open(tmp_path / "plan.jsonl", "w", encoding="utf-8") as to:
        write_plan(plan, to)
    return plan, str(tmp_path / "plan.jsonl")


def test_a_plan_that_was_written_is_served_as_it_stands(tmp_path):
    plan, file = plan_file(tmp_path)
    load = load_of(options("--trace", file))
    assert [(one.arrival, one.prompt_tokens, one.segments) for one in load.planned] == [
        (one.arrival, one.prompt_tokens, one.segments) for one in plan
    ]
    twice = load_of(options("--trace", file, "--speed", "2", "--requests", "20"))
    assert [one.arrival for one in twice.planned] == [one.arrival / 2 for one in plan[:20]]
    assert len(load_of(options("--trace", file, "--horizon", "1s")).planned) == sum(one.arrival < 1 for one in plan)


def test_conversations_that_were_written_keep_their_think_times(tmp_path, capsys):
    file = str(tmp_path / "talk.jsonl")
    assert main(["workload", "generate", "--rate", "1", "--requests", "5", "--turns", "3", "--out", file]) == 0
    load = load_of(options("--trace", file))
    assert {one.think for one in load.planned if one.turn} == {10.0}


def test_a_public_trace_or_its_stand_in_is_replayed_within_a_limit():
    words = ["--trace", "synthetic:azure-conv", "--horizon", "60s"]
    whole = load_of(options(*words))
    limit = 1000
    long = sum(one.prompt_tokens + one.output_tokens > limit for one in whole.planned)
    left = load_of(options(*words, "--limit", str(limit)))
    cut = load_of(options(*words, "--limit", str(limit), "--beyond", "truncate"))
    assert long > 0 and len(left.planned) == len(whole.planned) - long and len(cut.planned) == len(whole.planned)
    assert max(one.prompt_tokens + one.output_tokens for one in cut.planned) == limit
    assert any("synthetic stand-in" in note for note in left.notes)
    assert any(f"{long} requests are longer than --limit 1000, and are left out" in note for note in left.notes)
    assert [one.index for one in left.planned] == list(range(len(left.planned)))


def test_what_a_prompt_shares_is_kept_when_it_is_shortened():
    words = [
        "--trace",
        "synthetic:mooncake-conversation",
        "--horizon",
        "10s",
        "--limit",
        "3000",
        "--beyond",
        "truncate",
    ]
    for one in load_of(options(*words)).planned:
        assert not one.segments or sum(segment.tokens for segment in one.segments) == one.prompt_tokens


# ---- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "name", "kind"),
    [
        ([], "batching", Continuous),
        (["--batching", "static", "--batch-size", "3"], "batching", Static),
        (["--batching", "size-or-timeout", "--batch-size", "3", "--timeout", "20ms"], "batching", SizeOrTimeout),
        (["--batching", "greedy", "--batch-size", "3"], "batching", Greedy),
        (["--order", "shortest-first", "--aging", "5"], "order", ShortestFirst),
        (["--order", "fair-share", "--weights", "a=3,b=1"], "order", FairShare),
        (["--order", "priority", "--aging", "0.1"], "order", Priority),
        (["--order", "deadline", "--deadline", "2s"], "order", Deadline),
        (["--admission", "reserve-all"], "admission", ReserveAll),
        (["--admission", "watermark:0.1"], "admission", Watermark),
        (["--admission", "predicted-peak", "--predictor", "oracle"], "admission", PredictedPeak),
        (["--victim", "least-computed"], "victim", LeastComputed),
    ],
)
def test_names_become_policies(words, name, kind):
    assert isinstance(policies_of(options(*LOAD, *words), [])[name], kind)


def test_what_names_say_reaches_the_policies():
    made = policies_of(options(*LOAD, "--batching", "size-or-timeout", "--batch-size", "3", "--timeout", "20ms"), [])
    assert (made["batching"].size, made["batching"].timeout) == (3, 0.02)
    made = policies_of(options(*LOAD, "--no-chunked-prefill", "--prefill", "mixed"), [])
    assert (made["batching"].chunked_prefill, made["batching"].prefill) == (False, "mixed")
    made = policies_of(options(*LOAD, "--order", "fair-share", "--weights", "a=3, b=1"), [])
    assert made["order"].weights == {"a": 3.0, "b": 1.0}
    made = policies_of(options(*LOAD, "--admission", "watermark:0.25"), [])
    assert made["admission"].share == 0.25
    load = load_of(options(*LOAD))
    made = policies_of(options(*LOAD, "--order", "shortest-first", "--predictor", "oracle"), load.planned)
    assert isinstance(made["order"].predictor, Oracle)
    made = policies_of(options(*LOAD, "--admission", "predicted-peak", "--predictor", "noisy:0.5"), load.planned)
    assert isinstance(made["admission"].predictor, Noisy)
    made = policies_of(options(*LOAD, "--max-queue", "4", "--max-wait", "2min"), [])
    assert (made["shedding"].max_queue, made["shedding"].max_wait) == (4, 120.0)


def test_who_is_more_important_or_in_a_hurry_goes_first(tmp_path):
    plan = tmp_path / "plan.jsonl"
    rows = [Planned(0.001 * i, 8, 8, tenant="batch" if i < 20 else "chat") for i in range(30)]
    with open(plan, "w", encoding="utf-8") as to:
        write_plan(rows, to)
    words = ["--trace", str(plan), "--max-num-seqs", "1", "--step-time", "linear:1ms,1ms"]

    def first_of_chat(*more):
        args = options(*words, *more)
        load = load_of(args)
        run = simulate_serving(load.planned, LinearStepTime(0.001, 0.001), **policies_of(args, load.planned))
        order = sorted(run.requests, key=lambda request: request.timeline.scheduled)
        return [request.tenant for request in order].index("chat"), load

    assert first_of_chat()[0] == 20
    place, load = first_of_chat("--order", "priority", "--priorities", "chat=2")
    assert 0 < place < 5 and {one.priority for one in load.planned} == {0.0, 2.0}
    _, load = first_of_chat("--order", "deadline", "--deadline", "500ms")
    assert {one.deadline for one in load.planned} == {0.5}
    again = tmp_path / "again.jsonl"
    with open(again, "w", encoding="utf-8") as to:
        write_plan(load.planned, to)
    assert [one.deadline for one in read_plan(again)] == [0.5] * 30


def test_step_times_by_name():
    assert step_time_of("linear:20ms,1ms") == LinearStepTime(0.02, 0.001)
    assert step_time_of("linear:20ms,1ms,2us").per_context_token == pytest.approx(2e-6)
    made = step_time_of("roofline:llama-3-8b,h200,1ms")
    assert made == RooflineStepTime(shape("llama-3-8b"), device("h200"), overhead=0.001)
    assert step_time_of("overlap:1ms,0.01us,5us,0.2").overlap == 0.2


def test_a_roofline_has_the_memory_of_its_device_and_others_have_what_is_given():
    roof = step_time_of("roofline:llama-3-8b,h100-sxm")
    eight = shape("llama-3-8b")
    each = eight.kv_bytes_per_token(2) * 16
    assert num_blocks_of(options(*LOAD), roof) == int((0.9 * 80e9 - 2 * eight.num_parameters) // each)
    assert num_blocks_of(options(*LOAD, "--kv-memory", "2GB"), roof) == int(2e9 // each)
    assert num_blocks_of(options(*LOAD, "--num-blocks", "77"), roof) == 77
    with pytest.raises(UnderloadError, match="90 % of the 24 GB of l4 leaves"):
        num_blocks_of(options(*LOAD), step_time_of("roofline:llama-3-70b,l4"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "give a load: --trace TRACE, or --rate"),
        (["--trace", "synthetic:azure-conv", "--rate", "3"], "leave one of them out"),
        (["--rate", "3"], "add --requests N, or --horizon S"),
        (["--trace", "nowhere.csv"], "neither a file nor a known trace"),
        (["--trace", "synthetic:azure-conv", "--turns", "3"], "--turns makes a load to order"),
        (["--trace", "synthetic:azure-conv", "--limit", "9", "--beyond", "redraw"], "replayed, not drawn"),
        (["--trace", "synthetic:azure-conv", "--horizon", "0"], "leaves no request to serve"),
        (["--trace", "synthetic:azure-conv", "--speed", "0"], "--speed must be above 0"),
        ([*LOAD, "--speed", "2"], "--speed belongs to --trace"),
        ([*LOAD, "--batching", "static"], "needs --batch-size"),
        ([*LOAD, "--batching", "size-or-timeout", "--batch-size", "2"], "needs --timeout"),
        ([*LOAD, "--batch-size", "2"], "--batch-size means nothing to --batching continuous"),
        ([*LOAD, "--batching", "greedy", "--batch-size", "2", "--prefill", "mixed"], "--prefill means nothing"),
        ([*LOAD, "--aging", "2"], "--aging belongs to --order shortest-first"),
        ([*LOAD, "--order", "fair-share", "--weights", "a"], "TENANT=WEIGHT"),
        ([*LOAD, "--priorities", "a=1"], "--priorities belongs to --order priority"),
        ([*LOAD, "--order", "priority", "--priorities", "a=1"], "names 'a', and the load's tenants are ''"),
        ([*LOAD, "--deadline", "1s"], "--deadline belongs to --order deadline"),
        ([*LOAD, "--order", "deadline", "--deadline", "0"], "must be above 0"),
        ([*LOAD, "--predictor", "oracle"], "leave --predictor out"),
        ([*LOAD, "--order", "shortest-first", "--predictor", "guess"], "got 'guess'"),
        ([*LOAD, "--admission", "maybe"], "--admission takes fits-now"),
        ([*LOAD, "--preemption", "swap"], "add --host-blocks N"),
        ([*LOAD, "--host-blocks", "4"], "--host-blocks belongs to --preemption swap"),
        ([*LOAD, "--preemption", "swap", "--host-blocks", "4"], "add --swap-time S"),
        ([*LOAD, "--preemption", "swap", "--host-blocks", "4", "--swap-time=-1ms"], "for a block, got -1ms"),
        ([*LOAD, "--preemption", "swap", "--host-blocks", "4", "--swap-time", "1e308s"], "0 s to 1e6 s for a block"),
        ([*LOAD, "--swap-time", "1ms"], "--swap-time belongs to --preemption swap"),
        ([*LOAD, "--num-blocks", "2"], "the KV cache holds 32 tokens"),
        ([*LOAD, "--max-model-len", "50"], "one sequence may have 50 tokens"),
        ([*LOAD, "--kv-memory", "2GB"], "depends on a model's shape"),
        ([*LOAD, "--max-tokens", "3"], "max_tokens = 3"),
        ([*LOAD, "--max-num-seqs", "0"], "max_num_seqs must be a whole number of at least 1"),
        ([*LOAD, "--block-size", "0"], "blocks of 0"),
        ([*LOAD, "--slo", "p99=3"], "--slo takes each of ttft"),
        ([*LOAD, "--slo", "ttft=0"], "must be above 0 seconds"),
        ([*LOAD, "--warmup", "1h"], "leaves no request"),
    ],
)
def test_what_can_be_mended_is_one_line_that_names_it(words, says, capsys):
    assert says in refused([*STEP, *words], capsys)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("linear", "--step-time takes linear"),
        ("linear:", "--step-time takes linear"),
        ("linear:1", "2 to 3 parts"),
        ("linear:1,x", "takes a time"),
        ("linear:-1,2", "no term of it is negative"),
        ("roofline:nope,h200", "unknown shape 'nope'"),
        ("roofline:llama-3-8b,abacus", "unknown device 'abacus'"),
        ("fitted:nowhere.json", "nowhere.json cannot be read"),
        ("table:nowhere.csv,a,b,1", "neither a file nor a known trace"),
        ("magic:1", "got 'magic:1'"),
    ],
)
def test_a_step_time_that_is_none_is_named(model, says, capsys):
    assert says in refused(["--step-time", model, *LOAD], capsys)


def test_a_trace_that_cannot_be_written_costs_no_figures(tmp_path, capsys):
    assert main(["simulate", *STEP, *LOAD, "--trace-out", str(tmp_path / "none" / "run.json")]) == 2
    told = capsys.readouterr()
    assert "TTFT" in told.out and "No such file" in told.err


def test_an_slo_is_read_with_units_and_either_dash():
    assert slo_of("ttft=500ms, longest-stall=0.2,queue_time=1min").terms == {
        "ttft": 0.5,
        "queue_time": 60.0,
        "longest_stall": 0.2,
    }


def test_nothing_served_is_a_report_of_nothing():
    report = report_of([], [], block_size=16)
    assert report["requests"] == 0 and report["throughput_tokens_per_s"] is None and report["kv"] is None
    assert report["latencies_s"]["TTFT"] == {
        "count": 0,
        "mean": None,
        "p50": None,
        "p95": None,
        "p99": None,
        "intervals_95": {"mean": None, "p50": None, "p95": None, "p99": None},
    }
