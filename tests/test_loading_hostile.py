"""Damaged and lying files: a clear error, never a hang, a crash or a half-loaded model."""

from __future__ import annotations

import json
import shutil
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import TINY_VOCABULARY, write_tiny
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from underload.decoder.config import parse_json
from underload.decoder.folder import FolderCheckpoint, read_header
from underload.decoder.gguf_file import GgufCheckpoint
from underload.decoder.sources import open_checkpoint
from underload.decoder.tokenizer import Tokenizer
from underload.decoder.weights import CheckpointError
from underload.request import UnderloadError

MUTATIONS = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """Turns a hang into a failure, where the platform has alarms. No result depends on how long a test took."""
    if not hasattr(signal, "SIGALRM"):
        yield
        return

    def fail(*_: object) -> None:
        raise TimeoutError("reading a damaged file hung")

    previous = signal.signal(signal.SIGALRM, fail)
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("hostile") / "llama", "llama")


@st.composite
def mutations(draw, reach: int = 4096) -> list[tuple[str, int, bytes]]:
    """A few edits: overwrite, cut, insert; mostly in the first `reach` bytes, where the headers are."""
    numbers = st.sampled_from([0, 1, 2, 7, 2**31 - 1, 2**32 - 1, 2**40, 10**15, 2**63 - 1, 2**64 - 1]).map(
        lambda n: struct.pack("<Q", n)
    )
    pieces = st.one_of(
        numbers, st.binary(min_size=1, max_size=16), st.sampled_from([b"NaN", b"-1", b"1e999", b'"', b"[" * 8])
    )
    edit = st.tuples(st.sampled_from(["overwrite", "insert", "cut"]), st.integers(0, reach), pieces)
    return draw(st.lists(edit, min_size=1, max_size=3))


def mutate(raw: bytes, edits: list[tuple[str, int, bytes]]) -> bytes:
    for kind, place, piece in edits:
        place %= max(1, len(raw))
        if kind == "overwrite":
            raw = raw[:place] + piece + raw[place + len(piece) :]
        elif kind == "insert":
            raw = raw[:place] + piece + raw[place:]
        else:
            raw = raw[:place]
    return raw


def load_or_refuse(path: Path) -> None:
    """Loads everything there is, or is refused with the library's own error. A loaded model is a whole one."""
    try:
        checkpoint = open_checkpoint(path)
        weights = checkpoint.weights()
        checkpoint.tokenizer()
    except UnderloadError as error:
        assert len(str(error)) < 2000
    else:
        assert sum(tensor.numel() for tensor in weights.tensors()) == checkpoint.shape.num_parameters
        assert len(weights.layers) == checkpoint.shape.num_layers


@pytest.mark.parametrize(
    "file", ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
)
def test_a_mutated_folder_loads_whole_or_is_refused(file, llama, tmp_path):
    folder = tmp_path / "mutated"
    shutil.copytree(llama, folder)
    whole = (folder / file).read_bytes()

    @MUTATIONS
    @given(mutations())
    def check(edits):
        (folder / file).write_bytes(mutate(whole, edits))
        load_or_refuse(folder)

    check()


@pytest.mark.parametrize("stored", ["F32", "Q8_0"])
def test_a_mutated_gguf_loads_whole_or_is_refused(stored, tiny_gguf, tmp_path):
    whole = tiny_gguf("llama", stored).read_bytes()
    path = tmp_path / "mutated.gguf"

    @MUTATIONS
    @given(mutations(reach=len(whole) - 1))
    @example([("overwrite", 8, struct.pack("<Q", 10**15))])  # tensors
    @example([("overwrite", 16, struct.pack("<Q", 10**15))])  # metadata entries
    @example([("overwrite", 24, struct.pack("<Q", 10**15))])  # bytes of the first key
    def check(edits):
        path.write_bytes(mutate(whole, edits))
        load_or_refuse(path)

    check()


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 9, 100, 1000, -100, -1])
def test_truncated_files_are_refused(cut, llama, tiny_gguf, tmp_path):
    folder = tmp_path / "cut"
    shutil.copytree(llama, folder)
    whole = (llama / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:cut])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        FolderCheckpoint(folder)
    gguf = tiny_gguf("llama").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(gguf[:cut])
    with pytest.raises(CheckpointError, match=r"cut\.gguf"):
        GgufCheckpoint(tmp_path / "cut.gguf")


# --- safetensors -----------------------------------------------------------------------------------------------------


