"""Reads config.json (and the end-of-text ids of generation_config.json) into a `ModelConfig`.

Owns the fields that all families share; what a family adds is hf_families.py, rotary scaling hf_rope.py, and
hf_generic.py what of a family without a decoder here, which transformers runs. Knows no tensors.
Invariant: a field that would change the arithmetic is translated or refused, never passed over.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.checkpoint.fields import Fields
from engine.checkpoint.folder import read_eos_token_ids
from engine.checkpoint.hf_families import FAMILIES, Family
from engine.checkpoint.hf_generic import read_generic
from engine.checkpoint.hf_rope import read_rope
from engine.checkpoint.hf_transformers import causal_language_models
from engine.checkpoint.info import UnsupportedCheckpointError
from engine.config import ModelConfig


def read_config(path: Path, values: dict[str, Any]) -> ModelConfig:
    """The architecture that `values`, the content of config.json at `path`, describes."""
    fields = Fields(path, values)
    name = _class_name(fields)
    model_type = fields.get("model_type")
    if name not in FAMILIES:
        return read_generic(fields, name, f"Pizarra has no decoder of its own for {name}")
    if model_type != FAMILIES[name].key and model_type in causal_language_models().get(name, ()):
        return read_generic(fields, name, f"Pizarra's own decoder for {name} does not know {model_type!r}")
    difference = _unknown_arithmetic(fields, FAMILIES[name])
    if difference is not None:
        return read_generic(fields, name, f"Pizarra's own decoder takes {difference}")
    return _read_native(fields, FAMILIES[name])


def _read_native(fields: Fields, family: Family) -> ModelConfig:
    hidden_size = fields.count("hidden_size")
    num_heads = fields.count("num_attention_heads")
    head_dim = fields.count("head_dim", family.head_dim or max(1, hidden_size // num_heads))
    rope = read_rope(fields, family, head_dim)
    bos = fields.get("bos_token_id")
    shared = ModelConfig(
        architecture=family.key,
        hidden_size=hidden_size,
        intermediate_size=fields.count("intermediate_size"),
        num_hidden_layers=fields.count("num_hidden_layers"),
        num_attention_heads=num_heads,
        num_key_value_heads=fields.count("num_key_value_heads", num_heads),
        head_dim=head_dim,
        vocab_size=fields.count("vocab_size"),
        max_position_embeddings=fields.count("max_position_embeddings", 2048),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=rope.theta,
        rope_scaling=rope.scaling,
        window_rope_theta=rope.window_theta,
        tie_word_embeddings=fields.flag("tie_word_embeddings", family.tied),
        attention_bias=fields.flag("attention_bias"),
        mlp_bias=fields.flag("mlp_bias"),
        bos_token_id=bos if type(bos) is int else None,
        eos_token_ids=read_eos_token_ids(fields.path.parent, fields.get("eos_token_id")),
    )
    return replace(shared, **family.differences(fields))


def _class_name(fields: Fields) -> str:
    names = fields.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise fields.fail("architectures", f"a list of one name; supported: {', '.join(FAMILIES)}")
    return names[0]


def _unknown_arithmetic(fields: Fields, family: Family) -> str | None:
    """What the family's decoder would have to do and does not, though transformers does; None if nothing."""
    if fields.flag("use_bidirectional_attention"):
        raise UnsupportedCheckpointError(
            f"{fields.path}: use_bidirectional_attention is True: an encoder of text; only causal models run here"
        )
    field, activation = family.activation
    rotary = fields.part("rope_parameters") or fields.part("rope_scaling") or fields
    for owner, name, neutral in (
        (fields, field, activation),
        (fields, "partial_rotary_factor", 1.0),
        (rotary, "partial_rotary_factor", 1.0),
    ):
        value = owner.get(name, neutral)
        if value != neutral:
            return f"{name} {neutral!r} only, and this checkpoint has {value!r}"
    return None
