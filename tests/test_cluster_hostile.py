"""The cluster under hostile input: what is no replica, router or policy; policies that forget, repeat and lie; and
random programs of sends, cancels and answers, after which nobody is lost and all service is accounted for."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from underload.cache import BlockPool
from underload.queueing import Deterministic, Empirical, Exponential
from underload.request import UnderloadError
from underload.scheduling import Scheduler
from underload.simulation import (
    Attempt,
    Call,
    EngineReplica,
    Episodes,
    Failures,
    FanOut,
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
    Sending,
    StationReplica,
    Steady,
    Tied,
    simulate_cluster,
)
from underload.workload import Planned

PLAN = [Planned(float(index), 1, 3, index) for index in range(5)]
HALF = StationReplica(Deterministic(0.5))
ENGINE = EngineReplica(LinearStepTime(0.01, 1e-4))


@pytest.mark.parametrize("replicas", [[], (), None, HALF, [HALF, None], [StationReplica], "ab", {HALF}, iter([HALF])])
def test_what_are_no_replicas_is_named(replicas):
    with pytest.raises(UnderloadError, match="replicas are descriptions"):
        simulate_cluster(PLAN, replicas)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"router": Random}, r"make one: Random\("),
        ({"router": 3}, "router is an object"),
        ({"sending": Once}, r"make one: Once\("),
        ({"sending": "once"}, "sending is an object"),
        ({"door": lambda request, front: None}, "door is an object"),
        ({"patience": 0.0}, "patience"),
        ({"patience": math.nan}, "patience"),
        ({"patience": "1"}, "patience"),
        ({"seed": -1}, "seed"),
        ({"seed": 0.5}, "seed"),
    ],
)
def test_what_is_no_option_is_named(options, name):
    with pytest.raises(UnderloadError, match=name):
        simulate_cluster(PLAN, [HALF], **options)


@pytest.mark.parametrize(
    "make",
    [
        lambda: StationReplica(0.5),
        lambda: StationReplica(Exponential(1.0), common=1.0),
        lambda: StationReplica(Exponential(1.0), discipline="ps", slowness=Steady(2.0)),
        lambda: simulate_cluster(PLAN, [StationReplica(Exponential(1.0), servers=0)]),
        lambda: simulate_cluster(PLAN, [StationReplica(Exponential(1.0), discipline="first")]),
        lambda: simulate_cluster(PLAN, [StationReplica(Exponential(1.0), buffer=-1)]),
        lambda: simulate_cluster(PLAN, [EngineReplica(LinearStepTime(0.01, 1e-4), max_tokens=2)]),
        lambda: simulate_cluster(PLAN + PLAN, [HALF]),
        lambda: Hedge(-1.0),
        lambda: Hedge(math.inf),
        lambda: Hedge("1"),
        lambda: Hedge(1.0, most=0),
        lambda: Hedge(1.0, budget=-0.1),
        lambda: Hedge(1.0, until="the end"),
        lambda: Retry(0.0),
        lambda: Retry(1.0, attempts=0),
        lambda: Retry(1.0, backoff=-1.0),
        lambda: Retry(1.0, until="the end"),
        lambda: Tied(1),
        lambda: Tied(message=-1.0),
        lambda: FanOut(0),
        lambda: FanOut(2, needed=3),
        lambda: FanOut(2, needed=0),
        lambda: PowerOfChoices(0),
        lambda: PrefixAffine(limit=0.5),
        lambda: PrefixAffine(block_size=0),
    ],
)
def test_what_a_description_or_a_policy_cannot_be_is_named(make):
    with pytest.raises(UnderloadError):
        make()


@pytest.mark.parametrize("delay", [lambda call: math.nan, lambda call: -1.0, lambda call: "1"])
def test_a_function_that_says_no_time_is_named(delay):
    with pytest.raises(UnderloadError, match="a delay is a number"):
        simulate_cluster(PLAN, [HALF] * 2, sending=Hedge(delay))
    failing = StationReplica(Deterministic(0.5), failures=Failures([(0.0, 9.0)], notice=9.0))
    with pytest.raises(UnderloadError, match="a delay is a number"):
        simulate_cluster(PLAN, [failing], sending=Retry(None, backoff=delay))


class Slow:
    def __init__(self, end: float) -> None:
        self._end = end

    def end(self, start: float, work: float) -> float:
        return self._end


def test_a_slowness_that_lies_stops_the_run_or_fails_the_requests():
    for end in (math.nan, -1.0):
        with pytest.raises(UnderloadError, match="never goes back"):
            simulate_cluster(PLAN, [StationReplica(Deterministic(0.5), slowness=Slow(end))])
    # An engine takes it for a step that failed, tries again, and gives the request up, by name.
    run = simulate_cluster(PLAN, [EngineReplica(LinearStepTime(0.01, 1e-4), slowness=Slow(math.nan))])
    assert run.count("failed") == 5 and all("took nan s" in (call.error or "") for call in run.calls)


# ---- policies that do not do what they should ------------------------------------------------------------------------


class Forgets(Sending):
    """Sends, and does nothing with the answer."""

    def begin(self, call: Call) -> None:
        call.send()

    def finished(self, call: Call, attempt: Attempt) -> None:
        pass


class Silent(Sending):
    def begin(self, call: Call) -> None:
        pass


@pytest.mark.parametrize("sending", [Forgets(), Silent()])
@pytest.mark.parametrize("replica", [HALF, ENGINE])
def test_a_policy_that_leaves_calls_without_an_outcome_is_named(sending, replica):
    with pytest.raises(UnderloadError, match=f"5 calls have no outcome: {type(sending).__name__}"):
        simulate_cluster(PLAN, [replica], sending=sending)
    # A client that gives up ends them.
    run = simulate_cluster(PLAN, [replica], sending=type(sending)(), patience=1.0)
    assert run.count("abandoned") == 5 and run.latencies == []


class Mixed(Sending):
    """Answers every call with the first attempt of all."""

    def __init__(self) -> None:
        self.first: Attempt | None = None

    def begin(self, call: Call) -> None:
        attempt = call.send()
        self.first = self.first or attempt

    def finished(self, call: Call, attempt: Attempt) -> None:
        call.answer(self.first)


def test_an_answer_is_the_calls_own():
    with pytest.raises(UnderloadError, match="for request 0 does not answer request 1"):
        simulate_cluster(PLAN, [HALF], sending=Mixed())


class Door:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def admit(self, request: Planned, front: Any) -> Any:
        return self.answer


def test_a_door_lets_in_the_request_or_what_has_its_index():
    for answer in (PLAN[3], 3, True):
        with pytest.raises(UnderloadError, match="keep its index"):
            simulate_cluster(PLAN[:1], [HALF], door=Door(answer))
    run = simulate_cluster(PLAN, [HALF], door=Door(None))
    assert run.count("refused") == 5 and run.attempts == [] and run.error_rate is None and run.extra_load == 0.0


class FailsAtOnce(Sending):
    def begin(self, call: Call) -> None:
        call.fail("not today")


def test_a_part_that_fails_at_once_ends_the_call_and_no_other_is_asked_for():
    run = simulate_cluster(PLAN, [HALF] * 3, sending=FanOut(3, FailsAtOnce()))
    assert run.count("failed") == 5 and run.attempts == []
    assert [(len(call.leaves), call.error) for call in run.calls] == [(1, "not today")] * 5


class Raises(Sending):
    def begin(self, call: Call) -> None:
        raise ZeroDivisionError("mine")


def test_what_a_policy_raises_comes_out():
    with pytest.raises(ZeroDivisionError, match="mine"):
        simulate_cluster(PLAN, [HALF], sending=Raises())


# ---- edges -----------------------------------------------------------------------------------------------------------


def test_nothing_comes_and_nothing_is_wrong():
    run = simulate_cluster([], [HALF, ENGINE])
    assert run.calls == run.attempts == run.latencies == run.timelines == []
    assert run.extra_load == run.extra_work == 0.0 and run.error_rate is None


def test_a_thousand_at_one_instant_and_services_of_no_time():
    plan = [Planned(0.0, 1, 1, index) for index in range(1_000)]
    law = Empirical([0.0, 0.0, 0.001])
    for sending in (Once(), Hedge(0.0), Tied(2), FanOut(3), Retry(0.001)):
        run = simulate_cluster(plan, [StationReplica(law)] * 3, router=RoundRobin(), sending=sending)
        assert run.count("answered") + run.count("failed") == 1_000
        assert all(latency >= 0 for latency in run.latencies)


def test_where_nothing_is_up_calls_fail_at_once_and_do_not_hang():
    down = StationReplica(Deterministic(0.5), failures=Failures([(0.0, math.inf)]))
    for sending in (Once(), Hedge(0.1), Tied(), FanOut(2), Retry(1.0, attempts=3)):
        run = simulate_cluster(PLAN, [down] * 2, sending=sending)
        assert run.count("failed") == 5 and run.latencies == []
        assert [call.ended for call in run.calls] == [call.arrival for call in run.calls]
        assert run.error_rate == 1.0


def test_an_engine_that_comes_back_looks_as_empty_as_it_is():
    # It went down with long prompts in its blocks; what comes after goes there, since the other is in use.
    def small() -> Scheduler:
        return Scheduler(BlockPool(100, 16))

    def engine(failures: Failures | None = None) -> EngineReplica:
        return EngineReplica(LinearStepTime(0.01, 1e-4), small, failures=failures)

    early = [Planned(0.001 * index, 700, 400, index) for index in range(4)]
    late = [Planned(3.0 + 0.001 * index, 100, 10, 4 + index) for index in range(3)]
    replicas = [engine(Failures([(1.0, 2.0)])), engine()]
    run = simulate_cluster([*early, *late], replicas, router=LeastKvUsed())
    assert run.count("failed") == 2 and [call.attempts[0].replica for call in run.calls[4:]] == [0, 0, 0]


def test_more_copies_than_replicas_are_sent_to_the_same_ones_again():
    run = simulate_cluster(PLAN, [HALF] * 2, sending=Tied(5, message=0.1))
    assert run.count("answered") == 5 and len(run.attempts) == 25
    assert run.extra_load == 4.0


def test_a_retry_storm_ends():
    # Nothing is ever in time, and nobody cancels: every attempt is worked off for nobody.
    run = simulate_cluster(PLAN, [StationReplica(Deterministic(5.0))], sending=Retry(0.1, attempts=9, cancels=False))
    assert run.count("failed") == 5 and len(run.attempts) == 45
    assert run.replicas[0].busy == pytest.approx(45 * 5.0) and run.extra_work == 1.0


# ---- random programs -------------------------------------------------------------------------------------------------


class Program(Sending):
    """Does at random whatever a policy may do, from a seed of its own."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def begin(self, call: Call) -> None:
        call.after(float(self.rng.exponential(2.0)), self._act, call)
        call.after(60.0, call.abandon)  # whatever is left open ends
        if not self._maybe(0.1):
            call.send()  # it may start at once, and be told

    def started(self, call: Call, attempt: Attempt) -> None:
        assert attempt.inside and attempt.started == call.now
        if self._maybe(0.3):
            self._act(call)

    def first_token(self, call: Call, attempt: Attempt) -> None:
        assert attempt.inside and not call.over
        if self._maybe(0.2):
            self._act(call)

    def finished(self, call: Call, attempt: Attempt) -> None:
        assert not attempt.inside and not call.over
        if self._maybe(0.8):
            call.answer(attempt)

    def failed(self, call: Call, attempt: Attempt) -> None:
        assert attempt.state in ("failed", "refused") and not call.over
        if self._maybe(0.5):
            self._act(call)

    def leaf_answered(self, call: Call, leaf: Call) -> None:
        if self._maybe(0.5):
            call.answer(None)

    def leaf_failed(self, call: Call, leaf: Call) -> None:
        pass

    def _act(self, call: Call) -> None:
        if call.over:
            return
        deed = int(self.rng.integers(7))
        if deed == 0 and len(call.attempts) < 8:
            call.send(avoid=[0] if self._maybe(0.5) else ())
        elif deed == 1 and call.inside:
            call.cancel(call.inside[0], float(self.rng.choice([0.0, 0.3])))
        elif deed == 2 and call.inside:
            call.front.orphan(call.inside[-1])
        elif deed == 3:
            call.after(float(self.rng.choice([0.0, 0.7])), self._act, call)
        elif deed == 4 and call.parent is None and len(call.leaves) < 3:
            call.leaf(Once())
        elif deed == 5 and self._maybe(0.3):
            call.fail("enough")
        elif deed == 6 and call.inside and self._maybe(0.3):
            call.answer(call.inside[0])

    def _maybe(self, chance: float) -> bool:
        return bool(self.rng.random() < chance)


