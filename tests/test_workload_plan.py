"""Lengths, prompts and mixes: the plan that a seed gives, and what stays when something else changes."""

import io
import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from underload.queueing import Exponential
from underload.request import SamplingParams, UnderloadError
from underload.workload import (
    Conversations,
    EmpiricalPairs,
    EmpiricalTokens,
    FixedTokens,
    Gamma,
    GeometricTokens,
    Lengths,
    LognormalTokens,
    Mix,
    Planned,
    Poisson,
    PromptIds,
    Segment,
    Share,
    SharedPrefix,
    Streams,
    Tenants,
    UniformTokens,
    Workload,
    block_keys,
    read_plan,
    shared_blocks,
    write_plan,
)

LENGTHS = Lengths(LognormalTokens.of(50, 1), GeometricTokens(20))
CHATS = Conversations(GeometricTokens(3), Exponential(5.0), system=40)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# ---- lengths -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("law", "mean", "sd"),
    [
        (FixedTokens(7), 7, 0),
        (UniformTokens(3, 10), 6.5, math.sqrt(63 / 12)),
        (GeometricTokens(20), 20, math.sqrt(20 * 19)),
        (GeometricTokens(1), 1, 0),
        (LognormalTokens.of(500, 1.0), 500, 500),
        (LognormalTokens.of(500, 0.0), 500, 0),
        (EmpiricalTokens([1, 2, 3], [1, 0, 3]), 2.5, math.sqrt(0.75)),
    ],
)
def test_lengths_have_their_mean_and_spread(law, mean, sd):
    drawn = law.draw(rng(1), 100_000)
    assert drawn.dtype == np.int64 and drawn.min() >= 1
    assert drawn.mean() == pytest.approx(mean, abs=4 * sd / math.sqrt(100_000) + 1e-9)
    # the spread of a spread depends on the tail; a lognormal with CV 1 is the worst here
    assert drawn.std() == pytest.approx(sd, rel=0.05)


def test_a_uniform_law_is_uniform_and_a_lognormal_has_its_median():
    counts = np.bincount(UniformTokens(1, 8).draw(rng(2), 80_000))[1:]
    assert stats.chisquare(counts).pvalue > 1e-3
    assert np.median(LognormalTokens(129, 0.66).draw(rng(3), 100_000)) == pytest.approx(129, rel=0.02)
    assert LognormalTokens.of(500, 2.0).mean == pytest.approx(500)


def test_an_empirical_law_never_gives_what_has_no_weight():
    assert set(EmpiricalTokens([5, 6, 7], [1, 0, 1]).draw(rng(4), 5_000)) == {5, 7}


@pytest.mark.parametrize("correlation", [-0.9, -0.3, 0.0, 0.5, 1.0])
def test_the_copula_ties_the_ranks_and_leaves_the_laws(correlation):
    n = 40_000
    prompt, output = Lengths(LognormalTokens.of(500, 1), LognormalTokens.of(200, 0.5), correlation).draw(rng(5), n)
    spearman = stats.spearmanr(prompt, output).statistic
    assert spearman == pytest.approx(6 / math.pi * math.asin(correlation / 2), abs=4 / math.sqrt(n))
    assert prompt.mean() == pytest.approx(500, abs=4 * 500 / math.sqrt(n))
    assert output.mean() == pytest.approx(200, abs=4 * 100 / math.sqrt(n))


def test_measured_pairs_stay_pairs():
    prompts, outputs = EmpiricalPairs([10, 20, 30], [1, 2, 3]).draw(rng(6), 3_000)
    assert (prompts == 10 * outputs).all()
    assert stats.chisquare(np.bincount(outputs)[1:]).pvalue > 1e-3


def test_at_a_limit_the_choice_is_explicit_and_shows():
    free = Lengths(LognormalTokens.of(500, 1), LognormalTokens.of(500, 1))
    cut = replace(free, limit=1_000, beyond="truncate")
    again = replace(free, limit=1_000, beyond="redraw")
    prompt, output = cut.draw(rng(7), 20_000)
    whole = free.draw(rng(7), 20_000)
    fits = whole[0] + whole[1] <= 1_000
    assert ((prompt + output)[~fits] == 1_000).all() and 0.2 < (~fits).mean() < 0.6
    assert (prompt[fits] == whole[0][fits]).all() and (output >= 1).all()
    drawn = again.draw(rng(7), 20_000)
    assert (drawn[0] + drawn[1] <= 1_000).all()
    assert (drawn[0][fits] == whole[0][fits]).all()  # only what does not fit is drawn again
    assert ((drawn[0] + drawn[1]) == 1_000).mean() < 0.01
    # and the law is that of a pair that fits
    assert stats.ks_2samp(drawn[0], whole[0][fits]).pvalue > 1e-3


