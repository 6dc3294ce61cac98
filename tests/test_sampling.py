"""Choosing tokens: the law against a slow reference, the draws against the law, requests apart from neighbours."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from underload.decoder.sampling import (
    TOP_P_RESOLUTION,
    BadLogits,
    Draw,
    SamplingState,
    probabilities,
    sample,
    uniform,
    validate,
)
from underload.request import InvalidRequest, SamplingParams, Sequence

INF = float("inf")


def state(prompt=(0,), output=(), *, index=0, eos=(), name="", **wishes) -> SamplingState:
    sequence = Sequence(prompt_len=len(prompt), tokens=[*prompt, *output], index=index)
    return SamplingState(SamplingParams(**{"max_tokens": 1000, **wishes}), sequence, eos_token_ids=eos, name=name)


def law(logits, **wishes) -> list[float]:
    return probabilities(torch.tensor([logits], dtype=torch.float32), [state(**wishes)])[0].tolist()


def logs(probabilities_):
    return [math.log(p) if p else -INF for p in probabilities_]


def token(draw) -> int:
    assert isinstance(draw, Draw), draw
    return draw.token_id


# ---- the law ------------------------------------------------------------------------------------------------------

EIGHTHS = logs([0.5, 0.25, 0.125, 0.125])


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.5, [0]), (0.75, [0, 1]), (0.0, [0]), (0.51, [0, 1]), (0.76, [0, 1, 2]), (1.0, [0, 1, 2, 3])]
)
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p, kept):
    p = law(EIGHTHS, top_p=top_p)
    assert [i for i, mass in enumerate(p) if mass > 0] == kept
    total = sum([0.5, 0.25, 0.125, 0.125][i] for i in kept)
    assert p == pytest.approx([[0.5, 0.25, 0.125, 0.125][i] / total if i in kept else 0 for i in range(4)], abs=1e-7)


@pytest.mark.parametrize("count", range(1, 11))
def test_an_exact_sum_takes_no_token_more_for_want_of_a_bit(count):
    # .1 added up eight times is .7999…: the eighth token reaches .8 all the same.
    assert sum(p > 0 for p in law([0.0] * 10, top_p=count / 10)) == count
    # float32 logits: each of these is off by its rounding, and so is their sum.
    assert sum(p > 0 for p in law([math.log(0.1) + 20] * 10, top_p=count / 10)) == count


def test_top_p_is_held_to_a_millionth():
    assert law(EIGHTHS, top_p=0.75 + 1e-5)[2] > 0
    assert law(EIGHTHS, top_p=0.75 + 1e-7)[2] == 0


@pytest.mark.parametrize("top_k", [-1, 0, 2, 3, 1_000_000])
def test_top_k_off_leaves_both_of_two_equal_tokens(top_k):
    assert law([0.0, 0.0], top_k=top_k) == [0.5, 0.5]
    rows = [state(seed=seed, top_k=top_k) for seed in range(200)]
    assert {token(d) for d in sample(torch.zeros(200, 2), rows)} == {0, 1}


def test_top_k_keeps_exactly_k_and_the_lower_ids_of_a_tie():
    assert law([1.0, 2.0, 1.0, 1.0, 1.0], top_k=3)[3:] == [0, 0]
    assert all(mass > 0 for mass in law([1.0, 2.0, 1.0, 1.0, 1.0], top_k=3)[:3])


def test_top_p_is_taken_of_what_top_k_left():
    # Renormalised after top_k=2 the first token has 2/3, which reaches .6; of the whole law it has .5, which does not.
    assert law(EIGHTHS, top_k=2, top_p=0.6) == [1, 0, 0, 0]
    assert law(EIGHTHS, top_p=0.6)[1] > 0


def test_min_p_drops_what_is_less_probable_than_its_share_of_the_best():
    p = [0.5, 0.3, 0.1, 0.06, 0.04]
    assert [mass > 0 for mass in law(logs(p), min_p=0.19)] == [True, True, True, False, False]
    assert law(logs(p), min_p=1.0) == [1, 0, 0, 0, 0]


def test_a_law_is_the_softmax_when_nothing_is_asked_for():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(1)) * 4
    expected = (logits.double() / 0.7).softmax(-1)
    torch.testing.assert_close(probabilities(logits, [state(temperature=0.7)] * 3), expected, rtol=1e-12, atol=0)


def test_penalties_touch_the_tokens_they_name_and_no_others():
    logits = [2.0, -2.0, 2.0, -2.0, 2.0, 0.5]
    # prompt 0, 1; output 2, 2, 3: repetition acts on all four, frequency and presence on the output only.
    wishes = {
        "prompt": (0, 1),
        "output": (2, 2, 3),
        "repetition_penalty": 2.0,
        "frequency_penalty": 0.25,
        "presence_penalty": 0.5,
    }
    expected = [1.0, -4.0, 1.0 - 2 * 0.25 - 0.5, -4.0 - 0.25 - 0.5, 2.0, 0.5]
    got = probabilities(torch.tensor([logits]), [state(**wishes)])[0]
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64).softmax(-1), rtol=1e-6, atol=0)


def test_logit_bias_is_added_after_the_penalties_and_can_ban():
    got = law([1.0, 1.0, 1.0], prompt=(0,), repetition_penalty=2.0, logit_bias={0: 0.5, 2: -INF})
    assert got == pytest.approx([0.5, 0.5, 0.0])


def test_min_tokens_bans_what_would_end_the_text_until_it_is_reached():
    early = {"eos": (1,), "stop_token_ids": (2,), "min_tokens": 2}
    assert [p > 0 for p in law([0.0, 9.0, 9.0, 0.0], output=(3,), **early)] == [True, False, False, True]
    assert all(p > 0 for p in law([0.0, 9.0, 9.0, 0.0], output=(3, 3), **early))
    assert all(p > 0 for p in law([0.0, 9.0, 9.0, 0.0], output=(3, 3), logit_bias={0: 1.0}, **early))
    # With ignore_eos the end token ends nothing, so there is nothing to ban.
    assert [p > 0 for p in law([0.0, 9.0, 9.0, 0.0], ignore_eos=True, **early)] == [True, True, False, True]


def test_only_a_stop_token_past_min_tokens_ends_the_text():
    asked = state(output=(3,), eos=(1,), stop_token_ids=(2,), min_tokens=2)
    assert not asked.ends(1)
    asked.sequence.tokens.append(3)
    assert asked.ends(1) and asked.ends(2) and not asked.ends(3)
    assert not state(eos=(1,), ignore_eos=True).ends(1)


@pytest.mark.parametrize("temperature", [1e-30, 1e-6])
def test_a_tiny_temperature_is_argmax_and_no_overflow(temperature):
    assert law([3.0, 3.5, -1e30, 3.4], temperature=temperature) == [0, 1, 0, 0]


def reference_law(logits, p: SamplingParams):
    """The same law, one token at a time, over Python floats."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    best = logits[order[0]]
    if p.temperature == 0:
        return [float(i == order[0]) for i in range(len(logits))]
    weight = [math.exp((x - best) / p.temperature) for x in logits]
    if 1 <= p.top_k < len(logits):
        for i in order[p.top_k :]:
            weight[i] = 0.0
    total = math.fsum(weight)
    if p.top_p < 1:
        mass, kept = 0.0, []
        for i in order:
            kept.append(i)
            mass += weight[i] / total
            if mass >= p.top_p - TOP_P_RESOLUTION:
                break
        weight = [w if i in kept else 0.0 for i, w in enumerate(weight)]
    weight = [w if w >= p.min_p * max(weight) else 0.0 for w in weight]
    total = math.fsum(weight)
    return [w / total for w in weight]


