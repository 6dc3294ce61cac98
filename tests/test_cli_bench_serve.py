"""`underload bench serve`: the real engine behind the options and the report of `underload simulate`."""

from __future__ import annotations

import json

import pytest

from underload.cli import build_parser, main
from underload.cli.bench_serve import PlannedLengths, serve_measured
from underload.decoder import decoder_engine, load_model
from underload.engine import generate
from underload.request import SamplingParams

LOAD = ["--rate", "200", "--requests", "24", "--prompt", "uniform:3:20", "--output", "uniform:2:12"]


@pytest.fixture
def tiny(tiny_checkpoint) -> list[str]:
    return ["--model", str(tiny_checkpoint("llama")), "--path", "plain"]


def told(words: list[str], capsys) -> dict:
    assert main(["bench", "serve", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def answers(load_words: list[str]) -> list[int]:
    from underload.cli.serve_options import load_of

    return [one.output_tokens for one in load_of(build_parser().parse_args(["bench", "serve", *load_words])).planned]


def test_time_0_is_the_plan_s(tiny):
    """The warm-up that a report leaves out counts from there, and prompts are made before it."""
    from underload.cli.serve_options import load_of

    args = build_parser().parse_args(["bench", "serve", *tiny, *LOAD, "--json"])
    planned, model = load_of(args).planned, load_model(tiny[1], path="plain")
    start, requests = serve_measured(decoder_engine(model), model, planned, args)
    arrivals = [request.timeline.arrival - start for request in requests]
    assert arrivals == pytest.approx([one.arrival for one in planned], abs=1e-6)


def test_it_takes_every_option_of_simulate_and_reports_the_same_figures(tiny, capsys):
    simulate = set(options_of("simulate")) - {"--step-time", "--swap-time"}  # what is measured here
    assert simulate <= set(options_of("bench", "serve"))
    assert main(["simulate", "--step-time", "linear:1ms,10us", *LOAD, "--json"]) == 0
    simulated = json.loads(capsys.readouterr().out)
    data = told([*tiny, *LOAD], capsys)
    assert set(simulated) - {"step_time", "swap_time", "simulated_in_s"} <= set(data)
    assert data["load"] == simulated["load"] and data["policies"] == simulated["policies"]
    assert data["prompt_tokens"] == simulated["prompt_tokens"]
    for name, found in data["latencies_s"].items():
        assert found["count"] == simulated["latencies_s"][name]["count"]
        assert set(found) == set(simulated["latencies_s"][name])


def options_of(*command: str) -> list[str]:
    parser = build_parser()
    for name in command:
        parser = next(a for a in parser._actions if hasattr(a, "choices") and isinstance(a.choices, dict)).choices[name]
    return [word for action in parser._actions for word in action.option_strings]


def test_answers_are_as_long_as_the_load_says_and_the_run_is_described(tiny, capsys):
    data = told([*tiny, *LOAD], capsys)
    assert data["answered"] == data["requests"] == 24
    assert data["latencies_s"]["ITL"]["count"] == sum(answers(LOAD)) - 24
    assert data["machine"]["cores"] and data["path"] == "plain" and data["device"] == "cpu"
    assert data["steps"]["count"] > 0 and data["latencies_s"]["TTFT"]["mean"] > 0


def test_answers_keep_their_length_where_the_scheduler_is_told_of_more(tiny, capsys):
    more = ["--max-tokens", "40", "--admission", "predicted-peak", "--predictor", "max-tokens"]
    data = told([*tiny, *LOAD, *more], capsys)
    assert data["answered"] == 24 and data["latencies_s"]["ITL"]["count"] == sum(answers(LOAD)) - 24


def test_what_is_not_measured_leaves_no_trace_in_the_report(tiny, capsys, tmp_path):
    where = tmp_path / "run.json"
    data = told([*tiny, *LOAD, "--trace-out", str(where)], capsys)
    events = json.loads(where.read_text())["traceEvents"]
    names = {event["name"] for event in events if event["ph"] == "b"} - {"waiting", "prefill", "decode"}
    assert names == {str(i) for i in range(24)}
    assert sum(event["ph"] == "X" for event in events) == data["steps"]["count"]
    assert min(event["ts"] for event in events if event["ph"] == "X") >= data["window_s"][0] * 1e6 - 1


@pytest.mark.parametrize(
    "more",
    [
        ["--batching", "static", "--batch-size", "4"],
        ["--batching", "size-or-timeout", "--batch-size", "4", "--timeout", "10ms"],
        ["--num-blocks", "12", "--block-size", "4", "--no-prefix-caching"],
        ["--num-blocks", "12", "--block-size", "4", "--preemption", "swap", "--host-blocks", "20"],
        ["--kv-memory", "1MB", "--order", "shortest-first", "--predictor", "oracle", "--temperature", "0.8"],
    ],
)
def test_policies_and_limits_serve_the_whole_load(tiny, capsys, more):
    data = told([*tiny, *LOAD, *more], capsys)
    assert data["answered"] == 24
    assert (data["steps"]["tokens"]["padding"] > 0) == ("static" in more or "size-or-timeout" in more)
    if "--num-blocks" in more:
        assert data["kv"]["num_blocks"] == 12 and data["preemptions"] > 0


def test_the_page_says_model_machine_and_figures(tiny, capsys):
    assert main(["bench", "serve", *tiny, *LOAD, "--slo", "ttft=10s"]) == 0
    out = capsys.readouterr().out
    for text in ("poisson arrivals at 200/s", "continuous", "plain path", "cores", "TTFT", "goodput", "KV cache"):
        assert text in out


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--prompt", "600"], "--limit 512 --beyond truncate"),
        (["--num-blocks", "1"], "the KV cache holds 16 tokens"),
        (["--kv-memory", "1kB"], "one cache block of 16 tokens takes"),
        (["--model", "shape:nope"], "nope"),
        (["--temperature", "-1"], "temperature must be"),
        (["--trace", "nowhere.csv"], "leave one of them out"),
        (["--batching", "static"], "--batch-size"),
    ],
)
def test_what_can_be_mended_is_one_line_that_names_it(tiny, capsys, more, says):
    assert main(["bench", "serve", *tiny, *LOAD, *more]) == 2
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1


