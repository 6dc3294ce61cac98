"""The parts of gpu.py that serve: captured decode steps, whole engine steps, a mixed load, an open load, and memory.

Each part takes the setting of gpu.py (device, dtype, quick, and `left()`, the seconds that remain) and returns plain
data. What does not fit into the time left is named in its place.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from underload import metrics
from underload.cache import BlockPool, HostPool
from underload.decoder import Batch, DecoderExecutor, Model, Weights, blocks_for_memory, ceilings, generate
from underload.decoder.attention_triton import unsupported
from underload.decoder.graph import DecodeGraphs, capture_on_gpu, size_for
from underload.decoder.measure import synchronise
from underload.engine import Engine, serve
from underload.request import BlockTable, Request, SamplingParams, Sequence, Timeline
from underload.scheduling import Scheduler
from underload.shapes import ModelShape, roofline, sequences_that_fit, shape, step_cost
from underload.workload import Lengths, LognormalTokens, Poisson, PromptIds, Workload

BLOCK_SIZE = 16
_BUDGET = 8192  # tokens of a step while prompts are computed
TINY = ModelShape("tiny", 61, 16, 1, 2, 1, 8, 24, 128)


def models(setting: Any) -> list[str]:
    return ["tiny"] if setting.quick else ["smollm2-1.7b", "llama-3-8b"]


def build(setting: Any, name: str, dtype: torch.dtype | None = None, **options: Any) -> Model:
    """Random weights, the logits of which lean on the context; in the setting's dtype when `dtype` is None."""
    small = TINY if name == "tiny" else shape(name)
    weights = Weights.random(small, dtype=dtype or setting.dtype, device=setting.device)
    for tensor in weights.tensors():
        if tensor.dim() == 2:
            tensor.mul_(68 / small.hidden_size**0.5)
    return Model(small, weights, path="plain", attention="triton" if kernels(setting) else "torch", **options)


def kernels(setting: Any) -> bool:
    return unsupported(setting.device) is None


def graphs_of(setting: Any, executor: DecoderExecutor) -> DecodeGraphs:
    """Graphs that must not fail; without a GPU, a capture that calls the step again."""
    path = executor.model.plain_path
    assert path is not None
    capture = capture_on_gpu() if setting.device.type == "cuda" else lambda run: run
    return DecodeGraphs(path, executor.kv, executor.kv.num_blocks - 1, capture)  # type: ignore[arg-type]


def free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


# -------------------------------------------------- what must be right


