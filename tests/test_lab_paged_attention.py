"""Lab 8: what a wrong answer is told, what the tasks start from, and the inputs that checks draw.

What solutions, hand-outs and wrong answers earn is `underload course verify`'s to say, from tests/course.
"""

from __future__ import annotations

import importlib.util
import math
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from lab_source import LABS, assert_library_is_there, assert_points, benchmark, told

from underload.labs import paged_attention as lab

SOURCE = LABS / "paged-attention.ipynb"

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed (it exists for Linux only)"
)


# ------------------------------------------------------------------ the notebook


def test_points_and_tasks(source: Any) -> None:
    assert_points(source, 20, 3, 85)


def test_what_an_answer_may_not_use_is_there(source: Any) -> None:
    assert_library_is_there(source)


def test_what_the_text_says_by_hand(solved: dict[str, Any]) -> None:
    assert solved["slot"]([5, 1, 6], 9, 4) == 25
    assert list(solved["slot_mapping"]([[5, 1], [3, 0]], [1, 3], [6, 5], 4)) == [5, 14, 15, 0]
    pool = np.arange(32).reshape(8, 4)
    assert solved["gather"](pool, [5, 1, 6], 9).tolist() == [20, 21, 22, 23, 4, 5, 6, 7, 24]
    three = lab.one([0, math.log(2), math.log(4)], [3, 6, 8])
    assert solved["attend"](three.q, three.keys, three.values) == pytest.approx([47 / 7] * 4)
    state = solved["part"](three.q, lab.blocks(three.keys[:2], three.values[:2], 2))
    assert state[:2] == pytest.approx((math.log(2), 1.5)) and state[2] == pytest.approx([7.5] * 4)
    state = solved["part"](three.q, lab.blocks(three.keys, three.values, 2))
    assert state[:2] == pytest.approx((math.log(4), 1.75)) and state[2] == pytest.approx([11.75] * 4)
    merged = solved["merge"]([(math.log(2), 1.5, np.array([7.5])), (math.log(4), 1.0, np.array([8.0]))])
    assert merged[:2] == pytest.approx((math.log(4), 1.75)) and merged[2] == pytest.approx([11.75])
    pool = np.array([[[[1.0]], [[2.0]], [[3.0]], [[4.0]]]])
    two = solved["paged_attention"](np.zeros((2, 1, 1)), pool, pool, np.array([[0]]), [2], [4])
    assert two.ravel() == pytest.approx([2, 2.5])


