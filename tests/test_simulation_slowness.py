"""Slow, pausing and failing servers: whole pieces summed up exactly, against stepping through; and what is no such."""

import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underload.queueing import Deterministic, Exponential
from underload.request import UnderloadError
from underload.simulation.failures import Failures, drawn_failures
from underload.simulation.slowness import Episodes, Product, Steady, drawn_episodes

INF = math.inf


def stepped(slow: Episodes | Steady | Product, start: float, work: float, step: float = 1 / 64) -> float:
    """The end by small steps, within one of which a factor is taken to be constant: exact where edges lie on them."""
    now = start
    while work > 0:
        factor = slow.factor_at(now)
        if factor < INF and work * factor <= step:
            return now + work * factor
        work -= step / factor
        now += step
    return now


def test_a_factor_stretches_what_is_left_of_the_work_when_it_begins_and_until_it_ends():
    slow = Episodes([10.0, 20.0], [2.0, 5.0], 4.0)
    assert slow.end(0.0, 10.0) == 10.0  # done as the episode begins
    assert slow.end(9.0, 1.25) == 11.0  # 1 s before, 0.25 s of work stretched to 1 s
    assert slow.end(10.0, 0.5) == 12.0
    assert slow.end(9.0, 2.0) == 12.5  # 1 + 2 / 4 + 0.5
    assert slow.end(9.0, 1 + 0.5 + 8 + 1.25 + 3) == 28.0  # through both
    assert slow.end(12.0, 8.0) == 20.0 and slow.end(25.0, 3.0) == 28.0  # an episode is over at its end


def test_a_pause_stops_work_and_loses_none():
    pause = Episodes([5.0], [2.0], INF)
    assert pause.end(4.0, 1.0) == 5.0  # an end at the very beginning of a pause is in time
    assert pause.end(4.0, 1.5) == 7.5
    assert pause.end(5.5, 0.0) == 5.5  # nothing to do takes no time, in a pause too
    assert pause.end(5.5, 1.0) == 8.0 and pause.end(7.0, 1.0) == 8.0


def test_undisturbed_work_ends_to_the_last_bit_where_it_would_without():
    rng = np.random.default_rng(1)
    slow = Product(Episodes([1e6], [1.0], 3.0), Steady(1.0))
    for start, work in zip(rng.random(1_000) * 1e3, rng.random(1_000)):
        assert slow.end(start, work) == start + work


def test_a_product_multiplies_where_its_parts_overlap():
    both = Product(Steady(2.0), Episodes([1.0], [4.0], 3.0), Episodes([3.0], [4.0], INF))
    assert [both.factor_at(t) for t in (0.0, 1.0, 3.0, 5.0, 7.0)] == [2.0, 6.0, INF, INF, 2.0]
    assert both.end(0.0, 1.0) == 7 + 2 * (1 - 1 / 2 - 2 / 6)
    assert Product().end(1.0, 2.0) == 3.0
    assert Product(both, Steady(0.5)).factor_at(1.0) == 3.0


def test_episodes_that_meet_are_one():
    assert Episodes([1.0, 2.0], [1.0, 3.0], 2.0).edges == [1.0, 5.0]
    assert Episodes([1.0], [0.0], INF).edges == []
    assert Episodes([1.0], [INF], 2.0).end(0.0, 3.0) == 5.0


quarters = st.integers(0, 60).map(lambda n: n / 4)


@st.composite
def slownesses(draw):
    parts = [Steady(draw(st.sampled_from([0.5, 1.0, 2.0])))]
    for _ in range(draw(st.integers(1, 3))):
        edges = sorted(draw(st.lists(quarters, max_size=8)))
        spells = list(zip(edges[::2], edges[1::2]))
        factor = draw(st.sampled_from([0.5, 2.0, 4.0, INF]))
        parts.append(Episodes([b for b, _ in spells], [e - b for b, e in spells], factor))
    return Product(*parts)


@given(slownesses(), quarters, quarters, quarters)
def test_the_pieces_add_up_to_what_small_steps_find(slow, start, work, more):
    # All in binary fractions, so that both ways are exact.
    end = slow.end(start, work)
    assert end == stepped(slow, start, work)
    assert start <= end <= slow.end(start, work + more)
    assert slow.end(end, more) == slow.end(start, work + more)


def test_they_go_to_another_process_and_compare_by_what_they_are():
    slow = Product(Episodes([1.0], [2.0], INF), Steady(3.0))
    assert pickle.loads(pickle.dumps(slow)).end(0.0, 2.0) == slow.end(0.0, 2.0) == 1 + 2 + 3 * (2 - 1 / 3)
    assert Episodes([1], [2], 3) == Episodes((1.0,), (2.0,), 3.0) == pickle.loads(pickle.dumps(Episodes([1], [2], 3)))
    assert hash(Steady(2)) == hash(Steady(2.0))
    assert pickle.loads(pickle.dumps(Failures([(1, 2)], 0.5))) == Failures(((1.0, 2.0),), 0.5)


