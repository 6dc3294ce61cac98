"""What the page on paged attention works out: by hand, in its own code, and in its answers."""

from __future__ import annotations

import ast
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from underload.decoder.attention import paged_attention
from underload.decoder.fast.attend import CHUNK
from underload.shapes import DEVICES, decode_cost, shape

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "chapters/paged-attention.md"
TEXT = PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The functions and constants that the page shows, with nothing run besides."""
    found: dict[str, Any] = {"np": np}
    wanted = {"attend", "read", "attend_once", "merge", "throughput"}
    for code in re.findall(r"^```\{code-cell\} ipython3\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL):
        tree = ast.parse(re.sub(r"^:tags:.*\n", "", code))
        kept = [
            node
            for node in tree.body
            if (isinstance(node, ast.FunctionDef) and node.name in wanted)
            or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "NOTHING")
        ]
        exec(compile(ast.Module(kept, []), str(PAGE), "exec"), found)
    assert wanted <= set(found)
    return found


# ---- look-up


def slot(table: list[int], block_size: int, position: int) -> int:
    return block_size * table[position // block_size] + position % block_size


def test_the_slots_of_the_drawing() -> None:
    assert [slot([5, 1, 6], 4, i) for i in range(9)] == [20, 21, 22, 23, 4, 5, 6, 7, 24]


def test_the_answer_on_slots() -> None:
    assert [slot([40, 7, 91], 16, i) for i in (36, 37)] == [1460, 1461]
    assert 3 * 16 - 37 == 11


# ---- the kernels of the page


@pytest.fixture(scope="module")
def case() -> tuple[Any, ...]:
    """Queries, a pool full of NaN but for one sequence's tokens, its table, and their number."""
    rng = np.random.default_rng(3)
    keys, values = np.full((2, 9, 4, 8), np.nan, dtype=np.float32)
    table, n = [7, 2, 8, 0], 14
    for i in range(n):
        place = table[i // 4], i % 4
        keys[place], values[place] = rng.normal(scale=3, size=(2, 8))
    return rng.normal(size=8).astype(np.float32), keys, values, table, n


def oracle(q: Any, keys: Any, values: Any, table: list[int], n: int) -> Any:
    parts = [torch.tensor(x) for x in (q[None, None], keys[:, :, None], values[:, :, None])]
    return paged_attention(*parts, torch.tensor([table]), [1], [n], implementation="torch").numpy().ravel()


@pytest.mark.parametrize("name", ["attend", "attend_once"])
def test_the_loops_say_what_the_oracle_says(page: dict[str, Any], case: tuple[Any, ...], name: str) -> None:
    for n in (1, 4, 5, 14):
        q, keys, values, table, _ = case
        some = table[: -(-n // 4)]
        np.testing.assert_allclose(page[name](q, keys, values, some, n), oracle(q, keys, values, some, n), atol=1e-5)


def test_a_weight_of_zero_does_not_silence_what_is_no_number() -> None:
    with np.errstate(invalid="ignore"):
        mixed = [np.array([0.25, 0.75, 0.0]) @ np.array([4.0, 8.0, last]) for last in (123.0, np.inf, np.nan)]
    assert mixed[0] == 7.0 and np.isnan(mixed[1:]).all()


def test_where_exponentials_overflow() -> None:
    with np.errstate(over="ignore"):
        assert np.isinf(np.exp(np.float32(89))) and np.isfinite(np.exp(np.float32(88)))


# ---- online softmax and merge, by hand


def test_two_tokens_by_hand(page: dict[str, Any]) -> None:
    state = page["NOTHING"]
    state = page["read"](state, np.array([1.0]), np.array([10.0]))
    assert state == (1.0, 1.0, 10.0)
    state = page["read"](state, np.array([3.0]), np.array([20.0]))
    assert (round(math.exp(-2), 3), round(state[1], 3), round(state[2], 2)) == (0.135, 1.135, 21.35)
    assert round(state[2] / state[1], 2) == 18.81
    weights = np.exp([1.0, 3.0]) / np.exp([1.0, 3.0]).sum()
    assert weights.round(3).tolist() == [0.119, 0.881]
    assert (weights * [10, 20]).round(2).tolist() == [1.19, 17.62] and round(weights @ [10, 20], 2) == 18.81
    assert [round(math.exp(x), 2) for x in (1, 3)] == [2.72, 20.09]


def test_the_answer_on_two_readers(page: dict[str, Any]) -> None:
    most, total, mix = page["merge"]((2.0, 3.0, 6.0), (2 + math.log(4), 1.0, 5.0))
    assert (most, total, mix) == pytest.approx((2 + math.log(4), 1.75, 6.5))
    assert round(mix / total, 2) == 3.71
    assert (6 / 3 + 5 / 1) / 2 == 3.5


def test_parts_merge_in_any_order_and_an_empty_one_changes_nothing(page: dict[str, Any]) -> None:
    rng = np.random.default_rng(5)
    scores, values = rng.normal(scale=50, size=90), rng.normal(size=(90, 4))
    read, merge, nothing = page["read"], page["merge"], page["NOTHING"]
    whole = read(nothing, scores, values)
    parts = [read(nothing, scores[at : at + 30], values[at : at + 30]) for at in (0, 30, 60)]
    left, right = merge(merge(parts[0], parts[1]), parts[2]), merge(parts[0], merge(parts[1], parts[2]))
    for state in (
        left,
        right,
        merge(merge(parts[2], parts[0]), parts[1]),
        merge(whole, nothing),
        merge(nothing, whole),
    ):
        np.testing.assert_allclose(state[2] / state[1], whole[2] / whole[1], rtol=1e-12)
    with np.errstate(invalid="ignore"):
        assert math.isnan(merge(nothing, nothing)[1])


# ---- intensity


@pytest.mark.parametrize(("name", "intensity"), [("llama-2-7b", 1), ("llama-3-8b", 4), ("llama-3-70b", 8)])
@pytest.mark.parametrize(("batch", "context"), [(1, 512), (64, 4096)])
def test_the_intensity_of_attention_knows_neither_batch_nor_context(
    name: str, intensity: float, batch: int, context: int
) -> None:
    cost = decode_cost(shape(name), batch, context, weight_bytes=2, kv_bytes=2)
    assert cost.attention_flops / cost.kv_bytes == pytest.approx(intensity, rel=0.003)  # a token is written, too


def test_the_pieces_of_a_long_conversation() -> None:
    heads = shape("llama-3-8b").num_kv_heads
    assert (heads, 16 * heads, 64 * heads) == (8, 128, 512)
    assert CHUNK == 256


def test_the_intensity_of_a_latent_cache() -> None:
    # Scores take all 512 + 64 values of a token's vector, the mix its first 512; 128 heads share them, of two bytes.
    flops, stored = 128 * (2 * (512 + 64) + 2 * 512), 2 * (512 + 64)
    assert round(flops / stored) == 242


# ---- how slow it may be


def test_the_limit_by_hand(page: dict[str, Any]) -> None:
    weights, each, rows, blocks = 20e9, 0.5e9, 8, 40
    star = 1 + weights / each * (1 / rows - 1 / blocks)
    assert star == pytest.approx(5.0)
    x = page["throughput"]
    assert (
        x(blocks, weights, each, 1e12, star) == pytest.approx(x(rows, weights, each, 1e12)) == pytest.approx(8 / 0.024)
    )
    assert x(blocks, weights, each, 1e12) == pytest.approx(1000)
    assert (rows * each + weights) / 1e12 == pytest.approx(0.024)


def test_the_judgement_on_two_block_sizes(page: dict[str, Any]) -> None:
    assert (-(-300 // 256) * 256, round(308 / 512, 1)) == (512, 0.6)
    model, card = shape("llama-2-13b"), DEVICES["a100-80gb"]
    weights, kappa, room = model.weight_bytes(2), model.kv_bytes_per_token(2), 15_728
    x = page["throughput"]
    small, large = (
        [x(room / held, weights, n * kappa, card.bandwidth, slower) for held, slower in ((n + 7.5, 1.3), (wide, 1.0))]
        for n, wide in ((300, 512), (8000, 8000 + 127.5))
    )
    assert small[0] > 1.2 * small[1]
    assert large[0] < large[1]


def test_the_answer_on_blocks_in_the_hosts_memory() -> None:
    model, card = shape("llama-3-8b"), DEVICES["h100-sxm"]
    assert (model.kv_bytes_per_token(2), card.bandwidth) == (131_072, 3.35e12)
    assert round(model.weight_bytes(2) / 1e9) == 16
    held = 32 * 8000 * 131_072
    assert [round(x / 1e9, 2) for x in (held / 32, held, 2 * held)] == [1.05, 33.55, 67.11]
    step = (16e9 + held) / card.bandwidth
    assert (round(1e3 * step, 1), round(32 / step)) == (14.8, 2163)
    fetched = 64 * 8000 * 131_072 / 2 / 50e9
    assert (round(1e3 * fetched), round(64 / fetched)) == (671, 95)


def test_the_answer_on_a_gathered_row() -> None:
    short, long = ((67 + 3 * cache) / (67 + cache) for cache in (1, 80))
    assert (round(short, 2), round(long, 1)) == (1.03, 2.1)


# ---- virtual memory


def test_the_granularity_of_mapped_memory() -> None:
    model = shape("llama-3-8b")
    assert 2 * 2**20 / (model.num_kv_heads * model.head_dim * 2) == 1024
    assert round(model.num_layers * 2 * 2 * 2**20 / 1e6) == 134


# ---- the recording


def test_the_recording_has_what_the_page_draws() -> None:
    recording = json.loads((ROOT / "chapters/data/paging.json").read_text(encoding="utf-8"))
    assert recording["benchmark"] == "paging" and recording["read_bandwidth"] > 1e9
    assert "\npython tests/benchmarks/paging.py --out chapters/data/paging.json\n" in TEXT
    cases = {(c["model"], c["context"], c["batch_size"]): c for c in recording["cases"]}
    assert set(cases) == {
        (model, n, batch) for model in ("S", "M", "SmolLM2-135M") for n in (128, 2048) for batch in (1, 4, 16)
    }
    for each in cases.values():
        times = each["microseconds"]
        assert {f"in place, blocks of {size}" for size in (1, 4, 8, 16, 32, 64)} | {"in place, one block"} <= set(times)
        assert each["contiguous"] in times and each["gathered"] in times
    main = cases["SmolLM2-135M", 2048, 16]
    assert main["kv_bytes"] == 2 * 4 * 16 * 2048 * 3 * 64
    assert main["kv_bytes"] % 4096 == 0
