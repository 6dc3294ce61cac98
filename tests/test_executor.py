"""Engine, scheduler, pool and the real decoder together: the words of the naive loop, whatever happens on the way.

The cache is filled with NaN before each run: a slot that is read and was never written shows in every later token.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from underload.cache import BlockPool, HostPool, ReservingPool
from underload.decoder import Batch, DecoderExecutor, Model, Weights, generate, load_model
from underload.decoder.batch import Tables
from underload.decoder.continuation import Continuation
from underload.decoder.detokenize import Detokenizer
from underload.engine import Engine
from underload.request import (
    BlockTable,
    FinishReason,
    InvalidRequest,
    Request,
    SamplingParams,
    Timeline,
    UnderloadError,
)
from underload.scheduling import Greedy, Plan, Scheduler, SizeOrTimeout, Static, Work
from underload.shapes import ModelShape

SHAPE = ModelShape("tiny", 61, 32, 2, 4, 2, 8, 48, 64)
PATHS = ("plain", "fast")
SHARED = [7, 3, 9, 1, 4, 4, 2, 8, 30, 31, 32, 33, 34, 35, 36, 37]

PROMPTS = [[1, 2, 3], [*SHARED, 5], SHARED[:14], [*SHARED[:9], 60, 11], SHARED, [4]]
PARAMS = [
    SamplingParams(max_tokens=9, temperature=0, ignore_eos=True),
    SamplingParams(max_tokens=7, temperature=0.9, seed=11, logprobs=0),
    SamplingParams(max_tokens=8, temperature=1.0, top_p=0.9, seed=42, n=3),
    SamplingParams(max_tokens=6, temperature=0, repetition_penalty=1.3, logprobs=2),
    SamplingParams(max_tokens=9, temperature=0, n=2),
    SamplingParams(max_tokens=15, temperature=0.7, seed=3, stop_token_ids=(17, 40)),
]
MOST = max(len(prompt) + params.max_tokens - 1 for prompt, params in zip(PROMPTS, PARAMS, strict=True))


@pytest.fixture(scope="module")
def models():
    weights = lively_weights()
    return {path: Model(SHAPE, weights, path=path, batch_invariant=True) for path in PATHS}


def lively_weights():
    """Twelve times what a model begins with: logits that differ, and lean on the whole context."""
    weights = Weights.random(SHAPE, seed=1)
    for tensor in weights.tensors():
        if tensor.dim() == 2:
            tensor.mul_(12.0)
    return weights


@pytest.fixture(scope="module")
def expected(models):
    """What the naive loop says, by path."""
    return {path: naively(model, PROMPTS, PARAMS) for path, model in models.items()}


def naively(model, prompts, params):
    """For each prompt, for each sample: (ids, reason, log-probabilities)."""
    said = [[] for _ in prompts]
    for one in generate(model, prompts, params):
        said[one.prompt_index].append((one.token_ids, one.finish_reason, logprobs(one.draws)))
    return said


def logprobs(draws):
    return [(draw.logprob, draw.top_logprobs) for draw in draws]


class Served:
    """An engine on the real decoder, its cache full of NaN, and what it handed out."""

    def __init__(
        self, model, *, block_size=4, num_blocks=64, host=0, caching=True, kv_dtype=None, on_step=None, pool=None,
        lookahead=0, **limits,
    ):  # fmt: skip
        pool = pool or BlockPool(num_blocks, block_size, prefix_caching=caching)
        swap = {"preemption": "swap", "host_pool": HostPool(host)} if host else {}
        limits.setdefault("max_model_len", model.shape.max_positions)
        self.executor = DecoderExecutor(model, num_blocks, block_size, host_blocks=host, kv_dtype=kv_dtype)
        for data in (self.executor.kv.keys, self.executor.kv.values, self.executor.host.data):
            data[:] = nan_of(data)
        scheduler = Scheduler(pool, **swap, **limits)
        self.engine = Engine(scheduler, self.executor, on_step=self._see, lookahead=lookahead)
        self.requests: list[Request] = []
        self.draws: dict[object, list] = {}
        self.texts: dict[object, str] = {}
        self.plans = []
        self._on_step = on_step

    def add(self, prompt, params, name=None):
        name = f"r{len(self.requests)}" if name is None else name
        request = Request(name, list(prompt), params, Timeline(self.engine.clock.now()))
        self.engine.add(request)
        self.requests.append(request)
        return request

    def run(self, prompts=PROMPTS, params=PARAMS):
        for prompt, wishes in zip(prompts, params, strict=True):
            self.add(prompt, wishes)
        self.engine.run()
        pool, host = self.engine.scheduler.pool, self.engine.scheduler.host_pool
        assert pool.num_used == 0 and (host is None or host.num_used == 0)
        assert not self.executor._continuations and not self.executor._choosy  # all released
        assert not self.executor._flights
        return self

    def said(self, requests=None):
        return [
            [(s.output_ids, s.finish_reason, logprobs(self.draws.get(s, []))) for s in request.sequences]
            for request in (self.requests if requests is None else requests)
        ]

    @property
    def preemptions(self):
        return sum(s.preemptions for request in self.requests for s in request.sequences)

    def _see(self, plan, result, record):
        self.plans.append(plan)
        for work, sampled in zip(plan.work, result.sampled, strict=True):
            sequences = work.sequence.request.sequences if work.samples > 1 else [work.sequence]
            for sequence, one in zip(sequences, sampled, strict=False):
                # Else it failed, or it was drawn before anybody saw that the sequence had ended.
                if len(self.draws.get(sequence, ())) < len(sequence.output_ids):
                    self.draws.setdefault(sequence, []).append(one.draw)
                    self.texts[sequence] = self.texts.get(sequence, "") + one.text
        if self._on_step is not None:
            self._on_step(self)


def nan_of(data):
    """NaN in the array's own terms: 16-bit storage holds bits."""
    if isinstance(data, np.ndarray) and data.dtype != np.float32:
        return -1  # all bits set is a NaN in float16 and bfloat16
    return float("nan")