def test_a_redraw_does_not_depend_on_how_many_requests_there_are():
    law = Lengths(LognormalTokens.of(500, 1), LognormalTokens.of(500, 1), limit=600, beyond="redraw")
    few, many = law.draw(rng(8), 100), law.draw(rng(8), 1_000)
    assert (few[0] == many[0][:100]).all() and (few[1] == many[1][:100]).all()


def test_another_law_keeps_long_requests_long():
    """One uniform number for each length: common random numbers across laws."""
    short = Lengths(LognormalTokens.of(100, 1), 1).draw(rng(9), 1_000)[0]
    long = Lengths(GeometricTokens(400), 1).draw(rng(9), 1_000)[0]
    assert stats.spearmanr(short, long).statistic > 0.999


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: FixedTokens(0), "tokens must be a whole number from 1"),
        (lambda: UniformTokens(5, 4), "high must be a whole number from 5"),
        (lambda: GeometricTokens(0.5), "at least 1"),
        (lambda: LognormalTokens(0, 1), "median"),
        (lambda: LognormalTokens.of(100, -1), "cv"),
        (lambda: EmpiricalTokens([]), "at least one"),
        (lambda: EmpiricalTokens([1, 0]), "from 1"),
        (lambda: EmpiricalTokens([1.5]), "whole numbers"),
        (lambda: EmpiricalTokens([1, 2], [0, 0]), "not all 0"),
        (lambda: EmpiricalPairs([1, 2], [1]), "no pairs"),
        (lambda: Lengths(10, 10, 1.5), "correlation"),
        (lambda: Lengths(10, 10, limit=100), 'beyond="truncate" or "redraw"'),
        (lambda: Lengths(10, 10, beyond="redraw"), "give limit"),
        (lambda: Lengths(10, 10, limit=1, beyond="redraw"), "limit must be"),
        (lambda: Lengths(500, 10, limit=100, beyond="redraw").draw(rng(), 3), "2,000 draws found no pair"),
        (lambda: Lengths(5, 5, limit=100, beyond="redraw").draw(rng(), 3, before=99), "99 tokens stand before"),
        (lambda: SharedPrefix(0, 5), "groups"),
        (lambda: Conversations(0), "tokens"),
        (lambda: Conversations(2, think=-1), "think"),
        (lambda: Planned(0, 0, 1), "at least 1"),
        (lambda: Planned(-1, 1, 1), "count from the start"),
        (lambda: Planned(0, 5, 1, segments=(Segment("a", 4),)), "make them the same"),
        (lambda: Workload(Poisson(1), LENGTHS).plan(0), "not neither"),
        (lambda: Workload(Poisson(1), LENGTHS).plan(0, horizon=1, requests=1), "not both"),
        (lambda: Tenants([Workload(Poisson(1), LENGTHS)] * 2), "each its own"),
        (lambda: Tenants([]), "tenants need names"),
        (lambda: Mix(Poisson(1), {}), "needs a share"),
        (lambda: Mix(Poisson(1), {"a": Share(0, LENGTHS)}), "weight of 'a'"),
    ],
)
def test_nonsense_is_named_with_its_limit(make, says):
    with pytest.raises(UnderloadError, match=says):
        make()


# ---- what a seed gives -------------------------------------------------------------------------------------------

