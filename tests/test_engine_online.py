"""The engine behind threads and event loops: streams, races, readers that leave, and a loop that dies.

No test looks at how long something took. Each has a limit of its own (`HANG`) after which it counts as hung.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from paper_model import VOCABULARY, Faults, PaperExecutor, alone, check_books

from underload.cache import BlockPool
from underload.engine import Engine, EngineStopped, OnlineEngine, RequestFailed
from underload.request import (
    FinishReason,
    InvalidRequest,
    SamplingParams,
    UnderloadError,
    VirtualClock,
    WallClock,
)
from underload.scheduling import Scheduler, Shedding, SizeOrTimeout, Static

BLOCK = 4
HANG = 300.0


class Paced(PaperExecutor):
    """The paper model in real time: a step takes what it takes. `hold` stops it before a step."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.free = threading.Event()
        self.free.set()

    def execute(self, plan):
        assert self.free.wait(HANG)
        result = super().execute(plan)
        result.duration = None
        return result


class Endless(Paced):
    """Says nothing that ends its answer."""

    def execute(self, plan):
        result = super().execute(plan)
        for draws in result.sampled:
            for sampled in draws:
                sampled.finish_reason = None
        return result


def engine_of(blocks: int = 256, *, executor=Paced, on_step=None, clock=None, lookahead=0, **limits) -> Engine:
    scheduler = Scheduler(BlockPool(blocks, BLOCK), **limits)
    executor = executor(blocks, BLOCK)
    return Engine(scheduler, executor, clock or WallClock(), on_step=on_step, lookahead=lookahead)


def tokens(stream) -> list[int]:
    return [token.token_id for token in stream]


def talkative(count: int, tokens: int) -> list[list[int]]:
    """Prompts whose answers do not end by themselves before so many tokens."""
    places = itertools.product(range(1, VOCABULARY), repeat=3)
    found = (list(place) for place in places if len(alone(list(place), tokens)) == tokens)
    return [next(found) for _ in range(count)]


def params(tokens: int, n: int = 1) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, n=n)


def at_rest(engine: Engine) -> None:
    check_books(engine.scheduler)
    assert engine.scheduler.idle and engine.scheduler.pool.num_used == 0 and not engine.executor.wrong


# ---- one request ---------------------------------------------------------------------------------------------------


def test_a_stream_is_what_the_request_says_alone():
    engine = engine_of()
    with OnlineEngine(engine) as online:
        stream = online.add_request([5, 6, 7], params(9))
        assert tokens(stream) == alone([5, 6, 7], 9)
        assert stream.finished and stream.wait(HANG) is stream.request
    line = stream.request.timeline
    assert line.arrival <= line.sent <= line.queued <= line.scheduled <= line.first_token <= line.finished
    at_rest(engine)


@pytest.mark.parametrize("lookahead", [0, 2])
def test_samples_come_on_one_stream_and_each_says_when_it_ends(lookahead):
    prompt = talkative(1, 12)[0] + [3]  # of a length with which it can be computed ahead
    with OnlineEngine(engine_of(lookahead=lookahead)) as online:
        got = list(online.add_request(prompt, params(30, n=3)))
    for sample in range(3):
        mine = [token for token in got if token.sample == sample]
        assert [token.token_id for token in mine] == alone(prompt, 30, sample)
        assert [token.finish_reason for token in mine[:-1]] == [None] * (len(mine) - 1)
        assert mine[-1].finish_reason in (FinishReason.STOP, FinishReason.LENGTH)


def test_a_stream_can_be_waited_for_first_and_read_later():
    with OnlineEngine(engine_of()) as online:
        stream = online.add_request([3, 4], params(8))
        assert stream.wait(HANG).sequences[0].output_ids == alone([3, 4], 8)
        assert tokens(stream) == alone([3, 4], 8)
        assert tokens(stream) == []  # read once


def test_waiting_has_a_limit_and_the_request_goes_on():
    engine = engine_of()
    engine.executor.free.clear()
    with OnlineEngine(engine) as online:
        stream = online.add_request([3, 4], params(8))
        with pytest.raises(TimeoutError, match="'r0' is not finished after 0.01 s"):
            stream.wait(0.01)
        engine.executor.free.set()
        assert tokens(stream) == alone([3, 4], 8)