@st.composite
def clusters(draw):
    def one() -> StationReplica | EngineReplica:
        slow = draw(st.sampled_from([None, Steady(1.5), Episodes([1.0, 6.0], [2.0, 1.0], math.inf)]))
        down = draw(st.sampled_from([None, Failures([(2.0, 3.5)], notice=0.5), Failures([(4.0, math.inf)])]))
        if draw(st.booleans()):
            return EngineReplica(LinearStepTime(0.05, 0.002), slowness=slow, failures=down)
        shared = draw(st.booleans())
        return StationReplica(
            draw(st.sampled_from([Deterministic(0.5), Exponential(0.7), Empirical([0.0, 1.0])])),
            servers=draw(st.integers(1, 2)),
            discipline="ps" if shared else draw(st.sampled_from(["fcfs", "lifo", "sjf"])),
            buffer=draw(st.sampled_from([None, 0, 2])),
            slowness=None if shared else slow,
            failures=down,
        )

    return [one() for _ in range(draw(st.integers(1, 4)))]


routers = st.sampled_from([Random, RoundRobin, JoinShortestQueue, PowerOfChoices, PrefixAffine])


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(clusters(), routers, st.integers(0, 10**6), st.sampled_from([None, 1.5]))
def test_after_any_program_nobody_is_lost_and_all_service_is_accounted_for(replicas, router, seed, patience):
    rng = np.random.default_rng(seed)
    arrivals = np.sort(np.round(rng.random(25) * 8, 1))  # some at one instant
    plan = [
        Planned(at, 1 + int(rng.integers(9)), 1 + int(rng.integers(5)), i) for i, at in enumerate(arrivals.tolist())
    ]
    run = simulate_cluster(plan, replicas, router=router(), sending=Program(seed), patience=patience, seed=seed)

    assert [call.request.index for call in run.calls] == list(range(25))
    assert sum(map(run.count, ("answered", "failed", "refused", "abandoned"))) == 25
    for call in run.calls:
        assert (call.latency is not None) == (call.outcome == "answered")
        assert call.ended is not None and call.ended >= call.arrival
        assert patience is None or call.ended <= call.arrival + patience + 1e-9
        for attempt in [*call.attempts, *(a for leaf in call.leaves for a in leaf.attempts)]:
            assert call.arrival <= attempt.sent <= attempt.ended
            assert attempt.started is None or attempt.sent <= attempt.started
    parts = [call for root in run.calls for call in (root, *root.leaves)]
    assert sum(len(call.attempts) for call in parts) == len(run.attempts)
    assert {attempt.state for attempt in run.attempts} <= {"answered", "cancelled", "failed", "refused"}
    # Nothing finishes where a replica is down, and no station serves longer than its servers are there.
    for attempt in run.attempts:
        failures = replicas[attempt.replica].failures if attempt.replica >= 0 else None
        if failures is not None and attempt.state == "answered":
            begun = attempt.started if attempt.started is not None else attempt.sent
            assert not any(begun < begin < attempt.ended for begin, _ in failures.down)
    for index, (replica, ran) in enumerate(zip(replicas, run.replicas)):
        there = [attempt for attempt in run.attempts if attempt.replica == index]
        assert ran.attempts == len(there)
        if isinstance(replica, StationReplica):
            assert ran.busy == pytest.approx(sum(attempt.work for attempt in there))