# Coarse values: ties are common, and no sum comes within rounding of a top_p by accident.
some_logits = st.lists(st.integers(-40, 40).map(lambda i: i / 4), min_size=1, max_size=30)
filters = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.25, 1.0, 2.0]),
        "top_k": st.integers(-1, 33),
        "top_p": st.sampled_from([0.0, 0.1, 0.37, 0.61803, 0.95, 1.0]),
        "min_p": st.sampled_from([0.0, 0.0101, 0.3, 1.0]),
    }
)


@settings(max_examples=300, deadline=None)
@given(some_logits, filters)
def test_the_law_is_that_of_the_slow_reference(logits, wishes):
    assert law(logits, **wishes) == pytest.approx(reference_law(logits, SamplingParams(**wishes)), abs=1e-9)


@settings(max_examples=200, deadline=None)
@given(some_logits, filters)
def test_every_law_sums_to_one_and_keeps_the_argmax(logits, wishes):
    p = law(logits, **wishes)
    assert math.fsum(p) == pytest.approx(1, abs=1e-12)
    assert min(p) >= 0
    assert p[logits.index(max(logits))] == max(p) > 0
    # A filter never turns the order of two tokens it keeps.
    kept = [i for i, mass in enumerate(p) if mass > 0]
    assert all((p[i] >= p[j]) for i in kept for j in kept if logits[i] >= logits[j])


