"""A Hugging Face folder: config.json, tokenizer.json, and safetensors in one file or in shards.

Safetensors is a header (8 bytes of length, then JSON: name → type, size, byte range) and then the bytes: reading it
runs nobody's code. A pickle (.bin, .pt) may run anything, so none is ever opened.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from underload.decoder.chat import ChatTemplate
from underload.decoder.checkpoint import Checkpoint
from underload.decoder.config import parse_json, read_json, shape_from_config
from underload.decoder.tokenizer import Tokenizer
from underload.decoder.weights import CheckpointError, LazyTensors, Weights, check_sizes

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class FolderCheckpoint(Checkpoint):
    """A folder as `save_pretrained` writes it.

    Raises:
        CheckpointError: a file missing or damaged, a header that does not match its file, a config that does not match
            the tensors, or anything unsupported, by name.
    """

    def __init__(self, folder: str | os.PathLike[str], name: str | None = None) -> None:
        self.folder = Path(folder)
        self.name = name or self.folder.name or str(self.folder)
        self.place = str(self.folder)
        if not self.folder.is_dir():
            raise CheckpointError(f"{self.folder} is not a folder")
        self._generation = self._optional("generation_config.json")
        self.shape = shape_from_config(read_json(self.folder / "config.json"), self.name, self._generation)
        self._tensors = _FolderTensors(_weight_files(self.folder))
        check_sizes(self.shape, self._tensors.sizes)
        self.stored_as = self._tensors.commonest_type
        self.stored_bytes = self._tensors.nbytes

    def weights(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Weights:
        if torch.device(device).type == "meta":
            return Weights.random(self.shape, dtype=dtype, device=device)
        with self._tensors.opened():
            return Weights.from_tensors(self.shape, self._tensors, dtype, device)

    def tokenizer(self) -> Tokenizer | None:
        if not any(self.folder.glob("tokenizer*")):
            return None  # bare weights: they still turn ids into ids
        settings = self._optional("tokenizer_config.json")
        tokenizer = Tokenizer.from_file(
            self.folder / "tokenizer.json",
            eos_token_ids=self.shape.eos_token_ids,
            chat_template=self._chat_template(settings),
        )
        # The tokenizer's own settings come first: some configs carry a begin token that the tokenizer has no use for.
        named = _token_text(settings.get("bos_token"))
        bos = (
            self.shape.bos_token_id if "bos_token" not in settings else tokenizer.token_to_id(named) if named else None
        )
        if bos is not None and bos >= tokenizer.vocab_size:
            raise CheckpointError(
                f"{self.name}: begin token {bos} lies outside the tokenizer's vocabulary of {tokenizer.vocab_size}"
            )
        tokenizer.bos_token_id = bos
        if tokenizer.base_vocab_size > self.shape.vocab_size:
            raise CheckpointError(
                f"{self.name}: tokenizer.json has {tokenizer.base_vocab_size} tokens, but the model's vocabulary is "
                f"{self.shape.vocab_size}: they do not belong together"
            )
        return tokenizer

    def _chat_template(self, settings: Mapping[str, Any]) -> ChatTemplate | None:
        file = self.folder / "chat_template.jinja"
        if file.is_file():
            if file.stat().st_size > 1_000_000:
                raise CheckpointError(f"{file} has {file.stat().st_size} bytes, which is not believed of a template")
            try:
                return ChatTemplate(file.read_text(encoding="utf-8"))
            except UnicodeDecodeError as error:
                raise CheckpointError(f"{file} is not UTF-8: {error}") from error
        template = settings.get("chat_template")
        if isinstance(template, list):  # several, by name
            named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, Mapping)}
            template = named.get("default")
        if template is not None and not isinstance(template, str):
            raise CheckpointError(f"{self.name}: chat_template must be text, got {type(template).__name__}")
        return ChatTemplate(template) if template else None

    def _optional(self, file: str) -> dict[str, Any]:
        path = self.folder / file
        return read_json(path) if path.is_file() else {}


@dataclass(frozen=True)
class _Entry:
    file: Path
    type: str
    size: tuple[int, ...]


class _FolderTensors(LazyTensors):
    """The tensors of one or more safetensors files; the files are open only inside `opened()`."""

    def __init__(self, files: Mapping[Path, set[str] | None]) -> None:
        """`files`: each shard with the names the index puts there, or None where there is no index."""
        self._entries: dict[str, _Entry] = {}
        self._handles: dict[Path, Any] = {}
        for file, expected in files.items():
            header = read_header(file)
            if expected is not None and (strays := expected ^ set(header)):
                stray = min(strays)
                where = "the index but not in the file" if stray in expected else "the file but not in the index"
                raise CheckpointError(f"{file}: tensor {stray!r} is in {where}; the download may be incomplete")
            for name, (kind, size) in header.items():
                if name in self._entries:
                    raise CheckpointError(
                        f"tensor {name!r} is both in {self._entries[name].file.name} and in {file.name}"
                    )
                if kind not in _ITEM_BYTES:
                    raise CheckpointError(
                        f"{file}: tensor {name!r} is stored as {kind}; supported: {', '.join(_ITEM_BYTES)} (a quantised"
                        " checkpoint is not supported; load the unquantised one, or a GGUF file)"
                    )
                self._entries[name] = _Entry(file, kind, size)

    @property
    def sizes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: entry.size for name, entry in self._entries.items()}

    @property
    def nbytes(self) -> int:
        return sum(prod(entry.size) * _ITEM_BYTES[entry.type] for entry in self._entries.values())

    @property
    def commonest_type(self) -> str:
        weight = Counter[str]()
        for entry in self._entries.values():
            weight[_NAMES[entry.type]] += prod(entry.size)
        return weight.most_common(1)[0][0] if weight else "float32"

    @contextmanager
    def opened(self) -> Iterator[None]:
        try:
            for file in {entry.file for entry in self._entries.values()}:
                with _safetensors_errors(file):
                    self._handles[file] = safe_open(file, framework="pt", device="cpu")
            yield
        finally:
            self._handles.clear()

    def __getitem__(self, name: str) -> Tensor:
        file = self._entries[name].file
        with _safetensors_errors(file):
            # A copy: the tensor must not die with the file, should that be replaced while the model is in use.
            return self._handles[file].get_tensor(name).clone()


def read_header(file: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and size of every tensor in a safetensors file, each checked against the length of the file.

    Raises:
        CheckpointError: not such a file, or one whose header claims what the file does not hold.
    """
    try:
        length = file.stat().st_size
        with file.open("rb") as stream:
            prefix = stream.read(8)
            header_length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or header_length > min(length - 8, _MAX_HEADER_BYTES):
                raise CheckpointError(
                    f"{file} is no safetensors file, or is cut short: its header claims {header_length} bytes, the file"
                    f" has {length}"
                )
            raw = stream.read(header_length)
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from error
    header = parse_json(raw, f"the header of {file}")
    header.pop("__metadata__", None)
    room = length - 8 - header_length
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, entry in header.items():
        kind = entry.get("dtype") if isinstance(entry, dict) else None
        size = entry.get("shape") if isinstance(entry, dict) else None
        offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
        if not (isinstance(kind, str) and _whole_numbers(size) and _whole_numbers(offsets) and len(offsets or ()) == 2):
            raise CheckpointError(f"the header of {file} describes tensor {name[:100]!r} in no way that is known")
        begin, end = offsets  # type: ignore[misc]
        if not begin <= end <= room:
            raise CheckpointError(
                f"{file} is cut short or lies: tensor {name[:100]!r} claims bytes {begin} to {end} of {room} that are"
                " there"
            )
        if kind in _ITEM_BYTES and prod(size) * _ITEM_BYTES[kind] != end - begin:  # type: ignore[arg-type]
            raise CheckpointError(
                f"{file}: tensor {name[:100]!r} of size {size} as {kind} does not take {end - begin} bytes"
            )
        found[name] = (kind, tuple(size))  # type: ignore[arg-type]
    return found


