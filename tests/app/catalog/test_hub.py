"""Pulls from the hub, against a stand-in server that speaks its API and can break off, go down, refuse and lie."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import constants
from safetensors.numpy import save

from app.catalog import Catalog
from app.catalog.download import DiskSpaceError, LicenceError, PullCancelledError, PullError
from engine.checkpoint import expected_tensors
from tests.app.catalog.hub_stand_in import COMMIT, Handler, StandIn
from tests.app.catalog.tiny_llama import CONFIG, SHAPES
from tests.engine.tiny_checkpoint import tiny_gguf_parts

ASSETS = Path(__file__).resolve().parents[3] / "assets"
WEIGHTS = save({name: np.ones(shape, np.float16) for name, shape in expected_tensors(SHAPES)})
CHUNK = 4096
CUT = 20 * CHUNK


def repo_files(**changes: Any) -> dict[str, bytes]:
    return {
        "config.json": json.dumps(CONFIG | changes).encode(),
        "tokenizer.json": b"{}",
        "model.safetensors": WEIGHTS,
        "pytorch_model.bin": b"\x80\x02 a pickle nobody must fetch",
        "modeling_custom.py": b"raise SystemExit",
        "original/consolidated.safetensors": b"the same weights in another layout",
        "README.md": b"# Hello",
        "LICENSE": b"Do as you like.",
    }


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[StandIn]:
    stand_in = StandIn(repo_files())
    handler = type("BoundHandler", (Handler,), {"stand_in": stand_in})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", CHUNK)  # what arrives in less than a chunk is lost in a break
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield stand_in
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    (tmp_path / "home" / "tmp").mkdir(parents=True)
    return Catalog(tmp_path / "home", ASSETS, hub_cache=tmp_path / "cache")


def silent(name: str, done: int = 0, total: int = 0, unit: str = "bytes", message: str = "") -> None:
    """Progress nobody looks at."""


async def test_pull_fetches_weights_settings_and_licence_only(hub: StandIn, catalog: Catalog, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int, str]] = []

    def note(name: str, done: int = 0, total: int = 0, unit: str = "bytes", message: str = "") -> None:
        seen.append((name, done, total, message))

    model = await catalog.pull("hf:org/name", note)
    assert (model.id, model.error, model.format) == ("org--name", None, "safetensors")
    folder = tmp_path / "home" / "models" / "org--name"
    expected = {"config.json", "tokenizer.json", "model.safetensors", "LICENSE", "source.json"}
    assert {path.name for path in folder.iterdir()} == expected
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert json.loads((folder / "source.json").read_text())["source"] == f"hf:org/name@{COMMIT}"
    assert not any("pickle" in path or path.endswith((".bin", ".py")) for path in hub.requests)
    total = sum(len(hub.files[name]) for name in expected - {"source.json"})
    downloads = [(done, of) for name, done, of, _ in seen if name == "download"]
    assert downloads[-1] == (total, total)
    assert any("model.safetensors" in message for _, _, _, message in seen)
    assert list((tmp_path / "home" / "tmp").iterdir()) == []


async def test_what_is_kept_of_a_model_with_a_longer_name_stays(hub: StandIn, catalog: Catalog, tmp_path: Path) -> None:
    other = tmp_path / "home" / "tmp" / "pull-org--name-instruct@bbbbbbbbbbbb"
    other.mkdir()
    await catalog.pull("org/name", silent)
    assert other.is_dir()


async def test_pulling_the_same_commit_again_downloads_nothing(hub: StandIn, catalog: Catalog) -> None:
    await catalog.pull("org/name", silent)
    hub.requests.clear()
    await catalog.pull("org/name", silent)
    assert hub.requests == ["/api/models/org/name"]


async def test_a_short_interruption_is_bridged(hub: StandIn, catalog: Catalog) -> None:
    hub.cut_after = CUT
    model = await catalog.pull("hf:org/name@v1", silent)
    assert model.error is None
    assert hub.ranges == [f"bytes={CUT}-"]


async def test_a_broken_off_pull_resumes_where_it_stopped(hub: StandIn, catalog: Catalog) -> None:
    hub.cut_after, hub.down_after_cut = CUT, True
    with pytest.raises(PullError, match=r"status 500.*of model\.safetensors are kept: pull again"):
        await catalog.pull("org/name", silent)
    assert catalog.local() == []
    hub.status = None
    model = await catalog.pull("org/name", silent)
    assert model.error is None
    assert hub.ranges == [f"bytes={CUT}-"]
    assert hub.sent == sum(
        len(hub.files[name]) for name in ("config.json", "tokenizer.json", "model.safetensors", "LICENSE")
    )


async def test_what_another_commit_left_behind_is_not_mixed_in(hub: StandIn, catalog: Catalog, tmp_path: Path) -> None:
    stale = tmp_path / "home" / "tmp" / "pull-org--name@bbbbbbbbbbbb"
    stale.mkdir()
    (stale / "model.safetensors").write_bytes(b"of another commit")
    assert (await catalog.pull("org/name", silent)).error is None
    assert list((tmp_path / "home" / "tmp").iterdir()) == []


async def test_a_damaged_partial_file_is_found_out(hub: StandIn, catalog: Catalog, tmp_path: Path) -> None:
    staging = tmp_path / "home" / "tmp" / f"pull-org--name@{COMMIT[:12]}"
    staging.mkdir()
    (staging / "model.safetensors.part").write_bytes(bytes(CUT))
    with pytest.raises(PullError, match="was removed"):
        await catalog.pull("org/name", silent)
    assert (await catalog.pull("org/name", silent)).error is None


async def test_one_pull_of_a_model_at_a_time(hub: StandIn, catalog: Catalog) -> None:
    results = await asyncio.gather(*(catalog.pull("org/name", silent) for _ in range(2)), return_exceptions=True)
    [refusal] = [result for result in results if isinstance(result, PullError)]
    assert "is being pulled already" in str(refusal)
    assert [model.error for model in catalog.local()] == [None]


async def test_a_wrong_hash_is_refused_and_the_file_removed(hub: StandIn, catalog: Catalog, tmp_path: Path) -> None:
    hub.lie = True
    with pytest.raises(PullError, match=r"has the hash .* expected is .* was removed"):
        await catalog.pull("org/name", silent)
    assert catalog.local() == []
    assert not list((tmp_path / "home" / "tmp").rglob("*.part"))


async def test_an_architecture_we_do_not_run_is_refused_before_its_weights(hub: StandIn, catalog: Catalog) -> None:
    hub.files = repo_files(architectures=["BertForMaskedLM"], model_type="bert")
    with pytest.raises(PullError, match=r"BertForMaskedLM.*weights were not downloaded"):
        await catalog.pull("org/name", silent)
    assert not any(path.endswith("model.safetensors") for path in hub.requests)


async def test_a_full_disk_is_noticed_before(
    hub: StandIn, catalog: Catalog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=len(WEIGHTS))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DiskSpaceError, match="org/name needs"):
        await catalog.pull("org/name", silent)
    assert hub.requests == ["/api/models/org/name"]


async def test_a_licence_with_conditions_is_shown_and_must_be_accepted(hub: StandIn, catalog: Catalog) -> None:
    hub.card = {"license": "other", "license_name": "strict-1", "license_link": "https://example.org/strict"}
    with pytest.raises(LicenceError, match="strict-1") as refusal:
        await catalog.pull("org/name", silent)
    assert refusal.value.licence_url == "https://example.org/strict"
    assert hub.requests == ["/api/models/org/name"]
    assert (await catalog.pull("org/name", silent, accept_license=True)).error is None


async def test_a_gated_repository_needs_a_yes_and_a_token(hub: StandIn, catalog: Catalog) -> None:
    hub.gated, hub.token = "manual", "hf_secret"
    with pytest.raises(PullError, match="is gated: ask for access") as refusal:
        await catalog.pull("org/name", silent, accept_license=True)
    assert "hf_secret" not in str(refusal.value)
    with pytest.raises(LicenceError):
        await catalog.pull("org/name", silent, token="hf_secret")
    model = await catalog.pull("org/name", silent, token="hf_secret", accept_license=True)
    assert model.error is None
    assert "hf_secret" not in (model.path / "source.json").read_text()


@pytest.mark.parametrize(
    ("source", "status", "code", "expected"),
    [
        ("hf:org/name@v9", None, "", "no revision 'v9'"),
        ("hf:org/other", None, "", "no repository org/other, or it is private"),
        ("hf:org/name", 403, "", "refuses access to org/name"),
        ("hf:org/name", 404, "EntryNotFound", "lost a file"),
        ("hf:org/name:absent.gguf", None, "", "has no file absent.gguf"),
    ],
)
async def test_refusals_of_the_hub_are_told_in_our_words(
    source: str, status: int | None, code: str, expected: str, hub: StandIn, catalog: Catalog
) -> None:
    hub.status, hub.error_code = status, code
    with pytest.raises(PullError, match=expected):
        await catalog.pull(source, silent)


async def test_no_network_is_told(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(PullError, match=r"connection to http://127\.0\.0\.1:9 failed"):
        await catalog.pull("org/name", silent)


async def test_cancelling_keeps_what_was_fetched_for_the_next_try(
    hub: StandIn, catalog: Catalog, tmp_path: Path
) -> None:
    loop, cancelled = asyncio.get_running_loop(), asyncio.Event()

    async def cancel() -> None:
        cancelled.set()

    def stop_at_weights(name: str) -> None:
        if name == "model.safetensors":
            asyncio.run_coroutine_threadsafe(cancel(), loop).result()

    hub.before_body = stop_at_weights
    with pytest.raises(PullCancelledError):
        await catalog.pull("org/name", lambda *args, **kwargs: None, cancelled=cancelled)
    assert catalog.local() == []
    [staging] = (tmp_path / "home" / "tmp").iterdir()
    assert (staging / "config.json").exists()


@pytest.fixture
def split_hub(hub: StandIn, tmp_path: Path) -> StandIn:
    """Two quantisations, one of them split into three parts in a folder of its own."""
    whole = tiny_gguf_parts(tmp_path / "made", 3, stem="tiny-Q8_0")
    hub.files = {f"Q8_0/{path.name}": path.read_bytes() for path in whole}
    hub.files |= {"tiny-F16.gguf": b"GGUF of another quantisation", "README.md": b"# Hello"}
    return hub


@pytest.mark.parametrize("model", ["Q8_0", "Q8_0/tiny-Q8_0-00002-of-00003.gguf"])
async def test_a_split_file_is_pulled_listed_and_removed_as_one(
    model: str, split_hub: StandIn, catalog: Catalog, tmp_path: Path
) -> None:
    downloads: list[tuple[int, int]] = []

    def note(name: str, done: int = 0, total: int = 0, unit: str = "bytes", message: str = "") -> None:
        if name == "download":
            downloads.append((done, total))

    pulled = await catalog.pull(f"org/name:{model}", note)
    parts = {name.rpartition("/")[2]: content for name, content in split_hub.files.items() if name.startswith("Q8_0/")}
    total = sum(map(len, parts.values()))
    assert (pulled.error, pulled.format, downloads[-1]) == (None, "gguf", (total, total))
    assert pulled.id == ("org--name-q8_0" if model == "Q8_0" else "org--tiny-q8_0")
    folder = tmp_path / "home" / "models" / pulled.id
    assert {path.name: path.read_bytes() for path in folder.glob("*.gguf")} == parts
    assert json.loads((folder / "source.json").read_text())["source"] == f"hf:org/name@{COMMIT}:{model}"
    assert pulled.info is not None
    assert {tensor.file.name for tensor in pulled.info.tensors.values()} == parts.keys()
    assert [each.id for each in catalog.local()] == [pulled.id]
    split_hub.requests.clear()
    await catalog.pull(f"org/name:{model}", silent)
    assert split_hub.requests == ["/api/models/org/name"], "it is there already"
    catalog.remove(pulled.id)
    assert not folder.exists()


async def test_a_broken_off_pull_of_parts_goes_on_within_the_part(split_hub: StandIn, catalog: Catalog) -> None:
    split_hub.cut_file, split_hub.cut_after = "Q8_0/tiny-Q8_0-00002-of-00003.gguf", 3 * CHUNK
    split_hub.down_after_cut = True
    with pytest.raises(PullError, match=r"of tiny-Q8_0-00002-of-00003\.gguf are kept: pull again"):
        await catalog.pull("org/name:Q8_0", silent)
    assert catalog.local() == []
    split_hub.status = None
    assert (await catalog.pull("org/name:Q8_0", silent)).error is None
    assert split_hub.ranges == [f"bytes={3 * CHUNK}-"]
    assert split_hub.sent == sum(len(content) for name, content in split_hub.files.items() if "Q8_0" in name)


async def test_a_part_with_a_wrong_hash_is_refused(split_hub: StandIn, catalog: Catalog) -> None:
    split_hub.lie = True
    with pytest.raises(PullError, match=r"tiny-Q8_0-00001-of-00003\.gguf.* has the hash .* was removed"):
        await catalog.pull("org/name:Q8_0", silent)
    assert catalog.local() == []
