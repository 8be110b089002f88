"""Architecture name -> the class that runs it. Nothing is imported until chosen."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from torch import Tensor

from engine.layers.linear import Weight
from engine.models.decoder import StepInputs
from engine.models.workspace import Workspace
from kernels.ops import KVCache, Ops

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
    "transformers": "engine.models.hf_fallback:TransformersModel",
}
FALLBACK = "transformers"  # the entry that runs every architecture without a decoder of its own


class Head(Protocol):
    """The output head."""

    def forward(self, out: Tensor, hidden: Tensor) -> None:
        """out [S, V] = the logits of hidden [S, H]."""


class Model(Protocol):
    """What the runner needs of a model."""

    ops: Ops

    @property
    def head(self) -> Head:
        """For logits of rows beside those of a step."""

    def weights(self) -> Iterator[Weight]:
        """Everything that was loaded; a tied head is the embedding and comes once."""

    def forward(self, ws: Workspace, step: StepInputs, caches: Sequence[KVCache]) -> None:
        """Leaves the logits of `step.sample_rows` in ws.logits, the rows behind the last norm in ws.normed."""


class UnsupportedModel(ValueError):
    """A model that cannot be run here. The message says why."""


def model_class(architecture: str) -> Any:
    """The class that runs `architecture`."""
    target = MODELS.get(architecture)
    if target is None:
        raise UnsupportedModel(
            f"architecture {architecture!r} cannot be run yet; known are {', '.join(sorted(MODELS))}"
        )
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
