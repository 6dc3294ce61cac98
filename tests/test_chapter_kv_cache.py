"""What the page on the KV cache works out by hand, records, cites or answers without a cell, recomputed."""

from __future__ import annotations

import importlib.util
import json
import math
import re
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from underload.cache import BlockPool, waste
from underload.request import UnderloadError
from underload.shapes import DEVICES, sequences_that_fit, shape
from underload.workload import find_trace

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "chapters/kv-cache.md"


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return json.loads((ROOT / "chapters/data/waste.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("waste_benchmark", ROOT / "tests/benchmarks/waste.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def held(lengths: list[tuple[int, int]], block: int = 1) -> float:
    """Places that a sequence holds in blocks, averaged over the steps of all; with blocks of one, its tokens."""
    places = sum(-(-(p + k) // block) * block for p, m in lengths for k in range(m))
    return places / sum(m for _, m in lengths)


def last_block(lengths: range, block: int) -> Fraction:
    return Fraction(sum(-n % block for n in lengths), len(lengths))


# ---- what a token costs to keep ----------------------------------------------------------------------------------


def test_the_memory_of_the_opening(record: dict[str, Any]) -> None:
    kappa = 2 * 40 * 5120 * 2  # OPT-13B: 40 layers, width 5,120, 2 bytes; "800 KB" in Kwon et al., section 3
    assert shape(record["memory"]["model"]).kv_bytes_per_token(2) == kappa == 819_200 == 800 * 1024
    assert record["memory"]["slots"] == 12 * 2**30 // kappa == 15_728  # Table 1 of the paper prints 15.7K
    assert record["memory"]["slots"] // 2048 == 7
    assert shape(record["memory"]["model"]).weight_bytes(2) / 1e9 == pytest.approx(26, abs=0.1)


def test_how_many_sequences_fit() -> None:
    model = shape("llama-2-7b")
    found = [sequences_that_fit(model, n, memory) for memory in (24e9, 24 * 2**30) for n in (2048, 256)]
    assert found == [7, 60, 9, 72]
    assert sequences_that_fit(model, 2048, DEVICES["h200"].memory) == 105


def test_the_answer_of_the_first_figure() -> None:
    older, model = shape("llama-2-7b"), shape("llama-3.1-8b")
    assert sequences_that_fit(model, 2048, 24e9) == 20
    assert model.num_parameters > older.num_parameters and 4 * model.num_kv_heads == older.num_kv_heads


def test_how_much_of_the_card_the_opening_uses(record: dict[str, Any]) -> None:
    used = shape(record["memory"]["model"]).weight_bytes(2) + 12 * 2**30
    assert [round(100 * used / card) for card in (40e9, 40 * 2**30)] == [97, 91]


def test_a_model_with_shared_heads_keeps_an_eighth() -> None:
    model = shape("llama-2-70b")
    assert model.num_heads == 8 * model.num_kv_heads
    assert model.kv_bytes_per_token(2) * 131_072 / 1e9 == pytest.approx(42.9, abs=0.05)


def test_the_first_answer() -> None:
    token, wrong = 2 * 40 * 8 * 128 * 2, 2 * 40 * 64 * 128 * 2
    assert (token, wrong) == (163_840, 1_310_720)
    assert (int(30e9 / (4000 * token)), int(30e9 / (4000 * wrong))) == (45, 5)
    assert 1024 * token / 1e6 == pytest.approx(168, abs=0.5) and int(30e9 / (1024 * token)) == 178
    assert 4000 * token / 1e6 == pytest.approx(655, abs=0.5) and 4000 * wrong / 1e9 == pytest.approx(5.24, abs=0.005)


# ---- what a sequence holds ---------------------------------------------------------------------------------------


def test_the_example_by_hand() -> None:
    lengths = [(4, 1), (4, 9)]
    assert held(lengths) == pytest.approx(7.6) and held(lengths, 4) == pytest.approx(8.8)
    n_bar, places = held(lengths), held(lengths, 4)
    assert [6 * n_bar / 96, 96 / places, n_bar / places] == pytest.approx([0.475, 10.9, 0.86], abs=0.01)
    assert n_bar + (4 - 1) / 2 == pytest.approx(9.1)
    assert all(p % 4 == 0 == (p + m - 1) % 4 for p, m in lengths)  # every sequence begins and ends with a full block


def test_the_closed_form_is_the_sum_over_steps() -> None:
    lengths = [(p, m) for p in (1, 7, 30) for m in (1, 2, 50)]
    closed = sum(m * (p + (m - 1) / 2) for p, m in lengths) / sum(m for _, m in lengths)
    assert held(lengths) == pytest.approx(closed)


def test_the_second_answer() -> None:
    lengths = [(20, 10)] * 9 + [(20, 110)]
    assert held(lengths) == pytest.approx(52)
    n_bar = held(lengths)
    assert [1200 // 200 * n_bar / 1200, 1200 / (n_bar + 4.5)] == pytest.approx([0.26, 21.2], abs=0.05)
    by_requests = (9 * 24.5 + 74.5) / 10
    assert by_requests == pytest.approx(29.5) and int(1200 / (by_requests + 4.5)) == 35


def test_the_fourth_answer() -> None:
    assert held([(6000, 150)]) == pytest.approx(6075, abs=1)
    assert 6400 / (held([(6000, 150)]) + 7.5) == pytest.approx(1.05, abs=0.005)


def test_the_best_block_is_less_than_a_token() -> None:
    kappa, n = 819_200, 400
    cost = {b: 4 * n / b + kappa * (b - 1) / 2 for b in range(1, 65)}
    assert min(cost, key=cost.__getitem__) == 1
    assert math.sqrt(8 * n / kappa) < 0.1


# ---- the last block ----------------------------------------------------------------------------------------------


def test_lengths_up_to_eight_and_up_to_six() -> None:
    assert last_block(range(1, 9), 4) == Fraction(3, 2)
    assert last_block(range(1, 7), 4) == Fraction(11, 6)


@pytest.mark.parametrize(("block", "share"), [(8, 0.003404669260700389), (16, 0.007267441860465116),
                                              (32, 0.014903846153846155), (256, 0.11067708333333333)])  # fmt: skip
def test_uniform_lengths_waste_half_a_block_where_it_divides_the_range(block: int, share: float) -> None:
    lengths = range(1, 2049)
    wasted = last_block(lengths, block)
    assert wasted == Fraction(block - 1, 2)
    assert float(wasted / (wasted + Fraction(sum(lengths), len(lengths)))) == pytest.approx(share, rel=1e-12)
    assert last_block(range(1, 2041), 16) > Fraction(15, 2)  # 16 does not divide 2,040


def test_the_formula_for_geometric_lengths() -> None:
    page: dict[str, Any] = {}
    found = re.search(r"def geometric\(.*?\n\n", PAGE.read_text("utf-8"), re.DOTALL)
    assert found
    exec(found[0], page)
    assert page["geometric"](200, 16) == pytest.approx(7.606505052068996, rel=1e-9)
    wasted = page["geometric"](200, 128)
    assert wasted / (200 + wasted) == pytest.approx(0.26007283194535485, rel=1e-9)
    q = 1 - 1 / 200
    assert page["geometric"](200, 16) == pytest.approx(sum(q ** (n - 1) / 200 * (-n % 16) for n in range(1, 8000)))
    for b in (16, 128):  # as the page writes it
        assert page["geometric"](200, b) == pytest.approx(b - 200 + b / (q**-b - 1))


def test_the_pool_wastes_what_the_formula_says_for_a_skewed_law() -> None:
    lengths = [1 + round(3 * k**1.5) for k in range(60)]
    pool = BlockPool(20_000, 16)
    found = waste(pool, [(pool.allocate(None, n), n) for n in lengths])
    assert found.internal == sum(-n % 16 for n in lengths)


# ---- the recording -----------------------------------------------------------------------------------------------

PUBLISHED = {"max": (0.204, 7.00), "pow2": (0.268, 9.81), "oracle": (0.382, 13.62), "paged": (0.963, 30.42)}


def test_the_recorded_shares_are_whole_and_near_the_published_ones(record: dict[str, Any]) -> None:
    for name, found in record["systems"].items():
        shares = [found[part][0] for part in ("stored", "reserved", "internal", "external", "free")]
        assert sum(shares) == pytest.approx(1, abs=1e-4), name
        if name in PUBLISHED:
            assert shares[0] == pytest.approx(PUBLISHED[name][0], abs=0.03), name
    assert record["systems"]["max"]["external"][0] == pytest.approx((15_728 - 7 * 2048) / 15_728, abs=1e-4)
    assert record["systems"]["max"]["batch"][0] == 7
    text = PAGE.read_text("utf-8")
    for share, batch in PUBLISHED.values():
        assert f"({share:.3f}, {batch:.2f})" in text


def test_what_the_page_says_of_the_recorded_shares(record: dict[str, Any]) -> None:
    systems = {name: {part: value[0] for part, value in found.items()} for name, found in record["systems"].items()}
    assert systems["max"]["stored"] < 1 / 5 and systems["max"]["internal"] > 1 / 2
    exact = systems["oracle-exact"]
    assert exact["stored"] == pytest.approx(0.5, abs=0.03)
    assert exact["reserved"] > exact["external"] > 10 * exact["internal"]  # the two reasons that the page names
    assert (
        systems["paged"]["batch"] / systems["max"]["batch"]
        > systems["paged"]["throughput"] / systems["max"]["throughput"]
        > 2
    )
    for found in record["traces"].values():
        assert found["paged"]["batch"][0] > found["oracle"]["batch"][0]
    code, chat = record["traces"]["azure-code"], record["traces"]["sharegpt-lengths"]
    assert code["final"] / code["stored"] < 1.1 < 1.5 < chat["final"] / chat["stored"]


def test_memory_limits_the_traces_and_short_steps_limit_long_prompts(record: dict[str, Any]) -> None:
    for name, found in record["traces"].items():
        assert found["paged"]["free"][0] < 0.06, name
        rows = 1 << int(found["longest"]).bit_length()
        gain = found["paged"]["batch"][0] / found["max"]["batch"][0]
        assert gain == pytest.approx(rows / (found["stored"] + 7.5), rel=0.2), name
    moon = record["traces"]["mooncake-conversation"]
    assert moon["paged-2048"]["free"][0] > 0.2 and moon["paged-2048"]["batch"][0] < 0.8 * moon["paged"]["batch"][0]
    bound = 2048 * moon["output"] / (moon["prompt"] + moon["output"])
    assert moon["paged-2048"]["batch"][0] == pytest.approx(bound, rel=0.2)


def test_predicted_and_simulated_blocks_fall_together(record: dict[str, Any]) -> None:
    stored = record["law"]["stored"]
    for size, found in record["blocks"].items():
        share = stored / found["held"]
        assert 0.0 <= share - found["stored"][0] + 0.01 <= 0.04, size  # the rest is free, and too little for the next
    assert record["blocks"]["16"]["stored"][0] > 0.95 > 0.8 > record["blocks"]["256"]["stored"][0]


def test_the_recording_comes_out_again(record: dict[str, Any], benchmark: ModuleType) -> None:
    try:
        find_trace("sharegpt-lengths")
    except UnderloadError as error:
        pytest.skip(str(error))
    chat = benchmark.pairs("sharegpt-lengths", 2048)
    again = benchmark.law(chat)
    assert {key: again[key] for key in ("requests", "stored", "final", "run_pow2")} == {
        key: record["law"][key] for key in ("requests", "stored", "final", "run_pow2")
    }
    run = benchmark.serve("max", benchmark.order(chat, 0, 60), 15_728, 16, 2048)
    assert run.batch == pytest.approx(7) and run.stored == pytest.approx(
        record["systems"]["max"]["stored"][0], abs=0.05
    )


# ---- in production -----------------------------------------------------------------------------------------------


def test_a_log_of_vllm_recomputed() -> None:
    per_block = 16 * shape("llama-3-8b").kv_bytes_per_token(2)
    assert 11.12 * 2**30 / per_block == pytest.approx(5691, rel=1e-3)
    assert round(5691 * 16 / 8192, 2) == 11.12
    assert 8192 * per_block // 16 == 2**30