def test_tokens_that_come_meanwhile_do_not_shorten_the_wait():
    with OnlineEngine(engine_of(executor=Endless)) as online:
        stream = online.add_request([3, 4], params(400))
        assert len(stream.wait(79.0).sequences[0].output_ids) == 400  # more tokens than fifths of a second


def test_an_arrival_to_come_is_waited_for_and_does_not_keep_others_waiting():
    engine = engine_of()
    with OnlineEngine(engine) as online:
        later = online.add_request([3, 4], params(4), arrival=engine.clock.now() + 0.3)
        now = online.add_request([5, 6], params(4))
        assert tokens(now) == alone([5, 6], 4) and not later.finished  # its sleep was cut short
        assert tokens(later) == alone([3, 4], 4)
    assert later.request.timeline.scheduled >= later.request.timeline.arrival
    assert now.request.timeline.finished <= later.request.timeline.arrival


# ---- what is refused, and what fails -------------------------------------------------------------------------------


def test_what_was_there_before_is_not_looked_through_for_garbage_meanwhile():
    """A full collection among all that torch has made stops the loop for longer than most requests take."""
    before = gc.get_freeze_count()  # Python 3.12 has some from its start
    one, other = OnlineEngine(engine_of()), OnlineEngine(engine_of())
    for online in (one, other):
        online.add_request([1, 2, 3], SamplingParams(max_tokens=2)).wait()
        assert gc.get_freeze_count() > before + 10_000
    one.close()
    other.add_request([1, 2, 3], SamplingParams(max_tokens=2)).wait()
    assert gc.get_freeze_count() > before + 10_000, "the other one still runs"
    other.close()
    assert gc.get_freeze_count() <= before


def test_a_slip_is_raised_where_it_was_made_and_disturbs_nobody():
    engine = engine_of(max_model_len=20)
    with OnlineEngine(engine) as online:
        held = online.add_request([1, 2], params(6), request_id="mine")
        engine.executor.free.clear()
        other = online.add_request([1, 3], params(6), request_id="other")
        for prompt, name, says in (
            ([], None, "empty prompt"),
            ([1] * 20, None, "prompt of 20 tokens .* max_model_len = 20"),
            (["a"], None, "whole numbers"),
            ([1], "other", "'other' is in use"),
        ):
            with pytest.raises(InvalidRequest, match=says):
                online.add_request(prompt, params(6), request_id=name)
        engine.executor.free.set()
        assert tokens(held) == alone([1, 2], 6) and tokens(other) == alone([1, 3], 6)
        engine.executor.released.clear()  # it insists on new names
        assert tokens(online.add_request([1, 2], params(6), request_id="mine")) == alone([1, 2], 6)  # free again
    at_rest(engine)


class Picky(Paced):
    """Cannot compute prompts that begin with 9; steps with them fail."""

    def execute(self, plan):
        if any(work.sequence.tokens[0] == 9 for work in plan.work):
            raise MemoryError("nine is too much")
        return super().execute(plan)


def test_a_request_that_no_step_survives_fails_by_name_and_the_engine_lives():
    engine = engine_of(executor=Picky, max_num_seqs=1, max_aborts=2)
    with OnlineEngine(engine) as online:
        streams = [online.add_request(prompt, params(5)) for prompt in ([1, 2], [9, 9], [3, 4])]
        assert tokens(streams[0]) == alone([1, 2], 5) and tokens(streams[2]) == alone([3, 4], 5)
        with pytest.raises(RequestFailed, match=r"'r1' failed: 3 steps with it failed.*nine is too much"):
            tokens(streams[1])
        assert streams[1].wait(HANG).timeline.finish_reason == "error"
        assert tokens(online.add_request([6], params(5))) == alone([6], 5)
    at_rest(engine)


