"""Capacity: loads at any rate, what a probe says, the search, and the answer against closed forms."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace

import pytest

from underload import metrics
from underload.cache import BlockPool
from underload.metrics import Slo
from underload.planning import Burst, Capacity, Probe, System, capacity
from underload.planning.capacity import CLOSER, PILOTS, Binds, bracket, crossing, crossing_between, search
from underload.planning.loads import backlog, busiest, mean_rate, source_of
from underload.planning.probe import (
    GROWTH,
    Question,
    growth_of,
    limits_of,
    needed,
    saturated_rate,
    stretch,
    stretch_of,
)
from underload.queueing import Exponential, mm1, mmc
from underload.request import Timeline, UnderloadError
from underload.scheduling import Scheduler, Shedding, Static
from underload.simulation import EngineReplica, Failures, LinearStepTime, StationReplica, simulate_serving
from underload.workload import (
    Conversations,
    FixedTokens,
    GeometricTokens,
    Lengths,
    Planned,
    Poisson,
    SharedPrefix,
    UniformTokens,
    Workload,
    synthetic,
)

ONE = Lengths(FixedTokens(1), FixedTokens(1))
POINTS = Workload(Poisson(1.0), ONE)  # requests that only a station serves: its law says how long they take
CHAT = Workload(Poisson(2.0), Lengths(UniformTokens(10, 90), GeometricTokens(20)))
STEP = LinearStepTime(0.01, 0.0005)


def station(servers: int = 1, mean: float = 1.0) -> System:
    return System(StationReplica(Exponential(mean), servers=servers))


def small_pool() -> Scheduler:
    return Scheduler(BlockPool(40, 16), max_num_seqs=64)


def small_batch() -> Scheduler:
    return Scheduler(BlockPool(2000, 16), max_num_seqs=64)


ENGINE = System(EngineReplica(STEP, small_batch))


def two_slots() -> Scheduler:
    return Scheduler(BlockPool(1000, 16), max_num_seqs=2)


def few_tokens() -> Scheduler:
    return Scheduler(BlockPool(1000, 16), max_num_batched_tokens=32)


def eights() -> Scheduler:
    return Scheduler(BlockPool(2000, 16), batching=Static(8))


# ---- loads -----------------------------------------------------------------------------------------------------------


def test_a_rate_is_reached_by_squeezing_every_gap_and_nothing_else():
    source = source_of(CHAT, requests=200)
    base = source.base(3)
    fast, slow = source.at(base, 10.0, 3), source.at(base, 1.0, 3)
    assert mean_rate(fast) == pytest.approx(10.0) and mean_rate(slow) == pytest.approx(1.0)
    assert [(one.prompt_tokens, one.output_tokens) for one in fast] == [
        (one.prompt_tokens, one.output_tokens) for one in slow
    ]
    for a, b in zip(fast, slow):
        assert b.arrival == pytest.approx(10 * a.arrival)


def test_think_times_and_turns_stay_when_a_load_is_squeezed():
    talk = Workload(Poisson(1.0), Lengths(FixedTokens(30), FixedTokens(8)), Conversations(FixedTokens(3), think=5.0))
    source = source_of(talk, requests=20)
    made = source.at(source.base(0), 50.0, 0)
    assert {one.think for one in made if one.turn} == {one.think for one in source.base(0) if one.turn} != {None}
    assert max(one.turn for one in made) == 2


def test_thinning_keeps_instants_and_nests_the_requests_of_lower_rates():
    plan = CHAT.plan(1, requests=400)
    source = source_of(plan, scaling="thinning")
    base = source.base(0)
    some, more = source.at(base, 0.5, 0), source.at(base, 1.0, 0)
    at = {one.arrival for one in more}
    assert {one.arrival for one in some} < at < {one.arrival - base[0].arrival for one in base}
    assert mean_rate(more) == pytest.approx(1.0, rel=0.15)
    assert [one.index for one in more] == list(range(len(more)))
    with pytest.raises(UnderloadError, match="thinning leaves requests out"):
        source.at(base, 2 * mean_rate(base), 0)


def test_further_runs_of_a_plan_exchange_its_requests_and_keep_its_arrivals():
    plan = synthetic("azure-conv").plan()[:300]
    source = source_of(plan)
    first, second = source.base(0), source.base(1)
    assert first == list(source.rows) and [a.arrival for a in first] == [b.arrival for b in second]
    lengths = [[(one.prompt_tokens, one.output_tokens) for one in base] for base in (first, second)]
    assert lengths[0] != lengths[1] and sorted(lengths[0]) == sorted(lengths[1])
    assert source.base(1) == second


def test_requests_that_share_or_follow_each_other_are_not_exchanged():
    sharing = Workload(Poisson(1.0), Lengths(FixedTokens(20), FixedTokens(4)), SharedPrefix(2, 32)).plan(requests=30)
    talk = Workload(Poisson(1.0), Lengths(FixedTokens(20), FixedTokens(4)), Conversations(FixedTokens(2)))
    assert not source_of(sharing).exchangeable and not source_of(talk.plan(requests=10)).exchangeable
    assert source_of(talk).exchangeable and source_of(CHAT.plan(requests=30)).exchangeable
    found = capacity(sharing, Slo(ttft=1.0), ENGINE, runs=3)
    assert found.interval is None and len(found.crossings) == 1 and "cannot be exchanged" in found.notes[0]


def test_the_busiest_stretch_of_a_plan_is_found():
    plan = [Planned(float(at), 1, 1, k) for k, at in enumerate([0, 5, 9, 10, 10.5, 11, 14, 20])]
    assert [one.arrival for one in busiest(plan, 4)] == [9, 10, 10.5, 11]
    assert [one.index for one in busiest(plan, 99)] == list(range(8))


def test_a_burst_brings_requests_forward_and_loses_none():
    plan = [Planned(float(t), 1, 1, t) for t in range(101)]
    made = Burst(3, 10, begin=0.5).on(plan)
    assert [one.index for one in made] == list(range(101))
    inside = [one for one in made if 50 < one.arrival <= 60]
    assert len(inside) == 30 and made[50].arrival == 50.0 and made[100].arrival == pytest.approx(80.0)
    assert made[81].arrival - made[80].arrival == pytest.approx(1.0)
    with pytest.raises(UnderloadError, match="take more requests, or a smaller one"):
        Burst(10, 10).on(plan)
    for wrong in ({"factor": 0.5, "seconds": 1}, {"factor": 2, "seconds": 0}, {"factor": 2, "seconds": 1, "begin": 1}):
        with pytest.raises(UnderloadError):
            Burst(**wrong)


@pytest.mark.parametrize("wrong", [[], "azure", 3, [1, 2], None])
def test_what_is_no_load_is_named(wrong):
    with pytest.raises(UnderloadError, match="a load is a Workload, a Trace or a list of Planned"):
        source_of(wrong)


def test_requests_at_one_instant_have_no_rate():
    with pytest.raises(UnderloadError, match="no rate that could be scaled"):
        source_of([Planned(0.0, 1, 1, i) for i in range(5)]).base(0)


def test_a_system_runs_as_the_engine_alone_does_and_gives_each_run_fresh_policies():
    plan = CHAT.plan(0, requests=50)
    alone = simulate_serving(plan, STEP)
    run = ENGINE.run(plan)
    assert [line.token_times for line in run.timelines] == [line.token_times for line in alone.timelines]
    assert pickle.loads(pickle.dumps(ENGINE)).run(plan).replicas[0].steps == run.replicas[0].steps
    with pytest.raises(UnderloadError, match="EngineReplica or a StationReplica"):
        System(STEP)
    with pytest.raises(UnderloadError, match="replicas"):
        replace(ENGINE, replicas=0)


# ---- a probe ---------------------------------------------------------------------------------------------------------


def line(arrival: float, *times: float, reason: str | None = "stop") -> Timeline:
    return Timeline(arrival, scheduled=arrival, token_times=list(times), finished=times[-1] if times else None,
                    finish_reason=reason)  # fmt: skip


def test_stretch_is_the_factor_on_all_limits_at_which_the_share_is_met():
    slo = Slo(ttft=1.0, tpot=0.1)
    lines = [line(0, 0.5, 0.6), line(0, 2.0, 2.1), line(0, 0.1, 0.4), line(0, 0.1)]
    assert [stretch(one, slo) for one in lines] == pytest.approx([1.0, 2.0, 3.0, 0.1])
    for share in (0.25, 0.5, 0.75, 1.0):
        factor = stretch_of(lines, slo, share)
        wider = Slo(**{name: limit * factor * (1 + 1e-12) for name, limit in slo.terms.items()})
        tighter = Slo(**{name: limit * factor * (1 - 1e-9) for name, limit in slo.terms.items()})
        assert metrics.attainment(lines, wider) >= share > metrics.attainment(lines, tighter)
    assert stretch_of([*lines, line(0, reason="refused")], slo, 1.0) == math.inf


def test_a_share_of_a_count_is_not_off_by_rounding():
    assert [needed(0.99, 100), needed(0.99, 101), needed(0.9, 10), needed(0.95, 20)] == [99, 100, 9, 19]


def test_growth_is_the_share_of_arrivals_that_pile_up():
    # One every second, and one leaves every two: of those who come, half stay.
    falling_behind = [line(float(t), 2.0 * t + 1) for t in range(1000)]
    assert growth_of(falling_behind) == pytest.approx(0.5, abs=0.01)
    assert growth_of([line(float(t), t + 3.5) for t in range(1000)]) == pytest.approx(0.0, abs=0.005)
    assert growth_of([line(0.0, 1.0)]) == 0.0


def test_the_saturated_rate_is_that_of_servers_that_never_rest():
    assert saturated_rate(source_of(POINTS, requests=20_000), station(4, 0.5)) == pytest.approx(8.0, rel=0.03)
    plain = Workload(Poisson(1.0), Lengths(FixedTokens(50), FixedTokens(20)))
    steps = System(EngineReplica(STEP, two_slots))
    # Two sequences: a request is a step with its prompt and 19 without, in company.
    rate = saturated_rate(source_of(plain, requests=400), steps)
    slow, fast = 0.01 + 0.0005 * 100, 0.01 + 0.0005 * 2
    assert 2 / (slow + 19 * fast) == pytest.approx(rate, rel=0.02)


def test_the_saturated_rate_does_not_depend_on_how_few_requests_are_asked_about():
    """Of a batch that has room for all of them, the middle half of the answers would be of steps without a prompt."""
    exact = 1 / (0.0005 * (50 + 20) + 0.01 / 64 * 20)  # s of 70 tokens, and of 20 steps that 64 share
    few, many = (source_of(CHAT, requests=count) for count in (40, 2000))
    plan = source_of(CHAT.plan(0, requests=40))
    assert saturated_rate(few, ENGINE) == saturated_rate(many, ENGINE) == pytest.approx(exact, rel=0.06)
    assert saturated_rate(plan, ENGINE) == pytest.approx(exact, rel=0.1) and len(plan.plenty(0, 1000)) == 1000
    talk = Workload(Poisson(1.0), ONE, Conversations(FixedTokens(3), think=5.0)).plan(0, requests=5)
    assert len(source_of(talk).plenty(0, 1000)) == 15


def shedding() -> Scheduler:
    return Scheduler(BlockPool(1000, 16), max_num_seqs=2, shedding=Shedding(max_queue=3, max_wait=0.1))


def test_the_saturated_rate_is_that_of_servers_that_turn_nobody_away():
    source = source_of(CHAT, requests=60)
    assert saturated_rate(source, System(EngineReplica(STEP, shedding))) == saturated_rate(
        source, System(EngineReplica(STEP, two_slots))
    )
    points = source_of(POINTS, requests=500)
    failing = Failures(((10.0, 300.0),), 0.0)
    lossy = System(StationReplica(Exponential(1.0), servers=3, buffer=0, failures=failing))
    assert saturated_rate(points, lossy) == saturated_rate(points, station(3))
    assert pickle.loads(pickle.dumps(System(EngineReplica(STEP, shedding)).bare)).scheduler().shedding.max_wait is None


def test_who_answers_nobody_or_in_no_time_is_named():
    for wrong, says in ((lambda plan: -1.0, "answers none of .* requests.*a step takes 0 s or more"),
                        (lambda plan: 0.0, "answers everybody in no time")):  # fmt: skip
        with pytest.raises(UnderloadError, match=says):
            capacity(CHAT, Slo(ttft=1.0), System(EngineReplica(wrong)), requests=50)
    for made in (3, lambda: 3):
        with pytest.raises(UnderloadError, match="a function that makes a fresh Scheduler"):
            capacity(CHAT, Slo(ttft=1.0), System(EngineReplica(STEP, made)), requests=50)


def test_an_overload_never_holds_however_short_the_run():
    """40 requests at twice what the server can do: nobody waits longer than the SLO, and the queue grows."""
    source = source_of(POINTS, requests=40)
    question = Question(source, Slo(e2e=1000.0), station(), 0.99, 0.1)
    probe = question.probe(source.base(0), 2.0, 0)
    assert probe.attainment == 1.0 and probe.growth > GROWTH and probe.fails == "growth"
    known = replace(question, saturated=saturated_rate(source, station()))
    assert known.probe(source.base(0), 2.0, 0).fails == "load"
    found = capacity(POINTS, Slo(e2e=1000.0), station(), requests=40, runs=2)
    assert found.rate < found.saturated and found.binds.term in ("load", "growth")
    # Each run has a saturated rate of its own, so that the interval is of some width where it is what stops all.
    assert len(set(found.crossings)) == 2
    assert all(probe.load <= 1 for probe in found.probes)


def test_a_probe_counts_failures_and_who_came_after_the_warm_up():
    source = source_of(CHAT, requests=200)
    refusing = System(EngineReplica(STEP, two_slots), patience=0.3)
    probe = Question(source, Slo(ttft=10.0), refusing, 0.99, 0.25).probe(source.base(0), 40.0, 0)
    run = refusing.run(source.at(source.base(0), 40.0, 0))
    arrivals = [one.arrival for one in run.timelines]
    start = arrivals[0] + 0.25 * (arrivals[-1] - arrivals[0])
    kept = [one for one in run.timelines if one.arrival >= start]
    assert probe.requests == len(kept) and probe.attainment == metrics.attainment(kept, Slo(ttft=10.0)) < 1
    assert probe.broken == {"failed": pytest.approx(1 - probe.attainment)} and probe.stretch == math.inf
    assert probe.fails == "slo" and probe.goodput > 0


@pytest.mark.parametrize(
    ("make", "limit"),
    [(two_slots, "sequences"), (small_pool, "KV blocks"), (few_tokens, "tokens a step"), (eights, "batch")],
)
def test_what_a_replica_is_short_of_is_named(make, limit):
    system = System(EngineReplica(STEP, make))
    run = system.run(backlog(CHAT.plan(0, requests=80)))
    shares = limits_of(system, run, 0.0, math.inf, 90)
    assert max(shares, key=shares.get) == limit and shares[limit] > 0.5
    assert limits_of(station(), station().run(POINTS.plan(0, requests=5)), 0.0, math.inf, 1) == {}


# ---- the search ------------------------------------------------------------------------------------------------------


def probes(*told: tuple[float, bool]) -> list[Probe]:
    return [
        Probe(
            0,
            rate,
            rate / 10,
            attainment=1.0 if holds else 0.5,
            stretch=0.9 if holds else 1.2,
            fails="" if holds else "slo",
        )
        for rate, holds in told
    ]


def rates(ends: tuple[Probe | None, Probe | None]) -> tuple[float | None, ...]:
    return tuple(None if end is None else end.rate for end in ends)


def test_the_first_crossing_counts_above_the_lowest_rate_that_holds():
    assert rates(bracket(probes((2, True), (4, True), (5, False), (6, True), (7, False)))) == (4, 5)
    assert rates(bracket(probes((1, False), (2, True), (3, False)))) == (2, 3)
    assert rates(bracket(probes((1, False), (2, False)))) == (None, 1)
    assert rates(bracket(probes((1, True)))) == (1, None) and rates(bracket([])) == (None, None)
    assert crossing(probes((1, False))) == 0.0 and crossing(probes((3, True))) == 3


def test_a_crossing_is_read_where_the_stretch_passes_one():
    low = Probe(0, 4.0, 0.4, stretch=0.5)
    high = Probe(0, 8.0, 0.8, stretch=2.0, fails="slo")
    assert crossing_between(low, high) == pytest.approx(math.sqrt(32))
    assert crossing_between(low, replace(high, stretch=8.0)) == pytest.approx(4.0 * 2**0.25)
    assert crossing_between(low, replace(high, fails="growth", stretch=0.7)) == pytest.approx(math.sqrt(32))
    assert crossing_between(low, Probe(0, 8.0, 1.0, fails="load", simulated=False)) == pytest.approx(math.sqrt(32))


@pytest.mark.parametrize("guess", [0.02, 0.3, 0.93])
def test_a_search_closes_in_from_wherever_it_begins(guess):
    source = source_of(POINTS, requests=1500)
    question = Question(source, Slo(e2e=8.0), station(), 0.95, 0.1, saturated=1.0)
    found = search(question, 0, guess, 4.0, 0.02)
    low, high = bracket(found)
    assert low.holds and not high.holds and high.rate <= low.rate * 1.02 and len(found) <= 12
    reference = search(question, 0, 0.5, 4.0, 0.02)
    assert crossing(found) == pytest.approx(crossing(reference), rel=0.02)


def test_the_answer_is_the_same_whoever_computes_it():
    how = {"requests": 150, "runs": 3, "attainment": 0.95}
    one = capacity(CHAT, Slo(ttft=0.2, tpot=0.03), ENGINE, **how)
    two = capacity(CHAT, Slo(ttft=0.2, tpot=0.03), ENGINE, processes=2, **how)
    assert one == two and one.as_dict() == two.as_dict()


@pytest.mark.parametrize("processes", [1, 2])
def test_progress_is_told_of_every_part_and_changes_nothing(processes):
    how = {"requests": 60, "runs": 2, "attainment": 0.9}
    told = []
    found = capacity(
        CHAT, Slo(ttft=0.2), ENGINE, processes=processes, progress=lambda *where: told.append(where), **how
    )
    parts = 2 + len(PILOTS) + 2 * CLOSER + 2
    assert sorted(told) == [(done, parts) for done in range(parts + 1)] and told[0] == (0, parts)
    assert found == capacity(CHAT, Slo(ttft=0.2), ENGINE, **how)


# ---- the answer ------------------------------------------------------------------------------------------------------


def limit_mm1(deadline: float, share: float) -> float:
    """Of an M/M/1 with mean service 1, the rate at which that share is done in time."""
    rate = 1 + math.log(1 - share) / deadline
    assert mm1(rate, 1.0).sojourn_quantile(100 * share) == pytest.approx(deadline)
    return rate


def limit_mmc(servers: int, deadline: float, share: float) -> float:
    low, high = 0.1, servers * (1 - 1e-6)
    for _ in range(60):
        middle = (low + high) / 2
        if mmc(middle, 1.0, servers=servers).sojourn_quantile(100 * share) <= deadline:
            low = middle
        else:
            high = middle
    return low


@pytest.mark.slow
def test_the_capacity_where_refusals_are_all_that_breaks_it_is_erlangs():
    share, servers = 0.95, 5

    def lost(load: float) -> float:
        blocked = 1.0
        for busy in range(1, servers + 1):
            blocked = load * blocked / (busy + load * blocked)
        return blocked

    low, high = 0.1, 5.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if lost(middle) <= 1 - share else (low, middle)
    lossy = System(StationReplica(Exponential(1.0), servers=servers, buffer=0))
    found = capacity(POINTS, Slo(e2e=1e4), lossy, attainment=share, requests=3000, runs=4)
    assert found.interval.low <= low <= found.interval.high and found.interval.relative < 0.12
    assert found.binds.term == "failed"


@pytest.mark.slow
@pytest.mark.parametrize(("servers", "deadline", "share"), [(1, 8.0, 0.95), (10, 6.0, 0.99)])
def test_the_capacity_of_a_station_holds_the_formulas_limit(servers, deadline, share):
    exact = limit_mm1(deadline, share) if servers == 1 else limit_mmc(servers, deadline, share)
    found = capacity(POINTS, Slo(e2e=deadline), station(servers), attainment=share, requests=12_000, runs=6, seed=4)
    assert found.interval.low <= exact <= found.interval.high
    assert found.interval.relative < 0.12
    assert found.binds.term == "e2e" and found.binds.limit == "servers"
    assert found.window == pytest.approx(0.9 * 12_000 / found.rate, rel=0.15)


def test_replicas_and_a_looser_slo_only_ever_add_capacity():
    how = {"requests": 300, "runs": 2, "attainment": 0.95}
    base = capacity(CHAT, Slo(ttft=0.15, tpot=0.03), ENGINE, **how)
    loose = capacity(CHAT, Slo(ttft=0.3, tpot=0.06), ENGINE, **how)
    two = capacity(CHAT, Slo(ttft=0.15, tpot=0.03), replace(ENGINE, replicas=2), **how)
    assert base.rate < loose.rate and 1.5 * base.rate < two.rate < 3 * base.rate
    assert 0 < base.load < 1 and base.scale == pytest.approx(
        base.rate / mean_rate(source_of(CHAT, requests=300).base(0))
    )
    for a, b in zip(base.crossings, loose.crossings):
        assert a < b


def test_what_binds_is_what_broke_and_what_was_short():
    how = {"requests": 200, "runs": 1, "attainment": 0.95}
    slots = capacity(CHAT, Slo(ttft=0.3), System(EngineReplica(STEP, two_slots)), **how)
    assert (slots.binds.term, slots.binds.limit) == ("ttft", "sequences") and "ttft, broken by" in str(slots)
    speed = capacity(CHAT, Slo(tpot=0.02), ENGINE, **how)
    assert (speed.binds.term, speed.binds.limit) == ("tpot", "step time")
    assert Binds.at([Probe(0, 1.0, 1.0, fails="load", simulated=False)], 0.99).term == "load"


def test_an_slo_that_nothing_meets_has_capacity_zero_and_says_so():
    found = capacity(CHAT, Slo(ttft=0.001), ENGINE, requests=60, runs=2)
    assert found.rate == 0.0 and found.crossings == (0.0, 0.0) and any("no rate holds" in note for note in found.notes)


def test_batches_that_must_fill_fail_at_low_load_and_the_note_says_so():
    found = capacity(CHAT, Slo(ttft=3.0), System(EngineReplica(STEP, eights)), requests=200, runs=1, attainment=0.9)
    assert found.rate > 0 and any("at low load the SLO fails, too" in note for note in found.notes)
    assert min(found.exceptions) < found.rate


def test_too_few_requests_for_a_share_are_remarked_upon():
    found = capacity(CHAT, Slo(ttft=0.3), ENGINE, requests=100, runs=1, attainment=0.99)
    assert any("a few decide" in note for note in found.notes)


def test_a_load_that_is_thinned_gives_much_the_same_and_stops_at_its_own_rate():
    plan = POINTS.plan(2, requests=2500)
    how = {"attainment": 0.9, "runs": 2, "scaling": "thinning"}
    found = capacity(plan, Slo(e2e=8.0), station(), **how)
    assert found.rate == pytest.approx(limit_mm1(8.0, 0.9), rel=0.15) and found.scaling == "thinning"
    whole = capacity(plan, Slo(e2e=8.0), station(mean=0.1), **how)
    assert whole.rate == pytest.approx(mean_rate(plan)) and whole.binds is None
    assert any("the capacity is that or more" in note for note in whole.notes)


def test_a_load_that_cannot_be_thinned_any_further_has_capacity_zero():
    found = capacity(CHAT.plan(0, requests=100), Slo(ttft=0.001), ENGINE, runs=2, scaling="thinning")
    assert found.rate == 0.0 and min(probe.requests for probe in found.probes) > 5
    source = source_of(CHAT.plan(0, requests=100), scaling="thinning")
    with pytest.raises(UnderloadError, match="none of 100 requests"):
        source.at(source.base(0), 1e-9, 0)


def test_a_term_that_nothing_comes_near_leaves_the_queue_to_bind():
    for slo in (Slo(tpot=0.05), Slo(ttft=math.inf)):  # one token has no TPOT: the stretch is 0 at all rates
        found = capacity(Workload(Poisson(1.0), ONE), slo, ENGINE, requests=60, runs=1)
        assert 0 < found.rate < found.saturated and found.binds.term in ("load", "growth")


def test_a_plan_most_of_which_comes_at_one_instant_has_an_answer():
    instants = [*range(30), *([30] * 450), *range(31, 60)]
    plan = [Planned(float(at), 10, 2, index) for index, at in enumerate(instants)]
    found = capacity(plan, Slo(ttft=60.0), ENGINE, runs=1, attainment=0.9)
    assert found.rate > mean_rate(plan)


def test_what_a_drawn_conversation_waits_for_is_remarked_upon():
    talk = Workload(Poisson(1.0), Lengths(FixedTokens(30), FixedTokens(8)), Conversations(FixedTokens(3), think=5.0))
    found = capacity(talk, Slo(ttft=0.2), ENGINE, requests=40, runs=1, attainment=0.8)
    assert any("turns wait for the answer before them" in note for note in found.notes)


def test_plain_data_comes_of_it():
    found = capacity(CHAT, Slo(ttft=0.3), ENGINE, requests=100, runs=2, attainment=0.9)
    data = found.as_dict()
    assert data["capacity_per_s"] == found.rate and data["interval_per_s"][0] < found.rate < data["interval_per_s"][1]
    assert len(data["probes"]) == len(found.probes) and data["slo_s"] == {"ttft": 0.3}
    assert isinstance(found, Capacity) and "capacity" in str(found)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"attainment": 1.0}, "attainment is a share between 0 and 1"),
        ({"attainment": 99}, "write 0.99 for 99 %"),
        ({"tolerance": 0}, "tolerance is a share"),
        ({"runs": 0}, "runs must be"),
        ({"requests": 1}, "requests must be"),
        ({"scaling": "magic"}, "scaled by speed or thinning"),
        ({"warmup": 1.0}, "warmup is a share"),
        ({"processes": 0}, "processes must be"),
        ({"confidence": 2}, "confidence is a share"),
        ({"processes": 10**6}, "processes must be"),
        ({"burst": (3, 60)}, r"a burst is a planning\.Burst"),
        ({"burst": Burst(2, 1), "recovery": -1}, "recovery must be at least 0"),
        ({"seed": -1}, "a seed is"),
    ],
)
def test_hostile_arguments_are_named(wrong, says):
    with pytest.raises(UnderloadError, match=says):
        capacity(CHAT, Slo(ttft=1.0), ENGINE, **({"requests": 50, "runs": 1} | wrong))


def test_hostile_slos_systems_and_functions_are_named():
    with pytest.raises(UnderloadError, match=r"the SLO is a metrics\.Slo"):
        capacity(CHAT, {"ttft": 1}, ENGINE)
    with pytest.raises(UnderloadError, match=r"the system is a planning\.System"):
        capacity(CHAT, Slo(ttft=1.0), STEP)
    with pytest.raises(UnderloadError, match="cannot be sent to another process"):
        capacity(CHAT, Slo(ttft=1.0), System(EngineReplica(lambda plan: 0.01)), processes=2)
    with pytest.raises(UnderloadError, match="the pool holds"):
        capacity(Workload(Poisson(1.0), Lengths(FixedTokens(900), FixedTokens(9))), Slo(ttft=1.0),
                 System(EngineReplica(STEP, small_pool)), requests=20)  # fmt: skip
