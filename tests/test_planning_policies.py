"""Systems compared, headroom, fleets through a day, shedding, and storms of retries."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace

import pytest

from underload import metrics
from underload.cache import BlockPool
from underload.metrics import Slo
from underload.planning import (
    Backoff,
    Burst,
    DegradeAbove,
    RejectAbove,
    System,
    compare_systems,
    goodput_curve,
    headroom,
    replicas_needed,
    shedding_policies,
    storm,
    through_time,
)
from underload.planning.loads import source_of
from underload.queueing import Deterministic, Exponential
from underload.request import UnderloadError
from underload.scheduling import Priority, Scheduler
from underload.simulation import (
    EngineReplica,
    Failures,
    JoinShortestQueue,
    LinearStepTime,
    Random,
    Retry,
    StationReplica,
)
from underload.workload import FixedTokens, GeometricTokens, Lengths, Planned, Poisson, UniformTokens, Workload

ONE = Lengths(FixedTokens(1), FixedTokens(1))
POINTS = Workload(Poisson(1.0), ONE)
CHAT = Workload(Poisson(2.0), Lengths(UniformTokens(10, 90), GeometricTokens(20)))
SLO = Slo(ttft=0.3, tpot=0.05)


def four_slots() -> Scheduler:
    return Scheduler(BlockPool(1000, 16), max_num_seqs=4)


def important_first() -> Scheduler:
    return Scheduler(BlockPool(1000, 16), max_num_seqs=4, order=Priority())


ENGINE = System(EngineReplica(LinearStepTime(0.01, 0.0005), four_slots))
STATION = System(StationReplica(Exponential(1.0)))


# ---- systems under the same loads ------------------------------------------------------------------------------------


def test_goodput_follows_the_formula_and_falls_off_the_cliff():
    """M/M/1 with deadline D: a share 1 - exp(-(1 - rate) D) is in time (the time in system is exponential)."""
    rows = goodput_curve(POINTS, Slo(e2e=5.0), STATION, rates=[0.3, 0.6, 1.3], requests=3000, runs=4, seed=1)
    for row in rows[:2]:
        exact = row["rate"] * (1 - math.exp(-(1 - row["rate"]) * 5))
        assert row["goodput_low"] * 0.98 <= exact <= row["goodput_high"] * 1.02
        assert row["attainment"] == pytest.approx(exact / row["rate"], abs=0.03)
    assert rows[2]["goodput"] < 0.1 * rows[1]["goodput"] and rows[2]["load"] == pytest.approx(1.3, rel=0.05)
    assert "system" not in rows[0] and rows[0]["tpot"] is None and rows[0]["tpot_low"] is None


def test_the_figures_of_a_row_are_those_of_its_runs():
    (row,) = compare_systems(CHAT, SLO, {"one": ENGINE}, rates=[12.0], requests=150, runs=2, warmup=0.0)
    source = source_of(CHAT, requests=150)
    lines = [ENGINE.run(source.at(source.base(run), 12.0, run), seed=run).timelines for run in (0, 1)]
    shares = [metrics.attainment(one, SLO) for one in lines]
    assert row["attainment"] == pytest.approx(sum(shares) / 2)
    tails = [metrics.percentile(map(metrics.ttft, one), 99) for one in lines]
    assert row["ttft"] == pytest.approx(sum(tails) / 2) and row["ttft_low"] < row["ttft"] < row["ttft_high"]
    assert row["answered"] == 1.0 and row["refused"] == row["failed"] == row["wasted"] == 0.0


def test_systems_meet_the_same_requests_so_that_a_difference_is_sharp():
    two = replace(STATION, replicas=2)
    systems = {"shortest": replace(two, router=JoinShortestQueue()), "again": replace(two, router=JoinShortestQueue()),
               "random": replace(two, router=Random())}  # fmt: skip
    rows = compare_systems(POINTS, Slo(e2e=5.0), systems, rates=[1.4], requests=800, runs=4, attainment=0.9)
    shortest, again, random = rows
    assert "e2e_change" not in shortest and again["e2e_change"] == again["goodput_change"] == 0.0
    assert again["e2e"] == shortest["e2e"] and random["e2e_change_low"] > 0 > random["attainment_change_high"]
    assert (
        compare_systems(POINTS, Slo(e2e=5.0), systems, rates=[1.4], requests=800, runs=4, attainment=0.9, processes=2)
        == rows
    )


def test_loads_are_shares_of_what_the_first_system_can_do():
    rows = compare_systems(POINTS, Slo(e2e=5.0), {"": STATION}, loads=[0.5, 0.9], requests=3000, runs=1)
    assert [row["load"] for row in rows] == pytest.approx([0.5, 0.9]) and rows[0]["goodput_low"] is None
    assert rows[0]["rate"] == pytest.approx(0.5, rel=0.06)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"systems": {}}, "give systems by name"),
        ({"systems": {"a": 3}}, "give systems by name"),
        ({"rates": [1.0], "loads": [1.0]}, "not both"),
        ({"rates": []}, "no rate to run at"),
        ({"rates": [0.0]}, "a rate must be above 0"),
        ({"loads": [-1.0]}, "a load must be above 0"),
        ({"attainment": 2}, "attainment is a share"),
        ({"systems": [STATION]}, "give systems by name"),
        ({"rates": 1.0}, "rates are several numbers"),
    ],
)
def test_hostile_comparisons_are_named(wrong, says):
    how = {"systems": {"": STATION}, "requests": 50, "runs": 1} | wrong
    with pytest.raises(UnderloadError, match=says):
        compare_systems(POINTS, Slo(e2e=5.0), how.pop("systems"), **how)


# ---- headroom --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_headroom_for_a_replica_is_what_fewer_replicas_can_do():
    four = replace(STATION, replicas=4, router=JoinShortestQueue())
    found = headroom(POINTS, Slo(e2e=6.0), four, down=1, attainment=0.9, requests=1500, runs=3)
    assert found.interval.low < found.share < found.interval.high and 0.2 < found.share < 0.4
    assert found.rate == found.then.rate < found.normal.rate
    assert found.as_dict()["headroom"] == found.share and "1 of 4 replicas down" in str(found)


@pytest.mark.slow
def test_headroom_of_queues_of_their_own_is_the_share_that_is_down():
    """Of requests dealt out at random each of n M/M/1 has an n-th: three hold three quarters of what four do."""
    four = replace(STATION, replicas=4, router=Random())
    found = headroom(POINTS, Slo(e2e=6.0), four, down=1, attainment=0.9, requests=3000, runs=4)
    one = 1 + math.log(1 - 0.9) / 6.0
    for got, exact in ((found, 1 / 4), (found.normal, 4 * one), (found.then, 3 * one)):
        assert got.interval.low <= exact <= got.interval.high


@pytest.mark.slow
def test_headroom_for_a_burst_counts_those_who_come_in_it():
    found = headroom(POINTS, Slo(e2e=6.0), STATION, burst=Burst(3, 40), attainment=0.8, requests=1200, runs=2)
    mild = headroom(POINTS, Slo(e2e=6.0), STATION, burst=Burst(1.2, 40), attainment=0.8, requests=1200, runs=2)
    assert found.share > mild.share and found.then.window == pytest.approx(80, rel=0.2)
    assert found.then.requests < 200 < found.normal.requests


def test_hostile_headrooms_are_named():
    for wrong in ({}, {"down": 1, "burst": Burst(2, 2)}):
        with pytest.raises(UnderloadError, match="say what is to be survived"):
            headroom(POINTS, Slo(e2e=6.0), STATION, **wrong)
    with pytest.raises(UnderloadError, match="with 1 of 1 replicas down nobody serves"):
        headroom(POINTS, Slo(e2e=6.0), STATION, down=1)
    with pytest.raises(UnderloadError, match=r"the system is a planning\.System"):
        headroom(POINTS, Slo(e2e=6.0), 3, down=1)
    with pytest.raises(UnderloadError, match=r"a burst is a planning\.Burst"):
        headroom(POINTS, Slo(e2e=6.0), STATION, burst=3)


def test_a_system_can_lose_replicas_in_the_middle_of_a_run():
    two = System(StationReplica(Deterministic(1.0)), 2, failing=(1, Failures(((50.0, math.inf),), 0.0)))
    plan = [Planned(0.6 * k, 1, 1, k) for k in range(200)]
    run = two.run(plan)
    late = [attempt.replica for attempt in run.attempts if attempt.sent > 50]
    assert set(late) == {1} and {attempt.replica for attempt in run.attempts} == {0, 1}
    assert two.bare.failing is None and two.bare.run(plan).count("answered") == 200


# ---- fleets ----------------------------------------------------------------------------------------------------------


def day() -> list[Planned]:
    """An hour's quarter each of 1, 4, 1 and 2 a second, with service of just 1 s."""
    instants = [q * 250 + k / rate for q, rate in enumerate((1, 4, 1, 2)) for k in range(250 * rate)]
    return [Planned(at, 1, 1, index) for index, at in enumerate(instants)]