def test_an_executor_that_always_fails_fails_every_request_and_not_the_engine():
    class Broken(Paced):
        broken = True

        def execute(self, plan):
            if self.broken:
                raise OSError("the device is gone")
            return super().execute(plan)

    engine = engine_of(executor=Broken, max_num_seqs=8)
    with OnlineEngine(engine) as online:
        for stream in [online.add_request([i + 1], params(5)) for i in range(30)]:
            with pytest.raises(RequestFailed, match="OSError: the device is gone"):
                tokens(stream)
        engine.executor.broken = False
        assert tokens(online.add_request([6], params(5))) == alone([6], 5) and online.error is None
    at_rest(engine)


def test_a_token_was_read_before_the_failure_is_told():
    class Once(Paced):
        def execute(self, plan):
            if len(self.plans) == 3:
                raise OSError("gone")
            return super().execute(plan)

    prompt, got = talkative(1, 9)[0], []
    with OnlineEngine(engine_of(executor=Once, max_aborts=0)) as online, pytest.raises(RequestFailed, match="gone"):
        for token in online.add_request(prompt, params(9)):
            got.append(token.token_id)
    assert got == alone(prompt, 9)[:3]


@pytest.mark.parametrize("batching", [Static(4), SizeOrTimeout(4, 3600.0)])
def test_a_batch_that_is_not_full_waits_for_company_until_none_can_come(batching):
    engine = engine_of(batching=batching)
    online = OnlineEngine(engine)
    streams = [online.add_request([i + 1, 5], params(6)) for i in range(6)]
    assert [tokens(stream) for stream in streams[:4]] == [alone([i + 1, 5], 6) for i in range(4)]
    assert not any(stream.finished for stream in streams[4:])
    online.close()
    assert [tokens(stream) for stream in streams[4:]] == [alone([i + 1, 5], 6) for i in (4, 5)]
    at_rest(engine)


def test_a_batch_leaves_when_its_first_has_waited_for_long_enough_though_nobody_else_comes():
    engine = engine_of(batching=SizeOrTimeout(4, 0.05))
    with OnlineEngine(engine) as online:
        stream = online.add_request([1, 5], params(6))
        assert tokens(stream) == alone([1, 5], 6)
    assert stream.request.timeline.scheduled - stream.request.timeline.arrival >= 0.05


def test_who_is_turned_away_is_told_why_and_who_waited_is_answered():
    engine = engine_of(max_num_seqs=1, shedding=Shedding(max_queue=2))
    engine.executor.free.clear()
    with OnlineEngine(engine) as online:
        streams = [online.add_request([1, 1], params(4))]
        while not engine.scheduler.running:  # the first has begun, so that two can wait
            time.sleep(0.001)
        streams += [online.add_request([i + 2, 1], params(4)) for i in range(5)]
        engine.executor.free.set()
        for i in (0, 1, 2):
            assert tokens(streams[i]) == alone([i + 1, 1], 4)
        for stream in streams[3:]:
            with pytest.raises(RequestFailed, match="was refused: .*max_queue is 2"):
                tokens(stream)
            assert stream.request.timeline.finish_reason == "refused"
    at_rest(engine)


@pytest.mark.parametrize("lookahead", [0, 1])
def test_steps_that_fail_and_blocks_that_run_out_change_no_stream(lookahead):
    """A pool for two or three of them, and a fault at any point of any step: nothing is lost, or streamed twice."""
    engine = engine_of(12, lookahead=lookahead, max_num_seqs=6, max_num_batched_tokens=16, max_aborts=10**6)
    faults = engine.executor._fault = Faults(0.01, seed=lookahead)
    rng = random.Random(1)
    asked = [([rng.randrange(1, 40) for _ in range(rng.randrange(1, 9))], rng.randrange(4, 30)) for _ in range(40)]
    with OnlineEngine(engine) as online, ThreadPoolExecutor(8) as clients:
        jobs = [clients.submit(lambda a=a: tokens(online.add_request(a[0], params(a[1])))) for a in asked]
        assert [job.result(HANG) for job in jobs] == [alone(prompt, most) for prompt, most in asked]
    assert faults.raised and engine.aborted > 0 and sum(one.timeline.preemptions for one in engine.finished) > 0
    at_rest(engine)


# ---- leaving -------------------------------------------------------------------------------------------------------


