"""The pool that can be stepped through, the chain of names, and the fork: what they say is what the pool did."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from underload import figures
from underload.cache import BlockPool
from underload.engine import Engine
from underload.request import Request, SamplingParams, Timeline, VirtualClock
from underload.scheduling import Scheduler
from underload.simulation import CostModelExecutor, LinearStepTime


def record(caching: bool = True, blocks: int = 9) -> figures.BlockRecording:
    scheduler = Scheduler(BlockPool(blocks, 4, prefix_caching=caching))
    recording = figures.BlockRecording(scheduler, CostModelExecutor(LinearStepTime(1.0, 0.0)))
    engine = Engine(scheduler, recording, VirtualClock())
    system = list(range(8))
    for name, arrival, prompt, tokens, n in (
        ("A", 0, [*system, 11, 12], 6, 1),
        ("B", 2, [*system, 21, 22, 23], 8, 1),
        ("C", 4, list(range(31, 37)), 6, 2),
        ("D", 7, list(range(40, 50)), 10, 1),
        ("E", 13, [*system, 51, 52, 53, 54], 6, 1),
    ):
        engine.add(Request(name, prompt, SamplingParams(max_tokens=tokens, n=n), Timeline(float(arrival))))
    engine.run()
    return recording


@pytest.fixture(scope="module")
def recording() -> figures.BlockRecording:
    return record()


def data_of(picture: figures.Picture) -> dict[str, Any]:
    found = re.search(r'<script type="application/json">(.*?)</script>', picture.html, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_every_moment_accounts_for_every_block(recording: figures.BlockRecording) -> None:
    for moment in recording.moments:
        holders = [sum(number in blocks for blocks, _ in moment.tables.values()) for number in range(9)]
        assert [state.ref_count for state in moment.states] == holders
        assert all((state.place == "used") == (count > 0) for state, count in zip(moment.states, holders, strict=True))


def test_the_story_has_what_the_chapter_tells(recording: figures.BlockRecording) -> None:
    says = [moment.says for moment in recording.moments]
    assert says[0].startswith("A is admitted with 3 blocks.")
    assert says[2] == "B is admitted with 3 blocks, 2 of them found."
    assert recording.moments[2].tokens == 1 + 3
    assert "forked" in says[5] and "is copied to" in says[5]
    assert says[6] == "A has finished." and any(state.place == "cached" for state in recording.moments[6].states)
    assert all(state.place == "used" for state in recording.moments[7].states) and "D waits" in says[7]
    assert says[8].startswith("C2 is preempted and gives up its blocks")
    assert "C2 is admitted again with 3 blocks, 2 of them found" in says[10]


def test_cached_blocks_are_known_by_their_writer(recording: figures.BlockRecording) -> None:
    last = recording.moments[-1]
    writers = {who for state, who in zip(last.states, last.writers, strict=True) if state.place == "cached"}
    assert writers and writers <= {"A", "B", "C1", "C2", "D", "E"}
    for moment in recording.moments:
        for state, who in zip(moment.states, moment.writers, strict=True):
            assert state.place != "cached" or who


def test_without_a_cache_nothing_is_cached_and_nothing_found() -> None:
    plain = record(caching=False)
    assert all(state.place != "cached" for moment in plain.moments for state in moment.states)
    assert not any("found" in moment.says for moment in plain.moments)


def test_the_figure_draws_each_block_once_for_each_holder(recording: figures.BlockRecording) -> None:
    picture = figures.block_pool(recording)
    data = data_of(picture)
    assert data["counts"] == [len(recording.moments)]
    for moment, frame in zip(recording.moments, data["frames"], strict=True):
        bars = [data["pool"][number] for number in frame["i"]]
        pool = [bar for bar in bars if bar["panel"] == 0]
        tables = [bar for bar in bars if bar["panel"] == 1]
        held = sum(len(blocks) for blocks, _ in moment.tables.values())
        assert len(tables) == held
        assert len(pool) == held + sum(state.place != "used" for state in moment.states)
        said = sorted(int(bar["label"]) for bar in tables)
        assert said == sorted(number for blocks, _ in moment.tables.values() for number in blocks)
    assert picture.alt and "9 blocks" in picture.alt


def test_two_runs_can_be_chosen_and_the_shorter_one_stays_at_its_end(recording: figures.BlockRecording) -> None:
    short = record(blocks=9)
    del short.moments[5:]
    picture = figures.block_pool({"long": recording, "short": short}, label="Run")
    data = data_of(picture)
    assert data["counts"] == [len(recording.moments), 2]
    assert data["frames"][-1]["i"] == data["frames"][4 * 2 + 1]["i"]
    assert "(The run is over.)" in picture.html


def test_bad_recordings_are_refused(recording: figures.BlockRecording) -> None:
    empty = figures.BlockRecording(Scheduler(BlockPool(9, 4)), CostModelExecutor(LinearStepTime(1.0, 0.0)))
    with pytest.raises(figures.FigureError, match="without a step"):
        figures.block_pool(empty)
    with pytest.raises(figures.FigureError, match="pools of"):
        figures.block_pool({"one": recording, "other": record(blocks=12)})


def test_names_are_equal_exactly_where_prompts_are_equal_from_the_start() -> None:
    picture = figures.named_blocks(
        {"one": list("abcdefghi"), "two": list("abcdefgx"), "three": list("zabcdefg")}, block=4
    )
    assert "one has the names d0, d1 and 1 tokens in an open block" in picture.alt
    assert "two has the names d0, d2" in picture.alt
    assert "three has the names d3, d4" in picture.alt
    assert picture.html.count(">found<") == 2  # d0 of the second prompt, in both layouts
    with pytest.raises(figures.FigureError):
        figures.named_blocks({"short": ["a"]})


def test_the_fork_draws_what_a_pool_does() -> None:
    pool = BlockPool(8, 4)
    one = pool.allocate(None, 6)
    two = pool.fork(one)
    pool.append(one, 9)
    (copy,) = pool.write(one, 6, 9)
    picture = figures.fork_and_copy(prompt=6, block=4, written=3)
    assert f"the open block {copy[0]} is copied to {copy[1]}" in picture.alt
    assert two.blocks[0] == one.blocks[0]
    for bad in ({"prompt": 8}, {"prompt": 30}, {"written": 0}):
        with pytest.raises(figures.FigureError):
            figures.fork_and_copy(**bad)