def test_the_fewest_replicas_of_each_window_and_of_the_whole():
    system = System(StationReplica(Deterministic(0.9)), router=JoinShortestQueue())
    found = replicas_needed(day(), Slo(e2e=1.0), system, window=250.0, attainment=0.95)
    assert found.replicas == 4 and [row["replicas"] for row in found.rows] == [1, 4, 1, 2]
    assert [row["requests"] for row in found.rows] == [250, 1000, 250, 500]
    assert found.mean == pytest.approx(2.0, rel=0.01) and found.attainment_with >= 0.95
    three = replace(system, replicas=3).run(day())
    assert metrics.attainment(three.timelines, Slo(e2e=1.0)) < 0.95
    whole = replicas_needed(day(), Slo(e2e=1.0), system, attainment=0.95)
    assert whole.replicas == 4 and len(whole.rows) == 1 and whole.rows[0]["replicas"] == 4
    assert replicas_needed(day(), Slo(e2e=1.0), system, attainment=0.95, speed=2.0).replicas == 8
    assert found.as_dict()["windows"] == found.rows and "4 for the whole" in str(found)
    assert replicas_needed(day(), Slo(e2e=1.0), system, window=250.0, attainment=0.95, processes=2) == found


def test_the_fewest_of_queues_of_their_own_are_by_the_formula():
    rate, limit = 2.0, 1 + math.log(1 - 0.95) / 8.0  # of an M/M/1, for 95 % within 8 s
    plan = Workload(Poisson(rate), ONE).plan(3, requests=3000)
    system = System(StationReplica(Exponential(1.0)), router=Random())
    found = replicas_needed(plan, Slo(e2e=8.0), system, attainment=0.95)
    assert found.replicas == math.ceil(rate / limit) == 4
    assert found.attainment_with == pytest.approx(1 - math.exp(-(1 - rate / 4) * 8.0), abs=0.01)