def test_drawn_episodes_take_the_share_of_time_that_their_law_says():
    slow = drawn_episodes(0.1, Exponential(5.0), 2.0, 50_000.0, np.random.default_rng(3))
    ends = np.array(slow.begins) + np.array(slow.lengths)
    assert (np.array(slow.begins[1:]) >= ends[:-1]).all() and slow.begins[-1] < 50_000
    # rate m / (1 + rate m) = 1/3; one cycle of 15 s varies by a share of 0.1 or so, and there are 3,333
    assert sum(slow.lengths) / 50_000 == pytest.approx(1 / 3, abs=0.02)
    # In the long run 1 s takes 1 / (2/3 + 1/3 / 2) s.
    assert slow.end(0.0, 40_000.0) / 40_000 == pytest.approx(1.2, abs=0.02)
    assert drawn_episodes(0.0, Exponential(5.0), 2.0, 100.0, np.random.default_rng(3)).begins == ()


def test_drawn_spells_do_not_depend_on_the_horizon():
    short, long = (drawn_failures(0.1, Deterministic(2.0), h, np.random.default_rng(4)) for h in (200.0, 1_000.0))
    assert long.down[: len(short.down)] == short.down and len(long.down) > len(short.down) > 0


@pytest.mark.parametrize("factor", ["2", None, math.nan, 0.0, -1.0, -INF, 1e10, [2.0]])
def test_what_is_no_factor_is_named(factor):
    for make in (lambda: Steady(factor), lambda: Episodes([1.0], [1.0], factor)):
        with pytest.raises(UnderloadError, match="factor"):
            make()


def test_a_factor_of_infinity_is_a_pause_and_ends():
    with pytest.raises(UnderloadError, match="factor"):
        Steady(INF)
    with pytest.raises(UnderloadError, match="down"):
        Episodes([1.0], [INF], INF)
    with pytest.raises(UnderloadError, match="multiply"):
        Product(Steady(1e6), Steady(1e6))
    with pytest.raises(UnderloadError, match="has no factor"):
        Product(Steady(2.0), 3.0)


@pytest.mark.parametrize(
    ("begins", "lengths"),
    [
        ([1.0, 2.0], [1.0]),
        ([2.0, 1.0], [0.1, 0.1]),
        ([1.0, 2.0], [1.5, 1.0]),
        ([-1.0], [1.0]),
        ([1.0], [-1e-30]),
        ([math.nan], [1.0]),
        ([1.0], [math.nan]),
        ([INF], [1.0]),
        ([1.0, 5.0], [INF, 1.0]),
        (["x"], [1.0]),
        (1.0, [1.0]),
        ([1.0], None),
    ],
)
def test_what_are_no_episodes_is_named(begins, lengths):
    with pytest.raises(UnderloadError, match="episode|begins"):
        Episodes(begins, lengths, 2.0)


@pytest.mark.parametrize(("start", "work"), [(0.0, -1e-9), (0.0, math.nan), (math.nan, 1.0)])
def test_what_is_no_work_is_named(start, work):
    for slow in (Steady(2.0), Episodes([1.0], [1.0], 2.0)):
        with pytest.raises(UnderloadError, match="work takes"):
            slow.end(start, work)


def test_a_replica_is_down_from_the_begin_of_an_outage_until_its_end_and_known_to_be_after_the_notice():
    failures = Failures([(10.0, 20.0), (30.0, 31.0), (40.0, INF)], notice=2.0)
    assert [failures.is_down(t) for t in (9.0, 10.0, 19.0, 20.0, 30.5, 31.0, 1e9)] == [0, 1, 1, 0, 1, 0, 1]
    assert [failures.is_known(t) for t in (10.0, 11.9, 12.0, 19.0, 20.0, 30.9, 31.0, 42.0)] == [0, 0, 1, 1, 0, 0, 0, 1]
    assert not Failures(()).is_down(0.0)
    assert Failures([(0.1, 0.3), (0.3, 0.5)]).is_down(0.3)


@pytest.mark.parametrize(
    "down",
    [[(2.0, 1.0)], [(1.0, 3.0), (2.0, 4.0)], [(math.nan, 1.0)], [(INF, INF)], [1.0], 3, [(1.0, 2.0, 3.0)], ["ab"]],
)
def test_what_is_no_outage_is_named(down):
    with pytest.raises(UnderloadError, match="outage|down is"):
        Failures(down)
    with pytest.raises(UnderloadError, match="notice"):
        Failures((), notice=-1.0)


@pytest.mark.parametrize(
    ("rate", "length", "horizon", "name"),
    [(-1.0, Exponential(1.0), 10.0, "rate"), (1.0, 2.0, 10.0, "length"), (1.0, Exponential(1.0), INF, "horizon")],
)
def test_what_cannot_be_drawn_is_named(rate, length, horizon, name):
    for draw in (
        lambda g: drawn_episodes(rate, length, 2.0, horizon, g),
        lambda g: drawn_failures(rate, length, horizon, g),
    ):
        with pytest.raises(UnderloadError, match=name):
            draw(np.random.default_rng(0))