def test_a_cancelled_request_ends_and_its_neighbour_does_not_notice():
    engine = engine_of(executor=Endless)
    stays = talkative(1, 60)[0]
    with OnlineEngine(engine) as online:
        leaving, staying = online.add_request([7, 7], params(400)), online.add_request(stays, params(60))
        reader = iter(staying)
        first = next(reader)
        assert leaving.cancel() and leaving.wait(HANG).timeline.finish_reason == "cancelled"
        assert not leaving.cancel() and not online.cancel(leaving.request_id) and not online.cancel("nobody")
        assert [first.token_id, *(token.token_id for token in reader)] == alone(stays, 60)
        said, wanted = tokens(leaving), alone([7, 7], 400)
        assert said[: len(wanted)] == wanted[: len(said)] and len(said) < 400
    at_rest(engine)


@pytest.mark.parametrize("how", ["break", "raise", "collected"])
def test_a_reader_that_leaves_early_cancels(how):
    engine = engine_of(executor=Endless)
    with OnlineEngine(engine) as online:
        stream = online.add_request([5, 6], params(400))
        if how == "break":
            for _ in stream:
                break
        elif how == "raise":
            with pytest.raises(ZeroDivisionError):
                for _ in stream:
                    raise ZeroDivisionError
        else:
            reader = [iter(stream)]
            reader.append(reader)  # a cycle: only the collector finds it
            next(reader[0])
            del reader
            gc.collect()
        assert stream.wait(HANG).timeline.finish_reason == "cancelled"
    at_rest(engine)


def test_a_stream_that_nobody_reads_runs_to_its_end_and_holds_no_more_than_was_asked_for():
    engine = engine_of()
    prompts = talkative(20, 40)
    with OnlineEngine(engine) as online:
        streams = [online.add_request(prompt, params(40)) for prompt in prompts]
        read = online.add_request(prompts[0], params(10))
        assert tokens(read) == alone(prompts[0], 10)  # nobody waits for slow readers
    assert [len(stream._tokens) for stream in streams] == [40] * 20
    assert [tokens(stream) for stream in streams] == [alone(prompt, 40) for prompt in prompts]


@pytest.mark.parametrize("lookahead", [0, 1])
def test_cancelling_before_during_and_after_in_any_interleaving_loses_no_block(lookahead):
    engine = engine_of(96, lookahead=lookahead, max_num_seqs=8, max_num_batched_tokens=24)
    prompts = talkative(40, 30)
    ended = []

    def client(number: int, online: OnlineEngine) -> None:
        rng = random.Random(number)
        for _ in range(6):
            prompt = rng.choice(prompts)
            stream = online.add_request(prompt, params(30, n=rng.choice((1, 1, 2))))
            leave = rng.choice((0, 1, 7, 29, 99))
            got = []
            for token in stream if leave else ():
                got.append(token)
                if len(got) == leave:
                    break
            if not leave:
                online.cancel(stream.request_id) if rng.random() < 0.5 else stream.cancel()
            mine = [token.token_id for token in got if token.sample == 0]
            assert mine == alone(prompt, 30)[: len(mine)]
            ended.append(stream.wait(HANG))

    with OnlineEngine(engine) as online, ThreadPoolExecutor(16) as clients:
        for job in [clients.submit(client, number, online) for number in range(16)]:
            job.result(HANG)
    assert len(ended) == 96 and all(request.finished for request in ended)
    assert {request.timeline.finish_reason for request in ended} <= {"cancelled", "length", "stop"}
    assert len(engine.executor.released) == 96
    at_rest(engine)


