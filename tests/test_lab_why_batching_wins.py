"""Lab 4: its checks pass what is right and name what is wrong, its record is sound, its tasks stand alone."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import nbformat
import numpy as np
import pytest

from underload.course import handout
from underload.course.inspection import faults
from underload.labs import why_batching_wins as lab
from underload.request import UnderloadError, VirtualClock
from underload.shapes import StepLine, fit_step_time, shape

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "labs" / "why-batching-wins.ipynb"


# ------------------------------------------------------------------ the record


def test_record_says_where_when_and_how() -> None:
    record = lab.recorded()
    assert record["command"].startswith("python tests/benchmarks/step_time.py")
    assert record["machine"]["cpu"] and record["machine"]["threads"] >= 1 and record["date"]
    assert record["ceilings"]["read_bandwidth"] > 1e9 and record["ceilings"]["flops"] > 1e9
    assert "/" not in json.dumps({k: v for k, v in record["machine"].items() if isinstance(v, str)}), (
        "a path in the record"
    )


def test_record_has_the_sweeps_that_page_and_lab_draw() -> None:
    for sweep in ("decode", "context", "prefill"):
        xs, seconds = lab.series(sweep, "smollm2-135m")
        assert len(xs) >= 4 and xs == sorted(xs) and all(s > 0 for s in seconds)
    assert {1, 2, 4, 8, 16, 32} <= lab.example_times().keys()
    assert lab.example_times("plain").keys() == lab.example_times().keys()
    for row in lab.find("decode", "smollm2-135m")["rows"]:
        assert len(row["seconds"]) >= 12, (
            f"{len(row['seconds'])} times at batch size {row['batch_size']} make no median"
        )


def test_recorded_steps_do_not_beat_the_roofline() -> None:
    """Below the roofline: wrong bytes, or ceilings taken while the machine was busy. Their own noise is 5 %."""
    record = lab.recorded()
    series = lab.find("decode", "smollm2-135m")
    floor = lab.floor_of(
        "smollm2-135m",
        series["context"],
        bandwidth=record["ceilings"]["read_bandwidth"],
        flops=record["ceilings"]["flops"],
    )
    for batch, seconds in lab.example_times().items():
        assert seconds > 0.95 * floor(batch), f"batch size {batch}"


def test_an_unknown_series_is_refused_by_name() -> None:
    with pytest.raises(UnderloadError, match="no llama-3-8b"):
        lab.find("decode", "llama-3-8b")


# ------------------------------------------------------------------ the checks: right answers pass


def test_the_library_passes_its_own_checks() -> None:
    assert "7 runs, 5 of them counted" in lab.check_step_time(lab.step_time)
    assert "Both lines" in lab.check_fit(
        lambda sizes, times: (fit_step_time(sizes, times).o, fit_step_time(sizes, times).t)
    )
    assert "3 floors" in lab.check_floor(lab.decode_floor)
    assert "knee" in lab.check_choice(lambda o, t: o / t, lambda o, t, limit: StepLine(o, t).batch_for_step_time(limit))
    assert "judged" in lab.check_second(judge)


def test_right_answers_in_numpy_s_types_pass() -> None:
    def fit(sizes: Sequence[float], times: Sequence[float]) -> np.ndarray:
        rows = np.stack([1 / np.asarray(times), np.asarray(sizes) / np.asarray(times)], axis=1)
        return np.linalg.lstsq(rows, np.ones(len(rows)), rcond=None)[0]

    assert "Both lines" in lab.check_fit(fit)  # type: ignore[arg-type]
    assert "knee" in lab.check_choice(
        lambda o, t: o / t, lambda o, t, limit: np.int64(StepLine(o, t).batch_for_step_time(limit))
    )


def judge(one: float, two: float, t: float) -> str:
    beyond = (two - one - t) / one
    return "shared" if beyond <= 0.25 else "twice" if beyond > 0.75 else "partly"


# ------------------------------------------------------------------ the checks: each slip is named


def stopwatch(
    summary: Callable[[list[float]], float], *, drop_warmup: bool = True, extra: int = 0
) -> Callable[..., float]:
    def step_time(step: Callable[[], object], clock: VirtualClock, *, warmup: int = 2, repeats: int = 5) -> float:
        seconds = []
        for _ in range(warmup + repeats + extra):
            start = clock.now()
            step()
            seconds.append(clock.now() - start)
        return summary(seconds[warmup:] if drop_warmup else seconds)

    return step_time


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (stopwatch(statistics.mean), "the mean: one disturbed run moved it"),
        (stopwatch(min), "the smallest"),
        (stopwatch(sum), "the sum of all runs"),
        (stopwatch(statistics.median, drop_warmup=False), "with the warm-up runs counted"),
        (stopwatch(statistics.median, extra=1), "run 8 times"),
        (stopwatch(lambda seconds: seconds[len(seconds) // 2]), "not sorted"),
    ],
)
def test_a_wrong_stopwatch_is_told_what_is_wrong(wrong: Callable[..., float], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        lab.check_step_time(wrong)


def test_half_of_an_even_median_is_noticed() -> None:
    with pytest.raises(AssertionError, match="one of the two middle values"):
        lab.check_step_time(
            stopwatch(lambda seconds: sorted(seconds)[len(seconds) // 2]),
            (0.9, 0.8, 0.010, 0.030, 0.020, 0.090),
            warmup=2,
            repeats=4,
        )


def plain_fit(sizes: Sequence[float], times: Sequence[float]) -> tuple[float, float]:
    t, o = np.polyfit(sizes, times, 1)
    return float(o), float(t)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda sizes, times: plain_fit(sizes, times)[::-1], "the order is"),
        (plain_fit, "absolute errors"),
        (lambda sizes, times: (0.030, 0.0021), "made with o = 30 ms and t = 2 ms"),
        (lambda sizes, times: fit_step_time(sizes, times), "must return"),
    ],
)
def test_a_wrong_fit_is_told_what_is_wrong(wrong: Callable[..., object], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        lab.check_fit(wrong)


def floor_with(**slip: bool) -> Callable[..., float]:
    def floor(model, batch, context, bandwidth, flops, width=4):  # type: ignore[no-untyped-def]
        weights = width * model.num_parameters * (batch if slip.get("weights_each") else 1)
        heads = model.num_heads if slip.get("query_heads") else model.num_kv_heads
        kv = 2 * model.num_layers * heads * model.head_dim * width * context * (1 if slip.get("one_cache") else batch)
        compute = (1 if slip.get("one_flop") else 2) * model.num_parameters * batch / flops
        read = (weights + (0 if slip.get("no_cache") else kv)) / bandwidth
        return (
            read + compute if slip.get("added") else min(read, compute) if slip.get("smaller") else max(read, compute)
        )

    return floor


@pytest.mark.parametrize(
    ("slip", "says"),
    [
        ("weights_each", "once a step, not once a sequence"),
        ("query_heads", "query heads instead of KV heads"),
        ("one_cache", "keys and values of one sequence only"),
        ("one_flop", "one FLOP a weight"),
        ("no_cache", "keys and values are missing"),
        ("added", "the two times added"),
        ("smaller", "the smaller of the two"),
    ],
)
def test_a_wrong_floor_is_told_what_is_wrong(slip: str, says: str) -> None:
    assert lab.check_floor(floor_with())
    with pytest.raises(AssertionError, match=says):
        lab.check_floor(floor_with(**{slip: True}))


@pytest.mark.parametrize(
    ("knee", "largest", "says"),
    [
        (lambda o, t: t / o, lambda o, t, limit: 10, "t/o instead of o/t"),
        (lambda o, t: 9 * o / t, lambda o, t, limit: 10, "90 %"),
        (lambda o, t: o / t, lambda o, t, limit: (limit - o) / t, "whole number"),
        (lambda o, t: o / t, lambda o, t, limit: int((limit - o) / t), "is 9"),
        (lambda o, t: o / t, lambda o, t, limit: int((limit - o) / t + 1e-9) + 1, "is 11"),
        (lambda o, t: o / t, lambda o, t, limit: max(1, int((limit - o) / t + 1e-9)), "is 1"),
    ],
)
def test_a_wrong_choice_is_told_what_is_wrong(
    knee: Callable[..., float], largest: Callable[..., int], says: str
) -> None:
    with pytest.raises(AssertionError, match=says):
        lab.check_choice(knee, largest)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda one, two, t: "shared", "should be 'partly'"),
        (lambda one, two, t: "twice" if two > 1.5 * one else "shared", "should be 'partly'"),
        (lambda one, two, t: "maybe", "must be 'shared'"),
    ],
)
def test_a_wrong_verdict_is_told_what_is_wrong(wrong: Callable[..., str], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        lab.check_second(wrong)


def test_the_floor_of_the_task_is_near_the_library_s_own_count() -> None:
    """The exact count adds little: attention's arithmetic, the writes, embedding rows not read."""
    for batch in (1, 8, 64):
        by_hand = lab.decode_floor(shape("smollm2-135m"), batch, 128, 30e9, 150e9)
        exact = lab.floor_of("smollm2-135m", 128, bandwidth=30e9, flops=150e9)(batch)
        assert exact == pytest.approx(by_hand, rel=0.05)


