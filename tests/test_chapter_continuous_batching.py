"""What the page on continuous batching claims, recomputed: hand examples, answers, recordings, what its figures say."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import pytest

from underload.cache import BlockPool, Pool
from underload.engine import Engine
from underload.figures import BatchRecording
from underload.metrics import e2e, longest_stall, ttft
from underload.request import Request, SamplingParams, Sequence, Timeline, VirtualClock
from underload.scheduling import Batching, Continuous, FitsNow, Oracle, PredictedPeak, Scheduler, Static
from underload.shapes import DEVICES, critical_batch, shape
from underload.simulation import (
    CostModelExecutor,
    FittedStepTime,
    LinearStepTime,
    RooflineStepTime,
    ServingRun,
    simulate_serving,
)
from underload.workload import GeometricTokens, Planned, load_trace

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "chapters/continuous-batching.md").read_text("utf-8")
GIVEN = LinearStepTime(0.020, 0.001)


@pytest.fixture(scope="module")
def recording() -> dict[str, Any]:
    return json.loads((ROOT / "chapters/data/continuous_batching.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def pace() -> FittedStepTime:
    return FittedStepTime.load(ROOT / "chapters/data/continuous_batching_steps.json")


# ---- eight requests ----------------------------------------------------------------------------------------------


def eight(batching: Batching) -> tuple[BatchRecording, Engine, float]:
    recorder = BatchRecording()
    scheduler = Scheduler(BlockPool(100, 16), batching=batching, max_num_seqs=4)
    engine = Engine(scheduler, CostModelExecutor(GIVEN), VirtualClock(), on_step=recorder)
    sizes = {"A": (6, 3), "B": (10, 12), "C": (4, 5), "D": (8, 4), "E": (9, 6), "F": (5, 2), "G": (12, 8), "H": (6, 3)}
    for number, (name, (prompt, answer)) in enumerate(sizes.items()):
        want = SamplingParams(max_tokens=answer)
        engine.add(Request(name, [100 * number + i for i in range(prompt)], want, Timeline(0.0)))
    done = engine.run()
    return recorder, engine, mean(request.timeline.finished or 0.0 for request in done)


def test_the_figure_of_eight_requests_shows_what_is_said_of_it() -> None:
    (static, slow, slow_mean), (continuous, fast, fast_mean) = eight(Static(4)), eight(Continuous())
    assert (round(1e3 * slow.clock.now()), round(1e3 * fast.clock.now())) == (560, 355)
    assert fast_mean < 0.75 * slow_mean
    kinds = [[cell.kind for cell in moment.cells] for moment in static.moments]
    assert all(step.count("held") == 3 for step in kinds[5:12]) and kinds[4].count("held") == 2
    assert static.moments[11].finished == ("B",)
    assert any(cell.padding for cell in static.moments[0].cells)
    assert "A" in continuous.moments[2].finished
    assert continuous.moments[3].joined == ("E",)
    rows = {cell.who: cell.row for moment in continuous.moments for cell in moment.cells}
    assert rows["A"] == rows["E"]
    ends = {who: moment.stop for run in (static,) for moment in run.moments for who in moment.finished}
    again = {who: moment.stop for moment in continuous.moments for who in moment.finished}
    assert again["B"] > ends["B"]
    assert round(1e3 * min(step.duration for step in slow.steps)) == 24  # "instead of 24"


# ---- what a kept row costs ---------------------------------------------------------------------------------------


def longest_of(rows: int, lengths: Any) -> float:
    x, n = np.sort(np.asarray(lengths, float)), len(lengths)
    return float(x @ np.diff((np.arange(n + 1) / n) ** rows))


def test_the_longest_of_several_on_paper_and_in_the_answers() -> None:
    assert [longest_of(rows, [2, 10]) for rows in (2, 4)] == [8.0, 9.5]
    assert [round(100 * 6 / longest_of(rows, [2, 10])) for rows in (2, 4)] == [75, 63]
    assert longest_of(2, [10, 20, 30, 100]) == 57.5
    assert (round(100 * 40 / 57.5), round(57.5 / 40, 2)) == (70, 1.44) and "57.5 tokens" in PAGE
    harmonic = [sum(1 / k for k in range(1, rows + 1)) for rows in (8, 64)]
    assert [round(x, 1) for x in harmonic] == [2.7, 4.7] and "2.7 times for eight rows, 4.7 for 64" in PAGE


@pytest.mark.parametrize("rows", [2, 4, 8])
def test_the_use_of_a_static_batch_is_what_the_engine_counts(rows: int) -> None:
    lengths = GeometricTokens(30).draw(np.random.default_rng(rows), 600 * rows)
    load = [Planned(0.0, 1, int(tokens), index) for index, tokens in enumerate(lengths)]
    steps = simulate_serving(load, GIVEN, batching=Static(rows), max_num_seqs=rows).steps
    seen = 1 - sum(step.padding_tokens for step in steps) / sum(step.batch_size for step in steps)
    assert seen == pytest.approx(lengths.mean() / longest_of(rows, lengths), rel=0.04)
    groups = lengths.reshape(-1, rows)
    assert seen == pytest.approx(groups.mean() / groups.max(axis=1).mean(), rel=1e-9)


def test_what_is_said_of_traces_holds_for_them() -> None:
    factors = {}
    for name in ("sharegpt-lengths", "azure-conv", "mooncake-conversation", "azure-code"):
        lengths = np.asarray(load_trace(name, stand_in=True).output_tokens)
        factors[name] = {rows: longest_of(rows, lengths) / lengths.mean() for rows in (8, 64)}
    chats = [found[8] for name, found in factors.items() if name != "azure-code"]
    assert max(chats) < 2.7 < factors["azure-code"][8]
    assert min(chats) > 1.5 and factors["azure-code"][64] > 8


# ---- two formulas ------------------------------------------------------------------------------------------------


def continuous_rate(B: int, o: float, t: float, p: int, m: float) -> float:
    return B / (o + t * B * (p + m - 1) / m)


def static_rate(B: int, o: float, t: float, p: int, m: float) -> float:
    M = m * sum(1 / k for k in range(1, B + 1))
    return B * m / (o * M + t * B * (M + p - 1))


def time_inside(rate: float, B: int, o: float, t: float, p: int, m: float, most: int = 2000) -> float:
    n = np.arange(most)
    run = np.minimum(n[1:], B)
    faster = run / (m * (o + t * run * (p + m - 1) / m))
    ups = np.concatenate([[0.0], np.cumsum(np.log(rate / faster))])
    share = np.exp(ups - ups.max())
    return float(n @ share / share.sum() / rate)


def test_throughput_by_hand() -> None:
    rates = [round(rate(4, 0.020, 0.001, 20, 50)) for rate in (continuous_rate, static_rate)]
    assert rates == [157, 78] and "are 157 tokens/s" in PAGE and "a millisecond: 78" in PAGE


@pytest.mark.parametrize("rows", [1, 4, 16])
@pytest.mark.parametrize("kind", ["continuous", "static"])
def test_throughput_formulas_meet_the_engine(rows: int, kind: str) -> None:
    o, t, p, m = 0.002, 0.0002, 16, 40
    lengths = GeometricTokens(m).draw(np.random.default_rng(3), 120 * rows)
    load = [Planned(0.0, p, int(tokens), index) for index, tokens in enumerate(lengths)]
    batching = Continuous() if kind == "continuous" else Static(rows)
    steps = simulate_serving(load, LinearStepTime(o, t), batching=batching, max_num_seqs=rows).steps
    busy = [step for step in steps if step.queue_length]
    seen = sum(step.logit_rows for step in busy) / sum(step.duration for step in busy)
    said = (continuous_rate if kind == "continuous" else static_rate)(rows, o, t, p, m)
    assert seen == pytest.approx(said, rel=0.06)


def test_a_larger_static_batch_can_be_slower() -> None:
    o, t, p, m = 0.0002, 0.00003, 16, 40
    assert static_rate(32, o, t, p, m) < static_rate(16, o, t, p, m)
    assert continuous_rate(32, o, t, p, m) > continuous_rate(16, o, t, p, m)


@pytest.mark.parametrize("rho", [0.3, 0.6, 0.85])
def test_latency_by_the_numbers_inside_meets_the_engine(rho: float) -> None:
    o, t, p, m, rows = 0.002, 0.0002, 16, 40, 16
    rate = rho * continuous_rate(rows, o, t, p, m) / m
    rng = np.random.default_rng(11)
    arrivals = np.cumsum(rng.exponential(1 / rate, 6000))
    lengths = GeometricTokens(m).draw(rng, 6000)
    load = [Planned(float(at), p, int(k), i) for i, (at, k) in enumerate(zip(arrivals, lengths, strict=True))]
    run = simulate_serving(load, LinearStepTime(o, t), max_num_seqs=rows)
    seen = mean(e2e(line) or 0.0 for line in run.timelines[500:])
    assert seen == pytest.approx(time_inside(rate, rows, o, t, p, m), rel=0.1)


def test_the_back_of_an_envelope_is_near_where_rows_suffice() -> None:
    o, t, p, m = 0.010, 0.0001, 200, 101
    rho = 20 * t * (p + m - 1)
    assert rho == pytest.approx(0.6)
    assert o / (1 - rho) == pytest.approx(0.025)
    assert round(101 * 0.025, 1) == 2.5 and round(20 * 101 * 0.025, -1) == 50
    assert time_inside(20, 400, o, t, p, m) == pytest.approx(m * o / (1 - rho), rel=0.1)


def test_the_recorded_batches_are_near_both(recording: dict[str, Any]) -> None:
    o, t = recording["line"]
    seen = {(row["kind"], row["rows"]): median(row["tokens_per_second"]) for row in recording["rows"]}
    for (kind, rows), rate in seen.items():
        said = (continuous_rate if kind == "continuous" else static_rate)(rows, o, t, 16, 40)
        assert rate == pytest.approx(said, rel=0.3), (kind, rows)
    assert 1.7 < seen["continuous", 8] / seen["static", 8] < 2.7
    assert 2.2 < seen["continuous", 32] / seen["static", 32] < 4.1
    assert seen["static", 32] < 1.05 * seen["static", 16]
    for row in recording["load"]:
        assert row["requests"] >= 368  # it states a p99
        if row["kind"] == "continuous":
            said = time_inside(row["rate"], recording["cap"], o, t, 16, 40)
            assert median(row["e2e_mean"]) == pytest.approx(said, rel=0.3)
    greedy = [row for row in recording["load"] if row["kind"] == "greedy"]
    for row in greedy:
        assert median(row["e2e_mean"]) > time_inside(row["rate"], recording["cap"], o, t, 16, 40)
    assert recording["command"] in PAGE


# ---- a prompt joins ----------------------------------------------------------------------------------------------


def pieces_of(p: int, C: int, D: int, o: float, t: float) -> tuple[int, float, float]:
    k = -(-p // (C - D))
    return k, o + t * min(C, p + D), k * o + t * (p + k * D)


def interrupted(budget: int, batching: Batching, *, long: int, at: int = 5) -> tuple[float, float]:
    """The longest stall of eight, and the TTFT of the prompt that joins, on the given machine."""
    late: list[Request] = []
    scheduler = Scheduler(BlockPool(400, 16, prefix_caching=False), batching=batching, max_num_batched_tokens=budget)

    def watch(*_: Any) -> None:
        if len(engine.steps) == at:
            late.append(Request("stranger", [7] * long, SamplingParams(max_tokens=1), Timeline(engine.clock.now())))
            engine.add(late[0])

    engine = Engine(scheduler, CostModelExecutor(GIVEN), VirtualClock(), on_step=watch)
    writers = [Request(str(i), [7] * 2, SamplingParams(max_tokens=60), Timeline(0.0)) for i in range(8)]
    for request in writers:
        engine.add(request)
    engine.run()
    first = ttft(late[0].timeline)
    assert first is not None
    return max(longest_stall(request.timeline) or 0.0 for request in writers), first


def test_pieces_on_paper_and_in_the_answers() -> None:
    assert pieces_of(240, 32, 8, 20, 1) == (10, 52, 520)
    assert pieces_of(240, 1024, 8, 20, 1) == (1, 268, 268)
    k, gap, first = pieces_of(6000, 640, 30, 8, 0.05)
    assert (k, gap, round(first, 1)) == (10, 40, 395.0)
    assert round(8 + 0.05 * 6030, 1) == 309.5 and "309.5 ms" in PAGE
    for g, D, p in ((60.0, 8, 300), (90.0, 20, 1000)):  # the exercise, without rounding
        C = g - 20
        assert p / (C - D) * g == pytest.approx(p * g * 1 / (g - 20 - 1 * D))


@pytest.mark.parametrize("budget", [16, 24, 32, 64, 128, 256])
def test_pieces_are_what_the_scheduler_makes(budget: int) -> None:
    _, gap, first = pieces_of(240, budget, 8, 0.020, 0.001)
    assert interrupted(budget, Continuous(), long=240) == pytest.approx((gap, first))


def test_prompts_first_save_nobody_by_being_cut() -> None:
    (gap, first), (other, later) = (
        interrupted(64, Continuous(prefill=order), long=240) for order in ("prefill-first", "decode-first")
    )
    assert gap > 0.268 > 3 * other  # as long as in one piece and longer
    assert first < later < 1.3 * first
    assert later == pytest.approx(0.380) and 0.38 < later / 0.268 - 1 < 0.43  # "some 40 % later"


def test_the_recorded_pieces_are_near_the_formula(recording: dict[str, Any]) -> None:
    o, t = recording["line_of_chunks"]
    rows = {row["budget"]: row for row in recording["chunks"]}
    for budget in (16, 32, 64, 128, 256, 1024):
        _, gap, first = pieces_of(512, budget, 8, o, t)
        assert rows[str(budget)]["ttft"][1] == pytest.approx(first, rel=0.2)
        assert gap * 0.85 < rows[str(budget)]["longest_gap"][1] < gap * 1.8
    assert rows["prefill-first"]["longest_gap"][1] > 0.9 * rows["1024"]["longest_gap"][1]
    speeds = [row["tokens_per_second"] for row in rows.values()]
    assert max(speeds) / min(speeds) < 1.25  # each step more gives tokens that somebody wants


def test_a_few_hundred_tokens_are_best_by_the_roofline() -> None:
    card = DEVICES["h100-sxm"]
    assert 250 < critical_batch(bandwidth=card.bandwidth, flops=card.flops) < 350
    roof = RooflineStepTime(shape("llama-3-8b"), card)
    answers = GeometricTokens(200).draw(np.random.default_rng(0), 120)
    load = [Planned(0.0, 2000, int(tokens), index) for index, tokens in enumerate(answers)]

    def full_house(budget: int) -> float:
        steps = simulate_serving(load, roof, max_num_seqs=64, max_num_batched_tokens=budget).steps
        busy = [step for step in steps if step.queue_length]
        return sum(step.logit_rows for step in busy) / sum(step.duration for step in busy)

    speed = {budget: full_house(budget) for budget in (128, 512, 2048)}
    assert speed[512] > 1.3 * speed[128] and speed[512] > 1.3 * speed[2048]


# ---- who may begin -----------------------------------------------------------------------------------------------


def peak_of(held_and_left: list[tuple[int, int]]) -> int:
    ordered = sorted(held_and_left, key=lambda pair: -pair[1])
    return max(sum(n for n, _ in ordered[:k]) + k * ordered[k - 1][1] for k in range(1, len(ordered) + 1))


def test_the_peak_on_paper_and_by_growing() -> None:
    assert peak_of([(30, 40), (50, 20), (20, 10)]) == 130 and "130 tokens." in PAGE
    rng = np.random.default_rng(0)
    for _ in range(50):
        some = [(int(n), int(left)) for n, left in rng.integers(1, 40, (6, 2))]
        seen = max(sum(n + step for n, left in some if step <= left) for step in range(41))
        assert peak_of(some) == seen


def test_the_table_of_admission_says_what_the_text_does(recording: dict[str, Any]) -> None:
    rules = {row["rule"]: row for row in recording["pool"]}
    fits, oracle, noisy, large = (rules[name] for name in ("fits-now", "peak-oracle", "peak-noisy", "watermark-10"))
    used = [row for name, row in rules.items() if name != "reserve-all"]
    speeds = [row["tokens_per_second"] for row in used]
    assert max(speeds) / min(speeds) < 1.01
    assert 0.5 < fits["computed_again"] < 0.7  # "six tenths"
    assert fits["preempted"] > 300 and oracle["preempted"] <= 3
    assert oracle["ttft_mean"] > 2 * fits["ttft_mean"] and oracle["stall_p99"] < fits["stall_p99"] / 10
    assert noisy["stall_p99"] > 0.8 * fits["stall_p99"]
    assert 0.2 < large["preempted"] / fits["preempted"] < 0.3  # "three preemptions in four"
    assert large["stall_p99"] > fits["stall_p99"]
    assert rules["reserve-all"]["preempted"] == 0
    assert rules["reserve-all"]["tokens_per_second"] < 0.5 * fits["tokens_per_second"]
    short, hasty = rules["shortest-oracle"], rules["shortest-hasty"]
    assert short["ttft_mean"] < 0.6 * oracle["ttft_mean"] and short["queue_max"] > 2 * oracle["queue_max"]
    assert hasty["queue_max"] < 1.2 * oracle["queue_max"]
    guessed = rules["shortest-guessed"]
    assert guessed["ttft_mean"] < 1.05 * short["ttft_mean"] and guessed["queue_max"] > short["queue_max"]
    assert rules["shortest-noisy"]["stall_p99"] > 10 * guessed["stall_p99"]


def test_max_tokens_is_three_times_what_an_answer_needs(recording: dict[str, Any]) -> None:
    trace = load_trace("sharegpt-lengths", stand_in=True)
    limit = recording["pool_settings"]["limit"]
    kept = [m for p, m in zip(trace.prompt_tokens, trace.output_tokens, strict=True) if max(p, m) <= limit]
    assert 2.5 < limit / (sum(kept) / len(kept)) < 3.7


# ---- forty of sixty-four -----------------------------------------------------------------------------------------


class WhenFew:
    grows_only_stricter = True

    def __init__(self, busy: int) -> None:
        self.busy = busy

    def admits(self, sequence: Sequence, holding: Any, pool: Pool) -> bool:
        return sequence.prompt_len < 200 or len(holding) <= self.busy


def forty_and_one(seed: int) -> list[Planned]:
    law, rng = GeometricTokens(30), np.random.default_rng(seed)
    forty = [Planned(0.0, 16, 1 + int(k), i) for i, k in enumerate(law.draw(rng, 40))]
    return [*forty, Planned(1e-9, 200, 200, 40)]


def outcome(run: ServingRun) -> tuple[float, float, float]:
    begin = run.steps[0].start + run.steps[0].duration
    ends = [line.token_times[-1] - begin for line in run.timelines]
    tokens = sum(line.output_tokens for line in run.timelines) - 40
    return mean(ends[:40]), ends[40], tokens / max(ends)


def asked(step_time: Any, busy: int) -> np.ndarray:
    runs = [
        simulate_serving(forty_and_one(seed), step_time, max_num_seqs=64, admission=WhenFew(busy)) for seed in range(12)
    ]
    return np.mean([outcome(run) for run in runs], axis=0)


def test_joining_now_or_later_on_paper() -> None:
    now, few, gone = (asked(GIVEN, busy) for busy in (64, 20, 0))
    harmonic = 30 * sum(1 / k for k in range(1, 41))
    assert round(harmonic) == 128 and round((harmonic * 20 + 1200) / 1000, 1) == 3.8
    assert 40 * (now[0] - gone[0]) == pytest.approx(9.2, rel=0.1)  # added up over the forty
    assert gone[1] - now[1] == pytest.approx(2.6, rel=0.1)
    assert (round(now[1], 1), round(gone[1], 1)) == (5.6, 8.3)
    assert 40 * now[0] + now[1] > 40 * gone[0] + gone[1]  # the mean of all is better off with waiting
    assert now[2] > 1.3 * gone[2]
    assert gone[0] < few[0] < now[0] and now[1] < few[1] < gone[1]


def test_on_a_large_card_it_costs_next_to_nothing() -> None:
    roof = RooflineStepTime(shape("llama-3-8b"), DEVICES["h100-sxm"])
    now, gone = asked(roof, 64), asked(roof, 0)
    assert now[0] < 1.01 * gone[0] and now[2] > 1.5 * gone[2]


def test_the_recorded_forty_are_near_their_simulation(recording: dict[str, Any], pace: FittedStepTime) -> None:
    rows = {row["rule"]: row for row in recording["joins"]}
    for rule, busy in (("now", 64), ("few", 20), ("drained", 0)):
        seen = [mean(rows[rule][key]) for key in ("forty", "long", "tokens_per_second")]
        assert seen == pytest.approx(asked(pace, busy).tolist(), rel=0.25)
    assert mean(rows["now"]["tokens_per_second"]) > 1.1 * mean(rows["drained"]["tokens_per_second"])
    assert mean(rows["now"]["forty"]) > mean(rows["drained"]["forty"])


def test_in_a_stream_waiting_helps_nobody() -> None:
    rng = np.random.default_rng(1)
    arrivals = np.cumsum(rng.exponential(1 / 14.5, 1600))
    lengths, long = GeometricTokens(30).draw(rng, 1600), rng.random(1600) < 0.02
    load = [
        Planned(float(at), 200 if is_long else 16, 200 if is_long else int(k), i)
        for i, (at, k, is_long) in enumerate(zip(arrivals, lengths, long, strict=True))
    ]
    took = {}
    for busy in (64, 20):
        run = simulate_serving(load, GIVEN, max_num_seqs=64, admission=WhenFew(busy))
        for which in (False, True):
            took[busy, which] = mean(
                e2e(line) or 0.0
                for line, is_long in zip(run.timelines[300:], long[300:], strict=True)
                if bool(is_long) is which
            )
    assert took[20, False] > took[64, False] and took[20, True] > took[64, True]


def test_without_room_to_grow_the_hurry_gains_nothing() -> None:
    twins = [*(Planned(0.0, 16, 31, i) for i in range(40)), Planned(1e-9, 200, 200, 40)]
    future = Oracle({str(planned.index): planned.output_tokens for planned in twins})
    found = {}
    for rule in (FitsNow(), PredictedPeak(future)):
        run = simulate_serving(twins, GIVEN, pool=BlockPool(112, 16), max_tokens=256, max_num_seqs=64, admission=rule)
        forty, one, _ = outcome(run)
        first = ttft(run.timelines[40])
        assert first is not None
        found[type(rule)] = (
            forty,
            one,
            sum(x.preemptions for x in run.timelines),
            run.timelines[40].preemptions,
            first,
        )
    hasty, ahead = found[FitsNow], found[PredictedPeak]
    assert hasty[2] >= 2 and hasty[3] >= 1 and ahead[2] == 0
    assert hasty[4] < 0.5 * ahead[4]
    assert hasty[0] > 1.1 * ahead[0] and hasty[1] == pytest.approx(ahead[1], rel=0.04)


# ---- exercises ---------------------------------------------------------------------------------------------------


def test_the_two_point_law_is_worst_in_between() -> None:
    def use(q: float, B: int = 8, L: int = 1000) -> float:
        return (1 + (1 - q) * (L - 1)) / (1 + (1 - q**B) * (L - 1))

    for q in (0.99, 0.8):
        seen = np.where(np.random.default_rng(0).random((200_000, 8)) < 1 - q, 1000, 1)
        assert seen.mean() / seen.max(axis=1).mean() == pytest.approx(use(q), rel=0.03)
    grid = [1 - x / 10_000 for x in range(1, 5000)]
    least = min(grid, key=use)
    assert grid[0] > least > 0.95 and 1 / 8 < use(least) < use(0.9999) and use(least) < use(0.7)


def test_the_next_free_row() -> None:
    assert round(30 / 64, 2) == 0.47 and "0.47 steps" in PAGE
