"""What each family of GGUF adds to the keys and names that all share.

Owns the table of architectures, their tensors' names, and the meaning of the keys that only some have. What llama.cpp
fixes in its code rather than in the file is spelled out here. Knows no byte format.
Invariant: a key that would change the arithmetic is read by its family or refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.checkpoint.gguf_keys import GgufKeys
from engine.checkpoint.hf_families import GEMMA, Differences

TOP_LEVEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_POST_NORMS = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
_SANDWICH = _IN_LAYER | _POST_NORMS | {"ffn_norm": "pre_feedforward_layernorm"}
_EXPERTS = {  # one tensor holds all experts, but for the router
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
_FUSED = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
# Keys whose presence, with another value than the one given, means arithmetic that only the families named have here.
_NEUTRAL = {"expert_count": 0, "attention.sliding_window": 0, "attention.scale": 0.0, "attention.causal": True}


@dataclass(frozen=True, slots=True)
class GgufFamily:
    """`key` names it in engine.models.registry.MODELS; the rest is what it differs from Llama in."""

    key: str
    constants: Differences = field(default_factory=dict)
    read: Callable[[GgufKeys], Differences] | None = None
    names: dict[str, str] = field(default_factory=lambda: _IN_LAYER)
    reads_keys: tuple[str, ...] = ()  # of _NEUTRAL, those that `read` understands

    def differences(self, keys: GgufKeys) -> Differences:
        """The fields of ModelConfig that not all families have."""
        for name, neutral in _NEUTRAL.items():
            if name not in self.reads_keys and keys.get(name) not in (None, neutral):
                raise keys.refuse(name, "dense models with full attention and the usual scale")
        return self.constants | (self.read(keys) if self.read else {})


def _windows(keys: GgufKeys, default: int, slides: Callable[[int], bool]) -> Differences:
    window = keys.count("attention.sliding_window", default)
    return {"layer_windows": tuple(window if slides(i) else 0 for i in range(keys.count("block_count")))}


def _phi3(keys: GgufKeys) -> Differences:
    if not keys.get("attention.sliding_window"):
        return {}
    return _windows(keys, 0, lambda index: True)


def _smollm3(keys: GgufKeys) -> Differences:
    return {"nope_layers": tuple(index for index in range(keys.count("block_count")) if (index + 1) % 4 == 0)}


def _granite(keys: GgufKeys) -> Differences:
    found = {
        "embedding_scale": keys.number("embedding_scale", 1.0),
        "residual_scale": keys.number("residual_scale", 1.0),
        "logits_scale": 1.0 / keys.number("logit_scale", 1.0),
    }
    return found | ({"attention_scale": keys.number("attention.scale")} if keys.get("attention.scale") else {})


def _gemma_scales(keys: GgufKeys, layers_of_27b: int) -> Differences:
    """The 27B models scale by the width a head would have if heads shared the hidden size, the others by its own."""
    hidden, heads = keys.count("embedding_length"), keys.count("attention.head_count")
    width = hidden / heads if keys.count("block_count") == layers_of_27b else keys.count("attention.key_length")
    return {"attention_scale": width**-0.5, "embedding_scale": hidden**0.5}


def _gemma2(keys: GgufKeys) -> Differences:
    caps = {
        "attention_soft_cap": keys.number("attn_logit_softcapping", 50.0),
        "logits_soft_cap": keys.number("final_logit_softcapping", 30.0),
    }
    return _gemma_scales(keys, 46) | caps | _windows(keys, 4096, lambda index: index % 2 == 0)


def _gemma3(keys: GgufKeys) -> Differences:
    pattern = keys.count("attention.sliding_window_pattern", 6)
    own = {"window_rope_theta": keys.number("rope.freq_base_swa", 10000.0)}
    if keys.get("final_logit_softcapping"):
        own["logits_soft_cap"] = keys.number("final_logit_softcapping")
    return _gemma_scales(keys, 62) | own | _windows(keys, 1024, lambda index: (index + 1) % pattern != 0)


def _experts(keys: GgufKeys) -> Differences:
    return {
        "num_experts": keys.count("expert_count"),
        "num_experts_per_token": keys.count("expert_used_count"),
        "intermediate_size": keys.count("expert_feed_forward_length", keys.count("feed_forward_length")),
    }


_WINDOW = ("attention.sliding_window",)
GGUF_FAMILIES: dict[str, GgufFamily] = {
    "llama": GgufFamily("llama"),
    "llama with experts": GgufFamily("mixtral", {}, _experts, _IN_LAYER | _EXPERTS, ("expert_count",)),
    "qwen2": GgufFamily("qwen2"),
    "qwen3": GgufFamily("qwen3", {"qk_norm": "head"}, names=_IN_LAYER | _HEAD_NORMS),
    "qwen3moe": GgufFamily(
        "qwen3_moe", {"qk_norm": "head"}, _experts, _IN_LAYER | _HEAD_NORMS | _EXPERTS, ("expert_count",)
    ),
    "phi3": GgufFamily("phi3", {"fused_projections": True}, _phi3, _IN_LAYER | _FUSED, _WINDOW),
    "smollm3": GgufFamily("smollm3", read=_smollm3),
    "granite": GgufFamily("granite", read=_granite, reads_keys=("attention.scale",)),
    "olmo2": GgufFamily(
        "olmo2", {"norm_placement": "post", "qk_norm": "projection"}, names=_IN_LAYER | _HEAD_NORMS | _POST_NORMS
    ),
    "gemma2": GgufFamily("gemma2", GEMMA, _gemma2, _SANDWICH, _WINDOW),
    "gemma3": GgufFamily("gemma3_text", GEMMA | {"qk_norm": "head"}, _gemma3, _SANDWICH | _HEAD_NORMS, _WINDOW),
}
# Families whose files store the rows of q and k as rotary pairs side by side (keys of MODELS).
INTERLEAVED_ROWS = frozenset({"llama", "mixtral", "granite", "smollm3"})