# ---- many ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lookahead", [0, 1])
def test_two_hundred_streams_from_threads_and_event_loops_at_once(lookahead):
    engine = engine_of(512, lookahead=lookahead, max_num_seqs=64, max_num_batched_tokens=256)
    rng = random.Random(5)
    asked = [([rng.randrange(1, 40) for _ in range(rng.randrange(1, 12))], rng.randrange(1, 24)) for _ in range(200)]
    got: dict[int, list[int]] = {}

    def in_thread(number: int, online: OnlineEngine) -> None:
        prompt, most = asked[number]
        got[number] = tokens(online.add_request(prompt, params(most)))

    async def one(number: int, online: OnlineEngine) -> None:
        prompt, most = asked[number]
        got[number] = [token.token_id async for token in online.add_request(prompt, params(most))]

    async def several(numbers: range, online: OnlineEngine) -> None:
        async with asyncio.TaskGroup() as group:
            for number in numbers:
                group.create_task(one(number, online))

    with OnlineEngine(engine) as online, ThreadPoolExecutor(64) as clients:
        jobs = [clients.submit(in_thread, number, online) for number in range(60)]
        jobs += [
            clients.submit(lambda start=start: asyncio.run(several(range(start, start + 35), online)))
            for start in (60, 95, 130, 165)
        ]
        for job in jobs:
            job.result(HANG)
    assert got == {number: alone(prompt, most) for number, (prompt, most) in enumerate(asked)}
    assert max(step.batch_size for step in engine.steps) > 1
    at_rest(engine)


def test_a_thousand_that_come_while_others_run_are_all_answered_in_bounded_books():
    engine = engine_of(256, max_num_seqs=32)
    with OnlineEngine(engine, keep=50) as online:
        streams = [online.add_request([i % 30 + 1], params(2)) for i in range(1000)]
        assert [tokens(stream) for stream in streams] == [alone([i % 30 + 1], 2) for i in range(1000)]
        assert len(engine.finished) <= 100 and len(engine.steps) <= 100
        assert online._streams == {}


def test_two_hundred_streams_of_text_from_pocket():
    """The real decoder, threads and event loops: every text is that of the naive loop, and is cut where it is cut."""
    from underload.decoder import decoder_engine, load_model
    from underload.decoder import generate as naively

    model = load_model("pocket", device="cpu", path="fast", batch_invariant=True)
    words = ("A batch of", "The queue", "Once", "In the", "Nobody waits", "eight", "The train", "We")
    texts = [f"{word} {other}" for word in words for other in words]
    wishes = [
        SamplingParams(max_tokens=4 + i % 5, temperature=0, stop=("er", "."), ignore_eos=True) for i in range(200)
    ]
    ids = [model.tokenizer.encode(texts[i % len(texts)]) for i in range(200)]
    naive = [one.text for one in naively(model, ids, wishes)]
    got: dict[int, str] = {}
    engine = decoder_engine(model, num_blocks=150, block_size=8, max_num_seqs=48, max_num_batched_tokens=128)

    def in_thread(number: int, online: OnlineEngine) -> None:
        got[number] = "".join(token.text for token in online.add_request(ids[number], wishes[number]))

    async def in_loop(numbers: range, online: OnlineEngine) -> None:
        async def one(number: int) -> None:
            stream = online.add_request(ids[number], wishes[number])
            got[number] = "".join([token.text async for token in stream])

        await asyncio.gather(*map(one, numbers))

    with OnlineEngine(engine) as online, ThreadPoolExecutor(40) as clients:
        jobs = [clients.submit(in_thread, number, online) for number in range(80)]
        jobs += [
            clients.submit(lambda first=first: asyncio.run(in_loop(range(first, first + 40), online)))
            for first in (80, 120, 160)
        ]
        for job in jobs:
            job.result(HANG)
    assert [got[number] for number in range(200)] == naive
    assert len(set(naive)) > 20 and engine.scheduler.pool.num_used == 0
    model.close()


# ---- asyncio -------------------------------------------------------------------------------------------------------


def test_a_cancelled_task_cancels_its_request():
    engine = engine_of(executor=Endless)

    async def main() -> list[str | None]:
        async with OnlineEngine(engine) as online:
            streams = [online.add_request([i + 1, 2], params(300)) for i in range(3)]

            async def read(stream) -> None:
                async for _ in stream:
                    pass

            async def rest(stream) -> None:
                await stream

            tasks = [asyncio.create_task(read(streams[0])), asyncio.create_task(rest(streams[1]))]
            await anext(aiter(streams[2]))
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            return [(await stream).timeline.finish_reason for stream in streams]

    assert asyncio.run(main())[:2] == ["cancelled", "cancelled"]
    at_rest(engine)


