"""What a drafter's config.json says, in its own spelling or in those of vLLM, SpecForge and speculators.

Owns the names of these fields. Reads no tensors. Invariant: Pizarra's own fields go before the public ones, and a field
that would change the arithmetic is translated or refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.checkpoint.fields import Fields
from engine.checkpoint.hf_config import read_config
from engine.checkpoint.info import CheckpointError
from engine.config import ModelConfig

KINDS = ("eagle", "medusa")
_LAYERS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True, slots=True)
class DrafterFields:
    """See `engine.checkpoint.drafter_files.DrafterFile`. kind: "" where only the tensors can tell."""

    path: Path
    kind: str
    feature_layers: tuple[int, ...]
    fingerprint: str
    norm_before_residual: bool
    wins: bool

    def layer_config(self, values: dict[str, Any], vocabulary: int) -> ModelConfig:
        """The configuration of EAGLE's one layer and its head of `vocabulary` rows."""
        nested = values.get("transformer_layer_config")
        plain = {**values, **(nested if isinstance(nested, dict) else {})}
        plain |= {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "vocab_size": vocabulary}
        plain |= {"tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": None, "model_type": "llama"}
        config = read_config(self.path, plain)
        if config.transformers_class:
            raise CheckpointError(f"{self.path}: {config.transformers_reason}; such a drafter cannot be run")
        return config

    def head_config(self, hidden: int, vocabulary: int) -> ModelConfig:
        """What Medusa's heads have of a configuration: two sizes."""
        return ModelConfig("llama", hidden, hidden, 1, 1, 1, 2, vocabulary, 1, 1e-6, 10000.0)


def read_drafter_fields(path: Path, values: dict[str, Any]) -> DrafterFields:
    """The drafter's own fields of config.json. CheckpointError for one of another type than it should have."""
    fields = Fields(path, values)
    own = fields.part("pizarra") or Fields(path, {})
    nested = fields.part("eagle_config") or Fields(path, {})
    target = own.part("target") or Fields(path, {})
    fingerprint = target.get("fingerprint", "")
    if not isinstance(fingerprint, str):
        raise target.fail("fingerprint", "a text")
    before = nested.flag("norm_before_residual") or fields.flag("norm_before_residual")
    layers = own.get("feature_layers") or nested.get(_LAYERS) or fields.get(_LAYERS) or []
    if not isinstance(layers, list) or not all(type(layer) is int for layer in layers):
        raise CheckpointError(f"{path}: {_LAYERS} is {layers!r:.80}, expected a list of layer numbers")
    kind, wins = _kind(fields, own), own.flag("wins")
    return DrafterFields(path, kind, tuple(layers), fingerprint, before, wins)


def _kind(fields: Fields, own: Fields) -> str:
    said = own.get("kind")
    if said is not None:
        if said not in KINDS:
            raise own.fail("kind", f"one of {', '.join(KINDS)}")
        return str(said)
    names = fields.get("architectures")
    first = str(names[0]) if isinstance(names, list) and names else ""
    if "eagle3" in first.lower() or fields.get("speculators_model_type") == "eagle3":
        return "eagle"
    return "medusa" if "medusa" in first.lower() else ""
