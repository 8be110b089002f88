"""transformers' Llama with a checkpoint's weights: the peer of measurements, the oracle of tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engine.checkpoint import CheckpointInfo
from engine.config import ModelConfig
from engine.models.loader import iter_numbers
from engine.vocab import write_tokenizer
from kernels.ops import accumulation_dtype


def build(info: CheckpointInfo, dtype: torch.dtype) -> Any:
    """A `LlamaForCausalLM` in `dtype`. Fails when a weight is missing or left over."""
    model = LlamaForCausalLM(llama_config(info.config)).to(accumulation_dtype(dtype))
    weights = dict(iter_numbers(info, accumulation_dtype(dtype), lambda done, total: None))
    keys = model.load_state_dict(weights, strict=False)
    if keys.unexpected_keys or not set(keys.missing_keys) <= {"lm_head.weight"}:
        raise ValueError(f"weights do not match: left over {keys.unexpected_keys}, missing {keys.missing_keys}")
    model.tie_weights()
    return model.to(dtype).eval()


def export(info: CheckpointInfo, folder: Path, dtype: torch.dtype) -> None:
    """Writes a GGUF file's weights, dequantised to `dtype`, and its tokenizer as a Hugging Face folder."""
    build(info, dtype).save_pretrained(folder)
    write_tokenizer(info, folder)


def llama_config(config: ModelConfig) -> LlamaConfig:
    """The same architecture in transformers' words."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    scaling = config.rope_scaling
    if scaling is not None:
        rope |= {"rope_type": scaling.kind, "factor": scaling.factor}
        if scaling.kind == "llama3":
            rope |= {
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_max_position_embeddings,
            }
    return LlamaConfig(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        max_position_embeddings=config.max_position_embeddings,
        rms_norm_eps=config.rms_norm_eps,
        tie_word_embeddings=config.tie_word_embeddings,
        attention_bias=config.attention_bias,
        mlp_bias=config.mlp_bias,
        rope_parameters=rope,
        attn_implementation="sdpa",
    )
