"""What the page on sharing claims, recomputed: hand examples, answers, the recording, and what its figures say."""

from __future__ import annotations

import json
from hashlib import sha256
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from underload.cache import BlockChain, BlockPool, HostPool
from underload.cache.index import PrefixIndex
from underload.engine import Engine, serve
from underload.figures import BlockRecording
from underload.metrics import ttft
from underload.queueing import Exponential
from underload.request import Request, SamplingParams, Timeline, VirtualClock
from underload.scheduling import Plan, Scheduler
from underload.shapes import DEVICES, decode_cost, prefill_cost, roofline, shape, step_cost
from underload.simulation import CostModelExecutor, LinearStepTime, RooflineStepTime
from underload.workload import Conversations, FixedTokens, Lengths, Poisson, PromptIds, Workload

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "chapters/sharing.md").read_text("utf-8")


@pytest.fixture(scope="module")
def recording() -> dict[str, Any]:
    return json.loads((ROOT / "chapters/data/sharing.json").read_text(encoding="utf-8"))


# ---- nine blocks -------------------------------------------------------------------------------------------------


def recorded_pool(caching: bool) -> tuple[BlockRecording, int]:
    """The recording of the first figure, and the tokens its prefills computed."""
    scheduler = Scheduler(BlockPool(9, 4, prefix_caching=caching))
    run = BlockRecording(scheduler, CostModelExecutor(LinearStepTime(1.0, 0.0)))
    engine, system = Engine(scheduler, run, VirtualClock()), list(range(8))
    for name, arrival, prompt, tokens, n in (
        ("A", 0, [*system, 11, 12], 6, 1),
        ("B", 2, [*system, 21, 22, 23], 8, 1),
        ("C", 4, list(range(31, 37)), 6, 2),
        ("D", 7, list(range(40, 50)), 10, 1),
        ("E", 13, [*system, 51, 52, 53, 54], 6, 1),
    ):
        engine.add(Request(name, prompt, SamplingParams(max_tokens=tokens, n=n), Timeline(float(arrival))))
    engine.run()
    return run, sum(step.prefill_tokens for step in engine.steps)


def test_the_figure_of_nine_blocks_shows_what_is_said_of_it() -> None:
    (run, computed), (_, without) = recorded_pool(True), recorded_pool(False)
    assert computed < without / 2
    moments = dict(enumerate(run.moments, 1))

    def count(step: int, place: str) -> int:
        return sum(state.place == place for state in moments[step].states)

    assert moments[3].says == "B is admitted with 3 blocks, 2 of them found." and moments[3].tokens == 3 + 1
    held = [moments[5].tables[name][0] for name in "AB"]
    assert (len({*held[0], *held[1]}), len(held[0]) + len(held[1])) == (6, 8)
    assert "is copied to" in moments[6].says and count(7, "cached") == 1
    assert count(8, "used") == 9 and "D waits" in moments[8].says
    assert moments[9].says.startswith("C2 is preempted") and "C2 is admitted again with 3 blocks, 2" in moments[11].says
    assert [(count(step, "free"), count(step, "cached")) for step in (18, 21)] == [(0, 0), (0, 4)]
    assert "E is preempted" in moments[19].says  # the block taken from somebody


