"""`underload model`: the figures it prints are the library's, and its errors are one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from underload.cli import build_parser, main
from underload.cli.model import parse_size
from underload.request import UnderloadError
from underload.shapes import DEVICES, SHAPES, critical_batch, sequences_that_fit, shape


def printed(capsys, *words: str) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


def test_help_teaches_and_needs_no_torch():
    code = (
        "import sys; from underload.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\nprint('torch' in"
        " sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_environment())
    assert done.stdout.rstrip().endswith("False")
    assert "underload model list" in done.stdout


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def test_info_of_a_shape_needs_no_torch():
    code = (
        "import sys; from underload.cli import main\n"
        "main(['model', 'info', 'shape:llama-3-70b', '--memory', '141GB'])\nprint('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_environment())
    assert done.stdout.rstrip().endswith("False")
    assert "70,553,706,496 parameters" in done.stdout


def test_info_prints_what_the_library_computes(capsys):
    facts = json.loads(
        printed(capsys, "model", "info", "shape:llama-3-8b", "--memory", "24GB", "--context", "4096", "--json")
    )
    llama = shape("llama-3-8b")
    assert facts["parameters"] == 8_030_261_248
    assert facts["weight_bytes"] == 2 * 8_030_261_248
    assert facts["kv_bytes_per_token"] == 131_072  # 2 x 32 layers x 8 heads x 128 x 2 bytes
    # (24e9 x 0.9 - 16.06e9) / (4096 x 131072), by hand: 10.3
    assert facts["memory"]["sequences"] == {"4096": 10}
    assert sequences_that_fit(llama, 4096, 24e9, usable=0.9) == 10
    rows = {row["name"]: row for row in facts["devices"]}
    assert rows.keys() == DEVICES.keys()
    h100 = DEVICES["h100-sxm"]
    assert rows["h100-sxm"]["critical_batch"] == critical_batch(
        bandwidth=h100.bandwidth, flops=h100.flops, weight_bytes=2
    )
    assert rows["h100-sxm"]["critical_batch_with_kv"] == {"4096": None}  # infinite


def test_dtypes_and_devices_change_the_figures(capsys):
    words = ("model", "info", "shape:llama-3-8b", "--device-name", "rtx-4090", "--context", "1000", "--json")
    wide = json.loads(printed(capsys, *words, "--dtype", "float32"))
    narrow = json.loads(printed(capsys, *words, "--dtype", "int4"))
    mixed = json.loads(printed(capsys, *words, "--dtype", "float16", "--kv-dtype", "float8"))
    assert wide["weight_bytes"] == 8 * narrow["weight_bytes"]
    assert (wide["kv_dtype"], narrow["kv_dtype"], mixed["kv_dtype"]) == ("float32", "bfloat16", "float8")
    assert wide["memory"]["sequences"] == {"1000": 0}
    assert not wide["devices"][0]["weights_fit"]
    assert narrow["devices"][0]["weights_fit"]
    assert narrow["memory"]["bytes"] == 24e9
    assert "do not fit" in printed(capsys, *words[:-1], "--dtype", "float32")


def test_info_of_a_checkpoint_reads_its_headers(capsys, tiny_checkpoint, tiny_gguf):
    facts = json.loads(printed(capsys, "model", "info", str(tiny_checkpoint("qwen2")), "--json"))
    assert facts["stored"] == {
        "as": "float32",
        "bytes": 4 * facts["parameters"],
        "place": str(tiny_checkpoint("qwen2")),
    }
    assert facts["shape"]["attention_bias"] is True
    text = printed(capsys, "model", "info", str(tiny_gguf("llama", "Q8_0")))
    assert "stored as Q8_0" in text


def test_list_names_everything_and_survives_a_damaged_model(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("UNDERLOAD_CACHE", str(tmp_path))
    text = printed(capsys, "model", "list")
    assert "underload model get smollm2-135m (93 MB to download" in text and "5.0 MB of weights as float16" in text
    assert all(f"shape:{name}" in text for name in SHAPES)
    (tmp_path / "smollm2-135m").mkdir()
    (tmp_path / "smollm2-135m" / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"GGUF")
    listed = json.loads(printed(capsys, "model", "list", "--json"))
    row = next(row for row in listed["models"] if row["name"] == "smollm2-135m")
    assert not row["here"]
    assert "cut short" in row["note"]
    assert {row["name"] for row in listed["models"]} == {"pocket", "pocket-draft", "smollm2-135m"}


def test_get_opens_what_needs_no_fetching(capsys, tiny_checkpoint):
    assert "needs no download" in printed(capsys, "model", "get", "shape:bench-s")
    facts = json.loads(printed(capsys, "model", "get", str(tiny_checkpoint("llama")), "--json"))
    assert facts["stored_as"] == "float32"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model", "info", "shape:llama-9"], "unknown shape"),
        (["model", "info", "no-such"], "no model is called 'no-such'"),
        (["model", "info", "shape:llama-3-8b", "--memory", "24X"], "such as 24GB"),
        (["model", "info", "shape:llama-3-8b", "--context", "9999"], "8192 positions, got 9999"),
        (["model", "info", "shape:llama-3-8b", "--context", "0"], "got 0"),
        (["model", "info", "shape:llama-3-8b", "--device-name", "abacus"], "abacus.*h100-sxm"),
        (["model", "get", "no-such"], "no model is called"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(words, message, capsys):
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("underload: ")
    import re

    assert re.search(message, captured.err)


@pytest.mark.parametrize(
    "words", [[], ["model"], ["model", "info"], ["no-such-command"], ["model", "info", "x", "--dtype", "q2"]]
)
def test_a_bad_command_line_exits_with_2(words, capsys):
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2


def test_every_command_has_help(capsys):
    parser = build_parser()
    for words in (
        ["--help"],
        ["model", "--help"],
        ["model", "list", "--help"],
        ["model", "get", "--help"],
        ["model", "info", "--help"],
    ):
        with pytest.raises(SystemExit) as caught:
            parser.parse_args(words)
        assert caught.value.code == 0
        assert len(capsys.readouterr().out) > 80


def test_an_interrupt_is_no_traceback(monkeypatch, capsys):
    def interrupted(args):
        raise KeyboardInterrupt

    monkeypatch.setattr("underload.cli.model.run_list", interrupted)
    assert main(["model", "list"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_reader_that_has_gone_is_no_error_and_a_full_disk_is_one_line():
    command = [sys.executable, "-m", "underload", "model", "info", "shape:llama-3-8b", "--json"]
    # Buffered, as it is for a user: what is left in the buffer at the end must not fail when nobody catches it.
    environment = {name: value for name, value in _environment().items() if name != "PYTHONUNBUFFERED"}
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, env=environment)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
    if Path("/dev/full").exists():
        with open("/dev/full", "w") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "No space left" in done.stderr


def test_a_place_that_cannot_be_written_is_named(tmp_path, capsys):
    place = tmp_path / "file"
    place.write_text("in the way")
    assert main(["labs", "copy", str(place)]) == 2
    err = capsys.readouterr().err
    assert str(place) in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GB", 24e9),
        ("24 gb", 24e9),
        ("16GiB", 16 * 2**30),
        ("1.5T", 1.5e12),
        ("512m", 512e6),
        ("80Gi", 80 * 2**30),
        ("1000", 1000),
    ],
)
def test_memory_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0GB", "1e9", "24XB", "nan", "9" * 400])
def test_sizes_that_are_none(text):
    with pytest.raises(UnderloadError, match="memory size"):
        parse_size(text)
