"""Queues side by side: against a chain solved whole, against each other, and at their limits."""

import math

import numpy as np
import pytest

from underload import queueing as q
from underload.request import UnderloadError


def two_queues(rate: float, most: int) -> np.ndarray:
    """P(i inside at one, j at the other), service rate 1 each; who comes joins the shorter, either where they are
    equal. Cut off at `most`, and solved as one system of balance equations."""
    size = most + 1
    flow = np.zeros((size * size, size * size))
    for i in range(size):
        for j in range(size):
            here = i * size + j
            for place, share in (((i + 1, j), (i < j) + (i == j) / 2), ((i, j + 1), (i > j) + (i == j) / 2)):
                if max(place) <= most:
                    flow[here, place[0] * size + place[1]] += rate * share
            if i:
                flow[here, here - size] += 1.0
            if j:
                flow[here, here - 1] += 1.0
    np.fill_diagonal(flow, flow.diagonal() - flow.sum(axis=1))
    balance = flow.T.copy()
    balance[0] = 1.0
    goal = np.zeros(size * size)
    goal[0] = 1.0
    return np.linalg.solve(balance, goal).reshape(size, size)


@pytest.mark.parametrize("load", [0.2, 0.6])
def test_the_shorter_of_two_queues_is_the_whole_chain(load):
    chance = two_queues(2 * load, 30)
    found = q.shortest_queue(2 * load, 1.0)
    inside = np.add.outer(np.arange(31), np.arange(31))
    shorter = np.minimum.outer(np.arange(31), np.arange(31))
    assert found.mean_system == pytest.approx(float((chance * inside).sum()), rel=1e-9)
    assert found.prob_wait == pytest.approx(float(chance[shorter > 0].sum()), rel=1e-9)
    # Who finds m where they go waits for m services.
    t = 2.5
    finds = [float(chance[shorter == m].sum()) for m in range(31)]
    tail = [sum(math.exp(-t) * t**k / math.factorial(k) for k in range(m + 1)) for m in range(31)]
    assert found.sojourn_tail(t) == pytest.approx(float(np.dot(finds, tail)), rel=1e-9)


@pytest.mark.parametrize("load", [0.0, 1e-6, 0.5, 0.9, 0.999, 0.9999])
def test_a_choice_helps_and_one_line_for_all_helps_more(load):
    random, one_line = q.mm1(load, 1.0), q.mmc(2 * load, 1.0, servers=2)
    shortest = q.shortest_queue(2 * load, 1.0)
    assert one_line.mean_wait <= shortest.mean_wait <= random.mean_wait
    assert one_line.sojourn_quantile(99) <= shortest.sojourn_quantile(99) * (1 + 1e-12)
    waits = [q.power_of_choices(load, 1.0, choices=d).mean_wait for d in (1, 2, 3, 10)]
    assert waits == sorted(waits, reverse=True) and waits[0] == random.mean_wait
    for found in (shortest, q.power_of_choices(load, 1.0, choices=2)):
        assert found.mean_system == pytest.approx(found.arrival_rate * found.mean_sojourn)


def test_in_heavy_traffic_the_shorter_of_two_queues_is_as_good_as_one_line():
    shortest, one_line = q.shortest_queue(1.9998, 1.0), q.mmc(1.9998, 1.0, servers=2)
    assert shortest.mean_sojourn == pytest.approx(one_line.mean_sojourn, rel=1e-4)


def test_past_stability_they_are_infinite():
    for found in (q.shortest_queue(2.0, 1.0), q.power_of_choices(1.0, 1.0, choices=2)):
        assert not found.stable and found.mean_wait == found.sojourn_quantile(50) == math.inf
    assert q.fork_join(1.0, 1.0, n=4).mean_sojourn == math.inf
    with pytest.raises(UnderloadError, match="too close to 1"):
        q.shortest_queue(2 - 1e-6, 1.0)


def test_fork_join_lies_between_one_queue_and_as_many_that_are_independent():
    for load in (0.0, 0.3, 0.9):
        found = [q.fork_join(load, 1.0, n=n) for n in (1, 2, 3, 8, 32)]
        assert [one.exact for one in found] == [True, True, False, False, False]
        assert all(found[0].mean_sojourn <= one.mean_sojourn <= one.bound * (1 + 1e-12) for one in found)
        means = [one.mean_sojourn for one in found]
        assert means == sorted(means) and means[0] == pytest.approx(q.mm1(load, 1.0).mean_sojourn)
    # Where nobody waits it is the slowest of n.
    assert q.fork_join(0.0, 1.0, n=5).mean_sojourn == pytest.approx(q.max_of_n(q.Exponential(1.0), n=5).mean)
    assert q.fork_join(0.9, 1.0, n=2).as_dict()["mean_sojourn"] == pytest.approx(13.875, rel=1e-15)
    assert "approximation" in str(q.fork_join(0.5, 1.0, n=8))
    for n in (0, 33, 1.5):
        with pytest.raises(UnderloadError, match="n must be"):
            q.fork_join(0.5, 1.0, n=n)