@settings(max_examples=100, deadline=None)
@given(some_logits, st.floats(0, 1), st.floats(0, 1))
def test_a_larger_top_p_never_keeps_fewer(logits, one, other):
    small, large = sorted([one, other])
    few, many = law(logits, top_p=small), law(logits, top_p=large)
    assert all(b > 0 for a, b in zip(few, many, strict=True) if a > 0)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.2, 0.9, 0.999]))
def test_top_p_finds_the_same_set_whether_it_sorts_the_head_or_everything(seed, top_p):
    # 40,000 tokens: a head of 64, a head of 1,024 and the full sort are all met, by how peaked the row is.
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, 40_000, generator=generator) * torch.tensor([[0.3], [3.0], [12.0]])
    got = probabilities(logits, [state(top_p=top_p)] * 3) > 0
    full = torch.sort(logits.double().softmax(-1), dim=-1, descending=True, stable=True)  # ties: lower ids first
    for r in range(3):
        count = 1 + int((full.values[r].cumsum(0) < top_p - TOP_P_RESOLUTION).sum())
        assert set(full.indices[r, :count].tolist()) == set(got[r].nonzero().squeeze(-1).tolist())


# ---- the draws ----------------------------------------------------------------------------------------------------


def test_draws_follow_the_law():
    logits = torch.tensor([[2.0, 1.0, 0.5, 0.0, -1.0, -3.0, 1.5, 0.25]])
    wishes = {"temperature": 0.8, "top_p": 0.97, "min_p": 0.02, "frequency_penalty": 0.3, "output": (0, 6, 6)}
    n = 40_000
    expected = probabilities(logits, [state(**wishes)])[0].numpy() * n
    rows = [state(seed=7, index=i, **wishes) for i in range(n)]
    counts = np.bincount([token(d) for d in sample(logits.expand(n, -1), rows)], minlength=8)
    assert counts[expected == 0].sum() == 0
    kept = expected > 0
    # The seed is fixed, so this passes or fails for good; a right sampler would fail for one seed in 1,000.
    assert stats.chisquare(counts[kept], expected[kept]).pvalue > 0.001


def test_draws_at_successive_positions_are_independent():
    # Pairs of successive tokens of one sequence against the product of the law.
    n = 20_000
    tokens = [int(4 * uniform(3, 0, position)) for position in range(n + 1)]
    pairs = np.bincount([4 * a + b for a, b in itertools.pairwise(tokens)], minlength=16)
    assert stats.chisquare(pairs).pvalue > 0.001


def test_the_uniform_number_depends_on_seed_sample_position_and_stream():
    base = uniform(1, 2, 3)
    assert base == uniform(1, 2, 3)
    assert len({base, uniform(2, 2, 3), uniform(1, 3, 3), uniform(1, 2, 4), uniform(1, 2, 3, stream=1)}) == 5
    assert uniform(-1, 0, 0) == uniform(2**64 - 1, 0, 0)
    assert len({uniform(2**64 - 1 - seed, 0, 0) for seed in range(100)}) == 100
    assert all(0 <= uniform(seed, 0, 0) < 1 for seed in range(1000))


@pytest.mark.parametrize("mass", [1.0, 0.3, 1.7, 3.0])
def test_a_draw_never_lands_beyond_the_law(mass):
    from underload.decoder.sampling import _invert

    # Zeros at both ends; the largest and the smallest number that uniform() gives.
    weights = torch.tensor([[0.0, 0.25, 0.5, 0.25, 0.0, 0.0]], dtype=torch.float64) * mass
    assert _invert(weights, torch.tensor([1 - 2.0**-52], dtype=torch.float64)).tolist() == [3]
    assert _invert(weights, torch.tensor([0.0], dtype=torch.float64)).tolist() == [1]


VOCAB = 5000


