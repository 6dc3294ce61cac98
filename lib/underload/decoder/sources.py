"""From the name of a model to a checkpoint that can be opened.

pocket, pocket-draft     shipped with the library
smollm2-135m             fetched once by `underload model get smollm2-135m`
shape:NAME               the true shape of a known model, random weights
a folder                 as Hugging Face's save_pretrained writes it
a file ending in .gguf   as llama.cpp reads it
owner/name               a repository on the Hugging Face hub (safetensors only), kept in its own cache
"""

from __future__ import annotations

import os
import re
from importlib import resources
from pathlib import Path

from underload.decoder.checkpoint import Checkpoint, RandomCheckpoint
from underload.decoder.optional import require
from underload.decoder.weights import CheckpointError
from underload.request import UnderloadError
from underload.shapes import shape

BUNDLED = ("pocket", "pocket-draft")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# What a checkpoint is made of. Nothing else is fetched: no pickle, no code.
_HUB_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model-*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)


class UnknownSource(UnderloadError):
    """No model goes by that name; the message says what would."""


def open_checkpoint(source: str | os.PathLike[str], *, seed: int = 0) -> Checkpoint:
    """The checkpoint that a source names. Headers are read and checked; weights are not.

    Args:
        source: see the head of this module.
        seed: of the random weights of a shape.

    Raises:
        UnknownSource: nothing of that name; or known, but not fetched yet (the message has the command).
        CheckpointError: it is there and cannot be loaded.
    """
    from underload.decoder.fetch import FETCHABLE, fetched

    name = os.fspath(source)
    if not isinstance(name, str) or not name.strip() or "\0" in name:
        raise UnknownSource(f"a model is named by text such as 'pocket' or a path, got {source!r}")
    if name in BUNDLED:
        return _open_bundled(name)
    if name in FETCHABLE:
        place = fetched(name)
        if place is None:
            raise UnknownSource(
                f"{name} is not on this machine yet; fetch it once with: underload model get {name} "
                f"({FETCHABLE[name].size / 1e6:.0f} MB), or use 'pocket', which needs no download"
            )
        return _open_path(place, name)
    if name.startswith("shape:"):
        return RandomCheckpoint(shape(name), seed)
    path = Path(name).expanduser()
    if path.exists():
        return _open_path(path)
    if name.endswith((".gguf", ".safetensors", ".json")) or path.is_absolute() or name.startswith((".", "~")):
        raise UnknownSource(f"there is no file or folder {name}")
    if _HUB_ID.fullmatch(name):
        return _open_hub(name)
    raise UnknownSource(
        f"no model is called {name!r}; there are {', '.join((*BUNDLED, *FETCHABLE))}, shape:NAME (underload model"
        " list), a folder, a .gguf file, or a hub id such as owner/name"
    )


def bundled_folder(name: str) -> Path:
    """Where a model that comes with the library lies."""
    return Path(str(resources.files("underload"))) / "models" / name


def _open_bundled(name: str) -> Checkpoint:
    folder = bundled_folder(name)
    if not (folder / "config.json").is_file():
        raise UnknownSource(
            f"the weights of {name} are missing from this installation ({folder}); install the library again"
        )
    return _open_path(folder, name)


def _open_path(path: Path, name: str | None = None) -> Checkpoint:
    if path.is_dir():
        from underload.decoder.folder import FolderCheckpoint

        return FolderCheckpoint(path, name)
    if path.suffix == ".gguf":
        from underload.decoder.gguf_file import GgufCheckpoint

        return GgufCheckpoint(path, name)
    if path.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl"):
        raise CheckpointError(
            f"{path} is a pickle, which can run code when it is opened and never is here; get the safetensors version"
        )
    raise CheckpointError(f"{path} is neither a folder nor a .gguf file; give the folder that holds config.json")


def _open_hub(name: str) -> Checkpoint:
    from underload.decoder.folder import FolderCheckpoint

    return FolderCheckpoint(hub_folder(name), name)


def hub_folder(name: str, revision: str | None = None) -> Path:
    """The files of a hub repository, from the hub's local cache where they are complete, else fetched into it.

    Raises:
        MissingPackage: huggingface-hub is not installed.
        CheckpointError: the hub is out of reach, or has no such repository, or none with safetensors.
    """
    huggingface_hub = require("huggingface_hub", f"fetching {name} from the hub")

    def snapshot(local: bool) -> Path:
        return Path(
            huggingface_hub.snapshot_download(
                name, revision=revision, allow_patterns=list(_HUB_FILES), local_files_only=local, etag_timeout=5
            )
        )

    try:
        folder = snapshot(local=True)
        if _complete(folder):
            return folder
    except (OSError, ValueError):  # not in the cache: what the hub's client raises for that is a FileNotFoundError
        pass
    try:
        folder = snapshot(local=False)
    except Exception as error:  # the client lets its HTTP library's exceptions through, which differ between versions
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise CheckpointError(
            f"{name} could not be fetched from the hub: {reason[:200]}; check the name and the connection, or copy the"
            " repository to a folder by other means and give that folder; offline, 'pocket' and shape:NAME always work"
        ) from error
    if not _complete(folder):
        raise CheckpointError(
            f"the hub's {name} has no safetensors weights with a config.json; pickles are never loaded here"
        )
    return folder


def _complete(folder: Path) -> bool:
    return (folder / "config.json").is_file() and (
        (folder / "model.safetensors").is_file() or (folder / "model.safetensors.index.json").is_file()
    )