def captured(setting: Any) -> dict:
    """Replayed decode steps beside the path that launches one by one: logits, cache, and the engine's tokens."""
    if not kernels(setting):
        return {"skipped": unsupported(setting.device)}
    name = "tiny" if setting.quick else "smollm2-135m"
    block_size = 4 if setting.quick else BLOCK_SIZE
    rows: list[dict[str, Any]] = []
    rng = np.random.default_rng(0)
    # Rounding of 16-bit numbers grows from layer to layer; where both ways add in one order, there is none.
    ways = [(torch.float32, False, 2e-3), (setting.dtype, True, 0.0), (torch.bfloat16, False, None)]
    for dtype, invariant, bound in ways[: 2 if setting.quick else 3]:
        model = build(setting, name, dtype, batch_invariant=invariant)
        executor = DecoderExecutor(model, 60 if setting.quick else 3000, block_size, graphs=False)
        kv, graphs = executor.kv, graphs_of(setting, executor)
        for pool in (kv.keys, kv.values):  # type: ignore[attr-defined]
            pool.normal_()
        for count in (1, 3) if setting.quick else (1, 3, 8, 30, 64, 200):
            contexts = rng.integers(1, 20 if setting.quick else 220, size=count)
            if count == 3 and not setting.quick:
                contexts[1] = 5000  # a ragged batch, split in many
            blocks, work = list(rng.permutation(kv.num_blocks - 1)), []
            for context in contexts.tolist():
                need = -(-context // block_size)
                table = BlockTable(block_size, [int(block) for block in blocks[:need]])
                blocks = blocks[need:]
                tokens = rng.integers(0, model.shape.vocab_size, size=context).tolist()
                work.append((Sequence(context, tokens, num_computed=context - 1, table=table), 1))
            batch = Batch.of(work)
            replay = graphs.replay(batch)
            if replay is None:
                raise AssertionError(f"no graph took {count} rows")
            ids, logits = replay.ids.tolist(), replay.logits.float().clone()
            wanted = model.forward(batch, kv)
            error = ((logits - wanted).abs().max() / wanted.abs().max()).item()
            agree = np.mean(np.array(ids) == np.array(wanted.argmax(-1).tolist()))
            rows.append(
                {
                    "dtype": str(dtype).removeprefix("torch."),
                    "batch_invariant": invariant,
                    "rows": count,
                    "relative_error": error,
                    "same_ids": float(agree),
                }
            )
            if bound is not None and not error <= bound:
                raise AssertionError(f"a replayed step says something else than the path: {rows[-1]}")
        del executor, graphs, kv, pool, model, replay
        free()
    return {"rows": rows, "engine": _same_words(setting, name)}


def _same_words(setting: Any, name: str) -> dict:
    """One load through the engine with graphs and without, its pool too small, swapping and recomputing."""
    model = build(setting, name, batch_invariant=True)
    count, longest, answer, blocks = (2, 6, 5, 4) if setting.quick else (40, 200, 48, 300)
    block_size = 4 if setting.quick else BLOCK_SIZE
    rng = np.random.default_rng(2)
    prompts = [
        rng.integers(0, model.shape.vocab_size, size).tolist() for size in rng.integers(longest // 2, longest, count)
    ]
    params = SamplingParams(max_tokens=answer, temperature=0, ignore_eos=True)
    naive = [one.token_ids for one in generate(model, prompts, params)]
    found = {}
    for way in ("graphs, recompute", "graphs, ahead", "graphs, swap", "no graphs, swap"):
        swap = {"preemption": "swap", "host_pool": HostPool(blocks)} if "swap" in way else {}
        executor = DecoderExecutor(model, blocks, block_size, host_blocks=blocks if swap else 0, graphs=False)
        if way.startswith("graphs"):
            executor.graphs = graphs_of(setting, executor)
        pool = BlockPool(blocks, block_size)
        scheduler = Scheduler(pool, max_num_seqs=32, max_num_batched_tokens=256, **swap)
        runner = Engine(scheduler, executor, lookahead=int("ahead" in way))
        requests = _ask(runner, prompts, [params] * count)
        runner.run()
        preemptions = sum(request.sequences[0].preemptions for request in requests)
        same = sum(r.sequences[0].output_ids == said for r, said in zip(requests, naive, strict=True))
        found[way] = {"requests": count, "same_tokens": same, "preemptions": preemptions, "steps": len(runner.steps)}
        if runner.aborted or same < count or not preemptions:
            raise AssertionError(f"{runner.aborted} steps failed, or other words than the naive loop's: {found}")
        del executor, runner
        free()
    return found


def _ask(runner: Engine, prompts: list[list[int]], params: list[SamplingParams]) -> list[Request]:
    requests = [
        Request(str(index), prompt, wishes, Timeline(runner.clock.now()))
        for index, (prompt, wishes) in enumerate(zip(prompts, params, strict=True))
    ]
    for request in requests:
        runner.add(request)
    return requests


# -------------------------------------------------- decode steps


def steps(setting: Any) -> dict:
    """Decode steps: the device's alone (a graph replayed), the engine's with graphs and without, and transformers'.

    `host_gap` is what the engine adds to the device's step; `of_roofline` is the least time that the step's bytes or
    FLOPs need at the measured ceilings, by the time that it took.
    """
    if not kernels(setting):
        return {"skipped": unsupported(setting.device)}
    top = ceilings(setting.device, setting.dtype)
    rows: list[dict[str, Any]] = []
    for name in models(setting):
        model = build(setting, name)
        cases = [(2, 8), (3, 8)] if setting.quick else [(batch, 512) for batch in (1, 8, 64, 256)]
        if not setting.quick:
            cases.append((_most(model, 4096), 4096))
        for batch, context in cases:
            # Prompts are computed at about half of the matrix product's ceiling.
            needed = 15 + 4 * model.shape.num_parameters * batch * context / top.flops
            if setting.left() < needed and not setting.quick:
                rows.append({"model": name, "batch": batch, "context": context, "skipped": "no time left"})
                continue
            rows.append({"model": name} | _step(setting, model, batch, context, top))
            free()
        if not setting.quick and setting.left() < 30:
            continue
        for batch, context in cases[: 1 if setting.quick else 4]:
            rows.append({"model": name} | _guarded(_peer_step, setting, model.shape, batch, context))
            free()
        del model
        free()
    return {"dtype": str(setting.dtype).removeprefix("torch."), "ceilings": vars(top), "rows": rows}


def _guarded(part: Callable[..., dict], *args: Any) -> dict:
    """A part of a part that may fail by itself: others' code, other versions."""
    try:
        return part(*args)
    except Exception as error:
        return {"how": part.__name__, "error": f"{type(error).__name__}: {error}"[:500]}


def _most(model: Model, context: int) -> int:
    """The largest batch of that context that fits beside the weights, and into a graph."""
    free()
    memory = torch.cuda.get_device_properties(model.device).total_memory
    fit = sequences_that_fit(model.shape, context + 64, memory, usable=0.88, block_size=BLOCK_SIZE)
    return min(fit, 256)


def _step(setting: Any, model: Model, batch: int, context: int, top: Any) -> dict:
    warm, timed, rounds = (1, 2, 1) if setting.quick else (3, 10, 2)
    size = 4 if setting.quick else BLOCK_SIZE
    # The first prompts decode while the last are computed.
    most = 2 * rounds * (warm + timed) + 8 + batch * context // (_BUDGET - batch)
    blocks = batch * (-(-(context + most) // size) + 1)
    executor = DecoderExecutor(model, blocks, size, graphs=False)
    graphs = graphs_of(setting, executor)
    scheduler = Scheduler(
        BlockPool(blocks, size, prefix_caching=False), max_num_seqs=batch, max_num_batched_tokens=_BUDGET
    )
    runner = Engine(scheduler, executor)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, model.shape.vocab_size, context).tolist() for _ in range(batch)]
    _ask(runner, prompts, [SamplingParams(max_tokens=most, temperature=0, ignore_eos=True)] * batch)
    while not runner.steps or runner.steps[-1].decode_tokens < batch:
        runner.step()
    took: dict[str, list[float]] = {"graphs": [], "eager": []}
    for _ in range(rounds):
        for way in took:
            executor.graphs = graphs if way == "graphs" else None
            for _ in range(warm):
                runner.step()
            for _ in range(timed):
                synchronise(setting.device)
                start = time.perf_counter()
                runner.step()
                took[way].append(time.perf_counter() - start)
    if runner.aborted or runner.steps[-1].decode_tokens != batch:
        raise AssertionError(f"{runner.aborted} steps failed; the last had {runner.steps[-1].decode_tokens} tokens")
    rows = size_for(batch)
    assert rows is not None
    device = _replays(setting, graphs, rows)
    mean = runner.steps[-1].context_tokens // batch
    width = torch.empty(0, dtype=setting.dtype).element_size()
    cost = step_cost(model.shape, [1] * batch, [mean] * batch, weight_bytes=width, kv_bytes=width)
    bound = roofline(cost, bandwidth=top.read_bandwidth, flops=top.flops)
    engine = {way: statistics.median(times) for way, times in took.items()}
    return {
        "how": "underload",
        "batch": batch,
        "rows": rows,
        "context": mean,
        "device_seconds": device,
        "device_of_roofline": bound.seconds / device,
        "device_bytes_per_s": cost.bytes / device,
        "bound": bound.bound,
        "engine_seconds": engine["graphs"],
        "engine_of_roofline": bound.seconds / engine["graphs"],
        "host_gap": engine["graphs"] - device,
        "engine_seconds_without_graphs": engine["eager"],
        "tokens_per_s": batch / engine["graphs"],
    }


def _replays(setting: Any, graphs: DecodeGraphs, rows: int) -> float:
    """Seconds of one replay, by the device's own clock."""
    times = []
    for _ in range(2 if setting.quick else 20):
        if setting.device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graphs.replay_again(rows)
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        else:
            start = time.perf_counter()
            graphs.replay_again(rows)
            times.append(time.perf_counter() - start)
    return statistics.median(times)


# -------------------------------------------------- transformers


def _peer(setting: Any, small: ModelShape, attention: str = "sdpa") -> Any:
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=small.vocab_size,
        hidden_size=small.hidden_size,
        intermediate_size=small.intermediate_size,
        num_hidden_layers=small.num_layers,
        num_attention_heads=small.num_heads,
        num_key_value_heads=small.num_kv_heads,
        head_dim=small.head_dim,
        max_position_embeddings=small.max_positions,
        tie_word_embeddings=small.tied,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
        use_cache=True,
    )
    with torch.device(setting.device):
        model = AutoModelForCausalLM.from_config(config, dtype=setting.dtype, attn_implementation=attention)
    return model.eval()


@torch.inference_mode()
def _peer_step(setting: Any, small: ModelShape, batch: int, context: int) -> dict:
    """transformers' decode step with its default cache, which holds random keys and values of that length."""
    import transformers
    from transformers import DynamicCache

    model = _peer(setting, small)
    cache = DynamicCache(config=model.config)
    for layer in range(small.num_layers):
        keys, values = (
            torch.randn(batch, small.num_kv_heads, context, small.head_dim, dtype=setting.dtype, device=setting.device)
            for _ in range(2)
        )
        cache.update(keys, values, layer)
    ids = torch.zeros(batch, 1, dtype=torch.int64, device=setting.device)
    times = []
    for turn in range(3 if setting.quick else 13):
        synchronise(setting.device)
        start = time.perf_counter()
        ids = model(ids, past_key_values=cache, use_cache=True).logits[:, -1].argmax(-1, keepdim=True)
        ids.tolist()
        if turn >= (1 if setting.quick else 3):
            times.append(time.perf_counter() - start)
    seconds = statistics.median(times)
    return {
        "how": "transformers",
        "version": transformers.__version__,
        "batch": batch,
        "context": context,
        "engine_seconds": seconds,
        "tokens_per_s": batch / seconds,
    }


# -------------------------------------------------- the mixed load


def mixed(setting: Any) -> dict:
    """64 requests at once, prompts of 16 to 256 tokens, answers of 8 to 256, lognormal, 16 at a time: total tokens/s of
    the engine with graphs and without, and of transformers, static and continuous."""
    count, slots, limits, means = (3, 2, (3, 6), (4, 4)) if setting.quick else (64, 16, (16, 256), (90, 80))
    rng = np.random.default_rng(1)
    lengths = np.clip(LognormalTokens.of(means[0], 0.7).draw(rng, count), *limits)
    new = np.clip(LognormalTokens.of(means[1], 0.7).draw(rng, count), 2 if setting.quick else 8, limits[1]).tolist()
    rows: list[dict[str, Any]] = []
    for name in models(setting):
        if not setting.quick and setting.left() < 60:
            rows.append({"model": name, "skipped": "no time left"})
            continue
        model = build(setting, name)
        prompts = [rng.integers(3, model.shape.vocab_size, length).tolist() for length in lengths]
        total = sum(map(len, prompts)) + sum(new)
        ways = ("graphs", "eager") if kernels(setting) else ("eager",)
        for way in ways:
            best = min(
                _serve(setting, model, prompts, new, slots, way == "graphs") for _ in range(1 if setting.quick else 2)
            )
            rows.append({"model": name, "how": f"underload, {way}", "seconds": best, "tokens_per_s": total / best})
        small = model.shape
        del model
        free()
        for part in (_peer_static, _peer_continuous):
            if setting.quick or setting.left() > 45:
                row = _guarded(part, setting, small, prompts, new, slots)
                if "seconds" in row:
                    row["tokens_per_s"] = total / row["seconds"]
                rows.append({"model": name} | row)
                free()
    return {"requests": count, "slots": slots, "prompt_tokens": int(sum(lengths)), "new_tokens": sum(new), "rows": rows}


def _serve(
    setting: Any, model: Model, prompts: list[list[int]], new: list[int], slots: int, with_graphs: bool
) -> float:
    size = 4 if setting.quick else BLOCK_SIZE
    blocks = slots * (-(-max(len(p) + n for p, n in zip(prompts, new, strict=True)) // size) + 1)
    executor = DecoderExecutor(model, blocks, size, graphs=False)
    if with_graphs:
        executor.graphs = graphs_of(setting, executor)
        executor.graphs.prepare(slots)
    runner = Engine(Scheduler(BlockPool(blocks, size), max_num_seqs=slots, max_num_batched_tokens=2048), executor)
    wishes = [SamplingParams(max_tokens=most, temperature=0, ignore_eos=True) for most in new]
    synchronise(setting.device)
    start = time.perf_counter()
    requests = _ask(runner, prompts, wishes)
    runner.run()
    seconds = time.perf_counter() - start
    if [len(request.sequences[0].output_ids) for request in requests] != new:
        raise AssertionError("a request did not get the tokens it asked for")
    return seconds


@torch.inference_mode()
def _peer_static(setting: Any, small: ModelShape, prompts: list[list[int]], new: list[int], slots: int) -> dict:
    """Batches of `slots` requests, in order, each held to its longest answer."""
    model = _peer(setting, small)
    synchronise(setting.device)
    start = time.perf_counter()
    for first in range(0, len(prompts), slots):
        some, most = prompts[first : first + slots], max(new[first : first + slots])
        longest = max(map(len, some))
        ids = torch.tensor([[0] * (longest - len(p)) + p for p in some], device=setting.device)
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in some], device=setting.device)
        model.generate(ids, attention_mask=mask, do_sample=False, min_new_tokens=most, max_new_tokens=most)
    synchronise(setting.device)
    return {"how": "transformers, static", "seconds": time.perf_counter() - start}


def _peer_continuous(setting: Any, small: ModelShape, prompts: list[list[int]], new: list[int], slots: int) -> dict:
    """Its continuous batching, with as many slots and each request's own limit."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    model = _peer(setting, small)
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
        continuous_batching_config=ContinuousBatchingConfig(
            num_blocks=(slots + 1) * 2, max_batch_tokens=2048, max_requests_per_batch=slots, allow_block_sharing=False
        ),
    )
    manager.start()
    try:
        seconds = []
        for _ in range(1 if setting.quick else 2):  # the first one also compiles and captures
            start = time.perf_counter()
            for ids, most in zip(prompts, new, strict=True):
                manager.add_request(ids, max_new_tokens=most, eos_token_id=-1)
            finished = 0
            while finished < len(prompts):
                result = manager.get_result(timeout=20)
                if result is None or result.error:
                    raise RuntimeError("no answer" if result is None else str(result.error))
                finished += result.is_finished()
            seconds.append(time.perf_counter() - start)
    finally:
        manager.stop(block=True)
    return {"how": "transformers, continuous", "seconds": min(seconds)}


# -------------------------------------------------- an open load

SLOS = ({"ttft": 0.2, "tpot": 0.02}, {"e2e": 4.0})  # s


def load(setting: Any) -> dict:
    """Poisson arrivals at shares of the rate that the engine reaches when all come at once: percentiles, goodput for
    two SLOs, and what the slowest waited for. A p99 has its interval, or says nothing."""
    count, shares, slots = (6, (0.5,), 4) if setting.quick else (400, (0.3, 0.6, 0.85), 64)
    means, limit = ((6, 4), 24) if setting.quick else ((200, 80), 1024)
    lengths = Lengths(*(LognormalTokens.of(mean, 0.7) for mean in means), limit=limit, beyond="truncate")
    model = build(setting, models(setting)[0])
    size = 4 if setting.quick else BLOCK_SIZE
    blocks = slots * (-(-limit // size) + 1)
    executor = DecoderExecutor(model, blocks, size, graphs=False)
    if kernels(setting):
        executor.graphs = graphs_of(setting, executor)
        executor.graphs.prepare(slots)

    def run(rate: float, seed: int) -> Engine:
        planned = Workload(Poisson(rate), lengths).plan(seed, requests=count)
        pool = BlockPool(blocks, size)
        runner = Engine(Scheduler(pool, max_num_seqs=slots, max_num_batched_tokens=512), executor)
        serve(runner, planned, PromptIds(range(3, model.shape.vocab_size), seed=seed))
        return runner

    run(1e6, 0)  # warm
    crowd = [request.timeline for request in run(1e6, 1).finished]
    saturated = metrics.request_throughput(crowd) or 0.0
    rows: list[dict[str, Any]] = []
    for share in shares:
        rate = share * saturated
        if not setting.quick and setting.left() < 1.5 * count / rate + 30:
            rows.append({"load": share, "skipped": "no time left"})
            continue
        runner = run(rate, 2)
        lines = [request.timeline for request in runner.finished]
        row: dict[str, Any] = {"load": share, "rate": rate, "requests": len(lines), "steps": len(runner.steps)}
        for name in ("ttft", "tpot", "e2e"):
            values = [value for line in lines if (value := getattr(metrics, name)(line)) is not None]
            row[name] = {f"p{q}": metrics.percentile(values, q) for q in (50, 99)}
            found = metrics.percentile_interval(values, 99)
            row[name]["p99_interval"] = None if found is None else [found.low, found.high]
        row["goodput"] = [metrics.goodput(lines, metrics.Slo(**terms)) for terms in SLOS]
        worst = max(lines, key=lambda line: metrics.e2e(line) or 0.0)
        row["slowest_e2e"] = metrics.e2e(worst)
        row["slowest"] = metrics.attribute(worst, runner.steps)
        rows.append(row)
    return {"model": model.shape.name, "slots": slots, "saturated_per_s": saturated, "slos": list(SLOS), "rows": rows}


# -------------------------------------------------- memory


def memory(setting: Any) -> dict:
    """How many blocks fit beside a model, and that the largest step does run beside them; and the way to the host."""
    model = build(setting, models(setting)[-1])
    on_gpu = setting.device.type == "cuda"
    size, tokens, sequences = (4, 24, 4) if setting.quick else (BLOCK_SIZE, 2048, 256)
    blocks = blocks_for_memory(
        model, size, None if on_gpu and not setting.quick else 1e6, step_tokens=tokens, sequences=sequences
    )
    executor = DecoderExecutor(model, blocks, size, host_blocks=8 if setting.quick else 512)
    kv, host = executor.kv, executor.host
    work, first = [], 0
    for length in [1] * (sequences - 1) + [tokens - sequences + 1]:
        need = -(-length // size)
        table = BlockTable(size, list(range(first, first + need)))
        work.append((Sequence(length, [1] * length, table=table), length))
        first += need
    model.forward(Batch.of(work), kv).argmax(-1).tolist()
    pairs = [(block, block) for block in range(host.num_blocks)]
    moved = host.nbytes
    speeds = {}
    for name, move in (("out", kv.swap_out), ("in", kv.swap_in)):
        times = []
        for _ in range(2 if setting.quick else 4):
            synchronise(setting.device)
            start = time.perf_counter()
            move(pairs, host)
            synchronise(setting.device)
            times.append(time.perf_counter() - start)
        speeds[f"swap_{name}_bytes_per_s"] = moved / min(times)
    found = {"model": model.shape.name, "blocks": blocks, "block_size": size, "cache_bytes": kv.nbytes}
    if on_gpu:
        found["free_bytes"], found["total_bytes"] = torch.cuda.mem_get_info()
    return found | speeds