# ------------------------------------------------------------------ pictures


def test_pictures_carry_their_numbers_in_words_and_in_a_table() -> None:
    times = {1: 0.031, 2: 0.032, 8: 0.040, 16: 0.052}
    line = fit_step_time(list(times), list(times.values()))
    drawn = lab.draw_step_times(times, line=line, floor=lambda b: 0.02, others={"plain": {1: 0.04}}, live={8: 0.041})
    html = drawn._repr_html_()
    assert "31 ms at batch size 1" in html and "over roofline" in html and "plain (ms)" in html
    html = lab.draw_throughput(times, line, choice=10)._repr_html_()
    assert f"{1 / line.t:.0f} tokens/s" in html and "A batch of 10 is marked" in html
    html = lab.draw_rates({1: 14.8e9, 2: 7.9e9}, 30e9)._repr_html_()
    assert "14.8 GB/s with 1 row, 7.9 with 2" in html


def test_a_machine_whose_second_sequence_is_free_has_a_picture_too() -> None:
    times = {1: 0.030, 2: 0.030, 4: 0.030}
    assert "costs nothing here" in lab.draw_throughput(times, StepLine(0.030, 0.0))._repr_html_()


# ------------------------------------------------------------------ the notebook


@pytest.fixture(scope="module")
def notebook() -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOK, 4)


