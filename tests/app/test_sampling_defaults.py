"""Who decides how a model is sampled where a request does not say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.catalog.entry import CatalogEntry, load_catalog
from app.dialects.sampling import sampling_params
from app.sampling_defaults import sampling_defaults
from app.settings import ASSETS


def entry() -> CatalogEntry:
    entries, default = load_catalog(ASSETS / "catalog.toml")
    return next(found for found in entries if found.id == default)


def model(folder: Path, config: Any) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(config))
    return folder


def test_the_models_own_file_goes_before_the_catalogue(tmp_path: Path) -> None:
    path = model(tmp_path, {"do_sample": True, "temperature": 0.6, "top_k": 20, "eos_token_id": [2]})
    assert sampling_defaults(path, entry()) == {"temperature": 0.6, "top_k": 20}


def test_the_catalogue_speaks_where_the_file_is_silent(tmp_path: Path) -> None:
    path = model(tmp_path, {"eos_token_id": [2]}) / "model.gguf"
    assert sampling_defaults(path, entry()) == entry().sampling == {"temperature": 0.2, "top_p": 0.9}
    assert sampling_defaults(path, replace(entry(), sampling={})) == {}
    assert sampling_defaults(tmp_path / "elsewhere", None) == {}


@pytest.mark.parametrize("config", [["not", "an object"], {"temperature": True}, {"top_p": "high"}, {"top_p": 7}])
def test_what_does_not_fit_is_left_out(config: Any, tmp_path: Path) -> None:
    assert sampling_defaults(model(tmp_path, config), None) == {}


def test_a_request_that_says_it_wins() -> None:
    defaults = {"temperature": 0.2, "top_p": 0.9}
    assert sampling_params(defaults, temperature=None).temperature == 0.2
    asked = sampling_params(defaults, temperature=1.0, max_tokens=5)
    assert (asked.temperature, asked.top_p, asked.max_tokens) == (1.0, 0.9, 5)
