"""What other tools would report of the same log: their definitions, and where they must agree."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from underload import metrics
from underload.metrics import dialects
from underload.request import Timeline, UnderloadError

TOOLS = list(dialects.TOOLS)
OTHERS = [name for name in TOOLS if name != "underload"]


@st.composite
def logs(draw, min_size=1):
    """Requests with chunks, late clients, streams that end after the last token, and some failures."""
    made = []
    gap = st.floats(0.001, 5)
    for _ in range(draw(st.integers(min_size, 6))):
        arrival = draw(st.floats(0, 20))
        now = sent = arrival + draw(st.sampled_from([0.0, 0.5]))
        times = []
        for size in draw(st.lists(st.integers(1, 3), min_size=1, max_size=5)):
            now += draw(gap)
            times += [now] * size
        made.append(
            Timeline(
                arrival=arrival,
                sent=sent,
                token_times=times,
                finished=now + draw(st.sampled_from([0.0, 0.25])),
                finish_reason=draw(st.sampled_from(["stop", "length", "error"])),
            )
        )
    return made


def stream(sizes, times, *, arrival=0.0, sent=None, finished=None, reason="stop"):
    tokens = [time for time, size in zip(times, sizes) for _ in range(size)]
    return Timeline(arrival=arrival, sent=sent, token_times=tokens, finished=finished, finish_reason=reason)


def mean_of(log, quantity, tool):
    return dialects.compare(log).find(quantity, tool).mean


# ---- one log by hand ----------------------------------------------------------------------------------------------


def test_one_stream_in_six_dialects():
    # Meant for 0, sent at 0.5; chunks of 1, 3 and 1 tokens; the stream is closed 0.1 s after the last.
    log = [stream([1, 3, 1], [1.0, 1.3, 1.4], sent=0.5, finished=1.5)]
    got = dialects.compare(log)
    expected = {
        "TTFT": dict.fromkeys(OTHERS, 0.5) | {"underload": 1.0},
        "TPOT": {"underload": 0.1, "vLLM": 0.1, "SGLang": 0.5 / 4, "guidellm": 0.9 / 5},
        "ITL": {"underload": 0.1, "vLLM": 0.2, "SGLang": 0.1, "guidellm": 0.1, "aiperf": 0.1, "llmperf": 0.9 / 3},
        "chunk gap": {"underload": 0.2, "aiperf": 0.2},
        "E2E": {"underload": 1.4, "vLLM": 0.9, "SGLang": 1.0, "guidellm": 1.0, "aiperf": 0.9, "llmperf": 1.0},
        "output tokens/s": dict.fromkeys(TOOLS, 5 / 1.5) | {"underload": 5 / 1.4, "aiperf": 5 / 0.9},
        "requests/s": dict.fromkeys(TOOLS, 1 / 1.5) | {"underload": 1 / 1.4, "aiperf": 1 / 0.9},
    }
    found = {}
    for figures in got.figures:
        found.setdefault(figures.quantity, {})[figures.tool] = figures.mean
    assert found.keys() == expected.keys()
    for quantity, tools in expected.items():
        assert found[quantity] == pytest.approx(tools), quantity
    assert got.find("ITL", "vLLM").count == 2 and got.find("ITL", "SGLang").count == 4
    assert got.spread("ITL") == pytest.approx(3.0) and got.spread("chunk gap") == pytest.approx(1.0)


def test_the_further_tokens_of_a_first_chunk_have_a_gap_here_and_none_in_sglang():
    log = [stream([3, 1], [1.0, 2.0])]
    assert dialects.compare(log).find("ITL", "underload").count == 3
    assert dialects.compare(log).find("ITL", "SGLang").count == 1
    assert mean_of(log, "ITL", "underload") == pytest.approx(1 / 3) and mean_of(log, "ITL", "SGLang") == 1.0


def test_guidellm_weighs_a_request_by_its_tokens():
    log = [stream([1] * 11, np.linspace(1, 2, 11)), stream([1, 1], [1.0, 2.0])]
    assert mean_of(log, "ITL", "guidellm") == pytest.approx(2 / 11)  # ten gaps of 0.1, one of 1
    assert mean_of(log, "ITL", "aiperf") == pytest.approx(0.55)  # one figure a request
    assert mean_of(log, "TPOT", "guidellm") == pytest.approx((2 / 11 * 11 + 2 / 2 * 2) / 13)


def test_percentiles_follow_each_tools_method():
    log = [stream([1], [second]) for second in (10.0, 20.0, 30.0)]
    got = dialects.compare(log, percentiles=(50, 99, 0, 100))
    assert got.find("TTFT", "vLLM").percentiles == pytest.approx({50: 20, 99: 29.8, 0: 10, 100: 30})
    assert got.find("TTFT", "guidellm").percentiles == {50: 20, 99: 30, 0: 10, 100: 30}
    # Two of four: half of the weight is reached at the second, not between.
    log.append(stream([1], [40.0]))
    assert dialects.compare(log).find("TTFT", "guidellm").percentiles[50] == 20
    assert dialects.compare(log).find("TTFT", "vLLM").percentiles[50] == 25


def test_only_this_library_withholds_a_p99_of_few_requests():
    got = dialects.compare([stream([1], [float(second)]) for second in range(1, 21)])
    assert got.find("TTFT", "underload").percentiles[99] is None
    assert got.find("TTFT", "underload").percentiles[50] == 10.5
    assert all(got.find("TTFT", name).percentiles[99] > 19 for name in OTHERS)
    many = dialects.compare([stream([1], [1.0])] * 368)
    assert many.find("TTFT", "underload").percentiles[99] == 1.0


def test_a_weighted_percentile_is_numpys_inverted_cdf():
    rng = np.random.default_rng(3)
    values, weights = list(rng.integers(0, 30, 200).astype(float)), list(rng.integers(1, 9, 200).astype(float))
    for q in (0.1, 10, 33.3, 50, 90, 99, 99.9):
        expected = np.percentile(values, q, weights=weights, method="inverted_cdf")
        assert dialects._by_rank(values, weights, q) == expected


# ---- failures and one-token answers -------------------------------------------------------------------------------


def test_where_every_answer_is_one_token_three_tools_report_0_and_nobody_fails():
    got = dialects.compare([stream([1], [1.0]), stream([1], [2.0])])
    assert got.find("TPOT", "underload").mean is None and got.find("ITL", "aiperf").mean is None
    assert got.find("TPOT", "vLLM").mean == got.find("ITL", "SGLang").mean == got.find("ITL", "guidellm").mean == 0.0
    assert got.find("TPOT", "guidellm").mean == got.find("ITL", "llmperf").mean == 1.5  # TTFT by another name
    assert got.find("TPOT", "vLLM").count == 0
    assert got.spread("chunk gap") is None


def test_where_all_fail_nothing_is_measured():
    got = dialects.compare([Timeline(arrival=1.0, finished=2.0, finish_reason="error")])
    for tool in ("underload", "aiperf", "llmperf"):
        assert got.find("TTFT", tool).mean is None
    assert got.find("TTFT", "vLLM").mean == 0.0 and got.find("E2E", "SGLang").mean is None
    assert got.find("requests/s", "vLLM").mean == 0.0 and got.find("requests/s", "aiperf").mean is None
    assert "–" in str(got)
    empty = dialects.compare([])
    assert empty.find("requests/s", "vLLM").mean is None and empty.find("TTFT", "vLLM").mean == 0.0


def test_a_failed_request_changes_no_latency_but_holds_the_run_open():
    served = [stream([1, 1], [1.0, 2.0])]
    failed = stream([1], [0.1], finished=4.0, reason="error")
    alone, both = dialects.compare(served), dialects.compare([*served, failed])
    for figures in alone.figures:
        if figures.quantity in dialects.LATENCIES:
            assert both.find(figures.quantity, figures.tool) == figures
    assert both.find("requests/s", "vLLM").mean == 1 / 4 and both.find("requests/s", "aiperf").mean == 1 / 2
    assert both.find("output tokens/s", "vLLM").count == 2 and both.find("output tokens/s", "underload").count == 3


# ---- identities ---------------------------------------------------------------------------------------------------


@given(logs())
def test_identities_between_the_dialects(log):
    got = dialects.compare(log)
    good = [t for t in log if metrics.succeeded(t)]
    assume(any(t.output_tokens > 1 for t in good))
    # aiperf's ITL is vLLM's TPOT; vLLM's ITL is aiperf's inter-chunk latency.
    itl, tpot = got.find("ITL", "aiperf"), got.find("TPOT", "vLLM")
    assert (itl.mean, itl.percentiles, itl.count) == (tpot.mean, tpot.percentiles, tpot.count)
    if any(len(metrics.chunks(t)) > 1 for t in good):
        assert got.find("ITL", "vLLM").mean == pytest.approx(got.find("chunk gap", "aiperf").mean)
    # guidellm's weights make its mean the mean over all gaps, which is this library's.
    assert got.find("ITL", "guidellm").mean == pytest.approx(got.find("ITL", "underload").mean)
    # llmperf's ITL is E2E over chunks; guidellm's TPOT is E2E over tokens.
    to_last = sum(t.last_token - t.sent for t in good)
    assert got.find("TPOT", "guidellm").mean * sum(t.output_tokens for t in good) == pytest.approx(to_last)
    assert got.find("E2E", "vLLM").mean * len(good) == pytest.approx(to_last)
    # The own column is what the functions of the package say.
    assert got.find("TTFT", "underload").mean == pytest.approx(metrics.mean(map(metrics.ttft, good)))
    assert got.find("TPOT", "underload").mean == pytest.approx(metrics.mean(map(metrics.tpot, good)))
    assert got.find("output tokens/s", "underload").mean == metrics.throughput(log)
    # What the client held back is in no other tool's latency.
    held = sum(t.sent - t.arrival for t in good) / len(good)
    for tool in OTHERS:
        assert got.find("TTFT", tool).mean == pytest.approx(got.find("TTFT", "underload").mean - held)


@given(logs())
def test_a_log_without_chunks_late_clients_or_failures_leaves_two_words_in_dispute(log):
    plain = []
    for t in log:
        times = list(np.arange(1, t.output_tokens + 1) * 0.1 + t.arrival)
        plain.append(Timeline(arrival=t.arrival, sent=t.arrival, token_times=times, finish_reason="stop"))
    got = dialects.compare(plain)
    assert got.spread("TTFT") == pytest.approx(1) and got.spread("E2E") == pytest.approx(1)
    assert got.spread("requests/s") == pytest.approx(1)
    if any(len(t.token_times) > 1 for t in plain):
        for tool in ("underload", "vLLM", "SGLang", "guidellm", "aiperf"):
            assert got.find("ITL", tool).mean == pytest.approx(0.1)
        # Each first token took as long as a gap, so even those that count TTFT agree.
        assert got.find("TPOT", "guidellm").mean == pytest.approx(got.find("ITL", "llmperf").mean) == pytest.approx(0.1)


@given(logs(), st.floats(-50, 50))
def test_the_clock_may_start_anywhere(log, shift):
    moved = [
        Timeline(
            arrival=t.arrival + shift,
            sent=t.sent + shift,
            token_times=[time + shift for time in t.token_times],
            finished=t.finished + shift,
            finish_reason=t.finish_reason,
        )
        for t in log
    ]
    assume([len(metrics.chunks(t)) for t in log] == [len(metrics.chunks(t)) for t in moved])
    for before, after in zip(dialects.compare(log).figures, dialects.compare(moved).figures):
        assert before.count == after.count
        assert after.mean == (None if before.mean is None else pytest.approx(before.mean, rel=1e-6, abs=1e-9))


# ---- the table ----------------------------------------------------------------------------------------------------


def test_every_definition_says_where_it_was_read():
    for tool in dialects.TOOLS.values():
        assert set(tool.definitions) <= set(dialects.LATENCIES) and set(dialects.RATE_NAMES[tool.name]) == set(
            dialects.RATES
        )
        text = str(tool)
        assert tool.source in text and all(d.name in text and d.formula in text for d in tool.definitions.values())
        if tool.name != "underload":
            assert tool.version and ".py" in tool.source


def test_a_comparison_as_text_and_as_data():
    got = dialects.compare([stream([1, 3, 1], [1.0, 1.3, 1.4])] * 3, percentiles=(90,), tools=("llmperf", "vLLM"))
    assert [f.tool for f in got.figures[:2]] == ["llmperf", "vLLM"]
    data = json.loads(json.dumps(got.as_dict()))
    assert data["ITL"]["vLLM"] == {"name": "ITL", "count": 6, "mean": pytest.approx(0.2), "p90": pytest.approx(0.3)}
    text = str(got)
    assert "200 ms" in text and "inter_token_latency_s" in text and "apart by a factor of 2.33" in text
    assert "aiperf" not in text and max(map(len, text.splitlines())) <= 100
    assert got.spread("ITL", 90) == pytest.approx(1.4 / 3 / 0.3)


def test_all_rows_of_a_quantity_are_in_one_unit():
    # The second request waits so long that milliseconds would not be read.
    log = [stream([1], [0.5]), stream([1, 1], [123.456, 123.5])]
    rows = [line for line in str(dialects.compare(log, tools=("vLLM", "aiperf"))).splitlines() if "  vLLM" in line]
    assert "61.98 s" in rows[0] and "122.2 s" in rows[0]  # TTFT
    assert "44 ms" in rows[1] and "44 ms" in rows[2]  # TPOT, ITL
    busy = dialects.compare([stream([1] * 50_000, np.linspace(0, 1, 50_000))], tools=("vLLM",))
    assert "50,000" in str(busy) and "e+" not in str(busy)


def test_what_is_not_there_is_named():
    log = [stream([1], [1.0])]
    with pytest.raises(UnderloadError, match="no definitions of 'hey'.*aiperf"):
        dialects.compare(log, tools=("hey",))
    with pytest.raises(UnderloadError, match="no 'TPOT' of 'aiperf'"):
        dialects.compare(log).find("TPOT", "aiperf")
    with pytest.raises(UnderloadError, match=r"p95 was not compared.*percentiles=\(95,\)"):
        dialects.compare(log).spread("TTFT", 95)
    for q in (-1, 101, math.nan):
        with pytest.raises(UnderloadError, match="between 0 and 100"):
            dialects.compare(log, percentiles=(q,), tools=("guidellm",))
    with pytest.raises(UnderloadError, match="runs backwards"):
        dialects.compare([Timeline(arrival=5.0, token_times=[1.0], finish_reason="stop")])


def test_the_package_starts_without_scipy():
    code = (
        "import sys, underload.metrics; print(sorted(m for m in ('scipy', 'torch', 'matplotlib') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": "lib"})
    assert done.stdout.strip() == "[]", done.stderr