LOADS = {
    "plain": Workload(Poisson(2), LENGTHS),
    "limited": Workload(Gamma(2, 0.5), replace(LENGTHS, limit=120, beyond="redraw")),
    "prefixes": Workload(Poisson(2), LENGTHS, SharedPrefix(5, UniformTokens(20, 60), skew=1)),
    "chats": Workload(Poisson(0.5), LENGTHS, CHATS),
    "tenants": Tenants([Workload(Poisson(1), LENGTHS, tenant="a"), Workload(Poisson(1), LENGTHS, CHATS, "b")]),
    "mix": Mix(Poisson(2), {"a": Share(3, LENGTHS), "b": Share(1, LENGTHS, CHATS)}),
}


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(LOADS)), st.integers(0, 10**6), st.floats(1, 30), st.floats(0, 200))
def test_a_longer_horizon_keeps_the_earlier_requests(name, seed, short, more):
    few = LOADS[name].plan(seed, horizon=short)
    many = LOADS[name].plan(seed, horizon=short + more)
    assert few == many[: len(few)]
    assert all(request.arrival >= short for request in many[len(few) :])
    for plan, horizon in ((few, short), (many, short + more)):
        assert [request.index for request in plan] == list(range(len(plan)))
        assert all(a.arrival <= b.arrival for a, b in pairwise(plan))
        assert all(0 <= request.arrival < horizon for request in plan)


@pytest.mark.parametrize("name", LOADS)
def test_the_same_seed_gives_the_same_plan_and_another_another(name):
    load = LOADS[name]
    streams = Streams(3)
    assert load.plan(3, horizon=60) == load.plan(3, horizon=60) == load.plan(streams, horizon=60)
    assert load.plan(streams, horizon=60) == load.plan(3, horizon=60)  # planning leaves the streams where they were
    assert load.plan(3, horizon=60) != load.plan(4, horizon=60)


def test_changing_one_part_leaves_the_streams_of_the_others():
    base = Workload(Poisson(2), LENGTHS).plan(1, horizon=100)
    longer = Workload(Poisson(2), Lengths(800, 900)).plan(1, horizon=100)
    assert [r.arrival for r in base] == [r.arrival for r in longer]
    faster = Workload(Poisson(4), LENGTHS).plan(1, horizon=50)
    assert [r.prompt_tokens for r in base[:50]] == [r.prompt_tokens for r in faster[:50]]
    prefixed = Workload(Poisson(2), LENGTHS, SharedPrefix(3, 10)).plan(1, horizon=100)
    assert [r.prompt_tokens + 10 for r in base] == [r.prompt_tokens for r in prefixed]


def test_adding_a_tenant_leaves_the_others():
    a, b = Workload(Poisson(1), LENGTHS, tenant="a"), Workload(Poisson(2), LENGTHS, CHATS, "b")
    alone = Tenants([a]).plan(0, horizon=100)
    both = Tenants([a, b]).plan(0, horizon=100)
    strip = [replace(r, index=0) for r in both if r.tenant == "a"]
    assert strip == [replace(r, index=0) for r in alone]
    assert {r.tenant for r in both} == {"a", "b"}
    twins = Tenants([a, replace(a, tenant="c")]).plan(0, horizon=100)
    times = [[r.arrival for r in twins if r.tenant == name] for name in "ac"]
    lengths = [[r.prompt_tokens for r in twins if r.tenant == name][:50] for name in "ac"]
    assert not set(times[0]) & set(times[1]) and lengths[0] != lengths[1]  # each has streams of its own
    assert not {s.identity for r in alone for s in r.segments} & {
        s.identity for r in both if r.tenant == "b" for s in r.segments
    }


def test_a_mix_has_its_weights_and_keeps_one_arrival_process():
    plan = Mix(Poisson(50), {"a": Share(3, LENGTHS), "b": Share(1, Lengths(7, 7))}).plan(0, horizon=150)
    share = sum(r.tenant == "a" for r in plan) / len(plan)
    assert share == pytest.approx(0.75, abs=4 * math.sqrt(0.75 * 0.25 / len(plan)))
    assert all(r.prompt_tokens == 7 for r in plan if r.tenant == "b")
    assert [r.arrival for r in plan] == [r.arrival for r in Workload(Poisson(50), LENGTHS).plan(0, horizon=150)]


def test_so_many_requests_instead_of_a_horizon():
    assert len(LOADS["plain"].plan(0, requests=17)) == 17
    assert LOADS["plain"].plan(0, requests=17) == LOADS["plain"].plan(0, horizon=1_000)[:17]
    assert LOADS["plain"].plan(0, requests=0) == []
    assert all(r.arrival == 0 for r in Workload(Poisson(math.inf), LENGTHS).plan(0, requests=5))


