"""Drafters on disk: which there are, what a name leads to, and which one a load takes by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.catalog import Catalog
from app.drafters import DrafterError, Drafters
from app.settings import ASSETS
from engine.checkpoint import read_checkpoint
from engine.checkpoint.fingerprint import weights_fingerprint
from engine.config import LoadOptions
from tests.app.harness import MODEL, Client, make_home, make_settings, serving
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint


def write_drafter(folder: Path, *, kind: str = "eagle", target: str = MODEL, fingerprint: str = "") -> Path:
    folder.mkdir(parents=True)
    own = {"kind": kind, "target": {"model_id": target, "fingerprint": fingerprint}, "acceptance": {"first": 0.6}}
    (folder / "config.json").write_text(json.dumps({"pizarra": own}))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return make_home(tmp_path / "home")


@pytest.fixture
def drafters(home: Path, tmp_path: Path) -> Drafters:
    write_drafter(tmp_path / "assets" / "drafters" / "shipped", kind="medusa")
    write_drafter(tmp_path / "assets" / "drafters" / "both")
    write_drafter(home / "drafters" / "both")
    write_drafter(home / "drafters" / "other", target="somebody")
    (home / "drafters" / "nothing").mkdir()
    return Drafters(home, tmp_path / "assets", Catalog(home, ASSETS, tmp_path / "hub"))


def test_ones_own_come_before_those_shipped(drafters: Drafters, home: Path) -> None:
    found = {each.id: each for each in drafters.trained()}
    assert {name: each.source for name, each in found.items()} == {
        "both": "trained",
        "other": "trained",
        "shipped": "shipped",
    }
    assert found["both"].path == str(home / "drafters" / "both")
    assert (found["shipped"].kind, found["shipped"].target_model_id) == ("medusa", MODEL)
    assert found["shipped"].acceptance == {"first": 0.6}
    assert found["shipped"].size_bytes == 7


def test_candidates_are_those_made_for_a_model_and_smaller_models(
    drafters: Drafters, home: Path, tmp_path: Path
) -> None:
    tiny_llama_checkpoint(home / "models" / "smaller", num_hidden_layers=1)
    catalog = Catalog(home, ASSETS, tmp_path / "hub")
    found = drafters.candidates(catalog.resolve(MODEL))
    assert [(each.id, each.kind, each.source) for each in found] == [
        ("both", "eagle", "trained"),
        ("shipped", "medusa", "shipped"),
        ("smaller", "draft_model", "model"),
    ]
    assert [each.id for each in drafters.candidates(catalog.resolve("smaller"))] == []


def test_a_damaged_drafter_says_so(drafters: Drafters, home: Path) -> None:
    (home / "drafters" / "both" / "config.json").write_text("{")
    (home / "drafters" / "other" / "model.safetensors").unlink()
    found = {each.id: each.error for each in drafters.trained()}
    assert "config.json cannot be read" in found["both"]
    assert found["other"] == "it has no weights"


def test_a_name_leads_to_a_path(drafters: Drafters, home: Path, tmp_path: Path) -> None:
    assert drafters.path_of("both") == str(home / "drafters" / "both")
    assert drafters.path_of(MODEL) == str(home / "models" / MODEL)
    assert drafters.path_of(str(tmp_path / "assets")) == str(tmp_path / "assets")
    for name in ("nobody", "../x", "/nowhere", "x" * 5000, "smollm2-135m-instruct"):
        with pytest.raises(DrafterError, match=r"there is no drafter.*known are both, other, shipped, tiny"):
            drafters.path_of(name)


def test_what_was_trained_here_for_these_very_weights_is_taken_by_itself(
    drafters: Drafters, home: Path, tmp_path: Path
) -> None:
    model = Catalog(home, ASSETS, tmp_path / "hub").resolve(MODEL)
    assert drafters.resolved(LoadOptions(), model).drafter == ""
    tied = weights_fingerprint(read_checkpoint(home / "models" / MODEL))
    path = str(write_drafter(home / "drafters" / "tied", fingerprint=tied))
    assert drafters.resolved(LoadOptions(), model).drafter == path
    assert drafters.resolved(LoadOptions(speculation="eagle"), model).drafter == path
    for speculation in ("off", "suffix", "draft_model"):
        assert drafters.resolved(LoadOptions(speculation=speculation), model).drafter == ""
    assert drafters.resolved(LoadOptions(drafter="shipped"), model).drafter.endswith("shipped")


def test_a_kind_that_is_wished_for_is_never_served_by_the_other(drafters: Drafters, home: Path, tmp_path: Path) -> None:
    model = Catalog(home, ASSETS, tmp_path / "hub").resolve(MODEL)
    tied = weights_fingerprint(read_checkpoint(home / "models" / MODEL))

    def chosen(speculation: str) -> str:
        return Path(drafters.resolved(LoadOptions(speculation=speculation), model).drafter).name

    write_drafter(home / "drafters" / "m-medusa", kind="medusa", fingerprint=tied)
    assert chosen("eagle") == ""  # the engine still looks for a shipped one
    assert (chosen("auto"), chosen("hybrid"), chosen("medusa")) == ("m-medusa",) * 3
    write_drafter(home / "drafters" / "m-eagle", fingerprint=tied)
    assert (chosen("eagle"), chosen("medusa")) == ("m-eagle", "m-medusa")


@pytest.fixture
def client(home: Path) -> Iterator[Client]:
    with serving(make_settings(home)) as client:
        yield client


def test_they_are_listed_over_http(client: Client, home: Path) -> None:
    write_drafter(home / "drafters" / "mine")

    def listed(model: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = client.get(f"/api/models/{model}/drafters").json()["drafters"]
        return found

    assert "mine" in {each["id"] for each in listed(MODEL) if each["source"] == "trained"}
    assert client.get("/api/models/nobody/drafters").status_code == 404