def safetensors(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "cut short"),
        (safetensors({}, length=10**15), "cut short: its header claims 1000000000000000 bytes"),
        (safetensors(b"not json"), "not JSON"),
        (safetensors(b"[" * 100_000), "not JSON"),
        (safetensors([1]), "must be a JSON object"),
        (safetensors({"a": 1}), "'a' in no way that is known"),
        (safetensors({"a": ENTRY | {"shape": [-2]}}, bytes(8)), "in no way that is known"),
        (safetensors({"a": ENTRY | {"shape": [10**30]}}, bytes(8)), "in no way that is known"),
        (safetensors({"a": ENTRY | {"shape": [True]}}, bytes(8)), "in no way that is known"),
        (safetensors({"a": ENTRY | {"data_offsets": [0, 10**15]}}, bytes(8)), "bytes 0 to 1000000000000000 of 8"),
        (safetensors({"a": ENTRY | {"data_offsets": [8, 0]}}, bytes(8)), "claims bytes 8 to 0"),
        (safetensors({"a": ENTRY | {"shape": [3]}}, bytes(8)), "does not take 8 bytes"),
        (safetensors({"a": ENTRY | {"shape": [2**40, 2**40]}}, bytes(8)), "does not take 8 bytes"),
        (safetensors(b'{"a":ENTRY,"a":ENTRY}'.replace(b"ENTRY", json.dumps(ENTRY).encode()), bytes(8)), "'a' twice"),
        (safetensors(b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,8]}}', bytes(8)), "NaN"),
    ],
)  # fmt: skip
def test_a_lying_safetensors_header_is_refused(raw, message, tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_bytes(raw)
    with pytest.raises(CheckpointError, match=message):
        read_header(file)


def test_a_quantised_safetensors_file_is_refused_by_its_type(llama, tmp_path):
    folder = tmp_path / "int8"
    shutil.copytree(llama, folder)
    (folder / "model.safetensors").write_bytes(
        safetensors({"a": {"dtype": "I8", "shape": [8], "data_offsets": [0, 8]}}, bytes(8))
    )
    with pytest.raises(CheckpointError, match="I8.*GGUF"):
        FolderCheckpoint(folder)


@pytest.fixture
def sharded(tmp_path) -> Path:
    return write_tiny(tmp_path / "sharded", "llama", max_shard_size="30KB")


@pytest.mark.parametrize(
    "name",
    [
        "../llama/model.safetensors",
        "/etc/passwd",
        "..",
        "a/b.safetensors",
        "c:x.safetensors",
        "..\\x.safetensors",
        "pytorch_model.bin",
        7,
        "",
    ],
)
def test_an_index_that_points_elsewhere_is_refused(name, sharded):
    index = sharded / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.norm.weight"] = name
    index.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"plain name of a \.safetensors file"):
        FolderCheckpoint(sharded)


def test_an_index_that_does_not_match_its_shards_is_refused(sharded):
    shards = sorted(sharded.glob("model-*.safetensors"))
    index = sharded / "model.safetensors.index.json"
    content = index.read_text()

    entries = json.loads(content)
    entries["weight_map"]["model.extra.weight"] = shards[0].name
    index.write_text(json.dumps(entries))
    with pytest.raises(CheckpointError, match=r"model\.extra\.weight.*in the index but not in the file"):
        FolderCheckpoint(sharded)

    index.write_text(content)
    shutil.copyfile(shards[0], shards[1])
    with pytest.raises(CheckpointError, match="not in the"):
        FolderCheckpoint(sharded)
    shards[1].unlink()
    with pytest.raises(CheckpointError, match=f"lacks {shards[1].name}"):
        FolderCheckpoint(sharded)


def test_a_tensor_in_two_shards_is_refused(llama, tmp_path):
    from underload.decoder.folder import _FolderTensors

    copy = tmp_path / "again.safetensors"
    shutil.copyfile(llama / "model.safetensors", copy)
    with pytest.raises(CheckpointError, match="both in model.safetensors and in again.safetensors"):
        _FolderTensors({llama / "model.safetensors": None, copy: None})


def test_pickles_are_never_opened(llama, tmp_path):
    folder = tmp_path / "pickled"
    shutil.copytree(llama, folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        FolderCheckpoint(folder)
    # Opening this file as a pickle would raise ZeroDivisionError from inside the pickle machine.
    (folder / "pytorch_model.bin").write_bytes(b"cbuiltins\neval\n(S'1/0'\ntR.")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin, a pickle"):
        FolderCheckpoint(folder)


# --- JSON ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "-Infinity"),
        (b'{"a": 1, "a": 2}', "'a' twice"),
        (b'{"b": {"a": 1, "a": 2}}', "'a' twice"),
        (b"[" * 200_000, "not JSON"),
        (b'{"a": ' + b"9" * 100_000 + b"}", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"", "not JSON"),
        (b"null", "must be a JSON object"),
    ],
)
def test_json_is_read_strictly(raw, message):
    with pytest.raises(CheckpointError, match=message):
        parse_json(raw, "x")


def test_a_huge_number_in_a_config_is_refused_without_printing_it(llama, tmp_path):
    folder = tmp_path / "huge"
    shutil.copytree(llama, folder)
    config = (folder / "config.json").read_text()
    for value in ("1e999", "1" + "0" * 400, "1e300"):
        (folder / "config.json").write_text(config.replace('"rms_norm_eps": 1e-05', f'"rms_norm_eps": {value}'))
        with pytest.raises(CheckpointError, match="rms_norm_eps") as caught:
            FolderCheckpoint(folder)
        assert len(str(caught.value)) < 300


