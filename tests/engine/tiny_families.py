"""A tiny random checkpoint of every family, written by transformers itself: its config.json, its tensor names.

Owns the settings that make a family's differences matter at this size: windows shorter than the prompts, caps that
bite. Invariant: same name, same weights; logits differ clearly between tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SHORT_WINDOW = 20
SHAPES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LONG_FACTORS, SHORT_FACTORS = [1.0 + 0.3 * pair for pair in range(8)], [1.0 + 0.05 * pair for pair in range(8)]
YARN = {"rope_type": "yarn", "factor": 3.7, "original_max_position_embeddings": 32, "rope_theta": 10000.0}
LONGROPE = {
    "rope_type": "longrope",
    "long_factor": LONG_FACTORS,
    "short_factor": SHORT_FACTORS,
    "rope_theta": 10000.0,
}
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": SHORT_WINDOW, "tie_word_embeddings": True}

# name -> (model_type, what is put over SHAPES). Longrope switches at 24 tokens, or at 256, the tests' longest sequence.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama dynamic": ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}}),
    "llama yarn": ("llama", {"rope_parameters": YARN}),
    "llama yarn, spelled out": (
        "llama",
        {
            "rope_parameters": YARN
            | {"beta_fast": 8.0, "beta_slow": 0.5, "mscale": 0.8, "mscale_all_dim": 0.5, "truncate": False}
        },
    ),
    "llama longrope, long": (
        "llama",
        {"rope_parameters": LONGROPE | {"factor": 8.0, "original_max_position_embeddings": 24}},
    ),
    "qwen2": ("qwen2", {}),
    "qwen2 window": ("qwen2", {"use_sliding_window": True, "max_window_layers": 2, "sliding_window": SHORT_WINDOW}),
    "qwen3": ("qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "mixtral": ("mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen3_moe": (
        "qwen3_moe",
        {
            "head_dim": 16,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
        },
    ),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral window": ("mistral", {"sliding_window": SHORT_WINDOW}),
    "phi3": ("phi3", {"sliding_window": SHORT_WINDOW}),
    "phi3 longrope, long": ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 24}),
    "phi3 longrope, short": ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 256}),
    "smollm3": ("smollm3", {}),
    "smollm3 window": (
        "smollm3",
        {"no_rope_layers": [1, 0, 0, 1], "use_sliding_window": True, "sliding_window": SHORT_WINDOW},
    ),
    "granite": (
        "granite",
        {
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.1,
            "logits_scaling": 4.0,
            "tie_word_embeddings": True,
        },
    ),
    "olmo2": ("olmo2", {}),
    "gemma2": ("gemma2", GEMMA | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0}),
    "gemma2 uncapped": ("gemma2", GEMMA | {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma3": (
        "gemma3_text",
        GEMMA
        | {
            "sliding_window_pattern": 2,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    ),
    "gemma3 uneven": ("gemma3_text", GEMMA | {"num_hidden_layers": 7, "sliding_window_pattern": 3}),
}


def family_checkpoint(folder: Path, variant: str, seed: int = 0) -> Path:
    """Write the variant's checkpoint into `folder`."""
    model_type, changes = VARIANTS[variant]
    return random_checkpoint(folder, model_type, SHAPES | changes, seed)


def random_checkpoint(folder: Path, model_type: str, settings: dict[str, Any], seed: int = 0) -> Path:
    """Write a random model of transformers with these settings into `folder`."""
    config = AutoConfig.for_model(model_type, **settings)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() >= 2:
                parameter.copy_(noise.mul_(1.5 / parameter.shape[-1] ** 0.5))
            else:
                parameter.copy_(noise.mul_(0.1) + (1.0 if _scales(name) and "gemma" not in model_type else 0.0))
    model.save_pretrained(folder)
    return folder


def _scales(name: str) -> bool:
    """Whether a vector is the weight of a norm."""
    return name.endswith("weight") and ("norm" in name or ".ln_" in name)