# ---- the engine of one call ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tiny_checkpoint):
    return load_model(tiny_checkpoint("llama"), path="plain")


def test_a_memory_is_as_many_blocks_as_fit_beside_the_spare_one(model):
    each = model.kv_bytes_per_token() * 8
    engine = decoder_engine(model, kv_memory=each * 20.5, block_size=8)
    pool, kv = engine.scheduler.pool, engine.executor.kv
    assert (pool.num_blocks, pool.block_size) == (19, 8)
    assert kv.keys.nbytes + kv.values.nbytes <= each * 20.5
    assert engine.scheduler.max_model_len == model.shape.max_positions


def test_without_a_budget_it_takes_no_more_than_full_sequences_can_fill(model):
    engine = decoder_engine(model, max_num_seqs=3, max_model_len=50, block_size=16)
    assert engine.scheduler.pool.num_blocks == 3 * 4 and engine.scheduler.max_model_len == 50


def test_two_sizes_of_one_cache_are_refused(model):
    from underload.request import UnderloadError

    with pytest.raises(UnderloadError, match="1,000 bytes and as 4 blocks"):
        decoder_engine(model, kv_memory=1000, num_blocks=4)


def test_an_executor_that_knows_the_plan_ends_answers_there_and_nowhere_else(model):
    prompts = [[5, 6, 7], [8, 9], [11] * 5]
    params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    free = [one.sequences[0].output_ids for one in generate(decoder_engine(model, num_blocks=40), prompts, params)]
    engine = decoder_engine(model, num_blocks=40)
    engine.executor = PlannedLengths(engine.executor, {"0": 4, "2": 1})
    planned = [one.sequences[0] for one in generate(engine, prompts, params)]
    assert [one.output_ids for one in planned] == [free[0][:4], free[1], free[2][:1]]
    assert [str(one.finish_reason) for one in planned] == ["stop", "length", "stop"]
