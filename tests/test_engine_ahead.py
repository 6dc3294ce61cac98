"""Plans made and begun while one is being executed: nobody notices, whoever ends, fails or leaves meanwhile."""

from __future__ import annotations

import random

import pytest
from paper_model import Faults, PaperExecutor, alone, check_books, request

from underload.cache import BlockPool, HostPool
from underload.engine import Engine
from underload.request import FinishReason, UnderloadError, VirtualClock
from underload.scheduling import Continuous, Greedy, LeastComputed, Scheduler, Static
from underload.simulation import CostModelExecutor, LinearStepTime

BLOCK = 4
BATCHINGS = (
    Continuous,
    Continuous,
    lambda: Continuous(prefill="mixed"),
    lambda: Continuous(prefill="prefill-first"),
    lambda: Static(3),
    lambda: Greedy(4),
)


def engine_of(num_blocks: int, *, lookahead: int, fault=None, host: int = 0, caching: bool = True, **options) -> Engine:
    if host:
        options |= {"preemption": "swap", "host_pool": HostPool(host)}
    scheduler = Scheduler(BlockPool(num_blocks, BLOCK, prefix_caching=caching), **options)
    return Engine(scheduler, PaperExecutor(num_blocks, BLOCK, host, fault=fault), VirtualClock(), lookahead=lookahead)


def test_the_next_token_is_computed_before_the_last_one_is_known_and_once_in_vain_where_it_was_the_end():
    # Of a length that can go on unseen, and its answer stops by itself.
    prompt = next([i, 2] for i in range(1, 99) if 2 < len(alone([i, 2], 9)) < 9)
    one, words = request("a", prompt, 9), alone(prompt, 9)
    engine = engine_of(20, lookahead=1)
    engine.add(one)
    seen: list[tuple[int, int]] = []
    engine.on_step = lambda plan, result, record: seen.append((plan.work[0].start, plan.work[0].stop))
    engine.run()
    assert one.sequences[0].output_ids == words
    assert seen == [(0, 2)] + [(2 + i, 3 + i) for i in range(len(words))]
    assert engine.scheduler.pool.num_used == 0 and not engine.scheduler.ending

    for unseen in (True, False):  # nothing in vain where the length is known, or where nobody goes ahead
        one = request("b", [1, 2] if unseen else [1, 2, 3], 2)
        engine = engine_of(20, lookahead=1)
        engine.add(one)
        engine.run()
        assert engine.executor.computed == len(one.prompt_ids) + 1


def test_a_sequence_that_cannot_go_on_unseen_waits_for_its_token_and_the_others_do_not():
    engine = engine_of(40, lookahead=1, max_num_seqs=2)
    engine.add(request("sees", [1, 2, 3], 6))
    engine.add(request("goes on", [4], 6))
    sizes = []
    engine.on_step = lambda plan, result, record: sizes.append([w.sequence.request.request_id for w in plan.work])
    engine.run()
    assert sizes[:3] == [["sees", "goes on"], ["goes on"], ["sees", "goes on"]]


def random_run(seed: int, *, faults: bool) -> tuple[int, int, int]:
    rng = random.Random(seed)
    blocks = rng.randint(6, 20)
    batching, tokens = rng.choice(BATCHINGS)(), rng.choice([3, 8, 64])
    engine = engine_of(
        blocks,
        lookahead=rng.choice([1, 1, 2, 3]),
        host=rng.choice([0, 0, 2, 30]),
        caching=rng.random() < 0.7,
        fault=Faults(0.01, seed, most=12) if faults else None,
        batching=batching,
        victim=LeastComputed() if rng.random() < 0.3 else None,
        max_num_batched_tokens=tokens,
        max_num_seqs=rng.choice([3, 4, 16]),
        max_aborts=20,
    )
    shared = [rng.randint(1, 30) for _ in range(12)]
    several = []
    for i in range(rng.randint(1, 14)):
        prompt = shared[: rng.choice([0, 3, 4, 8, 12])] + [rng.randint(1, 30) for _ in range(rng.randint(1, 6))]
        most = blocks * BLOCK + 1 - len(prompt)
        n, salt = rng.choice([1, 1, 1, 2]), rng.choice(["", "", "x"])
        one = request(str(i), prompt, min(rng.randint(1, 24), most), n=n, arrival=rng.choice([0, 2, 9.5]), salt=salt)
        engine.add(one)
        several.append(one)
    deepest = 0
    while engine.step():
        deepest = max(deepest, len(engine._flights))
        check_books(engine.scheduler, [plan for plan, _ in engine._flights])
        if rng.random() < 0.02:
            engine.cancel(str(rng.randrange(len(several))))
    for one in several:
        assert one.finished
        for sequence in one.sequences:
            expected = alone(one.prompt_ids, one.params.max_tokens, sequence.index, one.salt)
            said = sequence.output_ids
            if sequence.finish_reason is FinishReason.CANCELLED:
                assert said == expected[: len(said)]
            else:
                assert said == expected and sequence.finish_reason is not FinishReason.ERROR
    assert not engine.executor.wrong
    assert sorted(engine.executor.released) == sorted(one.request_id for one in several)
    assert engine.scheduler.pool.num_used == 0 and not engine.scheduler.ending and not engine.scheduler.held
    return deepest, sum(one.timeline.preemptions for one in several), engine.aborted


@pytest.mark.parametrize("faults", [False, True])
def test_random_loads_say_what_each_request_says_alone(faults):
    runs = [random_run(seed, faults=faults) for seed in range(300)]
    assert max(deepest for deepest, _, _ in runs) == 3
    assert sum(preemptions for _, preemptions, _ in runs) > 100
    assert (sum(aborted for _, _, aborted in runs) > 100) == faults


def test_an_executor_that_does_one_thing_after_the_other_has_no_lookahead():
    scheduler = Scheduler(BlockPool(8, 4))
    with pytest.raises(UnderloadError, match="lookahead = 1 plans of CostModelExecutor"):
        Engine(scheduler, CostModelExecutor(LinearStepTime(1.0, 0.0)), VirtualClock(), lookahead=1)
    with pytest.raises(UnderloadError, match="lookahead = -1"):
        Engine(scheduler, PaperExecutor(8, 4), VirtualClock(), lookahead=-1)