def test_windows_take_in_everybody_once():
    edges = [0.1 * k for k in range(31)]  # where k * 0.1 + 0.1 is often another double than (k + 1) * 0.1
    plan = [Planned(at, 1, 1, index) for index, at in enumerate(edges)]
    found = replicas_needed(plan, Slo(e2e=1.0), System(StationReplica(Deterministic(0.01))), window=0.1)
    assert sum(row["requests"] for row in found.rows) == len(plan)


def test_a_load_that_no_number_can_serve_in_time_is_named():
    with pytest.raises(UnderloadError, match="8 replicas do not keep the SLO"):
        replicas_needed(day(), Slo(e2e=0.5), System(StationReplica(Deterministic(0.9))), most=8)
    for wrong in ({"window": 0}, {"window": 1e-9}, {"speed": -1}, {"most": 0}, {"attainment": 1}):
        with pytest.raises(UnderloadError):
            replicas_needed(day(), Slo(e2e=1.0), System(StationReplica(Deterministic(0.9))), **wrong)


# ---- shedding --------------------------------------------------------------------------------------------------------


def test_shedding_keeps_goodput_where_nothing_else_does():
    policies = shedding_policies(ENGINE, inside=10, max_wait=0.3, output_tokens=8)
    assert list(policies) == ["none", "reject", "deadline", "degrade"] and policies["none"] is ENGINE
    rows = compare_systems(CHAT, SLO, policies, loads=[1.5], requests=400, runs=2, processes=2)
    by = {row["system"]: row for row in rows}
    assert by["none"]["attainment"] < 0.3 and by["none"]["refused"] == 0
    for name in ("reject", "deadline"):
        assert by[name]["goodput"] > 2 * by["none"]["goodput"] and by[name]["refused"] > 0.1
    assert by["degrade"]["refused"] == 0 and by["degrade"]["answered"] == 1
    assert by["degrade"]["goodput"] > by["none"]["goodput"]
    assert pickle.loads(pickle.dumps(policies["deadline"])).scheduler().shedding.max_wait == 0.3


def test_the_door_rejects_and_degrades_at_its_limit():
    plan = [Planned(0.001 * k, 20, 30, k) for k in range(20)]
    rejected = replace(ENGINE, door=RejectAbove(5)).run(plan)
    assert rejected.count("answered") == 5 and rejected.count("refused") == 15
    degraded = replace(ENGINE, door=DegradeAbove(5, 3)).run(plan)
    assert [line.output_tokens for line in degraded.timelines] == [30] * 5 + [3] * 15
    short = [Planned(0.001 * k, 20, 2, k) for k in range(20)]
    assert [line.output_tokens for line in replace(ENGINE, door=DegradeAbove(1, 3)).run(short).timelines] == [2] * 20


