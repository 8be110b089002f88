"""Tiny random checkpoints of families that have no decoder here, written by transformers itself.

Owns settings that make a family's differences matter at this size. Invariant: no two of `FOREIGN` are alike in where
their norms stand, how positions enter, or what their blocks compute.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.engine.tiny_families import SHAPES, SHORT_WINDOW, random_checkpoint

_NO_GROUPS = {key: value for key, value in SHAPES.items() if key != "num_key_value_heads"}
_GPT: dict[str, Any] = {
    "n_embd": 64,
    "n_inner": 96,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": 512,
    "vocab_size": 320,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

# model_type -> settings. Said beside each: what no other has.
FOREIGN: dict[str, dict[str, Any]] = {
    "gpt_neox": _NO_GROUPS | {"rotary_pct": 0.25},  # attention and MLP in parallel; a quarter of each head rotates
    "gpt2": _GPT,  # learned positions, Conv1D
    "gpt_bigcode": _GPT | {"multi_query": True},  # one key-value head
    "gptj": _GPT | {"rotary_dim": 8},  # pairs of neighbours rotate; one norm a layer
    "opt": _NO_GROUPS | {"ffn_dim": 96, "word_embed_proj_dim": 64},  # ReLU, positions from 2 on
    "starcoder2": SHAPES | {"sliding_window": SHORT_WINDOW},  # biases everywhere, a window
    "phi": _NO_GROUPS | {"partial_rotary_factor": 0.5},  # a head with a bias
    "cohere": SHAPES | {"logit_scale": 0.3},  # norms without bias, scaled logits
    "nemotron": SHAPES | {"partial_rotary_factor": 0.5},  # squared ReLU, norms around 1
    "glm4": SHAPES | {"head_dim": 16},  # norms before and after, half of each head rotates in pairs of neighbours
    "olmo3": SHAPES | {"sliding_window": SHORT_WINDOW},  # norms after, windows in three layers of four
    "olmoe": SHAPES | {"num_experts": 6, "num_experts_per_tok": 2},  # experts
    "phi3": SHAPES | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75}},
}


def foreign_checkpoint(folder: Path, model_type: str, **changes: Any) -> Path:
    """Write the checkpoint of `model_type`, with `changes` to its settings, into `folder`."""
    return random_checkpoint(folder, model_type, FOREIGN.get(model_type, SHAPES) | changes)
