"""The vocabulary: bad wishes are refused by name, good ones are kept as they were meant."""

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underload.request import (
    BlockTable,
    InvalidRequest,
    ProcessorClock,
    Request,
    SamplingParams,
    Sequence,
    Timeline,
    UnderloadError,
    VirtualClock,
    WallClock,
)

BAD = [
    ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 1.5), ("max_tokens", "3"),
    ("max_tokens", None), ("max_tokens", True),
    ("min_tokens", -1), ("min_tokens", 17),
    ("temperature", -0.1), ("temperature", math.nan), ("temperature", math.inf), ("temperature", "hot"),
    ("top_k", 2.5), ("top_k", None),
    ("top_p", -0.1), ("top_p", 1.1), ("top_p", math.nan),
    ("min_p", -0.1), ("min_p", 1.1), ("min_p", math.nan),
    ("repetition_penalty", 0), ("repetition_penalty", -1), ("repetition_penalty", math.inf),
    ("repetition_penalty", math.nan),
    ("frequency_penalty", math.inf), ("frequency_penalty", math.nan), ("presence_penalty", -math.inf),
    ("presence_penalty", "x"),
    ("logit_bias", {3: math.nan}), ("logit_bias", {3: math.inf}), ("logit_bias", {3: 1e31}), ("logit_bias", {"3": 1.0}),
    ("logit_bias", {3: "1"}),
    ("stop", [""]), ("stop", ["", "x"]), ("stop", [3]),
    ("stop_token_ids", ["3"]), ("stop_token_ids", [1.5]),
    ("seed", 1.5), ("seed", "1"), ("logprobs", -1), ("logprobs", 1.0), ("logprobs", True),
    ("n", 0), ("n", -2), ("n", 1.0),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_value_is_refused_with_its_name_and_itself(name, value):
    with pytest.raises(InvalidRequest) as refused:
        SamplingParams(**{name: value})
    message = str(refused.value)
    assert message.startswith(f"{name} must be ")
    shown = tuple(value) if isinstance(value, list) else value
    assert repr(shown) in message


def test_a_refusal_is_an_error_of_the_library_and_a_value_error():
    assert issubclass(InvalidRequest, UnderloadError) and issubclass(InvalidRequest, ValueError)


def test_min_tokens_is_held_against_max_tokens():
    SamplingParams(max_tokens=5, min_tokens=5)
    with pytest.raises(InvalidRequest, match=r"max_tokens \(5\), got 6"):
        SamplingParams(max_tokens=5, min_tokens=6)


def test_a_lone_stop_string_is_one_stop_string():
    assert SamplingParams(stop="abc").stop == ("abc",)
    assert SamplingParams(stop=["a", "bc"]).stop == ("a", "bc")


def test_what_json_writes_as_null_means_none_of_it():
    params = SamplingParams(stop=None, stop_token_ids=None, logit_bias=None)
    assert (params.stop, params.stop_token_ids, params.logit_bias) == ((), (), {})


def test_numbers_of_numpy_are_numbers():
    SamplingParams(
        max_tokens=np.int64(3), top_p=np.float32(0.5), stop_token_ids=np.array([1, 2]).tolist(), seed=np.uint64(7)
    )


def test_a_bias_cannot_be_changed_behind_the_check():
    bias = {1: 2.0}
    params = SamplingParams(logit_bias=bias)
    bias[1] = math.nan
    assert params.logit_bias == {1: 2.0}


def test_a_ban_is_a_bias_of_minus_infinity():
    assert SamplingParams(logit_bias={1: -math.inf}).logit_bias[1] == -math.inf


@given(
    st.builds(
        dict,
        max_tokens=st.integers(1, 10**9),
        temperature=st.floats(0, 1e300),
        top_k=st.integers(-(10**9), 10**9),
        top_p=st.floats(0, 1),
        min_p=st.floats(0, 1),
        repetition_penalty=st.floats(1e-300, 1e300),
        frequency_penalty=st.floats(-1e300, 1e300),
        presence_penalty=st.floats(-1e300, 1e300),
        stop=st.lists(st.text(min_size=1), max_size=3).map(tuple),
        stop_token_ids=st.lists(st.integers(), max_size=3).map(tuple),
        seed=st.none() | st.integers(),
        logprobs=st.none() | st.integers(0, 100),
        n=st.integers(1, 100),
    )
)
def test_a_good_value_is_kept_as_it_was_given(wishes):
    params = SamplingParams(**wishes)
    assert all(getattr(params, name) == value for name, value in wishes.items())


anything = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
)


@given(st.sampled_from(sorted({name for name, _ in BAD})), anything)
def test_no_value_of_any_kind_is_answered_by_anything_but_a_refusal(name, value):
    try:
        SamplingParams(**{name: value})
    except InvalidRequest as refused:
        assert name in str(refused)


# ---- requests and their sequences ---------------------------------------------------------------------------------


def test_a_request_owns_a_sequence_per_sample():
    request = Request("r", [5, 6, 7], SamplingParams(n=3), Timeline(arrival=1.0))
    assert [s.index for s in request.sequences] == [0, 1, 2]
    assert request.timeline.prompt_tokens == 3
    request.sequences[0].tokens.append(9)
    assert request.sequences[1].tokens == request.prompt_ids == [5, 6, 7]
    assert request.sequences[0].output_ids == [9]


def test_an_empty_prompt_is_refused_by_the_name_of_its_request():
    with pytest.raises(InvalidRequest, match="'r7'"):
        Request("r7", [], SamplingParams(), Timeline(arrival=0.0))


def test_a_block_table_finds_the_slot_of_a_token():
    table = BlockTable(4, [7, 2])
    assert [table.slot(p) for p in (0, 3, 4, 7)] == [28, 31, 8, 11]
    assert table.capacity == 8


def test_a_new_sequence_has_no_output_and_no_end():
    sequence = Sequence(prompt_len=2, tokens=[1, 2])
    assert sequence.output_ids == [] and not sequence.finished


# ---- clocks -------------------------------------------------------------------------------------------------------


def test_a_virtual_clock_moves_only_forward_and_only_when_told():
    clock = VirtualClock(5.0)
    clock.wait(4.0)
    assert clock.now() == 5.0
    clock.wait(7.5)
    assert clock.now() == 7.5


def test_a_wall_clock_does_not_return_before_the_instant():
    clock = WallClock()
    target = clock.now() + 0.01
    clock.wait(target)
    assert clock.now() >= target
    clock.wait(target - 1)  # long past: returns


def test_a_processor_clock_skips_what_is_waited_for_and_counts_what_is_computed():
    clock = ProcessorClock()
    clock.wait(1e6)  # returns at once
    assert clock.now() >= 1e6
    clock.wait(1.0)  # long past: returns, and never goes back
    outer = time.process_time()
    begin = clock.now()
    sum(range(200_000))
    spent = clock.now() - begin
    assert 0 < spent <= time.process_time() - outer + 1e-9  # 1e-9: the clock's own numbers are larger


def test_a_timeline_reads_its_first_and_last_token():
    empty, full = Timeline(arrival=0.0), Timeline(arrival=0.0, token_times=[1.0, 1.5])
    assert (empty.first_token, empty.last_token, empty.output_tokens) == (None, None, 0)
    assert (full.first_token, full.last_token, full.output_tokens) == (1.0, 1.5, 2)
