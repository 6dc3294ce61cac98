"""Loads under hostile input: files that are no traces, plans that are none, servers that misbehave."""

import asyncio
import gzip
import json
import math

import numpy as np
import pytest

from underload import workload
from underload.request import UnderloadError, VirtualClock, WallClock
from underload.simulation import EventQueue
from underload.workload import (
    Planned,
    Segment,
    closed_loop_async,
    describe,
    dispersion,
    open_loop,
    open_loop_async,
    read_columns,
    read_plan,
    read_trace,
)
from underload.workload.readers import LONGEST_LINE

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROW = "2023-11-16 18:17:03.9799600,4808,10\n"
OWN = '{"arrival": 0, "prompt_tokens": 5, "output_tokens": 1}\n'


def written(folder, content) -> str:
    path = folder / "trace"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        gzip.compress(b""),
        b"\0" * 300_000,
        b"a" * 300_000,
        bytes(range(256)) * 400,
        HEADER,
        HEADER + "x" * 300_000 + ",1,1\n",
        "0,1,1,Gamma,1,1\n600,1,1," + "x" * 200_000 + ",1,1\n",
        '{"arrival":' + "[" * 100_000 + "}\n",
        OWN + '{"arrival":' + "[" * 100_000 + "\n",
        json.dumps({"0": {"input_tokens": "-" * 100_000 + "1", "output_tokens": "{3: 1.0}"}}),
        json.dumps({"0": {"input_tokens": {"1": -1.0}, "output_tokens": {"3": 1.0}}}),
        json.dumps({"0": {"input_tokens": "[1, 2]", "output_tokens": {"3": 1.0}}}),
    ],
    ids=range(13),
)
def test_what_is_no_trace_is_named(tmp_path, content):
    path = written(tmp_path, content)
    for skip in (False, True):
        if skip and isinstance(content, str) and content.startswith(OWN):
            assert len(read_trace(path, skip_bad=True)) == 1
            continue
        with pytest.raises(UnderloadError):
            read_trace(path, skip_bad=skip)
    with pytest.raises(UnderloadError):
        read_plan(path)


def test_packed_data_that_is_broken_inside_is_named(tmp_path):
    packed = bytearray(gzip.compress(np.random.default_rng(0).bytes(20_000)))
    packed[12:60] = b"\xff" * 48
    with pytest.raises(UnderloadError, match="cut short"):
        read_trace(written(tmp_path, bytes(packed)))


@pytest.mark.parametrize("start", ["", HEADER + ROW, OWN])
def test_a_line_without_end_is_not_read_into_memory(tmp_path, start):
    path = written(tmp_path, start)
    with open(path, "r+b") as file:
        file.truncate(1 << 31)  # sparse
    for read in (read_trace, read_plan, read_columns):
        with pytest.raises(UnderloadError):
            read(path)
    assert LONGEST_LINE < 1 << 30


def test_an_object_on_one_long_line_is_read(tmp_path):
    shares = {str(length): 1e-6 for length in range(1, 100_000)}
    content = json.dumps({"0": {"input_tokens": str(shares), "output_tokens": "{3: 1.0}"}})
    assert len(content) > 1 << 20
    found = read_trace(written(tmp_path, content))
    assert found.output[0].quantile(np.array([0.5])).tolist() == [3]


def test_marks_and_line_ends_and_order_change_nothing(tmp_path):
    plain = read_trace(written(tmp_path, HEADER + ROW * 3))
    for content in (
        b"\xef\xbb\xbf" + (HEADER + ROW * 3).encode(),
        (HEADER + ROW * 3).replace("\n", "\r\n").encode(),
        (HEADER + ROW * 3).replace("\n", "\r").encode(),
        (HEADER + ROW * 3).encode("utf-16"),
        gzip.compress((HEADER + ROW * 3).encode()),
        b"GeneratedTokens,TIMESTAMP,ContextTokens\n" + b"10,2023-11-16 18:17:03.9799600,4808\n" * 3,
    ):
        found = read_trace(written(tmp_path, content))
        assert found.instants.tolist() == plain.instants.tolist() == [0, 0, 0]
        assert found.prompt_tokens.tolist() == [4808] * 3 and found.output_tokens.tolist() == [10] * 3
        assert "nan" not in str(describe(found))