def test_sampling_wishes_go_with_the_length_of_the_plan():
    plan = Workload(Poisson(1), Lengths(5, 9), sampling=SamplingParams(temperature=0.5, seed=100)).plan(0, requests=3)
    wishes = [request.params for request in plan]
    assert [w.max_tokens for w in wishes] == [9] * 3 and all(w.ignore_eos and w.temperature == 0.5 for w in wishes)
    assert [w.seed for w in wishes] == [100, 101, 102]
    assert Planned(0, 1, 4).params.max_tokens == 4


# ---- prompts -----------------------------------------------------------------------------------------------------


def test_groups_share_a_prefix_and_zipf_makes_the_first_the_largest():
    plan = Workload(Poisson(10), Lengths(5, 5), SharedPrefix(4, UniformTokens(10, 99), skew=1)).plan(0, horizon=1_000)
    counts = {}
    for request in plan:
        group, own = request.segments
        assert request.prompt_tokens == group.tokens + own.tokens and own.tokens == 5
        counts.setdefault(group, []).append(request)
    assert len(counts) == 4
    ordered = [len(counts[group]) / len(plan) for group in sorted(counts)]
    harmonic = sum(1 / k for k in range(1, 5))
    for k, share in enumerate(ordered, 1):
        assert share == pytest.approx(1 / k / harmonic, abs=4 * math.sqrt(0.25 / len(plan)))


def test_a_limit_counts_the_prefix():
    lengths = Lengths(UniformTokens(1, 100), UniformTokens(1, 100), limit=150, beyond="truncate")
    plan = Workload(Poisson(10), lengths, SharedPrefix(2, 80)).plan(0, horizon=50)
    assert max(r.prompt_tokens + r.output_tokens for r in plan) == 150
    with pytest.raises(UnderloadError, match="160 tokens stand before"):
        Workload(Poisson(10), lengths, SharedPrefix(2, 160)).plan(0, horizon=50)


def test_each_turn_holds_the_whole_conversation_so_far():
    plan = LOADS["chats"].plan(2, horizon=300)
    by_session: dict[str, list[Planned]] = {}
    for request in plan:
        by_session.setdefault(request.session, []).append(request)
    assert max(map(len, by_session.values())) >= 5
    for turns in by_session.values():
        assert [r.turn for r in turns] == list(range(len(turns)))
        assert turns[0].think is None and turns[0].segments[0] == Segment("system", 40)
        for before, after in pairwise(turns):
            # system, u0, a0, u1: the prompt before, its answer, and a new message
            assert after.segments[: len(before.segments)] == before.segments
            assert after.segments[len(before.segments)].tokens == before.output_tokens
            assert len(after.segments) == len(before.segments) + 2
            assert after.arrival == pytest.approx(before.arrival + before.output_tokens * 0.02 + after.think)
    thinks = [r.think for r in plan if r.think is not None]
    assert np.mean(thinks) == pytest.approx(5, abs=4 * 5 / math.sqrt(len(thinks)))


def test_a_turn_that_does_not_fit_ends_its_conversation():
    limited = Workload(Poisson(0.5), LENGTHS, replace(CHATS, limit=300)).plan(2, horizon=300)
    free = LOADS["chats"].plan(2, horizon=300)
    assert all(r.prompt_tokens + r.output_tokens <= 300 for r in limited)
    assert any(r.prompt_tokens + r.output_tokens > 300 for r in free)
    kept = {(r.session, r.turn) for r in limited}
    assert kept < {(r.session, r.turn) for r in free}
    assert all((session, turn - 1) in kept for session, turn in kept if turn)


def test_ids_agree_exactly_as_far_as_segments_do():
    plan = LOADS["chats"].plan(3, horizon=100) + LOADS["prefixes"].plan(3, horizon=20)
    ids = PromptIds(range(3, 400), seed=1)
    made = [ids(request) for request in plan]
    assert [len(tokens) for tokens in made] == [request.prompt_tokens for request in plan]
    assert min(map(min, made)) >= 3 and max(map(max, made)) < 400
    again = PromptIds(range(3, 400), seed=1)
    assert [again(request) for request in reversed(plan)][::-1] == made  # in any order
    assert PromptIds(range(3, 400), seed=2)(plan[0]) != made[0]
    for i, a in enumerate(plan):
        for j, b in enumerate(plan[:i]):
            shared = 0
            for s, t in zip(a.segments, b.segments):
                if s != t:
                    break
                shared += s.tokens
            common = next(
                (k for k, (x, y) in enumerate(zip(made[i], made[j])) if x != y), min(map(len, (made[i], made[j])))
            )
            assert common >= shared
            assert common <= shared + 4  # beyond it only by chance