def run_alone_or_not(neighbours, place, steps=12):
    """Tokens and laws of a request with seed 42 that stands at `place` among `neighbours`, over fixed logits."""
    mine = state(seed=42, temperature=0.8, top_p=0.95)
    rows = [*neighbours[:place], mine, *neighbours[place:]]
    tokens, laws = [], []
    for step in range(steps):
        own = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(step)) * 3
        other = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(100 + step)) * 3
        other[place] = own
        laws.append(probabilities(other, rows)[place])
        drawn = sample(other, rows)
        for row, draw in zip(rows, drawn, strict=True):
            row.sequence.tokens.append(token(draw))
        tokens.append(token(drawn[place]))
    return tokens, torch.stack(laws)


def test_a_seeded_request_does_not_notice_its_neighbours():
    alone, law_alone = run_alone_or_not([], 0)
    unseeded = [state(temperature=1.0)]
    kinds = [
        state(temperature=0), state(seed=42, index=1), state(seed=1, top_k=5), state(min_p=0.1), state(top_p=0.3),
        state(repetition_penalty=1.3, frequency_penalty=0.2), state(temperature=0, logprobs=3),
    ]  # fmt: skip
    for neighbours, place in [(unseeded, 0), (unseeded, 1), (kinds, 7), (kinds, 3)]:
        tokens, laws = run_alone_or_not(neighbours, place)
        assert tokens == alone
        assert torch.equal(laws, law_alone)  # bit for bit


def test_a_row_without_filters_does_not_notice_filters_beside_it():
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(0)) * 3
    alone = probabilities(logits[:1], [state()])
    beside = probabilities(logits, [state(), state(top_k=3, top_p=0.5, min_p=0.2)])
    assert torch.equal(alone[0], beside[0])


def test_a_request_that_lost_its_state_draws_the_same_tokens_again():
    logits = torch.randn(20, 1, VOCAB, generator=torch.Generator().manual_seed(5)) * 2
    once = state(seed=9, prompt=(1, 2, 3))
    for step in range(20):
        once.sequence.tokens.append(token(sample(logits[step], [once])[0]))
    # Preempted after 8 tokens: everything but the tokens is gone, also the state object.
    again = state(seed=9, prompt=(1, 2, 3), output=once.sequence.output_ids[:8])
    for step in range(8, 20):
        again.sequence.tokens.append(token(sample(logits[step], [again])[0]))
    assert again.sequence.tokens == once.sequence.tokens


def test_samples_of_one_seed_differ_and_unseeded_requests_too():
    logits = torch.zeros(16, VOCAB)
    assert len({token(d) for d in sample(logits, [state(seed=1, index=i) for i in range(16)])}) > 8
    assert len({token(d) for d in sample(logits, [state() for _ in range(16)])}) > 8


def test_after_looks_ahead_and_changes_nothing():
    now = state(seed=4, output=(1,), eos=(2,), presence_penalty=1.0, min_tokens=3)
    then = now.after([3, 3])
    real = state(seed=4, output=(1, 3, 3), eos=(2,), presence_penalty=1.0, min_tokens=3)
    logits = torch.zeros(1, 5)
    assert torch.equal(probabilities(logits, [then]), probabilities(logits, [real]))
    assert then.uniform() == real.uniform() and then.position == 3
    assert now.position == 1 and now.sequence.output_ids == [1]


def test_greedy_rows_take_the_first_of_equal_logits():
    logits = torch.tensor([[0.0, 5.0, 5.0], [1.0, 1.0, 1.0], [-INF, -INF, 0.0]])
    assert [token(d) for d in sample(logits, [state(temperature=0)] * 3)] == [1, 0, 2]
    assert [token(d) for d in sample(logits, [state(top_k=1)] * 3)] == [1, 0, 2]
    assert [token(d) for d in sample(logits, [state(top_p=0)] * 3)] == [1, 0, 2]


@pytest.mark.parametrize(
    ("wishes", "plain"),
    [
        ({"temperature": 0}, True),
        ({"temperature": 0, "eos": (1,), "min_tokens": 1}, False),
        ({"temperature": 0, "eos": (1,), "min_tokens": 1, "output": (3,)}, True),
        ({"temperature": 0, "logit_bias": {1: 2.0}}, False),
        ({"temperature": 0, "repetition_penalty": 1.1}, False),
        ({"temperature": 0, "logprobs": 0}, False),
        ({"temperature": 0.1}, False),
    ],
)
def test_a_fused_argmax_is_offered_only_where_nothing_else_is_asked(wishes, plain):
    assert state(**wishes).takes_argmax is plain