@pytest.mark.parametrize(
    "row",
    [
        '{"arrival": 0, "prompt_tokens": 2.7, "output_tokens": 1}',
        '{"arrival": 0, "prompt_tokens": true, "output_tokens": 1}',
        '{"arrival": 0, "prompt_tokens": 1e400, "output_tokens": 1}',
        '{"arrival": 0, "prompt_tokens": 99999999999999999999, "output_tokens": 1}',
        '{"arrival": NaN, "prompt_tokens": 5, "output_tokens": 1}',
        '{"arrival": 0, "prompt_tokens": 5, "output_tokens": 1, "think": NaN}',
        '{"arrival": 0, "prompt_tokens": 5, "output_tokens": 1, "think": -5}',
        '{"arrival": 0, "prompt_tokens": 5, "output_tokens": 1, "session": "a", "turn": -3}',
        '{"arrival": 0, "prompt_tokens": 5, "output_tokens": 1, "segments": [["a", -5], ["b", 10]]}',
        "[1]",
        "null",
    ],
)
def test_a_row_that_no_client_can_send_is_named_by_its_line(tmp_path, row):
    path = written(tmp_path, OWN + row + "\n")
    for read in (read_trace, read_plan):
        with pytest.raises(UnderloadError, match="line 2"):
            read(path)


def test_a_request_is_made_of_numbers():
    for wrong in (
        {"prompt_tokens": "5"},
        {"prompt_tokens": 2.5},
        {"prompt_tokens": math.nan},
        {"output_tokens": True},
        {"arrival": "0"},
        {"arrival": math.nan},
        {"think": "1"},
        {"turn": 0.5},
        {"segments": (Segment("a", 5), Segment("b", 0))},
    ):
        with pytest.raises(UnderloadError):
            Planned(**({"arrival": 0.0, "prompt_tokens": 5, "output_tokens": 1} | wrong))


def test_names_that_are_none_are_named(tmp_path, monkeypatch):
    for name in ("~nobody-of-that-name/x", "x" * 5_000, "a\0b", "", None, 5):
        with pytest.raises(UnderloadError):
            workload.find_trace(name)
    monkeypatch.setenv("UNDERLOAD_TRACES", "~nobody-of-that-name")
    with pytest.raises(UnderloadError):
        workload.find_trace("azure-conv")
    with pytest.raises(UnderloadError):
        read_trace(tmp_path)
    for most in (0, -1, "5", 1.5, math.nan):
        with pytest.raises(UnderloadError, match="most"):
            read_trace(written(tmp_path, OWN), most=most)


def test_dispersion_wants_instants_and_a_window():
    assert dispersion(np.zeros(0), 1.0) is None
    for instants, window in (([0.0, 1.0], 0), ([0.0, 1.0], math.nan), ([1.0, 0.0], 1.0), ([-1.0, 0.0], 1.0)):
        with pytest.raises(UnderloadError):
            dispersion(np.array(instants), window)
    with pytest.raises(UnderloadError, match="record"):
        describe("azure-conv")


def test_both_ends_of_a_plan_are_said_to_be_both():
    load = workload.Workload(workload.Poisson(1), workload.Lengths(5, 5))
    with pytest.raises(UnderloadError, match="not both"):
        load.plan(horizon=1.0, requests=0)
    with pytest.raises(UnderloadError, match="not neither"):
        load.plan()


# ---- drivers -----------------------------------------------------------------------------------------------------

PLAN = [Planned(0.001 * i, 5, 2, i) for i in range(6)]


def test_what_cancels_itself_has_failed_and_the_rest_go_on():
    async def submit(planned, timeline):
        if planned.index == 1:
            raise asyncio.CancelledError
        await asyncio.sleep(0)

    async def run(loop, *args, **options):
        return await asyncio.wait_for(loop(PLAN, submit, WallClock(), *args, **options), 20)

    for log in (asyncio.run(run(open_loop_async, connections=1)), asyncio.run(run(closed_loop_async, 2))):
        assert [entry.planned.index for entry in log.failures] == [1] and not log.unfinished and not log.not_sent

    def in_thread(planned, timeline):
        raise asyncio.CancelledError

    assert len(open_loop(PLAN, in_thread, WallClock()).failures) == len(PLAN)


def test_who_is_cancelled_from_outside_stops():
    async def submit(planned, timeline):
        await asyncio.sleep(60)

    async def run():
        await asyncio.wait_for(open_loop_async(PLAN, submit, WallClock()), 0.05)

    with pytest.raises(TimeoutError):
        asyncio.run(run())


def test_asyncio_raises_what_went_wrong_itself():
    async def submit(planned, timeline):
        timeline.token_times = [-5.0]

    with pytest.raises(UnderloadError, match="backwards"):
        asyncio.run(open_loop_async(PLAN, submit, WallClock()))


def test_asyncio_moves_no_virtual_clock():
    async def submit(planned, timeline):
        pass

    for clock in (VirtualClock(), EventQueue()):
        with pytest.raises(UnderloadError, match="virtual clock"):
            asyncio.run(open_loop_async(PLAN, submit, clock))
        with pytest.raises(UnderloadError, match="virtual clock"):
            asyncio.run(closed_loop_async(PLAN, submit, clock, 1))


def test_a_plan_is_made_of_planned():
    for plan in ([1], ["x"], [None]):
        with pytest.raises(UnderloadError, match="made of Planned"):
            open_loop(plan, lambda planned, timeline: None, WallClock())
