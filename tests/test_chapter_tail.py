"""What the page on tails works out by hand, predicts, or answers without a cell, recomputed; and its recording."""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from underload.metrics import PARTS, attribute, effective_samples, percentile, percentile_interval, samples_needed
from underload.queueing import Exponential, Lognormal, max_of_n, mm1, mmc, prob_any
from underload.request import StepRecord, Timeline
from underload.simulation import LinearStepTime, simulate_serving
from underload.workload import GeometricTokens, Lengths, Poisson, Workload

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "chapters/tail.md").read_text("utf-8")


def cell_with(text: str) -> str:
    """The code of the page's cell that holds this text."""
    found = [cell for cell in re.findall(r"```\{code-cell\} ipython3\n(.*?)```", PAGE, re.DOTALL) if text in cell]
    assert len(found) == 1, text
    return found[0]


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The page's own functions on the law of a batch, on buckets and on parts of leaves."""
    from scipy.optimize import brentq

    names: dict[str, Any] = {"np": np, "brentq": brentq, "binom": binom, "Counter": Counter, "mm1": mm1}
    names |= {"leaf": Lognormal(0.00163, scv=1.66)}
    for text in ("def batch_law", "def later", "def queue_share"):
        exec(cell_with(text), names)
    for text, last in (("def done_by", "for j in"), ("def bucketed", "merged ="), ("def nelson_tantawi", None)):
        code = cell_with(text)
        exec(code[: code.index(last)] if last else code[code.index("def nelson") :], names)
    return names


@pytest.fixture(scope="module")
def recording() -> dict[str, Any]:
    return json.loads((ROOT / "chapters/data/tail.json").read_text("utf-8"))


# ---- pages and leaves


def test_pages_by_hand() -> None:
    assert prob_any(0.01, n=10) == pytest.approx(0.096, abs=5e-4) and "9.6 % slow pages" in PAGE
    assert pytest.approx(0.9931, abs=5e-5) == 0.5 ** (1 / 100) and "= 0.9931" in PAGE
    assert pytest.approx(0.9999, abs=5e-6) == 0.99 ** (1 / 100)
    assert prob_any(0.01, n=100) == pytest.approx(0.63397, abs=1e-5) and "63.397 %" in PAGE
    assert 0.18 < prob_any(0.0001, n=2000) < 0.2
    assert pytest.approx(0.0001, rel=0.01) == 1 - 0.99 ** (1 / 100)  # what the first figure asks for


def test_half_of_it_in_common_by_hand() -> None:
    assert pytest.approx(0.995, abs=5e-5) == 0.99 / 0.995
    by_hand = 1 - 0.995 * (0.99 / 0.995) ** 100
    assert by_hand == pytest.approx(prob_any(0.01, n=100, common=0.5)) == pytest.approx(0.40, abs=0.005)


def test_the_leaf_of_the_cells_is_what_the_text_says() -> None:
    leaf = Lognormal(0.00163, scv=1.66)
    assert leaf.quantile(50) == pytest.approx(0.001, rel=0.01) and leaf.quantile(99) == pytest.approx(0.010, rel=0.02)


@pytest.mark.parametrize("j", [100, 95, 60])
def test_most_of_a_hundred_leaves(page: dict[str, Any], j: int) -> None:
    leaf = page["leaf"]
    sorted_leaves = np.sort(leaf.draw(np.random.default_rng(1), 400_000).reshape(-1, 100), axis=1)
    for y in np.percentile(sorted_leaves[:, j - 1], (20, 80)):
        assert page["done_by"](y, j, 100) == pytest.approx((sorted_leaves[:, j - 1] <= y).mean(), abs=0.025)
    if j == 100:
        assert page["done_by"](0.02, 100, 100) == pytest.approx(1 - max_of_n(leaf, n=100).tail(0.02))


def test_the_fork_join_formula_is_exact_for_two(page: dict[str, Any]) -> None:
    for load in (0.2, 0.9):
        assert page["nelson_tantawi"](load, k=2) == pytest.approx((12 - load) / 8)
    assert page["nelson_tantawi"](0.8, k=16) / (1 - 0.8) == pytest.approx(13.223503213957759, rel=1e-12)
    assert page["nelson_tantawi"](0.0, k=16) == pytest.approx(max_of_n(Exponential(1.0), n=16).mean)


# ---- percentiles


