"""Readers of public formats on made-up samples with every oddity, and on the real traces where they are."""

import gzip
import json
import math

import numpy as np
import pytest

from underload import metrics
from underload.request import UnderloadError
from underload.workload import (
    PUBLIC,
    ClientLengths,
    ClientWindows,
    Measured,
    Trace,
    find_trace,
    load_trace,
    read_columns,
    read_trace,
    shared_blocks,
    synthetic,
)

# Made up here, in the shape of the public files.
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:59:59.9000000,4808,10\r\n"
    "2023-11-16 19:00:00.1500001,3180,8\r\n"
    "2023-11-16 19:00:00.1500009,110,27"
)
BURSTGPT = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    + "".join(
        f"{100 + t},{'GPT-4' if t % 3 else 'ChatGPT'},{50 + t},{20 + t},{70 + 2 * t},API log\n" for t in range(40)
    )
    + "140,ChatGPT,0,0,0,Conversation log\n140,GPT-4,17,0,17,API log\n150,GPT-4,5,6,11,API log\n"
)
MOONCAKE = "".join(
    json.dumps(
        {
            "timestamp": 3000 * (row // 4) - (row == 8),
            "input_length": 600,
            "output_length": 5,
            "hash_ids": [0, row + 1],
        }
    )
    + "\n"
    for row in range(60)
)
SHAREGPT = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n18,243,261,13.5\n3742.0,284,4026,0.07\n"
SERVEGEN = (
    "0,0.105,0.92,Gamma,1.168,8.05\n600,2.0,3.0,Weibull,0.5,0.2\n1200,0,0,,0,0\n1800,1.0,1.5,,0,0\n2400,1,1,Gamma,1,1\n"
)
SERVEGEN_LENGTHS = {
    "0": {"input_tokens": "{39: 0.25, 40: 0.75}", "output_tokens": "{0: 0.5, 7: 0.5}"},
    "21600": {"input_tokens": "{}", "output_tokens": "{5: 1.0}"},
}
VLLM = "".join(
    json.dumps(
        {
            "request_id": f"bench-{i}",
            "input_toks": 100 + i,
            "output_toks": 11 if i else 1,
            "arrival_time": 1.7e9 + i,
            "queued_ts": 500.25 + i + 0.1 * i,
            "scheduled_ts": 501 + i,
            "first_token_ts": 502.0 + i,
            "last_token_ts": 502.0 + i if i == 0 else 504 + i,
        }
    )
    + "\n"
    for i in range(3)
)
OWN = (
    '{"arrival": 0.5, "prompt_tokens": 3, "output_tokens": 4, "tenant": "a", "session": "s", "turn": 0}\n'
    '{"arrival": 0.25, "prompt_tokens": 30, "output_tokens": 4, "segments": [["g", 20], ["r", 10]]}\n'
)


@pytest.fixture
def file(tmp_path):
    def make(text, name="trace.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return make


def real(name: str) -> Trace:
    try:
        return read_trace(find_trace(name))
    except UnderloadError as error:
        pytest.skip(f"{name}: {error}")


# ---- formats -----------------------------------------------------------------------------------------------------


def test_azure_seven_decimals_carriage_returns_and_no_last_newline(file):
    trace = read_trace(file(AZURE))
    assert trace.times == pytest.approx([0, 0.25, 0.25], abs=2e-6) and trace.times[2] >= trace.times[1]
    assert trace.prompt_tokens.tolist() == [4808, 3180, 110] and trace.output_tokens.tolist() == [10, 8, 27]
    assert trace.step is None and trace.oddities == () and "CC-BY" in trace.source
    zoned = AZURE
    for end in ("9000000,", "1500001,", "1500009,"):
        zoned = zoned.replace(end, f"{end[:6]}+00:00,")
    assert read_trace(file(zoned)).times == pytest.approx([0, 0.25, 0.25])


def test_burstgpt_whole_seconds_and_failures(file):
    trace = read_trace(file(BURSTGPT))
    assert len(trace) == 43 and trace.step == 1.0
    assert trace.failed.sum() == 2 and trace.usable.sum() == 41
    assert trace.times[0] == 0 and trace.times[-1] == 50
    assert set(trace.labels) == {"ChatGPT", "GPT-4"}
    assert any("steps of 1 s" in said for said in trace.oddities)
    assert any("2 rows are failures" in said for said in trace.oddities)
    planned = trace.plan(seed=1)
    assert len(planned) == 41 and all(r.output_tokens > 0 for r in planned)
    assert {r.tenant for r in planned} == {"ChatGPT", "GPT-4"}
    prompts, outputs = trace.lengths().draw(np.random.default_rng(0), 2_000)
    assert set(zip(prompts.tolist(), outputs.tolist())) == {(r.prompt_tokens, r.output_tokens) for r in planned}
    assert len(trace.arrivals().first(np.random.default_rng(), 43)) == 43  # failures arrived, too


def test_mooncake_steps_of_three_seconds_are_spread_and_blocks_shared(file):
    trace = read_trace(file(MOONCAKE, "trace.jsonl"))
    assert trace.step == 3.0 and trace.block_size == 512  # one stamp is 1 ms off, as in the real one
    assert any("60 rows share 15 instants" in said for said in trace.oddities)
    spread = trace.spread(seed=3)
    assert (np.diff(spread) > 0).all()
    assert (np.floor(spread / 3).astype(int) == np.arange(60) // 4).all()  # each inside its own step, in its order
    assert trace.spread(seed=3).tolist() == spread.tolist() != trace.spread(seed=4).tolist()
    assert [r.arrival for r in trace.plan(seed=3)] == spread.tolist()
    assert [r.arrival for r in trace.plan(spread=False)] == trace.times.tolist()
    assert trace.plan()[5].segments == (("b0", 512), ("b6", 88))
    assert shared_blocks(trace.plan(), 512).hits == 59


def test_a_spread_is_even_within_the_step(file):
    rows = "".join(
        json.dumps({"timestamp": 3000 * (i % 50), "input_length": 1, "output_length": 1, "hash_ids": [i]}) + "\n"
        for i in range(5_000)
    )
    trace = read_trace(file(rows, "t.jsonl"))
    assert "rows were not in order of time and have been sorted" in trace.oddities
    inside = trace.spread() % 3 / 3
    assert inside.mean() == pytest.approx(0.5, abs=4 / math.sqrt(12 * 5_000))
    assert inside.var() == pytest.approx(1 / 12, rel=0.1)


def test_sharegpt_has_lengths_and_no_times(file):
    trace = read_trace(file(SHAREGPT))
    assert trace.instants is None and trace.prompt_tokens.tolist() == [18, 3742]
    prompts, outputs = trace.lengths().draw(np.random.default_rng(0), 100)
    assert set(zip(prompts.tolist(), outputs.tolist())) == {(18, 243), (3742, 284)}
    for ask in (trace.plan, trace.arrivals, trace.spread):
        with pytest.raises(UnderloadError, match=r"lengths and no times.*Poisson\(rate\)"):
            ask()


def test_servegen_windows_draw_arrivals_at_the_recorded_rate(file):
    client = read_trace(file(SERVEGEN))
    assert isinstance(client, ClientWindows) and client.width == 600 and len(client) == 5
    fitted = client.arrivals()
    assert [type(p).__name__ for p in fitted.windows] == ["Gamma", "Weibull", "NoneType", "Poisson", "Gamma"]
    assert fitted.windows[1].rate == 2.0 and fitted.windows[1].shape == 0.5
    assert client.arrivals(by="cv").windows[1].cv == pytest.approx(3.0)
    assert client.arrivals(1, 2).span == 600
    counts = [len(client.arrivals(1, 2).arrivals(np.random.default_rng(i), 600)) for i in range(100)]
    assert np.mean(counts) == pytest.approx(1_200, abs=4 * np.std(counts) / 10)
    with pytest.raises(UnderloadError, match="none of the 5"):
        client.arrivals(9)
    with pytest.raises(UnderloadError, match="empty"):
        client.arrivals(2, 3)
    with pytest.raises(UnderloadError, match="by must be"):
        client.arrivals(by="guess")


def test_servegen_lengths_are_laws(file):
    lengths = read_trace(file(json.dumps(SERVEGEN_LENGTHS, indent=2), "d.json"))
    assert isinstance(lengths, ClientLengths) and lengths.starts == (0, 21600)
    drawn = lengths.prompt[0].draw(np.random.default_rng(0), 4_000)
    assert (drawn == 40).mean() == pytest.approx(0.75, abs=0.03) and set(drawn) == {39, 40}
    assert set(lengths.output[0].draw(np.random.default_rng(0), 50)) == {7}  # no answer of 0 tokens
    assert lengths.prompt[1] is None
    assert len(read_trace(file(json.dumps(SERVEGEN_LENGTHS), "one_line.json")).starts) == 2


def test_a_measured_run_comes_to_one_clock(file):
    run = read_trace(file(VLLM, "run.jsonl"))
    assert isinstance(run, Measured) and run.arrival.tolist() == [0, 1, 2]
    assert run.queued == pytest.approx([0, 1.1, 2.2], abs=1e-6)  # the fastest way from client to engine is 0
    assert run.first_token == pytest.approx([1.75, 2.75, 3.75], abs=1e-6)
    timelines = run.timelines()
    for timeline in timelines:
        metrics.check(timeline)
    assert [t.output_tokens for t in timelines] == [1, 11, 11]
    assert metrics.tpot(timelines[1]) == pytest.approx(0.2) and metrics.tpot(timelines[0]) is None
    assert metrics.ttft(timelines[2]) == pytest.approx(1.75)
    assert [r.output_tokens for r in run.trace().plan()] == [1, 11, 11]


def test_our_own_format_is_a_trace_too(file):
    trace = read_trace(file(OWN, "own.jsonl"))
    assert trace.times.tolist() == [0, 0.25] and trace.prompt_tokens.tolist() == [30, 3]
    assert trace.labels == ("", "a") and trace.sessions == ((None, 0), ("s", 0))
    assert [r.session for r in trace.plan()] == [None, "s"]
    assert trace.plan(speed=2)[1].arrival == 0.125
    assert len(trace.plan(horizon=0.25)) == 1
    with pytest.raises(UnderloadError, match="speed"):
        trace.plan(speed=0)


def test_columns_of_a_series(file):
    columns = read_columns(file("t,running,who\n1.0,5,a\n2.0,16,b\n"))
    assert columns["running"].tolist() == [5, 16] and columns["who"].tolist() == ["a", "b"]
    with pytest.raises(UnderloadError, match="line 3: 2 values under 3 columns"):
        read_columns(file("t,running,who\n1.0,5,a\n2.0,16\n"))


# ---- encodings and malformed rows --------------------------------------------------------------------------------


@pytest.mark.parametrize("coding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_encodings_packing_and_line_ends(file, coding, packed, ends):
    text = BURSTGPT.replace("GPT-4", "Modèle é").replace("\n", ends).encode(coding)
    trace = read_trace(file(gzip.compress(text) if packed else text, "b.csv"))
    assert len(trace) == 43 and set(trace.labels) == {"Modèle é", "ChatGPT"}


def test_malformed_rows_are_named_by_line_and_only_a_few_of_them(file):
    lines = AZURE.replace("\r\n", "\n").splitlines()
    lines[2:2] = ["yesterday,1,2", "2023-11-16 19:00:00,x,2", "2023-11-16 19:00:00,1", "2023-11-16 19:00:00,-1,2"]
    lines += ["2023-11-16 19:00:01,1.5,2"] * 5
    path = file("\n".join(lines))
    with pytest.raises(UnderloadError) as caught:
        read_trace(path)
    said = str(caught.value)
    assert "9 malformed rows of 12" in said and "skip_bad=True" in said and "and 4 more" in said
    for line in (3, 4, 5, 6, 9):
        assert f"line {line}:" in said
    assert "line 10:" not in said
    trace = read_trace(path, skip_bad=True)
    assert len(trace) == 3 and any("9 malformed rows left out" in oddity for oddity in trace.oddities)


@pytest.mark.parametrize(
    "row",
    [
        "{}",
        "[1, 2]",
        "{broken",
        '{"timestamp": null, "input_length": 1, "output_length": 1, "hash_ids": [1]}',
        '{"timestamp": 1e999, "input_length": 1, "output_length": 1, "hash_ids": [1]}',
        '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1]}',
        '{"timestamp": 0, "input_length": 1, "output_length": "many", "hash_ids": [1]}',
        '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": 7}',
    ],
)
def test_a_malformed_line_of_json_is_named(file, row):
    path = file(MOONCAKE + row + "\n", "m.jsonl")
    with pytest.raises(UnderloadError, match="1 malformed rows of 61: line 61:"):
        read_trace(path)
    assert len(read_trace(path, skip_bad=True)) == 60


def test_reading_stops_where_told_and_says_so(file):
    trace = read_trace(file(MOONCAKE, "m.jsonl"), most=10)
    assert len(trace) == 10 and "only the first 10 rows were read" in trace.oddities


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "no known format"),
        (b"hello\n", "it begins 'hello'"),
        (b"{\n", "no ServeGen lengths"),
        (b'{"a": 1}\n', "JSON of no known format"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n", "no row that can be read"),
        (b"0,1,1,Gamma,1,1\n600,1,1,Normal,1,1\n", "line 2: 'Normal' is no family"),
        (b"0,1,1,Gamma,1,1\n600,1,1,Gamma,1,1\n700,1,1,Gamma,1,1\n", "unlike widths"),
        (gzip.compress(MOONCAKE.encode())[:-20], "cut short"),
        (b"\x1f\x8bnot really", "cut short|cannot be read"),
        (b"\x00\x01\x02\x03", "no known format"),
    ],
)
def test_what_is_no_trace_is_told(file, text, says):
    with pytest.raises(UnderloadError, match=says):
        read_trace(file(text, "strange"))


def test_times_with_and_without_a_zone_do_not_mix(file):
    with pytest.raises(UnderloadError, match="mixes times"):
        read_trace(file(AZURE.replace("9000000,", "900000+00:00,")))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UnderloadError, match=r"nowhere\.csv cannot be read"):
        read_trace(tmp_path / "nowhere.csv")


# ---- by name -----------------------------------------------------------------------------------------------------


def test_a_public_trace_is_found_by_name_packed_or_not(tmp_path, monkeypatch):
    first, second = tmp_path / "one", tmp_path / "two"
    first.mkdir(), second.mkdir()
    monkeypatch.setenv("UNDERLOAD_TRACES", f"{first}:{second}")
    with pytest.raises(UnderloadError, match=r"no azure_llm_2023_conv.csv or .* in .*one, .*two; it comes from github"):
        find_trace("azure-conv")
    (second / "AzureLLMInferenceTrace_conv.csv.gz").write_bytes(gzip.compress(AZURE.encode()))
    assert len(load_trace("azure-conv")) == 3
    (first / "azure_llm_2023_conv.csv").write_text(AZURE, newline="")
    assert find_trace("azure-conv").parent == first
    assert find_trace("azure_llm_2023_conv.csv").parent == first  # by its file name, too
    assert find_trace(first / "azure_llm_2023_conv.csv").is_file()


def test_a_stand_in_is_taken_only_when_asked_for_and_says_what_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("UNDERLOAD_TRACES", str(tmp_path))
    with pytest.raises(UnderloadError, match="synthetic:burstgpt"):
        load_trace("burstgpt")
    trace = load_trace("burstgpt", stand_in=True)
    assert trace.synthetic and trace.name == "synthetic burstgpt" and "not recorded" in trace.oddities[0]
    assert load_trace("synthetic:burstgpt").times.tolist() == trace.times.tolist()
    with pytest.raises(UnderloadError, match="no stand-in for 'vllm-rtx4090-llama31-8b'"):
        synthetic("vllm-rtx4090-llama31-8b")  # a measurement cannot be made up
    with pytest.raises(UnderloadError, match="known are azure-conv"):
        load_trace("azzure", stand_in=True)


@pytest.mark.parametrize(
    ("name", "rate", "prompt", "output"),
    [
        ("azure-conv", 5.53, (1020, 4142), (129, 601)),
        ("azure-code", 2.57, (1469, 7436), (13, 251)),
        ("burstgpt", 0.060, (232, 1994), (203, 1424)),
        ("mooncake-conversation", 3.21, (7594, 91308), (356, 1137)),
        ("sharegpt-lengths", None, (35, 2862), (286, 1000)),
    ],
)
def test_a_stand_in_resembles_its_trace(name, rate, prompt, output):
    trace = synthetic(name)
    if rate is not None:
        assert (len(trace) - 1) / trace.times[-1] == pytest.approx(rate, rel=0.15)
    keep = trace.usable
    for values, (median, high) in ((trace.prompt_tokens[keep], prompt), (trace.output_tokens[keep], output)):
        assert np.median(values) == pytest.approx(median, rel=0.2)
        # of 198 rows the second longest: it scatters
        assert np.percentile(values, 99) == pytest.approx(high, rel=0.5 if name == "burstgpt" else 0.35)
    assert trace.step == {"burstgpt": 1.0, "mooncake-conversation": 3.0}.get(name)


# ---- the real ones -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rows", "rate", "cv", "prompt", "output"),
    [
        ("azure-code", 8_819, 2.57, 13.15, (1_469, 7_436), (13, 251)),
        ("azure-conv", 19_366, 5.53, 1.09, (1_020, 4_142), (129, 601)),
        ("burstgpt", 197, 0.060, 0.94, None, None),
        ("sharegpt-lengths", 10_000, None, None, (35, 2_862), (286, 1_000)),
    ],
)
def test_the_real_traces_read_as_published(name, rows, rate, cv, prompt, output):
    trace = real(name)
    assert len(trace) == rows
    if rate:
        gaps = np.diff(trace.times)
        assert round((rows - 1) / trace.times[-1], 2 if rate > 1 else 3) == rate
        assert gaps.std() / gaps.mean() == pytest.approx(cv, abs=0.006)
    for values, known in ((trace.prompt_tokens, prompt), (trace.output_tokens, output)):
        if known:
            assert tuple(np.percentile(values, (50, 99)).round()) == known


