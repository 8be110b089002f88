"""How a model is sampled where a request does not say.

Owns the order of who decides: the model's own generation_config.json, else the catalogue, else the engine's defaults.
Invariant: only fields that a request could give, and only values that the engine takes; what does not fit is left out
and logged.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.catalog.entry import CatalogEntry
from engine.core.sampling_params import SamplingError, SamplingParams

log = logging.getLogger(__name__)

FIELDS = ("temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty")


def sampling_defaults(model_path: Path, entry: CatalogEntry | None) -> dict[str, float]:
    """The defaults of a model on disk, by field."""
    return own_defaults(model_path) or _known(entry.sampling if entry is not None else {})


def own_defaults(model_path: Path) -> dict[str, float]:
    """What the model's own generation_config.json says; nothing where there is none."""
    return _known(_generation_config(model_path if model_path.is_dir() else model_path.parent))


def _generation_config(folder: Path) -> Mapping[str, Any]:
    """What the model's authors say of sampling; nothing where they ask for greedy or say nothing."""
    try:
        config = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(config, dict) or config.get("do_sample") is False:
        return {}
    return config


def _known(config: Mapping[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in FIELDS:
        value = config.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        try:
            SamplingParams(**{name: value})  # type: ignore[arg-type]
        except SamplingError as error:
            log.warning("the model's default is left out: %s", error)
            continue
        found[name] = value
    return found