# ---- the same words ------------------------------------------------------------------------------------------------

WAYS = list(
    itertools.product(
        PATHS,
        (1, 4, 16),  # tokens a block
        ("ample", "tight", "smallest"),  # pool
        ("recompute", "swap"),
        (True, False),  # prefix cache
    )
)


@pytest.mark.parametrize("path, block_size, pool, preemption, caching", WAYS)
def test_the_words_are_those_of_the_naive_loop(models, expected, path, block_size, pool, preemption, caching):
    smallest = -(-MOST // block_size)
    num_blocks = {"ample": 400, "tight": smallest + smallest // 2 + 1, "smallest": smallest}[pool]
    chunk = {1: 3, 4: 5, 16: 2048}[block_size]
    served = Served(
        models[path],
        block_size=block_size,
        num_blocks=num_blocks,
        host=2 * smallest if preemption == "swap" else 0,
        caching=caching,
        max_num_batched_tokens=chunk,
    ).run()
    assert served.said() == expected[path]
    assert max(plan.num_tokens for plan in served.plans) <= chunk
    if pool == "smallest":
        assert served.preemptions > 0
    swapped = any(plan.swap_out for plan in served.plans)
    assert swapped == (preemption == "swap" and served.preemptions > 0)
    # With a prefix cache, what went to the host may still be here when it is wanted.
    assert caching or any(plan.swap_in for plan in served.plans) == swapped
    if pool == "ample" and block_size > 1:
        assert any(plan.copies for plan in served.plans)  # samples that part ways inside a block
    if caching and pool == "ample" and block_size < 16:
        assert sum(request.timeline.cached_tokens for request in served.requests) >= 2 * (len(SHARED) - 1) // 2


@pytest.mark.parametrize("path, placement", list(itertools.product(PATHS, ("buddy", "first-fit"))))
def test_reserved_runs_say_the_same(models, expected, path, placement):
    for block_size, num_blocks in ((4, 32), (16, 8), (1, 96)):
        served = Served(
            models[path],
            block_size=block_size,
            num_blocks=num_blocks,
            pool=ReservingPool(num_blocks, block_size, placement=placement),
            reserve=lambda request: len(request.prompt_ids) + request.params.max_tokens,
        ).run()
        assert served.said() == expected[path]


def test_every_chunk_size_says_the_same(models, expected):
    for chunk in (1, 2, 7, 8, 16, 17, 40):
        assert Served(models["fast"], max_num_batched_tokens=chunk).run().said() == expected["fast"]


def test_any_order_of_arrival_says_the_same(models, expected):
    for seed in range(6):
        order = random.Random(seed).sample(range(len(PROMPTS)), len(PROMPTS))
        served = Served(models["fast"], num_blocks=12, max_num_seqs=3 + seed % 3)
        served.run([PROMPTS[i] for i in order], [PARAMS[i] for i in order])
        assert served.said() == [expected["fast"][i] for i in order]


@pytest.mark.parametrize("path", PATHS)
def test_neighbours_that_are_cancelled_leave_no_trace(models, expected, path):
    for seed in range(4):
        rng = random.Random(seed)
        leaving = {f"gone{i}": rng.randrange(1, 8) for i in range(4)}

        def cancel(served, leaving=leaving):
            for name, step in leaving.items():
                if step == len(served.plans):
                    served.engine.cancel(name)

        served = Served(models[path], num_blocks=14, on_step=cancel, max_num_batched_tokens=11)
        gone = []
        for i, (prompt, params) in enumerate(zip(PROMPTS, PARAMS, strict=True)):
            served.add(prompt, params)
            if i < len(leaving):
                other = SamplingParams(max_tokens=30, temperature=1.0, n=1 + i % 3, ignore_eos=True)
                gone.append(served.add(rng.choice(PROMPTS), other, name=f"gone{i}"))
        served.run([], [])
        assert served.said([request for request in served.requests if request not in gone]) == expected[path]
        assert {s.finish_reason for r in gone for s in r.sequences} == {FinishReason.CANCELLED}


def test_a_prompt_that_is_wholly_cached_computes_its_last_block_again(models):
    """And a longer one takes what it can: as many whole blocks as it shares."""
    params = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
    served = Served(models["fast"], block_size=4)
    for prompt in ([5] * 8, [5] * 8, [5] * 8 + [6] * 4):
        request = served.add(prompt, params)
        served.engine.run()
        assert request.sequences[0].output_ids == generate(models["fast"], prompt, params)[0].token_ids
    assert [request.timeline.cached_tokens for request in served.requests] == [0, 4, 8]


@pytest.mark.parametrize("path", PATHS)
def test_a_narrower_cache_says_the_same_in_every_pool(models, path):
    said = [
        Served(models[path], block_size=size, num_blocks=-(-MOST // size), host=host, kv_dtype="float16").run().said()
        for size, host in ((1, 0), (4, 12), (16, 0))
    ]
    assert said[0] == said[1] == said[2]


def test_what_a_step_moves_is_counted_in_the_cache_s_own_width(models):
    runs = [Served(models["plain"], kv_dtype=dtype) for dtype in ("float32", "float16")]
    wide, narrow = (run.run(PROMPTS[:1], PARAMS[:1]).engine.steps for run in runs)
    shape = models["plain"].shape
    for one, other in zip(wide, narrow, strict=True):
        assert one.flops == other.flops > 0
        saved = shape.kv_bytes_per_token(2) * (one.context_tokens + one.prefill_tokens + one.decode_tokens)
        assert one.bytes_read - other.bytes_read == saved


# ---- text ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pocket():
    return load_model("pocket", device="cpu", path="fast")


TEXTS = ["A batch of", "The queue", "Once upon", "ünïcode"]


def test_streamed_text_is_the_text_of_the_naive_loop_also_after_preemption(pocket):
    free = generate(pocket, TEXTS, SamplingParams(max_tokens=24, temperature=0, ignore_eos=True))
    stop = free[0].text[9:12]
    params = [
        SamplingParams(max_tokens=24, temperature=0, stop=(stop,), ignore_eos=True),
        SamplingParams(max_tokens=20, temperature=0.9, seed=5, n=3, stop=("e ", "zzz")),
        SamplingParams(max_tokens=24, temperature=0, stop=(free[2].text[-3:] + "?",), ignore_eos=True),
        SamplingParams(max_tokens=17, temperature=0.7, seed=1, min_tokens=9, stop=(" ",)),
    ]
    wanted = generate(pocket, TEXTS, params)
    assert wanted[0].finish_reason is FinishReason.STOP and stop not in wanted[0].text
    assert wanted[4].text == free[2].text  # its end, held back as the beginning of a stop string, came after all
    ids = [pocket.tokenizer.encode(text) for text in TEXTS]
    most = max(len(prompt) + one.max_tokens for prompt, one in zip(ids, params, strict=True))
    for host in (0, 40):
        served = Served(pocket, num_blocks=-(-most // 4) + 1, host=host).run(ids, params)
        assert served.preemptions > 0
        sequences = [s for request in served.requests for s in request.sequences]
        assert [s.output_ids for s in sequences] == [one.token_ids for one in wanted]
        assert [served.texts[s] for s in sequences] == [one.text for one in wanted]
        assert [s.finish_reason for s in sequences] == [one.finish_reason for one in wanted]


def test_making_text_is_timed(pocket):
    served = Served(pocket).run([pocket.tokenizer.encode(TEXTS[0])], [SamplingParams(max_tokens=4, ignore_eos=True)])
    timeline = served.requests[0].timeline
    assert 0 < timeline.detokenize_seconds < timeline.finished - timeline.arrival


# ---- what fails, and alone -----------------------------------------------------------------------------------------


def poisoned(path):
    """Whoever reads token 60 computes NaN."""
    weights = lively_weights()
    weights.embed[60] = torch.nan
    return Model(SHAPE, weights, path=path, batch_invariant=True)


@pytest.mark.parametrize("path, lookahead", list(itertools.product(PATHS, (0, 2))))
def test_a_row_without_a_law_fails_alone(path, lookahead):
    model = poisoned(path)
    prompts = [[1, 2, 3], [5, 60], [60], [9, 9, 9, 9, 9]]
    for params in (
        SamplingParams(max_tokens=4, temperature=0, ignore_eos=True),
        SamplingParams(max_tokens=4, temperature=1.0, seed=8, n=2, ignore_eos=True, logit_bias={60: float("-inf")}),
    ):
        served = Served(model, lookahead=lookahead).run(prompts, [params] * 4)
        wanted = generate(model, [prompts[0], prompts[3]], params)
        sound = [s for i in (0, 3) for s in served.requests[i].sequences]
        assert [s.output_ids for s in sound] == [one.token_ids for one in wanted]
        for i in (1, 2):
            request = served.requests[i]
            assert {s.finish_reason for s in request.sequences} == {FinishReason.ERROR}
            assert "NaN" in request.error and f"'r{i}'" in request.error
            assert all(s.output_ids == [] for s in request.sequences)
        assert served.engine.aborted == 0


def test_a_token_that_the_tokenizer_does_not_know_fails_its_request_alone(pocket, monkeypatch):
    real = type(pocket.tokenizer).id_to_bytes
    ids = [pocket.tokenizer.encode(text) for text in TEXTS[:2]]
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    wanted = generate(pocket, ids, params)
    unknown = wanted[0].token_ids[3]
    assert unknown not in wanted[1].token_ids

    def id_to_bytes(self, index):
        if index == unknown:
            raise InvalidRequest(f"token id {index} has no bytes")
        return real(self, index)

    monkeypatch.setattr(type(pocket.tokenizer), "id_to_bytes", id_to_bytes)
    served = Served(pocket).run(ids, [params] * 2)
    assert served.requests[0].error == f"token id {unknown} has no bytes"
    assert served.requests[0].sequences[0].output_ids == wanted[0].token_ids[: wanted[0].token_ids.index(unknown)]
    assert served.requests[1].sequences[0].output_ids == wanted[1].token_ids


@pytest.mark.parametrize(
    "prompt, params, says",
    [
        ([1, 61], {}, "request 'bad': token id 61 is outside the vocabulary of 61"),
        ([-1], {}, "token id -1"),
        ([1], {"logit_bias": {99: 1.0}}, "request 'bad': logit_bias names token 99"),
        ([1], {"stop": ("x",)}, "has no tokenizer, so stop strings cannot be seen"),
        ([1] * 64, {}, "64 tokens .* 64"),
    ],
)
def test_what_would_fail_a_whole_step_is_refused_before_it_is_queued(models, expected, prompt, params, says):
    for limits in ({}, {"max_model_len": None}):
        served = Served(models["fast"], **limits)
        with pytest.raises(InvalidRequest, match=says):
            served.add(prompt, SamplingParams(**params), name="bad")
        assert served.run().said() == expected["fast"]


def test_a_scheduler_without_a_limit_of_length_takes_the_model_s(models):
    served = Served(models["fast"], max_model_len=None)
    served.run([[1] * 60], [SamplingParams(max_tokens=20, ignore_eos=True)])
    sequence = served.requests[0].sequences[0]
    assert len(sequence.tokens) == 64 and sequence.finish_reason is FinishReason.LENGTH


def test_an_executor_of_a_model_without_weights_is_refused():
    model = Model(SHAPE, Weights.random(SHAPE, device="meta"), path="plain")
    with pytest.raises(UnderloadError, match="'meta'.* holds no weights"):
        DecoderExecutor(model, 4, 4)


# ---- faults --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_blocks_leave_for_the_host_before_they_are_copied_over_and_arrive_after(models, path):
    executor = DecoderExecutor(models[path], 4, 4, host_blocks=2)
    kv, host = executor.kv, executor.host
    for block in range(4):
        kv.keys[:, block] = kv.values[:, block] = float(block)
    host.data[:] = 9.0
    # Block 1 goes out and takes block 0's content; block 0, no longer read, takes what comes in.
    result = executor.execute(Plan(0, swap_out=[(1, 0)], copies=[(0, 1), (1, 2)], swap_in=[(1, 0)]))
    assert result.sampled == []
    assert [float(kv.keys[0, block].max()) for block in range(4)] == [9.0, 0.0, 0.0, 3.0]
    assert float(host.data[0].min()) == 1.0 and float(host.data[1].max()) == 9.0


class Injected(RuntimeError):
    """A fault put in on purpose."""


class Faults:
    """Raises before or after what it wraps, with a given chance, a limited number of times."""

    def __init__(self, seed, chance=0.12, most=40):
        self.random, self.chance, self.left = random.Random(seed), chance, most
        self.raised: dict[str, int] = {}

    def wrap(self, owner, name, monkeypatch):
        real = getattr(owner, name)

        def call(*args, **kwargs):
            self._maybe(f"before {name}")
            result = real(*args, **kwargs)
            self._maybe(f"after {name}")
            return result

        monkeypatch.setattr(owner, name, call)

    def _maybe(self, point):
        if self.left and self.random.random() < self.chance:
            self.left -= 1
            self.raised[point] = self.raised.get(point, 0) + 1
            raise Injected(point)


GREEDY = [SamplingParams(max_tokens=8, temperature=0, n=1 + i % 2, ignore_eos=True) for i in range(len(PROMPTS))]


@pytest.mark.parametrize("path, host", [(path, host) for path in PATHS for host in (0, 14)])
def test_steps_that_fail_anywhere_change_no_word(models, expected, path, host, monkeypatch):
    raised: dict[str, int] = {}
    loads = [(PARAMS, expected[path]), (GREEDY, naively(models[path], PROMPTS, GREEDY))]
    for seed, (params, wanted) in itertools.product(range(4), loads):
        with monkeypatch.context() as patch:
            faults = Faults(seed)
            served = Served(models[path], num_blocks=9, host=host, max_num_batched_tokens=9, max_aborts=200)
            for name in ("forward", "greedy"):
                faults.wrap(models[path], name, patch)
            for name in ("copy_blocks", "swap_out", "swap_in"):
                faults.wrap(served.executor.kv, name, patch)
            served.run(PROMPTS, params)
        assert served.said() == wanted
        assert served.engine.aborted == sum(faults.raised.values()) > 0
        for point, count in faults.raised.items():
            raised[point] = raised.get(point, 0) + count
    called = ("forward", "greedy", "copy_blocks", "swap_out", "swap_in")
    assert set(raised) == {f"{when} {name}" for when in ("before", "after") for name in called}


def test_a_step_that_fails_between_two_samples_streams_nothing_twice(pocket, monkeypatch):
    ids = [pocket.tokenizer.encode(text) for text in TEXTS]
    params = [SamplingParams(max_tokens=16, temperature=0.9, seed=i, n=2, stop=("the",), logprobs=1) for i in range(4)]
    wanted = generate(pocket, ids, params)
    raised = set()
    for seed in range(1, 4):
        with monkeypatch.context() as patch:
            faults = Faults(seed, chance=0.05)
            served = Served(pocket, num_blocks=40, max_aborts=200)
            faults.wrap(Continuation, "say", patch)
            faults.wrap(Detokenizer, "push", patch)
            served.run(ids, params)
        sequences = [s for request in served.requests for s in request.sequences]
        assert [served.texts[s] for s in sequences] == [one.text for one in wanted]
        assert [s.output_ids for s in sequences] == [one.token_ids for one in wanted]
        raised |= set(faults.raised)
    assert raised == {"before say", "before push", "after push", "after say"}


def test_samples_without_a_seed_share_one_that_no_other_request_has(models):
    requests = [Request(name, [1], SamplingParams(n=3), Timeline(0.0)) for name in "ab"]
    seeds = [{one.state.seed for one in Continuation.of(models["plain"], request)} for request in requests]
    assert len(seeds[0]) == len(seeds[1]) == 1 and seeds[0] != seeds[1]


def test_a_request_that_no_step_survives_is_given_up_by_name(models, monkeypatch):
    served = Served(models["fast"], max_aborts=2)
    with monkeypatch.context() as patch:
        patch.setattr(served.executor.kv, "copy_blocks", lambda pairs: (_ for _ in ()).throw(MemoryError("no more")))
        served.run([[1, 2]], [SamplingParams()])
    assert re.match("3 steps with it failed; the last: MemoryError: no more", served.requests[0].error)
    later = served.add(PROMPTS[0], PARAMS[0])
    served.engine.run()
    assert later.sequences[0].output_ids == generate(models["fast"], PROMPTS[0], PARAMS[0])[0].token_ids


# ---- tokens that are thrown away -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path, batching", list(itertools.product(PATHS, (Static(3), SizeOrTimeout(4, 0.0), Greedy(3))))
)
def test_batches_held_to_their_end_say_the_same(models, expected, path, batching):
    for block_size in (1, 4, 16):
        served = Served(models[path], block_size=block_size, num_blocks=160, batching=batching).run()
        assert served.said() == expected[path]
        held = [plan for plan in served.plans if plan.held]
        assert held and any(plan.padding_tokens > len(plan.held) for plan in served.plans)
        for plan, record in zip(served.plans, served.engine.steps, strict=True):
            assert record.num_tokens == plan.num_tokens + plan.padding_tokens
            assert record.flops >= 2 * SHAPE.num_layers * SHAPE.layer_matrix_parameters * record.num_tokens


class Prepared:
    """A few sequences whose prompts have been computed, and plans for their next step."""

    BLOCK_SIZE = 4

    def __init__(self, model, **options):
        self.executor = DecoderExecutor(model, 24, self.BLOCK_SIZE, **options)
        for data in (self.executor.kv.keys, self.executor.kv.values):
            data[:] = nan_of(data)
        self.sequences = []
        for index, length in enumerate((9, 8, 3, 1)):
            params = SamplingParams(max_tokens=9, temperature=0, logprobs=1, ignore_eos=True)
            prompt = [(7 * index + 3 * i) % 60 for i in range(length)]
            sequence = Request(f"r{index}", prompt, params, Timeline(0.0)).sequences[0]
            sequence.table = BlockTable(self.BLOCK_SIZE, list(range(6 * index, 6 * index + 6)))
            self.sequences.append(sequence)
        self.step([Work(sequence, 0, len(sequence.tokens)) for sequence in self.sequences])

    def step(self, work, held=(), padding=0):
        plan = Plan(0, work=work, held=list(held), padding_tokens=padding)
        plan.sum_up()
        sampled = self.executor.execute(plan).sampled
        for one, (drawn,) in zip(work, sampled, strict=True):
            one.sequence.num_computed = one.stop
            one.sequence.tokens.append(drawn.token_id)
        return [drawn.draw for (drawn,) in sampled]

    def decode(self, some, **waste):
        work = [Work(sequence, sequence.num_computed, len(sequence.tokens)) for sequence in some]
        return self.step(work, **waste)

    def stored(self):
        """Every block of the pool, as bytes: NaN is equal to itself there."""
        return [np.asarray(data)[:, :24].tobytes() for data in (self.executor.kv.keys, self.executor.kv.values)]


@pytest.mark.parametrize("path", PATHS)
def test_tokens_that_are_thrown_away_change_no_bit_of_anybody_s(models, path):
    one, other = Prepared(models[path]), Prepared(models[path])
    for step in range(4):  # the held sequences have 9 and 3 tokens: within a block, and 8: at the end of one
        held = [one.sequences[row] for row in (0, 1, 3)[: 1 + step % 3]]
        drawn = one.decode([one.sequences[2]], held=held, padding=len(held) + 5 * (step % 2))
        assert drawn == other.decode([other.sequences[2]])
        assert one.stored() == other.stored()
    # And those that were held can go on where they stood.
    assert one.decode(one.sequences) == other.decode(other.sequences)
    assert one.stored() == other.stored()


def test_a_row_that_is_thrown_away_costs_what_a_real_one_costs(models):
    """It is a token of the batch, and one that is held reads its whole context."""
    prepared = Prepared(models["plain"])
    a, b, c, d = prepared.sequences
    plan = Plan(0, work=[Work(c, 3, 4)], held=[a, b, d], padding_tokens=5)
    batch = Batch.of_plan(plan, Tables(), scratch=24)
    assert batch.token_ids.tolist() == [c.tokens[3], 0, 0, 0, 0, 0]
    assert batch.context_lens.tolist() == [4, 9, 8, 1, 1, 1]
    assert batch.query_lens.tolist() == [1] * 6 and batch.logit_rows.tolist() == [0]
    # What is written goes to the scratch block, except for the token that is wanted.
    assert [slot // 4 for slot in batch.slots(4)] == [12, 24, 24, 24, 24, 24]
    # What is read is the sequence's own, but for the block that is being written.
    tables = [[block for block in row if block >= 0] for row in batch.block_tables.tolist()]
    assert tables[1:4] == [[0, 1, 24], [6, 24], [24]]


def test_a_held_sequence_without_its_blocks_is_a_fault_that_is_named(models):
    prepared = Prepared(models["plain"])
    sequence = prepared.sequences[0]
    sequence.table.blocks = sequence.table.blocks[:2]
    plan = Plan(0, held=[sequence], padding_tokens=1)
    with pytest.raises(UnderloadError, match="a held sequence of 9 tokens must keep their blocks, but they hold 8"):
        prepared.executor.execute(plan)


def test_tables_that_are_kept_are_those_that_would_be_made_anew():
    rng = random.Random(4)
    tables, rows = Tables(), []
    for _ in range(300):
        what = rng.random()
        if what < 0.4 and rows:
            rng.choice(rows).append(rng.randrange(50))
        elif what < 0.55:
            rows.insert(rng.randrange(len(rows) + 1), [rng.randrange(50) for _ in range(rng.randrange(1, 12))])
        elif what < 0.7 and rows:
            rows.pop(rng.randrange(len(rows)))
        elif what < 0.85 and rows:
            row = rng.choice(rows)
            row[rng.randrange(len(row))] = rng.randrange(50)  # a block that was copied before it is written
        elif rows:
            row = rng.choice(rows)
            del row[1 + rng.randrange(len(row)) :]
        found = tables.of(rows)
        assert found.dtype == np.int32 and found.flags.c_contiguous and len(found) == len(rows)
        for row, blocks in zip(found.tolist(), rows, strict=True):
            assert row == blocks + [-1] * (len(row) - len(blocks))


@pytest.mark.parametrize("path", PATHS)
def test_a_step_that_is_launched_is_collected_once(models, path):
    apart, whole = Prepared(models[path]), Prepared(models[path])
    plan = Plan(1, work=[Work(s, s.num_computed, len(s.tokens)) for s in apart.sequences])
    with pytest.raises(UnderloadError, match="no step is under way; launch a plan"):
        apart.executor.collect()
    apart.executor.launch(plan)
    apart.executor.launch(plan)
    apart.executor.forget(1)
    drawn = [one.draw for (one,) in apart.executor.collect().sampled]
    assert drawn == whole.decode(whole.sequences)
    assert apart.stored() == whole.stored()
    with pytest.raises(UnderloadError, match="no step is under way"):
        apart.executor.collect()
    apart.executor.launch(Plan(2))
    assert apart.executor.collect().sampled == []


# ---- ahead ---------------------------------------------------------------------------------------------------------


def ending_early(model):
    """Greedy wishes, most of which end where their own words happen to hold a stop token; and the naive words."""
    params = []
    for index, prompt in enumerate(PROMPTS):
        free = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
        stop = (generate(model, prompt, free)[0].token_ids[4],) if index % 3 else ()
        least = 6 if index == 4 else 0
        params.append(
            SamplingParams(max_tokens=12, temperature=0, n=1 + index % 2, stop_token_ids=stop, min_tokens=least)
        )
    return params, naively(model, PROMPTS, params)


@pytest.mark.parametrize("path, lookahead", list(itertools.product(PATHS, (1, 2))))
def test_tokens_that_are_taken_before_they_are_seen_are_the_same(models, path, lookahead):
    greedy, wanted = ending_early(models[path])
    greedy[4], wanted[4] = GREEDY[0], naively(models[path], [PROMPTS[4]], [GREEDY[0]])[0]
    deepest = 0

    def look(served):
        nonlocal deepest
        deepest = max(deepest, len(served.executor._flights))

    served = Served(models[path], lookahead=lookahead, on_step=look).run(PROMPTS, greedy)
    assert served.said() == wanted
    assert deepest == lookahead  # and one that was just collected
    works = [work for plan in served.plans for work in plan.work]
    assert any(
        work.stop == len(work.sequence.tokens) for work in works
    )  # who had said a stop token had gone on from it


@pytest.mark.parametrize("path", PATHS)
def test_any_load_says_the_same_with_any_lookahead(models, expected, path, monkeypatch):
    model = models[path]
    loads = [(PARAMS, expected[path]), ending_early(model), (GREEDY, naively(model, PROMPTS, GREEDY))]
    preemptions = aborted = 0
    for seed in range(24):
        rng = random.Random(seed)
        params, wanted = loads[seed % 3]
        order = rng.sample(range(len(PROMPTS)), len(PROMPTS))
        leaving = rng.randrange(2, 9)

        def cancel(served, leaving=leaving):
            if len(served.plans) == leaving:
                served.engine.cancel("gone")

        with monkeypatch.context() as patch:
            served = Served(
                model,
                num_blocks=rng.choice([9, 12, 60]),
                host=rng.choice([0, 14]),
                caching=rng.random() < 0.5,
                lookahead=rng.choice([1, 1, 2]),
                max_num_batched_tokens=rng.choice([9, 40]),
                max_num_seqs=rng.choice([3, 256]),
                batching=rng.choice([None, None, Static(3), Greedy(4)]),
                max_aborts=200,
                on_step=cancel,
            )
            if seed % 2:
                faults = Faults(seed, chance=0.05)
                for name in ("forward", "greedy"):
                    faults.wrap(model, name, patch)
                for name in ("copy_blocks", "swap_out", "swap_in"):
                    faults.wrap(served.executor.kv, name, patch)
                faults.wrap(served.executor, "collect", patch)
            gone = served.add(SHARED[:6], SamplingParams(max_tokens=20, temperature=0, ignore_eos=True), name="gone")
            served.run([PROMPTS[i] for i in order], [params[i] for i in order])
        assert served.said(served.requests[1:]) == [wanted[i] for i in order]
        assert gone.finished
        preemptions += served.preemptions
        aborted += served.engine.aborted
    assert preemptions > 0 and aborted > 0


def test_text_that_is_computed_ahead_is_streamed_as_it_would_be(pocket):
    free = generate(pocket, TEXTS, SamplingParams(max_tokens=24, temperature=0, ignore_eos=True))
    params = [
        SamplingParams(max_tokens=24, temperature=0, stop=(one.text[9:12],) if index % 2 else (), ignore_eos=True)
        for index, one in enumerate(free)
    ]
    wanted = generate(pocket, TEXTS, params)
    assert wanted[1].finish_reason is FinishReason.STOP
    for lookahead in (1, 2):
        served = Served(pocket, lookahead=lookahead).run([pocket.tokenizer.encode(text) for text in TEXTS], params)
        sequences = [request.sequences[0] for request in served.requests]
        assert [s.output_ids for s in sequences] == [one.token_ids for one in wanted]
        assert [served.texts[s] for s in sequences] == [one.text for one in wanted]


def test_nobody_goes_ahead_while_somebody_takes_another_token_than_the_likeliest(models):
    executor = DecoderExecutor(models["fast"], 8, 4)
    one, other = (Request(name, [1], params, Timeline(0.0)) for name, params in zip("ab", PARAMS, strict=False))
    assert executor.unseen(one.sequences[0])
    assert not executor.unseen(other.sequences[0]) and not executor.unseen(one.sequences[0])
    executor.release(other)
    assert executor.unseen(one.sequences[0])


@pytest.mark.parametrize("path", PATHS)
def test_plans_under_way_are_collected_in_order_and_a_failed_one_is_not_among_them(models, path, monkeypatch):
    """Three steps, each from what the one before draws; a fourth fails, and the third is dropped and done again."""
    apart, whole = Prepared(models[path]), Prepared(models[path])
    for prepared in (apart, whole):
        for sequence in prepared.sequences:
            sequence.request.params = GREEDY[0]
            prepared.executor.release(sequence.request)
    plans = [
        Plan(n, work=[Work(s, s.num_computed + n, s.num_computed + n + 1) for s in apart.sequences]) for n in range(4)
    ]
    with pytest.raises(UnderloadError, match="asked for 1 tokens of a sequence that has 0 left"):
        apart.executor.launch(plans[1])  # nobody draws what it begins with
    for plan in plans[:3]:
        apart.executor.launch(plan)
    with monkeypatch.context() as patch:
        faults = Faults(0, chance=1.0)
        faults.wrap(apart.executor.kv, "swap_in", patch)
        with pytest.raises(Injected):
            apart.executor.launch(plans[3])
    apart.executor.forget(2)
    apart.executor.launch(plans[2])
    for _ in range(3):
        sampled = apart.executor.collect().sampled
        assert [one.token_id for (one,) in sampled] == [draw.token_id for draw in whole.decode(whole.sequences)]
        for sequence, (one,) in zip(apart.sequences, sampled, strict=True):
            sequence.tokens.append(one.token_id)
    assert apart.stored() == whole.stored()
    with pytest.raises(UnderloadError, match="no step is under way"):
        apart.executor.collect()


def test_the_benchmark_of_the_executor_measures_decode_steps(tmp_path):
    script = Path(__file__).parent / "benchmarks" / "executor.py"
    spec = importlib.util.spec_from_file_location("executor_benchmark", script)
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    assert benchmark.main(["--quick", "--out", str(tmp_path / "executor.json")]) == 0
    record = json.loads((tmp_path / "executor.json").read_text())
    assert [row["batch"] for row in record["rows"]] == [1, 4]
    for row in record["rows"]:
        assert row["steps"] == 8 and 0 < row["beside_us_least"] <= row["beside_us"]
        assert row["model_us"] < row["execute_us"]
