"""Models of a step's time: what they say, that a run of steps is as many single ones, and what they refuse."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underload.cache import BlockPool, HostPool
from underload.engine import Engine
from underload.request import Request, SamplingParams, StepRecord, Timeline, UnderloadError, VirtualClock
from underload.scheduling import Plan, Scheduler
from underload.shapes import device, roofline, shape, step_cost
from underload.simulation import (
    CostModelExecutor,
    LinearStepTime,
    OverlapStepTime,
    ReplayStepTime,
    RooflineStepTime,
    StepTime,
    SwapStepTime,
    TableStepTime,
)
from underload.workload import find_trace, read_columns

LLAMA, H100 = shape("llama-3-8b"), device("h100-sxm")
TABLE = TableStepTime([(128, 0.05), (512, 0.06), (1024, 0.08)], [(1, 0.03), (2, 0.031), (64, 0.05)])
MODELS: list[StepTime] = [
    LinearStepTime(0.02, 0.001, 1e-6),
    OverlapStepTime(0.0171, 1.6e-7, 8.1e-5, 0.6),
    RooflineStepTime(LLAMA, H100, overhead=1e-3),
    TABLE,
]


def size(batch_size: int = 1, **names: int) -> StepRecord:
    return StepRecord(0.0, 0.0, batch_size, **names)


def of_sequences(*works: tuple[int, int], held: int = 0) -> StepRecord:
    """The size of a step that computes [start, stop) of each sequence, where those of one token decode."""
    decodes = sum(stop - start == 1 for start, stop in works)
    return size(
        len(works),
        prefill_tokens=sum(stop - start for start, stop in works) - decodes,
        decode_tokens=decodes,
        context_tokens=sum(stop for _, stop in works),
        score_pairs=sum(sum(range(start + 1, stop + 1)) for start, stop in works),
        logit_rows=len(works),
    )


def decoding(batch: int, context: int, held: int = 0) -> StepRecord:
    """`batch` sequences decode, `held` finished ones keep their rows of 77 tokens."""
    read = batch * context + 77 * held
    names = {"context_tokens": read, "score_pairs": read, "padding_tokens": held, "logit_rows": batch}
    return size(batch + held, decode_tokens=batch, **names)


# ---- a run of steps --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
@given(batch=st.integers(1, 60), context=st.integers(1, 100_000), held=st.integers(0, 4), k=st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_k_steps_in_a_row_take_what_k_single_steps_take_to_the_last_bit(model, batch, context, held, k):
    singles = [model(decoding(batch, context + more, held)) for more in range(k)]
    together = model.run(decoding(batch, context, held), k)
    assert together == singles
    assert all(type(seconds) is float for seconds in together)


def test_a_replay_goes_on_where_it_was_however_it_is_asked():
    replay = ReplayStepTime([0.1, 0.2, 0.3, 0.4])
    one = size(decode_tokens=1)
    assert [replay(one), *replay.run(one, 2), replay(one)] == [0.1, 0.2, 0.3, 0.4]
    with pytest.raises(UnderloadError, match=r"step 5 was asked for and 4 were recorded"):
        replay(one)


def swapping(step_time: StepTime, *, join: bool = True) -> Engine:
    """Ten requests in a pool that has no room for them: some are swapped out, and in again."""
    scheduler = Scheduler(BlockPool(16, 4), max_num_seqs=8, preemption="swap", host_pool=HostPool(100))
    engine = Engine(scheduler, CostModelExecutor(step_time, output_tokens={}), VirtualClock())
    engine.join_steps = join
    plans = []
    schedule = scheduler.schedule
    scheduler.schedule = lambda *given, **named: plans.append(schedule(*given, **named)) or plans[-1]  # type: ignore
    for number in range(10):
        wanted = SamplingParams(max_tokens=20, ignore_eos=True)
        engine.add(Request(str(number), [number + 5] * 8, wanted, Timeline(0.0)))
    engine.run()
    engine.plans = plans  # type: ignore[attr-defined]
    return engine


@pytest.mark.parametrize("join", [True, False])
def test_swapped_blocks_take_their_time_and_nothing_else_does(join):
    free, paid = (swapping(SwapStepTime(LinearStepTime(0.5, 0.25), each), join=join) for each in (0.0, 0.125))
    moved = sum(len(plan.swap_out) + len(plan.swap_in) for plan in paid.plans if isinstance(plan, Plan))
    assert moved >= 4 and moved % 2 == 0  # what goes out comes back
    assert paid.clock.now() - free.clock.now() == 0.125 * moved
    assert free.steps == swapping(LinearStepTime(0.5, 0.25), join=join).steps
    assert len(paid.steps) == len(free.steps) and (len(paid.plans) < len(paid.steps)) == join


@pytest.mark.parametrize("seconds", [-1e-9, float("nan"), float("inf"), 1e7, "1", None])
def test_a_swap_takes_some_finite_time(seconds):
    with pytest.raises(UnderloadError, match="a block is swapped in 0 s or more, 1e6 at most, got"):
        SwapStepTime(LinearStepTime(1, 0), seconds)
    with pytest.raises(UnderloadError, match="a function has no `run`: add the swaps"):
        SwapStepTime(lambda step: 1.0, 0.1)  # type: ignore[arg-type]


# ---- what they say ---------------------------------------------------------------------------------------------------


def test_padding_costs_a_linear_step_what_any_token_costs():
    model = LinearStepTime(0.5, 0.01, 0.001)
    step = size(3, prefill_tokens=5, decode_tokens=2, padding_tokens=4, context_tokens=30)
    assert model(step) == pytest.approx(0.5 + 0.11 + 0.03)


def test_overlap_runs_from_the_longer_of_the_two_to_their_sum():
    step = size(2, decode_tokens=2, context_tokens=1000)
    memory, compute = 0.01 + 1000 * 1e-5, 2 * 0.004
    for overlap in (0.0, 0.3, 1.0):
        expected = max(memory, compute) + overlap * min(memory, compute)
        assert OverlapStepTime(0.01, 1e-5, 0.004, overlap)(step) == pytest.approx(expected)
        assert OverlapStepTime(0.01, 1e-5, 0.04, overlap)(step) == pytest.approx(0.08 + overlap * memory)
    assert OverlapStepTime(0.01, 1e-5, 0.004, 1.0)(step) == pytest.approx(LinearStepTime(0.01, 0.004, 1e-5)(step))


@given(
    works=st.lists(
        st.tuples(st.integers(0, 3000), st.integers(1, 600)).map(lambda pair: (pair[0], sum(pair))),
        min_size=1,
        max_size=9,
    ),
    name=st.sampled_from(["llama-3-8b", "smollm2-135m"]),
    stored=st.sampled_from([(2, 2), (4, 4), (1, 2)]),
    rows=st.integers(0, 9),
)
@settings(max_examples=60, deadline=None)
def test_a_roofline_step_costs_what_the_shape_says_of_its_sequences(works, name, stored, rows):
    weight_bytes, kv_bytes = stored
    cost = step_cost(
        shape(name),
        [stop - start for start, stop in works],
        [stop for _, stop in works],
        logit_rows=rows,
        weight_bytes=weight_bytes,
        kv_bytes=kv_bytes,
    )
    expected = roofline(cost, bandwidth=H100.bandwidth, flops=H100.flops).seconds
    model = RooflineStepTime(shape(name), H100, weight_bytes=weight_bytes, kv_bytes=kv_bytes)
    assert model(replace(of_sequences(*works), logit_rows=rows)) == pytest.approx(expected, rel=1e-12)


def test_padding_is_computed_on_a_roofline_and_neither_read_nor_written():
    model = RooflineStepTime(LLAMA, replace(H100, flops=1e30))  # only bytes take time
    bare = decoding(8, 500)
    assert model(replace(bare, padding_tokens=100)) == pytest.approx(
        model(bare) + 100 * 2 * LLAMA.hidden_size / H100.bandwidth
    )  # rows of the embedding
    model = RooflineStepTime(LLAMA, replace(H100, bandwidth=1e30))
    matrices = LLAMA.num_layers * LLAMA.layer_matrix_parameters
    assert model(replace(bare, padding_tokens=100)) == pytest.approx(model(bare) + 100 * 2 * matrices / H100.flops)


def test_a_step_of_copies_alone_takes_the_overhead():
    assert RooflineStepTime(LLAMA, H100, overhead=0.003)(size(0)) == 0.003


def test_models_travel_to_other_processes():
    step = decoding(7, 300)
    for model in MODELS:
        assert pickle.loads(pickle.dumps(model))(step) == model(step)


# ---- the table -------------------------------------------------------------------------------------------------------


def test_a_table_says_its_points_and_lies_on_straight_lines_between_them():
    prompt = lambda tokens: TABLE(size(prefill_tokens=tokens))  # noqa: E731
    assert [prompt(128), prompt(512), prompt(1024)] == pytest.approx([0.05, 0.06, 0.08])
    assert prompt(320) == pytest.approx(0.055)
    assert prompt(768) == pytest.approx(0.07)
    assert TABLE(decoding(2, 10)) == pytest.approx(0.031)
    assert TABLE(decoding(33, 10)) == pytest.approx(0.0405)


def test_a_mixed_step_takes_the_longer_of_its_two_readings():
    assert TABLE(size(3, prefill_tokens=510, decode_tokens=2)) == pytest.approx(0.06)
    assert TABLE(size(64, prefill_tokens=130, decode_tokens=63)) == pytest.approx(0.0517, abs=1e-4)
    slow_decodes = TableStepTime([(128, 0.05), (512, 0.06)], [(1, 0.03), (64, 0.9)])
    assert slow_decodes(size(64, prefill_tokens=130, decode_tokens=63)) == pytest.approx(0.9)


def test_a_table_takes_its_end_beyond_it_and_says_so_once():
    table = TableStepTime([(128, 0.05), (512, 0.06)], [(1, 0.03), (64, 0.05)], source="my table")
    with pytest.warns(UserWarning, match=r"100 tokens .* outside the 128 to 512 that my table has measured"):
        assert table(size(prefill_tokens=100)) == 0.05
    with pytest.warns(UserWarning, match=r"65 sequences .* outside the 1 to 64"):
        assert table(decoding(65, 10)) == 0.05
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert table(size(prefill_tokens=10_000)) == 0.06
        assert table(size(prefill_tokens=512)) == 0.06


def splitwise() -> dict:
    try:
        return read_columns(find_trace("splitwise_perf_model.csv"))
    except UnderloadError as error:
        pytest.skip(f"no Splitwise timings: {error}")


def test_the_splitwise_timings_are_a_table_of_medians():
    columns = splitwise()
    table = TableStepTime.of_columns(columns, model="llama2-70b", hardware="h100-80gb", tensor_parallel=8)
    # The middle of the five (batch 4, prompts of 512) and five (one of 2,048) measured prompts of 2,048 tokens in all:
    # 132.6 and 136.8 ms are the medians of each; the middle of all ten lies between.
    assert 0.1326 < table(size(4, prefill_tokens=2048)) < 0.1369
    assert table(decoding(64, 600)) == pytest.approx(0.05016, abs=1e-5)
    # Prefill is near proportional where it is long, and decode near flat: the two regimes that Splitwise parts.
    assert table(size(1, prefill_tokens=32_768)) / table(size(1, prefill_tokens=16_384)) == pytest.approx(
        1.89, abs=0.01
    )
    assert table(decoding(8, 600)) / table(decoding(1, 600)) < 1.1
    with pytest.raises(UnderloadError, match=r"no 'llama2-70b' on 'h200' x 8; it has .*bloom-176b on a100-80gb x 8"):
        TableStepTime.of_columns(columns, model="llama2-70b", hardware="h200", tensor_parallel=8)


def test_a_table_without_the_columns_is_refused_by_name():
    with pytest.raises(UnderloadError, match=r"no column .*prompt_time.*; it has a, b"):
        TableStepTime.of_columns({"a": [], "b": []}, model="m", hardware="h", tensor_parallel=1)


# ---- what they refuse ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: LinearStepTime(-1e-3, 1.0), "no term of it is negative"),
        (lambda: LinearStepTime(0.0, 0.0), "takes some time"),
        (lambda: OverlapStepTime(0.0, 0.0, 0.0, 0.5), "takes some time"),
        (lambda: OverlapStepTime(0.1, -1e-9, 0.1, 0.5), "no term of it is negative"),
        (lambda: OverlapStepTime(0.1, 0.1, 0.1, 1.01), r"from 0 to 1, got 1\.01"),
        (lambda: RooflineStepTime(LLAMA, H100, overhead=-1.0), "overhead must be at least 0 s"),
        (lambda: RooflineStepTime(LLAMA, H100, weight_bytes=0), "above 0"),
        (lambda: TableStepTime([], [(1, 1.0)]), "prompt has no point"),
        (lambda: TableStepTime([(1, 1.0)], [(1, 1.0), (1, 2.0)]), "decode needs one time above 0 s for each size"),
        (lambda: TableStepTime([(1, 0.0)], [(1, 1.0)]), "prompt needs one time above 0 s"),
    ],
)
def test_no_model_of_nothing(make, says):
    with pytest.raises(UnderloadError, match=says):
        make()