def test_the_solutions_agree_with_the_library_and_that_with_the_decoder(solved: dict[str, Any]) -> None:
    import torch

    from underload.decoder.attention import paged_attention

    draw = np.random.default_rng(3)
    for kind in ("decode", "chunks", "ragged", "shared"):
        given = lab.drawn_batch(draw, kind)
        q, keys, values, tables, new, context = given
        tensors = [torch.from_numpy(one) for one in (q, keys, values, tables)]
        oracle = paged_attention(*tensors, new, context, implementation="torch").numpy()
        np.testing.assert_allclose(lab.paged_attention(*given), oracle, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(solved["paged_attention"](*given), oracle, rtol=1e-10, atol=1e-12)


def test_a_merge_of_any_cut_is_exact() -> None:
    draw = np.random.default_rng(1)
    for kind in ("", "steep", "low"):
        one = lab.drawn_one(draw, kind, tokens=40)
        whole = lab.attend(one.q, one.keys, one.values)
        for count in (0, 1, 7, 60):
            _, total, mixed = lab.merge(lab.parts_of(one, lab.drawn_cuts(draw, 40, count)))
            np.testing.assert_allclose(mixed / total, whole, rtol=1e-12, atol=1e-13)
    nothing = lab.drawn_one(draw, tokens=0)
    largest, total, mixed = lab.merge(lab.parts_of(nothing, [0, 0]))
    assert (largest, total, mixed.any()) == (-math.inf, 0, False)


def test_what_a_checks_inputs_hold() -> None:
    draw = np.random.default_rng(5)
    for kind in ("decode", "chunks", "ragged", "shared"):
        given = lab.drawn_batch(draw, kind)
        assert np.isfinite(lab.paged_attention(*given)).all()
        assert np.isnan(given.keys).any() and not np.isnan(given.keys).all()  # there are slots that nobody wrote
        assert (given.block_tables[:, -1] == -1).all()
    shared = lab.drawn_batch(draw, "shared").block_tables
    assert (shared[:, :2] == shared[0, :2]).all() and len({*shared[:, 2].tolist()}) == len(shared)
    for longer in (False, True):
        held = lab.drawn_held(draw, longer=longer)
        assert (held.table[-1] == -1) == longer
        assert np.isfinite(lab.gather(held.pool, held.table.tolist(), held.length)).all()


@pytest.mark.parametrize("seed", range(20))
def test_every_student_has_a_slot_with_one_owner(seed: int) -> None:
    given = lab.your_slot(seed)
    owners = [
        (row, position)
        for row, (table, length) in enumerate(zip(given.tables, given.lengths, strict=True))
        for position in range(length)
        if lab.slot(table, position, given.size) == given.slot
    ]
    assert len(owners) == 1 and owners[0][1] >= given.size
    lab.check_my_owner(*owners[0], given)


# ------------------------------------------------------------------ the decoder


def test_the_plain_path_runs_an_attention_of_ones_own() -> None:
    import torch
    from test_decoder_parts import TINY

    from underload.decoder import DecoderExecutor, Model, Weights, generate
    from underload.request import SamplingParams, UnderloadError

    calls = []

    def counted(*step: Any) -> Any:
        calls.append((step[4], step[5]))
        return lab.paged_attention(*step)

    weights = Weights.random(TINY, seed=3, device=torch.device("cpu"))
    greedy = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
    prompts = [[5, 9, 2, 44], [7] * 9]
    own = Model(TINY, weights, attention=lab.on_tensors(counted))
    assert own.path == "plain"
    said, right = (generate(model, prompts, greedy) for model in (own, Model(TINY, weights, path="plain")))
    assert [one.token_ids for one in said] == [one.token_ids for one in right]
    assert ([4], [4]) in calls and ([1, 1], [5, 10]) in calls and len(calls) % TINY.num_layers == 0
    answered, steps = lab.serve(DecoderExecutor(own, 12, 4), prompts, 4, budget=6)
    assert answered == [one.token_ids for one in right]
    assert steps[0].prefill_tokens == 6 and any(step.prefill_tokens and step.decode_tokens for step in steps)
    with pytest.raises(UnderloadError, match="batch_invariant=True on cpu cannot go with attention=<function"):
        Model(TINY, weights, attention=lab.on_tensors(counted), batch_invariant=True)
    with pytest.raises(UnderloadError, match="the fast path has one attention, its own"):
        Model(TINY, weights, path="fast", attention=lab.on_tensors(counted))


# ------------------------------------------------------------------ what a wrong answer is told


def test_what_a_look_up_is_told() -> None:
    table = [5, 1, 6]
    assert "the offset in the block was left out" in told(lab.check_slot, lambda t, p, s: t[p // s] * s, table, 9, 4)
    assert "the position itself" in told(lab.check_slot, lambda t, p, s: p, table, 9, 4)
    assert "// and % are exchanged" in told(lab.check_slot, lambda t, p, s: t[p % s] * s + p // s, table, 9, 4)
    assert "must be a number, got None" in told(lab.check_slot, lambda *_: None, table, 9, 4)
    given = lab.tables([[5, 1], [3, 0]], [1, 3], [6, 5], 4)
    assert "new tokens counted from position 0" in told(lab.check_mapping, lambda *_: [20, 12, 13, 14], given)
    assert "a slot for each token of the contexts" in told(lab.check_mapping, lambda *_: range(11), given)
    assert "(one a sequence)" in told(lab.check_mapping, lambda *_: [5, 0], given)
    assert "one position too early" in told(lab.check_mapping, lambda *_: [4, 13, 14, 15], given)
    held = lab.held([5, 1, 6, 2, -1], 9, 4, num_blocks=8)
    whole = lambda pool, table, length: pool[table].reshape(-1)  # noqa: E731
    assert "which nobody has written" in told(lab.check_gather, whole, held)
    assert "whole blocks" in told(lab.check_gather, lambda pool, table, length: pool[table], held)
    assert "got token 5" in told(
        lab.check_gather, lambda pool, t, n: np.sort(lab.gather(pool, t, n))[[0, 5, *range(2, 9)]], held
    )
    assert "got NaN" in told(lab.check_gather, lambda pool, t, n: pool.reshape(-1)[:n], held)
    slots = lambda pool, t, n: [lab.slot(t, p, pool.shape[1]) for p in range(n)]  # noqa: E731
    assert "the slot's number" in told(lab.check_gather, slots, held)
    assert "got [-1]" in told(lab.check_gather, lambda pool, t, n: np.full(n, -1), held)
    owned = lab.your_slot(0)
    row, position = next(
        (row, table.index(owned.slot // owned.size) * owned.size + owned.slot % owned.size)
        for row, table in enumerate(owned.tables)
        if owned.slot // owned.size in table
    )
    assert "sequences count from 0" in told(lab.check_my_owner, row + 1, position, owned)
    assert "the offset alone" in told(lab.check_my_owner, row, owned.slot % owned.size, owned)
    with pytest.raises(NotImplementedError, match="my_position"):
        lab.check_my_owner(row, None, owned)


def test_what_a_softmax_is_told() -> None:
    one = lab.one([0, math.log(2), math.log(4)], [3, 6, 8])
    bare = lambda q, k, v: np.exp(k @ q / math.sqrt(len(q))) @ v  # noqa: E731
    assert "not divided by the sum" in told(lab.check_attend, bare, one)
    unscaled = lambda q, k, v: lab.attend(q * math.sqrt(len(q)), k, v)  # noqa: E731
    assert "not divided by the root of dim" in told(lab.check_attend, unscaled, one)
    naive = lambda q, k, v: bare(q, k, v) / np.exp(k @ q / math.sqrt(len(q))).sum()  # noqa: E731
    with np.errstate(all="ignore"):
        assert "take the largest off first" in told(lab.check_attend, naive, lab.one([9999, 1e4], [3, 6]))
    assert "must have the shape (4,), got (2,)" in told(lab.check_attend, lambda *_: [1, 2], one)

    def state(fade: Any = math.exp, first: float = -math.inf) -> Any:
        def part(q: Any, blocks: Any) -> Any:
            largest, total, mixed = first, 0.0, np.zeros(len(q))
            for keys, values in blocks:
                scores = keys @ q / math.sqrt(len(q))
                larger = max(largest, scores.max())
                total = total * (fade(largest - larger) if total else 0) + np.exp(scores - larger).sum()
                mixed = mixed * (fade(largest - larger) if mixed.any() else 0) + np.exp(scores - larger) @ values
                largest = larger
            return largest, total, mixed

        return part

    lab.check_part(state(), one, 2)
    assert "what was summed before did not shrink" in told(lab.check_part, state(lambda _: 1.0), one, 2)
    assert "the fade runs backwards" in told(lab.check_part, state(lambda x: math.exp(-x)), one, 2)
    low = lab.one([-2, -3], [3, 6])
    assert "it began at 0" in told(lab.check_part, state(first=0.0), low, 2)
    divided = lambda q, blocks: (lambda m, l, o: (m, l, o / l))(*lab.part(q, blocks))  # noqa: E731, E741
    assert "leave that for the end" in told(lab.check_part, divided, one, 2)
    assert "(largest, total, mixed)" in told(lab.check_part, lambda *_: 3, one, 2)
    late = lambda q, blocks: lab.part(q, list(blocks))  # noqa: E731
    mixed_late = lambda q, blocks: (*lab.part(q, lab.blocks(one.keys, one.values, 2))[:2], list(blocks)[-1][1][0])  # noqa: E731
    for part in (late, mixed_late):
        assert "are NaN when the next one comes" in told(lab.check_part, part, one, 2)
    with np.errstate(all="ignore"):
        steep = lambda q, blocks: (1e4, 0.0 * np.exp(1e4), np.zeros(4))  # noqa: E731
        assert "take the largest off first" in told(lab.check_part, steep, lab.one([9999, 1e4], [3, 6]), 2)
    assert "the largest of nothing is −∞" in told(lab.check_part, state(first=0.0), lab.one([], []), 2)


def test_a_stream_of_blocks_forgets_and_is_gone_through_once() -> None:
    one = lab.one(np.arange(5.0), np.arange(5.0))
    stream = lab.blocks(one.keys, one.values, 2)
    kept = [values for _, values in stream]
    assert [len(values) for values in kept] == [2, 2, 1] and all(np.isnan(values).all() for values in kept)
    with pytest.raises(AssertionError, match="gone through once"):
        iter(stream)
    assert not list(lab.blocks(one.keys[:0], one.values[:0], 2))


def test_what_a_merge_is_told() -> None:
    three = lab.one([0, math.log(2), math.log(4)], [3, 6, 8])
    two = lab.parts_of(three, [2])
    added = lambda parts: (max(p[0] for p in parts), sum(p[1] for p in parts), parts[0][2])  # noqa: E731
    assert "the totals were added as they are" in told(lab.check_merge, added, two)
    nan = lambda parts: (math.nan, math.nan, np.zeros(4) * math.nan)  # noqa: E731
    assert "−∞ − (−∞) is NaN" in told(lab.check_merge, nan, lab.parts_of(three, [0, 2]))
    empty = lab.parts_of(lab.one([], []), [0])
    assert "ask before you subtract" in told(lab.check_merge, lambda p: (-math.inf, 0, np.full(4, np.nan)), empty)
    divided = lambda parts: (lambda m, l, o: (m, l, o / l))(*lab.merge(parts))  # noqa: E731, E741
    assert "leave that for the end" in told(lab.check_merge, divided, two)

    heads = lab.heads(8, 2, 5)
    turns = lambda q, k, v: [lab.attend(q[h], k[:, h % 2], v[:, h % 2]) for h in range(8)]  # noqa: E731
    said = told(lab.check_grouped, turns, heads)
    assert "query head 1 reads KV head 0" in said and "what it gets from KV head 1" in said


def test_what_an_attention_of_a_batch_is_told() -> None:
    given = lab.batch([(1, 6), (4, 4), (2, 9)], kv_heads=2)

    def own(sees: Any, turns: bool = False, past: int = 0, again: bool = False, scale: float = 1.0) -> Any:
        def attention(q: Any, keys: Any, values: Any, tables: Any, new: Any, context: Any) -> Any:
            out, token = np.zeros(q.shape), 0
            for table, n, c in zip(tables, new, context, strict=True):
                k, v = (pool[table].reshape(-1, *pool.shape[2:]) for pool in (keys, values))
                for i in range(n):
                    seen = sees(n, c, i) + past
                    order = [h % 2 if turns else h // 2 for h in range(4)]
                    out[token] = lab.grouped(scale * q[i if again else token], k[:seen, order], v[:seen, order])
                    token += 1
            return out

        return attention

    right = lambda n, c, i: c - n + i + 1  # noqa: E731
    lab.check_paged(own(right), given)
    assert "whole context" in told(lab.check_paged, own(lambda n, c, i: c), given)
    assert "from the top left" in told(lab.check_paged, own(lambda n, c, i: i + 1), given)
    assert "h // group" in told(lab.check_paged, own(right, turns=True), given)
    assert "nobody has written" in told(lab.check_paged, own(right, past=3), given)
    assert "from the beginning of q" in told(lab.check_paged, own(right, again=True), given)
    assert "divided by the root of dim twice" in told(lab.check_paged, own(right, scale=0.5), given)
    said = told(lab.check_paged, lambda *step: np.zeros_like(step[0]), given)
    assert "token 0 of q is new token 0 of sequence 0, at position 5" in said
    assert "must have the shape (7, 4, 4), got (4, 4)" in told(lab.check_paged, lambda *step: step[0][0], given)


def test_what_a_kernel_looks_at_is_found_from_outside() -> None:
    kinds = [(4, 4), (3, 9), (1, 7)]
    seen = lab.seen_keys(lab.paged_attention, kinds)
    for weights, (new, context) in zip(seen, kinds, strict=True):
        assert weights.shape == (new, context)
        for place, row in enumerate(weights):
            count = context - new + place + 1
            assert row[:count] == pytest.approx(1 / count) and not row[count:].any()


# ------------------------------------------------------------------ Triton


@needs_triton
def test_a_kernel_that_is_not_written_is_open_and_one_that_breaks_says_why() -> None:
    tl = lab.triton_language()
    given = lab.batch([(1, 6)], heads=1, kv_heads=1)
    signature = (
        "q, keys, values, out, tables, contexts, table_row, scale, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, "
    )
    names: dict[str, Any] = {"tl": tl}
    exec(
        f"def open_({signature}DIM: tl.constexpr, BLOCK: tl.constexpr):\n    raise NotImplementedError('Task 5')", names
    )
    with pytest.raises(NotImplementedError, match="no inner loop"):
        lab.check_decode(names["open_"], given)
    exec(f"def broken({signature}DIM: tl.constexpr, BLOCK: tl.constexpr):\n    tl.load(nothing)", names)
    assert "the kernel stopped: " in told(lab.check_decode, names["broken"], given)
    exec(f"def idle({signature}DIM: tl.constexpr, BLOCK: tl.constexpr):\n    tl.program_id(0)", names)
    assert "its head 0 gives [nan" in told(lab.check_decode, names["idle"], given)


def test_without_triton_the_task_says_so_and_nothing_raises() -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "from underload.labs import paged_attention as lab\n"
        "tl = lab.triton_language()\n"
        "def decode(q, DIM: tl.constexpr): pass\n"
        "assert 'pip install triton' in lab.without_triton()\n"
        "try: lab.check_decode(decode, lab.batch([(1, 6)], heads=1, kv_heads=1))\n"
        "except NotImplementedError as error: print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert "triton is not installed; it exists for Linux only" in ran.stdout


# ------------------------------------------------------------------ the benchmark


def test_the_benchmark_names_cells_that_are_there(source: Any) -> None:
    bench = benchmark("paged_attention_lab", source)
    cells = {cell.id: cell.source for cell in source.cells}
    assert set(re.findall(r'"([^"]+)": lab\.milliseconds', cells[bench.MEASURED[-1]])) == set(lab.book()["ms"])
