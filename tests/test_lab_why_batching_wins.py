"""Lab 4: its checks say what is wrong, its record is sound, its tasks stand alone.

What typical wrong answers earn stands in course/why-batching-wins.toml.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from underload.course import handout, read_notebook
from underload.course.assemble import assemble
from underload.course.outline import outline
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


# ------------------------------------------------------------------ what a wrong answer is told


def stopwatch(
    summary: Callable[[list[float]], object], *, drop_warmup: bool = True, extra: int = 0
) -> Callable[..., object]:
    def step_time(step: Callable[[], object], clock: VirtualClock, *, warmup: int = 2, repeats: int = 5) -> object:
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
        (stopwatch(lambda seconds: seconds[len(seconds) // 2]), "not sorted"),
        (stopwatch(lambda seconds: None), "must be a number, got None"),
        (stopwatch(lambda seconds: math.nan), "must be a number, got nan"),
        (lambda step, clock, **how: step(), "must be a number"),
        (lambda step, clock, **how: 0.001, "never asked"),
    ],
)
def test_a_wrong_stopwatch_is_told_what_is_wrong(wrong: Callable[..., object], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        lab.check_step_time(wrong)


def test_the_scripts_of_the_stopwatch_tell_one_slip_from_another() -> None:
    """Who counts the warm-up still passes where one run is disturbed, and who takes the mean where none is."""
    lab.check_step_time(stopwatch(statistics.median, drop_warmup=False), lab.SLOW_START)
    lab.check_step_time(stopwatch(statistics.mean), lab.LONG_WARMUP, warmup=5, repeats=3)
    with pytest.raises(AssertionError, match="with the warm-up runs counted"):
        lab.check_step_time(stopwatch(statistics.median, drop_warmup=False), lab.LONG_WARMUP, warmup=5, repeats=3)


def test_runs_are_counted() -> None:
    lab.check_runs(stopwatch(statistics.median), warmup=2, repeats=5)
    with pytest.raises(AssertionError, match=r"run 8 times; 2 .* and 5 .* make 7"):
        lab.check_runs(stopwatch(statistics.median, extra=1), warmup=2, repeats=5)


@pytest.mark.parametrize(
    ("middle", "says"), [(lambda s: s[len(s) // 2], "one of the two middle"), (lambda s: s[1], "the lower of the two")]
)
def test_half_of_an_even_median_is_noticed(middle: Callable[[list[float]], float], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        lab.check_step_time(
            stopwatch(lambda seconds: middle(sorted(seconds))), (0.022, 0.014, 0.026, 0.018), warmup=0, repeats=4
        )


def plain_fit(sizes: Sequence[float], times: Sequence[float]) -> tuple[float, float]:
    t, o = np.polyfit(sizes, times, 1)
    return float(o), float(t)


def weighted_fit(weight: Callable[[Any, Any], Any]) -> Callable[..., tuple[float, float]]:
    def fit(sizes: Sequence[float], times: Sequence[float]) -> tuple[float, float]:
        t, o = np.polyfit(sizes, times, 1, w=weight(np.asarray(sizes, float), np.asarray(times)))
        return float(o), float(t)

    return fit


@pytest.mark.parametrize(
    ("check", "wrong", "says"),
    [
        (lab.check_line, lambda sizes, times: plain_fit(sizes, times)[::-1], "the order is"),
        (lab.check_line, lambda sizes, times: (0.030, 0.0021), "made with o = 30 ms and t = 2 ms"),
        (lab.check_line, lambda sizes, times: (0.032, 0.002), "the step for one sequence"),
        (lab.check_line, lambda sizes, times: (math.nan, 0.002), "must be a number, got nan"),
        (lab.check_slope, lambda sizes, times: (0.030, 0.0021), "t = 2 ms for each sequence"),
        (lab.check_slope, lambda sizes, times: fit_step_time(sizes, times), "must return"),
        (lab.check_fit, plain_fit, "absolute errors least"),
        (lab.check_fit, weighted_fit(lambda sizes, times: times**-2), "divided by T twice"),
        (lab.check_fit, weighted_fit(lambda sizes, times: 1 / sizes), "divided by B"),
        (lab.check_fit, lambda sizes, times: None, "must return"),
    ],
)
def test_a_wrong_fit_is_told_what_is_wrong(check: Callable[..., None], wrong: Callable[..., object], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        check(wrong)


def floor_with(**slip: bool) -> Callable[..., float]:
    def floor(model: Any, batch: int, context: int, bandwidth: float, flops: float, width: float = 4) -> float:
        weights = (1 if slip.get("no_width") else width) * model.num_parameters
        weights *= batch if slip.get("weights_each") else 1
        heads = model.num_heads if slip.get("query_heads") else model.num_kv_heads
        kv = 2 * model.num_layers * heads * model.head_dim * width * context * (1 if slip.get("one_cache") else batch)
        kv *= 0.5 if slip.get("keys_only") else 0 if slip.get("no_cache") else 1
        compute = (1 if slip.get("one_flop") else 2) * model.num_parameters / flops
        compute *= 1 if slip.get("one_sequence") else batch
        compute *= context if slip.get("all_tokens") else 0 if slip.get("no_compute") else 1
        read = (weights + kv) / bandwidth
        return (
            read + compute if slip.get("added") else min(read, compute) if slip.get("smaller") else max(read, compute)
        )

    return floor


WHOLE = {"name": "smollm2-135m", "context": 128, "bandwidth": 30e9, "width": 4}


def whole(batch: int, flops: float) -> Callable[[Callable[..., float]], None]:
    return lambda floor: lab.check_floor(floor, batch=batch, flops=flops, **WHOLE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("check", "slip", "says"),
    [
        (lab.check_weights, "weights_each", "once a step, not once a sequence"),
        (lab.check_weights, "no_width", "bytes_per_value wide"),
        (lab.check_cache, "query_heads", "query heads instead of KV heads"),
        (lab.check_cache, "keys_only", "keys without values"),
        (lab.check_cache, "no_cache", "keys and values are missing"),
        (lambda floor: lab.check_caches(floor, "llama-2-7b", 8), "one_cache", "of one sequence only"),
        (lambda floor: lab.check_caches(floor, "llama-2-7b", 8), "no_cache", "keys and values are missing"),
        (lab.check_arithmetic, "one_flop", "one FLOP a weight"),
        (lab.check_arithmetic, "one_sequence", "of one sequence only"),
        (lab.check_arithmetic, "all_tokens", "one token a sequence"),
        (lab.check_arithmetic, "no_compute", "arithmetic is missing"),
        (lab.check_longer, "added", "the two times added"),
        (lab.check_longer, "smaller", "the shorter of the two"),
        (lab.check_longer, "no_compute", "the two overlap"),
        (whole(1, 150e9), "one_cache", ""),
        (whole(8, 1e15), "one_cache", "of one sequence only"),
        (whole(8, 1e15), "weights_each", "once a step, not once a sequence"),
        (whole(8, 1e15), "query_heads", "query heads instead of KV heads"),
        (whole(8, 1e15), "no_cache", "keys and values are missing"),
        (whole(8, 1e10), "one_flop", "one FLOP a weight"),
        (whole(8, 1e10), "added", "the two times added"),
        (whole(8, 1e10), "smaller", "the time of reading alone"),
        (whole(8, 1e10), "no_compute", "the time of reading alone"),
        (whole(8, 1e15), "smaller", "the time of arithmetic alone"),
    ],
)
def test_a_wrong_floor_is_told_what_is_wrong(
    check: Callable[[Callable[..., float]], None], slip: str, says: str
) -> None:
    check(floor_with())
    check(lab.decode_floor)
    if not says:  # a slip that this step does not show
        check(floor_with(**{slip: True}))
        return
    with pytest.raises(AssertionError, match=says):
        check(floor_with(**{slip: True}))


@pytest.mark.parametrize("slip", ["added", "smaller", "weights_each", "one_flop", "one_sequence", "no_compute"])
def test_what_a_token_in_the_cache_costs_is_told_apart_from_everything_else(slip: str) -> None:
    lab.check_cache(floor_with(**{slip: True}))
    lab.check_caches(floor_with(**{slip: True}), "llama-2-7b", 8)


def test_the_shape_of_task_3_counts_nothing() -> None:
    bare = lab.BareShape.of(shape("llama-3-8b"))
    assert bare.num_parameters == shape("llama-3-8b").num_parameters and bare.num_kv_heads == 8
    with pytest.raises(AttributeError, match="no kv_bytes_per_token: count it yourself"):
        bare.kv_bytes_per_token(2)


def check_choice(knee: Callable[..., object], largest: Callable[..., object]) -> None:
    lab.check_knee(knee)
    for limit in (0.030, 0.0309, 0.015):
        lab.check_batch(largest, 0.020, 0.001, limit)


@pytest.mark.parametrize(
    ("knee", "largest", "says"),
    [
        (lambda o, t: t / o, lambda o, t, limit: 10, "t/o instead of o/t"),
        (lambda o, t: 9 * o / t, lambda o, t, limit: 10, "90 %"),
        (lambda o, t: 1 / t, lambda o, t, limit: 10, "the limit 1/t"),
        (lambda o, t: None, lambda o, t, limit: 10, "must be a number, got None"),
        (lambda o, t: math.ceil(o / t), lambda o, t, limit: 10, r"is 8 \(rounded to 8; a knee need not be a whole"),
        (lambda o, t: int(o / t), lambda o, t, limit: 10, r"is 7 \(rounded to 7; a knee need not be a whole"),
        (lambda o, t: o / t, lambda o, t, limit: (limit - o) / t, "whole number"),
        (lambda o, t: o / t, lambda o, t, limit: "10", "must be a number, got '10'"),
        (lambda o, t: o / t, lambda o, t, limit: int((limit - o) / t), "is 9; 10 take 0.03 s and 11 take 0.031 s"),
        (lambda o, t: o / t, lambda o, t, limit: int((limit - o) / t + 1e-9) + 1, "is 11"),
        (lambda o, t: o / t, lambda o, t, limit: max(1, int((limit - o) / t + 1e-9)), "is 1; even one takes 0.021 s"),
        (lambda o, t: o / t, lambda o, t, limit: int((limit - o) / t + 1e-9), "when no step is short enough it is 0"),
    ],
)
def test_a_wrong_choice_is_told_what_is_wrong(
    knee: Callable[..., object], largest: Callable[..., object], says: str
) -> None:
    check_choice(lambda o, t: o / t, lambda o, t, limit: StepLine(o, t).batch_for_step_time(limit))
    with pytest.raises(AssertionError, match=says):
        check_choice(knee, largest)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda one, two, t: "shared", "'partly'"),
        (lambda one, two, t: "partly", "1% of T"),
        (lambda one, two, t: "maybe", "must be 'shared'"),
        (lambda one, two, t: None, "must be 'shared'"),
    ],
)
def test_a_wrong_verdict_is_told_what_is_wrong(wrong: Callable[..., object], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        lab.check_second(wrong, (0.030, 0.0312, 0.001), (0.030, 0.0462, 0.001), (0.030, 0.0590, 0.001))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda lengths, seconds, batch, kv: kv / np.polyfit(lengths, seconds, 1)[0], "bytes of one sequence"),
        (lambda lengths, seconds, batch, kv: batch * kv * lengths[-1] / seconds[-1], "from the whole step time"),
        (lambda lengths, seconds, batch, kv: batch / np.polyfit(lengths, seconds, 1)[0], "tokens, not bytes"),
        (lambda lengths, seconds, batch, kv: 5.0, "GB/s; bytes/s are wanted"),
        (lambda lengths, seconds, batch, kv: math.inf, "must be a number, got inf"),
    ],
)
def test_a_wrong_rate_is_told_what_is_wrong(wrong: Callable[..., object], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        lab.check_cache_rate(wrong, rate=5e9, batch=4, fixed=0.020)


# ------------------------------------------------------------------ the machine of one's own


def test_what_was_not_written_yet_is_not_wrong() -> None:
    machine = lab.your_machine(0)
    for check in (
        lambda: lab.check_my_batch(None, machine),
        lambda: lab.check_my_share(None, None, machine),
        lambda: lab.check_share_form(None),
    ):
        with pytest.raises(NotImplementedError, match="still None"):
            check()


def test_every_student_s_machine_is_as_hard_as_the_others() -> None:
    machines = [lab.your_machine(seed) for seed in range(400)]
    assert len({str(machine) for machine in machines}) > 380
    for machine in machines:
        line = StepLine(machine.o, machine.t)
        batch = line.batch_for_step_time(machine.limit)
        assert 20 <= batch <= 60
        assert line.step_time(batch + 1) > machine.limit * 1.0002 and line.step_time(batch) < machine.limit * 0.999
        assert round((machine.limit - machine.o) / machine.t) == batch + 1, "rounding must be wrong for everybody"
        share = line.throughput(batch) * line.t
        assert 0.34 < share < 0.66
        lab.check_my_batch(float(batch), machine)
        lab.check_my_share(round(share, 2), batch, machine)
        # what is printed is what there is
        assert f"t = {machine.t * 1e3:.2f} ms" in str(machine) and machine.t == pytest.approx(
            round(machine.t, 5), abs=1e-12
        )


def test_the_machine_of_the_book_stays() -> None:
    assert str(lab.your_machine(0)) == (
        "your machine: o = 23.9 ms, t = 0.71 ms; promised: a token at least every 55 ms"
    )


@pytest.mark.parametrize(
    ("batch", "share", "says"),
    [
        (44, None, "takes 55.14 ms; promised are 55 ms"),
        (42, None, "one sequence more takes 54.43 ms"),
        (0, None, "keeps its promise to some"),
        (43.8, None, "whole number"),
        (43, 56.1, "in per cent"),
        (43, 789.9, "in tokens/s"),
        (43, 0.439, "step time that is o"),
        (43, 19.4, "throughput of one sequence"),
        (43, "56 %", "must be a number"),
    ],
)
def test_a_wrong_number_for_one_s_own_machine_is_told_what_is_wrong(batch: float, share: Any, says: str) -> None:
    machine = lab.your_machine(0)
    with pytest.raises(AssertionError, match=says):
        if share is None:
            lab.check_my_batch(batch, machine)
        else:
            lab.check_my_share(share, batch, machine)


@pytest.mark.parametrize("share", [56.1, 0, 1, -0.5, "56 %", 789.9])
def test_what_is_no_share_is_told_at_once(share: object) -> None:
    with pytest.raises(AssertionError, match="my_share"):
        lab.check_share_form(share)


@pytest.mark.parametrize("share", [0.56, 0.1, np.float64(0.9), np.array([0.5])])
def test_the_form_of_a_share_says_nothing_about_its_value(share: object) -> None:
    lab.check_share_form(share)


def test_the_share_of_a_wrong_batch_is_right_by_itself() -> None:
    machine = lab.your_machine(0)
    line = StepLine(machine.o, machine.t)
    for batch in (30, 43):
        lab.check_my_share(line.throughput(batch) * line.t, batch, machine)
    lab.check_my_share(line.throughput(43) * line.t, None, machine)


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
    assert "a straight line looks bent" in html
    html = lab.draw_throughput(times, line, choice=10)._repr_html_()
    assert f"{1 / line.t:.0f} tokens/s" in html and "A batch of 10 is marked" in html
    html = lab.draw_rates({1: 14.8e9, 2: 7.9e9}, 30e9)._repr_html_()
    assert "14.8 GB/s with 1 row, 7.9 with 2" in html


def test_a_machine_whose_second_sequence_is_free_has_a_picture_too() -> None:
    times = {1: 0.030, 2: 0.030, 4: 0.030}
    assert "costs nothing here" in lab.draw_throughput(times, StepLine(0.030, 0.0))._repr_html_()


# ------------------------------------------------------------------ the notebook


def test_points_and_titles() -> None:
    lab_outline = outline(read_notebook(NOTEBOOK))
    assert (lab_outline.points, lab_outline.bonus) == (22, 3)
    assert [(task.title, task.points) for task in lab_outline.tasks] == [
        ("A stopwatch for steps", 4),
        ("Two numbers for a curve", 3),
        ("What a step must take", 4),
        ("The knee, and a promise to keep", 6),
        ("The second sequence", 5),
        ("The price of the past", 3),
    ]
    assert sum(task.minutes or 0 for task in lab_outline.tasks if not task.further) == lab_outline.minutes
    for task in lab_outline.tasks:
        for name in task.library:
            module, _, attribute = name.rpartition(".")
            assert callable(getattr(sys.modules[module], attribute)), name


def test_a_task_solved_alone_earns_its_points_and_no_others() -> None:
    source = read_notebook(NOTEBOOK)
    lab_outline = outline(source)
    solution, untouched = assemble(source).steps, assemble(source, handout(source)).steps
    for task in lab_outline.tasks:
        scope: dict[str, Any] = {}
        for with_answer, stub in zip(solution, untouched, strict=True):
            if stub.role == "test":
                body, _, last = stub.source.rpartition("\n")
                exec(body, scope)
                part = lab_outline.part(stub.name)
                assert eval(last, scope) == (part.points if stub.task == task.name else 0), (task.name, stub.name)
                continue
            try:
                exec(with_answer.source if stub.task == task.name else stub.source, scope)
            except NotImplementedError:
                assert stub.role == "answer"


# ------------------------------------------------------------------ the benchmark


@pytest.mark.slow
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
