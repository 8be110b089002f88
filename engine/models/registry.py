"""Architecture name -> decoder class. Nothing is imported until chosen."""

from __future__ import annotations

import importlib

from engine.models.decoder import Decoder

MODELS: dict[str, str] = {"llama": "engine.models.decoder:Decoder"}


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
