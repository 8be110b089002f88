"""Transformers as the oracle: the same weights, and in fp64 truly fp64.

transformers' Llama rounds to fp32 inside RMSNorm whatever the model's dtype, so its double logits carry fp32 errors.
`double_logits` lifts exactly that; the rotary angles stay fp32 on both sides, as the checkpoints were trained.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama

from engine.checkpoint import CheckpointInfo
from engine.models.loader import iter_weights


def llama(info: CheckpointInfo, dtype: torch.dtype) -> Any:
    """transformers' model with the checkpoint's weights, as our loader reads them."""
    config = info.config
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_scaling is not None:
        scaling = config.rope_scaling
        rope |= {"rope_type": scaling.kind, "factor": scaling.factor}
        if scaling.kind == "llama3":
            rope |= {
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_max_position_embeddings,
            }
    model = LlamaForCausalLM(
        LlamaConfig(
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
    )
    weights = dict(iter_weights(info, torch.float32, lambda done, total: None))
    missing = model.load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys
    assert set(missing.missing_keys) <= {"lm_head.weight"}
    model.tie_weights()
    return model.to(dtype).eval()


def logits(model: Any, prompt: list[int]) -> torch.Tensor:
    """[len(prompt), V] in the model's dtype."""
    with torch.inference_mode():
        result: torch.Tensor = model(torch.tensor([prompt])).logits[0]
    return result


def double_logits(model: Any, prompt: list[int]) -> torch.Tensor:
    """The logits of a float64 model with norms in fp64."""
    with _double_norms():
        return logits(model, prompt)


@contextlib.contextmanager
def _double_norms() -> Iterator[None]:
    def forward(norm: Any, hidden: torch.Tensor) -> torch.Tensor:
        variance = hidden.square().mean(-1, keepdim=True)
        return norm.weight * (hidden * torch.rsqrt(variance + norm.variance_epsilon))

    with mock.patch.object(modeling_llama.LlamaRMSNorm, "forward", forward):
        yield
