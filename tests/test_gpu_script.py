"""The GPU script runs small wherever there is none, so that it works on the day there is one."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "benchmarks" / "gpu.py"


@pytest.fixture(scope="module")
def gpu():
    spec = importlib.util.spec_from_file_location("gpu_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(SCRIPT.parent))  # as Python does for a script that it runs
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(SCRIPT.parent))


@pytest.fixture(scope="module")
def record(gpu, tmp_path_factory):
    out = tmp_path_factory.mktemp("gpu") / "gpu.json"
    assert gpu.main(["--quick", "--minutes", "60", "--out", str(out)]) == 0, out.read_text()
    return json.loads(out.read_text())


def test_every_part_runs_and_records_where_it_ran(gpu, record):
    assert set(record["parts"]) == set(gpu.PARTS)
    assert record["quick"] is True and record["machine"]["cpu"]
    for row in record["parts"]["decode"]["rows"]:
        assert row["fastest"] <= row["seconds"] <= row["slowest"]
    assert record["parts"]["parity"]["rows"]["float32, whole"]["relative_error"] < 1e-4


def test_the_kernels_parts_ran_and_compared_something(record):
    pytest.importorskip("triton", reason="triton is not installed (it exists for Linux only)")
    parts = record["parts"]
    assert {row["how"] for row in parts["attention"]["rows"]} == {"chosen splits", "splits of 192", "invariant"}
    differences = parts["invariance"]["largest_difference"]
    assert len(differences) == 4 and sum(value == 0 for value in differences.values()) >= 3
    assert parts["engine"]["batch_invariant"]["same_tokens"] == parts["engine"]["batch_invariant"]["requests"]
    assert [row["splits"] for row in parts["paged_decode"]["rows"]] == [2, 1, None]  # two splits, one, and SDPA
    assert {row["how"] for row in parts["paged_prefill"]["rows"]} == {"chosen", "invariant", "SDPA, contiguous"}
    assert parts["write"]["rows"][0]["largest_difference"] == 0


def test_the_parts_that_serve_ran_whole(record):
    pytest.importorskip("triton", reason="triton is not installed (it exists for Linux only)")
    parts = record["parts"]
    captured = parts["captured"]
    assert [row["rows"] for row in captured["rows"]] == [1, 3, 1, 3]
    assert all(row["relative_error"] == 0 for row in captured["rows"] if row["batch_invariant"])
    for row in captured["engine"].values():
        assert row["same_tokens"] == row["requests"] and row["preemptions"] > 0
    ours = [row for row in parts["steps"]["rows"] if row["how"] == "underload"]
    assert [(row["batch"], row["rows"]) for row in ours] == [(2, 2), (3, 4)]
    for row in ours:
        assert row["device_of_roofline"] > 0 and row["engine_seconds_without_graphs"] > 0
        assert row["host_gap"] == row["engine_seconds"] - row["device_seconds"]
    assert parts["memory"]["blocks"] >= 8 and parts["memory"]["swap_out_bytes_per_s"] > 0
    hows = [row["how"] for row in parts["mixed"]["rows"]]
    assert hows[:2] == ["underload, graphs", "underload, eager"]


def test_transformers_runs_beside_where_it_is_installed(record):
    pytest.importorskip("transformers")
    rows = record["parts"]["mixed"]["rows"] + record["parts"]["steps"]["rows"]
    theirs = [row for row in rows if not row["how"].startswith("underload")]
    assert [row["how"] for row in theirs if "error" not in row] == [
        "transformers, static",
        "transformers, continuous",
        "transformers",
    ], theirs


def test_what_no_time_is_left_for_is_named_and_not_begun(gpu, tmp_path):
    out = tmp_path / "gpu.json"
    assert gpu.main(["--quick", "--minutes", "0", "--out", str(out)]) == 0
    parts = json.loads(out.read_text())["parts"]
    assert set(parts) == set(gpu.PARTS)
    assert {part["skipped"] for part in parts.values()} == {"no time left"}


def test_a_part_that_fails_is_named_and_the_others_still_run(gpu, tmp_path, monkeypatch):
    def broken(setting):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(gpu, "PARTS", {"broken": broken, "fine": lambda setting: {"value": 1}})
    out = tmp_path / "gpu.json"
    assert gpu.main(["--quick", "--out", str(out)]) == 1
    parts = json.loads(out.read_text())["parts"]
    assert "no such kernel" in parts["broken"]["error"] and parts["fine"]["value"] == 1


def test_an_open_load_keeps_its_rate_and_its_books(record):
    part = record["parts"]["load"]
    assert part["saturated_per_s"] > 0
    for row in part["rows"]:
        assert row["requests"] == 6 and row["rate"] == pytest.approx(0.5 * part["saturated_per_s"])
        assert row["e2e"]["p99_interval"] is None  # six requests have no p99
        assert sum(row["slowest"].values()) == pytest.approx(row["slowest_e2e"], rel=1e-9)
        assert row["slowest_e2e"] >= row["e2e"]["p99"] and len(row["goodput"]) == len(part["slos"])