def test_a_reader_that_breaks_in_an_event_loop_cancels():
    engine = engine_of(executor=Endless)

    async def main() -> str | None:
        async with OnlineEngine(engine) as online:
            stream = online.add_request([5, 6], params(400))
            async for _ in stream:
                break
            return (await stream).timeline.finish_reason

    assert asyncio.run(main()) == "cancelled"


def test_a_loop_that_was_closed_under_its_readers_stops_nobody_else():
    engine = engine_of()
    prompt = talkative(1, 40)[0]
    with OnlineEngine(engine) as online:
        engine.executor.free.clear()
        loop = asyncio.new_event_loop()
        left = online.add_request(prompt, params(40))
        task = loop.create_task(anext(aiter(left)))
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        other = online.add_request(prompt, params(40))
        engine.executor.free.set()
        assert tokens(other) == alone(prompt, 40)
        assert left.wait(HANG).finished and online.error is None
        task._log_destroy_pending = False
    at_rest(engine)


def test_awaiting_gives_the_request_and_leaves_the_tokens():
    async def main() -> None:
        async with OnlineEngine(engine_of()) as online:
            stream = online.add_request([4, 4], params(7))
            assert (await stream).sequences[0].output_ids == alone([4, 4], 7)
            assert [token.token_id async for token in stream] == alone([4, 4], 7)

    asyncio.run(main())


# ---- the end -------------------------------------------------------------------------------------------------------


def test_closing_answers_what_was_asked_and_takes_no_more():
    engine = engine_of()
    online = OnlineEngine(engine)
    streams = [online.add_request([i + 1], params(20)) for i in range(12)]
    online.close()
    assert all(stream.finished for stream in streams)
    assert [tokens(stream) for stream in streams] == [alone([i + 1], 20) for i in range(12)]
    with pytest.raises(EngineStopped, match="takes no more requests"):
        online.add_request([1])
    online.close()
    online.close(drain=False)
    at_rest(engine)


def test_closing_without_draining_cancels_and_ends():
    engine = engine_of(executor=Endless)
    online = OnlineEngine(engine)
    streams = [online.add_request([i + 1], params(150)) for i in range(6)]
    far = online.add_request([1], arrival=engine.clock.now() + 3600)
    next(iter(streams[0]))
    online.close(drain=False)
    assert {stream.wait(HANG).timeline.finish_reason for stream in [*streams, far]} == {"cancelled"}
    at_rest(engine)


def test_a_drain_can_be_cut_short_by_another_thread():
    engine = engine_of()
    online = OnlineEngine(engine)
    stream = online.add_request([1], arrival=engine.clock.now() + 3600)
    draining = threading.Thread(target=online.close)
    draining.start()
    online.close(drain=False)
    draining.join(HANG)
    assert not draining.is_alive() and stream.wait(HANG).timeline.finish_reason == "cancelled"


def test_an_exception_in_the_block_cancels_instead_of_draining():
    engine = engine_of()
    with pytest.raises(ZeroDivisionError), OnlineEngine(engine) as online:
        stream = online.add_request([1], arrival=engine.clock.now() + 3600)
        raise ZeroDivisionError
    assert stream.wait(HANG).timeline.finish_reason == "cancelled"


class Fatal(BaseException):
    """What no engine survives."""


@pytest.mark.parametrize("kind", [Fatal, SystemExit])
def test_a_loop_that_dies_tells_every_reader(kind):
    class Dying(Paced):
        def execute(self, plan):
            assert self.free.wait(HANG)
            if len(self.plans) == 3:
                raise kind("out of the blue")
            return super().execute(plan)

    engine = engine_of(executor=Dying)
    prompts = talkative(4, 40)
    engine.executor.free.clear()
    online = OnlineEngine(engine)
    streams = [online.add_request(prompt, params(40)) for prompt in prompts]

    async def in_loop() -> None:
        with pytest.raises(EngineStopped, match="out of the blue"):
            async for _ in streams[1]:
                pass
        with pytest.raises(EngineStopped):
            await streams[2]

    with ThreadPoolExecutor(2) as readers:
        sync, aside = readers.submit(tokens, streams[0]), readers.submit(asyncio.run, in_loop())
        engine.executor.free.set()
        with pytest.raises(EngineStopped, match="out of the blue"):
            sync.result(HANG)
        aside.result(HANG)
    with pytest.raises(EngineStopped, match="out of the blue"):
        streams[3].wait(HANG)
    with pytest.raises(EngineStopped, match="out of the blue"):
        online.add_request([1])
    assert isinstance(online.error, kind) and not online.cancel(streams[0].request_id)
    online.close()