# ---- names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "length", "again", "found"), [(4, 12, 12, 8), (4, 12, 13, 12), (16, 160, 160, 144), (16, 160, 170, 160)]
)
def test_what_a_prompt_finds(size: int, length: int, again: int, found: int) -> None:
    tokens = list(range(length))
    pool, chain = BlockPool(100, size), BlockChain(tokens, size)
    pool.publish(pool.allocate(chain, length), chain, length)
    longer = tokens + [-1] * (again - length)
    assert pool.cached_tokens(BlockChain(longer, size), again) == found == size * (min(length, again - 1) // size)
    assert pool.cached_tokens(BlockChain([-1, *tokens], size), length + 1) == 0


def test_a_name_without_its_parent_is_refused_by_the_parent() -> None:
    pool = BlockPool(8, 2)
    forgets = lambda parent, content: content  # noqa: E731
    for x, y in ((1, 5), (2, 6)):
        chain = BlockChain([x, x, y, y, 0], 2, digest=forgets)
        pool.publish(pool.allocate(chain, 5), chain, 4)
    found = [pool.cached_tokens(BlockChain([x, x, 5, 5, 0], 2, digest=forgets), 5) for x in (1, 2)]
    assert found == [4, 2]


def test_only_a_pool_that_believes_digests_tells_another_story() -> None:
    from underload.decoder import DecoderExecutor, generate, load_model

    pocket = load_model("pocket")
    say = "Uma comes to the bakery in the morning. {} people are already waiting."
    greedy = SamplingParams(max_tokens=20, temperature=0)
    prompts = [[0, *pocket.tokenizer.encode(say.format(count))] for count in ("Five", "Nine")]
    alone = [generate(pocket, prompt, greedy)[0].token_ids for prompt in prompts]

    class Trusting(PrefixIndex):
        def find(self, chain: BlockChain, count: int) -> list[int]:
            found = []
            for digest, _ in chain.names(0, count):
                if (block := self.entry(digest)) is None:
                    break
                found.append(block)
            return found

    def hasty(parent: bytes, content: bytes) -> bytes:
        return sha256(parent + content[:8]).digest()

    def tell(index: type[PrefixIndex]) -> list[list[int]]:
        pool = BlockPool(64, 4)
        pool.index = index(64)
        engine = Engine(Scheduler(pool), DecoderExecutor(pocket, 64, 4))
        for name, prompt in enumerate(prompts):
            request = Request(str(name), prompt, greedy, Timeline(engine.clock.now()))
            engine.add(request)
            one = request.sequences[0]
            one.chain = BlockChain(one.tokens, 4, digest=hasty)
        return [request.sequences[0].output_ids for request in engine.run()]

    assert tell(PrefixIndex) == alone
    believed = tell(Trusting)
    assert believed[0] == alone[0] and believed[1] == alone[0] != alone[1]


# ---- a full cache ------------------------------------------------------------------------------------------------


def room(age: float, rate: float, full: list[int], think: float) -> float:
    back = think * (1 - exp(-age / think))
    new = [blocks - full[0] for blocks in full[1:]]
    return full[0] + rate * (sum(new[:-1]) * back + new[-1] * age)


def test_the_room_on_paper() -> None:
    assert round(room(5, 2, [0, 10, 20], 5)) == 263 and "= 263" in PAGE
    assert round(room(10, 2, [0, 10, 20], 5)) == 486 and "= 486" in PAGE
    assert (round(100 * (1 - exp(-1))), round(100 * (1 - exp(-2)))) == (63, 86)
    age = 10 * log(10)
    assert round(age, 1) == 23.0
    assert round(room(age, 4, [0, 20, 40, 60], 10)) == 7686 and "7,686" in PAGE
    assert round(4 * 60 * age) == 5526 and "5,526" in PAGE


def test_two_kinds_of_users() -> None:
    age = 120
    assert "The age is 120 s" in PAGE
    assert (round(100 * (1 - exp(-age / 30))), round(100 * (1 - exp(-age / 600)))) == (98, 18)


def expected(recording: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Blocks not in use, and the hit rate, along the predicted curve."""
    load = recording["load"]
    turns, size, think = load["turns"], load["block_size"], load["think"]
    prompts = [load["system"] + turn * load["message"] + (turn - 1) * load["answer"] for turn in range(1, turns + 1)]
    full = [load["system"] // size, *((prompt + load["answer"] - 1) // size for prompt in prompts)]
    old = sum(blocks - full[0] for blocks in full[1:-1])
    ages = np.geomspace(0.01 * think, 100 * think, 400)
    rates = [size * (turns * full[0] + (1 - exp(-age / think)) * old) / sum(prompts) for age in ages]
    return [room(age, load["rate"], full, think) for age in ages], rates


@pytest.mark.parametrize("blocks", [100, 200, 400])
def test_the_formula_meets_the_engine(recording: dict[str, Any], blocks: int) -> None:
    load = recording["load"]
    talk = Conversations(FixedTokens(load["turns"]), think=Exponential(load["think"]), system=load["system"])
    lengths = Lengths(FixedTokens(load["message"]), FixedTokens(load["answer"]))
    plan = Workload(Poisson(load["rate"]), lengths, talk).plan(7, requests=300)
    executor = CostModelExecutor(LinearStepTime(1e-3, 1e-5))
    engine = Engine(Scheduler(BlockPool(blocks, load["block_size"])), executor, VirtualClock())
    done = serve(engine, plan, PromptIds(range(5, 1024), seed=1))
    lines = [request.timeline for request in done if 30 <= request.timeline.arrival < 300]
    used = sum(s.blocks_used * s.duration for s in engine.steps if 30 <= s.start < 300) / 270
    found = sum(x.cached_tokens for x in lines) / sum(x.prompt_tokens for x in lines)
    assert found == pytest.approx(np.interp(blocks - used, *expected(recording)), rel=0.06)


def test_the_recording_is_about_the_curve(recording: dict[str, Any]) -> None:
    rows = [row for row in recording["rows"] if row["caching"]]
    assert len(rows) >= 4 and {row["blocks"] for row in rows} >= {100, 1000}
    for row in rows:
        assert row["hit_rate"] == pytest.approx(np.interp(row["blocks"] - row["used"], *expected(recording)), rel=0.2)
    off = next(row for row in recording["rows"] if not row["caching"])
    assert off["hit_rate"] == 0
    assert recording["command"] in PAGE


def test_equal_prompts_of_one_step_compute_a_block_each() -> None:
    engine = Engine(Scheduler(BlockPool(100, 16)), CostModelExecutor(LinearStepTime(1e-3, 1e-5)), VirtualClock())
    for name in ("one", "two", "three"):
        engine.add(Request(name, list(range(1, 401)), SamplingParams(max_tokens=8), Timeline(0.0)))
    engine.run()
    assert (engine.steps[0].batch_size, engine.steps[0].prefill_tokens) == (3, 400 + 2 * 16)


# ---- samples -----------------------------------------------------------------------------------------------------


def held(k: int, p: int, m: int, b: int) -> int:
    return p // b + k * (-(-(p + m - 1) // b) - p // b)


@pytest.mark.parametrize(
    ("k", "p", "m", "b", "blocks"), [(2, 6, 4, 4, 5), (8, 1000, 200, 16, 166), (4, 90, 30, 16, 17)]
)
def test_blocks_of_samples(k: int, p: int, m: int, b: int, blocks: int) -> None:
    assert held(k, p, m, b) == blocks
    pool, used = BlockPool(1000, b), []

    def step_time(plan: Plan) -> float:
        used.append(pool.num_used)  # while the step runs
        return 1e-3

    engine = Engine(Scheduler(pool), CostModelExecutor(step_time), VirtualClock())
    engine.add(Request("one", list(range(p)), SamplingParams(n=k, max_tokens=m), Timeline(0.0)))
    engine.run()
    assert max(used) == blocks
    assert pool.counters.copies == (k - 1 if p % b else 0)


def test_without_sharing_eight_samples_hold_six_hundred() -> None:
    assert 8 * -(-1199 // 16) == 600


# ---- who goes first ----------------------------------------------------------------------------------------------


def test_each_eviction_costs_one_block_of_hits() -> None:
    pool, chains = BlockPool(8, 4), [BlockChain(list(range(s, s + 17)), 4) for s in (0, 100)]
    for chain in chains:
        table = pool.allocate(chain, 16)
        pool.publish(table, chain, 16)
        pool.free(table)
    left = []
    for _ in range(6):
        pool.allocate(None, 4)
        left.append([pool.cached_tokens(chain, 17) // 4 for chain in chains])
    assert left == [[3, 4], [2, 4], [1, 4], [0, 4], [0, 3], [0, 2]]


# ---- running out -------------------------------------------------------------------------------------------------


def test_break_even_on_paper() -> None:
    delta = 1e9 * 2 / 100e9 - 2 * 1e9 * 50 / 10e12
    assert delta == pytest.approx(0.010)
    assert round(delta / (2 * 1e9 / 10e12 - 2 * 100e3 / 10e9)) == 56 and "equal at 56 tokens" in PAGE
    reads, token = 16e9 / 3e12, 16e9 / 1e15
    slack = reads - 40 * token
    assert (round(1e3 * reads, 2), round(1e3 * slack, 2)) == (5.33, 4.69)
    assert round(slack / (token - 2 * 128e3 / 50e9)) == 431 and "431 tokens" in PAGE


def test_what_is_said_of_real_models() -> None:
    card, link = DEVICES["h100-sxm"], 64e9

    def seconds(cost: Any) -> float:
        return roofline(cost, bandwidth=card.bandwidth, flops=card.flops).seconds

    def alone(model: Any, n: int) -> float:
        return seconds(prefill_cost(model, n, weight_bytes=2, kv_bytes=2))

    def swap(model: Any, n: int) -> float:
        return 2 * n * model.kv_bytes_per_token(2) / link

    def beside(model: Any, others: int, n: int) -> float:
        before = seconds(decode_cost(model, others, 1000, weight_bytes=2, kv_bytes=2))
        both = step_cost(model, [1] * others + [n], [1000] * others + [n], weight_bytes=2, kv_bytes=2)
        return seconds(both) - before

    llama, old = shape("llama-3-8b"), shape("llama-2-7b")
    assert all(swap(llama, n) < alone(llama, n) for n in range(8, 4097, 8))
    assert 2 < alone(llama, 1000) / swap(llama, 1000) < 6  # "by a few times"
    assert swap(old, 128) < alone(old, 128) and swap(old, 2048) > alone(old, 2048)
    assert beside(llama, 32, 256) < swap(llama, 256) and beside(llama, 32, 2048) > swap(llama, 2048)


def test_the_rest_of_a_long_prompt_costs_a_reading_of_the_weights() -> None:
    llama, card = shape("llama-3-8b"), DEVICES["h100-sxm"]
    costs = (
        prefill_cost(llama, 8000, weight_bytes=2, kv_bytes=2),
        step_cost(llama, [200], [8000], weight_bytes=2, kv_bytes=2),
        decode_cost(llama, 1, 1, weight_bytes=2, kv_bytes=2),
    )
    whole, rest, one = (roofline(cost, bandwidth=card.bandwidth, flops=card.flops).seconds for cost in costs)
    assert whole / rest < 8000 / 200  # "for a fortieth of the tokens"
    assert rest == pytest.approx(one, rel=0.1)


def backlog(cap: int, way: str = "recompute") -> tuple[float, float, int, float, float]:
    """tokens/s, longest gap between two tokens (s), preemptions, longest step (s), mean TTFT (s)."""
    llama, card = shape("llama-3-8b"), DEVICES["h100-sxm"]
    step, fetch = RooflineStepTime(llama, card), 16 * llama.kv_bytes_per_token(2) / 64e9
    lengths = np.random.default_rng(3).geometric(1 / 200, 60)
    scheduler = Scheduler(BlockPool(400, 16), max_num_seqs=cap, preemption=way, host_pool=HostPool(5000))
    executor = CostModelExecutor(
        lambda plan: step(plan) + fetch * len(plan.swap_out + plan.swap_in),
        output_tokens={str(i): int(tokens) for i, tokens in enumerate(lengths)},
    )
    engine = Engine(scheduler, executor, VirtualClock())
    for i in range(60):
        engine.add(Request(str(i), [5 + i] * 200, SamplingParams(max_tokens=2000), Timeline(0.0)))
    done = engine.run()
    gap = max(float(max(np.diff(request.timeline.token_times), default=0)) for request in done)
    preempted = sum(request.timeline.preemptions for request in done)
    longest = max(step.duration for step in engine.steps)
    first = float(np.mean([ttft(request.timeline) for request in done]))
    return float(lengths.sum()) / engine.clock.now(), gap, preempted, longest, first


def test_running_out_costs_silence_and_not_throughput() -> None:
    calm, knee, greedy, swapped = backlog(12), backlog(16), backlog(48), backlog(48, "swap")
    assert calm[2] == 0 and greedy[2] > 20
    assert greedy[0] > 1.1 * calm[0]
    assert greedy[1] > 10 * calm[1]
    assert swapped[0] == pytest.approx(greedy[0], rel=0.02)
    assert knee[2] > 0 and greedy[0] - knee[0] < knee[0] - calm[0]  # "most of the gain comes from larger batches"
    assert greedy[3] < greedy[1] / 4 and swapped[1] == pytest.approx(greedy[1], rel=0.05)  # the gap is waiting
    assert greedy[4] < knee[4] < calm[4]  # "and for the first token too"
