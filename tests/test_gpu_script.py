"""The GPU script runs small wherever there is none, so that it works on the day there is one."""

import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "benchmarks" / "gpu.py"


@pytest.fixture(scope="module")
def gpu():
    spec = importlib.util.spec_from_file_location("gpu_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def record(gpu, tmp_path_factory):
    out = tmp_path_factory.mktemp("gpu") / "gpu.json"
    assert gpu.main(["--quick", "--out", str(out)]) == 0, out.read_text()
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


def test_a_part_that_fails_is_named_and_the_others_still_run(gpu, tmp_path, monkeypatch):
    def broken(setting):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(gpu, "PARTS", {"broken": broken, "fine": lambda setting: {"value": 1}})
    out = tmp_path / "gpu.json"
    assert gpu.main(["--quick", "--out", str(out)]) == 1
    parts = json.loads(out.read_text())["parts"]
    assert "no such kernel" in parts["broken"]["error"] and parts["fine"]["value"] == 1
