"""config.json in Hugging Face's form, for a checkpoint that is written here.

Owns the translation back from `ModelConfig`, which a GGUF source needs; a safetensors source keeps its own fields.
Invariant: what is written reads back as the very configuration it was made of, or is refused.
"""

from __future__ import annotations

from dataclasses import fields as dataclass_fields
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from engine.checkpoint import CheckpointInfo
from engine.checkpoint.hf_config import read_config
from engine.checkpoint.hf_families import FAMILIES
from engine.config import ModelConfig, RopeScaling
from engine.train.refusal import Refusal

_DTYPE_NAMES = {torch.float16: "float16", torch.bfloat16: "bfloat16"}


def export_config(info: CheckpointInfo, dtype: torch.dtype) -> dict[str, Any]:
    """The fields of config.json without quantization_config. Refusal where they cannot say what `info` does."""
    values = dict(info.metadata) if info.format == "safetensors" else _from_model_config(info.config)
    values = {name: value for name, value in values.items() if name not in ("torch_dtype", "dtype")}
    values["torch_dtype"] = _DTYPE_NAMES[dtype]
    if info.format == "gguf":
        _check(info, values)
    return values


def _check(info: CheckpointInfo, values: dict[str, Any]) -> None:
    wanted = info.config
    if wanted.architecture == "granite" and wanted.attention_scale is None:  # its field has no such default
        wanted = replace(wanted, attention_scale=wanted.head_dim**-0.5)
    read = read_config(info.path.parent / "nowhere" / "config.json", values)
    differing = [one.name for one in dataclass_fields(read) if getattr(read, one.name) != getattr(wanted, one.name)]
    if differing:
        raise Refusal(
            f"{info.path}: a {info.config.architecture} with this {', '.join(differing)} cannot be described by a "
            "Hugging Face config.json; start from the safetensors checkpoint of this model"
        )


def _from_model_config(config: ModelConfig) -> dict[str, Any]:
    class_name = next(name for name, family in FAMILIES.items() if family.key == config.architecture)
    field, activation = FAMILIES[class_name].activation
    ends = list(config.eos_token_ids)
    values: dict[str, Any] = {
        "architectures": [class_name],
        "model_type": config.architecture,
        field: activation,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": None if config.rope_scaling is None else _rope(config.rope_scaling),
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": ends[0] if len(ends) == 1 else (ends or None),
        "pad_token_id": None,
        "use_cache": True,
    }
    return values | _family_fields(config)


def _rope(scaling: RopeScaling) -> dict[str, Any]:
    shared = {"rope_type": scaling.kind, "factor": scaling.factor}
    original = {"original_max_position_embeddings": scaling.original_max_position_embeddings}
    if scaling.kind == "llama3":
        return (
            shared
            | original
            | {
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
            }
        )
    if scaling.kind == "yarn":
        return (
            shared
            | original
            | {
                "attention_factor": scaling.attention_factor,
                "beta_fast": scaling.beta_fast,
                "beta_slow": scaling.beta_slow,
                "truncate": scaling.truncate,
            }
        )
    if scaling.kind == "longrope":
        return (
            shared
            | original
            | {
                "attention_factor": scaling.attention_factor,
                "short_factor": list(scaling.short_factors),
                "long_factor": list(scaling.long_factors),
            }
        )
    return shared


def _family_fields(config: ModelConfig) -> dict[str, Any]:
    """What not all families have; a window's layers are spelled out one by one."""
    found: dict[str, Any] = {}
    windows = config.layer_windows
    window = max(windows, default=0)
    match config.architecture:
        case "mistral" | "phi3":
            found["sliding_window"] = window or None
        case "qwen2" | "qwen3":
            found["use_sliding_window"] = False
        case "smollm3":
            found["no_rope_layers"] = [
                int(index not in config.nope_layers) for index in range(config.num_hidden_layers)
            ]
            found["use_sliding_window"] = False
        case "granite":
            found["embedding_multiplier"] = config.embedding_scale
            found["residual_multiplier"] = config.residual_scale
            scale = config.attention_scale
            found["attention_multiplier"] = config.head_dim**-0.5 if scale is None else scale
            found["logits_scaling"] = 1 / config.logits_scale
        case "gemma2" | "gemma3_text":
            found |= _gemma(config, window)
    return found


def _gemma(config: ModelConfig, window: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "query_pre_attn_scalar": round((config.attention_scale or 1.0) ** -2, 6),
        "final_logit_softcapping": config.logits_soft_cap or None,
        "sliding_window": window or None,
        "layer_types": ["sliding_attention" if size else "full_attention" for size in config.layer_windows],
    }
    if config.architecture == "gemma2":
        return found | {"attn_logit_softcapping": config.attention_soft_cap or None}
    return found | {"rope_local_base_freq": config.window_rope_theta}


def source_folder_files(folder: Path) -> list[Path]:
    """The small files beside the weights that a copy of the model needs too."""
    names = (
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "tokenizer.model",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "chat_template.jinja",
        "chat_template.json",
    )
    return [folder / name for name in names if (folder / name).is_file()]
