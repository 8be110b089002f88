"""Architecture name -> decoder class. Nothing is imported until chosen."""

from __future__ import annotations

import importlib

from engine.models.decoder import Decoder

MODELS: dict[str, str] = {
    "gemma2": "engine.models.decoder:Decoder",
    "gemma3_text": "engine.models.decoder:Decoder",
    "granite": "engine.models.decoder:Decoder",
    "llama": "engine.models.decoder:Decoder",
    "mistral": "engine.models.decoder:Decoder",
    "mixtral": "engine.models.decoder:Decoder",
    "olmo2": "engine.models.decoder:Decoder",
    "phi3": "engine.models.decoder:Decoder",
    "qwen2": "engine.models.decoder:Decoder",
    "qwen3": "engine.models.decoder:Decoder",
    "qwen3_moe": "engine.models.decoder:Decoder",
    "smollm3": "engine.models.decoder:Decoder",
}


class UnsupportedModel(ValueError):
    """An architecture without a decoder here. The message lists those that have one."""


def decoder_class(architecture: str) -> type[Decoder]:
    """The class that runs `architecture`."""
    target = MODELS.get(architecture)
    if target is None:
        raise UnsupportedModel(
            f"architecture {architecture!r} cannot be run yet; known are {', '.join(sorted(MODELS))}"
        )
    module, _, attribute = target.partition(":")
    found: type[Decoder] = getattr(importlib.import_module(module), attribute)
    return found
