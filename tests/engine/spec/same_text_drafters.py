"""The drafters of the proof: what proposers with a model of their own are loaded with.

Owns small random EAGLE-3 and Medusa drafters in their public layouts, with a reduced vocabulary, for any target; a
draft model is the target's own weights, rounded where that can be had, so that most of its drafts are right and some
are not. The default model gets the shipped drafter where there is one. `drafters_of` asks the registry, so a proposer
that is new and needs a model stands out: it cannot be loaded, and the proof says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.checkpoint import read_checkpoint
from engine.config import ModelConfig
from engine.spec import PROPOSERS
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint

SHIPPED = Path(__file__).resolve().parents[3] / "assets" / "drafters"
NUM_HEADS = 3  # of Medusa
Writer = Callable[[Path, Path], Path]  # target, folder -> what to load


def drafters_of(models: Mapping[str, Path], folder: Path) -> dict[tuple[str, str], Path]:
    """By model and proposer the drafter to load with it; random ones are written into `folder`."""
    found: dict[tuple[str, str], Path] = {}
    for name, target in models.items():
        for proposer in PROPOSERS:
            if proposer in WRITERS:
                found[name, proposer] = WRITERS[proposer](target, folder / f"{name}-{proposer}")
    return found


def random_eagle(target: Path, folder: Path) -> Path:
    """A one-layer drafter over the inputs of three of the target's layers."""
    config = read_checkpoint(target).config
    depth, hidden, inner = config.num_hidden_layers, config.hidden_size, config.intermediate_size
    layers = sorted({0, depth // 2, depth - 1})
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    matrix = _matrices(seed=4)
    count = _draft_vocabulary(config)
    tensors = {
        "fc.weight": matrix(hidden, len(layers) * hidden),
        "midlayer.self_attn.q_proj.weight": matrix(queries, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": matrix(keys, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": matrix(keys, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": matrix(hidden, queries),
        "midlayer.mlp.gate_proj.weight": matrix(inner, hidden),
        "midlayer.mlp.up_proj.weight": matrix(inner, hidden),
        "midlayer.mlp.down_proj.weight": matrix(hidden, inner),
        "norm.weight": torch.ones(hidden),
        "lm_head.weight": matrix(count, hidden),
    }
    for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        tensors[f"midlayer.{norm}.weight"] = torch.ones(hidden)
    settings = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": 1,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": count,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "torch_dtype": "bfloat16",
        "pizarra": {"version": 1, "kind": "eagle", "feature_layers": layers},
    }
    return _write(folder, settings, tensors, config, count)


def random_medusa(target: Path, folder: Path) -> Path:
    """Heads over the target's final hidden state."""
    config = read_checkpoint(target).config
    hidden, count, matrix = config.hidden_size, _draft_vocabulary(config), _matrices(seed=5)
    tensors: dict[str, Tensor] = {}
    for head in range(NUM_HEADS):
        tensors[f"medusa_head.{head}.0.linear.weight"] = matrix(hidden, hidden)
        tensors[f"medusa_head.{head}.0.linear.bias"] = torch.zeros(hidden)
        tensors[f"medusa_head.{head}.1.weight"] = matrix(count, hidden)
    settings = {
        "architectures": ["MedusaModel"],
        "hidden_size": hidden,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": count,
        "medusa_num_heads": NUM_HEADS,
        "medusa_num_layers": 1,
        "torch_dtype": "bfloat16",
        "pizarra": {"version": 1, "kind": "medusa"},
    }
    return _write(folder, settings, tensors, config, count)


def near_model(target: Path, folder: Path) -> Path:
    """The target rounded to bf16 where it is the tiny checkpoint, else the target itself."""
    return tiny_llama_checkpoint(folder, dtype="BF16") if target.is_dir() else target


def shipped_or_random_eagle(target: Path, folder: Path) -> Path:
    """The shipped drafter of the default model; a random one of others, or where none is shipped."""
    shipped = sorted(path.parent for path in SHIPPED.glob("*/config.json"))
    return shipped[0] if shipped and not target.is_dir() else random_eagle(target, folder)


WRITERS: dict[str, Writer] = {
    "draft_model": near_model,
    "eagle": shipped_or_random_eagle,
    "medusa": random_medusa,
    "hybrid": shipped_or_random_eagle,
}


def _draft_vocabulary(config: ModelConfig) -> int:
    """Every other token, up to some thousands."""
    return min(config.vocab_size // 2, 4096)


def _matrices(seed: int) -> Callable[[int, int], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda outputs, inputs: torch.randn(outputs, inputs, generator=generator) * (1.5 / inputs**0.5)


def _write(folder: Path, settings: dict[str, Any], tensors: dict[str, Tensor], config: ModelConfig, count: int) -> Path:
    """config.json and model.safetensors in bf16, with the table of ids: row i stands for the token 2 i."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
    stored = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}
    stored["d2t"] = torch.arange(count)
    stored["t2d"] = torch.zeros(config.vocab_size, dtype=torch.bool).scatter_(0, 2 * torch.arange(count), True)
    save_file(stored, str(folder / "model.safetensors"))
    return folder