# --- GGUF ------------------------------------------------------------------------------------------------------------


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def gguf(
    metadata: bytes = b"",
    tensors: bytes = b"",
    *,
    entries: int = 0,
    count: int = 0,
    data: bytes = b"",
    version: int = 3,
) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, count, entries) + metadata + tensors
    return head + bytes(-len(head) % 32) + data


def tensor(name: bytes = b"t", size: tuple[int, ...] = (8,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(size)}QIQ", len(size), *size, kind, offset)


def nested(depth: int) -> bytes:
    return b"".join(struct.pack("<IQ", 9, 1) for _ in range(depth)) + struct.pack("<IQ", 0, 0)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "cannot be read"),
        (b"GGML" + bytes(40), "no GGUF file"),
        (gguf(version=1), "version 1"),
        (gguf(version=3 << 24), "big-endian"),
        (gguf(count=10**15), "claims 1000000000000000 tensors"),
        (gguf(entries=10**15), "claims 1000000000000000 metadata entries"),
        (gguf(struct.pack("<Q", 2**64 - 1), entries=1, data=bytes(64)), "bytes of a metadata key"),
        (gguf(text(b"a") + struct.pack("<I", 99), entries=1, data=bytes(64)), "unknown value type 99"),
        # An array of 10^15 one-byte values is what keeps a reader that trusts the count busy for ever.
        (gguf(text(b"a") + struct.pack("<IIQ", 9, 0, 10**15), entries=1, data=bytes(64)), "1000000000000000 values"),
        (gguf(text(b"a") + struct.pack("<IIQ", 9, 8, 10**15), entries=1, data=bytes(64)), "1000000000000000 values"),
        (gguf(text(b"a") + struct.pack("<I", 9) + nested(3000), entries=1, data=bytes(64)), "unknown value type 9"),
        (gguf((text(b"a") + struct.pack("<IB", 0, 1)) * 2, entries=2), "'a' twice"),
        (gguf(text(b"\xff") + struct.pack("<IB", 0, 1), entries=1, data=bytes(64)), "not UTF-8"),
        (gguf(text(b"general.alignment") + struct.pack("<II", 4, 0), entries=1), "power of two"),
        (gguf(text(b"general.alignment") + struct.pack("<II", 4, 48), entries=1), "power of two"),
        (gguf(tensors=tensor() * 2, count=2, data=bytes(64)), "'t' twice"),
        (gguf(tensors=tensor(kind=16), count=1, data=bytes(64)), "IQ2_XXS"),
        (gguf(tensors=tensor(kind=1234), count=1, data=bytes(64)), "number 1234"),
        (gguf(tensors=tensor(size=(1, 1, 1, 1, 1)), count=1, data=bytes(64)), "5 dimensions"),
        (gguf(tensors=tensor(size=(0, 4)), count=1, data=bytes(64)), "impossible size"),
        (gguf(tensors=tensor(size=(2**39, 2**39, 2**39)), count=1, data=bytes(64)), "cut short or lies"),
        (gguf(tensors=tensor(size=(2**33, 2**31)), count=1, data=bytes(64)), "cut short or lies"),
        (gguf(tensors=tensor(size=(33,), kind=8), count=1, data=bytes(64)), "blocks of 32"),
        (gguf(tensors=tensor(offset=2**63), count=1, data=bytes(64)), "cut short or lies"),
        (gguf(tensors=tensor(offset=3), count=1, data=bytes(64)), "cut short or lies"),
        (gguf(), "architecture None"),
        (gguf(text(b"general.architecture") + struct.pack("<I", 8) + text(b"mamba"), entries=1), "mamba.*llama, qwen2"),
        (gguf(text(b"general.architecture") + struct.pack("<I", 8) + text(b"llama"), entries=1), r"token_embd\.weight"),
    ],
)  # fmt: skip
def test_a_lying_gguf_header_is_refused(raw, message, tmp_path):
    path = tmp_path / "lying.gguf"
    path.write_bytes(raw)
    with pytest.raises(CheckpointError, match=message):
        GgufCheckpoint(path)


# --- tokenizers ------------------------------------------------------------------------------------------------------


def test_a_tokenizer_that_is_none_is_refused(tmp_path):
    for raw in (b"", b"{}", b"[]", b'{"version": "1.0"}', b"\xff", b"[" * 100_000):
        (tmp_path / "tokenizer.json").write_bytes(raw)
        with pytest.raises(CheckpointError, match=r"tokenizer\.json is not a tokenizer"):
            Tokenizer.from_file(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json"):
        Tokenizer.from_file(tmp_path / "tokenizer.json")


def test_a_tokenizer_of_another_model_is_refused(llama, tmp_path):
    folder = tmp_path / "other"
    shutil.copytree(llama, folder)
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"] |= {f"extra{i}": TINY_VOCABULARY + i for i in range(5)}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=f"{TINY_VOCABULARY + 5} tokens.*vocabulary is {TINY_VOCABULARY}"):
        FolderCheckpoint(folder).tokenizer()