def test_requests_for_a_percentile() -> None:
    assert math.ceil(math.log(0.05) / math.log(0.99)) == samples_needed(99, two_sided=False) == 299
    assert samples_needed(99) == 368
    assert pytest.approx(0.63, abs=0.005) == 1 - 0.99**100


def test_the_ranks_by_hand() -> None:
    around = 2 * math.sqrt(1000 * 0.99 * 0.01)
    assert math.sqrt(9.9) == pytest.approx(3.1, abs=0.05)
    assert (round(990 - around), round(990 + around)) == (984, 996)
    found = percentile_interval(range(1, 1001), 99)
    assert found is not None and found.ranks == (983, 997)


def test_two_servers_whose_average_is_right_in_neither_case() -> None:
    for share, p99 in ((0.02, 10.0), (0.005, 0.1)):
        ill = round(10_000 * share)
        assert percentile([0.1] * (10_000 - ill) + [10.0] * ill, 99) == p99
    assert (0.1 + 10) / 2 == 5.05 and pytest.approx(0.3, abs=0.005) == 0.98 * 0.1 + 0.02 * 10


def test_what_is_read_off_merged_buckets_is_a_per_cent_off_at_most(page: dict[str, Any]) -> None:
    rng = np.random.default_rng(5)
    parts = [Lognormal(mean, scv=2.0).draw(rng, 700) for mean in (0.01, 0.3, 4.0)]
    merged: Counter[int] = sum(map(page["bucketed"], parts), Counter())
    values = np.sort(np.concatenate(parts))
    for q in (1, 50, 95, 99, 100):
        at = values[math.ceil(q / 100 * len(values)) - 1]
        assert page["read_off"](merged, q) == pytest.approx(at, rel=0.01)


def test_the_p99_of_a_mixture_lies_between_those_of_its_parts() -> None:
    rng = np.random.default_rng(6)
    for _ in range(30):
        parts = [rng.exponential(scale, n) for scale, n in zip(rng.uniform(0.1, 3, 2), rng.integers(300, 4000, 2))]
        low, high = sorted(percentile(part, 99) for part in parts)  # type: ignore[type-var]
        assert low * 0.97 <= percentile(np.concatenate(parts), 99) <= high * 1.03  # type: ignore[operator]


def test_the_answers() -> None:
    assert prob_any(0.002, n=20) < 0.04 and pytest.approx(0.00005, rel=0.01) == 1 - 0.999 ** (1 / 20)
    assert 0.99**200 > 0.05 > 0.95**200
    assert (16 / 80, 80 * (1 - 1 / 16)) == (0.2, 75) and math.log(100) * 0.2 == pytest.approx(0.92, abs=0.005)
    border, beyond = (mmc(rate, 5.0, servers=16).sojourn_quantile(99) for rate in (75, 78))
    assert beyond / border == pytest.approx(2, abs=0.1) and "about twice as long" in PAGE
    slow = binom.sf(1, 3, 0.01)  # two or three of three
    assert slow == pytest.approx(1 - (3 * 0.99**2 * 0.01 + 0.99**3)) == pytest.approx(3e-4, rel=0.01)
    assert "$3q^2(1-q) + q^3$" in PAGE


def test_the_request_that_is_taken_apart_by_hand() -> None:
    steps: list[StepRecord] = []
    now = 0.0
    for duration, rows, prompt in (
        [(0.002, 3, 0)] * 6 + [(0.005, 3, 30)] + [(0.002, 4, 0), (0.007, 4, 50)] * 2 + [(0.002, 4, 0)] * 2
    ):
        steps.append(StepRecord(now, duration, rows + (prompt > 0), prefill_tokens=prompt, decode_tokens=rows))
        now += duration
    ends = [step.start + step.duration for step in steps]
    line = Timeline(
        0.0, scheduled=0.012, prefills=[(ends[6], 0, 30)], token_times=ends[6:], finished=ends[-1], prompt_tokens=30,
        finish_reason="length",
    )  # fmt: skip
    parts = {part: seconds for part, seconds in attribute(line, steps).items() if seconds > 1e-9}
    assert parts == pytest.approx({"queue": 0.012, "own prefill": 0.005, "own decode": 0.012, "others' prefill": 0.010})
    assert sum(parts.values()) == pytest.approx(0.039) and 12 + 5 + 8 + 14 == 39