def test_a_block_does_not_end_quietly_when_its_loop_died():
    def boom(plan, result, record) -> None:
        raise RuntimeError("a bug of the watcher")

    said = pytest.raises(EngineStopped, match="a bug of the watcher")
    with said as stopped, OnlineEngine(engine_of(on_step=boom)) as online, pytest.raises(EngineStopped):
        tokens(online.add_request([1, 2], params(5)))
    assert isinstance(stopped.value.__cause__, RuntimeError)


def test_whoever_watches_the_steps_still_does_and_cannot_wait_for_itself():
    seen, refused = [], []

    def watch(plan, result, record) -> None:
        seen.append(record)
        if len(seen) == 1:
            for wait in (lambda: tokens(streams[0]), lambda: streams[0].wait()):
                try:
                    wait()
                except UnderloadError as error:
                    refused.append(str(error))
            online.add_request([7], params(3), request_id="from the watcher")
            online.close()  # from the loop itself: it only says so

    engine = engine_of(on_step=watch)
    engine.executor.free.clear()
    online = OnlineEngine(engine)
    streams = [online.add_request([1, 2], params(5))]
    engine.executor.free.set()
    assert tokens(streams[0]) == alone([1, 2], 5)
    online.close()
    assert seen == engine.steps and len(refused) == 2 and all("wait for itself" in text for text in refused)
    assert "from the watcher" in engine.executor.released and engine.on_step is watch


def test_a_virtual_clock_is_refused():
    with pytest.raises(UnderloadError, match="virtual clock"):
        OnlineEngine(engine_of(clock=VirtualClock()))


def test_an_engine_at_rest_uses_no_processor():
    """Idle for a while in all three ways, it is not seen to turn: hardly any time of the processor goes by."""
    engine = engine_of()
    with OnlineEngine(engine) as online:
        tokens(online.add_request([1, 2], params(3)))
        later = online.add_request([1], params(1), arrival=engine.clock.now() + 0.5)
        steps = []
        real = engine.step
        engine.step = lambda: steps.append(1) or real()
        later.wait(HANG)
        assert len(steps) < 10


SCRIPT = """
import sys, time
sys.path.insert(0, {tests!r})
from test_engine_online import engine_of, params, talkative
from underload.engine import OnlineEngine

engine = engine_of()
{body}
"""
READ = """
with OnlineEngine(engine) as online:
    stream = online.add_request([1], params(3), arrival=engine.clock.now() + 3600)
    print("ready", flush=True)
    try:
        for token in stream: pass
    finally:
        print("left", flush=True)
"""
FORGOTTEN = """
online = OnlineEngine(engine)
online.add_request([1], params(3), arrival=engine.clock.now() + 3600)
print("ready", flush=True)
"""


def start(body: str) -> subprocess.Popen:
    from pathlib import Path

    code = SCRIPT.format(tests=str(Path(__file__).parent), body=body)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.skipif(sys.platform == "win32", reason="sends a POSIX signal")
def test_ctrl_c_ends_a_program_that_waits_for_a_token():
    with start(READ) as program:
        assert program.stdout.readline() == "ready\n"
        time.sleep(0.1)
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=HANG)
    assert out == "left\n" and err.rstrip().endswith("KeyboardInterrupt") and program.returncode != 0


def test_a_program_that_forgets_to_close_ends():
    with start(FORGOTTEN) as program:
        out, err = program.communicate(timeout=HANG)
    assert (out, err, program.returncode) == ("ready\n", "", 0)
