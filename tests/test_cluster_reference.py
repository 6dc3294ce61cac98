"""The cluster against closed forms, each with an interval over replications of its own.

Each has a seed of its own, so that they do not share their luck. Whoever arrives before `warmup` is left out: the runs
begin empty, and the formulas know no beginning. A percentile is checked by the share of requests beyond the formula's:
that has no bias, whatever a run's length.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from underload import queueing as q
from underload.metrics import mean_interval
from underload.simulation import (
    ClusterRun,
    Episodes,
    Failures,
    FanOut,
    Hedge,
    JoinShortestQueue,
    PowerOfChoices,
    Random,
    RoundRobin,
    StationReplica,
    Tied,
    drawn_episodes,
    replicate,
    simulate_cluster,
)
from underload.workload import Planned, Poisson, Streams

ONE = q.Exponential(1.0)
INF = math.inf


def poisson_plan(rate: float, horizon: float, streams: Streams) -> list[Planned]:
    arrivals = Poisson(rate).arrivals(streams.fresh("arrivals"), horizon)
    return [Planned(arrival, 1, 1, index) for index, arrival in enumerate(arrivals.tolist())]


def spaced_plan(n: int, gap: float) -> list[Planned]:
    """Requests so far apart that none meets another."""
    return [Planned(index * gap, 1, 1, index) for index in range(n)]


def latencies_from(run: ClusterRun, warmup: float) -> np.ndarray:
    return np.array([call.latency for call in run.calls if call.arrival >= warmup])


def agree(
    serve: Callable[[list[Planned], Streams], ClusterRun],
    *,
    rate: float,
    horizon: float,
    mean: float,
    quantile: Callable[[float], float] | None = None,
    percentile: float = 95,
    runs: int = 20,
    seed: int,
    warmup: float = 0.2,
    slack: float = 0.0,
) -> None:
    """The mean latency, and the share beyond a percentile, lie in 99.9 % intervals of the runs' own figures.

    slack: a share of the mean by which the interval may miss it, where the formula is a limit.
    """

    beyond = INF if quantile is None else quantile(percentile)

    def experiment(streams: Streams) -> tuple[float, float]:
        found = latencies_from(serve(poisson_plan(rate, horizon, streams), streams), warmup * horizon)
        return float(found.mean()), float((found > beyond).mean())

    found = replicate(experiment, runs=runs, seed=seed)
    within(found.figures(lambda figures: figures[0]), mean, slack)
    if quantile is not None:
        within(found.figures(lambda figures: figures[1]), 1 - percentile / 100, width=0.8)


def within(figures: Sequence[float], expected: float, slack: float = 0.0, width: float = 0.2) -> None:
    found = mean_interval(figures, 0.999)
    assert abs(found.mean - expected) <= found.half_width + slack * expected, (found, expected)
    assert found.half_width < width * expected, f"{found} could hold anything; simulate for longer"


# ---- queues ----------------------------------------------------------------------------------------------------------


def test_one_station_of_many_servers_is_an_mmc():
    expected = q.mmc(1.8, 1.0, servers=3)
    agree(
        lambda plan, streams: simulate_cluster(plan, [StationReplica(ONE, servers=3)], seed=streams),
        rate=1.8,
        seed=31,
        horizon=2_000.0,
        mean=expected.mean_sojourn,
        quantile=expected.sojourn_quantile,
        percentile=99,
    )


def test_a_random_split_leaves_every_station_an_mm1():
    expected = q.mm1(0.6, 1.0)
    agree(
        lambda plan, streams: simulate_cluster(plan, [StationReplica(ONE)] * 4, router=Random(), seed=streams),
        rate=2.4,
        seed=32,
        horizon=800.0,
        mean=expected.mean_sojourn,
        quantile=expected.sojourn_quantile,
    )


def test_in_turn_every_station_sees_the_gaps_of_an_erlang_law():
    expected = q.gm1(q.Erlang(1 / 0.7, 4), 1.0)
    agree(
        lambda plan, streams: simulate_cluster(plan, [StationReplica(ONE)] * 4, router=RoundRobin(), seed=streams),
        rate=2.8,
        seed=33,
        horizon=800.0,
        mean=expected.mean_sojourn,
        quantile=expected.sojourn_quantile,
    )


@pytest.mark.parametrize("load", [0.5, 0.7])
def test_joining_the_shorter_of_two_queues_is_the_exact_chain(load):
    expected = q.shortest_queue(2 * load, 1.0)
    agree(
        lambda plan, streams: simulate_cluster(
            plan, [StationReplica(ONE)] * 2, router=JoinShortestQueue(), seed=streams
        ),
        rate=2 * load,
        seed=34,
        horizon=1_500.0,
        mean=expected.mean_sojourn,
        quantile=expected.sojourn_quantile,
    )


@pytest.mark.parametrize(("choices", "load"), [(2, 0.9), (3, 0.8)])
def test_the_best_of_few_choices_among_a_hundred_is_near_the_limit_of_infinitely_many(choices, load):
    # The margin of 2 % is for a hundred servers not being infinitely many.
    expected = q.power_of_choices(load, 1.0, choices=choices)
    agree(
        lambda plan, streams: simulate_cluster(
            plan, [StationReplica(ONE)] * 100, router=PowerOfChoices(choices), seed=streams
        ),
        rate=100 * load,
        seed=35,
        horizon=60.0,
        mean=expected.mean_sojourn,
        runs=8,
        warmup=0.3,
        slack=0.02,
    )


def test_a_finite_buffer_turns_away_as_many_as_an_mm1k():
    def refused(streams: Streams) -> float:
        plan = poisson_plan(1.2, 1_500.0, streams)
        return simulate_cluster(plan, [StationReplica(ONE, buffer=3)], seed=streams).count("refused") / len(plan)

    within(replicate(refused, runs=20, seed=26).figures(), q.mm1k(1.2, 1.0, buffer=3).prob_lost)


def test_processor_sharing_is_insensitive_to_the_law():
    agree(
        lambda plan, streams: simulate_cluster(
            plan, [StationReplica(q.Hyperexponential.of(1.0, 4.0), discipline="ps")], seed=streams
        ),
        rate=0.7,
        seed=36,
        horizon=4_000.0,
        mean=q.mg1_ps(0.7, mean_service=1.0).mean_sojourn,
    )


# ---- fan-out ---------------------------------------------------------------------------------------------------------


def test_a_fan_out_that_meets_nobody_is_the_slowest_of_n():
    law, n, calls = q.Lognormal(1.0, 2.0), 10, 3_000
    run = simulate_cluster(spaced_plan(calls, 1_000.0), [StationReplica(law)] * n, sending=FanOut(n))
    found, expected = np.array(run.latencies), q.max_of_n(law, n=n)
    assert abs(found.mean() - expected.mean) <= 3.3 * math.sqrt(expected.variance / calls)
    share_within((found > law.quantile(99)).mean(), q.prob_any(0.01, n=n), calls)
    share_within((found > expected.quantile(99)).mean(), 0.01, calls)
    # So many of them are enough: the others are cancelled, and the answer is there with the third.
    some = simulate_cluster(spaced_plan(calls, 1_000.0), [StationReplica(law)] * n, sending=FanOut(n, needed=3))
    draws = np.sort([[leaf.latency for leaf in call.leaves] for call in run.calls], axis=1)
    assert some.latencies == pytest.approx(draws[:, 2])


def share_within(share: float, expected: float, n: int) -> None:
    assert abs(share - expected) <= 3.3 * math.sqrt(expected * (1 - expected) / n), (share, expected)


def test_two_way_fork_join_is_exact_and_more_are_near_the_approximation():
    for n, slack in ((2, 0.0), (4, 0.05)):
        expected = q.fork_join(0.6, 1.0, n=n)
        agree(
            lambda plan, streams, n=n: simulate_cluster(
                plan, [StationReplica(ONE)] * n, sending=FanOut(n), seed=streams
            ),
            rate=0.6,
            seed=52 + n,
            horizon=1_500.0,
            mean=expected.mean_sojourn,
            slack=slack,
        )
        assert expected.mean_sojourn <= expected.bound


def test_slowness_that_all_share_is_not_amplified_by_fan_out():
    n, calls, work = 30, 1_000, 0.01
    plan = spaced_plan(calls, 1.0)
    factor, rate, length = 50.0, 0.05, q.Deterministic(1.0)

    def slow(number: int) -> Episodes:
        return drawn_episodes(rate, length, factor, float(calls), np.random.default_rng(number))

    together = slow(1)
    alike = [StationReplica(q.Deterministic(work), slowness=together)] * n
    apart = [StationReplica(q.Deterministic(work), slowness=slow(number)) for number in range(n)]

    def share(replicas: list[StationReplica]) -> float:
        run = simulate_cluster(plan, replicas, sending=FanOut(n))
        return float((np.array(run.latencies) > 1.01 * work).mean())

    single = sum(together.lengths) / calls
    assert share(alike) == pytest.approx(single, abs=0.02)
    p = np.mean([sum(one.slowness.lengths) / calls for one in apart if isinstance(one.slowness, Episodes)])
    assert share(apart) == pytest.approx(q.prob_any(float(p), n=n), abs=0.04)


# ---- copies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", [ONE, q.Lognormal(1.0, 4.0), q.Pareto(0.5, 1.8)], ids=lambda law: type(law).__name__)
def test_a_hedge_that_meets_nobody_is_the_closed_form(law):
    calls = 5_000
    expected = q.hedged(law, percentile=95)
    replicas = [StationReplica(law)] * 3
    run = simulate_cluster(spaced_plan(calls, 1e6), replicas, sending=Hedge(expected.delay))
    found = np.array(run.latencies)
    spread = math.sqrt(float(np.var(found)) / calls)
    assert abs(found.mean() - expected.mean) <= 3.3 * spread
    for percentile in (50, 95, 99, 99.9):
        beyond = 1 - percentile / 100
        share_within(float((found > expected.quantile(percentile)).mean()), beyond, calls)
    share_within(run.extra_load, 0.05, calls)
    # What both copies have in common no second copy makes shorter.
    both = [StationReplica(q.Deterministic(1e-6), common=law)] * 3
    alike = simulate_cluster(spaced_plan(calls, 1e6), both, sending=Hedge(expected.delay))
    share_within(float((np.array(alike.latencies) > law.quantile(99)).mean()), 0.01, calls)


def test_tied_requests_at_two_queues_are_one_queue_for_both():
    # Whoever waits in both lines and is taken by the first server that is free waits in one line for two servers.
    expected = q.mmc(1.3, 1.0, servers=2)

    def serve(plan: list[Planned], streams: Streams) -> ClusterRun:
        run = simulate_cluster(plan, [StationReplica(ONE)] * 2, sending=Tied(2), seed=streams)
        assert run.extra_work == 0
        return run

    agree(serve, rate=1.3, seed=50, horizon=1_500.0, mean=expected.mean_sojourn, quantile=expected.sojourn_quantile)


def test_tied_requests_whose_message_comes_too_late_are_both_computed():
    # Where nobody waits both start at once, and the faster answers: the minimum of two.
    run = simulate_cluster(spaced_plan(8_000, 1e3), [StationReplica(ONE)] * 2, sending=Tied(2, message=0.1))
    found = np.array(run.latencies)
    assert abs(found.mean() - 0.5) <= 3.3 * 0.5 / math.sqrt(8_000)
    assert run.extra_load == 1.0 and run.extra_work == pytest.approx(0.5)  # the loser stops when the winner answers


# ---- slow servers ----------------------------------------------------------------------------------------------------


def test_a_server_with_pauses_is_the_queue_with_breakdowns():
    # M/M/1 whose server stops at rate a, whether or not it serves, and goes on at rate b: the generating function of
    # the number inside gives, with m = 1 / service and the share b / (a + b) of time in service,
    #   L = r ((a + b)^2 + m a) / ((a + b) (m b - r (a + b)))
    # (White and Christie, "Queuing with preemptive priorities or with breakdown", Operations Research 6(1), 1958).
    rate, a, b = 0.5, 0.1, 0.4
    inside = rate * ((a + b) ** 2 + a) / ((a + b) * (b - rate * (a + b)))

    def serve(plan: list[Planned], streams: Streams) -> ClusterRun:
        pauses = drawn_episodes(a, q.Exponential(1 / b), INF, 12_000.0, streams.fresh("pauses"))
        return simulate_cluster(plan, [StationReplica(ONE, slowness=pauses)], seed=streams)

    agree(serve, rate=rate, seed=51, horizon=4_000.0, mean=inside / rate)
    assert inside == pytest.approx(chain_with_breakdowns(rate, 1.0, a, b), rel=1e-9)


def test_a_freeze_of_a_hundred_seconds_makes_a_mean_of_twenty_five():
    # Tene, "How NOT to measure latency": a hundred requests a second, 1 ms each, for 100 s, and as many during a freeze
    # of 100 s. His mean of 25.0005 s leaves out the 1 ms that the frozen take afterwards.
    plan = [Planned((index + 0.5) / 100, 1, 1, index) for index in range(20_000)]
    frozen = StationReplica(q.Deterministic(0.001), servers=20_000, slowness=Episodes([100.0], [100.0], INF))
    found = np.array(simulate_cluster(plan, [frozen]).latencies)
    assert found.mean() == pytest.approx(25.0005 + 0.001 / 2, rel=1e-9)
    assert np.percentile(found, 50) < 0.02 and np.percentile(found, 75) == pytest.approx(50.0, abs=0.02)


def chain_with_breakdowns(rate: float, service: float, a: float, b: float, most: int = 400) -> float:
    """The mean number inside, from the chain itself, cut off where nobody comes."""
    size = 2 * most  # state 2 n + down
    flow = np.zeros((size, size))
    for n in range(most):
        for down in (0, 1):
            here = 2 * n + down
            flow[here, 2 * n + 1 - down] = b if down else a
            if n + 1 < most:
                flow[here, here + 2] = rate
            if n and not down:
                flow[here, here - 2] = service
    np.fill_diagonal(flow, -flow.sum(axis=1))
    balance = flow.T.copy()
    balance[0] = 1.0
    goal = np.zeros(size)
    goal[0] = 1.0
    return float(np.linalg.solve(balance, goal) @ np.repeat(np.arange(most), 2))


# ---- traps -----------------------------------------------------------------------------------------------------------


class Given(q.Deterministic):
    """A law whose draws are given, one for each request of a plan."""

    def __init__(self, *times: float) -> None:
        super().__init__(1.0)
        object.__setattr__(self, "times", times)

    def __hash__(self) -> int:
        return id(self)

    def draw(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return np.array(self.times, dtype=np.float64)  # type: ignore[attr-defined]


class InOrder(JoinShortestQueue):
    """The first of the candidates: the first copy goes to replica 0, the second to 1."""

    def choose(self, call, replicas, rng):
        return replicas[0]


def pair(*times: float, backup: float) -> list[StationReplica]:
    return [StationReplica(Given(*times)), StationReplica(q.Deterministic(backup))]


def test_trap_a52_losers_that_are_cancelled_are_neither_results_nor_failures():
    times = [0.100 if index % 5 < 2 else 0.010 for index in range(100)]  # 40 that are slow
    run = simulate_cluster(spaced_plan(100, 1.0), pair(*times, backup=0.030), router=InOrder(), sending=Hedge(0.020))
    assert len(run.calls) == len(run.latencies) == run.count("answered") == len(run.timelines) == 100
    assert len(run.attempts) == 140 and run.extra_load == pytest.approx(0.40)
    assert [attempt.state for attempt in run.attempts].count("cancelled") == 40
    assert run.error_rate == 0.0
    # The first copy takes 100 ms, the second goes after 20 ms and takes 30.
    assert run.latencies == pytest.approx([0.050 if time > 0.020 else 0.010 for time in times])
    # What the losers had done by then was for nothing: 50 ms each.
    used = 60 * 0.010 + 40 * 0.030
    assert run.extra_work == pytest.approx(40 * 0.050 / (40 * 0.050 + used))


def test_trap_a52_the_error_rate_is_over_copies_that_were_not_cancelled():
    # Ten hedged calls whose first copy is cancelled, and of ten others that send one copy, five fail.
    times = [0.100] * 10 + [0.010] * 10
    down = Failures([(15.0, 100.0)], notice=INF)
    replicas = [StationReplica(Given(*times), failures=down), StationReplica(q.Deterministic(0.030))]
    run = simulate_cluster(spaced_plan(20, 1.0), replicas, router=InOrder(), sending=Hedge(0.020))
    assert (run.count("answered"), run.count("failed"), len(run.attempts)) == (15, 5, 30)
    assert run.error_rate == 5 / 20  # not 5 / 30


def test_trap_a53_no_copy_starts_once_the_client_has_left():
    run = simulate_cluster(
        spaced_plan(1, 1.0), pair(0.100, backup=0.030), router=InOrder(), sending=Hedge(0.020), patience=0.015
    )
    assert len(run.attempts) == 1 and run.calls[0].outcome == "abandoned" and run.latencies == []
    assert run.attempts[0].state == "cancelled" and run.replicas[0].busy == pytest.approx(0.015)


def test_trap_a53_an_answer_at_exactly_the_delay_needs_no_copy():
    plan = [Planned(index + 0.1 * index, 1, 1, index) for index in range(50)]  # instants that are no round numbers
    run = simulate_cluster(plan, pair(*[0.020] * 50, backup=0.030), router=InOrder(), sending=Hedge(0.020))
    assert len(run.attempts) == 50 and run.extra_load == 0.0
    # Also where the service began after the delay did: two come at 0 s, and the second is served from 10 to 20 ms.
    both = [Planned(0.0, 1, 1, 0), Planned(0.0, 1, 1, 1)]
    queued = simulate_cluster(both, pair(0.010, 0.010, backup=0.030), router=InOrder(), sending=Hedge(0.020))
    assert len(queued.attempts) == 2 and queued.latencies == [0.010, 0.020]
    # At the client's own patience, too, the answer counts.
    patient = simulate_cluster(plan, pair(*[0.020] * 50, backup=0.030), router=InOrder(), patience=0.020)
    assert patient.count("answered") == 50


def test_trap_a53_the_server_of_a_loser_is_free_when_it_is_cancelled():
    # The loser stops at 50 ms; who came at 30 ms and has waited for its server starts then.
    plan = [Planned(0.0, 1, 1, 0), Planned(0.030, 1, 1, 1)]
    run = simulate_cluster(plan, pair(0.100, 0.005, backup=0.030), router=InOrder(), sending=Hedge(0.020))
    loser, waiting = run.calls[0].attempts[0], run.calls[1].attempts[0]
    assert (loser.state, loser.ended) == ("cancelled", pytest.approx(0.050))
    assert waiting.started == loser.ended and run.latencies[1] == pytest.approx(0.025)
