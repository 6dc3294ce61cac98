"""The chart of a batch: what it draws is what the scheduler planned, row by row and step by step."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from underload import figures
from underload.cache import BlockPool
from underload.engine import Engine
from underload.figures.gantt import HELD, PROMPT, TOKEN
from underload.request import Request, SamplingParams, StepRecord, Timeline, VirtualClock
from underload.scheduling import Batching, Continuous, Plan, Scheduler, Static, StepResult
from underload.simulation import CostModelExecutor, LinearStepTime

EIGHT = {"A": (6, 3), "B": (10, 12), "C": (4, 5), "D": (8, 4), "E": (9, 6), "F": (5, 2), "G": (12, 8), "H": (6, 3)}


def record(
    batching: Batching, *, requests: dict[str, tuple[int, int]] = EIGHT, n: int = 1, blocks: int = 100, **limits: Any
) -> tuple[figures.BatchRecording, list[Plan], list[StepRecord]]:
    """A recording, the plans it saw, and their records."""
    recording, plans = figures.BatchRecording(), []

    def watch(plan: Plan, result: StepResult, step: StepRecord) -> None:
        plans.append(plan)
        recording(plan, result, step)

    scheduler = Scheduler(BlockPool(blocks, 4), batching=batching, **{"max_num_seqs": 4, **limits})
    engine = Engine(scheduler, CostModelExecutor(LinearStepTime(0.02, 0.001)), VirtualClock(), on_step=watch)
    for number, (name, (prompt, answer)) in enumerate(requests.items()):
        want = SamplingParams(max_tokens=answer, n=n)
        engine.add(Request(name, [100 * number + i for i in range(prompt)], want, Timeline(0.0)))
    engine.run()
    return recording, plans, engine.steps


def data_of(picture: figures.Picture) -> dict[str, Any]:
    found = re.search(r'<script type="application/json">(.*?)</script>', picture.html, re.DOTALL)
    assert found
    return json.loads(found[1])


POLICIES = [Static(4), Static(3), Continuous(), Continuous(prefill="prefill-first"), Continuous(prefill="mixed")]


@pytest.mark.parametrize("batching", POLICIES, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("budget", [2048, 12])
def test_cells_account_for_every_token_of_every_step(batching: Batching, budget: int) -> None:
    recording, plans, steps = record(batching, max_num_batched_tokens=budget)
    assert len(recording.moments) == len(plans) == len(steps)
    for moment, plan, step in zip(recording.moments, plans, steps, strict=True):
        assert sum(cell.tokens for cell in moment.cells) == step.prefill_tokens + step.decode_tokens
        assert sum(cell.padding for cell in moment.cells) == step.padding_tokens
        assert sum(cell.tokens for cell in moment.cells if cell.kind == TOKEN) == step.decode_tokens
        assert sum(cell.kind == HELD for cell in moment.cells) == len(plan.held)
        assert (moment.start, moment.duration) == (step.start, step.duration)
    finished = [who for moment in recording.moments for who in moment.finished]
    assert sorted(finished) == sorted(EIGHT)


@pytest.mark.parametrize("batching", POLICIES, ids=lambda one: type(one).__name__)
def test_a_row_has_one_sequence_at_a_time_and_a_sequence_one_row(batching: Batching) -> None:
    recording, _, _ = record(batching)
    rows: dict[str, int] = {}
    for moment in recording.moments:
        taken = [cell.row for cell in moment.cells]
        assert len(set(taken)) == len(taken) and set(taken) <= set(range(4))
        for cell in moment.cells:
            assert rows.setdefault(cell.who, cell.row) == cell.row
    assert recording.rows == (3 if isinstance(batching, Static) and batching.size == 3 else 4)


def test_a_continuous_batch_hands_a_row_on_in_the_next_step() -> None:
    recording, _, _ = record(Continuous())
    for before, after in zip(recording.moments, recording.moments[1:], strict=False):
        if before.finished and before.waiting:
            assert len(after.joined) == min(len(before.finished), before.waiting)
            freed = {cell.row for cell in before.cells if cell.who in before.finished}
            assert {cell.row for cell in after.cells if cell.who in after.joined} <= freed


def test_a_static_batch_keeps_rows_to_its_end() -> None:
    recording, _, _ = record(Static(4))
    first = [moment for moment in recording.moments if {cell.who for cell in moment.cells} <= set("ABCD")]
    assert len(first) == 12  # the longest of the four
    assert [sum(cell.kind == HELD for cell in moment.cells) for moment in first] == [0] * 3 + [1, 2] + [3] * 7
    assert all(not moment.joined for moment in first[1:])


def test_samples_and_those_who_come_back_have_rows_of_their_own() -> None:
    recording, _, _ = record(Continuous(), requests={"A": (5, 4), "B": (6, 5)}, n=2)
    assert {cell.who for moment in recording.moments for cell in moment.cells} == {"A1", "A2", "B1", "B2"}
    tight, plans, _ = record(Continuous(), requests={"A": (8, 12), "B": (8, 12)}, blocks=7)
    assert any(sequence.preemptions for plan in plans for sequence in plan.admitted)
    joins = [who for moment in tight.moments for who in moment.joined]
    assert joins.count("A") == 1 and joins.count("B") >= 2


def test_the_picture_draws_one_bar_a_cell_and_padding_beside_it() -> None:
    recording, _, _ = record(Static(4))
    picture = figures.batch_gantt(recording, unit="ms")
    data = data_of(picture)
    assert data["counts"] == [len(recording.moments)]
    bars = 0
    for moment, frame in zip(recording.moments, data["frames"], strict=True):
        bars += sum(
            (cell.tokens > 0 or cell.kind == HELD) + (cell.kind == PROMPT and cell.padding > 0) for cell in moment.cells
        )
        drawn = [data["pool"][number] for number in frame["i"] if data["pool"][number]["kind"] == "bar"]
        assert len(drawn) == bars
    last = 1000 * recording.moments[-1].stop
    ends = [data["pool"][number]["x"][1] for number in data["frames"][-1]["i"] if data["pool"][number]["kind"] == "bar"]
    assert max(ends) == pytest.approx(last)
    assert picture.data is not None and picture.data["thrown away"][-1] == 65
    assert "4 rows" in picture.alt


def test_two_runs_can_be_chosen_and_the_shorter_stays_at_its_end() -> None:
    (static, _, _), (continuous, _, _) = record(Static(4)), record(Continuous())
    assert len(continuous.moments) < len(static.moments)
    picture = figures.batch_gantt({"static": static, "continuous": continuous}, label="The batch is")
    data = data_of(picture)
    assert data["counts"] == [len(static.moments), 2]
    end = len(continuous.moments) - 1
    assert data["frames"][-1]["i"] == data["frames"][2 * end + 1]["i"]
    assert "(The run is over.)" in picture.html


def test_sentences_say_who_joins_and_who_is_kept() -> None:
    recording, _, _ = record(Static(4))
    html = figures.batch_gantt(recording).html
    assert "A, B, C and D join; 4 wait." in html
    assert "B writes a token; the rows of A, C and D are kept; 4 wait." in html
    assert "E, F, G and H join." in html


def test_bad_recordings_are_refused() -> None:
    recording, _, _ = record(Continuous())
    with pytest.raises(figures.FigureError, match="without a step"):
        figures.batch_gantt(figures.BatchRecording())
    with pytest.raises(figures.FigureError, match="without a step"):
        figures.batch_gantt({})
    with pytest.raises(figures.FigureError, match="'s' or 'ms'"):
        figures.batch_gantt(recording, unit="h")
