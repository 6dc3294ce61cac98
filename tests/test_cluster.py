"""The front door and the replicas behind it: one replica is the engine itself, and no copy is lost or counted twice."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from underload.cache import BlockPool
from underload.metrics import Slo, attainment
from underload.queueing import Deterministic, Exponential
from underload.request import UnderloadError
from underload.scheduling import Continuous, Greedy, Scheduler, Shedding, SizeOrTimeout, Static
from underload.simulation import (
    Call,
    ClusterRun,
    EngineReplica,
    Episodes,
    Failures,
    FanOut,
    Front,
    Hedge,
    JoinShortestQueue,
    LeastKvUsed,
    LinearStepTime,
    Once,
    PowerOfChoices,
    PrefixAffine,
    Random,
    Retry,
    RoundRobin,
    Router,
    Sending,
    StationReplica,
    Steady,
    Tied,
    simulate,
    simulate_cluster,
    simulate_serving,
)
from underload.simulation.replicas import EngineServer
from underload.workload import (
    Conversations,
    FixedTokens,
    GeometricTokens,
    Lengths,
    Planned,
    Poisson,
    Workload,
)

STEP = LinearStepTime(0.01, 0.0005, 1e-7)
ONE = Lengths(FixedTokens(1), FixedTokens(1))
POLICIES: dict[str, Any] = {
    "continuous": Continuous,
    "whole prompts": partial(Continuous, chunked_prefill=False),
    "static": partial(Static, 4),
    "size or timeout": partial(SizeOrTimeout, 8, 0.05),
    "greedy": partial(Greedy, 8),
}


def served(rate: float = 8.0, horizon: float = 20.0, seed: int = 1, **options: Any) -> list[Planned]:
    return Workload(Poisson(rate), Lengths(GeometricTokens(60), GeometricTokens(20)), **options).plan(
        seed, horizon=horizon
    )


def at(*instants: float) -> list[Planned]:
    return [Planned(instant, 1, 1, index=i) for i, instant in enumerate(instants)]


def scheduler(batching: Any = Continuous, blocks: int = 1000, **options: Any) -> Scheduler:
    return Scheduler(BlockPool(blocks, 16), batching=batching(), **options)


def times(run: ClusterRun) -> list[list[float]]:
    return [call.timeline.token_times for call in run.calls]


# ---- one replica is the thing itself ---------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("blocks", [1000, 40])
def test_a_cluster_of_one_is_the_engine_record_for_record(policy: str, blocks: int) -> None:
    planned = served()
    plan = [request for request in planned if request.prompt_tokens + request.output_tokens < 16 * 40]
    plan = [replace(request, index=i) for i, request in enumerate(plan)]
    options = {"pool": BlockPool(blocks, 16), "batching": POLICIES[policy]()}
    alone = simulate_serving(plan, STEP, seed=3, **options)
    made = partial(scheduler, POLICIES[policy], blocks)
    run = simulate_cluster(plan, [EngineReplica(STEP, made)], seed=3)
    assert run.replicas[0].steps == alone.steps
    assert times(run) == [timeline.token_times for timeline in alone.timelines]
    assert [call.timeline.scheduled for call in run.calls] == [timeline.scheduled for timeline in alone.timelines]
    winners = [call.winner for call in run.calls]
    assert [w.request.sequences[0].tokens for w in winners if w and w.request] == [
        request.sequences[0].tokens for request in alone.requests
    ]


def test_a_cluster_of_one_is_the_engine_with_conversations_and_a_prefix_cache() -> None:
    talk = Conversations(turns=GeometricTokens(3), think=1.0, system=40)
    planned = Workload(Poisson(2.0), Lengths(GeometricTokens(60), GeometricTokens(20)), prompts=talk).plan(
        5, horizon=20.0
    )
    assert any(request.think is not None for request in planned)
    alone = simulate_serving(planned, STEP, pool=BlockPool(4000, 16), seed=3)
    run = simulate_cluster(planned, [EngineReplica(STEP, partial(scheduler, blocks=4000))], seed=3)
    assert run.replicas[0].steps == alone.steps
    assert len(run.calls) == len(planned)
    cached = [timeline.cached_tokens for timeline in alone.timelines]
    assert [call.timeline.cached_tokens for call in run.calls] == cached and sum(cached) > 0


def test_a_cluster_of_one_is_the_engine_when_it_is_slow() -> None:
    planned, slow = served(20.0, 8.0), Episodes((1.0, 4.0), (1.5, 0.2), factor=3.0)
    alone = simulate_serving(planned, STEP, pool=BlockPool(4000, 16), seed=3, slowness=slow)
    run = simulate_cluster(planned, [EngineReplica(STEP, partial(scheduler, blocks=4000), slowness=slow)], seed=3)
    assert run.replicas[0].steps == alone.steps
    even = simulate_serving(planned, STEP, pool=BlockPool(4000, 16), seed=3)
    assert max(step.duration for step in alone.steps) > 2 * max(step.duration for step in even.steps)
    with pytest.raises(UnderloadError, match=r"such as Steady\(2.0\), got 3"):
        simulate_serving(planned, STEP, slowness=3)  # type: ignore[arg-type]


def test_a_station_behind_the_door_is_the_station() -> None:
    planned = Workload(Poisson(0.8), ONE).plan(7, horizon=2_000)
    alone = simulate(arrivals=[request.arrival for request in planned], service=Exponential(1.0), seed=7)
    run = simulate_cluster(planned, [StationReplica(Exponential(1.0))], seed=7)
    assert run.latencies == (alone.finish - alone.arrival).tolist()
    assert run.replicas[0].busy == pytest.approx(alone.service.sum())


@pytest.mark.parametrize(
    "sending", [Once(), Hedge(0.4), Tied(message=0.002), FanOut(2)], ids=lambda one: type(one).__name__
)
def test_joining_like_steps_changes_nothing(sending: Sending, monkeypatch: pytest.MonkeyPatch) -> None:
    planned, replicas = served(30.0, 8.0), [EngineReplica(STEP, partial(scheduler, blocks=120))] * 3
    joined = simulate_cluster(planned, replicas, sending=sending, seed=2)
    boot = EngineServer.boot

    def single(self: EngineServer) -> None:
        boot(self)
        self.engine.join_steps = False

    monkeypatch.setattr(EngineServer, "boot", single)
    stepped = simulate_cluster(planned, replicas, sending=sending, seed=2)
    assert times(joined) == times(stepped)
    assert [one.steps for one in joined.replicas] == [one.steps for one in stepped.replicas]
    spent = [attempt.work for attempt in stepped.attempts]
    assert [attempt.work for attempt in joined.attempts] == spent
    assert [attempt.kv_seconds for attempt in joined.attempts] == pytest.approx(
        [a.kv_seconds for a in stepped.attempts]
    )


# ---- nobody is lost --------------------------------------------------------------------------------------------------

ROUTERS: list[Any] = [Random, RoundRobin, JoinShortestQueue, PowerOfChoices, LeastKvUsed, PrefixAffine]
SENDINGS: dict[str, Any] = {
    "once": Once,
    "hedge": partial(Hedge, 0.3),
    "hedge on the first token": partial(Hedge, 0.05, until="first token", most=2),
    "within a budget": partial(Hedge, 0.1, budget=0.05),
    "tied": Tied,
    "tied, with a message": partial(Tied, 3, message=0.004),
    "retry": partial(Retry, 0.8, attempts=4, backoff=0.1),
    "retry and work on": partial(Retry, 0.8, cancels=False),
    "fan out": partial(FanOut, 3),
    "fan out, two of three, hedged": partial(FanOut, 3, Hedge(0.2), needed=2),
}


@pytest.mark.parametrize("router", ROUTERS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("sending", SENDINGS)
def test_every_call_ends_once_and_every_copy_somewhere(
    router: Any, sending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Front] = []
    run_front = Front.run
    monkeypatch.setattr(Front, "run", lambda self: (seen.append(self), run_front(self))[1])
    planned = served(25.0, 6.0)
    down = Failures(((2.0, 3.0),), notice=0.2)
    replicas = [
        EngineReplica(STEP, partial(scheduler, blocks=120)),
        EngineReplica(STEP, partial(scheduler, blocks=80), slowness=Steady(2.0)),
        EngineReplica(STEP, partial(scheduler, blocks=120), failures=down),
        StationReplica(Exponential(0.1), servers=2, buffer=5),
    ]
    run = simulate_cluster(planned, replicas, router=router(), sending=SENDINGS[sending](), patience=8.0, seed=4)
    assert [call.request.index for call in run.calls] == [request.index for request in planned]
    assert sum(map(run.count, ("answered", "failed", "refused", "abandoned"))) == len(planned)
    assert len(run.latencies) == run.count("answered")
    assert all(
        not attempt.inside and attempt.ended is not None and attempt.ended >= attempt.sent for attempt in run.attempts
    )
    assert sum(one.attempts for one in run.replicas) == sum(attempt.replica >= 0 for attempt in run.attempts)
    answered = sum(attempt.state == "answered" for attempt in run.attempts)
    assert answered >= run.count("answered") if "fan" in sending else answered == run.count("answered")
    (front,) = seen
    for server in front.servers:
        assert server.inside == server.waiting == 0
        if isinstance(server, EngineServer):
            server.engine.run()  # what was cancelled last
            assert server.engine.scheduler.pool.num_used == 0 and server.engine.scheduler.idle


def test_two_runs_are_one_and_another_policy_meets_the_same_load() -> None:
    planned, replicas = Workload(Poisson(2.0), ONE).plan(1, horizon=200.0), [StationReplica(Exponential(1.0))] * 4

    def of(sending: Sending) -> ClusterRun:
        return simulate_cluster(planned, replicas, sending=sending, seed=9)

    assert of(Hedge(1.0)).latencies == of(Hedge(1.0)).latencies
    first = {call.request.index: call.attempts[0] for call in of(Once()).calls}
    for call in of(Hedge(2.0)).calls:
        if call.winner is call.attempts[0]:
            assert call.winner.work == pytest.approx(first[call.request.index].work)


# ---- policies, by hand -----------------------------------------------------------------------------------------------


def test_a_hedge_waits_its_delay_goes_elsewhere_and_the_first_answer_counts() -> None:
    slow, fast = StationReplica(Deterministic(0.1)), StationReplica(Deterministic(0.03))
    run = simulate_cluster(at(0.0), [slow, fast], router=RoundRobin(), sending=Hedge(0.02))
    (call,) = run.calls
    assert call.latency == pytest.approx(0.05) and call.winner is call.attempts[1]
    assert [attempt.replica for attempt in call.attempts] == [0, 1]
    assert [attempt.state for attempt in call.attempts] == ["cancelled", "answered"]
    assert call.attempts[0].work == pytest.approx(0.05)  # its server is free when the answer is there
    assert run.extra_load == 1.0 and run.extra_work == pytest.approx(5 / 8) and run.error_rate == 0.0


def test_a_budget_is_never_exceeded() -> None:
    planned = Workload(Poisson(5.0), ONE).plan(1, horizon=200.0)
    run = simulate_cluster(planned, [StationReplica(Exponential(0.1))] * 4, sending=Hedge(0.05, budget=0.1), seed=1)
    assert 0.09 < run.extra_load <= 0.1


def test_tied_copies_start_once_but_for_the_message() -> None:
    planned = Workload(Poisson(12.0), ONE).plan(1, horizon=200.0)
    replicas = [StationReplica(Exponential(0.25))] * 4
    told = simulate_cluster(planned, replicas, sending=Tied(), seed=1)
    assert all(sum(attempt.started is not None for attempt in call.attempts) == 1 for call in told.calls)
    assert told.extra_work == 0.0
    late = simulate_cluster(planned, replicas, sending=Tied(message=0.05), seed=1)
    both = [call for call in late.calls if all(attempt.started is not None for attempt in call.attempts)]
    assert both and all(abs(call.attempts[0].started - call.attempts[1].started) <= 0.05 + 1e-9 for call in both)  # type: ignore[operator]


def test_a_copy_that_nobody_waits_for_keeps_its_server_unless_it_is_taken_back() -> None:
    one = [StationReplica(Deterministic(1.0))]
    for cancels, latency in ((True, 1.5), (False, 2.0)):
        run = simulate_cluster(at(0.0), one, sending=Retry(0.5, attempts=2, cancels=cancels), seed=0)
        # Taken back, the second begins at 0.5 and is cut off again at 1.0; left, it waits until 1.0.
        assert run.count("failed") == 1 and run.calls[0].ended == 1.0, latency
        assert run.replicas[0].busy == (1.0 if cancels else 2.0)


def test_fan_out_answers_with_the_last_part_or_with_enough_of_them() -> None:
    replicas = [StationReplica(Deterministic(float(k))) for k in (1, 2, 3)]
    for needed, latency in ((None, 3.0), (2, 2.0), (1, 1.0)):
        run = simulate_cluster(at(0.0), replicas, sending=FanOut(3, needed=needed))
        assert run.latencies == [latency]
        assert sorted(attempt.replica for attempt in run.attempts) == [0, 1, 2]
        assert run.extra_load == 0.0  # three parts, each sent once


def test_a_door_turns_away_or_asks_for_less() -> None:
    class Strict:
        def admit(self, request: Planned, front: Front) -> Planned | None:
            return None if request.index % 2 else replace(request, output_tokens=1)

    planned = served(5.0, 4.0)
    run = simulate_cluster(planned, [EngineReplica(STEP)], door=Strict())
    assert run.count("refused") == len(planned) // 2
    assert all(len(call.timeline.token_times) == 1 for call in run.calls if call.outcome == "answered")
    assert attainment(run.timelines, Slo(e2e=100.0)) == run.count("answered") / len(planned)


def test_what_an_engine_sheds_is_refused() -> None:
    made = partial(scheduler, max_num_seqs=1, shedding=None)

    def shedding() -> Scheduler:
        return scheduler(max_num_seqs=1, shedding=Shedding(max_queue=1))

    planned = [Planned(0.001 * i, 10, 10, index=i) for i in range(6)]
    assert simulate_cluster(planned, [EngineReplica(STEP, made)]).count("answered") == 6
    run = simulate_cluster(planned, [EngineReplica(STEP, shedding)])
    assert run.count("refused") == 4 and run.error_rate == pytest.approx(4 / 6)


def test_patience_takes_everything_back() -> None:
    run = simulate_cluster(at(0.0, 0.1), [StationReplica(Deterministic(1.0))], patience=0.5)
    assert run.count("abandoned") == 2 and run.replicas[0].busy == pytest.approx(0.5 + 0.1)
    assert [timeline.finish_reason for timeline in run.timelines] == ["cancelled"] * 2


def test_a_failure_takes_those_inside_and_until_it_is_noticed_those_who_are_sent_there() -> None:
    replicas = [StationReplica(Deterministic(1.0), failures=Failures(((0.5, 10.0),), notice=1.0))]
    run = simulate_cluster(at(0.0, 1.0, 2.0, 11.0), replicas)
    assert [call.outcome for call in run.calls] == ["failed", "failed", "failed", "answered"]
    assert [call.error for call in run.calls[:3]] == [
        "the replica went down", "the replica is down", "no replica is up",
    ]  # fmt: skip
    assert [call.ended for call in run.calls] == [0.5, 1.0, 2.0, 12.0]


def test_an_engine_that_comes_back_has_forgotten_its_cache() -> None:
    planned = [Planned(t, 160, 4, index=i, session="a", turn=i) for i, t in enumerate((0.0, 1.0, 3.0, 4.0))]
    segments = [replace(one, segments=()) for one in planned]
    same = [replace(one, segments=(planned_segment(160),)) for one in segments]
    run = simulate_cluster(same, [EngineReplica(STEP, failures=Failures(((2.0, 2.5),)))])
    assert [call.timeline.cached_tokens > 0 for call in run.calls] == [False, True, False, True]


def planned_segment(tokens: int) -> Any:
    from underload.workload import Segment

    return Segment("system", tokens)


# ---- policies of one's own -------------------------------------------------------------------------------------------


class FirstTwo(Sending):
    """Sends two at once, answers with the second to finish."""

    def begin(self, call: Call) -> None:
        call.state = 0
        call.send()
        call.send()

    def finished(self, call: Call, attempt: Any) -> None:
        call.state += 1
        if call.state == 2:
            call.answer(attempt)


def test_a_policy_of_ones_own_is_a_small_class() -> None:
    replicas = [StationReplica(Deterministic(1.0)), StationReplica(Deterministic(3.0))]
    run = simulate_cluster(at(0.0), replicas, sending=FirstTwo())
    assert run.latencies == [3.0]


def test_a_policy_that_acts_on_a_call_that_is_over_is_told() -> None:
    class Twice(Once):
        def finished(self, call: Call, attempt: Any) -> None:
            call.answer(attempt)
            call.answer(attempt)

    with pytest.raises(UnderloadError, match="request 0 is over"):
        simulate_cluster(at(0.0), [StationReplica(Deterministic(1.0))], sending=Twice())


def test_a_router_that_chooses_what_is_no_candidate_is_told() -> None:
    class Wild(Router):
        def choose(self, call: Call, replicas: Any, rng: Any) -> Any:
            return None

    with pytest.raises(UnderloadError, match="Wild chose None"):
        simulate_cluster(at(0.0), [StationReplica(Deterministic(1.0))], router=Wild())


def test_a_prefix_goes_where_it_was_unless_that_is_overloaded() -> None:
    same = [replace(one, segments=(planned_segment(64),)) for one in (Planned(0.0, 64, 1, index=i) for i in range(12))]
    replicas = [StationReplica(Deterministic(1.0), servers=12)] * 3
    kept = simulate_cluster(same, replicas, router=PrefixAffine(slack=100))
    assert max(one.attempts for one in kept.replicas) == 12
    spread = simulate_cluster(same, replicas, router=PrefixAffine(limit=1.0, slack=0))
    assert max(one.attempts for one in spread.replicas) == 4