def test_the_single_slowest_request_makes_the_average_furthest_off() -> None:
    values = np.sort(Lognormal(1.0, scv=1.5).draw(np.random.default_rng(8), 13))

    def average(group: list[int]) -> float:
        parts = values[group], np.delete(values, group)
        return float(np.mean([percentile(part, 80) for part in parts]))  # type: ignore[arg-type]

    groups = [list(group) for size in range(1, 7) for group in combinations(range(13), size)]
    assert max(groups, key=average) == [12]


# ---- the law of a batch


def test_one_row_is_a_single_server(page: dict[str, Any]) -> None:
    for load in (0.05, 0.5, 0.9):
        law = page["batch_law"](load, B=1, o=1.0, t=0.0, p=1, m=1)
        queue = mm1(load, 1.0)
        assert page["mean_of"](*law) == pytest.approx(queue.mean_sojourn)
        for q in (50, 99):
            assert page["quantile_of"](q, *law) == pytest.approx(queue.sojourn_quantile(q))


def test_rows_of_steps_that_are_all_alike_are_servers(page: dict[str, Any]) -> None:
    for load in (0.3, 0.75, 0.9):  # at 3/4 the two rates are equal
        law = page["batch_law"](500 * load, B=4, o=0.008, t=0.0, p=1, m=1)
        queue = mmc(500 * load, 125.0, servers=4)
        assert law[0] == pytest.approx(queue.prob_wait)
        assert page["mean_of"](*law) == pytest.approx(queue.mean_sojourn, rel=1e-5)
        assert page["quantile_of"](99, *law) == pytest.approx(queue.sojourn_quantile(99), rel=1e-5)


def test_where_the_tail_changes_hands(page: dict[str, Any]) -> None:
    for rows in (2, 4, 64):
        full = rows / 0.008
        for load, longer in ((1 - 1 / rows - 0.005, "row"), (1 - 1 / rows + 0.005, "queue")):
            _, row, queue = page["batch_law"](full * load, B=rows, o=0.008, t=0.0, p=1, m=1, most=30_000)
            assert ("row" if row > queue else "queue") == longer
    assert pytest.approx(0.984, abs=5e-4) == 1 - 1 / 64


def test_the_share_of_the_queue_in_the_slowest(page: dict[str, Any]) -> None:
    rng, n = np.random.default_rng(3), 2_000_000
    for waits, row, queue in ((0.6, 0.3, 1.0), (0.3, 1.0, 0.2)):
        wait = np.where(rng.random(n) < waits, rng.exponential(queue, n), 0.0)
        whole = wait + rng.exponential(row, n)
        slow = whole > np.percentile(whole, 99)
        assert page["queue_share"](waits, row, queue) == pytest.approx(wait[slow].sum() / whole[slow].sum(), rel=0.03)
        assert page["quantile_of"](99, waits, row, queue) == pytest.approx(np.percentile(whole, 99), rel=0.01)


def test_a_row_varies_less_than_an_exponential_time() -> None:
    o, t, p, m = 0.0004, 0.00006, 16, 12
    first, each = o + t * p, o + t
    mean, sd = first + (m - 1) * each, math.sqrt(m * (m - 1)) * each
    plan = Workload(Poisson(2.0), Lengths(p, GeometricTokens(m))).plan(seed=2, requests=6000)
    run = simulate_serving(plan, LinearStepTime(o, t), max_num_seqs=4)
    rows = np.array([line.token_times[-1] - line.scheduled for line in run.timelines])  # next to nobody meets another
    assert rows.mean() == pytest.approx(mean, rel=0.05) and rows.var() == pytest.approx(sd**2, rel=0.15)
    assert (sd / mean) ** 2 < 0.75
    tokens = math.ceil(math.log(0.01) / math.log(1 - 1 / m))
    assert np.percentile(rows, 99) == pytest.approx(first + (tokens - 1) * each, rel=0.08)


def test_the_law_is_near_the_engine(page: dict[str, Any]) -> None:
    o, t, p, m, rows = 0.0004, 0.00003, 16, 12, 4
    carried = 1 / page["batch_law"](1.0, rows, o, t, p, m)[2] + 1.0
    for load in (0.3, 0.7):
        plan = Workload(Poisson(load * carried), Lengths(p, GeometricTokens(m))).plan(seed=2, requests=12_000)
        run = simulate_serving(plan, LinearStepTime(o, t), max_num_seqs=rows)
        times = np.array([line.token_times[-1] - line.arrival for line in run.timelines[600:]])
        law = page["batch_law"](load * carried, rows, o, t, p, m)
        assert times.mean() == pytest.approx(page["mean_of"](*law), rel=0.1)
        assert np.percentile(times, 99) == pytest.approx(page["quantile_of"](99, *law), rel=0.15)


