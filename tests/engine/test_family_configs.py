"""config.json of the families: what absent fields mean, in old spellings and new, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint.hf_config import read_config
from engine.checkpoint.info import CheckpointError
from engine.config import ModelConfig, RopeScaling

SHARED: dict[str, Any] = {
    "hidden_size": 640,
    "intermediate_size": 2048,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
}
SHORT, LONG = [1.0] * 40, [4.0] * 40


def read(architecture: str, **changes: Any) -> ModelConfig:
    return read_config(Path("config.json"), SHARED | {"architectures": [architecture]} | changes)


def test_windows() -> None:
    assert read("MistralForCausalLM").layer_windows == (4096,) * 8, "transformers' default where the field is absent"
    assert read("MistralForCausalLM", sliding_window=None).layer_windows == ()
    assert read("LlamaForCausalLM", sliding_window=64).layer_windows == (), "Llama has no such field"
    assert read("Qwen2ForCausalLM", sliding_window=64).layer_windows == (), "off unless use_sliding_window"
    used = {"use_sliding_window": True, "sliding_window": 64}
    assert read("Qwen2ForCausalLM", max_window_layers=6, **used).layer_windows == (0,) * 6 + (64,) * 2
    types = ["sliding_attention", "full_attention"] * 4
    assert read("Qwen3ForCausalLM", layer_types=types, **used).layer_windows == (64, 0) * 4
    assert read("Gemma2ForCausalLM", sliding_window=64).layer_windows == (64, 0) * 4
    assert read("Gemma3ForCausalLM", sliding_window=64).layer_windows == (64,) * 5 + (0, 64, 64)
    assert read("Gemma3ForCausalLM", sliding_window=64, sliding_window_pattern=4).layer_windows == (64, 64, 64, 0) * 2


def test_gemma() -> None:
    two, three = read("Gemma2ForCausalLM"), read("Gemma3ForCausalLM")
    assert (two.head_dim, two.tie_word_embeddings, two.attention_soft_cap, two.logits_soft_cap) == (256, True, 50, 30)
    assert read("Gemma2ForCausalLM", attn_logit_softcapping=None).attention_soft_cap == 0
    assert (two.attention_scale, two.embedding_scale) == (256**-0.5, 640**0.5)
    assert (three.rope_theta, three.window_rope_theta, three.logits_soft_cap) == (1e6, 1e4, 0)
    old = read(
        "Gemma3ForCausalLM",
        rope_theta=5.0e5,
        rope_local_base_freq=2.0e4,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    )
    assert (old.rope_theta, old.window_rope_theta, old.rope_scaling) == (5e5, 2e4, RopeScaling("linear", 8.0))
    nested = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5.0e5}}
    nested["sliding_attention"] = {"rope_type": "default", "rope_theta": 2.0e4}
    assert read("Gemma3ForCausalLM", rope_parameters=nested) == old


def test_yarn_and_longrope_defaults() -> None:
    yarn = read("LlamaForCausalLM", rope_scaling={"type": "yarn", "factor": 4.0}).rope_scaling
    assert yarn is not None
    assert yarn.original_max_position_embeddings == 4096
    assert yarn.attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    scaling = {"type": "su", "short_factor": SHORT, "long_factor": LONG}
    longrope = read("Phi3ForCausalLM", rope_scaling=scaling, original_max_position_embeddings=1024).rope_scaling
    assert longrope is not None
    assert (longrope.kind, longrope.factor, longrope.long_factors) == ("longrope", 4.0, tuple(LONG))
    assert longrope.attention_factor == pytest.approx(math.sqrt(1 + math.log(4) / math.log(1024)))
    dynamic = read("LlamaForCausalLM", rope_scaling={"type": "dynamic", "factor": 4.0})
    assert dynamic.rope_scaling == RopeScaling("dynamic", 4.0, original_max_position_embeddings=4096)
    assert (dynamic.max_position_embeddings, dynamic.longest_context) == (4096, 16384)
    assert read("LlamaForCausalLM").longest_context == 4096


def test_layers_without_rotary_embedding() -> None:
    assert read("SmolLM3ForCausalLM").nope_layers == (3, 7)
    assert read("SmolLM3ForCausalLM", no_rope_layers=[0, 1, 1, 1, 1, 1, 1, 0]).nope_layers == (0, 7)


def test_experts() -> None:
    config = read("Qwen3MoeForCausalLM", num_experts=16, num_experts_per_tok=4, moe_intermediate_size=96)
    assert (config.num_experts, config.num_experts_per_token, config.intermediate_size) == (16, 4, 96)
    assert not config.normalise_experts
    assert read("MixtralForCausalLM").num_experts == 8


@pytest.mark.parametrize(
    ("architecture", "changes", "finding"),
    [
        ("Qwen3ForCausalLM", {"layer_types": ["full_attention"], "use_sliding_window": True}, "a list of 8 names"),
        ("Gemma3ForCausalLM", {"layer_types": ["chunked_attention"] * 8}, "layer_types holds 'chunked_attention'"),
        ("Gemma3ForCausalLM", {"attn_logit_softcapping": 50.0}, "no Gemma 3 has one"),
        ("LlamaForCausalLM", {"rope_scaling": {"type": "dynamic", "factor": 0.5}}, "factor is 0.5, expected"),
        ("Gemma2ForCausalLM", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        ("Qwen2ForCausalLM", {"use_sliding_window": True, "max_window_layers": -1}, "max_window_layers is -1"),
        ("SmolLM3ForCausalLM", {"no_rope_layers": [2] * 8}, "no_rope_layers is"),
        ("GraniteForCausalLM", {"residual_multiplier": 0}, "residual_multiplier is 0, expected a positive number"),
        (
            "Phi3ForCausalLM",
            {"rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": [1.0]}},
            "a list of 40 numbers",
        ),
        ("Qwen3MoeForCausalLM", {"mlp_only_layers": [0]}, "add dense layers"),
        ("MixtralForCausalLM", {"num_experts_per_tok": 9}, "at most the number of experts, 8"),
    ],
)
def test_what_is_refused(architecture: str, changes: dict[str, Any], finding: str) -> None:
    with pytest.raises(CheckpointError, match=finding):
        read(architecture, **changes)


def test_phi_3_5_as_published() -> None:
    shapes = {"hidden_size": 3072, "num_attention_heads": 32, "num_key_value_heads": 32}
    context = {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "sliding_window": 262144}
    factors = {"long_factor": [1.0] * 48, "short_factor": [1.0] * 48, "type": "longrope"}
    found = read("Phi3ForCausalLM", rope_scaling=factors, **shapes, **context)
    assert found.fused_projections
    assert found.layer_windows == (262144,) * 8
    assert found.rope_scaling is not None
    assert found.rope_scaling.attention_factor == pytest.approx(1.1902380714238083)
