"""Which checkpoints transformers has a class for and this engine refuses all the same, and why.

Owns the reasons and how they are told from config.json. Knows no tensors.
Invariant: a kind of model whose past is not keys and values of every layer, in full or within a window, is refused by
name, with the reason and a remedy.
"""

from __future__ import annotations

from engine.checkpoint.fields import Fields

_RECURRENT = "carries a recurrent state from token to token, which the paged KV cache does not hold"
_LATENT = "keeps a latent vector in place of keys and values (multi-head latent attention)"
_SINKS = "adds learned attention sinks to every softmax"
_ALIBI = "adds a bias by distance to its attention scores (ALiBi)"
_CHUNKED = "attends within fixed chunks of the text"
_SPARSE = "picks the keys that it attends to"
_REMEDY = "run it with llama.cpp or transformers itself, or choose a model with softmax attention in every layer"

# model_type, and the part before it, of families that are known by name. Traits below catch their relatives.
_BY_NAME = {
    _RECURRENT: (
        "bailing_hybrid bamba falcon_h1 falcon_mamba granitemoehybrid jamba kimi_linear lfm2 lfm2_moe lfm3 mamba "
        "mamba2 minimax nemotron_h olmo_hybrid phi4flash plamo2 qwen3_next qwen3_5 qwen3_5_moe recurrent_gemma rwkv "
        "rwkv7 xlstm zamba zamba2 zaya"
    ),
    _LATENT: "axk1 deepseek_v2 deepseek_v3 glm4_moe_lite kimi_k2 longcat_flash minicpm3 sarvam_mla youtu",
    _SINKS: "gpt_oss mimo_v2_flash",
    _ALIBI: "bloom mpt",
    _CHUNKED: "llama4 llama4_text",
    _SPARSE: "deepseek_v32 deepseek_v4 glm_moe_dsa",
}
BY_NAME = {name: reason for reason, names in _BY_NAME.items() for name in names.split()}

# Fields of config.json whose presence (not null, not false, not empty) tells the kind.
_BY_FIELD = {
    "kv_lora_rank": _LATENT,
    "ssm_cfg": _RECURRENT,
    "ssm_state_size": _RECURRENT,
    "mamba_d_state": _RECURRENT,
    "mamba_config": _RECURRENT,
    "state_size": _RECURRENT,
    "lru_width": _RECURRENT,
    "conv_L_cache": _RECURRENT,
    "linear_conv_kernel_dim": _RECURRENT,
    "linear_attn_config": _RECURRENT,
    "hybrid_override_pattern": _RECURRENT,
    "alibi": _ALIBI,
    "use_alibi": _ALIBI,
    "add_full_attention_sink_bias": _SINKS,
    "add_swa_attention_sink_bias": _SINKS,
    "attention_chunk_size": _CHUNKED,
    "index_topk": _SPARSE,
}
_FULL, _SLIDING = "full_attention", "sliding_attention"
_LAYER_KINDS = {"chunked_attention": _CHUNKED, "sparse_attention": _SPARSE}  # any other kind is a recurrent one
_MODALITIES = ("vision_config", "audio_config", "image_token_id")


def refusal(fields: Fields, name: str) -> str | None:
    """Why the class `name` cannot run here, by what config.json says; None where nothing speaks against it."""
    if fields.get("is_encoder_decoder"):
        return f"{name} has an encoder; only decoders run here. Choose a model that generates from its own text"
    modality = next((field for field in _MODALITIES if fields.get(field) is not None), None)
    if modality is not None:
        return f"{name} takes more than text ({modality} is set); choose the text-only model of its family"
    reason = _reason(fields)
    return None if reason is None else f"{name} {reason}; {_REMEDY}"


def recurrent(name: str) -> str:
    """The refusal of a class that transformers marks as stateful."""
    return f"{name} {_RECURRENT}; {_REMEDY}"


def _reason(fields: Fields) -> str | None:
    named = BY_NAME.get(str(fields.get("model_type")))
    if named is not None:
        return named
    for field, reason in _BY_FIELD.items():
        if fields.get(field):
            return f"{reason} ({field} is {fields.get(field)!r:.40})"
    if str(fields.get("position_embedding_type")) == "alibi":
        return f"{_ALIBI} (position_embedding_type is alibi)"
    for field in ("layer_types", "layers_block_type", "block_types"):
        kinds = fields.get(field)
        for kind in kinds if isinstance(kinds, list) else ():
            if kind not in (_FULL, _SLIDING, "attention"):
                return f"{_LAYER_KINDS.get(str(kind), _RECURRENT)} ({field} holds {kind!r:.40})"
    return None