def test_notebook_has_no_faults(notebook: nbformat.NotebookNode) -> None:
    assert faults(notebook) == []


def test_tasks_points_and_predictions(notebook: nbformat.NotebookNode) -> None:
    points = {
        cell.metadata["nbgrader"]["grade_id"]: cell.metadata["nbgrader"]["points"]
        for cell in notebook.cells
        if cell.metadata.get("nbgrader", {}).get("grade")
    }
    assert sum(value for name, value in points.items() if not name.startswith("further")) == 22
    assert {name.split("-check")[0] for name in points if name.startswith("task") and name.endswith("check")} == {
        f"task-{number}" for number in range(1, 6)
    }
    assert [points[f"prediction-{number}-made"] for number in (1, 2)] == [1, 1]


def test_graded_cells_of_a_task_use_no_other_task(notebook: nbformat.NotebookNode) -> None:
    """With the other tasks left unsolved, each solved task still passes its check, hidden tests included."""
    made = handout(notebook)
    given = next(cell.source for cell in notebook.cells if "import ipywidgets" in cell.source)
    imports = "\n".join(
        line for line in given.splitlines() if line.startswith(("import ", "from ")) and "ipywidgets" not in line
    )
    solved = {cell.metadata["nbgrader"]["grade_id"]: cell for cell in notebook.cells if cell.metadata.get("nbgrader")}
    for number in range(1, 6):
        name = next(
            key for key in solved if key.startswith(f"task-{number}-") and solved[key].metadata["nbgrader"]["solution"]
        )
        others = [
            cell.source
            for cell in made.cells
            if cell.cell_type == "code"
            and cell.metadata.get("nbgrader", {}).get("solution")
            and not cell.metadata["nbgrader"]["grade_id"].startswith((f"task-{number}-", "prediction"))
        ]
        scope: dict[str, object] = {}
        exec(imports, scope)
        for source in others:
            exec(source, scope)
        exec(solved[name].source, scope)
        exec(solved[f"task-{number}-check"].source, scope)


def test_the_hand_out_earns_nothing(notebook: nbformat.NotebookNode) -> None:
    made = handout(notebook)
    given = next(cell.source for cell in made.cells if "import ipywidgets" in cell.source)
    imports = "\n".join(
        line for line in given.splitlines() if line.startswith(("import ", "from ")) and "ipywidgets" not in line
    )
    scope: dict[str, object] = {}
    exec(imports, scope)
    for cell in made.cells:
        if cell.cell_type == "code" and cell.metadata.get("nbgrader", {}).get("solution"):
            exec(cell.source, scope)
    for cell in made.cells:
        if cell.cell_type == "code" and cell.metadata.get("nbgrader", {}).get("grade"):
            with pytest.raises((NotImplementedError, AssertionError)):
                exec(cell.source, scope)


# ------------------------------------------------------------------ the benchmark


def test_the_benchmark_runs_small_and_stores_what_the_lab_reads(tmp_path: Path) -> None:
    out = tmp_path / "step_time.json"
    script = ROOT / "tests" / "benchmarks" / "step_time.py"
    command = [
        sys.executable,
        str(script),
        "--quick",
        "--small",
        "shape:bench-s",
        "--paths",
        "plain",
        "--out",
        str(out),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    found = json.loads(out.read_text())
    assert set(found) == set(lab.recorded()) | {"other_load"}
    assert found["decode"][0].keys() == lab.recorded()["decode"][0].keys()
    assert [row["batch_size"] for row in found["decode"][0]["rows"]] == [1, 2, 4]
    assert all(seconds > 0 for row in found["prefill"][0]["rows"] for seconds in row["seconds"])
