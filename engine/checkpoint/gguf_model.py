"""Reads a GGUF file, or all parts of one, as if it were a Hugging Face checkpoint: names, configuration, template.

Owns the keys that all families share. What a family adds is gguf_families.py; the byte format is
gguf.py.
Invariant: a key or tensor that would change the arithmetic is translated or refused, never passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.checkpoint.gguf import GgufHeader
from engine.checkpoint.gguf_families import GGUF_FAMILIES, TOP_LEVEL, GgufFamily
from engine.checkpoint.gguf_keys import GgufKeys
from engine.checkpoint.gguf_parts import read_gguf_parts
from engine.checkpoint.gguf_rope import ROPE_TENSORS, read_rope_scaling
from engine.checkpoint.info import GROUP_SCHEMES, TensorInfo, UnsupportedCheckpointError
from engine.config import ModelConfig

_EOS_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")


def read_gguf(path: Path) -> tuple[ModelConfig, dict[str, TensorInfo], str | None, dict[str, Any]]:
    """Configuration, tensors under Hugging Face names, chat template and key-values of the GGUF file `path`."""
    header = read_gguf_parts(path)
    architecture = header.metadata.get("general.architecture")
    if architecture == "llama" and header.metadata.get("llama.expert_count"):
        architecture = "llama with experts"
    if architecture not in GGUF_FAMILIES:
        raise UnsupportedCheckpointError(
            f"{path}: architecture {architecture!r} is not supported; supported in GGUF: {', '.join(GGUF_FAMILIES)}"
        )
    family = GGUF_FAMILIES[architecture]
    tensors = _hugging_face_names(header, family)
    template = header.metadata.get("tokenizer.chat_template")
    config = _read_config(GgufKeys(header), family, tensors)
    return config, tensors, template if isinstance(template, str) else None, header.metadata


def _hugging_face_names(header: GgufHeader, family: GgufFamily) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for name, tensor in header.tensors.items():
        if name in ROPE_TENSORS:
            continue  # read by read_rope_scaling
        renamed = _hugging_face_name(name, family)
        if renamed is None:
            raise UnsupportedCheckpointError(
                f"{header.path}: tensor {name} is not one of a {family.key}'s; this variant is not supported"
            )
        tensors |= {part.name: _in_codes(part) for part in _split_experts(replace(tensor, name=renamed))}
    return tensors


def _in_codes(tensor: TensorInfo) -> TensorInfo:
    """With the scheme of a matrix that stays in codes; routers, norms and biases become numbers."""
    if len(tensor.shape) != 2 or tensor.name.endswith(".mlp.gate.weight"):
        return tensor
    return replace(tensor, scheme=GROUP_SCHEMES.get(tensor.dtype))


def _split_experts(tensor: TensorInfo) -> Iterator[TensorInfo]:
    """A tensor of all experts, [experts, out, in] one after the other, as one of each; any other as it is."""
    if "{}" not in tensor.name or len(tensor.shape) != 3 or tensor.shape[0] == 0:
        yield tensor
        return
    count, *shape = tensor.shape
    nbytes = tensor.nbytes // count
    for index in range(count):
        offset = tensor.offset + index * nbytes
        yield replace(tensor, name=tensor.name.format(index), shape=tuple(shape), offset=offset, nbytes=nbytes)


def _hugging_face_name(name: str, family: GgufFamily) -> str | None:
    stem, _, suffix = name.rpartition(".")
    if suffix not in ("weight", "bias"):
        return None
    if stem in TOP_LEVEL:
        return f"{TOP_LEVEL[stem]}.{suffix}"
    parts = stem.split(".")
    if len(parts) == 3 and parts[0] == "blk" and parts[1].isascii() and parts[1].isdigit() and parts[2] in family.names:
        return f"model.layers.{parts[1]}.{family.names[parts[2]]}.{suffix}"
    return None


def _read_config(keys: GgufKeys, family: GgufFamily, tensors: dict[str, TensorInfo]) -> ModelConfig:
    differences = family.differences(keys)
    hidden_size = keys.count("embedding_length")
    num_heads = keys.count("attention.head_count")
    head_dim = keys.count("attention.key_length", max(1, hidden_size // num_heads))
    for name in ("attention.value_length", "rope.dimension_count"):
        if keys.count(name, head_dim) != head_dim:
            raise keys.fail(name, f"{head_dim}, the length of a head")
    rope_theta = keys.number("rope.freq_base", 10000.0)
    tokens = keys.header.metadata.get("tokenizer.ggml.tokens")
    qkv_bias = any(f"model.layers.0.self_attn.{name}_proj.bias" in tensors for name in ("q", "qkv"))
    attention_bias = "model.layers.0.self_attn.o_proj.bias" in tensors
    shared = ModelConfig(
        architecture=family.key,
        hidden_size=hidden_size,
        intermediate_size=keys.count("feed_forward_length"),
        num_hidden_layers=keys.count("block_count"),
        num_attention_heads=num_heads,
        num_key_value_heads=keys.count("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        vocab_size=keys.count("vocab_size", len(tokens) if isinstance(tokens, list) else None),
        max_position_embeddings=keys.count("context_length"),
        rms_norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope_theta=rope_theta,
        rope_scaling=read_rope_scaling(keys, rope_theta, head_dim),
        tie_word_embeddings="lm_head.weight" not in tensors,
        attention_bias=attention_bias,
        qkv_bias=qkv_bias and not attention_bias,
        mlp_bias="model.layers.0.mlp.down_proj.bias" in tensors,
        bos_token_id=_token_id(keys.header, "tokenizer.ggml.bos_token_id"),
        eos_token_ids=tuple(
            dict.fromkeys(token for key in _EOS_KEYS if (token := _token_id(keys.header, key)) is not None)
        ),
    )
    return replace(shared, **differences)


def _token_id(header: GgufHeader, key: str) -> int | None:
    value = header.metadata.get(key)
    return value if type(value) is int else None
