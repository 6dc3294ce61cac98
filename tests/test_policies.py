"""The scheduler's policies: what each decides, that nobody is lost, and that both executors get the same plans."""

from __future__ import annotations

import itertools
import math
from statistics import NormalDist

import pytest
from paper_model import PaperExecutor, alone, check_books, request

from underload.cache import BlockPool, HostPool, ReservingPool
from underload.engine import Engine
from underload.request import FinishReason, InvalidRequest, UnderloadError, VirtualClock
from underload.scheduling import (
    Batching,
    Cheapest,
    Continuous,
    Deadline,
    FairShare,
    FirstCome,
    FitsNow,
    Greedy,
    Idle,
    LastArrived,
    LeastComputed,
    MaxTokens,
    Noisy,
    Oracle,
    PredictedPeak,
    Priority,
    ReserveAll,
    Scheduler,
    Shedding,
    ShortestFirst,
    SizeOrTimeout,
    Static,
    Watermark,
)
from underload.simulation import CostModelExecutor, LinearStepTime, ReplayStepTime

BLOCK = 4

BATCHINGS = {
    "continuous": Continuous,
    "mixed": lambda: Continuous(prefill="mixed"),
    "prefill-first": lambda: Continuous(prefill="prefill-first"),
    "whole prompts": lambda: Continuous(chunked_prefill=False),
    "static": lambda: Static(3),
    "size or timeout": lambda: SizeOrTimeout(3, 2.5),
    "greedy": lambda: Greedy(3),
}
ORDERS = {
    "first come": FirstCome,
    "shortest first": lambda: ShortestFirst(aging=1.0),
    "priority": Priority,
    "deadline": Deadline,
    "fair share": lambda: FairShare({"b": 2.0}),
}
ADMISSIONS = {
    "fits now": FitsNow,
    "reserve all": ReserveAll,
    "watermark": lambda: Watermark(0.2),
    "predicted peak": lambda: PredictedPeak(MaxTokens()),
}
VICTIMS = {"last arrived": LastArrived, "least computed": LeastComputed, "cheapest": Cheapest}


def engine_of(num_blocks: int = 64, executor=None, **options) -> Engine:
    scheduler = Scheduler(BlockPool(num_blocks, BLOCK), **options)
    return Engine(scheduler, executor or PaperExecutor(num_blocks, BLOCK), VirtualClock())


def several(count: int = 9) -> list:
    """Requests of all kinds, none of which says more than `max_tokens` on paper."""
    made = []
    for i in range(count):
        prompt = [7, 3, 9, 1, 4][: i % 6] + [i + 1] * (1 + i * 5 % 11)
        more = {"tenant": "ab"[i % 2], "priority": i % 3, "deadline": 30.0 - i}
        made.append(request(str(i), prompt, 1 + i * 7 % 12, n=1 + (i == 4), arrival=i * 1.5, **more))
    return made


def run(engine: Engine, requests: list) -> list:
    for one in requests:
        engine.add(one)
    while engine.step():
        check_books(engine.scheduler)
    return requests


def sized(engine: Engine) -> list[tuple]:
    return [
        (s.batch_size, s.prefill_tokens, s.decode_tokens, s.padding_tokens, s.context_tokens, s.blocks_used)
        for s in engine.steps
    ]


# ---- what holds for all --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("batching", BATCHINGS)
def test_under_every_policy_each_request_says_what_it_says_alone(batching, victim):
    for order, admission in itertools.product(ORDERS.values(), ADMISSIONS.values()):
        for blocks in (7, 40):
            policies = {"order": order(), "admission": admission(), "victim": VICTIMS[victim]()}
            engine = engine_of(blocks, batching=BATCHINGS[batching](), max_num_batched_tokens=28, **policies)
            for one in run(engine, several()):
                assert one.finished and one.error is None
                for sequence in one.sequences:
                    assert sequence.output_ids == alone(one.prompt_ids, one.params.max_tokens, sequence.index)
            assert engine.scheduler.pool.num_used == 0


class _Times:
    """One table of step times: the n-th step takes the n-th."""

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, step) -> float:
        self.steps += 1
        return 0.25 + self.steps * 7 % 5 * 0.375


