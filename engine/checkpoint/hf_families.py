"""What each family of config.json adds to the fields that all share.

Owns the table of architectures and the meaning of the fields that only some have, with the defaults that transformers
gives to absent ones. Knows no tensors.
Invariant: a family's entry is all there is to it on this side; engine.config.ModelConfig holds what it differs in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.checkpoint.fields import Fields
from engine.checkpoint.info import UnsupportedCheckpointError

_FULL, _SLIDING = "full_attention", "sliding_attention"

Differences = dict[str, Any]  # fields of ModelConfig


@dataclass(frozen=True, slots=True)
class Family:
    """`key` names it in engine.models.registry.MODELS; the rest are defaults, and differences from Llama."""

    key: str
    constants: Differences = field(default_factory=dict)
    read: Callable[[Fields], Differences] | None = None
    tied: bool = False  # tie_word_embeddings where the field is absent
    head_dim: int | None = None  # where the field is absent; None: hidden_size / num_attention_heads
    rope_theta: float = 10000.0
    window_rope_theta: float | None = None  # of families whose sliding layers have a rotary base of their own
    activation: tuple[str, str] = ("hidden_act", "silu")  # the field, and the one value that is supported

    def differences(self, fields: Fields) -> Differences:
        """The fields of ModelConfig that not all families have."""
        return self.constants | (self.read(fields) if self.read else {})


def _windows(window: float, types: Sequence[str]) -> Differences:
    """The window of each layer; none where no layer has one."""
    windows = tuple(int(window) if kind == _SLIDING else 0 for kind in types)
    return {"layer_windows": windows} if any(windows) else {}


def _layer_types(fields: Fields, slides: Callable[[int], bool]) -> list[str]:
    """The field `layer_types`; where it is absent, `slides` says it of each layer."""
    num_layers = fields.count("num_hidden_layers")
    types = fields.get("layer_types")
    if types is None:
        return [_SLIDING if slides(index) else _FULL for index in range(num_layers)]
    if not isinstance(types, list) or len(types) != num_layers:
        raise fields.fail("layer_types", f"a list of {num_layers} names, one per layer")
    for kind in types:
        if kind not in (_FULL, _SLIDING):
            raise UnsupportedCheckpointError(
                f"{fields.path}: layer_types holds {kind!r}; supported are {_FULL} and {_SLIDING}"
            )
    return types


def _same_window(default: float) -> Callable[[Fields], Differences]:
    """One window for all layers; `default` where the field is absent."""

    def read(fields: Fields) -> Differences:
        types = [_SLIDING] * fields.count("num_hidden_layers")
        return _windows(fields.optional_number("sliding_window", default), types)

    return read


def _qwen_windows(fields: Fields) -> Differences:
    if not fields.flag("use_sliding_window"):
        return {}
    full_layers = fields.get("max_window_layers", 28)
    if type(full_layers) is not int or full_layers < 0:
        raise fields.fail("max_window_layers", "a whole number")
    types = _layer_types(fields, lambda index: index >= full_layers)
    return _windows(fields.optional_number("sliding_window", 4096), types)


def _smollm3(fields: Fields) -> Differences:
    num_layers, interval = fields.count("num_hidden_layers"), fields.count("no_rope_layer_interval", 4)
    rotates = fields.get("no_rope_layers", [int((index + 1) % interval != 0) for index in range(num_layers)])
    if not isinstance(rotates, list) or len(rotates) != num_layers or not all(item in (0, 1) for item in rotates):
        raise fields.fail("no_rope_layers", f"a list of {num_layers} numbers, 1 where rotary embedding is used, else 0")
    found: Differences = {"nope_layers": tuple(index for index, item in enumerate(rotates) if not item)}
    if fields.flag("use_sliding_window"):
        types = _layer_types(fields, lambda index: not rotates[index])
        found |= _windows(fields.optional_number("sliding_window"), types)
    return found


def _granite(fields: Fields) -> Differences:
    return {
        "embedding_scale": fields.number("embedding_multiplier", 1.0),
        "residual_scale": fields.number("residual_multiplier", 1.0),
        "attention_scale": fields.number("attention_multiplier", 1.0),
        "logits_scale": 1.0 / fields.number("logits_scaling", 1.0),
    }


def _gemma_scales(fields: Fields) -> Differences:
    return {
        "attention_scale": fields.number("query_pre_attn_scalar", 256.0) ** -0.5,
        "embedding_scale": fields.count("hidden_size") ** 0.5,
    }


def _gemma2(fields: Fields) -> Differences:
    types = _layer_types(fields, lambda index: index % 2 == 0)
    caps = {
        "attention_soft_cap": fields.optional_number("attn_logit_softcapping", 50.0),
        "logits_soft_cap": fields.optional_number("final_logit_softcapping", 30.0),
    }
    return _gemma_scales(fields) | caps | _windows(fields.optional_number("sliding_window", 4096), types)


def _gemma3(fields: Fields) -> Differences:
    if fields.get("attn_logit_softcapping") is not None:
        raise UnsupportedCheckpointError(
            f"{fields.path}: attn_logit_softcapping is {fields.get('attn_logit_softcapping')!r}; no Gemma 3 has one"
        )
    window = fields.optional_number("sliding_window", 4096)
    if not window:
        raise fields.fail("sliding_window", "a positive number: its layers have a rotary base of their own")
    pattern = fields.count("sliding_window_pattern", fields.count("_sliding_window_pattern", 6))
    types = _layer_types(fields, lambda index: (index + 1) % pattern != 0)
    caps = {"logits_soft_cap": fields.optional_number("final_logit_softcapping")}
    return _gemma_scales(fields) | caps | _windows(window, types)


def _experts(fields: Fields, count_name: str, default: int) -> Differences:
    found = {
        "num_experts": fields.count(count_name, fields.count("num_local_experts", default)),
        "num_experts_per_token": fields.count("num_experts_per_tok", 2),
    }
    if found["num_experts_per_token"] > found["num_experts"]:
        raise fields.fail("num_experts_per_tok", f"at most the number of experts, {found['num_experts']}")
    return found


def _mixtral(fields: Fields) -> Differences:
    return _experts(fields, "num_local_experts", 8) | _same_window(0)(fields)


def _qwen3_moe(fields: Fields) -> Differences:
    if fields.get("mlp_only_layers") or fields.get("decoder_sparse_step", 1) != 1:
        raise UnsupportedCheckpointError(
            f"{fields.path}: mlp_only_layers and decoder_sparse_step add dense layers; only experts in every layer run"
        )
    own = {
        "normalise_experts": fields.flag("norm_topk_prob"),
        "intermediate_size": fields.count("moe_intermediate_size", 768),
    }
    return _experts(fields, "num_experts", 128) | own | _qwen_windows(fields)


_MIXTRAL_NAMES = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


def plain_name(name: str) -> str:
    """A tensor's name in Mixtral's spelling as the other families spell it; other names as they are."""
    name = name.replace(".block_sparse_moe.", ".mlp.")
    stem, _, kind = name.rpartition(".")
    head, _, part = stem.rpartition(".")
    return f"{head}.{_MIXTRAL_NAMES[part]}.{kind}" if part in _MIXTRAL_NAMES else name


GEMMA: Differences = {"norm_placement": "sandwich", "norm_offset": 1.0, "activation": "gelu_tanh"}
_GEMMA_ACTIVATION = ("hidden_activation", "gelu_pytorch_tanh")
FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family("llama"),
    "MistralForCausalLM": Family("mistral", read=_same_window(4096)),
    "Qwen2ForCausalLM": Family("qwen2", {"qkv_bias": True}, _qwen_windows),
    "Qwen3ForCausalLM": Family("qwen3", {"qk_norm": "head"}, _qwen_windows, head_dim=128),
    "MixtralForCausalLM": Family("mixtral", read=_mixtral, rope_theta=1000000.0),
    "Qwen3MoeForCausalLM": Family("qwen3_moe", {"qk_norm": "head"}, _qwen3_moe),
    "Phi3ForCausalLM": Family("phi3", {"fused_projections": True}, _same_window(0)),
    "SmolLM3ForCausalLM": Family("smollm3", read=_smollm3, tied=True, rope_theta=2000000.0),
    "GraniteForCausalLM": Family("granite", read=_granite),
    "Olmo2ForCausalLM": Family("olmo2", {"norm_placement": "post", "qk_norm": "projection"}),
    "Gemma2ForCausalLM": Family("gemma2", GEMMA, _gemma2, tied=True, head_dim=256, activation=_GEMMA_ACTIVATION),
    "Gemma3ForCausalLM": Family(
        "gemma3_text",
        GEMMA | {"qk_norm": "head"},
        _gemma3,
        tied=True,
        head_dim=256,
        rope_theta=1000000.0,
        window_rope_theta=10000.0,
        activation=_GEMMA_ACTIVATION,
    ),
}