def test_priority_keeps_the_important_ones_goodput_in_an_overload():
    plan = CHAT.plan(5, requests=400)
    tenants = [
        replace(one, tenant="chat", priority=1) if one.index % 3 == 0 else replace(one, tenant="batch") for one in plan
    ]
    systems = {
        "in order": ENGINE,
        "priority": replace(ENGINE, replica=replace(ENGINE.replica, scheduler=important_first)),
    }
    rows = compare_systems(tenants, SLO, systems, loads=[1.4], runs=2)
    inorder, first = rows
    assert (
        first["goodput:chat"] > 3 * inorder["goodput:chat"] and first["goodput:batch"] <= inorder["goodput:batch"] + 0.5
    )
    assert first["goodput:chat"] + first["goodput:batch"] == pytest.approx(first["goodput"])


@pytest.mark.parametrize("wrong", [{"inside": 0, "max_wait": 1}, {"inside": 3, "max_wait": 0}])
def test_hostile_policies_are_named(wrong):
    with pytest.raises(UnderloadError, match="must be"):
        shedding_policies(ENGINE, **wrong)
    with pytest.raises(UnderloadError, match="give engines as replicas"):
        shedding_policies(STATION, inside=3, max_wait=1.0)
    with pytest.raises(UnderloadError):
        DegradeAbove(3, 0)


# ---- storms ----------------------------------------------------------------------------------------------------------

SERVER = StationReplica(Exponential(0.1))  # ten a second
BURST = Burst(4, 20, begin=0.3)


def stormy(**more) -> System:
    return System(replace(SERVER, **more), sending=Retry(2.0, attempts=6, cancels=False))


def test_a_storm_of_retries_stays_when_the_burst_is_over_and_a_cure_ends_it():
    def after(system: System):
        return storm(POINTS, Slo(e2e=5.0), system, rate=7.0, burst=BURST, requests=6000)

    calm = after(System(SERVER))
    assert calm.recovers and calm.before == calm.after == 1.0
    naive = after(stormy())
    assert naive.before == 1.0 and naive.after < 0.05 and not naive.recovers
    assert naive.rows[-5]["attempts"] > 4 * naive.rows[-5]["offered"]
    # Those who have left are taken out of the queue, or the queue is short.
    assert after(System(SERVER, sending=Retry(2.0, attempts=6))).recovers
    assert after(stormy(buffer=15)).recovers
    # To wait before the next attempt spreads the same work, and does not lessen it.
    patient = Retry(2.0, attempts=6, cancels=False, backoff=Backoff(4.0))
    assert not after(System(SERVER, sending=patient)).recovers


def test_windows_add_up_to_the_run():
    run = stormy().run(POINTS.plan(0, requests=300))
    rows = through_time(run, Slo(e2e=5.0), 20.0)
    assert sum(row["calls"] for row in rows) == 300
    met = sum(row["goodput"] * (row["end"] - row["start"]) for row in rows)
    assert met == pytest.approx(sum(map(Slo(e2e=5.0).met, run.timelines)))
    assert [row["start"] for row in rows] == [20.0 * k for k in range(len(rows))]
    with pytest.raises(UnderloadError, match="window must be above 0"):
        through_time(run, Slo(e2e=5.0), 0.0)


def test_a_storm_needs_something_before_and_behind_it():
    with pytest.raises(UnderloadError, match="too few to tell"):
        storm(POINTS, Slo(e2e=5.0), System(SERVER), rate=7.0, burst=Burst(2, 1, begin=0.0), requests=200)
    for wrong in ({"burst": None}, {"burst": 3}, {"rate": 0.0}, {"rate": math.nan}):
        with pytest.raises(UnderloadError):
            storm(POINTS, Slo(e2e=5.0), System(SERVER), **({"rate": 7.0, "burst": BURST, "requests": 200} | wrong))


def test_backoff_doubles_up_to_its_most_and_jitter_only_shortens():
    sure = Backoff(1.0, most=10.0, jitter=0.0)
    assert [sure(made) for made in (1, 2, 3, 4, 5, 80)] == [1, 2, 4, 8, 10, 10]
    spread = [Backoff(4.0, jitter=0.5, seed=3)(1) for _ in range(3)] + [
        Backoff(4.0, jitter=0.5, seed=s)(1) for s in range(50)
    ]
    assert len(set(spread[:3])) == 1 and min(spread) >= 2 and max(spread) <= 4 and len(set(spread)) > 40
    for wrong in ({"first": 0}, {"first": 5, "most": 1}, {"first": 1, "jitter": 2}):
        with pytest.raises(UnderloadError):
            Backoff(**wrong)