class _Timed(PaperExecutor):
    """The model on paper, with the times of the table."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks, BLOCK)
        self.times = _Times()

    def execute(self, plan):
        result = super().execute(plan)
        result.duration = self.times(plan)
        return result


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("batching", BATCHINGS)
def test_an_executor_that_computes_and_one_that_models_get_the_same_plans_from_one_table_of_times(batching, order):
    plans = []
    for kind in ("real", "modelled"):
        lengths = {str(i): len(alone(one.prompt_ids, one.params.max_tokens)) for i, one in enumerate(several())}
        executor = _Timed(9) if kind == "real" else CostModelExecutor(_Times(), output_tokens=lengths)
        seen: list = []

        def note(plan, result, record, seen=seen):
            works = [(w.sequence.request.request_id, w.start, w.stop, w.samples, w.last) for w in plan.work]
            seen.append((record.start, works, len(plan.held), plan.padding_tokens, plan.copies, plan.queue_length))

        engine = engine_of(
            9, executor, batching=BATCHINGS[batching](), order=ORDERS[order](), max_num_batched_tokens=28
        )
        engine.on_step = note
        # On paper a request's samples may differ in length, which a table of lengths by request cannot say.
        run(engine, [one for one in several() if len(one.sequences) == 1])
        plans.append(seen)
    assert plans[0] == plans[1] and len(plans[0]) > 20


# ---- like steps at once ------------------------------------------------------------------------------------------


def joined_or_not(
    batching, order, blocks, size, *, caching=True, shedding=None, join=True, carry=False, swap=0, **more
) -> tuple:
    if swap:
        more |= {"preemption": "swap", "host_pool": HostPool(swap)}
    outputs = {str(i): 1 + i * 5 % 23 for i in range(14)}
    executor = CostModelExecutor(LinearStepTime(0.5, 0.01, 0.0001), output_tokens=outputs)
    scheduler = Scheduler(
        BlockPool(blocks, size, prefix_caching=caching),
        batching=BATCHINGS[batching](),
        order=ORDERS[order](),
        shedding=shedding,
        max_num_batched_tokens=60 if batching == "whole prompts" else 27,
        **more,
    )
    engine = Engine(scheduler, executor, VirtualClock())
    engine.join_steps, engine.carry = join, carry
    loops = carried = 0
    execute = executor.execute

    def counted(plan):
        nonlocal carried
        carried += len(plan.carried)
        return execute(plan)

    executor.execute = counted
    requests = []
    for i in range(14):
        prompt = [7, 3, 9, 1, 4][: i % 6] + [i // 2 + 1] * (1 + i * 5 % (11 + i % 3 * 10))
        one = request(str(i), prompt, 23, n=1 + (i % 5 == 4), arrival=i * 1.7 if i < 9 else 40.0, tenant="ab"[i % 2])
        requests.append(one)
        engine.add(one)
    while engine.step():
        loops += 1
        check_books(scheduler)
    answers = [
        (one.request_id, one.timeline, [(s.tokens, s.finish_reason, s.preemptions, s.last_turn) for s in one.sequences])
        for one in engine.finished
    ]
    return engine.steps, answers, scheduler.pool.counters, scheduler.pool.snapshot(), loops, carried


@pytest.mark.parametrize("order", ["first come", "fair share"])
@pytest.mark.parametrize("batching", BATCHINGS)
def test_like_steps_taken_at_once_leave_what_single_steps_leave(batching, order):
    joined = single = 0
    for blocks, size, caching in ((200, 4, True), (14, 4, True), (14, 4, False), (60, 1, True), (9, 16, True)):
        for more in (
            {},
            {"swap": 30},
            {"max_num_seqs": 3},
            {"shedding": Shedding(max_wait=9.0)},
            {"admission": Watermark(0.3)},
        ):
            at_once = joined_or_not(batching, order, blocks, size, caching=caching, **more)
            one_by_one = joined_or_not(batching, order, blocks, size, caching=caching, join=False, **more)
            assert at_once[:-2] == one_by_one[:-2]
            joined, single = joined + at_once[-2], single + one_by_one[-2]
    assert joined < 0.75 * single  # turns of the loop, the waits for arrivals among them


@pytest.mark.parametrize("order", ["first come", "fair share"])
@pytest.mark.parametrize("batching", BATCHINGS)
@pytest.mark.parametrize("join", [False, True])
def test_whoever_is_carried_through_a_step_ends_up_as_one_that_is_named_in_a_work(batching, order, join):
    carried = 0
    for blocks, size in ((200, 4), (14, 4), (60, 1), (9, 16)):
        for caching, more in itertools.product(
            (False, True), ({}, {"swap": 30}, {"max_num_seqs": 3}, {"shedding": Shedding(max_wait=9.0)})
        ):
            how = {"caching": caching, "join": join, **more}
            by_work = joined_or_not(batching, order, blocks, size, **how)
            by_plan = joined_or_not(batching, order, blocks, size, carry=True, **how)
            assert by_plan[:-1] == by_work[:-1] and not by_work[-1]
            carried += by_plan[-1]
    assert bool(carried) == BATCHINGS[batching]().carries(1, 1)


@pytest.mark.parametrize("placement", ["buddy", "first-fit"])
@pytest.mark.parametrize("carry", [False, True])
def test_one_that_outgrows_its_run_begins_again_also_where_steps_are_joined(placement, carry):
    def run_of(join):
        scheduler = Scheduler(ReservingPool(64, 4, placement=placement), reserve=lambda request: 8)
        engine = Engine(scheduler, CostModelExecutor(LinearStepTime(1.0, 0.01)), VirtualClock())
        engine.join_steps, engine.carry = join, carry
        found = run(engine, [request(str(i), [1] * (3 + i), 30 - 4 * i) for i in range(3)])
        check_books(scheduler)
        return engine.steps, [(one.timeline, one.sequences[0].tokens) for one in found]

    steps, answers = run_of(True)
    assert (steps, answers) == run_of(False) and all(timeline.preemptions for timeline, _ in answers)


def test_like_steps_are_joined_on_times_that_are_replayed_and_none_is_lost():
    def starts(join):
        engine = engine_of(100, CostModelExecutor(ReplayStepTime([0.25 + i % 3 * 0.125 for i in range(200)])))
        engine.join_steps = join
        run(engine, [request(str(i), [i] * 3, 9 + i, arrival=i * 2.0) for i in range(6)])
        return [(step.start, step.duration) for step in engine.steps]

    assert starts(True) == starts(False)


def test_whoever_watches_each_step_sees_each_step():
    engine = engine_of(100, CostModelExecutor(LinearStepTime(1.0, 0.0)))
    seen: list = []
    engine.on_step = lambda plan, result, record: seen.append(record)
    run(engine, [request("a", [1], 30)])
    assert seen == engine.steps and len(seen) == 30


# ---- batching ------------------------------------------------------------------------------------------------------


def modelled(batching, outputs: dict[str, int], **options) -> Engine:
    executor = CostModelExecutor(LinearStepTime(1.0, 0.0), output_tokens=outputs)
    return engine_of(200, executor, batching=batching, **options)


def test_a_static_batch_holds_rows_and_blocks_of_the_finished_to_its_end_and_pays_for_them():
    engine = modelled(Static(3), {"a": 1, "b": 4, "c": 2, "d": 1})
    several = [request(name, [1] * n, 9) for name, n in (("a", 2), ("b", 5), ("c", 3), ("d", 1))]
    run(engine, several)
    # Prompts of 2, 5 and 3 padded to 5, with 1, 2 and 3 decode rows thereafter; d follows alone.
    assert [(s.prefill_tokens, s.decode_tokens, s.padding_tokens) for s in engine.steps] == [
        (10, 0, 5), (0, 2, 1), (0, 1, 2), (0, 1, 2), (1, 0, 0),
    ]  # fmt: skip
    # The finished are read on: a's 2 keys, b's 5 + i, and c's 4 once it is done.
    assert [s.context_tokens for s in engine.steps] == [10, 2 + 6 + 4, 2 + 7 + 4, 2 + 8 + 4, 1]
    assert [s.blocks_used for s in engine.steps] == [1 + 2 + 1, 4, 4, 0, 0]  # as recorded after each step
    finished = {one.request_id: one.timeline.finished for one in several}
    assert finished == {"a": 1.0, "c": 2.0, "b": 4.0, "d": 5.0}  # each answer leaves when it is complete


def test_a_static_batch_whose_prompts_do_not_fit_one_step_goes_through_them_column_by_column():
    engine = modelled(Static(2), {"a": 1, "b": 1}, max_num_batched_tokens=4)
    run(engine, [request("a", [1] * 2, 9), request("b", [2] * 6, 9)])
    assert [(s.prefill_tokens, s.padding_tokens) for s in engine.steps] == [(2, 2), (2, 2), (4, 0)]


def test_full_batches_wait_for_company_and_the_rest_leaves_when_no_more_are_known_to_come():
    arrivals = [0.0, 3.0, 7.0]
    engine = modelled(Static(2), {})
    one = run(engine, [request(str(i), [1], 2, arrival=t) for i, t in enumerate(arrivals)])
    assert [r.timeline.scheduled for r in one] == [3.0, 3.0, 7.0]


def test_a_batch_leaves_when_it_is_full_or_when_its_first_member_has_waited_for_long_enough():
    arrivals = [0.0, 1.0, 10.0, 10.25, 10.5, 40.0]
    engine = modelled(SizeOrTimeout(3, 2.0), {})
    one = run(engine, [request(str(i), [1], 1, arrival=t) for i, t in enumerate(arrivals)])
    assert [r.timeline.scheduled for r in one] == [2.0, 2.0, 10.5, 10.5, 10.5, 40.0]
    engine = modelled(SizeOrTimeout(2, 0.0), {})
    same = run(engine, [request(str(i), [1], 1, arrival=t) for i, t in enumerate(arrivals)])
    greedy = modelled(Greedy(2), {})
    assert [r.timeline.scheduled for r in same] == [
        r.timeline.scheduled for r in run(greedy, [request(str(i), [1], 1, arrival=t) for i, t in enumerate(arrivals)])
    ]


def test_a_greedy_batch_takes_who_is_there_and_later_ones_wait_for_its_end():
    engine = modelled(Greedy(4), {"0": 3, "1": 1})
    one = run(engine, [request(str(i), [1], 9, arrival=t) for i, t in enumerate([0.0, 0.5, 0.75])])
    assert [r.timeline.scheduled for r in one] == [0.0, 3.0, 3.0]


def test_a_batch_holds_as_many_as_fit_together_and_nobody_in_it_is_preempted():
    engine = engine_of(8, batching=Static(4))
    several = run(engine, [request(str(i), [i + 1] * 4, 12) for i in range(4)])
    assert max(s.batch_size for s in engine.steps) == 2
    assert not any(one.timeline.preemptions for one in several)


def test_a_member_cancelled_in_a_static_batch_keeps_its_row():
    engine = modelled(Static(2), {"a": 5, "b": 5})
    engine.add(request("a", [1], 9))
    engine.add(request("b", [1], 9))
    engine.step()
    engine.cancel("a")
    engine.run()
    assert [s.batch_size for s in engine.steps] == [2] * 5
    assert [s.padding_tokens for s in engine.steps] == [0, 1, 1, 1, 1]


def test_prompts_may_go_before_or_after_or_among_those_that_decode():
    def steps(prefill):
        engine = modelled(Continuous(prefill=prefill), {"a": 9, "b": 2}, max_num_batched_tokens=8)
        run(engine, [request("a", [1] * 3, 9), request("b", [2] * 14, 9, arrival=1.5)])
        return [(s.prefill_tokens, s.decode_tokens) for s in engine.steps]

    assert steps("decode-first")[:5] == [(3, 0), (0, 1), (7, 1), (7, 1), (0, 2)]
    assert steps("mixed")[:5] == [(3, 0), (0, 1), (7, 1), (7, 1), (0, 2)]
    assert steps("prefill-first")[:5] == [(3, 0), (0, 1), (8, 0), (6, 0), (0, 2)]


def test_mixed_lets_a_prompt_that_came_first_go_before_the_tokens_of_later_ones():
    def steps(prefill):
        engine = modelled(Continuous(prefill=prefill), {}, max_num_batched_tokens=8)
        run(engine, [request("a", [1] * 6, 9), request("b", [2] * 14, 9), request("c", [3] * 2, 9)])
        return [(s.prefill_tokens, s.decode_tokens) for s in engine.steps][:3]

    # b's first chunk is 2 tokens; then a's token comes first either way, and c has to wait for b.
    assert steps("decode-first") == steps("mixed") == [(8, 0), (7, 1), (7, 1)]


def test_without_chunks_a_prompt_is_computed_in_one_step_or_refused():
    engine = modelled(Continuous(chunked_prefill=False), {"b": 3}, max_num_batched_tokens=12)
    several = [request(str(i), [1 + i], 9) for i in range(8)] + [request("b", [40] * 9, 4, arrival=0.5)]
    run(engine, several)
    assert [s.prefill_tokens for s in engine.steps][:2] == [8, 9]  # and the others get what is left
    assert all(s.num_tokens <= 12 for s in engine.steps)
    with pytest.raises(InvalidRequest, match="13 tokens are more than max_num_batched_tokens = 12"):
        engine.add(request("long", [1] * 5, 9))


def test_a_policy_of_ones_own_needs_one_method():
    class OneAtATime(Batching):
        def fill(self, step):
            if not step.running:
                step.admit(step.waiting[0], step.budget) if step.waiting else None
            else:
                step.run(step.running[0], step.budget)

    engine = engine_of(30, batching=OneAtATime())
    for one in run(engine, [one for one in several() if len(one.sequences) == 1]):
        assert one.sequences[0].output_ids == alone(one.prompt_ids, one.params.max_tokens)
    assert all(s.batch_size == 1 for s in engine.steps)
    with pytest.raises(NotImplementedError, match="fill"):
        Scheduler(BlockPool(4, 4), batching=type("Empty", (Batching,), {})()).schedule(0.0)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Static(0), "size must be at least 1, got 0"),
        (lambda: SizeOrTimeout(2, -1.0), "timeout must be at least 0 s, got -1"),
        (lambda: SizeOrTimeout(2, math.nan), "timeout must be at least 0 s, got nan"),
        (lambda: Continuous(prefill="first"), "decode-first, mixed, prefill-first, got 'first'"),
        (lambda: Watermark(1.0), "share must be at least 0 and below 1, got 1"),
        (lambda: ShortestFirst(aging=0.0), "aging must be above 0"),
        (lambda: FairShare({"a": 0.0}), "weight of tenant 'a' must be above 0"),
        (lambda: Shedding(max_queue=0), "max_queue must be at least 1, got 0"),
        (lambda: Noisy({}, -1.0), "sigma must be at least 0"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(make, said):
    with pytest.raises(UnderloadError, match=said):
        make()


# ---- order ---------------------------------------------------------------------------------------------------------


def begun(order, requests, **options) -> list[str]:
    engine = engine_of(100, batching=Continuous(), order=order, max_num_seqs=1, **options)
    run(engine, requests)
    return [one.request_id for one in sorted(requests, key=lambda one: one.timeline.scheduled)]


def test_orders_decide_who_is_first_among_those_who_wait():
    def four():
        return [
            request("first", [1] * 3, 3),
            request("long", [2] * 30, 3, priority=2, deadline=50.0),
            request("short", [3], 3, deadline=20.0),
            request("late", [4] * 9, 3, priority=9, deadline=9.0),
        ]

    assert begun(FirstCome(), four()) == ["first", "long", "short", "late"]
    assert begun(ShortestFirst(), four()) == ["short", "first", "late", "long"]
    assert begun(Priority(), four()) == ["late", "long", "first", "short"]
    assert begun(Deadline(), four()) == ["late", "short", "long", "first"]


def test_tenants_share_by_weight_whoever_sends_more():
    flood = [request(f"a{i}", [1] * 4, 4, tenant="a") for i in range(12)]
    few = [request(f"b{i}", [1] * 4, 4, tenant="b") for i in range(3)]
    order = begun(FairShare(), flood + few)
    assert sorted(order.index(f"b{i}") for i in range(3)) == [1, 3, 5]
    flood = [request(f"a{i}", [1] * 4, 4, tenant="a") for i in range(12)]
    few = [request(f"b{i}", [1] * 4, 4, tenant="b") for i in range(6)]
    first_nine = begun(FairShare({"a": 1.0, "b": 2.0}), flood + few)[:9]
    assert sum(name.startswith("b") for name in first_nine) == 6


@pytest.mark.parametrize("order", [lambda: ShortestFirst(aging=50.0), Priority, Deadline, FairShare, FirstCome])
def test_a18_a_long_request_of_little_account_begins_although_better_ones_keep_coming(order):
    """One slot, and every 2 s a request that is shorter, more important and more urgent; each takes 2 s."""
    engine = engine_of(
        600,
        CostModelExecutor(LinearStepTime(1.0, 0.0)),
        order=order(),
        max_num_seqs=1,
        max_num_batched_tokens=2000,
    )
    long = request("long", [1] * 1000, 1, arrival=0.5)
    others = [
        request(str(i), [2] * 10, 2, arrival=2.0 * i, priority=2, deadline=2.0 * i + 5, tenant=f"t{i}")
        for i in range(200)
    ]
    engine.add(long)
    run(engine, others)
    assert long.timeline.scheduled is not None and long.timeline.scheduled < 150.0


# ---- admission -----------------------------------------------------------------------------------------------------


def test_admissions_trade_preemptions_for_room():
    counts = {}
    for name, admission in ADMISSIONS.items():
        executor = CostModelExecutor(LinearStepTime(1.0, 0.0))
        engine = engine_of(30, executor, admission=admission())
        requests = run(engine, [request(str(i), [i] * 8, 32) for i in range(12)])
        counts[name] = sum(one.timeline.preemptions for one in requests), max(s.batch_size for s in engine.steps)
    assert counts["reserve all"] == (0, 3)  # 39 tokens at most are 10 blocks each
    assert counts["fits now"][0] > counts["watermark"][0] > 0
    assert counts["fits now"][1] >= counts["watermark"][1] > counts["reserve all"][1]
    assert counts["predicted peak"] == (0, 3)  # the same, where the prediction is the limit


def test_who_knows_the_lengths_admits_more_and_preempts_nobody():
    """Answers of 4 tokens or 40, and all are allowed 60: one who reserves that much serves fewer at once."""
    outputs = {str(i): 4 if i % 4 else 40 for i in range(24)}

    def served(admission):
        engine = engine_of(30, CostModelExecutor(LinearStepTime(1.0, 0.0), output_tokens=outputs), admission=admission)
        requests = run(engine, [request(str(i), [i] * 8, 60) for i in range(24)])
        return sum(one.timeline.preemptions for one in requests), engine.steps[-1].start

    reserved, oracle, eager = served(ReserveAll()), served(PredictedPeak(Oracle(outputs))), served(FitsNow())
    assert reserved[0] == 0 and oracle[0] <= 2 < eager[0]
    assert oracle[1] < reserved[1]


def test_predictors_say_the_same_each_time_and_never_more_than_is_allowed():
    one = request("x", [1, 2], 50)
    assert MaxTokens().predict(one) == 50
    assert Oracle({"x": 7}).predict(one) == 7 and Oracle({"x": 99}).predict(one) == 50 == Oracle({}).predict(one)
    noisy = Noisy({"x": 7}, 0.5, seed=3)
    assert noisy.predict(one) == noisy.predict(one) != Noisy({"x": 7}, 0.5, seed=4).predict(one)
    assert Noisy({"x": 7}, 0.0).predict(one) == pytest.approx(7)
    # What its docstring says of sigma = 0.7: half of the errors of a normal law are beyond 0.674 of its deviation.
    assert math.exp(0.7 * NormalDist().inv_cdf(0.75)) == pytest.approx(1.6, abs=0.01)
    logs = [math.log(Noisy({str(i): 100}, 0.5).predict(request(str(i), [1], 1000)) / 100) for i in range(2000)]
    assert abs(sum(logs) / 2000) < 4 * 0.5 / math.sqrt(2000)
    assert math.sqrt(sum(x * x for x in logs) / 2000) == pytest.approx(0.5, rel=0.07)


# ---- victims -------------------------------------------------------------------------------------------------------


def test_victims_are_who_came_last_or_who_loses_least():
    def preempted(victim):
        engine = engine_of(8, CostModelExecutor(LinearStepTime(1.0, 0.0)), victim=victim)
        requests = [
            request("large", [2] * 12, 20),
            request("small", [1] * 3, 20, arrival=0.25),
            request("last", [3] * 11, 20, arrival=0.5),
        ]
        for one in requests:
            engine.add(one)
        while engine.step() and not any(one.timeline.preemptions for one in requests):
            pass
        return [one.request_id for one in requests if one.timeline.preemptions]

    assert preempted(LastArrived()) == ["last"]
    assert preempted(LeastComputed()) == ["small"] == preempted(Cheapest())


def test_the_cheapest_victim_is_not_charged_for_what_others_hold_as_well():
    pool = BlockPool(16, BLOCK)
    engine = Engine(Scheduler(pool, victim=Cheapest()), CostModelExecutor(LinearStepTime(1.0, 0.0)), VirtualClock())
    shared = [9] * 24
    for one in (request("a", [*shared, 1], 30), request("b", [*shared, 2], 30), request("c", [3] * 10, 30)):
        engine.add(one)
    engine.join_steps = False
    for _ in range(3):
        engine.step()
    running = {one.request.request_id: one for one in engine.scheduler.running}
    assert LeastComputed().choose(reversed(engine.scheduler.running), pool) is running["c"]
    assert Cheapest().choose(reversed(engine.scheduler.running), pool) is running["b"]


# ---- shedding ------------------------------------------------------------------------------------------------------


def test_a_full_queue_turns_away_at_the_door_and_says_so():
    engine = modelled(Continuous(), {}, max_num_seqs=1, shedding=Shedding(max_queue=2))
    several = run(engine, [request(str(i), [1], 5, arrival=i * 0.1) for i in range(5)])
    assert [one.timeline.finish_reason for one in several] == ["length"] * 3 + ["refused"] * 2
    assert "2 sequences wait already, and max_queue is 2" in several[3].error
    assert several[3].timeline.finished == several[3].timeline.queued == 1.0  # at the end of the step it came in
    assert not several[3].timeline.token_times and engine.scheduler.idle


def test_who_has_waited_for_too_long_is_dropped_unless_it_has_begun():
    engine = modelled(Continuous(), {}, max_num_seqs=1, shedding=Shedding(max_wait=3.0))
    several = run(engine, [request(str(i), [1], 4, arrival=0.5 * i) for i in range(3)])
    assert [one.timeline.finish_reason for one in several] == ["length", "refused", "refused"]
    assert [one.timeline.finished for one in several] == [4.0, 4.0, 4.0]
    engine = modelled(Continuous(), {}, max_num_seqs=1, shedding=Shedding(deadlines=True))
    several = run(engine, [request(str(i), [1], 4, deadline=4.5) for i in range(3)])
    assert [one.timeline.finish_reason for one in several] == ["length", "length", "refused"]
    assert several[1].timeline.finished == 8.0


def test_a_batch_that_waits_for_company_still_drops_the_late():
    engine = modelled(Static(2), {}, shedding=Shedding(max_wait=2.0))
    several = run(engine, [request("a", [1], 1), request("b", [1], 1, arrival=9.0)])
    assert [one.timeline.finish_reason for one in several] == ["refused", "length"]
    assert several[0].timeline.finished == 2.0


def test_a43_the_refused_do_not_make_a_server_look_fast():
    from underload import metrics

    engine = modelled(Continuous(), {}, max_num_seqs=1, shedding=Shedding(max_queue=1))
    timelines = [one.timeline for one in run(engine, [request(str(i), [1], 5, arrival=i * 0.1) for i in range(5)])]
    summary = metrics.summary(timelines, slo=metrics.Slo(e2e=6.0))
    assert summary.failed == 3 and summary.attainment == pytest.approx(1 / 5)
    assert summary.latencies["E2E"].count == 2


def test_nothing_to_do_and_until_when():
    scheduler = Scheduler(BlockPool(8, 4), batching=SizeOrTimeout(2, 5.0))
    scheduler.add(request("a", [1], 1, arrival=1.0))
    assert scheduler.schedule(2.0) == Idle(6.0)
    assert scheduler.schedule(2.0, closing=True).num_tokens == 1
    assert FinishReason.REFUSED == "refused"