def _whole_numbers(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**63 for n in value
    )


def _weight_files(folder: Path) -> dict[Path, set[str] | None]:
    """The safetensors files of a folder with the tensors its index says they hold (None without an index)."""
    index = folder / _INDEX
    if (folder / _WEIGHTS).is_file():
        return {folder / _WEIGHTS: None}
    if index.is_file():
        placed = read_json(index).get("weight_map")
        if not isinstance(placed, dict) or not placed:
            raise CheckpointError(f"{index} has no weight_map")
        files: dict[Path, set[str] | None] = {}
        for name, file in placed.items():
            # A shard lies beside its index: a name with a path in it would read what the user never pointed at.
            if (
                not isinstance(file, str)
                or not file.endswith(".safetensors")
                or set(file) & set("/\\:\0")
                or file.startswith(".")
            ):
                raise CheckpointError(
                    f"{index} names {str(file)[:100]!r}, which is not the plain name of a .safetensors file"
                )
            files.setdefault(folder / file, set()).add(name)  # type: ignore[union-attr]
        if missing := [file.name for file in files if not file.is_file()]:
            raise CheckpointError(
                f"{folder} lacks {missing[0]} (of {len(files)} shards, {len(missing)} missing); download it again"
            )
        return files
    pickles = [path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for path in sorted(folder.glob(pattern))]
    if pickles:
        raise CheckpointError(
            f"{folder} has its weights only as {pickles[0]}, a pickle, which can run code when it is opened and never"
            " is here; get the safetensors version, or convert it with save_pretrained on a machine that trusts it"
        )
    raise CheckpointError(f"{folder} has neither {_WEIGHTS} nor {_INDEX}")


@contextmanager
def _safetensors_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error


def _token_text(token: object) -> str:
    """A token of tokenizer_config.json: plain text, or an object around it."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else ""