def test_ids_are_drawn_evenly_and_a_lone_request_needs_no_segments():
    ids = PromptIds(10)(Planned(0, 20_000, 1))
    assert stats.chisquare(np.bincount(ids, minlength=10)).pvalue > 1e-3
    with pytest.raises(UnderloadError, match="holds no token ids"):
        PromptIds(range(0))
    with pytest.raises(UnderloadError, match="vocabulary"):
        PromptIds(0)


def test_a_later_turn_holds_what_the_model_really_said():
    chats = LOADS["chats"].plan(3, horizon=200)
    longest = max(chats, key=lambda r: r.turn).session
    turns = [r for r in chats if r.session == longest]
    ids = PromptIds(100)
    first = ids(turns[0])
    said = [99] * turns[0].output_tokens
    ids.answered(turns[0], said)
    second = ids(turns[1])
    assert second[: len(first) + len(said)] == first + said
    assert ids(turns[0]) == first  # its own prompt is what it was
    assert len(second) == turns[1].prompt_tokens
    ids.answered(turns[1], [98] * turns[1].output_tokens)
    third = ids(turns[2])
    assert third[: len(second)] == second and third[len(second)] == 98


def test_block_keys_are_equal_exactly_where_all_before_is():
    a = Planned(0, 40, 1, segments=(Segment("x", 20), Segment("y", 20)))
    b = Planned(0, 40, 1, segments=(Segment("x", 20), Segment("z", 20)))
    c = Planned(0, 40, 1, segments=(Segment("w", 20), Segment("y", 20)))
    keys = [block_keys(request, 8) for request in (a, b, c)]
    assert [len(k) for k in keys] == [5, 5, 5]
    assert keys[0][:2] == keys[1][:2] and not set(keys[0][2:]) & set(keys[1][2:])
    assert not set(keys[0]) & set(keys[2])  # the same tokens behind others are another prefix
    assert len(block_keys(Planned(0, 15, 1), 8)) == 1  # only full blocks
    with pytest.raises(UnderloadError, match="block_size"):
        block_keys(a, 0)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 33))
def test_block_keys_say_what_the_ids_say(seed, size):
    """Two prompts share a key for block k exactly when their first k + 1 blocks of ids are the same."""
    plan = Workload(Poisson(1), Lengths(UniformTokens(1, 60), 9), Conversations(3, 1.0, system=17)).plan(
        seed, requests=4
    )
    ids = PromptIds(10**6, seed)
    by_key: dict[bytes, tuple[int, ...]] = {}
    by_ids: dict[tuple[int, ...], bytes] = {}
    for request in plan:
        tokens = ids(request)
        for k, key in enumerate(block_keys(request, size)):
            prefix = tuple(tokens[: (k + 1) * size])
            assert by_key.setdefault(key, prefix) == prefix
            assert by_ids.setdefault(prefix, key) == key


def test_an_infinite_cache_hits_what_was_seen():
    plan = [Planned(i, 32, 1, i, segments=(Segment("system", 16), Segment(f"r{i}", 16))) for i in range(10)]
    sharing = shared_blocks(plan, 16)
    assert (sharing.blocks, sharing.hits, sharing.hit_rate) == (20, 9, 0.45)
    assert shared_blocks([Planned(0, 3, 1)], 16).hit_rate is None


# ---- on disk -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOADS)
def test_a_plan_comes_back_from_its_file(name, tmp_path):
    plan = LOADS[name].plan(5, horizon=40)
    path = tmp_path / "plan.jsonl"
    with path.open("w", encoding="utf-8") as to:
        assert write_plan(plan, to) == len(plan)
    assert read_plan(path) == plan


def test_a_line_says_no_more_than_it_must():
    to = io.StringIO()
    write_plan([Planned(0.5, 3, 4)], to)
    assert json.loads(to.getvalue()) == {"arrival": 0.5, "prompt_tokens": 3, "output_tokens": 4}