def test_real_burstgpt_has_eight_failures():
    assert real("burstgpt").failed.sum() == 8


def test_real_mooncake_has_its_steps_and_its_hit_rate():
    trace = real("mooncake-conversation")
    assert trace.step == 3.0 and len(trace) == 6_000
    gaps = np.diff(trace.spread())
    assert gaps.std() / gaps.mean() == pytest.approx(1, abs=0.1)  # the artefact is gone
    # 0.33 over the first 4,000 with the blocks that are not full, as published; these have no key here
    plan = trace.plan()[:4_000]
    seen: set[str] = set()
    hits = full_hits = blocks = 0
    for request in plan:
        blocks += len(request.segments)
        hits += sum(segment.identity in seen for segment in request.segments)
        full_hits += sum(segment.identity in seen for segment in request.segments if segment.tokens == 512)
        seen.update(segment.identity for segment in request.segments)
    assert hits / blocks == pytest.approx(0.33, abs=0.005)
    assert shared_blocks(plan, 512).hits == full_hits


def test_the_real_measured_run_is_an_overload():
    run = real("vllm-rtx4090-llama31-8b")
    timelines = run.timelines()
    assert len(run) == 300 and run.arrival[-1] == pytest.approx(29.1, abs=0.1)
    assert metrics.mean(map(metrics.ttft, timelines)) == pytest.approx(65, abs=1)
    assert max(t.finished for t in timelines) == pytest.approx(184, abs=1)


@pytest.mark.parametrize("name", [name for name in PUBLIC if name.startswith("servegen")])
def test_the_real_servegen_clients_are_read(name):
    record = real(name)
    if name.endswith("lengths"):
        assert record.starts == (0, 21_600, 43_200, 64_800) and all(record.prompt)
    else:
        assert len(record) == (144 if "deepseek" in name else 2_016)
        instants = record.arrivals(0, 6).arrivals(np.random.default_rng(0), 3_600)
        assert len(instants) == pytest.approx(600 * record.rate[:6].sum(), rel=0.2)
