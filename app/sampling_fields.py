"""The numbers a request may set for its sampling: their defaults for one engine, who set those, and their ranges.

Owns the list for the playground's form. Knows nothing of requests. Invariant: the defaults are those that the engine's
requests get, and the ranges those that the API and the engine hold them to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from app.inspect_schemas import SamplingField, SamplingFieldList
from app.loaded_engine import Engine
from app.sampling_defaults import own_defaults
from engine.core.sampling_params import RANGES, SamplingParams

FIELDS = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "xtc_probability", "xtc_threshold", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "dry_multiplier", "dry_base", "dry_allowed_length", "seed", "max_tokens",
    "min_tokens",
)  # fmt: skip

Source = Literal["generation_config", "catalogue", "engine"]


def sampling_fields(engine: Engine, model_path: Path | None) -> SamplingFieldList:
    """Of one loaded model. model_path: where it lies; None: it was deleted since."""
    own, defaults = SamplingParams(), engine.sampling_defaults
    by_itself = model_path is not None and own_defaults(model_path) == defaults
    of_model: Source = "generation_config" if by_itself else "catalogue"
    fields = []
    for name in FIELDS:
        low, high = RANGES[name]
        value = None if name in ("seed", "max_tokens") else float(defaults.get(name, getattr(own, name)))
        source: Source = of_model if name in defaults else "engine"
        fields.append(SamplingField(name=name, value=value, source=source, minimum=low, maximum=high))
    return SamplingFieldList(model_id=engine.model_id, max_model_len=engine.ready.max_model_len, fields=fields)