def test_sampling_changes_neither_logits_nor_sequences():
    logits = torch.randn(2, 30)
    kept = logits.clone()
    rows = [state(repetition_penalty=1.5, output=(4,)), state(temperature=0, logit_bias={3: 100.0})]
    sample(logits, rows)
    probabilities(logits, rows)
    assert torch.equal(logits, kept) and rows[0].sequence.output_ids == [4]


# ---- log-probabilities --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 0.1, 1.0, 2.0])
@pytest.mark.parametrize("top_p", [0.1, 1.0])
def test_logprobs_are_raw_and_always_list_the_chosen_token(temperature, top_p):
    logits = torch.randn(8, 40, generator=torch.Generator().manual_seed(3)) * 2
    raw = logits.log_softmax(-1)
    bias = dict.fromkeys(range(38, 40), 30.0)  # forces tokens that are nowhere near the top
    rows = [state(seed=s, temperature=temperature, top_p=top_p, logprobs=s % 4, logit_bias=bias) for s in range(8)]
    for r, draw in enumerate(sample(logits, rows)):
        assert isinstance(draw, Draw) and draw.token_id >= 38
        assert draw.logprob == pytest.approx(raw[r, draw.token_id].item(), abs=1e-6)
        top = raw[r].topk(r % 4)
        listed = dict(zip(top.indices.tolist(), top.values.tolist(), strict=True)) | {draw.token_id: draw.logprob}
        assert draw.top_logprobs == pytest.approx(listed)
        assert list(draw.top_logprobs.values()) == sorted(draw.top_logprobs.values(), reverse=True)
        assert all(value <= 0 for value in draw.top_logprobs.values())


def test_logprobs_of_a_certain_token_are_not_above_zero():
    draw = sample(torch.tensor([[500.0, -500.0]]), [state(logprobs=2)])[0]
    assert isinstance(draw, Draw) and draw.logprob == 0.0


def test_logprobs_are_not_computed_unless_asked_for():
    assert sample(torch.zeros(1, 3), [state(temperature=0)])[0] == Draw(0)


# ---- what cannot be drawn -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, INF])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_logits_fail_their_own_request_by_name_and_no_other(bad, temperature):
    logits = torch.zeros(3, 10)
    logits[:, 7] = 5.0
    logits[1, 4] = bad
    rows = [state(name=f"r{i}", temperature=temperature, top_k=1, logprobs=1) for i in range(3)]
    first, broken, third = sample(logits, rows)
    assert token(first) == token(third) == 7
    assert isinstance(broken, BadLogits) and "'r1'" in str(broken)
    with pytest.raises(BadLogits, match="'r1'"):
        probabilities(logits, rows)


def test_a_nan_is_not_hidden_by_a_ban_on_its_token():
    logits = torch.tensor([[0.0, math.nan]])
    assert isinstance(sample(logits, [state(temperature=0, logit_bias={1: -INF})])[0], BadLogits)


def test_banning_every_token_is_an_error_that_says_so():
    error = sample(torch.zeros(1, 2), [state(temperature=0, logit_bias={0: -INF, 1: -INF})])[0]
    assert isinstance(error, BadLogits) and "banned" in str(error)


def test_a_penalty_that_overflows_is_an_error_that_says_so():
    error = sample(torch.full((1, 2), 1e20), [state(repetition_penalty=1e-30)])[0]
    assert isinstance(error, BadLogits) and "repetition_penalty" in str(error)


@pytest.mark.parametrize("ids", [{-1: 1.0}, {100: 1.0}])
def test_ids_outside_the_vocabulary_are_refused_by_name(ids):
    (bad,) = ids
    with pytest.raises(InvalidRequest, match=f"logit_bias names token {bad}, .* 100 tokens"):
        validate(SamplingParams(logit_bias=ids), 100)
    with pytest.raises(InvalidRequest, match=f"stop_token_ids names token {bad}, .* 100 tokens"):
        validate(SamplingParams(stop_token_ids=(bad,)), 100)


def test_more_logprobs_than_tokens_are_refused():
    with pytest.raises(InvalidRequest, match="101"):
        validate(SamplingParams(logprobs=101), 100)
    validate(SamplingParams(logprobs=100, logit_bias={0: 1.0, 99: 1.0}, stop_token_ids=(99,)), 100)


def test_rows_and_states_must_agree():
    with pytest.raises(ValueError, match="2 states"):
        sample(torch.zeros(1, 3), [state(), state()])
    assert sample(torch.zeros(0, 3), []) == []
