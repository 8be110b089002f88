"""config.json made from a `ModelConfig` reads back as that configuration."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.checkpoint import read_checkpoint
from engine.checkpoint.hf_config import read_config
from engine.config import ModelConfig, RopeScaling
from engine.train.export_config import export_config
from engine.train.refusal import Refusal
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint

YARN = RopeScaling("yarn", 4.0, original_max_position_embeddings=128, attention_factor=1.2, truncate=False)
LLAMA3 = RopeScaling("llama3", 8.0, 1.0, 4.0, 128)
LONGROPE = RopeScaling(
    "longrope",
    4.0,
    original_max_position_embeddings=128,
    attention_factor=1.1,
    short_factors=(1.0,) * 8,
    long_factors=(2.0,) * 8,
)
GEMMA: dict[str, Any] = {
    "norm_placement": "sandwich",
    "norm_offset": 1.0,
    "activation": "gelu_tanh",
    "attention_scale": 24**-0.5,
    "embedding_scale": 64**0.5,
    "tie_word_embeddings": True,
}
# what a GGUF file of each family can say
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama yarn": {"rope_scaling": YARN},
    "llama llama3": {"rope_scaling": LLAMA3},
    "llama linear": {"rope_scaling": RopeScaling("linear", 2.0)},
    "llama biases": {"attention_bias": True, "mlp_bias": True, "bos_token_id": None, "eos_token_ids": (2, 5)},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": "head", "head_dim": 32},
    "phi3": {"fused_projections": True, "rope_scaling": LONGROPE, "layer_windows": (20, 20)},
    "smollm3": {"nope_layers": (1,), "tie_word_embeddings": True},
    "granite": {"embedding_scale": 12.0, "residual_scale": 0.22, "attention_scale": 0.1, "logits_scale": 0.25},
    "granite usual scale": {"embedding_scale": 12.0},
    "olmo2": {"norm_placement": "post", "qk_norm": "projection"},
    "gemma2": GEMMA | {"attention_soft_cap": 50.0, "logits_soft_cap": 30.0, "layer_windows": (20, 0)},
    "gemma3_text": GEMMA
    | {"qk_norm": "head", "layer_windows": (20, 0), "window_rope_theta": 10000.0, "rope_theta": 1000000.0},
}


def config(name: str) -> ModelConfig:
    shared = ModelConfig(
        architecture=name.split()[0],
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=320,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        bos_token_id=1,
        eos_token_ids=(2,),
    )
    return replace(shared, **CONFIGS[name])


@pytest.mark.parametrize("name", CONFIGS)
def test_a_gguf_files_configuration_survives(name: str, tmp_path: Path) -> None:
    info = read_checkpoint(tiny_llama_checkpoint(tmp_path, format="gguf"))
    wanted = config(name)
    values = export_config(replace(info, config=wanted), torch.float16)
    read = read_config(tmp_path / "config.json", json.loads(json.dumps(values)))
    if name == "granite usual scale":
        wanted = replace(wanted, attention_scale=16**-0.5)
    assert read == wanted
    assert values["torch_dtype"] == "float16"


def test_transformers_reads_it_too(tmp_path: Path) -> None:
    from transformers import AutoConfig

    info = read_checkpoint(tiny_llama_checkpoint(tmp_path / "gguf", format="gguf"))
    values = export_config(replace(info, config=config("llama llama3")), torch.float16)
    (tmp_path / "config.json").write_text(json.dumps(values))
    read = AutoConfig.from_pretrained(tmp_path)
    assert (read.hidden_size, read.num_key_value_heads, read.head_dim) == (64, 2, 16)
    assert read.rope_parameters["rope_type"] == "llama3"
    assert read.rope_parameters["rope_theta"] == 10000.0


def test_what_config_json_cannot_say_is_refused(tmp_path: Path) -> None:
    info = read_checkpoint(tiny_llama_checkpoint(tmp_path, format="gguf"))
    odd = replace(info, config=replace(info.config, qkv_bias=True))
    with pytest.raises(Refusal, match="qkv_bias"):
        export_config(odd, torch.float16)


def test_a_safetensors_source_keeps_its_own_fields(tmp_path: Path) -> None:
    info = read_checkpoint(tiny_llama_checkpoint(tmp_path, custom_field=7))
    values = export_config(info, torch.bfloat16)
    assert values["custom_field"] == 7
    assert values["torch_dtype"] == "bfloat16"