# ---- buckets of an exporter


def test_the_straight_line_through_a_bucket() -> None:
    edges = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0)
    chat = Lognormal(2.0, scv=0.8)
    below, above = next((a, b) for a, b in pairwise(edges) if a < chat.quantile(99) <= b)
    low, high = 1 - chat.tail(below), 1 - chat.tail(above)
    read = below + (above - below) * (0.99 - low) / (high - low)
    assert (below, above) == (5.0, 10.0) and read - chat.quantile(99) > 0.5


# ---- the recording


def test_each_run_says_how_it_was_made(recording: dict[str, Any]) -> None:
    assert {"date", "machine", "model", "path", "threads", "batch_rows", "prompt_tokens", "answer_tokens"} <= set(
        recording
    )
    rows = recording["rows"]
    assert [row["load"] for row in rows] == sorted(row["load"] for row in rows) and len(rows) >= 5
    assert rows[0]["load"] < 1 - 1 / recording["batch_rows"] < rows[-1]["load"]
    assert recording["kept"] in [row["load"] for row in rows]
    for row in rows:
        o, t = row["line"]
        assert o >= 0 and t >= 0 and row["rate"] > 0 and 0 <= row["other_load"] <= 1
        for name in ("mean", "p50", "p99"):
            if row[name] is not None:
                value, low, high = row[name]
                assert low <= value <= high and row["simulated"][name] > 0
        assert (row["p99"] is None) == (row["p99_worth"] < samples_needed(99))


def test_the_parts_of_the_slowest_add_up(recording: dict[str, Any]) -> None:
    for row in recording["rows"]:
        for kind in ("slow", "simulated_slow"):
            found = row[kind]
            assert found["requests"] == math.ceil(row["requests"] / 100)
            assert set(found["slow"]) == set(found["all"]) == set(PARTS)
            assert sum(found["slow"].values()) >= found["threshold"] * (1 - 1e-4)
        assert sum(row["slow"]["all"].values()) == pytest.approx(row["mean"][0], rel=0.02)  # which leaves a few out


def test_the_formula_is_too_high_at_the_p99_in_every_row(page: dict[str, Any], recording: dict[str, Any]) -> None:
    B, p, m = recording["batch_rows"], recording["prompt_tokens"], recording["answer_tokens"]
    for row in recording["rows"]:
        law = page["batch_law"](row["rate"], B, *row["line"], p, m)
        assert page["quantile_of"](99, *law) > row["p99"][0]
        assert row["p99"][0] == pytest.approx(row["simulated"]["p99"], rel=0.05)
        for kind in ("slow", "all"):
            assert all(row["slow"][kind][name] == 0 for name in ("padding", "passed over", "preemption"))


def test_four_hundred_requests_from_a_queue_are_not_enough(recording: dict[str, Any]) -> None:
    row = next(row for row in recording["rows"] if row["load"] == recording["kept"])
    times = np.array(row["latencies_us"]) / 1e6
    assert effective_samples(times[:400], 99) == 400
    found = percentile_interval(times[:400], 99, effective=400)
    assert found is not None and found.low > percentile(times, 99)
    assert 400 * effective_samples(times, 99) / len(times) < samples_needed(99, two_sided=False)


def test_the_latencies_that_are_kept_are_those_of_their_run(recording: dict[str, Any]) -> None:
    row = next(row for row in recording["rows"] if row["load"] == recording["kept"])
    times = np.array(row["latencies_us"]) / 1e6
    assert len(times) == row["requests"] >= 800 and times.mean() == pytest.approx(row["mean"][0], rel=0.02)
    # Percentiles do not add up, and what a request waited for does.
    assert sum(tail for _, tail in row["parts"].values()) > percentile(times, 99)


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests/benchmarks"))
    sys.modules.pop("tail", None)
    import tail

    monkeypatch.setattr(tail, "REQUESTS", {0.7: 200})
    assert tail.main(["--only", "0.7", "--out", str(tmp_path / "tail.json"), "--small"]) == 0
    made = json.loads((tmp_path / "tail.json").read_text("utf-8"))
    assert [row["load"] for row in made["rows"]] == [0.7] and made["rows"][0]["latencies_us"]
