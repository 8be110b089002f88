"""A Llama of a few weights in Hugging Face's layout, for tests that move files about and never run it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from engine.config import ModelConfig

SHAPES = ModelConfig(
    architecture="llama",
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    vocab_size=512,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    tie_word_embeddings=True,
)
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "float16",
    **{
        name: value
        for name, value in asdict(SHAPES).items()
        if value is not None and name not in ("architecture", "eos_token_ids")
    },
}
