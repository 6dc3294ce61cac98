"""A run as a Chrome trace: every event is well formed, and what it shows adds up to the records."""

from __future__ import annotations

import gzip
import json
from itertools import groupby

import pytest
from paper_model import PaperExecutor, request

from underload.cache import BlockPool
from underload.engine import Engine, chrome_trace, write_chrome_trace
from underload.request import VirtualClock
from underload.scheduling import Scheduler

NUMBER = (int, float)
# What each kind of event must have, by the format's description.
WANTED = {
    "M": {"name": str, "pid": int, "args": dict},
    "X": {"name": str, "pid": int, "tid": int, "ts": NUMBER, "dur": NUMBER, "args": dict},
    "C": {"name": str, "pid": int, "ts": NUMBER, "args": dict},
    "b": {"name": str, "cat": str, "id": int, "pid": int, "ts": NUMBER},
    "e": {"name": str, "cat": str, "id": int, "pid": int, "ts": NUMBER},
}


@pytest.fixture(scope="module")
def run() -> Engine:
    """Preemptions, a cancelled one that never ran, one that failed on the way, and one that is still at work."""
    engine = Engine(Scheduler(BlockPool(8, 4), max_num_seqs=4), PaperExecutor(8, 4), VirtualClock(100.0))
    for i in range(5):
        engine.add(request(str(i), [i + 1] * 7, max_tokens=20, arrival=100.0 + i / 3))
    engine.add(request("gone", [1], arrival=100.0))
    engine.cancel("gone")
    engine.run()
    engine.add(request("live", [4] * 9, max_tokens=10, arrival=engine.clock.now()))
    engine.step()
    engine.step()
    return engine


@pytest.fixture(scope="module")
def requests(run) -> list:
    return [*run.finished, *run.scheduler.requests.values()]


@pytest.fixture(scope="module")
def events(run, requests) -> list:
    return chrome_trace(run.steps, requests)["traceEvents"]


def of(events, phase: str, name: str | None = None) -> list:
    return [event for event in events if event["ph"] == phase and name in (None, event["name"])]


def test_every_event_has_what_its_kind_needs_and_they_come_in_order(events):
    for event in events:
        wanted = WANTED[event["ph"]]
        assert all(isinstance(event[key], kind) for key, kind in wanted.items()), event
    instants = [event["ts"] for event in events if "ts" in event]
    assert instants == sorted(instants) and instants[0] >= 100e6


def test_it_is_json_without_numbers_that_json_does_not_have(run, requests):
    text = json.dumps(chrome_trace(run.steps, requests), allow_nan=False)
    assert json.loads(text)["displayTimeUnit"] == "ms"


def test_the_row_of_steps_is_the_records(run, events):
    row = of(events, "X")
    assert len(row) == len(run.steps)
    for event, step in zip(row, run.steps, strict=True):
        assert event["ts"] == pytest.approx(step.start * 1e6) and event["dur"] == pytest.approx(step.duration * 1e6)
        assert event["args"]["prefill_tokens"] == step.prefill_tokens
        assert ("decode" in event["name"]) == (step.decode_tokens > 0)
    ends = [event["ts"] + event["dur"] for event in row]
    assert all(end <= later["ts"] + 1e-3 for end, later in zip(ends, row[1:], strict=False))  # one after another


def test_counters_follow_the_records(run, events):
    blocks = [event["args"] for event in of(events, "C", "blocks")]
    assert blocks == [{"used": s.blocks_used, "cached": s.blocks_cached, "free": s.blocks_free} for s in run.steps]
    assert all(sum(args.values()) == 8 for args in blocks)
    queue = [event["args"]["waiting"] for event in of(events, "C", "queue")]
    assert queue == [*(step.queue_length for step in run.steps), 0] and max(queue) > 0
    assert [e["args"]["sequences"] for e in of(events, "C", "batch")] == [*(s.batch_size for s in run.steps), 0]


def test_each_request_has_a_track_of_phases_that_fill_it(requests, events):
    tracks = {
        number: list(group)
        for number, group in groupby(
            sorted((e for e in events if e["ph"] in "be"), key=lambda e: e["id"]), key=lambda e: e["id"]
        )
    }
    assert len(tracks) == len(requests)
    for number, one in enumerate(requests):
        depth, open_names, inside = 0, [], []
        for event in tracks[number]:
            if event["ph"] == "b":
                open_names.append(event["name"])
                depth += 1
            else:
                assert open_names.pop() == event["name"], "phases do not cross"
            assert depth - 1 <= 3
            if len(open_names) == 2:
                inside.append(event["name"])
        assert open_names == [] and tracks[number][0]["name"] == one.request_id
        facts = tracks[number][0]["args"]
        assert facts["preemptions"] == one.timeline.preemptions
        assert facts["finish_reason"] == (one.timeline.finish_reason or "unfinished")
        spans = dict.fromkeys(("waiting", "prefill", "decode", one.request_id), 0.0)
        for event in tracks[number]:
            spans[event["name"]] += event["ts"] * (1 if event["ph"] == "e" else -1)
        whole = spans.pop(one.request_id)
        assert sum(spans.values()) == pytest.approx(whole, abs=0.01)
        line = one.timeline
        if line.first_token is not None:
            assert spans["waiting"] == pytest.approx((line.scheduled - line.arrival) * 1e6, abs=0.01)
            assert spans["prefill"] == pytest.approx((line.first_token - line.scheduled) * 1e6, abs=0.01)
    assert any(one.timeline.preemptions for one in requests)
    assert {one.timeline.finish_reason for one in requests} >= {"cancelled", None}


def test_nothing_makes_an_empty_trace():
    trace = chrome_trace([], [])
    assert {event["ph"] for event in trace["traceEvents"]} == {"M"}


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_file_holds_the_same(run, requests, tmp_path, name):
    write_chrome_trace(tmp_path / name, run.steps, requests)
    data = (tmp_path / name).read_bytes()
    text = gzip.decompress(data) if name.endswith(".gz") else data
    assert json.loads(text) == json.loads(json.dumps(chrome_trace(run.steps, requests)))
