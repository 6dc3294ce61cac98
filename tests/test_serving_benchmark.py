"""The benchmark of a mixed load: its load, its sums, and the engines that can run here, on a few requests."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parent / "benchmarks"


@pytest.fixture(scope="module")
def parts():
    """The modules of the benchmark, found as when one of them is run as a script."""
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module("serving"), importlib.import_module("servers")
    sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def checkpoint(parts, tmp_path_factory):
    serving, _ = parts
    folder = tmp_path_factory.mktemp("checkpoint")
    serving.write_checkpoint("bench-s", folder)
    return folder


LOAD = ([[5, 6, 7], list(range(10, 40)), [9, 8], [30, 31], list(range(100, 117))], [3, 2, 5, 1, 4])


def greedy(folder, prompts, new):
    """Each prompt alone, by the plain path."""
    from underload.decoder import Batch, Model, Weights
    from underload.request import BlockTable, Sequence
    from underload.shapes import shape

    safetensors = pytest.importorskip("safetensors.torch")
    sizes = shape("bench-s")
    weights = Weights.from_tensors(sizes, safetensors.load_file(folder / "model.safetensors"), dtype=torch.float32)
    model, outputs = Model(sizes, weights, path="plain"), []
    for ids, count in zip(prompts, new, strict=True):
        kv = model.new_kv(1, len(ids) + count)
        sequence = Sequence(len(ids), list(ids), table=BlockTable(len(ids) + count, [0]))
        for _ in range(count):
            batch = Batch.of([(sequence, len(sequence.tokens) - sequence.num_computed)])
            sequence.num_computed = len(sequence.tokens)
            sequence.tokens += model.greedy(batch, kv)
        outputs.append(sequence.output_ids)
    return outputs


def test_the_load_is_the_same_for_a_seed_and_within_its_limits(parts):
    serving, servers = parts
    prompts, new = serving.mixed_load(64, 32_000)
    assert (prompts, new) == serving.mixed_load(64, 32_000)
    assert (prompts, new) != serving.mixed_load(64, 32_000, seed=2)
    lengths = [len(ids) for ids in prompts]
    assert min(lengths) >= 16 and max(lengths) <= 256 and len(set(lengths)) > 30
    assert min(new) >= 8 and max(new) <= 256 and len(set(new)) > 30
    assert all(3 <= token < 32_000 for ids in prompts for token in ids)
    assert max(lengths) + max(new) <= servers.LONGEST


@pytest.mark.parametrize("name", ["underload", "transformers", "transformers continuous", "ctranslate2", "llama.cpp"])
def test_an_engine_answers_every_request_as_it_would_be_answered_alone(parts, checkpoint, name):
    _, servers = parts
    if lacking := servers.missing(name):
        pytest.skip(f"{lacking} is not installed")
    server = servers.SERVERS[name](checkpoint, 1)
    try:
        answer = server.run({"prompts": LOAD[0], "new": LOAD[1], "slots": 2})
    finally:
        server.close()
    assert answer["tokens"] == greedy(checkpoint, *LOAD)
    for first, last, count in zip(answer["first"], answer["last"], LOAD[1], strict=True):
        assert 0 < first <= last <= answer["seconds"] + 1e-3
        assert (first == last) == (count == 1)
    # Two at a time: the last request begins after another has ended.
    assert answer["first"][4] > min(answer["last"][:4]) or name == "ctranslate2"


def test_engines_take_turns_in_processes_of_their_own(parts, checkpoint):
    serving, _ = parts
    rows = serving.compare(["underload", "underload f16"], *LOAD, slots=2, rounds=2, threads=1, folder=checkpoint)
    assert [row["engine"] for row in rows] == ["underload", "underload f16"]
    assert [row["weights"] for row in rows] == ["float32", "float16"]
    assert rows[0]["same_tokens"] == len(LOAD[0])
    for row in rows:
        assert len(row["tokens_per_second"]) == len(row["other_load"]) == 2
        for figure in serving.FIGURES:
            assert min(row[figure]) > 0


def row(engine, rates, loads):
    return {
        "engine": engine,
        "weights": "float32",
        "same_tokens": 5,
        "tokens_per_second": rates,
        "other_load": loads,
    } | {figure: [1.0] * len(rates) for figure in ("mean_finish_seconds", "mean_ttft_seconds", "p99_ttft_seconds")}


def test_medians_leave_out_rounds_in_which_others_ran(parts):
    serving, _ = parts
    ours, theirs = (
        row("underload", [100.0, 50.0, 110.0], [0.0, 0.5, 0.01]),
        row("peer", [50.0, 1.0, 20.0], [0.0, 0.0, 0.4]),
    )
    serving.summarise([ours, theirs])
    assert ours["median_tokens_per_second"] == 105 and ours["quiet_rounds"] == 2
    assert theirs["median_tokens_per_second"] == 25.5 and theirs["quiet_rounds"] == 2
    assert theirs["underload_is_faster_by"] == 2  # the first round alone was quiet for both
    assert theirs["underload_is_faster_by_range"] == [2, 50]  # of all rounds: nothing is hidden
    assert ours["underload_is_faster_by"] == 1
    busy = row("busy", [10.0, 30.0, 20.0], [0.5, 0.5, 0.5])
    serving.summarise([busy])
    assert busy["median_tokens_per_second"] == 20 and busy["quiet_rounds"] == 0
    assert "underload_is_faster_by" not in busy


def test_a_table_has_a_line_for_each_engine_the_fastest_first(parts):
    serving, _ = parts
    rows = [row("peer", [50.0], [0.0]), row("underload", [100.0], [0.0])]
    serving.summarise(rows)
    lines = serving.table(rows).splitlines()
    assert len(lines) == 4
    assert lines[2].startswith("| underload | float32 | 100 |") and lines[3].startswith("| peer | float32 | 50 |")
    assert lines[3].endswith("| 2.00 (2.00-2.00) |")


def test_the_stored_result_says_where_it_comes_from_and_adds_up(parts):
    serving, servers = parts
    stored = json.loads((FOLDER / "results" / "serving.json").read_text())
    assert stored["date"] and stored["machine"]["cpu"] and stored["machine"]["underload"]
    assert {stored_row["engine"] for stored_row in stored["rows"]} <= set(servers.SERVERS)
    for stored_row in stored["rows"]:
        again = dict(stored_row)
        serving.summarise([again])
        assert again["median_tokens_per_second"] == stored_row["median_tokens_per_second"]
        assert len(stored_row["tokens_per_second"]) >= serving.ROUNDS
