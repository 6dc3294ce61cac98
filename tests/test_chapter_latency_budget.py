"""What the page on the latency budget works out by hand or answers without a cell, recomputed."""

from __future__ import annotations

import pytest

from underload import metrics
from underload.request import Timeline


def stream(gaps: list[float], first: float = 0.5) -> Timeline:
    instants = [first]
    for gap in gaps:
        instants.append(instants[-1] + gap)
    return Timeline(arrival=0.0, scheduled=0.1, token_times=instants)


def head_start(line: Timeline, rate: float) -> float:
    """How much longer a client waits before it can show tokens at `rate` without a stall, in s."""
    first = line.token_times[0]
    return max(instant - first - place / rate for place, instant in enumerate(line.token_times))


def test_the_five_tokens_have_the_names_worked_out_by_hand() -> None:
    line = Timeline(arrival=0.0, scheduled=0.20, token_times=[0.50, 0.55, 0.60, 0.90, 0.95])
    assert (metrics.ttft(line), metrics.queue_time(line)) == (0.5, 0.2)
    assert metrics.itl(line) == pytest.approx([0.05, 0.05, 0.3, 0.05])
    assert (metrics.tpot(line), metrics.e2e(line)) == pytest.approx((0.1125, 0.95))


def test_an_even_stream_takes_a_head_start_of_1_17_s_and_none_at_reading_speed() -> None:
    stalled = stream([0.02] * 60 + [3.02] + [0.02] * 39)
    assert metrics.tpot(stalled) == pytest.approx(1 / 20)
    assert stalled.token_times[61] - stalled.token_times[0] == pytest.approx(4.22)
    assert head_start(stalled, 20.0) == pytest.approx(1.17)
    reading = 238 * 4 / 3 / 60  # words a minute; four tokens for three words
    assert reading == pytest.approx(5, abs=0.5)
    assert head_start(stalled, 5.0) == 0.0


def test_the_answer_on_what_a_tool_would_report() -> None:
    line = Timeline(arrival=0.0, scheduled=0.30, token_times=[0.80 + 0.040 * i for i in range(150)])
    assert (metrics.ttft(line), metrics.e2e(line)) == pytest.approx((0.80, 6.76))
    quotient = 6.76 / 150
    assert quotient == pytest.approx(0.0451, abs=5e-5)
    assert quotient / 0.040 - 1 == pytest.approx(0.13, abs=0.005)


def test_the_answer_on_how_long_an_answer_may_be() -> None:
    def longest(prompt: int) -> int:
        ttft = 0.010 + 0.0001 * prompt
        return 1 + int((5.0 - ttft) / 0.020)

    assert longest(2000) == 240
    assert longest(1000) - longest(2000) == 5


def test_the_stall_that_two_percentiles_hide() -> None:
    stall = 200 * 0.050 - 199 * 0.010
    assert stall == pytest.approx(8.01)
    line = stream([0.010] * 150 + [stall] + [0.010] * 49)
    gaps = metrics.itl(line)
    assert metrics.tpot(line) == pytest.approx(0.050)
    assert (metrics.percentile(gaps, 50), metrics.percentile(gaps, 99)) == pytest.approx((0.010, 0.010))
    assert metrics.longest_stall(line) == pytest.approx(stall)


def test_the_quotient_of_the_tools_holds_the_queue_and_the_prompt() -> None:
    line = stream([0.05] * 9, first=2.0)
    tokens, tpot = line.output_tokens, metrics.tpot(line)
    assert tpot is not None
    assert metrics.e2e(line) / tokens == pytest.approx(tpot + (metrics.ttft(line) - tpot) / tokens)
